//! Who may read, and over what: the certificate, its key and the bearer token, from files that are
//! read again every [`REREAD`], so that a rotated one needs no restart.
//!
//! Invariant: what was read last and fits together stays in use until there is something better. A
//! certificate without its key, as a rotation leaves it for a moment, changes nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use crate::observe::chain;
use crate::observe::shutdown::Shutdown;
use crate::sys::FsError;
use crate::sys::regular::{self, Contents};

/// How old a certificate or token can be that is still in use: rotations leave hours, and what is
/// read are a few kilobytes.
pub(super) const REREAD: Duration = Duration::from_secs(10);

/// A chain of certificates has some kilobytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The fields of the configuration that name the files.
const CERTIFICATE: &str = "metrics.tls.certificateFile";
const KEY: &str = "metrics.tls.keyFile";
const TOKEN: &str = "metrics.bearerTokenFile";

/// Where what protects the endpoint is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessFiles {
    /// `None`: no TLS.
    pub tls: Option<TlsFiles>,
    /// Holds one word; `None`: everybody may read.
    pub bearer_token: Option<PathBuf>,
}

/// Both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then those between it and the one that clients trust.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("{field}")]
    Read {
        field: &'static str,
        source: FsError,
    },
    #[error("{field}: {path} {problem}")]
    Content {
        field: &'static str,
        path: PathBuf,
        problem: &'static str,
    },
    #[error("{field}: {path} is not in PEM")]
    Pem {
        field: &'static str,
        path: PathBuf,
        source: pem::Error,
    },
    #[error("metrics.tls.keyFile: {key} cannot be used with {certificate}")]
    Pair {
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
}

impl AccessError {
    /// The field of the configuration that names the file.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Read { field, .. } | Self::Content { field, .. } | Self::Pem { field, .. } => {
                field
            }
            Self::Pair { .. } => KEY,
        }
    }
}

/// What is in use now.
pub(super) struct Access {
    files: AccessFiles,
    current: RwLock<Arc<Current>>,
    /// What was wrong with the files when they were last read, so that it is told once.
    last_fault: Mutex<Option<String>>,
}

struct Current {
    /// Of what was read.
    digest: [u8; 32],
    tls: Option<Arc<ServerConfig>>,
    /// Digest of the token.
    token: Option<[u8; 32]>,
}

/// The files as they were read.
struct Raw {
    /// Certificates and key.
    tls: Option<(Vec<u8>, Vec<u8>)>,
    token: Option<Vec<u8>>,
}

impl Access {
    /// Reads the files for the first time.
    pub(super) fn new(files: AccessFiles) -> Result<Self, AccessError> {
        let raw = read(&files)?;
        let current = RwLock::new(Arc::new(parse(&files, &raw)?));
        warn_of_readers(&files);
        Ok(Self {
            files,
            current,
            last_fault: Mutex::default(),
        })
    }

    /// `None`: connections are not encrypted.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.current().tls.clone()
    }

    /// Whether a request with these headers may be answered.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let current = self.current();
        let Some(right) = &current.token else {
            return true;
        };
        let header = headers.get(AUTHORIZATION).and_then(|it| it.to_str().ok());
        let token = header.and_then(|it| {
            let (scheme, token) = it.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        // Comparing digests takes a time that tells nothing about the token: who does not know it
        // cannot make one whose digest begins alike.
        token.is_some_and(|token| digest(token.as_bytes()) == *right)
    }

    fn current(&self) -> Arc<Current> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Takes over what the files hold now, if it is something else and can be used.
    pub(super) fn reread(&self) {
        let fault = match self.newer() {
            Ok(None) => None,
            Ok(Some(newer)) => {
                tracing::info!("the certificate or the token of the HTTP endpoint is another one");
                warn_of_readers(&self.files);
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = Arc::new(newer);
                None
            }
            Err(error) => Some(chain(&error)),
        };
        let mut last = self
            .last_fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = fault.as_ref().filter(|it| Some(*it) != last.as_ref()) {
            tracing::warn!(
                error,
                "the HTTP endpoint keeps the certificate and token it had"
            );
        }
        *last = fault;
    }

    /// `None`: the files are what they were.
    fn newer(&self) -> Result<Option<Current>, AccessError> {
        let raw = read(&self.files)?;
        if raw.digest() == self.current().digest {
            return Ok(None);
        }
        parse(&self.files, &raw).map(Some)
    }
}

/// Rereads the files until `shutdown`.
pub(super) async fn keep_current(access: Arc<Access>, mut shutdown: Shutdown) {
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(REREAD) => {}
        }
        let access = Arc::clone(&access);
        // Files may be on a slow disk. What ended it has been reported.
        tokio::task::spawn_blocking(move || access.reread())
            .await
            .ok();
    }
}

/// What is wrong with each of the files; whether certificate and key go together is asked where both can be used.
pub(super) fn faults(files: &AccessFiles) -> Vec<AccessError> {
    let mut faults = Vec::new();
    if let Some(tls) = &files.tls {
        let chain = read_file(CERTIFICATE, &tls.certificate);
        let chain = chain.and_then(|it| certificates(&tls.certificate, &it));
        let key = read_file(KEY, &tls.key).and_then(|it| private_key(&tls.key, &it));
        match (chain, key) {
            (Ok(chain), Ok(key)) => faults.extend(server_config(tls, chain, key).err()),
            (chain, key) => faults.extend(chain.err().into_iter().chain(key.err())),
        }
    }
    if let Some(path) = &files.bearer_token {
        let token = read_file(TOKEN, path).and_then(|it| parse_token(path, &it));
        faults.extend(token.err());
    }
    faults
}

fn read(files: &AccessFiles) -> Result<Raw, AccessError> {
    let tls = files.tls.as_ref().map(|it| {
        let certificate = read_file(CERTIFICATE, &it.certificate)?;
        Ok((certificate, read_file(KEY, &it.key)?))
    });
    let token = files.bearer_token.as_ref();
    Ok(Raw {
        tls: tls.transpose()?,
        token: token.map(|it| read_file(TOKEN, it)).transpose()?,
    })
}

fn read_file(field: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    let read = regular::read(path, MAX_FILE_BYTES);
    let problem = match read.map_err(|source| AccessError::Read { field, source })? {
        Contents::Whole { bytes, .. } => return Ok(bytes),
        Contents::TooLarge { .. } => "is larger than 1 MiB",
        Contents::Changing => "was written to while it was read; right would be to replace it",
        Contents::Other => "is not a regular file",
    };
    Err(content(field, path, problem))
}

fn content(field: &'static str, path: &Path, problem: &'static str) -> AccessError {
    AccessError::Content {
        field,
        path: path.to_owned(),
        problem,
    }
}

impl Raw {
    fn digest(&self) -> [u8; 32] {
        let tls = self
            .tls
            .as_ref()
            .map(|(certificate, key)| [certificate, key]);
        let files = tls.into_iter().flatten().chain(&self.token);
        let digests: Vec<[u8; 32]> = files.map(|it| digest(it)).collect();
        digest(digests.as_flattened())
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn parse(files: &AccessFiles, raw: &Raw) -> Result<Current, AccessError> {
    let tls = files.tls.as_ref().zip(raw.tls.as_ref());
    let tls = tls.map(|(files, (certificate, key))| {
        let chain = certificates(&files.certificate, certificate)?;
        server_config(files, chain, private_key(&files.key, key)?)
    });
    let token = files.bearer_token.as_ref().zip(raw.token.as_ref());
    let token = token.map(|(path, bytes)| parse_token(path, bytes));
    Ok(Current {
        digest: raw.digest(),
        tls: tls.transpose()?.map(Arc::new),
        token: token.transpose()?,
    })
}

/// The server's certificate, then those above it.
fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(bytes)
        .collect::<Result<_, _>>()
        .map_err(|source| not_pem(CERTIFICATE, path, source))?;
    if chain.is_empty() {
        let problem = "has no certificate; right would be PEM with BEGIN CERTIFICATE";
        return Err(content(CERTIFICATE, path, problem));
    }
    Ok(chain)
}

fn private_key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, AccessError> {
    match PrivateKeyDer::from_pem_slice(bytes) {
        Err(pem::Error::NoItemsFound) => {
            let problem = "has no private key; right would be PEM with BEGIN PRIVATE KEY";
            Err(content(KEY, path, problem))
        }
        key => key.map_err(|source| not_pem(KEY, path, source)),
    }
}

fn not_pem(field: &'static str, path: &Path, source: pem::Error) -> AccessError {
    AccessError::Pem {
        field,
        path: path.to_owned(),
        source,
    }
}

fn server_config(
    files: &TlsFiles,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, AccessError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|it| it.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|source| AccessError::Pair {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source,
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Blanks and line ends around it are not part of the token, as in kubelet's and Prometheus's files.
fn parse_token(path: &Path, bytes: &[u8]) -> Result<[u8; 32], AccessError> {
    let token = bytes.trim_ascii();
    if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
        let problem = "has no token; right would be one word of visible ASCII characters";
        return Err(content(TOKEN, path, problem));
    }
    Ok(digest(token))
}

/// A secret that every user of the node can read is none.
fn warn_of_readers(files: &AccessFiles) {
    let key = files.tls.as_ref().map(|it| (KEY, &it.key));
    for (field, path) in key
        .into_iter()
        .chain(files.bearer_token.as_ref().map(|it| (TOKEN, it)))
    {
        if regular::is_readable_by_others(path).unwrap_or(false) {
            tracing::warn!(
                field,
                path = %path.display(),
                "every user of the node can read this file; right would be mode 0600"
            );
        }
    }
}

#[cfg(test)]
mod tests;
