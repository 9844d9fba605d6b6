//! The reference stores: what every real one must do, in its shortest form. One for each family.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::Token;

/// One process, as a store knows it: a nonce, and a name that two may share by mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    pub nonce: u64,
    pub name: usize,
}

impl Holder {
    /// Whether both are the same process.
    fn is(self, other: Self) -> bool {
        self.nonce == other.nonce
    }
}

/// Who holds a lease under which token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    pub holder: Holder,
    pub token: Token,
}

impl Held {
    pub fn by(self, holder: Holder, token: Token) -> bool {
        self.holder.is(holder) && self.token == token
    }
}

/// The answer to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    Granted {
        token: Token,
        valid_for: Duration,
    },
    Denied {
        leader: Option<Held>,
        remaining: Option<Duration>,
    },
}

// ---- family A: the store judges expiry ----

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lease {
    held: Held,
    expires: Moment,
}

/// Redis, SQL servers, etcd, ...: one atomic operation an attempt, expiry by the store's own clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JudgingStore {
    lease: Option<Lease>,
    last_token: u64,
    /// The longest lease that it grants.
    longest: Duration,
    /// Whether an expired record vanishes (a TTL), or stays until somebody takes it over (a row).
    forgets_expired: bool,
}

impl JudgingStore {
    pub fn new(longest: Duration, forgets_expired: bool) -> Self {
        Self {
            lease: None,
            last_token: 0,
            longest,
            forgets_expired,
        }
    }

    pub fn held(&self) -> Option<Held> {
        self.lease.map(|lease| lease.held)
    }

    pub fn attempt(
        &mut self,
        now: Moment,
        by: Holder,
        wanted: Duration,
        term: Option<Token>,
    ) -> Reply {
        let valid_for = wanted.min(self.longest);
        let running = self.lease.filter(|lease| now < lease.expires);
        if self.forgets_expired {
            self.lease = running;
        }
        let token = match term {
            Some(token) => self
                .held()
                .filter(|held| held.by(by, token))
                .map(|held| held.token),
            None if running.is_none_or(|lease| lease.held.holder.is(by)) => {
                self.last_token += 1;
                Token::new(self.last_token)
            }
            None => None,
        };
        let Some(token) = token else {
            return Reply::Denied {
                leader: running.map(|lease| lease.held),
                remaining: running.map(|lease| lease.expires.since(now)),
            };
        };
        self.lease = Some(Lease {
            held: Held { holder: by, token },
            expires: now + valid_for,
        });
        Reply::Granted { token, valid_for }
    }

    pub fn release(&mut self, by: Holder, token: Token) -> bool {
        let ours = self.held().is_some_and(|held| held.by(by, token));
        if ours {
            self.lease = None;
        }
        ours
    }

    /// An administrator deletes the record; the counter stays.
    pub fn delete(&mut self) {
        self.lease = None;
    }
}

// ---- family B: followers judge expiry ----

/// A record that is written as a whole, on condition of its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    pub holder: Option<Holder>,
    /// The last term's, also after its release.
    pub token: u64,
    pub duration: Duration,
}

impl Record {
    pub fn held(&self) -> Option<Held> {
        Some(Held {
            holder: self.holder?,
            token: Token::new(self.token)?,
        })
    }
}

/// Kubernetes, S3, ...: reads and conditional writes, and no idea of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VersionedStore {
    version: u64,
    record: Record,
    /// Versions are never used twice, not even after writes were lost.
    last_version: u64,
}

impl VersionedStore {
    pub fn new() -> Self {
        Self {
            version: 0,
            record: Record {
                holder: None,
                token: 0,
                duration: Duration::ZERO,
            },
            last_version: 0,
        }
    }

    pub fn read(&self) -> (u64, Record) {
        (self.version, self.record)
    }

    pub fn write(&mut self, expected: u64, record: Record) -> bool {
        if expected != self.version {
            return false;
        }
        self.put(record);
        true
    }

    fn put(&mut self, record: Record) {
        self.last_version += 1;
        self.version = self.last_version;
        self.record = record;
    }

    pub fn delete(&mut self) {
        self.put(Record {
            holder: None,
            ..self.record
        });
    }

    /// Back to an earlier state: the writes since then are lost.
    pub fn fall_back(&mut self, (version, record): (u64, Record)) {
        self.version = version;
        self.record = record;
    }
}
