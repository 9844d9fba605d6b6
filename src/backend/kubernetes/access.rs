//! Where the cluster is, and who we are there: a kubeconfig, or the service account of a pod.
//!
//! | first that there is | |
//! |---|---|
//! | `config`, `context` | what the configuration of this library names |
//! | `KUBECONFIG` | a list of files, as for kubectl: missing ones are skipped |
//! | the service account | `KUBERNETES_SERVICE_HOST` and the files that a pod has |
//! | `~/.kube/config` | |
//!
//! Knows files and the environment, and sends nothing.

use std::fmt;
use std::path::{Path, PathBuf};

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use serde_json::Value;

use super::connection::{Identity, Trust, Way, basic, certificates, extra_header_name};
use super::kubeconfig::{Cluster, Context, Impersonated, Kubeconfig, Named, Plugin, Source, User};
use crate::backend::without_password;
use crate::environment::{self, variable};

/// What a pod has.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The longest name of a namespace.
const LONGEST_LABEL: usize = 63;

/// Which cluster is meant, as the configuration says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// A kubeconfig.
    pub config: Option<PathBuf>,
    pub context: Option<String>,
    pub namespace: Option<String>,
}

/// The pod that this process runs in, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    pub name: Option<String>,
    pub namespace: Option<String>,
}

impl Pod {
    pub fn new(name: Option<String>, namespace: Option<String>) -> Self {
        Self { name, namespace }
    }

    /// As the downward API or the system tell it.
    pub fn of_environment() -> Self {
        let file = || std::fs::read_to_string(Path::new(SERVICE_ACCOUNT).join("namespace")).ok();
        let namespace = variable("POD_NAMESPACE").or_else(file);
        Self {
            name: variable("POD_NAME").or_else(|| variable("HOSTNAME")),
            namespace: namespace.map(|name| name.trim().to_owned()),
        }
    }
}

/// How the cluster is reached.
pub(super) struct Access {
    pub way: Way,
    /// Read anew for each request, so that a token which was rotated counts at once.
    pub token_file: Option<PathBuf>,
    pub token: Option<String>,
    /// Unless a plugin issues one.
    pub certificate: Certificate,
    /// Who has to be asked for the credentials, and what of the cluster it is told.
    pub plugin: Option<(Plugin, Value)>,
    pub namespace: String,
}

/// The rest is secret, or may be.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("way", &self.way)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Where a certificate of this side is, and its key.
#[derive(Default)]
pub(super) struct Certificate {
    chain: Option<Source>,
    key: Option<Source>,
}

impl Certificate {
    pub fn read(&self) -> Result<Option<Identity>, Refused> {
        let named = |name, source: &Source| {
            let read = source.read();
            read.map_err(|why| format!("the {name} of the kubeconfig's user: {why}"))
        };
        match (&self.chain, &self.key) {
            (None, None) => Ok(None),
            (Some(chain), Some(key)) => Ok(Some(Identity {
                certificate: named("client-certificate", chain)?,
                key: named("client-key", key)?,
            })),
            (Some(_), None) => {
                Err("the kubeconfig's user has a client-certificate and no client-key".into())
            }
            (None, Some(_)) => {
                Err("the kubeconfig's user has a client-key and no client-certificate".into())
            }
        }
    }
}

/// What surrounds this process.
pub(super) struct Surroundings<'a> {
    pub env: &'a dyn Fn(&str) -> Option<String>,
    pub service_account: &'a Path,
    pub home: Option<PathBuf>,
}

impl Surroundings<'static> {
    pub fn of_this_process() -> Self {
        Self {
            env: &variable,
            service_account: Path::new(SERVICE_ACCOUNT),
            home: environment::home(),
        }
    }
}

impl Surroundings<'_> {
    /// Set, and not to nothing.
    fn var(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }
}

/// Why the cluster cannot be reached like this, for whoever configures it.
type Refused = String;

impl Place {
    pub(super) fn resolve(&self, around: &Surroundings<'_>) -> Result<Access, Refused> {
        let mut access = match self.kubeconfig(around)? {
            Some(kubeconfig) => self.of_kubeconfig(kubeconfig, around)?,
            None => of_service_account(around)?,
        };
        let (namespace, source) = match (&self.namespace, around.var("POD_NAMESPACE")) {
            (Some(given), _) => (given.clone(), "namespace"),
            (None, Some(pods)) => (pods, "the environment variable POD_NAMESPACE"),
            (None, None) => (
                access.namespace,
                "the namespace of the context or service account",
            ),
        };
        check_namespace(&namespace)
            .map_err(|rule| format!("{source} must {rule}, not {namespace:?}"))?;
        access.namespace = namespace;
        Ok(access)
    }

    /// `None`: the service account counts.
    fn kubeconfig(&self, around: &Surroundings<'_>) -> Result<Option<Kubeconfig>, Refused> {
        if let Some(path) = &self.config {
            return read(path).map(Some);
        }
        let listed = around.var("KUBECONFIG").unwrap_or_default();
        let mut merged = Kubeconfig::default();
        for path in std::env::split_paths(&listed) {
            if !path.as_os_str().is_empty() && path.exists() {
                let next = read(&path)?;
                merged = merged
                    .merge(next)
                    .map_err(|error| format!("KUBECONFIG, at {}: {error}", path.display()))?;
            }
        }
        if !merged.contexts.is_empty() {
            return Ok(Some(merged));
        }
        if self.context.is_none() && in_a_pod(around) {
            return Ok(None);
        }
        let usual = around.home.as_ref().map(|home| home.join(".kube/config"));
        match usual.filter(|path| listed.is_empty() && path.exists()) {
            Some(path) => read(&path).map(Some),
            None if listed.is_empty() => Err(format!(
                "no Kubernetes cluster is configured here: in a pod, mount its service account ({} is not there, or \
                 KUBERNETES_SERVICE_HOST is not set); elsewhere set config to a kubeconfig, or the environment variable KUBECONFIG",
                around.service_account.join("token").display()
            )),
            None => Err(format!(
                "no context is in the files that KUBECONFIG lists: {listed}"
            )),
        }
    }

    fn of_kubeconfig(
        &self,
        kubeconfig: Kubeconfig,
        around: &Surroundings<'_>,
    ) -> Result<Access, Refused> {
        let (context, cluster, user) = self.choose(kubeconfig)?;
        if let Some(provider) = user.auth_provider {
            return Err(format!(
                "the kubeconfig's user has an auth-provider ({provider}), which Kubernetes gave up: write its exec plugin instead"
            ));
        }
        let server = address(cluster.server.as_deref().unwrap_or("").trim(), &cluster)?;
        let of_cluster = |what: String| {
            format!(
                "the certificate-authority of cluster {:?} {what}",
                context.cluster
            )
        };
        let authority = cluster.certificate_authority.as_ref();
        let ca = authority.map(Source::read).transpose();
        let ca = ca.map_err(|why| of_cluster(format!("cannot be used: {why}")))?;
        let known = ca.as_deref().map(certificates).transpose();
        let known = known.map_err(|what| of_cluster(what.to_owned()))?;
        let trust = match (known, authority) {
            _ if cluster.insecure_skip_tls_verify == Some(true) => Trust::Anybody,
            (Some(_), Some(Source::File(path))) => Trust::File(path.clone()),
            (Some(known), _) => Trust::These(known),
            (None, _) => Trust::Machine,
        };
        let proxy = match &cluster.proxy_url {
            Some(url) => Some(proxy_address(url, "proxy-url of the kubeconfig")?),
            None => proxy_of_environment(&server, around)?,
        };
        let mut headers = impersonation(&user.impersonated)?;
        if let Some(name) = &user.username {
            let password = user.password.as_deref().unwrap_or_default();
            headers.insert(AUTHORIZATION, basic(name, password));
        }
        let plugin = user.plugin.map(|plugin| {
            let told = plugin
                .wants_cluster
                .then(|| cluster.for_plugins(ca.as_deref()));
            (plugin, told.unwrap_or_default())
        });
        Ok(Access {
            way: Way {
                server,
                proxy,
                trust,
                tls_server_name: cluster.tls_server_name,
                headers,
            },
            // As client-go: a file is read again and again, so it counts more than a text.
            token: user.token.filter(|_| user.token_file.is_none()),
            token_file: user.token_file,
            certificate: Certificate {
                chain: user.client_certificate,
                key: user.client_key,
            },
            plugin,
            namespace: named_or_default(context.namespace),
        })
    }

    fn choose(&self, kubeconfig: Kubeconfig) -> Result<(Context, Cluster, User), Refused> {
        let known: Vec<_> = kubeconfig
            .contexts
            .iter()
            .map(|c| c.name.as_str())
            .collect();
        if known.is_empty() {
            return Err("the kubeconfig has no contexts, so no current-context: it is empty, or not the one that is meant".into());
        }
        let known = known.join(", ");
        let wanted = self
            .context
            .clone()
            .or(kubeconfig.current_context)
            .filter(|name| !name.is_empty())
            .ok_or_else(|| {
                format!("the kubeconfig has no current-context: set context to one of: {known}")
            })?;
        let context = find(kubeconfig.contexts, &wanted)
            .and_then(|context| context.value)
            .ok_or_else(|| {
                format!("context must be one of the kubeconfig's ({known}), not {wanted:?}")
            })?;
        let cluster = find(kubeconfig.clusters, &context.cluster)
            .and_then(|cluster| cluster.value)
            .ok_or_else(|| {
                format!(
                    "context {wanted:?} of the kubeconfig names cluster {:?}, which is not in it",
                    context.cluster
                )
            })?;
        // Nobody in particular is fine, as for kubectl.
        let user = match &context.user {
            None => User::default(),
            Some(named) => {
                let user = find(kubeconfig.users, named).ok_or_else(|| {
                    format!("context {wanted:?} of the kubeconfig names user {named:?}, who is not in it")
                })?;
                user.value.unwrap_or_default()
            }
        };
        Ok((context, cluster, user))
    }
}

fn find<T>(all: Vec<Named<T>>, name: &str) -> Option<Named<T>> {
    all.into_iter().find(|one| one.name == name)
}

fn read(path: &Path) -> Result<Kubeconfig, Refused> {
    Kubeconfig::read(path)
        .map_err(|why| format!("the kubeconfig {} cannot be used: {why}", path.display()))
}

/// Who is acted as, in the headers that tell it.
fn impersonation(who: &Impersonated) -> Result<HeaderMap, Refused> {
    let mut headers = HeaderMap::new();
    let mut tell = |field: &str, name: String, value: &String| {
        let header = HeaderName::try_from(name)
            .ok()
            .zip(HeaderValue::try_from(value).ok());
        let (name, value) = header.ok_or_else(|| {
            format!("{field} of the kubeconfig's user holds what no HTTP header can: a line break or another control character")
        })?;
        headers.append(name, value);
        Ok::<_, Refused>(())
    };
    if let Some(user) = &who.user {
        tell("as", "impersonate-user".into(), user)?;
    }
    if let Some(uid) = &who.uid {
        tell("as-uid", "impersonate-uid".into(), uid)?;
    }
    for group in &who.groups {
        tell("as-groups", "impersonate-group".into(), group)?;
    }
    for (key, values) in &who.extra {
        for value in values {
            tell("as-user-extra", extra_header_name(key), value)?;
        }
    }
    Ok(headers)
}

fn in_a_pod(around: &Surroundings<'_>) -> bool {
    around.var("KUBERNETES_SERVICE_HOST").is_some() && around.service_account.join("token").exists()
}

fn of_service_account(around: &Surroundings<'_>) -> Result<Access, Refused> {
    let host = around.var("KUBERNETES_SERVICE_HOST").unwrap_or_default();
    let port = around.var("KUBERNETES_SERVICE_PORT");
    let port = port.unwrap_or_else(|| "443".into());
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host
    };
    let url = format!("https://{host}:{port}");
    let server = url.parse().map_err(|error| {
        format!(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT make no address: {url}: {error}"
        )
    })?;
    let ca = around.service_account.join("ca.crt");
    let pem = std::fs::read(&ca).map_err(|error| {
        format!(
            "the certificate of the cluster, {}, cannot be read: {error}",
            ca.display()
        )
    })?;
    certificates(&pem).map_err(|what| format!("{} {what}", ca.display()))?;
    let namespace = std::fs::read_to_string(around.service_account.join("namespace"));
    Ok(Access {
        way: Way {
            server,
            proxy: None,
            trust: Trust::File(ca),
            tls_server_name: None,
            headers: HeaderMap::new(),
        },
        token_file: Some(around.service_account.join("token")),
        token: None,
        certificate: Certificate::default(),
        plugin: None,
        namespace: named_or_default(namespace.ok()),
    })
}

fn named_or_default(namespace: Option<String>) -> String {
    let namespace = namespace.unwrap_or_default();
    match namespace.trim() {
        "" => "default".into(),
        name => name.to_owned(),
    }
}

/// Words that follow "must".
pub(super) fn check_namespace(name: &str) -> Result<(), String> {
    if name.len() <= LONGEST_LABEL && is_label(name) {
        return Ok(());
    }
    Err(format!(
        "be 1 to {LONGEST_LABEL} lower-case letters, digits and -, with a letter or digit at both ends"
    ))
}

/// A part between dots of an RFC 1123 name.
pub(super) fn is_label(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inside) && !text.starts_with('-') && !text.ends_with('-')
}

fn address(server: &str, cluster: &Cluster) -> Result<Uri, Refused> {
    let secured =
        cluster.certificate_authority.is_some() || cluster.insecure_skip_tls_verify.is_some();
    let full = match (server.contains("://"), secured) {
        (true, _) => server.to_owned(),
        (false, true) => format!("https://{server}"),
        (false, false) => format!("http://{server}"),
    };
    let refuse = || {
        format!(
            "the server of the kubeconfig must be a URL like https://10.0.0.1:6443, not {:?}",
            without_password(server)
        )
    };
    let url: Uri = full.parse().map_err(|_| refuse())?;
    let known = matches!(url.scheme_str(), Some("http" | "https"));
    let place = url.authority().map_or("", |all| all.as_str());
    let place = place.rsplit(['@', ']']).next().unwrap_or_default();
    let port_is_good = !place.contains(':') || url.port_u16().is_some_and(|port| port > 0);
    if !known || !port_is_good || url.host().is_none_or(str::is_empty) {
        return Err(refuse());
    }
    Ok(url)
}

/// An address without anything that may be a password.
pub(super) fn shown(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("https");
    let host = url.host().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    }
}

/// As Go's programs do: of the scheme of the server, unless `NO_PROXY` or the loopback says otherwise.
fn proxy_of_environment(server: &Uri, around: &Surroundings<'_>) -> Result<Option<Uri>, Refused> {
    let either = |upper: &str, lower: &str| around.var(upper).or_else(|| around.var(lower));
    let (name, proxy) = if server.scheme_str() == Some("https") {
        ("HTTPS_PROXY", either("HTTPS_PROXY", "https_proxy"))
    } else {
        ("HTTP_PROXY", either("HTTP_PROXY", "http_proxy"))
    };
    let host = server.host().unwrap_or_default();
    let bare = host.trim_matches(['[', ']']);
    let loopback = bare == "localhost"
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback());
    let Some(proxy) = proxy.filter(|_| !loopback) else {
        return Ok(None);
    };
    let excepted = either("NO_PROXY", "no_proxy").unwrap_or_default();
    let anything = Matcher::builder()
        .all("http://proxy")
        .no(excepted.as_str())
        .build();
    if anything.intercept(server).is_none() {
        return Ok(None);
    }
    proxy_address(&proxy, &format!("environment variable {name}")).map(Some)
}

fn proxy_address(text: &str, source: &str) -> Result<Uri, Refused> {
    let full = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let url: Option<Uri> = full.parse().ok();
    let known = |url: &Uri| {
        matches!(url.scheme_str(), Some("http" | "https" | "socks5"))
            && url.host().is_some_and(|host| !host.is_empty())
    };
    // Not shown: it may hold a password.
    url.filter(known).ok_or_else(|| {
        format!("the {source} must be a URL like http://proxy:3128 or socks5://proxy:1080")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use super::*;

    /// A machine with a home, a service account and an environment of its own.
    struct Machine {
        dir: PathBuf,
        env: HashMap<&'static str, String>,
    }

    impl Machine {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir()
                .join(format!("whenleader-access-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("home/.kube")).unwrap();
            let env = HashMap::new();
            Self { dir, env }
        }

        fn set(&mut self, name: &'static str, value: impl Into<String>) {
            self.env.insert(name, value.into());
        }

        fn file(&self, name: &str, text: &str) -> String {
            let path = self.dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        }

        fn with_account(&mut self, host: &str, port: &str) {
            let pem = rcgen::generate_simple_self_signed(["ca".to_owned()])
                .unwrap()
                .cert
                .pem();
            self.file("account/ca.crt", &pem);
            self.file("account/token", "t\n");
            self.file("account/namespace", "pods\n");
            self.set("KUBERNETES_SERVICE_HOST", host);
            self.set("KUBERNETES_SERVICE_PORT", port);
        }

        fn resolve(&self, place: &Place) -> Result<Access, Refused> {
            place.resolve(&Surroundings {
                env: &|name| self.env.get(name).cloned(),
                service_account: &self.dir.join("account"),
                home: Some(self.dir.join("home")),
            })
        }

        fn url(&self) -> String {
            let access = self.resolve(&Place::default()).unwrap();
            access.way.server.to_string()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    fn kubeconfig(server: &str, more: &str) -> String {
        format!(
            "clusters: [{{ name: c, cluster: {{ server: '{server}' {more} }} }}]\n\
             contexts: [{{ name: x, context: {{ cluster: c, namespace: ours }} }}]\n\
             current-context: x\n"
        )
    }

    #[test]
    fn in_a_pod_the_service_account_counts_also_on_ipv6() {
        let mut machine = Machine::new("pod");
        for (host, port, url) in [
            ("10.0.0.1", "443", "https://10.0.0.1:443/"),
            (
                "fd49:683:e486::1",
                "6443",
                "https://[fd49:683:e486::1]:6443/",
            ),
            ("[::1]", "443", "https://[::1]:443/"),
            (
                "kubernetes.default.svc",
                "443",
                "https://kubernetes.default.svc:443/",
            ),
        ] {
            machine.with_account(host, port);
            assert_eq!(machine.url(), url);
        }
        let access = machine.resolve(&Place::default()).unwrap();
        assert_eq!(access.namespace, "pods");
        assert_eq!(access.token_file, Some(machine.dir.join("account/token")));
        let Trust::File(ca) = access.way.trust else {
            panic!("{:?}", access.way.trust);
        };
        assert_eq!(ca, machine.dir.join("account/ca.crt"));
        fs::remove_file(machine.dir.join("account/namespace")).unwrap();
        assert_eq!(
            machine.resolve(&Place::default()).unwrap().namespace,
            "default"
        );
        machine.file("account/ca.crt", "no certificate");
        let refused = machine.resolve(&Place::default()).unwrap_err();
        assert!(refused.contains("holds no certificate"), "{refused}");
    }

    #[test]
    fn the_namespace_is_the_parameters_else_the_pods_else_the_accounts() {
        let mut machine = Machine::new("namespace");
        machine.with_account("10.0.0.1", "443");
        machine.set("POD_NAMESPACE", "shop");
        assert_eq!(
            machine.resolve(&Place::default()).unwrap().namespace,
            "shop"
        );
        let mut place = Place {
            namespace: Some("given".into()),
            ..Place::default()
        };
        assert_eq!(machine.resolve(&place).unwrap().namespace, "given");
        machine.set("POD_NAMESPACE", "No Name");
        let refused = machine.resolve(&Place::default()).unwrap_err();
        assert!(
            refused.contains("POD_NAMESPACE must be 1 to 63"),
            "{refused}"
        );
        machine.set("POD_NAMESPACE", "");
        place.namespace = None;
        assert_eq!(machine.resolve(&place).unwrap().namespace, "pods");
        place.config = Some(machine.file("k", &kubeconfig("https://h", "")).into());
        assert_eq!(machine.resolve(&place).unwrap().namespace, "ours");
    }

    #[test]
    fn what_is_said_more_clearly_counts_more() {
        let mut machine = Machine::new("order");
        let refused = machine.resolve(&Place::default()).unwrap_err();
        assert!(
            refused.contains("no Kubernetes cluster is configured here"),
            "{refused}"
        );
        machine.file("home/.kube/config", &kubeconfig("https://home", ""));
        assert_eq!(machine.url(), "https://home/");
        machine.with_account("10.0.0.1", "443");
        assert_eq!(machine.url(), "https://10.0.0.1:443/");
        let env = machine.file("env", &kubeconfig("https://env", ""));
        machine.set("KUBECONFIG", env);
        assert_eq!(machine.url(), "https://env/");
        let place = Place {
            config: Some(
                machine
                    .file("given", &kubeconfig("https://given", ""))
                    .into(),
            ),
            ..Place::default()
        };
        let access = machine.resolve(&place).unwrap();
        assert_eq!(access.way.server, "https://given/");
    }

    #[test]
    fn kubeconfig_lists_are_merged_as_kubectl_does() {
        let mut machine = Machine::new("list");
        let first = machine.file("a file", &kubeconfig("https://first", ""));
        let second = machine.file("second", &kubeconfig("https://second", ""));
        let empty = machine.file("empty", "");
        let nulls = machine.file("nulls", "clusters: null\ncontexts: null\nusers: null\n");
        let missing = machine.dir.join("missing").to_str().unwrap().to_owned();
        for (list, url) in [
            (vec![&*first, &second], "https://first/"),
            (vec![&*second, &first], "https://second/"),
            (
                vec!["", &empty, &nulls, &missing, &second, ""],
                "https://second/",
            ),
        ] {
            let list = std::env::join_paths(list).unwrap();
            machine.set("KUBECONFIG", list.to_str().unwrap());
            assert_eq!(machine.url(), url);
        }
        machine.set("KUBECONFIG", missing);
        let refused = machine.resolve(&Place::default()).unwrap_err();
        assert!(refused.contains("no context is in the files"), "{refused}");
        machine.with_account("10.0.0.1", "443");
        assert_eq!(machine.url(), "https://10.0.0.1:443/");
    }

    #[test]
    fn servers_are_urls_and_a_missing_scheme_is_filled_in() {
        let machine = Machine::new("server");
        for (server, more, url) in [
            ("https://[fd00::1]:6443", "", "https://[fd00::1]:6443/"),
            ("http://127.0.0.1:8001", "", "http://127.0.0.1:8001/"),
            ("127.0.0.1:8001", "", "http://127.0.0.1:8001/"),
            (
                "h:6443",
                ", insecure-skip-tls-verify: true",
                "https://h:6443/",
            ),
        ] {
            machine.file("home/.kube/config", &kubeconfig(server, more));
            assert_eq!(machine.url(), url);
        }
        for server in [
            "",
            "https://",
            "not a url",
            "unix:///socket",
            "https://h:99999",
            "https://h:0",
            "https://[::1]:x",
            "https://user:hunter2@h:0",
        ] {
            machine.file("home/.kube/config", &kubeconfig(server, ""));
            let refused = machine.resolve(&Place::default()).unwrap_err();
            assert!(refused.contains("must be a URL"), "{server}: {refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn proxies_of_the_environment_are_used_as_gos_programs_do() {
        let mut machine = Machine::new("proxy");
        let proxy = |machine: &Machine, server: &str| {
            machine.file("home/.kube/config", &kubeconfig(server, ""));
            let access = machine.resolve(&Place::default()).unwrap();
            access.way.proxy.map(|url| url.to_string())
        };
        assert_eq!(proxy(&machine, "https://api.example.com"), None);
        machine.set("https_proxy", "proxy:3128");
        let through = Some("http://proxy:3128/".to_owned());
        assert_eq!(proxy(&machine, "https://api.example.com"), through);
        assert_eq!(proxy(&machine, "http://api.example.com"), None);
        for local in [
            "https://localhost:6443",
            "https://127.0.0.1",
            "https://[::1]:6443",
        ] {
            assert_eq!(proxy(&machine, local), None, "{local}");
        }
        for except in ["*", "example.com", ".example.com", "a, api.example.com,"] {
            machine.set("NO_PROXY", except);
            assert_eq!(proxy(&machine, "https://api.example.com"), None, "{except}");
        }
        machine.set("NO_PROXY", "10.0.0.0/8");
        assert_eq!(proxy(&machine, "https://10.1.2.3:6443"), None);
        assert_eq!(proxy(&machine, "https://11.1.2.3:6443"), through);
        machine.set("https_proxy", "garbage::");
        machine.file("home/.kube/config", &kubeconfig("https://11.1.2.3", ""));
        let refused = machine.resolve(&Place::default()).unwrap_err();
        assert!(refused.contains("HTTPS_PROXY must be a URL"), "{refused}");
    }

    #[test]
    fn a_token_file_counts_more_than_a_token_and_nobody_is_somebody_too() {
        let machine = Machine::new("user");
        let users = |user: &str| {
            let text = kubeconfig("https://h", "").replace("cluster: c,", "cluster: c, user: u,")
                + &format!("users: [{{ name: u, user: {user} }}]\n");
            machine.file("home/.kube/config", &text);
            machine.resolve(&Place::default()).unwrap()
        };
        let both = users("{ token: t, tokenFile: relative }");
        assert_eq!(
            both.token_file,
            Some(machine.dir.join("home/.kube/relative"))
        );
        assert_eq!(both.token, None);
        let nobody = users("null");
        assert!(nobody.token_file.is_none() && nobody.token.is_none());
        for (name, words) in [
            ("nobody", "who is not in it"),
            ("u", "has an auth-provider (gcp)"),
        ] {
            let text = kubeconfig("https://h", "")
                .replace("cluster: c,", &format!("cluster: c, user: {name},"))
                + "users: [{ name: u, user: { auth-provider: { name: gcp } } }]\n";
            machine.file("home/.kube/config", &text);
            let refused = machine.resolve(&Place::default()).err().unwrap();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_user_is_told_by_name_and_password_and_acts_as_others() {
        let machine = Machine::new("headers");
        let headers = |user: &str| {
            let text = kubeconfig("https://h", "").replace("cluster: c,", "cluster: c, user: u,")
                + &format!("users: [{{ name: u, user: {user} }}]\n");
            machine.file("home/.kube/config", &text);
            let access = machine.resolve(&Place::default())?;
            Ok::<_, Refused>(access.way.headers)
        };
        let basic = headers("{ username: u, password: 'p:ä', token: t }").unwrap();
        assert_eq!(basic[AUTHORIZATION], "Basic dTpwOsOk");
        assert!(basic[AUTHORIZATION].is_sensitive());
        assert!(headers("{ token: t }").unwrap().is_empty());
        let acted = headers(
            "{ as: a, as-uid: 7, as-groups: [g, h], as-user-extra: { Ex/tra: [v, w], none: [] } }",
        )
        .unwrap();
        let told: Vec<_> = acted
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                "impersonate-user: a",
                "impersonate-uid: 7",
                "impersonate-group: g",
                "impersonate-group: h",
                "impersonate-extra-ex%2ftra: v",
                "impersonate-extra-ex%2ftra: w"
            ]
        );
        let refused = headers("{ as-groups: [\"hunter\\n2\"] }").unwrap_err();
        assert!(
            refused.starts_with("as-groups of the") && !refused.contains("hunter"),
            "{refused}"
        );
    }

    #[test]
    fn whose_certificates_are_believed_is_what_the_cluster_says() {
        let machine = Machine::new("trust");
        let pem = rcgen::generate_simple_self_signed(["ca".to_owned()])
            .unwrap()
            .cert
            .pem();
        let file = machine.file("ca.crt", &pem);
        let data = {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.encode(&pem)
        };
        let trust = |more: &str| {
            machine.file("home/.kube/config", &kubeconfig("https://h", more));
            machine
                .resolve(&Place::default())
                .map(|access| access.way.trust)
        };
        assert!(matches!(trust(""), Ok(Trust::Machine)));
        let of_file = format!(", certificate-authority: '{file}'");
        assert!(matches!(trust(&of_file), Ok(Trust::File(_))));
        let of_data = format!(", certificate-authority-data: {data}");
        assert!(matches!(trust(&of_data), Ok(Trust::These(all)) if all.len() == 1));
        assert!(matches!(trust(&(of_data + &of_file)), Ok(Trust::These(_))));
        let anybody = format!("{of_file}, insecure-skip-tls-verify: true");
        assert!(matches!(trust(&anybody), Ok(Trust::Anybody)));
        for (more, words) in [
            (", certificate-authority: nowhere", "nowhere cannot be read"),
            (", certificate-authority-data: '?'", "no base64"),
            (
                ", certificate-authority-data: aGVsbG8=",
                "no certificate in PEM",
            ),
        ] {
            let refused = trust(more).unwrap_err();
            assert!(
                refused.contains("certificate-authority of cluster \"c\""),
                "{refused}"
            );
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_certificate_of_this_side_is_read_with_its_key_or_not_at_all() {
        let machine = Machine::new("certificate");
        let read = |user: &str| {
            let text = kubeconfig("https://h", "").replace("cluster: c,", "cluster: c, user: u,")
                + &format!("users: [{{ name: u, user: {user} }}]\n");
            machine.file("home/.kube/config", &text);
            machine
                .resolve(&Place::default())
                .unwrap()
                .certificate
                .read()
        };
        assert!(read("{}").unwrap().is_none());
        let both = read("{ client-certificate-data: aGk=, client-key-data: aG8= }");
        let both = both.unwrap().unwrap();
        assert_eq!((&*both.certificate, &*both.key), (&b"hi"[..], &b"ho"[..]));
        for (user, words) in [
            ("{ client-certificate: c }", "no client-key"),
            ("{ client-key-data: aG8= }", "no client-certificate"),
            (
                "{ client-certificate: c, client-key-data: aG8= }",
                "client-certificate of the",
            ),
            (
                "{ client-certificate-data: aGk=, client-key-data: '?' }",
                "client-key of the",
            ),
        ] {
            let refused = read(user).err().unwrap();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn what_is_secret_is_not_shown_for_debugging() {
        let machine = Machine::new("debug");
        let text = kubeconfig(
            "https://su:hunter2@h",
            ", proxy-url: 'http://pu:hunter2@proxy:1'",
        )
        .replace("cluster: c,", "cluster: c, user: u,")
            + "users: [{ name: u, user: { username: u, password: hunter2, token: hunter2, \
               client-certificate: c, client-key-data: hunter2, \
               exec: { command: p, args: [hunter2], env: [{ name: E, value: hunter2 }] } } }]\n";
        machine.file("home/.kube/config", &text);
        let access = machine.resolve(&Place::default()).unwrap();
        assert!(access.token.is_some() && access.plugin.is_some() && access.way.proxy.is_some());
        let key = access.certificate.key.as_ref().unwrap();
        let shown = format!("{access:?} {:?} {key:?}", access.way);
        for secret in ["hunter2", "dTpodW50ZXIy", "su", "pu"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("https://h"), "{shown}");
        assert!(shown.ends_with("Data(..)"), "{shown}");
    }

    #[test]
    fn a_namespace_is_checked_wherever_it_comes_from() {
        let mut machine = Machine::new("bad-namespace");
        for bad in ["a b", "a/../b", "Shop"] {
            let text = kubeconfig("https://h", "").replace("ours", &format!("'{bad}'"));
            machine.file("home/.kube/config", &text);
            let refused = machine.resolve(&Place::default()).err().unwrap();
            assert!(refused.contains("lower-case letters"), "{refused}");
        }
        machine.with_account("10.0.0.1", "443");
        machine.file("account/namespace", "a/b\n");
        assert!(machine.resolve(&Place::default()).is_err());
    }
}
