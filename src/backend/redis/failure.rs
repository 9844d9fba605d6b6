//! What a server's or a connection's error means for an election.

use redis::{ErrorKind, RedisError};

use super::address::Address;
use crate::backend::BackendError;
use crate::lease::FailureKind::{self, Fatal, Transient};

/// A server's words, what they mean, and what to do.
struct Known {
    word: &'static str,
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
}

const fn known(
    word: &'static str,
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
) -> Known {
    Known {
        word,
        kind,
        code,
        advice,
    }
}

/// Stands for what the address says of the rights that it takes.
const RIGHTS: &str = "";

/// The first that fits counts. A script's error may be wrapped in another one's words.
const KNOWN: &[Known] = &[
    known(
        "NOAUTH",
        Fatal,
        "refused",
        "Put the password into the URL: redis://:password@host",
    ),
    known(
        "WRONGPASS",
        Fatal,
        "refused",
        "Mend the user name or the password in the URL",
    ),
    known(
        "wrong number of arguments for 'auth'",
        Fatal,
        "refused",
        "A server older than Redis 6 knows no user names: write redis://:password@host",
    ),
    known("NOPERM", Fatal, "refused", RIGHTS),
    // The code is lost where a command is refused inside a script, or while connecting.
    known("no permissions", Fatal, "refused", RIGHTS),
    known("ACL failure", Fatal, "refused", RIGHTS),
    known(
        "The user executing the script can't",
        Fatal,
        "refused",
        RIGHTS,
    ),
    known(
        "DENIED",
        Fatal,
        "refused",
        "The server admits local connections only: give it a password",
    ),
    known(
        "DB index is out of range",
        Fatal,
        "refused",
        "Choose a database that the server has",
    ),
    known(
        "SELECT is not allowed",
        Fatal,
        "refused",
        "A cluster has database 0 only",
    ),
    known(
        "READONLY",
        Transient,
        "read-only",
        "It is a replica: point the URL at the primary",
    ),
    known(
        "LOADING",
        Transient,
        "loading",
        "It is reading its data from disk",
    ),
    known(
        "MASTERDOWN",
        Transient,
        "failover",
        "It is a replica without a primary",
    ),
    known(
        "MOVED",
        Transient,
        MOVED,
        "It is one node of a cluster, and another one keeps this election: point the URL at that one",
    ),
    known(
        "ASK ",
        Transient,
        MOVED,
        "The cluster is moving this election to another node",
    ),
    known(
        "CROSSSLOT",
        Fatal,
        "unsupported",
        "The server does not honour hash tags in keys",
    ),
    known(
        "CLUSTERDOWN",
        Transient,
        "cluster-down",
        "The cluster has lost too many nodes",
    ),
    known(
        "TRYAGAIN",
        Transient,
        MOVED,
        "The cluster is moving this election to another node",
    ),
    known(
        "OOM",
        Transient,
        "full",
        "Its memory is full: raise maxmemory, or keep leases on a server of their own",
    ),
    known(
        "MISCONF",
        Transient,
        "full",
        "It cannot write to its disk, and so refuses writes",
    ),
    known(
        "NOREPLICAS",
        Transient,
        "not-replicated",
        "It has fewer replicas than min-replicas-to-write",
    ),
    known(
        "BUSY",
        Transient,
        "busy",
        "A script of somebody else's is running for too long",
    ),
    known(
        "max number of clients",
        Transient,
        "busy",
        "It has no room for another connection",
    ),
    known(
        "unknown command",
        Fatal,
        "unsupported",
        "The election needs scripts: EVALSHA and its commands",
    ),
    known(
        "Write commands are not allowed after non deterministic",
        Fatal,
        "unsupported",
        "The server is older than Redis 5",
    ),
];

/// The code of a key that another node of a cluster keeps.
pub(super) const MOVED: &str = "moved";
/// The code of a record that no election wrote.
pub(super) const BAD_RECORD: &str = "bad-record";

/// How far things had come when they failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// No connection was ever made: the URL may be wrong.
    NeverConnected,
    Connecting,
    /// The request may have reached the server.
    Sent,
}

pub(super) fn meaning(error: &RedisError, address: &Address, stage: Stage) -> BackendError {
    let place = &*address.shown;
    let text = words_of(error);
    let answered = error.kind() != ErrorKind::Io;
    if answered && text.contains("WRONGTYPE") {
        return BackendError::fatal(
            BAD_RECORD,
            format!("a key of the election holds something else than a lease on {place}: {text}"),
        );
    }
    if let Some(known) = KNOWN.iter().find(|known| text.contains(known.word))
        && answered
    {
        let advice = match known.advice {
            RIGHTS => format!("If its user shall lead, {}", address.rights()),
            advice => advice.to_owned(),
        };
        return BackendError {
            kind: known.kind,
            code: known.code,
            message: format!("{place} refused: {}. {advice}", text.trim_end_matches('.')),
        };
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => BackendError::fatal(
            "refused",
            format!("{place} refused the user name or the password: {text}"),
        ),
        ErrorKind::InvalidClientConfig => {
            BackendError::fatal("refused", format!("{place}: {text}"))
        }
        ErrorKind::Server(_) | ErrorKind::Extension => {
            BackendError::transient("store", format!("{place} answered: {text}"))
        }
        _ if is_about_certificates(&text) => BackendError::fatal(
            "certificate",
            format!(
                "{place} and this process do not believe each other's certificates: {text}. Trust the \
                 server's authority with ?ca=<file> behind the URL, and show a certificate of your own \
                 with &cert=<file>&key=<file> if the server wants one"
            ),
        ),
        _ if stage == Stage::Sent && error.is_timeout() => {
            BackendError::ambiguous("timeout", format!("{place} did not answer in time"))
        }
        _ if stage == Stage::Sent => BackendError::ambiguous(
            "unreachable",
            format!("the connection to {place} broke before the answer came: {text}"),
        ),
        _ if error.is_timeout() => BackendError::transient(
            "unreachable",
            format!(
                "{place} cannot be reached in time{}",
                tls_advice(place, error, stage)
            ),
        ),
        _ => BackendError::transient(
            "unreachable",
            format!(
                "{place} cannot be reached: {text}{}",
                tls_advice(place, error, stage)
            ),
        ),
    }
}

fn is_about_certificates(text: &str) -> bool {
    let words = ["certificate", "Certificate", "UnknownCA"];
    words.iter().any(|word| text.contains(word))
}

/// A server that hangs up on the very first connection often expects the other protocol.
fn tls_advice(place: &str, error: &RedisError, stage: Stage) -> &'static str {
    let encrypted = place.starts_with("rediss:") || place.starts_with("valkeys:");
    match encrypted {
        _ if stage != Stage::NeverConnected => "",
        _ if error.is_connection_refusal() || place.starts_with("unix:") => "",
        true => ". If the server speaks no TLS, begin the URL with redis://",
        false if error.is_connection_dropped() => {
            ". If the server speaks TLS, begin the URL with rediss://"
        }
        false => "",
    }
}

/// Without the name of the script, which nobody knows.
fn words_of(error: &RedisError) -> String {
    let detail = error.detail().unwrap_or_default();
    let detail = match detail.rsplit_once(" script: ") {
        Some((words, name)) if name.contains(", on @user_script") => words,
        _ => detail,
    };
    match error.code() {
        Some(code) if detail.is_empty() => code.to_owned(),
        Some(code) => format!("{code} {detail}"),
        None => error.to_string(),
    }
}
