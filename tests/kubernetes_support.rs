//! The API server that tests with Kubernetes use does what they take for granted.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Kubernetes, Proxy, User, eventually};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";

fn rules(verbs: &[&str]) -> Value {
    json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs }])
}

fn lease(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "holderIdentity": "somebody" } })
}

#[tokio::test]
async fn an_account_may_do_what_its_rules_say_and_no_more() {
    let Some(server) = Kubernetes::shared("rights of an account") else {
        return;
    };
    let namespace = server.fresh_namespace().await;
    let path = format!("{LEASES}/{namespace}/leases");
    let token = server
        .account(&namespace, "candidate", &rules(&["get", "create"]))
        .await;
    let ask = async |token: Option<&str>, method: &str, path: &str, body: &Value| {
        server.request_as(token, method, path, "", body).await.0
    };
    let (token, one, other) = (Some(&*token), format!("{path}/one"), lease("one"));
    assert_eq!(ask(token, "GET", &one, &Value::Null).await, 404);
    assert_eq!(ask(token, "POST", &path, &other).await, 201);
    assert_eq!(ask(token, "POST", &path, &other).await, 409);
    assert_eq!(ask(token, "PUT", &one, &other).await, 403);
    assert_eq!(ask(token, "GET", &path, &Value::Null).await, 403);
    assert_eq!(ask(None, "GET", &one, &Value::Null).await, 403);
    assert_eq!(ask(Some("nonsense"), "GET", &one, &Value::Null).await, 401);
    let elsewhere = server.fresh_namespace().await;
    let elsewhere = format!("{LEASES}/{elsewhere}/leases/one");
    assert_eq!(ask(token, "GET", &elsewhere, &Value::Null).await, 403);
}

#[tokio::test]
async fn an_administrator_may_do_everything_and_bodies_are_sent_as_they_are() {
    let Some(server) = Kubernetes::shared("requests of an administrator") else {
        return;
    };
    let namespace = server.fresh_namespace().await;
    let path = format!("{LEASES}/{namespace}/leases");
    let (status, made) = server.request("POST", &path, "", &lease("one")).await;
    assert_eq!(
        (status, &made["spec"]["holderIdentity"]),
        (201, &json!("somebody"))
    );
    let change = json!({ "spec": { "holderIdentity": "" } });
    let kind = "application/merge-patch+json";
    let one = format!("{path}/one");
    let (status, patched) = server.request("PATCH", &one, kind, &change).await;
    assert_eq!(
        (status, &patched["spec"]["holderIdentity"]),
        (200, &json!(""))
    );
    let (status, _) = server.request("POST", &path, "", &json!("{ half of")).await;
    assert_eq!(status, 400);
    let ready = server.request("GET", "/readyz", "", &Value::Null).await;
    assert_eq!(ready, (200, json!("ok")));
}

#[tokio::test]
async fn a_short_token_ends() {
    let Some(server) = Kubernetes::shared("tokens that end") else {
        return;
    };
    let namespace = server.fresh_namespace().await;
    server.account(&namespace, "a", &rules(&["get"])).await;
    let path = format!("{LEASES}/{namespace}/leases/one");
    let token = server.short_token(&namespace, "a", 2).await;
    let ask = async || {
        server
            .request_as(Some(&token), "GET", &path, "", &Value::Null)
            .await
            .0
    };
    assert_eq!(ask().await, 404);
    eventually("the token ends", async || {
        (ask().await == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_kubeconfig_says_who_asks_and_where() {
    let Some(server) = Kubernetes::shared("kubeconfigs") else {
        return;
    };
    let proxy = Proxy::to(server.port).await;
    let through = format!("https://localhost:{}", proxy.port);
    let file = server
        .kubeconfig(&User::TokenFile("/where/it/is".into()), Some(&through))
        .await;
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(&format!("server: {through}\n")), "{text}");
    assert!(text.contains("tokenFile: \"/where/it/is\"\n"), "{text}");
    let file = server.kubeconfig(&User::Certificate, None).await;
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(&format!("server: {}\n", server.url)));
    assert!(text.contains("client-certificate-data: "));
    assert!(text.contains("client-key-data: "));
    for file in [&server.admin, &server.admin_token, &server.ca] {
        assert!(file.is_file());
    }
}

#[tokio::test]
async fn a_server_of_ones_own_stands_still_dies_and_comes_back_with_its_data() {
    let flags = ["--apiserver-flag=--audit-log-path=-"];
    let Some(server) = Kubernetes::own("a server that dies", &flags) else {
        return;
    };
    let namespace = server.fresh_namespace().await;
    let path = format!("{LEASES}/{namespace}/leases");
    let (status, made) = server.request("POST", &path, "", &lease("one")).await;
    assert_eq!(status, 201);

    server.freeze().await;
    let one = format!("{path}/one");
    let pause = Duration::from_millis(600);
    let asked = Instant::now();
    let answer = async {
        let answer = server.request("GET", &one, "", &Value::Null).await;
        (answer, asked.elapsed())
    };
    let thaw = async {
        tokio::time::sleep(pause).await;
        server.thaw().await;
    };
    let ((answer, after), ()) = tokio::join!(answer, thaw);
    assert_eq!(answer, (200, made.clone()));
    assert!(
        after >= pause,
        "it stood still, and answered after {after:?}"
    );

    server.kill().await;
    support::gone(server.port).await;
    server.restart().await;
    assert_eq!(
        server.request("GET", &one, "", &Value::Null).await,
        (200, made)
    );
}

#[tokio::test]
async fn a_server_ends_with_its_value_and_its_folder_too() {
    let Some(server) = Kubernetes::own("the end of a server", &["--ipv6"]) else {
        return;
    };
    let (ports, folder) = (
        [
            format!("127.0.0.1:{}", server.port),
            format!("[::1]:{}", server.port),
        ],
        server.ca.parent().unwrap().to_owned(),
    );
    let connects = |address: &String| std::net::TcpStream::connect(address).is_ok();
    assert!(connects(&ports[0]) && folder.is_dir());
    assert_eq!(connects(&ports[1]), server.url6.is_some());
    drop(server);
    assert!(!ports.iter().any(connects) && !folder.exists());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_ends_even_where_nobody_is_left_to_end_it() {
    let Some(server) = Kubernetes::own("the end of a launcher", &[]) else {
        return;
    };
    let (port, folder) = (server.port, server.ca.parent().unwrap().to_owned());
    server.kill_launcher();
    eventually("the server has ended", async || {
        std::net::TcpStream::connect(("127.0.0.1", port))
            .is_err()
            .then_some(())
    })
    .await;
    std::fs::remove_dir_all(folder).unwrap();
}
