//! The elections of this process, and the one thread that they run on.
//!
//! A process has one cluster at most, and one candidate per election, shared by all JavaScript
//! environments (the main thread, workers). Each environment listens with a [`Listener`]; a yielded
//! lease is kept until every one of them has ended its callbacks.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use crate::backend::kubernetes::{self, KubernetesOptions, Place, Pod};
use crate::backend::leader_api::{self, LeaderApiOptions};
use crate::backend::own::{self, OwnOptions};
use crate::backend::{
    self, Backend, BackendError, Guard, StoreOptions, UNSUITABLE, without_password,
};
use crate::campaign::{Campaign, Command, Event, PreparedStore, Tell};
use crate::candidate::Rules;
use crate::clock::{Clock, Moment, SystemClock};
use crate::config::{Config, ElectionOptions, Kind, OnOverrun};
use crate::identity::{default_instance_id, draw_owner};
use crate::lease::{
    ElectionName, FailureKind, InstanceId, LONGEST_LEASE, Leader, LossReason, Token,
};
use crate::locked::locked;
use crate::random::random_u64;
use crate::term::Term;
use crate::timing::Timing;

/// The threads on which may run what blocks, beside the one of the runtime. They are started when they are needed
/// and end when they are idle. Of each kind that may hang for ever, a store's files or what else is read, only four
/// run at once; so there are always some that look up names, which the system gives up by itself.
const BLOCKING_THREADS: usize = 16;
/// The embedded store, beside the configuration.
const DEFAULT_STORE: &str = "file:.whenleader";
/// How often suspensions are looked for, and how long one must have been to matter.
const SUSPEND_CHECK: Duration = Duration::from_millis(500);
const SUSPENSION: Duration = Duration::from_millis(100);

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Starts the thread that the elections run on, unless it runs. Our own, never the host's: it must live
/// until the last release is sent. Fails where the system has no thread or file left; it may be tried again.
pub fn start_runtime() -> io::Result<&'static Runtime> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("whenleader")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// # Panics
/// Before [`start_runtime`] succeeded.
pub fn runtime() -> &'static Runtime {
    RUNTIME.get().expect("no cluster without its thread")
}

/// Why a cluster did not start.
#[derive(Debug)]
pub enum StartError {
    /// Something to be mended in the configuration.
    Config(String),
    /// It came while another thread stops the cluster.
    Stopping(String),
    /// The store refuses for good.
    Store(BackendError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(message) | Self::Stopping(message) => f.write_str(message),
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// One environment's ear. Called in order, from the election's thread, and must return at once: it may
/// not call back into the election.
pub trait Listener: Send + Sync {
    fn tell(&self, listener: ListenerId, election: &ElectionName, event: &Event);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId(u64);

impl ListenerId {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a process takes part in.
#[derive(Debug)]
pub struct Cluster {
    config: Config,
    instance: InstanceId,
    store: Arc<PreparedStore>,
    clock: Arc<dyn Clock>,
    /// Those that have not stopped yet. One that is stopping may have a successor of its name.
    elections: Mutex<Vec<Arc<Election>>>,
    woken: watch::Sender<u64>,
    /// Nobody joins any more.
    stopping: AtomicBool,
    /// Somebody joined at some time.
    joined: AtomicBool,
}

impl Cluster {
    /// The cluster of a configuration, not yet prepared: nothing is touched or sent.
    fn open(config: Config) -> Result<Arc<Self>, StartError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let backend = open_backend(&config, &clock)?;
        Self::with_backend(config, backend, clock)
    }

    fn with_backend(
        config: Config,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, StartError> {
        let cluster = Self {
            instance: config
                .instance
                .clone()
                .unwrap_or_else(|| default_instance_id().clone()),
            config,
            store: Arc::new(PreparedStore::new(backend)),
            clock,
            elections: Mutex::default(),
            woken: watch::channel(0).0,
            stopping: AtomicBool::new(false),
            joined: AtomicBool::new(false),
        };
        cluster.check_name(&cluster.config.election)?;
        cluster.check_lease(&cluster.config.election_options())?;
        Ok(Arc::new(cluster))
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn instance(&self) -> &InstanceId {
        &self.instance
    }

    /// Which store this is, without its password.
    pub fn describe(&self) -> String {
        self.store.backend().describe()
    }

    /// What a transaction that must not outlive that term says, if the store has transactions.
    pub fn guard(&self, election: &ElectionName, token: Token) -> Option<Guard> {
        self.store.backend().guard(election, token)
    }

    fn check_name(&self, election: &ElectionName) -> Result<(), StartError> {
        self.store.backend().check_name(election).map_err(|rule| {
            let parameter = match self.config.kind {
                Kind::LeaderApi { .. } => "resource",
                _ => "leaseName",
            };
            StartError::Config(format!(
                "{parameter} must {rule} on {}, not {:?}",
                self.describe(),
                election.as_str()
            ))
        })
    }

    fn check_lease(&self, options: &ElectionOptions) -> Result<(), StartError> {
        let backend = self.store.backend();
        let shortest = backend.capabilities().shortest_lease;
        let lease = options.timing.lease();
        if lease < shortest {
            return Err(StartError::Config(format!(
                "leaseDuration must be at least {} ms on {}, not {}",
                shortest.as_millis(),
                backend.describe(),
                lease.as_millis()
            )));
        }
        Ok(())
    }

    /// Joins the election of that name, which is started if it does not run yet: what it tells first is heard
    /// by whoever started it. One that runs goes on as it began.
    pub fn join(
        self: &Arc<Self>,
        name: &ElectionName,
        options: &ElectionOptions,
        listener: Arc<dyn Listener>,
    ) -> Result<(Arc<Election>, ListenerId), StartError> {
        self.check_name(name)?;
        self.check_lease(options)?;
        let mut elections = locked(&self.elections);
        if self.stopping.load(Ordering::SeqCst) {
            return Err(StartError::Stopping(format!(
                "election {name} cannot be joined: the cluster of this process is being stopped"
            )));
        }
        let running = |other: &&Arc<Election>| other.name == *name && !other.is_stopping();
        if let Some(election) = elections.iter().find(running) {
            let taken = match (options.is_of_work, election.options.is_of_work) {
                (true, true) => {
                    "runs in another thread of this process, where it belongs to work of runWhenLeader() too: \
                     give each piece of work a name of its own"
                }
                (true, false) => {
                    "runs in another thread of this process, for whenLeader() or useCluster(): give the work of \
                     runWhenLeader() a name of its own"
                }
                (false, true) => {
                    "runs in another thread of this process, where it belongs to work of runWhenLeader(): only \
                     that thread can take part; use another name"
                }
                (false, false) => "",
            };
            if !taken.is_empty() {
                return Err(StartError::Config(format!("election {name} {taken}")));
            }
            return Ok((election.clone(), election.join(listener)));
        }
        let election = Arc::new(Election::new(name.clone(), *options, self.clock.clone()));
        let listener = election.join(listener);
        elections.push(election.clone());
        self.joined.store(true, Ordering::SeqCst);
        runtime().spawn(supervise(self.clone(), election.clone()));
        Ok((election, listener))
    }

    /// Stops every election, then closes connections and files.
    pub async fn stop(&self) {
        let elections = self.close_doors();
        for election in &elections {
            election.request_stop();
        }
        for election in &elections {
            election.stopped().await;
        }
        self.store.close().await;
    }

    /// For a process that is ending: stops without waiting for callbacks. Returns what is to be waited for; a
    /// lease whose store needs the very thread that would wait is left to its expiry, and so is one under which
    /// another thread may still work, where that must not overlap with a successor.
    fn abandon(&self, own: &[ListenerId]) -> Vec<Arc<Election>> {
        let mut elections = self.close_doors();
        elections.retain(|election| !election.may_be_worked_for_beside(own));
        for election in &elections {
            election.abandon();
        }
        elections
    }

    fn is_left(&self) -> bool {
        self.joined.load(Ordering::SeqCst) && locked(&self.elections).is_empty()
    }

    /// Lets no further election begin; returns those that there are.
    fn close_doors(&self) -> Vec<Arc<Election>> {
        let elections = locked(&self.elections);
        self.stopping.store(true, Ordering::SeqCst);
        elections.clone()
    }

    fn rules(&self, options: &ElectionOptions) -> Rules {
        Rules {
            timing: options.timing,
            on_renew_error: options.on_renew_error,
            takes_part: self.config.takes_part,
            stop_timeout: self.config.stop_timeout,
            jitter_seed: random_u64() | 1,
        }
    }

    /// What the records of an election say.
    fn recorded_lease(&self, timing: &Timing) -> Duration {
        match self.config.kind {
            Kind::Kubernetes { .. } => timing.lease_seen_by_the_second(),
            _ => timing.lease(),
        }
    }
}

/// The one place that knows which kind of cluster has which backend.
fn open_backend(config: &Config, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Backend>, StartError> {
    match &config.kind {
        Kind::Local => Err(StartError::Config(
            "a LocalCluster has no store to be opened".into(),
        )),
        Kind::Store { url, min_replicas } => {
            let url = url.as_deref().unwrap_or(DEFAULT_STORE);
            let options = StoreOptions {
                base_dir: config.base_dir.clone(),
                min_replicas: *min_replicas,
                connect_timeout: config.timing.campaign_limit(),
                request_timeout: config.timing.request_limit(),
                patience: config.timing.patience(),
                for_others: false,
            };
            backend::open(url, &options, clock.clone()).map_err(|bad| {
                let shown = without_password(url);
                StartError::Config(format!(
                    "{} must {}; store is {shown:?}",
                    bad.parameter, bad.rule
                ))
            })
        }
        Kind::OwnStore {
            store,
            min_replicas,
        } => {
            let options = OwnOptions {
                election: config.election.clone(),
                min_replicas: *min_replicas,
                request_limit: config.timing.request_limit(),
            };
            own::open(*store, options, clock.clone())
                .map_err(|bad| StartError::Config(format!("{} must {}", bad.parameter, bad.rule)))
        }
        Kind::Kubernetes {
            config: kubeconfig,
            context,
            namespace,
            timeout,
            pod_labels,
        } => {
            let options = KubernetesOptions {
                place: Place {
                    config: kubeconfig.as_ref().map(|path| config.base_dir.join(path)),
                    context: context.clone(),
                    namespace: namespace.clone(),
                },
                timeout: timeout.unwrap_or(config.timing.request_limit()),
                patience: config.timing.patience(),
                lease: config.timing.lease(),
                election: config.election.clone(),
                takes_part: config.takes_part,
                pod_labels: *pod_labels,
                pod: Pod::of_environment(),
            };
            kubernetes::open(options, clock.clone())
                .map_err(|bad| StartError::Config(format!("{} must {}", bad.parameter, bad.rule)))
        }
        Kind::LeaderApi { url, token } => {
            let options = LeaderApiOptions {
                url: url.clone(),
                token: token.clone(),
                base_dir: config.base_dir.clone(),
                connect_timeout: config.timing.campaign_limit(),
                // Whoever asks gives up earlier, as the lease wants that its answers tell.
                request_timeout: LONGEST_LEASE,
                patience: config.timing.patience(),
            };
            leader_api::open(&options)
                .map_err(|bad| StartError::Config(format!("{} must {}", bad.parameter, bad.rule)))
        }
    }
}

/// Says what is wrong with a configuration as far as that can be known without the store.
pub fn check(config: &Config) -> Result<(), StartError> {
    match config.kind {
        Kind::Local => Ok(()),
        Kind::Store { .. }
        | Kind::OwnStore { .. }
        | Kind::Kubernetes { .. }
        | Kind::LeaderApi { .. } => Cluster::open(config.clone()).map(|_| ()),
    }
}

/// The cluster of this process, and whether it is being started.
static RUNNING: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);
static STARTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The cluster that runs in this process.
pub fn running() -> Option<Arc<Cluster>> {
    locked(&RUNNING).clone()
}

/// Starts this process's cluster, or joins the running one if it has the same configuration. A store
/// that is merely away does not fail the start: its elections keep trying.
pub async fn start(config: Config) -> Result<Arc<Cluster>, StartError> {
    let _one_at_a_time = STARTING.lock().await;
    if let Some(cluster) = running() {
        if cluster.config.same_as(&config) {
            return Ok(cluster);
        }
        if cluster.is_left() {
            // Left by everybody, perhaps by a worker that ended: nothing of it is in use.
            cluster.stop().await;
            *locked(&RUNNING) = None;
        }
    }
    if let Some(cluster) = running() {
        return Err(StartError::Config(format!(
            "this process already takes part in a cluster on {}; stop it first, or start it with one configuration",
            cluster.describe()
        )));
    }
    let limit = config.timing.campaign_limit();
    let cluster = Cluster::open(config)?;
    if let Ok(Err(error)) = tokio::time::timeout(limit, cluster.store.prepare()).await
        && error.kind == FailureKind::Fatal
    {
        cluster.store.close().await;
        return Err(match error.code {
            UNSUITABLE => StartError::Config(error.message),
            _ => StartError::Store(error),
        });
    }
    tracing::info!(
        instance = %cluster.instance,
        store = cluster.describe(),
        remark = cluster.store.backend().remark(),
        "takes part in the elections of this store"
    );
    tokio::spawn(watch_for_suspensions(Arc::downgrade(&cluster)));
    *locked(&RUNNING) = Some(cluster.clone());
    Ok(cluster)
}

/// Those beside the cluster of this process.
static APART: Mutex<Vec<Weak<Cluster>>> = Mutex::new(Vec::new());

/// A cluster beside that of this process, for one election whose backend nobody shares. It is not looked at yet
/// whether that can be reached: its campaign goes on trying.
pub fn open_apart(config: Config) -> Result<Arc<Cluster>, StartError> {
    let cluster = Cluster::open(config)?;
    runtime().spawn(watch_for_suspensions(Arc::downgrade(&cluster)));
    let mut apart = locked(&APART);
    apart.retain(|other| other.strong_count() > 0);
    apart.push(Arc::downgrade(&cluster));
    Ok(cluster)
}

/// For a process that is ending: releases what is held without waiting for callbacks, and blocks for as long as the
/// longest release may take. `own` are the listeners of the thread that is ending, so that nothing runs there any more. Returns whether
/// all was released. Not to be called on the runtime.
pub fn release_all_now(own: &[ListenerId]) -> bool {
    let apart: Vec<_> = locked(&APART).iter().filter_map(Weak::upgrade).collect();
    let clusters = || running().into_iter().chain(apart.iter().cloned());
    let (mut awaited, mut left) = (Vec::new(), false);
    for cluster in clusters() {
        let elections = cluster.abandon(own);
        if cluster.store.backend().needs_event_loop() {
            left |= !elections.is_empty();
        } else {
            awaited.extend(elections);
        }
    }
    let limit = awaited
        .iter()
        .map(|election| election.options.timing.release_limit())
        .max();
    let Some(limit) = limit else {
        return !left;
    };
    let all = async {
        for election in &awaited {
            election.stopped().await;
        }
    };
    let released = runtime().block_on(async { tokio::time::timeout(limit, all).await });
    released.is_ok() && !left
}

/// Stops this process's cluster; another may be started afterwards.
pub async fn stop() {
    let _one_at_a_time = STARTING.lock().await;
    if let Some(cluster) = running() {
        cluster.stop().await;
        *locked(&RUNNING) = None;
    }
}

/// tokio's timers stop with the machine; leases do not. Ends with the cluster.
async fn watch_for_suspensions(cluster: Weak<Cluster>) {
    let mut last: Option<(Instant, crate::clock::Moment)> = None;
    while let Some(cluster) = cluster.upgrade() {
        let now = (Instant::now(), cluster.clock.now());
        if let Some((instant, moment)) = last {
            let awake = now.0.duration_since(instant);
            if now.1.since(moment) > awake + SUSPENSION {
                cluster.woken.send_modify(|count| *count += 1);
            }
        }
        last = Some(now);
        drop(cluster);
        tokio::time::sleep(SUSPEND_CHECK).await;
    }
}

/// One election of this process.
pub struct Election {
    name: ElectionName,
    options: ElectionOptions,
    clock: Arc<dyn Clock>,
    audience: Mutex<Audience>,
    /// No new campaign is to be started.
    stopping: AtomicBool,
    /// The process is ending: nobody's callbacks are waited for.
    abandoned: AtomicBool,
    stopped: watch::Sender<bool>,
}

/// Who listens, and what they would have to be told if they joined now.
struct Audience {
    listeners: Vec<(ListenerId, Arc<dyn Listener>)>,
    commands: mpsc::UnboundedSender<Command>,
    term: Option<Arc<Term>>,
    leader: Option<Leader>,
    /// Whose callbacks about the end of which term are not known to have ended.
    unsettled: HashMap<Token, HashSet<ListenerId>>,
    stalled: HashSet<ListenerId>,
}

impl Election {
    fn new(name: ElectionName, options: ElectionOptions, clock: Arc<dyn Clock>) -> Self {
        let audience = Audience {
            listeners: Vec::new(),
            commands: mpsc::unbounded_channel().0,
            term: None,
            leader: None,
            unsettled: HashMap::new(),
            stalled: HashSet::new(),
        };
        Self {
            name,
            options,
            clock,
            audience: Mutex::new(audience),
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            stopped: watch::channel(false).0,
        }
    }

    pub fn name(&self) -> &ElectionName {
        &self.name
    }

    /// How long its leases are, which may not be those of the cluster.
    pub fn lease(&self) -> Duration {
        self.options.timing.lease()
    }

    /// The last leader seen.
    pub fn leader(&self) -> Option<Leader> {
        locked(&self.audience).leader.clone()
    }

    /// Adds a listener. It hears of a term that is led already.
    fn join(&self, listener: Arc<dyn Listener>) -> ListenerId {
        let id = ListenerId::next();
        let mut audience = locked(&self.audience);
        if let Some(term) = &audience.term {
            listener.tell(id, &self.name, &Event::Promoted(term.clone()));
        }
        audience.listeners.push((id, listener));
        id
    }

    /// The environment's callbacks about the end of that term have ended.
    pub fn settled(&self, listener: ListenerId, token: Token) {
        locked(&self.audience).settled(listener, token);
    }

    /// The environment's event loop stands still, or turns again.
    pub fn stalled(&self, listener: ListenerId, stalled: bool) {
        locked(&self.audience).stalled(listener, stalled);
    }

    /// Whether callbacks of that listener are not known to have ended.
    pub fn awaits(&self, listener: ListenerId) -> bool {
        let audience = locked(&self.audience);
        audience
            .unsettled
            .values()
            .any(|waiting| waiting.contains(&listener))
    }

    pub fn step_down(&self, pause: Duration) {
        locked(&self.audience).command(Command::StepDown { pause });
    }

    /// Takes a listener out. With the last one the election stops: returns whether it does, and then the
    /// listener stays, for callbacks that have not ended by [`Election::stopped`].
    pub fn stop(&self, listener: ListenerId) -> bool {
        let mut audience = locked(&self.audience);
        if audience.listeners.iter().any(|(id, _)| *id != listener) {
            if let (Some(term), Some((_, ear))) = (
                &audience.term,
                audience.listeners.iter().find(|(id, _)| *id == listener),
            ) {
                let event = Event::Demoted {
                    token: term.token(),
                    reason: LossReason::Stopped,
                };
                ear.tell(listener, &self.name, &event);
                let token = term.token();
                // The lease is kept for its callbacks as well, should the others end before them.
                audience
                    .unsettled
                    .entry(token)
                    .or_default()
                    .insert(listener);
            }
            audience.leave(listener);
            return false;
        }
        drop(audience);
        self.request_stop();
        true
    }

    /// Takes a listener out whose environment is gone: nothing is waited for.
    pub fn gone(&self, listener: ListenerId) {
        let mut audience = locked(&self.audience);
        audience.remove(listener);
        let nobody_left = audience.listeners.is_empty();
        drop(audience);
        if nobody_left {
            self.request_stop();
        }
    }

    fn request_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        locked(&self.audience).command(Command::Stop);
    }

    /// Callbacks of other threads must not outlive the lease, and may still run.
    fn may_be_worked_for_beside(&self, own: &[ListenerId]) -> bool {
        if self.options.on_overrun != OnOverrun::Exit {
            return false;
        }
        let audience = locked(&self.audience);
        let listening = audience.listeners.iter().map(|(id, _)| id);
        let unsettled = audience.unsettled.values().flatten();
        listening.chain(unsettled).any(|id| !own.contains(id))
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.request_stop();
        let mut audience = locked(&self.audience);
        for token in std::mem::take(&mut audience.unsettled).into_keys() {
            audience.command(Command::CallbacksEnded(token));
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Waits until the lease is released or left to its expiry, and nothing is asked of the store any more.
    pub async fn stopped(&self) {
        // The sender is our own field, so the wait cannot fail.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// What the campaign tells goes to everybody, in order.
    fn hear(&self, event: &Event) {
        let mut audience = locked(&self.audience);
        match event {
            Event::Promoted(term) => audience.term = Some(term.clone()),
            Event::Demoted { token, .. } => {
                if let Some(term) = audience.term.take() {
                    term.end();
                }
                let everybody: HashSet<_> = audience.listeners.iter().map(|(id, _)| *id).collect();
                if everybody.is_empty() || self.abandoned.load(Ordering::SeqCst) {
                    audience.command(Command::CallbacksEnded(*token));
                } else {
                    let unsettled = audience.unsettled.entry(*token).or_default();
                    unsettled.extend(everybody);
                }
            }
            Event::LeaderChanged(leader) => audience.leader = Some(leader.clone()),
            Event::Stopped => {
                self.stopped.send_replace(true);
            }
            Event::Overrun { .. } | Event::Attempted(_) | Event::Trouble { .. } => {}
        }
        let mut silent = 0;
        for (id, listener) in &audience.listeners {
            // One that panics is neither the end of the campaign nor a reason for the others to hear nothing.
            let tell = || listener.tell(*id, &self.name, event);
            silent += usize::from(catch_unwind(AssertUnwindSafe(tell)).is_err());
        }
        drop(audience);
        if silent > 0 {
            tracing::error!(
                election = %self.name,
                "an event could not be told to {silent} threads of this process. Please report this"
            );
        }
    }

    /// A new campaign's commands. What the last one was told still holds.
    fn begin(&self) -> mpsc::UnboundedReceiver<Command> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let mut audience = locked(&self.audience);
        audience.commands = commands;
        if !audience.stalled.is_empty() {
            audience.command(Command::LoopStalled);
        }
        if self.is_stopping() {
            audience.command(Command::Stop);
        }
        receiver
    }

    /// The campaign died: whatever was led is not led any more.
    fn died(self: &Arc<Self>, why: &str) {
        let now = self.clock.now();
        let term = locked(&self.audience).term.clone();
        let left = term
            .as_ref()
            .map(|term| (term.token(), term.remaining(now)));
        if let Some(term) = &term {
            term.end();
            self.hear(&Event::Demoted {
                token: term.token(),
                reason: LossReason::Expired,
            });
        }
        // It watched over callbacks, too. How long their leases last is known of one at most: surely as long as
        // it was to be led.
        let unsettled: Vec<_> = locked(&self.audience).unsettled.keys().copied().collect();
        for token in unsettled {
            let lasts = left.filter(|(led, _)| *led == token).map(|(_, left)| left);
            let notice = self.options.timing.shortest_notice();
            let trace_id = term.as_ref().filter(|term| term.token() == token);
            runtime().spawn(self.clone().watch_over(
                token,
                trace_id.map(|term| term.trace_id().to_owned()),
                now,
                now + lasts.unwrap_or_default().max(notice),
            ));
        }
        let message = format!(
            "election {}: its campaign died ({why}); this instance does not lead, and a new campaign is started. Please report this",
            self.name
        );
        tracing::error!("{message}");
        self.hear(&Event::Trouble {
            code: "campaign-died",
            message,
            fatal: false,
        });
    }
}

impl Election {
    /// Tells of an overrun if callbacks of that term, which ended at `ended`, have not ended by then.
    async fn watch_over(
        self: Arc<Self>,
        token: Token,
        trace_id: Option<String>,
        ended: Moment,
        until: Moment,
    ) {
        while self.clock.now() < until {
            tokio::time::sleep(until.since(self.clock.now()).min(SUSPEND_CHECK)).await;
        }
        if locked(&self.audience).unsettled.contains_key(&token) {
            let since = self.clock.now().since(ended);
            self.hear(&Event::Overrun {
                token,
                trace_id,
                since,
            });
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let term = locked(&self.audience).term.clone();
        f.debug_struct("Election")
            .field("name", &self.name)
            .field(
                "leads",
                &term.is_some_and(|term| term.is_led(self.clock.now())),
            )
            .finish_non_exhaustive()
    }
}

impl Audience {
    fn command(&self, command: Command) {
        // No receiver: the campaign has stopped, and nobody is left to be told.
        let _ = self.commands.send(command);
    }

    fn settled(&mut self, listener: ListenerId, token: Token) {
        let Some(waiting) = self.unsettled.get_mut(&token) else {
            return;
        };
        waiting.remove(&listener);
        if waiting.is_empty() {
            self.unsettled.remove(&token);
            self.command(Command::CallbacksEnded(token));
        }
    }

    fn stalled(&mut self, listener: ListenerId, stalled: bool) {
        let stood_still = !self.stalled.is_empty();
        if stalled {
            self.stalled.insert(listener);
        } else {
            self.stalled.remove(&listener);
        }
        match (stood_still, !self.stalled.is_empty()) {
            (false, true) => self.command(Command::LoopStalled),
            (true, false) => self.command(Command::LoopTurning),
            _ => {}
        }
    }

    /// It hears nothing more; its callbacks may still run.
    fn leave(&mut self, listener: ListenerId) {
        self.listeners.retain(|(id, _)| *id != listener);
        self.stalled(listener, false);
    }

    /// It is gone, and its callbacks with it.
    fn remove(&mut self, listener: ListenerId) {
        self.leave(listener);
        for token in self.unsettled.keys().copied().collect::<Vec<_>>() {
            self.settled(listener, token);
        }
    }
}

/// Runs campaigns of one election until it is stopped. A campaign that panics is a demotion and an
/// error, never silence, and is followed by another.
async fn supervise(cluster: Arc<Cluster>, election: Arc<Election>) {
    let options = &election.options;
    let pause = options.timing.renew_interval();
    loop {
        let campaign = Campaign {
            election: election.name.clone(),
            store: cluster.store.clone(),
            clock: cluster.clock.clone(),
            lease: cluster.recorded_lease(&options.timing),
            commands: election.begin(),
            woken: cluster.woken.subscribe(),
        };
        let owner = draw_owner(&cluster.instance);
        let hearing = election.clone();
        let tell: Tell = Arc::new(move |event| hearing.hear(&event));
        match tokio::spawn(campaign.run(owner, cluster.rules(options), tell)).await {
            Ok(()) => break,
            Err(error) => election.died(&error.to_string()),
        }
        if election.is_stopping() {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    locked(&cluster.elections).retain(|other| !Arc::ptr_eq(other, &election));
    election.stopped.send_replace(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Attempt, Capabilities};
    use crate::lease::{Outcome, Owner};
    use std::path::Path;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Heard {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut locked(&self.0))
        }
    }

    impl Listener for Heard {
        fn tell(&self, _: ListenerId, _: &ElectionName, event: &Event) {
            let word = match event {
                Event::Promoted(term) => format!("promoted {}", term.token()),
                Event::Demoted { token, reason } => format!("demoted {token} {}", reason.as_str()),
                Event::LeaderChanged(leader) => format!("leader {}", leader.token),
                Event::Overrun { token, .. } => format!("overrun {token}"),
                Event::Attempted(_) => return,
                Event::Trouble { code, .. } => format!("trouble {code}"),
                Event::Stopped => "stopped".to_string(),
            };
            locked(&self.0).push(word);
        }
    }

    fn config(json: &str) -> Config {
        let json = format!(r#"{{ "cluster": {json} }}"#);
        Config::parse(&json, "test", Path::new("/"), &|_| None).unwrap()
    }

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn election() -> (Election, mpsc::UnboundedReceiver<Command>) {
        let options = config("{}").election_options();
        let name = ElectionName::new("e").unwrap();
        let election = Election::new(name, options, Arc::new(SystemClock));
        let commands = election.begin();
        (election, commands)
    }

    fn promote(election: &Election, number: u64) -> Arc<Term> {
        let term = Arc::new(Term::new(token(number), String::new(), Moment::NEVER));
        election.hear(&Event::Promoted(term.clone()));
        term
    }

    fn demote(election: &Election, number: u64) {
        let reason = LossReason::SteppedDown;
        election.hear(&Event::Demoted {
            token: token(number),
            reason,
        });
    }

    fn drain(commands: &mut mpsc::UnboundedReceiver<Command>) -> Vec<Command> {
        std::iter::from_fn(|| commands.try_recv().ok()).collect()
    }

    #[test]
    fn an_environment_that_joins_late_hears_of_the_term_that_is_led() {
        let (election, _commands) = election();
        promote(&election, 5);
        let late = Arc::new(Heard::default());
        election.join(late.clone());
        assert_eq!(late.take(), ["promoted 5"]);
    }

    #[test]
    fn the_lease_is_kept_until_the_callbacks_of_every_environment_have_ended() {
        let (election, mut commands) = election();
        let first = election.join(Arc::new(Heard::default()));
        let second = election.join(Arc::new(Heard::default()));
        let term = promote(&election, 5);
        demote(&election, 5);
        assert!(!term.is_led(Moment::ORIGIN));
        election.settled(first, token(5));
        election.settled(first, token(5));
        assert_eq!(drain(&mut commands), []);
        election.settled(second, token(5));
        assert_eq!(drain(&mut commands), [Command::CallbacksEnded(token(5))]);
    }

    #[test]
    fn an_environment_that_is_gone_is_not_waited_for_and_the_last_one_stops_the_election() {
        let (election, mut commands) = election();
        let first = election.join(Arc::new(Heard::default()));
        let second = election.join(Arc::new(Heard::default()));
        promote(&election, 5);
        demote(&election, 5);
        election.settled(first, token(5));
        election.gone(second);
        assert_eq!(drain(&mut commands), [Command::CallbacksEnded(token(5))]);
        election.gone(first);
        assert_eq!(drain(&mut commands), [Command::Stop]);
    }

    #[test]
    fn one_environment_that_stops_leaves_the_term_to_the_others() {
        let (election, mut commands) = election();
        let (leaving, staying) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
        let (first, second) = (
            election.join(leaving.clone()),
            election.join(staying.clone()),
        );
        let term = promote(&election, 5);
        assert!(!election.stop(first));
        assert_eq!(leaving.take(), ["promoted 5", "demoted 5 stopped"]);
        assert_eq!(staying.take(), ["promoted 5"]);
        assert!(term.is_led(Moment::ORIGIN));
        assert!(election.stop(second), "the last one");
        assert_eq!(drain(&mut commands), [Command::Stop]);
    }

    #[test]
    fn the_lease_is_kept_for_the_callbacks_of_an_environment_that_left_while_others_led_on() {
        let (election, mut commands) = election();
        let first = election.join(Arc::new(Heard::default()));
        let second = election.join(Arc::new(Heard::default()));
        promote(&election, 5);
        assert!(!election.stop(first));
        assert!(election.awaits(first));
        demote(&election, 5);
        election.settled(second, token(5));
        assert_eq!(drain(&mut commands), []);
        election.settled(first, token(5));
        assert_eq!(drain(&mut commands), [Command::CallbacksEnded(token(5))]);
    }

    #[test]
    fn an_ending_process_waits_for_nobodys_callbacks() {
        for told_before in [true, false] {
            let (election, mut commands) = election();
            election.join(Arc::new(Heard::default()));
            promote(&election, 5);
            if told_before {
                demote(&election, 5);
            }
            election.abandon();
            if !told_before {
                demote(&election, 5);
            }
            assert_eq!(
                drain(&mut commands),
                [Command::Stop, Command::CallbacksEnded(token(5))]
            );
        }
    }

    #[test]
    fn the_loop_stands_still_while_that_of_any_environment_does() {
        let (election, mut commands) = election();
        let first = election.join(Arc::new(Heard::default()));
        let second = election.join(Arc::new(Heard::default()));
        election.stalled(first, true);
        election.stalled(second, true);
        assert_eq!(drain(&mut commands), [Command::LoopStalled]);
        election.stalled(first, false);
        assert_eq!(drain(&mut commands), []);
        election.gone(second);
        assert_eq!(drain(&mut commands), [Command::LoopTurning]);
    }

    /// Grants everything, except that its second attempt panics.
    #[derive(Debug, Default)]
    struct PanicsOnce(AtomicU64);

    #[async_trait::async_trait]
    impl Backend for PanicsOnce {
        fn capabilities(&self) -> Capabilities {
            Capabilities {
                shortest_lease: Duration::from_millis(1),
                notifies: false,
            }
        }

        fn describe(&self) -> String {
            "a store of a test".into()
        }

        async fn prepare(&self) -> Result<(), BackendError> {
            Ok(())
        }

        async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
            let count = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(count != 2, "panics as it should");
            let token = attempt.term.unwrap_or_else(|| token(count));
            Ok(Outcome::Held {
                token,
                valid_for: attempt.duration,
            })
        }

        async fn release(
            &self,
            _: &ElectionName,
            _: &Owner,
            _: Token,
        ) -> Result<bool, BackendError> {
            Ok(true)
        }

        async fn peek(&self, _: &ElectionName) -> Result<Option<Leader>, BackendError> {
            Ok(None)
        }
    }

    /// Panics at the first word that it is told.
    struct Panics;

    impl Listener for Panics {
        fn tell(&self, _: ListenerId, _: &ElectionName, _: &Event) {
            panic!("panics as it should");
        }
    }

    #[test]
    fn callbacks_of_a_campaign_that_died_are_still_watched_over_and_a_listener_that_panics_hinders_nobody()
     {
        let config = config(r#"{ "leaseDuration": 3000, "renewInterval": 500 }"#);
        let options = config.election_options();
        let store = Arc::new(PanicsOnce::default());
        let cluster = Cluster::with_backend(config, store, Arc::new(SystemClock)).unwrap();
        let name = ElectionName::new("watched").unwrap();
        start_runtime().unwrap();
        let heard = Arc::new(Heard::default());
        cluster.join(&name, &options, Arc::new(Panics)).unwrap();
        cluster.join(&name, &options, heard.clone()).unwrap();
        let mut words = Vec::new();
        for _ in 0..400 {
            words.extend(heard.take());
            if words.contains(&"overrun 1".to_string()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        let at = |word: &str| words.iter().position(|heard| heard.starts_with(word));
        assert!(at("demoted 1 expired").is_some(), "{words:?}");
        assert!(at("trouble campaign-died").is_some(), "{words:?}");
        assert!(at("overrun 1") > at("demoted 1"), "{words:?}");
    }

    #[test]
    fn a_campaign_that_dies_is_a_demotion_and_an_error_and_is_followed_by_another() {
        let config = config(r#"{ "leaseDuration": 3000, "renewInterval": 500 }"#);
        let options = config.election_options();
        let store = Arc::new(PanicsOnce::default());
        let cluster = Cluster::with_backend(config, store, Arc::new(SystemClock)).unwrap();
        let name = ElectionName::new("e").unwrap();
        start_runtime().unwrap();
        let heard = Arc::new(Heard::default());
        cluster.join(&name, &options, heard.clone()).unwrap();
        let alone = ElectionOptions {
            is_of_work: true,
            ..options
        };
        let taken = cluster.join(&name, &alone, heard.clone());
        let taken = taken.unwrap_err().to_string();
        assert!(taken.contains("another thread"), "{taken}");
        let mut words = Vec::new();
        for _ in 0..200 {
            words.extend(heard.take());
            if words
                .iter()
                .filter(|word| word.starts_with("promoted"))
                .count()
                == 2
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(
            words
                .iter()
                .filter(|word| !word.starts_with("leader"))
                .collect::<Vec<_>>(),
            [
                "promoted 1",
                "demoted 1 expired",
                "trouble campaign-died",
                "promoted 3"
            ]
        );
        *locked(&RUNNING) = Some(cluster.clone());
        assert!(release_all_now(&[]));
        *locked(&RUNNING) = None;
        let late = cluster.join(&name, &options, heard).unwrap_err();
        let late = late.to_string();
        assert!(late.contains("is being stopped"), "{late}");
    }
}
