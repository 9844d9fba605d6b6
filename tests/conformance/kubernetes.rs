//! Kubernetes Leases, on a real API server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use whenleader::backend::Backend;
use whenleader::backend::kubernetes::{self, KubernetesOptions, access::Place};
use whenleader::clock::SystemClock;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, name};
use crate::support::{Kubernetes, User};

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// A namespace of its own, as an account sees it that has the least rights, and may watch.
pub struct Fresh {
    server: &'static Kubernetes,
    namespace: String,
    kubeconfig: PathBuf,
}

/// What a cluster is opened with, for changes.
fn options(kubeconfig: PathBuf, namespace: &str) -> KubernetesOptions {
    KubernetesOptions {
        place: Place {
            config: Some(kubeconfig),
            context: None,
            namespace: Some(namespace.to_owned()),
        },
        timeout: Duration::from_secs(5),
        lease: Duration::from_secs(15),
        election: name("leader"),
        pod_labels: false,
    }
}

fn open(options: KubernetesOptions) -> Arc<dyn Backend> {
    kubernetes::open(options, Arc::new(SystemClock)).expect("good options")
}

fn lease_rules(verbs: &[&str]) -> Value {
    json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs }])
}

fn path(namespace: &str, election: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{election}")
}

impl Fresh {
    async fn with_rights(test: &str, verbs: &[&str]) -> Option<Self> {
        let server = Kubernetes::shared(test)?;
        let namespace = server.fresh_namespace().await;
        let token = server
            .account(&namespace, "elector", &lease_rules(verbs))
            .await;
        let kubeconfig = server.kubeconfig(&User::Token(token), None).await;
        Some(Self {
            server,
            namespace,
            kubeconfig,
        })
    }

    fn options(&self) -> KubernetesOptions {
        options(self.kubeconfig.clone(), &self.namespace)
    }

    async fn patch(&self, election: &str, patch: &Value) {
        let path = path(&self.namespace, election);
        let (status, answer) = self
            .server
            .request("PATCH", &path, MERGE_PATCH, patch)
            .await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn lease(&self, election: &str) -> Value {
        let path = path(&self.namespace, election);
        let (status, lease) = self.server.request("GET", &path, JSON, &Value::Null).await;
        assert_eq!(status, 200, "{lease}");
        lease
    }
}

impl Fixture for Fresh {
    const RUBBISH_EXPIRES: bool = true;
    const STEP: Duration = Duration::from_secs(1);
    const ODD_NAMES: &[&str] = &[
        "leader", "0", "a.b", "a-b", "a.b.c", "9.x", "watch", "status",
    ];

    async fn start(test: &str) -> Option<Self> {
        Self::with_rights(test, &["get", "create", "update", "watch"]).await
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(self.options())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        // A holder that no instance can be called.
        let text = String::from_utf8_lossy(&rubbish[..rubbish.len().min(1_000)]);
        let annotations = json!({ "whenleader/token": text, "whenleader/owner": text });
        let patch = json!({
            "metadata": { "annotations": annotations },
            "spec": { "holderIdentity": format!("\n{text}"), "leaseDurationSeconds": null },
        });
        self.patch(election.as_str(), &patch).await;
    }

    async fn forget(&self, election: &ElectionName) {
        let path = path(&self.namespace, election.as_str());
        let (status, answer) = self
            .server
            .request("DELETE", &path, JSON, &Value::Null)
            .await;
        assert_eq!(status, 200, "{answer}");
    }
}

mod kubernetes_conforms {
    crate::conformance!(super::Fresh);
}
