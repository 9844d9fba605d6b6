//! A store of the application's own: functions that read a record and write it on a condition.
//!
//! This module knows them as a [`LeaseStore`], and nothing of the language that they are written in. They
//! are judged by what comes back: whatever else they do is an error in words, and never leadership. What
//! their records mean is decided by [`Observed`].

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use super::observed::{Document, Kept, Observed, ObservedStore, Values};
use super::watchers::{Running, WatchersByElection};
use super::{Backend, BackendError, BadStore, Capabilities, Hints, Watch};
use crate::clock::Clock;
use crate::lease::ElectionName;
use crate::locked::locked;

/// Whatever a lease needs that goes through an event loop; the timing of an election asks for more.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// What happens more often than this is looked at together.
const SHORTEST_GAP: Duration = Duration::from_millis(25);
/// A call that is given up after less than this part of the time that any may take did not lack time.
const PATIENCE: u32 = 4;

/// What was found under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// To be handed back as the condition of a write. No order is assumed.
    pub version: String,
    /// JSON text; see `Document`.
    pub value: String,
}

/// How a function of a store failed, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: &'static str,
    pub message: String,
}

impl Failure {
    /// Something lies under the key that is no record at all.
    pub const BAD_RECORD: &str = "bad-record";
    /// A function answered with something that it may not answer with.
    pub const BAD_ANSWER: &str = "bad-answer";
    /// A function threw.
    pub const FAILED: &str = "failed";
    /// Nobody is there any more who could run it: it was not begun.
    pub const GONE: &str = "thread-ended";

    /// `code` is one of the words above; another is taken for [`Self::FAILED`].
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        let known = [Self::BAD_RECORD, Self::BAD_ANSWER, Self::GONE];
        let code = known.into_iter().find(|known| *known == code);
        Self {
            code: code.unwrap_or(Self::FAILED),
            message: message.into(),
        }
    }

    fn of_read(self) -> BackendError {
        match self.code {
            Self::BAD_RECORD | Self::GONE => BackendError::fatal(self.code, self.message),
            code => BackendError::transient(code, self.message),
        }
    }

    fn of_write(self) -> BackendError {
        match self.code {
            Self::GONE => BackendError::fatal(self.code, self.message),
            code => BackendError::ambiguous(code, self.message),
        }
    }
}

/// The functions. A future that is dropped is not waited for any more, and what it asked for is not begun
/// afterwards.
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// For people: what it is called.
    fn name(&self) -> String;

    /// `None`: there is no record.
    async fn get(&self, key: &str) -> Result<Option<Found>, Failure>;

    /// Writes if the record is of the expected version (`None`: if there is no record). Returns the version
    /// of what was written; `None`: somebody else wrote first, and nothing was written.
    async fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&str>,
        value: &str,
    ) -> Result<Option<String>, Failure>;

    /// Whether [`LeaseStore::watch`] can do anything.
    fn watches(&self) -> bool {
        false
    }

    /// Returns once changes are told to the other end of `changes`, which they are until what was returned
    /// is dropped.
    async fn watch(
        &self,
        _key: &str,
        _changes: Arc<Changes>,
    ) -> Result<Box<dyn Send + Sync>, Failure> {
        Err(Failure::new(Failure::FAILED, "it has no watch"))
    }

    /// No function is called any more.
    fn close(&self) {}
}

/// What a watch tells: that something may have changed, or that it broke.
#[derive(Debug, Default)]
pub struct Changes {
    broke: Mutex<Option<Failure>>,
    told: tokio::sync::Notify,
}

impl Changes {
    pub fn changed(&self) {
        self.told.notify_one();
    }

    pub fn broke(&self, failure: Failure) {
        *locked(&self.broke) = Some(failure);
        self.told.notify_one();
    }

    /// Changes in between are one.
    async fn next(&self) -> Result<(), Failure> {
        self.told.notified().await;
        locked(&self.broke).take().map_or(Ok(()), Err)
    }
}

/// Those that an election may be configured with, by their numbers.
static REGISTERED: Mutex<Registered> = Mutex::new(Registered {
    last: 0,
    stores: None,
});

struct Registered {
    last: u32,
    stores: Option<HashMap<u32, Arc<dyn LeaseStore>>>,
}

/// Returns the number that a configuration names it by.
pub fn register(store: Arc<dyn LeaseStore>) -> u32 {
    let mut registered = locked(&REGISTERED);
    registered.last += 1;
    let number = registered.last;
    let stores = registered.stores.get_or_insert_default();
    stores.insert(number, store);
    number
}

/// Whoever uses the store may go on; nobody begins to.
pub fn forget(number: u32) {
    if let Some(stores) = &mut locked(&REGISTERED).stores {
        stores.remove(&number);
    }
}

pub fn registered(number: u32) -> Option<Arc<dyn LeaseStore>> {
    locked(&REGISTERED).stores.as_ref()?.get(&number).cloned()
}

/// What a cluster on a store of the application's own is configured with.
#[derive(Debug, Clone)]
pub struct OwnOptions {
    /// The election whose record is looked at when the cluster starts.
    pub election: ElectionName,
    pub min_replicas: Option<u32>,
    /// How long any function may take, unless whoever asks gives up earlier.
    pub request_limit: Duration,
}

/// Makes the backend of a store that was registered. Calls no function yet.
pub fn open(
    number: u32,
    options: OwnOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    if options.min_replicas.is_some() {
        return Err(BadStore {
            parameter: "minReplicas",
            rule: "be left out beside a store of your own: it is Redis's, and what a write of yours waits for is decided in compareAndSet".into(),
        });
    }
    let store = registered(number).ok_or_else(|| {
        BadStore::url("be a URL, or a store of your own that is given to startCluster(): its functions are not known here")
    })?;
    Ok(over(store, options, clock))
}

/// The backend over a store that is at hand.
pub fn over(
    store: Arc<dyn LeaseStore>,
    options: OwnOptions,
    clock: Arc<dyn Clock>,
) -> Arc<dyn Backend> {
    let table = Table {
        store,
        limit: options.request_limit,
        election: options.election,
        get: Silence::of("get"),
        set: Silence::of("compareAndSet"),
        watchers: WatchersByElection::default(),
    };
    Arc::new(Observed::new(table, clock))
}

#[async_trait]
impl ObservedStore for Table {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: SHORTEST_LEASE,
            notifies: self.store.watches(),
        }
    }

    fn describe(&self) -> String {
        self.store.name()
    }

    /// Nothing can be written without a trace, since a record cannot be deleted.
    async fn prepare(&self) -> Result<(), BackendError> {
        self.get(&self.election).await.map(|_| ())
    }

    fn watch(leases: &Arc<Observed<Self>>, election: ElectionName, hints: Hints) -> Option<Watch> {
        if !leases.records.store.watches() {
            return None;
        }
        let leases = Arc::clone(leases);
        Some(Box::pin(async move {
            let run = |running| keep_watching(Arc::clone(&leases), election.clone(), running);
            let watchers = &leases.records.watchers;
            let listening = watchers.listen(election.clone(), hints, usize::MAX, run);
            if let Some(listening) = listening {
                listening.forward().await;
            }
        }))
    }

    fn needs_event_loop(&self) -> bool {
        true
    }

    async fn close(&self) {
        self.watchers.close().await;
        self.store.close();
    }
}

/// Until nobody listens.
async fn keep_watching(leases: Arc<Observed<Table>>, election: ElectionName, mut running: Running) {
    while !running.has_ended() {
        let failure = hear(&leases, &election, &mut running).await;
        let Err(failure) = failure else { return };
        let error = BackendError::transient(failure.code, failure.message);
        running.lost(&leases.records.store.name(), &error).await;
    }
}

/// Until the watch breaks, or (`Ok`) nobody listens any more.
async fn hear(
    leases: &Observed<Table>,
    election: &ElectionName,
    running: &mut Running,
) -> Result<(), Failure> {
    let changes = Arc::<Changes>::default();
    let records = &leases.records;
    let watchers = Arc::clone(running.watchers());
    let key = key(election);
    let begun = timeout(
        records.limit,
        records.store.watch(&key, Arc::clone(&changes)),
    );
    let begun = begun.await.map_err(|_| too_late("watch", &key))?;
    let _watching = begun?;
    loop {
        running.hears_all();
        // What changed is not known until it was read, and nobody may tell of it once more.
        let read = timeout(records.limit, records.get(election)).await;
        let entry = read
            .map_err(|_| too_late("get", &key))?
            .map_err(|error| Failure::new(error.code, error.message))?;
        if let Some(hint) = leases.saw(election, entry) {
            watchers.tell_all(hint);
        }
        sleep(SHORTEST_GAP).await;
        loop {
            if running.has_ended() {
                return Ok(());
            }
            running.hears_all();
            tokio::select! {
                told = changes.next() => break told?,
                () = watchers.changed() => {}
            }
        }
    }
}

fn too_late(function: &str, key: &str) -> Failure {
    let message = format!("{function}({key:?}) did not settle in time");
    Failure::new(Failure::FAILED, message)
}

fn key(election: &ElectionName) -> String {
    format!("cluster:{election}")
}

/// The store as a place of records.
#[derive(Debug)]
struct Table {
    store: Arc<dyn LeaseStore>,
    limit: Duration,
    /// The one whose record is looked at when the cluster starts.
    election: ElectionName,
    get: Silence,
    set: Silence,
    watchers: WatchersByElection,
}

/// A function, and whether it was told that it does not answer.
#[derive(Debug)]
struct Silence {
    function: &'static str,
    told: AtomicBool,
}

impl Silence {
    const fn of(function: &'static str) -> Self {
        Self {
            function,
            told: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl Values for Table {
    type Version = String;

    async fn get(&self, election: &ElectionName) -> Result<Option<Kept<String>>, BackendError> {
        let key = key(election);
        let found = self.ask(&self.get, &key, self.store.get(&key)).await;
        let found = found.map_err(Failure::of_read)?;
        Ok(found.map(|Found { version, value }| Kept::new(version, value.as_bytes())))
    }

    async fn put(
        &self,
        election: &ElectionName,
        over: Option<&String>,
        document: &Document,
    ) -> Result<Option<String>, BackendError> {
        let key = key(election);
        let text = document.text();
        let expected = over.map(String::as_str);
        let set = self.store.compare_and_set(&key, expected, &text);
        let written = self.ask(&self.set, &key, set).await;
        match written.map_err(Failure::of_write)? {
            Some(version) if Some(&*version) == expected => {
                let message = format!(
                    "compareAndSet({key:?}) returned the very version that was expected: every write needs a new one, or a leader that renews looks dead"
                );
                Err(Failure::new(Failure::BAD_ANSWER, message).of_write())
            }
            written => Ok(written),
        }
    }
}

impl Table {
    async fn ask<T>(
        &self,
        function: &Silence,
        key: &str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let waiting = Waiting {
            table: self,
            function,
            key,
            since: Instant::now(),
        };
        let answer = call.await;
        std::mem::forget(waiting);
        function.told.store(false, Ordering::Relaxed);
        answer
    }
}

/// A call that is under way. Its drop gives it up: whoever asked says that there was no answer in time, and
/// this says of what.
struct Waiting<'a> {
    table: &'a Table,
    function: &'a Silence,
    key: &'a str,
    since: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        // What is given up earlier is given up for another reason: a stop, a release.
        if waited < self.table.limit / PATIENCE || self.function.told.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let store = self.table.store.name();
        tracing::warn!(
            store,
            "{}({:?}) did not settle within {} ms and is not waited for any more; an answer that comes now counts for nothing",
            self.function.function,
            self.key,
            waited.as_millis(),
        );
    }
}
