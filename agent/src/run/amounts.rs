//! What the node has for pods, by kubelet's settings, in the units of the status document.

use std::collections::BTreeMap;

use crate::config::KubeletConfig;
use crate::decide::eviction::thresholds::ThresholdError;
use crate::decide::node_allocatable::{Machine, NodeAllocatable, Reservations, n_pods};
use crate::decide::pod_resources::milli_cpu;
use crate::model::capacity::NodeCapacity;
use crate::model::pod::ResourceList;
use crate::model::status::ResourceStatus;
use crate::units::MilliCpu;

/// What of the node pods may have; more may be reserved than there is. The error names an eviction signal.
pub(super) fn allocatable(
    kubelet: &KubeletConfig,
    capacity: &NodeCapacity,
) -> Result<NodeAllocatable, ThresholdError> {
    let pools = capacity.hugepages.iter();
    let machine = Machine {
        n_cpus: capacity.n_cpus,
        memory: capacity.memory,
        hugepages: pools.map(|(size, n)| (size.0, *n)).collect(),
        ephemeral_storage: capacity.ephemeral_storage,
        max_pid: capacity.pids,
    };
    Ok(NodeAllocatable::new(&machine, &Reservations::new(kubelet)?))
}

/// Capacity, and what of it is kept from pods and is left for them, by the name of the resource.
pub(super) fn resources(
    allocatable: &NodeAllocatable,
    kubelet: &KubeletConfig,
    n_cpus: u32,
) -> BTreeMap<String, ResourceStatus> {
    let n_pods = n_pods(n_cpus, kubelet.max_pods, kubelet.pods_per_core);
    let capacity = allocatable.node_capacity(n_pods);
    let free = allocatable.node_allocatable(n_pods);
    let names = capacity.keys();
    let amounts = names.map(|name| {
        let [total, left] = [&capacity, &free].map(|it| amount(it, name));
        let resource = ResourceStatus {
            capacity: total,
            reserved: Some(total.saturating_sub(left)),
            allocatable: Some(left),
            ..ResourceStatus::default()
        };
        (name.clone(), resource)
    });
    amounts.collect()
}

/// In the unit of [`ResourceStatus`]: thousandths for CPU, units for the rest.
pub(super) fn amount(list: &ResourceList, name: &str) -> u64 {
    match name {
        "cpu" => {
            let MilliCpu(milli) = milli_cpu(list);
            milli
        }
        _ => list.get(name).map_or(0, |it| it.units()),
    }
}
