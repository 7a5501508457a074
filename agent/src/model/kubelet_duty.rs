//! What kubelet does on a node, piece by piece: a piece is this agent's or kubelet's, never both.

use serde::Serialize;

/// A piece of kubelet's work that has metrics of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KubeletDuty {
    /// Pods and their containers are started, watched and ended.
    Pods,
    /// Cgroups of pods are made, changed and removed.
    Cgroups,
    /// CPUs are given out.
    Cpus,
    /// Memory of NUMA nodes is given out.
    Memory,
    /// What the managers give out is aligned.
    Topology,
    /// Device plugins are served.
    Devices,
    /// The pod resources API is served.
    PodResources,
    /// Pods are evicted.
    Eviction,
}

impl KubeletDuty {
    pub const ALL: &[Self] = &[
        Self::Pods,
        Self::Cgroups,
        Self::Cpus,
        Self::Memory,
        Self::Topology,
        Self::Devices,
        Self::PodResources,
        Self::Eviction,
    ];
}

/// Under which name a family is sent that kubelet has renamed, or is about to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KubeletNames {
    /// Under both, so that a dashboard for either version shows something.
    #[default]
    Both,
    Old,
    New,
}
