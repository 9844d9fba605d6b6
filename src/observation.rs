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
//! What follows from it for somebody who asks is decided here as well ([`decide`]), and how the next term
//! is numbered ([`Numbering`]).
//!
//! Pure: no I/O, no clock. Keep one [`Observation`] per election, for as long as somebody campaigns; one
//! that was just made has seen nothing, and waits a whole duration once more.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::Token;

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

/// What somebody wants of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wish {
    /// A term of its own.
    Campaign,
    /// To go on with this term.
    Renew(Token),
    /// To end this term.
    Release(Token),
}

/// What becomes of it. All but `Deny` is a write, on the condition of the very version that was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// A new term, under the next number.
    Begin,
    Renew,
    Release,
    Deny,
}

/// Decides for `me`. `named` is the term that the record names, if it can be read; `remaining` is how
/// long the record's lease still runs by observation (`None`: nobody holds it).
pub fn decide<Owner: PartialEq>(
    me: &Owner,
    wish: Wish,
    named: Option<(&Owner, Token)>,
    remaining: Option<Duration>,
) -> Decision {
    let mine = named.filter(|(owner, _)| *owner == me);
    let is_current = |term: Token| mine.is_some_and(|(_, token)| token == term);
    let is_over = remaining.is_none_or(|remaining| remaining.is_zero());
    match wish {
        // One of mine is a term whose beginning was not answered: nobody acts under it.
        Wish::Campaign if is_over || mine.is_some() => Decision::Begin,
        Wish::Renew(term) if is_current(term) => Decision::Renew,
        Wish::Release(term) if is_current(term) => Decision::Release,
        _ => Decision::Deny,
    }
}

/// Numbers the terms of one election: each is larger than all that were heard of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Numbering {
    largest: Option<Token>,
}

impl Numbering {
    /// No term gets a larger number: the year 2200 in microseconds, which is what a clock makes of it. A
    /// larger one is a slip, and followed it would soon leave no number at all. It is the same for all,
    /// whatever their clocks say: otherwise one would go back where another went on.
    pub const LAST: u64 = 7_258_118_400_000_000;

    /// Whether this can be the number of a term.
    pub fn allows(token: Token) -> bool {
        token.number() <= Self::LAST
    }

    /// A record holds this number.
    pub fn heard(&mut self, token: Token) {
        // The last one was given: whatever is used after it is a new beginning.
        self.largest
            .take_if(|largest| largest.number() >= Self::LAST);
        let number = Some(token).filter(|token| Self::allows(*token));
        self.largest = self.largest.max(number);
    }

    /// At least `floor`. After the last number it begins anew with `floor`: an election that could never
    /// be won again would be worse.
    pub fn next(&self, floor: u64) -> Token {
        let allowed = |number: u64| Token::new(number).filter(|token| Self::allows(*token));
        let next = self.largest.map_or(1, |largest| largest.number() + 1);
        let floor = allowed(floor).unwrap_or(Token::FIRST);
        allowed(next).map_or(floor, |next| next.max(floor))
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

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    #[test]
    fn a_campaign_begins_a_term_where_nobody_holds_one_or_it_has_expired_or_it_is_its_own() {
        let left = Some(Duration::from_nanos(1));
        for (named, remaining, decision) in [
            (None, None, Decision::Begin),
            (None, Some(Duration::ZERO), Decision::Begin),
            (None, left, Decision::Deny),
            (Some((&"b", token(7))), None, Decision::Begin),
            (
                Some((&"b", token(7))),
                Some(Duration::ZERO),
                Decision::Begin,
            ),
            (Some((&"b", token(7))), left, Decision::Deny),
            (Some((&"a", token(7))), left, Decision::Begin),
        ] {
            assert_eq!(decide(&"a", Wish::Campaign, named, remaining), decision);
        }
    }

    #[test]
    fn a_renewal_or_a_release_is_for_this_very_owner_and_term_however_long_the_record_stood() {
        for (wish, done) in [
            (Wish::Renew(token(7)), Decision::Renew),
            (Wish::Release(token(7)), Decision::Release),
        ] {
            for remaining in [None, Some(Duration::ZERO), Some(LEASE)] {
                for (named, decision) in [
                    (Some((&"a", token(7))), done),
                    (Some((&"a", token(6))), Decision::Deny),
                    (Some((&"a", token(8))), Decision::Deny),
                    (Some((&"b", token(7))), Decision::Deny),
                    (None, Decision::Deny),
                ] {
                    assert_eq!(decide(&"a", wish, named, remaining), decision);
                }
            }
        }
    }

    #[test]
    fn each_term_has_a_larger_number_than_all_that_were_heard_of_and_at_least_the_floor() {
        let mut numbering = Numbering::default();
        assert_eq!(numbering.next(0), token(1));
        assert_eq!(numbering.next(500), token(500));
        for (heard, next) in [(700, 701), (3, 701), (701, 702)] {
            numbering.heard(token(heard));
            assert_eq!(numbering.next(500), token(next));
        }
        assert_eq!(
            numbering.next(u64::MAX),
            token(702),
            "a clock that is set wrong"
        );
    }

    #[test]
    fn a_number_that_leaves_no_room_is_no_number() {
        let mut numbering = Numbering::default();
        numbering.heard(token(700));
        numbering.heard(token(Token::MAX));
        numbering.heard(token(Numbering::LAST + 1));
        assert_eq!(numbering.next(500), token(701));
    }

    #[test]
    fn after_the_last_number_it_begins_anew_and_grows_again() {
        let mut numbering = Numbering::default();
        numbering.heard(token(Numbering::LAST - 1));
        assert_eq!(numbering.next(500), token(Numbering::LAST));
        numbering.heard(token(Numbering::LAST));
        assert_eq!(numbering.next(500), token(500));
        numbering.heard(token(500));
        assert_eq!(numbering.next(500), token(501));
    }
}
