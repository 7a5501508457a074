//! What the resources of pods and containers depend on beside the pod: the configuration and the
//! node, brought together once.

use crate::config::{
    Compat, KubeletConfig, MemoryReservationPolicy, SwapBehavior, ThrottlingFactor,
};
use crate::model::status::CgroupVersion;
use crate::units::{Bytes, Micros};

/// The node, as far as resources depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    pub version: CgroupVersion,
    /// `MemTotal`.
    pub memory: Bytes,
    /// Memory without what is reserved for the system and for Kubernetes; eviction thresholds not
    /// subtracted. `None`: not known, so no `memory.high` for containers without a limit.
    pub allocatable_memory: Option<Bytes>,
    /// `SwapTotal`.
    pub swap: Bytes,
    /// The kernel can limit the swap of a cgroup.
    pub is_swap_limitable: bool,
    /// Of normal pages.
    pub page_size: Bytes,
}

/// Memory protection and throttling by QoS (KEP-2570).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryQos {
    pub policy: MemoryReservationPolicy,
    pub throttling_factor: ThrottlingFactor,
}

/// Whether CPU limits become a CFS quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuLimits {
    Enforced,
    /// `cpuCFSQuota: false`.
    Ignored,
}

/// Whether CPUs are pinned to a container, or to any container of a pod: a quota would only
/// throttle what has its CPUs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuPinning {
    Shared,
    Exclusive,
}

/// What one OOM kill in a container takes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomScope {
    /// One process.
    Process,
    /// The container: `memory.oom.group`.
    Container,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceSettings {
    pub compat: Compat,
    pub node: NodeFacts,
    pub cpu_limits: CpuLimits,
    pub cpu_period: Micros,
    pub pod_pids_limit: Option<u64>,
    /// `None`: the feature is off, or the node has no cgroup v2.
    pub memory_qos: Option<MemoryQos>,
    pub swap_behavior: SwapBehavior,
    pub oom_scope: OomScope,
}

impl ResourceSettings {
    pub fn new(kubelet: &KubeletConfig, compat: Compat, node: NodeFacts) -> Self {
        let is_v2 = node.version == CgroupVersion::V2;
        // Kubelet's default; v1 knows no group kill.
        let is_single = !is_v2 || kubelet.single_process_oom_kill.unwrap_or(false);
        Self {
            compat,
            node,
            cpu_limits: if kubelet.cpu_cfs_quota {
                CpuLimits::Enforced
            } else {
                CpuLimits::Ignored
            },
            cpu_period: kubelet.cpu_cfs_quota_period,
            pod_pids_limit: kubelet.pod_pids_limit,
            memory_qos: (kubelet.memory_qos && is_v2).then_some(MemoryQos {
                policy: kubelet.memory_reservation_policy,
                throttling_factor: kubelet.memory_throttling_factor,
            }),
            swap_behavior: kubelet.swap_behavior,
            oom_scope: if is_single {
                OomScope::Process
            } else {
                OomScope::Container
            },
        }
    }

    pub fn is_v2(&self) -> bool {
        self.node.version == CgroupVersion::V2
    }

    /// What a setting gave is taken back where it is switched off. Kubelet leaves stale values (kubernetes issue
    /// 137674).
    pub fn takes_back(&self) -> bool {
        self.compat == Compat::Ballast
    }

    /// Protection and throttling are written even where there is none.
    pub fn resets_memory_protection(&self) -> bool {
        self.is_v2() && self.takes_back()
    }
}
