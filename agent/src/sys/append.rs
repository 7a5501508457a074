//! Files that other processes append to while the agent looks after them.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

use super::error::{FsError, Operation};

/// Opens a file for appending, close-on-exec; made, mode 0640, where it is not there. A symlink in
/// its place is refused, so nobody can direct the output of a container elsewhere.
pub fn open(path: &Path) -> Result<OwnedFd, FsError> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY)
        .open(path)
        .map(OwnedFd::from)
        .map_err(|e| FsError::new(Operation::Open, path, e))
}

/// `/dev/null` for reading, close-on-exec.
pub fn open_null() -> Result<OwnedFd, FsError> {
    let path = Path::new("/dev/null");
    File::open(path)
        .map(OwnedFd::from)
        .map_err(|e| FsError::new(Operation::Open, path, e))
}
