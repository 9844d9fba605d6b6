//! What only this store can get wrong: its connections, its rights, its table, and servers that take no writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use whenleader::backend::{self, BackendError, StoreOptions};
use whenleader::clock::SystemClock;
use whenleader::lease::FailureKind::{self, Ambiguous, Fatal, Transient};
use whenleader::lease::Outcome;

use super::TABLE;
use super::database::{Database, is_mysql, kind, sql};
use crate::suite::{Client, LONG, denied, held, leading, name, open, owner};
use crate::support::{Proxy, Server, Trouble, eventually};

/// Starts a test with a database of its own.
macro_rules! database {
    ($test:ident) => {
        match Database::new(stringify!($test)).await {
            Some(database) => database,
            None => return,
        }
    };
}

fn client(url: &str, id: &str) -> Client {
    Client {
        backend: open(url),
        owner: owner(id),
    }
}

/// One that waits for answers for so long, and no longer.
fn patient(url: &str, patience: Duration) -> Client {
    let mut options = StoreOptions::new(".");
    options.request_timeout = patience;
    options.connect_timeout = patience;
    Client {
        backend: backend::open(url, &options, Arc::new(SystemClock)).unwrap(),
        owner: owner("patient"),
    }
}

async fn fails(client: &Client, kind: FailureKind, code: &str) -> BackendError {
    let attempt = client.attempt(&name("leader"), LONG, None).await;
    let error = attempt.expect_err("a failure");
    assert_eq!((error.kind, error.code), (kind, code), "{error}");
    error
}

async fn refused_at_start(url: &str, kind: FailureKind, code: &str) -> BackendError {
    let error = open(url).prepare().await.expect_err(url);
    assert_eq!((error.kind, error.code), (kind, code), "{url}: {error}");
    error
}

fn with_parameter(url: &str, parameter: &str) -> String {
    format!("{url}?{parameter}")
}

/// Counts what goes to the server, and may change it on the way. Every request is sent at once.
struct Counter {
    port: u16,
    count: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Counter {
    async fn to(target: u16) -> Self {
        Self::changing(target, |_| {}).await
    }

    async fn changing(target: u16, change: fn(&mut Vec<u8>)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let count = Arc::<AtomicUsize>::default();
        let counting = Arc::clone(&count);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                let (mut asks, mut answers) = client.into_split();
                let (mut answered, mut asked) = server.into_split();
                let counting = Arc::clone(&counting);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = asks.read(&mut buffer).await {
                        counting.fetch_add(1, Ordering::SeqCst);
                        let mut request = buffer[..length].to_vec();
                        change(&mut request);
                        asked.write_all(&request).await.unwrap();
                    }
                });
                tokio::spawn(async move { tokio::io::copy(&mut answered, &mut answers).await });
            }
        });
        Self { port, count, task }
    }

    /// Since it was asked last.
    fn requests(&self, what: &str) -> usize {
        let count = self.count.swap(0, Ordering::SeqCst);
        println!("FIGURES: {:?}, {what}: {count} round trips", kind());
        count
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_a_release_and_a_denied_campaign_take_one_round_trip_and_a_new_term_two() {
    let database =
        database!(a_renewal_a_release_and_a_denied_campaign_take_one_round_trip_and_a_new_term_two);
    let counter = Counter::to(database.server.port).await;
    let url = with_parameter(&database.url_to(counter.port), "ssl-mode=disabled");
    let (a, b) = (
        Client::new(&url, "a").await,
        Client::new(&database.url(), "b").await,
    );
    let (election, other) = (name("leader"), name("other"));
    b.win(&other, LONG).await;
    counter.requests("the start");
    let token = a.win(&election, LONG).await;
    assert_eq!(counter.requests("a first term"), 2);
    a.renew(&election, LONG, token).await;
    assert_eq!(counter.requests("a renewal"), 1);
    denied(a.campaign(&other, LONG).await);
    assert_eq!(counter.requests("a denied campaign"), 1);
    denied(a.renew(&other, LONG, token).await);
    assert_eq!(counter.requests("a renewal that comes too late"), 1);
    assert!(a.release(&election, token).await);
    assert_eq!(counter.requests("a release"), 1);
    a.win(&election, LONG).await;
    assert_eq!(counter.requests("a later term"), 2);
}

/// An answer that breaks off anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_not_to_be_applied_was_not_and_what_may_be_is_never_leadership() {
    let database =
        database!(what_is_said_not_to_be_applied_was_not_and_what_may_be_is_never_leadership);
    let proxy = Proxy::to(database.server.port).await;
    let election = name("leader");
    let far = patient(&database.url_to(proxy.port), Duration::from_millis(500));
    far.backend.prepare().await.unwrap();
    let near = Client::new(&database.url(), "near").await;
    let mut last = far.win(&election, LONG).await;
    let (mut applied, mut unapplied) = (0, 0);
    let cuts = (0..1_200).step_by(60).map(Trouble::CutAfter);
    for trouble in cuts.chain([Trouble::CutAnswers, Trouble::HoldAnswers]) {
        proxy.set(trouble);
        let outcome = far.attempt(&election, LONG, None).await;
        proxy.set(Trouble::None);
        let found = near.leader(&election).await.expect("a leader");
        match outcome {
            Ok(outcome) => assert_eq!(held(outcome), found.token, "{trouble:?}"),
            Err(error) if error.kind == Transient => {
                assert_eq!(found.token, last, "{trouble:?}: {error}");
                unapplied += 1;
            }
            Err(error) => {
                assert_eq!(error.kind, Ambiguous, "{trouble:?}: {error}");
                applied += u32::from(found.token != last);
            }
        }
        last = far.win(&election, LONG).await;
        assert!(last > found.token, "{trouble:?}");
    }
    assert!(applied > 0 && unapplied > 0, "{applied} {unapplied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_given_up_mixes_up_no_later_answer() {
    let database = database!(an_attempt_that_was_given_up_mixes_up_no_later_answer);
    let proxy = Proxy::to(database.server.port).await;
    let client = Client::new(&database.url_to(proxy.port), "a").await;
    let mut tokens = Vec::new();
    for number in 0..10 {
        tokens.push(client.win(&name(&format!("e{number}")), LONG).await);
    }
    proxy.set(Trouble::Delay(Duration::from_millis(2)));
    let mut answered = 0;
    for round in 0..20_u64 {
        for (number, token) in tokens.iter().enumerate() {
            let election = name(&format!("e{number}"));
            let attempt = client.attempt(&election, LONG, Some(*token));
            let patience = Duration::from_millis(1 + round * 7 % 100);
            if let Ok(outcome) = tokio::time::timeout(patience, attempt).await {
                assert_eq!(held(outcome.unwrap()), *token);
                answered += 1;
            }
        }
    }
    assert!(answered > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_died_idle_is_replaced_within_the_attempt() {
    let database = database!(a_connection_that_died_idle_is_replaced_within_the_attempt);
    let proxy = Proxy::to(database.server.port).await;
    let user = database.user("idle", "ALL ON *.*").await;
    let url = user.replace(&database.server.port.to_string(), &proxy.port.to_string());
    let client = Client::new(&url, "a").await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    for wait in [0, 50] {
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(wait)).await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }
    // The server may do it too: an administrator, a shorter wait_timeout, a restart.
    let connections = format!(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'idle_{}'",
        database.name
    );
    for connection in database.sql(&connections).await {
        let id: u64 = connection.get(0).unwrap();
        database.sql(&format!("KILL {id}")).await;
    }
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
    proxy.cut();
    assert!(client.release(&election, token).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_costs_half_of_an_attempt_and_no_later_one() {
    let database = database!(a_half_open_connection_costs_half_of_an_attempt_and_no_later_one);
    let proxy = Proxy::to(database.server.port).await;
    let client = Client::new(&database.url_to(proxy.port), "a").await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    // Several, so that an attempt cannot just take the next.
    let many = (0..4).map(|number| {
        let (client, election) = (&client, name(&format!("e{number}")));
        async move { client.win(&election, LONG).await }
    });
    futures_util::future::join_all(many).await;
    proxy.freeze();
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_an_answer_is_replaced_after_the_patience_of_the_shortest_attempt() {
    let database = database!(a_connection_without_an_answer_is_replaced);
    let proxy = Proxy::to(database.server.port).await;
    let client = crate::suite::patient(&database.url_to(proxy.port)).await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    proxy.freeze();
    let begun = Instant::now();
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_sent_twice_was_done() {
    let database = database!(a_release_that_was_sent_twice_was_done);
    let proxy = Proxy::to(database.server.port).await;
    let url = with_parameter(&database.url_to(proxy.port), "ssl-mode=disabled");
    let client = Client::new(&url, "a").await;
    let election = name("leader");
    for cut in [true, false] {
        let token = client.win(&election, LONG).await;
        // The first copy comes through, and its answer never does.
        proxy.set(Trouble::HoldAnswers);
        let thaw = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_done_within_somebody_elses_transaction_does_not_count() {
    let database = database!(what_is_done_within_somebody_elses_transaction);
    let near = Client::new(&database.url(), "near").await;
    // Something between here and the server that keeps transactions open.
    let meddler = Counter::changing(database.server.port, |request| {
        let (on, off) = (b"autocommit = 1", b"autocommit = 0");
        let at = request.windows(on.len()).position(|part| part == on);
        if let Some(at) = at {
            request[at..at + off.len()].copy_from_slice(off);
        }
    })
    .await;
    let url = with_parameter(&database.url_to(meddler.port), "ssl-mode=disabled");
    let far = client(&url, "far");
    let attempt = far.attempt(&name("leader"), LONG, None).await;
    let error = attempt.expect_err("nobody else sees it");
    assert_ne!(error.kind, Fatal, "{error}");
    assert!(error.message.contains("autocommit"), "{error}");
    assert_eq!(near.leader(&name("leader")).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_connections_serve_all_elections_and_all_of_them_end() {
    let database = database!(a_few_connections_serve_all_elections_and_all_of_them_end);
    let url = database.user("few", "ALL ON *.*").await;
    let client = Client::new(&url, "a").await;
    let count = format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'few_{}'",
        database.name
    );
    let mut terms = Vec::new();
    for number in 0..50 {
        let election = name(&format!("e{number}"));
        terms.push((election.clone(), client.win(&election, LONG).await));
    }
    assert_eq!(database.number(&count).await, 1);
    let all = terms
        .iter()
        .map(|(election, token)| client.renew(election, LONG, *token));
    let renewed = futures_util::future::join_all(all).await;
    assert!(
        renewed
            .into_iter()
            .all(|outcome| matches!(outcome, Outcome::Held { .. }))
    );
    let most = database.number(&count).await;
    assert!((1..=8).contains(&most), "{most}");
    client.backend.close().await;
    eventually("no connection is left", async || {
        (database.number(&count).await == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_died_is_unreachable_and_knows_its_leader_when_it_is_back() {
    let test = "a_server_that_died_is_unreachable_and_knows_its_leader_when_it_is_back";
    let Some(server) = Server::own(test, kind(), &[]) else {
        return;
    };
    let client = Client::new(server.url(), "a").await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    server.kill().await;
    // Nobody can tell whether the first request after it was applied.
    let attempt = client.attempt(&election, LONG, Some(token)).await;
    assert_eq!(attempt.expect_err("no server").code, "unreachable");
    let error = fails(&client, Transient, "unreachable").await;
    assert!(error.message.contains(&server.port.to_string()), "{error}");
    server.restart().await;
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
    let other = Client::new(server.url(), "b").await;
    let (leader, _) = denied(other.campaign(&election, LONG).await);
    assert_eq!(leader, Some(leading(&client, token)));
    // Without a word in between, too.
    server.kill().await;
    server.restart().await;
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_answers_nobody_in_bounded_time() {
    let test = "a_frozen_server_answers_nobody_in_bounded_time";
    let Some(server) = Server::own(test, kind(), &[]) else {
        return;
    };
    let client = patient(server.url(), Duration::from_millis(600));
    client.backend.prepare().await.unwrap();
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    server.freeze().await;
    // Its threads stop one by one.
    let error = eventually("it stands still", async || {
        client.attempt(&election, LONG, Some(token)).await.err()
    })
    .await;
    let start = Instant::now();
    assert_eq!((error.kind, error.code), (Ambiguous, "timeout"), "{error}");
    let error = client.backend.peek(&election).await.expect_err("no answer");
    assert_eq!(error.kind, Transient, "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    server.thaw().await;
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_is_a_failure_that_passes() {
    let database = database!(a_server_without_room_is_a_failure_that_passes);
    let url = database.user("room", "ALL ON *.*").await;
    database
        .sql(&format!(
            "ALTER USER room_{}@'127.0.0.1' WITH MAX_USER_CONNECTIONS 1",
            database.name
        ))
        .await;
    let first = Client::new(&url, "a").await;
    fails(&client(&url, "b"), Transient, "busy").await;
    first.backend.close().await;
    let second = client(&url, "b");
    eventually("there is room", async || {
        second.attempt(&name("leader"), LONG, None).await.ok()
    })
    .await;

    let test = "a_server_without_room_is_a_failure_that_passes";
    let args = [
        "--flag=--max-connections=10",
        "--flag=--max-connect-errors=1",
    ];
    let server = Server::own(test, kind(), &args).expect("as the shared one");
    sql(
        &server,
        "CREATE USER poor@'127.0.0.1' IDENTIFIED BY 'tests'",
    )
    .await;
    sql(&server, "GRANT ALL ON tests.* TO poor@'127.0.0.1'").await;
    let url = server.url().replace("root:", "poor:");
    let mut others = Vec::new();
    for number in 0..10 {
        let other = client(&url, &format!("other-{number}"));
        let _ = other.attempt(&name("leader"), LONG, None).await;
        others.push(other);
    }
    let error = fails(&client(&url, "b"), Transient, "busy").await;
    assert!(error.message.contains("max_connections"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_let_in_learns_why_and_no_password_is_ever_shown() {
    let database = database!(who_is_not_let_in_learns_why_and_no_password_is_ever_shown);
    let good = database.user("good", "ALL ON *.*").await;
    let port = database.server.port;
    let locked = database.user("locked", "").await;
    database
        .sql(&format!(
            "ALTER USER locked_{}@'127.0.0.1' ACCOUNT LOCK",
            database.name
        ))
        .await;
    let expired = database.user("expired", "ALL ON *.*").await;
    database
        .sql(&format!(
            "ALTER USER expired_{}@'127.0.0.1' PASSWORD EXPIRE",
            database.name
        ))
        .await;
    for (url, code, advice) in [
        (
            good.replace(":tests@", ":s3cret@"),
            "refused",
            "the password",
        ),
        (good.replace(":tests@", "@"), "refused", "the password"),
        (
            good.replace("good_", "nobody_").replace("tests", "s3cret"),
            "refused",
            "the user",
        ),
        (locked, "refused", "UNLOCK"),
        (expired, "refused", "ALTER USER"),
        (
            format!("mysql://root:tests@127.0.0.1:{port}/nowhere"),
            "no-database",
            "CREATE DATABASE",
        ),
        (database.user("strange", "").await, "refused", "GRANT"),
        (
            good.replace(&format!("good_{}:tests", database.name), "tls_only:tests")
                + "?ssl-mode=disabled",
            "refused",
            "the user",
        ),
    ] {
        let error = refused_at_start(&url, Fatal, code).await;
        assert!(error.message.contains(advice), "{url}: {error}");
        let client = client(&url, "a");
        let tried = fails(&client, Fatal, code).await;
        let shown = format!(
            "{error} {tried:?} {} {:?}",
            client.backend.describe(),
            client.backend
        );
        assert!(
            !shown.contains("s3cret") && !shown.contains(":tests"),
            "{shown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_lacks_one_right_is_refused_at_start_and_told_the_statements() {
    let database =
        database!(a_user_who_lacks_one_right_is_refused_at_start_and_told_the_statements);
    let table = format!("{}.{TABLE}", database.name);
    // Without a table, creating it is a right that is missed.
    let rights = format!("SELECT, INSERT, UPDATE ON {}.*", database.name);
    let poor = database.user("poor", &rights).await;
    let error = refused_at_start(&poor, Fatal, "refused").await;
    let (_, told) = error
        .message
        .split_once("an administrator says ")
        .expect("what to say");
    let (grant, rest) = told.split_once(" (without").unwrap();
    let (_, create) = rest.split_once("already: ").unwrap();
    // And exactly that is enough.
    let grant = grant.replace("<host>", "127.0.0.1");
    database.sql(&grant).await;
    let client = Client::new(&poor, "a").await;
    let token = client.win(&name("leader"), LONG).await;
    client.renew(&name("leader"), LONG, token).await;
    assert!(client.leader(&name("leader")).await.is_some());
    assert!(client.release(&name("leader"), token).await);
    client.backend.close().await;

    database.sql(&format!("DROP TABLE {table}")).await;
    database.sql(create.trim_end_matches(')')).await;
    for (user, rights) in [
        ("no_select", "INSERT, UPDATE"),
        ("no_insert", "SELECT, UPDATE"),
        ("no_update", "SELECT, INSERT"),
        ("none", "DELETE"),
    ] {
        let url = database.user(user, &format!("{rights} ON {table}")).await;
        let error = refused_at_start(&url, Fatal, "refused").await;
        assert!(
            error.message.contains("GRANT SELECT, INSERT, UPDATE"),
            "{error}"
        );
    }
    // CREATE is not missed where the table is.
    let rich = database
        .user("rich", &format!("SELECT, INSERT, UPDATE ON {table}"))
        .await;
    Client::new(&rich, "b")
        .await
        .win(&name("leader"), LONG)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_start_leaves_nothing_and_several_may_start_at_once() {
    let database = database!(the_start_leaves_nothing_and_several_may_start_at_once);
    let starts = (0..10).map(|_| {
        let backend = open(&database.url());
        async move { backend.prepare().await }
    });
    for started in futures_util::future::join_all(starts).await {
        started.unwrap();
    }
    assert_eq!(
        database
            .number(&format!("SELECT COUNT(*) FROM {TABLE}"))
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_was_dropped_ends_the_term_and_is_made_again() {
    let database = database!(a_table_that_was_dropped_ends_the_term_and_is_made_again);
    let client = Client::new(&database.url(), "a").await;
    let election = name("leader");
    let drop = format!("DROP TABLE {TABLE}");
    let first = client.win(&election, LONG).await;
    database.sql(&drop).await;
    assert_eq!(client.leader(&election).await, None);
    assert!(!client.release(&election, first).await);
    let (leader, remaining) = denied(client.renew(&election, LONG, first).await);
    assert_eq!((leader, remaining), (None, None));
    assert!(client.win(&election, LONG).await > first);
    database.sql(&drop).await;
    let third = client.win(&election, LONG).await;
    assert!(third > first);
    // Who may not make it says so.
    let rights = format!("SELECT, INSERT, UPDATE ON {}.{TABLE}", database.name);
    let poor = Client::new(&database.user("poor", &rights).await, "b").await;
    database.sql(&drop).await;
    let error = fails(&poor, Fatal, "refused").await;
    assert!(error.message.contains("CREATE TABLE"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_another_shape_is_refused_at_start_and_not_touched() {
    let database = database!(a_table_of_another_shape_is_refused_at_start_and_not_touched);
    Client::new(&database.url(), "a").await;
    for (number, (change, named)) in [
        ("ENGINE=MEMORY", "InnoDB"),
        ("DROP COLUMN attempt", "attempt"),
        ("MODIFY election VARCHAR(253) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL", "election"),
        ("MODIFY election VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL", "election"),
        ("MODIFY instance VARCHAR(253) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL", "instance"),
        ("MODIFY token INT NOT NULL", "token"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (election, token)", "primary key"),
        ("DROP PRIMARY KEY", "primary key"),
        ("ADD COLUMN theirs INT NOT NULL", "theirs"),
    ]
    .into_iter()
    .enumerate()
    {
        let table = format!("table_{number}");
        database.sql(&format!("CREATE TABLE {table} LIKE {TABLE}")).await;
        database.sql(&format!("ALTER TABLE {table} {change}")).await;
        let before = format!("{:?}", database.sql(&format!("SHOW CREATE TABLE {table}")).await);
        let url = with_parameter(&database.url(), &format!("table={table}"));
        let error = refused_at_start(&url, Fatal, "bad-table").await;
        assert!(error.message.contains(named), "{change}: {error}");
        assert!(error.message.contains("?table="), "{change}: {error}");
        let after = format!("{:?}", database.sql(&format!("SHOW CREATE TABLE {table}")).await);
        assert_eq!(before, after);
    }
    // A column more, which needs no value, does no harm; nor does a later collation of the same kind.
    let later = if is_mysql() {
        "utf8mb4_0900_bin"
    } else {
        "utf8mb4_nopad_bin"
    };
    database
        .sql(&format!("CREATE TABLE more LIKE {TABLE}"))
        .await;
    database
        .sql(&format!("ALTER TABLE more ADD COLUMN theirs INT, MODIFY instance VARCHAR(255) COLLATE {later} NOT NULL"))
        .await;
    Client::new(&with_parameter(&database.url(), "table=more"), "b").await;
    database
        .sql(&format!("CREATE VIEW sight AS SELECT * FROM {TABLE}"))
        .await;
    refused_at_start(
        &with_parameter(&database.url(), "table=sight"),
        Fatal,
        "bad-table",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_no_election_wrote_is_named_with_its_cure() {
    let database = database!(a_row_that_no_election_wrote_is_named_with_its_cure);
    let client = Client::new(&database.url(), "a").await;
    for (number, spoiled) in [
        "instance = ''",
        "token = 0",
        "expires_at = 9223372036854775807",
    ]
    .into_iter()
    .enumerate()
    {
        let election = name(&format!("it's {number}"));
        let token = client.win(&election, LONG).await;
        database
            .sql(&format!("UPDATE {TABLE} SET {spoiled}, nonce = 1"))
            .await;
        let error = client
            .attempt(&election, LONG, None)
            .await
            .expect_err(spoiled);
        assert_eq!((error.kind, error.code), (Fatal, "bad-record"), "{error}");
        assert!(error.message.contains("it's"), "{error}");
        let (_, cure) = error.message.split_once("needs it: ").expect("a cure");
        tokio::time::sleep(Duration::from_millis(5)).await;
        database.sql(cure).await;
        assert!(client.win(&election, LONG).await > token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_grows_on_from_whatever_the_row_says() {
    let database = database!(a_token_grows_on_from_whatever_the_row_says);
    let client = Client::new(&database.url(), "a").await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    client.release(&election, token).await;
    // As if the clock had been ahead for a century, and was set back.
    database
        .sql(&format!("UPDATE {TABLE} SET token = 9007199254740989"))
        .await;
    for last in [9_007_199_254_740_990, 9_007_199_254_740_991] {
        let token = client.win(&election, LONG).await;
        assert_eq!(token.number(), last);
    }
    let error = client
        .attempt(&election, LONG, None)
        .await
        .expect_err("no token is left");
    assert_eq!(error.code, "bad-record", "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_comes_after_a_later_one_changes_nothing() {
    let database = database!(a_renewal_that_comes_after_a_later_one_changes_nothing);
    let client = Client::new(&database.url(), "a").await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    // As a later attempt has left it.
    database
        .sql(&format!(
            "UPDATE {TABLE} SET attempt = attempt + 1000000000"
        ))
        .await;
    let (leader, remaining) = denied(client.renew(&election, LONG / 10, token).await);
    assert_eq!(leader, Some(leading(&client, token)));
    assert!(
        remaining.is_some_and(|left| left > LONG / 2),
        "{remaining:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_has_no_leaders() {
    let test = "a_server_that_takes_no_writes_has_no_leaders";
    let Some(server) = Server::own(test, kind(), &[]) else {
        return;
    };
    let election = name("leader");
    let (odd, root) = (server.told("/odd/url"), server.url());
    let leader = Client::new(odd, "a").await;
    let mighty = Client::new(root, "mighty").await;
    let token = leader.win(&election, LONG).await;
    let own = mighty.win(&name("other"), LONG).await;
    sql(&server, "SET GLOBAL read_only = 1").await;
    let renewal = leader.attempt(&election, LONG, Some(token)).await;
    let error = renewal.expect_err("no writes");
    assert_eq!(
        (error.kind, error.code),
        (Transient, "read-only"),
        "{error}"
    );
    assert!(error.message.contains("primary"), "{error}");
    // Followers are told so too, long before they shall lead.
    fails(&client(odd, "b"), Transient, "read-only").await;
    refused_at_start(odd, Transient, "read-only").await;
    // Who may write all the same does not lead there either.
    let renewal = mighty.attempt(&name("other"), LONG, Some(own)).await;
    assert_eq!(renewal.expect_err("no writes").code, "read-only");
    fails(&mighty, Transient, "read-only").await;
    refused_at_start(root, Transient, "read-only").await;
    sql(&server, "SET GLOBAL read_only = 0").await;
    assert_eq!(held(leader.renew(&election, LONG, token).await), token);
    assert_eq!(held(mighty.renew(&name("other"), LONG, own).await), own);
}

/// Two servers that know nothing of each other, only one of which takes writes at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_servers_the_one_that_takes_writes_is_found() {
    let test = "of_several_servers_the_one_that_takes_writes_is_found";
    let Some(one) = Server::own(test, kind(), &["--flag=--read-only"]) else {
        return;
    };
    let other = Server::own(test, kind(), &[]).expect("as the first");
    let both = format!(
        "mysql://root:tests@127.0.0.1:{},127.0.0.1:{}/tests",
        one.port, other.port
    );
    let election = name("leader");
    let client = Client::new(&both, "a").await;
    let token = client.win(&election, LONG).await;
    let count = "SELECT COUNT(*) FROM tests.whenleader_leases";
    assert!(sql(&other, count).await[0].get::<i64, _>(0) == Some(1));
    // It changes sides, and the leader with it: there it leads no longer.
    sql(&one, "SET GLOBAL read_only = 0").await;
    sql(&other, "SET GLOBAL read_only = 1").await;
    let renewal = client.attempt(&election, LONG, Some(token)).await;
    assert_eq!(renewal.expect_err("no writes there").code, "read-only");
    let (leader, _) = denied(client.renew(&election, LONG, token).await);
    assert_eq!(leader, None);
    assert!(client.win(&election, LONG).await > token);
    // One of them dies.
    one.kill().await;
    let _ = client.attempt(&election, LONG, None).await;
    let error = fails(&client, Transient, "read-only").await;
    for port in [one.port, other.port] {
        assert!(error.message.contains(&port.to_string()), "{error}");
    }
    sql(&other, "SET GLOBAL read_only = 0").await;
    client.win(&election, LONG).await;
    // One of them hangs. The other is found within the time of a connection.
    one.restart().await;
    one.freeze().await;
    Client::new(&both, "b").await;
    one.thaw().await;
}

/// The same in two languages.
struct Replication {
    follow: &'static str,
    replica: &'static str,
    position: &'static str,
    wait: &'static str,
}

/// A primary and its replica change roles while somebody leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_goes_on_with_its_term_on_the_replica_that_was_promoted() {
    let test = "a_leader_goes_on_with_its_term_on_the_replica_that_was_promoted";
    let flags = |id: &str| {
        let mut flags = vec!["--log-bin=log".to_owned(), format!("--server-id={id}")];
        if is_mysql() {
            flags.push("--gtid-mode=ON".to_owned());
            flags.push("--enforce-gtid-consistency=ON".to_owned());
        }
        flags
            .iter()
            .map(|flag| format!("--flag={flag}"))
            .collect::<Vec<_>>()
    };
    let own = |id: &str| {
        let flags = flags(id);
        let flags: Vec<_> = flags.iter().map(|flag| &**flag).collect();
        Server::own(test, kind(), &flags)
    };
    let Some(primary) = own("1") else {
        return;
    };
    let replica = own("2").expect("as the first");
    sql(
        &primary,
        "CREATE USER copier@'127.0.0.1' IDENTIFIED BY 'tests'",
    )
    .await;
    sql(
        &primary,
        "GRANT REPLICATION SLAVE ON *.* TO copier@'127.0.0.1'",
    )
    .await;
    let words = if is_mysql() {
        Replication {
            follow: "CHANGE REPLICATION SOURCE TO SOURCE_USER='copier', SOURCE_PASSWORD='tests', \
                     GET_SOURCE_PUBLIC_KEY=1, SOURCE_AUTO_POSITION=1, SOURCE_HOST='127.0.0.1', SOURCE_PORT=",
            replica: "REPLICA",
            position: "@@global.gtid_executed",
            wait: "WAIT_FOR_EXECUTED_GTID_SET",
        }
    } else {
        Replication {
            follow: "CHANGE MASTER TO MASTER_USER='copier', MASTER_PASSWORD='tests', \
                     MASTER_USE_GTID=slave_pos, MASTER_HOST='127.0.0.1', MASTER_PORT=",
            replica: "SLAVE",
            position: "@@global.gtid_binlog_pos",
            wait: "MASTER_GTID_WAIT",
        }
    };
    let Replication {
        follow,
        replica: role,
        position,
        wait,
    } = words;
    sql(&replica, &format!("{follow}{}", primary.port)).await;
    sql(&replica, &format!("START {role}")).await;
    sql(&replica, "SET GLOBAL read_only = 1").await;
    let both = format!(
        "mysql://root:tests@127.0.0.1:{},127.0.0.1:{}/tests",
        primary.port, replica.port
    );
    let (a, b) = (Client::new(&both, "a").await, Client::new(&both, "b").await);
    let election = name("leader");
    let token = a.win(&election, LONG).await;
    for _ in 0..5 {
        a.renew(&election, LONG, token).await;
    }
    sql(&primary, "SET GLOBAL read_only = 1").await;
    let position = sql(&primary, &format!("SELECT {position}")).await;
    let position: String = position[0].get(0).unwrap();
    let waited = sql(&replica, &format!("SELECT {wait}('{position}', 10)")).await;
    assert_eq!(
        waited[0].get::<i64, _>(0),
        Some(0),
        "the replica has it all"
    );
    sql(&replica, &format!("STOP {role}")).await;
    sql(&replica, "SET GLOBAL read_only = 0").await;
    let renewal = a.attempt(&election, LONG, Some(token)).await;
    assert_eq!(renewal.expect_err("no writes there").code, "read-only");
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
    let _ = b.attempt(&election, LONG, None).await;
    let (leader, _) = denied(b.campaign(&election, LONG).await);
    assert_eq!(leader, Some(leading(&a, token)));
    assert!(a.release(&election, token).await);
    assert!(b.win(&election, LONG).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_server_prefers_our_sessions_are_the_same() {
    let test = "whatever_a_server_prefers_our_sessions_are_the_same";
    let flags = [
        "--autocommit=0",
        "--completion-type=CHAIN",
        "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,ONLY_FULL_GROUP_BY",
        "--default-time-zone=-11:30",
        "--character-set-server=latin1",
        "--collation-server=latin1_swedish_ci",
        "--transaction-isolation=SERIALIZABLE",
        "--transaction-read-only=1",
        "--log-bin=log",
        "--binlog-format=STATEMENT",
        "--sysdate-is-now",
        "--default-storage-engine=MyISAM",
        "--init-connect=SET autocommit=0, time_zone='+13:00', sql_mode='HIGH_NOT_PRECEDENCE'; START TRANSACTION READ ONLY",
        "--innodb-rollback-on-timeout=1",
        "--innodb-lock-wait-timeout=100",
    ];
    let own: &[_] = if is_mysql() {
        &["--max-execution-time=1"]
    } else {
        &[
            "--max-statement-time=0.001",
            "--skip-character-set-client-handshake",
            "--lower-case-table-names=1",
        ]
    };
    let flags: Vec<_> = flags
        .iter()
        .chain(own)
        .map(|flag| format!("--flag={flag}"))
        .collect();
    let flags: Vec<_> = flags.iter().map(|flag| &**flag).collect();
    let Some(server) = Server::own(test, kind(), &flags) else {
        return;
    };
    // Not the administrator, for whom init_connect is not run.
    let url = server.told("/odd/url");
    let (a, b) = (Client::new(url, "a").await, Client::new(url, "b").await);
    let mut tokens = Vec::new();
    for text in [
        "leader", "Leader", "é", "e\u{301}", "🦀", "ß", "ss", "a\\", "it's", "\u{ffff}",
    ] {
        let election = name(text);
        let token = a.win(&election, LONG).await;
        assert_eq!(held(a.renew(&election, LONG, token).await), token, "{text}");
        let (leader, remaining) = denied(b.campaign(&election, LONG).await);
        assert_eq!(leader, Some(leading(&a, token)), "{text}");
        assert!(
            remaining.is_some_and(|left| left > LONG / 2 && left <= LONG),
            "{text}"
        );
        tokens.push((election, token));
    }
    for (election, token) in tokens {
        assert!(a.release(&election, token).await);
        assert!(b.win(&election, LONG).await > token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_names_are_held_and_told_as_they_are() {
    let database = database!(the_longest_names_are_held_and_told_as_they_are);
    let longest = "é".repeat(126) + "x";
    let client = Client::new(&database.url(), &longest).await;
    let election = name(&longest);
    let token = client.win(&election, LONG).await;
    let other = Client::new(&database.url(), "b").await;
    assert_eq!(other.leader(&election).await, Some(leading(&client, token)));
    // And people can read them.
    let rows = database
        .sql(&format!("SELECT election, instance FROM {TABLE}"))
        .await;
    let row: (String, String) = mysql_async::from_row(rows.into_iter().next().unwrap());
    assert_eq!(row, (longest.clone(), longest));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_an_administrator_kills_may_have_been_done() {
    let database = database!(a_statement_that_an_administrator_kills_may_have_been_done);
    let url = database.user("slow", "ALL ON *.*").await;
    let client = Client::new(&url, "a").await;
    let election = name("leader");
    let token = client.win(&election, LONG).await;
    for kill in ["KILL QUERY", "KILL CONNECTION"] {
        let mut blocker = database.connect().await;
        blocker.query_drop("BEGIN").await.unwrap();
        blocker
            .query_drop(format!("SELECT * FROM {TABLE} FOR UPDATE"))
            .await
            .unwrap();
        let renewal = client.attempt(&election, LONG, Some(token));
        let killing = async {
            let waits = format!(
                "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'slow_{}' AND INFO LIKE 'UPDATE%'",
                database.name
            );
            let id = eventually("it waits", async || {
                let row = database.sql(&waits).await.pop()?;
                row.get::<u64, _>(0)
            })
            .await;
            database.sql(&format!("{kill} {id}")).await;
            blocker.query_drop("ROLLBACK").await.unwrap();
        };
        let (renewal, ()) = tokio::join!(renewal, killing);
        match renewal {
            // The connection was dead, and was replaced.
            Ok(outcome) => assert_eq!((kill, held(outcome)), ("KILL CONNECTION", token)),
            Err(error) => assert_eq!((error.kind, error.code), (Ambiguous, "killed"), "{error}"),
        }
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }
}
