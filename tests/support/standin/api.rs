//! From a request to its answer: who asks, whether they may, and what becomes of the objects.

use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Answer, Request};
use super::rights::{self, ADMIN, Tokens, User};
use super::status::{self, Cause};
use super::store::{Change, Store};
use super::target::Target;
use super::time;
use super::watch::{Selector, Watch};

/// What is answered.
#[derive(Debug)]
pub enum Reply {
    Answer(Answer),
    Watch(Watch),
}

#[derive(Debug)]
pub struct Api {
    pub store: Store,
    pub tokens: Tokens,
    /// How many names were made up.
    pub named: u64,
}

impl Api {
    pub fn new() -> Self {
        let mut api = Self {
            store: Store::new(),
            tokens: Tokens::default(),
            named: 0,
        };
        for namespace in ["default", "kube-system"] {
            api.add_namespace(namespace);
        }
        api
    }

    pub fn add_namespace(&mut self, name: &str) {
        let target = Target::namespace(name);
        let made = self.create(&target, &json!({}), ADMIN, false);
        assert!(
            made.is_ok(),
            "the namespace {name} is new and has a good name"
        );
    }

    /// Its objects stay, and no new ones are let in.
    pub fn terminate_namespace(&mut self, name: &str) {
        let key = Target::namespace(name).key();
        let mut object = self
            .store
            .get(&key)
            .expect("the namespace is there")
            .object
            .clone();
        object["metadata"]["deletionTimestamp"] = json!(time::seconds());
        object["status"]["phase"] = json!("Terminating");
        self.store.put(key, object);
    }

    /// A service account that may do this and no more in its namespace.
    pub fn grant(&mut self, namespace: &str, account: &str, rights: &[(&str, &[&str])]) {
        let rules: Vec<Value> = rights
            .iter()
            .map(|(resource, verbs)| {
                let plain = resource.split('/').next().unwrap_or(resource);
                let target = Target::of(plain, None, "").expect("the resource is known");
                json!({ "apiGroups": [target.group], "resources": [resource], "verbs": verbs })
            })
            .collect();
        let reference = json!({
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": account,
        });
        let subject = json!({ "kind": "ServiceAccount", "name": account, "namespace": namespace });
        let binding = json!({ "roleRef": reference, "subjects": [subject] });
        for (resource, body) in [
            ("serviceaccounts", json!({})),
            ("roles", json!({ "rules": rules })),
            ("rolebindings", binding),
        ] {
            let target = Target::of(resource, Some(namespace), account).unwrap();
            if self.store.get(&target.key()).is_none() {
                let made = self.create(&target, &body, ADMIN, false);
                assert!(
                    made.is_ok(),
                    "{namespace} is a namespace and {account} a good name"
                );
            } else if resource == "roles" {
                let mut role = self.store.get(&target.key()).unwrap().object.clone();
                role["rules"] = body["rules"].clone();
                self.store.put(target.key(), role);
            }
        }
    }

    pub fn issue_token(&mut self, namespace: &str, account: &str) -> String {
        let target = Target::of("serviceaccounts", Some(namespace), account).unwrap();
        let stored = self.store.get(&target.key()).expect("the account is there");
        self.tokens.issue(&stored.object)
    }

    pub fn allow(&self, user: &User, verb: &str, target: &Target) -> Result<(), Answer> {
        let reason = rights::reason(&self.store, user, verb, target);
        let refused = || status::forbidden(target, &user.name(), verb);
        reason.map(drop).ok_or_else(refused)
    }

    pub fn handle(&mut self, request: &Request) -> Reply {
        match self.decide(request) {
            Ok(reply) => reply,
            Err(answer) => Reply::Answer(answer),
        }
    }

    fn decide(&mut self, request: &Request) -> Result<Reply, Answer> {
        let user = self.tokens.user(&self.store, request);
        let user = user.ok_or_else(status::unauthorized)?;
        let Some(mut target) = Target::at(&request.path) else {
            return outside(request, &user).map(Reply::Answer);
        };
        let selector = Selector::of(request)?;
        if target.name.is_none() && request.method == "GET" {
            target.name.clone_from(&selector.name);
        }
        let verb = request.verb;
        self.allow(&user, verb, &target)?;
        let answer = match (verb, target.sub.as_deref()) {
            ("create", Some("token")) => self.request_token(&target, &request.json()),
            (_, Some(_)) => Err(status::no_resource()),
            ("get", _) => self.get(&target),
            ("list", _) => self.list(&target, &selector, request),
            ("watch", _) => return self.watch(&target, selector, request).map(Reply::Watch),
            ("create", _) if target.resource == "selfsubjectaccessreviews" => {
                self.review_access(&target, &request.json(), &user)
            }
            ("create", _) if target.resource == "selfsubjectreviews" => {
                Ok(review_user(&target, &user))
            }
            ("create", _) => self.post(&target, request),
            ("update", _) => self.update(&target, request, &user),
            ("patch", _) => self.patch(&target, request, &user),
            ("delete", _) => self.delete(&target, &request.json()),
            _ => Err(status::no_resource()),
        };
        answer.map(Reply::Answer)
    }

    fn get(&self, target: &Target) -> Result<Answer, Answer> {
        let stored = self.store.get(&target.key());
        let stored = stored.ok_or_else(|| status::not_found(target))?;
        Ok(Answer::json(200, &stored.object))
    }

    fn list(
        &self,
        target: &Target,
        selector: &Selector,
        request: &Request,
    ) -> Result<Answer, Answer> {
        let asked = number(request, "resourceVersion")?.unwrap_or(0);
        if asked > self.store.revision {
            return Err(status::too_large(asked, self.store.revision));
        }
        let there = self
            .store
            .list(target.resource, target.namespace.as_deref());
        let items: Vec<Value> = there
            .filter(|(key, stored)| selector.matches(key, &stored.object))
            .map(|(_, stored)| {
                let mut item = stored.object.clone();
                if let Some(fields) = item.as_object_mut() {
                    fields.shift_remove("kind");
                    fields.shift_remove("apiVersion");
                }
                item
            })
            .collect();
        let list = json!({
            "kind": format!("{}List", target.kind),
            "apiVersion": target.api_version(),
            "metadata": { "resourceVersion": self.store.revision.to_string() },
            "items": items,
        });
        Ok(Answer::json(200, &list))
    }

    fn watch(
        &self,
        target: &Target,
        selector: Selector,
        request: &Request,
    ) -> Result<Watch, Answer> {
        let from = number(request, "resourceVersion")?.unwrap_or(0);
        let asked = request
            .query("sendInitialEvents")
            .map(|_| request.asks("sendInitialEvents"));
        if asked.is_some() && request.query("resourceVersionMatch") != Some("NotOlderThan") {
            let rule = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            let cause = Cause::forbidden("resourceVersionMatch", rule);
            return Err(status::bad_options("ListOptions", &cause));
        }
        let mut watch = Watch {
            resource: target.resource,
            namespace: target.namespace.clone(),
            selector,
            cursor: from,
            first: Vec::new(),
            over: false,
            bookmarks: request.asks("allowWatchBookmarks"),
            timeout: number(request, "timeoutSeconds")?.map(Duration::from_secs),
        };
        if asked.unwrap_or(from == 0) {
            watch.cursor = self.store.revision;
            let there = self
                .store
                .list(target.resource, target.namespace.as_deref());
            watch.first = there
                .filter(|(key, stored)| watch.selector.matches(key, &stored.object))
                .map(|(_, stored)| json!({ "type": Change::Added.name(), "object": stored.object }))
                .collect();
            let unsaid = request
                .query("resourceVersion")
                .unwrap_or_default()
                .is_empty();
            if watch.bookmarks && asked.unwrap_or(unsaid) {
                let mut end = watch.bookmark(watch.cursor);
                end["object"]["metadata"]["annotations"] =
                    json!({ "k8s.io/initial-events-end": "true" });
                watch.first.push(end);
            }
        } else if from < self.store.compacted {
            let gone = status::too_old(from, self.store.compacted);
            watch.first.push(json!({ "type": "ERROR", "object": gone }));
            watch.over = true;
        }
        Ok(watch)
    }

    fn request_token(&mut self, target: &Target, body: &Value) -> Result<Answer, Answer> {
        let account = self.store.get(&target.key());
        let account = account.ok_or_else(|| status::not_found(target))?;
        let token = self.tokens.issue(&account.object);
        let meta = &account.object["metadata"];
        let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
        let answer = json!({
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
                "creationTimestamp": time::seconds(),
            },
            "spec": {
                "audiences": ["https://kubernetes.default.svc.cluster.local"],
                "expirationSeconds": seconds,
                "boundObjectRef": null,
            },
            "status": {
                "token": token,
                "expirationTimestamp": time::seconds_after(seconds),
            },
        });
        Ok(Answer::json(201, &answer))
    }

    /// What somebody may do. It is answered and not kept.
    fn review_access(&self, target: &Target, body: &Value, user: &User) -> Result<Answer, Answer> {
        let wanted = &body["spec"]["resourceAttributes"];
        if !wanted.is_object() {
            let rule =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            let cause = Cause::invalid("spec.resourceAttributes", "null", rule);
            return Err(status::invalid(target, "", &[cause]));
        }
        let text = |key: &str| wanted[key].as_str().unwrap_or_default();
        let some = |key: &str| Some(text(key)).filter(|text| !text.is_empty());
        let about = Target::of(text("resource"), some("namespace"), text("name"));
        let about = about.filter(|about| about.group == text("group"));
        let reason = match about {
            Some(mut about) => {
                about.sub = some("subresource").map(str::to_owned);
                rights::reason(&self.store, user, text("verb"), &about)
            }
            // The administrator may do what there is not, too.
            None => (*user == User::Admin).then(String::new),
        };
        let mut status = json!({ "allowed": reason.is_some() });
        if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
            status["reason"] = reason.into();
        }
        let review = json!({
            "kind": target.kind,
            "apiVersion": target.api_version(),
            "metadata": {},
            "spec": body["spec"],
            "status": status,
        });
        Ok(Answer::json(201, &review))
    }
}

/// Who somebody is.
fn review_user(target: &Target, user: &User) -> Answer {
    let review = json!({
        "kind": target.kind,
        "apiVersion": target.api_version(),
        "metadata": { "creationTimestamp": time::seconds() },
        "status": { "userInfo": { "username": user.name(), "groups": user.groups() } },
    });
    Answer::json(201, &review)
}

fn number(request: &Request, name: &str) -> Result<Option<u64>, Answer> {
    let text = request.query(name).filter(|text| !text.is_empty());
    let number = text.map(|text| {
        let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        let message = format!("{name}: Invalid value: {text:?}: {why}");
        text.parse().map_err(|_| Answer::failure(500, "", &message))
    });
    number.transpose()
}

/// Paths that lead to no object.
fn outside(request: &Request, user: &User) -> Result<Answer, Answer> {
    let path = request.path.as_str();
    let known = ["/api/v1/", "/apis/coordination.k8s.io/v1/"];
    match path {
        "/version" => Ok(Answer::json(
            200,
            &json!({
                "major": "1",
                "minor": "36",
                "emulationMajor": "1",
                "emulationMinor": "36",
                "minCompatibilityMajor": "1",
                "minCompatibilityMinor": "35",
                "gitVersion": "v1.36.3",
                "gitCommit": "",
                "gitTreeState": "",
                "buildDate": "1970-01-01T00:00:00Z",
                "goVersion": "none",
                "compiler": "none",
                "platform": "none",
            }),
        )),
        "/readyz" | "/livez" | "/healthz" => Ok(Answer::new(200).body("text/plain", "ok")),
        _ if *user != User::Admin => {
            let verb = request.method.to_lowercase();
            Err(status::forbidden_path(path, &user.name(), &verb))
        }
        _ if known.iter().any(|start| path.starts_with(start)) => Err(status::no_resource()),
        _ => {
            let text = "404 page not found\n";
            Err(Answer::new(404).body("text/plain; charset=utf-8", text))
        }
    }
}
