//! What the keys of an election hold.

use crate::lease::{InstanceId, LONGEST_LEASE, Leader, Owner, Token};

/// `<token>:<seconds>:<nonce>:<instance>`. The seconds are those of the lease that the key hangs on; they are
/// told to those who watch. Who judges is etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub leader: Leader,
    pub seconds: u64,
}

impl Record {
    pub fn written(&self) -> String {
        let Leader { owner, token } = &self.leader;
        let Owner { instance, nonce } = owner;
        format!("{token}:{}:{nonce:016x}:{instance}", self.seconds)
    }

    /// `None`: no election wrote this.
    pub fn read(value: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ':');
        let token = token_of(parts.next()?)?;
        let seconds = number_of(parts.next()?)?;
        let nonce = parts.next()?;
        let instance = InstanceId::new(parts.next()?).ok()?;
        let nonce = u64::from_str_radix(nonce, 16)
            .ok()
            .filter(|_| nonce.len() == 16 && !nonce.starts_with('+'))?;
        ((1..=LONGEST_LEASE.as_secs()).contains(&seconds)).then_some(Self {
            leader: Leader {
                owner: Owner { instance, nonce },
                token,
            },
            seconds,
        })
    }
}

/// What the key says that keeps the last token.
pub(super) fn last_token(value: &[u8]) -> Option<Token> {
    token_of(std::str::from_utf8(value).ok()?)
}

fn token_of(text: &str) -> Option<Token> {
    Token::new(number_of(text)?)
}

fn number_of(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written_whatever_the_instance_is_called() {
        let owner = Owner {
            instance: InstanceId::new("web:1:🦀 {x}").unwrap(),
            nonce: 1,
        };
        let token = Token::new(7).unwrap();
        let record = Record {
            leader: Leader { owner, token },
            seconds: 15,
        };
        assert_eq!(record.written(), "7:15:0000000000000001:web:1:🦀 {x}");
        assert_eq!(Record::read(record.written().as_bytes()), Some(record));
    }

    #[test]
    fn what_is_no_record_is_not_taken_for_one() {
        for value in [
            "",
            "x",
            "7",
            "7:15",
            "7:15:0000000000000001",
            "7:15:0000000000000001:",
            "7:15:1:a",
            "7:15:+000000000000001:a",
            "7:15:xyz0000000000001:a",
            "7:0:0000000000000001:a",
            "7:86401:0000000000000001:a",
            "7:-1:0000000000000001:a",
            "0:15:0000000000000001:a",
            "+7:15:0000000000000001:a",
            "-7:15:0000000000000001:a",
            "9007199254740992:15:0000000000000001:a",
            "99999999999999999999:15:0000000000000001:a",
        ] {
            assert_eq!(Record::read(value.as_bytes()), None, "{value}");
        }
        assert_eq!(Record::read(b"7:15:0000000000000001:\xff"), None);
        for value in ["", "x", "-1", "+1", "0", "1 ", "9007199254740992"] {
            assert_eq!(last_token(value.as_bytes()), None, "{value}");
        }
        assert_eq!(last_token(b"7"), Token::new(7));
    }
}
