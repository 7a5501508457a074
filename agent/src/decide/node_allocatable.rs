//! What the node has, what of it is kept back, what pods may use, and what is written to the
//! cgroups that hold them to it (pkg/kubelet/cm/node_container_manager_linux.go, v1.36). Pinned by
//! suite `node_allocatable`.
//!
//! Two different figures are called allocatable. The *absolute* one is capacity less
//! `kubeReserved` and `systemReserved`: it limits kubepods. The one in the Node status also keeps
//! back the hard eviction thresholds and preallocated hugepages: it is what the scheduler fills.

use std::collections::BTreeMap;

use super::eviction::thresholds::{ThresholdError, threshold_amount};
use super::pod_resources::{hugepages, memory, unmentioned_hugepages};
use crate::config::{Compat, Enforcement, KubeletConfig};
use crate::model::cpuset::CpuSet;
use crate::model::eviction::{Amount, Signal};
use crate::model::pod::{ResourceList, cpu_in, memory_in};
use crate::model::quantity::{Format, Quantity};
use crate::model::resources::CgroupResources;
use crate::units::{Bytes, Limit, cpu_shares};

/// Resource name of processes; only known to the node's own cgroups.
pub const PID: &str = "pid";

/// The machine, as it was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Logical CPUs online.
    pub n_cpus: u32,
    /// `MemTotal`.
    pub memory: Bytes,
    /// Page size in bytes to number of pages in the pool.
    pub hugepages: BTreeMap<u64, u64>,
    /// Memory in huge pages that are in no pool any more and not free yet.
    pub held_hugepages: Bytes,
    /// Size of the filesystem that holds the pods' files. `None`: not known, so it is no resource
    /// of the node.
    pub ephemeral_storage: Option<Bytes>,
    /// The smaller of `kernel.pid_max` and `kernel.threads-max`. `None`: not known, so pods' pids
    /// are not limited together.
    pub max_pid: Option<u64>,
}

/// Reservations and thresholds of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reservations {
    pub kube: ResourceList,
    pub system: ResourceList,
    /// `memory.available` of `evictionHard`.
    pub hard_memory: Option<Amount>,
    /// `nodefs.available` of `evictionHard`.
    pub hard_nodefs: Option<Amount>,
}

impl Reservations {
    /// From the configuration; the error names the eviction signal.
    pub fn new(config: &KubeletConfig) -> Result<Self, ThresholdError> {
        let threshold = |signal: Signal| match config.eviction_hard.get(signal.as_str()) {
            Some(text) => threshold_amount(signal, text),
            None => Ok(None),
        };
        Ok(Self {
            kube: config.kube_reserved.clone(),
            system: config.system_reserved.clone(),
            hard_memory: threshold(Signal::MemoryAvailable)?,
            hard_nodefs: threshold(Signal::NodeFsAvailable)?,
        })
    }
}

/// The figures of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAllocatable {
    /// `cpu`, `memory`, `hugepages-*`, and `ephemeral-storage` where it is known.
    pub capacity: ResourceList,
    /// `capacity` with `pid` and without `ephemeral-storage`: what cgroups can be limited to.
    pub cgroup_capacity: ResourceList,
    /// Capacity less what is reserved, without the eviction thresholds.
    pub absolute: ResourceList,
    /// The same of `cgroup_capacity`.
    pub cgroup_absolute: ResourceList,
    /// What is kept back in all: kube, system, eviction. Without entries of 0.
    pub reservation: ResourceList,
    /// See [`Machine::held_hugepages`].
    pub held_hugepages: Bytes,
}

impl NodeAllocatable {
    pub fn new(machine: &Machine, reservations: &Reservations) -> Self {
        let mut cgroup_capacity = ResourceList::new();
        let cpus = Quantity::from_milli(i64::from(machine.n_cpus) * 1000);
        cgroup_capacity.insert("cpu".to_owned(), cpus);
        cgroup_capacity.insert("memory".to_owned(), Quantity::from_bytes(machine.memory.0));
        for (&size, &n_pages) in &machine.hugepages {
            let name = format!("hugepages-{}", Quantity::from_bytes(size));
            let amount = Quantity::from_bytes(size.saturating_mul(n_pages));
            cgroup_capacity.insert(name, amount);
        }
        let mut capacity = cgroup_capacity.clone();
        if let Some(storage) = machine.ephemeral_storage {
            capacity.insert(
                "ephemeral-storage".to_owned(),
                Quantity::from_bytes(storage.0),
            );
        }
        if let Some(max_pid) = machine.max_pid {
            let max_pid = i64::try_from(max_pid).unwrap_or(i64::MAX);
            cgroup_capacity.insert(
                PID.to_owned(),
                Quantity::from_units(max_pid, Format::DecimalSi),
            );
        }
        Self {
            absolute: absolute(&capacity, reservations),
            cgroup_absolute: absolute(&cgroup_capacity, reservations),
            reservation: reservation(&capacity, reservations),
            capacity,
            cgroup_capacity,
            held_hugepages: machine.held_hugepages,
        }
    }

    /// Resources of which more is reserved than there is, with the reserved amount and the
    /// capacity. Empty: the node can run as configured.
    pub fn overcommitted(&self) -> Vec<(&str, &Quantity, &Quantity)> {
        self.reservation
            .iter()
            .filter_map(|(name, reserved)| {
                let capacity = self.capacity.get(name)?;
                (reserved > capacity).then_some((name.as_str(), reserved, capacity))
            })
            .collect()
    }

    /// `status.capacity` of the Node.
    pub fn node_capacity(&self, n_pods: u32) -> ResourceList {
        let mut list = self.capacity.clone();
        let n_pods = Quantity::from_units(i64::from(n_pods), Format::DecimalSi);
        list.insert("pods".to_owned(), n_pods);
        list
    }

    /// `status.allocatable` of the Node: what the scheduler may fill.
    pub fn node_allocatable(&self, n_pods: u32) -> ResourceList {
        let mut list = self.node_capacity(n_pods);
        for (name, amount) in &mut list {
            if let Some(reserved) = self.reservation.get(name) {
                *amount = amount.minus(reserved).or_zero();
            }
        }
        // Pages in a pool are no longer memory, and those that it has lost are when they are free.
        let held = Quantity::from_bytes(self.held_hugepages.0);
        let pools = self.capacity.iter();
        let pools = pools.filter(|(name, _)| name.starts_with("hugepages-"));
        for pages in pools.map(|(_, pages)| pages).chain([&held]) {
            if let Some(memory) = list.get_mut("memory") {
                *memory = memory.minus(pages).or_zero();
            }
        }
        list
    }

    /// Absolute allocatable memory: the fallback of `memory.high` and the base of `qosReserved`.
    pub fn absolute_memory(&self) -> Bytes {
        memory(&self.absolute)
    }

    /// What the kubepods cgroup is to hold. `cpuset` is every CPU where no policy hands them out:
    /// systemd then keeps the controller enabled.
    pub fn kubepods(&self, config: &KubeletConfig, cpuset: Option<CpuSet>) -> CgroupResources {
        let is_enforced = config.enforce_node_allocatable.contains(&Enforcement::Pods);
        let list = if is_enforced {
            &self.cgroup_absolute
        } else {
            &self.cgroup_capacity
        };
        let resources = node_resources(list, Part::All);
        CgroupResources {
            cpuset_cpus: cpuset,
            ..without_zero_memory(resources)
        }
    }
}

/// What the cgroup of `kubeReserved` or `systemReserved` is to hold.
///
/// `protects_memory` is the gate MemoryQoS on cgroup v2: the memory limit is protected as well.
/// Hugepages that are not reserved are left alone; kubelet sets them to 0, which takes them from
/// the daemons that use them.
pub fn reserved_resources(
    reserved: &ResourceList,
    part: Part,
    protects_memory: bool,
    compat: Compat,
) -> CgroupResources {
    let mut resources = without_zero_memory(node_resources(reserved, part));
    if protects_memory && let Some(Limit::At(bytes)) = resources.memory_max {
        resources
            .unified
            .insert("memory.min".to_owned(), bytes.to_string());
    }
    if resources.hugetlb.as_ref().is_none_or(BTreeMap::is_empty) {
        resources.hugetlb = unmentioned_hugepages(compat);
    }
    resources
}

/// Which part of a reservation is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    All,
    /// CPU only (`system-reserved-compressible`, `kube-reserved-compressible`).
    Compressible,
}

/// A list of amounts as resources of one cgroup. What the list lacks is left alone.
pub fn node_resources(list: &ResourceList, part: Part) -> CgroupResources {
    let mut resources = CgroupResources {
        cpu_shares: cpu_in(list).map(cpu_shares),
        ..CgroupResources::default()
    };
    if part == Part::All {
        resources.memory_max = memory_in(list).map(|Bytes(it)| Limit::At(it));
        resources.pids_max = list.get(PID).map(|it| Limit::At(it.units()));
        resources.hugetlb = Some(hugepages(list));
    }
    resources
}

/// A memory limit of 0 is not written: the cgroup library that kubelet uses takes it for unset, and
/// it could only mean that no process may live.
fn without_zero_memory(mut resources: CgroupResources) -> CgroupResources {
    resources.memory_max = resources.memory_max.filter(|it| *it != Limit::At(0));
    resources
}

/// Pods the node takes: `maxPods`, or fewer by `podsPerCore`, where 0 is no bound.
pub fn n_pods(n_cpus: u32, max_pods: u32, pods_per_core: u32) -> u32 {
    match pods_per_core {
        0 => max_pods,
        per_core => max_pods.min(per_core.saturating_mul(n_cpus)),
    }
}

fn absolute(capacity: &ResourceList, reservations: &Reservations) -> ResourceList {
    let less = |name: &String, amount: &Quantity| {
        let lists = [&reservations.system, &reservations.kube];
        let left = lists
            .iter()
            .filter_map(|it| it.get(name))
            .fold(amount.clone(), |left, reserved| left.minus(reserved));
        (name.clone(), left.or_zero())
    };
    capacity
        .iter()
        .map(|(name, amount)| less(name, amount))
        .collect()
}

fn reservation(capacity: &ResourceList, reservations: &Reservations) -> ResourceList {
    let mut list = ResourceList::new();
    for (name, amount) in capacity {
        let threshold = match name.as_str() {
            "memory" => reservations.hard_memory.as_ref(),
            "ephemeral-storage" => reservations.hard_nodefs.as_ref(),
            _ => None,
        };
        let eviction = threshold.map(|it| it.of(amount));
        let parts = [
            reservations.system.get(name),
            reservations.kube.get(name),
            eviction.as_ref(),
        ];
        let sum = parts
            .into_iter()
            .flatten()
            .fold(Quantity::ZERO, |sum, it| sum.plus(it));
        if !sum.is_zero() {
            list.insert(name.clone(), sum);
        }
    }
    list
}

#[cfg(test)]
mod tests;
