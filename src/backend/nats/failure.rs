//! What NATS' refusals, and its silence, mean for an election.

use super::address::Address;
use crate::backend::{BackendError, UNSUITABLE};
use crate::lease::FailureKind::{self, Ambiguous, Fatal, Transient};

/// The code of what the user may not do, or is not believed to be.
const REFUSED: &str = "refused";
/// The longest part of a server's words that an error repeats.
const SHOWN: usize = 300;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub why: Why,
    /// In words that name the server, and never a password.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// There is no connection.
    Unreachable,
    /// The connection ended before the request was sent.
    Unsent,
    /// The connection ended after it. It may have been done.
    Halfway,
    /// There was no answer in time. It may have been done.
    Silence,
    /// The two sides do not trust each other, or a certificate's file is not what it should be.
    Distrust,
    /// The other side speaks no TLS.
    NoTls,
    /// The other side is no NATS server.
    Foreign,
    /// The server does not believe who asks.
    Denied,
    /// Who asks may not do this.
    Forbidden,
    /// The server has no room for another connection.
    Busy,
    /// The server refused, in words that say the rest.
    Refused,
}

impl Trouble {
    pub fn new(why: Why, message: impl Into<String>) -> Self {
        Self {
            why,
            message: message.into(),
        }
    }

    /// A server's error.
    pub fn said(place: &str, words: &str) -> Self {
        let lower = words.to_ascii_lowercase();
        let why = match &*lower {
            words if words.contains("permissions violation") => Why::Forbidden,
            words if words.contains("maximum") && words.contains("connections") => Why::Busy,
            words if words.contains("authorization") || words.contains("authentication") => {
                Why::Denied
            }
            words if words.contains("tls") || words.contains("secure connection") => Why::Distrust,
            _ => Why::Refused,
        };
        let words: String = words.chars().take(SHOWN).collect();
        Self::new(why, format!("{place} said: {words}"))
    }
}

/// What it means that nothing came. `writes`: of a request that changes something.
pub(super) fn no_answer(address: &Address, trouble: &Trouble, writes: bool) -> BackendError {
    let place = &*address.shown;
    let said = &*trouble.message;
    let unsure = if writes { Ambiguous } else { Transient };
    let (kind, code, advice) = match trouble.why {
        Why::Unreachable | Why::Unsent => (Transient, "unreachable", String::new()),
        Why::Halfway => (unsure, "unreachable", String::new()),
        Why::Silence => (unsure, "timeout", String::new()),
        Why::Foreign => (unsure, "unreachable", ". A NATS server's own port is needed, which is 4222 by default; its WebSocket and its monitor speak another protocol".into()),
        Why::NoTls => (
            Fatal,
            "certificate",
            ". If it shall not be encrypted, begin the URL with nats://, and leave out ?ca, ?cert, ?key and ?tlsFirst; if the server begins with TLS before anything else (handshake_first), add ?tlsFirst".into(),
        ),
        Why::Distrust => (
            Fatal,
            "certificate",
            ". The server and this process must believe each other's certificates: trust the server's authority with ?ca=<file> behind the URL, and show a certificate of your own with &cert=<file>&key=<file> if the server wants one".into(),
        ),
        Why::Denied => (
            Fatal,
            REFUSED,
            ". Mend what says who asks: nats://user:password@host, nats://token@host, ?creds=<file> or ?nkey=<file>".into(),
        ),
        Why::Forbidden => (
            Fatal,
            REFUSED,
            format!(". If its user shall lead, {}", address.rights()),
        ),
        Why::Busy => (Transient, "busy", String::new()),
        Why::Refused => (unsure, "store", String::new()),
    };
    let said = said.trim_end_matches('.');
    BackendError {
        kind,
        code,
        message: format!("{place}: {said}{advice}"),
    }
}

/// An error of JetStream's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: u64,
    pub said: String,
}

impl Refusal {
    pub const NO_MESSAGE: u64 = 10037;
    pub const NO_STREAM: u64 = 10059;
    pub const STREAM_EXISTS: u64 = 10058;
    /// Also of what the server makes at this moment, because somebody asked a moment before.
    pub const OVERLAP: u64 = 10065;
    /// The account wants every stream to have a limit.
    pub const LIMIT_WANTED: u64 = 10113;
    /// The condition of a write was not met; servers say it in two ways.
    const WRONG_SEQUENCE: [u64; 2] = [10071, 10164];

    pub fn is_wrong_sequence(&self) -> bool {
        Self::WRONG_SEQUENCE.contains(&self.code)
    }
}

/// JetStream's codes, what they mean, and what to do.
struct Known {
    codes: &'static [u64],
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        codes: &[10039, 10076, 10120],
        kind: Fatal,
        code: UNSUITABLE,
        advice: NO_JETSTREAM,
    },
    Known {
        codes: &[10002, 10023, 10028, 10047, 10077],
        kind: Transient,
        code: "full",
        advice: "JetStream has no room left, or less than the account may have: nats account info; nats stream report",
    },
    Known {
        codes: &[10004, 10006, 10007, 10008, 10009, 10118],
        kind: Transient,
        code: "no-leader",
        advice: "Its servers have no leader: more than half of those that keep the bucket must run and reach each other (nats stream info, nats server report jetstream)",
    },
    Known {
        codes: &[10026, 10027],
        kind: Fatal,
        code: REFUSED,
        advice: "The account may have no more streams or consumers: raise its limits",
    },
    Known {
        codes: &[10109],
        kind: Fatal,
        code: "read-only",
        advice: "The bucket is sealed for good: choose another one with ?bucket=<name>",
    },
    Known {
        codes: &[10054, 10053],
        kind: Fatal,
        code: UNSUITABLE,
        advice: "A record may have some 700 bytes: the bucket must allow that (nats kv info), as must max_payload of the server",
    },
];

pub(super) const NO_JETSTREAM: &str = "It takes JetStream, with which NATS keeps things: start nats-server with -js, or put jetstream {} into its configuration, and turn it on for the account if it has accounts";

/// What a refusal means that the caller does not understand.
pub(super) fn refused(address: &Address, refusal: &Refusal, writes: bool) -> BackendError {
    let place = &*address.shown;
    let said: String = refusal.said.chars().take(SHOWN).collect();
    let said = format!("{place} refused: {said} ({})", refusal.code);
    if let Some(known) = KNOWN
        .iter()
        .find(|known| known.codes.contains(&refusal.code))
    {
        return BackendError {
            kind: known.kind,
            code: known.code,
            message: format!("{said}. {}", known.advice),
        };
    }
    if writes {
        BackendError::ambiguous("store", said)
    } else {
        BackendError::transient("store", said)
    }
}

/// What cannot be read as an answer.
pub(super) fn nonsense(address: &Address, writes: bool) -> BackendError {
    let message = format!(
        "{} answered something that JetStream does not say",
        address.shown
    );
    if writes {
        BackendError::ambiguous("store", message)
    } else {
        BackendError::transient("store", message)
    }
}

/// There is no bucket, and it was not made.
pub(super) fn no_bucket(address: &Address, why: &str) -> BackendError {
    let Address {
        bucket, replicas, ..
    } = address;
    BackendError::fatal(
        "no-bucket",
        format!(
            "{}: there is no bucket {bucket}, and it cannot be made: {why}. Make it: nats kv add {bucket} --replicas={replicas} --storage=file, or allow this user to publish to $JS.API.STREAM.CREATE.KV_{bucket}",
            address.shown
        ),
    )
}
