//! A record as JSON text, for stores that keep a value by its key and know nothing of leases.
//!
//! ```json
//! {"version":"3f0c…","instanceId":"web-1-4711-0a1b2c3d","nonce":"9d2e…","token":1795968000000000,"leaseDuration":15000}
//! ```
//!
//! `version` is a fresh random word in every write. A store without versions of its own compares it; where
//! a version is made of the content (an S3 `ETag`), it lets no two contents be equal. Never a counter: a
//! store that was set back, or a record that was deleted, must not bring a version back.
//!
//! What is written is always the same five fields. What is read may be anything: whatever is no record of
//! ours has a holder that cannot be read, and is waited out. Only what was surely released is free.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Change, Holder, Lasts, Record};
use crate::lease::{InstanceId, LONGEST_LEASE, Leader, NAME_LIMIT, Owner, Token};
use crate::random::random_u64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend) struct Document {
    word: String,
    holder: Option<Holder>,
    last: Option<Token>,
}

impl Document {
    /// What a record says, whatever it is.
    pub fn read(text: &[u8]) -> Self {
        serde_json::from_slice(text)
            .map_or_else(|_| Self::of(&Value::Null), |value| Self::of(&value))
    }

    fn of(value: &Value) -> Self {
        let last = whole(&value["token"]).and_then(Token::new);
        let lasts = whole(&value["leaseDuration"]);
        let holder = Holder {
            leader: leader(value, last),
            lasts: Lasts::new(lasts.map(Duration::from_millis)),
        };
        // A name alone that is missing is no release: a column that was lost must not free a lease.
        let is_released = names_nobody(&value["instanceId"]) && lasts == Some(0);
        Self {
            word: value["version"].as_str().unwrap_or_default().to_owned(),
            holder: (!is_released).then_some(holder),
            last,
        }
    }

    /// A first term.
    pub fn first(owner: &Owner, token: Token, duration: Duration) -> Self {
        Self::written(Some(held(owner, token, duration)), Some(token))
    }

    /// None is longer as it is stored: for places that may have room for less.
    pub fn longest() -> Self {
        // Each of these takes two bytes.
        let instance = InstanceId::new(&"\"".repeat(NAME_LIMIT)).expect("a good id");
        let token = Token::new(Token::MAX).expect("a good token");
        let nonce = u64::MAX;
        Self::first(&Owner { instance, nonce }, token, LONGEST_LEASE)
    }

    /// What is written over this one.
    pub fn changed(&self, change: Change<'_>) -> Self {
        match change {
            Change::Begin {
                owner,
                token,
                duration,
            } => Self::first(owner, token, duration),
            Change::Renew { duration } => {
                let leader = self
                    .holder
                    .as_ref()
                    .and_then(|holder| holder.leader.clone());
                let lasts = Lasts::For(duration);
                Self::written(Some(Holder { leader, lasts }), self.last)
            }
            Change::Release => Self::written(None, self.last),
        }
    }

    fn written(holder: Option<Holder>, last: Option<Token>) -> Self {
        Self {
            word: format!("{:016x}", random_u64()),
            holder,
            last,
        }
    }

    /// Of this writing, and of no other.
    pub fn word(&self) -> &str {
        &self.word
    }

    /// As it is stored.
    pub fn text(&self) -> String {
        let leader = self
            .holder
            .as_ref()
            .and_then(|holder| holder.leader.as_ref());
        let lasts = match self.holder.as_ref().map(|holder| holder.lasts) {
            Some(Lasts::For(duration)) => whole_millis(duration),
            _ => 0,
        };
        json!({
            "version": self.word,
            "instanceId": leader.map(|leader| leader.owner.instance.as_str()),
            "nonce": format!("{:016x}", leader.map_or(0, |leader| leader.owner.nonce)),
            "token": self.last.map_or(0, Token::number),
            "leaseDuration": lasts,
        })
        .to_string()
    }

    pub fn record(&self, version: impl Into<String>) -> Record {
        Record {
            version: version.into(),
            holder: self.holder.clone(),
            last: self.last,
        }
    }
}

fn held(owner: &Owner, token: Token, duration: Duration) -> Holder {
    let owner = owner.clone();
    Holder {
        leader: Some(Leader { owner, token }),
        lasts: Lasts::For(duration),
    }
}

fn leader(value: &Value, token: Option<Token>) -> Option<Leader> {
    let instance = InstanceId::new(value["instanceId"].as_str()?).ok()?;
    let nonce = u64::from_str_radix(value["nonce"].as_str()?, 16).ok()?;
    let owner = Owner { instance, nonce };
    Some(Leader {
        owner,
        token: token?,
    })
}

/// Some stores keep no null, and some take an empty text for one.
fn names_nobody(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}

/// Stores give numbers back in many forms: as text, or as a number with a fraction of zero.
fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_u64().or_else(|| {
            let number = number.as_f64()?;
            let is_whole = number.fract() == 0.0 && (0.0..9e15).contains(&number);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked above.
            is_whole.then_some(number as u64)
        }),
        _ => None,
    }
}

/// Up, never down: a lease must not end before its leader believes so.
fn whole_millis(duration: Duration) -> u64 {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn owner(id: &str) -> Owner {
        Owner {
            instance: InstanceId::new(id).unwrap(),
            nonce: 0x9d2e,
        }
    }

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn read_again(document: &Document) -> Document {
        Document::read(document.text().as_bytes())
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let first = Document::first(&owner("a \"quoted\" 🦀"), token(Token::MAX), LEASE);
        let renewed = first.changed(Change::Renew {
            duration: LEASE * 2,
        });
        let released = renewed.changed(Change::Release);
        for document in [&first, &renewed, &released] {
            assert_eq!(&read_again(document), document);
        }
        let holder = renewed.record("v").holder.unwrap();
        assert_eq!(holder.leader.unwrap().owner, owner("a \"quoted\" 🦀"));
        assert_eq!(holder.lasts, Lasts::For(LEASE * 2));
        assert_eq!(released.record("v").holder, None);
        assert_eq!(released.record("v").last, Some(token(Token::MAX)));
    }

    #[test]
    fn every_writing_has_a_word_of_its_own() {
        let mut document = Document::first(&owner("a"), token(1), LEASE);
        let mut words = std::collections::BTreeSet::new();
        for _ in 0..100 {
            assert!(words.insert(document.word.clone()), "{words:?}");
            document = document.changed(Change::Renew { duration: LEASE });
        }
    }

    #[test]
    fn what_is_written_is_flat_and_complete() {
        let held: Value =
            serde_json::from_str(&Document::first(&owner("a"), token(7), LEASE).text()).unwrap();
        let released = Document::first(&owner("a"), token(7), LEASE).changed(Change::Release);
        let released: Value = serde_json::from_str(&released.text()).unwrap();
        for (value, instance, nonce, millis) in [
            (held, json!("a"), "0000000000009d2e", 15_000),
            (released, json!(null), "0000000000000000", 0),
        ] {
            assert_eq!(value["version"].as_str().map(str::len), Some(16));
            assert_eq!(value["instanceId"], instance);
            assert_eq!(value["nonce"], nonce);
            assert_eq!(value["token"], 7);
            assert_eq!(value["leaseDuration"], millis);
            assert_eq!(value.as_object().unwrap().len(), 5);
        }
        let odd = Document::first(&owner("a"), token(7), Duration::from_nanos(1_000_001));
        assert!(odd.text().contains("\"leaseDuration\":2"), "rounded up");
        let longest = Document::longest().text().len();
        for id in ["🦀".repeat(63), "\\".repeat(253)] {
            let lease = Duration::from_hours(24);
            let text = Document::first(&owner(&id), token(Token::MAX), lease).text();
            assert!(text.len() <= longest && longest < 700, "{longest}: {text}");
        }
    }

    #[test]
    fn numbers_are_read_in_every_form_that_stores_give_them_back_in() {
        for (number, duration) in [
            (json!(1_795_968_000_000_000_u64), json!(15_000)),
            (json!("1795968000000000"), json!("15000")),
            (json!(1.795_968e15), json!(15_000.0)),
        ] {
            let text = json!({
                "version": "w", "instanceId": "a", "nonce": "9D2E", "token": number,
                "leaseDuration": duration, "_id": "more", "createdAt": "2026-11-29T16:00:00Z",
            });
            let holder = Document::of(&text).record("v").holder.unwrap();
            let leader = holder.leader.unwrap();
            assert_eq!(leader.owner, owner("a"));
            assert_eq!(leader.token, token(1_795_968_000_000_000));
            assert_eq!(holder.lasts, Lasts::For(LEASE));
        }
    }

    #[test]
    fn only_what_was_surely_released_is_free() {
        for free in [
            json!({ "instanceId": null, "nonce": "0", "token": 7, "leaseDuration": 0 }),
            json!({ "instanceId": "", "leaseDuration": "0" }),
            json!({ "leaseDuration": 0 }),
        ] {
            assert_eq!(Document::of(&free).record("v").holder, None, "{free}");
        }
        for (held, lasts) in [
            (
                json!({ "instanceId": null, "leaseDuration": 15_000 }),
                Lasts::For(LEASE),
            ),
            (json!({ "instanceId": null }), Lasts::Unsaid),
            (
                json!({ "instanceId": 5, "leaseDuration": 0 }),
                Lasts::Unsaid,
            ),
            (
                json!({ "instanceId": {}, "leaseDuration": 15_000 }),
                Lasts::For(LEASE),
            ),
            (
                json!({ "instanceId": "a", "nonce": "zz", "token": 7, "leaseDuration": 15_000 }),
                Lasts::For(LEASE),
            ),
            (
                json!({ "instanceId": "a", "nonce": "1", "token": -7, "leaseDuration": 15_000 }),
                Lasts::For(LEASE),
            ),
            (
                json!({ "instanceId": "a", "nonce": "1", "token": 0, "leaseDuration": -5 }),
                Lasts::Unsaid,
            ),
            (
                json!({ "instanceId": "x".repeat(300), "nonce": "1", "token": 7, "leaseDuration": 1e300 }),
                Lasts::Unsaid,
            ),
            (json!([]), Lasts::Unsaid),
            (json!("text"), Lasts::Unsaid),
            (json!(null), Lasts::Unsaid),
        ] {
            let holder = Document::of(&held).record("v").holder.expect("held");
            assert_eq!(holder.leader, None, "{held}");
            assert_eq!(holder.lasts, lasts, "{held}");
        }
        let rubbish = Document::read(b"[[[[\xff").record("v");
        assert_eq!(rubbish.holder.map(|holder| holder.leader), Some(None));
    }
}
