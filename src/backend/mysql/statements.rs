//! The statements, as text. Names and ids stand in them as hexadecimal digits, which mean the same in every
//! character set and `sql_mode`, and can end no statement.

use std::fmt::Write as _;
use std::time::Duration;

use crate::backend::{Dialect, Guard};
use crate::lease::{ElectionName, Owner, Token};

/// The time in microseconds since 1970 at which the server began with the statement. It knows no time zone,
/// so it does not jump twice a year, and what a statement waits does not count as lease: whoever waited for a
/// lock decides and writes as of before.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// A row as it was read. A takeover changes this very row or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub instance: String,
    pub nonce: u64,
    pub token: u64,
    pub attempt: u64,
    pub expires_at: i64,
}

/// What an owner writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    pub election: &'a str,
    pub owner: &'a Owner,
    pub token: Token,
    /// The number of the attempt within this process.
    pub attempt: u64,
    /// All attempts of the owner come from this process.
    pub alone: bool,
    pub duration: Duration,
}

/// The unique key makes it possible to bar takeovers and let renewals pass: whoever locks a term's entry in it
/// (`SELECT ... FORCE INDEX (term) ... LOCK IN SHARE MODE`) keeps its token from being changed, and nothing
/// else. So no other statement here may touch it: they all go by the primary key.
pub(super) fn create(table: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (\
         election VARCHAR(253) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, \
         instance VARCHAR(253) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, \
         nonce BIGINT UNSIGNED NOT NULL, \
         token BIGINT UNSIGNED NOT NULL, \
         attempt BIGINT UNSIGNED NOT NULL, \
         expires_at BIGINT NOT NULL, \
         PRIMARY KEY (election), UNIQUE KEY term (election, token)\
         ) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
    )
}

/// One row, also if there is no record: whether the server takes writes, its time, and the record.
pub(super) fn read(table: &str, election: &str) -> String {
    let election = text(election);
    format!(
        "SELECT @@global.read_only, @@global.innodb_read_only, {NOW}, l.token, l.nonce, l.attempt, l.expires_at, \
         l.instance FROM (SELECT 1) AS one LEFT JOIN {table} AS l FORCE INDEX (PRIMARY) ON l.election = {election}"
    )
}

/// Fails if there is a record.
pub(super) fn begin(table: &str, claim: &Claim<'_>) -> String {
    let (election, values) = (text(claim.election), values(claim, &asked(claim)));
    format!("INSERT INTO {table} SET election = {election}, {values}")
}

/// Takes over the record that was read, if it is still that one and has expired, or is the owner's own.
pub(super) fn take_over(table: &str, from: &Record, claim: &Claim<'_>) -> String {
    let (election, values) = (text(claim.election), values(claim, &until(claim)));
    let (instance, free) = (text(&from.instance), format!("expires_at <= {NOW}"));
    let free = if from.is_of(claim.owner) {
        "TRUE"
    } else {
        &free
    };
    format!(
        "UPDATE {table} FORCE INDEX (PRIMARY) SET {values} WHERE election = {election} AND token = {} AND \
         nonce = {} AND instance = {instance} AND attempt = {} AND expires_at = {} AND {free}",
        from.token, from.nonce, from.attempt, from.expires_at
    )
}

/// Of this owner and this term, and of no earlier attempt than the last one that was carried out: one that
/// comes late must not shorten what a later one has written.
pub(super) fn renew(table: &str, claim: &Claim<'_>) -> String {
    let attempt = claim.attempt;
    let until = until(claim);
    let not_overtaken = if claim.alone {
        format!("attempt <= {attempt}")
    } else {
        // Other processes have numbers of their own.
        "TRUE".to_owned()
    };
    format!(
        "UPDATE {table} FORCE INDEX (PRIMARY) SET expires_at = {until}, attempt = {attempt} WHERE {} AND \
         {not_overtaken}",
        term(claim.election, claim.owner, claim.token),
    )
}

/// The token stays, and nobody's name: a renewal that comes late finds nothing to renew.
pub(super) fn release(table: &str, election: &ElectionName, owner: &Owner, token: Token) -> String {
    format!(
        "UPDATE {table} FORCE INDEX (PRIMARY) SET expires_at = 0, instance = '', nonce = 0 WHERE {}",
        term(election.as_str(), owner, token)
    )
}

/// What a transaction of the application's own says so that it does not outlive a term: see [`create`]. The check
/// reads without a lock wherever a plain read does, which is not so in SERIALIZABLE.
pub(super) fn guard(table: &str, election: &ElectionName, token: Token) -> Guard {
    let election = text(election.as_str());
    let check = format!(
        "SELECT CASE WHEN l.token IS NULL THEN 'none' WHEN l.token < {token} THEN 'older' \
         WHEN l.token > {token} THEN 'taken' WHEN l.expires_at = 0 THEN 'released' WHEN l.expires_at > {NOW} \
         THEN 'current' ELSE 'expired' END AS answer \
         FROM (SELECT 1) AS one LEFT JOIN {table} AS l FORCE INDEX (PRIMARY) ON l.election = {election}"
    );
    // Of no other column, which would lead to the row itself, and lock it.
    let hold = format!(
        "SELECT 'current' AS answer FROM {table} AS l FORCE INDEX (term) \
         WHERE l.election = {election} AND l.token = {token} LOCK IN SHARE MODE"
    );
    Guard {
        dialect: Dialect::Mysql,
        table: table.to_owned(),
        check,
        hold,
    }
}

/// What a table has to be like. Of its columns: name, type, collation, characters, key; and the table's engine.
pub(super) fn shape(database: &str, table: &str) -> String {
    let (database, table) = (text(database), text(table));
    format!(
        "SELECT c.COLUMN_NAME, c.DATA_TYPE, c.COLLATION_NAME, c.CHARACTER_MAXIMUM_LENGTH, c.COLUMN_KEY, t.ENGINE \
         FROM information_schema.COLUMNS AS c JOIN information_schema.TABLES AS t \
         ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME \
         WHERE c.TABLE_SCHEMA = {database} AND c.TABLE_NAME = {table}"
    )
}

/// Everything that an election does, on a record that no election can have, and undone in the same breath. The
/// answers are those of [`PROBED`].
pub(super) fn probe(table: &str, claim: &Claim<'_>, next: Token) -> String {
    let record = |token: Token, attempt| Record {
        instance: claim.owner.instance.as_str().to_owned(),
        nonce: claim.owner.nonce,
        token: token.number(),
        attempt,
        expires_at: 0,
    };
    let stranger = Owner {
        nonce: !claim.owner.nonce,
        ..claim.owner.clone()
    };
    let strange = Claim {
        owner: &stranger,
        ..*claim
    };
    let taken = Claim {
        token: next,
        ..*claim
    };
    let expire = format!(
        "UPDATE {table} FORCE INDEX (PRIMARY) SET expires_at = 0 WHERE election = {}",
        text(claim.election)
    );
    [
        "START TRANSACTION".to_owned(),
        begin(table, claim),
        renew(table, claim),
        renew(table, &strange),
        expire,
        take_over(table, &record(claim.token, claim.attempt), &taken),
        take_over(table, &record(claim.token, claim.attempt), &taken),
        read(table, claim.election),
        "ROLLBACK".to_owned(),
    ]
    .join("; ")
}

/// How many rows each statement of the probe finds where conditions are honoured.
pub(super) const PROBED: [u64; 9] = [0, 1, 1, 0, 1, 1, 0, 0, 0];

/// What makes a session of ours behave the same on every server.
pub(super) fn session(wait: Duration, mariadb: bool) -> String {
    format!(
        "{}; SET SESSION completion_type = 'NO_CHAIN'; ROLLBACK; SET NAMES utf8mb4; \
         SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE; \
         SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'; \
         SELECT @@global.read_only, @@global.innodb_read_only",
        limit(wait, mariadb)
    )
}

/// Ends what takes longer, be it that it waits for somebody's lock: what nobody waits for any more must not be
/// done later. Sent before each request, in one piece with it.
pub(super) fn limit(wait: Duration, mariadb: bool) -> String {
    // Whole seconds, and the server looks once in each: one less, and at least one.
    let seconds = wait.as_secs().saturating_sub(1).max(1);
    let limit =
        format!("SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}");
    if mariadb {
        // To the millisecond, whatever it waits for.
        format!("{limit}, max_statement_time = {:.3}", wait.as_secs_f64())
    } else {
        // Of reads only.
        format!("{limit}, max_execution_time = {}", wait.as_millis())
    }
}

fn asked(claim: &Claim<'_>) -> String {
    format!("{NOW} + {}", micros(claim.duration))
}

/// What other processes wrote for the same owner is not shortened. A lease that may be taken over has no more left.
fn until(claim: &Claim<'_>) -> String {
    let asked = asked(claim);
    if claim.alone {
        asked
    } else {
        format!("GREATEST(expires_at, {asked})")
    }
}

fn values(claim: &Claim<'_>, until: &str) -> String {
    format!(
        "instance = {}, nonce = {}, token = {}, attempt = {}, expires_at = {until}",
        text(claim.owner.instance.as_str()),
        claim.owner.nonce,
        claim.token,
        claim.attempt,
    )
}

fn term(election: &str, owner: &Owner, token: Token) -> String {
    format!(
        "election = {} AND token = {token} AND nonce = {} AND instance = {}",
        text(election),
        owner.nonce,
        text(owner.instance.as_str())
    )
}

fn text(text: &str) -> String {
    let mut digits = String::from("_utf8mb4 X'");
    for byte in text.bytes() {
        let _ = write!(digits, "{byte:02X}");
    }
    digits.push('\'');
    digits
}

/// Up, never down: a lease must not end before its leader believes so.
fn micros(duration: Duration) -> u128 {
    duration.as_nanos().div_ceil(1_000)
}

impl Record {
    pub fn is_of(&self, owner: &Owner) -> bool {
        self.nonce == owner.nonce && self.instance == owner.instance.as_str()
    }

    /// Whether [`release`] has written it, of this term.
    pub fn is_released(&self, token: Token) -> bool {
        self.token == token.number() && self.instance.is_empty() && self.expires_at == 0
    }
}
