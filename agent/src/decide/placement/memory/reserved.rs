//! `reservedMemory`: how much of each NUMA node pods cannot have
//! (pkg/kubelet/cm/memorymanager/memory_manager.go, v1.36: `validateReservedMemory`).

use std::collections::BTreeMap;

use super::requests::is_memory;
use crate::config::{Compat, NumaReservation};
use crate::model::pod::ResourceList;
use crate::model::quantity::{Format, Quantity};
use crate::model::topology::NumaNodeId;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservedMemoryError {
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    UnknownNumaNode(NumaNodeId),
    #[error(
        "the total amount \"{total}\" of type \"{resource}\" is not equal to the value \"{reservation}\" determined by Node Allocatable feature"
    )]
    TotalDiffers {
        resource: String,
        total: String,
        reservation: String,
    },
    #[error("could not convert the {resource} reserved on NUMA node {numa_node} to int64")]
    NotInt64 {
        numa_node: NumaNodeId,
        resource: String,
    },
}

/// Bytes reserved, for every NUMA node of the machine. What the entries have in all must be the
/// node-allocatable reservation, which has the threshold of hard eviction in it.
pub fn check_reserved_memory(
    compat: Compat,
    numa_nodes: impl IntoIterator<Item = NumaNodeId>,
    reservation: &ResourceList,
    entries: &[NumaReservation],
) -> Result<BTreeMap<NumaNodeId, BTreeMap<String, u64>>, ReservedMemoryError> {
    let mut reserved: BTreeMap<NumaNodeId, BTreeMap<String, u64>> = numa_nodes
        .into_iter()
        .map(|it| (it, BTreeMap::new()))
        .collect();
    let zero = || Quantity::from_units(0, Format::DecimalSi);
    let mut totals: BTreeMap<&str, Quantity> = reservation
        .keys()
        .filter(|it| is_memory(it))
        .map(|it| (it.as_str(), zero()))
        .collect();
    for entry in entries {
        if !reserved.contains_key(&entry.numa_node) {
            return Err(ReservedMemoryError::UnknownNumaNode(entry.numa_node));
        }
        for (resource, amount) in &entry.limits {
            let total = totals.entry(resource).or_insert_with(zero);
            *total = total.plus(amount);
        }
    }
    for (resource, total) in totals {
        let reservation = reservation.get(resource).cloned().unwrap_or_else(zero);
        if total != reservation {
            return Err(ReservedMemoryError::TotalDiffers {
                resource: resource.to_owned(),
                total: total.to_string(),
                reservation: reservation.to_string(),
            });
        }
    }
    for entry in entries {
        let of_node = reserved.entry(entry.numa_node).or_default();
        for (resource, amount) in &entry.limits {
            match compat {
                Compat::Kubelet => {
                    let bytes = amount.as_i64().and_then(|it| u64::try_from(it).ok());
                    let bytes = bytes.ok_or_else(|| ReservedMemoryError::NotInt64 {
                        numa_node: entry.numa_node,
                        resource: resource.clone(),
                    })?;
                    of_node.insert(resource.clone(), bytes);
                }
                Compat::Ballast => {
                    let sum = of_node.entry(resource.clone()).or_default();
                    *sum = sum.saturating_add(amount.units());
                }
            }
        }
    }
    Ok(reserved)
}
