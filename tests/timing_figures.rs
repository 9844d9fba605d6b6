//! The figures of `src/timing.rs` are those of `tests/figures/timing.json`. `lib/testing/timing.js`, which states the same
//! formulas for virtual clocks, is held against the same file: neither can change alone.

use std::time::Duration;

use serde_json::Value;
use whenleader::timing::Timing;

#[test]
fn the_deadlines_of_an_election_are_those_that_the_virtual_clock_has() {
    let rows: Vec<Value> = serde_json::from_str(include_str!("figures/timing.json")).unwrap();
    assert!(rows.len() > 20);
    for row in &rows {
        let given = |name: &str| row[name].as_u64().map(Duration::from_millis);
        let lease = given("leaseDuration").unwrap();
        let made = Timing::new(lease, given("renewInterval").unwrap(), given("leadLimit"));
        let timing = match made {
            Err(bad) => {
                assert_eq!(row["refused"][0], bad.parameter, "{row}");
                assert_eq!(row["refused"][1], bad.rule, "{row}");
                continue;
            }
            Ok(timing) => timing,
        };
        assert!(row["refused"].is_null(), "{row}");
        let is = |figure: &Value, duration: Duration| {
            let (expected, is) = (figure.as_f64().unwrap(), duration.as_secs_f64() * 1e3);
            // Durations are whole nanoseconds.
            assert!((expected - is).abs() < 1e-5, "{is} ms, not {figure}: {row}");
        };
        is(&row["trust"], timing.lead_limit(lease));
        is(&row["campaignLimit"], timing.campaign_limit());
        is(&row["retriedRenewalLimit"], timing.retried_renewal_limit());
        is(&row["releaseLimit"], timing.release_limit());
        for (failures, figure) in (1..).zip(row["retryAfter"].as_array().unwrap()) {
            is(figure, timing.retry_after(failures));
        }
        is(&row["overrunAfter"], timing.overrun_after(timing.lease()));
        is(&row["shortestNotice"], timing.shortest_notice());
        is(&row["defaultPause"], timing.default_pause());
        is(&row["defaultStopTimeout"], timing.default_stop_timeout());
    }
}
