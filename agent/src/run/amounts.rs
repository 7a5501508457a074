//! What the node has for pods, by kubelet's settings, and what they request of it, in the units of the status document.

use std::borrow::Borrow;
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
        held_hugepages: capacity.held_hugepages,
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

/// Fills in what pods request together, given the requests of each, and how many they are.
pub(super) fn set_requested<L: Borrow<ResourceList>>(
    resources: &mut BTreeMap<String, ResourceStatus>,
    pods: impl IntoIterator<Item = L>,
) {
    let mut requested: BTreeMap<String, u64> = BTreeMap::new();
    for requests in pods {
        let requests = requests.borrow();
        for name in requests.keys() {
            let sum = requested.entry(name.clone()).or_default();
            *sum = sum.saturating_add(amount(requests, name));
        }
        *requested.entry("pods".to_owned()).or_default() += 1;
    }
    for (name, resource) in resources {
        resource.requested = Some(requested.get(name).copied().unwrap_or(0));
    }
}

/// In the unit of [`ResourceStatus`]: thousandths for CPU, units for the rest.
fn amount(list: &ResourceList, name: &str) -> u64 {
    match name {
        "cpu" => {
            let MilliCpu(milli) = milli_cpu(list);
            milli
        }
        _ => list.get(name).map_or(0, |it| it.units()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pods_request_is_summed_by_resource_and_they_are_counted() {
        let list = |cpu: &str, memory: &str| {
            let amounts = [("cpu", cpu), ("memory", memory), ("example.com/gpu", "1")];
            let amounts = amounts.into_iter().filter(|(_, it)| !it.is_empty());
            let amounts =
                amounts.map(|(name, it)| (name.to_owned(), it.parse().expect("given here")));
            amounts.collect::<ResourceList>()
        };
        let names = ["cpu", "memory", "hugepages-2Mi", "pods"];
        let mut resources: BTreeMap<String, ResourceStatus> = names
            .map(|it| (it.to_owned(), ResourceStatus::default()))
            .into();
        set_requested(
            &mut resources,
            [list("100m", "16Mi"), list("1", ""), list("", "1Gi")],
        );
        let requested: Vec<_> = resources
            .iter()
            .map(|(name, it)| (name.as_str(), it.requested))
            .collect();
        let right = [
            ("cpu", Some(1100)),
            ("hugepages-2Mi", Some(0)),
            ("memory", Some(1040 << 20)),
            ("pods", Some(3)),
        ];
        assert_eq!(requested, right);
    }
}
