//! What belongs to one test alone: names, and directories.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use anyhow::{Context, Result};

/// A name that nothing else has, whatever `purpose` is. It ends with the process, by which
/// [`remove_traces_of`](crate::agent::remove_traces_of) knows what somebody else has left.
pub fn own_name(purpose: &str) -> String {
    static N_NAMES: AtomicU32 = AtomicU32::new(0);
    let n = N_NAMES.fetch_add(1, Ordering::Relaxed);
    format!("ballast-{purpose}-{n}-{}", process::id())
}

/// A directory. Empty at first, gone with all that is in it when it is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(purpose: &str) -> Result<Self> {
        let path = env::temp_dir().join(own_name(purpose));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file below it and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}
