//! A file that tells cargo when a build script which found no tool chain has to look again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Layout;

/// `target/bpf/toolchain`. A build script that found no tool chain depends on it instead of on the
/// tools: cargo runs a script again on every build when a file it depends on does not exist, and
/// then compiles the agent again.
#[derive(Clone, Debug)]
pub struct Stamp(PathBuf);

impl Stamp {
    pub fn of(layout: &Layout) -> Self {
        Self(layout.target.join("toolchain"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the file if there is none, with an old time: one from within the build script's own
    /// run would make cargo run it once more.
    pub fn ensure(&self) -> io::Result<()> {
        if self.0.exists() {
            return Ok(());
        }
        self.write()?.set_modified(SystemTime::UNIX_EPOCH)
    }

    /// Makes the next build look for the tool chain again. Called once a tool chain is there that
    /// was missing before.
    pub fn renew(&self) -> io::Result<()> {
        self.write().map(drop)
    }

    fn write(&self) -> io::Result<File> {
        if let Some(directory) = self.0.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut file = File::create(&self.0)?;
        file.write_all(b"changed when the eBPF tool chain appears\n")?;
        Ok(file)
    }
}
