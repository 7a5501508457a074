//! The lists that are merged: one a resource.

use std::collections::{BTreeMap, BTreeSet};

use super::TopologyManager;
use crate::decide::placement::hints::Hints;
use crate::model::numa::{Hint, NumaMask};

/// The hints for one resource.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// Whether it can come from anywhere, and whether that is preferred.
    any: Option<bool>,
    /// By mask: whether it is preferred.
    masks: BTreeMap<NumaMask, bool>,
}

impl List {
    /// `is_single`: the hints that policy `single-numa-node` keeps.
    pub(super) fn new(hints: &Hints, _nodes: NumaMask, is_single: bool) -> Self {
        let mut list = Self {
            any: None,
            masks: BTreeMap::new(),
        };
        let hints = match hints.list() {
            None => vec![Hint {
                numa: None,
                preferred: true,
            }],
            Some(hints) if hints.is_empty() => vec![Hint {
                numa: None,
                preferred: false,
            }],
            Some(hints) => hints,
        };
        for hint in hints {
            let is_kept = hint.preferred && hint.numa.is_none_or(|it| it.len() == 1);
            if is_single && !is_kept {
                continue;
            }
            let preferred = match hint.numa {
                None => list.any.get_or_insert(false),
                Some(mask) => list.masks.entry(mask).or_insert(false),
            };
            *preferred |= hint.preferred;
        }
        list
    }

    fn prefers(&self, mask: NumaMask) -> bool {
        self.any == Some(true) || self.masks.get(&mask) == Some(&true)
    }
}

impl TopologyManager {
    pub(super) fn best(&self, lists: &[List]) -> Hint {
        let shared = lists
            .iter()
            .flat_map(|it| it.masks.iter().filter(|it| *it.1).map(|it| *it.0))
            .filter(|mask| lists.iter().all(|it| it.prefers(*mask)))
            .chain(
                lists
                    .iter()
                    .all(|it| it.any == Some(true))
                    .then_some(self.nodes),
            )
            .map(|mask| mask.intersection(self.nodes))
            .filter(|it| !it.is_empty())
            .min_by_key(|it| self.width(*it));
        if let Some(mask) = shared {
            return Hint {
                numa: Some(mask),
                preferred: true,
            };
        }
        let mut common = BTreeSet::from([self.nodes]);
        for list in lists {
            let masks = list.masks.keys().copied();
            let masks: Vec<NumaMask> = masks.chain(list.any.map(|_| self.nodes)).collect();
            common = common
                .iter()
                .flat_map(|it| masks.iter().map(|mask| it.intersection(*mask)))
                .filter(|it| !it.is_empty())
                .collect();
        }
        let narrowest = lists
            .iter()
            .filter_map(|it| it.masks.keys().map(|it| it.len()).min());
        let bound = narrowest.max().unwrap_or(0);
        let best = common.into_iter().min_by_key(|it| {
            let rank = match it.len() {
                len if len == bound => (0, 0),
                len if len < bound => (1, bound - len),
                len => (2, len),
            };
            (rank, self.width(*it))
        });
        Hint {
            numa: Some(best.unwrap_or(self.nodes)),
            preferred: false,
        }
    }

    /// Less is better among masks that are equally good otherwise.
    fn width(&self, mask: NumaMask) -> (u32, u64, u64) {
        let sum = self.distances.as_ref().map_or(0, |distances| {
            let pairs = mask.iter().flat_map(|a| mask.iter().map(move |b| (a, b)));
            pairs
                .map(|(a, b)| distances[a.0 as usize][b.0 as usize])
                .sum()
        });
        (mask.len(), sum, mask.bits())
    }
}
