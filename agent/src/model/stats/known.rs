//! What the loop knows of pods and containers beside what the kernel says: the names under which
//! the sweep shows what it reads.

use std::sync::Arc;
use std::time::Duration;

use super::ContainerStats;
use crate::model::cgroup_path::CgroupPath;
use crate::model::pod::QosClass;
use crate::model::record::PodRef;
use crate::model::time::WallTime;

/// A pod, whether it runs or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    pub pod: Arc<PodRef>,
    pub qos: QosClass,
    pub cgroup: CgroupPath,
    pub started_at: WallTime,
    /// What holds the namespaces of the pod; `None`: nobody has told which cgroup that is, or the pod has none.
    pub sandbox: Option<KnownSandbox>,
    /// With a cgroup, by name.
    pub containers: Vec<KnownContainer>,
}

/// It has the network of the pod also while no container runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownSandbox {
    pub cgroup: CgroupPath,
    pub started_at: Option<WallTime>,
    /// Its process; `None`: it has none.
    pub pid: Option<u32>,
}

/// One instance of a container that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownContainer {
    /// Empty: not known.
    pub name: String,
    pub cgroup: CgroupPath,
    /// As the runtime names the instance.
    pub runtime_id: String,
    /// As the manifest has it, or the runtime names it; empty: none, or it is not known.
    pub image: String,
    pub started_at: Option<WallTime>,
    pub restarts: u32,
    /// OOM kills over all instances.
    pub oom_events: u64,
    /// Its first process, or the one that was started first where nobody has told which that is; `None`: it has none.
    pub pid: Option<u32>,
}

impl KnownContainer {
    /// What tells it apart within its pod: its name, or its id if it has none.
    pub fn known_as(&self) -> &str {
        name_or_id(&self.name, &self.runtime_id)
    }
}

pub(super) fn name_or_id<'a>(name: &'a str, id: &'a str) -> &'a str {
    if name.is_empty() { id } else { name }
}

/// An instance whose cgroup is gone, with what it had used by then.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedContainer {
    pub pod: Arc<PodRef>,
    pub qos: QosClass,
    pub pod_cgroup: CgroupPath,
    pub pod_started_at: WallTime,
    /// Boottime of its end.
    pub at: Duration,
    pub container: ContainerStats,
}
