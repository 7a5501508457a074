//! The document of `ballast status`: what the agent knew after its last pass. Read-only, made anew
//! each pass, sent as JSON over the socket.
//!
//! Invariant: `None` is "not known" or "does not apply", as the field says; nothing unknown is 0.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::cgroup_name::CgroupDriver;
use super::pod::{PodUid, QosClass};
use super::time::WallTime;
use crate::units::{Bytes, MilliCpu};

/// Version of this document and of the socket protocol. Anything else is refused by both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiVersion {
    #[default]
    #[serde(rename = "ballast.dev/v1alpha1")]
    V1Alpha1,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatusKind {
    #[default]
    Status,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub api_version: ApiVersion,
    pub kind: StatusKind,
    pub agent: AgentStatus,
    pub node: NodeStatus,
    /// By namespace and name.
    pub pods: Vec<PodStatus>,
    /// Manifests, or parts of them, that were refused.
    pub manifest_faults: Vec<ManifestFault>,
    /// What an operator should know and can change, one sentence each.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    pub version: String,
    pub pid: u32,
    /// `observe`, `assist` or `own`.
    pub mode: String,
    pub started_at: WallTime,
    /// When this document was made.
    pub observed_at: WallTime,
    /// Passes of the reconcile loop since the start.
    pub passes: u64,
    /// Duration of the last pass, microseconds.
    pub last_pass_us: u64,
    /// Writes to cgroup files that changed something, since the start.
    pub writes: u64,
    /// Writes that the kernel refused, since the start.
    pub failed_writes: u64,
    /// Sequence number of the newest event record; 0 before the first.
    pub last_event: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub name: String,
    pub cgroup: CgroupStatus,
    /// Resource name to amounts; `cpu`, `memory`, `pids`, `ephemeral-storage`, `hugepages-...`.
    pub resources: BTreeMap<String, ResourceStatus>,
    /// Stalls of the whole node; `None`: the kernel does not measure them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStatus>,
    pub ebpf: EbpfStatus,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupStatus {
    pub version: CgroupVersion,
    pub driver: CgroupDriver,
    /// `cgroupRoot` as a path from the cgroup mount.
    pub root: String,
}

/// Which hierarchy carries the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    V1,
    V2,
    /// Controllers on v1, and a v2 mount without them.
    Hybrid,
}

impl CgroupVersion {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
        }
    }
}

impl fmt::Display for CgroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Amounts of one resource. The unit goes with the resource's name: thousandths of a CPU for
/// `cpu`, bytes for memory, storage and huge pages, a count for the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    pub capacity: u64,
    /// Kube-reserved, system-reserved and hard eviction together.
    pub reserved: u64,
    /// What pods may request together.
    pub allocatable: u64,
    /// What the pods of this node request together.
    pub requested: u64,
    /// In use now by all pods; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

/// One line of a PSI file: share of the last 10 seconds, 0..=100 percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PsiShare {
    pub some_avg10: f64,
    /// `None`: the kernel gives no `full` here (CPU of the node).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_avg10: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PsiStatus {
    pub cpu: PsiShare,
    pub memory: PsiShare,
    pub io: PsiShare,
}

/// What the eBPF part gives on this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EbpfStatus {
    pub programs: Vec<ProgramStatus>,
    /// Records lost in the kernel by stream name, since the pinned maps were made.
    pub lost: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    pub name: String,
    pub state: ProgramState,
    /// Hook it hangs on, such as `tp_btf/sched_process_exit`; `None` when it is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// Why it is not attached, and what serves instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramState {
    Attached,
    /// Wanted, and the kernel refused.
    Failed,
    /// Not wanted here: the kernel lacks the feature or another program does it.
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    pub qos: QosClass,
    pub phase: PodPhase,
    /// Why the pod is in this phase, CamelCase; `None`: nothing to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// From the cgroup mount; `None` before the cgroup exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<WallTime>,
    /// Requests and limits of the pod as a whole.
    pub resources: ResourceBounds,
    pub usage: Usage,
    /// OOM kills among all processes of the pod since it started.
    pub oom_kills: u64,
    /// Init containers in order, then containers in order.
    pub containers: Vec<ContainerStatus>,
}

/// `status.phase` of a pod (Kubernetes API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl PodPhase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for PodPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a pod or container asked for. `None`: no request, or no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceBounds {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_request_milli: Option<MilliCpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit_milli: Option<MilliCpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_request_bytes: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<Bytes>,
}

/// What a pod or container uses. `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Charged to the cgroup now, page cache included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Bytes>,
    /// CPU time since the cgroup was made, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Mean rate between the last two readings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<MilliCpu>,
    /// Tasks, threads included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    pub role: ContainerRole,
    pub state: ContainerState,
    /// Starts so far; 0 before the first. Restarts are one less.
    pub attempts: u32,
    /// OOM kills among its processes, over all its restarts.
    pub oom_kills: u64,
    /// CPUs it may run on, as the kernel's list format; `None`: not restricted by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<String>,
    pub resources: ResourceBounds,
    pub usage: Usage,
}

impl ContainerStatus {
    pub fn restarts(&self) -> u32 {
        self.attempts.saturating_sub(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerRole {
    Init,
    /// An init container with `restartPolicy: Always`.
    Sidecar,
    Main,
}

/// `state` of a container (Kubernetes API), with the reason in CamelCase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum ContainerState {
    #[serde(rename_all = "camelCase")]
    Waiting {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// When the next start is due; `None`: it waits for something else.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<WallTime>,
    },
    #[serde(rename_all = "camelCase")]
    Running { pid: u32, started_at: WallTime },
    #[serde(rename_all = "camelCase")]
    Terminated {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Status as Kubernetes gives it: 128 + signal for a signal. `None`: nobody saw the end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finished_at: Option<WallTime>,
    },
}

/// A manifest, a pod of it, or a field of the pod that was refused. Other pods go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestFault {
    pub file: String,
    /// `namespace/name`; `None` when the file could not be read that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Path such as `spec.containers[0].resources`; `None` when it is about the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    pub message: String,
}
