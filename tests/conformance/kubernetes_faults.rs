//! Kubernetes Leases, on a stand-in that fails as no real API server can be made to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whenleader::backend::BackendError;
use whenleader::backend::kubernetes::{KubernetesOptions, Pod};
use whenleader::lease::FailureKind::{self, Ambiguous, Fatal, Transient};
use whenleader::lease::{Hint, Outcome, Token};

use crate::kubernetes::{open, options};
use crate::suite::{Client, Hearing, LONG, SHORT, denied, held, name};
use crate::support::{Answer, Fault, Proxy, StandIn, eventually};

const SECOND: Duration = Duration::from_secs(1);

fn at(standin: &StandIn) -> KubernetesOptions {
    let mut options = options(standin.kubeconfig(), "default");
    options.timeout = SECOND;
    options
}

async fn client(standin: &StandIn, id: &str) -> Client {
    Client::of(open(at(standin)), id).await
}

async fn fails(client: &Client, term: Option<Token>) -> BackendError {
    let election = name("leader");
    let attempt = client.attempt(&election, LONG, term);
    attempt.await.expect_err("a failure")
}

#[track_caller]
fn is(error: &BackendError, kind: FailureKind, code: &str) {
    assert_eq!((error.kind, error.code), (kind, code), "{error}");
}

fn lease(spec: &Value) -> Value {
    json!({ "spec": spec })
}

#[tokio::test]
async fn a_leader_writes_one_put_for_each_renewal_and_nothing_else() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    standin.forget_requests();
    for _ in 0..20 {
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
    }
    assert_eq!((standin.count("update"), standin.count("any")), (20, 20));
    // Also while it watches, as a candidate does.
    let _hearing = a.watch(&election).await;
    standin.forget_requests();
    for _ in 0..20 {
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
    }
    assert_eq!((standin.count("update"), standin.count("any")), (20, 20));
}

#[tokio::test]
async fn a_hand_over_that_a_watch_told_of_costs_one_put() {
    let standin = StandIn::start().await;
    let (a, b) = (client(&standin, "a").await, client(&standin, "b").await);
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let mut hearing = b.watch(&election).await;
    denied(b.campaign(&election, LONG).await);
    hearing
        .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
        .await;
    a.release(&election, token).await;
    hearing.until("Free", |hint| hint == Hint::Free).await;
    standin.forget_requests();
    b.win(&election, LONG).await;
    assert_eq!((standin.count("update"), standin.count("any")), (1, 1));
}

#[tokio::test]
async fn a_take_over_at_the_expiry_that_a_watch_observed_costs_one_put() {
    let standin = StandIn::start().await;
    let (a, b) = (client(&standin, "a").await, client(&standin, "b").await);
    let election = name("leader");
    a.win(&election, SECOND).await;
    let _hearing = b.watch(&election).await;
    denied(b.campaign(&election, LONG).await);
    tokio::time::sleep(SECOND + SECOND / 10).await;
    standin.forget_requests();
    b.win(&election, LONG).await;
    assert_eq!((standin.count("update"), standin.count("any")), (1, 1));
}

#[tokio::test]
async fn a_request_that_is_never_answered_ends_in_its_time_and_is_ambiguous() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let token = a.win(&name("leader"), LONG).await;
    for fault in [Fault::Stall, Fault::ApplyThenStall, Fault::HeadersThenStall] {
        standin.on("update").always(fault.clone());
        let begun = Instant::now();
        is(&fails(&a, Some(token)).await, Ambiguous, "timeout");
        assert!(begun.elapsed() >= SECOND * 9 / 10, "{fault:?}");
        standin.calm();
        assert_eq!(held(a.renew(&name("leader"), LONG, token).await), token);
    }
    standin.on("get").always(Fault::Stall);
    is(
        &fails(&client_without_start(&standin), None).await,
        Transient,
        "timeout",
    );
}

fn client_without_start(standin: &StandIn) -> Client {
    Client {
        backend: open(at(standin)),
        owner: crate::suite::owner("unprepared"),
    }
}

#[tokio::test]
async fn a_slow_answer_within_the_time_keeps_the_term() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let token = a.win(&name("leader"), LONG).await;
    for fault in [Fault::Delay(SECOND / 2), Fault::AnswerLate(SECOND / 2)] {
        standin.on("update").once(fault);
        assert_eq!(held(a.renew(&name("leader"), LONG, token).await), token);
    }
}

#[tokio::test]
async fn a_write_that_was_applied_late_touches_no_later_term() {
    let standin = StandIn::start().await;
    let (a, b) = (client(&standin, "a").await, client(&standin, "b").await);
    let election = name("leader");
    let token = a.win(&election, SECOND).await;
    standin.on("update").times(2, Fault::Delay(SECOND * 4));
    is(&fails(&a, Some(token)).await, Ambiguous, "timeout");
    let theirs = b.take_over(&election, LONG).await;
    tokio::time::sleep(SECOND * 4).await;
    assert_eq!(held(b.renew(&election, LONG, theirs).await), theirs);
}

#[tokio::test]
async fn a_connection_that_broke_is_tried_once_more_and_the_write_counts_once() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let election = name("leader");
    let mut token = a.win(&election, LONG).await;
    for fault in [Fault::ApplyThenReset, Fault::ResetMidBody, Fault::Refuse] {
        standin.on("create,update").once(fault.clone());
        assert_eq!(
            held(a.renew(&election, LONG, token).await),
            token,
            "{fault:?}"
        );
        // A campaign whose answer got lost meets itself, under a larger token.
        standin.on("create,update").once(fault.clone());
        let next = a.win(&election, LONG).await;
        assert!(next > token, "{fault:?}");
        token = next;
        standin.on("update").once(fault.clone());
        assert!(a.release(&election, token).await, "{fault:?}");
        assert_eq!(a.leader(&election).await, None, "{fault:?}");
        token = a.win(&election, LONG).await;
        // The first Lease of all, too.
        standin.delete_lease("default", "leader");
        standin.on("create,update").once(fault.clone());
        token = a.win(&election, LONG).await.max(token);
    }
    standin.on("update").always(Fault::ResetMidBody);
    is(&fails(&a, Some(token)).await, Ambiguous, "unreachable");
}

#[tokio::test]
async fn what_a_second_copy_of_a_write_is_told_says_nothing_of_the_first() {
    let standin = StandIn::start().await;
    let mut options = at(&standin);
    options.timeout = SECOND * 20;
    options.patience = SECOND / 4;
    let a = Client::of(open(options), "a").await;
    let election = name("leader");
    for first in [Fault::ApplyThenReset, Fault::ApplyThenStall] {
        // Refused, and nobody can tell by what.
        let token = a.win(&election, LONG).await;
        standin.on("update").once(first.clone());
        standin.on("get").always(Fault::Answer(Answer::new(503)));
        is(&fails(&a, Some(token)).await, Ambiguous, "overloaded");
        standin.calm();
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        // Its own doing is known again where it can be seen.
        standin.on("update").once(first.clone());
        standin.forget_requests();
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        assert_eq!((standin.count("update"), standin.count("get")), (2, 1));
        standin.delete_lease("default", "leader");
        assert_eq!(denied(a.renew(&election, LONG, token).await), (None, None));
        standin.on("create").once(first.clone());
        let gone = Answer::failure(404, "NotFound", "namespaces \"default\" not found");
        standin.on("create").once(Fault::Answer(gone));
        is(&fails(&a, None).await, Ambiguous, "no-namespace");
        standin.calm();
    }
}

fn through(standin: &StandIn, proxy: &Proxy) -> KubernetesOptions {
    let text = std::fs::read_to_string(standin.kubeconfig()).unwrap();
    let url = format!("http://127.0.0.1:{}", proxy.port);
    assert!(text.contains(&standin.url()), "{text}");
    let text = text.replace(&standin.url(), &url);
    let mut options = at(standin);
    options.place.config = Some(standin.write_file("through", &text));
    options.timeout = SECOND * 20;
    options
}

#[tokio::test]
async fn a_silent_connection_is_replaced_after_the_patience_by_one_that_was_not_there() {
    let standin = StandIn::start().await;
    let proxy = Proxy::to(standin.port()).await;
    let mut options = through(&standin, &proxy);
    options.patience = SECOND / 4;
    let a = Client::of(open(options), "a").await;
    let (one, other) = (name("leader"), name("another"));
    let (token, theirs) = tokio::join!(a.win(&one, LONG), a.win(&other, LONG));
    let begun = Instant::now();
    for _ in 0..3 {
        // So that there are two that lie idle.
        tokio::join!(a.renew(&one, LONG, token), a.renew(&other, LONG, theirs));
        proxy.freeze();
        assert_eq!(held(a.renew(&one, LONG, token).await), token);
    }
    assert!(begun.elapsed() < SECOND * 10);
}

#[tokio::test]
async fn a_request_that_is_given_up_leaves_no_dead_connection_to_whoever_asks_next() {
    let standin = StandIn::start().await;
    let proxy = Proxy::to(standin.port()).await;
    let mut options = through(&standin, &proxy);
    options.patience = SECOND * 10;
    let a = Client::of(open(options), "a").await;
    let (one, other) = (name("leader"), name("another"));
    let (token, theirs) = tokio::join!(a.win(&one, LONG), a.win(&other, LONG));
    tokio::join!(a.renew(&one, LONG, token), a.renew(&other, LONG, theirs));
    proxy.freeze();
    let attempt = a.attempt(&one, LONG, Some(token));
    let given_up = tokio::time::timeout(SECOND / 10, attempt).await;
    assert!(given_up.is_err());
    let begun = Instant::now();
    assert_eq!(held(a.renew(&other, LONG, theirs).await), theirs);
    assert!(begun.elapsed() < SECOND * 5);
}

#[tokio::test]
async fn answers_that_are_none_are_failures_and_never_leadership() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let token = a.win(&name("leader"), LONG).await;
    let html = "<html><body>Bad Gateway</body></html>";
    let status = json!({ "kind": "Status", "status": "Success", "metadata": {} });
    for (answer, kind, code) in [
        (Answer::new(502).body("text/html", html), Ambiguous, "store"),
        (Answer::new(504), Ambiguous, "store"),
        (
            Answer::failure(500, "", "etcdserver: request timed out"),
            Ambiguous,
            "store",
        ),
        (
            Answer::failure(500, "", "etcdserver: too many requests"),
            Ambiguous,
            "store",
        ),
        (Answer::new(503), Ambiguous, "overloaded"),
        (
            Answer::new(301).header("Location", "http://127.0.0.1:1/"),
            Ambiguous,
            "unexpected",
        ),
        (
            Answer::new(307).header("Location", "http://127.0.0.1:1/"),
            Ambiguous,
            "unexpected",
        ),
        (Answer::json(200, &status), Ambiguous, "unexpected"),
        (Answer::json(200, &json!({})), Ambiguous, "unexpected"),
        (
            Answer::new(200).body("application/json", ""),
            Ambiguous,
            "unreachable",
        ),
        (
            Answer::new(200).body("application/json", r#"{"kind":"Lease","meta"#),
            Ambiguous,
            "unreachable",
        ),
        (
            Answer::new(200).body("application/json", vec![b' '; 10 << 20]),
            Ambiguous,
            "unreachable",
        ),
        (
            Answer::failure(422, "Invalid", "spec.renewTime: nonsense"),
            Fatal,
            "bad-record",
        ),
        (
            Answer::failure(400, "BadRequest", "no time"),
            Fatal,
            "bad-record",
        ),
    ] {
        let shown = format!("{answer:?}");
        standin.on("update").always(Fault::Answer(answer));
        let error = fails(&a, Some(token)).await;
        assert_eq!(
            (error.kind, error.code),
            (kind, code),
            "{shown:.200}: {error}"
        );
        assert!(error.message.len() < 600, "{}", error.message);
        standin.calm();
        assert_eq!(held(a.renew(&name("leader"), LONG, token).await), token);
    }
}

#[tokio::test]
async fn a_conflict_is_looked_into_at_once_within_the_same_attempt() {
    let standin = StandIn::start().await;
    let (a, b) = (client(&standin, "a").await, client(&standin, "b").await);
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    // Somebody else touches the object, and it is still ours.
    for times in [1, 5, 10] {
        standin.on("update").times(times, Fault::Conflict);
        assert_eq!(
            held(a.renew(&election, LONG, token).await),
            token,
            "{times}"
        );
    }
    standin.touch_lease("default", "leader");
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
    standin.on("update").always(Fault::Conflict);
    let attempt = a.attempt(&election, LONG, Some(token));
    let storm = tokio::time::timeout(SECOND * 10, attempt).await;
    let error = storm.expect("it ends by itself").expect_err("a storm");
    is(&error, Ambiguous, "conflict");
    standin.calm();
    standin.on("update").times(2, Fault::Conflict);
    assert!(a.release(&election, token).await);
    standin.on("update").times(2, Fault::Conflict);
    b.win(&election, LONG).await;
}

#[tokio::test]
async fn a_put_that_made_the_lease_anew_is_a_lost_term() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    // As a server answers that knows no condition on the uid.
    let mut made = standin.lease("default", "leader").unwrap();
    made["metadata"]["resourceVersion"] = "999999".into();
    standin
        .on("update")
        .once(Fault::Answer(Answer::json(201, &made)));
    let (leader, remaining) = denied(a.renew(&election, LONG, token).await);
    assert_eq!((leader, remaining), (None, None));
    assert!(a.win(&election, LONG).await > token);
}

#[tokio::test]
async fn a_wish_to_be_left_alone_is_respected_as_long_as_it_fits() {
    let standin = StandIn::start().await;
    let mut options = at(&standin);
    options.timeout = SECOND * 3;
    let a = Client::of(open(options), "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let throttled = |pause: Option<&str>| {
        let answer = Answer::failure(429, "TooManyRequests", "too many requests");
        Fault::Answer(match pause {
            Some(pause) => answer.header("Retry-After", pause),
            None => answer,
        })
    };
    for (pause, least) in [
        (Some("1"), SECOND),
        (Some("0"), Duration::ZERO),
        (Some("Wed, 21 Oct 2026 07:28:00 GMT"), SECOND / 2),
        (Some("soon"), SECOND / 2),
        (None, SECOND / 2),
    ] {
        standin.forget_requests();
        standin.on("update").once(throttled(pause));
        let begun = Instant::now();
        assert_eq!(
            held(a.renew(&election, LONG, token).await),
            token,
            "{pause:?}"
        );
        assert!(begun.elapsed() >= least, "{pause:?}");
        assert_eq!(standin.count("update"), 2, "{pause:?}");
    }
}

#[tokio::test]
async fn a_wish_that_does_not_fit_is_told_at_once_and_believed_for_one_lease() {
    let standin = StandIn::start().await;
    let election = name("leader");
    for pause in ["30", "3600"] {
        let mut options = at(&standin);
        options.lease = SECOND * 2;
        let a = Client::of(open(options), "a").await;
        let token = a.win(&election, LONG).await;
        let answer = Answer::failure(429, "TooManyRequests", "too many requests");
        let answer = answer.header("Retry-After", pause);
        standin.on("update").once(Fault::Answer(answer));
        let begun = Instant::now();
        is(&fails(&a, Some(token)).await, Transient, "overloaded");
        assert!(begun.elapsed() < SECOND, "{pause}");
        standin.forget_requests();
        is(&fails(&a, Some(token)).await, Transient, "overloaded");
        assert_eq!(standin.count("any"), 0, "{pause}");
        tokio::time::sleep(SECOND * 2).await;
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        assert!(a.release(&election, token).await);
    }
}

#[tokio::test]
async fn a_storm_of_wishes_without_a_time_is_no_storm_of_requests() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let token = a.win(&name("leader"), LONG).await;
    let answer = Answer::failure(429, "TooManyRequests", "no").header("Retry-After", "0");
    standin.on("update").always(Fault::Answer(answer));
    standin.forget_requests();
    is(&fails(&a, Some(token)).await, Transient, "overloaded");
    assert!(standin.count("any") <= 6, "{}", standin.count("any"));
}

#[tokio::test]
async fn a_token_that_expired_is_read_anew_within_the_attempt() {
    let standin = StandIn::start().await;
    let rights: &[(&str, &[&str])] = &[("leases", &["get", "create", "update", "watch"])];
    let first = standin.account("default", "elector", rights);
    let second = standin.token("default", "elector");
    let file = standin.write_file("token", &first);
    let mut options = at(&standin);
    options.place.config = Some(standin.kubeconfig_with(&json!({ "tokenFile": &file }), "default"));
    let a = Client::of(open(options), "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let mut hearing = a.watch(&election).await;
    standin.expire_token(&first);
    is(&fails(&a, Some(token)).await, Fatal, "refused");
    std::fs::write(&file, &second).unwrap();
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
    // A watch that is cut asks with the new one, too.
    standin.cut_watches();
    a.release(&election, token).await;
    hearing.until("Free", |hint| hint == Hint::Free).await;
}

#[tokio::test]
async fn a_token_that_was_refused_is_not_tried_again_also_where_a_connection_was_replaced() {
    let standin = StandIn::start().await;
    let rights: &[(&str, &[&str])] = &[("leases", &["get", "create", "update", "watch"])];
    let first = standin.account("default", "elector", rights);
    let second = standin.token("default", "elector");
    let kubeconfig = standin.kubeconfig_as(&first, "default");
    let mut options = at(&standin);
    options.timeout = SECOND * 20;
    options.patience = SECOND / 4;
    options.place.config = Some(kubeconfig.clone());
    let a = Client::of(open(options), "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    standin.expire_token(&first);
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&kubeconfig, text.replace(&first, &second)).unwrap();
    // The copy that goes out beside it is refused.
    standin.on("update").once(Fault::Stall);
    standin.forget_requests();
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
    let asked = standin.requests();
    let refused = asked.iter().filter(|asked| asked.token() == Some(&first));
    assert_eq!(refused.count(), 2);
}

#[tokio::test]
async fn a_namespace_that_is_being_deleted_is_waited_for() {
    let standin = StandIn::start().await;
    standin.add_namespace("shop");
    let mut options = at(&standin);
    options.place.namespace = Some("shop".into());
    let a = Client::of(open(options), "a").await;
    standin.terminate_namespace("shop");
    is(&fails(&a, None).await, Transient, "no-namespace");
    standin.remove_namespace("shop");
    is(&fails(&a, None).await, Transient, "no-namespace");
    standin.add_namespace("shop");
    a.win(&name("leader"), LONG).await;
}

#[tokio::test]
async fn odd_leases_are_never_leadership_and_never_bar_the_election() {
    let standin = StandIn::start().await;
    let election = name("leader");
    let renew = "2026-11-29T16:00:00.000000Z";
    // Free at once.
    for spec in [
        json!({}),
        json!({ "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 3 }),
        json!({ "holderIdentity": null, "renewTime": renew }),
        json!({ "strategy": "OldestEmulationVersion", "preferredHolder": "x" }),
    ] {
        standin.set_lease("default", "leader", &lease(&spec));
        client(&standin, "a").await.win(&election, SHORT).await;
    }
    // Waited out, for the record's duration or like a lease of ours.
    for spec in [
        json!({ "holderIdentity": "h" }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1 }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": "yesterday" }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": 5 }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": "" }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": "2036-01-01T00:00:00.000000Z" }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": "0001-01-01T00:00:00Z" }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": "20220804T135255.122Z" }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 0 }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": -5 }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": "1" }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 2_147_483_647 }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 2_147_483_648_u64 }),
        json!({ "holderIdentity": "h", "leaseDurationSeconds": 1, "leaseTransitions": -1 }),
        json!({ "holderIdentity": "h\nh", "leaseDurationSeconds": 1 }),
        json!({ "holderIdentity": "h".repeat(300), "leaseDurationSeconds": 1 }),
    ] {
        standin.set_lease("default", "leader", &lease(&spec));
        let a = client(&standin, "a").await;
        let begun = Instant::now();
        denied(a.campaign(&election, SHORT).await);
        a.take_over(&election, SHORT).await;
        assert!(begun.elapsed() >= SHORT, "{spec}");
        assert!(begun.elapsed() < SHORT * 10, "{spec}");
    }
    // No Lease at all.
    for object in [
        json!({ "kind": "Status" }),
        json!({ "spec": {} }),
        json!([]),
        json!(null),
    ] {
        standin.set_raw_lease("default", "leader", &object);
        let error = fails(&client_without_start(&standin), None).await;
        is(&error, Transient, "unexpected");
    }
}

#[tokio::test]
async fn a_holder_whose_object_changes_is_alive_whatever_its_times_say() {
    let standin = StandIn::start().await;
    let election = name("leader");
    let spec = json!({
        "holderIdentity": "skewed", "leaseDurationSeconds": 1,
        "renewTime": "2020-01-01T00:00:00.000000Z",
    });
    standin.set_lease("default", "leader", &lease(&spec));
    let a = client(&standin, "a").await;
    let end = Instant::now() + SECOND * 4;
    while Instant::now() < end {
        standin.touch_lease("default", "leader");
        denied(a.campaign(&election, LONG).await);
        tokio::time::sleep(SECOND / 3).await;
    }
    a.take_over(&election, LONG).await;
}

async fn watching(standin: &StandIn) -> (Client, Hearing) {
    let b = client(standin, "b").await;
    let hearing = b.watch(&name("leader")).await;
    (b, hearing)
}

#[tokio::test]
async fn a_watch_that_the_server_ends_goes_on_from_where_it_was() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let (_b, mut hearing) = watching(&standin).await;
    hearing
        .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
        .await;
    tokio::time::sleep(SECOND + SECOND / 10).await;
    standin.forget_requests();
    standin.cut_watches();
    a.release(&election, token).await;
    // Without a word of being blind.
    let next = hearing.until("the next hint", |_| true).await;
    assert_eq!(next, Hint::Free);
    let watch = standin
        .requests()
        .into_iter()
        .find(|asked| asked.verb == "watch");
    let watch = watch.expect("it asks again").query;
    assert!(
        watch.iter().any(|(name, _)| name == "resourceVersion"),
        "{watch:?}"
    );
    let bookmarks = ("allowWatchBookmarks".to_owned(), "true".to_owned());
    assert!(watch.contains(&bookmarks), "{watch:?}");
}

#[tokio::test]
async fn a_watch_whose_history_is_forgotten_begins_anew() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let (_b, mut hearing) = watching(&standin).await;
    for _ in 0..2 {
        standin.expire_watches();
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        hearing
            .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
            .await;
    }
    // It may be told with the first answer as well.
    let gone = Answer::failure(410, "Expired", "too old resource version");
    standin.on("watch").once(Fault::Answer(gone));
    standin.cut_watches();
    hearing
        .until("Watching", |hint| hint == Hint::Watching)
        .await;
    a.release(&election, token).await;
    hearing.until("Free", |hint| hint == Hint::Free).await;
}

#[tokio::test]
async fn a_deleted_lease_is_free() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    a.win(&name("leader"), LONG).await;
    let (b, mut hearing) = watching(&standin).await;
    hearing
        .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
        .await;
    standin.delete_lease("default", "leader");
    hearing.until("Free", |hint| hint == Hint::Free).await;
    b.win(&name("leader"), LONG).await;
}

#[tokio::test]
async fn a_watch_that_tells_nonsense_breaks_and_is_begun_again() {
    let standin = StandIn::start().await;
    let (_b, mut hearing) = watching(&standin).await;
    for body in [
        "nonsense\n",
        "{\"type\":\"ERROR\",\"object\":{\"code\":500}}\n",
        "",
    ] {
        let nonsense = Answer::new(200).body("application/json", body);
        standin.on("watch").once(Fault::Answer(nonsense));
        standin.cut_watches();
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
    }
}

#[tokio::test]
async fn a_silent_watch_is_not_believed_for_longer_than_a_leader_may_be_silent() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    a.win(&name("leader"), SECOND).await;
    let (_b, mut hearing) = watching(&standin).await;
    hearing
        .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
        .await;
    standin.deafen_watches();
    hearing.until("Blind", |hint| hint == Hint::Blind).await;
    standin.calm();
    hearing
        .until("Watching", |hint| hint == Hint::Watching)
        .await;
}

#[tokio::test]
async fn a_server_that_ends_every_watch_at_once_is_not_asked_in_a_circle() {
    let standin = StandIn::start().await;
    let empty = Answer::new(200).body("application/json", "");
    standin.on("watch").always(Fault::Answer(empty));
    let b = client(&standin, "b").await;
    let (hints, _heard) = tokio::sync::mpsc::channel(64);
    let watch = Arc::clone(&b.backend).watch(name("leader"), hints).unwrap();
    let watch = tokio::spawn(watch);
    tokio::time::sleep(SECOND * 3).await;
    watch.abort();
    assert!(standin.count("watch") <= 10, "{}", standin.count("watch"));
}

#[tokio::test]
async fn a_watch_ends_with_its_last_listener_and_all_connections_with_the_store() {
    let standin = StandIn::start().await;
    let (b, hearing) = watching(&standin).await;
    let second = b.watch(&name("leader")).await;
    assert_eq!(standin.watches(), 1);
    drop(hearing);
    drop(second);
    eventually("nobody watches", async || {
        (standin.watches() == 0).then_some(())
    })
    .await;
    let _third = b.watch(&name("leader")).await;
    b.backend.close().await;
    eventually("nobody watches", async || {
        (standin.watches() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_an_answer_about_rights_it_starts_all_the_same() {
    let standin = StandIn::start().await;
    let refused = Answer::failure(403, "Forbidden", "no reviews for you");
    standin
        .on("create")
        .path("selfsubjectaccessreviews")
        .always(Fault::Answer(refused));
    let a = client(&standin, "a").await;
    a.win(&name("leader"), LONG).await;
}

#[tokio::test]
async fn who_brings_no_credentials_is_told_so() {
    let standin = StandIn::start().await;
    let mut options = at(&standin);
    options.place.config = Some(standin.kubeconfig_with(&json!({}), "default"));
    let error = open(options)
        .prepare()
        .await
        .expect_err("nobody may nothing");
    is(&error, Fatal, "refused");
    assert!(error.message.contains("was not told who asks"), "{error}");
}

#[tokio::test]
async fn a_namesake_in_another_program_is_a_stranger() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    // A Go program that calls itself "a" took the lease, counted, and kept our annotations.
    let mut theirs = standin.lease("default", "leader").unwrap();
    theirs["spec"]["leaseTransitions"] = 1.into();
    theirs["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    standin.set_lease("default", "leader", &theirs);
    let Outcome::Other { leader, .. } = a.renew(&election, LONG, token).await else {
        panic!("renewed a term of somebody else");
    };
    let leader = leader.expect("it has a name");
    assert_eq!(leader.owner.instance, a.owner.instance);
    assert_ne!(leader.owner, a.owner);
    denied(a.campaign(&election, LONG).await);
}

#[tokio::test]
async fn a_leader_whose_holder_was_cleared_by_somebody_else_hears_of_it_and_has_lost() {
    let standin = StandIn::start().await;
    let a = client(&standin, "a").await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let mut hearing = a.watch(&election).await;
    let mut cleared = standin.lease("default", "leader").unwrap();
    cleared["spec"]["holderIdentity"] = "".into();
    standin.set_lease("default", "leader", &cleared);
    hearing.until("Free", |hint| hint == Hint::Free).await;
    let (leader, remaining) = denied(a.renew(&election, LONG, token).await);
    assert_eq!((leader, remaining), (None, None));
    assert!(!a.release(&election, token).await);
}

async fn with_pod(standin: &StandIn) -> (Client, impl AsyncFn(&str)) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "pod-0" },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let pods = "/api/v1/namespaces/default/pods";
    let admin = standin.client();
    let made = admin.post(pods, &pod).await.unwrap();
    assert_eq!(made.status, 201);
    let mut options = at(standin);
    options.patience = SECOND / 10;
    options.pod_labels = true;
    options.pod = Pod::new(Some("pod-0".into()), None);
    let becomes = async move |role: &str| {
        eventually(role, async || {
            let pod = admin.get(&format!("{pods}/pod-0")).await.unwrap();
            let pod: Value = serde_json::from_slice(&pod.body).unwrap();
            (pod["metadata"]["labels"]["whenleader/role"] == role).then_some(())
        })
        .await;
    };
    (Client::of(open(options), "a").await, becomes)
}

#[tokio::test]
async fn a_label_whose_answer_got_lost_is_written_again() {
    let standin = StandIn::start().await;
    let (a, becomes) = with_pod(&standin).await;
    let election = name("leader");
    a.backend.tell_role(&election, false);
    becomes("follower").await;
    standin.on("patch").once(Fault::ApplyThenStall);
    a.backend.tell_role(&election, true);
    becomes("leader").await;
    a.backend.tell_role(&election, false);
    becomes("follower").await;
}

#[tokio::test]
async fn a_label_is_sent_once_and_no_copy_of_it_comes_late() {
    let standin = StandIn::start().await;
    let (a, becomes) = with_pod(&standin).await;
    let election = name("leader");
    a.backend.tell_role(&election, false);
    becomes("follower").await;
    standin.forget_requests();
    // Within the second that a request has, and far beyond its patience.
    standin.on("patch").once(Fault::AnswerLate(SECOND / 2));
    a.backend.tell_role(&election, true);
    becomes("leader").await;
    a.backend.tell_role(&election, false);
    becomes("follower").await;
    assert_eq!(standin.count("patch"), 2);
}

#[tokio::test]
async fn a_label_that_the_server_puts_off_is_sent_when_the_time_is_over() {
    for status in [429, 503] {
        let standin = StandIn::start().await;
        let (a, becomes) = with_pod(&standin).await;
        standin.forget_requests();
        let answer = Answer::failure(status, "", "not now").header("Retry-After", "2");
        standin.on("patch").once(Fault::Answer(answer));
        let begun = Instant::now();
        a.backend.tell_role(&name("leader"), true);
        becomes("leader").await;
        assert!(begun.elapsed() >= SECOND * 2, "{status}");
        assert_eq!(standin.count("patch"), 2, "{status}");
    }
}

#[tokio::test]
async fn a_label_that_the_server_puts_off_puts_off_no_renewal() {
    let standin = StandIn::start().await;
    let (a, _) = with_pod(&standin).await;
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    let answer = Answer::failure(429, "TooManyRequests", "no").header("Retry-After", "30");
    standin.on("patch").always(Fault::Answer(answer));
    a.backend.tell_role(&election, true);
    eventually("it was tried", async || {
        (standin.count("patch") > 0).then_some(())
    })
    .await;
    for _ in 0..3 {
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        tokio::time::sleep(SECOND / 10).await;
    }
}

#[tokio::test]
async fn who_only_watches_needs_no_right_to_write() {
    let standin = StandIn::start().await;
    let token = standin.account("default", "reader", &[("leases", &["get", "watch"])]);
    let mut options = at(&standin);
    options.place.config = Some(standin.kubeconfig_as(&token, "default"));
    open(options.clone())
        .prepare()
        .await
        .expect_err("a candidate needs more");
    options.takes_part = false;
    let reader = Client::of(open(options), "reader").await;
    let a = client(&standin, "a").await;
    let token = a.win(&name("leader"), LONG).await;
    assert_eq!(
        reader
            .leader(&name("leader"))
            .await
            .map(|leader| leader.token),
        Some(token)
    );
}
