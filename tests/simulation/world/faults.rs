//! What goes wrong in the world, and for how long.

use std::time::Duration;

use super::{Arrival, At, Event, Store, World, nanos, round};
use crate::candidate::Input;
use crate::clocks::{MICROSECOND, Time};
use crate::lease::{Hint, Token};
use crate::scenario::{Fault, INSTANCES};

impl World {
    pub(super) fn count(&mut self, fault: Fault) {
        self.figures.faults[fault as usize] += 1;
    }

    pub(super) fn schedule_fault(&mut self) {
        let lease = nanos(self.scenario.lease) / MICROSECOND;
        let wait = self.random.between(lease / 50, lease / 2) * MICROSECOND;
        if self.now + wait < self.faults_end {
            self.schedule(self.now + wait, Event::Fault);
        }
    }

    pub(super) fn schedule_lease_change(&mut self) {
        if self.scenario.lent.len() < 2 {
            return;
        }
        let lease = nanos(self.scenario.lease) / MICROSECOND;
        let wait = self.random.between(lease / 10, lease * 2) * MICROSECOND;
        if self.now + wait < self.faults_end {
            self.schedule(self.now + wait, Event::LeaseChanges);
        }
    }

    /// The server is started again, and lends other leases. Those that it lent stay as they were. If they are
    /// shorter it was away for one of those before: a renewal whose answer is lost would cut a lease that its
    /// leader still trusts.
    pub(super) fn change_lease(&mut self) {
        self.schedule_lease_change();
        let lends = self.random.pick(&self.scenario.lent);
        let Some(before) = self.lends.filter(|before| *before != lends) else {
            return;
        };
        if lends < before && !self.scenario.hasty {
            let over = self.now.max(self.down_until) + round(self.scenario.longest(before));
            if over > self.faults_end {
                return;
            }
            self.down_until = over;
        }
        self.lends = Some(lends);
        self.figures.lease_changes += 1;
        trace!(
            self,
            "leases last {lends:?} from {} on",
            At(self.down_until.max(self.now))
        );
    }

    /// Faults look for the leader: that is where they hurt.
    fn victim(&mut self) -> usize {
        match self.current_leader() {
            Some(leader) if self.random.percent(60) => leader,
            _ => self.random.index(INSTANCES),
        }
    }

    #[allow(clippy::too_many_lines)] // A few lines for each kind.
    pub(super) fn fault(&mut self) {
        let chosen = self.random.pick(&Fault::ALL);
        if !self.scenario.has(chosen) {
            return;
        }
        let lease = nanos(self.scenario.lease);
        let left = self.faults_end - self.now;
        let victim = self.victim();
        let lasts = (self.random.below(lease * 5 / 2 / MICROSECOND) * MICROSECOND).min(left);
        let until = self.now + lasts;
        match chosen {
            // These are faults of each message, timer and callback.
            Fault::Loss | Fault::Delay | Fault::AmbiguousWrite | Fault::LongCallback => return,
            Fault::Cut => {
                self.instances[victim].cut_to_store = until;
                self.instances[victim].cut_from_store = until;
            }
            Fault::OneWayCut if self.random.coin() => self.instances[victim].cut_to_store = until,
            Fault::OneWayCut => self.instances[victim].cut_from_store = until,
            Fault::Pause => self.pause(victim, until),
            Fault::Suspend => self.suspend(self.scenario.setups[victim].host, until),
            Fault::Crash => {
                if self.instances[victim].candidate.is_none() {
                    return;
                }
                let away = self.some(lease * 2).min(left);
                self.replace(victim, away);
            }
            Fault::Stop => {
                let stop = Input::Stop;
                self.wish(victim, stop, Duration::ZERO);
            }
            Fault::StepDown => {
                let pause = Duration::from_nanos(self.some(lease * 2));
                self.wish(victim, Input::StepDown { pause }, pause);
            }
            Fault::Stall => {
                let life = self.instances[victim].life;
                if self.instances[victim].paused_until > self.now {
                    return; // Nothing turns in a process that is stopped.
                }
                for (at, input) in [(self.now, Input::LoopStalled), (until, Input::LoopTurning)] {
                    let arrival = Arrival::Input(input);
                    self.schedule(at, Event::AtProcess { life, arrival });
                }
            }
            Fault::Outage => {
                self.outage_until = self.now + lasts / 2 / MICROSECOND * MICROSECOND;
                self.outage_swallows = self.random.coin();
            }
            Fault::StoreJump => {
                let Store::Judging {
                    clock, next_jump, ..
                } = &mut self.store
                else {
                    return;
                };
                let room = nanos(self.scenario.store_jump);
                if self.now < *next_jump || room == 0 {
                    return;
                }
                clock.jump(Duration::from_nanos(room));
                *next_jump = self.now + lease * 2;
            }
            Fault::WallJump => {
                let host = self.scenario.setups[victim].host;
                let offset =
                    self.random.between(0, lease * 4).cast_signed() - (lease * 2).cast_signed();
                self.hosts[host].clock.set_wall(offset);
                self.retime(host);
            }
            Fault::ClockRate => {
                for host in 0..self.hosts.len() {
                    let rate = self.scenario.rate(&mut self.random);
                    self.hosts[host].clock.set_rate(self.now, rate);
                    self.retime(host);
                }
                let rate = self.scenario.rate(&mut self.random);
                if let Store::Judging { clock, .. } = &mut self.store {
                    clock.set_rate(self.now, rate);
                }
            }
            Fault::BadHint => self.invent_hint(victim),
            Fault::WatchBreaks => {
                if !self.scenario.watch {
                    return;
                }
                let works = !self.instances[victim].subscribed;
                self.instances[victim].subscribed = works;
                if works || self.random.coin() {
                    let hint = if works { Hint::Watching } else { Hint::Blind };
                    self.hint(victim, hint, None, 0);
                }
            }
            Fault::SpuriousTick => self.tick_for_nothing(victim),
            Fault::Deletion => {
                match &mut self.store {
                    Store::Judging { store, .. } => store.delete(),
                    Store::Versioned { store, .. } => store.delete(),
                }
                self.taint();
            }
            Fault::LostWrite => {
                match &mut self.store {
                    Store::Judging { store, earlier, .. } => *store = earlier.clone(),
                    Store::Versioned { store, earlier } => store.fall_back(*earlier),
                }
                self.largest_token = None;
                self.taint();
            }
        }
        self.count(chosen);
        trace!(self, "fault: {chosen:?} at i{victim} until {}", At(until));
    }

    pub(super) fn pause(&mut self, index: usize, until: Time) {
        let instance = &mut self.instances[index];
        if instance.candidate.is_some() {
            instance.paused_until = instance.paused_until.max(until);
        }
    }

    fn suspend(&mut self, host: usize, until: Time) {
        if self.hosts[host].suspended_until > self.now {
            return;
        }
        self.hosts[host].suspended_until = until;
        let asleep_since = self.now;
        self.schedule(until, Event::HostWakes { host, asleep_since });
        for index in 0..INSTANCES {
            if self.scenario.setups[index].host == host {
                self.pause(index, until);
            }
        }
    }

    /// A wish of the application. Until it is done, the election may rest.
    fn wish(&mut self, index: usize, wish: Input, pause: Duration) {
        if self.instances[index].candidate.is_none() {
            return;
        }
        let setup = &self.scenario.setups[index];
        let mut rest = setup.rules.stop_timeout + setup.renew * 5 + pause;
        if self.lends.is_some() {
            // By the longest lease that it may have been told; its campaign may wait for an answer that long.
            rest = setup.rules.stop_timeout + self.scenario.lease + self.scenario.renew * 5 + pause;
        }
        let begins = self.now.max(self.instances[index].paused_until);
        self.disturbed_until(begins + self.scenario.longest(rest));
        let life = self.instances[index].life;
        let arrival = Arrival::Input(wish);
        self.schedule(self.now, Event::AtProcess { life, arrival });
    }

    fn invent_hint(&mut self, index: usize) {
        let lease = nanos(self.scenario.lease);
        let token = self.largest_token.map_or(1, Token::number);
        let token = (token + self.random.below(3)).saturating_sub(1).max(1);
        let valid_for = self.random.below(lease * 2);
        let hint = match self.random.below(4) {
            0 => Hint::Free,
            1 => Hint::Watching,
            2 => Hint::Blind,
            _ => Hint::Alive {
                token: Token::new(token).expect("a small token"),
                valid_for: Duration::from_nanos(valid_for),
            },
        };
        self.hint(index, hint, None, 0);
        // Whoever believes it sleeps so much longer.
        self.disturbed_until(self.now + self.scenario.longest(Duration::from_nanos(valid_for)));
    }

    fn tick_for_nothing(&mut self, index: usize) {
        let life = self.instances[index].life;
        for _ in 0..3 {
            let at = self.now + self.short_delay();
            let arrival = Arrival::Input(Input::Tick);
            self.schedule(at, Event::AtProcess { life, arrival });
        }
    }
}
