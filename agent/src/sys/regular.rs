//! Files whose kind, size and contents others decide: read without ever waiting, without a surprise
//! in size, and with what tells one version from the next.

use std::fs::{self, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::error::{FsError, Operation};

/// Changes whenever the file is replaced or written to. Two writes within one tick of the kernel's
/// clock (up to 10 ms) that leave the size alone have the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Regular(FileVersion),
    /// A directory, FIFO, socket or device.
    Other,
    /// A symlink to something that is not there.
    Dangling,
}

/// Looks without opening; symlinks are followed.
pub fn look(path: &Path) -> Result<Kind, FsError> {
    match fs::metadata(path).map_err(|e| FsError::new(Operation::Stat, path, e)) {
        Ok(metadata) if metadata.is_file() => Ok(Kind::Regular(FileVersion::of(&metadata))),
        Ok(_) => Ok(Kind::Other),
        Err(error) if error.is_gone() && fs::symlink_metadata(path).is_ok() => Ok(Kind::Dangling),
        Err(error) => Err(error),
    }
}

/// Whether the mode lets every user of the node read the file; symlinks are followed.
pub fn is_readable_by_others(path: &Path) -> Result<bool, FsError> {
    let metadata = fs::metadata(path).map_err(|e| FsError::new(Operation::Stat, path, e))?;
    Ok(metadata.mode() & 0o004 != 0)
}

/// What reading gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    Whole {
        bytes: Vec<u8>,
        version: FileVersion,
    },
    /// It is larger than the limit.
    TooLarge { version: FileVersion },
    /// It was written to while it was read; the bytes are of no use.
    Changing,
    /// It is no regular file.
    Other,
}

/// Reads a regular file of at most `limit` bytes. A FIFO that took its place does not block.
pub fn read(path: &Path, limit: u64) -> Result<Contents, FsError> {
    let failed = |operation| move |e| FsError::new(operation, path, e);
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags((nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY).bits())
        .open(path)
        .map_err(failed(Operation::Open))?;
    let before = file.metadata().map_err(failed(Operation::Stat))?;
    if !before.is_file() {
        return Ok(Contents::Other);
    }
    let version = FileVersion::of(&before);
    if before.size() > limit {
        return Ok(Contents::TooLarge { version });
    }
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that grew.
    (&mut file)
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed(Operation::Read))?;
    let after = file.metadata().map_err(failed(Operation::Stat))?;
    if FileVersion::of(&after) != version {
        return Ok(Contents::Changing);
    }
    Ok(Contents::Whole { bytes, version })
}
