//! What may block: files lie on slow disks, and all elections share one thread.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

/// Runs it on a thread of its own. Whoever stops waiting does not end it.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
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
}
