//! How connections to stores are encrypted: rustls with ring, whoever the store is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::blocking::blocking;

/// What a server must prove, and what this side shows.
#[derive(Debug, Clone, Default)]
pub(super) struct Tls {
    pub verify: Verify,
    /// Certificates in PEM that are trusted; `None`: the public authorities.
    pub ca: Option<PathBuf>,
    /// A certificate of this side, and its key, both in PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Verify {
    /// A trusted certificate for the host's name.
    #[default]
    Full,
    /// A trusted certificate, for whatever name.
    Chain,
    /// Anything: whoever listens is believed.
    Nothing,
}

impl Tls {
    /// Whether it looks at more, or shows more, than a connection does of itself.
    pub fn names_files(&self) -> bool {
        self.ca.is_some() || self.client.is_some()
    }

    /// Reads the certificates anew: they are replaced while processes run. `Err`: what is wrong with them.
    pub async fn client_config(&self) -> Result<ClientConfig, String> {
        let tls = self.clone();
        blocking(move || tls.read()).await
    }

    /// The same, and blocks.
    pub fn read(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.verify {
            Verify::Full => builder.with_root_certificates(self.roots()?),
            Verify::Chain => {
                let roots = Arc::new(self.roots()?);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|error| error.to_string())?;
                let verifier = Arc::new(AnyName(verifier));
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(verifier)
            }
            Verify::Nothing => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        };
        let Some((certificate, key)) = &self.client else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates(certificate)?;
        let key_of = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| format!("{} holds no private key in PEM: {error}", key.display()))?;
        builder
            .with_client_auth_cert(chain, key_of)
            .map_err(|error| {
                format!(
                    "{} and {} do not fit together: {error}",
                    certificate.display(),
                    key.display()
                )
            })
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let Some(file) = &self.ca else {
            let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
            return Ok(roots);
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(file)? {
            roots
                .add(certificate)
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(roots)
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = |error| format!("{} cannot be read as PEM: {error}", file.display());
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).map_err(bad)?.collect();
    match found.map_err(bad)? {
        none if none.is_empty() => Err(format!("{} holds no certificate in PEM", file.display())),
        found => Ok(found),
    }
}

/// Trusts a certificate without asking whose it is.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last: everything else was found to be right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Believes every certificate. Only for those who say so.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::{ClientConnection, ServerConfig, ServerConnection, StreamOwned};
    use std::io::{Read as _, Write as _};

    struct Files(PathBuf);

    impl Files {
        fn new(test: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("whenleader-tls-{}-{test}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Connects to a server of the name `there.test`, by whatever name.
    fn connects(tls: &Tls, authority: &CertifiedIssuer<'static, KeyPair>, called: &str) -> bool {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["there.test".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let connection = ServerConnection::new(Arc::new(config)).unwrap();
            let _ = StreamOwned::new(connection, socket).write_all(b"!");
        });
        let name = ServerName::try_from(called.to_owned()).unwrap();
        let connection = ClientConnection::new(Arc::new(tls.read().unwrap()), name).unwrap();
        let mut stream = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
        let read = stream.read(&mut [0]).is_ok_and(|length| length == 1);
        drop(stream);
        server.join().unwrap();
        read
    }

    #[test]
    fn who_is_trusted_is_what_the_settings_say() {
        let files = Files::new("trust");
        let (ours, other) = (authority(), authority());
        let ca = Some(files.write("ca.pem", &ours.pem()));
        for (verify, its_own, by_another_name, a_stranger) in [
            (Verify::Full, true, false, false),
            (Verify::Chain, true, true, false),
            (Verify::Nothing, true, true, true),
        ] {
            let ca = ca.clone();
            let tls = Tls {
                verify,
                ca,
                client: None,
            };
            assert_eq!(connects(&tls, &ours, "there.test"), its_own, "{verify:?}");
            assert_eq!(
                connects(&tls, &ours, "elsewhere.test"),
                by_another_name,
                "{verify:?}"
            );
            assert_eq!(
                connects(&tls, &other, "there.test"),
                a_stranger,
                "{verify:?}"
            );
        }
        // A private authority is none of the public ones.
        assert!(!connects(&Tls::default(), &ours, "there.test"));
    }

    #[test]
    fn files_that_hold_no_certificate_are_named() {
        let files = Files::new("files");
        let key = files.write("key.pem", &KeyPair::generate().unwrap().serialize_pem());
        let certificate = files.write("certificate.pem", &authority().pem());
        let empty = files.write("empty.pem", "");
        let absent = files.0.join("absent.pem");
        let trusting = |ca: &PathBuf| Tls {
            ca: Some(ca.clone()),
            ..Tls::default()
        };
        let showing = |certificate: &PathBuf, key: &PathBuf| Tls {
            client: Some((certificate.clone(), key.clone())),
            ..Tls::default()
        };
        for (tls, named) in [
            (trusting(&absent), &absent),
            (trusting(&empty), &empty),
            (trusting(&key), &key),
            (showing(&certificate, &empty), &empty),
            (showing(&certificate, &key), &key),
            (showing(&absent, &key), &absent),
        ] {
            let why = tls.read().map(drop).unwrap_err();
            assert!(why.contains(named.to_str().unwrap()), "{why}");
        }
    }
}
