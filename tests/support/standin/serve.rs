//! Connections: each request gets its answer, or the fault that was ordered for it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::api::{Api, Reply};
use super::fault::{Fault, Rule};
use super::http::{self, Connection, Request};
use super::status;
use super::target::{self, Target};
use super::watch::Watch;

/// What open watches look at. The numbers only grow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Signals {
    pub changes: u64,
    pub cuts: u64,
    pub expiries: u64,
    pub bookmarks: u64,
    pub deaf: bool,
}

pub struct Shared {
    pub api: Mutex<Api>,
    pub rules: Mutex<Vec<Rule>>,
    pub requests: Mutex<Vec<Request>>,
    pub signals: watch::Sender<Signals>,
    pub watches: AtomicUsize,
    /// What it shows to new connections. `None`: they are not encrypted.
    pub tls: Mutex<Option<TlsAcceptor>>,
}

impl Shared {
    pub fn api(&self) -> MutexGuard<'_, Api> {
        self.api.lock().unwrap()
    }

    /// Notes a request, and takes what shall go wrong with it.
    fn note(&self, request: &Request) -> Option<Fault> {
        self.requests.lock().unwrap().push(request.clone());
        let mut rules = self.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| rule.meets(request))?;
        if let Some(left) = &mut rule.left {
            *left -= 1;
        }
        Some(rule.fault.clone())
    }

    fn handle(&self, request: &Request) -> Reply {
        let reply = self.api().handle(request);
        self.signal(|signals| signals.changes += 1);
        reply
    }

    pub fn signal(&self, change: impl FnOnce(&mut Signals)) {
        self.signals.send_modify(change);
    }
}

#[derive(Debug)]
pub enum Command {
    Down,
    Up,
}

/// Takes connections until the stand-in's value is gone.
pub async fn listen(
    shared: Arc<Shared>,
    mut orders: mpsc::UnboundedReceiver<(Command, oneshot::Sender<()>)>,
    ready: oneshot::Sender<u16>,
) {
    let bind = |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut listener = Some(bind(0).await.unwrap());
    let port = listener.as_ref().unwrap().local_addr().unwrap().port();
    let _ = ready.send(port);
    let mut links = JoinSet::new();
    loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some((Command::Down, done)) => {
                    listener = None;
                    links.shutdown().await;
                    let _ = done.send(());
                }
                Some((Command::Up, done)) => {
                    listener = Some(bind(port).await.expect("the port is still free"));
                    let _ = done.send(());
                }
            },
            taken = accept => {
                if let Ok((stream, _)) = taken {
                    let _ = stream.set_nodelay(true);
                    links.spawn(greet(stream, Arc::clone(&shared)));
                }
            }
            Some(_) = links.join_next() => {}
        }
    }
}

async fn greet(stream: TcpStream, shared: Arc<Shared>) {
    let acceptor = shared.tls.lock().unwrap().clone();
    let connection = match acceptor {
        None => Connection::new(Box::new(stream)),
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => Connection::new(Box::new(TlsStream::from(stream))),
            Err(_) => return,
        },
    };
    serve(connection, shared).await;
}

async fn serve(mut connection: Connection, shared: Arc<Shared>) {
    while let Ok(Some(mut request)) = connection.read().await {
        request.verb = target::verb(&request);
        let fault = shared.note(&request);
        let kept = match fault {
            None => reply(connection, &shared, &request).await,
            Some(fault) => fail(connection, &shared, &request, fault).await,
        };
        match kept {
            Some(kept) => connection = kept,
            None => return,
        }
    }
}

/// Gives the connection back while it can serve another request.
async fn reply(
    mut connection: Connection,
    shared: &Shared,
    request: &Request,
) -> Option<Connection> {
    let sent = match shared.handle(request) {
        Reply::Answer(answer) => connection.answer(&answer).await,
        Reply::Watch(watch) => {
            shared.watches.fetch_add(1, Ordering::SeqCst);
            let _open = Open(&shared.watches);
            stream(&mut connection, shared, watch).await
        }
    };
    sent.is_ok().then_some(connection)
}

async fn fail(
    mut connection: Connection,
    shared: &Shared,
    request: &Request,
    fault: Fault,
) -> Option<Connection> {
    match fault {
        Fault::Answer(answer) => {
            connection.answer(&answer).await.ok()?;
            return Some(connection);
        }
        Fault::Conflict => {
            let target = Target::at(&request.path)?;
            connection.answer(&status::modified(&target)).await.ok()?;
            return Some(connection);
        }
        Fault::Delay(time) => {
            sleep(time).await;
            return reply(connection, shared, request).await;
        }
        Fault::AnswerLate(time) => {
            let (head, body) = bytes(shared.handle(request));
            sleep(time).await;
            connection.write(&[head, body].concat()).await.ok()?;
            return Some(connection);
        }
        Fault::Stall => connection.closed().await,
        Fault::ApplyThenStall => {
            shared.handle(request);
            connection.closed().await;
        }
        Fault::ApplyThenReset => {
            shared.handle(request);
            connection.reset();
        }
        Fault::HeadersThenStall => {
            let (head, _) = bytes(shared.handle(request));
            connection.write(&head).await.ok()?;
            connection.closed().await;
        }
        Fault::ResetMidBody => {
            let (head, body) = bytes(shared.handle(request));
            let half = &body[..body.len() / 2];
            connection.write(&[&head[..], half].concat()).await.ok()?;
            connection.reset();
        }
        Fault::Refuse => {}
    }
    None
}

/// A reply's head and body. A watch has a first event, of which a part can be sent.
fn bytes(reply: Reply) -> (Vec<u8>, Vec<u8>) {
    match reply {
        Reply::Answer(answer) => (http::head(&answer), answer.body),
        Reply::Watch(watch) => {
            let mut first = watch.first.first().cloned();
            let event = first.get_or_insert_with(|| watch.bookmark(watch.cursor));
            (
                http::stream_head(),
                http::chunk(format!("{event}\n").as_bytes()),
            )
        }
    }
}

/// Counts a watch while it is open.
struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Sends events until the watch ends; the connection may then be used again.
async fn stream(
    connection: &mut Connection,
    shared: &Shared,
    mut watch: Watch,
) -> std::io::Result<()> {
    let mut signals = shared.signals.subscribe();
    let start = *signals.borrow_and_update();
    let mut bookmarks = start.bookmarks;
    let end = async {
        match watch.timeout {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(end);
    connection.write(&http::stream_head()).await?;
    for event in std::mem::take(&mut watch.first) {
        if !start.deaf {
            connection.chunk(format!("{event}\n").as_bytes()).await?;
        }
    }
    while !watch.over {
        let now = *signals.borrow_and_update();
        if now.cuts != start.cuts {
            break;
        }
        let mut events = Vec::new();
        if now.deaf {
            // What happens meanwhile is lost to it for ever.
            watch.cursor = shared.api().store.revision;
        } else if now.expiries != start.expiries {
            let compacted = shared.api().store.compacted;
            let gone = status::too_old(watch.cursor, compacted);
            events.push(json!({ "type": "ERROR", "object": gone }));
            watch.over = true;
        } else {
            let api = shared.api();
            for event in api
                .store
                .since(watch.cursor)
                .filter(|event| watch.wants(event))
            {
                events.push(json!({ "type": event.change.name(), "object": event.object }));
            }
            watch.cursor = watch.cursor.max(api.store.revision);
            if now.bookmarks != bookmarks && watch.bookmarks {
                events.push(watch.bookmark(watch.cursor));
            }
            bookmarks = now.bookmarks;
        }
        for event in events {
            connection.chunk(format!("{event}\n").as_bytes()).await?;
        }
        if watch.over {
            break;
        }
        tokio::select! {
            () = &mut end => {
                if watch.bookmarks && !signals.borrow().deaf {
                    let last = watch.bookmark(watch.cursor);
                    connection.chunk(format!("{last}\n").as_bytes()).await?;
                }
                break;
            }
            changed = signals.changed() => if changed.is_err() { break },
            () = connection.closed() => return Err(std::io::ErrorKind::ConnectionAborted.into()),
        }
    }
    connection.chunk(b"").await
}
