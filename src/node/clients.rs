//! Raw attempts on a store of the application's own, one by one and outside of any election: what a kit
//! needs that tests such a store as this package's own are tested.
//!
//! A client is what one process would be: a backend with a memory of its own, and an owner of its own.
//! Nothing is renewed by itself. `lib/client.js` makes promises of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use napi::{Env, Error};
use napi_derive::napi;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::environment::{self, Done, Environment, Reply};
use super::{CONFIG, Result, election_name, from_token, millis, to_token};
use crate::backend::own::{self, OwnOptions};
use crate::backend::{Attempt, Backend, BackendError, BadStore};
use crate::clock::SystemClock;
use crate::identity::draw_owner;
use crate::lease::{FailureKind, Hint, InstanceId, Leader, Outcome, Owner};
use crate::locked::locked;

/// Hints that may wait.
const HINT_QUEUE: usize = 32;

/// What came of a client's operation, or what its watch heard; `what` says which of the others are there.
#[napi(object)]
#[derive(Default)]
pub struct ClientAnswer {
    /// Of an attempt `held` or `other`; of a release `released` or `notReleased`; of a peek `leader` or
    /// `nobody`; of a failure `transient`, `ambiguous` or `fatal`; of a watch `watching`, `blind`, `free` or
    /// `alive`.
    pub what: String,
    pub token: Option<f64>,
    /// Milliseconds from the send of the attempt.
    pub valid_for: Option<f64>,
    /// Milliseconds from the answer.
    pub remaining: Option<f64>,
    pub instance_id: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
}

#[derive(Clone)]
struct Client {
    /// Whose it is: it ends with it.
    environment: usize,
    backend: Arc<dyn Backend>,
    owner: Owner,
    limit: Duration,
}

static CLIENTS: Mutex<Clients> = Mutex::new(Clients {
    last: 0,
    open: None,
    watches: Vec::new(),
});

struct Clients {
    /// The number that was given last, to a client or to a watch.
    last: u32,
    open: Option<HashMap<u32, Client>>,
    watches: Vec<ClientWatch>,
}

/// Its drop ends the watch. It lasts no longer than its client, and that no longer than its environment.
struct ClientWatch {
    number: u32,
    client: u32,
    environment: usize,
    /// That began it.
    operation: u32,
    _keep: oneshot::Sender<()>,
}

impl Clients {
    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }
}

/// An environment ended, or its JavaScript was loaded anew: nobody is left who asks or hears.
pub fn environment_gone(environment: usize) {
    let mut all = lock();
    all.watches.retain(|watch| watch.environment != environment);
    if let Some(open) = &mut all.open {
        open.retain(|_, client| client.environment != environment);
    }
}

/// A process that uses the store that was registered under this number. Every operation is given up after
/// `limit` milliseconds, as an election gives it up.
#[napi(catch_unwind)]
pub fn open_client(env: Env, store: u32, instance_id: String, limit: f64) -> Result<u32> {
    let refuse = |message: String| Error::new(CONFIG.to_string(), message);
    let instance = InstanceId::new(&instance_id)
        .map_err(|bad| refuse(format!("instanceId must {}, not {instance_id:?}", bad.0)))?;
    let limit = Duration::try_from_secs_f64(limit / 1_000.0).unwrap_or(Duration::MAX);
    let options = OwnOptions {
        election: election_name("leader")?,
        min_replicas: None,
        request_limit: limit,
    };
    let backend = own::open(store, options, Arc::new(SystemClock))
        .map_err(|BadStore { rule, .. }| refuse(format!("store must {rule}")))?;
    let mut all = lock();
    let number = all.number();
    let client = Client {
        environment: environment::key(env),
        backend,
        owner: draw_owner(&instance),
        limit,
    };
    all.open.get_or_insert_default().insert(number, client);
    Ok(number)
}

/// One attempt: a campaign, or the renewal of the term of this token. `done` carries the answer.
#[napi(catch_unwind)]
pub fn client_attempt(
    env: Env,
    client: u32,
    election: String,
    lease_duration: f64,
    term: Option<f64>,
    operation: u32,
) -> Result<()> {
    let election = election_name(&election)?;
    let duration = Duration::try_from_secs_f64(lease_duration / 1_000.0).unwrap_or_default();
    let term = match term {
        None => None,
        Some(number) => Some(to_token(number).ok_or_else(|| bad_token(number))?),
    };
    run(env, client, operation, move |client| async move {
        let attempt = Attempt {
            election: &election,
            owner: &client.owner,
            duration,
            term,
        };
        client.backend.attempt(&attempt).await.map(of_outcome)
    })
}

/// `done` carries whether it was the client's.
#[napi(catch_unwind)]
pub fn client_release(
    env: Env,
    client: u32,
    election: String,
    token: f64,
    operation: u32,
) -> Result<()> {
    let election = election_name(&election)?;
    let token = to_token(token).ok_or_else(|| bad_token(token))?;
    run(env, client, operation, move |client| async move {
        let released = client.backend.release(&election, &client.owner, token);
        Ok(what(if released.await? {
            "released"
        } else {
            "notReleased"
        }))
    })
}

/// `done` carries who leads.
#[napi(catch_unwind)]
pub fn client_peek(env: Env, client: u32, election: String, operation: u32) -> Result<()> {
    let election = election_name(&election)?;
    run(env, client, operation, move |client| async move {
        let leader = client.backend.peek(&election).await?;
        Ok(leader.map_or_else(|| what("nobody"), |leader| of_leader("leader", leader)))
    })
}

/// `hint`s follow until [`client_unwatch`] or [`close_client`], then `done`; at once if the store has no watch.
#[napi(catch_unwind)]
pub fn client_watch(env: Env, client: u32, election: String, operation: u32) -> Result<()> {
    let election = election_name(&election)?;
    let backend = find(client)?.backend;
    let reply = reply(env)?;
    let (hints, mut heard) = mpsc::channel(HINT_QUEUE);
    let Some(watch) = backend.watch(election, hints) else {
        reply.when_done(operation, async { Done::Nothing });
        return Ok(());
    };
    let (keep, ended) = oneshot::channel();
    let mut all = lock();
    let number = all.number();
    all.watches.push(ClientWatch {
        number,
        client,
        environment: environment::key(env),
        operation,
        _keep: keep,
    });
    drop(all);
    let telling = reply.clone();
    reply.when_done(operation, async move {
        let tell = async {
            while let Some(hint) = heard.recv().await {
                telling.hint(operation, of_hint(hint));
            }
        };
        tokio::select! {
            biased;
            // First: what is heard because everything ends is no news.
            _ = ended => {}
            () = watch => {}
            () = tell => {}
        }
        lock().watches.retain(|watch| watch.number != number);
        Done::Nothing
    });
    Ok(())
}

#[napi(catch_unwind)]
pub fn client_unwatch(env: Env, operation: u32) {
    let environment = environment::key(env);
    lock()
        .watches
        .retain(|watch| (watch.environment, watch.operation) != (environment, operation));
}

#[napi(catch_unwind)]
pub fn close_client(client: u32) {
    let mut all = lock();
    all.watches.retain(|watch| watch.client != client);
    if let Some(open) = &mut all.open {
        open.remove(&client);
    }
}

fn run<Work>(
    env: Env,
    client: u32,
    operation: u32,
    work: impl FnOnce(Client) -> Work + Send + 'static,
) -> Result<()>
where
    Work: Future<Output = std::result::Result<ClientAnswer, BackendError>> + Send + 'static,
{
    let client = find(client)?;
    let limit = client.limit;
    reply(env)?.when_done(operation, async move {
        let answer = timeout(limit, work(client)).await.unwrap_or_else(|_| {
            let message = "no answer in time; it may have been applied";
            Err(BackendError::ambiguous("timeout", message))
        });
        Done::Answer(Box::new(answer.unwrap_or_else(of_failure)))
    });
    Ok(())
}

fn find(client: u32) -> Result<Client> {
    let all = lock();
    let found = all.open.as_ref().and_then(|all| all.get(&client));
    found
        .cloned()
        .ok_or_else(|| Error::new(CONFIG.to_string(), "the client was closed".to_string()))
}

fn reply(env: Env) -> Result<Reply> {
    Environment::of(env, |here| here.reply())
        .ok_or_else(|| Error::new(CONFIG.to_string(), "attach() comes first".to_string()))
}

fn bad_token(number: f64) -> Error<String> {
    Error::new(CONFIG.to_string(), format!("{number} is no token"))
}

fn what(what: &str) -> ClientAnswer {
    ClientAnswer {
        what: what.into(),
        ..ClientAnswer::default()
    }
}

fn of_leader(word: &str, leader: Leader) -> ClientAnswer {
    ClientAnswer {
        token: Some(from_token(leader.token)),
        instance_id: Some(leader.owner.instance.to_string()),
        ..what(word)
    }
}

fn of_outcome(outcome: Outcome) -> ClientAnswer {
    match outcome {
        Outcome::Held { token, valid_for } => ClientAnswer {
            token: Some(from_token(token)),
            valid_for: Some(millis(valid_for)),
            ..what("held")
        },
        Outcome::Other { leader, remaining } => {
            let answer = leader.map_or_else(|| what("other"), |leader| of_leader("other", leader));
            ClientAnswer {
                remaining: remaining.map(millis),
                ..answer
            }
        }
    }
}

fn of_hint(hint: Hint) -> ClientAnswer {
    match hint {
        Hint::Watching => what("watching"),
        Hint::Blind => what("blind"),
        Hint::Free => what("free"),
        Hint::Alive { token, valid_for } => ClientAnswer {
            token: Some(from_token(token)),
            valid_for: Some(millis(valid_for)),
            ..what("alive")
        },
    }
}

fn of_failure(error: BackendError) -> ClientAnswer {
    let kind = match error.kind {
        FailureKind::Transient => "transient",
        FailureKind::Ambiguous => "ambiguous",
        FailureKind::Fatal => "fatal",
    };
    ClientAnswer {
        code: Some(error.code.into()),
        message: Some(error.message),
        ..what(kind)
    }
}

fn lock() -> MutexGuard<'static, Clients> {
    locked(&CLIENTS)
}
