//! What one cgroup with all below it uses, as read; the formulas that make cAdvisor's figures of it
//! are methods here (cAdvisor 0.56, `container/libcontainer/handler.go`).

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::cgroup_files::{CpuStat, MemoryEvents, MemoryStat};
use crate::model::event::CgroupId;
use crate::model::eviction::MemoryUse;
use crate::model::psi::Stalls;
use crate::units::Bytes;

/// Counters are since the cgroup was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupStats {
    /// Boottime of the reading.
    pub at: Duration,
    /// In the hierarchy of the memory controller; `None`: memory is not accounted.
    pub cgroup_id: Option<CgroupId>,
    /// With CPU times on v1 too, which are in files of their own there.
    pub cpu: CpuStat,
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

impl CgroupStats {
    /// What eviction knows memory by; `None`: a figure that is needed was not read.
    pub fn memory_use(&self) -> Option<MemoryUse> {
        MemoryUse::new(self.memory.usage.map(Bytes), &self.memory.stat)
    }

    /// Puts counters that fell since `before` back to what they were, and tells how many did. They
    /// only rise while a cgroup lives, so another cgroup, or one that cannot be told from another,
    /// is left as it is, and so are those of devices whose numbers were others' before (`replaced`).
    pub fn keep_rising(&mut self, before: &Self, replaced: &BTreeSet<DeviceNumber>) -> u64 {
        if self.cgroup_id.is_none() || self.cgroup_id != before.cgroup_id {
            return 0;
        }
        let mut n = 0;
        let mut keep = |now: &mut u64, before: u64| {
            if *now < before {
                *now = before;
                n += 1;
            }
        };
        let (cpu, memory) = (&mut self.cpu, &mut self.memory);
        let (stat, events) = (&mut memory.stat, &mut memory.events);
        for (now, before) in [
            (&mut cpu.usage_ns, before.cpu.usage_ns),
            (&mut cpu.user_ns, before.cpu.user_ns),
            (&mut cpu.system_ns, before.cpu.system_ns),
            (&mut cpu.n_periods, before.cpu.n_periods),
            (&mut cpu.n_throttled, before.cpu.n_throttled),
            (&mut cpu.throttled_ns, before.cpu.throttled_ns),
            (&mut cpu.n_bursts, before.cpu.n_bursts),
            (&mut cpu.burst_ns, before.cpu.burst_ns),
            (&mut stat.page_faults, before.memory.stat.page_faults),
            (
                &mut stat.major_page_faults,
                before.memory.stat.major_page_faults,
            ),
            (&mut stat.refaults_file, before.memory.stat.refaults_file),
            (&mut stat.refaults_anon, before.memory.stat.refaults_anon),
            (&mut stat.pages_scanned, before.memory.stat.pages_scanned),
            (
                &mut stat.pages_reclaimed,
                before.memory.stat.pages_reclaimed,
            ),
            (&mut events.low, before.memory.events.low),
            (&mut events.high, before.memory.events.high),
            (&mut events.max, before.memory.events.max),
            (&mut events.oom, before.memory.events.oom),
            (&mut events.oom_kill, before.memory.events.oom_kill),
            (
                &mut events.oom_group_kill,
                before.memory.events.oom_group_kill,
            ),
            (&mut self.n_fork_refusals, before.n_fork_refusals),
        ] {
            if let (Some(now), Some(before)) = (now, before) {
                keep(now, before);
            }
        }
        let stalls = &mut self.stalls;
        for (now, before) in [
            (&mut stalls.cpu, before.stalls.cpu),
            (&mut stalls.memory, before.stalls.memory),
            (&mut stalls.io, before.stalls.io),
        ] {
            let (Some(now), Some(before)) = (now, before) else {
                continue;
            };
            keep(&mut now.some.total.0, before.some.total.0);
            if let (Some(now), Some(before)) = (&mut now.full, before.full) {
                keep(&mut now.total.0, before.total.0);
            }
        }
        let of_before = |it: &&mut DeviceIo| !replaced.contains(&it.number);
        for device in self.io.iter_mut().filter(of_before) {
            let Some(before) = before.io.iter().find(|it| it.number == device.number) else {
                continue;
            };
            keep(&mut device.read.bytes, before.read.bytes);
            keep(&mut device.read.operations, before.read.operations);
            keep(&mut device.written.bytes, before.written.bytes);
            keep(&mut device.written.operations, before.written.operations);
            if let (Some(now), Some(before)) = (&mut device.by_operation, before.by_operation) {
                keep(&mut now.synchronous, before.synchronous);
                keep(&mut now.asynchronous, before.asynchronous);
                keep(&mut now.discarded, before.discarded);
                keep(&mut now.total, before.total);
            }
            let cost = &mut device.cost;
            for (now, before) in [
                (&mut cost.usage_us, before.cost.usage_us),
                (&mut cost.wait_us, before.cost.wait_us),
                (&mut cost.in_debt_us, before.cost.in_debt_us),
                (&mut cost.in_delay_us, before.cost.in_delay_us),
            ] {
                if let (Some(now), Some(before)) = (now, before) {
                    keep(now, before);
                }
            }
        }
        n
    }
}

/// Bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryFigures {
    /// v1 `memory.usage_in_bytes`, v2 `memory.current`; the root of v2, which has no such file,
    /// [`MemoryStat::in_use`].
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
    #[serde(default)]
    pub cost: IoCost,
    /// v1 alone.
    #[serde(default)]
    pub by_operation: Option<IoByOperation>,
}

/// Bytes by the other operations that `blkio.throttle.io_service_bytes` lists beside `Read` and
/// `Write`: what is in one of those, or discarded, is synchronous or asynchronous as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IoByOperation {
    pub synchronous: u64,
    pub asynchronous: u64,
    pub discarded: u64,
    /// Read, written and discarded.
    pub total: u64,
}

/// Device time by the model of `io.cost`, microseconds (v2, Linux 5.10). `None`: the model is off for
/// the device; all but `usage_us` also without `blkcg_debug_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IoCost {
    pub usage_us: Option<u64>,
    /// Waited for its share.
    pub wait_us: Option<u64>,
    /// Owed time for requests that could not be held back, and was delayed for that.
    pub in_debt_us: Option<u64>,
    pub in_delay_us: Option<u64>,
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
    /// False: they could not be read, and `None` says nothing.
    #[serde(default)]
    pub is_known: bool,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::psi::{Psi, PsiLine};
    use crate::units::Micros;

    fn stats(cgroup: u64, cpu: u64, written: u64, stalled: u64) -> CgroupStats {
        let some = PsiLine {
            total: Micros(stalled),
            ..PsiLine::default()
        };
        let mut stats = CgroupStats {
            cgroup_id: Some(CgroupId(cgroup)),
            io: vec![DeviceIo::default()],
            ..CgroupStats::default()
        };
        stats.cpu.usage_ns = Some(cpu);
        stats.memory.usage = Some(cpu);
        stats.io[0].written.bytes = written;
        stats.stalls.memory = Some(Psi { some, full: None });
        stats
    }

    #[test]
    fn a_counter_that_fell_is_kept_and_counted() {
        let before = stats(1, 100, 10, 5);
        let mut now = stats(1, 90, 9, 4);
        assert_eq!(now.keep_rising(&before, &BTreeSet::new()), 3);
        // Usage is no counter.
        let mut expected = before.clone();
        expected.memory.usage = Some(90);
        assert_eq!(now, expected);
        let mut risen = stats(1, 100, 11, 6);
        assert_eq!(risen.keep_rising(&before, &BTreeSet::new()), 0);
        assert_eq!(risen, stats(1, 100, 11, 6));
    }

    #[test]
    fn another_cgroup_begins_anew() {
        let before = stats(1, 100, 10, 5);
        for id in [Some(CgroupId(2)), None] {
            let mut now = stats(2, 1, 1, 1);
            now.cgroup_id = id;
            assert_eq!(now.keep_rising(&before, &BTreeSet::new()), 0);
            assert_eq!(now.cpu.usage_ns, Some(1));
        }
    }
}
