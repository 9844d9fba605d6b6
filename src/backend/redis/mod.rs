//! Redis and Valkey. Every operation is one script, which the server runs as a whole.
//!
//! | key | holds |
//! |---|---|
//! | `{cluster:<election>}:lease` | `<token>:<nonce>:<instance>`, and expires by the server's clock |
//! | `{cluster:<election>}:token` | the last token; never expires |
//!
//! The braces keep both on one node of a cluster. `?prefix=` stands inside them, before `cluster:`.
//! Changes are published on the channel that has the lease's name (and `@<database>` behind it, except for 0), so
//! that followers hear of every renewal and release and ask almost never.
//!
//! What it cannot promise: replication is asynchronous, so a failover may lose the last writes, and
//! with them a lease that somebody still trusts. `minReplicas` narrows that window; only the fencing
//! token closes it.

mod address;
mod failure;
mod link;
mod listener;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Script;

use self::address::Address;
use self::link::{Connection, Link, Request};
use self::listener::Listener;
use super::{Attempt, Backend, BackendError, BadStore, Capabilities, Hints, StoreOptions, Watch};
use crate::clock::Clock;
use crate::lease::{ElectionName, InstanceId, LONGEST_LEASE, Leader, Outcome, Owner, Token};

/// The part of a lease that replicas have to confirm a write. Healthy ones need a round trip; waiting
/// longer would keep the other elections of this connection waiting too.
const CONFIRMATION_PART: u32 = 16;

/// See the module's description.
#[derive(Debug)]
pub struct RedisStore {
    link: Arc<Link>,
    listener: Arc<Listener>,
    scripts: Scripts,
    min_replicas: Option<u32>,
    /// See [`StoreOptions::for_others`].
    for_others: bool,
}

#[derive(Debug)]
struct Scripts {
    campaign: Script,
    renew: Script,
    release: Script,
    probe: Script,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    _clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let address = Address::parse(url, &options.base_dir)?;
    let link = Arc::new(Link::new(address, options));
    Ok(Arc::new(RedisStore {
        listener: Arc::new(Listener::new(Arc::clone(&link))),
        link,
        scripts: Scripts {
            campaign: Script::new(include_str!("campaign.lua")),
            renew: Script::new(include_str!("renew.lua")),
            release: Script::new(include_str!("release.lua")),
            probe: Script::new(include_str!("probe.lua")),
        },
        min_replicas: options.min_replicas,
        for_others: options.for_others,
    }))
}

#[async_trait]
impl Backend for RedisStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        self.link.address.shown.clone()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        // No election has an empty name, so nothing of anybody's is touched.
        let address = &self.link.address;
        let mut probe = self.scripts.probe.key(address.lease_key(""));
        probe.arg(address.channel(""));
        match self.link.run::<i64>(&probe).await {
            Ok(0) => tracing::warn!(
                store = %self.describe(),
                "this user may not publish, so a hand-over waits until a follower asks: {}",
                address.rights()
            ),
            Ok(_) => {}
            // Another node of a cluster has that key. The elections' own keys may be here all the same.
            Err(error) if error.code == failure::MOVED => {}
            Err(error) => return Err(error),
        }
        if self.min_replicas.is_some() {
            self.link.run(&wait_for(0, 1)).await?;
        }
        self.warn_of_eviction().await;
        Ok(())
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let address = &self.link.address;
        let election = attempt.election.as_str();
        let owner = written(attempt.owner);
        let mut invocation = match attempt.term {
            None => self.scripts.campaign.key(address.lease_key(election)),
            Some(_) => self.scripts.renew.key(address.lease_key(election)),
        };
        if attempt.term.is_none() {
            invocation.key(address.token_key(election));
        }
        invocation
            .arg(&owner)
            .arg(millis(attempt.duration))
            .arg(address.channel(election))
            .arg(
                attempt
                    .term
                    .map_or_else(|| millis(LONGEST_LEASE), Token::number),
            )
            .arg(if self.for_others { "no" } else { "yes" });

        let answer = match attempt.term {
            Some(_) => self.link.run_on(&invocation).await,
            // A copy that comes late would begin another term, of which nobody knows.
            None => self.link.run_in_time(&invocation).await,
        };
        let ((state, text, ms), written_on): ((i64, Vec<u8>, i64), _) = match answer {
            Err(error) if error.code == failure::BAD_RECORD => {
                // The server does not say which key it means.
                self.peek(attempt.election).await?;
                return Err(self.not_ours(&address.token_key(election)));
            }
            answer => {
                let answer = answer?;
                (answer.value, answer.connection)
            }
        };
        match state {
            1 => {
                let token = std::str::from_utf8(&text)
                    .ok()
                    .and_then(|text| Token::new(text.parse().ok()?))
                    .ok_or_else(|| self.nonsense())?;
                self.confirm(attempt, token, written_on).await?;
                Ok(Outcome::Held {
                    token,
                    valid_for: attempt.duration,
                })
            }
            0 if text.is_empty() && attempt.term.is_some() => Ok(Outcome::Other {
                leader: None,
                remaining: None,
            }),
            0 => match leader_of(&text) {
                Some(leader) => Ok(Outcome::Other {
                    leader: Some(leader),
                    remaining: u64::try_from(ms).ok().map(Duration::from_millis),
                }),
                None => Err(self.not_ours(&address.lease_key(election))),
            },
            -1 => Err(self.not_ours(&address.token_key(election))),
            _ => Err(self.nonsense()),
        }
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        let address = &self.link.address;
        let election = election.as_str();
        let mut invocation = self.scripts.release.key(address.lease_key(election));
        invocation
            .arg(written(owner))
            .arg(token.number())
            .arg(address.channel(election));
        let answer = self.link.run_on::<i64>(&invocation).await?;
        if answer.value == 1 || !answer.maybe_twice {
            return Ok(answer.value == 1);
        }
        // The first copy did it, if nobody holds the lease and nobody has since.
        let get = async |key| {
            let mut asked = redis::cmd("GET");
            asked.arg(key);
            self.link.run::<Option<Vec<u8>>>(&asked).await
        };
        let last = get(address.token_key(election)).await?;
        Ok(
            last.is_some_and(|last| last == token.to_string().as_bytes())
                && get(address.lease_key(election)).await?.is_none(),
        )
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let key = self.link.address.lease_key(election.as_str());
        let mut asked = redis::cmd("GET");
        asked.arg(&key);
        match self.link.run::<Option<Vec<u8>>>(&asked).await {
            Err(error) if error.code == failure::BAD_RECORD => Err(self.not_ours(&key)),
            Err(error) => Err(error),
            Ok(None) => Ok(None),
            Ok(Some(record)) => leader_of(&record)
                .map(Some)
                .ok_or_else(|| self.not_ours(&key)),
        }
    }

    fn watch(self: Arc<Self>, election: ElectionName, hints: Hints) -> Option<Watch> {
        Some(Box::pin(async move {
            self.listener.listen(election, hints).forward().await;
        }))
    }

    async fn close(&self) {
        self.listener.close().await;
        self.link.hang_up();
    }
}

impl RedisStore {
    /// Makes sure that enough replicas have what was just written. Asked on the connection that wrote, and
    /// on no other: there the server would tell how many replicas there are, whatever they have.
    async fn confirm(
        &self,
        attempt: &Attempt<'_>,
        token: Token,
        written_on: Connection,
    ) -> Result<(), BackendError> {
        let Some(wanted) = self.min_replicas else {
            return Ok(());
        };
        let limit = attempt.duration / CONFIRMATION_PART;
        let error = match self
            .link
            .send(&written_on, &wait_for(wanted, millis(limit).max(1)))
            .await
        {
            Ok(confirmed) if confirmed >= wanted => return Ok(()),
            // It is written, and may count for whoever asks next.
            Ok(confirmed) => BackendError::ambiguous(
                "not-replicated",
                format!(
                    "{confirmed} of {wanted} replicas of {} confirmed the write within {} ms, so it does not count",
                    self.describe(),
                    millis(limit)
                ),
            ),
            Err(error) => self.link.failure(&error, true),
        };
        if attempt.term.is_none() {
            // Not ours to keep, and a follower with better luck should not have to wait.
            let _ = self.release(attempt.election, attempt.owner, token).await;
        }
        Err(error)
    }

    /// A user who may not ask is not bothered with it.
    async fn warn_of_eviction(&self) {
        let mut asked = redis::cmd("INFO");
        asked.arg("memory");
        if let Ok(memory) = self.link.run::<String>(&asked).await
            && !memory.contains("maxmemory_policy:noeviction")
            && !memory.contains("maxmemory:0\r")
        {
            tracing::warn!(
                store = %self.describe(),
                "this server may evict leases when its memory is full, which ends a leadership early: \
                 keep leases on a server whose maxmemory-policy is noeviction"
            );
        }
    }

    fn not_ours(&self, key: &str) -> BackendError {
        BackendError::fatal(
            failure::BAD_RECORD,
            format!(
                "the key {key} on {} holds something that no election wrote. If nobody needs it, delete it: \
                 DEL \"{key}\". If another program does, choose another place with ?prefix=<text> behind the \
                 store's URL",
                self.describe()
            ),
        )
    }

    fn nonsense(&self) -> BackendError {
        BackendError::ambiguous(
            "store",
            format!(
                "{} answered something that no script of ours says",
                self.describe()
            ),
        )
    }
}

impl Address {
    /// What to allow a user, for people.
    fn rights(&self) -> String {
        // Patterns, in which a prefix of ours stands for itself.
        let mut prefix = String::new();
        for letter in self.prefix.chars() {
            if "*?[]\\".contains(letter) {
                prefix.push('\\');
            }
            prefix.push(letter);
        }
        let select = if self.database == 0 { "" } else { " +select" };
        format!(
            "allow it +evalsha +script|load +get +set +del +pttl +pexpire +time +publish +subscribe \
             +unsubscribe +ping +wait{select}, on the keys {{{prefix}cluster:*}}:* and the channels \
             {{{prefix}cluster:*}}:lease* (and, if you like, +info, to be warned of evictions)"
        )
    }

    fn lease_key(&self, election: &str) -> String {
        format!("{{{}cluster:{election}}}:lease", self.prefix)
    }

    fn token_key(&self, election: &str) -> String {
        format!("{{{}cluster:{election}}}:token", self.prefix)
    }

    /// Channels are common to all databases of a server.
    fn channel(&self, election: &str) -> String {
        match self.database {
            0 => self.lease_key(election),
            number => format!("{}@{number}", self.lease_key(election)),
        }
    }
}

fn wait_for(replicas: u32, millis: u64) -> impl Request<u32> {
    let mut wait = redis::cmd("WAIT");
    wait.arg(replicas).arg(millis);
    wait
}

fn written(owner: &Owner) -> String {
    format!("{:016x}:{}", owner.nonce, owner.instance)
}

fn leader_of(record: &[u8]) -> Option<Leader> {
    let mut parts = std::str::from_utf8(record).ok()?.splitn(3, ':');
    Some(Leader {
        token: Token::new(parts.next()?.parse().ok()?)?,
        owner: Owner {
            nonce: u64::from_str_radix(parts.next()?, 16).ok()?,
            instance: InstanceId::new(parts.next()?).ok()?,
        },
    })
}

/// Up, never down: a lease must not end before its leader believes so.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written_whatever_the_instance_is_called() {
        let owner = Owner {
            instance: InstanceId::new("web:1:🦀 {x}").unwrap(),
            nonce: 1,
        };
        let token = Token::new(7).unwrap();
        let record = format!("{token}:{}", written(&owner));
        assert_eq!(leader_of(record.as_bytes()), Some(Leader { owner, token }));
    }

    #[test]
    fn what_is_no_record_is_not_taken_for_one() {
        let records: [&[u8]; 8] = [
            b"",
            b"x",
            b"-1:1:a",
            b"0:1:a",
            b"7:1",
            b"7:1:",
            b"9007199254740992:1:a",
            b"7:1:\xff",
        ];
        for record in records {
            assert_eq!(leader_of(record), None, "{record:?}");
        }
    }
}
