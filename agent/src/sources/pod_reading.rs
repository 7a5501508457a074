//! Reads what pods use, from files that are held open: a few reads a pod, with which a decision
//! knows the pods as they are at its own moment.
//!
//! Invariant: a pod whose cgroup was removed and made again is read anew, and never as it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::cgroup_files::parse_count;
use crate::model::cgroup_name::CgroupName;
use crate::model::container_memory::ContainerReadings;
use crate::model::eviction::{ContainerFigures, PodFigures, StallTotals};
use crate::model::pod::{PodUid, QosClass};
use crate::sources::cgroup_use::{self, MemoryFiles, StallFile, read};
use crate::sources::container_reading::ContainerReader;
use crate::sources::node_reading::held;
use crate::sys::{Dir, FsError, HeldFile, TextBuffer, Trees};

/// How deep processes are counted below a pod; what containers nest deeper is left out.
const MAX_DEPTH: usize = 32;

/// The cgroups of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCgroups {
    pub uid: PodUid,
    pub cgroup: CgroupName,
    /// By the name of the container.
    pub containers: BTreeMap<String, CgroupName>,
}

/// What is read beside a pod's own memory, tasks and stalls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The number of processes: a file for each cgroup of the pod is opened.
    pub processes: bool,
    /// The memory of each container: two reads each.
    pub containers: bool,
}

/// Readers of all pods.
#[derive(Debug)]
pub struct PodReaders {
    trees: Arc<Trees>,
    pods: BTreeMap<PodUid, PodReader>,
    qos_stalls: BTreeMap<QosClass, (CgroupName, Option<StallFile>)>,
    buffer: TextBuffer,
}

#[derive(Debug)]
struct PodReader {
    cgroups: PodCgroups,
    memory: Option<MemoryFiles>,
    tasks: Option<HeldFile>,
    stall: Option<StallFile>,
    containers: BTreeMap<String, ContainerReader>,
}

impl PodReaders {
    /// Without any pod; `kubepods` is the cgroup of all.
    pub fn new(trees: Arc<Trees>, kubepods: &CgroupName) -> Self {
        // Guaranteed pods are right below kubepods.
        let qos_stalls = [QosClass::Burstable, QosClass::BestEffort]
            .into_iter()
            .map(|class| (class, (kubepods.qos(class), None)))
            .collect();
        Self {
            trees,
            pods: BTreeMap::new(),
            qos_stalls,
            buffer: TextBuffer::default(),
        }
    }

    /// Holds the files of exactly these pods: opens those of new ones and of those whose cgroups
    /// are not the same any more, and drops the others. Some hundred microseconds for 250 pods that
    /// are known.
    pub fn keep(&mut self, pods: impl IntoIterator<Item = PodCgroups>) {
        let mut before = std::mem::take(&mut self.pods);
        for cgroups in pods {
            let known = before
                .remove(&cgroups.uid)
                .filter(|it| it.cgroups == cgroups);
            let reader = match known {
                Some(mut reader) => {
                    reader.renew(&self.trees);
                    reader
                }
                None => PodReader::open(&self.trees, cgroups),
            };
            self.pods.insert(reader.cgroups.uid.clone(), reader);
        }
    }

    /// What a pod uses; `at` is the time of the reading. `None`: the pod is not among those that
    /// are kept, or has no cgroup that could be read.
    pub fn read(&mut self, uid: &PodUid, at: Duration, wanted: Wanted) -> Option<PodFigures> {
        let pod = self.pods.get_mut(uid)?;
        pod.read(&self.trees, &mut self.buffer, at, wanted)
    }

    /// What all of them use; a pod that cannot be read is not in it.
    pub fn sweep(&mut self, at: Duration, wanted: Wanted) -> BTreeMap<PodUid, PodFigures> {
        let mut all = BTreeMap::new();
        for (uid, pod) in &mut self.pods {
            if let Some(figures) = pod.read(&self.trees, &mut self.buffer, at, wanted) {
                all.insert(uid.clone(), figures);
            }
        }
        all
    }

    /// The containers of all of them in full: five reads each, and a few more every half minute.
    pub fn sweep_containers(&mut self, at: Duration) -> ContainerReadings {
        let mut all = ContainerReadings::new();
        for (uid, pod) in &mut self.pods {
            let containers = pod.containers.iter_mut().filter_map(|(name, reader)| {
                let reading = reader.read(&self.trees, &mut self.buffer, at)?;
                Some((name.clone(), reading))
            });
            all.insert(uid.clone(), containers.collect());
        }
        all
    }

    /// Stalls of the QoS classes that have a cgroup of their own.
    pub fn qos_stalls(&mut self) -> BTreeMap<QosClass, StallTotals> {
        let mut stalls = BTreeMap::new();
        for (class, (name, file)) in &mut self.qos_stalls {
            let found = held(
                file,
                || StallFile::open(&self.trees, name).ok()?,
                |it| it.read(&mut self.buffer),
            );
            stalls.extend(found.map(|it| (*class, it)));
        }
        stalls
    }
}

impl PodReader {
    fn open(trees: &Trees, cgroups: PodCgroups) -> Self {
        let containers = cgroups.containers.iter();
        Self {
            memory: MemoryFiles::open(trees, &cgroups.cgroup).ok().flatten(),
            tasks: open_tasks(trees, &cgroups.cgroup),
            stall: StallFile::open(trees, &cgroups.cgroup).ok().flatten(),
            containers: containers
                .map(|(name, cgroup)| (name.clone(), ContainerReader::new(cgroup.clone())))
                .collect(),
            cgroups,
        }
    }

    /// Opens all files again where the cgroup at the path is another one.
    fn renew(&mut self, trees: &Trees) {
        let held = self.memory.as_ref().map(MemoryFiles::inode);
        let found = cgroup_use::dir(trees, "memory", &self.cgroups.cgroup);
        if matches!(found, Ok(found) if found.as_ref().map(Dir::inode) != held) {
            *self = Self::open(trees, self.cgroups.clone());
        }
    }

    fn read(
        &mut self,
        trees: &Trees,
        buffer: &mut TextBuffer,
        at: Duration,
        wanted: Wanted,
    ) -> Option<PodFigures> {
        let name = &self.cgroups.cgroup;
        let memory = held(
            &mut self.memory,
            || MemoryFiles::open(trees, name).ok()?,
            |it| it.read(buffer),
        );
        let tasks = held(
            &mut self.tasks,
            || open_tasks(trees, name),
            |it| read(it, buffer, parse_count).map(Some),
        );
        if memory.is_none() && tasks.is_none() {
            return None;
        }
        let stall = held(
            &mut self.stall,
            || StallFile::open(trees, name).ok()?,
            |it| it.read(buffer),
        );
        let mut containers = BTreeMap::new();
        let mut parts = Vec::new();
        if wanted.containers {
            for (container, reader) in &mut self.containers {
                let memory = reader.memory(trees, buffer);
                parts.extend(memory);
                let figures = ContainerFigures {
                    memory_working_set: memory.map(|it| it.working_set()),
                    ..ContainerFigures::default()
                };
                containers.insert(container.clone(), figures);
            }
        }
        let memory = memory.map(|it| it.with_files_of(parts));
        Some(PodFigures {
            at: Some(at),
            memory,
            memory_working_set: memory.map(|it| it.working_set()),
            processes: match wanted.processes {
                true => n_processes(trees, name).ok()?,
                false => None,
            },
            tasks,
            stall,
            containers,
            ..PodFigures::default()
        })
    }
}

fn open_tasks(trees: &Trees, name: &CgroupName) -> Option<HeldFile> {
    let dir = cgroup_use::dir(trees, "pids", name).ok()??;
    HeldFile::open_in(&dir, "pids.current").ok()
}

/// Processes of a cgroup and of those below it; `None`: there is no such cgroup.
fn n_processes(trees: &Trees, name: &CgroupName) -> Result<Option<u64>, FsError> {
    let Some(dir) = cgroup_use::dir(trees, "memory", name)? else {
        return Ok(None);
    };
    let mut n = 0;
    dir.walk(MAX_DEPTH, &mut |dir| {
        // A threaded cgroup refuses to list processes; they show at its domain.
        if let Ok(text) = dir.read_text("cgroup.procs") {
            n += text.lines().map(|_| 1).sum::<u64>();
        }
        Ok(())
    })?;
    Ok(Some(n))
}
