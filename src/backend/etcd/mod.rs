//! etcd, by the JSON gateway that every member has. etcd judges expiry: the record of a leader hangs on one of
//! etcd's leases, and goes with it.
//!
//! | key | holds |
//! |---|---|
//! | `cluster:<election>/lease` | `<token>:<seconds>:<nonce>:<instance>`, hanging on a lease of its term alone |
//! | `cluster:<election>/token` | the last token; stays for ever |
//!
//! `?prefix=` stands before both.
//!
//! - **Campaign**: both keys are read. If somebody else's record is there, that was all, but for the question how
//!   long its lease runs. Else a lease is granted, and one transaction writes both keys if neither has changed
//!   since. The token is the last one plus one, and no lower than the time: revisions would grow as well, but a
//!   cluster that was restored from a snapshot goes back to old ones. Whoever loses gives the lease back.
//! - **Renewal**: the lease is kept alive, and at the same time the record is read, since somebody may have
//!   deleted it while its lease lives. Nothing is written, so nobody hears of it.
//!   Keeping alive is not agreed on among the members: one that does not know yet that it no longer leads them
//!   would do it for nothing. Reading is agreed on, so the renewal counts if the lease was kept alive by a leader
//!   no older than the one that confirmed the reading.
//! - **Release**: the record is deleted if it hangs on the term's lease, which then is ended.
//!
//! Leases last whole seconds, and at least one and a half times the cluster's election timeout: what was granted
//! is what counts. When its members choose another leader, etcd gives all leases their whole time again.

mod address;
mod failure;
mod gateway;
mod listener;
mod record;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{join, join_all};

use self::address::{Address, Keys};
use self::failure::{BAD_RECORD, LEASE_GONE};
use self::gateway::{Condition, Deletion, Entry, Gateway, KeptAlive, LastToken, Seen, SeenKey};
use self::listener::Listener;
use self::record::{Record, last_token};
use super::{
    Attempt, Backend, BackendError, BadStore, Capabilities, Hints, StoreOptions, UNSUITABLE, Watch,
    token_floor,
};
use crate::clock::Clock;
use crate::lease::{ElectionName, FailureKind, LONGEST_LEASE, Leader, Outcome, Owner, Token};
use crate::locked::locked;
use crate::random::random_u64;

/// What a cluster with etcd's own settings grants at least.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);
/// How often etcd looks which leases have ended. A record may stay so much longer than its lease.
const SWEEP: Duration = Duration::from_millis(500);
/// How often one attempt begins again because others were faster, or because etcd's leader changed.
const ROUNDS: usize = 5;

/// See the module's description.
#[derive(Debug)]
pub struct EtcdStore {
    gateway: Arc<Gateway>,
    listener: Arc<Listener>,
    /// The terms that were won here.
    terms: Mutex<HashMap<ElectionName, Term>>,
    /// Leases that may exist and that nobody needs.
    strays: Mutex<Vec<(i64, Arrival)>>,
    told_of_long_leases: AtomicBool,
    /// See [`StoreOptions::for_others`].
    for_others: bool,
}

/// A term and its lease.
#[derive(Debug, Clone)]
struct Term {
    leader: Leader,
    lease: i64,
    /// What was asked for, in seconds. (What was granted may be more.)
    asked: u64,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    _clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let address = Address::parse(url, &options.base_dir)?;
    let gateway = Arc::new(Gateway::new(address, options)?);
    Ok(Arc::new(EtcdStore {
        listener: Arc::new(Listener::new(Arc::clone(&gateway), options)),
        gateway,
        terms: Mutex::default(),
        strays: Mutex::default(),
        told_of_long_leases: AtomicBool::new(false),
        for_others: options.for_others,
    }))
}

#[async_trait]
impl Backend for EtcdStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: SHORTEST_LEASE,
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        self.gateway.address.shown.clone()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        match self.rehearse().await {
            Err(mut error) if error.code == UNSUITABLE => {
                if let Some(version) = self.gateway.version().await {
                    error.message = format!("{} (it is etcd {version})", error.message);
                }
                Err(error)
            }
            rehearsed => rehearsed,
        }
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        match attempt.term {
            None => self.campaign(attempt).await,
            Some(token) => self.renew(attempt, token).await,
        }
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        let keys = self.keys(election);
        let leader = Leader {
            owner: owner.clone(),
            token,
        };
        let lease = self.delete_record(election, &keys.lease, &leader).await?;
        self.forget_term(election, &leader);
        if let Some(lease) = lease {
            self.stray(lease, Arrival::Sure);
            self.clear_away().await;
        }
        Ok(lease.is_some())
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let key = self.keys(election).lease;
        match self.gateway.read_key(&key).await?.entry {
            None => Ok(None),
            Some(entry) => Ok(Some(self.record(&entry, &key)?.leader)),
        }
    }

    fn watch(self: Arc<Self>, election: ElectionName, hints: Hints) -> Option<Watch> {
        Some(Box::pin(async move {
            self.listener.listen(election, hints).forward().await;
        }))
    }

    async fn close(&self) {
        self.listener.close().await;
        self.clear_away().await;
        self.gateway.hang_up();
    }
}

impl EtcdStore {
    async fn campaign(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let keys = self.keys(attempt.election);
        let (seen, ()) = join(self.gateway.read(&keys), self.clear_away()).await;
        let mut seen = seen?;
        let mut grant = None;
        for _ in 0..ROUNDS {
            let mut before = None;
            if let Some(entry) = &seen.lease {
                let record = self.record(entry, &keys.lease)?;
                if record.leader.owner != *attempt.owner {
                    return self.denied(record.leader, entry, grant, &keys).await;
                }
                before = Some((record.leader.token, entry.lease));
            }
            let token = self.next_token(before.map(|(token, _)| token), &seen, &keys)?;
            let left = match before {
                Some((_, old)) if self.for_others => self.still_runs(old).await?,
                _ => None,
            };
            // A whole second more than etcd tells: it tells what is surely left.
            let left = left.map(|left| left + Duration::from_secs(1));
            let duration = attempt.duration.max(left.unwrap_or_default());
            let lease = match grant.take() {
                Some(lease) if lease.granted >= seconds(duration) => lease,
                _ => self.grant(duration).await?,
            };
            let leader = Leader {
                owner: attempt.owner.clone(),
                token,
            };
            if let Some(now) = self
                .write(&keys, &seen, &leader, &lease, Some(token))
                .await?
            {
                grant = Some(lease);
                seen = now;
                continue;
            }
            if let Some((_, old)) = before {
                self.stray(old, Arrival::Sure);
            }
            let valid_for = Duration::from_secs(lease.granted);
            self.remember(attempt.election, leader, lease);
            return Ok(Outcome::Held { token, valid_for });
        }
        Err(BackendError::transient(
            "contended",
            format!(
                "others were faster {ROUNDS} times in a row on {}",
                self.describe()
            ),
        ))
    }

    /// Somebody else's record is there.
    async fn denied(
        &self,
        leader: Leader,
        entry: &Entry,
        grant: Option<Grant<'_>>,
        keys: &Keys,
    ) -> Result<Outcome, BackendError> {
        drop(grant);
        let (remaining, ()) = join(self.remaining(entry, &keys.lease), self.clear_away()).await;
        Ok(Outcome::Other {
            leader: Some(leader),
            remaining: Some(remaining?),
        })
    }

    /// With the lease that it hung on. `None`: it is not that term's.
    async fn delete_record(
        &self,
        election: &ElectionName,
        key: &str,
        leader: &Leader,
    ) -> Result<Option<i64>, BackendError> {
        let mut perhaps = None;
        if let Some(Term { lease, .. }) = self.term(election, leader) {
            match self.gateway.delete(key, Condition::HangsOn(lease)).await? {
                Deletion::Done => return Ok(Some(lease)),
                Deletion::Refused { asked_before } => perhaps = asked_before.then_some(lease),
            }
        }
        // It may hang on another lease than is known here.
        if let Some(entry) = self.gateway.read_key(key).await?.entry
            && Record::read(&entry.value).is_some_and(|record| record.leader == *leader)
        {
            let unchanged = Condition::UnchangedSince(entry.revision);
            match self.gateway.delete(key, unchanged).await? {
                Deletion::Done => return Ok(Some(entry.lease)),
                Deletion::Refused { asked_before } => perhaps = asked_before.then_some(entry.lease),
            }
        }
        // A lease that lives without its record: the first copy of the request took that away.
        match perhaps {
            Some(lease) if self.gateway.time_left(lease).await?.is_some() => Ok(Some(lease)),
            _ => Ok(None),
        }
    }

    async fn renew(&self, attempt: &Attempt<'_>, token: Token) -> Result<Outcome, BackendError> {
        let leader = Leader {
            owner: attempt.owner.clone(),
            token,
        };
        let asked = seconds(attempt.duration);
        let known = self.term(attempt.election, &leader);
        let renewed = match known.filter(|term| term.asked == asked) {
            Some(term) => self.keep_alive(attempt.election, &leader, &term).await?,
            None => None,
        };
        let outcome = match renewed {
            Some(outcome) => outcome,
            None => self.renew_on_another_lease(attempt, &leader).await?,
        };
        if !matches!(outcome, Outcome::Held { .. }) {
            self.forget_term(attempt.election, &leader);
        }
        Ok(outcome)
    }

    /// `None`: the record is still this term's, but it hangs on another lease, or on none.
    async fn keep_alive(
        &self,
        election: &ElectionName,
        leader: &Leader,
        term: &Term,
    ) -> Result<Option<Outcome>, BackendError> {
        let key = self.keys(election).lease;
        for _ in 0..ROUNDS {
            let alive = self.gateway.keep_alive(term.lease);
            let (kept, seen) = both(join(alive, self.gateway.read_key(&key)).await)?;
            let KeptAlive {
                seconds,
                raft_term: kept_by,
            } = kept;
            let SeenKey { entry, raft_term } = seen;
            let Some(entry) = entry else {
                return Ok(Some(NOBODY));
            };
            let record = self.record(&entry, &key)?;
            if record.leader != *leader {
                return self.denied_by(record.leader, &entry, &key).await.map(Some);
            }
            if entry.lease != term.lease {
                return Ok(None);
            }
            match seconds {
                // The record is about to go with it.
                None => return Ok(Some(NOBODY)),
                Some(seconds) if kept_by >= raft_term => {
                    return Ok(Some(Outcome::Held {
                        token: leader.token,
                        valid_for: Duration::from_secs(seconds),
                    }));
                }
                Some(_) => {}
            }
        }
        Err(BackendError::ambiguous(
            "failover",
            format!(
                "the members of {} choose one leader after the other",
                self.describe()
            ),
        ))
    }

    /// For another duration than before, or of a term whose lease is not known here.
    async fn renew_on_another_lease(
        &self,
        attempt: &Attempt<'_>,
        leader: &Leader,
    ) -> Result<Outcome, BackendError> {
        let keys = self.keys(attempt.election);
        let mut seen = self.gateway.read(&keys).await?;
        let mut grant = None;
        for _ in 0..ROUNDS {
            let Some(entry) = &seen.lease else {
                return Ok(NOBODY);
            };
            let record = self.record(entry, &keys.lease)?;
            if record.leader != *leader {
                return self.denied_by(record.leader, entry, &keys.lease).await;
            }
            let old = entry.lease;
            if self.for_others
                && let Some(left) = self.still_runs(old).await?
                && left >= attempt.duration
            {
                // Another process asked for longer, and was told so.
                return Ok(Outcome::Held {
                    token: leader.token,
                    valid_for: left,
                });
            }
            let mut lease = match grant.take() {
                Some(lease) => lease,
                None => self.grant(attempt.duration).await?,
            };
            // Without an answer, the record of a living term may hang on it. It is left to its end then.
            lease.lease.gone = true;
            if let Some(now) = self.write(&keys, &seen, leader, &lease, None).await? {
                lease.lease.gone = false;
                grant = Some(lease);
                seen = now;
                continue;
            }
            self.stray(old, Arrival::Sure);
            let valid_for = Duration::from_secs(lease.granted);
            self.remember(attempt.election, leader.clone(), lease);
            return Ok(Outcome::Held {
                token: leader.token,
                valid_for,
            });
        }
        Err(BackendError::ambiguous(
            "contended",
            format!(
                "somebody writes a record again and again on {}",
                self.describe()
            ),
        ))
    }

    async fn denied_by(
        &self,
        leader: Leader,
        entry: &Entry,
        key: &str,
    ) -> Result<Outcome, BackendError> {
        let remaining = self.remaining(entry, key).await?;
        Ok(Outcome::Other {
            leader: Some(leader),
            remaining: Some(remaining),
        })
    }

    /// `Some`: the keys were not as seen, but so, and nothing was written.
    async fn write(
        &self,
        keys: &Keys,
        seen: &Seen,
        leader: &Leader,
        lease: &Grant<'_>,
        token: Option<Token>,
    ) -> Result<Option<Seen>, BackendError> {
        let record = Record {
            leader: leader.clone(),
            seconds: lease.granted,
        };
        let written = record.written();
        let token = token.map(|token| LastToken {
            number: token.number(),
            lease: 0,
        });
        let met = self
            .gateway
            .write(keys, seen, lease.id(), &written, token)
            .await?;
        // A request that is sent twice meets itself: nobody else knows of that lease.
        Ok(met.filter(|met| {
            let own = met.lease.as_ref().filter(|entry| entry.lease == lease.id());
            own.is_none_or(|entry| entry.value != written.as_bytes())
        }))
    }

    /// How long a record may stay. etcd tells whole seconds that are surely left.
    async fn remaining(&self, entry: &Entry, key: &str) -> Result<Duration, BackendError> {
        let left = match entry.lease {
            0 => None,
            lease => Some(self.gateway.time_left(lease).await?),
        };
        match left {
            Some(Some(seconds)) if seconds <= LONGEST_LEASE.as_secs() => {
                Ok(Duration::from_secs(seconds + 1))
            }
            Some(None) => Ok(SWEEP),
            None | Some(Some(_)) => Err(self.not_ours(key)),
        }
    }

    /// How long a lease surely runs. `None`: it is none, or gone.
    async fn still_runs(&self, lease: i64) -> Result<Option<Duration>, BackendError> {
        if lease == 0 {
            return Ok(None);
        }
        let left = self.gateway.time_left(lease).await?;
        Ok(left.map(|left| Duration::from_secs(left).min(LONGEST_LEASE)))
    }

    fn next_token(
        &self,
        before: Option<Token>,
        seen: &Seen,
        keys: &Keys,
    ) -> Result<Token, BackendError> {
        let last = match &seen.token {
            None => None,
            Some(entry) => {
                Some(last_token(&entry.value).ok_or_else(|| self.not_ours(&keys.token))?)
            }
        };
        let next = last.max(before).map_or(0, |last| last.number() + 1);
        Token::new(next.max(token_floor())).ok_or_else(|| self.not_ours(&keys.token))
    }

    // ---- leases ----

    async fn grant(&self, duration: Duration) -> Result<Grant<'_>, BackendError> {
        let asked = seconds(duration);
        for _ in 0..ROUNDS {
            // Known before it exists: whatever becomes of the request, it can be cleared away.
            let mut lease = Stray {
                store: self,
                id: random_id(),
                arrival: Arrival::Unsure,
                gone: false,
            };
            if let Some(granted) = self.gateway.grant(lease.id, asked).await? {
                lease.arrival = Arrival::Sure;
                let grant = Grant {
                    lease,
                    asked,
                    granted,
                };
                self.tell_of_long_leases(&grant);
                return Ok(grant);
            }
        }
        Err(BackendError::transient(
            "store",
            format!("{} has all leases that we ask for", self.describe()),
        ))
    }

    fn tell_of_long_leases(&self, grant: &Grant<'_>) {
        let Grant { asked, granted, .. } = grant;
        if granted > asked && !self.told_of_long_leases.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                store = %self.describe(),
                "this etcd grants no lease shorter than {granted} s, so a takeover after a crash takes that long, \
                 not {asked} s: it is one and a half times its --election-timeout"
            );
        }
    }

    fn stray(&self, lease: i64, arrival: Arrival) {
        if lease != 0 {
            locked(&self.strays).push((lease, arrival));
        }
    }

    /// Ends leases that nobody needs. Those that cannot be ended now end by themselves.
    async fn clear_away(&self) {
        let strays = std::mem::take(&mut *locked(&self.strays));
        let ending = strays.into_iter().map(async |(id, arrival)| {
            let mut stray = Stray {
                store: self,
                id,
                arrival,
                gone: false,
            };
            match self.gateway.revoke(id).await {
                // Its grant may have been overtaken, so it is ended once more, the next time.
                Ok(false) if arrival == Arrival::Unsure => {
                    stray.arrival = Arrival::Sure;
                    return;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(store = %self.describe(), %error, "a lease is left to its end");
                }
            }
            stray.gone = true;
        });
        join_all(ending).await;
    }

    // ---- what is known here ----

    fn term(&self, election: &ElectionName, leader: &Leader) -> Option<Term> {
        let terms = locked(&self.terms);
        terms
            .get(election)
            .filter(|term| term.leader == *leader)
            .cloned()
    }

    fn remember(&self, election: &ElectionName, leader: Leader, lease: Grant<'_>) {
        let term = Term {
            leader,
            asked: lease.asked,
            lease: lease.keep(),
        };
        locked(&self.terms).insert(election.clone(), term);
    }

    fn forget_term(&self, election: &ElectionName, leader: &Leader) {
        let mut terms = locked(&self.terms);
        if terms
            .get(election)
            .is_some_and(|term| term.leader == *leader)
        {
            terms.remove(election);
        }
    }

    // ---- records ----

    fn keys(&self, election: &ElectionName) -> Keys {
        self.gateway.address.keys(election.as_str())
    }

    fn record(&self, entry: &Entry, key: &str) -> Result<Record, BackendError> {
        Record::read(&entry.value).ok_or_else(|| self.not_ours(key))
    }

    fn not_ours(&self, key: &str) -> BackendError {
        BackendError::fatal(
            BAD_RECORD,
            format!(
                "the key {key} on {} holds something that no election wrote, or keeps it without an end. If nobody \
                 needs it, delete it: etcdctl del \"{key}\". If another program does, choose another place with \
                 ?prefix=<text> behind the store's URL",
                self.describe()
            ),
        )
    }

    // ---- before the first attempt ----

    /// All that an election does, on keys that none can have: no name begins with a space. They hang on a lease,
    /// so that they go in any case.
    async fn rehearse(&self) -> Result<(), BackendError> {
        let began = Instant::now();
        let lease = self.grant(SHORTEST_LEASE * 5).await?;
        let seconds = lease.granted;
        let rehearsed = self.rehearse_on(&lease).await;
        drop(lease);
        match rehearsed {
            // Its keys went with their lease.
            Err(error)
                if matches!(error.code, UNSUITABLE | LEASE_GONE)
                    && began.elapsed() >= Duration::from_secs(seconds) =>
            {
                Err(BackendError::transient(
                    "timeout",
                    format!(
                        "{} took more than {seconds} s for a few requests, so what they found means nothing: {}",
                        self.describe(),
                        error.message
                    ),
                ))
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.clear_away().await;
                Ok(())
            }
        }
    }

    async fn rehearse_on(&self, lease: &Grant<'_>) -> Result<(), BackendError> {
        let name = format!(" {:016x}", random_id());
        let keys = self.gateway.address.keys(&name);
        let nothing = Seen {
            lease: None,
            token: None,
        };
        let odd = |what: &str| {
            Err(BackendError::fatal(
                UNSUITABLE,
                format!("{} {what}, so it cannot elect", self.describe()),
            ))
        };
        let token = LastToken {
            number: 1,
            lease: lease.id(),
        };
        let probe = |text: &'static str| {
            self.gateway
                .write(&keys, &nothing, lease.id(), text, Some(token))
        };
        if probe("probe")
            .await?
            .is_some_and(|met| !is_probe(&met, lease.id()))
        {
            return odd("finds keys that nobody wrote");
        }
        match probe("again").await? {
            Some(met) if is_probe(&met, lease.id()) => {}
            _ => return odd("does not honour conditional writes"),
        }
        let (kept, seen) = both(
            join(
                self.gateway.keep_alive(lease.id()),
                self.gateway.read_key(&keys.lease),
            )
            .await,
        )?;
        if kept.seconds.is_none() || seen.entry.is_none() {
            return odd("forgets what was written");
        }
        self.gateway.time_left(lease.id()).await?;
        let here = Condition::HangsOn(lease.id());
        self.gateway.delete(&keys.lease, here).await?;
        let Some(token) = self.gateway.read(&keys).await?.token else {
            return odd("forgets what was written");
        };
        let here = Condition::UnchangedSince(token.revision);
        self.gateway.delete(&keys.token, here).await?;
        Ok(())
    }
}

const NOBODY: Outcome = Outcome::Other {
    leader: None,
    remaining: None,
};

/// Whether a lease exists, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// It did at some time.
    Sure,
    /// Its grant has no answer yet, and may come behind a revocation.
    Unsure,
}

/// A lease that nobody needs, unless it is a term's (or is gone) by the end.
#[derive(Debug)]
struct Stray<'a> {
    store: &'a EtcdStore,
    id: i64,
    arrival: Arrival,
    gone: bool,
}

/// A lease that is not yet a term's.
#[derive(Debug)]
struct Grant<'a> {
    lease: Stray<'a>,
    asked: u64,
    granted: u64,
}

impl Grant<'_> {
    fn id(&self) -> i64 {
        self.lease.id
    }

    /// It is a term's now.
    fn keep(mut self) -> i64 {
        self.lease.gone = true;
        self.lease.id
    }
}

impl Drop for Stray<'_> {
    /// Also if whoever asked was given up.
    fn drop(&mut self) {
        if !self.gone {
            self.store.stray(self.id, self.arrival);
        }
    }
}

fn is_probe(seen: &Seen, lease: i64) -> bool {
    let record = seen.lease.as_ref();
    record.is_some_and(|entry| entry.value == b"probe" && entry.lease == lease)
}

/// Of two requests that were sent together. The first may have been done if the second failed.
fn both(
    results: (
        Result<KeptAlive, BackendError>,
        Result<SeenKey, BackendError>,
    ),
) -> Result<(KeptAlive, SeenKey), BackendError> {
    match results {
        (Ok(kept), Ok(seen)) => Ok((kept, seen)),
        (Err(_) | Ok(_), Err(error)) if error.kind == FailureKind::Fatal => Err(error),
        (Err(error), _) => Err(error),
        (Ok(_), Err(error)) => Err(BackendError::ambiguous(error.code, error.message)),
    }
}

/// Up, never down: a lease must not end before its leader believes so.
fn seconds(duration: Duration) -> u64 {
    let whole = duration.as_secs();
    (whole + u64::from(duration.subsec_nanos() > 0)).max(1)
}

fn random_id() -> i64 {
    // Positive, and never zero, which stands for none.
    i64::try_from(random_u64() >> 1).unwrap_or(i64::MAX).max(1)
}
