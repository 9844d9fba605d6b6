//! What can go wrong with an answer, and for which requests it does.

use std::time::Duration;

use super::http::{Answer, Request};

#[derive(Debug, Clone)]
pub enum Fault {
    /// This is answered, and nothing is done.
    Answer(Answer),
    /// 409 Conflict, as if somebody else had just written; nothing is done.
    Conflict,
    /// Never answered, and nothing is done.
    Stall,
    /// After this time it is done and answered, even when the client has gone.
    Delay(Duration),
    /// Done at once, and answered after this time.
    AnswerLate(Duration),
    /// Done, and never answered.
    ApplyThenStall,
    /// Done, and the connection is reset instead of an answer.
    ApplyThenReset,
    /// Done; the answer's status and headers come, and its body never does.
    HeadersThenStall,
    /// Done; the connection is reset in the middle of the answer's body.
    ResetMidBody,
    /// The connection is closed without an answer, and nothing is done.
    Refuse,
}

impl Fault {
    /// A failure of the server's own, with its `Status`.
    pub fn failure(code: u16, reason: &str, message: &str) -> Self {
        Self::Answer(Answer::failure(code, reason, message))
    }
}

/// Which requests are meant, and how many more of them.
#[derive(Debug)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub path: Option<String>,
    pub token: Option<String>,
    pub left: Option<usize>,
    pub fault: Fault,
}

impl Rule {
    pub fn meets(&self, request: &Request) -> bool {
        let verb = self
            .verbs
            .iter()
            .any(|verb| verb == request.verb || verb == "any");
        verb && self.left != Some(0)
            && self
                .path
                .as_ref()
                .is_none_or(|part| request.path.contains(part))
            && self
                .token
                .as_deref()
                .is_none_or(|token| request.token() == Some(token))
    }
}
