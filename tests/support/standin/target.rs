//! What a path means: the kinds of objects that there are, and where they live.

use super::http::Request;
use super::store::Key;

/// What there is: group, resource, kind, and whether it lives in a namespace. All are in version v1.
const RESOURCES: [(&str, &str, &str, bool); 8] = [
    ("", "namespaces", "Namespace", false),
    ("", "pods", "Pod", true),
    ("", "serviceaccounts", "ServiceAccount", true),
    ("coordination.k8s.io", "leases", "Lease", true),
    ("rbac.authorization.k8s.io", "roles", "Role", true),
    (
        "rbac.authorization.k8s.io",
        "rolebindings",
        "RoleBinding",
        true,
    ),
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        false,
    ),
    (
        "authentication.k8s.io",
        "selfsubjectreviews",
        "SelfSubjectReview",
        false,
    ),
];

/// What a path leads to.
#[derive(Debug, Clone)]
pub struct Target {
    pub group: &'static str,
    pub resource: &'static str,
    pub kind: &'static str,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub sub: Option<String>,
}

impl Target {
    pub fn of(resource: &str, namespace: Option<&str>, name: &str) -> Option<Self> {
        let (group, resource, kind, _) = RESOURCES
            .into_iter()
            .find(|(_, known, _, _)| *known == resource)?;
        Some(Self {
            group,
            resource,
            kind,
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            sub: None,
        })
    }

    pub fn lease(namespace: &str, name: &str) -> Self {
        Self::of("leases", Some(namespace), name).unwrap()
    }

    pub fn namespace(name: &str) -> Self {
        Self::of("namespaces", None, name).unwrap()
    }

    /// `None`: there is no such path.
    pub fn at(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, _, ..] => (Some(*namespace), &rest[2..]),
            rest => (None, rest),
        };
        let (resource, rest) = rest.split_first()?;
        if rest.len() > 2 {
            return None;
        }
        let (name, sub) = (rest.first(), rest.get(1));
        let mut target = Self::of(resource, namespace, "")?;
        let known = RESOURCES.iter().any(|(_, resource, _, inside)| {
            *resource == target.resource && *inside == namespace.is_some()
        });
        // All leases of all namespaces can be listed and watched.
        if target.group != group || !(known || name.is_none()) {
            return None;
        }
        target.name = name.map(|name| (*name).to_owned());
        target.sub = sub.map(|sub| (*sub).to_owned());
        Some(target)
    }

    pub fn key(&self) -> Key {
        Key {
            resource: self.resource,
            namespace: self.namespace.clone().unwrap_or_default(),
            name: self.name.clone().unwrap_or_default(),
        }
    }

    /// The namespace in which rights count: a namespace lies in itself.
    pub fn place(&self) -> Option<&str> {
        let itself = self
            .name
            .as_deref()
            .filter(|_| self.resource == "namespaces");
        self.namespace.as_deref().or(itself)
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            return "v1".to_owned();
        }
        format!("{}/v1", self.group)
    }

    pub fn named(&self, name: &str) -> Self {
        let mut target = self.clone();
        target.name = Some(name.to_owned());
        target
    }
}

/// What Kubernetes calls a request.
pub fn verb(request: &Request) -> &'static str {
    let named = Target::at(&request.path).is_none_or(|target| target.name.is_some());
    match request.method.as_str() {
        "GET" if request.asks("watch") => "watch",
        "GET" if named => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}
