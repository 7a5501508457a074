//! Who holds what on this node, as the pod resources API tells it (pkg/kubelet/apis/podresources/server_v1.go, v1.36).
//!
//! Invariant: the same pods that the managers count, so that no exporter counts one twice. A pod
//! that has ended is not here.

use std::collections::{BTreeMap, BTreeSet};

use super::cpuset::CpuSet;
use super::placement::MemoryBlock;
use super::topology::NumaNodeId;

/// Device ids by resource name and NUMA node; `None` for those without one. A device of two nodes
/// is in both sets.
pub type DeviceIds = BTreeMap<String, BTreeMap<Option<NumaNodeId>, BTreeSet<String>>>;

/// What is held and what could be held, of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    /// Pods that were admitted and have not ended, by namespace and name.
    pub pods: BTreeMap<(String, String), PodResources>,
    pub allocatable: AllocatableResources,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodResources {
    /// Restartable init containers, then app containers. Ordinary init containers are left out.
    pub containers: Vec<ContainerResources>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerResources {
    pub name: String,
    pub kind: ContainerKind,
    pub devices: DeviceIds,
    /// Exclusive CPUs; empty for a container of the shared pool.
    pub cpus: CpuSet,
    /// A block of several NUMA nodes has its whole size once.
    pub memory: Vec<MemoryBlock>,
}

/// Containers that last as long as their pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// An init container that is restarted; v1alpha1 does not show it.
    RestartableInit,
    App,
}

/// What could be given out if nobody held anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatableResources {
    /// Healthy devices.
    pub devices: DeviceIds,
    /// All CPUs but the reserved; empty with the policy `none`.
    pub cpus: CpuSet,
    /// Per NUMA node; empty with the policy `None`.
    pub memory: Vec<MemoryBlock>,
}
