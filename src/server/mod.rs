//! A Leader Election API, as a server on top of any store: for programs in every language.
//!
//! It decides nothing itself. A check-in becomes an attempt on the store in the name of whoever checks in, so
//! any number of servers on one store agree, and leases live on when a server ends.
//!
//! | module | |
//! |---|---|
//! | `api` | requests to answers |
//! | `body` | what requests say |
//! | `elections` | check-ins to attempts, and what was seen |
//! | `metrics`, `page` | for those who watch |

mod api;
mod body;
mod elections;
mod metrics;
mod page;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use self::api::Api;
use self::elections::Elections;
use crate::backend::blocking::blocking;
use crate::backend::{self, BackendError, StoreOptions, without_password};
use crate::campaign::PreparedStore;
use crate::clock::SystemClock;
use crate::lease::FailureKind;
use crate::timing::Lending;

/// So many connections are served at once; more wait until one ends.
const CONNECTIONS: usize = 1_024;
/// How long the head of a request may take, or the next request of a connection to come.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// How long an answer may wait until some of it is read.
const WRITE_TIME: Duration = Duration::from_secs(10);
const MOST_HEADERS: usize = 64;
const LONGEST_HEAD: usize = 16 * 1024;
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long a start waits for the store.
const START_TIME: Duration = Duration::from_secs(10);
/// How long requests that are being answered may take when the server stops.
const STOP_TIME: Duration = Duration::from_secs(5);
/// After an error of `accept`: too many open files, for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// How to serve.
#[derive(Clone)]
pub struct ServerOptions {
    /// The URL of the store.
    pub store: String,
    /// What relative paths start from.
    pub base_dir: PathBuf,
    /// Where to listen: `host:port`.
    pub listen: String,
    /// The lease that a leader is told.
    pub lease: Duration,
    /// What every request must show.
    pub token: Option<String>,
    /// A certificate and its key, both in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub may_reset: bool,
}

impl fmt::Debug for ServerOptions {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("store", &without_password(&self.store))
            .field("listen", &self.listen)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Why a server did not start.
#[derive(Debug)]
pub enum ServeError {
    /// The parameter, and words that follow "must".
    Option(&'static str, String),
    Listen(String),
    Store(BackendError),
}

/// A running server. Dropped, it stops by itself, and nobody hears when it has.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Server {
    /// Looks at the store, and listens. A store that is merely away does not fail it.
    pub async fn start(options: ServerOptions) -> Result<Self, ServeError> {
        let lending = Lending::new(options.lease)
            .map_err(|bad| ServeError::Option(bad.parameter, bad.rule))?;
        let tls = match options.tls.clone() {
            Some((cert, key)) => {
                let config = blocking(move || server_tls(&cert, &key)).await;
                let config = config.map_err(|why| ServeError::Option("cert", why))?;
                Some(TlsAcceptor::from(Arc::new(config)))
            }
            None => None,
        };
        let mut api = Api {
            elections: open(&options, lending)?,
            token: options.token.clone(),
            may_reset: options.may_reset,
            is_private: false,
        };
        // It goes on meanwhile, and whoever checks in waits for it.
        if let Ok(Err(error)) = timeout(START_TIME, api.elections.prepare()).await
            && error.kind == FailureKind::Fatal
        {
            api.elections.close().await;
            return Err(ServeError::Store(error));
        }
        let listener = match TcpListener::bind(&options.listen).await {
            Ok(listener) => listener,
            Err(error) => {
                api.elections.close().await;
                return Err(ServeError::Listen(format!(
                    "{} cannot be listened at: {error}",
                    options.listen
                )));
            }
        };
        let address = listener
            .local_addr()
            .map_err(|error| ServeError::Listen(error.to_string()))?;
        api.is_private = address.ip().is_loopback();
        if options.token.is_none() && !api.is_private {
            tracing::warn!(%address, "whoever reaches this address can lead and depose: give the server a token");
        }
        tracing::info!(
            %address,
            store = api.elections.store().describe(),
            remark = api.elections.store().remark(),
            "serves the Leader Election API"
        );
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(run(listener, tls, Arc::new(api), stopped));
        Ok(Self {
            address,
            stop,
            running,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, ends those that are idle, and waits for answers under way. Leases stay.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.running.await;
    }
}

fn open(options: &ServerOptions, lending: Lending) -> Result<Elections, ServeError> {
    let limit = lending.request_limit();
    let clock = Arc::new(SystemClock);
    let store_options = StoreOptions {
        connect_timeout: limit,
        request_timeout: limit,
        patience: lending.patience(),
        for_others: true,
        ..StoreOptions::new(&options.base_dir)
    };
    let store = backend::open(&options.store, &store_options, clock.clone()).map_err(|bad| {
        let shown = without_password(&options.store);
        ServeError::Option("store", format!("{}; it is {shown:?}", bad.rule))
    })?;
    let shortest = store.capabilities().shortest_lease;
    if lending.told() < shortest {
        let millis = shortest.as_millis();
        let told = lending.told();
        let rule = format!(
            "be at least {millis} ms on {}, not {told:?}",
            store.describe()
        );
        return Err(ServeError::Option("lease", rule));
    }
    let store = Arc::new(PreparedStore::new(store));
    Ok(Elections::new(store, clock, lending))
}

fn server_tls(cert: &Path, key: &Path) -> Result<ServerConfig, String> {
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("be certificates in PEM, not {}: {error}", cert.display()))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        format!(
            "come with a private key in PEM, not {}: {error}",
            key.display()
        )
    })?;
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| format!("be a certificate and the key that fits: {error}"))
}

async fn run(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    api: Arc<Api>,
    mut stopped: oneshot::Receiver<()>,
) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        let accepted = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            Some(_) = connections.join_next() => continue,
            _ = sweep.tick() => {
                api.elections.sweep();
                continue;
            }
            // Also when whoever started it is gone.
            _ = &mut stopped => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let serving = serve(
                    stream,
                    peer,
                    tls.clone(),
                    Arc::clone(&api),
                    graceful.watcher(),
                );
                connections.spawn(async move {
                    let _place = place;
                    serving.await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = timeout(STOP_TIME, graceful.shutdown()).await;
    connections.shutdown().await;
    api.elections.close().await;
}

/// One connection, to its end.
async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    api: Arc<Api>,
    watcher: Watcher,
) {
    let Ok(stream) = encrypted(stream, tls).await else {
        return;
    };
    let answer = service_fn(move |request| {
        let (api, peer) = (Arc::clone(&api), peer.to_string());
        async move { Ok::<_, Infallible>(api.answer(request, peer).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%peer, %error, "a connection broke");
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn encrypted(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Box<dyn Stream>> {
    // Answers are small, and wait for nothing.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIME));
    let stream = Box::pin(stream);
    Ok(match tls {
        Some(tls) => Box::new(timeout(HANDSHAKE_TIME, tls.accept(stream)).await??),
        None => Box::new(stream),
    })
}
