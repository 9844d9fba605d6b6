//! What Consul's refusals, and its silence, mean for an election.

use super::address::Address;
use crate::backend::http::{Answer, Broken, Why, excerpt};
use crate::backend::{BackendError, UNSUITABLE};
use crate::lease::FailureKind::{self, Ambiguous, Fatal, Transient};

/// The code of what the token may not do, or of a token that is not known.
const REFUSED: &str = "refused";

/// Consul's words, what they mean, and what to do.
struct Known {
    words: &'static str,
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
}

const fn known(
    words: &'static str,
    kind: FailureKind,
    code: &'static str,
    advice: &'static str,
) -> Known {
    Known {
        words,
        kind,
        code,
        advice,
    }
}

/// Stands for what the address says of the rights that it takes.
const RIGHTS: &str = "";
const NO_LEADER: &str =
    "More than half of its servers must run and reach each other: consul operator raft list-peers";
const BUSY: &str =
    "It limits how much is asked of it: give this machine a higher limit, or its own agent";

/// The first that fits counts. Letters are compared in lower case.
const KNOWN: &[Known] = &[
    known("permission denied", Fatal, REFUSED, RIGHTS),
    known("lacks permission", Fatal, REFUSED, RIGHTS),
    known(
        "acl not found",
        Fatal,
        REFUSED,
        "It does not know the token: put the right one into the URL, consul://:token@host, or into ?token_file",
    ),
    known(
        "acl support disabled",
        Fatal,
        REFUSED,
        "Leave the token out of the URL",
    ),
    known("no cluster leader", Transient, "no-leader", NO_LEADER),
    known("no known consul servers", Transient, "no-leader", NO_LEADER),
    known(
        "not ready to serve consistent reads",
        Transient,
        "no-leader",
        NO_LEADER,
    ),
    known("leadership lost", Ambiguous, "no-leader", NO_LEADER),
    known(
        "raft is already shutdown",
        Ambiguous,
        "no-leader",
        NO_LEADER,
    ),
    known(
        "no path to datacenter",
        Transient,
        "no-datacenter",
        "Mend ?dc in the URL, or the way to that datacenter: consul members -wan",
    ),
    known("rate limit", Transient, "busy", BUSY),
    known("too many", Transient, "busy", BUSY),
    known(
        "http request to an https server",
        Fatal,
        UNSUITABLE,
        "It speaks TLS: begin the URL with consuls://",
    ),
];

/// What an answer means that is not the wanted one.
pub(super) fn meaning(address: &Address, answer: &Answer, writes: bool) -> BackendError {
    let place = &*address.shown;
    let text = String::from_utf8_lossy(&answer.body);
    let said = excerpt(&text);
    let said = said.trim_end_matches('.');
    let lower = text.to_ascii_lowercase();
    let sure = |kind| match kind {
        // What surely was not done by this request may have been done by the one before.
        Transient if writes && answer.asked_before => Ambiguous,
        Ambiguous if !writes => Transient,
        kind => kind,
    };
    if let Some(known) = KNOWN.iter().find(|known| lower.contains(known.words)) {
        let advice = match known.advice {
            RIGHTS => format!("If it shall lead, {}", address.rights()),
            advice => advice.to_owned(),
        };
        return BackendError {
            kind: sure(known.kind),
            code: known.code,
            message: format!("{place} refused: {said}. {advice}"),
        };
    }
    let (kind, code, advice) = match answer.status {
        401 | 403 => (Fatal, REFUSED, format!(". If it shall lead, {}", address.rights())),
        429 => (Transient, "busy", format!(". {BUSY}")),
        404 | 405 => (
            Fatal,
            UNSUITABLE,
            ". Consul's HTTP port is needed, which is 8500 by default, with its key-value store and transactions".into(),
        ),
        400..=499 => (Transient, "store", String::new()),
        _ => (Ambiguous, "store", String::new()),
    };
    BackendError {
        kind: sure(kind),
        code,
        message: format!("{place} answered {}: {said}{advice}", answer.status),
    }
}

/// Whether another agent may know more: this one has lost its servers, or is asked too much.
pub(super) fn may_be_better_elsewhere(answer: &Answer) -> bool {
    matches!(answer.status, 429 | 500..)
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
    let unsure = if writes { Ambiguous } else { Transient };
    let (kind, code, advice) = match broken.why {
        Why::Unreachable => (Transient, "unreachable", ""),
        Why::Silence => (unsure, "timeout", ""),
        Why::Halfway if reached || address.tls.is_some() => (unsure, "unreachable", ""),
        Why::Halfway => (
            unsure,
            "unreachable",
            ". If it speaks TLS, begin the URL with consuls://",
        ),
        Why::OtherProtocol => (
            Transient,
            "unreachable",
            ". If it speaks no TLS, begin the URL with consul://",
        ),
        Why::Distrust => (
            Fatal,
            "certificate",
            ". The agent and this process must believe each other's certificates: trust its authority with ?ca=<file> behind the URL, and show a certificate of your own with &cert=<file>&key=<file> if it wants one",
        ),
    };
    BackendError {
        kind,
        code,
        message: format!("{place}: {said}{advice}"),
    }
}
