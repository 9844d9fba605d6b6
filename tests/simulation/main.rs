//! The election, simulated: years of it, with every fault that we could think of, from one number.
//!
//! The product's own pure modules run here unchanged; the world around them is made up, and its time is
//! true. A seed decides everything, so whatever is found can be found again.
//!
//! ```text
//! cargo test --no-default-features --test simulation          what CI runs
//!
//! rustc --edition 2024 -O --cfg election_only tests/simulation/main.rs -o target/simulate
//! target/simulate --seeds 1000000                             any number of seeds
//! target/simulate --seed 42                                   one of them, with its trace
//! target/simulate --told                                      servers that tell their leases
//! ```
//!
//! The second way needs no crate, only the pure modules (`--cfg election_only`): so `mutations.rs` builds
//! it again and again, each time with another bug.
//!
//! - `scenario`: what a seed makes of the world
//! - `world`: the run, its faults, and the rules between instances
//! - `checker`: the rules for each instance
//! - `store`, `adapter`: the reference stores, and what stands between them and a candidate
//! - `clocks`, `random`: time and chance
//! - `command`: many seeds

#![cfg_attr(election_only, allow(dead_code))]

#[cfg(election_only)]
#[path = "../../src/candidate.rs"]
mod candidate;
#[cfg(election_only)]
#[path = "../../src/clock.rs"]
mod clock;
#[cfg(election_only)]
#[path = "../../src/lease.rs"]
mod lease;
#[cfg(election_only)]
#[path = "../../src/observation.rs"]
mod observation;
#[cfg(election_only)]
#[path = "../../src/term.rs"]
mod term;
#[cfg(election_only)]
#[path = "../../src/timing.rs"]
mod timing;
#[cfg(not(election_only))]
use whenleader::{candidate, clock, lease, observation, term, timing};

#[cfg(election_only)]
mod atomics {
    pub use std::sync::atomic::{AtomicU64, Ordering};
}

mod adapter;
mod checker;
mod clocks;
mod command;
mod random;
mod scenario;
mod store;
mod world;

#[cfg(election_only)]
fn main() {
    let plan = command::Plan::from_args(std::env::args().skip(1)).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2);
    });
    let report = command::simulate(plan);
    print!("{}", report.text());
    std::process::exit(i32::from(report.violated > 0));
}

#[cfg(all(test, not(election_only)))]
mod tests {
    use crate::command::{Plan, simulate};
    use crate::scenario::{Class, Wanted};

    /// `SEEDS=1000000 cargo test ...` runs more of them.
    #[test]
    fn two_instances_never_both_lead_and_somebody_leads_within_lease_and_interval() {
        let seeds = std::env::var("SEEDS").ok();
        let seeds = seeds.map_or(200_000, |seeds| seeds.parse().expect("SEEDS is a number"));
        let report = simulate(Plan {
            seeds,
            ..Plan::default()
        });
        println!("{}", report.text());
        assert_eq!(report.violated, 0, "replay it: see the top of this file");
        assert!(
            report.figures.faults.iter().all(|count| *count > 0),
            "a kind of fault never happened"
        );
        assert!(report.figures.told_seeds > seeds / 20 && report.figures.lease_changes > 0);
    }

    /// Every seed of it has clocks that drift apart by exactly as much as S allows.
    #[test]
    fn the_drift_that_the_documents_promise_is_survived() {
        let report = simulate(Plan {
            seeds: 10_000,
            first: 1_000_000,
            wanted: Wanted {
                class: Some(Class::OnTheBound),
                ..Wanted::default()
            },
            ..Plan::default()
        });
        println!("{}", report.text());
        assert_eq!(report.violated, 0);
    }

    #[test]
    fn so_is_the_drift_that_the_margin_of_a_told_lease_leaves_and_not_more() {
        let told = |seeds, class| {
            let wanted = Wanted {
                class: Some(class),
                told: true,
                ..Wanted::default()
            };
            simulate(Plan {
                seeds,
                wanted,
                ..Plan::default()
            })
        };
        let report = told(10_000, Class::OnTheBound);
        println!("{}", report.text());
        assert_eq!(report.violated, 0);
        let report = told(1_000, Class::BeyondTheBound);
        println!("{} of 1000 seeds show two leaders", report.violated);
        assert!(report.violated > 10);
    }

    /// Why a server must be away for a lease before it lends shorter ones.
    #[test]
    fn leases_that_become_shorter_while_somebody_leads_give_two_leaders() {
        let report = simulate(Plan {
            seeds: 1_000,
            wanted: Wanted {
                class: Some(Class::Ordinary),
                told: true,
                hasty: true,
                ..Wanted::default()
            },
            ..Plan::default()
        });
        println!("{} of 1000 seeds show two leaders", report.violated);
        assert!(report.violated > 5);
    }

    #[test]
    fn half_a_percent_more_is_not_and_the_checker_sees_it() {
        let report = simulate(Plan {
            seeds: 1_000,
            wanted: Wanted {
                class: Some(Class::BeyondTheBound),
                ..Wanted::default()
            },
            ..Plan::default()
        });
        println!("{} of 1000 seeds show two leaders", report.violated);
        assert!(report.violated > 10);
        assert!(
            report
                .violations
                .iter()
                .all(|(_, what)| what.ends_with("lead")),
            "{:?}",
            report.violations
        );
    }
}
