//! What holds the lease, and the contract that every store fulfils.
//!
//! A backend knows the words of `lease` and nothing of the election: it is asked to do one atomic
//! thing and says what came of it. It never decides who leads, keeps no timers of its own for that,
//! and never compares a remote time stamp with a local clock.
//!
//! Adding a store: one module here, and one row in `STORES`; docs/architecture.md has the whole list.

mod aws;
pub(crate) mod blocking;
pub mod consul;
pub mod etcd;
pub mod file;
mod http;
pub mod kubernetes;
pub mod leader_api;
pub mod mysql;
pub mod nats;
mod observed;
pub mod own;
pub mod postgres;
pub mod redis;
mod stream;
mod tls;
mod url;
mod watchers;

use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::lease::{ElectionName, FailureKind, Hint, Leader, Outcome, Owner, Token};

type Open = fn(&str, &StoreOptions, Arc<dyn Clock>) -> Result<Arc<dyn Backend>, BadStore>;

/// One kind of store.
struct Store {
    /// Of its URLs.
    schemes: &'static [&'static str],
    /// How one is written.
    example: &'static str,
    /// Those of its URL's parameters that hold no secret, whatever else is wrong with the URL.
    harmless: &'static [&'static str],
    /// Words that follow "must": why `minReplicas` is not for this store. `None`: it waits for so many.
    no_min_replicas: Option<&'static str>,
    open: Open,
}

const STORES: &[Store] = &[
    Store {
        schemes: &["file"],
        example: "file:<directory>",
        harmless: &["force"],
        no_min_replicas: Some("be left out with the embedded store: it has no replicas"),
        open: file::open,
    },
    Store {
        schemes: &[
            "redis",
            "rediss",
            "valkey",
            "valkeys",
            "unix",
            "redis+unix",
            "valkey+unix",
        ],
        example: "redis://[:<password>@]<host>[:<port>]",
        harmless: &["prefix", "db", "user", "ca", "cert", "key"],
        no_min_replicas: None,
        open: redis::open,
    },
    Store {
        schemes: &["etcd", "etcds"],
        example: "etcd://[<user>:<password>@]<host>[:<port>]",
        harmless: &["prefix", "ca", "cert", "key"],
        no_min_replicas: Some(
            "be left out with etcd: every write there is confirmed by most members",
        ),
        open: etcd::open,
    },
    Store {
        schemes: &["postgres", "postgresql", "socket"],
        example: "postgres://<user>:<password>@<host>[:<port>]/<database>",
        harmless: &[
            "sslmode",
            "sslrootcert",
            "sslcert",
            "sslkey",
            "host",
            "port",
            "dbname",
            "db",
            "user",
            "schema",
            "table",
            "target_session_attrs",
            "channel_binding",
            "application_name",
            "connect_timeout",
        ],
        no_min_replicas: Some(
            "be left out with PostgreSQL: its synchronous_standby_names says who must have a write",
        ),
        open: postgres::open,
    },
    Store {
        schemes: &["mysql", "mariadb"],
        example: "mysql://<user>:<password>@<host>[:<port>]/<database>",
        harmless: &[
            "ssl-mode",
            "sslmode",
            "socket",
            "table",
            "ca",
            "cert",
            "key",
            "connect_timeout",
        ],
        no_min_replicas: Some(
            "be left out with MySQL and MariaDB: semi-synchronous replication is set up on the server",
        ),
        open: mysql::open,
    },
    Store {
        schemes: &["s3"],
        example: "s3://<bucket>",
        harmless: &["region", "endpoint", "path_style", "ca", "cert", "key"],
        no_min_replicas: Some(
            "be left out with S3: it answers when an object is stored in all its places",
        ),
        open: aws::s3::open,
    },
    Store {
        schemes: &["dynamodb"],
        example: "dynamodb://<table>",
        harmless: &["region", "endpoint", "create", "ca", "cert", "key"],
        no_min_replicas: Some(
            "be left out with DynamoDB: it answers when most copies have a write",
        ),
        open: aws::dynamodb::open,
    },
    Store {
        schemes: &["nats", "tls"],
        example: "nats://[<user>:<password>@]<host>[:<port>]",
        harmless: &[
            "bucket", "replicas", "inbox", "creds", "nkey", "tlsFirst", "ca", "cert", "key",
        ],
        no_min_replicas: Some(
            "be left out with NATS: every write is confirmed by most servers that keep the bucket, and how many those are is set with ?replicas=<n>",
        ),
        open: nats::open,
    },
    Store {
        schemes: &["consul", "consuls"],
        example: "consul://[:<token>@]<host>[:<port>]",
        harmless: &["prefix", "dc", "token_file", "ca", "cert", "key"],
        no_min_replicas: Some(
            "be left out with Consul: every write there is confirmed by most servers",
        ),
        open: consul::open,
    },
];

/// What people ask for by these schemes and this version does not have, and what to do instead.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &["redis-sentinel", "rediss-sentinel", "redis+sentinel"],
        "name the master, or a proxy or service that follows it: this version asks no Sentinel",
    ),
    (
        &["redis-cluster", "rediss-cluster"],
        "elect on a Redis that is no Cluster: this version follows no slots",
    ),
    (
        &["mongodb", "mongodb+srv"],
        "give startCluster() a store of your own over your MongoDB client: docs/stores.md has the twenty lines",
    ),
];

/// What a store needs to know beside its URL.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// What a relative path starts from.
    pub base_dir: PathBuf,
    /// How many replicas must have a write before it counts. Only for a store that has a say in that.
    pub min_replicas: Option<u32>,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long one request may wait for its answer, unless its sender gives it up earlier.
    pub request_timeout: Duration,
    /// After how long a connection without an answer is taken for dead, so that what was asked is asked on
    /// another one while there is time: the shortest attempt of an election is twice as long.
    pub patience: Duration,
    /// Leases are held for others, who live on when this process dies: a store that sees deaths leaves them to
    /// their expiry. They may come by other processes, too, which ask for another duration: no write shortens what
    /// still runs of an owner's lease.
    pub for_others: bool,
}

impl StoreOptions {
    /// As long as an election of the default timing waits.
    pub fn new(base_dir: impl Into<PathBuf>) -> Self {
        Self {
            base_dir: base_dir.into(),
            min_replicas: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            patience: Duration::from_millis(1_250),
            for_others: false,
        }
    }
}

/// Why a store's configuration was refused. Never holds a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadStore {
    pub parameter: &'static str,
    /// Words that follow "must".
    pub rule: String,
}

impl BadStore {
    fn url(rule: impl Into<String>) -> Self {
        Self {
            parameter: "store",
            rule: rule.into(),
        }
    }
}

/// Makes the backend for a store's URL. Reads nothing and connects to nothing yet: that is
/// [`Backend::prepare`]'s part.
pub fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    let scheme = scheme.to_ascii_lowercase();
    if let Some(store) = STORES.iter().find(|s| s.schemes.contains(&&*scheme)) {
        let replicas = |rule: &str| BadStore {
            parameter: "minReplicas",
            rule: rule.into(),
        };
        return match (options.min_replicas, store.no_min_replicas) {
            (Some(_), Some(rule)) => Err(replicas(rule)),
            (Some(0), None) => Err(replicas("be at least 1")),
            _ => (store.open)(url, options, clock),
        };
    }
    let known: Vec<_> = STORES.iter().map(|store| store.example).collect();
    let known = known.join(", ");
    let absent = ABSENT
        .iter()
        .find(|(schemes, _)| schemes.contains(&&*scheme));
    Err(BadStore::url(match absent {
        Some((_, cure)) => {
            format!("be one of {known}; this version has none for {scheme}: - {cure}")
        }
        None => format!("be the URL of a store: one of {known}"),
    }))
}

/// A store's URL as it may be shown: without anything that may be a password, whatever else is wrong
/// with it. What is in doubt is not shown.
pub fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.find(':') {
        Some(colon) => url.split_at(colon + 1),
        None => ("", url),
    };
    let local = scheme.eq_ignore_ascii_case("file:") && !rest.starts_with("//");
    let place = rest.trim_start_matches('/');
    let slashes = &rest[..rest.len() - place.len()];
    // The last `@`: a password that was not percent-encoded may hold any character.
    let (credentials, place) = match place.rsplit_once('@') {
        Some((credentials, place)) if !local => (masked_credentials(credentials), place),
        _ => (String::new(), place),
    };
    let end = place.find(['?', '#']).unwrap_or(place.len());
    let (place, behind) = place.split_at(end);
    let place = match place.split_once(':') {
        Some((host, port)) if slashes.len() == 2 && credentials.is_empty() && !is_port(port) => {
            // No port, so perhaps a password whose host was forgotten. Not so behind a bracket.
            if place.starts_with('[') {
                place.to_owned()
            } else {
                format!("{host}:***")
            }
        }
        _ => place.to_owned(),
    };
    let behind = masked_parameters(behind);
    format!("{scheme}{slashes}{credentials}{place}{behind}")
}

/// A user's name is no secret, if it is one.
fn masked_credentials(credentials: &str) -> String {
    match credentials.split_once(':') {
        Some(("", _)) => ":***@".into(),
        Some((user, _))
            if user
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.%".contains(&b)) =>
        {
            format!("{user}:***@")
        }
        _ => "***@".into(),
    }
}

/// `text` is nothing, or begins with `?` or `#`. Shows what is known to be no secret.
fn masked_parameters(text: &str) -> String {
    const SECRET: &[&str] = &["pass", "password"];
    let Some(parameters) = text.strip_prefix('?') else {
        return if text.is_empty() { "" } else { "#***" }.into();
    };
    let mut secret = false;
    let masked = parameters.split('&').map(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default();
        // A raw & may be a part of the password before it.
        let is_harmless = STORES.iter().any(|store| store.harmless.contains(&name));
        if is_harmless && !secret && !parameter.contains('#') {
            return parameter.to_owned();
        }
        secret = true;
        if SECRET.contains(&&*name.to_ascii_lowercase()) {
            format!("{name}=***")
        } else {
            "***".to_owned()
        }
    });
    format!("?{}", masked.collect::<Vec<_>>().join("&"))
}

/// Of a host's rest: digits, and a path behind them.
fn is_port(text: &str) -> bool {
    let port = text.split('/').next().unwrap_or_default();
    match port.split_once(',') {
        None => port.bytes().all(|byte| byte.is_ascii_digit()),
        // More hosts, each of which has a port of its own.
        Some((port, others)) => {
            is_port(port)
                && others
                    .split(',')
                    .all(|host| host.split_once(':').is_none_or(|(_, port)| is_port(port)))
        }
    }
}

/// Acquire, renew or take over.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub election: &'a ElectionName,
    pub owner: &'a Owner,
    /// How long the lease shall be valid, counted by the backend.
    pub duration: Duration,
    /// The term to renew. `None` campaigns for a new one.
    pub term: Option<Token>,
}

/// The code of a fatal error that only another configuration cures: this store cannot work in this place.
pub const UNSUITABLE: &str = "unsuitable";

/// A failure, in words for the person who reads them at night.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendError {
    pub kind: FailureKind,
    /// A stable word for programs: `unreachable`, `timeout`, `refused`, `read-only`, `loading`, `bad-record`, ...
    pub code: &'static str,
    /// What failed and what to do. Never a password.
    pub message: String,
}

impl BackendError {
    pub fn transient(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Transient,
            code,
            message: message.into(),
        }
    }

    pub fn ambiguous(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Ambiguous,
            code,
            message: message.into(),
        }
    }

    pub fn fatal(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Fatal,
            code,
            message: message.into(),
        }
    }

    /// Of a write that was sent before, too (`asked_before`): what this answer says was surely not done may have
    /// been done by the first copy.
    fn doubted(mut self, asked_before: bool) -> Self {
        if asked_before && self.kind == FailureKind::Transient {
            self.kind = FailureKind::Ambiguous;
        }
        self
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BackendError {}

pub type Hints = mpsc::Sender<Hint>;

/// A running watch; dropping it ends it.
pub type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What kind of store this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The shortest lease that it can hold.
    pub shortest_lease: Duration,
    /// Whether [`Backend::watch`] tells of releases.
    pub notifies: bool,
}

/// How a transaction of the application's own, in the database that holds the lease, depends on a term. These are
/// statements for whatever client the application has: nothing in them is a placeholder in any, and they mean the
/// same under all settings of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    pub dialect: Dialect,
    /// Where the lease is, in SQL. For people.
    pub table: String,
    /// Reads, and locks nothing. One row of one text that begins with a word: `current`, or `expired`, `released`,
    /// `taken`, and also `older` and `none`, which no database says that granted this term.
    pub check: String,
    /// Locks what a takeover has to change and a renewal does not, until the transaction ends. No row: the term is
    /// over, or is being taken over right now. Otherwise one that is like that of `check`.
    pub hold: String,
}

/// Whose SQL it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    /// Also `MariaDB`'s.
    Mysql,
}

/// One store.
///
/// **Time.** Whoever asks bounds a request: it drops the future when its time is over, and counts the
/// request as ambiguous. Nothing may be written after that, except by a request that was sent before:
/// an attempt that wakes late would take over what the same owner's next one won. A store that works on
/// another thread asks there, right before it writes, whether somebody still waits. Inside the bound an
/// attempt may replace a dead connection once. [`StoreOptions`] has limits of its own, for connections
/// whose other end has vanished.
///
/// **Failures.** [`FailureKind`] says what may have happened. The candidate treats all kinds alike: none
/// extends a leadership, and the next attempt finds out. They differ for people, and in one place: a
/// `Fatal` one fails a start, and is told as one that somebody must mend. `Ambiguous` is for whatever
/// may have been applied, so also for a write that was applied and was not confirmed; `Transient`
/// surely was not.
///
/// **Records that are not ours.** Anything may lie where the record should be. It is never leadership,
/// and never a panic: it is either named in a fatal `bad-record` error, or waited out for the asker's own
/// duration. A record that says more than [`LONGEST_LEASE`](crate::lease::LONGEST_LEASE) is such a one,
/// or is cut to the asker's duration: it must not bar an election for years.
///
/// Every store passes `tests/conformance/`, against its real server.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug + 'static {
    fn capabilities(&self) -> Capabilities;

    /// Which store this is, for logs and errors. Never a password.
    fn describe(&self) -> String;

    /// What whoever chose this store should know, logged once at start.
    fn remark(&self) -> Option<&'static str> {
        None
    }

    /// Words that follow "must" if this store cannot hold an election of that name.
    fn check_name(&self, _election: &ElectionName) -> Result<(), String> {
        Ok(())
    }

    /// How long its leases last, where that is not the asker's to say, by the last answer.
    fn told_lease(&self) -> Option<Duration> {
        None
    }

    /// Creates what is needed, and makes sure that the store honours conditional writes. Called before
    /// the first attempt, and again until it has worked; a fatal failure fails the start.
    ///
    /// It must go as deep as an election does: every command and every right, on a name of its own that
    /// no election can have and that is gone afterwards. What is found only when an instance shall lead
    /// is found at night. (Where nothing can be written without a trace, it asks for its rights instead.)
    async fn prepare(&self) -> Result<(), BackendError>;

    /// One atomic operation: acquires, renews or takes over.
    ///
    /// A renewal ([`Attempt::term`]) succeeds only if the record names this owner and this token. It
    /// never begins a term, also when the record is gone: then it answers `Other` with neither leader
    /// nor time.
    ///
    /// A campaign succeeds if the lease is free, and also if the record names the very owner who asks:
    /// that is an earlier attempt whose answer got lost. It then begins a **new** term with a larger token,
    /// since nobody can tell what became of the old one. The same instance id with another nonce is a
    /// stranger.
    ///
    /// In [`Outcome::Other`], `remaining` counts from the answer, by the clock of whoever judges: the
    /// store, or this process, which saw the record stand still. Without a leader but with `remaining`, a
    /// record that cannot be read is being waited out; with neither, nobody holds the lease: a renewal met
    /// a record that was released or deleted.
    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError>;

    /// Ends the term of this owner and token, keeps the counter, and tells watchers. `false`: the
    /// record is no longer that term's, and was not touched.
    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError>;

    /// Who leads, without taking part: no later attempt may go out differently because of it.
    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError>;

    /// What a transaction that must not outlive this term says. `None`: this store has no transactions. While it
    /// is held, a campaign is refused for a moment, again and again, and renewals are not.
    fn guard(&self, _election: &ElectionName, _token: Token) -> Option<Guard> {
        None
    }

    /// Sends hints until it is dropped, reconnecting by itself. `None`: this store cannot.
    ///
    /// The first hint is [`Hint::Watching`], once changes are surely heard; so it is for each watch that
    /// joins others, and after every [`Hint::Blind`]. Hints may be merged when the receiver is slow, but
    /// the latest `Watching` or `Blind`, a `Free`, and the latest `Alive` must arrive in the end.
    fn watch(self: Arc<Self>, _election: ElectionName, _hints: Hints) -> Option<Watch> {
        None
    }

    /// An instance begins or ends leading, or has just begun to take part. For stores that show it to
    /// others; returns at once.
    fn tell_role(&self, _election: &ElectionName, _leads: bool) {}

    /// Whether it answers only while JavaScript runs. A process that is ending does not wait for it.
    fn needs_event_loop(&self) -> bool {
        false
    }

    /// Closes connections and files. Nothing else is called afterwards.
    async fn close(&self) {}
}

/// No token is lower: the time in microseconds, so that tokens go on growing when records were deleted
/// and the clock was not set back. Finer than the time that it takes to delete one.
fn token_floor() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_micros()).ok())
        .map_or(1, |micros| micros.clamp(1, Token::MAX))
}

/// A text of nothing but ASCII's letters and digits, what is `kept`, and `sign` with two digits for each other
/// byte. No two texts become one, as long as the sign is not kept.
fn escaped(text: &str, sign: char, kept: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) {
            result.push(char::from(byte));
        } else {
            let _ = write!(result, "{sign}{byte:02X}");
        }
    }
    result
}

/// `None`: a percent sign without two digits, or not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn refused(url: &str) -> BadStore {
        open(url, &StoreOptions::new("."), Arc::new(SystemClock)).expect_err(url)
    }

    #[test]
    fn what_is_escaped_stays_readable_and_never_collides() {
        assert_eq!(escaped("a/b c:ü%~", '%', "-._~/"), "a/b%20c%3A%C3%BC%25~");
        assert_eq!(escaped("..=2E", '=', "-"), "=2E=2E=3D2E");
        assert_eq!(escaped("", '%', ""), "");
    }

    #[test]
    fn an_unknown_store_is_refused_with_the_list_of_known_ones() {
        for url in [
            "",
            "redis",
            "//h:6379/2",
            "/run/redis.sock",
            "htp://x",
            "mongodb://h/db",
        ] {
            let bad = refused(url);
            assert_eq!(bad.parameter, "store");
            assert!(bad.rule.contains("file:<directory>"), "{url}: {}", bad.rule);
            assert!(bad.rule.contains("redis://"), "{url}: {}", bad.rule);
        }
        for (url, cure) in [
            ("mongodb+srv://h/db", "store of your own"),
            ("redis-sentinel://h", "name the master"),
        ] {
            let bad = refused(url);
            assert!(bad.rule.contains("this version"), "{}", bad.rule);
            assert!(bad.rule.contains(cure), "{}", bad.rule);
        }
    }

    #[test]
    fn only_a_store_that_waits_for_replicas_takes_a_number_of_them() {
        for store in STORES {
            let url = match store.schemes[0] {
                "file" => "file:x".to_owned(),
                scheme => format!("{scheme}://host-1"),
            };
            let mut options = StoreOptions::new(".");
            let mut with = |number| {
                options.min_replicas = number;
                open(&url, &options, Arc::new(SystemClock)).map(drop)
            };
            let refused = with(Some(1)).err();
            assert_eq!(
                refused.map(|bad| bad.parameter),
                store.no_min_replicas.map(|_| "minReplicas"),
                "{url}"
            );
            assert_eq!(with(Some(0)).unwrap_err().parameter, "minReplicas");
        }
    }

    #[test]
    fn databases_with_transactions_say_how_one_depends_on_a_term_and_no_other_store_does() {
        let (election, token) = (ElectionName::new("e").unwrap(), Token::FIRST);
        for store in STORES {
            let scheme = store.schemes[0];
            let url = match scheme {
                "file" => "file:x".to_owned(),
                "mysql" => "mysql://user@host-1/shop".to_owned(),
                scheme => format!("{scheme}://host-1"),
            };
            let backend = open(&url, &StoreOptions::new("."), Arc::new(SystemClock)).unwrap();
            let dialect = backend.guard(&election, token).map(|guard| guard.dialect);
            let expected = match scheme {
                "postgres" => Some(Dialect::Postgres),
                "mysql" => Some(Dialect::Mysql),
                _ => None,
            };
            assert_eq!(dialect, expected, "{scheme}");
        }
    }

    #[test]
    fn no_password_is_ever_shown() {
        for (url, shown) in [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://[fd00::1]:6379/0", "redis://[fd00::1]:6379/0"),
            ("redis://:hunter2@h", "redis://:***@h"),
            (
                "redis://u:hunter2@h/1?prefix=x",
                "redis://u:***@h/1?prefix=x",
            ),
            ("redis://u:hunter2/hunter2@hunter2@h", "redis://u:***@h"),
            ("redis://u:hunter2?hunter2#hunter2@h", "redis://u:***@h"),
            ("redis://u:6379?hunter2@h", "redis://u:***@h"),
            ("redis://u:6379/hunter2@h", "redis://u:***@h"),
            ("redis://h?pass=hunter2:x@y", "redis://***@y"),
            ("redis://hunter2@h", "redis://***@h"),
            ("redis://hunter2/hunter2:x@h", "redis://***@h"),
            ("redis:u:hunter2@h", "redis:u:***@h"),
            ("redis:/u:hunter2@h", "redis:/u:***@h"),
            ("REDIS://u:hunter2@h", "REDIS://u:***@h"),
            ("//u:hunter2@h", "//u:***@h"),
            ("u:hunter2@h", "u:***@h"),
            ("hunter2@h", "***@h"),
            ("redis://:hunter2", "redis://:***"),
            ("redis://u:hunter2/1", "redis://u:***"),
            ("redis://h:6379?pass=hunter2", "redis://h:6379?pass=***"),
            ("redis://h?Password=hunter2", "redis://h?Password=***"),
            ("redis://h?p%61ss=hunter2", "redis://h?***"),
            ("redis://h?hunter2", "redis://h?***"),
            ("redis://h#hunter2", "redis://h#***"),
            ("redis://h?db=1#hunter2", "redis://h?***"),
            (
                "unix:///r.sock?user=u&pass=hunter2",
                "unix:///r.sock?user=u&pass=***",
            ),
            (
                "unix:///r.sock?db=1&PASS=hunter2&hunter2&ca=hunter2",
                "unix:///r.sock?db=1&PASS=***&***&***",
            ),
            (
                "postgres://u:hunter2@a:1,[::1]:2/db?sslmode=prefer",
                "postgres://u:***@a:1,[::1]:2/db?sslmode=prefer",
            ),
            ("postgres://a:1,b,c:3/db", "postgres://a:1,b,c:3/db"),
            (
                "postgres:///db?host=/run/pg&port=5433&password=hunter2&sslmode=disable",
                "postgres:///db?host=/run/pg&port=5433&password=***&***",
            ),
            ("postgres://u:1,hunter2:x", "postgres://u:***"),
            ("file:/tmp/x", "file:/tmp/x"),
            ("file:data/a@b:c?force", "file:data/a@b:c?force"),
            ("file://u:hunter2@h/x", "file://u:***@h/x"),
            ("", ""),
        ] {
            assert_eq!(without_password(url), shown);
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
