//! The record of one election, as a chain of numbered versions: one directory, one file for each write.
//!
//! A write makes a complete file first and then links it to the next number, which fails if somebody
//! else took that number: a compare-and-set without any lock, so that a process which is frozen in the
//! middle of a write stands in nobody's way. The newest version counts; older ones are removed by
//! whoever writes.
//!
//! One trap: a process that is frozen between reading version N and linking N + 1 may wake when N + 1
//! was long removed, and its link then works. So every writer looks again after its link: if there is
//! a later version than its own, its write came too late and means nothing to anybody.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Wanted;
use super::record::{Record, Unreadable};
use crate::backend::{BackendError, token_floor};
use crate::lease::Token;

/// How many versions are kept. A reader that listed the directory finds the newest still there unless
/// so many writes came in between.
const KEPT: u64 = 8;
/// No record of ours is longer.
const LONGEST_RECORD: u64 = 64 * 1024;
/// How often a reader looks again when what it had listed was removed meanwhile.
const LOOKS: u32 = 100;

#[derive(Debug)]
pub(super) struct Newest {
    pub version: u64,
    pub record: Result<Record, Unreadable>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Published {
    /// This write is the newest version.
    Won(u64),
    /// Somebody else's came first.
    Lost,
}

/// Why a write failed.
#[derive(Debug)]
pub(super) enum WriteError {
    Before(io::Error),
    /// It got no number, since nobody waits for it any more.
    GivenUp(BackendError),
    /// After the version had got its number: it may count.
    After(io::Error),
}

/// Makes the names of files that are not complete yet.
#[derive(Debug, Default)]
pub(super) struct Drafts(AtomicU64);

impl Drafts {
    pub const SUFFIX: &str = ".draft";

    /// Named after the process, so that those of dead processes can be told.
    pub fn path(&self, root: &Path, process: &str) -> PathBuf {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        root.join(format!("{process}-{number}{}", Self::SUFFIX))
    }
}

impl Newest {
    /// What an observation compares: the number, and the stamp of what has it now.
    pub fn identity(&self) -> (u64, u64) {
        (self.version, self.record.as_ref().map_or(0, Record::stamp))
    }
}

/// The newest version; `None`: the election has no record yet.
pub(super) fn newest(dir: &Path) -> io::Result<Option<Newest>> {
    for _ in 0..LOOKS {
        let Some(version) = versions(dir)?.into_iter().max() else {
            return Ok(None);
        };
        match read(&path_of(dir, version)) {
            // Removed since we listed, so there are newer ones.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(record) => return Ok(Some(Newest { version, record })),
        }
    }
    Err(io::Error::other(
        "versions vanish faster than they can be read",
    ))
}

/// Reads one version. Anything that cannot be read as a file is unreadable as a record too.
fn read(path: &Path) -> io::Result<Result<Record, Unreadable>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(Err(Unreadable::Strange));
    }
    file.take(LONGEST_RECORD + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > LONGEST_RECORD {
        Err(Unreadable::Strange)
    } else {
        Record::from_bytes(&bytes)
    })
}

/// The newest version that can be read, from `before` downwards.
pub(super) fn newest_readable(dir: &Path, before: u64) -> Option<Record> {
    let mut versions = versions(dir).ok()?;
    versions.retain(|version| *version < before);
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions
        .into_iter()
        .find_map(|version| read(&path_of(dir, version)).ok()?.ok())
}

/// Makes the election's directory, which is born with a first version in it, so that there is always
/// one to compare with. That version's number is the time: if somebody deletes the directory, tokens
/// go on growing as long as the clock does.
pub(super) fn create(root: &Path, dir: &Path, draft: &Path) -> io::Result<()> {
    fs::create_dir(draft)?;
    let first = token_floor().min(Token::MAX / 2);
    let record = Record::Free {
        last: None,
        stamp: first,
    };
    let result = write_new(&path_of(draft, first), &record, true)
        .and_then(|()| sync_dir(draft))
        .and_then(|()| match fs::rename(draft, dir) {
            // Somebody else was faster. (Windows names the second case differently.)
            Err(_) if versions(dir).is_ok_and(|versions| !versions.is_empty()) => Ok(()),
            Err(error) => {
                // An empty directory, which Windows does not replace.
                fs::remove_dir(dir)
                    .and_then(|()| fs::rename(draft, dir))
                    .map_err(|_| error)
            }
            Ok(()) => sync_dir(root),
        });
    let _ = fs::remove_dir_all(draft);
    result
}

/// Publishes the version that follows `after`.
pub(super) fn publish(
    dir: &Path,
    draft: &Path,
    after: u64,
    record: &Record,
    durable: bool,
    wanted: &Wanted,
) -> Result<Published, WriteError> {
    let version = after + 1;
    let path = path_of(dir, version);
    let written = write_new(draft, record, durable);
    // A disk may be slow, so this is asked as late as possible. What is given up between here and the
    // link still meets the version that it read, or fails.
    let wanted = wanted.check();
    let linked = match (written, &wanted) {
        (Ok(()), Ok(())) => fs::hard_link(draft, &path),
        (written, _) => written,
    };
    let _ = fs::remove_file(draft);
    wanted.map_err(WriteError::GivenUp)?;
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Published::Lost),
        Err(error) => return Err(WriteError::Before(error)),
        Ok(()) => {}
    }
    let rest = || {
        if durable {
            sync_dir(dir)?;
        }
        versions(dir)
    };
    let versions = rest().map_err(WriteError::After)?;
    if versions.iter().any(|other| *other > version) {
        return Ok(Published::Lost);
    }
    let began = match record {
        Record::Held(held) => Some(held.since),
        Record::Free { .. } => None,
    };
    for old in versions {
        // The first version of the term is the one that survives a power cut: see `durable`.
        if old + KEPT <= version && Some(old) != began {
            let _ = fs::remove_file(path_of(dir, old));
        }
    }
    Ok(Published::Won(version))
}

fn write_new(path: &Path, record: &Record, durable: bool) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(&record.to_bytes())?;
    if durable { file.sync_all() } else { Ok(()) }
}

fn versions(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut versions = Vec::new();
    for entry in entries {
        if let Some(version) = entry?.file_name().to_str().and_then(version_of) {
            versions.push(version);
        }
    }
    Ok(versions)
}

fn path_of(dir: &Path, version: u64) -> PathBuf {
    dir.join(format!("{version:020}"))
}

/// A version may become a token, so it is limited as a token is.
fn version_of(name: &str) -> Option<u64> {
    let digits = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|n| digits && *n <= Token::MAX)
}

/// Makes a directory's names survive a power cut. Windows has no such call.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(dir)?.sync_all()
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::file::Asking;
    use crate::backend::file::alive::random_name;
    use crate::lease::{InstanceId, Leader, Owner};

    /// A directory that is deleted at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Self {
            let dir = std::env::temp_dir().join(format!("whenleader-{}", random_name()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn create(&self) {
            let draft = self.0.join(format!("{}.draft", random_name()));
            create(&self.0, &self.0.join("e"), &draft).unwrap();
        }

        fn write(&self, after: u64, token: u64) -> Published {
            let record = Record::Held(super::super::record::Held {
                leader: Leader {
                    owner: Owner {
                        instance: InstanceId::new("a").unwrap(),
                        nonce: 1,
                    },
                    token: Token::new(token).unwrap(),
                },
                duration: std::time::Duration::from_secs(1),
                alive: None,
                since: token,
                stamp: 0,
            });
            let draft = self.0.join(format!("{}.draft", random_name()));
            let asking = Asking::default();
            publish(
                &self.0.join("e"),
                &draft,
                after,
                &record,
                false,
                &asking.wanted,
            )
            .unwrap()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn of_two_writes_on_one_version_the_second_is_lost() {
        let dir = Dir::new();
        dir.create();
        let first = newest(&dir.0.join("e")).unwrap().unwrap().version;
        assert_eq!(dir.write(first, 1), Published::Won(first + 1));
        assert_eq!(dir.write(first, 2), Published::Lost);
        let newest = newest(&dir.0.join("e")).unwrap().unwrap();
        assert_eq!(newest.record.unwrap().token(), Token::new(1));
    }

    #[test]
    fn a_writer_that_was_frozen_while_others_went_on_has_lost() {
        let dir = Dir::new();
        dir.create();
        let first = newest(&dir.0.join("e")).unwrap().unwrap().version;
        for version in first..first + 20 {
            assert_eq!(dir.write(version, version + 1), Published::Won(version + 1));
        }
        // The version that it wants was removed long ago, so its link works.
        assert!(!path_of(&dir.0.join("e"), first + 1).exists());
        assert_eq!(dir.write(first, first + 1), Published::Lost);
        let newest = newest(&dir.0.join("e")).unwrap().unwrap();
        assert_eq!(newest.version, first + 20);
    }

    #[test]
    fn a_write_that_nobody_waits_for_any_more_gets_no_number() {
        let dir = Dir::new();
        let election = dir.0.join("e");
        dir.create();
        let first = newest(&election).unwrap().unwrap().version;
        let wanted = Asking::default().wanted.clone();
        let record = Record::Free {
            last: None,
            stamp: 0,
        };
        let result = publish(
            &election,
            &dir.0.join("draft"),
            first,
            &record,
            true,
            &wanted,
        );
        assert!(matches!(result, Err(WriteError::GivenUp(_))), "{result:?}");
        assert_eq!(versions(&election).unwrap(), [first]);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn an_election_is_made_once_whoever_else_makes_it() {
        let dir = Dir::new();
        let election = dir.0.join("e");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| dir.create());
            }
        });
        assert_eq!(versions(&election).unwrap().len(), 1);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "no draft is left");
        // An empty directory is one that somebody emptied.
        let version = newest(&election).unwrap().unwrap().version;
        fs::remove_file(path_of(&election, version)).unwrap();
        dir.create();
        assert!(newest(&election).unwrap().unwrap().version >= version);
    }

    #[test]
    fn only_names_of_twenty_digits_up_to_the_largest_token_are_versions() {
        assert_eq!(version_of("00000000000000000042"), Some(42));
        assert_eq!(version_of("00009007199254740991"), Some(Token::MAX));
        for name in [
            "00009007199254740992",
            "99999999999999999999",
            "42",
            "+0000000000000000042",
            "0000000000000000004x",
            "",
        ] {
            assert_eq!(version_of(name), None, "{name}");
        }
    }
}
