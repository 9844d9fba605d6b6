//! Kubernetes Leases on the stand-in, which is here where no real API server is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
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
}

crate::conformance!(Fresh);
