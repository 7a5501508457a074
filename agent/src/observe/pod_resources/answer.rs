//! The snapshot as messages.

use tonic::Status;

use crate::grpc::messages::pod_resources::{
    AllocatableResponse, ContainerDevices, ContainerMemory, ContainerResources as WireContainer,
    GetRequest, GetResponse, ListResponse, NumaNode, PodResources as WirePod, Topology,
};
use crate::model::cpuset::CpuSet;
use crate::model::placement::MemoryBlock;
use crate::model::pod_resources::{
    ContainerKind, ContainerResources, DeviceIds, NodeResources, PodResources,
};
use crate::model::topology::NumaNodeId;

pub(super) fn list(node: &NodeResources) -> ListResponse {
    let pods = node.pods.iter().map(|(name, it)| pod(name, it));
    ListResponse {
        pods: pods.collect(),
    }
}

/// App containers and their devices alone, without where these are.
pub(super) fn list_v1alpha1(node: &NodeResources) -> ListResponse {
    let container = |it: &ContainerResources| {
        let mut devices = devices(&it.devices);
        for device in &mut devices {
            device.topology = None;
        }
        WireContainer {
            name: it.name.clone(),
            devices,
            ..WireContainer::default()
        }
    };
    let pods = node.pods.iter().map(|((namespace, name), it)| {
        let apps = it.containers.iter();
        let apps = apps.filter(|it| it.kind == ContainerKind::App);
        WirePod {
            name: name.clone(),
            namespace: namespace.clone(),
            containers: apps.map(container).collect(),
        }
    });
    ListResponse {
        pods: pods.collect(),
    }
}

pub(super) fn get(node: &NodeResources, request: &GetRequest) -> Result<GetResponse, Status> {
    let key = (request.pod_namespace.clone(), request.pod_name.clone());
    match node.pods.get(&key) {
        Some(it) => Ok(GetResponse {
            pod: Some(pod(&key, it)),
        }),
        // The code of an error without one, as Go's.
        None => Err(Status::unknown(format!(
            "pod {} in namespace {} not found",
            request.pod_name, request.pod_namespace
        ))),
    }
}

pub(super) fn allocatable(node: &NodeResources) -> AllocatableResponse {
    let it = &node.allocatable;
    AllocatableResponse {
        devices: devices(&it.devices),
        cpu_ids: cpu_ids(&it.cpus),
        memory: it.memory.iter().map(memory).collect(),
    }
}

fn pod((namespace, name): &(String, String), it: &PodResources) -> WirePod {
    let container = |it: &ContainerResources| WireContainer {
        name: it.name.clone(),
        devices: devices(&it.devices),
        cpu_ids: cpu_ids(&it.cpus),
        memory: it.memory.iter().map(memory).collect(),
    };
    WirePod {
        name: name.clone(),
        namespace: namespace.clone(),
        containers: it.containers.iter().map(container).collect(),
    }
}

/// One entry per device and NUMA node.
fn devices(ids: &DeviceIds) -> Vec<ContainerDevices> {
    let mut entries = Vec::new();
    for (resource, by_node) in ids {
        for (node, ids) in by_node {
            entries.extend(ids.iter().map(|id| ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id.clone()],
                topology: node.map(|it| topology([it])),
            }));
        }
    }
    entries
}

fn cpu_ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(|it| i64::from(it.0)).collect()
}

fn memory(block: &MemoryBlock) -> ContainerMemory {
    ContainerMemory {
        memory_type: block.resource.clone(),
        size: block.size,
        topology: Some(topology(block.numa.iter())),
    }
}

fn topology(nodes: impl IntoIterator<Item = NumaNodeId>) -> Topology {
    let node = |it: NumaNodeId| NumaNode {
        id: i64::from(it.0),
    };
    Topology {
        nodes: nodes.into_iter().map(node).collect(),
    }
}
