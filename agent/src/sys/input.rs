//! What a user hands to a command: a path as given, relative to where the command was called, or
//! standard input. A pipe will do as well as a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::error::{FsError, Operation};

/// At most `limit` bytes.
pub fn file(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    File::open(path)
        .and_then(|file| read(file, limit))
        .map_err(|e| FsError::new(Operation::Read, path, e))
}

/// At most `limit` bytes of standard input.
pub fn stdin(limit: u64) -> Result<Vec<u8>, FsError> {
    read(io::stdin().lock(), limit)
        .map_err(|e| FsError::new(Operation::Read, Path::new("standard input"), e))
}

fn read(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
