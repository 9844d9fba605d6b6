//! Every interleaving of two instances and their store, for some leases: no luck, no seed.
//!
//! The machine is the product's, the stores are the simulation's reference. Lease 4 s, interval 2 s,
//! S 3 s, time in whole seconds. Messages may be lost, late by any time, and reordered; a process may be
//! stopped at any moment for any time; each clock may once stand still for a second, which is all the
//! drift that 3 s under a lease of 4 allow. A planted bug must give a counterexample.
//!
//! ```text
//! cargo test --no-default-features --test model -- --show-output
//! ```
//!
//! What it cannot do is go on for long: `simulation` does.

use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};
use whenleader::candidate::{Answer, Candidate, Input, OnRenewError, Op, Output, RequestId, Rules};
use whenleader::clock::Moment;
use whenleader::lease::{FailureKind, InstanceId, Leader, Outcome, Owner, Token};
use whenleader::timing::Timing;
use whenleader::{candidate, clock, lease, observation};

#[path = "simulation/adapter.rs"]
#[allow(dead_code)]
mod adapter;
#[path = "simulation/store.rs"]
#[allow(dead_code)]
mod store;

use adapter::{Adapter, Done, Step};
use store::{Held, Holder, JudgingStore, Record, Reply, VersionedStore};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(4);
const RENEW: Duration = Duration::from_secs(2);
const TRUST: Duration = Duration::from_secs(3);
const PROCESSES: usize = 2;

#[derive(Debug, Clone)]
struct World {
    followers_judge: bool,
    /// Seconds that are explored.
    horizon: u64,
    /// So many messages at a time may be on their way; one more, and the oldest is lost.
    in_flight: usize,
    /// Whether clocks may stand still for a second.
    drift: bool,
    /// Whether a process may be told to step down.
    hand_over: bool,
    bug: Option<Bug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// The store lets a lease end two seconds early.
    ExpiresEarly,
    /// A takeover overwrites whatever the record has become.
    NoCompareAndSet,
    /// The application asks a flag instead of the clock.
    FlagWithoutClock,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    time: u64,
    processes: Vec<Process>,
    store: Store,
    /// The oldest first. Any may be the next to arrive.
    messages: Vec<Message>,
    largest_token: Option<Token>,
    token_went_back: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    candidate: Candidate,
    adapter: Adapter,
    working_on: Option<(RequestId, Op)>,
    /// How many seconds its clock is behind true time.
    behind: u64,
    asked_to_step_down: bool,
    callbacks: Option<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Store {
    Judging(JudgingStore),
    Versioned(VersionedStore),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Envelope {
    process: usize,
    request: RequestId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    Do(Envelope, Op),
    Read(Envelope),
    Write(Envelope, u64, Record),
    Done(Envelope, Done),
    HasRead(Envelope, (u64, Record)),
    HasWritten(Envelope, Record, bool),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Action {
    /// A second passes; on this clock it does not.
    Second {
        slow: Option<usize>,
    },
    /// A timer fires, at any time after it was due.
    Wake(usize),
    Deliver(usize),
    StepDown(usize),
    CallbacksEnd(usize),
}

impl Process {
    fn now(&self, time: u64) -> Moment {
        Moment::ORIGIN + SECOND * u32::try_from(100 + time - self.behind).unwrap_or(0)
    }
}

fn holder(process: usize) -> Holder {
    Holder {
        nonce: process as u64,
        name: process,
    }
}

fn leader(held: Held) -> Leader {
    Leader {
        owner: owner(held.holder.name),
        token: held.token,
    }
}

fn owner(process: usize) -> Owner {
    Owner {
        instance: InstanceId::new(["a", "b"][process]).expect("a good name"),
        nonce: process as u64,
    }
}

impl World {
    fn leads(&self, state: &State, process: usize) -> bool {
        let process = &state.processes[process];
        match self.bug {
            Some(Bug::FlagWithoutClock) => process.candidate.leads_until().is_some(),
            _ => process
                .candidate
                .leads_until()
                .is_some_and(|(_, deadline)| process.now(state.time) < deadline),
        }
    }

    fn post(&self, state: &mut State, message: Message) {
        // What is never delivered is lost: when a newer message takes its place.
        if state.messages.len() == self.in_flight {
            state.messages.remove(0);
        }
        state.messages.push(message);
    }

    fn tell(&self, state: &mut State, index: usize, input: Input) {
        let mut outputs = Vec::new();
        let process = &mut state.processes[index];
        let now = process.now(state.time);
        process.candidate.handle(now, input, &mut outputs);
        for output in outputs {
            let process = &mut state.processes[index];
            match output {
                Output::Send(request) => {
                    let envelope = Envelope {
                        process: index,
                        request: request.id,
                    };
                    process.working_on = Some((request.id, request.op));
                    if self.followers_judge {
                        process.adapter.begin();
                        self.post(state, Message::Read(envelope));
                    } else {
                        self.post(state, Message::Do(envelope, request.op));
                    }
                }
                Output::Promoted { token } => {
                    state.token_went_back |= state.largest_token.is_some_and(|t| token <= t);
                    state.largest_token = state.largest_token.max(Some(token));
                }
                Output::Demoted { token, .. } => process.callbacks = Some(token),
                _ => {}
            }
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        match message {
            Message::Do(envelope, op) => {
                let done = self.judge(state, envelope.process, op);
                self.post(state, Message::Done(envelope, done));
            }
            Message::Read(envelope) => {
                let Store::Versioned(store) = &state.store else {
                    return;
                };
                let read = store.read();
                self.post(state, Message::HasRead(envelope, read));
            }
            Message::Write(envelope, expected, record) => {
                let Store::Versioned(store) = &mut state.store else {
                    return;
                };
                let expected = match self.bug {
                    Some(Bug::NoCompareAndSet) => store.read().0,
                    _ => expected,
                };
                let applied = store.write(expected, record);
                self.post(state, Message::HasWritten(envelope, record, applied));
            }
            Message::Done(envelope, done) => self.done(state, envelope, done),
            Message::HasRead(envelope, read) => {
                let process = &mut state.processes[envelope.process];
                let now = process.now(state.time);
                if let Some((id, op)) = process.working_on
                    && id == envelope.request
                {
                    let step = process.adapter.has_read(op, read, now);
                    self.take_step(state, envelope, step);
                }
            }
            Message::HasWritten(envelope, record, applied) => {
                let process = &mut state.processes[envelope.process];
                if let Some((id, op)) = process.working_on
                    && id == envelope.request
                {
                    let step = process.adapter.has_written(op, record, applied);
                    self.take_step(state, envelope, step);
                }
            }
        }
    }

    fn judge(&self, state: &mut State, process: usize, op: Op) -> Done {
        let now = Moment::ORIGIN + SECOND * u32::try_from(state.time).unwrap_or(0);
        let Store::Judging(store) = &mut state.store else {
            return Done::Busy;
        };
        let early = match self.bug {
            Some(Bug::ExpiresEarly) => now + SECOND * 2,
            _ => now,
        };
        match op {
            Op::Campaign => Done::Attempted(store.attempt(early, holder(process), LEASE, None)),
            Op::Renew(token) => {
                Done::Attempted(store.attempt(now, holder(process), LEASE, Some(token)))
            }
            Op::Release(token) => Done::Released(store.release(holder(process), token)),
            Op::Peek => Done::Seen(store.held()),
        }
    }

    fn take_step(&self, state: &mut State, envelope: Envelope, step: Step) {
        match step {
            Step::Read => self.post(state, Message::Read(envelope)),
            Step::Write { expected, record } => {
                self.post(state, Message::Write(envelope, expected, record));
            }
            Step::Done(done) => self.done(state, envelope, done),
        }
    }

    fn done(&self, state: &mut State, envelope: Envelope, done: Done) {
        let answer = match done {
            Done::Attempted(Reply::Granted { token, valid_for }) => {
                Answer::Attempt(Outcome::Held { token, valid_for })
            }
            Done::Attempted(Reply::Denied {
                leader: held,
                remaining,
            }) => Answer::Attempt(Outcome::Other {
                leader: held.map(leader),
                remaining,
            }),
            Done::Released(released) => Answer::Released(released),
            Done::Seen(held) => Answer::Seen(held.map(leader)),
            Done::Busy => Answer::Failed(FailureKind::Transient),
        };
        let request = envelope.request;
        self.tell(state, envelope.process, Input::Answer { request, answer });
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let timing = Timing::new(LEASE, RENEW, Some(TRUST)).expect("good numbers");
        let processes = (0..PROCESSES).map(|index| {
            let rules = Rules {
                timing,
                on_renew_error: [OnRenewError::Retry, OnRenewError::StepDown][index],
                takes_part: true,
                stop_timeout: LEASE,
                jitter_seed: 0,
            };
            let begin = Moment::ORIGIN + SECOND * 100;
            Process {
                candidate: Candidate::new(owner(index), rules, begin),
                adapter: Adapter::new(holder(index), LEASE),
                working_on: None,
                behind: 0,
                asked_to_step_down: false,
                callbacks: None,
            }
        });
        vec![State {
            time: 0,
            processes: processes.collect(),
            store: if self.followers_judge {
                Store::Versioned(VersionedStore::new())
            } else {
                Store::Judging(JudgingStore::new(Duration::MAX, false))
            },
            messages: Vec::new(),
            largest_token: None,
            token_went_back: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Second { slow: None });
        for (index, process) in state.processes.iter().enumerate() {
            if self.drift && process.behind == 0 {
                actions.push(Action::Second { slow: Some(index) });
            }
            if process.candidate.wake_at() <= process.now(state.time) {
                actions.push(Action::Wake(index));
            }
            if self.hand_over
                && !process.asked_to_step_down
                && process.candidate.leads_until().is_some()
            {
                actions.push(Action::StepDown(index));
            }
            if self.hand_over && process.callbacks.is_some() {
                actions.push(Action::CallbacksEnd(index));
            }
        }
        for index in 0..state.messages.len() {
            actions.push(Action::Deliver(index));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Second { slow } => {
                state.time += 1;
                if let Some(index) = slow {
                    state.processes[index].behind += 1;
                }
            }
            Action::Wake(index) => self.tell(&mut state, index, Input::Tick),
            Action::Deliver(index) => {
                let message = state.messages.remove(index);
                self.deliver(&mut state, message);
            }
            Action::StepDown(index) => {
                state.processes[index].asked_to_step_down = true;
                let pause = SECOND;
                self.tell(&mut state, index, Input::StepDown { pause });
            }
            Action::CallbacksEnd(index) => {
                if let Some(token) = state.processes[index].callbacks.take() {
                    self.tell(&mut state, index, Input::CallbacksEnded(token));
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never two leaders", |world: &Self, state: &State| {
                !(world.leads(state, 0) && world.leads(state, 1))
            }),
            Property::always("tokens only grow", |_, state: &State| {
                !state.token_went_back
            }),
            Property::sometimes(
                "the other leads after the first",
                |world: &Self, state: &State| {
                    state.largest_token > Token::new(1)
                        && (0..PROCESSES).any(|index| world.leads(state, index))
                },
            ),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.time <= self.horizon
    }
}

const SOUND: World = World {
    followers_judge: false,
    horizon: 5,
    in_flight: 2,
    drift: false,
    hand_over: false,
    bug: None,
};

fn explore(what: &str, world: World) {
    let begun = Instant::now();
    let checker = world.checker().threads(2).spawn_bfs().join();
    println!(
        "FIGURES: {what}: {} states, {} of them different, up to {} steps deep, in {:.1?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        begun.elapsed()
    );
    checker.assert_properties();
}

/// The steps of a counterexample.
fn counterexample(world: World) -> usize {
    let checker = world.checker().threads(2).spawn_bfs().join();
    let path = checker.discovery("never two leaders");
    let path = path.expect("the planted bug gives a counterexample");
    path.into_actions().len()
}

#[test]
fn a_store_that_judges_expiry_never_has_two_leaders_in_any_interleaving() {
    let horizon = 6;
    explore("the store judges", World { horizon, ..SOUND });
}

#[test]
fn nor_with_clocks_that_drift_as_far_as_is_allowed() {
    let drift = true;
    explore("the store judges, clocks drift", World { drift, ..SOUND });
}

#[test]
fn nor_with_leaders_that_hand_over() {
    let (horizon, hand_over) = (4, true);
    let world = World {
        horizon,
        hand_over,
        ..SOUND
    };
    explore("the store judges, leaders hand over", world);
}

#[test]
fn followers_that_judge_expiry_never_have_two_leaders_in_any_interleaving() {
    let world = World {
        followers_judge: true,
        drift: true,
        ..SOUND
    };
    explore("followers judge, clocks drift", world);
}

#[test]
fn planted_bugs_give_counterexamples() {
    for (bug, followers_judge) in [
        (Bug::ExpiresEarly, false),
        (Bug::FlagWithoutClock, false),
        (Bug::FlagWithoutClock, true),
        (Bug::NoCompareAndSet, true),
    ] {
        let steps = counterexample(World {
            followers_judge,
            bug: Some(bug),
            ..SOUND
        });
        println!("{bug:?}: two leaders after {steps} steps");
    }
}
