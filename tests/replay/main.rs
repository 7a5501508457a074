//! Recorded inputs to golden results. Nothing here needs privileges, a network beyond loopback or this
//! machine's own files.
//!
//! `BALLAST_UPDATE_GOLDEN=1 cargo test -p ballast-tests --test replay` writes the golden files
//! anew; the diff is reviewed like code.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it finds its own files"
)]

mod cgroups;
mod names;
mod node;
mod readings;
mod recorded;
mod static_pods;
mod stats;
mod stories;
mod topology;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Below `tests/data`.
fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data")
        .join(path)
}

/// The files in a directory below `tests/data` with this extension, by name; at least one.
fn files(directory: &str, extension: &str) -> Result<Vec<PathBuf>> {
    let directory = data(directory);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == extension) {
            paths.push(path);
        }
    }
    paths.sort();
    ensure!(
        !paths.is_empty(),
        "no {extension} in {}",
        directory.display()
    );
    Ok(paths)
}

/// Checks all of them, and tells of each that does not hold.
fn check_each(paths: &[PathBuf], check: impl Fn(&Path) -> Result<()>) -> Result<()> {
    let faults = paths.iter().filter_map(|it| check(it).err());
    let faults: Vec<String> = faults.map(|it| format!("{it:#}")).collect();
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Compares with a golden file, or writes it when that is asked for.
fn check_golden(path: &Path, found: &str) -> Result<()> {
    if std::env::var_os("BALLAST_UPDATE_GOLDEN").is_some() {
        return std::fs::write(path, found).with_context(|| format!("write {}", path.display()));
    }
    let golden =
        std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let differing = golden
        .lines()
        .zip(found.lines())
        .position(|(golden, found)| golden != found);
    match differing {
        None if golden.lines().count() == found.lines().count() => Ok(()),
        None => anyhow::bail!("{} has another length than what was found", path.display()),
        Some(n) => anyhow::bail!(
            "{}, line {}:\n  golden: {}\n  found:  {}",
            path.display(),
            n + 1,
            golden.lines().nth(n).unwrap_or_default(),
            found.lines().nth(n).unwrap_or_default()
        ),
    }
}
