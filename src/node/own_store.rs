//! Calls the functions of a store that the application wrote, on the thread that they belong to.
//!
//! Every call has a number and goes out as an event; `lib/store.js` calls the function and hands what came
//! of it to [`store_answer`]. Who gives a call up drops its future, and an answer that comes later finds
//! nobody. When the environment ends, so do all its calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use async_trait::async_trait;
use napi::{Env, Error};
use napi_derive::napi;
use tokio::sync::oneshot;

use super::environment::{Environment, Link};
use super::{CONFIG, Result};
use crate::backend::own::{self, Changes, Failure, Found, LeaseStore};
use crate::locked::locked;

/// A function that is to be called.
#[napi(object)]
#[derive(Clone, Default)]
pub struct StoreCall {
    /// 0: nothing is waited for.
    pub number: f64,
    pub store: u32,
    /// `get`, `compareAndSet`, `watch`; `unwatch` ends the watch of this number, and `close` is told when the
    /// store is not used any more.
    pub function: String,
    pub key: String,
    pub expected: Option<String>,
    pub value: Option<String>,
}

type Answer = std::result::Result<Option<Found>, Failure>;

/// What one environment was asked for and has not answered yet.
#[derive(Default)]
pub struct Calls(Mutex<Open>);

#[derive(Default)]
struct Open {
    ended: bool,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    watches: HashMap<u64, Arc<Changes>>,
}

impl Calls {
    /// Asked right before a function is called.
    pub fn wants(&self, call: &StoreCall) -> bool {
        call.number == 0.0 || call.function == "unwatch" || {
            let number = from_js(call.number);
            self.lock().waiting.contains_key(&number)
        }
    }

    /// The environment is closing: nobody answers any more.
    pub fn end(&self) {
        let open = {
            let mut open = self.lock();
            open.ended = true;
            (
                std::mem::take(&mut open.waiting),
                std::mem::take(&mut open.watches),
            )
        };
        for changes in open.1.into_values() {
            changes.broke(gone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        locked(&self.0)
    }
}

/// Its drop gives a call up, or ends a watch.
struct Call {
    link: Arc<Link>,
    store: u32,
    number: u64,
    is_watch: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut open = self.link.calls().lock();
        open.waiting.remove(&self.number);
        open.watches.remove(&self.number);
        drop(open);
        if self.is_watch {
            self.link.call_store(StoreCall {
                number: to_js(self.number),
                store: self.store,
                function: "unwatch".into(),
                ..StoreCall::default()
            });
        }
    }
}

/// The application's functions, as seen from the election's thread.
struct JsStore {
    /// Weak: a thread that has ended is not kept by a store that nobody uses.
    link: Weak<Link>,
    number: std::sync::OnceLock<u32>,
    name: String,
    watches: bool,
}

impl JsStore {
    fn number(&self) -> u32 {
        self.number.get().copied().unwrap_or_default()
    }

    async fn call(
        &self,
        call: StoreCall,
        changes: Option<Arc<Changes>>,
    ) -> std::result::Result<(Call, Option<Found>), Failure> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let link = self.link.upgrade().ok_or_else(gone)?;
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        {
            let mut open = link.calls().lock();
            if open.ended {
                return Err(gone());
            }
            open.waiting.insert(number, sender);
            if let Some(changes) = &changes {
                open.watches.insert(number, Arc::clone(changes));
            }
        }
        let guard = Call {
            link,
            store: self.number(),
            number,
            is_watch: changes.is_some(),
        };
        guard.link.call_store(StoreCall {
            number: to_js(number),
            store: self.number(),
            ..call
        });
        match receiver.await {
            Ok(answer) => answer.map(|found| (guard, found)),
            // It was begun, and nobody knows how it ended.
            Err(_) => Err(Failure::new(Failure::FAILED, gone().message)),
        }
    }
}

#[async_trait]
impl LeaseStore for JsStore {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn get(&self, key: &str) -> Answer {
        let call = StoreCall {
            function: "get".into(),
            key: key.into(),
            ..StoreCall::default()
        };
        self.call(call, None).await.map(|(_, found)| found)
    }

    async fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&str>,
        value: &str,
    ) -> std::result::Result<Option<String>, Failure> {
        let call = StoreCall {
            function: "compareAndSet".into(),
            key: key.into(),
            expected: expected.map(Into::into),
            value: Some(value.into()),
            ..StoreCall::default()
        };
        let (_, written) = self.call(call, None).await?;
        Ok(written.map(|found| found.version))
    }

    fn watches(&self) -> bool {
        self.watches
    }

    async fn watch(
        &self,
        key: &str,
        changes: Arc<Changes>,
    ) -> std::result::Result<Box<dyn Send + Sync>, Failure> {
        let call = StoreCall {
            function: "watch".into(),
            key: key.into(),
            ..StoreCall::default()
        };
        let (watching, _) = self.call(call, Some(changes)).await?;
        Ok(Box::new(watching))
    }

    fn close(&self) {
        if let Some(link) = self.link.upgrade() {
            link.call_store(StoreCall {
                store: self.number(),
                function: "close".into(),
                ..StoreCall::default()
            });
        }
    }
}

impl std::fmt::Debug for JsStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsStore")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn gone() -> Failure {
    Failure::new(
        Failure::GONE,
        "the thread whose startCluster() was given this store has ended, and its functions with it: give the store to startCluster() on a thread that stays, such as the main thread",
    )
}

/// Registers a store of this environment: `store: { "$store": <number> }` in a configuration names it, and
/// events of the type `store` ask for its functions.
#[napi(catch_unwind)]
pub fn register_store(env: Env, name: String, watches: bool) -> Result<u32> {
    let link = Environment::of(env, |here| Arc::downgrade(here.link()))
        .ok_or_else(|| Error::new(CONFIG.to_string(), "attach() comes first".to_string()))?;
    let store = Arc::new(JsStore {
        link,
        number: std::sync::OnceLock::new(),
        name,
        watches,
    });
    let number = own::register(store.clone());
    // Nobody knows the number before it is returned, so nobody asks too early.
    let _ = store.number.set(number);
    Ok(number)
}

/// No configuration names the store any more.
#[napi(catch_unwind)]
pub fn forget_store(store: u32) {
    own::forget(store);
}

/// What came of a call. With a `code` it failed; without a version nothing was found, or nothing was
/// written. An answer that nobody waits for any more counts for nothing.
#[napi(catch_unwind)]
pub fn store_answer(
    env: Env,
    call: f64,
    version: Option<String>,
    value: Option<String>,
    code: Option<String>,
    message: Option<String>,
) {
    let waiting = Environment::of(env, |here| {
        here.link().calls().lock().waiting.remove(&from_js(call))
    });
    let answer = match (code, version) {
        (Some(code), _) => Err(Failure::new(&code, message.unwrap_or_default())),
        (None, Some(version)) => Ok(Some(Found {
            version,
            value: value.unwrap_or_default(),
        })),
        (None, None) => Ok(None),
    };
    if let Some(waiting) = waiting.flatten() {
        // Given up in this very moment.
        let _ = waiting.send(answer);
    }
}

/// A watch tells of a change; with a message, that it broke.
#[napi(catch_unwind)]
pub fn store_changed(env: Env, watch: f64, message: Option<String>) {
    let changes = Environment::of(env, |here| {
        let open = here.link().calls().lock();
        open.watches.get(&from_js(watch)).cloned()
    });
    match (changes.flatten(), message) {
        (Some(changes), None) => changes.changed(),
        (Some(changes), Some(message)) => changes.broke(Failure::new(Failure::FAILED, message)),
        (None, _) => {}
    }
}

#[allow(clippy::cast_precision_loss)] // Nobody makes so many calls.
fn to_js(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates; nobody has that number.
fn from_js(number: f64) -> u64 {
    number as u64
}
