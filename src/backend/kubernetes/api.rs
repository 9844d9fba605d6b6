//! One request to the API server, within a time of its own.
//!
//! The client's hidden retries are off. What is tried again, here and nowhere else, within the same time:
//! what a connection broke under, once; what has no answer for a while, beside it; credentials that were refused,
//! once and after reading them anew; and what the server put off (429) for a time that still fits.
//!
//! The first two may reach the server twice, and what comes of the second copy says nothing of the first. So only
//! what does no harm then is sent like that, and on a connection of its own: others may be as dead.

use std::collections::HashMap;
use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::time::timeout;

use super::access::Place;
use super::connection::Body;
use super::failure::{Right, ambiguous_if_writing, chain, excerpt};
use super::session::{Session, Sessions, Target};
use crate::backend::BackendError;
use crate::locked::locked;

/// No Lease and no Status is longer.
const LONGEST_ANSWER: usize = 4 << 20;
/// How long the server is left alone if it does not say.
const UNSAID_PAUSE: Duration = Duration::from_secs(1);
/// The least pause, also if the server says zero.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// What is asked.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub method: Method,
    pub path: String,
    pub body: Option<&'a Value>,
    pub content_type: &'static str,
    /// What somebody needs who asks it.
    pub right: Right,
    /// Whether it changes anything.
    pub writes: bool,
    /// Whether it does no harm if it reaches the server twice, whenever that is.
    pub repeatable: bool,
}

pub(super) struct Answer {
    pub status: u16,
    pub body: Value,
    /// What came, if it was not JSON.
    text: String,
    retry_after: Option<Duration>,
    /// Whether the same was asked before, and may have been done.
    pub asked_before: bool,
}

impl Answer {
    /// In the server's words.
    pub fn said(&self) -> String {
        match self.body["message"].as_str() {
            Some(message) => excerpt(message),
            None => excerpt(&self.text),
        }
    }

    /// Whether the server's Status gives this reason in its details.
    pub fn has_cause(&self, reason: &str) -> bool {
        let causes = self.body["details"]["causes"].as_array();
        causes.is_some_and(|causes| causes.iter().any(|cause| cause["reason"] == reason))
    }

    fn wants_a_pause(&self) -> bool {
        self.is_undone() || (self.status == 503 && self.retry_after.is_some())
    }

    /// A 503 may come from a proxy, after it sent the request on.
    fn is_undone(&self) -> bool {
        self.status == 429
    }
}

/// The way to one API server.
pub(super) struct Api {
    sessions: Sessions,
    /// How long one request may take, with all that is tried again.
    timeout: Duration,
    /// See [`StoreOptions::patience`](crate::backend::StoreOptions::patience).
    patience: Duration,
    /// The longest that the server may ask to be left alone.
    longest_pause: Duration,
    /// Until when the server asked to be left alone with what needs this right. A label that is put off
    /// must not put off a renewal.
    paused: Mutex<HashMap<Right, Instant>>,
}

/// Why there is no answer.
struct Broken {
    /// Nothing was sent.
    unsent: bool,
    /// And nobody is there to whom it could be sent.
    unreachable: bool,
    /// The two sides do not trust each other, perhaps no longer.
    distrust: bool,
    message: String,
}

impl Broken {
    /// It may have been done.
    fn halfway(message: String) -> Self {
        Self {
            unsent: false,
            unreachable: false,
            distrust: false,
            message,
        }
    }
}

impl Api {
    pub fn new(
        place: Place,
        timeout: Duration,
        patience: Duration,
        longest_pause: Duration,
    ) -> Self {
        Self {
            sessions: Sessions::new(place, timeout),
            timeout,
            patience,
            longest_pause,
            paused: Mutex::default(),
        }
    }

    /// `None`: the configuration was not read yet.
    pub fn target(&self) -> Option<&Target> {
        self.sessions.target()
    }

    /// Reads the configuration, unless that is done.
    pub async fn find_target(&self) -> Result<&Target, BackendError> {
        if self.target().is_none() {
            self.session(self.timeout).await?;
        }
        Ok(self.target().expect("known with the first session"))
    }

    /// Asks for an answer as a whole.
    pub async fn ask(&self, asked: &Asked<'_>) -> Result<Answer, BackendError> {
        match self.try_until_timeout(asked, false).await? {
            Reply::Answer(answer) => Ok(answer),
            Reply::Stream(_) => unreachable!("not asked for"),
        }
    }

    /// Asks for an answer that goes on for as long as the connection does: `Ok` if it begins.
    pub async fn stream(&self, asked: &Asked<'_>) -> Result<Result<Body, Answer>, BackendError> {
        Ok(match self.try_until_timeout(asked, true).await? {
            Reply::Stream(body) => Ok(body),
            Reply::Answer(answer) => Err(answer),
        })
    }

    async fn try_until_timeout(
        &self,
        asked: &Asked<'_>,
        stream: bool,
    ) -> Result<Reply, BackendError> {
        let mut maybe_done = false;
        let tried = self.try_again(asked, stream, &mut maybe_done).await;
        let asked_before = asked.writes && maybe_done;
        match tried {
            Ok(Reply::Answer(answer)) => Ok(Reply::Answer(Answer {
                asked_before,
                ..answer
            })),
            Ok(reply) => Ok(reply),
            Err(error) => Err(error.doubted(asked_before)),
        }
    }

    /// `maybe_done`: whether, beside the try whose end is returned, another one may have been done.
    async fn try_again(
        &self,
        asked: &Asked<'_>,
        stream: bool,
        maybe_done: &mut bool,
    ) -> Result<Reply, BackendError> {
        let began = Instant::now();
        let left = || self.timeout.saturating_sub(began.elapsed());
        let (mut reconnected, mut signed_in) = (false, false);
        loop {
            self.wait_for_permission(asked.right, &left).await?;
            let session = self.session(left()).await?;
            let sent = self.send(&session, asked, stream, reconnected, left() / 2, maybe_done);
            let Ok(sent) = timeout(left(), sent).await else {
                let message = format!("no answer within {} ms", self.timeout.as_millis());
                return Err(ambiguous_if_writing(asked, "timeout", message));
            };
            match sent {
                Ok(Reply::Answer(answer)) if answer.status == 401 && !signed_in => {
                    signed_in = true;
                    self.sessions.forget(&session);
                }
                Ok(Reply::Answer(answer)) if answer.wants_a_pause() => {
                    self.pause(asked.right, answer.retry_after.unwrap_or(UNSAID_PAUSE));
                    if !answer.is_undone() {
                        if !asked.repeatable {
                            return Ok(Reply::Answer(answer));
                        }
                        *maybe_done = true;
                    }
                }
                Ok(reply) => return Ok(reply),
                Err(broken) => {
                    *maybe_done |= !broken.unsent;
                    if broken.distrust {
                        self.sessions.forget(&session);
                    }
                    let may_repeat = broken.unsent || asked.repeatable;
                    let may_help = broken.distrust || !broken.unreachable;
                    if reconnected || !may_repeat || !may_help {
                        return Err(BackendError::transient("unreachable", broken.message));
                    }
                    reconnected = true;
                }
            }
        }
    }

    /// A connection whose other end has gone looks like a slow server. So what has no answer after a part of
    /// its time is sent once more, on a connection of its own, and whichever is answered first counts.
    async fn send(
        &self,
        session: &Session,
        asked: &Asked<'_>,
        stream: bool,
        afresh: bool,
        longest_patience: Duration,
        maybe_done: &mut bool,
    ) -> Result<Reply, Broken> {
        let mut first = pin!(send(session, asked, stream, afresh));
        if !asked.repeatable {
            return first.await;
        }
        let patience = self.patience.min(longest_patience);
        if let Ok(answered) = timeout(patience, &mut first).await {
            return answered;
        }
        if self.sessions.are_closed() {
            return first.await;
        }
        *maybe_done = true;
        let second = pin!(send(session, asked, stream, true));
        match select(first, second).await {
            Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    async fn session(&self, left: Duration) -> Result<Arc<Session>, BackendError> {
        let session = timeout(left, self.sessions.current()).await;
        session.unwrap_or_else(|_| {
            let limit = self.timeout.as_millis();
            Err(BackendError::transient(
                "timeout",
                format!("the credentials for the API server are not there after {limit} ms: a credential plugin, or a disk, takes its time"),
            ))
        })
    }

    /// The server's wish to be left alone is respected, unless the asker's time would end meanwhile.
    async fn wait_for_permission(
        &self,
        right: Right,
        left: &impl Fn() -> Duration,
    ) -> Result<(), BackendError> {
        loop {
            let until = locked(&self.paused).get(&right).copied();
            let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
            match wait {
                None | Some(Duration::ZERO) => return Ok(()),
                Some(wait) if wait < left() => tokio::time::sleep(wait).await,
                Some(wait) => {
                    let ms = wait.as_millis();
                    return Err(BackendError::transient(
                        "overloaded",
                        format!("the API server asked to be left alone for {ms} ms more"),
                    ));
                }
            }
        }
    }

    fn pause(&self, right: Right, wanted: Duration) {
        let until = Instant::now() + wanted.max(SHORTEST_PAUSE).min(self.longest_pause);
        let mut pauses = locked(&self.paused);
        let known = pauses.entry(right).or_insert(until);
        *known = until.max(*known);
    }

    /// Nothing is sent any more.
    pub fn close(&self) {
        self.sessions.close();
    }
}

enum Reply {
    Answer(Answer),
    Stream(Body),
}

/// `stream`: the body of a good answer goes on.
async fn send(
    session: &Session,
    asked: &Asked<'_>,
    stream: bool,
    afresh: bool,
) -> Result<Reply, Broken> {
    let body = asked.body.map(Value::to_string).unwrap_or_default();
    let mut request = Request::builder()
        .method(asked.method.clone())
        .uri(&asked.path)
        .header(CONTENT_TYPE, asked.content_type);
    if let Some(token) = session.token().await {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request.body(body.into());
    let request = request.map_err(|error| Broken {
        unsent: true,
        ..Broken::halfway(format!("{} cannot be asked for: {error}", asked.path))
    })?;
    let mut taken = session.connections.take(afresh);
    let response = taken.send(request).await;
    let response = response.map_err(|error| broken(&error))?;
    let status = response.status();
    if stream && status == StatusCode::OK {
        taken.answered = true;
        return Ok(Reply::Stream(response.into_body()));
    }
    let retry_after = pause_of(response.headers());
    let bytes = Limited::new(response.into_body(), LONGEST_ANSWER)
        .collect()
        .await
        .map_err(|error| Broken::halfway(format!("the answer broke off: {}", chain(&*error))))?
        .to_bytes();
    taken.answered = true;
    let body = serde_json::from_slice(&bytes).ok();
    if status.is_success() && body.is_none() {
        return Err(Broken::halfway(format!(
            "the answer {status} holds no JSON"
        )));
    }
    let text = match body {
        Some(_) => String::new(),
        None => String::from_utf8_lossy(&bytes).into_owned(),
    };
    Ok(Reply::Answer(Answer {
        status: status.as_u16(),
        body: body.unwrap_or(Value::Null),
        text,
        retry_after,
        asked_before: false,
    }))
}

fn broken(client: &hyper_util::client::legacy::Error) -> Broken {
    // The client's own words say less than the cause.
    let why = client.source().map_or_else(|| client.to_string(), chain);
    // A connection that had ended before the request was on it.
    let cause = client.source().and_then(<dyn Error>::downcast_ref);
    let is_stale = cause.is_some_and(hyper::Error::is_canceled);
    let mut broken = Broken {
        unsent: client.is_connect() || is_stale,
        unreachable: client.is_connect(),
        ..Broken::halfway(if client.is_connect() {
            format!("the API server cannot be reached: {why}")
        } else {
            format!("the connection to the API server broke: {why}")
        })
    };
    let mut next = client.source();
    while let Some(error) = next {
        broken.distrust |= is_distrust(error);
        next = error.source();
    }
    broken
}

fn is_distrust(error: &(dyn Error + 'static)) -> bool {
    if let Some(wrapped) = error.downcast_ref::<std::io::Error>() {
        return wrapped.get_ref().is_some_and(|inner| is_distrust(inner));
    }
    matches!(
        error.downcast_ref::<rustls::Error>(),
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
    )
}

/// A number of seconds. (A date would be the server's clock, which is not ours.)
fn pause_of(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = value.parse().ok().map(Duration::from_secs);
    Some(seconds.unwrap_or(UNSAID_PAUSE))
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("target", &self.target())
            .finish_non_exhaustive()
    }
}
