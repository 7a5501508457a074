//! The tables of the NUMA nodes, and how assignments fill them
//! (pkg/kubelet/cm/memorymanager/policy_static.go, v1.36: `getDefaultMachineState`,
//! `updateMachineState`, `releaseMemory`).

use std::collections::BTreeMap;

use super::errors::{MemoryConfigError, MemoryStateFault, Misfit};
use super::requests::Amounts;
use super::{MemorySettings, NumaCapacity};
use crate::config::Compat;
use crate::decide::placement::hints::Demand;
use crate::model::numa::NumaMask;
use crate::model::placement::{MemoryBlock, MemoryState, MemoryTable, NumaMemory};
use crate::model::pod::{Container, Pod, PodUid};
use crate::model::quantity::Quantity;
use crate::model::topology::NumaNodeId;

pub(super) type Nodes = BTreeMap<NumaNodeId, NumaMemory>;

/// The tables with nothing given out. Refuses to reserve more than there is, except for kubelet,
/// whose numbers wrap around.
pub(super) fn fresh(settings: &MemorySettings) -> Result<Nodes, MemoryConfigError> {
    let is_any_reserved = settings
        .reserved
        .values()
        .any(|it| it.get("memory").is_some_and(|it| *it > 0));
    if !is_any_reserved {
        return Err(MemoryConfigError::NothingReserved);
    }
    let nodes = settings.machine.iter();
    nodes
        .map(|(id, node)| {
            NumaMask::new([*id])?;
            let reserved = settings.reserved.get(id);
            Ok((*id, fresh_node(settings.compat, *id, node, reserved)?))
        })
        .collect()
}

fn fresh_node(
    compat: Compat,
    id: NumaNodeId,
    node: &NumaCapacity,
    reserved: Option<&Amounts>,
) -> Result<NumaMemory, MemoryConfigError> {
    let table = |resource: String, total: u64, elsewhere: u64| {
        let reserved = reserved.and_then(|it| it.get(&resource)).copied();
        let reserved = reserved.unwrap_or(0);
        let available = total.saturating_sub(elsewhere);
        if compat == Compat::Ballast && reserved > available {
            return Err(MemoryConfigError::ReservedTooMuch {
                numa_node: id,
                resource,
                reserved,
                available,
            });
        }
        let allocatable = match compat {
            Compat::Kubelet => total.wrapping_sub(reserved).wrapping_sub(elsewhere),
            Compat::Ballast => available - reserved,
        };
        let table = MemoryTable {
            total,
            system_reserved: reserved,
            allocatable,
            reserved: 0,
            free: allocatable,
        };
        Ok((resource, table))
    };
    let mut tables = BTreeMap::new();
    let mut in_pools = 0_u64;
    for (size, n_pages) in &node.hugepages {
        let total = size.0.saturating_mul(*n_pages);
        in_pools = in_pools.saturating_add(total);
        let resource = format!("hugepages-{}", Quantity::from_bytes(size.0));
        tables.extend([table(resource, total, 0)?]);
    }
    tables.extend([table("memory".to_owned(), node.memory.0, in_pools)?]);
    Ok(NumaMemory {
        n_assignments: 0,
        tables,
        group: vec![id],
    })
}

/// One block for each type.
pub(super) fn blocks(numa: NumaMask, amounts: &Amounts) -> Vec<MemoryBlock> {
    let block = |(resource, size): (&String, &u64)| MemoryBlock {
        numa,
        resource: resource.clone(),
        size: *size,
    };
    amounts.iter().map(block).collect()
}

/// The nodes of all the blocks.
pub(super) fn mask_of(blocks: &[MemoryBlock]) -> NumaMask {
    blocks
        .iter()
        .fold(NumaMask::EMPTY, |mask, it| mask.union(it.numa))
}

/// The nodes for which `is_meant`.
pub(super) fn mask(nodes: &Nodes, is_meant: impl Fn(&NumaMemory) -> bool) -> NumaMask {
    let meant = nodes.iter().filter(|(_, node)| is_meant(node));
    // `fresh` has refused ids without a place in a mask.
    meant
        .filter_map(|(id, _)| NumaMask::new([*id]).ok())
        .fold(NumaMask::EMPTY, NumaMask::union)
}

/// The nodes that the node gives memory together with, if there are others.
pub(super) fn group(node: &NumaMemory) -> Option<NumaMask> {
    let group = NumaMask::new(node.group.iter().copied()).ok()?;
    (group.len() > 1).then_some(group)
}

/// One demand for each type, on an amount of the tables.
pub(super) fn demands(
    nodes: &Nodes,
    of: NumaMask,
    amounts: &Amounts,
    amount: impl Fn(&MemoryTable) -> u64,
) -> Vec<Demand> {
    let demand = |(resource, need): (&String, &u64)| Demand {
        supply: of
            .iter()
            .filter_map(|id| {
                let table = nodes.get(&id)?.tables.get(resource)?;
                Some((NumaMask::new([id]).ok()?, amount(table)))
            })
            .collect(),
        need: *need,
    };
    amounts.iter().map(demand).collect()
}

/// Fills the nodes in ascending order, and makes them a group. What is left over is returned.
pub(super) fn charge(nodes: &mut Nodes, mask: NumaMask, resource: &str, mut amount: u64) -> u64 {
    let group: Vec<NumaNodeId> = mask.iter().collect();
    for id in &group {
        let Some(node) = nodes.get_mut(id) else {
            continue;
        };
        node.n_assignments = node.n_assignments.saturating_add(1);
        node.group.clone_from(&group);
        if let Some(table) = node.tables.get_mut(resource) {
            let taken = table.free.min(amount);
            table.free -= taken;
            table.reserved = table.reserved.wrapping_add(taken);
            amount -= taken;
        }
    }
    amount
}

/// Kubelet's release: in ascending order, which need not be how it was charged, so that the nodes
/// of a group drift apart while their sum stays right.
pub(super) fn give_back(nodes: &mut Nodes, block: &MemoryBlock) {
    let mut amount = block.size;
    for id in block.numa.iter() {
        let Some(node) = nodes.get_mut(&id) else {
            continue;
        };
        node.n_assignments = node.n_assignments.saturating_sub(1);
        if node.n_assignments == 0 {
            node.group = vec![id];
        }
        if let Some(table) = node.tables.get_mut(&block.resource) {
            let returned = table.reserved.min(amount);
            table.reserved -= returned;
            table.free = table.free.wrapping_add(returned);
            amount -= returned;
        }
    }
}

/// Who holds one or more blocks that the tables are charged with: a pod as a whole goes before its
/// containers.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pub(super) pod: &'a PodUid,
    pub(super) container: Option<&'a str>,
    pub(super) blocks: &'a [MemoryBlock],
}

impl Held<'_> {
    pub(super) fn fault(&self, misfit: Misfit) -> MemoryStateFault {
        MemoryStateFault {
            pod: self.pod.clone(),
            container: self.container.map(str::to_owned),
            misfit,
        }
    }
}

pub(super) fn held(state: &MemoryState) -> impl Iterator<Item = Held<'_>> {
    let pods = state.containers.iter();
    pods.flat_map(|(pod, containers)| {
        let whole = state.pods.get(pod).map(Vec::as_slice);
        held_of_pod(pod, whole, containers)
    })
}

/// What the `containers` hold, or the pod as a `whole` if it has memory.
pub(super) fn held_of_pod<'a>(
    pod: &'a PodUid,
    whole: Option<&'a [MemoryBlock]>,
    containers: &'a BTreeMap<String, Vec<MemoryBlock>>,
) -> impl Iterator<Item = Held<'a>> {
    let whole = whole.filter(|it| !it.is_empty());
    let each = containers.iter().filter(move |_| whole.is_none());
    let each = each.map(move |(container, blocks)| Held {
        pod,
        container: Some(container),
        blocks,
    });
    let whole = whole.map(|blocks| Held {
        pod,
        container: None,
        blocks,
    });
    whole.into_iter().chain(each)
}

/// Whether the machine has the nodes and the types.
pub(super) fn check_known(nodes: &Nodes, block: &MemoryBlock) -> Result<(), Misfit> {
    for id in block.numa.iter() {
        let node = nodes.get(&id).ok_or(Misfit::UnknownNumaNode)?;
        if !node.tables.contains_key(&block.resource) {
            return Err(Misfit::UnknownResource);
        }
    }
    Ok(())
}

/// The tables that follow from what is held, whatever the order it was taken in: few nodes go
/// first, as they have the least choice, and so does the lesser of two masks.
pub(super) fn rebuild<'a>(
    fresh: &Nodes,
    held: impl IntoIterator<Item = Held<'a>>,
) -> Result<Nodes, Misfit> {
    let mut blocks: Vec<&MemoryBlock> = held.into_iter().flat_map(|it| it.blocks).collect();
    blocks.sort_by_key(|it| (it.numa.len(), it.numa, &it.resource));
    let mut nodes = fresh.clone();
    for block in blocks {
        check_known(&nodes, block)?;
        let missing = charge(&mut nodes, block.numa, &block.resource, block.size);
        if missing > 0 {
            return Err(Misfit::TooMuch {
                resource: block.resource.clone(),
                missing,
            });
        }
    }
    Ok(nodes)
}

/// Takes what the container holds off the ordinary init containers before it, as far as they hold
/// it on the same nodes: it is the same memory.
pub(super) fn shrink_init_blocks(
    of_pod: &mut BTreeMap<String, Vec<MemoryBlock>>,
    pod: &Pod,
    container: &Container,
    blocks: &[MemoryBlock],
) {
    for block in blocks {
        let mut rest = block.size;
        let earlier = pod.init_containers.iter();
        for init in earlier.take_while(|it| it.name != container.name) {
            if init.is_sidecar {
                continue;
            }
            let of_init = of_pod.get_mut(&init.name).into_iter().flatten();
            for own in of_init.filter(|it| it.resource == block.resource && it.numa == block.numa) {
                let again = own.size.min(rest);
                own.size -= again;
                rest -= again;
            }
        }
    }
}

/// Kubelet's account of what init containers leave to the containers after them. It knows one pod at
/// a time, is forgotten at a restart, and is not told of releases.
#[derive(Clone, Debug, Default)]
pub(super) struct Reuse {
    pod: Option<PodUid>,
    amounts: BTreeMap<(NumaMask, String), u64>,
}

impl Reuse {
    pub(super) fn get(&self, pod: &PodUid, mask: NumaMask, resource: &str) -> u64 {
        let known = self.amounts.get(&(mask, resource.to_owned())).copied();
        known
            .filter(|_| self.pod.as_ref() == Some(pod))
            .unwrap_or(0)
    }

    pub(super) fn masks(&self, pod: &PodUid) -> impl Iterator<Item = NumaMask> {
        let is_known = self.pod.as_ref() == Some(pod);
        self.amounts
            .keys()
            .filter(move |_| is_known)
            .map(|(mask, _)| *mask)
    }

    pub(super) fn note(&mut self, pod: &Pod, container: &Container, blocks: &[MemoryBlock]) {
        if self.pod.as_ref() != Some(&pod.uid) {
            self.pod = Some(pod.uid.clone());
            self.amounts.clear();
        }
        let init = pod
            .init_containers
            .iter()
            .find(|it| it.name == container.name);
        let is_ordinary_init = init.is_some_and(|it| !it.is_sidecar);
        for block in blocks {
            let key = (block.numa, block.resource.clone());
            let left = self.amounts.entry(key).or_default();
            *left = match is_ordinary_init {
                true => block.size.max(*left),
                false => left.saturating_sub(block.size),
            };
        }
    }
}
