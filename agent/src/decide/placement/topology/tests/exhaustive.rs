//! The merge against kubelet's own way: every combination of hints, compared two by two.

use std::collections::{BTreeMap, BTreeSet};

use super::random::{Random, any_demand, any_hints};
use super::*;
use crate::decide::placement::hints::{Choices, Demand, Hints, Preference, Region, least_len};

/// The rule of pkg/kubelet/cm/topologymanager/policy.go, v1.36, word for word.
struct Kubelet<'a> {
    nodes: NumaMask,
    /// By ids; `None`: not asked for.
    distances: Option<&'a BTreeMap<NumaNodeId, Distances>>,
    is_single: bool,
}

impl Kubelet<'_> {
    fn lists(&self, hints: &[Hints]) -> Vec<Vec<Hint>> {
        let anywhere = |preferred| Hint {
            numa: None,
            preferred,
        };
        let lists = hints.iter().map(|it| match it.list() {
            None => vec![anywhere(true)],
            Some(list) if list.is_empty() => vec![anywhere(false)],
            Some(list) => list,
        });
        let is_kept = |it: &Hint| {
            !self.is_single || it.preferred && it.numa.is_none_or(|mask| mask.len() == 1)
        };
        lists
            .map(|list| list.into_iter().filter(is_kept).collect())
            .collect()
    }

    fn merge(&self, lists: &[Vec<Hint>]) -> Hint {
        let bound = Self::bound(lists);
        let mut best = None;
        self.walk(lists, &mut Vec::new(), &mut |combination| {
            let candidate = self.combine(combination);
            if !candidate.0.is_empty() {
                best = Some(best.map_or(candidate, |it| self.better(it, candidate, bound)));
            }
        });
        self.answer(best)
    }

    fn walk(&self, lists: &[Vec<Hint>], chosen: &mut Vec<Hint>, visit: &mut impl FnMut(&[Hint])) {
        let Some((first, rest)) = lists.split_first() else {
            return visit(chosen);
        };
        for hint in first {
            chosen.push(*hint);
            self.walk(rest, chosen, visit);
            chosen.pop();
        }
    }

    /// As `merge`, for more combinations than can be walked: of those with one outcome so far, one.
    fn merge_folded(&self, lists: &[Vec<Hint>]) -> Hint {
        // Mask, whether all are preferred, and the masks so far: none, one, or several.
        type State = (NumaMask, bool, Option<Option<NumaMask>>);
        let mut states: BTreeSet<State> = BTreeSet::from([(self.nodes, true, None)]);
        for list in lists {
            let next = states.iter().flat_map(|(mask, preferred, common)| {
                list.iter().map(move |it| match it.numa {
                    None => (*mask, *preferred && it.preferred, *common),
                    Some(numa) => (
                        mask.intersection(numa),
                        *preferred && it.preferred,
                        Some(common.map_or(Some(numa), |it| it.filter(|it| *it == numa))),
                    ),
                })
            });
            states = next.collect();
        }
        let candidates = states.iter().filter(|it| !it.0.is_empty());
        let candidates = candidates.map(|it| (it.0, it.1 && it.2 != Some(None)));
        let bound = Self::bound(lists);
        let best = candidates.reduce(|best, it| self.better(best, it, bound));
        self.answer(best)
    }

    fn bound(lists: &[Vec<Hint>]) -> u32 {
        let narrowest = |list: &Vec<Hint>| list.iter().filter_map(|it| Some(it.numa?.len())).min();
        lists.iter().filter_map(narrowest).max().unwrap_or(0)
    }

    fn answer(&self, best: Option<(NumaMask, bool)>) -> Hint {
        let (mask, preferred) = best.unwrap_or((self.nodes, false));
        let is_anywhere = self.is_single && mask == self.nodes;
        Hint {
            numa: (!is_anywhere).then_some(mask),
            preferred,
        }
    }

    fn combine(&self, hints: &[Hint]) -> (NumaMask, bool) {
        let masks: Vec<NumaMask> = hints.iter().filter_map(|it| it.numa).collect();
        let mask = masks
            .iter()
            .fold(self.nodes, |all, it| all.intersection(*it));
        let is_one = masks.iter().all(|it| *it == masks[0]);
        (mask, is_one && hints.iter().all(|it| it.preferred))
    }

    fn better(&self, a: (NumaMask, bool), b: (NumaMask, bool), bound: u32) -> (NumaMask, bool) {
        if a.1 != b.1 {
            return if a.1 { a } else { b };
        }
        let (current, candidate) = (a.0.len(), b.0.len());
        let takes_b = if a.1 || current > bound {
            self.fits_better(a.0, b.0)
        } else if current == bound {
            candidate == bound && self.fits_better(a.0, b.0)
        } else if candidate > bound {
            false
        } else if candidate == bound {
            true
        } else {
            candidate > current || candidate == current && self.fits_better(a.0, b.0)
        };
        if takes_b { b } else { a }
    }

    /// Whether `b` goes before `a`.
    fn fits_better(&self, a: NumaMask, b: NumaMask) -> bool {
        if a.len() == b.len() && !self.is_single {
            let mean = |it| self.distances.map_or(0.0, |distances| mean(distances, it));
            let (mean_a, mean_b) = (mean(a), mean(b));
            if mean_a < mean_b || mean_b < mean_a {
                return mean_b < mean_a;
            }
        }
        b.cmp_narrower(a).is_lt()
    }
}

fn mean(distances: &BTreeMap<NumaNodeId, Distances>, mask: NumaMask) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for a in mask.iter() {
        for b in mask.iter() {
            sum += f64::from(distances[&a][&b]);
            count += 1.0;
        }
    }
    sum / count
}

struct Case {
    manager: TopologyManager,
    numa_nodes: BTreeMap<NumaNodeId, Distances>,
    hints: Vec<Hints>,
}

impl Case {
    fn merge(&self) -> Merge {
        let named = self.hints.iter().enumerate();
        let named = named.map(|(i, it)| ProviderHints::from([(i.to_string(), it.clone())]));
        self.manager.merge(&named.collect::<Vec<_>>())
    }

    /// `None`: too many combinations to walk.
    fn check(&self, most: usize) -> Option<Merge> {
        self.check_against(|kubelet, lists| {
            let n = lists
                .iter()
                .fold(1_usize, |n, it| n.saturating_mul(it.len()));
            (n <= most).then(|| kubelet.merge(lists))
        })
    }

    fn check_against(
        &self,
        expected: impl FnOnce(&Kubelet<'_>, &[Vec<Hint>]) -> Option<Hint>,
    ) -> Option<Merge> {
        let settings = self.manager.settings();
        let kubelet = Kubelet {
            nodes: self.manager.nodes(),
            distances: settings.prefer_closest.then_some(&self.numa_nodes),
            is_single: settings.policy == TopologyManagerPolicy::SingleNumaNode,
        };
        let expected = expected(&kubelet, &kubelet.lists(&self.hints))?;
        let merge = self.merge();
        assert_eq!(
            merge.hint, expected,
            "{settings:?} {:?} {:#?}",
            self.numa_nodes, self.hints
        );
        assert!(!merge.is_cut, "{:#?}", self.hints);
        Some(merge)
    }
}

fn any_case(random: &mut Random, n_nodes: u32, n_lists: usize) -> Case {
    let mut ids: Vec<NumaNodeId> = (0..n_nodes).map(NumaNodeId).collect();
    if random.one_in(4) {
        let mut gap = 0;
        for id in &mut ids {
            gap += random.len(0, 7);
            id.0 += gap;
        }
    }
    let numa_nodes: BTreeMap<NumaNodeId, Distances> = ids
        .iter()
        .map(|from| {
            let row = ids.iter().map(|to| match from == to {
                true => (*to, 10),
                false => (*to, random.pick(&[11, 12, 12, 20, 20, 32])),
            });
            (*from, row.collect())
        })
        .collect();
    let settings = TopologySettings {
        policy: random.pick(&[
            TopologyManagerPolicy::BestEffort,
            TopologyManagerPolicy::Restricted,
            TopologyManagerPolicy::Restricted,
            TopologyManagerPolicy::SingleNumaNode,
        ]),
        scope: Default::default(),
        prefer_closest: random.one_in(2),
        max_numa_nodes: None,
    };
    let manager = TopologyManager::new(settings, &numa_nodes).expect("good nodes");
    let mut hints: Vec<Hints> = Vec::new();
    for _ in 0..n_lists {
        // Memory and huge pages have the same hints.
        let again = hints.last().filter(|_| random.one_in(6)).cloned();
        hints.push(again.unwrap_or_else(|| any_hints(random, manager.nodes())));
    }
    Case {
        manager,
        numa_nodes,
        hints,
    }
}

fn check_cases(n_cases: usize, nodes: [u32; 2], lists: [u32; 2], most: usize) {
    let mut random = Random(1);
    let (mut n_checked, mut n_preferred) = (0, 0);
    while n_checked < n_cases {
        let n_nodes = random.len(nodes[0], nodes[1]);
        let n_lists = random.len(lists[0], lists[1]) as usize;
        if let Some(merge) = any_case(&mut random, n_nodes, n_lists).check(most) {
            n_checked += 1;
            n_preferred += usize::from(merge.hint.preferred);
        }
    }
    let share = n_checked / 10;
    assert!(
        (share..=9 * share).contains(&n_preferred),
        "{n_preferred} of {n_checked}"
    );
}

#[test]
fn hints_over_few_nodes_merge_as_in_kubelet() {
    check_cases(4000, [1, 4], [0, 4], 20_000);
}

#[test]
fn hints_over_up_to_8_nodes_merge_as_in_kubelet() {
    check_cases(2000, [5, 8], [1, 4], 70_000);
}

/// The fold gives what the walk gives, and serves where the walk does not end.
#[test]
fn many_lists_over_up_to_10_nodes_merge_as_in_kubelet() {
    let mut random = Random(2);
    for _ in 0..300 {
        let (n_nodes, n_lists) = (random.len(2, 4), random.len(0, 4) as usize);
        any_case(&mut random, n_nodes, n_lists).check_against(|kubelet, lists| {
            let n = lists
                .iter()
                .fold(1_usize, |n, it| n.saturating_mul(it.len()));
            let folded = kubelet.merge_folded(lists);
            assert!(n > 20_000 || folded == kubelet.merge(lists));
            Some(folded)
        });
    }
    for _ in 0..150 {
        let n_nodes = random.len(6, 8);
        let n_lists = random.len(4, 6) as usize;
        any_case(&mut random, n_nodes, n_lists)
            .check_against(|kubelet, lists| Some(kubelet.merge_folded(lists)));
    }
    for _ in 0..20 {
        any_case(&mut random, 10, 3)
            .check_against(|kubelet, lists| Some(kubelet.merge_folded(lists)));
    }
}

/// A list that gives every mask of two nodes, and anywhere, in every way: not, or preferred or not.
fn every_list() -> impl Iterator<Item = Hints> {
    (0..81).map(|n: u32| {
        let flag = |digit: u32| n / 3_u32.pow(digit) % 3;
        let masks = [None, Some(1), Some(2), Some(3)];
        let listed = (0..).zip(masks).filter(|(digit, _)| flag(*digit) != 0);
        Hints::OneOf(Choices {
            listed: listed
                .map(|(digit, mask)| Hint {
                    numa: mask.map(NumaMask::from_bits),
                    preferred: flag(digit) == 2,
                })
                .collect(),
            region: None,
        })
    })
}

/// Regions over three nodes: what they have, what is needed, and how many nodes are preferred.
fn every_region() -> impl Iterator<Item = Hints> {
    (0..162).map(|n: u64| {
        let has = |node: u32| n / 3_u64.pow(node) % 3;
        let demand = Demand {
            supply: (0..3)
                .map(|it| (NumaMask::from_bits(1 << it), has(it)))
                .collect(),
            need: n / 27 % 3 + 1,
        };
        Hints::OneOf(Choices {
            listed: Vec::new(),
            region: Some(Region {
                nodes: NumaMask::from_bits(0b111),
                min_len: 1,
                contains: NumaMask::EMPTY,
                touches: Vec::new(),
                demands: vec![demand],
                preferred: Preference::Len(if n < 81 { 1 } else { 2 }),
            }),
        })
    })
}

fn check_pairs(n_nodes: u32, every: &[Hints]) {
    for policy in [
        TopologyManagerPolicy::Restricted,
        TopologyManagerPolicy::SingleNumaNode,
    ] {
        let mut case = Case {
            manager: manager(policy, n_nodes, |_, _| None),
            numa_nodes: BTreeMap::new(),
            hints: Vec::new(),
        };
        for a in every {
            for b in every {
                case.hints = vec![a.clone(), b.clone()];
                assert!(case.check(usize::MAX).is_some());
            }
        }
    }
}

#[test]
fn every_two_lists_over_2_nodes_merge_as_in_kubelet() {
    check_pairs(2, &every_list().collect::<Vec<_>>());
}

#[test]
fn every_two_regions_over_3_nodes_merge_as_in_kubelet() {
    check_pairs(3, &every_region().collect::<Vec<_>>());
}

#[test]
fn least_len_is_that_of_a_walk_over_all_masks() {
    let mut random = Random(3);
    for _ in 0..500 {
        let n = random.len(1, 8);
        let nodes = random.some(NumaMask::from_bits((1 << n) - 1), 1);
        let demands: Vec<Demand> = (0..random.below(4))
            .map(|_| any_demand(&mut random, nodes))
            .collect();
        let masks = (1..1 << n).map(NumaMask::from_bits);
        let good = masks.filter(|mask| demands.iter().all(|it| it.is_met_by(*mask)));
        let least = good.map(NumaMask::len).min();
        assert_eq!(least_len(nodes, &demands), least, "{demands:#?}");
    }
}
