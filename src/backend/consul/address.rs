//! Where Consul is, who asks, and which of its keys are ours: the URL, read strictly.

use std::path::{Path, PathBuf};

use crate::backend::blocking::read_text;
use crate::backend::tls::Tls;
use crate::backend::url::{Host, StoreUrl};
use crate::backend::{BadStore, escaped};

const EXAMPLE: &str = "consul://[:<token>@]<host>[:<port>]";
const PORT: u16 = 8500;
const TLS_PORT: u16 = 8501;

/// A URL that makes sense. What it points to is looked at only when it is used.
pub(super) struct Address {
    pub hosts: Vec<Host>,
    pub default_port: u16,
    pub tls: Option<Tls>,
    token: Shown,
    /// Consul asks the agent's own if there is none.
    pub datacenter: Option<String>,
    /// What stands before every key.
    pub prefix: String,
    /// Never holds a token.
    pub shown: String,
}

/// How a request shows who asks.
enum Shown {
    Nothing,
    Token(String),
    /// A file that holds it, which is read again for each request: it is replaced when the token is.
    File(PathBuf),
}

impl Address {
    pub fn parse(url: &str, base_dir: &Path) -> Result<Self, BadStore> {
        let mut url = StoreUrl::parse(url, EXAMPLE)?;
        if url.hosts.is_empty() {
            return Err(BadStore::url(format!("name a host: {EXAMPLE}")));
        }
        if !url.path.is_empty() {
            return Err(BadStore::url(format!(
                "have no path: {EXAMPLE}; keys begin with what ?prefix=<text> says"
            )));
        }
        let prefix = url.take("prefix").unwrap_or_else(|| "whenleader/".into());
        // What would be cleaned from a path.
        let is_folder = |part: &str| !matches!(part, "." | "..");
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
        if !prefix.bytes().all(is_letter)
            || prefix.starts_with('/')
            || prefix.contains("//")
            || !prefix.split('/').all(is_folder)
        {
            return Err(BadStore::url(
                "have a ?prefix of letters, digits and - _ . : /, without a / at its beginning: shop/leases/",
            ));
        }
        let datacenter = url.take("dc");
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let named = |name: &String| !name.is_empty() && name.bytes().all(is_name);
        if !datacenter.as_ref().is_none_or(named) {
            return Err(BadStore::url(
                "have the name of a datacenter as ?dc: letters, digits, - and _",
            ));
        }
        let file = url.take_path("token_file", base_dir);
        let tls = url.take_tls_by_scheme(&["consuls"], base_dir)?;
        url.refuse_others(&["prefix", "dc", "token_file", "ca", "cert", "key"])?;
        let token = match (url.user.take(), url.password.take(), file) {
            (None, None, None) => Shown::Nothing,
            (None, Some(token), None) | (Some(token), None, None) => Shown::Token(token),
            (None, None, Some(file)) => Shown::File(file),
            (Some(_), Some(_), _) => {
                return Err(BadStore::url(
                    "have a token alone, since Consul knows no user names: consul://:token@host",
                ));
            }
            _ => {
                return Err(BadStore::url(
                    "have its token once, before the host or in ?token_file",
                ));
            }
        };
        if let Shown::Token(token) = &token
            && !is_token(token)
        {
            return Err(BadStore::url("have a token of plain letters"));
        }
        let default_port = if tls.is_some() { TLS_PORT } else { PORT };
        let scheme = &url.scheme;
        let mut shown = format!("{scheme}://{}", url.shown_hosts(default_port));
        if let Some(datacenter) = &datacenter {
            shown = format!("{shown}?dc={datacenter}");
        }
        Ok(Self {
            tls,
            hosts: url.hosts,
            default_port,
            token,
            datacenter,
            prefix,
            shown,
        })
    }

    /// `Err`: what is wrong with the file that holds it.
    pub async fn token(&self) -> Result<Option<String>, String> {
        let file = match &self.token {
            Shown::Nothing => return Ok(None),
            Shown::Token(token) => return Ok(Some(token.clone())),
            Shown::File(file) => file,
        };
        let shown = file.display();
        let text = read_text(file).await?;
        let token = text.trim();
        if token.is_empty() || !is_token(token) {
            return Err(format!("{shown} holds no token"));
        }
        Ok(Some(token.to_owned()))
    }

    /// What no path and no rule understands in another way stays readable.
    pub fn key(&self, election: &str) -> String {
        format!("{}cluster:{}", self.prefix, escaped(election, '%', "-_.:"))
    }

    /// A policy that is enough, for people.
    pub fn rights(&self) -> String {
        format!(
            "give its token a policy with the rule: key_prefix \"{}cluster:\" {{ policy = \"write\" }}",
            self.prefix
        )
    }
}

/// What a header can hold.
fn is_token(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/base")).map_err(|bad| bad.rule)
    }

    async fn token(url: &str) -> Result<Option<String>, String> {
        let address = parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"));
        address.token().await
    }

    #[tokio::test]
    async fn a_token_is_the_password_or_the_name_or_in_a_file() {
        let some = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(token("consul://h").await, Ok(None));
        assert_eq!(
            token("consul://:p%40ss%2F%3F%23%25@h").await,
            some("p@ss/?#%")
        );
        assert_eq!(
            token("consul://11111111-2222@h").await,
            some("11111111-2222")
        );
        let absent = token("consul://h?token_file=absent").await.unwrap_err();
        assert!(absent.contains("/base/absent"), "{absent}");
        for (url, word) in [
            ("consul://u:p@h", "user names"),
            ("consul://:p@h?token_file=x", "once"),
            ("consul://:p%0Aq@h", "plain"),
        ] {
            let rule = parse(url).map(|_| url).unwrap_err();
            assert!(rule.contains(word), "{url}: {rule}");
        }
    }

    #[test]
    fn hosts_prefixes_datacenters_and_encryption() {
        for (url, shown) in [
            ("consul://h", "consul://h:8500"),
            (
                "CONSULS://a,[::1]:1?dc=eu-1",
                "consuls://a:8501,[::1]:1?dc=eu-1",
            ),
            ("consul://:secret@h/?prefix=shop/leases/", "consul://h:8500"),
            ("consul://h?prefix=", "consul://h:8500"),
        ] {
            let address = parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"));
            assert_eq!(address.shown, shown, "{url}");
            assert_eq!(address.tls.is_some(), shown.starts_with("consuls"), "{url}");
        }
    }

    #[test]
    fn keys_keep_simple_names_readable_and_never_collide() {
        let address = parse("consul://h").unwrap();
        for (election, key) in [
            ("leader", "whenleader/cluster:leader"),
            ("a.b-c_D:1", "whenleader/cluster:a.b-c_D:1"),
            ("..", "whenleader/cluster:.."),
            ("a/../b", "whenleader/cluster:a%2F..%2Fb"),
            ("%2F", "whenleader/cluster:%252F"),
            ("a b🦀", "whenleader/cluster:a%20b%F0%9F%A6%80"),
        ] {
            assert_eq!(address.key(election), key);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_no_refusal_repeats_what_may_be_a_token() {
        for url in [
            "consul:h",
            "consul://",
            "consul://h/hunter2",
            "consul://h?hunter2",
            "consul://:hunter2@h?prefix=/a",
            "consul://:hunter2@h?prefix=a//b",
            "consul://:hunter2@h?prefix=../b",
            "consul://:hunter2@h?prefix=a%20b",
            "consul://:hunter2@h?dc=",
            "consul://:hunter2@h?dc=a%26b",
            "consul://:hunter2@h?ca=x",
            "consuls://:hunter2@h?cert=x",
            "consul://:hunter2@h?tls=1",
        ] {
            let rule = parse(url).map(|_| url).unwrap_err();
            assert!(!rule.contains("hunter2"), "{url}: {rule}");
        }
    }
}
