//! The elections that a server holds for others: whoever checks in is a candidate, and the store decides.
//!
//! What is kept in memory is only what was seen: for the status, and to guess which term a check-in renews. Leases
//! are the store's, so a server that starts again, or another one on the same store, finds every term as it was.
//!
//! A campaign begins a term anew also over one that the asker has, which another server may have begun or renewed.
//! So it comes last: what the asker may have is renewed first, and where it is not known, a term that nobody has.
//! That changes nothing, and the answer says who leads, and for how long.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::metrics::Metrics;
use crate::backend::{Attempt, Backend, BackendError};
use crate::campaign::PreparedStore;
use crate::clock::{Clock, Moment};
use crate::lease::{ElectionName, InstanceId, LONGEST_LEASE, Leader, Outcome, Owner, Token};
use crate::locked::locked;
use crate::timing::Lending;

/// So many resources are known at once. Each is a record in the store.
const RESOURCES: usize = 20_000;
/// A resource, or a candidate, that nobody spoke of for so long is forgotten here. Its record stays.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 * 60);
/// The same of a resource without a leader, where others want its place.
const PASSED_OVER_AFTER: Duration = Duration::from_secs(60);
/// How often such are looked for.
const PASS_OVER_INTERVAL: Duration = Duration::from_secs(1);
/// What ended is not looked at again and again.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a status waits for looks, unless one operation on the store has less.
const LOOK_TIME: Duration = Duration::from_secs(2);
/// So many resources of one request are asked for at once.
const AT_ONCE: usize = 32;
/// The changes that the status page shows.
const CHANGES: usize = 50;

#[derive(Debug)]
pub(super) struct Elections {
    store: Arc<PreparedStore>,
    clock: Arc<dyn Clock>,
    pub lending: Lending,
    pub metrics: Metrics,
    resources: Mutex<HashMap<ElectionName, Arc<Resource>>>,
    passed_over: Mutex<Option<Moment>>,
    candidates: Mutex<HashMap<InstanceId, LastCheckIn>>,
    changes: Mutex<VecDeque<Change>>,
    looking: tokio::sync::Mutex<()>,
}

/// Who asks for what.
#[derive(Debug)]
pub(super) struct Asked {
    pub asker: Asker,
    pub resources: Vec<ElectionName>,
}

#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub owner: Owner,
    pub wants: Wants,
}

/// Which term it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    /// To renew or end this one, and nothing else.
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
    /// What the store was asked last that all this follows from. `None`: nothing yet.
    asked: Option<Exchange>,
    /// The term that was released last, by its token, and when that is forgotten.
    released: Option<(Leader, Moment)>,
    looked_at: Moment,
    spoken_of: Moment,
    /// Somebody's check-in was answered: it is shown, and kept.
    answered: bool,
}

#[derive(Debug, Clone, Copy)]
struct Exchange {
    sent: Moment,
    noted: Moment,
}

/// What the store says of a resource.
#[derive(Debug, Clone)]
struct News {
    sent: Moment,
    /// `None`: nobody's lease runs.
    leader: Option<Leader>,
    remaining: Duration,
    /// Whoever asked holds it.
    held: bool,
    /// By a term that has just begun.
    begun: bool,
}

/// Of a candidate, the last one.
#[derive(Debug, Clone)]
struct LastCheckIn {
    resource: ElectionName,
    at: Moment,
}

/// What is known of one resource, as it is shown.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub resource: ElectionName,
    pub leader: Option<Leader>,
    pub remaining: Option<Duration>,
    pub since: SystemTime,
    pub last_check_in: SystemTime,
}

/// What came of a check-in for one resource.
#[derive(Debug, Clone)]
pub(super) struct CheckedIn {
    pub standing: Standing,
    /// How long the asker is told that it leads. `None`: it does not.
    pub told: Option<Duration>,
}

/// Another leader than before.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub at: SystemTime,
    pub resource: ElectionName,
    /// `None`: nobody.
    pub leader: Option<Leader>,
}

/// Who checked in.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
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
                asked: None,
                released: None,
                looked_at: now,
                spoken_of: now,
                answered: false,
            }),
        }
    }
}

impl Seen {
    fn is_led(&self, now: Moment) -> bool {
        self.leader.is_some() && self.until > now
    }

    /// Whether it is older than what is known: terms only follow one another.
    fn overtook(&self, news: &News) -> bool {
        let token = |leader: &Option<Leader>| leader.as_ref().map(|leader| leader.token);
        let is_older = token(&news.leader) < token(&self.leader);
        // What was asked later counts whatever it says: somebody may have emptied the store.
        let is_late = self.asked.is_some_and(|last| news.sent < last.noted);
        let released = self.released.as_ref().map(|(leader, _)| leader);
        is_late && is_older || released.is_some() && released == news.leader.as_ref()
    }

    fn standing(&self, resource: &ElectionName, now: Moment) -> Standing {
        Standing {
            resource: resource.clone(),
            leader: self.leader.clone(),
            remaining: self.is_led(now).then(|| self.until.since(now)),
            since: self.since,
            last_check_in: self.last_check_in,
        }
    }
}

impl Wants {
    /// The leader's term, if it is the owner's, and one that it wants.
    fn term_of(self, owner: &Owner, leader: Option<&Leader>) -> Option<Token> {
        let own = leader.filter(|leader| leader.owner == *owner)?.token;
        match self {
            Self::This(token) => own == token,
            Self::Any => true,
            Self::After(token) => own.number() > token,
        }
        .then_some(own)
    }
}

impl From<BackendError> for Failed {
    fn from(error: BackendError) -> Self {
        Self::Store(error)
    }
}

impl Elections {
    pub fn new(store: Arc<PreparedStore>, clock: Arc<dyn Clock>, lending: Lending) -> Self {
        Self {
            store,
            clock,
            lending,
            metrics: Metrics::default(),
            resources: Mutex::default(),
            passed_over: Mutex::default(),
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

    // ---- check-ins ----

    /// Of all of them and their resources, in their order, or the first failure.
    pub async fn check_in(&self, all: &[Asked]) -> Result<Vec<Vec<CheckedIn>>, Failed> {
        // Those for one resource one after the other, and all resources meanwhile.
        let mut queues: Vec<(&ElectionName, Vec<(usize, &Asker)>)> = Vec::new();
        let mut queue_of = HashMap::new();
        for (at, Asked { asker, resources }) in all.iter().enumerate() {
            for resource in resources {
                let queue = *queue_of.entry(resource).or_insert_with(|| {
                    queues.push((resource, Vec::new()));
                    queues.len() - 1
                });
                queues[queue].1.push((at, asker));
            }
        }
        let check_ins = queues.into_iter().map(|(resource, queue)| async move {
            let mut checked_in = Vec::with_capacity(queue.len());
            for (at, asker) in queue {
                checked_in.push((at, self.check_in_one(asker, resource).await?));
            }
            Ok::<_, Failed>(checked_in)
        });
        let mut answers: Vec<HashMap<ElectionName, CheckedIn>> = vec![HashMap::new(); all.len()];
        for (at, checked_in) in all_of(check_ins.collect()).await?.into_iter().flatten() {
            answers[at].insert(checked_in.standing.resource.clone(), checked_in);
        }
        let in_order = all.iter().zip(answers).map(|(asked, mut answers)| {
            let names = asked.resources.iter();
            names.filter_map(|name| answers.remove(name)).collect()
        });
        Ok(in_order.collect())
    }

    async fn check_in_one(
        &self,
        asker: &Asker,
        resource: &ElectionName,
    ) -> Result<CheckedIn, Failed> {
        let under_way = UnderWay::new(self, resource)?;
        let known = &under_way.known;
        let begun = Instant::now();
        let checked_in = self.in_time(self.ask_in_turn(asker, resource, known)).await;
        self.metrics.checked_in(begun.elapsed(), &checked_in);
        let checked_in = checked_in?;
        locked(&known.seen).answered = true;
        self.note_candidate(&asker.owner.instance, resource);
        Ok(checked_in)
    }

    async fn ask_in_turn(
        &self,
        asker: &Asker,
        resource: &ElectionName,
        known: &Resource,
    ) -> Result<CheckedIn, BackendError> {
        let owner = &asker.owner;
        if let Wants::This(term) = asker.wants {
            // Nothing known decides it, so it waits for nobody: its lease runs.
            self.store.prepare().await?;
            let news = self.ask(owner, resource, Some(term)).await?;
            return Ok(self.answer(resource, known, &news));
        }
        let came = self.clock.now();
        let _turn = known.turn.lock().await;
        if let Some(denied) = self.denied_meanwhile(owner, resource, known, came) {
            return Ok(denied);
        }
        self.store.prepare().await?;
        let news = self.renew_or_campaign(asker, resource, known).await?;
        Ok(self.answer(resource, known, &news))
    }

    /// What the store said of another leader to somebody who asked after this one came is as true for it.
    fn denied_meanwhile(
        &self,
        owner: &Owner,
        resource: &ElectionName,
        known: &Resource,
        came: Moment,
    ) -> Option<CheckedIn> {
        let now = self.clock.now();
        let seen = locked(&known.seen);
        let is_new = seen.asked.is_some_and(|asked| asked.sent > came);
        let by_other = seen.leader.as_ref().is_some_and(|it| it.owner != *owner);
        (is_new && by_other && seen.is_led(now)).then(|| CheckedIn {
            standing: seen.standing(resource, now),
            told: None,
        })
    }

    async fn renew_or_campaign(
        &self,
        asker: &Asker,
        resource: &ElectionName,
        known: &Resource,
    ) -> Result<News, BackendError> {
        let Asker { owner, wants } = asker;
        let (guess, is_late) = {
            let seen = locked(&known.seen);
            let released = seen.released.as_ref();
            let released = released.filter(|(_, until)| *until > self.clock.now());
            let term = released.and_then(|(leader, _)| wants.term_of(owner, Some(leader)));
            // A copy of the request whose term was released meanwhile: nobody would know of another.
            let is_late = matches!(wants, Wants::After(_)) && term.is_some();
            (wants.term_of(owner, seen.leader.as_ref()), is_late)
        };
        let mut news = self.ask(owner, resource, guess.or(nobodys_term())).await?;
        if !news.held
            && let Some(term) = wants.term_of(owner, news.leader.as_ref())
        {
            news = self.ask(owner, resource, Some(term)).await?;
        }
        let is_others = news.leader.as_ref().is_some_and(|it| it.owner != *owner)
            // One that lasts longer than any lease was tampered with. Campaigns know what to do.
            && news.remaining <= LONGEST_LEASE;
        if news.held || is_others || is_late {
            return Ok(news);
        }
        self.ask(owner, resource, None).await
    }

    /// One attempt on the store: to renew a term, or a campaign.
    async fn ask(
        &self,
        owner: &Owner,
        resource: &ElectionName,
        term: Option<Token>,
    ) -> Result<News, BackendError> {
        let sent = self.clock.now();
        let attempt = Attempt {
            election: resource,
            owner,
            duration: self.lending.held(),
            term,
        };
        let (leader, remaining, held) = match self.store().attempt(&attempt).await? {
            Outcome::Held { token, valid_for } => {
                let owner = owner.clone();
                (Some(Leader { owner, token }), valid_for, true)
            }
            Outcome::Other { leader, remaining } => {
                let remaining = remaining.unwrap_or_default();
                let leader = leader.filter(|_| !remaining.is_zero());
                (leader, remaining, false)
            }
        };
        Ok(News {
            sent,
            leader,
            remaining,
            held,
            begun: held && term.is_none(),
        })
    }

    /// Notes it, and says what is told of it to whoever asked.
    fn answer(&self, resource: &ElectionName, known: &Resource, news: &News) -> CheckedIn {
        let now = self.clock.now();
        let mut seen = locked(&known.seen);
        self.note(resource, &mut seen, news);
        // Not what others were told meanwhile: this is what the asker was.
        let mut standing = seen.standing(resource, now);
        standing.leader.clone_from(&news.leader);
        standing.remaining = news.leader.is_some().then_some(news.remaining);
        let told = self.lending.told_of(news.remaining);
        CheckedIn {
            standing,
            told: Some(told).filter(|told| news.held && !told.is_zero()),
        }
    }

    // ---- what is known ----

    fn note(&self, resource: &ElectionName, seen: &mut Seen, news: &News) {
        if seen.overtook(news) {
            return;
        }
        let (now, wall) = (self.clock.now(), SystemTime::now());
        // Whoever led before this server first asked is no change.
        let is_change = news.begun || seen.asked.is_some() && seen.leader != news.leader;
        self.set_leader(resource, seen, news.leader.clone(), is_change);
        if news.held {
            seen.last_check_in = wall;
        } else if news.leader.is_some() {
            // It may have checked in with another server, when its lease had its whole length.
            let since = self.lending.held().saturating_sub(news.remaining);
            seen.last_check_in = wall.checked_sub(since).unwrap_or(wall);
        }
        seen.until = now + news.remaining;
        let sent = news.sent;
        seen.asked = Some(Exchange { sent, noted: now });
    }

    fn set_leader(
        &self,
        resource: &ElectionName,
        seen: &mut Seen,
        leader: Option<Leader>,
        is_change: bool,
    ) {
        if seen.leader != leader {
            seen.since = SystemTime::now();
            seen.leader = leader;
        }
        if is_change {
            self.tell_change(resource, seen.leader.as_ref());
        }
    }

    /// It was led by this term, and is led by nobody now.
    fn note_release(&self, resource: &ElectionName, seen: &mut Seen, ended: &Leader) {
        let is_followed = |leader: &Leader| leader.token > ended.token;
        if !seen.leader.as_ref().is_some_and(is_followed) {
            self.set_leader(resource, seen, None, true);
            seen.until = self.clock.now();
        }
    }

    fn tell_change(&self, resource: &ElectionName, leader: Option<&Leader>) {
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

    fn note_candidate(&self, id: &InstanceId, resource: &ElectionName) {
        let at = self.clock.now();
        let mut candidates = locked(&self.candidates);
        if candidates.len() >= RESOURCES && !candidates.contains_key(id) {
            return;
        }
        let resource = resource.clone();
        candidates.insert(id.clone(), LastCheckIn { resource, at });
    }

    // ---- ends of terms ----

    /// Whether each of the terms was the asker's, and is over now.
    pub async fn release(&self, asked: &Asked) -> Result<Vec<bool>, Failed> {
        let names = asked.resources.iter();
        let releases = names.map(|resource| self.release_one(&asked.asker, resource));
        all_of(releases.collect()).await
    }

    async fn release_one(&self, asker: &Asker, resource: &ElectionName) -> Result<bool, Failed> {
        let known = locked(&self.resources).get(resource).cloned();
        // One that is not known is not kept for this.
        let known = known.unwrap_or_else(|| Arc::new(Resource::new(self.clock.now())));
        let ended = self.in_time(async {
            let owner = asker.owner.clone();
            if let Wants::This(token) = asker.wants {
                self.store.prepare().await?;
                return self.end(resource, Leader { owner, token }).await;
            }
            let _turn = known.turn.lock().await;
            self.store.prepare().await?;
            let leader = self.store().peek(resource).await?;
            match leader.filter(|leader| leader.owner == owner) {
                Some(own) => self.end(resource, own).await,
                None => Ok(None),
            }
        });
        let Some(ended) = ended.await? else {
            return Ok(false);
        };
        let mut seen = locked(&known.seen);
        self.note_release(resource, &mut seen, &ended);
        if let Wants::This(_) = asker.wants {
            // Its leader knows that it had this term.
            let forgotten = self.clock.now() + self.lending.told();
            seen.released = Some((ended, forgotten));
        }
        Ok(true)
    }

    /// `None`: it was over.
    async fn end(
        &self,
        resource: &ElectionName,
        term: Leader,
    ) -> Result<Option<Leader>, BackendError> {
        let Leader { owner, token } = &term;
        let released = self.store().release(resource, owner, *token).await?;
        Ok(released.then_some(term))
    }

    /// Ends every term of the resources that this server knows, and forgets them.
    pub async fn reset(&self) -> Result<(), Failed> {
        let known = self.known();
        let resets = known.iter().map(|(resource, known)| async move {
            let ended = self.in_time(async {
                let _turn = known.turn.lock().await;
                self.store.prepare().await?;
                match self.store().peek(resource).await? {
                    Some(leader) => self.end(resource, leader).await,
                    None => Ok(None),
                }
            });
            if let Some(ended) = ended.await? {
                self.note_release(resource, &mut locked(&known.seen), &ended);
            }
            Ok::<_, Failed>(())
        });
        all_of(resets.collect()).await?;
        locked(&self.resources).clear();
        locked(&self.candidates).clear();
        Ok(())
    }

    // ---- for those who watch ----

    /// Everything that this server was asked about, by name. Leases that ended as far as it saw are looked at
    /// again: another server may have renewed them. Those that cannot be looked at in time are shown as they were.
    pub async fn status(&self) -> Vec<Standing> {
        let time = self.lending.request_limit().min(LOOK_TIME);
        let _ = timeout(time, self.look_again()).await;
        let now = self.clock.now();
        let known = self.known();
        let standings = known.iter().filter_map(|(resource, known)| {
            let seen = locked(&known.seen);
            seen.answered.then(|| seen.standing(resource, now))
        });
        let mut standings: Vec<_> = standings.collect();
        standings.sort_by(|a, b| a.resource.cmp(&b.resource));
        standings
    }

    async fn look_again(&self) {
        let _one_at_a_time = self.looking.lock().await;
        let now = self.clock.now();
        let known = self.known();
        let due = known.iter().filter_map(|(resource, known)| {
            let seen = locked(&known.seen);
            let is_due =
                seen.answered && seen.until <= now && now.since(seen.looked_at) >= LOOK_INTERVAL;
            is_due.then_some((seen.looked_at, resource, known))
        });
        let mut due: Vec<_> = due.collect();
        // Where there is no time for all, those have it that had none the last time.
        due.sort_by_key(|(looked_at, ..)| *looked_at);
        let looks = due
            .into_iter()
            .map(|(_, resource, known)| self.look(resource, known));
        let _ = all_of(looks.collect()).await;
    }

    /// That of others is no failure of this one.
    async fn look(&self, resource: &ElectionName, known: &Resource) -> Result<(), Infallible> {
        locked(&known.seen).looked_at = self.clock.now();
        let asked = async {
            self.store.prepare().await?;
            self.ask(&nobody(), resource, nobodys_term()).await
        };
        if let Ok(news) = asked.await {
            self.note(resource, &mut locked(&known.seen), &news);
        }
        Ok(())
    }

    /// The resources that are known, and those of them with a leader, as they were seen last.
    pub fn counts(&self) -> (usize, usize) {
        let now = self.clock.now();
        let resources = locked(&self.resources);
        let led = resources
            .values()
            .filter(|known| locked(&known.seen).is_led(now));
        (resources.len(), led.count())
    }

    pub fn changes(&self) -> Vec<Change> {
        locked(&self.changes).iter().cloned().collect()
    }

    pub fn candidates(&self) -> Vec<Candidate> {
        let now = self.clock.now();
        let candidates = locked(&self.candidates);
        let mut candidates: Vec<_> = candidates
            .iter()
            .map(|(id, last)| Candidate {
                id: id.clone(),
                resource: last.resource.clone(),
                is_running: now.since(last.at) < self.lending.told(),
            })
            .collect();
        candidates.sort_by(|a, b| a.id.cmp(&b.id));
        candidates
    }

    /// Makes sure that the store can be used.
    pub async fn prepare(&self) -> Result<(), BackendError> {
        self.store.prepare().await
    }

    /// Whether the store answers.
    pub async fn is_well(&self) -> Result<(), BackendError> {
        let nobodys = ElectionName::new("whenleader").expect("a good name");
        self.in_time(async {
            self.store.prepare().await?;
            self.store().peek(&nobodys).await.map(drop)
        })
        .await
    }

    pub async fn close(&self) {
        self.store.close().await;
    }

    // ---- which resources are known ----

    /// Forgets what nobody speaks of.
    pub fn sweep(&self) {
        let now = self.clock.now();
        let lately = |then: Moment| now.since(then) < FORGOTTEN_AFTER;
        locked(&self.resources).retain(|_, known| lately(locked(&known.seen).spoken_of));
        locked(&self.candidates).retain(|_, last| lately(last.at));
    }

    fn known(&self) -> Vec<(ElectionName, Arc<Resource>)> {
        let resources = locked(&self.resources);
        let known = resources.iter();
        known
            .map(|(name, known)| (name.clone(), Arc::clone(known)))
            .collect()
    }

    fn resource(&self, name: &ElectionName) -> Result<Arc<Resource>, Failed> {
        let mut resources = locked(&self.resources);
        let now = self.clock.now();
        if !resources.contains_key(name) && resources.len() >= RESOURCES {
            self.pass_over(&mut resources, now);
            if resources.len() >= RESOURCES {
                return Err(Failed::TooManyResources);
            }
        }
        let known = resources
            .entry(name.clone())
            .or_insert_with(|| Arc::new(Resource::new(now)));
        locked(&known.seen).spoken_of = now;
        Ok(Arc::clone(known))
    }

    /// Forgets what has no leader, and was not spoken of lately.
    fn pass_over(&self, resources: &mut HashMap<ElectionName, Arc<Resource>>, now: Moment) {
        let mut passed_over = locked(&self.passed_over);
        if passed_over.is_some_and(|last| now.since(last) < PASS_OVER_INTERVAL) {
            return;
        }
        *passed_over = Some(now);
        resources.retain(|_, known| {
            let seen = locked(&known.seen);
            seen.is_led(now) || now.since(seen.spoken_of) < PASSED_OVER_AFTER
        });
    }

    fn forget_unanswered(&self, name: &ElectionName) {
        let mut resources = locked(&self.resources);
        // Here, and where it is asked from: nobody else waits for its turn.
        let is_unused =
            |known: &Arc<Resource>| Arc::strong_count(known) <= 2 && !locked(&known.seen).answered;
        if resources.get(name).is_some_and(is_unused) {
            resources.remove(name);
        }
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let limit = self.lending.request_limit();
        let done = timeout(limit, work).await;
        done.unwrap_or_else(|_| {
            let (store, ms) = (self.store().describe(), limit.as_millis());
            let message = format!("no answer from {store} within {ms} ms");
            Err(BackendError::ambiguous("timeout", message))
        })
    }
}

/// A check-in until its end, also if nobody waits for it any more. A resource that nobody was answered about is not
/// kept for it.
struct UnderWay<'a> {
    elections: &'a Elections,
    resource: &'a ElectionName,
    known: Arc<Resource>,
}

impl<'a> UnderWay<'a> {
    fn new(elections: &'a Elections, resource: &'a ElectionName) -> Result<Self, Failed> {
        Ok(Self {
            elections,
            resource,
            known: elections.resource(resource)?,
        })
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let answered = locked(&self.known.seen).answered;
        if !answered {
            self.elections.forget_unanswered(self.resource);
        }
    }
}

/// Who asks only to hear who leads.
fn nobody() -> Owner {
    Owner {
        instance: InstanceId::new("whenleader").expect("a good id"),
        // Small numbers mean other things.
        nonce: 1 << 63,
    }
}

/// A renewal of it is denied.
fn nobodys_term() -> Option<Token> {
    Token::new(Token::MAX)
}

/// Does so many at once, until all are done or one has failed. Their results come in their order.
async fn all_of<T, E>(work: Vec<impl Future<Output = Result<T, E>>>) -> Result<Vec<T>, E> {
    let mut results: Vec<Option<T>> = work.iter().map(|_| None).collect();
    let mut waiting = work.into_iter().enumerate();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < AT_ONCE
            && let Some((at, one)) = waiting.next()
        {
            running.push(async move { (at, one.await) });
        }
        let Some((at, result)) = running.next().await else {
            break;
        };
        results[at] = Some(result?);
    }
    Ok(results.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::backend::{self, StoreOptions};

    const LEASE: Duration = Duration::from_secs(5);

    #[derive(Debug, Default)]
    struct HandClock(AtomicU64);

    impl HandClock {
        fn pass(&self, time: Duration) {
            let nanos = u64::try_from(time.as_nanos()).unwrap();
            self.0.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    impl Clock for HandClock {
        fn now(&self) -> Moment {
            Moment::from_nanos(self.0.load(Ordering::Relaxed))
        }
    }

    /// On an embedded store that is never asked.
    fn elections() -> (Arc<HandClock>, Elections) {
        let clock = Arc::new(HandClock::default());
        let options = StoreOptions::new(std::env::temp_dir());
        let store = backend::open("file:never-asked", &options, clock.clone()).unwrap();
        let store = Arc::new(PreparedStore::new(store));
        let lending = Lending::new(LEASE).unwrap();
        (clock.clone(), Elections::new(store, clock, lending))
    }

    fn name(number: usize) -> ElectionName {
        ElectionName::new(&format!("r{number}")).unwrap()
    }

    fn leader(id: &str, token: u64) -> Leader {
        let owner = Owner {
            instance: InstanceId::new(id).unwrap(),
            nonce: 1,
        };
        let token = Token::new(token).unwrap();
        Leader { owner, token }
    }

    fn news(elections: &Elections, leader: Option<Leader>) -> News {
        News {
            sent: elections.clock.now(),
            remaining: leader.as_ref().map_or(Duration::ZERO, |_| LEASE),
            held: leader.is_some(),
            begun: leader.is_some(),
            leader,
        }
    }

    fn check_in(elections: &Elections, number: usize, leader: Leader) -> Result<(), Failed> {
        let resource = name(number);
        let known = elections.resource(&resource)?;
        elections.answer(&resource, &known, &news(elections, Some(leader)));
        locked(&known.seen).answered = true;
        Ok(())
    }

    #[test]
    fn names_that_were_used_once_make_room_a_minute_later_and_those_with_a_leader_do_not() {
        let (clock, elections) = elections();
        for number in 0..RESOURCES {
            check_in(&elections, number, leader("a", 1)).unwrap();
        }
        let more = || check_in(&elections, RESOURCES, leader("a", 1));
        assert!(matches!(more(), Err(Failed::TooManyResources)));
        clock.pass(PASSED_OVER_AFTER.saturating_sub(LEASE));
        check_in(&elections, 0, leader("a", 1)).unwrap();
        let known = Arc::clone(&locked(&elections.resources)[&name(1)]);
        let looked = News {
            remaining: 2 * LEASE,
            ..news(&elections, Some(leader("a", 1)))
        };
        elections.answer(&name(1), &known, &looked);
        assert!(matches!(more(), Err(Failed::TooManyResources)));
        clock.pass(LEASE);
        // Nobody asked for the status meanwhile.
        more().unwrap();
        // That which was spoken of, that with a leader, and the new one.
        assert_eq!(elections.counts(), (3, 2));
    }

    #[test]
    fn whoever_wants_room_looks_for_it_once_a_second_at_most() {
        let (clock, elections) = elections();
        for number in 0..RESOURCES {
            elections.resource(&name(number)).unwrap();
        }
        clock.pass(PASSED_OVER_AFTER.saturating_sub(PASS_OVER_INTERVAL / 2));
        assert!(elections.resource(&name(RESOURCES)).is_err());
        clock.pass(PASS_OVER_INTERVAL / 2);
        assert!(
            elections.resource(&name(RESOURCES)).is_err(),
            "not yet again"
        );
        clock.pass(PASS_OVER_INTERVAL / 2);
        assert!(elections.resource(&name(RESOURCES)).is_ok());
    }

    #[test]
    fn an_answer_that_was_overtaken_changes_nothing_that_is_known() {
        let (clock, elections) = elections();
        let resource = name(0);
        let known = elections.resource(&resource).unwrap();
        let shown = || locked(&known.seen).leader.clone();
        let renewal = news(&elections, Some(leader("a", 1)));
        let nobody = news(&elections, None);
        clock.pass(Duration::from_millis(1));
        elections.answer(&resource, &known, &news(&elections, Some(leader("b", 2))));
        let told = elections.answer(&resource, &known, &renewal);
        assert!(
            told.told.is_some(),
            "its sender is told what the store said"
        );
        elections.answer(&resource, &known, &nobody);
        assert_eq!(shown(), Some(leader("b", 2)));
        assert_eq!(elections.changes().len(), 1);

        clock.pass(Duration::from_millis(1));
        elections.answer(&resource, &known, &news(&elections, None));
        assert_eq!(shown(), None);
        clock.pass(Duration::from_millis(1));
        let emptied = news(&elections, Some(leader("a", 1)));
        elections.answer(&resource, &known, &emptied);
        assert_eq!(shown(), Some(leader("a", 1)), "somebody emptied the store");
    }

    #[test]
    fn a_term_that_was_released_is_not_seen_to_go_on() {
        let (_, elections) = elections();
        let resource = name(0);
        let known = elections.resource(&resource).unwrap();
        let renewed = news(&elections, Some(leader("a", 1)));
        elections.answer(&resource, &known, &renewed);
        {
            let mut seen = locked(&known.seen);
            elections.note_release(&resource, &mut seen, &leader("a", 1));
            seen.released = Some((leader("a", 1), Moment::NEVER));
        }
        elections.answer(&resource, &known, &renewed);
        assert_eq!(locked(&known.seen).leader, None);
        assert_eq!(elections.changes().len(), 2, "a leader, and nobody");
    }
}
