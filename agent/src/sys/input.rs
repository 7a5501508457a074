//! What a user hands to a command: a path as given, relative to where the command was called, or
//! standard input, which may be a pipe.

use std::io;
use std::path::Path;

use super::error::{FsError, Operation};
use super::regular;

/// The most that is read of a configuration, which is a few KiB.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A regular file of at most `limit` bytes.
pub fn file(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    regular::whole(path, limit)
}

/// As [`file`], in UTF-8.
pub fn text(path: &Path, limit: u64) -> Result<String, FsError> {
    String::from_utf8(file(path, limit)?)
        .map_err(|e| FsError::new(Operation::Read, path, io::Error::other(e.utf8_error())))
}

/// At most `limit` bytes of standard input.
pub fn stdin(limit: u64) -> Result<Vec<u8>, FsError> {
    regular::at_most(io::stdin().lock(), limit)
        .map_err(|e| FsError::new(Operation::Read, Path::new("standard input"), e))
}
