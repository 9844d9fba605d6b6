//! Every duration and deadline of an election, in one place, each with its reason.
//!
//! L is `leaseDuration`, R is `renewInterval`, S is how long a leader trusts its last successful
//! attempt. S counts from the moment *before* that attempt was sent: the store cannot have started
//! the lease earlier, so whatever the network did, S ends before the lease does.
//!
//! A server that lends leases by its own measure (a Leader Election API) tells L with each answer; R and S
//! follow from it: see [`Timing::told`].
//!
//! Two clocks may run at rates that differ by a fraction rho. A follower waits L by its own clock (or
//! by the store's); a leader stops after S by its own. They never overlap while
//! `S * (1 + rho) <= L * (1 - rho)`, that is `rho <= (L - S) / (L + S)`: 20 % with the defaults.

use std::fmt;
use std::time::Duration;

use crate::clock::Moment;
use crate::lease::LONGEST_LEASE;

/// `leaseDuration` unless it is given.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(15);
/// `renewInterval` unless it is given.
pub const DEFAULT_RENEW: Duration = Duration::from_secs(5);

/// An interval below this is a load test, not an election.
const SHORTEST_RENEW: Duration = Duration::from_millis(50);
/// The least that a leader stays away from the end of its lease: timers fire late, callbacks take
/// their time to hear of it, and stores round.
const MARGIN: Duration = Duration::from_millis(250);
/// Long leases keep at least this part of themselves as margin, for the drift of real clocks.
const MARGIN_DIVISOR: u32 = 100;
/// Callbacks that must have ended at that margin are told so much earlier, but no more than this part of the lease.
const NOTICE: Duration = Duration::from_millis(250);
const NOTICE_DIVISOR: u32 = 20;
/// The least time between sending a renewal and the deadline: one round trip to a slow store.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(100);
/// A follower that waits for an expiry adds up to this, so that several do not all ask at once...
const LONGEST_JITTER: Duration = Duration::from_millis(50);
/// ...but never more than this part of the lease, so that short leases are taken over promptly.
const JITTER_DIVISOR: u32 = 1_000;
/// No two attempts of one instance follow each other faster than this, whatever wakes it.
const SHORTEST_GAP: Duration = Duration::from_millis(10);
/// Of the election of one piece of work, unless they are given or the lease is too short for them.
const WORK_RENEW: Duration = Duration::from_secs(2);
const WORK_CAMPAIGN: Duration = Duration::from_secs(5);
/// Where nothing else is given.
const SHORTEST_WORK_LEASE: Duration = Duration::from_millis(450);
/// To a campaign interval of its own, up to this part is added.
const CAMPAIGN_JITTER_DIVISOR: u32 = 5;
/// After a failure an instance tries again after R/8, R/4, R/2, and then every R.
const QUICK_RETRIES: u32 = 3;
/// A follower that is told of every renewal still asks the store itself once in so many leases.
const LEASES_BETWEEN_CHECKS: u32 = 4;
/// A release is tried this often.
pub const RELEASE_TRIES: u32 = 3;
/// How often a lease is asked for in its time where the server says how long that is.
const ATTEMPTS_A_TOLD_LEASE: u32 = 3;
/// Of a told lease, the most that the margin takes: servers lend short ones, too.
const TOLD_MARGIN_DIVISOR: u32 = 10;
/// The least that an answer is waited for where leases are told, and the least between failures that go on.
const TOLD_PATIENCE: Duration = Duration::from_secs(1);
/// `stallTimeout` in leases unless it is given.
const STALL_LEASES: u32 = 4;

/// What a server may lend. What its store holds is longer, and a day at most.
const SHORTEST_LENT: Duration = Duration::from_millis(100);
const LONGEST_LENT: Duration = Duration::from_secs(22 * 60 * 60);
/// Of a lent lease, the part that the store keeps it longer.
const LENT_MARGIN_DIVISOR: u32 = 20;

/// The validated numbers of one election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    lease: Duration,
    renew: Duration,
    lead_limit: Duration,
    /// How often a follower asks that hears of nothing, if not every R.
    campaign: Option<Duration>,
    /// The server says how long a lease lasts.
    told: bool,
    /// Whatever has not ended in time ends the process, so a leader stops before that, however short a lease is.
    leaves_time_to_end: bool,
}

/// Why numbers were refused. Names the parameter and the cure; the caller knows the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTiming {
    pub parameter: &'static str,
    /// Words that follow "must".
    pub rule: String,
}

impl Timing {
    /// `lead_limit` sets S; `None` is the formula of [`Timing::lead_limit`].
    pub fn new(
        lease: Duration,
        renew: Duration,
        lead_limit: Option<Duration>,
    ) -> Result<Self, BadTiming> {
        let refuse = |parameter, rule| Err(BadTiming { parameter, rule });
        if renew < SHORTEST_RENEW {
            return refuse(
                "renewInterval",
                format!("be at least {}", Millis(SHORTEST_RENEW)),
            );
        }
        if lease > LONGEST_LEASE {
            return refuse(
                "leaseDuration",
                format!("be at most {} (24 hours)", Millis(LONGEST_LEASE)),
            );
        }
        if renew >= lease {
            return refuse(
                "renewInterval",
                format!(
                    "be lower than leaseDuration, {}; a third of it is usual",
                    Millis(lease)
                ),
            );
        }
        let latest = latest_stop(lease);
        let usual = latest.min((lease + renew) / 2);
        let limit = lead_limit.unwrap_or(usual);
        if limit > latest {
            return refuse(
                "leadLimit",
                format!(
                    "be at most {}: leaseDuration less a margin of {}",
                    Millis(latest),
                    Millis(lease.saturating_sub(latest))
                ),
            );
        }
        if limit < renew + SHORTEST_ATTEMPT {
            let parameter = if lead_limit.is_some() {
                "leadLimit"
            } else {
                "renewInterval"
            };
            return refuse(
                parameter,
                format!(
                    "leave at least {} for a renewal: a leader of {} leases stops {} after its last \
                     success, and renews every {}",
                    Millis(SHORTEST_ATTEMPT),
                    Millis(lease),
                    Millis(limit),
                    Millis(renew)
                ),
            );
        }
        Ok(Self {
            lease,
            renew,
            lead_limit: limit,
            campaign: None,
            told: false,
            leaves_time_to_end: false,
        })
    }

    /// That of the election of one piece of work, which loses more by a change of leaders than by a renewal: under a
    /// lease of 15 s it is renewed every 2 s, led for 10 s without a success, so that work has 5 s to end, and
    /// campaigned for every 5 s. A shorter lease shortens all of them.
    pub fn of_work(
        lease: Option<Duration>,
        renew: Option<Duration>,
        lead_limit: Option<Duration>,
        campaign: Option<Duration>,
    ) -> Result<Self, BadTiming> {
        if renew.is_none()
            && lead_limit.is_none()
            && lease.is_some_and(|lease| lease < SHORTEST_WORK_LEASE)
        {
            return Err(BadTiming {
                parameter: "leaseDuration",
                rule: format!(
                    "be at least {}, so that it can be renewed in time and work can end before it does",
                    Millis(SHORTEST_WORK_LEASE)
                ),
            });
        }
        let lease = lease.unwrap_or(DEFAULT_LEASE);
        let renew = renew.unwrap_or(WORK_RENEW.min(lease * 2 / 15).max(SHORTEST_RENEW));
        let end = latest_stop(lease);
        let latest = with_notice(lease, end);
        let limit = lead_limit.unwrap_or_else(|| (lease * 2 / 3).min(latest));
        let campaign = campaign.unwrap_or(WORK_CAMPAIGN.min(lease / 3));
        if limit > latest {
            return Err(told_too_late(lease, end));
        }
        Self::new(lease, renew, Some(limit))?
            .with_time_to_end(None)?
            .with_campaign_interval(campaign)
    }

    /// For callbacks whose process is ended if they have not ended in time: they must hear of it before. `given` is the
    /// limit that was asked for.
    pub fn with_time_to_end(self, given: Option<Duration>) -> Result<Self, BadTiming> {
        let end = self.latest_stop(self.lease);
        let latest = with_notice(self.lease, end);
        if given.is_some_and(|limit| limit > latest) {
            return Err(told_too_late(self.lease, end));
        }
        let earlier = if self.told || self.lead_limit <= latest {
            self
        } else {
            Self::new(self.lease, self.renew, Some(latest))?
        };
        Ok(Self {
            lead_limit: earlier.lead_limit.min(latest),
            leaves_time_to_end: true,
            ..earlier
        })
    }

    /// A leader that renews often need not have followers that ask as often.
    pub fn with_campaign_interval(self, interval: Duration) -> Result<Self, BadTiming> {
        if interval < SHORTEST_RENEW || interval > LONGEST_LEASE {
            return Err(BadTiming {
                parameter: "campaignInterval",
                rule: format!("be {} to {}", Millis(SHORTEST_RENEW), Millis(LONGEST_LEASE)),
            });
        }
        Ok(Self {
            campaign: Some(interval),
            ..self
        })
    }

    /// That of a server which says how long a lease lasts: three attempts in its time, each up to a fifth
    /// earlier or later so that many instances do not ask at once, and the lead until shortly before its end,
    /// since nobody can give such a server more room for a renewal.
    pub fn told(lease: Duration) -> Self {
        let lease = lease.min(LONGEST_LEASE);
        Self {
            lease,
            renew: (lease / ATTEMPTS_A_TOLD_LEASE).max(SHORTEST_GAP),
            lead_limit: latest_stop_told(lease),
            campaign: None,
            told: true,
            leaves_time_to_end: false,
        }
    }

    /// The server tells another lease than before.
    #[must_use]
    pub fn told_anew(&self, lease: Duration) -> Self {
        let told = Self::told(lease);
        if !self.leaves_time_to_end {
            return told;
        }
        Self {
            lead_limit: with_notice(told.lease, told.lead_limit),
            leaves_time_to_end: true,
            ..told
        }
    }

    pub const fn lease(&self) -> Duration {
        self.lease
    }

    pub const fn renew_interval(&self) -> Duration {
        self.renew
    }

    /// S: how long a leader trusts an attempt that it sent at the anchor and that was granted for
    /// `valid_for`. `min((L + R) / 2, L - max(250 ms, 1 %))`: the first term leaves the same room for
    /// drift as for late renewals, the second keeps a margin where R is close to L. A store that
    /// granted less than L shortens it.
    pub fn lead_limit(&self, valid_for: Duration) -> Duration {
        self.lead_limit.min(self.latest_lead(valid_for))
    }

    fn latest_lead(&self, lease: Duration) -> Duration {
        let latest = self.latest_stop(lease);
        if self.leaves_time_to_end {
            with_notice(lease, latest)
        } else {
            latest
        }
    }

    fn latest_stop(&self, lease: Duration) -> Duration {
        if self.told {
            latest_stop_told(lease)
        } else {
            latest_stop(lease)
        }
    }

    /// How long a record must say that the lease is valid where renewals are seen by the second: client-go
    /// compares `renewTime` without its fraction, so of several renewals in one second it notices the first,
    /// and counts from there. Whoever renews less often than once a second is seen each time.
    pub fn lease_seen_by_the_second(&self) -> Duration {
        let second = Duration::from_secs(1);
        let mut unseen = Duration::ZERO;
        while unseen + self.renew < second {
            unseen += self.renew;
        }
        self.lease.max(self.lead_limit + unseen + MARGIN)
    }

    /// The fraction by which two clocks may differ in rate: `(L - S) / (L + S)`.
    pub fn drift_allowed(&self) -> f64 {
        let (lease, limit) = (self.lease.as_secs_f64(), self.lead_limit.as_secs_f64());
        (lease - limit) / (lease + limit)
    }

    /// Said aloud when the configuration starts: clocks have less room than a `renewInterval` of half the
    /// lease would leave them.
    pub fn leaves_little_room(&self) -> bool {
        !self.told && self.lead_limit > (self.lease + self.lease / 2) / 2
    }

    /// How long an attempt to get the lease may take. Longer than R, and one request that vanished
    /// would break the promise that a takeover comes within L + R. Of a told lease nothing is promised, and
    /// what is answered before its end still counts; a lease that
    /// was told too short must not keep the next answer from being heard.
    pub fn campaign_limit(&self) -> Duration {
        if self.told {
            self.lease.max(TOLD_PATIENCE)
        } else {
            self.renew
        }
    }

    /// How long one renewal may take when failures are retried: two fit between R and S.
    pub fn retried_renewal_limit(&self) -> Duration {
        self.lead_limit.saturating_sub(self.renew) / 2
    }

    /// How long one renewal of a lease may take that is kept for callbacks. A campaign's limit, unless that is a
    /// whole lease: one that vanished would be given up when the lease is over.
    pub fn keeping_limit(&self) -> Duration {
        if self.told {
            self.retried_renewal_limit()
        } else {
            self.campaign_limit()
        }
    }

    /// The longest that any request of an election may take: a renewal may wait until the deadline.
    pub fn request_limit(&self) -> Duration {
        self.renew.max(self.lead_limit.saturating_sub(self.renew))
    }

    /// How long an attempt waits on a connection before it tries another one: half of the shortest limit that
    /// any attempt has, so that the other one is asked while the attempt still counts.
    pub fn patience(&self) -> Duration {
        self.campaign_limit().min(self.retried_renewal_limit()) / 2
    }

    /// How long one release may take. Three of them fit into R.
    pub fn release_limit(&self) -> Duration {
        self.renew / RELEASE_TRIES
    }

    /// How long to wait after the `failures`th failure in a row, counted from its send.
    pub fn retry_after(&self, failures: u32) -> Duration {
        let halvings = QUICK_RETRIES.saturating_sub(failures.saturating_sub(1));
        let least = if self.told && failures > QUICK_RETRIES {
            TOLD_PATIENCE
        } else {
            SHORTEST_GAP
        };
        (self.renew / 2_u32.pow(halvings)).max(least)
    }

    /// How long to wait after a grant that came too late to be worth anything.
    pub fn retry_after_late_grant(&self) -> Duration {
        if self.told {
            self.renew.max(TOLD_PATIENCE)
        } else {
            self.retry_after(1)
        }
    }

    /// The least time between the sends of two attempts.
    pub const fn shortest_gap(&self) -> Duration {
        SHORTEST_GAP
    }

    /// When a leader renews, counted from its last success.
    pub fn next_renewal(&self, jitter: Jitter) -> Duration {
        if self.told {
            self.spread(jitter)
        } else {
            self.renew
        }
    }

    /// From four to six fifths of R.
    fn spread(&self, jitter: Jitter) -> Duration {
        (self.renew * 4 / 5 + jitter.of(self.renew * 2 / 5)).max(SHORTEST_GAP)
    }

    /// When a follower that hears of no renewal asks again, if the lease runs for `remaining` more:
    /// it must look every R, since only so it sees a release.
    pub fn next_look(&self, remaining: Option<Duration>, jitter: Jitter) -> Duration {
        match remaining {
            Some(remaining) if self.told => {
                self.spread(jitter).min(self.at_expiry(remaining, jitter))
            }
            None if self.told => self.spread(jitter),
            Some(remaining) => self.pause(jitter).min(self.at_expiry(remaining, jitter)),
            None if self.campaign.is_some() => self.pause(jitter),
            // Earlier than R, never later: the promise of L + R counts on it.
            None => self.renew.saturating_sub(jitter.of(self.renew / 10)),
        }
    }

    /// Between two attempts of a follower that hears of nothing; and how long an instance stays out of the election
    /// whose work ended by itself.
    pub fn pause(&self, jitter: Jitter) -> Duration {
        let longer = |interval| interval + jitter.of(interval / CAMPAIGN_JITTER_DIVISOR);
        self.campaign.map_or(self.renew, longer)
    }

    /// The longest of these.
    pub fn longest_pause(&self) -> Duration {
        self.pause(Jitter::ALL)
    }

    /// When a follower that is told of releases asks again: at the expiry.
    pub fn at_expiry(&self, remaining: Duration, jitter: Jitter) -> Duration {
        (remaining + jitter.of(LONGEST_JITTER.min(self.lease / JITTER_DIVISOR))).max(SHORTEST_GAP)
    }

    /// The longest that a follower believes hints alone.
    pub fn check_interval(&self) -> Duration {
        self.lease * LEASES_BETWEEN_CHECKS
    }

    /// How long after the anchor a lost instance's work must have ended, if it was granted for `valid_for`.
    pub fn overrun_after(&self, valid_for: Duration) -> Duration {
        self.latest_stop(self.lease.min(valid_for))
    }

    /// The time that callbacks have from the moment that they hear of the end of their term, if the moment by which
    /// they must have ended is over by then.
    pub const fn shortest_notice(&self) -> Duration {
        NOTICE
    }

    /// How long a candidate stays out of the election after `stepDown()` without a pause.
    pub fn default_pause(&self) -> Duration {
        self.lease
    }

    /// `stopTimeout` unless it is given: what the deadline leaves for callbacks.
    pub fn default_stop_timeout(&self) -> Duration {
        self.lease
    }

    /// `stallTimeout` unless it is given.
    pub fn default_stall_timeout(&self) -> Duration {
        self.lease * STALL_LEASES
    }
}

/// The latest that a leader may stop under a lease of this length.
fn latest_stop(lease: Duration) -> Duration {
    lease.saturating_sub(MARGIN.max(lease / MARGIN_DIVISOR))
}

/// The latest that callbacks are told of the end of their term which must have ended at `end`.
fn with_notice(lease: Duration, end: Duration) -> Duration {
    end.saturating_sub(NOTICE.min(lease / NOTICE_DIVISOR))
}

fn told_too_late(lease: Duration, end: Duration) -> BadTiming {
    BadTiming {
        parameter: "leadLimit",
        rule: format!(
            "be at most {}: what has not ended {} after the last renewal ends the process, and it has to hear of its \
             end before",
            Millis(with_notice(lease, end)),
            Millis(end)
        ),
    }
}

/// The same of a lease whose length a server tells.
fn latest_stop_told(lease: Duration) -> Duration {
    latest_stop(lease).max(lease.saturating_sub(lease / TOLD_MARGIN_DIVISOR))
}

/// The moment before a request was sent. A deadline can be made from nothing else: not from the
/// receipt of an answer, and not from a moment of somebody else's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Anchor(Moment);

impl Anchor {
    /// Call this before sending.
    pub const fn before_sending(now: Moment) -> Self {
        Self(now)
    }

    pub fn plus(self, duration: Duration) -> Moment {
        self.0 + duration
    }
}

/// A random part of a duration, from 0 to all of it.
#[derive(Debug, Clone, Copy)]
pub struct Jitter(u16);

impl Jitter {
    pub const NONE: Self = Self(0);
    const ALL: Self = Self(u16::MAX);

    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    fn of(self, whole: Duration) -> Duration {
        whole * u32::from(self.0) / u32::from(u16::MAX)
    }
}

struct Millis(Duration);

/// The numbers of a server that lends leases: L is what it tells, and its store holds more.
///
/// Clients of that protocol count L from before they ask, and some to its very end, by clocks of their own. So the
/// store holds L and a twentieth of it (M): one client stops L - its own margin after it asked, another is let in
/// L + M after the server asked the store, which was later. Clocks may differ in rate by `M / (2 L + M)`, 2.4 %,
/// where a client has no margin.
///
/// A check-in comes every L/3, and has 2 L/3 for its way and the store's answer: later than that its sender has
/// stopped, or asked again. A connection that says nothing for a quarter of it is given up while there is time to
/// ask on another one twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lending {
    told: Duration,
}

impl Lending {
    pub fn new(told: Duration) -> Result<Self, BadTiming> {
        if told < SHORTEST_LENT || told > LONGEST_LENT {
            return Err(BadTiming {
                parameter: "lease",
                rule: format!("be 100ms to 22h, not {told:?}"),
            });
        }
        Ok(Self { told })
    }

    /// L.
    pub const fn told(&self) -> Duration {
        self.told
    }

    /// L + M: what the store is asked for.
    pub fn held(&self) -> Duration {
        self.told + self.margin()
    }

    /// What a leader is told of a lease that the store surely holds for so long.
    pub fn told_of(&self, held: Duration) -> Duration {
        self.told.min(held.saturating_sub(self.margin()))
    }

    /// How long one answer of the store may take.
    pub fn request_limit(&self) -> Duration {
        self.told * 2 / 3
    }

    /// After how long a connection without an answer is taken for dead.
    pub fn patience(&self) -> Duration {
        self.request_limit() / 4
    }

    fn margin(&self) -> Duration {
        self.told / LENT_MARGIN_DIVISOR
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn timing(lease: u64, renew: u64) -> Timing {
        Timing::new(ms(lease), ms(renew), None).unwrap()
    }

    #[test]
    fn a_leader_stops_at_the_middle_of_lease_and_interval_or_a_margin_before_the_end() {
        for (lease, renew, stop) in [
            (15_000, 5_000, 10_000),
            (1_500, 500, 1_000),
            (1_000, 600, 750),
            (60_000, 59_000, 59_400),
            (30_000, 10_000, 20_000),
        ] {
            assert_eq!(
                timing(lease, renew).lead_limit(ms(lease)),
                ms(stop),
                "{lease}/{renew}"
            );
        }
    }

    #[test]
    fn a_shorter_grant_shortens_the_trust() {
        assert_eq!(timing(15_000, 5_000).lead_limit(ms(4_000)), ms(3_750));
        assert_eq!(timing(15_000, 5_000).lead_limit(ms(100)), ms(0));
    }

    #[test]
    fn the_defaults_allow_a_drift_of_20_percent() {
        assert!((timing(15_000, 5_000).drift_allowed() - 0.2).abs() < 1e-9);
    }

    #[test]
    fn numbers_without_room_for_a_renewal_are_refused_by_name() {
        for (lease, renew, limit, parameter) in [
            (5_000, 5_000, None, "renewInterval"),
            (5_000, 15_000, None, "renewInterval"),
            (0, 0, None, "renewInterval"),
            (15_000, 1, None, "renewInterval"),
            (15_000, 14_999, None, "renewInterval"),
            (300, 100, None, "renewInterval"),
            (86_400_001, 5_000, None, "leaseDuration"),
            (15_000, 5_000, Some(14_751), "leadLimit"),
            (15_000, 5_000, Some(5_000), "leadLimit"),
        ] {
            let refused = Timing::new(ms(lease), ms(renew), limit.map(ms)).unwrap_err();
            assert_eq!(
                refused.parameter, parameter,
                "{lease}/{renew}: {}",
                refused.rule
            );
        }
    }

    #[test]
    fn a_follower_with_an_interval_of_its_own_asks_after_it_and_up_to_a_fifth_later_or_at_the_expiry()
     {
        let timing = timing(15_000, 2_000);
        let timing = timing.with_campaign_interval(ms(5_000)).unwrap();
        for remaining in [None, Some(ms(60_000))] {
            assert_eq!(timing.next_look(remaining, Jitter::NONE), ms(5_000));
            assert_eq!(timing.next_look(remaining, Jitter::ALL), ms(6_000));
        }
        assert_eq!(timing.next_look(Some(ms(700)), Jitter::NONE), ms(700));
        assert_eq!(timing.next_renewal(Jitter::ALL), ms(2_000));
    }

    #[test]
    fn a_lead_limit_of_ones_own_counts() {
        let own = Timing::new(ms(15_000), ms(2_000), Some(ms(10_000))).unwrap();
        assert_eq!(own.lead_limit(ms(15_000)), ms(10_000));
    }

    #[test]
    fn a_renewal_may_wait_until_the_deadline_and_a_campaign_for_an_interval() {
        assert_eq!(timing(15_000, 5_000).request_limit(), ms(5_000));
        assert_eq!(timing(60_000, 5_000).request_limit(), ms(27_500));
        assert_eq!(timing(15_000, 9_000).request_limit(), ms(9_000));
    }

    #[test]
    fn a_silent_connection_is_given_up_while_a_renewal_and_a_campaign_still_have_as_much_time() {
        for (lease, renew, patience) in [
            (15_000, 5_000, 1_250),
            (60_000, 5_000, 2_500),
            (15_000, 9_000, 750),
        ] {
            assert_eq!(
                timing(lease, renew).patience(),
                ms(patience),
                "{lease}/{renew}"
            );
        }
    }

    #[test]
    fn who_renews_several_times_a_second_writes_a_lease_that_outlasts_what_is_not_seen() {
        for (lease, renew, limit, seen) in [
            (15_000, 5_000, None, 15_000),
            (1_500, 500, None, 1_750),
            (3_000, 1_000, Some(2_750), 3_000),
            (1_000, 300, None, 1_800),
            (3_000, 250, Some(2_750), 3_750),
            (2_000, 300, Some(1_750), 2_900),
        ] {
            let timing = Timing::new(ms(lease), ms(renew), limit.map(ms)).unwrap();
            assert_eq!(
                timing.lease_seen_by_the_second(),
                ms(seen),
                "{lease}/{renew}"
            );
        }
    }

    #[test]
    fn a_told_lease_is_asked_for_three_times_and_led_until_shortly_before_its_end() {
        for (lease, renew, limit) in [
            (5_000, 1_666, 4_750),
            (60_000, 20_000, 59_400),
            (900, 300, 810),
            (15, 10, 13),
            (200_000_000, 28_800_000, 85_536_000),
        ] {
            let timing = Timing::told(ms(lease));
            assert_eq!(timing.renew_interval().as_millis(), renew, "{lease}");
            assert_eq!(timing.lead_limit(ms(lease)).as_millis(), limit, "{lease}");
        }
        let timing = Timing::told(ms(5_000));
        assert_eq!(timing.lead_limit(ms(3_000)), ms(2_750));
        assert_eq!(timing.campaign_limit(), ms(5_000));
        let short = Timing::told(ms(5));
        assert_eq!(
            short.campaign_limit(),
            ms(1_000),
            "the next answer is heard"
        );
        assert_eq!(short.retry_after(1), ms(10));
        assert_eq!(short.retry_after(4), ms(1_000));
    }

    #[test]
    fn attempts_for_a_told_lease_come_up_to_a_fifth_earlier_or_later() {
        let timing = Timing::told(ms(1_500));
        let most = Jitter::from_bits(u16::MAX);
        assert_eq!(timing.next_renewal(Jitter::NONE), ms(400));
        assert_eq!(timing.next_renewal(most), ms(600));
        assert_eq!(timing.next_look(None, most), ms(600));
        assert_eq!(timing.next_look(Some(ms(1_400)), Jitter::NONE), ms(400));
        assert_eq!(timing.next_look(Some(ms(100)), Jitter::NONE), ms(100));
        let configured = Timing::new(ms(1_500), ms(500), None).unwrap();
        assert_eq!(configured.next_renewal(most), ms(500));
    }

    #[test]
    fn retries_start_quickly_and_settle_at_the_interval() {
        let timing = timing(15_000, 5_000);
        let waits: Vec<_> = (1..=5).map(|n| timing.retry_after(n).as_millis()).collect();
        assert_eq!(waits, [625, 1_250, 2_500, 5_000, 5_000]);
    }

    #[test]
    fn a_follower_wakes_at_the_expiry_and_at_the_latest_after_the_interval() {
        let timing = timing(15_000, 5_000);
        assert_eq!(timing.next_look(Some(ms(2_000)), Jitter::NONE), ms(2_000));
        assert_eq!(
            timing.next_look(Some(ms(12_000)), Jitter::from_bits(u16::MAX)),
            ms(5_000)
        );
        assert_eq!(
            timing.next_look(Some(ms(2_000)), Jitter::from_bits(u16::MAX)),
            ms(2_015)
        );
        assert_eq!(timing.at_expiry(ms(12_000), Jitter::NONE), ms(12_000));
        assert_eq!(
            timing.next_look(None, Jitter::from_bits(u16::MAX)),
            ms(4_500)
        );
    }

    #[test]
    fn what_is_lent_is_held_a_twentieth_longer_and_a_day_at_most() {
        let lending = Lending::new(ms(5_000)).unwrap();
        assert_eq!(lending.held(), ms(5_250));
        assert_eq!(lending.told_of(ms(5_250)), ms(5_000));
        assert_eq!(lending.told_of(ms(9_000)), ms(5_000));
        assert_eq!(lending.told_of(ms(3_250)), ms(3_000), "granted less");
        assert_eq!(lending.told_of(ms(250)), ms(0));
        assert!(Lending::new(LONGEST_LENT).unwrap().held() <= LONGEST_LEASE);
        for refused in [Duration::ZERO, ms(99), LONGEST_LENT + ms(1), Duration::MAX] {
            let bad = Lending::new(refused).unwrap_err();
            let rule = format!("be 100ms to 22h, not {refused:?}");
            assert_eq!((bad.parameter, bad.rule), ("lease", rule));
        }
    }

    #[test]
    fn a_check_in_that_the_store_answers_in_time_is_answered_within_its_lease() {
        for told in [100, 500, 5_000, 79_200_000] {
            let lending = Lending::new(ms(told)).unwrap();
            let asked = Timing::told(ms(told)).renew_interval();
            assert!(asked + lending.request_limit() <= ms(told));
            assert!(2 * lending.patience() < lending.request_limit());
        }
    }

    #[test]
    fn who_must_have_ended_before_the_lease_does_hears_of_it_in_time_whatever_the_lease() {
        for lease in [300, 500, 750, 1_000, 1_500, 3_000, 15_000, 86_400_000] {
            let renew = lease / 10;
            let timing = Timing::of_work(Some(ms(lease)), Some(ms(renew.max(50))), None, None);
            let Ok(timing) = timing else {
                assert!(lease < 500, "{lease}");
                continue;
            };
            let told = timing.lead_limit(ms(lease));
            let end = timing.overrun_after(ms(lease));
            assert!(told + ms(250).min(ms(lease) / 20) <= end, "{lease}");
            assert!(end + ms(250) <= ms(lease), "{lease}");
            // Also of a lease that the store made shorter, unless it is worth nothing then.
            let short = timing.overrun_after(ms(lease) / 2);
            assert!(
                short.is_zero() || timing.lead_limit(ms(lease) / 2) < short,
                "{lease}"
            );
        }
        for lease in [200, 1_000, 5_000, 60_000] {
            let timing = Timing::told(ms(2_000)).with_time_to_end(None).unwrap();
            let timing = timing.told_anew(ms(lease));
            let (told, end) = (
                timing.lead_limit(ms(lease)),
                timing.overrun_after(ms(lease)),
            );
            assert!(
                told + ms(lease) / 20 <= end || told + ms(250) <= end,
                "{lease}"
            );
            assert!(end < ms(lease), "{lease}");
        }
    }

    #[test]
    fn a_lease_that_is_too_short_for_work_is_refused_by_its_own_name() {
        let work = |lease| Timing::of_work(Some(ms(lease)), None, None, None);
        for lease in [0, 1, 449] {
            let bad = work(lease).unwrap_err();
            assert_eq!(bad.parameter, "leaseDuration", "{}", bad.rule);
            assert!(bad.rule.contains("at least 450 ms"), "{}", bad.rule);
        }
        assert!((450..3_000).all(|lease| work(lease).is_ok()));
    }

    #[test]
    fn a_lead_limit_that_leaves_no_time_to_end_is_refused_and_a_default_one_is_earlier() {
        let work = |limit| Timing::of_work(Some(ms(3_000)), None, Some(ms(limit)), None);
        assert!(work(2_600).is_ok());
        let bad = work(2_601).unwrap_err();
        assert_eq!(bad.parameter, "leadLimit");
        assert!(bad.rule.contains("at most 2600 ms"), "{}", bad.rule);
        let close = timing(15_000, 14_500);
        assert_eq!(close.lead_limit(ms(15_000)), ms(14_750));
        // A renewal would have no time.
        assert_eq!(
            close.with_time_to_end(None).unwrap_err().parameter,
            "leadLimit"
        );
        let earlier = timing(15_000, 14_300).with_time_to_end(None).unwrap();
        assert_eq!(earlier.lead_limit(ms(15_000)), ms(14_500));
    }
}
