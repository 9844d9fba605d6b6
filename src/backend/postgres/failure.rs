//! What a server's or a connection's error means for an election.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity};

use crate::backend::BackendError;
use crate::lease::FailureKind::{self, Fatal, Transient};

/// The code of a server that takes no writes.
pub(super) const READ_ONLY: &str = "read-only";
/// The code of a table that is not there.
pub(super) const NO_TABLE: &str = "no-table";
/// The code of what the server did not do because others were in the way, and what is asked again.
pub(super) const BUSY: &str = "busy";
/// The code of a table that no election made.
pub(super) const BAD_RECORD: &str = "bad-record";
/// The code of a user who lacks a right, or is none.
pub(super) const REFUSED: &str = "refused";

/// A server's code, what it means, and what to do. A shorter code stands for its whole class.
type Known = (&'static str, FailureKind, &'static str, &'static str);

/// The first that fits counts.
const KNOWN: &[Known] = &[
    (
        "28P01",
        Fatal,
        REFUSED,
        "Mend the user name or the password in the URL",
    ),
    (
        "28",
        Fatal,
        REFUSED,
        "Mend the user name in the URL, or let it in by a line of the server's pg_hba.conf",
    ),
    (
        "3D000",
        Fatal,
        REFUSED,
        "Create it, or mend its name in the URL",
    ),
    (
        "3F000",
        Fatal,
        REFUSED,
        "Create the schema, or name another one: ?table=<schema>.<table>",
    ),
    ("42501", Fatal, REFUSED, RIGHTS),
    (
        "42P01",
        Transient,
        NO_TABLE,
        "The table of the leases was dropped",
    ),
    ("42703", Fatal, BAD_RECORD, SHAPE),
    ("42804", Fatal, BAD_RECORD, SHAPE),
    ("42809", Fatal, BAD_RECORD, SHAPE),
    ("42883", Fatal, BAD_RECORD, SHAPE),
    ("42P10", Fatal, BAD_RECORD, SHAPE),
    ("42846", Fatal, BAD_RECORD, SHAPE),
    ("22P02", Fatal, BAD_RECORD, SHAPE),
    ("22001", Fatal, BAD_RECORD, SHAPE),
    ("23", Fatal, BAD_RECORD, SHAPE),
    ("428C9", Fatal, BAD_RECORD, SHAPE),
    (
        "22P05",
        Fatal,
        "unsupported",
        "The database's encoding lacks a letter of the election's or the instance's name: use a database in UTF8, or plain letters",
    ),
    (
        "22021",
        Fatal,
        "unsupported",
        "The database's encoding lacks a letter of the election's or the instance's name: use a database in UTF8, or plain letters",
    ),
    (
        "25006",
        Transient,
        READ_ONLY,
        "It is a standby, or default_transaction_read_only is on: point the URL at the primary, or name all servers, postgres://user@a,b/db",
    ),
    (
        "53300",
        Transient,
        BUSY,
        "Raise max_connections, or let fewer clients connect",
    ),
    (
        "53400",
        Transient,
        BUSY,
        "A limit of the server's configuration is reached",
    ),
    ("53100", Transient, "full", "Its disk is full"),
    ("53", Transient, "full", "It has no room left"),
    (
        "54",
        Fatal,
        "unsupported",
        "A limit of the server is reached",
    ),
    (
        "55P03",
        Transient,
        BUSY,
        "Somebody has locked the table of the leases",
    ),
    (
        "25P02",
        Transient,
        BUSY,
        "A probe on the same connection failed",
    ),
    ("40", Transient, BUSY, "Others wrote at the same time"),
    (
        "57P03",
        Transient,
        "loading",
        "It is starting, stopping or recovering",
    ),
    (
        "57014",
        Transient,
        BUSY,
        "Somebody canceled it, or statement_timeout did",
    ),
    (
        "0A000",
        Fatal,
        "unsupported",
        "The server cannot do what an election needs",
    ),
    (
        "42601",
        Fatal,
        "unsupported",
        "The server is older than PostgreSQL 12, or is none",
    ),
];

/// Stands for what the store says of the rights that it takes.
const RIGHTS: &str = "rights";
/// Stands for what the store says of its table.
const SHAPE: &str = "shape";

/// What the advice depends on.
pub(super) trait Advice {
    /// Which server it was.
    fn place(&self) -> &str;
    /// How the rights that it takes are granted.
    fn rights(&self) -> String;
    /// How the table should look.
    fn shape(&self) -> String;
}

/// How far things had come when they failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    /// The request may have reached the server.
    Sent,
}

pub(super) fn meaning(error: &Error, advice: &impl Advice, stage: Stage) -> BackendError {
    let place = advice.place();
    if let Some(answer) = error.as_db_error() {
        if stage == Stage::Sent && ends_the_session(answer) {
            return BackendError::ambiguous(
                "unreachable",
                format!("{place} ended the connection: {}", words(answer)),
            );
        }
        return refusal(answer, advice);
    }
    let text = chain(error);
    // The client tells its errors apart by their words only.
    let kind = error.to_string();
    if kind.contains("authentication") || kind.contains("configuration") {
        return BackendError::fatal(
            REFUSED,
            format!("{place} and this process cannot agree on who this is: {text}"),
        );
    }
    if is_about_certificates(&text) {
        return BackendError::fatal(
            "certificate",
            format!(
                "{place} and this process do not believe each other's certificates: {text}. Trust the server's \
                 authority with ?sslrootcert=<file>, and show a certificate of your own with \
                 &sslcert=<file>&sslkey=<file> if the server wants one"
            ),
        );
    }
    if text.contains("server does not support TLS") {
        return BackendError::fatal(
            REFUSED,
            format!(
                "{place} speaks no TLS, and ?sslmode wants it: turn ssl on there, or say ?sslmode=disable"
            ),
        );
    }
    match stage {
        Stage::Connecting => {
            BackendError::transient("unreachable", format!("{place} cannot be reached: {text}"))
        }
        Stage::Sent => BackendError::ambiguous(
            "unreachable",
            format!("the connection to {place} broke before the answer came: {text}"),
        ),
    }
}

/// It did not come in time.
pub(super) fn silence(place: &str, stage: Stage) -> BackendError {
    match stage {
        Stage::Connecting => {
            BackendError::transient("unreachable", format!("{place} cannot be reached in time"))
        }
        Stage::Sent => {
            BackendError::ambiguous("timeout", format!("{place} did not answer in time"))
        }
    }
}

/// Whether this is the last that the server says on this connection.
pub(super) fn ends_the_session(answer: &DbError) -> bool {
    matches!(
        answer.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    )
}

/// An error within a session: the server took back whatever the request had done.
fn refusal(answer: &DbError, advice: &impl Advice) -> BackendError {
    let code = answer.code().code();
    let known = KNOWN.iter().find(|(start, ..)| code.starts_with(start));
    let said = format!("{} refused: {}", advice.place(), words(answer));
    let Some((_, kind, code, what_to_do)) = known else {
        return BackendError::transient("store", said);
    };
    let what_to_do = match *what_to_do {
        RIGHTS => advice.rights(),
        SHAPE => advice.shape(),
        known => known.to_owned(),
    };
    BackendError {
        kind: *kind,
        code,
        message: format!("{said}. {what_to_do}"),
    }
}

fn words(answer: &DbError) -> String {
    let mut words = format!("{} ({}", answer.message(), answer.code().code());
    for more in [answer.detail(), answer.hint()].into_iter().flatten() {
        words.push_str("; ");
        words.push_str(more.trim_end_matches('.'));
    }
    words.push(')');
    words
}

fn is_about_certificates(text: &str) -> bool {
    let words = ["certificate", "Certificate", "UnknownCA", "PEM"];
    words.iter().any(|word| text.contains(word))
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}
