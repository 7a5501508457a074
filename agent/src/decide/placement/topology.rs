//! The topology manager: one answer from what every manager said about NUMA nodes (spec placement 4).
//!
//! In: the NUMA nodes of the machine with their distances, the settings, and the hints of the
//! providers. Out: a [`Merge`]: where the pod or container shall be, and whether it may start.
//!
//! Invariant: the hint is the one that kubelet's walk over all combinations of hints ends with. The
//! walk's rule is a total order (spec placement 4.7), so the best can be searched for instead.

mod lists;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use settings::{TopologyConfigError, TopologySettings};

use super::hints::ProviderHints;
use crate::config::TopologyManagerPolicy;
use crate::model::numa::{Hint, NumaMask};
use crate::model::topology::NumaNodeId;
use lists::List;

/// How far each NUMA node is from each, as the kernel says it: 10 to itself.
pub type Distances = BTreeMap<NumaNodeId, u32>;

#[derive(Clone, Debug)]
pub struct TopologyManager {
    settings: TopologySettings,
    /// All of them, those with memory alone too.
    nodes: NumaMask,
    /// By node ids. `None`: masks of as many nodes are equally good.
    distances: Option<Vec<Vec<u64>>>,
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
        let mut distances = None;
        if settings.policy != TopologyManagerPolicy::None {
            if settings.prefer_closest {
                distances = Some(by_ids(numa_nodes)?);
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
            distances,
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
            .map(|it| List::new(it, self.nodes, is_single))
            .collect();
        let mut hint = self.best(&lists);
        if is_single && hint.numa == Some(self.nodes) {
            hint.numa = None;
        }
        Merge {
            hint,
            admit: hint.preferred || self.settings.policy == TopologyManagerPolicy::BestEffort,
            is_cut: false,
        }
    }
}

/// A row and a column for every id up to the largest; 0 where there is no node.
fn by_ids(
    numa_nodes: &BTreeMap<NumaNodeId, Distances>,
) -> Result<Vec<Vec<u64>>, TopologyConfigError> {
    let len = numa_nodes.keys().last().map_or(0, |it| it.0 as usize + 1);
    let mut rows = vec![vec![0; len]; len];
    for (from, distances) in numa_nodes {
        for to in numa_nodes.keys() {
            let distance = distances.get(to);
            let distance = distance.ok_or(TopologyConfigError::NoDistance {
                from: *from,
                to: *to,
            })?;
            rows[from.0 as usize][to.0 as usize] = u64::from(*distance);
        }
    }
    Ok(rows)
}
