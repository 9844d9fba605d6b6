//! The bodies of requests. What is needed is read strictly, and a refusal names the field; fields that the
//! protocol does not know are passed over, as it says.

use std::collections::HashSet;

use serde_json::Value;

use super::elections::{Asked, Asker, Wants};
use crate::lease::{ElectionName, InstanceId, Owner, Token};

/// Of one request, in a bulk all together.
pub(super) const RESOURCES: usize = 1_000;
/// The longest name of a session.
const SESSION: usize = 64;

/// Why a body was refused, in words.
pub(super) type Bad = String;

pub(super) fn asked(body: &[u8]) -> Result<Asked, Bad> {
    let asked = read(&json(body)?, "")?;
    check_count(asked.resources.len())?;
    Ok(asked)
}

/// Those of a bulk.
pub(super) fn bulk(body: &[u8]) -> Result<Vec<Asked>, Bad> {
    let value = json(body)?;
    let Some(data) = value.get("data") else {
        return Err("data is missing: it must be a list of check-ins".into());
    };
    let Value::Array(data) = data else {
        return Err(format!(
            "data must be a list of check-ins, not {}",
            kind(data)
        ));
    };
    let bulk: Vec<_> = data
        .iter()
        .enumerate()
        .map(|(at, asked)| read(asked, &format!("data[{at}].")))
        .collect::<Result<_, _>>()?;
    check_count(bulk.iter().map(|asked| asked.resources.len()).sum())?;
    Ok(bulk)
}

fn check_count(resources: usize) -> Result<(), Bad> {
    if resources > RESOURCES {
        return Err(format!(
            "a request may name {RESOURCES} resources, not {resources}"
        ));
    }
    Ok(())
}

fn json(body: &[u8]) -> Result<Value, Bad> {
    serde_json::from_slice(body).map_err(|error| format!("the body is no JSON: {error}"))
}

fn read(value: &Value, place: &str) -> Result<Asked, Bad> {
    let Value::Object(fields) = value else {
        let place = place.trim_end_matches('.');
        let what = if place.is_empty() { "the body" } else { place };
        return Err(format!(
            "{what} must be an object with id and resources, not {}",
            kind(value)
        ));
    };
    let id = text(fields.get("id"), &format!("{place}id"), "who asks")?;
    let id = InstanceId::new(id).map_err(|bad| format!("{place}id must {}", bad.0))?;
    let resources = match fields.get("resources") {
        Some(Value::Array(resources)) if !resources.is_empty() => resources,
        Some(Value::Array(_)) => return Err(format!("{place}resources must name one at least")),
        Some(other) => {
            return Err(format!(
                "{place}resources must be a list of names, not {}",
                kind(other)
            ));
        }
        None => {
            return Err(format!(
                "{place}resources is missing: it must be a list of names"
            ));
        }
    };
    let resources: Vec<_> = resources
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let place = format!("{place}resources[{at}]");
            let name = text(Some(name), &place, "a resource's name")?;
            ElectionName::new(name).map_err(|bad| format!("{place} must {}", bad.0))
        })
        .collect::<Result<_, Bad>>()?;
    if let Some((at, twice)) = first_repeated(&resources) {
        return Err(format!(
            "{place}resources[{at}] names {:?} once more",
            twice.as_str()
        ));
    }
    let session = match fields.get("session") {
        None | Some(Value::Null) => None,
        given => {
            let session = text(given, &format!("{place}session"), "a text")?;
            if session.is_empty() || session.len() > SESSION {
                return Err(format!("{place}session must have 1 to {SESSION} bytes"));
            }
            Some(session)
        }
    };
    let term = match fields.get("token") {
        None | Some(Value::Null) => None,
        Some(_) if resources.len() > 1 => {
            return Err(format!(
                "{place}token is of one term, so one resource must be named"
            ));
        }
        Some(token) => {
            let token = token.as_u64().and_then(Token::new);
            Some(token.ok_or_else(|| format!("{place}token must be a number from 1 to 2^53 - 1"))?)
        }
    };
    let after = match fields.get("after") {
        None | Some(Value::Null) => None,
        Some(_) if session.is_none() || term.is_some() => {
            return Err(format!(
                "{place}after is for a session that begins a term: it needs a session, and no token"
            ));
        }
        Some(after) => Some(
            after
                .as_u64()
                .filter(|after| *after <= Token::MAX)
                .ok_or_else(|| format!("{place}after must be a number from 0 to 2^53 - 1"))?,
        ),
    };
    let wants = match (term, session, after) {
        (Some(term), ..) => Wants::This(term),
        (None, None, _) => Wants::Any,
        (None, Some(_), after) => Wants::After(after.unwrap_or(Token::MAX)),
    };
    Ok(Asked {
        asker: Asker {
            owner: Owner {
                nonce: nonce(id.as_str(), session),
                instance: id,
            },
            wants,
        },
        resources,
    })
}

fn first_repeated(names: &[ElectionName]) -> Option<(usize, &ElectionName)> {
    let mut seen = HashSet::new();
    names
        .iter()
        .enumerate()
        .find(|(_, name)| !seen.insert(*name))
}

fn text<'a>(value: Option<&'a Value>, place: &str, what: &str) -> Result<&'a str, Bad> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!(
            "{place} must be {what} as a string, not {}",
            kind(other)
        )),
        None => Err(format!("{place} is missing: it must be {what} as a string")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The same on every server, and after each start (FNV-1a): it tells sessions apart. Whoever has none is one
/// with all that check in under its id.
fn nonce(id: &str, session: Option<&str>) -> u64 {
    // No text holds a byte of this kind, so no id is like a session.
    let (kind, text) = session.map_or((0xfe, id), |session| (0xff, session));
    let hash = [kind].into_iter().chain(text.bytes());
    let hash = hash.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Small numbers mean other things.
    hash | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_field_and_what_it_must_be() {
        for (body, words) in [
            ("", "the body is no JSON"),
            ("{", "the body is no JSON"),
            (
                "[]",
                "the body must be an object with id and resources, not a list",
            ),
            ("null", "not null"),
            (r#"{ "resources": ["a"] }"#, "id is missing"),
            (
                r#"{ "id": 5, "resources": ["a"] }"#,
                "id must be who asks as a string, not a number",
            ),
            (
                r#"{ "id": "", "resources": ["a"] }"#,
                "id must not be empty",
            ),
            (
                r#"{ "id": "a\u0000", "resources": ["a"] }"#,
                "id must hold no control character",
            ),
            (r#"{ "id": "a" }"#, "resources is missing"),
            (
                r#"{ "id": "a", "resources": "b" }"#,
                "resources must be a list of names, not a string",
            ),
            (
                r#"{ "id": "a", "resources": [] }"#,
                "resources must name one at least",
            ),
            (
                r#"{ "id": "a", "resources": ["b", null] }"#,
                "resources[1] must be a resource's name as a string, not null",
            ),
            (
                r#"{ "id": "a", "resources": ["b", " "] }"#,
                "resources[1] must",
            ),
            (
                r#"{ "id": "a", "resources": ["b"], "session": 5 }"#,
                "session must be a text",
            ),
            (
                r#"{ "id": "a", "resources": ["b"], "session": "" }"#,
                "session must have 1 to 64 bytes",
            ),
            (
                r#"{ "id": "a", "resources": ["b", "c", "b"] }"#,
                "resources[2] names \"b\" once more",
            ),
            (
                r#"{ "id": "a", "resources": ["b"], "after": 5 }"#,
                "after is for a session",
            ),
            (
                r#"{ "id": "a", "resources": ["b"], "session": "s", "after": -1 }"#,
                "after must be a number",
            ),
            (
                r#"{ "id": "a", "resources": ["b", "c"], "session": "s", "token": 5 }"#,
                "one resource must be named",
            ),
            (
                r#"{ "id": "a", "resources": ["b"], "session": "s", "token": -1 }"#,
                "token must be a number",
            ),
            (
                r#"{ "id": "a", "resources": ["b"], "session": "s", "token": 9007199254740992 }"#,
                "token must be a number",
            ),
        ] {
            let bad = asked(body.as_bytes()).unwrap_err();
            assert!(bad.contains(words), "{body}: {bad}");
            let in_bulk =
                format!(r#"{{ "data": [ {{ "id": "a", "resources": ["b"] }}, {body} ] }}"#);
            if serde_json::from_str::<Value>(body).is_ok() {
                let bad = bulk(in_bulk.as_bytes()).unwrap_err();
                assert!(bad.contains("data[1]"), "{body}: {bad}");
            }
        }
        for (body, words) in [
            ("{}", "data is missing"),
            (
                r#"{ "data": {} }"#,
                "data must be a list of check-ins, not an object",
            ),
        ] {
            let bad = bulk(body.as_bytes()).unwrap_err();
            assert!(bad.contains(words), "{body}: {bad}");
        }
    }

    #[test]
    fn a_thousand_resources_may_be_named_and_not_one_more() {
        let body = |count: usize| {
            let names: Vec<_> = (0..count).map(|n| format!("krn:app:{n}")).collect();
            serde_json::json!({ "id": "a", "resources": names })
        };
        assert!(asked(body(1_000).to_string().as_bytes()).is_ok());
        let bad = asked(body(1_001).to_string().as_bytes()).unwrap_err();
        assert!(bad.contains("1000 resources, not 1001"), "{bad}");
        let data = serde_json::json!({ "data": [body(600), body(600)] });
        let bad = bulk(data.to_string().as_bytes()).unwrap_err();
        assert!(bad.contains("1000 resources, not 1200"), "{bad}");
    }

    #[test]
    fn whoever_names_no_session_is_one_with_all_under_its_id() {
        let owner = |more: &str| {
            let body = format!(r#"{{ "id": "a", "resources": ["b"], "later": true {more} }}"#);
            asked(body.as_bytes()).unwrap().asker.owner
        };
        assert_eq!(owner(""), owner(r#", "session": null"#));
        assert_ne!(owner(""), owner(r#", "session": "s""#));
        assert_ne!(owner(r#", "session": "s""#), owner(r#", "session": "t""#));
        assert_ne!(
            owner(""),
            owner(r#", "session": "a""#),
            "its id is no session"
        );
    }
}
