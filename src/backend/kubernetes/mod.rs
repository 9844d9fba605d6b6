//! Kubernetes: elections through `coordination.k8s.io` Leases, beside Go programs that use client-go.
//!
//! The API server offers optimistic concurrency and does not judge expiry, so a Lease is a versioned
//! record for [`Observed`]. Three rules are its own:
//!
//! - A lease is released by clearing `holderIdentity`, never by deleting the object.
//! - A PUT over a Lease that is gone makes a new one. Ours name the object by its uid, which the server
//!   then refuses; one that is made all the same has lost its term.
//! - A watch costs one request in minutes and makes a hand-over a matter of milliseconds, but needs a right
//!   more. Without it, followers ask at every interval.

mod access;
mod api;
mod connection;
mod failure;
mod kubeconfig;
mod labels;
mod plugin;
mod record;
mod session;
mod watch;
mod yaml;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};

pub use self::access::{Place, Pod};
use self::access::{check_namespace, is_label};
use self::api::{Answer, Api, Asked};
use self::failure::{Right, ambiguous_if_writing, failure, missing, rules};
use self::labels::Labels;
use self::record::Lease;
use super::observed::{Change, Observed, ObservedStore, Record, Records, Written};
use super::watchers::WatchersByElection;
use super::{Backend, BackendError, BadStore, Capabilities, Hints, Watch};
use crate::clock::Clock;
use crate::lease::{ElectionName, Owner, Token};

/// The API counts whole seconds, from one.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// What a cluster on Kubernetes is configured with.
#[derive(Debug, Clone)]
pub struct KubernetesOptions {
    pub place: Place,
    /// How long one operation may wait for the API server.
    pub timeout: Duration,
    /// See [`StoreOptions::patience`](super::StoreOptions::patience).
    pub patience: Duration,
    /// The lease that instances elect with: the API server is left alone for so long at most.
    pub lease: Duration,
    /// The Lease whose rights are looked at when the cluster starts, and that the pod's label is about.
    pub election: ElectionName,
    /// Whether an instance ever tries to lead: only then it needs to write.
    pub takes_part: bool,
    /// Whether this pod is labelled with its role.
    pub pod_labels: bool,
    pub pod: Pod,
}

/// See the module's description.
#[derive(Debug)]
struct Kubernetes {
    api: Arc<Api>,
    election: ElectionName,
    takes_part: bool,
    labels: Option<Labels>,
    watchers: WatchersByElection,
    told_of_polling: AtomicBool,
}

/// Makes the backend. Reads nothing and connects to nothing yet.
pub fn open(
    options: KubernetesOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    if let Some(namespace) = &options.place.namespace {
        check_namespace(namespace).map_err(|rule| BadStore {
            parameter: "namespace",
            rule: format!("{rule}, not {namespace:?}"),
        })?;
    }
    let api = Api::new(
        options.place,
        options.timeout,
        options.patience,
        options.lease,
    );
    let api = Arc::new(api);
    let labels = options
        .pod_labels
        .then(|| Labels::new(Arc::clone(&api), options.pod));
    let kubernetes = Kubernetes {
        api,
        election: options.election,
        takes_part: options.takes_part,
        labels,
        watchers: WatchersByElection::default(),
        told_of_polling: AtomicBool::new(false),
    };
    Ok(Arc::new(Observed::new(kubernetes, clock)))
}

#[async_trait]
impl ObservedStore for Kubernetes {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: SHORTEST_LEASE,
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        match self.api.target() {
            Some(target) => format!(
                "Kubernetes (Leases of namespace {} at {})",
                target.namespace, target.server
            ),
            None => "Kubernetes".into(),
        }
    }

    fn check_name(&self, election: &ElectionName) -> Result<(), String> {
        if election.as_str().split('.').all(is_label) {
            return Ok(());
        }
        Err(
            "be the name of a Lease (RFC 1123): lower-case letters, digits, - and ., with a letter or digit at both ends of each part between dots"
                .into(),
        )
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        let namespace = &self.api.find_target().await?.namespace;
        let needed = ["get", "update", "create", "watch"].map(Right::on_leases);
        let mut lacking = Vec::new();
        // One after the other, on one connection: more would lie idle afterwards.
        for right in needed {
            let is_needed = self.takes_part || matches!(right.verb, "get" | "watch");
            if is_needed && self.may(right, namespace).await == Some(false) {
                lacking.push(right);
            }
        }

        let watch = Right::on_leases("watch");
        let may_watch = !lacking.contains(&watch);
        lacking.retain(|right| *right != watch);
        if lacking == [Right::on_leases("create")] {
            // Somebody else made the Lease, and names it in the Role.
            if self.read(&self.election).await?.is_some() {
                lacking.clear();
            }
        } else if lacking.is_empty() {
            self.read(&self.election).await?;
        }
        if !lacking.is_empty() {
            return Err(missing(&lacking, namespace));
        }
        if !may_watch {
            self.tell_of_polling(namespace);
        }
        let Some(labels) = &self.labels else {
            return Ok(());
        };
        labels.check()?;
        let namespace = labels.namespace().unwrap_or(namespace);
        let patch = Right::on_pods("patch");
        match self.may(patch, namespace).await {
            Some(false) => Err(missing(&[patch], namespace)),
            _ => Ok(()),
        }
    }

    fn watch(leases: &Arc<Observed<Self>>, election: ElectionName, hints: Hints) -> Option<Watch> {
        let leases = Arc::clone(leases);
        Some(Box::pin(async move {
            let run = |running| watch::run(Arc::clone(&leases), election.clone(), running);
            let watchers = &leases.records.watchers;
            let listening = watchers.listen(election.clone(), hints, usize::MAX, run);
            if let Some(listening) = listening {
                listening.forward().await;
            }
        }))
    }

    fn tell_role(&self, election: &ElectionName, leads: bool) {
        if let Some(labels) = &self.labels
            && *election == self.election
        {
            labels.set(leads);
        }
    }

    async fn close(&self) {
        if let Some(labels) = &self.labels {
            labels.close().await;
        }
        self.watchers.close().await;
        self.api.close();
    }
}

impl Kubernetes {
    /// Said once, when it is found out.
    fn tell_of_polling(&self, namespace: &str) {
        if self.told_of_polling.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::info!(
            "this process may not watch leases in namespace {namespace}, so followers ask at every renewInterval: with that right a hand-over takes milliseconds, and a follower asks less than twice a minute. It would be\n{}",
            rules(&["get", "create", "update", "watch"].map(Right::on_leases))
        );
    }

    /// `None`: the API server does not tell.
    async fn may(&self, right: Right, namespace: &str) -> Option<bool> {
        // Of what is made nobody knows the name beforehand.
        let named = match (right.resource, right.verb) {
            (_, "create") => None,
            ("pods", _) => self.labels.as_ref().and_then(Labels::pod),
            _ => Some(self.election.as_str()),
        };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "namespace": namespace,
                "verb": right.verb,
                "group": right.group,
                "resource": right.resource,
                "name": named,
            } },
        });
        let asked = Asked {
            method: Method::POST,
            path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".into(),
            body: Some(&review),
            content_type: JSON,
            right,
            writes: false,
            repeatable: true,
        };
        let answer = self.api.ask(&asked).await.ok()?;
        match answer.status {
            200..300 => answer.body["status"]["allowed"].as_bool(),
            _ => None,
        }
    }

    async fn path(&self, name: &str) -> Result<String, BackendError> {
        let namespace = &self.api.find_target().await?.namespace;
        let slash = if name.is_empty() { "" } else { "/" };
        Ok(format!(
            "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases{slash}{name}"
        ))
    }

    fn failed(&self, answer: &Answer, asked: &Asked<'_>) -> BackendError {
        let namespace = self.api.target().map_or("?", |target| &target.namespace);
        failure(answer, asked, namespace)
    }

    /// A write was refused, perhaps because an earlier copy of it was done: the Lease, if it shows that.
    async fn left_by(
        &self,
        election: &ElectionName,
        object: &Value,
    ) -> Result<Option<Lease>, BackendError> {
        let found = self.read(election).await;
        let found = found.map_err(|error| error.doubted(true))?;
        Ok(found.filter(|lease| lease.is_left_by(object)))
    }
}

#[async_trait]
impl Records for Kubernetes {
    type Entry = Lease;

    fn record(&self, lease: &Lease) -> Record {
        lease.record()
    }

    async fn read(&self, election: &ElectionName) -> Result<Option<Lease>, BackendError> {
        let asked = Asked {
            method: Method::GET,
            path: self.path(election.as_str()).await?,
            body: None,
            content_type: JSON,
            right: Right::on_leases("get"),
            writes: false,
            repeatable: true,
        };
        let answer = self.api.ask(&asked).await?;
        match answer.status {
            200 => lease_in(answer.body, &asked).map(Some),
            404 if answer.body["kind"] == "Status" => Ok(None),
            _ => Err(self.failed(&answer, &asked)),
        }
    }

    async fn create(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        duration: Duration,
    ) -> Result<Option<Lease>, BackendError> {
        let object = record::first(election, owner, token, duration);
        let asked = Asked {
            method: Method::POST,
            path: self.path("").await?,
            body: Some(&object),
            content_type: JSON,
            right: Right::on_leases("create"),
            writes: true,
            repeatable: true,
        };
        let answer = self.api.ask(&asked).await?;
        match answer.status {
            200 | 201 => lease_in(answer.body, &asked).map(Some),
            409 if answer.asked_before => self.left_by(election, &object).await,
            409 => Ok(None),
            _ => Err(self.failed(&answer, &asked)),
        }
    }

    async fn write(
        &self,
        election: &ElectionName,
        over: &Lease,
        change: Change<'_>,
    ) -> Result<Written<Lease>, BackendError> {
        let object = over.changed(change);
        let asked = Asked {
            method: Method::PUT,
            path: self.path(election.as_str()).await?,
            body: Some(&object),
            content_type: JSON,
            right: Right::on_leases("update"),
            writes: true,
            repeatable: true,
        };
        let answer = self.api.ask(&asked).await?;
        match answer.status {
            200 => lease_in(answer.body, &asked).map(Written::Done),
            201 => lease_in(answer.body, &asked).map(Written::Made),
            404 | 409 if answer.asked_before => {
                let done = self.left_by(election, &object).await?;
                Ok(done.map_or(Written::Changed, Written::Done))
            }
            404 | 409 => Ok(Written::Changed),
            _ => Err(self.failed(&answer, &asked)),
        }
    }
}

fn lease_in(body: Value, asked: &Asked<'_>) -> Result<Lease, BackendError> {
    let kind = body["kind"].as_str().unwrap_or("nothing").to_owned();
    Lease::new(body).ok_or_else(|| {
        let what = if kind == "Lease" {
            "a Lease without a resourceVersion"
        } else {
            &kind
        };
        let message = format!("the API server answered with {what} where a Lease was asked for");
        ambiguous_if_writing(asked, "unexpected", message)
    })
}
