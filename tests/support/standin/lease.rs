//! What the server lets into a Lease: the strict reading of its fields, then the rules for their values.

use serde_json::{Map, Value, json};

use super::status::Cause;
use super::time;

/// In the order in which the server prints them.
const SPEC: [(&str, Type); 5] = [
    ("holderIdentity", Type::Text),
    ("leaseDurationSeconds", Type::Int32),
    ("acquireTime", Type::MicroTime),
    ("renewTime", Type::MicroTime),
    ("leaseTransitions", Type::Int32),
];

/// Known to the server and dropped all the same, unless they are there already.
const GATED: [&str; 2] = ["strategy", "preferredHolder"];

#[derive(Debug, Clone, Copy)]
enum Type {
    Text,
    Int32,
    MicroTime,
}

/// The spec as the server would hold it, with the names of fields that it does not know and drops.
///
/// A field that the stored object has is known: that server is newer than this code.
pub fn read_spec(
    body: &Value,
    stored: Option<&Value>,
) -> Result<(Option<Value>, Vec<String>), String> {
    let Some(spec) = body.get("spec").filter(|spec| !spec.is_null()) else {
        return Ok((None, Vec::new()));
    };
    let given = spec.as_object().ok_or_else(|| {
        let kind = go_type(spec);
        format!(
            "json: cannot unmarshal {kind} into Go struct field Lease.spec of type v1.LeaseSpec"
        )
    })?;
    let mut known = Map::new();
    for (name, kind) in SPEC {
        if let Some(value) = given.get(name).filter(|value| !value.is_null()) {
            known.insert(name.to_owned(), read_field(name, kind, value)?);
        }
    }
    let mut unknown = Vec::new();
    for (name, value) in given {
        if SPEC.iter().all(|(known, _)| known != name) {
            if stored.is_some_and(|stored| stored["spec"].get(name).is_some()) {
                known.insert(name.clone(), value.clone());
            } else if !GATED.contains(&name.as_str()) {
                unknown.push(format!("spec.{name}"));
            }
        }
    }
    Ok((Some(Value::Object(known)), unknown))
}

fn read_field(name: &str, kind: Type, value: &Value) -> Result<Value, String> {
    let wrong = |expected: &str| {
        let given = match value {
            Value::Number(number) if expected == "int32" => format!("number {number}"),
            other => go_type(other).to_owned(),
        };
        format!(
            "json: cannot unmarshal {given} into Go struct field LeaseSpec.spec.{name} of type {expected}"
        )
    };
    match kind {
        Type::Text => value
            .as_str()
            .map(Value::from)
            .ok_or_else(|| wrong("string")),
        Type::Int32 => {
            let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
            number.map(Value::from).ok_or_else(|| wrong("int32"))
        }
        Type::MicroTime => {
            let text = value.as_str().ok_or_else(|| wrong("string"))?;
            let time = time::normalise(text)?;
            // Go's zero time is no time.
            let none = time.starts_with("0001-01-01T00:00:00.000000");
            Ok(if none { Value::Null } else { time.into() })
        }
    }
}

pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What is wrong with the values.
pub fn faults(lease: &Value) -> Vec<Cause> {
    let spec = &lease["spec"];
    let mut causes = Vec::new();
    if let Some(seconds) = spec["leaseDurationSeconds"]
        .as_i64()
        .filter(|seconds| *seconds <= 0)
    {
        let field = "spec.leaseDurationSeconds";
        causes.push(Cause::invalid(field, seconds, "must be greater than 0"));
    }
    if let Some(count) = spec["leaseTransitions"].as_i64().filter(|count| *count < 0) {
        let field = "spec.leaseTransitions";
        causes.push(Cause::invalid(
            field,
            count,
            "must be greater than or equal to 0",
        ));
    }
    causes
}

/// What is wrong with labels and with the keys of annotations.
pub fn label_faults(metadata: &Value) -> Vec<Cause> {
    const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    const KEY: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut causes = Vec::new();
    for field in ["labels", "annotations"] {
        let place = format!("metadata.{field}");
        for (key, value) in metadata[field].as_object().into_iter().flatten() {
            let name = key.rsplit('/').next().unwrap_or(key);
            if !is_qualified(name) {
                causes.push(Cause::invalid(&place, json!(key), KEY));
            }
            let text = value.as_str().unwrap_or_default();
            if field == "labels" && !text.is_empty() && !is_qualified(text) {
                causes.push(Cause::invalid(&place, value, VALUE));
            }
        }
    }
    causes
}

fn is_qualified(text: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric();
    text.starts_with(plain)
        && text.ends_with(plain)
        && text
            .chars()
            .all(|letter| plain(letter) || "-_.".contains(letter))
        && text.len() <= 63
}

/// What is wrong with a name, by RFC 1123.
pub fn name_faults(name: &str) -> Vec<Cause> {
    const RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let mut causes = Vec::new();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let good = name.split('.').all(|label| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(|byte| plain(*byte))
            && bytes.last().is_some_and(|byte| plain(*byte))
            && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
    });
    if name.len() > 253 {
        let rule = "must be no more than 253 bytes";
        causes.push(Cause::invalid("metadata.name", json!(name), rule));
    }
    if !good {
        causes.push(Cause::invalid("metadata.name", json!(name), RULE));
    }
    causes
}
