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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use self::address::Address;
use self::agent::{Agent, Put, Stored};
use super::observed::{Document, Kept, Observed, ObservedStore, Values};
use super::watchers::WatchersByElection;
use super::{Backend, BackendError, BadStore, Capabilities, Hints, StoreOptions, Watch};
use crate::clock::Clock;
use crate::lease::ElectionName;

/// So many elections are watched, each of which takes a connection: an agent allows a machine 200.
const WATCHES: usize = 32;
/// How often the others look whether there is room by now.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(30);

/// See the module's description.
#[derive(Debug)]
struct Consul {
    agent: Agent,
    watchers: WatchersByElection,
    told_of_polling: AtomicBool,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let address = Address::parse(url, &options.base_dir)?;
    let consul = Consul {
        agent: Agent::new(address, options)?,
        watchers: WatchersByElection::default(),
        told_of_polling: AtomicBool::new(false),
    };
    Ok(Arc::new(Observed::with_options(consul, options, clock)))
}

#[async_trait]
impl ObservedStore for Consul {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        self.agent.address.shown.clone()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        // No election has an empty name.
        self.agent.rehearse(&self.agent.address.key("")).await
    }

    fn watch(leases: &Arc<Observed<Self>>, election: ElectionName, hints: Hints) -> Option<Watch> {
        let leases = Arc::clone(leases);
        Some(Box::pin(async move {
            let listening = loop {
                let run = |running| watch::run(Arc::clone(&leases), election.clone(), running);
                let watchers = &leases.records.watchers;
                match watchers.listen(election.clone(), hints.clone(), WATCHES, run) {
                    Some(listening) => break listening,
                    None => leases.records.tell_of_polling(&election),
                }
                sleep(LOOK_FOR_ROOM).await;
            };
            listening.forward().await;
        }))
    }

    async fn close(&self) {
        self.watchers.close().await;
        self.agent.hang_up();
    }
}

impl Consul {
    fn key(&self, election: &ElectionName) -> String {
        self.agent.address.key(election.as_str())
    }

    /// Said once.
    fn tell_of_polling(&self, election: &ElectionName) {
        if !self.told_of_polling.swap(true, Ordering::Relaxed) {
            tracing::info!(
                store = %self.describe(),
                %election,
                "more than {WATCHES} elections: this one and later ones are not watched until others end, and ask at every interval"
            );
        }
    }
}

#[async_trait]
impl Values for Consul {
    /// The key's `ModifyIndex`.
    type Version = u64;

    async fn get(&self, election: &ElectionName) -> Result<Option<Kept<u64>>, BackendError> {
        let stored = self.agent.get(&self.key(election)).await?;
        Ok(stored.as_ref().map(kept))
    }

    async fn put(
        &self,
        election: &ElectionName,
        over: Option<&u64>,
        document: &Document,
    ) -> Result<Option<u64>, BackendError> {
        let key = self.key(election);
        let over = over.copied().unwrap_or(0);
        let text = document.text();
        Ok(match self.agent.put(&key, over, text.as_bytes()).await? {
            Put::At(index) => Some(index),
            Put::Changed => None,
        })
    }
}

fn kept(stored: &Stored) -> Kept<u64> {
    Kept::new(stored.index, &stored.value)
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::clock::SystemClock;
    use crate::lease::Hint;

    type Heard = mpsc::Receiver<Hint>;

    fn watch(consul: &Arc<Observed<Consul>>, election: &str) -> (JoinHandle<()>, Heard) {
        let (hints, heard) = mpsc::channel(8);
        let election = ElectionName::new(election).unwrap();
        let watch = ObservedStore::watch(consul, election, hints).expect("it notifies");
        (tokio::spawn(watch), heard)
    }

    /// Nobody answers there, so the first thing that a watch tells is that it hears nothing.
    #[tokio::test(start_paused = true)]
    async fn an_election_for_which_there_is_no_room_is_watched_as_soon_as_there_is() {
        let address = Address::parse("consul://127.0.0.1:1", ".".as_ref());
        let address = address.map_err(|bad| bad.rule).unwrap();
        let consul = Consul {
            agent: Agent::new(address, &StoreOptions::new(".")).unwrap(),
            watchers: WatchersByElection::default(),
            told_of_polling: AtomicBool::new(false),
        };
        let consul = Arc::new(Observed::new(consul, Arc::new(SystemClock)));
        let mut watches = Vec::new();
        for number in 0..WATCHES {
            let (task, mut heard) = watch(&consul, &format!("e{number}"));
            assert_eq!(heard.recv().await, Some(Hint::Blind));
            watches.push((task, heard));
        }
        // One more watch on the same election takes no more room.
        let (_same, mut heard) = watch(&consul, "e0");
        assert_eq!(heard.recv().await, Some(Hint::Blind));
        assert!(!consul.records.told_of_polling.load(Ordering::Relaxed));

        let (waiting, mut heard) = watch(&consul, "one more");
        let long = 10 * LOOK_FOR_ROOM;
        assert!(
            timeout(long, heard.recv()).await.is_err(),
            "there is no room"
        );
        assert!(consul.records.told_of_polling.load(Ordering::Relaxed));
        let (task, _) = watches.pop().unwrap();
        task.abort();
        let told = timeout(2 * LOOK_FOR_ROOM, heard.recv()).await;
        assert_eq!(told, Ok(Some(Hint::Blind)));
        assert!(!waiting.is_finished());
    }
}
