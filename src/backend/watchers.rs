//! Who listens to which election: the part that every store's watch has in common. One connection or
//! thread of a store serves all its elections, and hands out hints through this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Hints;
use crate::lease::{ElectionName, Hint};

#[derive(Debug, Default)]
pub(super) struct Watchers {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    next_id: u64,
    generation: u64,
    listeners: HashMap<ElectionName, Vec<(u64, Hints)>>,
}

/// Its drop ends the listening.
#[derive(Debug)]
pub(super) struct Listening {
    watchers: Arc<Watchers>,
    election: ElectionName,
    id: u64,
}

impl Watchers {
    pub fn add(self: &Arc<Self>, election: ElectionName, hints: Hints) -> Listening {
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.generation += 1;
        inner
            .listeners
            .entry(election.clone())
            .or_default()
            .push((id, hints));
        self.changed.notify_one();
        Listening {
            watchers: Arc::clone(self),
            election,
            id,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lock().listeners.is_empty()
    }

    /// Waits until somebody begins or ends listening, or [`Watchers::wake`]. For one waiter.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Changes whenever somebody begins or ends listening.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Each election with the number of its latest listener, by which a new one shows.
    pub fn elections(&self) -> Vec<(ElectionName, u64)> {
        let inner = self.lock();
        let latest = |listeners: &Vec<(u64, Hints)>| listeners.last().map_or(0, |(id, _)| *id);
        let elections = inner.listeners.iter();
        elections
            .map(|(name, of)| (name.clone(), latest(of)))
            .collect()
    }

    /// A hint that finds its queue full is dropped: those in the queue wake the campaign all the same.
    pub fn tell(&self, election: &ElectionName, hint: Hint) {
        for (_, hints) in self.lock().listeners.get(election).into_iter().flatten() {
            let _ = hints.try_send(hint);
        }
    }

    pub fn tell_all(&self, hint: Hint) {
        for (_, hints) in self.lock().listeners.values().flatten() {
            let _ = hints.try_send(hint);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut inner = self.watchers.lock();
        inner.generation += 1;
        if let Some(listeners) = inner.listeners.get_mut(&self.election) {
            listeners.retain(|(id, _)| *id != self.id);
            if listeners.is_empty() {
                inner.listeners.remove(&self.election);
            }
        }
        self.watchers.changed.notify_one();
    }
}
