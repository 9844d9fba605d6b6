//! What may block: files lie on slow disks, and all elections share one thread.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use tokio::sync::Semaphore;

/// How much of it may go on at once. What hangs, say on a disk that is gone, keeps its thread until it ends, and is
/// tried again by the next attempt: without a bound it would take one thread after the other, and none would be
/// left for looking up names, which happens on the same threads.
const AT_ONCE: usize = 4;

static ROOM: Semaphore = Semaphore::const_new(AT_ONCE);

/// Runs it on a thread of its own. Whoever stops waiting does not end it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    blocking_within(&ROOM, work).await
}

async fn blocking_within<T: Send + 'static>(
    room: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let place = room.acquire().await.expect("it is never closed");
    let work = move || {
        // Kept until the work is done, also when nobody waits for it any more.
        let _place = place;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is ending, and whoever waits with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// A text file, anew each time: it may have been replaced. `Err`: why not, with its path.
pub(super) async fn read_text(path: &Path) -> Result<String, String> {
    let path: PathBuf = path.to_owned();
    blocking(move || {
        std::fs::read_to_string(&path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_named() {
        let why = read_text(Path::new("/no/such/file")).await.unwrap_err();
        assert!(why.starts_with("/no/such/file cannot be read: "), "{why}");
    }

    #[tokio::test]
    #[should_panic(expected = "as it should")]
    async fn a_panic_comes_to_whoever_waits() {
        blocking(|| panic!("as it should")).await;
    }

    #[tokio::test]
    async fn what_hangs_leaves_threads_for_others_however_often_it_is_tried_again() {
        static ROOM: Semaphore = Semaphore::const_new(2);
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let (held, begun) = (Arc::clone(&held), Arc::clone(&begun));
            let hanging = blocking_within(&ROOM, move || {
                begun.fetch_add(1, Ordering::SeqCst);
                let _ = held.lock().unwrap().recv();
            });
            let patience = Duration::from_millis(10);
            assert!(timeout(patience, hanging).await.is_err());
        }
        assert!(begun.load(Ordering::SeqCst) <= 2);
        drop(release);
        assert_eq!(blocking_within(&ROOM, || 7).await, 7);
    }
}
