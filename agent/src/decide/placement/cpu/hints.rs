//! What the CPU manager tells the topology manager (pkg/kubelet/cm/cpumanager/policy_static.go, v1.36:
//! `generateCPUTopologyHints`).
//!
//! A mask is preferred by what its nodes have in all, busy CPUs among them, and not by what is free:
//! a container that fits one node of an empty machine never prefers two.

use super::demand::{exclusive_cpus, exclusive_cpus_of_pod};
use super::{CpuManager, CpuSettings};
use crate::config::Compat;
use crate::decide::placement::hints::{Choices, Demand, Hints, Preference, Region};
use crate::model::cpuset::CpuSet;
use crate::model::numa::NumaMask;
use crate::model::pod::{Container, Pod};
use crate::model::topology::NumaNodeId;

impl CpuManager {
    /// Where a container could get its CPUs; `None`: it asks for none of its own.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Option<Hints> {
        let n = exclusive_cpus(pod, container, self.settings.manages_pod_level);
        if n == 0 {
            return None;
        }
        Some(match self.cpus_of(&pod.uid, &container.name) {
            Some(held) if held.len() != n => Hints::none(),
            Some(held) => self.settings.region(n, held, &CpuSet::new()),
            None => self.free_hints(n, &self.reusable(pod)),
        })
    }

    /// Where the pod as a whole could get its CPUs; `None`: it asks for none.
    pub fn pod_hints(&self, pod: &Pod) -> Option<Hints> {
        let pod_level = self.settings.manages_pod_level;
        let n = exclusive_cpus_of_pod(pod, pod_level);
        if n == 0 {
            return None;
        }
        if pod.has_pod_level_resources() && self.check_shared(pod, n).is_err() {
            return Some(Hints::none());
        }
        let of_pod = self.state.pods.get(&pod.uid);
        if let Some(held) = of_pod.filter(|_| self.settings.compat == Compat::Ballast) {
            return Some(if held.len() == n {
                self.settings.region(n, held, &CpuSet::new())
            } else {
                Hints::none()
            });
        }
        let mut held = CpuSet::new();
        for container in pod.all_containers() {
            if let Some(cpus) = self.cpus_of(&pod.uid, &container.name) {
                if cpus.len() != exclusive_cpus(pod, container, pod_level) {
                    return Some(Hints::none());
                }
                held = held.union(cpus);
            }
        }
        Some(if held.len() == n {
            self.settings.region(n, &held, &CpuSet::new())
        } else {
            self.free_hints(n, &self.reusable(pod).union(&held))
        })
    }

    fn free_hints(&self, n: usize, reusable: &CpuSet) -> Hints {
        if self.settings.compat == Compat::Kubelet {
            // Kubelet counts a CPU twice that is both.
            return self.settings.region(n, &self.available(), reusable);
        }
        let pool = self.assignable(reusable);
        let reusable = pool.intersection(reusable);
        self.settings
            .region(n, &pool.difference(&reusable), &reusable)
    }
}

impl CpuSettings {
    /// The masks with `n` CPUs among those free and those to be used again, which they must have.
    fn region(&self, n: usize, free: &CpuSet, reusable: &CpuSet) -> Hints {
        let topology = &self.topology;
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let nodes_of = |cpus: &CpuSet| {
            let counts = topology.count_by_node(cpus);
            NumaMask::new(counts.into_keys()).expect("the topology has no other NUMA nodes")
        };
        let single = |id: NumaNodeId| NumaMask::new([id]).expect("the same");
        let supply = topology
            .count_by_node(free)
            .into_iter()
            .map(|(id, n)| (single(id), n))
            .collect();
        let len = self.least_nodes(n);
        Hints::OneOf(Choices {
            listed: Vec::new(),
            region: Some(Region {
                nodes: topology.numa_mask(),
                min_len: 1,
                contains: nodes_of(reusable),
                touches: Vec::new(),
                demands: vec![Demand {
                    supply,
                    need: count(n.saturating_sub(reusable.len())),
                }],
                preferred: self.preference(len),
            }),
        })
    }

    /// The fewest NUMA nodes that have `n` CPUs, reserved and busy ones counted; all of them if not
    /// even they have.
    fn least_nodes(&self, n: usize) -> u32 {
        let mut sizes = self.topology.node_sizes();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let n_too_few = sizes.iter().take_while(|size| {
            sum += **size;
            sum < n
        });
        let len = (n_too_few.count() + 1).min(sizes.len());
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    fn preference(&self, len: u32) -> Preference {
        let packages = self.topology.nodes_by_package();
        let nodes_per_package = self.topology.n_numa_nodes() / self.topology.n_packages();
        match u32::try_from(nodes_per_package) {
            Ok(per_package @ 1..) if self.options.align_by_socket => Preference::LenOrPackages {
                len,
                packages,
                n_packages: len.div_ceil(per_package),
            },
            _ => Preference::Len(len),
        }
    }
}
