//! What is written to a cgroup, as data. `None` means "no opinion": the file is left alone, which
//! is never the same as zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;
use super::numa::NumaMask;
use crate::units::{Limit, Micros};

/// `cpu.max` / `cpu.cfs_*`: the bandwidth of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuBandwidth {
    /// CPU time per period in microseconds; `Max` lifts the quota.
    pub quota: Limit,
    /// 1 ms to 1 s.
    pub period: Micros,
}

/// The resources of one cgroup (pkg/kubelet/cm/types.go, v1.36: `ResourceConfig`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupResources {
    /// 2..=262144. Written as `cpu.weight` on v2: by kubelet's linear map for the cgroups that
    /// kubelet writes, by the runtimes' quadratic one for containers.
    pub cpu_shares: Option<u64>,
    pub cpu_bandwidth: Option<CpuBandwidth>,
    /// `cpuset.cpus`. The empty set is no opinion either.
    pub cpuset_cpus: Option<CpuSet>,
    /// `cpuset.mems`. The empty mask is no opinion either.
    pub cpuset_mems: Option<NumaMask>,
    /// Bytes.
    pub memory_max: Option<Limit>,
    /// v1 only: `memory.memsw.limit_in_bytes`, memory and swap together. On v2 swap has a file of
    /// its own, in `unified`.
    pub memory_and_swap_max: Option<Limit>,
    pub pids_max: Option<Limit>,
    /// Page size in bytes to limit in bytes. `None`: leave every size alone; a size that is absent
    /// from a present map is set to 0.
    pub hugetlb: Option<BTreeMap<u64, Limit>>,
    /// cgroup v2 interface file to value, written verbatim (`memory.min`, `memory.oom.group`, ...).
    pub unified: BTreeMap<String, String>,
}
