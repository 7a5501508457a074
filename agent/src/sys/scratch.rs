//! Directories of tests.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io, process};

/// A directory of one test alone, since the tests of a program are threads of one process. Empty at first, gone with
/// all that is in it when it is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static N_NAMES: AtomicU64 = AtomicU64::new(0);
        loop {
            let n = N_NAMES.fetch_add(1, Ordering::Relaxed);
            let path = env::temp_dir().join(format!("ballast-{name}-{}-{n}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Of a process that was killed, or of another PID namespace.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("make {}: {error}", path.display()),
            }
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file below it and returns its path.
    pub(crate) fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        if let Err(error) = fs::write(&path, content) {
            panic!("write {}: {error}", path.display());
        }
        path
    }

    /// Makes a link and returns its path.
    pub(crate) fn link(&self, name: impl AsRef<Path>, target: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        if let Err(error) = symlink(target, &path) {
            panic!("link {}: {error}", path.display());
        }
        path
    }

    /// Makes a file that the kernel fails to read, with `ELOOP`, and returns its path.
    pub(crate) fn unreadable(&self, name: impl AsRef<Path>) -> PathBuf {
        let target = self.path(&name);
        self.link(name, target)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The test may have removed it.
        let _ = fs::remove_dir_all(&self.0);
    }
}
