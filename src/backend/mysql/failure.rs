//! What a server's or a connection's error means for an election.

use super::address::Address;
use super::wire::Trouble;
use crate::backend::BackendError;
use crate::lease::FailureKind::{self, Ambiguous, Fatal, Transient};

/// The numbers of a server's error, what they mean, and what to do.
struct Known {
    numbers: &'static [u16],
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
}

const fn known(
    numbers: &'static [u16],
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
) -> Known {
    Known {
        numbers,
        kind,
        code,
        advice,
    }
}

/// The row exists: somebody else was first.
pub(super) const DUPLICATE: u16 = 1062;
/// There is no such table.
pub(super) const NO_TABLE: u16 = 1146;

/// Stands for the statements that give the rights.
const RIGHTS: &str = "";
/// The code of a server that takes no writes.
pub(super) const READ_ONLY: &str = "read-only";
/// The code of a table that is not as it should be, and of a row.
pub(super) const BAD_TABLE: &str = "bad-table";
pub(super) const BAD_RECORD: &str = "bad-record";

const KNOWN: &[Known] = &[
    known(
        &[1045, 1698, 1275, 1251],
        Fatal,
        "refused",
        "Mend the user or the password in the URL, or what the server knows of them: users belong to the host they \
         come from",
    ),
    known(
        &[1044, 1142, 1143, 1227, 1370, 1410],
        Fatal,
        "refused",
        RIGHTS,
    ),
    known(
        &[1130, 4151, 3118],
        Fatal,
        "refused",
        "Let this user in from this host: CREATE USER and ALTER USER ... ACCOUNT UNLOCK do it",
    ),
    known(
        &[1129],
        Fatal,
        "refused",
        "Too many connections from here were broken off: FLUSH HOSTS on the server lets this host in again",
    ),
    known(
        &[1820, 1862],
        Fatal,
        "refused",
        "The user's password has expired: ALTER USER gives a new one",
    ),
    known(
        &[3159],
        Fatal,
        "refused",
        "The server wants encrypted connections only: add ?ssl-mode=verify_identity",
    ),
    known(
        &[1049],
        Fatal,
        "no-database",
        "Mend the database in the URL, or create it: CREATE DATABASE",
    ),
    known(&[NO_TABLE], Fatal, "no-table", RIGHTS),
    known(
        &[
            1054, 1136, 1364, 1176, 1264, 1265, 1366, 1406, 1690, 1048, 1356, 1347,
        ],
        Fatal,
        BAD_TABLE,
        "The table is not as it should be: let the election create one of its own, with ?table=<name>",
    ),
    known(
        &[1064, 1193, 1235, 1305, 1286, 1289, 1115],
        Fatal,
        "unsupported",
        "The election needs MySQL 5.7 or MariaDB 10.2 or newer, with InnoDB",
    ),
    known(
        &[1665, 1785, 3098],
        Fatal,
        "unsupported",
        "Its replication allows no such write: binlog_format=ROW or MIXED does",
    ),
    known(
        &[1290, 1792, 1836, 3100],
        Transient,
        READ_ONLY,
        "It takes no writes: point the URL at the primary",
    ),
    known(
        &[1205, 1206, 1613, 3572],
        Transient,
        "locked",
        "A transaction of somebody else's holds the election's row or table",
    ),
    known(
        &[1213, 1180, 3101],
        Transient,
        "conflict",
        "Another transaction was faster",
    ),
    known(
        &[1969, 3024],
        Transient,
        "timeout",
        "A lock of somebody else's, or a slow disk, took too long",
    ),
    known(
        &[1040, 1203, 1226, 1135],
        Transient,
        "busy",
        "It has no room for another connection: see max_connections, max_user_connections and the user's limits",
    ),
    known(
        &[1021, 1114, 1030, 1041, 1037, 1038, 3, 1026],
        Transient,
        "full",
        "Its disk or its memory is full, or does not work",
    ),
    known(
        &[1047, 3032, 1053, 1184, 1218],
        Transient,
        "not-ready",
        "It is starting, ending, or has lost the others of its cluster",
    ),
    // Whether the statement was done before it was ended cannot be told.
    known(
        &[1317, 1927, 3169, 1152, 4031],
        Ambiguous,
        "killed",
        "Somebody ended the connection or the statement",
    ),
];

/// How far things had come when they failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing that writes was sent.
    Unsent,
    /// It may have been done.
    Sent,
}

/// Why there is no answer to a request.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: BackendError,
    /// The number of the server's error, if it said something.
    pub number: Option<u16>,
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// `place`: which of the servers it was.
pub(super) fn meaning(trouble: &Trouble, place: &str, address: &Address, stage: Stage) -> Failure {
    let unless_sent = match stage {
        Stage::Unsent => Transient,
        Stage::Sent => Ambiguous,
    };
    let (kind, code, message) = match trouble {
        Trouble::Said { number, words } => return said(*number, words, place, address, stage),
        Trouble::Broken(error) if stage == Stage::Unsent => (
            Transient,
            "unreachable",
            format!("{place} cannot be reached: {error}"),
        ),
        Trouble::Broken(error) => (
            Ambiguous,
            "unreachable",
            format!("the connection to {place} broke before the answer came: {error}"),
        ),
        Trouble::Untrusted(why) => (
            Fatal,
            "certificate",
            format!(
                "{place} and this process do not trust each other: {why}. Trust the server's authority with \
                 ?ca=<file> behind the URL; with &ssl-mode=verify_ca its name does not count; &cert=<file>&key=<file> \
                 shows a certificate of your own"
            ),
        ),
        Trouble::PlainOnly => (
            Fatal,
            "certificate",
            format!(
                "{place} offers no encryption, and the URL wants it. Set the server up for TLS, or say \
                 ?ssl-mode=preferred"
            ),
        ),
        Trouble::Uncommitted => (
            unless_sent,
            "store",
            format!(
                "{place} carried it out within a transaction that nobody here began, so it does not count: \
                 something between here and the server, or its settings, changes autocommit or completion_type"
            ),
        ),
        Trouble::Login(why) => (
            Fatal,
            "refused",
            format!("{place} cannot be logged in to: {why}"),
        ),
        Trouble::Nonsense(what) => (
            unless_sent,
            "store",
            format!("{place} sent {what}. Is it MySQL or MariaDB that listens there?"),
        ),
    };
    Failure {
        error: BackendError {
            kind,
            code,
            message,
        },
        number: None,
    }
}

fn said(number: u16, words: &str, place: &str, address: &Address, stage: Stage) -> Failure {
    let words = words.trim_end_matches('.');
    let error = match KNOWN.iter().find(|known| known.numbers.contains(&number)) {
        Some(known) => {
            let advice = match known.advice {
                RIGHTS => address.rights(),
                advice => advice.to_owned(),
            };
            let kind = match (known.kind, stage) {
                (Ambiguous, Stage::Unsent) => Transient,
                (kind, _) => kind,
            };
            BackendError {
                kind,
                code: known.code,
                message: format!("{place} refused: {words} (error {number}). {advice}"),
            }
        }
        None => BackendError::transient(
            "store",
            format!("{place} answered: {words} (error {number})"),
        ),
    };
    Failure {
        error,
        number: Some(number),
    }
}

pub(super) fn no_connection(place: &str) -> BackendError {
    BackendError::transient("unreachable", format!("{place} cannot be reached in time"))
}

pub(super) fn no_answer(place: &str, stage: Stage) -> BackendError {
    let message = format!("{place} did not answer in time");
    match stage {
        Stage::Unsent => BackendError::transient("timeout", message),
        Stage::Sent => BackendError::ambiguous("timeout", message),
    }
}

pub(super) fn unnumbered(error: BackendError) -> Failure {
    Failure {
        error,
        number: None,
    }
}

impl Address {
    /// What to allow a user, for people.
    pub fn rights(&self) -> String {
        let table = self.table.quoted();
        let Self { user, .. } = self;
        format!(
            "If its user shall lead, an administrator says GRANT SELECT, INSERT, UPDATE, CREATE ON {table} TO \
             '{user}'@'<host>' (without CREATE if the table is there already: {})",
            super::statements::create(&table)
        )
    }
}
