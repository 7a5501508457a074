//! `ballast replay`: an admission that was recorded, decided once more.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::decide::placement::record::{AdmissionRecord, ReplayError};
use crate::model::admission::{MAX_RECORD_BYTES, canonical_json};
use crate::sys::{FsError, input};

/// With room for the spaces of the form that people read.
const MAX_FILE_BYTES: u64 = 8 * MAX_RECORD_BYTES;

/// Differences shown, at most: the first ones tell.
const MAX_SHOWN: usize = 32;

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFileError {
    #[error("read the record")]
    Fs(#[from] FsError),
    #[error("{} is larger than {MAX_FILE_BYTES} bytes, which no admission record is", .path.display())]
    TooLarge { path: PathBuf },
    #[error(
        "{} is not an admission record, as ballast explain pod NAME --record prints it",
        .path.display()
    )]
    Form {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} cannot be decided again", .path.display())]
    Replay { path: PathBuf, source: ReplayError },
}

/// A record decided again.
#[derive(Debug)]
pub struct Replay {
    /// The record with what was decided now, in the form of `ballast explain pod NAME --record`.
    pub text: String,
    /// What is not as it was recorded, by place.
    pub differences: Vec<Difference>,
}

/// A value of the record that came out otherwise. `None`: there is none at that place.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// As `report.holdings[0].cpus`.
    pub path: String,
    pub recorded: Option<Value>,
    pub replayed: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |it: &Option<Value>| match it {
            Some(value) => value.to_string(),
            None => "nothing".to_owned(),
        };
        let (recorded, replayed) = (show(&self.recorded), show(&self.replayed));
        write!(f, "{}: recorded {recorded}, replayed {replayed}", self.path)
    }
}

/// Reads a record, `-` for standard input, and decides it again.
pub fn replay(path: &Path) -> Result<Replay, ReplayFileError> {
    let bytes = match path == Path::new("-") {
        true => input::stdin(MAX_FILE_BYTES + 1)?,
        false => input::file(path, MAX_FILE_BYTES + 1)?,
    };
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let path = path.to_owned();
        return Err(ReplayFileError::TooLarge { path });
    }
    replay_bytes(&bytes).map_err(|fault| match fault {
        Fault::Form(source) => ReplayFileError::Form {
            path: path.to_owned(),
            source,
        },
        Fault::Replay(source) => ReplayFileError::Replay {
            path: path.to_owned(),
            source,
        },
    })
}

#[derive(Debug)]
enum Fault {
    Form(serde_json::Error),
    Replay(ReplayError),
}

fn replay_bytes(bytes: &[u8]) -> Result<Replay, Fault> {
    let recorded: Value = serde_json::from_slice(bytes).map_err(Fault::Form)?;
    // From the bytes and not from the value, so that an error has its line.
    let record: AdmissionRecord = serde_json::from_slice(bytes).map_err(Fault::Form)?;
    let replayed = record.replay().map_err(Fault::Replay)?;
    let replayed = serde_json::to_value(&replayed).map_err(Fault::Form)?;
    let mut differences = Vec::new();
    compare(
        &mut String::new(),
        Some(&recorded),
        Some(&replayed),
        &mut differences,
    );
    Ok(Replay {
        text: canonical_json(&replayed),
        differences,
    })
}

impl Replay {
    /// Of the differences a text of one line each; empty if there are none.
    pub fn differences_text(&self) -> String {
        let mut text: String = self
            .differences
            .iter()
            .take(MAX_SHOWN)
            .map(|it| format!("{it}\n"))
            .collect();
        let n_more = self.differences.len().saturating_sub(MAX_SHOWN);
        if n_more > 0 {
            text.push_str(&format!("and {n_more} more\n"));
        }
        text
    }
}

/// Notes what differs between two values at `path`, at the deepest place that both have.
fn compare(
    path: &mut String,
    recorded: Option<&Value>,
    replayed: Option<&Value>,
    found: &mut Vec<Difference>,
) {
    let len = path.len();
    match (recorded, replayed) {
        (a, b) if a == b => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let new = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(new) {
                if len > 0 {
                    path.push('.');
                }
                path.push_str(key);
                compare(path, a.get(key), b.get(key), found);
                path.truncate(len);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for i in 0..a.len().max(b.len()) {
                path.push_str(&format!("[{i}]"));
                compare(path, a.get(i), b.get(i), found);
                path.truncate(len);
            }
        }
        (a, b) => found.push(Difference {
            path: path.clone(),
            recorded: a.cloned(),
            replayed: b.cloned(),
        }),
    }
}

#[cfg(test)]
mod tests;
