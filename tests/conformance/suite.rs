//! What every store must do, whatever it is made of.

mod network;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use whenleader::backend::{self, Attempt, Backend, BackendError, StoreOptions};
use whenleader::clock::SystemClock;
use whenleader::lease::{
    ElectionName, FailureKind, Hint, InstanceId, Leader, Outcome, Owner, Token,
};

pub use self::network::*;
use crate::support::eventually;

/// Long enough not to expire by itself while a test runs.
pub const LONG: Duration = Duration::from_secs(60);
/// Short enough to wait for, long enough for a slow machine.
pub const SHORT: Duration = Duration::from_millis(600);

/// A store to test, as several processes would see it.
pub trait Fixture: Sized + Send + Sync + 'static {
    /// `None`: it cannot be had here, which was reported.
    async fn start(test: &str) -> Option<Self>;
    /// The store as one more process sees it.
    fn open(&self) -> Arc<dyn Backend>;
    /// Writes rubbish where the record of that election is.
    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]);
    /// Deletes all that is stored about that election.
    async fn forget(&self, election: &ElectionName);
    /// All that lies there, whatever it is, by names for people.
    async fn list(&self) -> Vec<String>;
    /// Whether rubbish is waited out like a lease (or stays until somebody mends it).
    const RUBBISH_EXPIRES: bool;
    /// Leases are rounded up to a multiple of it.
    const STEP: Duration = Duration::from_millis(1);
    /// Names that it must be able to hold beside each other.
    const ODD_NAMES: &[&str] = &[
        "leader",
        "Leader",
        "cluster:leader",
        "a/b",
        "a\\b",
        "..",
        ".",
        "a b",
        "🦀",
        "é",
        "e\u{301}",
        "%2e%2e",
        "{x}",
        "}",
        "*",
        "bell",
        "con",
        "x:lease",
        "'; --",
        "$(x)",
    ];

    /// A process that is ready to elect.
    async fn client(&self, id: &str) -> Client {
        Client::of(self.open(), id).await
    }
}

/// One process that uses the store.
pub struct Client {
    pub backend: Arc<dyn Backend>,
    pub owner: Owner,
}

pub fn open(url: &str) -> Arc<dyn Backend> {
    open_with(url, &StoreOptions::new("."))
}

pub fn open_with(url: &str, options: &StoreOptions) -> Arc<dyn Backend> {
    backend::open(url, options, Arc::new(SystemClock)).expect("a good URL")
}

pub fn name(name: &str) -> ElectionName {
    ElectionName::new(name).expect("a good name")
}

pub fn owner(id: &str) -> Owner {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    Owner {
        instance: InstanceId::new(id).expect("a good id"),
        nonce: NONCE.fetch_add(1, Ordering::Relaxed),
    }
}

/// A process that looked at nothing yet.
pub fn unprepared(url: &str) -> Client {
    Client {
        backend: open(url),
        owner: owner("unprepared"),
    }
}

/// One that waits for no answer longer than this, and looked at nothing yet.
pub fn impatient(url: &str) -> Client {
    let mut options = StoreOptions::new(".");
    options.request_timeout = Duration::from_millis(600);
    options.connect_timeout = Duration::from_millis(600);
    let backend = backend::open(url, &options, Arc::new(SystemClock)).expect("a good URL");
    Client {
        backend,
        owner: owner("impatient"),
    }
}

/// After how long a [`patient`] one tries another connection.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What whoever may hear some elections listens to.
pub struct PartlyHeard {
    pub may: [ElectionName; 3],
    pub never: [ElectionName; 2],
    pub heard: [Hearing; 3],
    pub unheard: [Hearing; 2],
}

/// Of a user who may hear elections whose names begin with `may-`, and no other ones: those are heard, and each of the
/// others is told once that it is not.
pub async fn hears_what_it_may(far: &Client, near: &Client) -> PartlyHeard {
    let may = ["may-one", "may-two", "may-late"].map(name);
    let never = ["never-one", "never-two"].map(name);
    let ([one, two, late], [neither, nor]) = (&may, &never);
    // At once, so that one request asks for all of them; and then one that is late.
    let [one, neither, two, nor] = [one, neither, two, nor].map(|election| far.listen(election));
    let (mut heard, mut unheard) = ([one, two], [neither, nor]);
    for hearing in &mut unheard {
        assert_eq!(hearing.next().await, Hint::Blind);
    }
    for hearing in &mut heard {
        assert_eq!(hearing.next().await, Hint::Watching);
    }
    let [one, two] = heard;
    let mut heard = [one, two, far.watch(late).await];
    for (election, hearing) in may.iter().zip(&mut heard) {
        let token = near.win(election, LONG).await;
        assert!(matches!(hearing.next().await, Hint::Alive { token: t, .. } if t == token));
        assert!(near.release(election, token).await);
        assert_eq!(hearing.next().await, Hint::Free);
    }
    for hearing in &mut unheard {
        assert_eq!(hearing.rest(), []);
    }
    PartlyHeard {
        may,
        never,
        heard,
        unheard,
    }
}

/// Waits for long, and not for long on one connection.
pub async fn patient(url: &str) -> Client {
    let mut options = StoreOptions::new(".");
    options.request_timeout = Duration::from_secs(30);
    options.connect_timeout = Duration::from_secs(30);
    options.patience = PATIENCE;
    Client::of(open_with(url, &options), "patient").await
}

/// How an attempt fails.
pub async fn fails(client: &Client, kind: FailureKind, code: &str) -> BackendError {
    let attempt = client.attempt(&name("leader"), LONG, None).await;
    let error = attempt.expect_err("a failure");
    assert_eq!((error.kind, error.code), (kind, code), "{error}");
    error
}

/// Why nobody can elect there.
pub async fn refused(url: &str, code: &str) -> BackendError {
    let error = open(url).prepare().await.expect_err(url);
    let expected = (FailureKind::Fatal, code);
    assert_eq!((error.kind, error.code), expected, "{url}: {error}");
    error
}

impl Client {
    pub async fn new(url: &str, id: &str) -> Self {
        Self::of(open(url), id).await
    }

    /// Makes sure that the store can be used.
    pub async fn of(backend: Arc<dyn Backend>, id: &str) -> Self {
        let owner = owner(id);
        let client = Self { backend, owner };
        // A busy machine is no reason to give up: nor is it for a campaign.
        let mut tries = 1..5;
        while let Err(error) = client.backend.prepare().await {
            let again = error.code == "timeout" && tries.next().is_some();
            assert!(again, "the store cannot be used: {error}");
            eprintln!("{id}: once more, as {error}");
        }
        client
    }

    pub async fn attempt(
        &self,
        election: &ElectionName,
        duration: Duration,
        term: Option<Token>,
    ) -> Result<Outcome, BackendError> {
        let owner = &self.owner;
        self.backend
            .attempt(&Attempt {
                election,
                owner,
                duration,
                term,
            })
            .await
    }

    pub async fn campaign(&self, election: &ElectionName, duration: Duration) -> Outcome {
        self.attempt(election, duration, None)
            .await
            .expect("an outcome")
    }

    pub async fn renew(&self, election: &ElectionName, duration: Duration, term: Token) -> Outcome {
        self.attempt(election, duration, Some(term))
            .await
            .expect("an outcome")
    }

    pub async fn win(&self, election: &ElectionName, duration: Duration) -> Token {
        held(self.campaign(election, duration).await)
    }

    pub async fn release(&self, election: &ElectionName, token: Token) -> bool {
        self.backend
            .release(election, &self.owner, token)
            .await
            .expect("an answer")
    }

    pub async fn leader(&self, election: &ElectionName) -> Option<Leader> {
        self.backend.peek(election).await.expect("an answer")
    }

    /// Campaigns until it wins, at the moments that the answers tell, as a candidate does.
    pub async fn take_over(&self, election: &ElectionName, duration: Duration) -> Token {
        loop {
            match self.campaign(election, duration).await {
                Outcome::Held { token, .. } => return token,
                Outcome::Other { remaining, .. } => {
                    let wait = remaining.unwrap_or(Duration::from_millis(20));
                    tokio::time::sleep(wait.max(Duration::from_millis(2))).await;
                }
            }
        }
    }

    /// Watches, and has seen that the watch works.
    pub async fn watch(&self, election: &ElectionName) -> Hearing {
        let mut hearing = self.listen(election);
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        hearing
    }

    /// Watches, whatever comes of it.
    pub fn listen(&self, election: &ElectionName) -> Hearing {
        let (hints, receiver) = mpsc::channel(64);
        let watch = Arc::clone(&self.backend)
            .watch(election.clone(), hints)
            .expect("a store that notifies");
        Hearing {
            receiver,
            task: tokio::spawn(watch),
        }
    }
}

pub struct Hearing {
    receiver: mpsc::Receiver<Hint>,
    task: tokio::task::JoinHandle<()>,
}

impl Hearing {
    /// The next hint, whatever it is.
    pub async fn next(&mut self) -> Hint {
        self.until("anything", |_| true).await
    }

    /// What was heard so far and is not taken yet.
    pub fn rest(&mut self) -> Vec<Hint> {
        std::iter::from_fn(|| self.receiver.try_recv().ok()).collect()
    }

    pub async fn until(&mut self, what: &str, wanted: impl Fn(Hint) -> bool) -> Hint {
        let heard = async {
            loop {
                let hint = self
                    .receiver
                    .recv()
                    .await
                    .expect("a watch does not end by itself");
                if wanted(hint) {
                    return hint;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), heard)
            .await
            .unwrap_or_else(|_| panic!("never heard: {what}"))
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[allow(clippy::needless_pass_by_value)]
pub fn held(outcome: Outcome) -> Token {
    match outcome {
        Outcome::Held { token, .. } => token,
        Outcome::Other { .. } => panic!("not held: {outcome:?}"),
    }
}

/// Who holds it instead, and for how long.
pub fn denied(outcome: Outcome) -> (Option<Leader>, Option<Duration>) {
    match outcome {
        Outcome::Other { leader, remaining } => (leader, remaining),
        Outcome::Held { .. } => panic!("held: {outcome:?}"),
    }
}

pub fn leading(client: &Client, token: Token) -> Leader {
    Leader {
        owner: client.owner.clone(),
        token,
    }
}

/// Runs every sentence of the suite against one store.
#[macro_export]
macro_rules! conformance {
    ($fixture:ty; $($sentence:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $sentence() {
                use $crate::suite::Fixture;
                let Some(store) = <$fixture>::start(stringify!($sentence)).await else { return };
                $crate::suite::$sentence(&store).await;
            }
        )*
    };
    ($fixture:ty) => {
        $crate::conformance!($fixture, without a watch);
        $crate::conformance!($fixture;
            a_watch_hears_a_release,
            a_watch_hears_renewals_and_new_terms,
            several_watches_on_one_election_all_hear,
            a_watcher_that_listens_late_hears_the_release_all_the_same,
            closing_ends_what_hears_for_a_watch,
        );
    };
    ($fixture:ty, on a network) => {
        $crate::conformance!($fixture);
        $crate::conformance!($fixture, on a network only);
        $crate::conformance!($fixture;
            a_watch_is_blind_while_the_store_is_away_and_hears_again_when_it_is_back,
        );
    };
    ($fixture:ty, on a network, without a watch) => {
        $crate::conformance!($fixture, without a watch);
        $crate::conformance!($fixture, on a network only);
    };
    ($fixture:ty, on a network only) => {
        $crate::conformance!($fixture;
            an_answer_that_never_came_counts_for_nothing_and_the_next_attempt_begins_a_new_term,
            what_was_given_up_before_the_store_was_reached_is_never_written,
            closing_leaves_no_connection,
        );
    };
    ($fixture:ty, without a watch) => {
        $crate::conformance!($fixture;
            a_free_lease_is_acquired_for_its_whole_duration,
            a_held_lease_is_denied_and_the_answer_tells_by_whom_and_for_how_long,
            a_renewal_keeps_its_token_and_extends_the_lease,
            a_lease_that_is_not_renewed_is_taken_over_under_a_larger_token,
            a_renewed_lease_is_not_taken_over,
            a_released_lease_is_free_at_once_and_its_token_is_never_used_again,
            a_late_renewal_of_an_old_term_changes_nothing,
            a_renewal_of_a_term_that_nobody_has_tells_who_leads_and_for_how_long,
            a_late_release_of_an_old_term_changes_nothing,
            two_instances_with_one_id_are_two,
            a_process_that_was_started_again_under_its_id_waits_like_a_stranger,
            a_candidate_that_meets_itself_begins_a_new_term,
            the_duration_that_counts_is_the_one_in_the_record,
            eight_racing_clients_never_overlap_and_no_token_is_granted_twice,
            elections_with_odd_names_do_not_touch_each_other,
            a_deleted_record_ends_the_term_and_tokens_go_on_growing,
            rubbish_in_place_of_the_record_is_never_leadership,
            peeking_tells_the_leader_and_takes_no_part,
            what_was_given_up_writes_nothing_later,
            making_sure_of_a_store_leaves_nothing_there,
            closing_ends_all_that_goes_on_for_a_store,
        );
    };
}

pub async fn a_free_lease_is_acquired_for_its_whole_duration(store: &impl Fixture) {
    let a = store.client("a").await;
    match a.campaign(&name("leader"), LONG).await {
        Outcome::Held { token, valid_for } => {
            assert!(token.number() > 0);
            assert_eq!(valid_for, LONG);
        }
        outcome @ Outcome::Other { .. } => panic!("{outcome:?}"),
    }
}

pub async fn a_held_lease_is_denied_and_the_answer_tells_by_whom_and_for_how_long(
    store: &impl Fixture,
) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, LONG).await;
    let (leader, remaining) = denied(b.campaign(&election, LONG).await);
    assert_eq!(leader, Some(leading(&a, token)));
    let remaining = remaining.expect("the rest of the lease");
    assert!(remaining <= LONG && remaining > LONG / 2, "{remaining:?}");
}

pub async fn a_renewal_keeps_its_token_and_extends_the_lease(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, SHORT * 5).await;
    for _ in 0..30 {
        match a.renew(&election, LONG, token).await {
            Outcome::Held {
                token: renewed,
                valid_for,
            } => {
                assert_eq!((renewed, valid_for), (token, LONG));
            }
            outcome @ Outcome::Other { .. } => panic!("{outcome:?}"),
        }
    }
    let (_, remaining) = denied(b.campaign(&election, LONG).await);
    assert!(
        remaining.is_some_and(|left| left > LONG / 2),
        "{remaining:?}"
    );
}

pub async fn a_lease_that_is_not_renewed_is_taken_over_under_a_larger_token(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let sent = Instant::now();
    let old = a.win(&election, SHORT).await;
    let new = b.take_over(&election, SHORT).await;
    assert!(
        sent.elapsed() >= SHORT,
        "taken over after {:?}",
        sent.elapsed()
    );
    assert!(new > old, "{new} after {old}");
    // The old leader learns who it is now.
    let (leader, _) = denied(a.renew(&election, SHORT, old).await);
    assert_eq!(leader, Some(leading(&b, new)));
}

pub async fn a_renewed_lease_is_not_taken_over(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, SHORT * 2).await;
    let start = Instant::now();
    while start.elapsed() < SHORT * 5 {
        assert_eq!(held(a.renew(&election, SHORT * 2, token).await), token);
        denied(b.campaign(&election, SHORT * 2).await);
        tokio::time::sleep(SHORT / 8).await;
    }
}

pub async fn a_released_lease_is_free_at_once_and_its_token_is_never_used_again(
    store: &impl Fixture,
) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let mut last = a.win(&election, LONG).await;
    let mut holder = &a;
    for next in [&b, &a, &a, &b] {
        assert!(holder.release(&election, last).await);
        assert_eq!(next.leader(&election).await, None);
        let token = next.win(&election, LONG).await;
        assert!(token > last, "{token} after {last}");
        (holder, last) = (next, token);
    }
}

pub async fn a_late_renewal_of_an_old_term_changes_nothing(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    // Of its own old term too.
    let first = a.win(&election, LONG).await;
    a.release(&election, first).await;
    let (leader, _) = denied(a.renew(&election, LONG, first).await);
    assert_eq!(leader, None);
    let second = a.win(&election, SHORT).await;
    let (leader, _) = denied(a.renew(&election, LONG, first).await);
    assert_eq!(leader, Some(leading(&a, second)));
    // The second term was not extended by it.
    let third = b.take_over(&election, SHORT * 4).await;
    for old in [first, second] {
        let (leader, _) = denied(a.renew(&election, LONG, old).await);
        assert_eq!(leader, Some(leading(&b, third)));
    }
    assert_eq!(held(b.renew(&election, LONG, third).await), third);
}

/// So the server of the Leader Election API asks before it campaigns.
pub async fn a_renewal_of_a_term_that_nobody_has_tells_who_leads_and_for_how_long(
    store: &impl Fixture,
) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let nobodys = Token::new(Token::MAX).unwrap();
    let (leader, _) = denied(b.renew(&election, LONG, nobodys).await);
    assert_eq!(leader, None);
    let token = a.win(&election, LONG).await;
    for asker in [&a, &b] {
        let (leader, remaining) = denied(asker.renew(&election, LONG, nobodys).await);
        assert_eq!(leader, Some(leading(&a, token)));
        let remaining = remaining.expect("the rest of the lease");
        assert!(remaining <= LONG && remaining > LONG / 2, "{remaining:?}");
    }
    assert_eq!(held(a.renew(&election, SHORT, token).await), token);
    // Once it has expired it is nobody's, whomever the record names.
    let begun = Instant::now();
    while let (Some(_), Some(remaining)) = denied(b.renew(&election, LONG, nobodys).await)
        && !remaining.is_zero()
    {
        assert!(begun.elapsed() < SHORT + LONG, "{remaining:?}");
        tokio::time::sleep(remaining.max(Duration::from_millis(2))).await;
    }
    assert!(b.win(&election, LONG).await > token);
}

pub async fn a_late_release_of_an_old_term_changes_nothing(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let first = a.win(&election, LONG).await;
    assert!(a.release(&election, first).await);
    assert!(!a.release(&election, first).await);
    let second = a.win(&election, LONG).await;
    assert!(!a.release(&election, first).await);
    assert!(
        !b.release(&election, second).await,
        "released by somebody else"
    );
    let leader = b.leader(&election).await;
    assert_eq!(leader, Some(leading(&a, second)));
    assert_eq!(held(a.renew(&election, LONG, second).await), second);
}

pub async fn two_instances_with_one_id_are_two(store: &impl Fixture) {
    let election = name("leader");
    let (one, other) = (store.client("web-0").await, store.client("web-0").await);
    let token = one.win(&election, LONG).await;
    let (leader, _) = denied(other.campaign(&election, LONG).await);
    assert_eq!(leader, Some(leading(&one, token)));
    denied(other.renew(&election, LONG, token).await);
    assert!(!other.release(&election, token).await);
    assert_eq!(held(one.renew(&election, LONG, token).await), token);
}

pub async fn a_process_that_was_started_again_under_its_id_waits_like_a_stranger(
    store: &impl Fixture,
) {
    let election = name("leader");
    let before = store.client("pod-0").await;
    let old = before.win(&election, SHORT).await;
    before.backend.close().await;
    let after = store.client("pod-0").await;
    denied(after.campaign(&election, SHORT).await);
    let new = after.take_over(&election, SHORT).await;
    assert!(new > old);
}

pub async fn a_candidate_that_meets_itself_begins_a_new_term(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    // As after an attempt whose answer never came.
    let first = a.win(&election, LONG).await;
    let second = a.win(&election, LONG).await;
    assert!(second > first);
    denied(a.renew(&election, LONG, first).await);
    assert_eq!(held(a.renew(&election, LONG, second).await), second);
    let (leader, _) = denied(b.campaign(&election, LONG).await);
    assert_eq!(leader, Some(leading(&a, second)));
}

pub async fn the_duration_that_counts_is_the_one_in_the_record(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    a.win(&election, LONG).await;
    let hasty = Duration::from_millis(50);
    let start = Instant::now();
    while start.elapsed() < hasty * 20 {
        let (_, remaining) = denied(b.campaign(&election, hasty).await);
        assert!(
            remaining.is_some_and(|left| left > LONG / 2),
            "{remaining:?}"
        );
        tokio::time::sleep(hasty / 4).await;
    }
}

/// What one client did with one term, on a clock that all share.
#[derive(Debug)]
struct Reign {
    token: Token,
    /// It knew of its term from here...
    from: Instant,
    /// ...and trusted it until here.
    until: Instant,
}

pub async fn eight_racing_clients_never_overlap_and_no_token_is_granted_twice<F: Fixture>(
    store: &F,
) {
    const LEASE: Duration = Duration::from_millis(150);
    const TRUST: Duration = Duration::from_millis(100);
    let election = name("race");
    let end = Instant::now() + Duration::from_secs(4) + F::STEP * 8;
    let mut racers = Vec::new();
    for number in 0..8_u32 {
        let mut client = store.client(&format!("racer-{number}")).await;
        let election = election.clone();
        racers.push(tokio::spawn(async move {
            let mut reigns: Vec<Reign> = Vec::new();
            let mut round = number;
            while Instant::now() < end {
                let sent = Instant::now();
                let outcome = client.attempt(&election, LEASE, None).await;
                let Ok(Outcome::Held { token, .. }) = outcome else {
                    let pause = Duration::from_millis(u64::from(5 + number));
                    tokio::time::sleep(pause).await;
                    continue;
                };
                let mut reign = Reign {
                    token,
                    from: Instant::now(),
                    until: sent + TRUST,
                };
                round += 1;
                for _ in 0..round % 4 {
                    tokio::time::sleep(LEASE / 5).await;
                    let sent = Instant::now();
                    match client.attempt(&election, LEASE, Some(token)).await {
                        Ok(Outcome::Held { token: same, .. }) if sent < reign.until => {
                            assert_eq!(same, token);
                            reign.until = sent + TRUST;
                        }
                        _ => break,
                    }
                }
                // One in three vanishes without a word, and comes back as somebody else.
                if round.is_multiple_of(3) {
                    client.owner = owner("racer");
                } else {
                    reign.until = reign.until.min(Instant::now());
                    let _ = client
                        .backend
                        .release(&election, &client.owner, token)
                        .await;
                }
                reigns.push(reign);
            }
            reigns
        }));
    }
    let mut reigns = Vec::new();
    for racer in racers {
        reigns.extend(racer.await.unwrap());
    }
    reigns.sort_by_key(|reign| reign.token);
    assert!(reigns.len() > 10, "only {} terms", reigns.len());
    for pair in reigns.windows(2) {
        assert!(pair[0].token < pair[1].token, "granted twice: {pair:?}");
        assert!(pair[0].until <= pair[1].from, "overlap: {pair:?}");
    }
}

pub async fn elections_with_odd_names_do_not_touch_each_other<F: Fixture>(store: &F) {
    let longest = "x".repeat(253);
    let mut names = F::ODD_NAMES.to_vec();
    names.push(&longest);
    let a = store.client("🦀:a b {c}").await;
    let mut terms = HashMap::new();
    for &text in &names {
        let election = name(text);
        a.backend
            .check_name(&election)
            .unwrap_or_else(|rule| panic!("{text}: must {rule}"));
        terms.insert(text, a.win(&election, LONG).await);
    }
    let b = store.client("b").await;
    for text in names {
        let leader = b.leader(&name(text)).await;
        assert_eq!(leader, Some(leading(&a, terms[text])), "{text}");
        assert!(a.release(&name(text), terms[text]).await, "{text}");
    }
}

pub async fn a_deleted_record_ends_the_term_and_tokens_go_on_growing(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let mut last = a.win(&election, LONG).await;
    for _ in 0..10 {
        let again = a.win(&election, LONG).await;
        assert!(again > last);
        last = again;
    }
    // Whoever deletes a record has waited for a moment.
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.forget(&election).await;
    let (leader, _) = denied(a.renew(&election, LONG, last).await);
    assert_eq!(leader, None);
    assert!(!a.release(&election, last).await);
    assert_eq!(b.leader(&election).await, None);
    let new = b.win(&election, LONG).await;
    assert!(new > last, "{new} after {last}");
}

pub async fn rubbish_in_place_of_the_record_is_never_leadership(store: &impl Fixture) {
    let huge = vec![b'9'; 1 << 20];
    let deep = "[".repeat(100_000);
    let endless = format!(
        r#"{{"version":"w","instanceId":"{}"}}"#,
        "x".repeat(300_000)
    );
    let rubbish: &[&[u8]] = &[
        b"",
        b"\0\0\0\0",
        b"garbage",
        b"\xff\xfe\x80",
        b"-7:0000000000000001:a",
        b"99999999999999999999:0000000000000001:a",
        b"7:xyz:a",
        b"7:0000000000000001:",
        br#"{"format":1,"state":"held","token":7}"#,
        br#"{"format":1,"state":"held","token":7,"instance":"x","nonce":"1","durationMs":-5,"alive":"x"}"#,
        br#"{"format":1,"state":"held","token":7,"instance":"x","nonce":"1","durationMs":2147483647,"alive":"x"}"#,
        br#"{"format":99,"state":"free"}"#,
        b"[[[[[[[[[[[[[[[[",
        &huge,
        deep.as_bytes(),
        endless.as_bytes(),
        // What is JSON, and no record.
        b"null",
        b"7",
        br#""text""#,
        b"[]",
        b"{}",
        br#"{"version":null,"instanceId":null,"nonce":null,"token":null,"leaseDuration":null}"#,
        br#"{"version":"w","instanceId":null}"#,
        br#"{"version":"w","instanceId":5,"nonce":"1","token":7,"leaseDuration":0}"#,
        br#"{"version":"w","instanceId":"a","nonce":"1","token":0,"leaseDuration":-5}"#,
        br#"{"version":"w","instanceId":"a","nonce":"zz","token":7,"leaseDuration":1e300}"#,
        br#"{"version":"w","instanceId":{"S":"a"},"nonce":[],"token":{},"leaseDuration":true}"#,
        br#"{"version":{},"instanceId":"a\nb","nonce":"1","token":9007199254740993,"leaseDuration":86400001}"#,
    ];
    let each = rubbish.iter().enumerate();
    let each = each.map(|(number, rubbish)| is_no_leadership(store, number, rubbish));
    // Side by side, since each is waited out.
    futures_util::stream::iter(each)
        .buffer_unordered(8)
        .collect::<()>()
        .await;
}

async fn is_no_leadership<F: Fixture>(store: &F, number: usize, rubbish: &[u8]) {
    let shown = String::from_utf8_lossy(&rubbish[..rubbish.len().min(80)]);
    let election = name(&format!("rubbish-{number}"));
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, LONG).await;
    store.spoil(&election, rubbish).await;
    // The leader does not go on as if nothing had happened.
    match a.attempt(&election, SHORT, Some(token)).await {
        Ok(Outcome::Other { leader, .. }) => assert_eq!(leader, None, "{shown}"),
        Ok(outcome @ Outcome::Held { .. }) => panic!("{shown}: {outcome:?}"),
        Err(error) => assert_eq!(error.code, "bad-record", "{shown}: {error}"),
    }
    match b.backend.peek(&election).await {
        Ok(leader) => assert_eq!(leader, None, "{shown}"),
        Err(error) => assert_eq!(error.code, "bad-record", "{shown}: {error}"),
    }
    if F::RUBBISH_EXPIRES {
        let start = Instant::now();
        let new = b.take_over(&election, SHORT).await;
        assert!(start.elapsed() >= SHORT, "{shown}");
        assert!(new > token, "{shown}");
    } else {
        let error = b
            .attempt(&election, SHORT, None)
            .await
            .expect_err("nothing to win");
        assert_eq!(
            (error.kind, error.code),
            (FailureKind::Fatal, "bad-record"),
            "{shown}: {error}"
        );
        // Whoever deletes a record has waited for a moment.
        tokio::time::sleep(Duration::from_millis(5)).await;
        store.forget(&election).await;
        assert!(b.win(&election, SHORT).await > token, "{shown}");
    }
}

pub async fn a_watch_hears_a_release(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, LONG).await;
    let mut hearing = b.watch(&election).await;
    denied(b.campaign(&election, LONG).await);
    a.release(&election, token).await;
    hearing.until("Free", |hint| hint == Hint::Free).await;
    b.win(&election, LONG).await;
}

pub async fn a_watch_hears_renewals_and_new_terms<F: Fixture>(store: &F) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let mut hearing = b.watch(&election).await;
    let alive = |wanted: Token, about: Duration| {
        move |hint| match hint {
            Hint::Alive { token, valid_for } => {
                token == wanted && valid_for > about / 2 && valid_for < about + F::STEP
            }
            _ => false,
        }
    };
    let first = a.win(&election, SHORT * 4).await;
    hearing
        .until("the first term", alive(first, SHORT * 4))
        .await;
    a.renew(&election, LONG, first).await;
    hearing.until("its renewal", alive(first, LONG)).await;
    let second = a.win(&election, LONG).await;
    hearing.until("the second term", alive(second, LONG)).await;
}

pub async fn several_watches_on_one_election_all_hear(store: &impl Fixture) {
    let (one, two) = (name("one"), name("two"));
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&one, LONG).await;
    let mut first = b.watch(&one).await;
    let mut second = b.watch(&one).await;
    let other = b.watch(&two).await;
    drop(other);
    a.release(&one, token).await;
    first.until("Free", |hint| hint == Hint::Free).await;
    second.until("Free", |hint| hint == Hint::Free).await;
    drop(first);
    let token = a.win(&one, LONG).await;
    second
        .until(
            "Alive",
            |hint| matches!(hint, Hint::Alive { token: t, .. } if t == token),
        )
        .await;
    // All of them may end and begin again.
    drop(second);
    let mut third = b.watch(&one).await;
    a.release(&one, token).await;
    third.until("Free", |hint| hint == Hint::Free).await;
}

pub async fn a_watcher_that_listens_late_hears_the_release_all_the_same(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let mut hearing = b.watch(&election).await;
    let token = a.win(&election, LONG).await;
    // More than any queue of hints holds.
    for _ in 0..100 {
        held(a.renew(&election, LONG, token).await);
    }
    assert!(a.release(&election, token).await);
    // As long as nobody listens, the store has told all that it has to tell.
    tokio::time::sleep(Duration::from_millis(500)).await;
    hearing.until("Free", |hint| hint == Hint::Free).await;
}

pub async fn peeking_tells_the_leader_and_takes_no_part(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    assert_eq!(b.leader(&election).await, None);
    let token = a.win(&election, LONG).await;
    assert_eq!(b.leader(&election).await, Some(leading(&a, token)));
    assert_eq!(held(a.renew(&election, SHORT, token).await), token);
    eventually("nobody leads when the lease has expired", async || {
        b.leader(&election).await.is_none().then_some(())
    })
    .await;
}

pub async fn what_was_given_up_writes_nothing_later(store: &impl Fixture) {
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let first = a.win(&election, LONG).await;
    for round in 0..24_u64 {
        // Somewhere on its way: not yet begun, sent, answered.
        let patience = Duration::from_micros(50 * round * round);
        let attempt = a.attempt(&election, LONG, None);
        let _ = tokio::time::timeout(patience, attempt).await;
    }
    // What was sent has arrived.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let leader = b.leader(&election).await.expect("one of them");
    assert!(leader.owner == a.owner && leader.token >= first);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(b.leader(&election).await.as_ref(), Some(&leader));
    }
    assert!(a.win(&election, LONG).await > leader.token);
}

pub async fn making_sure_of_a_store_leaves_nothing_there(store: &impl Fixture) {
    let clients = ["a", "b", "c"].map(|id| store.client(id));
    let [a, ..] = &futures_util::future::join_all(clients).await[..] else {
        unreachable!("as many as were asked for");
    };
    // Some of it the store itself clears away.
    eventually("nothing is there", async || {
        let left = store.list().await;
        left.is_empty().then_some(())
    })
    .await;
    a.win(&name("leader"), LONG).await;
    assert_ne!(store.list().await, [""; 0], "what is there is listed");
}

pub async fn closing_ends_all_that_goes_on_for_a_store(store: &impl Fixture) {
    ends_on_closing(store, false).await;
}

pub async fn closing_ends_what_hears_for_a_watch(store: &impl Fixture) {
    ends_on_closing(store, true).await;
}

async fn ends_on_closing(store: &impl Fixture, watched: bool) {
    let election = name("leader");
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let a = store.client("a").await;
    let hearing = if watched {
        Some(a.watch(&election).await)
    } else {
        None
    };
    let token = a.win(&election, LONG).await;
    held(a.renew(&election, LONG, token).await);
    assert!(a.release(&election, token).await);
    a.backend.close().await;
    // Although whoever used it still has it, and somebody may still listen.
    let listeners = usize::from(hearing.is_some());
    eventually("no task is left", async || {
        (tasks() <= before + listeners).then_some(())
    })
    .await;
}
