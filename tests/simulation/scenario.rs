//! What one seed makes of the world: its stores and clocks, who takes part with which numbers, and
//! which faults there are. Bounds are computed here from the documents, not from the product.

use std::time::Duration;

use crate::candidate::{OnRenewError, Rules};
use crate::clocks::TRUE_RATE;
use crate::random::Random;
use crate::timing::Timing;

pub const INSTANCES: usize = 5;
/// What an instance takes a lease for until its server has told.
pub const LEASE_UNTIL_TOLD: Duration = Duration::from_secs(5);
/// What servers that tell their leases lend, in milliseconds.
const LENT: [u64; 6] = [500, 900, 2_000, 5_000, 15_000, 60_000];

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
    /// How often a follower asks that hears of nothing, if not every R.
    pub campaign: Option<Duration>,
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
    /// A server that tells its leases lends these, whatever is asked: the first from the beginning, the
    /// others after it was restarted. Empty: leases are as long as the instances want.
    pub lent: Vec<Duration>,
    /// Shorter ones from one moment to the next.
    pub hasty: bool,
    /// The longest lease that the store grants.
    pub longest_lease: Duration,
    pub forgets_expired: bool,
    /// How far the store's clock may jump ahead in one lease.
    pub store_jump: Duration,
    /// Whether the store tells of changes.
    pub watch: bool,
    /// How late timers fire at most.
    pub lateness: Duration,
    /// The longest lease and interval of all, or that anybody is told.
    pub lease: Duration,
    pub renew: Duration,
}

/// What the caller wants instead of chance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    pub family: Option<Family>,
    pub class: Option<Class>,
    /// Only servers that tell their leases.
    pub told: bool,
    /// Their leases become shorter while somebody leads. Never run as a proof, as it is none: it shows what
    /// the documents warn of.
    pub hasty: bool,
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
    /// `apart` decides what came later than the rest, so that the other worlds stay as they were.
    pub fn new(random: &mut Random, apart: &mut Random, wanted: Wanted) -> Self {
        let family = if random.coin() {
            Family::StoreJudges
        } else {
            Family::FollowersJudge
        };
        let family = match wanted.family {
            _ if wanted.told => Family::StoreJudges,
            wanted => wanted.unwrap_or(family),
        };
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
        let mut setups: Vec<_> = (0..INSTANCES)
            .map(|index| {
                let numbers = if mixed { random.pick(choice) } else { numbers };
                let name = if shared_id { index / 2 } else { index };
                let takes_part = !(watcher && index == 0);
                setup(random, numbers, index % hosts, name, takes_part)
            })
            .collect();
        let mut lent = Vec::new();
        if wanted.told || family == Family::StoreJudges && apart.below(6) == 0 {
            lent = choose_lent(apart);
            for setup in &mut setups {
                setup.follow_what_is_told(apart);
            }
        }

        let longest_lease = if family == Family::StoreJudges && !extremes {
            choose_longest_lease(random, &setups, &lent)
        } else {
            Duration::MAX
        };
        let trusted = trusted(&setups, &lent, longest_lease);
        let allowed = trusted
            .iter()
            .map(|(lease, trust)| drift_allowed(*lease, *trust));
        let allowed = allowed.min().unwrap_or(0);
        let drift = match class {
            Class::OnTheBound if !lent.is_empty() => allowed,
            Class::BeyondTheBound if !lent.is_empty() => allowed + 2_500,
            Class::OnTheBound | Class::BeyondTheBound => 200_000,
            _ => random
                .pick(&[0, 100, 10_000, 50_000, 100_000, 200_000])
                .min(allowed),
        };
        let store_jump = trusted
            .iter()
            .map(|(lease, trust)| room_for_jumps(*lease, *trust, drift))
            .min();
        let mut faults = choose_faults(random, class);
        let forgets_expired = random.coin();
        let mut watch = random.below(3) == 0;
        if !lent.is_empty() {
            // It tells of no changes.
            faults &= !(1 << Fault::BadHint as u8 | 1 << Fault::WatchBreaks as u8);
            watch = false;
        }
        let (lease, renew) = longest_numbers(&setups, &lent);
        Self {
            family,
            class,
            drift,
            extremes,
            hosts,
            faults,
            lent,
            hasty: wanted.hasty,
            longest_lease,
            forgets_expired,
            store_jump: store_jump.unwrap_or(Duration::ZERO),
            watch,
            lateness: if extremes || random.coin() {
                Duration::ZERO
            } else {
                Duration::from_millis(2)
            },
            lease,
            renew,
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
            random.between(slowest.div_ceil(1_000), fastest / 1_000) * 1_000
        } else {
            random.between(slowest, fastest)
        }
    }

    /// How long a leader trusts what is granted at most.
    pub fn trust(&self, setup: &Setup) -> Duration {
        let told = self.lent.iter().map(|lease| told_trust(*lease)).max();
        told.unwrap_or(setup.trust)
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
    let mut timing = Timing::new(lease, renew, limit).expect("good numbers");
    // Few: they loosen the bound of recovery for everybody beside them.
    let campaign = (random.below(24) == 0).then(|| renew * random.pick(&[1, 2, 3]));
    if let Some(interval) = campaign {
        timing = timing
            .with_campaign_interval(interval)
            .expect("a good number");
    }
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
        campaign,
        trust,
        host,
        name,
    }
}

impl Setup {
    /// The longest that a follower which hears of nothing lets pass between two attempts: R, or an interval of
    /// its own and a fifth of it.
    pub fn longest_pause(&self) -> Duration {
        self.campaign
            .map_or(self.renew, |interval| interval * 6 / 5)
    }

    /// The shortest, if no expiry is known.
    pub fn shortest_pause(&self) -> Duration {
        self.campaign.unwrap_or(self.renew * 9 / 10)
    }

    /// The instance of a server that tells its leases.
    fn follow_what_is_told(&mut self, random: &mut Random) {
        let lease = LEASE_UNTIL_TOLD;
        self.lease = lease;
        self.renew = lease / 3;
        self.campaign = None;
        self.trust = told_trust(lease);
        self.rules.timing = Timing::told(lease);
        self.rules.stop_timeout = lease * random.pick(&[0, 1, 2, 3]) / 2;
        if random.percent(80) {
            self.rules.on_renew_error = OnRenewError::Retry;
        }
    }
}

/// What the store grants at most; it shortens what a leader may trust.
fn choose_longest_lease(random: &mut Random, setups: &[Setup], lent: &[Duration]) -> Duration {
    let shortest = setups.iter().map(|setup| setup.lease).min();
    let longest = shortest.unwrap_or(Duration::MAX) * 2 / 3;
    let has_room = lent.is_empty() && setups.iter().all(|setup| setup.renew * 2 <= longest);
    if random.below(8) == 0 && has_room {
        longest
    } else {
        Duration::MAX // Or there is no room for renewals.
    }
}

/// The longest lease and interval.
fn longest_numbers(setups: &[Setup], lent: &[Duration]) -> (Duration, Duration) {
    let own = setups.iter().map(|setup| setup.lease);
    let lease = own.chain(lent.iter().copied()).max().unwrap_or_default();
    let renew = setups.iter().map(Setup::longest_pause).max();
    let renew = renew.filter(|_| lent.is_empty());
    (lease, renew.unwrap_or(lease / 3))
}

/// The leases that are granted, and how long leaders trust them.
fn trusted(
    setups: &[Setup],
    lent: &[Duration],
    longest_lease: Duration,
) -> Vec<(Duration, Duration)> {
    if !lent.is_empty() {
        return lent
            .iter()
            .map(|lease| (*lease, told_trust(*lease)))
            .collect();
    }
    let granted = setups.iter().map(|setup| {
        let lease = setup.lease.min(longest_lease);
        (lease, setup.trust.min(less_margin(lease)))
    });
    granted.collect()
}

/// Two of three servers lend the same all the time.
fn choose_lent(random: &mut Random) -> Vec<Duration> {
    let count = random.pick(&[1, 1, 1, 1, 2, 3]);
    let lent = (0..count).map(|_| Duration::from_millis(random.pick(&LENT)));
    lent.collect()
}

/// How long a leader trusts a lease that its server tells: to a margin of 250 ms or 1 % before its end,
/// whichever is longer, but of no more than a tenth.
pub fn told_trust(lease: Duration) -> Duration {
    let margin = Duration::from_millis(250).max(lease / 100);
    lease.saturating_sub(margin.min(lease / 10))
}

pub fn less_margin(lease: Duration) -> Duration {
    lease.saturating_sub(Duration::from_millis(250).max(lease / 100))
}

/// rho in parts of a million: `S (1 + rho) = L (1 - rho)`.
fn drift_allowed(lease: Duration, trust: Duration) -> u64 {
    let part =
        lease.saturating_sub(trust).as_nanos() * u128::from(TRUE_RATE) / (lease + trust).as_nanos();
    u64::try_from(part).unwrap_or(0)
}

/// J: `S (1 + rho) <= (L - J) (1 - rho)`, less a microsecond for rounding.
fn room_for_jumps(lease: Duration, trust: Duration, drift: u64) -> Duration {
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
