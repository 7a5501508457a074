//! Stores what the agent needs after its own restart: whole, checksummed, synced.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::model::sealed;
use crate::sys::{FsError, durable};

/// Replaces the checkpoint at `path`.
pub fn write<T: Serialize>(
    path: &Path,
    kind: &'static str,
    version: u32,
    value: &T,
) -> Result<(), FsError> {
    durable::write(path, &sealed::seal(kind, version, value))
}

/// As [`write()`], without the sync: survives the death of the agent and not that of the node.
pub fn replace<T: Serialize>(
    path: &Path,
    kind: &'static str,
    version: u32,
    value: &T,
) -> Result<(), FsError> {
    durable::replace(path, &sealed::seal(kind, version, value))
}

/// Removes a checkpoint; one that is not there is fine.
pub fn remove(path: &Path) -> Result<(), FsError> {
    durable::remove(path)
}

/// What is added to the name of a checkpoint that was [`set_aside`].
pub const ASIDE: &str = ".corrupt";

/// Moves a checkpoint that cannot be used out of the way and keeps it for a look.
pub fn set_aside(path: &Path) -> Result<(), FsError> {
    durable::rename(path, &aside(path))
}

/// Removes what was [`set_aside`]; what is not there is fine.
pub fn remove_aside(path: &Path) -> Result<(), FsError> {
    durable::remove(&aside(path))
}

fn aside(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(ASIDE);
    aside.into()
}
