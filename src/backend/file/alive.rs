//! How a dead process is told from a slow one: each process keeps one file locked while it lives, and
//! the kernel frees the lock when the process ends, however it ends.
//!
//! Only a lock that is free, on a file that still bears its name, proves a death. A missing file proves
//! nothing: an administrator may have deleted it, or its process gave up its lease and lives on.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind::NotFound, ErrorKind::WouldBlock};
use std::path::{Path, PathBuf};

use crate::random::random_u64;

const SUFFIX: &str = ".alive";
const TEMPORARY_SUFFIX: &str = ".alive-new";
/// Many processes may begin at one moment, each of which sweeps.
const TRIES: u32 = 20;

/// The lock of this process.
#[derive(Debug)]
pub(super) struct Alive {
    name: String,
    path: PathBuf,
    locked: File,
}

impl Alive {
    pub fn begin(root: &Path) -> io::Result<Self> {
        for _ in 1..TRIES {
            match Self::try_begin(root) {
                // Whoever swept just now took our file for one that was left: they look at the lock, or deleted it.
                Err(error) if matches!(error.kind(), NotFound | WouldBlock) => {}
                begun => return begun,
            }
        }
        Self::try_begin(root)
    }

    /// The file gets its name when it is locked already: nobody ever sees it free while we live.
    fn try_begin(root: &Path) -> io::Result<Self> {
        let name = random_name();
        let temporary = root.join(format!("{name}{TEMPORARY_SUFFIX}"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&temporary)?;
        file.try_lock()?;
        let path = path_of(root, &name);
        fs::rename(&temporary, &path)?;
        Ok(Self {
            name,
            path,
            locked: file,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    #[cfg(test)]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file of our name is the one that we locked: not deleted, and not a copy that a backup
    /// or a move put in its place, which would make us look dead.
    pub fn is_in_place(&self) -> bool {
        let (Ok(named), Ok(locked)) = (fs::metadata(&self.path), self.locked.metadata()) else {
            return false;
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            (named.dev(), named.ino()) == (locked.dev(), locked.ino())
        }
        #[cfg(not(unix))]
        {
            named.len() == locked.len()
        }
    }
}

impl Drop for Alive {
    /// The process lives on, and so may what it does as a leader: the file must go before its lock does.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Watches over another process.
#[derive(Debug)]
pub(super) struct Witness {
    file: File,
    path: PathBuf,
}

impl Witness {
    /// `None`: there is no such file.
    pub fn of(root: &Path, name: &str) -> Option<Self> {
        if !is_name(name) {
            return None;
        }
        let path = path_of(root, name);
        let file = File::open(&path).ok()?;
        Some(Self { file, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn saw_death(&self) -> bool {
        // Shared, so that two followers that look at once do not mistake each other for the leader.
        if self.file.try_lock_shared().is_err() {
            return false;
        }
        let _ = self.file.unlock();
        self.path.exists()
    }
}

pub(super) fn is_dead(root: &Path, name: &str) -> bool {
    Witness::of(root, name).is_some_and(|witness| witness.saw_death())
}

/// Whether the file system keeps two handles apart, even within one process.
pub(super) fn locks_work(alive: &Alive) -> io::Result<bool> {
    let second = File::open(&alive.path)?;
    match second.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
        Ok(()) => Ok(false),
    }
}

/// The processes of this directory that are dead, by the names of their files.
pub(super) fn all_dead(root: &Path) -> io::Result<Vec<String>> {
    let mut dead = Vec::new();
    for entry in fs::read_dir(root)?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Some(name) = name.strip_suffix(SUFFIX) {
            if is_dead(root, name) {
                dead.push(name.to_owned());
            }
        } else if name.ends_with(TEMPORARY_SUFFIX)
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            // A process ended while it began; one that is beginning right now finds its file gone and
            // begins again.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(dead)
}

/// For the dead only.
pub(super) fn bury(root: &Path, name: &str) {
    let _ = fs::remove_file(path_of(root, name));
}

fn path_of(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}{SUFFIX}"))
}

/// A name comes out of a record, so it may be anything.
fn is_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(super) fn random_name() -> String {
    format!("{:016x}{:016x}", random_u64(), random_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_begins_while_others_sweep_begins_all_the_same() {
        let root = std::env::temp_dir().join(format!("whenleader-alive-{}", random_name()));
        fs::create_dir_all(&root).unwrap();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..100 {
                        let alive = Alive::begin(&root).expect("a file of its own");
                        assert!(alive.is_in_place());
                        let dead = all_dead(&root).unwrap();
                        assert!(!dead.contains(&alive.name));
                    }
                });
            }
        });
        fs::remove_dir_all(&root).unwrap();
    }
}
