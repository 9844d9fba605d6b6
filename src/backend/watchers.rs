//! Who listens to which election: the part that every store's watch has in common. One connection or
//! thread of a store, the runner, serves all its elections, and hands out hints through this.
//!
//! A campaign that is slow to listen loses none of what counts: of each kind the latest hint waits for
//! it, and a runner never waits for a campaign.

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
    listeners: HashMap<ElectionName, Vec<(u64, Arc<Unheard>)>>,
    running: bool,
    stopped: bool,
}

/// One campaign that listens. Its drop ends the listening.
#[derive(Debug)]
pub(super) struct Listening {
    watchers: Arc<Watchers>,
    election: ElectionName,
    id: u64,
    unheard: Arc<Unheard>,
    hints: Hints,
}

/// What one campaign was not told yet.
#[derive(Debug, Default)]
struct Unheard {
    latest: Mutex<Latest>,
    added: Notify,
}

/// In the order in which they are told.
#[derive(Debug, Default)]
struct Latest {
    /// `Watching` or `Blind`.
    watch: Option<Hint>,
    free: bool,
    alive: Option<Hint>,
}

/// The right to be the only runner. Its drop lets another one begin.
#[derive(Debug)]
pub(super) struct Running {
    watchers: Arc<Watchers>,
    ended: bool,
}

impl Watchers {
    pub fn add(self: &Arc<Self>, election: ElectionName, hints: Hints) -> Listening {
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.generation += 1;
        let unheard = Arc::<Unheard>::default();
        inner
            .listeners
            .entry(election.clone())
            .or_default()
            .push((id, Arc::clone(&unheard)));
        self.changed.notify_one();
        Listening {
            watchers: Arc::clone(self),
            election,
            id,
            unheard,
            hints,
        }
    }

    /// `Some`: a runner must be started now.
    pub fn begin(self: &Arc<Self>) -> Option<Running> {
        let mut inner = self.lock();
        if inner.running || inner.stopped {
            return None;
        }
        inner.running = true;
        Some(Running {
            watchers: Arc::clone(self),
            ended: false,
        })
    }

    /// No runner goes on, and none begins any more.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Whether a runner has nothing left to do.
    pub fn is_over(&self) -> bool {
        self.lock().is_over()
    }

    /// Waits until somebody begins or ends listening, or [`Watchers::stop`]. For one waiter.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Changes whenever somebody begins or ends listening.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Each election with the number of its latest listener, by which a new one shows.
    pub fn elections(&self) -> Vec<(ElectionName, u64)> {
        let inner = self.lock();
        let latest = |of: &Vec<(u64, Arc<Unheard>)>| of.last().map_or(0, |(id, _)| *id);
        let elections = inner.listeners.iter();
        elections
            .map(|(name, of)| (name.clone(), latest(of)))
            .collect()
    }

    pub fn tell(&self, election: &ElectionName, hint: Hint) {
        for (_, unheard) in self.lock().listeners.get(election).into_iter().flatten() {
            unheard.add(hint);
        }
    }

    pub fn tell_all(&self, hint: Hint) {
        for (_, unheard) in self.lock().listeners.values().flatten() {
            unheard.add(hint);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn is_over(&self) -> bool {
        self.stopped || self.listeners.is_empty()
    }
}

impl Running {
    /// Whether this runner has ended: nobody needs it any more. A later listener starts another one.
    pub fn has_ended(&mut self) -> bool {
        let mut inner = self.watchers.lock();
        if !self.ended && inner.is_over() {
            self.ended = true;
            inner.running = false;
        }
        self.ended
    }
}

impl Drop for Running {
    /// Without a word before, it panicked: nothing is heard any more.
    fn drop(&mut self) {
        if !self.ended {
            self.watchers.lock().running = false;
            self.watchers.tell_all(Hint::Blind);
        }
    }
}

impl Listening {
    /// Tells the campaign, until it does not listen any more.
    pub async fn forward(self) {
        // Only what can be told at once is taken, so that what waits is never outdated.
        while let Ok(room) = self.hints.reserve().await {
            let hint = self.unheard.lock().take();
            if let Some(hint) = hint {
                room.send(hint);
                continue;
            }
            drop(room);
            tokio::select! {
                () = self.hints.closed() => return,
                () = self.unheard.added.notified() => {}
            }
        }
    }
}

impl Unheard {
    fn add(&self, hint: Hint) {
        let mut latest = self.lock();
        match hint {
            Hint::Watching | Hint::Blind => latest.watch = Some(hint),
            Hint::Free => {
                latest.free = true;
                latest.alive = None;
            }
            Hint::Alive { .. } => latest.alive = Some(hint),
        }
        self.added.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Latest {
    fn take(&mut self) -> Option<Hint> {
        let free = || std::mem::take(&mut self.free).then_some(Hint::Free);
        self.watch
            .take()
            .or_else(free)
            .or_else(|| self.alive.take())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;
    use crate::lease::Token;

    fn alive(token: u64) -> Hint {
        Hint::Alive {
            token: Token::new(token).unwrap(),
            valid_for: Duration::from_secs(1),
        }
    }

    #[tokio::test]
    async fn a_campaign_that_listens_late_hears_the_latest_of_each_kind() {
        let watchers = Arc::<Watchers>::default();
        let election = ElectionName::new("e").unwrap();
        let (hints, mut heard) = mpsc::channel(1);
        let listening = watchers.add(election.clone(), hints);
        let task = tokio::spawn(listening.forward());
        for (told, expected) in [
            (vec![alive(1), alive(2), alive(3)], vec![alive(3)]),
            (vec![Hint::Free, alive(3), Hint::Free], vec![Hint::Free]),
            (vec![Hint::Free, alive(4)], vec![Hint::Free, alive(4)]),
            (
                vec![alive(4), Hint::Blind, alive(4)],
                vec![Hint::Blind, alive(4)],
            ),
            (
                vec![Hint::Blind, Hint::Free, Hint::Watching],
                vec![Hint::Watching, Hint::Free],
            ),
        ] {
            // The queue is full, whatever comes now.
            watchers.tell(&election, alive(9));
            while heard.is_empty() {
                tokio::task::yield_now().await;
            }
            for _ in 0..50 {
                for hint in &told {
                    watchers.tell(&election, *hint);
                }
                tokio::task::yield_now().await;
            }
            assert_eq!(heard.recv().await, Some(alive(9)));
            let mut rest = Vec::new();
            while rest.len() < expected.len() {
                rest.push(heard.recv().await.unwrap());
            }
            // What was repeated is all told: the same in the same order, from the latest round.
            assert_eq!(rest, expected, "{told:?}");
        }
        drop(heard);
        task.await.unwrap();
        assert!(watchers.is_over());
    }

    #[test]
    fn there_is_one_runner_at_a_time_and_one_that_panics_says_that_all_are_blind() {
        let watchers = Arc::<Watchers>::default();
        let (hints, _heard) = mpsc::channel(1);
        let listening = watchers.add(ElectionName::new("e").unwrap(), hints);
        let mut first = watchers.begin().expect("the first");
        assert!(watchers.begin().is_none());
        assert!(!first.has_ended());
        drop(first);
        assert_eq!(listening.unheard.lock().take(), Some(Hint::Blind));
        let mut second = watchers.begin().expect("the first has gone");
        drop(listening);
        assert!(second.has_ended());
        let mut third = watchers.begin().expect("the second has ended");
        drop(second);
        assert!(watchers.begin().is_none(), "the third is at work");
        watchers.stop();
        assert!(third.has_ended());
        assert!(watchers.begin().is_none());
    }
}
