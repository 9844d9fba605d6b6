//! One stream for all elections of a store: turns what etcd tells of their records into hints. It reconnects
//! by itself and says when it cannot hear.
//!
//! A renewal writes nothing, so it is not heard of. The end of a lease is, whoever ended it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::failure;
use super::gateway::{Gateway, entry, number};
use super::record::Record;
use crate::backend::watchers::{Listening, Running, Watchers};
use crate::backend::{BackendError, Hints, StoreOptions};
use crate::lease::{ElectionName, FailureKind, Hint};

/// After so many timeouts without a word the stream is begun anew, where it left off: one whose other end has
/// vanished looks like one on which nothing happens, and leaders that renew are not heard.
const QUIET_TIMEOUTS: u32 = 4;
/// Those who begin to listen at the same time share one new stream.
const GATHERING: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Listener {
    gateway: Arc<Gateway>,
    watchers: Arc<Watchers>,
    patience: Duration,
}

/// Where the next stream of each election begins that is listened to.
type Revisions = HashMap<ElectionName, i64>;

/// Why a stream is left.
enum End {
    /// Nobody listens any more.
    Over,
    /// Others listen, or nothing was heard for long, or it must begin later.
    Again,
    /// Something was refused, and may not be to whoever signs in anew.
    SignIn,
}

impl Listener {
    pub fn new(gateway: Arc<Gateway>, options: &StoreOptions) -> Self {
        Self {
            gateway,
            watchers: Arc::default(),
            patience: options.request_timeout,
        }
    }

    pub fn listen(self: &Arc<Self>, election: ElectionName, hints: Hints) -> Listening {
        let listener = Arc::clone(self);
        let run = |running| async move { listener.run(running).await };
        self.watchers.listen(election, hints, run)
    }

    pub async fn close(&self) {
        self.watchers.close().await;
    }

    async fn run(&self, mut running: Running) {
        let mut known = HashMap::new();
        let mut signed_in = false;
        while !running.has_ended() {
            let is_sure = std::mem::take(&mut signed_in);
            match self.hear(&mut running, &mut known, is_sure).await {
                Ok(End::Over) => return,
                Ok(End::Again) => {}
                Ok(End::SignIn) => signed_in = true,
                Err(error) => {
                    known.clear();
                    running.lost(&self.gateway.address.shown, &error).await;
                }
            }
        }
    }

    /// One stream, from its beginning to its end. `is_sure`: this user has just signed in, so that what is refused
    /// is not allowed.
    async fn hear(
        &self,
        running: &mut Running,
        known: &mut Revisions,
        is_sure: bool,
    ) -> Result<End, BackendError> {
        sleep(GATHERING).await;
        let mut elections = self.watchers.elections();
        elections.retain(|election| !running.is_refused(election));
        known.retain(|name, _| elections.contains(name));
        let keys: Vec<_> = elections
            .iter()
            .map(|election| self.gateway.address.keys(election.as_str()).lease)
            .collect();
        let asked: Vec<_> = (elections.iter().zip(&keys).enumerate())
            .map(|(index, (election, key))| {
                let from = known.get(election).copied();
                (index + 1, &**key, from)
            })
            .collect();
        if asked.is_empty() {
            if running.has_ended() {
                return Ok(End::Over);
            }
            tokio::select! {
                () = self.watchers.changed() => {}
                () = running.rested() => {}
            }
            return Ok(End::Again);
        }
        let mut stream = self.gateway.watch(&asked).await?;

        let begin_by = Instant::now() + self.patience;
        let mut answered = 0;
        let mut heard = Instant::now();
        loop {
            if running.has_ended() {
                return Ok(End::Over);
            }
            let is_complete = answered == elections.len();
            if is_complete && (known.is_empty() || self.greet(known, running)) {
                return Ok(End::Again);
            }
            let until = if is_complete {
                heard + self.patience * QUIET_TIMEOUTS
            } else {
                begin_by
            };
            tokio::select! {
                line = timeout_at(until, stream.next()) => match line {
                    Ok(line) => {
                        heard = Instant::now();
                        let line = line.map_err(|broken| self.gateway.stream_broke(&broken))?;
                        match self.understand(&line, &elections, answered, known)? {
                            Told::Created => answered += 1,
                            Told::Refused(_) if !is_sure && self.gateway.sign_in_anew() => {
                                return Ok(End::SignIn);
                            }
                            Told::Refused(error) => {
                                let election = &elections[answered];
                                known.remove(election);
                                running.refused(election, &self.gateway.address.shown, &error);
                                answered += 1;
                            }
                            Told::Compacted => {
                                running.interrupted();
                                return Ok(End::Again);
                            }
                            Told::Other => {}
                        }
                    }
                    Err(_) if is_complete => return Ok(End::Again),
                    Err(_) => return Err(self.gateway.silence()),
                },
                () = self.watchers.changed() => {}
                () = running.rested(), if is_complete => {}
            }
        }
    }

    /// Tells those who have just begun to listen that they do. `true`: the stream lacks some of them, and they may
    /// be asked for.
    fn greet(&self, known: &Revisions, running: &mut Running) -> bool {
        let mut lacking = false;
        for election in self.watchers.elections() {
            if known.contains_key(&election) {
                running.hears(&election);
            } else {
                lacking |= !running.is_refused(&election);
            }
        }
        lacking
    }

    /// `answered`: how many of the elections etcd has answered for, one after the other.
    fn understand(
        &self,
        line: &[u8],
        elections: &[ElectionName],
        answered: usize,
        known: &mut Revisions,
    ) -> Result<Told, BackendError> {
        let nonsense = || self.gateway.meaning_of(&String::from_utf8_lossy(line));
        let message: Value = serde_json::from_slice(line).map_err(|_| nonsense())?;
        let result = &message["result"];
        if !result.is_object() {
            let said = message["error"]["message"].as_str();
            return Err(said.map_or_else(nonsense, |said| self.gateway.meaning_of(said)));
        }
        let index = number(&result["watch_id"])
            .and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
        let election = index.and_then(|index| elections.get(index));
        if result["canceled"] == true {
            if let Some(election) = election
                && number(&result["compact_revision"]).is_some_and(|revision| revision > 0)
            {
                // What happened meanwhile was cleared away. It begins anew, and says so.
                known.remove(election);
                return Ok(Told::Compacted);
            }
            let reason = result["cancel_reason"].as_str().unwrap_or_default();
            let error = self.gateway.meaning_of(reason);
            // What is refused is not named: the answers come in the order of what was asked. The stream goes on.
            if result["created"] == true
                && error.kind == FailureKind::Fatal
                && answered < elections.len()
            {
                return Ok(Told::Refused(error));
            }
            if error.code == failure::REFUSED {
                self.gateway.sign_in_anew();
            }
            return Err(error);
        }
        let Some(election) = election else {
            return Ok(Told::Other);
        };
        if result["created"] == true {
            let now = number(&result["header"]["revision"]).ok_or_else(nonsense)?;
            known.entry(election.clone()).or_insert(now + 1);
            return Ok(Told::Created);
        }
        for event in result["events"].as_array().into_iter().flatten() {
            let entry = entry(&event["kv"]).ok_or_else(nonsense)?;
            if let Some(next) = known.get_mut(election) {
                *next = (*next).max(entry.revision + 1);
            }
            let hint = if event["type"] == "DELETE" {
                Some(Hint::Free)
            } else {
                Record::read(&entry.value).map(|record| Hint::Alive {
                    token: record.leader.token,
                    valid_for: Duration::from_secs(record.seconds),
                })
            };
            if let Some(hint) = hint {
                self.watchers.tell(election, hint);
            }
        }
        Ok(Told::Other)
    }
}

/// What a line of the stream said.
enum Told {
    Created,
    /// The next one that was asked for may not be listened to.
    Refused(BackendError),
    Compacted,
    Other,
}
