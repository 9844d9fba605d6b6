//! Runs many seeds on some threads, and tells what came of them.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(election_only)]
use crate::scenario::{Class, Family};
use crate::scenario::{Fault, Wanted};
use crate::world::{Figures, run};

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seeds: u64,
    pub first: u64,
    pub threads: u64,
    pub wanted: Wanted,
    pub trace: bool,
    /// Stop at the first violation.
    pub hunt: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seeds: 10_000,
            first: 0,
            threads: 2,
            wanted: Wanted::default(),
            trace: false,
            hunt: false,
        }
    }
}

#[cfg(election_only)]
const USAGE: &str = "\
  --seeds N        how many (10000)
  --first N        the first of them (0)
  --seed N         only this one, with a trace
  --threads N      (2)
  --family F       store | followers: who judges expiry (both)
  --class C        ordinary | bound | deletion | lost-write | beyond (all but the last)
  --told           only servers that tell their leases
  --hasty          whose leases become shorter while somebody leads
  --hunt           stop at the first violation";

#[cfg(election_only)]
impl Plan {
    pub fn from_args(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut plan = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |text: String| {
                text.parse::<u64>()
                    .map_err(|_| format!("{text:?} is no number"))
            };
            match arg.as_str() {
                "--seeds" => plan.seeds = number(value()?)?,
                "--first" => plan.first = number(value()?)?,
                "--threads" => plan.threads = number(value()?)?.max(1),
                "--seed" => {
                    plan.first = number(value()?)?;
                    (plan.seeds, plan.threads, plan.trace) = (1, 1, true);
                }
                "--hunt" => plan.hunt = true,
                "--told" => plan.wanted.told = true,
                "--hasty" => plan.wanted.hasty = true,
                "--family" => {
                    plan.wanted.family = Some(match value()?.as_str() {
                        "store" => Family::StoreJudges,
                        "followers" => Family::FollowersJudge,
                        other => return Err(format!("there is no family {other:?}")),
                    });
                }
                "--class" => {
                    plan.wanted.class = Some(match value()?.as_str() {
                        "ordinary" => Class::Ordinary,
                        "bound" => Class::OnTheBound,
                        "deletion" => Class::Deletion,
                        "lost-write" => Class::LostWrite,
                        "beyond" => Class::BeyondTheBound,
                        other => return Err(format!("there is no class {other:?}")),
                    });
                }
                _ => return Err(format!("{arg:?} is unknown:\n{USAGE}")),
            }
        }
        Ok(plan)
    }
}

#[derive(Debug, Default)]
pub struct Report {
    pub figures: Figures,
    /// The first few, each with its seed.
    pub violations: Vec<(u64, String)>,
    pub violated: u64,
    took: Duration,
}

/// Violations that are told in full.
const TOLD: usize = 5;

pub fn simulate(plan: Plan) -> Report {
    let begun = Instant::now();
    let next = AtomicU64::new(plan.first);
    let end = plan.first.saturating_add(plan.seeds);
    let mut report = Report::default();
    std::thread::scope(|scope| {
        let work = || {
            let mut mine = Report::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return mine;
                }
                let ran = catch_unwind(AssertUnwindSafe(|| run(seed, plan.wanted, plan.trace)));
                let (figures, result) = ran.unwrap_or_else(|panic| {
                    let what = panic.downcast_ref::<String>().cloned();
                    let what = what.or_else(|| Some((*panic.downcast_ref::<&str>()?).into()));
                    (Figures::default(), Err(format!("panicked: {what:?}")))
                });
                mine.figures.add(&figures);
                if let Err(what) = result {
                    mine.violated += 1;
                    if mine.violations.len() < TOLD {
                        mine.violations.push((seed, what));
                    }
                    if plan.hunt {
                        next.store(end, Ordering::Relaxed);
                    }
                }
            }
        };
        let threads: Vec<_> = (0..plan.threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let theirs = thread.join().expect("a thread of the simulation");
            report.figures.add(&theirs.figures);
            report.violated += theirs.violated;
            report.violations.extend(theirs.violations);
        }
    });
    report.violations.sort();
    report.violations.truncate(TOLD);
    report.took = begun.elapsed();
    report
}

impl Report {
    pub fn text(&self) -> String {
        let figures = &self.figures;
        let hours = figures.nanos / 3_600_000_000_000;
        let seconds = self.took.as_secs_f64();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "FIGURES: {} seeds, {hours} simulated hours, {} terms, {} requests, {} events in {seconds:.1} s",
            figures.seeds, figures.terms, figures.requests, figures.events
        );
        let _ = write!(text, "FIGURES: faults:");
        for (fault, count) in Fault::ALL.iter().zip(figures.faults) {
            let _ = write!(text, " {fault:?} {count}");
        }
        let _ = writeln!(
            text,
            "\nFIGURES: {} violations, worst recovery {:.3} (L + R), {} overlaps that a store's own loss explains",
            self.violated,
            thousandths(figures.worst_recovery),
            figures.excused
        );
        let _ = writeln!(
            text,
            "FIGURES: told leases: {} seeds, {} changes of their length, worst recovery {:.3} L",
            figures.told_seeds,
            figures.lease_changes,
            thousandths(figures.worst_told_recovery)
        );
        for (seed, what) in &self.violations {
            let _ = writeln!(text, "seed {seed}: {what}");
        }
        text
    }
}

#[allow(clippy::cast_precision_loss)]
fn thousandths(number: u64) -> f64 {
    number as f64 / 1_000.0
}
