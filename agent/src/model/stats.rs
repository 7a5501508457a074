//! What the node and its cgroups use: one complete sweep of readings, from which every page that
//! shows usage is made. Made by the sweep, read by scrapes, by `/stats/summary` and by `ballast top`.
//!
//! Invariants: a snapshot is never changed, the next one takes its place whole. `None` is "the
//! kernel does not keep it" or "it could not be read this time", never 0 and never an old value.

mod cgroup;
mod known;
pub mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::cgroup::{
    CgroupSpec, CgroupStats, DeviceIo, DeviceNumber, HugetlbUse, IoByOperation, IoCost, IoCounts,
    MemoryFigures, NumaPages,
};
pub use self::known::{EndedContainer, KnownContainer, KnownPod, KnownSandbox};
use super::eviction::{ContainerFigures, DiskUse, PodFigures};
use super::pod::QosClass;
use super::record::PodRef;
use super::time::WallTime;
use super::topology::{NumaNode, NumaNodeId};

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatsSnapshot {
    /// Sweeps since the agent started, this one included.
    pub sweep: u64,
    /// Boottime of its first and its last reading.
    pub begun: Duration,
    pub ended: Duration,
    /// Wall time of the last reading.
    pub at: WallTime,
    /// CPU time that the sweep took, microseconds; `None`: not known.
    pub cost_us: Option<u64>,
    pub machine: Arc<Machine>,
    pub node: NodeStats,
    /// The QoS classes, all pods together, and slices right below the root; by path.
    pub groups: Vec<GroupStats>,
    /// By namespace, name and uid.
    pub pods: Vec<PodStats>,
}

impl StatsSnapshot {
    /// Wall time of a reading of this sweep.
    pub fn seen_at(&self, stats: &CgroupStats) -> WallTime {
        self.at.before(self.ended.saturating_sub(stats.at))
    }

    /// The pods in the order in which they were started; those of one moment are in the order of [`Self::pods`]. Where
    /// two have one name, since the next one begins while the one before it still ends, the last of them is shown.
    pub fn by_start(&self) -> Vec<&PodStats> {
        let mut pods: Vec<_> = self.pods.iter().collect();
        pods.sort_by_key(|it| it.started_at);
        pods
    }
}

/// What seldom changes while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    pub node_name: String,
    /// Online CPUs, and the cores and packages that they are on.
    pub n_cpus: u64,
    pub n_cores: u64,
    pub n_packages: u64,
    /// Bytes.
    pub memory: u64,
    pub swap: u64,
    /// Wall time of the boot.
    pub booted_at: Option<WallTime>,
    /// `/etc/machine-id`, the DMI system UUID and the kernel's boot id; `None`: not readable.
    pub machine_id: Option<String>,
    pub system_uuid: Option<String>,
    pub boot_id: Option<String>,
    pub kernel_version: String,
    /// `PRETTY_NAME` of os-release; `None`: there is none.
    pub os_version: Option<String>,
    /// The largest process id, and so the limit of tasks on the node.
    pub max_pids: Option<u64>,
    /// The cgroup mount carries the controllers in one hierarchy (v2).
    pub is_unified: bool,
    #[serde(default)]
    pub numa_nodes: BTreeMap<NumaNodeId, NumaNode>,
}

/// The root: the whole machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    /// The root cgroup, with the machine's own figures where the root has no file: memory from
    /// `/proc/meminfo` (v2), stalls from `/proc/pressure`.
    pub cgroup: CgroupStats,
    /// Interfaces of the host's network namespace.
    pub network: Vec<InterfaceStats>,
    /// The file system of the agent's state directory, which holds pods' files and logs.
    pub file_system: Option<FileSystemStats>,
    /// Whole disks and partitions that have seen traffic (`/proc/diskstats`).
    pub disks: Vec<DiskStats>,
    /// Tasks that exist on the node.
    pub n_tasks: Option<u64>,
}

/// A cgroup that is neither the root nor of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupStats {
    pub kind: GroupKind,
    /// Path from the cgroup mount, with a leading slash.
    pub id: String,
    /// At the latest; `None`: not known.
    #[serde(default)]
    pub made_at: Option<WallTime>,
    pub stats: CgroupStats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GroupKind {
    /// All pods together.
    Kubepods,
    Qos(QosClass),
    /// Right below the root, and not of pods.
    Slice,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod: Arc<PodRef>,
    pub qos: QosClass,
    /// Path of its cgroup from the cgroup mount, with a leading slash.
    pub id: String,
    pub started_at: WallTime,
    /// `None`: it has no cgroup now.
    pub stats: Option<CgroupStats>,
    /// Empty for a pod in the host's network namespace, whose interfaces are the node's.
    pub network: Vec<InterfaceStats>,
    /// Root file systems, logs and local volumes together, bytes.
    pub ephemeral_storage: Option<u64>,
    pub volumes: BTreeMap<String, DiskUse>,
    /// Of the volumes in memory, each of which is one of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volume_file_systems: BTreeMap<String, FileSystemStats>,
    /// By name; those that have ended follow, for as long as they are shown.
    pub containers: Vec<ContainerStats>,
}

impl PodStats {
    /// What eviction makes of it. `None`: it has no cgroup that could be read.
    pub fn figures(&self) -> Option<PodFigures> {
        let stats = self.stats.as_ref()?;
        let running = self.containers.iter().filter(|it| it.ended_at.is_none());
        let parts = running.clone().filter_map(|it| it.stats.memory_use());
        let memory = stats.memory_use().map(|it| it.with_files_of(parts));
        let containers = running.map(|it| {
            let figures = ContainerFigures {
                memory_working_set: it.stats.memory.working_set(),
                root_fs: it.root_fs,
                logs: it.logs,
            };
            (it.known_as().to_owned(), figures)
        });
        Some(PodFigures {
            at: Some(stats.at),
            memory,
            memory_working_set: memory.map(|it| it.working_set()),
            processes: stats.n_processes,
            tasks: stats.n_tasks,
            stall: stats.stalls.memory.map(|it| it.totals()),
            storage: self.ephemeral_storage,
            containers: containers.collect(),
            volumes: self.volumes.clone(),
            shared: DiskUse::default(),
            disk_at: None,
        })
    }
}

/// One instance of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    /// Empty: not known.
    pub name: String,
    /// Path of its cgroup from the cgroup mount, with a leading slash.
    pub id: String,
    /// As the runtime names the instance.
    pub runtime_id: String,
    /// As the manifest has it, or the runtime names it; empty: none, or it is not known.
    pub image: String,
    pub started_at: Option<WallTime>,
    /// `Some`: its cgroup is gone, and `stats` is what it had used by then.
    pub ended_at: Option<WallTime>,
    pub restarts: u32,
    /// OOM kills among the processes of this container over all its instances; of one that has
    /// ended, up to its end.
    pub oom_events: u64,
    pub stats: CgroupStats,
    pub root_fs: DiskUse,
    pub logs: DiskUse,
    /// Of its processes together; `None`: not counted (before Linux 6.2, or too many processes), or it has none.
    pub descriptors: Option<u64>,
    /// Of its first process.
    pub limits: ProcessLimits,
}

impl ContainerStats {
    /// What tells it apart within its pod: its name, or its id if it has none.
    pub fn known_as(&self) -> &str {
        known::name_or_id(&self.name, &self.runtime_id)
    }
}

/// Soft limits of a process; `None`: not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessLimits {
    /// `u64::MAX`: unlimited.
    pub max_open_files: Option<u64>,
}

/// Counters of one interface (`/proc/PID/net/dev`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    pub name: String,
    pub received: TrafficCounts,
    pub transmitted: TrafficCounts,
}

impl InterfaceStats {
    /// Whether pages show it. Not shown are, as by cAdvisor, the loopback and the host's ends of the
    /// links to pods, whose traffic others count again.
    pub fn is_counted(&self) -> bool {
        let links = ["veth", "docker", "nerdctl"];
        self.name != "lo" && !links.iter().any(|it| self.name.starts_with(it))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficCounts {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// `statfs` of a mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileSystemStats {
    /// As `/proc/self/mountinfo` names its source, such as `/dev/vda1`.
    pub device: String,
    /// Bytes; `available` is what an unprivileged process could still write.
    pub capacity: u64,
    pub available: u64,
    pub used: u64,
    /// `None`: the file system has no fixed number of them.
    pub inodes: Option<u64>,
    pub inodes_free: Option<u64>,
}

/// One line of `/proc/diskstats`; sectors have 512 bytes, times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskStats {
    /// As below `/dev`.
    pub name: String,
    pub number: DeviceNumber,
    pub reads: DiskCounts,
    pub writes: DiskCounts,
    /// Requests in flight now.
    pub n_in_flight: u64,
    pub busy_ms: u64,
    pub weighted_busy_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskCounts {
    pub completed: u64,
    pub merged: u64,
    pub sectors: u64,
    pub time_ms: u64,
}

#[cfg(test)]
pub(crate) mod tests;
