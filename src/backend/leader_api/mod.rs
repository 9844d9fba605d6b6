//! A Leader Election API: a small HTTP service decides who leads, and says how long its leases last.
//!
//! | request | for |
//! |---|---|
//! | `POST /leader/elect` | a check-in: acquires or renews |
//! | `GET /leader/status` | who leads |
//! | `POST /leader/release` | the end of a term; only `whenleader serve` has it |
//!
//! The protocol knows an identity and a resource, and no terms. To `whenleader serve` a check-in also says for
//! which session it is and which term it renews, and the answer tells that term's token; other servers are sent
//! the same and ignore it. There, tokens are this process's own, drawn from its clock, and a second process
//! under the same identity would be told that it leads, too: it cannot be told apart.
//!
//! A check-in may be sent twice: the lease counts from the moment before the first was sent, and one that begins a term
//! says after which token, so that its second copy finds that term begun. A copy that comes when its term was released
//! already begins another one, of which nobody hears: it keeps the others out until it runs out. A `whenleader serve` that
//! released the term itself denies such copies for one lease.

mod answer;
mod krn;
mod own;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use tokio::time::timeout;

use self::answer::{CheckIn, Found};
pub use self::krn::Identity;
use super::http::{Answer, Asked, Broken, Http, Why, excerpt};
use super::url::StoreUrl;
use super::{
    Attempt, Backend, BackendError, BadStore, Capabilities, StoreOptions, UNSUITABLE, token_floor,
    without_password,
};
use crate::lease::{BadName, ElectionName, FailureKind, InstanceId, Leader, Outcome, Owner, Token};
use crate::locked::locked;
use crate::timing::Timing;

/// What a lease is taken for until a server has told.
pub const LEASE_UNTIL_TOLD: Duration = Duration::from_secs(5);

const EXAMPLE: &str = "http://<host>[:<port>]";
const ELECT: &str = "/leader/elect";
const STATUS: &str = "/leader/status";
const RELEASE: &str = "/leader/release";
/// How long the first look at it may take.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// A server that knew no releases may know them later.
const UNTIL_ASKED_AGAIN: Duration = Duration::from_secs(60);
/// A candidate of another process.
const STRANGER: u64 = 1;

/// How to reach one.
#[derive(Clone)]
pub struct LeaderApiOptions {
    pub url: String,
    /// For the header `authorization: Bearer`.
    pub token: Option<String>,
    /// What the paths of certificates start from.
    pub base_dir: PathBuf,
    pub connect_timeout: Duration,
    pub request_timeout: Duration,
    pub patience: Duration,
}

impl fmt::Debug for LeaderApiOptions {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderApiOptions")
            .field("url", &without_password(&self.url))
            .finish_non_exhaustive()
    }
}

/// See the module's description.
#[derive(Debug)]
struct LeaderApi {
    http: Http,
    /// Which server it is, for people.
    shown: String,
    /// In front of all paths of the protocol.
    prefix: String,
    headers: HeaderMap,
    told_lease: Mutex<Option<Duration>>,
    terms: Mutex<HashMap<ElectionName, Seen>>,
    /// The last term of ours that a server told, and whose it was.
    own: Mutex<HashMap<ElectionName, (Owner, Token)>>,
    /// When a server said last that it knows no releases.
    without_release: Mutex<Option<Instant>>,
}

/// The term that was seen last of an election: the next one has a larger token, also where the server counts none.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    whose: Whose,
    token: Token,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Whose {
    /// It was granted to us, and may be over.
    Ours,
    Of(InstanceId),
}

/// A name that a resource may have.
pub fn resource_name(name: &str) -> Result<ElectionName, BadName> {
    if krn::is_krn(name) {
        ElectionName::new(name)
    } else {
        Err(BadName(krn::RULE.into()))
    }
}

/// Whether a server can be reached at this URL, as far as that can be told without asking.
pub fn check_url(url: &str) -> Result<(), BadStore> {
    let options = LeaderApiOptions {
        url: url.into(),
        token: None,
        base_dir: PathBuf::new(),
        connect_timeout: Duration::ZERO,
        request_timeout: Duration::ZERO,
        patience: Duration::ZERO,
    };
    open(&options).map(|_| ())
}

/// Connects to nothing yet.
pub fn open(options: &LeaderApiOptions) -> Result<Arc<dyn Backend>, BadStore> {
    let bad = |bad: BadStore| BadStore {
        parameter: "url",
        ..bad
    };
    let mut url = StoreUrl::parse(&options.url, EXAMPLE).map_err(bad)?;
    let default_port = match &*url.scheme {
        "http" => 80,
        "https" => 443,
        _ => {
            return Err(bad(BadStore::url(format!(
                "begin with http:// or https://: {EXAMPLE}"
            ))));
        }
    };
    if url.hosts.len() != 1 {
        return Err(bad(BadStore::url(format!("name one host: {EXAMPLE}"))));
    }
    if url.user.is_some() || url.password.is_some() {
        let rule = "hold neither user nor password: a bearer token is given as \"token\"";
        return Err(bad(BadStore::url(rule)));
    }
    let tls = url
        .take_tls_by_scheme(&["https"], &options.base_dir)
        .map_err(bad)?;
    url.refuse_others(&["ca", "cert", "key"]).map_err(bad)?;
    let prefix = match url.path.trim_end_matches('/') {
        "" => String::new(),
        path if path.bytes().all(|byte| byte.is_ascii_graphic()) => format!("/{path}"),
        _ => return Err(bad(BadStore::url("have a path of plain ASCII, or none"))),
    };
    let store = StoreOptions {
        connect_timeout: options.connect_timeout,
        request_timeout: options.request_timeout,
        patience: options.patience,
        ..StoreOptions::new(&options.base_dir)
    };
    let shown = format!("{}://{}{prefix}", url.scheme, url.shown_hosts(default_port));
    Ok(Arc::new(LeaderApi {
        http: Http::new(&url.hosts, default_port, tls, &store).map_err(bad)?,
        shown,
        prefix,
        headers: headers(options.token.as_deref())?,
        told_lease: Mutex::default(),
        terms: Mutex::default(),
        own: Mutex::default(),
        without_release: Mutex::default(),
    }))
}

fn headers(token: Option<&str>) -> Result<HeaderMap, BadStore> {
    let json = HeaderValue::from_static("application/json");
    let mut headers = HeaderMap::from_iter([(ACCEPT, json.clone()), (CONTENT_TYPE, json)]);
    if let Some(token) = token {
        let value = (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()))
            .then(|| HeaderValue::from_str(&format!("Bearer {token}")).ok())
            .flatten();
        let mut value = value.ok_or_else(|| BadStore {
            parameter: "token",
            rule: "be a bearer token: ASCII without spaces".into(),
        })?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

#[async_trait]
impl Backend for LeaderApi {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: false,
        }
    }

    fn describe(&self) -> String {
        format!("the Leader Election API at {}", self.shown)
    }

    fn check_name(&self, election: &ElectionName) -> Result<(), String> {
        resource_name(election.as_str())
            .map(|_| ())
            .map_err(|bad| bad.0)
    }

    fn told_lease(&self) -> Option<Duration> {
        *locked(&self.told_lease)
    }

    /// Only whether it lets us in: a check-in would leave a trace, and whatever else the status is not good for,
    /// check-ins may be.
    async fn prepare(&self) -> Result<(), BackendError> {
        let asked = self.ask(Method::GET, STATUS, &Value::Null);
        match timeout(LOOK_TIME, asked).await {
            Ok(Ok(answer)) if matches!(answer.status, 401 | 403) => {
                Err(self.refused(&answer, STATUS))
            }
            _ => Ok(()),
        }
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let Attempt {
            election, owner, ..
        } = attempt;
        let mut body = who(owner, election);
        match attempt.term {
            Some(term) => body["token"] = term.number().into(),
            None => body["after"] = self.last_of_ours(attempt).into(),
        }
        let answer = self.ask(Method::POST, ELECT, &body).await?;
        if answer.status != 200 {
            return Err(self.refused(&answer, ELECT));
        }
        let answer = CheckIn::read(&answer.body, election.as_str()).map_err(|why| {
            BackendError::ambiguous("bad-answer", format!("{}: {why}", self.shown))
        })?;
        *locked(&self.told_lease) = Some(answer.lease);
        self.http
            .set_patience(Timing::told(answer.lease).patience());
        let Some(found) = answer.found else {
            return Ok(Outcome::Other {
                leader: None,
                remaining: None,
            });
        };
        if found.leads {
            return Ok(Outcome::Held {
                token: self.token_of_ours(attempt, &found, answer.lease),
                valid_for: answer.lease,
            });
        }
        let Found {
            current,
            token,
            remaining,
            ..
        } = found;
        Ok(Outcome::Other {
            leader: current.map(|instance| self.leader(election, instance, token)),
            remaining,
        })
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        // The term is over for us in any case; the lease of a server without releases runs out.
        let told = *locked(&self.without_release);
        if told.is_some_and(|told| told.elapsed() < UNTIL_ASKED_AGAIN) {
            return Ok(true);
        }
        let mut body = who(owner, election);
        body["token"] = token.number().into();
        let answer = self.ask(Method::POST, RELEASE, &body).await?;
        match answer.status {
            200 => {
                let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                Ok(body["resources"][0]["released"] != false)
            }
            404 | 405 | 501 => {
                // A proxy may have said so, for a moment.
                if locked(&self.without_release)
                    .replace(Instant::now())
                    .is_none()
                {
                    tracing::info!(
                        store = self.describe(),
                        "it has no call for a release: the lease of a leader that stops runs out"
                    );
                }
                Ok(true)
            }
            _ => Err(self.refused(&answer, RELEASE)),
        }
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let answer = self.status().await?;
        let seen = answer::leader_in_status(&answer.body, election.as_str());
        Ok(seen.map(|(instance, token)| self.leader(election, instance, token)))
    }

    async fn close(&self) {
        self.http.hang_up();
    }
}

fn who(owner: &Owner, election: &ElectionName) -> Value {
    json!({
        "id": owner.instance.as_str(),
        "session": format!("{:016x}", owner.nonce),
        "resources": [election.as_str()],
    })
}

impl LeaderApi {
    async fn status(&self) -> Result<Answer, BackendError> {
        let answer = self.ask(Method::GET, STATUS, &Value::Null).await?;
        match answer.status {
            200 => Ok(answer),
            _ => Err(self.refused(&answer, STATUS)),
        }
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Answer, BackendError> {
        let path = format!("{}{path}", self.prefix);
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let asked = Asked {
            method,
            path: &path,
            headers: self.headers.clone(),
            body,
            repeatable: true,
        };
        let answer = self.http.ask(&asked, |_| false).await;
        answer.map_err(|Broken { why, message }| match why {
            Why::Unreachable => BackendError::transient("unreachable", message),
            Why::Distrust => BackendError::fatal("certificate", message),
            Why::OtherProtocol => BackendError::transient(
                "unreachable",
                format!("{message}. Does it speak TLS? Then the url begins with https://, else with http://"),
            ),
            Why::Halfway => BackendError::ambiguous("unreachable", message),
            Why::Silence => BackendError::ambiguous("timeout", message),
        })
    }

    /// What an answer means that is not 200.
    fn refused(&self, answer: &Answer, path: &str) -> BackendError {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = String::from_utf8_lossy(&answer.body);
        let said = match body["error"]["message"].as_str() {
            Some(message) => excerpt(message),
            None => excerpt(&text),
        };
        let (kind, code, advice) = match answer.status {
            401 | 403 => (
                FailureKind::Fatal,
                "refused",
                "Give the right bearer token as \"token\"",
            ),
            300..400 => (
                FailureKind::Fatal,
                UNSUITABLE,
                "Redirects are not followed: give the url that it leads to",
            ),
            404 | 405 => (
                FailureKind::Fatal,
                UNSUITABLE,
                "The url must lead to a Leader Election API",
            ),
            408 | 425 | 429 => (FailureKind::Transient, "busy", ""),
            400..500 => (FailureKind::Fatal, "refused", "It takes no such check-in"),
            _ => (FailureKind::Ambiguous, "store", ""),
        };
        let kind = match kind {
            FailureKind::Transient if answer.asked_before => FailureKind::Ambiguous,
            kind => kind,
        };
        BackendError {
            kind,
            code,
            message: format!(
                "{} answered {} to {path}: {}{}{advice}",
                self.shown,
                answer.status,
                said.trim_end_matches('.'),
                if advice.is_empty() { "" } else { ". " },
            ),
        }
    }

    /// The token of the term that a check-in was granted for.
    fn token_of_ours(&self, attempt: &Attempt<'_>, found: &Found, lease: Duration) -> Token {
        let mut terms = locked(&self.terms);
        let seen = terms.get(attempt.election);
        let token = match (found.token, attempt.term) {
            (Some(told), _) => told,
            // The lease did not end since: our deadline comes before its end.
            (None, Some(term)) => term,
            (None, None) => next_token(seen),
        };
        let whose = Whose::Ours;
        terms.insert(attempt.election.clone(), Seen { whose, token });
        own::granted(&self.shown, attempt.election, attempt.owner, token, lease);
        let own = (attempt.owner.clone(), token);
        locked(&self.own).insert(attempt.election.clone(), own);
        token
    }

    /// 0: this owner has had no term.
    fn last_of_ours(&self, attempt: &Attempt<'_>) -> u64 {
        let own = locked(&self.own);
        let last = own.get(attempt.election);
        let last = last.filter(|(owner, _)| owner == attempt.owner);
        last.map_or(0, |(_, token)| token.number())
    }

    /// Whom a server names. The protocol knows no owners, so one that is not of this process has the same nonce as
    /// all others.
    fn leader(&self, election: &ElectionName, instance: InstanceId, told: Option<Token>) -> Leader {
        let (own, own_token) = own::who_leads(&self.shown, election, &instance, told).unzip();
        let mut terms = locked(&self.terms);
        let seen = terms.get(election);
        let whose = Whose::Of(instance.clone());
        let token = told.or(own_token).unwrap_or_else(|| match seen {
            Some(seen) if seen.whose == whose => seen.token,
            seen => next_token(seen),
        });
        terms.insert(election.clone(), Seen { whose, token });
        let nonce = STRANGER;
        let owner = own.unwrap_or(Owner { instance, nonce });
        Leader { owner, token }
    }
}

/// Of a server that counts no terms.
fn next_token(seen: Option<&Seen>) -> Token {
    let floor = token_floor();
    let next = seen.map_or(floor, |seen| floor.max(seen.token.number() + 1));
    Token::new(next.min(Token::MAX)).expect("from 1 to the largest")
}
