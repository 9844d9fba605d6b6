//! What a Leader Election API answers, read as if somebody hostile had written it: every field may be absent,
//! or anything.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::go_duration;
use crate::lease::{InstanceId, Token};

/// `whenleader serve` holds a lease so many parts of it longer than its leader is told.
pub(super) const SERVERS_MARGIN_DIVISOR: u32 = 20;

/// An answer to a check-in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckIn {
    /// How long a lease lasts.
    pub lease: Duration,
    /// `None`: the answer does not speak of the resource.
    pub found: Option<Found>,
}

/// What it says of one resource.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Nothing but `true` is.
    pub leads: bool,
    pub current: Option<InstanceId>,
    /// Of the present term. Only `whenleader serve` tells it.
    pub token: Option<Token>,
    /// How long the present leader's lease still lasts, by the server's clock.
    pub remaining: Option<Duration>,
}

impl CheckIn {
    /// `Err`: what is wrong with it.
    pub fn read(body: &[u8], resource: &str) -> Result<Self, String> {
        let answer: Value = serde_json::from_slice(body)
            .map_err(|error| format!("its answer is no JSON ({error})"))?;
        let lease = match &answer["lease_duration"] {
            Value::String(text) => go_duration::positive(text).ok_or_else(|| {
                let shown: String = text.chars().take(40).collect();
                format!(
                    "its lease_duration is {shown:?}, not {}",
                    go_duration::EXAMPLE
                )
            }),
            Value::Null => Err("its answer has no lease_duration".into()),
            _ => Err(format!(
                "its lease_duration is not {}",
                go_duration::EXAMPLE
            )),
        }?;
        Ok(Self {
            lease,
            found: find(&answer, resource).map(|item| Found::read(item, &answer, lease)),
        })
    }
}

impl Found {
    fn read(item: &Value, answer: &Value, lease: Duration) -> Self {
        let told = item["remaining"].as_str().and_then(go_duration::parse);
        let told = told.map(|nanos| Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)));
        let (leads, current) = (item["leader"] == true, current_leader(item));
        let remaining = told.or_else(|| remaining(item, answer, lease));
        let longest = lease + lease / SERVERS_MARGIN_DIVISOR;
        Self {
            leads,
            token: item["token"].as_u64().and_then(Token::new),
            // Nobody's lease does not last.
            remaining: remaining.filter(|left| current.is_some() && *left <= longest),
            current,
        }
    }
}

/// Both moments are the server's, so its own clock tells how long ago the leader checked in.
fn remaining(item: &Value, answer: &Value, lease: Duration) -> Option<Duration> {
    let moment = |value: &Value| value.as_str()?.parse::<Timestamp>().ok();
    let (now, last) = (
        moment(&answer["check_in"])?,
        moment(&item["last_check_in"])?,
    );
    let since = Duration::try_from(now.duration_since(last)).ok()?;
    lease.checked_sub(since)
}

/// Who leads a resource by an answer to `GET /leader/status`.
pub(super) fn leader_in_status(body: &[u8], resource: &str) -> Option<(InstanceId, Option<Token>)> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let item = find(&answer, resource)?;
    let token = item["token"].as_u64().and_then(Token::new);
    Some((current_leader(item)?, token))
}

fn current_leader(item: &Value) -> Option<InstanceId> {
    InstanceId::new(item["current_leader"].as_str()?).ok()
}

fn find<'a>(answer: &'a Value, resource: &str) -> Option<&'a Value> {
    let items = answer["resources"].as_array()?;
    items.iter().find(|item| item["resource"] == resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCE: &str = "krn:app:a";

    fn read(body: &str) -> Result<CheckIn, String> {
        CheckIn::read(body.as_bytes(), RESOURCE)
    }

    fn found(item: &str) -> Option<Found> {
        let body = format!(
            r#"{{ "check_in": "2024-05-01T12:00:03Z", "lease_duration": "5s", "resources": [
                 {{ "resource": "krn:app:other", "leader": true }}, {item} ] }}"#
        );
        read(&body).unwrap().found
    }

    #[test]
    fn an_answer_without_a_good_lease_counts_as_none() {
        for lease in [
            r#""0""#,
            r#""-5s""#,
            r#""1e3s""#,
            r#""5""#,
            r#""""#,
            r#""2629800h""#,
            "5",
            "null",
            "{}",
            "[\"5s\"]",
        ] {
            let body = format!(r#"{{ "lease_duration": {lease}, "resources": [] }}"#);
            assert!(
                read(&body).unwrap_err().contains("lease_duration"),
                "{lease}"
            );
        }
        for body in [
            "",
            "{",
            "<html>",
            "[]",
            "null",
            "\"5s\"",
            "\u{0}",
            &"[".repeat(100_000),
        ] {
            assert!(read(body).is_err(), "{body:.20}");
        }
    }

    #[test]
    fn nothing_but_true_for_the_very_resource_is_leadership() {
        let leads = |item: &str| found(item).is_some_and(|found| found.leads);
        assert!(leads(r#"{ "resource": "krn:app:a", "leader": true }"#));
        for leader in [
            r#""true""#,
            "1",
            "null",
            "false",
            "[true]",
            r#"{ "leader": true }"#,
        ] {
            let item = format!(r#"{{ "resource": "krn:app:a", "leader": {leader} }}"#);
            assert!(!leads(&item), "{leader}");
        }
        for item in [
            "{}",
            "null",
            "true",
            r#"{ "resource": "krn:app:A", "leader": true }"#,
            r#"{ "resource": ["krn:app:a"], "leader": true }"#,
        ] {
            assert_eq!(found(item), None, "{item}");
        }
        for resources in ["null", "{}", "\"krn:app:a\"", "0"] {
            let body = format!(r#"{{ "lease_duration": "5s", "resources": {resources} }}"#);
            assert_eq!(read(&body).unwrap().found, None);
        }
        assert_eq!(read(r#"{ "lease_duration": "5s" }"#).unwrap().found, None);
    }

    #[test]
    fn how_long_a_lease_still_lasts_is_told_by_the_servers_own_clock() {
        let remaining = |more: &str| {
            found(&format!(
                r#"{{ "resource": "krn:app:a", "leader": false, {more} }}"#
            ))
            .unwrap()
            .remaining
            .map(|left| left.as_millis())
        };
        let by_other = r#""current_leader": "krn:wl:c/w""#;
        let at = |time: &str| remaining(&format!(r#"{by_other}, "last_check_in": "{time}""#));
        assert_eq!(at("2024-05-01T12:00:01Z"), Some(3_000));
        assert_eq!(at("2024-05-01T14:00:01.5+02:00"), Some(3_500));
        assert_eq!(at("2024-05-01T11:59:58Z"), Some(0));
        // Longer ago than a lease, or not yet: the server's clock was set.
        assert_eq!(at("2024-05-01T11:00:00Z"), None);
        assert_eq!(at("2024-05-01T12:00:04Z"), None);
        assert_eq!(at("yesterday"), None);
        assert_eq!(
            remaining(&format!(r#"{by_other}, "remaining": "1.5s""#)),
            Some(1_500)
        );
        assert_eq!(
            remaining(&format!(r#"{by_other}, "remaining": "-1s""#)),
            Some(0)
        );
        // Of whoever checked in just now, with what the server adds to the lease.
        assert_eq!(
            remaining(&format!(r#"{by_other}, "remaining": "5.25s""#)),
            Some(5_250)
        );
        for too_much in ["5.3s", "1h"] {
            assert_eq!(
                remaining(&format!(r#"{by_other}, "remaining": "{too_much}""#)),
                None
            );
        }
        // Of nobody's lease.
        assert_eq!(remaining(r#""remaining": "1.5s""#), None);
        assert_eq!(
            remaining(r#""current_leader": "", "remaining": "1.5s""#),
            None
        );
    }
}
