//! Books of an earlier run: taken over as they are (pkg/kubelet/cm/memorymanager/policy_static.go,
//! v1.36: `validateState`), or as far as they fit this machine.

use super::books::{self, Held, Nodes};
use super::errors::{MemoryStateError, MemoryStateFault};
use super::{MemoryManager, Reuse};
use crate::config::Compat;
use crate::model::placement::{MemoryState, NumaMemory};
use crate::model::topology::NumaNodeId;

impl MemoryManager {
    /// Takes over a state. Every assignment must fit the machine as it is now: its memory may have
    /// become more or less since, and so may what is reserved. Kubelet wants the tables to be those
    /// of this machine to the byte. On an error nothing changes; see [`adopt`](Self::adopt).
    pub fn start(&mut self, restored: MemoryState) -> Result<(), MemoryStateError> {
        let mut restored = restored;
        match self.compat {
            Compat::Kubelet if restored.nodes.is_empty() => {
                if !restored.containers.is_empty() {
                    return Err(MemoryStateError::NoMachine);
                }
                restored.nodes = self.fresh.clone();
            }
            Compat::Kubelet => {
                if !are_alike(&restored.nodes, &expected(&self.fresh, &restored)?) {
                    return Err(MemoryStateError::Differs);
                }
            }
            Compat::Ballast => {
                let mut copy = self.clone();
                if let Some(fault) = copy.adopt(restored).into_iter().next() {
                    return Err(MemoryStateError::Assignment(fault));
                }
                *self = copy;
                return Ok(());
            }
        }
        self.state = restored;
        self.reuse = Reuse::default();
        Ok(())
    }

    /// Takes over every assignment that fits this machine beside those before it, in the order of
    /// pod and container, and drops the others. The tables are made anew.
    pub fn adopt(&mut self, restored: MemoryState) -> Vec<MemoryStateFault> {
        let MemoryState {
            mut containers,
            mut pods,
            ..
        } = restored;
        containers.retain(|_, it| !it.is_empty());
        pods.retain(|pod, _| containers.contains_key(pod));
        self.reuse = Reuse::default();
        self.state = MemoryState {
            nodes: self.fresh.clone(),
            containers,
            pods,
        };
        if self.rebuild().is_ok() {
            return Vec::new();
        }
        let mut faults = Vec::new();
        let mut kept: Vec<Held<'_>> = Vec::new();
        for it in books::held(&self.state) {
            kept.push(it);
            if let Err(misfit) = books::rebuild(&self.fresh, kept.iter().copied()) {
                kept.pop();
                faults.push(it.fault(misfit));
            }
        }
        for fault in &faults {
            let of_pod = self.state.containers.get_mut(&fault.pod);
            match (&fault.container, of_pod) {
                (Some(container), Some(of_pod)) if of_pod.len() > 1 => {
                    of_pod.remove(container);
                }
                _ => {
                    self.state.containers.remove(&fault.pod);
                    self.state.pods.remove(&fault.pod);
                }
            }
        }
        // Exactly what was kept is left, and that was found to fit.
        let _fits = self.rebuild();
        faults
    }
}

/// The tables as kubelet derives them. Memory that does not fit is not missed.
fn expected(fresh: &Nodes, state: &MemoryState) -> Result<Nodes, MemoryStateError> {
    let mut nodes = fresh.clone();
    for held in books::held(state) {
        for block in held.blocks {
            let known = books::check_known(&nodes, block);
            known.map_err(|misfit| MemoryStateError::Assignment(held.fault(misfit)))?;
            books::charge(&mut nodes, block.numa, &block.resource, block.size);
        }
    }
    Ok(nodes)
}

/// Kubelet's comparison: what is free and reserved counts by group.
fn are_alike(real: &Nodes, expected: &Nodes) -> bool {
    real.keys().eq(expected.keys())
        && real.iter().zip(expected.values()).all(|((_, a), b)| {
            let sorted = |node: &NumaMemory| {
                let mut group = node.group.clone();
                group.sort();
                group
            };
            a.n_assignments == b.n_assignments
                && sorted(a) == sorted(b)
                && a.tables.keys().eq(b.tables.keys())
                && a.tables
                    .iter()
                    .zip(b.tables.values())
                    .all(|((resource, x), y)| {
                        let of = |nodes: &Nodes| sums(nodes, &a.group, resource);
                        (x.total, x.system_reserved, x.allocatable)
                            == (y.total, y.system_reserved, y.allocatable)
                            && of(real) == of(expected)
                    })
        })
}

/// Free and reserved of a group.
fn sums(nodes: &Nodes, group: &[NumaNodeId], resource: &str) -> (u64, u64) {
    let tables = group
        .iter()
        .filter_map(|it| nodes.get(it)?.tables.get(resource));
    tables.fold((0, 0), |(free, reserved), it| {
        (
            free.wrapping_add(it.free),
            reserved.wrapping_add(it.reserved),
        )
    })
}
