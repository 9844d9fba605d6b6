//! Consul.

use std::sync::Arc;

use reqwest::Method;
use serde_json::Value;
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, Networked, open};
use crate::support::{Kind, Server};

/// Keys of its own on the server that all tests share.
pub struct Fresh {
    server: &'static Server,
    prefix: String,
}

fn url(port: u16, prefix: &str) -> String {
    format!("consul://127.0.0.1:{port}?prefix={prefix}/")
}

/// As it stands in a path.
fn key(prefix: &str, election: &ElectionName) -> String {
    format!("/v1/kv/{prefix}/cluster:{election}")
}

/// Asks the server something, as `curl` would.
async fn ask(server: &Server, method: Method, path: &str, token: &str, body: Vec<u8>) -> Value {
    let client = reqwest::Client::builder().tls_backend_preconfigured(trusting_nobody());
    let client = client.no_proxy().build().unwrap();
    let asked = client.request(method, format!("http://127.0.0.1:{}{path}", server.port));
    let asked = asked.header("x-consul-token", token).body(body);
    let answer = asked.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert!(status.is_success(), "{path}: {status} {text}");
    serde_json::from_str(&text).unwrap_or_default()
}

/// reqwest wants to know, also where it is not needed.
fn trusting_nobody() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

impl Fixture for Fresh {
    const RUBBISH_EXPIRES: bool = true;

    async fn start(test: &str) -> Option<Self> {
        let server = Server::shared(test, Kind::Consul)?;
        let prefix = test.to_owned();
        Some(Self { server, prefix })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&url(self.server.port, &self.prefix))
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        // No value is longer.
        let rubbish = rubbish[..rubbish.len().min(512 << 10)].to_vec();
        let key = key(&self.prefix, election);
        let put = ask(self.server, Method::PUT, &key, "", rubbish).await;
        assert_eq!(put, true);
    }

    async fn forget(&self, election: &ElectionName) {
        let key = key(&self.prefix, election);
        let deleted = ask(self.server, Method::DELETE, &key, "", Vec::new()).await;
        assert_eq!(deleted, true);
    }

    async fn list(&self) -> Vec<String> {
        let path = "/v1/kv/?keys&separator=";
        // Below a key that is always there, so that there is always a list.
        let marker = "/v1/kv/marker";
        ask(self.server, Method::PUT, marker, "", Vec::new()).await;
        let all = ask(self.server, Method::GET, path, "", Vec::new()).await;
        let keys = all.as_array().expect("a list").iter();
        let keys = keys.filter_map(Value::as_str).map(str::to_owned);
        keys.filter(|key| key.starts_with(&format!("{}/", self.prefix)))
            .collect()
    }
}

impl Networked for Fresh {
    fn port(&self) -> u16 {
        self.server.port
    }

    fn url_at(&self, port: u16) -> String {
        url(port, &self.prefix)
    }
}

mod consul_conforms {
    crate::conformance!(super::Fresh, on a network);
}

/// What only Consul can get wrong.
mod alone {
    use std::fs;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use reqwest::Method;
    use serde_json::json;
    use whenleader::lease::FailureKind::{Ambiguous, Fatal, Transient};
    use whenleader::lease::{Hint, Outcome};

    use super::{ask, url};
    use crate::suite::{
        Client, LONG, SHORT, denied, fails, held, impatient, leading, name, open, owner, refused,
    };
    use crate::support::{Kind, Proxy, Scripted, Server, TempDir, eventually};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_died_or_is_silent_is_replaced_within_the_attempt() {
        let Some(server) = Server::shared("a_connection_that_died", Kind::Consul) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let election = name("leader");
        let client = Client::new(&url(proxy.port, "died"), "a").await;
        let token = client.win(&election, LONG).await;
        for wait in [0, 50] {
            proxy.cut();
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert_eq!(held(client.renew(&election, LONG, token).await), token);
        }
        proxy.freeze();
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        proxy.freeze();
        let patience = Duration::from_millis(200);
        let attempt = client.attempt(&election, LONG, Some(token));
        assert!(tokio::time::timeout(patience, attempt).await.is_err());
        let start = Instant::now();
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_says_when_it_is_blind_and_hears_again_when_the_agent_is_back() {
        let test = "a_watch_says_when_it_is_blind_and_hears_again_when_the_agent_is_back";
        let Some(server) = Server::own(test, Kind::Consul, &[]) else {
            return;
        };
        let election = name("leader");
        let client = Client::new(&url(server.port, "x"), "a").await;
        let mut hearing = client.watch(&election).await;
        let token = client.win(&election, LONG).await;
        server.kill().await;
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        let error = client.attempt(&election, LONG, Some(token)).await;
        let error = error.expect_err("nobody is there");
        assert_eq!(error.code, "unreachable", "{error}");
        assert!(error.message.contains(&server.port.to_string()), "{error}");
        fails(&client, Transient, "unreachable").await;
        server.restart().await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        // It forgot nothing, so the term goes on.
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        assert!(client.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;

        let client = impatient(&url(server.port, "x"));
        let token = client.win(&election, LONG).await;
        server.freeze().await;
        let error = client.attempt(&election, LONG, Some(token)).await;
        let error = error.expect_err("no answer");
        assert_eq!((error.kind, error.code), (Ambiguous, "timeout"), "{error}");
        server.thaw().await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_token_that_lacks_a_right_is_told_the_rule_and_that_is_enough() {
        let test = "a_token_that_lacks_a_right_is_told_the_rule_and_that_is_enough";
        let Some(server) = Server::own(test, Kind::Consul, &["--acl"]) else {
            return;
        };
        let admin = server.told("/token");
        let url = |token: &str| {
            let port = server.port;
            format!("consul://:{token}@127.0.0.1:{port}?prefix=shop/leases/")
        };
        let make = async |name: &str, rules: &str| {
            let policy = json!({ "Name": name, "Rules": rules }).to_string();
            let path = "/v1/acl/policy";
            ask(&server, Method::PUT, path, admin, policy.into_bytes()).await;
            let token = json!({ "Policies": [{ "Name": name }] }).to_string();
            let path = "/v1/acl/token";
            let made = ask(&server, Method::PUT, path, admin, token.into_bytes()).await;
            made["SecretID"].as_str().unwrap().to_owned()
        };
        let stranger = "00000000-0000-0000-0000-s3cret";
        for (token, word) in [
            (stranger.to_owned(), "token"),
            (make("nothing", "").await, "key_prefix"),
            (
                make("reader", r#"key_prefix "shop/" { policy = "read" }"#).await,
                "key_prefix",
            ),
        ] {
            let error = refused(&url(&token), "refused").await;
            assert!(error.message.contains(word), "{error}");
            let client = Client {
                backend: open(&url(&token)),
                owner: owner("a"),
            };
            let attempted = fails(&client, Fatal, "refused").await;
            let shown = format!("{error:?} {attempted} {:?}", client.backend);
            assert!(!shown.contains(&token), "{shown}");
        }
        let nobody = format!("consul://127.0.0.1:{}?prefix=shop/leases/", server.port);
        let error = refused(&nobody, "refused").await;
        let (_, rule) = error.message.split_once("with the rule: ").unwrap();

        // Exactly that is enough, also from a file that is replaced while it is used.
        let (one, other) = (make("one", rule).await, make("other", rule).await);
        let dir = TempDir::new();
        let file = dir.path().join("token");
        fs::write(&file, format!("{one}\n")).unwrap();
        let by_file = format!("{nobody}&token_file={}", file.display());
        let (a, b) = (
            Client::new(&by_file, "a").await,
            Client::new(&url(&one), "b").await,
        );
        let election = name("the leader");
        let mut hearing = b.watch(&election).await;
        let token = a.win(&election, LONG).await;
        fs::write(&file, &other).unwrap();
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        fs::write(&file, stranger).unwrap();
        let error = a.attempt(&election, LONG, Some(token)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
        fs::write(&file, &other).unwrap();
        assert!(a.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;
        b.win(&election, LONG).await;
        fs::remove_file(&file).unwrap();
        let error = fails(&a, Fatal, "refused").await;
        assert!(error.message.contains("token cannot be read"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn tls_is_trusted_by_its_authority_and_a_certificate_is_shown() {
        let test = "tls_is_trusted_by_its_authority_and_a_certificate_is_shown";
        let Some(server) = Server::own(test, Kind::Consul, &["--mtls"]) else {
            return;
        };
        let (port, ca) = (server.port, server.told("/ca"));
        let (cert, key) = (server.told("/clientCert"), server.told("/clientKey"));
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("consuls://{host}:{port}?ca={ca}&cert={cert}&key={key}");
            let client = Client::new(&url, "a").await;
            let token = client.win(&name("leader"), LONG).await;
            assert!(client.release(&name("leader"), token).await);
        }
        refused(
            &format!("consuls://localhost:{port}?ca={ca}"),
            "certificate",
        )
        .await;
        refused(&format!("consuls://localhost:{port}"), "certificate").await;
        let error = open(&format!("consul://localhost:{port}")).prepare().await;
        let error = error.expect_err("it speaks TLS");
        assert!(error.message.contains("consuls://"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_datacenter_that_is_not_there_and_what_is_no_consul_are_named() {
        let test = "a_datacenter_that_is_not_there_and_what_is_no_consul_are_named";
        let Some(server) = Server::shared(test, Kind::Consul) else {
            return;
        };
        let here = format!("consul://127.0.0.1:{}?dc=dc1&prefix={test}/", server.port);
        Client::new(&here, "a")
            .await
            .win(&name("leader"), LONG)
            .await;
        let elsewhere = here.replace("dc1", "moon");
        let error = open(&elsewhere).prepare().await.expect_err("nowhere");
        assert_eq!(
            (error.kind, error.code),
            (Transient, "no-datacenter"),
            "{error}"
        );
        for (answer, kind, code, word) in [
            ("404 Not Found\r\n\r\nnone", Fatal, "unsuitable", "8500"),
            (
                "500 Oops\r\n\r\nNo cluster leader",
                Transient,
                "no-leader",
                "raft",
            ),
            (
                "429 Slow\r\n\r\nrate limit exceeded",
                Transient,
                "busy",
                "limit",
            ),
            ("502 Bad Gateway\r\n\r\n<html>", Transient, "store", "502"),
            ("200 OK\r\n\r\n<html>", Transient, "store", "<html>"),
        ] {
            let length = answer.len() - answer.find("\r\n\r\n").unwrap() - 4;
            let head = format!("HTTP/1.1 {answer}");
            let head = head.replacen(
                "\r\n\r\n",
                &format!("\r\nContent-Length: {length}\r\n\r\n"),
                1,
            );
            let server = Scripted::answering(head.into_bytes()).await;
            let url = server.url().replace("redis://", "consul://");
            let error = open(&url).prepare().await.expect_err("no Consul");
            assert_eq!((error.kind, error.code), (kind, code), "{error}");
            assert!(error.message.contains(word), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_without_a_leader_is_waited_for_and_forgets_nothing() {
        let test = "a_cluster_without_a_leader_is_waited_for_and_forgets_nothing";
        let Some(server) = Server::own(test, Kind::Consul, &["--cluster"]) else {
            return;
        };
        let (second, third) = (server.port_of("/member2"), server.port_of("/member3"));
        let url = format!(
            "consul://127.0.0.1:{},127.0.0.1:{second},127.0.0.1:{third}",
            server.port
        );
        let election = name("leader");
        let client = Client::new(&url, "a").await;
        let token = client.win(&election, LONG).await;
        let renewed =
            async |client: &Client| match client.attempt(&election, LONG, Some(token)).await {
                Ok(Outcome::Held { .. }) => Some(()),
                Ok(outcome @ Outcome::Other { .. }) => panic!("{outcome:?}"),
                Err(error) if error.kind == Fatal => panic!("{error}"),
                Err(_) => None,
            };
        server.ask(json!({ "do": "kill", "of": "server" })).await;
        eventually("two go on", async || renewed(&client).await).await;
        server.ask(json!({ "do": "kill", "of": "member2" })).await;
        let last = Client {
            backend: open(&format!("consul://127.0.0.1:{third}")),
            owner: client.owner.clone(),
        };
        eventually("the last one has no leader", async || {
            let error = last.attempt(&election, LONG, Some(token)).await.err()?;
            assert_ne!(error.kind, Fatal, "{error}");
            // An agent waits for a leader for seven seconds before it says so.
            matches!(error.code, "no-leader" | "timeout").then_some(())
        })
        .await;
        server.ask(json!({ "do": "restart", "of": "server" })).await;
        server
            .ask(json!({ "do": "restart", "of": "member2" }))
            .await;
        eventually("they have a leader again", async || renewed(&client).await).await;
        assert_eq!(
            client.leader(&election).await,
            Some(leading(&client, token))
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn so_many_elections_are_watched_and_more_are_polled() {
        let test = "so_many_elections_are_watched_and_more_are_polled";
        let Some(server) = Server::shared(test, Kind::Consul) else {
            return;
        };
        let client = Client::new(&url(server.port, test), "a").await;
        let mut hearings = Vec::new();
        for number in 0..32 {
            hearings.push(client.watch(&name(&format!("e{number}"))).await);
        }
        let election = name("one more");
        let (hints, mut heard) = tokio::sync::mpsc::channel(1);
        let watch = Arc::clone(&client.backend).watch(election.clone(), hints);
        let watch = tokio::spawn(watch.expect("it waits for room"));
        // It is never told that changes are heard, so its campaign asks at every interval.
        let told = tokio::time::timeout(SHORT, heard.recv()).await;
        assert!(told.is_err(), "{told:?}");
        let token = client.win(&election, LONG).await;
        assert!(client.release(&election, token).await);
        watch.abort();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hand_over_takes_milliseconds_and_a_takeover_one_lease() {
        let test = "a_hand_over_takes_milliseconds_and_a_takeover_one_lease";
        let Some(server) = Server::shared(test, Kind::Consul) else {
            return;
        };
        let election = name("leader");
        let (a, b) = (
            Client::new(&url(server.port, test), "a").await,
            Client::new(&url(server.port, test), "b").await,
        );
        let mut token = a.win(&election, LONG).await;
        let start = Instant::now();
        for _ in 0..50 {
            assert_eq!(held(a.renew(&election, LONG, token).await), token);
        }
        let renewal = start.elapsed() / 50;
        let (mut holder, mut other) = (&a, &b);
        let mut hand_overs = Vec::new();
        for _ in 0..20 {
            let mut hearing = other.watch(&election).await;
            denied(other.campaign(&election, LONG).await);
            let start = Instant::now();
            assert!(holder.release(&election, token).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
            token = other.win(&election, LONG).await;
            hand_overs.push(start.elapsed());
            (holder, other) = (other, holder);
        }
        hand_overs.sort();
        let last = holder.win(&election, SHORT).await;
        let start = Instant::now();
        assert!(other.take_over(&election, SHORT).await > last);
        println!(
            "FIGURES: Consul: a renewal {renewal:?}, 1 request; a hand-over {:?} (the slowest of 20: {:?}); a takeover after {:.2} leases",
            hand_overs[10],
            hand_overs[19],
            start.elapsed().as_secs_f64() / SHORT.as_secs_f64()
        );
    }
}
