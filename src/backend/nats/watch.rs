//! Hears of changes to all elections of a bucket, for as long as somebody listens: one consumer on a
//! connection of its own, which the server numbers, so that nothing gets lost unnoticed.
//!
//! What it says is noted like an answer, on the clock of this process, and proves nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::bucket::{ALL_KEYS, Bucket, Said, Stored, by_subject, said};
use super::connection::{Connection, Message, Subscription};
use super::failure::{self, Trouble, Why};
use super::link::Asked;
use super::{Nats, kept};
use crate::backend::BackendError;
use crate::backend::observed::Observed;
use crate::backend::watchers::{Running, Watchers};
use crate::lease::ElectionName;
use crate::random::random_u64;

/// How often a server that has nothing to tell says that it is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// So long nothing at all is heard where a server or a connection has died, or the consumer was deleted.
const LONGEST_SILENCE: Duration = Duration::from_secs(7);
/// The server forgets a consumer to which nobody listened for so long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5);
const SIGN: u16 = 100;

pub(super) async fn run(leases: Arc<Observed<Nats>>, mut running: Running) {
    let mut watch = BucketWatch {
        watchers: Arc::clone(running.watchers()),
        leases,
        elections: HashMap::new(),
        generation: None,
    };
    while !running.has_ended() {
        let Err(error) = watch.hear(&mut running).await else {
            return;
        };
        running
            .lost(&watch.bucket().link.address.shown, &error)
            .await;
    }
}

/// The consumer that a watch listens to: all that is there, then all that changes.
pub(super) fn consumer(bucket: &Bucket, told_on: &str) -> Asked<'static> {
    let stream = bucket.stream();
    let name = format!("whenleader-{:016x}", random_u64());
    let filter = bucket.subject(ALL_KEYS);
    let config = json!({
        "stream_name": stream,
        "config": {
            "name": name,
            "deliver_subject": told_on,
            "deliver_policy": "last_per_subject",
            "filter_subject": filter,
            "replay_policy": "instant",
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": true,
            "num_replicas": 1,
            "inactive_threshold": nanos(FORGOTTEN_AFTER),
            "idle_heartbeat": nanos(SIGN_OF_LIFE),
        },
    });
    Asked {
        subject: format!("$JS.API.CONSUMER.CREATE.{stream}.{name}.{filter}"),
        headers: &[],
        payload: config.to_string().into_bytes(),
        writes: false,
    }
}

fn nanos(duration: Duration) -> Value {
    u64::try_from(duration.as_nanos())
        .unwrap_or(u64::MAX)
        .into()
}

struct BucketWatch {
    leases: Arc<Observed<Nats>>,
    watchers: Arc<Watchers>,
    /// Those that somebody listens to, by subject.
    elections: HashMap<String, ElectionName>,
    generation: Option<u64>,
}

impl BucketWatch {
    fn bucket(&self) -> &Bucket {
        &self.leases.records.bucket
    }

    /// Until the connection breaks, or (`Ok`) nobody listens any more.
    async fn hear(&mut self, running: &mut Running) -> Result<(), BackendError> {
        let (connection, mut told) = self.open().await?;
        self.elections.clear();
        self.generation = None;
        let (mut last, mut heard_at) = (0, Instant::now());
        loop {
            self.follow_watchers(running);
            if running.has_ended() {
                return Ok(());
            }
            // One that will close soon is not waited for.
            if connection.is_leaving() {
                return Err(self.broken("the server is about to close"));
            }
            let message = tokio::select! {
                message = told.next() => Some(message),
                () = self.watchers.changed() => None,
                () = sleep_until(heard_at + LONGEST_SILENCE) => {
                    return Err(self.broken("nothing was heard for too long"));
                }
            };
            if message.is_some() {
                heard_at = Instant::now();
            }
            match message {
                None => {}
                Some(Ok(message)) => self.event(message, &mut last)?,
                Some(Err(trouble)) => return Err(self.broken(&trouble.message)),
            }
        }
    }

    async fn open(&self) -> Result<(Connection, Subscription), BackendError> {
        let link = &self.bucket().link;
        let trouble = |trouble: Trouble| failure::no_answer(&link.address, &trouble, false);
        let connection = link.dial().await.map_err(trouble)?;
        let told = connection.subscribe();
        let asked = consumer(self.bucket(), &told.subject);
        let asking = connection.ask(&asked.subject, asked.headers, &asked.payload);
        let answer = timeout(link.limit, asking)
            .await
            .unwrap_or_else(|_| Err(Trouble::new(Why::Silence, "no answer in time")))
            .map_err(trouble)?;
        match said(&answer) {
            Said::Value(_) => Ok((connection, told)),
            Said::Refusal(refusal) => Err(failure::refused(&link.address, &refusal, false)),
            Said::Nobody => Err(self.broken("nobody answers for the bucket")),
            Said::Nonsense => Err(failure::nonsense(&link.address, false)),
        }
    }

    fn event(&self, message: Message, last: &mut u64) -> Result<(), BackendError> {
        let gap = || self.broken("some changes were not heard");
        match message.status {
            None => {}
            Some(SIGN) => {
                let sent = message.header("Nats-Last-Consumer");
                let all = sent.is_none_or(|sent| sent.parse() == Ok(*last));
                return if all { Ok(()) } else { Err(gap()) };
            }
            Some(_) => return Err(self.broken("the server ended it")),
        }
        let Some((sequence, number)) = numbers(&message.reply) else {
            return Err(gap());
        };
        *last += 1;
        if number != *last {
            return Err(gap());
        }
        if let Some(election) = self.elections.get(&message.subject) {
            let stored = Stored::new(sequence, &message.headers, message.payload);
            if let Some(hint) = self.leases.saw(election, Some(kept(stored))) {
                self.watchers.tell(election, hint);
            }
        }
        Ok(())
    }

    fn follow_watchers(&mut self, running: &mut Running) {
        let generation = Some(self.watchers.generation());
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        let elections = self.watchers.elections().into_iter();
        let named = elections.map(|election| {
            let name = election.as_str().to_owned();
            (election, name)
        });
        self.elections = by_subject(self.bucket(), named);
        for election in self.elections.values() {
            running.hears(election);
        }
    }

    fn broken(&self, why: &str) -> BackendError {
        let store = &self.bucket().link.address.shown;
        BackendError::transient("unreachable", format!("the watch on {store} broke: {why}"))
    }
}

/// Of the message in its stream, and among all that this consumer was told. They stand in the subject by which
/// it would be confirmed: `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<tries>.<stream's>.<consumer's>.…`
fn numbers(reply: &str) -> Option<(u64, u64)> {
    let words: Vec<_> = reply.split('.').collect();
    let more = if words.len() > 9 { 2 } else { 0 };
    let number = |at: usize| words.get(at + more)?.parse().ok();
    Some((number(5)?, number(6)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_message_are_found_with_and_without_a_domain() {
        for reply in [
            "$JS.ACK.KV_b.c.1.1780000000000002.7.1795999755236323925.1",
            "$JS.ACK._.hash.KV_b.c.1.1780000000000002.7.1795999755236323925.1",
            "$JS.ACK.hub.hash.KV_b.c.1.1780000000000002.7.1795999755236323925.1.token",
        ] {
            assert_eq!(numbers(reply), Some((1_780_000_000_000_002, 7)), "{reply}");
        }
        assert_eq!(numbers(""), None);
        assert_eq!(numbers("$JS.ACK.x"), None);
    }
}
