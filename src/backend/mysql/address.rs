//! Where a MySQL or MariaDB server is, who asks it, and how the connection is encrypted: the store's URL.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::backend::BadStore;
use crate::backend::stream::Place;
use crate::backend::tls::{Tls, Verify};
use crate::backend::url::StoreUrl;

pub(super) const EXAMPLE: &str = "mysql://<user>:<password>@<host>[:<port>]/<database>";

pub(super) const DEFAULT_PORT: u16 = 3306;
const DEFAULT_TABLE: &str = "whenleader_leases";
/// The most characters that a name of the server's may have.
const NAME_LIMIT: usize = 64;

/// What may stand behind the `?`, for the error.
const PARAMETERS: &[&str] = &["table", "socket", "ssl-mode", "ca", "cert", "key"];

/// What Node.js' clients put there for pools, types and the like. Nothing here depends on it.
const IGNORED: &[&str] = &[
    "acquireTimeout",
    "bigNumberStrings",
    "charset",
    "collation",
    "compress",
    "connectTimeout",
    "connect_timeout",
    "connectionLimit",
    "connection_limit",
    "dateStrings",
    "debug",
    "decimalNumbers",
    "enableKeepAlive",
    "idleTimeout",
    "jsonStrings",
    "keepAliveInitialDelay",
    "maxIdle",
    "max_idle_connection_lifetime",
    "multipleStatements",
    "namedPlaceholders",
    "nestTables",
    "pool_timeout",
    "queueLimit",
    "rowsAsArray",
    "serverVersion",
    "socket_timeout",
    "statement_cache_size",
    "stringifyObjects",
    "supportBigNumbers",
    "timezone",
    "trace",
    "typeCast",
    "waitForConnections",
];

/// A URL that makes sense. What it points to is looked at only when it is used.
pub(super) struct Address {
    pub places: Vec<Place>,
    pub user: String,
    pub password: Option<String>,
    pub database: String,
    pub table: Table,
    pub encryption: Encryption,
    /// Never holds a password.
    pub shown: String,
}

/// In MySQL's words: `disabled`, `preferred`, and the others.
#[derive(Debug)]
pub(super) enum Encryption {
    Never,
    /// Where the server offers it. Nobody is asked who he is, so it hides passwords from listeners only.
    Offered,
    Always(Tls),
}

/// Where leases are, in the database that was named, or in another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub database: String,
    pub name: String,
}

impl Table {
    /// As it stands in a statement.
    pub fn quoted(&self) -> String {
        format!("`{}`.`{}`", self.database, self.name)
    }
}

impl Address {
    pub fn parse(url: &str, base_dir: &Path) -> Result<Self, BadStore> {
        let mut url = StoreUrl::parse(url, EXAMPLE)?;
        let places = places(&mut url, base_dir)?;
        let Some(user) = url.user.clone() else {
            return Err(BadStore::url(format!("name a user: {EXAMPLE}")));
        };
        let (database, table) = database_and_table(&mut url)?;
        let encryption = encryption(&mut url, base_dir, &places)?;
        for name in IGNORED {
            url.take(name);
        }
        url.refuse_others(PARAMETERS)?;
        let password = url.password.clone();
        if [Some(&user), password.as_ref(), Some(&database)]
            .into_iter()
            .flatten()
            .any(|text| text.contains('\0'))
        {
            return Err(BadStore::url("hold no %00"));
        }
        let hosts = places.iter().map(|place| place.shown(DEFAULT_PORT));
        let hosts: Vec<_> = hosts.collect();
        let mut shown = format!("{}://{}/{database}", url.scheme, hosts.join(","));
        if table.database != database {
            shown = format!("{shown}?table={}.{}", table.database, table.name);
        } else if table.name != DEFAULT_TABLE {
            shown = format!("{shown}?table={}", table.name);
        }
        Ok(Self {
            places,
            user,
            password,
            database,
            table,
            encryption,
            shown,
        })
    }
}

fn places(url: &mut StoreUrl, base_dir: &Path) -> Result<Vec<Place>, BadStore> {
    if let Some(path) = url.take_path("socket", base_dir) {
        return match &*url.hosts {
            [] => Ok(vec![Place::Socket(path)]),
            [host] if host.name == "localhost" => Ok(vec![Place::Socket(path)]),
            _ => Err(BadStore::url(
                "name a host or a ?socket, and not both: mysql://user@localhost/database?socket=/run/mysqld/mysqld.sock",
            )),
        };
    }
    let places: Vec<_> = url
        .hosts
        .iter()
        .map(|host| {
            if host.name.starts_with('/') {
                Place::Socket(PathBuf::from(&host.name))
            } else {
                Place::Tcp(host.clone())
            }
        })
        .collect();
    if places.is_empty() {
        return Err(BadStore::url(format!("name a host: {EXAMPLE}")));
    }
    Ok(places)
}

fn database_and_table(url: &mut StoreUrl) -> Result<(String, Table), BadStore> {
    let table = url.take("table");
    let (elsewhere, name) = match table.as_deref().map(|table| table.split_once('.')) {
        None => (None, DEFAULT_TABLE.to_owned()),
        Some(Some((database, name))) => (Some(database.to_owned()), name.to_owned()),
        Some(None) => (None, table.unwrap_or_default()),
    };
    let database = match (&*url.path, &elsewhere) {
        ("", None) => {
            return Err(BadStore::url(format!(
                "name the database that the leases are in: {EXAMPLE}"
            )));
        }
        ("", Some(elsewhere)) => elsewhere.clone(),
        (path, _) => path.to_owned(),
    };
    let table = Table {
        database: elsewhere.unwrap_or_else(|| database.clone()),
        name,
    };
    for name in [&database, &table.database, &table.name] {
        let sound = |letter: char| {
            !letter.is_control()
                && !matches!(letter, '`' | '/' | '\\' | '.')
                && letter <= '\u{ffff}'
        };
        if name.is_empty()
            || name.chars().count() > NAME_LIMIT
            || name.ends_with(' ')
            || !name.chars().all(sound)
        {
            return Err(BadStore::url(format!(
                "name its database and its ?table with 1 to {NAME_LIMIT} characters, none of which is ` . / or \\ \
                 (and ?table=<database>.<table> for another database)"
            )));
        }
    }
    Ok((database, table))
}

/// How much of it is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disabled,
    Preferred,
    Required,
    VerifyCa,
    VerifyIdentity,
}

fn encryption(
    url: &mut StoreUrl,
    base_dir: &Path,
    places: &[Place],
) -> Result<Encryption, BadStore> {
    let tls = url.take_tls_named(
        &["ca", "ssl-ca", "sslrootcert"],
        &["cert", "ssl-cert", "sslcert"],
        &["key", "ssl-key", "sslkey"],
        base_dir,
    )?;
    let mode = match mode(url)? {
        None if !tls.names_files() => Mode::Preferred,
        // Whoever names an authority wants to know who answers.
        None => Mode::VerifyIdentity,
        Some(Mode::Required) if tls.ca.is_some() => Mode::VerifyCa,
        Some(Mode::Disabled | Mode::Preferred) if tls.names_files() => {
            return Err(BadStore::url(
                "have ?ca, ?cert and ?key with ?ssl-mode=verify_identity, verify_ca or required: disabled and \
                 preferred look at no certificate",
            ));
        }
        Some(mode) => mode,
    };
    // Beside hosts it is never encrypted, and they are as they are told to be.
    if places.iter().all(|place| matches!(place, Place::Socket(_))) {
        return match mode {
            Mode::Disabled | Mode::Preferred => Ok(Encryption::Never),
            _ => Err(BadStore::url(
                "ask for no encryption on a socket, which leaves no machine",
            )),
        };
    }
    let verify = match mode {
        Mode::Disabled => return Ok(Encryption::Never),
        Mode::Preferred => return Ok(Encryption::Offered),
        Mode::Required => Verify::Nothing,
        Mode::VerifyCa => Verify::Chain,
        Mode::VerifyIdentity => Verify::Full,
    };
    Ok(Encryption::Always(Tls { verify, ..tls }))
}

/// In the words of MySQL, of `libpq`, of Prisma and of mysql2.
fn mode(url: &mut StoreUrl) -> Result<Option<Mode>, BadStore> {
    let mut said = Vec::new();
    for name in ["ssl-mode", "ssl_mode", "sslmode", "sslMode"] {
        if let Some(word) = url.take(name) {
            said.push(match &*word.to_ascii_lowercase().replace('-', "_") {
                "disabled" | "disable" => Mode::Disabled,
                "preferred" | "prefer" => Mode::Preferred,
                "required" | "require" | "no_verify" => Mode::Required,
                "verify_ca" => Mode::VerifyCa,
                "verify_identity" | "verify_full" => Mode::VerifyIdentity,
                _ => {
                    return Err(BadStore::url(
                        "have as ?ssl-mode one of disabled, preferred, required, verify_ca and verify_identity",
                    ));
                }
            });
        }
    }
    if let Some(word) = url.take("sslaccept") {
        said.push(match &*word {
            "strict" => Mode::VerifyIdentity,
            "accept_invalid_certs" => Mode::Required,
            _ => return Err(BadStore::url("have ?ssl-mode in place of ?sslaccept")),
        });
    }
    if let Some(json) = url.take("ssl") {
        let wanted = match serde_json::from_str(&json) {
            Ok(Value::Bool(wanted)) => Some((wanted, true)),
            Ok(Value::Object(options)) => {
                let checks = options.get("rejectUnauthorized").cloned();
                checks
                    .unwrap_or(Value::Bool(true))
                    .as_bool()
                    .map(|checks| (true, checks))
            }
            _ => None,
        };
        said.push(match wanted {
            Some((false, _)) => Mode::Disabled,
            Some((true, true)) => Mode::VerifyIdentity,
            Some((true, false)) => Mode::Required,
            None => return Err(BadStore::url("have ?ssl-mode in place of ?ssl")),
        });
    }
    match *said {
        [] => Ok(None),
        [mode] => Ok(Some(mode)),
        _ => Err(BadStore::url("say once how it is encrypted: ?ssl-mode")),
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::url::Host;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/base")).map_err(|bad| bad.rule)
    }

    fn parsed(url: &str) -> Address {
        parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"))
    }

    fn tcp(name: &str, port: Option<u16>) -> Place {
        let name = name.to_owned();
        Place::Tcp(Host { name, port })
    }

    #[test]
    fn the_parts_of_a_url_are_found() {
        let url = "mysql://us%40er:p%40ss%2Fw%3F%23%25:+@db.internal:3307/shop?table=jobs.leases";
        let address = parsed(url);
        assert_eq!(address.places, [tcp("db.internal", Some(3307))]);
        assert_eq!(address.user, "us@er");
        assert_eq!(address.password.as_deref(), Some("p@ss/w?#%:+"));
        assert_eq!(address.database, "shop");
        assert_eq!(address.table.quoted(), "`jobs`.`leases`");
        assert_eq!(
            address.shown,
            "mysql://db.internal:3307/shop?table=jobs.leases"
        );

        let address = parsed("mariadb://u@[fd00::1],b:3307/shop");
        assert_eq!(address.places, [tcp("fd00::1", None), tcp("b", Some(3307))]);
        assert_eq!(address.table.quoted(), "`shop`.`whenleader_leases`");
        assert_eq!(address.shown, "mariadb://[fd00::1]:3306,b:3307/shop");
        assert!(matches!(address.encryption, Encryption::Offered));
        assert_eq!(parsed("mysql://u@h?table=jobs.leases").database, "jobs");
    }

    #[test]
    fn a_socket_is_named_as_a_parameter_or_as_the_host() {
        let socket = [Place::Socket("/run/mysqld/mysqld.sock".into())];
        for url in [
            "mysql://u@localhost/shop?socket=/run/mysqld/mysqld.sock",
            "mysql://u@/shop?socket=%2Frun%2Fmysqld%2Fmysqld.sock",
            "mysql://u@%2Frun%2Fmysqld%2Fmysqld.sock/shop",
        ] {
            let address = parsed(url);
            assert_eq!(address.places, socket, "{url}");
            assert!(matches!(address.encryption, Encryption::Never), "{url}");
        }
        assert!(parse("mysql://u@h/shop?socket=/s").is_err());
        assert!(parse("mysql://u@%2Fs/shop?ssl-mode=required").is_err());
    }

    #[test]
    fn the_encryption_is_told_in_the_words_that_people_know() {
        let of = |behind: &str| match parsed(&format!("mysql://u@h/shop?{behind}")).encryption {
            Encryption::Never => "never",
            Encryption::Offered => "offered",
            Encryption::Always(tls) => match tls.verify {
                Verify::Nothing => "unverified",
                Verify::Chain => "chain",
                Verify::Full => "full",
            },
        };
        for (behind, meant) in [
            ("", "offered"),
            ("ssl-mode=DISABLED", "never"),
            ("sslmode=disable", "never"),
            ("ssl=false", "never"),
            ("ssl-mode=preferred", "offered"),
            ("sslMode=prefer", "offered"),
            ("ssl-mode=REQUIRED", "unverified"),
            ("sslmode=require", "unverified"),
            ("sslmode=no-verify", "unverified"),
            ("sslaccept=accept_invalid_certs", "unverified"),
            (r#"ssl={"rejectUnauthorized":false}"#, "unverified"),
            ("ssl-mode=VERIFY_CA", "chain"),
            ("sslmode=verify-ca&ca=x", "chain"),
            ("ssl-mode=required&ca=x", "chain"),
            ("ssl-mode=VERIFY_IDENTITY", "full"),
            ("sslmode=verify-full", "full"),
            ("ca=x", "full"),
            ("cert=x&key=y", "full"),
            ("sslaccept=strict", "full"),
            ("ssl=true", "full"),
            ("ssl=%7B%22rejectUnauthorized%22:true%7D", "full"),
            (r#"ssl={"minVersion":"TLSv1.2"}"#, "full"),
        ] {
            assert_eq!(of(behind), meant, "{behind}");
        }
        let Encryption::Always(tls) =
            parsed("mysql://u@h/shop?ssl-ca=x/ca.pem&ssl-cert=/c&ssl-key=k").encryption
        else {
            panic!("encrypted");
        };
        assert_eq!(tls.ca, Some("/base/x/ca.pem".into()));
        assert_eq!(tls.client, Some(("/c".into(), "/base/k".into())));
    }

    #[test]
    fn what_pools_are_told_is_ignored() {
        parsed("mysql://u@h/shop?connectionLimit=5&charset=utf8mb4&timezone=Z&connection_limit=1");
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_no_refusal_repeats_what_may_be_a_password() {
        for url in [
            "mysql://u:hunter2@h",
            "mysql://u:hunter2@h/",
            "mysql://:hunter2@h/shop",
            "mysql://u:hunter2@/shop",
            "mysql://u:hunter2@h/a%00b",
            "mysql://u:hunter2%00@h/shop",
            "mysql://u:hunter2@h/a/b",
            "mysql://u:hunter2@h/shop?table=",
            "mysql://u:hunter2@h/shop?table=a.b.c",
            "mysql://u:hunter2@h/shop?table=a%60b",
            "mysql://u:hunter2@h/shop?table=.b",
            "mysql://u:hunter2@h/shop?hunter2=1",
            "mysql://u:hunter2@h/shop?ssl-mode=hunter2",
            "mysql://u:hunter2@h/shop?ssl=hunter2",
            "mysql://u:hunter2@h/shop?ssl=Amazon%20RDS",
            "mysql://u:hunter2@h/shop?sslaccept=hunter2",
            "mysql://u:hunter2@h/shop?ssl=true&ssl-mode=disabled",
            "mysql://u:hunter2@h/shop?ssl-mode=disabled&ca=x",
            "mysql://u:hunter2@h/shop?ssl-mode=preferred&ca=x",
            "mysql://u:hunter2@h/shop?cert=x",
            "mysql:u:hunter2@h/shop",
        ] {
            let rule = parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!rule.contains("hunter2"), "{url}: {rule}");
        }
        let address = parsed("mysql://u:hunter2@h/shop");
        assert!(!format!("{address:?}").contains("hunter2"));
    }
}
