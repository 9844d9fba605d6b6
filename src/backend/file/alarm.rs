//! Wakes the poller the moment something happens in its directory, where the system can (inotify, on
//! Linux). It only saves time: whoever waits looks again after a while, whatever was told.

use std::path::Path;
use std::time::Duration;

/// How soon a release or a death is seen where nobody tells of it.
const ROUND: Duration = Duration::from_millis(10);

#[cfg(target_os = "linux")]
pub(super) use linux::Alarm;
#[cfg(not(target_os = "linux"))]
pub(super) use other::Alarm;

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::thread;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

    use super::{Duration, Path, ROUND};

    /// How long to sleep if nothing is told: events are lost on some file systems.
    const FALLBACK: Duration = Duration::from_millis(40);
    /// A file is said to be closed a little before its lock is free, so it is looked at some more times.
    const SOON: Duration = Duration::from_millis(1);
    const SOON_ROUNDS: u32 = 8;
    /// Enough for the events of some files; the rest is read at the next wake.
    const BUFFER: usize = 1_024;

    #[derive(Debug)]
    pub(in super::super) struct Alarm {
        /// `None`: the user has too many of them.
        inotify: Option<OwnedFd>,
        soon: u32,
    }

    impl Alarm {
        pub fn new() -> Self {
            Self {
                inotify: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
                soon: 0,
            }
        }

        /// Wakes when this file is written, or closed by who could write it: when its process dies.
        /// Naming a file twice does nothing; a file that is gone is forgotten.
        pub fn set(&self, file: &Path) {
            if let Some(inotify) = &self.inotify {
                let _ = add_watch(inotify, file, WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE);
            }
        }

        /// Sleeps until something happened, or for a while.
        pub fn wait(&mut self) {
            let Some(inotify) = &self.inotify else {
                return thread::sleep(ROUND);
            };
            if self.soon > 0 {
                self.soon -= 1;
                thread::sleep(SOON);
            }
            let patience = if self.soon > 0 {
                Duration::ZERO
            } else {
                FALLBACK
            };
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: patience.subsec_nanos().into(),
            };
            let mut waiting = [PollFd::new(inotify, PollFlags::IN)];
            match poll(&mut waiting, Some(&timeout)) {
                Ok(0) => {}
                Ok(_) => {
                    let mut buffer = [MaybeUninit::uninit(); BUFFER];
                    let mut events = Reader::new(inotify, &mut buffer);
                    while events.next().is_ok() {}
                    self.soon = SOON_ROUNDS;
                }
                Err(_) => thread::sleep(ROUND),
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use super::{Path, ROUND};

    #[derive(Debug)]
    pub(in super::super) struct Alarm;

    impl Alarm {
        pub fn new() -> Self {
            Self
        }

        pub fn set(&self, _file: &Path) {}

        pub fn wait(&mut self) {
            std::thread::sleep(ROUND);
        }
    }
}
