//! What a transaction of the application's own says so that it does not outlive a term.
//!
//! No row beside that of the election is needed. Whoever holds that with FOR KEY SHARE bars a takeover, which locks
//! it FOR UPDATE, and lets renewals pass, which lock it FOR NO KEY UPDATE: so also in REPEATABLE READ and
//! SERIALIZABLE, where it is locked whatever renewals came since the snapshot, and cannot be
//! locked (error 40001) after a takeover. It is skipped if a takeover has just locked it. Many may hold it at once.

use std::fmt::Write as _;

use super::address::TableName;
use crate::backend::{Dialect, Guard};
use crate::lease::{ElectionName, Token};

/// Whether it is asked within a transaction that was begun, and when that began. Only in messages that hold one
/// simple statement: another protocol has several moments.
const TRANSACTION: &str = "' ', CASE WHEN pg_catalog.now() OPERATOR(pg_catalog.=) pg_catalog.statement_timestamp() \
     THEN 'outside' ELSE 'inside' END, ' ', pg_catalog.date_part('epoch', pg_catalog.now())::pg_catalog.text";
const EXPIRY: &str = "WHEN l.expires_at OPERATOR(pg_catalog.=) '-infinity'::pg_catalog.timestamptz THEN 'released' \
     WHEN l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'current' ELSE 'expired' END";

/// A `search_path` of the session changes nothing of what a name here means.
pub(super) fn of(table: &TableName, election: &ElectionName, token: Token) -> Guard {
    let quoted = table.quoted();
    let named = [table.schema.as_deref(), Some(&*table.name)];
    let named: Vec<_> = named.into_iter().flatten().map(identifier).collect();
    let (named, election) = (named.join("."), text(election.as_str()));
    let is_it = format!("l.election OPERATOR(pg_catalog.=) {election}");
    let check = format!(
        "SELECT pg_catalog.concat(CASE WHEN l.token IS NULL THEN 'none' \
         WHEN l.token OPERATOR(pg_catalog.<) '{token}'::pg_catalog.int8 THEN 'older' \
         WHEN l.token OPERATOR(pg_catalog.>) '{token}'::pg_catalog.int8 THEN 'taken' {EXPIRY}, {TRANSACTION}) AS answer \
         FROM (SELECT) AS always LEFT JOIN {named} AS l ON {is_it}"
    );
    // A snapshot knows no renewal that came after it, while the lock itself goes by what is there now.
    let hold = format!(
        "SELECT pg_catalog.concat(CASE WHEN pg_catalog.current_setting('transaction_isolation') \
         OPERATOR(pg_catalog.<>) 'read committed' THEN 'current' {EXPIRY}, {TRANSACTION}) AS answer FROM {named} AS l \
         WHERE {is_it} AND l.token OPERATOR(pg_catalog.=) '{token}'::pg_catalog.int8 FOR KEY SHARE OF l SKIP LOCKED"
    );
    Guard {
        dialect: Dialect::Postgres,
        table: quoted,
        check,
        hold,
    }
}

/// As bytes: whatever the client's encoding, and however it reads backslashes.
fn text(text: &str) -> String {
    let mut digits = String::new();
    for byte in text.bytes() {
        let _ = write!(digits, "{byte:02X}");
    }
    format!("pg_catalog.convert_from(pg_catalog.decode('{digits}', 'hex'), 'UTF8')")
}

fn identifier(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if name.chars().all(plain) {
        return format!("\"{name}\"");
    }
    let letters = name.chars().map(|letter| match letter {
        letter if plain(letter) => letter.to_string(),
        letter => format!("\\+{:06X}", u32::from(letter)),
    });
    format!("U&\"{}\"", letters.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_finds_a_placeholder_in_a_guard() {
        let table = TableName {
            schema: Some("a?b:c$1\"é".into()),
            name: "leases".into(),
        };
        let election = ElectionName::new("what? :name $1 '\\ ü").unwrap();
        let guard = of(&table, &election, Token::new(7).unwrap());
        assert_eq!(guard.table, "\"a?b:c$1\"\"é\".\"leases\"");
        for statement in [guard.check, guard.hold] {
            assert!(statement.is_ascii(), "{statement}");
            let casts_away = statement.replace("::pg_catalog", "");
            assert!(!casts_away.contains(['?', '$', ':', ';']), "{statement}");
            assert!(
                statement
                    .contains(r#"U&"a\+00003Fb\+00003Ac\+0000241\+000022\+0000E9"."leases" AS l"#)
            );
        }
    }
}
