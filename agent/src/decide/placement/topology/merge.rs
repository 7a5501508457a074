//! The best of all combinations of one hint of each list, without walking them.
//!
//! A combination is preferred if all its hints are and have the same mask (hints for anywhere have
//! none): so preferred masks are those that all lists have. Otherwise its mask is what the masks have
//! in common. Which is best: a preferred one; the number of nodes nearest to that of the list whose
//! narrowest mask is widest, fewer before more; the closest, where that is asked for; the least as a
//! number (pkg/kubelet/cm/topologymanager/policy.go, v1.36: `HintMerger`).

use std::collections::BTreeSet;

use super::crossing::Crossing;
use super::lists::{Area, List};
use crate::decide::placement::hints::Preference;
use crate::decide::placement::hints::closeness::Closeness;
use crate::decide::placement::hints::cover::{Cover, InPackages};
use crate::decide::placement::hints::search::Budget;
use crate::model::numa::{Hint, NumaMask};

/// Steps for each of the three questions of a merge (preferred masks, the narrowest of each list,
/// common masks): a few milliseconds each, so that the worst of all hints holds up no admission.
const BUDGET: u64 = 20_000;
/// Ways to choose among what lists give one by one. Providers list single nodes and groups of nodes,
/// whose combinations are few.
const MAX_CHOICES: usize = 4096;

pub(super) struct Merger<'a> {
    pub(super) nodes: NumaMask,
    pub(super) closeness: Option<&'a Closeness>,
    pub(super) lists: &'a [List],
}

/// What a search has cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// It was given up.
    pub(super) is_cut: bool,
    /// Masks and regions that were listed, and steps of the search among them.
    pub(super) n_steps: u64,
}

impl Effort {
    fn add(&mut self, budget: &Budget) {
        self.is_cut |= budget.is_cut();
        self.n_steps += budget.spent();
    }
}

/// What has been chosen from the lists so far.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    /// What the masks that were listed have in common.
    listed: NumaMask,
    /// Lists whose regions are to be used, by index.
    areas: Vec<usize>,
}

impl<'a> Merger<'a> {
    pub(super) fn best(&self) -> (Hint, Effort) {
        let given = self.lists.iter();
        let given = given.map(|it| it.masks.len() + usize::from(it.area.is_some()));
        let mut effort = Effort {
            is_cut: false,
            n_steps: given.sum::<usize>() as u64,
        };
        let mut budget = Budget::new(BUDGET);
        let preferred = self.preferred(&mut budget);
        effort.add(&budget);
        let numa = preferred.or_else(|| self.common(&mut effort));
        let hint = Hint {
            numa: Some(numa.unwrap_or(self.nodes)),
            preferred: preferred.is_some(),
        };
        (hint, effort)
    }

    /// Among masks that are as good otherwise.
    fn width(&self, mask: NumaMask) -> u64 {
        self.closeness.map_or(0, |it| it.width(mask))
    }

    fn key(&self, mask: NumaMask) -> (u32, u64, u64) {
        (mask.len(), self.width(mask), mask.bits())
    }

    fn preferred(&self, budget: &mut Budget) -> Option<NumaMask> {
        let prefers = |list: &List, mask| list.any == Some(true) || list.prefers(mask);
        let masks = self.lists.iter().flat_map(|it| &it.masks);
        let listed = masks
            .filter(|(_, preferred)| **preferred)
            .map(|(mask, _)| *mask)
            .filter(|mask| self.lists.iter().all(|it| prefers(it, *mask)))
            .map(|mask| mask.intersection(self.nodes));
        let anywhere = self.lists.iter().all(|it| it.any == Some(true));
        let listed = listed.chain(anywhere.then_some(self.nodes));
        let (bound, free): (Vec<&List>, Vec<&List>) =
            self.lists.iter().partition(|it| it.any != Some(true));
        // What is preferred anywhere needs no mask, but one of all has to give one.
        let in_areas: Vec<NumaMask> = match bound.is_empty() {
            false => self.preferred_in(&bound, budget).into_iter().collect(),
            true => free
                .iter()
                .filter_map(|it| self.preferred_in(&[it], budget))
                .collect(),
        };
        listed
            .chain(in_areas)
            .filter(|it| !it.is_empty())
            .min_by_key(|it| self.key(*it))
    }

    /// The best mask that is in the regions of all these lists, and preferred in all.
    fn preferred_in(&self, lists: &[&'a List], budget: &mut Budget) -> Option<NumaMask> {
        let areas: Option<Vec<&'a Area>> = lists.iter().map(|it| it.area.as_ref()).collect();
        let areas = areas?;
        let regions = || areas.iter().map(|it| &it.region);
        let nodes = regions().fold(self.nodes, |it, region| it.intersection(region.nodes));
        let required = regions().fold(NumaMask::EMPTY, |it, region| it.union(region.contains));
        let conditions = areas.iter().flat_map(|it| &it.conditions);
        let cover = Cover::new(nodes, required, NumaMask::EMPTY, conditions)?;
        let lens = match regions().find_map(|it| it.preferred.len()) {
            Some(len) => len..=len,
            None => 1..=nodes.len(),
        };
        lens.into_iter().find_map(|len| {
            let mut packages = Vec::new();
            for region in regions() {
                match &region.preferred {
                    Preference::Len(wanted) | Preference::LenOrPackages { len: wanted, .. }
                        if *wanted == len => {}
                    Preference::Len(_) => return None,
                    Preference::LenOrPackages {
                        packages: all,
                        n_packages,
                        ..
                    } => packages.push(InPackages {
                        packages: all,
                        n: *n_packages,
                    }),
                }
            }
            let cover = cover.clone().in_packages(packages);
            cover.best(len, self.closeness, None, budget)
        })
    }

    /// The best mask that hints have in common, none of all being preferred.
    fn common(&self, effort: &mut Effort) -> Option<NumaMask> {
        let mut budget = Budget::new(BUDGET);
        let narrowest = self.lists.iter().filter_map(|it| it.narrowest(&mut budget));
        let len = narrowest.max().unwrap_or(0);
        effort.add(&budget);
        let (choices, is_choice_cut) = self.choices();
        let mut budget = Budget::new(BUDGET);
        let best = self.common_of(&choices, len, &mut budget);
        effort.add(&budget);
        effort.is_cut |= is_choice_cut;
        best
    }

    fn common_of(&self, choices: &[Choice], len: u32, budget: &mut Budget) -> Option<NumaMask> {
        let sets: Vec<Common<'_>> = choices.iter().filter_map(|it| self.set(it)).collect();
        let narrower = || {
            let all = sets.iter().map(|it| it.nodes).filter(|it| it.len() < len);
            all.max_by_key(|it| {
                let (len, width, bits) = self.key(*it);
                (len, !width, !bits)
            })
        };
        let wider = |budget: &mut Budget| {
            (len + 1..=self.nodes.len()).find_map(|len| self.common_of_len(&sets, len, budget))
        };
        self.common_of_len(&sets, len, budget)
            .or_else(narrower)
            .or_else(|| wider(budget))
    }

    fn common_of_len(
        &self,
        sets: &[Common<'_>],
        len: u32,
        budget: &mut Budget,
    ) -> Option<NumaMask> {
        let mut best: Option<(u64, NumaMask)> = None;
        for set in sets {
            let lowest = set.nodes.iter().take(len as usize);
            let lowest = lowest.fold(0_u64, |it, id| it | 1 << id.0);
            if self.closeness.is_none() && best.is_some_and(|it| it.1.bits() <= lowest) {
                continue;
            }
            let limit = self.closeness.and(best).map(|it| it.0);
            let found = set.best(len, self.closeness, limit, budget);
            let found = found.map(|it| (self.width(it), it));
            best = best.into_iter().chain(found).min();
        }
        best.map(|it| it.1)
    }

    /// What can be chosen from each list: a listed mask, anywhere, or its region.
    fn choices(&self) -> (Vec<Choice>, bool) {
        let mut is_cut = false;
        let mut choices = BTreeSet::from([Choice {
            listed: self.nodes,
            areas: Vec::new(),
        }]);
        for (i, list) in self.lists.iter().enumerate() {
            let mut next = BTreeSet::new();
            for choice in choices {
                let anywhere = list.any.map(|_| self.nodes);
                let masks = list.masks.keys().copied().chain(anywhere);
                next.extend(masks.map(|it| Choice {
                    listed: choice.listed.intersection(it),
                    areas: choice.areas.clone(),
                }));
                if list.area.is_some() {
                    let mut choice = choice;
                    choice.areas.push(i);
                    next.insert(choice);
                }
                next.retain(|it| !it.listed.is_empty());
            }
            is_cut |= next.len() > MAX_CHOICES;
            choices = next.into_iter().take(MAX_CHOICES).collect();
        }
        (choices.into_iter().collect(), is_cut)
    }

    /// `None`: nothing is common.
    fn set(&self, choice: &Choice) -> Option<Common<'a>> {
        let areas = choice.areas.iter();
        let areas: Vec<&'a Area> = areas.filter_map(|i| self.lists[*i].area.as_ref()).collect();
        let nodes = areas
            .iter()
            .fold(choice.listed, |it, area| it.intersection(area.region.nodes));
        (!nodes.is_empty()).then_some(Common { nodes, areas })
    }
}

/// The masks that come of one choice.
struct Common<'a> {
    /// The widest.
    nodes: NumaMask,
    /// None: there is no other.
    areas: Vec<&'a Area>,
}

impl Common<'_> {
    fn best(
        &self,
        len: u32,
        closeness: Option<&Closeness>,
        limit: Option<u64>,
        budget: &mut Budget,
    ) -> Option<NumaMask> {
        if len == 0 || self.nodes.len() <= len {
            return (self.nodes.len() == len).then_some(self.nodes);
        }
        match self.areas.as_slice() {
            [] => None,
            [area] => area.cover(self.nodes)?.best(len, closeness, limit, budget),
            areas => {
                let regions = areas
                    .iter()
                    .map(|it| (&it.region, it.conditions.as_slice()));
                Crossing::new(self.nodes, regions).best(len, closeness, limit, budget)
            }
        }
    }
}
