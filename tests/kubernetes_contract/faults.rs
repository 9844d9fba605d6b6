//! The stand-in's faults, as a plain client sees them.

use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{Answer, Certificate, Client, Fault, StandIn, eventually};

const PLACE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/leader";
const WATCH: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=1&fieldSelector=metadata.name%3Dleader";
/// Far longer than an answer takes, and short enough to wait for one that never comes.
const PATIENCE: Duration = Duration::from_millis(300);

fn held_by(holder: &str) -> Value {
    json!({ "metadata": { "name": "leader" }, "spec": { "holderIdentity": holder } })
}

fn holder(server: &StandIn) -> Option<String> {
    let lease = server.lease("default", "leader")?;
    lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
}

async fn create(client: &Client) -> io::Result<Answer> {
    client.post(PLACE, &held_by("a")).await
}

#[tokio::test]
async fn an_answer_can_be_replaced_for_some_requests_of_a_verb() {
    let server = StandIn::start().await;
    let client = server.client();
    let busy = Answer::failure(429, "TooManyRequests", "slow down").header("Retry-After", "1");
    server.on("create").times(2, Fault::Answer(busy.clone()));
    for _ in 0..2 {
        let answer = create(&client).await.unwrap();
        assert_eq!((answer.status, &answer.body), (429, &busy.body));
        assert!(answer.headers.contains(&("retry-after".into(), "1".into())));
        assert_eq!(client.get(LEASE).await.unwrap().status, 404);
    }
    assert_eq!(create(&client).await.unwrap().status, 201);
    assert_eq!((server.count("create"), server.count("get")), (3, 2));
}

#[tokio::test]
async fn an_answer_can_have_any_bytes() {
    let server = StandIn::start().await;
    let huge = vec![b' '; 10 << 20];
    for (code, kind, body) in [
        (502, "text/html", b"<html>bad gateway</html>".to_vec()),
        (200, "application/json", Vec::new()),
        (
            200,
            "application/json",
            br#"{"kind":"Lease","meta"#.to_vec(),
        ),
        (200, "application/json", huge),
    ] {
        let answer = Answer::new(code).body(kind, body.clone());
        server.on("get").once(Fault::Answer(answer));
        let seen = server.client().get(LEASE).await.unwrap();
        assert_eq!(seen.status, code);
        assert!(seen.body == body);
    }
}

#[tokio::test]
async fn conflicts_come_without_anybody_else_writing() {
    let server = StandIn::start().await;
    let client = server.client();
    server.set_lease("default", "leader", &held_by("a"));
    server.on("update").times(3, Fault::Conflict);
    let mut lease = server.lease("default", "leader").unwrap();
    lease["spec"]["holderIdentity"] = json!("b");
    for _ in 0..3 {
        let answer = client.put(LEASE, &lease).await.unwrap();
        assert_eq!(answer.status, 409);
        assert!(String::from_utf8_lossy(&answer.body).contains(r#""reason":"Conflict""#));
    }
    assert_eq!(holder(&server).as_deref(), Some("a"));
    assert_eq!(client.put(LEASE, &lease).await.unwrap().status, 200);
    assert_eq!(holder(&server).as_deref(), Some("b"));
}

#[tokio::test]
async fn a_stalled_request_is_neither_answered_nor_done() {
    let server = StandIn::start().await;
    server.on("create").once(Fault::Stall);
    assert!(timeout(PATIENCE, create(&server.client())).await.is_err());
    assert_eq!(holder(&server), None);
    assert_eq!(server.count("create"), 1);
}

#[tokio::test]
async fn a_delayed_request_is_done_though_its_client_has_gone() {
    let server = StandIn::start().await;
    server.on("create").once(Fault::Delay(2 * PATIENCE));
    assert!(timeout(PATIENCE, create(&server.client())).await.is_err());
    assert_eq!(holder(&server), None);
    eventually("it is done", async || holder(&server)).await;
}

#[tokio::test]
async fn a_late_answer_is_of_something_done_at_once() {
    let server = StandIn::start().await;
    let client = server.client();
    server.on("create").once(Fault::AnswerLate(PATIENCE));
    let start = Instant::now();
    let answer = tokio::spawn(async move { create(&client).await.unwrap() });
    eventually("it is done", async || holder(&server)).await;
    assert!(!answer.is_finished());
    assert_eq!(answer.await.unwrap().status, 201);
    assert!(start.elapsed() >= PATIENCE);
}

#[tokio::test]
async fn something_done_can_stay_without_an_answer() {
    let server = StandIn::start().await;
    server.on("create").once(Fault::ApplyThenStall);
    assert!(timeout(PATIENCE, create(&server.client())).await.is_err());
    assert_eq!(holder(&server).as_deref(), Some("a"));
}

#[tokio::test]
async fn something_done_can_be_answered_with_a_reset() {
    let server = StandIn::start().await;
    server.on("create").once(Fault::ApplyThenReset);
    let error = create(&server.client()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(holder(&server).as_deref(), Some("a"));
}

#[tokio::test]
async fn a_body_can_break_off_or_never_come() {
    let server = StandIn::start().await;
    let client = server.client();
    server.set_lease("default", "leader", &held_by("a"));
    server.on("get").once(Fault::ResetMidBody);
    let mut connection = client.send("GET", LEASE, "", "").await.unwrap();
    let head = connection.read_head().await.unwrap();
    assert_eq!(head.status, 200);
    let error = connection.content(&head.headers).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

    server.on("get").once(Fault::HeadersThenStall);
    let mut connection = client.send("GET", LEASE, "", "").await.unwrap();
    assert_eq!(connection.read_head().await.unwrap().status, 200);
    assert!(timeout(PATIENCE, connection.read_chunk()).await.is_err());
}

#[tokio::test]
async fn a_refused_request_is_not_done_and_its_connection_is_closed() {
    let server = StandIn::start().await;
    server.on("any").once(Fault::Refuse);
    assert!(create(&server.client()).await.is_err());
    assert_eq!(holder(&server), None);
    assert_eq!(create(&server.client()).await.unwrap().status, 201);
}

#[tokio::test]
async fn a_server_that_is_down_refuses_connections_and_keeps_what_it_had() {
    let server = StandIn::start().await;
    let client = server.client();
    create(&client).await.unwrap();
    let mut events = client.watch(WATCH).await.unwrap();
    events.next().await.unwrap();
    server.down().await;
    let error = client.get(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(events.next().await.is_err());
    server.up().await;
    assert_eq!(client.get(LEASE).await.unwrap().status, 200);
}

#[tokio::test]
async fn faults_can_be_for_one_token_or_path_and_end_with_calm() {
    let server = StandIn::start().await;
    let token = server.account("default", "elector", &[("leases", &["get", "create"])]);
    let failure = || Fault::failure(500, "", "etcdserver: request timed out");
    server.on("get,create").token(&token).always(failure());
    server.on("get").path("/nosuch").always(failure());
    assert_eq!(
        server.client_as(&token).get(LEASE).await.unwrap().status,
        500
    );
    assert_eq!(server.client().get(LEASE).await.unwrap().status, 404);
    let other = format!("{PLACE}/nosuch");
    assert_eq!(server.client().get(&other).await.unwrap().status, 500);
    server.calm();
    assert_eq!(
        server.client_as(&token).get(LEASE).await.unwrap().status,
        404
    );
    assert_eq!(server.client().get(&other).await.unwrap().status, 404);
}

#[tokio::test]
async fn a_token_can_expire_and_rights_can_change() {
    let server = StandIn::start().await;
    let rights = |verbs| server.account("default", "elector", &[("leases", verbs)]);
    let token = rights(&["get", "create"]);
    let client = server.client_as(&token);
    assert_eq!(create(&client).await.unwrap().status, 201);
    rights(&["get"]);
    assert_eq!(create(&client).await.unwrap().status, 403);
    server.expire_token(&token);
    assert_eq!(client.get(LEASE).await.unwrap().status, 401);
    let renewed = server.client_as(&server.token("default", "elector"));
    assert_eq!(renewed.get(LEASE).await.unwrap().status, 200);
    server.revive_token(&token);
    assert_eq!(client.get(LEASE).await.unwrap().status, 200);
}

#[tokio::test]
async fn odd_objects_are_served_as_they_are() {
    let server = StandIn::start().await;
    let odd = json!({ "kind": "Lease", "spec": { "renewTime": "yesterday", "x": [1] } });
    server.set_raw_lease("default", "leader", &odd);
    let answer = server.client().get(LEASE).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&answer.body).unwrap(), odd);

    server.set_lease("default", "leader", &odd);
    let lease = server.lease("default", "leader").unwrap();
    assert_eq!(lease["spec"], odd["spec"]);
    let version = lease["metadata"]["resourceVersion"].clone();
    server.touch_lease("default", "leader");
    let mut touched = server.lease("default", "leader").unwrap();
    assert_ne!(touched["metadata"]["resourceVersion"], version);
    touched["metadata"]["resourceVersion"] = version;
    assert_eq!(touched, lease);
    // Who reads, changes and puts back has written.
    server.set_lease("default", "leader", &lease);
    let again = server.lease("default", "leader").unwrap();
    assert_ne!(
        again["metadata"]["resourceVersion"],
        lease["metadata"]["resourceVersion"]
    );
    assert!(server.delete_lease("default", "leader"));
    assert!(!server.delete_lease("default", "leader"));
}

#[tokio::test]
async fn a_namespace_ends_in_two_steps() {
    let server = StandIn::start().await;
    let client = server.client();
    create(&client).await.unwrap();
    server.terminate_namespace("default");
    let other = json!({ "metadata": { "name": "other" } });
    assert_eq!(client.post(PLACE, &other).await.unwrap().status, 403);
    assert_eq!(client.get(LEASE).await.unwrap().status, 200);
    server.remove_namespace("default");
    assert_eq!(client.get(LEASE).await.unwrap().status, 404);
    assert_eq!(client.post(PLACE, &other).await.unwrap().status, 404);
    server.add_namespace("default");
    assert_eq!(client.post(PLACE, &other).await.unwrap().status, 201);
}

#[tokio::test]
async fn a_watch_tells_what_is_there_and_what_changes() {
    let server = StandIn::start().await;
    let client = server.client();
    create(&client).await.unwrap();
    let mut events = client
        .watch(&format!("{WATCH}&allowWatchBookmarks=true"))
        .await
        .unwrap();
    let mut next = async || {
        let event = timeout(Duration::from_secs(20), events.next()).await;
        let event = event.unwrap().unwrap().unwrap();
        let holder = event["object"]["spec"]["holderIdentity"].as_str();
        (
            event["type"].as_str().unwrap().to_owned(),
            holder.unwrap_or_default().to_owned(),
        )
    };
    let expect = |kind: &str, holder: &str| (kind.to_owned(), holder.to_owned());
    assert_eq!(next().await, expect("ADDED", "a"));
    assert_eq!(next().await, expect("BOOKMARK", ""));
    server.set_lease("default", "other", &held_by("x"));
    server.set_lease("default", "leader", &held_by("b"));
    assert_eq!(next().await, expect("MODIFIED", "b"));
    server.send_bookmarks();
    assert_eq!(next().await, expect("BOOKMARK", ""));
    server.delete_lease("default", "leader");
    assert_eq!(next().await, expect("DELETED", "b"));
}

#[tokio::test]
async fn a_watch_can_be_cut_or_fall_silent_or_expire() {
    let server = StandIn::start().await;
    let client = server.client();
    create(&client).await.unwrap();
    let version = server.lease("default", "leader").unwrap()["metadata"]["resourceVersion"].clone();
    let from = format!("{WATCH}&resourceVersion={}", version.as_str().unwrap());

    let mut events = client.watch(&from).await.unwrap();
    eventually("it is open", async || (server.watches() == 1).then_some(())).await;
    server.cut_watches();
    assert_eq!(events.next().await.unwrap(), None);
    eventually("it is over", async || (server.watches() == 0).then_some(())).await;

    let mut events = client.watch(&from).await.unwrap();
    server.deafen_watches();
    server.set_lease("default", "leader", &held_by("b"));
    assert!(timeout(PATIENCE, events.next()).await.is_err());
    assert_eq!(server.watches(), 1);
    server.calm();

    server.expire_watches();
    for mut events in [events, client.watch(&from).await.unwrap()] {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&json!("ERROR"), &json!(410))
        );
        assert_eq!(events.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_connection_can_be_encrypted_with_good_certificates_and_others() {
    let server = StandIn::start_tls().await;
    let client = server.client();
    assert!(server.url().starts_with("https://"));
    assert_eq!(create(&client).await.unwrap().status, 201);
    for (certificate, complaint) in [
        (Certificate::Expired, "Expired"),
        (Certificate::OtherName, "NotValidForName"),
        (Certificate::OtherAuthority, "UnknownIssuer"),
    ] {
        server.show(certificate);
        let error = format!("{:?}", client.get(LEASE).await.unwrap_err());
        assert!(error.contains(complaint), "{certificate:?}: {error}");
    }
    server.rotate_authority();
    assert_eq!(client.get(LEASE).await.unwrap().status, 200);
    server.on("get").once(Fault::ApplyThenReset);
    assert!(client.get(LEASE).await.is_err());
}
