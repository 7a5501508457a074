//! What is known of the containers of one pod, and what may be asked of a runtime. Sources fill
//! these records, `decide::lifecycle` reads them, `apply` carries the actions out.
//!
//! Every time is `CLOCK_BOOTTIME` since boot, so it counts suspended time and never jumps. Records
//! of an earlier boot go through `decide::lifecycle::after_reboot` before they are used.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a container is to its pod. Decides order, restart policy and turn to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerKind {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always` (KEP-753): runs beside the main containers.
    Sidecar,
    /// One of `spec.containers`.
    Main,
}

/// `status.phase` (Kubernetes API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Another program runs the pod, and has told nothing. Never of a pod that the agent runs.
    Unknown,
}

impl PodPhase {
    /// Nothing of the pod runs and nothing will.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl fmt::Display for PodPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How the main process of a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerExit {
    /// Exit status 0..=255.
    Code(u8),
    /// Number of the signal that ended it.
    Signal(u8),
    /// The program could not be started, so nothing of it ran.
    StartFailed,
    /// It is gone and nothing could tell how: the agent was away.
    Unknown,
}

impl ContainerExit {
    /// `exitCode` as container runtimes report it: 128 plus the signal; 128 for a failed start
    /// (containerd, CRI-O); 137 when it is not known (kubelet).
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => i32::from(code),
            Self::Signal(signal) => 128 + i32::from(signal),
            Self::StartFailed => 128,
            Self::Unknown => 137,
        }
    }

    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

/// `state.terminated.reason` (Kubernetes API), spelled as kubelet and the runtimes spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TerminationReason {
    Completed,
    Error,
    OOMKilled,
    ContainerStatusUnknown,
    StartError,
}

impl fmt::Display for TerminationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The end of one instance of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    /// `None`: it never ran, or its start is not known.
    pub started_at: Option<Duration>,
    pub finished_at: Duration,
    pub exit: ContainerExit,
    /// The kernel's OOM killer ended the main process, alone or as one of a group
    /// (`memory.oom.group`). A kill of another process of the container does not count.
    pub oom_killed: bool,
    /// For a person: why the start failed, or who has killed it.
    pub message: Option<String>,
}

impl Termination {
    /// Derived, never stored: a kill that becomes known after the exit changes it.
    pub fn reason(&self) -> TerminationReason {
        match self.exit {
            _ if self.oom_killed => TerminationReason::OOMKilled,
            ContainerExit::Code(0) => TerminationReason::Completed,
            ContainerExit::Code(_) | ContainerExit::Signal(_) => TerminationReason::Error,
            ContainerExit::StartFailed => TerminationReason::StartError,
            ContainerExit::Unknown => TerminationReason::ContainerStatusUnknown,
        }
    }
}

/// The process of a container that its runtime started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FirstProcess {
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: the pid may come again.
    pub start_ticks: u64,
}

/// The state of the instance that `ContainerStatus::attempt` numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerState {
    /// Not asked for yet.
    NotStarted,
    /// Asked for; the runtime has not said how it went.
    Starting,
    Running {
        started_at: Duration,
    },
    /// The main process has ended and others of the instance have not. They are killed, as they
    /// would be with the PID namespace of a container that has one.
    Ending(Termination),
    /// No process of this instance is left.
    Exited(Termination),
}

impl ContainerState {
    /// Processes of the container run or may run.
    pub fn is_alive(&self) -> bool {
        matches!(
            self,
            Self::Starting | Self::Running { .. } | Self::Ending(_)
        )
    }

    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// Of an instance that has ended with all its processes.
    pub fn termination(&self) -> Option<&Termination> {
        match self {
            Self::Exited(termination) => Some(termination),
            _ => None,
        }
    }
}

/// Fingerprint of everything in a container's definition that a running instance cannot take over.
/// Compared only, never parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpecHash(pub String);

impl SpecHash {
    /// Of an instance that is to be replaced for something that is not in the fingerprint. No definition has it.
    pub fn outdated() -> Self {
        Self("outdated".to_owned())
    }
}

impl fmt::Display for SpecHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a container was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopReason {
    /// The pod is to go: see `Deletion`.
    PodTerminating,
    /// The pod has done its work or failed for good; what still runs is stopped.
    PodFinished,
    /// Its definition changed; it comes back with the new one.
    SpecChanged,
    /// It ended by itself and left processes behind.
    MainProcessEnded,
    /// The pod no longer has this container.
    ContainerRemoved,
}

/// A stop that has been asked of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopRequest {
    /// When its stop signal went out.
    pub requested_at: Duration,
    /// From that to SIGKILL.
    pub grace: Duration,
    pub reason: StopReason,
    /// When SIGKILL last went out; `None` before that.
    pub killed_at: Option<Duration>,
}

/// One container of a pod: its current or latest instance, and how the one before ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    /// Number of the instance `state` is about, 0 for the first; for `NotStarted`, of the one to
    /// come. It is the pod's `restartCount`.
    pub attempt: u32,
    pub state: ContainerState,
    /// How instance `attempt - 1` ended.
    pub last_termination: Option<Termination>,
    /// Of the definition this instance was started with, or [`SpecHash::outdated`]. `None`: not known, taken as
    /// unchanged.
    pub spec_hash: Option<SpecHash>,
    /// Stays when the instance has exited, goes when the next one starts.
    pub stop: Option<StopRequest>,
}

impl ContainerStatus {
    /// A container that nobody has started yet.
    pub fn not_started(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            attempt: 0,
            state: ContainerState::NotStarted,
            last_termination: None,
            spec_hash: None,
            stop: None,
        }
    }

    /// Notes that `action` has been asked of the runtime, so that the next decision does not ask
    /// again. The caller stores the record before it acts: a start that is written down and then
    /// lost is found by looking for its processes, a start that is not written down is not.
    pub fn record(&mut self, action: &ContainerAction, now: Duration) {
        match action {
            ContainerAction::Start {
                attempt, spec_hash, ..
            } => {
                let previous = std::mem::replace(&mut self.state, ContainerState::Starting);
                if let ContainerState::Exited(termination) = previous {
                    self.last_termination = Some(termination);
                }
                self.attempt = *attempt;
                self.spec_hash = Some(spec_hash.clone());
                self.stop = None;
            }
            ContainerAction::Terminate { grace, reason, .. } => {
                self.stop = Some(StopRequest {
                    requested_at: now,
                    grace: *grace,
                    reason: *reason,
                    killed_at: None,
                });
            }
            ContainerAction::Kill { reason, .. } => {
                let request = self.stop.get_or_insert(StopRequest {
                    requested_at: now,
                    grace: Duration::ZERO,
                    reason: *reason,
                    killed_at: None,
                });
                request.killed_at = Some(now);
            }
        }
    }
}

/// One thing to ask of the runtime. Carrying it out twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ContainerAction {
    /// Start instance `attempt`. Never asked while an instance is alive.
    Start {
        container: String,
        attempt: u32,
        spec_hash: SpecHash,
    },
    /// Its stop signal to the main process. The decision asks for `Kill` itself when `grace` has passed;
    /// `grace` is here for runtimes that want to be told.
    Terminate {
        container: String,
        grace: Duration,
        reason: StopReason,
    },
    /// SIGKILL to every process of the container, one that is just starting included.
    Kill {
        container: String,
        reason: StopReason,
    },
}

impl ContainerAction {
    pub fn container(&self) -> &str {
        match self {
            Self::Start { container, .. }
            | Self::Terminate { container, .. }
            | Self::Kill { container, .. } => container,
        }
    }
}

/// Why a pod is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeletionReason {
    /// Its definition is gone or replaced.
    Removed,
    /// The node ran short of a resource.
    Evicted,
    /// A critical pod needs the room.
    Preempted,
    /// The node is shutting down.
    NodeShutdown,
}

impl DeletionReason {
    /// The pod ends as `Failed` even if every container exits with 0.
    pub fn is_failure(self) -> bool {
        self != Self::Removed
    }
}

/// A pod is to go. Never withdrawn: a definition that comes back is a new life of the pod, begun
/// when this one is finished. Asked again, only an earlier end counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deletion {
    pub requested_at: Duration,
    /// Shared by all containers, sidecars included. Zero: no SIGTERM, kill at once.
    pub grace: Duration,
    pub reason: DeletionReason,
}

impl Deletion {
    /// This request after `other` has come too: the earlier end, and the reason of the first.
    /// Kubelet's rule as well: grace only shrinks.
    pub fn merge(self, other: Self) -> Self {
        let (end, other_end) = (
            self.requested_at.saturating_add(self.grace),
            other.requested_at.saturating_add(other.grace),
        );
        if other.grace.is_zero() || other_end < end {
            Self {
                reason: self.reason,
                ..other
            }
        } else {
            self
        }
    }
}
