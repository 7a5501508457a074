//! Machines for the tests of the CPU manager.

use super::topology::{CpuRow, CpuTopology};
use crate::model::cpuset::{CpuId, CpuSet};
use crate::model::topology::NumaNodeId;

#[track_caller]
pub(super) fn set(text: &str) -> CpuSet {
    text.parse().expect("a list of CPUs")
}

/// Package, NUMA node and last-level cache of a core.
type Place = (u32, u32, u32);

/// Thread t of core k is CPU k + t * `n_cores`.
pub(super) fn regular(n_cores: u32, threads: u32, place: impl Fn(u32) -> Place) -> CpuTopology {
    let cpus = (0..n_cores * threads).map(|cpu| {
        let core = cpu % n_cores;
        let (package, node, llc) = place(core);
        row(cpu, core, (package, node, llc))
    });
    CpuTopology::new(cpus).expect("a machine")
}

pub(super) fn row(cpu: u32, core: u32, (package, node, llc): Place) -> CpuRow {
    CpuRow {
        cpu: CpuId(cpu),
        numa_node: NumaNodeId(node),
        package,
        core,
        llc,
    }
}

#[track_caller]
pub(super) fn machine(name: &str) -> CpuTopology {
    match name {
        "T1" => regular(4, 2, |_| (0, 0, 0)),
        "T2" => regular(6, 2, |k| (k % 2, k % 2, k % 2)),
        "T3" => regular(40, 2, |k| (k / 20, k / 10, k / 20)),
        "T4" => regular(32, 2, |k| (0, k / 8, 0)),
        "T5" => regular(64, 2, |k| (k / 32, k / 8, k / 32)),
        "T6" => regular(8, 2, |k| (0, 0, k / 4)),
        "T7" => regular(16, 1, |k| (0, 0, k / 4)),
        "T8" => regular(8, 2, |k| (k / 4, k / 4, k / 4)),
        "T9" => regular(8, 2, |k| (k / 4, k / 2, k / 4)),
        // Two cores of two threads and two of one.
        "hybrid" => CpuTopology::new(
            [0, 0, 2, 2, 4, 5]
                .into_iter()
                .zip(0..)
                .map(|(core, cpu)| row(cpu, core, (0, 0, 0))),
        )
        .expect("a machine"),
        other => panic!("no machine {other}"),
    }
}

/// Numbers that look random and are the same in every run.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// In `0..n`.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).expect("31 bits") % n
    }

    pub(super) fn is(&mut self, one_in: u32) -> bool {
        self.below(one_in) == 0
    }

    /// Each CPU with the same chance.
    pub(super) fn subset(&mut self, of: &CpuSet) -> CpuSet {
        let one_in = 1 + self.below(4);
        let is_dense = self.is(2);
        of.iter()
            .filter(|_| self.is(one_in) != is_dense || one_in == 1)
            .collect()
    }

    /// All packages alike.
    pub(super) fn regular_machine(&mut self) -> CpuTopology {
        let (packages, threads) = (1 + self.below(4), 1 + self.below(4));
        let nodes = 1 << self.below(3);
        let llcs = nodes * (1 + self.below(3));
        let cores = llcs * (1 + self.below(4));
        regular(packages * cores, threads, |k| {
            (k / cores, k * nodes / cores, k * llcs / cores)
        })
    }

    /// Cores of different sizes, packages and nodes too; ids with gaps, in any order; one in four
    /// with levels that cross as no hardware's do.
    pub(super) fn odd_machine(&mut self) -> CpuTopology {
        let n_cores = 1 + self.below(48);
        let (packages, nodes) = (1 + self.below(4), 1 + self.below(8));
        let llcs = 1 + self.below(8);
        let is_crossing = self.is(4);
        let mut rows = Vec::new();
        for core in 0..n_cores {
            let mut part = |n: u32| {
                if is_crossing {
                    self.below(n)
                } else {
                    core * n / n_cores
                }
            };
            let place = (part(packages), part(nodes), part(llcs));
            for _ in 0..=self.below(3) {
                rows.push(row(self.below(700), core, place));
            }
        }
        CpuTopology::new(rows).expect("a machine")
    }
}
