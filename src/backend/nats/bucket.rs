//! The bucket: a stream of JetStream that keeps the last message of each subject, which is what NATS calls a
//! key-value store. What is asked of it, and which settings would lose a lease.
//!
//! Everything is asked of the stream's leader. What any server may answer (`DIRECT.GET`) may be old.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::connection::{Message, header, header_lines, headers};
use super::failure::{self, NO_JETSTREAM, Refusal};
use super::link::{Answer, Asked, Link};
use crate::backend::{BackendError, UNSUITABLE, escaped};
use crate::lease::{FailureKind, LONGEST_LEASE};

/// A server with nobody who listens to a subject says so.
const NOBODY_LISTENS: u16 = 503;
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// Where an account wants a limit: thousands of elections have room in it.
const SMALL: u64 = 16 << 20;
/// No message of any bucket has this number, so a write on its condition is refused.
const NEVER: u64 = 9_007_199_254_740_991;

/// What is kept under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub sequence: u64,
    /// `None`: a mark where something was deleted.
    pub value: Option<Vec<u8>>,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// Under that number.
    At(u64),
    /// The key was not as it was expected to be.
    Changed,
}

#[derive(Debug)]
pub(super) struct Bucket {
    pub link: Link,
}

impl Stored {
    /// A message that a bucket tells of or is asked for.
    pub fn new(sequence: u64, headers: &Vec<(String, String)>, value: Vec<u8>) -> Self {
        let operation = header(headers, "KV-Operation");
        let is_mark = matches!(operation, Some("DEL" | "PURGE"))
            || header(headers, "Nats-Marker-Reason").is_some();
        Self {
            sequence,
            value: (!is_mark).then_some(value),
        }
    }
}

impl Bucket {
    fn name(&self) -> &str {
        &self.link.address.bucket
    }

    pub fn stream(&self) -> String {
        format!("KV_{}", self.name())
    }

    pub fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name())
    }

    fn api(&self, call: &str) -> String {
        format!("$JS.API.{call}.{}", self.stream())
    }

    /// Makes sure that there is one, that it is fit, and that this user may read and write in it. `key` is one
    /// that no election has; nothing is left there. No value is longer than `longest`. Returns what its owner
    /// should know.
    pub async fn prepare(&self, key: &str, longest: Vec<u8>) -> Result<Vec<String>, BackendError> {
        let info = match self.call("STREAM.INFO", &Value::Null, false).await {
            Ok(info) => info,
            Err(Failed::Refused { refusal, .. }) if refusal.code == Refusal::NO_STREAM => {
                self.make().await?;
                match self.call("STREAM.INFO", &Value::Null, false).await {
                    Ok(info) => info,
                    Err(failed) => return Err(self.error(failed, false)),
                }
            }
            Err(Failed::Nobody { .. }) => {
                return Err(BackendError::fatal(
                    UNSUITABLE,
                    format!(
                        "{}: nobody answers for JetStream. {NO_JETSTREAM}",
                        self.link.address.shown
                    ),
                ));
            }
            Err(failed) => return Err(self.error(failed, false)),
        };
        let remarks = self.check(&info["config"], longest.len())?;
        self.get(key).await?;
        // On a condition that is never met: it shows the right, the way and the honouring, and writes nothing.
        match self.put(key, NEVER, longest).await? {
            Put::Changed => Ok(remarks),
            Put::At(_) => Err(self.unfit("it takes writes whatever their condition is")),
        }
    }

    /// `None`: nothing was ever kept there, or no mark of it is left.
    pub async fn get(&self, key: &str) -> Result<Option<Stored>, BackendError> {
        let asked = json!({ "last_by_subj": self.subject(key) });
        let found = match self.call("STREAM.MSG.GET", &asked, false).await {
            Ok(found) => found,
            Err(Failed::Refused { refusal, .. }) if refusal.code == Refusal::NO_MESSAGE => {
                return Ok(None);
            }
            Err(Failed::Refused { refusal, .. }) if refusal.code == Refusal::NO_STREAM => {
                self.make_again().await?;
                return Ok(None);
            }
            Err(failed) => return Err(self.error(failed, false)),
        };
        let message = &found["message"];
        let bytes = |part: &str| match message[part].as_str() {
            None => Some(Vec::new()),
            Some(text) => STANDARD.decode(text).ok(),
        };
        let kept = || {
            let lines = bytes("hdrs")?;
            let (_, headers) = match &*lines {
                [] => (None, Vec::new()),
                lines => headers(lines)?,
            };
            Some(Stored::new(
                message["seq"].as_u64()?,
                &headers,
                bytes("data")?,
            ))
        };
        kept()
            .map(Some)
            .ok_or_else(|| failure::nonsense(&self.link.address, false))
    }

    /// Writes if the last message of that key still is number `over` (0: there is none).
    pub async fn put(&self, key: &str, over: u64, value: Vec<u8>) -> Result<Put, BackendError> {
        let asked = Asked {
            subject: self.subject(key),
            headers: &[(EXPECTED, over.to_string())],
            payload: value,
            writes: true,
        };
        let answer = self.link.ask(&asked).await?;
        match read(&answer) {
            Ok(said) => match said["seq"].as_u64() {
                Some(sequence @ 1..) => Ok(Put::At(sequence)),
                _ => Err(failure::nonsense(&self.link.address, true)),
            },
            Err(Failed::Refused { refusal, .. }) if refusal.is_wrong_sequence() => Ok(Put::Changed),
            Err(Failed::Nobody { asked_before }) => {
                // Nothing was written. If somebody deleted the bucket, nobody would ever listen again.
                match self.call("STREAM.INFO", &Value::Null, false).await {
                    Err(Failed::Refused { refusal, .. }) if refusal.code == Refusal::NO_STREAM => {
                        let made = self.make_again().await;
                        made.map_err(|error| error.doubted(asked_before))?;
                        Ok(Put::Changed)
                    }
                    _ => Err(self.error(Failed::Nobody { asked_before }, true)),
                }
            }
            Err(failed) => Err(self.error(failed, true)),
        }
    }

    async fn make_again(&self) -> Result<(), BackendError> {
        tracing::warn!(
            store = self.link.address.shown,
            "somebody deleted the bucket: making it again"
        );
        self.make().await
    }

    /// Also where somebody else makes it at the same time.
    async fn make(&self) -> Result<(), BackendError> {
        let mut config = self.config();
        loop {
            let refusal = match self.call("STREAM.CREATE", &config, true).await {
                Ok(_) => return Ok(()),
                Err(Failed::Refused { refusal, .. }) => refusal,
                Err(failed) => {
                    let mut error = self.error(failed, true);
                    if error.kind == FailureKind::Fatal {
                        error = failure::no_bucket(&self.link.address, &error.message);
                    }
                    return Err(error);
                }
            };
            let is_there = || self.call("STREAM.INFO", &Value::Null, false);
            match refusal.code {
                Refusal::STREAM_EXISTS => return Ok(()),
                Refusal::OVERLAP if is_there().await.is_ok() => return Ok(()),
                Refusal::LIMIT_WANTED if config["max_bytes"] == -1 => {
                    config["max_bytes"] = SMALL.into();
                }
                _ => {
                    let error = failure::refused(&self.link.address, &refusal, true);
                    return Err(if error.kind == FailureKind::Transient {
                        error
                    } else {
                        failure::no_bucket(&self.link.address, &refusal.said)
                    });
                }
            }
        }
    }

    /// As `nats kv add` makes it, but for its first number.
    fn config(&self) -> Value {
        json!({
            "name": self.stream(),
            "description": "leases of whenleader",
            "subjects": [self.subject(">")],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self.link.address.replicas,
            "max_msgs_per_subject": 1,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "discard": "new",
            "duplicate_window": 120_000_000_000_u64,
            "allow_rollup_hdrs": true,
            "deny_delete": true,
            "allow_direct": true,
            // A bucket that was deleted and made again must not use its numbers again: they are the conditions
            // of writes. Servers before 2.10 do not heed it.
            "first_seq": crate::backend::token_floor(),
        })
    }

    /// Refuses what loses leases, or has no room for one. Returns what its owner should know.
    fn check(&self, config: &Value, longest: usize) -> Result<Vec<String>, BackendError> {
        let number = |name: &str| config[name].as_i64().unwrap_or(0);
        // The condition counts as well. Not every server looks at the length before it looks at that.
        let record = longest + header_lines(&[(EXPECTED, u64::MAX.to_string())]).len();
        for name in ["max_msg_size", "max_bytes"] {
            let room = number(name);
            if usize::try_from(room).is_ok_and(|room| room > 0 && room < record) {
                return Err(self.unfit(&format!(
                    "a record may have {record} bytes, and it takes no more than {room} ({name})"
                )));
            }
        }
        let is_true = |name: &str| config[name] == true;
        let age = Duration::from_nanos(number("max_age").try_into().unwrap_or(0));
        let subjects = config["subjects"].as_array();
        let all = self.subject(">");
        let hears_all = subjects.is_some_and(|subjects| subjects.iter().any(|one| *one == *all));
        let drops_old =
            config["discard"] == "old" && (number("max_msgs") > 0 || number("max_bytes") > 0);
        let bad: &[(bool, &str)] = &[
            // Whoever finds no record makes one: two would lead.
            (
                drops_old,
                "it drops its oldest records when it is full (discard), leases among them",
            ),
            (
                !config["mirror"].is_null(),
                "it mirrors another one: name that one",
            ),
            (!hears_all, "it is not of the kind that nats kv add makes"),
            (
                is_true("sealed"),
                "it is sealed, so nothing can be written any more",
            ),
            (is_true("no_ack"), "it confirms no write (no_ack)"),
            (
                config["retention"] != "limits",
                "it keeps messages only until somebody has read them (retention)",
            ),
            (
                !age.is_zero() && age < LONGEST_LEASE,
                "it deletes what is older than its TTL (max_age), and a lease may last a day",
            ),
            (
                is_true("discard_new_per_subject"),
                "it takes no second message on a subject (discard_new_per_subject)",
            ),
            (
                is_true("allow_msg_counter"),
                "it keeps counters (allow_msg_counter)",
            ),
        ];
        if let Some((_, why)) = bad.iter().find(|(is_bad, _)| *is_bad) {
            return Err(self.unfit(why));
        }
        let odd: &[(bool, &str)] = &[(
            config["storage"] == "memory",
            "it is kept in memory: when its servers restart, leases are lost, and another instance may lead before the leader notices",
        )];
        let odd = odd.iter().filter(|(is_odd, _)| *is_odd);
        Ok(odd.map(|(_, why)| (*why).to_owned()).collect())
    }

    fn unfit(&self, why: &str) -> BackendError {
        BackendError::fatal(
            UNSUITABLE,
            format!(
                "the bucket of {} can hold no leases: {why}. Choose another one with ?bucket=<name>, which is made if it does not exist",
                self.link.address.shown
            ),
        )
    }

    async fn call(&self, call: &str, asked: &Value, writes: bool) -> Result<Value, Failed> {
        let payload = match asked {
            Value::Null => Vec::new(),
            asked => asked.to_string().into_bytes(),
        };
        let asked = Asked {
            subject: self.api(call),
            headers: &[],
            payload,
            writes,
        };
        let answer = self.link.ask(&asked).await.map_err(Failed::Error)?;
        read(&answer)
    }

    fn error(&self, failed: Failed, writes: bool) -> BackendError {
        let address = &self.link.address;
        match failed {
            Failed::Error(error) => error,
            Failed::Refused {
                refusal,
                asked_before,
            } => {
                failure::refused(address, &refusal, writes).doubted(asked_before && writes)
            }
            Failed::Nobody { asked_before } => BackendError::transient(
                "no-leader",
                format!(
                    "{}: nobody answers for the bucket. Its servers may be choosing a leader, or may be down: nats stream info {}",
                    address.shown,
                    self.stream()
                ),
            )
            .doubted(asked_before && writes),
            Failed::Nonsense => failure::nonsense(address, writes),
        }
    }
}

/// Why a request has not the answer that was wanted.
enum Failed {
    Error(BackendError),
    Refused {
        refusal: Refusal,
        asked_before: bool,
    },
    Nobody {
        asked_before: bool,
    },
    Nonsense,
}

fn read(answer: &Answer) -> Result<Value, Failed> {
    let asked_before = answer.asked_before;
    match said(&answer.message) {
        Said::Value(value) => Ok(value),
        Said::Refusal(refusal) => Err(Failed::Refused {
            refusal,
            asked_before,
        }),
        Said::Nobody => Err(Failed::Nobody { asked_before }),
        Said::Nonsense => Err(Failed::Nonsense),
    }
}

/// What a message of JetStream's says.
pub(super) enum Said {
    Value(Value),
    Refusal(Refusal),
    /// Nobody listens to what was asked.
    Nobody,
    Nonsense,
}

pub(super) fn said(message: &Message) -> Said {
    if message.status == Some(NOBODY_LISTENS) {
        return Said::Nobody;
    }
    let Ok(value @ Value::Object(_)) = serde_json::from_slice::<Value>(&message.payload) else {
        return Said::Nonsense;
    };
    let error = &value["error"];
    if error.is_null() {
        return Said::Value(value);
    }
    let code = error["err_code"].as_u64().or(error["code"].as_u64());
    let said = error["description"].as_str().unwrap_or("an error");
    Said::Refusal(Refusal {
        code: code.unwrap_or_default(),
        said: said.to_owned(),
    })
}

/// A part of a subject for an election: dots, stars and spaces would be more than a name there.
pub(super) fn key_of(election: &str) -> String {
    format!("cluster.{}", escaped(election, '=', "-_"))
}

/// All keys of elections.
pub(super) const ALL_KEYS: &str = "cluster.*";
/// One that no election has.
pub(super) const NO_KEY: &str = "cluster.=";

/// The subjects of some elections.
pub(super) fn by_subject<T>(
    bucket: &Bucket,
    elections: impl IntoIterator<Item = (T, String)>,
) -> HashMap<String, T> {
    let subjects = elections.into_iter();
    subjects
        .map(|(election, name)| (bucket.subject(&key_of(&name)), election))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_simple_names_readable_and_never_collide() {
        for (election, key) in [
            ("leader", "cluster.leader"),
            ("Shop_worker-1", "cluster.Shop_worker-1"),
            ("a.b c", "cluster.a=2Eb=20c"),
            ("=2E", "cluster.=3D2E"),
            (".", "cluster.=2E"),
            ("*>", "cluster.=2A=3E"),
            ("é🦀", "cluster.=C3=A9=F0=9F=A6=80"),
        ] {
            assert_eq!(key_of(election), key);
        }
        // That of no election.
        assert!(key_of("").starts_with("cluster.") && key_of("x") != NO_KEY);
    }

    #[test]
    fn what_was_deleted_is_a_mark_and_no_value() {
        let with = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        for headers in [
            with("KV-Operation", "DEL"),
            with("kv-operation", "PURGE"),
            with("Nats-Marker-Reason", "MaxAge"),
        ] {
            assert_eq!(
                Stored::new(7, &headers, Vec::new()).value,
                None,
                "{headers:?}"
            );
        }
        for headers in [Vec::new(), with(EXPECTED, "3"), with("KV-Operation", "PUT")] {
            assert_eq!(Stored::new(7, &headers, vec![1]).value, Some(vec![1]));
        }
    }
}
