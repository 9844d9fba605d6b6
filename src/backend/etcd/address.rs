//! Where an etcd cluster is, and which of its keys are ours.

use std::path::Path;

use crate::backend::BadStore;
use crate::backend::tls::Tls;
use crate::backend::url::{Host, StoreUrl};

pub(super) const DEFAULT_PORT: u16 = 2379;
const EXAMPLE: &str = "etcd://[user:password@]host[:2379][,host:port...]";

/// A URL that makes sense. What it points to is looked at only when it is used.
pub(super) struct Address {
    pub hosts: Vec<Host>,
    pub tls: Option<Tls>,
    pub login: Option<Login>,
    /// What stands before every key.
    pub prefix: String,
    /// Never holds a password.
    pub shown: String,
}

pub(super) struct Login {
    pub user: String,
    pub password: String,
}

/// The keys of one election.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub lease: String,
    pub token: String,
}

impl Address {
    pub fn parse(url: &str, base_dir: &Path) -> Result<Self, BadStore> {
        let mut url = StoreUrl::parse(url, EXAMPLE)?;
        let prefix = url.take("prefix").unwrap_or_default();
        let tls = url.take_tls_by_scheme(&["etcds"], base_dir)?;
        url.refuse_others(&["prefix", "ca", "cert", "key"])?;
        if url.hosts.is_empty() {
            return Err(BadStore::url(format!("name a host: {EXAMPLE}")));
        }
        if !url.path.is_empty() {
            return Err(BadStore::url(format!(
                "have no path: {EXAMPLE}; keys begin with what ?prefix=<text> says"
            )));
        }
        let login = match (url.user.take(), url.password.take()) {
            (Some(user), Some(password)) => Some(Login { user, password }),
            (None, None) => None,
            _ => {
                return Err(BadStore::url(
                    "have a user and a password, or neither: a certificate's name is no user here, \
                     since etcd's gateway does not look at it",
                ));
            }
        };
        let scheme = &url.scheme;
        let mut shown = format!("{scheme}://{}", url.shown_hosts(DEFAULT_PORT));
        if !prefix.is_empty() {
            shown = format!("{shown}?prefix={prefix}");
        }
        Ok(Self {
            tls,
            hosts: url.hosts,
            login,
            prefix,
            shown,
        })
    }

    pub fn keys(&self, election: &str) -> Keys {
        let prefix = &self.prefix;
        Keys {
            lease: format!("{prefix}cluster:{election}/lease"),
            token: format!("{prefix}cluster:{election}/token"),
        }
    }

    /// What to allow a user, for people.
    pub fn rights(&self) -> String {
        let user = self.login.as_ref().map_or("<user>", |login| &login.user);
        format!(
            "etcdctl role add whenleader; etcdctl role grant-permission whenleader --prefix=true \
             readwrite \"{}cluster:\"; etcdctl user grant-role {user} whenleader",
            self.prefix
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/base")).map_err(|bad| bad.rule)
    }

    #[test]
    fn a_url_names_members_a_user_a_prefix_and_certificates() {
        let address = parse(
            "etcds://us%40er:p%2Fw@a,b:7000,[fd00::1]?prefix=shop/&ca=ca.pem&cert=c.pem&key=/k.pem",
        )
        .unwrap();
        assert_eq!(
            address.shown,
            "etcds://a:2379,b:7000,[fd00::1]:2379?prefix=shop/"
        );
        let login = address.login.as_ref().unwrap();
        assert_eq!((&*login.user, &*login.password), ("us@er", "p/w"));
        let tls = address.tls.as_ref().unwrap();
        assert_eq!(tls.ca, Some("/base/ca.pem".into()));
        let client = Some(("/base/c.pem".into(), "/k.pem".into()));
        assert_eq!(tls.client, client);
        assert_eq!(address.keys("x").lease, "shop/cluster:x/lease");
        assert_eq!(address.keys("x").token, "shop/cluster:x/token");
        assert!(address.rights().contains("\"shop/cluster:\""));
        assert!(parse("etcd://h").unwrap().tls.is_none());
        assert!(parse("etcds://h/").unwrap().tls.is_some());
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_a_password() {
        for url in [
            "etcd://",
            "etcd://u:hunter2@",
            "etcd://hunter2@h",
            "etcd://:hunter2@h",
            "etcd://u:hunter2@h/path",
            "etcd://u:hunter2@h?ca=x",
            "etcds://u:hunter2@h?cert=x",
            "etcds://u:hunter2@h?key=x",
            "etcd://u:hunter2@h?db=1",
            "etcd://u:hunt/er2@h",
        ] {
            let rule = parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!rule.contains("hunter2"), "{url}: {rule}");
        }
    }
}
