//! What an answer of the API server means for an election, and what people can do about it.

use std::error::Error;
use std::fmt::Write as _;

use super::api::{Answer, Asked};
use crate::backend::BackendError;

/// The longest part of an answer that an error repeats.
const SHOWN: usize = 300;

/// A right that somebody needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Right {
    pub group: &'static str,
    pub resource: &'static str,
    pub verb: &'static str,
}

impl Right {
    pub const fn on_leases(verb: &'static str) -> Self {
        Self {
            group: "coordination.k8s.io",
            resource: "leases",
            verb,
        }
    }

    pub const fn on_pods(verb: &'static str) -> Self {
        Self {
            group: "",
            resource: "pods",
            verb,
        }
    }
}

/// The rules that give these rights, as they stand in a Role.
pub(super) fn rules(rights: &[Right]) -> String {
    let mut text = String::from("rules:");
    let mut rest = rights.to_vec();
    while let Some(first) = rest.first().copied() {
        let alike = |right: &Right| (right.group, right.resource) == (first.group, first.resource);
        let verbs: Vec<_> = rest.iter().filter(|right| alike(right)).collect();
        let verbs: Vec<_> = verbs
            .iter()
            .map(|right| format!("{:?}", right.verb))
            .collect();
        let _ = write!(
            text,
            "\n  - apiGroups: [{:?}]\n    resources: [{:?}]\n    verbs: [{}]",
            first.group,
            first.resource,
            verbs.join(", ")
        );
        rest.retain(|right| !alike(right));
    }
    text
}

/// Names what is missing and the cure.
pub(super) fn missing(rights: &[Right], namespace: &str) -> BackendError {
    let what: Vec<_> = rights
        .iter()
        .map(|right| format!("{} {}", right.verb, right.resource))
        .collect();
    BackendError::fatal(
        "refused",
        format!(
            "this process may not {} in namespace {namespace}. Give its service account (or user) a Role in {namespace} with\n{}{}",
            what.join(", "),
            rules(rights),
            if rights == [Right::on_leases("create")] {
                "\nor make the Lease for it"
            } else {
                ""
            }
        ),
    )
}

/// What an answer means that is neither the wanted one nor one that the caller understands.
pub(super) fn failure(answer: &Answer, asked: &Asked<'_>, namespace: &str) -> BackendError {
    meaning(answer, asked, namespace).doubted(answer.asked_before)
}

fn meaning(answer: &Answer, asked: &Asked<'_>, namespace: &str) -> BackendError {
    let said = answer.said();
    let said = said.as_str();
    match answer.status {
        401 => BackendError::fatal(
            "refused",
            format!("the API server does not accept the credentials: {said}"),
        ),
        403 if answer.has_cause("NamespaceTerminating") => BackendError::transient(
            "no-namespace",
            format!("{said}: it is waited for until it is made again"),
        ),
        403 if said.contains("system:anonymous") => BackendError::fatal(
            "refused",
            format!(
                "the API server was not told who asks: the kubeconfig's user has no credentials, or its token file is empty. It said: {said}"
            ),
        ),
        403 => {
            let mut error = missing(&[asked.right], namespace);
            let _ = write!(error.message, "\nThe API server said: {said}");
            error
        }
        // Of a Lease that is not there the caller knows what to think.
        404 => BackendError::transient(
            "no-namespace",
            format!(
                "{said}: create the namespace (kubectl create namespace {namespace}), or set namespace to another one"
            ),
        ),
        // A proxy may say so, too, after it sent the request on.
        503 => ambiguous_if_writing(
            asked,
            "overloaded",
            format!("the API server is not able to answer now: {said}"),
        ),
        400 | 422 => BackendError::fatal(
            "bad-record",
            format!(
                "the API server refuses to {} {}: {said}",
                asked.right.verb, asked.right.resource
            ),
        ),
        status @ 500.. => ambiguous_if_writing(
            asked,
            "store",
            format!("the API server failed with {status}: {said}"),
        ),
        status => ambiguous_if_writing(
            asked,
            "unexpected",
            format!("{status} is no answer of an API server: {said}"),
        ),
    }
}

/// What was asked may have been done, if it changes anything.
pub(super) fn ambiguous_if_writing(
    asked: &Asked<'_>,
    code: &'static str,
    message: String,
) -> BackendError {
    if asked.writes {
        BackendError::ambiguous(code, message)
    } else {
        BackendError::transient(code, message)
    }
}

/// An error and its causes, without what they repeat.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    excerpt(&text)
}

/// What a person can read of a text of unknown length and kind.
pub(super) fn excerpt(text: &str) -> String {
    let line: String = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(SHOWN)
        .collect();
    if line.is_empty() {
        "nothing".into()
    } else {
        line
    }
}
