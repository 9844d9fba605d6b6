//! Who waits for whom: transactions of an application may lock the rows of elections.

use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use whenleader::backend::{self, StoreOptions};
use whenleader::clock::SystemClock;
use whenleader::lease::FailureKind::Transient;
use whenleader::lease::Token;

use super::TABLE;
use super::database::{Database, is_mysql};
use crate::suite::{Client, LONG, SHORT, denied, held, leading, name, owner};

/// How long an application's transaction goes on, where somebody waits for it.
const WHILE: Duration = Duration::from_millis(700);

async fn begin(database: &Database, lock: &str) -> Conn {
    let mut connection = database.connect().await;
    connection.query_drop("START TRANSACTION").await.unwrap();
    connection.query_drop(lock).await.unwrap();
    connection
}

async fn end(mut connection: Conn) {
    connection.query_drop("ROLLBACK").await.unwrap();
}

/// The whole row, as nobody should lock it.
fn the_row() -> String {
    format!("SELECT * FROM {TABLE} FOR UPDATE")
}

/// As a leader's own transaction keeps its term from being taken over.
fn the_term(client: &Client, token: Token) -> String {
    let guard = client.backend.guard(&name("leader"), token);
    guard.expect("it has transactions").hold
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_campaign_neither_locks_nor_waits() {
    let Some(database) = Database::new("a_denied_campaign_neither_locks_nor_waits").await else {
        return;
    };
    let (a, b) = (
        Client::new(&database.url(), "a").await,
        Client::new(&database.url(), "b").await,
    );
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let locked = begin(&database, &the_row()).await;
    let start = Instant::now();
    for _ in 0..20 {
        let (leader, _) = denied(b.campaign(&election, LONG).await);
        assert_eq!(leader, Some(leading(&a, token)));
        assert_eq!(b.leader(&election).await, leader);
    }
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    end(locked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_holds_the_term_lets_renewals_and_the_release_pass_and_no_takeover() {
    let test =
        "a_transaction_that_holds_the_term_lets_renewals_and_the_release_pass_and_no_takeover";
    let Some(database) = Database::new(test).await else {
        return;
    };
    let (a, b) = (
        Client::new(&database.url(), "a").await,
        Client::new(&database.url(), "b").await,
    );
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let holder = begin(&database, &the_term(&a, token)).await;
    for _ in 0..5 {
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        denied(b.campaign(&election, LONG).await);
    }
    assert!(a.release(&election, token).await);
    // Now it is free, and waits for the transaction all the same.
    let start = Instant::now();
    let (next, ()) = tokio::join!(b.win(&election, LONG), async {
        tokio::time::sleep(WHILE).await;
        end(holder).await;
    });
    assert!(start.elapsed() >= WHILE, "{:?}", start.elapsed());
    assert!(next > token);
    // A transaction that begins too late finds no term to hold.
    let mut late = database.connect().await;
    let found: Vec<String> = late.query(the_term(&a, token)).await.unwrap();
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_waits_for_a_lock_keeps_no_other_election_waiting() {
    let test = "an_attempt_that_waits_for_a_lock_keeps_no_other_election_waiting";
    let Some(database) = Database::new(test).await else {
        return;
    };
    let client = Client::new(&database.url(), "a").await;
    let (one, two) = (name("one"), name("two"));
    let (first, second) = (client.win(&one, LONG).await, client.win(&two, LONG).await);
    let lock = format!("SELECT * FROM {TABLE} WHERE election = 'one' FOR UPDATE");
    let locked = begin(&database, &lock).await;
    let others = async {
        let start = Instant::now();
        while start.elapsed() < WHILE {
            let sent = Instant::now();
            assert_eq!(held(client.renew(&two, LONG, second).await), second);
            assert!(sent.elapsed() < WHILE, "{:?}", sent.elapsed());
        }
        end(locked).await;
    };
    let (renewed, ()) = tokio::join!(client.renew(&one, LONG, first), others);
    assert_eq!(held(renewed), first);
}

/// How long an asker waits at least whose statements surely end when he gives up.
fn exact() -> Duration {
    if is_mysql() {
        Duration::from_secs(5)
    } else {
        Duration::from_millis(800)
    }
}

/// One whose askers wait for so long.
async fn patient(database: &Database, patience: Duration) -> Client {
    let mut options = StoreOptions::new(".");
    options.request_timeout = patience;
    options.connect_timeout = patience;
    let backend =
        backend::open(&database.url(), &options, std::sync::Arc::new(SystemClock)).unwrap();
    backend.prepare().await.unwrap();
    Client {
        backend,
        owner: owner("patient"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_given_up_while_it_waited_for_a_lock_never_wins_later() {
    let test = "an_attempt_that_was_given_up_while_it_waited_for_a_lock_never_wins_later";
    let Some(database) = Database::new(test).await else {
        return;
    };
    let patience = exact();
    let impatient = patient(&database, patience).await;
    let other = Client::new(&database.url(), "b").await;
    for existing in [true, false] {
        let election = name(if existing { "old" } else { "new" });
        let lock = if existing {
            let token = other.win(&election, LONG).await;
            other.release(&election, token).await;
            the_row()
        } else {
            // An election that somebody else is about to make, and does not.
            format!(
                "INSERT INTO {TABLE} SET election = 'new', instance = 'x', nonce = 1, token = 1, attempt = 1, \
                 expires_at = 0"
            )
        };
        let locked = begin(&database, &lock).await;
        let attempt = impatient.attempt(&election, LONG, None);
        let given_up = tokio::time::timeout(patience, attempt).await;
        if let Ok(outcome) = given_up {
            outcome.expect_err("locked");
        }
        // The server has ended it by now, also while nobody has asked again.
        tokio::time::sleep(patience / 4).await;
        end(locked).await;
        tokio::time::sleep(patience).await;
        assert_eq!(other.leader(&election).await, None, "it won late");
        other.win(&election, LONG).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_stays_is_a_failure_that_passes() {
    let Some(database) = Database::new("a_lock_that_stays_is_a_failure_that_passes").await else {
        return;
    };
    let election = name("leader");
    let client = patient(&database, Duration::from_secs(5)).await;
    let token = client.win(&election, LONG).await;
    let table = format!("LOCK TABLES {TABLE} WRITE");
    for lock in [the_row(), table] {
        let mut locked = begin(&database, &lock).await;
        let renewal = client.attempt(&election, LONG, Some(token)).await;
        let error = renewal.expect_err("locked");
        assert_eq!(error.kind, Transient, "{error}");
        assert!(matches!(error.code, "locked" | "timeout"), "{error:?}");
        locked.query_drop("UNLOCK TABLES").await.unwrap();
        end(locked).await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }
}

/// Two attempts of one term, of which the first is sent again when it comes too late: it neither brings the
/// term back nor shortens it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_waited_while_its_term_ended_brings_nothing_back() {
    let test = "a_renewal_that_waited_while_its_term_ended_brings_nothing_back";
    let Some(database) = Database::new(test).await else {
        return;
    };
    let election = name("leader");
    let client = Client::new(&database.url(), "a").await;
    let token = client.win(&election, SHORT).await;
    let mut locked = begin(&database, &the_row()).await;
    let renewal = client.attempt(&election, LONG, Some(token));
    let meanwhile = async {
        tokio::time::sleep(WHILE).await;
        // What a release does.
        locked
            .query_drop(format!(
                "UPDATE {TABLE} SET instance = '', nonce = 0, expires_at = 0"
            ))
            .await
            .unwrap();
        locked.query_drop("COMMIT").await.unwrap();
    };
    let (renewal, ()) = tokio::join!(renewal, meanwhile);
    let (leader, remaining) = denied(renewal.expect("an answer"));
    assert_eq!((leader, remaining), (None, None));
    assert_eq!(client.leader(&election).await, None);
}
