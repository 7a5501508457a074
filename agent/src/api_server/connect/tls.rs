//! Whom the agent believes to be the API server, and by which certificate the agent is known there.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::read;
use crate::sys::chain;

/// A text in PEM, and the field that says it.
pub(super) struct Pem {
    pub(super) field: &'static str,
    pub(super) place: Place,
}

pub(super) enum Place {
    Here(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        match &self.place {
            Place::Here(bytes) => Ok(bytes.clone()),
            Place::File(path) => read(path).map_err(|it| format!("{}: {it}", self.field)),
        }
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self.place, Place::File(_))
    }
}

/// Who may vouch for the server.
pub(super) enum Trust {
    Roots(RootCertStore),
    /// The server may be anybody.
    Anybody,
    /// Without TLS.
    Nobody,
}

/// By which the client is known, in PEM.
pub(super) struct ClientCertificate {
    /// Where the certificate is from, and its key.
    pub(super) fields: [&'static str; 2],
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl ClientCertificate {
    pub(super) fn read(certificate: &Pem, key: &Pem) -> Result<Self, String> {
        Ok(Self {
            fields: [certificate.field, key.field],
            certificate: certificate.read()?,
            key: key.read()?,
        })
    }
}

/// Certificates that cannot be read are left out, as client-go leaves them out.
pub(super) fn roots(field: &str, pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let certificates = certificates(field, pem)?;
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err(format!(
            "{field}: has no certificate that can be read; right would be X.509"
        )),
        _ => Ok(roots),
    }
}

pub(super) fn roots_of_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs().certs;
    match roots.add_parsable_certificates(found) {
        (0, _) => Err(
            "certificate-authority: is missing, and the system has no certificates that it trusts"
                .to_owned(),
        ),
        _ => Ok(roots),
    }
}

pub(super) fn client_config(
    trust: Trust,
    certificate: Option<ClientCertificate>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|it| chain(&it))?;
    let builder = match trust {
        Trust::Roots(roots) => builder.with_root_certificates(roots),
        Trust::Nobody => builder.with_root_certificates(RootCertStore::empty()),
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider))),
    };
    let Some(client) = certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let [of_certificate, of_key] = client.fields;
    let certificates = certificates(of_certificate, &client.certificate)?;
    let key = private_key(of_key, &client.key)?;
    let config = builder.with_client_auth_cert(certificates, key);
    config.map_err(|it| {
        format!(
            "{of_key}: cannot be used with {of_certificate}: {}",
            chain(&it)
        )
    })
}

fn certificates(field: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(format!(
            "{field}: has no certificate; right would be PEM with BEGIN CERTIFICATE"
        )),
        Err(_not_shown) => Err(format!("{field}: is not in PEM")),
    }
}

fn private_key(field: &str, key: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(key).map_err(|it| match it {
        pem::Error::NoItemsFound => {
            format!("{field}: has no private key; right would be PEM with BEGIN PRIVATE KEY")
        }
        _not_shown => format!("{field}: is not in PEM"),
    })
}

/// Takes every certificate. That the server has the key of its certificate is still checked.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    fn pem(label: &str, der: &[u8]) -> Vec<u8> {
        let base64 = BASE64_STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n").into_bytes()
    }

    /// A certificate and its key.
    fn made() -> (Vec<u8>, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = made.signing_key.serialize_der();
        (
            pem("CERTIFICATE", made.cert.der()),
            pem("PRIVATE KEY", &key),
        )
    }

    fn config(certificate: &[u8], key: &[u8]) -> Result<ClientConfig, String> {
        let client = ClientCertificate {
            fields: ["client-certificate", "client-key"],
            certificate: certificate.to_vec(),
            key: key.to_vec(),
        };
        client_config(Trust::Nobody, Some(client))
    }

    #[track_caller]
    fn check(certificate: &[u8], key: &[u8], right: &str) {
        let why = config(certificate, key).unwrap_err();
        assert!(why.starts_with(right), "{why}");
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let (certificate, key) = made();
        let (_, other) = made();
        assert!(config(&certificate, &key).is_ok());
        check(b"", &key, "client-certificate: has no certificate");
        check(&certificate, b"", "client-key: has no private key");
        check(&certificate, &certificate, "client-key: has no private key");
        check(&certificate, &other, "client-key: cannot be used with");
        let garbage = b"-----BEGIN PRIVATE KEY-----\nsecret!\n-----END PRIVATE KEY-----";
        check(&certificate, garbage, "client-key: is not in PEM");
    }

    #[test]
    fn roots_are_certificates() {
        let (certificate, key) = made();
        let both = [certificate.clone(), made().0].concat();
        assert_eq!(roots("ca", &certificate).unwrap().len(), 1);
        assert_eq!(roots("ca", &both).unwrap().len(), 2);
        let garbage = pem("CERTIFICATE", b"no certificate");
        let with_garbage = [certificate, garbage.clone()].concat();
        assert_eq!(roots("ca", &with_garbage).unwrap().len(), 1);
        for (pem, right) in [
            (&key, "ca: has no certificate; right"),
            (&garbage, "ca: has no certificate that can be read"),
        ] {
            let why = roots("ca", pem).unwrap_err();
            assert!(why.starts_with(right), "{why}");
        }
    }
}
