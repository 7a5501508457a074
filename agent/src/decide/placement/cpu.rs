//! The CPU manager with policy `static` (pkg/kubelet/cm/cpumanager/policy_static.go, v1.36): which containers get CPUs
//! of their own, which ones, and what is left for all the others.
//!
//! In: the machine, the reservation, the options, and the state of before. Out: hints for the topology
//! manager, and a [`CpuState`] to store and to write into cpusets. Pinned by suites `cpu_take`,
//! `cpu_static_policy` and `cpu_hints`.
//!
//! Invariants of [`Compat::Ballast`]: a CPU belongs to the shared pool, or to one pod, or is reserved
//! strictly; no CPU is given out that is not in the pool; what fails changes nothing.

mod alignment;
mod demand;
mod error;
mod hints;
mod options;
mod pod_level;
mod state;
mod take;
#[cfg(test)]
mod testing;
mod topology;

use std::sync::Arc;

pub use self::alignment::Misaligned;
pub use self::demand::{exclusive_cpus, exclusive_cpus_of_pod};
pub use self::error::{CpuConfigError, CpuError, CpuStateError, CpuStateFault, Misfit};
pub use self::options::{CpuGates, CpuOptionError, CpuOptions, Maturity};
pub use self::take::{CpuOrder, Spreading, TakeError, TakeRule, take};
pub use self::topology::{CpuRow, CpuTopology, CpuTopologyError};
use crate::config::{Compat, TopologyManagerPolicy};
use crate::model::cpuset::CpuSet;
use crate::model::numa::{Hint, NumaMask};
use crate::model::placement::CpuState;
use crate::model::pod::{Container, Pod, PodUid};
use crate::model::quantity::Quantity;

/// What the constants of a CPU manager are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSettings {
    pub topology: CpuTopology,
    pub options: CpuOptions,
    pub topology_policy: TopologyManagerPolicy,
    pub reservation: CpuReservation,
    /// The feature gates `PodLevelResources` and `PodLevelResourceManagers` are both on.
    pub manages_pod_level: bool,
    pub compat: Compat,
}

/// CPUs for the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuReservation {
    /// CPUs of the node allocatable reservation, rounded up.
    pub n: usize,
    /// `reservedSystemCPUs`, which must be `n`; `None`: those that the allocator takes first.
    pub cpus: Option<CpuSet>,
}

impl CpuReservation {
    /// `reserved`: the CPU of the node allocatable reservation. `cpus`: `reservedSystemCPUs`, which
    /// stands in its place.
    pub fn new(reserved: Option<&Quantity>, cpus: Option<CpuSet>) -> Result<Self, CpuConfigError> {
        let n = match &cpus {
            Some(cpus) => cpus.len(),
            None => usize::try_from(reserved.map_or(0, Quantity::units)).unwrap_or(usize::MAX),
        };
        if n == 0 {
            return Err(CpuConfigError::NothingReserved);
        }
        Ok(Self { n, cpus })
    }
}

/// See the module. A copy is cheap: an admission works on one, which replaces the original if all of
/// it went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuManager {
    settings: Arc<CpuSettings>,
    reserved: CpuSet,
    state: CpuState,
    /// CPUs that init containers of the pod leave to those after them. Only [`Compat::Kubelet`]
    /// remembers; ours reads it off the state.
    remembered: Option<(PodUid, CpuSet)>,
}

impl CpuManager {
    /// With the state of an empty machine.
    pub fn new(settings: CpuSettings) -> Result<Self, CpuConfigError> {
        let topology = &settings.topology;
        if settings.options.align_by_socket {
            if settings.topology_policy == TopologyManagerPolicy::SingleNumaNode {
                return Err(CpuConfigError::AlignBySocketPolicy);
            }
            let (n_packages, n_numa_nodes) = (topology.n_packages(), topology.n_numa_nodes());
            if n_packages > n_numa_nodes {
                return Err(CpuConfigError::AlignBySocketTopology {
                    n_packages,
                    n_numa_nodes,
                });
            }
        }
        let n = settings.reservation.n;
        let reserved = match &settings.reservation.cpus {
            Some(cpus) => cpus.clone(),
            // As in kubelet (`NewStaticPolicy`), what cannot be taken is named as a reservation of the
            // wrong size.
            None => take(topology, topology.all(), n, settings.rule()).unwrap_or_default(),
        };
        if reserved.len() != n {
            return Err(CpuConfigError::ReservedCount { cpus: reserved, n });
        }
        if let Some(cpu) = reserved.difference(topology.all()).iter().next() {
            return Err(CpuConfigError::ReservedUnknown { cpu });
        }
        let mut manager = Self {
            settings: Arc::new(settings),
            reserved,
            state: CpuState::default(),
            remembered: None,
        };
        manager.state.shared_pool = manager.expected_cpus();
        Ok(manager)
    }

    pub fn state(&self) -> &CpuState {
        &self.state
    }

    pub fn settings(&self) -> &CpuSettings {
        &self.settings
    }

    /// CPUs that belong to the container alone, or to the pod's own shared pool; `None`: it runs in
    /// the shared pool.
    pub fn cpus_of(&self, pod: &PodUid, container: &str) -> Option<&CpuSet> {
        self.state.containers.get(pod)?.get(container)
    }

    /// The CPUs of everybody else, reserved ones among them unless the reservation is strict.
    pub fn shared_pool(&self) -> &CpuSet {
        &self.state.shared_pool
    }

    /// Where containers without CPUs of their own run. Under a strict reservation the pool is empty once the CPUs that
    /// were left in it are offline; those of the system are nobody's own.
    pub fn common(&self) -> &CpuSet {
        match self.settings.compat {
            Compat::Ballast if self.state.shared_pool.is_empty() => &self.reserved,
            Compat::Ballast | Compat::Kubelet => &self.state.shared_pool,
        }
    }

    /// Never given to a container alone.
    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    /// Reserved CPUs with all threads of their cores.
    pub fn reserved_cores(&self) -> CpuSet {
        self.settings.topology.whole_cores(&self.reserved)
    }

    /// All that can be given out, be it free or not.
    pub fn allocatable(&self) -> CpuSet {
        self.settings.topology.all().difference(&self.reserved)
    }

    /// What can be given out now.
    pub fn available(&self) -> CpuSet {
        self.state.shared_pool.difference(&self.reserved)
    }

    /// Threads of a core: on average with [`Compat::Kubelet`], at most with ours.
    pub fn cpus_per_core(&self) -> usize {
        self.settings.cpus_per_core()
    }

    /// Gives a container CPUs of its own, if it asks for any, as far as possible on the nodes of the
    /// hint. What it holds already it keeps, whatever it asks for.
    ///
    /// Cost: two runs of the allocator.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: Hint,
    ) -> Result<(), CpuError> {
        let n = exclusive_cpus(pod, container, self.settings.manages_pod_level);
        if n == 0 {
            return Ok(());
        }
        if self.settings.compat == Compat::Kubelet {
            // Kubelet refuses running containers after a restart here.
            self.check_cores_as_kubelet(n)?;
        }
        if let Some(held) = self.cpus_of(&pod.uid, &container.name).cloned() {
            self.remember(pod, container, &held);
            return Ok(());
        }
        let cpus = self.choose(n, hint, &self.reusable(pod))?;
        self.state.shared_pool = self.state.shared_pool.difference(&cpus);
        self.remember(pod, container, &cpus);
        let containers = self.state.containers.entry(pod.uid.clone()).or_default();
        containers.insert(container.name.clone(), cpus);
        Ok(())
    }

    /// Gives the CPUs of a container back, except those that others of its pod have too. The CPUs of
    /// a pod as a whole go with its last container.
    pub fn release(&mut self, pod: &PodUid, container: &str) {
        let Some(containers) = self.state.containers.get_mut(pod) else {
            return;
        };
        let Some(mut freed) = containers.remove(container) else {
            return;
        };
        if let Some(of_pod) = self.state.pods.get(pod) {
            if !containers.is_empty() {
                return;
            }
            freed = freed.union(of_pod);
            self.state.pods.remove(pod);
        }
        for others in containers.values() {
            freed = freed.difference(others);
        }
        if containers.is_empty() {
            self.state.containers.remove(pod);
        }
        self.state.shared_pool = self.state.shared_pool.union(&freed);
    }

    /// Releases the containers that are not to be kept: those of pods that are gone.
    pub fn retain(&mut self, keep: impl Fn(&PodUid, &str) -> bool) {
        let stale: Vec<(PodUid, String)> = self
            .state
            .containers
            .iter()
            .flat_map(|(pod, containers)| containers.keys().map(move |it| (pod, it)))
            .filter(|(pod, container)| !keep(pod, container))
            .map(|(pod, container)| (pod.clone(), container.clone()))
            .collect();
        for (pod, container) in stale {
            self.release(&pod, &container);
        }
    }

    /// `n` CPUs out of what is available and what the pod can use again, those on the nodes of the
    /// hint first.
    fn choose(&self, n: usize, hint: Hint, reusable: &CpuSet) -> Result<CpuSet, CpuError> {
        let settings = &self.settings;
        let topology = &settings.topology;
        let pool = self.assignable(reusable);
        let asks_for_cores = self.asks_for_cores();
        if asks_for_cores {
            self.check_cores(n, pool.len())?;
        }
        let take = |from: &CpuSet, n| take(topology, from, n, settings.rule());
        let aligned = match hint.numa {
            Some(nodes) => pool.intersection(&self.aligned_to(nodes)),
            None => CpuSet::new(),
        };
        let first = take(&aligned, n.min(aligned.len()))?;
        let rest = take(&pool.difference(&first), n.saturating_sub(first.len()))?;
        let cpus = first.union(&rest);
        if asks_for_cores && topology.full_cores(&cpus) != cpus {
            // Cores of different sizes do not add up to every number.
            return Err(self.too_few_cores(n, pool.len()));
        }
        let shared = &self.state.shared_pool;
        let takes_last = !shared.is_empty() && shared.difference(&cpus).is_empty();
        if takes_last && settings.compat == Compat::Ballast {
            return Err(CpuError::LastShared { requested: n });
        }
        Ok(cpus)
    }

    /// With `full-pcpus-only` nobody gets a part of a core. Kubelet checks the numbers alone.
    fn asks_for_cores(&self) -> bool {
        self.settings.options.full_pcpus_only && self.settings.compat == Compat::Ballast
    }

    /// The CPUs that a request can be served from.
    fn assignable(&self, reusable: &CpuSet) -> CpuSet {
        let pool = self.available().union(reusable);
        if self.asks_for_cores() {
            self.settings.topology.full_cores(&pool)
        } else {
            pool
        }
    }

    fn aligned_to(&self, nodes: NumaMask) -> CpuSet {
        if self.settings.options.align_by_socket {
            self.settings.topology.cpus_of_packages_of(nodes)
        } else {
            self.settings.topology.cpus_of_nodes(nodes)
        }
    }

    fn check_cores(&self, n: usize, available: usize) -> Result<(), CpuError> {
        let cpus_per_core = self.cpus_per_core();
        if !n.is_multiple_of(cpus_per_core) {
            return Err(CpuError::SmtSize {
                requested: n,
                cpus_per_core,
            });
        }
        if n > available {
            return Err(self.too_few_cores(n, available));
        }
        Ok(())
    }

    fn check_cores_as_kubelet(&self, n: usize) -> Result<(), CpuError> {
        if !self.settings.options.full_pcpus_only {
            return Ok(());
        }
        let free = self.state.shared_pool.difference(&self.reserved_cores());
        self.check_cores(n, free.len())
    }

    fn too_few_cores(&self, requested: usize, available: usize) -> CpuError {
        CpuError::SmtFree {
            available,
            requested,
            cpus_per_core: self.cpus_per_core(),
        }
    }

    /// CPUs that the pod's ordinary init containers hold and none of its other containers does.
    fn reusable(&self, pod: &Pod) -> CpuSet {
        if self.settings.compat == Compat::Kubelet {
            let remembered = self.remembered.as_ref().filter(|it| it.0 == pod.uid);
            return remembered.map(|it| it.1.clone()).unwrap_or_default();
        }
        let of = |is_init: bool| {
            let containers = pod.all_containers().zip(0..);
            containers
                .filter(|(it, i)| is_init == (*i < pod.init_containers.len() && !it.is_sidecar))
                .filter_map(|(it, _)| self.cpus_of(&pod.uid, &it.name))
                .fold(CpuSet::new(), |sum, it| sum.union(it))
        };
        of(true).difference(&of(false))
    }

    fn remember(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        if self.settings.compat == Compat::Ballast {
            return;
        }
        let before = self.remembered.take().filter(|it| it.0 == pod.uid);
        let before = before.map(|it| it.1).unwrap_or_default();
        let mut inits = pod.init_containers.iter().filter(|it| !it.is_sidecar);
        let after = if inits.any(|it| it.name == container.name) {
            before.union(cpus)
        } else {
            before.difference(cpus)
        };
        self.remembered = Some((pod.uid.clone(), after));
    }
}

impl CpuSettings {
    fn cpus_per_core(&self) -> usize {
        match self.compat {
            Compat::Kubelet => self.topology.average_cpus_per_core(),
            Compat::Ballast => self.topology.most_cpus_per_core(),
        }
    }

    fn rule(&self) -> TakeRule {
        let options = self.options;
        let spreading = if options.distribute_cpus_across_numa {
            let group_size = if options.full_pcpus_only {
                self.cpus_per_core()
            } else {
                1
            };
            Spreading::AcrossNumaNodes { group_size }
        } else {
            Spreading::Packed {
                align_by_llc: options.prefer_align_cpus_by_uncorecache,
            }
        };
        TakeRule {
            spreading,
            order: options.order(),
            compat: self.compat,
        }
    }
}

#[cfg(test)]
mod tests;
