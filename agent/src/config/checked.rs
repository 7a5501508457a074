//! The configuration after every check: past this line nothing is validated again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::model::cgroup_name::{CgroupDriver, CgroupName};
use crate::model::pod::ResourceList;
use crate::units::Micros;

/// See design.md section 2: what the agent may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Observe,
    Assist,
    Own,
}

/// Where pods come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "source")]
pub enum PodsConfig {
    #[serde(rename_all = "camelCase")]
    Manifests { manifest_directory: PathBuf },
}

/// What runs containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum RuntimeConfig {
    Process,
}

/// Which decisions may be better than kubelet's (DIVERGENCES.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compat {
    /// Ours, where upstream is a known bug.
    #[default]
    Ballast,
    /// Kubelet's, bit for bit.
    Kubelet,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub mode: Mode,
    pub pods: PodsConfig,
    pub runtime: RuntimeConfig,
    pub state_directory: PathBuf,
    pub socket: PathBuf,
    /// `None`: no HTTP endpoint.
    pub metrics_address: Option<SocketAddr>,
    pub compat: Compat,
    pub kubelet: KubeletConfig,
}

/// `memoryReservationPolicy` (KEP-2570).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum MemoryReservationPolicy {
    #[default]
    None,
    TieredReservation,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    LimitedSwap,
}

/// One entry of `enforceNodeAllocatable`; `none` is the empty set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    Pods,
    SystemReserved,
    KubeReserved,
    SystemReservedCompressible,
    KubeReservedCompressible,
}

/// The fields of KubeletConfiguration that decisions use, under the same names, with kubelet 1.36
/// defaults. Which fields are honoured, ignored or refused: `config::kubelet_fields`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfig {
    pub cgroup_root: CgroupName,
    pub cgroup_driver: CgroupDriver,
    pub cgroups_per_qos: bool,
    pub kube_reserved: ResourceList,
    pub system_reserved: ResourceList,
    /// CPU list as written (`0-1,4`), already checked for form.
    pub reserved_system_cpus: Option<String>,
    pub kube_reserved_cgroup: Option<String>,
    pub system_reserved_cgroup: Option<String>,
    pub enforce_node_allocatable: std::collections::BTreeSet<Enforcement>,
    /// Signal to threshold text; parsed by `decide::eviction` rules.
    pub eviction_hard: BTreeMap<String, String>,
    pub pod_pids_limit: Option<u64>,
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: Micros,
    pub fail_swap_on: bool,
    pub swap_behavior: SwapBehavior,
    /// `None`: kubelet's default, on for v1 and off for v2.
    pub single_process_oom_kill: Option<bool>,
    pub max_pods: u32,
    pub pods_per_core: u32,
    pub oom_score_adj: i16,
    pub memory_qos: bool,
    pub memory_reservation_policy: MemoryReservationPolicy,
    /// In (0, 1], thousandths would lose kubelet's own float; kept as written.
    pub memory_throttling_factor: ThrottlingFactor,
    /// Percent of requests reserved per QoS (`qosReserved.memory`), if set.
    pub qos_reserved_memory_percent: Option<u8>,
    pub max_container_log_bytes: u64,
    pub max_container_log_files: u32,
}

/// `memoryThrottlingFactor`, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ThrottlingFactor(pub f64);

impl Eq for ThrottlingFactor {}
