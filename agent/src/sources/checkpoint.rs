//! Reads back what the agent stored for its next start. A file that cannot be used is set aside
//! by the caller, never a reason not to start.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::model::sealed::{self, SealError};
use crate::sys::{FsError, Root};

/// Larger files are refused unread: a record is a few KiB.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    File(#[from] FsError),
    #[error("checkpoint {}", .path.display())]
    Damaged { path: PathBuf, source: SealError },
}

/// Every checkpoint in `directory` whose name ends in `suffix`, by name. A directory that is not
/// there has none.
#[expect(clippy::type_complexity, reason = "one result per file, with its path")]
pub fn read_all<T: DeserializeOwned>(
    directory: &Path,
    suffix: &str,
    kind: &'static str,
    version: u32,
) -> Result<Vec<(PathBuf, Result<T, CheckpointError>)>, FsError> {
    let root = Root::host();
    let names = match root.list(directory) {
        Ok(names) => names,
        Err(FsError::Gone { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(names
        .into_iter()
        .filter(|name| name.ends_with(suffix))
        .map(|name| {
            let path = directory.join(name);
            let value = read(&path, kind, version);
            (path, value)
        })
        .collect())
}

/// One checkpoint.
pub fn read<T: DeserializeOwned>(
    path: &Path,
    kind: &'static str,
    version: u32,
) -> Result<T, CheckpointError> {
    let bytes = Root::host().read_at_most(path, MAX_BYTES)?;
    sealed::open(kind, version, &bytes).map_err(|source| CheckpointError::Damaged {
        path: path.to_owned(),
        source,
    })
}
