//! The connections of a store: a few, since a statement that waits for somebody's lock must not keep the other
//! elections waiting.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use rustls::ClientConfig;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::address::{Address, DEFAULT_PORT, Encryption};
use super::failure::{self, Failure, READ_ONLY, Stage, meaning, unnumbered};
use super::statements;
use super::wire::{Answer, Connection, Login, Row, Trouble};
use crate::backend::stream::Place;
use crate::backend::tls::{Tls, Verify};
use crate::backend::{BackendError, StoreOptions};
use crate::lease::FailureKind::{self, Ambiguous, Fatal, Transient};
use crate::locked::locked;

/// How many statements go on at a time.
const MOST_CONNECTIONS: usize = 8;
/// A connection that nobody used for so long is closed.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// Nobody begins to write who has less than that.
const LEAST_TIME: Duration = Duration::from_millis(10);
/// How long a good-bye may take.
const GOOD_BYE: Duration = Duration::from_millis(200);

pub(super) struct Link {
    pub address: Address,
    connect_timeout: Duration,
    request_timeout: Duration,
    /// See [`StoreOptions::patience`].
    patience: Duration,
    room: Semaphore,
    kept: Mutex<Kept>,
    /// Of the servers, the one that answered last.
    last: AtomicUsize,
}

/// Connections that are in order and rest.
#[derive(Default)]
struct Kept {
    resting: Vec<Resting>,
    /// Connections of an earlier one are not kept any more.
    era: u64,
    closed: bool,
}

struct Resting {
    connection: Connection,
    place: usize,
    since: Instant,
}

/// What a request brought.
pub(super) struct Asked {
    pub answers: Vec<Answer>,
    /// Another copy of it may have been carried out before.
    pub maybe_twice: bool,
}

/// A connection in use.
struct Used {
    connection: Connection,
    place: usize,
    era: u64,
}

/// Whether what is sent changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Reads,
    /// It is done until then or never.
    Writes {
        until: Instant,
    },
}

impl Request {
    fn until(self) -> Option<Instant> {
        match self {
            Self::Reads => None,
            Self::Writes { until } => Some(until),
        }
    }

    fn once_sent(self) -> Stage {
        match self {
            Self::Reads => Stage::Unsent,
            Self::Writes { .. } => Stage::Sent,
        }
    }
}

impl Link {
    pub fn new(address: Address, options: &StoreOptions) -> Self {
        Self {
            address,
            connect_timeout: options.connect_timeout,
            request_timeout: options.request_timeout,
            patience: options.patience,
            room: Semaphore::new(MOST_CONNECTIONS),
            kept: Mutex::default(),
            last: AtomicUsize::new(0),
        }
    }

    /// When a request that begins now is given up.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// When whoever campaigns from now on has surely given up.
    pub fn campaign_deadline(&self) -> Instant {
        Instant::now() + self.request_timeout.min(self.connect_timeout)
    }

    /// Sends statements, all of which may be sent twice without harm: once more, on a connection of its own,
    /// if the one that had rested turns out to be dead, or does not answer for a while. Whichever is answered
    /// first counts.
    pub async fn ask(&self, statements: &str, request: Request) -> Result<Asked, Failure> {
        let until = request.until().unwrap_or_else(|| self.deadline());
        let left = until.saturating_duration_since(Instant::now());
        let patience = self.patience.min(left / 2);
        let asked = timeout(left, self.ask_unbounded(statements, request, patience)).await;
        asked.unwrap_or_else(|_| {
            Err(unnumbered(failure::no_answer(
                &self.address.shown,
                request.once_sent(),
            )))
        })
    }

    async fn ask_unbounded(
        &self,
        statements: &str,
        request: Request,
        patience: Duration,
    ) -> Result<Asked, Failure> {
        let brought = |answers, maybe_twice| Asked {
            answers,
            maybe_twice,
        };
        let _room = self.room.acquire().await.expect("never closed");
        let Some(rested) = self.take() else {
            let fresh = self.dial().await?;
            let asked = self.ask_on(fresh, statements, request).await;
            return match asked {
                Ok(answers) => Ok(brought(answers, false)),
                Err((_, failure)) => Err(failure),
            };
        };
        let era = rested.era;
        let mut first = pin!(self.ask_on(rested, statements, request));
        match timeout(patience, &mut first).await {
            Ok(Ok(answers)) => Ok(brought(answers, false)),
            Ok(Err((false, failure))) => Err(failure),
            Ok(Err((true, failure))) => {
                self.end(era);
                let again = self.ask_anew(statements, request).await;
                let answers = again.map_err(|again| after(&failure, again))?;
                Ok(brought(answers, true))
            }
            Err(_) => {
                self.end(era);
                let second = pin!(self.ask_anew(statements, request));
                let answered = match select(first, second).await {
                    Either::Left((Ok(answers), _)) | Either::Right((Ok(answers), _)) => Ok(answers),
                    Either::Left((Err((_, failure)), second)) => {
                        second.await.map_err(|second| after(&failure, second))
                    }
                    Either::Right((Err(failure), first)) => {
                        first.await.map_err(|(_, first)| after(&failure, first))
                    }
                };
                Ok(brought(answered?, true))
            }
        }
    }

    async fn ask_anew(&self, statements: &str, request: Request) -> Result<Vec<Answer>, Failure> {
        let fresh = self.dial().await?;
        let asked = self.ask_on(fresh, statements, request).await;
        asked.map_err(|(_, failure)| failure)
    }

    /// In an error: whether the connection was dead.
    async fn ask_on(
        &self,
        mut used: Used,
        statements: &str,
        request: Request,
    ) -> Result<Vec<Answer>, (bool, Failure)> {
        let place = self.address.places[used.place].shown(DEFAULT_PORT);
        let until = request.until().unwrap_or_else(|| self.deadline());
        let left = until.saturating_duration_since(Instant::now());
        if left < LEAST_TIME {
            self.keep(used);
            let error = failure::no_answer(&place, Stage::Unsent);
            return Err((false, unnumbered(error)));
        }
        let limit = statements::limit(left * 9 / 10, used.connection.is_mariadb());
        // Whoever gives up waiting (its future is dropped) leaves connections that may be dead, all of them.
        let mut doubt = Doubt {
            link: self,
            era: used.era,
            dismissed: false,
        };
        let asked = used.connection.ask(&format!("{limit}; {statements}")).await;
        doubt.dismissed = true;
        let (done, trouble) = match asked {
            Ok(mut answers) => {
                self.keep(used);
                answers.remove(0);
                return Ok(answers);
            }
            Err((answered, trouble)) => (answered.saturating_sub(1), trouble),
        };
        let dead = !matches!(trouble, Trouble::Said { .. });
        let mut failure = meaning(&trouble, &place, &self.address, request.once_sent());
        if failure.error.code == READ_ONLY || failure.error.code == "not-ready" {
            // It stays so; the name in the URL, or another one, may lead to another server by now.
            self.end(used.era);
        } else if !dead && done == 0 {
            self.keep(used);
        } else if done > 0 && request != Request::Reads && failure.error.kind == Transient {
            // What came before it is done.
            failure.error.kind = Ambiguous;
        }
        Err((dead, failure))
    }

    fn take(&self) -> Option<Used> {
        let mut kept = self.lock();
        kept.resting
            .retain(|resting| resting.since.elapsed() < LONGEST_REST);
        // The one that was used last, so that others may grow old.
        let resting = kept.resting.pop()?;
        Some(Used {
            connection: resting.connection,
            place: resting.place,
            era: kept.era,
        })
    }

    fn keep(&self, used: Used) {
        let mut kept = self.lock();
        if !kept.closed && kept.era == used.era {
            kept.resting.push(Resting {
                connection: used.connection,
                place: used.place,
                since: Instant::now(),
            });
        }
    }

    /// No connection that exists now is used for another request.
    pub fn hang_up(&self) {
        let era = self.lock().era;
        self.end(era);
    }

    /// Unless that was done already.
    fn end(&self, era: u64) {
        let mut kept = self.lock();
        if kept.era == era {
            kept.era += 1;
            kept.resting.clear();
        }
    }

    pub async fn close(&self) {
        let resting = {
            let mut kept = self.lock();
            kept.closed = true;
            std::mem::take(&mut kept.resting)
        };
        let good_byes = async {
            for resting in resting {
                resting.connection.quit().await;
            }
        };
        let _ = timeout(GOOD_BYE, good_byes).await;
    }

    /// To the first server that takes writes, beginning with the one that did last.
    async fn dial(&self) -> Result<Used, Failure> {
        let era = self.lock().era;
        let count = self.address.places.len();
        let last = self.last.load(Ordering::Relaxed);
        let order = std::iter::once(last).chain((0..count).filter(|place| *place != last));
        let began = Instant::now();
        let mut failures = Vec::new();
        for (number, index) in order.enumerate() {
            let place = &self.address.places[index];
            let left = self.connect_timeout.saturating_sub(began.elapsed());
            let share = left / u32::try_from(count - number).unwrap_or(u32::MAX);
            let dialed = timeout(share, self.dial_to(place)).await;
            match dialed.unwrap_or_else(|_| {
                Err(unnumbered(failure::no_connection(
                    &place.shown(DEFAULT_PORT),
                )))
            }) {
                Ok(connection) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok(Used {
                        connection,
                        place: index,
                        era,
                    });
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(together(failures))
    }

    async fn dial_to(&self, place: &Place) -> Result<Connection, Failure> {
        let failed = |trouble: &Trouble| {
            meaning(
                trouble,
                &place.shown(DEFAULT_PORT),
                &self.address,
                Stage::Unsent,
            )
        };
        let mut connection = match &self.address.encryption {
            Encryption::Never => self.log_in(place, None, false).await,
            Encryption::Always(tls) => {
                let config = client_config(tls).await.map_err(unnumbered)?;
                let verified = tls.verify != Verify::Nothing;
                self.log_in(place, Some(config), verified).await
            }
            Encryption::Offered => {
                let tls = Tls {
                    verify: Verify::Nothing,
                    ..Tls::default()
                };
                let config = client_config(&tls).await.map_err(unnumbered)?;
                match self.log_in(place, Some(config), false).await {
                    // Also where its TLS is too old for this side, as MySQL's own client does.
                    Err(Trouble::PlainOnly | Trouble::Untrusted(_)) => {
                        self.log_in(place, None, false).await
                    }
                    other => other,
                }
            }
        }
        .map_err(|trouble| failed(&trouble))?;
        let session = statements::session(self.request_timeout, connection.is_mariadb());
        let answers = connection.ask(&session).await;
        let answers = answers.map_err(|(_, trouble)| failed(&trouble))?;
        match answers.last().and_then(|answer| answer.rows.first()) {
            Some(row) if !is_read_only(row) => Ok(connection),
            _ => Err(unnumbered(read_only(&place.shown(DEFAULT_PORT), Transient))),
        }
    }

    async fn log_in(
        &self,
        place: &Place,
        tls: Option<Arc<ClientConfig>>,
        verified: bool,
    ) -> Result<Connection, Trouble> {
        let login = Login {
            user: &self.address.user,
            password: self.address.password.as_deref(),
            database: &self.address.database,
            tls,
            verified,
        };
        Connection::open(place, &login).await
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        locked(&self.kept)
    }
}

async fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>, BackendError> {
    tls.client_config()
        .await
        .map(Arc::new)
        .map_err(|why| BackendError::fatal("certificate", why))
}

/// Of a row that begins with the server's two variables.
pub(super) fn is_read_only(row: &Row) -> bool {
    row.iter()
        .take(2)
        .flatten()
        .any(|said| !matches!(&**said, b"0" | b"OFF"))
}

pub(super) fn read_only(place: &str, kind: FailureKind) -> BackendError {
    BackendError {
        kind,
        code: READ_ONLY,
        message: format!(
            "{place} takes no writes (read_only): it is a replica, or somebody made it so. Point the URL at the primary"
        ),
    }
}

/// What to say of the last of two copies of a request: one of them may have come through.
fn after(other: &Failure, mut last: Failure) -> Failure {
    if other.error.kind == Ambiguous && last.error.kind == Transient {
        last.error.kind = Ambiguous;
    }
    last
}

/// What to say if no server will do.
fn together(mut failures: Vec<Failure>) -> Failure {
    let last = failures.pop().expect("there is a server");
    if failures.is_empty() {
        return last;
    }
    failures.push(last);
    // One of them may recover.
    let hopeless = failures.iter().all(|failure| failure.error.kind == Fatal);
    let telling = failures
        .iter()
        .find(|failure| failure.error.code != "unreachable")
        .unwrap_or(&failures[0]);
    let words: Vec<_> = failures
        .iter()
        .map(|failure| &*failure.error.message)
        .collect();
    Failure {
        number: telling.number,
        error: BackendError {
            kind: if hopeless { Fatal } else { Transient },
            code: telling.error.code,
            message: format!("none of the servers will do: {}", words.join("; ")),
        },
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.address.shown).finish()
    }
}

/// Replaces all connections unless the answer came.
struct Doubt<'a> {
    link: &'a Link,
    era: u64,
    dismissed: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.dismissed {
            self.link.end(self.era);
        }
    }
}
