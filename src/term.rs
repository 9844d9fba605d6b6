//! The one fact that `isLeader()` reads: until when a term is led.
//!
//! Written by the thread that runs the election, read by any thread at any time, without a lock. A term
//! that has ended stays ended, so whoever still holds an old term can never see it come back.

use std::time::Duration;

use crate::atomics::{AtomicU64, Ordering};
use crate::clock::Moment;
use crate::lease::Token;

/// Before every moment of every clock: the deadline of a term that has ended.
const ENDED: u64 = 0;

/// One term of this process.
#[derive(Debug)]
pub struct Term {
    token: Token,
    /// The same in every log line and event of this term.
    trace_id: String,
    deadline: AtomicU64,
}

impl Term {
    pub fn new(token: Token, trace_id: String, deadline: Moment) -> Self {
        Self {
            token,
            trace_id,
            deadline: AtomicU64::new(deadline.as_nanos()),
        }
    }

    pub fn token(&self) -> Token {
        self.token
    }

    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// Whether this term is led at `now`. Read the clock after whatever the answer must be true for.
    #[inline]
    pub fn is_led(&self, now: Moment) -> bool {
        now.as_nanos() < self.deadline.load(Ordering::Acquire)
    }

    pub fn remaining(&self, now: Moment) -> Duration {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire)).since(now)
    }

    /// Moves the deadline, unless the term has ended.
    pub fn extend(&self, deadline: Moment) {
        let _ = self
            .deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
                (current != ENDED).then_some(deadline.as_nanos())
            });
    }

    /// Ends the term for every reader, for good.
    pub fn end(&self) {
        self.deadline.swap(ENDED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term() -> Term {
        Term::new(
            Token::new(7).unwrap(),
            String::new(),
            Moment::from_nanos(100),
        )
    }

    #[test]
    fn a_term_is_led_only_before_its_deadline() {
        let term = term();
        assert!(term.is_led(Moment::from_nanos(99)));
        assert!(!term.is_led(Moment::from_nanos(100)));
        term.extend(Moment::from_nanos(200));
        assert!(term.is_led(Moment::from_nanos(199)));
        assert_eq!(
            term.remaining(Moment::from_nanos(150)),
            Duration::from_nanos(50)
        );
    }

    #[test]
    fn a_term_that_has_ended_is_never_led_again() {
        let term = term();
        term.end();
        term.extend(Moment::from_nanos(200));
        assert!(!term.is_led(Moment::from_nanos(1)));
        assert_eq!(term.remaining(Moment::from_nanos(1)), Duration::ZERO);
    }
}
