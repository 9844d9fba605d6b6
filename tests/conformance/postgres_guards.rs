//! What a transaction of an application's says on PostgreSQL so that it does not outlive a term.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use whenleader::backend::{Dialect, Guard};
use whenleader::lease::{ElectionName, Token};

use crate::postgres::{Fresh, Prompt, number};
use crate::suite::{Client, Fixture as _, LONG, SHORT, denied, held, name, open};

type Store = Fresh<false>;

fn guard(client: &Client, election: &ElectionName, token: Token) -> Guard {
    let guard = client.backend.guard(election, token);
    let guard = guard.expect("PostgreSQL has transactions");
    assert_eq!(guard.dialect, Dialect::Postgres);
    guard
}

fn beside(token: Token, step: i64) -> Token {
    Token::new(token.number().checked_add_signed(step).unwrap()).unwrap()
}

/// The first word of the answer.
async fn word(prompt: &Prompt, statement: &str) -> Option<String> {
    let answer = prompt.ask(statement).await?;
    Some(answer.split(' ').next().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_says_what_became_of_a_term() {
    let Some(store) = Store::start("a_check_says_what_became_of_a_term").await else {
        return;
    };
    let (a, b) = (store.client("a").await, store.client("b").await);
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let check = async |token| word(&store.prompt, &guard(&a, &election, token).check).await;
    assert_eq!(check(token).await.as_deref(), Some("current"));
    assert_eq!(check(beside(token, 1)).await.as_deref(), Some("older"));
    assert_eq!(check(beside(token, -1)).await.as_deref(), Some("taken"));
    assert!(a.release(&election, token).await);
    assert_eq!(check(token).await.as_deref(), Some("released"));
    let next = b.win(&election, SHORT / 10).await;
    assert_eq!(check(token).await.as_deref(), Some("taken"));
    tokio::time::sleep(SHORT / 5).await;
    assert_eq!(check(next).await.as_deref(), Some("expired"));
    store.forget(&election).await;
    assert_eq!(check(token).await.as_deref(), Some("none"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_whether_it_is_within_a_transaction_and_in_the_same_one() {
    let Some(store) = Store::start("it_says_whether_it_is_within_a_transaction").await else {
        return;
    };
    let a = store.client("a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let guard = guard(&a, &election, token);
    let ask = async |statement: &str| {
        let answer = store.prompt.ask(statement).await.expect("a row");
        let words: Vec<_> = answer.split(' ').map(str::to_owned).collect();
        <[String; 3]>::try_from(words).expect("three words")
    };
    for statement in [&guard.check, &guard.hold] {
        assert_eq!(ask(statement).await[1], "outside");
        store.prompt.run("BEGIN").await;
        let [_, place, began] = ask(statement).await;
        assert_eq!(place, "inside");
        assert_eq!(ask(statement).await[2], began);
        store.prompt.run("COMMIT; BEGIN").await;
        assert_ne!(ask(statement).await[2], began);
        store.prompt.run("COMMIT").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_bars_takeovers_and_no_renewals_in_every_isolation() {
    let test = "what_is_held_bars_takeovers_and_no_renewals_in_every_isolation";
    let Some(store) = Store::start(test).await else {
        return;
    };
    let (a, b) = (store.client("a").await, store.client("b").await);
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let election = name(level);
        let token = a.win(&election, LONG).await;
        let hold = guard(&a, &election, token).hold;
        // Two at once, of which one has seen the row long before.
        let second = Prompt::at(store.server.url()).await;
        for prompt in [&store.prompt, &second] {
            let begin = format!(
                "BEGIN ISOLATION LEVEL {level}; SELECT FROM {}",
                store.table()
            );
            prompt.run(&begin).await;
        }
        for _ in 0..10 {
            assert_eq!(held(a.renew(&election, LONG, token).await), token);
        }
        for prompt in [&store.prompt, &second] {
            assert_eq!(
                word(prompt, &hold).await.as_deref(),
                Some("current"),
                "{level}"
            );
        }
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        assert!(a.release(&election, token).await);
        for prompt in [&store.prompt, &second] {
            let (leader, remaining) = denied(b.campaign(&election, LONG).await);
            assert_eq!(leader, None, "{level}");
            assert!(remaining.is_some_and(|rest| rest < SHORT), "{remaining:?}");
            prompt.run("COMMIT").await;
        }
        assert!(b.win(&election, LONG).await > token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_that_was_taken_over_cannot_be_held_in_any_isolation() {
    let test = "a_term_that_was_taken_over_cannot_be_held_in_any_isolation";
    let Some(store) = Store::start(test).await else {
        return;
    };
    let (a, b) = (store.client("a").await, store.client("b").await);
    for (level, code) in [
        ("READ COMMITTED", None),
        ("REPEATABLE READ", Some("40001")),
        ("SERIALIZABLE", Some("40001")),
    ] {
        let election = name(level);
        let token = a.win(&election, LONG).await;
        let hold = guard(&a, &election, token).hold;
        let begin = format!(
            "BEGIN ISOLATION LEVEL {level}; SELECT FROM {}",
            store.table()
        );
        store.prompt.run(&begin).await;
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        assert!(a.release(&election, token).await);
        let next = b.win(&election, LONG).await;
        assert_eq!(held(b.renew(&election, LONG, next).await), next);
        let answer = store.prompt.try_run(&hold).await;
        match (code, answer) {
            (None, Ok(rows)) => assert!(rows.is_empty(), "{rows:?}"),
            (Some(code), Err(error)) => {
                assert_eq!(error.code().map(SqlState::code), Some(code));
            }
            (_, other) => panic!("{level}: {other:?}"),
        }
        store.prompt.run("ROLLBACK").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_that_is_under_way_is_not_waited_for() {
    let Some(store) = Store::start("a_takeover_that_is_under_way").await else {
        return;
    };
    let a = store.client("a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let rival = Prompt::at(store.server.url()).await;
    rival
        .run(&format!("BEGIN; SELECT FROM {} FOR UPDATE", store.table()))
        .await;
    let hold = guard(&a, &election, token).hold;
    let asked = tokio::time::timeout(Duration::from_secs(5), store.prompt.run(&hold)).await;
    assert!(asked.expect("an answer at once").is_empty());
    rival.run("ROLLBACK").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_means_the_same_under_all_settings_of_a_session() {
    let Some(store) = Store::start("it_means_the_same_under_all_settings").await else {
        return;
    };
    let schema = format!("odd ?:a$1 \\'\"é{}", number());
    let quoted = schema.replace('"', "\"\"");
    store
        .prompt
        .run(&format!("CREATE SCHEMA \"{quoted}\""))
        .await;
    let table: String = url::form_urlencoded::byte_serialize(schema.as_bytes()).collect();
    let table = table.replace('+', "%20");
    let sign = if store.server.url().contains('?') {
        '&'
    } else {
        '?'
    };
    let client = Client {
        backend: open(&format!("{}{sign}table={table}.leases", store.server.url())),
        owner: crate::suite::owner("a"),
    };
    client.backend.prepare().await.unwrap();
    let election = name("what? :name $1 '\\ ü");
    let token = client.win(&election, LONG).await;
    let guard = guard(&client, &election, token);
    for settings in [
        "SET standard_conforming_strings = off",
        "SET client_encoding = LATIN1",
        "SET search_path = ''",
        "SET intervalstyle = 'iso_8601'; SET datestyle = 'German'; SET timezone = 'Asia/Kathmandu'",
        // Functions that somebody has put in the way.
        "CREATE SCHEMA trap; CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE sql AS \
         'SELECT NULL::timestamptz'; SET search_path = trap, pg_catalog",
        "SET default_transaction_isolation = 'serializable'",
    ] {
        let prompt = Prompt::at(store.server.url()).await;
        prompt.run(settings).await;
        for statement in [&guard.check, &guard.hold] {
            let word = word(&prompt, statement).await;
            assert_eq!(word.as_deref(), Some("current"), "{settings}");
        }
    }
}
