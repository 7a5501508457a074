//! What outlives the agent: the OOM and the process stream, pinned in a bpffs.
//!
//! ```text
//! <pin directory>/oom-v2-3f2a91c0/{ring,watch,losses}     maps
//!                                 /oom_victim, ...        links, by the name of the program
//!                                 /refused-1ff-oom_reason an empty directory: the kernel refused it
//!                                                         to an agent of these capabilities
//! ```
//! The name holds the version of the records and a hash of the object. Every other set is renamed
//! to `old-...` and read to its end as [`Older`](super::older::Older).
//!
//! Invariants: the directory may be anybody's, a whole bpffs too, and nothing in it is touched but
//! directories of such a name. A set is made as `new-...` and renamed when it is whole. A set under its
//! final name is therefore complete, and what an agent killed halfway left behind is removed by the
//! next one.

use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData, MapError};
use aya::pin::PinError;
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use ebpf_abi::VERSION;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::stat;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::unistd::{AccessFlags, faccessat};
use sha2::{Digest, Sha256};

use super::{Stream, load};
use crate::model::check::{BPFFS, Bpffs};
use crate::sources::{mounts, probe};
use crate::sys::{FsError, Root, durable};

#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    #[error("mount a bpffs on {BPFFS}")]
    Mount { source: nix::Error },
    #[error("{} is not on a bpffs", .path.display())]
    NotBpffs { path: PathBuf },
    #[error(
        "{} is on no bpffs of the host: mount one at {BPFFS} there, and mount that into a container",
        .path.display()
    )]
    NotOfHost { path: PathBuf },
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("pin {}", .path.display())]
    Pin { path: PathBuf, source: PinError },
    #[error("open the pinned map {}", .path.display())]
    Map { path: PathBuf, source: MapError },
    #[error("open the pinned link {}", .path.display())]
    Link { path: PathBuf, source: LinkError },
}

impl PinsError {
    /// What is pinned is as it was, and the kernel does not hand it out to this agent: it lacks a right, or the node
    /// something else. Another start may have it.
    pub(super) fn is_refusal(&self) -> bool {
        let (path, error) = match self {
            Self::Map {
                path,
                source: MapError::SyscallError(error),
            }
            | Self::Link {
                path,
                source: LinkError::SyscallError(error),
            } => (path, &error.io_error),
            _ => return false,
        };
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
        match errno {
            Errno::EPERM | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => true,
            // Of a policy, or of what is no pin.
            Errno::EACCES => !Root::host().is_dir(path),
            _ => false,
        }
    }
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
    pub(super) links: Links,
    /// Programs that the kernel refused, and the capabilities that the agent had.
    pub(super) refused: Vec<(String, u64)>,
}

/// Each by the name of its program.
pub(super) type Links = Vec<(String, FdLink)>;

/// A bpffs refuses names with a dot.
const UNFINISHED: &str = "new-";
const OLDER: &str = "old-";
const REFUSED: &str = "refused-";

const RING: &str = "ring";
const WATCH: &str = "watch";
const LOSSES: &str = "losses";

impl Pins {
    /// Makes the directory, mounting a bpffs below `/sys/fs/bpf` if there is none.
    pub(super) fn open(path: &Path) -> Result<Self, PinsError> {
        let root = Root::host();
        match why_not_in(path) {
            None => {}
            Some(Bpffs::NotOfHost(path)) => return Err(PinsError::NotOfHost { path }),
            // Sets that are there can be taken over.
            Some(Bpffs::NotWritable(_)) => {}
            Some(_) => return Err(PinsError::NotBpffs { path: path.into() }),
        }
        if path.starts_with(BPFFS) && !is_bpffs(Path::new(BPFFS)) {
            let none: Option<&str> = None;
            mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none)
                .map_err(|source| PinsError::Mount { source })?;
        }
        root.create_dir_all(path)?;
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

    /// Removes sets that were never finished, and sets every other one aside but those named.
    pub(super) fn set_aside_others(&self, names: &[String]) -> Result<Vec<SetAside>, PinsError> {
        let mut aside = Vec::new();
        for name in self.root.list(&self.path)? {
            let Some(set) = SetName::parse(&name).filter(|_| !names.contains(&name)) else {
                continue;
            };
            match set.prefix {
                UNFINISHED => self.remove(&name)?,
                OLDER => aside.push(set.aside(name.clone())),
                _ => aside.extend(self.set_aside(&name)?),
            }
        }
        Ok(aside)
    }

    /// Gives a set the name of one that is only read to its end. One of the same build that was
    /// still being read is given up for it.
    pub(super) fn set_aside(&self, name: &str) -> Result<Option<SetAside>, PinsError> {
        let Some(set) = SetName::parse(name) else {
            return Ok(None);
        };
        let aside = format!("{OLDER}{name}");
        self.remove(&aside)?;
        durable::rename(&self.path.join(name), &self.path.join(&aside))?;
        Ok(Some(set.aside(aside)))
    }

    /// The ring of a set, and the links that it still has. `None`: it has no ring.
    pub(super) fn open_aside(&self, name: &str) -> Result<Option<(MapData, Links)>, PinsError> {
        let set = self.path.join(name);
        let path = set.join(RING);
        if !self.root.exists(&path) {
            return Ok(None);
        }
        let ring = MapData::from_pin(&path).map_err(|source| PinsError::Map { path, source })?;
        Ok(Some((ring, self.links(&set)?)))
    }

    /// Removes the links of a set; its programs end when nobody holds them.
    pub(super) fn detach(&self, name: &str) -> Result<(), PinsError> {
        let set = self.path.join(name);
        for link in self.link_names(&set)? {
            self.root.remove_file(set.join(link))?;
        }
        Ok(())
    }

    fn link_names(&self, set: &Path) -> Result<Vec<String>, PinsError> {
        let mut names = self.root.list(set)?;
        names.retain(|it| is_link(it));
        Ok(names)
    }

    fn links(&self, set: &Path) -> Result<Links, PinsError> {
        let open = |name: String| {
            let path = set.join(&name);
            match PinnedLink::from_pin(&path) {
                Ok(link) => Ok((name, FdLink::from(link))),
                Err(source) => Err(PinsError::Link { path, source }),
            }
        };
        self.link_names(set)?.into_iter().map(open).collect()
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
        Ok(Some(Pinned {
            ring: map(RING)?,
            watch: map(WATCH)?,
            losses: map(LOSSES)?,
            links: self.links(&set)?,
            refused: self
                .root
                .list(&set)?
                .iter()
                .filter_map(|it| refused(it))
                .collect(),
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
            let pins = Self::open(path)?;
            for name in root.list(path)? {
                if SetName::parse(&name).is_some() {
                    pins.remove(&name)?;
                }
            }
        }
        Ok(root.remove_empty_dir(path)?)
    }
}

/// A set that no agent adopts any more.
pub(super) struct SetAside {
    /// As it is pinned now.
    pub(super) name: String,
    pub(super) stream: Stream,
    pub(super) is_readable: bool,
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

    /// Notes that the kernel refused a program to an agent of these capabilities.
    pub(super) fn refused(&self, program: &str, capabilities: u64) -> Result<(), PinsError> {
        let name = format!("{REFUSED}{capabilities:x}-{program}");
        Ok(Root::host().create_dir_all(self.path.join(name))?)
    }

    /// Hands the link back: it is kept open for as long as the agent runs.
    pub(super) fn link(&self, program: &str, link: FdLink) -> Result<FdLink, PinsError> {
        let path = self.path.join(program);
        link.pin(&path)
            .map(FdLink::from)
            .map_err(|source| PinsError::Pin { path, source })
    }
}

/// What a name of [`Pins::set_name`] says, of this version or another.
struct SetName<'a> {
    /// [`UNFINISHED`], [`OLDER`] or none.
    prefix: &'static str,
    stream: Stream,
    version: &'a str,
}

impl<'a> SetName<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let prefix = [UNFINISHED, OLDER]
            .into_iter()
            .find(|it| name.starts_with(it))
            .unwrap_or("");
        let mut parts = name.strip_prefix(prefix)?.split('-');
        let (stream, version, hash) = (parts.next()?, parts.next()?, parts.next()?);
        let version = version.strip_prefix('v')?;
        let is_ours = hash.len() == 8
            && hash.bytes().all(|it| it.is_ascii_hexdigit())
            && !version.is_empty()
            && version.bytes().all(|it| it.is_ascii_digit())
            && parts.next().is_none();
        let stream = Stream::ALL.into_iter().find(|it| it.name() == stream)?;
        is_ours.then_some(Self {
            prefix,
            stream,
            version,
        })
    }

    fn aside(&self, name: String) -> SetAside {
        SetAside {
            name,
            stream: self.stream,
            is_readable: self.version == VERSION.to_string(),
        }
    }
}

fn is_link(name: &str) -> bool {
    ![RING, WATCH, LOSSES].contains(&name) && refused(name).is_none()
}

/// The programs that a pinned stream lacks; none where nothing is pinned.
pub(super) fn gone_links(directory: &Path, stream: Stream, set: &str) -> Vec<&'static str> {
    let Ok(names) = Root::host().list(directory.join(set)) else {
        return Vec::new();
    };
    let links: Vec<&str> = names
        .iter()
        .map(|it| &**it)
        .filter(|it| is_link(it))
        .collect();
    let refused: Vec<_> = names.iter().filter_map(|it| refused(it)).collect();
    load::gone(stream, &links, &refused).collect()
}

/// What the name of a note of [`PinSet::refused`] says.
fn refused(name: &str) -> Option<(String, u64)> {
    let (capabilities, program) = name.strip_prefix(REFUSED)?.split_once('-')?;
    let capabilities = u64::from_str_radix(capabilities, 16).ok()?;
    Some((program.to_owned(), capabilities))
}

/// Why nothing that is pinned in a directory, be it there or not, outlives the agent. In a container its own bpffs
/// ends with it. Who sees other PIDs than the host's cannot tell whose one is that is mounted, and mounts none.
pub(super) fn why_not_in(path: &Path) -> Option<Bpffs> {
    let root = Root::host();
    let sees_host = probe::namespaces(&root).is_initial_pid != Some(false);
    if path.starts_with(BPFFS) && !is_bpffs(Path::new(BPFFS)) {
        let is_of_host = sees_host && mounts::are_of_init(&root);
        return (!is_of_host).then(|| Bpffs::NotOfHost(path.into()));
    }
    let there = path.ancestors().find(|it| statfs(*it).is_ok())?;
    if !is_bpffs(there) {
        return Some(Bpffs::Elsewhere(path.into()));
    }
    let is_of_host = stat(there).is_ok_and(|it| mounts::init_has(&root, it.st_dev));
    if sees_host && !is_of_host {
        return Some(Bpffs::NotOfHost(path.into()));
    }
    let (mode, by_effective) = (AccessFlags::W_OK, AtFlags::AT_EACCESS);
    let is_writable = faccessat(AT_FDCWD, there, mode, by_effective).is_ok();
    (!is_writable).then(|| Bpffs::NotWritable(path.into()))
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
    use crate::sys::scratch::Scratch;

    #[test]
    fn another_object_or_stream_is_another_set() {
        let name = Pins::set_name(Stream::Oom, b"object");
        assert!(name.starts_with(&format!("oom-v{VERSION}-")), "{name}");
        assert_eq!(name, Pins::set_name(Stream::Oom, b"object"));
        assert_ne!(name, Pins::set_name(Stream::Oom, b"objecT"));
        assert_ne!(name, Pins::set_name(Stream::Process, b"object"));
    }

    #[test]
    fn only_names_of_sets_are_ours() {
        for stream in Stream::ALL {
            let name = Pins::set_name(stream, b"object");
            for prefix in ["", UNFINISHED, OLDER] {
                let name = format!("{prefix}{name}");
                let set = SetName::parse(&name).expect(&name);
                assert_eq!((set.prefix, set.stream), (prefix, stream));
                assert!(set.aside(String::new()).is_readable);
            }
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
            "old-new-oom-v1-3f2a91c0",
            "new-cilium",
        ] {
            assert!(SetName::parse(other).is_none(), "{other}");
        }
        let other = SetName::parse("oom-v10-3f2a91c0").expect("of another version");
        assert!(!other.aside(String::new()).is_readable);
    }

    #[test]
    fn a_directory_outside_of_bpffs_is_refused() {
        let scratch = Scratch::new("pins");
        let path = scratch.path("pins");
        let error = Pins::open(&path).map(drop);
        assert!(
            matches!(error, Err(PinsError::NotBpffs { .. })),
            "{error:?}"
        );
        assert!(!path.exists(), "made where nothing is pinned");
        std::fs::create_dir(&path).expect("a directory of somebody");
        let error = Pins::remove_all(&path);
        assert!(
            matches!(error, Err(PinsError::NotBpffs { .. })),
            "{error:?}"
        );
        std::fs::remove_dir(&path).expect("left alone");
    }

    #[test]
    fn a_note_of_a_refusal_names_the_program_and_the_capabilities() {
        let name = "refused-1ffffffffff-oom_reason";
        let note = Some(("oom_reason".to_owned(), 0x1ff_ffff_ffff));
        assert_eq!(refused(name), note);
        for other in ["oom_reason", "refused-oom_reason", "refused-x-oom_reason"] {
            assert_eq!(refused(other), None, "{other}");
        }
    }
}
