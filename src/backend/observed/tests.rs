//! The adapter on a store in memory, whose answers can be held back, lost and overtaken, and on a clock that
//! only moves when it is told to.

mod shelf;
mod storm;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use self::shelf::{Page, Shelf, Twist};
use super::*;
use crate::lease::{FailureKind, InstanceId};
use crate::observation::Numbering;

const LEASE: Duration = Duration::from_secs(15);
const ALMOST: Duration = Duration::from_secs(14);
const SECOND: Duration = Duration::from_secs(1);

// ---- the instances ----

#[derive(Debug, Clone, Default)]
struct HandClock(Arc<AtomicU64>);

impl HandClock {
    fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap();
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::ORIGIN + 100 * SECOND + Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// One process with one candidate.
#[derive(Clone)]
struct Instance {
    store: Arc<Observed<Shelf>>,
    owner: Owner,
    lease: Duration,
}

impl Instance {
    fn new(shelf: &Shelf, clock: &HandClock, id: &str) -> Self {
        Self {
            store: Arc::new(Observed::new(shelf.clone(), Arc::new(clock.clone()))),
            owner: owner(id, 1),
            lease: LEASE,
        }
    }

    async fn attempt(&self, term: Option<Token>) -> Result<Outcome, BackendError> {
        let attempt = Attempt {
            election: &election(),
            owner: &self.owner,
            duration: self.lease,
            term,
        };
        self.store.attempt(&attempt).await
    }

    async fn campaign(&self) -> Outcome {
        self.attempt(None).await.unwrap()
    }

    async fn renew(&self, term: Token) -> Outcome {
        self.attempt(Some(term)).await.unwrap()
    }

    async fn win(&self) -> Token {
        held(&self.campaign().await)
    }

    async fn release(&self, term: Token) -> bool {
        let election = election();
        let release = self.store.release(&election, &self.owner, term);
        release.await.unwrap()
    }

    async fn peek(&self) -> Option<Leader> {
        self.store.peek(&election()).await.unwrap()
    }

    fn hears(&self, page: Option<&Page>) -> Option<Hint> {
        self.store.saw(&election(), page.cloned())
    }

    /// An attempt that goes on beside the test.
    fn begin(&self, term: Option<Token>) -> JoinHandle<Result<Outcome, BackendError>> {
        let this = self.clone();
        tokio::spawn(async move { this.attempt(term).await })
    }
}

/// A store, its clock, and two instances.
fn world() -> (Shelf, HandClock, Instance, Instance) {
    let (shelf, clock) = (Shelf::default(), HandClock::default());
    let [a, b] = ["a", "b"].map(|id| Instance::new(&shelf, &clock, id));
    (shelf, clock, a, b)
}

fn election() -> ElectionName {
    ElectionName::new("leader").unwrap()
}

fn owner(id: &str, nonce: u64) -> Owner {
    Owner {
        instance: InstanceId::new(id).unwrap(),
        nonce,
    }
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn holder(owner: &Owner, token: Token, duration: Duration) -> Holder {
    Holder {
        leader: Some(Leader {
            owner: owner.clone(),
            token,
        }),
        lasts: Lasts::For(duration),
    }
}

/// Of another program, under a name that cannot be read.
fn hidden() -> Holder {
    Holder {
        leader: None,
        lasts: Lasts::For(LEASE),
    }
}

#[track_caller]
fn held(outcome: &Outcome) -> Token {
    match outcome {
        Outcome::Held { token, .. } => *token,
        Outcome::Other { .. } => panic!("not held: {outcome:?}"),
    }
}

#[track_caller]
fn denied(outcome: &Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Other { remaining, .. } => *remaining,
        Outcome::Held { .. } => panic!("held: {outcome:?}"),
    }
}

/// All that can go on now has gone on.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn hold() -> (oneshot::Sender<()>, oneshot::Receiver<()>) {
    oneshot::channel()
}

// ---- expiry, hand-over and take-over ----

#[tokio::test]
async fn a_lease_is_taken_over_when_its_record_stood_still_for_its_own_duration() {
    let (shelf, clock, mut a, b) = world();
    a.lease = 2 * LEASE;
    let first = a.win().await;
    assert_eq!(denied(&b.campaign().await), Some(2 * LEASE));
    clock.advance(LEASE + ALMOST);
    assert_eq!(denied(&b.campaign().await), Some(SECOND));
    clock.advance(SECOND);
    shelf.asked();
    assert!(b.win().await > first);
    assert_eq!(shelf.asked(), ["write"], "a take-over is one write");
    assert_eq!(denied(&a.renew(first).await), Some(LEASE));
}

#[tokio::test]
async fn a_renewed_lease_is_waited_for_anew() {
    let (_, clock, a, b) = world();
    let term = a.win().await;
    for _ in 0..5 {
        assert_eq!(denied(&b.campaign().await), Some(LEASE));
        clock.advance(ALMOST);
        assert_eq!(held(&a.renew(term).await), term);
    }
    clock.advance(LEASE);
    // It saw none of the last renewal.
    assert_eq!(denied(&b.campaign().await), Some(LEASE));
}

#[tokio::test]
async fn a_hand_over_that_a_watch_told_of_is_one_write() {
    let (shelf, _, a, b) = world();
    let term = a.win().await;
    b.campaign().await;
    assert!(a.release(term).await);
    assert_eq!(b.hears(shelf.page().as_ref()), Some(Hint::Free));
    shelf.asked();
    assert!(b.win().await > term);
    assert_eq!(shelf.asked(), ["write"]);
}

#[tokio::test]
async fn a_renewal_is_one_write_also_while_the_watch_tells_of_each() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    shelf.asked();
    for _ in 0..5 {
        let hint = a.hears(shelf.page().as_ref());
        assert!(matches!(hint, Some(Hint::Alive { .. })));
        assert_eq!(held(&a.renew(term).await), term);
        assert_eq!(shelf.asked(), ["write"]);
    }
}

#[tokio::test]
async fn a_record_whose_version_goes_back_and_forth_is_waited_for_each_time() {
    let (shelf, clock, _, b) = world();
    let go = holder(&owner("go", 0), token(7), LEASE);
    let (first, second) = (shelf.put(Some(go.clone())), shelf.put(Some(go)));
    for _ in 0..3 {
        for page in [&first, &second] {
            shelf.lock().page = Some(page.clone());
            assert_eq!(denied(&b.campaign().await), Some(LEASE));
            clock.advance(ALMOST);
            assert_eq!(denied(&b.campaign().await), Some(SECOND));
        }
    }
}

#[tokio::test]
async fn another_programs_lease_is_waited_out_and_then_taken_under_a_larger_token() {
    let (shelf, clock, _, b) = world();
    shelf.put(Some(holder(&owner("go", 0), token(7), 3 * SECOND)));
    assert_eq!(denied(&b.campaign().await), Some(3 * SECOND));
    clock.advance(3 * SECOND);
    assert!(b.win().await > token(7));
}

#[tokio::test]
async fn one_that_does_not_say_its_duration_is_waited_out_like_a_lease_of_ones_own() {
    let (shelf, clock, _, b) = world();
    let mut silent = holder(&owner("go", 0), token(7), LEASE);
    silent.lasts = Lasts::Unsaid;
    let page = shelf.put(Some(silent));
    // Heard of before anybody asked: it is told as alive, and measured from the first attempt.
    let hint = b.hears(Some(&page));
    assert!(matches!(hint, Some(Hint::Alive { .. })), "{hint:?}");
    clock.advance(LEASE);
    assert_eq!(denied(&b.campaign().await), Some(LEASE));
    clock.advance(LEASE);
    b.win().await;
}

// ---- news that overtake each other ----

#[tokio::test]
async fn an_answer_that_an_event_overtook_does_not_make_a_take_over_wait_twice() {
    let (shelf, clock, a, b) = world();
    let term = a.win().await;
    b.campaign().await;
    let (go, held_back) = hold();
    shelf.on_read(Twist::HoldAnswer(held_back));
    let attempt = b.begin(None);
    settle().await;
    a.renew(term).await;
    b.hears(shelf.page().as_ref());
    go.send(()).unwrap();
    assert_eq!(denied(&attempt.await.unwrap().unwrap()), Some(LEASE));
    // The leader dies now.
    clock.advance(LEASE);
    shelf.asked();
    assert!(b.win().await > term);
    assert_eq!(shelf.asked(), ["write"]);
}

#[tokio::test]
async fn answers_that_are_always_overtaken_are_believed_in_the_end() {
    let (shelf, _, a, b) = world();
    let term = a.win().await;
    let mut holds = VecDeque::new();
    for _ in 0..READS {
        let (go, held_back) = hold();
        shelf.on_read(Twist::HoldAnswer(held_back));
        holds.push_back(go);
    }
    shelf.asked();
    let attempt = b.begin(None);
    for go in holds {
        settle().await;
        a.renew(term).await;
        b.hears(shelf.page().as_ref());
        go.send(()).unwrap();
    }
    assert_eq!(denied(&attempt.await.unwrap().unwrap()), Some(LEASE));
    let reads = shelf.asked().iter().filter(|what| **what == "read").count();
    assert_eq!(reads, READS as usize);
}

#[tokio::test]
async fn events_that_lag_behind_a_write_of_ones_own_cost_no_request() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    let mut told = VecDeque::from([shelf.page().unwrap()]);
    shelf.asked();
    for _ in 0..10 {
        assert_eq!(held(&a.renew(term).await), term);
        told.push_back(shelf.page().unwrap());
        assert_eq!(shelf.asked(), ["write"]);
        // The watch is always one renewal behind.
        a.hears(told.pop_front().as_ref());
    }
}

#[tokio::test]
async fn an_event_that_came_before_the_answer_to_the_write_changes_nothing() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    a.hears(shelf.page().as_ref());
    let (go, held_back) = hold();
    shelf.on_write(Twist::HoldAnswer(held_back));
    let renewal = a.begin(Some(term));
    settle().await;
    a.hears(shelf.page().as_ref());
    go.send(()).unwrap();
    assert_eq!(held(&renewal.await.unwrap().unwrap()), term);
    // Later events count at once.
    shelf.put(None);
    assert_eq!(a.hears(shelf.page().as_ref()), Some(Hint::Free));
    shelf.asked();
    assert!(held(&a.campaign().await) > term);
    assert_eq!(shelf.asked(), ["write"]);
}

#[tokio::test]
async fn an_event_that_the_watch_left_out_costs_one_conflict_and_no_term() {
    let (shelf, clock, a, _) = world();
    let term = a.win().await;
    // Of its own write the watch never tells, only of what came after it.
    let foreign = shelf.put(Some(holder(&owner("go", 0), token(7), LEASE)));
    let hint = a.hears(Some(&foreign));
    assert!(matches!(hint, Some(Hint::Alive { token: t, .. }) if t == token(7)));
    shelf.asked();
    assert_eq!(denied(&a.renew(term).await), Some(LEASE));
    assert_eq!(shelf.asked(), ["write", "read"]);
    clock.advance(LEASE);
    assert!(a.win().await > term);
}

#[tokio::test]
async fn a_term_that_followed_a_release_counts_from_its_event_though_the_watch_left_the_release_out()
 {
    let (shelf, clock, a, b) = world();
    let term = a.win().await;
    assert!(a.release(term).await);
    let next = b.win().await;
    a.hears(shelf.page().as_ref());
    clock.advance(LEASE);
    assert!(a.win().await > next);
}

#[tokio::test]
async fn an_event_while_a_write_was_on_its_way_is_not_forgotten_when_it_meets_a_conflict() {
    let (shelf, clock, a, b) = world();
    let term = a.win().await;
    b.campaign().await;
    clock.advance(LEASE);
    // It wants to take over, and the leader was slow, not dead.
    let (go, held_back) = hold();
    shelf.on_write(Twist::HoldRequest(held_back));
    let attempt = b.begin(None);
    settle().await;
    assert_eq!(held(&a.renew(term).await), term);
    b.hears(shelf.page().as_ref());
    clock.advance(SECOND);
    go.send(()).unwrap();
    assert_eq!(
        denied(&attempt.await.unwrap().unwrap()),
        Some(ALMOST),
        "counted from the event"
    );
}

// ---- conflicts and lost answers ----

#[tokio::test]
async fn a_conflict_is_looked_into_within_the_same_attempt() {
    let (shelf, _, a, b) = world();
    let term = a.win().await;
    assert!(a.release(term).await);
    b.campaign().await;
    // It leads; now its renewal meets a write of somebody who changed nothing of the term.
    let term = b.win().await;
    shelf.on_write(Twist::Rival);
    shelf.asked();
    assert_eq!(held(&b.renew(term).await), term);
    assert_eq!(shelf.asked(), ["write", "read", "write"]);
}

#[tokio::test]
async fn what_met_a_conflict_is_not_written_over_again() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    shelf.on_write(Twist::Rival);
    shelf.on_read(Twist::LoseAnswer);
    a.attempt(Some(term)).await.unwrap_err();
    shelf.asked();
    assert_eq!(held(&a.renew(term).await), term);
    assert_eq!(shelf.asked(), ["read", "write"]);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_conflicts_ends() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    for _ in 0..3 * TRIES {
        shelf.on_write(Twist::Rival);
    }
    shelf.asked();
    let error = a.attempt(Some(term)).await.unwrap_err();
    assert_eq!(
        (error.kind, error.code),
        (FailureKind::Ambiguous, "conflict")
    );
    assert!(shelf.asked().len() <= 2 * TRIES as usize);
    let release = a.store.release(&election(), &a.owner, term).await;
    assert_eq!(release.unwrap_err().code, "conflict");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_the_very_version_it_shows_is_asked_ever_more_slowly_and_soon_named() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    shelf.lock().refuses = true;
    for what in ["renewal", "release"] {
        let begun = tokio::time::Instant::now();
        shelf.lock().writes_at.clear();
        let error = if what == "renewal" {
            a.attempt(Some(term)).await.unwrap_err()
        } else {
            let release = a.store.release(&election(), &a.owner, term).await;
            release.unwrap_err()
        };
        assert_eq!(
            (error.kind, error.code),
            (FailureKind::Ambiguous, "conflict"),
            "{what}"
        );
        // Long before an attempt of the default timing is over, whose limit would hide the reason.
        assert!(
            begun.elapsed() < 2 * SECOND,
            "{what}: {:?}",
            begun.elapsed()
        );
        let writes = shelf.lock().writes_at.clone();
        assert_eq!(writes.len(), TRIES as usize, "{what}");
        let pauses: Vec<_> = writes.windows(2).map(|two| two[1] - two[0]).collect();
        for (number, pause) in pauses.iter().enumerate().skip(1) {
            let doubled = PAUSE * 2_u32.pow(u32::try_from(number).unwrap() - 1);
            assert!(
                *pause >= doubled.min(LONGEST_PAUSE) / 2,
                "{what}: {pauses:?}"
            );
        }
        // It is told at once when nothing is tried any more.
        assert!(writes.last().unwrap().elapsed() < PAUSE, "{what}");
    }
}

#[tokio::test]
async fn after_a_refused_write_that_may_have_been_applied_nothing_is_surely_undone() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    // The second copy is refused because of what the first one did.
    shelf.on_write(Twist::Twice);
    shelf.on_read(Twist::Fail);
    let error = a.attempt(Some(term)).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Ambiguous, "{error}");
    assert_eq!(held(&a.renew(term).await), term);
    // The next write fails instead.
    shelf.on_write(Twist::Twice);
    shelf.on_write(Twist::Fail);
    let error = a.attempt(Some(term)).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Ambiguous, "{error}");
    shelf.on_write(Twist::Twice);
    shelf.on_read(Twist::Fail);
    let release = a.store.release(&election(), &a.owner, term).await;
    assert_eq!(release.unwrap_err().kind, FailureKind::Ambiguous);
    assert_eq!(shelf.page().unwrap().holder, None, "it was applied");
    assert!(!a.release(term).await);
    shelf.on_write(Twist::Twice);
    shelf.on_read(Twist::Fail);
    let error = a.attempt(None).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Ambiguous, "{error}");
    let lost = shelf.page().unwrap().last.unwrap();
    assert!(lost > term && a.win().await > lost);

    // Where nothing was written before, a failure leaves no doubt.
    let (shelf, _, a, _) = world();
    shelf.on_read(Twist::Fail);
    let error = a.attempt(None).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Transient, "{error}");
    shelf.on_write(Twist::Fail);
    let error = a.attempt(None).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Transient, "{error}");
}

#[tokio::test]
async fn a_campaign_whose_answer_was_lost_leads_under_a_new_token() {
    let (shelf, _, a, _) = world();
    shelf.on_write(Twist::LoseAnswer);
    let error = a.attempt(None).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Ambiguous);
    let lost = shelf.page().unwrap().last.unwrap();
    assert!(a.win().await > lost);
}

#[tokio::test]
async fn a_renewal_whose_answer_was_lost_keeps_its_term() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    shelf.on_write(Twist::LoseAnswer);
    a.attempt(Some(term)).await.unwrap_err();
    assert_eq!(held(&a.renew(term).await), term);
}

#[tokio::test]
async fn a_future_that_is_dropped_writes_nothing_later() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    let before = shelf.page();
    for over_known in [true, false] {
        if !over_known {
            *a.store.lock() = Elections::new();
        }
        let (go, held_back) = hold();
        let twist = Twist::HoldRequest(held_back);
        if over_known {
            shelf.on_write(twist);
        } else {
            shelf.on_read(twist);
        }
        let attempt = a.begin(Some(term));
        settle().await;
        attempt.abort();
        let _ = go.send(());
        settle().await;
        assert_eq!(shelf.page(), before);
    }
}

#[tokio::test]
async fn of_two_that_take_over_at_once_one_is_denied_by_the_other() {
    let (shelf, clock, a, b) = world();
    let c = Instance::new(&shelf, &clock, "c");
    a.win().await;
    b.campaign().await;
    c.campaign().await;
    clock.advance(LEASE);
    let (go, held_back) = hold();
    shelf.on_write(Twist::HoldRequest(held_back));
    let slow = b.begin(None);
    settle().await;
    let term = c.win().await;
    go.send(()).unwrap();
    assert_eq!(denied(&slow.await.unwrap().unwrap()), Some(LEASE));
    assert_eq!(held(&c.renew(term).await), term);
}

// ---- records that were deleted, released or changed by others ----

#[tokio::test]
async fn a_renewal_that_made_the_record_anew_is_a_lost_term() {
    let (shelf, _, a, _) = world();
    shelf.lock().makes = true;
    let term = a.win().await;
    shelf.delete();
    assert_eq!(denied(&a.renew(term).await), None);
    assert!(a.win().await > term);
}

#[tokio::test]
async fn a_renewal_of_a_deleted_record_is_a_lost_term_and_tokens_go_on_growing() {
    let (shelf, _, a, b) = world();
    shelf.put(None);
    shelf.lock().page.as_mut().unwrap().last = Some(token(Numbering::LAST - 100));
    let term = a.win().await;
    b.campaign().await;
    shelf.delete();
    assert_eq!(denied(&a.renew(term).await), None);
    // Larger than the time makes it: from what it saw.
    assert!(b.win().await > term);
}

#[tokio::test]
async fn a_release_over_what_is_known_no_more_looks_again_and_ends_its_own_term_only() {
    let (shelf, clock, a, b) = world();
    let term = a.win().await;
    // Somebody touches the record; the term is the same.
    let page = shelf.page().unwrap();
    shelf.put(page.holder);
    shelf.asked();
    assert!(a.release(term).await);
    assert_eq!(shelf.asked(), ["write", "read", "write"]);
    assert_eq!(shelf.page().unwrap().holder, None);
    assert_eq!(shelf.page().unwrap().last, Some(term));

    let term = a.win().await;
    b.campaign().await;
    clock.advance(LEASE);
    let theirs = b.win().await;
    assert!(!a.release(term).await, "it is somebody else's by now");
    assert_eq!(held(&b.renew(theirs).await), theirs);
    assert!(!a.release(theirs).await, "nor by its number alone");
}

#[tokio::test]
async fn a_release_of_what_is_gone_is_none() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    shelf.delete();
    assert!(!a.release(term).await);
    assert_eq!(shelf.page(), None);
}

#[tokio::test]
async fn a_renewal_is_never_denied_by_what_is_known_already() {
    let (shelf, _, a, _) = world();
    let term = a.win().await;
    a.hears(shelf.page().as_ref());
    // A late event, or one from a cache that lags.
    a.hears(None);
    let mut old = shelf.page().unwrap();
    old.version = 77;
    old.holder = Some(holder(&owner("z", 1), token(3), LEASE));
    a.hears(Some(&old));
    assert_eq!(held(&a.renew(term).await), term);
}

// ---- tokens ----

#[tokio::test]
async fn a_token_that_leaves_no_room_bars_nobody() {
    let (shelf, clock, a, b) = world();
    let first = a.win().await;
    b.campaign().await;
    a.release(first).await;
    for absurd in [Token::MAX, Numbering::LAST + 1] {
        let mut page = shelf.put(None);
        page.last = Some(token(absurd));
        shelf.lock().page = Some(page);
        let term = b.win().await;
        assert!(first < term && term.number() < Numbering::LAST, "{term}");
        b.release(term).await;
    }
    // Nor one who holds the lease with it.
    shelf.put(Some(holder(&owner("z", 1), token(Token::MAX), LEASE)));
    let denial = b.campaign().await;
    let remaining = Some(LEASE);
    assert_eq!(
        denial,
        Outcome::Other {
            leader: None,
            remaining
        }
    );
    assert_eq!(b.peek().await, None);
    clock.advance(LEASE);
    assert!(b.win().await.number() < Numbering::LAST);
}

// ---- hints ----

#[tokio::test]
async fn a_living_holder_whose_name_cannot_be_read_is_hinted_at_once() {
    let (shelf, _, a, b) = world();
    a.win().await;
    b.campaign().await;
    assert_eq!(b.hears(Some(&shelf.put(Some(hidden())))), Some(Hint::Free));
    for _ in 0..5 {
        assert_eq!(b.hears(Some(&shelf.put(Some(hidden())))), None);
    }
    assert_eq!(b.hears(Some(&shelf.put(None))), Some(Hint::Free));
    assert_eq!(b.hears(None), Some(Hint::Free));
}

// ---- looking on ----

#[tokio::test]
async fn peeking_ends_with_the_lease_and_changes_no_attempt() {
    let (shelf, clock, a, b) = world();
    // First one that never asked for a lease itself, so that it has no duration of its own.
    for lasts in [Lasts::Unsaid, Lasts::For(LEASE)] {
        let mut leader = holder(&owner("go", 0), token(7), LEASE);
        leader.lasts = lasts;
        shelf.put(Some(leader.clone()));
        assert_eq!(b.peek().await, leader.leader);
        clock.advance(2 * LEASE);
        assert_eq!(b.peek().await, None, "{lasts:?}");
        assert_eq!(denied(&a.campaign().await), Some(LEASE));
        assert_eq!(denied(&b.campaign().await), Some(LEASE));
    }
}

// ---- many elections ----

#[tokio::test]
async fn elections_that_nobody_asks_for_are_forgotten_and_no_others() {
    let (_, clock, a, _) = world();
    let long = 2 * Duration::from_secs(60 * 60);
    let asks = async |name: &str, duration| {
        let attempt = Attempt {
            election: &ElectionName::new(name).unwrap(),
            owner: &a.owner,
            duration,
            term: None,
        };
        a.store.attempt(&attempt).await.unwrap();
    };
    asks("kept by its lease", long).await;
    for round in 0..50 {
        for number in 0..ROOM {
            asks(&format!("{round} {number}"), LEASE).await;
        }
        asks("kept by its asking", LEASE).await;
        clock.advance(Duration::from_secs(4 * 60));
    }
    let elections = a.store.lock();
    let is_known = |name| {
        elections
            .known
            .contains_key(&ElectionName::new(name).unwrap())
    };
    assert!(is_known("kept by its lease") && is_known("kept by its asking"));
    assert!(!is_known("0 0"));
    // Those of the last ten minutes, and as many again.
    assert!(
        elections.known.len() < 8 * ROOM,
        "{}",
        elections.known.len()
    );
}

// ---- what is logged ----

/// Whoever reads the log, and looks whether it is told while somebody must wait for it.
struct Reader {
    store: Arc<Observed<Shelf>>,
    warnings: Arc<AtomicU64>,
}

impl<S: tracing::Subscriber> Layer<S> for Reader {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        assert!(self.store.elections.try_lock().is_ok(), "{event:?}");
        if *event.metadata().level() == tracing::Level::WARN {
            self.warnings.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn what_is_odd_is_logged_once_and_not_under_the_lock() {
    let (shelf, _, a, _) = world();
    let warnings = Arc::<AtomicU64>::default();
    let reader = Reader {
        store: Arc::clone(&a.store),
        warnings: Arc::clone(&warnings),
    };
    let _logging = tracing_subscriber::registry().with(reader).set_default();
    let mut odd = holder(&owner("go", 0), token(7), LEASE);
    odd.lasts = Lasts::Unsaid;
    for _ in 0..3 {
        a.hears(Some(&shelf.put(Some(odd.clone()))));
        a.campaign().await;
        a.hears(Some(&shelf.put(Some(odd.clone()))));
    }
    assert_eq!(warnings.load(Ordering::SeqCst), 1);
    odd.leader.as_mut().unwrap().token = token(Token::MAX);
    for _ in 0..3 {
        shelf.put(Some(odd.clone()));
        a.campaign().await;
    }
    assert_eq!(warnings.load(Ordering::SeqCst), 2);
}
