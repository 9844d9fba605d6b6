//! Drives one candidate against one backend: the timers, the requests, the watch and the commands.
//!
//! All decisions are the candidate's. This module owns no rule of the election; it carries inputs in
//! and outputs out, on the clock that it is given.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tracing::{Instrument, Span};

use crate::backend::{Attempt, Backend, BackendError};
use crate::candidate::{Answer, Candidate, Input, Op, Output, Request, RequestId, Rules};
use crate::clock::{Clock, Moment};
use crate::identity::{is_ours, trace_id};
use crate::lease::{ElectionName, FailureKind, Hint, Leader, LossReason, Outcome, Owner, Token};
use crate::locked::locked;
use crate::term::{Lead, Term};

/// Hints that may wait. More are dropped: they only ever say "look again".
const HINT_QUEUE: usize = 32;

/// What the application wants of a running campaign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    CallbacksEnded(Token),
    StepDown { pause: Duration },
    LoopStalled,
    LoopTurning,
    Stop,
}

/// What a campaign tells, in order.
#[derive(Debug, Clone)]
pub enum Event {
    Promoted(Arc<Term>),
    Demoted {
        token: Token,
        reason: LossReason,
    },
    LeaderChanged(Leader),
    /// Callbacks have not ended, so long after their term did, and its lease is about to.
    Overrun {
        token: Token,
        trace_id: Option<String>,
        since: Duration,
    },
    Attempted(Attempted),
    /// Something needs a person: told once, until it has passed.
    Trouble {
        code: &'static str,
        message: String,
        fatal: bool,
    },
    /// The answer to [`Command::Stop`]: the lease is released or left to its expiry. Only an
    /// [`Event::Overrun`] may follow.
    Stopped,
}

/// How one request to the store went.
#[derive(Debug, Clone)]
pub struct Attempted {
    pub what: &'static str,
    /// "held", "other", "released", "notReleased", "seen", "givenUp", or the code of an error.
    pub outcome: &'static str,
    pub took: Duration,
    /// Whose lease it is about, if it is one's own.
    pub term: Option<Arc<Term>>,
}

/// Where events go.
pub type Tell = Arc<dyn Fn(Event) + Send + Sync>;

/// The longest that preparing a store may take. It is no attempt: nobody's lead depends on it, and a store that
/// makes a table, or is far away, needs more than an attempt's time for a dozen requests.
const PREPARE_LIMIT: Duration = Duration::from_secs(60);
/// How long a store that is closed may go on being prepared, so that it cleans up after itself.
const PREPARE_REST: Duration = Duration::from_secs(1);

/// A backend, prepared before its first use. Preparing is tried again until it worked; it goes on when whoever
/// waits for it gives up, so that a slow store is prepared once, and its checks leave nothing behind.
#[derive(Debug)]
pub struct PreparedStore {
    backend: Arc<dyn Backend>,
    is_prepared: AtomicBool,
    preparing: Mutex<Option<Preparing>>,
}

#[derive(Debug, Clone)]
struct Preparing {
    /// `None`: it goes on.
    told: watch::Receiver<Option<Result<(), BackendError>>>,
    task: AbortHandle,
}

impl PreparedStore {
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            is_prepared: AtomicBool::new(false),
            preparing: Mutex::default(),
        }
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub async fn prepare(self: &Arc<Self>) -> Result<(), BackendError> {
        if self.is_prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut preparing = locked(&self.preparing)
            .get_or_insert_with(|| self.begin())
            .clone();
        let ended = preparing.told.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|ended| ended.clone());
        ended.unwrap_or_else(|| {
            Err(BackendError::transient(
                "store",
                format!("the check of {} broke off", self.backend.describe()),
            ))
        })
    }

    fn begin(self: &Arc<Self>) -> Preparing {
        let (tell, told) = watch::channel(None);
        let store = Arc::clone(self);
        let task = tokio::spawn(async move {
            let _over = Over(&store.preparing);
            let prepared = tokio::time::timeout(PREPARE_LIMIT, store.backend.prepare()).await;
            let prepared = prepared.unwrap_or_else(|_| {
                Err(BackendError::transient(
                    "timeout",
                    format!(
                        "{} could not be checked within {} s",
                        store.backend.describe(),
                        PREPARE_LIMIT.as_secs()
                    ),
                ))
            });
            if prepared.is_ok() {
                store.is_prepared.store(true, Ordering::Release);
            }
            tell.send_replace(Some(prepared));
        });
        let task = task.abort_handle();
        Preparing { told, task }
    }

    /// Closes the backend.
    pub async fn close(&self) {
        let preparing = locked(&self.preparing).clone();
        if let Some(mut preparing) = preparing {
            let ended = preparing.told.wait_for(Option::is_some);
            if tokio::time::timeout(PREPARE_REST, ended).await.is_err() {
                preparing.task.abort();
            }
        }
        self.backend.close().await;
    }
}

/// Lets the next one begin, also after a panic.
struct Over<'a>(&'a Mutex<Option<Preparing>>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        *locked(self.0) = None;
    }
}

/// Everything that one campaign needs.
#[derive(Debug)]
pub struct Campaign {
    pub election: ElectionName,
    pub store: Arc<PreparedStore>,
    pub clock: Arc<dyn Clock>,
    /// What its records say: how long a lease lasts.
    pub lease: Duration,
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// Changes when timers cannot be trusted: the machine was suspended.
    pub woken: watch::Receiver<u64>,
}

type InFlight = (
    RequestId,
    Pin<Box<dyn Future<Output = Result<Answer, BackendError>> + Send>>,
);

impl Campaign {
    /// Campaigns until it is told to stop, the lease is released or left to its expiry, and the callbacks
    /// of the last term have ended or were told of. Returns early only if every sender of commands is gone.
    pub async fn run(mut self, owner: Owner, rules: Rules, tell: Tell) {
        let backend = self.store.backend().clone();
        let lease = self.lease;
        let (hints, mut hinted) = mpsc::channel(HINT_QUEUE);
        let mut watch = Some(WatchTask::start(
            &backend,
            &self.election,
            hints,
            rules.timing.renew_interval(),
        ));
        let span =
            tracing::info_span!("election", election = %self.election, instance = %owner.instance);
        let mut driver = Driver {
            candidate: Candidate::new(owner, rules, self.clock.now()),
            store: &self.store,
            election: &self.election,
            clock: &self.clock,
            lease,
            lead: Lead::default(),
            term_span: span.clone(),
            span,
            in_flight: None,
            sent: None,
            demoted_at: Moment::ORIGIN,
            term: None,
            last_term: None,
            stopped: false,
            last_error: None,
            tell,
        };
        backend.tell_role(&self.election, false);
        driver.handle(self.clock.now(), Input::Tick);
        while !(driver.stopped && driver.candidate.wake_at() == Moment::NEVER) {
            let wake = driver.candidate.wake_at();
            let input = tokio::select! {
                answer = next_answer(&mut driver.in_flight) => {
                    // First: what is told may already send the next one.
                    driver.in_flight = None;
                    driver.hear_lease(self.clock.now());
                    driver.answer(answer)
                }
                command = self.commands.recv() => match command {
                    Some(command) => command.into(),
                    None => break,
                },
                Some(hint) = hinted.recv() => Input::Hint(hint),
                Ok(()) = self.woken.changed() => Input::Tick,
                () = sleep_until(&*self.clock, wake) => Input::Tick,
            };
            driver.handle(self.clock.now(), input);
            if driver.stopped
                && let Some(watch) = watch.take()
            {
                watch.end().await;
                (driver.tell)(Event::Stopped);
            }
        }
    }
}

/// The state of [`Campaign::run`].
struct Driver<'a> {
    candidate: Candidate,
    store: &'a Arc<PreparedStore>,
    election: &'a ElectionName,
    clock: &'a Arc<dyn Clock>,
    lease: Duration,
    lead: Lead,
    span: Span,
    term_span: Span,
    in_flight: Option<InFlight>,
    /// What that is, and since when.
    sent: Option<(&'static str, Moment)>,
    demoted_at: Moment,
    /// Until its lease was left.
    term: Option<Arc<Term>>,
    last_term: Option<Arc<Term>>,
    stopped: bool,
    last_error: Option<BackendError>,
    tell: Tell,
}

impl Driver<'_> {
    fn handle(&mut self, now: Moment, input: Input) {
        let mut outputs = Vec::new();
        self.candidate.handle(now, input, &mut outputs);
        self.lead.follow(self.candidate.leads_until(), trace_id);
        for output in outputs {
            self.act(now, output);
        }
        if self.in_flight.as_ref().map(|(id, _)| *id) != self.candidate.pending_request() {
            self.give_up(now);
        }
    }

    fn act(&mut self, now: Moment, output: Output) {
        let _in_span = self.term_span.clone().entered();
        match output {
            Output::Send(request) => self.send(now, request),
            Output::Promoted { token } => self.promoted(token),
            Output::Demoted { token, reason } => {
                tracing::info!(reason = reason.as_str(), "no longer the leader");
                self.store.backend().tell_role(self.election, false);
                (self.tell)(Event::Demoted { token, reason });
                self.demoted_at = now;
            }
            Output::LeaderChanged(leader) => {
                tracing::info!(leader = %leader.owner.instance, leader_token = %leader.token, "leader seen");
                (self.tell)(Event::LeaderChanged(leader));
            }
            Output::Overrun { token } => {
                let last = self.last_term.as_ref().filter(|term| term.token() == token);
                let trace_id = last.map(|term| term.trace_id().to_string());
                tracing::warn!(%token, trace = trace_id.as_deref(), "the callbacks of a lost term still run although its lease ends now");
                let since = now.since(self.demoted_at);
                (self.tell)(Event::Overrun {
                    token,
                    trace_id,
                    since,
                });
            }
            Output::StoreLost(kind) => self.store_lost(kind),
            Output::StoreBack => {
                let store = self.store.backend().describe();
                tracing::info!(store, "the store answers again");
            }
            Output::IdShared(leader) if is_ours(leader.owner.nonce) => {}
            Output::IdShared(leader) if leader.owner.nonce == 0 => {
                self.trouble(
                    "id-shared",
                    format!(
                        "the record of election {} names {:?}, as this instance is called, but no term of this library: another program elects under the same name, or somebody changed the record",
                        self.election, leader.owner.instance
                    ),
                );
            }
            Output::IdShared(leader) => {
                self.trouble(
                    "id-shared",
                    format!(
                        "another process runs as instance {:?} too; election {} is safe, but nobody can tell the two apart: give each process its own instanceId, or none",
                        leader.owner.instance, self.election
                    ),
                );
            }
            Output::NotReleased {
                token,
                callbacks_ended: false,
            } => {
                tracing::warn!(%token, "callbacks have not ended within stopTimeout; the lease is kept until it expires");
            }
            Output::NotReleased { token, .. } => {
                tracing::warn!(%token, "the lease could not be released in time; it is left to its expiry");
            }
            Output::TokenWentBack { token, earlier } => {
                self.trouble(
                    "token-went-back",
                    format!(
                        "{} handed out token {token} for election {} after {earlier}: it has lost data, and receivers that check tokens will refuse this term",
                        self.store.backend().describe(), self.election
                    ),
                );
            }
            Output::Stopped => {
                tracing::debug!("campaign stopped");
                self.stopped = true;
            }
        }
    }

    fn promoted(&mut self, token: Token) {
        // A term that was over before we came here is told all the same: its end follows.
        let over = || Arc::new(Term::new(token, trace_id(), Moment::ORIGIN));
        let led = self.lead.term().filter(|term| term.token() == token);
        let term = led.cloned().unwrap_or_else(over);
        self.term_span = tracing::info_span!(
            parent: &self.span, "term", %token, trace = term.trace_id()
        );
        self.term = Some(term.clone());
        self.last_term = Some(term.clone());
        let _in_term = self.term_span.clone().entered();
        tracing::info!("leader now");
        self.store.backend().tell_role(self.election, true);
        (self.tell)(Event::Promoted(term));
    }

    fn store_lost(&self, kind: FailureKind) {
        let limit = BackendError::ambiguous("timeout", "no answer in time");
        let error = self.last_error.as_ref().unwrap_or(&limit);
        let store = self.store.backend().describe();
        let message = format!(
            "election {}: {store}: {error}; nobody is made leader by this instance until the store answers, and it keeps trying",
            self.election
        );
        tracing::warn!(
            store,
            code = error.code,
            "{error}; trying again until the store answers"
        );
        let fatal = kind == FailureKind::Fatal;
        (self.tell)(Event::Trouble {
            code: error.code,
            message,
            fatal,
        });
    }

    fn trouble(&self, code: &'static str, message: String) {
        tracing::warn!(code, "{message}");
        (self.tell)(Event::Trouble {
            code,
            message,
            fatal: false,
        });
    }

    fn send(&mut self, now: Moment, request: Request) {
        let store = self.store.clone();
        let election = self.election.clone();
        let owner = self.candidate.owner().clone();
        let duration = self.lease;
        let ask = async move {
            store.prepare().await?;
            let backend = store.backend();
            let term = match request.op {
                Op::Campaign => None,
                Op::Renew(token) => Some(token),
                Op::Release(token) => {
                    return backend
                        .release(&election, &owner, token)
                        .await
                        .map(Answer::Released);
                }
                Op::Peek => return backend.peek(&election).await.map(Answer::Seen),
            };
            let attempt = Attempt {
                election: &election,
                owner: &owner,
                duration,
                term,
            };
            backend.attempt(&attempt).await.map(Answer::Attempt)
        };
        tracing::debug!(op = ?request.op, "attempt");
        let what = match request.op {
            Op::Campaign => "campaign",
            Op::Renew(_) => "renew",
            Op::Release(_) => "release",
            Op::Peek => "peek",
        };
        self.give_up(now);
        if matches!(request.op, Op::Campaign | Op::Peek) {
            self.leave_term();
        }
        self.sent = Some((what, now));
        self.in_flight = Some((request.id, Box::pin(ask.instrument(self.term_span.clone()))));
    }

    /// Its lease is no longer ours: what is said from now on is not about it.
    fn leave_term(&mut self) {
        self.term_span = self.span.clone();
        self.term = None;
    }

    /// Dropping it cancels it.
    fn give_up(&mut self, now: Moment) {
        if self.in_flight.take().is_some() {
            self.attempted(now, "givenUp");
        }
    }

    fn attempted(&mut self, now: Moment, outcome: &'static str) {
        if let Some((what, since)) = self.sent.take() {
            let took = now.since(since);
            let term = self.term.clone();
            (self.tell)(Event::Attempted(Attempted {
                what,
                outcome,
                took,
                term,
            }));
        }
    }

    /// Before the answer that told it.
    fn hear_lease(&mut self, now: Moment) {
        if let Some(lease) = self.store.backend().told_lease()
            && lease != self.lease
        {
            self.lease = lease;
            self.handle(now, Input::LeaseTold(lease));
        }
    }

    fn answer(&mut self, (request, result): (RequestId, Result<Answer, BackendError>)) -> Input {
        let outcome = match &result {
            Ok(Answer::Attempt(Outcome::Held { .. })) => "held",
            Ok(Answer::Attempt(Outcome::Other { .. })) => "other",
            Ok(Answer::Released(true)) => "released",
            Ok(Answer::Released(false)) => "notReleased",
            Ok(Answer::Seen(_) | Answer::Failed(_)) => "seen",
            Err(error) => error.code,
        };
        self.attempted(self.clock.now(), outcome);
        let answer = match result {
            Ok(answer) => {
                self.last_error = None;
                answer
            }
            Err(error) => {
                tracing::debug!(code = error.code, "attempt failed: {error}");
                let kind = error.kind;
                self.last_error = Some(error);
                Answer::Failed(kind)
            }
        };
        Input::Answer { request, answer }
    }
}

impl From<Command> for Input {
    fn from(command: Command) -> Self {
        match command {
            Command::CallbacksEnded(token) => Self::CallbacksEnded(token),
            Command::StepDown { pause } => Self::StepDown { pause },
            Command::LoopStalled => Self::LoopStalled,
            Command::LoopTurning => Self::LoopTurning,
            Command::Stop => Self::Stop,
        }
    }
}

async fn next_answer(
    in_flight: &mut Option<InFlight>,
) -> (RequestId, Result<Answer, BackendError>) {
    match in_flight {
        Some((id, answer)) => (*id, answer.await),
        None => std::future::pending().await,
    }
}

/// tokio's timers do not count a suspend; `woken` tells of one.
async fn sleep_until(clock: &dyn Clock, moment: Moment) {
    if moment == Moment::NEVER {
        return std::future::pending().await;
    }
    tokio::time::sleep(moment.since(clock.now())).await;
}

/// A watch that is started again should it ever end or panic. Ends when dropped.
struct WatchTask(Option<tokio::task::JoinHandle<()>>);

impl WatchTask {
    fn start(
        backend: &Arc<dyn Backend>,
        election: &ElectionName,
        hints: mpsc::Sender<Hint>,
        pause: Duration,
    ) -> Self {
        let (backend, election) = (backend.clone(), election.clone());
        if !backend.capabilities().notifies {
            return Self(None);
        }
        Self(Some(tokio::spawn(async move {
            while let Some(watch) = backend.clone().watch(election.clone(), hints.clone()) {
                let mut watch = AbortOnDrop(tokio::spawn(watch));
                let end = (&mut watch.0).await;
                tracing::warn!(
                    panicked = end.is_err_and(|error| error.is_panic()),
                    "the watch on {election} ended; it is started again"
                );
                if hints.send(Hint::Blind).await.is_err() {
                    return;
                }
                tokio::time::sleep(pause).await;
            }
        })))
    }
}

impl WatchTask {
    /// Ends it and waits for that.
    async fn end(mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for WatchTask {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tracing::field::{Field, Visit};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
    use tracing_subscriber::util::SubscriberInitExt;

    use super::*;
    use crate::backend::{Capabilities, Hints, Watch};
    use crate::lease::Outcome;

    /// Its first watch panics, its second one ends, and then one goes on.
    #[derive(Debug, Default)]
    struct EndsTwice(std::sync::atomic::AtomicU64);

    #[async_trait]
    impl Backend for EndsTwice {
        fn capabilities(&self) -> Capabilities {
            Capabilities {
                shortest_lease: Duration::from_millis(1),
                notifies: true,
            }
        }

        fn describe(&self) -> String {
            "a store of a test".into()
        }

        async fn prepare(&self) -> Result<(), BackendError> {
            Ok(())
        }

        async fn attempt(&self, _: &Attempt<'_>) -> Result<Outcome, BackendError> {
            std::future::pending().await
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

        fn watch(self: Arc<Self>, _: ElectionName, hints: Hints) -> Option<Watch> {
            let before = self.0.fetch_add(1, Ordering::SeqCst);
            Some(Box::pin(async move {
                assert!(before != 0, "panics as it should");
                if before > 1 {
                    let _ = hints.send(Hint::Watching).await;
                    std::future::pending::<()>().await;
                }
            }))
        }
    }

    /// What the log says of each watch that ended: whether it panicked.
    #[derive(Clone, Default)]
    struct Ends(Arc<Mutex<Vec<bool>>>);

    impl Visit for Ends {
        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

        fn record_bool(&mut self, field: &Field, value: bool) {
            if field.name() == "panicked" {
                locked(&self.0).push(value);
            }
        }
    }

    impl<S: tracing::Subscriber> Layer<S> for Ends {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            event.record(&mut self.clone());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ended_is_started_again_and_the_log_says_whether_it_panicked() {
        let ends = Ends::default();
        let _logging = tracing_subscriber::registry()
            .with(ends.clone())
            .set_default();
        let backend: Arc<dyn Backend> = Arc::new(EndsTwice::default());
        let election = ElectionName::new("e").unwrap();
        let (hints, mut hinted) = mpsc::channel(HINT_QUEUE);
        let watch = WatchTask::start(&backend, &election, hints, Duration::from_secs(5));
        for hint in [Hint::Blind, Hint::Blind, Hint::Watching] {
            assert_eq!(hinted.recv().await, Some(hint));
        }
        assert_eq!(*locked(&ends.0), [true, false]);
        watch.end().await;
    }
}
