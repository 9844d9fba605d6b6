//! What is counted, in the text format of Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::elections::CheckedIn;
use crate::backend::BackendError;

/// The upper ends of the histogram's buckets, in seconds.
const BUCKETS: [f64; 11] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
];

#[derive(Debug, Default)]
pub(super) struct Metrics {
    granted: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    changes: AtomicU64,
    /// One more for what is longer than the last bucket.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
    answered: [AtomicU64; 5],
}

impl Metrics {
    pub fn checked_in(&self, took: Duration, result: &Result<CheckedIn, BackendError>) {
        add(match result {
            Ok(checked_in) if checked_in.told.is_some() => &self.granted,
            Ok(_) => &self.denied,
            Err(_) => &self.failed,
        });
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|end| seconds <= *end);
        add(&self.buckets[bucket.unwrap_or(BUCKETS.len())]);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub fn changed(&self) {
        add(&self.changes);
    }

    pub fn answered(&self, status: u16) {
        if let Some(class) = self
            .answered
            .get(usize::from(status / 100).saturating_sub(1))
        {
            add(class);
        }
    }

    pub fn text(&self, resources: usize, led: usize) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
            let _ = writeln!(
                text,
                "# HELP whenleader_{name} {help}\n# TYPE whenleader_{name} {kind}"
            );
            for (labels, value) in values {
                let _ = writeln!(text, "whenleader_{name}{labels} {value}");
            }
        };
        let plain = |value| vec![(String::new(), value)];
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        metric(
            "elections",
            "gauge",
            "Resources that this server was asked about.",
            &plain(count(resources)),
        );
        metric(
            "elections_led",
            "gauge",
            "Resources with a leader, as this server saw them last: at a check-in with it, or for a status.",
            &plain(count(led)),
        );
        let outcome = |name: &str, value| (format!("{{outcome=\"{name}\"}}"), value);
        metric(
            "check_ins_total",
            "counter",
            "Check-ins, one for each resource, by what came of them.",
            &[
                outcome("granted", get(&self.granted)),
                outcome("denied", get(&self.denied)),
                outcome("failed", get(&self.failed)),
            ],
        );
        metric(
            "leader_changes_total",
            "counter",
            "Other leaders than before, and releases.",
            &plain(get(&self.changes)),
        );
        let classes: Vec<_> = (1..)
            .zip(&self.answered)
            .skip(1)
            .map(|(class, number)| (format!("{{status=\"{class}xx\"}}"), get(number)))
            .collect();
        metric(
            "http_responses_total",
            "counter",
            "Answers by the class of their status.",
            &classes,
        );
        let name = "whenleader_check_in_duration_seconds";
        let _ = writeln!(
            text,
            "# HELP {name} How long a check-in of one resource took.\n# TYPE {name} histogram"
        );
        let mut sum = 0;
        for (number, bucket) in self.buckets.iter().enumerate() {
            sum += get(bucket);
            match BUCKETS.get(number) {
                Some(end) => {
                    let _ = writeln!(text, "{name}_bucket{{le=\"{end}\"}} {sum}");
                }
                None => {
                    let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {sum}");
                }
            }
        }
        let total = Duration::from_micros(get(&self.micros)).as_secs_f64();
        let _ = writeln!(text, "{name}_sum {total}\n{name}_count {sum}");
        text
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
