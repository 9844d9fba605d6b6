//! What every instance must do whatever happens, checked at each input: a referee that knows the
//! documents and not the code.
//!
//! The rules between instances (one leader, growing tokens, bounded recovery) are in `world`, which sees
//! them all.

use std::time::Duration;

use crate::candidate::{Answer, Candidate, Input, Op, Output, Request, RequestId};
use crate::clock::Moment;
use crate::lease::{LossReason, Outcome, Token};
use crate::scenario::{Setup, less_margin, told_trust};

/// The least time between two requests, whatever wakes an instance.
const SHORTEST_GAP: Duration = Duration::from_millis(10);

/// A short lease is no reason to ask a server that fails more often than this.
const TOLD_PATIENCE: Duration = Duration::from_secs(1);

/// The conduct of one process.
#[derive(Debug, Default)]
pub struct Conduct {
    leading: Option<Token>,
    largest_led: Option<Token>,
    pub stop_asked: bool,
    pub stopped: bool,
    pending: Option<Asked>,
    last_sent: Option<Moment>,
    failures: u32,
    /// The earliest moment of the next request, unless something wakes the instance.
    not_before: Moment,
    /// Something happened that may bring the next request forward.
    woken: bool,
    /// An overrun that was due before this input was heard: told at this input, though it may move it.
    due_before: Option<Token>,
    /// This very input said that the record is no longer this term's.
    denied: bool,
    /// The lease that the server told last, if it tells one.
    told: Option<Duration>,
    /// What the answer that comes now tells of it. It must be known before the rest of the answer is.
    tells: Option<Duration>,
    /// The send of the last success.
    anchor: Moment,
    /// How long after it the work must have ended.
    lasts: Duration,
    /// Terms that ended and whose callbacks have not.
    pub unended: Vec<Token>,
    /// The last of them, when its lease ends, and whether that was told.
    overrun: Option<(Token, Moment, bool)>,
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    id: RequestId,
    op: Op,
    sent: Moment,
    give_up: Moment,
}

/// What an instance knew before an input.
#[derive(Debug, Clone, Copy)]
pub struct Before {
    pub deadline: Option<Moment>,
}

impl Conduct {
    /// `told` is what a lease is taken for until the server tells another one.
    pub fn new(told: Option<Duration>) -> Self {
        Self {
            told,
            ..Self::default()
        }
    }

    /// An answer comes, and with it the word how long leases last.
    pub fn will_be_told(&mut self, lease: Duration) {
        self.tells = Some(lease);
    }

    /// R: a third of a lease that is told.
    fn renew(&self, setup: &Setup) -> Duration {
        let third = |lease: Duration| (lease / 3).max(SHORTEST_GAP);
        self.told.map_or(setup.renew, third)
    }

    /// The earliest that it asks again without a reason: who is told its lease spreads its requests.
    fn pace(&self, setup: &Setup) -> Duration {
        let renew = self.renew(setup);
        match self.told {
            Some(_) => (renew * 4 / 5).max(SHORTEST_GAP),
            None => renew,
        }
    }

    /// How long a grant of this length is trusted.
    fn trusts(&self, setup: &Setup, valid_for: Duration) -> Duration {
        match self.told {
            Some(told) => told_trust(told.min(valid_for)),
            None => setup.trust.min(less_margin(valid_for)),
        }
    }

    /// How long the work of a term may last that was granted for `valid_for`.
    fn lasts(&self, setup: &Setup, valid_for: Duration) -> Duration {
        match self.told {
            Some(told) => told_trust(told.min(valid_for)),
            None => less_margin(setup.lease.min(valid_for)),
        }
    }

    pub fn judge(
        &mut self,
        setup: &Setup,
        now: Moment,
        before: Before,
        input: &Input,
        candidate: &Candidate,
        outputs: &[Output],
    ) -> Result<(), String> {
        let was_stopped = self.stopped;
        self.denied = false;
        self.due_before = match self.overrun {
            Some((token, due, false)) if now >= due => Some(token),
            _ => None,
        };
        self.note_input(setup, now, before, input, outputs);
        for output in outputs {
            if was_stopped && !matches!(output, Output::Overrun { .. }) {
                return Err(format!("{output:?} after Stopped"));
            }
            self.note_output(setup, now, output, candidate, outputs)?;
        }
        // One that was due at this very moment may have been told before.
        if let Input::CallbacksEnded(ended) = input {
            self.overrun = self.overrun.filter(|(token, _, _)| token != ended);
        }
        if let Some((token, due, false)) = self.overrun
            && now >= due
            && !self.stopped
        {
            return Err(format!("the overrun of term {token} was not told"));
        }
        if candidate.wake_at() <= now {
            return Err(format!(
                "it wants to be woken at {:?}, which is not after {now:?}",
                candidate.wake_at()
            ));
        }
        if self.denied && self.leading.is_some() {
            return Err("it leads on although its renewal was denied".into());
        }
        match (candidate.leads_until(), self.leading) {
            (Some((leads, _)), Some(told)) if leads == told => Ok(()),
            (None, None) => Ok(()),
            (leads, told) => Err(format!("leads {leads:?}, but told of {told:?}")),
        }
    }

    fn note_input(
        &mut self,
        setup: &Setup,
        now: Moment,
        before: Before,
        input: &Input,
        outputs: &[Output],
    ) {
        let left = outputs
            .iter()
            .any(|output| matches!(output, Output::NotReleased { .. }));
        let renewal = |asked: Asked| matches!(asked.op, Op::Renew(_));
        if left && self.pending.is_some_and(renewal) {
            self.pending = None; // The time of the yielded lease was up before its renewal's answer.
        }
        if let Input::Answer { .. } = input {
            self.told = self.tells.take().or(self.told);
        }
        self.note_end_of_request(setup, now, before, input);
        match input {
            Input::Tick | Input::Answer { .. } => {}
            Input::LeaseTold(_) => self.told = self.tells.take().or(self.told),
            Input::CallbacksEnded(token) => {
                self.woken = true;
                self.unended.retain(|unended| unended != token);
            }
            Input::Stop => {
                self.stop_asked = true;
                self.woken = true;
            }
            Input::Hint(_) | Input::StepDown { .. } | Input::LoopStalled | Input::LoopTurning => {
                self.woken = true;
            }
        }
    }

    /// Finds out what became of the pending request, and when the next may follow.
    fn note_end_of_request(&mut self, setup: &Setup, now: Moment, before: Before, input: &Input) {
        let Some(asked) = self.pending else { return };
        if before.deadline.is_some_and(|deadline| now >= deadline) {
            self.pending = None; // The term is over, and its request forgotten.
            return;
        }
        let answer = match input {
            _ if now >= asked.give_up => None,
            Input::Answer { request, answer } if *request == asked.id => Some(answer),
            _ => return,
        };
        self.pending = None;
        self.not_before = match answer {
            None | Some(Answer::Failed(_)) => {
                self.failures += 1;
                // R/8, R/4, R/2, R, R, ... after its send.
                let halvings = 4_u32.saturating_sub(self.failures);
                let wait = self.renew(setup) / 2_u32.pow(halvings);
                asked.sent
                    + match self.told {
                        Some(_) if halvings == 0 => wait.max(TOLD_PATIENCE),
                        _ => wait,
                    }
            }
            Some(answer) => {
                self.failures = 0;
                let denied = matches!(answer, Answer::Attempt(Outcome::Other { .. }));
                self.denied = denied && matches!(asked.op, Op::Renew(_));
                self.note_answer(setup, now, asked, answer)
            }
        };
    }

    fn note_answer(&mut self, setup: &Setup, now: Moment, asked: Asked, answer: &Answer) -> Moment {
        match answer {
            // It came too late to begin a term: the same as none, but heard of now.
            Answer::Attempt(Outcome::Held { valid_for, .. })
                if asked.op == Op::Campaign
                    && now >= asked.sent + self.trusts(setup, *valid_for) =>
            {
                now + match self.told {
                    Some(_) => self.renew(setup).max(TOLD_PATIENCE),
                    None => setup.renew / 8,
                }
            }
            Answer::Attempt(Outcome::Held { valid_for, .. }) => {
                self.anchor = asked.sent;
                self.lasts = self.lasts(setup, *valid_for);
                if let Some((token, due, told)) = &mut self.overrun
                    && asked.op == Op::Renew(*token)
                    && self.leading.is_none()
                {
                    *due = asked.sent + self.lasts;
                    *told = false;
                }
                asked.sent + self.pace(setup)
            }
            Answer::Attempt(Outcome::Other {
                remaining: Some(remaining),
                ..
            }) => now + setup.campaign.unwrap_or(self.pace(setup)).min(*remaining),
            Answer::Attempt(Outcome::Other {
                remaining: None, ..
            })
            | Answer::Seen(_) => match self.told {
                Some(_) => now + self.pace(setup),
                None => now + setup.shortest_pause(),
            },
            Answer::Released(_) | Answer::Failed(_) => now,
        }
    }

    fn note_output(
        &mut self,
        setup: &Setup,
        now: Moment,
        output: &Output,
        candidate: &Candidate,
        all: &[Output],
    ) -> Result<(), String> {
        match output {
            Output::Send(request) => return self.note_request(now, request),
            Output::Promoted { token } => {
                if !setup.rules.takes_part {
                    return Err("promoted, but it only watches".into());
                }
                if self.stop_asked {
                    return Err("promoted after Stop".into());
                }
                if self.leading.is_some() {
                    return Err("promoted twice".into());
                }
                let went_back = all
                    .iter()
                    .any(|output| matches!(output, Output::TokenWentBack { .. }));
                if self.largest_led.is_some_and(|led| *token <= led) && !went_back {
                    return Err(format!("token {token} went back without a word"));
                }
                self.leading = Some(*token);
                self.largest_led = self.largest_led.max(Some(*token));
                self.woken = true;
            }
            Output::Demoted { token, reason } => {
                if self.leading.take() != Some(*token) {
                    return Err(format!("demoted from {token}, which it did not lead"));
                }
                self.woken = true;
                self.unended.push(*token);
                // A lease that is yielded is kept, and so is its request.
                if !matches!(reason, LossReason::SteppedDown | LossReason::Stopped) {
                    self.pending = None;
                }
                let due = self.anchor + self.lasts;
                // Who hears of it when that is over has a little time all the same.
                let due = if now < due {
                    due
                } else {
                    now + SHORTEST_NOTICE
                };
                self.overrun = Some((*token, due, false));
            }
            Output::Overrun { token } if self.due_before.take() == Some(*token) => {
                if let Some((_, due, told)) = &mut self.overrun {
                    *told |= now >= *due;
                }
            }
            Output::Overrun { token } => match &mut self.overrun {
                Some((of, due, told)) if of == token && now >= *due && !*told => *told = true,
                _ => return Err(format!("an overrun of term {token}: {:?}", self.overrun)),
            },
            Output::NotReleased { .. } => {
                self.woken = true;
                self.pending = None;
            }
            Output::Stopped => {
                if self.leading.is_some() || candidate.leads_until().is_some() || !self.stop_asked {
                    return Err("Stopped while leading, or not asked for".into());
                }
                self.stopped = true;
            }
            Output::LeaderChanged(_)
            | Output::StoreLost(_)
            | Output::StoreBack
            | Output::IdShared(_)
            | Output::TokenWentBack { .. } => {}
        }
        Ok(())
    }

    fn note_request(&mut self, now: Moment, request: &Request) -> Result<(), String> {
        if let Some(asked) = &self.pending {
            return Err(format!("{request:?} while {asked:?} is pending"));
        }
        let leads = matches!(request.op, Op::Renew(token) if self.leading == Some(token));
        if self.leading.is_some() && !leads {
            return Err(format!("{request:?} while leading {:?}", self.leading));
        }
        let release = matches!(request.op, Op::Release(_));
        if let Some(last) = self.last_sent
            && !release
            && now < last + SHORTEST_GAP
        {
            return Err(format!(
                "{request:?} only {:?} after the last",
                now.since(last)
            ));
        }
        if !self.woken && !release && now < self.not_before {
            return Err(format!(
                "{request:?} at {now:?}, although nothing is due before {:?}",
                self.not_before
            ));
        }
        self.woken = false;
        self.last_sent = Some(now);
        self.pending = Some(Asked {
            id: request.id,
            op: request.op,
            sent: now,
            give_up: now + request.limit,
        });
        Ok(())
    }
}

/// Callbacks hear of a loss at least so long before they are said to outlive it.
const SHORTEST_NOTICE: Duration = Duration::from_millis(250);
