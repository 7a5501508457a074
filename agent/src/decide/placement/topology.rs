//! The topology manager: one answer from what every manager said about NUMA nodes (spec placement 4).
//!
//! In: the NUMA nodes of the machine with their distances, the settings, and the hints of the
//! providers. Out: a [`Merge`]: where the pod or container shall be, and whether it may start.
//!
//! Invariant: the hint is the one that kubelet's walk over all combinations of hints ends with. The
//! walk's rule is a total order (spec placement 4.7), so the best can be searched for instead.

mod crossing;
mod lists;
mod merge;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use settings::{TopologyConfigError, TopologySettings};

use super::hints::ProviderHints;
use super::hints::search::Closeness;
use crate::config::TopologyManagerPolicy;
use crate::model::numa::{Hint, NumaMask};
use crate::model::topology::NumaNodeId;
use lists::List;
use merge::Merger;

/// How far each NUMA node is from each, as the kernel says it: 10 to itself.
pub type Distances = BTreeMap<NumaNodeId, u32>;

#[derive(Clone, Debug)]
pub struct TopologyManager {
    settings: TopologySettings,
    /// All of them, those with memory alone too.
    nodes: NumaMask,
    /// `None`: masks of as many nodes are equally good.
    closeness: Option<Closeness>,
}

/// Where a pod or container shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// What the providers allocate by.
    pub hint: Hint,
    /// Whether the policy lets it start.
    pub admit: bool,
    /// The search ended at its budget: the hint is good, and another may be better.
    pub is_cut: bool,
}

impl TopologyManager {
    /// `numa_nodes`: every NUMA node of the machine with its distances.
    pub fn new(
        settings: TopologySettings,
        numa_nodes: &BTreeMap<NumaNodeId, Distances>,
    ) -> Result<Self, TopologyConfigError> {
        let nodes = NumaMask::new(numa_nodes.keys().copied())?;
        let mut closeness = None;
        if settings.policy != TopologyManagerPolicy::None {
            if settings.prefer_closest {
                closeness = Some(closeness_of(nodes, numa_nodes)?);
            }
            match settings.max_numa_nodes {
                Some(max) if u64::from(nodes.len()) > max => {
                    return Err(TopologyConfigError::TooManyNumaNodes {
                        n: numa_nodes.len(),
                        max,
                    });
                }
                _ => (),
            }
        }
        Ok(Self {
            settings,
            nodes,
            closeness,
        })
    }

    pub fn settings(&self) -> &TopologySettings {
        &self.settings
    }

    /// The NUMA nodes of the machine.
    pub fn nodes(&self) -> NumaMask {
        self.nodes
    }

    /// One entry of `hints` a provider; their order makes no difference.
    pub fn merge(&self, hints: &[ProviderHints]) -> Merge {
        if self.settings.policy == TopologyManagerPolicy::None {
            return Merge {
                hint: Hint::UNKNOWN,
                admit: true,
                is_cut: false,
            };
        }
        let is_single = self.settings.policy == TopologyManagerPolicy::SingleNumaNode;
        let lists: Vec<List> = hints
            .iter()
            .flat_map(BTreeMap::values)
            .map(|it| List::new(it, self.nodes))
            .map(|it| if is_single { it.single() } else { it })
            .collect();
        let (mut hint, is_cut) = Merger {
            nodes: self.nodes,
            closeness: self.closeness.as_ref(),
            lists: &lists,
        }
        .best();
        if is_single && hint.numa == Some(self.nodes) {
            hint.numa = None;
        }
        Merge {
            hint,
            admit: hint.preferred || self.settings.policy == TopologyManagerPolicy::BestEffort,
            is_cut,
        }
    }
}

fn closeness_of(
    nodes: NumaMask,
    numa_nodes: &BTreeMap<NumaNodeId, Distances>,
) -> Result<Closeness, TopologyConfigError> {
    let distance = |from: NumaNodeId, to: NumaNodeId| numa_nodes.get(&from)?.get(&to).copied();
    for from in nodes.iter() {
        for to in nodes.iter() {
            distance(from, to).ok_or(TopologyConfigError::NoDistance { from, to })?;
        }
    }
    Ok(Closeness::new(nodes, |from, to| {
        distance(from, to).unwrap_or_default()
    }))
}
