//! The node as the agent found it, at its start and when CPUs or the disk changed since: hierarchies, capacity,
//! and what reads its cgroups. Nothing here goes by settings, and nothing writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::capacity::{NodeCapacity, NodeIdentity};
use crate::model::cgroup::Controller;
use crate::model::cgroup_path::CgroupPath;
use crate::model::mounts::CgroupFacts;
use crate::model::status::CgroupVersion;
use crate::model::topology::Topology;
use crate::sources::bpf::WatchedRoot;
use crate::sources::cgroupfs::{CgroupReader, ReadError};
use crate::sources::mounts::LayoutError;
use crate::sources::sysfs::TopologyError;
use crate::sources::{ReadError as FileError, mounts, procfs, psi, sysfs};
use crate::sys::{FsError, Root};

/// Controllers without which a cgroup counts as degraded
/// (pkg/kubelet/cm/cgroup_v2_manager_linux.go, v1.36: `getSupportedUnifiedControllers`).
const NEEDED: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];

/// Why nothing is known of the node.
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
}

/// See the module.
#[derive(Debug)]
pub(super) struct Node {
    pub name: String,
    /// As the kernel has it.
    pub hostname: String,
    pub identity: NodeIdentity,
    pub capacity: NodeCapacity,
    pub topology: Topology,
    pub cgroups: CgroupFacts,
    pub reader: CgroupReader,
}

impl Node {
    /// Reads the node, which `ballast check` found fit. `nodefs`: on the file system whose room is the
    /// node's own.
    pub(super) fn detect(root: &Root, nodefs: &Path) -> Result<Self, NodeError> {
        let cgroups = mounts::cgroup_facts(root)?;
        let topology = sysfs::topology(root)?;
        let identity = procfs::identity(root)?;
        let capacity = procfs::capacity(root, n_cpus(&topology), nodefs)?;
        let trees = mounts::open_trees(root, &cgroups.layout).map_err(NodeError::Open)?;
        let needed = cgroups.present(&NEEDED);
        let reader = CgroupReader::new(Arc::new(trees), needed, identity.page_size.0);
        let host = nix::unistd::gethostname().ok();
        let host = host.and_then(|name| name.into_string().ok());
        let hostname = host.unwrap_or_else(|| "localhost".to_owned());
        Ok(Self {
            // As kubelet has it (component-helpers, node/util/hostname.go, v1.36): names of the API have small letters.
            name: hostname.trim().to_lowercase(),
            hostname,
            identity,
            capacity,
            topology,
            cgroups,
            reader,
        })
    }

    /// CPUs and memory come and go. `nodefs`: as of [`Node::detect`].
    pub(super) fn look_again(&mut self, root: &Root, nodefs: &Path) -> Result<(), NodeError> {
        let topology = sysfs::topology(root)?;
        self.capacity = procfs::capacity(root, n_cpus(&topology), nodefs)?;
        self.topology = topology;
        Ok(())
    }

    /// What the running kernel has, name to presence. A cgroup file counts where kubepods has it.
    pub(super) fn kernel_features(
        &self,
        root: &Root,
        kubepods: &CgroupPath,
    ) -> [(&'static str, bool); 7] {
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
            ("psi", psi::is_kept(root)),
            ("swap_limit", self.is_swap_limitable(kubepods)),
        ]
    }

    /// Whether the kernel limits swap: of v2 a cgroup has the file, the root has none.
    pub(super) fn is_swap_limitable(&self, kubepods: &CgroupPath) -> bool {
        let memory = Controller::Memory.name();
        match self.is_unified() {
            true => {
                let dir = self.reader.dir(kubepods, memory);
                dir.is_ok_and(|it| it.has("memory.swap.max"))
            }
            false => {
                let tree = self.reader.trees().of(memory);
                tree.is_some_and(|it| it.dir.has("memory.memsw.limit_in_bytes"))
            }
        }
    }

    pub(super) fn is_unified(&self) -> bool {
        self.cgroups.layout.is_unified()
    }

    pub(super) fn version(&self) -> CgroupVersion {
        let layout = &self.cgroups.layout;
        match (layout.is_unified(), layout.cgroup2_mount().is_some()) {
            (true, _) => CgroupVersion::V2,
            (false, true) => CgroupVersion::Hybrid,
            (false, false) => CgroupVersion::V1,
        }
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
    pub(super) fn watched_root(
        &self,
        kubepods: &CgroupPath,
    ) -> Result<Option<WatchedRoot>, ReadError> {
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
            tells_ends: false,
            tells_stalls: true,
        }))
    }
}

pub(super) fn n_cpus(topology: &Topology) -> u32 {
    u32::try_from(topology.online().len()).unwrap_or(u32::MAX)
}
