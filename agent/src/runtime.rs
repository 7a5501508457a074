//! What runs containers: the trait the loop drives, and the plain data it exchanges with it.
//!
//! A runtime starts one process per container inside cgroups that exist already, says when it
//! started and how it ended, and remembers both across a restart of the agent. It owns no policy:
//! which container runs, when it is stopped and what follows its end is the loop's business. It
//! makes and removes no cgroup, and kills nothing that has started by itself.
//!
//! Invariant: an accepted [`Runtime::start`] ends in exactly one `Started` or `StartFailed`, and
//! a `Started` or adopted container in exactly one `Exited`, in this order.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::container::FirstProcess;
use crate::model::event::{CgroupId, ExitStatus, ProcessKey};
use crate::model::kernel;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::{PodUid, ResourceList};
use crate::model::record::PodRef;
use crate::sys::{Dir, FsError};

pub mod error;
pub mod logs;
pub mod process;

pub use error::{RecordFault, RuntimeError, StartError, StartWarning};

/// Runs containers. Methods return at once unless they say otherwise; what takes time is told to
/// the sink given to the implementation's constructor, on a thread of the runtime. The sink must
/// not block and must not call the runtime.
pub trait Runtime: Send {
    /// Reads what an earlier agent left behind, and holds the processes that are still there, so that none of them
    /// ends unseen. To be called before the exits are looked at that are reported for [`Runtime::recover`]: they tell
    /// of all others. Reads one file per container, so it may take some milliseconds.
    fn find(&mut self) -> Result<(), RuntimeError>;

    /// Adopts what was found, at once where nobody has called [`Runtime::find`]. Called once, before any
    /// [`Runtime::start`].
    fn recover(&mut self) -> Result<Recovered, RuntimeError>;

    /// Watches a container that runs and whose record was lost, by what is known of it otherwise, and stores the
    /// record anew. False: its first process is not there any more. A record that cannot be stored is told in the
    /// log; the container goes on.
    fn adopt(&mut self, record: ContainerRecord) -> Result<bool, RuntimeError>;

    /// Something is on record of a container, readable or not. Without it its program has not run, or its outcome was
    /// stored.
    fn has_record(&self, id: &ContainerId) -> bool;

    /// What is on record of a container, readable or not, is of a start that was cut short before its program.
    fn was_cut_short(&self, id: &ContainerId) -> bool;

    /// Queues a start. Refused when the id is known already or the runtime cannot take starts;
    /// every other failure arrives as [`RuntimeEvent::StartFailed`].
    fn start(&mut self, spec: ContainerSpec) -> Result<(), RuntimeError>;

    /// Sends a signal to the first process of a running container, and to nothing else. A
    /// container that is still starting gives [`RuntimeError::NotRunning`]: ask again after
    /// `Started`.
    fn signal(&mut self, id: &ContainerId, signal: Signal) -> Result<(), RuntimeError>;

    /// How a process ended, from the kernel's event stream. Needed for adopted containers only,
    /// whose exit status the kernel tells their parent and nobody else; every other process is
    /// ignored, so the whole stream may be passed. Reports made before [`Runtime::recover`] are
    /// kept for it.
    fn report_exit(&mut self, key: ProcessKey, exit: ReportedExit);

    /// The same after [`Runtime::recover`], when ends are seen as they happen, for the thread that hears of the exits
    /// while another one owns the runtime: a status that waits for its turn with the owner is lost when the agent is
    /// killed meanwhile.
    fn exit_reporter(&self) -> ExitReporter;

    /// Removes the record of a container that has ended, once the caller has stored the outcome.
    /// Until then every recovery reports it again. An unknown id is fine.
    fn forget(&mut self, id: &ContainerId) -> Result<(), RuntimeError>;
}

/// See [`Runtime::exit_reporter`].
pub type ExitReporter = Arc<dyn Fn(ProcessKey, ExitStatus) + Send + Sync>;

/// How a process ended, as the kernel's event stream has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedExit {
    pub status: ExitStatus,
    /// `CLOCK_BOOTTIME`.
    pub at: Duration,
}

/// One attempt to run one container; never reused. Also the name of its cgroup directory and of
/// its record.
///
/// Lower case letters, digits and `-`, starting with a letter or digit, at most
/// [`ContainerId::MAX_LEN`] bytes: valid for both cgroup drivers (no `_`, no `/`) and never the
/// name of an interface file, since those have a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

impl ContainerId {
    /// A file name is at most 255 bytes; this leaves room for suffixes.
    pub const MAX_LEN: usize = 200;

    pub fn new(text: impl Into<String>) -> Result<Self, InvalidContainerId> {
        let text = text.into();
        let is_alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let is_valid = text.bytes().all(|b| is_alphanumeric(b) || b == b'-')
            && text.bytes().next().is_some_and(is_alphanumeric)
            && text.len() <= Self::MAX_LEN;
        if is_valid {
            Ok(Self(text))
        } else {
            Err(InvalidContainerId { text })
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How its cgroup is told apart from those of the other containers of its pod.
    pub fn key(&self) -> ContainerKey {
        ContainerKey {
            id: self.0.clone(),
            runtime: None,
        }
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ContainerId {
    type Error = InvalidContainerId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(text)
    }
}

impl From<ContainerId> for String {
    fn from(id: ContainerId) -> Self {
        id.0
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "container id {text:?}: want 1 to {max} lower case letters, digits and '-', \
     not starting with '-'",
    max = ContainerId::MAX_LEN
)]
pub struct InvalidContainerId {
    pub text: String,
}

/// Whose container it is; what logs and events call it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerOwner {
    pub pod_uid: PodUid,
    pub pod_namespace: String,
    pub pod_name: String,
    pub container: String,
    /// Counts the starts of this container of this pod, from 0.
    pub attempt: u32,
}

impl ContainerOwner {
    pub fn new(pod: &PodRef, container: &str, attempt: u32) -> Self {
        Self {
            pod_uid: pod.uid.clone(),
            pod_namespace: pod.namespace.clone(),
            pod_name: pod.name.clone(),
            container: container.to_owned(),
            attempt,
        }
    }
}

/// All that one start needs, decided before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    pub id: ContainerId,
    pub owner: ContainerOwner,
    /// Program and arguments. A program without `/` is searched in `PATH` of `env`, as a shell
    /// does; a relative one counts from `working_dir`.
    pub argv: Vec<String>,
    /// The whole environment: nothing of the agent's own is passed on.
    pub env: Vec<(String, String)>,
    pub working_dir: PathBuf,
    pub cgroup: ContainerCgroup,
    /// `None`: as the agent.
    pub run_as: Option<RunAs>,
    /// -1000..=1000.
    pub oom_score_adj: i16,
    /// Standard output and error are appended here; made, with its directories, if need be.
    pub log_path: PathBuf,
    /// Kept in the record, so that the caller can tell whether an adopted container still is what
    /// the pod asks for.
    pub spec_hash: String,
    /// What its pod takes of the node, all containers together. Kept in the record, for a pod of which nothing else can
    /// be read.
    pub pod_requests: ResourceList,
}

/// The cgroup directories the container's first process is in before its program runs. They exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerCgroup {
    /// The one directory of cgroup v2.
    Unified(PathBuf),
    /// One directory per hierarchy to join; empty leaves the process in the agent's cgroups.
    Split(Vec<PathBuf>),
}

/// `securityContext.runAsUser`, `runAsGroup` and the groups of the pod and of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary ones; it has no others.
    pub groups: Vec<u32>,
}

/// A process as `/proc` tells it, which knows its start to a clock tick only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostProcess {
    pub pid: u32,
    /// Start since boot in clock ticks of [`HostProcess::NS_PER_TICK`]: field 22 of
    /// `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl HostProcess {
    pub const NS_PER_TICK: u64 = kernel::NS_PER_TICK;

    /// What `/proc` says of the process of an exact key. The kernel rounds down
    /// (`nsec_to_clock_t`), so does this.
    pub fn of(key: ProcessKey) -> Self {
        Self {
            pid: key.pid,
            start_ticks: key.start_boottime_ns / Self::NS_PER_TICK,
        }
    }

    /// The one with this pid; [`FsError::Gone`] without such a process.
    pub fn find(pid: u32) -> Result<Self, FsError> {
        let start_ticks = process::start_ticks(pid)?;
        Ok(Self { pid, start_ticks })
    }

    /// `CLOCK_BOOTTIME`.
    pub fn started_at(self) -> Duration {
        Duration::from_nanos(self.start_ticks.saturating_mul(Self::NS_PER_TICK))
    }

    /// Whether it is there, and still the same.
    pub fn is_there(self) -> bool {
        Self::find(self.pid).is_ok_and(|it| it == self)
    }
}

impl From<FirstProcess> for HostProcess {
    fn from(FirstProcess { pid, start_ticks }: FirstProcess) -> Self {
        Self { pid, start_ticks }
    }
}

impl From<HostProcess> for FirstProcess {
    fn from(HostProcess { pid, start_ticks }: HostProcess) -> Self {
        Self { pid, start_ticks }
    }
}

/// A cgroup the container's first process is in before its program runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinedCgroup {
    pub path: PathBuf,
    pub cgroup_id: CgroupId,
}

impl JoinedCgroup {
    pub fn of(dir: &Dir) -> Self {
        Self {
            path: dir.path().into(),
            cgroup_id: CgroupId(dir.inode()),
        }
    }
}

/// What outlives the agent about a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRecord {
    pub id: ContainerId,
    pub owner: ContainerOwner,
    pub spec_hash: String,
    /// As of the container's start; empty in records of earlier agents.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub pod_requests: ResourceList,
    pub log_path: PathBuf,
    pub oom_score_adj: i16,
    pub cgroups: Vec<JoinedCgroup>,
    /// `/proc/sys/kernel/random/boot_id`: pids and times mean nothing under another one.
    pub boot_id: String,
    pub process: HostProcess,
    /// `CLOCK_BOOTTIME`, just before the program was let go.
    pub started_at: Duration,
    /// `None` while it runs.
    pub end: Option<ContainerEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEnd {
    pub exit: ContainerExit,
    /// `CLOCK_BOOTTIME` when the end was seen, or, where no agent ran, when it was by the kernel's event stream; `None`
    /// when nothing tells.
    pub finished_at: Option<Duration>,
}

/// How the first process of a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerExit {
    Known(ExitStatus),
    Unknown(UnknownExit),
}

/// Why an exit status is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UnknownExit {
    /// The node was restarted while it ran.
    NodeRestarted,
    /// It ended while no agent watched, and neither the kernel nor its event stream told how.
    Unobserved,
}

/// What [`Runtime::recover`] found.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Adopted: each will end in an `Exited`.
    pub running: Vec<ContainerRecord>,
    /// Each with its `end`; to be forgotten by the caller.
    pub ended: Vec<ContainerRecord>,
    /// Starts that the death of the earlier agent cut short: the program never ran. Their records
    /// are gone already.
    pub never_started: Vec<ContainerRecord>,
    /// Records that could not be read, set aside.
    pub faults: Vec<RecordFault>,
}

/// What a runtime tells by itself.
#[derive(Debug)]
pub enum RuntimeEvent {
    /// The program runs.
    Started {
        id: ContainerId,
        process: HostProcess,
        /// `CLOCK_BOOTTIME`.
        started_at: Duration,
        /// What was asked for and could not be done, without stopping the start.
        warnings: Vec<StartWarning>,
    },
    /// The program never ran; nothing is left of the attempt.
    StartFailed { id: ContainerId, error: StartError },
    /// The first process ended; others may be left in its cgroup. The record stays until
    /// [`Runtime::forget`].
    Exited {
        id: ContainerId,
        exit: ContainerExit,
        /// `CLOCK_BOOTTIME`, when it was seen to have ended.
        finished_at: Duration,
    },
}

impl RuntimeEvent {
    /// A first process was killed, by whomever: when that was seen.
    pub fn killed_at(&self) -> Option<Duration> {
        let Self::Exited {
            exit: ContainerExit::Known(status),
            finished_at,
            ..
        } = self
        else {
            return None;
        };
        let is_kill =
            matches!(status, ExitStatus::Signal { signal, .. } if *signal == Signal::KILL.0);
        is_kill.then_some(*finished_at)
    }
}

/// A signal number, 1..=64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signal(u8);

impl Signal {
    pub const KILL: Self = Self(9);
    pub const TERM: Self = Self(15);

    /// `None` outside 1..=64.
    pub fn new(number: u8) -> Option<Self> {
        (1..=64).contains(&number).then_some(Self(number))
    }

    pub fn number(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_id_is_a_safe_name_for_a_directory() {
        let long = "a".repeat(ContainerId::MAX_LEN + 1);
        for (text, is_valid) in [
            ("app-0-1f2e3d4c", true),
            ("0", true),
            (&long[1..], true),
            (&long, false),
            ("", false),
            ("-a", false),
            ("..", false),
            ("a.b", false),
            ("a_b", false),
            ("a/b", false),
            ("A", false),
            ("é", false),
        ] {
            assert_eq!(ContainerId::new(text).is_ok(), is_valid, "{text:?}");
        }
    }

    #[test]
    fn an_exact_start_time_is_rounded_down_to_the_tick() {
        let process = HostProcess {
            pid: 7,
            start_ticks: 123,
        };
        for (pid, start_boottime_ns, is_it) in [
            (7, 1_230_000_000, true),
            (7, 1_239_999_999, true),
            (7, 1_240_000_000, false),
            (7, 1_229_999_999, false),
            (8, 1_230_000_000, false),
        ] {
            let key = ProcessKey {
                pid,
                start_boottime_ns,
            };
            assert_eq!(HostProcess::of(key) == process, is_it, "{key:?}");
        }
    }

    #[test]
    fn a_signal_number_has_a_range() {
        assert_eq!(Signal::new(0), None);
        assert_eq!(Signal::new(65), None);
        assert_eq!(Signal::new(15), Some(Signal::TERM));
    }
}
