//! Requests to Consul's key-value store. Knows keys and their indexes, and nothing of elections.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};

use super::address::Address;
use super::failure;
use crate::backend::http::{Answer, Asked, Http};
use crate::backend::{BackendError, BadStore, StoreOptions, UNSUITABLE};

/// No key ever has this index, so a write on its condition is refused.
const NEVER: u64 = 9_223_372_036_854_775_807;
/// A longer wait is another request. Consul adds a sixteenth to it.
const WAIT: Duration = Duration::from_secs(20);
/// How long the answer to it is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const TOKEN: &str = "x-consul-token";
const INDEX: &str = "x-consul-index";

pub(super) struct Agent {
    pub address: Address,
    http: Http,
    /// For answers that take their time.
    waiting: Http,
    /// There was an answer at some time, so the URL is right.
    reached: AtomicBool,
}

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub value: Vec<u8>,
    /// Of its last change. Grows with every write to anything.
    pub index: u64,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// Under that index.
    At(u64),
    /// The key was not as it was expected to be.
    Changed,
}

impl Agent {
    pub fn new(address: Address, options: &StoreOptions) -> Result<Self, BadStore> {
        let http = |options: &StoreOptions| {
            let tls = address.tls.clone();
            Http::new(&address.hosts, address.default_port, tls, options)
        };
        let mut patient = options.clone();
        patient.request_timeout = PATIENCE;
        Ok(Self {
            http: http(options)?,
            waiting: http(&patient)?,
            address,
            reached: AtomicBool::new(false),
        })
    }

    /// Makes sure that this token may read and write a key, and that conditions are honoured. Leaves nothing.
    pub async fn rehearse(&self, key: &str) -> Result<(), BackendError> {
        self.get(key).await?;
        // On a condition that is never met: it shows the right and the honouring, and writes nothing.
        match self.put(key, NEVER, b"").await? {
            Put::Changed => Ok(()),
            Put::At(_) => Err(BackendError::fatal(
                UNSUITABLE,
                format!(
                    "{} takes writes whatever their condition is, so it can hold no lease",
                    self.address.shown
                ),
            )),
        }
    }

    /// As most servers have it now. `None`: there is nothing.
    pub async fn get(&self, key: &str) -> Result<Option<Stored>, BackendError> {
        let path = self.path(key, "consistent");
        let asked = self.asked(Method::GET, &path, Vec::new()).await?;
        let answer = self.ask(&self.http, &asked, false).await?;
        self.kept_in(&answer)
    }

    /// As soon as something has changed since that index, or after some time all the same.
    pub async fn get_after(
        &self,
        key: &str,
        index: u64,
    ) -> Result<(Option<Stored>, u64), BackendError> {
        let wait = WAIT.as_secs();
        let path = self.path(key, &format!("index={index}&wait={wait}s"));
        let mut asked = self.asked(Method::GET, &path, Vec::new()).await?;
        asked.repeatable = false;
        let answer = self.ask(&self.waiting, &asked, false).await?;
        let kept = self.kept_in(&answer)?;
        let index = answer
            .headers
            .get(INDEX)
            .and_then(|index| index.to_str().ok());
        let index = index.and_then(|index| index.parse().ok());
        index
            .map(|index| (kept, index))
            .ok_or_else(|| self.nonsense(&answer, false))
    }

    /// Writes if the key's index still is `over` (0: there is no such key).
    pub async fn put(&self, key: &str, over: u64, value: &[u8]) -> Result<Put, BackendError> {
        let operation = json!([{ "KV": {
            "Verb": "cas",
            "Key": key,
            "Value": BASE64.encode(value),
            "Index": over,
        } }]);
        let mut path = "/v1/txn".to_owned();
        if let Some(datacenter) = &self.address.datacenter {
            path = format!("{path}?dc={datacenter}");
        }
        let asked = self
            .asked(Method::PUT, &path, operation.to_string().into_bytes())
            .await?;
        let answer = self.ask(&self.http, &asked, true).await?;
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        match answer.status {
            200 => match body["Results"][0]["KV"]["ModifyIndex"].as_u64() {
                Some(index @ 1..) => Ok(Put::At(index)),
                _ => Err(self.nonsense(&answer, true)),
            },
            409 => {
                let what = body["Errors"][0]["What"].as_str().unwrap_or_default();
                if what.contains("index is stale") {
                    Ok(Put::Changed)
                } else {
                    Err(failure::meaning(&self.address, &answer, true))
                }
            }
            _ => Err(failure::meaning(&self.address, &answer, true)),
        }
    }

    pub fn hang_up(&self) {
        self.http.hang_up();
        self.waiting.hang_up();
    }

    fn path(&self, key: &str, question: &str) -> String {
        // The key has nothing else that would have to be encoded.
        let key = key.replace('%', "%25");
        let datacenter = match &self.address.datacenter {
            Some(name) => format!("&dc={name}"),
            None => String::new(),
        };
        format!("/v1/kv/{key}?{question}{datacenter}")
    }

    async fn asked<'a>(
        &self,
        method: Method,
        path: &'a str,
        body: Vec<u8>,
    ) -> Result<Asked<'a>, BackendError> {
        let mut headers = HeaderMap::new();
        let token = self.address.token().await;
        let token = token.map_err(|why| {
            BackendError::fatal("refused", format!("{}: {why}", self.address.shown))
        })?;
        let token = token.and_then(|token| HeaderValue::try_from(token).ok());
        if let Some(mut token) = token {
            token.set_sensitive(true);
            headers.insert(TOKEN, token);
        }
        Ok(Asked {
            method,
            path,
            headers,
            body,
            // A read, or a write that does not meet its condition when it has been done.
            repeatable: true,
        })
    }

    async fn ask(
        &self,
        http: &Http,
        asked: &Asked<'_>,
        writes: bool,
    ) -> Result<Answer, BackendError> {
        let answer = http.ask(asked, failure::may_be_better_elsewhere).await;
        let answer = answer.map_err(|broken| {
            let reached = self.reached.load(Ordering::Relaxed);
            failure::no_answer(&self.address, &broken, writes, reached)
        })?;
        self.reached.store(true, Ordering::Relaxed);
        Ok(answer)
    }

    fn kept_in(&self, answer: &Answer) -> Result<Option<Stored>, BackendError> {
        // A proxy's, or that of something that is no Consul, has no index.
        let is_consuls = answer.headers.contains_key(INDEX);
        match answer.status {
            404 if is_consuls => return Ok(None),
            200 => {}
            _ => return Err(failure::meaning(&self.address, answer, false)),
        }
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let entry = &body[0];
        let value = match &entry["Value"] {
            Value::Null => Some(Vec::new()),
            value => value.as_str().and_then(|text| BASE64.decode(text).ok()),
        };
        match (value, entry["ModifyIndex"].as_u64()) {
            (Some(value), Some(index)) => Ok(Some(Stored { value, index })),
            _ => Err(self.nonsense(answer, false)),
        }
    }

    fn nonsense(&self, answer: &Answer, writes: bool) -> BackendError {
        let said = crate::backend::http::excerpt(&String::from_utf8_lossy(&answer.body));
        let message = format!(
            "{} answered something that Consul does not say: {said}",
            self.address.shown
        );
        if writes {
            BackendError::ambiguous("store", message)
        } else {
            BackendError::transient("store", message)
        }
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Agent").field(&self.address.shown).finish()
    }
}
