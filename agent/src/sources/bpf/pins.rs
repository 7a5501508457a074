//! What outlives the agent: the OOM and the process stream, pinned in a bpffs.
//!
//! ```text
//! <pin directory>/oom-v1-3f2a91c0/{ring,watch,losses}     maps
//!                                 /oom_victim, ...        links, by the name of the program
//! ```
//! The name holds the version of the records and a hash of the object, so another build never reads
//! a foreign ring.
//!
//! Invariants: the directory may be anybody's, a whole bpffs too, and nothing in it is touched but
//! directories of such a name. A set is made under a name of its own and renamed when it is whole. A set under its
//! final name is therefore complete, and what an agent killed halfway left behind is removed by the
//! next one.

use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData, MapError};
use aya::pin::PinError;
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use ebpf_abi::VERSION;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use sha2::{Digest, Sha256};

use super::Stream;
use crate::sys::{FsError, Root, durable};

/// The one place where a bpffs is mounted when there is none.
const BPFFS: &str = "/sys/fs/bpf";

#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    #[error("mount a bpffs on {BPFFS}")]
    Mount { source: nix::Error },
    #[error("{} is not on a bpffs", .path.display())]
    NotBpffs { path: PathBuf },
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("pin {}", .path.display())]
    Pin { path: PathBuf, source: PinError },
    #[error("open the pinned map {}", .path.display())]
    Map { path: PathBuf, source: MapError },
    #[error("open the pinned link {}", .path.display())]
    Link { path: PathBuf, source: LinkError },
}

/// The directory of all pins, on a bpffs.
#[derive(Debug)]
pub(super) struct Pins {
    root: Root,
    path: PathBuf,
}

/// A stream as an earlier agent left it.
pub(super) struct Pinned {
    pub(super) ring: MapData,
    pub(super) watch: MapData,
    pub(super) losses: MapData,
    /// By the name of their program.
    pub(super) links: Vec<(String, FdLink)>,
}

/// A bpffs refuses names with a dot.
const UNFINISHED: &str = "new-";

const RING: &str = "ring";
const WATCH: &str = "watch";
const LOSSES: &str = "losses";

impl Pins {
    /// Makes the directory, mounting a bpffs below `/sys/fs/bpf` if there is none.
    pub(super) fn open(path: &Path) -> Result<Self, PinsError> {
        let root = Root::host();
        if path.starts_with(BPFFS) && !is_bpffs(Path::new(BPFFS)) {
            let none: Option<&str> = None;
            mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none)
                .map_err(|source| PinsError::Mount { source })?;
        }
        root.create_dir_all(path)?;
        if !is_bpffs(path) {
            return Err(PinsError::NotBpffs { path: path.into() });
        }
        Ok(Self {
            root,
            path: path.into(),
        })
    }

    /// The name of a set: the stream, the version of the records, and the object that writes them.
    pub(super) fn set_name(stream: Stream, object: &[u8]) -> String {
        let hash = Sha256::digest(object);
        let hash: String = hash.iter().take(4).map(|it| format!("{it:02x}")).collect();
        format!("{}-v{VERSION}-{hash}", stream.name())
    }

    /// Removes every set but those named: other versions, and sets that were never finished.
    pub(super) fn retain(&self, names: &[String]) -> Result<(), PinsError> {
        for name in self.root.list(&self.path)? {
            if is_set_name(&name) && !names.contains(&name) {
                self.root.remove_dir_all(self.path.join(&name))?;
            }
        }
        Ok(())
    }

    /// Opens a set; `None` where there is none.
    pub(super) fn adopt(&self, name: &str) -> Result<Option<Pinned>, PinsError> {
        let set = self.path.join(name);
        if !self.root.is_dir(&set) {
            return Ok(None);
        }
        let map = |name: &str| {
            let path = set.join(name);
            MapData::from_pin(&path).map_err(|source| PinsError::Map { path, source })
        };
        let mut links = Vec::new();
        for name in self.root.list(&set)? {
            if [RING, WATCH, LOSSES].contains(&&*name) {
                continue;
            }
            let path = set.join(&name);
            let link =
                PinnedLink::from_pin(&path).map_err(|source| PinsError::Link { path, source })?;
            links.push((name, FdLink::from(link)));
        }
        Ok(Some(Pinned {
            ring: map(RING)?,
            watch: map(WATCH)?,
            losses: map(LOSSES)?,
            links,
        }))
    }

    /// Removes one set, which detaches its programs once nobody holds them.
    pub(super) fn remove(&self, name: &str) -> Result<(), PinsError> {
        Ok(self.root.remove_dir_all(self.path.join(name))?)
    }

    /// Begins a set: a directory that [`Pins::commit`] gives its name.
    pub(super) fn begin(&self, name: &str) -> Result<PinSet, PinsError> {
        let path = self.path.join(format!("{UNFINISHED}{name}"));
        self.root.remove_dir_all(&path)?;
        self.root.create_dir_all(&path)?;
        Ok(PinSet { path })
    }

    pub(super) fn commit(&self, set: &PinSet, name: &str) -> Result<(), PinsError> {
        Ok(durable::rename(&set.path, &self.path.join(name))?)
    }

    /// Removes every set, and the directory if that leaves it empty.
    pub(super) fn remove_all(path: &Path) -> Result<(), PinsError> {
        let root = Root::host();
        if root.exists(path) {
            Self::open(path)?.retain(&[])?;
        }
        Ok(root.remove_empty_dir(path)?)
    }
}

/// A set under construction.
pub(super) struct PinSet {
    path: PathBuf,
}

impl PinSet {
    pub(super) fn maps(&self, ring: &Map, watch: &Map, losses: &Map) -> Result<(), PinsError> {
        for (name, map) in [(RING, ring), (WATCH, watch), (LOSSES, losses)] {
            let path = self.path.join(name);
            map.pin(&path)
                .map_err(|source| PinsError::Pin { path, source })?;
        }
        Ok(())
    }

    /// Hands the link back: it is kept open for as long as the agent runs.
    pub(super) fn link(&self, program: &str, link: FdLink) -> Result<FdLink, PinsError> {
        let path = self.path.join(program);
        link.pin(&path)
            .map(FdLink::from)
            .map_err(|source| PinsError::Pin { path, source })
    }
}

/// Whether [`Pins::set_name`] gives such names, of this version or another, finished or not.
fn is_set_name(name: &str) -> bool {
    let name = name.strip_prefix(UNFINISHED).unwrap_or(name);
    let mut parts = name.split('-');
    let (stream, version, hash) = (parts.next(), parts.next(), parts.next());
    let is_hash = |it: &str| it.len() == 8 && it.bytes().all(|it| it.is_ascii_hexdigit());
    let is_version = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
    stream.is_some_and(|it| Stream::ALL.iter().any(|stream| stream.name() == it))
        && version
            .and_then(|it| it.strip_prefix('v'))
            .is_some_and(is_version)
        && hash.is_some_and(is_hash)
        && parts.next().is_none()
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|it| it.filesystem_type() == BPF_FS_MAGIC)
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "a directory outside of every bpffs"
)]
mod tests {
    use super::*;

    #[test]
    fn another_object_or_stream_is_another_set() {
        let name = Pins::set_name(Stream::Oom, b"object");
        assert!(name.starts_with("oom-v1-"), "{name}");
        assert_eq!(name, Pins::set_name(Stream::Oom, b"object"));
        assert_ne!(name, Pins::set_name(Stream::Oom, b"objecT"));
        assert_ne!(name, Pins::set_name(Stream::Process, b"object"));
    }

    #[test]
    fn only_names_of_sets_are_ours() {
        for stream in Stream::ALL {
            let name = Pins::set_name(stream, b"object");
            assert!(
                is_set_name(&name) && is_set_name(&format!("new-{name}")),
                "{name}"
            );
        }
        for other in [
            "",
            "oom",
            "oom-v1",
            "oom-v1-",
            "oom-v1-3f2a91c",
            "oom-v1-3f2a91c0f",
            "oom-v1-3f2a91cx",
            "oom-v-3f2a91c0",
            "oom-vx-3f2a91c0",
            "oom-v1-3f2a91c0-x",
            "net-v1-3f2a91c0",
            "cilium",
            "new-",
            "new-new-oom-v1-3f2a91c0",
            "new-cilium",
        ] {
            assert!(!is_set_name(other), "{other}");
        }
    }

    #[test]
    fn a_directory_outside_of_bpffs_is_refused() {
        let path = std::env::temp_dir().join(format!("ballast-pins-{}", std::process::id()));
        let error = Pins::open(&path).map(drop);
        assert!(
            matches!(error, Err(PinsError::NotBpffs { .. })),
            "{error:?}"
        );
        let error = Pins::remove_all(&path);
        assert!(
            matches!(error, Err(PinsError::NotBpffs { .. })),
            "{error:?}"
        );
        std::fs::remove_dir(&path).expect("made by open");
    }
}
