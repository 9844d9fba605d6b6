//! One JavaScript environment: the main thread's, or a worker's. Its events, its seats in elections, and
//! the watchdog of its event loop.
//!
//! Everything that belongs to the environment's own thread is found through [`Environment::of`]; what
//! other threads need of it is in [`Link`], which outlives it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use napi::bindgen_prelude::{Function, Unknown};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Status};
use napi_derive::napi;

use super::clients::{self, ClientAnswer};
use super::logs::{self, LogRecord};
use super::own_store::{Calls, StoreCall};
use super::{ClusterInfo, STORE, from_token, millis};
use crate::campaign::{Attempted, Event};
use crate::clock::{Clock, Moment, SystemClock};
use crate::cluster::{self, Cluster, Election, Listener, ListenerId, StartError};
use crate::config::{ElectionOptions, OnOverrun};
use crate::lease::{ElectionName, Token};
use crate::locked::locked;
use crate::random::random_u64;
use crate::term::Term;
use crate::timing::Jitter;

/// The watchdog looks this often per `stallTimeout`.
const LOOKS_PER_STALL_TIMEOUT: u32 = 4;
/// The exit code of a process whose work outlived its lease (BSD's `EX_SOFTWARE`).
const EXIT_OVERRUN: i32 = 70;

/// How long an ending process waits until its last words are written.
const PATIENCE_FOR_STDERR: Duration = Duration::from_millis(200);

/// What JavaScript's dispatcher gets: `type` says which of the others are there.
#[napi(object)]
#[derive(Default)]
pub struct JsEvent {
    pub r#type: String,
    pub election: Option<String>,
    pub token: Option<f64>,
    pub trace_id: Option<String>,
    pub reason: Option<String>,
    pub instance_id: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    pub fatal: Option<bool>,
    pub level: Option<String>,
    pub fields: Option<BTreeMap<String, String>>,
    pub what: Option<String>,
    pub outcome: Option<String>,
    /// In milliseconds.
    pub duration: Option<f64>,
    pub operation: Option<u32>,
    pub info: Option<ClusterInfo>,
    pub address: Option<String>,
    pub answer: Option<ClientAnswer>,
    pub call: Option<StoreCall>,
}

/// How an operation ended.
pub enum Done {
    Nothing,
    Info(Box<ClusterInfo>),
    Answer(Box<ClientAnswer>),
    /// Where a server listens.
    Address(String),
    /// The class of the error, the store's own word for it, and the message.
    Failed(&'static str, Option<&'static str>, String),
}

enum Message {
    Election(SeatName, ListenerId, Event),
    /// The seat is given up: its election has stopped, or goes on without this environment.
    Left(SeatName, ListenerId),
    Done(u32, Done),
    /// What a client's watch heard, under the number of the operation that began it.
    Hint(u32, ClientAnswer),
    /// A function of the application's own store is wanted.
    Store(StoreCall),
    Log(LogRecord),
    /// Proves that the event loop turns.
    Turn,
}

/// An idle addon must not keep a process alive: weak. No argument for an error: not "callee handled".
type Dispatch = ThreadsafeFunction<Message, Unknown<'static>, JsEvent, Status, false, true>;

/// The environment as other threads see it.
pub struct Link {
    dispatch: Dispatch,
    gone: AtomicBool,
    logs_waiting: logs::Waiting,
    calls: Calls,
    /// When the event loop last turned, and whether a proof of that is under way.
    turned: AtomicU64,
    turning: AtomicBool,
    seats: Mutex<Vec<LinkedSeat>>,
    /// Some election was told that the event loop stands still.
    stalled: AtomicBool,
    /// Counts the watchdogs of the event loop; only the last one goes on.
    watchdog: AtomicU64,
}

/// What other threads need of a seat.
#[derive(Clone)]
struct LinkedSeat {
    election: Arc<Election>,
    listener: ListenerId,
    stall_timeout: Option<Duration>,
}

thread_local! {
    /// By the environment's address: an addon that is loaded twice in one thread has two.
    static HERE: RefCell<HashMap<usize, Environment>> = RefCell::default();
}

/// What JavaScript calls a seat: the election's name; beside the cluster of the process, a number and the name,
/// with a NUL between them, which no name has.
pub type SeatName = Arc<str>;

pub struct Environment {
    link: Arc<Link>,
    seats: HashMap<SeatName, Rc<Seat>>,
    /// Given up, but with callbacks that have not ended.
    leaving: Vec<Rc<Seat>>,
}

/// This environment's part in one election.
pub struct Seat {
    name: SeatName,
    election: Arc<Election>,
    /// What the election is all of, and ends with. Until the seat is left: JavaScript may hold that for longer.
    apart: RefCell<Option<Arc<Cluster>>>,
    listener: ListenerId,
    options: ElectionOptions,
    /// The term that JavaScript was told of last. A later one does not count until it was told too.
    term: RefCell<Option<Arc<Term>>>,
}

impl Seat {
    pub fn name(&self) -> &SeatName {
        &self.name
    }

    pub fn apart(&self) -> Option<Arc<Cluster>> {
        self.apart.borrow().clone()
    }

    pub fn election(&self) -> &Arc<Election> {
        &self.election
    }

    pub fn listener(&self) -> ListenerId {
        self.listener
    }

    /// How long it stays out of the election after a hand-over, unless JavaScript says so.
    pub fn default_pause(&self) -> Duration {
        let timing = self.options.timing;
        if self.options.is_of_work {
            let [low, high, ..] = random_u64().to_le_bytes();
            timing.pause(Jitter::from_bits(u16::from_le_bytes([low, high])))
        } else {
            timing.default_pause()
        }
    }

    pub fn term(&self) -> Option<Arc<Term>> {
        self.term.borrow().clone()
    }

    #[inline]
    pub fn is_led(&self) -> bool {
        self.term
            .borrow()
            .as_ref()
            .is_some_and(|term| term.is_led(SystemClock.now()))
    }
}

impl Environment {
    pub fn attach(
        env: Env,
        dispatch: &Function<JsEvent, Unknown<'static>>,
        log_level: &str,
    ) -> napi::Result<()> {
        let key = key(env);
        // JavaScript was loaded anew in this environment, as test runners do: nobody hears the old one.
        detach(key);
        let dispatch = dispatch
            .build_threadsafe_function::<Message>()
            .weak::<true>()
            .callee_handled::<false>()
            .build_callback(move |context| Ok(deliver(key, context.value)))?;
        let link = Arc::new(Link {
            dispatch,
            gone: AtomicBool::new(false),
            logs_waiting: logs::Waiting::default(),
            calls: Calls::default(),
            turned: AtomicU64::new(SystemClock.now().as_nanos()),
            turning: AtomicBool::new(false),
            seats: Mutex::default(),
            stalled: AtomicBool::new(false),
            watchdog: AtomicU64::new(0),
        });
        logs::listen(&link, log_level);
        let here = Self {
            link,
            seats: HashMap::new(),
            leaving: Vec::new(),
        };
        HERE.with_borrow_mut(|all| all.insert(key, here));
        env.add_env_cleanup_hook(key, detach)?;
        Ok(())
    }

    /// `None` before `attach`.
    pub fn of<T>(env: Env, then: impl FnOnce(&mut Self) -> T) -> Option<T> {
        HERE.with_borrow_mut(|all| all.get_mut(&key(env)).map(then))
    }

    pub fn reply(&self) -> Reply {
        Reply(self.link.clone())
    }

    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub fn set_log_level(&self, level: &str) {
        logs::listen(&self.link, level);
    }

    pub fn seat(&self, name: &str) -> Option<Rc<Seat>> {
        self.seats.get(name).cloned()
    }

    pub fn listeners(&self) -> Vec<ListenerId> {
        let seats = self.seats.values().chain(&self.leaving);
        seats.map(|seat| seat.listener).collect()
    }

    pub fn settled(&mut self, name: &str, token: Token) {
        for seat in self.seats.get(name).into_iter().chain(&self.leaving) {
            if *seat.name == *name {
                seat.election.settled(seat.listener, token);
            }
        }
        self.leaving
            .retain(|seat| seat.election.awaits(seat.listener));
    }

    fn leave(&mut self, name: &str, listener: ListenerId) {
        if let Some(seat) = self.seats.get(name)
            && seat.listener == listener
        {
            let seat = self.seats.remove(name);
            if let Some(seat) = &seat {
                seat.apart.take();
            }
            self.leaving
                .extend(seat.filter(|seat| seat.election.awaits(listener)));
        }
    }

    pub fn join(
        &mut self,
        cluster: &Arc<Cluster>,
        name: &ElectionName,
        options: &ElectionOptions,
    ) -> Result<(), StartError> {
        let seat_name = SeatName::from(name.as_str());
        if let Some(seat) = self.seats.get(&seat_name).cloned() {
            if !seat.election.is_stopping() {
                return Ok(());
            }
            self.leave(&seat_name, seat.listener);
        }
        self.take_seat(seat_name, cluster, name, options, None)
    }

    /// The one election of a cluster beside that of the process. Returns what its seat is called.
    pub fn join_apart(
        &mut self,
        cluster: &Arc<Cluster>,
        options: &ElectionOptions,
    ) -> Result<String, StartError> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let election = &cluster.config().election;
        let name = SeatName::from(format!("{number}\0{election}"));
        let apart = Some(cluster.clone());
        self.take_seat(name.clone(), cluster, election, options, apart)?;
        Ok(name.to_string())
    }

    fn take_seat(
        &mut self,
        name: SeatName,
        cluster: &Arc<Cluster>,
        election: &ElectionName,
        options: &ElectionOptions,
        apart: Option<Arc<Cluster>>,
    ) -> Result<(), StartError> {
        let ear = Ear {
            seat: name.clone(),
            link: self.link.clone(),
            on_overrun: options.on_overrun,
        };
        let (election, listener) = cluster.join(election, options, Arc::new(ear))?;
        Link::add_seat(
            &self.link,
            LinkedSeat {
                election: election.clone(),
                listener,
                stall_timeout: options.stall_timeout,
            },
        );
        let seat = Seat {
            name: name.clone(),
            election,
            apart: RefCell::new(apart),
            listener,
            options: *options,
            term: RefCell::default(),
        };
        self.seats.insert(name, Rc::new(seat));
        Ok(())
    }
}

impl Link {
    fn send(&self, message: Message) {
        // After this flag is set, a queued call would never be answered, and nobody is there to hear it.
        if !self.gone.load(Ordering::SeqCst) {
            self.dispatch
                .call(message, ThreadsafeFunctionCallMode::NonBlocking);
        }
    }

    /// Never blocks; a record that finds no place is counted.
    pub fn log(&self, record: LogRecord) {
        if self.logs_waiting.enter() {
            self.send(Message::Log(record));
        }
    }

    pub fn logs_waiting(&self) -> &logs::Waiting {
        &self.logs_waiting
    }

    /// The calls of stores whose functions belong to this environment.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    pub fn call_store(&self, call: StoreCall) {
        self.send(Message::Store(call));
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    fn seats(&self) -> std::sync::MutexGuard<'_, Vec<LinkedSeat>> {
        locked(&self.seats)
    }

    fn add_seat(link: &Arc<Self>, seat: LinkedSeat) {
        let mut seats = link.seats();
        let shortest = shortest_stall(&seats);
        let limit = seat.stall_timeout;
        seats.push(seat);
        drop(seats);
        if let Some(limit) = limit
            && shortest.is_none_or(|shortest| limit < shortest)
        {
            Self::watch_loop(link);
        }
    }

    /// The seat is given up, or its election is over.
    fn left(&self, seat: &SeatName, listener: ListenerId) {
        self.seats().retain(|seat| seat.listener != listener);
        self.send(Message::Left(seat.clone(), listener));
    }

    /// Tells each election when the event loop did not turn for its `stallTimeout`, and when it turns again, as
    /// long as there are any.
    fn watch_loop(link: &Arc<Self>) {
        let link = link.clone();
        let number = link.watchdog.fetch_add(1, Ordering::SeqCst) + 1;
        link.turned
            .store(SystemClock.now().as_nanos(), Ordering::SeqCst);
        cluster::runtime().spawn(async move {
            loop {
                let last = link.watchdog.load(Ordering::SeqCst) == number;
                let shortest = shortest_stall(&link.seats());
                let Some(shortest) = shortest.filter(|_| last && !link.is_gone()) else {
                    return;
                };
                if !link.turning.swap(true, Ordering::SeqCst) {
                    link.send(Message::Turn);
                }
                tokio::time::sleep(shortest / LOOKS_PER_STALL_TIMEOUT).await;
                link.note_stall();
            }
        });
    }

    fn note_stall(&self) {
        let turned = Moment::from_nanos(self.turned.load(Ordering::SeqCst));
        let since = SystemClock.now().since(turned);
        // Not under the lock: an election that tells of its end takes the two the other way round.
        for seat in self.seats().clone() {
            if seat.stall_timeout.is_some_and(|limit| since >= limit) {
                self.stalled.store(true, Ordering::SeqCst);
                seat.election.stalled(seat.listener, true);
            }
        }
    }

    fn note_turn(&self) {
        self.turned
            .store(SystemClock.now().as_nanos(), Ordering::SeqCst);
        self.turning.store(false, Ordering::SeqCst);
        if self.stalled.swap(false, Ordering::SeqCst) {
            for seat in self.seats().clone() {
                seat.election.stalled(seat.listener, false);
            }
        }
    }
}

fn shortest_stall(seats: &[LinkedSeat]) -> Option<Duration> {
    seats.iter().filter_map(|seat| seat.stall_timeout).min()
}

pub fn no_thread(error: &std::io::Error) -> String {
    format!(
        "the system lets this process start no thread ({error}); free some files or threads and try again"
    )
}

/// Tells JavaScript how an operation ended.
#[derive(Clone)]
pub struct Reply(Arc<Link>);

impl Reply {
    /// Runs an operation. One that panics has failed: whoever waits for it is told.
    pub fn when_done(self, operation: u32, work: impl Future<Output = Done> + Send + 'static) {
        let runtime = match cluster::start_runtime() {
            Ok(runtime) => runtime,
            Err(error) => {
                let message = no_thread(&error);
                let how = Done::Failed(STORE, Some("threads"), message);
                return self.0.send(Message::Done(operation, how));
            }
        };
        let work = runtime.spawn(work);
        runtime.spawn(async move {
            let how = work.await.unwrap_or_else(|error| {
                let message =
                    format!("an operation of whenleader died ({error}). Please report this");
                Done::Failed(STORE, None, message)
            });
            self.0.send(Message::Done(operation, how));
        });
    }

    pub fn left(&self, seat: &SeatName, listener: ListenerId) {
        self.0.left(seat, listener);
    }

    pub fn hint(&self, operation: u32, hint: ClientAnswer) {
        self.0.send(Message::Hint(operation, hint));
    }
}

/// Hears one election for one environment.
struct Ear {
    seat: SeatName,
    link: Arc<Link>,
    on_overrun: OnOverrun,
}

impl Listener for Ear {
    fn tell(&self, listener: ListenerId, election: &ElectionName, event: &Event) {
        if let Event::Stopped = event {
            return self.link.left(&self.seat, listener);
        }
        if let (Event::Overrun { token, since, .. }, OnOverrun::Exit) = (event, self.on_overrun) {
            exit_for_overrun(election, token.number(), *since);
        }
        self.link.send(Message::Election(
            self.seat.clone(),
            listener,
            event.clone(),
        ));
    }
}

/// Ends the process from whatever thread this is, also while JavaScript is stuck in a loop.
fn exit_for_overrun(election: &ElectionName, token: u64, since: Duration) -> ! {
    let line = format!(
        "whenleader: election {election}, term {token}: its work still ran {:.1} s after the term had ended, and its lease ends now, so this process ends with code {EXIT_OVERRUN} (onOverrun is \"exit\"). Make the work heed term.signal, or lengthen leaseDuration.\n",
        since.as_secs_f64()
    );
    // A pipe that nobody reads must not keep the process alive, nor must a system that has no thread for us.
    let told = line.clone();
    let writer =
        std::thread::Builder::new().spawn(move || std::io::stderr().write_all(told.as_bytes()));
    if let Ok(writer) = writer {
        let deadline = Instant::now() + PATIENCE_FOR_STDERR;
        while !writer.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    } else {
        tell_at_once(line.as_bytes());
    }
    // SAFETY: always sound. The handlers of a normal exit could wait for the very thread that is stuck.
    unsafe { libc_exit(EXIT_OVERRUN) }
}

/// If standard error takes it without a wait.
#[cfg(unix)]
fn tell_at_once(line: &[u8]) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(&stderr, line);
    }
}

#[cfg(not(unix))]
fn tell_at_once(_: &[u8]) {}

unsafe extern "C" {
    #[link_name = "_exit"]
    fn libc_exit(code: i32) -> !;
}

/// On the environment's own thread: what JavaScript gets for a message.
fn deliver(key: usize, message: Message) -> JsEvent {
    match message {
        Message::Election(name, listener, event) => {
            if let Event::Promoted(term) = &event {
                note(key, &name, listener, |seat| {
                    *seat.term.borrow_mut() = Some(term.clone());
                });
            }
            if let Event::Demoted { .. } = &event {
                note(key, &name, listener, |seat| *seat.term.borrow_mut() = None);
            }
            of_election(&name, event)
        }
        Message::Left(name, listener) => {
            HERE.with_borrow_mut(|all| {
                if let Some(here) = all.get_mut(&key) {
                    here.leave(&name, listener);
                }
            });
            JsEvent {
                r#type: "left".into(),
                election: Some(name.to_string()),
                ..JsEvent::default()
            }
        }
        Message::Done(operation, how) => {
            let mut event = JsEvent {
                r#type: "done".into(),
                operation: Some(operation),
                ..JsEvent::default()
            };
            match how {
                Done::Nothing => {}
                Done::Info(info) => event.info = Some(*info),
                Done::Answer(answer) => event.answer = Some(*answer),
                Done::Address(address) => event.address = Some(address),
                Done::Failed(code, reason, message) => {
                    event.code = Some(code.into());
                    event.reason = reason.map(Into::into);
                    event.message = Some(message);
                }
            }
            event
        }
        Message::Hint(operation, hint) => JsEvent {
            r#type: "hint".into(),
            operation: Some(operation),
            answer: Some(hint),
            ..JsEvent::default()
        },
        Message::Store(call) => {
            // Whoever asked may have given up while JavaScript was busy. Nothing is begun for nobody.
            let is_wanted = HERE.with_borrow(|all| {
                let link = all.get(&key).map(|here| &here.link);
                link.is_some_and(|link| link.calls.wants(&call))
            });
            JsEvent {
                r#type: if is_wanted { "store" } else { "turn" }.into(),
                call: is_wanted.then_some(call),
                ..JsEvent::default()
            }
        }
        Message::Log(record) => {
            HERE.with_borrow(|all| {
                if let Some(here) = all.get(&key) {
                    here.link.logs_waiting.leave();
                }
            });
            JsEvent {
                r#type: "log".into(),
                level: Some(record.level.into()),
                message: Some(record.message),
                fields: Some(record.fields),
                ..JsEvent::default()
            }
        }
        Message::Turn => {
            HERE.with_borrow(|all| {
                if let Some(here) = all.get(&key) {
                    here.link.note_turn();
                }
            });
            JsEvent {
                r#type: "turn".into(),
                ..JsEvent::default()
            }
        }
    }
}

/// A seat that was given up since, and taken anew, is another one.
fn note(key: usize, name: &str, listener: ListenerId, then: impl FnOnce(&Seat)) {
    HERE.with_borrow(|all| {
        if let Some(seat) = all.get(&key).and_then(|here| here.seats.get(name))
            && seat.listener == listener
        {
            then(seat);
        }
    });
}

fn of_election(name: &str, event: Event) -> JsEvent {
    let js = |kind: &str| JsEvent {
        r#type: kind.into(),
        election: Some(name.to_string()),
        ..JsEvent::default()
    };
    match event {
        Event::Promoted(term) => JsEvent {
            token: Some(from_token(term.token())),
            trace_id: Some(term.trace_id().to_string()),
            ..js("promoted")
        },
        Event::Demoted { token, reason } => JsEvent {
            token: Some(from_token(token)),
            reason: Some(reason.as_str().into()),
            ..js("demoted")
        },
        Event::LeaderChanged(leader) => JsEvent {
            token: Some(from_token(leader.token)),
            instance_id: Some(leader.owner.instance.to_string()),
            ..js("leaderChanged")
        },
        Event::Overrun {
            token,
            trace_id,
            since,
        } => JsEvent {
            token: Some(from_token(token)),
            trace_id,
            duration: Some(millis(since)),
            ..js("overrun")
        },
        Event::Attempted(Attempted {
            what,
            outcome,
            took,
            term,
        }) => JsEvent {
            token: term.as_ref().map(|term| from_token(term.token())),
            trace_id: term.map(|term| term.trace_id().to_string()),
            what: Some(what.into()),
            outcome: Some(outcome.into()),
            duration: Some(millis(took)),
            ..js("attempt")
        },
        Event::Stopped => js("stopped"),
        Event::Trouble {
            code,
            message,
            fatal,
        } => JsEvent {
            code: Some(code.into()),
            message: Some(message),
            fatal: Some(fatal),
            ..js("error")
        },
    }
}

/// The environment's cleanup hook: a worker ended, or the process ends normally.
fn detach(key: usize) {
    let Some(here) = HERE.with_borrow_mut(|all| all.remove(&key)) else {
        return;
    };
    here.link.gone.store(true, Ordering::SeqCst);
    clients::environment_gone(key);
    here.link.calls.end();
    for seat in here.seats.values().chain(&here.leaving) {
        seat.term.borrow_mut().take();
        seat.apart.take();
        seat.election.gone(seat.listener);
    }
}

pub fn key(env: Env) -> usize {
    env.raw() as usize
}
