//! Masks that several regions have in common: what is left when one mask of each is laid over the
//! others.
//!
//! A region holds every mask above one that it holds, as far as its nodes go. So a mask is common to
//! masks of several regions if and only if it is non-empty, and every other node that all regions
//! have can be left out by one of them: each region leaves out its share, and what remains of its
//! nodes is still good. Larger shares are never needed: one region that lacks a node is enough.

use crate::decide::placement::hints::closeness::Closeness;
use crate::decide::placement::hints::cover::Amounts;
use crate::decide::placement::hints::search::{
    Budget, Family, N, PerNode, Row, Search, bits, whole,
};
use crate::decide::placement::hints::{Demand, Region};
use crate::model::numa::NumaMask;

/// Several regions over the nodes that may be common.
pub(super) struct Crossing {
    open: NumaMask,
    /// Nodes that no region can lack.
    required: NumaMask,
    sides: Vec<Side>,
}

/// What one region can do without.
struct Side {
    /// Nodes that it cannot lack.
    needs: NumaMask,
    demands: Vec<Amounts>,
    /// By demand: how much of it may be left out.
    slack: Vec<u64>,
}

impl Side {
    fn new(region: &Region, conditions: &[Demand], common: NumaMask) -> Self {
        let beside = region.nodes.difference(common);
        let demands: Vec<Amounts> = conditions
            .iter()
            .filter_map(|it| Amounts::new(it, beside, common))
            .collect();
        let slack: Vec<u64> = demands
            .iter()
            .map(|it| it.of(common).saturating_sub(it.need))
            .collect();
        let mut side = Self {
            needs: region.contains.intersection(common),
            demands,
            slack,
        };
        let nodes = bits(common.bits()).map(|id| NumaMask::from_bits(1 << id));
        let needed = nodes.filter(|it| !side.can_lack(*it));
        side.needs = needed.fold(side.needs, NumaMask::union);
        side
    }

    fn can_lack(&self, nodes: NumaMask) -> bool {
        let mut demands = self.demands.iter().zip(&self.slack);
        self.needs.is_disjoint(nodes)
            && demands.all(|(it, slack)| {
                let single = bits(nodes.bits()).map(|id| it.single[id]);
                let groups = it.groups.iter().filter(|it| it.0.is_subset(nodes));
                let lost = single.chain(groups.map(|it| it.1));
                lost.fold(0, u64::saturating_add) <= *slack
            })
    }
}

impl Crossing {
    /// `common`: the nodes that masks may have, all of them in every region. Each region, with its
    /// conditions, holds the mask of all its nodes.
    pub(super) fn new<'a>(
        common: NumaMask,
        regions: impl IntoIterator<Item = (&'a Region, &'a [Demand])>,
    ) -> Self {
        let sides: Vec<Side> = regions
            .into_iter()
            .map(|(region, conditions)| Side::new(region, conditions, common))
            .collect();
        let required = sides
            .iter()
            .map(|it| it.needs)
            .fold(common, NumaMask::intersection);
        Self {
            open: common.difference(required),
            required,
            sides,
        }
    }

    /// As [`Search::best`].
    pub(super) fn best(
        &self,
        len: u32,
        closeness: Option<&Closeness>,
        limit: Option<u64>,
        budget: &mut Budget,
    ) -> Option<NumaMask> {
        let n = self.open.union(self.required).len().checked_sub(len)?;
        let prices = Prices::new(self, n as usize);
        let row = prices.row(self);
        let search = Search::new(
            self.open,
            self.required,
            row.into_iter().collect(),
            closeness,
            |a, b| self.can_replace(a, b),
        );
        let mut shares = Shares {
            crossing: self,
            prices: &prices,
            shares: vec![NumaMask::EMPTY; self.sides.len()],
        };
        search.best(len, limit, &mut shares, budget)
    }

    /// Whether a side that can lack `a` can lack `b` in its place, and all the others too.
    fn can_replace(&self, a: usize, b: usize) -> bool {
        self.sides.iter().all(|side| {
            let needs = side.needs.bits();
            (needs >> b & 1 == 0 || needs >> a & 1 == 1)
                && side.demands.iter().all(|it| it.can_replace(a, b))
        })
    }
}

/// A node's price on the side where it is cheapest to leave out: a sum of the parts of its slack that
/// it takes. Chosen so that the nodes left out cost as much as they can in all, since nothing can be
/// left out for more than all the slack costs.
struct Prices {
    /// By side, by demand.
    factors: Vec<Vec<f64>>,
}

/// Times that prices are corrected; they settle within a few dozen.
const N_ROUNDS: usize = 32;
/// What all the slack of one demand counts as in a row.
const SCALE: u64 = 1 << 32;

impl Prices {
    /// For `n` nodes left out.
    fn new(crossing: &Crossing, n: usize) -> Self {
        let sides = &crossing.sides;
        let n_demands = sides
            .iter()
            .map(|it| it.demands.len())
            .sum::<usize>()
            .max(1);
        let even = 1.0 / n_demands as f64;
        let mut prices = Self {
            factors: sides
                .iter()
                .map(|it| vec![even; it.demands.len()])
                .collect(),
        };
        let mut best = (f64::NEG_INFINITY, prices.factors.clone());
        let mut cheapest = Vec::new();
        for _ in 0..N_ROUNDS {
            cheapest.clear();
            cheapest.extend(bits(crossing.open.bits()).filter_map(|id| {
                let each = sides.iter().enumerate();
                let each = each.filter(|(_, it)| it.needs.bits() >> id & 1 == 0);
                each.map(|(side, it)| (prices.of(side, it, id), side, id))
                    .min_by(|a, b| a.0.total_cmp(&b.0))
            }));
            cheapest.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
            cheapest.truncate(n);
            let cost: f64 = cheapest.iter().map(|it| it.0).sum();
            if cost > best.0 {
                best = (cost, prices.factors.clone());
            }
            let mut total = 0.0;
            for (i, side) in sides.iter().enumerate() {
                let demands = side.demands.iter().zip(&side.slack);
                for ((amounts, slack), factor) in demands.zip(&mut prices.factors[i]) {
                    let out = cheapest.iter().filter(|it| it.1 == i);
                    let load: f64 = out.map(|it| part(amounts.single[it.2], *slack)).sum();
                    *factor *= 1.0 + (load - 1.0).clamp(-0.5, 0.5);
                    total += *factor;
                }
            }
            prices
                .factors
                .iter_mut()
                .flatten()
                .for_each(|it| *it /= total);
        }
        Self { factors: best.1 }
    }

    fn of(&self, side: usize, amounts: &Side, id: usize) -> f64 {
        let demands = amounts.demands.iter().zip(&amounts.slack);
        demands
            .zip(&self.factors[side])
            .map(|((it, slack), factor)| part(it.single[id], *slack) * factor)
            .sum()
    }

    /// What masks must have, that nothing is left out for more than the slack costs; in whole
    /// numbers, those of the nodes rounded down. `None`: anything can be left out at these prices.
    fn row(&self, crossing: &Crossing) -> Option<Row> {
        let factors: Vec<Vec<u64>> = self
            .factors
            .iter()
            .map(|side| side.iter().map(|it| whole(it * 4096.0)).collect())
            .collect();
        let mut weights: PerNode = [0; N];
        for id in bits(crossing.open.bits()) {
            let sides = crossing.sides.iter().zip(&factors);
            let able = sides.filter(|(it, _)| it.needs.bits() >> id & 1 == 0);
            let prices = able.map(|(side, factors)| {
                let demands = side.demands.iter().zip(&side.slack).zip(factors);
                demands
                    .map(|((it, slack), factor)| whole_part(it.single[id], *slack) * factor)
                    .sum()
            });
            weights[id] = prices.min().unwrap_or(0);
        }
        let slack = factors.iter().flatten().sum::<u64>() * SCALE;
        let need = weights.iter().sum::<u64>().checked_sub(slack)?;
        (need > 0).then(|| Row::new(weights, need))
    }
}

/// Of the slack; the node is one that may be left out.
fn part(amount: u64, slack: u64) -> f64 {
    match amount {
        0 => 0.0,
        _ => amount as f64 / slack as f64,
    }
}

fn whole_part(amount: u64, slack: u64) -> u64 {
    let part = (u128::from(amount) * u128::from(SCALE)).checked_div(u128::from(slack));
    u64::try_from(part.unwrap_or(0)).unwrap_or(SCALE)
}

/// Who leaves out what, as far as it is settled.
struct Shares<'a> {
    crossing: &'a Crossing,
    prices: &'a Prices,
    /// By side. They have no node in common.
    shares: Vec<NumaMask>,
}

impl Family for Shares<'_> {
    fn may_hold(&mut self, taken: NumaMask, open: NumaMask, _: usize, budget: &mut Budget) -> bool {
        let out = self.crossing.open.difference(taken.union(open));
        let known = self
            .shares
            .iter()
            .fold(NumaMask::EMPTY, |it, share| it.union(*share));
        if out.is_subset(known) {
            return true;
        }
        let kept: Vec<NumaMask> = self.shares.iter().map(|it| it.intersection(out)).collect();
        let found = self
            .give_out(kept, self.by_price(out.difference(known)), budget)
            .or_else(|| {
                let none = vec![NumaMask::EMPTY; self.shares.len()];
                self.give_out(none, self.by_price(out), budget)
            })
            .or_else(|| {
                let mut shares = vec![NumaMask::EMPTY; self.shares.len()];
                let nodes = self.by_price(out);
                self.divide(&nodes, &mut shares, budget).then_some(shares)
            });
        match found {
            Some(shares) => {
                self.shares = shares;
                true
            }
            None => false,
        }
    }
}

impl Shares<'_> {
    /// The dearest first: they are the hardest to find a place for.
    fn by_price(&self, nodes: NumaMask) -> Vec<usize> {
        let price = |id: usize| {
            let sides = self.crossing.sides.iter().enumerate();
            let able = sides.filter(|(_, it)| it.needs.bits() >> id & 1 == 0);
            let prices = able.map(|(i, it)| self.prices.of(i, it, id));
            prices.fold(f64::INFINITY, f64::min)
        };
        let mut nodes: Vec<(f64, usize)> = bits(nodes.bits()).map(|id| (price(id), id)).collect();
        nodes.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        nodes.into_iter().map(|it| it.1).collect()
    }

    /// The sides that can leave out one node more, the cheapest first; of sides in the same state
    /// one.
    fn able(&self, shares: &[NumaMask], id: usize) -> Vec<usize> {
        let node = NumaMask::from_bits(1 << id);
        let sides = self.crossing.sides.iter().enumerate();
        let mut able: Vec<(f64, usize)> = sides
            .filter(|(i, it)| it.can_lack(shares[*i].union(node)))
            .map(|(i, it)| (self.prices.of(i, it, id), i))
            .collect();
        able.sort_by(|a, b| a.0.total_cmp(&b.0));
        able.into_iter().map(|it| it.1).collect()
    }

    /// Each node to the side where it is cheapest.
    fn give_out(
        &self,
        mut shares: Vec<NumaMask>,
        nodes: Vec<usize>,
        budget: &mut Budget,
    ) -> Option<Vec<NumaMask>> {
        for id in nodes {
            budget.spend(1);
            let side = *self.able(&shares, id).first()?;
            shares[side] = shares[side].union(NumaMask::from_bits(1 << id));
        }
        Some(shares)
    }

    /// Tries every way to give the nodes to the sides.
    fn divide(&self, nodes: &[usize], shares: &mut [NumaMask], budget: &mut Budget) -> bool {
        let Some((id, rest)) = nodes.split_first() else {
            return true;
        };
        self.able(shares, *id).into_iter().any(|side| {
            let before = shares[side];
            shares[side] = before.union(NumaMask::from_bits(1 << *id));
            let is_done = budget.spend(1) && self.divide(rest, shares, budget);
            if !is_done {
                shares[side] = before;
            }
            is_done
        })
    }
}
