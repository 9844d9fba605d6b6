//! Judges expiry for stores that do not: a versioned record that stands still has no living leader.
//!
//! A leader rewrites its record at every renewal, so the record's version changes. A follower notes
//! when it first **received** each version, on its own clock; when one version has stood for the whole
//! duration written in the record, the lease has expired, and the follower may take it over with a
//! conditional write on that very version. No time stamp of another machine is ever read.
//!
//! Why it is safe: a leader trusts a write from before it was sent, a follower counts from after it was
//! received. The follower's wait therefore begins later, and is longer by the room of `timing`.
//!
//! Pure: no I/O, no clock. Keep one [`Observation`] per election, for as long as the process lives; one
//! that was just made has seen nothing, and waits a whole duration once more.

use std::time::Duration;

use crate::clock::Moment;

/// What one instance has seen of one election's record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Observation<Version> {
    seen: Option<Seen<Version>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Seen<Version> {
    version: Version,
    since: Moment,
    duration: Duration,
}

impl<Version: PartialEq> Observation<Version> {
    pub const fn new() -> Self {
        Self { seen: None }
    }

    /// A record that names a leader was read. `received` is a moment read **after** the answer came,
    /// `duration` is the record's own. Returns how long the lease still runs; zero: it has expired.
    pub fn observe(&mut self, version: Version, duration: Duration, received: Moment) -> Duration {
        if self
            .seen
            .as_ref()
            .is_none_or(|seen| seen.version != version)
        {
            self.seen = Some(Seen {
                version,
                since: received,
                duration,
            });
        }
        self.remaining(received).unwrap_or(duration)
    }

    /// How long the lease that was seen last still runs; zero: it has expired. `None`: none was seen.
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.seen
            .as_ref()
            .map(|seen| seen.duration.saturating_sub(now.since(seen.since)))
    }

    /// The version that may be taken over now: only a write on the condition of this very version does.
    pub fn expired(&self, now: Moment) -> Option<&Version> {
        self.seen
            .as_ref()
            .filter(|seen| now.since(seen.since) >= seen.duration)
            .map(|seen| &seen.version)
    }

    /// The record is gone, or names nobody.
    pub fn clear(&mut self) {
        self.seen = None;
    }
}

impl<Version: PartialEq> Default for Observation<Version> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn at(secs: u64) -> Moment {
        Moment::ORIGIN + Duration::from_secs(secs)
    }

    #[test]
    fn a_record_expires_when_its_version_stood_for_its_whole_duration() {
        let mut observation = Observation::new();
        assert_eq!(observation.observe("v1", LEASE, at(100)), LEASE);
        assert_eq!(
            observation.observe("v1", LEASE, at(110)),
            Duration::from_secs(5)
        );
        assert_eq!(observation.expired(at(114)), None);
        assert_eq!(observation.expired(at(115)), Some(&"v1"));
        assert_eq!(observation.remaining(at(200)), Some(Duration::ZERO));
    }

    #[test]
    fn every_change_of_the_version_begins_the_wait_again() {
        let mut observation = Observation::new();
        observation.observe(1, LEASE, at(0));
        assert_eq!(observation.observe(2, LEASE, at(14)), LEASE);
        assert_eq!(observation.expired(at(28)), None);
        // Also a change back: an old replica answered, or the store lost a write.
        assert_eq!(observation.observe(1, LEASE, at(28)), LEASE);
        assert_eq!(observation.expired(at(42)), None);
        assert_eq!(observation.expired(at(43)), Some(&1));
    }

    #[test]
    fn the_duration_that_counts_is_the_records() {
        let mut observation = Observation::new();
        observation.observe(1, Duration::from_secs(3), at(0));
        assert_eq!(observation.expired(at(3)), Some(&1));
        observation.observe(2, Duration::from_secs(60), at(3));
        assert_eq!(observation.expired(at(62)), None);
    }

    #[test]
    fn nothing_seen_is_nothing_expired() {
        let mut observation = Observation::<u64>::default();
        assert_eq!(observation.remaining(at(1_000)), None);
        assert_eq!(observation.expired(at(1_000)), None);
        observation.observe(1, LEASE, at(0));
        observation.clear();
        assert_eq!(observation.expired(at(1_000)), None);
    }
}
