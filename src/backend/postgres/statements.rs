//! The statements, filled in, and what they answer.
//!
//! Everything goes to the server as text, in one message: one round trip and one transaction behind every
//! pooler. Prepared statements and the settings of a session are no good there.

use std::time::Duration;

use tokio_postgres::SimpleQueryRow;

use crate::lease::{ElectionName, InstanceId, LONGEST_LEASE, Leader, Owner, Token};

/// How long a statement waits for a lock before it is asked again. What waits in the server could write when
/// nobody waits for it any more.
const LOCK_PATIENCE: Duration = Duration::from_millis(50);

/// Nothing here needs escaping but quotes and backslashes, and both also mean themselves in servers with
/// `standard_conforming_strings = off`.
pub(super) fn literal(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('\'', "''");
    format!("E'{text}'")
}

/// What stands for the `$name`s of a statement.
#[derive(Debug, Default)]
pub(super) struct Values<'a>(Vec<(&'a str, String)>);

impl<'a> Values<'a> {
    /// Of a table, in SQL, and an election.
    pub fn of(table: &str, election: &str) -> Self {
        Self::default()
            .with("table", table.to_owned())
            .with("election", literal(election))
            .with("channel", literal(&channel(table, election)))
            .with("floor", FLOOR.to_owned())
            .with("state", STATE.to_owned())
            .with("remaining", REMAINING.to_owned())
            .with("last_token", Token::MAX.to_string())
    }

    pub fn owner(self, owner: &Owner) -> Self {
        self.with("nonce", format!("'{}'::bigint", owner.nonce.cast_signed()))
            .with("instance", literal(owner.instance.as_str()))
    }

    pub fn attempt(self, number: u64) -> Self {
        self.with("attempt", number.to_string())
    }

    pub fn token(self, token: Token) -> Self {
        self.with("token", token.to_string())
    }

    /// Up, never down: a lease must not end before its leader believes so.
    pub fn duration(self, duration: Duration) -> Self {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        self.with("duration", Self::interval(duration))
            .with("millis", millis.to_string())
    }

    pub fn interval(duration: Duration) -> String {
        let micros = duration.as_nanos().div_ceil(1_000);
        format!("interval '{micros} microseconds'")
    }

    pub fn with(mut self, name: &'a str, value: String) -> Self {
        self.0.push((name, value));
        self
    }

    /// One pass: a value that looks like a name stays what it is.
    pub fn fill(&self, template: &str) -> String {
        let mut parts = template.split('$');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part
                .find(|c: char| !c.is_ascii_lowercase() && c != '_')
                .unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            let value = self.0.iter().find(|(known, _)| *known == name);
            let (_, value) = value.unwrap_or_else(|| panic!("no value for ${name}"));
            filled.push_str(value);
            filled.push_str(rest);
        }
        filled
    }
}

/// No token is lower. The server's clock, in microseconds.
const FLOOR: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
const STATE: &str = "CASE WHEN l.expires_at > clock_timestamp() THEN 'live' \
     WHEN l.expires_at > '-infinity' THEN 'expired' ELSE 'free' END";
/// In microseconds, and no more than what no lease has. NULL: it never ends, or has no time at all.
const REMAINING: &str = "CASE WHEN isfinite(l.expires_at) THEN \
     ceil(extract(epoch FROM least(l.expires_at - clock_timestamp(), interval '1000 days')) * 1000000)::bigint END";

/// A statement that writes, as it is sent.
///
/// It sees what others wrote meanwhile, whatever the server's default. It is on disk before it is answered,
/// also where the default is `synchronous_commit = off`: a term that a crash takes back would be granted
/// twice. Its transaction ends with notifications, which are written one transaction after the other, so at
/// last it has patience with others.
pub(super) fn write(template: &str, values: &Values<'_>, patience: Duration) -> String {
    format!(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {}; \
         SELECT set_config('synchronous_commit', 'on', true) \
         WHERE current_setting('synchronous_commit') = 'off'; {}; SET LOCAL lock_timeout = {}",
        LOCK_PATIENCE.as_millis(),
        without_comments(&values.fill(template)),
        patience.as_millis().clamp(1, 1_000_000_000)
    )
}

/// Of an owner whose attempts come from this process alone, the later ones count. Those of several processes have
/// numbers of their own: none is refused for its number, and none shortens what another one wrote.
pub(super) fn ordered(template: &str, alone: bool) -> String {
    let asked = "clock_timestamp() + $duration";
    let (late, until) = if alone {
        ("l.attempt >= $attempt", asked.to_owned())
    } else {
        ("FALSE", format!("greatest(l.expires_at, {asked})"))
    };
    template.replace("$late", late).replace("$until", &until)
}

/// A statement that reads.
pub(super) fn read(template: &str, values: &Values<'_>) -> String {
    without_comments(&values.fill(template))
}

fn without_comments(statement: &str) -> String {
    let lines = statement.lines().map(str::trim_start);
    let lines: Vec<_> = lines.filter(|line| !line.starts_with("--")).collect();
    lines.join("\n")
}

/// Where changes of an election are told. Names of channels are short, so it is a hash, and the messages
/// name the election.
pub(super) fn channel(table: &str, election: &str) -> String {
    let bytes = table.bytes().chain([0]).chain(election.bytes());
    // FNV-1a: the same in every version and process.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("whenleader_{hash:016x}")
}

/// What a statement says of the row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It did what it was asked to.
    Done(Token),
    /// It left the row as it is.
    Row(Row),
    /// There is none.
    Nothing,
    /// The server is a standby, and knows only what was.
    Standby,
    /// No election wrote this.
    Rubbish,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub leader: Leader,
    pub state: State,
    /// `None`: it has no end.
    pub remaining: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Live,
    /// It was not released.
    Expired,
    Free,
}

impl Row {
    /// Whether it says more than any lease does.
    pub fn is_endless(&self) -> bool {
        self.state == State::Live && self.remaining.is_none_or(|rest| rest > LONGEST_LEASE)
    }
}

impl Said {
    pub fn read(rows: &[SimpleQueryRow]) -> Self {
        // Not those of the settings.
        let mut ours = rows
            .iter()
            .filter(|row| row.columns().first().is_some_and(|c| c.name() == "state"));
        match ours.next() {
            Some(row) => Self::of(|column| row.get(column)).unwrap_or(Self::Rubbish),
            None => Self::Nothing,
        }
    }

    /// `None`: it makes no sense.
    fn of<'r>(column: impl Fn(&'static str) -> Option<&'r str>) -> Option<Self> {
        let state = match column("state")? {
            "standby" => return Some(Self::Standby),
            "held" => None,
            "live" => Some(State::Live),
            "expired" => Some(State::Expired),
            "free" => Some(State::Free),
            _ => return None,
        };
        if column("token").is_none() && column("nonce").is_none() && column("instance").is_none() {
            return Some(Self::Nothing);
        }
        let token = Token::new(column("token")?.parse().ok()?)?;
        let Some(state) = state else {
            return Some(Self::Done(token));
        };
        let nonce: i64 = column("nonce")?.parse().ok()?;
        let owner = Owner {
            instance: InstanceId::new(column("instance")?).ok()?,
            nonce: nonce.cast_unsigned(),
        };
        let remaining: Option<i64> = match column("remaining") {
            Some(text) => Some(text.parse().ok()?),
            None => None,
        };
        Some(Self::Row(Row {
            leader: Leader { owner, token },
            state,
            remaining: remaining
                .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
        }))
    }
}

/// What a message of a channel says, if it is of this election.
pub(super) fn hint_of(message: &str, election: &ElectionName) -> Option<crate::lease::Hint> {
    use crate::lease::Hint;
    let (word, rest) = message.split_once(' ')?;
    match word {
        "free" if rest == election.as_str() => Some(Hint::Free),
        "alive" => {
            let (token, rest) = rest.split_once(' ')?;
            let (millis, name) = rest.split_once(' ')?;
            (name == election.as_str()).then_some(Hint::Alive {
                token: Token::new(token.parse().ok()?)?,
                valid_for: Duration::from_millis(millis.parse().ok()?),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_what_it_is_whatever_it_looks_like() {
        let values = Values::default()
            .with("a", literal("$b it's \\ '; --"))
            .with("b", "2".to_owned());
        assert_eq!(
            values.fill("SELECT $a, $b_;$b".replace("$b_", "$b ").as_str()),
            "SELECT E'$b it''s \\\\ ''; --', 2 ;2"
        );
    }

    #[test]
    fn messages_are_heard_by_their_election_only() {
        use crate::lease::Hint;
        let election = ElectionName::new("a b").unwrap();
        let alive = Hint::Alive {
            token: Token::new(7).unwrap(),
            valid_for: Duration::from_millis(15),
        };
        assert_eq!(hint_of("alive 7 15 a b", &election), Some(alive));
        assert_eq!(hint_of("free a b", &election), Some(Hint::Free));
        for other in [
            "",
            "free",
            "free a",
            "free a b ",
            "alive 7 15 a",
            "alive 0 15 a b",
            "alive x 1 a b",
            "alive 7 -1 a b",
            "dead a b",
        ] {
            assert_eq!(hint_of(other, &election), None, "{other}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_no_leader() {
        let said = |state, token, nonce, instance, remaining| {
            Said::of(|column| match column {
                "state" => state,
                "token" => token,
                "nonce" => nonce,
                "instance" => instance,
                _ => remaining,
            })
        };
        let good = said(Some("live"), Some("7"), Some("-1"), Some("a"), Some("-5"));
        let Some(Said::Row(row)) = good else {
            panic!("{good:?}")
        };
        assert_eq!(row.leader.owner.nonce, u64::MAX);
        assert_eq!(row.remaining, Some(Duration::ZERO));
        for (state, token, nonce, instance) in [
            (None, Some("7"), Some("1"), Some("a")),
            (Some("x"), Some("7"), Some("1"), Some("a")),
            (Some("live"), Some("0"), Some("1"), Some("a")),
            (Some("live"), Some("-7"), Some("1"), Some("a")),
            (Some("live"), Some("9007199254740992"), Some("1"), Some("a")),
            (Some("live"), None, Some("1"), Some("a")),
            (Some("live"), Some("7"), None, Some("a")),
            (Some("live"), Some("7"), Some("1"), Some("")),
            (Some("held"), Some("0"), None, None),
        ] {
            assert_eq!(said(state, token, nonce, instance, None), None, "{state:?}");
        }
    }
}
