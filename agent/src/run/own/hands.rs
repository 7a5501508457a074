//! The hands of mode `own`: what shall be on this node by its settings, and what writes it.

use std::sync::Arc;

use super::system_cpus::{self, while_online};
use crate::apply::cgroupfs::{ApplyError, CgroupWriter};
use crate::apply::devices::DevicePrograms;
use crate::check;
use crate::config::{
    Compat, CpuManagerPolicy, Enforcement, FieldPath, KubeletConfig, MemoryManagerPolicy,
};
use crate::decide::cgroup_files::{FileRules, hugepage_size_name};
use crate::decide::desired::{AncestorCpuset, NodePlan};
use crate::decide::device_access::device_access;
use crate::decide::node_allocatable::{NodeAllocatable, PID};
use crate::decide::predicates;
use crate::decide::qos_cgroups::QosReserved;
use crate::decide::resource_settings::{CpuLimits, NodeFacts, ResourceSettings};
use crate::model::capacity::{HugePages, NodeCapacity, is_swap_on};
use crate::model::cgroup::Controller;
use crate::model::cgroup_name::{CgroupDriver, CgroupName};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::device_access::DeviceRules;
use crate::model::eviction::{Amount, Signal};
use crate::model::numa::NumaMask;
use crate::model::pod::ResourceList;
use crate::model::quantity::Quantity;
use crate::model::topology::Topology;
use crate::run::RunError;
use crate::run::amounts;
use crate::run::check::reserved_facts;
use crate::run::node::{Node, NodeError, n_cpus};
use crate::sources::cgroupfs::{CgroupReader, ReadError};
use crate::sources::{procfs, sysfs};
use crate::sys::{Root, Trees, syscall};
use crate::units::Bytes;

/// v2 controllers that the agent turns on for its cgroups, where the node has them.
const ENABLED: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

/// Why the node cannot be run as configured.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    #[error(
        "kubelet.cgroupDriver: `systemd` is not in this version of ballast; right would be cgroupfs"
    )]
    SystemdDriver,
    #[error(
        "kubelet.singleProcessOOMKill: false needs memory.oom.group of cgroup v2, and this node has its \
         controllers on cgroup v1; right would be true, or to leave it out"
    )]
    OomGroup,
    #[error(
        "kubelet.failSwapOn: swap is on, and pods may be swapped, which true forbids; right would be false, or to \
         turn swap off (swapoff -a)"
    )]
    SwapOn,
    #[error(
        "kubelet.failCgroupV1: this node has its controllers on cgroup v1, which true forbids; right would be false, or \
         to boot with systemd.unified_cgroup_hierarchy=1"
    )]
    CgroupV1,
    #[error(
        "kubelet.{field}: {fault}; right would be a cgroup that is there with its controllers before the agent starts, \
         or to leave the reservation out of enforceNodeAllocatable"
    )]
    ReservedCgroup { field: String, fault: String },
    #[error(
        "kubelet.reservedSystemCPUs: {wanted} is not among the CPUs {present} of this machine; right would be only those"
    )]
    ReservedCpus { wanted: CpuSet, present: CpuSet },
    #[error("{}: more {resource} is kept from pods ({reserved}) than the node has ({capacity}){}", .by[0], together(.by))]
    OverReserved {
        /// What reserves some of it, never empty.
        by: Vec<FieldPath>,
        resource: String,
        reserved: String,
        capacity: String,
    },
    #[error("kubelet.{field}: {message}")]
    Setting {
        field: &'static str,
        message: String,
    },
}

fn together(by: &[FieldPath]) -> String {
    let others = by.iter().skip(1).filter_map(|it| it.within("kubelet"));
    let others: Vec<String> = others.map(|it| it.to_string()).collect();
    match others.is_empty() {
        true => String::new(),
        false => format!(", together with {}", others.join(" and ")),
    }
}

impl SettingError {
    /// The fields of the configuration that it is concluded from; the first is at fault.
    pub(in crate::run) fn fields(&self) -> Vec<FieldPath> {
        let kubelet = FieldPath::of("kubelet");
        let of = |names: &[&str]| names.iter().map(|it| kubelet.field(it)).collect();
        match self {
            Self::SystemdDriver => of(&["cgroupDriver"]),
            Self::OomGroup => of(&["singleProcessOOMKill"]),
            Self::SwapOn => of(&["failSwapOn"]),
            Self::CgroupV1 => of(&["failCgroupV1"]),
            Self::ReservedCgroup { field, .. } => of(&[field.as_str(), "enforceNodeAllocatable"]),
            Self::ReservedCpus { .. } => of(&["reservedSystemCPUs"]),
            Self::OverReserved { by, .. } => by.clone(),
            Self::Setting { field, .. } => of(&[field]),
        }
    }

    /// The item of `ballast check` that says the same of the node.
    pub(in crate::run) fn check_item(&self) -> Option<&'static str> {
        match self {
            Self::SwapOn => Some(check::SWAP),
            Self::CgroupV1 => Some(check::CGROUP_HIERARCHY),
            Self::ReservedCgroup { .. } => Some(check::RESERVED_CGROUPS),
            Self::SystemdDriver
            | Self::OomGroup
            | Self::ReservedCpus { .. }
            | Self::OverReserved { .. }
            | Self::Setting { .. } => None,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Hands {
    pub plan: NodePlan,
    pub writer: CgroupWriter,
    /// `None` before [`Hands::prepare`].
    pub device_control: Option<DeviceControl>,
    /// v1: pods could have all CPUs when the agent started. Where somebody has given them fewer, that stays.
    had_all_cpus: bool,
    /// CPUs went or came since. On v1 one that went is lost to every cpuset but the root's.
    have_cpus_moved: bool,
}

/// What restricts the devices of containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceControl {
    /// The devices controller of v1.
    Controller,
    /// An eBPF program on each cgroup.
    Program,
    /// Nothing, and why. Containers run all the same, as they would without an agent: what they may
    /// open is up to the permissions of the nodes then.
    Off(String),
}

/// Other CPUs are online.
#[derive(Debug)]
pub(super) struct CpusChanged {
    pub came: CpuSet,
    pub went: CpuSet,
    /// What of the configuration no longer fits the node.
    pub fault: Option<SettingError>,
}

impl Hands {
    /// By a configuration without [`faults`], as it is [while these CPUs are online](while_online). Writes nothing.
    pub(super) fn new(
        node: &Node,
        kubelet: &KubeletConfig,
        compat: Compat,
    ) -> Result<Self, SettingError> {
        let trees = node.reader.trees();
        let enabled = node.cgroups.present(&ENABLED);
        let page_size = node.identity.page_size.0;
        Ok(Self {
            plan: node_plan(kubelet, compat, node)?,
            writer: CgroupWriter::new(Arc::clone(trees), enabled, page_size),
            device_control: None,
            had_all_cpus: false,
            have_cpus_moved: false,
        })
    }

    /// CPUs went or came, perhaps so briefly that the node has the same ones again.
    pub(super) fn cpus_moved(&mut self) {
        self.have_cpus_moved = true;
    }

    /// Reads the CPUs again when pods may have others than they could; the budgets follow. Nothing of the node
    /// changes when that fails.
    pub(super) fn refresh_cpus(
        &mut self,
        node: &mut Node,
        root: &Root,
        kubelet: &KubeletConfig,
    ) -> Result<Option<CpusChanged>, RunError> {
        let before = node.topology.online();
        let Some(topology) = topology_for_pods(node, root, kubelet)? else {
            return Ok(None);
        };
        let online = topology.online();
        let mut capacity = node.capacity.clone();
        capacity.n_cpus = n_cpus(&topology);
        let kubelet = &while_online(kubelet, &online);
        let allocatable = allocatable(kubelet, &capacity)?;
        let fault = over_reserved(kubelet, &allocatable).into_iter().next();
        self.cpus_moved();
        node.topology = topology;
        node.capacity = capacity;
        self.plan.allocatable = allocatable;
        Ok(Some(CpusChanged {
            came: online.difference(&before),
            went: before.difference(&online),
            fault,
        }))
    }

    /// Huge pages may have been set aside or given back, or be of another NUMA node; the budgets follow. False: they are
    /// as they were, but for what is held of those that were given back.
    pub(super) fn refresh_hugepages(
        &mut self,
        node: &mut Node,
        root: &Root,
        kubelet: &KubeletConfig,
    ) -> Result<bool, RunError> {
        let held = procfs::held_hugepages(root).map_err(NodeError::from)?;
        if held != node.capacity.held_hugepages {
            let capacity = NodeCapacity {
                held_hugepages: held,
                ..node.capacity.clone()
            };
            self.set_capacity(node, capacity, kubelet)?;
        }
        let found = procfs::hugepage_pools(root).map_err(NodeError::from)?;
        let changed = with_hugepages(&node.capacity, found);
        let have_moved = || sysfs::have_hugepages_moved(root, &node.topology);
        if changed.is_none() && !have_moved().map_err(NodeError::from)? {
            return Ok(false);
        }
        let capacity = changed.unwrap_or_else(|| node.capacity.clone());
        let online = node.topology.online();
        let topology = sysfs::topology_within(root, &online).map_err(NodeError::from)?;
        self.set_capacity(node, capacity, kubelet)?;
        node.topology = topology;
        Ok(true)
    }

    /// A disk may have been grown; the budgets follow. `size`: `None` where it is not known.
    pub(super) fn refresh_disk(
        &mut self,
        node: &mut Node,
        size: Option<Bytes>,
        kubelet: &KubeletConfig,
    ) -> Result<(), SettingError> {
        match with_disk(&node.capacity, size) {
            Some(capacity) => self.set_capacity(node, capacity, kubelet),
            None => Ok(()),
        }
    }

    /// The node has so much by now, with the CPUs that it had; the budgets follow.
    fn set_capacity(
        &mut self,
        node: &mut Node,
        capacity: NodeCapacity,
        kubelet: &KubeletConfig,
    ) -> Result<(), SettingError> {
        let kubelet = &while_online(kubelet, &node.topology.online());
        self.plan.allocatable = allocatable(kubelet, &capacity)?;
        node.capacity = capacity;
        Ok(())
    }

    /// v1, where containers are placed, or have lost CPUs: what the cgroups above them are to hold.
    pub(super) fn refresh_ancestors(
        &mut self,
        node: &Node,
        kubelet: &KubeletConfig,
    ) -> Result<(), ReadError> {
        let placement = &kubelet.placement;
        let is_placed = placement.cpu_manager_policy == CpuManagerPolicy::Static
            || placement.memory_manager_policy == MemoryManagerPolicy::Static;
        let has_lost_cpus = self.had_all_cpus && self.have_cpus_moved;
        if node.is_unified() || !(is_placed || has_lost_cpus) {
            return Ok(());
        }
        let Some(parent) = self.plan.kubepods_path().parent() else {
            return Ok(());
        };
        let cpus = node.reader.cpus(&parent)?;
        let mems = node.reader.mems(&parent)?;
        let mems = mems.and_then(|it| NumaMask::of_ids(&it).ok());
        let is_free = placement.cpu_manager_policy == CpuManagerPolicy::None;
        self.plan.ancestors = cpus.zip(mems).map(|(cpus, mems)| AncestorCpuset {
            cpus,
            mems,
            of_containers: is_free && has_lost_cpus,
        });
        Ok(())
    }

    /// Makes kubepods and the QoS cgroups, and learns from them what only a cgroup can tell. Finds
    /// out whether devices can be restricted, which takes 30 ms where a program does it.
    pub(super) fn prepare(&mut self, node: &Node) -> Result<(), ApplyError> {
        let device_control = self.start_device_control(&node.reader);
        self.plan.rules.devices = !matches!(device_control, DeviceControl::Off(_));
        self.device_control = Some(device_control);
        for name in self.plan.qos_cgroups() {
            self.writer.create(&name)?;
        }
        self.had_all_cpus = !node.is_unified() && self.has_all_cpus(node);
        self.plan.rules.hugetlb_reservations = self.has_hugetlb_reservations(node);
        if node.is_unified() {
            let swap_max = node.is_swap_limitable(&self.plan.kubepods_path());
            self.plan.rules.swap_max = swap_max;
            self.plan.settings.node.is_swap_limitable = swap_max;
        }
        Ok(())
    }

    /// Whether kubepods has the CPUs of the cgroup above it.
    fn has_all_cpus(&self, node: &Node) -> bool {
        let kubepods = self.plan.kubepods_path();
        let cpus = |path: &CgroupPath| node.reader.cpus(path).ok().flatten();
        let above = kubepods.parent().and_then(|it| cpus(&it));
        above.is_some() && above == cpus(&kubepods)
    }

    fn start_device_control(&mut self, reader: &CgroupReader) -> DeviceControl {
        let trees = reader.trees();
        if trees.legacy(Controller::Devices.name()).is_some() {
            return DeviceControl::Controller;
        }
        if trees.cgroup2().is_none() {
            let why =
                "the node has neither the devices controller of cgroup v1 nor a cgroup2 mount";
            return DeviceControl::Off(why.to_owned());
        }
        let reader = reader.clone();
        let on_load = move |id, rules: &DeviceRules| {
            reader.device_program_is_loaded(id, rules.clone());
        };
        match DevicePrograms::new(&device_access(&[]), Box::new(on_load)) {
            Ok(programs) => {
                self.writer.set_device_programs(programs);
                syscall::release_free_memory();
                DeviceControl::Program
            }
            Err(error) => DeviceControl::Off(crate::observe::chain(&error)),
        }
    }

    /// Whether the kernel limits reservations of huge pages, by the files of kubepods.
    fn has_hugetlb_reservations(&self, node: &Node) -> bool {
        let Some(size) = self.plan.rules.hugepage_sizes.first() else {
            return false;
        };
        let limit = match node.is_unified() {
            true => "max",
            false => "limit_in_bytes",
        };
        let file = format!("hugetlb.{}.rsvd.{limit}", hugepage_size_name(*size));
        let controller = Controller::Hugetlb.name();
        let dir = node.reader.dir(&self.plan.kubepods_path(), controller);
        dir.is_ok_and(|it| it.has(&file))
    }

    /// The node as the first pod finds it.
    pub(super) fn node_without_pods(
        &self,
        node: &Node,
        kubelet: &KubeletConfig,
    ) -> predicates::Node {
        let allocatable = &self.plan.allocatable;
        predicates::Node::standalone(&node.name, allocatable, kubelet, node.capacity.n_cpus)
    }

    /// kubepods or a QoS cgroup.
    pub(super) fn is_node_level(&self, path: &CgroupPath) -> bool {
        self.plan.qos_cgroups().contains(path)
    }
}

/// What of the configuration does not fit the node.
pub(super) fn faults(
    root: &Root,
    node: &Node,
    kubelet: &KubeletConfig,
    compat: Compat,
) -> Vec<SettingError> {
    let online = node.topology.online();
    let mut faults = Vec::new();
    if kubelet.cgroup_driver == CgroupDriver::Systemd {
        faults.push(SettingError::SystemdDriver);
    }
    // v1 kills one process and has nothing to change that.
    if kubelet.single_process_oom_kill == Some(false) && !node.is_unified() {
        faults.push(SettingError::OomGroup);
    }
    let swaps = || root.read_text("/proc/swaps");
    if kubelet.fail_swap_on && swaps().is_ok_and(|it| is_swap_on(&it)) {
        faults.push(SettingError::SwapOn);
    }
    if kubelet.fail_cgroup_v1 && !node.is_unified() {
        faults.push(SettingError::CgroupV1);
    }
    let reserved = reserved_facts(kubelet, compat, node.is_unified(), &node.reader);
    faults.extend(reserved.into_iter().filter_map(|it| {
        let fault = it.fault()?;
        let field = it.field;
        Some(SettingError::ReservedCgroup { field, fault })
    }));
    faults.extend(system_cpus::check(root, kubelet, &online).err());
    faults.extend(check_cgroup_root(kubelet, node.reader.trees()).err());
    let kubelet = &while_online(kubelet, &online);
    match allocatable(kubelet, &node.capacity) {
        Ok(allocatable) => faults.extend(over_reserved(kubelet, &allocatable)),
        Err(fault) => faults.push(fault),
    }
    faults
}

/// The node as pods can have it: of the CPUs that are online those that the root of their cgroups may use.
pub(super) fn confine(
    node: &mut Node,
    root: &Root,
    kubelet: &KubeletConfig,
) -> Result<(), RunError> {
    if let Some(topology) = topology_for_pods(node, root, kubelet)? {
        node.capacity.n_cpus = n_cpus(&topology);
        node.topology = topology;
    }
    Ok(())
}

/// `None`: as it was, or not known.
fn topology_for_pods(
    node: &Node,
    root: &Root,
    kubelet: &KubeletConfig,
) -> Result<Option<Topology>, RunError> {
    let Some(online) = sysfs::online(root) else {
        return Ok(None);
    };
    let kubelet = &while_online(kubelet, &online);
    let usable = usable_cpus(node, kubelet).map(|it| online.intersection(&it));
    let cpus = usable.filter(|it| leaves_cpus_to_pods(node, kubelet, it));
    let cpus = cpus.unwrap_or(online);
    if cpus.is_empty() || cpus == node.topology.online() {
        return Ok(None);
    }
    let topology = sysfs::topology_within(root, &cpus);
    Ok(Some(topology.map_err(NodeError::from)?))
}

/// What is reserved may be what is outside: then the whole machine counts, of which pods get what is not reserved.
fn leaves_cpus_to_pods(node: &Node, kubelet: &KubeletConfig, cpus: &CpuSet) -> bool {
    let capacity = NodeCapacity {
        n_cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        ..node.capacity.clone()
    };
    let has_some = allocatable(kubelet, &capacity).is_ok_and(|it| {
        let cpu = it.node_allocatable(0).remove("cpu");
        cpu.is_some_and(|it| it.is_positive())
    });
    let reserved = kubelet.reserved_system_cpus.as_ref();
    has_some && reserved.is_none_or(|it| it.is_subset(cpus))
}

/// Of the cgroup below which kubepods is, or of the nearest above it of which that is known. `None`: of none.
fn usable_cpus(node: &Node, kubelet: &KubeletConfig) -> Option<CpuSet> {
    let root = kubelet.cgroup_root_path();
    let mut paths = root.ancestors();
    paths.find_map(|it| node.reader.cpus(&it).ok().flatten())
}

/// A file of the kernel, as `tasks`, cannot be a cgroup.
fn check_cgroup_root(kubelet: &KubeletConfig, trees: &Trees) -> Result<(), SettingError> {
    let path = kubelet.cgroup_root_path();
    for tree in &trees.trees {
        let found = tree.dir.descend(path.components());
        if let Err(error) = found
            && error.errno() == Some(nix::libc::ENOTDIR)
        {
            return Err(SettingError::Setting {
                field: "cgroupRoot",
                message: format!(
                    "{path} is a file of the kernel in {}; right would be a cgroup",
                    tree.dir.path().display()
                ),
            });
        }
    }
    Ok(())
}

/// `None`: as it was. A pool that was not found could not be read, and is as it was.
fn with_hugepages(before: &NodeCapacity, found: HugePages) -> Option<NodeCapacity> {
    let mut capacity = before.clone();
    capacity.hugepages.extend(found);
    (capacity != *before).then_some(capacity)
}

/// `None`: as it was, or not known.
fn with_disk(before: &NodeCapacity, size: Option<Bytes>) -> Option<NodeCapacity> {
    let capacity = NodeCapacity {
        ephemeral_storage: Some(size?),
        ..before.clone()
    };
    (capacity != *before).then_some(capacity)
}

/// The budgets; more may be reserved than there is.
fn allocatable(
    kubelet: &KubeletConfig,
    capacity: &NodeCapacity,
) -> Result<NodeAllocatable, SettingError> {
    amounts::allocatable(kubelet, capacity).map_err(|error| SettingError::Setting {
        field: "evictionHard",
        message: error.to_string(),
    })
}

fn over_reserved(kubelet: &KubeletConfig, allocatable: &NodeAllocatable) -> Vec<SettingError> {
    let pids = too_many_pids(kubelet, allocatable);
    let pids = pids
        .as_ref()
        .map(|(reserved, capacity)| (PID, reserved, *capacity));
    let all = allocatable.overcommitted().into_iter().chain(pids);
    let fault = all.map(
        |(resource, reserved, capacity)| SettingError::OverReserved {
            by: who_reserves(kubelet, resource),
            resource: resource.to_owned(),
            reserved: reserved.to_string(),
            capacity: capacity.to_string(),
        },
    );
    fault.collect()
}

/// More process ids than there are, where kubepods is left the rest: none, so nothing could start.
fn too_many_pids<'a>(
    kubelet: &KubeletConfig,
    allocatable: &'a NodeAllocatable,
) -> Option<(Quantity, &'a Quantity)> {
    let enforced = &kubelet.enforce_node_allocatable;
    let capacity = allocatable.cgroup_capacity.get(PID);
    let capacity = capacity.filter(|_| enforced.contains(&Enforcement::Pods))?;
    let reserved = kubelet.reserved(PID);
    (reserved > *capacity).then_some((reserved, capacity))
}

/// The fields that keep some of a resource from pods.
fn who_reserves(kubelet: &KubeletConfig, resource: &str) -> Vec<FieldPath> {
    let at = FieldPath::of("kubelet");
    let has = |list: &ResourceList| list.get(resource).is_some_and(|it| !it.is_zero());
    let system = match resource == "cpu" && kubelet.reserved_system_cpus.is_some() {
        true => at.field("reservedSystemCPUs"),
        false => at.field("systemReserved").field(resource),
    };
    let signal = match resource {
        "memory" => Some(Signal::MemoryAvailable),
        "ephemeral-storage" => Some(Signal::NodeFsAvailable),
        _ => None,
    };
    let signal = signal.map(Signal::as_str);
    let keeps = |text: &String| matches!(Amount::parse_threshold(text), Ok(Some(_)));
    let kept = signal.filter(|it| kubelet.eviction_hard.get(*it).is_some_and(keeps));
    let mut by = Vec::new();
    by.extend(has(&kubelet.system_reserved).then(|| system.clone()));
    by.extend(has(&kubelet.kube_reserved).then(|| at.field("kubeReserved").field(resource)));
    by.extend(kept.map(|it| at.field("evictionHard").field(it)));
    if by.is_empty() {
        by.push(system);
    }
    by
}

fn node_plan(
    kubelet: &KubeletConfig,
    compat: Compat,
    node: &Node,
) -> Result<NodePlan, SettingError> {
    let allocatable = allocatable(kubelet, &node.capacity)?;
    let kubepods = CgroupName::kubepods(&kubelet.cgroup_root);
    // Of v2 `prepare` knows, which makes kubepods.
    let memory_and_swap =
        !node.is_unified() && node.is_swap_limitable(&kubepods.at(kubelet.cgroup_driver));
    let page_size = node.identity.page_size;
    let facts = NodeFacts {
        version: node.version(),
        memory: node.capacity.memory,
        allocatable_memory: Some(allocatable.absolute_memory()),
        swap: node.capacity.swap.unwrap_or(Bytes(0)),
        is_swap_limitable: memory_and_swap,
        page_size,
    };
    let rules = FileRules {
        hugepage_sizes: match node.cgroups.controllers.contains("hugetlb") {
            true => node.capacity.hugepages.keys().map(|size| size.0).collect(),
            false => Vec::new(),
        },
        memory_and_swap,
        pids: node.cgroups.controllers.contains("pids"),
        // `prepare` knows the others.
        ..FileRules::plain(node.is_unified(), page_size.0)
    };
    Ok(plan(kubelet, compat, allocatable, facts, rules))
}

/// What follows from the configuration on a node like this.
pub(super) fn plan(
    kubelet: &KubeletConfig,
    compat: Compat,
    allocatable: NodeAllocatable,
    facts: NodeFacts,
    rules: FileRules,
) -> NodePlan {
    let is_enforced = kubelet
        .enforce_node_allocatable
        .contains(&Enforcement::Pods);
    let qos_reserved = kubelet.qos_reserved_memory_percent;
    NodePlan {
        kubepods: CgroupName::kubepods(&kubelet.cgroup_root),
        driver: kubelet.cgroup_driver,
        rules,
        qos_reserved: qos_reserved.map(|percent| QosReserved {
            percent,
            allocatable: match is_enforced {
                true => allocatable.absolute_memory(),
                false => facts.memory,
            },
        }),
        settings: ResourceSettings::new(kubelet, compat, facts),
        allocatable,
        ancestors: None,
        exclusive_cpu_limits: match kubelet.placement.lifts_quota_of_exclusive_cpus {
            true => CpuLimits::Ignored,
            false => CpuLimits::Enforced,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Config;

    #[test]
    fn pods_may_have_the_huge_pages_that_are_set_aside_while_the_agent_runs() {
        const GIB: u64 = 1 << 30;
        let text = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             kubelet: {evictionHard: {memory.available: 0%}}\n";
        let loaded = Config::from_yaml(text, None, &[]).expect("no faults");
        let small = Bytes(2 << 20);
        let mut capacity = NodeCapacity {
            n_cpus: 2,
            memory: Bytes(8 * GIB),
            swap: None,
            hugepages: HugePages::from([(small, 0), (Bytes(GIB), 1)]),
            held_hugepages: Bytes(0),
            pids: None,
            ephemeral_storage: None,
        };
        for (found, is_changed, amounts) in [
            (&[(small, 0), (Bytes(GIB), 1)][..], false, [0, 1, 7]),
            (&[(small, 512), (Bytes(GIB), 1)], true, [1, 1, 6]),
            (&[(Bytes(GIB), 3)], true, [1, 3, 4]),
            (&[], false, [1, 3, 4]),
            (&[(small, 0), (Bytes(GIB), 0)], true, [0, 0, 8]),
        ] {
            let found: HugePages = found.iter().copied().collect();
            let after = with_hugepages(&capacity, found);
            assert_eq!(after.is_some(), is_changed, "{amounts:?}");
            capacity = after.unwrap_or(capacity);
            let budgets = allocatable(&loaded.config.kubelet, &capacity).expect("a threshold");
            let left = budgets.node_allocatable(1);
            let names = ["hugepages-2Mi", "hugepages-1Gi", "memory"];
            assert_eq!(names.map(|it| left[it].value() >> 30), amounts);
        }
    }

    #[test]
    fn pods_are_left_process_ids_where_they_are_limited_together() {
        let faults = |fields: &str| {
            let text = format!(
                "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\nkubelet: {{{fields}}}\n"
            );
            let loaded = Config::from_yaml(&text, None, &[]).expect("no faults");
            let kubelet = &loaded.config.kubelet;
            let capacity = NodeCapacity {
                n_cpus: 2,
                memory: Bytes(1 << 30),
                swap: None,
                hugepages: BTreeMap::new(),
                held_hugepages: Bytes(0),
                pids: Some(32768),
                ephemeral_storage: None,
            };
            let budgets = allocatable(kubelet, &capacity).expect("a right threshold");
            let faults = over_reserved(kubelet, &budgets);
            faults.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(faults("kubeReserved: {pid: 30000}"), [""; 0]);
        let both = "kubeReserved: {pid: 30000}, systemReserved: {pid: 10001}";
        let right = "kubelet.systemReserved.pid: more pid is kept from pods (40001) than the node has (32768), \
                     together with kubeReserved.pid";
        assert_eq!(faults(both), [right]);
        let not_enforced = format!("{both}, enforceNodeAllocatable: [none]");
        assert_eq!(faults(&not_enforced), [""; 0]);
    }

    #[test]
    fn pods_may_have_what_a_disk_has_grown_by_and_one_that_is_not_read_is_as_it_was() {
        const GIB: u64 = 1 << 30;
        let text = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             kubelet: {systemReserved: {ephemeral-storage: 1Gi}, evictionHard: {nodefs.available: 4Gi}}\n";
        let loaded = Config::from_yaml(text, None, &[]).expect("no faults");
        let mut capacity = NodeCapacity {
            n_cpus: 2,
            memory: Bytes(GIB),
            swap: None,
            hugepages: BTreeMap::new(),
            held_hugepages: Bytes(0),
            pids: None,
            ephemeral_storage: Some(Bytes(10 * GIB)),
        };
        for (size, changed_to) in [
            (Some(10), None),
            (None, None),
            (Some(40), Some(35)),
            (None, None),
            (Some(20), Some(15)),
        ] {
            let after = with_disk(&capacity, size.map(|it| Bytes(it * GIB)));
            let left = after.as_ref().map(|it| {
                let budgets = allocatable(&loaded.config.kubelet, it).expect("a right threshold");
                budgets.node_allocatable(1)["ephemeral-storage"].value()
            });
            let expected = changed_to.map(|it: i64| it << 30);
            assert_eq!(left, expected, "{size:?}");
            capacity = after.unwrap_or(capacity);
        }
    }
}
