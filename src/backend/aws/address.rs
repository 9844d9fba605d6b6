//! Where a service of AWS, or one that speaks like it, is to be found: by its URL, and by what is around this
//! process.

use std::path::{Path, PathBuf};

use reqsign_aws_v4::Credential;

use super::surroundings::Surroundings;
use crate::backend::BadStore;
use crate::backend::url::{Host, StoreUrl};

/// A server that stands in for AWS's own, or one of those.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub tls: bool,
    pub host: Host,
}

/// What a URL says, whichever service it is for.
pub(super) struct Address {
    /// The bucket or the table.
    pub name: Option<String>,
    /// What stands behind it, without slashes at its ends.
    pub path: String,
    pub region: Option<String>,
    pub endpoint: Option<Endpoint>,
    pub ca: Option<PathBuf>,
    pub own_keys: Option<Credential>,
    /// What the service alone knows, in the order in which it asked.
    pub flags: Vec<Option<bool>>,
}

/// Where the service is, with everything known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub region: String,
    pub endpoint: Endpoint,
    /// It is not AWS's own.
    pub is_foreign: bool,
}

const PARAMETERS: [&str; 3] = ["region", "endpoint", "ca"];

impl Address {
    /// `flags`: parameters of the service's own that are true or false.
    pub fn parse(
        url: &str,
        example: &str,
        flags: &[&'static str],
        base_dir: &Path,
    ) -> Result<Self, BadStore> {
        let mut url = StoreUrl::parse(url, example)?;
        let region = url.take("region").filter(|region| !region.is_empty());
        if region.as_deref().is_some_and(|region| !is_region(region)) {
            return Err(BadStore::url("name a region such as ?region=eu-central-1"));
        }
        let endpoint = url.take("endpoint").filter(|text| !text.is_empty());
        let endpoint = endpoint.map(|text| Endpoint::parse(&text)).transpose();
        let endpoint = endpoint.map_err(|rule| {
            BadStore::url(format!(
                "name a server such as ?endpoint=https://host:9000: {rule}"
            ))
        })?;
        let ca = url.take_path("ca", base_dir);
        let mut known: Vec<_> = PARAMETERS.to_vec();
        known.extend(flags);
        let flags = flags.iter().map(|name| match url.take(name).as_deref() {
            None => Ok(None),
            Some("true" | "") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(BadStore::url(format!("say true or false in ?{name}"))),
        });
        let flags = flags.collect::<Result<_, _>>()?;
        url.refuse_others(&known)?;
        if ca.is_some() && endpoint.as_ref().is_none_or(|endpoint| !endpoint.tls) {
            return Err(BadStore::url(
                "have an ?endpoint=https://... if it has ?ca: AWS's own certificates are known",
            ));
        }
        let own_keys = match (url.user.take(), url.password.take()) {
            (Some(id), Some(secret)) => Some(Credential {
                access_key_id: id,
                secret_access_key: secret,
                ..Credential::default()
            }),
            (None, None) => None,
            _ => {
                return Err(BadStore::url(
                    "hold both an access key and its secret, key:secret@, or neither, and take them from the environment",
                ));
            }
        };
        let name = match &*url.hosts {
            [] => None,
            [Host { name, port: None }] => Some(name.clone()),
            _ => return Err(BadStore::url(format!("name one place: {example}"))),
        };
        Ok(Self {
            name,
            path: url.path.trim_matches('/').to_owned(),
            region,
            endpoint,
            ca,
            own_keys,
            flags,
        })
    }

    /// Reads files, and so blocks. `service` is `s3` or `dynamodb`. `Err`: what is missing.
    pub fn resolve(&self, service: &str, around: &Surroundings) -> Result<Target, String> {
        let profile = around.profile(around.profile_name())?.unwrap_or_default();
        let in_profile = |name: &str| profile.get(name).filter(|text| !text.is_empty());
        let endpoint = match (
            &self.endpoint,
            around.endpoint(&service.to_ascii_uppercase()),
        ) {
            (Some(endpoint), _) => Some(endpoint.clone()),
            (None, Some(text)) => Some(
                Endpoint::parse(text)
                    .map_err(|rule| format!("AWS_ENDPOINT_URL must be a URL: {rule}"))?,
            ),
            (None, None) => match in_profile("endpoint_url") {
                Some(text) => Some(Endpoint::parse(text).map_err(|rule| {
                    format!(
                        "endpoint_url of the AWS profile {} must be a URL: {rule}",
                        around.profile_name()
                    )
                })?),
                None => None,
            },
        };
        let region = self
            .region
            .as_deref()
            .or(around.var("AWS_REGION"))
            .or(around.var("AWS_DEFAULT_REGION"))
            .or(in_profile("region").map(String::as_str));
        let region = match (region, &endpoint) {
            (Some(region), _) if is_region(region) => region.to_owned(),
            (Some(region), _) => return Err(format!("{region:?} is no region of AWS")),
            // Whoever stands in for AWS has none, and takes this one.
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => {
                return Err(
                    "nobody says which region it is in: add ?region=eu-central-1 (or which it is) to the URL, or set AWS_REGION"
                        .into(),
                );
            }
        };
        Ok(Target {
            is_foreign: endpoint.is_some(),
            endpoint: endpoint.unwrap_or_else(|| Endpoint {
                tls: true,
                host: Host {
                    name: format!("{service}.{region}.{}", suffix(&region)),
                    port: None,
                },
            }),
            region,
        })
    }
}

impl Endpoint {
    /// `Err`: what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        const EXAMPLE: &str = "https://host:9000";
        let mut url = StoreUrl::parse(text, EXAMPLE).map_err(|bad| bad.rule)?;
        let tls = match &*url.scheme {
            "https" => true,
            "http" => false,
            _ => return Err(format!("begin with http:// or https://, as {EXAMPLE}")),
        };
        match (url.hosts.pop(), url.hosts.is_empty(), &*url.path) {
            (Some(host), true, "") if url.user.is_none() && url.refuse_others(&[]).is_ok() => {
                Ok(Self { tls, host })
            }
            _ => Err(format!("name one host and no path, as {EXAMPLE}")),
        }
    }

    pub fn default_port(&self) -> u16 {
        if self.tls { 443 } else { 80 }
    }

    /// As requests name it: without a port that goes without saying.
    pub fn authority(&self) -> String {
        let default = self.default_port();
        let full = self.host.with_port(default);
        match full.strip_suffix(&format!(":{default}")) {
            Some(short) => short.to_owned(),
            None => full,
        }
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }
}

/// It becomes a part of a host's name.
fn is_region(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(is_fine)
}

/// Of AWS's own servers in that region.
fn suffix(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("cn") => "amazonaws.com.cn",
        Some("eusc") => "amazonaws.eu",
        _ => "amazonaws.com",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, "s3://bucket", &["path_style"], Path::new("/b")).map_err(|bad| bad.rule)
    }

    fn around(vars: &[(&str, &str)]) -> Surroundings {
        let vars = vars
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        Surroundings::of(vars, None)
    }

    #[test]
    fn a_url_says_where_and_by_whom() {
        let address = parse("s3://AKIA:se%2Fcr%2Bet@b/my/leases/?region=eu-central-1&endpoint=https://h:9000&path_style=false&ca=x.pem").unwrap();
        assert_eq!(address.name.as_deref(), Some("b"));
        assert_eq!(address.path, "my/leases");
        assert_eq!(address.flags, [Some(false)]);
        assert_eq!(address.ca, Some("/b/x.pem".into()));
        let keys = address.own_keys.as_ref().unwrap();
        assert_eq!(keys.secret_access_key, "se/cr+et");
        let target = address.resolve("s3", &around(&[])).unwrap();
        assert_eq!(target.endpoint.url(), "https://h:9000");
        assert!(target.is_foreign);
        for url in [
            "s3://b,c",
            "s3://b:80",
            "s3://key@b",
            "s3://b?region=Central!",
            "s3://b?endpoint=h:9000",
            "s3://b?endpoint=ftp://h",
            "s3://b?endpoint=http://h/x",
            "s3://b?endpoint=http://u:p@h",
            "s3://b?path_style=maybe",
            "s3://b?other=1",
            "s3://b?ca=x.pem",
            "s3://b?ca=x.pem&endpoint=http://h",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn what_the_url_leaves_out_is_around() {
        let address = parse("s3://b").unwrap();
        let region = [("AWS_DEFAULT_REGION", "cn-north-1")];
        let target = address.resolve("s3", &around(&region)).unwrap();
        assert_eq!(
            target.endpoint.url(),
            "https://s3.cn-north-1.amazonaws.com.cn"
        );
        assert!(!target.is_foreign);
        let mut vars = vec![
            ("AWS_REGION", "eu-central-1"),
            ("AWS_DEFAULT_REGION", "cn-north-1"),
            ("AWS_ENDPOINT_URL", "http://all:1"),
        ];
        let target = address.resolve("s3", &around(&vars)).unwrap();
        assert_eq!(
            (&*target.endpoint.url(), &*target.region),
            ("http://all:1", "eu-central-1")
        );
        vars.push(("AWS_ENDPOINT_URL_DYNAMODB", "http://[::1]:80"));
        let target = address.resolve("dynamodb", &around(&vars)).unwrap();
        assert_eq!(target.endpoint.url(), "http://[::1]");
        vars.push(("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"));
        let target = address.resolve("dynamodb", &around(&vars)).unwrap();
        assert_eq!(
            target.endpoint.authority(),
            "dynamodb.eu-central-1.amazonaws.com"
        );
        let refused = address.resolve("s3", &around(&[])).unwrap_err();
        assert!(refused.contains("?region="), "{refused}");
    }
}
