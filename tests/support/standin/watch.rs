//! What a watch wants to hear, and the stream of it.

use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Answer, Request};
use super::status;
use super::store::{Event, Key};
use super::target::Target;

/// What a watch wants to hear.
#[derive(Debug)]
pub struct Watch {
    pub resource: &'static str,
    pub namespace: Option<String>,
    pub selector: Selector,
    pub cursor: u64,
    /// What is said at once.
    pub first: Vec<Value>,
    /// There is nothing to be said after the first.
    pub over: bool,
    pub bookmarks: bool,
    pub timeout: Option<Duration>,
}

#[derive(Debug, Default)]
pub struct Selector {
    pub name: Option<String>,
    pub namespace: Option<String>,
    labels: Vec<(String, String)>,
}

impl Selector {
    pub fn of(request: &Request) -> Result<Self, Answer> {
        let mut selector = Self::default();
        let pairs = |name| {
            let text: &str = request.query(name).unwrap_or_default();
            text.split(',').filter(|part| !part.is_empty()).map(|part| {
                let (key, value) = part.split_once('=').unwrap_or((part, ""));
                (key, value.trim_start_matches('=').to_owned())
            })
        };
        for (key, value) in pairs("fieldSelector") {
            match key {
                "metadata.name" => selector.name = Some(value),
                "metadata.namespace" => selector.namespace = Some(value),
                _ => {
                    let known = "only \"metadata.name\", \"metadata.namespace\"";
                    let message = format!("{key:?} is not a known field selector: {known}");
                    return Err(status::bad_request(&message));
                }
            }
        }
        for (key, value) in pairs("labelSelector") {
            selector.labels.push((key.to_owned(), value));
        }
        Ok(selector)
    }

    pub fn matches(&self, key: &Key, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.name.as_ref().is_none_or(|name| *name == key.name)
            && self
                .namespace
                .as_ref()
                .is_none_or(|name| *name == key.namespace)
            && self
                .labels
                .iter()
                .all(|(key, value)| labels[key] == json!(value))
    }
}

impl Watch {
    pub fn wants(&self, event: &Event) -> bool {
        event.key.resource == self.resource
            && self
                .namespace
                .as_ref()
                .is_none_or(|name| *name == event.key.namespace)
            && self.selector.matches(&event.key, &event.object)
    }

    pub fn bookmark(&self, revision: u64) -> Value {
        let target = Target::of(self.resource, None, "").unwrap();
        let mut object = json!({
            "kind": target.kind,
            "apiVersion": target.api_version(),
            "metadata": { "resourceVersion": revision.to_string() },
        });
        if self.resource == "leases" {
            object["spec"] = json!({});
        }
        json!({ "type": "BOOKMARK", "object": object })
    }
}
