//! What etcd's refusals, and its silence, mean for an election.

use super::address::Address;
use crate::backend::http::{Broken, Why, excerpt};
use crate::backend::{BackendError, UNSUITABLE};

/// The code of a record that no election wrote.
pub(super) const BAD_RECORD: &str = "bad-record";
/// The code of what the user may not do, or is not believed to be.
pub(super) const REFUSED: &str = "refused";
/// Codes that are understood here, and that nobody else sees.
pub(super) const LEASE_EXISTS: &str = "lease-exists";
pub(super) const LEASE_GONE: &str = "lease-gone";
pub(super) const NO_USERS: &str = "no-users";

/// What may have become of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Refused,
    /// Somebody must mend something.
    Fatal,
    Unknown,
}

/// etcd's words, what they mean, and what to do.
struct Known {
    words: &'static str,
    kind: Kind,
    code: &'static str,
    advice: &'static str,
}

const fn known(words: &'static str, kind: Kind, code: &'static str, advice: &'static str) -> Known {
    Known {
        words,
        kind,
        code,
        advice,
    }
}

/// Stands for what the address says of the rights that it takes.
const RIGHTS: &str = "";

/// The first that fits counts.
const KNOWN: &[Known] = &[
    known(
        "requested lease not found",
        Kind::Refused,
        LEASE_GONE,
        "The lease ended meanwhile",
    ),
    known(
        "lease already exists",
        Kind::Refused,
        LEASE_EXISTS,
        "Another lease has that number",
    ),
    known(
        "authentication is not enabled",
        Kind::Refused,
        NO_USERS,
        "Leave user and password out of the URL",
    ),
    known("permission denied", Kind::Fatal, REFUSED, RIGHTS),
    known(
        "user name is empty",
        Kind::Fatal,
        REFUSED,
        "Put user and password into the URL: etcd://user:password@host",
    ),
    known(
        "authentication failed",
        Kind::Fatal,
        REFUSED,
        "Mend the user name or the password in the URL",
    ),
    known(
        "user name not found",
        Kind::Fatal,
        REFUSED,
        "Mend the user name in the URL",
    ),
    known(
        "invalid auth token",
        Kind::Refused,
        REFUSED,
        "It does not know the token that it gave for the password: with --auth-token=jwt, all members need the \
         same key",
    ),
    known(
        "revision of auth store is old",
        Kind::Refused,
        REFUSED,
        "Its users were just changed",
    ),
    known(
        "database space exceeded",
        Kind::Refused,
        "full",
        "Make room: etcdctl compact <revision>, etcdctl defrag, etcdctl alarm disarm; and let it compact by \
         itself (--auto-compaction-retention)",
    ),
    known(
        "too many requests",
        Kind::Refused,
        "busy",
        "It is behind with what it was asked to write",
    ),
    known("no leader", Kind::Refused, "no-leader", NO_QUORUM),
    known(
        "leader changed",
        Kind::Unknown,
        "failover",
        "Its members have just chosen another leader",
    ),
    known(
        "not leader",
        Kind::Unknown,
        "failover",
        "Its members have just chosen another leader",
    ),
    known("request timed out", Kind::Unknown, "timeout", NO_QUORUM),
    known(
        "not supported for learner",
        Kind::Refused,
        "read-only",
        "It only learns, and takes no part: name voting members in the URL",
    ),
    known(
        "corrupt",
        Kind::Fatal,
        "store",
        "Its members do not hold the same data: etcdctl alarm list; replace the member that is wrong",
    ),
    known(
        "required revision has been compacted",
        Kind::Refused,
        "store",
        "What was to be read was cleared away",
    ),
];

const NO_QUORUM: &str = "More than half of its members must run, reach each other, and write in time to their \
                         disks: etcdctl endpoint status --cluster -w table";

/// A user's token that was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PassTrouble {
    Stale,
    Missing,
}

pub(super) fn pass_trouble(said: &str) -> Option<PassTrouble> {
    let stale = ["invalid auth token", "revision of auth store is old"];
    if stale.iter().any(|words| said.contains(words)) {
        Some(PassTrouble::Stale)
    } else if said.contains("user name is empty") {
        Some(PassTrouble::Missing)
    } else {
        None
    }
}

/// What an answer means that is not the wanted one.
pub(super) fn meaning(address: &Address, status: u16, said: &str, writes: bool) -> BackendError {
    let place = &*address.shown;
    let shown = excerpt(said);
    let shown = shown.trim_end_matches('.');
    if let Some(known) = KNOWN.iter().find(|known| said.contains(known.words)) {
        let advice = match known.advice {
            RIGHTS => format!("If its user shall lead: {}", address.rights()),
            advice => advice.to_owned(),
        };
        let message = format!("{place} refused: {shown}. {advice}");
        return match known.kind {
            Kind::Fatal => BackendError::fatal(known.code, message),
            Kind::Unknown if writes => BackendError::ambiguous(known.code, message),
            Kind::Refused | Kind::Unknown => BackendError::transient(known.code, message),
        };
    }
    match status {
        404 => BackendError::fatal(
            UNSUITABLE,
            format!(
                "{place} does not answer at /v3/ ({shown}): it takes etcd 3.4 or later, with its gateway on \
                 (not --enable-grpc-gateway=false)"
            ),
        ),
        400..=499 => {
            BackendError::transient("store", format!("{place} refused with {status}: {shown}"))
        }
        _ => {
            let message = format!("{place} answered {status}: {shown}");
            if writes {
                BackendError::ambiguous("store", message)
            } else {
                BackendError::transient("store", message)
            }
        }
    }
}

/// What it means that nothing came. `reached`: something came before.
pub(super) fn no_answer(
    address: &Address,
    broken: &Broken,
    writes: bool,
    reached: bool,
) -> BackendError {
    let place = &*address.shown;
    let said = &*broken.message;
    let unsure = |code, message| {
        if writes {
            BackendError::ambiguous(code, message)
        } else {
            BackendError::transient(code, message)
        }
    };
    match broken.why {
        Why::Unreachable => BackendError::transient("unreachable", format!("{place}: {said}")),
        Why::Silence => unsure("timeout", format!("{place}: {said}")),
        Why::Halfway if reached || address.tls.is_some() => {
            unsure("unreachable", format!("{place}: {said}"))
        }
        Why::Halfway => unsure(
            "unreachable",
            format!("{place}: {said}. If it speaks TLS, begin the URL with etcds://"),
        ),
        Why::OtherProtocol if reached => {
            BackendError::transient("unreachable", format!("{place}: {said}"))
        }
        Why::OtherProtocol => BackendError::transient(
            "unreachable",
            format!("{place}: {said}. If it speaks no TLS, begin the URL with etcd://"),
        ),
        Why::Distrust => BackendError::fatal(
            "certificate",
            format!(
                "{place} and this process do not believe each other's certificates: {said}. Trust the \
                 server's authority with ?ca=<file> behind the URL, and show a certificate of your own with \
                 &cert=<file>&key=<file> if the server wants one"
            ),
        ),
    }
}
