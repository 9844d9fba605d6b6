//! True time, which nobody in the simulated world can read, and the clocks that drift from it.

use crate::clock::Moment;
use std::time::Duration;

/// True time in nanoseconds. Everything happens at whole microseconds, so that a clock whose rate is a
/// whole number of per mille shows whole nanoseconds then, and a bound can be met exactly.
pub type Time = u64;

pub const NEVER: Time = Time::MAX;
pub const MICROSECOND: Time = 1_000;
/// The rate of a true clock.
pub const TRUE_RATE: u64 = 1_000_000;

/// Whether the clocks of instances go on while their host is suspended, as the product's does.
const COUNTS_SUSPENDS: bool = true;
/// Whether instances read the wall clock, which administrators and NTP set.
const READS_WALL_CLOCK: bool = false;

/// A clock that goes at a rate of its own, in parts of a million.
#[derive(Debug, Clone)]
pub struct DriftingClock {
    rate: u64,
    since: Time,
    /// What it showed then, in millionths of nanoseconds: exact, whatever the rates were.
    shown: u128,
    /// How far the wall clock beside it was set forward or back.
    wall: i64,
}

impl DriftingClock {
    pub fn new(shown: Duration, rate: u64) -> Self {
        Self {
            rate,
            since: 0,
            shown: shown.as_nanos() * u128::from(TRUE_RATE),
            wall: 0,
        }
    }

    fn exactly(&self, at: Time) -> u128 {
        self.shown + u128::from(at - self.since) * u128::from(self.rate)
    }

    pub fn now(&self, at: Time) -> Moment {
        let nanos = u64::try_from(self.exactly(at) / u128::from(TRUE_RATE)).unwrap_or(u64::MAX);
        Moment::from_nanos(if READS_WALL_CLOCK {
            nanos.saturating_add_signed(self.wall)
        } else {
            nanos
        })
    }

    /// The first microsecond, from `from` on, at which this clock shows `moment` or more.
    pub fn when(&self, moment: Moment, from: Time) -> Time {
        if moment == Moment::NEVER {
            return NEVER;
        }
        let mut nanos = moment.as_nanos();
        if READS_WALL_CLOCK {
            nanos = nanos.saturating_add_signed(-self.wall);
        }
        let missing = (u128::from(nanos) * u128::from(TRUE_RATE)).saturating_sub(self.shown);
        let wait = missing.div_ceil(u128::from(self.rate));
        let at = u128::from(self.since) + wait;
        let at = u64::try_from(at).unwrap_or(NEVER - MICROSECOND);
        at.div_ceil(MICROSECOND)
            .saturating_mul(MICROSECOND)
            .max(from)
    }

    pub fn set_rate(&mut self, at: Time, rate: u64) {
        self.shown = self.exactly(at);
        self.since = at;
        self.rate = rate;
    }

    pub fn jump(&mut self, forward: Duration) {
        self.shown += forward.as_nanos() * u128::from(TRUE_RATE);
    }

    pub fn set_wall(&mut self, offset: i64) {
        self.wall = offset;
    }

    /// The host was suspended from `from` until now.
    pub fn slept(&mut self, from: Time, now: Time) {
        if !COUNTS_SUSPENDS {
            self.shown -= u128::from(now - from) * u128::from(self.rate);
        }
    }
}
