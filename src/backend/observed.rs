//! One adapter for all stores that keep a versioned record and write it on a condition, and that do not
//! judge expiry: it turns reads and conditional writes into attempts.
//!
//! A store says how its records are read and written ([`Records`]); what they mean for an election is
//! decided here. A lease of somebody else has expired when its record stood still for the duration that
//! it names, on this process's own clock, counted from the receipt (see `observation`). Then it is taken
//! over by a write on the condition of that very version.
//!
//! What is known of a record, from the last write or from a watch, saves a read where it would lead to a
//! write anyway: the write's condition finds out whether it still holds.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{Attempt, BackendError, token_floor};
use crate::clock::{Clock, Moment};
use crate::lease::{ElectionName, Hint, LONGEST_LEASE, Leader, Outcome, Owner, Token};
use crate::observation::Observation;

/// How often one attempt writes again because somebody else wrote in between. Whoever asks gives up
/// earlier; this only bounds a store that answers so for ever.
const TRIES: u32 = 100;
/// The pause before the second try and all later ones. The first is at once: two rivals met by chance.
const PAUSE: Duration = Duration::from_millis(25);

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

/// What is to be written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    Begin {
        owner: &'a Owner,
        token: Token,
        duration: Duration,
    },
    Renew {
        duration: Duration,
    },
    Release,
}

pub(super) enum Written<Entry> {
    Done(Entry),
    /// There was no record any more, and the write made one.
    Made(Entry),
    /// Somebody else wrote first; nothing was written.
    Changed,
}

/// A place that keeps one record for each election.
#[async_trait]
pub(super) trait Records: fmt::Debug + Send + Sync + 'static {
    /// A record as the store has it, with all that is not ours in it.
    type Entry: fmt::Debug + Clone + Send + Sync + 'static;

    fn record(&self, entry: &Self::Entry) -> Record;

    /// `None`: there is none.
    async fn read(&self, election: &ElectionName) -> Result<Option<Self::Entry>, BackendError>;

    /// Writes on the condition that the record is still `over`; `None`: that there is none.
    async fn write(
        &self,
        election: &ElectionName,
        over: Option<&Self::Entry>,
        change: Change<'_>,
    ) -> Result<Written<Self::Entry>, BackendError>;
}

/// See the module's description.
pub(super) struct Observed<R: Records> {
    pub records: R,
    clock: Arc<dyn Clock>,
    elections: Mutex<HashMap<ElectionName, Known<R::Entry>>>,
}

/// What this process knows of one election's record.
struct Known<Entry> {
    observation: Observation<String>,
    /// What was seen without taking part: no attempt depends on it.
    peeked: Observation<String>,
    /// The record as it was seen last.
    latest: Option<Entry>,
    /// Kept here too, in case that the record is deleted.
    largest: Option<Token>,
    /// How long a lease lasts whose record does not say: as long as ours. `None`: we never asked for one.
    asked: Option<Duration>,
    /// Such a record was told of.
    told: bool,
}

enum Verdict<'a> {
    Write(Change<'a>),
    Denied(Outcome),
    /// No larger token can be given.
    UsedUp(Token),
}

impl<R: Records> Observed<R> {
    pub fn new(records: R, clock: Arc<dyn Clock>) -> Self {
        Self {
            records,
            clock,
            elections: Mutex::default(),
        }
    }

    /// [`Backend::attempt`](super::Backend::attempt).
    pub async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let election = attempt.election;
        let mut entry = self.worth_a_write(attempt);
        for tries in 0..TRIES {
            if entry.is_none() {
                entry = self.read(election).await?;
            }
            let change = match self.judge(attempt, entry.as_ref(), self.clock.now()) {
                Verdict::Write(change) => change,
                Verdict::Denied(outcome) => return Ok(outcome),
                Verdict::UsedUp(last) => {
                    return Err(BackendError::fatal(
                        "bad-record",
                        format!(
                            "the record of election {election} holds token {last}, and no larger one can be given: delete the record"
                        ),
                    ));
                }
            };
            let written = self.records.write(election, entry.as_ref(), change);
            match (written.await?, change) {
                // The record was deleted, and with it the term: somebody else may have led since.
                (Written::Made(entry), Change::Renew { .. }) => {
                    self.saw(election, Some(entry));
                    return Ok(Outcome::Other {
                        leader: None,
                        remaining: None,
                    });
                }
                (Written::Done(written) | Written::Made(written), change) => {
                    self.saw(election, Some(written));
                    let token = match change {
                        Change::Begin { token, .. } => Some(token),
                        Change::Renew { .. } | Change::Release => attempt.term,
                    };
                    return Ok(Outcome::Held {
                        token: token.expect("a renewal has its token"),
                        valid_for: attempt.duration,
                    });
                }
                (Written::Changed, _) => self.met_a_change(election, &mut entry, tries).await,
            }
        }
        Err(busy(election))
    }

    /// [`Backend::release`](super::Backend::release).
    pub async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        let ours = |entry: &R::Entry| {
            let holder = self.records.record(entry).holder;
            is_term(holder.as_ref(), owner, token)
        };
        let mut entry = self.latest(election).filter(ours);
        for tries in 0..TRIES {
            if entry.is_none() {
                entry = self.read(election).await?;
            }
            let Some(known) = entry.as_ref().filter(|known| ours(known)) else {
                return Ok(false);
            };
            let written = self.records.write(election, Some(known), Change::Release);
            match written.await? {
                Written::Done(written) | Written::Made(written) => {
                    self.saw(election, Some(written));
                    return Ok(true);
                }
                Written::Changed => self.met_a_change(election, &mut entry, tries).await,
            }
        }
        Err(busy(election))
    }

    /// [`Backend::peek`](super::Backend::peek).
    pub async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let entry = self.records.read(election).await?;
        let now = self.clock.now();
        let holder = entry.map(|entry| self.records.record(&entry));
        let holder = holder.and_then(|record| Some((record.version, record.holder?)));
        let mut elections = self.lock();
        let known = elections.entry(election.clone()).or_insert_with(Known::new);
        let Some((version, holder)) = holder else {
            known.peeked.clear();
            return Ok(None);
        };
        if let Lasts::For(duration) = holder.lasts
            && known.peeked.observe(version, duration, now).is_zero()
        {
            return Ok(None);
        }
        Ok(holder.leader)
    }

    /// A record was received, for example by a watch (`None`: it was deleted). Returns what a campaign
    /// should hear of it.
    pub fn saw(&self, election: &ElectionName, entry: Option<R::Entry>) -> Hint {
        let now = self.clock.now();
        let mut elections = self.lock();
        let known = elections.entry(election.clone()).or_insert_with(Known::new);
        let record = entry.as_ref().map(|entry| self.records.record(entry));
        let remaining = known.note(election, record.as_ref(), now);
        known.latest = entry;
        let holder = record.and_then(|record| record.holder);
        match (holder.and_then(|holder| holder.leader), remaining) {
            (Some(leader), Some(remaining)) => Hint::Alive {
                token: leader.token,
                valid_for: remaining,
            },
            _ => Hint::Free,
        }
    }

    /// How long the lease that was seen last still runs; zero: it has expired. `None`: nobody held it.
    pub fn remaining(&self, election: &ElectionName) -> Option<Duration> {
        let now = self.clock.now();
        self.lock().get(election)?.observation.remaining(now)
    }

    async fn read(&self, election: &ElectionName) -> Result<Option<R::Entry>, BackendError> {
        let entry = self.records.read(election).await?;
        self.saw(election, entry.clone());
        Ok(entry)
    }

    fn latest(&self, election: &ElectionName) -> Option<R::Entry> {
        self.lock().get(election)?.latest.clone()
    }

    /// What is known already, if it leads to a write.
    fn worth_a_write(&self, attempt: &Attempt<'_>) -> Option<R::Entry> {
        let entry = self.latest(attempt.election)?;
        let verdict = self.judge(attempt, Some(&entry), self.clock.now());
        matches!(verdict, Verdict::Write(_)).then_some(entry)
    }

    async fn met_a_change(
        &self,
        election: &ElectionName,
        entry: &mut Option<R::Entry>,
        tries: u32,
    ) {
        tracing::debug!(%election, "the record changed in between: looking again");
        *entry = None;
        if let Some(known) = self.lock().get_mut(election) {
            known.latest = None;
        }
        if tries > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn judge<'a>(
        &self,
        attempt: &Attempt<'a>,
        entry: Option<&R::Entry>,
        now: Moment,
    ) -> Verdict<'a> {
        let record = entry.map(|entry| self.records.record(entry));
        let mut elections = self.lock();
        let known = elections
            .entry(attempt.election.clone())
            .or_insert_with(Known::new);
        known.asked = Some(attempt.duration);
        let remaining = known.note(attempt.election, record.as_ref(), now);
        let holder = record.as_ref().and_then(|record| record.holder.as_ref());
        let leader = holder.and_then(|holder| holder.leader.clone());
        let duration = attempt.duration;
        let mine = leader.as_ref().is_some_and(|l| l.owner == *attempt.owner);
        match attempt.term {
            Some(token) if is_term(holder, attempt.owner, token) => {
                Verdict::Write(Change::Renew { duration })
            }
            None if mine || remaining.is_none_or(|remaining| remaining.is_zero()) => {
                let last = known.largest.map_or(0, Token::number);
                match (Token::new(token_floor().max(last + 1)), known.largest) {
                    (Some(token), _) => Verdict::Write(Change::Begin {
                        owner: attempt.owner,
                        token,
                        duration,
                    }),
                    (None, last) => Verdict::UsedUp(last.expect("the floor is a token")),
                }
            }
            _ => Verdict::Denied(Outcome::Other { leader, remaining }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ElectionName, Known<R::Entry>>> {
        self.elections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Entry> Known<Entry> {
    fn new() -> Self {
        Self {
            observation: Observation::new(),
            peeked: Observation::new(),
            latest: None,
            largest: None,
            asked: None,
            told: false,
        }
    }

    /// Returns how long the record's lease still runs; `None`: it is free.
    fn note(
        &mut self,
        election: &ElectionName,
        record: Option<&Record>,
        now: Moment,
    ) -> Option<Duration> {
        let Some(record) = record else {
            self.observation.clear();
            return None;
        };
        self.largest = self.largest.max(record.last);
        let Some(holder) = &record.holder else {
            self.observation.clear();
            return None;
        };
        self.largest = self.largest.max(holder.leader.as_ref().map(|l| l.token));
        let duration = match holder.lasts {
            Lasts::For(duration) => duration,
            Lasts::Unsaid => {
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(
                        %election,
                        "the record names a holder but no duration that makes sense: it is waited out like a lease of this instance's own"
                    );
                }
                self.asked?
            }
        };
        Some(
            self.observation
                .observe(record.version.clone(), duration, now),
        )
    }
}

fn is_term(holder: Option<&Holder>, owner: &Owner, token: Token) -> bool {
    let leader = holder.and_then(|holder| holder.leader.as_ref());
    leader.is_some_and(|leader| leader.owner == *owner && leader.token == token)
}

fn busy(election: &ElectionName) -> BackendError {
    BackendError::transient(
        "conflict",
        format!("others write the record of election {election} faster than this instance can"),
    )
}

impl<R: Records> fmt::Debug for Observed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed")
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}
