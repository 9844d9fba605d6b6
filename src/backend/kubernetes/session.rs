//! The way to the API server: a client with its credentials, opened once for all, and opened anew when the
//! credentials expire, or were refused.
//!
//! Opening reads files and may ask a plugin, so it goes on beside the requests: while credentials are
//! merely old, requests use them until the new ones are there.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::header::USER_AGENT;
use tokio::sync::watch;

use super::access::{Access, Place, Surroundings, shown};
use super::connection::{Connections, Identity};
use super::plugin;
use crate::backend::blocking::blocking;
use crate::backend::{BackendError, UNSUITABLE};
use crate::locked::locked;

/// Credentials are replaced so long before they expire, or in the last tenth of their time.
const BEFORE_EXPIRY: Duration = Duration::from_secs(60);
/// By this, `managedFields` of a Lease tell who wrote it.
const AGENT: &str = concat!("whenleader/", env!("CARGO_PKG_VERSION"));
/// After an opening that failed beside the requests, the next one begins no earlier.
const PAUSE: Duration = Duration::from_secs(10);

/// All sessions with one API server.
pub(super) struct Sessions {
    place: Place,
    /// How long making a connection may take.
    limit: Duration,
    slot: Arc<Mutex<Slot>>,
    /// What the first session found. Later ones must find the same: elsewhere are other elections.
    target: Arc<OnceLock<Target>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub namespace: String,
    /// The server, for people.
    pub server: String,
}

type Opened = Result<Arc<Session>, BackendError>;

#[derive(Default)]
struct Slot {
    current: Option<Arc<Session>>,
    opening: Option<watch::Receiver<Option<Opened>>>,
    /// No opening begins before.
    rest_until: Option<Instant>,
    closed: bool,
}

pub(super) struct Session {
    pub connections: Connections,
    token: Option<HeaderValue>,
    token_file: Option<Arc<TokenFile>>,
    /// When it should be replaced.
    old_at: Option<Instant>,
}

struct TokenFile {
    path: PathBuf,
    /// What it held last: files may vanish after the start, and are empty while somebody writes them.
    last: Mutex<Option<HeaderValue>>,
}

impl Sessions {
    pub fn new(place: Place, limit: Duration) -> Self {
        Self {
            place,
            limit,
            slot: Arc::default(),
            target: Arc::default(),
        }
    }

    /// `None`: the configuration was not read yet.
    pub fn target(&self) -> Option<&Target> {
        self.target.get()
    }

    pub async fn current(&self) -> Opened {
        let mut opening = {
            let mut slot = locked(&self.slot);
            if slot.closed {
                return Err(BackendError::transient(
                    "closed",
                    "this cluster was stopped",
                ));
            }
            let now = Instant::now();
            match &slot.current {
                Some(session) => {
                    let session = Arc::clone(session);
                    let old = session.old_at.is_some_and(|at| now >= at);
                    let rested = slot.rest_until.is_none_or(|until| now >= until);
                    if old && rested && slot.opening.is_none() {
                        slot.opening = Some(self.begin());
                    }
                    return Ok(session);
                }
                None => slot.opening.get_or_insert_with(|| self.begin()).clone(),
            }
        };
        match opening.wait_for(Option::is_some).await {
            Ok(opened) => opened.clone().expect("waited for"),
            Err(_) => Err(BackendError::fatal(
                "refused",
                "reading the credentials failed in an unknown way",
            )),
        }
    }

    /// The configuration and the credentials are read anew for the next request, unless they were since this session.
    /// (It stays the same one when its connections are replaced.)
    pub fn forget(&self, session: &Arc<Session>) {
        let mut slot = locked(&self.slot);
        let is_current = |current: &Arc<Session>| Arc::ptr_eq(current, session);
        if slot.current.as_ref().is_some_and(is_current) {
            slot.current = None;
        }
    }

    pub fn are_closed(&self) -> bool {
        locked(&self.slot).closed
    }

    /// No session is opened any more, and connections end when nobody uses them.
    pub fn close(&self) {
        let mut slot = locked(&self.slot);
        slot.closed = true;
        slot.current = None;
    }

    fn begin(&self) -> watch::Receiver<Option<Opened>> {
        let (tell, told) = watch::channel(None);
        let (place, limit) = (self.place.clone(), self.limit);
        let (slot, target) = (Arc::clone(&self.slot), Arc::clone(&self.target));
        tokio::spawn(async move {
            let opened = tokio::task::spawn_blocking(move || open(&place, limit, &target)).await;
            let opened = match opened {
                Ok(opened) => opened.map(Arc::new),
                // Whoever waits learns it from the end of this task.
                Err(_) => return locked(&slot).opening = None,
            };
            {
                let mut slot = locked(&slot);
                slot.opening = None;
                match &opened {
                    Ok(_) if slot.closed => {}
                    Ok(session) => slot.current = Some(Arc::clone(session)),
                    Err(error) => {
                        slot.rest_until = Some(Instant::now() + PAUSE);
                        tracing::debug!(%error, "no new credentials");
                    }
                }
            }
            tell.send_replace(Some(opened));
        });
        told
    }
}

impl Session {
    /// What a token's file says now, or the token.
    pub async fn token(&self) -> Option<HeaderValue> {
        let Some(file) = self.token_file.clone() else {
            return self.token.clone();
        };
        blocking(move || file.read()).await
    }
}

impl TokenFile {
    fn read(&self) -> Option<HeaderValue> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let mut last = locked(&self.last);
        if !text.trim().is_empty()
            && let Some(value) = bearer(text.trim())
        {
            *last = Some(value);
        }
        last.clone()
    }
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Blocks.
fn open(
    place: &Place,
    limit: Duration,
    pinned: &OnceLock<Target>,
) -> Result<Session, BackendError> {
    let unsuitable = |why| BackendError::fatal(UNSUITABLE, why);
    let Access {
        mut way,
        token_file,
        token,
        certificate,
        plugin,
        namespace,
    } = place
        .resolve(&Surroundings::of_this_process())
        .map_err(unsuitable)?;
    let found = Target {
        namespace,
        server: shown(&way.server),
    };
    let target = pinned.get_or_init(|| found.clone());
    if *target != found {
        return Err(unsuitable(format!(
            "the configuration now leads to namespace {} at {}, and this process elects in {} at {}: two places are two elections. Restart it if the new one is meant",
            found.namespace, found.server, target.namespace, target.server
        )));
    }
    let opened = Instant::now();
    let mut old_at = None;
    let (mut issued_token, mut issued_certificate) = (None, None);
    if let Some((plugin, cluster)) = plugin {
        let issued = plugin::ask(&plugin, &cluster)
            .map_err(|why| BackendError::transient("refused", why))?;
        issued_token = issued.token;
        issued_certificate = issued.certificate;
        old_at = issued
            .expires
            .map(|time| opened + time.saturating_sub(BEFORE_EXPIRY).max(time / 10 * 9));
    }
    let identity = match issued_certificate {
        Some((certificate, key)) => Some(Identity {
            certificate: certificate.into_bytes(),
            key: key.into_bytes(),
        }),
        None => certificate.read().map_err(unsuitable)?,
    };
    let token = issued_token.or(token);
    let token = token
        .as_deref()
        .map(str::trim)
        .filter(|token| !token.is_empty());
    let token = match token {
        Some(token) => Some(bearer(token).ok_or_else(|| {
            unsuitable(
                "the token for the API server holds a line break or another control character"
                    .into(),
            )
        })?),
        None => None,
    };
    way.headers
        .insert(USER_AGENT, HeaderValue::from_static(AGENT));
    Ok(Session {
        connections: Connections::new(way, identity.as_ref(), limit).map_err(unsuitable)?,
        token,
        token_file: token_file.map(|path| {
            Arc::new(TokenFile {
                path,
                last: Mutex::default(),
            })
        }),
        old_at,
    })
}
