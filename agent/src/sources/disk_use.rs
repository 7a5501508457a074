//! How much space and how many inodes a directory tree takes: a walk in small steps, so that a tree
//! of millions of files, or one that its owner makes to be hard to walk, holds nobody up.
//!
//! As kubelet counts: blocks of 512 bytes that are allocated (a sparse file has what it uses), each
//! inode once, directories included, one file system only, no link followed. Files that are deleted
//! and still open have no name and are not seen (see `deleted_files`).
//!
//! Invariants: a walk has at most [`MAX_DEPTH`] + [`MAX_DEFERRED`] descriptors open and remembers at
//! most [`MAX_LINKED`] inodes, whatever it meets. What is mounted in a tree, or over it, is asked
//! nothing: whoever serves it may be away. A walk that cannot begin, or lacks descriptors, tells nothing: what was
//! measured before stands.

use std::collections::{BTreeMap, HashSet};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, makedev, open, openat,
    openat2, statx,
};
use rustix::io::Errno;

use crate::model::eviction::DiskUse;
use crate::sources::mounts;
use crate::sys::Root;
use crate::sys::filesystem::Filesystem;

/// Levels that are walked at once, with a descriptor each.
const MAX_DEPTH: usize = 64;
/// Directories below that, walked afterwards.
const MAX_DEFERRED: usize = 64;
/// Inodes with several names that are remembered, so as to count them once. Of the others each name counts for its part.
const MAX_LINKED: usize = 65_536;
/// Of an inode.
const PARTS: u64 = 1 << 20;
/// From a look that failed to the next one. Arbitrary.
const RETRY: Duration = Duration::from_secs(1);

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory that is looked up and not opened: its file system is asked nothing.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Of the same mount (Linux 5.6).
const SAME_MOUNT: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Attributes that the kernel has, of the name itself.
const AS_KNOWN: AtFlags = AtFlags::SYMLINK_NOFOLLOW
    .union(AtFlags::NO_AUTOMOUNT)
    .union(AtFlags::STATX_DONT_SYNC);

/// A directory tree to be measured. Paths are absolute in the node.
#[derive(Clone, Debug)]
pub struct Tree {
    pub path: PathBuf,
    /// Whoever fills the tree mounts nothing on this directory nor above it; links are followed so far.
    pub above: PathBuf,
    /// A volume in memory: what is mounted on it is the tree.
    pub is_in_memory: bool,
}

impl Tree {
    /// `None`: it is not there, or something else is mounted over it. An error: nobody can say.
    pub fn place(&self, root: &Root) -> Result<Option<Place>, Errno> {
        let Ok(below) = self.path.strip_prefix(&self.above) else {
            return Ok(None);
        };
        let above = root.path(&self.above);
        if_there(match self.is_in_memory {
            true => Place::in_memory(root, &above, below),
            false => Place::below(&above, below),
        })
    }
}

/// A directory that can be walked.
#[derive(Debug)]
pub struct Place {
    fd: OwnedFd,
    device: u64,
    /// The id of its mount (Linux 5.8).
    mount: u64,
    /// It is memory that is mounted here.
    is_memory: bool,
}

impl Place {
    /// At a path of this process; a link in its last place is not followed. `None`: no directory is there. An error:
    /// nobody can say.
    pub fn at(path: &Path) -> Result<Option<Self>, Errno> {
        if_there(open(path, PLACE, Mode::empty()).and_then(Self::of))
    }

    /// As [`Self::at`], with no link and no mount between the two.
    fn below(above: &Path, path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = open(above, flags, Mode::empty())?;
        let path = Path::new(".").join(path);
        Self::of(openat2(&above, &path, PLACE, Mode::empty(), SAME_MOUNT)?)
    }

    /// The same with memory mounted on it, or nothing.
    fn in_memory(root: &Root, above: &Path, path: &Path) -> Result<Self, Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::NOENT);
        };
        let parent = Self::below(above, parent)?;
        let mut place = Self::of(openat(&parent.fd, name, PLACE, Mode::empty())?)?;
        if place.mount != parent.mount {
            let mounted = mounts::type_of(root, place.device);
            let mounted =
                mounted.map_err(|it| it.errno().map_or(Errno::IO, Errno::from_raw_os_error))?;
            if mounted.as_deref() != Some("tmpfs") {
                return Err(Errno::XDEV);
            }
            place.is_memory = true;
        }
        Ok(place)
    }

    fn of(fd: OwnedFd) -> Result<Self, Errno> {
        let stat = attributes(&fd)?;
        if !is_dir(&stat) {
            return Err(Errno::NOTDIR);
        }
        Ok(Self {
            fd,
            device: device(&stat),
            mount: stat.stx_mnt_id,
            is_memory: false,
        })
    }

    /// It is memory that is mounted here.
    pub fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// Of its file system.
    pub fn device(&self) -> u64 {
        self.device
    }
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A directory tree as it was walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub disk_use: DiskUse,
    /// When the walk began: what was written since may be missing.
    pub at: Duration,
    /// False: some of it was out of reach, or beyond the bounds of a walk. It is at least as large.
    pub is_complete: bool,
    /// The memory that is mounted as this tree, when the walk began.
    pub memory: Option<Filesystem>,
}

/// Looks that failed, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Of the last one.
    pub why: String,
    /// When the first one was.
    pub since: Duration,
    last: Duration,
}

impl Failing {
    /// One more failed.
    pub fn note(failing: &mut Option<Self>, why: String, at: Duration) {
        let since = failing.as_ref().map_or(at, |it| it.since);
        *failing = Some(Self {
            why,
            since,
            last: at,
        });
    }

    /// Whether it is time for the next one.
    pub fn is_due(&self, at: Duration) -> bool {
        at >= self.last.saturating_add(RETRY)
    }
}

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stepped {
    /// There is more to do at once.
    pub has_more: bool,
    /// Trees with a new measure.
    pub n_measured: usize,
}

/// Walks directory trees in turn.
#[derive(Debug)]
pub struct DiskUses {
    root: Root,
    trees: BTreeMap<PathBuf, Kept>,
    /// The tree that is being walked, and since when.
    current: Option<(PathBuf, Walk, Duration)>,
}

#[derive(Debug)]
struct Kept {
    tree: Tree,
    measured: Option<Measured>,
    /// Its walks since then.
    failing: Option<Failing>,
}

impl DiskUses {
    pub fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            trees: BTreeMap::new(),
            current: None,
        }
    }

    /// Measures exactly these trees from now on.
    pub fn keep(&mut self, trees: impl IntoIterator<Item = Tree>) {
        let mut before = std::mem::take(&mut self.trees);
        self.trees = trees
            .into_iter()
            .map(|tree| {
                let path = tree.path.clone();
                let kept = match before.remove(&path) {
                    Some(before) => Kept { tree, ..before },
                    None => Kept {
                        tree,
                        measured: None,
                        failing: None,
                    },
                };
                (path, kept)
            })
            .collect();
        if matches!(&self.current, Some((path, ..)) if !self.trees.contains_key(path)) {
            self.current = None;
        }
    }

    /// Looks at no more than `n_entries` names, going on where it stopped, and begins no walk of a
    /// tree that was measured after `measured_before`.
    pub fn step(&mut self, n_entries: usize, at: Duration, measured_before: Duration) -> Stepped {
        let (mut left, mut n_measured) = (n_entries, 0);
        while left > 0 {
            let current = self.current.take();
            let Some((path, mut walk, began)) = current.or_else(|| self.begin(at, measured_before))
            else {
                return Stepped {
                    has_more: false,
                    n_measured,
                };
            };
            // A tree without a single entry is some work too.
            left -= walk.step(left).max(1);
            if walk.is_done() {
                let Some(kept) = self.trees.get_mut(&path) else {
                    continue;
                };
                if let Some(fault) = walk.fault {
                    Failing::note(&mut kept.failing, fault.to_string(), at);
                } else {
                    kept.measured = Some(walk.measured(began));
                    kept.failing = None;
                    n_measured += 1;
                }
            } else {
                self.current = Some((path, walk, began));
            }
        }
        Stepped {
            has_more: true,
            n_measured,
        }
    }

    /// The last complete look at a tree; `None` before the first, and where there is no directory.
    pub fn get(&self, path: &Path) -> Option<Measured> {
        self.trees.get(path)?.measured
    }

    /// When the oldest measure was begun; `None` while a tree has none, and without trees.
    pub fn oldest(&self) -> Option<Duration> {
        self.trees.values().map(Kept::age).min().flatten()
    }

    /// The tree whose walks have failed for the longest.
    pub fn failing(&self) -> Option<(&Path, &Failing)> {
        let trees = self.trees.iter();
        let failing = trees.filter_map(|(path, it)| Some((path.as_path(), it.failing.as_ref()?)));
        failing.min_by_key(|(_, it)| it.since)
    }

    /// The tree whose measure is the oldest.
    fn begin(
        &mut self,
        at: Duration,
        measured_before: Duration,
    ) -> Option<(PathBuf, Walk, Duration)> {
        let due = self.trees.values().filter(|it| match &it.failing {
            Some(failing) => failing.is_due(at),
            None => it.age().is_none_or(|at| at < measured_before),
        });
        let tree = due.min_by_key(|it| it.age())?.tree.clone();
        let walk = Walk::begin(tree.place(&self.root));
        Some((tree.path, walk, at))
    }
}

impl Kept {
    /// When its measure was begun.
    fn age(&self) -> Option<Duration> {
        self.measured.map(|it| it.at)
    }
}

/// A walk that can be left and taken up again.
#[derive(Debug)]
pub struct Walk {
    device: u64,
    mount: u64,
    /// From the top down; the last one is being read.
    stack: Vec<Dir>,
    deferred: Vec<OwnedFd>,
    linked: HashSet<u64>,
    max_linked: usize,
    bytes: u64,
    inodes: u64,
    /// Of more inodes.
    parts: u64,
    /// False: there is no directory to walk, or nobody can say.
    has_begun: bool,
    /// What was found is not what there is.
    fault: Option<Errno>,
    is_complete: bool,
    memory: Option<Filesystem>,
}

impl Walk {
    /// `place`: where the tree is, as far as anybody can say.
    pub fn begin(place: Result<Option<Place>, Errno>) -> Self {
        let mut walk = Self {
            device: 0,
            mount: 0,
            stack: Vec::new(),
            deferred: Vec::new(),
            linked: HashSet::new(),
            max_linked: MAX_LINKED,
            bytes: 0,
            inodes: 0,
            parts: 0,
            has_begun: false,
            fault: None,
            is_complete: true,
            memory: None,
        };
        let opened = place.and_then(|place| {
            let place = place.ok_or(Errno::NOENT)?;
            // What is mounted over the place by now is not come to by this name.
            let dir = openat(&place.fd, ".", DIRECTORY, Mode::empty())?;
            Ok((attributes(&dir)?, dir, place))
        });
        match if_there(opened) {
            Ok(Some((stat, dir, place))) => {
                walk.device = place.device;
                walk.mount = place.mount;
                walk.has_begun = true;
                if place.is_memory {
                    walk.memory = Filesystem::of(&dir).ok();
                }
                walk.count(&stat);
                walk.enter(dir);
            }
            Ok(None) => {}
            Err(fault) => walk.fault = Some(fault),
        }
        walk
    }

    pub fn is_done(&self) -> bool {
        self.stack.is_empty() && self.deferred.is_empty()
    }

    /// Looks at no more than `n_entries` names; gives how many it were.
    pub fn step(&mut self, n_entries: usize) -> usize {
        let mut n = 0;
        while n < n_entries {
            let Some(dir) = self.stack.last_mut() else {
                match self.deferred.pop() {
                    Some(dir) => self.enter(dir),
                    None => break,
                }
                continue;
            };
            let Some(entry) = dir.read() else {
                self.stack.pop();
                continue;
            };
            n += 1;
            match entry {
                Ok(entry) => self.look(entry.file_name()),
                Err(error) => {
                    // The directory was removed under the walk, or cannot be read on.
                    self.is_complete &= is_gone(error);
                    self.stack.pop();
                }
            }
        }
        n
    }

    /// What was found so far.
    pub fn measured(&self, at: Duration) -> Measured {
        let found = |n: u64| self.has_begun.then_some(n);
        Measured {
            disk_use: DiskUse {
                bytes: found(self.bytes),
                inodes: found(self.inodes.saturating_add(self.parts / PARTS)),
            },
            at,
            is_complete: self.is_complete && self.has_begun && self.fault.is_none(),
            memory: self.memory,
        }
    }

    fn look(&mut self, name: &CStr) {
        if matches!(name.to_bytes(), b"." | b"..") {
            return;
        }
        let Some(Ok(dir)) = self.stack.last().map(Dir::fd) else {
            return;
        };
        let found = statx(dir, name, AS_KNOWN, StatxFlags::BASIC_STATS).and_then(|stat| {
            if !is_dir(&stat) || !self.has(&stat) {
                return Ok((stat, None));
            }
            // What is opened is what counts: it may have been replaced since.
            let dir = openat2(dir, name, DIRECTORY, Mode::empty(), SAME_MOUNT)?;
            Ok((attributes(&dir)?, Some(dir)))
        });
        match found {
            // Something else is mounted here; it is no part of the tree.
            Ok((stat, _)) if !self.has(&stat) => {}
            Ok((stat, dir)) => {
                self.count(&stat);
                if let Some(dir) = dir {
                    self.enter(dir);
                }
            }
            Err(error) if is_lack(error) => {
                self.stack.clear();
                self.deferred.clear();
                self.fault = Some(error);
            }
            Err(error) => {
                // A mount of FUSE tells nobody but its owner more than that it is one.
                let is_mount = || {
                    let stat = statx(dir, name, AS_KNOWN, StatxFlags::empty());
                    stat.is_ok_and(|it| it.stx_mnt_id != self.mount)
                };
                self.is_complete &= is_gone(error) || is_mount();
            }
        }
    }

    fn has(&self, stat: &Statx) -> bool {
        stat.stx_mnt_id == self.mount && device(stat) == self.device
    }

    fn count(&mut self, stat: &Statx) {
        let bytes = stat.stx_blocks.saturating_mul(512);
        if stat.stx_nlink > 1 && !is_dir(stat) {
            if self.linked.contains(&stat.stx_ino) {
                return;
            }
            if self.linked.len() == self.max_linked {
                // Some of its names may be elsewhere.
                self.is_complete = false;
                let n_names = u64::from(stat.stx_nlink);
                self.bytes = self.bytes.saturating_add(bytes / n_names);
                self.parts = self.parts.saturating_add(PARTS.div_ceil(n_names));
                return;
            }
            self.linked.insert(stat.stx_ino);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.inodes = self.inodes.saturating_add(1);
    }

    fn enter(&mut self, dir: OwnedFd) {
        if self.stack.len() < MAX_DEPTH {
            match Dir::new(dir) {
                Ok(dir) => self.stack.push(dir),
                Err(_) => self.is_complete = false,
            }
        } else if self.deferred.len() < MAX_DEFERRED {
            self.deferred.push(dir);
        } else {
            self.is_complete = false;
        }
    }
}

fn attributes(dir: impl AsFd) -> Result<Statx, Errno> {
    let flags = AS_KNOWN | AtFlags::EMPTY_PATH;
    statx(dir, c"", flags, StatxFlags::BASIC_STATS)
}

fn device(stat: &Statx) -> u64 {
    makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

fn is_dir(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory
}

/// `None`: it is gone.
fn if_there<T>(found: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_gone(error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The agent lacks descriptors or memory, which may be there later.
fn is_lack(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// It went away, was replaced by something else or mounted over, between two looks: no more part of the tree.
fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE | Errno::XDEV
    )
}

#[cfg(test)]
mod tests;
