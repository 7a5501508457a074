//! Who holds which CPUs, memory and devices of the node, and what is left: the part of the status
//! document that the placement managers answer for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::admission::ContainerHoldings;
use crate::model::cpuset::CpuSet;
use crate::model::kubelet_state::gives_out;
use crate::model::pod::PodUid;
use crate::model::topology::NumaNodeId;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementStatus {
    pub policies: PlacementPolicies,
    /// `None`: CPU manager policy `none`, containers run on all CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuPools>,
    /// By id.
    pub numa_nodes: Vec<NumaNodeStatus>,
    /// By resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, DeviceCounts>,
    /// What containers hold of their own, where no record of their admission says it: in mode `observe`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holdings: BTreeMap<PodUid, Vec<ContainerHoldings>>,
}

/// In the words of KubeletConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementPolicies {
    pub cpu_manager: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_manager_options: BTreeMap<String, String>,
    pub memory_manager: String,
    pub topology_manager: String,
    pub topology_manager_scope: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology_manager_options: BTreeMap<String, String>,
}

impl PlacementPolicies {
    /// Whether containers can have CPUs of their own.
    pub fn places_cpus(&self) -> bool {
        gives_out(&self.cpu_manager)
    }
}

/// Every CPU is in the shared pool or exclusive, but for reserved ones with `strict-cpu-reservation`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuPools {
    /// Where containers without CPUs of their own run.
    pub shared: CpuSet,
    /// Kept for the system: never given to one container alone. `None`: another program has chosen them, and which it
    /// would take is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<CpuSet>,
    /// By pod uid and container.
    pub exclusive: Vec<ExclusiveCpus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExclusiveCpus {
    pub uid: PodUid,
    /// `namespace/name`; `None`: the pod is gone, and what it held is about to be taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// `None`: of the pod as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub cpus: CpuSet,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaNodeStatus {
    pub id: NumaNodeId,
    pub cpus: CpuSet,
    /// Those that can be given to one container alone; `None`: CPU manager policy `none`, or it is not known which are
    /// kept for the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_cpus: Option<CpuSet>,
    /// By `memory`, `hugepages-2Mi`, ...; empty with memory manager policy `None`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, NumaAmounts>,
}

/// Bytes of one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaAmounts {
    /// What containers may hold.
    pub allocatable: u64,
    /// What containers hold.
    pub reserved: u64,
    pub free: u64,
    /// What is kept for the system (`reservedMemory`); `None`: it is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_reserved: Option<u64>,
}

/// Devices of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCounts {
    /// Known to the plugin; `None`: another program asks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Healthy ones.
    pub allocatable: u64,
    pub allocated: u64,
}
