//! Kubernetes Leases, on a real API server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use whenleader::backend::Backend;
use whenleader::backend::kubernetes::{self, KubernetesOptions, Place, Pod};
use whenleader::clock::SystemClock;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, PATIENCE, name};
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
pub fn options(kubeconfig: PathBuf, namespace: &str) -> KubernetesOptions {
    KubernetesOptions {
        place: Place {
            config: Some(kubeconfig),
            context: None,
            namespace: Some(namespace.to_owned()),
        },
        timeout: Duration::from_secs(5),
        patience: PATIENCE,
        lease: Duration::from_secs(15),
        election: name("leader"),
        takes_part: true,
        pod_labels: false,
        pod: Pod::default(),
    }
}

pub fn open(options: KubernetesOptions) -> Arc<dyn Backend> {
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
        let place = path(&self.namespace, election);
        let (status, answer) = self
            .server
            .request("PATCH", &place, MERGE_PATCH, patch)
            .await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn lease(&self, election: &str) -> Value {
        let place = path(&self.namespace, election);
        let (status, lease) = self.server.request("GET", &place, JSON, &Value::Null).await;
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
        let place = path(&self.namespace, election.as_str());
        let (status, answer) = self
            .server
            .request("DELETE", &place, JSON, &Value::Null)
            .await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn list(&self) -> Vec<String> {
        let place = path(&self.namespace, "");
        let place = place.trim_end_matches('/');
        let (status, all) = self.server.request("GET", place, JSON, &Value::Null).await;
        assert_eq!(status, 200, "{all}");
        let leases = all["items"].as_array().expect("a list").iter();
        leases
            .map(|lease| lease["metadata"]["name"].to_string())
            .collect()
    }
}

mod kubernetes_conforms {
    crate::conformance!(super::Fresh);
}

/// What only this store can get wrong, on a real API server.
mod alone {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::net::TcpStream;
    use whenleader::backend::BackendError;
    use whenleader::backend::kubernetes::KubernetesOptions;
    use whenleader::lease::FailureKind::{Fatal, Transient};
    use whenleader::lease::{Hint, Outcome};

    use super::{Fresh, JSON, Pod, lease_rules, open, options, path};
    use crate::suite::{Client, Fixture, LONG, SHORT, denied, held, leading, name, owner};
    use crate::support::{Kubernetes, Proxy, TempDir, Trouble, User, eventually};

    const ALL: &[&str] = &["get", "create", "update", "watch"];

    async fn client(options: KubernetesOptions, id: &str) -> Client {
        Client::of(open(options), id).await
    }

    /// One that has not looked whether its store can be used.
    fn unprepared(options: KubernetesOptions) -> Client {
        Client {
            backend: open(options),
            owner: owner("unprepared"),
        }
    }

    async fn refused(options: KubernetesOptions) -> BackendError {
        let backend = open(options);
        backend.prepare().await.expect_err("it cannot be used")
    }

    #[tokio::test]
    async fn the_object_is_what_kubectl_and_client_go_expect() {
        let Some(store) = Fresh::start("the_object_is_what_kubectl_expects").await else {
            return;
        };
        let election = name("leader");
        let a = store.client("pod-a").await;
        let token = a.win(&election, Duration::from_millis(15_500)).await;
        let lease = store.lease("leader").await;
        let spec = &lease["spec"];
        assert_eq!(spec["holderIdentity"], "pod-a");
        assert_eq!(spec["leaseDurationSeconds"], 16);
        assert_eq!(spec["leaseTransitions"], 0);
        assert_eq!(spec["acquireTime"], spec["renewTime"]);
        assert_eq!(
            lease["metadata"]["annotations"]["whenleader/token"],
            token.to_string()
        );
        a.renew(&election, LONG, token).await;
        let renewed = store.lease("leader").await;
        assert_eq!(renewed["spec"]["acquireTime"], spec["acquireTime"]);
        assert_ne!(renewed["spec"]["renewTime"], spec["renewTime"]);

        assert!(a.release(&election, token).await);
        let released = store.lease("leader").await;
        let spec = &released["spec"];
        assert_eq!(spec["holderIdentity"].as_str().unwrap_or(""), "");
        assert_eq!(spec["leaseDurationSeconds"], 1);
        assert_eq!(spec["acquireTime"], spec["renewTime"]);
        assert_eq!(released["metadata"]["uid"], lease["metadata"]["uid"]);

        let again = store.client("pod-b").await.win(&election, LONG).await;
        assert!(again > token);
        assert_eq!(store.lease("leader").await["spec"]["leaseTransitions"], 1);
    }

    #[tokio::test]
    async fn what_others_wrote_into_the_lease_survives_elections() {
        let Some(store) = Fresh::start("what_others_wrote_survives").await else {
            return;
        };
        let election = name("leader");
        let metadata = json!({
            "name": "leader",
            "labels": { "app": "shop" },
            "annotations": { "note": "mine" },
            "finalizers": ["example.com/keep"],
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1-2-3" },
            ],
        });
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
        });
        let place = path(&store.namespace, "");
        let place = place.trim_end_matches('/');
        let (status, answer) = store.server.request("POST", place, JSON, &lease).await;
        assert_eq!(status, 201, "{answer}");
        let a = store.client("a").await;
        let token = a.win(&election, LONG).await;
        a.renew(&election, LONG, token).await;
        a.release(&election, token).await;
        a.win(&election, LONG).await;
        let after = store.lease("leader").await;
        for field in ["labels", "finalizers", "ownerReferences"] {
            assert_eq!(after["metadata"][field], metadata[field], "{field}");
        }
        assert_eq!(after["metadata"]["annotations"]["note"], "mine");
    }

    #[tokio::test]
    async fn another_programs_lease_is_waited_out_by_observation_and_not_by_its_time_stamps() {
        let Some(store) = Fresh::start("another_programs_lease").await else {
            return;
        };
        let election = name("leader");
        let a = store.client("a").await;
        let token = a.win(&election, LONG).await;
        a.release(&election, token).await;
        for (renewed, transitions) in [
            ("2020-01-01T00:00:00.000000Z", 2),
            ("2099-01-01T00:00:00.000000Z", 3),
        ] {
            let foreign = json!({ "spec": {
                "holderIdentity": "controller_1234",
                "leaseDurationSeconds": 2,
                "leaseTransitions": transitions,
                "renewTime": renewed,
            } });
            store.patch("leader", &foreign).await;
            let begun = std::time::Instant::now();
            let (leader, remaining) = denied(a.campaign(&election, LONG).await);
            let leader = leader.expect("whoever it is has a name");
            assert_eq!(leader.owner.instance.as_str(), "controller_1234");
            assert!(leader.token > token, "its term comes after ours");
            assert!(remaining.is_some_and(|left| left <= Duration::from_secs(2)));
            let mine = a.take_over(&election, LONG).await;
            assert!(begun.elapsed() >= Duration::from_secs(2), "{renewed}");
            assert!(mine > leader.token);
            a.release(&election, mine).await;
        }
    }

    #[tokio::test]
    async fn a_lease_that_client_go_released_is_taken_at_once() {
        let Some(store) = Fresh::start("client_go_released").await else {
            return;
        };
        let election = name("leader");
        let a = store.client("a").await;
        let token = a.win(&election, LONG).await;
        let now = "2026-11-29T16:00:00.000000Z";
        let released = json!({ "spec": {
            "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now,
            "leaseTransitions": 7,
        } });
        store.patch("leader", &released).await;
        let b = store.client("b").await;
        assert!(b.win(&election, LONG).await > token);
        assert_eq!(store.lease("leader").await["spec"]["leaseTransitions"], 8);
    }

    #[tokio::test]
    async fn a_late_renewal_does_not_bring_a_deleted_lease_back() {
        let Some(store) = Fresh::start("a_late_renewal_of_a_deleted_lease").await else {
            return;
        };
        let election = name("leader");
        let a = store.client("a").await;
        for _ in 0..5 {
            let token = a.win(&election, LONG).await;
            store.forget(&election).await;
            let (leader, remaining) = denied(a.renew(&election, LONG, token).await);
            assert_eq!((leader, remaining), (None, None));
            let place = path(&store.namespace, "leader");
            let (status, _) = store
                .server
                .request("GET", &place, JSON, &Value::Null)
                .await;
            assert_eq!(status, 404);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn with_get_create_and_update_alone_it_elects_and_hears_nothing() {
        let rights = &["get", "create", "update"];
        let Some(store) = Fresh::with_rights("the_least_rights", rights).await else {
            return;
        };
        let election = name("leader");
        let (a, b) = (store.client("a").await, store.client("b").await);
        let token = a.win(&election, LONG).await;
        denied(b.campaign(&election, LONG).await);
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        let (hints, mut heard) = tokio::sync::mpsc::channel(8);
        let watch = Arc::clone(&b.backend)
            .watch(election.clone(), hints)
            .unwrap();
        let watch = tokio::spawn(watch);
        let first = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await;
        assert_eq!(first.unwrap(), Some(Hint::Blind));
        watch.abort();
        assert!(a.release(&election, token).await);
        b.win(&election, LONG).await;
    }

    #[tokio::test]
    async fn a_missing_right_is_refused_at_start_and_named_with_its_rule() {
        for (rights, verb) in [
            (&["create", "update", "watch"][..], "get"),
            (&["get", "update", "watch"], "create"),
            (&["get", "create", "watch"], "update"),
        ] {
            let Some(store) = Fresh::with_rights("a_missing_right", rights).await else {
                return;
            };
            let error = refused(store.options()).await;
            assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
            for part in [
                format!("may not {verb} leases in namespace {}", store.namespace),
                r#"apiGroups: ["coordination.k8s.io"]"#.into(),
                r#"resources: ["leases"]"#.into(),
                format!("verbs: [{verb:?}]"),
            ] {
                assert!(error.message.contains(&part), "{part}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn a_right_that_is_taken_away_later_is_named_too_and_is_never_leadership() {
        let Some(store) = Fresh::with_rights("a_right_taken_away", &["get"]).await else {
            return;
        };
        let client = unprepared(store.options());
        let error = client.attempt(&name("leader"), LONG, None).await;
        let error = error.expect_err("it may not create");
        assert_eq!((error.kind, error.code), (Fatal, "refused"));
        assert!(error.message.contains("may not create leases"), "{error}");
        assert!(error.message.contains(r#"verbs: ["create"]"#), "{error}");
        assert!(error.message.contains("system:serviceaccount:"), "{error}");
    }

    #[tokio::test]
    async fn a_role_that_names_an_existing_lease_needs_no_right_to_create() {
        let Some(store) = Fresh::start("a_role_that_names_a_lease").await else {
            return;
        };
        store
            .client("maker")
            .await
            .win(&name("leader"), SHORT)
            .await;
        let rules = json!([{
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["leader"],
            "verbs": ["get", "update", "watch"],
        }]);
        let server = store.server;
        let token = server.account(&store.namespace, "named", &rules).await;
        let kubeconfig = server.kubeconfig(&User::Token(token), None).await;
        let options = options(kubeconfig, &store.namespace);
        let named = client(options.clone(), "named").await;
        named.watch(&name("leader")).await;
        named.take_over(&name("leader"), LONG).await;
        store.forget(&name("leader")).await;
        let error = refused(options).await;
        assert!(error.message.contains("may not create leases"), "{error}");
    }

    #[tokio::test]
    async fn a_namespace_that_is_not_there_is_named_and_waited_for() {
        let Some(server) = Kubernetes::shared("a_namespace_that_is_not_there") else {
            return;
        };
        let missing = format!("later-{}", std::process::id());
        let client = client(options(server.admin.clone(), &missing), "a").await;
        let error = client.attempt(&name("leader"), LONG, None).await;
        let error = error.expect_err("there is no such namespace");
        assert_eq!((error.kind, error.code), (Transient, "no-namespace"));
        assert!(error.message.contains(&missing), "{error}");
        assert!(
            error.message.contains("kubectl create namespace"),
            "{error}"
        );
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": missing },
        });
        let (status, answer) = server
            .request("POST", "/api/v1/namespaces", JSON, &namespace)
            .await;
        assert_eq!(status, 201, "{answer}");
        client.win(&name("leader"), LONG).await;
    }

    #[tokio::test]
    async fn a_token_file_is_read_for_each_request() {
        let Some(store) = Fresh::start("a_token_file").await else {
            return;
        };
        let (server, dir) = (store.server, TempDir::new());
        let file = dir.path().join("token");
        let good = server
            .account(&store.namespace, "other", &lease_rules(ALL))
            .await;
        fs::write(&file, format!("{good}\n")).unwrap();
        let kubeconfig = server
            .kubeconfig(&User::TokenFile(file.clone()), None)
            .await;
        let a = client(options(kubeconfig, &store.namespace), "a").await;
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        // Rotation replaces the file.
        fs::write(dir.path().join("new"), "no-token").unwrap();
        fs::rename(dir.path().join("new"), &file).unwrap();
        let error = a.attempt(&election, LONG, Some(token)).await;
        let error = error.expect_err("an unknown token");
        assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
        assert!(!error.message.contains("no-token"), "{error}");
        fs::write(&file, good).unwrap();
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        // One that vanished is no reason to forget it.
        fs::remove_file(&file).unwrap();
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
    }

    #[tokio::test]
    async fn credentials_that_were_refused_are_read_anew_within_the_attempt() {
        let Some(store) = Fresh::start("credentials_read_anew").await else {
            return;
        };
        let (server, dir) = (store.server, TempDir::new());
        let config = dir.path().join("config");
        fs::copy(&store.kubeconfig, &config).unwrap();
        let a = client(options(config.clone(), &store.namespace), "a").await;
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        let old = fs::read_to_string(&config).unwrap();
        let delete = format!(
            "/api/v1/namespaces/{}/serviceaccounts/elector",
            store.namespace
        );
        let (status, answer) = server.request("DELETE", &delete, JSON, &Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        // The server remembers for about ten seconds.
        let error = eventually("the old token is refused", async || {
            a.attempt(&election, LONG, Some(token)).await.err()
        })
        .await;
        assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
        let fresh = server
            .account(&store.namespace, "successor", &lease_rules(ALL))
            .await;
        let fresh = server.kubeconfig(&User::Token(fresh), None).await;
        assert_ne!(old, fs::read_to_string(&fresh).unwrap());
        fs::copy(fresh, &config).unwrap();
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
    }

    #[tokio::test]
    async fn client_certificates_tokens_contexts_and_ipv6_hosts_serve_alike() {
        let Some(store) = Fresh::start("ways_to_reach_the_server").await else {
            return;
        };
        let (server, dir) = (store.server, TempDir::new());
        let election = name("leader");
        let a = client(
            options(server.admin.clone(), &store.namespace),
            "certificate",
        )
        .await;
        let mut last = a.win(&election, LONG).await;
        a.release(&election, last).await;

        let six = server.url6.as_deref();
        assert!(six.is_some_and(|url| url.starts_with("https://[::1]:")));
        let six = server.kubeconfig(&User::Certificate, six).await;
        let b = client(options(six, &store.namespace), "six").await;
        let token = b.win(&election, LONG).await;
        assert!(token > last);
        last = token;
        b.release(&election, last).await;

        // Two contexts in one file, and the namespace comes from the context.
        let ca = server.ca.display();
        let two = dir.path().join("two");
        let (url, token, namespace) = (&server.url, &server.token, &store.namespace);
        let text = format!(
            "clusters:\n\
             - {{ name: nowhere, cluster: {{ server: 'https://127.0.0.1:1' }} }}\n\
             - {{ name: here, cluster: {{ server: '{url}', certificate-authority: '{ca}' }} }}\n\
             users:\n- {{ name: admin, user: {{ token: '{token}' }} }}\n\
             contexts:\n\
             - {{ name: wrong, context: {{ cluster: nowhere }} }}\n\
             - {{ name: right, context: {{ cluster: here, user: admin, namespace: {namespace} }} }}\n\
             current-context: wrong\n"
        );
        fs::write(&two, text).unwrap();
        let mut right = options(two.clone(), &store.namespace);
        right.place.context = Some("right".into());
        right.place.namespace = None;
        let c = client(right.clone(), "context").await;
        assert!(
            c.backend.describe().contains(namespace),
            "{}",
            c.backend.describe()
        );
        assert!(c.win(&election, LONG).await > last);
        right.place.context = Some("no".into());
        let error = refused(right).await;
        assert!(error.message.contains("wrong, right"), "{error}");
        let error = refused(options(two, &store.namespace)).await;
        assert_eq!(
            (error.kind, error.code),
            (Transient, "unreachable"),
            "{error}"
        );
    }

    /// A kubeconfig whose user is a program, in the shell's language: `$TOKEN` is a token that is good.
    #[cfg(unix)]
    async fn with_plugin(store: &Fresh, dir: &TempDir, script: &str) -> KubernetesOptions {
        use std::os::unix::fs::PermissionsExt;
        let rules = lease_rules(ALL);
        let account = format!("plugged-{}", dir.path().file_name().unwrap().display());
        let token = store
            .server
            .account(&store.namespace, &account, &rules)
            .await;
        fs::write(dir.path().join("token"), token).unwrap();
        let plugin = dir.path().join("plugin");
        let script = format!(
            "#!/bin/sh\ncd {}\necho asked >> asked\nTOKEN=$(cat token)\n\
             issue() {{ printf '{{\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"%s\"%s}}}}' \"$TOKEN\" \"$1\"; }}\n{script}\n",
            dir.path().display()
        );
        fs::write(&plugin, script).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        let config = dir.path().join("config");
        let text = format!(
            "clusters:\n- {{ name: c, cluster: {{ server: '{}', certificate-authority: '{}' }} }}\n\
             users:\n- name: u\n  user:\n    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      command: ./plugin\n      args: [--secret, hunter2]\n      env: [{{ name: PLUGIN_SECRET, value: hunter3 }}]\n      provideClusterInfo: true\n\
             contexts:\n- {{ name: x, context: {{ cluster: c, user: u }} }}\n\
             current-context: x\n",
            store.server.url,
            store.server.ca.display()
        );
        fs::write(&config, text).unwrap();
        let mut options = options(config, &store.namespace);
        options.timeout = Duration::from_secs(2);
        options
    }

    #[cfg(unix)]
    fn times_asked(dir: &TempDir) -> usize {
        fs::read_to_string(dir.path().join("asked"))
            .unwrap()
            .lines()
            .count()
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_credential_plugin_is_asked_once_and_anew_when_its_token_grows_old_or_is_refused() {
        let Some(store) = Fresh::start("a_credential_plugin").await else {
            return;
        };
        let dir = TempDir::new();
        let script = r#"
            [ "$PLUGIN_SECRET $1 $2" = "hunter3 --secret hunter2" ] || exit 1
            case "$KUBERNETES_EXEC_INFO" in *certificate-authority-data*) ;; *) exit 2 ;; esac
            [ -e rotated ] && TOKEN=no-token
            [ -e old ] && issue ',"expirationTimestamp":"2020-01-01T00:00:00Z"' || issue"#;
        let options = with_plugin(&store, &dir, script).await;
        let a = client(options.clone(), "a").await;
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        for _ in 0..5 {
            a.renew(&election, LONG, token).await;
        }
        assert_eq!(times_asked(&dir), 1);
        a.release(&election, token).await;

        // Old credentials serve until the new ones are there.
        fs::write(dir.path().join("old"), "").unwrap();
        let b = client(options, "b").await;
        let token = b.win(&election, LONG).await;
        eventually("it is asked again", async || {
            assert_eq!(held(b.renew(&election, LONG, token).await), token);
            (times_asked(&dir) >= 3).then_some(())
        })
        .await;

        fs::write(dir.path().join("rotated"), "").unwrap();
        let error = eventually("they are refused", async || {
            b.attempt(&election, LONG, Some(token)).await.err()
        })
        .await;
        assert_eq!(error.code, "refused", "{error}");
        fs::remove_file(dir.path().join("rotated")).unwrap();
        eventually("they are good again", async || {
            b.attempt(&election, LONG, Some(token)).await.ok()
        })
        .await;
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_plugins_complaint_is_told_and_nothing_else_of_it() {
        let Some(store) = Fresh::start("a_plugins_complaint").await else {
            return;
        };
        let dir = TempDir::new();
        let script = "echo secret-output; echo 'please sign in' >&2; exit 3";
        let options = with_plugin(&store, &dir, script).await;
        let error = refused(options).await;
        assert_eq!(error.code, "refused", "{error}");
        assert!(error.message.contains("please sign in"), "{error}");
        for secret in ["secret-output", "hunter", "certificate-authority"] {
            assert!(!error.message.contains(secret), "{error}");
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_slow_plugin_delays_the_start_and_no_stop() {
        let Some(store) = Fresh::start("a_slow_plugin").await else {
            return;
        };
        let dir = TempDir::new();
        let script = "[ -e slow ] && sleep 4; issue";
        fs::write(dir.path().join("slow"), "").unwrap();
        let options = with_plugin(&store, &dir, script).await;
        let slow = unprepared(options);
        let election = name("leader");
        let error = slow.attempt(&election, LONG, None).await.expect_err("slow");
        assert_eq!((error.kind, error.code), (Transient, "timeout"), "{error}");
        assert!(error.message.contains("credential"), "{error}");
        // It is asked once, and its answer counts for whoever asks later.
        eventually("it has answered", async || {
            slow.attempt(&election, LONG, None).await.ok()
        })
        .await;
        assert_eq!(times_asked(&dir), 1);

        let dir = TempDir::new();
        let options = with_plugin(&store, &dir, "sleep 30; issue").await;
        let hung = unprepared(options);
        let (hints, _heard) = tokio::sync::mpsc::channel(8);
        let watch = Arc::clone(&hung.backend)
            .watch(election.clone(), hints)
            .unwrap();
        let watch = tokio::spawn(watch);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let closed = tokio::time::timeout(Duration::from_secs(5), hung.backend.close()).await;
        closed.expect("it closes at once");
        watch.abort();
    }

    #[tokio::test]
    async fn a_configuration_that_leads_elsewhere_is_not_followed() {
        let Some(store) = Fresh::start("a_configuration_that_leads_elsewhere").await else {
            return;
        };
        let dir = TempDir::new();
        let config = dir.path().join("config");
        let text = fs::read_to_string(&store.kubeconfig).unwrap();
        fs::write(&config, &text).unwrap();
        let a = client(options(config.clone(), &store.namespace), "a").await;
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        // Another server, and credentials that the old one does not take any more.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let port = store.server.port.to_string();
        fs::write(&config, text.replace(&port, "1")).unwrap();
        let delete = format!(
            "/api/v1/namespaces/{}/serviceaccounts/elector",
            store.namespace
        );
        store
            .server
            .request("DELETE", &delete, JSON, &Value::Null)
            .await;
        let error = eventually("the old token is refused", async || {
            a.attempt(&election, LONG, Some(token)).await.err()
        })
        .await;
        assert_eq!((error.kind, error.code), (Fatal, "unsuitable"), "{error}");
        assert!(
            error.message.contains("two places are two elections"),
            "{error}"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_proxy_of_the_kubeconfig_is_used() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let Some(store) = Fresh::start("a_proxy").await else {
            return;
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = store.server.port;
        let tunnel = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut asked = vec![0; 4096];
                    let length = client.read(&mut asked).await.unwrap();
                    let asked = String::from_utf8_lossy(&asked[..length]).into_owned();
                    assert!(asked.starts_with(&format!("CONNECT 127.0.0.1:{target}")));
                    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let mut server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        let (server, dir) = (store.server, TempDir::new());
        let with_proxy = |proxy: String| {
            let text = format!(
                "clusters: [{{ name: c, cluster: {{ server: '{}', certificate-authority: '{}', proxy-url: '{proxy}' }} }}]\n\
                 users: [{{ name: u, user: {{ token: '{}' }} }}]\n\
                 contexts: [{{ name: x, context: {{ cluster: c, user: u }} }}]\n\
                 current-context: x\n",
                server.url,
                server.ca.display(),
                server.token
            );
            let file = dir.path().join("config");
            fs::write(&file, text).unwrap();
            options(file, &store.namespace)
        };
        let a = client(with_proxy(format!("http://127.0.0.1:{port}")), "a").await;
        a.win(&name("leader"), LONG).await;
        tunnel.abort();
        let error = refused(with_proxy("ftp://user:hunter2@proxy".into())).await;
        assert!(error.message.contains("proxy-url"), "{error}");
        assert!(!error.message.contains("hunter2"), "{error}");
    }

    async fn behind(store: &Fresh, proxy: &Proxy) -> KubernetesOptions {
        let server = store.server;
        let token = server
            .account(&store.namespace, "behind", &lease_rules(ALL))
            .await;
        let url = format!("https://127.0.0.1:{}", proxy.port);
        let kubeconfig = server.kubeconfig(&User::Token(token), Some(&url)).await;
        let mut options = options(kubeconfig, &store.namespace);
        options.timeout = Duration::from_secs(1);
        options
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_answer_that_never_came_counts_for_nothing_and_the_next_attempt_finds_out() {
        let Some(store) = Fresh::start("an_answer_that_never_came").await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let far = client(behind(&store, &proxy).await, "far").await;
        let near = store.client("near").await;
        let election = name("leader");
        let first = far.win(&election, LONG).await;
        proxy.set(Trouble::HoldAnswers);
        let error = far
            .attempt(&election, LONG, None)
            .await
            .expect_err("no answer");
        assert_eq!(
            error.kind,
            whenleader::lease::FailureKind::Ambiguous,
            "{error}"
        );
        let lost = near.leader(&election).await.expect("it was applied");
        assert!(lost.token > first);
        proxy.set(Trouble::None);
        let next = far.win(&election, LONG).await;
        assert!(next > lost.token);
        // A renewal that was applied without an answer goes on where it was.
        proxy.set(Trouble::HoldAnswers);
        far.attempt(&election, LONG, Some(next))
            .await
            .expect_err("no answer");
        proxy.set(Trouble::None);
        assert_eq!(held(far.renew(&election, LONG, next).await), next);
        assert!(far.release(&election, next).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_died_idle_is_replaced_within_the_attempt() {
        let Some(store) = Fresh::start("a_connection_that_died_idle").await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let a = client(behind(&store, &proxy).await, "a").await;
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        for _ in 0..10 {
            proxy.cut();
            assert_eq!(held(a.renew(&election, LONG, token).await), token);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_whose_other_end_vanished_is_replaced_within_the_attempt() {
        let Some(store) = Fresh::start("a_connection_that_vanished").await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let a = client(behind(&store, &proxy).await, "a").await;
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        for _ in 0..3 {
            proxy.freeze();
            assert_eq!(held(a.renew(&election, LONG, token).await), token);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_that_is_cut_hears_what_happened_meanwhile() {
        let Some(store) = Fresh::start("a_watch_that_is_cut").await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let far = client(behind(&store, &proxy).await, "far").await;
        let near = store.client("near").await;
        let election = name("leader");
        let token = near.win(&election, LONG).await;
        let mut hearing = far.watch(&election).await;
        proxy.set(Trouble::Refuse);
        proxy.cut();
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        // Nobody hears of this.
        assert!(near.release(&election, token).await);
        proxy.set(Trouble::None);
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        hearing.until("Free", |hint| hint == Hint::Free).await;
        near.win(&election, LONG).await;
        hearing
            .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
            .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_whose_other_end_vanished_is_found_out_when_the_leader_should_have_renewed() {
        let Some(store) = Fresh::start("a_watch_that_is_deaf").await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let far = client(behind(&store, &proxy).await, "far").await;
        let near = store.client("near").await;
        let election = name("leader");
        near.win(&election, Duration::from_secs(2)).await;
        let mut hearing = far.watch(&election).await;
        hearing
            .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
            .await;
        proxy.freeze();
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_freezes_dies_and_comes_back_loses_no_term_by_itself() {
        let Some(server) = Kubernetes::own("a_server_that_comes_back", &[]) else {
            return;
        };
        let namespace = server.fresh_namespace().await;
        let mut options = options(server.admin.clone(), &namespace);
        options.timeout = Duration::from_secs(1);
        let (a, b) = (
            client(options.clone(), "a").await,
            client(options, "b").await,
        );
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        let mut hearing = b.watch(&election).await;

        server.freeze().await;
        let error = a
            .attempt(&election, LONG, Some(token))
            .await
            .expect_err("frozen");
        assert_eq!(error.code, "timeout", "{error}");
        let error = b.attempt(&election, LONG, None).await.expect_err("frozen");
        assert_eq!((error.kind, error.code), (Transient, "timeout"), "{error}");
        server.thaw().await;
        assert_eq!(held(a.renew(&election, LONG, token).await), token);

        server.kill().await;
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        let error = a
            .attempt(&election, LONG, Some(token))
            .await
            .expect_err("gone");
        assert_eq!(
            (error.kind, error.code),
            (Transient, "unreachable"),
            "{error}"
        );
        assert!(error.message.contains("refused"), "{error}");
        server.restart().await;
        let renewed = eventually("it is renewed", async || {
            match a.attempt(&election, LONG, Some(token)).await {
                Ok(outcome) => Some(held(outcome)),
                Err(_) => None,
            }
        })
        .await;
        assert_eq!(renewed, token);
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        let (leader, _) = denied(b.campaign(&election, LONG).await);
        assert_eq!(leader, Some(leading(&a, token)));
        assert!(a.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_pod_is_labelled_with_its_role_if_that_is_wanted_and_allowed() {
        let Some(store) = Fresh::start("a_pod_is_labelled").await else {
            return;
        };
        let (server, namespace) = (store.server, &store.namespace);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "pod-0", "labels": { "app": "shop" } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        });
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let (status, answer) = server.request("POST", &pods, JSON, &pod).await;
        assert_eq!(status, 201, "{answer}");
        let role = async || {
            let place = format!("{pods}/pod-0");
            let (_, pod) = server.request("GET", &place, JSON, &Value::Null).await;
            let labels = &pod["metadata"]["labels"];
            assert_eq!(labels["app"], "shop");
            labels["whenleader/role"].as_str().map(str::to_owned)
        };
        let becomes = async |wanted: &str| {
            eventually(wanted, async || {
                (role().await.as_deref() == Some(wanted)).then_some(())
            })
            .await;
        };
        let mut wanted = store.options();
        wanted.pod_labels = true;
        // Without the right it does not start, and without a name neither.
        let named = |pod: &str| Pod::new(Some(pod.into()), Some(namespace.clone()));
        wanted.pod = named("pod-0");
        let error = refused(wanted.clone()).await;
        assert!(error.message.contains("may not patch pods"), "{error}");
        assert!(error.message.contains(r#"apiGroups: [""]"#), "{error}");
        wanted.place.config = Some(server.admin.clone());
        wanted.pod = Pod::new(None, None);
        let error = refused(wanted.clone()).await;
        assert!(error.message.contains("POD_NAME"), "{error}");

        wanted.pod = named("pod-0");
        let client = client(wanted, "a").await;
        let (ours, other) = (name("leader"), name("other"));
        assert_eq!(role().await, None);
        client.backend.tell_role(&ours, false);
        becomes("follower").await;
        client.backend.tell_role(&ours, true);
        becomes("leader").await;
        client.backend.tell_role(&other, false);
        client.backend.tell_role(&ours, false);
        // Whoever stops waits for it.
        client.backend.close().await;
        assert_eq!(role().await.as_deref(), Some("follower"));
    }

    #[tokio::test]
    async fn what_makes_no_kubeconfig_is_refused_by_name() {
        let Some(server) = Kubernetes::shared("what_makes_no_kubeconfig") else {
            return;
        };
        let dir = TempDir::new();
        for (text, words) in [
            ("", "no current-context"),
            (
                "clusters: null\ncontexts: null\nusers: null\n",
                "no current-context",
            ),
            ("current-context: x\n", "has no contexts"),
            (
                "contexts: [{ name: y, context: { cluster: c } }]\ncurrent-context: x\n",
                "context must be one of",
            ),
            (
                "users:\n- name: u\n  user:\n    token: \"hunter2\n    x: [\n",
                "near line",
            ),
            ("{ not yaml", "cannot be used"),
            (
                "contexts: [{ name: x, context: { cluster: c } }]\ncurrent-context: x\n",
                "which is not in it",
            ),
            (
                "contexts: [{ name: x, context: { cluster: c } }]\ncurrent-context: x\nclusters: [{ name: c, cluster: { server: 'ftp://x' } }]\n",
                "must be a URL like https://10.0.0.1:6443",
            ),
            (
                "contexts: [{ name: x, context: { cluster: c } }]\ncurrent-context: x\nclusters: [{ name: c, cluster: { server: 'https://h', certificate-authority: nowhere } }]\n",
                "nowhere",
            ),
        ] {
            let file = dir.path().join("config");
            fs::write(&file, text).unwrap();
            let error = refused(options(file, "default")).await;
            assert_eq!(
                (error.kind, error.code),
                (Fatal, "unsuitable"),
                "{text}: {error}"
            );
            assert!(error.message.contains(words), "{text}: {error}");
            assert!(!error.message.contains("hunter2"), "{error}");
        }
        let error = refused(options(Path::new("/nowhere/config").into(), "default")).await;
        assert!(error.message.contains("/nowhere/config"), "{error}");
        // A certificate of somebody else.
        let wrong = format!(
            "clusters: [{{ name: c, cluster: {{ server: '{}' }} }}]\ncontexts: [{{ name: x, context: {{ cluster: c }} }}]\ncurrent-context: x\n",
            server.url
        );
        let file = dir.path().join("config");
        fs::write(&file, wrong).unwrap();
        let error = refused(options(file, "default")).await;
        assert_eq!(
            (error.kind, error.code),
            (Transient, "unreachable"),
            "{error}"
        );
        assert!(error.message.contains("certificate"), "{error}");
    }

    #[tokio::test]
    async fn a_record_that_would_bar_the_election_for_years_is_waited_out_like_one_of_ours() {
        let Some(store) = Fresh::start("a_lease_with_odd_content").await else {
            return;
        };
        let election = name("leader");
        let a = store.client("a").await;
        a.win(&election, LONG).await;
        let odd = json!({ "spec": {
            "holderIdentity": "x".repeat(300), "leaseDurationSeconds": 2_147_483_647,
            "leaseTransitions": 2_147_483_647, "renewTime": null, "acquireTime": null,
        } });
        store.patch("leader", &odd).await;
        let b = store.client("b").await;
        let Outcome::Other { leader, remaining } = b.campaign(&election, SHORT).await else {
            panic!("taken at once");
        };
        assert_eq!(leader, None);
        assert!(remaining.is_some_and(|left| left <= SHORT), "{remaining:?}");
        b.take_over(&election, SHORT).await;
        assert_eq!(
            store.lease("leader").await["spec"]["leaseTransitions"],
            2_147_483_647
        );
    }
}
