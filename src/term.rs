//! The one fact that `isLeader()` reads: until when a term is led. A candidate's truth gets here by
//! [`Lead::follow`], and by nothing else.
//!
//! Written by the thread that runs the election, read by any thread at any time, without a lock. A term
//! that has ended stays ended, so whoever still holds an old term can never see it come back.

use std::sync::Arc;
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

/// The term that an instance leads now, as everybody but its candidate sees it.
#[derive(Debug, Default)]
pub struct Lead {
    term: Option<Arc<Term>>,
}

impl Lead {
    /// To be called with [`Candidate::leads_until`] after each step of the candidate, before anybody is
    /// told of it: whatever an event sets off must find the truth here.
    ///
    /// [`Candidate::leads_until`]: crate::candidate::Candidate::leads_until
    pub fn follow(
        &mut self,
        leads_until: Option<(Token, Moment)>,
        trace_id: impl FnOnce() -> String,
    ) {
        match (&self.term, leads_until) {
            (Some(term), Some((token, deadline))) if term.token == token => term.extend(deadline),
            (before, now) => {
                if let Some(term) = before {
                    term.end();
                }
                self.term =
                    now.map(|(token, deadline)| Arc::new(Term::new(token, trace_id(), deadline)));
            }
        }
    }

    pub fn term(&self) -> Option<&Arc<Term>> {
        self.term.as_ref()
    }

    pub fn is_led(&self, now: Moment) -> bool {
        self.term.as_ref().is_some_and(|term| term.is_led(now))
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

    #[test]
    fn a_lead_follows_its_candidate_and_ends_the_term_that_it_leaves() {
        let (first, second) = (Token::new(1).unwrap(), Token::new(2).unwrap());
        let at = Moment::from_nanos;
        let mut lead = Lead::default();
        assert!(!lead.is_led(at(1)));
        lead.follow(Some((first, at(100))), String::new);
        let old = lead.term().unwrap().clone();
        lead.follow(Some((first, at(200))), String::new);
        assert!(old.is_led(at(199)), "the same term, extended");
        lead.follow(Some((second, at(300))), String::new);
        assert!(!old.is_led(at(1)) && lead.is_led(at(299)));
        lead.follow(None, String::new);
        assert!(!lead.is_led(at(1)) && lead.term().is_none());
    }
}
