//! An Event of Kubernetes, as the agent tells one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::api_pod::ContainerRole;
use super::record::PodRef;
use super::time::WallTime;

/// What an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regarding {
    Pod {
        pod: Arc<PodRef>,
        /// `None`: the pod as a whole, or nobody knows which container.
        container: Option<Arc<str>>,
    },
    /// The node of the agent.
    Node,
}

/// Why. The word is that of the agent's own records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A container ended by a kill: its first process was killed, or all of it. Or nobody knows what the process was.
    OomKilled,
    /// A process of a container was killed that goes on.
    OomKilledChild,
    /// The node ran out of memory, or a process outside the pods was killed.
    SystemOom,
    /// More kills than have Events of their own.
    OomRepeated,
}

impl Reason {
    pub const ALL: [Self; 4] = [
        Self::OomKilled,
        Self::OomKilledChild,
        Self::SystemOom,
        Self::OomRepeated,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OomKilled => "OomKilled",
            Self::OomKilledChild => "OomKilledChild",
            Self::SystemOom => "SystemOom",
            Self::OomRepeated => "OomRepeated",
        }
    }
}

/// What happened once, or `n` times at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub regarding: Regarding,
    pub reason: Reason,
    pub n: u64,
    pub at: WallTime,
    /// The same moment on `CLOCK_BOOTTIME`, which never steps.
    pub since_boot: Duration,
    /// Command of the process; `None`: nobody knows it.
    pub command: Option<String>,
    pub message: String,
    /// Machine readable, by the name after `ballast.dev/`, one of [`DETAILS`].
    pub details: BTreeMap<&'static str, String>,
}

/// Names of details.
pub const DETAILS: [&str; 10] = [
    "pid",
    "comm",
    "anon-bytes",
    "cgroup",
    "limit-scope",
    "limit-bytes",
    "usage-bytes",
    "trigger-pid",
    "trigger-comm",
    "record-id",
];

/// What the API server is to have: an object, or what changes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub kind: WriteKind,
    /// Tells the objects apart that one agent has made one after the other under one name.
    pub id: u64,
    /// Somebody else's object has the name that it would have.
    pub is_name_taken: bool,
    pub regarding: Regarding,
    pub reason: Reason,
    /// Of the container, as far as is known.
    pub role: Option<ContainerRole>,
    pub count: u64,
    pub first: WallTime,
    pub last: WallTime,
    /// All that happened to it up to then is in `count`, boottime.
    pub told_until: Duration,
    /// Within [`MAX_MESSAGE`].
    pub message: String,
    pub details: BTreeMap<&'static str, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Create,
    /// The object is there.
    Patch,
}

/// Bytes that an API server takes of a message (staging/src/k8s.io/api: `NoteLengthLimit`,
/// pkg/apis/core/validation/events.go).
pub const MAX_MESSAGE: usize = 1024;

/// What became of a [`Write`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Written,
    /// There is one of that name with this count.
    Exists {
        count: u64,
        /// Written under the same id by this agent, which did not hear of it.
        is_own: bool,
        /// It tells what happened up to then, boottime; zero: nothing of this boot. `None`: it does not say.
        told_until: Option<Duration>,
    },
    /// There is one of that name that no agent has made.
    Taken,
    /// There is none any more: the API server keeps Events for an hour.
    Gone,
    /// It will never be taken: the namespace is gone, or the API server finds a fault in it.
    Never,
    /// Not now.
    Failed {
        why: String,
        /// Not to be tried again before: what the API server asks for, and a random time besides.
        after: Duration,
    },
}
