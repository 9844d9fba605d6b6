//! After the faults: what must be true then, exactly.

use std::time::Duration;

use super::{Act, At, Event, MILLISECOND, Phase, World, nanos, round};
use crate::candidate::Input;
use crate::clocks::Time;
use crate::lease::Hint;
use crate::scenario::{Family, Fault, INSTANCES};

impl World {
    pub(super) fn calm(&mut self) {
        trace!(
            self,
            "the faults end; their last effect is at {}",
            At(self.quiet_from)
        );
        for index in 0..INSTANCES {
            if self.scenario.watch {
                let silent = self.scenario.family == Family::StoreJudges && self.random.percent(15);
                let watches = !silent && self.random.percent(80);
                self.silent_watch |= silent;
                self.instances[index].subscribed = watches;
                if !silent {
                    let hint = if watches { Hint::Watching } else { Hint::Blind };
                    self.hint(index, hint, None, 0);
                }
            } else if self.scenario.has(Fault::BadHint) {
                self.hint(index, Hint::Blind, None, 0);
            }
        }
        self.disturbed_until(self.now);
        self.phase = Phase::Recovery;
        self.recovery_from = self.quiet_from;
        let check = self.quiet_from + self.recovery_bound();
        self.schedule(check, Event::CheckCalm);
    }

    /// L + R by the slowest clock, the jitter, and the way of some messages.
    fn recovery_bound(&self) -> Time {
        let promised = self.promised();
        round(self.scenario.longest(promised + Duration::from_millis(50))) + self.slack()
    }

    /// Where leases are told, L is enough: what was lost at the last fault is asked again after one, and the
    /// lease that was granted last has ended then. After the faults, that of the longest lease that anybody may
    /// have been told; later everybody knows how long they are now, and looks at the end of each.
    fn promised(&self) -> Duration {
        match (self.lends, self.phase) {
            (Some(lends), Phase::Calm | Phase::Act(_)) => lends,
            (Some(_), Phase::Faults | Phase::Recovery) => self.scenario.lease,
            (None, _) => self.scenario.lease + self.scenario.renew,
        }
    }

    /// Until a follower looks again, that knows of no expiry.
    fn look_bound(&self) -> Duration {
        match self.lends {
            Some(lends) => lends * 2 / 5, // A third, and a fifth of that.
            None => self.scenario.renew,
        }
    }

    /// Messages and late timers of one attempt or two.
    fn slack(&self) -> Time {
        round(nanos(self.scenario.lease) / 250) + 10 * MILLISECOND
    }

    /// Somebody leads; and how long it took, as a part of what is promised.
    fn check_recovery(&mut self) {
        if self.current_leader().is_none() {
            return self.violate(&format!(
                "nobody leads, although somebody had to since {}",
                At(self.recovery_from)
            ));
        }
        let took = self.promoted_at.saturating_sub(self.recovery_from);
        let part = took * 1_000 / self.scenario.longest(self.promised());
        let worst = match self.lends {
            Some(_) => &mut self.figures.worst_told_recovery,
            None => &mut self.figures.worst_recovery,
        };
        *worst = part.max(*worst);
    }

    pub(super) fn check_calm(&mut self) {
        self.check_recovery();
        for index in 0..INSTANCES {
            let instance = &self.instances[index];
            if instance.candidate.is_some() && instance.conduct.stop_asked {
                self.violate(&format!("i{index} does not stop"));
            }
        }
        self.phase = Phase::Calm;
        trace!(self, "calm");
        let leases = self.random.between(1, 3);
        let act = self.now + nanos(self.scenario.lease) * leases;
        self.schedule(act, Event::Act);
    }

    pub(super) fn act(&mut self) {
        let Some(leader) = self.current_leader() else {
            return self.violate("nobody leads in a calm");
        };
        let lease = nanos(self.scenario.lease);
        self.recovery_from = self.now;
        let mut check = self.now + self.recovery_bound();
        match self.random.below(5) {
            0 => self.phase = Phase::Act(Act::Nothing),
            1 => {
                self.phase = Phase::Act(Act::Crash);
                trace!(self, "act: i{leader} crashes");
                self.replace(leader, lease * 3);
            }
            2 => {
                self.phase = Phase::Act(Act::Crash);
                trace!(self, "act: i{leader} is paused");
                self.pause(leader, self.now + lease * 2);
            }
            _ => check = self.hand_over(leader),
        }
        self.schedule(check, Event::CheckAct);
    }

    /// The leader stops or steps down. Returns when somebody else must lead.
    fn hand_over(&mut self, leader: usize) -> Time {
        let takes = self.random.pick(&[0, 0, 1, 5, 16, 40]) * nanos(self.scenario.lease) / 10;
        let setup = &self.scenario.setups[leader];
        let kept_until = self.hosts[setup.host]
            .clock
            .when(self.local(leader) + setup.rules.stop_timeout, self.now);
        let callbacks_end = round(self.now + takes).max(self.instances[leader].callbacks_until);
        self.phase = Phase::Act(Act::HandOver {
            life: self.instances[leader].life,
            callbacks_end,
            kept_until,
        });
        let input = if self.random.coin() {
            Input::Stop
        } else {
            let pause = self.scenario.lease * 10;
            Input::StepDown { pause }
        };
        trace!(
            self,
            "act: {input:?} to i{leader}; its callbacks end at {}, its lease is kept until {}",
            At(callbacks_end),
            At(kept_until)
        );
        self.tell(leader, input);
        let released = callbacks_end.saturating_add(self.slack());
        if released < kept_until && !self.silent_watch {
            // A release is seen at the next look.
            self.recovery_from = callbacks_end;
            released + round(self.scenario.longest(self.look_bound())) + self.slack()
        } else {
            // It is left to its expiry, or nobody hears of its release.
            self.recovery_from = callbacks_end.min(kept_until);
            self.recovery_from + self.recovery_bound()
        }
    }

    pub(super) fn check_act(&mut self) {
        self.check_recovery();
        self.over = true;
    }
}
