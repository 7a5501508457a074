//! What a mounted filesystem is and how large it is.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{StatFs, fstatfs, statfs};

use super::error::{FsError, Operation};
use super::patience::Patience;
use super::root::Root;

/// Of `f_flags`, Linux 2.6.36 (include/linux/statfs.h).
const ST_RDONLY: i64 = 1;

/// The kinds of filesystem that the agent tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesystemKind {
    Cgroup,
    Cgroup2,
    Bpf,
    Proc,
    Sysfs,
    Other,
}

/// `statfs(2)` of some path on a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filesystem {
    pub kind: FilesystemKind,
    /// Where it is mounted here, or as a whole.
    pub is_read_only: bool,
    /// The whole filesystem, used or not.
    pub total_bytes: u64,
    /// For root.
    pub free_bytes: u64,
    /// For those without privileges.
    pub available_bytes: u64,
    /// `None`: it does not count them (btrfs).
    pub inodes: Option<u64>,
    pub inodes_free: Option<u64>,
}

impl Root {
    /// The filesystem that holds `path`.
    pub fn filesystem(&self, path: impl AsRef<Path>) -> Result<Filesystem, FsError> {
        let path = self.path(path);
        let stat = statfs(&path).map_err(|e| FsError::new(Operation::Stat, &path, e.into()))?;
        Ok(stat.into())
    }
}

impl Filesystem {
    /// The one that an open file is on.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(fstatfs(file)?.into())
    }
}

impl From<StatFs> for Filesystem {
    fn from(stat: StatFs) -> Self {
        let kind = match stat.f_type {
            libc::CGROUP_SUPER_MAGIC => FilesystemKind::Cgroup,
            libc::CGROUP2_SUPER_MAGIC => FilesystemKind::Cgroup2,
            libc::BPF_FS_MAGIC => FilesystemKind::Bpf,
            libc::PROC_SUPER_MAGIC => FilesystemKind::Proc,
            libc::SYSFS_MAGIC => FilesystemKind::Sysfs,
            _ => FilesystemKind::Other,
        };
        let block_bytes = block_bytes(stat.f_frsize, stat.f_bsize);
        let has_inodes = stat.f_files > 0;
        Self {
            kind,
            is_read_only: stat.f_flags & ST_RDONLY != 0,
            total_bytes: stat.f_blocks.saturating_mul(block_bytes),
            free_bytes: stat.f_bfree.saturating_mul(block_bytes),
            available_bytes: stat.f_bavail.saturating_mul(block_bytes),
            inodes: has_inodes.then_some(stat.f_files),
            inodes_free: has_inodes.then_some(stat.f_ffree),
        }
    }
}

/// The unit that blocks are counted in. `f_bsize` is what is best read at once, which a file system of FUSE may make a
/// mebibyte of (fs/fuse/inode.c, Linux 6.18: `convert_fuse_statfs`).
fn block_bytes(fragment: i64, block: i64) -> u64 {
    let unit = if fragment > 0 { fragment } else { block };
    u64::try_from(unit).unwrap_or(0)
}

/// The filesystem at a path, without waiting for one that does not answer.
#[derive(Clone, Debug)]
pub struct FilesystemProbe {
    root: Root,
    path: PathBuf,
    patience: Patience,
}

impl FilesystemProbe {
    /// `path`: absolute in the node.
    pub fn new(root: &Root, path: &Path, patience: &Patience) -> Self {
        Self {
            root: root.clone(),
            path: path.into(),
            patience: patience.clone(),
        }
    }

    /// The same of another path.
    #[must_use]
    pub fn at(&self, path: &Path) -> Self {
        Self {
            path: path.into(),
            ..self.clone()
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None`: it does not answer in time, or cannot be read.
    pub fn read(&self) -> Option<Filesystem> {
        let (root, path) = (self.root.clone(), self.path.clone());
        self.patience
            .ask(move |_asker| root.filesystem(path).ok())
            .flatten()
    }

    /// The path without links, absolute in the node. `None`: as for [`Self::read`], or it leads out of the root.
    pub fn canonical_path(&self) -> Option<PathBuf> {
        let (root, path) = (self.root.clone(), self.path.clone());
        let canonical = move || {
            let above = root.canonical("/").ok()?;
            let found = root.canonical(path).ok()?;
            let below = found.strip_prefix(above).ok()?;
            Some(Path::new("/").join(below))
        };
        self.patience.ask(move |_asker| canonical()).flatten()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_path_without_links_is_one_of_the_node() {
        let dir = Scratch::new("canonical");
        fs::create_dir_all(dir.path("data/state")).unwrap();
        symlink("data", dir.path("link")).unwrap();
        symlink("/", dir.path("out")).unwrap();
        let patience = Patience::start(Duration::from_secs(60)).unwrap();
        let probe = FilesystemProbe::new(&Root::at(dir.directory()), Path::new("/"), &patience);
        let of = |path: &str| probe.at(Path::new(path)).canonical_path();
        let state = Some(PathBuf::from("/data/state"));
        assert_eq!(of("/data/state"), state);
        assert_eq!(of("/link/state"), state);
        assert_eq!(of("/"), Some(PathBuf::from("/")));
        assert_eq!(of("/out"), None);
        assert_eq!(of("/absent"), None);
    }
}
