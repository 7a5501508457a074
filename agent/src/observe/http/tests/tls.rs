use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::observe::http::access::REREAD;
use crate::sys::scratch::Scratch;

/// A new certificate for `localhost` that vouches for itself, and its key, in PEM.
pub(in crate::observe::http) fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = |label, der: &[u8]| {
        let base64 = BASE64_STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
    };
    let key = made.signing_key.serialize_der();
    (
        pem("CERTIFICATE", made.cert.der()),
        pem("PRIVATE KEY", &key),
    )
}

struct Served {
    server: HttpServer,
    scratch: Scratch,
    /// The certificate that a client trusts.
    trusted: String,
    _trigger: ShutdownTrigger,
}

impl Served {
    async fn new() -> Self {
        let scratch = Scratch::new("served");
        let trusted = rotate(&scratch);
        let token = scratch.write("token", "secret");
        let pages = Pages {
            metrics: Metrics::default(),
            health: Health::new(Duration::from_secs(60), []),
            stats: watch::channel(None).1,
            options: Options::default(),
        };
        let (_trigger, shutdown) = shutdown::channel();
        let listen = Listen {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            access: AccessFiles {
                tls: Some(TlsFiles {
                    certificate: scratch.path("tls.crt"),
                    key: scratch.path("tls.key"),
                }),
                bearer_token: Some(token),
            },
        };
        Self {
            server: serve(listen, pages, shutdown).await.unwrap(),
            scratch,
            trusted,
            _trigger,
        }
    }

    async fn connect(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let trusted = CertificateDer::from_pem_slice(self.trusted.as_bytes()).unwrap();
        roots.add(trusted).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.server.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    async fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = self.connect(rustls::ALL_VERSIONS).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // The server may close without the end of TLS once all of HTTP is there.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }
}

/// Puts a new certificate with its key in place.
fn rotate(scratch: &Scratch) -> String {
    let (certificate, key) = certificate();
    scratch.write("tls.crt", &certificate);
    scratch.write("tls.key", key);
    certificate
}

#[tokio::test]
async fn pages_need_the_token_and_probes_do_not() {
    let served = Served::new().await;
    for (path, headers, status) in [
        ("/metrics", "", "401 Unauthorized"),
        (
            "/metrics",
            "Authorization: Bearer wrong\r\n",
            "401 Unauthorized",
        ),
        ("/metrics/cadvisor", "", "401 Unauthorized"),
        ("/stats/summary", "", "401 Unauthorized"),
        ("/metrics", "Authorization: Bearer secret\r\n", "200 OK"),
        ("/healthz", "", "200 OK"),
        ("/readyz", "", "200 OK"),
    ] {
        let answer = served.get(path, headers).await;
        let expected = format!("HTTP/1.1 {status}\r\n");
        assert!(answer.starts_with(&expected), "{path} {headers}: {answer}");
        let is_asked = answer.contains("\r\nwww-authenticate: Bearer\r\n");
        assert_eq!(is_asked, status.starts_with("401"), "{answer}");
    }
}

#[tokio::test]
async fn both_versions_of_tls_in_use_are_served() {
    let served = Served::new().await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let stream = served.connect(&[version]).await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ends_its_side_is_answered_and_loses_its_connection() {
    let served = Served::new().await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (words, is_answered) in LAST_WORDS {
            // What needs no token.
            let words = words.replace("/metrics", "/healthz");
            let stream = served.connect(&[version]).await.unwrap();
            let answer = last_answer(stream, &words).await;
            assert_eq!(
                answer.contains(" 200 OK\r\n"),
                is_answered,
                "{words}: {answer}"
            );
        }
    }
}

#[tokio::test]
async fn without_tls_there_is_no_answer() {
    let served = Served::new().await;
    let mut stream = TcpStream::connect(served.server.address).await.unwrap();
    let request = request("GET", "/healthz");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // And the next client is served.
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_never_ends_loses_its_connection() {
    let served = Served::new().await;
    let mut stream = TcpStream::connect(served.server.address).await.unwrap();
    // A handshake record of 512 bytes that never come.
    stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let begun = tokio::time::Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(begun.elapsed() >= HANDSHAKE_TIMEOUT);
    assert!(
        begun.elapsed() < HANDSHAKE_TIMEOUT * 2,
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_new_certificate_is_served_without_a_restart() {
    let mut served = Served::new().await;
    let old = served.connect(rustls::ALL_VERSIONS).await;
    assert!(old.is_ok());
    served.trusted = rotate(&served.scratch);
    assert!(served.connect(rustls::ALL_VERSIONS).await.is_err());
    tokio::time::pause();
    tokio::time::advance(REREAD).await;
    tokio::time::resume();
    // The files are read on another thread.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while served.connect(rustls::ALL_VERSIONS).await.is_err() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the old one is still served"
        );
    }
}
