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

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::address::Address;
use self::bucket::{Bucket, NO_KEY, Put, Stored, key_of};
use self::link::Link;
use super::observed::{Document, Kept, Observed, ObservedStore, Values};
use super::watchers::Watchers;
use super::{Backend, BackendError, BadStore, Capabilities, Hints, StoreOptions, Watch};
use crate::clock::Clock;
use crate::lease::{ElectionName, FailureKind};

/// See the module's description.
#[derive(Debug)]
struct Nats {
    bucket: Bucket,
    watchers: Arc<Watchers>,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let address = Address::parse(url, &options.base_dir)?;
    let nats = Nats {
        bucket: Bucket {
            link: Link::new(address, options),
        },
        watchers: Arc::default(),
    };
    Ok(Arc::new(Observed::with_options(nats, options, clock)))
}

#[async_trait]
impl ObservedStore for Nats {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        self.bucket.link.address.shown.clone()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        let bucket = &self.bucket;
        let longest = Document::longest().text().into_bytes();
        for remark in bucket.prepare(NO_KEY, longest).await? {
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

    fn watch(leases: &Arc<Observed<Self>>, election: ElectionName, hints: Hints) -> Option<Watch> {
        let leases = Arc::clone(leases);
        Some(Box::pin(async move {
            let watchers = Arc::clone(&leases.records.watchers);
            let run = |running| watch::run(leases, running);
            watchers.listen(election, hints, run).forward().await;
        }))
    }

    async fn close(&self) {
        self.watchers.close().await;
        self.bucket.link.hang_up();
    }
}

#[async_trait]
impl Values for Nats {
    /// The number of its message in the stream.
    type Version = u64;

    async fn get(&self, election: &ElectionName) -> Result<Option<Kept<u64>>, BackendError> {
        let stored = self.bucket.get(&key_of(election.as_str())).await?;
        Ok(stored.map(kept))
    }

    async fn put(
        &self,
        election: &ElectionName,
        over: Option<&u64>,
        document: &Document,
    ) -> Result<Option<u64>, BackendError> {
        let key = key_of(election.as_str());
        let text = document.text().into_bytes();
        let over = over.copied().unwrap_or(0);
        Ok(match self.bucket.put(&key, over, text).await? {
            Put::At(sequence) => Some(sequence),
            Put::Changed => None,
        })
    }
}

fn kept(stored: Stored) -> Kept<u64> {
    Kept {
        version: stored.sequence,
        document: stored.value.map(|text| Document::read(&text)),
    }
}
