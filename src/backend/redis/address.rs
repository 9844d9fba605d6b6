//! Where a Redis or Valkey server is: its URL, read strictly, since what clients make of a password
//! with a slash in it has cost people days.

use std::path::{Path, PathBuf};

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, TlsCertificates,
};
use url::{Host, Url};

use crate::backend::BadStore;
use crate::backend::blocking::read_text;

const DEFAULT_PORT: u16 = 6379;

/// A URL that makes sense. What it points to is looked at only when it is used.
pub(super) struct Address {
    connection: ConnectionInfo,
    tls: Option<TlsFiles>,
    /// What stands before every key and channel.
    pub prefix: String,
    pub database: i64,
    /// Never holds a password.
    pub shown: String,
}

struct TlsFiles {
    ca: Option<PathBuf>,
    /// The client's certificate and its key.
    client: Option<(PathBuf, PathBuf)>,
}

impl Address {
    pub fn parse(url: &str, base_dir: &Path) -> Result<Self, BadStore> {
        check_authority(url)?;
        let parsed = Url::parse(url).map_err(|error| {
            BadStore::url(format!(
                "be a proper URL, redis://[user:password@]host[:port][/database]: {error}"
            ))
        })?;
        let scheme = parsed.scheme();
        let unix = matches!(scheme, "unix" | "redis+unix" | "valkey+unix");
        let tls = matches!(scheme, "rediss" | "valkeys");
        if parsed.fragment().is_some() {
            return Err(BadStore::url(
                "hold no #: percent-encode it as %23 in a password; a certificate is trusted with ?ca=<file>",
            ));
        }

        let mut options = Options::default();
        for (name, value) in parsed.query_pairs() {
            options.take(&name, value.into_owned(), base_dir)?;
        }
        let (addr, database, place) = if unix {
            socket_of(&parsed, &options)?
        } else {
            server_of(&parsed, &options, tls)?
        };
        if !tls && (options.ca.is_some() || options.cert.is_some() || options.key.is_some()) {
            return Err(BadStore::url(
                "begin with rediss:// if it has ?ca, ?cert or ?key",
            ));
        }
        let client = match (options.cert.take(), options.key.take()) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(BadStore::url("have ?cert and ?key together")),
        };

        let mut settings = RedisConnectionInfo::default()
            .set_db(database)
            .set_lib_name("whenleader", env!("CARGO_PKG_VERSION"));
        let (user, password) = options.credentials(&parsed, unix)?;
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let connection = addr
            .into_connection_info()
            .map_err(|error| BadStore::url(format!("be a proper URL: {error}")))?
            .set_redis_settings(settings);
        Ok(Self {
            connection,
            tls: tls.then_some(TlsFiles {
                ca: options.ca,
                client,
            }),
            prefix: options.prefix,
            database,
            shown: if database == 0 {
                place
            } else if unix {
                format!("{place}?db={database}")
            } else {
                format!("{place}/{database}")
            },
        })
    }

    /// Reads the certificates. `Err`: what is wrong with them.
    pub async fn client(&self) -> Result<Client, String> {
        let Some(files) = &self.tls else {
            return Client::open(self.connection.clone()).map_err(|error| error.to_string());
        };
        // Whichever crate needs one first chooses it for the process; all of ours choose this one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = async |path: &PathBuf| read_text(path).await.map(String::into_bytes);
        let certificates = TlsCertificates {
            root_cert: match &files.ca {
                Some(ca) => Some(read(ca).await?),
                None => None,
            },
            client_tls: match &files.client {
                Some((cert, key)) => Some(ClientTlsConfig {
                    client_cert: read(cert).await?,
                    client_key: read(key).await?,
                }),
                None => None,
            },
        };
        Client::build_with_tls(self.connection.clone(), certificates)
            .map_err(|error| error.to_string())
    }
}

/// The address, the database, and how both are shown.
fn socket_of(url: &Url, options: &Options) -> Result<(ConnectionAddr, i64, String), BadStore> {
    if url.host_str().is_some_and(|host| !host.is_empty()) {
        return Err(BadStore::url(
            "have three slashes for a socket, unix:///run/redis.sock, and may have ?db, ?user and ?pass",
        ));
    }
    let path = decoded(url.path())?;
    let shown = format!("unix://{path}");
    Ok((
        ConnectionAddr::Unix(path.into()),
        options.database.unwrap_or(0),
        shown,
    ))
}

fn server_of(
    url: &Url,
    options: &Options,
    tls: bool,
) -> Result<(ConnectionAddr, i64, String), BadStore> {
    let path = decoded(url.path())?;
    let database = database_of(&path)?;
    if options.database.is_some() && !matches!(path.as_str(), "" | "/") {
        return Err(BadStore::url(
            "name its database once, in the path or as ?db=",
        ));
    }
    let host = match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => decoded(name)?,
        Some(Host::Ipv4(ip)) => ip.to_string(),
        Some(Host::Ipv6(ip)) => ip.to_string(),
        _ => return Err(BadStore::url("name a host: redis://host:6379")),
    };
    let port = url.port().unwrap_or(DEFAULT_PORT);
    let shown = if host.contains(':') {
        format!("{}://[{host}]:{port}", url.scheme())
    } else {
        format!("{}://{host}:{port}", url.scheme())
    };
    let addr = if tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    Ok((addr, options.database.unwrap_or(database), shown))
}

/// What stands behind the `?`.
#[derive(Default)]
struct Options {
    prefix: String,
    database: Option<i64>,
    /// A socket's URL has no place for these before its path.
    user: Option<String>,
    pass: Option<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Options {
    fn take(&mut self, name: &str, value: String, base_dir: &Path) -> Result<(), BadStore> {
        match name {
            "prefix" if value.contains(['{', '}']) => {
                return Err(BadStore::url(
                    "have a ?prefix without braces: they say which keys a cluster keeps together",
                ));
            }
            "prefix" => self.prefix = value,
            "db" => self.database = Some(database_of(&value)?),
            "user" => self.user = Some(value),
            "pass" => self.pass = Some(value),
            "ca" => self.ca = Some(base_dir.join(value)),
            "cert" => self.cert = Some(base_dir.join(value)),
            "key" => self.key = Some(base_dir.join(value)),
            _ => {
                // Not named: it may be the rest of a password.
                return Err(BadStore::url(
                    "have no other parameters than ?prefix, ?db, ?ca, ?cert and ?key (and ?user and ?pass for a \
                     socket). A ? in a password is written %3F, and an & is written %26",
                ));
            }
        }
        Ok(())
    }

    /// User and password.
    fn credentials(
        &mut self,
        url: &Url,
        unix: bool,
    ) -> Result<(Option<String>, Option<String>), BadStore> {
        let (user, password) = if unix {
            (self.user.take(), self.pass.take())
        } else if self.user.is_some() || self.pass.is_some() {
            return Err(BadStore::url("have user and password before the @"));
        } else {
            let user = Some(decoded(url.username())?).filter(|user| !user.is_empty());
            (user, url.password().map(decoded).transpose()?)
        };
        if user.is_some() && password.is_none() {
            return Err(BadStore::url(
                "have a password beside its user name: redis://user:password@host, or redis://:password@host",
            ));
        }
        Ok((user, password))
    }
}

/// A `/`, `?` or `#` in a password ends the part before the host, and the rest means something else.
fn check_authority(url: &str) -> Result<(), BadStore> {
    let Some((_, rest)) = url.split_once("://") else {
        return Err(BadStore::url(
            "have two slashes behind its scheme: redis://host:6379",
        ));
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    let stray = behind.contains('@') && !authority.contains('@');
    let names_host = match authority.rsplit_once(':') {
        Some((host, port)) => !host.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()),
        None => true,
    };
    let in_query = behind.contains('?') && behind.find('?') < behind.find('@');
    if stray && !(names_host && in_query) || authority.matches('@').count() > 1 {
        return Err(BadStore::url(
            "percent-encode what its password has of / ? # @ : % (as %2F %3F %23 %40 %3A %25; \
             encodeURIComponent does it)",
        ));
    }
    Ok(())
}

fn database_of(text: &str) -> Result<i64, BadStore> {
    let digits = text.strip_prefix('/').unwrap_or(text);
    if digits.is_empty() {
        return Ok(0);
    }
    let number = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse::<i32>());
    match number {
        Some(Ok(number)) => Ok(i64::from(number)),
        _ => Err(BadStore::url(
            "have the number of a database as its path, such as /0 (a / in a password is written %2F)",
        )),
    }
}

fn decoded(text: &str) -> Result<String, BadStore> {
    crate::backend::percent_decoded(text).ok_or_else(|| {
        BadStore::url("be percent-encoded properly: %25 for a percent sign, and UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/base")).map_err(|bad| bad.rule)
    }

    fn credentials(url: &str) -> (Option<String>, Option<String>) {
        let address = parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"));
        let settings = address.connection.redis_settings();
        (
            settings.username().map(str::to_owned),
            settings.password().map(str::to_owned),
        )
    }

    #[test]
    fn a_password_may_hold_anything_percent_encoded() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            credentials("redis://:pa%2Fss@h:6379/0"),
            (None, some("pa/ss"))
        );
        assert_eq!(
            credentials("rediss://default:KEY%3D%3D@x.redis.azure.net:10000"),
            (some("default"), some("KEY=="))
        );
        assert_eq!(
            credentials("redis://us%40er:p%3F%23%25%3A%F0%9F%A6%80+@h"),
            (some("us@er"), some("p?#%:🦀+"))
        );
        assert_eq!(credentials("redis://h"), (None, None));
    }

    #[test]
    fn a_raw_slash_or_question_mark_in_a_password_is_refused_with_its_cure() {
        for url in [
            "redis://:base64/with/slash@h:6379/0",
            "redis://user:pa/ss@h",
            "redis://user:123/x@h",
            "redis://:pa?ss@h:6379",
            "redis://:pa#ss@h:6379",
            "redis://:p@ss@h:6379",
        ] {
            let rule = parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(rule.contains("percent-encode"), "{url}: {rule}");
        }
    }

    #[test]
    fn no_refusal_repeats_what_may_be_a_password() {
        for url in [
            "redis:u:hunter2@h",
            "redis://u:hunter2",
            "redis://u:6379?hunter2@h",
            "redis://u:6379?hunter2=@h",
            "redis://u:hunter2/x@h",
            "redis://hunter2@h",
            "redis://h?pass=hunter2",
            "redis://h/hunter2",
            "redis://h#hunter2",
            "redis://:%zzhunter2@h",
            "unix:///r.sock?user=u&pass=x&hunter2",
            "unix://u:hunter2@/r.sock",
        ] {
            let rule = parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!rule.contains("hunter2"), "{url}: {rule}");
        }
    }

    #[test]
    fn hosts_ports_databases_and_sockets() {
        for (url, shown) in [
            ("redis://h", "redis://h:6379"),
            ("valkey://h:7000/2", "valkey://h:7000/2"),
            ("redis://u:secret@10.0.0.1:7000", "redis://10.0.0.1:7000"),
            ("rediss://[fd00::1]:7000/15", "rediss://[fd00::1]:7000/15"),
            ("redis://[::1]", "redis://[::1]:6379"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            (
                "redis+unix:///run/redis.sock?db=3",
                "unix:///run/redis.sock?db=3",
            ),
            (
                "unix:///run/r.sock?user=u&pass=secret",
                "unix:///run/r.sock",
            ),
            ("redis://h?db=4", "redis://h:6379/4"),
            ("rediss://h?ca=certs/a@b.pem", "rediss://h:6379"),
        ] {
            let address = parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"));
            assert_eq!(address.shown, shown, "{url}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for url in [
            "redis:h",
            "redis://",
            "redis://h:x",
            "redis://h:70000",
            "redis://h/zero",
            "redis://h/-1",
            "redis://h/1/2",
            "redis://h/1?db=2",
            "redis://h/99999999999",
            "redis://h?sentinel=1",
            "redis://h?ca=x",
            "rediss://h?cert=x",
            "rediss://h#insecure",
            "redis://user@h",
            "redis://:%zz@h",
            "redis://h?prefix={a}",
            "unix://run/redis.sock",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
