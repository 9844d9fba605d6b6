//! What changes objects: create, update, patch, apply and delete, with the checks in the server's order.

use serde_json::{Map, Value, json};

use super::api::Api;
use super::fields;
use super::http::{Answer, Request};
use super::rights::User;
use super::shape::{body, examine, media_type, reads, shape, uid};
use super::status::{self, Cause};
use super::target::Target;
use super::{patch, time};

impl Api {
    pub fn post(&mut self, target: &Target, request: &Request) -> Result<Answer, Answer> {
        let body = body(target, request)?;
        let meta = &body["metadata"];
        let name = match (meta["name"].as_str(), meta["generateName"].as_str()) {
            (Some(name), _) if !name.is_empty() => name.to_owned(),
            (_, Some(prefix)) if !prefix.is_empty() => {
                self.named += 1;
                format!("{prefix}{:05x}", self.named)
            }
            _ => String::new(),
        };
        let target = target.named(&name);
        let warned = reads(&target, &body, None, request)?;
        let versioned = body["metadata"]["resourceVersion"].as_str();
        let versioned = versioned.is_some_and(|version| !version.is_empty());
        let made = self.create(&target, &body, request.manager(), versioned)?;
        Ok(warned.on(Answer::json(201, &made)))
    }

    /// Writes a new object, if nothing speaks against it.
    pub fn create(
        &mut self,
        target: &Target,
        body: &Value,
        manager: &str,
        versioned: bool,
    ) -> Result<Value, Answer> {
        let mut object = shape(target, body, None)?;
        self.admit(target)?;
        examine(target, &object)?;
        if versioned {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Answer::failure(500, "", message));
        }
        if self.store.get(&target.key()).is_some() {
            return Err(status::already_exists(target));
        }
        object["metadata"]["uid"] = uid();
        fields::update(None, &mut object, manager);
        Ok(self.store.put(target.key(), object))
    }

    /// New objects need a namespace that will last.
    fn admit(&self, target: &Target) -> Result<(), Answer> {
        let Some(namespace) = &target.namespace else {
            return Ok(());
        };
        let stored = self.store.get(&Target::namespace(namespace).key());
        let stored = stored.ok_or_else(|| status::namespace_not_found(namespace))?;
        if stored.object["status"]["phase"] == "Terminating" {
            return Err(status::terminating(target, namespace));
        }
        Ok(())
    }

    pub fn update(
        &mut self,
        target: &Target,
        request: &Request,
        user: &User,
    ) -> Result<Answer, Answer> {
        let body = body(target, request)?;
        check_name(target, &body)?;
        let given_uid = body["metadata"]["uid"].as_str().unwrap_or_default();
        let Some(stored) = self.store.get(&target.key()) else {
            let warned = reads(target, &body, None, request)?;
            // Whoever writes a uid means that very object, which is gone.
            if !given_uid.is_empty() {
                return Err(status::other_uid(target, given_uid, ""));
            }
            self.allow(user, "create", target)?;
            let made = self.create(target, &body, request.manager(), false)?;
            return Ok(warned.on(Answer::json(201, &made)));
        };
        let old = stored.object.clone();
        let warned = reads(target, &body, Some(&old), request)?;
        let uid = old["metadata"]["uid"].as_str().unwrap_or_default();
        if !given_uid.is_empty() && given_uid != uid {
            return Err(status::other_uid(target, given_uid, uid));
        }
        self.check_version(target, &body, target.resource == "leases")?;
        let new = shape(target, &body, Some(&old))?;
        let written = self.replace(target, &old, new, request.manager())?;
        Ok(warned.on(Answer::json(200, &written)))
    }

    fn check_version(&self, target: &Target, body: &Value, needed: bool) -> Result<(), Answer> {
        let stored = self.store.get(&target.key());
        let stored = stored.ok_or_else(|| status::not_found(target))?;
        let given = body["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        if given.is_empty() || given == "0" {
            if !needed {
                return Ok(());
            }
            let rule = "must be specified for an update";
            let cause = Cause::invalid("metadata.resourceVersion", 0, rule);
            return Err(status::invalid(target, target.resource, &[cause]));
        }
        let revision = stored.revision.to_string();
        let current = stored.object["metadata"]["resourceVersion"].as_str();
        if given == current.unwrap_or(&revision) {
            Ok(())
        } else if given.parse::<u64>().is_err() {
            let message = format!("strconv.ParseUint: parsing {given:?}: invalid syntax");
            Err(Answer::failure(500, "", &message))
        } else {
            Err(status::modified(target))
        }
    }

    fn replace(
        &mut self,
        target: &Target,
        old: &Value,
        mut new: Value,
        manager: &str,
    ) -> Result<Value, Answer> {
        examine(target, &new)?;
        fields::update(Some(old), &mut new, manager);
        Ok(self.settle(target, old, new))
    }

    /// Writes a changed object. One that is the same is not written, and keeps its resourceVersion.
    fn settle(&mut self, target: &Target, old: &Value, new: Value) -> Value {
        if fields::same(old, &new) {
            return old.clone();
        }
        let finalizers = new["metadata"]["finalizers"].as_array();
        let dying = new["metadata"].get("deletionTimestamp").is_some();
        if dying && finalizers.is_none_or(Vec::is_empty) {
            self.store.remove(&target.key());
            return new;
        }
        self.store.put(target.key(), new)
    }

    pub fn patch(
        &mut self,
        target: &Target,
        request: &Request,
        user: &User,
    ) -> Result<Answer, Answer> {
        let kind = media_type(request);
        let kinds = [
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ];
        if !kinds.contains(&kind) {
            let message = "415: Unsupported Media Type";
            let status = status::failure(415, "UnsupportedMediaType", message, Some(json!({})));
            return Err(Answer::json(415, &status));
        }
        let given: Value = serde_json::from_slice(&request.body)
            .map_err(|error| status::bad_request(&format!("error decoding patch: {error}")))?;
        if kind == "application/apply-patch+yaml" {
            return self.apply(target, &given, request, user);
        }
        let stored = self.store.get(&target.key());
        let old = stored
            .ok_or_else(|| status::not_found(target))?
            .object
            .clone();
        let mut new = old.clone();
        if kind == "application/json-patch+json" {
            patch::json(&mut new, &given).ok_or_else(|| {
                let message = "the server rejected our request due to an error in our request";
                let details = Value::Object(Map::new());
                let status = status::failure(422, "Invalid", message, Some(details));
                Answer::json(422, &status)
            })?;
        } else {
            patch::merge(&mut new, &given);
        }
        check_name(target, &new)?;
        if new["metadata"]["uid"] != old["metadata"]["uid"] {
            let uid = &new["metadata"]["uid"];
            let cause = Cause::invalid("metadata.uid", uid, "field is immutable");
            return Err(status::invalid(target, target.kind, &[cause]));
        }
        self.check_version(target, &new, false)?;
        // The patch is blamed for what cannot be read after it.
        let new = shape(target, &new, Some(&old)).map_err(|_| status::bad_patch(&new))?;
        let written = self.replace(target, &old, new, request.manager())?;
        Ok(Answer::json(200, &written))
    }

    fn apply(
        &mut self,
        target: &Target,
        given: &Value,
        request: &Request,
        user: &User,
    ) -> Result<Answer, Answer> {
        let Some(manager) = request.query("fieldManager") else {
            let cause = Cause::required("fieldManager", "is required for apply patch");
            return Err(status::bad_options("PatchOptions", &cause));
        };
        let old = self
            .store
            .get(&target.key())
            .map(|stored| stored.object.clone());
        let given_shape = shape(target, given, old.as_ref())?;
        let Some(old) = old else {
            self.allow(user, "create", target)?;
            self.admit(target)?;
            examine(target, &given_shape)?;
            let mut new = fields::apply(None, &given_shape, manager, true).unwrap_or(given_shape);
            new["metadata"]["uid"] = uid();
            return Ok(Answer::json(201, &self.store.put(target.key(), new)));
        };
        self.check_version(target, given, false)?;
        let new = fields::apply(Some(&old), &given_shape, manager, request.asks("force"))
            .map_err(|conflicts| status::apply_conflict(&conflicts, &target.api_version()))?;
        examine(target, &new)?;
        Ok(Answer::json(200, &self.settle(target, &old, new)))
    }

    pub fn delete(&mut self, target: &Target, options: &Value) -> Result<Answer, Answer> {
        let stored = self.store.get(&target.key()).cloned();
        let stored = stored.ok_or_else(|| status::not_found(target))?;
        let meta = &stored.object["metadata"];
        for (field, name, hint) in [
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ] {
            let wanted = options["preconditions"][field].as_str();
            if let Some(wanted) = wanted.filter(|wanted| meta[field] != json!(wanted)) {
                let there = meta[field].as_str().unwrap_or_default();
                let why = format!(
                    "the {name} in the precondition ({wanted}) does not match the {name} in record ({there}). The object might have been {hint}"
                );
                return Err(status::conflict(target, target.kind, &why));
            }
        }
        let finalizers = meta["finalizers"].as_array();
        let held = finalizers.is_some_and(|all| !all.is_empty());
        if held || target.resource == "namespaces" {
            let mut object = stored.object;
            if object["metadata"].get("deletionTimestamp").is_none() {
                object["metadata"]["deletionTimestamp"] = json!(time::seconds());
                if target.resource == "namespaces" {
                    object["status"]["phase"] = json!("Terminating");
                } else {
                    object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
                }
                object = self.store.put(target.key(), object);
            }
            return Ok(Answer::json(200, &object));
        }
        self.store.remove(&target.key());
        if target.resource == "leases" || target.group == "rbac.authorization.k8s.io" {
            return Ok(status::deleted(target, &meta["uid"]));
        }
        Ok(Answer::json(200, &stored.object))
    }
}

fn check_name(target: &Target, body: &Value) -> Result<(), Answer> {
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    let wanted = target.name.as_deref().unwrap_or_default();
    if name == wanted {
        return Ok(());
    }
    let message = if name.is_empty() {
        format!(
            "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
        )
    } else {
        format!("the name of the object ({name}) does not match the name on the URL ({wanted})")
    };
    Err(status::bad_request(&message))
}
