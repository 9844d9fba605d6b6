//! The objects in memory, with one revision for all of them and a history for watches, as etcd has.

use std::collections::BTreeMap;

use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub resource: &'static str,
    /// Empty for what belongs to no namespace.
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone)]
pub struct Stored {
    pub object: Value,
    pub revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Event {
    pub revision: u64,
    pub change: Change,
    pub key: Key,
    pub object: Value,
}

#[derive(Debug)]
pub struct Store {
    pub revision: u64,
    /// Changes up to this revision are forgotten.
    pub compacted: u64,
    objects: BTreeMap<Key, Stored>,
    history: Vec<Event>,
}

impl Store {
    pub fn new() -> Self {
        // A real server has written some objects of its own before the first request.
        Self {
            revision: 200,
            compacted: 200,
            objects: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    pub fn get(&self, key: &Key) -> Option<&Stored> {
        self.objects.get(key)
    }

    /// Of one kind, in one namespace or in all.
    pub fn list<'a>(
        &'a self,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Stored)> {
        self.objects.iter().filter(move |(key, _)| {
            key.resource == resource && namespace.is_none_or(|name| name == key.namespace)
        })
    }

    /// Writes it with a new resourceVersion and returns what was written.
    pub fn put(&mut self, key: Key, mut object: Value) -> Value {
        object["metadata"]["resourceVersion"] = json!((self.revision + 1).to_string());
        self.put_raw(key, object.clone());
        object
    }

    /// Writes it as it is, whatever it is.
    pub fn put_raw(&mut self, key: Key, object: Value) {
        self.revision += 1;
        let stored = Stored {
            object: object.clone(),
            revision: self.revision,
        };
        let before = self.objects.insert(key.clone(), stored);
        let change = if before.is_some() {
            Change::Modified
        } else {
            Change::Added
        };
        self.note(change, key, object);
    }

    pub fn remove(&mut self, key: &Key) -> Option<Stored> {
        let stored = self.objects.remove(key)?;
        self.revision += 1;
        let mut object = stored.object.clone();
        if object["metadata"].is_object() {
            object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        }
        self.note(Change::Deleted, key.clone(), object);
        Some(stored)
    }

    /// All of a namespace, and itself.
    pub fn remove_namespace(&mut self, name: &str) {
        let keys = self.objects.keys().filter(|key| {
            key.namespace == name || (key.resource == "namespaces" && key.name == name)
        });
        for key in keys.cloned().collect::<Vec<_>>() {
            self.remove(&key);
        }
    }

    /// Forgets all history: older watches cannot be resumed.
    pub fn compact(&mut self) {
        self.compacted = self.revision;
        self.history.clear();
    }

    pub fn since(&self, revision: u64) -> impl Iterator<Item = &Event> {
        self.history
            .iter()
            .filter(move |event| event.revision > revision)
    }

    fn note(&mut self, change: Change, key: Key, object: Value) {
        let revision = self.revision;
        self.history.push(Event {
            revision,
            change,
            key,
            object,
        });
    }
}
