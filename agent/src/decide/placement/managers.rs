//! The managers together: made from the configuration and the machine, restored from what they had
//! given out, and asked what a pod holds.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::cpu::{
    CpuConfigError, CpuGates, CpuManager, CpuOptionError, CpuOptions, CpuReservation, CpuSettings,
    CpuStateFault, CpuTopology, CpuTopologyError, exclusive_cpus, exclusive_cpus_of_pod,
};
use super::devices::{DeviceBooks, DeviceManager};
use super::memory::{
    MemoryConfigError, MemoryManager, MemorySettings, MemoryStateFault, NumaCapacity,
    ReservedMemoryError, check_reserved_memory,
};
use super::topology::{TopologyConfigError, TopologyManager, TopologySettings};
use crate::config::{
    Compat, CpuManagerPolicy, MemoryManagerPolicy, PlacementConfig, TopologyManagerPolicy,
    TopologyManagerScope,
};
use crate::model::admission::ContainerHoldings;
use crate::model::cpuset::CpuSet;
use crate::model::placement::{CpuState, MemoryState};
use crate::model::pod::{Container, Pod, PodUid, ResourceList};
use crate::model::topology::Topology;
use crate::units::Bytes;

/// What the managers are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementSettings {
    pub compat: Compat,
    pub config: PlacementConfig,
    /// `reservedSystemCPUs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_system_cpus: Option<CpuSet>,
    /// What node allocatable keeps from pods: kube-reserved, system-reserved, and the thresholds of
    /// hard eviction.
    pub reservation: ResourceList,
    pub topology: Topology,
}

/// What the managers have given out, and what the device plugins have to give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Books {
    pub cpu: CpuState,
    pub memory: MemoryState,
    pub devices: DeviceBooks,
}

/// Why the managers cannot be made: the configuration does not fit itself or the machine.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error("kubelet.cpuManagerPolicyOptions: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    CpuOptions(Vec<CpuOptionError>),
    #[error("kubelet.cpuManagerPolicy")]
    Cpu(#[from] CpuConfigError),
    #[error("kubelet.cpuManagerPolicy: read the CPUs")]
    CpuTopology(#[from] CpuTopologyError),
    #[error("kubelet.reservedMemory")]
    ReservedMemory(#[from] ReservedMemoryError),
    #[error("kubelet.memoryManagerPolicy")]
    Memory(#[from] MemoryConfigError),
    #[error("kubelet.topologyManagerPolicy")]
    Topology(#[from] TopologyConfigError),
}

impl PlacementError {
    /// The fields of the configuration that it is concluded from; the first is at fault.
    pub const fn fields(&self) -> &'static [&'static str] {
        match self {
            Self::CpuOptions(_) => &[
                "kubelet.cpuManagerPolicyOptions",
                "kubelet.cpuManagerPolicy",
                "kubelet.featureGates",
            ],
            Self::Cpu(_) => &[
                "kubelet.cpuManagerPolicy",
                "kubelet.cpuManagerPolicyOptions",
                "kubelet.reservedSystemCPUs",
                "kubelet.systemReserved",
                "kubelet.kubeReserved",
            ],
            Self::CpuTopology(_) => &["kubelet.cpuManagerPolicy"],
            Self::ReservedMemory(_) => &[
                "kubelet.reservedMemory",
                "kubelet.memoryManagerPolicy",
                "kubelet.systemReserved",
                "kubelet.kubeReserved",
                "kubelet.evictionHard",
            ],
            Self::Memory(_) => &["kubelet.memoryManagerPolicy", "kubelet.reservedMemory"],
            Self::Topology(_) => &[
                "kubelet.topologyManagerPolicy",
                "kubelet.topologyManagerPolicyOptions",
                "kubelet.topologyManagerScope",
            ],
        }
    }
}

/// Something given out that this machine cannot keep; it was taken back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateFault {
    #[error(transparent)]
    Cpu(CpuStateFault),
    #[error(transparent)]
    Memory(MemoryStateFault),
}

/// See the module. A value: what an admission changes is a copy, which takes the place of the
/// original when the pod is in.
#[derive(Clone, Debug)]
pub struct Managers {
    pub devices: DeviceManager,
    /// `None`: policy `none`.
    pub cpu: Option<CpuManager>,
    /// `None`: policy `None`.
    pub memory: Option<MemoryManager>,
    pub topology: TopologyManager,
    /// Feature gate `PodLevelResourceManagers`: in scope `pod`, a pod with resources of its own is
    /// given CPUs and memory as a whole.
    pub places_pod_level: bool,
}

impl Managers {
    /// With nothing given out.
    pub fn new(settings: &PlacementSettings) -> Result<Self, PlacementError> {
        let topology = topology_manager(settings)?;
        Ok(Self {
            devices: DeviceManager::new(topology.nodes(), settings.compat),
            cpu: cpu_manager(settings)?,
            memory: memory_manager(settings)?,
            topology,
            places_pod_level: settings.config.pod_level_resource_managers,
        })
    }

    /// All that stands against [`Managers::new`].
    pub fn faults(settings: &PlacementSettings) -> Vec<PlacementError> {
        [
            topology_manager(settings).err(),
            cpu_manager(settings).err(),
            memory_manager(settings).err(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Takes over what was given out before. What does not fit this machine is dropped and told. A
    /// policy that is off now gives nothing out, whatever it did before.
    pub fn adopt(&mut self, books: Books) -> Vec<StateFault> {
        let mut faults = Vec::new();
        if let Some(cpu) = &mut self.cpu {
            faults.extend(cpu.adopt(books.cpu).into_iter().map(StateFault::Cpu));
        }
        if let Some(memory) = &mut self.memory {
            let dropped = memory.adopt(books.memory);
            faults.extend(dropped.into_iter().map(StateFault::Memory));
        }
        self.devices.adopt(books.devices);
        faults
    }

    pub fn books(&self) -> Books {
        Books {
            cpu: self.cpu_state(),
            memory: self.memory_state(),
            devices: self.devices.books(),
        }
    }

    /// Empty with policy `none`, as kubelet's own file is then.
    pub fn cpu_state(&self) -> CpuState {
        let state = self.cpu.as_ref().map(CpuManager::state);
        state.cloned().unwrap_or_default()
    }

    /// Empty with policy `None`.
    pub fn memory_state(&self) -> MemoryState {
        let state = self.memory.as_ref().map(MemoryManager::state);
        state.cloned().unwrap_or_default()
    }

    /// Takes back what is held by pods and containers that `keep` does not name.
    pub fn retain(&mut self, keep: impl Fn(&PodUid, &str) -> bool) {
        if let Some(cpu) = &mut self.cpu {
            cpu.retain(&keep);
        }
        if let Some(memory) = &mut self.memory {
            memory.retain(&keep);
        }
        self.devices.retain(&keep);
    }

    /// The pods that hold something.
    pub fn holders(&self) -> BTreeSet<&PodUid> {
        let cpu = self.cpu.iter().flat_map(|it| it.state().containers.keys());
        let memory = self
            .memory
            .iter()
            .flat_map(|it| it.state().containers.keys());
        cpu.chain(memory).chain(self.devices.holders()).collect()
    }

    /// Whether a pod's CPUs and memory are taken as one piece and parted among its containers.
    pub(super) fn places_whole(&self, pod: &Pod) -> bool {
        let settings = self.topology.settings();
        settings.policy != TopologyManagerPolicy::None
            && settings.scope == TopologyManagerScope::Pod
            && self.places_pod_level
            && pod.has_pod_level_resources()
    }

    /// Whether an admitted pod and every container of it have the CPUs, the memory and the devices that they are
    /// to have alone.
    pub fn is_settled(&self, pod: &Pod) -> bool {
        self.devices.is_settled(pod)
            && self.cpu.as_ref().is_none_or(|it| {
                !self.places_whole(pod)
                    || exclusive_cpus_of_pod(pod, it.settings().manages_pod_level) == 0
                    || it.state().pods.contains_key(&pod.uid)
            })
            && pod.all_containers().all(|container| {
                let name = &container.name;
                self.cpu.as_ref().is_none_or(|it| {
                    let n = exclusive_cpus(pod, container, it.settings().manages_pod_level);
                    n == 0 || it.cpus_of(&pod.uid, name).is_some()
                }) && self.has_memory(pod, container)
            })
    }

    /// Whether a container has the memory that it is to have alone, or as its part of what its pod has.
    fn has_memory(&self, pod: &Pod, container: &Container) -> bool {
        self.memory.as_ref().is_none_or(|it| {
            it.is_settled(pod, container)
                || !self.places_whole(pod) && it.asks_for_none(pod, container)
        })
    }

    /// Whether a container of an admitted pod is to have memory of its own and has none.
    pub fn lacks_memory(&self, pod: &Pod, container: &str) -> bool {
        let mut all = pod.all_containers();
        let found = all.find(|it| it.name == container);
        found.is_some_and(|it| !self.has_memory(pod, it))
    }

    /// What the containers of a pod hold, those that hold nothing left out.
    pub fn holdings(&self, pod: &Pod) -> Vec<ContainerHoldings> {
        pod.all_containers()
            .map(|container| {
                let name = &container.name;
                let cpus = self.cpu.as_ref().and_then(|it| it.cpus_of(&pod.uid, name));
                let blocks = self.memory.as_ref();
                let blocks = blocks.and_then(|it| it.blocks_of(&pod.uid, name));
                let devices = self.devices.allocations_of(&pod.uid, name);
                ContainerHoldings {
                    container: name.clone(),
                    cpus: cpus.cloned(),
                    memory: blocks.unwrap_or_default().to_vec(),
                    devices: devices
                        .into_iter()
                        .flatten()
                        .map(|(resource, it)| (resource.clone(), it.device_ids()))
                        .collect(),
                }
            })
            .filter(|it| it.cpus.is_some() || !it.memory.is_empty() || !it.devices.is_empty())
            .collect()
    }
}

fn topology_manager(settings: &PlacementSettings) -> Result<TopologyManager, PlacementError> {
    let nodes = settings.topology.numa_nodes.iter();
    let distances = nodes.map(|(id, it)| (*id, it.distances.clone())).collect();
    let topology_settings = TopologySettings::new(&settings.config, settings.compat)?;
    Ok(TopologyManager::new(topology_settings, &distances)?)
}

/// With nothing given out. `None`: the policy gives nothing out.
pub fn cpu_manager(settings: &PlacementSettings) -> Result<Option<CpuManager>, PlacementError> {
    let config = &settings.config;
    if config.cpu_manager_policy == CpuManagerPolicy::None {
        return Ok(None);
    }
    let gates = CpuGates {
        alpha_options: config.cpu_manager_alpha_options,
        beta_options: config.cpu_manager_beta_options,
    };
    let options = CpuOptions::parse(&config.cpu_manager_policy_options, gates)
        .map_err(PlacementError::CpuOptions)?;
    let manager = CpuManager::new(CpuSettings {
        compat: settings.compat,
        topology: CpuTopology::from_topology(&settings.topology, settings.compat)?,
        options,
        topology_policy: config.topology_manager_policy,
        reservation: CpuReservation::new(
            settings.reservation.get("cpu"),
            settings.reserved_system_cpus.clone(),
        )?,
        manages_pod_level: config.pod_level_resource_managers,
    })?;
    Ok(Some(manager))
}

/// `None`: the policy gives nothing out.
fn memory_manager(settings: &PlacementSettings) -> Result<Option<MemoryManager>, PlacementError> {
    let config = &settings.config;
    if config.memory_manager_policy == MemoryManagerPolicy::None {
        return Ok(None);
    }
    let nodes = &settings.topology.numa_nodes;
    let reserved = check_reserved_memory(
        settings.compat,
        nodes.keys().copied(),
        &settings.reservation,
        &config.reserved_memory,
    )?;
    let machine: BTreeMap<_, _> = nodes
        .iter()
        .map(|(id, node)| {
            let capacity = NumaCapacity {
                memory: node.memory.unwrap_or(Bytes(0)),
                hugepages: node.hugepages.clone(),
            };
            (*id, capacity)
        })
        .collect();
    let manager = MemoryManager::new(MemorySettings {
        compat: settings.compat,
        manages_pod_level: config.pod_level_resource_managers,
        machine,
        reserved,
    })?;
    Ok(Some(manager))
}
