//! What a kubeconfig says: files are read, merged as kubectl merges them, and paths in them made whole.
//!
//! Only what is used is looked at. Errors never repeat a value: it may be a secret. What may hold one is not shown
//! for debugging, either.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::yaml::{self, Kind, NoYaml, Node};

/// What a cluster's extension for credential plugins is called.
const PLUGIN_EXTENSION: &str = "client.authentication.k8s.io/exec";

#[derive(Default)]
pub(super) struct Kubeconfig {
    pub current_context: Option<String>,
    pub contexts: Vec<Named<Context>>,
    pub clusters: Vec<Named<Cluster>>,
    pub users: Vec<Named<User>>,
    kind: Option<String>,
    api_version: Option<String>,
}

pub(super) struct Named<T> {
    pub name: String,
    pub value: Option<T>,
}

#[derive(Debug)]
pub(super) struct Context {
    pub cluster: String,
    pub user: Option<String>,
    pub namespace: Option<String>,
}

#[derive(Default)]
pub(super) struct Cluster {
    pub server: Option<String>,
    pub certificate_authority: Option<Source>,
    pub insecure_skip_tls_verify: Option<bool>,
    pub tls_server_name: Option<String>,
    pub proxy_url: Option<String>,
    /// What its credential plugins are told besides.
    plugin_config: Option<Value>,
}

#[derive(Default)]
pub(super) struct User {
    pub username: Option<String>,
    pub password: Option<String>,
    pub token: Option<String>,
    pub token_file: Option<PathBuf>,
    pub client_certificate: Option<Source>,
    pub client_key: Option<Source>,
    pub impersonated: Impersonated,
    /// The name of what Kubernetes gave up.
    pub auth_provider: Option<String>,
    pub plugin: Option<Plugin>,
}

/// Who is acted as.
#[derive(Debug, Default)]
pub(super) struct Impersonated {
    pub user: Option<String>,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    pub extra: Vec<(String, Vec<String>)>,
}

/// Who has to be asked for credentials.
#[derive(Default)]
pub(super) struct Plugin {
    pub command: OsString,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub api_version: Option<String>,
    /// It asks a person.
    pub needs_a_person: bool,
    pub wants_cluster: bool,
}

/// Where something in PEM form is.
#[derive(Clone)]
pub(super) enum Source {
    /// In base64.
    Data(String),
    File(PathBuf),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(_) => f.write_str("Data(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Source {
    pub fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Data(text) => BASE64
                .decode(yaml::without_spaces(text))
                .map_err(|_| "its data is no base64".to_owned()),
            Self::File(path) => fs::read(path)
                .map_err(|error| format!("the file {} cannot be read: {error}", path.display())),
        }
    }
}

impl Cluster {
    /// As credential plugins are told of it. `ca`: its certificates in PEM form.
    pub fn for_plugins(&self, ca: Option<&[u8]>) -> Value {
        let mut told = Map::new();
        let mut tell = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                told.insert(name.to_owned(), value);
            }
        };
        let text = |text: &Option<String>| text.clone().map(Value::from);
        tell("server", text(&self.server));
        tell(
            "insecure-skip-tls-verify",
            self.insecure_skip_tls_verify.map(Value::from),
        );
        tell(
            "certificate-authority-data",
            ca.map(|pem| BASE64.encode(pem).into()),
        );
        tell("proxy-url", text(&self.proxy_url));
        tell("tls-server-name", text(&self.tls_server_name));
        tell("config", self.plugin_config.clone());
        told.into()
    }
}

impl Kubeconfig {
    /// Errors follow the words "cannot be used: ".
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let text = text_of(bytes).ok_or("it is no text in UTF-8 or UTF-16")?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("")))
    }

    /// `dir`: what paths are relative to.
    fn parse(text: &str, dir: &Path) -> Result<Self, String> {
        let documents = yaml::documents(text)
            .map_err(|NoYaml(line)| format!("it is no YAML of a kubeconfig, near line {line}"))?;
        let mut all = Self::default();
        for document in documents.iter().filter(|document| !document.is_null()) {
            let one = Self::of(&Fields::new(document, "it")?, dir)?;
            all = all.merge(one)?;
        }
        Ok(all)
    }

    fn of(fields: &Fields<'_>, dir: &Path) -> Result<Self, String> {
        Ok(Self {
            current_context: fields.text("current-context")?,
            contexts: fields.named("contexts", "context", |context| {
                Ok(Context {
                    cluster: context.text("cluster")?.unwrap_or_default(),
                    user: context.text("user")?,
                    namespace: context.text("namespace")?,
                })
            })?,
            clusters: fields.named("clusters", "cluster", |cluster| cluster_of(cluster, dir))?,
            users: fields.named("users", "user", |user| user_of(user, dir))?,
            kind: fields.text("kind")?,
            api_version: fields.text("apiVersion")?,
        })
    }

    /// What was said first counts.
    pub fn merge(mut self, next: Self) -> Result<Self, String> {
        let differ = |ours: &Option<String>, theirs: &Option<String>| {
            ours.is_some() && theirs.is_some() && ours != theirs
        };
        if differ(&self.kind, &next.kind) {
            return Err("kubeconfigs with mismatching kind cannot be merged".into());
        }
        if differ(&self.api_version, &next.api_version) {
            return Err("kubeconfigs with mismatching apiVersion cannot be merged".into());
        }
        self.kind = self.kind.or(next.kind);
        self.api_version = self.api_version.or(next.api_version);
        self.current_context = self.current_context.or(next.current_context);
        // Whatever is there twice: the first of a name is found first.
        self.contexts.extend(next.contexts);
        self.clusters.extend(next.clusters);
        self.users.extend(next.users);
        Ok(self)
    }
}

fn cluster_of(fields: &Fields<'_>, dir: &Path) -> Result<Cluster, String> {
    let mut plugin_config = None;
    for extension in fields.list("extensions")? {
        let extension = Fields::new(extension, "an extension")?;
        if extension.text("name")?.as_deref() == Some(PLUGIN_EXTENSION) {
            plugin_config = extension.get("extension").map(Node::json);
            break;
        }
    }
    Ok(Cluster {
        server: fields.text("server")?,
        certificate_authority: fields.source("certificate-authority", dir)?,
        insecure_skip_tls_verify: fields.bool("insecure-skip-tls-verify")?,
        tls_server_name: fields.text("tls-server-name")?,
        proxy_url: fields.text("proxy-url")?,
        plugin_config,
    })
}

fn user_of(fields: &Fields<'_>, dir: &Path) -> Result<User, String> {
    let mut extra = Vec::new();
    if let Some(given) = fields.fields("as-user-extra")? {
        for (name, _) in given.entries {
            extra.push((name.clone(), given.texts(name)?));
        }
    }
    Ok(User {
        username: fields.text("username")?,
        password: fields.text("password")?,
        token: fields.text("token")?,
        token_file: fields.text("tokenFile")?.map(|file| dir.join(file)),
        client_certificate: fields.source("client-certificate", dir)?,
        client_key: fields.source("client-key", dir)?,
        impersonated: Impersonated {
            user: fields.text("as")?,
            uid: fields.text("as-uid")?,
            groups: fields.texts("as-groups")?,
            extra,
        },
        auth_provider: match fields.fields("auth-provider")? {
            Some(provider) => Some(provider.text("name")?.unwrap_or_default()),
            None => None,
        },
        plugin: match fields.fields("exec")? {
            Some(plugin) => Some(plugin_of(&plugin, dir)?),
            None => None,
        },
    })
}

fn plugin_of(fields: &Fields<'_>, dir: &Path) -> Result<Plugin, String> {
    let command = fields.text("command")?.unwrap_or_default();
    // A bare name is looked for in PATH, as client-go does.
    let command = if command.contains(MAIN_SEPARATOR) {
        dir.join(command).into()
    } else {
        command.into()
    };
    let mut env = Vec::new();
    for variable in fields.list("env")? {
        let variable = Fields::new(variable, "a variable of env")?;
        if let (Some(name), Some(value)) = (variable.text("name")?, variable.any_text("value")?) {
            env.push((name, value));
        }
    }
    let needs_a_person = match fields.text("interactiveMode")?.as_deref() {
        None | Some("Never" | "IfAvailable") => false,
        Some("Always") => true,
        Some(_) => {
            return Err(fields.refuse("interactiveMode", "Never, IfAvailable or Always"));
        }
    };
    Ok(Plugin {
        command,
        args: fields.texts("args")?,
        env,
        api_version: fields.text("apiVersion")?,
        needs_a_person,
        wants_cluster: fields.bool("provideClusterInfo")?.unwrap_or(false),
    })
}

/// A mapping whose fields are asked for. What is null is not there.
struct Fields<'a> {
    line: usize,
    entries: &'a [(String, Node)],
}

impl<'a> Fields<'a> {
    fn new(node: &'a Node, name: &str) -> Result<Self, String> {
        match &node.kind {
            Kind::Map(entries) => Ok(Self {
                line: node.line,
                entries,
            }),
            _ => Err(refuse(name, "a mapping", node.line)),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Node> {
        let found = self.entries.iter().find(|(known, _)| known == name);
        found.map(|(_, node)| node).filter(|node| !node.is_null())
    }

    fn refuse(&self, name: &str, what: &str) -> String {
        let line = self.get(name).map_or(self.line, |node| node.line);
        refuse(name, what, line)
    }

    fn any_text(&self, name: &str) -> Result<Option<String>, String> {
        match self.get(name) {
            Some(node) => match node.text() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(self.refuse(name, "a text")),
            },
            None => Ok(None),
        }
    }

    /// As for client-go, an empty one is not there.
    fn text(&self, name: &str) -> Result<Option<String>, String> {
        Ok(self.any_text(name)?.filter(|text| !text.is_empty()))
    }

    fn bool(&self, name: &str) -> Result<Option<bool>, String> {
        match self.get(name) {
            Some(node) => match node.bool() {
                Some(bool) => Ok(Some(bool)),
                None => Err(self.refuse(name, "true or false")),
            },
            None => Ok(None),
        }
    }

    fn list(&self, name: &str) -> Result<&'a [Node], String> {
        match self.get(name).map(|node| &node.kind) {
            Some(Kind::List(list)) => Ok(list),
            Some(_) => Err(self.refuse(name, "a list")),
            None => Ok(&[]),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let texts = self.list(name)?.iter().map(|node| {
            let text = node.text().map(str::to_owned);
            text.ok_or_else(|| self.refuse(name, "a list of texts"))
        });
        texts.collect()
    }

    fn fields(&self, name: &str) -> Result<Option<Self>, String> {
        self.get(name).map(|node| Self::new(node, name)).transpose()
    }

    /// Data counts more than a file.
    fn source(&self, name: &str, dir: &Path) -> Result<Option<Source>, String> {
        let data = self.text(&format!("{name}-data"))?;
        Ok(match (data, self.text(name)?) {
            (Some(data), _) => Some(Source::Data(data)),
            (None, Some(file)) => Some(Source::File(dir.join(file))),
            (None, None) => None,
        })
    }

    /// A list of what has a name, and something that may be null.
    fn named<T>(
        &self,
        list: &str,
        one: &str,
        make: impl Fn(&Fields<'a>) -> Result<T, String>,
    ) -> Result<Vec<Named<T>>, String> {
        let all = self.list(list)?.iter().map(|node| {
            let entry = Fields::new(node, one)?;
            let name = entry
                .any_text("name")?
                .ok_or_else(|| refuse(&format!("the name of a {one}"), "a text", node.line))?;
            let value = entry.fields(one)?;
            let value = value.map(|fields| make(&fields)).transpose()?;
            Ok(Named { name, value })
        });
        all.collect()
    }
}

fn refuse(name: &str, what: &str, line: usize) -> String {
    format!("{name} must be {what}, near line {line}")
}

/// `None`: neither UTF-8 nor, with its mark, UTF-16.
fn text_of(bytes: Vec<u8>) -> Option<String> {
    let wide = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
        String::from_utf16(&units).ok().filter(|_| rest.is_empty())
    };
    match bytes.as_slice() {
        [0xFF, 0xFE, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0xFE, 0xFF, rest @ ..] => wide(rest, u16::from_be_bytes),
        [0xEF, 0xBB, 0xBF, rest @ ..] => String::from_utf8(rest.to_vec()).ok(),
        _ => String::from_utf8(bytes).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Kubeconfig, String> {
        Kubeconfig::parse(text, Path::new("/dir"))
    }

    /// The user of a kubeconfig that has one.
    fn user(fields: &str) -> Result<User, String> {
        let all = parse(&format!("users: [{{ name: u, user: {fields} }}]"));
        all.map(|mut all| all.users.remove(0).value.unwrap_or_default())
    }

    fn cluster(fields: &str) -> Result<Cluster, String> {
        let all = parse(&format!(
            "clusters: [{{ name: c, cluster: {{ {fields} }} }}]"
        ));
        all.map(|mut all| all.clusters.remove(0).value.unwrap())
    }

    #[test]
    fn texts_are_as_they_are_written_also_if_they_look_like_something_else() {
        for (written, token) in [
            ("0123", Some("0123")),
            ("1e5", Some("1e5")),
            ("0x1F", Some("0x1F")),
            ("1_000", Some("1_000")),
            ("true", Some("true")),
            ("2020-01-01", Some("2020-01-01")),
            ("'null'", Some("null")),
            ("!!str null", Some("null")),
            ("!!binary aGVsbG8=", Some("hello")),
            ("\" t \"", Some(" t ")),
            ("null", None),
            ("~", None),
            ("", None),
            ("''", None),
        ] {
            let user = user(&format!("{{ token: {written} }}")).unwrap();
            assert_eq!(user.token.as_deref(), token, "{written}");
        }
        let all = parse("clusters: [{ name: 1 }]\ncurrent-context: 5").unwrap();
        assert_eq!(all.clusters[0].name, "1");
        assert_eq!(all.current_context.as_deref(), Some("5"));
    }

    #[test]
    fn json_and_every_form_of_unicode_are_read() {
        let text = r#"{"current-context":"å"}"#;
        let wide: Vec<u16> = text.encode_utf16().collect();
        let big = wide.iter().flat_map(|unit| unit.to_be_bytes());
        let little = wide.iter().flat_map(|unit| unit.to_le_bytes());
        for bytes in [
            text.as_bytes().to_vec(),
            [b"\xEF\xBB\xBF", text.as_bytes()].concat(),
            [0xFE, 0xFF].into_iter().chain(big).collect(),
            [0xFF, 0xFE].into_iter().chain(little).collect(),
        ] {
            let all = parse(&text_of(bytes).unwrap()).unwrap();
            assert_eq!(all.current_context.as_deref(), Some("å"));
        }
        for bytes in [&b"kind: \xFF"[..], b"\xFF\xFEk", b"\xFE\xFF\xD8\x00"] {
            assert_eq!(text_of(bytes.to_vec()), None);
        }
    }

    #[test]
    fn relative_paths_begin_at_the_file() {
        let user = user(
            "{ client-certificate: ../c, client-key: /abs/k, tokenFile: t, exec: { command: bin/p } }",
        )
        .unwrap();
        let path = |source: &Option<Source>| match source {
            Some(Source::File(path)) => path.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(path(&user.client_certificate), Path::new("/dir/../c"));
        assert_eq!(path(&user.client_key), Path::new("/abs/k"));
        assert_eq!(user.token_file.unwrap(), Path::new("/dir/t"));
        let command = user.plugin.unwrap().command;
        assert_eq!(Path::new(&command), Path::new("/dir/bin/p"));
        let ca = cluster("certificate-authority: ca.crt").unwrap();
        assert_eq!(path(&ca.certificate_authority), Path::new("/dir/ca.crt"));
    }

    #[test]
    fn a_bare_command_is_looked_for_in_path() {
        let user = user("{ exec: { command: aws } }").unwrap();
        assert_eq!(user.plugin.unwrap().command, "aws");
    }

    #[test]
    fn data_counts_more_than_a_file_unless_it_is_empty() {
        let source = |fields| cluster(fields).unwrap().certificate_authority;
        let data = source("certificate-authority: f, certificate-authority-data: ' aGVs\n bG8= '");
        assert_eq!(data.unwrap().read().unwrap(), b"hello");
        let file = source("certificate-authority: f, certificate-authority-data: ''");
        assert!(matches!(file, Some(Source::File(_))), "{file:?}");
        assert!(source("certificate-authority: ''").is_none());
        let bad = source("certificate-authority-data: '?'").unwrap();
        assert_eq!(bad.read().unwrap_err(), "its data is no base64");
    }

    #[test]
    fn a_plugin_is_described_as_it_is_started_and_told_of_the_cluster() {
        let user = user(
            "{ exec: { apiVersion: v1, command: p, args: [a, 1, true], provideClusterInfo: yes,\n\
               env: [{ name: A, value: 1 }, { name: B, value: '' }, { name: C }], interactiveMode: IfAvailable } }",
        );
        let plugin = user.unwrap().plugin.unwrap();
        assert_eq!(plugin.args, ["a", "1", "true"]);
        let env = [
            ("A".to_owned(), "1".to_owned()),
            ("B".to_owned(), String::new()),
        ];
        assert_eq!(plugin.env, env);
        assert!(plugin.wants_cluster && !plugin.needs_a_person);
        let cluster = cluster(
            "server: 'https://h', insecure-skip-tls-verify: false, tls-server-name: n, proxy-url: 'http://p',\n\
             extensions: [{ name: other, extension: 1 }, { name: client.authentication.k8s.io/exec, extension: { a: [1, '2', no] } }]",
        );
        assert_eq!(
            cluster.unwrap().for_plugins(Some(b"pem")).to_string(),
            r#"{"server":"https://h","insecure-skip-tls-verify":false,"certificate-authority-data":"cGVt","proxy-url":"http://p","tls-server-name":"n","config":{"a":[1,"2",false]}}"#
        );
    }

    #[test]
    fn somebody_is_acted_as_in_every_way_that_there_is() {
        let user = user("{ as: a, as-uid: 7, as-groups: [g, 5], as-user-extra: { k: [v, 1] } }");
        let who = user.unwrap().impersonated;
        assert_eq!(
            (who.user.as_deref(), who.uid.as_deref()),
            (Some("a"), Some("7"))
        );
        assert_eq!(who.groups, ["g", "5"]);
        assert_eq!(who.extra, [("k".into(), vec!["v".into(), "1".into()])]);
    }

    #[test]
    fn of_several_documents_what_is_said_first_counts() {
        let all = parse(
            "current-context: a\nclusters: [{ name: c, cluster: { server: one } }]\n---\n---\n\
             current-context: b\nkind: Config\nclusters: [{ name: c, cluster: { server: two } }, { name: d }]\n",
        )
        .unwrap();
        assert_eq!(all.current_context.as_deref(), Some("a"));
        let servers: Vec<_> = all
            .clusters
            .iter()
            .map(|named| {
                let server = named
                    .value
                    .as_ref()
                    .and_then(|cluster| cluster.server.as_deref());
                (named.name.as_str(), server)
            })
            .collect();
        assert_eq!(servers[0], ("c", Some("one")));
        assert_eq!(servers[2], ("d", None));
        for (text, words) in [
            ("kind: a\n---\nkind: b", "mismatching kind"),
            (
                "apiVersion: a\n---\napiVersion: b",
                "mismatching apiVersion",
            ),
        ] {
            let why = parse(text).err().unwrap();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn nothing_is_an_empty_kubeconfig() {
        for text in [
            "",
            "\n \n",
            "# hi\n",
            "---\n",
            "null",
            "~",
            "{}",
            "contexts:\nusers: null",
        ] {
            let all = parse(text).unwrap();
            assert!(all.contexts.is_empty() && all.users.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn what_is_not_of_its_kind_is_named_with_its_line_and_without_its_value() {
        for (text, why) in [
            ("hunter2", "it must be a mapping, near line 1"),
            ("- hunter2", "it must be a mapping, near line 1"),
            ("clusters: hunter2", "clusters must be a list, near line 1"),
            (
                "\nclusters:\n- cluster: {}",
                "the name of a cluster must be a text, near line 3",
            ),
            (
                "contexts: [hunter2]",
                "context must be a mapping, near line 1",
            ),
            (
                "users:\n- name: u\n  user: hunter2",
                "user must be a mapping, near line 3",
            ),
            (
                "users:\n- name: u\n  user:\n    token: [hunter2]",
                "token must be a text, near line 4",
            ),
            (
                "users: [{ name: u, user: { as-groups: [g, null] } }]",
                "as-groups must be a list of texts, near line 1",
            ),
            (
                "users: [{ name: u, user: { exec: { interactiveMode: hunter2 } } }]",
                "interactiveMode must be Never, IfAvailable or Always, near line 1",
            ),
            (
                "clusters: [{ name: c, cluster: { insecure-skip-tls-verify: hunter2 } }]",
                "insecure-skip-tls-verify must be true or false, near line 1",
            ),
            (
                "users:\n- name: u\n  user:\n    token: \"hunter2\n",
                "it is no YAML of a kubeconfig, near line 4",
            ),
            (
                "users:\n- name: u\n  user:\n    token: hunter2\n    token: hunter3\n",
                "it is no YAML of a kubeconfig, near line 5",
            ),
        ] {
            assert_eq!(parse(text).err().unwrap(), why, "{text}");
        }
    }
}
