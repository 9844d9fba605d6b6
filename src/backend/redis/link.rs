//! Connections, and requests on them. One connection serves all elections of a store: requests travel on it one
//! behind the other, and each finds its own answer, also when others were given up.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, ErrorKind, FromRedisValue, RedisError};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::address::{Address, DEFAULT_PORT};
use super::failure::{self, Stage};
use crate::backend::stream::{Place, Stream, encrypted};
use crate::backend::{BackendError, StoreOptions};
use crate::lease::FailureKind;
use crate::locked::locked;

/// The way to one server.
pub(super) struct Link {
    pub address: Address,
    connect_timeout: Duration,
    pub request_timeout: Duration,
    /// See [`StoreOptions::patience`].
    patience: Duration,
    slot: Mutex<Slot>,
    /// One connects, the others wait for it.
    dialing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Slot {
    /// How many connections there were.
    number: u64,
    connection: Option<Connection>,
    /// When something came on it last.
    answered: Option<Instant>,
}

/// One connection, and which one it is. It never becomes another one by itself, and ends with its last clone.
#[derive(Clone)]
pub(super) struct Connection {
    wire: MultiplexedConnection,
    number: u64,
    _driver: Arc<Driver>,
}

/// Carries a connection's messages. Without it, the connection would wait for answers that may never come.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a request brought.
pub(super) struct Answer<T> {
    pub value: T,
    pub connection: Connection,
    /// Another copy of it may have been carried out before.
    pub maybe_twice: bool,
}

/// Something to send: a script or a command.
#[async_trait]
pub(super) trait Request<T>: Sync {
    async fn send(&self, connection: &mut MultiplexedConnection) -> Result<T, RedisError>;
}

#[async_trait]
impl<T: FromRedisValue + Send> Request<T> for redis::ScriptInvocation<'_> {
    async fn send(&self, connection: &mut MultiplexedConnection) -> Result<T, RedisError> {
        self.invoke_async(connection).await
    }
}

#[async_trait]
impl<T: FromRedisValue + Send> Request<T> for redis::Cmd {
    async fn send(&self, connection: &mut MultiplexedConnection) -> Result<T, RedisError> {
        self.query_async(connection).await
    }
}

impl Link {
    pub fn new(address: Address, options: &StoreOptions) -> Self {
        Self {
            address,
            connect_timeout: options.connect_timeout,
            request_timeout: options.request_timeout,
            patience: options.patience.min(options.request_timeout / 2),
            slot: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
        }
    }

    /// As [`run_on`](Self::run_on), for those who want the answer alone.
    pub async fn run<T>(&self, request: &impl Request<T>) -> Result<T, BackendError> {
        Ok(self.run_on(request).await?.value)
    }

    /// Sends a request that does no harm if it reaches the server twice, whenever that is. A connection that was
    /// there before is replaced once, if it turns out to be dead or does not answer for a while.
    pub async fn run_on<T>(&self, request: &impl Request<T>) -> Result<Answer<T>, BackendError> {
        let (connection, is_old) = self.connection().await?;
        let patience = if is_old {
            self.patience
        } else {
            self.request_timeout
        };
        self.try_on(connection, is_old, patience, request).await
    }

    /// Sends a request of which no copy may come late: it is sent again only if the connection broke. One that is
    /// there, and on which nothing has come for a while, is tried before.
    pub async fn run_in_time<T>(
        &self,
        request: &impl Request<T>,
    ) -> Result<Answer<T>, BackendError> {
        let (mut connection, mut is_old) = self.connection().await?;
        if is_old && self.is_silent(&connection).await {
            (connection, is_old) = self.connection().await?;
        }
        let patience = self.request_timeout;
        self.try_on(connection, is_old, patience, request).await
    }

    async fn try_on<T>(
        &self,
        connection: Connection,
        is_old: bool,
        patience: Duration,
        request: &impl Request<T>,
    ) -> Result<Answer<T>, BackendError> {
        let answered = timeout(patience, self.send(&connection, request)).await;
        match answered.unwrap_or_else(|_| Err(too_late())) {
            Ok(value) => {
                return Ok(Answer {
                    value,
                    connection,
                    maybe_twice: false,
                });
            }
            Err(error) if is_old && error.is_connection_dropped() => {}
            Err(error) if is_old && error.is_timeout() && patience < self.request_timeout => {}
            Err(error) => return Err(self.failure(&error, true)),
        }
        let (connection, _) = self.connection().await.map_err(|mut again| {
            // The first copy may have come through.
            if again.kind == FailureKind::Transient {
                again.kind = FailureKind::Ambiguous;
            }
            again
        })?;
        match self.send(&connection, request).await {
            Ok(value) => Ok(Answer {
                value,
                connection,
                maybe_twice: true,
            }),
            Err(error) => Err(self.failure(&error, true)),
        }
    }

    /// Whether nothing comes on it, not even if it is asked. It is let go then.
    async fn is_silent(&self, connection: &Connection) -> bool {
        let answered = self.lock().answered;
        if answered.is_some_and(|at| at.elapsed() < self.patience) {
            return false;
        }
        let ping = redis::cmd("PING");
        let asked: Result<Result<redis::Value, _>, _> =
            timeout(self.patience, self.send(connection, &ping)).await;
        match asked {
            Ok(Ok(_)) => false,
            Ok(Err(error)) => !is_answer(&error),
            Err(_) => true,
        }
    }

    pub async fn send<T>(
        &self,
        connection: &Connection,
        request: &impl Request<T>,
    ) -> Result<T, RedisError> {
        // Whoever gives up waiting (its future is dropped) leaves a connection that may be dead.
        let mut doubt = Doubt {
            link: self,
            number: connection.number,
            dismissed: false,
        };
        let result = request.send(&mut connection.wire.clone()).await;
        doubt.dismissed = match &result {
            Ok(_) => true,
            // A server that became a replica stays one; the name in the URL may lead to another by now.
            Err(error) => is_answer(error) && !error.to_string().contains("READONLY"),
        };
        if doubt.dismissed {
            let mut slot = self.lock();
            if slot.number == connection.number {
                slot.answered = Some(Instant::now());
            }
        }
        result
    }

    /// The one that all share, and whether it was there before.
    async fn connection(&self) -> Result<(Connection, bool), BackendError> {
        if let Some(connection) = self.current() {
            return Ok((connection, true));
        }
        let _only_one = self.dialing.lock().await;
        if let Some(connection) = self.current() {
            return Ok((connection, true));
        }
        let (wire, driver) = self.dial().await?;
        let mut slot = self.lock();
        slot.number += 1;
        let connection = Connection {
            wire,
            number: slot.number,
            _driver: Arc::new(driver),
        };
        slot.connection = Some(connection.clone());
        slot.answered = Some(Instant::now());
        Ok((connection, false))
    }

    async fn dial(&self) -> Result<(MultiplexedConnection, Driver), BackendError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.request_timeout));
        let settings = &self.address.settings;
        let dialed = async {
            let stream = self.stream().await?;
            let made = MultiplexedConnection::new_with_config(settings, stream, config).await;
            made.map_err(|error| self.failure(&error, false))
        };
        let (wire, driver) = self.in_time(dialed).await?;
        Ok((wire, Driver(tokio::spawn(driver))))
    }

    /// A connection of its own, for those who listen.
    pub async fn dial_to_listen(&self) -> Result<PubSub, BackendError> {
        let dialed = async {
            let stream = self.stream().await?;
            let made = PubSub::new(&self.address.settings, stream).await;
            made.map_err(|error| self.failure(&error, false))
        };
        self.in_time(dialed).await
    }

    async fn stream(&self) -> Result<Stream, BackendError> {
        let failed = |error: io::Error| self.failure(&error.into(), false);
        let place = &self.address.place;
        let stream = place.connect(DEFAULT_PORT).await.map_err(failed)?;
        match (place, &self.address.tls) {
            (Place::Tcp(host), Some(tls)) => {
                let config = tls.client_config().await.map_err(|why| {
                    BackendError::fatal("certificate", format!("{}: {why}", self.address.shown))
                })?;
                let stream = encrypted(stream, &host.name, Arc::new(config)).await;
                stream.map_err(failed)
            }
            _ => Ok(stream),
        }
    }

    async fn in_time<T>(
        &self,
        dialed: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let dialed = timeout(self.connect_timeout, dialed).await;
        dialed.unwrap_or_else(|_| Err(self.failure(&too_late(), false)))
    }

    pub fn failure(&self, error: &RedisError, sent: bool) -> BackendError {
        let stage = match sent {
            true => Stage::Sent,
            false if self.lock().number == 0 => Stage::NeverConnected,
            false => Stage::Connecting,
        };
        failure::meaning(error, &self.address, stage)
    }

    fn current(&self) -> Option<Connection> {
        self.lock().connection.clone()
    }

    pub fn hang_up(&self) {
        self.lock().connection = None;
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        locked(&self.slot)
    }
}

fn too_late() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Whether the server itself said this, so that the connection is sound.
fn is_answer(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType
    )
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.address.shown).finish()
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
