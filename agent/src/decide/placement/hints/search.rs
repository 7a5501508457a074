//! The search for the best mask of a given number of nodes.
//!
//! Branch and bound over the nodes, highest id first, each left out before it is taken: masks come
//! up in the order of their integer value, so that the first of all those equally close is the one
//! that kubelet takes. A branch is given up when the nodes still open cannot meet a condition even
//! if the best of them are taken, when they cannot come closer together than what is found, or when
//! a node was taken although a lower one would do in its place.
//!
//! Invariant: work is counted and never timed; the same question gets the same answer.

use super::closeness::{Closeness, Spread};
use crate::model::numa::{MAX_NUMA_NODES, NumaMask};

pub(in crate::decide::placement) const N: usize = MAX_NUMA_NODES as usize;

/// By node id.
pub(in crate::decide::placement) type PerNode = [u64; N];

/// Steps that may still be taken.
#[derive(Clone, Copy, Debug)]
pub(in crate::decide::placement) struct Budget {
    given: u64,
    left: u64,
    is_cut: bool,
}

impl Budget {
    pub(in crate::decide::placement) fn new(steps: u64) -> Self {
        Self {
            given: steps,
            left: steps,
            is_cut: false,
        }
    }

    /// False: nothing is left, and what is found by then has to do.
    pub(in crate::decide::placement) fn spend(&mut self, steps: u64) -> bool {
        self.is_cut |= self.left < steps;
        self.left = self.left.saturating_sub(steps);
        !self.is_cut
    }

    /// Steps that were taken.
    pub(in crate::decide::placement) fn spent(&self) -> u64 {
        self.given - self.left
    }

    /// Whether a search was given up.
    pub(in crate::decide::placement) fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// What a mask must fulfil beyond the [`Row`]s of its search.
pub(in crate::decide::placement) trait Family {
    /// Whether a mask of all of `taken` and of `n` of the `open` nodes can be good. It may say yes
    /// in error unless nothing is open; never no.
    fn may_hold(&mut self, taken: NumaMask, open: NumaMask, n: usize, budget: &mut Budget) -> bool;
}

/// The nodes of a mask must have `need` between them.
#[derive(Clone, Debug)]
pub(in crate::decide::placement) struct Row {
    weights: PerNode,
    need: u64,
}

impl Row {
    pub(in crate::decide::placement) fn new(weights: PerNode, need: u64) -> Self {
        Self {
            weights: weights.map(|it| it.min(need)),
            need,
        }
    }
}

/// The nodes to choose from, and what is known of every good mask.
pub(in crate::decide::placement) struct Search<'a> {
    /// Those open to choice, ascending.
    ids: Vec<usize>,
    /// By number of ids: the first of them as a mask.
    firsts: Vec<u64>,
    /// In every mask, and not open.
    required: NumaMask,
    rows: Vec<Row>,
    /// Those that came with the question.
    n_given_rows: usize,
    /// By row: the sum of the `r` largest weights of the first `p` open nodes, at
    /// `p * (ids.len() + 1) + r`.
    tops: Vec<Vec<u64>>,
    /// By node: lower ones that would do in its place. It is never taken without them.
    betters: PerNode,
    closeness: Option<&'a Closeness>,
}

impl<'a> Search<'a> {
    /// `can_replace(a, b)`: a good mask with `b` and without `a` stays good with `a` in the place of
    /// `b`.
    pub(in crate::decide::placement) fn new(
        open: NumaMask,
        required: NumaMask,
        rows: Vec<Row>,
        closeness: Option<&'a Closeness>,
        can_replace: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let ids: Vec<usize> = bits(open.bits()).collect();
        let tops = rows.iter().map(|it| tops(it, &ids)).collect();
        let firsts = ids.iter().scan(0_u64, |mask, id| {
            *mask |= 1 << id;
            Some(*mask)
        });
        let firsts = std::iter::once(0).chain(firsts).collect();
        let mut betters = [0; N];
        for (p, b) in ids.iter().enumerate() {
            for a in &ids[..p] {
                let is_as_close =
                    closeness.is_none_or(|it| it.can_replace(*a, *b, open.union(required)));
                if is_as_close && can_replace(*a, *b) {
                    betters[*b] |= 1 << a;
                }
            }
        }
        Self {
            ids,
            firsts,
            required,
            n_given_rows: rows.len(),
            rows,
            tops,
            betters,
            closeness,
        }
    }

    /// Adds what follows from the rows together: a sum of them, weighted so that it alone comes as
    /// near as it can to telling that no `len` nodes meet all of them.
    pub(in crate::decide::placement) fn combine_rows(&mut self, len: u32) {
        self.rows.truncate(self.n_given_rows);
        self.tops.truncate(self.n_given_rows);
        let Some(n) = self.n_open(len) else { return };
        let at = self.ids.len() * (self.ids.len() + 1) + n;
        let mut rows = self.rows.iter().zip(&self.tops);
        if self.rows.len() > 1 && rows.all(|(row, top)| top[at] >= row.need) {
            self.add_row(combined(&self.rows, &self.ids, n));
        }
    }

    fn add_row(&mut self, row: Row) {
        self.tops.push(tops(&row, &self.ids));
        self.rows.push(row);
    }

    /// Of a mask of `len` nodes, how many were open. `None`: there are no such masks.
    fn n_open(&self, len: u32) -> Option<usize> {
        let n = len.checked_sub(self.required.len())? as usize;
        (n <= self.ids.len()).then_some(n)
    }

    /// The best mask of `len` nodes, those required among them: the closest, then the least as a
    /// number. Only those that are no wider than `limit`.
    pub(in crate::decide::placement) fn best(
        &self,
        len: u32,
        limit: Option<u64>,
        family: &mut dyn Family,
        budget: &mut Budget,
    ) -> Option<NumaMask> {
        let n = self.n_open(len)?;
        let mut walk = Walk::new(self, n, family, budget);
        let limit = limit.map_or(u64::MAX, |it| it.saturating_add(1));
        if self.closeness.is_some() {
            // Mostly there is one as close as can be; looking for nothing else is faster.
            walk.limit = 0;
            let least = walk.least_width(self.firsts[self.ids.len()], 0);
            walk.limit = limit.min(least.saturating_add(1));
            walk.descend(self.ids.len(), 0, 0, 0);
        }
        if walk.best.is_none() {
            walk.limit = limit;
            walk.descend(self.ids.len(), 0, 0, 0);
        }
        walk.best
    }
}

/// One search for masks of `n` open nodes.
struct Walk<'s, 'f> {
    search: &'s Search<'s>,
    family: &'f mut dyn Family,
    budget: &'f mut Budget,
    /// By number of nodes taken, then by row.
    have: Vec<u64>,
    /// By number of nodes taken: the width of what is taken, and by node what it would add.
    near: Vec<(u64, PerNode)>,
    spread: Spread,
    n: usize,
    /// Only what is less wide is of interest.
    limit: u64,
    best: Option<NumaMask>,
}

impl<'s, 'f> Walk<'s, 'f> {
    fn new(
        search: &'s Search<'s>,
        n: usize,
        family: &'f mut dyn Family,
        budget: &'f mut Budget,
    ) -> Self {
        let near = search.closeness.map(|closeness| {
            let mut adds = *closeness.own();
            for id in bits(search.required.bits()) {
                closeness.take(id, &mut adds);
            }
            vec![(closeness.width(search.required), adds); n + 1]
        });
        Self {
            search,
            family,
            budget,
            have: vec![0; search.rows.len() * (n + 1)],
            near: near.unwrap_or_default(),
            spread: Spread::default(),
            n,
            limit: u64::MAX,
            best: None,
        }
    }

    /// `p`: how many nodes are open, the first of the ids. `forced`: those of them that must be
    /// taken. `level`: how many are taken.
    fn descend(&mut self, p: usize, taken: u64, forced: u64, level: usize) {
        let search = self.search;
        let left = self.n - level;
        if p < left || !self.budget.spend(1) {
            return;
        }
        let stride = search.ids.len() + 1;
        let n_rows = search.rows.len();
        let have = &self.have[level * n_rows..][..n_rows];
        for ((row, top), have) in search.rows.iter().zip(&search.tops).zip(have) {
            if have.saturating_add(top[p * stride + left]) < row.need {
                return;
            }
        }
        let open = match left {
            0 => 0,
            _ => search.firsts[p],
        };
        if self.least_width(open, level) >= self.limit {
            return;
        }
        let mask = NumaMask::from_bits(taken).union(search.required);
        if !self
            .family
            .may_hold(mask, NumaMask::from_bits(open), left, self.budget)
        {
            return;
        }
        if left == 0 {
            self.limit = self.least_width(0, level);
            self.best = Some(mask);
            return;
        }
        let id = search.ids[p - 1];
        if forced & (1 << id) == 0 {
            self.descend(p - 1, taken, forced, level);
        }
        let forced = (forced | search.betters[id]) & !(1 << id);
        if (forced & open).count_ones() as usize >= left {
            return;
        }
        self.take(id, level);
        self.descend(p - 1, taken | 1 << id, forced, level + 1);
    }

    fn take(&mut self, id: usize, level: usize) {
        let n_rows = self.search.rows.len();
        for (i, row) in self.search.rows.iter().enumerate() {
            self.have[(level + 1) * n_rows + i] =
                self.have[level * n_rows + i].saturating_add(row.weights[id]);
        }
        if let Some(closeness) = self.search.closeness {
            let (width, mut adds) = self.near[level];
            let width = width + adds[id];
            closeness.take(id, &mut adds);
            self.near[level + 1] = (width, adds);
        }
    }

    /// No mask of what is taken and of open nodes is less wide.
    fn least_width(&mut self, open: u64, level: usize) -> u64 {
        let Some(closeness) = self.search.closeness else {
            return 0;
        };
        let (width, adds) = &self.near[level];
        let left = self.n - level;
        if left == 0 || self.limit == u64::MAX {
            return *width;
        }
        self.budget.spend(1 + left as u64 / 4);
        let rest = self.spread.least(closeness, adds, open, left);
        width.saturating_add(rest)
    }
}

/// See [`Search::tops`].
fn tops(row: &Row, ids: &[usize]) -> Vec<u64> {
    let stride = ids.len() + 1;
    let mut tops = vec![0; stride * stride];
    let mut sorted = Vec::with_capacity(ids.len());
    for (p, id) in ids.iter().enumerate() {
        let weight = row.weights[*id];
        let at = sorted.partition_point(|it| *it >= weight);
        sorted.insert(at, weight);
        let mut sum = 0_u64;
        for (r, weight) in sorted.iter().enumerate() {
            sum = sum.saturating_add(*weight);
            tops[(p + 1) * stride + r + 1] = sum;
        }
        // So few nodes are open that as many cannot be taken: never asked for.
        for r in p + 2..stride {
            tops[(p + 1) * stride + r] = sum;
        }
    }
    tops
}

/// The need of a row once it is brought to a common scale.
const SCALE: u64 = 1 << 32;
/// Times that the weights of rows are corrected; they settle within a few dozen.
const N_ROUNDS: usize = 32;

/// Multiplicative weights: a row that the best nodes for the sum so far do not meet gets more weight.
fn combined(rows: &[Row], ids: &[usize], n: usize) -> Row {
    let scaled: Vec<PerNode> = rows.iter().map(scaled_up).collect();
    let mut factors = vec![1.0 / rows.len() as f64; rows.len()];
    let mut best = (f64::INFINITY, factors.clone());
    let mut sums: Vec<(f64, usize)> = Vec::with_capacity(ids.len());
    for _ in 0..N_ROUNDS {
        sums.clear();
        sums.extend(ids.iter().map(|id| {
            let amounts = scaled.iter().zip(&factors);
            (
                amounts.map(|(row, factor)| row[*id] as f64 * factor).sum(),
                *id,
            )
        }));
        sums.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        sums.truncate(n);
        let met = sums.iter().map(|it| it.0).sum::<f64>();
        if met < best.0 {
            best = (met, factors.clone());
        }
        let mut total = 0.0;
        for (row, factor) in scaled.iter().zip(&mut factors) {
            let met: f64 = sums.iter().map(|it| row[it.1] as f64).sum();
            *factor *= 1.0 + (1.0 - met / SCALE as f64).clamp(-0.5, 0.5);
            total += *factor;
        }
        factors.iter_mut().for_each(|it| *it /= total);
    }
    let factors: Vec<u64> = best.1.iter().map(|it| whole(it * 4096.0)).collect();
    let mut weights = [0; N];
    for id in ids {
        weights[*id] = scaled
            .iter()
            .zip(&factors)
            .map(|(row, it)| row[*id] * it)
            .sum();
    }
    Row::new(weights, factors.iter().sum::<u64>() * SCALE)
}

/// Rounded up, so that what meets the row meets this too.
fn scaled_up(row: &Row) -> PerNode {
    let need = u128::from(row.need.max(1));
    row.weights.map(|it| {
        let scaled = (u128::from(it) * u128::from(SCALE)).div_ceil(need);
        u64::try_from(scaled).unwrap_or(SCALE).min(SCALE)
    })
}

/// Rounded; between 0 and 4096.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float that is cast saturates, and any factors will do"
)]
pub(in crate::decide::placement) fn whole(factor: f64) -> u64 {
    (factor.round() as u64).min(4096)
}

/// Ascending.
pub(in crate::decide::placement) fn bits(mut of: u64) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let lowest = (of != 0).then(|| of.trailing_zeros() as usize)?;
        of &= of - 1;
        Some(lowest)
    })
}
