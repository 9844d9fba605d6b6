//! MySQL and MariaDB: on MariaDB, which every machine of the tests has, or, where `WHENLEADER_MYSQL_SERVER` names
//! its program, on MySQL.

mod alone;
mod database;
mod encrypted;
mod guards;
mod waits;

use std::sync::Arc;

use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use self::database::Database;
use crate::suite::{Fixture, Networked, open};

const TABLE: &str = "whenleader_leases";

/// Every test has a database of its own.
pub struct Fresh(Database);

impl Fixture for Fresh {
    const RUBBISH_EXPIRES: bool = false;

    async fn start(test: &str) -> Option<Self> {
        Database::new(test).await.map(Self)
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.0.url())
    }

    /// A row can hold no bytes of one's liking. What it can hold, and no election writes, is chosen by them.
    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let spoiled = [
            "instance = ''",
            "instance = _utf8mb4 X'01'",
            "instance = 'a ', token = 0",
            "nonce = 0, token = 18446744073709551615",
            "token = 9007199254740992, expires_at = 0",
            "token = 0",
            "instance = 'x', expires_at = 9223372036854775807",
        ];
        let spoiled = spoiled[rubbish.len() % spoiled.len()];
        let election = hex(election);
        self.0
            .sql(&format!(
                "UPDATE {TABLE} SET {spoiled} WHERE election = {election}"
            ))
            .await;
    }

    async fn forget(&self, election: &ElectionName) {
        let election = hex(election);
        self.0
            .sql(&format!("DELETE FROM {TABLE} WHERE election = {election}"))
            .await;
    }

    async fn list(&self) -> Vec<String> {
        let rows = self
            .0
            .sql(&format!("SELECT HEX(election) FROM {TABLE}"))
            .await;
        rows.iter().filter_map(|row| row.get(0)).collect()
    }
}

/// A name as it may stand in a statement, whatever it is.
fn hex(election: &ElectionName) -> String {
    let digits: Vec<_> = election
        .as_str()
        .bytes()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    format!("_utf8mb4 X'{}'", digits.concat())
}

impl Networked for Fresh {
    const LOOKS_FIRST: bool = true;

    fn port(&self) -> u16 {
        self.0.server.port
    }

    /// Without TLS, so that what is cut is a part of an answer.
    fn url_at(&self, port: u16) -> String {
        format!("{}?ssl-mode=disabled", self.0.url_to(port))
    }
}

mod it_conforms {
    crate::conformance!(super::Fresh, on a network, without a watch);
}
