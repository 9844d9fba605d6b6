//! Who wrote which field (`managedFields`), and server-side apply, which lives on it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::time;

type Path = Vec<String>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    manager: String,
    operation: String,
    time: String,
    fields: BTreeSet<Path>,
}

/// The fields that can have an owner of their own: each of the spec, each label and annotation.
fn leaves(object: &Value) -> BTreeMap<Path, Value> {
    let mut leaves = BTreeMap::new();
    let wholes = object.as_object().into_iter().flatten();
    for (name, value) in
        wholes.filter(|(name, _)| ["rules", "roleRef", "subjects"].contains(&name.as_str()))
    {
        leaves.insert(vec![name.clone()], value.clone());
    }
    let mut places = vec![vec!["metadata", "labels"], vec!["metadata", "annotations"]];
    // A namespace's spec is the server's own, and a pod's is of no interest here.
    if object["kind"] != "Namespace" && object["kind"] != "Pod" {
        places.push(vec!["spec"]);
    }
    for place in places {
        let found = place.iter().try_fold(object, |value, key| value.get(key));
        for (name, value) in found.and_then(Value::as_object).into_iter().flatten() {
            let mut path: Path = place.iter().map(|key| (*key).to_owned()).collect();
            path.push(name.clone());
            leaves.insert(path, value.clone());
        }
    }
    leaves
}

fn entries(object: &Value) -> Vec<Entry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let managed = object["metadata"]["managedFields"].as_array();
    managed
        .into_iter()
        .flatten()
        .map(|entry| {
            let mut fields = BTreeSet::new();
            collect(&entry["fieldsV1"], &mut Vec::new(), &mut fields);
            Entry {
                manager: text(&entry["manager"]),
                operation: text(&entry["operation"]),
                time: text(&entry["time"]),
                fields,
            }
        })
        .collect()
}

fn collect(tree: &Value, path: &mut Path, fields: &mut BTreeSet<Path>) {
    for (key, value) in tree.as_object().into_iter().flatten() {
        if let Some(name) = key.strip_prefix("f:") {
            path.push(name.to_owned());
            if value.as_object().is_none_or(Map::is_empty) {
                fields.insert(path.clone());
            } else {
                collect(value, path, fields);
            }
            path.pop();
        }
    }
}

fn write(object: &mut Value, entries: &[Entry]) {
    let api_version = object["apiVersion"].clone();
    let managed: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let mut tree = json!({});
            for path in &entry.fields {
                let mut place = &mut tree;
                for (depth, key) in path.iter().enumerate() {
                    // A map whose keys have owners is itself a field: Kubernetes writes it as a dot.
                    if depth == 2 && entry.operation == "Update" {
                        place["."] = json!({});
                    }
                    place = &mut place[format!("f:{key}")];
                    if place.is_null() {
                        *place = json!({});
                    }
                }
            }
            json!({
                "manager": entry.manager,
                "operation": entry.operation,
                "apiVersion": api_version,
                "time": entry.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": tree,
            })
        })
        .collect();
    if managed.is_empty() {
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.shift_remove("managedFields");
        }
    } else {
        object["metadata"]["managedFields"] = Value::Array(managed);
    }
}

/// The entry's fields are the writer's from now on.
fn own(entries: &mut Vec<Entry>, manager: &str, operation: &str, fields: BTreeSet<Path>) {
    if fields.is_empty() {
        return;
    }
    let time = time::seconds();
    let mine = |entry: &&mut Entry| entry.manager == manager && entry.operation == operation;
    if let Some(entry) = entries.iter_mut().find(mine) {
        entry.time = time;
        if operation == "Apply" {
            entry.fields = fields;
        } else {
            entry.fields.extend(fields);
        }
    } else {
        entries.push(Entry {
            manager: manager.to_owned(),
            operation: operation.to_owned(),
            time,
            fields,
        });
    }
}

/// Notes a create, an update or a patch: what changed belongs to the writer alone.
pub fn update(old: Option<&Value>, new: &mut Value, manager: &str) {
    let before = old.map(leaves).unwrap_or_default();
    let after = leaves(new);
    let mut entries = old.map(entries).unwrap_or_default();
    let changed: BTreeSet<Path> = after
        .iter()
        .filter(|(path, value)| before.get(*path) != Some(value))
        .map(|(path, _)| path.clone())
        .collect();
    for entry in &mut entries {
        entry.fields.retain(|path| after.contains_key(path));
        if entry.manager != manager || entry.operation != "Update" {
            entry.fields.retain(|path| !changed.contains(path));
        }
    }
    entries.retain(|entry| !entry.fields.is_empty());
    own(&mut entries, manager, "Update", changed);
    write(new, &entries);
}

/// The object after an apply, or the fields that other managers hold, each with its manager.
pub fn apply(
    old: Option<&Value>,
    applied: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, Vec<(String, String)>> {
    let before = old.map(leaves).unwrap_or_default();
    let wanted = leaves(applied);
    let mut entries = old.map(entries).unwrap_or_default();
    let mine = |entry: &Entry| entry.manager == manager && entry.operation == "Apply";
    let changed = |path: &Path| {
        wanted
            .get(path)
            .is_some_and(|value| before.get(path) != Some(value))
    };

    let mut conflicts = Vec::new();
    for entry in entries.iter().filter(|entry| !mine(entry)) {
        let lost = entry.fields.iter().filter(|path| changed(path));
        conflicts.extend(lost.map(|path| (entry.manager.clone(), format!(".{}", path.join(".")))));
    }
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    for entry in entries.iter_mut().filter(|entry| !mine(entry)) {
        entry.fields.retain(|path| !changed(path));
    }

    let mut new = old.cloned().unwrap_or_else(|| applied.clone());
    let held: Vec<Path> = entries
        .iter()
        .filter(|entry| mine(entry))
        .flat_map(|entry| entry.fields.clone())
        .collect();
    for path in held.iter().filter(|path| !wanted.contains_key(*path)) {
        let others = entries.iter().filter(|entry| !mine(entry));
        if !others.into_iter().any(|entry| entry.fields.contains(path)) {
            let (name, place) = path.split_last().unwrap();
            let place = place
                .iter()
                .try_fold(&mut new, |value, key| value.get_mut(key));
            if let Some(fields) = place.and_then(Value::as_object_mut) {
                fields.shift_remove(name);
            }
        }
    }
    for (path, value) in &wanted {
        let place = path.iter().fold(&mut new, |value, key| &mut value[key]);
        *place = value.clone();
    }
    entries.retain(|entry| !entry.fields.is_empty());
    own(&mut entries, manager, "Apply", wanted.into_keys().collect());
    // Those who apply stand before those who update.
    entries.sort_by_key(|entry| entry.operation != "Apply");
    write(&mut new, &entries);
    Ok(new)
}

/// Whether two objects differ in nothing but when their managers wrote.
pub fn same(one: &Value, other: &Value) -> bool {
    let timeless = |object: &Value| {
        let mut object = object.clone();
        let mut entries = entries(&object);
        for entry in &mut entries {
            entry.time.clear();
        }
        write(&mut object, &entries);
        object
    };
    timeless(one) == timeless(other)
}
