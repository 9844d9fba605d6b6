//! The `Status` objects with which the server says what went wrong, word for word.

use serde_json::{Map, Value, json};

use super::http::Answer;
use super::target::Target;

/// One reason why an object is invalid.
#[derive(Debug, Clone)]
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

impl Cause {
    pub fn invalid(field: &str, value: impl std::fmt::Display, rule: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {rule}"),
            field: field.to_owned(),
        }
    }

    pub fn forbidden(field: &str, rule: &str) -> Self {
        Self {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {rule}"),
            field: field.to_owned(),
        }
    }

    pub fn required(field: &str, rule: &str) -> Self {
        Self {
            reason: "FieldValueRequired",
            message: format!("Required value: {rule}"),
            field: field.to_owned(),
        }
    }

    fn json(&self) -> Value {
        json!({ "reason": self.reason, "message": self.message, "field": self.field })
    }
}

pub fn failure(code: u16, reason: &str, message: &str, details: Option<Value>) -> Value {
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
    });
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    if let Some(details) = details {
        status["details"] = details;
    }
    status["code"] = code.into();
    status
}

/// Who is meant: `name`, `group` and `kind`, each only when there is one.
fn details(name: &str, group: &str, kind: &str) -> Map<String, Value> {
    let parts = [("name", name), ("group", group), ("kind", kind)];
    let known = parts.into_iter().filter(|(_, value)| !value.is_empty());
    known
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect()
}

/// `leases.coordination.k8s.io`, or `pods`.
fn qualified(resource: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{resource}{dot}{group}")
}

fn about(target: &Target, code: u16, reason: &str, problem: &str) -> Answer {
    let resource = qualified(target.resource, target.group);
    let name = target.name.as_deref().unwrap_or_default();
    let subject = if name.is_empty() {
        resource
    } else {
        format!("{resource} {name:?}")
    };
    let details = details(name, target.group, target.resource);
    let message = format!("{subject} {problem}");
    Answer::json(code, &failure(code, reason, &message, Some(details.into())))
}

pub fn not_found(target: &Target) -> Answer {
    about(target, 404, "NotFound", "not found")
}

pub fn namespace_not_found(namespace: &str) -> Answer {
    not_found(&Target::namespace(namespace))
}

pub fn already_exists(target: &Target) -> Answer {
    about(target, 409, "AlreadyExists", "already exists")
}

pub fn modified(target: &Target) -> Answer {
    conflict(
        target,
        target.resource,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

/// 409. `subject` is the resource or the kind.
pub fn conflict(target: &Target, subject: &str, why: &str) -> Answer {
    let name = target.name.as_deref().unwrap_or_default();
    let resource = qualified(subject, target.group);
    let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
    let details = details(name, target.group, subject);
    Answer::json(
        409,
        &failure(409, "Conflict", &message, Some(details.into())),
    )
}

pub fn forbidden(target: &Target, user: &str, verb: &str) -> Answer {
    let place = match target.place() {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let slash = target.sub.as_ref().map(|sub| format!("/{sub}"));
    let resource = format!("{}{}", target.resource, slash.unwrap_or_default());
    let group = target.group;
    let problem = format!(
        "is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {place}"
    );
    about(target, 403, "Forbidden", &problem)
}

pub fn forbidden_path(path: &str, user: &str, verb: &str) -> Answer {
    let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
    Answer::json(
        403,
        &failure(403, "Forbidden", &message, Some(Value::Object(Map::new()))),
    )
}

pub fn terminating(target: &Target, namespace: &str) -> Answer {
    let problem = format!(
        "is forbidden: unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut answer = about(target, 403, "Forbidden", &problem);
    let mut status: Value = serde_json::from_slice(&answer.body).unwrap();
    status["details"]["causes"] = json!([{
        "reason": "NamespaceTerminating",
        "message": format!("namespace {namespace} is being terminated"),
        "field": "metadata.namespace",
    }]);
    answer.body = format!("{status}\n").into_bytes();
    answer
}

/// What an update and a precondition of it say about an object that is another by now.
pub fn other_uid(target: &Target, given: &str, there: &str) -> Answer {
    let key = target.key();
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{}/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object meta: {there}",
        key.resource, key.namespace, key.name
    );
    conflict(target, target.resource, &why)
}

/// The path is well formed, and there is nothing of the kind.
pub fn no_resource() -> Answer {
    let message = "the server could not find the requested resource";
    Answer::json(404, &failure(404, "NotFound", message, Some(json!({}))))
}

/// What the options of a request lack.
pub fn bad_options(kind: &str, cause: &Cause) -> Answer {
    let details = json!({ "group": "meta.k8s.io", "kind": kind, "causes": [cause.json()] });
    let (field, why) = (&cause.field, &cause.message);
    let message = format!("{kind}.meta.k8s.io \"\" is invalid: {field}: {why}");
    Answer::json(422, &failure(422, "Invalid", &message, Some(details)))
}

/// What cannot be read after a patch.
pub fn bad_patch(object: &Value) -> Answer {
    let cause = Cause::invalid("patch", json!(object.to_string()), "it cannot be read");
    let message = format!(" \"\" is invalid: patch: {}", cause.message);
    let details = json!({ "causes": [cause.json()] });
    Answer::json(422, &failure(422, "Invalid", &message, Some(details)))
}

/// Somebody has seen a later world than this one.
pub fn too_large(asked: u64, current: u64) -> Answer {
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let cause =
        json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" });
    let details = json!({ "causes": [cause], "retryAfterSeconds": 1 });
    let status = failure(504, "Timeout", &message, Some(details));
    Answer::json(504, &status).header("Retry-After", "1")
}

pub fn unauthorized() -> Answer {
    Answer::failure(401, "Unauthorized", "Unauthorized")
}

pub fn bad_request(message: &str) -> Answer {
    Answer::failure(400, "BadRequest", message)
}

/// 422. `subject` is a kind for what is wrong in an object, a resource for what is wrong in a request.
pub fn invalid(target: &Target, subject: &str, causes: &[Cause]) -> Answer {
    let name = target.name.as_deref().unwrap_or_default();
    let each: Vec<String> = causes
        .iter()
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    let all = match &each[..] {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let subject_name = qualified(subject, target.group);
    let mut details = details(name, target.group, subject);
    details.insert(
        "causes".to_owned(),
        causes.iter().map(Cause::json).collect(),
    );
    let message = format!("{subject_name} {name:?} is invalid: {all}");
    Answer::json(
        422,
        &failure(422, "Invalid", &message, Some(details.into())),
    )
}

/// What server-side apply answers when other managers own the fields.
pub fn apply_conflict(conflicts: &[(String, String)], api_version: &str) -> Answer {
    let mut message = match conflicts {
        [_] => "Apply failed with 1 conflict: ".to_owned(),
        _ => format!("Apply failed with {} conflicts: ", conflicts.len()),
    };
    let mut managers: Vec<&String> = conflicts.iter().map(|(manager, _)| manager).collect();
    managers.dedup();
    let each: Vec<String> = managers
        .into_iter()
        .map(|manager| {
            let fields = conflicts.iter().filter(|(other, _)| other == manager);
            let fields: Vec<&str> = fields.map(|(_, field)| field.as_str()).collect();
            match fields[..] {
                [field] => format!("conflict with {manager:?} using {api_version}: {field}"),
                _ => format!(
                    "conflicts with {manager:?} using {api_version}:\n- {}",
                    fields.join("\n- ")
                ),
            }
        })
        .collect();
    message.push_str(&each.join("\n"));
    let causes: Vec<Value> = conflicts
        .iter()
        .map(|(manager, field)| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {manager:?} using {api_version}"),
                "field": field,
            })
        })
        .collect();
    let details = json!({ "causes": causes });
    Answer::json(409, &failure(409, "Conflict", &message, Some(details)))
}

/// What a deletion answers.
pub fn deleted(target: &Target, uid: &Value) -> Answer {
    let name = target.name.as_deref().unwrap_or_default();
    let mut details = details(name, target.group, target.resource);
    details.insert("uid".to_owned(), uid.clone());
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    });
    Answer::json(200, &status)
}

/// The last event of a watch whose start is no longer known.
pub fn too_old(asked: u64, oldest: u64) -> Value {
    let message = format!("too old resource version: {asked} ({oldest})");
    failure(410, "Expired", &message, None)
}
