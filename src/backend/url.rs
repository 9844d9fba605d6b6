//! The URL of a store that is a server, read strictly: what clients make of a password with a slash in it
//! has cost people days. Knows no store.

use std::fmt;
use std::path::{Path, PathBuf};

use super::tls::{Tls, Verify};
use super::{BadStore, percent_decoded};

/// A URL, taken apart and percent-decoded.
pub(super) struct StoreUrl {
    /// In lower case.
    pub scheme: String,
    pub user: Option<String>,
    pub password: Option<String>,
    /// In the order in which they are to be tried. Empty only where none is named.
    pub hosts: Vec<Host>,
    /// Without the slash that begins it.
    pub path: String,
    parameters: Vec<(String, String)>,
}

/// Of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    pub port: Option<u16>,
}

impl StoreUrl {
    /// `example` is a good one, for errors.
    pub fn parse(url: &str, example: &str) -> Result<Self, BadStore> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(BadStore::url(format!(
                "have two slashes behind its scheme: {example}"
            )));
        };
        if rest.contains('#') {
            return Err(BadStore::url(
                "hold no #: percent-encode it in a password, as %23 (encodeURIComponent does it)",
            ));
        }
        let (authority, behind) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (path, query) = behind.split_once('?').unwrap_or((behind, ""));
        // A raw / or ? in a password ends the part before the host, and the rest means something else.
        if path.contains('@') || authority.matches('@').count() > 1 {
            return Err(encode());
        }
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let hosts = if hosts.is_empty() {
            Ok(Vec::new())
        } else {
            hosts.split(',').map(Host::parse).collect()
        };
        let hosts = match hosts {
            Ok(hosts) => hosts,
            // No host, so perhaps the beginning of a password: the @ that would tell stands behind the ?.
            Err(_) if credentials.is_none() && query.contains('@') => return Err(encode()),
            Err(rule) => return Err(BadStore::url(format!("{rule}: {example}"))),
        };
        let (user, password) =
            match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
                Some((user, password)) => (present(user)?, present(password)?),
                None => (None, None),
            };
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts,
            path: decoded(path.strip_prefix('/').unwrap_or(path))?,
            parameters: parameters(query)?,
        })
    }

    /// What a parameter says, which is then known.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self
            .parameters
            .iter()
            .position(|(known, _)| known == name)?;
        Some(self.parameters.remove(at).1)
    }

    /// A file that a parameter names.
    pub fn take_path(&mut self, name: &str, base_dir: &Path) -> Option<PathBuf> {
        self.take(name).map(|path| base_dir.join(path))
    }

    /// The files that `?ca`, `?cert` and `?key` name. Who must be believed is the store's to say.
    pub fn take_tls(&mut self, base_dir: &Path) -> Result<Tls, BadStore> {
        self.take_tls_named(&["ca"], &["cert"], &["key"], base_dir)
    }

    /// As `take_tls`, for stores whose clients have several words for them. The first one is shown.
    pub fn take_tls_named(
        &mut self,
        ca: &[&str],
        cert: &[&str],
        key: &[&str],
        base_dir: &Path,
    ) -> Result<Tls, BadStore> {
        let mut take = |names: &[&str]| {
            let taken = names.iter().map(|name| self.take_path(name, base_dir));
            // All are known, whichever counts.
            taken.fold(None, Option::or)
        };
        let (ca, files) = (take(ca), (take(cert), take(key)));
        let client = match files {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                return Err(BadStore::url(format!(
                    "have ?{} and ?{} together: a certificate, and the key that it is for",
                    cert[0], key[0]
                )));
            }
        };
        Ok(Tls {
            verify: Verify::Full,
            ca,
            client,
        })
    }

    /// As `take_tls`, for stores whose scheme says whether connections are encrypted: by one of these they are.
    pub fn take_tls_by_scheme(
        &mut self,
        encrypted: &[&str],
        base_dir: &Path,
    ) -> Result<Option<Tls>, BadStore> {
        let tls = self.take_tls(base_dir)?;
        if encrypted.contains(&&*self.scheme) {
            return Ok(Some(tls));
        }
        if tls.names_files() {
            let scheme = encrypted[0];
            return Err(BadStore::url(format!(
                "begin with {scheme}:// if it has ?ca, ?cert or ?key"
            )));
        }
        Ok(None)
    }

    /// To be asked when all known parameters were taken; `known` lists them for the error.
    pub fn refuse_others(&self, known: &[&str]) -> Result<(), BadStore> {
        if self.parameters.is_empty() {
            return Ok(());
        }
        let known: Vec<_> = known.iter().map(|name| format!("?{name}")).collect();
        // The unknown one is not named: it may be the rest of a password.
        Err(BadStore::url(format!(
            "have no other parameters than {}. A ? in a password is written %3F, and an & is written %26",
            known.join(", ")
        )))
    }

    /// `host:port` of each, as it may be shown.
    pub fn shown_hosts(&self, default_port: u16) -> String {
        let shown: Vec<_> = self
            .hosts
            .iter()
            .map(|host| host.with_port(default_port))
            .collect();
        shown.join(",")
    }
}

impl fmt::Debug for StoreUrl {
    /// Without the password, and without parameters, which may be one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUrl")
            .field("scheme", &self.scheme)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// `Err`: what it must be.
    fn parse(text: &str) -> Result<Self, &'static str> {
        const BAD: &str = "name its hosts as host or host:port, an IPv6 address in brackets";
        let (name, port) = if let Some(rest) = text.strip_prefix('[') {
            let (name, behind) = rest.split_once(']').ok_or(BAD)?;
            (
                name,
                behind.strip_prefix(':').or(behind.is_empty().then_some("")),
            )
        } else {
            let (name, port) = text.split_once(':').unwrap_or((text, ""));
            (name, Some(port))
        };
        let port = match port.ok_or(BAD)? {
            "" => None,
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().map_err(|_| BAD)?)
            }
            _ => return Err(BAD),
        };
        let name = percent_decoded(name).ok_or(BAD)?;
        if name.is_empty() || name.contains(char::is_whitespace) || port == Some(0) {
            return Err(BAD);
        }
        Ok(Self { name, port })
    }

    /// As it stands in a URL.
    pub fn with_port(&self, default_port: u16) -> String {
        let port = self.port.unwrap_or(default_port);
        if self.name.contains(':') {
            format!("[{}]:{port}", self.name)
        } else {
            format!("{}:{port}", self.name)
        }
    }
}

fn parameters(query: &str) -> Result<Vec<(String, String)>, BadStore> {
    let mut parameters: Vec<(String, String)> = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        if parameters.iter().any(|(known, _)| *known == name) {
            return Err(BadStore::url("have each parameter once"));
        }
        parameters.push((name, value));
    }
    Ok(parameters)
}

fn present(text: &str) -> Result<Option<String>, BadStore> {
    Ok(Some(decoded(text)?).filter(|text| !text.is_empty()))
}

/// A plus sign is one: this is no form.
fn decoded(text: &str) -> Result<String, BadStore> {
    percent_decoded(text).ok_or_else(|| {
        BadStore::url("be percent-encoded properly: %25 for a percent sign, and UTF-8")
    })
}

fn encode() -> BadStore {
    BadStore::url(
        "percent-encode what its password has of / ? # @ : % (as %2F %3F %23 %40 %3A %25; \
         encodeURIComponent does it)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<StoreUrl, String> {
        StoreUrl::parse(url, "x://host").map_err(|bad| bad.rule)
    }

    #[test]
    fn everything_is_told_apart_and_percent_decoded() {
        let mut url = parse("PG://us%40er:p%40ss%2Fw%3F%23%25:+@a,b:7000,[fd00::1]:7001,[::1]/my%20db?ca=x%26y&z=1+2&e=").unwrap();
        assert_eq!(url.scheme, "pg");
        assert_eq!(url.user.as_deref(), Some("us@er"));
        assert_eq!(url.password.as_deref(), Some("p@ss/w?#%:+"));
        assert_eq!(url.shown_hosts(1), "a:1,b:7000,[fd00::1]:7001,[::1]:1");
        assert_eq!(url.path, "my db");
        assert_eq!(url.take_path("ca", Path::new("/b")), Some("/b/x&y".into()));
        assert_eq!(url.take("z").as_deref(), Some("1+2"));
        assert!(url.refuse_others(&["ca"]).unwrap_err().rule.contains("?ca"));
        assert_eq!(url.take("e").as_deref(), Some(""));
        url.refuse_others(&[]).unwrap();
        let socket = parse("pg:///db").unwrap();
        assert_eq!((socket.hosts.len(), &*socket.path), (0, "db"));
        assert_eq!(
            parse("pg://%2Fvar%2Frun/db").unwrap().hosts[0].name,
            "/var/run"
        );
        assert_eq!(parse("pg://:secret@h").unwrap().user, None);
        assert_eq!(parse("pg://u@h").unwrap().password, None);
    }

    #[test]
    fn a_raw_slash_or_question_mark_in_a_password_is_refused_with_its_cure() {
        for url in [
            "pg://u:pa/ss@h/db",
            "pg://u:pass/@h/db",
            "pg://u:123/x@h",
            "pg://u:pa?ss@h:1",
            "pg://u:p@ss@h:1",
            "pg://u:pa?ss@h:1?x=y",
        ] {
            let rule = parse(url).unwrap_err();
            assert!(rule.contains("percent-encode"), "{url}: {rule}");
        }
        assert!(parse("pg://u:pa#ss@h").unwrap_err().contains("%23"));
        assert!(parse("pg://u:100%@h").unwrap_err().contains("%25"));
    }

    #[test]
    fn certificates_are_named_by_what_people_call_them_and_only_where_they_are_looked_at() {
        let dir = Path::new("/b");
        let tls = parse("x://h?ca=ca.pem&cert=c.pem&key=/k.pem").unwrap();
        let tls = { tls }.take_tls(dir).unwrap();
        assert!(tls.names_files());
        assert_eq!(tls.ca, Some("/b/ca.pem".into()));
        let client = Some(("/b/c.pem".into(), "/k.pem".into()));
        assert_eq!((tls.client, tls.verify), (client, Verify::Full));
        let mut other = parse("x://h?sslcert=c&sslkey=k&ssl-ca=y&ca=x").unwrap();
        let (ca, cert, key) = (["ca", "ssl-ca"], ["cert", "sslcert"], ["key", "sslkey"]);
        let named = other.take_tls_named(&ca, &cert, &key, dir).unwrap();
        assert_eq!(named.ca, Some("/b/x".into()));
        assert_eq!(named.client, Some(("/b/c".into(), "/b/k".into())));
        other.refuse_others(&[]).unwrap();

        let by_scheme = |url| {
            let tls = parse(url)?.take_tls_by_scheme(&["xs", "ys"], dir);
            tls.map(|tls| tls.is_some()).map_err(|bad| bad.rule)
        };
        assert_eq!(by_scheme("x://h"), Ok(false));
        assert_eq!(by_scheme("ys://h"), Ok(true));
        assert_eq!(by_scheme("xs://h?ca=x"), Ok(true));
        assert!(by_scheme("x://h?ca=x").unwrap_err().contains("xs://"));
        assert!(by_scheme("x://h?cert=x&key=y").is_err());
        for half in ["xs://h?cert=x", "xs://h?key=x"] {
            assert!(by_scheme(half).unwrap_err().contains("?cert and ?key"));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_no_refusal_repeats_what_may_be_a_password() {
        for url in [
            "pg:u:hunter2@h",
            "pg://u:hunter2",
            "pg://u:hunter2@h:x",
            "pg://u:hunter2@h:70000",
            "pg://u:hunter2@h:0",
            "pg://u:hunter2@h,",
            "pg://u:hunter2@[::1",
            "pg://u:hunter2@[::1]x",
            "pg://u:%zzhunter2@h",
            "pg://u:hunter2@h?a=1&a=2",
            "pg://u:hunter2@h#x",
        ] {
            let rule = parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!rule.contains("hunter2"), "{url}: {rule}");
        }
        let url = parse("pg://u:hunter2@h?x=hunter2").unwrap();
        assert!(!format!("{url:?}").contains("hunter2"));
        assert!(
            !url.refuse_others(&["ca"])
                .unwrap_err()
                .rule
                .contains("hunter2")
        );
    }
}
