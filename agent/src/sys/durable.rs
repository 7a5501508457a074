//! Files that survive a crash: written whole to a temporary, synced, renamed, and the directory
//! synced, so that a reader sees the old bytes or the new ones and nothing between.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::{FsError, Operation};

/// Replaces `path` by `bytes`, mode 0600. Costs two `fsync` calls.
///
/// One writer per path: the temporary is `path` with `.tmp` appended.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FsError> {
    replace_with(path, bytes, true)?;
    sync_parent(path)
}

/// As [`write`], without the two `fsync` calls: survives the death of the agent at any instant,
/// but after a crash of the node the file may be the old one, or empty.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), FsError> {
    replace_with(path, bytes, false)
}

/// Makes what [`replace`] has written survive a crash of the node. Costs two `fsync` calls.
pub fn sync(path: &Path) -> Result<(), FsError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|e| FsError::new(Operation::Sync, path, e))?;
    sync_parent(path)
}

/// Renames a file, durably, over whatever has the new name.
pub fn rename(from: &Path, to: &Path) -> Result<(), FsError> {
    fs::rename(from, to).map_err(|e| FsError::new(Operation::Rename, from, e))?;
    sync_parent(to)
}

fn replace_with(path: &Path, bytes: &[u8], is_synced: bool) -> Result<(), FsError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let replaced = write_new(temporary, bytes, is_synced).and_then(|()| {
        fs::rename(temporary, path).map_err(|e| FsError::new(Operation::Rename, path, e))
    });
    if replaced.is_err() {
        // Nobody else would give its room back.
        fs::remove_file(temporary).ok();
    }
    replaced
}

fn write_new(temporary: &Path, bytes: &[u8], is_synced: bool) -> Result<(), FsError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(temporary)
        .map_err(|e| FsError::new(Operation::Open, temporary, e))?;
    file.write_all(bytes)
        .map_err(|e| FsError::new(Operation::Write, temporary, e))?;
    if is_synced {
        file.sync_all()
            .map_err(|e| FsError::new(Operation::Sync, temporary, e))?;
    }
    Ok(())
}

/// Removes `path` durably; a file that is not there is fine.
pub fn remove(path: &Path) -> Result<(), FsError> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(FsError::new(Operation::RemoveFile, path, e)),
    }
}

fn sync_parent(path: &Path) -> Result<(), FsError> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(|e| FsError::new(Operation::Sync, parent, e))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn what_cannot_be_replaced_leaves_no_temporary() {
        let dir = Scratch::new("durable-fault");
        let path = dir.path("state");
        fs::create_dir(&path).unwrap();
        replace(&path, b"new").unwrap_err();
        assert!(path.is_dir() && !dir.path("state.tmp").exists());
    }

    #[test]
    fn a_leftover_temporary_does_not_hinder_the_next_write() {
        let dir = Scratch::new("durable");
        let path = dir.path("state");
        dir.write("state.tmp", "half of a longer rec");
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(!dir.path("state.tmp").exists());
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }
}
