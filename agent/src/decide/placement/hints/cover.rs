//! Masks that meet demands, without listing them all.

use super::closeness::Closeness;
use super::search::{Budget, Family, N, PerNode, Row, Search, bits};
use super::{Demand, Region};
use crate::model::numa::NumaMask;

/// A demand as search works on it: what the nodes that are there in any case supply is taken off.
#[derive(Clone, Debug)]
pub(in crate::decide::placement) struct Amounts {
    /// By node, what can be had from it alone.
    pub(in crate::decide::placement) single: PerNode,
    /// What can be had from either of several nodes.
    pub(in crate::decide::placement) groups: Vec<(NumaMask, u64)>,
    are_groups_apart: bool,
    pub(in crate::decide::placement) need: u64,
}

impl Amounts {
    /// `None`: the nodes `there` are enough. Nodes outside `open` and `there` supply nothing.
    pub(in crate::decide::placement) fn new(
        demand: &Demand,
        there: NumaMask,
        open: NumaMask,
    ) -> Option<Self> {
        let mut amounts = Self {
            single: [0; N],
            groups: Vec::new(),
            are_groups_apart: true,
            need: demand.need,
        };
        for (nodes, amount) in &demand.supply {
            let open = nodes.intersection(open);
            if !nodes.is_disjoint(there) {
                amounts.need = amounts.need.saturating_sub(*amount);
            } else if open.len() == 1 {
                let single = &mut amounts.single[open.bits().trailing_zeros() as usize];
                *single = single.saturating_add(*amount);
            } else if !open.is_empty() {
                amounts.add_group(open, *amount);
            }
        }
        (amounts.need > 0).then_some(amounts)
    }

    fn add_group(&mut self, nodes: NumaMask, amount: u64) {
        let mut groups = self.groups.iter_mut();
        if let Some((_, sum)) = groups.find(|it| it.0 == nodes) {
            *sum = sum.saturating_add(amount);
            return;
        }
        self.are_groups_apart &= self.groups.iter().all(|it| it.0.is_disjoint(nodes));
        self.groups.push((nodes, amount));
    }

    /// What can be had from the open nodes of a mask.
    pub(in crate::decide::placement) fn of(&self, mask: NumaMask) -> u64 {
        let single = bits(mask.bits()).map(|id| self.single[id]);
        let groups = self.groups.iter().filter(|it| !it.0.is_disjoint(mask));
        single
            .chain(groups.map(|it| it.1))
            .fold(0, u64::saturating_add)
    }

    /// By node, what it has, alone or with others.
    fn at_most(&self) -> PerNode {
        let mut each = self.single;
        for (nodes, amount) in &self.groups {
            for id in bits(nodes.bits()) {
                each[id] = each[id].saturating_add(*amount);
            }
        }
        each
    }

    /// Whether node `a` supplies all that `b` does.
    pub(in crate::decide::placement) fn can_replace(&self, a: usize, b: usize) -> bool {
        let (a_bit, b_bit) = (1 << a, 1 << b);
        self.single[a] >= self.single[b]
            && self
                .groups
                .iter()
                .all(|(nodes, _)| nodes.bits() & b_bit == 0 || nodes.bits() & a_bit != 0)
    }

    /// Whether `n` more of the `open` nodes could be enough. What each adds to `taken` counts as if
    /// no two of them shared any of it; of groups without a node in common, as it really is.
    fn may_be_met(&self, taken: NumaMask, open: NumaMask, n: usize) -> bool {
        let missing = self.need.saturating_sub(self.of(taken));
        if missing == 0 || n == 0 {
            return missing == 0;
        }
        let mut adds = self.single;
        for (nodes, amount) in self.groups.iter().filter(|it| it.0.is_disjoint(taken)) {
            let nodes = bits(nodes.intersection(open).bits());
            // Of a group's nodes the one with most of its own is the first that is worth taking.
            let best = nodes.clone().max_by_key(|id| self.single[*id]);
            for id in nodes.filter(|id| !self.are_groups_apart || Some(*id) == best) {
                adds[id] = adds[id].saturating_add(*amount);
            }
        }
        let mut adds: Vec<u64> = bits(open.bits()).map(|id| adds[id]).collect();
        adds.sort_unstable_by(|a, b| b.cmp(a));
        let sum = adds
            .iter()
            .take(n)
            .fold(0_u64, |sum, it| sum.saturating_add(*it));
        sum >= missing
    }
}

/// Masks must share nodes with so many packages.
#[derive(Clone, Copy, Debug)]
pub(in crate::decide::placement) struct InPackages<'a> {
    pub(in crate::decide::placement) packages: &'a [NumaMask],
    pub(in crate::decide::placement) n: u32,
}

impl InPackages<'_> {
    fn count(&self, mask: NumaMask) -> u32 {
        let touched = self.packages.iter().filter(|it| !it.is_disjoint(mask));
        touched.fold(0, |n, _| n + 1)
    }

    /// The `open` nodes that may still be taken; `None`: there will be too many packages or too few.
    fn open(&self, taken: NumaMask, open: NumaMask) -> Option<NumaMask> {
        let n_taken = self.count(taken);
        if n_taken > self.n || self.count(taken.union(open)) < self.n {
            return None;
        }
        if n_taken < self.n {
            return Some(open);
        }
        let others = self.packages.iter().filter(|it| it.is_disjoint(taken));
        Some(others.fold(open, |open, it| open.difference(*it)))
    }
}

/// The masks that lie in several regions at once.
#[derive(Clone, Debug)]
pub(in crate::decide::placement) struct Cover<'a> {
    open: NumaMask,
    required: NumaMask,
    demands: Vec<Amounts>,
    packages: Vec<InPackages<'a>>,
}

impl<'a> Cover<'a> {
    /// Masks of `nodes` that contain `required` and, together with the nodes `beside`, meet the
    /// demands. `None`: not even all nodes do.
    pub(in crate::decide::placement) fn new<'d>(
        nodes: NumaMask,
        required: NumaMask,
        beside: NumaMask,
        demands: impl IntoIterator<Item = &'d Demand>,
    ) -> Option<Self> {
        if nodes.is_empty() || !required.is_subset(nodes) {
            return None;
        }
        let open = nodes.difference(required);
        let there = required.union(beside);
        let demands: Vec<Amounts> = demands
            .into_iter()
            .filter_map(|it| Amounts::new(it, there, open))
            .collect();
        let can_be_met = demands.iter().all(|it| it.of(open) >= it.need);
        can_be_met.then_some(Self {
            open,
            required,
            demands,
            packages: Vec::new(),
        })
    }

    /// With packages that masks must keep to.
    pub(in crate::decide::placement) fn in_packages(
        mut self,
        packages: Vec<InPackages<'a>>,
    ) -> Self {
        self.packages = packages;
        self
    }

    /// The fewest nodes that such a mask has. Where the budget ends it is too high, if not by much.
    pub(in crate::decide::placement) fn least_len(&self, budget: &mut Budget) -> u32 {
        let mut search = self.search(None);
        let all = self.open.union(self.required).len();
        (self.required.len().max(1)..all)
            .find(|len| self.best_of(&mut search, *len, None, budget).is_some())
            .unwrap_or(all)
    }

    /// As [`Search::best`].
    pub(in crate::decide::placement) fn best(
        &self,
        len: u32,
        closeness: Option<&Closeness>,
        limit: Option<u64>,
        budget: &mut Budget,
    ) -> Option<NumaMask> {
        self.best_of(&mut self.search(closeness), len, limit, budget)
    }

    fn search<'c>(&self, closeness: Option<&'c Closeness>) -> Search<'c> {
        let rows = self
            .demands
            .iter()
            .map(|it| Row::new(it.at_most(), it.need));
        let is_in_same_packages = |a: usize, b: usize| {
            let mut packages = self.packages.iter().flat_map(|it| it.packages);
            packages.all(|it| it.bits() >> a & 1 == it.bits() >> b & 1)
        };
        Search::new(
            self.open,
            self.required,
            rows.collect(),
            closeness,
            |a, b| self.demands.iter().all(|it| it.can_replace(a, b)) && is_in_same_packages(a, b),
        )
    }

    fn best_of(
        &self,
        search: &mut Search<'_>,
        len: u32,
        limit: Option<u64>,
        budget: &mut Budget,
    ) -> Option<NumaMask> {
        search.combine_rows(len);
        search.best(len, limit, &mut Members(self), budget)
    }
}

struct Members<'a>(&'a Cover<'a>);

impl Family for Members<'_> {
    fn may_hold(&mut self, taken: NumaMask, open: NumaMask, n: usize, budget: &mut Budget) -> bool {
        let mut is_restricted = false;
        let mut may_take = open;
        for packages in &self.0.packages {
            match packages.open(taken, may_take) {
                None => return false,
                Some(left) => may_take = left,
            }
            is_restricted = may_take != open;
        }
        if (may_take.len() as usize) < n {
            return false;
        }
        let taken = taken.intersection(self.0.open);
        let mut demands = self
            .0
            .demands
            .iter()
            .filter(|it| is_restricted || !it.groups.is_empty());
        demands.all(|it| {
            budget.spend(1);
            it.may_be_met(taken, may_take, n)
        })
    }
}

impl Region {
    /// Its conditions on masks of its nodes that have those it [`contains`](Region::contains).
    pub(in crate::decide::placement) fn conditions(&self) -> Vec<Demand> {
        let each = |id: usize| (NumaMask::from_bits(1 << id), 1);
        let len = (self.min_len > 1).then(|| Demand {
            supply: bits(self.nodes.bits()).map(each).collect(),
            need: u64::from(self.min_len),
        });
        let touches = self.touches.iter().map(|it| Demand {
            supply: vec![(*it, 1)],
            need: 1,
        });
        self.demands
            .iter()
            .cloned()
            .chain(touches)
            .chain(len)
            .collect()
    }
}
