//! The embedded store: a directory that the processes of one machine share.
//!
//! | in the directory | |
//! |---|---|
//! | `e-<election>/<version>` | the record, one file for each write: see `chain` |
//! | `<process>.alive` | locked while that process lives: see `alive` |
//! | `bell` | a line for each change that others should hear of at once |
//! | `<process>-<n>.draft` | a version that has not got its number yet |
//!
//! A token is larger than every earlier one, at least its term's first version and the time in
//! microseconds: so tokens grow also when somebody deleted records.
//!
//! A lease is free when its record says so, when its leader's process is dead, or when the record did
//! not change for its whole duration by the observer's own clock. No time stamp is ever compared. A process that
//! holds leases for others names itself in none: they outlive it.

mod alarm;
mod alive;
mod chain;
mod filesystem;
mod poller;
mod record;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;

use self::alive::Alive;
use self::chain::{Drafts, Newest, Published, WriteError};
use self::poller::Poller;
use self::record::{Held, Record, Unreadable};
use super::{
    Attempt, Backend, BackendError, BadStore, Capabilities, Hints, StoreOptions, UNSUITABLE, Watch,
    percent_decoded, token_floor,
};
use crate::clock::Clock;
use crate::lease::{ElectionName, FailureKind, Leader, Outcome, Owner, Token};
use crate::locked::locked;
use crate::observation::Observation;
use crate::random::random_u64;

/// The directory unless the URL names one.
const DEFAULT_DIR: &str = ".whenleader";
/// The longest name that every file system takes.
const LONGEST_FILE_NAME: usize = 255;
const ELECTION_PREFIX: &str = "e-";
const BELL: &str = "bell";
/// The bell is emptied when it has grown to this.
const LONGEST_BELL: u64 = 64 * 1024;
const ELSEWHERE: &str = "Choose a directory on a local disk that this process may write in with \"store\": \
    \"file:<directory>\", or a store for several machines, such as \"redis://<host>:6379\"";
/// How many operations run at once. A thousand elections that renew in one moment need no thousand
/// threads.
const WORKERS: usize = 4;
/// How often a write begins again because somebody else's came first. Each time somebody made
/// progress, and mostly that decides the matter.
const CONTENTION_LIMIT: u32 = 16;

/// See the module's description.
#[derive(Debug)]
pub struct FileStore {
    store: Arc<Store>,
    poller: Arc<Poller>,
    workers: Arc<Semaphore>,
}

/// Makes the store of a `file:` URL. `file:<path>` takes the path as it is; `file://<path>` is a proper
/// URL with percent-encoding.
pub(super) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let path = url.split_once(':').map_or("", |(_, path)| path);
    let (path, force) = match path.strip_suffix("?force") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let path = match path.strip_prefix("//") {
        None if path.is_empty() => DEFAULT_DIR.to_owned(),
        None => path.to_owned(),
        Some(path) if path.starts_with('/') => percent_decoded(path).ok_or_else(|| {
            BadStore::url(
                "percent-encode its path properly, or be file:<path> with the path as it is",
            )
        })?,
        Some(_) => {
            return Err(BadStore::url(
                "be file:<directory> or file:///<directory>: a file URL names no host",
            ));
        }
    };
    if path.starts_with('~') {
        return Err(BadStore::url(
            "have its directory written out: only a shell knows what ~ is. ${HOME} works",
        ));
    }
    if path.contains('\0') {
        return Err(BadStore::url("not hold a NUL character"));
    }
    Ok(Arc::new(FileStore::new(
        options.base_dir.join(path),
        force,
        options.for_others,
        clock,
    )))
}

impl FileStore {
    /// `force` accepts a file system whose locks are known to be unsafe.
    fn new(root: PathBuf, force: bool, for_others: bool, clock: Arc<dyn Clock>) -> Self {
        let store = Arc::new(Store {
            root,
            force,
            for_others,
            clock,
            alive: Mutex::default(),
            drafts: Drafts::default(),
            seen: Mutex::default(),
            peeked: Mutex::default(),
            published: Mutex::default(),
        });
        Self {
            poller: Arc::new(Poller::new(Arc::clone(&store))),
            workers: Arc::new(Semaphore::new(WORKERS)),
            store,
        }
    }

    /// Files are written on a thread that may block: the one that runs the elections must not.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store, &Wanted) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let asking = Asking::default();
        let wanted = asking.wanted.clone();
        let worker = Arc::clone(&self.workers).acquire_owned().await;
        let store = Arc::clone(&self.store);
        let task = move || {
            // Kept until the work is done, also when nobody waits for it any more.
            let _worker = worker;
            work(&store, &wanted)
        };
        tokio::task::spawn_blocking(task)
            .await
            .unwrap_or_else(|error| {
                Err(BackendError::ambiguous(
                    "internal",
                    format!("the embedded store failed: {error}"),
                ))
            })
    }
}

#[async_trait]
impl Backend for FileStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: Duration::from_millis(1),
            notifies: true,
        }
    }

    fn describe(&self) -> String {
        format!("the embedded store in {}", self.store.root.display())
    }

    fn remark(&self) -> Option<&'static str> {
        Some("it elects among the processes of this machine only")
    }

    fn check_name(&self, election: &ElectionName) -> Result<(), String> {
        let length = ELECTION_PREFIX.len() + file_name(election).len();
        if length > LONGEST_FILE_NAME {
            return Err(format!(
                "be shorter for the embedded store, by {} bytes: it becomes the name of a directory, \
                 where a capital letter and any sign but - and _ takes three bytes",
                length - LONGEST_FILE_NAME
            ));
        }
        Ok(())
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        self.run(|store, _| store.prepare()).await
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<Outcome, BackendError> {
        let (election, owner) = (attempt.election.clone(), attempt.owner.clone());
        let (duration, term) = (attempt.duration, attempt.term);
        self.run(move |store, wanted| store.attempt(&election, &owner, duration, term, wanted))
            .await
    }

    async fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
    ) -> Result<bool, BackendError> {
        let (election, owner) = (election.clone(), owner.clone());
        self.run(move |store, wanted| store.release(&election, &owner, token, wanted))
            .await
    }

    async fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let election = election.clone();
        self.run(move |store, _| store.peek(&election)).await
    }

    fn watch(self: Arc<Self>, election: ElectionName, hints: Hints) -> Option<Watch> {
        Some(Box::pin(async move {
            self.poller.listen(election, hints).forward().await;
        }))
    }

    async fn close(&self) {
        self.poller.stop();
        let _ = self
            .run(|store, _| {
                store.lock_alive().take();
                Ok(())
            })
            .await;
    }
}

/// Whether somebody still waits for an operation. What was given up must not write any more: a campaign
/// that wakes late would take over what the same candidate's next one won.
#[derive(Debug, Clone)]
struct Wanted(Arc<AtomicBool>);

impl Wanted {
    fn check(&self) -> Result<(), BackendError> {
        if self.0.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(BackendError::transient(
            "given-up",
            "nobody waits for this operation any more, so it wrote nothing",
        ))
    }
}

/// Whoever waits. Its drop gives the operation up.
#[derive(Debug)]
struct Asking {
    wanted: Wanted,
}

impl Default for Asking {
    fn default() -> Self {
        Self {
            wanted: Wanted(Arc::new(AtomicBool::new(true))),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.wanted.0.store(false, Ordering::SeqCst);
    }
}

/// What attempts and the poller share.
#[derive(Debug)]
struct Store {
    root: PathBuf,
    force: bool,
    /// See [`StoreOptions::for_others`].
    for_others: bool,
    clock: Arc<dyn Clock>,
    alive: Mutex<Option<Arc<Alive>>>,
    drafts: Drafts,
    seen: Mutex<HashMap<ElectionName, Observation<(u64, u64)>>>,
    /// What peeking saw. Apart, since peeking takes no part: no takeover may rest on it.
    peeked: Mutex<HashMap<ElectionName, Observation<(u64, u64)>>>,
    /// The version that this process wrote last.
    published: Mutex<HashMap<ElectionName, u64>>,
}

impl Store {
    fn prepare(&self) -> Result<(), BackendError> {
        make_dir(&self.root).map_err(|error| {
            let mut failed = self.failed("be created", &error);
            // Something else has that name, or the place takes no directories.
            if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) {
                failed.kind = FailureKind::Fatal;
                failed.code = UNSUITABLE;
                failed.message.push_str(". ");
                failed.message.push_str(ELSEWHERE);
            }
            failed
        })?;
        if !self.force {
            filesystem::check(&self.root).map_err(|name| {
                BackendError::fatal(
                    UNSUITABLE,
                    format!(
                        "{} is on a network file system ({name}), whose locks do not hold: the embedded \
                         store serves the processes of one machine only. Choose a local directory with \
                         \"store\": \"file:<directory>\" (or ?force behind it, if you know better), or a \
                         store for several machines, such as \"redis://<host>:6379\"",
                        self.root.display()
                    ),
                )
            })?;
        }
        let alive = self
            .alive()
            .map_err(|error| self.failed("be written", &error))?;
        if !alive::locks_work(&alive).map_err(|error| self.failed("be locked", &error))? {
            return Err(self.unsupported("two handles can hold the same lock"));
        }
        self.check_links(&alive)?;
        self.sweep();
        Ok(())
    }

    /// A version must not be written twice: that is what the election rests on.
    fn check_links(&self, alive: &Alive) -> Result<(), BackendError> {
        let [draft, link] = [(), ()].map(|()| self.drafts.path(&self.root, alive.name()));
        let linked = fs::write(&draft, b"").and_then(|()| fs::hard_link(&draft, &link));
        let again = fs::hard_link(&draft, &link);
        let _ = fs::remove_file(&draft);
        let _ = fs::remove_file(&link);
        match (linked, again) {
            (Err(error), _) if is_lasting(&error) => Err(self.failed("be written", &error)),
            (Err(error), _) if error.kind() == ErrorKind::StorageFull => {
                Err(self.failed("be written", &error))
            }
            (Err(error), _) => Err(self.unsupported(&format!("hard links do not work ({error})"))),
            (Ok(()), Err(error)) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            (Ok(()), _) => Err(self.unsupported("a hard link can replace another file")),
        }
    }

    /// Removes what dead processes left. An alive file stays while a record names it: it is the proof.
    fn sweep(&self) {
        let Ok(mut dead) = alive::all_dead(&self.root) else {
            return;
        };
        let Ok(entries) = fs::read_dir(&self.root) else {
            return;
        };
        let mut drafts = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(ELECTION_PREFIX) && !dead.is_empty() {
                if let Ok(Some(newest)) = chain::newest(&entry.path()) {
                    let named = match newest.record {
                        Ok(record) => Some(record),
                        Err(_) => chain::newest_readable(&entry.path(), newest.version),
                    };
                    if let Some(Record::Held(held)) = named {
                        dead.retain(|name| Some(name) != held.alive.as_ref());
                    }
                }
            } else if name.ends_with(Drafts::SUFFIX) {
                drafts.push((name.to_owned(), entry.path()));
            }
        }
        for name in &dead {
            for (_, path) in drafts.iter().filter(|(draft, _)| draft.starts_with(name)) {
                // Of a version, or of an election's directory.
                let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
            }
            alive::bury(&self.root, name);
        }
    }

    fn attempt(
        &self,
        election: &ElectionName,
        owner: &Owner,
        duration: Duration,
        term: Option<Token>,
        wanted: &Wanted,
    ) -> Result<Outcome, BackendError> {
        let dir = self.dir_of(election);
        for _ in 0..CONTENTION_LIMIT {
            wanted.check()?;
            let Some(newest) = self.newest(election)? else {
                if term.is_some() {
                    return Ok(Outcome::Other {
                        leader: None,
                        remaining: None,
                    });
                }
                self.create(&dir)?;
                continue;
            };
            let (token, since) = match term {
                // Somebody deleted what we wrote: another may lead by now, and must be let.
                Some(_) if self.went_back(election, newest.version) => {
                    return Ok(Outcome::Other {
                        leader: None,
                        remaining: None,
                    });
                }
                Some(token) => match &newest.record {
                    Ok(record @ Record::Held(held)) if record.is_term(owner, token) => {
                        (token, held.since)
                    }
                    _ => return Ok(self.denied(election, &newest, duration)),
                },
                // What was written for us without our hearing of it is ours to take.
                None if is_owned_by(&newest, owner)
                    || self.remaining(election, &newest, duration).is_none() =>
                {
                    let version = newest.version + 1;
                    let token = version
                        .max(token_floor())
                        .max(last_token(&dir, &newest) + 1);
                    (Token::new(token).ok_or_else(|| used_up(&dir))?, version)
                }
                None => return Ok(self.denied(election, &newest, duration)),
            };
            let left = self.remaining(election, &newest, duration);
            let duration = match left {
                Some(left) if self.for_others => duration.max(left),
                _ => duration,
            };
            let alive = self
                .alive()
                .map_err(|error| self.failed("be written", &error))?;
            let record = Record::Held(Held {
                leader: Leader {
                    owner: owner.clone(),
                    token,
                },
                duration,
                alive: (!self.for_others).then(|| alive.name().to_owned()),
                since,
                stamp: random_u64(),
            });
            let stamp = record.stamp();
            // A power cut must not make a token appear twice. A renewal that it undoes does no harm.
            let begins = term.is_none();
            match self.publish(&dir, &alive, newest.version, &record, begins, wanted)? {
                Published::Lost => {}
                Published::Won(version) => {
                    locked(&self.published).insert(election.clone(), version);
                    self.observe(election, (version, stamp), duration);
                    if begins {
                        self.ring(election);
                    }
                    return Ok(Outcome::Held {
                        token,
                        valid_for: duration,
                    });
                }
            }
        }
        Err(self.too_busy())
    }

    fn release(
        &self,
        election: &ElectionName,
        owner: &Owner,
        token: Token,
        wanted: &Wanted,
    ) -> Result<bool, BackendError> {
        let dir = self.dir_of(election);
        for _ in 0..CONTENTION_LIMIT {
            wanted.check()?;
            let Some(newest) = self.newest(election)? else {
                return Ok(false);
            };
            if !matches!(&newest.record, Ok(record) if record.is_term(owner, token)) {
                return Ok(false);
            }
            let alive = self
                .alive()
                .map_err(|error| self.failed("be written", &error))?;
            let record = Record::Free {
                last: Some(token),
                stamp: random_u64(),
            };
            if let Published::Won(_) =
                self.publish(&dir, &alive, newest.version, &record, false, wanted)?
            {
                self.ring(election);
                return Ok(true);
            }
        }
        Err(self.too_busy())
    }

    fn peek(&self, election: &ElectionName) -> Result<Option<Leader>, BackendError> {
        let Some(newest) = self.newest(election)? else {
            return Ok(None);
        };
        let received = self.clock.now();
        let identity = newest.identity();
        let Ok(Record::Held(held)) = newest.record else {
            return Ok(None);
        };
        if self.is_orphan(&held) {
            return Ok(None);
        }
        let known = locked(&self.seen)
            .get(election)
            .is_some_and(|seen| seen.expired(received) == Some(&identity));
        let mut peeked = locked(&self.peeked);
        let observation = peeked.entry(election.clone()).or_default();
        let remaining = observation.observe(identity, held.duration, received);
        Ok(Some(held.leader).filter(|_| !known && !remaining.is_zero()))
    }

    fn newest(&self, election: &ElectionName) -> Result<Option<Newest>, BackendError> {
        chain::newest(&self.dir_of(election)).map_err(|error| self.failed("be read", &error))
    }

    /// Whether a version that this process wrote is gone, without a later one.
    fn went_back(&self, election: &ElectionName, newest: u64) -> bool {
        let published = locked(&self.published);
        published.get(election).is_some_and(|last| newest < *last)
    }

    /// Call this after the read. How long the lease still runs if nothing changes it.
    fn observe(
        &self,
        election: &ElectionName,
        version: (u64, u64),
        duration: Duration,
    ) -> Duration {
        let received = self.clock.now();
        let mut seen = locked(&self.seen);
        let observation = seen.entry(election.clone()).or_default();
        observation.observe(version, duration, received)
    }

    fn denied(&self, election: &ElectionName, newest: &Newest, own_duration: Duration) -> Outcome {
        Outcome::Other {
            leader: leader_of(newest).cloned(),
            remaining: self.remaining(election, newest, own_duration),
        }
    }

    /// How long the lease still runs by our observation; `None`: it is free. `own_duration` counts for
    /// a record that does not tell its own.
    fn remaining(
        &self,
        election: &ElectionName,
        newest: &Newest,
        own_duration: Duration,
    ) -> Option<Duration> {
        let duration = match &newest.record {
            Ok(Record::Free { .. }) => return None,
            Ok(Record::Held(held)) if self.is_orphan(held) => return None,
            Ok(Record::Held(held)) => held.duration,
            // A renewal that a power cut undid. The term's first version was made to survive it.
            Err(Unreadable::Torn) => {
                match chain::newest_readable(&self.dir_of(election), newest.version) {
                    Some(Record::Held(held)) if self.is_orphan(&held) => {
                        return None;
                    }
                    _ => own_duration,
                }
            }
            Err(Unreadable::Strange) => own_duration,
        };
        let remaining = self.observe(election, newest.identity(), duration);
        Some(remaining).filter(|remaining| !remaining.is_zero())
    }

    fn create(&self, dir: &Path) -> Result<(), BackendError> {
        // Somebody may have deleted the whole directory.
        make_dir(&self.root)
            .and_then(|()| self.alive())
            .and_then(|alive| {
                let draft = self.drafts.path(&self.root, alive.name());
                chain::create(&self.root, dir, &draft)
            })
            .map_err(|error| self.failed("be written", &error))
    }

    fn publish(
        &self,
        dir: &Path,
        alive: &Alive,
        after: u64,
        record: &Record,
        durable: bool,
        wanted: &Wanted,
    ) -> Result<Published, BackendError> {
        let draft = self.drafts.path(&self.root, alive.name());
        chain::publish(dir, &draft, after, record, durable, wanted).map_err(|error| match error {
            WriteError::Before(error) => self.failed("be written", &error),
            WriteError::GivenUp(error) => error,
            WriteError::After(error) => BackendError::ambiguous(
                "io",
                format!("a write in {} may have failed: {error}", dir.display()),
            ),
        })
    }

    /// Whether its leader's process is dead.
    fn is_orphan(&self, held: &Held) -> bool {
        let alive = held.alive.as_ref();
        alive.is_some_and(|name| alive::is_dead(&self.root, name))
    }

    /// This process's lock, made anew if somebody deleted its file: without it our death would be
    /// noticed only when the lease has expired.
    fn alive(&self) -> io::Result<Arc<Alive>> {
        let mut alive = self.lock_alive();
        if let Some(alive) = &*alive
            && alive.is_in_place()
        {
            return Ok(Arc::clone(alive));
        }
        make_dir(&self.root)?;
        let begun = Arc::new(Alive::begin(&self.root)?);
        *alive = Some(Arc::clone(&begun));
        Ok(begun)
    }

    fn lock_alive(&self) -> MutexGuard<'_, Option<Arc<Alive>>> {
        locked(&self.alive)
    }

    /// Tells the pollers of all processes that this election changed. They look by themselves too, so
    /// nothing depends on it.
    fn ring(&self, election: &ElectionName) {
        let rung = || -> io::Result<()> {
            let mut bell = OpenOptions::new()
                .append(true)
                .create(true)
                .open(self.bell())?;
            if bell.metadata()?.len() >= LONGEST_BELL {
                bell.set_len(0)?;
            }
            // One write, so that the lines of several processes do not mix.
            bell.write_all(format!("{}\n", file_name(election)).as_bytes())
        };
        if let Err(error) = rung() {
            tracing::debug!(%election, %error, "the bell of the embedded store could not be rung");
        }
    }

    fn bell(&self) -> PathBuf {
        self.root.join(BELL)
    }

    fn dir_of(&self, election: &ElectionName) -> PathBuf {
        self.root
            .join(format!("{ELECTION_PREFIX}{}", file_name(election)))
    }

    fn failed(&self, what: &str, error: &io::Error) -> BackendError {
        let dir = self.root.display();
        let message = format!("the embedded store's directory {dir} cannot {what}: {error}");
        if is_lasting(error) {
            let code = match error.kind() {
                ErrorKind::ReadOnlyFilesystem => "read-only",
                ErrorKind::Unsupported => UNSUITABLE,
                _ => "refused",
            };
            BackendError::fatal(code, format!("{message}. {ELSEWHERE}"))
        } else {
            let code = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "full",
                _ => "io",
            };
            BackendError::transient(code, message)
        }
    }

    fn unsupported(&self, why: &str) -> BackendError {
        BackendError::fatal(
            UNSUITABLE,
            format!(
                "the embedded store cannot work in {}: {why}. {ELSEWHERE}",
                self.root.display()
            ),
        )
    }

    fn too_busy(&self) -> BackendError {
        BackendError::transient(
            "conflict",
            format!(
                "{} others wrote first, one after the other, in {}",
                CONTENTION_LIMIT,
                self.root.display()
            ),
        )
    }
}

fn used_up(dir: &Path) -> BackendError {
    BackendError::fatal(
        "bad-record",
        format!(
            "{} holds a version with the largest number that there is, which this store never wrote. \
             Stop all instances and delete that directory",
            dir.display()
        ),
    )
}

/// The token of the last term that can be read; 0: there was none.
fn last_token(dir: &Path, newest: &Newest) -> u64 {
    let token = match &newest.record {
        Ok(record) => record.token(),
        Err(_) => chain::newest_readable(dir, newest.version).and_then(|record| record.token()),
    };
    token.map_or(0, Token::number)
}

fn leader_of(newest: &Newest) -> Option<&Leader> {
    match &newest.record {
        Ok(Record::Held(held)) => Some(&held.leader),
        _ => None,
    }
}

/// An earlier write of this very candidate whose answer never came.
fn is_owned_by(newest: &Newest, owner: &Owner) -> bool {
    leader_of(newest).is_some_and(|leader| leader.owner == *owner)
}

fn make_dir(root: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(root)
}

/// Whether somebody must mend something before it can work.
fn is_lasting(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::NotADirectory
            | ErrorKind::Unsupported
    )
}

/// An election's name as a file name, told apart also where capital and small letters are the same, or
/// where one letter can be written in two ways.
fn file_name(election: &ElectionName) -> String {
    let bytes = election.as_str().as_bytes();
    let mut name = String::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(*byte)),
            // Windows drops a dot at the end.
            b'.' if at + 1 < bytes.len() => name.push('.'),
            _ => {
                let _ = write!(name, "%{byte:02x}");
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn name_of(election: &str) -> String {
        file_name(&ElectionName::new(election).unwrap())
    }

    #[test]
    fn two_elections_never_share_a_directory_even_where_case_does_not_count() {
        let names = [
            "leader", "Leader", "LEADER", "%4c", "a/b", "a%2fb", "..", ".", "a.", "a", "🦀", "é",
            "e\u{301}", "a b", "con",
        ];
        let mut files: Vec<_> = names
            .iter()
            .map(|name| name_of(name).to_lowercase())
            .collect();
        files.sort();
        files.dedup();
        assert_eq!(files.len(), names.len());
        assert!(
            files
                .iter()
                .all(|file| file.bytes().all(|b| b.is_ascii() && b != b'/'))
        );
    }

    #[test]
    fn what_was_given_up_writes_nothing_more_however_late_it_wakes() {
        let root = std::env::temp_dir().join(format!("whenleader-late-{}", std::process::id()));
        let store = FileStore::new(
            root.clone(),
            true,
            false,
            Arc::new(crate::clock::SystemClock),
        );
        let election = ElectionName::new("e").unwrap();
        let owner = Owner {
            instance: crate::lease::InstanceId::new("i").unwrap(),
            nonce: 1,
        };
        let attempt = |term| Attempt {
            election: &election,
            owner: &owner,
            duration: LONG,
            term,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let win = || match runtime.block_on(store.attempt(&attempt(None))).unwrap() {
            Outcome::Held { token, .. } => token,
            outcome @ Outcome::Other { .. } => panic!("{outcome:?}"),
        };
        runtime.block_on(store.prepare()).unwrap();
        let token = win();
        for late in ["campaign", "renewal", "release"] {
            let before = chain::newest(&store.store.dir_of(&election))
                .unwrap()
                .unwrap();
            // It has read the record, and waits for this before it writes.
            let latch = store.store.lock_alive();
            let given_up = runtime.block_on(async {
                let patience = Duration::from_millis(100);
                match late {
                    "campaign" => tokio::time::timeout(patience, store.attempt(&attempt(None)))
                        .await
                        .is_err(),
                    "renewal" => {
                        tokio::time::timeout(patience, store.attempt(&attempt(Some(token))))
                            .await
                            .is_err()
                    }
                    _ => tokio::time::timeout(patience, store.release(&election, &owner, token))
                        .await
                        .is_err(),
                }
            });
            assert!(given_up, "{late}");
            drop(latch);
            // All workers are free again: it has ended.
            let all = u32::try_from(WORKERS).unwrap();
            drop(runtime.block_on(store.workers.acquire_many(all)).unwrap());
            let after = chain::newest(&store.store.dir_of(&election))
                .unwrap()
                .unwrap();
            assert_eq!(after.version, before.version, "{late}");
        }
        assert!(win() > token);
        fs::remove_dir_all(&root).unwrap();
    }

    #[tokio::test]
    async fn a_store_that_is_closed_with_a_term_unreleased_does_not_look_like_a_dead_process() {
        let root =
            std::env::temp_dir().join(format!("whenleader-unreleased-{}", std::process::id()));
        let election = ElectionName::new("e").unwrap();
        let owner = |nonce| Owner {
            instance: crate::lease::InstanceId::new("i").unwrap(),
            nonce,
        };
        let open = || {
            FileStore::new(
                root.clone(),
                true,
                false,
                Arc::new(crate::clock::SystemClock),
            )
        };
        for released in [true, false] {
            let (first, second) = (open(), open());
            let attempt = |nonce| {
                let owner = owner(nonce);
                let election = election.clone();
                move |store: Arc<Store>| {
                    let wanted = Asking::default();
                    store.attempt(&election, &owner, LONG, None, &wanted.wanted)
                }
            };
            first.prepare().await.unwrap();
            let Outcome::Held { token, .. } = attempt(1)(Arc::clone(&first.store)).unwrap() else {
                panic!("the lease is free");
            };
            if released {
                assert!(first.release(&election, &owner(1), token).await.unwrap());
            }
            first.close().await;
            let outcome = attempt(2)(Arc::clone(&second.store)).unwrap();
            match (released, outcome) {
                (true, Outcome::Held { token, .. }) => {
                    assert!(second.release(&election, &owner(2), token).await.unwrap());
                }
                (false, Outcome::Other { remaining, .. }) => assert!(remaining.is_some()),
                (_, outcome) => panic!("released: {released}, and then {outcome:?}"),
            }
            second.close().await;
        }
        fs::remove_dir_all(&root).unwrap();
    }

    /// A directory of its own, and candidates that ask in it.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let root =
                std::env::temp_dir().join(format!("whenleader-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            Self(root)
        }

        fn open(&self) -> Arc<Store> {
            let clock = Arc::new(crate::clock::SystemClock);
            let store = FileStore::new(self.0.clone(), true, false, clock).store;
            store.prepare().unwrap();
            store
        }

        fn election(&self) -> PathBuf {
            self.0.join("e-e")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn ask(store: &Store, nonce: u64, term: Option<Token>) -> Outcome {
        let owner = Owner {
            instance: crate::lease::InstanceId::new("i").unwrap(),
            nonce,
        };
        let election = ElectionName::new("e").unwrap();
        let asking = Asking::default();
        let minute = Duration::from_secs(60);
        store
            .attempt(&election, &owner, minute, term, &asking.wanted)
            .unwrap()
    }

    fn won(outcome: &Outcome) -> Token {
        let Outcome::Held { token, .. } = outcome else {
            panic!("{outcome:?}")
        };
        *token
    }

    #[test]
    fn a_token_is_not_given_twice_and_its_leader_loses_its_term_when_records_are_deleted() {
        let place = Place::new("deleted");
        let (first, second) = (place.open(), place.open());
        let mut last = won(&ask(&first, 1, None));
        for round in 0..5_u64 {
            let (old, new) = if round % 2 == 0 {
                (&first, &second)
            } else {
                (&second, &first)
            };
            let newest = chain::newest(&place.election()).unwrap().unwrap().version;
            fs::remove_file(place.election().join(format!("{newest:020}"))).unwrap();
            let next = won(&ask(new, round + 2, None));
            assert!(next > last, "round {round}: {next} after {last}");
            let renewal = ask(old, round + 1, Some(last));
            assert!(matches!(renewal, Outcome::Other { .. }), "{renewal:?}");
            last = next;
        }
    }

    #[test]
    fn a_leader_whose_last_renewal_was_deleted_does_not_go_on_from_the_one_before() {
        let place = Place::new("undone");
        let store = place.open();
        let token = won(&ask(&store, 1, None));
        won(&ask(&store, 1, Some(token)));
        let newest = chain::newest(&place.election()).unwrap().unwrap().version;
        fs::remove_file(place.election().join(format!("{newest:020}"))).unwrap();
        let renewal = ask(&store, 1, Some(token));
        assert_eq!(
            renewal,
            Outcome::Other {
                leader: None,
                remaining: None
            }
        );
    }

    #[test]
    fn a_copy_in_the_place_of_its_alive_file_makes_a_process_look_dead_until_its_next_write_only() {
        let place = Place::new("copied");
        let (first, second) = (place.open(), place.open());
        let token = won(&ask(&first, 1, None));
        let alive = first.alive().unwrap().path().to_owned();
        fs::copy(&alive, place.0.join("copy")).unwrap();
        fs::rename(place.0.join("copy"), &alive).unwrap();
        won(&ask(&first, 1, Some(token)));
        let denied = ask(&second, 2, None);
        assert!(
            matches!(
                denied,
                Outcome::Other {
                    leader: Some(_),
                    ..
                }
            ),
            "{denied:?}"
        );
    }

    #[test]
    fn plain_names_stay_as_they_are() {
        assert_eq!(name_of("orders.cleanup-2_x"), "orders.cleanup-2_x");
    }
}
