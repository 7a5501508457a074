//! What the files say right after an OOM kill: the memory of the full cgroup and of those around
//! it, and the processes there.
//!
//! Cgroups and processes may be gone by then, and a record with less in it is better than none. So
//! nothing fails here: what cannot be read is left out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::cgroup_files::{parse_limit, parse_memory_limit_v1, parse_pids};
use crate::model::event::CgroupId;
use crate::model::forensics::{CgroupScene, ProcessScene, Scene};
use crate::model::text::{flat_keyed, meminfo_bytes, number};
use crate::sys::{Dir, Root, Trees};
use crate::units::Limit;

/// Processes whose files are read, the victim's container first: two reads of 20 µs each.
const MAX_PROCESSES: usize = 256;

/// Of them, those that are named.
const NAMED_PROCESSES: usize = 64;

/// Cgroups whose usage is read in one list, and those that are named.
const MAX_CGROUPS: usize = 512;
const NAMED_CGROUPS: usize = 32;

/// How deep below a cgroup its processes are looked for.
const MAX_DEPTH: usize = 8;

const LIMITS_V2: [&str; 5] = [
    "memory.max",
    "memory.high",
    "memory.low",
    "memory.min",
    "memory.swap.max",
];

const LIMITS_V1: [&str; 3] = [
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.memsw.limit_in_bytes",
];

const MEMINFO: [&str; 18] = [
    "MemTotal",
    "MemFree",
    "MemAvailable",
    "Buffers",
    "Cached",
    "SwapTotal",
    "SwapFree",
    "AnonPages",
    "Mapped",
    "Shmem",
    "SReclaimable",
    "SUnreclaim",
    "KernelStack",
    "PageTables",
    "Unevictable",
    "Mlocked",
    "Dirty",
    "Writeback",
];

/// Where to look. Paths are from the cgroup mount; `None` where one is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    /// The cgroup that was full. `None`: the node was.
    pub limit: Option<&'a str>,
    /// That of the victim's container, and that of its pod.
    pub victim: Option<&'a str>,
    pub pod: Option<&'a str>,
}

/// A cgroup with its usage, still without a meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    pub id: CgroupId,
    pub cgroup_path: String,
    pub bytes: u64,
}

/// Cgroups around the full one, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    pub siblings: Vec<Usage>,
    pub children: Vec<Usage>,
}

/// Reader of scenes.
#[derive(Clone, Debug)]
pub struct SceneReader {
    trees: Arc<Trees>,
    root: Root,
}

impl SceneReader {
    /// `root`: where `/proc` is.
    pub fn new(trees: Arc<Trees>, root: Root) -> Self {
        Self { trees, root }
    }

    /// The full cgroup, the victim's pod and the node, about ten files, with no list filled.
    pub fn scene(&self, place: Place<'_>) -> Scene {
        let meminfo = self.root.read_text("/proc/meminfo").unwrap_or_default();
        let meminfo = MEMINFO
            .iter()
            .filter_map(|field| Some(((*field).to_owned(), meminfo_bytes(&meminfo, field)?)));
        let pod = place.pod.filter(|pod| place.limit != Some(*pod));
        Scene {
            limit: place.limit.and_then(|path| self.cgroup(path)),
            victim_pod: pod.and_then(|path| self.cgroup(path)),
            meminfo: meminfo.collect(),
            stall: super::psi::node_stalls(&self.root)
                .ok()
                .and_then(|it| it.memory),
            ..Scene::default()
        }
    }

    /// The memory of one cgroup; `None` if it is gone.
    fn cgroup(&self, path: &str) -> Option<CgroupScene> {
        let dir = self.dir(path)?;
        let stalls = self.trees.cgroup2().and_then(|tree| {
            let dir = tree.dir.descend(components(path)).ok()?;
            super::psi::cgroup_stalls(&dir).ok()?.memory
        });
        let (usage, peak, limits): (_, _, &[&str]) = match self.trees.unified {
            true => ("memory.current", "memory.peak", &LIMITS_V2),
            false => (
                "memory.usage_in_bytes",
                "memory.max_usage_in_bytes",
                &LIMITS_V1,
            ),
        };
        let limits = limits.iter().filter_map(|file| {
            let limit = self.limit(&dir.read_text(file).ok()?)?;
            Some(((*file).to_owned(), limit))
        });
        Some(CgroupScene {
            cgroup_path: path.to_owned(),
            usage_bytes: count(&dir, usage),
            peak_bytes: count(&dir, peak),
            limits: limits.collect(),
            stat: counts(&dir, "memory.stat"),
            events: self.events(&dir),
            stall: stalls,
        })
    }

    fn limit(&self, text: &str) -> Option<Limit> {
        match self.trees.unified {
            true => parse_limit(text).ok(),
            false => parse_memory_limit_v1(text).ok(),
        }
    }

    fn events(&self, dir: &Dir) -> BTreeMap<String, u64> {
        if self.trees.unified {
            return counts(dir, "memory.events");
        }
        let mut events = counts(dir, "memory.oom_control");
        let failed = count(dir, "memory.failcnt");
        events.extend(failed.map(|n| ("failcnt".to_owned(), n)));
        events
    }

    /// The cgroups beside the full one and those in it.
    pub fn around(&self, limit: &str) -> Around {
        let siblings = limit.rsplit_once('/').map(|(parent, _)| {
            let mut siblings = self.children(parent);
            siblings.retain(|it| it.cgroup_path != limit);
            siblings
        });
        Around {
            siblings: siblings.unwrap_or_default(),
            children: self.children(limit),
        }
    }

    fn children(&self, path: &str) -> Vec<Usage> {
        let Some(dir) = self.dir(path) else {
            return Vec::new();
        };
        let names = dir.list_dirs().unwrap_or_default();
        let path = path.trim_end_matches('/');
        self.rank(names.iter().take(MAX_CGROUPS).filter_map(|name| {
            let child = dir.open_dir(name).ok()?;
            self.usage(&child, format!("{path}/{name}"))
        }))
    }

    /// Those of `paths` that are there, largest first.
    pub fn usages<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Vec<Usage> {
        self.rank(
            paths
                .take(MAX_CGROUPS)
                .filter_map(|path| self.usage(&self.dir(path)?, path.to_owned())),
        )
    }

    fn usage(&self, dir: &Dir, cgroup_path: String) -> Option<Usage> {
        let file = match self.trees.unified {
            true => "memory.current",
            false => "memory.usage_in_bytes",
        };
        Some(Usage {
            id: CgroupId(dir.inode()),
            cgroup_path,
            bytes: count(dir, file)?,
        })
    }

    fn rank(&self, usages: impl Iterator<Item = Usage>) -> Vec<Usage> {
        let mut usages: Vec<Usage> = usages.collect();
        usages.sort_by(|a, b| {
            let largest_first = b.bytes.cmp(&a.bytes);
            largest_first.then_with(|| a.cgroup_path.cmp(&b.cgroup_path))
        });
        usages.truncate(NAMED_CGROUPS);
        usages
    }

    /// The processes of the victim's container and of the full cgroup, the largest first, and how
    /// many there are. Those of which `is_dying` is true are counted and not read: who reads of a process's
    /// memory keeps it from being freed meanwhile, and the kernel may kill another one for want of it.
    pub fn processes(
        &self,
        place: Place<'_>,
        is_dying: impl Fn(u32) -> bool,
    ) -> (Vec<ProcessScene>, u64) {
        let mut known = BTreeSet::new();
        let mut pids = Vec::new();
        for path in [place.victim, place.limit, place.pod].into_iter().flatten() {
            let found = self.pids(path);
            pids.extend(found.into_iter().filter(|pid| known.insert(*pid)));
        }
        // Each is asked for right before it is read.
        let read = pids.iter().filter(|pid| !is_dying(**pid));
        let read = read.take(MAX_PROCESSES);
        let mut processes: Vec<ProcessScene> = read.filter_map(|pid| self.process(*pid)).collect();
        processes.sort_by_key(|it| (Reverse(it.rss_bytes), it.pid));
        processes.truncate(NAMED_PROCESSES);
        (processes, pids.len() as u64)
    }

    fn pids(&self, path: &str) -> BTreeSet<u32> {
        let mut pids = BTreeSet::new();
        let Some(dir) = self.dir(path) else {
            return pids;
        };
        // What vanishes under the walk has no processes.
        let walked = dir.walk(MAX_DEPTH, &mut |dir| {
            let text = dir.read_text("cgroup.procs").unwrap_or_default();
            pids.extend(parse_pids(&text).unwrap_or_default());
            Ok(())
        });
        walked.ok();
        pids
    }

    /// `None`: it is gone.
    fn process(&self, pid: u32) -> Option<ProcessScene> {
        let status = self.root.read_text(format!("/proc/{pid}/status")).ok()?;
        let comm = status.lines().find_map(|it| it.strip_prefix("Name:"))?;
        // No such line in a process that has given its memory back, or is a kernel thread.
        let bytes = |field| meminfo_bytes(&status, field).unwrap_or(0);
        let adj = self.root.read_text(format!("/proc/{pid}/oom_score_adj"));
        Some(ProcessScene {
            pid,
            comm: comm.trim().to_owned(),
            rss_bytes: bytes("VmRSS"),
            swap_bytes: bytes("VmSwap"),
            oom_score_adj: adj.ok().and_then(|text| number(&text, "a number").ok()),
        })
    }

    fn dir(&self, path: &str) -> Option<Dir> {
        let tree = self.trees.of("memory")?;
        tree.dir.descend(components(path)).ok()
    }
}

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|it| !it.is_empty())
}

fn count(dir: &Dir, file: &str) -> Option<u64> {
    number(&dir.read_text(file).ok()?, "a number").ok()
}

/// The lines of a flat keyed file whose value is a number.
fn counts(dir: &Dir, file: &str) -> BTreeMap<String, u64> {
    let text = dir.read_text(file).unwrap_or_default();
    let lines = flat_keyed(&text);
    lines
        .filter_map(|(key, value)| Some((key.to_owned(), number(value, "a number").ok()?)))
        .collect()
}

#[cfg(test)]
mod tests;
