//! How one election is held: as its cluster says, or as `runWhenLeader()` wants its own.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{Config, ConfigError, Kind, OnOverrun, Section, did_you_mean, shown};
use crate::candidate::OnRenewError;
use crate::lease::ElectionName;
use crate::timing::Timing;

/// In errors.
const PLACE: &str = "runWhenLeader(): options";
/// Those that JavaScript keeps to itself, for the list of all.
const BESIDE: [&str; 2] = ["signal", "cluster"];
/// Those of time: a server that tells its leases decides them.
const TIMES: [&str; 4] = [
    "leaseDuration",
    "renewInterval",
    "leadLimit",
    "campaignInterval",
];
const OTHERS: [&str; 2] = ["onRenewError", "onOverrun"];

/// How one election is held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElectionOptions {
    pub timing: Timing,
    pub on_renew_error: OnRenewError,
    pub on_overrun: OnOverrun,
    /// How long the event loop may stand still. `None`: for ever.
    pub stall_timeout: Option<Duration>,
    /// It belongs to one piece of work: no other environment of this process may join it, and work that ends by
    /// itself stays out of it for no longer than a campaign interval.
    pub is_of_work: bool,
}

/// An election on a backend of its own, beside the cluster of the process.
#[derive(Debug, Clone)]
pub struct Apart {
    pub config: Config,
    pub options: ElectionOptions,
}

impl Config {
    /// Of all elections that want nothing of their own.
    pub fn election_options(&self) -> ElectionOptions {
        ElectionOptions {
            timing: self.timing,
            on_renew_error: self.on_renew_error,
            on_overrun: self.on_overrun,
            stall_timeout: self.stall_timeout(&self.timing),
            is_of_work: false,
        }
    }

    /// The one election of a backend of its own.
    pub fn apart(self) -> Apart {
        Apart {
            options: self.election_options(),
            config: self,
        }
    }

    /// The same for one piece of work, that of `runWhenLeader()`.
    pub fn apart_for_run(self, election: ElectionName, json: &str) -> Result<Apart, ConfigError> {
        let options = self.run_options(json)?;
        let config = Self {
            election,
            timing: options.timing,
            ..self
        };
        Ok(Apart { config, options })
    }

    /// Of an election that `runWhenLeader()` was called for.
    pub fn run_options(&self, json: &str) -> Result<ElectionOptions, ConfigError> {
        let told = matches!(self.kind, Kind::LeaderApi { .. });
        let options = read(json, told.then_some(self.timing))?;
        Ok(ElectionOptions {
            stall_timeout: self.stall_timeout(&options.timing),
            ..options
        })
    }

    fn stall_timeout(&self, timing: &Timing) -> Option<Duration> {
        let limit = self.stall_timeout;
        Some(limit.unwrap_or_else(|| timing.default_stall_timeout()))
            .filter(|limit| !limit.is_zero())
    }
}

/// What is wrong with them on any cluster.
pub fn check_run_options(json: &str) -> Result<(), ConfigError> {
    read(json, None).map(drop)
}

fn read(json: &str, told: Option<Timing>) -> Result<ElectionOptions, ConfigError> {
    let values: Map<String, Value> = serde_json::from_str(json)
        .map_err(|error| ConfigError::new(format!("{PLACE} must be an object: {error}")))?;
    let known = || TIMES.into_iter().chain(OTHERS);
    if let Some(key) = values.keys().find(|key| known().all(|known| known != *key)) {
        let all = known().chain(BESIDE);
        return Err(ConfigError::new(format!(
            "{PLACE}.{key} is not known{}; there are {}",
            did_you_mean(key, all.clone()),
            all.collect::<Vec<_>>().join(", ")
        )));
    }
    let section = Section {
        place: PLACE.into(),
        type_name: "",
        values,
        warnings: Vec::new(),
    };
    let timing = match told {
        None => timing(&section)?,
        Some(timing) => {
            if let Some(given) = TIMES.iter().find(|key| section.values.contains_key(**key)) {
                return Err(ConfigError::new(format!(
                    "{PLACE}.{given} must be left out with a Leader Election API, whose server says how long \
                     a lease lasts; it is {}",
                    shown(&section.values[*given])
                )));
            }
            timing
                .with_time_to_end(None)
                .map_err(|bad| section.bad_timing(&bad))?
        }
    };
    Ok(ElectionOptions {
        timing,
        on_renew_error: match section.choice("onRenewError", ["stepDown", "retry"])? {
            Some("stepDown") => OnRenewError::StepDown,
            _ => OnRenewError::Retry,
        },
        on_overrun: match section.choice("onOverrun", ["warn", "exit"])? {
            Some("warn") => OnOverrun::Warn,
            _ => OnOverrun::Exit,
        },
        stall_timeout: Some(timing.default_stall_timeout()),
        is_of_work: true,
    })
}

fn timing(section: &Section) -> Result<Timing, ConfigError> {
    Timing::of_work(
        section.millis("leaseDuration")?,
        section.millis("renewInterval")?,
        section.millis("leadLimit")?,
        section.millis("campaignInterval")?,
    )
    .map_err(|bad| section.bad_timing(&bad))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn refused(json: &str) -> String {
        check_run_options(json).unwrap_err().message
    }

    #[test]
    fn work_leads_10_s_after_its_last_renewal_under_a_lease_of_15_s_and_is_renewed_every_2_s() {
        let options = read("{}", None).unwrap();
        assert_eq!(options.timing.lease(), ms(15_000));
        assert_eq!(options.timing.renew_interval(), ms(2_000));
        assert_eq!(options.timing.lead_limit(ms(15_000)), ms(10_000));
        assert_eq!(options.timing.longest_pause(), ms(6_000));
        assert_eq!(options.on_renew_error, OnRenewError::Retry);
        assert_eq!(options.on_overrun, OnOverrun::Exit);
    }

    #[test]
    fn a_shorter_lease_shortens_what_is_not_given_and_a_longer_one_does_not() {
        let timing = |json| read(json, None).unwrap().timing;
        let short = timing(r#"{ "leaseDuration": 3000 }"#);
        assert_eq!(short.renew_interval(), ms(400));
        assert_eq!(short.lead_limit(ms(3_000)), ms(2_000));
        assert_eq!(short.longest_pause(), ms(1_200));
        let long = timing(r#"{ "leaseDuration": 60000 }"#);
        assert_eq!(long.renew_interval(), ms(2_000));
        assert_eq!(long.longest_pause(), ms(6_000));
    }

    #[test]
    fn bad_options_are_refused_with_name_value_and_cure() {
        for (json, words) in [
            (
                r#"{ "leaseDuration": "15000" }"#,
                ["options.leaseDuration", "without quotes"],
            ),
            (
                r#"{ "renewInterval": 10 }"#,
                ["options.renewInterval", "at least 50 ms"],
            ),
            (r#"{ "leadLimit": 14900 }"#, ["options.leadLimit", "14900"]),
            (
                r#"{ "campaignInterval": 0 }"#,
                ["options.campaignInterval", "at least"],
            ),
            (
                r#"{ "onOverrun": "throw" }"#,
                ["options.onOverrun", "\"warn\" or \"exit\""],
            ),
            (
                r#"{ "onRenewError": true }"#,
                ["options.onRenewError", "true"],
            ),
            (
                r#"{ "leaseduration": 1 }"#,
                ["options.leaseduration", "did you mean leaseDuration?"],
            ),
        ] {
            let message = refused(json);
            for word in words {
                let found =
                    message.contains(word) || word == "at least" && message.contains("be 50 ms");
                assert!(found, "{json}: {message}");
            }
        }
    }

    #[test]
    fn a_server_that_tells_its_leases_decides_the_times() {
        let told = Timing::told(ms(5_000));
        let options = read("{}", Some(told)).unwrap();
        assert_eq!(options.timing, told.with_time_to_end(None).unwrap());
        let message = read(r#"{ "leaseDuration": 5000 }"#, Some(told))
            .unwrap_err()
            .message;
        assert!(
            message.contains("leaseDuration must be left out"),
            "{message}"
        );
    }
}
