//! Figures of the stores, for whoever changes them: how fast a lease changes hands, and what an idle
//! follower costs. They assert nothing, so they run only when asked for:
//! `cargo test --no-default-features --test backend_figures -- --ignored --nocapture --test-threads 1`
#![cfg(target_os = "linux")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use whenleader::backend::{self, Attempt, Backend, StoreOptions};
use whenleader::clock::SystemClock;
use whenleader::lease::{ElectionName, Hint, InstanceId, Outcome, Owner, Token};

use support::{Kind, Redis, Server, TempDir};

const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);

fn name(number: usize) -> ElectionName {
    ElectionName::new(&format!("e{number}")).unwrap()
}

fn owner(nonce: u64) -> Owner {
    Owner {
        instance: InstanceId::new("figures").unwrap(),
        nonce,
    }
}

fn open(url: &str) -> Arc<dyn Backend> {
    backend::open(url, &StoreOptions::new("."), Arc::new(SystemClock)).unwrap()
}

async fn attempt(
    backend: &dyn Backend,
    election: &ElectionName,
    owner: &Owner,
    term: Option<Token>,
) -> Outcome {
    let attempt = Attempt {
        election,
        owner,
        duration: LEASE,
        term,
    };
    backend.attempt(&attempt).await.unwrap()
}

async fn win(backend: &dyn Backend, election: &ElectionName, owner: &Owner) -> Option<Token> {
    match attempt(backend, election, owner, None).await {
        Outcome::Held { token, .. } => Some(token),
        Outcome::Other { .. } => None,
    }
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_secs_f64() * 1e3;
    println!(
        "{what}: min {:.2} p50 {:.2} p95 {:.2} max {:.2} ms ({} times)",
        at(0),
        at(50),
        at(95),
        at(100),
        times.len()
    );
}

/// A process that leads so many elections and renews them, until it is killed.
struct Leader(Child);

impl Leader {
    fn start(url: &str, elections: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["a_leader", "--exact", "--ignored", "--nocapture"])
            .env("WHENLEADER_FIGURES", format!("{elections} {url}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let ready = says
            .lines()
            .map_while(Result::ok)
            .any(|line| line.contains("leading"));
        assert!(ready);
        Self(child)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No figure: what [`Leader`] runs.
#[tokio::test]
#[ignore = "part of the figures"]
async fn a_leader() {
    let Ok(told) = std::env::var("WHENLEADER_FIGURES") else {
        return;
    };
    let (count, url) = told.split_once(' ').unwrap();
    let (backend, owner) = (open(url), owner(u64::from(std::process::id())));
    backend.prepare().await.unwrap();
    let mut terms = Vec::new();
    for number in 0..count.parse().unwrap() {
        terms.push(win(&*backend, &name(number), &owner).await.unwrap());
    }
    println!("leading");
    loop {
        let start = Instant::now();
        for (number, token) in terms.iter().enumerate() {
            attempt(&*backend, &name(number), &owner, Some(*token)).await;
        }
        tokio::time::sleep(RENEW.saturating_sub(start.elapsed())).await;
    }
}

/// CPU time of this process so far, all threads.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

async fn hand_over(what: &str, url: &str, rounds: usize) {
    let (a, b) = (open(url), open(url));
    a.prepare().await.unwrap();
    b.prepare().await.unwrap();
    let (one, two, election) = (owner(1), owner(2), name(0));
    let (hints, mut heard) = mpsc::channel(64);
    let watch = tokio::spawn(Arc::clone(&b).watch(election.clone(), hints).unwrap());
    let (mut times, mut renewals, mut terms) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let start = Instant::now();
        let token = win(&*a, &election, &one).await.unwrap();
        terms.push(start.elapsed());
        let start = Instant::now();
        attempt(&*a, &election, &one, Some(token)).await;
        renewals.push(start.elapsed());
        tokio::time::sleep(Duration::from_millis(30 + round as u64 % 10)).await;
        while heard.try_recv().is_ok() {}
        let start = Instant::now();
        a.release(&election, &one, token).await.unwrap();
        while heard.recv().await.unwrap() != Hint::Free {}
        let token = win(&*b, &election, &two).await.unwrap();
        times.push(start.elapsed());
        b.release(&election, &two, token).await.unwrap();
    }
    watch.abort();
    show(&format!("{what}, a term begins"), terms);
    show(&format!("{what}, a renewal"), renewals);
    show(
        &format!("{what}, hand-over from release to the next term"),
        times,
    );
}

async fn idle(what: &str, url: &str, elections: usize) {
    let leader = Leader::start(url, elections);
    let backend = open(url);
    backend.prepare().await.unwrap();
    let mut watches = Vec::new();
    for number in 0..elections {
        let (hints, mut heard) = mpsc::channel(64);
        watches.push(tokio::spawn(
            Arc::clone(&backend).watch(name(number), hints).unwrap(),
        ));
        watches.push(tokio::spawn(async move {
            while heard.recv().await.is_some() {}
        }));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (start, before) = (Instant::now(), cpu());
    tokio::time::sleep(RENEW * 3).await;
    let used = cpu().saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64();
    println!(
        "{what}, an idle follower of {elections} elections: {:.2} % of one core",
        used * 100.0
    );
    for watch in watches {
        watch.abort();
    }
    drop(leader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "figures"]
async fn embedded() {
    let dir = TempDir::new();
    let url = format!("file:{}", dir.path().display());
    hand_over("embedded", &url, 100).await;

    let (backend, me, election) = (open(&url), owner(3), name(0));
    backend.prepare().await.unwrap();
    let (hints, mut heard) = mpsc::channel(64);
    let watch = tokio::spawn(Arc::clone(&backend).watch(election.clone(), hints).unwrap());
    let mut times = Vec::new();
    for _ in 0..30 {
        let mut leader = Leader::start(&url, 1);
        while !matches!(heard.recv().await.unwrap(), Hint::Alive { .. }) {}
        tokio::time::sleep(Duration::from_millis(50)).await;
        while heard.try_recv().is_ok() {}
        let start = Instant::now();
        leader.0.kill().unwrap();
        while heard.recv().await.unwrap() != Hint::Free {}
        let token = win(&*backend, &election, &me).await.unwrap();
        times.push(start.elapsed());
        backend.release(&election, &me, token).await.unwrap();
    }
    show("embedded, takeover after kill -9", times);
    watch.abort();
    for elections in [1, 1_000] {
        let dir = TempDir::new();
        idle(
            "embedded",
            &format!("file:{}", dir.path().display()),
            elections,
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "figures"]
async fn redis() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let Some(server) = Redis::start("figures", kind, &[]) else {
            continue;
        };
        hand_over(&format!("{kind:?}"), &server.url(), 100).await;
        for elections in [1, 1_000] {
            server.ask_well(&["FLUSHALL"]);
            idle(&format!("{kind:?}"), &server.url(), elections).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "figures"]
async fn mariadb() {
    let Some(server) = Server::shared("figures", Kind::MariaDb) else {
        return;
    };
    let (a, b) = (open(server.url()), open(server.url()));
    a.prepare().await.unwrap();
    b.prepare().await.unwrap();
    let (one, two, election) = (owner(1), owner(2), name(0));
    let (mut terms, mut renewals, mut denied) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..200 {
        let start = Instant::now();
        let token = win(&*a, &election, &one).await.unwrap();
        terms.push(start.elapsed());
        let start = Instant::now();
        attempt(&*a, &election, &one, Some(token)).await;
        renewals.push(start.elapsed());
        let start = Instant::now();
        assert_eq!(win(&*b, &election, &two).await, None);
        denied.push(start.elapsed());
        a.release(&election, &one, token).await.unwrap();
    }
    show("MariaDB, a term begins", terms);
    show("MariaDB, a renewal", renewals);
    show("MariaDB, a follower asks", denied);
}
