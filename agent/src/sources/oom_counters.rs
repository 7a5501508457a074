//! What the kernel counts of OOM kills, by cgroup, and its word that a count changes: for nodes whose
//! kernel takes no program that reports kills.
//!
//! v2 signals a change of `memory.events`. v1 signals an eventfd of every cgroup below the limit that
//! was reached, before anybody is killed, so a count is to be looked at for a while after it. For a kill
//! because the whole node is out of memory v1 signals nobody; `/proc/vmstat` counts it.
//!
//! Arming writes to `cgroup.event_control`, which changes nothing on the node and is undone when the
//! descriptor is closed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;

use super::cgroup_use;
use super::wakers::{ArmError, Bell, v1_event};
use crate::model::cgroup_files::{MemoryEvents, OomControl, OomCount, parse_count};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::CgroupId;
use crate::model::text::flat_keyed;
use crate::sys::{Dir, FsError, HeldFile, Root, TextBuffer, Trees, chain};

/// Kills of the whole node.
const VMSTAT: &str = "/proc/vmstat";

/// The bell's token; no cgroup has this id.
const BELL: u64 = 0;

/// Nothing can signal.
#[derive(Debug, thiserror::Error)]
#[error("set up what tells of OOM kills")]
pub struct OomCountersError(#[from] Errno);

/// The count of one cgroup, read once. `None`: it is gone, be there another at its path or not, or nothing counts there.
pub fn read_once(trees: &Trees, cgroup: CgroupId, path: &CgroupPath) -> Option<OomCount> {
    let dir = dir_of(trees, cgroup, path).ok()??;
    let file = HeldFile::open_in(&dir, file_name(trees.unified)).ok()?;
    read(&file, trees.unified, &mut TextBuffer::default())
}

/// Whether an OOM kill takes all of a cgroup of v2; `None`: there is no such cgroup, or none that says.
pub fn goes_as_a_whole(trees: &Trees, path: &CgroupPath) -> Option<bool> {
    is_group(&cgroup_use::dir(trees, "memory", path).ok()??)
}

/// The same of a cgroup right below `parent`.
pub fn child_goes_as_a_whole(trees: &Trees, parent: &CgroupPath, id: CgroupId) -> Option<bool> {
    let parent = cgroup_use::dir(trees, "memory", parent).ok()??;
    let names = parent.list_dirs().ok()?;
    let mut children = names.iter().filter_map(|it| parent.open_dir(it).ok());
    is_group(&children.find(|it| it.inode() == id.0)?)
}

fn is_group(dir: &Dir) -> Option<bool> {
    let file = HeldFile::open_in(dir, "memory.oom.group").ok()?;
    let mut buffer = TextBuffer::default();
    Some(parse_count(file.read(&mut buffer).ok()?).ok()? != 0)
}

/// What the kernel has counted below a cgroup of v2 that has no limit above it, right below the root of all. `None`: there
/// are others above it, which this process does not see, or it cannot be read.
pub fn of_topmost(trees: &Trees, topmost: &CgroupPath) -> Option<MemoryEvents> {
    let text = |path: &CgroupPath| match cgroup_use::dir(trees, "memory", path)? {
        Some(dir) => dir.read_text_if_any(file_name(true)),
        None => Ok(None),
    };
    // The root of all has no such file, that of a cgroup namespace has.
    if !trees.unified || !matches!(text(&CgroupPath::root()), Ok(None)) {
        return None;
    }
    MemoryEvents::parse(&text(topmost).ok()??).ok()
}

pub fn is_gone(trees: &Trees, path: &CgroupPath) -> bool {
    matches!(cgroup_use::dir(trees, "memory", path), Ok(None))
}

/// `None`: the cgroup is gone, and another may have its name.
fn dir_of(trees: &Trees, id: CgroupId, path: &CgroupPath) -> Result<Option<Dir>, FsError> {
    let dir = cgroup_use::dir(trees, "memory", path)?;
    Ok(dir.filter(|it| it.inode() == id.0))
}

const fn file_name(is_unified: bool) -> &'static str {
    match is_unified {
        true => "memory.events",
        false => "memory.oom_control",
    }
}

fn read(file: &HeldFile, is_unified: bool, buffer: &mut TextBuffer) -> Option<OomCount> {
    let text = file.read(buffer).ok()?;
    let events = match is_unified {
        true => MemoryEvents::parse(text).ok()?,
        false => MemoryEvents {
            oom_kill: OomControl::parse(text).ok()?.oom_kill,
            ..MemoryEvents::default()
        },
    };
    OomCount::of(&events, is_unified)
}

/// How the kernel may be asked to tell of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    All,
    /// No file of a cgroup is opened for writing. On v1 nothing signals then, and `/proc/vmstat` alone tells
    /// that there was a kill.
    WithoutWrites,
}

/// See the module.
#[derive(Debug)]
pub struct OomCounters {
    root: Root,
    trees: Arc<Trees>,
    signals: Signals,
    epoll: Epoll,
    bell: Bell,
    armed: BTreeMap<CgroupId, Armed>,
    /// `oom_kill` of `/proc/vmstat`.
    n_of_node: Option<u64>,
    buffer: TextBuffer,
}

/// Dropping it disarms.
#[derive(Debug)]
struct Armed {
    file: HeldFile,
    /// v1.
    event: Option<EventFd>,
}

impl OomCounters {
    pub fn open(
        root: &Root,
        trees: Arc<Trees>,
        signals: Signals,
    ) -> Result<Self, OomCountersError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let bell = Bell::new()?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        Ok(Self {
            root: root.clone(),
            trees,
            signals,
            epoll,
            bell,
            armed: BTreeMap::new(),
            n_of_node: None,
            buffer: TextBuffer::default(),
        })
    }

    /// Ends a wait.
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Has exactly these cgroups signal, as far as the kernel can. Returns those that are new, to be
    /// read: what happened before is not signalled.
    pub fn watch(&mut self, cgroups: &BTreeMap<CgroupId, CgroupPath>) -> BTreeSet<CgroupId> {
        self.armed.retain(|id, _| cgroups.contains_key(id));
        let missing = cgroups
            .iter()
            .filter(|(id, _)| !self.armed.contains_key(id));
        let missing: Vec<_> = missing.map(|(id, path)| (*id, path.clone())).collect();
        let mut new = BTreeSet::new();
        for (id, path) in missing {
            match self.arm(id, &path) {
                Ok(()) => {
                    new.insert(id);
                }
                Err(ArmError::Fs(error)) if error.is_gone() => {}
                Err(error) => {
                    tracing::debug!(
                        cgroup = path.as_str(),
                        error = chain(&error),
                        "watch OOM kills"
                    );
                }
            }
        }
        new
    }

    fn arm(&mut self, id: CgroupId, path: &CgroupPath) -> Result<(), ArmError> {
        let Some(dir) = dir_of(&self.trees, id, path)? else {
            return Ok(());
        };
        let is_unified = self.trees.unified;
        let file = HeldFile::open_in(&dir, file_name(is_unified))?;
        let failed = ArmError::refused("to poll a count of OOM kills");
        let event = match (is_unified, self.signals) {
            (true, _) => {
                let event = EpollEvent::new(EpollFlags::EPOLLPRI, id.0);
                self.epoll.add(&file, event).map_err(failed)?;
                None
            }
            (false, Signals::WithoutWrites) => None,
            (false, Signals::All) => {
                let eventfd = v1_event(&dir, file_name(false), "")?;
                let event = EpollEvent::new(EpollFlags::EPOLLIN, id.0);
                self.epoll.add(&eventfd, event).map_err(failed)?;
                Some(eventfd)
            }
        };
        self.armed.insert(id, Armed { file, event });
        Ok(())
    }

    /// Waits until a count changes or is about to, or the bell rings, at most `timeout`. The cgroups
    /// that signalled.
    pub fn wait(&mut self, timeout: Duration) -> BTreeSet<CgroupId> {
        // Rounded up: a wait that is too short would be made again and again.
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        let timeout = EpollTimeout::try_from(ms).unwrap_or(EpollTimeout::MAX);
        let mut events = [EpollEvent::empty(); 32];
        // An interrupted wait is one that is over early.
        let n = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        let mut signalled = BTreeSet::new();
        for event in events.iter().take(n) {
            if event.data() == BELL {
                self.bell.was_rung();
                continue;
            }
            let id = CgroupId(event.data());
            // Taken, so that it does not wake again; a file is when it is read.
            if let Some(event) = self.armed.get(&id).and_then(|it| it.event.as_ref()) {
                event.read().ok();
            }
            signalled.insert(id);
        }
        signalled
    }

    /// `None`: the cgroup is gone or was never watched; it does not signal any more.
    pub fn read(&mut self, id: CgroupId) -> Option<OomCount> {
        let armed = self.armed.get(&id)?;
        let count = read(&armed.file, self.trees.unified, &mut self.buffer);
        if count.is_none() {
            self.armed.remove(&id);
        }
        count
    }

    /// The cgroups that signal, if a process of the node was killed since this was asked last.
    pub fn all_if_killed(&mut self) -> BTreeSet<CgroupId> {
        let text = self.root.read_text(VMSTAT).unwrap_or_default();
        let n = flat_keyed(&text).find(|(key, _)| *key == "oom_kill");
        let n = n.and_then(|(_, value)| parse_count(value).ok());
        let before = std::mem::replace(&mut self.n_of_node, n);
        match before == n {
            true => BTreeSet::new(),
            false => self.armed.keys().copied().collect(),
        }
    }
}
