//! A plain client for what tests ask the stand-in themselves: one connection a request, nothing hidden.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::Value;
use tokio::net::TcpStream;

use super::http::{Answer, Connection, Wire};
use super::tls;

#[derive(Debug, Clone)]
pub struct Client {
    port: u16,
    token: Option<String>,
    /// The certificate of the server's authority, if it has one.
    ca: Option<PathBuf>,
}

impl Client {
    /// Without a token it is anonymous.
    pub fn new(port: u16, token: Option<&str>, ca: Option<PathBuf>) -> Self {
        Self {
            port,
            token: token.map(str::to_owned),
            ca,
        }
    }

    /// Sends a request and leaves the rest to the caller.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> io::Result<Connection> {
        let wire: Box<dyn Wire> = match &self.ca {
            None => Box::new(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?),
            Some(ca) => Box::new(tls::connect(self.port, ca).await?),
        };
        let mut connection = Connection::new(wire);
        let authorization = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}\
             Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        connection.write(request.as_bytes()).await?;
        Ok(connection)
    }

    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> io::Result<Answer> {
        let mut connection = self.send(method, path, content_type, body).await?;
        connection.read_answer().await
    }

    pub async fn get(&self, path: &str) -> io::Result<Answer> {
        self.ask("GET", path, "application/json", "").await
    }

    pub async fn put(&self, path: &str, body: &Value) -> io::Result<Answer> {
        self.ask("PUT", path, "application/json", &body.to_string())
            .await
    }

    pub async fn post(&self, path: &str, body: &Value) -> io::Result<Answer> {
        self.ask("POST", path, "application/json", &body.to_string())
            .await
    }

    /// Opens a stream of events.
    pub async fn watch(&self, path: &str) -> io::Result<Events> {
        let mut connection = self.send("GET", path, "application/json", "").await?;
        let head = connection.read_head().await?;
        if head.status != 200 {
            return Err(io::Error::other(format!(
                "a watch is answered {}",
                head.status
            )));
        }
        Ok(Events(connection))
    }
}

pub struct Events(Connection);

impl Events {
    /// `None`: the stream has ended in order.
    pub async fn next(&mut self) -> io::Result<Option<Value>> {
        let chunk = self.0.read_chunk().await?;
        Ok(chunk.map(|chunk| serde_json::from_slice(&chunk).unwrap_or_default()))
    }
}
