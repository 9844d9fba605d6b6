//! The driver of a campaign, against a store that misbehaves on command, in tokio's paused time: a test
//! of many leases takes milliseconds, and nothing depends on how busy the machine is.

#![allow(clippy::unchecked_time_subtraction)] // Of constants.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use whenleader::backend::{Attempt, Backend, BackendError, Capabilities, Hints, Watch};
use whenleader::campaign::{Attempted, Campaign, Command, Event, PreparedStore};
use whenleader::candidate::{OnRenewError, Rules};
use whenleader::clock::{Clock, Moment};
use whenleader::lease::{
    ElectionName, FailureKind, Hint, InstanceId, Leader, LossReason, Outcome, Owner, Token,
};
use whenleader::term::Term;
use whenleader::timing::Timing;

const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);
/// S of 15 s and 5 s.
const LEAD_LIMIT: Duration = Duration::from_secs(10);

/// What the store does with the next requests; it behaves once the script has ended.
#[derive(Debug, Clone, Copy)]
enum Act {
    Answer,
    AnswerAfter(Duration),
    /// Applies the write and never answers.
    Silence,
    Fail(FailureKind),
    Panic,
}

#[derive(Debug, Default)]
struct Record {
    owner: Option<(Owner, Token, Instant)>,
    last: u64,
}

#[derive(Debug, Default)]
struct Scripted {
    record: Mutex<Record>,
    script: Mutex<VecDeque<Act>>,
    attempts: AtomicUsize,
    releases: AtomicUsize,
    prepare_failures: AtomicUsize,
    prepare_takes: Duration,
    prepared: AtomicUsize,
    watches: AtomicUsize,
    notifies: bool,
    /// It lends leases of this length, whatever is asked, and tells it with each answer.
    lends: Mutex<Option<Duration>>,
    told: Mutex<Option<Duration>>,
}

impl Scripted {
    fn lending(lease: Duration) -> Arc<Self> {
        let store = Self::default();
        store.lend(lease);
        Arc::new(store)
    }

    fn lend(&self, lease: Duration) {
        *self.lends.lock().unwrap() = Some(lease);
    }

    fn then(&self, acts: &[Act]) {
        self.script.lock().unwrap().extend(acts);
    }

    async fn act(&self) -> Result<(), BackendError> {
        let act = self
            .script
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Act::Answer);
        match act {
            Act::Answer | Act::Silence => Ok(()),
            Act::AnswerAfter(delay) => {
                sleep(delay).await;
                Ok(())
            }
            Act::Fail(kind) => Err(BackendError {
                kind,
                code: "scripted",
                message: "as the script says".into(),
            }),
            Act::Panic => panic!("as the script says"),
        }
    }

    /// The record as another instance would take it.
    fn taken_by(&self, owner: &Owner) -> Token {
        let mut record = self.record.lock().unwrap();
        record.last += 1;
        let token = Token::new(record.last).unwrap();
        record.owner = Some((owner.clone(), token, Instant::now() + LEASE));
        token
    }

    fn renewed_by_its_owner(&self) {
        if let Some((_, _, until)) = &mut self.record.lock().unwrap().owner {
            *until = Instant::now() + LEASE;
        }
    }

    fn holder(&self) -> Option<Owner> {
        self.record
            .lock()
            .unwrap()
            .owner
            .as_ref()
            .map(|(owner, ..)| owner.clone())
    }
}

#[async_trait]
impl Backend for Scripted {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: self.notifies,
        }
    }

    fn describe(&self) -> String {
        "a scripted store".into()
    }

    fn told_lease(&self) -> Option<Duration> {
        *self.told.lock().unwrap()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        sleep(self.prepare_takes).await;
        self.prepared.fetch_add(1, Ordering::SeqCst);
        let left = self.prepare_failures.load(Ordering::SeqCst);
        if left > 0 {
            self.prepare_failures.store(left - 1, Ordering::SeqCst);
            return Err(BackendError::transient("unreachable", "not there yet"));
        }
        Ok(())
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        let silent = matches!(self.script.lock().unwrap().front(), Some(Act::Silence));
        self.act().await?;
        let lends = *self.lends.lock().unwrap();
        let duration = lends.unwrap_or(attempt.duration);
        let outcome = {
            let mut record = self.record.lock().unwrap();
            let now = Instant::now();
            let held = record.owner.clone().filter(|(_, _, until)| *until > now);
            match (held, attempt.term) {
                (Some((owner, token, _)), Some(term))
                    if owner == *attempt.owner && token == term =>
                {
                    record.owner = Some((owner, token, now + duration));
                    Outcome::Held {
                        token,
                        valid_for: duration,
                    }
                }
                (Some((owner, token, until)), _) if owner != *attempt.owner => Outcome::Other {
                    leader: Some(Leader { owner, token }),
                    remaining: Some(until - now),
                },
                (_, Some(_)) => Outcome::Other {
                    leader: None,
                    remaining: None,
                },
                (_, None) => {
                    record.last += 1;
                    let token = Token::new(record.last).unwrap();
                    record.owner = Some((attempt.owner.clone(), token, now + duration));
                    Outcome::Held {
                        token,
                        valid_for: duration,
                    }
                }
            }
        };
        if silent {
            std::future::pending::<()>().await;
        }
        *self.told.lock().unwrap() = lends;
        Ok(outcome)
    }

    async fn release(
        &self,
        _: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        self.act().await?;
        let mut record = self.record.lock().unwrap();
        let ours = record
            .owner
            .as_ref()
            .is_some_and(|(holder, held, _)| holder == owner && *held == token);
        if ours {
            record.owner = None;
        }
        Ok(ours)
    }

    async fn peek(&self, _: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let record = self.record.lock().unwrap();
        Ok(record
            .owner
            .clone()
            .map(|(owner, token, _)| Leader { owner, token }))
    }

    fn watch(self: Arc<Self>, _: ElectionName, hints: Hints) -> Option<Watch> {
        Some(Box::pin(async move {
            self.watches.fetch_add(1, Ordering::SeqCst);
            let _ = hints.send(Hint::Watching).await;
            sleep(LEASE).await; // Ends, which a watch should not do.
        }))
    }
}

/// tokio's clock, which a test can pause.
#[derive(Debug)]
struct PausedClock {
    since: Instant,
    /// What timers did not count.
    slept: Mutex<Duration>,
}

impl PausedClock {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            slept: Mutex::default(),
        }
    }

    /// The machine was suspended, and no timer knows of it yet.
    fn sleep(&self, duration: Duration) {
        *self.slept.lock().unwrap() += duration;
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(1) + self.since.elapsed() + *self.slept.lock().unwrap()
    }
}

struct Running {
    commands: mpsc::UnboundedSender<Command>,
    events: mpsc::UnboundedReceiver<Event>,
    clock: Arc<PausedClock>,
    owner: Owner,
    woken: watch::Sender<u64>,
    /// How often something was told that needs a person.
    troubles: u32,
    task: tokio::task::JoinHandle<()>,
}

fn owner(name: &str, nonce: u64) -> Owner {
    Owner {
        instance: InstanceId::new(name).unwrap(),
        nonce,
    }
}

fn start(store: &Arc<Scripted>, on_renew_error: OnRenewError) -> Running {
    let timing = Timing::new(LEASE, RENEW, None).unwrap();
    start_with(store, on_renew_error, timing)
}

fn start_with(store: &Arc<Scripted>, on_renew_error: OnRenewError, timing: Timing) -> Running {
    let (commands, receiver) = mpsc::unbounded_channel();
    let (tell, events) = mpsc::unbounded_channel();
    let clock = Arc::new(PausedClock::new());
    let woken = watch::channel(0).0;
    let campaign = Campaign {
        election: ElectionName::new("leader").unwrap(),
        store: Arc::new(PreparedStore::new(store.clone())),
        clock: clock.clone(),
        lease: timing.lease(),
        commands: receiver,
        woken: woken.subscribe(),
    };
    let rules = Rules {
        timing,
        on_renew_error,
        takes_part: true,
        stop_timeout: LEASE,
        jitter_seed: 7,
    };
    let owner = owner("a", 1);
    let run = campaign.run(
        owner.clone(),
        rules,
        Arc::new(move |event| {
            let _ = tell.send(event);
        }),
    );
    Running {
        commands,
        events,
        clock,
        owner,
        woken,
        troubles: 0,
        task: tokio::spawn(run),
    }
}

impl Running {
    fn command(&self, command: Command) {
        self.commands.send(command).unwrap();
    }

    /// What it tells of the election.
    async fn next(&mut self) -> Event {
        loop {
            let event = self.next_of_all().await;
            if !matches!(event, Event::Attempted(_)) {
                return event;
            }
        }
    }

    async fn next_of_all(&mut self) -> Event {
        timeout(20 * LEASE, self.events.recv())
            .await
            .expect("an event")
            .expect("a campaign")
    }

    async fn attempted(&mut self) -> Attempted {
        loop {
            if let Event::Attempted(attempted) = self.next_of_all().await {
                return attempted;
            }
        }
    }

    async fn promoted(&mut self) -> Arc<Term> {
        loop {
            if let Event::Promoted(term) = self.next().await {
                return term;
            }
        }
    }

    async fn demoted(&mut self) -> (Token, LossReason) {
        loop {
            match self.next().await {
                Event::Demoted { token, reason } => return (token, reason),
                Event::Trouble { .. } => self.troubles += 1,
                _ => {}
            }
        }
    }

    fn leads(&self, term: &Term) -> bool {
        term.is_led(self.clock.now())
    }
}

fn near(measured: Duration, wanted: Duration) -> bool {
    measured.abs_diff(wanted) < Duration::from_millis(20)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_prepared_longer_than_attempts_may_take_is_prepared_once_and_then_led_on() {
    let store = Arc::new(Scripted {
        prepare_takes: 3 * RENEW,
        ..Scripted::default()
    });
    let mut run = start(&store, OnRenewError::StepDown);
    run.promoted().await;
    assert_eq!(store.prepared.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_closed_while_it_is_prepared_may_clean_up_and_is_then_left_alone() {
    for (takes, prepared) in [(Duration::from_millis(500), 1), (LEASE, 0)] {
        let store = Arc::new(Scripted {
            prepare_takes: takes,
            ..Scripted::default()
        });
        let prepare = Arc::new(PreparedStore::new(store.clone()));
        assert!(timeout(takes / 2, prepare.prepare()).await.is_err());
        prepare.close().await;
        sleep(2 * LEASE).await;
        assert_eq!(store.prepared.load(Ordering::SeqCst), prepared, "{takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_at_its_deadline_while_a_renewal_is_pending_and_its_late_answer_is_discarded()
 {
    let store = Arc::new(Scripted::default());
    store.then(&[Act::Answer, Act::AnswerAfter(2 * LEASE)]);
    let mut run = start(&store, OnRenewError::StepDown);
    let started = Instant::now();
    let term = run.promoted().await;
    let (token, reason) = run.demoted().await;
    assert_eq!((token, reason), (term.token(), LossReason::Unreachable));
    assert!(run.troubles > 0, "nobody was told why");
    assert!(
        near(started.elapsed(), LEAD_LIMIT),
        "{:?}",
        started.elapsed()
    );
    assert!(!run.leads(&term));
    sleep(3 * LEASE).await;
    assert!(!run.leads(&term), "an old term never comes back");
}

#[tokio::test(start_paused = true)]
async fn one_renewal_that_stalls_for_a_while_costs_nothing() {
    let store = Arc::new(Scripted::default());
    store.then(&[Act::Answer, Act::AnswerAfter(Duration::from_secs(4))]);
    let mut run = start(&store, OnRenewError::StepDown);
    let term = run.promoted().await;
    sleep(4 * LEASE).await;
    assert!(run.leads(&term));
    assert!(matches!(run.next().await, Event::LeaderChanged(_)));
    while let Ok(event) = run.events.try_recv() {
        assert!(matches!(event, Event::Attempted(_)), "{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_steps_down_at_once_and_with_retry_only_at_the_deadline() {
    for (policy, after) in [
        (OnRenewError::StepDown, RENEW),
        (OnRenewError::Retry, LEAD_LIMIT),
    ] {
        let store = Arc::new(Scripted::default());
        store.then(&[Act::Answer]);
        store.then(&[Act::Fail(FailureKind::Transient); 9]);
        let mut run = start(&store, policy);
        let started = Instant::now();
        run.promoted().await;
        assert_eq!(run.demoted().await.1, LossReason::Unreachable);
        assert!(
            near(started.elapsed(), after),
            "{policy:?}: {:?}",
            started.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn with_retry_two_failures_before_the_deadline_keep_the_leadership() {
    let store = Arc::new(Scripted::default());
    store.then(&[
        Act::Answer,
        Act::Fail(FailureKind::Transient),
        Act::Fail(FailureKind::Ambiguous),
    ]);
    let mut run = start(&store, OnRenewError::Retry);
    let term = run.promoted().await;
    sleep(3 * LEASE).await;
    assert!(run.leads(&term));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_told_of_once_and_one_success_elects_a_leader() {
    let store = Arc::new(Scripted::default());
    store.prepare_failures.store(20, Ordering::SeqCst);
    let mut run = start(&store, OnRenewError::StepDown);
    let mut troubles = 0;
    loop {
        match run.next().await {
            Event::Trouble {
                code,
                message,
                fatal,
            } => {
                troubles += 1;
                assert_eq!(code, "unreachable");
                assert!(
                    message.contains("a scripted store: not there yet"),
                    "{message}"
                );
                assert!(!fatal);
            }
            Event::Promoted(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(troubles, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_found_out_by_the_next_attempt_which_begins_a_larger_term() {
    let store = Arc::new(Scripted::default());
    store.then(&[Act::Silence]);
    let mut run = start(&store, OnRenewError::StepDown);
    let started = Instant::now();
    let term = run.promoted().await;
    assert_eq!(term.token().number(), 2);
    assert!(
        started.elapsed() <= RENEW + Duration::from_millis(50),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_taken_lease_is_noticed_by_the_next_renewal() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    let term = run.promoted().await;
    store.taken_by(&owner("b", 2));
    assert_eq!(run.demoted().await, (term.token(), LossReason::Taken));
    let Event::LeaderChanged(leader) = run.next().await else {
        panic!("the new leader is told")
    };
    assert_eq!(leader.owner, owner("b", 2));
}

#[tokio::test(start_paused = true)]
async fn stopping_keeps_the_lease_until_the_callbacks_have_ended_and_then_releases_it() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    let term = run.promoted().await;
    run.command(Command::Stop);
    assert_eq!(run.demoted().await.1, LossReason::Stopped);
    assert!(!run.leads(&term), "leadership is over at once");
    sleep(LEASE - RENEW).await;
    assert_eq!(store.holder(), Some(run.owner.clone()), "the lease is not");
    assert_eq!(store.releases.load(Ordering::SeqCst), 0);
    run.command(Command::CallbacksEnded(term.token()));
    timeout(RENEW, &mut run.task).await.unwrap().unwrap();
    assert_eq!(store.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn callbacks_that_never_end_leave_the_lease_to_its_expiry_and_outliving_it_are_told_of() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    run.promoted().await;
    run.command(Command::Stop);
    let stopped = Instant::now();
    while !matches!(run.next().await, Event::Stopped) {}
    assert!(near(stopped.elapsed(), LEASE), "{:?}", stopped.elapsed());
    assert_eq!(store.releases.load(Ordering::SeqCst), 0);
    assert_eq!(store.holder(), Some(run.owner));
    let overrun = timeout(LEASE, run.events.recv()).await.unwrap();
    assert!(
        matches!(overrun, Some(Event::Overrun { .. })),
        "they outlive the lease: {overrun:?}"
    );
    run.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_request_to_the_store_is_told_of_with_what_came_of_it_and_how_long_it_took() {
    let store = Arc::new(Scripted::default());
    store.then(&[
        Act::AnswerAfter(RENEW / 2),
        Act::Answer,
        Act::Fail(FailureKind::Transient),
        Act::Silence,
    ]);
    let mut run = start(&store, OnRenewError::Retry);
    for (what, outcome, took) in [
        ("campaign", "held", RENEW / 2),
        ("renew", "held", Duration::ZERO),
        ("renew", "scripted", Duration::ZERO),
        ("renew", "givenUp", RENEW / 2),
        ("renew", "held", Duration::ZERO),
    ] {
        let told = run.attempted().await;
        assert_eq!((told.what, told.outcome), (what, outcome));
        assert!(near(told.took, took), "{told:?}");
    }
    run.command(Command::Stop);
    let (token, _) = run.demoted().await;
    run.command(Command::CallbacksEnded(token));
    let told = run.attempted().await;
    assert_eq!((told.what, told.outcome), ("release", "released"));
    let about = told
        .term
        .expect("it is about the term until its lease is left");
    assert_eq!(about.token(), token);
}

#[tokio::test(start_paused = true)]
async fn a_lease_won_while_stopping_is_released_unused() {
    let store = Arc::new(Scripted::default());
    store.then(&[Act::AnswerAfter(RENEW / 2)]);
    let mut run = start(&store, OnRenewError::StepDown);
    sleep(RENEW / 4).await;
    run.command(Command::Stop);
    (&mut run.task).await.unwrap();
    assert_eq!(store.holder(), None);
    assert_eq!(store.releases.load(Ordering::SeqCst), 1);
    while let Ok(event) = run.events.try_recv() {
        assert!(
            !matches!(event, Event::Promoted(_)),
            "fn never runs after stop()"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_campaigns_answer_no_longer_than_for_callbacks() {
    let store = Scripted::lending(40 * LEASE);
    store.then(&[Act::Silence]);
    let mut run = start_with(&store, OnRenewError::Retry, Timing::told(40 * LEASE));
    sleep(RENEW).await;
    run.command(Command::Stop);
    let asked = Instant::now();
    while !matches!(run.next().await, Event::Stopped) {}
    assert!(near(asked.elapsed(), LEASE), "{:?}", asked.elapsed());
    (&mut run.task).await.unwrap();
    // Nobody knows that it was granted: it runs out.
    assert_eq!(store.releases.load(Ordering::SeqCst), 0);
    assert_eq!(store.attempts.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_tried_three_times() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    let term = run.promoted().await;
    store.then(&[
        Act::Fail(FailureKind::Transient),
        Act::Fail(FailureKind::Ambiguous),
    ]);
    run.command(Command::Stop);
    run.command(Command::CallbacksEnded(term.token()));
    (&mut run.task).await.unwrap();
    assert_eq!(store.releases.load(Ordering::SeqCst), 3);
    assert_eq!(store.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn stepping_down_hands_over_and_stays_out_for_the_pause() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    let term = run.promoted().await;
    run.command(Command::StepDown { pause: 2 * LEASE });
    assert_eq!(run.demoted().await.1, LossReason::SteppedDown);
    run.command(Command::CallbacksEnded(term.token()));
    let stepped_down = Instant::now();
    let next = run.promoted().await;
    assert!(next.token() > term.token());
    assert!(
        near(stepped_down.elapsed(), 2 * LEASE),
        "{:?}",
        stepped_down.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_stalled_event_loop_gives_the_lease_up_without_releasing_it_and_campaigns_when_it_turns()
{
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    run.promoted().await;
    run.command(Command::LoopStalled);
    assert_eq!(run.demoted().await.1, LossReason::Stalled);
    let attempts = store.attempts.load(Ordering::SeqCst);
    sleep(4 * LEASE).await;
    assert_eq!(
        store.attempts.load(Ordering::SeqCst),
        attempts,
        "it does not campaign"
    );
    assert_eq!(store.releases.load(Ordering::SeqCst), 0);
    run.command(Command::LoopTurning);
    run.promoted().await;
}

#[tokio::test(start_paused = true)]
async fn callbacks_that_outlive_the_lease_are_told_of_once() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    let started = Instant::now();
    let term = run.promoted().await;
    store.taken_by(&owner("b", 2));
    run.demoted().await;
    let demoted = Instant::now();
    let overrun = loop {
        if let Event::Overrun {
            token,
            trace_id,
            since,
        } = run.next().await
        {
            assert_eq!(trace_id.as_deref(), Some(term.trace_id()));
            break (token, since);
        }
    };
    assert_eq!(overrun.0, term.token());
    assert!(
        near(overrun.1, demoted.elapsed()),
        "{overrun:?}, {:?}",
        demoted.elapsed()
    );
    assert!(
        near(started.elapsed(), LEASE - Duration::from_millis(250)),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_is_started_again() {
    let store = Arc::new(Scripted {
        notifies: true,
        ..Scripted::default()
    });
    let mut run = start(&store, OnRenewError::StepDown);
    run.promoted().await;
    sleep(5 * LEASE).await;
    let watches = store.watches.load(Ordering::SeqCst);
    assert!((3..=5).contains(&watches), "{watches}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_asks_the_store_once_per_interval() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    run.promoted().await;
    sleep(Duration::from_secs(60)).await;
    let attempts = store.attempts.load(Ordering::SeqCst);
    assert!((12..=14).contains(&attempts), "{attempts} in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_store_ends_the_campaign_and_not_the_process() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    run.promoted().await;
    store.then(&[Act::Panic]);
    let end = timeout(LEASE, &mut run.task).await.unwrap();
    assert!(end.unwrap_err().is_panic());
}

#[tokio::test(start_paused = true)]
async fn a_wake_after_a_suspension_only_looks_at_the_clock() {
    let store = Arc::new(Scripted::default());
    let mut run = start(&store, OnRenewError::StepDown);
    let term = run.promoted().await;
    run.woken.send_modify(|count| *count += 1);
    sleep(Duration::from_millis(1)).await;
    assert!(run.leads(&term));
}

/// What a lease is taken for until a server has told.
const UNTIL_TOLD: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn where_the_server_tells_its_leases_the_pace_follows_whatever_it_tells() {
    let store = Scripted::lending(Duration::from_secs(60));
    let mut run = start_with(&store, OnRenewError::Retry, Timing::told(UNTIL_TOLD));
    let term = run.promoted().await;
    let mut asked = 1;
    // The least and the most in ten minutes: every third of a lease, or a fifth more or less.
    for (lease, least, most) in [(60_000, 24, 38), (1_500, 999, 1_501), (15_000, 99, 151)] {
        store.lend(Duration::from_millis(lease));
        sleep(Duration::from_secs(25)).await; // Until it is told.
        let before = store.attempts.load(Ordering::SeqCst);
        assert!(before > asked);
        sleep(Duration::from_secs(600)).await;
        asked = store.attempts.load(Ordering::SeqCst);
        let asked = asked - before;
        assert!((least..=most).contains(&asked), "{lease} ms: {asked}");
        assert!(run.leads(&term));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_told_too_late_takes_no_request_away() {
    let store = Scripted::lending(UNTIL_TOLD);
    let mut run = start_with(&store, OnRenewError::Retry, Timing::told(UNTIL_TOLD));
    let first = run.promoted().await;
    store.lend(2 * UNTIL_TOLD);
    store.then(&[Act::AnswerAfter(Duration::from_secs(1))]);
    while store.attempts.load(Ordering::SeqCst) < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    run.clock.sleep(UNTIL_TOLD);
    assert_eq!(run.demoted().await.0, first.token());
    let demoted = Instant::now();
    let next = run.promoted().await;
    assert!(next.token() > first.token());
    assert!(
        near(demoted.elapsed(), Duration::ZERO),
        "{:?}",
        demoted.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_kept_for_callbacks_outlives_a_lost_renewal_also_where_it_is_told() {
    let store = Scripted::lending(UNTIL_TOLD);
    let mut run = start_with(&store, OnRenewError::Retry, Timing::told(UNTIL_TOLD));
    run.promoted().await;
    store.then(&[Act::AnswerAfter(20 * LEASE)]); // It is given up before, and not applied.
    run.command(Command::Stop);
    run.demoted().await;
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        let until = store.record.lock().unwrap().owner.as_ref().unwrap().2;
        assert!(until > Instant::now(), "somebody else may lead already");
    }
}

#[tokio::test(start_paused = true)]
async fn another_process_under_the_same_id_never_leads_too_and_is_told_of_once() {
    let store = Arc::new(Scripted::default());
    store.taken_by(&owner("a", 2)); // Of the campaign's own id, but of another process.
    let renewals = {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..4 {
                sleep(RENEW).await;
                store.renewed_by_its_owner();
            }
        })
    };
    let mut run = start(&store, OnRenewError::StepDown);
    let started = Instant::now();
    let mut troubles = 0;
    loop {
        match run.next().await {
            Event::Trouble { code, message, .. } => {
                troubles += 1;
                assert_eq!(code, "id-shared");
                assert!(
                    message.contains("give each process its own instanceId"),
                    "{message}"
                );
            }
            Event::Promoted(_) => break,
            Event::LeaderChanged(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(troubles, 1);
    assert!(renewals.is_finished());
    assert!(
        started.elapsed() >= 4 * RENEW + LEASE,
        "not before that lease has expired"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_process_of_the_same_id_left_is_no_other_process() {
    let store = Arc::new(Scripted::default());
    store.taken_by(&owner("a", 2));
    let mut run = start(&store, OnRenewError::StepDown);
    loop {
        match run.next().await {
            Event::Promoted(_) => break,
            Event::LeaderChanged(_) => {}
            other => panic!("{other:?}"),
        }
    }
}
