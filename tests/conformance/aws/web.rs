//! A web server whose answers a test makes, and that keeps what it was asked.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, OnceLock};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    /// With the query.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// As S3 refuses.
    pub fn xml(status: u16, code: &str, more: &str) -> Self {
        Self::new(
            status,
            format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code>{more}</Error>"),
        )
    }

    /// As `DynamoDB` refuses.
    pub fn json(code: &str, message: &str) -> Self {
        let kind = format!("com.amazonaws.dynamodb.v20120810#{code}");
        let body = serde_json::json!({ "__type": kind, "message": message });
        Self::new(400, body.to_string())
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// `None`: the connection is closed instead.
type Handler = dyn Fn(Asked) -> BoxFuture<'static, Option<Reply>> + Send + Sync;

#[derive(Debug)]
pub struct Web {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Web {
    pub async fn answering(
        handler: impl Fn(Asked) -> BoxFuture<'static, Option<Reply>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (handler, kept): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handler, kept) = (Arc::clone(&handler), Arc::clone(&kept));
                tokio::spawn(async move { serve(stream, &*handler, &kept).await });
            }
        });
        Self { port, asked, task }
    }

    /// The same to everybody.
    pub async fn saying(reply: Reply) -> Self {
        Self::answering(move |_| {
            let reply = reply.clone();
            Box::pin(async move { Some(reply) })
        })
        .await
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, handler: &Handler, kept: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let asked = read(&mut stream).await?;
        kept.lock().unwrap().push(asked.clone());
        let reply = handler(asked).await?;
        let mut head = format!("HTTP/1.1 {} x\r\n", reply.status);
        for (name, value) in &reply.headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        if reply.status != 304 && reply.status != 204 {
            write!(head, "content-length: {}\r\n", reply.body.len()).unwrap();
        }
        head.push_str("\r\n");
        // At once: a second part would wait for the first one to be acknowledged.
        let whole = [head.as_bytes(), &reply.body].concat();
        stream.write_all(&whole).await.ok()?;
        stream.flush().await.ok()?;
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream
            .read_line(&mut line)
            .await
            .ok()
            .filter(|length| *length > 0)?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut first = lines.first()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<_> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Asked {
        method,
        path,
        headers,
        body,
    })
}

pub fn client() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        // Tests run one after the other on runtimes of their own: no connection outlives one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap()
    })
}

/// What the server there says to the very same request.
pub async fn forward(port: u16, asked: &Asked) -> Reply {
    let method = asked.method.parse().unwrap();
    let mut request = client().request(method, format!("http://127.0.0.1:{port}{}", asked.path));
    for (name, value) in &asked.headers {
        request = request.header(name, value);
    }
    let answer = request.body(asked.body.clone()).send().await.unwrap();
    let headers = answer.headers().iter();
    let kept = ["etag", "content-type", "date", "x-amzn-errortype"];
    let headers = headers
        .filter(|(name, _)| kept.contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    Reply {
        status: answer.status().as_u16(),
        headers,
        body: answer.bytes().await.unwrap().to_vec(),
    }
}
