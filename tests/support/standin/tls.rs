//! Certificates of the stand-in, good ones and others, and both ends of an encrypted connection.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// What the server shows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificate {
    Good,
    /// It ended long ago.
    Expired,
    /// It is for another host.
    OtherName,
    /// It is from an authority that no client knows.
    OtherAuthority,
}

/// Who signs.
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// A new one, whose certificate is written to the file that clients look at.
    pub fn new(file: &Path) -> Self {
        let (authority, certificate) = Self::named("standin");
        fs::write(file, certificate).unwrap();
        authority
    }

    fn named(name: &str) -> (Self, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        (Self(Issuer::new(params, key)), certificate)
    }

    pub fn server(&self, certificate: Certificate) -> TlsAcceptor {
        let stranger;
        let issuer = if certificate == Certificate::OtherAuthority {
            stranger = Self::named("stranger").0;
            &stranger.0
        } else {
            &self.0
        };
        let host = match certificate {
            Certificate::OtherName => "elsewhere.example",
            _ => "127.0.0.1",
        };
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        if certificate == Certificate::Expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![signed.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

pub async fn connect(port: u16, authority: &Path) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(authority).map_err(io::Error::other)?;
    roots.add(certificate).map_err(io::Error::other)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = IpAddr::from(Ipv4Addr::LOCALHOST);
    let stream = TcpStream::connect((host, port)).await?;
    let connector = TlsConnector::from(Arc::new(config));
    Ok(connector.connect(host.into(), stream).await?.into())
}
