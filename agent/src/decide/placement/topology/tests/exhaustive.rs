//! The merge against kubelet's own way: every combination of hints, compared two by two.

use std::collections::BTreeMap;

use super::random::{Random, any_hints};
use super::*;
use crate::decide::placement::hints::Hints;

/// Spec placement 4.3 and 4.4, word for word.
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
        let narrowest = |list: &Vec<Hint>| list.iter().filter_map(|it| Some(it.numa?.len())).min();
        let bound = lists.iter().filter_map(narrowest).max().unwrap_or(0);
        let mut best = None;
        self.walk(lists, &mut Vec::new(), &mut |combination| {
            let candidate = self.combine(combination);
            if !candidate.0.is_empty() {
                best = Some(best.map_or(candidate, |it| self.better(it, candidate, bound)));
            }
        });
        let (mask, preferred) = best.unwrap_or((self.nodes, false));
        let is_anywhere = self.is_single && mask == self.nodes;
        Hint {
            numa: (!is_anywhere).then_some(mask),
            preferred,
        }
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
    /// `None`: too many combinations to walk.
    fn check(&self, most: usize) -> Option<Merge> {
        let settings = self.manager.settings();
        let kubelet = Kubelet {
            nodes: self.manager.nodes(),
            distances: settings.prefer_closest.then_some(&self.numa_nodes),
            is_single: settings.policy == TopologyManagerPolicy::SingleNumaNode,
        };
        let lists = kubelet.lists(&self.hints);
        let n = lists
            .iter()
            .fold(1_usize, |n, it| n.saturating_mul(it.len()));
        if n > most {
            return None;
        }
        let named = self.hints.iter().enumerate();
        let named = named.map(|(i, it)| ProviderHints::from([(i.to_string(), it.clone())]));
        let merge = self.manager.merge(&named.collect::<Vec<_>>());
        assert_eq!(
            merge.hint,
            kubelet.merge(&lists),
            "{settings:?} {:?} {:#?}",
            self.numa_nodes,
            self.hints
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
