//! One subscription for all elections of a store: turns what leaders publish into hints. It reconnects
//! by itself and says when it cannot hear.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::time::{sleep, timeout};

use super::Link;
use crate::backend::watchers::{Listening, Running, Watchers};
use crate::backend::{BackendError, Hints};
use crate::lease::{ElectionName, FailureKind, Hint, Token};

/// After so many timeouts without a message the server is asked whether it is still there: a subscription
/// that is dead costs time only, since followers still ask when the lease they know of ends.
const QUIET_TIMEOUTS: u32 = 4;

#[derive(Debug)]
pub(super) struct Listener {
    link: Arc<Link>,
    watchers: Arc<Watchers>,
}

impl Listener {
    pub fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            watchers: Arc::default(),
        }
    }

    pub fn listen(self: &Arc<Self>, election: ElectionName, hints: Hints) -> Listening {
        let listener = Arc::clone(self);
        let run = |running| async move { listener.run(running).await };
        self.watchers.listen(election, hints, run)
    }

    pub async fn close(&self) {
        self.watchers.close().await;
    }

    async fn run(&self, mut running: Running) {
        while !running.has_ended() {
            let ended = match self.connect().await {
                Ok((sink, stream)) => self.hear(sink, stream, &mut running).await,
                Err(error) => Err(error),
            };
            let Err(error) = ended else { return };
            running.lost(&self.link.address.shown, &error).await;
        }
    }

    async fn connect(&self) -> Result<(PubSubSink, PubSubStream), BackendError> {
        Ok(self.link.dial_to_listen().await?.split())
    }

    /// Until the connection breaks, or (`Ok`) nobody listens any more.
    async fn hear(
        &self,
        mut sink: PubSubSink,
        mut stream: PubSubStream,
        running: &mut Running,
    ) -> Result<(), BackendError> {
        let mut subscribed = HashMap::new();
        let mut generation = None;
        loop {
            let current = Some(self.watchers.generation());
            if generation != current {
                generation = current;
                self.follow_watchers(&mut sink, &mut subscribed, running)
                    .await?;
            }
            if running.has_ended() {
                return Ok(());
            }
            tokio::select! {
                message = stream.next() => {
                    let Some(message) = message else {
                        return Err(BackendError::transient(
                            "unreachable",
                            format!("the subscription to {} broke", self.link.address.shown),
                        ));
                    };
                    if let Some(election) = subscribed.get(message.get_channel_name())
                        && let Some(hint) = hint_of(message.get_payload_bytes())
                    {
                        self.watchers.tell(election, hint);
                    }
                }
                () = self.watchers.changed() => {}
                () = running.rested() => generation = None,
                // A connection whose other end vanished looks like one on which nothing happens.
                // Renewals of a leader are heard more often than this.
                () = sleep(self.link.request_timeout * QUIET_TIMEOUTS) => {
                    self.bounded(sink.ping::<redis::Value>()).await?;
                }
            }
        }
    }

    async fn follow_watchers(
        &self,
        sink: &mut PubSubSink,
        subscribed: &mut HashMap<String, ElectionName>,
        running: &mut Running,
    ) -> Result<(), BackendError> {
        let mut gone = std::mem::take(subscribed);
        let mut new = Vec::new();
        for election in self.watchers.elections() {
            let channel = self.link.address.channel(election.as_str());
            if gone.remove(&channel).is_some() {
                subscribed.insert(channel, election);
            } else if !running.is_refused(&election) {
                new.push((channel, election));
            }
        }
        for (channel, election) in self.subscribe(sink, new, running).await? {
            subscribed.insert(channel, election);
        }
        for election in subscribed.values() {
            running.hears(election);
        }
        let gone: Vec<_> = gone.into_keys().collect();
        if !gone.is_empty() {
            self.bounded(sink.unsubscribe(&gone)).await?;
        }
        Ok(())
    }

    /// Returns those that may be heard. A server refuses all channels of a request where one is not allowed, so
    /// that each is asked for alone then.
    async fn subscribe(
        &self,
        sink: &mut PubSubSink,
        new: Vec<(String, ElectionName)>,
        running: &mut Running,
    ) -> Result<Vec<(String, ElectionName)>, BackendError> {
        if new.is_empty() {
            return Ok(new);
        }
        let channels: Vec<_> = new.iter().map(|(channel, _)| channel).collect();
        match self.bounded(sink.subscribe(&channels)).await {
            Ok(()) => return Ok(new),
            Err(error) if error.kind != FailureKind::Fatal => return Err(error),
            Err(_) => {}
        }
        let mut heard = Vec::new();
        for (channel, election) in new {
            match self.bounded(sink.subscribe(&channel)).await {
                Ok(()) => heard.push((channel, election)),
                Err(error) if error.kind == FailureKind::Fatal => {
                    running.refused(&election, &self.link.address.shown, &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(heard)
    }

    async fn bounded<T>(
        &self,
        request: impl Future<Output = redis::RedisResult<T>>,
    ) -> Result<T, BackendError> {
        match timeout(self.link.request_timeout, request).await {
            Ok(result) => result.map_err(|error| self.link.failure(&error, false)),
            Err(_) => Err(self.silence()),
        }
    }

    fn silence(&self) -> BackendError {
        BackendError::transient(
            "unreachable",
            format!("{} did not answer in time", self.link.address.shown),
        )
    }
}

/// `alive <token> <ms>` or `free`; anything else is nobody's.
fn hint_of(payload: &[u8]) -> Option<Hint> {
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    match words.next()? {
        "free" => Some(Hint::Free),
        "alive" => Some(Hint::Alive {
            token: Token::new(words.next()?.parse().ok()?)?,
            valid_for: Duration::from_millis(words.next()?.parse().ok()?),
        }),
        _ => None,
    }
}
