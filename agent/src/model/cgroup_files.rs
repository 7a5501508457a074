//! The texts of cgroup interface files, of both versions, as values
//! (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/).
//!
//! A key that a kernel does not print is `None`: older kernels know fewer, and a controller that
//! is off prints none. A key that is printed with something that is no number is an error, since
//! then the text is not what it is taken for. Unknown keys are passed over. Of a key that comes
//! twice the last counts.

use serde::{Deserialize, Serialize};

use super::event::CgroupId;
use super::resources::CpuBandwidth;
use super::text::{ParseError, flat_keyed, number};
use crate::units::{Bytes, Limit, Micros};

/// v1 has no word for "no limit" of memory and prints the largest number of whole pages that fits
/// a long (include/linux/page_counter.h, `PAGE_COUNTER_MAX`). This is that number with the largest
/// page in use, 64 KiB; with smaller pages it is larger.
const NO_MEMORY_LIMIT_V1: u64 = 0x7FFF_FFFF_FFFF_0000;

/// A number or `max`, as in `memory.max` and `pids.max`; a trailing line feed is fine.
pub fn parse_limit(text: &str) -> Result<Limit, ParseError> {
    match text.trim() {
        "max" => Ok(Limit::Max),
        text => number(text, "a number or `max`").map(Limit::At),
    }
}

/// `memory.limit_in_bytes` and its like of cgroup v1.
pub fn parse_memory_limit_v1(text: &str) -> Result<Limit, ParseError> {
    let bytes: u64 = number(text, "a number of bytes")?;
    Ok(if bytes >= NO_MEMORY_LIMIT_V1 {
        Limit::Max
    } else {
        Limit::At(bytes)
    })
}

/// `cpu.max`: quota or `max`, then the period, both in microseconds.
pub fn parse_cpu_max(text: &str) -> Result<CpuBandwidth, ParseError> {
    let mut words = text.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(quota), Some(period), None) => Ok(CpuBandwidth {
            quota: parse_limit(quota)?,
            period: Micros(number(period, "a period in microseconds")?),
        }),
        _ => Err(ParseError::invalid(text, "a quota and a period")),
    }
}

/// `cpu.cfs_quota_us` (-1 for none) and `cpu.cfs_period_us` of cgroup v1.
pub fn parse_cfs_bandwidth(quota: &str, period: &str) -> Result<CpuBandwidth, ParseError> {
    let quota: i64 = number(quota, "a quota in microseconds, or -1")?;
    Ok(CpuBandwidth {
        // The kernel prints -1; every negative number lifts the quota when it is written.
        quota: u64::try_from(quota).map_or(Limit::Max, Limit::At),
        period: Micros(number(period, "a period in microseconds")?),
    })
}

/// A single number: `pids.current`, `memory.current`, `memory.usage_in_bytes`.
pub fn parse_count(text: &str) -> Result<u64, ParseError> {
    number(text, "a number")
}

/// Process ids, one a line: `cgroup.procs`. 0 stands for a process of another PID namespace and is
/// left out.
pub fn parse_pids(text: &str) -> Result<Vec<u32>, ParseError> {
    let pids = text.lines().map(|it| number(it, "a process id"));
    pids.filter(|it| *it != Ok(0)).collect()
}

/// What memory a cgroup and all below it hold: `memory.stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStat {
    /// Anonymous memory, huge pages included. On v1 `total_rss`, which leaves out shared memory
    /// like `anon` does.
    pub anon: Option<Bytes>,
    /// Page cache, shared memory included.
    pub file: Option<Bytes>,
    pub file_mapped: Option<Bytes>,
    pub shmem: Option<Bytes>,
    /// Swapped out; `None` on v2, where another file tells.
    pub swap: Option<Bytes>,
    pub active_anon: Option<Bytes>,
    pub inactive_anon: Option<Bytes>,
    pub active_file: Option<Bytes>,
    /// What the kernel gives back first; kubelet's working set is usage without it.
    pub inactive_file: Option<Bytes>,
    pub unevictable: Option<Bytes>,
    /// Not yet on disk, and on its way there.
    pub file_dirty: Option<Bytes>,
    pub file_writeback: Option<Bytes>,
    /// `None` on v1.
    pub slab_reclaimable: Option<Bytes>,
    /// Kernel memory: v2 since Linux 5.18; `None` on v1, where other files tell.
    pub kernel: Option<Bytes>,
    /// Since the cgroup was made; includes major ones.
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    /// Pages of files that came back after they were dropped (`workingset_refault_file`, Linux 5.9).
    pub refaults_file: Option<u64>,
    /// Pages that came back from swap after they were taken (`workingset_refault_anon`, Linux 5.9).
    pub refaults_anon: Option<u64>,
    /// Pages that reclaim looked at and that it took (`pgscan`, `pgsteal`); `None` on v1.
    pub pages_scanned: Option<u64>,
    pub pages_reclaimed: Option<u64>,
}

impl MemoryStat {
    pub fn parse_v2(text: &str) -> Result<Self, ParseError> {
        let mut stat = Self::default();
        for (key, value) in flat_keyed(text) {
            let field = match key {
                "anon" => &mut stat.anon,
                "file" => &mut stat.file,
                "file_mapped" => &mut stat.file_mapped,
                "shmem" => &mut stat.shmem,
                "active_anon" => &mut stat.active_anon,
                "inactive_anon" => &mut stat.inactive_anon,
                "active_file" => &mut stat.active_file,
                "inactive_file" => &mut stat.inactive_file,
                "unevictable" => &mut stat.unevictable,
                "file_dirty" => &mut stat.file_dirty,
                "file_writeback" => &mut stat.file_writeback,
                "slab_reclaimable" => &mut stat.slab_reclaimable,
                "kernel" => &mut stat.kernel,
                "pgfault" => {
                    stat.page_faults = Some(parse_count(value)?);
                    continue;
                }
                "pgmajfault" => {
                    stat.major_page_faults = Some(parse_count(value)?);
                    continue;
                }
                "workingset_refault_file" => {
                    stat.refaults_file = Some(parse_count(value)?);
                    continue;
                }
                "workingset_refault_anon" => {
                    stat.refaults_anon = Some(parse_count(value)?);
                    continue;
                }
                "pgscan" => {
                    stat.pages_scanned = Some(parse_count(value)?);
                    continue;
                }
                "pgsteal" => {
                    stat.pages_reclaimed = Some(parse_count(value)?);
                    continue;
                }
                _ => continue,
            };
            *field = Some(Bytes(number(value, "a number of bytes")?));
        }
        Ok(stat)
    }

    /// The `total_` lines: the others leave out the cgroups below.
    pub fn parse_v1(text: &str) -> Result<Self, ParseError> {
        let mut stat = Self::default();
        for (key, value) in flat_keyed(text) {
            let field = match key {
                "total_rss" => &mut stat.anon,
                "total_cache" => &mut stat.file,
                "total_mapped_file" => &mut stat.file_mapped,
                "total_shmem" => &mut stat.shmem,
                "total_swap" => &mut stat.swap,
                "total_active_anon" => &mut stat.active_anon,
                "total_inactive_anon" => &mut stat.inactive_anon,
                "total_active_file" => &mut stat.active_file,
                "total_inactive_file" => &mut stat.inactive_file,
                "total_unevictable" => &mut stat.unevictable,
                "total_dirty" => &mut stat.file_dirty,
                "total_writeback" => &mut stat.file_writeback,
                "total_pgfault" => {
                    stat.page_faults = Some(parse_count(value)?);
                    continue;
                }
                "total_pgmajfault" => {
                    stat.major_page_faults = Some(parse_count(value)?);
                    continue;
                }
                "total_workingset_refault_file" => {
                    stat.refaults_file = Some(parse_count(value)?);
                    continue;
                }
                "total_workingset_refault_anon" => {
                    stat.refaults_anon = Some(parse_count(value)?);
                    continue;
                }
                _ => continue,
            };
            *field = Some(Bytes(number(value, "a number of bytes")?));
        }
        Ok(stat)
    }

    /// What kubelet takes for the usage of the root of v2, which has no file for it (opencontainers/cgroups v0.0.6,
    /// fs2/memory.go). No kernel memory is in it.
    pub fn in_use(&self) -> Option<u64> {
        let (anon, file) = self.anon.zip(self.file)?;
        Some(anon.0.saturating_add(file.0))
    }

    /// Page cache that nobody maps and that is on disk: the kernel drops it when a limit is lowered below the usage,
    /// without a kill. Seven eighths of it, since these figures are up to two seconds old (`FLUSH_TIME`,
    /// mm/memcontrol.c, Linux 6.12).
    pub fn clean(&self) -> u64 {
        let bytes = |it: Option<Bytes>| it.map_or(0, |it| it.0);
        let cache = bytes(self.active_file).saturating_add(bytes(self.inactive_file));
        let held = [self.file_dirty, self.file_writeback, self.file_mapped];
        let clean = held.into_iter().map(bytes).fold(cache, u64::saturating_sub);
        clean / 8 * 7
    }

    /// Usage that the kernel would not give back first: kubelet's working set, 0 at least. `None`
    /// when `inactive_file` is not known.
    pub fn working_set(&self, usage: Bytes) -> Option<Bytes> {
        let inactive = self.inactive_file?;
        Some(Bytes(usage.0.saturating_sub(inactive.0)))
    }
}

/// How often a cgroup came to its limits: `memory.events` (with all below it) or
/// `memory.events.local` of v2. Counts since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryEvents {
    pub low: Option<u64>,
    pub high: Option<u64>,
    pub max: Option<u64>,
    pub oom: Option<u64>,
    /// Processes killed, by whichever limit.
    pub oom_kill: Option<u64>,
    /// Whole cgroups killed (Linux 5.17).
    pub oom_group_kill: Option<u64>,
}

impl MemoryEvents {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut events = Self::default();
        for (key, value) in flat_keyed(text) {
            let field = match key {
                "low" => &mut events.low,
                "high" => &mut events.high,
                "max" => &mut events.max,
                "oom" => &mut events.oom,
                "oom_kill" => &mut events.oom_kill,
                "oom_group_kill" => &mut events.oom_group_kill,
                _ => continue,
            };
            *field = Some(parse_count(value)?);
        }
        Ok(events)
    }
}

/// `memory.oom_control` of v1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomControl {
    /// Tasks wait at the limit and are not killed.
    pub is_kill_disabled: Option<bool>,
    /// Tasks are waiting now.
    pub is_under_oom: Option<bool>,
    /// Processes of this cgroup alone that were killed (Linux 4.13).
    pub oom_kill: Option<u64>,
}

impl OomControl {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut control = Self::default();
        for (key, value) in flat_keyed(text) {
            match key {
                "oom_kill_disable" => control.is_kill_disabled = Some(flag(value)?),
                "under_oom" => control.is_under_oom = Some(flag(value)?),
                "oom_kill" => control.oom_kill = Some(parse_count(value)?),
                _ => {}
            }
        }
        Ok(control)
    }
}

/// OOM kills in a cgroup since it was made: of v1 in itself, of v2 with all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomCount {
    pub kills: u64,
    /// How often all of it was killed together; `None`: not counted (before Linux 5.17).
    pub group_kills: Option<u64>,
}

impl OomCount {
    /// `None`: the kernel does not count them (v1 before Linux 4.13).
    pub fn of(events: &MemoryEvents, is_unified: bool) -> Option<Self> {
        Some(Self {
            kills: events.oom_kill?,
            group_kills: match is_unified {
                true => events.oom_group_kill,
                // There are no such kills.
                false => Some(0),
            },
        })
    }

    /// Of so many processes, each of them counted once.
    pub fn exact(processes: u64) -> Self {
        Self {
            kills: processes,
            group_kills: Some(0),
        }
    }

    /// Whether processes may be counted twice and the kernel does not say how many.
    pub fn is_ambiguous(self) -> bool {
        self.group_kills.is_none() && self.kills > 0
    }
}

/// Whose kills are in a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOf {
    /// Those of a container, or of v1 of any cgroup. `pod`: the cgroup of its pod, whose count has them too (v2).
    Cgroup { pod: Option<CgroupId> },
    /// Those of all containers of a pod, with those that are gone (v2).
    Pod,
}

/// CPU time of a cgroup with all below it, in nanoseconds since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStat {
    /// v2 counts whole microseconds. `None` on v1, where [`parse_cpuacct_usage`] tells.
    pub usage_ns: Option<u64>,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    /// Bandwidth periods that ended while something could run; `None` without the CPU controller.
    pub n_periods: Option<u64>,
    /// Those in which the quota ran out.
    pub n_throttled: Option<u64>,
    /// Time that tasks were held back, summed over CPUs.
    pub throttled_ns: Option<u64>,
    /// Periods in which more than the quota was used, and how much more (Linux 5.14).
    pub n_bursts: Option<u64>,
    pub burst_ns: Option<u64>,
}

impl CpuStat {
    /// `cpu.stat` of either version: the keys differ.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut stat = Self::default();
        for (key, value) in flat_keyed(text) {
            let (field, factor) = match key {
                "usage_usec" => (&mut stat.usage_ns, 1000),
                "user_usec" => (&mut stat.user_ns, 1000),
                "system_usec" => (&mut stat.system_ns, 1000),
                "nr_periods" => (&mut stat.n_periods, 1),
                "nr_throttled" => (&mut stat.n_throttled, 1),
                "throttled_usec" => (&mut stat.throttled_ns, 1000),
                "nr_bursts" => (&mut stat.n_bursts, 1),
                "burst_usec" => (&mut stat.burst_ns, 1000),
                // v1.
                "throttled_time" => (&mut stat.throttled_ns, 1),
                "burst_time" => (&mut stat.burst_ns, 1),
                _ => continue,
            };
            *field = Some(parse_count(value)?.saturating_mul(factor));
        }
        Ok(stat)
    }
}

/// `cpuacct.usage` of v1: CPU time in nanoseconds.
pub fn parse_cpuacct_usage(text: &str) -> Result<u64, ParseError> {
    number(text, "nanoseconds")
}

/// `nr_dying_descendants` of `cgroup.stat` (v2, Linux 4.14): removed cgroups below this one that
/// the kernel still holds, since something is charged to them.
pub fn parse_dying_descendants(text: &str) -> Result<Option<u64>, ParseError> {
    let found = flat_keyed(text).filter(|(key, _)| *key == "nr_dying_descendants");
    found
        .last()
        .map(|(_, value)| parse_count(value))
        .transpose()
}

/// `cgroup.events` of v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupEvents {
    /// The cgroup or one below it has a live process.
    pub is_populated: bool,
    /// Linux 5.2.
    pub is_frozen: Option<bool>,
}

impl CgroupEvents {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut is_populated = None;
        let mut is_frozen = None;
        for (key, value) in flat_keyed(text) {
            match key {
                "populated" => is_populated = Some(flag(value)?),
                "frozen" => is_frozen = Some(flag(value)?),
                _ => {}
            }
        }
        Ok(Self {
            is_populated: is_populated.ok_or_else(|| ParseError::missing("populated"))?,
            is_frozen,
        })
    }
}

fn flag(text: &str) -> Result<bool, ParseError> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(ParseError::invalid(text, "0 or 1")),
    }
}

#[cfg(test)]
mod tests;
