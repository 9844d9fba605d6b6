//! What only PostgreSQL can get wrong: its locks, its rights, its settings, its tables and its URLs.

use std::time::{Duration, Instant};

use serde_json::json;
use whenleader::backend::{self, BackendError, StoreOptions};
use whenleader::clock::SystemClock;
use whenleader::lease::FailureKind::{self, Ambiguous, Fatal, Transient};
use whenleader::lease::{Hint, Outcome};

use std::sync::Arc;

use crate::postgres::{Fresh, Prompt, literal, number, pooled, with_schema};
use crate::suite::{Client, Fixture, LONG, SHORT, denied, held, leading, name, open, owner};
use crate::support::{Kind, Server, eventually};

type Store = Fresh<false>;

/// Far less than anything that waits for a lock, far more than a statement takes.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A client that has not looked at the store yet.
fn unprepared(url: &str, id: &str) -> Client {
    Client {
        backend: open(url),
        owner: owner(id),
    }
}

pub fn impatient(url: &str) -> Client {
    let mut options = StoreOptions::new(".");
    options.request_timeout = Duration::from_secs(3);
    options.connect_timeout = Duration::from_secs(2);
    Client {
        backend: backend::open(url, &options, Arc::new(SystemClock)).unwrap(),
        owner: owner("impatient"),
    }
}

pub async fn fails(client: &Client, kind: FailureKind, code: &str) -> BackendError {
    let error = client
        .attempt(&name("leader"), LONG, None)
        .await
        .expect_err("a failure");
    assert_eq!((error.kind, error.code), (kind, code), "{error}");
    error
}

async fn does_not_start(client: &Client, kind: FailureKind, code: &str) -> BackendError {
    let error = client.backend.prepare().await.expect_err("a failure");
    assert_eq!((error.kind, error.code), (kind, code), "{error}");
    error
}

/// Something that waits is waited for so long, and is given up then.
async fn given_up<T>(waiting: impl Future<Output = T>) {
    let patience = Duration::from_millis(400);
    assert!(
        tokio::time::timeout(patience, waiting).await.is_err(),
        "nothing was in its way"
    );
}

/// Who is in the row, whether it leads or not.
async fn in_the_row(store: &Store) -> Option<String> {
    let question = format!(
        "SELECT instance FROM {} WHERE election = 'leader'",
        store.table()
    );
    store.prompt.ask(&question).await
}

fn user_of(store: &Store, role: &str) -> String {
    let url = store.url();
    url.replacen("postgres:tests@", &format!("{role}:tests@"), 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_holds_the_row_keeps_a_successor_waiting_and_not_its_leader() {
    let Some(store) = Store::start("a_transaction_that_holds_the_row").await else {
        return;
    };
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, SHORT * 2).await;
    let hold = format!(
        "BEGIN; SELECT FROM {} WHERE election = 'leader' AND token = {token} \
         AND expires_at > clock_timestamp() FOR KEY SHARE",
        store.table()
    );
    store.prompt.run(&hold).await;
    let start = Instant::now();
    assert_eq!(held(a.renew(&election, SHORT, token).await), token);
    assert!(start.elapsed() < AT_ONCE, "a renewal waited");
    // The lease ends, and the transaction does not.
    let end = Instant::now() + SHORT * 3;
    while Instant::now() < end {
        let start = Instant::now();
        let (leader, remaining) = denied(b.campaign(&election, LONG).await);
        assert!(start.elapsed() < AT_ONCE, "a campaign waited in the server");
        assert_eq!(leader, Some(leading(&a, token)));
        assert!(
            remaining.is_some_and(|rest| rest < SHORT * 2),
            "{remaining:?}"
        );
        tokio::time::sleep(SHORT / 10).await;
    }
    store.prompt.run("COMMIT").await;
    assert!(b.take_over(&election, LONG).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_passes_a_transaction_that_holds_the_row_and_the_successor_waits() {
    let Some(store) = Store::start("a_release_passes_a_transaction").await else {
        return;
    };
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, LONG).await;
    let hold = format!("BEGIN; SELECT FROM {} FOR KEY SHARE", store.table());
    store.prompt.run(&hold).await;
    assert!(a.release(&election, token).await);
    let (leader, remaining) = denied(b.campaign(&election, LONG).await);
    assert_eq!(leader, None);
    assert!(
        remaining.is_some_and(|rest| rest < SHORT),
        "it asks again soon: {remaining:?}"
    );
    store.prompt.run("COMMIT").await;
    assert!(b.take_over(&election, LONG).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_campaign_neither_locks_the_row_nor_waits_for_it() {
    let Some(store) = Store::start("a_denied_campaign_neither_locks").await else {
        return;
    };
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    a.win(&election, LONG).await;
    let row = format!(
        "SELECT concat(ctid, ' ', xmin, ' ', xmax) FROM {}",
        store.table()
    );
    let before = store.prompt.ask(&row).await;
    for _ in 0..5 {
        denied(b.campaign(&election, LONG).await);
    }
    assert_eq!(store.prompt.ask(&row).await, before, "the row was touched");
    let lock = format!("BEGIN; SELECT FROM {} FOR UPDATE", store.table());
    store.prompt.run(&lock).await;
    let start = Instant::now();
    denied(b.campaign(&election, LONG).await);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    store.prompt.run("ROLLBACK").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_that_was_given_up_never_wins_later() {
    let Some(store) = Store::start("a_campaign_that_was_given_up").await else {
        return;
    };
    let (election, table) = (name("leader"), store.table());
    let (a, b) = (store.client("a").await, store.client("b").await);
    let insert = "BEGIN; INSERT INTO {} VALUES ('leader', 'somebody', 1, 1, 1, 'infinity')";
    for (obstacle, first) in [
        ("BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", None),
        ("BEGIN; LOCK TABLE {} IN SHARE MODE", None),
        (insert, None),
        ("BEGIN; SELECT FROM {} FOR KEY SHARE", Some(SHORT / 10)),
        (
            "BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE",
            Some(SHORT / 10),
        ),
    ] {
        store.forget(&election).await;
        if let Some(lease) = first {
            a.win(&election, lease).await;
            tokio::time::sleep(lease * 2).await;
        }
        let before = in_the_row(&store).await;
        let spoiler = Prompt::at(store.server.url()).await;
        spoiler.run(&obstacle.replace("{}", &table)).await;
        let campaign = async {
            while !matches!(
                b.attempt(&election, LONG, None).await,
                Ok(Outcome::Held { .. })
            ) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        given_up(campaign).await;
        // Whatever is still in the server gets its chance.
        tokio::time::sleep(Duration::from_millis(500)).await;
        spoiler.run("ROLLBACK").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(in_the_row(&store).await, before, "{obstacle}");
        // And it is not in the way of the next one.
        b.take_over(&election, LONG).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_locks_for_a_moment_is_waited_for() {
    let Some(store) = Store::start("what_somebody_locks_for_a_moment").await else {
        return;
    };
    let election = name("leader");
    let client = store.client("a").await;
    for obstacle in [
        "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE",
        "SELECT FROM {} FOR UPDATE",
        "SELECT FROM {} FOR SHARE",
    ] {
        let token = client.win(&election, LONG).await;
        let obstacle = obstacle.replace("{}", &store.table());
        for release in [false, true] {
            store.prompt.run(&format!("BEGIN; {obstacle}")).await;
            let end = async {
                tokio::time::sleep(Duration::from_millis(400)).await;
                store.prompt.run("COMMIT").await;
            };
            if release {
                let (released, ()) = tokio::join!(client.release(&election, token), end);
                assert!(released, "{obstacle}");
            } else {
                let (renewed, ()) = tokio::join!(client.renew(&election, LONG, token), end);
                assert_eq!(held(renewed), token, "{obstacle}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_locked_for_too_long_is_a_failure_that_passes() {
    let Some(store) = Store::start("what_is_locked_for_too_long").await else {
        return;
    };
    let election = name("leader");
    let client = impatient(&store.url());
    let token = client.win(&election, LONG).await;
    for obstacle in ["LOCK TABLE {}", "SELECT FROM {} FOR UPDATE"] {
        let obstacle = obstacle.replace("{}", &store.table());
        store.prompt.run(&format!("BEGIN; {obstacle}")).await;
        let error = client.attempt(&election, LONG, Some(token)).await;
        let error = error.expect_err("it is locked");
        assert_eq!((error.kind, error.code), (Transient, "busy"), "{error}");
        assert!(error.message.contains("lock"), "{error}");
        store.prompt.run("ROLLBACK").await;
        assert_eq!(held(client.renew(&election, LONG, token).await), token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_row_that_stays_locked_is_a_failure_from_some_moment_on() {
    let Some(store) = Store::start("a_free_row_that_stays_locked").await else {
        return;
    };
    let election = name("leader");
    let (a, b) = (store.client("a").await, impatient(&store.url()));
    for round in 0..2 {
        let token = a.win(&election, LONG).await;
        assert!(a.release(&election, token).await);
        let hold = format!("BEGIN; SELECT FROM {} FOR KEY SHARE", store.table());
        store.prompt.run(&hold).await;
        let start = Instant::now();
        let error = loop {
            match b.attempt(&election, LONG, None).await {
                Ok(outcome) => assert_eq!(denied(outcome).0, None, "{round}"),
                Err(error) => break error,
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{round}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        // Not for what somebody holds for a moment, also if somebody did before.
        assert!(start.elapsed() > Duration::from_secs(2), "{round}");
        assert_eq!((error.kind, error.code), (Transient, "busy"), "{error}");
        assert!(error.message.contains("lock"), "{error}");
        fails(&b, Transient, "busy").await;
        store.prompt.run("COMMIT").await;
        let token = b.win(&election, LONG).await;
        assert!(b.release(&election, token).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_whose_token_is_the_last_one_is_named_with_its_cure() {
    let Some(store) = Store::start("a_row_whose_token_is_the_last_one").await else {
        return;
    };
    let election = name("leader");
    let a = store.client("a").await;
    let token = a.win(&election, LONG).await;
    let table = store.table();
    let last = format!("UPDATE {table} SET token = 9007199254740991");
    store.prompt.run(&last).await;
    // Whoever holds it is waited for.
    let b = store.client("b").await;
    assert!(denied(b.campaign(&election, LONG).await).0.is_some());
    let expired = format!("UPDATE {table} SET expires_at = now() - interval '1 s'");
    store.prompt.run(&expired).await;
    let error = fails(&b, Fatal, "bad-record").await;
    let (_, cure) = error.message.split_once("delete it: ").expect("a cure");
    let (cure, _) = cure.split_once(". \"").expect("one statement");
    store.prompt.run(cure).await;
    assert!(b.win(&election, LONG).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_first_campaigns_at_the_same_moment_one_wins() {
    let Some(store) = Store::start("of_many_first_campaigns").await else {
        return;
    };
    let mut clients = Vec::new();
    for number in 0..6 {
        clients.push(store.client(&format!("c{number}")).await);
    }
    for round in 0..30 {
        let election = name(&format!("round-{round}"));
        let campaigns = clients
            .iter()
            .map(|client| client.campaign(&election, LONG));
        let outcomes = futures_util::future::join_all(campaigns).await;
        let won = outcomes
            .iter()
            .filter(|outcome| matches!(outcome, Outcome::Held { .. }));
        assert_eq!(won.count(), 1, "{outcomes:?}");
        for outcome in outcomes {
            if let Outcome::Other { leader, .. } = outcome {
                assert!(leader.is_some(), "the loser is told who won");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_a_later_one_of_its_owner_overtook_changes_nothing() {
    let Some(store) = Store::start("an_attempt_that_a_later_one_overtook").await else {
        return;
    };
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    let token = a.win(&election, LONG).await;
    // As if a later attempt had come first.
    let later = format!("UPDATE {} SET attempt = 1000", store.table());
    store.prompt.run(&later).await;
    let (leader, _) = denied(a.campaign(&election, LONG).await);
    assert_eq!(
        leader,
        Some(leading(&a, token)),
        "the term that is known stays"
    );
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
    // Not even when it was released, or has expired.
    assert!(a.release(&election, token).await);
    denied(a.campaign(&election, LONG).await);
    assert!(b.win(&election, LONG).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_refusal_says_to_grant_is_enough() {
    let Some(store) = Store::start("what_a_refusal_says_to_grant").await else {
        return;
    };
    let role = format!("\"poor {}\"", number());
    store
        .prompt
        .run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'tests'"))
        .await;
    let url = user_of(&store, &role.trim_matches('"').replace(' ', "%20"));
    // One right after the other is missing; whoever may says what the error tells, and all is well.
    let error = does_not_start(&unprepared(&url, "a"), Fatal, "refused").await;
    let (_, cure) = error.message.split_once("say once: ").expect("a cure");
    for word in [
        "CREATE TABLE",
        "GRANT USAGE",
        "GRANT SELECT, INSERT, UPDATE",
    ] {
        assert!(cure.contains(word), "{cure}");
    }
    store.prompt.run(cure).await;
    let client = Client::new(&url, "a").await;
    let token = client.win(&name("leader"), LONG).await;
    assert!(client.release(&name("leader"), token).await);

    let table = store.table();
    for right in [
        format!("SELECT ON {table}"),
        format!("INSERT ON {table}"),
        format!("UPDATE ON {table}"),
        format!("USAGE ON SCHEMA {}", store.schema),
    ] {
        store
            .prompt
            .run(&format!("REVOKE {right} FROM {role}"))
            .await;
        let error = does_not_start(&unprepared(&url, "b"), Fatal, "refused").await;
        assert!(error.message.contains(cure), "{right}: {error}");
        // A running one learns it, too.
        let kind = client.attempt(&name("another"), LONG, None).await;
        assert_eq!(kind.expect_err("refused").code, "refused", "{right}");
        store.prompt.run(&format!("GRANT {right} TO {role}")).await;
        client.backend.prepare().await.expect("all rights again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_made_where_the_search_path_leads_and_kept_to() {
    let Some(store) = Store::start("a_table_is_made_where").await else {
        return;
    };
    let role = format!("walker{}", number());
    let (first, second) = (&store.schema, format!("{}_b", store.schema));
    store
        .prompt
        .run(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'tests'; CREATE SCHEMA {second}; \
             GRANT ALL ON SCHEMA {first}, {second} TO {role}; \
             ALTER ROLE {role} SET search_path = {first}, {second}"
        ))
        .await;
    let url = user_of(&store, &role);
    let (url, _) = url.split_once('?').unwrap();
    // The name of a table may look like what statements are filled in by.
    let client = Client::new(&format!("{url}?table=mi$nonce$"), "a").await;
    let token = client.win(&name("leader"), LONG).await;
    // Of a new session's path the old one knows nothing, also when its connection is made anew.
    store
        .prompt
        .run(&format!("ALTER ROLE {role} SET search_path = {second}"))
        .await;
    kill_all(&store, &role).await;
    assert_eq!(
        held(client.renew(&name("leader"), LONG, token).await),
        token
    );
    let tables = format!(
        "SELECT string_agg(schemaname, ' ') FROM pg_tables WHERE tablename = 'mi$nonce$' AND tableowner = '{role}'"
    );
    assert_eq!(store.prompt.ask(&tables).await.as_ref(), Some(first));
    // The parameter says it as well.
    let url = format!("{url}?table=mi$nonce$&options=-c%20search_path%3D{first}");
    let other = Client::new(&url, "b").await;
    denied(other.campaign(&name("leader"), LONG).await);
}

async fn kill_all(store: &Store, role: &str) {
    let kill = format!(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = {}",
        literal(role)
    );
    store.prompt.run(&kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_cannot_hold_leases_is_refused_at_start() {
    let Some(store) = Store::start("a_table_that_cannot_hold_leases").await else {
        return;
    };
    let table = store.table();
    let columns = "election text COLLATE \"C\" PRIMARY KEY, instance text NOT NULL, nonce bigint NOT NULL, \
         token bigint NOT NULL, attempt bigint NOT NULL, expires_at timestamptz NOT NULL";
    for (definition, code) in [
        (format!("CREATE TABLE {table} (id int)"), "bad-record"),
        (
            format!(
                "CREATE TABLE {table} ({})",
                columns.replace("PRIMARY KEY", "")
            ),
            "bad-record",
        ),
        (
            format!(
                "CREATE TABLE {table} ({})",
                columns.replace("nonce bigint", "nonce text")
            ),
            "bad-record",
        ),
        (
            format!("CREATE TABLE {table} ({columns}, more text NOT NULL)"),
            "bad-record",
        ),
        (
            format!("CREATE UNLOGGED TABLE {table} ({columns})"),
            "unsuitable",
        ),
        (
            format!("CREATE VIEW {table} AS SELECT 1 AS x"),
            "unsuitable",
        ),
        (format!("CREATE SEQUENCE {table}"), "unsuitable"),
    ] {
        store.prompt.run(&definition).await;
        let client = unprepared(&store.url(), "a");
        let error = does_not_start(&client, Fatal, code).await;
        assert!(error.message.contains("?table="), "{error}");
        let drop = definition.split(' ').collect::<Vec<_>>();
        let kind = drop[1].replace("UNLOGGED", "TABLE");
        store.prompt.run(&format!("DROP {kind} {table}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_leaves_nothing_behind_and_another_one_finds_the_table() {
    let Some(store) = Store::start("a_start_leaves_nothing_behind").await else {
        return;
    };
    // Several at the same moment make it once.
    let starts = (0..8).map(|number| store.client(["a", "b"][number % 2]));
    futures_util::future::join_all(starts).await;
    let rows = format!("SELECT count(*) FROM {}", store.table());
    assert_eq!(store.prompt.ask(&rows).await.as_deref(), Some("0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_ends_the_term_is_made_again_and_tokens_go_on_growing() {
    let Some(store) = Store::start("a_dropped_table_ends_the_term").await else {
        return;
    };
    let election = name("leader");
    let client = store.client("a").await;
    let token = client.win(&election, LONG).await;
    store
        .prompt
        .run(&format!("DROP TABLE {}", store.table()))
        .await;
    let (leader, remaining) = denied(client.renew(&election, LONG, token).await);
    assert_eq!((leader, remaining), (None, None));
    assert!(client.win(&election, LONG).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_without_an_end_is_given_one() {
    let Some(store) = Store::start("a_lease_without_an_end").await else {
        return;
    };
    let election = name("leader");
    let (a, b) = (store.client("a").await, store.client("b").await);
    // As it looks after a server's clock was set back.
    for end in [
        "'infinity'",
        "clock_timestamp() + interval '2 days'",
        "'294276-01-01'",
    ] {
        let token = a.win(&election, LONG).await;
        store
            .prompt
            .run(&format!("UPDATE {} SET expires_at = {end}", store.table()))
            .await;
        // Its leader is not troubled by it.
        let (leader, remaining) = denied(b.campaign(&election, SHORT).await);
        assert_eq!(
            (leader, remaining),
            (Some(leading(&a, token)), Some(SHORT)),
            "{end}"
        );
        assert_eq!(held(a.renew(&election, SHORT, token).await), token);
        let new = b.take_over(&election, LONG).await;
        assert!(new > token, "{end}");
        assert!(b.release(&election, new).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_settings_change_nothing() {
    let Some(store) = Store::start("the_servers_settings").await else {
        return;
    };
    let role = format!("odd{}", number());
    let table = store.table();
    let schema = &store.schema;
    // What is in force when the row is written is written down by the server itself.
    store
        .prompt
        .run(&format!(
            "CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'tests'; \
             ALTER ROLE {role} SET synchronous_commit = off; \
             ALTER ROLE {role} SET default_transaction_isolation = serializable; \
             ALTER ROLE {role} SET standard_conforming_strings = off; \
             ALTER ROLE {role} SET IntervalStyle = iso_8601; \
             ALTER ROLE {role} SET DateStyle = 'SQL, DMY'; \
             ALTER ROLE {role} SET TimeZone = 'Pacific/Kiritimati'; \
             ALTER ROLE {role} SET extra_float_digits = -15; \
             ALTER ROLE {role} SET lock_timeout = 1"
        ))
        .await;
    let client = Client::new(&user_of(&store, &role), "it's a\\b").await;
    store
        .prompt
        .run(&format!(
            "CREATE TABLE {schema}.settings (durable text, isolation text); \
             CREATE FUNCTION {schema}.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO {schema}.settings VALUES \
               (current_setting('synchronous_commit'), current_setting('transaction_isolation')); \
               RETURN NEW; END $$; \
             CREATE TRIGGER look BEFORE INSERT OR UPDATE ON {table} \
               FOR EACH ROW EXECUTE FUNCTION {schema}.look()"
        ))
        .await;
    let election = name("quo'ted \\n");
    let first = client.win(&election, LONG).await;
    assert_eq!(held(client.renew(&election, LONG, first).await), first);
    assert_eq!(
        client.leader(&election).await,
        Some(leading(&client, first))
    );
    assert!(client.release(&election, first).await);
    assert!(client.win(&election, LONG).await > first);
    let seen = store
        .prompt
        .run(&format!(
            "SELECT DISTINCT durable, isolation FROM {schema}.settings"
        ))
        .await;
    let expected = ["on", "read committed"].map(|text| Some(text.to_owned()));
    assert_eq!(seen, [expected]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_of_a_server_has_its_meaning() {
    let Some(store) = Store::start("every_refusal_of_a_server").await else {
        return;
    };
    let (schema, table) = (&store.schema, store.table());
    let client = impatient(&store.url());
    client.backend.prepare().await.unwrap();
    // The server itself says it, in the middle of the statement.
    store
        .prompt
        .run(&format!(
            "CREATE TABLE {schema}.code (code text); INSERT INTO {schema}.code VALUES (''); \
             CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               RAISE EXCEPTION USING ERRCODE = (SELECT code FROM {schema}.code), MESSAGE = 'as told'; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} \
               FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
        ))
        .await;
    for (state, kind, code) in [
        ("25006", Transient, "read-only"),
        ("40001", Transient, "busy"),
        ("40P01", Transient, "busy"),
        ("55P03", Transient, "busy"),
        ("57014", Transient, "busy"),
        ("53100", Transient, "full"),
        ("53200", Transient, "full"),
        ("57P03", Transient, "loading"),
        ("42501", Fatal, "refused"),
        ("23514", Fatal, "bad-record"),
        ("22P05", Fatal, "unsupported"),
        ("0A000", Fatal, "unsupported"),
        ("XX000", Transient, "store"),
        ("P0001", Transient, "store"),
    ] {
        store
            .prompt
            .run(&format!("UPDATE {schema}.code SET code = '{state}'"))
            .await;
        let error = fails(&client, kind, code).await;
        assert!(error.message.contains("as told"), "{error}");
        assert!(error.message.contains("127.0.0.1"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_let_in_is_told_why_and_no_password_is_shown() {
    let Some(store) = Store::start("who_is_not_let_in").await else {
        return;
    };
    let port = store.server.port;
    for (url, kind, code) in [
        (
            format!("postgres://postgres:s3cret@127.0.0.1:{port}/postgres"),
            Fatal,
            "refused",
        ),
        (
            format!("postgres://nobody:s3cret@127.0.0.1:{port}/postgres"),
            Fatal,
            "refused",
        ),
        (
            format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            Fatal,
            "refused",
        ),
        (
            format!("postgres://postgres:tests@127.0.0.1:{port}/nowhere"),
            Fatal,
            "refused",
        ),
        (
            "postgres://postgres:s3cret@127.0.0.1:1/db".to_owned(),
            Transient,
            "unreachable",
        ),
        (
            "postgres://postgres:s3cret@there.invalid/db".to_owned(),
            Transient,
            "unreachable",
        ),
        (
            "postgres:///db?host=/nowhere&user=u&password=s3cret".to_owned(),
            Transient,
            "unreachable",
        ),
        (
            format!("postgres://postgres:tests@127.0.0.1:{port}/postgres?table=no_schema.leases"),
            Fatal,
            "refused",
        ),
    ] {
        let client = unprepared(&url, "a");
        let error = fails(&client, kind, code).await;
        let started = does_not_start(&client, kind, code).await;
        let shown = format!(
            "{error} {started:?} {} {:?}",
            client.backend.describe(),
            client.backend
        );
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(!shown.contains("tests@"), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_url_leads_to_the_server() {
    let Some(store) = Store::start("every_form_of_url").await else {
        return;
    };
    let server = store.server;
    let (port, socket) = (server.port, server.told("/socket"));
    let encoded = socket.replace('/', "%2F");
    let ca = server.told("/ca");
    let table = format!("table={}.whenleader_leases", store.schema);
    let tls =
        "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = ";
    for (number, (place, encrypted)) in [
        (format!("postgres://postgres:tests@127.0.0.1:{port}/postgres?"), "t"),
        (format!("postgresql://postgres:tests@localhost:{port}/postgres?"), "t"),
        (format!("POSTGRES://postgres:tests@127.0.0.1:{port}/postgres?sslmode=prefer&"), "t"),
        (format!("postgres://postgres:tests@127.0.0.1:{port}/postgres?sslmode=disable&"), "f"),
        (format!("postgres://postgres:tests@127.0.0.1:{port}/postgres?sslmode=require&"), "t"),
        (format!("postgres://postgres:tests@127.0.0.1:{port}/postgres?sslmode=no-verify&"), "t"),
        (
            format!("postgres://postgres:tests@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert={ca}&"),
            "t",
        ),
        (
            format!("postgres://postgres:tests@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={ca}&"),
            "t",
        ),
        (
            format!("postgres://postgres:tests@[::ffff:127.0.0.1]:{port}/postgres?sslmode=verify-ca&ca={ca}&"),
            "t",
        ),
        (
            format!("postgres://postgres:tests@127.0.0.1:{port}/postgres?sslmode=require&channel_binding=require&"),
            "t",
        ),
        (format!("postgres:///postgres?host=127.0.0.1&port={port}&user=postgres&password=tests&"), "t"),
        (format!("postgres://postgres@{encoded}:{port}/postgres?"), "f"),
        (format!("postgres:///postgres?host={socket}&port={port}&user=postgres&sslmode=require&"), "f"),
        (format!("socket:{socket}?db=postgres&port={port}&user=postgres&"), "f"),
        (format!("socket://postgres:unused@{socket}?db=postgres&port={port}&encoding=utf8&"), "f"),
        (format!("postgres://postgres:tests@127.0.0.1:1,127.0.0.1:{port}/postgres?target_session_attrs=read-write&"), "t"),
        (format!("postgres:///postgres?host=/nowhere,127.0.0.1&port=1,{port}&user=postgres&password=tests&"), "t"),
    ]
    .into_iter()
    .enumerate()
    {
        let application = format!("form {number}");
        let url = format!("{place}{table}&application_name=form%20{number}&connect_timeout=5");
        let client = Client::new(&url, "a").await;
        let token = client.win(&name("leader"), LONG).await;
        let how = format!("{tls}{}", literal(&application));
        assert_eq!(store.prompt.ask(&how).await.as_deref(), Some(encrypted), "{place}");
        assert!(client.release(&name("leader"), token).await);
    }
    // A name, a password and a database of all that is odd.
    let odd = server.told("/odd/url");
    let client = Client::new(&format!("{odd}?table=odd%20{}", number()), "a").await;
    client.win(&name("leader"), LONG).await;
    assert!(!client.backend.describe().contains("odd user"));
    let default = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'whenleader'";
    assert_ne!(store.prompt.ask(default).await.as_deref(), Some("0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_believed_only_as_far_as_sslmode_says() {
    let Some(store) = Store::start("a_server_is_believed_only").await else {
        return;
    };
    let server = store.server;
    let (port, ca) = (server.port, server.told("/ca"));
    let table = format!("table={}.whenleader_leases", store.schema);
    let url = |user: &str, host: &str, parameters: &str| {
        format!("postgres://{user}:tests@{host}:{port}/postgres?{table}&{parameters}")
    };
    // One that no authority of ours has certified: the client's own certificate.
    let stranger = server.told("/stranger/cert");
    for (host, parameters) in [
        ("127.0.0.1", "sslmode=verify-full".to_owned()),
        (
            "127.0.0.1",
            format!("sslmode=verify-full&sslrootcert={stranger}"),
        ),
        (
            "127.0.0.1",
            format!("sslmode=verify-ca&sslrootcert={stranger}"),
        ),
        // Who has a root certificate wants it to count.
        (
            "127.0.0.1",
            format!("sslmode=require&sslrootcert={stranger}"),
        ),
        (
            "[::ffff:127.0.0.1]",
            format!("sslmode=verify-full&sslrootcert={ca}"),
        ),
        (
            "127.0.0.1",
            "sslmode=verify-full&sslrootcert=/nowhere.pem".to_owned(),
        ),
    ] {
        let url = url("postgres", host, &parameters);
        let error = does_not_start(&unprepared(&url, "a"), Fatal, "certificate").await;
        assert!(
            error.message.contains("certificate") || error.message.contains("PEM"),
            "{error}"
        );
    }
    // Users who may come with TLS only, and without it only: who prefers it comes either way.
    for (user, parameters, comes) in [
        ("tls_only", "sslmode=prefer", true),
        ("tls_only", "sslmode=require", true),
        ("tls_only", "sslmode=disable", false),
        ("plain_only", "sslmode=prefer", true),
        ("plain_only", "sslmode=disable", true),
        ("plain_only", "sslmode=require", false),
    ] {
        store
            .prompt
            .run(&format!("GRANT ALL ON SCHEMA {} TO {user}", store.schema))
            .await;
        let client = unprepared(&url(user, "127.0.0.1", parameters), "a");
        // Whether it may use the table is another question.
        let error = client.backend.prepare().await.err();
        let refused = error
            .as_ref()
            .is_some_and(|error| error.message.contains("pg_hba"));
        assert_eq!(refused, !comes, "{user} {parameters}: {error:?}");
    }
    let (cert, key) = (
        server.told("/certified/cert"),
        server.told("/certified/key"),
    );
    store
        .prompt
        .run(&format!(
            "GRANT ALL ON SCHEMA {} TO certified",
            store.schema
        ))
        .await;
    let mutual = format!("sslmode=verify-full&sslrootcert={ca}&sslcert={cert}&sslkey={key}");
    let client = unprepared(&url("certified", "127.0.0.1", &mutual), "a");
    let error = client.backend.prepare().await.err();
    assert!(
        error
            .as_ref()
            .is_none_or(|error| error.message.contains("permission denied")),
        "{error:?}"
    );
    let without = url("certified", "127.0.0.1", "sslmode=require");
    does_not_start(&unprepared(&without, "a"), Fatal, "refused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_another_encoding_says_which_names_it_cannot_hold() {
    let Some(store) = Store::start("a_database_of_another_encoding").await else {
        return;
    };
    let database = format!("latin{}", number());
    store
        .prompt
        .run(&format!(
            "CREATE DATABASE {database} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
        ))
        .await;
    let server = store.server.url();
    let url = format!("{}/{database}", server.strip_suffix("/postgres").unwrap());
    let client = Client::new(&url, "a").await;
    client.win(&name("é"), LONG).await;
    let error = client.attempt(&name("🦀"), LONG, None).await.unwrap_err();
    assert_eq!((error.kind, error.code), (Fatal, "unsupported"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_session_is_no_place_to_lead() {
    let Some(store) = Store::start("a_read_only_session").await else {
        return;
    };
    let role = format!("reader{}", number());
    store
        .prompt
        .run(&format!(
            "CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'tests'; \
             ALTER ROLE {role} SET default_transaction_read_only = on"
        ))
        .await;
    store.client("a").await;
    let client = unprepared(&user_of(&store, &role), "b");
    does_not_start(&client, Transient, "read-only").await;
    let error = fails(&client, Transient, "read-only").await;
    assert!(
        error.message.contains("default_transaction_read_only"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_a_watch_is_blind_and_never_says_otherwise() {
    let Some(store) = Store::start("behind_a_pooler_a_watch").await else {
        return;
    };
    let url = with_schema(pooled(store.server).await, &store.schema);
    let client = impatient(&url);
    let election = name("leader");
    client.backend.prepare().await.unwrap();
    let (hints, mut heard) = tokio::sync::mpsc::channel(64);
    let watch = Arc::clone(&client.backend).watch(election.clone(), hints);
    let watching = tokio::spawn(watch.expect("it tries"));
    let first = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await;
    assert_eq!(first.unwrap(), Some(Hint::Blind));
    // It is no worse for the election.
    let token = client.win(&election, LONG).await;
    assert_eq!(held(client.renew(&election, LONG, token).await), token);
    assert!(client.release(&election, token).await);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(heard.try_recv().is_err(), "it heard something after all");
    watching.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_elections_share_one_connection_of_a_pooler() {
    let Some(store) = Store::start("many_elections_share_one_connection").await else {
        return;
    };
    let url = with_schema(pooled(store.server).await, &store.schema);
    let client = Client::new(&url, "a").await;
    let elections: Vec<_> = (0..200).map(|number| name(&format!("e{number}"))).collect();
    let campaigns = elections.iter().map(|election| client.win(election, LONG));
    let tokens = futures_util::future::join_all(campaigns).await;
    let renewals = elections
        .iter()
        .zip(&tokens)
        .map(|(election, token)| client.renew(election, LONG, *token));
    let renewed = futures_util::future::join_all(renewals).await;
    assert!(renewed.into_iter().map(held).eq(tokens));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_and_one_that_listens_serve_all_elections_and_both_end() {
    let Some(store) = Store::start("one_connection_and_one_that_listens").await else {
        return;
    };
    let application = format!("count {}", number());
    let url = format!(
        "{}&application_name={}",
        store.url(),
        application.replace(' ', "%20")
    );
    let count = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = {}",
        literal(&application)
    );
    let connections = async || store.prompt.ask(&count).await.unwrap();
    let client = Client::new(&url, "a").await;
    let mut hearings = Vec::new();
    for number in 0..20 {
        let election = name(&format!("e{number}"));
        hearings.push(client.watch(&election).await);
        client.win(&election, LONG).await;
    }
    assert_eq!(connections().await, "2");
    hearings.clear();
    eventually("the listening ends with its last watch", async || {
        (connections().await == "1").then_some(())
    })
    .await;
    let _hearing = client.watch(&name("e1")).await;
    client.backend.close().await;
    eventually("no connection is left", async || {
        (connections().await == "0").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_one_connection_leads_without_hearing() {
    let Some(store) = Store::start("a_user_with_one_connection").await else {
        return;
    };
    let role = format!("single{}", number());
    store
        .prompt
        .run(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'tests' CONNECTION LIMIT 1; \
             GRANT ALL ON SCHEMA {} TO {role}",
            store.schema
        ))
        .await;
    let client = Client::new(&user_of(&store, &role), "a").await;
    let (hints, mut heard) = tokio::sync::mpsc::channel(64);
    let watch = Arc::clone(&client.backend).watch(name("leader"), hints);
    let watching = tokio::spawn(watch.expect("it tries"));
    let first = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await;
    assert_eq!(first.unwrap(), Some(Hint::Blind));
    let token = client.win(&name("leader"), LONG).await;
    assert_eq!(
        held(client.renew(&name("leader"), LONG, token).await),
        token
    );
    watching.abort();
    let error = fails(&unprepared(&user_of(&store, &role), "b"), Transient, "busy").await;
    assert!(error.message.contains("connection"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_no_standby_confirmed_does_not_count() {
    let test = "a_commit_that_no_standby_confirmed_does_not_count";
    let Some(server) = Server::own(test, Kind::Postgres, &[]) else {
        return;
    };
    let client = impatient(server.url());
    client.backend.prepare().await.unwrap();
    let token = client.win(&name("leader"), LONG).await;
    let prompt = Prompt::at(server.url()).await;
    prompt
        .run("ALTER SYSTEM SET synchronous_standby_names = 'ghost'")
        .await;
    prompt.run("SELECT pg_reload_conf()").await;
    eventually("the server waits for its standby", async || {
        let names = prompt.ask("SHOW synchronous_standby_names").await;
        (names.as_deref() == Some("ghost")).then_some(())
    })
    .await;
    // It waits for ever, and whoever ends that wait makes it look as if all were well.
    let election = name("leader");
    let renewal = async {
        // Not every process of the server has read its settings at the same moment.
        loop {
            let renewed = client.attempt(&election, LONG, Some(token)).await;
            if let Err(error) = renewed {
                return error;
            }
        }
    };
    let end_the_wait = async {
        eventually("it waits", async || {
            let ended = prompt
                .ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                .await;
            (ended.as_deref() == Some("t")).then_some(())
        })
        .await;
    };
    let (error, ()) = tokio::join!(renewal, end_the_wait);
    assert_eq!(
        (error.kind, error.code),
        (Ambiguous, "not-replicated"),
        "{error}"
    );
    let _ = server.ask(json!({ "do": "kill" })).await;
}
