//! Requests to answers: the paths of the protocol and ours beside them, who may ask, and how much.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HOST, ORIGIN, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq as _;
use tokio::time::timeout;

use super::body::{self, Bad};
use super::elections::{Asked, Candidate, CheckedIn, Elections, Failed, Standing};
use super::page::{Page, Time};
use crate::go_duration::Shown;

/// The largest body that is read.
const BODY: usize = 64 * 1024;
/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// What a browser may do with the page: show it.
const NOTHING_ELSE: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

pub(super) type Answer = Response<Full<Bytes>>;

#[derive(Debug)]
pub(super) struct Api {
    pub elections: Elections,
    pub token: Option<String>,
    /// Whether those who may ask may also clear the elections that this server knows.
    pub may_reset: bool,
    /// It listens on this machine alone.
    pub is_private: bool,
}

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Elect,
    ElectBulk,
    Status,
    Reset,
    Release,
    Workloads,
    Health,
    Metrics,
    Page,
}

const CALLS: &[(&str, Method, Call)] = &[
    ("/leader/elect", Method::POST, Call::Elect),
    ("/leader/bulk/elect", Method::POST, Call::ElectBulk),
    ("/leader/status", Method::GET, Call::Status),
    ("/leader/reset", Method::POST, Call::Reset),
    ("/leader/release", Method::POST, Call::Release),
    ("/workloads/list", Method::GET, Call::Workloads),
    ("/healthz", Method::GET, Call::Health),
    ("/metrics", Method::GET, Call::Metrics),
    ("/", Method::GET, Call::Page),
];

/// Why there is no good answer.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    /// A stable word for programs.
    code: &'static str,
    message: String,
}

const fn refusal(status: StatusCode, code: &'static str, message: String) -> Refusal {
    Refusal {
        status,
        code,
        message,
    }
}

impl From<Bad> for Refusal {
    fn from(message: Bad) -> Self {
        refusal(StatusCode::BAD_REQUEST, "bad-request", message)
    }
}

impl From<Failed> for Refusal {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::TooManyResources => refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-resources",
                "this server knows as many resources as it can; those that nobody asks for are forgotten after an hour".into(),
            ),
            Failed::Store(error) => {
                refusal(StatusCode::SERVICE_UNAVAILABLE, error.code, error.message)
            }
        }
    }
}

impl Api {
    pub async fn answer(self: Arc<Self>, request: Request<Incoming>, peer: String) -> Answer {
        let begun = Instant::now();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut answer = match self.route(request).await {
            Ok(answer) => answer,
            Err(refusal) => refusal.answer(),
        };
        answer
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let status = answer.status().as_u16();
        self.elections.metrics.answered(status);
        let (bytes, ms) = (
            answer.body().size_hint().lower(),
            begun.elapsed().as_millis(),
        );
        if status < 400 {
            tracing::debug!(%peer, %method, path, status, bytes, ms, "answered");
        } else {
            tracing::info!(%peer, %method, path, status, bytes, ms, "refused");
        }
        answer
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let path = request.uri().path();
        let Some((_, method, call)) = CALLS.iter().find(|(known, ..)| *known == path) else {
            let known: Vec<_> = CALLS.iter().map(|(path, ..)| *path).collect();
            return Err(refusal(
                StatusCode::NOT_FOUND,
                "not-found",
                format!("there are {} only", known.join(", ")),
            ));
        };
        let asked = request.method();
        let is_head = *method == Method::GET && *asked == Method::HEAD;
        if asked != method && !is_head {
            let refusal = refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                format!("{path} is asked with {method}"),
            );
            let mut answer = refusal.answer();
            let allowed = HeaderValue::from_str(method.as_str()).expect("a method");
            answer.headers_mut().insert(ALLOW, allowed);
            return Ok(answer);
        }
        self.refuse_strange_pages(*call, request.headers())?;
        if *call != Call::Health && !self.lets_in(*call, request.headers()) {
            return Ok(unauthorized(*call));
        }
        self.call(*call, request).await
    }

    /// Browsers let any page on the web send requests to this machine, some with what the user has typed in here
    /// before. No script of a page has a reason to; the status page has none.
    fn refuse_strange_pages(&self, call: Call, headers: &HeaderMap) -> Result<(), Refusal> {
        let text = |name| {
            headers
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok())
        };
        let by_script = headers.contains_key(ORIGIN)
            || !matches!(text("sec-fetch-site"), None | Some("none" | "same-origin"));
        if by_script && call != Call::Page {
            return Err(refusal(
                StatusCode::FORBIDDEN,
                "cross-origin",
                "a page in a browser may not ask this server".into(),
            ));
        }
        // A page of a name that leads here is one to the browser.
        if self.is_private && self.token.is_none() && !text(HOST.as_str()).is_none_or(is_local) {
            return Err(refusal(
                StatusCode::FORBIDDEN,
                "strange-host",
                "without a token this server is asked by its address, or as localhost".into(),
            ));
        }
        Ok(())
    }

    fn lets_in(&self, call: Call, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
            match &*scheme.to_ascii_lowercase() {
                "bearer" => Some(rest.trim().as_bytes().to_vec()),
                // A browser asks for a name and a password: the token is the password. It sends them again by
                // itself, so that they open nothing but the page.
                "basic" if call == Call::Page => {
                    let decoded = BASE64.decode(rest.trim()).ok()?;
                    let colon = decoded.iter().position(|byte| *byte == b':')?;
                    Some(decoded[colon + 1..].to_vec())
                }
                _ => None,
            }
        });
        given.is_some_and(|given| given.ct_eq(token.as_bytes()).into())
    }

    async fn call(&self, call: Call, request: Request<Incoming>) -> Result<Answer, Refusal> {
        Ok(match call {
            Call::Elect => {
                let asked = body::asked(&read(request).await?)?;
                let answers = self.elect(&[asked]).await?;
                json_answer(&answers.into_iter().next().unwrap_or_default())
            }
            Call::ElectBulk => {
                let bulk = body::bulk(&read(request).await?)?;
                json_answer(&json!({ "data": self.elect(&bulk).await? }))
            }
            Call::Release => {
                let asked = body::asked(&read(request).await?)?;
                self.check_names(&asked)?;
                let released = self.elections.release(&asked).await?;
                let named = asked.resources.iter().zip(released);
                let resources: Vec<_> = named
                    .map(|(name, done)| json!({ "resource": name.as_str(), "released": done }))
                    .collect();
                json_answer(&json!({ "resources": resources }))
            }
            Call::Status => {
                let standings = self.elections.status().await;
                let resources: Vec<_> = standings.iter().map(in_status).collect();
                json_answer(&json!({
                    "lease_duration": Shown(self.elections.lending.told()).to_string(),
                    "resources": resources,
                }))
            }
            Call::Reset if !self.may_reset => {
                return Err(refusal(
                    StatusCode::FORBIDDEN,
                    "reset-not-allowed",
                    "a reset ends the terms of leaders that live, so it is for tests: start the server with --allow-reset".into(),
                ));
            }
            Call::Reset => {
                self.elections.reset().await?;
                Answer::default()
            }
            Call::Workloads => {
                let candidates = self.elections.candidates();
                let data: Vec<_> = candidates.iter().map(in_list).collect();
                json_answer(&json!({ "data": data }))
            }
            Call::Health => match self.elections.is_well().await {
                Ok(()) => json_answer(&json!({ "status": "ok" })),
                // Where the store is, and what it said, is for those who may ask more.
                Err(error) if !self.lets_in(Call::Health, request.headers()) => {
                    let message = "the store does not answer".into();
                    return Err(refusal(
                        StatusCode::SERVICE_UNAVAILABLE,
                        error.code,
                        message,
                    ));
                }
                Err(error) => return Err(Failed::Store(error).into()),
            },
            Call::Metrics => {
                let (resources, led) = self.elections.counts();
                answer(
                    StatusCode::OK,
                    PROMETHEUS,
                    self.elections.metrics.text(resources, led),
                )
            }
            Call::Page => self.page().await?,
        })
    }

    fn check_names(&self, asked: &Asked) -> Result<(), Refusal> {
        for resource in &asked.resources {
            self.elections.check_name(resource).map_err(|rule| {
                Refusal::from(format!("resource {:?} must {rule}", resource.as_str()))
            })?;
        }
        Ok(())
    }

    /// An answer to each of them.
    async fn elect(&self, all: &[Asked]) -> Result<Vec<Value>, Refusal> {
        for asked in all {
            self.check_names(asked)?;
        }
        let checked_in = self.elections.check_in(all).await?;
        let answers = all.iter().zip(checked_in);
        Ok(answers
            .map(|(asked, of_each)| self.elected(asked, &of_each))
            .collect())
    }

    fn elected(&self, asked: &Asked, of_each: &[CheckedIn]) -> Value {
        let shortest = of_each
            .iter()
            .filter_map(|checked_in| checked_in.told)
            .min();
        let lease = shortest.unwrap_or(self.elections.lending.told());
        let id = asked.asker.owner.instance.as_str();
        let resources: Vec<_> = of_each
            .iter()
            .map(|CheckedIn { standing, told }| {
                let mut item = in_status(standing);
                item["leader"] = told.is_some().into();
                item["request_leader"] = id.into();
                item
            })
            .collect();
        json!({
            "check_in": Time(SystemTime::now()).to_string(),
            "lease_duration": Shown(lease).to_string(),
            "resources": resources,
        })
    }

    async fn page(&self) -> Result<Answer, Refusal> {
        let page = Page {
            store: &self.elections.store().describe(),
            lease: self.elections.lending.told(),
            standings: &self.elections.status().await,
            changes: &self.elections.changes(),
            now: SystemTime::now(),
        };
        let mut answer = answer(StatusCode::OK, HTML, page.to_string());
        let policy = HeaderValue::from_static(NOTHING_ELSE);
        answer
            .headers_mut()
            .insert("content-security-policy", policy);
        Ok(answer)
    }
}

/// Whether a `Host` is an address, or this machine's own name.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// What is not known is left out: readers of this protocol take an absent field for absent, and not null.
fn in_status(standing: &Standing) -> Value {
    let mut item = Map::new();
    item.insert("resource".into(), standing.resource.as_str().into());
    item.insert(
        "last_check_in".into(),
        Time(standing.last_check_in).to_string().into(),
    );
    if let Some(leader) = &standing.leader {
        item.insert(
            "current_leader".into(),
            leader.owner.instance.as_str().into(),
        );
        item.insert("token".into(), leader.token.number().into());
    }
    if let Some(remaining) = standing.remaining {
        item.insert("remaining".into(), Shown(remaining).to_string().into());
    }
    Value::Object(item)
}

/// The protocol's word for those who check in is workload.
fn in_list(candidate: &Candidate) -> Value {
    let id = candidate.id.as_str();
    let resource = candidate.resource.as_str();
    let name = id.rsplit_once('/').map_or(id, |(_, name)| name);
    json!({
        "name": name,
        "app_name": resource.strip_prefix("krn:app:").unwrap_or(resource),
        "status": if candidate.is_running { "running" } else { "stopped" },
        "running": candidate.is_running,
    })
}

async fn read(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let too_large = || {
        refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            format!("a body may have {BODY} bytes"),
        )
    };
    let body = request.into_body();
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_large());
    }
    match timeout(BODY_TIME, Limited::new(body, BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Refusal::from(format!("the body broke off: {error}"))),
        Err(_) => Err(refusal(
            StatusCode::REQUEST_TIMEOUT,
            "too-slow",
            format!("the body did not arrive within {} s", BODY_TIME.as_secs()),
        )),
    }
}

impl Refusal {
    fn answer(self) -> Answer {
        let body = json!({ "error": { "code": self.code, "message": self.message } });
        let mut refused = answer(self.status, JSON, body.to_string());
        // What is left of the body is not read.
        if matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
        ) {
            let close = HeaderValue::from_static("close");
            refused.headers_mut().insert(CONNECTION, close);
        }
        refused
    }
}

fn unauthorized(call: Call) -> Answer {
    let refusal = refusal(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "send the server's token: authorization: Bearer <token>".into(),
    );
    let mut answer = refusal.answer();
    let way = match call {
        Call::Page => "Basic realm=\"whenleader, the token is the password\"",
        _ => "Bearer",
    };
    answer
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static(way));
    answer
}

fn json_answer(body: &Value) -> Answer {
    answer(StatusCode::OK, JSON, body.to_string())
}

fn answer(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
