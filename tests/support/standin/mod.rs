//! A Kubernetes API server in memory, for the faults that a real one cannot be made to show.
//!
//! It answers as the real one does, which `kubernetes_contract` proves with one list of requests for
//! both; then it can be told to fail: `standin.on("update").times(2, Fault::Stall)`. It runs on a
//! thread and a clock of its own, so a test may block or stop its own time.

mod api;
mod client;
mod fault;
mod fields;
mod http;
mod lease;
mod patch;
mod rights;
mod serve;
mod shape;
mod status;
mod store;
mod target;
mod time;
mod tls;
mod watch;
mod writes;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

pub use client::{Client, Events};
pub use fault::Fault;
pub use http::{Answer, Request};
pub use tls::Certificate;

use super::TempDir;
use api::Api;
use fault::Rule;
use rights::ADMIN;
use serve::{Command, Shared, listen};
use target::Target;
use tls::Authority;

/// The server. It ends with its value.
pub struct StandIn {
    port: u16,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<(Command, oneshot::Sender<()>)>,
    dir: TempDir,
    files: AtomicUsize,
    authority: Option<Mutex<Authority>>,
}

impl fmt::Debug for StandIn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StandIn({})", self.url())
    }
}

impl StandIn {
    /// With the namespaces `default` and `kube-system`, and nobody but its administrator.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared {
            api: Mutex::new(Api::new()),
            rules: Mutex::default(),
            requests: Mutex::default(),
            signals: tokio::sync::watch::Sender::default(),
            watches: AtomicUsize::new(0),
            tls: Mutex::default(),
        });
        let (commands, orders) = mpsc::unbounded_channel();
        let (ready, started) = oneshot::channel();
        let served = Arc::clone(&shared);
        thread::Builder::new()
            .name("standin".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(listen(served, orders, ready));
            })
            .unwrap();
        let port = started.await.expect("the stand-in listens");
        Self {
            port,
            shared,
            commands,
            dir: TempDir::new(),
            files: AtomicUsize::new(0),
            authority: None,
        }
    }

    /// The same, encrypted.
    pub async fn start_tls() -> Self {
        let mut server = Self::start().await;
        server.authority = Some(Mutex::new(Authority::new(&server.ca())));
        server.show(Certificate::Good);
        server
    }

    /// The file with the certificate of its authority.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// What new connections see from now on.
    pub fn show(&self, certificate: Certificate) {
        let authority = self.authority.as_ref().expect("it was started with TLS");
        let acceptor = authority.lock().unwrap().server(certificate);
        *self.shared.tls.lock().unwrap() = Some(acceptor);
    }

    /// There is a new authority, in the same file, and a certificate of it.
    pub fn rotate_authority(&self) {
        let authority = self.authority.as_ref().expect("it was started with TLS");
        *authority.lock().unwrap() = Authority::new(&self.ca());
        self.show(Certificate::Good);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        let secure = if self.authority.is_some() { "s" } else { "" };
        format!("http{secure}://127.0.0.1:{}", self.port)
    }

    /// The administrator's token.
    pub const ADMIN: &str = ADMIN;

    /// As the administrator.
    pub fn client(&self) -> Client {
        self.client_with(Some(ADMIN))
    }

    /// As nobody in particular.
    pub fn client_as_nobody(&self) -> Client {
        self.client_with(None)
    }

    pub fn client_as(&self, token: &str) -> Client {
        self.client_with(Some(token))
    }

    fn client_with(&self, token: Option<&str>) -> Client {
        let ca = self.authority.as_ref().map(|_| self.ca());
        Client::new(self.port, token, ca)
    }

    /// A file with the administrator's access, for the namespace `default`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_as(ADMIN, "default")
    }

    pub fn kubeconfig_as(&self, token: &str, namespace: &str) -> PathBuf {
        self.kubeconfig_with(&json!({ "token": token }), namespace)
    }

    /// With any `user` block, as `{ "tokenFile": path }`.
    pub fn kubeconfig_with(&self, user: &Value, namespace: &str) -> PathBuf {
        let mut cluster = json!({ "server": self.url() });
        if self.authority.is_some() {
            cluster["certificate-authority"] = json!(self.ca());
        }
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "standin",
            "clusters": [{ "name": "standin", "cluster": cluster }],
            "users": [{ "name": "standin", "user": user }],
            "contexts": [{
                "name": "standin",
                "context": { "cluster": "standin", "user": "standin", "namespace": namespace },
            }],
        });
        self.write_file("kubeconfig", &config.to_string())
    }

    /// A file of its own in the stand-in's directory.
    pub fn write_file(&self, name: &str, content: &str) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.path().join(format!("{name}-{number}"));
        fs::write(&path, content).unwrap();
        path
    }

    // What was asked.

    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub fn forget_requests(&self) {
        self.shared.requests.lock().unwrap().clear();
    }

    /// How many requests there were of this verb; `any` counts all.
    pub fn count(&self, verb: &str) -> usize {
        let requests = self.shared.requests.lock().unwrap();
        let meant = requests
            .iter()
            .filter(|request| verb == "any" || request.verb == verb);
        meant.count()
    }

    // What is there.

    /// Puts a Lease there whatever it holds. What its metadata lacks is added, and it gets a new
    /// resourceVersion, unless it brings one that is no number.
    pub fn set_lease(&self, namespace: &str, name: &str, lease: &Value) {
        let key = Target::lease(namespace, name).key();
        let mut api = self.shared.api();
        let old = api.store.get(&key);
        let old = old.map_or(Value::Null, |stored| stored.object["metadata"].clone());
        let kept = |field: &str| Some(old[field].clone()).filter(|value| !value.is_null());
        let mut metadata = json!({
            "name": name,
            "namespace": namespace,
            "uid": kept("uid").unwrap_or_else(shape::uid),
            "resourceVersion": (api.store.revision + 1).to_string(),
            "creationTimestamp": kept("creationTimestamp").unwrap_or_else(|| json!(time::seconds())),
        });
        for (field, value) in lease["metadata"].as_object().into_iter().flatten() {
            let number = value
                .as_str()
                .is_some_and(|text| text.parse::<u64>().is_ok());
            if field != "resourceVersion" || !number {
                metadata[field] = value.clone();
            }
        }
        let mut whole = json!({ "kind": "Lease", "apiVersion": "coordination.k8s.io/v1" });
        whole["metadata"] = metadata;
        for (field, value) in lease.as_object().into_iter().flatten() {
            if field != "metadata" {
                whole[field] = value.clone();
            }
        }
        api.store.put_raw(key, whole);
        drop(api);
        self.shared.signal(|signals| signals.changes += 1);
    }

    /// Puts this there and adds nothing, not even a resourceVersion.
    pub fn set_raw_lease(&self, namespace: &str, name: &str, lease: &Value) {
        let key = Target::lease(namespace, name).key();
        self.shared.api().store.put_raw(key, lease.clone());
        self.shared.signal(|signals| signals.changes += 1);
    }

    /// Only its resourceVersion changes, as when somebody writes an annotation and takes it back.
    pub fn touch_lease(&self, namespace: &str, name: &str) {
        let key = Target::lease(namespace, name).key();
        let mut api = self.shared.api();
        let object = api
            .store
            .get(&key)
            .expect("the Lease is there")
            .object
            .clone();
        api.store.put(key, object);
        drop(api);
        self.shared.signal(|signals| signals.changes += 1);
    }

    pub fn lease(&self, namespace: &str, name: &str) -> Option<Value> {
        let key = Target::lease(namespace, name).key();
        self.shared
            .api()
            .store
            .get(&key)
            .map(|stored| stored.object.clone())
    }

    /// Whether it was there.
    pub fn delete_lease(&self, namespace: &str, name: &str) -> bool {
        let key = Target::lease(namespace, name).key();
        let found = self.shared.api().store.remove(&key).is_some();
        self.shared.signal(|signals| signals.changes += 1);
        found
    }

    pub fn add_namespace(&self, name: &str) {
        self.shared.api().add_namespace(name);
    }

    /// It is being deleted: nothing new is let in, and what is there stays.
    pub fn terminate_namespace(&self, name: &str) {
        self.shared.api().terminate_namespace(name);
    }

    /// With all that is in it.
    pub fn remove_namespace(&self, name: &str) {
        self.shared.api().store.remove_namespace(name);
        self.shared.signal(|signals| signals.changes += 1);
    }

    // Who may what.

    /// A service account with these rights and no others, and a token of it:
    /// `account("default", "elector", &[("leases", &["get", "create", "update"])])`.
    ///
    /// With an account that is there, its rights become these.
    pub fn account(&self, namespace: &str, name: &str, rights: &[(&str, &[&str])]) -> String {
        let mut api = self.shared.api();
        api.grant(namespace, name, rights);
        api.issue_token(namespace, name)
    }

    /// Another token of an account.
    pub fn token(&self, namespace: &str, account: &str) -> String {
        self.shared.api().issue_token(namespace, account)
    }

    /// The token is answered 401 from now on.
    pub fn expire_token(&self, token: &str) {
        self.shared.api().tokens.refuse(token);
    }

    pub fn revive_token(&self, token: &str) {
        self.shared.api().tokens.accept(token);
    }

    // What goes wrong.

    /// Requests of this verb: get, list, watch, create, update, patch, delete, or `any`; several with
    /// commas between them.
    pub fn on(&self, verbs: &str) -> On<'_> {
        On {
            standin: self,
            verbs: verbs
                .split(',')
                .map(|verb| verb.trim().to_owned())
                .collect(),
            path: None,
            token: None,
        }
    }

    /// All goes well again. Requests that stall are not answered any more, and watches hear again.
    pub fn calm(&self) {
        self.shared.rules.lock().unwrap().clear();
        self.shared.signal(|signals| signals.deaf = false);
    }

    /// Nothing listens any more, and all connections are broken off.
    pub async fn down(&self) {
        self.command(Command::Down).await;
    }

    /// It listens again on the same port, with what was there.
    pub async fn up(&self) {
        self.command(Command::Up).await;
    }

    async fn command(&self, command: Command) {
        let (done, wait) = oneshot::channel();
        self.commands
            .send((command, done))
            .expect("the stand-in runs");
        wait.await.expect("the stand-in runs");
    }

    // Watches.

    /// How many are open.
    pub fn watches(&self) -> usize {
        self.shared.watches.load(Ordering::SeqCst)
    }

    /// Ends those that are open, in order.
    pub fn cut_watches(&self) {
        self.shared.signal(|signals| signals.cuts += 1);
    }

    /// Those that are open, and new ones, stay open and hear nothing until `calm`.
    pub fn deafen_watches(&self) {
        self.shared.signal(|signals| signals.deaf = true);
    }

    /// Tells those that asked for bookmarks how far they are.
    pub fn send_bookmarks(&self) {
        self.shared.signal(|signals| signals.bookmarks += 1);
    }

    /// Forgets all history: open watches end with 410, and none can start from before.
    pub fn expire_watches(&self) {
        self.shared.api().store.compact();
        self.shared.signal(|signals| signals.expiries += 1);
    }
}

/// Requests for which something shall go wrong. Of several faults for a request the first counts.
#[derive(Debug)]
#[must_use]
pub struct On<'a> {
    standin: &'a StandIn,
    verbs: Vec<String>,
    path: Option<String>,
    token: Option<String>,
}

impl On<'_> {
    /// Only when this is in the path.
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Only when this token asks.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub fn once(self, fault: Fault) {
        self.times(1, fault);
    }

    pub fn times(self, times: usize, fault: Fault) {
        self.add(Some(times), fault);
    }

    /// Until `calm`.
    pub fn always(self, fault: Fault) {
        self.add(None, fault);
    }

    fn add(self, left: Option<usize>, fault: Fault) {
        let rule = Rule {
            verbs: self.verbs,
            path: self.path,
            token: self.token,
            left,
            fault,
        };
        self.standin.shared.rules.lock().unwrap().push(rule);
    }
}
