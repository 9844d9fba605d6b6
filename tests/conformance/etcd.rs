//! etcd.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, Networked, open};
use crate::support::{Kind, Server};

/// Keys of its own on the server that all tests share.
pub struct Fresh {
    server: &'static Server,
    prefix: String,
}

impl Fresh {
    fn url(&self) -> String {
        format!("{}?prefix={}", url(self.server), self.prefix)
    }
}

fn url(server: &Server) -> String {
    format!("etcd://127.0.0.1:{}", server.port)
}

fn key(prefix: &str, election: &ElectionName, what: &str) -> String {
    BASE64.encode(format!("{prefix}cluster:{election}/{what}"))
}

/// Asks the server something, as `curl` would.
async fn ask(server: &Server, path: &str, body: Value) -> Value {
    let url = format!("http://127.0.0.1:{}{path}", server.port);
    let client = reqwest::Client::builder().tls_backend_preconfigured(trusting_nobody());
    let client = client.no_proxy().build().unwrap();
    let answer = client.post(url).json(&body).send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert!(status.is_success(), "{path} {body}: {status} {text}");
    serde_json::from_str(&text).unwrap()
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
    const RUBBISH_EXPIRES: bool = false;
    /// Whole seconds, and two at least.
    const STEP: std::time::Duration = std::time::Duration::from_secs(2);

    async fn start(test: &str) -> Option<Self> {
        let server = Server::shared(test, Kind::Etcd)?;
        let prefix = format!("{test}/");
        Some(Self { server, prefix })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.url())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let key = key(&self.prefix, election, "lease");
        let put = json!({ "key": key, "value": BASE64.encode(rubbish) });
        ask(self.server, "/v3/kv/put", put).await;
    }

    async fn forget(&self, election: &ElectionName) {
        for what in ["lease", "token"] {
            let key = key(&self.prefix, election, what);
            ask(self.server, "/v3/kv/deleterange", json!({ "key": key })).await;
        }
    }

    async fn list(&self) -> Vec<String> {
        let [from, to] = ["", "\u{7f}"].map(|end| BASE64.encode(format!("{}{end}", self.prefix)));
        let asked = json!({ "key": from, "range_end": to, "keys_only": true });
        let all = ask(self.server, "/v3/kv/range", asked).await;
        let keys = all["kvs"].as_array().into_iter().flatten();
        keys.map(|key| key["key"].to_string()).collect()
    }
}

impl Networked for Fresh {
    const LOOKS_FIRST: bool = true;

    fn port(&self) -> u16 {
        self.server.port
    }

    fn url_at(&self, port: u16) -> String {
        format!("etcd://127.0.0.1:{port}?prefix={}", self.prefix)
    }
}

mod etcd_conforms {
    crate::conformance!(super::Fresh, on a network);
}

/// What only etcd can get wrong.
mod alone {
    use std::collections::HashSet;
    use std::io::Write as _;
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use base64::Engine as _;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;
    use whenleader::backend::{self, BackendError, StoreOptions};
    use whenleader::clock::SystemClock;
    use whenleader::lease::FailureKind::{self, Ambiguous, Fatal, Transient};
    use whenleader::lease::{Hint, Outcome, Token};

    use super::{BASE64, Fresh, ask, key, trusting_nobody, url};
    use crate::suite::{
        Client, Fixture as _, LONG, PartlyHeard, SHORT, denied, hears_what_it_may, held, leading,
        name, open, owner,
    };
    use crate::support::{Kind, Proxy, Server, Trouble, eventually, free_port};

    const PATIENCE: Duration = Duration::from_millis(1500);

    /// Gives up sooner than people would.
    fn impatient(url: &str) -> Client {
        let mut options = StoreOptions::new(".");
        options.request_timeout = PATIENCE;
        options.connect_timeout = PATIENCE;
        let backend = backend::open(url, &options, Arc::new(SystemClock)).unwrap();
        let owner = owner("impatient");
        Client { backend, owner }
    }

    fn unprepared(url: &str) -> Client {
        let (backend, owner) = (open(url), owner("unprepared"));
        Client { backend, owner }
    }

    fn through(proxy: &Proxy) -> String {
        format!("etcd://127.0.0.1:{}", proxy.port)
    }

    async fn fails(client: &Client, kind: FailureKind, code: &str) -> BackendError {
        let attempt = client.attempt(&name("leader"), LONG, None).await;
        let error = attempt.expect_err("a failure");
        assert_eq!((error.kind, error.code), (kind, code), "{error}");
        error
    }

    async fn is_refused_at_start(url: &str, code: &str) -> BackendError {
        let error = open(url).prepare().await.expect_err(code);
        assert_eq!((error.kind, error.code), (Fatal, code), "{error}");
        error
    }

    /// The numbers of all leases that a server has granted and not yet ended.
    async fn leases(server: &Server) -> HashSet<String> {
        let told = ask(server, "/v3/lease/leases", json!({})).await;
        let leases = told["leases"].as_array().into_iter().flatten();
        leases.map(|lease| lease["ID"].to_string()).collect()
    }

    async fn keys(server: &Server) -> usize {
        let all = json!({ "key": BASE64.encode("\0"), "range_end": BASE64.encode("\0"), "count_only": true });
        let told = ask(server, "/v3/kv/range", all).await;
        told["count"]
            .as_str()
            .map_or(0, |count| count.parse().unwrap())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn wherever_a_connection_breaks_nothing_is_led_twice_and_no_lease_is_left() {
        let test = "wherever_a_connection_breaks_nothing_is_led_twice_and_no_lease_is_left";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let election = name("leader");
        let (mut last, mut broke, mut won) = (None, 0, 0);
        for length in (0..2000).step_by(40) {
            let far = impatient(&through(&proxy));
            proxy.set(Trouble::CutAfter(length));
            let outcome = far.attempt(&election, LONG, None).await;
            proxy.set(Trouble::None);
            match outcome {
                Ok(outcome) => {
                    let token = held(outcome);
                    assert!(last < Some(token), "{length}: {token}");
                    last = Some(token);
                    assert_eq!(held(far.renew(&election, LONG, token).await), token);
                    won += 1;
                }
                Err(error) => {
                    assert_ne!(error.kind, Fatal, "{length}: {error}");
                    broke += 1;
                }
            }
            let token = far.win(&election, LONG).await;
            assert!(last < Some(token), "{length}: {token}");
            last = Some(token);
            assert!(far.release(&election, token).await);
            far.backend.close().await;
        }
        assert!(broke > 5 && won > 5, "broke {broke} times, won {won} times");
        // What was in flight when it was given up arrives first.
        eventually("all leases are given back", async || {
            leases(&server).await.is_empty().then_some(())
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_attempt_that_is_given_up_at_any_moment_leaves_nothing_that_lasts() {
        let test = "an_attempt_that_is_given_up_at_any_moment_leaves_nothing_that_lasts";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = Client::new(&through(&proxy), "a").await;
        let election = name("leader");
        proxy.set(Trouble::Delay(Duration::from_millis(10)));
        // A grant may arrive behind its own revocation, and then lasts as long as it was asked for.
        let short = Duration::from_secs(5);
        for patience in 1..80 {
            let attempt = client.attempt(&election, short, None);
            let patience = Duration::from_millis(patience);
            let _ = tokio::time::timeout(patience, attempt).await;
        }
        proxy.set(Trouble::None);
        let token = client.win(&election, LONG).await;
        assert!(client.release(&election, token).await);
        client.backend.close().await;
        eventually("all leases are given back, or over", async || {
            leases(&server).await.is_empty().then_some(())
        })
        .await;
        assert_eq!(keys(&server).await, 1, "the token alone");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_many_who_race_only_the_winner_keeps_a_lease() {
        let test = "of_many_who_race_only_the_winner_keeps_a_lease";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let mut racers = Vec::new();
        for number in 0..8 {
            let client = Client::new(&url(&server), &format!("racer-{number}")).await;
            racers.push(tokio::spawn(async move {
                matches!(
                    client.campaign(&name("leader"), LONG).await,
                    Outcome::Held { .. }
                )
            }));
        }
        let mut winners = 0;
        for racer in racers {
            winners += usize::from(racer.await.unwrap());
        }
        assert_eq!((winners, leases(&server).await.len()), (1, 1));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_start_tries_everything_and_leaves_nothing() {
        let test = "a_start_tries_everything_and_leaves_nothing";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        Client::new(&url(&server), "a").await;
        assert_eq!((keys(&server).await, leases(&server).await.len()), (0, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_start_that_is_given_up_at_any_moment_leaves_nothing_that_lasts() {
        let test = "a_start_that_is_given_up_at_any_moment_leaves_nothing_that_lasts";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        proxy.set(Trouble::Delay(Duration::from_millis(10)));
        for patience in (5..150).step_by(5) {
            let client = unprepared(&through(&proxy));
            let start = client.backend.prepare();
            let _ = tokio::time::timeout(Duration::from_millis(patience), start).await;
        }
        let mut most = 0;
        eventually("all keys go with their leases", async || {
            let left = keys(&server).await;
            most = left.max(most);
            (left == 0).then_some(())
        })
        .await;
        assert!(most > 0, "none was given up in the middle");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_release_that_was_sent_twice_was_done() {
        let test = "a_release_that_was_sent_twice_was_done";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let url = format!("{}?prefix={test}", through(&proxy));
        let client = impatient(&url);
        let election = name("leader");
        let token = client.win(&election, LONG).await;
        // The first copy comes through, and its answer never does.
        proxy.set(Trouble::HoldAnswers);
        let release = client.release(&election, token);
        let thaw = async {
            tokio::time::sleep(PATIENCE / 5).await;
            proxy.freeze();
            proxy.set(Trouble::None);
        };
        let (released, ()) = tokio::join!(release, thaw);
        assert!(released);
        assert_eq!(client.leader(&election).await, None);
        assert!(!client.release(&election, token).await, "nothing is left");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_died_idle_is_replaced_within_the_attempt() {
        let test = "a_connection_that_died_idle_is_replaced_within_the_attempt";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let client = Client::new(&format!("{}?prefix={test}", through(&proxy)), "a").await;
        let token = client.win(&name("leader"), LONG).await;
        for wait in [0, 50] {
            proxy.cut();
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert_eq!(
                held(client.renew(&name("leader"), LONG, token).await),
                token
            );
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_whose_other_end_vanished_does_not_cost_the_attempt() {
        let test = "a_connection_whose_other_end_vanished_does_not_cost_the_attempt";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let client = impatient(&format!("{}?prefix={test}", through(&proxy)));
        let token = client.win(&name("leader"), LONG).await;
        for _ in 0..3 {
            proxy.freeze();
            assert_eq!(
                held(client.renew(&name("leader"), LONG, token).await),
                token
            );
        }
        // Nor does it cost the next one if the attempt was given up.
        proxy.freeze();
        let election = name("leader");
        let attempt = client.attempt(&election, LONG, Some(token));
        let patience = Duration::from_millis(100);
        assert!(tokio::time::timeout(patience, attempt).await.is_err());
        let (start, connections) = (Instant::now(), proxy.connections());
        assert_eq!(
            held(client.renew(&name("leader"), LONG, token).await),
            token
        );
        assert!(proxy.connections() > connections);
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_answer_that_never_comes_is_ambiguous_and_extends_nothing() {
        let test = "an_answer_that_never_comes_is_ambiguous_and_extends_nothing";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = impatient(&through(&proxy));
        let election = name("leader");
        let token = client.win(&election, LONG).await;
        proxy.set(Trouble::HoldAnswers);
        let renewal = client.attempt(&election, LONG, Some(token)).await;
        let error = renewal.expect_err("no answer");
        assert_eq!((error.kind, error.code), (Ambiguous, "timeout"), "{error}");
        // A campaign had written nothing yet.
        fails(&client, Transient, "timeout").await;
        proxy.set(Trouble::None);
        assert!(client.win(&election, LONG).await > token);
        server.freeze().await;
        let token = client
            .backend
            .peek(&election)
            .await
            .expect_err("it stands still");
        assert_eq!((token.kind, token.code), (Transient, "timeout"), "{token}");
        server.thaw().await;
        client.win(&election, LONG).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_is_gone_is_unreachable_and_knows_the_lease_when_it_is_back() {
        let test = "a_server_that_is_gone_is_unreachable_and_knows_the_lease_when_it_is_back";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let election = name("leader");
        let client = Client::new(&url(&server), "a").await;
        let token = client.win(&election, LONG).await;
        server.kill().await;
        let renewal = client.attempt(&election, LONG, Some(token)).await;
        assert_eq!(renewal.expect_err("it is gone").code, "unreachable");
        let error = fails(&client, Transient, "unreachable").await;
        assert!(error.message.contains(&server.port.to_string()), "{error}");
        server.restart().await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_member_that_is_gone_or_silent_is_passed_over_within_the_attempt() {
        let test = "a_member_that_is_gone_or_silent_is_passed_over_within_the_attempt";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let silent = Proxy::to(store.server.port).await;
        silent.set(Trouble::HalfOpen);
        for (others, number) in [
            (vec![free_port()], 1),
            (vec![silent.port], 2),
            (vec![free_port(), silent.port, free_port()], 3),
        ] {
            let others: Vec<_> = others
                .iter()
                .map(|port| format!("127.0.0.1:{port}"))
                .collect();
            let url = format!(
                "etcd://{},127.0.0.1:{}?prefix={test}-{number}/",
                others.join(","),
                store.server.port
            );
            let client = impatient(&url);
            let token = client.win(&name("leader"), LONG).await;
            // From now on nobody is waited for.
            let start = Instant::now();
            for _ in 0..10 {
                assert_eq!(
                    held(client.renew(&name("leader"), LONG, token).await),
                    token
                );
            }
            assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
        }
        // With none left, all are named.
        let gone = [free_port(), free_port()];
        let client = impatient(&format!(
            "etcd://127.0.0.1:{},127.0.0.1:{}",
            gone[0], gone[1]
        ));
        let error = fails(&client, Transient, "unreachable").await;
        for port in gone {
            let named = error
                .message
                .matches(&format!("http://127.0.0.1:{port} "))
                .count();
            assert_eq!(named, 1, "{error}");
        }
    }

    // ---- a cluster ----

    /// Three members, by name and port.
    struct Members(Server);

    impl Members {
        fn start(test: &str) -> Option<Self> {
            Server::own(test, Kind::Etcd, &["--cluster"]).map(Self)
        }

        fn port(&self, name: &str) -> u16 {
            match name {
                "server" => self.0.port,
                name => {
                    let url = self.0.told(&format!("/{name}"));
                    url.rsplit(':').next().unwrap().parse().unwrap()
                }
            }
        }

        fn url(&self, names: &[&str]) -> String {
            let hosts: Vec<_> = names
                .iter()
                .map(|name| format!("127.0.0.1:{}", self.port(name)))
                .collect();
            format!("etcd://{}", hosts.join(","))
        }

        /// The member that leads the others, and these.
        async fn leader_and_others(&self) -> (&'static str, Vec<&'static str>) {
            let names = ["server", "member2", "member3"];
            let leader = eventually("they have a leader", async || {
                for name in names {
                    let status = status_at(self.port(name)).await?;
                    if status["header"]["member_id"] == status["leader"] {
                        return Some(name);
                    }
                }
                None
            })
            .await;
            (
                leader,
                names.into_iter().filter(|name| *name != leader).collect(),
            )
        }

        async fn tell(&self, what: &str, of: &str) {
            self.0.ask(json!({ "do": what, "of": of })).await;
        }
    }

    async fn status_at(port: u16) -> Option<Value> {
        let client = reqwest::Client::builder().tls_backend_preconfigured(trusting_nobody());
        let client = client.no_proxy().timeout(PATIENCE).build().unwrap();
        let url = format!("http://127.0.0.1:{port}/v3/maintenance/status");
        client
            .post(url)
            .body("{}")
            .send()
            .await
            .ok()?
            .json()
            .await
            .ok()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_that_loses_its_leader_keeps_the_lease_and_the_next_renewals_find_it() {
        let test = "a_cluster_that_loses_its_leader_keeps_the_lease_and_the_next_renewals_find_it";
        let Some(members) = Members::start(test) else {
            return;
        };
        let all = members.url(&["server", "member2", "member3"]);
        let (a, b) = (impatient(&all), impatient(&all));
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        let (leader, _) = members.leader_and_others().await;
        for trouble in ["kill", "freeze"] {
            members.tell(trouble, leader).await;
            eventually("the others have a leader", async || {
                match a.attempt(&election, LONG, Some(token)).await {
                    Ok(outcome) => (held(outcome) == token).then_some(()),
                    Err(error) => {
                        assert_ne!(error.kind, Fatal, "{error}");
                        None
                    }
                }
            })
            .await;
            let (other, remaining) = denied(b.campaign(&election, LONG).await);
            assert_eq!(other, Some(leading(&a, token)));
            assert!(
                remaining.is_some_and(|left| left > LONG / 2),
                "{remaining:?}"
            );
            let back = if trouble == "kill" { "restart" } else { "thaw" };
            members.tell(back, leader).await;
        }
        assert!(a.release(&election, token).await);
        assert!(b.win(&election, LONG).await > token);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn without_most_of_its_members_nothing_is_granted_and_nobody_hears() {
        let test = "without_most_of_its_members_nothing_is_granted_and_nobody_hears";
        let Some(members) = Members::start(test) else {
            return;
        };
        let (leader, others) = members.leader_and_others().await;
        let election = name("leader");
        // Of one that was cut off together with etcd's leader, and of one that was not.
        let near = impatient(&members.url(&[leader]));
        let far = impatient(&members.url(&[others[0]]));
        let token = near.win(&election, LONG).await;
        let mut hearing = near.watch(&election).await;
        members.tell("freeze", others[0]).await;
        members.tell("freeze", others[1]).await;
        for _ in 0..3 {
            for term in [Some(token), None] {
                for client in [&near, &far] {
                    let attempt = client.attempt(&election, LONG, term).await;
                    let error = attempt.expect_err("nobody can agree");
                    assert_ne!(error.kind, Fatal, "{error}");
                }
            }
        }
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        members.tell("thaw", others[0]).await;
        members.tell("thaw", others[1]).await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        let outcome = eventually("most of them are back", async || {
            near.attempt(&election, LONG, Some(token)).await.ok()
        })
        .await;
        assert_eq!(held(outcome), token);
    }

    // ---- what it says ----

    /// A server that answers as a test wants it.
    struct Canned {
        port: u16,
        task: JoinHandle<()>,
    }

    impl Canned {
        async fn answering(
            answer: impl Fn(&str, &Value) -> (u16, String) + Send + Sync + 'static,
        ) -> Self {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let answer = Arc::new(answer);
            let task = tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let answer = Arc::clone(&answer);
                    tokio::spawn(async move { serve(client, &*answer).await });
                }
            });
            Self { port, task }
        }

        fn url(&self) -> String {
            format!("etcd://127.0.0.1:{}", self.port)
        }
    }

    impl Drop for Canned {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    async fn serve(
        client: TcpStream,
        answer: &impl Fn(&str, &Value) -> (u16, String),
    ) -> Option<()> {
        let mut client = BufReader::new(client);
        loop {
            let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
            client.read_line(&mut first).await.ok()?;
            while line != "\r\n" {
                line.clear();
                if client.read_line(&mut line).await.ok()? == 0 {
                    return None;
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().ok()?;
                }
            }
            let mut body = vec![0; length];
            client.read_exact(&mut body).await.ok()?;
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, text) = answer(first.split(' ').nth(1)?, &body);
            let head = format!(
                "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n",
                text.len()
            );
            client.write_all((head + &text).as_bytes()).await.ok()?;
        }
    }

    #[tokio::test]
    async fn what_it_cannot_do_now_passes_and_what_must_be_mended_says_how() {
        for (status, said, kind, code, advice) in [
            (
                503,
                "etcdserver: no leader",
                Transient,
                "no-leader",
                "etcdctl endpoint status",
            ),
            (
                503,
                "etcdserver: leader changed",
                Transient,
                "failover",
                "another leader",
            ),
            (
                503,
                "etcdserver: request timed out",
                Transient,
                "timeout",
                "half",
            ),
            (
                503,
                "etcdserver: request timed out, possibly due to connection lost",
                Transient,
                "timeout",
                "",
            ),
            (
                429,
                "etcdserver: too many requests",
                Transient,
                "busy",
                "behind",
            ),
            (
                429,
                "etcdserver: mvcc: database space exceeded",
                Transient,
                "full",
                "etcdctl defrag",
            ),
            (
                403,
                "etcdserver: permission denied",
                Fatal,
                "refused",
                "grant-permission",
            ),
            (
                400,
                "etcdserver: user name is empty",
                Fatal,
                "refused",
                "user:password@",
            ),
            (
                503,
                "etcdserver: rpc not supported for learner",
                Transient,
                "read-only",
                "voting",
            ),
            (
                500,
                "etcdserver: corrupt cluster",
                Fatal,
                "store",
                "alarm list",
            ),
            (
                500,
                "something new",
                Transient,
                "store",
                "500: something new",
            ),
            (
                400,
                "something new",
                Transient,
                "store",
                "400: something new",
            ),
            (302, "", Transient, "store", "302"),
        ] {
            let text = if said.is_empty() {
                "moved".to_owned()
            } else {
                json!({ "code": 1, "message": said }).to_string()
            };
            let server = Canned::answering(move |_, _| (status, text.clone())).await;
            let error = fails(&unprepared(&server.url()), kind, code).await;
            let words = format!("{said}{advice}");
            assert!(
                error.message.contains(said) && error.message.contains(advice),
                "{words}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn a_write_whose_fate_the_answer_leaves_open_is_ambiguous() {
        for (status, said, kind) in [
            (503, "etcdserver: request timed out", Ambiguous),
            (503, "etcdserver: leader changed", Ambiguous),
            (503, "rpc error: transport is closing", Ambiguous),
            (429, "etcdserver: too many requests", Transient),
            (429, "etcdserver: mvcc: database space exceeded", Transient),
        ] {
            let text = json!({ "message": said }).to_string();
            let server = Canned::answering(move |path, asked| match path {
                "/v3/kv/txn" if asked["compare"].is_null() => (200, both_absent()),
                "/v3/lease/grant" => (200, json!({ "TTL": "60" }).to_string()),
                _ => (status, text.clone()),
            })
            .await;
            let attempt = unprepared(&server.url())
                .attempt(&name("leader"), LONG, None)
                .await;
            let error = attempt.expect_err(said);
            assert_eq!(error.kind, kind, "{error}");
        }
    }

    /// A server that grants every lease, and has no keys until one is written.
    async fn granting(
        answer: impl Fn(&str, &Value) -> Option<(u16, Value)> + Send + Sync + 'static,
    ) -> (Canned, Arc<std::sync::Mutex<Vec<String>>>) {
        let revoked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let told = Arc::clone(&revoked);
        let server = Canned::answering(move |path, asked| {
            if path == "/v3/lease/revoke" {
                let id = asked["ID"].as_str().unwrap().to_owned();
                told.lock().unwrap().push(id);
            }
            if let Some((status, value)) = answer(path, asked) {
                return (status, value.to_string());
            }
            match path {
                "/v3/kv/txn" if asked["compare"].is_null() => (200, both_absent()),
                "/v3/lease/grant" => (200, json!({ "TTL": "60" }).to_string()),
                _ => (200, json!({ "succeeded": true }).to_string()),
            }
        })
        .await;
        (server, revoked)
    }

    #[tokio::test]
    async fn a_lease_that_a_living_term_may_hang_on_is_never_ended() {
        let record = Arc::new(std::sync::Mutex::new(Value::Null));
        let written = Arc::clone(&record);
        let unsure = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let unanswered = Arc::clone(&unsure);
        let (server, revoked) = granting(move |path, asked| match path {
            "/v3/kv/txn" if asked["compare"].is_null() => {
                let kv = written.lock().unwrap().clone();
                if kv.is_null() {
                    return None;
                }
                let there = json!({ "response_range": { "header": {}, "kvs": [kv] } });
                let absent = json!({ "response_range": { "header": {} } });
                let answers = [there, absent];
                Some((200, json!({ "succeeded": true, "responses": answers })))
            }
            "/v3/kv/txn" => {
                let mut kv = asked["success"][0]["request_put"].clone();
                kv["mod_revision"] = "7".into();
                *written.lock().unwrap() = kv;
                let said = json!({ "message": "etcdserver: request timed out" });
                let done = !unanswered.load(Ordering::Relaxed);
                (!done).then_some((503, said))
            }
            _ => None,
        })
        .await;
        let client = unprepared(&server.url());
        let token = client.win(&name("leader"), LONG).await;
        // For another duration, so on another lease; and nobody says that it was done.
        unsure.store(true, Ordering::Relaxed);
        let renewal = client.attempt(&name("leader"), LONG * 2, Some(token)).await;
        assert_eq!(renewal.expect_err("no answer").kind, Ambiguous);
        // Whatever it does next, it does not end that lease.
        unsure.store(false, Ordering::Relaxed);
        *record.lock().unwrap() = Value::Null;
        client.win(&name("other"), LONG).await;
        client.backend.close().await;
        let revoked = revoked.lock().unwrap().clone();
        assert!(revoked.is_empty(), "{revoked:?}");
    }

    #[tokio::test]
    async fn a_lease_whose_grant_may_come_late_is_ended_twice() {
        let grants = AtomicUsize::new(0);
        let (server, revoked) = granting(move |path, _| match path {
            "/v3/lease/grant" if grants.fetch_add(1, Ordering::Relaxed) == 0 => {
                Some((503, json!({ "message": "etcdserver: request timed out" })))
            }
            "/v3/lease/revoke" => {
                let words = "etcdserver: requested lease not found";
                Some((404, json!({ "message": words })))
            }
            _ => None,
        })
        .await;
        let client = unprepared(&server.url());
        let attempt = client.attempt(&name("leader"), LONG, None).await;
        assert_eq!(attempt.expect_err("no answer").kind, Ambiguous);
        for _ in 0..4 {
            client.win(&name("leader"), LONG).await;
        }
        let revoked = revoked.lock().unwrap().clone();
        assert_eq!(revoked.len(), 2, "{revoked:?}");
        assert_eq!(revoked[0], revoked[1]);
    }

    #[tokio::test]
    async fn a_start_whose_lease_ran_out_meanwhile_says_so_and_may_be_tried_again() {
        for (slow, kind, code) in [(true, Transient, "timeout"), (false, Fatal, "unsuitable")] {
            let writes = AtomicUsize::new(0);
            let (server, _) = granting(move |path, asked| match path {
                "/v3/lease/grant" => Some((200, json!({ "TTL": "1" }))),
                "/v3/kv/txn" if !asked["compare"].is_null() => {
                    // Each is done as if there were no keys: those of the first one are gone.
                    if slow && writes.fetch_add(1, Ordering::Relaxed) == 0 {
                        std::thread::sleep(Duration::from_millis(1100));
                    }
                    None
                }
                _ => None,
            })
            .await;
            let start = unprepared(&server.url()).backend.prepare().await;
            let error = start.expect_err("what was written is gone");
            assert_eq!((error.kind, error.code), (kind, code), "{error}");
        }
    }

    fn both_absent() -> String {
        let absent = json!({ "response_range": { "header": {} } });
        json!({ "header": { "raft_term": "2" }, "succeeded": true, "responses": [absent, absent] })
            .to_string()
    }

    /// Its record is whatever was written last. Leases are kept alive by a leader of one term, and reading is
    /// confirmed by one of another.
    #[tokio::test]
    async fn a_renewal_by_a_leader_that_was_replaced_meanwhile_is_asked_for_again() {
        let terms = Arc::new(AtomicUsize::new(0));
        let (asked_for, record) = (Arc::clone(&terms), std::sync::Mutex::new(Value::Null));
        let server = Canned::answering(move |path, asked| {
            let header = |term: usize| json!({ "raft_term": term.to_string() });
            let answer = match path {
                "/v3/kv/txn" if asked["compare"].is_null() => return (200, both_absent()),
                "/v3/kv/txn" => {
                    *record.lock().unwrap() = asked["success"][0]["request_put"].clone();
                    json!({ "header": header(2), "succeeded": true })
                }
                "/v3/lease/grant" => json!({ "header": header(2), "TTL": "60" }),
                // An old leader answers twice, then nobody believes it any more.
                "/v3/lease/keepalive" => {
                    let old = asked_for.fetch_add(1, Ordering::Relaxed) < 2;
                    let term = if old { 2 } else { 3 };
                    json!({ "result": { "header": header(term), "TTL": "60" } })
                }
                "/v3/kv/range" => {
                    let mut kv = record.lock().unwrap().clone();
                    kv["mod_revision"] = "7".into();
                    json!({ "header": header(3), "kvs": [kv], "count": "1" })
                }
                _ => json!({}),
            };
            (200, answer.to_string())
        })
        .await;
        let client = unprepared(&server.url());
        let token = client.win(&name("leader"), LONG).await;
        assert_eq!(
            held(client.renew(&name("leader"), LONG, token).await),
            token
        );
        assert_eq!(terms.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn what_etcd_never_says_is_no_leadership() {
        for nonsense in [
            "",
            "null",
            "{}",
            "[]",
            "OK",
            r#"{"succeeded":true}"#,
            r#"{"succeeded":true,"responses":[]}"#,
            r#"{"header":{},"responses":[{"response_range":{"header":{},"kvs":[]}},{}]}"#,
            r#"{"header":{},"responses":[{"response_range":{"header":{},"kvs":[{"value":"!"}]}},{"response_range":{"header":{}}}]}"#,
        ] {
            let server = Canned::answering(move |_, _| (200, nonsense.to_owned())).await;
            let client = unprepared(&server.url());
            let token = Token::new(7).unwrap();
            for term in [None, Some(token)] {
                let attempt = client.attempt(&name("leader"), LONG, term).await;
                attempt.expect_err(nonsense);
            }
            client
                .backend
                .peek(&name("leader"))
                .await
                .expect_err(nonsense);
            client.backend.prepare().await.expect_err(nonsense);
        }
    }

    #[tokio::test]
    async fn an_etcd_that_is_too_old_is_refused_with_its_version() {
        let server = Canned::answering(|path, _| match path {
            "/version" => (
                200,
                r#"{"etcdserver":"3.3.27","etcdcluster":"3.3.0"}"#.into(),
            ),
            _ => (404, "404 page not found\n".into()),
        })
        .await;
        let error = is_refused_at_start(&server.url(), backend::UNSUITABLE).await;
        for word in ["3.3.27", "3.4 or later", "--enable-grpc-gateway"] {
            assert!(error.message.contains(word), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_etcd_without_its_gateway_is_refused() {
        let test = "an_etcd_without_its_gateway_is_refused";
        let args = ["--flag=--enable-grpc-gateway=false"];
        let Some(server) = Server::own(test, Kind::Etcd, &args) else {
            return;
        };
        let error = is_refused_at_start(&url(&server), backend::UNSUITABLE).await;
        assert!(error.message.contains("--enable-grpc-gateway"), "{error}");
    }

    // ---- leases and records ----

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_granted_is_what_counts_also_if_it_is_more_than_was_asked_for() {
        let test = "what_was_granted_is_what_counts_also_if_it_is_more_than_was_asked_for";
        let slow = [
            "--flag=--election-timeout=4000",
            "--flag=--heartbeat-interval=400",
        ];
        let Some(server) = Server::own(test, Kind::Etcd, &slow) else {
            return;
        };
        let client = Client::new(&url(&server), "a").await;
        let six = Duration::from_secs(6);
        for asked in [SHORT, Duration::from_secs(2), Duration::from_millis(5001)] {
            let token = client.win(&name("leader"), asked).await;
            match client.renew(&name("leader"), asked, token).await {
                Outcome::Held { valid_for, .. } => assert_eq!(valid_for, six),
                outcome @ Outcome::Other { .. } => panic!("{outcome:?}"),
            }
        }
        // Up to whole seconds, never down.
        let whole = client
            .campaign(&name("leader"), Duration::from_millis(7001))
            .await;
        let eight = Duration::from_secs(8);
        assert!(
            matches!(whole, Outcome::Held { valid_for, .. } if valid_for == eight),
            "{whole:?}"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_asks_when_it_was_told_asks_a_few_times_only() {
        let test = "who_asks_when_it_was_told_asks_a_few_times_only";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let (a, b) = (store.client("a").await, store.client("b").await);
        let election = name("leader");
        let start = Instant::now();
        a.win(&election, Duration::from_secs(3)).await;
        let mut asked = 0;
        while let Outcome::Other { remaining, .. } = b.campaign(&election, LONG).await {
            asked += 1;
            tokio::time::sleep(remaining.expect("a time")).await;
        }
        assert!(start.elapsed() >= Duration::from_secs(3));
        assert!(asked <= 6, "asked {asked} times");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_record_that_was_written_over_in_place_is_hung_on_a_lease_again() {
        let test = "a_record_that_was_written_over_in_place_is_hung_on_a_lease_again";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let (a, b) = (store.client("a").await, store.client("b").await);
        let election = name("leader");
        let token = a.win(&election, SHORT).await;
        let record = key(&store.prefix, &election, "lease");
        let found = ask(store.server, "/v3/kv/range", json!({ "key": record })).await;
        let value = found["kvs"][0]["value"].clone();
        // As `etcdctl put` does it: the lease is forgotten, and the record would stay for ever.
        ask(
            store.server,
            "/v3/kv/put",
            json!({ "key": record, "value": value }),
        )
        .await;
        let error = b
            .attempt(&election, SHORT, None)
            .await
            .expect_err("it has no end");
        assert_eq!((error.kind, error.code), (Fatal, "bad-record"), "{error}");
        assert!(error.message.contains("etcdctl del"), "{error}");
        assert_eq!(held(a.renew(&election, SHORT, token).await), token);
        assert!(b.take_over(&election, SHORT).await > token);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_term_is_renewed_and_released_also_by_who_does_not_know_its_lease() {
        let test = "a_term_is_renewed_and_released_also_by_who_does_not_know_its_lease";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let (a, mut again) = (store.client("a").await, store.client("a").await);
        again.owner = a.owner.clone();
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        assert_eq!(held(again.renew(&election, LONG, token).await), token);
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        assert!(!again.release(&election, Token::FIRST).await);
        let third = store.client("a").await;
        let released = third.backend.release(&election, &a.owner, token).await;
        assert!(released.unwrap());
        assert_eq!(a.leader(&election).await, None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_token_that_was_tampered_with_is_named_or_outgrown() {
        let test = "a_token_that_was_tampered_with_is_named_or_outgrown";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let client = store.client("a").await;
        let election = name("leader");
        let last = client.win(&election, LONG).await;
        let kept = key(&store.prefix, &election, "token");
        let put = async |value: &str| {
            let put = json!({ "key": kept, "value": BASE64.encode(value) });
            ask(store.server, "/v3/kv/put", put).await;
        };
        for lower in ["1", "5"] {
            put(lower).await;
            assert!(client.win(&election, LONG).await > last);
        }
        for rubbish in [
            "",
            "x",
            "-1",
            "9007199254740991",
            "9007199254740992",
            "\u{1f980}",
        ] {
            put(rubbish).await;
            let error = client
                .attempt(&election, LONG, None)
                .await
                .expect_err(rubbish);
            assert_eq!(
                (error.kind, error.code),
                (Fatal, "bad-record"),
                "{rubbish}: {error}"
            );
            assert!(error.message.contains("/token"), "{rubbish}: {error}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_whose_disk_is_full_keeps_the_leader_and_grants_nothing_new() {
        let test = "a_cluster_whose_disk_is_full_keeps_the_leader_and_grants_nothing_new";
        let small = ["--flag=--quota-backend-bytes=4194304"];
        let Some(server) = Server::own(test, Kind::Etcd, &small) else {
            return;
        };
        let client = Client::new(&url(&server), "a").await;
        let led = name("led");
        let token = client.win(&led, LONG).await;
        let rubbish =
            json!({ "key": BASE64.encode("x"), "value": BASE64.encode(vec![0; 1 << 20]) });
        let endpoint = format!("http://127.0.0.1:{}/v3/kv/put", server.port);
        let http = reqwest::Client::builder().tls_backend_preconfigured(trusting_nobody());
        let http = http.no_proxy().build().unwrap();
        for _ in 0..20 {
            let answer = http.post(&endpoint).json(&rubbish).send().await.unwrap();
            if !answer.status().is_success() {
                break;
            }
        }
        let error = fails(&client, Transient, "full").await;
        assert!(error.message.contains("etcdctl alarm disarm"), "{error}");
        assert_eq!(held(client.renew(&led, LONG, token).await), token);
        assert!(client.release(&led, token).await);

        let found = ask(
            &server,
            "/v3/kv/range",
            json!({ "key": BASE64.encode("x") }),
        )
        .await;
        let revision = found["header"]["revision"].clone();
        ask(
            &server,
            "/v3/kv/compaction",
            json!({ "revision": revision, "physical": true }),
        )
        .await;
        ask(&server, "/v3/maintenance/defragment", json!({})).await;
        let member = found["header"]["member_id"].clone();
        let disarm = json!({ "action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member });
        ask(&server, "/v3/maintenance/alarm", disarm).await;
        client.win(&name("leader"), LONG).await;
    }

    // ---- users ----

    /// A server with users, and what root may ask of it.
    struct WithUsers(Server, String);

    impl WithUsers {
        async fn start(test: &str) -> Option<Self> {
            let server = Server::own(test, Kind::Etcd, &["--auth"])?;
            let mut users = Self(server, String::new());
            users.sign_in().await;
            Some(users)
        }

        async fn sign_in(&mut self) {
            let root =
                json!({ "name": self.0.told("/user"), "password": self.0.told("/password") });
            let told = ask(&self.0, "/v3/auth/authenticate", root).await;
            told["token"].as_str().unwrap().clone_into(&mut self.1);
        }

        async fn as_root(&self, path: &str, body: Value) {
            let client = reqwest::Client::builder().tls_backend_preconfigured(trusting_nobody());
            let request = client.no_proxy().build().unwrap();
            let request = request.post(format!("http://127.0.0.1:{}{path}", self.0.port));
            let answer = request.header("authorization", &self.1).json(&body).send();
            let answer = answer.await.unwrap();
            assert!(answer.status().is_success(), "{path} {body}: {answer:?}");
        }

        async fn add_user(&self, name: &str) {
            let user = json!({ "name": name, "password": "s3cret/pw" });
            self.as_root("/v3/auth/user/add", user).await;
            self.as_root("/v3/auth/role/add", json!({ "name": name }))
                .await;
            let granted = json!({ "user": name, "role": name });
            self.as_root("/v3/auth/user/grant", granted).await;
        }

        async fn grant(&self, role: &str, kind: &str, from: &str, to: &str) {
            let perm = json!({ "permType": kind, "key": BASE64.encode(from), "range_end": BASE64.encode(to) });
            self.as_root("/v3/auth/role/grant", json!({ "name": role, "perm": perm }))
                .await;
        }

        fn url(&self, credentials: &str) -> String {
            format!("etcd://{credentials}127.0.0.1:{}", self.0.port)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_wrong_password_is_refused_for_good_and_never_shown() {
        let test = "a_wrong_password_is_refused_for_good_and_never_shown";
        let Some(users) = WithUsers::start(test).await else {
            return;
        };
        for (credentials, advice) in [
            ("", "user:password@"),
            ("root:s3cret@", "Mend the user name or the password"),
            ("nobody:s3cret@", "Mend the user name or the password"),
        ] {
            let client = unprepared(&users.url(credentials));
            let error = fails(&client, Fatal, "refused").await;
            assert!(error.message.contains(advice), "{error}");
            let prepared = client.backend.prepare().await.unwrap_err();
            assert_eq!((prepared.kind, prepared.code), (Fatal, "refused"));
            let (shown, store) = (client.backend.describe(), &client.backend);
            let shown = format!("{error} {error:?} {prepared:?} {shown} {store:?}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        let encoded = |text: &str| -> String {
            let pairs: Vec<_> = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            pairs.concat()
        };
        let (user, password) = (users.0.told("/odd/user"), users.0.told("/odd/password"));
        let odd = format!("{}:{}@", encoded(user), encoded(password));
        let client = Client::new(&users.url(&odd), "a").await;
        client.win(&name("leader"), LONG).await;
        // Other places are not his.
        let error = is_refused_at_start(&format!("{}?prefix=x", users.url(&odd)), "refused").await;
        assert!(error.message.contains("readwrite \"xcluster:\""), "{error}");
        assert!(!error.message.contains(password), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_user_who_lacks_one_right_is_refused_at_start_and_told_what_is_enough() {
        let test = "a_user_who_lacks_one_right_is_refused_at_start_and_told_what_is_enough";
        let Some(users) = WithUsers::start(test).await else {
            return;
        };
        for (number, rights) in [
            vec![],
            vec![("READ", "shop/cluster:", "shop/cluster;")],
            vec![("WRITE", "shop/cluster:", "shop/cluster;")],
            vec![("READWRITE", "shop/cluster:leader/", "shop/cluster:leader0")],
            vec![("READWRITE", "cluster:", "cluster;")],
        ]
        .iter()
        .enumerate()
        {
            let user = format!("poor{number}");
            users.add_user(&user).await;
            for (kind, from, to) in rights {
                users.grant(&user, kind, from, to).await;
            }
            let url = users.url(&format!("{user}:s3cret%2Fpw@")) + "?prefix=shop/";
            let error = is_refused_at_start(&url, "refused").await;
            for words in [
                "grant-permission whenleader --prefix=true readwrite \"shop/cluster:\"",
                &format!("grant-role {user} whenleader"),
            ] {
                assert!(error.message.contains(words), "{error}");
            }
            assert!(!error.message.contains("s3cret"), "{error}");

            users
                .grant(&user, "READWRITE", "shop/cluster:", "shop/cluster;")
                .await;
            let client = Client::new(&url, "a").await;
            let election = name(&user);
            let mut hearing = client.watch(&election).await;
            let token = client.win(&election, LONG).await;
            assert_eq!(held(client.renew(&election, LONG, token).await), token);
            assert!(client.leader(&election).await.is_some());
            assert!(client.release(&election, token).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_token_that_the_server_has_forgotten_is_replaced_within_the_attempt() {
        let test = "a_token_that_the_server_has_forgotten_is_replaced_within_the_attempt";
        let Some(mut users) = WithUsers::start(test).await else {
            return;
        };
        users.add_user("leader").await;
        users
            .grant("leader", "READWRITE", "cluster:", "cluster;")
            .await;
        let client = Client::new(&users.url("leader:s3cret%2Fpw@"), "a").await;
        let election = name("leader");
        let mut hearing = client.watch(&election).await;
        let token = client.win(&election, LONG).await;
        users.0.restart().await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        assert!(client.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;

        // Users may be turned off for a repair, and on again.
        users.sign_in().await;
        let token = client.win(&election, LONG).await;
        users.as_root("/v3/auth/disable", json!({})).await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        ask(&users.0, "/v3/auth/enable", json!({})).await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        // A right that is taken away is missed at the next attempt.
        users.sign_in().await;
        let revoked = json!({ "name": "leader", "role": "leader" });
        users.as_root("/v3/auth/user/revoke", revoked).await;
        let error = client
            .attempt(&election, LONG, Some(token))
            .await
            .expect_err("no right");
        assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_user_is_not_needed_where_there_are_none_and_asked_for_when_there_are() {
        let test = "a_user_is_not_needed_where_there_are_none_and_asked_for_when_there_are";
        let Some(mut users) = WithUsers::start(test).await else {
            return;
        };
        users.as_root("/v3/auth/disable", json!({})).await;
        let (user, password) = (users.0.told("/user"), users.0.told("/password"));
        let named = Client::new(&users.url(&format!("{user}:{password}@")), "a").await;
        let nameless = Client::new(&users.url(""), "b").await;
        let token = named.win(&name("leader"), LONG).await;
        ask(&users.0, "/v3/auth/enable", json!({})).await;
        users.sign_in().await;
        assert_eq!(held(named.renew(&name("leader"), LONG, token).await), token);
        let error = fails(&nameless, Fatal, "refused").await;
        assert!(error.message.contains("user:password@"), "{error}");
    }

    // ---- the watch ----

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_says_when_it_is_blind_and_hears_again_when_it_is_back() {
        let test = "a_watch_says_when_it_is_blind_and_hears_again_when_it_is_back";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let (a, b) = (
            Client::new(&url(&server), "a").await,
            Client::new(&url(&server), "b").await,
        );
        let election = name("leader");
        let token = a.win(&election, LONG).await;
        let mut hearing = b.watch(&election).await;
        server.kill().await;
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        server.restart().await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        assert!(a.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_hears_of_the_end_of_a_lease_that_nobody_released() {
        let test = "a_watch_hears_of_the_end_of_a_lease_that_nobody_released";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let (a, b) = (store.client("a").await, store.client("b").await);
        let election = name("leader");
        let mut hearing = b.watch(&election).await;
        let sent = Instant::now();
        a.win(&election, SHORT).await;
        hearing.until("Free", |hint| hint == Hint::Free).await;
        assert!(sent.elapsed() > Duration::from_secs(2));
        b.win(&election, LONG).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stream_whose_other_end_vanished_is_begun_anew_where_it_left_off() {
        let test = "a_stream_whose_other_end_vanished_is_begun_anew_where_it_left_off";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let far = impatient(&format!("{}?prefix={}", through(&proxy), store.prefix));
        let a = store.client("a").await;
        let election = name("leader");
        let mut hearing = far.watch(&election).await;
        let token = a.win(&election, LONG).await;
        hearing
            .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
            .await;
        proxy.freeze();
        assert!(a.release(&election, token).await);
        // Not as if it had been blind: nothing was missed.
        let hint = hearing.until("anything", |_| true).await;
        assert_eq!(hint, Hint::Free);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_election_that_may_not_be_heard_leaves_all_others_heard() {
        let test = "an_election_that_may_not_be_heard_leaves_all_others_heard";
        let Some(mut users) = WithUsers::start(test).await else {
            return;
        };
        users.add_user("poor").await;
        users
            .grant("poor", "READWRITE", "cluster:may-", "cluster:may.")
            .await;
        users.add_user("rich").await;
        users
            .grant("rich", "READWRITE", "cluster:", "cluster;")
            .await;
        let far = unprepared(&users.url("poor:s3cret%2Fpw@"));
        let near = Client::new(&users.url("rich:s3cret%2Fpw@"), "near").await;
        let PartlyHeard {
            may: [one, ..],
            heard: [mut first, mut second, mut late],
            mut unheard,
            ..
        } = hears_what_it_may(&far, &near).await;

        // A right that is taken away while it listens ends the hearing of that one alone, at the next stream.
        users.sign_in().await;
        let revoked = json!({
            "role": "poor", "key": BASE64.encode("cluster:may-"), "range_end": BASE64.encode("cluster:may."),
        });
        users.as_root("/v3/auth/role/revoke", revoked).await;
        users
            .grant("poor", "READWRITE", "cluster:may-o", "cluster:may-p")
            .await;
        users.0.restart().await;
        for hearing in [&mut second, &mut late] {
            assert_eq!(hearing.next().await, Hint::Blind);
        }
        assert_eq!(first.next().await, Hint::Blind, "the server was away");
        assert_eq!(first.next().await, Hint::Watching);
        let token = near.win(&one, LONG).await;
        assert!(near.release(&one, token).await);
        first.until("Free", |hint| hint == Hint::Free).await;
        for hearing in unheard.iter_mut().chain([&mut late]) {
            assert_eq!(hearing.rest(), []);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stream_that_missed_what_was_cleared_away_begins_anew_and_says_so() {
        let test = "a_stream_that_missed_what_was_cleared_away_begins_anew_and_says_so";
        let Some(server) = Server::own(test, Kind::Etcd, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let far = impatient(&through(&proxy));
        let near = Client::new(&url(&server), "near").await;
        let election = name("leader");
        let mut hearing = far.watch(&election).await;
        proxy.freeze();
        let token = near.win(&election, LONG).await;
        let other = near.win(&name("other"), LONG).await;
        assert!(near.release(&name("other"), other).await);
        let found = ask(
            &server,
            "/v3/kv/range",
            json!({ "key": BASE64.encode("x") }),
        )
        .await;
        let revision = found["header"]["revision"].clone();
        ask(
            &server,
            "/v3/kv/compaction",
            json!({ "revision": revision }),
        )
        .await;
        for expected in [Hint::Blind, Hint::Watching] {
            let hint = hearing.until("anything", |_| true).await;
            assert_eq!(hint, expected);
        }
        assert!(near.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_stream_serves_all_elections_and_ends_with_the_last_of_them() {
        let test = "one_stream_serves_all_elections_and_ends_with_the_last_of_them";
        let Some(store) = Fresh::start(test).await else {
            return;
        };
        let proxy = Proxy::to(store.server.port).await;
        let far = Client::new(
            &format!("{}?prefix={}", through(&proxy), store.prefix),
            "far",
        )
        .await;
        let a = store.client("a").await;
        let mut hearings = Vec::new();
        for number in 0..30 {
            let election = name(&format!("e{number}"));
            let token = a.win(&election, LONG).await;
            let hearing = far.watch(&election).await;
            hearings.push((election, token, hearing));
        }
        // One that was ended for each new one, at most, and never one beside another.
        assert!(proxy.connections() < 40, "{}", proxy.connections());
        let before = proxy.connections();
        for (election, token, hearing) in &mut hearings {
            assert!(a.release(election, *token).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
        }
        assert_eq!(proxy.connections(), before);
        drop(hearings);
        let election = name("e0");
        let token = a.win(&election, LONG).await;
        let mut hearing = far.watch(&election).await;
        assert!(a.release(&election, token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }

    // ---- TLS ----

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_is_believed_only_if_its_certificate_is_trusted() {
        let test = "a_server_is_believed_only_if_its_certificate_is_trusted";
        let Some(server) = Server::own(test, Kind::Etcd, &["--tls"]) else {
            return;
        };
        let (port, ca) = (server.port, server.told("/ca"));
        let good = format!("etcds://127.0.0.1:{port}?ca={ca}");
        let client = Client::new(&good, "a").await;
        let mut hearing = client.watch(&name("leader")).await;
        let token = client.win(&name("leader"), LONG).await;
        assert_eq!(
            held(client.renew(&name("leader"), LONG, token).await),
            token
        );
        assert!(client.release(&name("leader"), token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;

        let elsewhere = forwarded(port).await;
        for (wrong, word) in [
            (format!("etcds://127.0.0.1:{port}"), "UnknownIssuer"),
            (format!("etcds://127.0.0.1:{port}?ca={ca}.absent"), "absent"),
            (
                format!("etcds://127.0.0.1:{port}?ca={}", server.told("/clientKey")),
                "no certificate",
            ),
            (
                format!("etcds://127.0.0.2:{elsewhere}?ca={ca}"),
                "not valid for name",
            ),
        ] {
            let error = is_refused_at_start(&wrong, "certificate").await;
            assert!(error.message.contains(word), "{wrong}: {error}");
            assert!(error.message.contains("?ca="), "{error}");
        }
        // Each side may expect the other to speak differently.
        let client = unprepared(&format!("etcd://127.0.0.1:{port}"));
        let error = fails(&client, Transient, "unreachable").await;
        assert!(
            error.message.contains("begin the URL with etcds://"),
            "{error}"
        );
        let Some(plain) = Server::shared(test, Kind::Etcd) else {
            return;
        };
        let client = unprepared(&format!("etcds://127.0.0.1:{}?ca={ca}", plain.port));
        let error = fails(&client, Transient, "unreachable").await;
        assert!(
            error.message.contains("begin the URL with etcd://"),
            "{error}"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_wants_a_certificate_of_its_clients_is_shown_one() {
        let test = "a_server_that_wants_a_certificate_of_its_clients_is_shown_one";
        let Some(server) = Server::own(test, Kind::Etcd, &["--mtls"]) else {
            return;
        };
        let ca = server.told("/ca");
        let (cert, key) = (server.told("/clientCert"), server.told("/clientKey"));
        let url = format!("etcds://127.0.0.1:{}?ca={ca}", server.port);
        let client = Client::new(&format!("{url}&cert={cert}&key={key}"), "a").await;
        client.win(&name("leader"), LONG).await;
        let error = is_refused_at_start(&url, "certificate").await;
        assert!(error.message.contains("&cert=<file>&key=<file>"), "{error}");
        let wrong = format!("{url}&cert={cert}&key={ca}");
        let error = is_refused_at_start(&wrong, "certificate").await;
        assert!(error.message.contains("private key"), "{error}");
    }

    /// The same server at an address that its certificate does not have.
    async fn forwarded(port: u16) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0))
            .await
            .unwrap();
        let here = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        here
    }

    // ---- figures ----

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn figures() {
        let Some(server) = Server::own("figures", Kind::Etcd, &[]) else {
            return;
        };
        let (a, b) = (
            Client::new(&url(&server), "a").await,
            Client::new(&url(&server), "b").await,
        );
        let election = name("leader");
        let mut hearing = b.watch(&election).await;

        let mut token = a.win(&election, LONG).await;
        let before = requests(&server).await;
        let (mut renewals, mut handovers) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let start = Instant::now();
            a.renew(&election, LONG, token).await;
            renewals.push(start.elapsed());
        }
        let each = (requests(&server).await - before) / 100.0;
        for _ in 0..30 {
            let start = Instant::now();
            assert!(a.release(&election, token).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
            let next = b.win(&election, LONG).await;
            handovers.push(start.elapsed());
            assert!(b.release(&election, next).await);
            token = a.win(&election, LONG).await;
        }
        assert!(a.release(&election, token).await);
        let lease = Duration::from_secs(2);
        let mut takeovers = Vec::new();
        for _ in 0..3 {
            while let Outcome::Other { .. } = a.campaign(&election, lease).await {}
            let start = Instant::now();
            hearing
                .until(
                    "Alive",
                    |hint| matches!(hint, Hint::Alive { valid_for, .. } if valid_for == lease),
                )
                .await;
            hearing.until("Free", |hint| hint == Hint::Free).await;
            let next = b.win(&election, LONG).await;
            takeovers.push(start.elapsed());
            assert!(b.release(&election, next).await);
        }
        let mut out = std::io::stdout();
        let _ = writeln!(
            out,
            "FIGURES: etcd: a renewal is {each} requests side by side, {:.1?} and at most {:.1?}; a hand-over takes \
             {:.1?} and at most {:.1?}; a takeover after a crash {:.2} leases of 2 s",
            median(&mut renewals),
            renewals.last().unwrap(),
            median(&mut handovers),
            handovers.last().unwrap(),
            median(&mut takeovers).as_secs_f64() / lease.as_secs_f64()
        );
    }

    fn median(times: &mut [Duration]) -> Duration {
        times.sort();
        times[times.len() / 2]
    }

    /// How many requests a server was asked, by its own count.
    async fn requests(server: &Server) -> f64 {
        let client = reqwest::Client::builder().tls_backend_preconfigured(trusting_nobody());
        let client = client.no_proxy().build().unwrap();
        let url = format!("http://127.0.0.1:{}/metrics", server.port);
        let text = client.get(url).send().await.unwrap().text().await.unwrap();
        let counts = text
            .lines()
            .filter(|line| line.starts_with("grpc_server_started_total"));
        counts
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }
}
