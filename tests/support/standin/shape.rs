//! From a request's body to the object that is kept: what is read, what is dropped, what is refused.

use serde_json::{Value, json};

use super::http::{Answer, Request};
use super::status::{self, Cause};
use super::target::Target;
use super::{lease, time};

pub fn media_type(request: &Request) -> &str {
    let given = request.header("content-type").unwrap_or("application/json");
    given.split(';').next().unwrap_or(given).trim()
}

pub fn uid() -> Value {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    json!(parts.join("-"))
}

fn cannot(target: &Target, why: &str) -> Answer {
    let kind = target.kind;
    let message = format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}");
    status::bad_request(&message)
}

/// A request's body, when it is an object of the target's kind for the target's place.
pub fn body(target: &Target, request: &Request) -> Result<Value, Answer> {
    if media_type(request) != "application/json" {
        return Err(Answer::failure(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ));
    }
    let kind = target.kind;
    let unrecognized = |why: &str| {
        status::bad_request(&format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: {why}"
        ))
    };
    let body: Value =
        serde_json::from_slice(&request.body).map_err(|error| unrecognized(&error.to_string()))?;
    if !body.is_object() {
        return Err(unrecognized("json: cannot unmarshal into Go value"));
    }
    let api_version = target.api_version();
    let given = body["apiVersion"].as_str().unwrap_or(&api_version);
    let given_kind = body["kind"].as_str().unwrap_or(kind);
    if given != api_version || given_kind != kind {
        let version = given.rsplit('/').next().unwrap_or(given);
        return Err(status::bad_request(&format!(
            "{given_kind} in version {version:?} cannot be handled as a {kind}: no kind {given_kind:?} is registered for version {given:?}"
        )));
    }
    let namespace = body["metadata"]["namespace"].as_str().unwrap_or_default();
    let place = target.namespace.as_deref().unwrap_or_default();
    if !namespace.is_empty() && namespace != place {
        return Err(status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(body)
}

/// The object in the server's own order of fields. What the server decides is taken from the old one.
pub fn shape(target: &Target, body: &Value, old: Option<&Value>) -> Result<Value, Answer> {
    let given = &body["metadata"];
    let was = old.map(|old| &old["metadata"]);
    let mut meta = json!({ "name": target.name });
    let kept = |key: &str| was.and_then(|was| was.get(key)).cloned();
    if let Some(prefix) = given.get("generateName") {
        meta["generateName"] = prefix.clone();
    }
    if let Some(namespace) = &target.namespace {
        meta["namespace"] = json!(namespace);
    }
    meta["uid"] = kept("uid").unwrap_or_default();
    meta["resourceVersion"] = kept("resourceVersion").unwrap_or_default();
    meta["creationTimestamp"] = kept("creationTimestamp").unwrap_or_else(|| json!(time::seconds()));
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if let Some(value) = kept(key) {
            meta[key] = value;
        }
    }
    for key in ["labels", "annotations", "ownerReferences", "finalizers"] {
        if let Some(value) = given.get(key).filter(|value| !value.is_null()) {
            check_metadata(target, key, value)?;
            meta[key] = value.clone();
        }
    }
    if target.resource == "namespaces" {
        meta["labels"]["kubernetes.io/metadata.name"] = json!(target.name);
    }
    if let Some(managed) = kept("managedFields") {
        meta["managedFields"] = managed;
    }
    let mut object = json!({
        "kind": target.kind,
        "apiVersion": target.api_version(),
        "metadata": meta,
    });
    match target.resource {
        "leases" => {
            let (spec, _) = lease::read_spec(body, old).map_err(|why| cannot(target, &why))?;
            object["spec"] = spec.unwrap_or_else(|| json!({}));
        }
        "namespaces" => {
            object["spec"] = json!({ "finalizers": ["kubernetes"] });
            let status = old.map(|old| old["status"].clone());
            object["status"] = status.unwrap_or_else(|| json!({ "phase": "Active" }));
        }
        _ => {
            let known = ["kind", "apiVersion", "metadata"];
            for (key, value) in body.as_object().into_iter().flatten() {
                if !known.contains(&key.as_str()) {
                    object[key] = value.clone();
                }
            }
        }
    }
    Ok(object)
}

fn check_metadata(target: &Target, key: &str, value: &Value) -> Result<(), Answer> {
    let (good, expected) = match key {
        "labels" | "annotations" => {
            let map = value.as_object();
            let good = map.is_some_and(|map| map.values().all(Value::is_string));
            (good, "map[string]string")
        }
        _ => (value.is_array(), "[]"),
    };
    if good {
        return Ok(());
    }
    let given = lease::go_type(value);
    let why = format!(
        "json: cannot unmarshal {given} into Go struct field ObjectMeta.metadata.{key} of type {expected}"
    );
    Err(cannot(target, &why))
}

/// The fields of a body that nobody knows: they are dropped, and the client is told.
#[derive(Debug)]
pub struct Dropped(Vec<String>);

impl Dropped {
    pub fn on(&self, answer: Answer) -> Answer {
        let text = |field: &String| format!("299 - \"unknown field \\\"{field}\\\"\"");
        let fields = self.0.iter();
        fields.fold(answer, |answer, field| {
            answer.header("Warning", &text(field))
        })
    }
}

/// Whether the body can be read at all.
pub fn reads(
    target: &Target,
    body: &Value,
    old: Option<&Value>,
    request: &Request,
) -> Result<Dropped, Answer> {
    if target.resource != "leases" {
        return Ok(Dropped(Vec::new()));
    }
    let (_, unknown) = lease::read_spec(body, old).map_err(|why| cannot(target, &why))?;
    match unknown.first() {
        Some(field) if request.query("fieldValidation") == Some("Strict") => {
            let why = format!("strict decoding error: unknown field {field:?}");
            Err(cannot(target, &why))
        }
        _ => Ok(Dropped(unknown)),
    }
}

/// Refuses what breaks the rules for values.
pub fn examine(target: &Target, object: &Value) -> Result<(), Answer> {
    let name = target.name.as_deref().unwrap_or_default();
    let mut causes = if name.is_empty() {
        let rule = "name or generateName is required";
        vec![Cause::required("metadata.name", rule)]
    } else {
        lease::name_faults(name)
    };
    causes.extend(lease::label_faults(&object["metadata"]));
    if target.resource == "leases" {
        causes.extend(lease::faults(object));
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(status::invalid(target, target.kind, &causes))
}
