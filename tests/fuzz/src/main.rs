//! `fuzz-seeds DIRECTORY`: writes the seeds of every target into a directory of its name.
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it takes arguments and writes files"
)]

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.context("usage: fuzz-seeds DIRECTORY")?;
    for (target, _) in ballast_fuzz::TARGETS {
        let directory = directory.join(target);
        fs::create_dir_all(&directory)
            .with_context(|| format!("create {}", directory.display()))?;
        for (i, seed) in ballast_fuzz::seeds::of(target)?.into_iter().enumerate() {
            let path = directory.join(format!("seed-{i:03}"));
            fs::write(&path, seed).with_context(|| format!("write {}", path.display()))?;
        }
    }
    Ok(())
}
