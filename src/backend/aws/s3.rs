//! S3, and other stores of objects that honour conditional writes.
//!
//! One object holds the record of one election, as JSON text. It is made with `If-None-Match: *`, and every
//! later write names the `ETag` that was read (`If-Match`); the store refuses all but one of those who name the
//! same. An `ETag` is a hash of the content, and the content has a random word that is new in each write. Nothing
//! judges expiry and nothing notifies: followers look, and [`Observed`] does the rest. A released lease is an
//! object that names nobody: nothing is deleted, so tokens go on growing.
//!
//! Servers exist that speak S3 and do not honour the conditions. They are found out before the first attempt, on
//! an object of their own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use http::header::{ETAG, HeaderMap};
use reqsign_core::hash::hex_sha256;

use super::address::{Address, Endpoint, Target};
use super::failure::{About, failure, said};
use super::{Call, REFUSED, Service};
use crate::backend::http::Answer;
use crate::backend::observed::{Document, Kept, Observed, ObservedStore, Values};
use crate::backend::{
    Backend, BackendError, BadStore, Capabilities, StoreOptions, UNSUITABLE, escaped,
};
use crate::clock::Clock;
use crate::identity::default_instance_id;
use crate::lease::{ElectionName, FailureKind, Owner, Token};
use crate::random::random_u64;

const EXAMPLE: &str = "s3://<bucket>/<prefix>?region=<region>";
/// What signatures leave as it is, beside letters and digits.
const UNRESERVED: &str = "-._~";
const LONGEST_PREFIX: usize = 200;
/// Percent-encoded: servers that keep objects as files allow 255 bytes, AWS allows 1024 with the prefix.
const LONGEST_NAME: usize = 180;
/// Renewals that follow each other faster would be throttled, and cost more than they are worth.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// See the module's description.
#[derive(Debug)]
struct Objects {
    service: Service,
    bucket: String,
    /// With the slash at its end, if there is one.
    prefix: String,
    /// Whether the store says "denied" of what is not there, as AWS does to those who may not list.
    hides_absence: AtomicBool,
}

/// An object with what it says. Its version is its `ETag`.
type Object = Kept<String>;

/// Makes the backend. Reads nothing and connects to nothing yet.
pub(in crate::backend) fn open(
    url: &str,
    options: &StoreOptions,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, BadStore> {
    let objects = Objects::new(url, options)?;
    Ok(Arc::new(Observed::with_options(objects, options, clock)))
}

impl Objects {
    fn new(url: &str, options: &StoreOptions) -> Result<Self, BadStore> {
        let base_dir: &Path = &options.base_dir;
        let address = Address::parse(url, EXAMPLE, &["path_style"], base_dir)?;
        let bucket = address.name.clone().unwrap_or_default();
        if bucket.len() < 3
            || !bucket
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        {
            return Err(BadStore::url(format!("name a bucket: {EXAMPLE}")));
        }
        if bucket.ends_with("--x-s3") {
            return Err(BadStore::url(
                "name a general purpose bucket: directory buckets (S3 Express One Zone) sign in another way, which is not supported",
            ));
        }
        let prefix = address.path.clone();
        let is_bad = |part: &str| matches!(part, "" | "." | "..");
        if !prefix.is_empty()
            && (prefix.split('/').any(is_bad)
                || prefix.chars().any(char::is_control)
                || prefix.len() > LONGEST_PREFIX)
        {
            return Err(BadStore::url(format!(
                "have a prefix of at most {LONGEST_PREFIX} bytes behind the bucket, without empty parts, dots alone, or control characters"
            )));
        }
        Ok(Self {
            bucket,
            prefix: if prefix.is_empty() {
                prefix
            } else {
                format!("{prefix}/")
            },
            service: Service::new("s3", address, place, options),
            hides_absence: AtomicBool::new(false),
        })
    }

    /// Slashes and dots of a name would be parts of a path, and not every server takes long ones: those are
    /// told apart by a hash.
    fn key(&self, election: &ElectionName) -> String {
        let (prefix, name) = (&self.prefix, escaped(election.as_str(), '%', UNRESERVED));
        if name.len() <= LONGEST_NAME {
            return format!("{prefix}cluster:{name}");
        }
        let hash = hex_sha256(election.as_str().as_bytes());
        format!("{prefix}long:{}-{hash}", &name[..LONGEST_NAME - hash.len()])
    }

    async fn path(&self, key: &str) -> Result<String, BackendError> {
        let target = self.service.target().await?;
        let key = escaped(key, '%', &format!("{UNRESERVED}/"));
        Ok(if is_path_style(&self.service.address, target) {
            format!("/{}/{key}", self.bucket)
        } else {
            format!("/{key}")
        })
    }

    async fn ask(
        &self,
        method: Method,
        key: &str,
        headers: Vec<(&'static str, &str)>,
        body: Vec<u8>,
    ) -> Result<Answer, BackendError> {
        let path = self.path(key).await?;
        let writes = method != Method::GET;
        let call = Call {
            method,
            path: &path,
            headers,
            body,
            writes,
        };
        self.service.ask(&call).await
    }

    async fn read_at(&self, key: &str) -> Result<Option<Object>, BackendError> {
        let answer = self.ask(Method::GET, key, Vec::new(), Vec::new()).await?;
        match answer.status {
            200 => Ok(Some(Kept::new(self.etag(&answer.headers)?, &answer.body))),
            404 if said(&answer).code == "NoSuchKey" => Ok(None),
            403 if said(&answer).code == "AccessDenied"
                && self.hides_absence.load(Ordering::Relaxed) =>
            {
                Ok(None)
            }
            _ => Err(self.failed(&answer, "read", false)),
        }
    }

    /// Writes over the object of that `ETag`, or where there is none. Returns the new one; `None`: refused.
    async fn write_at(
        &self,
        key: &str,
        document: &Document,
        over: Option<&str>,
    ) -> Result<Option<String>, BackendError> {
        let condition = match over {
            None => ("if-none-match", "*"),
            Some(etag) => ("if-match", etag),
        };
        let headers = vec![("content-type", "application/json"), condition];
        let body = document.text().into_bytes();
        let answer = self.ask(Method::PUT, key, headers, body).await?;
        match answer.status {
            200 => Ok(Some(self.etag(&answer.headers).map_err(unsure)?)),
            // Of a bucket that is not there it says so, too.
            404 if said(&answer).code == "NoSuchBucket" => Err(self.failed(&answer, "write", true)),
            404 | 409 | 412 if answer.asked_before => {
                // Perhaps by an earlier try of this very write.
                let found = self.read_at(key).await.map_err(unsure)?;
                let done = found.filter(|found| found.document.as_ref() == Some(document));
                Ok(done.map(|found| found.version))
            }
            404 | 409 | 412 => Ok(None),
            _ => Err(self.failed(&answer, "write", true)),
        }
    }

    fn etag(&self, headers: &HeaderMap) -> Result<String, BackendError> {
        let etag = headers.get(ETAG).and_then(|value| value.to_str().ok());
        etag.map(str::to_owned).ok_or_else(|| {
            BackendError::fatal(
                UNSUITABLE,
                format!(
                    "{} gives objects no ETag, so nothing can be written on a condition",
                    self.shown()
                ),
            )
        })
    }

    fn shown(&self) -> String {
        let Self { bucket, prefix, .. } = self;
        let prefix = prefix.trim_end_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        format!("S3 bucket {bucket}{slash}{prefix}{}", self.service.shown())
    }

    fn failed(&self, answer: &Answer, verb: &str, writes: bool) -> BackendError {
        let said = said(answer);
        let place = self.shown();
        if said.code == "NoSuchBucket" {
            return BackendError::fatal(
                "no-bucket",
                format!(
                    "{place} does not exist: create it (aws s3 mb s3://{}), or mend the URL",
                    self.bucket
                ),
            );
        }
        let text = String::from_utf8_lossy(&answer.body);
        if said.code == "InvalidRequest" && text.contains("Object Lock") {
            return BackendError::fatal(
                UNSUITABLE,
                format!(
                    "{place} keeps what is written for a time (Object Lock), and would keep every renewal: choose a bucket without it"
                ),
            );
        }
        if answer.status == 404 && said.code.is_empty() {
            return BackendError::transient(
                "unexpected",
                format!("what answers for {place} is no S3: 404 to a {verb}"),
            );
        }
        let region = self.service.reached.get();
        failure(
            answer,
            &About {
                place: &place,
                region: region.map_or("", |reached| &reached.target.region),
                rights: &|| self.rights(),
                writes,
            },
        )
    }

    fn rights(&self) -> String {
        let Self { bucket, prefix, .. } = self;
        let policy = serde_json::json!({
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": ["s3:GetObject", "s3:PutObject"],
                    "Resource": format!("arn:aws:s3:::{bucket}/{prefix}*"),
                },
                {
                    "Effect": "Allow",
                    "Action": "s3:DeleteObject",
                    "Resource": format!("arn:aws:s3:::{bucket}/{prefix}probe:*"),
                },
                { "Effect": "Allow", "Action": "s3:ListBucket", "Resource": format!("arn:aws:s3:::{bucket}") },
            ],
        });
        format!("Give its user or role this policy: {policy}")
    }

    /// Every request and every right that an election takes, on an object that is gone afterwards.
    async fn probe(&self) -> Result<(), BackendError> {
        let key = format!("{}probe:{:016x}", self.prefix, random_u64());
        let denied = match self.read_at(&key).await {
            Ok(_) => None,
            // Not there, or not to be read: it is told apart below.
            Err(error) if error.code == REFUSED => Some(error),
            Err(error) => return Err(error),
        };
        let document = probed();
        let etag = match self.write_at(&key, &document, None).await {
            Ok(Some(etag)) => etag,
            Ok(None) => {
                return Err(self.ignores(
                    "If-None-Match",
                    "an object that is not there cannot be made",
                ));
            }
            Err(error) => {
                // Only what surely was not written leaves nothing.
                if error.kind != FailureKind::Transient {
                    let _ = self.delete(&key).await;
                }
                return Err(error);
            }
        };
        let checked = self.check(&key, &document, &etag, denied).await;
        let deleted = self.delete(&key).await;
        checked.and(deleted)
    }

    async fn check(
        &self,
        key: &str,
        made: &Document,
        etag: &str,
        denied: Option<BackendError>,
    ) -> Result<(), BackendError> {
        let read = self.read_at(key).await;
        if let Some(denied) = denied {
            // What is there can be read, so the store only does not tell what is not there.
            read.as_ref().map_err(|_| denied)?;
            self.hides_absence.store(true, Ordering::Relaxed);
        }
        match read? {
            Some(found) if found.document.as_ref() == Some(made) && found.version == etag => {}
            _ => return Err(self.ignores("reads", "what was just written is not what is read")),
        }
        let put = async |over| self.write_at(key, &probed(), over).await;
        if put(None).await?.is_some() {
            return Err(self.ignores("If-None-Match", "an object that is there was made again"));
        }
        if put(Some("\"00000000000000000000000000000000\""))
            .await?
            .is_some()
        {
            let how = "somebody who did not know an object wrote over it";
            return Err(self.ignores("If-Match", how));
        }
        match put(Some(etag)).await? {
            Some(next) if next != etag => Ok(()),
            Some(_) => {
                let how = "another content has the same ETag, so whoever knew the one before could write over it";
                Err(self.ignores("ETag", how))
            }
            None => {
                let how = "somebody who knew an object could not write over it";
                Err(self.ignores("If-Match", how))
            }
        }
    }

    async fn delete(&self, key: &str) -> Result<(), BackendError> {
        let answer = self
            .ask(Method::DELETE, key, Vec::new(), Vec::new())
            .await?;
        match answer.status {
            200 | 204 | 404 => Ok(()),
            _ => Err(self.failed(&answer, "delete", true)),
        }
    }

    fn ignores(&self, what: &str, how: &str) -> BackendError {
        BackendError::fatal(
            UNSUITABLE,
            format!(
                "{} does not honour {what} ({how}), so two instances would lead: use a store that does, such as AWS S3 itself, or a newer version of this one; and see that no proxy in between takes the header away",
                self.shown()
            ),
        )
    }
}

/// Of nobody, and different each time.
fn probed() -> Document {
    let owner = Owner {
        instance: default_instance_id().clone(),
        nonce: random_u64(),
    };
    Document::first(&owner, Token::FIRST, SHORTEST_LEASE)
}

/// In a way that names the bucket in the path, and not in the host's name.
fn is_path_style(address: &Address, target: &Target) -> bool {
    let dotted = address.name.as_ref().is_some_and(|name| name.contains('.'));
    // A certificate for *.s3.amazonaws.com does not fit a name with more dots.
    address.flags[0].unwrap_or(target.is_foreign || dotted)
}

fn place(address: &Address, target: &Target) -> Endpoint {
    let mut endpoint = target.endpoint.clone();
    if !is_path_style(address, target)
        && let Some(bucket) = &address.name
    {
        endpoint.host.name = format!("{bucket}.{}", endpoint.host.name);
    }
    endpoint
}

/// Something was written all the same, perhaps.
fn unsure(error: BackendError) -> BackendError {
    BackendError::ambiguous(error.code, error.message)
}

#[async_trait]
impl Values for Objects {
    type Version = String;

    async fn get(&self, election: &ElectionName) -> Result<Option<Object>, BackendError> {
        self.read_at(&self.key(election)).await
    }

    async fn put(
        &self,
        election: &ElectionName,
        over: Option<&String>,
        document: &Document,
    ) -> Result<Option<String>, BackendError> {
        let key = self.key(election);
        let over = over.map(String::as_str);
        let written = self.write_at(&key, document, over).await?;
        if written.is_none()
            && over.is_none()
            && self.hides_absence.load(Ordering::Relaxed)
            && self.read_at(&key).await?.is_none()
        {
            // It is there, and cannot be read any more; or it was just deleted.
            return Err(BackendError::transient(
                REFUSED,
                format!(
                    "{} has that record and does not show it. {}",
                    self.shown(),
                    self.rights()
                ),
            ));
        }
        Ok(written)
    }
}

#[async_trait]
impl ObservedStore for Objects {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shortest_lease: SHORTEST_LEASE,
            notifies: false,
        }
    }

    fn describe(&self) -> String {
        self.shown()
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        self.probe().await
    }

    async fn close(&self) {
        self.service.close();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::surroundings::Surroundings;
    use super::*;

    fn objects(url: &str) -> Result<Objects, String> {
        Objects::new(url, &StoreOptions::new(".")).map_err(|bad| bad.rule)
    }

    fn endpoint(url: &str) -> String {
        let objects = objects(url).unwrap();
        let address = &objects.service.address;
        let target = address.resolve("s3", &Surroundings::of([], None)).unwrap();
        place(address, &target).url()
    }

    #[test]
    fn a_bucket_is_named_in_the_host_where_that_is_aws_and_in_the_path_elsewhere() {
        for (url, expected) in [
            (
                "s3://leases?region=eu-central-1",
                "https://leases.s3.eu-central-1.amazonaws.com",
            ),
            (
                "s3://my.leases?region=eu-central-1",
                "https://s3.eu-central-1.amazonaws.com",
            ),
            (
                "s3://leases?region=eu-central-1&path_style=true",
                "https://s3.eu-central-1.amazonaws.com",
            ),
            ("s3://leases?endpoint=http://h:9000", "http://h:9000"),
            (
                "s3://leases?endpoint=http://h:9000&path_style=false",
                "http://leases.h:9000",
            ),
        ] {
            assert_eq!(endpoint(url), expected, "{url}");
        }
    }

    #[test]
    fn what_is_no_bucket_or_no_prefix_is_refused() {
        for url in [
            "s3:leases",
            "s3://",
            "s3://ab",
            "s3://le%2Fases",
            "s3://leases--use1-az4--x-s3",
            "s3://leases/a//b",
            "s3://leases/../b",
            "s3://leases/a%0Ab",
            &format!("s3://leases/{}", "x".repeat(300)),
        ] {
            assert!(objects(url).is_err(), "{url}");
        }
        assert_eq!(objects("s3://leases").unwrap().prefix, "");
        assert_eq!(objects("s3://leases/a/b/").unwrap().prefix, "a/b/");
    }

    #[test]
    fn each_name_has_a_key_of_its_own_that_every_server_takes() {
        let objects = objects("s3://leases/p").unwrap();
        let long = |end: char| format!("{}{end}", "🦀".repeat(60));
        let names = [
            "leader".to_owned(),
            "a/b".into(),
            "a%2Fb".into(),
            "..".into(),
            "x".repeat(180),
            "x".repeat(181),
            long('a'),
            long('b'),
        ];
        let keys: BTreeSet<_> = names
            .iter()
            .map(|name| objects.key(&ElectionName::new(name).unwrap()))
            .collect();
        assert_eq!(keys.len(), names.len());
        assert!(
            keys.contains("p/cluster:leader") && keys.contains("p/cluster:a%2Fb"),
            "{keys:?}"
        );
        assert!(
            keys.iter()
                .all(|key| key.len() < 200 && !key[2..].contains('/')),
            "{keys:?}"
        );
    }
}
