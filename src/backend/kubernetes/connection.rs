//! Connections to the API server: through proxies, with certificates, kept for the next request.
//!
//! All of them are of one type, whatever they go through: an HTTP client for each would be a large part of
//! this library. Requests are sent as they come, and nothing is tried again here.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryFutureExt as _;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::access::shown;
use crate::backend::blocking::blocking;
use crate::backend::tls::{Tls, Verify};
use crate::locked::locked;

/// A file of certificates is read anew after so long, if somebody connects.
const READ_CERTIFICATES_EVERY: Duration = Duration::from_secs(60);

/// Of proxies whose URL names none. Those of HTTP have the ports that HTTP has.
const SOCKS_PORT: u16 = 1080;

/// What an answer holds, as it comes.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// How the API server is reached.
pub(super) struct Way {
    pub server: Uri,
    pub proxy: Option<Uri>,
    pub trust: Trust,
    /// What certificates have to name in place of the host.
    pub tls_server_name: Option<String>,
    /// Besides what a request has. What says who asks counts more than a token.
    pub headers: HeaderMap,
}

/// Proxies, and what is told in headers, may be secret.
impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way")
            .field("server", &shown(&self.server))
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

/// Whose certificates are believed.
#[derive(Debug)]
pub(super) enum Trust {
    /// Those of the authorities that this machine trusts.
    Machine,
    These(Vec<CertificateDer<'static>>),
    /// And what will be in the file.
    File(PathBuf),
    Anybody,
}

/// A certificate of this side and its key, in PEM form.
pub(super) struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

type Pool = Client<TimeoutConnector<Connector>, Full<Bytes>>;

/// The connections to one server.
pub(super) struct Connections {
    connector: TimeoutConnector<Connector>,
    server: Uri,
    headers: HeaderMap,
    slot: Mutex<Slot>,
}

/// The connections that are kept for the next request, and which ones they are.
struct Slot {
    number: u64,
    pool: Pool,
}

impl Connections {
    /// Reads what there is to trust, and connects to nothing yet. `limit`: how long connecting may take, or
    /// the network to accept a part of a request.
    pub fn new(way: Way, identity: Option<&Identity>, limit: Duration) -> Result<Self, String> {
        let connector = Connector::new(&way, identity, limit)?;
        let mut connector = TimeoutConnector::new(connector);
        connector.set_connect_timeout(Some(limit));
        connector.set_write_timeout(Some(limit));
        Ok(Self {
            slot: Mutex::new(Slot {
                number: 0,
                pool: pool(&connector),
            }),
            connector,
            server: way.server,
            headers: way.headers,
        })
    }

    /// For one request. `afresh`: on a connection that was not there before, as no request after it is.
    pub fn take(&self, afresh: bool) -> Taken<'_> {
        let mut slot = locked(&self.slot);
        if afresh {
            self.replace(&mut slot);
        }
        Taken {
            connections: self,
            pool: slot.pool.clone(),
            number: slot.number,
            answered: false,
        }
    }

    /// What is under way goes on.
    fn replace(&self, slot: &mut Slot) {
        slot.number += 1;
        slot.pool = pool(&self.connector);
    }
}

/// What one request is sent on. Unless an answer comes, others take the place of all connections that there are:
/// they may be as dead as this one, and whoever gives up waiting (its future is dropped) leaves them to whoever asks
/// next.
pub(super) struct Taken<'a> {
    connections: &'a Connections,
    pool: Pool,
    number: u64,
    pub answered: bool,
}

impl Taken<'_> {
    /// The request names a path alone.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Body>, ClientError> {
        let Connections {
            server,
            headers: ours,
            ..
        } = self.connections;
        *request.uri_mut() = below(server, request.uri());
        let headers = request.headers_mut();
        if ours.contains_key(AUTHORIZATION) {
            headers.remove(AUTHORIZATION);
        }
        for (name, value) in ours {
            headers.append(name, value.clone());
        }
        let answer = self.pool.request(request).await?;
        Ok(answer.map(|body| body.map_err(io::Error::other).boxed_unsync()))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut slot = locked(&self.connections.slot);
        if !self.answered && slot.number == self.number {
            self.connections.replace(&mut slot);
        }
    }
}

/// What is sent again is decided elsewhere.
fn pool(connector: &TimeoutConnector<Connector>) -> Pool {
    Client::builder(TokioExecutor::new())
        .retry_canceled_requests(false)
        .build(connector.clone())
}

/// The server's address may have a path of its own.
fn below(server: &Uri, path: &Uri) -> Uri {
    let above = server.path().trim_end_matches('/');
    let asked = path.path_and_query().map_or("/", |path| path.as_str());
    let mut parts = server.clone().into_parts();
    // Two good paths make a good one.
    parts.path_and_query = format!("{above}{asked}").parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| server.clone())
}

#[derive(Clone)]
struct Connector {
    dial: Dial,
    proxy: Option<Proxy>,
}

#[derive(Clone)]
enum Proxy {
    Socks(SocksV5<Dial>),
    Http(Tunnel<Dial>),
}

impl Connector {
    fn new(way: &Way, identity: Option<&Identity>, limit: Duration) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // Of several addresses each has its part, and something is left for who answers at the last of them.
        tcp.set_connect_timeout(Some(limit / 2));
        let name = way.tls_server_name.clone().map(ServerName::try_from);
        let name = name
            .transpose()
            .map_err(|_| "the tls-server-name is no name of a host".to_owned())?;
        let (tls, authorities) = tls(&way.trust, identity)?;
        let dial = Dial {
            tcp,
            tls: Arc::new(tls),
            authorities,
            name,
        };
        let proxy = way.proxy.as_ref().map(|proxy| through(proxy, &dial));
        let proxy = proxy.transpose()?;
        Ok(Self { dial, proxy })
    }
}

fn through(proxy: &Uri, dial: &Dial) -> Result<Proxy, String> {
    let known = Matcher::builder().all(proxy.to_string()).build();
    let found = known
        .intercept(&Uri::from_static("https://server"))
        .ok_or_else(|| "the proxy cannot be used".to_owned())?;
    let url = found.uri().clone();
    Ok(if url.scheme_str() == Some("socks5") {
        let socks = SocksV5::new(with_port(url, SOCKS_PORT), dial.clone());
        Proxy::Socks(match found.raw_auth() {
            Some((user, password)) => socks.with_auth(user.into(), password.into()),
            None => socks,
        })
    } else {
        let tunnel = Tunnel::new(url, dial.clone());
        Proxy::Http(match found.basic_auth() {
            Some(header) => tunnel.with_auth(header.clone()),
            None => tunnel,
        })
    })
}

/// Of one that names none.
fn with_port(url: Uri, port: u16) -> Uri {
    let (None, Some(host)) = (url.port(), url.host()) else {
        return url;
    };
    let authority = format!("{host}:{port}").parse().ok();
    let mut parts = url.clone().into_parts();
    parts.authority = authority;
    Uri::from_parts(parts).unwrap_or(url)
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<Wire>>> + Send>>;

impl Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Connecting {
        let dial = self.dial.clone();
        // Who names no port to a proxy names 443.
        let secure = server.scheme_str() == Some("https");
        let peer = with_port(server.clone(), if secure { 443 } else { 80 });
        let connecting: Connecting = match &mut self.proxy {
            None => return self.dial.call(server),
            Some(Proxy::Socks(proxy)) => Box::pin(proxy.call(peer).map_err(io::Error::other)),
            Some(Proxy::Http(proxy)) => Box::pin(proxy.call(peer).map_err(io::Error::other)),
        };
        Box::pin(async move { dial.encrypt(connecting.await?, &server).await })
    }
}

/// Connects to whom it is told to, a server or a proxy.
#[derive(Clone)]
struct Dial {
    tcp: HttpConnector,
    tls: Arc<ClientConfig>,
    /// Those that `tls` believes, if they are in a file.
    authorities: Option<Arc<Reread>>,
    /// In place of the host's.
    name: Option<ServerName<'static>>,
}

impl Dial {
    async fn connect(&mut self, peer: &Uri) -> io::Result<TcpStream> {
        let connected = self.tcp.call(peer.clone()).await;
        Ok(connected.map_err(io::Error::other)?.into_inner())
    }

    async fn encrypt(&self, wire: TokioIo<Wire>, peer: &Uri) -> io::Result<TokioIo<Wire>> {
        if peer.scheme_str() != Some("https") {
            return Ok(wire);
        }
        let host = peer.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        if let Some(authorities) = &self.authorities {
            authorities.refresh().await;
        }
        let tls = TlsConnector::from(Arc::clone(&self.tls));
        let encrypted = tls.connect(name, wire.into_inner()).await?;
        Ok(TokioIo::new(Wire(Box::new(encrypted))))
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, peer: Uri) -> Connecting {
        let mut dial = self.clone();
        Box::pin(async move {
            let tcp = dial.connect(&peer).await?;
            dial.encrypt(TokioIo::new(Wire(Box::new(tcp))), &peer).await
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, whatever it goes through.
struct Wire(Box<dyn Stream>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

fn tls(
    trust: &Trust,
    identity: Option<&Identity>,
) -> Result<(ClientConfig, Option<Arc<Reread>>), String> {
    let provider = Arc::new(ring::default_provider());
    let words = |error: rustls::Error| error.to_string();
    let mut reread = None;
    let verifier: Option<Arc<dyn ServerCertVerifier>> = match trust {
        Trust::Anybody => None,
        Trust::These(certificates) => Some(verifier(certificates)?),
        Trust::File(path) => {
            let authorities = Arc::new(Reread::new(path.clone())?);
            reread = Some(Arc::clone(&authorities));
            Some(authorities)
        }
        Trust::Machine => Some(Arc::new(
            rustls_platform_verifier::Verifier::new(Arc::clone(&provider)).map_err(words)?,
        )),
    };
    let mut tls = Tls {
        verify: match verifier {
            Some(_) => Verify::Full,
            None => Verify::Nothing,
        },
        ..Tls::default()
    }
    .read()?;
    if let Some(verifier) = verifier {
        tls.dangerous().set_certificate_verifier(verifier);
    }
    if let Some(identity) = identity {
        let chain = certificates(&identity.certificate)
            .map_err(|what| format!("the client-certificate {what}"))?;
        let key = PrivateKeyDer::from_pem_slice(&identity.key)
            .map_err(|_| "the client-key holds no private key in PEM form".to_owned())?;
        let both = CertifiedKey::from_der(chain, key, &provider).map_err(|error| {
            format!("the client-certificate and the client-key do not serve: {error}")
        })?;
        tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(both));
    }
    Ok((tls, reread))
}

fn verifier(certificates: &[CertificateDer<'static>]) -> Result<Arc<WebPkiServerVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| format!("a certificate of the cluster's authority: {error}"))?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| error.to_string())
}

/// Errors follow what holds them.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err("holds no certificate in PEM form"),
    }
}

/// Believes the authorities that a file names, also when others come: those of a pod are replaced while it
/// runs. What was read last counts while the file is not there.
#[derive(Debug)]
struct Reread {
    path: PathBuf,
    last: Mutex<(Arc<WebPkiServerVerifier>, Instant)>,
}

impl Reread {
    fn new(path: PathBuf) -> Result<Self, String> {
        let last = Mutex::new((Self::read(&path)?, Instant::now()));
        Ok(Self { path, last })
    }

    fn read(path: &Path) -> Result<Arc<WebPkiServerVerifier>, String> {
        let shown = path.display();
        let pem = std::fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
        verifier(&certificates(&pem).map_err(|what| format!("{shown} {what}"))?)
    }

    /// Before somebody connects. Verifying reads no file: a disk may be slow, and elections share one thread.
    async fn refresh(&self) {
        {
            let mut last = locked(&self.last);
            if last.1.elapsed() < READ_CERTIFICATES_EVERY {
                return;
            }
            // One reads for all.
            last.1 = Instant::now();
        }
        let path = self.path.clone();
        match blocking(move || Self::read(&path)).await {
            Ok(fresh) => locked(&self.last).0 = fresh,
            Err(why) => tracing::debug!(%why, "the cluster's certificates stay as they were"),
        }
    }

    fn current(&self) -> Arc<WebPkiServerVerifier> {
        Arc::clone(&locked(&self.last).0)
    }
}

impl ServerCertVerifier for Reread {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.current().verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current().supported_verify_schemes()
    }
}

/// As client-go spells a key of `as-user-extra` in a header's name.
pub(super) fn extra_header_name(key: &str) -> String {
    use std::fmt::Write as _;
    let mut name = "impersonate-extra-".to_owned();
    for byte in key.bytes() {
        // `%` is a letter of names, and escaped all the same.
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            name.push(char::from(byte.to_ascii_lowercase()));
        } else {
            let _ = write!(name, "%{byte:02x}");
        }
    }
    name
}

/// Who asks, by name and password.
pub(super) fn basic(user: &str, password: &str) -> HeaderValue {
    use base64::Engine;
    let both = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::try_from(format!("Basic {both}")).expect("base64 is plain ASCII");
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use rustls::ServerConfig;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    #[test]
    fn requests_go_below_the_path_of_the_server() {
        for (server, path, whole) in [
            ("https://h:6443", "/apis?a=b", "https://h:6443/apis?a=b"),
            ("https://h/", "/apis", "https://h/apis"),
            ("https://h/k8s/c-1", "/apis", "https://h/k8s/c-1/apis"),
            ("https://h/k8s/?x", "/apis?y", "https://h/k8s/apis?y"),
            ("http://[::1]:1", "/", "http://[::1]:1/"),
        ] {
            let found = below(&server.parse().unwrap(), &path.parse().unwrap());
            assert_eq!(found.to_string(), whole);
        }
    }

    #[test]
    fn keys_of_extra_facts_are_escaped_as_client_go_escapes_them() {
        for (key, name) in [
            ("FOO-bar.baz_123", "impersonate-extra-foo-bar.baz_123"),
            ("foo.com/bar", "impersonate-extra-foo.com%2fbar"),
            ("foo%2f", "impersonate-extra-foo%252f"),
            ("å b", "impersonate-extra-%c3%a5%20b"),
        ] {
            assert_eq!(extra_header_name(key), name);
            assert!(http::HeaderName::try_from(name).is_ok());
        }
    }

    /// Of a server, and of a proxy that is a server, too.
    fn certified(name: &str) -> (TlsAcceptor, CertificateDer<'static>) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let certificate = made.cert.der().clone();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        (TlsAcceptor::from(Arc::new(tls)), certificate)
    }

    async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    async fn answer_ok(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> String {
        let head = read_head(stream).await;
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        stream.write_all(answer).await.unwrap();
        stream.flush().await.unwrap();
        head
    }

    fn way(server: &str, proxy: Option<String>, trust: Trust, name: Option<&str>) -> Way {
        Way {
            server: server.parse().unwrap(),
            proxy: proxy.map(|proxy| proxy.parse().unwrap()),
            trust,
            tls_server_name: name.map(str::to_owned),
            headers: HeaderMap::new(),
        }
    }

    async fn get(way: Way) -> Result<Bytes, ClientError> {
        let connections = Connections::new(way, None, Duration::from_secs(30)).unwrap();
        let asked = Request::get("/asked").body(Full::default()).unwrap();
        let answer = connections.take(false).send(asked).await?;
        Ok(answer.into_body().collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn http_proxies_are_asked_for_a_tunnel_with_the_password_as_it_is() {
        let (tls, _) = certified("proxy.test");
        for (scheme, user, told) in [
            ("http", "", None),
            (
                "http",
                "u:p%40ss@",
                Some("proxy-authorization: basic dtpwqhnz"),
            ),
            ("https", "u@", Some("proxy-authorization: basic dto=")),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let tls = (scheme == "https").then(|| tls.clone());
            let proxy = tokio::spawn(async move {
                let (tcp, _) = listener.accept().await.unwrap();
                let mut stream: Box<dyn Stream> = match tls {
                    Some(tls) => Box::new(tls.accept(tcp).await.unwrap()),
                    None => Box::new(tcp),
                };
                let head = read_head(&mut stream).await;
                let good = b"HTTP/1.1 200 OK\r\n\r\n";
                stream.write_all(good).await.unwrap();
                stream.flush().await.unwrap();
                (head, answer_ok(&mut stream).await)
            });
            let url = format!("{scheme}://{user}127.0.0.1:{port}");
            let way = way(
                "http://server.test:8080/api",
                Some(url),
                Trust::Anybody,
                None,
            );
            assert_eq!(get(way).await.unwrap(), "ok");
            let (connect, request) = proxy.await.unwrap();
            assert!(
                connect.starts_with("CONNECT server.test:8080 "),
                "{connect}"
            );
            let found = connect.to_lowercase();
            let found = found.lines().find(|line| line.starts_with("proxy-auth"));
            assert_eq!(found, told);
            assert!(request.starts_with("GET /api/asked HTTP/1.1"), "{request}");
            assert!(!request.to_lowercase().contains("proxy-auth"), "{request}");
        }
    }

    #[tokio::test]
    async fn socks_proxies_are_told_the_name_of_the_server_and_who_asks() {
        for (user, method, signs_in) in [("", 0, &b""[..]), ("u:p%40@", 2, b"\x01\x01u\x02p@")] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let proxy = tokio::spawn(async move {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let mut read = vec![0; 2];
                tcp.read_exact(&mut read).await.unwrap();
                let mut methods = vec![0; usize::from(read[1])];
                tcp.read_exact(&mut methods).await.unwrap();
                assert!(methods.contains(&method), "{methods:?}");
                tcp.write_all(&[5, method]).await.unwrap();
                if !signs_in.is_empty() {
                    read.resize(signs_in.len(), 0);
                    tcp.read_exact(&mut read).await.unwrap();
                    assert_eq!(read, signs_in);
                    tcp.write_all(&[1, 0]).await.unwrap();
                }
                let wanted = b"\x05\x01\x00\x03\x0bserver.test\x1f\x90";
                read.resize(wanted.len(), 0);
                tcp.read_exact(&mut read).await.unwrap();
                assert_eq!(read, wanted);
                tcp.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
                    .await
                    .unwrap();
                answer_ok(&mut tcp).await
            });
            let url = format!("socks5://{user}127.0.0.1:{port}");
            let way = way("http://server.test:8080", Some(url), Trust::Anybody, None);
            assert_eq!(get(way).await.unwrap(), "ok");
            proxy.await.unwrap();
        }
    }

    #[tokio::test]
    async fn who_names_no_port_means_that_of_the_scheme_also_behind_a_proxy() {
        let (socks, https) = (with_port_of("socks5://p"), with_port_of("socks5://[::1]:9"));
        assert_eq!(
            (&*socks, &*https),
            ("socks5://p:1080/", "socks5://[::1]:9/")
        );
        for (scheme, port) in [("http", 80), ("https", 443)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let proxy = format!("http://{}", listener.local_addr().unwrap());
            let server = format!("{scheme}://[::1]/");
            let asking = get(way(&server, Some(proxy), Trust::Anybody, None));
            let asked = async {
                let (mut tcp, _) = listener.accept().await.unwrap();
                read_head(&mut tcp).await
            };
            let (_, head) = tokio::join!(asking, asked);
            let wanted = format!("CONNECT [::1]:{port} HTTP/1.1\r\nHost: [::1]:{port}\r\n");
            assert!(head.starts_with(&wanted), "{head}");

            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let proxy = format!("socks5://{}", listener.local_addr().unwrap());
            let server = format!("{scheme}://s/");
            let asking = get(way(&server, Some(proxy), Trust::Anybody, None));
            let asked = async {
                let (mut tcp, _) = listener.accept().await.unwrap();
                tcp.read_exact(&mut [0; 3]).await.unwrap();
                tcp.write_all(&[5, 0]).await.unwrap();
                let mut wanted = [0; 8];
                tcp.read_exact(&mut wanted).await.unwrap();
                u16::from_be_bytes([wanted[6], wanted[7]])
            };
            let (_, asked) = tokio::join!(asking, asked);
            assert_eq!(asked, port);
        }
    }

    fn with_port_of(proxy: &str) -> String {
        with_port(proxy.parse().unwrap(), SOCKS_PORT).to_string()
    }

    #[tokio::test]
    async fn small_requests_do_not_wait_for_each_other_on_the_network() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let way = way(&url, None, Trust::Anybody, None);
        let connector = Connector::new(&way, None, Duration::from_secs(30));
        let mut dial = connector.unwrap().dial;
        assert!(dial.connect(&way.server).await.unwrap().nodelay().unwrap());
    }

    /// A listener whose queue is full takes nobody, and refuses nobody.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn an_address_where_nobody_answers_leaves_time_for_another_one() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(Ok(stream)) =
            tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            queued.push(stream);
            assert!(queued.len() < 100);
        }
        let way = way(&format!("http://{address}"), None, Trust::Anybody, None);
        let connections = Connections::new(way, None, Duration::from_secs(2)).unwrap();
        let asked = Request::get("/asked").body(Full::default()).unwrap();
        let error = connections.take(false).send(asked).await.unwrap_err();
        // Said by who connects to addresses; who bounds all of it says that a deadline has elapsed.
        let why = crate::backend::kubernetes::failure::chain(&error);
        assert!(why.contains("tcp connect error"), "{why}");
    }

    #[tokio::test]
    async fn an_unanswered_request_leaves_none_of_the_connections_that_there_were() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let server = tokio::spawn(async move {
            for number in 0.. {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let tell = tell.clone();
                tokio::spawn(async move {
                    // Until it is replaced.
                    while tcp.peek(&mut [0]).await.is_ok_and(|length| length > 0) {
                        answer_ok(&mut tcp).await;
                        tell.send(number).unwrap();
                    }
                });
            }
        });
        let way = way(&url, None, Trust::Anybody, None);
        let connections = Connections::new(way, None, Duration::from_secs(30)).unwrap();
        let mut ask = async |afresh, answered| {
            let mut taken = connections.take(afresh);
            let asked = Request::get("/").body(Full::default()).unwrap();
            let answer = taken.send(asked).await.unwrap();
            answer.into_body().collect().await.unwrap();
            taken.answered = answered;
            told.recv().await.unwrap()
        };
        assert_eq!(ask(false, true).await, 0);
        assert_eq!(ask(false, true).await, 0);
        // The one that was not answered, as far as its sender says, takes all with it.
        assert_eq!(ask(false, false).await, 0);
        assert_eq!(ask(false, true).await, 1);
        assert_eq!(ask(true, true).await, 2);
        assert_eq!(ask(false, true).await, 2);
        server.abort();
    }

    #[tokio::test]
    async fn a_server_proves_the_name_that_it_is_known_by() {
        let (tls, certificate) = certified("there.test");
        for (name, trust, believed) in [
            (Some("there.test"), Some(&certificate), true),
            (None, Some(&certificate), false),
            (Some("elsewhere.test"), Some(&certificate), false),
            (None, None, true),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let tls = tls.clone();
            let server = tokio::spawn(async move {
                let (tcp, _) = listener.accept().await.unwrap();
                let mut stream = tls.accept(tcp).await.ok()?;
                let called = stream.get_ref().1.server_name().map(str::to_owned);
                answer_ok(&mut stream).await;
                Some(called)
            });
            let trust = match trust {
                Some(certificate) => Trust::These(vec![certificate.clone()]),
                None => Trust::Anybody,
            };
            let answer = get(way(&format!("https://127.0.0.1:{port}"), None, trust, name)).await;
            assert_eq!(answer.is_ok(), believed, "{name:?}: {answer:?}");
            let called = server.await.unwrap();
            assert_eq!(called, believed.then(|| name.map(str::to_owned)));
        }
    }

    #[tokio::test]
    async fn who_asks_by_password_asks_with_no_token() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            answer_ok(&mut tcp).await
        });
        let mut way = way(
            &format!("http://127.0.0.1:{port}"),
            None,
            Trust::Anybody,
            None,
        );
        way.headers.insert(AUTHORIZATION, basic("u", "p"));
        let connections = Connections::new(way, None, Duration::from_secs(30)).unwrap();
        let asked = Request::get("/").header(AUTHORIZATION, "Bearer t");
        connections
            .take(false)
            .send(asked.body(Full::default()).unwrap())
            .await
            .unwrap();
        let head = server.await.unwrap();
        let told: Vec<_> = head
            .lines()
            .filter(|line| line.starts_with("auth"))
            .collect();
        assert_eq!(told, ["authorization: Basic dTpw"]);
    }

    #[tokio::test]
    async fn a_file_of_authorities_that_changes_is_read_anew_and_one_that_vanishes_is_remembered() {
        let path = std::env::temp_dir().join(format!("whenleader-ca-{}", std::process::id()));
        let pem = || {
            let certified = rcgen::generate_simple_self_signed(["ca".to_owned()]);
            certified.unwrap().cert.pem()
        };
        std::fs::write(&path, pem()).unwrap();
        let authorities = Reread::new(path.clone()).unwrap();
        let grow_old = || {
            let long_ago = Instant::now().checked_sub(READ_CERTIFICATES_EVERY);
            locked(&authorities.last).1 = long_ago.unwrap();
        };
        let first = authorities.current();
        std::fs::write(&path, pem()).unwrap();
        authorities.refresh().await;
        assert!(Arc::ptr_eq(&authorities.current(), &first));
        grow_old();
        // Whoever verifies reads nothing.
        assert!(Arc::ptr_eq(&authorities.current(), &first));
        authorities.refresh().await;
        let second = authorities.current();
        assert!(!Arc::ptr_eq(&second, &first));
        std::fs::remove_file(&path).unwrap();
        grow_old();
        authorities.refresh().await;
        assert!(Arc::ptr_eq(&authorities.current(), &second));
    }
}
