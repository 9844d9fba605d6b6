//! Where NATS is, who asks, and which bucket is meant: the URL, read strictly.

use std::path::{Path, PathBuf};

use super::connection;
use super::nkey;
use crate::backend::BadStore;
use crate::backend::tls::Tls;
use crate::backend::url::{Host, StoreUrl};

const EXAMPLE: &str = "nats://[<user>:<password>@]<host>[:<port>]";
pub(super) const DEFAULT_PORT: u16 = 4222;
const PARAMETERS: &[&str] = &[
    "bucket", "replicas", "inbox", "creds", "nkey", "tlsFirst", "ca", "cert", "key",
];

/// A URL that makes sense. What it points to is looked at only when it is used.
pub(super) struct Address {
    /// In the order in which they are tried.
    pub hosts: Vec<Host>,
    /// A server that speaks no TLS is refused.
    pub wants_tls: bool,
    /// The server does not introduce itself before it.
    pub tls_first: bool,
    pub tls: Tls,
    who: Who,
    pub bucket: String,
    /// On how many servers a bucket is kept that is made here.
    pub replicas: u32,
    /// What the subjects of answers begin with.
    pub inbox: String,
    /// Never holds a password.
    pub shown: String,
}

enum Who {
    Anybody,
    User {
        name: String,
        password: String,
    },
    Token(String),
    /// A file of credentials.
    Credentials(PathBuf),
    /// A file with a seed.
    Seed(PathBuf),
}

impl Address {
    pub fn parse(url: &str, base_dir: &Path) -> Result<Self, BadStore> {
        let mut url = StoreUrl::parse(url, EXAMPLE)?;
        if url.hosts.is_empty() {
            return Err(BadStore::url(format!("name a host: {EXAMPLE}")));
        }
        if !url.path.is_empty() {
            return Err(BadStore::url(
                "have no path: the bucket is chosen with ?bucket=<name>",
            ));
        }
        let bucket = url.take("bucket").unwrap_or_else(|| "whenleader".into());
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_letter) {
            return Err(BadStore::url(
                "have a ?bucket of letters, digits, - and _: that is what NATS allows",
            ));
        }
        let replicas = match url.take("replicas").map(|number| number.parse()) {
            None => 1,
            Some(Ok(number @ 1..=5)) => number,
            Some(_) => return Err(BadStore::url("have ?replicas from 1 to 5")),
        };
        let inbox = url.take("inbox").unwrap_or_else(|| "_INBOX".into());
        let is_inbox = |byte: u8| byte.is_ascii_graphic() && !b"*>".contains(&byte);
        if !inbox.bytes().all(is_inbox) || inbox.split('.').any(str::is_empty) {
            return Err(BadStore::url(
                "have as ?inbox a subject without wildcards, such as _INBOX_app",
            ));
        }
        let tls_first = match url.take("tlsFirst").as_deref() {
            None | Some("false") => false,
            Some("" | "true") => true,
            Some(_) => return Err(BadStore::url("have ?tlsFirst as true or false")),
        };
        let credentials = url.take_path("creds", base_dir);
        let seed = url.take_path("nkey", base_dir);
        let tls = url.take_tls(base_dir)?;
        url.refuse_others(PARAMETERS)?;
        let who = match (url.user.take(), url.password.take(), credentials, seed) {
            (None, None, None, None) => Who::Anybody,
            (Some(name), Some(password), None, None) => Who::User { name, password },
            (Some(token), None, None, None) => Who::Token(token),
            (None, None, Some(file), None) => Who::Credentials(file),
            (None, None, None, Some(file)) => Who::Seed(file),
            (None, Some(_), ..) => {
                return Err(BadStore::url(
                    "have a user name beside its password, nats://user:password@host, or a token alone, nats://token@host",
                ));
            }
            _ => {
                return Err(BadStore::url(
                    "say once who asks: user:password@, token@, ?creds=<file> or ?nkey=<file>",
                ));
            }
        };
        let shown = format!(
            "{}://{} (bucket {bucket})",
            url.scheme,
            url.shown_hosts(DEFAULT_PORT)
        );
        // Certificates mean that it is to be encrypted.
        let wants_tls = url.scheme == "tls" || tls_first || tls.names_files();
        Ok(Self {
            hosts: url.hosts,
            wants_tls,
            tls_first,
            tls,
            who,
            bucket,
            replicas,
            inbox,
            shown,
        })
    }

    /// What a client says first. `Err`: what is wrong with the files that say who it is.
    pub async fn hello(&self, nonce: Option<&str>) -> Result<String, String> {
        let mut hello = connection::hello();
        hello["tls_required"] = self.wants_tls.into();
        // Drawn by servers that know keys.
        let nonce = nonce.unwrap_or_default();
        match &self.who {
            Who::Anybody => {}
            Who::User { name, password } => {
                hello["user"] = name.as_str().into();
                hello["pass"] = password.as_str().into();
            }
            Who::Token(token) => hello["auth_token"] = token.as_str().into(),
            Who::Credentials(file) => {
                let (jwt, key) = nkey::credentials_in(file).await?;
                hello["jwt"] = jwt.into();
                hello["sig"] = key.sign(nonce).into();
            }
            Who::Seed(file) => {
                let key = nkey::seed_in(file).await?;
                hello["nkey"] = key.public().into();
                hello["sig"] = key.sign(nonce).into();
            }
        }
        Ok(hello.to_string())
    }

    /// What to allow a user, for people.
    pub fn rights(&self) -> String {
        let (bucket, inbox) = (&self.bucket, &self.inbox);
        format!(
            "allow it to publish to $KV.{bucket}.cluster.*, $JS.API.STREAM.INFO.KV_{bucket}, \
             $JS.API.STREAM.MSG.GET.KV_{bucket} and $JS.API.CONSUMER.CREATE.KV_{bucket}.> (and to \
             $JS.API.STREAM.CREATE.KV_{bucket}, if it shall make the bucket), and to subscribe to {inbox}.>"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/base")).map_err(|bad| bad.rule)
    }

    async fn hello(url: &str) -> serde_json::Value {
        let address = parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"));
        serde_json::from_str(&address.hello(None).await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn who_asks_is_said_in_one_of_four_ways() {
        let user = hello("nats://us%40er:p%40ss%2F%3F%23%25@h").await;
        assert_eq!(
            (&user["user"], &user["pass"]),
            (&"us@er".into(), &"p@ss/?#%".into())
        );
        assert_eq!(hello("nats://s3cr%2Fet@h").await["auth_token"], "s3cr/et");
        assert!(hello("nats://h").await.get("user").is_none());
        for (url, word) in [
            ("nats://u:p@h?creds=x", "once"),
            ("nats://h?creds=x&nkey=y", "once"),
            ("nats://t@h?nkey=y", "once"),
            ("nats://:p@h", "user name"),
        ] {
            let rule = parse(url).map(|_| url).unwrap_err();
            assert!(rule.contains(word), "{url}: {rule}");
        }
        let file = parse("nats://h?creds=absent.creds")
            .unwrap()
            .hello(None)
            .await;
        assert!(file.unwrap_err().contains("/base/absent.creds"));
    }

    #[test]
    fn hosts_buckets_and_encryption() {
        for (url, shown, wants_tls) in [
            ("nats://h", "nats://h:4222 (bucket whenleader)", false),
            (
                "tls://u:secret@a:1,[::1]?bucket=my_B-1&replicas=3",
                "tls://a:1,[::1]:4222 (bucket my_B-1)",
                true,
            ),
            (
                "nats://h?ca=c.pem",
                "nats://h:4222 (bucket whenleader)",
                true,
            ),
            (
                "nats://h?tlsFirst",
                "nats://h:4222 (bucket whenleader)",
                true,
            ),
            (
                "NATS://h/?inbox=_I.a",
                "nats://h:4222 (bucket whenleader)",
                false,
            ),
        ] {
            let address = parse(url).unwrap_or_else(|rule| panic!("{url}: must {rule}"));
            assert_eq!(address.shown, shown, "{url}");
            assert_eq!(address.wants_tls, wants_tls, "{url}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_no_refusal_repeats_what_may_be_a_password() {
        for url in [
            "nats:h",
            "nats://",
            "nats:///x",
            "nats://h/hunter2",
            "nats://h?hunter2",
            "nats://u:hunter2@h?bucket=",
            "nats://u:hunter2@h?bucket=a.b",
            "nats://u:hunter2@h?bucket=hunter2*",
            "nats://u:hunter2@h?replicas=0",
            "nats://u:hunter2@h?replicas=x",
            "nats://u:hunter2@h?inbox=",
            "nats://u:hunter2@h?inbox=a..b",
            "nats://u:hunter2@h?inbox=a.*",
            "nats://u:hunter2@h?tlsFirst=hunter2",
            "nats://u:hunter2@h?cert=x",
            "nats://u:hunter2@h?wss=1",
        ] {
            let rule = parse(url).map(|_| url).unwrap_err();
            assert!(!rule.contains("hunter2"), "{url}: {rule}");
        }
    }
}
