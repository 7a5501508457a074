//! Machines and hints at random, from a seed.

use crate::decide::placement::hints::{Choices, Demand, Hints, Preference, Region};
use crate::model::numa::{Hint, NumaMask};

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `n` - 1.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Once in `n` times.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn len(&mut self, from: u32, to: u32) -> u32 {
        from + u32::try_from(self.below(u64::from(to - from + 1))).unwrap_or(0)
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let i = self.below(of.len() as u64);
        of[usize::try_from(i).unwrap_or(0)]
    }

    /// Each of the nodes once in `n` times.
    pub(super) fn some(&mut self, of: NumaMask, n: u64) -> NumaMask {
        let kept = of.iter().filter(|_| self.one_in(n));
        kept.fold(NumaMask::EMPTY, |it, id| {
            it.union(NumaMask::from_bits(1 << id.0))
        })
    }

    pub(super) fn one_of(&mut self, of: NumaMask) -> NumaMask {
        let ids: Vec<u32> = of.iter().map(|it| it.0).collect();
        NumaMask::from_bits(1 << self.pick(&ids))
    }
}

pub(super) fn each(of: NumaMask) -> impl Iterator<Item = NumaMask> {
    of.iter().map(|it| NumaMask::from_bits(1 << it.0))
}

/// Hints of any shape over some of the `nodes`, possible in a provider or not.
pub(super) fn any_hints(random: &mut Random, nodes: NumaMask) -> Hints {
    if random.one_in(20) {
        return Hints::Any;
    }
    let n_listed = match random.below(4) {
        0 => random.below(6),
        1 => random.below(3),
        _ => 0,
    };
    let mut listed: Vec<Hint> = Vec::new();
    for _ in 0..n_listed {
        let every = random.pick(&[1, 2, 3]);
        let mask = random.some(nodes, every).union(random.one_of(nodes));
        listed.push(Hint {
            numa: (!random.one_in(15)).then_some(mask),
            preferred: random.one_in(2),
        });
    }
    let has_region = n_listed == 0 || random.one_in(2);
    let region = has_region.then(|| any_region(random, nodes));
    Hints::OneOf(Choices { listed, region })
}

fn any_region(random: &mut Random, all: NumaMask) -> Region {
    let nodes = match random.one_in(4) {
        true => all.difference(random.some(all, 3)),
        false => all,
    };
    let n_demands = random.pick(&[0, 1, 1, 1, 2, 2, 3]);
    let demands: Vec<Demand> = (0..n_demands).map(|_| any_demand(random, nodes)).collect();
    let contains = match random.one_in(5) {
        true => random.some(nodes, 4),
        false => NumaMask::EMPTY,
    };
    let n_touches = random.pick(&[0, 0, 0, 0, 1, 2]);
    let touches = (0..n_touches).map(|_| random.some(all, 2)).collect();
    let len = random.len(1, nodes.len().max(1));
    let len = random.pick(&[1, 1, 2, len]);
    let preferred = match random.one_in(5) {
        false => Preference::Len(len),
        true => {
            let ids: Vec<NumaMask> = each(all).collect();
            let size = random.pick(&[1, 2, 2, 4]);
            let packages = ids.chunks(size).map(|it| it.iter().copied());
            Preference::LenOrPackages {
                len,
                packages: packages
                    .map(|it| it.fold(NumaMask::EMPTY, NumaMask::union))
                    .collect(),
                n_packages: random.len(1, 3),
            }
        }
    };
    Region {
        nodes,
        min_len: random.pick(&[1, 1, 1, 2, 3]),
        contains,
        touches,
        demands,
        preferred,
    }
}

pub(super) fn any_demand(random: &mut Random, nodes: NumaMask) -> Demand {
    let most = random.pick(&[1, 3, 10, 1000]);
    let mut supply: Vec<(NumaMask, u64)> =
        each(nodes).map(|it| (it, random.below(most + 1))).collect();
    if random.one_in(4) {
        for _ in 0..random.below(6) {
            supply.push((random.some(nodes, 2), random.below(most + 1)));
        }
    }
    let total: u64 = supply.iter().map(|it| it.1).sum();
    Demand {
        supply,
        need: random.below(total + total / 8 + 1),
    }
}
