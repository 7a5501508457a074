//! What wakes the reconcile loop. One closed list; an event says where to look, not what is true.

use std::sync::mpsc;

use super::escapes::Escapes;
use crate::decide::placement::devices::{PluginAnswer, PluginQuestion};
use crate::device_plugin::PluginEvent;
use crate::model::event::ProcessKey;
use crate::model::eviction::Eviction;
use crate::model::pod::PodUid;
use crate::run::kernel::Programs;
use crate::runtime::{ContainerId, RuntimeEvent};

/// Capacity of the channel to the loop. A full channel blocks the runtime's and the kernel
/// listener's threads, never the kernel: its records wait in their rings meanwhile.
pub(super) const QUEUE: usize = 4096;

// The channel has all its places from the start, each as large as the largest event.
const _: () = assert!(QUEUE * size_of::<Event>() <= 384 << 10);

#[derive(Debug)]
pub(super) enum Event {
    Runtime(RuntimeEvent),
    /// Something in the manifest directory changed.
    ManifestsChanged,
    /// CPUs may have gone online or offline.
    CpusChanged,
    /// The OOM killer killed a process of a container.
    OomKill {
        pod: PodUid,
        container: String,
        victim: ProcessKey,
    },
    /// The OOM killer killed processes of a container, nobody knows which.
    OomKillsMissed {
        pod: PodUid,
        container: String,
        n: u64,
    },
    /// A pod is to be evicted; under a hard threshold its processes are being killed already.
    Evict(Box<Eviction>),
    /// What the node is short of changed.
    Pressure,
    /// What a look for processes that have left their cgroup found.
    Escapes(Escapes),
    /// There is a new sweep to show.
    Swept,
    PluginAnswered(Box<PluginAnswered>),
    /// A device plugin was told of the start of a container, and this is what it said.
    PreStarted {
        id: ContainerId,
        resource: String,
        result: Result<(), String>,
    },
    /// Device plugins come, go, and tell of their devices.
    Plugin(PluginEvent),
    /// A cgroup below kubepods became empty.
    Emptied,
    /// Kernel events were lost: look at everything.
    Lost,
    Programs(Box<Programs>),
    Shutdown,
}

/// A device plugin was asked in the admission of a pod, and this is what it said.
#[derive(Debug)]
pub(super) struct PluginAnswered {
    pub(super) pod: PodUid,
    pub(super) question: PluginQuestion,
    pub(super) answer: PluginAnswer,
}

pub(super) type Sender = mpsc::SyncSender<Event>;
pub(super) type Receiver = mpsc::Receiver<Event>;

pub(super) fn channel() -> (Sender, Receiver) {
    mpsc::sync_channel(QUEUE)
}
