//! Databases of a test's own, and an administrator's eyes on them.

use std::sync::atomic::{AtomicU64, Ordering};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder, Row};

use crate::support::{Kind, Server};

/// MySQL, if the environment names its program, which no package system that tests may use brings; else MariaDB.
pub fn kind() -> Kind {
    if is_mysql() {
        Kind::MySql
    } else {
        Kind::MariaDb
    }
}

pub fn is_mysql() -> bool {
    std::env::var_os("WHENLEADER_MYSQL_SERVER").is_some()
}

/// A database on the server that all tests share, and an administrator's eyes on it.
#[derive(Debug)]
pub struct Database {
    pub server: &'static Server,
    pub name: String,
}

impl Database {
    /// `None`: it cannot run here, and the test was reported as skipped.
    pub async fn new(test: &str) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server = Server::shared(test, kind())?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{number}");
        sql(server, &format!("CREATE DATABASE {name}")).await;
        Some(Self { server, name })
    }

    /// As the user who may do everything.
    pub fn url(&self) -> String {
        self.url_to(self.server.port)
    }

    /// By way of another port, such as a proxy's.
    pub fn url_to(&self, port: u16) -> String {
        format!("mysql://root:tests@127.0.0.1:{port}/{}", self.name)
    }

    /// As a user of this database's own, with those rights.
    pub async fn user(&self, name: &str, rights: &str) -> String {
        let user = format!("{name}_{}", self.name);
        let Self { server, name, .. } = self;
        self.sql(&format!(
            "CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'tests'"
        ))
        .await;
        if !rights.is_empty() {
            self.sql(&format!("GRANT {rights} TO {user}@'127.0.0.1'"))
                .await;
        }
        format!("mysql://{user}:tests@127.0.0.1:{}/{name}", server.port)
    }

    /// Asks the server something, on a connection of the test's own.
    pub async fn sql(&self, text: &str) -> Vec<Row> {
        self.connect()
            .await
            .query(text)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The first field of the first row, as a number.
    pub async fn number(&self, text: &str) -> i64 {
        let row = self.sql(text).await.remove(0);
        row.get(0).expect("a number")
    }

    pub async fn connect(&self) -> Conn {
        connect(self.server, Some(&self.name)).await
    }
}

/// Asks any server something, as its administrator.
pub async fn sql(server: &Server, text: &str) -> Vec<Row> {
    connect(server, None)
        .await
        .query(text)
        .await
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub async fn connect(server: &Server, database: Option<&str>) -> Conn {
    let options = OptsBuilder::from_opts(Opts::from_url(server.url()).unwrap())
        .prefer_socket(false)
        .db_name(database.or(Some("tests")));
    Conn::new(options).await.expect("the administrator gets in")
}
