//! The shape of a node: CPUs in cores, packages, last-level caches and NUMA nodes.
//!
//! In: what sysfs says of each CPU and node, as it stands ([`TopologyFacts`]). Out: a
//! [`Topology`] in which every online CPU has a place, whatever was missing.
//!
//! Ids: a core is called by the least CPU of its threads, as kubelet does, since the hardware's
//! core ids repeat from package to package; a last-level cache by the least CPU that shares it,
//! since cache ids may be absent and share numbers with packages. Both count online CPUs alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::capacity::HugePages;
pub use super::cpuset::{CpuId, CpuSet};
use super::text::{ParseError, number};
use crate::units::Bytes;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}

ids! {
    /// A physical core: the least online CPU of its threads.
    CoreId;
    /// A processor package, as `physical_package_id`.
    PackageId;
    /// A NUMA node, as the kernel numbers them; ids can have gaps.
    NumaNodeId;
    /// A last-level cache: the least online CPU that shares it.
    LlcId;
}

/// What `cache/indexN` of a CPU says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFacts {
    pub level: u32,
    pub id: Option<u32>,
    pub shared_cpus: CpuSet,
}

/// What sysfs says of one CPU. A missing file is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuFacts {
    /// `topology/core_id`: unique in the package only.
    pub core_id: Option<u32>,
    /// `topology/physical_package_id`; some virtual machines say -1, which is `None`.
    pub package_id: Option<u32>,
    pub thread_siblings: Option<CpuSet>,
    /// Of level 3 and up.
    pub caches: Vec<CacheFacts>,
}

/// What sysfs says of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNodeFacts {
    pub cpus: CpuSet,
    pub memory: Option<Bytes>,
    /// To every online node, in the order of their ids (drivers/base/node.c, `distance_show`).
    pub distances: Vec<u32>,
    pub hugepages: HugePages,
}

/// What sysfs says of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyFacts {
    /// `None`: the file is missing, and every CPU of `cpus` counts as online.
    pub online: Option<CpuSet>,
    /// Kept away from the scheduler by `isolcpus=` or by an isolated cpuset partition.
    pub isolated: CpuSet,
    pub cpus: BTreeMap<CpuId, CpuFacts>,
    pub numa_nodes: BTreeMap<NumaNodeId, NumaNodeFacts>,
    /// `MemTotal`: the memory of the one node of a kernel without NUMA.
    pub memory: Option<Bytes>,
    /// The pools of the machine, for the same case.
    pub hugepages: HugePages,
}

/// The place of one online CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    pub core: CoreId,
    pub package: PackageId,
    pub numa_node: NumaNodeId,
    pub llc: LlcId,
}

/// One NUMA node, with or without CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaNode {
    /// Online ones.
    pub cpus: CpuSet,
    pub memory: Option<Bytes>,
    /// By node; 10 to itself. Empty where the kernel does not say.
    pub distances: BTreeMap<NumaNodeId, u32>,
    pub hugepages: HugePages,
}

/// One last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Llc {
    /// Online ones.
    pub cpus: CpuSet,
    /// The kernel's id, unique among caches of one level only. `None`: the kernel names none, or
    /// there is no cache of level 3 and the package stands for it, as in kubelet.
    pub cache_id: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// The online CPUs; at least one.
    pub cpus: BTreeMap<CpuId, Cpu>,
    /// At least one. Every online CPU is in exactly one.
    pub numa_nodes: BTreeMap<NumaNodeId, NumaNode>,
    pub llcs: BTreeMap<LlcId, Llc>,
    /// Present and switched off.
    pub offline: CpuSet,
    pub isolated: CpuSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no online CPU was found below /sys/devices/system/cpu")]
pub struct NoCpus;

impl Topology {
    /// Gives every online CPU its place. The threads of a core are its siblings: a core id may be one of a cluster (arm64
    /// with a device tree, from Linux 5.19 on, drivers/base/arch_topology.c). What is missing is taken thus: no NUMA
    /// node, or none that lists the CPU: the least node, or node 0; no package id: package 0; no siblings: the core id,
    /// or a core of its own; no cache of level 3 or more: one per package.
    pub fn from_facts(facts: &TopologyFacts) -> Result<Self, NoCpus> {
        let present: CpuSet = facts.cpus.keys().copied().collect();
        // An online CPU without a directory of its own still runs tasks.
        let online = facts.online.clone().unwrap_or_else(|| present.clone());
        if online.is_empty() {
            return Err(NoCpus);
        }
        let mut numa_nodes = numa_nodes(facts, &online);
        let numa_node_of: BTreeMap<CpuId, NumaNodeId> = numa_nodes
            .iter()
            .flat_map(|(id, node)| node.cpus.iter().map(|cpu| (cpu, *id)))
            .collect();
        // `numa_nodes` is never empty; a CPU that no node lists goes to the least.
        let least_node = numa_nodes.keys().next().copied().unwrap_or(NumaNodeId(0));

        let none = CpuFacts::default();
        let facts_of = |cpu: CpuId| facts.cpus.get(&cpu).unwrap_or(&none);
        let place = |cpu: CpuId| {
            let package = PackageId(facts_of(cpu).package_id.unwrap_or(0));
            let numa_node = numa_node_of.get(&cpu).copied().unwrap_or(least_node);
            (numa_node, package)
        };

        let mut cores = BTreeMap::new();
        let mut packages = BTreeMap::new();
        for cpu in online.iter() {
            let (numa_node, package) = place(cpu);
            packages.entry(package).or_insert(LlcId(cpu.0));
            if let Some(core_id) = facts_of(cpu).core_id {
                // CPUs come in ascending order, so the first is the least.
                cores
                    .entry((numa_node, package, core_id))
                    .or_insert(CoreId(cpu.0));
            }
        }

        let mut cpus = BTreeMap::new();
        let mut llcs: BTreeMap<LlcId, Llc> = BTreeMap::new();
        for cpu in online.iter() {
            let (numa_node, package) = place(cpu);
            let of_cpu = facts_of(cpu);
            let by_id = of_cpu
                .core_id
                .and_then(|it| cores.get(&(numa_node, package, it)).copied());
            let siblings = of_cpu.thread_siblings.as_ref();
            let by_siblings = siblings.filter(|it| it.contains(cpu)).and_then(|it| {
                let here = it.intersection(&online);
                here.iter().find(|it| place(*it) == (numa_node, package))
            });
            let by_siblings = by_siblings.map(|it| CoreId(it.0));
            let core = by_siblings.or(by_id).unwrap_or(CoreId(cpu.0));
            let cache = of_cpu
                .caches
                .iter()
                .filter(|it| it.level >= 3 && it.shared_cpus.contains(cpu))
                .max_by_key(|it| it.level);
            let shared = cache.and_then(|it| least_online(&it.shared_cpus, &online));
            let llc = match shared {
                Some(least) => LlcId(least.0),
                None => packages.get(&package).copied().unwrap_or(LlcId(cpu.0)),
            };
            llcs.entry(llc)
                .or_insert_with(|| Llc {
                    cpus: CpuSet::new(),
                    cache_id: cache.and_then(|it| it.id),
                })
                .cpus
                .insert(cpu);
            if !numa_node_of.contains_key(&cpu)
                && let Some(node) = numa_nodes.get_mut(&numa_node)
            {
                node.cpus.insert(cpu);
            }
            cpus.insert(
                cpu,
                Cpu {
                    core,
                    package,
                    numa_node,
                    llc,
                },
            );
        }
        Ok(Self {
            offline: present.difference(&online),
            isolated: facts.isolated.clone(),
            cpus,
            numa_nodes,
            llcs,
        })
    }

    pub fn online(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// The threads of each core.
    pub fn cores(&self) -> BTreeMap<CoreId, CpuSet> {
        self.group(|it| it.core)
    }

    pub fn packages(&self) -> BTreeMap<PackageId, CpuSet> {
        self.group(|it| it.package)
    }

    /// The threads of the core of a CPU, itself included; empty for a CPU that is not online.
    pub fn siblings(&self, cpu: CpuId) -> CpuSet {
        let core = self.cpus.get(&cpu).map(|it| it.core);
        self.cpus
            .iter()
            .filter(|(_, it)| Some(it.core) == core)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Some core has more than one online thread.
    pub fn has_smt(&self) -> bool {
        self.cores().len() < self.cpus.len()
    }

    /// Packages, NUMA nodes, cores and CPUs in one word: `2s-4n-32c-64t`.
    pub fn shape(&self) -> String {
        let packages: BTreeSet<_> = self.cpus.values().map(|it| it.package).collect();
        let cores: BTreeSet<_> = self.cpus.values().map(|it| it.core).collect();
        format!(
            "{}s-{}n-{}c-{}t",
            packages.len(),
            self.numa_nodes.len(),
            cores.len(),
            self.cpus.len()
        )
    }

    fn group<K: Ord>(&self, key: impl Fn(&Cpu) -> K) -> BTreeMap<K, CpuSet> {
        let mut groups: BTreeMap<K, CpuSet> = BTreeMap::new();
        for (id, cpu) in &self.cpus {
            groups.entry(key(cpu)).or_default().insert(*id);
        }
        groups
    }
}

fn least_online(cpus: &CpuSet, online: &CpuSet) -> Option<CpuId> {
    cpus.intersection(online).iter().next()
}

fn numa_nodes(facts: &TopologyFacts, online: &CpuSet) -> BTreeMap<NumaNodeId, NumaNode> {
    if facts.numa_nodes.is_empty() {
        let node = NumaNode {
            cpus: online.clone(),
            memory: facts.memory,
            distances: BTreeMap::new(),
            hugepages: facts.hugepages.clone(),
        };
        return BTreeMap::from([(NumaNodeId(0), node)]);
    }
    // A CPU listed by two nodes belongs to the first.
    let mut placed = CpuSet::new();
    facts
        .numa_nodes
        .iter()
        .map(|(id, node)| {
            let cpus = node.cpus.intersection(online).difference(&placed);
            placed = placed.union(&cpus);
            // A list of another length than the nodes says nothing about which is meant.
            let distances = if node.distances.len() == facts.numa_nodes.len() {
                let to = facts.numa_nodes.keys().copied();
                to.zip(node.distances.iter().copied()).collect()
            } else {
                BTreeMap::new()
            };
            let node = NumaNode {
                cpus,
                memory: node.memory,
                distances,
                hugepages: node.hugepages.clone(),
            };
            (*id, node)
        })
        .collect()
}

/// `node*/distance`: numbers between blanks.
pub fn parse_distances(text: &str) -> Result<Vec<u32>, ParseError> {
    text.split_whitespace()
        .map(|it| number(it, "a NUMA distance"))
        .collect()
}

/// The number at the end of a sysfs directory name: `cpu12`, `node3`.
pub fn directory_id(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
