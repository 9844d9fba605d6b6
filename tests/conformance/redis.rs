//! Redis and Valkey.

use whenleader::lease::ElectionName;

use crate::suite::Fixture;
use crate::support::{Kind, Server};

pub struct Fresh<const VALKEY: bool> {
    pub server: Server,
}

fn kind(valkey: bool) -> Kind {
    if valkey { Kind::Valkey } else { Kind::Redis }
}

fn key(election: &ElectionName, what: &str) -> String {
    format!("{{cluster:{election}}}:{what}")
}

impl<const VALKEY: bool> Fixture for Fresh<VALKEY> {
    const RUBBISH_EXPIRES: bool = false;

    async fn start(test: &str) -> Option<Self> {
        let server = Server::start(test, kind(VALKEY), &[])?;
        Some(Self { server })
    }

    fn url(&self) -> String {
        self.server.url()
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let key = key(election, "lease");
        self.server.ask_well(&[b"SET", key.as_bytes(), rubbish]);
    }

    async fn forget(&self, election: &ElectionName) {
        let keys = [key(election, "lease"), key(election, "token")];
        self.server.ask_well(&["DEL", &keys[0], &keys[1]]);
    }
}

mod redis_conforms {
    crate::conformance!(super::Fresh<false>);
}

mod valkey_conforms {
    crate::conformance!(super::Fresh<true>);
}
