//! Where a Redis or Valkey server is: the store's URL.

use std::path::Path;

use redis::RedisConnectionInfo;

use crate::backend::BadStore;
use crate::backend::stream::Place;
use crate::backend::tls::Tls;
use crate::backend::url::StoreUrl;

pub(super) const DEFAULT_PORT: u16 = 6379;
const EXAMPLE: &str = "redis://[user:password@]host[:port][/database]";

/// A URL that makes sense. What it points to is looked at only when it is used.
pub(super) struct Address {
    pub place: Place,
    pub tls: Option<Tls>,
    /// Who comes to which database, and how it presents itself.
    pub settings: RedisConnectionInfo,
    /// What stands before every key and channel.
    pub prefix: String,
    pub database: i64,
    /// Never holds a password.
    pub shown: String,
}

impl Address {
    pub fn parse(url: &str, base_dir: &Path) -> Result<Self, BadStore> {
        let mut url = StoreUrl::parse(url, EXAMPLE)?;
        let is_socket = matches!(&*url.scheme, "unix" | "redis+unix" | "valkey+unix");
        let tls = url.take_tls_by_scheme(&["rediss", "valkeys"], base_dir)?;
        let prefix = url.take("prefix").unwrap_or_default();
        if prefix.contains(['{', '}']) {
            return Err(BadStore::url(
                "have a ?prefix without braces: they say which keys a cluster keeps together",
            ));
        }
        let (user, password) = credentials(&mut url, is_socket)?;
        let database = database(&mut url, is_socket)?;
        url.refuse_others(if is_socket {
            &["prefix", "db", "user", "pass"]
        } else {
            &["prefix", "db", "ca", "cert", "key"]
        })?;

        let (place, mut shown) = if is_socket {
            if !url.hosts.is_empty() || url.path.is_empty() {
                return Err(socket());
            }
            let place = Place::Socket(format!("/{}", url.path).into());
            let shown = format!("unix://{}", place.shown(DEFAULT_PORT));
            (place, shown)
        } else {
            let [host] = &*url.hosts else {
                return Err(BadStore::url(format!("name one host: {EXAMPLE}")));
            };
            let place = Place::Tcp(host.clone());
            let shown = format!("{}://{}", url.scheme, place.shown(DEFAULT_PORT));
            (place, shown)
        };
        if database != 0 {
            let behind = if is_socket { "?db=" } else { "/" };
            shown = format!("{shown}{behind}{database}");
        }
        let mut settings = RedisConnectionInfo::default()
            .set_db(database)
            .set_lib_name("whenleader", env!("CARGO_PKG_VERSION"));
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        Ok(Self {
            place,
            tls,
            settings,
            prefix,
            database,
            shown,
        })
    }
}

/// User and password. A socket's URL has no place for them before its path.
fn credentials(
    url: &mut StoreUrl,
    is_socket: bool,
) -> Result<(Option<String>, Option<String>), BadStore> {
    let before_host = (url.user.take(), url.password.take());
    let as_parameters = (url.take("user"), url.take("pass"));
    let (user, password) = match (is_socket, before_host, as_parameters) {
        (true, (None, None), given) | (false, given, (None, None)) => given,
        (true, ..) => return Err(socket()),
        (false, ..) => return Err(BadStore::url("have user and password before the @")),
    };
    if user.is_some() && password.is_none() {
        return Err(BadStore::url(
            "have a password beside its user name: redis://user:password@host, or redis://:password@host",
        ));
    }
    Ok((user, password))
}

/// Its number, which is a server's path.
fn database(url: &mut StoreUrl, is_socket: bool) -> Result<i64, BadStore> {
    let path = if is_socket { "" } else { &*url.path };
    let number = match (path.to_owned(), url.take("db")) {
        (path, None) => path,
        (path, Some(number)) if path.is_empty() => number,
        _ => {
            return Err(BadStore::url(
                "name its database once, in the path or as ?db=",
            ));
        }
    };
    if number.is_empty() {
        return Ok(0);
    }
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    match number.parse::<i32>() {
        Ok(number) if digits => Ok(i64::from(number)),
        _ => Err(BadStore::url(
            "have the number of a database as its path, such as /0 (a / in a password is written %2F)",
        )),
    }
}

fn socket() -> BadStore {
    BadStore::url(
        "have three slashes for a socket, unix:///run/redis.sock, and may have ?db, ?user and ?pass",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/base")).map_err(|bad| bad.rule)
    }

    fn credentials(url: &str) -> (Option<String>, Option<String>) {
        let address = parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"));
        let settings = &address.settings;
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
            credentials("unix:///r.sock?user=u&pass=a%26b%3D+c"),
            (some("u"), some("a&b=+c"))
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
            "redis://h,i",
            "unix:///",
            "unix://u:p@/r.sock",
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
