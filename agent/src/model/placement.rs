//! Who holds which CPUs, memory and devices: the state of the placement managers, which outlives
//! the agent in kubelet's own files.
//!
//! Invariant: keyed by pod and container name, never by container id. What a container holds is its
//! as long as its pod lives, through every restart of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;
use super::numa::NumaMask;
use super::pod::PodUid;
use super::topology::NumaNodeId;

/// By pod and container name.
pub type ByContainer<T> = BTreeMap<PodUid, BTreeMap<String, T>>;

/// Exclusive CPUs (pkg/kubelet/cm/cpumanager/state/state.go, v1.36).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuState {
    /// `defaultCpuSet`: the CPUs of everybody without CPUs of his own.
    pub shared_pool: CpuSet,
    pub containers: ByContainer<CpuSet>,
    /// CPUs of a pod as a whole (feature gate `PodLevelResourceManagers`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<PodUid, CpuSet>,
}

impl CpuState {
    /// The CPUs of containers, and of pods as a whole.
    pub fn held(&self) -> CpuSet {
        let containers = self.containers.values().flat_map(BTreeMap::values);
        let own = containers.chain(self.pods.values());
        own.fold(CpuSet::new(), |all, it| all.union(it))
    }

    /// The CPUs of everybody.
    pub fn all(&self) -> CpuSet {
        self.shared_pool.union(&self.held())
    }
}

/// Memory or one size of huge pages on one NUMA node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    pub total: u64,
    pub system_reserved: u64,
    /// What may be given out: the total without what is reserved and, for `memory`, without the
    /// pools of huge pages.
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

/// One NUMA node in the memory manager's books.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaMemory {
    /// Blocks that lie on the node.
    pub n_assignments: u32,
    /// By `memory`, `hugepages-2Mi`, ...
    pub tables: BTreeMap<String, MemoryTable>,
    /// The nodes that memory is given out from together with this one, itself included (`cells`), in
    /// the order of the file.
    pub group: Vec<NumaNodeId>,
}

/// Memory of one type given to a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryBlock {
    pub numa: NumaMask,
    /// `memory`, `hugepages-2Mi`, ...
    pub resource: String,
    /// Bytes.
    pub size: u64,
}

/// Memory by NUMA node (pkg/kubelet/cm/memorymanager/state/state.go, v1.36).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryState {
    pub nodes: BTreeMap<NumaNodeId, NumaMemory>,
    pub containers: ByContainer<Vec<MemoryBlock>>,
    /// Blocks of a pod as a whole (feature gate `PodLevelResourceManagers`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<PodUid, Vec<MemoryBlock>>,
}

/// What one container holds of one device resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocation {
    /// Ids by NUMA node; `None` for those without one. A device of two nodes is in both sets. Written
    /// as a list of pairs: keys of JSON objects are texts.
    #[serde(with = "pairs")]
    pub ids: BTreeMap<Option<NumaNodeId>, BTreeSet<String>>,
    /// The plugin's answer, v1beta1.ContainerAllocateResponse as protobuf.
    pub response: Vec<u8>,
}

impl DeviceAllocation {
    /// Of all NUMA nodes.
    pub fn device_ids(&self) -> BTreeSet<String> {
        self.ids.values().flatten().cloned().collect()
    }
}

/// Devices given out, and those known (pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go, v1.36).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// By resource name within the container.
    pub containers: ByContainer<BTreeMap<String, DeviceAllocation>>,
    /// Resource name to the ids of its healthy devices.
    pub registered: BTreeMap<String, BTreeSet<String>>,
}

/// A map as a list of its pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}
