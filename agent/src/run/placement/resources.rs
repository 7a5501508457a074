//! Who holds what, for the pod resources API.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Loop;
use super::holds;
use crate::model::numa::NumaMask;
use crate::model::pod::Pod;
use crate::model::pod_resources::{
    AllocatableResources, ContainerKind, ContainerResources, DeviceIds, NodeResources, PodResources,
};

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
                let nodes = device.numa.unwrap_or(NumaMask::EMPTY);
                let mut nodes: Vec<_> = nodes.iter().map(Some).collect();
                if nodes.is_empty() {
                    nodes.push(None);
                }
                for node in nodes {
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
