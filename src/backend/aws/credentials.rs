//! Who asks: the keys that requests are signed with, from wherever AWS's programs look for them, and new ones
//! before the old ones expire.
//!
//! Looking for keys reads files and asks other servers, so it goes on beside the requests: while keys are
//! merely old, requests use them until the new ones are there.
//!
//! The first place that is set up counts, also if it fails: a role that cannot be had must not become another
//! one, which a node has for quite other work.

use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider, Credential,
    ECSCredentialProvider, IMDSv2CredentialProvider, RequestSigner, StaticCredentialProvider,
};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ErrorKind, ProvideCredential, Signer, StaticEnv};
use tokio::sync::watch;
use tokio::time::timeout;

use super::REFUSED;
use super::ask_around::{Files, Requests};
use super::surroundings::{Profile, Surroundings};
use crate::backend::BackendError;
use crate::backend::blocking::blocking;
use crate::backend::http::excerpt;
use crate::locked::locked;

/// Keys are replaced so long before they expire, or in the second half of their time.
const BEFORE_EXPIRY: Duration = Duration::from_secs(5 * 60);
/// No looking for keys takes longer.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
/// After a look that failed beside the requests, the next one begins no earlier.
const PAUSE: Duration = Duration::from_secs(10);
/// Keys that were refused are asked for anew, unless they are as new as this.
const NEW: Duration = Duration::from_secs(5);
/// Profiles that lead to each other have an end.
const LONGEST_CHAIN: u32 = 5;

/// The keys of one store.
pub(super) struct Keyring {
    source: Arc<Source>,
    slot: Arc<Mutex<Slot>>,
}

/// Where keys come from.
struct Source {
    /// From the URL.
    own: Option<Credential>,
    region: String,
    around: fn() -> Surroundings,
}

type Found = Result<Arc<Keys>, BackendError>;

#[derive(Default)]
struct Slot {
    current: Option<Arc<Keys>>,
    looking: Option<watch::Receiver<Option<Found>>>,
    /// No look begins before.
    rest_until: Option<Instant>,
    closed: bool,
}

/// Holds a secret: it is never shown.
pub(super) struct Keys {
    pub credential: Credential,
    found: Instant,
    /// When they should be replaced. On the wall clock, as it is what their expiry was given by, and what goes
    /// on while the machine sleeps.
    old_at: Option<SystemTime>,
}

impl Keyring {
    pub fn new(own: Option<Credential>, region: &str, around: fn() -> Surroundings) -> Self {
        Self {
            source: Arc::new(Source {
                own,
                region: region.to_owned(),
                around,
            }),
            slot: Arc::default(),
        }
    }

    pub async fn current(&self) -> Found {
        let mut looking = {
            let mut slot = locked(&self.slot);
            if slot.closed {
                return Err(BackendError::transient("closed", "this store was closed"));
            }
            match &slot.current {
                Some(keys) => {
                    let keys = Arc::clone(keys);
                    let now = Instant::now();
                    let rested = slot.rest_until.is_none_or(|until| now >= until);
                    if keys.are_old() && rested && slot.looking.is_none() {
                        slot.looking = Some(self.look());
                    }
                    return Ok(keys);
                }
                None => slot.looking.get_or_insert_with(|| self.look()).clone(),
            }
        };
        match looking.wait_for(Option::is_some).await {
            Ok(found) => found.clone().expect("waited for"),
            Err(_) => Err(BackendError::transient(
                REFUSED,
                "looking for AWS credentials failed in an unknown way",
            )),
        }
    }

    /// These were refused. Returns whether others may be had.
    pub fn refused(&self, keys: &Arc<Keys>) -> bool {
        let mut slot = locked(&self.slot);
        match &slot.current {
            Some(current) if Arc::ptr_eq(current, keys) => {
                let may_differ = self.source.own.is_none() && keys.found.elapsed() >= NEW;
                if may_differ {
                    slot.current = None;
                }
                may_differ
            }
            _ => true,
        }
    }

    /// No keys are looked for any more.
    pub fn close(&self) {
        let mut slot = locked(&self.slot);
        slot.closed = true;
        slot.current = None;
    }

    fn look(&self) -> watch::Receiver<Option<Found>> {
        let (tell, told) = watch::channel(None);
        let (source, slot) = (Arc::clone(&self.source), Arc::clone(&self.slot));
        tokio::spawn(async move {
            let found = source.look().await.map(Arc::new);
            {
                let mut slot = locked(&slot);
                slot.looking = None;
                match &found {
                    Ok(_) if slot.closed => {}
                    Ok(keys) => slot.current = Some(Arc::clone(keys)),
                    Err(error) => {
                        slot.rest_until = Some(Instant::now() + PAUSE);
                        tracing::debug!(%error, "no new AWS credentials");
                    }
                }
            }
            tell.send_replace(Some(found));
        });
        told
    }
}

impl Keys {
    fn of(credential: Credential) -> Self {
        let now = SystemTime::now();
        let expires = credential.expires_in.map(Timestamp::as_system_time);
        let old_at = expires.map(|expires| {
            let left = expires.duration_since(now).unwrap_or_default();
            expires - BEFORE_EXPIRY.min(left / 2)
        });
        Self {
            credential,
            found: Instant::now(),
            old_at,
        }
    }

    fn are_old(&self) -> bool {
        self.old_at.is_some_and(|at| SystemTime::now() >= at)
    }
}

impl Source {
    async fn look(&self) -> Result<Keys, BackendError> {
        if let Some(own) = &self.own {
            return Ok(Keys::of(own.clone()));
        }
        let around = (self.around)();
        let look = Look::new(&around, &self.region);
        match timeout(LONGEST_LOOK, look.everywhere()).await {
            Ok(found) => found.map(Keys::of),
            Err(_) => Err(BackendError::transient(
                "timeout",
                format!("no AWS credentials within {} s", LONGEST_LOOK.as_secs()),
            )),
        }
    }
}

/// One look at everything that may have keys.
struct Look<'a> {
    around: &'a Surroundings,
    region: &'a str,
    context: Context,
}

type Looked = Result<Option<Credential>, BackendError>;

impl<'a> Look<'a> {
    fn new(around: &'a Surroundings, region: &'a str) -> Self {
        let env = StaticEnv {
            home_dir: None,
            envs: around.vars().clone(),
        };
        let context = Context::new()
            .with_env(env)
            .with_file_read(Files)
            .with_http_send(Requests::new(around));
        Self {
            around,
            region,
            context,
        }
    }

    async fn everywhere(&self) -> Result<Credential, BackendError> {
        let name = self.around.profile_name().to_owned();
        let is_named = self.around.var("AWS_PROFILE").is_some();
        if let Some(keys) = self.in_environment()? {
            return Ok(keys);
        }
        if is_named && let Some(keys) = self.in_profile(&name, 0).await? {
            return Ok(keys);
        }
        if let Some(keys) = self.by_web_identity().await? {
            return Ok(keys);
        }
        if !is_named && let Some(keys) = self.in_profile(&name, 0).await? {
            return Ok(keys);
        }
        if let Some(keys) = self.of_container().await? {
            return Ok(keys);
        }
        self.of_machine().await
    }

    fn in_environment(&self) -> Looked {
        let [id, secret, token] = [
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
        ]
        .map(|name| self.around.var(name));
        match (id, secret) {
            (Some(id), Some(secret)) => Ok(Some(credential(id, secret, token))),
            (None, None) => Ok(None),
            _ => Err(refused(
                "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set: set both, or none",
            )),
        }
    }

    async fn profile(&self, name: &str) -> Result<Option<Profile>, BackendError> {
        let (around, name) = (self.around.clone(), name.to_owned());
        let read = blocking(move || around.profile(&name)).await;
        read.map_err(refused)
    }

    async fn in_profile(&self, name: &str, depth: u32) -> Looked {
        let Some(profile) = self.profile(name).await? else {
            if name == "default" && depth == 0 {
                return Ok(None);
            }
            let files = self.around.files();
            let files: Vec<_> = files
                .iter()
                .flatten()
                .map(|file| file.display().to_string())
                .collect();
            return Err(refused(format!(
                "there is no AWS profile {name} in {}",
                files.join(" and ")
            )));
        };
        let get = |name: &str| {
            profile
                .get(name)
                .map(String::as_str)
                .filter(|text| !text.is_empty())
        };
        if let Some(role) = get("role_arn") {
            let keys = self.of_role(name, role, &get, depth).await;
            return keys.map(Some);
        }
        if let (Some(id), Some(secret)) = (get("aws_access_key_id"), get("aws_secret_access_key")) {
            return Ok(Some(credential(id, secret, get("aws_session_token"))));
        }
        let unknown = [
            "credential_process",
            "sso_session",
            "sso_start_url",
            "login_session",
        ];
        if let Some(unknown) = unknown.into_iter().find(|name| get(name).is_some()) {
            return Err(refused(format!(
                "the AWS profile {name} gets its keys by {unknown}, which is for people at a terminal: put keys into the environment with `eval \"$(aws configure export-credentials --profile {name} --format env)\"`, or give this process a role"
            )));
        }
        if depth > 0 {
            return Err(refused(format!("the AWS profile {name} has no keys")));
        }
        Ok(None)
    }

    /// The role that a profile names.
    async fn of_role<'p>(
        &self,
        name: &str,
        role: &str,
        get: &(dyn Fn(&str) -> Option<&'p str> + Sync),
        depth: u32,
    ) -> Result<Credential, BackendError> {
        let session = get("role_session_name")
            .or(self.around.var("AWS_ROLE_SESSION_NAME"))
            .unwrap_or("whenleader");
        if let Some(file) = get("web_identity_token_file") {
            let provider = AssumeRoleWithWebIdentityCredentialProvider::with_config(
                role.to_owned(),
                self.around.expanded(file),
            )
            .with_role_session_name(session.to_owned());
            return self.with_web_identity(provider).await;
        }
        if depth == LONGEST_CHAIN {
            return Err(refused(format!(
                "the AWS profile {name} is one of a row that does not end: each names another one as its source_profile"
            )));
        }
        let base = match (get("source_profile"), get("credential_source")) {
            (Some(source), _) if source == name => {
                match (get("aws_access_key_id"), get("aws_secret_access_key")) {
                    (Some(id), Some(secret)) => {
                        Some(credential(id, secret, get("aws_session_token")))
                    }
                    _ => None,
                }
            }
            (Some(source), _) => Box::pin(self.in_profile(source, depth + 1)).await?,
            (None, Some("Environment")) => self.in_environment()?,
            (None, Some("EcsContainer")) => self.of_container().await?,
            (None, Some("Ec2InstanceMetadata")) => Some(self.of_machine().await?),
            _ => None,
        };
        let Some(base) = base else {
            return Err(refused(format!(
                "the AWS profile {name} names the role {role}, and nobody who may take it: it needs a source_profile with keys, or a credential_source"
            )));
        };
        if get("mfa_serial").is_some() {
            return Err(refused(format!(
                "the AWS profile {name} asks for a code of an MFA device, which no service can give"
            )));
        }
        let mut static_keys =
            StaticCredentialProvider::new(&base.access_key_id, &base.secret_access_key);
        if let Some(token) = &base.session_token {
            static_keys = static_keys.with_session_token(token);
        }
        let signer = RequestSigner::new("sts", self.region);
        let signer = Signer::new(self.context.clone(), static_keys, signer);
        let mut provider = AssumeRoleCredentialProvider::new(role.to_owned(), signer)
            .with_role_session_name(session.to_owned())
            .with_region(self.region.to_owned())
            .with_regional_sts_endpoint();
        if let Some(id) = get("external_id") {
            provider = provider.with_external_id(id.to_owned());
        }
        if let Some(seconds) = get("duration_seconds").and_then(|text| text.parse().ok()) {
            provider = provider.with_duration_seconds(seconds);
        }
        let taken = provider.provide_credential(&self.context).await;
        let what = || format!("the role {role} of the AWS profile {name}");
        taken
            .map_err(|error| failed(&what(), &error))?
            .ok_or_else(|| refused(format!("{} was not given", what())))
    }

    async fn by_web_identity(&self) -> Looked {
        let vars =
            ["AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"].map(|name| self.around.var(name));
        let [Some(_), Some(_)] = vars else {
            return Ok(None);
        };
        let mut provider = AssumeRoleWithWebIdentityCredentialProvider::new();
        if self.around.var("AWS_ROLE_SESSION_NAME").is_none() {
            provider = provider.with_role_session_name("whenleader".into());
        }
        self.with_web_identity(provider).await.map(Some)
    }

    async fn with_web_identity(
        &self,
        provider: AssumeRoleWithWebIdentityCredentialProvider,
    ) -> Result<Credential, BackendError> {
        let provider = provider
            .with_region(self.region.to_owned())
            .with_regional_sts_endpoint();
        let taken = provider.provide_credential(&self.context).await;
        let what = "the role of this process's web identity";
        taken
            .map_err(|error| failed(what, &error))?
            .ok_or_else(|| refused(format!("{what} was not given")))
    }

    /// On ECS, and with EKS Pod Identity.
    async fn of_container(&self) -> Looked {
        let given = ECSCredentialProvider::new()
            .provide_credential(&self.context)
            .await;
        given.map_err(|error| failed("the role of this container", &error))
    }

    /// On EC2. It is asked last, since nothing tells whether it is there.
    async fn of_machine(&self) -> Result<Credential, BackendError> {
        const NONE: &str = "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the task, the pod or the machine a role";
        let given = IMDSv2CredentialProvider::new()
            .provide_credential(&self.context)
            .await;
        match given {
            Ok(Some(keys)) => Ok(keys),
            Ok(None) => Err(refused(format!(
                "{NONE} (the machine's was not looked for: AWS_EC2_METADATA_DISABLED is set)"
            ))),
            Err(error) if error.to_string().contains("failed to connect") => Err(refused(format!(
                "{NONE} (there is no machine that gives any: {})",
                words(&error)
            ))),
            Err(error) => Err(failed("the role of this machine", &error)),
        }
    }
}

fn credential(id: &str, secret: &str, token: Option<&str>) -> Credential {
    Credential {
        access_key_id: id.to_owned(),
        secret_access_key: secret.to_owned(),
        session_token: token.map(str::to_owned),
        expires_in: None,
    }
}

fn refused(message: impl Into<String>) -> BackendError {
    BackendError::fatal(REFUSED, message)
}

fn failed(what: &str, error: &Error) -> BackendError {
    let message = format!("{what} cannot be had: {}", words(error));
    match error.kind() {
        ErrorKind::CredentialInvalid
        | ErrorKind::PermissionDenied
        | ErrorKind::ConfigInvalid
        | ErrorKind::RequestInvalid => BackendError::fatal(REFUSED, message),
        _ => BackendError::transient("unreachable", message),
    }
}

/// An error and its causes. They hold no secret.
pub(super) fn words(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    excerpt(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_YET: Duration = Duration::from_secs(60);

    fn around(vars: &[(&str, &str)]) -> Surroundings {
        let vars = vars
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        Surroundings::of(vars, None)
    }

    fn with_keys() -> Surroundings {
        around(&[
            ("AWS_ACCESS_KEY_ID", "new"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ])
    }

    fn with_half() -> Surroundings {
        around(&[("AWS_ACCESS_KEY_ID", "new")])
    }

    /// Whose keys are old, and not yet expired.
    fn old(around: fn() -> Surroundings) -> Keyring {
        let keyring = Keyring::new(None, "eu-central-1", around);
        let mut keys = Keys::of(Credential {
            expires_in: Some(Timestamp::now() + NOT_YET),
            ..credential("old", "secret", None)
        });
        keys.old_at = Some(SystemTime::now());
        keys.found -= NEW;
        locked(&keyring.slot).current = Some(Arc::new(keys));
        keyring
    }

    async fn key(keyring: &Keyring) -> String {
        keyring
            .current()
            .await
            .unwrap()
            .credential
            .access_key_id
            .clone()
    }

    #[test]
    fn keys_grow_old_well_before_they_expire() {
        for (lasts, earlier) in [(3600, 300), (900, 300), (400, 200)] {
            let expires = Timestamp::now() + Duration::from_secs(lasts);
            let keys = Keys::of(Credential {
                expires_in: Some(expires),
                ..credential("a", "b", None)
            });
            let before = expires
                .as_system_time()
                .duration_since(keys.old_at.unwrap());
            let off = before.unwrap().as_secs_f64() - f64::from(earlier);
            assert!(off.abs() < 5.0, "{lasts}: {off}");
        }
        assert!(!Keys::of(credential("a", "b", None)).are_old());
    }

    #[tokio::test]
    async fn old_keys_serve_until_new_ones_are_there() {
        let keyring = old(with_keys);
        assert_eq!(key(&keyring).await, "old");
        while key(&keyring).await == "old" {
            tokio::task::yield_now().await;
        }
        assert_eq!(key(&keyring).await, "new");
    }

    #[tokio::test]
    async fn old_keys_serve_where_no_new_ones_are_to_be_had() {
        let keyring = old(with_half);
        for _ in 0..100 {
            assert_eq!(key(&keyring).await, "old");
            tokio::task::yield_now().await;
        }
        let slot = locked(&keyring.slot);
        assert!(slot.looking.is_none() && slot.rest_until.is_some());
    }

    #[tokio::test]
    async fn keys_that_were_refused_are_looked_for_again_unless_they_are_new() {
        let keyring = old(with_keys);
        let keys = keyring.current().await.unwrap();
        assert!(keyring.refused(&keys));
        assert_eq!(key(&keyring).await, "new");
        assert!(keyring.refused(&keys), "there are others already");
        let new = keyring.current().await.unwrap();
        assert!(!keyring.refused(&new));
        let own = Keyring::new(Some(credential("own", "s", None)), "x", with_keys);
        let keys = own.current().await.unwrap();
        assert!(!own.refused(&keys), "a URL does not change");
        own.close();
        assert!(own.current().await.is_err());
    }

    #[tokio::test]
    async fn whoever_shows_a_keyring_shows_no_secret() {
        let error = Keyring::new(None, "x", with_half)
            .current()
            .await
            .err()
            .unwrap();
        assert_eq!(error.code, REFUSED);
        assert!(!error.message.contains("new"), "{error}");
    }
}
