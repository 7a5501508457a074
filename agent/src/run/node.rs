//! The node as the agent found it, at its start and when CPUs came or went since: hierarchies, capacity, budgets, and the handles to
//! read and write its cgroups.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::apply::cgroupfs::{ApplyError, CgroupWriter};
use crate::apply::devices::DevicePrograms;
use crate::config::{Config, CpuManagerPolicy, Enforcement, KubeletConfig, MemoryManagerPolicy};
use crate::decide::cgroup_files::{FileRules, hugepage_size_name};
use crate::decide::desired::{AncestorCpuset, NodePlan};
use crate::decide::device_access::device_access;
use crate::decide::node_allocatable::{Machine, NodeAllocatable, Reservations};
use crate::decide::qos_cgroups::QosReserved;
use crate::decide::resource_settings::{CpuLimits, NodeFacts, ResourceSettings};
use crate::model::capacity::{NodeCapacity, NodeIdentity};
use crate::model::cgroup::Controller;
use crate::model::cgroup_name::{CgroupDriver, CgroupName};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::mounts::CgroupFacts;
use crate::model::numa::NumaMask;
use crate::model::status::CgroupVersion;
use crate::model::topology::{NumaNodeId, Topology};
use crate::sources::bpf::WatchedRoot;
use crate::sources::cgroupfs::{CgroupReader, ReadError};
use crate::sources::mounts::LayoutError;
use crate::sources::sysfs::TopologyError;
use crate::sources::{ReadError as FileError, mounts, procfs, sysfs};
use crate::sys::{FsError, Root, Trees, syscall};
use crate::units::Bytes;

/// v2 controllers that the agent turns on for its cgroups, where the node has them.
const ENABLED: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

/// Of them, those without which a cgroup counts as degraded (spec cgroups-qos 2.4).
const NEEDED: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];

/// Why the node cannot be run by this agent as configured.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("find the cgroup hierarchies")]
    Layout(#[from] LayoutError),
    #[error("read the node")]
    Read(#[from] FileError),
    #[error("read the topology")]
    Topology(#[from] TopologyError),
    #[error("open the cgroup hierarchies")]
    Open(#[source] FsError),
    #[error(
        "the cgroup driver `systemd` is not in this version of ballast; set kubelet.cgroupDriver to cgroupfs"
    )]
    SystemdDriver,
    #[error(
        "kubelet.singleProcessOOMKill is false, which needs memory.oom.group of cgroup v2, and this \
         node has its controllers on cgroup v1; leave it out or set it to true"
    )]
    OomGroup,
    #[error(
        "kubelet.reservedSystemCPUs {wanted} is not among the online CPUs {online}; name only CPUs \
         that are online"
    )]
    ReservedCpus { wanted: CpuSet, online: CpuSet },
    #[error(
        "kubelet.systemReserved, kubeReserved and evictionHard keep more {resource} ({reserved}) than the \
         node has ({capacity})"
    )]
    OverReserved {
        resource: String,
        reserved: String,
        capacity: String,
    },
    #[error("kubelet.{field}: {message}")]
    Setting {
        field: &'static str,
        message: String,
    },
    #[error("observe kubepods")]
    Kubepods(#[from] ReadError),
}

/// Other CPUs are online.
#[derive(Debug)]
pub(super) struct CpusChanged {
    pub came: CpuSet,
    pub went: CpuSet,
    /// What of the configuration no longer fits the node.
    pub fault: Option<NodeError>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Node {
    pub name: String,
    pub identity: NodeIdentity,
    pub capacity: NodeCapacity,
    pub topology: Topology,
    pub cgroups: CgroupFacts,
    pub plan: NodePlan,
    pub reader: CgroupReader,
    pub writer: CgroupWriter,
    /// `None` before [`Node::prepare`].
    pub device_control: Option<DeviceControl>,
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

impl Node {
    /// Reads the node, which `ballast check` found fit, and checks that the configuration fits it.
    /// Writes nothing.
    pub(super) fn detect(root: &Root, config: &Config) -> Result<Self, NodeError> {
        let kubelet = &config.kubelet;
        if kubelet.cgroup_driver == CgroupDriver::Systemd {
            return Err(NodeError::SystemdDriver);
        }
        let cgroups = mounts::cgroup_facts(root)?;
        let is_unified = cgroups.layout.is_unified();
        // v1 kills one process and has nothing to change that.
        if kubelet.single_process_oom_kill == Some(false) && !is_unified {
            return Err(NodeError::OomGroup);
        }
        let topology = sysfs::topology(root)?;
        check_reserved_cpus(kubelet, &topology.online())?;
        let identity = procfs::identity(root)?;
        let capacity = procfs::capacity(root, n_cpus(&topology), &config.state_directory)?;
        let trees = Arc::new(mounts::open_trees(root, &cgroups.layout).map_err(NodeError::Open)?);
        check_cgroup_root(kubelet, &trees)?;
        let names = |wanted: &[&str]| -> BTreeSet<String> {
            wanted
                .iter()
                .filter(|it| cgroups.controllers.contains(**it))
                .map(|it| (*it).to_owned())
                .collect()
        };
        let page_size = identity.page_size.0;
        let reader = CgroupReader::new(Arc::clone(&trees), names(&NEEDED), page_size);
        let writer = CgroupWriter::new(Arc::clone(&trees), names(&ENABLED), page_size);
        let plan = node_plan(config, &cgroups, &capacity, &identity, &trees)?;
        Ok(Self {
            name: nix::unistd::gethostname()
                .ok()
                .and_then(|name| name.into_string().ok())
                .unwrap_or_else(|| "localhost".to_owned()),
            identity,
            capacity,
            topology,
            cgroups,
            plan,
            reader,
            writer,
            device_control: None,
        })
    }

    /// Reads the CPUs again when others are online than were; the budgets follow. Nothing of the node
    /// changes when that fails.
    pub(super) fn refresh_cpus(
        &mut self,
        root: &Root,
        kubelet: &KubeletConfig,
    ) -> Result<Option<CpusChanged>, NodeError> {
        let before = self.topology.online();
        if sysfs::online(root).is_none_or(|it| it == before) {
            return Ok(None);
        }
        let topology = sysfs::topology(root)?;
        let online = topology.online();
        let mut capacity = self.capacity.clone();
        capacity.n_cpus = n_cpus(&topology);
        let allocatable = allocatable(kubelet, &capacity)?;
        let fault = check_reserved_cpus(kubelet, &online)
            .and_then(|()| check_reservation(&allocatable))
            .err();
        self.topology = topology;
        self.capacity = capacity;
        self.plan.allocatable = allocatable;
        Ok(Some(CpusChanged {
            came: online.difference(&before),
            went: before.difference(&online),
            fault,
        }))
    }

    /// v1, where containers are placed: what the cgroups above them are to hold.
    pub(super) fn refresh_ancestors(&mut self, kubelet: &KubeletConfig) -> Result<(), ReadError> {
        let placement = &kubelet.placement;
        let is_placed = placement.cpu_manager_policy == CpuManagerPolicy::Static
            || placement.memory_manager_policy == MemoryManagerPolicy::Static;
        if self.is_unified() || !is_placed {
            return Ok(());
        }
        let Some(parent) = self.plan.kubepods_path().parent() else {
            return Ok(());
        };
        let cpus = self.reader.cpus(&parent)?;
        let mems = self.reader.mems(&parent)?;
        let mems = mems.and_then(|it| NumaMask::new(it.iter().map(|it| NumaNodeId(it.0))).ok());
        self.plan.ancestors = cpus
            .zip(mems)
            .map(|(cpus, mems)| AncestorCpuset { cpus, mems });
        Ok(())
    }

    /// Makes kubepods and the QoS cgroups, and learns from them what only a cgroup can tell. Finds
    /// out whether devices can be restricted, which takes 30 ms where a program does it.
    pub(super) fn prepare(&mut self) -> Result<(), ApplyError> {
        let device_control = self.start_device_control();
        self.plan.rules.devices = !matches!(device_control, DeviceControl::Off(_));
        self.device_control = Some(device_control);
        for name in self.plan.qos_cgroups() {
            self.writer.create(&name)?;
        }
        self.plan.rules.hugetlb_reservations = self.has_hugetlb_reservations();
        // The root of v2 has no swap files; a cgroup has them where the kernel counts swap.
        let memory = Controller::Memory.name();
        if self.is_unified()
            && let Ok(dir) = self.reader.dir(&self.plan.kubepods_path(), memory)
        {
            let swap_max = dir.has("memory.swap.max");
            self.plan.rules.swap_max = swap_max;
            self.plan.settings.node.is_swap_limitable = swap_max;
        }
        Ok(())
    }

    fn start_device_control(&mut self) -> DeviceControl {
        let trees = self.reader.trees();
        if trees.legacy(Controller::Devices.name()).is_some() {
            return DeviceControl::Controller;
        }
        if trees.cgroup2().is_none() {
            let why =
                "the node has neither the devices controller of cgroup v1 nor a cgroup2 mount";
            return DeviceControl::Off(why.to_owned());
        }
        match DevicePrograms::new(&device_access(&[])) {
            Ok(programs) => {
                self.writer.set_device_programs(programs);
                syscall::release_free_memory();
                DeviceControl::Program
            }
            Err(error) => DeviceControl::Off(crate::observe::chain(&error)),
        }
    }

    /// Whether the kernel limits reservations of huge pages, by the files of kubepods.
    fn has_hugetlb_reservations(&self) -> bool {
        let Some(size) = self.plan.rules.hugepage_sizes.first() else {
            return false;
        };
        let limit = match self.is_unified() {
            true => "max",
            false => "limit_in_bytes",
        };
        let file = format!("hugetlb.{}.rsvd.{limit}", hugepage_size_name(*size));
        let controller = Controller::Hugetlb.name();
        let dir = self.reader.dir(&self.plan.kubepods_path(), controller);
        dir.is_ok_and(|it| it.has(&file))
    }

    /// What the running kernel has, name to presence. A cgroup file counts where kubepods has it.
    pub(super) fn kernel_features(&self, root: &Root) -> [(&'static str, bool); 7] {
        let kubepods = &self.plan.kubepods_path();
        let has = |controller: Controller, file: &str| {
            let dir = self.reader.dir(kubepods, controller.name());
            dir.is_ok_and(|it| it.has(file))
        };
        let unified = self.reader.unified_dir(kubepods).ok().flatten();
        let bandwidth = match self.is_unified() {
            true => "cpu.max",
            false => "cpu.cfs_quota_us",
        };
        [
            ("btf", root.exists("/sys/kernel/btf/vmlinux")),
            (
                "cgroup_kill",
                unified.is_some_and(|it| it.has("cgroup.kill")),
            ),
            ("cpu_bandwidth", has(Controller::Cpu, bandwidth)),
            ("memory_high", has(Controller::Memory, "memory.high")),
            (
                "memory_oom_group",
                has(Controller::Memory, "memory.oom.group"),
            ),
            ("psi", root.exists("/proc/pressure/memory")),
            ("swap_limit", self.plan.settings.node.is_swap_limitable),
        ]
    }

    pub(super) fn is_unified(&self) -> bool {
        self.cgroups.layout.is_unified()
    }

    pub(super) fn version(&self) -> CgroupVersion {
        version(&self.cgroups)
    }

    /// kubepods or a QoS cgroup.
    pub(super) fn is_node_level(&self, path: &CgroupPath) -> bool {
        self.plan.qos_cgroups().contains(path)
    }

    /// The directories of a cgroup, one per hierarchy, for a process to join.
    pub(super) fn dirs_of(&self, cgroup: &CgroupPath) -> Vec<PathBuf> {
        self.reader
            .trees()
            .trees
            .iter()
            .map(|tree| {
                let mut path = tree.dir.path().to_owned();
                path.extend(cgroup.components());
                path
            })
            .collect()
    }

    /// What the eBPF programs are to report; `None` until kubepods exists.
    pub(super) fn watched_root(&self) -> Result<Option<WatchedRoot>, ReadError> {
        let kubepods = &self.plan.kubepods_path();
        let Some(cgroup_id) = self.reader.memory_id(kubepods)? else {
            return Ok(None);
        };
        let memory = Controller::Memory.name();
        Ok(Some(WatchedRoot {
            cgroup_id,
            level: u32::try_from(kubepods.depth()).unwrap_or(u32::MAX),
            hierarchy_id: match self.is_unified() {
                true => 0,
                false => self.cgroups.hierarchy_ids.get(memory).copied().unwrap_or(0),
            },
            unified: self.is_unified(),
        }))
    }
}

fn n_cpus(topology: &Topology) -> u32 {
    u32::try_from(topology.online().len()).unwrap_or(u32::MAX)
}

/// `reservedSystemCPUs` must be CPUs of this node.
fn check_reserved_cpus(kubelet: &KubeletConfig, online: &CpuSet) -> Result<(), NodeError> {
    let Some(wanted) = &kubelet.reserved_system_cpus else {
        return Ok(());
    };
    match wanted.is_subset(online) {
        true => Ok(()),
        false => Err(NodeError::ReservedCpus {
            wanted: wanted.clone(),
            online: online.clone(),
        }),
    }
}

/// A file of the kernel, as `tasks`, cannot be a cgroup.
fn check_cgroup_root(kubelet: &KubeletConfig, trees: &Trees) -> Result<(), NodeError> {
    let path = kubelet.cgroup_root_path();
    for tree in &trees.trees {
        let found = tree.dir.descend(path.components());
        if let Err(error) = found
            && error.errno() == Some(nix::libc::ENOTDIR)
        {
            return Err(NodeError::Setting {
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

fn version(cgroups: &CgroupFacts) -> CgroupVersion {
    match (
        cgroups.layout.is_unified(),
        cgroups.layout.cgroup2_mount().is_some(),
    ) {
        (true, _) => CgroupVersion::V2,
        (false, true) => CgroupVersion::Hybrid,
        (false, false) => CgroupVersion::V1,
    }
}

/// The budgets; more may be reserved than there is.
fn allocatable(
    kubelet: &KubeletConfig,
    capacity: &NodeCapacity,
) -> Result<NodeAllocatable, NodeError> {
    let pools = capacity.hugepages.iter();
    let machine = Machine {
        n_cpus: capacity.n_cpus,
        memory: capacity.memory,
        hugepages: pools.map(|(size, n)| (size.0, *n)).collect(),
        ephemeral_storage: capacity.ephemeral_storage,
        max_pid: capacity.pids,
    };
    let reservations = Reservations::new(kubelet).map_err(|error| NodeError::Setting {
        field: "evictionHard",
        message: error.to_string(),
    })?;
    Ok(NodeAllocatable::new(&machine, &reservations))
}

fn check_reservation(allocatable: &NodeAllocatable) -> Result<(), NodeError> {
    match allocatable.overcommitted().first() {
        None => Ok(()),
        Some((resource, reserved, capacity)) => Err(NodeError::OverReserved {
            resource: (*resource).to_owned(),
            reserved: reserved.to_string(),
            capacity: capacity.to_string(),
        }),
    }
}

fn node_plan(
    config: &Config,
    cgroups: &CgroupFacts,
    capacity: &NodeCapacity,
    identity: &NodeIdentity,
    trees: &Trees,
) -> Result<NodePlan, NodeError> {
    let allocatable = allocatable(&config.kubelet, capacity)?;
    check_reservation(&allocatable)?;
    let memory_dir = trees.of(Controller::Memory.name()).map(|tree| &tree.dir);
    let has = |file: &str| memory_dir.is_some_and(|dir| dir.has(file));
    let memory_and_swap = has("memory.memsw.limit_in_bytes");
    let facts = NodeFacts {
        version: version(cgroups),
        memory: capacity.memory,
        allocatable_memory: Some(allocatable.absolute_memory()),
        swap: capacity.swap.unwrap_or(Bytes(0)),
        // On v2 `prepare` knows.
        is_swap_limitable: memory_and_swap,
        page_size: identity.page_size,
    };
    let rules = FileRules {
        hugepage_sizes: match cgroups.controllers.contains("hugetlb") {
            true => capacity.hugepages.keys().map(|size| size.0).collect(),
            false => Vec::new(),
        },
        memory_and_swap,
        // `prepare` knows the others.
        ..FileRules::plain(cgroups.layout.is_unified(), identity.page_size.0)
    };
    Ok(plan(config, allocatable, facts, rules))
}

/// What follows from the configuration on a node like this.
pub(super) fn plan(
    config: &Config,
    allocatable: NodeAllocatable,
    facts: NodeFacts,
    rules: FileRules,
) -> NodePlan {
    let kubelet = &config.kubelet;
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
        settings: ResourceSettings::new(config, facts),
        allocatable,
        ancestors: None,
        exclusive_cpu_limits: match kubelet.placement.lifts_quota_of_exclusive_cpus {
            true => CpuLimits::Ignored,
            false => CpuLimits::Enforced,
        },
    }
}
