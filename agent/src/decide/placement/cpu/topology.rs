//! The CPUs as the CPU manager counts them (pkg/kubelet/cm/cpumanager/topology/topology.go, v1.36):
//! each with its core, package, NUMA node and last-level cache, in small dense indices.
//!
//! An index counts CPUs, or elements of one level, in the order of their ids; so comparing indices
//! is comparing ids.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Compat;
use crate::model::cpuset::{CpuId, CpuSet};
use crate::model::numa::{NumaMask, NumaNodeTooLarge};
use crate::model::topology::{Cpu, NumaNodeId, Topology};

/// One CPU with the ids of what it belongs to. Ids are unique in the machine within their level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuRow {
    pub cpu: CpuId,
    pub numa_node: NumaNodeId,
    pub package: u32,
    pub core: u32,
    pub llc: u32,
}

/// What CPUs are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Core,
    Llc,
    NumaNode,
    Package,
}

impl Level {
    pub(super) const N: usize = 4;
    pub(super) const ALL: [Self; Self::N] = [Self::Core, Self::Llc, Self::NumaNode, Self::Package];
}

/// The elements of one level, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Elements {
    /// Ascending.
    ids: Vec<u32>,
    /// Index of the element of each CPU.
    of_cpu: Vec<usize>,
    /// Indices of the CPUs of each element, ascending.
    cpus: Vec<Vec<usize>>,
}

impl Elements {
    fn new(of_cpu: &[u32]) -> Self {
        let ids: Vec<u32> = of_cpu
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut cpus = vec![Vec::new(); ids.len()];
        let of_cpu: Vec<usize> = of_cpu
            .iter()
            .map(|id| ids.binary_search(id).expect("the ids come from these CPUs"))
            .collect();
        for (cpu, element) in of_cpu.iter().enumerate() {
            cpus[*element].push(cpu);
        }
        Self { ids, of_cpu, cpus }
    }
}

/// See the module. Has at least one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTopology {
    /// Ascending.
    cpus: Vec<CpuId>,
    all: CpuSet,
    levels: [Elements; Level::N],
    numa_mask: NumaMask,
}

/// Why there is nothing to place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuTopologyError {
    #[error("could not detect number of cpus")]
    NoCpus,
    #[error(transparent)]
    NumaNode(#[from] NumaNodeTooLarge),
}

impl CpuTopology {
    /// In any order; of two rows of one CPU the last counts.
    pub fn new(rows: impl IntoIterator<Item = CpuRow>) -> Result<Self, CpuTopologyError> {
        let rows: BTreeMap<CpuId, CpuRow> = rows.into_iter().map(|it| (it.cpu, it)).collect();
        if rows.is_empty() {
            return Err(CpuTopologyError::NoCpus);
        }
        let numa_mask = NumaMask::new(rows.values().map(|it| it.numa_node))?;
        let levels = Level::ALL.map(|level| {
            let id = |row: &CpuRow| match level {
                Level::Core => row.core,
                Level::Llc => row.llc,
                Level::NumaNode => row.numa_node.0,
                Level::Package => row.package,
            };
            Elements::new(&rows.values().map(id).collect::<Vec<_>>())
        });
        Ok(Self {
            cpus: rows.keys().copied().collect(),
            all: rows.keys().copied().collect(),
            levels,
            numa_mask,
        })
    }

    /// The online CPUs of a node.
    ///
    /// Kubelet calls a last-level cache by the kernel's cache id, and by its package where the kernel
    /// gives none or where the cache is that of a whole NUMA node. Those numbers can meet, and then
    /// two caches are one ([`Compat::Kubelet`]); ours stay apart, in the order of kubelet's ids.
    pub fn from_topology(topology: &Topology, compat: Compat) -> Result<Self, CpuTopologyError> {
        let kubelets = |cpu: &Cpu| {
            let llc = topology.llcs.get(&cpu.llc);
            let node = topology.numa_nodes.get(&cpu.numa_node);
            let is_of_node = llc.map(|it| &it.cpus) == node.map(|it| &it.cpus);
            let cache_id = llc.and_then(|it| it.cache_id).filter(|_| !is_of_node);
            cache_id.unwrap_or(cpu.package.0)
        };
        let apart: BTreeSet<_> = topology
            .cpus
            .values()
            .map(|it| (kubelets(it), it.llc))
            .collect();
        let ranks: BTreeMap<_, u32> = apart.into_iter().zip(0..).collect();
        Self::new(topology.cpus.iter().map(|(id, cpu)| CpuRow {
            cpu: *id,
            numa_node: cpu.numa_node,
            package: cpu.package.0,
            core: cpu.core.0,
            llc: match compat {
                Compat::Kubelet => kubelets(cpu),
                Compat::Ballast => ranks[&(kubelets(cpu), cpu.llc)],
            },
        }))
    }

    /// Every CPU.
    pub fn all(&self) -> &CpuSet {
        &self.all
    }

    /// The NUMA nodes with CPUs.
    pub fn numa_mask(&self) -> NumaMask {
        self.numa_mask
    }

    pub fn n_cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The most threads that a core has.
    pub fn most_cpus_per_core(&self) -> usize {
        let cores = &self.elements(Level::Core).cpus;
        cores.iter().map(Vec::len).max().unwrap_or(1)
    }

    /// Kubelet's CPUs per core: the average of all cores, rounded down.
    pub fn average_cpus_per_core(&self) -> usize {
        self.average(Level::Core)
    }

    /// All threads of the cores of `cpus`.
    pub fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let cores: BTreeSet<usize> = cpus
            .iter()
            .filter_map(|it| Some(self.element_of(Level::Core, self.index(it)?)))
            .collect();
        let threads = cores
            .into_iter()
            .flat_map(|it| self.cpus_of(Level::Core, it));
        threads.map(|it| self.id(*it)).collect()
    }

    /// Those of `cpus` whose cores are in `cpus` with all of their threads.
    pub fn full_cores(&self, cpus: &CpuSet) -> CpuSet {
        let rest = self.all.difference(cpus);
        cpus.difference(&self.whole_cores(&rest))
    }

    /// The CPUs of some NUMA nodes.
    pub fn cpus_of_nodes(&self, nodes: NumaMask) -> CpuSet {
        self.select(Level::NumaNode, |id| nodes.contains(NumaNodeId(id)))
    }

    /// The CPUs of every package that has CPUs in some NUMA nodes.
    pub fn cpus_of_packages_of(&self, nodes: NumaMask) -> CpuSet {
        let of_nodes = self.cpus_of_nodes(nodes);
        let packages: BTreeSet<usize> = of_nodes
            .iter()
            .filter_map(|it| Some(self.element_of(Level::Package, self.index(it)?)))
            .collect();
        let cpus = packages
            .into_iter()
            .flat_map(|it| self.cpus_of(Level::Package, it));
        cpus.map(|it| self.id(*it)).collect()
    }

    /// How many of `cpus` each NUMA node has, those with none left out.
    pub fn count_by_node(&self, cpus: &CpuSet) -> BTreeMap<NumaNodeId, u64> {
        let mut counts = BTreeMap::new();
        for cpu in cpus.iter().filter_map(|it| self.index(it)) {
            *counts.entry(self.node_of(cpu)).or_default() += 1;
        }
        counts
    }

    /// The NUMA nodes of each package, in the order of the package ids.
    pub fn nodes_by_package(&self) -> Vec<NumaMask> {
        let packages = self.elements(Level::Package).cpus.iter();
        packages
            .map(|cpus| {
                let nodes = cpus.iter().map(|it| self.node_of(*it));
                NumaMask::new(nodes).expect("checked when the topology was made")
            })
            .collect()
    }

    pub fn n_numa_nodes(&self) -> usize {
        self.n(Level::NumaNode)
    }

    pub fn n_packages(&self) -> usize {
        self.n(Level::Package)
    }

    /// CPUs of each NUMA node, in the order of their ids.
    pub fn node_sizes(&self) -> Vec<usize> {
        self.sizes(Level::NumaNode)
    }

    /// CPUs of each element of a level, in the order of their ids.
    pub(super) fn sizes(&self, level: Level) -> Vec<usize> {
        let elements = &self.elements(level).cpus;
        elements.iter().map(Vec::len).collect()
    }

    /// How many elements of a level the CPUs lie in.
    pub(super) fn n_spanned(&self, level: Level, cpus: &CpuSet) -> usize {
        let cpus = cpus.iter().filter_map(|it| self.index(it));
        let elements: BTreeSet<usize> = cpus.map(|it| self.element_of(level, it)).collect();
        elements.len()
    }

    /// Whether the CPUs share one last-level cache.
    pub fn is_within_llc(&self, cpus: &CpuSet) -> bool {
        self.n_spanned(Level::Llc, cpus) == 1
    }

    fn elements(&self, level: Level) -> &Elements {
        &self.levels[level as usize]
    }

    fn node_of(&self, cpu: usize) -> NumaNodeId {
        let nodes = self.elements(Level::NumaNode);
        NumaNodeId(nodes.ids[nodes.of_cpu[cpu]])
    }

    fn select(&self, level: Level, has: impl Fn(u32) -> bool) -> CpuSet {
        let elements = self.elements(level);
        let chosen = elements
            .ids
            .iter()
            .zip(&elements.cpus)
            .filter(|(id, _)| has(**id));
        chosen
            .flat_map(|(_, cpus)| cpus)
            .map(|it| self.id(*it))
            .collect()
    }

    /// Number of elements.
    pub(super) fn n(&self, level: Level) -> usize {
        self.elements(level).ids.len()
    }

    /// CPUs per element on average, rounded down.
    pub(super) fn average(&self, level: Level) -> usize {
        self.n_cpus() / self.n(level)
    }

    pub(super) fn id(&self, cpu: usize) -> CpuId {
        self.cpus[cpu]
    }

    pub(super) fn index(&self, cpu: CpuId) -> Option<usize> {
        self.cpus.binary_search(&cpu).ok()
    }

    pub(super) fn element_of(&self, level: Level, cpu: usize) -> usize {
        self.elements(level).of_cpu[cpu]
    }

    pub(super) fn cpus_of(&self, level: Level, element: usize) -> &[usize] {
        &self.elements(level).cpus[element]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::placement::cpu::testing::{machine, set};
    use crate::model::cpuset::CpuId;
    use crate::model::topology::{CacheFacts, CpuFacts, NumaNodeFacts, TopologyFacts};

    /// Package 0 is node 0 with two caches of ids 1 and 2; package 1 is node 1 with one cache, which
    /// kubelet calls by its package: 1.
    fn two_packages() -> Topology {
        let caches = [("0", Some(1)), ("1", Some(2)), ("2-3", None), ("2-3", None)];
        let cpus = (0..).zip(caches).map(|(cpu, (shared, id))| {
            let facts = CpuFacts {
                core_id: Some(cpu),
                package_id: Some(cpu / 2),
                thread_siblings: None,
                caches: vec![CacheFacts {
                    level: 3,
                    id,
                    shared_cpus: set(shared),
                }],
            };
            (CpuId(cpu), facts)
        });
        let node = |cpus| NumaNodeFacts {
            cpus: set(cpus),
            ..NumaNodeFacts::default()
        };
        let facts = TopologyFacts {
            cpus: cpus.collect(),
            numa_nodes: [(NumaNodeId(0), node("0-1")), (NumaNodeId(1), node("2-3"))].into(),
            ..TopologyFacts::default()
        };
        Topology::from_facts(&facts).expect("four CPUs")
    }

    #[test]
    fn caches_of_one_id_are_one_to_kubelet_alone() {
        let n_llcs = |compat| {
            let topology = CpuTopology::from_topology(&two_packages(), compat);
            topology.map(|it| it.n(Level::Llc))
        };
        assert_eq!(n_llcs(Compat::Kubelet), Ok(2));
        assert_eq!(n_llcs(Compat::Ballast), Ok(3));
    }

    #[test]
    fn a_core_is_full_with_all_of_its_threads() {
        let hybrid = machine("hybrid");
        assert_eq!(hybrid.full_cores(&set("1-5")), set("2-5"));
        assert_eq!(hybrid.whole_cores(&set("1,4")), set("0-1,4"));
        assert_eq!(
            (hybrid.most_cpus_per_core(), hybrid.average_cpus_per_core()),
            (2, 1)
        );
    }

    #[test]
    fn without_cpus_or_with_too_large_node_ids_there_is_no_machine() {
        assert_eq!(CpuTopology::new([]), Err(CpuTopologyError::NoCpus));
        let row = CpuRow {
            cpu: CpuId(0),
            numa_node: NumaNodeId(64),
            package: 0,
            core: 0,
            llc: 0,
        };
        let too_large = NumaNodeTooLarge(NumaNodeId(64));
        assert_eq!(CpuTopology::new([row]), Err(too_large.into()));
    }
}
