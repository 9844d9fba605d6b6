//! MySQL and MariaDB. One row for each election, and the server's clock, which judges.
//!
//! | column | holds |
//! |---|---|
//! | `election` | its name; the primary key |
//! | `instance`, `nonce` | whose lease it is; an empty name: nobody's |
//! | `token` | the last token; it stays when a lease is released |
//! | `attempt` | the number of the attempt that wrote the row, within its process |
//! | `expires_at` | in microseconds since 1970, by the server's clock |
//!
//! A renewal is one `UPDATE` of the row that names this owner and this term, one round trip. A campaign reads
//! first, without a lock: whoever finds a living lease is done, and has kept nobody waiting. If the lease is
//! free, it is taken by compare-and-set: an `UPDATE` of the very row that was read, which the server carries
//! out only if nobody was faster and the row has expired by its clock; or an `INSERT`, if there is no row. Both
//! are statements of their own, and commit with themselves. Nobody holds a lock while he thinks, so nobody who
//! freezes keeps others waiting.
//!
//! The token of a term is `max(last + 1, the server's time in µs)`, chosen by whoever read the row; the
//! compare-and-set makes it his alone.
//!
//! **Transactions of the application's own** that must not outlive a term hold that term's entry in the unique key
//! `term` in share mode. A takeover changes the entry, so it waits for them; a renewal does not touch it. So no
//! row beside that of the election is needed.
//!
//! **What comes too late.** A statement whose asker has gone may still wait in the server for a lock of somebody
//! else's. The session's limits end it about when the asker stops waiting (MariaDB: to the millisecond; MySQL: by
//! the second). What is carried out late all the same changes nothing: a takeover finds another row than the one
//! that was read, a renewal a later attempt's number.
//!
//! What it cannot promise: replication is asynchronous by default, so a failover may lose the last writes, and
//! with them a lease that somebody still trusts; and a server whose clock is set forward frees leases early. Only
//! the fencing token closes that.

mod address;
mod failure;
mod link;
mod statements;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use self::address::Address;
use self::failure::{BAD_TABLE, DUPLICATE, Failure, NO_TABLE, unnumbered};
use self::link::{Link, Request, is_read_only};
use self::statements::{Claim, Record};
use self::wire::{Answer, Row};
use super::{Attempt, Backend, BackendError, BadStore, Capabilities, Guard, StoreOptions};
use crate::clock::Clock;
use crate::lease::FailureKind::{Ambiguous, Transient};
use crate::lease::{ElectionName, InstanceId, LONGEST_LEASE, Leader, Outcome, Owner, Token};
use crate::random::random_u64;

/// How often a campaign looks again that found the lease free and came too late for it.
const MOST_LOOKS: usize = 3;
/// The columns that hold texts, and how many characters they must hold.
const TEXTS: [&str; 2] = ["election", "instance"];
const LONGEST_TEXT: u64 = 253;
const NUMBERS: [&str; 4] = ["nonce", "token", "attempt", "expires_at"];

/// The number of the last attempt of this process, in whatever store.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// See the module's description.
#[derive(Debug)]
pub struct MysqlStore {
    link: Link,
    table: String,
    /// See [`StoreOptions::for_others`].
    for_others: bool,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    _clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let address = Address::parse(url, &options.base_dir)?;
    Ok(Arc::new(MysqlStore {
        table: address.table.quoted(),
        link: Link::new(address, options),
        for_others: options.for_others,
    }))
}

/// What the table says of an election.
#[derive(Debug)]
struct State {
    read_only: bool,
    /// The server's time, in microseconds since 1970.
    now: i64,
    record: Option<Record>,
}

/// What came of a write.
struct Written {
    /// How many rows it changed.
    found: u64,
    /// What is there afterwards.
    state: State,
    /// Another copy of it may have been carried out before.
    maybe_twice: bool,
}

/// What that means.
enum Meaning {
    /// With the record to take over, if there is one.
    Free(Option<Record>),
    Held {
        leader: Leader,
        remaining: Duration,
        record: Record,
    },
}

#[async_trait]
impl Backend for MysqlStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: false,
        }
    }

    fn describe(&self) -> String {
        self.link.address.shown.clone()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        if !self.check_shape().await? {
            self.create_table().await?;
            self.check_shape().await?;
        }
        self.probe().await
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let number = ATTEMPTS.fetch_add(1, Ordering::Relaxed) + 1;
        match self.try_once(attempt, number).await {
            // Somebody dropped it, and with it all leases.
            Err(failure) if failure.number == Some(NO_TABLE) => {
                self.create_table().await?;
                Ok(self.try_once(attempt, number).await?)
            }
            tried => Ok(tried?),
        }
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        let release = statements::release(&self.table, election, owner, token);
        let until = self.link.deadline();
        match self.write_and_read(&release, election, until).await {
            Ok(Written { found: 1, .. }) => Ok(true),
            // The first copy did it, and its answer got lost.
            Ok(written) => Ok(written.maybe_twice
                && (written.state.record).is_some_and(|record| record.is_released(token))),
            Err(failure) if failure.number == Some(NO_TABLE) => Ok(false),
            Err(failure) => Err(failure.error),
        }
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let state = match self.read(election).await {
            Err(failure) if failure.number == Some(NO_TABLE) => return Ok(None),
            state => state?,
        };
        match self.meaning(election, state)? {
            Meaning::Free(_) => Ok(None),
            Meaning::Held { leader, .. } => Ok(Some(leader)),
        }
    }

    fn guard(&self, election: &ElectionName, token: Token) -> Option<Guard> {
        Some(statements::guard(&self.table, election, token))
    }

    async fn close(&self) {
        self.link.close().await;
    }
}

impl MysqlStore {
    async fn try_once(&self, attempt: &Attempt<'_>, number: u64) -> Result<Outcome, Failure> {
        match attempt.term {
            None => self.campaign(attempt, number).await,
            Some(term) => self.renew(attempt, number, term).await,
        }
    }

    async fn campaign(&self, attempt: &Attempt<'_>, number: u64) -> Result<Outcome, Failure> {
        let mut written = false;
        let tried = self.campaign_once(attempt, number, &mut written).await;
        tried.map_err(|mut failure| {
            if written && failure.error.kind == Transient {
                failure.error.kind = Ambiguous;
            }
            failure
        })
    }

    /// `written`: something was sent whose answer says that it changed nothing, though an earlier copy of it
    /// may have.
    async fn campaign_once(
        &self,
        attempt: &Attempt<'_>,
        number: u64,
        written: &mut bool,
    ) -> Result<Outcome, Failure> {
        let election = attempt.election;
        let until = self.link.campaign_deadline();
        let mut state = self.read(election).await?;
        for _ in 0..MOST_LOOKS {
            self.refuse_read_only(&state, Transient)?;
            let now = state.now;
            let record = match self.meaning(election, state).map_err(unnumbered)? {
                Meaning::Held {
                    leader, remaining, ..
                } if leader.owner != *attempt.owner => {
                    return Ok(Outcome::Other {
                        leader: Some(leader),
                        remaining: Some(remaining),
                    });
                }
                // An earlier attempt of its own, of which nobody can tell what became.
                Meaning::Held { record, .. } => Some(record),
                Meaning::Free(record) => record,
            };
            let Some(token) = token_after(record.as_ref(), now) else {
                return Err(unnumbered(
                    self.not_ours(election, "a token that no other can follow"),
                ));
            };
            let claim = Claim {
                election: election.as_str(),
                owner: attempt.owner,
                token,
                attempt: number,
                alone: !self.for_others,
                duration: attempt.duration,
            };
            let write = match &record {
                None => statements::begin(&self.table, &claim),
                Some(record) => statements::take_over(&self.table, record, &claim),
            };
            let answered = self.write_and_read(&write, election, until).await;
            state = match answered {
                Ok(Written {
                    found: 1, state, ..
                }) => {
                    self.refuse_read_only(&state, Ambiguous)?;
                    return Ok(Outcome::Held {
                        token,
                        valid_for: attempt.duration,
                    });
                }
                Ok(unwritten) => {
                    *written = true;
                    unwritten.state
                }
                Err(failure) if failure.number == Some(DUPLICATE) => {
                    *written = true;
                    self.read(election).await?
                }
                Err(failure) => return Err(failure),
            };
        }
        Err(unnumbered(BackendError::transient(
            "conflict",
            format!(
                "the election {election} on {} changes faster than it can be read",
                self.describe()
            ),
        )))
    }

    async fn renew(
        &self,
        attempt: &Attempt<'_>,
        number: u64,
        token: Token,
    ) -> Result<Outcome, Failure> {
        let claim = Claim {
            election: attempt.election.as_str(),
            owner: attempt.owner,
            token,
            attempt: number,
            alone: !self.for_others,
            duration: attempt.duration,
        };
        let renew = statements::renew(&self.table, &claim);
        let Written { found, state, .. } = self
            .write_and_read(&renew, attempt.election, self.link.deadline())
            .await?;
        // A user who may write all the same would go on leading where nobody else looks.
        self.refuse_read_only(&state, Ambiguous)?;
        if found == 1 {
            return Ok(Outcome::Held {
                token,
                valid_for: attempt.duration,
            });
        }
        Ok(
            match self.meaning(attempt.election, state).map_err(unnumbered)? {
                Meaning::Free(_) => Outcome::Other {
                    leader: None,
                    remaining: None,
                },
                Meaning::Held {
                    leader, remaining, ..
                } => Outcome::Other {
                    leader: Some(leader),
                    remaining: Some(remaining),
                },
            },
        )
    }

    async fn read(&self, election: &ElectionName) -> Result<State, Failure> {
        let read = statements::read(&self.table, election.as_str());
        let asked = self.link.ask(&read, Request::Reads).await?;
        self.state_in(&asked.answers)
    }

    /// What may be done late without harm.
    async fn write(&self, statements: &str) -> Result<Vec<Answer>, Failure> {
        let until = self.link.deadline();
        let asked = self.link.ask(statements, Request::Writes { until }).await?;
        Ok(asked.answers)
    }

    /// In one round trip.
    async fn write_and_read(
        &self,
        write: &str,
        election: &ElectionName,
        until: Instant,
    ) -> Result<Written, Failure> {
        let read = statements::read(&self.table, election.as_str());
        let both = format!("{write}; {read}");
        let asked = self.link.ask(&both, Request::Writes { until }).await?;
        Ok(Written {
            found: asked.answers.first().map_or(0, |answer| answer.found),
            state: self.state_in(&asked.answers)?,
            maybe_twice: asked.maybe_twice,
        })
    }

    fn state_in(&self, answers: &[Answer]) -> Result<State, Failure> {
        let row = answers.last().and_then(|answer| answer.rows.first());
        row.and_then(state_of).ok_or_else(|| {
            unnumbered(BackendError::fatal(
                failure::BAD_RECORD,
                format!(
                    "the table {} on {} holds numbers that are none. {}",
                    self.table,
                    self.describe(),
                    another_table()
                ),
            ))
        })
    }

    fn meaning(&self, election: &ElectionName, state: State) -> Result<Meaning, BackendError> {
        let Some(record) = state.record else {
            return Ok(Meaning::Free(None));
        };
        if record.token > Token::MAX {
            return Err(self.not_ours(election, "a token that is too large"));
        }
        let Ok(remaining @ 1..) = u64::try_from(record.expires_at.saturating_sub(state.now)) else {
            return Ok(Meaning::Free(Some(record)));
        };
        let remaining = Duration::from_micros(remaining);
        if remaining > LONGEST_LEASE {
            return Err(self.not_ours(
                election,
                "a lease of more than a day by the server's clock (if that was set back, the leader's next renewal \
                 mends it)",
            ));
        }
        let Some(token) = Token::new(record.token) else {
            return Err(self.not_ours(election, "a lease without a token"));
        };
        let Ok(instance) = InstanceId::new(&record.instance) else {
            return Err(self.not_ours(election, "a lease of nobody's"));
        };
        Ok(Meaning::Held {
            leader: Leader {
                owner: Owner {
                    instance,
                    nonce: record.nonce,
                },
                token,
            },
            remaining,
            record,
        })
    }

    fn refuse_read_only(
        &self,
        state: &State,
        kind: crate::lease::FailureKind,
    ) -> Result<(), Failure> {
        if !state.read_only {
            return Ok(());
        }
        // The name in the URL, or another one, may lead to another server by now.
        self.link.hang_up();
        Err(unnumbered(link::read_only(&self.describe(), kind)))
    }

    /// `false`: there is no table, or none that this user may see.
    async fn check_shape(&self) -> Result<bool, BackendError> {
        let table = &self.link.address.table;
        let shape = statements::shape(&table.database, &table.name);
        let asked = self.link.ask(&shape, Request::Reads).await?;
        let columns = (asked.answers)
            .first()
            .map(|answer| &*answer.rows)
            .unwrap_or_default();
        if columns.is_empty() {
            return Ok(false);
        }
        shape_is_right(columns).map_err(|what| {
            BackendError::fatal(
                BAD_TABLE,
                format!(
                    "the table {} on {} is not as the election needs it: {what}. {}. This is how it would create it: {}",
                    self.table,
                    self.describe(),
                    another_table(),
                    statements::create(&self.table)
                ),
            )
        })?;
        Ok(true)
    }

    async fn create_table(&self) -> Result<(), BackendError> {
        let create = statements::create(&self.table);
        self.write(&create).await?;
        Ok(())
    }

    /// No election has a name that begins with a space, and this one's is undone in the same breath.
    async fn probe(&self) -> Result<(), BackendError> {
        let random = random_u64();
        let owner = Owner {
            instance: InstanceId::new("whenleader").expect("a good id"),
            nonce: random,
        };
        let claim = Claim {
            election: &format!(" {random:016x}"),
            owner: &owner,
            token: Token::FIRST,
            attempt: 1,
            alone: true,
            duration: Duration::from_secs(1),
        };
        let next = Token::new(2).expect("a token");
        let probe = statements::probe(&self.table, &claim, next);
        let answers = self.write(&probe).await?;
        let found: Vec<_> = answers.iter().map(|answer| answer.found).collect();
        if found != statements::PROBED {
            return Err(BackendError::fatal(
                super::UNSUITABLE,
                format!(
                    "{} does not honour conditions: of nine statements, whose effects are {:?}, it says {found:?}",
                    self.describe(),
                    statements::PROBED
                ),
            ));
        }
        let state = answers.iter().find_map(|answer| answer.rows.first());
        let state = state.and_then(state_of);
        match state.map(|state| (state.read_only, state.record)) {
            Some((true, _)) => Err(link::read_only(&self.describe(), Transient)),
            Some((false, Some(record)))
                if record.is_of(&owner) && record.token == next.number() =>
            {
                Ok(())
            }
            other => Err(BackendError::fatal(
                super::UNSUITABLE,
                format!(
                    "{} does not give back what was written: {other:?}",
                    self.describe()
                ),
            )),
        }
    }

    fn not_ours(&self, election: &ElectionName, what: &str) -> BackendError {
        BackendError::fatal(
            failure::BAD_RECORD,
            format!(
                "the row of the election {election} in {} on {} holds {what}, which no election wrote. If nobody \
                 needs it: DELETE FROM {} WHERE election = '{}'",
                self.table,
                self.describe(),
                self.table,
                election.as_str().replace('\\', "\\\\").replace('\'', "''")
            ),
        )
    }
}

fn another_table() -> &'static str {
    "If another program uses it, name another one with ?table=<name> behind the store's URL, and it is created"
}

/// `None`: the last one that there can be was used.
fn token_after(record: Option<&Record>, now: i64) -> Option<Token> {
    let last = record.map_or(0, |record| record.token);
    let now = u64::try_from(now).unwrap_or(0).min(Token::MAX);
    Token::new(last.checked_add(1)?.max(now))
}

/// `None`: not what was asked for.
fn state_of(row: &Row) -> Option<State> {
    let text = |index: usize| std::str::from_utf8(row.get(index)?.as_deref()?).ok();
    let record = match row.get(3)? {
        None => None,
        Some(_) => Some(Record {
            token: text(3)?.parse().ok()?,
            nonce: text(4)?.parse().ok()?,
            attempt: text(5)?.parse().ok()?,
            expires_at: text(6)?.parse().ok()?,
            instance: text(7)?.to_owned(),
        }),
    };
    Some(State {
        read_only: is_read_only(row),
        now: text(2)?.parse().ok()?,
        record,
    })
}

/// `Err`: what is wrong with it.
fn shape_is_right(columns: &[Row]) -> Result<(), String> {
    let field = |row: &Row, index: usize| {
        let field = row.get(index).and_then(Option::as_deref);
        String::from_utf8_lossy(field.unwrap_or_default()).to_ascii_lowercase()
    };
    let engine = columns.first().map(|row| field(row, 5)).unwrap_or_default();
    if engine != "innodb" {
        return Err("its engine is not InnoDB".to_owned());
    }
    let column = |name: &str| columns.iter().find(|row| field(row, 0) == name);
    for name in TEXTS {
        let row = column(name).ok_or_else(|| format!("it has no column {name}"))?;
        let (kind, collation) = (field(row, 1), field(row, 2));
        let holds = field(row, 3).parse().unwrap_or(0);
        // Names that differ by case, accents or trailing spaces are different names.
        if kind != "varchar"
            || !collation.starts_with("utf8mb4")
            || !collation.ends_with("_bin")
            || holds < LONGEST_TEXT
        {
            return Err(format!(
                "its column {name} is no VARCHAR({LONGEST_TEXT}) of the collation utf8mb4_bin"
            ));
        }
    }
    for name in NUMBERS {
        let row = column(name).ok_or_else(|| format!("it has no column {name}"))?;
        if field(row, 1) != "bigint" {
            return Err(format!("its column {name} is no BIGINT"));
        }
    }
    let keys: Vec<_> = columns
        .iter()
        .filter(|row| field(row, 4) == "pri")
        .collect();
    if keys.len() != 1 || field(keys[0], 0) != "election" {
        return Err("its primary key is not the column election".to_owned());
    }
    Ok(())
}
