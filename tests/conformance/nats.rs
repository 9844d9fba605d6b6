//! NATS, of today and of before messages could have a time to live.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, Networked, open};
use crate::support::{Kind, Server};

/// A bucket of its own on the server that all tests share.
pub struct Fresh<const OLD: bool> {
    server: &'static Server,
    bucket: String,
}

fn kind(old: bool) -> Kind {
    if old { Kind::NatsOld } else { Kind::Nats }
}

/// With the user who may do everything.
fn url(port: u16, bucket: &str) -> String {
    format!("nats://tests:tests@127.0.0.1:{port}?bucket={bucket}")
}

/// As the name of an election stands in a subject.
fn subject(bucket: &str, election: &ElectionName) -> String {
    format!("$KV.{bucket}.cluster.{election}")
}

/// Somebody else's client, which is asked one thing after the other.
struct Raw {
    stream: BufReader<TcpStream>,
    /// Where it is answered, and nobody else.
    inbox: String,
}

impl Raw {
    async fn connect(port: u16, hello: &Value) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let mut stream = BufReader::new(stream);
        let inbox = format!("raw.answers.{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let hello = format!("CONNECT {hello}\r\nSUB {inbox} 1\r\n");
        stream.write_all(hello.as_bytes()).await.unwrap();
        Self { stream, inbox }
    }

    async fn admin(port: u16) -> Self {
        let hello = json!({
            "verbose": false, "headers": true, "no_responders": true,
            "user": "tests", "pass": "tests",
        });
        Self::connect(port, &hello).await
    }

    async fn ask(&mut self, subject: &str, headers: &str, payload: &[u8]) -> Value {
        let inbox = &self.inbox;
        let frame = if headers.is_empty() {
            format!("PUB {subject} {inbox} {}\r\n", payload.len())
        } else {
            let lines = format!("NATS/1.0\r\n{headers}\r\n\r\n");
            let (some, all) = (lines.len(), lines.len() + payload.len());
            format!("HPUB {subject} {inbox} {some} {all}\r\n{lines}")
        };
        let frame = [frame.as_bytes(), payload, b"\r\n"].concat();
        self.stream.write_all(&frame).await.unwrap();
        loop {
            let mut line = String::new();
            let length = self.stream.read_line(&mut line).await.unwrap();
            assert!(length > 0, "the server hung up");
            assert!(!line.starts_with("-ERR"), "{line}");
            if line.starts_with("PING") {
                self.stream.write_all(b"PONG\r\n").await.unwrap();
            }
            if line.starts_with("MSG") || line.starts_with("HMSG") {
                let size: usize = line.split_whitespace().last().unwrap().parse().unwrap();
                let mut bytes = vec![0; size + 2];
                self.stream.read_exact(&mut bytes).await.unwrap();
                return serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            }
        }
    }

    async fn api(&mut self, call: &str, asked: Value) -> Value {
        let subject = format!("$JS.API.{call}");
        let asked = match asked {
            Value::Null => String::new(),
            asked => asked.to_string(),
        };
        self.ask(&subject, "", asked.as_bytes()).await
    }

    async fn purge(&mut self, bucket: &str, subject: &str) {
        let asked = json!({ "filter": subject });
        let purged = self.api(&format!("STREAM.PURGE.KV_{bucket}"), asked).await;
        assert_eq!(purged["success"], true, "{purged}");
    }

    /// The record as it lies there, and its number.
    async fn record(&mut self, bucket: &str, election: &ElectionName) -> (u64, Value) {
        let asked = json!({ "last_by_subj": subject(bucket, election) });
        let call = format!("STREAM.MSG.GET.KV_{bucket}");
        let message = self.api(&call, asked).await["message"].take();
        let data = BASE64.decode(message["data"].as_str().unwrap()).unwrap();
        let sequence = message["seq"].as_u64().unwrap();
        (sequence, serde_json::from_slice(&data).unwrap())
    }
}

impl<const OLD: bool> Fixture for Fresh<OLD> {
    const RUBBISH_EXPIRES: bool = true;

    async fn start(test: &str) -> Option<Self> {
        let server = Server::shared(test, kind(OLD))?;
        let bucket = test.to_owned();
        Some(Self { server, bucket })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&url(self.server.port, &self.bucket))
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let subject = subject(&self.bucket, election);
        let mut raw = Raw::admin(self.server.port).await;
        let put = raw.ask(&subject, "", rubbish).await;
        assert!(put["seq"].is_u64(), "{put}");
    }

    async fn forget(&self, election: &ElectionName) {
        let subject = subject(&self.bucket, election);
        let mut raw = Raw::admin(self.server.port).await;
        raw.purge(&self.bucket, &subject).await;
    }

    async fn list(&self) -> Vec<String> {
        let mut raw = Raw::admin(self.server.port).await;
        let asked = json!({ "subjects_filter": ">" });
        let info = raw
            .api(&format!("STREAM.INFO.KV_{}", self.bucket), asked)
            .await;
        let subjects = info["state"]["subjects"].as_object();
        let subjects = subjects
            .into_iter()
            .flatten()
            .map(|(subject, _)| subject.clone());
        let names = raw
            .api(&format!("CONSUMER.NAMES.KV_{}", self.bucket), Value::Null)
            .await;
        let consumers = names["consumers"].as_array().into_iter().flatten();
        subjects.chain(consumers.map(Value::to_string)).collect()
    }
}

impl<const OLD: bool> Networked for Fresh<OLD> {
    fn port(&self) -> u16 {
        self.server.port
    }

    fn url_at(&self, port: u16) -> String {
        url(port, &self.bucket)
    }
}

mod nats_conforms {
    crate::conformance!(super::Fresh<false>, on a network);
}

mod nats_old_conforms {
    crate::conformance!(super::Fresh<true>, on a network);
}

/// What only NATS can get wrong.
mod alone {
    use std::fs;
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};
    use whenleader::lease::FailureKind::{Ambiguous, Fatal, Transient};
    use whenleader::lease::{Hint, Outcome};

    use super::{Raw, subject, url};
    use crate::suite::{
        Client, LONG, SHORT, denied, fails, held, impatient, leading, name, open, refused,
        unprepared,
    };
    use crate::support::{Kind, Proxy, Server, TempDir, eventually};

    macro_rules! with_nats {
        ($($sentence:ident: $kind:ident)*) => { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $sentence() {
                let test = stringify!($sentence);
                let Some(server) = Server::own(test, Kind::$kind, &[]) else { return };
                when::$sentence(&server).await;
            }
        )* };
    }

    with_nats! {
        a_connection_that_died_idle_is_replaced_within_the_attempt: Nats
        a_silent_connection_is_replaced_within_the_attempt_and_by_the_next_one: Nats
        a_server_that_is_gone_is_unreachable_and_nothing_is_sent_later: Nats
        a_frozen_server_is_an_attempt_without_an_answer: Nats
        one_connection_serves_all_elections_and_another_one_all_watches: Nats
        a_watch_says_when_it_is_blind_and_hears_again_when_the_server_is_back: Nats
        who_asks_is_refused_for_good_and_no_password_is_shown: Nats
        a_user_without_rights_is_told_which_ones_are_needed_and_those_are_enough: Nats
        a_user_who_lacks_one_right_is_refused_at_start: Nats
        without_jetstream_nobody_starts: Nats
        a_bucket_that_is_deleted_ends_the_term_and_is_made_again: Nats
        an_old_bucket_that_is_deleted_ends_the_term_and_is_made_again: NatsOld
        a_bucket_that_would_lose_leases_is_refused: Nats
        a_bucket_that_is_too_narrow_for_the_longest_record_is_refused: Nats
        an_old_bucket_that_is_too_narrow_for_the_longest_record_is_refused: NatsOld
        a_server_that_takes_no_message_as_long_as_a_record_is_found_at_start: Nats
        a_full_bucket_is_a_failure_that_passes: Nats
        a_mark_where_a_record_was_deleted_is_no_record: Nats
        a_message_of_limited_life_that_somebody_wrote_frees_the_lease_when_it_ends: Nats
        a_renewal_is_one_request_and_a_hand_over_one_message: Nats
    }

    /// What each of them does with its server.
    mod when {
        use super::*;

        pub async fn a_connection_that_died_idle_is_replaced_within_the_attempt(server: &Server) {
            let proxy = Proxy::to(server.port).await;
            let client = Client::new(&url(proxy.port, "b"), "a").await;
            let token = client.win(&name("leader"), LONG).await;
            for wait in [0, 50] {
                proxy.cut();
                tokio::time::sleep(Duration::from_millis(wait)).await;
                let renewed = client.renew(&name("leader"), LONG, token).await;
                assert_eq!(held(renewed), token);
            }
        }

        pub async fn a_silent_connection_is_replaced_within_the_attempt_and_by_the_next_one(
            server: &Server,
        ) {
            let proxy = Proxy::to(server.port).await;
            let client = Client::new(&url(proxy.port, "b"), "a").await;
            let election = name("leader");
            let token = client.win(&election, LONG).await;
            let connections = proxy.connections();
            proxy.freeze();
            // Within half of the time that a request may take.
            assert_eq!(held(client.renew(&election, LONG, token).await), token);
            assert_eq!(proxy.connections(), connections + 1);
            // Whoever gives up leaves nobody waiting for it.
            proxy.freeze();
            let patience = Duration::from_millis(200);
            let attempt = client.attempt(&election, LONG, Some(token));
            assert!(tokio::time::timeout(patience, attempt).await.is_err());
            let start = Instant::now();
            assert_eq!(held(client.renew(&election, LONG, token).await), token);
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "{:?}",
                start.elapsed()
            );
        }

        pub async fn a_server_that_is_gone_is_unreachable_and_nothing_is_sent_later(
            server: &Server,
        ) {
            let client = impatient(&url(server.port, "b"));
            client.backend.prepare().await.unwrap();
            let election = name("leader");
            let token = client.win(&election, LONG).await;
            server.kill().await;
            for _ in 0..3 {
                let error = client.attempt(&election, LONG, Some(token)).await;
                let error = error.expect_err("nobody is there");
                assert_eq!(error.code, "unreachable", "{error}");
                assert!(error.message.contains(&server.port.to_string()), "{error}");
                let attempt = client.attempt(&election, LONG, Some(token));
                let _ = tokio::time::timeout(Duration::from_millis(1), attempt).await;
            }
            fails(&client, Transient, "unreachable").await;
            server.restart().await;
            let mut raw = Raw::admin(server.port).await;
            let before = raw.record("b", &election).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(raw.record("b", &election).await, before);
            // The server forgot nothing, so the term goes on.
            assert_eq!(held(client.renew(&election, LONG, token).await), token);
        }

        pub async fn a_frozen_server_is_an_attempt_without_an_answer(server: &Server) {
            let client = impatient(&url(server.port, "b"));
            client.backend.prepare().await.unwrap();
            let token = client.win(&name("leader"), LONG).await;
            server.freeze().await;
            let error = client.attempt(&name("leader"), LONG, Some(token)).await;
            let error = error.expect_err("no answer");
            assert_eq!((error.kind, error.code), (Ambiguous, "timeout"), "{error}");
            server.thaw().await;
            let renewed = client.renew(&name("leader"), LONG, token).await;
            assert_eq!(held(renewed), token);
        }

        pub async fn one_connection_serves_all_elections_and_another_one_all_watches(
            server: &Server,
        ) {
            let proxy = Proxy::to(server.port).await;
            let client = Client::new(&url(proxy.port, "b"), "a").await;
            let mut hearings = Vec::new();
            for number in 0..20 {
                let election = name(&format!("e{number}"));
                client.win(&election, LONG).await;
                hearings.push(client.watch(&election).await);
            }
            assert_eq!(proxy.connections(), 2);
        }

        pub async fn a_watch_says_when_it_is_blind_and_hears_again_when_the_server_is_back(
            server: &Server,
        ) {
            let election = name("leader");
            let client = Client::new(&url(server.port, "b"), "a").await;
            let mut hearing = client.watch(&election).await;
            server.kill().await;
            hearing.until("Blind", |hint| hint == Hint::Blind).await;
            server.restart().await;
            hearing
                .until("Watching", |hint| hint == Hint::Watching)
                .await;
            let token = client.win(&election, LONG).await;
            client.release(&election, token).await;
            hearing.until("Free", |hint| hint == Hint::Free).await;
        }

        pub async fn who_asks_is_refused_for_good_and_no_password_is_shown(server: &Server) {
            let port = server.port;
            for credentials in ["", "tests:s3cret@", "nobody:s3cret@", "s3cret@"] {
                let url = format!("nats://{credentials}127.0.0.1:{port}");
                let client = unprepared(&url);
                let error = fails(&client, Fatal, "refused").await;
                let prepared = refused(&url, "refused").await;
                let shown = format!(
                    "{error} {prepared:?} {} {:?}",
                    client.backend.describe(),
                    client.backend
                );
                assert!(!shown.contains("s3cret"), "{shown}");
            }
            let encoded = |pointer| {
                let bytes: Vec<_> = server.told(pointer).bytes().collect();
                let letters = bytes.iter().map(|byte| format!("%{byte:02X}"));
                letters.collect::<Vec<_>>().concat()
            };
            let (user, password) = (encoded("/odd/user"), encoded("/odd/password"));
            let url = format!("nats://{user}:{password}@127.0.0.1:{port}");
            Client::new(&url, "a")
                .await
                .win(&name("leader"), LONG)
                .await;

            let token = json!({ "authorization": { "token": "to/k?n" } });
            server
                .ask(json!({ "do": "configure", "settings": token }))
                .await;
            let url = format!("nats://to%2Fk%3Fn@127.0.0.1:{port}");
            Client::new(&url, "a").await;

            // The pair of keys that NATS' documents show.
            let key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
            let users = json!({ "authorization": { "users": [{ "nkey": key }] } });
            server
                .ask(json!({ "do": "configure", "settings": users }))
                .await;
            let dir = TempDir::new();
            let file = dir.path().join("user.nk");
            let seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\n";
            fs::write(&file, seed).unwrap();
            let url = format!("nats://127.0.0.1:{port}?nkey={}", file.display());
            Client::new(&url, "a").await;
            fs::write(&file, "SUAnothing").unwrap();
            let error = refused(&url, "refused").await;
            assert!(error.message.contains("user.nk"), "{error}");
            assert!(!error.message.contains("SUAnothing"), "{error}");
        }

        /// Starts the server again with a user who may do no more than this.
        async fn allow(server: &Server, publish: &[String], subscribe: &[&str]) {
            let allowed = json!({
                "publish": { "allow": publish }, "subscribe": { "allow": subscribe },
            });
            let users = json!([
                { "user": "tests", "password": "tests" },
                { "user": "poor", "password": "pw", "permissions": allowed },
            ]);
            let settings = json!({ "authorization": { "users": users } });
            server
                .ask(json!({ "do": "configure", "settings": settings }))
                .await;
        }

        fn poor(server: &Server, bucket: &str) -> String {
            format!("nats://poor:pw@127.0.0.1:{}?bucket={bucket}", server.port)
        }

        pub async fn a_user_without_rights_is_told_which_ones_are_needed_and_those_are_enough(
            server: &Server,
        ) {
            allow(server, &["nothing".into()], &["_INBOX.>"]).await;
            let url = poor(server, "shop");
            let error = refused(&url, "refused").await;
            // And exactly those are enough, also to make the bucket.
            let words = error.message.split([' ', ',', '(', ')']);
            let named: Vec<_> = words.filter(|word| word.starts_with('$')).collect();
            assert_eq!(named.len(), 5, "{error}");
            let named: Vec<_> = named.into_iter().map(str::to_owned).collect();
            allow(server, &named, &["_INBOX.>"]).await;
            let (a, b) = (Client::new(&url, "a").await, Client::new(&url, "b").await);
            let election = name("the leader");
            let mut hearing = b.watch(&election).await;
            let token = a.win(&election, LONG).await;
            assert_eq!(held(a.renew(&election, LONG, token).await), token);
            assert!(a.release(&election, token).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
            b.win(&election, LONG).await;
        }

        pub async fn a_user_who_lacks_one_right_is_refused_at_start(server: &Server) {
            let rights = [
                "$KV.b.cluster.*",
                "$JS.API.STREAM.INFO.KV_b",
                "$JS.API.STREAM.MSG.GET.KV_b",
                "$JS.API.CONSUMER.CREATE.KV_b.>",
            ];
            let url = poor(server, "b");
            let all_but = |lacking: &str| -> Vec<String> {
                let others = rights.iter().filter(|right| **right != lacking);
                others.map(|right| (*right).to_owned()).collect()
            };
            allow(server, &all_but(""), &["_INBOX.>"]).await;
            let error = refused(&url, "no-bucket").await;
            assert!(error.message.contains("nats kv add b"), "{error}");
            Client::new(&super::url(server.port, "b"), "owner").await;
            for lacking in &rights[..3] {
                allow(server, &all_but(lacking), &["_INBOX.>"]).await;
                let error = refused(&url, "refused").await;
                let subject = lacking.trim_end_matches('*');
                assert!(error.message.contains(subject), "{lacking}: {error}");
            }
            allow(server, &all_but(""), &["elsewhere.>"]).await;
            refused(&url, "refused").await;
            let inbox = format!("{url}&inbox=elsewhere");
            Client::new(&inbox, "a").await;
            // Without the watch a hand-over waits until somebody asks.
            allow(server, &all_but(rights[3]), &["_INBOX.>"]).await;
            let client = Client::new(&url, "a").await;
            let token = client.win(&name("leader"), LONG).await;
            assert!(client.release(&name("leader"), token).await);
        }

        pub async fn without_jetstream_nobody_starts(server: &Server) {
            let settings = json!({ "jetstream": null });
            server
                .ask(json!({ "do": "configure", "settings": settings }))
                .await;
            let error = refused(&url(server.port, "b"), "unsuitable").await;
            assert!(error.message.contains("-js"), "{error}");
        }

        async fn is_made_again(server: &Server) {
            let election = name("leader");
            let (a, b) = (
                Client::new(&url(server.port, "b"), "a").await,
                Client::new(&url(server.port, "b"), "b").await,
            );
            let mut raw = Raw::admin(server.port).await;
            let mut hearing = b.watch(&election).await;
            let mut last = a.win(&election, LONG).await;
            for _ in 0..2 {
                let deleted = raw.api("STREAM.DELETE.KV_b", Value::Null).await;
                assert_eq!(deleted["success"], true, "{deleted}");
                let (leader, remaining) = denied(a.renew(&election, LONG, last).await);
                assert_eq!((leader, remaining), (None, None));
                assert!(!a.release(&election, last).await);
                let next = b.win(&election, LONG).await;
                assert!(next > last);
                assert!(b.release(&election, next).await);
                last = a.win(&election, LONG).await;
            }
            hearing.until("Blind", |hint| hint == Hint::Blind).await;
            hearing
                .until("Watching", |hint| hint == Hint::Watching)
                .await;
            assert!(a.release(&election, last).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
        }

        pub async fn a_bucket_that_is_deleted_ends_the_term_and_is_made_again(server: &Server) {
            is_made_again(server).await;
            // Under numbers that the one before did not reach.
            let mut raw = Raw::admin(server.port).await;
            Client::new(&url(server.port, "b"), "a")
                .await
                .win(&name("x"), LONG)
                .await;
            assert!(raw.record("b", &name("x")).await.0 > 1_700_000_000_000_000);
        }

        pub async fn an_old_bucket_that_is_deleted_ends_the_term_and_is_made_again(
            server: &Server,
        ) {
            is_made_again(server).await;
        }

        pub async fn a_bucket_that_would_lose_leases_is_refused(server: &Server) {
            let mut raw = Raw::admin(server.port).await;
            let day = 24 * 60 * 60 * 1_000_000_000_u64;
            for (number, (settings, word)) in [
                (json!({ "max_age": day - 1 }), Some("TTL")),
                (json!({ "max_age": day }), None),
                (json!({ "storage": "memory" }), None),
                (json!({ "max_msgs_per_subject": 64 }), None),
                (
                    json!({ "discard": "old", "max_msgs": 1_000 }),
                    Some("oldest"),
                ),
                (
                    json!({ "discard": "old", "max_bytes": 100_000 }),
                    Some("oldest"),
                ),
                (json!({ "discard": "old" }), None),
                (json!({ "retention": "interest" }), Some("retention")),
                (json!({ "no_ack": true }), Some("no_ack")),
                (json!({ "subjects": ["elsewhere.*"] }), Some("nats kv add")),
                (
                    json!({ "discard_new_per_subject": true }),
                    Some("discard_new_per_subject"),
                ),
            ]
            .into_iter()
            .enumerate()
            {
                let bucket = format!("b{number}");
                let mut config = json!({
                    "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")],
                    "retention": "limits", "storage": "file", "num_replicas": 1,
                    "max_msgs_per_subject": 1, "discard": "new", "max_age": 0,
                    "max_msgs": -1, "max_bytes": -1, "max_consumers": -1, "max_msg_size": -1,
                });
                for (name, value) in settings.as_object().unwrap() {
                    config[name] = value.clone();
                }
                let made = raw.api(&format!("STREAM.CREATE.KV_{bucket}"), config).await;
                assert!(made["error"].is_null(), "{settings}: {made}");
                let url = url(server.port, &bucket);
                if let Some(word) = word {
                    let error = refused(&url, "unsuitable").await;
                    assert!(error.message.contains(word), "{settings}: {error}");
                    continue;
                }
                let client = Client::new(&url, "a").await;
                let token = client.win(&name("leader"), LONG).await;
                let renewed = client.renew(&name("leader"), LONG, token).await;
                assert_eq!(held(renewed), token, "{settings}");
            }
            let mirror = json!({ "name": "KV_mirror", "mirror": { "name": "KV_b1" }, "storage": "file",
                "retention": "limits", "num_replicas": 1, "max_msgs_per_subject": 1 });
            let made = raw.api("STREAM.CREATE.KV_mirror", mirror).await;
            assert!(made["error"].is_null(), "{made}");
            let error = refused(&url(server.port, "mirror"), "unsuitable").await;
            assert!(error.message.contains("mirror"), "{error}");
        }

        async fn narrow(server: &Server, setting: &str) {
            let mut raw = Raw::admin(server.port).await;
            let refusal = async |raw: &mut Raw, bucket: &str, room: u64| {
                let config = json!({
                    "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")],
                    "retention": "limits", "storage": "file", "num_replicas": 1,
                    "max_msgs_per_subject": 1, "discard": "new", setting: room,
                });
                let made = raw.api(&format!("STREAM.CREATE.KV_{bucket}"), config).await;
                assert!(made["error"].is_null(), "{made}");
                refused(&url(server.port, bucket), "unsuitable").await
            };
            let error = refusal(&mut raw, "narrow", 300).await;
            assert!(error.message.contains(setting), "{error}");
            let (_, needed) = error.message.split_once("may have ").unwrap();
            let needed: u64 = needed.split(' ').next().unwrap().parse().unwrap();
            refusal(&mut raw, "narrower", needed - 1).await;
            // So much is enough, whatever the instance is called. What the bucket as a whole has room for counts
            // the subject as well, and some bytes of the server's own.
            let room = needed + if setting == "max_bytes" { 100 } else { 0 };
            let config = json!({
                "name": "KV_b", "subjects": ["$KV.b.>"], "retention": "limits", "storage": "file",
                "num_replicas": 1, "max_msgs_per_subject": 1, "discard": "new", setting: room,
            });
            raw.api("STREAM.CREATE.KV_b", config).await;
            let url = url(server.port, "b");
            let client = Client::new(&url, &"\"".repeat(253)).await;
            let token = client.win(&name("leader"), LONG).await;
            for _ in 0..3 {
                let renewed = client.renew(&name("leader"), LONG, token).await;
                assert_eq!(held(renewed), token);
            }
            assert!(client.release(&name("leader"), token).await);
        }

        pub async fn a_bucket_that_is_too_narrow_for_the_longest_record_is_refused(
            server: &Server,
        ) {
            narrow(server, "max_msg_size").await;
            let mut raw = Raw::admin(server.port).await;
            for bucket in ["narrow", "narrower", "b"] {
                raw.api(&format!("STREAM.DELETE.KV_{bucket}"), Value::Null)
                    .await;
            }
            narrow(server, "max_bytes").await;
        }

        pub async fn an_old_bucket_that_is_too_narrow_for_the_longest_record_is_refused(
            server: &Server,
        ) {
            narrow(server, "max_msg_size").await;
        }

        pub async fn a_server_that_takes_no_message_as_long_as_a_record_is_found_at_start(
            server: &Server,
        ) {
            Client::new(&url(server.port, "b"), "a").await;
            let settings = json!({ "max_payload": 600 });
            server
                .ask(json!({ "do": "configure", "settings": settings }))
                .await;
            let error = open(&url(server.port, "b")).prepare().await.unwrap_err();
            assert!(error.message.contains("Maximum Payload"), "{error}");
        }

        pub async fn a_full_bucket_is_a_failure_that_passes(server: &Server) {
            let mut raw = Raw::admin(server.port).await;
            let config = json!({
                "name": "KV_b", "subjects": ["$KV.b.>"], "retention": "limits", "storage": "file",
                "num_replicas": 1, "max_msgs_per_subject": 1, "discard": "new", "max_bytes": 2_000,
            });
            raw.api("STREAM.CREATE.KV_b", config).await;
            let client = Client::new(&url(server.port, "b"), "a").await;
            raw.ask("$KV.b.big", "", &[b'x'; 1_900]).await;
            fails(&client, Transient, "full").await;
            raw.purge("b", "$KV.b.big").await;
            client.win(&name("leader"), LONG).await;
        }

        pub async fn a_mark_where_a_record_was_deleted_is_no_record(server: &Server) {
            let election = name("leader");
            let (a, b) = (
                Client::new(&url(server.port, "b"), "a").await,
                Client::new(&url(server.port, "b"), "b").await,
            );
            let mut raw = Raw::admin(server.port).await;
            for operation in [
                "KV-Operation: DEL",
                "KV-Operation: PURGE\r\nNats-Rollup: sub",
            ] {
                let mut hearing = b.watch(&election).await;
                let token = a.win(&election, LONG).await;
                raw.ask(&subject("b", &election), operation, b"").await;
                hearing.until("Free", |hint| hint == Hint::Free).await;
                assert_eq!(b.leader(&election).await, None);
                let (leader, remaining) = denied(a.renew(&election, LONG, token).await);
                assert_eq!((leader, remaining), (None, None));
                let next = b.win(&election, LONG).await;
                assert!(next > token);
                assert!(b.release(&election, next).await);
            }
        }

        /// As somebody may let a bucket do, whose records are ours all the same.
        pub async fn a_message_of_limited_life_that_somebody_wrote_frees_the_lease_when_it_ends(
            server: &Server,
        ) {
            let mut raw = Raw::admin(server.port).await;
            let config = json!({
                "name": "KV_b", "subjects": ["$KV.b.>"], "retention": "limits", "storage": "file",
                "num_replicas": 1, "max_msgs_per_subject": 1, "discard": "new",
                "allow_msg_ttl": true, "subject_delete_marker_ttl": 60_000_000_000_u64,
                "allow_rollup_hdrs": true,
            });
            let made = raw.api("STREAM.CREATE.KV_b", config).await;
            assert!(made["error"].is_null(), "{made}");
            let election = name("leader");
            let a = Client::new(&url(server.port, "b"), "a").await;
            let token = a.win(&election, LONG).await;
            let (_, record) = raw.record("b", &election).await;
            let text = record.to_string();
            let subject = subject("b", &election);
            raw.ask(&subject, "Nats-TTL: 1s", text.as_bytes()).await;
            // A mark is left, whose number is the condition of the next write.
            eventually("the record is gone", async || {
                a.leader(&election).await.is_none().then_some(())
            })
            .await;
            assert!(a.win(&election, LONG).await > token);
        }

        pub async fn a_renewal_is_one_request_and_a_hand_over_one_message(server: &Server) {
            let election = name("leader");
            let (a, b) = (
                Client::new(&url(server.port, "b"), "a").await,
                Client::new(&url(server.port, "b"), "b").await,
            );
            let mut raw = Raw::admin(server.port).await;
            let mut hearing = b.watch(&election).await;
            let token = a.win(&election, LONG).await;
            let before = raw.record("b", &election).await.0;
            let start = Instant::now();
            for _ in 0..100 {
                assert_eq!(held(a.renew(&election, LONG, token).await), token);
            }
            let renewal = start.elapsed() / 100;
            assert_eq!(raw.record("b", &election).await.0, before + 100);
            let mut hand_overs = Vec::new();
            let (mut holder, mut other, mut token) = (&a, &b, token);
            for round in 0..20 {
                if round > 0 {
                    hearing = other.watch(&election).await;
                }
                // It has seen who leads.
                denied(other.campaign(&election, LONG).await);
                let start = Instant::now();
                assert!(holder.release(&election, token).await);
                hearing.until("Free", |hint| hint == Hint::Free).await;
                token = other.win(&election, LONG).await;
                hand_overs.push(start.elapsed());
                (holder, other) = (other, holder);
            }
            hand_overs.sort();
            let start = Instant::now();
            let last = holder.win(&election, SHORT).await;
            assert!(other.take_over(&election, SHORT).await > last);
            println!(
                "FIGURES: NATS: a renewal {renewal:?}, 1 message; a hand-over {:?} (the slowest of 20: {:?}); a takeover after {:.2} leases",
                hand_overs[10],
                hand_overs[19],
                start.elapsed().as_secs_f64() / SHORT.as_secs_f64()
            );
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn tls_is_trusted_by_its_authority_and_its_hosts_name() {
        let test = "tls_is_trusted_by_its_authority_and_its_hosts_name";
        for (option, extra) in [("--tls", ""), ("--tls-first", "&tlsFirst")] {
            let Some(server) = Server::own(test, Kind::Nats, &[option]) else {
                return;
            };
            let Some(other) = Server::own(test, Kind::Nats, &["--tls"]) else {
                return;
            };
            let (port, ca) = (server.port, server.told("/ca"));
            // TLS is spoken where the server wants it, whatever the URL begins with.
            for scheme in ["tls", "nats"] {
                for host in ["localhost", "127.0.0.1"] {
                    let url = format!("{scheme}://tests:tests@{host}:{port}?ca={ca}{extra}");
                    let client = Client::new(&url, "a").await;
                    let token = client.win(&name("leader"), LONG).await;
                    assert!(client.release(&name("leader"), token).await);
                }
            }
            let public = format!("tls://tests:tests@localhost:{port}?bucket=b{extra}");
            refused(&public, "certificate").await;
            let strange = format!(
                "tls://tests:tests@localhost:{port}?ca={}{extra}",
                other.told("/ca")
            );
            refused(&strange, "certificate").await;
            let absent = format!("tls://tests:tests@localhost:{port}?ca=/absent.pem{extra}");
            let error = refused(&absent, "certificate").await;
            assert!(error.message.contains("/absent.pem"), "{error}");
        }
        let Some(plain) = Server::own(test, Kind::Nats, &[]) else {
            return;
        };
        let url = format!("tls://tests:tests@localhost:{}", plain.port);
        let error = refused(&url, "certificate").await;
        assert!(error.message.contains("nats://"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_wants_a_certificate_is_shown_one() {
        let test = "a_server_that_wants_a_certificate_is_shown_one";
        let Some(server) = Server::own(test, Kind::Nats, &["--mtls"]) else {
            return;
        };
        let url = format!(
            "tls://tests:tests@localhost:{}?ca={}",
            server.port,
            server.told("/ca")
        );
        let error = refused(&url, "certificate").await;
        assert!(error.message.contains("cert"), "{error}");
        let (cert, key) = (server.told("/clientCert"), server.told("/clientKey"));
        let url = format!("{url}&cert={cert}&key={key}");
        Client::new(&url, "a")
            .await
            .win(&name("leader"), LONG)
            .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lease_outlives_the_loss_of_any_one_of_three_servers() {
        let test = "a_lease_outlives_the_loss_of_any_one_of_three_servers";
        let Some(server) = Server::own(test, Kind::Nats, &["--cluster"]) else {
            return;
        };
        let hosts = format!(
            "127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}",
            server.port,
            server.port_of("/member2"),
            server.port_of("/member3")
        );
        let url = format!("nats://tests:tests@{hosts}?replicas=3");
        let election = name("leader");
        let client = unprepared(&url);
        eventually("the servers have found each other", async || {
            client.backend.prepare().await.ok()
        })
        .await;
        let follower = Client::new(&url, "b").await;
        let mut hearing = follower.watch(&election).await;
        let token = client.win(&election, LONG).await;
        for member in ["server", "member2", "member3"] {
            server.ask(json!({ "do": "kill", "of": member })).await;
            let renewed = eventually("two go on", async || {
                match client.attempt(&election, LONG, Some(token)).await {
                    Ok(Outcome::Held { token, .. }) => Some(token),
                    Ok(outcome @ Outcome::Other { .. }) => panic!("{member}: {outcome:?}"),
                    Err(error) if error.kind == Fatal => panic!("{member}: {error}"),
                    Err(_) => None,
                }
            })
            .await;
            assert_eq!(renewed, token);
            server.ask(json!({ "do": "restart", "of": member })).await;
            eventually("all three have it again", async || {
                tokio::time::sleep(Duration::from_millis(500)).await;
                client.attempt(&election, LONG, Some(token)).await.ok()
            })
            .await;
        }
        let leader = eventually("somebody tells", async || {
            follower.backend.peek(&election).await.ok()
        });
        assert_eq!(leader.await, Some(leading(&client, token)));
        eventually("it is released", async || {
            client
                .backend
                .release(&election, &client.owner, token)
                .await
                .ok()
        })
        .await;
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_file_of_credentials_is_shown_to_a_server_with_an_operator() {
        let test = "a_file_of_credentials_is_shown_to_a_server_with_an_operator";
        for kind in [Kind::Nats, Kind::NatsOld] {
            let Some(server) = Server::own(test, kind, &["--operator"]) else {
                return;
            };
            let url = |file: &str| format!("nats://127.0.0.1:{}?creds={file}", server.port);
            let file = server.told("/creds");
            let client = Client::new(&url(file), "a").await;
            let token = client.win(&name("leader"), LONG).await;
            let renewed = client.renew(&name("leader"), LONG, token).await;
            assert_eq!(held(renewed), token);

            // With a seed that is not that user's, and with none.
            let whole = fs::read_to_string(file).unwrap();
            let seed = whole.lines().find(|line| line.starts_with("SU")).unwrap();
            let another = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
            let dir = TempDir::new();
            let spoiled = dir.path().join("spoiled.creds");
            for (seed_now, word) in [(another, "creds"), ("", "seed")] {
                fs::write(&spoiled, whole.replace(seed, seed_now)).unwrap();
                let error = refused(&url(spoiled.to_str().unwrap()), "refused").await;
                assert!(error.message.contains(word), "{error}");
                assert!(!error.message.contains(another), "{error}");
            }
            refused(&format!("nats://127.0.0.1:{}", server.port), "refused").await;
        }
    }

    /// As it is told to before it is updated: it takes nobody new, and soon closes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_is_about_to_close_is_left_for_another_one_before_it_does() {
        let test = "a_server_that_is_about_to_close_is_left_for_another_one_before_it_does";
        let Some(server) = Server::own(test, Kind::Nats, &["--cluster"]) else {
            return;
        };
        let members = [
            server.port,
            server.port_of("/member2"),
            server.port_of("/member3"),
        ];
        let hosts = members.map(|port| format!("127.0.0.1:{port}")).join(",");
        let url = format!("nats://tests:tests@{hosts}?replicas=3");
        let election = name("leader");
        let client = unprepared(&url);
        eventually("the servers have found each other", async || {
            client.backend.prepare().await.ok()
        })
        .await;
        let mut hearing = client.watch(&election).await;
        let token = client.win(&election, LONG).await;
        server.ask(json!({ "do": "lame-duck" })).await;
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
        // It may have led those who keep the bucket, and they choose another leader first.
        eventually("the term goes on", async || {
            match client.attempt(&election, LONG, Some(token)).await {
                Ok(Outcome::Held { .. }) => Some(()),
                Ok(outcome @ Outcome::Other { .. }) => panic!("{outcome:?}"),
                Err(_) => None,
            }
        })
        .await;
    }
}
