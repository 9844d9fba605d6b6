//! One adapter for all stores that keep a versioned record and write it on a condition, and that do not
//! judge expiry: it turns reads and conditional writes into attempts.
//!
//! A store says how its records are read and written: as [`Values`] if it keeps a text by its key, else as
//! [`Records`]. What else it can do, it says as a [`ObservedStore`]. What its records mean for an election is decided
//! here, so that an `Observed<ObservedStore>` is a [`Backend`]. A lease of somebody else has expired when its record stood still for the duration that
//! it names, on this process's own clock, counted from the receipt (see `observation`). Then it is taken
//! over by a write on the condition of that very version.
//!
//! What is known of a record, from the last write or from a watch, saves a read where it would lead to a
//! write anyway: the write's condition finds out whether it still holds.

mod document;
mod known;
#[cfg(test)]
mod tests;
mod values;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

pub(super) use self::document::Document;
use self::known::{Known, Plan, Seen};
pub(super) use self::values::{Kept, Values};
use super::{Attempt, Backend, BackendError, Capabilities, Hints, StoreOptions, Watch};
use crate::clock::{Clock, Moment};
use crate::lease::{ElectionName, Hint, LONGEST_LEASE, Leader, Outcome, Owner, Token};
use crate::locked::locked;
use crate::random::jittered;

/// How often one attempt writes again because somebody else wrote in between.
const TRIES: u32 = 12;
/// The pause before the second try; later ones double, up to the longest. The first is at once: two rivals met by
/// chance.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How often one look reads because events came in between. The last answer counts anyway.
const READS: u32 = 3;
/// So many elections are remembered whether anybody needs them or not.
const ROOM: usize = 64;

/// What a record says, whoever wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Changes with every write. No order is assumed.
    pub version: String,
    /// `None`: the lease is free.
    pub holder: Option<Holder>,
    /// The largest token that was given, as far as the record knows.
    pub last: Option<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    /// `None`: its name cannot be read.
    pub leader: Option<Leader>,
    pub lasts: Lasts,
}

/// How long a holder's lease lasts after each write, by its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    For(Duration),
    /// It does not say, or nothing that makes sense: like a lease of the asker's own.
    Unsaid,
}

impl Lasts {
    /// What is longer than any lease is a slip, and must not bar the election for years.
    pub fn new(duration: Option<Duration>) -> Self {
        match duration {
            Some(duration) if !duration.is_zero() && duration <= LONGEST_LEASE => {
                Self::For(duration)
            }
            _ => Self::Unsaid,
        }
    }
}

/// What is to be written over a record.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    /// A new term, whoever held the lease before.
    Begin {
        owner: &'a Owner,
        token: Token,
        duration: Duration,
    },
    /// The holder and its term stay.
    Renew { duration: Duration },
    /// Nobody holds the lease. The token stays, as the last that was given.
    Release,
}

pub(super) enum Written<Entry> {
    Done(Entry),
    /// There was no record any more, and the write made one. Only of a store whose condition lets that
    /// happen.
    Made(Entry),
    /// Somebody else wrote or deleted first; nothing was written.
    Changed,
}

/// A place that keeps one record for each election.
///
/// [`Observed`] relies on this:
///
/// - **A read is linearizable**: it shows every write that was answered before it was sent. One from a
///   replica or a cache that lags is none.
/// - **Every write changes the version**, also one that changes nothing else. A hash of the content (an S3
///   `ETag`) is a version only if the content holds a counter: otherwise a leader that renews looks dead.
///   No order of versions is assumed, and none is used again.
/// - **A write is atomic and conditional**: of two over one version at most one is done.
/// - **What is stored is at least the duration that was asked for**, rounded up where the store is coarse:
///   leadership counts on it. A record that is renewed gets the duration of its renewal.
/// - **An unanswered write is an `Ambiguous` error**; a `Transient` one surely was not applied. A write that
///   is sent again after it may have been applied must tell its own doing from somebody else's, or be
///   `Changed`: that is looked into.
/// - **Nothing is written after a drop** of the future, except by a request that was sent before.
#[async_trait]
pub(super) trait Records: fmt::Debug + Send + Sync + 'static {
    /// A record as the store has it, with all that is not ours in it.
    type Entry: fmt::Debug + Clone + Send + Sync + 'static;

    fn record(&self, entry: &Self::Entry) -> Record;

    /// `None`: there is none.
    async fn read(&self, election: &ElectionName) -> Result<Option<Self::Entry>, BackendError>;

    /// Makes the record, with a first term, on the condition that there is none. `None`: there is one.
    async fn create(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        duration: Duration,
    ) -> Result<Option<Self::Entry>, BackendError>;

    /// Writes on the condition that the record still is of this very version.
    async fn write(
        &self,
        election: &ElectionName,
        over: &Self::Entry,
        change: Change<'_>,
    ) -> Result<Written<Self::Entry>, BackendError>;
}

/// What a store is beside its records: see [`Backend`], whose methods these are.
#[async_trait]
pub(super) trait ObservedStore: Records {
    fn capabilities(&self) -> Capabilities;

    fn describe(&self) -> String;

    fn check_name(&self, _election: &ElectionName) -> Result<(), String> {
        Ok(())
    }

    async fn prepare(&self) -> Result<(), BackendError>;

    /// Of whatever is heard, [`Observed::saw`] makes hints.
    fn watch(_leases: &Arc<Observed<Self>>, _election: ElectionName, _hints: Hints) -> Option<Watch>
    where
        Self: Sized,
    {
        None
    }

    fn tell_role(&self, _election: &ElectionName, _leads: bool) {}

    fn needs_event_loop(&self) -> bool {
        false
    }

    async fn close(&self) {}
}

/// See the module's description.
pub(super) struct Observed<R: Records> {
    pub records: R,
    clock: Arc<dyn Clock>,
    /// No write makes a lease shorter that still runs: see [`StoreOptions::for_others`].
    keeps_longer: bool,
    elections: Mutex<Elections<R::Entry>>,
}

impl<R: Records> Observed<R> {
    pub fn new(records: R, clock: Arc<dyn Clock>) -> Self {
        Self {
            records,
            clock,
            keeps_longer: false,
            elections: Mutex::new(Elections::new()),
        }
    }

    pub fn with_options(records: R, options: &StoreOptions, clock: Arc<dyn Clock>) -> Self {
        Self {
            keeps_longer: options.for_others,
            ..Self::new(records, clock)
        }
    }

    /// [`Backend::attempt`].
    pub async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let mut refused = false;
        let attempted = self.attempt_until_done(attempt, &mut refused).await;
        attempted.map_err(|error| error.doubted(refused))
    }

    /// `refused`: whether a write of it was. Then nobody can tell that none was applied, whatever else fails: a
    /// store that sends a write again after its connection broke is refused by what the first copy did.
    async fn attempt_until_done(
        &self,
        attempt: &Attempt<'_>,
        refused: &mut bool,
    ) -> Result<Outcome, BackendError> {
        let election = attempt.election;
        let duration = attempt.duration;
        let lasting = |left: Duration| {
            if self.keeps_longer {
                duration.max(left)
            } else {
                duration
            }
        };
        let mut plan = self.with(election, |known, now| known.plan_to_write(attempt, now));
        for tries in 0..TRIES {
            let next = if let Some(plan) = plan.take() {
                plan
            } else {
                let decide = |known: &mut Known<_>, now| known.plan(attempt, now);
                self.look(election, decide).await?
            };
            let (written, token) = match next {
                Plan::Denied(outcome) => return Ok(outcome),
                Plan::Create(token) => {
                    let (records, owner) = (&self.records, attempt.owner);
                    let made = records.create(election, owner, token, duration).await?;
                    let made = made.map_or(Written::Changed, Written::Done);
                    (self.note(election, None, made), token)
                }
                Plan::Begin(over, token, left) => {
                    let change = Change::Begin {
                        owner: attempt.owner,
                        token,
                        duration: lasting(left),
                    };
                    (self.write(election, &over, change).await?, token)
                }
                Plan::Renew(over, token, left) => {
                    let change = Change::Renew {
                        duration: lasting(left),
                    };
                    let written = self.write(election, &over, change).await?;
                    if let Noted::Made = written {
                        // The record was deleted, and with it the term: somebody else may have led since.
                        return Ok(Outcome::Other {
                            leader: None,
                            remaining: None,
                        });
                    }
                    (written, token)
                }
            };
            match written {
                Noted::Changed => {
                    *refused = true;
                    pause_after(election, tries).await;
                }
                Noted::Done | Noted::Made => {
                    return Ok(Outcome::Held {
                        token,
                        valid_for: duration,
                    });
                }
            }
        }
        Err(busy(election))
    }

    /// [`Backend::release`].
    pub async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        let mut refused = false;
        let released = self.release_until_done(election, owner, token, &mut refused);
        released.await.map_err(|error| error.doubted(refused))
    }

    /// `refused`: as for attempts.
    async fn release_until_done(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        refused: &mut bool,
    ) -> Result<bool, BackendError> {
        let ours = |known: &mut Known<R::Entry>, _| known.entry_of(owner, token);
        let mut over = self.with(election, ours);
        for tries in 0..TRIES {
            if over.is_none() {
                over = self.look(election, ours).await?;
            }
            let Some(entry) = over.take() else {
                return Ok(false);
            };
            match self.write(election, &entry, Change::Release).await? {
                Noted::Changed => {
                    *refused = true;
                    pause_after(election, tries).await;
                }
                Noted::Done | Noted::Made => return Ok(true),
            }
        }
        Err(busy(election))
    }

    /// [`Backend::peek`].
    pub async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let entry = self.records.read(election).await?;
        let record = entry.map(|entry| self.records.record(&entry));
        Ok(self.with(election, |known, now| known.peeked(record, now)))
    }

    /// A watch tells of a record (`None`: it was deleted). Returns what campaigns should hear of it.
    pub fn saw(&self, election: &ElectionName, entry: Option<R::Entry>) -> Option<Hint> {
        let seen = entry.map(|entry| self.seen(entry));
        self.with(election, |known, now| known.told(seen, now))
    }

    /// How long the lease that was seen last still runs; zero: it has expired. `None`: nobody held it.
    pub fn remaining(&self, election: &ElectionName) -> Option<Duration> {
        let now = self.clock.now();
        self.lock().known.get(election)?.remaining(now)
    }

    /// Reads the record, and decides from the latest news.
    async fn look<T>(
        &self,
        election: &ElectionName,
        decide: impl Fn(&mut Known<R::Entry>, Moment) -> T,
    ) -> Result<T, BackendError> {
        let mut reads = 1;
        loop {
            let sent = self.with(election, |known, _| known.sending());
            let entry = self.records.read(election).await?;
            let seen = entry.map(|entry| self.seen(entry));
            let decided = self.with(election, |known, now| {
                if reads < READS && known.is_overtaken(sent, seen.as_ref()) {
                    return None;
                }
                known.answered(seen, now);
                Some(decide(known, now))
            });
            if let Some(decided) = decided {
                return Ok(decided);
            }
            tracing::debug!(%election, "a change overtook the answer: looking again");
            reads += 1;
        }
    }

    async fn write(
        &self,
        election: &ElectionName,
        over: &R::Entry,
        change: Change<'_>,
    ) -> Result<Noted, BackendError> {
        let written = self.records.write(election, over, change).await?;
        Ok(self.note(election, Some(over), written))
    }

    fn note(
        &self,
        election: &ElectionName,
        over: Option<&R::Entry>,
        written: Written<R::Entry>,
    ) -> Noted {
        let (entry, noted) = match written {
            Written::Done(entry) => (entry, Noted::Done),
            Written::Made(entry) => (entry, Noted::Made),
            Written::Changed => {
                let over = over.map(|over| self.records.record(over).version);
                self.with(election, |known, _| known.met_a_change(over.as_deref()));
                return Noted::Changed;
            }
        };
        let seen = self.seen(entry);
        self.with(election, |known, now| known.wrote(seen, now));
        noted
    }

    fn seen(&self, entry: R::Entry) -> Seen<R::Entry> {
        let record = self.records.record(&entry);
        Seen { entry, record }
    }

    /// What is odd is logged without the lock: whoever reads the log may be slow.
    fn with<T>(
        &self,
        election: &ElectionName,
        then: impl FnOnce(&mut Known<R::Entry>, Moment) -> T,
    ) -> T {
        let (result, oddities) = {
            let mut elections = self.lock();
            let now = self.clock.now();
            let known = elections.known(election, now);
            let result = then(known, now);
            (result, known.unlogged())
        };
        for oddity in oddities {
            tracing::warn!(%election, "{}", oddity.words());
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Elections<R::Entry>> {
        locked(&self.elections)
    }
}

/// What is known of each election that somebody in this process takes part in, or lately did.
struct Elections<Entry> {
    known: HashMap<ElectionName, Known<Entry>>,
    /// One more than so many, and those are looked for that nobody needs.
    room: usize,
}

impl<Entry: Clone> Elections<Entry> {
    fn new() -> Self {
        Self {
            known: HashMap::new(),
            room: ROOM,
        }
    }

    fn known(&mut self, election: &ElectionName, now: Moment) -> &mut Known<Entry> {
        if self.known.len() >= self.room && !self.known.contains_key(election) {
            self.known.retain(|_, known| !known.is_idle(now));
            self.room = ROOM.max(2 * self.known.len());
        }
        let known = self.known.entry(election.clone());
        let known = known.or_insert_with(Known::new);
        known.used(now);
        known
    }
}

/// What both have, its own methods and those of the trait, is the same: its own are called.
#[async_trait]
impl<S: ObservedStore> Backend for Observed<S> {
    fn capabilities(&self) -> Capabilities {
        self.records.capabilities()
    }

    fn describe(&self) -> String {
        self.records.describe()
    }

    fn check_name(&self, election: &ElectionName) -> Result<(), String> {
        self.records.check_name(election)
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        self.records.prepare().await
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        self.attempt(attempt).await
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        self.release(election, owner, token).await
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        self.peek(election).await
    }

    fn watch(self: Arc<Self>, election: ElectionName, hints: Hints) -> Option<Watch> {
        S::watch(&self, election, hints)
    }

    fn tell_role(&self, election: &ElectionName, leads: bool) {
        self.records.tell_role(election, leads);
    }

    fn needs_event_loop(&self) -> bool {
        self.records.needs_event_loop()
    }

    async fn close(&self) {
        self.records.close().await;
    }
}

enum Noted {
    Done,
    Made,
    Changed,
}

async fn pause_after(election: &ElectionName, tries: u32) {
    tracing::debug!(%election, "the record changed in between: looking again");
    if let Some(pause) = pause(tries) {
        tokio::time::sleep(jittered(pause)).await;
    }
}

/// How long to wait at most after so many tries and one more. `None`: not at all.
fn pause(tries: u32) -> Option<Duration> {
    // Nothing comes after the last one.
    let doublings = tries.checked_sub(1).filter(|_| tries + 1 < TRIES)?;
    Some((PAUSE * 2_u32.pow(doublings.min(8))).min(LONGEST_PAUSE))
}

fn busy(election: &ElectionName) -> BackendError {
    BackendError::transient(
        "conflict",
        format!(
            "{TRIES} writes in a row over the record of election {election} were refused: others write it all the time, or the store refuses the very version that it shows"
        ),
    )
}

impl<R: Records> fmt::Debug for Observed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed")
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}
