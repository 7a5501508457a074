//! The memory of one container as it was read: what metrics and the status show beside what
//! evictions are decided by.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cgroup_files::MemoryEvents;
use super::event::CgroupId;
use super::eviction::{MemoryUse, StallTotals};
use super::pod::PodUid;

/// Containers of pods by name.
pub type ContainerReadings = BTreeMap<PodUid, BTreeMap<String, ContainerReading>>;

/// See the module. `None`: the kernel does not keep it, or it could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerReading {
    pub at: Duration,
    /// In the hierarchy of the memory controller: what is counted begins anew with another one.
    pub cgroup_id: CgroupId,
    pub memory: Option<MemoryUse>,
    pub stall: Option<StallTotals>,
    /// With all that is below it. v1 has `max` alone, as `memory.failcnt`.
    pub events: MemoryEvents,
    /// The most that was used, bytes: `memory.peak` (Linux 5.19), v1 `memory.max_usage_in_bytes`.
    pub peak: Option<u64>,
    pub settings: MemorySettings,
}

/// Bytes. `None`: there is no such file, or no limit is set in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySettings {
    /// `memory.max`; v1 `memory.limit_in_bytes`.
    pub limit: Option<u64>,
    /// v2 alone, as the two that follow.
    pub min: Option<u64>,
    pub low: Option<u64>,
    pub high: Option<u64>,
}
