//! PostgreSQL when servers die, stand still or become others, and when networks do what they do.

use std::time::{Duration, Instant};

use serde_json::json;
use whenleader::backend::StoreOptions;
use whenleader::lease::FailureKind::{Ambiguous, Transient};
use whenleader::lease::{Hint, Outcome};

use crate::postgres::{Fresh, Prompt, literal, number, pooled, with_schema};
use crate::postgres_alone::{fails, impatient};
use crate::suite::{Client, Fixture, LONG, SHORT, denied, held, leading, name, open_with, patient};
use crate::support::{Kind, Proxy, Server, Trouble, eventually};

type Store = Fresh<false>;

/// The store, and a proxy in front of its server.
async fn behind_a_proxy(test: &str) -> Option<(Store, Proxy, String)> {
    let store = Store::start(test).await?;
    let proxy = Proxy::to(store.server.port).await;
    let port = store.server.port.to_string();
    // A proxy that cuts speaks no TLS, so that what is cut is a whole message.
    let url = store.url().replacen(&port, &proxy.port.to_string(), 1);
    Some((store, proxy, format!("{url}&sslmode=disable")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_came_counts_for_nothing_and_the_next_attempt_begins_a_new_term() {
    let Some((store, proxy, url)) = behind_a_proxy("an_answer_that_never_came").await else {
        return;
    };
    let election = name("leader");
    let (near, far) = (store.client("near").await, impatient(&url));
    for trouble in [
        Trouble::CutAnswers,
        Trouble::HoldAnswers,
        Trouble::CutAfter(60),
    ] {
        let first = far.win(&election, LONG).await;
        proxy.set(trouble);
        let error = far
            .attempt(&election, LONG, None)
            .await
            .expect_err("no answer");
        assert_eq!(error.kind, Ambiguous, "{trouble:?}: {error}");
        let lost = near.leader(&election).await.expect("it was applied");
        assert!(lost.token > first, "{trouble:?}");
        proxy.set(Trouble::None);
        let next = far.win(&election, LONG).await;
        assert!(next > lost.token, "{trouble:?}");
        assert!(far.release(&election, next).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_given_up_mixes_up_no_later_answer() {
    let Some((_store, proxy, url)) = behind_a_proxy("an_attempt_that_was_given_up_mixes_up").await
    else {
        return;
    };
    let client = Client::new(&url, "a").await;
    let mut tokens = Vec::new();
    for number in 0..10 {
        tokens.push(client.win(&name(&format!("e{number}")), LONG).await);
    }
    proxy.set(Trouble::Delay(Duration::from_millis(20)));
    for round in 0..10_u64 {
        for (number, token) in tokens.iter().enumerate() {
            let election = name(&format!("e{number}"));
            let attempt = client.attempt(&election, LONG, Some(*token));
            let patience = Duration::from_millis(1 + round * 13 % 60);
            if let Ok(outcome) = tokio::time::timeout(patience, attempt).await {
                assert_eq!(held(outcome.unwrap()), *token);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_died_idle_is_replaced_within_the_attempt() {
    let Some((store, proxy, url)) = behind_a_proxy("a_connection_that_died_idle").await else {
        return;
    };
    let application = format!("idle {}", number());
    let url = format!("{url}&application_name={}", application.replace(' ', "%20"));
    let client = Client::new(&url, "a").await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    for wait in [0, 50] {
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(wait)).await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }
    // An administrator may do it too, with a last word.
    let kill = format!(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = {}",
        literal(&application)
    );
    for wait in [0, 50] {
        assert_eq!(store.prompt.ask(&kill).await.as_deref(), Some("t"));
        tokio::time::sleep(Duration::from_millis(wait)).await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }
    assert_eq!(store.prompt.ask(&kill).await.as_deref(), Some("t"));
    assert!(client.release(&election, token).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_other_end_vanished_costs_half_of_one_attempt() {
    let Some((_store, proxy, url)) = behind_a_proxy("a_connection_whose_other_end_vanished").await
    else {
        return;
    };
    let client = impatient(&url);
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    let connections = proxy.connections();
    proxy.freeze();
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
    assert_eq!(proxy.connections(), connections + 1);
    // Whoever gave up did not wait in vain: the next one has a new connection at once.
    proxy.freeze();
    let attempt = client.attempt(&election, LONG, Some(token));
    let patience = Duration::from_millis(200);
    assert!(tokio::time::timeout(patience, attempt).await.is_err());
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
    assert_eq!(proxy.connections(), connections + 2);
    // A release that was sent twice is one that was done.
    proxy.set(Trouble::HoldAnswers);
    let release = client.release(&election, token);
    let thaw = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.freeze();
        proxy.set(Trouble::None);
    };
    let (released, ()) = tokio::join!(release, thaw);
    assert!(released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_an_answer_is_replaced_after_the_patience_of_the_shortest_attempt() {
    let Some((_store, proxy, url)) = behind_a_proxy("a_connection_without_an_answer").await else {
        return;
    };
    let client = patient(&url).await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    proxy.freeze();
    let begun = Instant::now();
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_given_up_leaves_no_connection_to_those_who_come_after() {
    let Some((_store, proxy, url)) = behind_a_proxy("a_start_that_is_given_up").await else {
        return;
    };
    let mut options = StoreOptions::new(".");
    options.request_timeout = Duration::from_secs(60);
    options.patience = Duration::from_secs(30);
    let client = Client::of(open_with(&url, &options), "a").await;
    proxy.freeze();
    let start = client.backend.prepare();
    let patience = Duration::from_millis(300);
    assert!(tokio::time::timeout(patience, start).await.is_err());
    let begun = Instant::now();
    client.win(&name("leader"), LONG).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_says_when_it_is_blind_and_hears_again_when_it_is_back() {
    let Some((store, proxy, url)) = behind_a_proxy("a_watch_says_when_it_is_blind").await else {
        return;
    };
    let election = name("leader");
    let (near, far) = (store.client("near").await, impatient(&url));
    let mut hearing = far.watch(&election).await;
    for trouble in [Trouble::Refuse, Trouble::HalfOpen] {
        proxy.set(trouble);
        if trouble == Trouble::Refuse {
            proxy.cut();
        }
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        proxy.set(Trouble::None);
        proxy.cut();
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        let token = near.win(&election, LONG).await;
        near.release(&election, token).await;
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_died_is_unreachable_and_knows_all_when_it_is_back() {
    let test = "a_server_that_died_is_unreachable";
    let Some(server) = Server::own(test, Kind::Postgres, &[]) else {
        return;
    };
    let election = name("leader");
    let client = impatient(server.url());
    client.backend.prepare().await.unwrap();
    let mut hearing = client.watch(&election).await;
    let token = client.win(&election, LONG).await;
    server.kill().await;
    let error = client
        .attempt(&election, LONG, Some(token))
        .await
        .unwrap_err();
    assert_eq!(error.code, "unreachable", "{error}");
    let error = fails(&client, Transient, "unreachable").await;
    assert!(error.message.contains(&server.port.to_string()), "{error}");
    hearing.until("Blind", |hint| hint == Hint::Blind).await;
    server.restart().await;
    // What was answered was on disk.
    let renewed = eventually("it is back", async || {
        client.attempt(&election, LONG, Some(token)).await.ok()
    })
    .await;
    assert_eq!(held(renewed), token);
    hearing
        .until("Watching", |hint| hint == Hint::Watching)
        .await;
    // One that stands still answers nobody.
    server.freeze().await;
    let error = client
        .attempt(&election, LONG, Some(token))
        .await
        .unwrap_err();
    assert!(["timeout", "unreachable"].contains(&error.code), "{error}");
    let start = Instant::now();
    let error = client
        .attempt(&election, LONG, Some(token))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.code),
        (Transient, "unreachable"),
        "{error}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    server.thaw().await;
    let renewed = eventually("it goes on", async || {
        client.attempt(&election, LONG, Some(token)).await.ok()
    })
    .await;
    assert_eq!(held(renewed), token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_no_attempt_and_of_several_servers_the_primary_is_found() {
    let test = "a_standby_takes_no_attempt";
    let Some(server) = Server::own(test, Kind::Postgres, &[]) else {
        return;
    };
    let election = name("leader");
    let direct = Client::new(server.url(), "direct").await;
    let token = direct.win(&election, LONG).await;
    let told = server.ask(json!({ "do": "standby" })).await;
    let (port, standby_url) = (
        told["port"].as_u64().unwrap(),
        told["url"].as_str().unwrap(),
    );

    // Who leads there is old news, and nobody can.
    let standby = impatient(standby_url);
    fails(&standby, Transient, "read-only").await;
    let error = standby.backend.prepare().await.unwrap_err();
    assert_eq!(
        (error.kind, error.code),
        (Transient, "read-only"),
        "{error}"
    );
    let error = standby.backend.peek(&election).await.unwrap_err();
    assert_eq!(
        (error.kind, error.code),
        (Transient, "read-only"),
        "{error}"
    );

    // The standby is named first, and is passed over.
    let both = |first: u64, second: u64| {
        format!("postgres://postgres:tests@127.0.0.1:{first},127.0.0.1:{second}/postgres")
    };
    let old = u64::from(server.port);
    let client = impatient(&both(port, old));
    client.backend.prepare().await.unwrap();
    assert_eq!(
        client.leader(&election).await,
        Some(leading(&direct, token))
    );
    let mut hearing = client.watch(&election).await;
    assert!(direct.release(&election, token).await);
    hearing.until("Free", |hint| hint == Hint::Free).await;
    let token = client.win(&election, LONG).await;

    // The primary stands still, and its standby takes its place: what was confirmed there is known.
    let caught_up = Prompt::at(standby_url).await;
    eventually("the standby has the term", async || {
        let known = caught_up.ask("SELECT token FROM whenleader_leases").await;
        (known == Some(token.to_string())).then_some(())
    })
    .await;
    server.freeze().await;
    server.ask(json!({ "do": "promote" })).await;
    let renewed = eventually("it leads on at the new primary", async || {
        client.attempt(&election, LONG, Some(token)).await.ok()
    })
    .await;
    assert_eq!(held(renewed), token);
    hearing.until("Blind", |hint| hint == Hint::Blind).await;
    hearing
        .until("Watching", |hint| hint == Hint::Watching)
        .await;
    let other = impatient(&both(old, port));
    other.backend.prepare().await.unwrap();
    let (leader, _) = denied(other.campaign(&election, LONG).await);
    assert_eq!(leader, Some(leading(&client, token)));
    assert!(client.release(&election, token).await);
    hearing.until("Free", |hint| hint == Hint::Free).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_whose_server_connections_die_loses_one_attempt_at_most() {
    let Some(store) = Store::start("a_pooler_whose_server_connections_die").await else {
        return;
    };
    let election = name("leader");
    let application = format!("pooled {}", number());
    let url = with_schema(pooled(store.server).await, &store.schema);
    let url = format!("{url}&application_name={}", application.replace(' ', "%20"));
    let client = Client::new(&url, "a").await;
    let token = client.win(&election, LONG).await;
    let kill = format!(
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = {}",
        literal(&application)
    );
    assert_ne!(store.prompt.ask(&kill).await.as_deref(), Some("0"));
    eventually("it goes on", async || {
        client.attempt(&election, LONG, Some(token)).await.ok()
    })
    .await;
    assert_eq!(
        client.leader(&election).await,
        Some(leading(&client, token))
    );
}

/// Not asserted but for what is surely wrong: for whoever changes the statements, and for the documents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_is_one_round_trip() {
    let Some((store, proxy, url)) = behind_a_proxy("a_renewal_is_one_round_trip").await else {
        return;
    };
    let election = name("leader");
    let (a, b) = (Client::new(&url, "a").await, store.client("b").await);
    let token = a.win(&election, LONG).await;
    let measured = async |what: &str, client: &Client, term, times: u32| {
        let mut all = Vec::new();
        for _ in 0..times {
            let start = Instant::now();
            let _ = client.attempt(&election, LONG, term).await.unwrap();
            all.push(start.elapsed());
        }
        all.sort();
        println!(
            "FIGURES: {what}: min {:?} p50 {:?}",
            all[0],
            all[all.len() / 2]
        );
        all[0]
    };
    measured("renewal on loopback", &a, Some(token), 200).await;
    measured("denied campaign on loopback", &b, None, 200).await;
    let delay = Duration::from_millis(100);
    proxy.set(Trouble::Delay(delay));
    for (what, term) in [("renewal", Some(token)), ("campaign", None)] {
        let fastest = measured(&format!("{what}, answers 100 ms late"), &a, term, 5).await;
        assert!(fastest < delay * 2, "{what}: {fastest:?}");
    }
    proxy.set(Trouble::None);

    let mut times = Vec::new();
    let mut holder = (&a, a.win(&election, LONG).await);
    let mut hearings = (a.watch(&election).await, b.watch(&election).await);
    for round in 0..40 {
        let (next, hearing) = if round % 2 == 0 {
            (&b, &mut hearings.1)
        } else {
            (&a, &mut hearings.0)
        };
        let start = Instant::now();
        let release = holder.0.release(&election, holder.1);
        // Hints of earlier rounds may wait to be heard.
        let hand_over = async {
            loop {
                hearing.until("Free", |hint| hint == Hint::Free).await;
                if let Outcome::Held { token, .. } = next.campaign(&election, LONG).await {
                    return token;
                }
            }
        };
        let (released, token) = tokio::join!(release, hand_over);
        assert!(released);
        times.push(start.elapsed());
        holder = (next, token);
    }
    times.sort();
    println!(
        "FIGURES: hand-over by NOTIFY: min {:?} p50 {:?} max {:?}",
        times[0], times[20], times[39]
    );

    let mut times = Vec::new();
    for _ in 0..5 {
        let election = name(&format!("crash-{}", number()));
        let start = Instant::now();
        a.win(&election, SHORT).await;
        b.take_over(&election, SHORT).await;
        times.push(start.elapsed().as_secs_f64() / SHORT.as_secs_f64());
    }
    println!("FIGURES: takeover after a crash, in leases: {times:.3?}");
}
