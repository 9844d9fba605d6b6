//! Consul: a key of its key-value store for each election.
//!
//! Every write is a transaction of one operation, `cas`: it is done only if the key's `ModifyIndex` is the one
//! that was seen (0: there is no such key), and its answer tells the new one. So it keeps versioned records for
//! [`Observed`], and each write is one request. Reads are `?consistent`: confirmed by most servers.
//!
//! | key | holds |
//! |---|---|
//! | `<prefix>cluster:<election>` | the record, see `observed/document.rs` |
//!
//! Consul's sessions, by which its own locks expire, are not used: they take 10 s at least, and end between one
//! and two times as long after their last renewal.

mod address;
mod agent;
mod failure;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use self::address::Address;
use self::agent::{Agent, Kept, Put};
use super::observed::{Change, Document, Observed, Record, Records, Written};
use super::watchers::Watchers;
use super::{Attempt, Backend, BackendError, BadStore, Capabilities, Hints, StoreOptions, Watch};
use crate::clock::Clock;
use crate::lease::{ElectionName, Leader, Outcome, Owner, Token};
use crate::locked::locked;

/// So many elections are watched, each of which takes a connection: an agent allows a machine 200.
const WATCHES: usize = 32;

/// See the module's description.
#[derive(Debug)]
pub struct ConsulStore {
    leases: Observed<Leases>,
    watching: Mutex<HashMap<ElectionName, Arc<Watchers>>>,
    running_watches: Mutex<JoinSet<()>>,
    told_of_polling: AtomicBool,
}

#[derive(Debug)]
struct Leases {
    agent: Agent,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    if options.min_replicas.is_some() {
        return Err(BadStore {
            parameter: "minReplicas",
            rule: "be left out with Consul: every write there is confirmed by most servers".into(),
        });
    }
    let address = Address::parse(url, &options.base_dir)?;
    let agent = Agent::new(address, options)?;
    Ok(Arc::new(ConsulStore {
        leases: Observed::new(Leases { agent }, clock),
        watching: Mutex::default(),
        running_watches: Mutex::default(),
        told_of_polling: AtomicBool::new(false),
    }))
}

#[async_trait]
impl Backend for ConsulStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        self.agent().address.shown.clone()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        // No election has an empty name.
        self.agent().rehearse(&self.agent().address.key("")).await
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        self.leases.attempt(attempt).await
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        self.leases.release(election, owner, token).await
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        self.leases.peek(election).await
    }

    fn watch(self: Arc<Self>, election: ElectionName, hints: Hints) -> Option<Watch> {
        let watchers = self.watchers(&election)?;
        Some(Box::pin(async move {
            let listening = watchers.add(election.clone(), hints);
            if let Some(running) = watchers.begin() {
                let mut running_watches = locked(&self.running_watches);
                while running_watches.try_join_next().is_some() {}
                running_watches.spawn(watch::run(Arc::clone(&self), election, watchers, running));
            }
            listening.forward().await;
        }))
    }

    async fn close(&self) {
        for watchers in locked(&self.watching).values() {
            watchers.stop();
        }
        let mut running = std::mem::take(&mut *locked(&self.running_watches));
        running.shutdown().await;
        self.agent().hang_up();
    }
}

impl ConsulStore {
    fn agent(&self) -> &Agent {
        &self.leases.records.agent
    }

    fn key(&self, election: &ElectionName) -> String {
        self.leases.records.key(election)
    }

    /// `None`: there are too many already.
    fn watchers(&self, election: &ElectionName) -> Option<Arc<Watchers>> {
        let mut watching = locked(&self.watching);
        if !watching.contains_key(election) && watching.len() >= WATCHES {
            watching.retain(|_, watchers| !watchers.is_over());
        }
        if !watching.contains_key(election) && watching.len() >= WATCHES {
            if !self.told_of_polling.swap(true, Ordering::Relaxed) {
                tracing::info!(
                    store = %self.describe(),
                    %election,
                    "more than {WATCHES} elections: this one and later ones are not watched, and ask at every interval"
                );
            }
            return None;
        }
        Some(Arc::clone(watching.entry(election.clone()).or_default()))
    }
}

/// What is kept under an election's key.
#[derive(Debug, Clone)]
struct Entry {
    index: u64,
    document: Document,
}

impl Entry {
    fn new(kept: &Kept) -> Self {
        Self {
            index: kept.index,
            document: Document::read(&kept.value),
        }
    }
}

impl Leases {
    fn key(&self, election: &ElectionName) -> String {
        self.agent.address.key(election.as_str())
    }

    async fn put(
        &self,
        election: &ElectionName,
        over: u64,
        document: Document,
    ) -> Result<Option<Entry>, BackendError> {
        let key = self.key(election);
        let text = document.text();
        Ok(match self.agent.put(&key, over, text.as_bytes()).await? {
            Put::At(index) => Some(Entry { index, document }),
            Put::Changed => None,
        })
    }
}

#[async_trait]
impl Records for Leases {
    type Entry = Entry;

    fn record(&self, entry: &Entry) -> Record {
        // Indexes may come again when Consul was restored from a snapshot.
        let (index, document) = (entry.index, &entry.document);
        document.record(format!("{index} {}", document.word()))
    }

    async fn read(&self, election: &ElectionName) -> Result<Option<Entry>, BackendError> {
        let kept = self.agent.get(&self.key(election)).await?;
        Ok(kept.as_ref().map(Entry::new))
    }

    async fn create(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        duration: Duration,
    ) -> Result<Option<Entry>, BackendError> {
        let document = Document::first(owner, token, duration);
        self.put(election, 0, document).await
    }

    async fn write(
        &self,
        election: &ElectionName,
        over: &Entry,
        change: Change<'_>,
    ) -> Result<Written<Entry>, BackendError> {
        let document = over.document.changed(change);
        let written = self.put(election, over.index, document).await?;
        Ok(written.map_or(Written::Changed, Written::Done))
    }
}
