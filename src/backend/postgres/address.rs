//! Where a PostgreSQL database is: URLs as libpq and node-postgres read them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, SslMode};

use crate::backend::BadStore;
use crate::backend::tls::{Tls, Verify};
use crate::backend::url::{Host, StoreUrl};

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_TABLE: &str = "whenleader_leases";
const DEFAULT_APPLICATION: &str = "whenleader";
const EXAMPLE: &str = "postgres://user:password@host:5432/database";
/// The most bytes that a name has in PostgreSQL. It cuts longer ones, and two may become the same.
const LONGEST_IDENTIFIER: usize = 63;

const PARAMETERS: &[&str] = &[
    "table",
    "schema",
    "sslmode",
    "ssl",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "ca",
    "cert",
    "key",
    "target_session_attrs",
    "channel_binding",
    "application_name",
    "connect_timeout",
    "options",
    "host",
    "port",
    "user",
    "password",
    "dbname",
];

/// A URL that makes sense. What it points to is looked at only when it is used.
pub(super) struct Address {
    pub places: Vec<Place>,
    pub encryption: Encryption,
    pub table: TableName,
    /// How long one connection may take to make, if the URL says it.
    pub connect_timeout: Option<Duration>,
    /// All but the place.
    config: Config,
    /// Never holds a password.
    pub shown: String,
}

/// One server of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Tcp(Host),
    /// The directory that the socket is in, and the port that names it.
    Socket(PathBuf, u16),
}

/// Whether connections are encrypted.
#[derive(Debug, Clone)]
pub(super) struct Encryption {
    /// Sockets of this machine never are.
    pub mode: SslMode,
    pub tls: Tls,
}

/// As it is called, without quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableName {
    /// `None`: the one that the server's `search_path` leads to.
    pub schema: Option<String>,
    pub name: String,
}

impl Address {
    pub fn parse(url: &str, base_dir: &Path) -> Result<Self, BadStore> {
        let mut url = StoreUrl::parse(&with_slashes(url), EXAMPLE)?;
        if url.scheme == "socket" {
            read_as_node_does(&mut url)?;
        }
        let config = session(&mut url)?;
        let connect_timeout = match url.take("connect_timeout").as_deref() {
            None | Some("" | "0") => None,
            Some(text) => match text.parse() {
                Ok(seconds) => Some(Duration::from_secs(seconds)),
                Err(_) => {
                    return Err(BadStore::url(
                        "have a number of seconds as its ?connect_timeout",
                    ));
                }
            },
        };
        if !matches!(
            url.take("target_session_attrs").as_deref(),
            None | Some("read-write" | "primary" | "any")
        ) {
            return Err(BadStore::url(
                "have no other ?target_session_attrs than read-write, primary or any: an election has to write",
            ));
        }
        let places = places(&mut url)?;
        let encryption = encryption(&mut url, base_dir)?;
        if config.get_channel_binding() == ChannelBinding::Require
            && encryption.mode == SslMode::Disable
        {
            return Err(BadStore::url(
                "not disable TLS if it has ?channel_binding=require",
            ));
        }
        let table = table(url.take("schema"), url.take("table"))?;
        // What other clients have to be told, and what is so here in any case.
        for harmless in ["pgbouncer", "uselibpqcompat"] {
            url.take(harmless);
        }
        url.refuse_others(PARAMETERS)?;
        let servers: Vec<_> = places.iter().map(Place::shown).collect();
        let mut shown = format!("postgres://{}", servers.join(","));
        if let Some(database) = config.get_dbname() {
            shown = format!("{shown}/{database}");
        }
        Ok(Self {
            places,
            encryption,
            table,
            connect_timeout,
            config,
            shown,
        })
    }

    /// To connect with to one of its places.
    pub fn config(&self, place: &Place, mode: SslMode) -> Config {
        let mut config = self.config.clone();
        config.ssl_mode(mode);
        match place {
            Place::Tcp(host) => config
                .host(&*host.name)
                .port(host.port.unwrap_or(DEFAULT_PORT)),
            // It begins with a slash, by which the client knows it.
            Place::Socket(directory, port) => config.host(directory.to_string_lossy()).port(*port),
        };
        config
    }

    /// For grants.
    pub fn user(&self) -> &str {
        self.config.get_user().unwrap_or("<user>")
    }
}

impl Place {
    pub fn shown(&self) -> String {
        match self {
            Self::Tcp(host) => host.with_port(DEFAULT_PORT),
            Self::Socket(directory, port) => {
                let file = directory.join(format!(".s.PGSQL.{port}"));
                file.display().to_string()
            }
        }
    }
}

impl TableName {
    /// As SQL wants it.
    pub fn quoted(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(&self.name)),
            None => quoted(&self.name),
        }
    }
}

pub(super) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// `socket:/directory?db=name` gets the slashes that every other URL has.
fn with_slashes(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, rest))
            if scheme.eq_ignore_ascii_case("socket") && !rest.starts_with("//") =>
        {
            format!("socket://{rest}")
        }
        _ => url.to_owned(),
    }
}

/// The path is the directory of a socket, and the database a parameter.
fn read_as_node_does(url: &mut StoreUrl) -> Result<(), BadStore> {
    let directory = Host {
        name: format!("/{}", std::mem::take(&mut url.path)),
        port: None,
    };
    if !std::mem::replace(&mut url.hosts, vec![directory]).is_empty() {
        return Err(BadStore::url(
            "have no host behind socket:, but the directory of a socket: socket:/var/run/postgresql?db=name",
        ));
    }
    url.path = url.take("db").unwrap_or_default();
    let encoding = url.take("encoding");
    if encoding.is_some_and(|name| !name.to_lowercase().starts_with("utf")) {
        return Err(BadStore::url("have no other ?encoding than utf8"));
    }
    Ok(())
}

/// Who comes to which database, and how it presents itself.
fn session(url: &mut StoreUrl) -> Result<Config, BadStore> {
    let mut config = Config::new();
    let once = |url: &mut StoreUrl, place: Option<String>, parameter: &str, what: &str| {
        let place = place.filter(|text| !text.is_empty());
        let parameter = url.take(parameter);
        if place.is_some() && parameter.is_some() {
            return Err(BadStore::url(format!(
                "name its {what} once, in its place or as a parameter"
            )));
        }
        Ok(place.or(parameter))
    };
    let (user, password) = (url.user.take(), url.password.take());
    let path = std::mem::take(&mut url.path);
    if let Some(user) = once(url, user, "user", "user")? {
        config.user(user);
    }
    if let Some(password) = once(url, password, "password", "password")? {
        config.password(password);
    }
    if let Some(database) = once(url, Some(path), "dbname", "database")? {
        config.dbname(database);
    }
    let application = url.take("application_name");
    config.application_name(application.as_deref().unwrap_or(DEFAULT_APPLICATION));
    if let Some(options) = url.take("options") {
        config.options(options);
    }
    config.channel_binding(match url.take("channel_binding").as_deref() {
        None | Some("prefer") => ChannelBinding::Prefer,
        Some("require") => ChannelBinding::Require,
        Some("disable") => ChannelBinding::Disable,
        Some(_) => {
            return Err(BadStore::url(
                "have a ?channel_binding of prefer, require or disable",
            ));
        }
    });
    Ok(config)
}

fn places(url: &mut StoreUrl) -> Result<Vec<Place>, BadStore> {
    let mut hosts = std::mem::take(&mut url.hosts);
    let ports = match url.take("port") {
        None => Vec::new(),
        Some(text) => text
            .split(',')
            .map(|port| port.parse::<u16>().ok().filter(|port| *port > 0))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| BadStore::url("have a number from 1 to 65535 as its ?port"))?,
    };
    if let Some(names) = url.take("host") {
        if !hosts.is_empty() {
            return Err(BadStore::url(
                "name its hosts once, behind the @ or as ?host",
            ));
        }
        hosts = names
            .split(',')
            .map(|name| Host {
                name: name.to_owned(),
                port: None,
            })
            .collect();
    }
    if hosts.is_empty() || hosts.iter().any(|host| host.name.is_empty()) {
        return Err(BadStore::url(format!(
            "name a host, {EXAMPLE}, or the directory of a socket, postgres:///database?host=/var/run/postgresql"
        )));
    }
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(BadStore::url(
            "have one ?port, or one for each of its hosts",
        ));
    }
    let mut places = Vec::new();
    for (number, host) in hosts.into_iter().enumerate() {
        let given = ports.get(number).or(ports.first()).copied();
        let port = host.port.or(given);
        places.push(if host.name.starts_with('/') {
            if cfg!(not(unix)) {
                return Err(BadStore::url(
                    "name no socket: there are none on this system",
                ));
            }
            Place::Socket(host.name.into(), port.unwrap_or(DEFAULT_PORT))
        } else {
            Place::Tcp(Host { port, ..host })
        });
    }
    Ok(places)
}

/// As libpq has it: what is not said is encrypted if the server can, and who has a root certificate wants to
/// know whom it talks to.
fn encryption(url: &mut StoreUrl, base_dir: &Path) -> Result<Encryption, BadStore> {
    const MODES: &str =
        "have an ?sslmode of disable, prefer, require, verify-ca, verify-full or no-verify";
    let tls = url.take_tls_named(
        &["sslrootcert", "ca"],
        &["sslcert", "cert"],
        &["sslkey", "key"],
        base_dir,
    )?;
    // libpq's word for the public authorities.
    let system = base_dir.join("system");
    let public = tls.ca.as_ref() == Some(&system);
    let tls = Tls {
        ca: tls.ca.filter(|ca| *ca != system),
        ..tls
    };
    // node-postgres' own word.
    let ssl = match url.take("ssl").as_deref() {
        None => None,
        Some("" | "1" | "true") => Some("verify-full"),
        Some("0" | "false") => Some("disable"),
        Some("no-verify") => Some("no-verify"),
        Some(_) => return Err(BadStore::url(MODES)),
    };
    let said = url.take("sslmode");
    let (mode, verify) = match said.as_deref().or(ssl).unwrap_or("prefer") {
        "disable" => (SslMode::Disable, Verify::Nothing),
        "prefer" if public => (SslMode::Require, Verify::Full),
        "prefer" => (SslMode::Prefer, Verify::Nothing),
        "require" if tls.ca.is_some() => (SslMode::Require, Verify::Chain),
        "require" | "no-verify" => (SslMode::Require, Verify::Nothing),
        "verify-ca" => (SslMode::Require, Verify::Chain),
        "verify-full" => (SslMode::Require, Verify::Full),
        _ => return Err(BadStore::url(MODES)),
    };
    if public && verify != Verify::Full {
        return Err(BadStore::url(
            "have ?sslmode=verify-full if it has ?sslrootcert=system: public authorities certify everybody",
        ));
    }
    if mode == SslMode::Disable && tls.names_files() {
        return Err(BadStore::url(
            "not disable TLS if it has ?sslrootcert, ?sslcert or ?sslkey",
        ));
    }
    Ok(Encryption {
        mode,
        tls: Tls { verify, ..tls },
    })
}

fn table(schema: Option<String>, table: Option<String>) -> Result<TableName, BadStore> {
    let table = table.unwrap_or_else(|| DEFAULT_TABLE.to_owned());
    let (schema, name) = match table.split_once('.') {
        Some((first, name)) if schema.is_none() => (Some(first.to_owned()), name.to_owned()),
        Some(_) => return Err(BadStore::url("name the schema of its ?table once")),
        None => (schema, table),
    };
    for part in schema.iter().chain([&name]) {
        if part.is_empty()
            || part.len() > LONGEST_IDENTIFIER
            || part.contains('.')
            || part.chars().any(char::is_control)
        {
            return Err(BadStore::url(format!(
                "have a ?table of the form table or schema.table, each as it is called, without quotes and with \
                 at most {LONGEST_IDENTIFIER} bytes"
            )));
        }
    }
    Ok(TableName { schema, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/base")).map_err(|bad| bad.rule)
    }

    fn good(url: &str) -> Address {
        parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"))
    }

    #[test]
    fn a_password_may_hold_anything_percent_encoded() {
        for (url, user, password) in [
            (
                "postgres://u:p%40ss%2Fw%3F%23%25@h:5432/db",
                "u",
                "p@ss/w?#%",
            ),
            ("postgresql://u:a+b@h/db", "u", "a+b"),
            ("postgresql://u:secret%2F@h/db", "u", "secret/"),
            ("postgres://u%40d:%F0%9F%A6%80@h/db", "u@d", "🦀"),
            ("postgres://h/db?user=u&password=a%26b%3D", "u", "a&b="),
            ("socket://u:p%20w@/run/pg?db=x", "u", "p w"),
            ("socket:/run/pg?db=x&user=u&password=pw", "u", "pw"),
        ] {
            let config = good(url).config;
            assert_eq!(config.get_user(), Some(user), "{url}");
            assert_eq!(config.get_password(), Some(password.as_bytes()), "{url}");
        }
    }

    #[test]
    fn a_raw_special_character_in_a_password_is_refused_with_its_cure() {
        for url in [
            "postgres://u:pa/ss@h/db",
            "postgres://u:pass/@h/db",
            "postgres://u:pa?ss@h/db",
            "postgres://u:pa#ss@h/db",
            "postgres://u:100%@h/db",
            "postgres://u:p@ss@h/db",
        ] {
            let rule = parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(rule.contains("encode") || rule.contains('%'), "{rule}");
        }
    }

    #[test]
    fn hosts_ports_databases_and_sockets() {
        for (url, shown) in [
            ("postgres://h", "postgres://h:5432"),
            ("postgresql://u:secret@h/db", "postgres://h:5432/db"),
            ("postgres://h:6543/my%20db", "postgres://h:6543/my db"),
            (
                "postgres://a,b:5433,[fd00::1]:7/db?target_session_attrs=read-write",
                "postgres://a:5432,b:5433,[fd00::1]:7/db",
            ),
            (
                "postgresql:///db?host=/var/run/postgresql",
                "postgres:///var/run/postgresql/.s.PGSQL.5432/db",
            ),
            (
                "postgresql://%2Fcloudsql%2Fp:r:i/db",
                "an error: a colon has to be encoded, too",
            ),
            (
                "postgresql://%2Fcloudsql%2Fp%3Ar%3Ai/db",
                "postgres:///cloudsql/p:r:i/.s.PGSQL.5432/db",
            ),
            (
                "postgresql:///?dbname=db&host=a,b&port=1,2",
                "postgres://a:1,b:2/db",
            ),
            (
                "postgresql:///db?host=/run/pg&port=5433",
                "postgres:///run/pg/.s.PGSQL.5433/db",
            ),
            ("socket:/run/pg?db=x", "postgres:///run/pg/.s.PGSQL.5432/x"),
            (
                "socket:/run/pg/?db=x&encoding=utf8",
                "postgres:///run/pg/.s.PGSQL.5432/x",
            ),
        ] {
            match parse(url) {
                Ok(address) => assert_eq!(address.shown, shown, "{url}"),
                Err(rule) => assert!(shown.starts_with("an error"), "{url}: must {rule}"),
            }
        }
    }

    #[test]
    fn sslmode_means_what_it_means_to_libpq() {
        let roots = Some(PathBuf::from("/base/ca.pem"));
        for (parameters, mode, verify, ca) in [
            ("", SslMode::Prefer, Verify::Nothing, None),
            ("sslmode=disable", SslMode::Disable, Verify::Nothing, None),
            ("sslmode=prefer", SslMode::Prefer, Verify::Nothing, None),
            ("sslmode=require", SslMode::Require, Verify::Nothing, None),
            (
                "sslmode=require&sslrootcert=ca.pem",
                SslMode::Require,
                Verify::Chain,
                roots.clone(),
            ),
            (
                "sslmode=verify-ca&ca=ca.pem",
                SslMode::Require,
                Verify::Chain,
                roots.clone(),
            ),
            ("sslmode=verify-full", SslMode::Require, Verify::Full, None),
            (
                "sslmode=verify-full&sslrootcert=system",
                SslMode::Require,
                Verify::Full,
                None,
            ),
            ("sslrootcert=system", SslMode::Require, Verify::Full, None),
            (
                "sslmode=no-verify&ca=ca.pem",
                SslMode::Require,
                Verify::Nothing,
                roots,
            ),
            ("ssl=true", SslMode::Require, Verify::Full, None),
            ("ssl=0", SslMode::Disable, Verify::Nothing, None),
        ] {
            let found = good(&format!("postgres://h/db?{parameters}")).encryption;
            assert_eq!(
                (found.mode, found.tls.verify),
                (mode, verify),
                "{parameters}"
            );
            assert_eq!(found.tls.ca, ca, "{parameters}");
        }
    }

    #[test]
    fn a_table_may_be_in_a_schema_and_have_any_name() {
        for (parameters, quoted) in [
            ("", "\"whenleader_leases\""),
            ("?table=Leases", "\"Leases\""),
            ("?table=app.my%20leases", "\"app\".\"my leases\""),
            ("?table=a%22b", "\"a\"\"b\""),
            ("?schema=app", "\"app\".\"whenleader_leases\""),
            ("?schema=app&table=leases", "\"app\".\"leases\""),
        ] {
            let address = good(&format!("postgres://h/db{parameters}"));
            assert_eq!(address.table.quoted(), quoted, "{parameters}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for url in [
            "postgres:h",
            "postgres://",
            "postgres:///db",
            "postgres://h:x/db",
            "postgres://h/db?sslmode=allow",
            "postgres://h/db?sslmode=verify_full",
            "postgres://h/db?ssl=maybe",
            "postgres://h/db?sslcert=x",
            "postgres://h/db?sslmode=disable&ca=x",
            "postgres://h/db?sslmode=require&sslrootcert=system",
            "postgres://h/db?sslmode=disable&channel_binding=require",
            "postgres://h/db?channel_binding=yes",
            "postgres://h/db?target_session_attrs=standby",
            "postgres://h/db?target_session_attrs=prefer-standby",
            "postgres://h/db?connect_timeout=soon",
            "postgres://h/db?table=",
            "postgres://h/db?table=a.b.c",
            "postgres://h/db?table=a.",
            "postgres://h/db?schema=a&table=b.c",
            "postgres://h/db?host=other",
            "postgres://h/db?dbname=other",
            "postgres://u@h/db?user=other",
            "postgres:///db?host=a,b,c&port=1,2",
            "postgres:///db?host=a&port=0",
            "postgres://h/db?statement_timeout=1",
            "socket://h/run/pg?db=x",
            "socket:/run/pg?db=x&encoding=latin1",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
        let long = "x".repeat(64);
        assert!(parse(&format!("postgres://h/db?table={long}")).is_err());
    }

    #[test]
    fn no_refusal_repeats_what_may_be_a_password() {
        for url in [
            "postgres:u:hunter2@h",
            "postgres://u:hunter2",
            "postgres://u:hunter2/x@h",
            "postgres://u:hunter2@h/db?hunter2=x",
            "postgres://u:hunter2@h/db?sslmode=hunter2",
            "postgres://u:hunter2@h/db?password=hunter2",
            "socket://u:hunter2@h/run?db=x",
        ] {
            let rule = parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!rule.contains("hunter2"), "{url}: {rule}");
        }
    }
}
