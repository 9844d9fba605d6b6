//! Merge patches and JSON patches.

use serde_json::{Map, Value};

/// RFC 7386. A strategic merge of what is patched here (labels, annotations, plain fields) is the same.
pub fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let fields = object.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            fields.shift_remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// RFC 6902 with add, replace, remove and test. `None`: an operation did not apply.
pub fn json(object: &mut Value, changes: &Value) -> Option<()> {
    for change in changes.as_array()? {
        let path = change["path"].as_str()?;
        match change["op"].as_str()? {
            "test" => {
                if object.pointer(path)? != change.get("value")? {
                    return None;
                }
            }
            "replace" => *object.pointer_mut(path)? = change.get("value")?.clone(),
            "add" => {
                let (place, name) = split(path)?;
                let value = change.get("value")?.clone();
                match object.pointer_mut(place)? {
                    Value::Object(fields) => {
                        fields.insert(name, value);
                    }
                    Value::Array(items) if name == "-" => items.push(value),
                    Value::Array(items) => {
                        let index = name.parse().ok().filter(|index| *index <= items.len())?;
                        items.insert(index, value);
                    }
                    _ => return None,
                }
            }
            "remove" => {
                let (place, name) = split(path)?;
                match object.pointer_mut(place)? {
                    Value::Object(fields) => {
                        fields.shift_remove(&name)?;
                    }
                    Value::Array(items) => {
                        let index = name.parse().ok().filter(|index| *index < items.len())?;
                        items.remove(index);
                    }
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some(())
}

/// The parent's pointer, and the last key.
fn split(path: &str) -> Option<(&str, String)> {
    let (place, name) = path.rsplit_once('/')?;
    Some((place, name.replace("~1", "/").replace("~0", "~")))
}
