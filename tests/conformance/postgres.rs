//! PostgreSQL, directly and behind a pooler.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OnceCell;
use tokio_postgres::{NoTls, SimpleQueryMessage};
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, Networked, open};
use crate::support::{Kind, Server};

/// Somebody at a prompt: a connection of the test's own.
pub struct Prompt(tokio_postgres::Client);

impl Prompt {
    pub async fn at(url: &str) -> Self {
        let connected = tokio_postgres::connect(url, NoTls).await;
        let (client, connection) = connected.expect("the server lets us in");
        tokio::spawn(connection);
        Self(client)
    }

    pub async fn run(&self, statements: &str) -> Vec<Vec<Option<String>>> {
        let done = self.try_run(statements).await;
        done.unwrap_or_else(|error| panic!("{statements}: {error:?}"))
    }

    pub async fn try_run(
        &self,
        statements: &str,
    ) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let messages = self.0.simple_query(statements).await?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let cells = (0..row.len()).map(|at| row.get(at).map(str::to_owned));
                Some(cells.collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    /// The only cell of the only row.
    pub async fn ask(&self, question: &str) -> Option<String> {
        self.run(question).await.pop()?.pop()?
    }
}

/// A schema of its own in the database that tests share.
pub struct Fresh<const POOLED: bool> {
    pub server: &'static Server,
    pub schema: String,
    pub prompt: Prompt,
    url: String,
}

impl<const POOLED: bool> Fresh<POOLED> {
    pub fn url(&self) -> String {
        with_schema(&self.url, &self.schema)
    }

    /// Its table, in SQL.
    pub fn table(&self) -> String {
        format!("{}.whenleader_leases", self.schema)
    }
}

pub fn with_schema(url: &str, schema: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}table={schema}.whenleader_leases")
}

pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub fn number() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// The URL of the one PgBouncer of all tests.
pub async fn pooled(server: &Server) -> &'static str {
    static URL: OnceCell<String> = OnceCell::const_new();
    URL.get_or_init(async || {
        let told = server.ask(serde_json::json!({ "do": "pgbouncer" })).await;
        told["url"].as_str().expect("it tells its URL").to_owned()
    })
    .await
}

impl<const POOLED: bool> Fixture for Fresh<POOLED> {
    const RUBBISH_EXPIRES: bool = false;

    async fn start(test: &str) -> Option<Self> {
        let server = Server::shared(test, Kind::Postgres)?;
        let url = if POOLED {
            pooled(server).await
        } else {
            server.url()
        };
        let schema = format!("s{}", number());
        let prompt = Prompt::at(server.url()).await;
        prompt.run(&format!("CREATE SCHEMA {schema}")).await;
        Some(Self {
            server,
            schema,
            prompt,
            url: url.to_owned(),
        })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.url())
    }

    /// Columns have types, so of all rubbish only some is possible.
    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let text = String::from_utf8_lossy(rubbish).replace('\0', "");
        let mut statement = format!("UPDATE {} SET ", self.table());
        let _ = match number() % 4 {
            0 => write!(statement, "token = -7, instance = {}", literal(&text)),
            1 => write!(statement, "instance = '', nonce = 0"),
            2 => write!(statement, "token = 9007199254740992"),
            _ => write!(statement, "instance = E'a\\nb' || {}", literal(&text)),
        };
        let _ = write!(
            statement,
            " WHERE election = {}",
            literal(election.as_str())
        );
        self.prompt.run(&statement).await;
    }

    async fn forget(&self, election: &ElectionName) {
        let election = literal(election.as_str());
        let statement = format!("DELETE FROM {} WHERE election = {election}", self.table());
        self.prompt.run(&statement).await;
    }

    async fn list(&self) -> Vec<String> {
        let statement = format!("SELECT election FROM {}", self.table());
        let rows = self.prompt.run(&statement).await;
        rows.into_iter().flatten().flatten().collect()
    }
}

impl Networked for Fresh<false> {
    const HALF_AN_ANSWER: usize = 60;

    fn port(&self) -> u16 {
        self.server.port
    }

    /// Without TLS, so that what is cut is a part of an answer.
    fn url_at(&self, port: u16) -> String {
        let url = self.url();
        let url = url.replacen(&self.server.port.to_string(), &port.to_string(), 1);
        format!("{url}&sslmode=disable")
    }
}

mod directly {
    crate::conformance!(super::Fresh<false>, on a network);
}

mod behind_a_pooler {
    // All but what a watch hears.
    crate::conformance!(super::Fresh<true>, without a watch);
}
