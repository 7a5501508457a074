//! What a manager says about NUMA nodes for one resource, described and not listed: a node with 64
//! NUMA nodes has 2^64 masks.
//!
//! The topology manager searches the description itself. [`Hints::list`] makes kubelet's list of it,
//! which is what it means.
//!
//! Invariant: a region holds every mask above one that it holds, as far as its nodes go. The search
//! relies on that.

pub(super) mod closeness;
pub(super) mod cover;
pub(super) mod search;

use std::collections::BTreeMap;

use crate::model::numa::{Hint, NumaMask};
use cover::Cover;
use search::Budget;

/// What one provider says, by resource. Nothing: it has no opinion.
pub type ProviderHints = BTreeMap<String, Hints>;

/// The answer of one provider for one resource (pkg/kubelet/cm/topologymanager/topology_manager.go,
/// v1.36: `HintProvider`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hints {
    /// No opinion: any nodes are as good.
    Any,
    /// One of these. None at all: it cannot be had.
    OneOf(Choices),
}

/// Masks that would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// Those given one by one: nodes already held, groups of nodes.
    pub listed: Vec<Hint>,
    /// Those that follow a rule.
    pub region: Option<Region>,
}

/// Every non-empty subset of `nodes` that meets all the conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub nodes: NumaMask,
    /// 1, or 2 where single nodes are listed by themselves.
    pub min_len: u32,
    /// Nodes that a mask must have: where CPUs lie that have to be used again.
    pub contains: NumaMask,
    /// Sets that a mask must share a node with: devices that have to be used again.
    pub touches: Vec<NumaMask>,
    /// All must be met.
    pub demands: Vec<Demand>,
    pub preferred: Preference,
}

/// An amount that the nodes of a mask must have between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Amounts with the nodes they can be had from. Each counts once if any of its nodes is in the
    /// mask. CPUs and memory lie on one node; a device can belong to several.
    pub supply: Vec<(NumaMask, u64)>,
    pub need: u64,
}

/// Which masks are preferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Those of this many nodes.
    Len(u32),
    /// Those too that lie in `n_packages` packages, each package being its nodes (CPU manager option
    /// `align-by-socket`).
    LenOrPackages {
        len: u32,
        packages: Vec<NumaMask>,
        n_packages: u32,
    },
}

impl Demand {
    pub fn is_met_by(&self, mask: NumaMask) -> bool {
        let sum = self
            .supply
            .iter()
            .filter(|(nodes, _)| !nodes.is_disjoint(mask))
            .fold(0_u64, |sum, (_, amount)| sum.saturating_add(*amount));
        sum >= self.need
    }
}

impl Preference {
    pub fn is_met_by(&self, mask: NumaMask) -> bool {
        match self {
            Self::Len(len) => mask.len() == *len,
            Self::LenOrPackages {
                len,
                packages,
                n_packages,
            } => {
                let touched = packages.iter().filter(|it| !it.is_disjoint(mask)).count();
                mask.len() == *len || u32::try_from(touched) == Ok(*n_packages)
            }
        }
    }
}

impl Region {
    pub fn has(&self, mask: NumaMask) -> bool {
        !mask.is_empty()
            && mask.len() >= self.min_len
            && mask.is_subset(self.nodes)
            && self.contains.is_subset(mask)
            && self.touches.iter().all(|it| !it.is_disjoint(mask))
            && self.demands.iter().all(|it| it.is_met_by(mask))
    }
}

impl Hints {
    /// Nothing would do.
    pub fn none() -> Self {
        Self::OneOf(Choices::default())
    }

    /// Kubelet's list: by number of nodes, then by the ids in order; a mask comes once, preferred if
    /// it is so anywhere, which is all that merging looks at. `None` is the answer without an
    /// opinion. Cost: 2^n for a region of n nodes.
    pub fn list(&self) -> Option<Vec<Hint>> {
        let Self::OneOf(choices) = self else {
            return None;
        };
        let mut hints = choices.listed.clone();
        if let Some(region) = &choices.region {
            let found = subsets(region.nodes).filter(|it| region.has(*it));
            hints.extend(found.map(|mask| Hint {
                numa: Some(mask),
                preferred: region.preferred.is_met_by(mask),
            }));
        }
        hints.sort_by_cached_key(|it| {
            let ids = |mask: NumaMask| (mask.len(), mask.iter().collect::<Vec<_>>());
            (it.numa.map(ids), !it.preferred)
        });
        hints.dedup_by_key(|it| it.numa);
        Some(hints)
    }
}

/// Every non-empty subset, in no order that matters.
fn subsets(of: NumaMask) -> impl Iterator<Item = NumaMask> {
    // Counts down through the subsets of a set of bits, the set itself first.
    std::iter::successors(Some(of.bits()), move |it| {
        let next = it.checked_sub(1)? & of.bits();
        (next != 0).then_some(next)
    })
    .filter(|it| *it != 0)
    .map(NumaMask::from_bits)
}

/// Steps that [`least_len`] may take: a few milliseconds. One demand never needs them.
const BUDGET: u64 = 20_000;

/// The least number of the `nodes` that meet all demands together, were they all chosen well; `None`
/// if not even all of them do. Where several demands are at odds over many nodes, so that the search
/// ends at its budget, it is a number that may be too high by a few.
pub fn least_len(nodes: NumaMask, demands: &[Demand]) -> Option<u32> {
    let cover = Cover::new(nodes, NumaMask::EMPTY, NumaMask::EMPTY, demands)?;
    Some(cover.least_len(&mut Budget::new(BUDGET)))
}
