//! What one cgroup with all below it uses, as read; the formulas that make cAdvisor's figures of it
//! are methods here (cAdvisor 0.56, `container/libcontainer/handler.go`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::cgroup_files::{MemoryEvents, MemoryStat};
use crate::model::event::CgroupId;
use crate::model::psi::Stalls;

/// Counters are since the cgroup was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupStats {
    /// Boottime of the reading.
    pub at: Duration,
    /// In the hierarchy of the memory controller; `None`: memory is not accounted.
    pub cgroup_id: Option<CgroupId>,
    pub cpu: CpuUse,
    pub memory: MemoryFigures,
    /// By device.
    pub io: Vec<DeviceIo>,
    pub stalls: Stalls,
    pub hugetlb: Vec<HugetlbUse>,
    pub numa: Vec<NumaPages>,
    pub n_processes: Option<u64>,
    pub n_tasks: Option<u64>,
    /// How often a fork was refused by `pids.max` (`pids.events`).
    pub n_fork_refusals: Option<u64>,
    pub spec: CgroupSpec,
}

/// Nanoseconds and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuUse {
    pub usage_ns: Option<u64>,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    /// `None` of the bandwidth figures: the CPU controller is off there.
    pub n_periods: Option<u64>,
    pub n_throttled: Option<u64>,
    pub throttled_ns: Option<u64>,
    pub n_bursts: Option<u64>,
    pub burst_ns: Option<u64>,
}

/// Bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryFigures {
    /// v1 `memory.usage_in_bytes`, v2 `memory.current`; the root of v2 `MemTotal - MemFree`.
    pub usage: Option<u64>,
    pub stat: MemoryStat,
    /// v2 `memory.swap.current`, v1 `total_swap`; the root `SwapTotal - SwapFree`.
    pub swap: Option<u64>,
    /// Kernel memory: v2 `kernel` of `memory.stat`, v1 `memory.kmem.usage_in_bytes`.
    pub kernel: Option<u64>,
    /// The most that was used: `memory.peak` (Linux 5.19), v1 `memory.max_usage_in_bytes`.
    pub peak: Option<u64>,
    /// v1 has `max` alone, as `memory.failcnt`, and `oom_kill` of the cgroup itself.
    pub events: MemoryEvents,
}

impl MemoryFigures {
    /// Usage without what is on the list of inactive file pages, at least 0.
    pub fn working_set(&self) -> Option<u64> {
        let inactive = self.stat.inactive_file?.0;
        Some(self.usage?.saturating_sub(inactive))
    }
}

/// `major:minor` of a block device.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// What was read from and written to one device: v2 `io.stat`, v1 `blkio.throttle.*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceIo {
    pub number: DeviceNumber,
    /// As below `/dev`; `None`: no such device is known.
    pub name: Option<String>,
    pub read: IoCounts,
    pub written: IoCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IoCounts {
    pub bytes: u64,
    pub operations: u64,
}

/// Huge pages of one size, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HugetlbUse {
    /// As the kernel names it: `2MB`, `1GB`.
    pub page_size: String,
    pub usage: u64,
    /// `None`: v2 keeps none.
    pub max_usage: Option<u64>,
}

/// Pages on one NUMA node, counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaPages {
    pub node: u32,
    pub anon: u64,
    pub file: u64,
    pub unevictable: u64,
}

/// The limits that the kernel holds. `None`: no limit, or no such file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupSpec {
    /// Shares of v1; on v2 the weight converted back as kubelet does.
    pub cpu_shares: Option<u64>,
    /// Microseconds.
    pub cpu_quota_us: Option<u64>,
    pub cpu_period_us: Option<u64>,
    pub cpu_burst_us: Option<u64>,
    /// Bytes.
    pub memory_limit: Option<u64>,
    pub memory_min: Option<u64>,
    pub memory_low: Option<u64>,
    pub memory_high: Option<u64>,
    /// v1 `memory.soft_limit_in_bytes`.
    pub memory_reservation: Option<u64>,
    /// v2 `memory.swap.max`; v1 memory and swap together.
    pub swap_limit: Option<u64>,
    pub max_tasks: Option<u64>,
}
