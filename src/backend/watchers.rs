//! Who listens to which election, and whoever hears for them: the part that every store's watch has in
//! common. One task of a store, the runner, serves all elections of a [`Watchers`], and hands out hints through
//! its [`Running`]. It says what it hears; who must be told of what, how long to rest after a failure, and when
//! there is nothing left to do, is decided here.
//!
//! A campaign that is slow to listen loses none of what counts: of each kind the latest hint waits for
//! it, and a runner never waits for a campaign.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::{BackendError, Hints};
use crate::lease::{ElectionName, FailureKind, Hint};
use crate::locked::locked;
use crate::random::jittered;

/// The first rest after a failure; later ones double, up to the longest.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);
/// After a fatal failure: a right that was missing may be given while this process runs.
const REST_WITHOUT_RIGHT: Duration = Duration::from_secs(60);
/// What was heard for so long was no flicker: the next rest is the first again.
const SETTLED: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Watchers {
    inner: Mutex<Inner>,
    changed: Notify,
    /// The runner, and those that are just ending.
    runners: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Inner {
    next_id: u64,
    generation: u64,
    listeners: HashMap<ElectionName, Vec<Ear>>,
    running: bool,
    stopped: bool,
}

#[derive(Debug)]
struct Ear {
    id: u64,
    unheard: Arc<Unheard>,
    /// What it was told last of the watch itself: that changes are heard, or that they are not.
    hears: Option<bool>,
}

/// One campaign that listens. Its drop ends the listening.
#[derive(Debug)]
pub(super) struct Listening {
    watchers: Arc<Watchers>,
    election: ElectionName,
    id: u64,
    unheard: Arc<Unheard>,
    hints: Hints,
}

/// What one campaign was not told yet.
#[derive(Debug, Default)]
struct Unheard {
    latest: Mutex<Latest>,
    added: Notify,
}

/// In the order in which they are told.
#[derive(Debug, Default)]
struct Latest {
    /// `Watching` or `Blind`.
    watch: Option<Hint>,
    free: bool,
    alive: Option<Hint>,
    /// Nobody will ever add anything: the runner is gone.
    end: Option<End>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    panicked: bool,
}

/// The right to be the only runner. Its drop lets another one begin.
#[derive(Debug)]
pub(super) struct Running {
    watchers: Arc<Watchers>,
    ended: bool,
    rest: Duration,
    /// Since when changes are heard without a break.
    hears_since: Option<Instant>,
    /// The store of which it was logged that changes are not heard.
    silent: Option<String>,
    /// The elections whose changes this instance has no right to hear, and when it asks for each again.
    refused: HashMap<ElectionName, Instant>,
}

impl Watchers {
    /// Adds a campaign; `run` becomes the runner if there is none.
    pub fn listen<Run>(
        self: &Arc<Self>,
        election: ElectionName,
        hints: Hints,
        run: impl FnOnce(Running) -> Run,
    ) -> Listening
    where
        Run: Future<Output = ()> + Send + 'static,
    {
        let listening = self.add(election, hints);
        let mut runners = locked(&self.runners);
        while runners.try_join_next().is_some() {}
        if let Some(running) = self.begin() {
            runners.spawn(run(running));
        }
        listening
    }

    /// No runner goes on, and none begins any more.
    pub fn stop(&self) {
        locked(&self.inner).stopped = true;
        self.changed.notify_one();
    }

    /// The same, and waits for it.
    pub async fn close(&self) {
        self.stop();
        let mut runners = std::mem::take(&mut *locked(&self.runners));
        runners.shutdown().await;
    }

    /// For a runner that is no task: whoever begins by [`Watchers::begin`] starts it.
    pub fn add(self: &Arc<Self>, election: ElectionName, hints: Hints) -> Listening {
        let mut inner = locked(&self.inner);
        let id = inner.next_id;
        inner.next_id += 1;
        inner.generation += 1;
        let unheard = Arc::<Unheard>::default();
        let ear = Ear {
            id,
            unheard: Arc::clone(&unheard),
            hears: None,
        };
        let listeners = inner.listeners.entry(election.clone());
        listeners.or_default().push(ear);
        self.changed.notify_one();
        Listening {
            watchers: Arc::clone(self),
            election,
            id,
            unheard,
            hints,
        }
    }

    /// `Some`: a runner must be started now.
    pub fn begin(self: &Arc<Self>) -> Option<Running> {
        let mut inner = locked(&self.inner);
        if inner.running || inner.stopped {
            return None;
        }
        inner.running = true;
        Some(Running {
            watchers: Arc::clone(self),
            ended: false,
            rest: FIRST_REST,
            hears_since: None,
            silent: None,
            refused: HashMap::new(),
        })
    }

    /// Whether a runner has nothing left to do.
    pub fn is_over(&self) -> bool {
        locked(&self.inner).is_over()
    }

    /// Waits until somebody begins or ends listening, or [`Watchers::close`]. For one waiter.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Changes whenever somebody begins or ends listening.
    pub fn generation(&self) -> u64 {
        locked(&self.inner).generation
    }

    /// Those that somebody listens to.
    pub fn elections(&self) -> Vec<ElectionName> {
        locked(&self.inner).listeners.keys().cloned().collect()
    }

    pub fn tell(&self, election: &ElectionName, hint: Hint) {
        let inner = locked(&self.inner);
        for ear in inner.listeners.get(election).into_iter().flatten() {
            ear.unheard.add(hint);
        }
    }

    pub fn tell_all(&self, hint: Hint) {
        for ear in locked(&self.inner).listeners.values().flatten() {
            ear.unheard.add(hint);
        }
    }

    /// Returns whether that was new to anybody.
    fn tell_of_watch(&self, election: Option<&ElectionName>, hears: bool) -> bool {
        let mut inner = locked(&self.inner);
        let listeners = &mut inner.listeners;
        match election {
            Some(election) => tell_ears(listeners.get_mut(election).into_iter(), hears),
            None => tell_ears(listeners.values_mut(), hears),
        }
    }
}

fn tell_ears<'a>(ears: impl Iterator<Item = &'a mut Vec<Ear>>, hears: bool) -> bool {
    let mut is_new = false;
    for ear in ears.flatten() {
        if ear.hears.replace(hears) != Some(hears) {
            ear.unheard
                .add(if hears { Hint::Watching } else { Hint::Blind });
            is_new = true;
        }
    }
    is_new
}

impl Inner {
    fn is_over(&self) -> bool {
        self.stopped || self.listeners.is_empty()
    }
}

impl Running {
    /// To be told what is heard.
    pub fn watchers(&self) -> &Arc<Watchers> {
        &self.watchers
    }

    /// Whether this runner has ended: nobody needs it any more. A later listener starts another one.
    pub fn has_ended(&mut self) -> bool {
        let mut inner = locked(&self.watchers.inner);
        if !self.ended && inner.is_over() {
            self.ended = true;
            inner.running = false;
        }
        self.ended
    }

    /// Changes of that election are surely heard from now on. Returns whether somebody did not know it yet,
    /// and was told so.
    pub fn hears(&mut self, election: &ElectionName) -> bool {
        self.hears_something();
        if self.refused.remove(election).is_some() {
            tracing::info!(%election, "changes of this election are heard of again");
        }
        self.watchers.tell_of_watch(Some(election), true)
    }

    /// The same of all elections.
    pub fn hears_all(&mut self) -> bool {
        self.hears_something();
        self.watchers.tell_of_watch(None, true)
    }

    fn hears_something(&mut self) {
        self.hears_since.get_or_insert_with(Instant::now);
        if let Some(store) = self.silent.take() {
            tracing::info!(store, "changes are heard of again");
        }
    }

    /// Changes of that election may not be heard, for this reason, which is logged once. Others are not
    /// concerned. It is time to ask again when [`Running::is_refused`] says no more that it is.
    pub fn refused(&mut self, election: &ElectionName, store: &str, error: &BackendError) {
        self.watchers.tell_of_watch(Some(election), false);
        let again = Instant::now() + jittered(REST_WITHOUT_RIGHT);
        if self.refused.insert(election.clone(), again).is_none() {
            tracing::info!(
                store,
                code = error.code,
                %election,
                "changes of this election are not heard of, so this instance asks at every interval: {error}"
            );
        }
    }

    /// Whether changes of that election may not be heard, and it is too early to ask again.
    pub fn is_refused(&self, election: &ElectionName) -> bool {
        let again = self.refused.get(election);
        again.is_some_and(|again| *again > Instant::now())
    }

    /// Waits until it is time to ask again for one that was refused. For ever, if there is none.
    pub async fn rested(&self) {
        let listened = self.watchers.elections();
        let waiting = self.refused.iter();
        let waiting = waiting.filter(|(election, _)| listened.contains(election));
        match waiting.map(|(_, again)| *again).min() {
            Some(again) => sleep_until(again).await,
            None => std::future::pending().await,
        }
    }

    /// Nothing is heard any more. Whoever believes otherwise is told so.
    pub fn interrupted(&mut self) {
        self.watchers.tell_of_watch(None, false);
        let since = self.hears_since.take();
        if since.is_some_and(|since| since.elapsed() >= SETTLED) {
            self.rest = FIRST_REST;
        }
    }

    /// Nothing is heard any more, for this reason, which is logged once. Rests until it is time to try again, or
    /// nobody listens: long after a fatal failure, which will not be over soon.
    pub async fn lost(&mut self, store: &str, error: &BackendError) {
        self.interrupted();
        if self.silent.is_none() {
            self.silent = Some(store.to_owned());
            tracing::info!(
                store,
                code = error.code,
                "changes are not heard of, so this instance asks at every interval: {error}"
            );
        }
        let rest = if error.kind == FailureKind::Fatal {
            REST_WITHOUT_RIGHT
        } else {
            let longer = (self.rest * 2).min(LONGEST_REST);
            std::mem::replace(&mut self.rest, longer)
        };
        let watchers = Arc::clone(&self.watchers);
        let nobody_listens = async {
            while !watchers.is_over() {
                watchers.changed().await;
            }
        };
        tokio::select! {
            () = sleep(jittered(rest)) => {}
            () = nobody_listens => {}
        }
    }
}

impl Drop for Running {
    /// Without a word before, it panicked, or was ended: nothing is heard any more, and those who listen begin anew.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let panicked = std::thread::panicking();
        let mut inner = locked(&self.watchers.inner);
        inner.running = false;
        for ear in inner.listeners.values().flatten() {
            ear.unheard.add(Hint::Blind);
            ear.unheard.end(panicked);
        }
    }
}

impl Listening {
    /// Tells the campaign, until it does not listen any more, or the runner is gone. If that panicked, so does this:
    /// whoever began the watch learns it.
    pub async fn forward(self) {
        // Only what can be told at once is taken, so that what waits is never outdated.
        while let Ok(room) = self.hints.reserve().await {
            let (hint, end) = {
                let mut latest = locked(&self.unheard.latest);
                (latest.take(), latest.end)
            };
            if let Some(hint) = hint {
                room.send(hint);
                continue;
            }
            if let Some(end) = end {
                if end.panicked {
                    // It was told on stderr where it happened; this is no second one.
                    resume_unwind(Box::new("whoever heard for this watch panicked"));
                }
                return;
            }
            drop(room);
            tokio::select! {
                () = self.hints.closed() => return,
                () = self.unheard.added.notified() => {}
            }
        }
    }
}

impl Unheard {
    fn add(&self, hint: Hint) {
        let mut latest = locked(&self.latest);
        match hint {
            Hint::Watching | Hint::Blind => latest.watch = Some(hint),
            Hint::Free => {
                latest.free = true;
                latest.alive = None;
            }
            Hint::Alive { .. } => latest.alive = Some(hint),
        }
        self.added.notify_one();
    }

    fn end(&self, panicked: bool) {
        locked(&self.latest).end = Some(End { panicked });
        self.added.notify_one();
    }
}

impl Latest {
    fn take(&mut self) -> Option<Hint> {
        let free = || std::mem::take(&mut self.free).then_some(Hint::Free);
        self.watch
            .take()
            .or_else(free)
            .or_else(|| self.alive.take())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut inner = locked(&self.watchers.inner);
        inner.generation += 1;
        if let Some(listeners) = inner.listeners.get_mut(&self.election) {
            listeners.retain(|ear| ear.id != self.id);
            if listeners.is_empty() {
                inner.listeners.remove(&self.election);
            }
        }
        self.watchers.changed.notify_one();
    }
}

/// For stores that watch each election by a request of its own: a [`Watchers`] for each.
#[derive(Debug, Default)]
pub(super) struct WatchersByElection(Mutex<ByElection>);

#[derive(Debug, Default)]
struct ByElection {
    watchers: HashMap<ElectionName, Arc<Watchers>>,
    closed: bool,
}

impl WatchersByElection {
    /// As [`Watchers::listen`]. `None`: `most` elections are watched already.
    pub fn listen<Run>(
        &self,
        election: ElectionName,
        hints: Hints,
        most: usize,
        run: impl FnOnce(Running) -> Run,
    ) -> Option<Listening>
    where
        Run: Future<Output = ()> + Send + 'static,
    {
        let mut all = locked(&self.0);
        let ByElection { watchers, closed } = &mut *all;
        if !watchers.contains_key(&election) {
            watchers.retain(|_, watchers| !watchers.is_over());
            if watchers.len() >= most {
                return None;
            }
        }
        let watchers = watchers.entry(election.clone()).or_default();
        if *closed {
            watchers.stop();
        }
        Some(watchers.listen(election, hints, run))
    }

    /// No runner goes on, and none begins any more.
    pub async fn close(&self) {
        let watchers = {
            let mut all = locked(&self.0);
            all.closed = true;
            std::mem::take(&mut all.watchers)
        };
        for watchers in watchers.into_values() {
            watchers.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::lease::Token;

    fn alive(token: u64) -> Hint {
        Hint::Alive {
            token: Token::new(token).unwrap(),
            valid_for: Duration::from_secs(1),
        }
    }

    #[tokio::test]
    async fn a_campaign_that_listens_late_hears_the_latest_of_each_kind() {
        let watchers = Arc::<Watchers>::default();
        let election = ElectionName::new("e").unwrap();
        let (hints, mut heard) = mpsc::channel(1);
        let listening = watchers.add(election.clone(), hints);
        let task = tokio::spawn(listening.forward());
        for (told, expected) in [
            (vec![alive(1), alive(2), alive(3)], vec![alive(3)]),
            (vec![Hint::Free, alive(3), Hint::Free], vec![Hint::Free]),
            (vec![Hint::Free, alive(4)], vec![Hint::Free, alive(4)]),
            (
                vec![alive(4), Hint::Blind, alive(4)],
                vec![Hint::Blind, alive(4)],
            ),
            (
                vec![Hint::Blind, Hint::Free, Hint::Watching],
                vec![Hint::Watching, Hint::Free],
            ),
        ] {
            // The queue is full, whatever comes now.
            watchers.tell(&election, alive(9));
            while heard.is_empty() {
                tokio::task::yield_now().await;
            }
            for _ in 0..50 {
                for hint in &told {
                    watchers.tell(&election, *hint);
                }
                tokio::task::yield_now().await;
            }
            assert_eq!(heard.recv().await, Some(alive(9)));
            let mut rest = Vec::new();
            while rest.len() < expected.len() {
                rest.push(heard.recv().await.unwrap());
            }
            // What was repeated is all told: the same in the same order, from the latest round.
            assert_eq!(rest, expected, "{told:?}");
        }
        drop(heard);
        task.await.unwrap();
        assert!(watchers.is_over());
    }

    #[tokio::test]
    async fn there_is_one_runner_at_a_time_and_where_one_panics_the_watch_ends() {
        let watchers = Arc::<Watchers>::default();
        let (hints, mut heard) = mpsc::channel(1);
        let listening = watchers.add(ElectionName::new("e").unwrap(), hints.clone());
        let mut first = watchers.begin().expect("the first");
        assert!(watchers.begin().is_none());
        assert!(!first.has_ended());
        drop(first);
        let ((), told) = tokio::join!(listening.forward(), heard.recv());
        assert_eq!(told, Some(Hint::Blind));
        let listening = watchers.add(ElectionName::new("e").unwrap(), hints);
        let mut second = watchers.begin().expect("the first has gone");
        drop(listening);
        assert!(second.has_ended());
        let mut third = watchers.begin().expect("the second has ended");
        drop(second);
        assert!(watchers.begin().is_none(), "the third is at work");
        watchers.close().await;
        assert!(third.has_ended());
        assert!(watchers.begin().is_none());
    }

    #[tokio::test]
    async fn a_runner_that_panics_ends_the_watches_by_a_panic_and_one_that_is_ended_does_not() {
        for panics in [true, false] {
            let watchers = Arc::<Watchers>::default();
            let (hints, mut heard) = mpsc::channel(1);
            let run = |running| async move {
                let _running = running;
                assert!(!panics, "panics as it should");
            };
            let listening = watchers.listen(ElectionName::new("e").unwrap(), hints, run);
            let watch = tokio::spawn(listening.forward());
            assert_eq!(heard.recv().await, Some(Hint::Blind));
            assert_eq!(watch.await.is_err_and(|error| error.is_panic()), panics);
        }
    }

    #[tokio::test]
    async fn each_campaign_is_told_once_that_changes_are_heard_and_once_that_they_are_not() {
        let watchers = Arc::<Watchers>::default();
        let [e, f] = ["e", "f"].map(|name| ElectionName::new(name).unwrap());
        let (hints, _heard) = mpsc::channel(1);
        let told = |listening: &Listening| locked(&listening.unheard.latest).take();
        let (one, two) = (
            watchers.add(e.clone(), hints.clone()),
            watchers.add(f, hints.clone()),
        );
        let mut running = watchers.begin().expect("the first");
        assert!(running.hears(&e));
        assert!(!running.hears(&e));
        let late = watchers.add(e.clone(), hints);
        assert!(running.hears(&e), "the late one");
        for (listening, hint) in [
            (&one, Some(Hint::Watching)),
            (&two, None),
            (&late, Some(Hint::Watching)),
        ] {
            assert_eq!(told(listening), hint);
            assert_eq!(told(listening), None);
        }
        running.interrupted();
        running.interrupted();
        for listening in [&one, &two, &late] {
            assert_eq!(told(listening), Some(Hint::Blind));
            assert_eq!(told(listening), None);
        }
        assert!(running.hears_all());
        assert_eq!(told(&two), Some(Hint::Watching));
    }

    #[tokio::test]
    async fn elections_are_watched_apart_up_to_a_number_and_none_when_all_is_closed() {
        let all = WatchersByElection::default();
        let [e, f] = ["e", "f"].map(|name| ElectionName::new(name).unwrap());
        let (hints, _heard) = mpsc::channel(1);
        let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let listen = |election: &ElectionName| {
            let begun = Arc::clone(&begun);
            all.listen(election.clone(), hints.clone(), 1, |running| async move {
                begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let _running = running;
                std::future::pending::<()>().await;
            })
        };
        let first = listen(&e).expect("room");
        let second = listen(&e).expect("the same");
        assert!(listen(&f).is_none(), "no room");
        drop((first, second));
        let third = listen(&f).expect("room");
        tokio::task::yield_now().await;
        assert_eq!(begun.load(std::sync::atomic::Ordering::SeqCst), 2);
        all.close().await;
        assert!(third.watchers.is_over());
        let late = listen(&e).expect("nobody is told anything");
        assert!(late.watchers.is_over());
        tokio::task::yield_now().await;
        assert_eq!(begun.load(std::sync::atomic::Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn rests_grow_until_changes_were_heard_for_a_while_and_end_when_nobody_listens() {
        let watchers = Arc::<Watchers>::default();
        let election = ElectionName::new("e").unwrap();
        let (hints, _heard) = mpsc::channel(1);
        let listening = watchers.add(election.clone(), hints);
        let mut running = watchers.begin().expect("the first");
        let away = BackendError::transient("unreachable", "it is away");
        let mut rests = Vec::new();
        for _ in 0..9 {
            // A connection that is taken and broken at once is no success.
            running.hears(&election);
            let began = Instant::now();
            running.lost("a store", &away).await;
            rests.push(began.elapsed());
        }
        assert!(
            rests[0] <= FIRST_REST && rests[8] >= LONGEST_REST / 2,
            "{rests:?}"
        );
        assert!(rests[8] <= LONGEST_REST, "{rests:?}");
        running.hears(&election);
        sleep(SETTLED).await;
        let began = Instant::now();
        running.lost("a store", &away).await;
        assert!(began.elapsed() <= FIRST_REST);

        let refused = BackendError::fatal("refused", "it has no right");
        let began = Instant::now();
        tokio::join!(running.lost("a store", &refused), async {
            sleep(Duration::from_secs(1)).await;
            drop(listening);
        });
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_election_that_may_not_be_heard_concerns_no_other_and_is_asked_for_again_after_the_rest()
     {
        let watchers = Arc::<Watchers>::default();
        let [e, f] = ["e", "f"].map(|name| ElectionName::new(name).unwrap());
        let (hints, _heard) = mpsc::channel(1);
        let told = |listening: &Listening| locked(&listening.unheard.latest).take();
        let one = watchers.add(e.clone(), hints.clone());
        let two = watchers.add(f.clone(), hints);
        let mut running = watchers.begin().expect("the first");
        let error = BackendError::fatal("refused", "it has no right");
        running.hears(&f);
        for _ in 0..3 {
            let began = Instant::now();
            running.refused(&e, "a store", &error);
            assert!(running.is_refused(&e) && !running.is_refused(&f));
            running.rested().await;
            assert!(!running.is_refused(&e));
            let rest = began.elapsed();
            assert!(
                rest <= REST_WITHOUT_RIGHT && rest >= REST_WITHOUT_RIGHT / 2,
                "{rest:?}"
            );
        }
        assert_eq!(told(&one), Some(Hint::Blind));
        assert_eq!((told(&one), told(&two)), (None, Some(Hint::Watching)));
        assert_eq!(told(&two), None);
        running.hears(&e);
        assert_eq!(told(&one), Some(Hint::Watching));

        // Nobody waits for one that nobody listens to.
        running.refused(&e, "a store", &error);
        drop(one);
        let long = tokio::time::timeout(2 * REST_WITHOUT_RIGHT, running.rested());
        assert!(long.await.is_err());
    }
}
