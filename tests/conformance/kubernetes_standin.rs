//! Kubernetes Leases on the stand-in, which is here where no real API server is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::kubernetes::{Fresh as OnRealServer, open, options};
use crate::suite::Fixture;
use crate::support::StandIn;

struct Fresh {
    server: StandIn,
    kubeconfig: PathBuf,
}

impl Fixture for Fresh {
    const RUBBISH_EXPIRES: bool = OnRealServer::RUBBISH_EXPIRES;
    const STEP: Duration = OnRealServer::STEP;
    const ODD_NAMES: &[&str] = OnRealServer::ODD_NAMES;

    async fn start(_test: &str) -> Option<Self> {
        let server = StandIn::start().await;
        let rights: [(&str, &[&str]); 1] = [("leases", &["get", "create", "update", "watch"])];
        let token = server.account("default", "elector", &rights);
        let kubeconfig = server.kubeconfig_as(&token, "default");
        Some(Self { server, kubeconfig })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(options(self.kubeconfig.clone(), "default"))
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let text = String::from_utf8_lossy(&rubbish[..rubbish.len().min(1_000)]);
        let mut lease = self
            .server
            .lease("default", election.as_str())
            .unwrap_or_else(|| json!({ "metadata": {} }));
        lease["metadata"]["annotations"] =
            json!({ "whenleader/token": text, "whenleader/owner": text });
        lease["spec"] = json!({ "holderIdentity": format!("\n{text}") });
        self.server.set_lease("default", election.as_str(), &lease);
    }

    async fn forget(&self, election: &ElectionName) {
        assert!(self.server.delete_lease("default", election.as_str()));
    }

    async fn list(&self) -> Vec<String> {
        let place = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let all = self.server.client().get(place).await.unwrap();
        assert_eq!(all.status, 200);
        let all: Value = serde_json::from_slice(&all.body).unwrap();
        let leases = all["items"].as_array().expect("a list");
        let names = leases
            .iter()
            .map(|lease| lease["metadata"]["name"].to_string());
        names.collect()
    }
}

crate::conformance!(Fresh);

/// Over TLS, with certificates that a real server is not easily made to show.
mod encrypted {
    use std::sync::Arc;

    use whenleader::backend::Backend;
    use whenleader::lease::FailureKind::Transient;

    use crate::kubernetes::{open, options};
    use crate::suite::{Client, LONG, held, name, owner};
    use crate::support::{Certificate, StandIn, eventually};

    fn backend(server: &StandIn) -> Arc<dyn Backend> {
        open(options(server.kubeconfig(), "default"))
    }

    #[tokio::test]
    async fn an_api_server_is_believed_only_with_a_good_certificate() {
        let server = StandIn::start_tls().await;
        let election = name("leader");
        for (certificate, complaint) in [
            (Certificate::Expired, "expired"),
            (Certificate::OtherName, "not valid for name"),
            (Certificate::OtherAuthority, "UnknownIssuer"),
        ] {
            server.show(certificate);
            let a = Client {
                backend: backend(&server),
                owner: owner("a"),
            };
            let error = a.attempt(&election, LONG, None).await.expect_err(complaint);
            assert_eq!((error.kind, error.code), (Transient, "unreachable"));
            assert!(error.message.contains(complaint), "{error}");
        }
        assert_eq!(server.count("any"), 0);
        server.show(Certificate::Good);
        let a = Client::of(backend(&server), "a").await;
        let token = a.win(&election, LONG).await;
        server.rotate_authority();
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        // Connections from now on see what the new authority has signed.
        server.down().await;
        server.up().await;
        eventually("its certificate is read anew", async || {
            a.attempt(&election, LONG, Some(token)).await.ok()
        })
        .await;
    }
}
