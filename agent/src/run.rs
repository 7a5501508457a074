//! The agent at work: each mode is a pipeline of its own, put together from parts that all of them share.

mod amounts;
mod check;
mod directories;
mod exclusive;
mod faults;
mod forensics;
mod identity;
mod in_use;
mod kernel;
mod missed;
mod node;
mod observe;
mod own;
mod publisher;
mod replay;
mod serve;
mod signals;
mod standings;
mod sweep;
mod told;
mod usage;
mod worker;

use std::path::PathBuf;

pub use self::check::check;
use self::exclusive::Holder;
pub use self::faults::{config_faults, config_warnings};
use self::node::NodeError;
use self::observe::{PlaceError, PodSourceError};
use self::own::SettingError;
pub use self::replay::{
    Comparison, Difference, Different, Replay, ReplayFileError, Replayed, StoryError, StoryReplay,
    replay,
};
use crate::config::{Config, FieldCounts, Mode};
use crate::decide::placement::managers::PlacementError;
use crate::model::cgroup_path::CgroupPath;
use crate::model::check::CheckReport;
use crate::runtime::RuntimeError;
use crate::sources::oom_counters::OomCountersError;
use crate::sys::FsError;

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Pods(#[from] PodSourceError),
    #[error("prepare the state directory")]
    State(#[source] FsError),
    #[error(
        "pods.manifestDirectory: {} and stateDirectory {} lie one in the other; right would be two that \
         are apart, since the agent removes and renames files of its own",
        .manifests.display(), .state.display()
    )]
    Nested { state: PathBuf, manifests: PathBuf },
    #[error("{field}: {} is no directory", .path.display())]
    Directory {
        field: &'static str,
        path: PathBuf,
        source: Option<FsError>,
    },
    #[error(
        "{field}: {} is a link to {}, which is not there; right would be a directory",
        .path.display(), .target.display()
    )]
    LinkToNothing {
        field: &'static str,
        path: PathBuf,
        target: PathBuf,
    },
    #[error(
        "{field}: nothing can be made in {}, whose file system is {why}; right would be a directory for files",
        .path.display()
    )]
    Closed {
        field: &'static str,
        path: PathBuf,
        why: &'static str,
    },
    #[error(
        "socket: {} is where {} has {what}; right would be a path of its own",
        .path.display(), .field.unwrap_or("kubelet")
    )]
    InTheWay {
        /// `None`: no field names the directory.
        field: Option<&'static str>,
        what: &'static str,
        path: PathBuf,
    },
    #[error(
        "kubelet.cgroupRoot: containers of this agent ({n}) run in cgroups below {running}, and by this they would be \
         below {wanted}; right would be where they run, until they have ended"
    )]
    Elsewhere {
        n: usize,
        running: CgroupPath,
        wanted: CgroupPath,
    },
    /// By another process than the agent of this configuration.
    #[error(
        "{field}: {what} is in use by {}; right would be one that is free",
        .holder.as_deref().unwrap_or("a process that is not known")
    )]
    InUse {
        field: &'static str,
        what: String,
        holder: Option<String>,
    },
    #[error("socket")]
    Socket(#[source] crate::sys::unix_socket::ListenError),
    /// What `ballast check` calls fatal.
    #[error("this node is not fit for the agent:\n{0}")]
    Unfit(CheckReport),
    #[error("another agent uses the {what} {}: {holder}", .path.display())]
    Locked {
        what: &'static str,
        path: PathBuf,
        holder: Holder,
    },
    #[error("set up the process runtime")]
    Runtime(#[from] RuntimeError),
    #[error("start a thread")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Serve(#[from] serve::ServeError),
    #[error(transparent)]
    Forensics(#[from] forensics::ForensicsError),
    #[error(transparent)]
    OomCounters(#[from] OomCountersError),
    /// Each in a line of its own.
    #[error("{}", .0.iter().map(|it| crate::observe::chain(it)).collect::<Vec<_>>().join("\n"))]
    Several(Vec<RunError>),
}

impl RunError {
    /// At least one.
    fn all(mut faults: Vec<Self>) -> Self {
        match faults.pop() {
            Some(only) if faults.is_empty() => only,
            last => {
                faults.extend(last);
                Self::Several(faults)
            }
        }
    }
}

/// Runs the agent until it is told to stop. Containers go on when it returns. `fields`: what becomes of the
/// fields of the kubelet configuration.
pub fn run(config: Config, fields: FieldCounts) -> Result<(), RunError> {
    match config.mode.clone() {
        Mode::Own(own) => own::run(config, own, fields),
        Mode::Observe(observe) => observe::run(config, &observe),
    }
}

/// Whether `run` could go by the configuration on this node, found out without making anything.
fn check_config(config: &Config) -> Result<(), RunError> {
    match &config.mode {
        Mode::Own(own) => own::check_config(config, own),
        Mode::Observe(observe) => observe::check_config(config, observe),
    }
}
