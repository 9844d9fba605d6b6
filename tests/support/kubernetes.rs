//! A real Kubernetes API server with RBAC, run and asked through tools/kubernetes/serve.mjs, which tells
//! how. Nothing here knows HTTP, TLS or kubeconfigs.

use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::launcher::Launcher;

/// A running server. It ends with its value, or with this process.
#[derive(Debug)]
pub struct Kubernetes {
    /// By address, so that nobody needs names: <https://127.0.0.1:port>.
    pub url: String,
    pub port: u16,
    /// The same server, where it was asked to listen there, too.
    pub url6: Option<String>,
    /// The certificate of its authority.
    pub ca: PathBuf,
    /// A kubeconfig of an administrator with a client certificate.
    pub admin: PathBuf,
    /// The same with a token.
    pub admin_token: PathBuf,
    pub token: String,
    pub client_cert: PathBuf,
    pub client_key: PathBuf,
    launcher: Launcher,
}

/// What a kubeconfig says of its user.
#[derive(Debug, Clone)]
pub enum User {
    Nobody,
    Token(String),
    TokenFile(PathBuf),
    /// The administrator's client certificate.
    Certificate,
}

impl Kubernetes {
    /// One for all tests of this program that leave it as it is. `None`: it cannot run here, and the test
    /// was reported as skipped.
    pub fn shared(test: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<Result<Kubernetes, String>> = OnceLock::new();
        match SHARED.get_or_init(|| Self::start(&["--ipv6"])) {
            Ok(server) => Some(server),
            Err(why) => {
                super::skip(test, why);
                None
            }
        }
    }

    /// One of the test's own. Flags are the launcher's: `--ipv6`, `--apiserver-flag=<flag>`.
    pub fn own(test: &str, flags: &[&str]) -> Option<Self> {
        Self::start(flags)
            .inspect_err(|why| super::skip(test, why))
            .ok()
    }

    fn start(flags: &[&str]) -> Result<Self, String> {
        let (launcher, told) = Launcher::start("tools/kubernetes/serve.mjs", flags)?;
        let text = |key: &str| {
            told[key]
                .as_str()
                .expect("the launcher tells it")
                .to_owned()
        };
        Ok(Self {
            url: text("url"),
            port: told["port"].as_u64().unwrap().try_into().unwrap(),
            url6: told["url6"].as_str().map(str::to_owned),
            ca: text("ca").into(),
            admin: text("admin").into(),
            admin_token: text("adminToken").into(),
            token: text("token"),
            client_cert: text("clientCert").into(),
            client_key: text("clientKey").into(),
            launcher,
        })
    }

    /// It takes connections and requests, and answers none.
    pub async fn freeze(&self) {
        self.launcher.ask(json!({ "do": "freeze" })).await;
    }

    pub async fn thaw(&self) {
        self.launcher.ask(json!({ "do": "thaw" })).await;
    }

    /// It dies, and connections are refused.
    pub async fn kill(&self) {
        self.launcher.ask(json!({ "do": "kill" })).await;
    }

    /// On the same port, with all that it knew.
    pub async fn restart(&self) {
        self.launcher.ask(json!({ "do": "restart" })).await;
    }

    pub async fn fresh_namespace(&self) -> String {
        let told = self.launcher.ask(json!({ "do": "namespace" })).await;
        told["namespace"].as_str().unwrap().to_owned()
    }

    /// A new service account that may do what the rules say in its namespace. Returns a token of it.
    pub async fn account(&self, namespace: &str, name: &str, rules: &Value) -> String {
        let asked =
            json!({ "do": "account", "namespace": namespace, "name": name, "rules": rules });
        let told = self.launcher.ask(asked).await;
        told["token"].as_str().unwrap().to_owned()
    }

    /// A token of an account that holds for so many seconds, and up to 10 more: the server remembers.
    pub async fn short_token(&self, namespace: &str, name: &str, seconds: u64) -> String {
        let asked =
            json!({ "do": "shortToken", "namespace": namespace, "name": name, "seconds": seconds });
        let told = self.launcher.ask(asked).await;
        told["token"].as_str().unwrap().to_owned()
    }

    /// As the administrator. A body that is a string is sent as it is, and `Null` is none. The answer's
    /// body is a string where it is no JSON.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> (u16, Value) {
        self.request_as(Some(&self.token), method, path, content_type, body)
            .await
    }

    /// As whom the token says, or as nobody.
    pub async fn request_as(
        &self,
        token: Option<&str>,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> (u16, Value) {
        let asked = json!({
            "do": "request",
            "token": token.unwrap_or_default(),
            "method": method,
            "path": path,
            "contentType": content_type,
            "body": body,
        });
        let mut told = self.launcher.ask(asked).await;
        let status = told["status"].as_u64().unwrap().try_into().unwrap();
        (status, told["body"].take())
    }

    /// The program that runs the server dies, and cannot end it itself.
    pub fn kill_launcher(self) {
        self.launcher.kill();
    }

    /// A new kubeconfig file. `server` is another address of this one, such as a proxy's.
    pub async fn kubeconfig(&self, user: &User, server: Option<&str>) -> PathBuf {
        let mut asked = match user {
            User::Nobody => json!({}),
            User::Token(token) => json!({ "token": token }),
            User::TokenFile(path) => json!({ "tokenFile": path }),
            User::Certificate => json!({ "certificate": true }),
        };
        asked["do"] = json!("kubeconfig");
        if let Some(server) = server {
            asked["server"] = json!(server);
        }
        self.launcher.ask(asked).await["path"]
            .as_str()
            .unwrap()
            .into()
    }
}
