//! A store in memory, with one record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::holder;
use crate::backend::BackendError;
use crate::backend::observed::{Change, Holder, Lasts, Record, Records, Written};
use crate::lease::{ElectionName, Owner, Token};

#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    pub version: u64,
    pub holder: Option<Holder>,
    pub last: Option<Token>,
}

#[derive(Debug, Clone, Default)]
pub struct Shelf(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
pub struct Inner {
    pub page: Option<Page>,
    versions: u64,
    /// Each is for one request, in order.
    reads: VecDeque<Twist>,
    writes: VecDeque<Twist>,
    asked: Vec<&'static str>,
    /// Whether a write over a record that is gone makes one.
    pub makes: bool,
    /// Whether it refuses the very version that it shows.
    pub refuses: bool,
    /// When a write was asked of it.
    pub writes_at: Vec<Instant>,
}

#[derive(Debug)]
pub enum Twist {
    None,
    /// It is applied, and answered when the test says so.
    HoldAnswer(oneshot::Receiver<()>),
    /// It is not even sent before the test says so.
    HoldRequest(oneshot::Receiver<()>),
    /// It is applied, and nobody hears of it.
    LoseAnswer,
    /// Somebody else writes right before it.
    Rival,
    /// It comes twice, and only the second one is answered.
    Twice,
    /// It is not applied, and that is sure.
    Fail,
}

impl Shelf {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    pub fn page(&self) -> Option<Page> {
        self.lock().page.clone()
    }

    /// Somebody writes who asks nobody.
    pub fn put(&self, holder: Option<Holder>) -> Page {
        let mut inner = self.lock();
        let last = inner.page.as_ref().and_then(|page| page.last);
        inner.put(holder, last)
    }

    pub fn delete(&self) {
        self.lock().page = None;
    }

    /// What was asked of it since the last time.
    pub fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.lock().asked)
    }

    pub fn on_read(&self, twist: Twist) {
        self.lock().reads.push_back(twist);
    }

    pub fn on_write(&self, twist: Twist) {
        self.lock().writes.push_back(twist);
    }

    async fn twisted<T>(
        &self,
        of: impl Fn(&mut Inner) -> &mut VecDeque<Twist>,
        request: impl Fn(&mut Inner) -> T,
    ) -> Result<T, BackendError> {
        let twist = of(&mut self.lock()).pop_front().unwrap_or(Twist::None);
        match twist {
            Twist::None => Ok(request(&mut self.lock())),
            Twist::HoldRequest(go) => {
                let _ = go.await;
                Ok(request(&mut self.lock()))
            }
            Twist::HoldAnswer(go) => {
                let answer = request(&mut self.lock());
                let _ = go.await;
                Ok(answer)
            }
            Twist::LoseAnswer => {
                request(&mut self.lock());
                Err(BackendError::ambiguous("timeout", "no answer"))
            }
            Twist::Twice => {
                request(&mut self.lock());
                Ok(request(&mut self.lock()))
            }
            Twist::Fail => Err(BackendError::transient("unreachable", "it is away")),
            Twist::Rival => {
                let mut inner = self.lock();
                let (holder, last) = inner
                    .page
                    .clone()
                    .map_or((None, None), |page| (page.holder, page.last));
                inner.put(holder, last);
                Ok(request(&mut inner))
            }
        }
    }
}

impl Inner {
    fn put(&mut self, holder: Option<Holder>, last: Option<Token>) -> Page {
        self.versions += 1;
        let page = Page {
            version: self.versions,
            holder,
            last,
        };
        self.page = Some(page.clone());
        page
    }

    fn begin(&mut self, owner: &Owner, token: Token, duration: Duration) -> Page {
        self.put(Some(holder(owner, token, duration)), Some(token))
    }
}

#[async_trait]
impl Records for Shelf {
    type Entry = Page;

    fn record(&self, page: &Page) -> Record {
        Record {
            version: page.version.to_string(),
            holder: page.holder.clone(),
            last: page.last,
        }
    }

    async fn read(&self, _: &ElectionName) -> Result<Option<Page>, BackendError> {
        self.lock().asked.push("read");
        self.twisted(|inner| &mut inner.reads, |inner| inner.page.clone())
            .await
    }

    async fn create(
        &self,
        _: &ElectionName,
        owner: &Owner,
        token: Token,
        duration: Duration,
    ) -> Result<Option<Page>, BackendError> {
        self.lock().asked.push("create");
        let create = |inner: &mut Inner| {
            let is_free = inner.page.is_none();
            is_free.then(|| inner.begin(owner, token, duration))
        };
        self.twisted(|inner| &mut inner.writes, create).await
    }

    async fn write(
        &self,
        _: &ElectionName,
        over: &Page,
        change: Change<'_>,
    ) -> Result<Written<Page>, BackendError> {
        {
            let mut inner = self.lock();
            inner.asked.push("write");
            inner.writes_at.push(Instant::now());
        }
        let write = |inner: &mut Inner| {
            if inner.refuses {
                return Written::Changed;
            }
            let is_gone = inner.page.is_none();
            let is_same = inner.page.as_ref().map(|page| page.version) == Some(over.version);
            let may_write = is_same || is_gone && inner.makes;
            if !may_write {
                return Written::Changed;
            }
            let page = match change {
                Change::Begin {
                    owner,
                    token,
                    duration,
                } => inner.begin(owner, token, duration),
                Change::Renew { duration } => {
                    let mut holder = over.holder.clone().expect("a renewal is over a held lease");
                    holder.lasts = Lasts::For(duration);
                    inner.put(Some(holder), over.last)
                }
                Change::Release => inner.put(None, over.last),
            };
            if is_gone {
                Written::Made(page)
            } else {
                Written::Done(page)
            }
        };
        self.twisted(|inner| &mut inner.writes, write).await
    }
}
