//! A TCP proxy that hurts connections on command.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to connections from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    None,
    /// Answers come later.
    Delay(Duration),
    /// Requests go through, and answers are kept back for ever.
    HoldAnswers,
    /// Requests go through; at the first answer the connection is closed instead.
    CutAnswers,
    /// As `CutAnswers`, but so many bytes of answers pass first.
    CutAfter(usize),
    /// New connections are taken and closed at once.
    Refuse,
    /// Nothing passes in either direction and nothing is closed: the other end has vanished.
    HalfOpen,
}

/// What links look at.
#[derive(Debug, Clone, Copy)]
struct Order {
    trouble: Trouble,
    /// Links with lower numbers are half-open for ever.
    frozen: usize,
}

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    order: watch::Sender<Order>,
    links: Arc<Mutex<Vec<JoinHandle<()>>>>,
    accepting: JoinHandle<()>,
    count: Arc<Mutex<usize>>,
}

impl Proxy {
    pub async fn to(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (order, seen) = watch::channel(Order {
            trouble: Trouble::None,
            frozen: 0,
        });
        let links: Arc<Mutex<Vec<JoinHandle<()>>>> = Arc::default();
        let count: Arc<Mutex<usize>> = Arc::default();
        let (all, counted) = (Arc::clone(&links), Arc::clone(&count));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if seen.borrow().trouble == Trouble::Refuse {
                    continue;
                }
                let number = *counted.lock().unwrap();
                *counted.lock().unwrap() += 1;
                let link = tokio::spawn(carry(client, target, number, seen.clone()));
                all.lock().unwrap().push(link);
            }
        });
        Self {
            port,
            order,
            links,
            accepting,
            count,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn set(&self, trouble: Trouble) {
        self.order.send_modify(|order| order.trouble = trouble);
    }

    /// The other end of all connections that exist now has vanished without a word.
    pub fn freeze(&self) {
        let count = self.connections();
        self.order.send_modify(|order| order.frozen = count);
    }

    /// Breaks all connections that exist now.
    pub fn cut(&self) {
        for link in self.links.lock().unwrap().drain(..) {
            link.abort();
        }
    }

    /// How many connections there are now.
    pub fn open(&self) -> usize {
        let links = self.links.lock().unwrap();
        links.iter().filter(|link| !link.is_finished()).count()
    }

    /// How many connections were ever made.
    pub fn connections(&self) -> usize {
        *self.count.lock().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// A server that says the same to whatever it is asked.
#[derive(Debug)]
pub struct Scripted {
    port: u16,
    task: JoinHandle<()>,
}

impl Scripted {
    pub async fn answering(answer: Vec<u8>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut asked = vec![0; 65536];
                    while let Ok(length @ 1..) = client.read(&mut asked).await {
                        // One for each request: they begin with a star, as no argument here does.
                        let count = asked[..length].split(|byte| *byte == b'*').count() - 1;
                        for _ in 0..count.max(1) {
                            if client.write_all(&answer).await.is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        });
        Self { port, task }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut client: TcpStream,
    target: u16,
    number: usize,
    mut orders: watch::Receiver<Order>,
) {
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else {
        return;
    };
    let (mut asks, mut answers) = (vec![0; 65536], vec![0; 65536]);
    let mut passed = 0;
    loop {
        let order = *orders.borrow_and_update();
        let now = if number < order.frozen {
            Trouble::HalfOpen
        } else {
            order.trouble
        };
        tokio::select! {
            Ok(()) = orders.changed() => { passed = 0; }
            read = client.read(&mut asks), if now != Trouble::HalfOpen => match read {
                Ok(length @ 1..) if server.write_all(&asks[..length]).await.is_ok() => {}
                _ => return,
            },
            read = server.read(&mut answers), if !matches!(now, Trouble::HalfOpen | Trouble::HoldAnswers) => {
                let Ok(length @ 1..) = read else { return };
                let end = match now {
                    Trouble::CutAnswers => 0,
                    Trouble::CutAfter(limit) => length.min(limit.saturating_sub(passed)),
                    _ => length,
                };
                if let Trouble::Delay(time) = now {
                    tokio::time::sleep(time).await;
                }
                passed += length;
                if client.write_all(&answers[..end]).await.is_err() || end < length {
                    return;
                }
            }
        }
    }
}
