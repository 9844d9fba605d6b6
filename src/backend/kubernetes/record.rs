//! A Lease object, read leniently and changed carefully: what other programs put into it survives.
//!
//! The object stays the JSON that the server sent. Go controllers elect on the same object with client-go:
//! `holderIdentity`, `leaseDurationSeconds`, `leaseTransitions` and the times mean what they mean there, and
//! are written as the server wants them. What client-go has no field for stands in two annotations:
//!
//! | annotation | holds |
//! |---|---|
//! | `whenleader/token` | the fencing token of the last term of ours; stays when others lead |
//! | `whenleader/owner` | `<nonce>/<leaseTransitions>` of the term that began under that token |
//!
//! Other programs keep annotations when they take the lease, so the second tells whose term it is: a
//! holder is one of ours only if `leaseTransitions` did not move since.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::backend::observed::{Change, Holder, Lasts, Record};
use crate::lease::{ElectionName, InstanceId, Leader, Owner, Token};

const TOKEN: &str = "whenleader/token";
const OWNER: &str = "whenleader/owner";
/// What a released Lease says of its duration: the server refuses zero.
const RELEASED_SECONDS: u64 = 1;
/// The server's type is a 32-bit integer.
const MOST_TRANSITIONS: i64 = i32::MAX as i64;

/// A Lease as the server sent it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lease(Value);

impl Lease {
    /// `None`: this is no Lease at all, or not one that could be written again.
    pub fn new(object: Value) -> Option<Self> {
        let kind = object.get("kind").and_then(Value::as_str);
        let fits = kind.is_none_or(|kind| kind == "Lease");
        let lease = Self(object);
        (fits && !lease.version().is_empty()).then_some(lease)
    }

    /// The resourceVersion.
    pub fn version(&self) -> &str {
        self.0["metadata"]["resourceVersion"].as_str().unwrap_or("")
    }

    /// Whether it is as that object, written, would have left it. (Times are exact enough for no two to be alike.)
    pub fn is_left_by(&self, written: &Value) -> bool {
        let annotation = |name| written["metadata"]["annotations"][name].as_str();
        self.0["spec"] == written["spec"]
            && [TOKEN, OWNER]
                .iter()
                .all(|name| self.annotation(name) == annotation(name))
    }

    pub fn record(&self) -> Record {
        let spec = &self.0["spec"];
        let last = self.annotation(TOKEN).and_then(token_of);
        let identity = spec["holderIdentity"].as_str().unwrap_or("");
        let holder = (!identity.is_empty()).then(|| Holder {
            leader: self.leader(identity, last),
            lasts: Lasts::new(seconds(&spec["leaseDurationSeconds"])),
        });
        Record {
            version: self.version().to_owned(),
            holder,
            last,
        }
    }

    fn leader(&self, identity: &str, last: Option<Token>) -> Option<Leader> {
        let instance = InstanceId::new(identity).ok()?;
        let transitions = self.transitions();
        let ours = self.annotation(OWNER).and_then(|owner| {
            let (nonce, since) = owner.split_once('/')?;
            Some((
                u64::from_str_radix(nonce, 16).ok()?,
                since.parse::<i64>().ok()?,
            ))
        });
        let (nonce, token) = match (ours, last) {
            (Some((nonce, since)), Some(last)) if since == transitions => (nonce, last),
            // Another program's. Its terms get numbers between ours, so that they can be told apart.
            (ours, last) => {
                let since = transitions - ours.map_or(transitions - 1, |(_, since)| since);
                let since = u64::try_from(since).unwrap_or(1).max(1);
                let number = last.map_or(0, Token::number).saturating_add(since);
                (0, Token::new(number)?)
            }
        };
        Some(Leader {
            owner: Owner { instance, nonce },
            token,
        })
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.0["metadata"]["annotations"].get(name)?.as_str()
    }

    fn transitions(&self) -> i64 {
        let transitions = self.0["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
        transitions.clamp(0, MOST_TRANSITIONS)
    }

    /// The object to be written over this one.
    pub fn changed(&self, change: Change<'_>) -> Value {
        let mut object = self.0.clone();
        let transitions = self.transitions();
        let now = micro_time(Timestamp::now());
        let before = self.0["spec"]["holderIdentity"].as_str().unwrap_or("");
        let spec = object_at(&mut object, "spec");
        match change {
            Change::Begin {
                owner,
                token,
                duration,
            } => {
                let instance = owner.instance.as_str();
                let transitions = if before == instance {
                    transitions
                } else {
                    (transitions + 1).min(MOST_TRANSITIONS)
                };
                begin(spec, instance, duration, &now);
                spec.insert("leaseTransitions".into(), transitions.into());
                let metadata = object_at(&mut object, "metadata");
                let annotations = entry_at(metadata, "annotations");
                annotations.insert(TOKEN.into(), token.to_string().into());
                annotations.insert(OWNER.into(), written(owner, transitions).into());
            }
            Change::Renew { duration } => {
                spec.insert(
                    "leaseDurationSeconds".into(),
                    whole_seconds(duration).into(),
                );
                spec.insert("renewTime".into(), now.into());
            }
            Change::Release => {
                spec.insert("holderIdentity".into(), "".into());
                spec.insert("leaseDurationSeconds".into(), RELEASED_SECONDS.into());
                spec.insert("leaseTransitions".into(), transitions.into());
                spec.insert("acquireTime".into(), now.clone().into());
                spec.insert("renewTime".into(), now.into());
                let metadata = object_at(&mut object, "metadata");
                entry_at(metadata, "annotations").remove(OWNER);
            }
        }
        object
    }
}

/// A Lease that does not exist yet.
pub(super) fn first(
    election: &ElectionName,
    owner: &Owner,
    token: Token,
    duration: Duration,
) -> Value {
    let mut spec = Map::new();
    let now = micro_time(Timestamp::now());
    begin(&mut spec, owner.instance.as_str(), duration, &now);
    spec.insert("leaseTransitions".into(), 0.into());
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": election.as_str(),
            "annotations": { TOKEN: token.to_string(), OWNER: written(owner, 0) },
        },
        "spec": spec,
    })
}

fn begin(spec: &mut Map<String, Value>, instance: &str, duration: Duration, now: &str) {
    spec.insert("holderIdentity".into(), instance.into());
    spec.insert(
        "leaseDurationSeconds".into(),
        whole_seconds(duration).into(),
    );
    spec.insert("acquireTime".into(), now.into());
    spec.insert("renewTime".into(), now.into());
}

fn written(owner: &Owner, transitions: i64) -> String {
    format!("{:016x}/{transitions}", owner.nonce)
}

/// The object in a field; whatever else is there is no part of a Lease.
fn object_at<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    entry_at(object.as_object_mut().expect("made above"), field)
}

fn entry_at<'a>(map: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(field).or_insert(Value::Null);
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("made above")
}

fn token_of(text: &str) -> Option<Token> {
    Token::new(text.parse().ok()?)
}

/// Up, never down: a lease must not end before its leader believes so.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// What a number of seconds looks like in the records of other programs.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds.ceil()).ok()
}

/// Exactly six digits of a second: the server takes nothing else.
fn micro_time(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value)]
    fn lease(spec: Value) -> Lease {
        let metadata = json!({ "name": "leader", "resourceVersion": "7", "uid": "u" });
        Lease::new(json!({ "kind": "Lease", "metadata": metadata, "spec": spec })).unwrap()
    }

    fn owner(id: &str, nonce: u64) -> Owner {
        let instance = InstanceId::new(id).unwrap();
        Owner { instance, nonce }
    }

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn begun(over: &Lease, owner: &Owner, number: u64) -> Lease {
        let duration = Duration::from_millis(1_500);
        let token = token(number);
        Lease::new(over.changed(Change::Begin {
            owner,
            token,
            duration,
        }))
        .unwrap()
    }

    fn leader(lease: &Lease) -> Leader {
        lease.record().holder.unwrap().leader.unwrap()
    }

    #[test]
    fn times_have_exactly_six_digits() {
        for (nanos, text) in [
            (0, "2026-11-29T16:00:00.000000Z"),
            (103_000_000, "2026-11-29T16:00:00.103000Z"),
            (999_999_999, "2026-11-29T16:00:00.999999Z"),
        ] {
            let moment = Timestamp::new(1_795_968_000, nanos).unwrap();
            assert_eq!(micro_time(moment), text);
        }
    }

    #[test]
    fn durations_are_rounded_up_to_whole_seconds() {
        for (millis, seconds) in [(1_000, 1), (1_001, 2), (1_500, 2), (15_500, 16)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let me = owner("pod-1", 7);
        let lease = begun(&lease(json!({})), &me, 5);
        assert_eq!(leader(&lease).owner, me);
        assert_eq!(leader(&lease).token, token(5));
        let holder = lease.record().holder.unwrap();
        assert_eq!(holder.lasts, Lasts::For(Duration::from_secs(2)));
        let released = Lease::new(lease.changed(Change::Release)).unwrap();
        assert_eq!(released.record().holder, None);
        assert_eq!(released.record().last, Some(token(5)));
    }

    #[test]
    fn what_others_wrote_into_the_object_survives() {
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": "leader", "uid": "u", "resourceVersion": "7",
                "labels": { "app": "shop" }, "annotations": { "note": "mine" },
                "ownerReferences": [{ "kind": "Deployment", "name": "shop" }],
                "finalizers": ["example.com/keep"], "managedFields": [{ "manager": "kubectl" }],
            },
            "spec": { "strategy": "OldestEmulationVersion", "preferredHolder": "x", "new": { "field": 1 } },
            "unknown": true,
        });
        let before = Lease::new(object.clone()).unwrap();
        let mut lease = begun(&before, &owner("a", 1), 1);
        for change in [
            Change::Renew {
                duration: Duration::from_secs(15),
            },
            Change::Release,
        ] {
            lease = Lease::new(lease.changed(change)).unwrap();
            for pointer in [
                "/metadata/labels",
                "/metadata/annotations/note",
                "/metadata/ownerReferences",
                "/metadata/finalizers",
                "/metadata/managedFields",
                "/metadata/uid",
                "/metadata/resourceVersion",
                "/spec/strategy",
                "/spec/preferredHolder",
                "/spec/new",
                "/unknown",
            ] {
                assert_eq!(
                    lease.0.pointer(pointer),
                    object.pointer(pointer),
                    "{pointer}"
                );
            }
        }
    }

    #[test]
    fn transitions_count_as_client_go_counts_them_and_do_not_overflow() {
        let mut lease = lease(json!({ "leaseTransitions": i32::MAX - 1 }));
        for (holder, number, transitions) in
            [("a", 1, i32::MAX), ("a", 2, i32::MAX), ("b", 3, i32::MAX)]
        {
            lease = begun(&lease, &owner(holder, 1), number);
            assert_eq!(lease.0["spec"]["leaseTransitions"], transitions);
            assert_eq!(leader(&lease).token, token(number));
        }
    }

    #[test]
    fn another_programs_term_is_none_of_ours_and_has_a_number_between_ours() {
        let me = owner("a", 7);
        let ours = begun(&lease(json!({ "leaseTransitions": 3 })), &me, 100);
        // client-go keeps annotations and counts transitions.
        let mut theirs = ours.0.clone();
        theirs["spec"]["holderIdentity"] = "go".into();
        theirs["spec"]["leaseTransitions"] = 5.into();
        let theirs = Lease::new(theirs).unwrap();
        assert_eq!(leader(&theirs).owner, owner("go", 0));
        assert_eq!(leader(&theirs).token, token(101));
        // Even one that calls itself as we do.
        let mut namesake = theirs.0.clone();
        namesake["spec"]["holderIdentity"] = "a".into();
        namesake["spec"]["leaseTransitions"] = 6.into();
        let namesake = Lease::new(namesake).unwrap();
        assert_ne!(leader(&namesake).owner, me);
        assert_eq!(leader(&namesake).token, token(102));
        assert_eq!(namesake.record().last, Some(token(100)));
    }

    #[test]
    fn odd_records_are_read_leniently() {
        let held = |spec| lease(spec).record().holder;
        for free in [
            json!(null),
            json!({}),
            json!({ "holderIdentity": null, "renewTime": "2026-11-29T16:00:00.000000Z" }),
            json!({ "holderIdentity": "", "leaseDurationSeconds": 1 }),
        ] {
            assert_eq!(held(free), None);
        }
        for (duration, lasts) in [
            (json!(15), Lasts::For(Duration::from_secs(15))),
            (json!(15.0), Lasts::For(Duration::from_secs(15))),
            (json!("15"), Lasts::For(Duration::from_secs(15))),
            (json!(null), Lasts::Unsaid),
            (json!(0), Lasts::Unsaid),
            (json!(-5), Lasts::Unsaid),
            (json!(2_147_483_647), Lasts::Unsaid),
            (json!(2_147_483_648_u64), Lasts::Unsaid),
            (json!(1e300), Lasts::Unsaid),
            (json!("soon"), Lasts::Unsaid),
        ] {
            let spec = json!({
                "holderIdentity": "go", "leaseDurationSeconds": duration, "renewTime": "yesterday",
            });
            assert_eq!(held(spec).unwrap().lasts, lasts, "{duration}");
        }
        let unreadable = json!({ "holderIdentity": "x".repeat(300), "leaseDurationSeconds": 15 });
        assert_eq!(held(unreadable).unwrap().leader, None);
        for no_lease in [
            json!({ "kind": "Status", "metadata": {} }),
            json!({ "kind": "Lease", "metadata": { "name": "leader" } }),
            json!([]),
            json!(null),
            json!("text"),
        ] {
            assert_eq!(Lease::new(no_lease.clone()), None, "{no_lease}");
        }
    }

    #[test]
    fn annotations_that_were_tampered_with_are_no_leadership_of_ours() {
        for (token_text, owner_text) in [
            ("x", "0000000000000007/1"),
            ("0", "0000000000000007/1"),
            ("5", "0000000000000007"),
            ("5", "zz/1"),
            ("5", "0000000000000007/9"),
            ("9007199254740992", "0000000000000007/1"),
        ] {
            let mut object = begun(&lease(json!({})), &owner("a", 7), 5).0;
            object["metadata"]["annotations"] = json!({ TOKEN: token_text, OWNER: owner_text });
            let leader = leader(&Lease::new(object).unwrap());
            assert_ne!(leader.owner, owner("a", 7), "{token_text} {owner_text}");
        }
    }
}
