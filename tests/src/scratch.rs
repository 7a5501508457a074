//! What belongs to one test alone: names, and directories.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use anyhow::{Context, Result};

/// A name that nothing else has, whatever `purpose` is. Its end says that a test has made it, and which process: by it
/// [`owner`] knows what is left of one that was ended in the middle.
pub fn own_name(purpose: &str) -> String {
    static N_NAMES: AtomicU32 = AtomicU32::new(0);
    let n = N_NAMES.fetch_add(1, Ordering::Relaxed);
    format!("ballast-{purpose}-test{n}-pid{}", process::id())
}

/// The process that has made something of this name. `None`: it is no [`own_name`], nor one with an x for each dash,
/// which a slice may be.
pub fn owner(name: &str) -> Option<u32> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let rest = name.strip_prefix("ballast")?;
    let (rest, pid) = rest.rsplit_once("pid")?;
    let (_, n) = rest.strip_suffix(['-', 'x'])?.rsplit_once("test")?;
    n.parse::<u32>().ok()?;
    pid.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_has_made_is_told_from_all_else() {
        let (first, second) = (own_name("a-b"), own_name("a-b"));
        assert_ne!(first, second);
        let slice = format!("{}.slice", first.replace('-', "x"));
        for name in [&first, &second, &slice] {
            assert_eq!(owner(name), Some(process::id()), "{name}");
        }
        for name in [
            "ballast",
            "ballast-2",
            "ballast-backup-20261128",
            "ballast-socket-3256-0",
            "ballast-a-test-pid7",
            "ballast-a-test1-pid",
            "other-a-test1-pid7",
        ] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
