//! etcd.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, open};
use crate::support::{Kind, Server};

/// Keys of its own on the server that all tests share.
pub struct Fresh {
    server: &'static Server,
    prefix: String,
}

impl Fresh {
    fn url(&self) -> String {
        format!("{}?prefix={}", url(self.server), self.prefix)
    }
}

fn url(server: &Server) -> String {
    format!("etcd://127.0.0.1:{}", server.port)
}

fn key(prefix: &str, election: &ElectionName, what: &str) -> String {
    BASE64.encode(format!("{prefix}cluster:{election}/{what}"))
}

/// Asks the server something, as `curl` would.
async fn ask(server: &Server, path: &str, body: Value) -> Value {
    let url = format!("http://127.0.0.1:{}{path}", server.port);
    let client = reqwest::Client::builder().tls_backend_preconfigured(trusting_nobody());
    let client = client.no_proxy().build().unwrap();
    let answer = client.post(url).json(&body).send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert!(status.is_success(), "{path} {body}: {status} {text}");
    serde_json::from_str(&text).unwrap()
}

/// reqwest wants to know, also where it is not needed.
fn trusting_nobody() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

impl Fixture for Fresh {
    const RUBBISH_EXPIRES: bool = false;
    /// Whole seconds, and two at least.
    const STEP: std::time::Duration = std::time::Duration::from_secs(2);

    async fn start(test: &str) -> Option<Self> {
        let server = Server::shared(test, Kind::Etcd)?;
        let prefix = format!("{test}/");
        Some(Self { server, prefix })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.url())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let key = key(&self.prefix, election, "lease");
        let put = json!({ "key": key, "value": BASE64.encode(rubbish) });
        ask(self.server, "/v3/kv/put", put).await;
    }

    async fn forget(&self, election: &ElectionName) {
        for what in ["lease", "token"] {
            let key = key(&self.prefix, election, what);
            ask(self.server, "/v3/kv/deleterange", json!({ "key": key })).await;
        }
    }
}

mod etcd_conforms {
    crate::conformance!(super::Fresh);
}
