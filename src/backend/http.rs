//! Requests to stores that speak HTTP. Knows no store, and nothing of what answers mean.
//!
//! No redirect is followed, and nothing is tried again in secret: what is sent twice is decided here, within
//! the one limit around each request. A server that cannot be reached is passed over for the next one. What
//! has no answer after its part of the time may have gone to a server, or into a connection, that is dead and
//! does not show it: it is sent once more, to the next server, or to the only one on a connection of its own,
//! and whichever is answered first counts. A connection whose request was given up is never used again.
//!
//! Proxies are found in the environment as other programs do, except for servers on this machine or right beside
//! it.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Method};
use reqwest::{Client, NoProxy, Proxy, Response, redirect, retry};
use tokio::time::timeout;

use super::tls::Tls;
use super::url::Host;
use super::{BadStore, StoreOptions};
use crate::environment::variable;
use crate::locked::locked;

/// No record and no error is longer.
const LONGEST_ANSWER: usize = 10_000_000;
/// The longest part of a text that an error repeats.
const SHOWN: usize = 300;

/// What is asked.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub method: Method,
    /// With the slash that begins it, and with the query.
    pub path: &'a str,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Whether it does no harm if it reaches the store twice.
    pub repeatable: bool,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Whether the store may have been told before, by a try that was not answered.
    pub asked_before: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Broken {
    pub why: Why,
    /// In words that name the server, and never a password.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Nothing was sent.
    Unreachable,
    /// The two sides do not trust each other, or a certificate's file is not what it should be.
    Distrust,
    /// Nothing was sent: perhaps the other side speaks no TLS.
    OtherProtocol,
    /// It may have been done.
    Halfway,
    /// There was no answer in time. It may have been done.
    Silence,
}

/// The servers of one store.
pub(super) struct Http {
    servers: Vec<Server>,
    /// The one that was answered by last.
    preferred: AtomicUsize,
    tls: Option<Tls>,
    connect_timeout: Duration,
    /// How long one request may take, with all that is tried again.
    limit: Duration,
    /// See [`StoreOptions::patience`]. Of more than two servers each has a part of it.
    patience: Mutex<Duration>,
}

struct Server {
    /// `http://host:port`
    base: String,
    is_near: bool,
    slot: Mutex<Slot>,
}

/// The pool of connections to one server, and which one it is.
#[derive(Default)]
struct Slot {
    number: u64,
    pool: Option<Client>,
}

impl Http {
    /// Reads no file and connects to nothing yet.
    pub fn new(
        hosts: &[Host],
        default_port: u16,
        tls: Option<Tls>,
        options: &StoreOptions,
    ) -> Result<Self, BadStore> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let servers = hosts.iter().map(|host| {
            let base = format!("{scheme}://{}", host.with_port(default_port));
            match reqwest::Url::parse(&base) {
                Ok(url) if is_nothing_but_a_host(&url) => Ok(Server {
                    base,
                    is_near: is_near(&host.name),
                    slot: Mutex::default(),
                }),
                _ => Err(BadStore::url(format!(
                    "name hosts that can be reached by HTTP, not {}",
                    host.name
                ))),
            }
        });
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            preferred: AtomicUsize::new(0),
            tls,
            connect_timeout: options.connect_timeout,
            limit: options.request_timeout,
            patience: Mutex::new(options.patience.min(options.request_timeout / 2)),
        })
    }

    /// Asks for an answer as a whole. `elsewhere`: of an answer that another server may better.
    pub async fn ask(
        &self,
        asked: &Asked<'_>,
        elsewhere: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, Broken> {
        match self.within_limit(asked, false, elsewhere).await? {
            Reply::Answer(answer) => Ok(answer),
            Reply::Lines(_) => unreachable!("not asked for"),
        }
    }

    /// Asks for an answer that goes on for as long as the connection does. `Ok(Err)`: it does not begin.
    pub async fn open(
        &self,
        asked: &Asked<'_>,
        elsewhere: impl Fn(&Answer) -> bool,
    ) -> Result<Result<Lines, Answer>, Broken> {
        match self.within_limit(asked, true, elsewhere).await? {
            Reply::Lines(lines) => Ok(Ok(lines)),
            Reply::Answer(answer) => Ok(Err(answer)),
        }
    }

    /// Where the timing of elections is not known from the start.
    pub fn set_patience(&self, patience: Duration) {
        *locked(&self.patience) = patience.min(self.limit / 2);
    }

    /// Closes all connections that nothing waits for.
    pub fn hang_up(&self) {
        for server in &self.servers {
            server.lock().pool = None;
        }
    }

    async fn within_limit(
        &self,
        asked: &Asked<'_>,
        stream: bool,
        elsewhere: impl Fn(&Answer) -> bool,
    ) -> Result<Reply, Broken> {
        let tried = timeout(self.limit, self.race(asked, stream, elsewhere)).await;
        tried.unwrap_or_else(|_| {
            let servers: Vec<_> = self.servers.iter().map(|server| &*server.base).collect();
            Err(Broken {
                why: Why::Silence,
                message: format!(
                    "no answer from {} within {} ms",
                    servers.join(", "),
                    self.limit.as_millis()
                ),
            })
        })
    }

    /// One try after the other, each of which may still be answered when the next has begun.
    async fn race(
        &self,
        asked: &Asked<'_>,
        stream: bool,
        elsewhere: impl Fn(&Answer) -> bool,
    ) -> Result<Reply, Broken> {
        let count = self.servers.len();
        let first = self.preferred.load(Ordering::Relaxed);
        let tries = count.max(2);
        let patience = 2 * *locked(&self.patience) / u32::try_from(tries).unwrap_or(u32::MAX);
        let (mut begun, mut outcome, mut asked_before) = (0, None, false);
        let mut running = FuturesUnordered::new();
        loop {
            let number = (first + begun) % count;
            running.push(async move { (number, self.once(number, asked, stream).await) });
            begun += 1;
            loop {
                let may_repeat = asked.repeatable && begun < tries;
                let next = if may_repeat {
                    timeout(patience, running.next()).await
                } else {
                    Ok(running.next().await)
                };
                let (answered, result) = match next {
                    Ok(Some(result)) => result,
                    // All have failed.
                    Ok(None) => return outcome.expect("at least one try"),
                    Err(_) => {
                        // Whatever is asked next is asked elsewhere.
                        self.servers[number].forget_pool();
                        self.preferred
                            .store((number + 1) % count, Ordering::Relaxed);
                        asked_before = true;
                        break;
                    }
                };
                let go_on = match &result {
                    Ok(Reply::Answer(answer)) => {
                        count > 1 && elsewhere(answer) && begun < tries && asked.repeatable
                    }
                    Ok(Reply::Lines(_)) => false,
                    // The only server will not be found at once.
                    Err(broken) if broken.why == Why::Unreachable => begun < count,
                    Err(broken) => {
                        let trusted = broken.why != Why::Distrust || count > 1;
                        may_repeat && trusted
                    }
                };
                let failed = go_on || result.is_err();
                if !failed {
                    self.preferred.store(answered, Ordering::Relaxed);
                    return result.map(|reply| reply.after(asked_before));
                }
                asked_before |= match &result {
                    Err(broken) => matches!(broken.why, Why::Halfway | Why::Silence),
                    Ok(_) => true,
                };
                outcome = Some(worse(outcome.take(), result, asked_before));
                if go_on {
                    break;
                }
            }
        }
    }

    async fn once(&self, number: usize, asked: &Asked<'_>, stream: bool) -> Result<Reply, Broken> {
        let server = &self.servers[number];
        let (client, pool) = server.pool(self).await?;
        let mut doubt = Doubt {
            http: self,
            server: number,
            pool,
            dismissed: false,
        };
        let result = server.send(&client, asked, stream).await;
        doubt.dismissed = result.is_ok();
        result
    }
}

/// Of several failures the one that says most: an answer before none, and the latest.
fn worse(
    before: Option<Result<Reply, Broken>>,
    now: Result<Reply, Broken>,
    asked_before: bool,
) -> Result<Reply, Broken> {
    match (before, now) {
        (Some(Ok(answer)), Err(_)) => Ok(answer.after(asked_before)),
        (Some(Err(before)), Err(mut now)) => {
            if !now.message.contains(&before.message) {
                now.message = format!("{}; {}", before.message, now.message);
            }
            // What may have been done stays so.
            if asked_before && now.why == Why::Unreachable {
                now.why = Why::Halfway;
            }
            Err(now)
        }
        (_, now) => now.map(|reply| reply.after(asked_before)),
    }
}

impl Server {
    async fn pool(&self, http: &Http) -> Result<(Client, u64), Broken> {
        let current = |slot: &Slot| Some((slot.pool.clone()?, slot.number));
        if let Some(current) = current(&self.lock()) {
            return Ok(current);
        }
        let pool = self.new_pool(http).await.map_err(|message| Broken {
            why: Why::Distrust,
            message,
        })?;
        let mut slot = self.lock();
        // Of several that began at the same time the first counts.
        if let Some(current) = current(&slot) {
            return Ok(current);
        }
        slot.number += 1;
        slot.pool = Some(pool.clone());
        Ok((pool, slot.number))
    }

    async fn new_pool(&self, http: &Http) -> Result<Client, String> {
        let tls = http.tls.clone().unwrap_or_default().client_config().await?;
        let mut builder = Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .connect_timeout(http.connect_timeout)
            .user_agent(concat!("whenleader/", env!("CARGO_PKG_VERSION")));
        builder = builder.no_proxy();
        if let Some(proxy) = self.proxy()? {
            builder = builder.proxy(proxy);
        }
        builder.build().map_err(|error| chain(&error))
    }

    /// The one that the environment names for servers like this.
    fn proxy(&self) -> Result<Option<Proxy>, String> {
        if self.is_near {
            return Ok(None);
        }
        // In a CGI program, `HTTP_PROXY` is a header of whoever asks.
        let upper = |name: &&str| *name != "HTTP_PROXY" || variable("REQUEST_METHOD").is_none();
        let names = if self.base.starts_with("https:") {
            ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
        } else {
            ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
        };
        let mut counting = names.into_iter().filter(upper);
        let found = counting.find_map(|name| Some((name, variable(name)?)));
        let Some((name, url)) = found else {
            return Ok(None);
        };
        let proxy = Proxy::all(url)
            // The value is not shown: it may hold a password.
            .map_err(|_| format!("the environment variable {name} holds no URL of a proxy"))?;
        let excepted = variable("no_proxy").or_else(|| variable("NO_PROXY"));
        let excepted = excepted.and_then(|list| NoProxy::from_string(&list));
        Ok(Some(proxy.no_proxy(excepted)))
    }

    async fn send(&self, pool: &Client, asked: &Asked<'_>, stream: bool) -> Result<Reply, Broken> {
        let response = pool
            .request(asked.method.clone(), format!("{}{}", self.base, asked.path))
            .headers(asked.headers.clone())
            .body(asked.body.clone())
            .send()
            .await
            .map_err(|error| self.broken(error))?;
        if stream && response.status().is_success() {
            return Ok(Reply::Lines(Lines {
                server: self.base.clone(),
                response,
                rest: Vec::new(),
            }));
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Reply::Answer(Answer {
            status,
            headers,
            body: self.body_of(response).await?,
            asked_before: false,
        }))
    }

    async fn body_of(&self, mut response: Response) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| self.broken(error))? {
            if body.len() + part.len() > LONGEST_ANSWER {
                return Err(Broken::halfway(format!(
                    "{} answered more than {LONGEST_ANSWER} bytes",
                    self.base
                )));
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    }

    fn broken(&self, error: reqwest::Error) -> Broken {
        broken(&self.base, error)
    }

    fn forget_pool(&self) {
        self.lock().pool = None;
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        locked(&self.slot)
    }
}

/// Unless an answer came, replaces a server's connections, since others of them may be as dead, and turns to the
/// next server: whoever gives up waiting leaves both for whoever asks next.
struct Doubt<'a> {
    http: &'a Http,
    server: usize,
    pool: u64,
    dismissed: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if self.dismissed {
            return;
        }
        let Http {
            servers, preferred, ..
        } = self.http;
        let mut slot = servers[self.server].lock();
        if slot.number == self.pool {
            slot.pool = None;
        }
        let next = (self.server + 1) % servers.len();
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = preferred.compare_exchange(self.server, next, set, get);
    }
}

enum Reply {
    Answer(Answer),
    Lines(Lines),
}

impl Reply {
    fn after(mut self, asked_before: bool) -> Self {
        if let Self::Answer(answer) = &mut self {
            answer.asked_before |= asked_before;
        }
        self
    }
}

/// An answer that goes on, line by line.
#[derive(Debug)]
pub(super) struct Lines {
    server: String,
    response: Response,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line, without its end. May be given up and asked for again. Never ends well: a stream that
    /// ends is broken.
    pub async fn next(&mut self) -> Result<Vec<u8>, Broken> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.rest[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=searched + end).collect();
                line.pop();
                return Ok(line);
            }
            searched = self.rest.len();
            if searched > LONGEST_ANSWER {
                return Err(Broken::halfway(format!(
                    "{} sent a line of more than {LONGEST_ANSWER} bytes",
                    self.server
                )));
            }
            match self.response.chunk().await {
                Ok(Some(part)) => self.rest.extend_from_slice(&part),
                Ok(None) => {
                    return Err(Broken::halfway(format!(
                        "the stream from {} ended",
                        self.server
                    )));
                }
                Err(error) => return Err(broken(&self.server, error)),
            }
        }
    }
}

impl Broken {
    fn halfway(message: String) -> Self {
        Self {
            why: Why::Halfway,
            message,
        }
    }
}

fn broken(server: &str, error: reqwest::Error) -> Broken {
    let error = error.without_url();
    let mut why = if error.is_connect() || error.is_builder() {
        Why::Unreachable
    } else {
        Why::Halfway
    };
    let mut next: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(cause) = next {
        // It hung up on the first words, which it did not understand.
        if error.is_connect() && is_early_end(cause) {
            why = Why::OtherProtocol;
        }
        match tls_error(cause) {
            Some(rustls::Error::InvalidMessage(_)) => why = Why::OtherProtocol,
            Some(
                rustls::Error::InvalidCertificate(_)
                | rustls::Error::AlertReceived(_)
                | rustls::Error::NoCertificatesPresented,
            ) => why = Why::Distrust,
            _ => {}
        }
        next = cause.source();
    }
    let words = chain(&error);
    let message = if error.is_connect() {
        format!("{server} cannot be reached: {words}")
    } else {
        format!("the connection to {server} broke: {words}")
    };
    Broken { why, message }
}

fn is_early_end(error: &(dyn Error + 'static)) -> bool {
    let Some(error) = error.downcast_ref::<std::io::Error>() else {
        return false;
    };
    let wrapped = || error.get_ref().is_some_and(|inner| is_early_end(inner));
    error.kind() == ErrorKind::UnexpectedEof || wrapped()
}

/// It may stand in another one that shows only its causes.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(wrapped) = error.downcast_ref::<std::io::Error>() {
        return wrapped.get_ref().and_then(|inner| tls_error(inner));
    }
    error.downcast_ref()
}

fn is_nothing_but_a_host(url: &reqwest::Url) -> bool {
    let nothing = url.username().is_empty() && url.path() == "/";
    nothing && url.query().is_none() && url.fragment().is_none()
}

/// Whether a request to it stays on this machine, or goes to what clouds put beside each one.
pub(super) fn is_near(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => {
            let is_of_aws = address.segments()[..2] == [0xfd00, 0x0ec2];
            address.is_loopback() || address.is_unicast_link_local() || is_of_aws
        }
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// An error and its causes, without what they repeat.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    excerpt(&text)
}

/// What a person can read of a text of unknown length and kind.
pub(super) fn excerpt(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let line: String = words.join(" ").chars().take(SHOWN).collect();
    if line.is_empty() {
        "nothing".into()
    } else {
        line
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.servers.iter().map(|server| &server.base);
        f.debug_list().entries(servers).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(900);

    /// What a server does when it is asked.
    #[derive(Clone, Copy)]
    enum Does {
        /// Sends this, then hangs up.
        Say(&'static str),
        HangUp,
        Nothing,
        /// A good answer whose body has no end.
        Flood,
    }

    /// A server on this machine, and how often it was asked.
    async fn server(does: Does) -> (Host, Arc<AtomicUsize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let host = Host {
            name: "127.0.0.1".into(),
            port: Some(listener.local_addr().unwrap().port()),
        };
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, does, Arc::clone(&count)));
            }
        });
        (host, asked)
    }

    async fn serve(mut client: TcpStream, does: Does, asked: Arc<AtomicUsize>) -> Option<()> {
        let mut request = Vec::new();
        while !request.ends_with(b"?") {
            client
                .read_buf(&mut request)
                .await
                .ok()
                .filter(|length| *length > 0)?;
        }
        asked.fetch_add(1, Ordering::Relaxed);
        match does {
            Does::Say(text) => client.write_all(text.as_bytes()).await.ok()?,
            Does::HangUp => {}
            Does::Nothing => std::future::pending().await,
            Does::Flood => {
                let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
                client.write_all(head).await.ok()?;
                while client.write_all(&[b'x'; 8192]).await.is_ok() {}
            }
        }
        Some(())
    }

    fn http(hosts: &[Host]) -> Http {
        let mut options = StoreOptions::new(".");
        options.request_timeout = LIMIT;
        Http::new(hosts, 80, None, &options).unwrap()
    }

    fn asked(repeatable: bool) -> Asked<'static> {
        Asked {
            method: Method::POST,
            path: "/x",
            headers: HeaderMap::new(),
            body: b"?".to_vec(),
            repeatable,
        }
    }

    fn times(asked: &AtomicUsize) -> usize {
        asked.load(Ordering::Relaxed)
    }

    const GOOD: Does = Does::Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    const SORRY: Does = Does::Say("HTTP/1.1 503 x\r\nContent-Length: 5\r\n\r\nsorry");

    #[tokio::test]
    async fn what_is_not_answered_is_sent_twice_only_if_that_does_no_harm() {
        for (does, why) in [(Does::HangUp, Why::Halfway), (Does::Nothing, Why::Silence)] {
            for repeatable in [false, true] {
                let (host, count) = server(does).await;
                let broken = http(&[host]).ask(&asked(repeatable), |_| false).await;
                assert_eq!(broken.expect_err("no answer").why, why);
                assert_eq!(times(&count), 1 + usize::from(repeatable));
            }
        }
    }

    #[tokio::test]
    async fn servers_that_fail_are_passed_over_and_the_one_that_answers_is_kept() {
        for does in [Does::HangUp, Does::Nothing, SORRY] {
            let ((bad, bad_count), (good, good_count)) = (server(does).await, server(GOOD).await);
            let http = http(&[bad, good]);
            for _ in 0..3 {
                let answer = http.ask(&asked(true), |answer| answer.status >= 500).await;
                let answer = answer.expect("the other one answers");
                assert_eq!((answer.status, &*answer.body), (200, b"ok".as_slice()));
            }
            assert_eq!((times(&bad_count), times(&good_count)), (1, 3));
        }
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_left_also_by_what_must_not_be_sent_twice() {
        let ((bad, _), (good, count)) = (server(Does::Nothing).await, server(GOOD).await);
        let http = http(&[bad, good]);
        let asked = asked(false);
        let given_up = timeout(LIMIT / 3, http.ask(&asked, |_| false));
        assert!(given_up.await.is_err());
        let answer = http.ask(&asked, |_| false).await;
        assert_eq!((answer.expect("an answer").status, times(&count)), (200, 1));
    }

    #[tokio::test]
    async fn an_answer_tells_whether_the_request_may_have_come_through_before() {
        let ((bad, _), (good, _)) = (server(Does::HangUp).await, server(GOOD).await);
        let both = http(&[bad, good.clone()]);
        let answer = both.ask(&asked(true), |_| false).await;
        assert!(answer.expect("an answer").asked_before);
        let answer = both.ask(&asked(true), |_| false).await;
        assert!(!answer.expect("an answer").asked_before);
        // Nothing was sent to a server that is not there.
        let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = Some(gone.local_addr().unwrap().port());
        drop(gone);
        let name = "127.0.0.1".to_owned();
        let gone = Host { name, port };
        let answer = http(&[gone.clone(), good])
            .ask(&asked(false), |_| false)
            .await;
        assert!(!answer.expect("an answer").asked_before);
        let broken = http(&[gone]).ask(&asked(true), |_| false).await;
        assert_eq!(broken.expect_err("gone").why, Why::Unreachable);
    }

    #[tokio::test]
    async fn of_servers_that_all_fail_an_answer_is_told_rather_than_none() {
        for order in [[SORRY, Does::HangUp], [Does::HangUp, SORRY]] {
            let ((one, _), (two, _)) = (server(order[0]).await, server(order[1]).await);
            let elsewhere = |answer: &Answer| answer.status >= 500;
            let answer = http(&[one, two]).ask(&asked(true), elsewhere).await;
            let answer = answer.expect("an answer");
            assert!(answer.status == 503 && answer.asked_before);
        }
    }

    #[tokio::test]
    async fn no_redirect_is_followed() {
        let (target, count) = server(GOOD).await;
        let port = target.port.unwrap();
        let text = format!(
            "HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n"
        );
        let (host, _) = server(Does::Say(text.leak())).await;
        let answer = http(&[host]).ask(&asked(true), |_| false).await;
        assert_eq!(answer.expect("an answer").status, 307);
        assert_eq!(times(&count), 0);
    }

    #[tokio::test]
    async fn an_answer_without_an_end_is_given_up() {
        let (host, _) = server(Does::Flood).await;
        let http = http(&[host]);
        let broken = http.ask(&asked(false), |_| false).await;
        assert_ne!(broken.expect_err("too much").why, Why::Unreachable);
        let opened = http.open(&asked(false), |_| false).await.unwrap();
        let line = opened.expect("a stream").next().await;
        assert!(line.expect_err("too long").message.contains("bytes"));
    }

    #[tokio::test]
    async fn a_stream_is_told_line_by_line_until_it_breaks() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    3\r\none\r\n5\r\n\ntwo\n\r\n2\r\nth\r\n0\r\n\r\n";
        let (host, _) = server(Does::Say(text)).await;
        let opened = http(&[host]).open(&asked(true), |_| false).await.unwrap();
        let mut lines = opened.expect("a stream");
        for line in ["one", "two"] {
            assert_eq!(lines.next().await.expect("a line"), line.as_bytes());
        }
        let end = lines.next().await.expect_err("half a line");
        assert!(end.message.contains("ended"), "{}", end.message);
        let (host, _) = server(SORRY).await;
        let opened = http(&[host]).open(&asked(true), |_| false).await.unwrap();
        assert_eq!(opened.err().map(|answer| answer.status), Some(503));
    }

    #[test]
    fn no_proxy_stands_before_this_machine_or_what_is_beside_it() {
        for (host, near) in [
            ("localhost", true),
            ("LOCALHOST", true),
            ("127.0.0.1", true),
            ("127.8.8.8", true),
            ("::1", true),
            ("169.254.169.254", true),
            ("fd00:ec2::23", true),
            ("fd00::1", false),
            ("10.0.0.1", false),
            ("localhost.example", false),
        ] {
            assert_eq!(is_near(host), near, "{host}");
        }
    }

    #[test]
    fn a_host_that_no_url_can_hold_is_refused() {
        for name in ["a b", "u@h", "h/x", "h?x", "h#x", "[", ""] {
            let name = name.to_owned();
            let hosts = [Host { name, port: None }];
            let made = Http::new(&hosts, 80, None, &StoreOptions::new("."));
            assert_eq!(made.expect_err("no host").parameter, "store");
        }
    }
}
