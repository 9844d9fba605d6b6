//! How one process turns reads and conditional writes into attempts: the second family's adapter. What
//! it decides, the product's own `observation` decides; this only brings the records to it.

use std::time::Duration;

use crate::candidate::Op;
use crate::clock::Moment;
use crate::lease::Token;
use crate::observation::{Decision, Numbering, Observation, Wish, decide};
use crate::store::{Holder, Record, Reply};

/// How often it looks again if its write met a change.
const READS: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Adapter {
    me: Holder,
    lease: Duration,
    pub observation: Observation<u64>,
    reads: u32,
}

/// What to do next about the pending operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Read,
    Write { expected: u64, record: Record },
    Done(Done),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Done {
    Attempted(Reply),
    Released(bool),
    Seen(Option<crate::store::Held>),
    /// Every write met a change.
    Busy,
}

impl Adapter {
    pub fn new(me: Holder, lease: Duration) -> Self {
        Self {
            me,
            lease,
            observation: Observation::new(),
            reads: 0,
        }
    }

    pub fn begin(&mut self) -> Step {
        self.reads = 1;
        Step::Read
    }

    /// The record was read; `now` is the moment of the answer's receipt.
    pub fn has_read(&mut self, op: Op, (version, record): (u64, Record), now: Moment) -> Step {
        let remaining = self.observe((version, record), now);
        let held = record.held();
        let wish = match op {
            Op::Campaign => Wish::Campaign,
            Op::Renew(token) => Wish::Renew(token),
            Op::Release(token) => Wish::Release(token),
            Op::Peek => return Step::Done(Done::Seen(held)),
        };
        let named = held.as_ref().map(|held| (&held.holder, held.token));
        let record = match decide(&self.me, wish, named, remaining) {
            Decision::Begin => Record {
                holder: Some(self.me),
                token: next_token(record),
                duration: self.lease,
            },
            Decision::Renew => Record {
                duration: self.lease,
                ..record
            },
            Decision::Release => Record {
                holder: None,
                ..record
            },
            Decision::Deny => {
                return Step::Done(match op {
                    Op::Release(_) => Done::Released(false),
                    _ => Done::Attempted(Reply::Denied {
                        leader: held,
                        remaining,
                    }),
                });
            }
        };
        Step::Write {
            expected: version,
            record,
        }
    }

    /// Also for a record that a watch shows.
    pub fn observe(&mut self, (version, record): (u64, Record), now: Moment) -> Option<Duration> {
        if record.holder.is_none() {
            self.observation.clear();
            return None;
        }
        Some(self.observation.observe(version, record.duration, now))
    }

    pub fn has_written(&mut self, op: Op, wrote: Record, applied: bool) -> Step {
        match (applied, op) {
            (false, _) if self.reads >= READS => Step::Done(Done::Busy),
            (false, _) => {
                self.reads += 1;
                Step::Read
            }
            (true, Op::Release(_)) => Step::Done(Done::Released(true)),
            (true, _) => match wrote.held() {
                Some(held) => Step::Done(Done::Attempted(Reply::Granted {
                    token: held.token,
                    valid_for: wrote.duration,
                })),
                None => Step::Done(Done::Busy),
            },
        }
    }
}

/// From what the record holds alone: no process here remembers more, and no clock helps.
fn next_token(record: Record) -> u64 {
    let mut numbering = Numbering::default();
    if let Some(last) = Token::new(record.token) {
        numbering.heard(last);
    }
    numbering.next(0).number()
}
