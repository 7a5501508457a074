//! What can go wrong with a container, said so that the owner of the pod can act on it.

use std::io;
use std::path::PathBuf;

use nix::libc;

use super::ContainerId;
use crate::model::event::ExitStatus;
use crate::sys::{FsError, steady};

/// A call to the runtime that could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The same attempt twice; ids are never reused.
    #[error("container {id} is known already")]
    Duplicate { id: ContainerId },
    /// As [`RuntimeError::Duplicate`], of one whose end was told.
    #[error("container {id} has ended, and what is stored of it is not removed")]
    NotForgotten { id: ContainerId },
    /// Not started yet, ended, or never heard of. Normal when a stop and an exit cross.
    #[error("container {id} is not running")]
    NotRunning { id: ContainerId },
    /// Only what has ended can be forgotten.
    #[error("container {id} still runs")]
    StillRunning { id: ContainerId },
    #[error("signal {signal} to container {id}")]
    Signal {
        id: ContainerId,
        signal: u8,
        source: io::Error,
    },
    /// Threads, descriptors or memory ran out.
    #[error("set up the process runtime")]
    Setup(#[source] io::Error),
    #[error(transparent)]
    File(#[from] FsError),
}

/// Why a program never ran.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("no command: the pod gives neither command nor args, and images are not used")]
    EmptyCommand,
    #[error("{what} {text:?} has a NUL byte")]
    NulByte { what: &'static str, text: String },
    #[error("environment variable name {name:?} is empty or has a '='")]
    EnvName { name: String },
    #[error("exec {program}: not found in PATH {path}")]
    NotInPath { program: String, path: String },
    /// As a network file system does whose server is away.
    #[error("{} does not answer, where the program is looked for along PATH", .at.display())]
    SearchHangs { at: PathBuf },
    #[error("make a thread that looks for the program")]
    Search(#[source] io::Error),
    #[error("open the standard input")]
    Stdin(#[source] FsError),
    /// What is left is for records, answers and the files of a pass.
    #[error(
        "the agent may have {limit} open files and keeps the last for itself: raise its limit of open files"
    )]
    Descriptors { limit: u64 },
    #[error("open the log of the container")]
    Log(#[source] FsError),
    /// The cgroup is missing, or not to be opened.
    #[error("open the cgroup of the container")]
    Cgroup(#[source] FsError),
    #[error("listen to the new process")]
    Listen(#[source] io::Error),
    /// `EAGAIN` is a pids limit, of the cgroup or of the node.
    #[error("clone a process")]
    Clone(#[source] io::Error),
    /// `ENOSPC` is a cpuset without CPUs or without memory nodes.
    #[error("join cgroup {}", .path.display())]
    Join { path: PathBuf, source: io::Error },
    #[error("change to working directory {}", .path.display())]
    WorkingDir { path: PathBuf, source: io::Error },
    #[error("run as uid {uid} gid {gid}: {call}")]
    RunAs {
        uid: u32,
        gid: u32,
        call: &'static str,
        source: io::Error,
    },
    /// Another step of the new process before its program.
    #[error("{call} in the new process")]
    Setup {
        call: &'static str,
        source: io::Error,
    },
    /// `ENOENT` for a file that is there: its interpreter or loader is missing.
    #[error("exec {}", .program.display())]
    Exec { program: PathBuf, source: io::Error },
    /// Most often the OOM killer: the memory limit is too small for any process.
    #[error("the new process ended before its program ran, {}", how(*.exit))]
    Died { exit: Option<ExitStatus> },
    /// A frozen cgroup does that.
    #[error("the new process does not get on, given up after {seconds} s")]
    Stuck { seconds: u64 },
    /// It is not where it was put, so no limit would hold.
    #[error("the new process is not in cgroup {}", .path.display())]
    NotMember { path: PathBuf },
    #[error("read the cgroup or the start time of the new process")]
    Inspect(#[source] FsError),
    #[error("write the record of the container")]
    Record(#[source] FsError),
    /// The agent stops; the attempt was not made.
    #[error("the runtime is shutting down")]
    ShuttingDown,
}

impl StartError {
    /// The agent lacked something, or could not do its part, which may be otherwise later; the pod has no part in it.
    pub fn is_lack(&self) -> bool {
        match self {
            Self::SearchHangs { .. }
            | Self::Search(_)
            | Self::Descriptors { .. }
            | Self::Stdin(_)
            | Self::Log(_)
            | Self::Cgroup(_)
            | Self::Listen(_)
            | Self::Stuck { .. }
            | Self::Inspect(_)
            | Self::Record(_) => true,
            // Nothing of it counts for the pod yet but where it is born in its cgroup, whose limit of
            // processes others of the pod may leave room below.
            Self::Clone(source) => {
                steady::is_lack(self)
                    || matches!(source.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM))
            }
            _ => false,
        }
    }
}

fn how(exit: Option<ExitStatus>) -> String {
    match exit {
        Some(ExitStatus::Code(code)) => format!("with exit code {code}"),
        Some(ExitStatus::Signal { signal, .. }) => format!("by signal {signal}"),
        None => "nobody knows how".to_owned(),
    }
}

/// What a start did without.
#[derive(Debug, thiserror::Error)]
pub enum StartWarning {
    /// Lowering it needs `CAP_SYS_RESOURCE`.
    #[error("oom_score_adj {wanted} was refused, the process keeps the agent's{}", .actual.map_or_else(String::new, |it| format!(", {it}")))]
    OomScoreAdj {
        wanted: i16,
        /// `None`: not readable either.
        actual: Option<i16>,
        source: FsError,
    },
    /// The process was moved into its cgroup after it was made, not born there.
    #[error("the kernel refused clone3 into a cgroup, joined before exec")]
    JoinedAfterClone { source: io::Error },
}

/// A record that says nothing reliable.
#[derive(Debug, thiserror::Error)]
#[error("record {}, {}", .path.display(), .source.consequence())]
pub struct RecordFault {
    pub path: PathBuf,
    pub source: RecordError,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    File(#[from] FsError),
    #[error("no header line")]
    NoHeader,
    #[error("parse the header")]
    Header(#[source] serde_json::Error),
    #[error("parse")]
    Content(#[source] serde_json::Error),
    #[error("format {found}, want {want}")]
    Format { found: u32, want: u32 },
    #[error("checksum {found}, want {want}")]
    Checksum { found: String, want: String },
    #[error("is about container {found}")]
    OtherContainer { found: ContainerId },
}

impl RecordError {
    /// No later reading can be better. False: the kernel failed to read it, or this version of the agent cannot; what it
    /// says may be as good as ever.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            // What is no file, or too large.
            Self::File(error) => error.errno().is_none(),
            Self::Format { .. } | Self::Content(_) => false,
            _ => true,
        }
    }

    fn consequence(&self) -> &'static str {
        match self.is_damage() {
            true => "set aside with the suffix .corrupt",
            false => "left for the next start",
        }
    }
}
