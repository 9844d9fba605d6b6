//! The words of an election: who competes for what, under which token, and why a term ended.
//!
//! Names are checked where they are made, so no other module meets an empty or an endless one.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// The most bytes that an election's name or an instance's id may have.
pub const NAME_LIMIT: usize = 253;

/// Nobody needs a lease of more than a day, and a slip of a unit (microseconds for milliseconds) would
/// bar the election for years. A record that says more is none of ours.
pub const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// What instances compete for.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ElectionName(Arc<str>);

/// Names one process to its operators. Two processes may be given the same id by mistake, so the
/// election itself tells instances apart by their [`Owner`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(Arc<str>);

/// Why a name was refused: words that follow "must".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadName(pub String);

impl ElectionName {
    pub fn new(name: &str) -> Result<Self, BadName> {
        check_name(name).map(|()| Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl InstanceId {
    pub fn new(id: &str) -> Result<Self, BadName> {
        check_name(id).map(|()| Self(id.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_name(name: &str) -> Result<(), BadName> {
    let refuse = |rule: String| Err(BadName(rule));
    if name.is_empty() {
        return refuse("not be empty".into());
    }
    if name.len() > NAME_LIMIT {
        return refuse(format!(
            "have at most {NAME_LIMIT} bytes, not {}",
            name.len()
        ));
    }
    if name.chars().any(char::is_control) {
        return refuse("hold no control character".into());
    }
    if name.trim() != name {
        return refuse("not begin or end with a space".into());
    }
    Ok(())
}

/// One candidate of one election in one process. The nonce is drawn at random when the candidate is
/// made: a process that was started again under the same id is another owner.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pub instance: InstanceId,
    pub nonce: u64,
}

/// The fencing token: the number of a term. It only ever grows within an election.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// JavaScript's largest exact integer. Tokens are plain numbers there.
    pub const MAX: u64 = (1 << 53) - 1;
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// `None` for zero and for what a JavaScript number cannot hold.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number)
            .filter(|n| n.get() <= Self::MAX)
            .map(Self)
    }

    pub fn number(self) -> u64 {
        self.0.get()
    }
}

/// The leader that a record names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    pub owner: Owner,
    pub token: Token,
}

/// What came of an attempt to acquire, renew or take over a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// This very attempt wrote the record: the caller's lease runs for `valid_for`.
    Held { token: Token, valid_for: Duration },
    /// The record is somebody else's (or, for a renewal, no longer this term's), and was not touched.
    Other {
        /// Whom the record names. `None`: nobody, or it cannot be read.
        leader: Option<Leader>,
        /// How long that lease still runs, by the backend's clock or by observation.
        remaining: Option<Duration>,
    },
}

/// How an operation on a store failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// It surely was not applied; the next may work.
    Transient,
    /// It may have been applied.
    Ambiguous,
    /// It will not work until somebody mends something: rights, a password, a read-only store.
    Fatal,
}

/// What a watch on a store saw. A hint only wakes or postpones an attempt; it never proves anything,
/// so a lost, doubled or invented hint costs time at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// The watch works from now on: releases will be seen without asking.
    Watching,
    /// The watch broke: ask the store at every interval again.
    Blind,
    /// The lease may be free.
    Free,
    /// The term of this token was begun or renewed just now and runs for `valid_for`.
    Alive { token: Token, valid_for: Duration },
}

/// Why a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// Its deadline passed and no renewal had been tried: the process was stopped, starved or suspended.
    Expired,
    /// Another instance holds the lease.
    Taken,
    /// The store refused a renewal or did not answer in time.
    Unreachable,
    /// The record was released or deleted by somebody else.
    Released,
    /// `stepDown()` was called.
    SteppedDown,
    /// The event loop did not turn for `stallTimeout`.
    Stalled,
    /// `stop()` was called, or the process is ending.
    Stopped,
}

impl LossReason {
    /// As JavaScript sees it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::Unreachable => "unreachable",
            Self::Released => "released",
            Self::SteppedDown => "steppedDown",
            Self::Stalled => "stalled",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}", self.instance, self.nonce)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_to_253_bytes_without_control_characters_or_outer_spaces() {
        for good in [
            "leader",
            "My_App",
            "a/b",
            "cluster:x",
            "a b",
            "🦀",
            &"x".repeat(253),
        ] {
            assert!(ElectionName::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", " ", " a", "a\n", "a\0b", &"x".repeat(254)] {
            assert!(ElectionName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_token_is_a_positive_number_that_javascript_holds_exactly() {
        assert_eq!(Token::new(0), None);
        assert_eq!(Token::new(Token::MAX + 1), None);
        assert_eq!(
            Token::new(Token::MAX).map(Token::number),
            Some(9_007_199_254_740_991)
        );
    }
}
