//! PostgreSQL. One row per election in one table, and one statement per operation:
//! [campaign](campaign.sql), [renew](renew.sql), [release](release.sql). The server's clock judges expiry.
//!
//! | column       | holds                                                                       |
//! | ------------ | --------------------------------------------------------------------------- |
//! | `election`   | its name                                                                    |
//! | `instance`   | who leads, or led last                                                      |
//! | `nonce`      | which of those who call themselves so                                       |
//! | `token`      | the number of its term; at least the server's time in microseconds          |
//! | `attempt`    | the number of its last attempt, so that one that comes too late is told from it |
//! | `expires_at` | the end of its lease; `-infinity`: released                                 |
//!
//! A transaction of the leader's own that holds the row with `SELECT ... FOR KEY SHARE` keeps its successor
//! waiting until it ends: renewals change no key, and a take-over locks the row as if it did. Nobody waits in
//! the server for a row: what is locked is asked for again.
//!
//! Acquisitions, renewals and releases are told by NOTIFY within their transaction.
//!
//! What it cannot promise: an asynchronous standby that becomes the primary may lack the last commits, and
//! with them a lease that somebody still trusts. Only the fencing token closes that.

mod address;
mod failure;
mod guard;
mod link;
mod listener;
mod statements;
mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use self::address::Address;
use self::failure::{Advice as _, BUSY, NO_TABLE, READ_ONLY, Stage};
use self::link::{ASK_AGAIN, Answer, Link};
use self::listener::Listener;
use self::statements::{Row, Said, State, Values, ordered, read, write};
use super::{
    Attempt, Backend, BackendError, BadStore, Capabilities, Guard, Hints, StoreOptions, Watch,
};
use crate::clock::Clock;
use crate::lease::{ElectionName, InstanceId, LONGEST_LEASE, Leader, Outcome, Owner, Token};
use crate::locked::locked;
use crate::random::random_u64;

const CAMPAIGN: &str = include_str!("campaign.sql");
const RENEW: &str = include_str!("renew.sql");
const RELEASE: &str = include_str!("release.sql");
const PEEK: &str = include_str!("peek.sql");
/// No election wrote such an end, or the server's clock was set back by more than a day.
const SHORTEN: &str = "UPDATE $table AS l SET expires_at = clock_timestamp() + $duration \
     WHERE l.election = $election AND l.expires_at > clock_timestamp() + $longest";

/// See the module's description.
#[derive(Debug)]
pub struct PostgresStore {
    link: Arc<Link>,
    listener: Arc<Listener>,
    /// Numbers what is sent, so that of two attempts of one owner the later one counts.
    attempts: AtomicU64,
    /// An owner's attempts may come from several processes, each of which has its own numbers.
    for_others: bool,
    /// Rows that were free each time, and locked: of which term, and since when.
    locked_rows: Mutex<HashMap<ElectionName, (Token, Instant)>>,
}

pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    _clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let address = Address::parse(url, &options.base_dir)?;
    let link = Arc::new(Link::new(address, options));
    Ok(Arc::new(PostgresStore {
        listener: Arc::new(Listener::new(Arc::clone(&link))),
        link,
        attempts: AtomicU64::new(0),
        for_others: options.for_others,
        locked_rows: Mutex::default(),
    }))
}

#[async_trait]
impl Backend for PostgresStore {
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
        let table = self.link.table().await?;
        let mut turned = 0;
        loop {
            match self.probe(&table).await {
                Err(error) if error.code == READ_ONLY => {
                    turned += 1;
                    if turned >= self.link.address.places.len() {
                        return Err(error);
                    }
                }
                tried => return tried,
            }
        }
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let began = Instant::now();
        let election = attempt.election.as_str();
        let values = |values: Values<'static>| {
            let values = values.owner(attempt.owner).duration(attempt.duration);
            match attempt.term {
                Some(token) => values.token(token),
                None => values,
            }
        };
        let template = match attempt.term {
            Some(_) => RENEW,
            None => CAMPAIGN,
        };
        loop {
            let row = match self.change(template, election, values).await?.0 {
                Said::Done(token) => {
                    self.forget_locked(attempt.election);
                    return Ok(Outcome::Held {
                        token,
                        valid_for: attempt.duration,
                    });
                }
                Said::Row(row) => Some(row),
                Said::Nothing => None,
                Said::Rubbish | Said::Standby => return Err(self.not_ours(election)),
            };
            let (leader, remaining) = match (row, attempt.term) {
                // Somebody else has locked the row of this very term.
                (Some(row), Some(token)) if row.is_of(attempt.owner, token) => {
                    self.wait_for_others(began).await?;
                    continue;
                }
                // Somebody else has just made the first row.
                (None, None) => {
                    self.wait_for_others(began).await?;
                    continue;
                }
                (Some(row), _) if row.is_endless() => {
                    let values = |values: Values<'static>| {
                        let day = Values::interval(LONGEST_LEASE);
                        values.duration(attempt.duration).with("longest", day)
                    };
                    self.change(SHORTEN, election, values).await?;
                    (Some(row.leader), Some(attempt.duration))
                }
                (Some(row), _) if row.state == State::Live => {
                    self.forget_locked(attempt.election);
                    (Some(row.leader), row.remaining)
                }
                (Some(row), None) if row.leader.token.number() == Token::MAX => {
                    return Err(self.not_ours(election));
                }
                // It is free, and locked: by a transaction of its last leader, or by somebody who is
                // acquiring it.
                (Some(row), None) => {
                    self.wait_for_row(attempt.election, row.leader.token)
                        .await?;
                    (row.last_leader(), Some(ASK_AGAIN))
                }
                (Some(row), Some(_)) => {
                    let leader = row.last_leader();
                    let remaining = leader.as_ref().map(|_| Duration::ZERO);
                    (leader, remaining)
                }
                (None, Some(_)) => (None, None),
            };
            return Ok(Outcome::Other { leader, remaining });
        }
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        let began = Instant::now();
        let election = election.as_str();
        loop {
            let values = |values: Values<'static>| values.owner(owner).token(token);
            let (said, maybe_twice) = self.change(RELEASE, election, values).await?;
            match said {
                Said::Done(_) => return Ok(true),
                Said::Row(row) if row.is_of(owner, token) => self.wait_for_others(began).await?,
                // The first sending did it, and its answer got lost.
                Said::Row(row) => return Ok(maybe_twice && row.was_released_by(owner, token)),
                Said::Nothing => return Ok(false),
                Said::Rubbish | Said::Standby => return Err(self.not_ours(election)),
            }
        }
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let election = election.as_str();
        for _ in &self.link.address.places {
            let answer = self
                .ask(|table| read(PEEK, &Values::of(table, election)))
                .await?;
            match Said::read(&answer.rows) {
                Said::Row(row) => {
                    return Ok((row.state == State::Live).then_some(row.leader));
                }
                Said::Nothing => return Ok(None),
                Said::Standby => self.link.turn_away_from(&answer),
                Said::Done(_) | Said::Rubbish => return Err(self.not_ours(election)),
            }
        }
        Err(BackendError::transient(
            READ_ONLY,
            format!(
                "{} is a standby, which knows only who led a while ago: point the URL at the primary",
                self.describe()
            ),
        ))
    }

    fn guard(&self, election: &ElectionName, token: Token) -> Option<Guard> {
        // A term was granted there, so it is known by now.
        let table = self.link.table.get().unwrap_or(&self.link.address.table);
        Some(guard::of(table, election, token))
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

impl PostgresStore {
    /// A statement that writes, and whether it may have been done by an earlier sending.
    async fn change(
        &self,
        template: &str,
        election: &str,
        fill: impl Fn(Values<'static>) -> Values<'static>,
    ) -> Result<(Said, bool), BackendError> {
        let patience = self.link.request_timeout;
        let template = ordered(template, !self.for_others);
        let answer = self
            .ask(|table| {
                let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
                let values = fill(Values::of(table, election)).attempt(number);
                write(&template, &values, patience)
            })
            .await?;
        Ok((Said::read(&answer.rows), answer.maybe_twice))
    }

    /// A request, once the table is known. A table that was dropped is made again, once.
    async fn ask(&self, request: impl Fn(&str) -> String) -> Result<Answer, BackendError> {
        let table = self.link.table().await?;
        match self.link.run(|| request(&table)).await {
            Err(error) if error.code == NO_TABLE => {
                self.link.make_table().await?;
                self.link.run(|| request(&table)).await
            }
            answer => answer,
        }
    }

    async fn wait_for_others(&self, began: Instant) -> Result<(), BackendError> {
        if began.elapsed() + ASK_AGAIN > self.link.request_timeout {
            return Err(self.row_is_locked().await);
        }
        sleep(ASK_AGAIN).await;
        Ok(())
    }

    /// Of a free row, which is asked for again and again at short intervals: an error, if that has gone on for
    /// too long, so that somebody hears of it, and the intervals grow.
    async fn wait_for_row(
        &self,
        election: &ElectionName,
        token: Token,
    ) -> Result<(), BackendError> {
        let since = {
            let mut rows = locked(&self.locked_rows);
            let now = (token, Instant::now());
            let row = rows.entry(election.clone()).or_insert(now);
            if row.0 != token {
                *row = now;
            }
            row.1
        };
        if since.elapsed() > self.link.request_timeout {
            return Err(self.row_is_locked().await);
        }
        Ok(())
    }

    fn forget_locked(&self, election: &ElectionName) {
        locked(&self.locked_rows).remove(election);
    }

    async fn row_is_locked(&self) -> BackendError {
        match self.link.table().await {
            Err(error) => error,
            Ok(table) => BackendError::transient(
                BUSY,
                format!(
                    "a transaction of somebody's has locked the row of the election in {table} on {}: see \
                     pg_locks for who",
                    self.describe()
                ),
            ),
        }
    }

    /// All that an election does, on a name that none can have, in a transaction that is taken back.
    async fn probe(&self, table: &str) -> Result<(), BackendError> {
        let (wire, _) = self.link.wire().await?;
        let owner = |nonce| Owner {
            instance: InstanceId::new("whenleader").expect("a good name"),
            nonce,
        };
        let election = format!("\u{1}{:016x}", random_u64());
        let values = |attempt, nonce| {
            let values = Values::of(table, &election);
            let token = values.fill("(SELECT token FROM $table WHERE election = $election)");
            values
                .owner(&owner(nonce))
                .attempt(attempt)
                .duration(LONGEST_LEASE)
                .with("token", token)
        };
        let steps = [
            (CAMPAIGN, values(1, 1), "held"),
            (CAMPAIGN, values(1, 2), "live"),
            (RENEW, values(2, 1), "held"),
            (RELEASE, values(3, 1), "held"),
            (CAMPAIGN, values(2, 2), "held"),
        ];
        let mut text = "BEGIN".to_owned();
        for (template, values, _) in &steps {
            text = format!(
                "{text}; {}",
                write(&ordered(template, true), values, self.link.request_timeout)
            );
        }
        text.push_str("; ROLLBACK");
        let asked = timeout(self.link.request_timeout, self.link.send(&wire, &text)).await;
        let rows = match asked {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => {
                // Its transaction is open, and does nothing more.
                self.link.let_go(&wire);
                let error = failure::meaning(&error, &*self.link, Stage::Sent);
                if error.code == READ_ONLY {
                    self.link.turn_away(&wire);
                }
                return Err(error);
            }
            Err(_) => return Err(failure::silence(&self.describe(), Stage::Sent)),
        };
        let said = rows.iter().filter_map(|row| row.try_get("state").ok()?);
        if !said.eq(steps.iter().map(|(_, _, expected)| *expected)) {
            return Err(BackendError::fatal(
                "unsupported",
                format!(
                    "{} does not honour the conditions that an election rests on",
                    self.describe()
                ),
            ));
        }
        Ok(())
    }

    fn not_ours(&self, election: &str) -> BackendError {
        let table = self.link.table.get().unwrap_or(&self.link.address.table);
        BackendError::fatal(
            failure::BAD_RECORD,
            format!(
                "the row of the election {election} on {} holds something that no election wrote. If nobody \
                 needs it, delete it: DELETE FROM {} WHERE election = {}. {}",
                self.describe(),
                table.quoted(),
                statements::literal(election),
                self.link.shape()
            ),
        )
    }
}

impl Row {
    fn is_of(&self, owner: &Owner, token: Token) -> bool {
        self.state != State::Free && self.leader.token == token && self.leader.owner == *owner
    }

    fn was_released_by(&self, owner: &Owner, token: Token) -> bool {
        self.state == State::Free && self.leader.token == token && self.leader.owner == *owner
    }

    /// Unless it was released.
    fn last_leader(self) -> Option<Leader> {
        (self.state != State::Free).then_some(self.leader)
    }
}
