//! Reads back what the agent stored for its next start. A file that is damaged is set aside by the caller, one that
//! the kernel fails to read, or that another version of the agent has written in a form of its own, stays where it is;
//! none is a reason not to start.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::model::sealed::{self, SealError};
use crate::sys::{FsError, Root, regular};

/// Larger files are refused unread: a record is a few KiB.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    File(#[from] FsError),
    #[error("checkpoint {}", .path.display())]
    Unusable { path: PathBuf, source: SealError },
}

impl CheckpointError {
    /// No later reading can be better. False: the kernel failed to read it, or this version of the agent cannot; what it
    /// says may be as good as ever.
    pub fn is_damage(&self) -> bool {
        match self {
            // What is gone, no file, or too large.
            Self::File(error) => error.errno().is_none(),
            Self::Unusable { source, .. } => source.is_damage(),
        }
    }
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
    let bytes = regular::whole_if_possible(path, MAX_BYTES)?;
    open(path, kind, version, &bytes)
}

/// As [`read`], for one who tries again later.
pub fn read_once<T: DeserializeOwned>(
    path: &Path,
    kind: &'static str,
    version: u32,
) -> Result<T, CheckpointError> {
    let bytes = regular::whole(path, MAX_BYTES)?;
    open(path, kind, version, &bytes)
}

fn open<T: DeserializeOwned>(
    path: &Path,
    kind: &'static str,
    version: u32,
    bytes: &[u8],
) -> Result<T, CheckpointError> {
    sealed::open(kind, version, bytes).map_err(|source| CheckpointError::Unusable {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn what_the_kernel_or_this_version_fails_to_read_is_not_damaged() {
        let dir = Scratch::new("checkpoint");
        let read = |path: &Path| read::<u32>(path, "number", 1).unwrap_err();
        assert!(!read(&dir.unreadable("unread.json")).is_damage());
        let later = dir.write("later", sealed::seal("number", 2, &7));
        assert!(!read(&later).is_damage());
        let damaged = dir.write("damaged.json", "spoilt");
        for path in [&*damaged, dir.directory()] {
            assert!(read(path).is_damage(), "{}", path.display());
        }
        let all = read_all::<u32>(dir.directory(), ".json", "number", 1).unwrap();
        assert_eq!(all.len(), 2);
    }
}
