//! Who asks, and what they may: tokens, service accounts, roles and their bindings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::http::Request;
use super::store::{Key, Store};
use super::target::Target;

pub const ADMIN: &str = "standin-admin";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    Admin,
    Account { namespace: String, name: String },
    Anonymous,
}

impl User {
    pub fn name(&self) -> String {
        match self {
            Self::Admin => ADMIN.to_owned(),
            Self::Account { namespace, name } => {
                format!("system:serviceaccount:{namespace}:{name}")
            }
            Self::Anonymous => "system:anonymous".to_owned(),
        }
    }

    pub fn groups(&self) -> Vec<String> {
        match self {
            Self::Admin => vec![
                "system:masters".to_owned(),
                "system:authenticated".to_owned(),
            ],
            Self::Account { namespace, .. } => vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            Self::Anonymous => vec!["system:unauthenticated".to_owned()],
        }
    }
}

#[derive(Debug)]
struct Token {
    account: Key,
    uid: Value,
}

/// The tokens that were ever given out.
#[derive(Debug, Default)]
pub struct Tokens {
    known: BTreeMap<String, Token>,
    refused: BTreeSet<String>,
}

impl Tokens {
    /// A new one for a service account.
    pub fn issue(&mut self, account: &Value) -> String {
        let text = |key: &str| account["metadata"][key].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        let uid = account["metadata"]["uid"].clone();
        let claims = json!({
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
            "jti": self.known.len(),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": { "name": name, "uid": uid },
            },
        });
        let (head, claims) = (base64(r#"{"alg":"none"}"#), base64(&claims.to_string()));
        let token = format!("{head}.{claims}.standin");
        let account = Target::of("serviceaccounts", Some(namespace), name).unwrap();
        let account = account.key();
        self.known.insert(token.clone(), Token { account, uid });
        token
    }

    pub fn refuse(&mut self, token: &str) {
        self.refused.insert(token.to_owned());
    }

    pub fn accept(&mut self, token: &str) {
        self.refused.remove(token);
    }

    /// `None`: that is nobody's token.
    pub fn user(&self, store: &Store, request: &Request) -> Option<User> {
        // Anything else than a token proves nothing.
        let Some(token) = request.token() else {
            return Some(User::Anonymous);
        };
        if self.refused.contains(token) {
            return None;
        }
        if token == ADMIN {
            return Some(User::Admin);
        }
        let known = self.known.get(token)?;
        let account = store.get(&known.account)?;
        // An account of the same name that was made later is another.
        (account.object["metadata"]["uid"] == known.uid).then(|| User::Account {
            namespace: known.account.namespace.clone(),
            name: known.account.name.clone(),
        })
    }
}

/// What lets somebody do this, in the server's words. `None`: nothing does.
pub fn reason(store: &Store, user: &User, verb: &str, target: &Target) -> Option<String> {
    let (home, account) = match user {
        User::Admin => return Some(String::new()),
        User::Account { namespace, name } => (namespace, name),
        User::Anonymous => return None,
    };
    // Everybody who is somebody may ask about themselves.
    if target.resource.starts_with("selfsubject") {
        return Some(String::new());
    }
    let place = target.place()?;
    let binds = |binding: &Value| {
        let subjects = binding["subjects"].as_array();
        subjects.into_iter().flatten().any(|subject| {
            subject["kind"] == "ServiceAccount"
                && subject["name"] == json!(account)
                && subject["namespace"] == json!(home)
        })
    };
    for (key, binding) in store.list("rolebindings", Some(place)) {
        let role = binding.object["roleRef"]["name"].as_str();
        let role = role.filter(|_| binds(&binding.object));
        let Some(role) = role.and_then(|role| Target::of("roles", Some(place), role)) else {
            continue;
        };
        let rules = store
            .get(&role.key())
            .and_then(|role| role.object["rules"].as_array());
        if rules
            .into_iter()
            .flatten()
            .any(|rule| permits(rule, verb, target))
        {
            let role = role.name.unwrap_or_default();
            return Some(format!(
                "RBAC: allowed by RoleBinding \"{}/{place}\" of Role {role:?} to ServiceAccount \"{account}/{home}\"",
                key.name
            ));
        }
    }
    None
}

fn permits(rule: &Value, verb: &str, target: &Target) -> bool {
    let has = |key: &str, wanted: &str| {
        let values = rule[key].as_array();
        let mut values = values.into_iter().flatten().filter_map(Value::as_str);
        values.any(|value| value == wanted || value == "*")
    };
    let resource = match &target.sub {
        Some(sub) => format!("{}/{sub}", target.resource),
        None => target.resource.to_owned(),
    };
    let only = rule["resourceNames"].as_array();
    let named = only.is_none_or(Vec::is_empty)
        || target
            .name
            .as_ref()
            .is_some_and(|name| has("resourceNames", name));
    has("verbs", verb) && has("apiGroups", target.group) && has("resources", &resource) && named
}

/// As tokens write it: the letters for URLs, and no padding.
fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut encoded = String::new();
    for part in text.as_bytes().chunks(3) {
        let bits = part
            .iter()
            .fold(0, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - part.len()));
        for index in 0..=part.len() {
            let letter = LETTERS[(bits >> (18 - 6 * index) & 63) as usize];
            encoded.push(char::from(letter));
        }
    }
    encoded
}
