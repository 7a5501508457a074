//! Whom the agent believes to be the API server, and by which certificate the agent is known there.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, InconsistentKeys, RootCertStore, SignatureScheme,
};

use super::read;
use crate::model::check::Voucher;
use crate::sys::chain;

/// The keys that ring can sign with.
const KEYS: &str = "RSA of 2048 to 4096 bits, ECDSA on P-256 or P-384, or Ed25519";

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

    pub(super) fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Here(_) => None,
        }
    }
}

/// Who may vouch for the server.
pub(super) enum Trust {
    Roots(RootCertStore),
    Given(OfServer),
    Kubelet(OfKubelet),
    /// The server may be anybody.
    Anybody,
    /// Without TLS.
    Nobody,
}

/// By which the client is known, in PEM.
#[derive(Clone)]
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

    /// Whether it can be used.
    pub(super) fn check(&self) -> Result<(), String> {
        let provider = rustls::crypto::ring::default_provider();
        self.certified(&provider).map(|_| ())
    }

    /// The server judges the certificate, so one that rustls cannot parse is sent as it is: X.509 v1, for instance,
    /// which `openssl x509 -req` of OpenSSL 3.0 makes if no extension is asked for. Only a key that is certainly
    /// another's is an error.
    fn certified(&self, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
        let [of_certificate, of_key] = self.fields;
        let certificates = certificates(of_certificate, &self.certificate)?;
        let key = private_key(of_key, &self.key)?;
        let key = provider.key_provider.load_private_key(key);
        let key = key.map_err(|_not_shown| {
            format!("{of_key}: is of a kind that cannot be used; right would be {KEYS}")
        })?;
        let certified = CertifiedKey::new(certificates, key);
        match certified.keys_match() {
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(format!(
                "{of_key}: cannot be used with {of_certificate}: it is the key of another"
            )),
            Ok(()) | Err(_) => Ok(certified),
        }
    }
}

/// What cannot be read is skipped, as Go's `AppendCertsFromPEM` does: one broken certificate does not disable a bundle.
pub(super) fn roots(field: &str, pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let mut certificates = CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .peekable();
    if certificates.peek().is_none() {
        return Err(no_certificate(field));
    }
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

/// By what a kubelet is known.
pub(super) struct OfKubelet {
    /// What it has in its files; `Err`: why that is not known.
    pub(super) certificates: Result<Vec<CertificateDer<'static>>, String>,
    /// That of the cluster; `None`: not known.
    pub(super) authority: Option<RootCertStore>,
    /// Name of the node.
    pub(super) node: String,
    pub(super) found: Found,
}

/// What a kubelet was known by, once a connection has been made.
#[derive(Clone, Debug, Default)]
pub(super) struct Found(Arc<OnceLock<Voucher>>);

impl Found {
    pub(super) fn voucher(&self) -> Option<Voucher> {
        self.0.get().copied()
    }
}

/// The certificates of a text; other blocks, a key for instance, count for nothing.
pub(super) fn certificates_in(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    let all = CertificateDer::pem_slice_iter(pem);
    all.filter_map(Result::ok).collect()
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
        Trust::Given(of) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(WithKey {
                judge: Server::new(of, &provider)?,
                provider: Arc::clone(&provider),
            })),
        Trust::Nobody => builder.with_root_certificates(RootCertStore::empty()),
        Trust::Kubelet(of) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(WithKey {
                judge: Kubelet::new(of, &provider)?,
                provider: Arc::clone(&provider),
            })),
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(Arc::clone(&provider)))),
    };
    Ok(match certificate {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let certified = client.certified(&provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    })
}

fn certificates(field: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(no_certificate(field)),
        Err(_not_shown) => Err(format!("{field}: is not in PEM")),
    }
}

fn no_certificate(field: &str) -> String {
    format!("{field}: has no certificate; right would be PEM with BEGIN CERTIFICATE")
}

fn private_key(field: &str, key: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(key).map_err(|it| match it {
        pem::Error::NoItemsFound => {
            format!("{field}: has no private key; right would be PEM with BEGIN PRIVATE KEY")
        }
        _not_shown => format!("{field}: is not in PEM"),
    })
}

/// By what an API server is known.
pub(super) struct OfServer {
    pub(super) roots: RootCertStore,
    /// The same, as they were given.
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// Whose certificate is taken; that who shows it has its key is checked besides, by [`WithKey`].
trait Judge: fmt::Debug + Send + Sync {
    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error>;
}

#[derive(Debug)]
struct WithKey<J> {
    judge: J,
    provider: Arc<CryptoProvider>,
}

impl<J: Judge> ServerCertVerifier for WithKey<J> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged = self.judge.judge(certificate, intermediates, name, now);
        judged.map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

fn verifier_of(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    built.build().map_err(|it| chain(&it))
}

/// Takes a certificate that one of the given ones vouches for, or that is one of them itself, as Go does: who makes his
/// own server's certificate mostly gives it to his clients as it is.
#[derive(Debug)]
struct Server {
    roots: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Server {
    fn new(of: OfServer, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        Ok(Self {
            roots: verifier_of(of.roots, provider)?,
            certificates: of.certificates,
        })
    }
}

impl Judge for Server {
    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let roots = &self.roots;
        match roots.verify_server_cert(certificate, intermediates, name, &[], now) {
            // Its time may be over: who is meant is certain.
            Err(_) if self.certificates.iter().any(|it| it == certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
            }
            verified => verified.map(|_| ()),
        }
    }
}

/// Takes every certificate without parsing it, since it may be one of X.509 v1. The signature of the handshake is not
/// checked either: it proves nothing where anybody may have made the certificate.
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Takes a certificate that kubelet has in its files, which it may have signed itself and whose time may be over, and
/// one that the authority of the cluster vouches for. Who has none of both gets no credentials.
#[derive(Debug)]
struct Kubelet {
    certificates: Result<Vec<CertificateDer<'static>>, String>,
    authority: Option<Arc<WebPkiServerVerifier>>,
    node: Option<ServerName<'static>>,
    found: Found,
}

impl Kubelet {
    fn new(of: OfKubelet, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let authority = of.authority.map(|roots| verifier_of(roots, provider));
        Ok(Self {
            certificates: of.certificates,
            authority: authority.transpose()?,
            node: ServerName::try_from(of.node).ok(),
            found: of.found,
        })
    }

    /// Whether it is of the node, or of its address: in what kubelet asks the cluster for there are all addresses of the
    /// node (pkg/kubelet/certificate/kubelet.go, `addressesToHostnamesAndIPs`). Other nodes have the loopback address
    /// too, and k3s puts it into the certificates of all of them.
    fn is_vouched_for(
        &self,
        authority: &WebPkiServerVerifier,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        address: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let address = Some(address).filter(|it| !is_loopback(it));
        let mut verified = Err(Error::General("the node has no name".to_owned()));
        for name in self.node.iter().chain(address) {
            verified = authority.verify_server_cert(certificate, intermediates, name, &[], now);
            if verified.is_ok() {
                break;
            }
        }
        verified.map(|_| ())
    }
}

fn is_loopback(name: &ServerName<'_>) -> bool {
    match name {
        ServerName::IpAddress(address) => IpAddr::from(*address).is_loopback(),
        _ => false,
    }
}

impl Judge for Kubelet {
    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        address: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let not_in_files = match &self.certificates {
            Ok(known) if known.iter().any(|it| it == certificate) => None,
            Ok(_) => Some("it is in none of kubelet's files"),
            Err(why) => Some(why.as_str()),
        };
        let voucher = if let Some(not_in_files) = not_in_files {
            let verified = match &self.authority {
                None => Err("the authority of the cluster is not known".to_owned()),
                Some(it) => self
                    .is_vouched_for(it, certificate, intermediates, address, now)
                    .map_err(|it| it.to_string()),
            };
            verified.map_err(|why| {
                let text = "who answers cannot be known to be kubelet by its certificate";
                Error::General(format!("{text}: {not_in_files}; {why}"))
            })?;
            Voucher::Authority
        } else {
            Voucher::File
        };
        // It is the same as that of an earlier connection, or that was of the other kind.
        self.found.0.set(voucher).ok();
        Ok(())
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
    fn a_kubelet_is_vouched_for_by_its_name_or_by_an_address_that_is_its_own() {
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut authority = RootCertStore::empty();
        let certificate = params.self_signed(&key).unwrap();
        authority.add(certificate.der().clone()).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        let kubelet = OfKubelet {
            certificates: Err("not known".to_owned()),
            authority: Some(authority),
            node: "node1".to_owned(),
            found: Found::default(),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let kubelet = Kubelet::new(kubelet, &provider).unwrap();
        for (names, asked, is_believed) in [
            (&["node1"][..], "10.0.0.7", true),
            (&["node1", "127.0.0.1"], "127.0.0.1", true),
            (&["10.0.0.7", "10.0.0.8"], "10.0.0.7", true),
            (&["node2", "10.0.0.8"], "10.0.0.7", false),
            (&["node2", "127.0.0.1"], "127.0.0.1", false),
            (&["node2", "::1"], "::1", false),
        ] {
            let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
            let params = rcgen::CertificateParams::new(names.clone()).unwrap();
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            let asked = ServerName::try_from(asked).unwrap();
            let now = UnixTime::now();
            let verified = kubelet.judge(certificate.der(), &[], &asked, now);
            assert_eq!(verified.is_ok(), is_believed, "{names:?} {verified:?}");
        }
    }

    #[test]
    fn a_server_is_known_by_its_own_certificate_too() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let made = |names: &[&str], is_authority: bool| {
            let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
            let mut params = rcgen::CertificateParams::new(names).unwrap();
            if is_authority {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            }
            params
                .self_signed(&rcgen::KeyPair::generate().unwrap())
                .unwrap()
        };
        for is_authority in [false, true] {
            let own = made(&["api.example", "10.0.0.1"], is_authority);
            let pem = pem("CERTIFICATE", own.der());
            let of = OfServer {
                roots: roots("ca", &pem).unwrap(),
                certificates: certificates_in(&pem),
            };
            let server = Server::new(of, &provider).unwrap();
            let another = made(&["api.example", "10.0.0.1"], is_authority);
            for (shown, name, is_believed) in [
                (&own, "api.example", true),
                (&own, "10.0.0.1", true),
                (&own, "other.example", false),
                (&another, "api.example", false),
            ] {
                let name = ServerName::try_from(name).unwrap();
                let now = UnixTime::now();
                let verified = server.judge(shown.der(), &[], &name, now);
                assert_eq!(verified.is_ok(), is_believed, "{name:?} {verified:?}");
            }
        }
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
        let strange = pem("PRIVATE KEY", b"a key of another kind");
        let right = "client-key: is of a kind that cannot be used; right would be RSA of 2048";
        check(&certificate, &strange, right);
    }

    #[test]
    fn a_certificate_that_only_the_server_can_read_is_used() {
        let (_, key) = made();
        let strange = pem("CERTIFICATE", b"a certificate of another version");
        assert!(config(&strange, &key).is_ok());
        let cut = b"-----BEGIN CERTIFICATE-----\nYQ==\n";
        check(cut, &key, "client-certificate: is not in PEM");
    }

    #[test]
    fn roots_are_certificates() {
        let (certificate, key) = made();
        let both = [certificate.clone(), made().0].concat();
        assert_eq!(roots("ca", &certificate).unwrap().len(), 1);
        assert_eq!(roots("ca", &both).unwrap().len(), 2);
        let garbage = pem("CERTIFICATE", b"no certificate");
        let not_base64 = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_vec();
        let with_garbage = [not_base64.clone(), garbage.clone(), certificate].concat();
        assert_eq!(roots("ca", &with_garbage).unwrap().len(), 1);
        for (pem, right) in [
            (&key, "ca: has no certificate; right"),
            (&not_base64, "ca: has no certificate; right"),
            (&garbage, "ca: has no certificate that can be read"),
        ] {
            let why = roots("ca", pem).unwrap_err();
            assert!(why.starts_with(right), "{why}");
        }
    }
}
