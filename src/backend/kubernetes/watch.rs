//! Hears of changes to one Lease, for as long as somebody listens.
//!
//! A watch that the server ends goes on from there; one that broke begins anew, with what is now. What it
//! says is noted like an answer, on the clock of this process, and proves nothing: every take-over is a
//! write on the condition of what was seen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::failure::Right;
use super::record::Lease;
use super::{Asked, JSON, Kubernetes};
use crate::backend::BackendError;
use crate::backend::watchers::{Running, Watchers};
use crate::identity::random_u64;
use crate::lease::{ElectionName, Hint};

/// The server ends a watch after this time, and it goes on with the next.
const WATCH_SECONDS: &str = "600";
/// A server that has nothing to tell sends a bookmark about every minute.
const LONGEST_SILENCE: Duration = Duration::from_secs(90);
/// One that the server ends earlier is not simply gone on with.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// How long after an expiry a take-over is heard of at the latest, if there is somebody to take over.
const TAKEOVER: Duration = Duration::from_secs(2);
/// The first pause after a watch that broke; later ones double, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A right that was missing may be given while this process runs.
const PAUSE_WITHOUT_RIGHT: Duration = Duration::from_secs(600);
/// No event is longer.
const LONGEST_EVENT: usize = 4 << 20;

pub(super) async fn run(
    store: Arc<Kubernetes>,
    election: ElectionName,
    watchers: Arc<Watchers>,
    mut running: Running,
) {
    let mut watch = LeaseWatch {
        store,
        election,
        watchers,
        from: None,
        listener: None,
        blind: false,
    };
    let mut pause = FIRST_PAUSE;
    while !running.has_ended() {
        let began = Instant::now();
        let ended = watch.hear(&mut running).await;
        if began.elapsed() > SHORTEST_WATCH {
            pause = FIRST_PAUSE;
            if let Ok(End::ByServer) = ended {
                // It goes on from where it ended, so nobody missed anything.
                continue;
            }
        }
        // What is going on now is told again with the first event. Where a server was set back, nothing
        // would be heard from a place that it has not reached yet.
        watch.from = None;
        let rest = match ended {
            Ok(End::ByServer) => pause,
            Ok(End::TooOld) => FIRST_PAUSE,
            Ok(End::NotAllowed) => PAUSE_WITHOUT_RIGHT,
            Err(error) => {
                if !watch.blind {
                    let election = &watch.election;
                    tracing::info!(%election, %error, "changes are not heard of: asking at every interval");
                }
                pause
            }
        };
        watch.is_blind();
        // Not all instances at the same moment: a server that comes back has enough to do.
        let thousandths = u32::try_from(random_u64() % 500).unwrap_or(0);
        let rest = rest / 2 + rest * thousandths / 1_000;
        let _ = timeout(rest, watch.nobody_listens()).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

struct LeaseWatch {
    store: Arc<Kubernetes>,
    election: ElectionName,
    watchers: Arc<Watchers>,
    /// The resourceVersion of what was heard last.
    from: Option<String>,
    /// The latest listener that knows that changes are heard.
    listener: Option<u64>,
    /// All listeners know that they are not.
    blind: bool,
}

enum End {
    ByServer,
    /// The server has forgotten what came after what was heard last.
    TooOld,
    NotAllowed,
}

impl LeaseWatch {
    /// Until the connection ends, or nobody listens any more.
    async fn hear(&mut self, running: &mut Running) -> Result<End, BackendError> {
        let asked = self.asked().await?;
        let mut stream = match self.store.api().stream(&asked).await? {
            Ok(stream) => stream,
            Err(answer) if answer.status == 410 => return Ok(End::TooOld),
            Err(answer) => {
                let error = self.store.leases.records.failed(&answer, &asked);
                if answer.status != 403 {
                    return Err(error);
                }
                if let Some(target) = self.store.api().target() {
                    self.store.tell_of_polling(&target.namespace);
                }
                return Ok(End::NotAllowed);
            }
        };
        let mut lines = Lines::default();
        loop {
            self.is_watching();
            if running.has_ended() {
                return Ok(End::ByServer);
            }
            tokio::select! {
                frame = stream.frame() => match frame {
                    None => return Ok(End::ByServer),
                    Some(Err(error)) => return Err(broken(&format!("the watch broke: {error}"))),
                    Some(Ok(frame)) => {
                        lines.add(frame.data_ref().map_or(&[], |data| &data[..]))?;
                        while let Some(line) = lines.next() {
                            if let Some(end) = self.event(&line)? {
                                return Ok(end);
                            }
                        }
                    }
                },
                () = self.watchers.changed() => {}
                () = sleep(self.patience()) => return Err(broken("the watch fell silent")),
            }
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

    fn is_blind(&mut self) {
        self.listener = None;
        if !std::mem::replace(&mut self.blind, true) {
            self.watchers.tell_all(Hint::Blind);
        }
    }

    async fn asked(&self) -> Result<Asked<'static>, BackendError> {
        let mut path = self.store.leases.records.path("").await?;
        path.push_str("?watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3D");
        path.push_str(self.election.as_str());
        path.push_str("&timeoutSeconds=");
        path.push_str(WATCH_SECONDS);
        if let Some(from) = &self.from {
            path.push_str("&resourceVersion=");
            path.extend(url::form_urlencoded::byte_serialize(from.as_bytes()));
        }
        Ok(Asked {
            method: Method::GET,
            path,
            body: None,
            content_type: JSON,
            right: Right::on_leases("watch"),
            writes: false,
        })
    }

    fn event(&mut self, line: &[u8]) -> Result<Option<End>, BackendError> {
        let Ok(Value::Object(mut event)) = serde_json::from_slice(line) else {
            return Err(broken("the watch told something that is no event"));
        };
        let object = event.remove("object").unwrap_or_default();
        let kind = event.get("type").and_then(Value::as_str).unwrap_or("");
        if kind == "ERROR" {
            return match object["code"].as_u64() {
                Some(410) => Ok(Some(End::TooOld)),
                _ => Err(broken(&format!(
                    "the watch ended with {}",
                    object["message"].as_str().unwrap_or("an error")
                ))),
            };
        }
        if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
            self.from = Some(version.to_owned());
        }
        if object["metadata"]["name"] != self.election.as_str() {
            return Ok(None);
        }
        let lease = match kind {
            "ADDED" | "MODIFIED" => {
                let lease = Lease::new(object);
                Some(lease.ok_or_else(|| broken("the watch told of something that is no Lease"))?)
            }
            "DELETED" => None,
            _ => return Ok(None),
        };
        if let Some(hint) = self.store.leases.saw(&self.election, lease) {
            self.watchers.tell_all(hint);
        }
        Ok(None)
    }

    /// How long silence is believed. A leader renews within its lease; if it did not, everybody's attempts
    /// follow, and one of them is heard.
    fn patience(&self) -> Duration {
        match self.store.leases.remaining(&self.election) {
            Some(remaining) if !remaining.is_zero() => LONGEST_SILENCE.min(remaining + TAKEOVER),
            _ => LONGEST_SILENCE,
        }
    }

    async fn nobody_listens(&self) {
        while !self.watchers.is_over() {
            self.watchers.changed().await;
        }
    }
}

fn broken(message: &str) -> BackendError {
    BackendError::transient("unreachable", message)
}

/// Cuts what arrives into lines.
#[derive(Default)]
struct Lines {
    unread: Vec<u8>,
}

impl Lines {
    fn add(&mut self, data: &[u8]) -> Result<(), BackendError> {
        self.unread.extend_from_slice(data);
        if self.unread.len() > LONGEST_EVENT {
            return Err(broken("the watch told more than an event can be"));
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.unread.iter().position(|byte| *byte == b'\n')?;
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            if line.iter().any(|byte| !byte.is_ascii_whitespace()) {
                return Some(line);
            }
        }
    }
}
