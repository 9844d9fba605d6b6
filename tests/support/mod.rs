//! What tests with real servers need: servers of their own on free ports, directories that vanish, and
//! a proxy that does to a connection what networks do.
#![allow(dead_code, unused_imports, clippy::missing_panics_doc)]

mod kubernetes;
mod launcher;
mod proxy;
mod redis;
mod server;
mod standin;

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use kubernetes::{Kubernetes, User};
pub use proxy::{Proxy, Scripted, Trouble};
pub use redis::{Redis, free_port};
pub use server::{Kind, Server};
pub use standin::{Answer, Certificate, Client, Events, Fault, Request, StandIn};

/// A directory that is deleted at the end.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("whenleader-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits for something that must become true, far longer than it ever takes.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A server that was killed is not there any more, nor what it had just begun.
pub async fn gone(port: u16) {
    eventually("nobody is there", async || {
        let found = std::net::TcpStream::connect(("127.0.0.1", port));
        found.is_err().then_some(())
    })
    .await;
}

/// Says that a test was not run, once for its reason, and that this is no success where all must run.
pub fn skip(test: &str, why: &str) {
    // Not with println: the test runner keeps that to itself when a test passes.
    let _ = writeln!(std::io::stdout(), "SKIPPED: {test}: {why}");
    assert!(env::var_os("CI").is_none(), "{test} must run here: {why}");
}
