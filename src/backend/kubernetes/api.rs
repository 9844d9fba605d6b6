//! One request to the API server, within a time of its own.
//!
//! The client's hidden retries are off. What is tried again, here and nowhere else, within the same time:
//! a connection that broke, once; credentials that were refused, once and after reading them anew; and
//! what the server put off (429) for a time that still fits.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::{AuthError, Body, ClientBuilder};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::access::{Access, Place, SERVICE_ACCOUNT, Surroundings};
use super::failure::{Right, excerpt, unless_read};
use crate::backend::{BackendError, UNSUITABLE};

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
}

pub(super) struct Answer {
    pub status: u16,
    pub body: Value,
    /// What came, if it was not JSON.
    text: String,
    retry_after: Option<Duration>,
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
        self.status == 429 || (self.status == 503 && self.retry_after.is_some())
    }
}

/// The way to one API server.
pub(super) struct Api {
    place: Place,
    /// How long one operation may take, with all that is tried again.
    timeout: Duration,
    /// The longest that the server may ask to be left alone.
    longest_pause: Duration,
    slot: tokio::sync::Mutex<Slot>,
    target: OnceLock<Target>,
    /// The server asked to be left alone until then.
    paused: Mutex<Option<Instant>>,
    /// What a token's file held last: files may vanish after the start.
    last_token: Mutex<Option<HeaderValue>>,
}

/// What is known once the configuration was read.
#[derive(Debug)]
pub(super) struct Target {
    pub namespace: String,
    /// The server, for people.
    pub server: String,
}

#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    /// Reading credentials may take its time: a plugin is asked. It is not given up with its attempt.
    Opening(JoinHandle<Result<Session, BackendError>>),
    Open(Arc<Session>),
}

pub(super) struct Session {
    client: kube::Client,
    access: Access,
}

/// Why there is no answer.
struct Broken {
    /// Nothing was sent.
    unsent: bool,
    /// The two sides do not trust each other, perhaps no longer.
    distrust: bool,
    message: String,
}

impl Broken {
    /// It may have been done.
    fn halfway(message: String) -> Self {
        Self {
            unsent: false,
            distrust: false,
            message,
        }
    }
}

impl Api {
    pub fn new(place: Place, timeout: Duration, longest_pause: Duration) -> Self {
        Self {
            place,
            timeout,
            longest_pause,
            slot: tokio::sync::Mutex::default(),
            target: OnceLock::new(),
            paused: Mutex::default(),
            last_token: Mutex::default(),
        }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// `None`: the configuration could not be read yet.
    pub fn target(&self) -> Option<&Target> {
        self.target.get()
    }

    /// Reads the configuration, unless that is done.
    pub async fn find_target(&self) -> Result<&Target, BackendError> {
        self.session().await?;
        Ok(self.target.get().expect("known with the first session"))
    }

    /// Asks for an answer as a whole.
    pub async fn ask(&self, asked: &Asked<'_>) -> Result<Answer, BackendError> {
        match self.try_until_timeout(asked, false).await? {
            Reply::Answer(answer) => Ok(answer),
            Reply::Stream(_) => unreachable!("not asked for"),
        }
    }

    /// Asks for an answer that goes on for as long as the connection does: `Ok` if it begins.
    pub async fn open(&self, asked: &Asked<'_>) -> Result<Result<Body, Answer>, BackendError> {
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
        let began = Instant::now();
        let left = || self.timeout.saturating_sub(began.elapsed());
        let (mut reconnected, mut signed_in) = (false, false);
        loop {
            self.wait_for_permission(left()).await?;
            let once = async {
                let session = self.session().await?;
                let sent = send(&session, asked, self.token(&session), stream).await;
                Ok((session, sent))
            };
            let Ok(tried) = timeout(left(), once).await else {
                let limit = self.timeout.as_millis();
                let message = format!("no answer within {limit} ms");
                return Err(unless_read(asked, "timeout", message));
            };
            let (session, sent) = tried?;
            match sent {
                Ok(Reply::Answer(answer)) if answer.status == 401 && !signed_in => {
                    signed_in = true;
                    self.forget(&session).await;
                }
                Ok(Reply::Answer(answer)) if answer.wants_a_pause() => {
                    self.pause(answer.retry_after.unwrap_or(UNSAID_PAUSE));
                }
                Ok(reply) => return Ok(reply),
                Err(broken) => {
                    if broken.distrust {
                        self.forget(&session).await;
                    }
                    if reconnected || (broken.unsent && !broken.distrust) {
                        return Err(if broken.unsent {
                            BackendError::transient("unreachable", broken.message)
                        } else {
                            unless_read(asked, "unreachable", broken.message)
                        });
                    }
                    reconnected = true;
                }
            }
        }
    }

    fn token(&self, session: &Session) -> Option<HeaderValue> {
        let file = session.access.token_file.as_ref()?;
        let mut last = self
            .last_token
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Ok(text) = std::fs::read_to_string(file)
            && let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", text.trim()))
        {
            value.set_sensitive(true);
            *last = Some(value);
        }
        last.clone()
    }

    /// The server's wish to be left alone is respected, unless the asker's time would end meanwhile.
    async fn wait_for_permission(&self, left: Duration) -> Result<(), BackendError> {
        let until = *self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
        match wait {
            None | Some(Duration::ZERO) => Ok(()),
            Some(wait) if wait < left => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Some(wait) => Err(BackendError::transient(
                "overloaded",
                format!(
                    "the API server asked to be left alone for {} ms more",
                    wait.as_millis()
                ),
            )),
        }
    }

    fn pause(&self, wanted: Duration) {
        let until = Instant::now() + wanted.max(SHORTEST_PAUSE).min(self.longest_pause);
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        *paused = Some(paused.map_or(until, |known| known.max(until)));
    }

    /// One session for all; the next is opened when this one was forgotten.
    async fn session(&self) -> Result<Arc<Session>, BackendError> {
        let mut slot = self.slot.lock().await;
        if let Slot::Open(session) = &*slot {
            return Ok(Arc::clone(session));
        }
        if let Slot::Empty = *slot {
            let place = self.place.clone();
            let limit = self.timeout;
            *slot = Slot::Opening(tokio::task::spawn_blocking(move || open(&place, limit)));
        }
        let Slot::Opening(opening) = &mut *slot else {
            unreachable!("neither open nor empty");
        };
        let opened = opening.await;
        *slot = Slot::Empty;
        let session = opened.map_err(|_| {
            BackendError::fatal(
                "refused",
                "reading the credentials failed in an unknown way",
            )
        })??;
        let target = Target {
            namespace: session.access.namespace.clone(),
            server: shown(&session.access.config.cluster_url),
        };
        self.target.get_or_init(|| target);
        let session = Arc::new(session);
        *slot = Slot::Open(Arc::clone(&session));
        Ok(session)
    }

    /// The configuration and the credentials are read anew for the next request.
    async fn forget(&self, session: &Arc<Session>) {
        let mut slot = self.slot.lock().await;
        if matches!(&*slot, Slot::Open(open) if Arc::ptr_eq(open, session)) {
            *slot = Slot::Empty;
        }
    }

    /// Ends its connections as soon as nobody uses them any more.
    pub async fn close(&self) {
        *self.slot.lock().await = Slot::Empty;
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
    token: Option<HeaderValue>,
    stream: bool,
) -> Result<Reply, Broken> {
    let body = asked.body.map(Value::to_string).unwrap_or_default();
    let mut request = Request::builder()
        .method(asked.method.clone())
        .uri(&asked.path)
        .header(CONTENT_TYPE, asked.content_type);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request.body(Body::from(body.into_bytes()));
    let request = request.expect("a path and headers of ours");
    let response = session.client.send(request).await;
    let response = response.map_err(|error| broken(&error))?;
    let status = response.status();
    if stream && status == StatusCode::OK {
        return Ok(Reply::Stream(response.into_body()));
    }
    let retry_after = pause_of(response.headers());
    let bytes = Limited::new(response.into_body(), LONGEST_ANSWER)
        .collect()
        .await
        .map_err(|error| Broken::halfway(format!("the answer broke off: {}", chain(&*error))))?
        .to_bytes();
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
    }))
}

fn open(place: &Place, limit: Duration) -> Result<Session, BackendError> {
    let around = Surroundings {
        env: &|name| std::env::var(name).ok(),
        service_account: Path::new(SERVICE_ACCOUNT),
        home: std::env::home_dir(),
    };
    let access = place
        .resolve(&around)
        .map_err(|why| BackendError::fatal(UNSUITABLE, why))?;
    let mut config = access.config.clone();
    config.default_retry = false;
    config.connect_timeout = Some(limit);
    config.read_timeout = None;
    config.write_timeout = Some(limit);
    let client = ClientBuilder::try_from(config)
        .map_err(|error| match &error {
            kube::Error::Auth(_) => BackendError::transient("refused", broken(&error).message),
            _ => BackendError::fatal(UNSUITABLE, chain(&error)),
        })?
        .build();
    Ok(Session { client, access })
}

fn broken(error: &kube::Error) -> Broken {
    let mut broken = Broken::halfway(chain(error));
    broken.unsent = matches!(error, kube::Error::Auth(_));
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        next = error.source();
        if let Some(client) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            // The client's own words say less than the cause.
            let why = next.map_or_else(|| client.to_string(), chain);
            broken.unsent |= client.is_connect();
            broken.message = if client.is_connect() {
                format!("the API server cannot be reached: {why}")
            } else {
                format!("the connection to the API server broke: {why}")
            };
        }
        if let Some(auth) = error.downcast_ref::<AuthError>() {
            broken.unsent = true;
            broken.message = match auth {
                // A plugin's output may hold a token: only its complaint is shown.
                AuthError::AuthExecRun { cmd, out } => format!(
                    "the credential plugin {cmd} failed ({}): {}",
                    out.status,
                    excerpt(&String::from_utf8_lossy(&out.stderr))
                ),
                other => chain(other),
            };
        }
    }
    broken.distrust = broken.message.contains("certificate");
    broken
}

/// An error and its causes, without what they repeat.
fn chain(error: &dyn Error) -> String {
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

/// A number of seconds. (A date would be the server's clock, which is not ours.)
fn pause_of(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = value.parse().ok().map(Duration::from_secs);
    Some(seconds.unwrap_or(UNSAID_PAUSE))
}

/// Without anything that may be a password.
fn shown(url: &http::Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("https");
    let host = url.host().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}
