//! A store of the application's own: functions over a map in memory, which fail in all the ways that such
//! functions do.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use whenleader::backend::Backend;
use whenleader::backend::own::{self, Changes, Failure, Found, LeaseStore, OwnOptions};
use whenleader::clock::SystemClock;
use whenleader::lease::FailureKind::{Ambiguous, Fatal, Transient};
use whenleader::lease::{ElectionName, Hint};

use crate::suite::{Client, Fixture, LONG, SHORT, denied, held, leading, name, owner};

/// How long a function may take here.
const LIMIT: Duration = Duration::from_secs(2);

/// The store of all processes of a test.
#[derive(Debug, Clone, Default)]
struct Map(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<String, Found>,
    /// What was there before the last write.
    before: HashMap<String, Found>,
    versions: u64,
    watches: Vec<(String, Arc<Changes>)>,
    gets: VecDeque<Fault>,
    sets: VecDeque<Fault>,
    /// How often `watch` still fails.
    refusals: u32,
    calls: u32,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Throws,
    AppliesThenThrows,
    NeverSettles,
    /// Somebody's retry in between: it is applied, and told as a conflict.
    AppliesTwice,
    /// Of a read: what was there before the last write.
    Stale,
    /// It is applied by somebody who was asked, after whoever asked has gone.
    AppliesLate(Duration),
    /// The version that was expected is told as the new one.
    SameVersion,
}

impl Map {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    fn set_record(&self, key: &str, value: &str) {
        let mut inner = self.lock();
        inner.write(key, value);
        inner.tell(key);
    }

    fn delete(&self, key: &str) {
        let mut inner = self.lock();
        inner.records.remove(key);
        inner.tell(key);
    }

    fn roll_back(&self, key: &str) {
        let mut inner = self.lock();
        let before = inner.before.get(key).cloned().expect("a write before");
        inner.records.insert(key.into(), before);
        inner.tell(key);
    }

    fn on_get(&self, fault: Fault) {
        self.lock().gets.push_back(fault);
    }

    fn on_set(&self, fault: Fault) {
        self.lock().sets.push_back(fault);
    }

    fn client(&self, id: &str) -> Client {
        Client {
            backend: self.open(),
            owner: owner(id),
        }
    }
}

impl Inner {
    fn write(&mut self, key: &str, value: &str) -> String {
        self.versions += 1;
        let version = format!("v{}", self.versions);
        let value = value.to_owned();
        let found = Found {
            version: version.clone(),
            value,
        };
        if let Some(before) = self.records.insert(key.into(), found) {
            self.before.insert(key.into(), before);
        }
        version
    }

    fn set(&mut self, key: &str, expected: Option<&str>, value: &str) -> Option<String> {
        let present = self.records.get(key).map(|found| &*found.version);
        if present != expected {
            return None;
        }
        let version = self.write(key, value);
        self.tell(key);
        Some(version)
    }

    fn tell(&self, key: &str) {
        for (_, changes) in self.watches.iter().filter(|(watched, _)| watched == key) {
            changes.changed();
        }
    }
}

fn threw() -> Failure {
    Failure::new(Failure::FAILED, "it threw")
}

#[async_trait]
impl LeaseStore for Map {
    fn name(&self) -> String {
        "your own store (Map)".into()
    }

    async fn get(&self, key: &str) -> Result<Option<Found>, Failure> {
        let fault = {
            let mut inner = self.lock();
            inner.calls += 1;
            inner.gets.pop_front().unwrap_or(Fault::None)
        };
        match fault {
            Fault::Throws => Err(threw()),
            Fault::NeverSettles => std::future::pending().await,
            Fault::Stale => Ok(self.lock().before.get(key).cloned()),
            _ => Ok(self.lock().records.get(key).cloned()),
        }
    }

    async fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&str>,
        value: &str,
    ) -> Result<Option<String>, Failure> {
        let fault = {
            let mut inner = self.lock();
            inner.calls += 1;
            inner.sets.pop_front().unwrap_or(Fault::None)
        };
        match fault {
            Fault::Throws => Err(threw()),
            Fault::NeverSettles => std::future::pending().await,
            Fault::AppliesThenThrows => {
                self.lock().set(key, expected, value);
                Err(threw())
            }
            Fault::AppliesTwice => {
                self.lock().set(key, expected, value);
                Ok(self.lock().set(key, expected, value))
            }
            Fault::AppliesLate(after) => {
                let (map, key, value) = (self.clone(), key.to_owned(), value.to_owned());
                let expected = expected.map(str::to_owned);
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    map.lock().set(&key, expected.as_deref(), &value);
                });
                Err(threw())
            }
            Fault::SameVersion => {
                self.lock().set(key, expected, value);
                Ok(expected.map(str::to_owned))
            }
            Fault::None | Fault::Stale => Ok(self.lock().set(key, expected, value)),
        }
    }

    fn watches(&self) -> bool {
        true
    }

    async fn watch(
        &self,
        key: &str,
        changes: Arc<Changes>,
    ) -> Result<Box<dyn Send + Sync>, Failure> {
        let mut inner = self.lock();
        if inner.refusals > 0 {
            inner.refusals -= 1;
            return Err(threw());
        }
        inner.watches.push((key.to_owned(), Arc::clone(&changes)));
        Ok(Box::new(Watching(self.clone(), changes)))
    }
}

struct Watching(Map, Arc<Changes>);

impl Drop for Watching {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner
            .watches
            .retain(|(_, other)| !Arc::ptr_eq(other, &self.1));
    }
}

fn key(election: &ElectionName) -> String {
    format!("cluster:{election}")
}

impl Fixture for Map {
    const RUBBISH_EXPIRES: bool = true;

    async fn start(_: &str) -> Option<Self> {
        Some(Self::default())
    }

    fn open(&self) -> Arc<dyn Backend> {
        let options = OwnOptions {
            election: name("leader"),
            min_replicas: None,
            request_limit: LIMIT,
        };
        own::over(Arc::new(self.clone()), options, Arc::new(SystemClock))
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        self.set_record(&key(election), &String::from_utf8_lossy(rubbish));
    }

    async fn forget(&self, election: &ElectionName) {
        self.delete(&key(election));
    }

    async fn list(&self) -> Vec<String> {
        self.lock().records.keys().cloned().collect()
    }
}

crate::conformance!(Map);

#[tokio::test]
async fn a_read_that_fails_surely_wrote_nothing_and_a_write_that_fails_may_have() {
    let store = Map::default();
    let election = name("leader");
    let a = store.client("a");
    store.on_get(Fault::Throws);
    let error = a
        .attempt(&election, LONG, None)
        .await
        .expect_err("it threw");
    assert_eq!((error.kind, error.code), (Transient, "failed"));
    store.on_set(Fault::Throws);
    let error = a
        .attempt(&election, LONG, None)
        .await
        .expect_err("it threw");
    assert_eq!((error.kind, error.code), (Ambiguous, "failed"));
    assert_eq!(a.leader(&election).await, None);
    a.win(&election, LONG).await;
}

#[tokio::test]
async fn a_renewal_that_was_applied_and_not_answered_goes_on_and_a_term_so_begun_is_followed_by_another()
 {
    let store = Map::default();
    let election = name("leader");
    let a = store.client("a");
    store.on_set(Fault::AppliesThenThrows);
    a.attempt(&election, LONG, None)
        .await
        .expect_err("it threw");
    let unheard = a.leader(&election).await.expect("it was applied").token;
    let token = a.win(&election, LONG).await;
    assert!(token > unheard, "nobody knows what became of the first");
    for fault in [Fault::AppliesThenThrows, Fault::Throws] {
        store.on_set(fault);
        a.attempt(&election, LONG, Some(token))
            .await
            .expect_err("it threw");
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
    }
    store.on_set(Fault::AppliesTwice);
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
}

#[tokio::test]
async fn a_write_that_comes_late_meets_a_newer_version_and_changes_nothing() {
    let store = Map::default();
    let election = name("leader");
    let (a, b) = (store.client("a"), store.client("b"));
    let old = a.win(&election, SHORT).await;
    store.on_set(Fault::AppliesLate(SHORT * 3));
    a.attempt(&election, SHORT, Some(old))
        .await
        .expect_err("it threw");
    let new = b.take_over(&election, LONG).await;
    tokio::time::sleep(SHORT * 4).await;
    assert_eq!(a.leader(&election).await, Some(leading(&b, new)));
    assert_eq!(held(b.renew(&election, LONG, new).await), new);
    denied(a.renew(&election, LONG, old).await);
}

#[tokio::test]
async fn a_stale_read_costs_time_and_never_a_lease() {
    let store = Map::default();
    let election = name("leader");
    let (a, b) = (store.client("a"), store.client("b"));
    let token = a.win(&election, SHORT).await;
    // b has seen the first version, and from now on a replica that stands still shows it.
    denied(b.campaign(&election, SHORT).await);
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
    tokio::time::sleep(SHORT).await;
    store.on_get(Fault::Stale);
    let (leader, _) = denied(b.campaign(&election, SHORT).await);
    assert_eq!(leader, Some(leading(&a, token)));
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
}

#[tokio::test]
async fn a_store_that_lost_its_last_write_is_met_by_the_next_renewal() {
    let store = Map::default();
    let election = name("leader");
    let (a, b) = (store.client("a"), store.client("b"));
    let token = a.win(&election, LONG).await;
    a.renew(&election, LONG, token).await;
    store.roll_back(&key(&election));
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
    // With the beginning of a term lost, its leader learns that it leads no more.
    assert!(a.release(&election, token).await);
    let second = b.win(&election, LONG).await;
    store.roll_back(&key(&election));
    denied(b.renew(&election, LONG, second).await);
    assert!(a.win(&election, LONG).await > token);
}

#[tokio::test]
async fn a_version_that_does_not_change_is_refused() {
    let store = Map::default();
    let election = name("leader");
    let a = store.client("a");
    let token = a.win(&election, LONG).await;
    store.on_set(Fault::SameVersion);
    let error = a
        .attempt(&election, LONG, Some(token))
        .await
        .expect_err("a bad answer");
    assert_eq!(
        (error.kind, error.code),
        (Ambiguous, "bad-answer"),
        "{error}"
    );
    assert!(error.message.contains("cluster:leader"), "{error}");
}

#[tokio::test]
async fn a_call_that_was_given_up_is_over_and_the_next_one_finds_out() {
    let store = Map::default();
    let election = name("leader");
    let a = store.client("a");
    let token = a.win(&election, LONG).await;
    store.on_set(Fault::NeverSettles);
    let attempt = a.attempt(&election, LONG, Some(token));
    let given_up = tokio::time::timeout(SHORT / 4, attempt).await;
    assert!(given_up.is_err(), "{given_up:?}");
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
}

#[tokio::test]
async fn what_is_no_record_is_named_and_fails_the_start() {
    #[derive(Debug)]
    struct Wrong;
    #[async_trait]
    impl LeaseStore for Wrong {
        fn name(&self) -> String {
            "wrong".into()
        }
        async fn get(&self, _: &str) -> Result<Option<Found>, Failure> {
            Err(Failure::new(Failure::BAD_RECORD, "get answered 5"))
        }
        async fn compare_and_set(
            &self,
            _: &str,
            _: Option<&str>,
            _: &str,
        ) -> Result<Option<String>, Failure> {
            Ok(None)
        }
    }
    let options = OwnOptions {
        election: name("leader"),
        min_replicas: None,
        request_limit: LIMIT,
    };
    let backend = own::over(Arc::new(Wrong), options, Arc::new(SystemClock));
    let error = backend.prepare().await.expect_err("no record");
    assert_eq!((error.kind, error.code), (Fatal, "bad-record"));
    assert!(backend.needs_event_loop());
    assert!(!backend.capabilities().notifies);
}

#[tokio::test]
async fn a_watch_that_cannot_be_begun_or_breaks_is_begun_again() {
    let store = Map::default();
    let election = name("leader");
    let (a, b) = (store.client("a"), store.client("b"));
    store.lock().refusals = 2;
    let mut hearing = b.watch(&election).await;
    for _ in 0..2 {
        let watches = store.lock().watches.clone();
        assert_eq!(watches.len(), 1);
        watches[0].1.broke(threw());
        hearing.until("Blind", |hint| hint == Hint::Blind).await;
        hearing
            .until("Watching", |hint| hint == Hint::Watching)
            .await;
    }
    // A read that fails leaves it in the dark as well.
    let token = a.win(&election, LONG).await;
    hearing
        .until(
            "Alive",
            |hint| matches!(hint, Hint::Alive { token: t, .. } if t == token),
        )
        .await;
    store.on_get(Fault::Throws);
    held(a.renew(&election, LONG, token).await);
    hearing.until("Blind", |hint| hint == Hint::Blind).await;
    hearing
        .until("Watching", |hint| hint == Hint::Watching)
        .await;
    drop(hearing);
    crate::support::eventually("the watch is ended", async || {
        store.lock().watches.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn changes_that_come_in_a_storm_are_looked_at_together() {
    let store = Map::default();
    let election = name("leader");
    let b = store.client("b");
    let _hearing = b.watch(&election).await;
    let before = store.lock().calls;
    for _ in 0..200 {
        store.lock().tell(&key(&election));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let reads = store.lock().calls - before;
    assert!((1..100).contains(&reads), "{reads} reads");
}

#[tokio::test]
async fn a_store_that_answers_conflict_for_ever_does_not_keep_an_attempt_for_ever() {
    let store = Map::default();
    let election = name("leader");
    let (a, b) = (store.client("a"), store.client("b"));
    let token = a.win(&election, SHORT).await;
    denied(b.campaign(&election, SHORT).await);
    held(a.renew(&election, LONG, token).await);
    tokio::time::sleep(SHORT).await;
    for _ in 0..300 {
        store.on_get(Fault::Stale);
    }
    let error = b.attempt(&election, SHORT, None).await.expect_err("no end");
    assert_eq!((error.kind, error.code), (Ambiguous, "conflict"));
    assert_eq!(held(a.renew(&election, LONG, token).await), token);
}
