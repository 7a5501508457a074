//! TLS before a server of a test that has none, with certificates of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Who vouches for others.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.der().clone();
        let issuer = Issuer::new(params, key);
        Ok(Self {
            issuer,
            certificate,
        })
    }

    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// Takes those for whom it vouches.
    fn clients(&self) -> Result<Arc<dyn ClientCertVerifier>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(verifier.build()?)
    }

    /// A certificate, and its key.
    pub fn vouch(&self, name: &str) -> Result<(CertificateDer<'static>, Vec<u8>)> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec![name.to_owned()])?;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        Ok((certificate, key.serialize_der()))
    }

    /// Both in PEM.
    pub fn vouch_pem(&self, name: &str) -> Result<(String, String)> {
        let (certificate, key) = self.vouch(name)?;
        Ok((pem("CERTIFICATE", &certificate), pem("PRIVATE KEY", &key)))
    }
}

pub fn pem(label: &str, der: &[u8]) -> String {
    let base64 = BASE64_STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
}

pub fn base64(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// TLS before an API server that has none. It ends when it is dropped.
pub struct Front {
    pub address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Front {
    /// `clients`: who vouches for them, if they need somebody.
    pub fn start(
        behind: SocketAddr,
        certificate: (CertificateDer<'static>, Vec<u8>),
        clients: Option<&Authority>,
    ) -> Result<Self> {
        let clients = clients.map(Authority::clients).transpose()?;
        Self::start_for(behind, certificate, clients)
    }

    pub fn start_for(
        behind: SocketAddr,
        (certificate, key): (CertificateDer<'static>, Vec<u8>),
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
        let key = provider.key_provider.load_private_key(key)?;
        let certified = CertifiedKey::new(vec![certificate], key);
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(clients) => config.with_client_cert_verifier(clients),
        };
        let config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut client = acceptor.accept(stream).await?;
                    let mut server = tokio::net::TcpStream::connect(behind).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Ok(Self {
            address,
            _runtime: runtime,
        })
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}
