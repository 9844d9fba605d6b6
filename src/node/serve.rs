//! The server of the Leader Election API, for `whenleader serve`. A process has one at most.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use napi::{Env, Error};
use napi_derive::napi;

use super::environment::{Done, Environment};
use super::{CONFIG, Result, STORE};
use crate::go_duration;
use crate::locked::locked;
use crate::server::{ServeError, Server, ServerOptions};

static PLACE: Mutex<Place> = Mutex::new(Place::Free);

enum Place {
    Free,
    /// One is being started.
    Claimed,
    Taken(Server),
}

/// The place for a server that is being started. Unless one has taken it, it is free again with its end.
struct Claim;

impl Claim {
    /// `None`: somebody has it.
    fn new() -> Option<Self> {
        let mut place = locked(&PLACE);
        if !matches!(*place, Place::Free) {
            return None;
        }
        *place = Place::Claimed;
        Some(Self)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut place = locked(&PLACE);
        if matches!(*place, Place::Claimed) {
            *place = Place::Free;
        }
    }
}

/// The server, if it has started.
fn take() -> Option<Server> {
    let mut place = locked(&PLACE);
    if !matches!(*place, Place::Taken(_)) {
        return None;
    }
    match std::mem::replace(&mut *place, Place::Free) {
        Place::Taken(server) => Some(server),
        Place::Free | Place::Claimed => None,
    }
}

#[napi(object)]
pub struct ServeOptions {
    pub store: String,
    pub base_dir: String,
    /// `host:port`.
    pub listen: String,
    /// As Go writes durations.
    pub lease: String,
    pub token: Option<String>,
    pub cert: Option<String>,
    pub key: Option<String>,
    pub allow_reset: bool,
}

/// Starts the server. `done` carries where it listens, or the error.
#[napi(catch_unwind)]
pub fn serve(env: Env, options: ServeOptions, operation: u32) -> Result<()> {
    crate::environment::read();
    let Some(reply) = Environment::of(env, |here| here.reply()) else {
        return Err(Error::new(
            CONFIG.into(),
            "attach() comes first".to_string(),
        ));
    };
    let options = checked(options).map_err(|message| Error::new(CONFIG.to_string(), message))?;
    reply.when_done(operation, async move {
        let Some(_claim) = Claim::new() else {
            let message = "this process serves already".to_string();
            return Done::Failed(CONFIG, None, message);
        };
        match Server::start(options).await {
            Ok(server) => {
                let address = server.address().to_string();
                *locked(&PLACE) = Place::Taken(server);
                Done::Address(address)
            }
            Err(ServeError::Option(parameter, rule)) => {
                Done::Failed(CONFIG, None, format!("{parameter} must {rule}"))
            }
            Err(ServeError::Listen(message)) => Done::Failed(CONFIG, Some("listen"), message),
            Err(ServeError::Store(error)) => Done::Failed(STORE, Some(error.code), error.message),
        }
    });
    Ok(())
}

/// Ends what `serve` began. `done` follows.
#[napi(catch_unwind)]
pub fn stop_serving(env: Env, operation: u32) {
    let Some(reply) = Environment::of(env, |here| here.reply()) else {
        return;
    };
    reply.when_done(operation, async {
        if let Some(server) = take() {
            server.stop().await;
        }
        Done::Nothing
    });
}

fn checked(options: ServeOptions) -> std::result::Result<ServerOptions, String> {
    let base_dir = PathBuf::from(options.base_dir);
    let lease = go_duration::positive(&options.lease).ok_or_else(|| {
        format!(
            "lease must be {}, not {:?}",
            go_duration::EXAMPLE,
            options.lease
        )
    })?;
    let path = |path: String| base_dir.join(Path::new(&path));
    let tls = match (options.cert, options.key) {
        (Some(cert), Some(key)) => Some((path(cert), path(key))),
        (None, None) => None,
        _ => return Err("cert and key must be given together".into()),
    };
    let plain = |token: &String| !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    if !options.token.as_ref().is_none_or(plain) {
        return Err("token must be ASCII without spaces".into());
    }
    Ok(ServerOptions {
        store: options.store,
        listen: options.listen,
        lease,
        token: options.token,
        tls,
        may_reset: options.allow_reset,
        base_dir,
    })
}
