//! The lists that are merged: what one provider says for one resource.

use std::collections::BTreeMap;

use crate::decide::placement::hints::cover::Cover;
use crate::decide::placement::hints::search::Budget;
use crate::decide::placement::hints::{Choices, Demand, Hints, Preference, Region};
use crate::model::numa::{Hint, NumaMask};

/// The hints for one resource, as kubelet filters them (pkg/kubelet/cm/topologymanager/policy.go,
/// v1.36: `filterProvidersHints`).
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    /// Whether it can come from anywhere, and whether that is preferred.
    pub(super) any: Option<bool>,
    /// By mask, whether it is preferred.
    pub(super) masks: BTreeMap<NumaMask, bool>,
    pub(super) area: Option<Area>,
}

/// A region that has masks.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) region: Region,
    pub(super) conditions: Vec<Demand>,
}

impl Area {
    /// Only `nodes` count. `None`: no mask is in it.
    fn new(region: &Region, nodes: NumaMask) -> Option<Self> {
        let mut region = region.clone();
        region.nodes = region.nodes.intersection(nodes);
        // It holds all that is above what it holds.
        region.has(region.nodes).then(|| Self {
            conditions: region.conditions(),
            region,
        })
    }

    /// Without preference: its masks within `common`, each with the other nodes of the region.
    pub(super) fn cover(&self, common: NumaMask) -> Option<Cover<'_>> {
        let beside = self.region.nodes.difference(common);
        let required = self.region.contains.intersection(common);
        Cover::new(common, required, beside, &self.conditions)
    }
}

impl List {
    /// `nodes`: those of the machine.
    pub(super) fn new(hints: &Hints, nodes: NumaMask) -> Self {
        let Hints::OneOf(Choices { listed, region }) = hints else {
            return Self::anywhere(true);
        };
        let mut list = Self {
            area: region.as_ref().and_then(|it| Area::new(it, nodes)),
            ..Self::default()
        };
        list.add(listed.iter().copied());
        if list.is_empty() {
            return Self::anywhere(false);
        }
        list
    }

    fn anywhere(is_preferred: bool) -> Self {
        Self {
            any: Some(is_preferred),
            ..Self::default()
        }
    }

    fn add(&mut self, hints: impl IntoIterator<Item = Hint>) {
        for hint in hints {
            let preferred = match hint.numa {
                None => self.any.get_or_insert(false),
                Some(mask) => self.masks.entry(mask).or_insert(false),
            };
            *preferred |= hint.preferred;
        }
    }

    /// What policy `single-numa-node` keeps: what is preferred and anywhere or one node.
    pub(super) fn single(self) -> Self {
        let mut single = Self {
            any: self.any.filter(|preferred| *preferred),
            ..Self::default()
        };
        let nodes = self.area.iter().flat_map(|it| it.region.nodes.iter());
        let masks = nodes.map(|id| NumaMask::from_bits(1 << id.0));
        let listed = self.masks.keys().copied().filter(|it| it.len() == 1);
        let kept = masks.chain(listed).filter(|it| self.prefers(*it));
        single.add(kept.map(|mask| Hint {
            numa: Some(mask),
            preferred: true,
        }));
        single
    }

    pub(super) fn is_empty(&self) -> bool {
        self.any.is_none() && self.masks.is_empty() && self.area.is_none()
    }

    /// Whether this very mask is among the hints, and preferred.
    pub(super) fn prefers(&self, mask: NumaMask) -> bool {
        let is_in = |it: &Area| it.region.preferred.is_met_by(mask) && it.region.has(mask);
        self.masks.get(&mask) == Some(&true) || self.area.as_ref().is_some_and(is_in)
    }

    /// The number of nodes of the narrowest mask. `None`: it has no masks.
    pub(super) fn narrowest(&self, budget: &mut Budget) -> Option<u32> {
        let listed = self.masks.keys().map(|it| it.len()).min();
        let area = self.area.as_ref();
        let cover = area.and_then(|it| it.cover(it.region.nodes));
        let in_area = cover.map(|it| it.least_len(budget));
        listed.into_iter().chain(in_area).min()
    }
}

impl Preference {
    /// The number of nodes that it asks for, if by nothing else.
    pub(super) fn len(&self) -> Option<u32> {
        match self {
            Self::Len(len) => Some(*len),
            Self::LenOrPackages { .. } => None,
        }
    }
}
