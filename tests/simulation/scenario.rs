//! What one seed makes of the world: its stores and clocks, who takes part with which numbers, and
//! which faults there are. Bounds are computed here from the documents, not from the product.

use std::time::Duration;

use crate::candidate::{OnRenewError, Rules};
use crate::clocks::TRUE_RATE;
use crate::random::Random;
use crate::timing::Timing;

pub const INSTANCES: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    StoreJudges,
    FollowersJudge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Faults that an election must survive.
    Ordinary,
    /// The same, with clocks that drift apart by exactly as much as S allows.
    OnTheBound,
    /// An administrator deletes the record while it is held: two leaders, but only until the deposed
    /// one's next answer or its deadline. Tokens still only grow.
    Deletion,
    /// The store forgets its last write: the same, and tokens may repeat.
    LostWrite,
    /// S is half a percent longer than the clocks allow. Never run as a proof: it shows that the
    /// checker sees what such a bug does.
    BeyondTheBound,
}

/// The kinds of faults. Each seed has its own choice of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    Loss,
    Delay,
    Cut,
    OneWayCut,
    Pause,
    Suspend,
    Crash,
    Stop,
    StepDown,
    Stall,
    Outage,
    AmbiguousWrite,
    StoreJump,
    WallJump,
    ClockRate,
    BadHint,
    WatchBreaks,
    LongCallback,
    SpuriousTick,
    Deletion,
    LostWrite,
}

impl Fault {
    pub const ALL: [Self; 21] = [
        Self::Loss,
        Self::Delay,
        Self::Cut,
        Self::OneWayCut,
        Self::Pause,
        Self::Suspend,
        Self::Crash,
        Self::Stop,
        Self::StepDown,
        Self::Stall,
        Self::Outage,
        Self::AmbiguousWrite,
        Self::StoreJump,
        Self::WallJump,
        Self::ClockRate,
        Self::BadHint,
        Self::WatchBreaks,
        Self::LongCallback,
        Self::SpuriousTick,
        Self::Deletion,
        Self::LostWrite,
    ];
}

#[derive(Debug, Clone)]
pub struct Setup {
    pub rules: Rules,
    pub lease: Duration,
    pub renew: Duration,
    /// S, by the formula of the documents.
    pub trust: Duration,
    pub host: usize,
    pub name: usize,
}

#[derive(Debug, Clone)]
pub struct Scenario {
    pub family: Family,
    pub class: Class,
    /// How far rates are from 1 at most, in parts of a million.
    pub drift: u64,
    /// Rates are at the ends of what is allowed, and messages often take no time.
    pub extremes: bool,
    pub setups: Vec<Setup>,
    pub hosts: usize,
    faults: u32,
    /// The longest lease that the store grants.
    pub longest_lease: Duration,
    pub forgets_expired: bool,
    /// How far the store's clock may jump ahead in one lease.
    pub store_jump: Duration,
    /// Whether the store tells of changes.
    pub watch: bool,
    /// How late timers fire at most.
    pub lateness: Duration,
    /// The longest lease and interval of all.
    pub lease: Duration,
    pub renew: Duration,
}

/// What the caller wants instead of chance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    pub family: Option<Family>,
    pub class: Option<Class>,
}

type Numbers = (u64, u64, Option<u64>);

const USUAL: [Numbers; 10] = [
    (15_000, 5_000, None),
    (15_000, 5_000, None),
    (15_000, 2_000, Some(10_000)),
    (15_000, 2_000, None),
    (30_000, 10_000, None),
    (6_000, 2_000, Some(4_000)),
    (4_000, 1_000, None),
    (1_500, 500, None),
    (10_000, 6_000, None),
    (1_000, 600, None),
];
/// S is exactly what a drift of 20 % allows.
const AT_20_PERCENT: [Numbers; 4] = [
    (15_000, 5_000, None),
    (15_000, 2_000, Some(10_000)),
    (6_000, 2_000, Some(4_000)),
    (30_000, 10_000, None),
];
const BEYOND_20_PERCENT: [Numbers; 2] =
    [(15_000, 5_000, Some(10_050)), (6_000, 2_000, Some(4_020))];

impl Scenario {
    pub fn new(random: &mut Random, wanted: Wanted) -> Self {
        let family = if random.coin() {
            Family::StoreJudges
        } else {
            Family::FollowersJudge
        };
        let family = wanted.family.unwrap_or(family);
        let class = match random.below(10) {
            0..=5 => Class::Ordinary,
            6..=7 => Class::OnTheBound,
            8 => Class::Deletion,
            _ => Class::LostWrite,
        };
        let class = wanted.class.unwrap_or(class);
        let extremes = matches!(class, Class::OnTheBound | Class::BeyondTheBound);
        let choice: &[Numbers] = match class {
            Class::OnTheBound => &AT_20_PERCENT,
            Class::BeyondTheBound => &BEYOND_20_PERCENT,
            _ if random.below(40) == 0 => &[(60_000, 59_000, None)],
            _ => &USUAL,
        };
        let mixed = random.below(4) == 0;
        let numbers = random.pick(choice);
        let hosts = random.pick(&[2, 3, 5, 5]);
        let shared_id = random.below(6) == 0;
        let watcher = random.below(4) == 0;
        let setups: Vec<_> = (0..INSTANCES)
            .map(|index| {
                let numbers = if mixed { random.pick(choice) } else { numbers };
                let name = if shared_id { index / 2 } else { index };
                let takes_part = !(watcher && index == 0);
                setup(random, numbers, index % hosts, name, takes_part)
            })
            .collect();

        // What the store grants at most; it shortens what a leader may trust.
        let shortest = setups.iter().map(|setup| setup.lease).min();
        let shortest = shortest.unwrap_or(Duration::MAX);
        let capped = family == Family::StoreJudges && !extremes && random.below(8) == 0;
        let longest_lease = if capped {
            shortest * 2 / 3
        } else {
            Duration::MAX
        };
        let capped = longest_lease < shortest && setups.iter().any(|s| s.renew * 2 > longest_lease);
        let longest_lease = if capped {
            Duration::MAX // No room for renewals.
        } else {
            longest_lease
        };
        let allowed = setups
            .iter()
            .map(|setup| drift_allowed(setup, longest_lease))
            .min();
        let allowed = allowed.unwrap_or(0);
        let drift = match class {
            Class::OnTheBound | Class::BeyondTheBound => 200_000,
            _ => random
                .pick(&[0, 100, 10_000, 50_000, 100_000, 200_000])
                .min(allowed),
        };
        let store_jump = setups
            .iter()
            .map(|setup| room_for_jumps(setup, longest_lease, drift))
            .min();
        let faults = choose_faults(random, class);
        Self {
            family,
            class,
            drift,
            extremes,
            hosts,
            faults,
            longest_lease,
            forgets_expired: random.coin(),
            store_jump: store_jump.unwrap_or(Duration::ZERO),
            watch: random.below(3) == 0,
            lateness: if extremes || random.coin() {
                Duration::ZERO
            } else {
                Duration::from_millis(2)
            },
            lease: setups.iter().map(|s| s.lease).max().unwrap_or_default(),
            renew: setups.iter().map(|s| s.renew).max().unwrap_or_default(),
            setups,
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.faults >> (fault as u8) & 1 == 1
    }

    pub fn rate(&self, random: &mut Random) -> u64 {
        let (slowest, fastest) = (TRUE_RATE - self.drift, TRUE_RATE + self.drift);
        if self.extremes && random.below(8) != 0 {
            random.pick(&[slowest, fastest])
        } else if self.extremes {
            random.between(slowest / 1_000, fastest / 1_000) * 1_000
        } else {
            random.between(slowest, fastest)
        }
    }

    /// The longest true time that a clock may need to show `shown`.
    pub fn longest(&self, shown: Duration) -> u64 {
        let nanos = shown.as_nanos() * u128::from(TRUE_RATE) / u128::from(TRUE_RATE - self.drift);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

fn setup(
    random: &mut Random,
    (lease, renew, limit): Numbers,
    host: usize,
    name: usize,
    takes_part: bool,
) -> Setup {
    let millis = Duration::from_millis;
    let (lease, renew, limit) = (millis(lease), millis(renew), limit.map(millis));
    let timing = Timing::new(lease, renew, limit).expect("good numbers");
    let trust = limit.unwrap_or_else(|| less_margin(lease).min((lease + renew) / 2));
    Setup {
        rules: Rules {
            timing,
            on_renew_error: if random.coin() {
                OnRenewError::StepDown
            } else {
                OnRenewError::Retry
            },
            takes_part,
            stop_timeout: lease * random.pick(&[0, 1, 2, 3]) / 2,
            jitter_seed: if random.coin() { 0 } else { random.bits() },
        },
        lease,
        renew,
        trust,
        host,
        name,
    }
}

fn less_margin(lease: Duration) -> Duration {
    lease.saturating_sub(Duration::from_millis(250).max(lease / 100))
}

/// rho in parts of a million: `S (1 + rho) = L (1 - rho)`.
fn drift_allowed(setup: &Setup, longest_lease: Duration) -> u64 {
    let lease = setup.lease.min(longest_lease);
    let trust = setup.trust.min(less_margin(lease));
    let part =
        lease.saturating_sub(trust).as_nanos() * u128::from(TRUE_RATE) / (lease + trust).as_nanos();
    u64::try_from(part).unwrap_or(0)
}

/// J: `S (1 + rho) <= (L - J) (1 - rho)`, less a microsecond for rounding.
fn room_for_jumps(setup: &Setup, longest_lease: Duration, drift: u64) -> Duration {
    let lease = setup.lease.min(longest_lease);
    let trust = setup.trust.min(less_margin(lease));
    let used = trust.as_nanos() * u128::from(TRUE_RATE + drift) / u128::from(TRUE_RATE - drift);
    let used = Duration::from_nanos(u64::try_from(used).unwrap_or(u64::MAX));
    lease.saturating_sub(used + Duration::from_micros(1))
}

fn choose_faults(random: &mut Random, class: Class) -> u32 {
    let mut faults = 0;
    for fault in Fault::ALL {
        let chosen = match fault {
            Fault::Deletion => class == Class::Deletion,
            Fault::LostWrite => class == Class::LostWrite,
            // Rates that change are what the bound is about.
            Fault::ClockRate => random.percent(80),
            Fault::Loss | Fault::Delay => random.percent(60),
            _ => random.percent(40),
        };
        faults |= u32::from(chosen) << (fault as u8);
    }
    faults
}
