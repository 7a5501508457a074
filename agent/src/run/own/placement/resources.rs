//! Who holds what, for the pod resources API.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Loop;
use super::holds;
use crate::decide::placement::summary::held_by_node;
use crate::model::cpuset::CpuSet;
use crate::model::device::Device;
use crate::model::numa::NumaMask;
use crate::model::pod::Pod;
use crate::model::pod_resources::{
    AllocatableResources, ContainerKind, ContainerResources, DeviceIds, NodeResources, PodResources,
};
use crate::model::topology::NumaNodeId;
use crate::observe::metrics::labels::Boundary;
use crate::observe::metrics::{ContainerLabels, DeviceCounts, PlacementGauges, PoolCpus};

impl Loop {
    /// Publishes the books, if they changed since the last time.
    pub(in crate::run) fn publish_resources(&mut self) {
        if !std::mem::take(&mut self.placement.is_unpublished) {
            return;
        }
        let pods = self.pods.values().filter(|it| it.is_active() && holds(it));
        let resources = NodeResources {
            pods: pods
                .map(|entry| {
                    let pod = &entry.state.pod;
                    let name = (pod.namespace.clone(), pod.name.clone());
                    (name, self.pod_resources(pod))
                })
                .collect(),
            allocatable: self.allocatable_resources(),
        };
        self.resources.send_replace(Some(Arc::new(resources)));
        self.metrics.set_placement(&self.placement_gauges());
        let counts = self.device_counts();
        let counts = counts
            .iter()
            .map(|((resource, node), counts)| (resource.as_str(), *node, *counts));
        self.metrics.set_devices(counts);
    }

    /// By resource and NUMA node; a device of two nodes counts at both.
    fn device_counts(&self) -> BTreeMap<(String, Option<NumaNodeId>), DeviceCounts> {
        let managers = &self.placement.managers;
        let mut counts: BTreeMap<_, DeviceCounts> = BTreeMap::new();
        for (resource, it) in managers.devices.resources() {
            for device in it.devices.values() {
                for node in places(device) {
                    let count = counts.entry((resource.clone(), node)).or_default();
                    *count.n_unhealthy.get_or_insert(0) += u64::from(!device.is_healthy);
                }
            }
        }
        let holders = managers.devices.containers().iter();
        let here = holders.filter(|(uid, _)| self.pods.contains_key(uid));
        for (place, n) in held_by_node(here.flat_map(|(_, it)| it.values())) {
            let count = counts.entry(place).or_default();
            count.n_allocated = n;
            // Without a plugin none is known to be.
            count.n_unhealthy.get_or_insert(0);
        }
        counts
    }

    fn placement_gauges(&self) -> PlacementGauges {
        let managers = &self.placement.managers;
        let mut gauges = PlacementGauges::default();
        if let Some(cpu) = &managers.cpu {
            let mut exclusive = CpuSet::new();
            for (uid, containers) in &cpu.state().containers {
                let Some(entry) = self.pods.get(uid) else {
                    continue;
                };
                for (container, cpus) in containers {
                    exclusive = exclusive.union(cpus);
                    let labels = ContainerLabels::new(&entry.pod_ref, container, "");
                    let key = labels.to_key();
                    let nodes = cpu.settings().topology.count_by_node(cpus).into_keys();
                    if let Ok(nodes) = NumaMask::new(nodes) {
                        gauges.numa_nodes.insert(key.clone(), nodes);
                    }
                    gauges.exclusive.insert(key, cpus.len() as u64);
                }
            }
            let available = cpu.available();
            gauges.pools = Some(PoolCpus {
                shared: cpu.shared_pool().len(),
                reserved: Some(cpu.reserved().len()),
                exclusive: exclusive.len(),
                free: Some(available.len()),
            });
            for (id, node) in &self.node.topology.numa_nodes {
                let of_node = |cpus: &CpuSet| cpus.intersection(&node.cpus).len() as u64;
                gauges.free_cpus.insert(*id, of_node(&available));
                gauges.exclusive_by_node.insert(*id, of_node(&exclusive));
            }
            let misaligned = cpu.misaligned();
            gauges.misaligned = [
                (Boundary::Core, misaligned.core),
                (Boundary::Uncore, misaligned.uncore),
                (Boundary::Socket, misaligned.socket),
                (Boundary::Numa, misaligned.numa),
            ]
            .into_iter()
            .filter_map(|(boundary, n)| Some((boundary, n?)))
            .collect();
        }
        if let Some(memory) = &managers.memory {
            for (uid, containers) in &memory.state().containers {
                let Some(entry) = self.pods.get(uid) else {
                    continue;
                };
                for (container, blocks) in containers {
                    let nodes = blocks.iter().map(|it| it.numa);
                    if let Some(nodes) = nodes.reduce(NumaMask::union) {
                        let labels = ContainerLabels::new(&entry.pod_ref, container, "");
                        let key = labels.to_key();
                        gauges.numa_nodes.insert(key, nodes);
                    }
                }
            }
            for (id, node) in &memory.state().nodes {
                for (kind, table) in &node.tables {
                    gauges.free_bytes.insert((*id, kind.clone()), table.free);
                }
            }
        }
        gauges
    }

    fn pod_resources(&self, pod: &Pod) -> PodResources {
        let sidecars = pod.init_containers.iter().filter(|it| it.is_sidecar);
        let sidecars = sidecars.map(|it| (it, ContainerKind::RestartableInit));
        let apps = pod.containers.iter().map(|it| (it, ContainerKind::App));
        let managers = &self.placement.managers;
        let containers = sidecars.chain(apps).map(|(container, kind)| {
            let name = &container.name;
            let cpus = managers.cpu.as_ref();
            let memory = managers.memory.as_ref();
            let devices = managers.devices.allocations_of(&pod.uid, name);
            ContainerResources {
                name: name.clone(),
                kind,
                devices: devices
                    .into_iter()
                    .flatten()
                    .map(|(resource, it)| (resource.clone(), it.ids.clone()))
                    .collect(),
                cpus: cpus
                    .and_then(|it| it.cpus_of(&pod.uid, name))
                    .cloned()
                    .unwrap_or_default(),
                memory: memory
                    .and_then(|it| it.blocks_of(&pod.uid, name))
                    .unwrap_or_default()
                    .to_vec(),
            }
        });
        PodResources {
            containers: containers.collect(),
        }
    }

    fn allocatable_resources(&self) -> AllocatableResources {
        let managers = &self.placement.managers;
        let mut devices = DeviceIds::new();
        for (resource, it) in managers.devices.resources() {
            let mut by_node: BTreeMap<_, std::collections::BTreeSet<String>> = BTreeMap::new();
            for device in it.devices.values().filter(|it| it.is_healthy) {
                for node in places(device) {
                    by_node.entry(node).or_default().insert(device.id.clone());
                }
            }
            devices.insert(resource.clone(), by_node);
        }
        AllocatableResources {
            devices,
            cpus: managers
                .cpu
                .as_ref()
                .map(|it| it.allocatable())
                .unwrap_or_default(),
            memory: managers
                .memory
                .as_ref()
                .map(|it| it.allocatable())
                .unwrap_or_default(),
        }
    }
}

/// The NUMA nodes of a device; `None` once for one that has none.
fn places(device: &Device) -> Vec<Option<NumaNodeId>> {
    let nodes = device.numa.unwrap_or(NumaMask::EMPTY);
    match nodes.is_empty() {
        true => vec![None],
        false => nodes.iter().map(Some).collect(),
    }
}
