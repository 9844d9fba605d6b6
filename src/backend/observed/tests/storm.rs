//! Three instances on one store, with chance for a network, a watch and an operator. A seed decides all of
//! it, and tokio's paused clock lets hours pass in a moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::shelf::{Page, Shelf};
use super::*;

const INSTANCES: usize = 3;
const RENEW: Duration = Duration::from_secs(5);
/// How long a leader trusts an answer, from before it asked.
const TRUST: Duration = Duration::from_secs(10);
/// How long an attempt may take.
const PATIENCE: Duration = Duration::from_secs(5);
const RUN: Duration = Duration::from_secs(600);
/// On a quiet network a message takes at most so long, also one of the watch.
const LATE: Duration = Duration::from_millis(300);
/// A take-over may meet one conflict: five messages.
const ROUNDS: Duration = Duration::from_millis(5 * 300 + 100);

#[derive(Debug)]
struct World {
    shelf: Shelf,
    random: AtomicU64,
    /// Whether messages are lost or very late, and processes pause.
    stormy: bool,
    began: Instant,
    nonces: AtomicU64,
    state: Mutex<State>,
}

/// What a watch tells, and when.
type Event = (Instant, Option<Page>);

#[derive(Debug)]
struct State {
    /// Who leads under which token, and until when at most.
    leads: [Option<(Token, Instant)>; INSTANCES],
    watches: [Option<mpsc::UnboundedSender<Event>>; INSTANCES],
    largest: Option<Token>,
    written: Instant,
    terms: u32,
    violations: Vec<String>,
}

impl World {
    fn new(seed: u64, stormy: bool) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            shelf: Shelf::default(),
            random: AtomicU64::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            stormy,
            began: now,
            nonces: AtomicU64::new(1),
            state: Mutex::new(State {
                leads: [None; INSTANCES],
                watches: [const { None }; INSTANCES],
                largest: None,
                written: now,
                terms: 0,
                violations: Vec::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn below(&self, limit: u64) -> u64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        (x >> 11) % limit
    }

    fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn up_to(&self, longest: Duration) -> Duration {
        Duration::from_millis(self.below(u64::try_from(longest.as_millis()).unwrap()))
    }

    /// How long a message takes. `None`: it is lost.
    fn way(&self) -> Option<Duration> {
        match self.below(20) {
            0 if self.stormy => None,
            1 if self.stormy => Some(self.up_to(2 * LEASE)),
            _ => Some(self.up_to(LATE)),
        }
    }

    /// Sends a request. It goes on although nobody waits for it any more.
    async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        request: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Result<T, BackendError> {
        let (sender, answer) = oneshot::channel();
        let (there, back) = (self.way(), self.way());
        let world = Arc::clone(self);
        tokio::spawn(async move {
            sleep(there?).await;
            let before = world.shelf.page();
            let answer = request.await;
            let after = world.shelf.page();
            if before != after {
                world.announce(after.as_ref());
            }
            sleep(back?).await;
            sender.send(answer).ok()
        });
        match answer.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }

    fn announce(&self, page: Option<&Page>) {
        let now = Instant::now();
        let mut state = self.state();
        if page.is_some_and(|page| page.holder.is_some()) {
            state.written = now;
        }
        for watch in state.watches.iter().flatten() {
            // Later ones wait for it: they arrive in order.
            if let Some(way) = self.way() {
                let _ = watch.send((now + way, page.cloned()));
            }
        }
    }

    fn leads(&self, index: usize, token: Token, until: Instant, is_new: bool) {
        let now = Instant::now();
        let mut state = self.state();
        let since = now - self.began;
        for (other, lead) in state.leads.into_iter().enumerate() {
            if let Some((theirs, end)) = lead
                && other != index
                && end > now
            {
                let what = format!("{since:?}: {index} leads by {token}, {other} by {theirs}");
                state.violations.push(what);
            }
        }
        if is_new {
            if state.largest.is_some_and(|largest| token <= largest) {
                let what = format!("{since:?}: token {token} after {:?}", state.largest);
                state.violations.push(what);
            }
            state.largest = Some(token);
            state.terms += 1;
        }
        state.leads[index] = Some((token, until));
    }

    fn led(&self, index: usize) {
        self.state().leads[index] = None;
    }
}

#[derive(Debug)]
struct Net(Arc<World>);

#[async_trait]
impl Records for Net {
    type Entry = Page;

    fn record(&self, page: &Page) -> Record {
        self.0.shelf.record(page)
    }

    async fn read(&self, election: &ElectionName) -> Result<Option<Page>, BackendError> {
        let (store, election) = (self.0.shelf.clone(), election.clone());
        self.0.ask(async move { store.read(&election).await }).await
    }

    async fn create(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        duration: Duration,
    ) -> Result<Option<Page>, BackendError> {
        let (store, election, owner) = (self.0.shelf.clone(), election.clone(), owner.clone());
        let create = async move { store.create(&election, &owner, token, duration).await };
        self.0.ask(create).await
    }

    async fn write(
        &self,
        election: &ElectionName,
        over: &Page,
        change: Change<'_>,
    ) -> Result<Written<Page>, BackendError> {
        let (world, store) = (Arc::clone(&self.0), self.0.shelf.clone());
        let (election, over) = (election.clone(), over.clone());
        let begins = match change {
            Change::Begin {
                owner,
                token,
                duration,
            } => Some((owner.clone(), token, duration)),
            _ => None,
        };
        let other = match change {
            Change::Renew { duration } => Change::Renew { duration },
            _ => Change::Release,
        };
        let write = async move {
            let Some((owner, token, duration)) = begins else {
                return store.write(&election, &over, other).await;
            };
            let owner = &owner;
            let change = Change::Begin {
                owner,
                token,
                duration,
            };
            let stood = Instant::now() - world.state().written;
            let written = store.write(&election, &over, change).await;
            if let Ok(Written::Done(_)) = written
                && over.holder.is_some()
                && !world.stormy
                && stood > LEASE + ROUNDS
            {
                let what = format!("taken over only after {stood:?}");
                world.state().violations.push(what);
            }
            written
        };
        self.0.ask(write).await
    }
}

#[derive(Debug)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(1) + self.0.elapsed()
    }
}

/// One process, until it crashes.
async fn live(world: &Arc<World>, index: usize) {
    let clock = Arc::new(TokioClock(world.began));
    let store = Arc::new(Observed::new(Net(Arc::clone(world)), clock));
    let nonce = world.nonces.fetch_add(1, Ordering::Relaxed);
    let me = owner(["a", "b", "c"][index], nonce);
    let (tells, mut told) = mpsc::unbounded_channel::<Event>();
    let free = Arc::new(Notify::new());
    let watch = tokio::spawn({
        let (store, free) = (Arc::clone(&store), Arc::clone(&free));
        async move {
            while let Some((due, page)) = told.recv().await {
                sleep_until(due).await;
                if store.saw(&election(), page) == Some(Hint::Free) {
                    free.notify_one();
                }
            }
        }
    });
    let _ = tells.send((Instant::now(), world.shelf.page()));
    world.state().watches[index] = Some(tells);

    let mut term: Option<Token> = None;
    let mut trusted = Instant::now();
    let mut dies = Instant::now() + 2 * LEASE + world.up_to(8 * LEASE);
    loop {
        let now = Instant::now();
        if term.is_some() && now >= trusted {
            world.led(index);
            term = None;
        }
        if now >= dies && (term.is_some() || world.stormy) {
            break;
        }
        let attempt = Attempt {
            election: &election(),
            owner: &me,
            duration: LEASE,
            term,
        };
        let answer = timeout(PATIENCE, store.attempt(&attempt)).await;
        let mut wait = RENEW;
        match answer {
            Ok(Ok(Outcome::Held { token, .. })) if Instant::now() < now + TRUST => {
                trusted = now + TRUST;
                world.leads(index, token, trusted, term.is_none());
                if term.is_none() && !world.stormy {
                    // The others are there again by then.
                    dies = now + 2 * LEASE + world.up_to(4 * LEASE);
                }
                term = Some(token);
            }
            Ok(Ok(Outcome::Other { remaining, .. })) => {
                world.led(index);
                term = None;
                wait = remaining.unwrap_or_default() + Duration::from_millis(1);
            }
            _ => wait = SECOND,
        }
        if let Some(token) = term
            && world.percent(3)
        {
            world.led(index);
            term = None;
            let _ = timeout(PATIENCE, store.release(&election(), &me, token)).await;
        }
        if world.stormy && world.percent(3) {
            sleep(world.up_to(2 * LEASE)).await;
        }
        tokio::select! {
            biased; // Chance is the seed's.
            () = sleep(wait) => {}
            () = free.notified(), if term.is_none() => {}
        }
    }
    world.led(index);
    world.state().watches[index] = None;
    watch.abort();
}

async fn run(seed: u64, stormy: bool) -> u32 {
    let world = World::new(seed, stormy);
    let instances: Vec<_> = (0..INSTANCES)
        .map(|index| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                loop {
                    sleep(world.up_to(SECOND)).await;
                    live(&world, index).await;
                    sleep(LEASE).await;
                }
            })
        })
        .collect();
    let operator = Arc::clone(&world);
    let operator = tokio::spawn(async move {
        if !operator.stormy {
            return;
        }
        loop {
            sleep(operator.up_to(20 * LEASE)).await;
            // Somebody touches the record, and means nothing by it.
            if let Some(page) = operator.shelf.page() {
                let page = operator.shelf.put(page.holder);
                operator.announce(Some(&page));
            }
        }
    });
    sleep(RUN).await;
    for task in instances {
        task.abort();
    }
    operator.abort();
    let state = world.state();
    let violations = &state.violations;
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    state.terms
}

#[tokio::test(start_paused = true)]
async fn in_a_storm_terms_never_overlap_and_tokens_only_grow() {
    let mut terms = 0;
    for seed in 0..200 {
        terms += run(seed, true).await;
    }
    assert!(terms > 1_000, "{terms} terms are too few to show anything");
}

#[tokio::test(start_paused = true)]
async fn on_a_network_without_faults_each_take_over_comes_within_one_duration() {
    let mut terms = 0;
    for seed in 0..200 {
        terms += run(seed, false).await;
    }
    assert!(terms > 1_000, "{terms} terms are too few to show anything");
}
