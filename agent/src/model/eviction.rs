//! What eviction is decided from and what it decides, as data: signals, thresholds, the readings of
//! the node and of its pods. All of it can be recorded and decided again.
//!
//! A figure that could not be read is `None`, never 0. Times are `CLOCK_BOOTTIME`.

mod amount;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::amount::AmountError;
use super::cgroup_files::MemoryStat;
use super::pod::QosClass;
use super::quantity::Quantity;
use super::record::PodRef;
use crate::units::Bytes;

/// `status.reason` of an evicted pod, and of one that is refused under pressure (Kubernetes).
pub const EVICTED: &str = "Evicted";
/// `status.reason` of a pod that has made room for a critical one.
pub const PREEMPTING: &str = "Preempting";

/// What of the node may run short, under the names of KubeletConfiguration (pkg/kubelet/eviction/api/types.go, v1.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    ContainerFsAvailable,
    ContainerFsInodesFree,
    PidAvailable,
}

/// What a signal measures, under kubelet's names in messages and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StarvedResource {
    Memory,
    EphemeralStorage,
    Inodes,
    Pids,
}

/// A condition of the Node status that a signal raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeCondition {
    MemoryPressure,
    DiskPressure,
    PIDPressure,
}

impl Signal {
    /// In the order in which they are acted upon: memory, disk, processes.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    pub const fn resource(self) -> StarvedResource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => StarvedResource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                StarvedResource::EphemeralStorage
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => {
                StarvedResource::Inodes
            }
            Self::PidAvailable => StarvedResource::Pids,
        }
    }

    pub const fn condition(self) -> NodeCondition {
        match self.resource() {
            StarvedResource::Memory => NodeCondition::MemoryPressure,
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                NodeCondition::DiskPressure
            }
            StarvedResource::Pids => NodeCondition::PIDPressure,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no signal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no eviction signal {0:?}")]
pub struct UnknownSignal(pub String);

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|it| it.as_str() == text)
            .ok_or_else(|| UnknownSignal(text.to_owned()))
    }
}

impl Serialize for Signal {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl StarvedResource {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

impl fmt::Display for StarvedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl NodeCondition {
    pub const ALL: [Self; 3] = [Self::MemoryPressure, Self::DiskPressure, Self::PIDPressure];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryPressure => "MemoryPressure",
            Self::DiskPressure => "DiskPressure",
            Self::PIDPressure => "PIDPressure",
        }
    }
}

impl fmt::Display for NodeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An amount of a signal's resource: bytes, inodes or tasks, or a share of the capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Amount {
    Quantity(Quantity),
    /// 0 to 1. A 32-bit float, as in kubelet: 5 % of 10 Gi is 536870920.
    Fraction(f32),
}

/// A threshold: met when less than `amount` is available. Hard without grace
/// (pkg/kubelet/eviction/helpers.go, v1.36: `isHardEvictionThreshold`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    pub signal: Signal,
    pub amount: Amount,
    /// Zero: acted upon at once.
    pub grace: Duration,
    /// Once acted upon, this much more has to be available before it counts as over.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

/// One signal at one moment: bytes, inodes or tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Below 0 only with `compat: kubelet`.
    pub available: i64,
    pub capacity: i64,
    /// When it was measured; `None`: not known, taken as new.
    pub at: Option<Duration>,
}

/// How available memory is measured.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum MemoryMethod {
    /// The least of the others: kubelet's formula sees no kernel memory and no reserve, so that a
    /// node can run out of memory above every threshold; the kernel's figure sees no cache in use.
    #[default]
    Least,
    /// Kubelet's: what is not in the working set of the root cgroup.
    WorkingSet,
    /// What can be had without harm: page cache that is not in use counts as available, huge pages
    /// and the kernel's reserve do not.
    Estimate,
    /// `MemAvailable` of `/proc/meminfo`. Shown, never compared with a threshold.
    Meminfo,
}

impl MemoryMethod {
    /// Those that are measured; [`MemoryMethod::Least`] chooses among them.
    pub const MEASURED: [Self; 3] = [Self::WorkingSet, Self::Estimate, Self::Meminfo];
}

/// A cgroup's memory as its interface files have it, bytes unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryUse {
    /// v1 `memory.usage_in_bytes`; v2 `memory.current`; v2 root `anon` + `file`.
    pub usage: u64,
    pub anon: u64,
    pub file: u64,
    pub inactive_file: u64,
    pub active_file: u64,
    pub shmem: u64,
    /// Dirty and under writeback: not to be dropped at once.
    pub dirty: u64,
    /// `None`: not kept (v1).
    pub slab_reclaimable: Option<u64>,
    /// Pages that came back soon after they were dropped, since the cgroup was made; a count.
    /// `None`: not kept (v1 before Linux 5.9).
    pub refaults_file: Option<u64>,
}

impl MemoryUse {
    /// From the files of a cgroup. Without `usage`, as the root of v2 has none, it is what is on
    /// the lists of anonymous memory and of files. `None` where the kernel leaves a figure out.
    pub fn new(usage: Option<Bytes>, stat: &MemoryStat) -> Option<Self> {
        let (anon, file) = (stat.anon?.0, stat.file?.0);
        Some(Self {
            usage: usage.map_or(anon.saturating_add(file), |it| it.0),
            anon,
            file,
            inactive_file: stat.inactive_file?.0,
            active_file: stat.active_file?.0,
            shmem: stat.shmem?.0,
            dirty: stat.file_dirty?.0.saturating_add(stat.file_writeback?.0),
            slab_reclaimable: stat.slab_reclaimable.map(|it| it.0),
            refaults_file: stat.refaults_file,
        })
    }

    /// With the file pages of its parts where these have more of them.
    ///
    /// The usage of a cgroup is of the moment, but its `memory.stat` is summed up from the cgroups
    /// below it now and then, up to two seconds apart (`FLUSH_TIME`, mm/memcontrol.c, Linux 6.18):
    /// page cache that was just read would count as in use. Those without anything below them are
    /// exact.
    #[must_use]
    pub fn with_files_of(self, parts: impl IntoIterator<Item = Self>) -> Self {
        let sum = parts.into_iter().fold(Self::default(), |sum, it| Self {
            file: sum.file.saturating_add(it.file),
            inactive_file: sum.inactive_file.saturating_add(it.inactive_file),
            active_file: sum.active_file.saturating_add(it.active_file),
            dirty: sum.dirty.saturating_add(it.dirty),
            ..sum
        });
        let on_lists = |it: &Self| it.inactive_file.saturating_add(it.active_file);
        if on_lists(&sum) <= on_lists(&self) {
            return self;
        }
        Self {
            file: self.file.max(sum.file),
            inactive_file: sum.inactive_file,
            active_file: sum.active_file,
            dirty: self.dirty.max(sum.dirty),
            ..self
        }
    }

    /// Usage without the inactive file pages: kubelet's measure of what is in use.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }
}

/// Stalled time since boot or since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StallTotals {
    pub source: StallSource,
    /// Microseconds in which some task waited.
    pub some_us: u64,
    /// Microseconds in which every task that was not idle waited. `None`: not kept.
    pub full_us: Option<u64>,
}

/// Where stalled time is from.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum StallSource {
    /// Pressure stall information of the kernel.
    #[default]
    Psi,
    /// Time in reclaim as the eBPF programs see it, summed over tasks: more than PSI's `some` where
    /// several wait at once. There is no `full`.
    Reclaim,
}

/// A file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsUse {
    /// For those without privileges, as `statvfs` has it.
    pub available: u64,
    pub capacity: u64,
    pub inodes_free: Option<u64>,
    pub inodes: Option<u64>,
}

/// The node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReading {
    pub at: Duration,
    /// `MemTotal`.
    pub memory_total: u64,
    /// `MemFree`, `MemAvailable`, and what the huge page pools hold, used or not.
    pub memory_free: Option<u64>,
    pub memory_available: Option<u64>,
    pub hugepages: u64,
    /// Kernel memory that can be had back, `SReclaimable`.
    #[serde(default)]
    pub slab_reclaimable: Option<u64>,
    /// Free memory that CPUs keep in lists of their own (`struct per_cpu_pages`), which neither `MemFree` nor
    /// `MemAvailable` has in it: from Linux 6.7 on up to an eighth of a zone, where much was freed at once. Read
    /// where a pod was evicted for memory, before another is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_of_cpus: Option<u64>,
    /// Sum of the low watermarks of the zones: below it the kernel reclaims.
    pub low_watermark: Option<u64>,
    /// Bytes of a page, the unit of refaults; `None` is taken as 4096.
    #[serde(default)]
    pub page_size: Option<u64>,
    pub root: Option<MemoryUse>,
    pub kubepods: Option<MemoryUse>,
    /// `None`: no limit, or not known.
    pub kubepods_limit: Option<u64>,
    /// Of the state directory; images and writable layers are not apart from it with the process
    /// runtime.
    pub nodefs: Option<FsUse>,
    /// The lesser of `kernel.pid_max` and `kernel.threads-max`.
    pub pids_max: Option<u64>,
    /// Tasks that exist.
    pub pids: Option<u64>,
    /// Memory stalls of the node and of kubepods.
    pub stall: Option<StallTotals>,
    pub kubepods_stall: Option<StallTotals>,
    pub swap_free: Option<u64>,
}

impl NodeReading {
    /// This reading with what was read since. What a [`FastReading`] leaves out and what moves
    /// meanwhile is not known: file systems and swap. Refaults of the root stay as they were.
    pub fn refreshed(&self, fast: &FastReading) -> Self {
        let refaults_file = self.root.and_then(|it| it.refaults_file);
        Self {
            at: fast.at,
            memory_free: fast.memory_free,
            memory_available: fast.memory_available,
            slab_reclaimable: fast.slab_reclaimable,
            root: fast.root.map(|it| MemoryUse {
                refaults_file,
                ..it
            }),
            kubepods: fast.kubepods,
            pids: fast.pids,
            stall: fast.stall,
            kubepods_stall: fast.kubepods_stall,
            nodefs: None,
            swap_free: None,
            ..*self
        }
    }
}

/// What changes within milliseconds when memory or processes run short, and is cheap to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FastReading {
    pub at: Duration,
    pub memory_free: Option<u64>,
    pub memory_available: Option<u64>,
    pub slab_reclaimable: Option<u64>,
    /// From the counters of the zones; without refaults.
    pub root: Option<MemoryUse>,
    pub kubepods: Option<MemoryUse>,
    pub pids: Option<u64>,
    pub stall: Option<StallTotals>,
    pub kubepods_stall: Option<StallTotals>,
}

/// What made the agent look at the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeSource {
    /// The eBPF programs saw reclaim.
    Tracepoint,
    PsiTrigger,
    /// A limit or a threshold of a cgroup: `memory.events` of v2, events of v1.
    MemoryEvents,
    Timer,
    Other,
}

impl WakeSource {
    pub const ALL: [Self; 5] = [
        Self::Tracepoint,
        Self::PsiTrigger,
        Self::MemoryEvents,
        Self::Timer,
        Self::Other,
    ];

    /// The label of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tracepoint => "tracepoint",
            Self::PsiTrigger => "psi_trigger",
            Self::MemoryEvents => "memory_events",
            Self::Timer => "timer",
            Self::Other => "other",
        }
    }
}

/// What of a pod's definition eviction is decided by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFacts {
    pub pod: PodRef,
    pub qos: QosClass,
    /// 0 where none is given.
    pub priority: i32,
    /// Never evicted.
    pub is_critical: bool,
    pub termination_grace: Duration,
    /// What the pod as a whole requests, by kubelet's rule (pkg/api/v1/resource/helpers.go, v1.36:
    /// `GetResourceRequestQuantity`); overhead only where something is requested.
    pub memory_request: Quantity,
    pub storage_request: Quantity,
    /// `spec.resources.requests.memory`, where it is given.
    pub pod_level_memory_request: Option<Quantity>,
    /// Limit of local storage of the pod as a whole.
    pub storage_limit: Option<Quantity>,
    /// Regular and init containers, in the order kubelet looks at them.
    pub containers: Vec<ContainerFacts>,
    pub volumes: Vec<VolumeFacts>,
}

impl PodFacts {
    /// A pod with kubelet's default grace that asks for nothing.
    pub(crate) fn bare(pod: PodRef) -> Self {
        Self {
            pod,
            qos: QosClass::BestEffort,
            priority: 0,
            is_critical: false,
            termination_grace: Duration::from_secs(30),
            memory_request: Quantity::ZERO,
            storage_request: Quantity::ZERO,
            pod_level_memory_request: None,
            storage_limit: None,
            containers: Vec::new(),
            volumes: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerFacts {
    pub name: String,
    pub memory_request: Quantity,
    pub storage_request: Quantity,
    /// `None` or 0: no limit.
    pub storage_limit: Option<Quantity>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeFacts {
    pub name: String,
    /// Its files count as local storage of the pod in the ranking.
    pub is_local: bool,
    /// `emptyDir.sizeLimit` above 0.
    pub size_limit: Option<Quantity>,
}

/// What a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFigures {
    /// When memory and tasks were read.
    pub at: Option<Duration>,
    pub memory: Option<MemoryUse>,
    /// Usage without inactive file pages; of `memory` where that is there.
    pub memory_working_set: Option<u64>,
    /// Processes, which kubelet ranks by, and tasks, which the limit is about.
    pub processes: Option<u64>,
    pub tasks: Option<u64>,
    pub stall: Option<StallTotals>,
    /// Root file systems, logs and local volumes together, bytes.
    pub storage: Option<u64>,
    pub containers: BTreeMap<String, ContainerFigures>,
    pub volumes: BTreeMap<String, DiskUse>,
    /// On the node's file system beside these: what containers share, and what those left that have ended.
    #[serde(default, skip_serializing_if = "DiskUse::is_unknown")]
    pub shared: DiskUse,
    /// When the first of the walks began that found what is on disk. `None`: some of it was not
    /// measured, or not all of it could be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerFigures {
    pub memory_working_set: Option<u64>,
    pub root_fs: DiskUse,
    pub logs: DiskUse,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskUse {
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

impl DiskUse {
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// One pod in a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReading {
    pub facts: Arc<PodFacts>,
    /// `None`: it could not be read.
    pub figures: Option<PodFigures>,
    /// It is on its way out, and has this long until it is killed.
    pub ends_within: Option<Duration>,
}

/// All that one decision sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub at: Duration,
    /// A signal that could not be read is not in it.
    pub observations: BTreeMap<Signal, Observation>,
    pub node: NodeReading,
    /// Pods that run or are ending, in no order that matters.
    pub pods: Vec<PodReading>,
    /// Files of a pod that was evicted are still being removed; the pod may not be among `pods` any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_leaving: bool,
}

/// Which limit of local storage a pod is over (pkg/kubelet/eviction/eviction_manager.go, v1.36:
/// `localStorageEviction`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StorageLimit {
    EmptyDir { volume: String },
    Pod,
    Container { container: String },
}

/// Why a pod is evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum EvictionCause {
    #[serde(rename_all = "camelCase")]
    Threshold {
        threshold: Threshold,
        observation: Observation,
    },
    #[serde(rename_all = "camelCase")]
    LocalStorage { limit: StorageLimit },
    /// Sustained stall with little headroom (not in kubelet).
    Stall,
    /// A critical pod needs the room.
    #[serde(rename_all = "camelCase")]
    Preemption { by: PodRef },
}

impl EvictionCause {
    /// Label `eviction_signal` of `kubelet_evictions`, and `signal` of ours.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Threshold { threshold, .. } => threshold.signal.as_str(),
            Self::LocalStorage { limit } => match limit {
                StorageLimit::EmptyDir { .. } => "emptydirfs.limit",
                StorageLimit::Pod => "ephemeralpodfs.limit",
                StorageLimit::Container { .. } => "ephemeralcontainerfs.limit",
            },
            Self::Stall => "memory.stall",
            Self::Preemption { .. } => "preemption",
        }
    }

    /// The disk of the node was short.
    pub fn is_of_disk(&self) -> bool {
        let disk = NodeCondition::DiskPressure;
        matches!(self, Self::Threshold { threshold, .. } if threshold.signal.condition() == disk)
    }

    /// `status.reason` of the pod.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Threshold { .. } | Self::LocalStorage { .. } | Self::Stall => EVICTED,
            Self::Preemption { .. } => PREEMPTING,
        }
    }
}

/// A pod to be evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    pub pod: PodRef,
    pub cause: EvictionCause,
    /// From SIGTERM to SIGKILL; zero: no SIGTERM.
    pub grace: Duration,
    /// Kubelet's text.
    pub message: String,
    /// What its end is expected to make available, in the unit of the signal.
    pub expected: Option<u64>,
}

/// The eviction of a pod, as it is stored with it and shown in its status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    pub victim: Victim,
    /// When it was decided, boottime.
    pub at: Duration,
    pub conditions: BTreeSet<NodeCondition>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn file_pages_are_those_of_the_parts_where_these_have_more() {
        let files = |inactive_file, active_file| MemoryUse {
            usage: 130,
            file: inactive_file + active_file,
            inactive_file,
            active_file,
            ..MemoryUse::default()
        };
        let stale = files(18, 2).with_files_of([files(60, 1), files(40, 3)]);
        assert_eq!((stale.inactive_file, stale.active_file), (100, 4));
        assert_eq!((stale.usage, stale.working_set()), (130, 30));
        // What is charged to the cgroup itself is in none of its parts.
        let own = files(100, 5);
        assert_eq!(own.with_files_of([files(60, 4), files(30, 1)]), own);
        assert_eq!(own.with_files_of([]), own);
    }

    /// A threshold of this signal was met.
    pub(crate) fn by(signal: Signal) -> EvictionCause {
        EvictionCause::Threshold {
            threshold: Threshold {
                signal,
                amount: Amount::Fraction(0.1),
                grace: Duration::ZERO,
                min_reclaim: None,
            },
            observation: Observation {
                available: 0,
                capacity: 1,
                at: None,
            },
        }
    }

    #[test]
    fn a_limit_of_a_pod_says_nothing_of_the_disk() {
        for signal in [Signal::NodeFsAvailable, Signal::ImageFsInodesFree] {
            assert!(by(signal).is_of_disk(), "{signal}");
        }
        let limit = StorageLimit::Pod;
        for cause in [
            by(Signal::MemoryAvailable),
            EvictionCause::LocalStorage { limit },
            EvictionCause::Stall,
        ] {
            assert!(!cause.is_of_disk(), "{cause:?}");
        }
    }

    #[test]
    fn a_signal_reads_back_from_its_name() {
        for signal in Signal::ALL {
            assert_eq!(signal.as_str().parse(), Ok(signal));
        }
        assert!("swap.available".parse::<Signal>().is_err());
    }
}
