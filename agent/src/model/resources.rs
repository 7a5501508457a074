//! What is written to a cgroup, as data. `None` means "no opinion": the file is left alone, which
//! is never the same as zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;
use crate::units::{Limit, Micros, cpu_weight_linear, cpu_weight_quadratic};

/// `cpu.max` / `cpu.cfs_*`: the bandwidth of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuBandwidth {
    /// CPU time per period in microseconds; `Max` lifts the quota.
    pub quota: Limit,
    /// 1 ms to 1 s.
    pub period: Micros,
}

/// Which map leads from `cpu_shares` to `cpu.weight` on v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WeightMap {
    /// Kubelet's, for the cgroups that it writes: kubepods, QoS and pods.
    #[default]
    Linear,
    /// The runtimes', for containers.
    Quadratic,
}

/// The resources of one cgroup (spec cgroups-qos 3.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupResources {
    /// 2..=262144. Written as `cpu.weight` on v2, see [`cpu_weight`](Self::cpu_weight).
    pub cpu_shares: Option<u64>,
    pub cpu_weight_map: WeightMap,
    pub cpu_bandwidth: Option<CpuBandwidth>,
    /// `cpuset.cpus`.
    pub cpuset_cpus: Option<CpuSet>,
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

impl CgroupResources {
    /// What `cpu_shares` are on v2, 1..=10000.
    pub fn cpu_weight(&self) -> Option<u64> {
        self.cpu_shares.map(match self.cpu_weight_map {
            WeightMap::Linear => cpu_weight_linear,
            WeightMap::Quadratic => cpu_weight_quadratic,
        })
    }
}

/// The size in the names of the kernel's hugetlb files: `2MB`, `1GB`, `64KB` (Linux,
/// `mm/hugetlb_cgroup.c`). The size is at least 1 KiB.
pub fn hugetlb_size_name(page_size_bytes: u64) -> String {
    let kib = page_size_bytes >> 10;
    match kib {
        ..0x400 => format!("{kib}KB"),
        0x400..0x10_0000 => format!("{}MB", kib >> 10),
        0x10_0000.. => format!("{}GB", kib >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugetlb_files_are_named_by_the_largest_unit() {
        for (bytes, name) in [
            (64 << 10, "64KB"),
            (2 << 20, "2MB"),
            (1 << 30, "1GB"),
            (16 << 30, "16GB"),
        ] {
            assert_eq!(hugetlb_size_name(bytes), name);
        }
    }

    #[test]
    fn a_container_weighs_by_the_runtimes_map() {
        let mut resources = CgroupResources {
            cpu_shares: Some(1024),
            ..Default::default()
        };
        assert_eq!(resources.cpu_weight(), Some(39));
        resources.cpu_weight_map = WeightMap::Quadratic;
        assert_eq!(resources.cpu_weight(), Some(100));
    }
}
