//! The document of `ballast status`: what the agent knew after its last pass. Read-only, made anew
//! each pass, sent as JSON over the socket.
//!
//! Invariant: `None` is "not known" or "does not apply", as the field says; nothing unknown is 0.

mod placement;
mod pressure;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::placement::{
    CpuPools, DeviceCounts, ExclusiveCpus, NumaAmounts, NumaNodeStatus, PlacementPolicies,
    PlacementStatus,
};
pub use self::pressure::{
    EvictionStanding, EvictionStatus, PodStalls, PressureStatus, SignalStatus, Standing,
    ThresholdStatus, WakerStatus,
};
use super::api_pod::ContainerRole;
use super::api_server::ApiServerStatus;
use super::cgroup_name::CgroupDriver;
use super::container::PodPhase;
use super::eviction::StallTotals;
use super::pod::{PodUid, QosClass, Redefinition, ResourceList, cpu_in, memory_in};
use super::psi::{Psi, PsiLine, Stalls};
use super::runtime_names::RuntimeStatus;
use super::time::WallTime;
use super::workload::Workload;
use crate::units::{Bytes, MilliCpu};

/// Where the agent answers when the configuration names no other socket. Gone after a restart of
/// the node, as FHS has it for sockets.
pub const DEFAULT_SOCKET: &str = "/run/ballast/ballast.sock";

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
    pub pods: Vec<PodEntry>,
    /// Manifests, or parts of them, that were refused.
    pub manifest_faults: Vec<ManifestFault>,
    /// What an operator should know and can change, one sentence each.
    pub warnings: Vec<String>,
}

impl Status {
    /// The agent keeps the books of the node. False: another program does.
    pub fn is_managed(&self) -> bool {
        self.agent.mode == "own"
    }
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
    /// Event records since the start.
    #[serde(default)]
    pub events: u64,
    /// Sequence number of the newest event record.
    pub last_event: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub name: String,
    pub cgroup: CgroupStatus,
    /// Resource name to amounts: `cpu`, `memory`, `pods`, `ephemeral-storage`, `hugepages-...`.
    pub resources: BTreeMap<String, ResourceStatus>,
    /// Stalls of the whole node.
    pub psi: PsiStatus,
    pub ebpf: EbpfStatus,
    /// `None`: not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementStatus>,
    /// `None`: not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<PressureStatus>,
    /// Where the names of pods and containers come from; `None`: it is not asked, or has not told yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStatus>,
    /// Beside which the agent runs, and what that goes by; `None`: it is not asked, or not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletStatus>,
    /// Where their workloads and their requests come from; `None` as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server: Option<ApiServerStatus>,
}

/// A kubelet that runs, and where it has its settings from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletStatus {
    pub pid: u32,
    pub started_at: WallTime,
    /// Its files as it sees them: the one of `--config`, then those of `--config-dir`.
    pub files: Vec<String>,
    /// Fields of KubeletConfiguration that its command line says, among those that are looked at.
    pub flags: Vec<String>,
    /// Where it was asked itself; `None`: it was not, and its files and its command line were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// Files that were written after it started: it may go by what they said before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
}

impl fmt::Display for KubeletStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kubelet (pid {}) goes by {}", self.pid, self.sources())
    }
}

impl KubeletStatus {
    /// In words.
    pub fn sources(&self) -> String {
        if let Some(url) = &self.asked {
            return format!("what it says at {url}");
        }
        let flags = match self.flags.is_empty() {
            true => None,
            false => Some(format!("its command line ({})", self.flags.join(", "))),
        };
        let all: Vec<String> = self.files.iter().cloned().chain(flags).collect();
        match all.is_empty() {
            true => "its defaults".to_owned(),
            false => all.join(", "),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupStatus {
    pub version: CgroupVersion,
    /// `None`: there is no cgroup of pods yet that shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<CgroupDriver>,
    /// `cgroupRoot` as a path from the cgroup mount; `None`: nobody knows it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Disks in use whose IO cgroups do not count; `ballast check` says why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncounted_disks: Vec<String>,
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
    /// Kube-reserved, system-reserved and hard eviction together; `None`: another program keeps the books of this
    /// node, and what it keeps back is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
    /// What pods may request together; `None` as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<u64>,
    /// What the pods of this node that are not over request together; `None`: another program keeps the books, and no
    /// API server has told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<u64>,
    /// In use now by all pods; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

/// One line of a PSI file: share of the last 10 seconds, 0..=100 percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PsiShare {
    pub some_avg10: f64,
    /// `None`: the kernel does not keep it (CPU before Linux 5.13).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_avg10: Option<f64>,
}

impl From<&Psi> for PsiShare {
    fn from(psi: &Psi) -> Self {
        let percent = |it: &PsiLine| f64::from(it.avg10.0) / 100.0;
        Self {
            some_avg10: percent(&psi.some),
            full_avg10: psi.full.as_ref().map(percent),
        }
    }
}

/// Stalls by resource; `None`: the kernel does not account them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PsiStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<PsiShare>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<PsiShare>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<PsiShare>,
}

impl From<&Stalls> for PsiStatus {
    fn from(stalls: &Stalls) -> Self {
        let share = |it: &Option<Psi>| it.as_ref().map(PsiShare::from);
        Self {
            cpu: share(&stalls.cpu),
            memory: share(&stalls.memory),
            io: share(&stalls.io),
        }
    }
}

/// What the eBPF part gives on this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EbpfStatus {
    pub programs: Vec<ProgramStatus>,
    /// Why no program outlives the agent: what happens while none runs is not told in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_pinned: Option<String>,
    /// Why what an earlier agent has pinned is kept from this one: its programs run on, and note for the next agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Records by stream name that were lost in the kernel since the pinned maps were made, or that nobody
    /// understands.
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
    /// The kernel refused, and another program does its work.
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEntry {
    /// Empty, as the name: nobody has told it.
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// Whose pod it is; `None`: nobody has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    pub qos: QosClass,
    /// What makes it this class, as a clause; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos_reason: Option<String>,
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
    /// The last time that its manifest had another definition under its UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redefined: Option<Redefinition>,
    /// What of its manifest is done otherwise than it says, by field; what makes a difference to what runs first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Requests and limits of the pod as a whole.
    pub resources: ResourceBounds,
    pub usage: Usage,
    /// Time that it waited for memory; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_stall: Option<StallTotals>,
    /// OOM kills among all processes of the pod since it started.
    pub oom_kills: u64,
    /// Init containers in the order of the spec, then the others.
    pub containers: Vec<ContainerEntry>,
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

impl ResourceBounds {
    pub fn new(requests: &ResourceList, limits: &ResourceList) -> Self {
        Self {
            cpu_limit_milli: cpu_in(limits),
            memory_limit_bytes: memory_in(limits),
            ..Self::of_requests(requests)
        }
    }

    /// Without limits.
    pub fn of_requests(requests: &ResourceList) -> Self {
        Self {
            cpu_request_milli: cpu_in(requests),
            memory_request_bytes: memory_in(requests),
            ..Self::default()
        }
    }
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
pub struct ContainerEntry {
    /// Empty: nobody has told it.
    pub name: String,
    /// As its runtime has it, where there is no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `None`: nobody has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ContainerRole>,
    pub state: EntryState,
    /// `restartCount`: the number of the instance that `state` is about, 0 for the first.
    pub restarts: u32,
    /// OOM kills among its processes, over all its restarts.
    pub oom_kills: u64,
    /// CPUs it may run on, as the kernel's list format; `None`: not restricted by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<String>,
    pub resources: ResourceBounds,
    pub usage: Usage,
    /// Time that it waited for memory; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_stall: Option<StallTotals>,
}

impl ContainerEntry {
    /// Its name, or its id where it has none.
    pub fn known_as(&self) -> &str {
        self.id.as_deref().unwrap_or(&self.name)
    }
}

/// `state` of a container (Kubernetes API), with the reason in CamelCase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum EntryState {
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
    Running {
        /// Of the main process; `None`: not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        started_at: WallTime,
    },
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    fn at(second: u64) -> WallTime {
        WallTime::from_epoch(Duration::from_secs(1_763_710_000 + second))
    }

    fn bounds(cpu: [Option<u64>; 2], memory: [Option<u64>; 2]) -> ResourceBounds {
        let [cpu_request_milli, cpu_limit_milli] = cpu.map(|it| it.map(MilliCpu));
        let [memory_request_bytes, memory_limit_bytes] =
            memory.map(|it| it.map(|mib| Bytes(mib << 20)));
        ResourceBounds {
            cpu_request_milli,
            cpu_limit_milli,
            memory_request_bytes,
            memory_limit_bytes,
        }
    }

    fn container(name: &str, kind: ContainerRole, state: EntryState) -> ContainerEntry {
        ContainerEntry {
            name: name.into(),
            id: None,
            kind: Some(kind),
            state,
            restarts: 0,
            oom_kills: 0,
            cpuset: None,
            resources: ResourceBounds::default(),
            usage: Usage::default(),
            memory_stall: None,
        }
    }

    /// A v1 node with a Guaranteed pod, one that crashes, one that waits, a fault and a warning.
    pub(crate) fn example_status() -> Status {
        let running = |pid| EntryState::Running {
            pid: Some(pid),
            started_at: at(5),
        };
        Status {
            api_version: ApiVersion::V1Alpha1,
            kind: StatusKind::Status,
            agent: AgentStatus {
                version: "0.1.0".into(),
                pid: 812,
                mode: "own".into(),
                started_at: at(0),
                observed_at: at(3725),
                passes: 372,
                last_pass_us: 1840,
                writes: 96,
                failed_writes: 0,
                events: 41,
                last_event: 1_700_000_000_000_041,
            },
            node: example_node(),
            pods: vec![
                PodEntry {
                    namespace: "default".into(),
                    name: "database".into(),
                    uid: PodUid("6a1f".into()),
                    workload: None,
                    qos: QosClass::Guaranteed,
                    qos_reason: None,
                    phase: PodPhase::Running,
                    reason: None,
                    message: None,
                    cgroup_path: Some("/kubepods/pod6a1f".into()),
                    started_at: Some(at(4)),
                    redefined: None,
                    warnings: Vec::new(),
                    resources: bounds([Some(500); 2], [Some(256); 2]),
                    usage: Usage {
                        memory_bytes: Some(Bytes(192 << 20)),
                        cpu_ns: Some(93_000_000_000),
                        cpu_milli: Some(MilliCpu(25)),
                        pids: Some(4),
                    },
                    memory_stall: None,
                    oom_kills: 0,
                    containers: vec![
                        container(
                            "prepare",
                            ContainerRole::Init,
                            EntryState::Terminated {
                                reason: Some("Completed".into()),
                                exit_code: Some(0),
                                finished_at: Some(at(5)),
                            },
                        ),
                        ContainerEntry {
                            cpuset: Some("2-3".into()),
                            ..container("main", ContainerRole::Main, running(901))
                        },
                    ],
                },
                PodEntry {
                    namespace: "a-namespace-with-a-long-name".into(),
                    name: "hungry-7d9c6b5f4-x2x9z".into(),
                    uid: PodUid("0c4e".into()),
                    workload: None,
                    qos: QosClass::Burstable,
                    qos_reason: None,
                    phase: PodPhase::Running,
                    reason: None,
                    message: None,
                    cgroup_path: Some("/kubepods/burstable/pod0c4e".into()),
                    started_at: Some(at(4)),
                    redefined: None,
                    warnings: Vec::new(),
                    resources: bounds([Some(100), None], [Some(64), Some(1536)]),
                    usage: Usage::default(),
                    memory_stall: None,
                    oom_kills: 3,
                    containers: vec![ContainerEntry {
                        restarts: 3,
                        oom_kills: 3,
                        ..container(
                            "main",
                            ContainerRole::Main,
                            EntryState::Waiting {
                                reason: Some("CrashLoopBackOff".into()),
                                message: None,
                                until: Some(at(3745)),
                            },
                        )
                    }],
                },
                PodEntry {
                    namespace: "default".into(),
                    name: "idle".into(),
                    uid: PodUid("77".into()),
                    workload: None,
                    qos: QosClass::BestEffort,
                    qos_reason: None,
                    phase: PodPhase::Failed,
                    reason: Some("OutOfmemory".into()),
                    message: Some("the node has 0 of 64 MiB left".into()),
                    cgroup_path: None,
                    started_at: None,
                    redefined: None,
                    warnings: Vec::new(),
                    resources: ResourceBounds::default(),
                    usage: Usage::default(),
                    memory_stall: None,
                    oom_kills: 0,
                    containers: Vec::new(),
                },
            ],
            manifest_faults: vec![ManifestFault {
                file: "/etc/ballast/pods/bad.yaml".into(),
                pod: Some("default/bad".into()),
                field: Some("spec.containers[0].name".into()),
                message: "\"Main\" is not a DNS label".into(),
            }],
            warnings: vec!["swap is on and failSwapOn is false".into()],
        }
    }

    fn example_node() -> NodeStatus {
        let amounts = |capacity: u64, reserved: u64, requested: u64, used| ResourceStatus {
            capacity,
            reserved: Some(reserved),
            allocatable: Some(capacity - reserved),
            requested: Some(requested),
            used,
        };
        NodeStatus {
            name: "worker-1".into(),
            cgroup: CgroupStatus {
                version: CgroupVersion::V1,
                driver: Some(CgroupDriver::Cgroupfs),
                root: Some("/".into()),
                uncounted_disks: vec!["vda".into()],
            },
            resources: BTreeMap::from([
                ("cpu".into(), amounts(4000, 200, 600, Some(25))),
                (
                    "memory".into(),
                    amounts(8 << 30, 612 << 20, 320 << 20, Some(192 << 20)),
                ),
                ("hugepages-2Mi".into(), amounts(0, 0, 0, None)),
                ("pods".into(), amounts(1100, 0, 3, None)),
            ]),
            psi: PsiStatus {
                cpu: Some(PsiShare {
                    some_avg10: 1.25,
                    full_avg10: None,
                }),
                memory: None,
                io: Some(PsiShare {
                    some_avg10: 12.5,
                    full_avg10: Some(10.01),
                }),
            },
            ebpf: EbpfStatus {
                not_pinned: Some("/var/lib/pins is not on a bpffs".into()),
                kept: None,
                programs: vec![
                    ProgramStatus {
                        name: "oom_mark_victim".into(),
                        state: ProgramState::Attached,
                        hook: Some("tp_btf/mark_victim".into()),
                        reason: None,
                    },
                    ProgramStatus {
                        name: "oom_kill_process".into(),
                        state: ProgramState::Failed,
                        hook: None,
                        reason: Some("fentry is refused; the limit is derived".into()),
                    },
                ],
                lost: BTreeMap::from([("oom".into(), 0), ("process".into(), 17)]),
            },
            placement: None,
            runtime: None,
            kubelet: None,
            api_server: None,
            pressure: Some(pressure::tests::example_pressure()),
        }
    }

    #[test]
    fn stalls_are_shown_in_percent() {
        let text = "some avg10=46.27 avg60=0.92 avg300=0.00 total=5\n";
        let stalls = Stalls {
            memory: text.parse().ok(),
            ..Stalls::default()
        };
        let shown = PsiStatus::from(&stalls);
        assert_eq!(
            shown.memory.map(|it| (it.some_avg10, it.full_avg10)),
            Some((46.27, None))
        );
        assert_eq!(shown.cpu, None);
    }

    #[test]
    fn the_document_reads_back_and_names_its_version() {
        let status = example_status();
        let json = serde_json::to_string(&status).expect("the document has string keys");
        assert_eq!(serde_json::from_str::<Status>(&json).ok(), Some(status));
        let value: serde_json::Value = serde_json::from_str(&json).expect("just written");
        for (pointer, expected) in [
            ("/apiVersion", serde_json::json!("ballast.dev/v1alpha1")),
            ("/kind", serde_json::json!("Status")),
            ("/node/resources/cpu/capacity", serde_json::json!(4000)),
            ("/node/cgroup/version", serde_json::json!("v1")),
            (
                "/pods/0/resources/memoryLimitBytes",
                serde_json::json!(256 << 20),
            ),
            (
                "/pods/0/containers/1/state/type",
                serde_json::json!("running"),
            ),
            (
                "/pods/0/containers/1/state/startedAt",
                serde_json::json!("2025-11-21T07:26:45.000000Z"),
            ),
        ] {
            assert_eq!(value.pointer(pointer), Some(&expected), "{pointer}");
        }
        let newer = json.replace("v1alpha1", "v2");
        assert!(serde_json::from_str::<Status>(&newer).is_err());
    }
}
