//! What the stores of AWS, and of those who speak like it, have in common: where they are (`address`), who asks
//! (`credentials`), how a request is signed, and what a refusal means (`failure`).
//!
//! A request is signed with keys that were looked for before. One that is refused because its keys have expired
//! is signed anew, once, if there are others.

mod address;
mod ask_around;
mod credentials;
pub(super) mod dynamodb;
mod failure;
pub(super) mod s3;
mod surroundings;

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, Method, Request};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::hash::hex_sha256;
use reqsign_core::{Context, ErrorKind, SignRequest as _};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use self::address::{Address, Endpoint, Target};
use self::credentials::{Keyring, words};
use self::failure::{broken, said};
use self::surroundings::Surroundings;
use super::blocking::blocking;
use super::http::{Answer, Asked, Http};
use super::tls::Tls;
use super::{BackendError, StoreOptions, UNSUITABLE};

/// The code of what somebody may not do, or is not believed to be.
const REFUSED: &str = "refused";

/// One request, unsigned.
#[derive(Debug)]
struct Call<'a> {
    method: Method,
    /// Percent-encoded, with the slash that begins it.
    path: &'a str,
    headers: Vec<(&'static str, &'a str)>,
    body: Vec<u8>,
    /// Whether it may change anything.
    writes: bool,
}

/// The way to one service.
struct Service {
    /// As its servers and its signatures are named.
    name: &'static str,
    address: Arc<Address>,
    /// Which server requests go to.
    place: fn(&Address, &Target) -> Endpoint,
    options: StoreOptions,
    around: fn() -> Surroundings,
    reached: OnceCell<Reached>,
}

/// What is known once everything around was read.
struct Reached {
    target: Target,
    /// `https://host`
    base: String,
    http: Http,
    signer: RequestSigner,
    keyring: Keyring,
}

impl Service {
    fn new(
        name: &'static str,
        address: Address,
        place: fn(&Address, &Target) -> Endpoint,
        options: &StoreOptions,
    ) -> Self {
        Self {
            name,
            address: Arc::new(address),
            place,
            options: options.clone(),
            around: Surroundings::of_this_process,
            reached: OnceCell::new(),
        }
    }

    /// Where it is, as far as that is known already, in words behind a name.
    fn shown(&self) -> String {
        let (endpoint, region) = match self.reached.get() {
            Some(Reached { target, .. }) => (
                target.is_foreign.then_some(&target.endpoint),
                Some(&target.region),
            ),
            None => (self.address.endpoint.as_ref(), self.address.region.as_ref()),
        };
        match (endpoint, region) {
            (Some(endpoint), _) => format!(" at {}", endpoint.url()),
            (None, Some(region)) => format!(" in {region}"),
            (None, None) => String::new(),
        }
    }

    async fn target(&self) -> Result<&Target, BackendError> {
        Ok(&self.reach().await?.target)
    }

    async fn reach(&self) -> Result<&Reached, BackendError> {
        self.reached.get_or_try_init(|| self.look_around()).await
    }

    async fn look_around(&self) -> Result<Reached, BackendError> {
        let unsuitable = |why: String| BackendError::fatal(UNSUITABLE, why);
        let (address, name, around) = (Arc::clone(&self.address), self.name, (self.around)());
        let target = blocking(move || address.resolve(name, &around)).await;
        let target = target.map_err(unsuitable)?;
        let endpoint = (self.place)(&self.address, &target);
        let tls = endpoint.tls.then(|| Tls {
            ca: self.address.ca.clone(),
            ..Tls::default()
        });
        let hosts = [endpoint.host.clone()];
        let http = Http::new(&hosts, endpoint.default_port(), tls, &self.options);
        Ok(Reached {
            base: endpoint.url(),
            http: http.map_err(|bad| unsuitable(format!("its URL must {}", bad.rule)))?,
            signer: RequestSigner::new(self.name, &target.region),
            keyring: Keyring::new(self.address.own_keys.clone(), &target.region, self.around),
            target,
        })
    }

    async fn ask(&self, call: &Call<'_>) -> Result<Answer, BackendError> {
        let mut asked_before = false;
        let asked = self.ask_with_keys(call, &mut asked_before).await;
        asked.map_err(|error| error.doubted(call.writes && asked_before))
    }

    async fn ask_with_keys(
        &self,
        call: &Call<'_>,
        asked_before: &mut bool,
    ) -> Result<Answer, BackendError> {
        let reached = self.reach().await?;
        for tries in 0.. {
            let keys = timeout(self.options.request_timeout, reached.keyring.current()).await;
            let keys = keys.unwrap_or_else(|_| {
                Err(BackendError::transient(
                    "timeout",
                    format!(
                        "no AWS credentials within {} ms; they are still being looked for",
                        self.options.request_timeout.as_millis()
                    ),
                ))
            })?;
            let headers = match reached.signed(call, &keys.credential).await {
                Ok(headers) => headers,
                Err(error)
                    if error.kind() == ErrorKind::CredentialInvalid
                        && tries == 0
                        && reached.keyring.refused(&keys) =>
                {
                    continue;
                }
                Err(error) => {
                    return Err(BackendError::fatal(
                        REFUSED,
                        format!("the AWS credentials cannot be used: {}", words(&error)),
                    ));
                }
            };
            let asked = Asked {
                method: call.method.clone(),
                path: call.path,
                headers,
                body: call.body.clone(),
                // What was done already meets its own doing, and is told from others'.
                repeatable: true,
            };
            let answer = reached.http.ask(&asked, |_| false).await;
            let mut answer = answer.map_err(|error| broken(error, call.writes))?;
            answer.asked_before |= *asked_before;
            let is_last = tries > 0 || !said(&answer).blames_keys();
            if is_last || !reached.keyring.refused(&keys) {
                return Ok(answer);
            }
            *asked_before = answer.asked_before;
        }
        unreachable!("the second try is the last")
    }

    fn close(&self) {
        if let Some(reached) = self.reached.get() {
            reached.keyring.close();
            reached.http.hang_up();
        }
    }
}

impl Reached {
    async fn signed(&self, call: &Call<'_>, keys: &Credential) -> reqsign_core::Result<HeaderMap> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base, call.path))
            // Who does not say what is signed leaves the body open, and some services refuse that.
            .header("x-amz-content-sha256", hex_sha256(&call.body));
        for (name, value) in &call.headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(())?.into_parts();
        self.signer
            .sign_request(&Context::new(), &mut parts, Some(keys), None)
            .await?;
        Ok(parts.headers)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.shown())
    }
}
