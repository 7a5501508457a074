//! The topology manager: one answer from what every manager said about NUMA nodes (pkg/kubelet/cm/topologymanager,
//! v1.36).
//!
//! In: the NUMA nodes of the machine with their distances, the settings, and the hints of the
//! providers. Out: a [`Merge`]: where the pod or container shall be, and whether it may start.
//!
//! Invariant: the hint is the one that kubelet's walk over all combinations of hints ends with. The
//! walk's rule is a total order, so the best can be searched for instead.

mod crossing;
mod lists;
mod merge;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use settings::{TopologyConfigError, TopologySettings};

use super::hints::closeness::Closeness;
use super::hints::{Hints, ProviderHints};
use crate::config::TopologyManagerPolicy;
use crate::model::numa::{Hint, NumaMask};
use crate::model::topology::NumaNodeId;
use lists::List;
use merge::{Effort, Merger};

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
    /// Steps of the search.
    pub n_steps: u64,
}

/// What one provider has to do with a merge, for one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opinion {
    /// Its place among the hints.
    pub provider: usize,
    pub resource: String,
    /// The answer if no other had an opinion: a candidate that the merge passed over, where it is
    /// another.
    pub alone: Merge,
    /// The answer if this one had no opinion: what would have to change to get there.
    pub without: Merge,
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

    /// The same machine under another policy.
    pub fn with_policy(&self, policy: TopologyManagerPolicy) -> Self {
        let mut other = self.clone();
        other.settings.policy = policy;
        other
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
                n_steps: 0,
            };
        }
        let lists: Vec<List> = hints
            .iter()
            .flat_map(BTreeMap::values)
            .map(|it| self.list(it))
            .collect();
        self.merge_lists(&lists)
    }

    /// Why the merge of these hints is as it is, by provider and resource; those with no opinion are
    /// left out. Cost: two merges each.
    pub fn opinions(&self, hints: &[ProviderHints]) -> Vec<Opinion> {
        if self.settings.policy == TopologyManagerPolicy::None {
            return Vec::new();
        }
        let named = hints.iter().enumerate();
        let named = named.flat_map(|(i, it)| it.iter().map(move |(name, it)| (i, name, it)));
        let (named, mut lists): (Vec<_>, Vec<List>) = named
            .filter(|(.., it)| **it != Hints::Any)
            .map(|(provider, resource, it)| ((provider, resource), self.list(it)))
            .unzip();
        let each = named.into_iter().enumerate();
        each.map(|(i, (provider, resource))| {
            let list = lists.remove(i);
            let without = self.merge_lists(&lists);
            let alone = self.merge_lists(std::slice::from_ref(&list));
            lists.insert(i, list);
            Opinion {
                provider,
                resource: resource.clone(),
                alone,
                without,
            }
        })
        .collect()
    }

    fn is_single(&self) -> bool {
        self.settings.policy == TopologyManagerPolicy::SingleNumaNode
    }

    fn list(&self, hints: &Hints) -> List {
        let list = List::new(hints, self.nodes);
        if self.is_single() {
            list.single()
        } else {
            list
        }
    }

    fn merge_lists(&self, lists: &[List]) -> Merge {
        let merger = Merger {
            nodes: self.nodes,
            closeness: self.closeness.as_ref(),
            lists,
        };
        let (mut hint, Effort { is_cut, n_steps }) = merger.best();
        if self.is_single() && hint.numa == Some(self.nodes) {
            hint.numa = None;
        }
        Merge {
            hint,
            admit: hint.preferred || self.settings.policy == TopologyManagerPolicy::BestEffort,
            is_cut,
            n_steps,
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
