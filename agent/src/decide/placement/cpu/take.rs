//! The allocators of the static CPU policy: which `n` CPUs out of a pool
//! (pkg/kubelet/cm/cpumanager/cpu_assignment.go, v1.36). Pinned by suite `cpu_take`.
//!
//! Invariant of [`Compat::Ballast`]: the result is a subset of the pool and has `n` CPUs, on any
//! topology. [`Compat::Kubelet`] can break both where elements of one level differ in size or cross
//! those of another, since it counts in averages and takes elements whole.

mod distributed;

use std::cmp::Reverse;

use super::topology::{CpuTopology, Level};
use crate::config::Compat;
use crate::model::cpuset::CpuSet;

/// How single CPUs are ordered, once nothing larger can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuOrder {
    /// Core by core.
    Packed,
    /// By id within a package, so that cores are shared last (`distribute-cpus-across-cores`).
    Spread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spreading {
    /// On as few elements of each level as possible.
    Packed {
        /// `prefer-align-cpus-by-uncorecache`
        align_by_llc: bool,
    },
    /// Evenly over the NUMA nodes needed, in groups of so many CPUs, at least 1
    /// (`distribute-cpus-across-numa`).
    AcrossNumaNodes { group_size: usize },
}

/// How CPUs are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeRule {
    pub spreading: Spreading,
    pub order: CpuOrder,
    pub compat: Compat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    #[error(
        "not enough cpus available to satisfy request: requested={requested}, available={available}"
    )]
    NotEnough { requested: usize, available: usize },
    /// Only with [`Compat::Kubelet`], on machines whose levels cross.
    #[error("failed to allocate cpus")]
    Failed,
    /// Only with [`Compat::Kubelet`].
    #[error("accounting error, not enough CPUs allocated, remaining: {remaining}")]
    Accounting { remaining: isize },
}

/// Takes `n` CPUs of `pool`; 0 CPUs are always there. CPUs of the pool that the machine has not are
/// not taken. Cost: about n log n in the CPUs of the machine; see [`distributed`] for its bound.
pub fn take(
    topology: &CpuTopology,
    pool: &CpuSet,
    n: usize,
    rule: TakeRule,
) -> Result<CpuSet, TakeError> {
    let mut taker = Taker::new(topology, pool, n, rule);
    if n == 0 {
        return Ok(CpuSet::new());
    }
    if n > taker.n_free {
        return Err(TakeError::NotEnough {
            requested: n,
            available: taker.n_free,
        });
    }
    match rule.spreading {
        Spreading::AcrossNumaNodes { group_size } if n.is_multiple_of(group_size) => {
            if taker.distribute(n, group_size)? {
                return Ok(taker.result());
            }
            taker.pack(false)?;
        }
        Spreading::AcrossNumaNodes { .. } => taker.pack(false)?,
        Spreading::Packed { align_by_llc } => taker.pack(align_by_llc)?,
    }
    Ok(taker.result())
}

/// What is free and what is taken.
struct Taker<'a> {
    topology: &'a CpuTopology,
    rule: TakeRule,
    /// By CPU.
    is_free: Vec<bool>,
    is_taken: Vec<bool>,
    n_free: usize,
    /// Free CPUs of each element, by level.
    free: [Vec<usize>; Level::N],
    /// CPUs to be taken yet. Kubelet counts those that it takes twice twice, hence the sign.
    need: isize,
}

fn signed(n: usize) -> isize {
    isize::try_from(n).unwrap_or(isize::MAX)
}

impl<'a> Taker<'a> {
    fn new(topology: &'a CpuTopology, pool: &CpuSet, n: usize, rule: TakeRule) -> Self {
        let mut taker = Self {
            topology,
            rule,
            is_free: vec![false; topology.n_cpus()],
            is_taken: vec![false; topology.n_cpus()],
            n_free: 0,
            free: Level::ALL.map(|it| vec![0; topology.n(it)]),
            need: signed(n),
        };
        for cpu in pool.iter().filter_map(|it| topology.index(it)) {
            taker.is_free[cpu] = true;
            taker.n_free += 1;
            for level in Level::ALL {
                taker.free[level as usize][topology.element_of(level, cpu)] += 1;
            }
        }
        taker
    }

    fn result(&self) -> CpuSet {
        let taken = (0..self.is_taken.len()).filter(|it| self.is_taken[*it]);
        taken.map(|it| self.topology.id(it)).collect()
    }

    fn is_done(&self) -> bool {
        self.need < 1
    }

    fn needs(&self, n: usize) -> bool {
        self.need >= signed(n)
    }

    fn free_in(&self, level: Level, element: usize) -> usize {
        self.free[level as usize][element]
    }

    fn free_cpus(&self) -> impl Iterator<Item = usize> {
        (0..self.is_free.len()).filter(|it| self.is_free[*it])
    }

    fn take_cpu(&mut self, cpu: usize) {
        let was_free = std::mem::replace(&mut self.is_free[cpu], false);
        if was_free {
            self.n_free -= 1;
            for level in Level::ALL {
                self.free[level as usize][self.topology.element_of(level, cpu)] -= 1;
            }
        }
        if was_free || self.rule.compat == Compat::Kubelet {
            self.is_taken[cpu] = true;
            self.need -= 1;
        }
    }

    /// The elements with free CPUs, those with the fewest first.
    fn ordered(&self, level: Level) -> Vec<usize> {
        let mut elements: Vec<usize> = (0..self.topology.n(level))
            .filter(|it| self.free_in(level, *it) > 0)
            .collect();
        elements.sort_by_key(|it| (self.free_in(level, *it), *it));
        elements
    }

    /// For each parent in turn its children with free CPUs, those with the fewest first. A child of
    /// two parents comes twice.
    fn nested(&self, parents: (Level, &[usize]), level: Level) -> Vec<usize> {
        let mut pairs: Vec<(usize, usize, usize)> = self
            .free_cpus()
            .map(|cpu| {
                let child = self.topology.element_of(level, cpu);
                let parent = self.topology.element_of(parents.0, cpu);
                (parent, self.free_in(level, child), child)
            })
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        let children = |parent: usize| {
            let first = pairs.partition_point(|it| it.0 < parent);
            pairs[first..].iter().take_while(move |it| it.0 == parent)
        };
        parents
            .1
            .iter()
            .flat_map(|it| children(*it))
            .map(|it| it.2)
            .collect()
    }

    /// Packages lie within NUMA nodes, and not the other way round.
    fn is_numa_outermost(&self) -> bool {
        self.topology.n_packages() >= self.topology.n_numa_nodes()
    }

    fn numa_nodes(&self) -> Vec<usize> {
        if self.is_numa_outermost() {
            self.ordered(Level::NumaNode)
        } else {
            let packages = self.ordered(Level::Package);
            self.nested((Level::Package, &packages), Level::NumaNode)
        }
    }

    fn packages(&self) -> Vec<usize> {
        if self.is_numa_outermost() {
            let nodes = self.ordered(Level::NumaNode);
            self.nested((Level::NumaNode, &nodes), Level::Package)
        } else {
            self.ordered(Level::Package)
        }
    }

    fn llcs(&self) -> Vec<usize> {
        self.nested((Level::NumaNode, &self.numa_nodes()), Level::Llc)
    }

    /// The level that cores are ordered by.
    fn inner(&self) -> (Level, Vec<usize>) {
        if self.is_numa_outermost() {
            (Level::Package, self.packages())
        } else {
            (Level::NumaNode, self.numa_nodes())
        }
    }

    fn cores(&self) -> Vec<usize> {
        let (parent, parents) = self.inner();
        self.nested((parent, &parents), Level::Core)
    }

    fn single_cpus(&self) -> Vec<usize> {
        let (level, elements) = match self.rule.order {
            CpuOrder::Packed => (Level::Core, self.cores()),
            CpuOrder::Spread => (Level::Package, self.packages()),
        };
        let cpus = elements
            .into_iter()
            .flat_map(|it| self.topology.cpus_of(level, it));
        cpus.copied().filter(|it| self.is_free[*it]).collect()
    }

    fn is_full(&self, level: Level, element: usize) -> bool {
        let size = match (self.rule.compat, level) {
            (Compat::Kubelet, Level::Package | Level::Core) => self.topology.average(level),
            _ => self.topology.cpus_of(level, element).len(),
        };
        self.free_in(level, element) == size
    }

    fn cpus_per_core(&self) -> usize {
        match self.rule.compat {
            Compat::Kubelet => self.topology.average_cpus_per_core(),
            Compat::Ballast => self.topology.most_cpus_per_core(),
        }
    }

    /// Takes those of the elements that are full and not larger than the need.
    fn take_full(&mut self, level: Level, elements: Vec<usize>) {
        let mut full = elements;
        full.retain(|it| self.is_full(level, *it));
        if self.rule.compat == Compat::Ballast && level == Level::Core {
            // Where cores differ, as few of them as possible; and a core with two threads is no use
            // once one CPU is left to take.
            let (parent, _) = self.inner();
            let topology = self.topology;
            let threads = |core: &usize| topology.cpus_of(Level::Core, *core);
            let parent = |core: &usize| topology.element_of(parent, threads(core)[0]);
            for siblings in full.chunk_by_mut(|a, b| parent(a) == parent(b)) {
                siblings.sort_by_key(|it| Reverse(threads(it).len()));
            }
        }
        for element in full {
            let cpus = self.topology.cpus_of(level, element);
            // One that lies in two parents comes twice, and is not full the second time.
            let is_there = self.rule.compat == Compat::Kubelet || self.is_full(level, element);
            if is_there && self.needs(cpus.len()) {
                for cpu in cpus {
                    self.take_cpu(*cpu);
                }
            }
        }
    }

    fn pack(&mut self, align_by_llc: bool) -> Result<(), TakeError> {
        let steps: [fn(&mut Self); 2] = [
            |it| it.take_full(Level::NumaNode, it.numa_nodes()),
            |it| it.take_full(Level::Package, it.packages()),
        ];
        let [nodes, packages] = steps;
        let (outer, inner) = if self.is_numa_outermost() {
            (nodes, packages)
        } else {
            (packages, nodes)
        };
        outer(self);
        if !self.is_done() {
            inner(self);
        }
        if !self.is_done() && align_by_llc {
            self.take_llcs();
        }
        if !self.is_done() && self.rule.order == CpuOrder::Packed {
            self.take_full(Level::Core, self.cores());
        }
        for cpu in self.single_cpus() {
            if self.is_done() {
                break;
            }
            self.take_cpu(cpu);
        }
        if self.is_done() {
            Ok(())
        } else {
            Err(TakeError::Failed)
        }
    }

    /// Whole caches as long as they fit in, then the rest from one cache, if one can give all of it.
    fn take_llcs(&mut self) {
        for llc in self.llcs() {
            let is_worth_it = match self.rule.compat {
                Compat::Kubelet => self.needs(self.topology.average(Level::Llc)),
                Compat::Ballast => true,
            };
            if is_worth_it {
                self.take_full(Level::Llc, self.llcs());
            }
            if !self.is_done() {
                self.take_part_of(llc);
            }
            if self.is_done() {
                return;
            }
        }
    }

    /// The least cores of a cache that give the whole need, half-free ones among them; else nothing.
    fn take_part_of(&mut self, llc: usize) {
        let need = usize::try_from(self.need).unwrap_or(0);
        let per_core = self.cpus_per_core();
        let mut cores: Vec<usize> = self
            .topology
            .cpus_of(Level::Llc, llc)
            .iter()
            .filter(|it| self.is_free[**it])
            .map(|it| self.topology.element_of(Level::Core, *it))
            .collect();
        cores.sort_unstable();
        cores.dedup();
        cores.truncate(need.div_ceil(per_core));
        let mut cpus: Vec<usize> = cores
            .iter()
            .flat_map(|it| self.topology.cpus_of(Level::Core, *it))
            .copied()
            .filter(|it| self.is_free[*it])
            .collect();
        if !need.is_multiple_of(2) && per_core > 1 && cpus.len() > need {
            cpus.sort_unstable();
            cpus.pop();
        }
        if cpus.len() == need {
            for cpu in cpus {
                self.take_cpu(cpu);
            }
        }
    }
}

#[cfg(test)]
mod tests;
