//! The bridge to JavaScript: the only folder that knows napi.
//!
//! It only bridges. JavaScript gets functions of plain values, and one callback (`attach`) through which
//! everything comes back as an event; `lib/` makes the public API of that. Nothing here returns a
//! promise: an operation that takes time is given a number, and a `done` event carries that number.
//! Every function catches panics: JavaScript gets an error, and the process lives.

#![allow(unsafe_code)]
// napi's own attributes want owned arguments.
#![allow(clippy::needless_pass_by_value)]

mod clients;
mod environment;
mod is_leader;
mod logs;
mod own_store;
mod serve;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use napi::bindgen_prelude::{External, Function, Unknown};
use napi::{Env, Error};
use napi_derive::napi;

use self::environment::{Done, Environment, JsEvent, Seat, no_thread};
use crate::backend::Dialect;
use crate::clock::{Clock, SystemClock};
use crate::cluster::{self, Cluster, StartError};
use crate::config::{Apart, Config, ConfigError, ElectionOptions, Fault, check_run_options};
use crate::identity;
use crate::lease::{ElectionName, Token};

/// The codes that `lib/` makes error classes of.
const CONFIG: &str = "WHENLEADER_CONFIG";
const NO_CLUSTER: &str = "WHENLEADER_NO_CLUSTER";
const STOPPING: &str = "WHENLEADER_STOPPING";
const UNSET: &str = "WHENLEADER_UNSET";
const STORE: &str = "WHENLEADER_STORE";

type Result<T> = std::result::Result<T, Error<String>>;

/// What a configuration says, with every default filled in.
#[napi(object)]
#[derive(Clone)]
pub struct ClusterInfo {
    pub r#type: String,
    pub instance_id: String,
    pub lease_name: String,
    pub lease_duration: f64,
    pub renew_interval: f64,
    pub stop_timeout: f64,
    pub signals: bool,
    pub keep_alive: bool,
    pub candidate: bool,
    /// Which store it is, without a password. Empty until it was opened.
    pub store: String,
    pub warnings: Vec<String>,
}

/// An election of one piece of work.
#[napi(object)]
pub struct WorkElection {
    pub name: String,
    /// JSON.
    pub options: String,
}

#[napi(object)]
pub struct LeaderInfo {
    pub instance_id: String,
    pub token: f64,
}

/// How a transaction depends on a term, for `lib/fence/`.
#[napi(object)]
pub struct GuardInfo {
    /// Which store it is, without a password.
    pub store: String,
    pub lease_duration: f64,
    /// None: the store has no transactions.
    pub statements: Option<GuardStatements>,
}

#[napi(object)]
pub struct GuardStatements {
    pub dialect: String,
    pub table: String,
    pub check: String,
    pub hold: String,
}

/// A configuration that was read and checked, with all that it took from the environment.
#[napi(object, object_from_js = false)]
pub struct CheckedElection {
    pub info: ClusterInfo,
    /// For `startElection`.
    pub election: External<Apart>,
}

/// Once per JavaScript environment. Keeps no process alive.
#[napi(catch_unwind)]
pub fn attach(
    env: Env,
    dispatch: Function<JsEvent, Unknown<'static>>,
    log_level: String,
) -> Result<()> {
    Environment::attach(env, &dispatch, &log_level).map_err(from_napi)
}

/// The least level of the `log` events that this environment gets: a level of `console`, or `silent`.
#[napi(catch_unwind)]
pub fn set_log_level(env: Env, level: String) {
    Environment::of(env, |here| here.set_log_level(&level));
}

/// Reads a configuration without starting anything.
#[napi(catch_unwind)]
pub fn check_config(json: String, source: String, base_dir: String) -> Result<ClusterInfo> {
    let config = parse(&json, &source, &base_dir)?;
    check(&config)?;
    Ok(info(&config, None))
}

/// Starts this process's cluster, or joins it. `done` carries the `ClusterInfo` or the error.
#[napi(catch_unwind)]
pub fn start_cluster(
    env: Env,
    json: String,
    source: String,
    base_dir: String,
    operation: u32,
) -> Result<()> {
    let config = parse(&json, &source, &base_dir)?;
    let Some(reply) = Environment::of(env, |here| here.reply()) else {
        return Err(Error::new(
            CONFIG.into(),
            "attach() comes first".to_string(),
        ));
    };
    reply.when_done(operation, async move {
        match cluster::start(config).await {
            Ok(cluster) => Done::Info(Box::new(info(cluster.config(), Some(&cluster)))),
            Err(StartError::Config(message) | StartError::Stopping(message)) => {
                Done::Failed(CONFIG, None, message)
            }
            Err(StartError::Store(error)) => Done::Failed(STORE, Some(error.code), error.message),
        }
    });
    Ok(())
}

/// The cluster that runs in this process, whoever started it.
#[napi(catch_unwind)]
pub fn running_cluster() -> Option<ClusterInfo> {
    cluster::running().map(|cluster| info(cluster.config(), Some(&cluster)))
}

/// Says what is wrong with the options of `runWhenLeader()`, as far as that can be known without a cluster.
#[napi(catch_unwind)]
pub fn check_run(options: String) -> Result<()> {
    check_run_options(&options).map_err(refused)
}

/// Takes a seat in an election of the running cluster for this environment. The election is started if
/// nobody did; events follow. With the options of `runWhenLeader()` it is this seat's alone.
#[napi(catch_unwind)]
pub fn join_election(env: Env, name: String, run: Option<String>) -> Result<()> {
    let name = election_name(&name)?;
    let Some(cluster) = cluster::running() else {
        return Err(Error::new(
            CONFIG.into(),
            "no cluster is running".to_string(),
        ));
    };
    let options = options(cluster.config(), run.as_deref())?;
    Environment::of(env, |here| here.join(&cluster, &name, &options))
        .ok_or_else(|| Error::new(CONFIG.to_string(), "attach() comes first".to_string()))?
        .map_err(|error| {
            let code = match error {
                StartError::Stopping(_) => STOPPING,
                _ => CONFIG,
            };
            Error::new(code.to_string(), error.to_string())
        })
}

/// Reads the configuration of an election beside the cluster, without starting anything.
#[napi(catch_unwind)]
pub fn check_election(
    json: String,
    source: String,
    base_dir: String,
    run: Option<WorkElection>,
) -> Result<CheckedElection> {
    let config = parse(&json, &source, &base_dir)?;
    let apart = match run {
        None => config.apart(),
        Some(WorkElection { name, options }) => config
            .apart_for_run(election_name(&name)?, &options)
            .map_err(refused)?,
    };
    check(&apart.config)?;
    Ok(CheckedElection {
        info: info(&apart.config, None),
        election: External::new(apart),
    })
}

/// An election beside the cluster of this process, on a backend of its own: of a `LeaderElection`, or of
/// `runWhenLeader()`. Nothing is waited for; events follow, under the name that is returned, by which it is
/// spoken of from now on.
#[napi(catch_unwind)]
pub fn start_election(env: Env, election: &External<Apart>) -> Result<String> {
    let Apart { config, options } = Apart::clone(election);
    let refused = |error: StartError| Error::new(CONFIG.to_string(), error.to_string());
    cluster::start_runtime().map_err(|error| Error::new(STORE.to_string(), no_thread(&error)))?;
    let cluster = cluster::open_apart(config).map_err(refused)?;
    Environment::of(env, |here| here.join_apart(&cluster, &options))
        .ok_or_else(|| Error::new(CONFIG.to_string(), "attach() comes first".to_string()))?
        .map_err(refused)
}

/// A function without arguments that tells whether this instance leads: the fast one.
#[napi(catch_unwind, ts_return_type = "() => boolean")]
pub fn is_leader_function(env: Env, name: String) -> Result<Unknown<'static>> {
    is_leader::function(env, seat(env, &name)?).map_err(from_napi)
}

/// Milliseconds until the deadline of the term that this environment was told of; 0 if it is over.
#[napi(catch_unwind)]
pub fn remaining(env: Env, name: String, token: f64) -> Result<f64> {
    Ok(seat(env, &name)?
        .term()
        .filter(|term| Some(term.token()) == to_token(token))
        .map_or(0.0, |term| millis(term.remaining(SystemClock.now()))))
}

/// The last leader seen.
#[napi(catch_unwind)]
pub fn leader(env: Env, name: String) -> Result<Option<LeaderInfo>> {
    Ok(seat(env, &name)?
        .election()
        .leader()
        .map(|leader| LeaderInfo {
            instance_id: leader.owner.instance.as_str().to_string(),
            token: from_token(leader.token),
        }))
}

/// How transactions of the application's own depend on that term.
#[napi(catch_unwind)]
pub fn guard(env: Env, name: String, token: f64) -> Result<Option<GuardInfo>> {
    let seat = seat(env, &name)?;
    let Some(cluster) = seat.apart().or_else(cluster::running) else {
        return Ok(None);
    };
    let election = seat.election();
    let guard = to_token(token).and_then(|token| cluster.guard(election.name(), token));
    Ok(Some(GuardInfo {
        store: cluster.describe(),
        lease_duration: millis(election.lease()),
        statements: guard.map(|guard| GuardStatements {
            dialect: match guard.dialect {
                Dialect::Postgres => "postgres",
                Dialect::Mysql => "mysql",
            }
            .to_string(),
            table: guard.table,
            check: guard.check,
            hold: guard.hold,
        }),
    }))
}

/// This environment's callbacks about the end of that term have ended. They may do so after the seat was
/// given up.
#[napi(catch_unwind)]
pub fn settled(env: Env, name: String, token: f64) {
    if let Some(token) = to_token(token) {
        Environment::of(env, |here| here.settled(&name, token));
    }
}

/// Hands the lease over. Without a number of milliseconds the pause is one lease.
#[napi(catch_unwind)]
pub fn step_down(env: Env, name: String, pause_ms: Option<f64>) -> Result<()> {
    let seat = seat(env, &name)?;
    let pause = match pause_ms {
        // What is too long for a duration is for ever.
        Some(ms) => Duration::try_from_secs_f64(ms.max(0.0) / 1_000.0).unwrap_or(Duration::MAX),
        None => seat.default_pause(),
    };
    seat.election().step_down(pause);
    Ok(())
}

/// Gives this environment's seat up; the last one stops the election. `done` follows.
#[napi(catch_unwind)]
pub fn stop_election(env: Env, name: String, operation: u32) -> Result<()> {
    let seat = seat(env, &name)?;
    let Some(reply) = Environment::of(env, |here| here.reply()) else {
        return Ok(());
    };
    let (seat_name, listener) = (seat.name().clone(), seat.listener());
    let (election, apart) = (seat.election().clone(), seat.apart());
    let last = election.stop(seat.listener());
    reply.clone().when_done(operation, async move {
        if last {
            election.stopped().await;
        } else {
            reply.left(&seat_name, listener);
        }
        if let Some(apart) = apart {
            apart.stop().await;
        }
        Done::Nothing
    });
    Ok(())
}

/// Stops every election of this process's cluster and closes its store; elections beside it go on. `done`
/// follows.
#[napi(catch_unwind)]
pub fn stop_cluster(env: Env, operation: u32) {
    let Some(reply) = Environment::of(env, |here| here.reply()) else {
        return;
    };
    reply.when_done(operation, async {
        cluster::stop().await;
        Done::Nothing
    });
}

/// For a process that is ending: blocks until the leases are released, or for as long as a release may take.
#[napi(catch_unwind)]
pub fn release_all_now(env: Env) -> bool {
    let own = Environment::of(env, |here| here.listeners());
    cluster::release_all_now(&own.unwrap_or_default())
}

#[napi(catch_unwind)]
pub fn default_instance_id() -> String {
    identity::default_instance_id().as_str().to_string()
}

fn check(config: &Config) -> Result<()> {
    cluster::check(config).map_err(|error| Error::new(CONFIG.to_string(), error.to_string()))
}

fn parse(json: &str, source: &str, base_dir: &str) -> Result<Config> {
    let variables = crate::environment::read();
    Config::parse(json, source, Path::new(base_dir), &|name| {
        variables.get(name).cloned()
    })
    .map_err(refused)
}

/// As the configuration says, or as `runWhenLeader()` wants it.
fn options(config: &Config, run: Option<&str>) -> Result<ElectionOptions> {
    match run {
        Some(json) => config.run_options(json).map_err(refused),
        None => Ok(config.election_options()),
    }
}

fn refused(ConfigError { message, fault }: ConfigError) -> Error<String> {
    let code = match fault {
        Fault::Text => CONFIG,
        Fault::NoCluster => NO_CLUSTER,
        Fault::Unset => UNSET,
    };
    Error::new(code.to_string(), message)
}

fn info(config: &Config, cluster: Option<&Cluster>) -> ClusterInfo {
    let instance = config
        .instance
        .as_ref()
        .unwrap_or_else(|| identity::default_instance_id());
    ClusterInfo {
        r#type: config.type_name().to_string(),
        instance_id: instance.as_str().to_string(),
        lease_name: config.election.as_str().to_string(),
        lease_duration: millis(config.timing.lease()),
        renew_interval: millis(config.timing.renew_interval()),
        stop_timeout: millis(config.stop_timeout),
        signals: config.signals,
        keep_alive: config.keep_alive,
        candidate: config.takes_part,
        store: cluster.map(Cluster::describe).unwrap_or_default(),
        warnings: config.warnings.clone(),
    }
}

fn seat(env: Env, name: &str) -> Result<Rc<Seat>> {
    Environment::of(env, |here| here.seat(name))
        .flatten()
        .ok_or_else(|| {
            Error::new(
                CONFIG.to_string(),
                format!("election {name} was not joined or has stopped"),
            )
        })
}

fn election_name(name: &str) -> Result<ElectionName> {
    ElectionName::new(name).map_err(|bad| {
        Error::new(
            CONFIG.to_string(),
            format!("an election's name must {}, not {name:?}", bad.0),
        )
    })
}

fn from_napi(error: Error) -> Error<String> {
    Error::new(error.status.as_ref().to_string(), error.reason.clone())
}

#[allow(clippy::cast_precision_loss)] // Tokens are below 2^53.
fn from_token(token: Token) -> f64 {
    token.number() as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates; Token::new refuses.
fn to_token(number: f64) -> Option<Token> {
    Token::new(number as u64)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
