//! The embedded store.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use whenleader::backend::Backend;
use whenleader::lease::ElectionName;

use crate::suite::{Fixture, open};
use crate::support::TempDir;

pub struct Embedded {
    dir: TempDir,
}

impl Embedded {
    fn url(&self) -> String {
        format!("file:{}", self.dir.path().display())
    }

    fn election(&self, election: &ElectionName) -> PathBuf {
        // The suite's names need no encoding here.
        self.dir.path().join(format!("e-{election}"))
    }
}

impl Fixture for Embedded {
    const RUBBISH_EXPIRES: bool = true;

    async fn start(_test: &str) -> Option<Self> {
        Some(Self {
            dir: TempDir::new(),
        })
    }

    fn open(&self) -> Arc<dyn Backend> {
        open(&self.url())
    }

    async fn spoil(&self, election: &ElectionName, rubbish: &[u8]) {
        let dir = self.election(election);
        let names = fs::read_dir(&dir).unwrap();
        let newest = names.map(|entry| entry.unwrap().file_name()).max().unwrap();
        let next = newest.to_str().unwrap().parse::<u64>().unwrap() + 1;
        fs::write(dir.join(format!("{next:020}")), rubbish).unwrap();
    }

    async fn forget(&self, election: &ElectionName) {
        fs::remove_dir_all(self.election(election)).unwrap();
    }

    async fn list(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // That a process lives is seen by a file that goes with it.
        names.filter(|name| !name.contains(".alive")).collect()
    }
}

mod conforms {
    crate::conformance!(super::Embedded);
}

/// What only files and processes can get wrong.
#[cfg(unix)]
mod alone {
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::path::{Path, PathBuf};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
    use std::time::{Duration, Instant};

    use whenleader::lease::{FailureKind, Hint, Outcome, Token};

    use super::Embedded;
    use crate::suite::{Client, Fixture, LONG, SHORT, denied, held, leading, name, open, owner};
    use crate::support::{TempDir, eventually};

    const URL: &str = "WHENLEADER_TEST_CHILD";

    /// Another process that uses the store: this very program, told to run one "test" only.
    struct Process {
        child: Child,
        says: BufReader<ChildStdout>,
        hears: ChildStdin,
    }

    impl Process {
        fn start(url: &str) -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["file::alone::another_process", "--exact", "--nocapture"])
                .env(URL, url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            Self {
                says: BufReader::new(child.stdout.take().unwrap()),
                hears: child.stdin.take().unwrap(),
                child,
            }
        }

        fn ask(&mut self, what: &str) -> String {
            writeln!(self.hears, "{what}").unwrap();
            loop {
                let mut line = String::new();
                assert!(
                    self.says.read_line(&mut line).unwrap() > 0,
                    "the process ended"
                );
                // The test runner talks too, and does not always end its line.
                if let Some((_, answer)) = line.split_once("> ") {
                    return answer.trim().to_owned();
                }
            }
        }

        fn win(&mut self, election: &str, lease: Duration) -> Token {
            let answer = self.ask(&format!("win {election} {}", lease.as_millis()));
            Token::new(answer.parse().expect(&answer)).unwrap()
        }

        fn signal(&self, signal: &str) {
            let pid = self.child.id().to_string();
            let status = Command::new("kill").args([signal, &pid]).status().unwrap();
            assert!(status.success());
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// No test: what [`Process`] runs.
    #[tokio::test]
    async fn another_process() {
        let Ok(url) = std::env::var(URL) else { return };
        let client = Client::new(&url, "child").await;
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let words: Vec<_> = line.split(' ').collect();
            let lease = || Duration::from_millis(words[2].parse().unwrap());
            let token = || Token::new(words[3].parse().unwrap()).unwrap();
            match words[0] {
                "win" => println!("> {}", client.win(&name(words[1]), lease()).await),
                "renew" => {
                    let outcome = client.renew(&name(words[1]), lease(), token()).await;
                    println!("> {}", matches!(outcome, Outcome::Held { .. }));
                }
                "close" => {
                    client.backend.close().await;
                    println!("> closed");
                }
                other => panic!("{other}"),
            }
        }
    }

    async fn start() -> Embedded {
        Embedded::start("").await.unwrap()
    }

    pub(super) fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.to_str().unwrap().ends_with(ending))
            .collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_leader_that_was_killed_is_succeeded_at_once() {
        let store = start().await;
        let election = name("leader");
        let client = Client::new(&store.url(), "a").await;
        let mut hearing = client.watch(&election).await;
        let mut last = None;
        for _ in 0..5 {
            let mut process = Process::start(&store.url());
            let token = process.win("leader", LONG);
            assert!(Some(token) > last);
            denied(client.campaign(&election, LONG).await);
            hearing
                .until(
                    "Alive",
                    |hint| matches!(hint, Hint::Alive { token: t, .. } if t == token),
                )
                .await;
            process.signal("-KILL");
            let killed = Instant::now();
            hearing.until("Free", |hint| hint == Hint::Free).await;
            let next = client.win(&election, LONG).await;
            // The lease would have run for a minute.
            assert!(
                killed.elapsed() < Duration::from_secs(5),
                "{:?}",
                killed.elapsed()
            );
            assert!(next > token);
            assert!(client.release(&election, next).await);
            last = Some(next);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_changes_that_the_time_of_the_directory_does_not_tell_apart_are_both_seen() {
        let store = start().await;
        let election = name("leader");
        let (a, b) = (store.client("a").await, store.client("b").await);
        let token = a.win(&election, LONG).await;
        assert!(a.release(&election, token).await);
        let dir = store.election(&election);
        let newest = || {
            let names = fs::read_dir(&dir).unwrap();
            let name = names.map(|entry| entry.unwrap().file_name()).max();
            name.unwrap().to_str().unwrap().parse::<u64>().unwrap()
        };
        let file = |number: u64| dir.join(format!("{number:020}"));
        let free = fs::read(file(newest())).unwrap();
        let mut hearing = b.watch(&election).await;
        a.win(&election, LONG).await;
        let is_alive = |hint| matches!(hint, Hint::Alive { .. });
        hearing.until("Alive", is_alive).await;
        // As a release would, but without the bell, and within one tick of the clock.
        let time = fs::metadata(&dir).unwrap().modified().unwrap();
        fs::write(file(newest() + 1), free).unwrap();
        fs::File::open(&dir).unwrap().set_modified(time).unwrap();
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_leader_that_is_stopped_keeps_its_lease_and_no_longer() {
        let store = start().await;
        let election = name("leader");
        let client = Client::new(&store.url(), "a").await;
        let lease = SHORT * 2;
        let mut process = Process::start(&store.url());
        let old = process.win("leader", lease);
        let seen = Instant::now();
        process.signal("-STOP");
        denied(client.campaign(&election, LONG).await);
        let new = client.take_over(&election, LONG).await;
        assert!(
            seen.elapsed() + Duration::from_millis(20) >= lease,
            "{:?}",
            seen.elapsed()
        );
        assert!(new > old);
        process.signal("-CONT");
        assert_eq!(process.ask(&format!("renew leader 60000 {old}")), "false");
        assert_eq!(held(client.renew(&election, LONG, new).await), new);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_process_that_closed_its_store_and_lives_on_is_not_taken_for_dead() {
        let store = start().await;
        let client = Client::new(&store.url(), "a").await;
        let mut process = Process::start(&store.url());
        process.win("leader", LONG);
        let mut hearing = client.watch(&name("leader")).await;
        hearing
            .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
            .await;
        assert_eq!(process.ask("close"), "closed");
        tokio::time::sleep(Duration::from_millis(200)).await;
        denied(client.campaign(&name("leader"), LONG).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_missing_alive_file_proves_no_death() {
        let store = start().await;
        let (a, b) = (
            Client::new(&store.url(), "a").await,
            Client::new(&store.url(), "b").await,
        );
        let election = name("leader");
        let token = a.win(&election, SHORT * 2).await;
        for file in files(store.dir.path(), ".alive") {
            fs::remove_file(file).unwrap();
        }
        denied(b.campaign(&election, LONG).await);
        // Its next renewal brings another one.
        assert_eq!(held(a.renew(&election, LONG, token).await), token);
        assert_eq!(files(store.dir.path(), ".alive").len(), 1);
        denied(b.campaign(&election, LONG).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_record_that_a_power_cut_emptied_is_judged_by_the_one_before() {
        let store = start().await;
        let election = name("leader");
        let client = Client::new(&store.url(), "a").await;
        let mut process = Process::start(&store.url());
        let old = process.win("leader", LONG);
        store.spoil(&election, b"\0\0\0").await;
        // As long as the process lives, nobody knows who wrote that.
        let (leader, _) = denied(client.campaign(&election, LONG).await);
        assert_eq!(leader, None);
        process.signal("-KILL");
        process.child.wait().unwrap();
        assert!(client.win(&election, LONG).await > old);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn peeking_shortens_no_wait_whatever_the_record_holds() {
        let store = start().await;
        for (number, rubbish) in [&b""[..], b"\0\0\0", b"garbage"].iter().enumerate() {
            let election = name(&format!("leader-{number}"));
            let (a, b) = (
                Client::new(&store.url(), "a").await,
                Client::new(&store.url(), "b").await,
            );
            a.win(&election, LONG).await;
            store.spoil(&election, rubbish).await;
            for client in [&a, &b] {
                assert_eq!(client.leader(&election).await, None);
            }
            for client in [&a, &b] {
                let (leader, remaining) = denied(client.campaign(&election, LONG).await);
                assert_eq!(leader, None);
                assert!(
                    remaining.is_some_and(|left| left > LONG / 2),
                    "{remaining:?}"
                );
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_dead_processes_left_is_swept_up_but_never_the_proof_of_a_death() {
        let store = start().await;
        let election = name("leader");
        let root = store.dir.path();
        let mut leader = Process::start(&store.url());
        leader.win("leader", LONG);
        let mut follower = Process::start(&store.url());
        follower.win("other", LONG);
        let follower_file = files(root, ".alive");
        assert_eq!(follower_file.len(), 2);
        for process in [&mut leader, &mut follower] {
            process.signal("-KILL");
            process.child.wait().unwrap();
        }
        let process = files(root, ".alive")[0]
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        fs::write(root.join(format!("{process}-7.draft")), "x").unwrap();
        fs::write(root.join("0123.alive-new"), "").unwrap();

        let client = Client::new(&store.url(), "a").await;
        assert_eq!(files(root, ".alive").len(), 3, "both are named by a record");
        assert_eq!(files(root, ".alive-new").len(), 0);
        let (one, two) = (
            client.win(&election, LONG).await,
            client.win(&name("other"), LONG).await,
        );
        client.backend.prepare().await.unwrap();
        assert_eq!(
            files(root, ".alive").len(),
            1,
            "no record names them any more"
        );
        assert_eq!(files(root, ".draft").len(), 0);
        assert_eq!(held(client.renew(&election, LONG, one).await), one);
        assert_eq!(held(client.renew(&name("other"), LONG, two).await), two);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_long_term_leaves_few_files_and_the_first_one_of_them() {
        let store = start().await;
        let election = name("leader");
        let client = Client::new(&store.url(), "a").await;
        let token = client.win(&election, LONG).await;
        let dir = store.election(&election);
        let first = files(&dir, "").into_iter().max().unwrap();
        for _ in 0..50 {
            held(client.renew(&election, LONG, token).await);
        }
        let versions = files(&dir, "");
        assert!(versions.len() < 12, "{versions:?}");
        assert!(versions.contains(&first), "{versions:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_bell_that_was_emptied_or_deleted_is_still_heard() {
        let store = start().await;
        let election = name("leader");
        let (a, b) = (
            Client::new(&store.url(), "a").await,
            Client::new(&store.url(), "b").await,
        );
        let bell = store.dir.path().join("bell");
        let mut hearing = b.watch(&election).await;
        for round in 0..6 {
            let token = a.win(&election, LONG).await;
            hearing
                .until(
                    "Alive",
                    |hint| matches!(hint, Hint::Alive { token: t, .. } if t == token),
                )
                .await;
            match round % 3 {
                0 => fs::write(&bell, "x\n".repeat(40_000)).unwrap(),
                1 => fs::write(&bell, "").unwrap(),
                _ => fs::remove_file(&bell).unwrap(),
            }
            assert!(a.release(&election, token).await);
            hearing.until("Free", |hint| hint == Hint::Free).await;
        }
        assert!(fs::metadata(&bell).unwrap().len() < 100_000);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_stores_of_one_process_on_one_directory_are_two() {
        let store = start().await;
        let election = name("leader");
        let (a, b) = (
            Client::new(&store.url(), "a").await,
            Client::new(
                &format!(
                    "{}/../{}",
                    store.url(),
                    store.dir.path().file_name().unwrap().to_str().unwrap()
                ),
                "b",
            )
            .await,
        );
        let token = a.win(&election, LONG).await;
        let (leader, _) = denied(b.campaign(&election, LONG).await);
        assert_eq!(leader, Some(leading(&a, token)));
        // One of them ends; the other one's lock must not end with it.
        b.backend.close().await;
        drop(b);
        let c = Client::new(&store.url(), "c").await;
        denied(c.campaign(&election, LONG).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_deleted_directory_is_made_again() {
        let store = start().await;
        let election = name("leader");
        let (a, b) = (
            Client::new(&store.url(), "a").await,
            Client::new(&store.url(), "b").await,
        );
        let mut hearing = b.watch(&election).await;
        let old = a.win(&election, LONG).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        fs::remove_dir_all(store.dir.path()).unwrap();
        let (leader, _) = denied(a.renew(&election, LONG, old).await);
        assert_eq!(leader, None);
        let new = b.win(&election, LONG).await;
        assert!(new > old);
        denied(a.campaign(&election, LONG).await);
        hearing
            .until(
                "the new term",
                |hint| matches!(hint, Hint::Alive { token, .. } if token == new),
            )
            .await;
        assert!(b.release(&election, new).await);
        hearing.until("Free", |hint| hint == Hint::Free).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_left_open_after_the_end() {
        let store = start().await;
        let root = store.dir.path().to_path_buf();
        let open_here = || {
            let open = fs::read_dir("/proc/self/fd")
                .into_iter()
                .flatten()
                .flatten();
            open.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&root)))
                .count()
        };
        let client = Client::new(&store.url(), "a").await;
        let mut process = Process::start(&store.url());
        process.win("leader", LONG);
        let mut hearing = client.watch(&name("leader")).await;
        hearing
            .until("Alive", |hint| matches!(hint, Hint::Alive { .. }))
            .await;
        client.win(&name("own"), LONG).await;
        client.backend.close().await;
        eventually("no file is open", async || (open_here() == 0).then_some(())).await;
        assert_eq!(files(&root, ".alive").len(), 1, "the other process's");
    }

    #[tokio::test]
    async fn a_directory_that_cannot_serve_is_refused_with_a_cure() {
        let dir = TempDir::new();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let nowhere = ["/proc/whenleader", "/sys/whenleader"].map(PathBuf::from);
        for path in [file.clone(), file.join("below")].iter().chain(&nowhere) {
            if !path.starts_with(dir.path()) && cfg!(not(target_os = "linux")) {
                continue;
            }
            let client = Client {
                backend: open(&format!("file:{}", path.display())),
                owner: owner("a"),
            };
            let error = client.backend.prepare().await.expect_err("no directory");
            assert_eq!(error.kind, FailureKind::Fatal, "{error}");
            assert!(
                error.message.contains("\"store\": \"file:<directory>\""),
                "{error}"
            );
            assert!(error.message.contains(path.to_str().unwrap()), "{error}");
        }
    }

    #[tokio::test]
    async fn a_name_that_makes_no_file_name_is_refused() {
        let backend = open("file:x");
        assert!(backend.check_name(&name(&"x".repeat(253))).is_ok());
        for long in ["X".repeat(253), "🦀".repeat(22)] {
            let rule = backend.check_name(&name(&long)).expect_err(&long);
            assert!(rule.contains("bytes"), "{rule}");
        }
    }

    #[tokio::test]
    async fn a_version_with_the_largest_number_is_named_with_its_cure() {
        let store = start().await;
        let election = name("leader");
        let client = Client::new(&store.url(), "a").await;
        client.win(&election, SHORT).await;
        let last = store
            .election(&election)
            .join(format!("{:020}", Token::MAX));
        fs::write(last, "x").unwrap();
        let error = eventually("the rubbish has expired", async || {
            client.attempt(&election, SHORT, None).await.err()
        })
        .await;
        assert_eq!((error.kind, error.code), (FailureKind::Fatal, "bad-record"));
        assert!(error.message.contains("e-leader"), "{error}");
    }

    #[tokio::test]
    async fn a_url_names_a_directory_in_two_ways() {
        let dir = TempDir::new();
        let shown = |url: &str| open(url).describe();
        let path = dir.path().display();
        assert!(shown(&format!("file:{path}/a%20b")).ends_with("/a%20b"));
        assert!(shown(&format!("file://{path}/a%20b")).ends_with("/a b"));
        assert!(shown("file:x?force").ends_with('x'));
        assert!(shown("file:").ends_with(".whenleader"));
        let options = whenleader::backend::StoreOptions::new(".");
        let clock = std::sync::Arc::new(whenleader::clock::SystemClock);
        let mut replicas = options.clone();
        replicas.min_replicas = Some(1);
        let refused = whenleader::backend::open("file:x", &replicas, clock.clone());
        assert_eq!(refused.unwrap_err().parameter, "minReplicas");
        for bad in ["file://host/x", "file:///%zz", "file:a\0b"] {
            assert!(
                whenleader::backend::open(bad, &options, clock.clone()).is_err(),
                "{bad}"
            );
        }
    }
}

/// Disks that do not do what they should. It takes mounts, and so root.
#[cfg(target_os = "linux")]
mod on_a_bad_disk {
    use std::fs::{self, File, Permissions};
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;

    use whenleader::backend::BackendError;
    use whenleader::lease::FailureKind::{Fatal, Transient};

    use super::alone::files;
    use crate::suite::{Client, LONG, held, name, open, owner};
    use crate::support::{TempDir, skip};

    const URL: &str = "WHENLEADER_TEST_PREPARE";
    /// Nobody.
    const OTHER_USER: u32 = 65534;

    struct Mount(TempDir);

    fn as_root(program: &str) -> Command {
        let own = fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
        if own.is_ok_and(|uid| uid == 0) {
            return Command::new(program);
        }
        let mut command = Command::new("sudo");
        command.args(["-n", program]);
        command
    }

    impl Mount {
        /// `None`: this user may not mount, which was reported.
        fn new(test: &str, options: &str) -> Option<Self> {
            let dir = TempDir::new();
            let options = format!("{options},mode=1777");
            let mounted = as_root("mount")
                .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
                .arg(dir.path())
                .output();
            match mounted {
                Ok(output) if output.status.success() => Some(Self(dir)),
                failed => {
                    skip(test, &format!("a tmpfs cannot be mounted: {failed:?}"));
                    None
                }
            }
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        fn url(&self) -> String {
            format!("file:{}", self.path().display())
        }

        /// Leaves not one byte free.
        fn fill(&self) {
            let mut filler = File::create(self.path().join("filler")).unwrap();
            while filler.write_all(&[b'x'; 512]).is_ok() {}
        }

        fn empty(&self) {
            fs::remove_file(self.path().join("filler")).unwrap();
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = as_root("umount").arg("-l").arg(self.path()).status();
        }
    }

    #[track_caller]
    fn is_refused(error: &BackendError, code: &str, path: &Path) {
        assert_eq!((error.kind, error.code), (Fatal, code), "{error}");
        assert!(error.message.contains(path.to_str().unwrap()), "{error}");
        assert!(
            error.message.contains("\"store\": \"file:<directory>\""),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_read_only_directory_is_refused_with_a_cure() {
        let test = "a_read_only_directory_is_refused_with_a_cure";
        let Some(mount) = Mount::new(test, "ro") else {
            return;
        };
        for path in [mount.path().to_owned(), mount.path().join("sub")] {
            let backend = open(&format!("file:{}", path.display()));
            let error = backend.prepare().await.expect_err("it is read-only");
            is_refused(&error, "read-only", &path);
            let client = Client {
                backend,
                owner: owner("a"),
            };
            let error = client.attempt(&name("leader"), LONG, None).await;
            is_refused(&error.unwrap_err(), "read-only", &path);
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_a_failure_that_passes() {
        let test = "a_full_disk_is_a_failure_that_passes";
        let Some(mount) = Mount::new(test, "size=128k") else {
            return;
        };
        let (election, new) = (name("leader"), name("new"));
        let client = Client::new(&mount.url(), "a").await;
        let token = client.win(&election, LONG).await;
        for _ in 0..2 {
            mount.fill();
            let failures = [
                client.attempt(&election, LONG, Some(token)).await.err(),
                client.attempt(&election, LONG, None).await.err(),
                client.attempt(&new, LONG, None).await.err(),
                client
                    .backend
                    .release(&election, &client.owner, token)
                    .await
                    .err(),
            ];
            for (number, error) in failures.into_iter().enumerate() {
                let error = error.unwrap_or_else(|| panic!("{number}: nothing can be written"));
                assert_eq!(
                    (error.kind, error.code),
                    (Transient, "full"),
                    "{number}: {error}"
                );
            }
            // Who leads can be read all the same.
            assert!(client.leader(&election).await.is_some());
            mount.empty();
            let left = files(mount.path(), ".draft");
            assert!(left.is_empty(), "{left:?}");
            assert_eq!(held(client.renew(&election, LONG, token).await), token);
        }
        client.win(&new, LONG).await;
        assert!(client.release(&election, token).await);
    }

    /// No test: what the next one runs as another user.
    #[tokio::test]
    async fn another_user() {
        let Ok(url) = std::env::var(URL) else { return };
        let error = open(&url).prepare().await.expect_err("no rights");
        println!("> {:?} {} {error}", error.kind, error.code);
    }

    #[test]
    fn a_directory_that_this_user_may_not_write_in_is_refused_with_a_cure() {
        let test = "a_directory_that_this_user_may_not_write_in_is_refused_with_a_cure";
        let dir = TempDir::new();
        let store = dir.path().join("store");
        fs::create_dir(&store).unwrap();
        fs::set_permissions(&store, Permissions::from_mode(0o555)).unwrap();
        // Where the program lies, the other user may have no right to look.
        let program = dir.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        for path in [store.clone(), store.join("sub")] {
            let child = || {
                let mut child = Command::new(&program);
                child
                    .args([
                        "file::on_a_bad_disk::another_user",
                        "--exact",
                        "--nocapture",
                    ])
                    .env(URL, format!("file:{}", path.display()))
                    .current_dir("/");
                child
            };
            // Root may write everywhere; whoever is not root cannot become another, and needs not.
            let output = match child().uid(OTHER_USER).gid(OTHER_USER).output() {
                Ok(output) => output,
                Err(_) => child().output().unwrap(),
            };
            let said = String::from_utf8_lossy(&output.stdout);
            let Some((_, said)) = said.split_once("> ") else {
                return skip(test, &format!("it did not run: {output:?}"));
            };
            assert!(said.starts_with("Fatal refused "), "{said}");
            assert!(said.contains(path.to_str().unwrap()), "{said}");
            assert!(said.contains("\"store\": \"file:<directory>\""), "{said}");
        }
    }
}
