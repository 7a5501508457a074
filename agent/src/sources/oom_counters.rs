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
use crate::model::attribution::NestedGroup;
use crate::model::cgroup_files::{MemoryEvents, OomControl, OomCount, parse_count, parse_pids};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{CgroupId, ProcessKey};
use crate::model::kernel::{NS_PER_TICK, start_ticks};
use crate::model::text::flat_keyed;
use crate::sys::{Dir, FsError, HeldFile, Root, TextBuffer, Trees, chain};

/// Kills of the whole node.
const VMSTAT: &str = "/proc/vmstat";

/// The bell's token; no cgroup has this id.
const BELL: u64 = 0;

/// Cgroups that a container has made, and levels of them: of more none is looked for. Arbitrary, a few milliseconds.
const LOOKED_AT: usize = 256;
const LEVELS_BELOW: usize = 8;

/// `OOM_SCORE_ADJ_MIN`, include/uapi/linux/oom.h.
const NEVER_KILLED: &str = "-1000";

/// Processes of a container that are looked at for one of a kind: arbitrary, some 10 us each, at kills of a group and in a
/// PID namespace that is not the container's.
const ASKED: usize = 64;

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

/// How often OOM kills took all of a cgroup of v2, those of one above left out. `None`: it is gone, or that is not counted
/// (before Linux 5.17).
pub fn own_group_kills(trees: &Trees, path: &CgroupPath) -> Option<u64> {
    let dir = cgroup_use::dir(trees, "memory", path).ok()??;
    let text = dir.read_text_if_any("memory.events.local").ok()??;
    MemoryEvents::parse(&text).ok()?.oom_group_kill
}

/// Whether it takes all of one of the cgroups of a nested group. `None`: that of the victim or of the first process is gone
/// or is not found, or one of them does not say, or it takes all of one and nobody knows whether the first process is
/// there.
pub fn nested_goes_as_a_whole(
    trees: &Trees,
    container: &CgroupPath,
    group: &NestedGroup,
) -> Option<bool> {
    let container = cgroup_use::dir(trees, "memory", container).ok()??;
    let mut left = LOOKED_AT;
    let mut way_to = |id: CgroupId| {
        let mut is_it = |it: &Dir| it.inode() == id.0;
        way(&container, LEVELS_BELOW, &mut left, &mut is_it)
    };
    let may_have_both = way_to(group.first.unwrap_or(group.victim))?.into_iter();
    // Each with whether it does, or may.
    let groups = may_have_both.filter_map(|it| match is_group(&it) {
        Some(false) => None,
        takes_all => Some((it, takes_all)),
    });
    let mut groups: Vec<(Dir, Option<bool>)> = groups.collect();
    if groups.is_empty() {
        return Some(false);
    }
    let mut of_victim = way_to(group.victim)?;
    if let Some(limit) = group.limit {
        let at = of_victim.iter().position(|it| it.inode() == limit.0)?;
        of_victim.truncate(at + 1);
    }
    groups.retain(|(it, _)| of_victim.iter().any(|other| other.inode() == it.inode()));
    match groups.iter().any(|(_, takes_all)| takes_all.is_some()) {
        true => group.first.map(|_| true),
        false => groups.is_empty().then_some(false),
    }
}

/// Whether the kernel spares a process of a container when it kills all of it: one that may never be killed for memory
/// (`oom_kill_memcg_member`, mm/oom_kill.c).
pub fn spares_one(root: &Root, trees: &Trees, container: &CgroupPath) -> bool {
    has_process(trees, container, |pid| {
        let file = root.read_text(format!("/proc/{pid}/oom_score_adj"));
        file.is_ok_and(|it| it.trim() == NEVER_KILLED)
    })
}

/// Whether a process of a container was there before this one, which then was not its first: whatever else comes into a
/// container is started later. False where nobody can tell.
pub fn has_older(root: &Root, trees: &Trees, container: &CgroupPath, than: ProcessKey) -> bool {
    let before = than.start_boottime_ns / NS_PER_TICK;
    has_process(trees, container, |pid| {
        // Its memory is to be freed, which reading its file would hold up.
        if pid == than.pid {
            return false;
        }
        let stat = root.read_text(format!("/proc/{pid}/stat"));
        let start = stat.ok().and_then(|it| start_ticks(&it));
        start.is_some_and(|it| it < before)
    })
}

/// Whether one of the first [`ASKED`] processes of a container is it.
fn has_process(trees: &Trees, container: &CgroupPath, is_it: impl Fn(u32) -> bool) -> bool {
    let Ok(Some(container)) = cgroup_use::dir(trees, "memory", container) else {
        return false;
    };
    let (mut left, mut n_pids) = (LOOKED_AT, 0);
    let mut has_one = |dir: &Dir| {
        let text = dir.read_text("cgroup.procs").unwrap_or_default();
        let pids = parse_pids(&text).unwrap_or_default();
        pids.into_iter().any(|pid| {
            n_pids += 1;
            n_pids <= ASKED && is_it(pid)
        })
    };
    has_one(&container) || way(&container, LEVELS_BELOW, &mut left, &mut has_one).is_some()
}

/// The cgroups from one below `above` up to that, which is left out. `left`: how many may be looked at.
fn way(
    above: &Dir,
    depth: usize,
    left: &mut usize,
    is_it: &mut dyn FnMut(&Dir) -> bool,
) -> Option<Vec<Dir>> {
    let depth = depth.checked_sub(1)?;
    for name in above.list_dirs().ok()? {
        *left = left.checked_sub(1)?;
        let Ok(child) = above.open_dir(&name) else {
            continue;
        };
        let found = match is_it(&child) {
            true => Some(Vec::new()),
            false => way(&child, depth, left, is_it),
        };
        if let Some(mut found) = found {
            found.push(child);
            return Some(found);
        }
    }
    None
}

/// One without the file has no memory of its own to be killed for.
fn is_group(dir: &Dir) -> Option<bool> {
    match dir.read_text_if_any("memory.oom.group").ok()? {
        Some(text) => Some(parse_count(&text).ok()? != 0),
        None => dir.is_linked().then_some(false),
    }
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "a tree of the test's own, which is only shaped like a hierarchy"
)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sys::Tree;
    use crate::sys::scratch::Scratch;

    /// As crun has a container whose first process is systemd.
    #[test]
    fn a_group_below_a_container_takes_its_first_process_along_if_it_has_both() {
        const INNER: &str = "c/container";
        const INIT: &str = "c/container/init.scope";
        const SLICE: &str = "c/container/system.slice";
        const SERVICE: &str = "c/container/system.slice/a.service";
        const GONE: CgroupId = CgroupId(0);
        let node = Scratch::new("oom-group");
        for it in [INIT, SERVICE] {
            fs::create_dir_all(node.path(it)).unwrap();
        }
        let tree = Tree::open(BTreeSet::new(), node.directory()).unwrap();
        let trees = Trees {
            unified: true,
            trees: vec![tree],
        };
        let id = |it: &str| CgroupId(Dir::open(&node.path(it)).unwrap().inode());
        let goes = |victim, first, limit| {
            let group = NestedGroup {
                victim,
                first,
                limit,
            };
            nested_goes_as_a_whole(&trees, &"/c".parse().unwrap(), &group)
        };
        let both = [id(SERVICE), id(INIT)];
        let alone = [id(INNER); 2];
        // The last is of a first process of which nobody knows where it is.
        for (marked, [victim, first], limit, expected, unknown) in [
            (&[INNER][..], both, None, Some(true), None),
            (&[INNER], both, Some(INNER), Some(true), None),
            (&[INNER], both, Some(SLICE), Some(false), Some(false)),
            (&[SLICE, SERVICE, INIT], both, None, Some(false), None),
            (&[], both, None, Some(false), Some(false)),
            // Without systemd.
            (&[INNER], alone, Some(INNER), Some(true), None),
            (&[], alone, Some(INNER), Some(false), Some(false)),
            // systemd has removed the cgroup of a service that is over.
            (&[INNER], [GONE, id(INIT)], None, None, None),
            (&[], [GONE, id(INIT)], None, Some(false), None),
            (&[INNER], [id(SERVICE), GONE], None, None, None),
        ] {
            for it in [INNER, INIT, SLICE, SERVICE] {
                let text = if marked.contains(&it) { "1\n" } else { "0\n" };
                node.write(format!("{it}/memory.oom.group"), text);
            }
            let limit = limit.map(id);
            for (first, expected) in [(Some(first), expected), (None, unknown)] {
                let found = goes(victim, first, limit);
                assert_eq!(found, expected, "{marked:?} {victim:?} {first:?} {limit:?}");
            }
        }
        let [victim, first] = both;
        let of_both = || goes(victim, Some(first), None);
        node.write("c/container/memory.oom.group", "?");
        assert_eq!(of_both(), None, "a file that says nothing");
        for it in [INNER, INIT, SLICE, SERVICE] {
            fs::remove_file(node.path(format!("{it}/memory.oom.group"))).unwrap();
        }
        assert_eq!(of_both(), Some(false), "memory is not accounted");
        fs::remove_dir_all(node.path("c")).unwrap();
        assert_eq!(of_both(), None, "the container is gone");
    }

    #[test]
    fn a_process_that_is_never_killed_for_memory_outlives_its_group() {
        let node = Scratch::new("oom-spared");
        let tree = Tree::open(BTreeSet::new(), node.directory()).unwrap();
        let trees = Trees {
            unified: true,
            trees: vec![tree],
        };
        for (pid, adj) in [(7, "-999\n"), (8, "-1000\n"), (9, "0\n")] {
            fs::create_dir_all(node.path(format!("proc/{pid}"))).unwrap();
            node.write(format!("proc/{pid}/oom_score_adj"), adj);
        }
        fs::create_dir_all(node.path("c/container/init.scope")).unwrap();
        let root = Root::at(node.directory());
        let is_spared = || spares_one(&root, &trees, &"/c".parse().unwrap());
        assert!(!is_spared(), "nobody is in it");
        for (cgroup, pids, expected) in [
            ("c", "7\n9\n", false),
            ("c", "7\n8\n", true),
            // 10 is gone.
            ("c", "9\n10\n", false),
            ("c/container", "9\n", false),
            ("c/container/init.scope", "8\n", true),
        ] {
            node.write(format!("{cgroup}/cgroup.procs"), pids);
            assert_eq!(is_spared(), expected, "{cgroup} {pids}");
        }
        let absent = "/absent".parse().unwrap();
        assert!(!spares_one(&root, &trees, &absent));
    }

    #[test]
    fn who_came_after_another_process_of_a_container_was_not_its_first() {
        let node = Scratch::new("oom-older");
        let tree = Tree::open(BTreeSet::new(), node.directory()).unwrap();
        let trees = Trees {
            unified: true,
            trees: vec![tree],
        };
        // What is in the file of the victim itself is not looked at.
        for (pid, ticks) in [(7, 99), (8, 50), (9, 101)] {
            fs::create_dir_all(node.path(format!("proc/{pid}"))).unwrap();
            let stat = format!("{pid} (sh) S 1 7 7 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 {ticks} 1 2");
            node.write(format!("proc/{pid}/stat"), stat);
        }
        fs::create_dir_all(node.path("c/container")).unwrap();
        let root = Root::at(node.directory());
        let victim = ProcessKey {
            pid: 8,
            start_boottime_ns: 100 * NS_PER_TICK + 1,
        };
        let was_later = || has_older(&root, &trees, &"/c".parse().unwrap(), victim);
        assert!(!was_later(), "nobody is in it");
        for (cgroup, pids, expected) in [
            ("c", "8\n9\n", false),
            ("c", "9\n8\n7\n", true),
            // 10 is gone.
            ("c", "10\n", false),
            ("c/container", "9\n", false),
            ("c/container", "7\n", true),
        ] {
            node.write(format!("{cgroup}/cgroup.procs"), pids);
            assert_eq!(was_later(), expected, "{cgroup} {pids}");
        }
    }
}
