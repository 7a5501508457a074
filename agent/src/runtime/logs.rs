//! Keeps the output of containers within bounds.
//!
//! Containers append to their log themselves, so neither the agent's death nor its restart loses a
//! byte, and no rename of ours reaches them. A log that is too long is copied to `LOG.1`, after
//! `LOG.1` became `LOG.2` and so on, and then cut where it is. Read in the order `LOG.2`, `LOG.1`,
//! `LOG`, the files are the output as it was written; a cut may be in the middle of a line. What a log
//! has in more than the old files may hold is copied to several of them at once, and of still more the
//! newest is kept: containers can make a log of any length within a moment, and of holes, which stay
//! holes.
//!
//! Loss: that, and else none where the file system can take out the head of a file (ext4, XFS). Elsewhere the file
//! is emptied, and what was written between the last look at its length and that moment, some
//! microseconds, is gone. On a full disk the oldest output is given up rather than the bound. An
//! agent killed between copy and cut leaves the copied part in both files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nix::libc;

use super::ContainerOwner;
use crate::model::pod::PodUid;
use crate::sys::append::{Appended, Copy, rename_if_any};
use crate::sys::{FsError, Root};

/// Of a copy that has not become an old file yet.
const ROTATING: &str = "rotating";

/// How often what was written during a copy is copied after it, before the rest is given up to a
/// writer that is faster than the copy. Arbitrary: each round has a fraction of the last one's
/// work.
const MAX_CATCH_UPS: usize = 8;

/// What [`rotate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotated {
    /// The log is not too long, or not there.
    No,
    /// The log keeps its last block. `skipped_bytes`: before those that were moved, more than may be
    /// kept; they are gone.
    Collapsed {
        moved_bytes: u64,
        skipped_bytes: u64,
    },
    /// What was written just before the cut is lost too; the log is empty.
    Truncated {
        moved_bytes: u64,
        skipped_bytes: u64,
    },
    /// No old files are kept, or there is no room for one: the bytes are gone.
    Discarded { bytes: u64 },
}

/// `LOG` of one attempt: `<state>/logs/<namespace>_<pod>_<uid>/<container>/<attempt>.log`, as
/// kubelet names them.
pub fn log_path(state_dir: &Path, owner: &ContainerOwner) -> PathBuf {
    container_dir(state_dir, owner).join(format!("{}.log", owner.attempt))
}

/// The directory of all attempts of a container.
pub fn container_dir(state_dir: &Path, owner: &ContainerOwner) -> PathBuf {
    let (namespace, name) = (&owner.pod_namespace, &owner.pod_name);
    pod_dir(state_dir, namespace, name, &owner.pod_uid).join(&owner.container)
}

/// The directory of all containers of a pod; of a name that is too long for one, as much as fits.
pub fn pod_dir(state_dir: &Path, namespace: &str, name: &str, uid: &PodUid) -> PathBuf {
    let mut readable = format!("{namespace}_{name}");
    readable.truncate(NAME_MAX.saturating_sub(1 + uid.0.len()));
    directory(state_dir).join(format!("{readable}_{uid}"))
}

/// Longest name of a file, bytes (include/uapi/linux/limits.h). Names of pods are ASCII.
const NAME_MAX: usize = 255;

/// The directory of all pods.
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("logs")
}

/// Rotates a log of more than `max_bytes`, keeping `max_files` files with the log itself
/// (`containerLogMaxSize` and `containerLogMaxFiles`; 0 files count as 1).
///
/// Costs a `stat` for a short log; else a copy of it and an `fsync`, so not a call for a thread
/// that others wait for. One caller per log.
pub fn rotate(path: &Path, max_bytes: u64, max_files: u32) -> Result<Rotated, FsError> {
    match Root::host().metadata(path) {
        Ok(metadata) if metadata.len() <= max_bytes => return Ok(Rotated::No),
        // Of anything else the next call tells.
        _ => {}
    }
    let log = match Appended::open(path) {
        Ok(log) => log,
        Err(error) if error.is_gone() => return Ok(Rotated::No),
        Err(error) => return Err(error),
    };
    if log.len()? <= max_bytes {
        return Ok(Rotated::No);
    }
    let head = log.collapsible()?;
    shorten(&log, path, head, max_bytes, max_files)
}

/// `head` bytes can be cut without loss; 0: none, so the log is emptied.
fn shorten(
    log: &Appended,
    path: &Path,
    head: u64,
    max_bytes: u64,
    max_files: u32,
) -> Result<Rotated, FsError> {
    let n_old = max_files.saturating_sub(1);
    // Nothing, or the files above the bound after the configuration changed.
    for (_, surplus) in old_files(path)?.split_off(&n_old.saturating_add(1)) {
        Root::host().remove_file(surplus)?;
    }
    if n_old == 0 {
        return discard(log);
    }
    let max_bytes = max_bytes.max(1);
    let len = if head > 0 { head } else { log.len()? };
    // Each file is a little longer than it should be when somebody looks.
    let budget = max_bytes
        .saturating_mul(n_old.into())
        .saturating_add(max_bytes / 2);
    let skipped_bytes = len.saturating_sub(budget);
    let mut start = skipped_bytes;
    let mut last = None;
    let n_parts = ((len - skipped_bytes) / max_bytes).clamp(1, n_old.into());
    let part = (len - skipped_bytes).div_ceil(n_parts);
    while start < len {
        let n = part.min(len - start);
        match add_old(log, path, start, n, n_old)? {
            Some(copy) => last = Some(copy),
            None => return discard(log),
        }
        start += n;
    }
    let Some(mut copy) = last else {
        return discard(log);
    };
    remove_beyond(path, budget)?;
    let mut moved_bytes = len - skipped_bytes;
    if head > 0 && log.collapse(head)? {
        return Ok(Rotated::Collapsed {
            moved_bytes,
            skipped_bytes,
        });
    }
    let mut end = len;
    for _ in 0..MAX_CATCH_UPS {
        let n_more = log.len()?.saturating_sub(end);
        if n_more == 0 || n_more > max_bytes {
            break;
        }
        match log.copy(end, n_more, &mut copy) {
            Ok(n) => {
                end += n;
                moved_bytes += n;
            }
            Err(error) if is_disk_full(&error) => break,
            Err(error) => return Err(error),
        }
    }
    log.truncate()?;
    Ok(Rotated::Truncated {
        moved_bytes,
        skipped_bytes,
    })
}

/// Removes the oldest files of those that have more than `budget` bytes together.
fn remove_beyond(path: &Path, budget: u64) -> Result<(), FsError> {
    let mut sum = 0u64;
    for file in old_files(path)?.values() {
        sum = sum.saturating_add(Root::host().metadata(file)?.len());
        if sum > budget {
            Root::host().remove_file(file)?;
        }
    }
    Ok(())
}

/// Copies a part of the log to `LOG.1`, after the old files have moved on. `None`: there is no room for
/// it.
fn add_old(
    log: &Appended,
    path: &Path,
    start: u64,
    len: u64,
    n_old: u32,
) -> Result<Option<Copy>, FsError> {
    let mut old = old_files(path)?;
    let aside = suffixed(path, ROTATING);
    let copy = loop {
        let error = match copy_aside(log, start, len, &aside) {
            Ok(copy) => break copy,
            Err(error) => error,
        };
        if !is_disk_full(&error) {
            return Err(error);
        }
        // Older output makes room for newer.
        match old.pop_last() {
            Some((_, oldest)) => Root::host().remove_file(oldest)?,
            None => return Ok(None),
        }
    };
    // From the oldest on, over its successor's place.
    for (number, file) in old.iter().rev() {
        if *number < n_old {
            rename_if_any(file, &numbered(path, number + 1))?;
        }
    }
    rename_if_any(&aside, &numbered(path, 1))?;
    Ok(Some(copy))
}

/// `len` bytes of the log, on the disk; nothing is left of it otherwise.
fn copy_aside(log: &Appended, start: u64, len: u64, aside: &Path) -> Result<Copy, FsError> {
    let mut copy = Copy::create(aside)?;
    let result = log.copy(start, len, &mut copy).and_then(|_| copy.sync());
    match result {
        Ok(()) => Ok(copy),
        Err(error) => {
            Root::host().remove_file(aside)?;
            Err(error)
        }
    }
}

fn discard(log: &Appended) -> Result<Rotated, FsError> {
    let head = log.collapsible()?;
    if head > 0 && log.collapse(head)? {
        return Ok(Rotated::Discarded { bytes: head });
    }
    let bytes = log.len()?;
    log.truncate()?;
    Ok(Rotated::Discarded { bytes })
}

/// The rotated files of a log, by number.
fn old_files(path: &Path) -> Result<BTreeMap<u32, PathBuf>, FsError> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|it| it.to_str()))
    else {
        return Ok(BTreeMap::new());
    };
    let number = |entry: &str| {
        let number = entry.strip_prefix(name)?.strip_prefix('.')?;
        number.parse().ok().filter(|it| *it > 0)
    };
    let entries = Root::host().list(dir)?;
    Ok(entries
        .iter()
        .filter_map(|entry| Some((number(entry)?, dir.join(entry))))
        .collect())
}

/// Removes the logs of all but the newest `n_attempts` attempts (at least one) in the directory of
/// a container. Gives the attempts removed, in order; a directory that is not there has none.
pub fn prune(dir: &Path, n_attempts: usize) -> Result<Vec<u32>, FsError> {
    let names = match Root::host().list(dir) {
        Ok(names) => names,
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut attempts: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for name in names {
        if let Some(attempt) = attempt_of(&name) {
            attempts.entry(attempt).or_default().push(name);
        }
    }
    let n_removed = attempts.len().saturating_sub(n_attempts.max(1));
    let mut removed = Vec::new();
    for (attempt, names) in attempts.into_iter().take(n_removed) {
        for name in names {
            Root::host().remove_file(dir.join(name))?;
        }
        removed.push(attempt);
    }
    Ok(removed)
}

/// Removes the copies in the directory of a container that an agent was killed at. Not while a log there is rotated.
pub fn remove_unfinished(dir: &Path) -> Result<(), FsError> {
    let names = match Root::host().list(dir) {
        Ok(names) => names,
        Err(error) if error.is_gone() => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_unfinished = |name: &&String| {
        let log = name.strip_suffix(ROTATING);
        log.is_some_and(|it| it.ends_with(".log.")) && attempt_of(name).is_some()
    };
    for name in names.iter().filter(is_unfinished) {
        Root::host().remove_file(dir.join(name))?;
    }
    Ok(())
}

/// The newest attempt that has a log in the directory of a container.
pub fn last_attempt(dir: &Path) -> Option<u32> {
    let names = Root::host().list(dir).ok()?;
    names.iter().filter_map(|it| attempt_of(it)).max()
}

/// Of `3.log`, `3.log.1` and `3.log.rotating`: 3.
fn attempt_of(name: &str) -> Option<u32> {
    let (attempt, rest) = name.split_once(".log")?;
    let is_ours = rest.is_empty() || rest.starts_with('.');
    attempt.parse().ok().filter(|_| is_ours)
}

fn is_disk_full(error: &FsError) -> bool {
    matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT))
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    suffixed(path, &number.to_string())
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests;
