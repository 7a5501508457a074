//! What a mounted filesystem is and how large it is.

use std::path::{Path, PathBuf};

use nix::sys::statfs::{self, statfs};

use super::error::{FsError, Operation};
use super::patience::Patience;
use super::root::Root;

/// The kinds of filesystem that the agent tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesystemKind {
    Cgroup,
    Cgroup2,
    Bpf,
    Other,
}

/// `statfs(2)` of some path on a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filesystem {
    pub kind: FilesystemKind,
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
        let kind = match stat.filesystem_type() {
            statfs::CGROUP_SUPER_MAGIC => FilesystemKind::Cgroup,
            statfs::CGROUP2_SUPER_MAGIC => FilesystemKind::Cgroup2,
            statfs::BPF_FS_MAGIC => FilesystemKind::Bpf,
            _ => FilesystemKind::Other,
        };
        // The width and sign of the block size differ by architecture.
        let block_bytes = u64::try_from(stat.block_size()).unwrap_or(0);
        let has_inodes = stat.files() > 0;
        Ok(Filesystem {
            kind,
            total_bytes: stat.blocks().saturating_mul(block_bytes),
            free_bytes: stat.blocks_free().saturating_mul(block_bytes),
            available_bytes: stat.blocks_available().saturating_mul(block_bytes),
            inodes: has_inodes.then(|| stat.files()),
            inodes_free: has_inodes.then(|| stat.files_free()),
        })
    }
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
}
