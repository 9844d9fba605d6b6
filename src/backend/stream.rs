//! Streams of bytes to servers whose protocols are no HTTP. Knows no store.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::url::Host;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Duplex for T {}

pub(super) type Stream = Box<dyn Duplex>;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Tcp(Host),
    /// Of this machine's file system.
    Socket(PathBuf),
}

impl Place {
    pub async fn connect(&self, default_port: u16) -> io::Result<Stream> {
        let host = match self {
            Self::Tcp(host) => host,
            #[cfg(unix)]
            Self::Socket(path) => {
                return Ok(Box::new(tokio::net::UnixStream::connect(path).await?));
            }
            #[cfg(not(unix))]
            Self::Socket(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "sockets of the file system are not used on this system: name a host",
                ));
            }
        };
        let port = host.port.unwrap_or(default_port);
        let stream = TcpStream::connect((&*host.name, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    pub fn shown(&self, default_port: u16) -> String {
        match self {
            Self::Socket(path) => path.display().to_string(),
            Self::Tcp(host) => host.with_port(default_port),
        }
    }
}

/// From here on all is encrypted.
pub(super) async fn encrypted(
    stream: Stream,
    host: &str,
    config: Arc<ClientConfig>,
) -> io::Result<Stream> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(Box::new(stream))
}
