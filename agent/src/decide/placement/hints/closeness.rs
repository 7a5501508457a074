//! How close together masks of as many nodes are, as kubelet's option `prefer-closest-numa-nodes`
//! sees it.

use super::search::{N, PerNode, bits};
use crate::model::numa::NumaMask;
use crate::model::topology::NumaNodeId;

/// How far NUMA nodes are from each other.
#[derive(Clone, Debug)]
pub(in crate::decide::placement) struct Closeness {
    /// Twice the distance of a node to itself.
    own: PerNode,
    /// There and back.
    pair: Vec<PerNode>,
    /// By node: the others, closest first.
    nearest: Vec<Vec<usize>>,
    /// Every cluster after those that it is made of; the last is all nodes.
    clusters: Vec<Cluster>,
}

/// Nodes that are reached from each other in steps of up to `far`. So nodes of different parts of a
/// cluster are at least `far` apart.
#[derive(Clone, Debug)]
struct Cluster {
    nodes: u64,
    far: u64,
    /// Smaller clusters by index; none: it is one node.
    parts: Vec<usize>,
}

impl Closeness {
    /// `distance` between the `nodes`.
    pub(in crate::decide::placement) fn new(
        nodes: NumaMask,
        distance: impl Fn(NumaNodeId, NumaNodeId) -> u32,
    ) -> Self {
        let mut closeness = Self {
            own: [0; N],
            pair: vec![[0; N]; N],
            nearest: vec![Vec::new(); N],
            clusters: Vec::new(),
        };
        for from in nodes.iter() {
            let a = from.0 as usize;
            closeness.own[a] = 2 * u64::from(distance(from, from));
            for to in nodes.iter().filter(|it| *it != from) {
                let b = to.0 as usize;
                let there_and_back = [distance(from, to), distance(to, from)];
                closeness.pair[a][b] = there_and_back.map(u64::from).iter().sum();
                closeness.nearest[a].push(b);
            }
            let row = &closeness.pair[a];
            closeness.nearest[a].sort_by_key(|b| (row[*b], *b));
        }
        closeness.clusters = closeness.clusters_of(nodes.bits());
        closeness
    }

    fn clusters_of(&self, nodes: u64) -> Vec<Cluster> {
        let single = |id: usize| Cluster {
            nodes: 1 << id,
            far: 0,
            parts: Vec::new(),
        };
        let mut clusters: Vec<Cluster> = bits(nodes).map(single).collect();
        // Those that are in no other yet.
        let mut outer: Vec<usize> = (0..clusters.len()).collect();
        let mut fars: Vec<u64> = bits(nodes)
            .flat_map(|a| self.nearest[a].iter().map(move |b| self.pair[a][*b]))
            .collect();
        fars.sort_unstable();
        fars.dedup();
        for far in fars {
            let mut next: Vec<usize> = Vec::new();
            while let Some(first) = outer.pop() {
                let mut parts = vec![first];
                let mut together = clusters[first].nodes;
                while let Some(at) = outer.iter().position(|it| {
                    let from = || bits(clusters[*it].nodes);
                    bits(together).any(|a| from().any(|b| self.pair[a][b] <= far))
                }) {
                    let part = outer.remove(at);
                    together |= clusters[part].nodes;
                    parts.push(part);
                }
                if parts.len() == 1 {
                    next.push(first);
                    continue;
                }
                next.push(clusters.len());
                clusters.push(Cluster {
                    nodes: together,
                    far,
                    parts,
                });
            }
            outer = next;
        }
        clusters
    }

    /// By node: what it adds to the width of a mask of itself alone.
    pub(in crate::decide::placement) fn own(&self) -> &PerNode {
        &self.own
    }

    /// `adds`: by node, what it would add to the width of a mask, which now gets `id`.
    pub(in crate::decide::placement) fn take(&self, id: usize, adds: &mut PerNode) {
        for (add, pair) in adds.iter_mut().zip(&self.pair[id]) {
            *add += 2 * pair;
        }
    }

    /// Twice the sum over all ordered pairs of nodes, each with itself too. Masks of as many nodes
    /// compare as kubelet's means of it do: the sums are below 2^53, so that two that differ are
    /// different quotients too.
    pub(in crate::decide::placement) fn width(&self, mask: NumaMask) -> u64 {
        let nodes = || bits(mask.bits());
        nodes()
            .map(|a| self.own[a] + nodes().map(|b| self.pair[a][b]).sum::<u64>())
            .sum()
    }

    /// Whether `a` in the place of `b` is never further from the others.
    pub(in crate::decide::placement) fn can_replace(
        &self,
        a: usize,
        b: usize,
        nodes: NumaMask,
    ) -> bool {
        self.own[a] <= self.own[b]
            && bits(nodes.bits())
                .all(|it| it == a || it == b || self.pair[a][it] <= self.pair[b][it])
    }
}

/// What the work on bounds is done in.
#[derive(Default)]
pub(in crate::decide::placement) struct Spread {
    each: Vec<u64>,
    /// By cluster, by number of nodes: the least that they add to the width.
    least: Vec<Vec<u64>>,
    sums: Vec<u64>,
}

impl Spread {
    /// At least so much do `n` of the `open` nodes add to the width, `n` being 1 or more; `adds` is
    /// what each does alone. `u64::MAX`: so many are not open.
    pub(in crate::decide::placement) fn least(
        &mut self,
        closeness: &Closeness,
        adds: &PerNode,
        open: u64,
        n: usize,
    ) -> u64 {
        let by_node = self.by_node(closeness, adds, open, n);
        by_node.max(self.by_cluster(closeness, adds, open, n))
    }

    /// Each node is at least as far from the others as from the nearest of those open.
    fn by_node(&mut self, closeness: &Closeness, adds: &PerNode, open: u64, n: usize) -> u64 {
        self.each.clear();
        self.each.extend(bits(open).map(|id| {
            let others = closeness.nearest[id].iter();
            let others = others.filter(|it| open >> **it & 1 == 1).take(n - 1);
            adds[id] + others.map(|it| closeness.pair[id][*it]).sum::<u64>()
        }));
        if self.each.len() < n {
            return u64::MAX;
        }
        self.each.select_nth_unstable(n - 1);
        self.each[..n].iter().sum()
    }

    /// Nodes of different parts of a cluster are at least as far apart as it is wide. Exact where
    /// distances are the same between all nodes of two parts, as between those of two packages.
    fn by_cluster(&mut self, closeness: &Closeness, adds: &PerNode, open: u64, n: usize) -> u64 {
        self.least.resize_with(closeness.clusters.len(), Vec::new);
        for (i, cluster) in closeness.clusters.iter().enumerate() {
            let mut least = std::mem::take(&mut self.least[i]);
            least.clear();
            least.push(0);
            if cluster.parts.is_empty() && cluster.nodes & open != 0 {
                least.push(adds[cluster.nodes.trailing_zeros() as usize]);
            }
            for part in &cluster.parts {
                let part = &self.least[*part];
                let len = (least.len() + part.len() - 1).min(n + 1);
                self.sums.clear();
                self.sums.resize(len, u64::MAX);
                for (a, so_far) in least.iter().enumerate() {
                    for (b, more) in part.iter().enumerate().take(len - a) {
                        let apart = 2 * cluster.far * (a * b) as u64;
                        let sum = so_far + more + apart;
                        self.sums[a + b] = self.sums[a + b].min(sum);
                    }
                }
                std::mem::swap(&mut least, &mut self.sums);
            }
            self.least[i] = least;
        }
        let all = self.least.last().and_then(|it| it.get(n));
        all.copied().unwrap_or(u64::MAX)
    }
}
