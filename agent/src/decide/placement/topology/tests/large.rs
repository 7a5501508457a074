//! Machines of up to 64 NUMA nodes: how much work a merge is.

use std::collections::BTreeMap;

use super::random::{Random, each};
use super::*;
use crate::decide::placement::hints::{Choices, Demand, Hints, Preference, Region, least_len};

/// A machine, and what its providers say of one container.
struct Machine {
    nodes: NumaMask,
    packages: Vec<NumaMask>,
    manager: TopologyManager,
}

impl Machine {
    /// Packages of `per_package` nodes each.
    fn new(n_nodes: u32, per_package: u32, prefer_closest: bool) -> Self {
        let distance = |a: u32, b: u32| match (a / per_package).abs_diff(b / per_package) {
            _ if a == b => 10,
            0 => 12,
            _ if a / per_package / 4 == b / per_package / 4 => 20,
            _ => 32,
        };
        let config = PlacementConfig {
            topology_manager_policy: TopologyManagerPolicy::Restricted,
            topology_manager_policy_options: BTreeMap::from([(
                "prefer-closest-numa-nodes".to_owned(),
                prefer_closest.to_string(),
            )]),
            ..PlacementConfig::default()
        };
        let settings = TopologySettings::new(&config, Compat::Ballast).expect("good settings");
        let row = |a| (0..n_nodes).map(|b| (id(b), distance(a, b))).collect();
        let rows = (0..n_nodes).map(|a| (id(a), row(a))).collect();
        let manager = TopologyManager::new(settings, &rows).expect("good nodes");
        let nodes = manager.nodes();
        let ids: Vec<NumaMask> = each(nodes).collect();
        let packages = ids.chunks(per_package as usize);
        let packages = packages.map(|it| it.iter().fold(NumaMask::EMPTY, |all, it| all.union(*it)));
        Self {
            nodes,
            packages: packages.collect(),
            manager,
        }
    }

    fn amounts(&self, mut amount: impl FnMut() -> u64) -> Vec<(NumaMask, u64)> {
        each(self.nodes).map(|it| (it, amount())).collect()
    }

    fn region(&self, demands: Vec<Demand>, capacity: &[Demand]) -> Region {
        Region {
            nodes: self.nodes,
            min_len: 1,
            contains: NumaMask::EMPTY,
            touches: Vec::new(),
            demands,
            preferred: Preference::Len(least_len(self.nodes, capacity).unwrap_or(self.nodes.len())),
        }
    }

    /// `full`: how much of all that a node has is taken at most, in percent; `share`: how much of
    /// what is free is wanted.
    fn hints(&self, random: &mut Random, full: u64, shares: [u64; 2], odd: bool) -> Vec<Hints> {
        let same = shares[0] + random.below(shares[1] - shares[0] + 1);
        let is_same = random.one_in(2);
        let share = |random: &mut Random| match is_same {
            true => same,
            false => shares[0] + random.below(shares[1] - shares[0] + 1),
        };
        let only = |region: Region| {
            Hints::OneOf(Choices {
                listed: Vec::new(),
                region: Some(region),
            })
        };
        let mut hints = Vec::new();
        // CPUs.
        let all = self.amounts(|| 32);
        let free = self.amounts(|| 32 - random.below(1 + 32 * full / 100));
        let total: u64 = free.iter().map(|it| it.1).sum();
        let need = (total * share(random) / 1000).max(1);
        let demand = |supply: &[(NumaMask, u64)], need| Demand {
            supply: supply.to_vec(),
            need,
        };
        let mut cpu = self.region(vec![demand(&free, need)], &[demand(&all, need)]);
        if odd && random.one_in(3) {
            cpu.contains = random.one_of(self.nodes);
        }
        if odd && random.one_in(3) {
            let Preference::Len(len) = cpu.preferred else {
                unreachable!("as made")
            };
            let per_package = self.packages[0].len();
            cpu.preferred = Preference::LenOrPackages {
                len,
                packages: self.packages.clone(),
                n_packages: len.div_ceil(per_package),
            };
        }
        hints.push(only(cpu));
        // Memory and huge pages: the same masks for both.
        let pages = 1 << 30;
        let all = self.amounts(|| 128 * pages);
        let free = self.amounts(|| 128 * pages - random.below(1 + 128 * pages * full / 100));
        let total: u64 = free.iter().map(|it| it.1 >> 10).sum();
        let need = (total * share(random) / 1000) << 10;
        let huge = self.amounts(|| (1 + random.below(16)) << 21);
        let total: u64 = huge.iter().map(|it| it.1).sum();
        let huge_need = total * share(random) / 1000;
        let demands = vec![demand(&free, need), demand(&huge, huge_need)];
        let capacity = [demand(&all, need), demand(&huge, huge_need)];
        let mut memory = self.region(demands, &capacity);
        let mut listed = Vec::new();
        if odd && random.one_in(2) {
            // Some nodes belong to groups, some serve single nodes only.
            let groups = self.packages.iter().filter(|_| random.one_in(4));
            let groups: Vec<NumaMask> = groups.copied().collect();
            let single = random.some(self.nodes, 3);
            let single = groups
                .iter()
                .fold(single, |it, group| it.difference(*group));
            let len = memory.preferred.clone();
            listed = groups
                .iter()
                .copied()
                .chain(each(single))
                .map(|mask| Hint {
                    numa: Some(mask),
                    preferred: len.is_met_by(mask),
                })
                .filter(|it| {
                    let mask = it.numa.unwrap_or_default();
                    memory.demands.iter().all(|it| it.is_met_by(mask))
                })
                .collect();
            memory.nodes = groups
                .iter()
                .fold(self.nodes.difference(single), |it, group| {
                    it.difference(*group)
                });
        }
        let memory = Hints::OneOf(Choices {
            listed,
            region: Some(memory),
        });
        hints.push(memory.clone());
        hints.push(memory);
        // Devices.
        let every = random.pick(&[1, 2, 4]);
        let mut supply: Vec<(NumaMask, u64)> = each(self.nodes)
            .enumerate()
            .filter(|(i, _)| i % every == 0)
            .map(|(_, it)| (it, random.below(5)))
            .collect();
        if odd && random.one_in(3) {
            supply.extend(self.packages.iter().map(|it| (*it, random.below(3))));
        }
        let total: u64 = supply.iter().map(|it| it.1).sum();
        let need = (total * share(random) / 1000).max(1);
        let all: Vec<(NumaMask, u64)> = supply.iter().map(|it| (it.0, 4)).collect();
        let mut device = self.region(vec![demand(&supply, need)], &[demand(&all, need)]);
        device.nodes = supply
            .iter()
            .fold(NumaMask::EMPTY, |all, it| all.union(it.0));
        if odd && random.one_in(4) {
            device.touches = vec![random.one_of(device.nodes)];
        }
        hints.push(only(device));
        hints
    }

    fn merge(&self, hints: &[Hints]) -> Merge {
        let named = hints.iter().enumerate();
        let named = named.map(|(i, it)| ProviderHints::from([(i.to_string(), it.clone())]));
        self.manager.merge(&named.collect::<Vec<_>>())
    }
}

#[test]
fn merges_over_64_nodes_end_within_their_budget() {
    let mut random = Random(7);
    let mut n_preferred = 0;
    for (n_nodes, per_package) in [(16, 4), (64, 2), (64, 8)] {
        for prefer_closest in [false, true] {
            let machine = Machine::new(n_nodes, per_package, prefer_closest);
            for case in 0..32 {
                // Empty and used machines, small and large containers, plain and odd hints.
                let full = [0, 90, 90, 100][case % 4];
                let shares = [[1, 60], [1, 60], [50, 300], [1, 1000]][case % 4];
                let hints = machine.hints(&mut random, full, shares, case % 8 == 1);
                let merge = machine.merge(&hints);
                assert!(!merge.is_cut, "{n_nodes}/{per_package} {hints:#?}");
                n_preferred += usize::from(merge.hint.preferred);
            }
        }
    }
    assert!(n_preferred > 20, "{n_preferred}");
}
