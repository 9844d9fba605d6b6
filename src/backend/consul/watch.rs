//! Hears of changes to one election's key, for as long as somebody listens: a request that is answered when
//! something has changed since the last answer (a blocking query), again and again.
//!
//! What it says is noted like an answer, on the clock of this process, and proves nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{Consul, kept};
use crate::backend::BackendError;
use crate::backend::observed::{Observed, ObservedStore as _};
use crate::backend::watchers::Running;
use crate::lease::ElectionName;

/// What changes more often than this is looked at together.
const SHORTEST_GAP: Duration = Duration::from_millis(5);
/// Of a key that is not there yet Consul tells at each write of anybody: each time that nothing has changed, the next
/// question waits twice as long, up to this.
const LONGEST_GAP: Duration = Duration::from_millis(250);

pub(super) async fn run(
    leases: Arc<Observed<Consul>>,
    election: ElectionName,
    mut running: Running,
) {
    let watch = KeyWatch { leases, election };
    while !running.has_ended() {
        let Err(error) = watch.hear(&mut running).await else {
            return;
        };
        let store = watch.leases.records.describe();
        running.lost(&store, &error).await;
    }
}

struct KeyWatch {
    leases: Arc<Observed<Consul>>,
    election: ElectionName,
}

impl KeyWatch {
    /// Until a request fails, or (`Ok`) nobody listens any more.
    async fn hear(&self, running: &mut Running) -> Result<(), BackendError> {
        let consul = &self.leases.records;
        let watchers = Arc::clone(running.watchers());
        let key = consul.key(&self.election);
        let mut index = 0;
        let mut latest: Option<Option<u64>> = None;
        let mut gap = SHORTEST_GAP;
        loop {
            let asking = consul.agent.get_after(&key, index);
            tokio::pin!(asking);
            let (stored, now) = loop {
                // From the first answer on, whatever changes is the next one.
                if index > 0 {
                    running.hears_all();
                }
                if running.has_ended() {
                    return Ok(());
                }
                tokio::select! {
                    answer = &mut asking => break answer?,
                    () = watchers.changed() => {}
                }
            };
            // A server that was set back counts from a lower index, and would not answer for long.
            index = if now < index { 0 } else { now.max(1) };
            let version = stored.as_ref().map(|stored| stored.index);
            if latest == Some(version) {
                gap = (gap * 2).min(LONGEST_GAP);
            } else {
                gap = SHORTEST_GAP;
                latest = Some(version);
                let entry = stored.as_ref().map(kept);
                if let Some(hint) = self.leases.saw(&self.election, entry) {
                    watchers.tell_all(hint);
                }
            }
            sleep(gap).await;
        }
    }
}
