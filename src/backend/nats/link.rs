//! The connection that all elections of a store share, and what is asked on it within a time.
//!
//! A connection that died unnoticed is replaced within the request. One that is merely silent is given half of
//! the time; then the request goes out once more on a connection of its own, and whichever is answered first
//! counts. Sending twice does no harm: everything is either a read, or a write on the condition of what it is
//! written over, which the second one then does not meet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use super::address::Address;
use super::connection::{Connection, Message};
use super::failure::{self, Trouble, Why};
use crate::backend::{BackendError, StoreOptions};

pub(super) struct Link {
    pub address: Address,
    pub connect_timeout: Duration,
    /// How long one request may take, with all that is tried again.
    pub limit: Duration,
    slot: Mutex<Slot>,
    /// One connects, the others wait for it.
    dialing: tokio::sync::Mutex<()>,
}

/// The connection, and which one it is.
#[derive(Default)]
struct Slot {
    number: u64,
    connection: Option<Arc<Connection>>,
    /// The host that was reached last.
    host: usize,
    closed: bool,
}

/// What is asked.
#[derive(Debug, Clone)]
pub(super) struct Asked<'a> {
    pub subject: String,
    pub headers: &'a [(&'a str, String)],
    pub payload: Vec<u8>,
    /// Whether it changes something.
    pub writes: bool,
}

/// What was answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub message: Message,
    /// Whether the same was asked before, and may have been done.
    pub asked_before: bool,
}

impl Link {
    pub fn new(address: Address, options: &StoreOptions) -> Self {
        Self {
            address,
            connect_timeout: options.connect_timeout,
            limit: options.request_timeout,
            slot: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
        }
    }

    pub async fn ask(&self, asked: &Asked<'_>) -> Result<Answer, BackendError> {
        let silence = || {
            let millis = self.limit.as_millis();
            Trouble::new(Why::Silence, format!("no answer within {millis} ms"))
        };
        let tried = timeout(self.limit, self.ask_twice(asked)).await;
        let result = tried.unwrap_or_else(|_| Err(silence()));
        result.map_err(|trouble| failure::no_answer(&self.address, &trouble, asked.writes))
    }

    async fn ask_twice(&self, asked: &Asked<'_>) -> Result<Answer, Trouble> {
        let answer = |asked_before| {
            move |message| Answer {
                message,
                asked_before,
            }
        };
        let first = self.ask_once(asked);
        tokio::pin!(first);
        let before = match timeout(self.limit / 2, &mut first).await {
            Ok(Ok(message)) => return Ok(answer(false)(message)),
            Ok(Err(trouble)) if !matches!(trouble.why, Why::Unsent | Why::Halfway) => {
                return Err(trouble);
            }
            Ok(Err(trouble)) => Some(trouble),
            Err(_) => {
                // Whoever asks next does not wait for it.
                self.forget();
                None
            }
        };
        let second = self.ask_once(asked);
        if let Some(before) = before {
            let asked_before = before.why == Why::Halfway;
            return second.await.map(answer(asked_before)).map_err(|mut now| {
                // What may have been done stays so.
                if asked_before && matches!(now.why, Why::Unsent | Why::Unreachable) {
                    now.why = Why::Halfway;
                }
                now
            });
        }
        tokio::pin!(second);
        tokio::select! {
            // Its trouble tells nothing new: it was silent.
            Ok(message) = &mut first => Ok(answer(false)(message)),
            now = &mut second => match now {
                Ok(message) => Ok(answer(true)(message)),
                Err(_) => first.await.map(answer(false)),
            },
        }
    }

    async fn ask_once(&self, asked: &Asked<'_>) -> Result<Message, Trouble> {
        let (connection, number) = self.connection().await?;
        // Whoever gives up waiting (its future is dropped) leaves a connection that may be dead.
        let mut doubt = Doubt {
            link: self,
            number,
            dismissed: false,
        };
        let result = connection
            .ask(&asked.subject, asked.headers, &asked.payload)
            .await;
        doubt.dismissed = match &result {
            Ok(_) => true,
            Err(trouble) => trouble.why == Why::Forbidden,
        };
        result
    }

    async fn connection(&self) -> Result<(Arc<Connection>, u64), Trouble> {
        if let Some(current) = self.current()
            && !current.0.is_leaving()
        {
            return Ok(current);
        }
        let _only_one = self.dialing.lock().await;
        let current = self.current();
        if let Some(current) = &current
            && !current.0.is_leaving()
        {
            return Ok(current.clone());
        }
        match (self.dial().await, current) {
            (Ok(connection), _) => {
                let connection = Arc::new(connection);
                let mut slot = self.lock();
                slot.number += 1;
                if !slot.closed {
                    slot.connection = Some(Arc::clone(&connection));
                }
                Ok((connection, slot.number))
            }
            // A server that is about to close answers for some time yet.
            (Err(_), Some(current)) => Ok(current),
            (Err(trouble), None) => Err(trouble),
        }
    }

    /// A connection of its own, to the first host that answers as it should.
    pub async fn dial(&self) -> Result<Connection, Trouble> {
        let hosts = &self.address.hosts;
        let first = self.lock().host;
        let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let patience = self.connect_timeout / count;
        let mut troubles = Vec::new();
        for number in (first..hosts.len()).chain(0..first) {
            let dialing = Connection::dial(&self.address, &hosts[number]);
            let dialed = timeout(patience, dialing).await.unwrap_or_else(|_| {
                let place = hosts[number].with_port(super::address::DEFAULT_PORT);
                let millis = patience.as_millis();
                Err(Trouble::new(
                    Why::Unreachable,
                    format!("{place} did not answer within {millis} ms"),
                ))
            });
            match dialed {
                Ok(connection) => {
                    self.lock().host = number;
                    return Ok(connection);
                }
                Err(trouble) => troubles.push(trouble),
            }
        }
        // What only one of several hosts has against us is no reason to give up for good.
        let fatal = |trouble: &&Trouble| {
            !matches!(trouble.why, Why::Unreachable | Why::Busy | Why::Foreign)
        };
        let all_fatal = troubles.iter().filter(fatal).count() == troubles.len();
        let why = match troubles.first() {
            Some(first) if all_fatal || troubles.len() == 1 => first.why,
            _ => Why::Unreachable,
        };
        let said: Vec<_> = troubles
            .into_iter()
            .map(|trouble| trouble.message)
            .collect();
        Err(Trouble::new(why, said.join("; ")))
    }

    fn current(&self) -> Option<(Arc<Connection>, u64)> {
        let slot = self.lock();
        let connection = slot.connection.clone();
        connection.map(|connection| (connection, slot.number))
    }

    /// Whoever still waits on the connection has it a little longer.
    fn forget(&self) {
        self.lock().connection = None;
    }

    pub fn hang_up(&self) {
        let mut slot = self.lock();
        slot.closed = true;
        slot.connection = None;
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces a connection unless its answer came.
struct Doubt<'a> {
    link: &'a Link,
    number: u64,
    dismissed: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        let mut slot = self.link.lock();
        if !self.dismissed && slot.number == self.number {
            slot.connection = None;
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.address.shown).finish()
    }
}
