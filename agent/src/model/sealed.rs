//! The form of what outlives the agent on disk: one header line with kind, format version and
//! checksum, then the value as JSON.
//!
//! Invariant: bytes that were cut short, changed, or written by something else never decode. The form of the header line
//! stays: what any version of the agent has sealed is known to be whole.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    kind: String,
    version: u32,
    /// Of the bytes after the header line, lower-case hex.
    sha256: String,
}

/// Why bytes cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("no header line")]
    NoHeader,
    #[error("header")]
    Header(#[source] serde_json::Error),
    #[error("holds a {found:?}, not a {wanted:?}")]
    Kind { found: String, wanted: &'static str },
    #[error("format version {found}, this agent reads {wanted}")]
    Version { found: u32, wanted: u32 },
    #[error("checksum does not match: the file was cut short or changed")]
    Checksum,
    #[error("content")]
    Content(#[source] serde_json::Error),
}

impl SealError {
    /// The bytes are not what was sealed. False: they are, and another version of the agent, which may come back, has
    /// sealed what this one cannot read.
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::Version { .. } | Self::Content(_))
    }
}

/// The bytes to write for `value`.
pub fn seal<T: Serialize>(kind: &'static str, version: u32, value: &T) -> Vec<u8> {
    let body = serde_json::to_vec(value).expect("records have string keys and no foreign types");
    let header = Header {
        kind: kind.to_owned(),
        version,
        sha256: checksum(&body),
    };
    let mut bytes = serde_json::to_vec(&header).expect("a header is plain data");
    bytes.push(b'\n');
    bytes.extend_from_slice(&body);
    bytes
}

/// The value that [`seal`] made the bytes from.
pub fn open<T: DeserializeOwned>(
    kind: &'static str,
    version: u32,
    bytes: &[u8],
) -> Result<T, SealError> {
    let newline = bytes.iter().position(|&b| b == b'\n');
    let (header, body) = bytes.split_at(newline.ok_or(SealError::NoHeader)?);
    let body = body.get(1..).unwrap_or_default();
    let header: Header = serde_json::from_slice(header).map_err(SealError::Header)?;
    if header.kind != kind {
        return Err(SealError::Kind {
            found: header.kind,
            wanted: kind,
        });
    }
    if header.sha256 != checksum(body) {
        return Err(SealError::Checksum);
    }
    if header.version != version {
        return Err(SealError::Version {
            found: header.version,
            wanted: version,
        });
    }
    serde_json::from_slice(body).map_err(SealError::Content)
}

fn checksum(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens() {
        let bytes = seal("list", 3, &vec![1, 2, 3]);
        assert_eq!(open::<Vec<u8>>("list", 3, &bytes).ok(), Some(vec![1, 2, 3]));
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let bytes = seal("list", 3, &vec![10, 20, 30]);
        for cut in 0..bytes.len() {
            let cut_short = bytes.get(..cut).unwrap_or_default();
            assert!(
                open::<Vec<u8>>("list", 3, cut_short).is_err(),
                "cut at {cut}"
            );
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 1;
            }
            assert!(open::<Vec<u8>>("list", 3, &changed).is_err(), "byte {at}");
        }
        assert!(matches!(
            open::<Vec<u8>>("other", 3, &bytes),
            Err(SealError::Kind { .. })
        ));
        assert!(matches!(
            open::<Vec<u8>>("list", 4, &bytes),
            Err(SealError::Version { .. })
        ));
    }

    #[test]
    fn what_another_version_has_sealed_is_whole() {
        let bytes = seal("list", 4, &[1, 2, 3]);
        let error = |version, bytes: &[u8]| match open::<Vec<u32>>("list", version, bytes) {
            Ok(list) => panic!("{list:?}"),
            Err(error) => error,
        };
        assert!(!error(3, &bytes).is_damage());
        let other = seal("list", 3, &["of another form"]);
        assert!(!error(3, &other).is_damage());
        for (what, bytes) in [
            ("cut short", &bytes[..bytes.len() - 1]),
            ("of another kind", seal("map", 3, &[1]).as_slice()),
            ("no header", b"spoilt".as_slice()),
        ] {
            assert!(error(3, bytes).is_damage(), "{what}");
        }
    }
}
