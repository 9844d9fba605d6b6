//! Connections, and requests on them. One connection serves all elections of a store: requests travel on it
//! one behind the other, and each finds its own answer, also when others were given up.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{
    AsyncMessage, Client, Connection, Error, Notification, SimpleQueryMessage, SimpleQueryRow,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::{Address, Place, TableName};
use super::failure::{self, BUSY, READ_ONLY, Stage};
use crate::backend::tls::{Tls, Verify};
use crate::backend::{BackendError, StoreOptions};
use crate::lease::FailureKind;
use crate::locked::locked;

/// What others were in the way of is asked again after so long.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The way to the servers of one database.
pub(super) struct Link {
    pub address: Address,
    pub connect_timeout: Duration,
    pub request_timeout: Duration,
    /// See [`StoreOptions::patience`].
    patience: Duration,
    /// The table that the address leads to.
    pub table: OnceLock<TableName>,
    slot: Mutex<Slot>,
    /// One connects, the others wait for it.
    dialing: tokio::sync::Mutex<()>,
    /// Counts servers that failed: it says which one is tried next.
    turn: AtomicUsize,
}

#[derive(Default)]
struct Slot {
    number: u64,
    wire: Option<Arc<Wire>>,
}

/// What a request brought.
pub(super) struct Answer {
    pub rows: Vec<SimpleQueryRow>,
    /// An earlier sending of it may have come through.
    pub maybe_twice: bool,
    wire: Arc<Wire>,
}

impl Link {
    pub fn new(address: Address, options: &StoreOptions) -> Self {
        let connect_timeout = address.connect_timeout.unwrap_or(options.connect_timeout);
        Self {
            address,
            connect_timeout: connect_timeout.min(options.connect_timeout),
            request_timeout: options.request_timeout,
            patience: options.patience.min(options.request_timeout / 2),
            table: OnceLock::new(),
            slot: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            turn: AtomicUsize::default(),
        }
    }

    /// Sends a request, which is made anew for each sending, and so that doing it twice does no harm.
    ///
    /// Within the request's time it is sent again: once on a new connection, if the one that was there turned
    /// out to be dead, or does not answer for a while; to the next server, if this one takes no writes; and if
    /// others were in the way.
    pub async fn run(&self, request: impl Fn() -> String) -> Result<Answer, BackendError> {
        let began = Instant::now();
        let left = || self.request_timeout.saturating_sub(began.elapsed());
        let (mut maybe_twice, mut reconnected, mut turned) = (false, false, 0);
        let mut answered = None;
        loop {
            let (wire, is_old) = match self.wire().await {
                Ok(found) => found,
                Err(error) => return Err(doubtful(error, maybe_twice)),
            };
            let may_be_dead = is_old && !reconnected && answered != Some(wire.number);
            let patience = if may_be_dead {
                self.patience.min(left() / 2)
            } else {
                left()
            };
            let unsure = wire.unsure_commits();
            let error = match timeout(patience, self.send(&wire, &request())).await {
                Ok(Ok(rows)) if wire.unsure_commits() == unsure => {
                    return Ok(Answer {
                        rows,
                        maybe_twice,
                        wire,
                    });
                }
                Ok(Ok(_)) => return Err(self.not_replicated()),
                Ok(Err(error)) => {
                    let answer = error.as_db_error();
                    if answer.is_none_or(failure::ends_the_session) && may_be_dead {
                        (maybe_twice, reconnected) = (true, true);
                        continue;
                    }
                    answered = Some(wire.number);
                    failure::meaning(&error, self, Stage::Sent)
                }
                Err(_) if may_be_dead => {
                    (maybe_twice, reconnected) = (true, true);
                    continue;
                }
                Err(_) => failure::silence(&self.address.shown, Stage::Sent),
            };
            match error.code {
                READ_ONLY => {
                    turned += 1;
                    // The name may lead to another server by now, or the next name does.
                    self.turn_away(&wire);
                    if turned < self.address.places.len() {
                        continue;
                    }
                }
                // The last sending has time for its answer.
                BUSY if was_in_the_way(&error) && left() > self.request_timeout / 4 => {
                    sleep(ASK_AGAIN).await;
                    continue;
                }
                _ => {}
            }
            return Err(doubtful(error, maybe_twice));
        }
    }

    /// The server of this answer is none to go on with.
    pub fn turn_away_from(&self, answer: &Answer) {
        self.turn_away(&answer.wire);
    }

    pub fn turn_away(&self, wire: &Wire) {
        self.pass(wire.turn);
        self.let_go(wire);
    }

    /// The next server is tried first, unless somebody else has seen to it.
    fn pass(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        let _ = (self.turn).compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub async fn send(&self, wire: &Wire, text: &str) -> Result<Vec<SimpleQueryRow>, Error> {
        // Whoever gives up waiting (its future is dropped) leaves a connection that may be dead.
        let mut doubt = Doubt {
            link: self,
            wire,
            dismissed: false,
        };
        let result = wire.ask(text).await;
        doubt.dismissed = match &result {
            Ok(_) => true,
            Err(error) => error
                .as_db_error()
                .is_some_and(|answer| !failure::ends_the_session(answer)),
        };
        result
    }

    /// The one that all share, and whether it was there before.
    pub async fn wire(&self) -> Result<(Arc<Wire>, bool), BackendError> {
        if let Some(wire) = self.current() {
            return Ok((wire, true));
        }
        let _only_one = self.dialing.lock().await;
        if let Some(wire) = self.current() {
            return Ok((wire, true));
        }
        let mut wire = self.dial(None).await?;
        let mut slot = self.lock();
        slot.number += 1;
        wire.number = slot.number;
        let wire = Arc::new(wire);
        slot.wire = Some(Arc::clone(&wire));
        Ok((wire, false))
    }

    /// A connection of its own. `heard` is told of notifications.
    pub async fn dial(
        &self,
        heard: Option<UnboundedSender<Notification>>,
    ) -> Result<Wire, BackendError> {
        let places = &self.address.places;
        let limit = self.connect_timeout / u32::try_from(places.len()).unwrap_or(u32::MAX);
        let mut failures = Vec::new();
        for _ in places {
            // Also if whoever waits gives up meanwhile: a server that takes connections and says nothing must
            // not be the first for ever.
            let turn = Turn {
                link: self,
                number: self.turn.load(Ordering::Relaxed),
                dismissed: false,
            };
            let place = &places[turn.number % places.len()];
            match timeout(limit, self.connect(place, heard.clone())).await {
                Ok(Ok(mut wire)) => {
                    wire.turn = turn.number;
                    turn.dismiss();
                    return Ok(wire);
                }
                Ok(Err(error)) => failures.push(error),
                Err(_) => {
                    failures.push(failure::silence(&self.shown(place), Stage::Connecting));
                }
            }
        }
        Err(all_of(failures))
    }

    async fn connect(
        &self,
        place: &Place,
        heard: Option<UnboundedSender<Notification>>,
    ) -> Result<Wire, BackendError> {
        let wanted = match place {
            // The kernel is trusted as it is; no server encrypts there.
            Place::Socket(..) => SslMode::Disable,
            Place::Tcp(_) => self.address.encryption.mode,
        };
        let first = self.connect_with(place, wanted, heard.clone()).await?;
        match first {
            Ok(wire) => Ok(wire),
            // As libpq does it: who only prefers TLS takes what there is.
            Err(error) if wanted == SslMode::Prefer && may_do_without(&error) => {
                let second = self.connect_with(place, SslMode::Disable, heard).await?;
                second.map_err(|_| self.unconnected(&error, place))
            }
            Err(error) => Err(self.unconnected(&error, place)),
        }
    }

    async fn connect_with(
        &self,
        place: &Place,
        mode: SslMode,
        heard: Option<UnboundedSender<Notification>>,
    ) -> Result<Result<Wire, Error>, BackendError> {
        let unused = Tls {
            verify: Verify::Nothing,
            ..Tls::default()
        };
        let tls = match mode {
            SslMode::Disable => &unused,
            _ => &self.address.encryption.tls,
        };
        let tls = tls.client_config().await.map_err(|why| {
            BackendError::fatal("certificate", format!("{}: {why}", self.address.shown))
        })?;
        let config = self.address.config(place, mode);
        let connected = config.connect(MakeRustlsConnect::new(tls)).await;
        Ok(connected.map(|(client, connection)| {
            let unsure_commits = Arc::<AtomicU64>::default();
            Wire {
                client,
                number: 0,
                turn: 0,
                in_doubt: AtomicBool::new(false),
                task: drive(connection, Arc::clone(&unsure_commits), heard),
                unsure_commits,
            }
        }))
    }

    fn unconnected(&self, error: &Error, place: &Place) -> BackendError {
        let mut meaning = failure::meaning(error, self, Stage::Connecting);
        if self.address.places.len() > 1 {
            let this = self.shown(place);
            meaning.message = meaning.message.replacen(&self.address.shown, &this, 1);
        }
        meaning
    }

    fn shown(&self, place: &Place) -> String {
        match &*self.address.places {
            [_] => self.address.shown.clone(),
            _ => format!("postgres://{}", place.shown()),
        }
    }

    fn not_replicated(&self) -> BackendError {
        BackendError::ambiguous(
            "not-replicated",
            format!(
                "{} wrote it, but gave up waiting for its synchronous standby, so it does not count: \
                 a statement_timeout or somebody's pg_cancel_backend ended the wait",
                self.address.shown
            ),
        )
    }

    fn current(&self) -> Option<Arc<Wire>> {
        let slot = self.lock();
        let wire = slot.wire.as_ref()?;
        (!wire.client.is_closed()).then(|| Arc::clone(wire))
    }

    pub fn let_go(&self, wire: &Wire) {
        let mut slot = self.lock();
        if slot.number == wire.number {
            slot.wire = None;
        }
    }

    pub fn hang_up(&self) {
        self.lock().wire = None;
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        locked(&self.slot)
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.address.shown).finish()
    }
}

/// One connection.
pub(super) struct Wire {
    client: Client,
    number: u64,
    /// When its server's turn was.
    turn: usize,
    /// Somebody gave up waiting on it.
    in_doubt: AtomicBool,
    /// How many commits were answered that may not be where they should be.
    unsure_commits: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Wire {
    pub async fn ask(&self, text: &str) -> Result<Vec<SimpleQueryRow>, Error> {
        let messages = self.client.simple_query(text).await?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(rows.collect())
    }

    fn unsure_commits(&self) -> u64 {
        self.unsure_commits.load(Ordering::Acquire)
    }
}

impl Drop for Wire {
    /// It says goodbye by itself, unless it would wait for an answer first that may never come.
    fn drop(&mut self) {
        if *self.in_doubt.get_mut() {
            self.task.abort();
        }
    }
}

/// Carries a connection's messages until it ends.
fn drive<S, T>(
    mut connection: Connection<S, T>,
    unsure_commits: Arc<AtomicU64>,
    heard: Option<UnboundedSender<Notification>>,
) -> JoinHandle<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                // The only one that our statements can cause: the wait for a synchronous standby was ended
                // from outside. It comes before the answer, which says that all is well.
                AsyncMessage::Notice(notice)
                    if notice.parsed_severity() == Some(Severity::Warning)
                        && *notice.code() == SqlState::WARNING =>
                {
                    unsure_commits.fetch_add(1, Ordering::Release);
                }
                AsyncMessage::Notification(message) => {
                    if let Some(heard) = &heard {
                        // Nobody listens any more: the connection ends, too.
                        let _ = heard.send(message);
                    }
                }
                _ => {}
            }
        }
    })
}

/// Lets a connection go unless its answer came.
struct Doubt<'a> {
    link: &'a Link,
    wire: &'a Wire,
    dismissed: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.dismissed {
            self.wire.in_doubt.store(true, Ordering::Relaxed);
            self.link.let_go(self.wire);
        }
    }
}

/// Passes the turn to the next server unless this one let us in.
struct Turn<'a> {
    link: &'a Link,
    number: usize,
    dismissed: bool,
}

impl Turn<'_> {
    fn dismiss(mut self) {
        self.dismissed = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.dismissed {
            self.link.pass(self.number);
        }
    }
}

/// An earlier sending may have come through.
fn doubtful(mut error: BackendError, maybe_twice: bool) -> BackendError {
    if maybe_twice && error.kind == FailureKind::Transient {
        error.kind = FailureKind::Ambiguous;
    }
    error
}

/// Of all that is busy: what is over in a moment. The server took it all back.
fn was_in_the_way(error: &BackendError) -> bool {
    ["(55P03", "(40001", "(40P01", "(25P02"]
        .iter()
        .any(|code| error.message.contains(code))
}

fn may_do_without(error: &Error) -> bool {
    match error.as_db_error() {
        Some(answer) => *answer.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        None => error.to_string().contains("TLS"),
    }
}

/// It is fatal if nothing else happened.
fn all_of(failures: Vec<BackendError>) -> BackendError {
    let mut failures = failures.into_iter();
    let mut all = failures.next().expect("an address has a place");
    for failure in failures {
        let message = format!("{}; {}", all.message, failure.message);
        if failure.kind != FailureKind::Fatal {
            all = failure;
        }
        all.message = message;
    }
    all
}
