//! Real servers of every kind, run by tools/servers/serve.mjs: what is to know of each is in
//! tools/servers/kinds, and nothing of it is here.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};

use super::launcher::Launcher;

const SCRIPT: &str = "tools/servers/serve.mjs";

/// A kind of server, by what tools/servers calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Valkey,
    Postgres,
    MariaDb,
    MySql,
    Etcd,
    Nats,
    NatsOld,
    Consul,
    S3,
    DynamoDb,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
            Self::Etcd => "etcd",
            Self::Nats => "nats",
            Self::NatsOld => "nats-old",
            Self::Consul => "consul",
            Self::S3 => "s3",
            Self::DynamoDb => "dynamodb",
        }
    }

    /// Its program, or what would bring it.
    pub fn program(self) -> Result<PathBuf, String> {
        let (_, told) = Launcher::start(SCRIPT, &[self.name(), "--find"])?;
        Ok(told["program"].as_str().expect("it was found").into())
    }
}

/// A running server. It ends with its value, or with this process.
#[derive(Debug)]
pub struct Server {
    pub port: u16,
    told: Value,
    launcher: Launcher,
}

impl Server {
    /// One for all tests of this program that leave it as it is, in databases or below keys of their own.
    /// `None`: it cannot run here, and the test was reported as skipped.
    pub fn shared(test: &str, kind: Kind) -> Option<&'static Self> {
        type Started = &'static OnceLock<Result<Server, String>>;
        static SHARED: Mutex<Vec<(Kind, Started)>> = Mutex::new(Vec::new());
        let started = {
            let mut shared = SHARED.lock().unwrap();
            if let Some((_, started)) = shared.iter().find(|(of, _)| *of == kind) {
                started
            } else {
                let started: Started = Box::leak(Box::default());
                shared.push((kind, started));
                started
            }
        };
        match started.get_or_init(|| Self::start(kind, &[])) {
            Ok(server) => Some(server),
            Err(why) => {
                super::skip(test, why);
                None
            }
        }
    }

    /// One of the test's own. Arguments are the launcher's: `--flag=<flag of the server>`, and the options of
    /// the kind.
    pub fn own(test: &str, kind: Kind, args: &[&str]) -> Option<Self> {
        Self::start(kind, args)
            .inspect_err(|why| super::skip(test, why))
            .ok()
    }

    fn start(kind: Kind, args: &[&str]) -> Result<Self, String> {
        let args = [&[kind.name()], args].concat();
        let (launcher, told) = Launcher::start(SCRIPT, &args)?;
        let port = told["port"].as_u64().expect("every server has one");
        Ok(Self {
            port: port.try_into().unwrap(),
            told,
            launcher,
        })
    }

    /// With the user who may do everything.
    pub fn url(&self) -> &str {
        self.told("/url")
    }

    /// A text that the launcher told at the start, such as `/ca` or `/odd/password`.
    pub fn told(&self, pointer: &str) -> &str {
        self.told
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_else(|| panic!("{pointer} is not in {}", self.told))
    }

    /// The port of another member, such as `/member2`.
    pub fn port_of(&self, pointer: &str) -> u16 {
        let port = self.told.pointer(pointer).and_then(Value::as_u64);
        let port = port.unwrap_or_else(|| panic!("{pointer} is not in {}", self.told));
        port.try_into().unwrap()
    }

    /// It takes connections, and answers nothing.
    pub async fn freeze(&self) {
        self.ask(json!({ "do": "freeze" })).await;
    }

    pub async fn thaw(&self) {
        self.ask(json!({ "do": "thaw" })).await;
    }

    /// It dies, and connections are refused.
    pub async fn kill(&self) {
        self.ask(json!({ "do": "kill" })).await;
    }

    /// On the same port, with all that it knew.
    pub async fn restart(&self) {
        self.ask(json!({ "do": "restart" })).await;
    }

    /// What only servers of this kind can be asked, as their module says.
    pub async fn ask(&self, question: Value) -> Value {
        self.launcher.ask(question).await
    }

    /// The program that runs the server dies, and cannot end it itself.
    pub fn kill_launcher(self) {
        self.launcher.kill();
    }
}
