//! Labels this process's pod with its role, so that a Service can select the leader.
//!
//! A label follows the election and proves nothing: it is late by a request, and a pod that died keeps it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::access::{Pod, check_namespace, is_label};
use super::api::{Api, Asked};
use super::failure::{Right, failure};
use super::{BackendError, MERGE_PATCH};
use crate::backend::UNSUITABLE;
use crate::locked::locked;

const LABEL: &str = "whenleader/role";
/// The pause after a failure; later ones double, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long a process that stops waits for its label.
const LAST_WORD: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Labels {
    api: Arc<Api>,
    pod: Pod,
    /// Whether this instance leads; `None`: nobody has said.
    wanted: watch::Sender<Option<bool>>,
    written: watch::Sender<Option<bool>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Labels {
    pub fn new(api: Arc<Api>, pod: Pod) -> Self {
        Self {
            api,
            pod,
            wanted: watch::channel(None).0,
            written: watch::channel(None).0,
            task: Mutex::default(),
        }
    }

    /// Whether the pod is known.
    pub fn check(&self) -> Result<(), BackendError> {
        let (name, namespace) = (&self.pod.name, &self.pod.namespace);
        if name
            .as_deref()
            .is_none_or(|name| !name.split('.').all(is_label))
        {
            return Err(BackendError::fatal(
                UNSUITABLE,
                format!(
                    "podLabels needs the name of this pod{}: set the environment variable POD_NAME by the downward API (fieldRef: metadata.name)",
                    name.as_ref()
                        .map_or(String::new(), |name| format!(", and {name:?} is none"))
                ),
            ));
        }
        match namespace.as_deref().map(check_namespace) {
            Some(Err(rule)) => Err(BackendError::fatal(
                UNSUITABLE,
                format!(
                    "podLabels needs the namespace of this pod: POD_NAMESPACE must {rule}, not {namespace:?}"
                ),
            )),
            _ => Ok(()),
        }
    }

    pub fn pod(&self) -> Option<&str> {
        self.pod.name.as_deref()
    }

    /// Where the pod is, if that is known.
    pub fn namespace(&self) -> Option<&str> {
        self.pod.namespace.as_deref()
    }

    /// Returns at once; the label follows.
    pub fn set(&self, leads: bool) {
        if self.check().is_err() {
            return; // Which was, or will be, the end of the start.
        }
        self.wanted.send_replace(Some(leads));
        let mut task = locked(&self.task);
        task.get_or_insert_with(|| {
            tokio::spawn(follow(
                Arc::clone(&self.api),
                self.pod.clone(),
                self.wanted.subscribe(),
                self.written.clone(),
            ))
        });
    }

    /// Waits a little until the label says what it should. It is not written any more.
    pub async fn close(&self) {
        let wanted = *self.wanted.borrow();
        let mut written = self.written.subscribe();
        let _ = timeout(LAST_WORD, written.wait_for(|written| *written == wanted)).await;
        let task = locked(&self.task).take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Ends when the labels are dropped.
async fn follow(
    api: Arc<Api>,
    pod: Pod,
    mut wanted: watch::Receiver<Option<bool>>,
    written: watch::Sender<Option<bool>>,
) {
    let mut pause = FIRST_PAUSE;
    let mut told = false;
    loop {
        let leads = *wanted.borrow_and_update();
        let wrote = match leads {
            Some(leads) if *written.borrow() != Some(leads) => {
                // Until there is an answer, nobody knows what it says.
                written.send_replace(None);
                write(&api, &pod, leads).await
            }
            _ => Ok(()),
        };
        match wrote {
            Ok(()) => {
                pause = FIRST_PAUSE;
                told = false;
                written.send_replace(leads);
                if wanted.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("the pod's label does not say its role: {error}");
                }
                tokio::select! {
                    () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                    changed = wanted.changed() => if changed.is_err() { return },
                }
            }
        }
    }
}

async fn write(api: &Api, pod: &Pod, leads: bool) -> Result<(), BackendError> {
    let role = if leads { "leader" } else { "follower" };
    let patch = json!({ "metadata": { "labels": { LABEL: role } } });
    let leases = &api.find_target().await?.namespace;
    // Leases may lie in another namespace.
    let namespace = pod.namespace.as_ref().unwrap_or(leases);
    let pod = pod.name.as_deref().unwrap_or_default();
    let asked = Asked {
        method: Method::PATCH,
        path: format!("/api/v1/namespaces/{namespace}/pods/{pod}"),
        body: Some(&patch),
        content_type: MERGE_PATCH,
        right: Right::on_pods("patch"),
        writes: true,
        // A copy that comes late would write over what was told since.
        repeatable: false,
    };
    let answer = api.ask(&asked).await?;
    match answer.status {
        200 => Ok(()),
        404 => Err(BackendError::transient(
            "no-pod",
            format!("there is no pod {pod} in namespace {namespace}"),
        )),
        _ => Err(failure(&answer, &asked, namespace)),
    }
}
