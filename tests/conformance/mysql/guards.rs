//! What a transaction of an application's says so that it does not outlive a term.

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use whenleader::backend::{Dialect, Guard};
use whenleader::lease::{ElectionName, Token};

use super::TABLE;
use super::database::Database;
use crate::suite::{Client, LONG, SHORT, held, name};

fn guard(client: &Client, election: &ElectionName, token: Token) -> Guard {
    let guard = client.backend.guard(election, token);
    let guard = guard.expect("it has transactions");
    assert_eq!(guard.dialect, Dialect::Mysql);
    guard
}

fn beside(token: Token, step: i64) -> Token {
    Token::new(token.number().checked_add_signed(step).unwrap()).unwrap()
}

async fn word(connection: &mut Conn, statement: &str) -> Option<String> {
    let rows: Vec<String> = connection
        .query(statement)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
    assert!(rows.len() <= 1, "{rows:?}");
    rows.into_iter().next()
}

async fn client(database: &Database, id: &str) -> Client {
    Client::new(&database.url(), id).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_says_what_became_of_a_term() {
    let Some(database) = Database::new("a_check_says_what_became_of_a_term").await else {
        return;
    };
    let (a, b) = (client(&database, "a").await, client(&database, "b").await);
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let check = async |token| {
        let mut connection = database.connect().await;
        let word = word(&mut connection, &guard(&a, &election, token).check).await;
        word.expect("a row")
    };
    assert_eq!(check(token).await, "current");
    assert_eq!(check(beside(token, 1)).await, "older");
    assert_eq!(check(beside(token, -1)).await, "taken");
    assert!(a.release(&election, token).await);
    assert_eq!(check(token).await, "released");
    let next = b.win(&election, SHORT / 10).await;
    assert_eq!(check(token).await, "taken");
    tokio::time::sleep(SHORT / 5).await;
    assert_eq!(check(next).await, "expired");
    database.sql(&format!("DELETE FROM {TABLE}")).await;
    assert_eq!(check(token).await, "none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_lets_renewals_pass_in_every_isolation_and_any_number_holds_it() {
    let test = "what_is_held_lets_renewals_pass_in_every_isolation";
    let Some(database) = Database::new(test).await else {
        return;
    };
    let (a, b) = (client(&database, "a").await, client(&database, "b").await);
    for level in [
        "READ UNCOMMITTED",
        "READ COMMITTED",
        "REPEATABLE READ",
        "SERIALIZABLE",
    ] {
        let election = name(level);
        let token = a.win(&election, LONG).await;
        let hold = guard(&a, &election, token).hold;
        let mut holders = Vec::new();
        for _ in 0..2 {
            let mut holder = database.connect().await;
            let level = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            holder.query_drop(level).await.unwrap();
            holder.query_drop("START TRANSACTION").await.unwrap();
            // Its view of things is older than the renewals to come.
            holder.query_drop("SELECT 1").await.unwrap();
            holders.push(holder);
        }
        for _ in 0..5 {
            assert_eq!(held(a.renew(&election, LONG, token).await), token);
        }
        for holder in &mut holders {
            assert_eq!(
                word(holder, &hold).await.as_deref(),
                Some("current"),
                "{level}"
            );
        }
        for _ in 0..5 {
            assert_eq!(
                held(a.renew(&election, LONG, token).await),
                token,
                "{level}"
            );
        }
        for mut holder in holders {
            holder.query_drop("COMMIT").await.unwrap();
        }
        assert!(a.release(&election, token).await);
        assert!(b.win(&election, LONG).await > token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_that_was_taken_over_cannot_be_held_whatever_the_transaction_has_seen() {
    let test = "a_term_that_was_taken_over_cannot_be_held";
    let Some(database) = Database::new(test).await else {
        return;
    };
    let (a, b) = (client(&database, "a").await, client(&database, "b").await);
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let guard = guard(&a, &election, token);
    let mut late = database.connect().await;
    late.query_drop("START TRANSACTION").await.unwrap();
    // It goes on seeing this.
    assert_eq!(
        word(&mut late, &guard.check).await.as_deref(),
        Some("current")
    );
    assert!(a.release(&election, token).await);
    b.win(&election, LONG).await;
    assert_eq!(
        word(&mut late, &guard.check).await.as_deref(),
        Some("current")
    );
    assert_eq!(word(&mut late, &guard.hold).await, None);
    late.query_drop("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_means_the_same_under_all_settings_of_a_session() {
    let Some(database) = Database::new("it_means_the_same_under_all_settings").await else {
        return;
    };
    let url = format!("{}?table=odd%20%3F%3Aa%241%27%22%C3%A9", database.url());
    let client = Client::new(&url, "a").await;
    let election = name("what? :name $1 '\\ ü");
    let token = client.win(&election, LONG).await;
    let guard = guard(&client, &election, token);
    for settings in [
        "SET SESSION sql_mode = ''",
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE'",
        "SET SESSION time_zone = '+05:45'",
        "SET SESSION autocommit = 0",
        "USE mysql",
    ] {
        let mut connection = database.connect().await;
        connection.query_drop(settings).await.unwrap();
        for statement in [&guard.check, &guard.hold] {
            let word = word(&mut connection, statement).await;
            assert_eq!(word.as_deref(), Some("current"), "{settings}");
        }
    }
}
