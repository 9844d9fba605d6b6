//! HTTP/1.1 as bytes on a socket, written by hand because the faults are about bytes and sockets: a
//! server library would repair what a test wants broken.

use std::fmt::Write as _;
use std::io;
use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Decoded, in the order of the URL.
    pub query: Vec<(String, String)>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// When its last byte had arrived.
    pub at: Instant,
    /// What Kubernetes calls it: get, list, watch, create, update, patch, delete.
    pub verb: &'static str,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn asks(&self, name: &str) -> bool {
        matches!(self.query(name), Some("1" | "true"))
    }

    pub fn token(&self) -> Option<&str> {
        self.header("authorization")?.strip_prefix("Bearer ")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// What the request's manager is called in `managedFields`.
    pub fn manager(&self) -> &str {
        let agent = self.header("user-agent").unwrap_or("unknown");
        let name = agent.split(['/', ' ']).next().unwrap_or(agent);
        self.query("fieldManager").unwrap_or(name)
    }
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// Without a body.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(status).body("application/json", format!("{body}\n"))
    }

    /// A `Status` as the server sends when something failed. An empty reason is left out.
    pub fn failure(status: u16, reason: &str, message: &str) -> Self {
        Self::json(
            status,
            &super::status::failure(status, reason, message, None),
        )
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn body(self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut answer = self.header("Content-Type", content_type);
        answer.body = body.into();
        answer
    }
}

/// A connection, encrypted or not, that can be broken off.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {
    /// The other side gets a reset when this is dropped, and no orderly end.
    fn reset_on_drop(&self);
}

impl Wire for TcpStream {
    fn reset_on_drop(&self) {
        let _ = self.set_zero_linger();
    }
}

impl Wire for TlsStream<TcpStream> {
    fn reset_on_drop(&self) {
        self.get_ref().0.reset_on_drop();
    }
}

pub struct Connection(BufReader<Box<dyn Wire>>);

impl Connection {
    pub fn new(wire: Box<dyn Wire>) -> Self {
        Self(BufReader::new(wire))
    }

    /// `None`: the other side has no more requests.
    pub async fn read(&mut self) -> io::Result<Option<Request>> {
        let Some(line) = self.line().await? else {
            return Ok(None);
        };
        let mut words = line.split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut headers = Vec::new();
        while let Some(line) = self.line().await?.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Request {
            method: method.to_owned(),
            path: path.to_owned(),
            query: url::form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
            headers,
            body: Vec::new(),
            at: Instant::now(),
            verb: "",
        };
        if request.header("expect").is_some() {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        request.body = self.content(&request.headers).await?;
        request.at = Instant::now();
        Ok(Some(request))
    }

    /// An answer as a client sees it, for clients of the tests' own.
    pub async fn read_answer(&mut self) -> io::Result<Answer> {
        let mut answer = self.read_head().await?;
        answer.body = self.content(&answer.headers).await?;
        Ok(answer)
    }

    pub async fn read_head(&mut self) -> io::Result<Answer> {
        let line = self.line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut answer = Answer::new(status.ok_or(io::ErrorKind::InvalidData)?);
        while let Some(line) = self.line().await?.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            answer = answer.header(&name.to_ascii_lowercase(), value.trim());
        }
        Ok(answer)
    }

    pub async fn content(&mut self, headers: &[(String, String)]) -> io::Result<Vec<u8>> {
        let header = |name| headers.iter().find(|(key, _)| key == name);
        let mut body = Vec::new();
        if header("transfer-encoding").is_some() {
            while let Some(chunk) = self.read_chunk().await? {
                body.extend(chunk);
            }
        } else if let Some((_, length)) = header("content-length") {
            body.resize(length.parse().map_err(|_| io::ErrorKind::InvalidData)?, 0);
            self.0.read_exact(&mut body).await?;
        }
        Ok(body)
    }

    /// `None`: that was the last one.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = usize::from_str_radix(&line, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut chunk = vec![0; length];
        self.0.read_exact(&mut chunk).await?;
        self.line().await?;
        Ok((length > 0).then_some(chunk))
    }

    async fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(Some(line))
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    pub async fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        self.write(&[head(answer), answer.body.clone()].concat())
            .await
    }

    pub async fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(&chunk(bytes)).await
    }

    /// Returns when the other side has closed; what it still says is thrown away.
    pub async fn closed(&mut self) {
        let mut rest = [0; 4096];
        while let Ok(1..) = self.0.read(&mut rest).await {}
    }

    pub fn reset(self) {
        self.0.get_ref().reset_on_drop();
    }
}

/// The head that goes before a whole body.
pub fn head(answer: &Answer) -> Vec<u8> {
    format!(
        "{}Content-Length: {}\r\n\r\n",
        start(answer),
        answer.body.len()
    )
    .into_bytes()
}

/// The head of a body that goes on.
pub fn stream_head() -> Vec<u8> {
    let answer = Answer::new(200).header("Content-Type", "application/json");
    format!("{}Transfer-Encoding: chunked\r\n\r\n", start(&answer)).into_bytes()
}

pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend(bytes);
    chunk.extend(b"\r\n");
    chunk
}

fn start(answer: &Answer) -> String {
    let mut head = format!("HTTP/1.1 {} {}\r\n", answer.status, phrase(answer.status));
    head.push_str("Cache-Control: no-cache, private\r\n");
    for (name, value) in &answer.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Other",
    }
}
