//! What a version of an election's record says, and how it is written: one JSON object, so that an
//! administrator can read it with `cat`. Read leniently, since anything may lie in a directory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::{InstanceId, LONGEST_LEASE, Leader, Owner, Token};

/// The form of what is written here. A reader that meets another number knows that it cannot judge
/// the record.
const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// Nobody leads. The term that ended last, if there was one.
    Free {
        last: Option<Token>,
        stamp: u64,
    },
    Held(Held),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub leader: Leader,
    pub duration: Duration,
    /// Names the file that the leader's process keeps locked while it lives. `None`: it holds the lease for
    /// somebody else.
    pub alive: Option<String>,
    /// The version that began the term.
    pub since: u64,
    pub stamp: u64,
}

/// Why a record cannot be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Empty, or nothing but zeros. A record is complete before it gets its number, so only a power
    /// cut leaves this: whoever wrote it is gone.
    Torn,
    /// Of another format, or not ours at all. Its writer may live.
    Strange,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    format: u32,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nonce: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alive: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    /// Drawn anew for each write. A number that was deleted and used again is told from what it was.
    #[serde(default)]
    stamp: u64,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum State {
    Free,
    Held,
}

impl Record {
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Free { last, .. } => *last,
            Self::Held(held) => Some(held.leader.token),
        }
    }

    pub fn stamp(&self) -> u64 {
        match self {
            Self::Free { stamp, .. } => *stamp,
            Self::Held(held) => held.stamp,
        }
    }

    /// Whether this is that very term.
    pub fn is_term(&self, owner: &Owner, token: Token) -> bool {
        matches!(self, Self::Held(held) if held.leader.owner == *owner && held.leader.token == token)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut written = Written {
            format: FORMAT,
            state: State::Free,
            token: self.token().map(Token::number),
            instance: None,
            nonce: None,
            duration_ms: None,
            alive: None,
            since: None,
            stamp: self.stamp(),
        };
        if let Self::Held(held) = self {
            let owner = &held.leader.owner;
            written.state = State::Held;
            written.instance = Some(owner.instance.as_str().into());
            written.nonce = Some(format!("{:016x}", owner.nonce));
            // Up, never down: a follower must not wait shorter than the leader counts.
            let millis = held.duration.as_nanos().div_ceil(1_000_000);
            written.duration_ms = Some(u64::try_from(millis).unwrap_or(u64::MAX));
            written.alive.clone_from(&held.alive);
            written.since = Some(held.since);
        }
        let mut bytes = serde_json::to_vec(&written).expect("strings and numbers become JSON");
        bytes.push(b'\n');
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(Unreadable::Torn);
        }
        let written: Written = serde_json::from_slice(bytes).map_err(|_| Unreadable::Strange)?;
        Self::from_written(written).ok_or(Unreadable::Strange)
    }

    fn from_written(written: Written) -> Option<Self> {
        if written.format != FORMAT {
            return None;
        }
        let token = match written.token {
            Some(number) => Some(Token::new(number)?),
            None => None,
        };
        match written.state {
            State::Free => Some(Self::Free {
                last: token,
                stamp: written.stamp,
            }),
            State::Held => {
                let duration = Duration::from_millis(written.duration_ms?);
                // No configuration can have written more: a wrong unit must not bar the election for years.
                if duration.is_zero() || duration > LONGEST_LEASE {
                    return None;
                }
                Some(Self::Held(Held {
                    leader: Leader {
                        owner: Owner {
                            instance: InstanceId::new(&written.instance?).ok()?,
                            nonce: u64::from_str_radix(&written.nonce?, 16).ok()?,
                        },
                        token: token?,
                    },
                    duration,
                    alive: written.alive,
                    since: written.since?,
                    stamp: written.stamp,
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Record {
        Record::Held(Held {
            leader: Leader {
                owner: Owner {
                    instance: InstanceId::new("web-\"1\" 🦀").unwrap(),
                    nonce: u64::MAX,
                },
                token: Token::new(Token::MAX).unwrap(),
            },
            duration: Duration::from_micros(1_500),
            alive: Some("ab".into()),
            since: 3,
            stamp: u64::MAX,
        })
    }

    #[test]
    fn a_record_reads_as_it_was_written_with_its_duration_rounded_up() {
        let Ok(Record::Held(read)) = Record::from_bytes(&held().to_bytes()) else {
            panic!("not held");
        };
        assert_eq!(read.duration, Duration::from_millis(2));
        let Record::Held(written) = held() else {
            unreachable!()
        };
        assert_eq!((read.leader, read.alive), (written.leader, written.alive));
        let free = Record::Free {
            last: None,
            stamp: 5,
        };
        assert_eq!(Record::from_bytes(&free.to_bytes()), Ok(free));
    }

    #[test]
    fn what_is_not_a_record_is_told_from_a_torn_one() {
        for torn in [&b""[..], &[0; 4096]] {
            assert_eq!(Record::from_bytes(torn), Err(Unreadable::Torn));
        }
        let good = String::from_utf8(held().to_bytes()).unwrap();
        for (from, to) in [
            ("\"durationMs\":2", "\"durationMs\":0"),
            ("\"durationMs\":2", "\"durationMs\":-2"),
            ("\"durationMs\":2", "\"durationMs\":2147483647"),
            ("\"durationMs\":2", "\"durationMs\":\"2\""),
            ("\"format\":1", "\"format\":2"),
            ("\"state\":\"held\"", "\"state\":\"other\""),
            ("9007199254740991", "9007199254740992"),
            ("9007199254740991", "0"),
            ("ffffffffffffffff", "ffffffffffffffff0"),
            ("}", ""),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good, "{from}");
            assert_eq!(
                Record::from_bytes(bad.as_bytes()),
                Err(Unreadable::Strange),
                "{to}"
            );
        }
    }

    #[test]
    fn a_field_that_this_version_does_not_know_does_no_harm() {
        let bytes = br#"{"format":1,"state":"free","token":7,"later":true}"#;
        let last = Token::new(7);
        assert_eq!(
            Record::from_bytes(bytes),
            Ok(Record::Free { last, stamp: 0 })
        );
    }
}
