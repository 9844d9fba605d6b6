//! What holds the lease, and the contract that every store fulfils.
//!
//! A backend knows the words of `lease` and nothing of the election: it is asked to do one atomic
//! thing and says what came of it. It never decides who leads, keeps no timers of its own for that,
//! and never compares a remote time stamp with a local clock.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::lease::{ElectionName, FailureKind, Hint, Leader, Outcome, Owner, Token};

/// Acquire, renew or take over.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub election: &'a ElectionName,
    pub owner: &'a Owner,
    /// How long the lease shall be valid, counted by the backend.
    pub duration: Duration,
    /// The term to renew. `None` campaigns for a new one.
    pub term: Option<Token>,
}

/// A failure, in words for the person who reads them at night.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendError {
    pub kind: FailureKind,
    /// A stable word for programs: `unreachable`, `timeout`, `refused`, `read-only`, `loading`, `bad-record`, ...
    pub code: &'static str,
    /// What failed and what to do. Never a password.
    pub message: String,
}

impl BackendError {
    pub fn transient(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Transient,
            code,
            message: message.into(),
        }
    }

    pub fn ambiguous(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Ambiguous,
            code,
            message: message.into(),
        }
    }

    pub fn fatal(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Fatal,
            code,
            message: message.into(),
        }
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BackendError {}

pub type Hints = mpsc::Sender<Hint>;

/// A running watch; dropping it ends it.
pub type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What kind of store this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Who decides that a lease has expired.
    pub expiry: ExpiryJudge,
    /// The shortest lease that it can hold.
    pub shortest_lease: Duration,
    /// Durations are rounded up to a multiple of this.
    pub step: Duration,
    /// Whether [`Backend::watch`] tells of releases.
    pub notifies: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryJudge {
    /// The store's own clock.
    Store,
    /// The follower, who saw the record unchanged for a whole lease on its own clock.
    Follower,
}

/// One store. Every operation may be cancelled by dropping its future; a write that was sent then
/// counts as ambiguous.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug + 'static {
    fn capabilities(&self) -> Capabilities;

    /// Which store this is, for logs and errors. Never a password.
    fn describe(&self) -> String;

    /// Words that follow "must" if this store cannot hold an election of that name.
    fn check_name(&self, _election: &ElectionName) -> Result<(), String> {
        Ok(())
    }

    /// Creates what is needed and makes sure that the store honours conditional writes. Called before
    /// the first attempt, and again after a transient failure. A fatal error fails the start.
    async fn prepare(&self) -> Result<(), BackendError>;

    /// One atomic operation.
    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError>;

    /// Ends the term of this owner and token, keeps the counter, and tells watchers. `false`: the
    /// record is no longer that term's, and was not touched.
    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError>;

    /// Who leads, without taking part.
    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError>;

    /// Sends hints until it is dropped, reconnecting by itself. `None`: this store cannot.
    fn watch(self: Arc<Self>, _election: ElectionName, _hints: Hints) -> Option<Watch> {
        None
    }

    /// Closes connections and files. Nothing else is called afterwards.
    async fn close(&self) {}
}
