//! Hears of changes to one election's key, for as long as somebody listens: a request that is answered when
//! something has changed since the last answer (a blocking query), again and again.
//!
//! What it says is noted like an answer, on the clock of this process, and proves nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::agent::Kept;
use super::{ConsulStore, Entry};
use crate::backend::BackendError;
use crate::backend::watchers::{Running, Watchers};
use crate::identity::random_u64;
use crate::lease::{ElectionName, FailureKind, Hint};

/// The first pause after a watch that failed; later ones double, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A right that was missing may be given while this process runs.
const PAUSE_WITHOUT_RIGHT: Duration = Duration::from_secs(60);
/// What changes more often than this is looked at together.
const SHORTEST_GAP: Duration = Duration::from_millis(5);

pub(super) async fn run(
    store: Arc<ConsulStore>,
    election: ElectionName,
    watchers: Arc<Watchers>,
    mut running: Running,
) {
    let mut watch = KeyWatch {
        store,
        election,
        watchers,
        listener: None,
        blind: false,
    };
    let mut pause = FIRST_PAUSE;
    while !running.has_ended() {
        let mut heard = false;
        let Err(error) = watch.hear(&mut running, &mut heard).await else {
            return;
        };
        if heard {
            pause = FIRST_PAUSE;
        }
        watch.is_blind(&error);
        let rest = match error.kind {
            FailureKind::Fatal => PAUSE_WITHOUT_RIGHT,
            _ => pause,
        };
        // Not all instances at the same moment: a server that comes back has enough to do.
        let thousandths = u32::try_from(random_u64() % 500).unwrap_or(0);
        tokio::select! {
            () = sleep(rest / 2 + rest * thousandths / 1_000) => {}
            () = watch.nobody_listens() => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

struct KeyWatch {
    store: Arc<ConsulStore>,
    election: ElectionName,
    watchers: Arc<Watchers>,
    /// The latest listener that knows that changes are heard.
    listener: Option<u64>,
    /// All listeners know that they are not.
    blind: bool,
}

impl KeyWatch {
    /// Until a request fails, or (`Ok`) nobody listens any more.
    async fn hear(&mut self, running: &mut Running, heard: &mut bool) -> Result<(), BackendError> {
        let key = self.store.key(&self.election);
        let store = Arc::clone(&self.store);
        let mut index = 0;
        let mut latest: Option<Option<u64>> = None;
        loop {
            let asking = store.agent().get_after(&key, index);
            tokio::pin!(asking);
            let (kept, now) = loop {
                // From the first answer on, whatever changes is the next one.
                if index > 0 {
                    self.is_watching();
                }
                if running.has_ended() {
                    return Ok(());
                }
                tokio::select! {
                    answer = &mut asking => break answer?,
                    () = self.watchers.changed() => {}
                }
            };
            *heard = true;
            // A server that was set back counts from a lower index, and would not answer for long.
            index = if now < index { 0 } else { now.max(1) };
            let version = kept.as_ref().map(|kept| kept.index);
            if latest != Some(version) {
                latest = Some(version);
                self.saw(kept.as_ref());
            } else if index > 0 {
                // Something else has changed, or nothing has.
                sleep(SHORTEST_GAP).await;
            }
        }
    }

    fn saw(&self, kept: Option<&Kept>) {
        let entry = kept.map(Entry::new);
        if let Some(hint) = self.store.leases.saw(&self.election, entry) {
            self.watchers.tell_all(hint);
        }
    }

    fn is_watching(&mut self) {
        let latest = self.watchers.elections().first().map(|(_, latest)| *latest);
        if latest.is_some() && self.listener != latest {
            self.listener = latest;
            self.blind = false;
            self.watchers.tell_all(Hint::Watching);
        }
    }

    fn is_blind(&mut self, error: &BackendError) {
        self.listener = None;
        if !std::mem::replace(&mut self.blind, true) {
            let election = &self.election;
            tracing::info!(%election, %error, "changes are not heard of: asking at every interval");
            self.watchers.tell_all(Hint::Blind);
        }
    }

    async fn nobody_listens(&self) {
        while !self.watchers.is_over() {
            self.watchers.changed().await;
        }
    }
}
