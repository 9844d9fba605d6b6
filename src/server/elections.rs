//! The elections that a server holds for others: whoever checks in is a candidate, and the store decides.
//!
//! What is kept in memory is only what was seen: for the status, and so that a check-in need not look for its
//! term first. Leases are the store's, so a server that starts again, or another one on the same store, finds
//! every term as it was.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::metrics::Metrics;
use crate::backend::{Attempt, Backend, BackendError};
use crate::campaign::PreparedStore;
use crate::clock::{Clock, Moment};
use crate::lease::{ElectionName, InstanceId, Leader, Outcome, Owner, Token};
use crate::locked::locked;

/// The store keeps a lease for this part longer than its leader is told: clients of this protocol count to the
/// very end of it, by a clock of their own.
const MARGIN_DIVISOR: u32 = 20;
/// So many resources are known at once. Each is a record in the store.
const RESOURCES: usize = 20_000;
/// A resource, or a workload, that nobody spoke of for so long is forgotten here. Its record stays.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 * 60);
/// The same of a resource without a leader, where others want its place.
const PASSED_OVER_AFTER: Duration = Duration::from_secs(60);
/// What ended is not looked at again and again.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// So many resources of one request are asked for at once.
const AT_ONCE: usize = 32;
/// The changes that the status page shows.
const CHANGES: usize = 50;

#[derive(Debug)]
pub(super) struct Elections {
    store: Arc<PreparedStore>,
    clock: Arc<dyn Clock>,
    pub lease: Duration,
    /// How long one operation on the store may take.
    limit: Duration,
    pub metrics: Metrics,
    resources: Mutex<HashMap<ElectionName, Arc<Resource>>>,
    candidates: Mutex<HashMap<InstanceId, Candidate>>,
    changes: Mutex<VecDeque<Change>>,
    looking: tokio::sync::Mutex<()>,
}

/// Who checks in.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub owner: Owner,
    pub wants: Wants,
}

/// Which term it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    /// To renew this one, and nothing else.
    This(Token),
    /// Whichever it has, or a new one.
    Any,
    /// One with a larger token than this: a new one, unless another copy of the request has begun it.
    After(u64),
}

/// What is known of one resource.
#[derive(Debug)]
struct Resource {
    /// One candidate at a time: what one is told is known to the next.
    turn: tokio::sync::Mutex<()>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Clone)]
struct Seen {
    leader: Option<Leader>,
    /// When its lease ends, unless it is renewed.
    until: Moment,
    since: SystemTime,
    last_check_in: SystemTime,
    /// Whether this server has looked what the store holds.
    looked: bool,
    looked_at: Moment,
    asked: Moment,
    /// Somebody's check-in was answered: it is shown, and kept.
    answered: bool,
}

/// Who checked in lately.
#[derive(Debug, Clone)]
struct Candidate {
    resource: ElectionName,
    last: Moment,
}

/// What an asker is told of one resource, and what the status says.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub resource: ElectionName,
    pub leads: bool,
    /// How long its lease surely lasts, if it leads.
    pub valid_for: Duration,
    pub leader: Option<Leader>,
    pub remaining: Option<Duration>,
    pub since: SystemTime,
    pub last_check_in: SystemTime,
}

/// Another leader than before.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub at: SystemTime,
    pub resource: ElectionName,
    /// `None`: released.
    pub leader: Option<Leader>,
}

#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub id: InstanceId,
    pub resource: ElectionName,
    pub is_running: bool,
}

#[derive(Debug)]
pub(super) enum Failed {
    TooManyResources,
    Store(BackendError),
}

impl Resource {
    fn new(now: Moment) -> Self {
        let wall = SystemTime::now();
        Self {
            turn: tokio::sync::Mutex::default(),
            seen: Mutex::new(Seen {
                leader: None,
                until: now,
                since: wall,
                last_check_in: wall,
                looked: false,
                looked_at: now,
                asked: now,
                answered: false,
            }),
        }
    }
}

impl From<BackendError> for Failed {
    fn from(error: BackendError) -> Self {
        Self::Store(error)
    }
}

impl Elections {
    pub fn new(
        store: Arc<PreparedStore>,
        clock: Arc<dyn Clock>,
        lease: Duration,
        limit: Duration,
    ) -> Self {
        Self {
            store,
            clock,
            lease,
            limit,
            metrics: Metrics::default(),
            resources: Mutex::default(),
            candidates: Mutex::default(),
            changes: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    pub fn store(&self) -> &Arc<dyn Backend> {
        self.store.backend()
    }

    /// Words that follow "must" if the store cannot hold a resource of that name.
    pub fn check_name(&self, resource: &ElectionName) -> Result<(), String> {
        self.store().check_name(resource)
    }

    /// Of all these resources, in their order, or the first failure.
    pub async fn check_in(
        &self,
        asker: &Asker,
        resources: &[ElectionName],
    ) -> Result<Vec<Standing>, Failed> {
        let mut waiting = resources.iter().enumerate();
        let mut running = FuturesUnordered::new();
        let mut standings: Vec<Option<Standing>> = vec![None; resources.len()];
        loop {
            while running.len() < AT_ONCE
                && let Some((at, resource)) = waiting.next()
            {
                running.push(async move { (at, self.check_in_one(asker, resource).await) });
            }
            let Some((at, standing)) = running.next().await else {
                break;
            };
            standings[at] = Some(standing?);
        }
        Ok(standings.into_iter().flatten().collect())
    }

    async fn check_in_one(
        &self,
        asker: &Asker,
        resource: &ElectionName,
    ) -> Result<Standing, Failed> {
        let known = self.resource(resource)?;
        let begun = Instant::now();
        let checked = timeout(self.limit, async {
            let _turn = known.turn.lock().await;
            self.store.prepare().await?;
            self.attempt(asker, resource, &known).await
        });
        let checked = checked.await.unwrap_or_else(|_| Err(self.too_slow()));
        self.metrics.checked_in(begun.elapsed(), &checked);
        match &checked {
            Ok(_) => locked(&known.seen).answered = true,
            Err(_) => self.forget_unanswered(resource),
        }
        let standing = checked?;
        self.note_candidate(&asker.owner.instance, resource);
        Ok(standing)
    }

    /// Renews the term that the asker has, or campaigns.
    async fn attempt(
        &self,
        asker: &Asker,
        resource: &ElectionName,
        known: &Resource,
    ) -> Result<Standing, BackendError> {
        let owner = &asker.owner;
        let store = self.store();
        let attempt = async |term| {
            let duration = self.lease + self.margin();
            let attempt = Attempt {
                election: resource,
                owner,
                duration,
                term,
            };
            store.attempt(&attempt).await
        };
        let term_of = |leader: Option<&Leader>| {
            let own = leader.filter(|leader| leader.owner == *owner)?.token;
            let is_wanted = match asker.wants {
                Wants::After(token) => own.number() > token,
                _ => true,
            };
            is_wanted.then_some(own)
        };
        if let Wants::This(term) = asker.wants {
            let outcome = attempt(Some(term)).await?;
            return Ok(self.note(owner, resource, known, outcome));
        }
        let is_known = {
            let seen = locked(&known.seen);
            let by_other = seen
                .leader
                .as_ref()
                .is_some_and(|leader| leader.owner != *owner);
            // Another server may just have begun a term for another copy of the request.
            seen.looked && (asker.wants == Wants::Any || by_other)
        };
        if !is_known {
            let leader = store.peek(resource).await?;
            let mut seen = locked(&known.seen);
            seen.looked = true;
            seen.leader = leader;
        }
        let term = term_of(locked(&known.seen).leader.as_ref());
        let mut outcome = attempt(term).await?;
        if term.is_some() {
            // Another server may have begun a later term for it, or its term is over.
            let later = match &outcome {
                Outcome::Held { .. } => None,
                Outcome::Other { leader: None, .. } => Some(None),
                Outcome::Other { leader, .. } => term_of(leader.as_ref()).map(Some),
            };
            if let Some(term) = later {
                outcome = attempt(term).await?;
            }
        }
        Ok(self.note(owner, resource, known, outcome))
    }

    fn margin(&self) -> Duration {
        self.lease / MARGIN_DIVISOR
    }

    fn note(
        &self,
        owner: &Owner,
        resource: &ElectionName,
        known: &Resource,
        outcome: Outcome,
    ) -> Standing {
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let mut seen = locked(&known.seen);
        let (leader, remaining, valid_for) = match outcome {
            Outcome::Held { token, valid_for } => {
                let owner = owner.clone();
                let told = self.lease.min(valid_for.saturating_sub(self.margin()));
                (Some(Leader { owner, token }), Some(valid_for), told)
            }
            Outcome::Other { leader, remaining } => (leader, remaining, Duration::ZERO),
        };
        let leads =
            leader.as_ref().is_some_and(|leader| leader.owner == *owner) && !valid_for.is_zero();
        if seen.leader != leader {
            seen.since = wall;
            self.change(resource, leader.as_ref());
        }
        if leads {
            seen.last_check_in = wall;
        } else if let Some(remaining) = remaining {
            // It checked in with another server, when its lease had its whole length.
            let since = (self.lease + self.margin()).saturating_sub(remaining);
            seen.last_check_in = wall - since;
        }
        seen.looked = true;
        seen.until = now + remaining.unwrap_or_default();
        seen.leader.clone_from(&leader);
        Standing {
            resource: resource.clone(),
            leads,
            valid_for,
            leader,
            remaining,
            since: seen.since,
            last_check_in: seen.last_check_in,
        }
    }

    /// Whether each of the terms was the asker's, and is over now.
    pub async fn release(
        &self,
        asker: &Asker,
        resources: &[ElectionName],
    ) -> Result<Vec<(ElectionName, bool)>, Failed> {
        let mut released = Vec::new();
        for resource in resources {
            let done = timeout(self.limit, self.release_one(asker, resource)).await;
            let done = done.unwrap_or_else(|_| Err(Failed::Store(self.too_slow())))?;
            released.push((resource.clone(), done));
        }
        Ok(released)
    }

    async fn release_one(&self, asker: &Asker, resource: &ElectionName) -> Result<bool, Failed> {
        let known = locked(&self.resources).get(resource).cloned();
        // One that is not known is not kept for this.
        let known = known.unwrap_or_else(|| Arc::new(Resource::new(self.clock.now())));
        let _turn = known.turn.lock().await;
        self.store.prepare().await?;
        let token = if let Wants::This(token) = asker.wants {
            Some(token)
        } else {
            let leader = self.store().peek(resource).await?;
            let own = leader.filter(|leader| leader.owner == asker.owner);
            own.map(|leader| leader.token)
        };
        let Some(token) = token else {
            return Ok(false);
        };
        let released = self.store().release(resource, &asker.owner, token).await?;
        if released {
            let mut seen = locked(&known.seen);
            seen.leader = None;
            seen.until = self.clock.now();
            seen.since = SystemTime::now();
            self.change(resource, None);
        }
        Ok(released)
    }

    /// Ends every term that this server knows of.
    pub async fn reset(&self) -> Result<(), Failed> {
        for resource in self.names() {
            let known = self.resource(&resource)?;
            let cleared = timeout(self.limit, async {
                let _turn = known.turn.lock().await;
                self.store.prepare().await?;
                if let Some(Leader { owner, token }) = self.store().peek(&resource).await? {
                    self.store().release(&resource, &owner, token).await?;
                }
                Ok(())
            });
            cleared.await.unwrap_or_else(|_| Err(self.too_slow()))?;
        }
        locked(&self.resources).clear();
        locked(&self.candidates).clear();
        Ok(())
    }

    /// Everything that this server was asked about, by name. Leases that ended as far as it saw are looked at
    /// again: another server may have renewed them.
    pub async fn status(&self) -> Vec<Standing> {
        let _one_at_a_time = self.looking.lock().await;
        let mut names = self.names().into_iter();
        let mut running = FuturesUnordered::new();
        let mut standings = Vec::new();
        loop {
            while running.len() < AT_ONCE
                && let Some(name) = names.next()
            {
                running.push(self.look(name));
            }
            match running.next().await {
                Some(standing) => standings.extend(standing),
                None => break,
            }
        }
        standings.sort_by(|a, b| a.resource.cmp(&b.resource));
        standings
    }

    async fn look(&self, resource: ElectionName) -> Option<Standing> {
        let known = locked(&self.resources).get(&resource).cloned();
        let known = known.filter(|known| locked(&known.seen).answered)?;
        let now = self.clock.now();
        let look_again = {
            let mut seen = locked(&known.seen);
            let look = seen.until <= now && now.since(seen.looked_at) >= LOOK_INTERVAL;
            if look {
                seen.looked_at = now;
            }
            look
        };
        if look_again {
            let looked = timeout(self.limit, async {
                self.store.prepare().await?;
                self.store().peek(&resource).await
            });
            // One that cannot be looked at is shown as it was seen.
            if let Ok(Ok(leader)) = looked.await {
                let mut seen = locked(&known.seen);
                if seen.until <= now && seen.leader != leader {
                    seen.since = SystemTime::now();
                    seen.leader = leader;
                }
            }
        }
        let seen = locked(&known.seen).clone();
        let remaining = seen.until.since(now);
        Some(Standing {
            resource,
            leads: false,
            valid_for: Duration::ZERO,
            remaining: Some(remaining).filter(|left| seen.leader.is_some() && !left.is_zero()),
            leader: seen.leader,
            since: seen.since,
            last_check_in: seen.last_check_in,
        })
    }

    /// What is seen at this moment, without asking the store.
    pub fn counts(&self) -> (usize, usize) {
        let now = self.clock.now();
        let resources = locked(&self.resources);
        let led = resources.values().filter(|resource| {
            let seen = locked(&resource.seen);
            seen.leader.is_some() && seen.until > now
        });
        (resources.len(), led.count())
    }

    pub fn changes(&self) -> Vec<Change> {
        locked(&self.changes).iter().cloned().collect()
    }

    pub fn workloads(&self) -> Vec<Workload> {
        let now = self.clock.now();
        let candidates = locked(&self.candidates);
        let mut workloads: Vec<_> = candidates
            .iter()
            .map(|(id, candidate)| Workload {
                id: id.clone(),
                resource: candidate.resource.clone(),
                is_running: now.since(candidate.last) < self.lease,
            })
            .collect();
        workloads.sort_by(|a, b| a.id.cmp(&b.id));
        workloads
    }

    /// Makes sure that the store can be used.
    pub async fn prepare(&self) -> Result<(), BackendError> {
        self.store.prepare().await
    }

    /// Whether the store answers.
    pub async fn is_well(&self) -> Result<(), BackendError> {
        let nobodys = ElectionName::new("whenleader").expect("a good name");
        let looked = timeout(self.limit, async {
            self.store.prepare().await?;
            self.store().peek(&nobodys).await.map(drop)
        });
        looked.await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    pub async fn close(&self) {
        self.store.close().await;
    }

    /// Forgets what nobody speaks of.
    pub fn sweep(&self) {
        let now = self.clock.now();
        let lately = |then: Moment| now.since(then) < FORGOTTEN_AFTER;
        locked(&self.resources).retain(|_, resource| lately(locked(&resource.seen).asked));
        locked(&self.candidates).retain(|_, candidate| lately(candidate.last));
    }

    fn names(&self) -> Vec<ElectionName> {
        locked(&self.resources).keys().cloned().collect()
    }

    fn resource(&self, name: &ElectionName) -> Result<Arc<Resource>, Failed> {
        let mut resources = locked(&self.resources);
        let now = self.clock.now();
        if !resources.contains_key(name) && resources.len() >= RESOURCES {
            resources.retain(|_, resource| {
                let seen = locked(&resource.seen);
                seen.leader.is_some() || now.since(seen.asked) < PASSED_OVER_AFTER
            });
            if resources.len() >= RESOURCES {
                return Err(Failed::TooManyResources);
            }
        }
        let resource = resources
            .entry(name.clone())
            .or_insert_with(|| Arc::new(Resource::new(now)));
        locked(&resource.seen).asked = now;
        Ok(Arc::clone(resource))
    }

    fn forget_unanswered(&self, name: &ElectionName) {
        let mut resources = locked(&self.resources);
        // Nobody else waits for its turn.
        let is_unused = |resource: &Arc<Resource>| {
            Arc::strong_count(resource) <= 2 && !locked(&resource.seen).answered
        };
        if resources.get(name).is_some_and(is_unused) {
            resources.remove(name);
        }
    }

    fn note_candidate(&self, id: &InstanceId, resource: &ElectionName) {
        let last = self.clock.now();
        let mut candidates = locked(&self.candidates);
        if candidates.len() >= RESOURCES && !candidates.contains_key(id) {
            return;
        }
        let resource = resource.clone();
        candidates.insert(id.clone(), Candidate { resource, last });
    }

    fn change(&self, resource: &ElectionName, leader: Option<&Leader>) {
        if let Some(Leader { owner, token }) = leader {
            tracing::info!(%resource, leader = %owner.instance, %token, "another leader");
        } else {
            tracing::info!(%resource, "no leader");
        }
        self.metrics.changed();
        let mut changes = locked(&self.changes);
        if changes.len() == CHANGES {
            changes.pop_back();
        }
        changes.push_front(Change {
            at: SystemTime::now(),
            resource: resource.clone(),
            leader: leader.cloned(),
        });
    }

    fn too_slow(&self) -> BackendError {
        BackendError::ambiguous(
            "timeout",
            format!(
                "no answer from {} within {} ms",
                self.store().describe(),
                self.limit.as_millis()
            ),
        )
    }
}
