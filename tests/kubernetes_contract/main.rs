//! What a Kubernetes API server answers to the requests that an election and its tests make: one list,
//! put to the real server and to the stand-in. Where they differ, the stand-in is wrong.

#[path = "../support/mod.rs"]
mod support;

mod faults;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Kubernetes, StandIn};
use table::Who::{self, Admin, Elector, Nobody, Stranger, Updater};
use tokio::sync::OnceCell;

use table::{ACCOUNTS, ENDS, JSON, LEASES, PODS, REST, RIGHTS, Step, TRAPS, VALUES};

enum Server {
    Real(&'static Kubernetes),
    StandIn(Box<StandIn>),
}

impl Server {
    async fn ask(&self, token: Option<&str>, step: (&str, &str, &str, &str)) -> (u16, Value) {
        let (method, path, content_type, body) = step;
        match self {
            Self::Real(server) => {
                let token = token.map(|token| {
                    if token.is_empty() {
                        &server.token
                    } else {
                        token
                    }
                });
                let body = match body {
                    "" => Value::Null,
                    text => Value::String(text.to_owned()),
                };
                let asked = server.request_as(token, method, path, content_type, &body);
                asked.await
            }
            Self::StandIn(server) => {
                let client = match token {
                    None => server.client_as_nobody(),
                    Some("") => server.client(),
                    Some(token) => server.client_as(token),
                };
                let answer = client.ask(method, path, content_type, body).await.unwrap();
                let text = String::from_utf8(answer.body).unwrap();
                let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
                (answer.status, body)
            }
        }
    }
}

/// What a server said to each step, by the step's name.
#[derive(Debug, Default)]
struct Told {
    namespace: String,
    answers: BTreeMap<String, Value>,
    wrong: Vec<String>,
}

impl Told {
    fn text(&self, step: &str, pointer: &str) -> &str {
        let found = self.answers[step].pointer(pointer);
        found.and_then(Value::as_str).unwrap_or_default()
    }

    /// Fills in what is known by now.
    fn fill(&self, text: &str) -> String {
        let leases = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.namespace
        );
        let mut text = text
            .replace("{rest}", REST)
            .replace("{leases}", &leases)
            .replace("{ns}", &self.namespace);
        for (mark, pointer) in [
            ("{rv:", "/metadata/resourceVersion"),
            ("{uid:", "/metadata/uid"),
        ] {
            while let Some((before, rest)) = text.split_once(mark) {
                let (step, after) = rest.split_once('}').expect("a mark has an end");
                text = format!("{before}{}{after}", self.text(step, pointer));
            }
        }
        text
    }

    fn token(&self, who: Who) -> Option<&str> {
        match who {
            Admin => Some(""),
            Elector => Some(self.text("elector's token", "/status/token")),
            Updater => Some(self.text("updater's token", "/status/token")),
            Stranger => Some("not-a-token"),
            Nobody => None,
        }
    }
}

async fn put_to(server: &Server, namespace: &str) -> Told {
    let mut told = Told {
        namespace: namespace.to_owned(),
        ..Told::default()
    };
    let steps = [&LEASES[..], &ACCOUNTS, &RIGHTS, &PODS, &ENDS, &TRAPS].concat();
    for Step(name, who, asked, (content_type, body), code, says) in steps {
        let (method, path) = asked.split_once(' ').unwrap();
        let (path, body) = (told.fill(path), told.fill(body));
        let start = Instant::now();
        let (given, answer) = loop {
            let asked = (method, path.as_str(), content_type, body.as_str());
            let (given, answer) = server.ask(told.token(who), asked).await;
            // A real server remembers tokens for ten seconds, and learns of rights after a moment.
            if given == code || who == Admin || start.elapsed() > Duration::from_secs(30) {
                break (given, answer);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        told.check(name, (code, says), given, answer);
        if name == "get of a deleted one" {
            values(server, &mut told).await;
            events(server, &mut told).await;
        }
    }
    told
}

async fn values(server: &Server, told: &mut Told) {
    let path = told.fill("{leases}");
    for (index, (value, wanted)) in VALUES.into_iter().enumerate() {
        let body = format!(r#"{{"metadata":{{"name":"value-{index}"}},"spec":{value}}}"#);
        let (code, answer) = server.ask(Some(""), ("POST", &path, JSON, &body)).await;
        let says = if wanted == 201 { "Lease" } else { "BadRequest" };
        told.check(value, (wanted, says), code, answer);
    }
}

/// All that happened to the Lease since its creation, as a watch tells it afterwards.
async fn events(server: &Server, told: &mut Told) {
    let from = told.fill(
        "{leases}?watch=1&fieldSelector=metadata.name%3Dleader&timeoutSeconds=1&resourceVersion={rv:create}",
    );
    let (code, answer) = server.ask(Some(""), ("GET", &from, JSON, "")).await;
    let lines = answer.as_str().unwrap_or_default().lines();
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    told.check("watch", (200, ""), code, Value::Array(events));
}

impl Told {
    fn check(&mut self, name: &str, (code, says): (u16, &str), given: u16, answer: Value) {
        let text = |key: &str| answer[key].as_str().unwrap_or_default();
        let said = match text("kind") {
            "Status" if text("status") == "Success" => "Success",
            "Status" => text("reason"),
            kind => kind,
        };
        let coded = given < 400 || answer["code"] == given;
        if given != code || said != says || !coded {
            let line = format!("{name}: wanted {code} {says}, answered {given} {said}: {answer}");
            self.wrong.push(line);
        }
        self.answers.insert(name.to_owned(), answer);
    }

    fn assert(&self) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        let version = |step| self.text(step, "/metadata/resourceVersion");
        assert_eq!(version("update that changes nothing"), version("trap"));
        let mut last = 0;
        for step in [
            "create",
            "update",
            "merge patch",
            "apply with force",
            "trap",
            "update of its uid",
        ] {
            let number: u64 = version(step).parse().unwrap();
            assert!(number > last, "{step}: the resourceVersion has not grown");
            last = number;
        }
        assert_ne!(self.text("update", "/metadata/uid"), "");
        assert_eq!(
            self.text("update", "/metadata/uid"),
            self.text("create", "/metadata/uid")
        );
        let spec = &self.answers["unknown fields"]["spec"];
        assert_eq!(*spec, serde_json::json!({ "holderIdentity": "a" }));

        let events = self.answers["watch"].as_array().unwrap();
        let seen: Vec<(&str, &str)> = events
            .iter()
            .map(|event| {
                let holder = event["object"]["spec"]["holderIdentity"].as_str();
                (event["type"].as_str().unwrap(), holder.unwrap())
            })
            .collect();
        let wanted = [
            ("MODIFIED", "a"),
            ("MODIFIED", "a"),
            ("MODIFIED", "a"),
            ("MODIFIED", "z"),
            ("MODIFIED", "sa"),
            ("DELETED", "sa"),
        ];
        assert_eq!(seen, wanted);
    }
}

/// What the real server says, asked once for all tests here. `None`: there is none.
async fn real(test: &str) -> Option<&'static Told> {
    static TOLD: OnceCell<Told> = OnceCell::const_new();
    let server = Kubernetes::shared(test)?;
    let put = async || put_to(&Server::Real(server), "contract").await;
    Some(TOLD.get_or_init(put).await)
}

async fn stand_in() -> Told {
    put_to(
        &Server::StandIn(Box::new(StandIn::start().await)),
        "contract",
    )
    .await
}

#[tokio::test]
async fn the_real_server_answers_the_contract() {
    if let Some(told) = real("the_real_server_answers_the_contract").await {
        told.assert();
    }
}

#[tokio::test]
async fn the_stand_in_answers_the_contract() {
    stand_in().await.assert();
}

/// Values that no two servers share: only their kind is compared.
const OWN: [&str; 12] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "expirationTimestamp",
    "time",
    "token",
    "gitVersion",
    "gitCommit",
    "goVersion",
    "compiler",
    "platform",
];

/// Where the stand-in knowingly says less: managers of what is answered and not kept, of finalizers, and of
/// fields that are dropped; and what is wrong with a label more than once.
const ABSENT: [&str; 8] = [
    "elector's token: /metadata/managedFields",
    "updater's token: /metadata/managedFields",
    "what the updater may: /metadata",
    "what the updater may not: /metadata",
    "create with a finalizer: /metadata/managedFields",
    "delete with a finalizer: /metadata/managedFields",
    "unknown fields: /metadata/managedFields/0/fieldsV1/f:spec/f:strategy",
    "label with a bad value: /details/causes/",
];

/// Each value by its path, so that a difference tells where it is.
fn flatten(value: &Value, path: &str, own: bool, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let own = own || OWN.contains(&key.as_str());
                flatten(value, &format!("{path}/{key}"), own, found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                flatten(value, &format!("{path}/{index}"), own, found);
            }
        }
        Value::String(_) if own => {
            found.insert(path.to_owned(), "a string".to_owned());
        }
        value => {
            found.insert(path.to_owned(), value.to_string());
        }
    }
}

/// The answers by step and path, without what each server makes up itself.
fn flat(told: &Told) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (step, answer) in &told.answers {
        let mut answer = answer.clone();
        if answer["kind"] == "Pod" {
            // The rest of a pod is no matter of an election.
            answer["spec"] = Value::Null;
            answer["status"] = Value::Null;
            answer["metadata"]["generation"] = Value::Null;
            answer["metadata"]["managedFields"] = Value::Null;
        }
        flatten(&answer, &format!("{step}: "), false, &mut found);
    }
    let uid = told.text("trap", "/metadata/uid");
    for text in found.values_mut() {
        *text = text.replace(uid, "a uid");
        // A revision, or a whole object.
        for start in [", current: ", r#"Invalid value: \"{"#] {
            if let Some((before, _)) = text.split_once(start) {
                *text = before.to_owned();
            }
        }
    }
    found
}

#[tokio::test]
async fn the_stand_in_answers_with_the_same_fields_and_words_as_the_real_server() {
    let test = "the_stand_in_answers_with_the_same_fields_and_words_as_the_real_server";
    let Some(real) = real(test).await else { return };
    let (wanted, given) = (flat(real), flat(&stand_in().await));
    let paths: BTreeSet<&String> = wanted.keys().chain(given.keys()).collect();
    let mut differences = Vec::new();
    for path in paths {
        let (wanted, given) = (wanted.get(path), given.get(path));
        let empty = given.is_none_or(|given| given == "{}");
        let less = empty && ABSENT.iter().any(|start| path.starts_with(start));
        if wanted != given && !less {
            differences.push(format!("{path}: real {wanted:?}, stand-in {given:?}"));
        }
    }
    differences.truncate(50);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
