//! Machines by shape, and pods to place on them, for tests and measurements that need no node.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use ballast::config::{
    Compat, CpuManagerPolicy, MemoryManagerPolicy, NumaReservation, PlacementConfig,
    TopologyManagerPolicy,
};
use ballast::decide::placement::admission::{Decided, Outcome, admit};
use ballast::decide::placement::devices::{PluginAnswer, PluginAnswers, PluginQuestion};
use ballast::decide::placement::managers::{Managers, PlacementSettings};
use ballast::model::capacity::HugePages;
use ballast::model::cpuset::{CpuId, CpuSet};
use ballast::model::pod::{Pod, PodOrigin};
use ballast::model::quantity::{Format, Quantity};
use ballast::model::topology::{
    CacheFacts, CpuFacts, NoCpus, NumaNodeFacts, NumaNodeId, Topology, TopologyFacts,
};
use ballast::units::Bytes;
use k8s_openapi::api::core::v1;
use serde_json::json;

const PAGE: Bytes = Bytes(2 << 20);

/// A regular machine: thread t of core k is CPU k + t * the number of cores, as on x86.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub n_packages: u32,
    /// A multiple of the packages.
    pub n_numa_nodes: u32,
    pub cores_per_numa_node: u32,
    pub threads_per_core: u32,
    /// Divides the cores of a NUMA node.
    pub cores_per_llc: u32,
    /// Of each NUMA node, the pages below among it.
    pub memory: Bytes,
    /// Huge pages of 2 MiB of each NUMA node.
    pub n_hugepages: u64,
}

impl Shape {
    pub fn topology(&self) -> Result<Topology, NoCpus> {
        let n_cores = self.n_numa_nodes * self.cores_per_numa_node;
        let nodes_per_package = self.n_numa_nodes / self.n_packages;
        let threads = |cores: std::ops::Range<u32>| -> CpuSet {
            (0..self.threads_per_core)
                .flat_map(|thread| {
                    cores
                        .clone()
                        .map(move |core| CpuId(core + thread * n_cores))
                })
                .collect()
        };
        let cpu = |id: u32| {
            let core = id % n_cores;
            let first = core - core % self.cores_per_llc;
            let facts = CpuFacts {
                core_id: Some(core),
                package_id: Some(core / self.cores_per_numa_node / nodes_per_package),
                thread_siblings: Some(threads(core..core + 1)),
                caches: vec![CacheFacts {
                    level: 3,
                    id: Some(core / self.cores_per_llc),
                    shared_cpus: threads(first..first + self.cores_per_llc),
                }],
            };
            (CpuId(id), facts)
        };
        // Nodes of one package are close, the others the farther the more packages lie between.
        let distance = |from: u32, to: u32| {
            let packages = (from / nodes_per_package).abs_diff(to / nodes_per_package);
            match (from == to, packages) {
                (true, _) => 10,
                (false, 0) => 12,
                (false, n) => 18 + 2 * n,
            }
        };
        let node = |id: u32| {
            let first = id * self.cores_per_numa_node;
            let facts = NumaNodeFacts {
                cpus: threads(first..first + self.cores_per_numa_node),
                memory: Some(self.memory),
                distances: (0..self.n_numa_nodes).map(|to| distance(id, to)).collect(),
                hugepages: self.hugepages(),
            };
            (NumaNodeId(id), facts)
        };
        Topology::from_facts(&TopologyFacts {
            cpus: (0..n_cores * self.threads_per_core).map(cpu).collect(),
            numa_nodes: (0..self.n_numa_nodes).map(node).collect(),
            ..TopologyFacts::default()
        })
    }

    fn hugepages(&self) -> HugePages {
        match self.n_hugepages {
            0 => HugePages::new(),
            n => [(PAGE, n)].into(),
        }
    }

    /// Static policies on this machine, with CPU 0 and a quarter of the memory of NUMA node 0 kept
    /// for the system.
    pub fn settings(
        &self,
        compat: Compat,
        policy: TopologyManagerPolicy,
    ) -> Result<PlacementSettings, NoCpus> {
        let memory = Quantity::from_bytes(self.memory.0 / 4);
        let cpu = Quantity::from_units(1, Format::DecimalSi);
        let reserved = NumaReservation {
            numa_node: NumaNodeId(0),
            limits: [("memory".to_owned(), memory.clone())].into(),
        };
        Ok(PlacementSettings {
            compat,
            config: PlacementConfig {
                cpu_manager_policy: CpuManagerPolicy::Static,
                memory_manager_policy: MemoryManagerPolicy::Static,
                reserved_memory: vec![reserved],
                topology_manager_policy: policy,
                cpu_manager_alpha_options: true,
                cpu_manager_beta_options: true,
                ..PlacementConfig::default()
            },
            reserved_system_cpus: Some([CpuId(0)].into_iter().collect()),
            reservation: [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into(),
            topology: self.topology()?,
        })
    }
}

/// A Guaranteed pod of one container with these amounts, `cpu` and `memory` among them.
pub fn pod(uid: &str, amounts: &[(&str, String)]) -> Result<Pod> {
    let amounts: BTreeMap<&str, &str> = amounts
        .iter()
        .map(|(name, amount)| (*name, amount.as_str()))
        .collect();
    let manifest = json!({
        "metadata": {"uid": uid, "namespace": "default", "name": uid},
        "spec": {"containers": [{
            "name": "main",
            "image": "example.org/main",
            "resources": {"requests": amounts, "limits": amounts},
        }]},
    });
    let manifest: v1::Pod = serde_json::from_value(manifest)?;
    Pod::from_v1(&manifest, PodOrigin::Manifest).map_err(|faults| anyhow!("{uid}: {faults:?}"))
}

/// An admission to its end, with plugins that answer at once: those asked for a preference name the
/// first devices, and nobody adds anything to a container.
pub fn admit_answered(managers: &Managers, pod: &Pod) -> Result<Decided> {
    let mut answers = PluginAnswers::default();
    // A question for each resource, and one more for each that has a preference.
    for _ in 0..32 {
        match admit(managers, pod, &answers) {
            Outcome::Decided(decided) => return Ok(*decided),
            Outcome::Ask(question) => {
                let answer = answer(&question);
                answers.insert(question, answer);
            }
        }
    }
    bail!("the admission asks again and again")
}

fn answer(question: &PluginQuestion) -> PluginAnswer {
    match question {
        PluginQuestion::Preferred {
            available,
            must_include,
            size,
            ..
        } => {
            let others = available.difference(must_include);
            let size = usize::try_from(*size).unwrap_or(usize::MAX);
            PluginAnswer::Preferred {
                ids: must_include
                    .iter()
                    .chain(others)
                    .take(size)
                    .cloned()
                    .collect(),
            }
        }
        PluginQuestion::Allocate { .. } => PluginAnswer::Allocated {
            response: Vec::new(),
        },
    }
}
