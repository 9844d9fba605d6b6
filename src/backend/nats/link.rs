//! The connection that all elections of a store share, and what is asked on it within a time.
//!
//! A connection that died unnoticed is replaced within the request. One that is merely silent is given a part of
//! the time; then the request goes out once more on a connection of its own, and whichever is answered first
//! counts. Sending twice does no harm: everything is either a read, or a write on the condition of what it is
//! written over, which the second one then does not meet.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::timeout;

use super::address::Address;
use super::connection::{Connection, Message};
use super::failure::{self, Trouble, Why};
use crate::backend::{BackendError, StoreOptions};
use crate::locked::locked;

pub(super) struct Link {
    pub address: Address,
    pub connect_timeout: Duration,
    /// How long one request may take, with all that is tried again.
    pub limit: Duration,
    /// See [`StoreOptions::patience`].
    patience: Duration,
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
            patience: options.patience.min(options.request_timeout / 2),
            slot: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
        }
    }

    pub async fn ask(&self, asked: &Asked<'_>) -> Result<Answer, BackendError> {
        let silence = || {
            let millis = self.limit.as_millis();
            Trouble::new(Why::Silence, format!("no answer within {millis} ms"))
        };
        let mut asked_before = false;
        let tried = timeout(self.limit, self.ask_twice(asked, &mut asked_before)).await;
        let result = tried.unwrap_or_else(|_| Err(silence()));
        match result {
            Ok(message) => Ok(Answer {
                message,
                asked_before,
            }),
            Err(trouble) => Err(failure::no_answer(&self.address, &trouble, asked.writes)
                .doubted(asked.writes && asked_before)),
        }
    }

    /// `asked_before`: whether, beside the one whose end is returned, another one may have been done.
    async fn ask_twice(
        &self,
        asked: &Asked<'_>,
        asked_before: &mut bool,
    ) -> Result<Message, Trouble> {
        let mut first = pin!(self.ask_once(asked));
        match timeout(self.patience, &mut first).await {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(trouble)) => match trouble.why {
                Why::Unsent | Why::Halfway => {
                    *asked_before = trouble.why == Why::Halfway;
                    self.ask_once(asked).await
                }
                _ => Err(trouble),
            },
            Err(_) => {
                // Whoever asks next does not wait for it.
                self.forget();
                *asked_before = true;
                let second = pin!(self.ask_once(asked));
                match select(first, second).await {
                    Either::Left((Ok(message), _)) | Either::Right((Ok(message), _)) => Ok(message),
                    // Its trouble tells nothing new: it was silent.
                    Either::Left((Err(_), second)) => second.await,
                    Either::Right((Err(_), first)) => first.await,
                }
            }
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
        locked(&self.slot)
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::lease::FailureKind::{self, Ambiguous, Transient};

    /// Until there is something that was published.
    async fn published(stream: &mut BufReader<TcpStream>) {
        let mut line = String::new();
        while !line.starts_with("HPUB") && !line.starts_with("PUB") {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            if line.starts_with("PING") {
                stream.write_all(b"PONG\r\n").await.unwrap();
            }
        }
    }

    async fn greeted(listener: &TcpListener, words: &str) -> BufReader<TcpStream> {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let hello = format!("INFO {{}}\r\n{words}");
        stream.write_all(hello.as_bytes()).await.unwrap();
        stream
    }

    /// What comes of a write whose first copy the server took, and then closed or kept silent.
    async fn asks_twice(writes: bool, closes: bool, then: &str) -> (FailureKind, &'static str) {
        let server = async |listener: &TcpListener| {
            let mut first = greeted(listener, "").await;
            published(&mut first).await;
            let silent = (!closes).then_some(first);
            greeted(listener, then).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(silent);
        };
        asks(writes, server).await
    }

    /// What comes of a request to such a server, which does nothing more in the end.
    async fn asks(writes: bool, server: impl AsyncFn(&TcpListener)) -> (FailureKind, &'static str) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let mut options = StoreOptions::new(".");
        options.request_timeout = Duration::from_secs(20);
        options.patience = Duration::from_millis(200);
        let address = Address::parse(&url, Path::new(".")).map_err(|bad| bad.rule);
        let link = Link::new(address.unwrap(), &options);
        let asked = Asked {
            subject: "s".into(),
            headers: &[],
            payload: Vec::new(),
            writes,
        };
        let server = async {
            server(&listener).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            error = link.ask(&asked) => {
                let error = error.expect_err("no answer");
                (error.kind, error.code)
            }
            () = server => unreachable!(),
        }
    }

    #[tokio::test]
    async fn what_a_second_try_fails_by_says_nothing_of_the_first_one() {
        let busy = "-ERR 'maximum connections exceeded'\r\n";
        assert_eq!(asks_twice(true, true, busy).await, (Ambiguous, "busy"));
        assert_eq!(asks_twice(false, true, busy).await, (Transient, "busy"));
        // The first one was silent, and was the last to end.
        let begun = Instant::now();
        let (kind, _) = asks_twice(true, false, busy).await;
        assert_eq!(kind, Ambiguous);
        // It was not given more time than a connection has.
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_server_that_falls_silent_and_then_dies_ends_both_tries_in_either_order() {
        for first_ends_first in [true, false] {
            let server = async |listener: &TcpListener| {
                let mut tries = Vec::new();
                for _ in 0..2 {
                    let mut stream = greeted(listener, "").await;
                    published(&mut stream).await;
                    tries.push(stream);
                }
                if first_ends_first {
                    tries.reverse();
                }
                for ended in [tries.pop(), tries.pop()] {
                    drop(ended);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let (kind, _) = asks(true, server).await;
            assert_eq!(kind, Ambiguous, "{first_ends_first}");
        }
    }
}
