//! Requests of etcd's JSON gateway, and its users' tokens. Knows keys and leases, and nothing of elections.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};

use super::address::{Address, DEFAULT_PORT, Keys, Login};
use super::failure::{self, LEASE_EXISTS, LEASE_GONE};
use crate::backend::http::{Answer, Asked, Broken, Http, Lines};
use crate::backend::{BackendError, BadStore, StoreOptions};
use crate::locked::locked;

/// A member that has lost the others says so, instead of showing what it last knew.
const HAS_LEADER: &str = "grpc-metadata-hasleader";

pub(super) struct Gateway {
    pub address: Address,
    http: Http,
    pass: Mutex<Pass>,
    /// One signs in, the others wait for it: etcd takes its time for passwords, on purpose.
    signing_in: tokio::sync::Mutex<()>,
    /// There was an answer at some time, so the URL is right.
    reached: AtomicBool,
}

/// What a request must show.
#[derive(Clone, PartialEq)]
enum Pass {
    /// To be asked for.
    Unknown,
    /// etcd's users are off, or the URL names none.
    Nothing,
    Token(Arc<str>),
}

/// A key and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub value: Vec<u8>,
    /// Zero: none, it stays for ever.
    pub lease: i64,
    /// Of its last change.
    pub revision: i64,
}

/// Both keys of an election at one moment, confirmed by most members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub lease: Option<Entry>,
    pub token: Option<Entry>,
}

/// One key, and the term of the leader among the members that confirmed it, or a later one.
pub(super) struct SeenKey {
    pub entry: Option<Entry>,
    pub raft_term: u64,
}

/// What came of keeping a lease alive.
pub(super) struct KeptAlive {
    /// `None`: there is no such lease any more.
    pub seconds: Option<u64>,
    /// The term of the leader among the members that did it, or an earlier one.
    pub raft_term: u64,
}

/// On what condition a key is deleted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    HangsOn(i64),
    UnchangedSince(i64),
}

/// What came of deleting a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deletion {
    Done,
    /// The condition does not hold. `asked_before`: perhaps because the request was sent twice, and its first
    /// copy deleted the key.
    Refused {
        asked_before: bool,
    },
}

/// The last token, as it is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastToken {
    pub number: u64,
    /// What it hangs on. Zero: nothing, it stays for ever.
    pub lease: i64,
}

impl Gateway {
    pub fn new(address: Address, options: &StoreOptions) -> Result<Self, BadStore> {
        let tls = address.tls.clone();
        Ok(Self {
            http: Http::new(&address.hosts, DEFAULT_PORT, tls, options)?,
            pass: Mutex::new(match address.login {
                Some(_) => Pass::Unknown,
                None => Pass::Nothing,
            }),
            address,
            signing_in: tokio::sync::Mutex::default(),
            reached: AtomicBool::new(false),
        })
    }

    /// Reads both keys at one moment.
    pub async fn read(&self, keys: &Keys) -> Result<Seen, BackendError> {
        let asked = json!({ "success": both(keys) });
        let (answer, _) = self.call("/v3/kv/txn", &asked, false).await?;
        seen_in(&answer).map_err(|Nonsense| self.nonsense(&answer))
    }

    pub async fn read_key(&self, key: &str) -> Result<SeenKey, BackendError> {
        let asked = json!({ "key": BASE64.encode(key) });
        let (answer, _) = self.call("/v3/kv/range", &asked, false).await?;
        match (entry_of(&answer), raft_term(&answer)) {
            (Ok(entry), Some(raft_term)) => Ok(SeenKey { entry, raft_term }),
            _ => Err(self.nonsense(&answer)),
        }
    }

    /// Writes both keys if they are as they were seen. `Some`: they are not, but so.
    pub async fn write(
        &self,
        keys: &Keys,
        seen: &Seen,
        lease_id: i64,
        record: &str,
        token: Option<LastToken>,
    ) -> Result<Option<Seen>, BackendError> {
        let mut puts = vec![json!({ "request_put": {
            "key": BASE64.encode(&keys.lease),
            "value": BASE64.encode(record),
            "lease": lease_id.to_string(),
        }})];
        if let Some(token) = token {
            puts.push(json!({ "request_put": {
                "key": BASE64.encode(&keys.token),
                "value": BASE64.encode(token.number.to_string()),
                "lease": token.lease.to_string(),
            }}));
        }
        let asked = json!({
            "compare": [unchanged(&keys.lease, revision(seen.lease.as_ref())),
                        unchanged(&keys.token, revision(seen.token.as_ref()))],
            "success": puts,
            "failure": both(keys),
        });
        let (answer, _) = self.call("/v3/kv/txn", &asked, true).await?;
        if answer["succeeded"] == true {
            return Ok(None);
        }
        let met = seen_in(&answer).map_err(|Nonsense| self.nonsense(&answer))?;
        Ok(Some(met))
    }

    pub async fn delete(&self, key: &str, condition: Condition) -> Result<Deletion, BackendError> {
        let compare = match condition {
            Condition::UnchangedSince(revision) => unchanged(key, revision),
            Condition::HangsOn(lease) => json!({
                "key": BASE64.encode(key), "target": "LEASE", "result": "EQUAL", "lease": lease.to_string(),
            }),
        };
        let asked = json!({
            "compare": [compare],
            "success": [{ "request_delete_range": { "key": BASE64.encode(key) } }],
        });
        let (answer, asked_before) = self.call("/v3/kv/txn", &asked, true).await?;
        Ok(if answer["succeeded"] == true {
            Deletion::Done
        } else {
            Deletion::Refused { asked_before }
        })
    }

    /// Makes a lease of that number. The answer says for how many seconds. `None`: there is one already.
    pub async fn grant(&self, id: i64, seconds: u64) -> Result<Option<u64>, BackendError> {
        let asked = json!({ "ID": id.to_string(), "TTL": seconds.to_string() });
        match self.call("/v3/lease/grant", &asked, true).await {
            Ok((answer, _)) => match number(&answer["TTL"]) {
                Some(granted @ 1..) => Ok(u64::try_from(granted).ok()),
                _ => Err(self.nonsense(&answer)),
            },
            Err(error) if error.code == LEASE_EXISTS => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn keep_alive(&self, id: i64) -> Result<KeptAlive, BackendError> {
        let asked = json!({ "ID": id.to_string() });
        let (answer, _) = self.call("/v3/lease/keepalive", &asked, true).await?;
        let result = &answer["result"];
        match (number(&result["TTL"]), raft_term(result)) {
            (Some(seconds), Some(raft_term)) => Ok(KeptAlive {
                seconds: u64::try_from(seconds).ok().filter(|seconds| *seconds > 0),
                raft_term,
            }),
            _ => Err(self.nonsense(&answer)),
        }
    }

    /// For how many whole seconds a lease runs on. `None`: there is no such lease, or it is ending.
    pub async fn time_left(&self, id: i64) -> Result<Option<u64>, BackendError> {
        let asked = json!({ "ID": id.to_string() });
        let (answer, _) = self.call("/v3/lease/timetolive", &asked, false).await?;
        match number(&answer["TTL"]) {
            Some(seconds) if raft_term(&answer).is_some() => Ok(u64::try_from(seconds).ok()),
            _ => Err(self.nonsense(&answer)),
        }
    }

    /// Ends a lease, and all keys that hang on it. `false`: there is none.
    pub async fn revoke(&self, id: i64) -> Result<bool, BackendError> {
        let asked = json!({ "ID": id.to_string() });
        match self.call("/v3/lease/revoke", &asked, true).await {
            Err(error) if error.code == LEASE_GONE => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// Which etcd answers, if one does.
    pub async fn version(&self) -> Option<String> {
        let asked = Asked {
            method: Method::GET,
            path: "/version",
            headers: HeaderMap::new(),
            body: Vec::new(),
            repeatable: true,
        };
        let answer = self.http.ask(&asked, |_| false).await.ok()?;
        let answer: Value = serde_json::from_slice(&answer.body).ok()?;
        answer["etcdserver"].as_str().map(str::to_owned)
    }

    /// Listens to keys: number and key, and the revision to begin with, or from now on.
    pub async fn watch(&self, keys: &[(usize, &str, Option<i64>)]) -> Result<Lines, BackendError> {
        let mut body = String::new();
        for (number, key, from) in keys {
            let mut asked = json!({ "key": BASE64.encode(key), "watch_id": number.to_string() });
            if let Some(revision) = from {
                asked["start_revision"] = revision.to_string().into();
            }
            body.push_str(&json!({ "create_request": asked }).to_string());
        }
        let mut signed_in = false;
        loop {
            let pass = self.pass().await?;
            let opened = self
                .http
                .open(&asked("/v3/watch", body.clone(), &pass), elsewhere)
                .await;
            match opened.map_err(|broken| self.no_answer(&broken, false))? {
                Ok(lines) => {
                    self.reached.store(true, Ordering::Relaxed);
                    return Ok(lines);
                }
                Err(answer) if !signed_in && self.is_pass_trouble(&answer, &pass) => {
                    signed_in = true;
                    self.forget_pass(&pass);
                }
                Err(answer) => return Err(self.refusal(&answer, false)),
            }
        }
    }

    /// A watch is refused in the same words whether the user lacks the right or the token was forgotten. `false`:
    /// there is no token that could have been.
    pub fn sign_in_anew(&self) -> bool {
        let has_user = self.address.login.is_some();
        if has_user {
            *self.locked_pass() = Pass::Unknown;
        }
        has_user
    }

    pub fn hang_up(&self) {
        self.http.hang_up();
    }

    /// What a message in the middle of a stream means.
    pub fn meaning_of(&self, said: &str) -> BackendError {
        failure::meaning(&self.address, 200, said, false)
    }

    pub fn stream_broke(&self, broken: &Broken) -> BackendError {
        self.no_answer(broken, false)
    }

    pub fn silence(&self) -> BackendError {
        BackendError::transient(
            "timeout",
            format!("{} did not answer in time", self.address.shown),
        )
    }

    /// And whether etcd may have been asked before, by a copy that was not answered.
    async fn call(
        &self,
        path: &str,
        body: &Value,
        writes: bool,
    ) -> Result<(Value, bool), BackendError> {
        let body = body.to_string();
        let mut signed_in = false;
        loop {
            let pass = self.pass().await?;
            let answer = self.ask(path, body.clone(), &pass, writes).await?;
            if !signed_in && self.is_pass_trouble(&answer, &pass) {
                signed_in = true;
                self.forget_pass(&pass);
                continue;
            }
            return Ok((self.good(&answer, writes)?, answer.asked_before));
        }
    }

    async fn ask(
        &self,
        path: &str,
        body: String,
        pass: &Pass,
        writes: bool,
    ) -> Result<Answer, BackendError> {
        let answer = self.http.ask(&asked(path, body, pass), elsewhere).await;
        let answer = answer.map_err(|broken| self.no_answer(&broken, writes))?;
        self.reached.store(true, Ordering::Relaxed);
        Ok(answer)
    }

    fn good(&self, answer: &Answer, writes: bool) -> Result<Value, BackendError> {
        if answer.status != 200 {
            return Err(self.refusal(answer, writes));
        }
        match serde_json::from_slice::<Value>(&answer.body) {
            Ok(value) if value["error"].is_null() => Ok(value),
            _ => Err(self.refusal(answer, writes)),
        }
    }

    // ---- users ----

    async fn pass(&self) -> Result<Pass, BackendError> {
        let known = || Some(self.locked_pass().clone()).filter(|pass| *pass != Pass::Unknown);
        if let Some(pass) = known() {
            return Ok(pass);
        }
        let _only_one = self.signing_in.lock().await;
        if let Some(pass) = known() {
            return Ok(pass);
        }
        let pass = match &self.address.login {
            Some(login) => self.sign_in(login).await?,
            None => Pass::Nothing,
        };
        *self.locked_pass() = pass.clone();
        Ok(pass)
    }

    async fn sign_in(&self, login: &Login) -> Result<Pass, BackendError> {
        let body = json!({ "name": login.user, "password": login.password }).to_string();
        let answer = self
            .ask("/v3/auth/authenticate", body, &Pass::Nothing, false)
            .await?;
        match self.good(&answer, false) {
            Ok(value) => match value["token"].as_str() {
                Some(token) if HeaderValue::from_str(token).is_ok() => {
                    Ok(Pass::Token(token.into()))
                }
                // Not repeated: it may hold a token.
                _ => Err(BackendError::transient(
                    "store",
                    format!("{} gave no token for the password", self.address.shown),
                )),
            },
            Err(error) if error.code == failure::NO_USERS => {
                tracing::warn!(
                    store = %self.address.shown,
                    "this etcd has no users (etcdctl auth enable), so it does not ask who this is"
                );
                Ok(Pass::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the answer may be another one if we sign in anew.
    fn is_pass_trouble(&self, answer: &Answer, pass: &Pass) -> bool {
        let shown = matches!(pass, Pass::Token(_));
        answer.status != 200
            && self.address.login.is_some()
            && match failure::pass_trouble(&said(answer)) {
                Some(failure::PassTrouble::Stale) => shown,
                Some(failure::PassTrouble::Missing) => !shown,
                None => false,
            }
    }

    /// Unless somebody has got another one meanwhile.
    fn forget_pass(&self, used: &Pass) {
        let mut pass = self.locked_pass();
        if *pass == *used {
            *pass = Pass::Unknown;
        }
    }

    fn locked_pass(&self) -> MutexGuard<'_, Pass> {
        locked(&self.pass)
    }

    // ---- failures ----

    fn refusal(&self, answer: &Answer, writes: bool) -> BackendError {
        let error = failure::meaning(&self.address, answer.status, &said(answer), writes);
        if writes && answer.asked_before {
            // Whatever came of the last try, an earlier one may have been applied.
            return BackendError::ambiguous(error.code, error.message);
        }
        error
    }

    fn no_answer(&self, broken: &Broken, writes: bool) -> BackendError {
        let known = self.reached.load(Ordering::Relaxed);
        failure::no_answer(&self.address, broken, writes, known)
    }

    fn nonsense(&self, answer: &Value) -> BackendError {
        BackendError::ambiguous(
            "store",
            format!(
                "{} answered something that etcd does not say: {}",
                self.address.shown,
                crate::backend::http::excerpt(&answer.to_string())
            ),
        )
    }
}

/// What etcd does not say.
struct Nonsense;

/// Everything we ask may reach etcd twice: leases have numbers of our own, and writes have conditions.
fn asked<'a>(path: &'a str, body: String, pass: &Pass) -> Asked<'a> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(HAS_LEADER, HeaderValue::from_static("true"));
    if let Pass::Token(token) = pass
        && let Ok(mut value) = HeaderValue::from_str(token)
    {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Asked {
        method: Method::POST,
        path,
        headers,
        body: body.into_bytes(),
        repeatable: true,
    }
}

/// Of a member that is cut off, starting, ending or broken: another one may do better.
fn elsewhere(answer: &Answer) -> bool {
    answer.status >= 500
}

/// What etcd says, in its words.
fn said(answer: &Answer) -> String {
    let text = || String::from_utf8_lossy(&answer.body).into_owned();
    let Ok(value) = serde_json::from_slice::<Value>(&answer.body) else {
        return text();
    };
    let words = [
        &value["message"],
        &value["error"]["message"],
        &value["error"],
    ];
    let words = words.into_iter().find_map(Value::as_str);
    words.map_or_else(text, str::to_owned)
}

fn both(keys: &Keys) -> Value {
    let range = |key: &str| json!({ "request_range": { "key": BASE64.encode(key) } });
    json!([range(&keys.lease), range(&keys.token)])
}

/// What `both` brought.
fn seen_in(answer: &Value) -> Result<Seen, Nonsense> {
    let responses = answer["responses"].as_array().map(Vec::as_slice);
    let Some([lease, token]) = responses else {
        return Err(Nonsense);
    };
    Ok(Seen {
        lease: entry_of(&lease["response_range"])?,
        token: entry_of(&token["response_range"])?,
    })
}

/// Zero: it is not there.
fn unchanged(key: &str, revision: i64) -> Value {
    json!({
        "key": BASE64.encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
    })
}

fn revision(entry: Option<&Entry>) -> i64 {
    entry.map_or(0, |entry| entry.revision)
}

/// The one key of a range.
fn entry_of(range: &Value) -> Result<Option<Entry>, Nonsense> {
    if !range["header"].is_object() {
        return Err(Nonsense);
    }
    match range["kvs"].as_array().map(Vec::as_slice) {
        None if range["kvs"].is_null() => Ok(None),
        Some([found]) => entry(found).map(Some).ok_or(Nonsense),
        _ => Err(Nonsense),
    }
}

pub(super) fn entry(found: &Value) -> Option<Entry> {
    let value = found["value"].as_str().unwrap_or_default();
    Some(Entry {
        value: BASE64.decode(value).ok()?,
        lease: number(&found["lease"])?,
        revision: number(&found["mod_revision"])?,
    })
}

fn raft_term(answer: &Value) -> Option<u64> {
    let term = number(&answer["header"]["raft_term"])?;
    u64::try_from(term).ok().filter(|term| *term > 0)
}

/// What is zero is left out.
pub(super) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Null => Some(0),
        Value::String(text) => text.parse().ok(),
        value => value.as_i64(),
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gateway").field(&self.address.shown).finish()
    }
}
