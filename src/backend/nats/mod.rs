//! NATS: a bucket of its key-value store, from nats-server 2.9 on.
//!
//! A bucket is a stream of JetStream that keeps the last message of each subject. What is published with the
//! header `Nats-Expected-Last-Subject-Sequence` is taken only if the subject's last message has that number: so
//! it keeps versioned records for [`Observed`], and each write is one request.
//!
//! | subject | holds |
//! |---|---|
//! | `$KV.<bucket>.cluster.<election>` | the record, see `observed/document.rs` |
//!
//! Three decisions:
//!
//! - Servers from 2.11 on could delete a record when its time is over (`Nats-TTL`). That is not used. It would
//!   make the server's calendar clock, which people set, decide who leads; and with the record would go its
//!   token, so that a leader whose clock is behind its predecessor's would be given a smaller one.
//! - A write that finds nobody who listens was not applied. If the bucket was deleted, it is made again; the
//!   term has ended then, as with any record that is gone.
//! - The connection is our own ([`connection`]): clients that are made for messages keep what is published while
//!   they are not connected, and send it afterwards. A renewal that is sent when its leader has given up does no
//!   good.

mod address;
mod bucket;
mod connection;
mod failure;
mod link;
mod nkey;
mod watch;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use self::address::Address;
use self::bucket::{Bucket, Kept, NO_KEY, Put, key_of};
use self::link::Link;
use super::observed::{Change, Document, Observed, Record, Records, Written};
use super::watchers::Watchers;
use super::{Attempt, Backend, BackendError, BadStore, Capabilities, Hints, StoreOptions, Watch};
use crate::clock::Clock;
use crate::lease::{ElectionName, FailureKind, Leader, Outcome, Owner, Token};
use crate::locked::locked;

/// See the module's description.
#[derive(Debug)]
pub struct NatsStore {
    leases: Observed<Leases>,
    watchers: Arc<Watchers>,
    running_watch: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Leases {
    bucket: Bucket,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    if options.min_replicas.is_some() {
        return Err(BadStore {
            parameter: "minReplicas",
            rule: "be left out with NATS: every write is confirmed by most servers that keep the bucket, and how many those are is set with ?replicas=<n>".into(),
        });
    }
    let address = Address::parse(url, &options.base_dir)?;
    let bucket = Bucket {
        link: Link::new(address, options),
    };
    Ok(Arc::new(NatsStore {
        leases: Observed::new(Leases { bucket }, clock),
        watchers: Arc::default(),
        running_watch: Mutex::default(),
    }))
}

#[async_trait]
impl Backend for NatsStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        self.bucket().link.address.shown.clone()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        let bucket = self.bucket();
        for remark in bucket.prepare(NO_KEY).await? {
            tracing::warn!(store = %self.describe(), "of the bucket: {remark}");
        }
        // Nobody listens to this one, so the server soon forgets it.
        let nowhere = format!("{}.whenleader", bucket.link.address.inbox);
        match bucket.link.ask(&watch::consumer(bucket, &nowhere)).await {
            Err(error) if error.kind == FailureKind::Fatal => tracing::warn!(
                store = %self.describe(),
                "this user may not watch the bucket, so a hand-over waits until a follower asks: {}",
                error.message
            ),
            _ => {}
        }
        Ok(())
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
        Some(Box::pin(async move {
            let listening = self.watchers.add(election, hints);
            if let Some(running) = self.watchers.begin() {
                let mut running_watch = locked(&self.running_watch);
                while running_watch.try_join_next().is_some() {}
                running_watch.spawn(watch::run(Arc::clone(&self), running));
            }
            listening.forward().await;
        }))
    }

    async fn close(&self) {
        self.watchers.stop();
        let mut running = std::mem::take(&mut *locked(&self.running_watch));
        running.shutdown().await;
        self.bucket().link.hang_up();
    }
}

impl NatsStore {
    fn bucket(&self) -> &Bucket {
        &self.leases.records.bucket
    }
}

/// What is kept under an election's key.
#[derive(Debug, Clone)]
struct Entry {
    sequence: u64,
    /// `None`: a mark where a record was deleted, which a new one is written over.
    document: Option<Document>,
}

impl Entry {
    fn new(kept: Kept) -> Self {
        Self {
            sequence: kept.sequence,
            document: kept.value.map(|value| Document::read(&value)),
        }
    }
}

impl Leases {
    async fn put(
        &self,
        election: &ElectionName,
        over: u64,
        document: Document,
    ) -> Result<Option<Entry>, BackendError> {
        let key = key_of(election.as_str());
        let text = document.text().into_bytes();
        Ok(match self.bucket.put(&key, over, text).await? {
            Put::At(sequence) => Some(Entry {
                sequence,
                document: Some(document),
            }),
            Put::Changed => None,
        })
    }
}

#[async_trait]
impl Records for Leases {
    type Entry = Entry;

    fn record(&self, entry: &Entry) -> Record {
        let sequence = entry.sequence;
        match &entry.document {
            // Numbers may come again where a bucket was deleted and made by somebody else.
            Some(document) => document.record(format!("{sequence} {}", document.word())),
            None => Record {
                version: sequence.to_string(),
                holder: None,
                last: None,
            },
        }
    }

    async fn read(&self, election: &ElectionName) -> Result<Option<Entry>, BackendError> {
        let kept = self.bucket.get(&key_of(election.as_str())).await?;
        Ok(kept.map(Entry::new))
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
        let document = match (&over.document, change) {
            (Some(document), change) => document.changed(change),
            (
                None,
                Change::Begin {
                    owner,
                    token,
                    duration,
                },
            ) => Document::first(owner, token, duration),
            // Nobody's term is where a record was deleted.
            (None, Change::Renew { .. } | Change::Release) => return Ok(Written::Changed),
        };
        let written = self.put(election, over.sequence, document).await?;
        Ok(written.map_or(Written::Changed, Written::Done))
    }
}
