//! A directory of a test.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

use anyhow::{Context, Result};

/// Empty at first, gone when it is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// `name`: of no other test.
    pub fn new(name: &str) -> Result<Self> {
        let path = env::temp_dir().join(format!("ballast-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
