//! Redis and Valkey, each with a port and a directory of its own, ended by its own process id.
//!
//! Not by the launcher, as all others: a hundred tests want one of their own, and it is there within
//! 15 ms, a tenth of what a launcher takes.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use super::{Kind, TempDir};

/// The server's program, or what would bring it. Asked once: tools/servers knows.
fn find(kind: Kind) -> Result<&'static Path, String> {
    static REDIS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    static VALKEY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = match kind {
        Kind::Redis => &REDIS,
        Kind::Valkey => &VALKEY,
        _ => panic!("{kind:?} is started by the launcher"),
    };
    match found.get_or_init(|| kind.program()) {
        Ok(path) => Ok(path),
        Err(why) => Err(why.clone()),
    }
}

/// A running server. It ends with its value.
#[derive(Debug)]
pub struct Redis {
    kind: Kind,
    args: Vec<String>,
    pub port: u16,
    dir: TempDir,
    child: Option<Child>,
}

impl Redis {
    /// `None`: there is no such server here, and the test was reported as skipped.
    pub fn start(test: &str, kind: Kind, args: &[&str]) -> Option<Self> {
        if let Err(why) = find(kind) {
            super::skip(test, &why);
            return None;
        }
        // Another process may take a port between its choice and its use: the next try has another.
        for _ in 0..5 {
            let mut server = Self {
                kind,
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                port: free_port(),
                dir: TempDir::new(),
                child: None,
            };
            if server.run() {
                return Some(server);
            }
        }
        panic!("{kind:?} does not start");
    }

    fn run(&mut self) -> bool {
        let _ = std::fs::remove_file(self.socket());
        let child = Command::new(find(self.kind).unwrap())
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args([OsStr::new("--dir"), self.dir.path().as_os_str()])
            .args(["--unixsocket", self.socket().to_str().unwrap()])
            .args(["--repl-diskless-sync-delay", "0"])
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server's program runs");
        self.child = Some(child);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            // The port alone may be somebody else's. It opens the socket last.
            if self.socket().exists()
                && TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
            {
                return true;
            }
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Ends it at once, as a crash does.
    pub fn crash(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// It stands still and keeps its connections, until its value ends.
    pub fn freeze(&self) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let status = Command::new("kill").args(["-STOP", &pid]).status();
        assert!(status.unwrap().success());
    }

    /// On the same port, and as empty as it was at first.
    pub fn restart(&mut self) {
        self.crash();
        assert!(self.run(), "the server does not start again");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Asks the server something, on a connection of the test's own.
    pub fn ask(&self, command: &[impl AsRef<[u8]>]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection()?;
        let mut asked = redis::Cmd::new();
        for word in command {
            asked.arg(word.as_ref());
        }
        asked.query(&mut connection)
    }

    pub fn ask_well(&self, command: &[impl AsRef<[u8]>]) -> redis::Value {
        self.ask(command).expect("the server does what it is asked")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.crash();
    }
}

/// Below those that the systems give to outgoing connections: one of these would take it before the server
/// does, or, of whoever asks whether the server is there, meet itself.
pub fn free_port() -> u16 {
    std::iter::repeat_with(|| 15_000 + u16::try_from(getrandom::u32().unwrap() % 17_000).unwrap())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("it goes on until one is free")
}
