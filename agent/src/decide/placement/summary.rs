//! What the managers have given out and what is left, in the form of the status document.

use std::collections::{BTreeMap, BTreeSet};

use super::cpu::CpuManager;
use super::managers::{Managers, PlacementSettings};
use super::memory::MemoryManager;
use crate::config::PlacementConfig;
use crate::model::cpuset::CpuSet;
use crate::model::placement::{CpuState, DeviceAllocation, MemoryState};
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::status::{
    CpuPools, DeviceCounts, ExclusiveCpus, NumaAmounts, NumaNodeStatus, PlacementPolicies,
    PlacementStatus,
};
use crate::model::topology::{NumaNodeId, Topology};

/// See the module. `pod_of`: `None` of one that is gone.
pub fn summary<'a>(
    managers: &Managers,
    settings: &PlacementSettings,
    pod_of: impl Fn(&PodUid) -> Option<&'a PodRef>,
) -> PlacementStatus {
    PlacementStatus {
        policies: policies(&settings.config),
        cpus: managers.cpu.as_ref().map(|cpu| CpuPools {
            shared: cpu.shared_pool().clone(),
            reserved: Some(cpu.reserved().clone()),
            exclusive: exclusive(cpu.state(), pod_of),
        }),
        numa_nodes: numa_nodes(
            &settings.topology,
            managers.cpu.as_ref().map(CpuManager::available).as_ref(),
            managers.memory.as_ref().map(MemoryManager::state),
        ),
        devices: devices(managers),
        holdings: BTreeMap::new(),
    }
}

pub(super) fn policies(config: &PlacementConfig) -> PlacementPolicies {
    PlacementPolicies {
        cpu_manager: config.cpu_manager_policy.as_str().to_owned(),
        cpu_manager_options: config.cpu_manager_policy_options.clone(),
        memory_manager: config.memory_manager_policy.as_str().to_owned(),
        topology_manager: config.topology_manager_policy.as_str().to_owned(),
        topology_manager_scope: config.topology_manager_scope.as_str().to_owned(),
        topology_manager_options: config.topology_manager_policy_options.clone(),
    }
}

/// `pod_of` as above.
pub(super) fn exclusive<'a>(
    state: &CpuState,
    pod_of: impl Fn(&PodUid) -> Option<&'a PodRef>,
) -> Vec<ExclusiveCpus> {
    let of_pods = state.pods.iter().map(|(uid, cpus)| (uid, None, cpus));
    let of_containers = state.containers.iter().flat_map(|(uid, containers)| {
        let containers = containers.iter();
        containers.map(move |(name, cpus)| (uid, Some(name.clone()), cpus))
    });
    let mut exclusive: Vec<ExclusiveCpus> = of_pods
        .chain(of_containers)
        .map(|(uid, container, cpus)| ExclusiveCpus {
            uid: uid.clone(),
            pod: pod_of(uid).map(ToString::to_string),
            container,
            cpus: cpus.clone(),
        })
        .collect();
    exclusive.sort_by(|a, b| (&a.uid, &a.container).cmp(&(&b.uid, &b.container)));
    exclusive
}

/// `available`: CPUs that can be given to one container alone.
pub(super) fn numa_nodes(
    topology: &Topology,
    available: Option<&CpuSet>,
    memory: Option<&MemoryState>,
) -> Vec<NumaNodeStatus> {
    let nodes = topology.numa_nodes.iter();
    nodes
        .map(|(id, node)| {
            let tables = memory.and_then(|it| it.nodes.get(id)).map(|it| &it.tables);
            NumaNodeStatus {
                id: *id,
                cpus: node.cpus.clone(),
                free_cpus: available.map(|it| it.intersection(&node.cpus)),
                memory: tables
                    .into_iter()
                    .flatten()
                    .map(|(resource, table)| {
                        let amounts = NumaAmounts {
                            allocatable: table.allocatable,
                            reserved: table.reserved,
                            free: table.free,
                            system_reserved: Some(table.system_reserved),
                        };
                        (resource.clone(), amounts)
                    })
                    .collect(),
            }
        })
        .collect()
}

/// How many devices of each resource are given out. Init containers lend theirs to those after them: a device counts
/// once.
pub(super) fn allocated<'a>(
    containers: impl IntoIterator<Item = &'a BTreeMap<String, DeviceAllocation>>,
) -> BTreeMap<String, DeviceCounts> {
    let mut held: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (resource, allocation) in containers.into_iter().flatten() {
        let ids = allocation.ids.values().flatten().map(String::as_str);
        held.entry(resource).or_default().extend(ids);
    }
    let counts = held.into_iter().map(|(resource, ids)| {
        let counts = DeviceCounts {
            allocated: ids.len() as u64,
            ..DeviceCounts::default()
        };
        (resource.to_owned(), counts)
    });
    counts.collect()
}

/// As [`allocated`], by resource and NUMA node: a device of two nodes counts at both.
pub fn held_by_node<'a>(
    containers: impl IntoIterator<Item = &'a BTreeMap<String, DeviceAllocation>>,
) -> BTreeMap<(String, Option<NumaNodeId>), u64> {
    let mut held: BTreeMap<(&str, Option<NumaNodeId>), BTreeSet<&str>> = BTreeMap::new();
    for (resource, allocation) in containers.into_iter().flatten() {
        for (node, ids) in &allocation.ids {
            let of_node = held.entry((resource, *node)).or_default();
            of_node.extend(ids.iter().map(String::as_str));
        }
    }
    let counts = held.into_iter();
    counts
        .map(|((resource, node), ids)| ((resource.to_owned(), node), ids.len() as u64))
        .collect()
}

fn devices(managers: &Managers) -> BTreeMap<String, DeviceCounts> {
    let containers = managers.devices.containers().values();
    let mut devices = allocated(containers.flat_map(BTreeMap::values));
    // Without a plugin there is none to be had.
    for counts in devices.values_mut() {
        counts.capacity = Some(0);
    }
    for (resource, it) in managers.devices.capacity() {
        let counts = devices.entry(resource).or_default();
        counts.capacity = Some(it.capacity as u64);
        counts.allocatable = it.allocatable as u64;
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_an_init_container_lends_counts_once_and_one_of_two_nodes_at_both() {
        let [first, second] = [0, 1].map(|it| Some(NumaNodeId(it)));
        let ids = |of: &[&str]| of.iter().map(|it| (*it).to_owned()).collect();
        let held = |by_node: &[(Option<NumaNodeId>, &[&str])]| {
            let by_node = by_node.iter().map(|(node, of)| (*node, ids(of)));
            let allocation = DeviceAllocation {
                ids: by_node.collect(),
                response: Vec::new(),
            };
            BTreeMap::from([("a.b/c".to_owned(), allocation)])
        };
        let containers = [
            held(&[(first, &["x", "y"]), (second, &["y"])]),
            held(&[(first, &["x"]), (None, &["z"])]),
        ];
        let by_node = held_by_node(&containers);
        let by_node: Vec<_> = by_node.iter().map(|((_, node), n)| (*node, *n)).collect();
        assert_eq!(by_node, [(None, 1), (first, 2), (second, 1)]);
        assert_eq!(allocated(&containers)["a.b/c"].allocated, 3);
    }
}
