//! The memory manager (pkg/kubelet/cm/memorymanager/policy_static.go, v1.36): which NUMA nodes the
//! memory and the huge pages of a Guaranteed pod come from.
//!
//! A NUMA node serves containers that fit on it alone, or one fixed group of nodes that share what
//! they have; never both, and it changes sides only when nobody holds anything of it.
//!
//! Invariants, unless `compat: kubelet` asks for the recorded drift:
//! - The tables are what the assignments give ([`books::rebuild`]) and nothing else: no history, so
//!   nothing leaks, and a restart cannot disagree.
//! - No node gives more than it has.
//! - What an init container holds and a later container can use again is read off its blocks.

mod books;
mod choices;
mod errors;
mod pod_level;
mod requests;
mod reserved;
mod restore;
mod search;

use std::collections::BTreeMap;

use self::books::{Held, Nodes, Reuse};
pub use self::errors::{
    MemoryConfigError, MemoryError, MemoryStateError, MemoryStateFault, Misfit,
};
use self::requests::{Amounts, Requests};
pub use self::reserved::{ReservedMemoryError, check_reserved_memory};
use crate::config::Compat;
use crate::model::capacity::HugePages;
use crate::model::numa::{Hint, NumaMask};
use crate::model::placement::{MemoryBlock, MemoryState, MemoryTable};
use crate::model::pod::{Container, Pod, PodUid};
use crate::model::topology::NumaNodeId;
use crate::units::Bytes;

/// What one NUMA node has, before anything is reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaCapacity {
    /// `MemTotal` of the node; 0 where the kernel does not say, so that nothing is given out.
    pub memory: Bytes,
    pub hugepages: HugePages,
}

#[derive(Clone, Debug)]
pub struct MemorySettings {
    pub compat: Compat,
    /// Feature gates `PodLevelResources` and `PodLevelResourceManagers`, both. Off: pods with
    /// `spec.resources` are left alone.
    pub manages_pod_level: bool,
    pub machine: BTreeMap<NumaNodeId, NumaCapacity>,
    /// From [`check_reserved_memory`].
    pub reserved: BTreeMap<NumaNodeId, BTreeMap<String, u64>>,
}

/// The books of policy `Static`.
#[derive(Clone, Debug)]
pub struct MemoryManager {
    compat: Compat,
    requests: Requests,
    /// The tables with nothing given out.
    fresh: Nodes,
    state: MemoryState,
    /// Stays empty unless `compat: kubelet`.
    reuse: Reuse,
}

/// What shall be placed: a container, or a pod as a whole.
struct Ask<'a> {
    pod: &'a Pod,
    /// `None`: the pod.
    container: Option<&'a Container>,
    amounts: Amounts,
}

impl MemoryManager {
    /// With nothing given out.
    pub fn new(settings: MemorySettings) -> Result<Self, MemoryConfigError> {
        let fresh = books::fresh(&settings)?;
        let state = MemoryState {
            nodes: fresh.clone(),
            ..MemoryState::default()
        };
        Ok(Self {
            compat: settings.compat,
            requests: Requests {
                compat: settings.compat,
                manages_pod_level: settings.manages_pod_level,
            },
            fresh,
            state,
            reuse: Reuse::default(),
        })
    }

    pub fn state(&self) -> &MemoryState {
        &self.state
    }

    /// Whether the containers of the pod are to have memory of their own.
    pub fn is_managed(&self, pod: &Pod) -> bool {
        self.requests.is_managed(pod)
    }

    /// What a container holds; `None` if it was never placed.
    pub fn blocks_of(&self, pod: &PodUid, container: &str) -> Option<&[MemoryBlock]> {
        let blocks = self.state.containers.get(pod)?.get(container)?;
        Some(blocks)
    }

    /// Whether the container has what it is to have, or has had it.
    pub fn is_settled(&self, pod: &Pod, container: &Container) -> bool {
        !self.is_managed(pod)
            || self.blocks_of(&pod.uid, &container.name).is_some()
            || self.is_over(pod, container)
    }

    /// Whether the container asks for no memory of its own, and uses what its pod has.
    pub fn asks_for_none(&self, pod: &Pod, container: &Container) -> bool {
        let amounts = self.requests.of_container(pod, container);
        self.compat == Compat::Ballast && amounts.is_ok_and(|it| it.is_empty())
    }

    /// An init container whose memory went back when the next one started: memory is given to all of a pod at once,
    /// and taken from these alone. Kubelet gives it to them again when it starts.
    fn is_over(&self, pod: &Pod, container: &Container) -> bool {
        let mut init = pod.init_containers.iter();
        let is_init = init.any(|it| it.name == container.name && !it.is_sidecar);
        let mut apps = pod.containers.iter();
        self.compat == Compat::Ballast
            && is_init
            && apps.all(|it| self.blocks_of(&pod.uid, &it.name).is_some())
    }

    /// `cpuset.mems` of a container; `None` leaves it as it is.
    pub fn numa_nodes_of(&self, pod: &PodUid, container: &str) -> Option<NumaMask> {
        let blocks = self.blocks_of(pod, container)?;
        Some(books::mask_of(blocks)).filter(|it| !it.is_empty())
    }

    /// What a container holds that was given its memory on these nodes, where no state says so; `None`: nothing of its
    /// own, or a share of its pod's budget, which is not known from it.
    pub fn blocks_on(
        &self,
        pod: &Pod,
        container: &Container,
        nodes: NumaMask,
    ) -> Option<Vec<MemoryBlock>> {
        if !self.is_managed(pod) || pod.has_pod_level_resources() {
            return None;
        }
        let amounts = self.requests.of_container(pod, container).ok()?;
        Some(books::blocks(nodes, &amounts)).filter(|it| !it.is_empty())
    }

    /// What can be given out in all, a block for each NUMA node and type that has any.
    pub fn allocatable(&self) -> Vec<MemoryBlock> {
        let tables = self.fresh.iter().flat_map(|(id, node)| {
            let table = move |(resource, table): (&String, &MemoryTable)| {
                let numa = NumaMask::new([*id]).ok()?;
                (table.allocatable != 0).then(|| MemoryBlock {
                    numa,
                    resource: resource.clone(),
                    size: table.allocatable,
                })
            };
            node.tables.iter().filter_map(table)
        });
        tables.collect()
    }

    /// Takes memory for the container where the hint says, or where it can be had if the hint names
    /// no nodes or too few. A container that has its memory keeps it. On an error nothing changes.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: Hint,
    ) -> Result<(), MemoryError> {
        if !self.requests.is_managed(pod) {
            return Ok(());
        }
        if let Some(blocks) = self.blocks_of(&pod.uid, &container.name) {
            if self.compat == Compat::Kubelet {
                let blocks = blocks.to_vec();
                self.reuse.note(pod, container, &blocks);
            }
            return Ok(());
        }
        if self.is_over(pod, container) {
            return Ok(());
        }
        let amounts = self.requests.of_container(pod, container)?;
        if amounts.is_empty() && self.compat == Compat::Ballast {
            return Ok(());
        }
        let ask = Ask {
            pod,
            container: Some(container),
            amounts,
        };
        let mask = self.place(&ask, hint)?;
        let blocks = books::blocks(mask, &ask.amounts);
        let of_pod = self.state.containers.get(&pod.uid);
        let mut of_pod = of_pod.cloned().unwrap_or_default();
        books::shrink_init_blocks(&mut of_pod, pod, container, &blocks);
        of_pod.insert(container.name.clone(), blocks.clone());
        let nodes = match self.compat {
            Compat::Kubelet => self.charged(&ask, &blocks),
            Compat::Ballast => {
                let whole = self.state.pods.get(&pod.uid).map(Vec::as_slice);
                self.rebuilt_with(books::held_of_pod(&pod.uid, whole, &of_pod))?
            }
        };
        self.state.nodes = nodes;
        self.state.containers.insert(pod.uid.clone(), of_pod);
        if self.compat == Compat::Kubelet {
            self.reuse.note(pod, container, &blocks);
        }
        Ok(())
    }

    /// Nothing of the pod has started in this boot, and its init containers run once more: memory that they gave back is
    /// asked for with that of all the others.
    pub fn begin_anew(&mut self, pod: &Pod) {
        let mut init = pod.init_containers.iter();
        let lacks = |it: &Container| self.blocks_of(&pod.uid, &it.name).is_none();
        if init.any(|it| lacks(it) && self.is_over(pod, it)) {
            for container in pod.all_containers() {
                self.release(&pod.uid, &container.name);
            }
        }
    }

    /// The container is about to start: the ordinary init containers before it have ended and their
    /// memory is free.
    pub fn container_starts(&mut self, pod: &Pod, container: &str) {
        for it in &pod.init_containers {
            if it.name == container {
                break;
            }
            if !it.is_sidecar {
                self.release(&pod.uid, &it.name);
            }
        }
    }

    /// The container is gone for good. One that holds nothing is no fault.
    pub fn release(&mut self, pod: &PodUid, container: &str) {
        let Some(containers) = self.state.containers.get_mut(pod) else {
            return;
        };
        let blocks = containers.remove(container);
        let is_last = containers.is_empty();
        if is_last {
            self.state.containers.remove(pod);
        }
        let blocks = match self.state.pods.contains_key(pod) {
            // The containers have shares in what the pod holds.
            true if is_last => self.state.pods.remove(pod),
            true => None,
            false => blocks,
        };
        match self.compat {
            Compat::Kubelet => {
                for block in blocks.iter().flatten() {
                    books::give_back(&mut self.state.nodes, block);
                }
            }
            // Less is held than before, so that it cannot but fit.
            Compat::Ballast => {
                let _fits = self.rebuild();
            }
        }
    }

    /// Releases every container that is not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&PodUid, &str) -> bool) {
        let all = self.state.containers.iter();
        let gone: Vec<(PodUid, String)> = all
            .flat_map(|(pod, containers)| containers.keys().map(move |it| (pod, it)))
            .filter(|(pod, container)| !keep(pod, container))
            .map(|(pod, container)| (pod.clone(), container.clone()))
            .collect();
        for (pod, container) in gone {
            self.release(&pod, &container);
        }
    }

    /// The nodes to take the memory from.
    fn place(&self, ask: &Ask<'_>, hint: Hint) -> Result<NumaMask, MemoryError> {
        let known = hint
            .numa
            .map(|it| it.intersection(books::mask(&self.fresh, |_| true)));
        let (mask, preferred) = match known {
            Some(mask) if !mask.is_empty() => (mask, hint.preferred),
            _ => {
                let own = self.best(ask, NumaMask::EMPTY);
                let own = own.ok_or(MemoryError::NoDefaultAffinity)?;
                if hint.preferred && !own.1 {
                    return Err(MemoryError::NoDefaultPreferredHint);
                }
                own
            }
        };
        // A hint for a part of a group is good for the group; kubelet would cut it up.
        let cuts_group = self.compat == Compat::Ballast && !self.respects_groups(mask);
        if !cuts_group && self.is_enough(mask, ask) {
            return match mask.len() == 1 || self.respects_groups(mask) {
                true => Ok(mask),
                false => Err(MemoryError::ViolatesGroups),
            };
        }
        match self.best(ask, mask) {
            None if cuts_group => Err(MemoryError::ViolatesGroups),
            None => Err(MemoryError::CannotExtendHint),
            Some((_, false)) if preferred => Err(MemoryError::NoExtendedPreferredHint),
            // Our own choices respect the groups.
            Some((wider, _)) => Ok(wider),
        }
    }

    /// Kubelet's tables once more is taken: what can be used again is charged already.
    fn charged(&self, ask: &Ask<'_>, blocks: &[MemoryBlock]) -> Nodes {
        let mut nodes = self.state.nodes.clone();
        for block in blocks {
            let again = self.reusable(ask, block.numa, &block.resource);
            let more = block.size.saturating_sub(again);
            books::charge(&mut nodes, block.numa, &block.resource, more);
        }
        nodes
    }

    /// The tables if a pod held this and the others what they do.
    fn rebuilt_with<'a>(
        &'a self,
        of_pod: impl Iterator<Item = Held<'a>>,
    ) -> Result<Nodes, MemoryError> {
        let of_pod: Vec<Held<'_>> = of_pod.collect();
        let is_other = |it: &Held<'_>| of_pod.iter().all(|own| own.pod != it.pod);
        let others = books::held(&self.state).filter(is_other);
        let nodes = books::rebuild(&self.fresh, others.chain(of_pod.iter().copied()));
        // Only where groups that overlap were restored is there less than the sums say.
        nodes.map_err(|_misfit| MemoryError::ViolatesGroups)
    }

    /// The tables, from the assignments.
    fn rebuild(&mut self) -> Result<(), Misfit> {
        self.state.nodes = books::rebuild(&self.fresh, books::held(&self.state))?;
        Ok(())
    }
}

/// A pod that is gone gives back what it and its containers hold, as kubelet takes it.
pub fn release_pod(state: &mut MemoryState, pod: &PodUid) {
    let of_containers = state.containers.remove(pod).unwrap_or_default();
    // The containers have shares in what the pod holds.
    let blocks = match state.pods.remove(pod) {
        Some(blocks) => blocks,
        None => of_containers.into_values().flatten().collect(),
    };
    for block in &blocks {
        books::give_back(&mut state.nodes, block);
    }
}

#[cfg(test)]
mod tests;
