//! Redis and Valkey.

use std::sync::Arc;

use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, Networked, open};
use crate::support::{Kind, Redis};

pub struct Fresh<const VALKEY: bool> {
    pub server: Redis,
}

fn kind(valkey: bool) -> Kind {
    if valkey { Kind::Valkey } else { Kind::Redis }
}

fn key(election: &ElectionName, what: &str) -> String {
    format!("{{cluster:{election}}}:{what}")
}

impl<const VALKEY: bool> Fixture for Fresh<VALKEY> {
    const RUBBISH_EXPIRES: bool = false;

    async fn start(test: &str) -> Option<Self> {
        let server = Redis::start(test, kind(VALKEY), &[])?;
        Some(Self { server })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.server.url())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let key = key(election, "lease");
        self.server.ask_well(&[b"SET", key.as_bytes(), rubbish]);
    }

    async fn forget(&self, election: &ElectionName) {
        let keys = [key(election, "lease"), key(election, "token")];
        self.server.ask_well(&["DEL", &keys[0], &keys[1]]);
    }

    async fn list(&self) -> Vec<String> {
        let keys = self.server.ask_well(&["KEYS", "*"]);
        redis::from_redis_value(keys).expect("a list of names")
    }
}

impl<const VALKEY: bool> Networked for Fresh<VALKEY> {
    fn port(&self) -> u16 {
        self.server.port
    }

    fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }
}

mod redis_conforms {
    crate::conformance!(super::Fresh<false>, on a network);
}

mod valkey_conforms {
    crate::conformance!(super::Fresh<true>, on a network);
}

/// What only these two can get wrong, on both.
mod alone {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use whenleader::backend::{self, BackendError, StoreOptions};
    use whenleader::clock::SystemClock;
    use whenleader::lease::FailureKind::{self, Ambiguous, Fatal, Transient};
    use whenleader::lease::{Hint, Outcome};

    use super::key;
    use crate::suite::{
        Client, LONG, PATIENCE, PartlyHeard, SHORT, denied, hears_what_it_may, held, leading, name,
        open, owner, patient,
    };
    use crate::support::{Kind, Proxy, Redis, Scripted, Trouble, eventually};

    /// Runs a test once with each server.
    macro_rules! with_both {
        ($($sentence:ident)*) => { $(
            mod $sentence {
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn redis() {
                    super::$sentence($crate::support::Kind::Redis, stringify!($sentence)).await;
                }
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn valkey() {
                    super::$sentence($crate::support::Kind::Valkey, stringify!($sentence)).await;
                }
            }
        )* };
    }

    with_both! {
        an_answer_that_never_came_counts_for_nothing_and_the_next_attempt_begins_a_new_term
        an_attempt_that_was_given_up_mixes_up_no_later_answer
        a_dead_connection_is_not_used_again_after_its_attempt_was_given_up
        a_connection_that_died_idle_is_replaced_within_the_attempt
        a_connection_without_an_answer_is_replaced_after_the_patience_of_the_shortest_attempt
        a_campaign_whose_answer_is_late_is_not_sent_again
        a_release_that_was_sent_twice_was_done
        a_store_that_is_gone_is_unreachable_and_a_new_one_knows_no_leader
        a_replica_refuses_writes_and_is_never_taken_for_a_leader
        a_server_that_is_loading_is_waited_for
        a_server_that_forgot_the_scripts_is_given_them_again
        everything_deleted_ends_the_term_and_tokens_go_on_growing
        a_wrong_password_is_refused_for_good_and_never_shown
        a_user_without_rights_is_told_which_ones_are_needed
        a_user_who_lacks_one_right_is_refused_at_start
        a_user_who_may_not_publish_leads_all_the_same
        a_full_server_is_a_failure_that_passes
        a_busy_server_is_a_failure_that_passes
        a_key_of_another_type_is_named_with_its_cure
        a_lease_without_an_expiry_is_given_one
        a_token_that_was_tampered_with_is_named_or_outgrown
        a_failover_may_lose_the_lease_and_the_old_leader_learns_it_from_its_next_renewal
        too_few_replicas_refuse_the_lease_and_free_it_again
        enough_replicas_confirm_the_lease
        only_the_connection_that_wrote_can_confirm_a_write
        a_watch_says_when_it_is_blind_and_hears_again_when_it_is_back
        an_election_that_may_not_be_heard_leaves_all_others_heard
        one_connection_and_one_subscription_serve_all_elections_and_both_end
        databases_and_prefixes_keep_elections_apart
        a_unix_socket_serves_as_well
    }

    async fn fails(client: &Client, kind: FailureKind, code: &str) -> BackendError {
        let error = client
            .attempt(&name("leader"), LONG, None)
            .await
            .expect_err("a failure");
        assert_eq!((error.kind, error.code), (kind, code), "{error}");
        error
    }

    fn impatient(url: &str) -> Client {
        let mut options = StoreOptions::new(".");
        options.request_timeout = Duration::from_millis(300);
        options.connect_timeout = Duration::from_millis(500);
        let backend = backend::open(url, &options, Arc::new(SystemClock)).unwrap();
        Client {
            backend,
            owner: owner("impatient"),
        }
    }

    async fn an_answer_that_never_came_counts_for_nothing_and_the_next_attempt_begins_a_new_term(
        kind: Kind,
        test: &str,
    ) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let election = name("leader");
        let (near, far) = (
            Client::new(&server.url(), "near").await,
            impatient(&proxy.url()),
        );
        for trouble in [
            Trouble::CutAnswers,
            Trouble::HoldAnswers,
            Trouble::CutAfter(3),
        ] {
            // The scripts are known and the connection is old: only the answer itself gets lost.
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

    async fn an_attempt_that_was_given_up_mixes_up_no_later_answer(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = Client::new(&proxy.url(), "a").await;
        let mut tokens = Vec::new();
        for number in 0..10 {
            tokens.push(client.win(&name(&format!("e{number}")), LONG).await);
        }
        proxy.set(Trouble::Delay(Duration::from_millis(20)));
        for round in 0..20_u64 {
            for (number, token) in tokens.iter().enumerate() {
                let election = name(&format!("e{number}"));
                let attempt = client.attempt(&election, LONG, Some(*token));
                let patience = Duration::from_millis(1 + round * 7 % 40);
                if let Ok(outcome) = tokio::time::timeout(patience, attempt).await {
                    assert_eq!(held(outcome.unwrap()), *token);
                }
            }
        }
    }

    async fn a_dead_connection_is_not_used_again_after_its_attempt_was_given_up(
        kind: Kind,
        test: &str,
    ) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = Client::new(&proxy.url(), "a").await;
        let election = name("leader");
        let token = client.win(&election, LONG).await;
        let connections = proxy.connections();
        proxy.freeze();
        let patience = Duration::from_millis(200);
        let attempt = client.attempt(&election, LONG, Some(token));
        assert!(tokio::time::timeout(patience, attempt).await.is_err());
        // Well before the connection itself would notice.
        let start = Instant::now();
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(proxy.connections(), connections + 1);
    }

    async fn a_connection_that_died_idle_is_replaced_within_the_attempt(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = Client::new(&proxy.url(), "a").await;
        let token = client.win(&name("leader"), LONG).await;
        for wait in [0, 50] {
            proxy.cut();
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert_eq!(
                held(client.renew(&name("leader"), LONG, token).await),
                token
            );
        }
        // The server may do it too.
        server.ask_well(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(
            held(client.renew(&name("leader"), LONG, token).await),
            token
        );
    }

    async fn a_connection_without_an_answer_is_replaced_after_the_patience_of_the_shortest_attempt(
        kind: Kind,
        test: &str,
    ) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = patient(&proxy.url()).await;
        let election = name("leader");
        let token = client.win(&election, LONG).await;
        let begun = Instant::now();
        for number in 1..=3 {
            let before = proxy.connections();
            // Long enough not to be taken for one that has just answered.
            tokio::time::sleep(PATIENCE * 2).await;
            proxy.freeze();
            match number {
                1 => assert_eq!(held(client.renew(&election, LONG, token).await), token),
                2 => drop(client.win(&name("another"), LONG).await),
                _ => assert_eq!(
                    client.leader(&election).await,
                    Some(leading(&client, token))
                ),
            }
            assert_eq!(proxy.connections(), before + 1, "{number}");
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    /// A copy that came behind the answer to the other one would begin a term of which nobody knows.
    async fn a_campaign_whose_answer_is_late_is_not_sent_again(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = patient(&proxy.url()).await;
        let election = name("leader");
        let token = client.win(&election, LONG).await;
        assert!(client.release(&election, token).await);
        let connections = proxy.connections();
        proxy.set(Trouble::Delay(PATIENCE * 3));
        let token = client.win(&election, LONG).await;
        proxy.set(Trouble::None);
        assert_eq!(proxy.connections(), connections);
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }

    async fn a_release_that_was_sent_twice_was_done(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let client = patient(&proxy.url()).await;
        let election = name("leader");
        for cut in [true, false] {
            let token = client.win(&election, LONG).await;
            // The script is known: the first copy comes through, and its answer never does.
            let other = client.win(&name("other"), LONG).await;
            assert!(client.release(&name("other"), other).await);
            proxy.set(Trouble::HoldAnswers);
            let thaw = async {
                tokio::time::sleep(PATIENCE / 2).await;
                if cut {
                    proxy.cut();
                } else {
                    proxy.freeze();
                }
                proxy.set(Trouble::None);
            };
            let (released, ()) = tokio::join!(client.release(&election, token), thaw);
            assert!(released, "{cut}");
            assert!(!client.release(&election, token).await, "{cut}");
        }
    }

    async fn a_store_that_is_gone_is_unreachable_and_a_new_one_knows_no_leader(
        kind: Kind,
        test: &str,
    ) {
        let Some(mut server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let election = name("leader");
        let client = Client::new(&server.url(), "a").await;
        let old = client.win(&election, LONG).await;
        server.crash();
        // Nobody can tell whether the first request after it was applied.
        let error = client
            .attempt(&election, LONG, Some(old))
            .await
            .unwrap_err();
        assert_eq!(error.code, "unreachable", "{error}");
        let error = fails(&client, Transient, "unreachable").await;
        assert!(error.message.contains(&server.port.to_string()), "{error}");
        server.restart();
        let (leader, _) = denied(client.renew(&election, LONG, old).await);
        assert_eq!(leader, None);
        assert!(client.win(&election, LONG).await > old);
    }

    async fn a_replica_refuses_writes_and_is_never_taken_for_a_leader(kind: Kind, test: &str) {
        let Some(primary) = Redis::start(test, kind, &[]) else {
            return;
        };
        let port = primary.port.to_string();
        let replica = Redis::start(test, kind, &["--replicaof", "127.0.0.1", &port]).unwrap();
        wait_for_replica(&primary).await;
        let client = Client {
            backend: open(&replica.url()),
            owner: owner("a"),
        };
        let error = fails(&client, Transient, "read-only").await;
        assert!(error.message.contains("primary"), "{error}");
        let error = client.backend.prepare().await.unwrap_err();
        assert_eq!((error.kind, error.code), (Transient, "read-only"));
        // A leader whose primary became a replica.
        let leader = Client::new(&primary.url(), "b").await;
        let token = leader.win(&name("leader"), LONG).await;
        wait_for_replica(&primary).await;
        let other = replica.port.to_string();
        replica.ask_well(&["REPLICAOF", "NO", "ONE"]);
        primary.ask_well(&["REPLICAOF", "127.0.0.1", &other]);
        let renewal = leader.attempt(&name("leader"), LONG, Some(token)).await;
        assert_eq!(renewal.expect_err("no write there").code, "read-only");
    }

    async fn a_server_that_is_loading_is_waited_for(kind: Kind, test: &str) {
        let slowly = [
            ["--key-load-delay", "20000"],
            ["--loading-process-events-interval-bytes", "1024"],
        ];
        let Some(mut server) = Redis::start(test, kind, &slowly.concat()) else {
            return;
        };
        server.ask_well(&["CONFIG", "SET", "rdbcompression", "no"]);
        for number in 0..100 {
            server.ask_well(&["SET", &number.to_string(), &"x".repeat(2048)]);
        }
        server.ask_well(&["SAVE"]);
        server.restart();
        let client = Client {
            backend: open(&server.url()),
            owner: owner("a"),
        };
        fails(&client, Transient, "loading").await;
        eventually("it has loaded", async || {
            client.attempt(&name("leader"), LONG, None).await.ok()
        })
        .await;
    }

    async fn a_server_that_forgot_the_scripts_is_given_them_again(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let client = Client::new(&server.url(), "a").await;
        let election = name("leader");
        for _ in 0..3 {
            server.ask_well(&["SCRIPT", "FLUSH"]);
            let token = client.win(&election, LONG).await;
            server.ask_well(&["SCRIPT", "FLUSH"]);
            assert_eq!(held(client.renew(&election, LONG, token).await), token);
            server.ask_well(&["SCRIPT", "FLUSH"]);
            assert!(client.release(&election, token).await);
        }
    }

    async fn everything_deleted_ends_the_term_and_tokens_go_on_growing(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let client = Client::new(&server.url(), "a").await;
        let election = name("leader");
        let old = client.win(&election, LONG).await;
        server.ask_well(&["FLUSHALL"]);
        let (leader, remaining) = denied(client.renew(&election, LONG, old).await);
        assert_eq!((leader, remaining), (None, None));
        assert!(client.win(&election, LONG).await > old);
    }

    async fn a_wrong_password_is_refused_for_good_and_never_shown(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &["--requirepass", "right/pa?ss"]) else {
            return;
        };
        for (credentials, advice) in [
            ("", "password"),
            (":s3cret@", "password"),
            ("default:s3cret@", "password"),
            ("nobody:s3cret@", "password"),
        ] {
            let url = format!("redis://{credentials}127.0.0.1:{}", server.port);
            let client = Client {
                backend: open(&url),
                owner: owner("a"),
            };
            let error = fails(&client, Fatal, "refused").await;
            assert!(error.message.contains(advice), "{error}");
            let prepared = client.backend.prepare().await.unwrap_err();
            assert_eq!((prepared.kind, prepared.code), (Fatal, "refused"));
            let shown = format!(
                "{error} {prepared:?} {} {:?}",
                client.backend.describe(),
                client.backend
            );
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        let url = format!("redis://:right%2Fpa%3Fss@127.0.0.1:{}", server.port);
        Client::new(&url, "a")
            .await
            .win(&name("leader"), LONG)
            .await;
    }

    async fn a_user_without_rights_is_told_which_ones_are_needed(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let (user, election) = (["ACL", "SETUSER", "poor"], name("leader"));
        server.ask_well(&[&user[..], &["on", ">pw", "~*", "&*", "+get"]].concat());
        for place in ["", "/3", "?prefix=[shop]:"] {
            let url = format!("redis://poor:pw@127.0.0.1:{}{place}", server.port);
            let error = open(&url).prepare().await.expect_err(place);
            assert_eq!((error.kind, error.code), (Fatal, "refused"), "{error}");
            assert_eq!(error.message.contains("+select"), place == "/3", "{error}");

            // And exactly those are enough.
            let (_, advice) = error.message.split_once("allow it ").unwrap();
            let (commands, places) = advice.split_once(", on the keys ").unwrap();
            let (keys, rest) = places.split_once(" and the channels ").unwrap();
            let (channels, _) = rest.split_once(' ').unwrap();
            let patterns = [format!("~{keys}"), format!("&{channels}")];
            let mut allowed = vec!["reset", "on", ">pw", &patterns[0], &patterns[1]];
            allowed.extend(commands.split_whitespace());
            server.ask_well(&[&user[..], &allowed].concat());
            let client = Client::new(&url, "a").await;
            let mut hearing = client.watch(&election).await;
            let token = client.win(&election, LONG).await;
            client.renew(&election, LONG, token).await;
            assert!(client.leader(&election).await.is_some());
            assert!(client.release(&election, token).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
            server.ask_well(&[&user[..], &["reset", "on", ">pw", "~*", "&*"]].concat());
        }
    }

    async fn a_user_who_lacks_one_right_is_refused_at_start(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let url = format!("redis://poor:pw@127.0.0.1:{}/3", server.port);
        let all = ["reset", "on", ">pw", "~*", "&*", "+@all"];
        for missing in [
            "-evalsha",
            "-script|load",
            "-get",
            "-set",
            "-del",
            "-pttl",
            "-pexpire",
            "-time",
            "-wait",
            "-select",
            "resetkeys",
        ] {
            server.ask_well(&["SCRIPT", "FLUSH"]);
            server.ask_well(&[&["ACL", "SETUSER", "poor"][..], &all, &[missing]].concat());
            let client = with_replicas_or_not(&url, Some(1), "a");
            let error = client.backend.prepare().await.expect_err(missing);
            assert_eq!(
                (error.kind, error.code),
                (Fatal, "refused"),
                "{missing}: {error}"
            );
            assert!(error.message.contains("+evalsha"), "{missing}: {error}");
        }
        let left: Vec<String> = redis::from_redis_value(server.ask_well(&["KEYS", "*"])).unwrap();
        assert!(left.is_empty(), "{left:?}");
    }

    async fn a_user_who_may_not_publish_leads_all_the_same(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let mute = ["on", ">pw", "~*", "resetchannels", "+@all"];
        server.ask_well(&[&["ACL", "SETUSER", "mute"][..], &mute].concat());
        let url = format!("redis://mute:pw@127.0.0.1:{}", server.port);
        let client = Client::new(&url, "a").await;
        let token = client.win(&name("leader"), LONG).await;
        assert_eq!(
            held(client.renew(&name("leader"), LONG, token).await),
            token
        );
        assert!(client.release(&name("leader"), token).await);
    }

    async fn a_full_server_is_a_failure_that_passes(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let client = Client::new(&server.url(), "a").await;
        server.ask_well(&["CONFIG", "SET", "maxmemory", "1"]);
        fails(&client, Transient, "full").await;
        server.ask_well(&["CONFIG", "SET", "maxmemory", "0"]);
        client.win(&name("leader"), LONG).await;
    }

    async fn a_busy_server_is_a_failure_that_passes(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &["--lua-time-limit", "1"]) else {
            return;
        };
        let client = Client::new(&server.url(), "a").await;
        std::thread::scope(|scope| {
            scope.spawn(|| server.ask(&["EVAL", "while true do end", "0"]));
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    eventually("it is busy", async || {
                        let result = client.attempt(&name("leader"), SHORT, None).await;
                        let busy = result
                            .is_err_and(|error| (error.kind, error.code) == (Transient, "busy"));
                        busy.then_some(())
                    })
                    .await;
                });
            });
            server.ask_well(&["SCRIPT", "KILL"]);
        });
        client.take_over(&name("leader"), LONG).await;
    }

    async fn a_key_of_another_type_is_named_with_its_cure(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let client = Client::new(&server.url(), "a").await;
        let (lease, token) = (key(&name("leader"), "lease"), key(&name("leader"), "token"));
        for (bad, names) in [
            (&lease, "{cluster:leader}:lease"),
            (&token, "{cluster:leader}:token"),
        ] {
            server.ask_well(&["FLUSHALL"]);
            server.ask_well(&["HSET", bad, "a", "b"]);
            let error = fails(&client, Fatal, "bad-record").await;
            assert!(error.message.contains(names), "{error}");
            assert!(error.message.contains("DEL"), "{error}");
        }
    }

    async fn a_lease_without_an_expiry_is_given_one(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let election = name("leader");
        let (a, b) = (
            Client::new(&server.url(), "a").await,
            Client::new(&server.url(), "b").await,
        );
        let lease = key(&election, "lease");
        for tamper in [
            &["PERSIST", &lease][..],
            &["PEXPIRE", &lease, "99999999999"],
        ] {
            let token = a.win(&election, LONG).await;
            server.ask_well(tamper);
            let start = Instant::now();
            let (leader, remaining) = denied(b.campaign(&election, SHORT).await);
            assert_eq!(leader, Some(leading(&a, token)));
            assert!(remaining.is_some_and(|left| left <= SHORT), "{remaining:?}");
            let next = b.take_over(&election, LONG).await;
            assert!(start.elapsed() + Duration::from_millis(5) >= SHORT);
            b.release(&election, next).await;
        }
    }

    async fn a_token_that_was_tampered_with_is_named_or_outgrown(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let election = name("leader");
        let client = Client::new(&server.url(), "a").await;
        let first = client.win(&election, LONG).await;
        let token = key(&election, "token");
        for rubbish in ["-5", "x", "", "nan", "inf", "0x7f", "1e300", "12 "] {
            server.ask_well(&["SET", &token, rubbish]);
            assert!(client.win(&election, LONG).await > first, "{rubbish:?}");
        }
        for used_up in ["9007199254740991", "99999999999999999999999999"] {
            server.ask_well(&["SET", &token, used_up]);
            let error = fails(&client, Fatal, "bad-record").await;
            assert!(error.message.contains(&token), "{error}");
        }
    }

    async fn wait_for_replica(primary: &Redis) {
        eventually("the replica is in step", async || {
            // A write of the very connection that waits for it, and so for all before it.
            let mut connection = redis::Client::open(primary.url())
                .unwrap()
                .get_connection()
                .ok()?;
            let (): () = redis::cmd("SET")
                .arg("probe")
                .arg("x")
                .query(&mut connection)
                .ok()?;
            let count: i64 = redis::cmd("WAIT")
                .arg(1)
                .arg(100)
                .query(&mut connection)
                .ok()?;
            (count >= 1).then_some(())
        })
        .await;
    }

    fn with_replicas(url: &str, min_replicas: u32, id: &str) -> Client {
        with_replicas_or_not(url, Some(min_replicas), id)
    }

    fn with_replicas_or_not(url: &str, min_replicas: Option<u32>, id: &str) -> Client {
        let mut options = StoreOptions::new(".");
        options.min_replicas = min_replicas;
        Client {
            backend: backend::open(url, &options, Arc::new(SystemClock)).unwrap(),
            owner: owner(id),
        }
    }

    /// What nobody can prevent with asynchronous replication; the documentation says so.
    async fn a_failover_may_lose_the_lease_and_the_old_leader_learns_it_from_its_next_renewal(
        kind: Kind,
        test: &str,
    ) {
        let Some(old_primary) = Redis::start(test, kind, &[]) else {
            return;
        };
        let port = old_primary.port.to_string();
        let replica = Redis::start(test, kind, &["--replicaof", "127.0.0.1", &port]).unwrap();
        wait_for_replica(&old_primary).await;
        // A name that leads to whichever server is the primary.
        let election = name("leader");
        let a = Client::new(&old_primary.url(), "a").await;
        replica.ask_well(&["REPLICAOF", "NO", "ONE"]);
        let lost = a.win(&election, LONG).await;
        let b = Client::new(&replica.url(), "b").await;
        let new = b.win(&election, LONG).await;
        assert!(
            new.number() + 60_000 > lost.number(),
            "tokens are of about one time"
        );
        // The old primary becomes a replica of the new one, and the name leads there.
        let a_moved = Client {
            backend: open(&replica.url()),
            owner: a.owner.clone(),
        };
        let (leader, _) = denied(a_moved.renew(&election, LONG, lost).await);
        assert_eq!(leader, Some(leading(&b, new)));
    }

    async fn too_few_replicas_refuse_the_lease_and_free_it_again(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let election = name("leader");
        let careful = with_replicas(&server.url(), 1, "careful");
        let duration = Duration::from_secs(2);
        let error = careful
            .attempt(&election, duration, None)
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, error.code),
            (Ambiguous, "not-replicated"),
            "{error}"
        );
        let other = Client::new(&server.url(), "b").await;
        assert_eq!(other.leader(&election).await, None);
        other.win(&election, LONG).await;
    }

    async fn enough_replicas_confirm_the_lease(kind: Kind, test: &str) {
        let Some(primary) = Redis::start(test, kind, &[]) else {
            return;
        };
        let port = primary.port.to_string();
        let mut replica = Redis::start(test, kind, &["--replicaof", "127.0.0.1", &port]).unwrap();
        wait_for_replica(&primary).await;
        let election = name("leader");
        let careful = with_replicas(&primary.url(), 1, "careful");
        let duration = Duration::from_secs(4);
        let token = eventually("a confirmed lease", async || {
            match careful.attempt(&election, duration, None).await {
                Ok(Outcome::Held { token, .. }) => Some(token),
                _ => None,
            }
        })
        .await;
        assert_eq!(held(careful.renew(&election, duration, token).await), token);
        replica.crash();
        let error = careful
            .attempt(&election, duration, Some(token))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, error.code),
            (Ambiguous, "not-replicated"),
            "{error}"
        );
    }

    /// Another connection wrote nothing, so that there `WAIT` counts every replica that is connected.
    async fn only_the_connection_that_wrote_can_confirm_a_write(kind: Kind, test: &str) {
        let Some(primary) = Redis::start(test, kind, &[]) else {
            return;
        };
        let port = primary.port.to_string();
        let replica = Redis::start(test, kind, &["--replicaof", "127.0.0.1", &port]).unwrap();
        wait_for_replica(&primary).await;
        let proxy = Proxy::to(primary.port).await;
        let election = name("leader");
        let careful = with_replicas(&proxy.url(), 1, "careful");
        let token = careful.win(&election, LONG).await;
        careful.renew(&election, LONG, token).await;
        replica.freeze();
        let duration = Duration::from_secs(8);
        for term in [Some(token), None] {
            careful.leader(&election).await;
            // The connection breaks after the script's answer, so that only that of WAIT is missing.
            let answer = format!(
                "*3\r\n:1\r\n$13\r\n{token}\r\n:{}\r\n",
                duration.as_millis()
            );
            proxy.set(Trouble::CutAfter(answer.len()));
            let error = careful.attempt(&election, duration, term).await;
            let error = error.expect_err("the replica has nothing of it");
            assert_eq!(error.kind, Ambiguous, "{error}");
            assert_eq!(error.code, "unreachable", "{error}");
            proxy.set(Trouble::None);
        }
        for election in ["one", "two", "three"].map(name) {
            // The connection is given up by somebody else, before WAIT is sent.
            proxy.set(Trouble::Delay(Duration::from_millis(300)));
            let impatient = async {
                let other = name("other");
                let attempt = careful.attempt(&other, duration, None);
                let _ = tokio::time::timeout(Duration::from_millis(100), attempt).await;
            };
            let attempt = careful.attempt(&election, duration, None);
            let (result, ()) = tokio::join!(attempt, impatient);
            let error = result.expect_err("the replica has nothing of it");
            assert_eq!(
                (error.kind, error.code),
                (Ambiguous, "not-replicated"),
                "{error}"
            );
        }
    }

    async fn a_watch_says_when_it_is_blind_and_hears_again_when_it_is_back(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let proxy = Proxy::to(server.port).await;
        let election = name("leader");
        let (near, far) = (
            Client::new(&server.url(), "near").await,
            impatient(&proxy.url()),
        );
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

    async fn an_election_that_may_not_be_heard_leaves_all_others_heard(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let poor = ["on", ">pw", "~*", "+@all", "resetchannels", "&*:may-*"];
        server.ask_well(&[&["ACL", "SETUSER", "poor"][..], &poor].concat());
        let url = format!("redis://poor:pw@127.0.0.1:{}", server.port);
        let (far, near) = (
            Client::new(&url, "far").await,
            Client::new(&server.url(), "near").await,
        );
        let PartlyHeard {
            never, mut unheard, ..
        } = hears_what_it_may(&far, &near).await;
        // It takes part all the same, and was told once that it must ask.
        let token = far.win(&never[0], LONG).await;
        assert!(far.release(&never[0], token).await);
        for hearing in &mut unheard {
            assert_eq!(hearing.rest(), []);
        }
    }

    async fn one_connection_and_one_subscription_serve_all_elections_and_both_end(
        kind: Kind,
        test: &str,
    ) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let clients = || {
            let list = server.ask_well(&["CLIENT", "LIST"]);
            let list: String = redis::from_redis_value(list).unwrap();
            // Without the one that asks.
            list.lines()
                .filter(|line| !line.contains("cmd=client"))
                .count()
        };
        let client = Client::new(&server.url(), "a").await;
        let mut hearings = Vec::new();
        for number in 0..20 {
            let election = name(&format!("e{number}"));
            hearings.push(client.watch(&election).await);
            client.win(&election, LONG).await;
        }
        assert_eq!(clients(), 2);
        hearings.clear();
        eventually("the subscription ends with its last watch", async || {
            (clients() == 1).then_some(())
        })
        .await;
        let _hearing = client.watch(&name("e1")).await;
        client.backend.close().await;
        eventually("no connection is left", async || {
            (clients() == 0).then_some(())
        })
        .await;
    }

    async fn databases_and_prefixes_keep_elections_apart(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &[]) else {
            return;
        };
        let election = name("leader");
        let plain = Client::new(&server.url(), "plain").await;
        let other = Client::new(&format!("{}/3", server.url()), "other").await;
        let shop = Client::new(&format!("{}?prefix=shop:", server.url()), "shop").await;
        let mut hearing = other.watch(&election).await;
        let token = plain.win(&election, LONG).await;
        other.win(&election, LONG).await;
        shop.win(&election, LONG).await;
        plain.release(&election, token).await;
        let first = hearing.until("anything", |_| true).await;
        assert!(
            matches!(first, Hint::Alive { .. }),
            "a stranger's release was heard: {first:?}"
        );
        let keys: Vec<String> =
            redis::from_redis_value(server.ask_well(&["KEYS", "*shop*"])).unwrap();
        assert!(
            keys.contains(&"{shop:cluster:leader}:lease".to_owned()),
            "{keys:?}"
        );
        let client = Client {
            backend: open(&format!("{}/16", server.url())),
            owner: owner("x"),
        };
        fails(&client, Fatal, "refused").await;
    }

    async fn a_unix_socket_serves_as_well(kind: Kind, test: &str) {
        let Some(server) = Redis::start(test, kind, &["--requirepass", "p w"]) else {
            return;
        };
        let socket = server.socket().display().to_string();
        let client = Client::new(&format!("unix://{socket}?db=2&pass=p%20w"), "a").await;
        let mut hearing = client.watch(&name("leader")).await;
        let token = client.win(&name("leader"), LONG).await;
        hearing
            .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
            .await;
        assert!(client.release(&name("leader"), token).await);
        let gone = Client {
            backend: open("unix:///nowhere/redis.sock"),
            owner: owner("b"),
        };
        fails(&gone, Transient, "unreachable").await;
    }

    /// States of a server that are hard to bring about, by the words it would say.
    #[tokio::test]
    async fn every_refusal_of_a_server_has_its_meaning() {
        for (words, kind, code) in [
            (
                "LOADING Redis is loading the dataset in memory",
                Transient,
                "loading",
            ),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                Transient,
                "failover",
            ),
            ("MOVED 866 10.0.0.2:6379", Transient, "moved"),
            ("ASK 866 10.0.0.2:6379", Transient, "moved"),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Transient,
                "moved",
            ),
            ("CLUSTERDOWN The cluster is down", Transient, "cluster-down"),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist to disk.",
                Transient,
                "full",
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Transient,
                "full",
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                Transient,
                "not-replicated",
            ),
            ("BUSY Redis is busy running a script.", Transient, "busy"),
            ("ERR max number of clients reached", Transient, "busy"),
            // As servers before version 7 say it.
            (
                "ERR Error running script (call to f_12): @user_script:17: @user_script: 17: -READONLY You can't write against a read only replica.",
                Transient,
                "read-only",
            ),
            (
                "READONLY You can't write against a read only replica. script: ab12, on @user_script:17.",
                Transient,
                "read-only",
            ),
            ("NOAUTH Authentication required.", Fatal, "refused"),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Fatal,
                "refused",
            ),
            (
                "DENIED Redis is running in protected mode",
                Fatal,
                "refused",
            ),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: ",
                Fatal,
                "unsupported",
            ),
            ("ERR something that nobody has heard of", Transient, "store"),
        ] {
            let server = Scripted::answering(format!("-{words}\r\n").into_bytes()).await;
            let client = Client {
                backend: open(&server.url()),
                owner: owner("a"),
            };
            let error = fails(&client, kind, code).await;
            assert!(error.message.contains(&server.url()), "{error}");
        }
    }

    #[tokio::test]
    async fn a_node_of_a_cluster_may_start_though_another_one_has_the_key_of_the_probe() {
        let server = Scripted::answering(b"-MOVED 866 10.0.0.2:6379\r\n".to_vec()).await;
        let client = Client {
            backend: open(&server.url()),
            owner: owner("a"),
        };
        client.backend.prepare().await.unwrap();
        let error = fails(&client, Transient, "moved").await;
        assert!(error.message.contains("cluster"), "{error}");
    }

    #[tokio::test]
    async fn an_answer_that_makes_no_sense_is_never_leadership() {
        for answer in [
            "+OK\r\n",
            ":1\r\n",
            "$-1\r\n",
            "*0\r\n",
            "*3\r\n:1\r\n$1\r\nx\r\n:1\r\n",
            "*3\r\n:1\r\n$1\r\n0\r\n:1\r\n",
            "*3\r\n:7\r\n$1\r\n1\r\n:1\r\n",
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "\0\0\0\0\r\n",
            "$99999999999\r\n",
        ] {
            let server = Scripted::answering(answer.as_bytes().to_vec()).await;
            let client = impatient(&server.url());
            let result = client.attempt(&name("leader"), LONG, None).await;
            assert!(result.is_err(), "{answer:?}: {result:?}");
        }
    }
}

/// Over TLS, with certificates of our own.
mod encrypted {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use whenleader::backend::{self, StoreOptions};
    use whenleader::clock::SystemClock;
    use whenleader::lease::FailureKind::Fatal;
    use whenleader::lease::Hint;

    use crate::suite::{Client, LONG, name, open, owner};
    use crate::support::{Kind, Redis, TempDir, free_port};

    struct Authority(Issuer<'static, KeyPair>);

    impl Authority {
        fn new(file: &Path) -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params
                .distinguished_name
                .push(DnType::CommonName, "authority");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            fs::write(file, params.self_signed(&key).unwrap().pem()).unwrap();
            Self(Issuer::new(params, key))
        }

        fn certify(&self, host: &str, cert: &Path, key_file: &Path) {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, host);
            fs::write(cert, params.signed_by(&key, &self.0).unwrap().pem()).unwrap();
            fs::write(key_file, key.serialize_pem()).unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_is_believed_only_if_its_certificate_is_trusted() {
        let dir = TempDir::new();
        let file = |name: &str| dir.path().join(name);
        let shown = |name: &str| file(name).display().to_string();
        let authority = Authority::new(&file("ca.pem"));
        Authority::new(&file("stranger.pem"));
        authority.certify("localhost", &file("server.pem"), &file("server.key"));
        authority.certify("client", &file("client.pem"), &file("client.key"));
        let port = free_port();
        let args = [
            ["--tls-port", &port.to_string()],
            ["--tls-cert-file", &shown("server.pem")],
            ["--tls-key-file", &shown("server.key")],
            ["--tls-ca-cert-file", &shown("ca.pem")],
            ["--tls-auth-clients", "yes"],
        ];
        let test = "a_server_is_believed_only_if_its_certificate_is_trusted";
        let Some(_server) = Redis::start(test, Kind::Redis, &args.concat()) else {
            return;
        };
        let mutual = format!("cert={}&key={}", shown("client.pem"), shown("client.key"));
        let good = format!("rediss://localhost:{port}?ca={}&{mutual}", shown("ca.pem"));
        let client = Client::new(&good, "a").await;
        let mut hearing = client.watch(&name("leader")).await;
        let token = client.win(&name("leader"), LONG).await;
        assert!(client.release(&name("leader"), token).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;

        for (what, url) in [
            (
                "no authority of ours",
                format!("rediss://localhost:{port}?{mutual}"),
            ),
            (
                "another authority",
                format!(
                    "rediss://localhost:{port}?ca={}&{mutual}",
                    shown("stranger.pem")
                ),
            ),
            (
                "another name",
                format!("rediss://127.0.0.1:{port}?ca={}&{mutual}", shown("ca.pem")),
            ),
            (
                "no such file",
                format!("rediss://localhost:{port}?ca={}", shown("nothing.pem")),
            ),
            (
                "no certificate",
                format!("rediss://localhost:{port}?ca={}", shown("server.key")),
            ),
            (
                "no certificate of the client",
                format!("rediss://localhost:{port}?ca={}", shown("ca.pem")),
            ),
        ] {
            let client = Client {
                backend: open(&url),
                owner: owner("b"),
            };
            let error = client.backend.prepare().await.expect_err(what);
            assert_eq!(
                (error.kind, error.code),
                (Fatal, "certificate"),
                "{what}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn plain_text_to_a_port_with_tls_fails_in_words() {
        let dir = TempDir::new();
        let file = |name: &str| dir.path().join(name);
        let shown = |name: &str| file(name).display().to_string();
        let authority = Authority::new(&file("ca.pem"));
        authority.certify("localhost", &file("server.pem"), &file("server.key"));
        let port = free_port();
        let args = [
            ["--tls-port", &port.to_string()],
            ["--tls-cert-file", &shown("server.pem")],
            ["--tls-key-file", &shown("server.key")],
            ["--tls-auth-clients", "no"],
            ["--tls-ca-cert-file", &shown("ca.pem")],
        ];
        let test = "plain_text_to_a_port_with_tls_fails_in_words";
        let Some(server) = Redis::start(test, Kind::Redis, &args.concat()) else {
            return;
        };
        let plain = open(&format!("redis://localhost:{port}"));
        let error = plain.prepare().await.expect_err("no plain text there");
        assert!(error.message.contains("rediss://"), "{error}");
        let mut options = StoreOptions::new(".");
        options.connect_timeout = Duration::from_millis(500);
        let url = format!("rediss://localhost:{}?ca={}", server.port, shown("ca.pem"));
        let ciphered = backend::open(&url, &options, Arc::new(SystemClock)).unwrap();
        let error = ciphered.prepare().await.expect_err("no TLS there");
        assert!(error.message.contains("redis://"), "{error}");
    }
}
