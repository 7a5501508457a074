//! `distribute-cpus-across-numa`: as many CPUs from each of the fewest NUMA nodes that allow it
//! (pkg/kubelet/cm/cpumanager/cpu_assignment.go, v1.36: `takeByTopologyNUMADistributed`).
//!
//! Which of the nodes that would do is decided by the balance that is left: the standard deviation of
//! the free CPUs over all nodes. Up to [`MAX_SEARCHED_NODES`] nodes every combination is looked at,
//! in kubelet's order. Beyond, where kubelet's search takes seconds at 16 nodes and does not end at
//! 64, the best nodes are taken directly: those with the most free CPUs, since each node chosen
//! lowers the sum of squares by twice its free CPUs. The balance is as good; of equally balanced
//! choices another can be taken.

use std::cmp::Reverse;

use super::{Spreading, TakeError, TakeRule, Taker};
use crate::config::Compat;
use crate::decide::placement::cpu::topology::Level;
use crate::model::cpuset::CpuSet;

/// NUMA nodes with free CPUs up to which all combinations are tried: the number that kubelet's
/// topology manager is limited to by default. No more than 3^8 ways to give are compared.
const MAX_SEARCHED_NODES: usize = 8;

/// From which nodes CPUs are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    nodes: Vec<usize>,
    /// Of those, the ones that give a group more each, in turns, until all is given.
    givers: Vec<usize>,
}

/// A request in the numbers of one size of combination.
struct Request<'a> {
    n: usize,
    group_size: usize,
    /// CPUs that each node of the combination gives.
    share: usize,
    /// CPUs left to give after that.
    rest: usize,
    /// Nodes with free CPUs, in the order of the search.
    nodes: &'a [usize],
    /// By node.
    free: &'a [usize],
    compat: Compat,
}

impl Taker<'_> {
    /// Whether there was a way to distribute; if not, nothing is taken.
    pub(super) fn distribute(&mut self, n: usize, group_size: usize) -> Result<bool, TakeError> {
        let mut nodes = Vec::new();
        for node in self.numa_nodes() {
            // One of two packages comes twice.
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        let n_groups = self.topology.n_cpus().div_ceil(group_size);
        let groups_per_node = n_groups.div_ceil(self.topology.n_numa_nodes());
        let groups_needed = n.div_ceil(group_size);
        let least = groups_needed.div_ceil(groups_per_node);
        let most = groups_needed.min(nodes.len());
        let free = self.free[Level::NumaNode as usize].clone();
        for k in least..=most {
            let share = n / k / group_size * group_size;
            let request = Request {
                n,
                group_size,
                share,
                rest: n - share * k,
                nodes: &nodes,
                free: &free,
                compat: self.rule.compat,
            };
            let choice = if nodes.len() <= MAX_SEARCHED_NODES {
                request.search(k)
            } else {
                request.most_free(k)
            };
            if let Some(choice) = choice {
                self.take_from(&choice, &request);
                return match self.need {
                    0 => Ok(true),
                    remaining => Err(TakeError::Accounting { remaining }),
                };
            }
        }
        Ok(false)
    }

    fn take_from(&mut self, choice: &Choice, request: &Request) {
        for node in &choice.nodes {
            self.take_packed(*node, request.share);
        }
        let group_size = request.group_size;
        let mut rest = request.rest;
        while rest > 0 {
            let before = rest;
            for node in &choice.givers {
                if rest > 0 && self.free_in(Level::NumaNode, *node) >= group_size {
                    self.take_packed(*node, group_size);
                    rest -= group_size;
                }
            }
            if rest == before {
                // The givers were overwritten with nodes that cannot give; kubelet never ends here.
                return;
            }
        }
    }

    /// Takes `n` free CPUs of a node, or none.
    fn take_packed(&mut self, node: usize, n: usize) {
        let cpus = self.topology.cpus_of(Level::NumaNode, node);
        let free: CpuSet = cpus
            .iter()
            .filter(|it| self.is_free[**it])
            .map(|it| self.topology.id(*it))
            .collect();
        let rule = TakeRule {
            spreading: Spreading::Packed {
                align_by_llc: false,
            },
            ..self.rule
        };
        let taken = super::take(self.topology, &free, n, rule).unwrap_or_default();
        for cpu in taken.iter().filter_map(|it| self.topology.index(it)) {
            self.take_cpu(cpu);
        }
    }
}

impl Request<'_> {
    /// Groups that a node can give that has so many free CPUs.
    fn groups(&self, free: usize) -> usize {
        free / self.group_size
    }

    fn is_enough(&self, nodes: &[usize]) -> bool {
        let groups: usize = nodes.iter().map(|it| self.groups(self.free[*it])).sum();
        groups * self.group_size >= self.n && nodes.iter().all(|it| self.free[*it] >= self.share)
    }

    /// Free CPUs by node, once `nodes` have given their share.
    fn after_share(&self, nodes: &[usize]) -> Vec<usize> {
        let mut after = self.free.to_vec();
        for node in nodes {
            after[*node] -= self.share;
        }
        after
    }

    /// Free CPUs by node, once the givers have given the rest in turns; `None` if they cannot.
    /// Kubelet counts CPUs here and not whole groups, and never ends where those differ.
    fn after_giving(&self, after_share: &[usize], givers: &[usize]) -> Option<Vec<usize>> {
        let groups: usize = givers.iter().map(|it| self.groups(after_share[*it])).sum();
        let mut rest = self.groups(self.rest);
        if groups < rest {
            return None;
        }
        let mut after = after_share.to_vec();
        for giver in givers.iter().cycle() {
            if rest == 0 {
                break;
            }
            if after[*giver] >= self.group_size {
                after[*giver] -= self.group_size;
                rest -= 1;
            }
        }
        Some(after)
    }

    /// Standard deviation of the free CPUs of all nodes, rounded as kubelet does: balances that
    /// differ by less are equal.
    fn imbalance(&self, free: &[usize]) -> f64 {
        let round = |x: f64| (x * 1000.0).round() / 1000.0;
        let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
        let free = || self.nodes.iter().map(|it| count(free[*it]));
        let n = count(self.nodes.len());
        let mean = round(free().sum::<f64>() / n);
        round((free().map(|it| (it - mean) * (it - mean)).sum::<f64>() / n).sqrt())
    }

    /// The best of all combinations of `k` nodes, the first of equals.
    fn search(&self, k: usize) -> Option<Choice> {
        let mut best: Option<(f64, Choice)> = None;
        for nodes in combinations(self.nodes, k) {
            if let Some((imbalance, choice)) = &mut best {
                self.overwrite(&mut choice.nodes, &nodes);
                if *imbalance == 0.0 {
                    break;
                }
            }
            if !self.is_enough(&nodes) {
                continue;
            }
            let Some((imbalance, givers)) = self.search_givers(&nodes) else {
                continue;
            };
            if best.as_ref().is_none_or(|it| imbalance < it.0) {
                best = Some((imbalance, Choice { nodes, givers }));
            }
        }
        best.map(|it| it.1)
    }

    /// The best of all ways to give the rest, the first of equals.
    fn search_givers(&self, nodes: &[usize]) -> Option<(f64, Vec<usize>)> {
        let after = self.after_share(nodes);
        if self.rest == 0 {
            return Some((self.imbalance(&after), Vec::new()));
        }
        let mut able = nodes.to_vec();
        able.retain(|it| self.groups(after[*it]) > 0);
        let mut best: Option<(f64, Vec<usize>)> = None;
        for k in (1..=able.len()).rev() {
            for givers in combinations(&able, k) {
                if let Some((_, best)) = &mut best {
                    self.overwrite(best, &givers);
                }
                let Some(after) = self.after_giving(&after, &givers) else {
                    continue;
                };
                let imbalance = self.imbalance(&after);
                if best.as_ref().is_none_or(|it| imbalance < it.0) {
                    best = Some((imbalance, givers));
                }
            }
        }
        best
    }

    /// Kubelet remembers a combination by reference to an array that doubles as it grows. Those of
    /// one length with the same first 1, 2, 3, 5, 9, ... elements have the array in common, so the
    /// one remembered becomes the last of them that is looked at.
    fn overwrite(&self, remembered: &mut [usize], current: &[usize]) {
        if self.compat == Compat::Kubelet && remembered.len() == current.len() {
            let n_own = current.len().next_power_of_two() / 2 + 1;
            if remembered.get(..n_own) == current.get(..n_own) {
                remembered.copy_from_slice(current);
            }
        }
    }

    /// Without a search: the nodes with the most free CPUs, the rest from who has most left each
    /// time.
    fn most_free(&self, k: usize) -> Option<Choice> {
        let mut by_free: Vec<(usize, usize)> = self.nodes.iter().copied().enumerate().collect();
        by_free.sort_by_key(|(place, node)| (Reverse(self.free[*node]), *place));
        by_free.truncate(k);
        by_free.sort_unstable();
        let nodes: Vec<usize> = by_free.into_iter().map(|it| it.1).collect();
        if !self.is_enough(&nodes) {
            return None;
        }
        let mut after = self.after_share(&nodes);
        let mut givers = Vec::new();
        for _ in 0..self.groups(self.rest) {
            // Of equals the first: `max_by_key` gives the last.
            let most = nodes.iter().copied().rev().max_by_key(|it| after[*it])?;
            after[most] = after[most].checked_sub(self.group_size)?;
            givers.push(most);
        }
        Some(Choice { nodes, givers })
    }
}

/// The combinations of `k` items, in lexicographic order of their places.
fn combinations(items: &[usize], k: usize) -> impl Iterator<Item = Vec<usize>> {
    let n = items.len();
    let first: Option<Vec<usize>> = (1..=n).contains(&k).then(|| (0..k).collect());
    std::iter::successors(first, move |places| {
        // The last place that can move up does, and those after it follow it.
        let moved = (0..k).rfind(|i| places[*i] < n - k + i)?;
        let mut next = places.clone();
        for (place, value) in next[moved..].iter_mut().zip(places[moved] + 1..) {
            *place = value;
        }
        Some(next)
    })
    .map(|places| places.into_iter().map(|it| items[it]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::placement::cpu::testing::Random;

    /// The choice without a search leaves no worse a balance than the best of all combinations.
    #[test]
    fn the_direct_choice_is_as_even_as_the_best_of_all() {
        let mut random = Random::new(3);
        let mut n_compared = 0;
        for _ in 0..3_000 {
            let mut number = |n: u32| usize::try_from(random.below(n)).expect("fits");
            let group_size = 1 + number(3);
            let n_nodes = 2 + number(6);
            let free: Vec<usize> = (0..n_nodes).map(|_| 1 + number(20)).collect();
            let mut nodes: Vec<usize> = (0..n_nodes).collect();
            nodes.sort_by_key(|it| (free[*it], *it));
            let n = group_size * (1 + number(20));
            let k = 1 + number(5);
            let share = n / k / group_size * group_size;
            let request = Request {
                n,
                group_size,
                share,
                rest: n - share * k,
                nodes: &nodes,
                free: &free,
                compat: Compat::Ballast,
            };
            if share == 0 || k > n_nodes {
                continue;
            }
            let (searched, direct) = (request.search(k), request.most_free(k));
            assert_eq!(searched.is_some(), direct.is_some(), "{n} of {free:?}");
            if let (Some(searched), Some(direct)) = (searched, direct) {
                let left = |it: &Choice| {
                    let mut after = request.after_share(&it.nodes);
                    let groups = request.groups(request.rest);
                    let mut rest = groups;
                    for giver in it.givers.iter().cycle().take(groups * it.givers.len()) {
                        if rest > 0 && after[*giver] >= group_size {
                            after[*giver] -= group_size;
                            rest -= 1;
                        }
                    }
                    request.imbalance(&after)
                };
                assert!(left(&direct) <= left(&searched), "{n} of {free:?}");
                n_compared += 1;
            }
        }
        assert!(n_compared > 500, "{n_compared}");
    }

    #[test]
    fn combinations_come_in_the_order_of_their_places() {
        let of = |items: &[usize], k| combinations(items, k).collect::<Vec<_>>();
        assert_eq!(of(&[5, 3, 9], 2), [[5, 3], [5, 9], [3, 9]]);
        assert_eq!(of(&[5, 3], 2), [[5, 3]]);
        assert!(of(&[5, 3], 3).is_empty() && of(&[5], 0).is_empty());
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8], 4).len(), 70);
    }
}
