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
use tokio::time::sleep;

use super::failure::Right;
use super::record::Lease;
use super::{Asked, JSON, Kubernetes};
use crate::backend::BackendError;
use crate::backend::observed::{Observed, ObservedStore as _};
use crate::backend::watchers::{Running, Watchers};
use crate::lease::ElectionName;

/// The server ends a watch after this time, and it goes on with the next.
const WATCH_SECONDS: &str = "600";
/// A server that has nothing to tell sends a bookmark about every minute.
const LONGEST_SILENCE: Duration = Duration::from_secs(90);
/// One that the server ends earlier is not simply gone on with.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// How long after an expiry a take-over is heard of at the latest, if there is somebody to take over.
const TAKEOVER: Duration = Duration::from_secs(2);
/// No event is longer.
const LONGEST_EVENT: usize = 4 << 20;

pub(super) async fn run(
    leases: Arc<Observed<Kubernetes>>,
    election: ElectionName,
    mut running: Running,
) {
    let mut watch = LeaseWatch {
        leases,
        election,
        from: None,
    };
    while !running.has_ended() {
        let began = Instant::now();
        let ended = watch.hear(&mut running).await;
        if let Ok(End::ByServer) = ended
            && began.elapsed() > SHORTEST_WATCH
        {
            // It goes on from where it ended, so nobody missed anything.
            continue;
        }
        // What is going on now is told again with the first event. Where a server was set back, nothing
        // would be heard from a place that it has not reached yet.
        watch.from = None;
        let error = match ended {
            Ok(End::Over) => return,
            Ok(End::ByServer) => broken("the server ends the watch at once"),
            Ok(End::TooOld) => {
                broken("the server has forgotten what came after what was heard last")
            }
            Ok(End::NotAllowed) => BackendError::fatal("refused", "it may not watch leases"),
            Err(error) => error,
        };
        running.lost(&watch.kubernetes().describe(), &error).await;
    }
}

struct LeaseWatch {
    leases: Arc<Observed<Kubernetes>>,
    election: ElectionName,
    /// The resourceVersion of what was heard last.
    from: Option<String>,
}

enum End {
    /// Nobody listens any more.
    Over,
    ByServer,
    /// The server has forgotten what came after what was heard last.
    TooOld,
    NotAllowed,
}

impl LeaseWatch {
    fn kubernetes(&self) -> &Kubernetes {
        &self.leases.records
    }

    async fn hear(&mut self, running: &mut Running) -> Result<End, BackendError> {
        let asked = self.asked().await?;
        let mut stream = match self.kubernetes().api.stream(&asked).await? {
            Ok(stream) => stream,
            Err(answer) if answer.status == 410 => return Ok(End::TooOld),
            Err(answer) => {
                let error = self.kubernetes().failed(&answer, &asked);
                if answer.status != 403 {
                    return Err(error);
                }
                if let Some(target) = self.kubernetes().api.target() {
                    self.kubernetes().tell_of_polling(&target.namespace);
                }
                return Ok(End::NotAllowed);
            }
        };
        let mut lines = Lines::default();
        let watchers = Arc::clone(running.watchers());
        loop {
            running.hears_all();
            if running.has_ended() {
                return Ok(End::Over);
            }
            tokio::select! {
                frame = stream.frame() => match frame {
                    None => return Ok(End::ByServer),
                    Some(Err(error)) => return Err(broken(&format!("the watch broke: {error}"))),
                    Some(Ok(frame)) => {
                        lines.add(frame.data_ref().map_or(&[], |data| &data[..]))?;
                        while let Some(line) = lines.next() {
                            if let Some(end) = self.event(&line, &watchers)? {
                                return Ok(end);
                            }
                        }
                    }
                },
                () = watchers.changed() => {}
                () = sleep(self.patience()) => return Err(broken("the watch fell silent")),
            }
        }
    }

    async fn asked(&self) -> Result<Asked<'static>, BackendError> {
        let mut path = self.kubernetes().path("").await?;
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
            repeatable: true,
        })
    }

    fn event(&mut self, line: &[u8], watchers: &Watchers) -> Result<Option<End>, BackendError> {
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
        if let Some(hint) = self.leases.saw(&self.election, lease) {
            watchers.tell_all(hint);
        }
        Ok(None)
    }

    /// How long silence is believed. A leader renews within its lease; if it did not, everybody's attempts
    /// follow, and one of them is heard.
    fn patience(&self) -> Duration {
        match self.leases.remaining(&self.election) {
            Some(remaining) if !remaining.is_zero() => LONGEST_SILENCE.min(remaining + TAKEOVER),
            _ => LONGEST_SILENCE,
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
