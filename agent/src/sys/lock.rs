//! A lock that the kernel holds for this process: it goes with the process, however that ends.

use std::fs::{File, OpenOptions};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::error::{FsError, Operation};

/// An exclusive `flock` of a file, until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Takes the lock at `path`, making the file. `None`: another process holds it.
    pub fn take(path: &Path) -> Result<Option<Self>, FsError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(|e| FsError::new(Operation::Open, path, e))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(FsError::new(Operation::Open, path, error.into())),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let path = std::env::temp_dir().join(format!("ballast-lock-{}", std::process::id()));
        let first = Lock::take(&path).unwrap();
        assert!(first.is_some());
        assert!(Lock::take(&path).unwrap().is_none());
        drop(first);
        assert!(Lock::take(&path).unwrap().is_some());
        std::fs::remove_file(&path).unwrap();
    }
}
