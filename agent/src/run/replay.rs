//! `ballast replay`: an admission or an eviction story that was recorded, decided once more.

mod story;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

pub use self::story::{Comparison, Different, StoryError, StoryReplay};
use crate::config::Config;
use crate::decide::placement::record::{AdmissionRecord, ReplayError};
use crate::model::admission::{MAX_RECORD_BYTES, canonical_json};
use crate::model::recording;
use crate::sys::{FsError, input};

/// Of a record with room for the spaces of the form that people read, and of a story: more than a
/// day of an idle node.
const MAX_FILE_BYTES: u64 = 8 * MAX_RECORD_BYTES;

/// Differences shown, at most: the first ones tell.
const MAX_SHOWN: usize = 32;

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFileError {
    #[error("read the record")]
    Fs(#[from] FsError),
    #[error(
        "{} is neither an eviction story nor an admission record, as ballast explain pod NAME \
         --record prints it",
        .path.display()
    )]
    Form {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} cannot be decided again", .path.display())]
    Replay { path: PathBuf, source: ReplayError },
    #[error("{} cannot be told again", .path.display())]
    Story { path: PathBuf, source: StoryError },
    #[error("{} is an admission record, and --policy is for eviction stories", .path.display())]
    NoStory { path: PathBuf },
    #[error(
        "--policy: a configuration of mode observe evicts nobody; right would be one of mode own"
    )]
    NoPolicy,
}

/// What was recorded, decided again.
#[derive(Debug)]
pub enum Replayed {
    Admission(Replay),
    Story(Box<StoryReplay>),
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
#[derive(Debug, PartialEq, Eq, Serialize)]
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

/// Reads a record or a story, `-` for standard input, and decides it again; a story also with the
/// policy of `other`.
pub fn replay(path: &Path, other: Option<&Config>) -> Result<Replayed, ReplayFileError> {
    let bytes = match path == Path::new("-") {
        true => input::stdin(MAX_FILE_BYTES)?,
        false => input::file(path, MAX_FILE_BYTES)?,
    };
    let path = || path.to_owned();
    let other = match other.map(|it| (it, it.mode.own())) {
        None => None,
        Some((config, Some(own))) => Some((config, own)),
        Some((_, None)) => return Err(ReplayFileError::NoPolicy),
    };
    if recording::is_recording(&bytes) {
        return match story::replay(&bytes, other) {
            Ok(story) => Ok(Replayed::Story(Box::new(story))),
            Err(source) => Err(ReplayFileError::Story {
                path: path(),
                source,
            }),
        };
    }
    match replay_bytes(&bytes) {
        Ok(_) if other.is_some() => Err(ReplayFileError::NoStory { path: path() }),
        Ok(replay) => Ok(Replayed::Admission(replay)),
        Err(Fault::Form(source)) => Err(ReplayFileError::Form {
            path: path(),
            source,
        }),
        Err(Fault::Replay(source)) => Err(ReplayFileError::Replay {
            path: path(),
            source,
        }),
    }
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
