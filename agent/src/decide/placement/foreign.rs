//! What the managers of another program have given out, as its state files say it. Nothing is judged: what would not
//! fit this machine is shown like the rest.

use std::collections::{BTreeMap, BTreeSet};

use super::memory::release_pod;
use super::summary::{allocated, exclusive, held_by_node, numa_nodes, policies};
use crate::config::PlacementConfig;
use crate::model::admission::ContainerHoldings;
use crate::model::cpuset::CpuSet;
use crate::model::kubelet_state::OfPolicy;
use crate::model::placement::{CpuState, DeviceState, MemoryState};
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::status::{CpuPools, PlacementStatus};
use crate::model::topology::{NumaNodeId, Topology};

/// Each as its file has it; `None`: there is none, or it cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignBooks {
    pub cpu: Option<OfPolicy<CpuState>>,
    pub memory: Option<OfPolicy<MemoryState>>,
    pub devices: Option<DeviceState>,
}

impl ForeignBooks {
    fn cpus(&self) -> Option<&CpuState> {
        self.cpu.as_ref()?.given_out()
    }

    fn memory(&self) -> Option<&MemoryState> {
        self.memory.as_ref()?.given_out()
    }

    /// `config` has what no file says. `reserved`: the CPUs that are kept for the system, if they are known. `pod_of`:
    /// `None` of one that is gone: of devices and memory, which are taken back only when somebody else wants them, it
    /// holds nothing any more.
    pub fn summary<'a>(
        &self,
        config: &PlacementConfig,
        reserved: Option<&CpuSet>,
        topology: &Topology,
        pod_of: impl Fn(&PodUid) -> Option<&'a PodRef>,
    ) -> PlacementStatus {
        let mut policies = policies(config);
        if let Some(cpu) = &self.cpu {
            policies.cpu_manager.clone_from(&cpu.policy);
        }
        if let Some(memory) = &self.memory {
            policies.memory_manager.clone_from(&memory.policy);
        }
        let is_there = |uid: &PodUid| pod_of(uid).is_some();
        let free = self.cpus().zip(reserved);
        let free = free.map(|(it, reserved)| it.shared_pool.difference(reserved));
        let mut devices = BTreeMap::new();
        if let Some(state) = &self.devices {
            let there = state.containers.iter().filter(|(uid, _)| is_there(uid));
            devices = allocated(there.flat_map(|(_, it)| it.values()));
            for (resource, healthy) in &state.registered {
                let counts = devices.entry(resource.clone()).or_default();
                counts.allocatable = healthy.len() as u64;
            }
        }
        PlacementStatus {
            policies,
            holdings: self.holdings(is_there),
            cpus: self.cpus().map(|it| CpuPools {
                shared: it.shared_pool.clone(),
                reserved: reserved.cloned(),
                exclusive: exclusive(it, &pod_of),
            }),
            numa_nodes: numa_nodes(topology, free.as_ref(), self.memory_of(is_there).as_ref()),
            devices,
        }
    }

    /// As the file has it, had the pods that are gone given theirs back.
    fn memory_of(&self, is_there: impl Fn(&PodUid) -> bool) -> Option<MemoryState> {
        let mut state = self.memory()?.clone();
        let holders = state.containers.keys().chain(state.pods.keys());
        let holders: BTreeSet<PodUid> = holders.cloned().collect();
        for pod in holders.iter().filter(|it| !is_there(it)) {
            release_pod(&mut state, pod);
        }
        Some(state)
    }

    /// How many devices the containers of pods that are there hold, by resource and NUMA node.
    pub fn devices_held(
        &self,
        is_there: impl Fn(&PodUid) -> bool,
    ) -> BTreeMap<(String, Option<NumaNodeId>), u64> {
        let of_pods = self.devices.iter().flat_map(|it| &it.containers);
        let there = of_pods.filter(|(uid, _)| is_there(uid));
        held_by_node(there.flat_map(|(_, it)| it.values()))
    }

    /// What the containers of pods that are there hold of their own.
    fn holdings(
        &self,
        is_there: impl Fn(&PodUid) -> bool,
    ) -> BTreeMap<PodUid, Vec<ContainerHoldings>> {
        let mut all: BTreeMap<&PodUid, BTreeMap<&str, ContainerHoldings>> = BTreeMap::new();
        let mut hold = |uid, name, take: &dyn Fn(&mut ContainerHoldings)| {
            if is_there(uid) {
                take(all.entry(uid).or_default().entry(name).or_default());
            }
        };
        for (uid, containers) in self.cpus().iter().flat_map(|it| &it.containers) {
            for (name, cpus) in containers {
                hold(uid, name.as_str(), &|it| it.cpus = Some(cpus.clone()));
            }
        }
        for (uid, containers) in self.memory().iter().flat_map(|it| &it.containers) {
            for (name, blocks) in containers {
                hold(uid, name.as_str(), &|it| it.memory.clone_from(blocks));
            }
        }
        for (uid, containers) in self.devices.iter().flat_map(|it| &it.containers) {
            for (name, resources) in containers {
                let ids = resources.iter();
                let ids = ids.map(|(resource, it)| (resource.clone(), it.device_ids()));
                let ids: BTreeMap<_, _> = ids.collect();
                hold(uid, name.as_str(), &|it| it.devices.clone_from(&ids));
            }
        }
        let of_pod = |containers: BTreeMap<&str, ContainerHoldings>| {
            let containers = containers.into_iter();
            let named = containers.map(|(name, it)| ContainerHoldings {
                container: name.to_owned(),
                ..it
            });
            named.collect()
        };
        let pods = all.into_iter();
        pods.map(|(uid, it)| (uid.clone(), of_pod(it))).collect()
    }

    /// The CPUs of a container: its own, or those of the shared pool. `None`: it is not restricted, or that is not
    /// known.
    pub fn cpus_of(&self, pod: &PodUid, container: &str) -> Option<&CpuSet> {
        let state = self.cpus().filter(|_| !container.is_empty())?;
        let own = state.containers.get(pod).and_then(|it| it.get(container));
        Some(own.unwrap_or(&state.shared_pool))
    }

    /// Whether a pod has CPUs that `is_there` does not know: they are taken back in a moment.
    pub fn is_behind(&self, is_there: impl Fn(&PodUid) -> bool) -> bool {
        self.cpus().is_some_and(|it| {
            let mut holders = it.containers.keys().chain(it.pods.keys());
            holders.any(|it| !is_there(it))
        })
    }
}
