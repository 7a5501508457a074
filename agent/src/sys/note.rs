//! A word that one process leaves to the next: written again and again, for a system call each. It
//! outlives the process, and not the machine, since nothing waits for a disk.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use super::error::{FsError, Operation};

/// Each write is as long, so that nothing of an earlier one is left and no reader sees a part of one.
const SIZE: usize = 2048;

/// See the module.
#[derive(Debug)]
pub struct Note {
    file: File,
    path: PathBuf,
}

impl Note {
    /// Opens the file, or makes it; gives what is in it too, up to the end of the last word.
    pub fn open(path: &Path) -> Result<(Self, String), FsError> {
        let failed = |e| FsError::new(Operation::Open, path, e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)
            .map_err(failed)?;
        let mut bytes = [0; SIZE];
        let n = file.read_at(&mut bytes, 0).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes[..n]).trim_end().to_owned();
        let path = path.to_owned();
        Ok((Self { file, path }, text))
    }

    /// What is longer than the file is cut.
    pub fn put(&self, text: &str) -> Result<(), FsError> {
        let mut bytes = [b' '; SIZE];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        let written = self.file.write_all_at(&bytes, 0);
        written.map_err(|e| FsError::new(Operation::Write, &self.path, e))
    }
}
