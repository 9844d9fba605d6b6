//! Watches over all elections of one directory for all followers of this process, on a thread of its
//! own: the thread that runs the elections sleeps until something happened.
//!
//! One round costs a few system calls, however many elections there are: a try of each leading
//! process's lock, and a look at the bell. Each election's record is looked at now and then only, to
//! see that a leader whose process lives still renews.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};

use super::alarm::Alarm;
use super::alive::Witness;
use super::record::Record;
use super::{Store, chain, file_name};
use crate::backend::watchers::{Listening, Running, Watchers};
use crate::backend::{BackendError, Hints};
use crate::clock::Moment;
use crate::lease::{ElectionName, Hint};

/// A hung leader's followers know since when its record has not changed to within this part of the lease.
const LOOKS_PER_LEASE: u32 = 20;
const SHORTEST_PACE: Duration = Duration::from_millis(10);
/// How often an election that nobody leads is looked at: the bell tells of a new leader before that.
const IDLE_LOOK: Duration = Duration::from_millis(250);
/// No file system that can hold the store tells times more coarsely.
const COARSEST_TIME: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Poller {
    store: Arc<Store>,
    watchers: Arc<Watchers>,
}

impl Poller {
    pub fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            watchers: Arc::default(),
        }
    }

    pub fn listen(self: &Arc<Self>, election: ElectionName, hints: Hints) -> Listening {
        let poller = Arc::clone(self);
        let run = |running| async move { poller.begin(running, in_a_thread).await };
        self.watchers.listen(election, hints, run)
    }

    /// Hands the watch over to its thread. While there is none to be had, the campaigns ask at every interval.
    async fn begin(
        self: Arc<Self>,
        mut running: Running,
        mut start: impl FnMut(Work) -> io::Result<()>,
    ) {
        while !running.has_ended() {
            let (hand_over, handed) = channel();
            let poller = Arc::clone(&self);
            let work = move || {
                if let Ok(running) = handed.recv() {
                    poller.run(running);
                }
            };
            let Err(error) = start(Box::new(work)) else {
                let _ = hand_over.send(running);
                return;
            };
            let store = format!("the embedded store in {}", self.store.root.display());
            let error = BackendError::transient(
                "threads",
                format!("this process was given no thread that could wait for changes ({error})"),
            );
            running.lost(&store, &error).await;
        }
    }

    pub fn stop(&self) {
        self.watchers.stop();
    }

    fn run(&self, mut running: Running) {
        let mut rounds = Rounds::new(&self.store, &self.watchers);
        while !running.has_ended() {
            rounds.next(&mut running);
            rounds.alarm.wait();
        }
    }
}

/// What a thread is to do.
type Work = Box<dyn FnOnce() + Send>;

fn in_a_thread(work: Work) -> io::Result<()> {
    let thread = thread::Builder::new().name("whenleader-file".into());
    thread.spawn(work).map(drop)
}

/// What the rounds remember.
struct Rounds<'a> {
    store: &'a Store,
    watchers: &'a Watchers,
    generation: u64,
    elections: HashMap<String, Watched>,
    witnesses: HashMap<String, Witness>,
    bell: Bell,
    alarm: Alarm,
}

struct Watched {
    name: ElectionName,
    dir: PathBuf,
    next_look: Moment,
    changed: Option<SystemTime>,
    version: (u64, u64),
    /// Names the leader's process, until it was seen dead.
    alive: Option<String>,
    pace: Duration,
}

impl<'a> Rounds<'a> {
    fn new(store: &'a Store, watchers: &'a Watchers) -> Self {
        Self {
            store,
            watchers,
            generation: 0,
            elections: HashMap::new(),
            witnesses: HashMap::new(),
            bell: Bell::at_end(store.bell()),
            alarm: Alarm::new(),
        }
    }

    fn next(&mut self, running: &mut Running) {
        self.follow_watchers(running);
        self.alarm.set(&self.bell.path);
        match self.bell.listen() {
            Rung::No => {}
            Rung::For(names) => {
                for name in names {
                    if let Some(watched) = self.elections.get_mut(&name) {
                        watched.next_look = Moment::ORIGIN;
                        watched.changed = None;
                    }
                }
            }
            Rung::Unclear => {
                for watched in self.elections.values_mut() {
                    watched.next_look = Moment::ORIGIN;
                }
            }
        }
        self.see_deaths();
        self.look_at_records();
    }

    /// Takes up elections that are newly listened to, and drops the others.
    fn follow_watchers(&mut self, running: &mut Running) {
        let generation = self.watchers.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let mut before = std::mem::take(&mut self.elections);
        for name in self.watchers.elections() {
            let key = file_name(&name);
            let watched = match before.remove(&key) {
                Some(watched) if !running.hears(&name) => watched,
                // Whoever joined has heard nothing yet.
                _ => {
                    running.hears(&name);
                    Watched::new(name.clone(), self.store.dir_of(&name))
                }
            };
            self.elections.insert(key, watched);
        }
    }

    fn see_deaths(&mut self) {
        let (elections, watchers) = (&mut self.elections, self.watchers);
        self.witnesses.retain(|process, witness| {
            if !witness.saw_death() {
                return true;
            }
            for watched in elections.values_mut() {
                if watched.alive.as_ref() == Some(process) {
                    watched.alive = None;
                    watchers.tell(&watched.name, Hint::Free);
                }
            }
            false
        });
    }

    fn look_at_records(&mut self) {
        let now = self.store.clock.now();
        let mut changed = false;
        for watched in self.elections.values_mut() {
            if watched.next_look > now {
                continue;
            }
            changed |= watched.look(self.store, self.watchers);
            watched.next_look = now + watched.pace;
        }
        if changed {
            self.choose_witnesses();
        }
    }

    /// One for each process that leads something.
    fn choose_witnesses(&mut self) {
        let leading = || self.elections.values().filter_map(|w| w.alive.as_ref());
        self.witnesses
            .retain(|process, _| leading().any(|leading| leading == process));
        for process in self.elections.values().filter_map(|w| w.alive.as_ref()) {
            if !self.witnesses.contains_key(process)
                && let Some(witness) = Witness::of(&self.store.root, process)
            {
                self.alarm.set(witness.path());
                self.witnesses.insert(process.clone(), witness);
            }
        }
    }
}

impl Watched {
    fn new(name: ElectionName, dir: PathBuf) -> Self {
        Self {
            name,
            dir,
            next_look: Moment::ORIGIN,
            changed: None,
            version: (0, 0),
            alive: None,
            pace: IDLE_LOOK,
        }
    }

    /// Whether the record changed.
    fn look(&mut self, store: &Store, watchers: &Watchers) -> bool {
        // A directory's own time changes with every version, and costs one call to read.
        let changed = fs::metadata(&self.dir)
            .and_then(|meta| meta.modified())
            .ok();
        if changed.is_some() && changed == self.changed {
            return false;
        }
        let Ok(Some(newest)) = chain::newest(&self.dir) else {
            return false;
        };
        // Times of directories are coarse: another change may follow within the same one.
        self.changed = changed.filter(|at| at.elapsed().is_ok_and(|age| age > COARSEST_TIME));
        let version = newest.identity();
        if version == self.version {
            return false;
        }
        self.version = version;
        self.alive = None;
        match newest.record {
            Ok(Record::Held(held)) => {
                let remaining = store.observe(&self.name, version, held.duration);
                watchers.tell(
                    &self.name,
                    Hint::Alive {
                        token: held.leader.token,
                        valid_for: remaining,
                    },
                );
                self.pace = (held.duration / LOOKS_PER_LEASE).max(SHORTEST_PACE);
                self.alive = held.alive;
            }
            Ok(Record::Free { .. }) => {
                self.pace = IDLE_LOOK;
                watchers.tell(&self.name, Hint::Free);
            }
            Err(_) => self.pace = IDLE_LOOK,
        }
        true
    }
}

/// The reading end of the bell.
struct Bell {
    path: PathBuf,
    read_to: u64,
    modified: Option<SystemTime>,
}

enum Rung {
    No,
    For(Vec<String>),
    /// It was emptied since, so anything may have changed.
    Unclear,
}

impl Bell {
    fn at_end(path: PathBuf) -> Self {
        // A bell that is there can be waited for. Without it, changes are seen a little later.
        let _ = OpenOptions::new().append(true).create(true).open(&path);
        let meta = fs::metadata(&path).ok();
        Self {
            read_to: meta.as_ref().map_or(0, fs::Metadata::len),
            modified: meta.and_then(|meta| meta.modified().ok()),
            path,
        }
    }

    fn listen(&mut self) -> Rung {
        let meta = match fs::metadata(&self.path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.read_to = 0;
                return Rung::No;
            }
            Err(_) => return Rung::No,
        };
        let (length, modified) = (meta.len(), meta.modified().ok());
        if length == self.read_to && modified == self.modified {
            return Rung::No;
        }
        self.modified = modified;
        if length <= self.read_to {
            self.read_to = length;
            return Rung::Unclear;
        }
        let Some(text) = self.read_new() else {
            return Rung::Unclear;
        };
        // A line that is not complete yet is read again at the next round.
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        self.read_to += complete as u64;
        Rung::For(text[..complete].lines().map(str::to_owned).collect())
    }

    fn read_new(&self) -> Option<String> {
        let mut file = File::open(&self.path).ok()?;
        file.seek(SeekFrom::Start(self.read_to)).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
    use tracing_subscriber::util::SubscriberInitExt;

    use super::super::FileStore;
    use super::*;
    use crate::clock::SystemClock;

    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            let is_ours = event.metadata().target().starts_with("whenleader");
            self.0.fetch_add(usize::from(is_ours), Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_thread_campaigns_are_blind_it_is_told_once_and_tried_again_ever_more_rarely()
    {
        let lines = Lines::default();
        let _logging = tracing_subscriber::registry()
            .with(lines.clone())
            .set_default();
        let root = std::env::temp_dir().join(format!("whenleader-thread-{}", std::process::id()));
        let store = FileStore::new(root, true, false, Arc::new(SystemClock));
        let poller = &store.poller;
        let (hints, mut hinted) = mpsc::channel(1);
        let tries = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (begun, poller_too) = (Arc::clone(&tries), Arc::clone(poller));
        let run = |running| async move {
            let start = |work| {
                let mut tries = begun.lock().unwrap();
                tries.push(Instant::now());
                if tries.len() < 12 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                in_a_thread(work)
            };
            poller_too.begin(running, start).await;
        };
        let listening = (poller.watchers).listen(ElectionName::new("e").unwrap(), hints, run);
        let watch = tokio::spawn(listening.forward());
        assert_eq!(hinted.recv().await, Some(Hint::Blind));
        assert_eq!(hinted.recv().await, Some(Hint::Watching));
        let tries = tries.lock().unwrap().clone();
        let rests: Vec<_> = tries.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(rests[0] < Duration::from_millis(200), "{rests:?}");
        assert!(rests[10] > Duration::from_secs(2), "{rests:?}");
        assert!(!watch.is_finished(), "it is still the same watch");
        // That nothing is heard, and that it is again: the latter from the thread, which has no subscriber here.
        assert_eq!(lines.0.load(Ordering::SeqCst), 1);
        watch.abort();
        poller.stop();
    }
}
