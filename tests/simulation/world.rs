//! One run: five instances, one store, true time, and the faults of a scenario.
//!
//! First come the faults, for some leases. Then a calm: somebody must lead within L + R of the last
//! fault, and nothing may change after that. Then one thing happens in the calm (a crash, a clean stop,
//! ...), so that its bound can be checked exactly.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

use crate::adapter::{Adapter, Done, Step};
use crate::candidate::{Answer, Candidate, Input, Op, Output, Request, RequestId};
use crate::checker::{Before, Conduct};
use crate::clock::Moment;
use crate::clocks::{DriftingClock, MICROSECOND, NEVER, Time};
use crate::lease::{FailureKind, Hint, InstanceId, Leader, Outcome, Owner, Token};
use crate::random::Random;
use crate::scenario::{Class, Family, Fault, INSTANCES, LEASE_UNTIL_TOLD, Scenario, Wanted};
use crate::store::{Held, Holder, JudgingStore, Record, Reply, VersionedStore};
use crate::term::Lead;

const MILLISECOND: Time = 1_000 * MICROSECOND;
/// A run has some thousand events.
const MANY_EVENTS: u64 = 1_000_000;

/// What one run, or many, came to.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub seeds: u64,
    pub nanos: u128,
    pub events: u64,
    pub requests: u64,
    pub terms: u64,
    pub faults: [u64; Fault::ALL.len()],
    /// The longest recovery, in thousandths of L + R by the slowest clock.
    pub worst_recovery: u64,
    /// Seeds whose server tells its leases.
    pub told_seeds: u64,
    /// Leases that were not as long any more as those before.
    pub lease_changes: u64,
    /// The longest recovery there, in thousandths of the longest lease that anybody was told.
    pub worst_told_recovery: u64,
    /// Overlaps that a store's own fault excuses.
    pub excused: u64,
}

impl Figures {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.nanos += other.nanos;
        self.events += other.events;
        self.requests += other.requests;
        self.terms += other.terms;
        self.excused += other.excused;
        self.told_seeds += other.told_seeds;
        self.lease_changes += other.lease_changes;
        self.worst_told_recovery = self.worst_told_recovery.max(other.worst_told_recovery);
        self.worst_recovery = self.worst_recovery.max(other.worst_recovery);
        for (sum, more) in self.faults.iter_mut().zip(other.faults) {
            *sum += more;
        }
    }
}

/// Runs one seed. `Err` is the violation.
pub fn run(seed: u64, wanted: Wanted, trace: bool) -> (Figures, Result<(), String>) {
    let mut random = Random::new(seed);
    let mut apart = Random::new(!seed);
    let scenario = Scenario::new(&mut random, &mut apart, wanted);
    let mut world = World::new(random, scenario, trace);
    if trace {
        println!("{:#?}", world.scenario);
    }
    world.begin();
    while world.violation.is_none() && !world.over {
        world.step();
    }
    world.figures.seeds = 1;
    world.figures.told_seeds = u64::from(world.lends.is_some());
    world.figures.nanos = u128::from(world.now);
    let end = match world.violation.take() {
        Some(violation) => Err(violation),
        None => Ok(()),
    };
    (world.figures, end)
}

// ---- messages and events ----

#[derive(Debug, Clone, Copy)]
struct Letter {
    life: usize,
    request: RequestId,
    op: Op,
    what: ToStore,
}

#[derive(Debug, Clone, Copy)]
enum ToStore {
    /// Family A: the whole operation.
    Do,
    /// Family B.
    Read,
    Write {
        expected: u64,
        record: Record,
    },
}

#[derive(Debug, Clone, Copy)]
enum FromStore {
    Attempted(Reply),
    Released(bool),
    Seen(Option<Held>),
    Read((u64, Record)),
    Written { record: Record, applied: bool },
    Failed(FailureKind),
}

#[derive(Debug, Clone)]
enum Arrival {
    Answer {
        request: RequestId,
        answer: FromStore,
        /// How long leases last, as the answer tells it.
        told: Option<Duration>,
    },
    /// With what a watch shows of the record.
    Hint(Hint, Option<(u64, Record)>),
    Input(Input),
}

#[derive(Debug, Clone)]
enum Event {
    AtStore(Letter),
    AtProcess { life: usize, arrival: Arrival },
    HostWakes { host: usize, asleep_since: Time },
    Start { instance: usize },
    Fault,
    LeaseChanges,
    Calm,
    CheckCalm,
    Act,
    CheckAct,
}

struct Scheduled {
    at: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

// ---- the world ----

struct Host {
    clock: DriftingClock,
    suspended_until: Time,
}

/// A process that is or was.
struct Life {
    owner: Owner,
    instance: usize,
}

struct Instance {
    /// The process that runs now, if one does.
    life: usize,
    candidate: Option<Candidate>,
    /// What `isLeader()` reads.
    lead: Lead,
    conduct: Conduct,
    /// The lease that it was told last.
    told: Duration,
    adapter: Adapter,
    /// The request that the adapter works on, and when it began.
    working_on: Option<(Request, Moment)>,
    wake: Time,
    paused_until: Time,
    cut_to_store: Time,
    cut_from_store: Time,
    /// Whether the store's watch reaches it.
    subscribed: bool,
    /// When its callbacks are done with all that they were called for.
    callbacks_until: Time,
    /// Deadlines up to this rest on a record that the store lost.
    tainted_until: Moment,
}

enum Store {
    Judging {
        store: JudgingStore,
        clock: DriftingClock,
        earlier: JudgingStore,
        next_jump: Time,
    },
    Versioned {
        store: VersionedStore,
        earlier: (u64, Record),
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Faults,
    /// Until somebody must lead.
    Recovery,
    /// Nothing may change.
    Calm,
    /// One thing happens to the leader of the calm.
    Act(Act),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Nothing,
    Crash,
    /// It stops or steps down, and its callbacks end then.
    HandOver {
        life: usize,
        callbacks_end: Time,
        /// The lease is kept at least until then.
        kept_until: Time,
    },
}

struct World {
    scenario: Scenario,
    random: Random,
    now: Time,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    hosts: Vec<Host>,
    lives: Vec<Life>,
    instances: Vec<Instance>,
    store: Store,
    /// How long a lease lasts that the store lends now, if it tells that.
    lends: Option<Duration>,
    /// It is about to be started again with shorter leases.
    down_until: Time,
    outage_until: Time,
    outage_swallows: bool,
    phase: Phase,
    faults_end: Time,
    /// The last effect of a fault.
    quiet_from: Time,
    recovery_from: Time,
    largest_token: Option<Token>,
    promoted_at: Time,
    /// A watch in the calm that is dead without a word.
    silent_watch: bool,
    outputs: Vec<Output>,
    figures: Figures,
    violation: Option<String>,
    over: bool,
    trace: bool,
}

macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.trace {
            println!("{:>14}  {}", At($world.now), format_args!($($what)*));
        }
    };
}

mod calm;
mod faults;

struct At(Time);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / MICROSECOND;
        write!(f, "{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

fn nanos(duration: Duration) -> Time {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER) / MICROSECOND * MICROSECOND
}

impl World {
    fn new(mut random: Random, scenario: Scenario, trace: bool) -> Self {
        let lease = nanos(scenario.lease);
        let clock = |random: &mut Random| {
            let shown = Duration::from_secs(random.between(1_000, 2_000));
            DriftingClock::new(shown, scenario.rate(random))
        };
        let hosts = (0..scenario.hosts)
            .map(|_| Host {
                clock: clock(&mut random),
                suspended_until: 0,
            })
            .collect();
        let store = match scenario.family {
            Family::StoreJudges => {
                let store = JudgingStore::new(scenario.longest_lease, scenario.forgets_expired);
                Store::Judging {
                    earlier: store.clone(),
                    store,
                    clock: clock(&mut random),
                    next_jump: 0,
                }
            }
            Family::FollowersJudge => {
                let store = VersionedStore::new();
                Store::Versioned {
                    earlier: store.read(),
                    store,
                }
            }
        };
        let faults_end = lease * random.between(5, 9) / MICROSECOND * MICROSECOND;
        Self {
            instances: Vec::with_capacity(INSTANCES),
            random,
            now: 0,
            queue: BinaryHeap::with_capacity(64),
            order: 0,
            hosts,
            lives: Vec::new(),
            store,
            lends: scenario.lent.first().copied(),
            down_until: 0,
            outage_until: 0,
            outage_swallows: false,
            phase: Phase::Faults,
            faults_end,
            quiet_from: faults_end,
            recovery_from: 0,
            largest_token: None,
            promoted_at: 0,
            silent_watch: false,
            outputs: Vec::new(),
            figures: Figures::default(),
            violation: None,
            over: false,
            trace,
            scenario,
        }
    }

    fn begin(&mut self) {
        for index in 0..INSTANCES {
            let life = self.new_life(index, self.scenario.setups[index].name);
            let mut instance = Instance {
                life,
                candidate: None,
                lead: Lead::default(),
                conduct: Conduct::default(),
                told: LEASE_UNTIL_TOLD,
                adapter: self.adapter(index, life),
                working_on: None,
                wake: NEVER,
                paused_until: 0,
                cut_to_store: 0,
                cut_from_store: 0,
                subscribed: false,
                callbacks_until: 0,
                tainted_until: Moment::ORIGIN,
            };
            instance.subscribed = self.scenario.watch && self.random.percent(80);
            self.instances.push(instance);
            let start = self.short_delay();
            self.schedule(start, Event::Start { instance: index });
        }
        self.schedule_fault();
        self.schedule_lease_change();
        self.schedule(self.faults_end, Event::Calm);
    }

    fn adapter(&self, index: usize, life: usize) -> Adapter {
        Adapter::new(self.holder(life), self.scenario.setups[index].lease)
    }

    fn new_life(&mut self, instance: usize, name: usize) -> usize {
        let life = self.lives.len();
        let id = InstanceId::new(&format!("i{name}")).expect("a good name");
        self.lives.push(Life {
            owner: Owner {
                instance: id,
                nonce: life as u64,
            },
            instance,
        });
        life
    }

    fn holder(&self, life: usize) -> Holder {
        Holder {
            nonce: life as u64,
            name: self.scenario.setups[self.lives[life].instance].name,
        }
    }

    fn leader(&self, held: Held) -> Leader {
        let life = usize::try_from(held.holder.nonce).unwrap_or(0);
        Leader {
            owner: self.lives[life].owner.clone(),
            token: held.token,
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        debug_assert!(at >= self.now && at.is_multiple_of(MICROSECOND));
        self.order += 1;
        let order = self.order;
        self.queue.push(Reverse(Scheduled { at, order, event }));
    }

    fn violate(&mut self, what: &str) {
        trace!(self, "VIOLATION: {what}");
        if self.violation.is_none() {
            self.violation = Some(format!("at {}: {what}", At(self.now)));
        }
    }

    fn local(&self, instance: usize) -> Moment {
        let host = self.scenario.setups[instance].host;
        self.hosts[host].clock.now(self.now)
    }

    /// The process of this life, if it still runs.
    fn running(&self, life: usize) -> Option<usize> {
        let index = self.lives[life].instance;
        let instance = &self.instances[index];
        (instance.life == life && instance.candidate.is_some()).then_some(index)
    }

    fn leads(&self, index: usize) -> bool {
        let instance = &self.instances[index];
        instance.candidate.is_some() && instance.lead.is_led(self.local(index))
    }

    fn current_leader(&self) -> Option<usize> {
        (0..INSTANCES).find(|index| self.leads(*index))
    }

    // ---- time ----

    fn step(&mut self) {
        let mut first: Option<(Time, usize)> = None;
        for (index, instance) in self.instances.iter().enumerate() {
            let wake = instance.wake.max(instance.paused_until);
            if instance.wake != NEVER && first.is_none_or(|(at, _)| wake < at) {
                first = Some((wake, index));
            }
        }
        let queued = self.queue.peek().map_or(NEVER, |Reverse(next)| next.at);
        self.figures.events += 1;
        if self.figures.events > MANY_EVENTS {
            return self.violate("it never ends");
        }
        match first {
            Some((at, index)) if at < queued || at == queued && self.random.coin() => {
                self.now = at;
                self.tell(index, Input::Tick);
            }
            _ => {
                let Some(Reverse(next)) = self.queue.pop() else {
                    self.over = true;
                    return;
                };
                self.now = next.at;
                self.happen(next.event);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::AtStore(letter) => self.at_store(letter),
            Event::AtProcess { life, arrival } => {
                let Some(index) = self.running(life) else {
                    return;
                };
                let paused = self.instances[index].paused_until;
                if paused > self.now {
                    self.schedule(paused, Event::AtProcess { life, arrival });
                } else {
                    self.arrived(index, arrival);
                }
            }
            Event::HostWakes { host, asleep_since } => {
                self.hosts[host].clock.slept(asleep_since, self.now);
                self.retime(host);
            }
            Event::Start { instance } => self.start(instance),
            Event::Fault => {
                self.fault();
                self.schedule_fault();
            }
            Event::LeaseChanges => self.change_lease(),
            Event::Calm => self.calm(),
            Event::CheckCalm => self.check_calm(),
            Event::Act => self.act(),
            Event::CheckAct => self.check_act(),
        }
    }

    fn set_wake(&mut self, index: usize) {
        let late = nanos(self.scenario.lateness);
        let late = if late == 0 {
            0
        } else {
            self.random.below(late / MICROSECOND) * MICROSECOND
        };
        let host = self.scenario.setups[index].host;
        let instance = &mut self.instances[index];
        instance.wake = match &instance.candidate {
            Some(candidate) => self.hosts[host]
                .clock
                .when(candidate.wake_at(), self.now)
                .saturating_add(late),
            None => NEVER,
        };
    }

    /// A clock was changed: its timers, and who leads by it.
    fn retime(&mut self, host: usize) {
        for index in 0..INSTANCES {
            if self.scenario.setups[index].host == host {
                self.set_wake(index);
                self.check_leaders(index);
            }
        }
    }

    // ---- processes ----

    fn start(&mut self, index: usize) {
        let life = self.instances[index].life;
        let (owner, rules) = (
            self.lives[life].owner.clone(),
            self.scenario.setups[index].rules.clone(),
        );
        let now = self.local(index);
        let mut rules = rules;
        if rules.jitter_seed != 0 {
            rules.jitter_seed ^= (life as u64) << 32;
        }
        trace!(self, "i{index} starts as {owner:?}");
        let adapter = self.adapter(index, life);
        let instance = &mut self.instances[index];
        instance.adapter = adapter;
        instance.working_on = None;
        instance.told = LEASE_UNTIL_TOLD;
        instance.conduct = Conduct::new(self.lends.map(|_| LEASE_UNTIL_TOLD));
        instance.callbacks_until = 0;
        instance.candidate = Some(Candidate::new(owner, rules, now));
        instance.lead = Lead::default();
        self.tell(index, Input::Tick);
        if self.instances[index].subscribed {
            self.hint(index, Hint::Watching, None, 0);
        }
    }

    /// The process ends, by a crash or after its clean stop, and another takes its place.
    fn replace(&mut self, index: usize, after: Time) {
        let instance = &mut self.instances[index];
        instance.candidate = None;
        instance.wake = NEVER;
        instance.paused_until = 0;
        let name = self.scenario.setups[index].name;
        let life = self.new_life(index, name);
        self.instances[index].life = life;
        self.schedule(self.now + after, Event::Start { instance: index });
    }

    fn arrived(&mut self, index: usize, arrival: Arrival) {
        let now = self.local(index);
        let (request, answer, told) = match arrival {
            Arrival::Input(input) => return self.tell(index, input),
            Arrival::Hint(hint, shown) => {
                if let Some(shown) = shown {
                    self.instances[index].adapter.observe(shown, now);
                }
                return self.tell(index, Input::Hint(hint));
            }
            Arrival::Answer {
                request,
                answer,
                told,
            } => (request, answer, told),
        };
        let answer = match answer {
            FromStore::Attempted(reply) => self.outcome(reply),
            FromStore::Released(released) => Answer::Released(released),
            FromStore::Seen(held) => Answer::Seen(held.map(|held| self.leader(held))),
            FromStore::Failed(kind) => Answer::Failed(kind),
            FromStore::Read(_) | FromStore::Written { .. } => {
                let Some((working_on, begun)) = self.instances[index].working_on else {
                    return;
                };
                if working_on.id != request {
                    return; // It was cancelled.
                }
                trace!(self, "i{index} got {answer:?} after {:?}", now.since(begun));
                let adapter = &mut self.instances[index].adapter;
                let step = match answer {
                    FromStore::Read(read) => adapter.has_read(working_on.op, read, now),
                    FromStore::Written { record, applied } => {
                        adapter.has_written(working_on.op, record, applied)
                    }
                    _ => return,
                };
                return self.take_step(index, step);
            }
        };
        let told = self.what_it_hears(index, told);
        if let Some(lease) = told {
            self.tell(index, Input::LeaseTold(lease));
        }
        self.tell(index, Input::Answer { request, answer });
    }

    /// The lease that an instance is told before this answer, if it is another one than before. The product
    /// tells it only before an answer that counts; here it comes with every one: elections that share a client
    /// hear it from each other's answers, and so one of them may hear a later word than its own answer's.
    fn what_it_hears(&mut self, index: usize, told: Option<Duration>) -> Option<Duration> {
        let mut lease = told?;
        if self.scenario.lent.len() > 1 && self.random.percent(10) {
            lease = self.lends?;
        }
        let instance = &mut self.instances[index];
        if std::mem::replace(&mut instance.told, lease) == lease {
            return None;
        }
        instance.conduct.will_be_told(lease);
        Some(lease)
    }

    fn take_step(&mut self, index: usize, step: Step) {
        let Some((request, _)) = self.instances[index].working_on else {
            return;
        };
        let what = match step {
            Step::Read => ToStore::Read,
            Step::Write { expected, record } => ToStore::Write { expected, record },
            Step::Done(done) => {
                self.instances[index].working_on = None;
                let answer = match done {
                    Done::Attempted(reply) => self.outcome(reply),
                    Done::Released(released) => Answer::Released(released),
                    Done::Seen(held) => Answer::Seen(held.map(|held| self.leader(held))),
                    Done::Busy => Answer::Failed(FailureKind::Transient),
                };
                let request = request.id;
                return self.tell(index, Input::Answer { request, answer });
            }
        };
        self.post(index, &request, what);
    }

    fn outcome(&self, reply: Reply) -> Answer {
        Answer::Attempt(match reply {
            Reply::Granted { token, valid_for } => Outcome::Held { token, valid_for },
            Reply::Denied { leader, remaining } => Outcome::Other {
                leader: leader.map(|held| self.leader(held)),
                remaining,
            },
        })
    }

    /// The one place where an instance is told something.
    fn tell(&mut self, index: usize, input: Input) {
        let now = self.local(index);
        let setup = &self.scenario.setups[index];
        let instance = &mut self.instances[index];
        let Some(candidate) = &mut instance.candidate else {
            return;
        };
        let before = Before {
            deadline: candidate.leads_until().map(|(_, deadline)| deadline),
        };
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        let told = input.clone();
        candidate.handle(now, input, &mut outputs);
        instance.lead.follow(candidate.leads_until(), String::new);
        let verdict = instance
            .conduct
            .judge(setup, now, before, &told, candidate, &outputs);
        if self.trace && (told != Input::Tick || !outputs.is_empty()) {
            let leads = candidate.leads_until();
            trace!(self, "i{index} [{now:?}] {told:?}");
            for output in &outputs {
                trace!(self, "    {output:?}");
            }
            if let Some((token, deadline)) = leads {
                trace!(self, "    leads {token} until {deadline:?}");
            }
        }
        if let Err(what) = verdict {
            self.violate(&format!("i{index}: {what}"));
        }
        self.set_wake(index);
        let mut stopped = false;
        for output in outputs.drain(..) {
            match output {
                Output::Send(request) => self.send(index, request, now),
                Output::Promoted { token } => self.promoted(index, token),
                Output::Demoted { token, .. } => self.demoted(index, token),
                Output::Stopped => stopped = true,
                _ => {}
            }
        }
        self.outputs = outputs;
        self.check_leaders(index);
        if stopped && self.violation.is_none() {
            self.after_stop(index);
        }
    }

    fn after_stop(&mut self, index: usize) {
        // Nothing may come of it any more, whatever it is told.
        for input in [Input::Hint(Hint::Free), Input::LoopTurning, Input::Stop] {
            self.tell(index, input);
        }
        let lease = nanos(self.scenario.lease);
        let mut away = self.some(lease);
        if self.now < self.faults_end {
            away = away.min(self.faults_end - self.now);
        }
        self.replace(index, away);
    }

    fn promoted(&mut self, index: usize, token: Token) {
        self.figures.terms += 1;
        self.promoted_at = self.now;
        let life = self.instances[index].life;
        if !self.is_tainted(index) {
            if self.largest_token.is_some_and(|largest| token <= largest) {
                self.violate(&format!(
                    "i{index} was promoted with token {token} after {:?}",
                    self.largest_token
                ));
            }
            self.largest_token = self.largest_token.max(Some(token));
        }
        match self.phase {
            Phase::Faults | Phase::Recovery | Phase::Act(Act::Crash) => {}
            Phase::Calm | Phase::Act(Act::Nothing) => {
                self.violate(&format!("i{index} was promoted in a calm"));
            }
            Phase::Act(Act::HandOver {
                life: of,
                callbacks_end,
                kept_until,
            }) => {
                if life != of && self.now < callbacks_end.min(kept_until) {
                    self.violate(&format!(
                        "i{index} leads while callbacks of the yielded term still run"
                    ));
                }
            }
        }
    }

    fn demoted(&mut self, index: usize, token: Token) {
        match self.phase {
            Phase::Calm | Phase::Act(Act::Nothing) => {
                self.violate(&format!("i{index} was demoted in a calm"));
            }
            _ => {}
        }
        let lease = nanos(self.scenario.lease);
        let takes =
            if self.faulty() && self.scenario.has(Fault::LongCallback) && self.random.percent(40) {
                self.count(Fault::LongCallback);
                match self.random.below(6) {
                    0 => NEVER,
                    _ => self.some(lease * 2),
                }
            } else {
                self.short_delay()
            };
        let instance = &mut self.instances[index];
        // One after the other: these wait for those of earlier terms.
        let begin = instance.callbacks_until.max(self.now);
        let until = match self.phase {
            Phase::Act(Act::HandOver { callbacks_end, .. }) => callbacks_end,
            _ => begin.saturating_add(takes),
        };
        instance.callbacks_until = until;
        let life = instance.life;
        if until < NEVER / 2 {
            let arrival = Arrival::Input(Input::CallbacksEnded(token));
            self.schedule(until, Event::AtProcess { life, arrival });
        }
    }

    // ---- rules between instances ----

    /// To be called whenever this instance may have begun to lead, or to lead longer.
    fn check_leaders(&mut self, index: usize) {
        if !self.leads(index) {
            return;
        }
        for other in 0..INSTANCES {
            if other != index && self.leads(other) {
                if self.is_tainted(index) || self.is_tainted(other) {
                    self.figures.excused += 1;
                } else {
                    self.violate(&format!("i{index} and i{other} lead"));
                }
            }
        }
    }

    /// Whether its leadership rests on a record that the store itself lost.
    fn is_tainted(&self, index: usize) -> bool {
        let instance = &self.instances[index];
        let deadline = instance.candidate.as_ref().and_then(Candidate::leads_until);
        deadline.is_some_and(|(_, deadline)| deadline <= instance.tainted_until)
    }

    /// The store lost what it had acknowledged: whoever leads may lead on, but only as long as it trusts
    /// an attempt that it sent until now.
    fn taint(&mut self) {
        for index in 0..INSTANCES {
            let trusted = self.local(index) + self.scenario.trust(&self.scenario.setups[index]);
            self.instances[index].tainted_until = trusted;
        }
    }

    // ---- the network ----

    /// Of a message without a fault.
    fn short_delay(&mut self) -> Time {
        if self.scenario.extremes && self.random.percent(60) {
            return 0;
        }
        let longest = nanos(self.scenario.lease) / 3_000 / MICROSECOND;
        self.random.below(longest) * MICROSECOND
    }

    /// Up to `longest`, of any order of magnitude.
    fn some(&mut self, longest: Time) -> Time {
        let longest = longest >> (self.random.below(4) * 2);
        self.random.below(longest / MICROSECOND) * MICROSECOND
    }

    /// A fault has its last effect then, or later.
    fn disturbed_until(&mut self, end: Time) {
        self.quiet_from = self.quiet_from.max(round(end));
    }

    fn faulty(&self) -> bool {
        self.now < self.faults_end
    }

    /// `None`: lost.
    fn delay(&mut self) -> Option<Time> {
        if self.faulty() && self.scenario.has(Fault::Loss) && self.random.below(100) < 8 {
            self.count(Fault::Loss);
            return None;
        }
        if self.faulty() && self.scenario.has(Fault::Delay) && self.random.below(8) == 0 {
            self.count(Fault::Delay);
            // 14 s at a lease of 15.
            let delay = self.some(nanos(self.scenario.lease) * 14 / 15);
            self.disturbed_until(self.now + delay);
            return Some(delay);
        }
        Some(self.short_delay())
    }

    fn send(&mut self, index: usize, request: Request, now: Moment) {
        self.figures.requests += 1;
        self.instances[index].working_on = Some((request, now));
        match self.scenario.family {
            Family::StoreJudges => self.post(index, &request, ToStore::Do),
            Family::FollowersJudge => {
                let step = self.instances[index].adapter.begin();
                self.take_step(index, step);
            }
        }
    }

    fn post(&mut self, index: usize, request: &Request, what: ToStore) {
        if self.instances[index].cut_to_store > self.now {
            return;
        }
        if let Some(delay) = self.delay() {
            let letter = Letter {
                life: self.instances[index].life,
                request: request.id,
                op: request.op,
                what,
            };
            self.schedule(self.now + delay, Event::AtStore(letter));
        }
    }

    fn at_store(&mut self, letter: Letter) {
        if self.now < self.down_until {
            return;
        }
        if self.now < self.outage_until {
            if !self.outage_swallows {
                let kind = if self.random.percent(10) {
                    FailureKind::Fatal
                } else {
                    FailureKind::Transient
                };
                self.reply(&letter, FromStore::Failed(kind));
            }
            return;
        }
        let answer = self.apply(&letter);
        trace!(
            self,
            "store: {:?} {:?} of {:?} -> {answer:?}",
            letter.what,
            letter.op,
            self.lives[letter.life].owner
        );
        if self.faulty() && self.scenario.has(Fault::AmbiguousWrite) && self.random.percent(6) {
            self.count(Fault::AmbiguousWrite);
            if self.random.coin() {
                self.reply(&letter, FromStore::Failed(FailureKind::Ambiguous));
            }
            return;
        }
        self.reply(&letter, answer);
    }

    fn reply(&mut self, letter: &Letter, answer: FromStore) {
        let index = self.lives[letter.life].instance;
        if self.instances[index].cut_from_store > self.now {
            return;
        }
        let attempted = matches!(answer, FromStore::Attempted(_));
        let told = self.lends.filter(|_| attempted);
        if let Some(delay) = self.delay() {
            let event = Event::AtProcess {
                life: letter.life,
                arrival: Arrival::Answer {
                    request: letter.request,
                    answer,
                    told,
                },
            };
            self.schedule(self.now + delay, event);
        }
    }

    // ---- the store ----

    fn held(&self) -> Option<Held> {
        match &self.store {
            Store::Judging { store, .. } => store.held(),
            Store::Versioned { store, .. } => store.read().1.held(),
        }
    }

    fn apply(&mut self, letter: &Letter) -> FromStore {
        let before = self.held();
        let by = self.holder(letter.life);
        let wanted = self.scenario.setups[self.lives[letter.life].instance].lease;
        let lease = self.lends.unwrap_or(wanted);
        let now = self.now;
        let (answer, wrote) = match (&mut self.store, letter.what) {
            (
                Store::Judging {
                    store,
                    clock,
                    earlier,
                    ..
                },
                _,
            ) => {
                let unchanged = store.clone();
                let answer = match letter.op {
                    Op::Campaign => {
                        FromStore::Attempted(store.attempt(clock.now(now), by, lease, None))
                    }
                    Op::Renew(token) => {
                        FromStore::Attempted(store.attempt(clock.now(now), by, lease, Some(token)))
                    }
                    Op::Release(token) => FromStore::Released(store.release(by, token)),
                    Op::Peek => FromStore::Seen(store.held()),
                };
                let wrote = matches!(
                    answer,
                    FromStore::Attempted(Reply::Granted { .. }) | FromStore::Released(true)
                );
                if wrote {
                    *earlier = unchanged;
                }
                (answer, wrote)
            }
            (Store::Versioned { store, earlier }, ToStore::Write { expected, record }) => {
                let unchanged = store.read();
                let applied = store.write(expected, record);
                if applied {
                    *earlier = unchanged;
                }
                (FromStore::Written { record, applied }, applied)
            }
            (Store::Versioned { store, .. }, _) => (FromStore::Read(store.read()), false),
        };
        if wrote {
            self.check_write(letter, before);
            self.announce(letter.op, lease);
        }
        answer
    }

    /// Every write names owner and term, and touches no other.
    fn check_write(&mut self, letter: &Letter, before: Option<Held>) {
        let (Op::Renew(token) | Op::Release(token)) = letter.op else {
            return;
        };
        let same = before
            .is_some_and(|held| held.holder.nonce == letter.life as u64 && held.token == token);
        if !same {
            self.violate(&format!("{letter:?} changed the record of {before:?}"));
        }
        // A store that forgot a term may have given its token to the same process again.
        let repeated = self.scenario.class == Class::LostWrite;
        if matches!(letter.op, Op::Release(_))
            && !repeated
            && let Some(index) = self.running(letter.life)
            && self.instances[index].conduct.unended.contains(&token)
        {
            self.violate(&format!("{letter:?} although its callbacks still run"));
        }
    }

    /// Tells those that watch.
    fn announce(&mut self, op: Op, lease: Duration) {
        let Some(held) = self.held().filter(|_| !matches!(op, Op::Release(_))) else {
            return self.announce_hint(Hint::Free, None);
        };
        let shown = match &self.store {
            Store::Judging { .. } => None,
            Store::Versioned { store, .. } => Some(store.read()),
        };
        let valid_for = lease.min(self.scenario.longest_lease);
        let hint = Hint::Alive {
            token: held.token,
            valid_for,
        };
        self.announce_hint(hint, shown);
    }

    fn announce_hint(&mut self, hint: Hint, shown: Option<(u64, Record)>) {
        for index in 0..INSTANCES {
            if !self.instances[index].subscribed {
                continue;
            }
            let bad = self.faulty() && self.scenario.has(Fault::BadHint);
            if bad && self.random.percent(15) {
                self.count(Fault::BadHint);
                match self.random.below(3) {
                    0 => {}
                    1 => {
                        let late = self.some(nanos(self.scenario.lease) * 14 / 15);
                        self.hint(index, hint, shown, late);
                    }
                    _ => {
                        let late = self.some(nanos(self.scenario.lease) * 14 / 15);
                        self.hint(index, hint, shown, late);
                        let delay = self.short_delay();
                        self.hint(index, hint, shown, delay);
                    }
                }
            } else {
                let delay = self.short_delay();
                self.hint(index, hint, shown, delay);
            }
        }
    }

    fn hint(&mut self, index: usize, hint: Hint, shown: Option<(u64, Record)>, delay: Time) {
        if self.faulty() {
            self.disturbed_until(self.now + delay);
        }
        let event = Event::AtProcess {
            life: self.instances[index].life,
            arrival: Arrival::Hint(hint, shown),
        };
        self.schedule(self.now + delay, event);
    }
}

/// Up to whole microseconds.
fn round(time: Time) -> Time {
    time.div_ceil(MICROSECOND) * MICROSECOND
}
