//! The simulation must see what it is there to see: each of these bugs, put into the real source, must
//! be found by it. One that is not found fails this test, and so does one whose text is no longer there.
//!
//! ```text
//! cargo test --no-default-features --test mutations -- --show-output     all of them
//! MUTANT="no margin" cargo test ...                                      those with such a name
//! ```
//!
//! A mutant is a copy of the pure modules and of the simulation with some text replaced, compiled by
//! `rustc` alone: it needs no crate (see `simulation/main.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

struct Mutant {
    name: &'static str,
    /// What the simulation shall be asked for, if chance alone would take long.
    hints: &'static [&'static str],
    /// File, text that occurs in it exactly once, and what replaces it.
    edits: &'static [(&'static str, &'static str, &'static str)],
}

/// In so many runs each must be found: a quarter of what the simulation runs in a test.
const SEEDS: u32 = 50_000;

const CANDIDATE: &str = "src/candidate.rs";
const TERM: &str = "src/term.rs";
const TIMING: &str = "src/timing.rs";
const OBSERVATION: &str = "src/observation.rs";
const STORE: &str = "tests/simulation/store.rs";
const ADAPTER: &str = "tests/simulation/adapter.rs";
const CLOCKS: &str = "tests/simulation/clocks.rs";
const WORLD: &str = "tests/simulation/world.rs";

const BOUND: &[&str] = &["--class", "bound"];
const TOLD: &[&str] = &["--told"];
const TOLD_BOUND: &[&str] = &["--told", "--class", "bound"];

const MUTANTS: &[Mutant] = &[
    // ---- what a leader trusts ----
    Mutant {
        name: "the deadline of a new term counts from the answer",
        hints: BOUND,
        edits: &[(
            CANDIDATE,
            "let deadline = anchor.plus(self.rules.timing.lead_limit(valid_for));",
            "let deadline = now + self.rules.timing.lead_limit(valid_for);",
        )],
    },
    Mutant {
        name: "the deadline after a renewal counts from the answer",
        hints: BOUND,
        edits: &[(
            CANDIDATE,
            "self.renewed(pending.anchor, valid_for);",
            "self.renewed(Anchor::before_sending(now), valid_for);",
        )],
    },
    Mutant {
        name: "no margin: the lease is trusted to its end",
        hints: &[],
        edits: &[(
            TIMING,
            "self.lead_limit.min(self.latest_lead(valid_for))",
            "self.lease.min(valid_for)",
        )],
    },
    Mutant {
        name: "a shorter grant does not shorten the trust",
        hints: &[],
        edits: &[(
            TIMING,
            "self.lead_limit.min(self.latest_lead(valid_for))",
            "self.lead_limit.max(valid_for / 100)",
        )],
    },
    Mutant {
        name: "a flag without a clock",
        hints: &[],
        edits: &[(
            TERM,
            "now.as_nanos() < self.deadline.load(Ordering::Acquire)",
            "now.as_nanos() > ENDED && self.deadline.load(Ordering::Acquire) != ENDED",
        )],
    },
    Mutant {
        name: "still the leader at the deadline itself",
        hints: BOUND,
        edits: &[(
            TERM,
            "now.as_nanos() < self.deadline.load(Ordering::Acquire)",
            "now.as_nanos() <= self.deadline.load(Ordering::Acquire)",
        )],
    },
    Mutant {
        name: "a pending attempt keeps leading",
        hints: &[],
        edits: &[
            (
                CANDIDATE,
                "Standing::Leader(term) => Some((term.token, term.deadline)),",
                "Standing::Leader(term) if self.pending.is_some() => Some((term.token, Moment::NEVER)),
                Standing::Leader(term) => Some((term.token, term.deadline)),",
            ),
            (
                CANDIDATE,
                "&& now >= term.deadline",
                "&& now >= term.deadline && self.pending.is_none()",
            ),
        ],
    },
    Mutant {
        name: "a renewal without an answer extends the term",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "(Standing::Follower, _) if self.stopping => self.finish_stop(out),",
            "(Standing::Leader(term), _) => {
                let timing = &self.rules.timing;
                term.deadline = pending.anchor.plus(timing.lead_limit(timing.lease()));
            }
            (Standing::Follower, _) if self.stopping => self.finish_stop(out),",
        )],
    },
    Mutant {
        name: "a denied renewal is ignored",
        hints: &["--class", "deletion"],
        edits: &[(
            CANDIDATE,
            "                if let Op::Renew(_) = op {",
            "                if false {",
        )],
    },
    Mutant {
        name: "a clock that stands still in a suspend",
        hints: &[],
        edits: &[(
            CLOCKS,
            "COUNTS_SUSPENDS: bool = true",
            "COUNTS_SUSPENDS: bool = false",
        )],
    },
    Mutant {
        name: "the wall clock",
        hints: &[],
        edits: &[(
            CLOCKS,
            "READS_WALL_CLOCK: bool = false",
            "READS_WALL_CLOCK: bool = true",
        )],
    },
    // ---- leases that the server tells ----
    Mutant {
        name: "a told lease is ignored",
        hints: TOLD,
        edits: &[(
            CANDIDATE,
            "Input::LeaseTold(lease) => self.rules.timing = self.rules.timing.told_anew(lease),",
            "Input::LeaseTold(_) => {}",
        )],
    },
    Mutant {
        name: "a told lease counts only after the answer that told it",
        hints: TOLD,
        edits: &[(
            WORLD,
            "        if let Some(lease) = told {
            self.tell(index, Input::LeaseTold(lease));
        }
        self.tell(index, Input::Answer { request, answer });",
            "        self.tell(index, Input::Answer { request, answer });
        if let Some(lease) = told {
            self.tell(index, Input::LeaseTold(lease));
        }",
        )],
    },
    Mutant {
        name: "a told lease is trusted to its end",
        hints: TOLD_BOUND,
        edits: &[(
            TIMING,
            "latest_stop(lease).max(lease.saturating_sub(lease / TOLD_MARGIN_DIVISOR))",
            "lease",
        )],
    },
    Mutant {
        name: "half the margin for short told leases",
        hints: TOLD_BOUND,
        edits: &[(
            TIMING,
            "TOLD_MARGIN_DIVISOR: u32 = 10",
            "TOLD_MARGIN_DIVISOR: u32 = 20",
        )],
    },
    Mutant {
        name: "a told lease is trusted instead of the one that was granted",
        hints: TOLD,
        edits: &[(
            TIMING,
            "self.lead_limit.min(self.latest_lead(valid_for))",
            "if self.told { self.lead_limit } else { self.lead_limit.min(latest_stop(valid_for)) }",
        )],
    },
    Mutant {
        name: "a told lease moves the deadline of the running term",
        hints: TOLD,
        edits: &[
            (
                CANDIDATE,
                "Input::LeaseTold(lease) => self.rules.timing = self.rules.timing.told_anew(lease),",
                "Input::LeaseTold(lease) => {
                let before = self.rules.timing.lead_limit(Duration::MAX);
                self.rules.timing = self.rules.timing.told_anew(lease);
                let longer = self.rules.timing.lead_limit(lease).saturating_sub(before);
                if let Standing::Leader(term) = &mut self.standing {
                    term.deadline = term.deadline + longer;
                }
            }",
            ),
        ],
    },
    Mutant {
        name: "work is called an overrun by the lease that was told last",
        hints: TOLD,
        edits: &[(TIMING, "self.latest_stop(self.lease.min(valid_for))", "self.latest_stop(self.lease)")],
    },
    Mutant {
        name: "a follower sleeps through the end of a told lease",
        hints: TOLD,
        edits: &[(
            TIMING,
            "self.spread(jitter).min(self.at_expiry(remaining, jitter))",
            "self.spread(jitter)",
        )],
    },
    // ---- answers that come late ----
    Mutant {
        name: "an answer to an older request is accepted",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "take_if(|pending| pending.id == id)",
            "take_if(|pending| pending.id >= id)",
        )],
    },
    Mutant {
        name: "a grant that comes after Stop is accepted",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "if !self.may_campaign(now) {",
            "if self.stalled {",
        )],
    },
    Mutant {
        name: "a term resumes under its old token after its end",
        hints: &[],
        edits: &[
            (
                CANDIDATE,
                "        self.pending = None;
        self.next = now;
        if let Some(term)",
                "        self.next = now;
        if let Some(term)",
            ),
            (
                CANDIDATE,
                "} else if let Some(unsettled) = &mut self.unsettled {",
                "} else if let (Standing::Follower, Some(ended)) = (&self.standing, &self.unsettled) {
            let deadline = anchor.plus(timing.lead_limit(valid_for));
            let token = ended.token;
            self.standing = Standing::Leader(Term { token, deadline, overrun });
        } else if let Some(unsettled) = &mut self.unsettled {",
            ),
        ],
    },
    // ---- liveness ----
    Mutant {
        name: "gives up after one loss",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "let retry = pending
            .anchor
            .plus(self.rules.timing.retry_after(self.failures));",
            "let retry = Moment::NEVER;",
        )],
    },
    Mutant {
        name: "a follower sleeps for a whole lease",
        hints: &[],
        edits: &[(
            TIMING,
            "Some(remaining) => self.pause(jitter).min(self.at_expiry(remaining, jitter)),",
            "Some(_) => self.lease,",
        )],
    },
    Mutant {
        name: "a follower looks on a fixed grid",
        hints: &["--family", "followers"],
        edits: &[(
            TIMING,
            "Some(remaining) => self.pause(jitter).min(self.at_expiry(remaining, jitter)),",
            "Some(_) => self.renew,",
        )],
    },
    Mutant {
        name: "attempts may take longer than R",
        hints: &[],
        edits: &[(
            TIMING,
            "        } else {
            self.renew
        }
    }

    /// How long one renewal may take when",
            "        } else {
            self.lease
        }
    }

    /// How long one renewal may take when",
        )],
    },
    Mutant {
        name: "a hot loop on errors",
        hints: &[],
        edits: &[(
            TIMING,
            "(self.renew / 2_u32.pow(halvings)).max(least)",
            "SHORTEST_GAP * 2_u32.pow(halvings)",
        )],
    },
    Mutant {
        name: "a hot loop at an expiry that does not come",
        hints: &[],
        edits: &[(
            TIMING,
            "Some(remaining) => self.pause(jitter).min(self.at_expiry(remaining, jitter)),",
            "Some(_) => SHORTEST_GAP,",
        )],
    },
    Mutant {
        name: "every tick sends a request",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "            Input::Tick => {}",
            "            Input::Tick => self.next = now,",
        )],
    },
    // ---- what the application is told ----
    Mutant {
        name: "a loss is told twice",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "        // A process that slept through all of it hears",
            "        out.push(Output::Demoted { token: term.token, reason });
        // A process that slept through all of it hears",
        )],
    },
    Mutant {
        name: "work is called an overrun only a while after it was told of its end",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "let overrun = if now < term.overrun {",
            "let overrun = if now + self.rules.timing.shortest_notice() < term.overrun {",
        )],
    },
    Mutant {
        name: "a promotion is told twice",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "        out.push(Output::Promoted { token });",
            "        out.push(Output::Promoted { token });
        out.push(Output::Promoted { token });",
        )],
    },
    Mutant {
        name: "a loss without its callback",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "out.push(Output::Demoted {
            token: term.token,
            reason,
        });",
            "let _ = (reason, out);",
        )],
    },
    Mutant {
        name: "an overrun is not told",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "            unsettled.overrun = Moment::NEVER;
            out.push",
            "            unsettled.overrun = Moment::NEVER;
            Vec::new().push",
        )],
    },
    Mutant {
        name: "one that only watches campaigns",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "(Op::Peek, timing.campaign_limit())",
            "(Op::Campaign, timing.campaign_limit())",
        )],
    },
    // ---- handing over ----
    Mutant {
        name: "a lease is released while callbacks still run",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "                callbacks_ended: false,",
            "                callbacks_ended: true,",
        )],
    },
    Mutant {
        name: "a yielded lease is not renewed",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "            Standing::Stopped => Moment::NEVER,
        };",
            "            Standing::Stopped => Moment::NEVER,
        };
        let yielding = matches!(self.standing, Standing::Yielding { .. });
        let next = if yielding { Moment::NEVER } else { next };",
        )],
    },
    Mutant {
        name: "a yielded lease is never released",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "            *callbacks_ended = true;",
            "            *callbacks_ended = *token != ended;",
        )],
    },
    Mutant {
        name: "a pending renewal delays the release",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "            } => return Moment::ORIGIN,",
            "            } => return self.next,",
        )],
    },
    Mutant {
        name: "a stop is answered twice",
        hints: &[],
        edits: &[(
            CANDIDATE,
            "            Standing::Follower => self.finish_stop(out),
            Standing::Releasing { .. } | Standing::Stopped => {}",
            "            Standing::Follower | Standing::Stopped => self.finish_stop(out),
            Standing::Releasing { .. } => {}",
        )],
    },
    // ---- stores and what stands before them ----
    Mutant {
        name: "released by the holder alone, whatever the term",
        hints: &["--family", "store"],
        edits: &[(
            STORE,
            "let ours = self.held().is_some_and(|held| held.by(by, token));",
            "let ours = self.held().is_some_and(|held| held.holder.is(by) || held.token == token);",
        )],
    },
    Mutant {
        name: "a token is used again after a release",
        hints: &["--family", "store"],
        edits: &[(
            STORE,
            "        if ours {
            self.lease = None;",
            "        if ours {
            self.last_token -= 1;
            self.lease = None;",
        )],
    },
    Mutant {
        name: "a takeover keeps the token",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "|largest| largest.number() + 1)",
            "|largest| largest.number())",
        )],
    },
    Mutant {
        name: "a token that was heard of is forgotten again",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "self.largest.max(number)",
            "self.largest.min(number)",
        )],
    },
    Mutant {
        name: "a conflict is judged by the name",
        hints: &[],
        edits: &[(
            STORE,
            "self.nonce == other.nonce",
            "self.name == other.name",
        )],
    },
    Mutant {
        name: "a record of one with the same name is taken for its own",
        hints: &["--family", "followers"],
        edits: &[(
            STORE,
            "#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {",
            "impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

#[derive(Debug, Clone, Copy, Eq, Hash)]
pub struct Holder {",
        )],
    },
    Mutant {
        name: "a takeover without compare-and-set",
        hints: &["--family", "followers"],
        edits: &[(
            STORE,
            "if expected != self.version {",
            "if expected > self.last_version {",
        )],
    },
    Mutant {
        name: "the holder's name is observed instead of the version",
        hints: &["--family", "followers"],
        edits: &[(
            ADAPTER,
            "self.observation.observe(version, record.duration, now)",
            "self.observation.observe(record.token + version * 0, record.duration, now)",
        )],
    },
    Mutant {
        name: "a takeover as soon as the record has stood for half its duration",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            ".saturating_sub(now.since(seen.since))",
            ".saturating_sub(now.since(seen.since) * 2)",
        )],
    },
    Mutant {
        name: "a campaign writes whatever the record says",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "Wish::Campaign if is_over || mine.is_some() =>",
            "Wish::Campaign =>",
        )],
    },
    Mutant {
        name: "a campaign that finds itself goes on without a new term",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "Wish::Campaign if is_over || mine.is_some() => Decision::Begin,",
            "Wish::Campaign if mine.is_some() => Decision::Renew,
        Wish::Campaign if is_over => Decision::Begin,",
        )],
    },
    Mutant {
        name: "expiry counts from the time that the writer put into the record",
        hints: &["--family", "followers"],
        edits: &[
            (
                STORE,
                "    pub token: u64,
    pub duration: Duration,",
                "    pub token: u64,
    pub written: Moment,
    pub duration: Duration,",
            ),
            (
                STORE,
                "                token: 0,",
                "                token: 0,
                written: Moment::ORIGIN,",
            ),
            (
                ADAPTER,
                "                token: next_token(record),",
                "                token: next_token(record),
                written: now,",
            ),
            (
                ADAPTER,
                "Decision::Renew => Record {",
                "Decision::Renew => Record {
                written: now,",
            ),
            (
                ADAPTER,
                "Some(self.observation.observe(version, record.duration, now))",
                "self.observation.observe(version, record.duration, record.written);
        self.observation.remaining(now)",
            ),
        ],
    },
    Mutant {
        name: "a release by the holder alone, whatever the term",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "Wish::Release(term) if is_current(term) =>",
            "Wish::Release(_) if mine.is_some() =>",
        )],
    },
    Mutant {
        name: "an expired lease is left alone",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "remaining.is_none_or(|remaining| remaining.is_zero())",
            "remaining.is_none()",
        )],
    },
    Mutant {
        name: "a renewal by the holder alone, whatever the term",
        hints: &["--family", "followers", "--class", "lost-write"],
        edits: &[(
            OBSERVATION,
            "Wish::Renew(term) if is_current(term) =>",
            "Wish::Renew(_) if mine.is_some() =>",
        )],
    },
    Mutant {
        name: "a renewal of whatever the record has become",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "Wish::Renew(term) if is_current(term) =>",
            "Wish::Renew(_) if named.is_some() =>",
        )],
    },
    Mutant {
        name: "a renewal of a term of that number, whoever holds it",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "named.filter(|(owner, _)| *owner == me)",
            "named.filter(|(owner, _)| *owner == me || wish != Wish::Campaign)",
        )],
    },
    Mutant {
        name: "a release of whatever the record has become",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "Wish::Release(term) if is_current(term) =>",
            "Wish::Release(_) if named.is_some() =>",
        )],
    },
    Mutant {
        name: "the answer to a denied renewal is a new term",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            "Wish::Release(term) if is_current(term) => Decision::Release,",
            "Wish::Renew(_) if is_over => Decision::Begin,
        Wish::Release(term) if is_current(term) => Decision::Release,",
        )],
    },
    Mutant {
        name: "what was seen of a lease is kept when it is released",
        hints: &["--family", "followers"],
        edits: &[(
            ADAPTER,
            "            self.observation.clear();
            return None;",
            "            return self.observation.remaining(now);",
        )],
    },
    Mutant {
        name: "observed at the send of a look instead of its receipt",
        hints: &["--family", "followers"],
        edits: &[(
            WORLD,
            "adapter.has_read(working_on.op, read, now)",
            "adapter.has_read(working_on.op, read, begun)",
        )],
    },
    Mutant {
        name: "a follower counts its own duration instead of the record's",
        hints: &["--family", "followers"],
        edits: &[(
            ADAPTER,
            "self.observation.observe(version, record.duration, now)",
            "self.observation.observe(version, self.lease, now)",
        )],
    },
    Mutant {
        name: "a new version does not begin the wait again",
        hints: &["--family", "followers"],
        edits: &[(
            OBSERVATION,
            ".is_none_or(|seen| seen.version != version)",
            ".is_none_or(|seen| seen.version != version && seen.duration != duration)",
        )],
    },
];

#[test]
fn every_bug_that_is_put_into_the_election_is_found() {
    let wanted = std::env::var("MUTANT").unwrap_or_default();
    let mutants: Vec<_> = MUTANTS
        .iter()
        .filter(|mutant| mutant.name.contains(&wanted))
        .collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match hunt(mutant) {
                        Ok((found, took)) => println!("{}: {found} ({took:.1?})", mutant.name),
                        Err(why) => failures
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(format!("{}: {why}", mutant.name)),
                    }
                }
            });
        }
    });
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    println!(
        "FIGURES: {} of {} planted bugs found in {:.0?}",
        mutants.len() - failures.len(),
        mutants.len(),
        begun.elapsed()
    );
    assert!(!mutants.is_empty(), "no mutant has such a name");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What the simulation said of it.
fn hunt(mutant: &Mutant) -> Result<(String, Duration), String> {
    let begun = Instant::now();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("mutants")
        .join(mutant.name.replace(|c: char| !c.is_alphanumeric(), "-"));
    copy_sources(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (file, find, replacement) in mutant.edits {
        let path = folder.join(file);
        let source = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let found = source.matches(find).count();
        if found != 1 {
            return Err(format!("this text is {found} times in {file}:\n{find}"));
        }
        let source = source.replace(find, replacement);
        std::fs::write(&path, source).map_err(|error| error.to_string())?;
    }
    let program = folder.join("simulate");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = Command::new(rustc)
        .args([
            "--edition",
            "2024",
            "--cfg",
            "election_only",
            "-A",
            "warnings",
        ])
        .args(["-C", "opt-level=1", "-C", "codegen-units=4", "-o"])
        .arg(&program)
        .arg(folder.join("tests/simulation/main.rs"))
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    if !compiled.status.success() {
        let errors = String::from_utf8_lossy(&compiled.stderr);
        return Err(format!("it does not compile:\n{errors}"));
    }
    let ran = Command::new(&program)
        .args(["--hunt", "--threads", "1", "--seeds", &SEEDS.to_string()])
        .args(mutant.hints)
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&ran.stdout);
    match (
        ran.status.code(),
        said.lines().rfind(|line| line.starts_with("seed ")),
    ) {
        (Some(1), Some(violation)) if !violation.contains("panicked") => {
            Ok((violation.to_owned(), begun.elapsed()))
        }
        _ => Err(format!("not found in {SEEDS} seeds: {said}")),
    }
}

fn copy_sources(to: &Path) -> std::io::Result<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "tests/simulation", "tests/simulation/world"] {
        std::fs::create_dir_all(to.join(folder))?;
        for entry in std::fs::read_dir(root.join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                std::fs::copy(entry.path(), to.join(folder).join(entry.file_name()))?;
            }
        }
    }
    Ok(())
}
