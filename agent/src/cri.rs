//! The container runtime of a kubelet, asked for names by CRI v1. In: lists, events and answers of its socket.
//! Out: whose a container id is, and how the runtime is ([`Told`]).
//!
//! Two threads. `cri` connects, asks and tells; it has one call open at a time, each with a deadline. `cri-events`
//! reads the stream of events into a queue and does nothing else: a runtime waits for each of its subscribers, and
//! while one does not read no container is made on the node. The queue drops its oldest when it is full, which a
//! list makes good; a reader that was late is cut off, so that nobody waits for it.
//!
//! Invariants:
//! - Nothing of the runtime is changed: it is asked for its version, for lists and for events.
//! - No answer, however late or large, holds up another part of the agent, and no part of it the runtime.
//! - An event says whom there is, never that somebody is gone.
//!
//! Lists are of those who run. Of all, which can be many thousands, are the first two, since what ended before the
//! agent came may still be told of, and those that make good what was missed; where such a list is too large or too
//! late, each id is asked for.
//!
//! Deliberate absences: no state of a container, no exit code, no image. Nothing is kept on disk.

mod endpoint;
mod events;
mod follower;
mod meaning;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::Notify;

pub use self::endpoint::known_sockets;

use self::follower::Follower;
use crate::model::runtime_names::{Follows, Identified, RuntimeStatus};

/// For each call about one id, and to connect.
const DEADLINE: Duration = Duration::from_secs(2);

/// For each of the two calls of a list. One of some hundred containers takes milliseconds; a runtime that has kept
/// thousands that have ended, or is busy, takes seconds.
const LIST_DEADLINE: Duration = Duration::from_secs(10);

/// Largest answer, bytes. Kubelet takes as much: sandboxes carry all annotations of their pods.
const MAX_ANSWER: usize = 16 << 20;

/// Ids that wait to be asked for, at most; of more the oldest are named by the next list.
const MAX_ASKED: usize = 1024;

/// What is told, to one closure, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Everybody who runs, and of whom the runtime has told since the list before. Those too that have ended, where
    /// their names may still be wanted.
    All(Vec<Identified>),
    /// Some of them.
    Some(Vec<Identified>),
    /// Something began or ended. Its cgroup was made, entered or left just before, or is made in a moment.
    Happened,
    /// Comes first, and with each change.
    State(RuntimeStatus),
}

/// Asks until it is dropped.
#[derive(Debug)]
pub struct Cri {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    /// Something is to be done: an event is in the queue, an id is to be asked for, the agent ends.
    wake: Notify,
    asked: Mutex<VecDeque<String>>,
}

impl Cri {
    /// Follows the first of `sockets` on which a runtime answers, as long as it is one of them: they are asked for when
    /// none is followed, and before each list. `at_most`: [`Follows::Events`], or another if its events are not wanted.
    /// `sink` is called on a thread where it may block; while it does, nothing is asked.
    pub fn start(
        sockets: impl Fn() -> Vec<PathBuf> + Send + 'static,
        at_most: Follows,
        sink: impl Fn(Told) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(sockets, at_most, LIST_DEADLINE, sink)
    }

    /// As [`start`](Self::start). `list_deadline`: for each of the two calls of a list.
    pub fn start_with(
        sockets: impl Fn() -> Vec<PathBuf> + Send + 'static,
        at_most: Follows,
        list_deadline: Duration,
        sink: impl Fn(Told) + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let shared = Arc::<Shared>::default();
        let follower = Follower::new(
            Box::new(sockets),
            at_most,
            list_deadline,
            Arc::clone(&shared),
            Box::new(sink),
        );
        let thread = thread::Builder::new()
            .name("cri".to_owned())
            .spawn(move || runtime.block_on(follower.run()))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    pub fn asker(&self) -> Asker {
        Asker(Arc::clone(&self.shared))
    }
}

/// Asks for single ids, on any thread.
#[derive(Clone, Debug)]
pub struct Asker(Arc<Shared>);

impl Asker {
    /// A cgroup of this id was made, and nobody has told whose it is. Returns at once; what comes of it is told.
    pub fn ask(&self, id: &str) {
        let mut asked = self.0.asked();
        if asked.len() >= MAX_ASKED {
            asked.pop_front();
        }
        asked.push_back(id.to_owned());
        drop(asked);
        self.0.wake.notify_one();
    }
}

impl Drop for Cri {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by then.
            thread.join().ok();
        }
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn asked(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which runtime answers on the first of `sockets` where one does, for `ballast check`, and the ids of those who run by
/// its word, as far as they have names; `None`: it does not say. It is never subscribed to.
pub fn probe(sockets: &[PathBuf]) -> io::Result<(RuntimeStatus, Option<BTreeSet<String>>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(async {
        match endpoint::find(sockets).await {
            Ok(found) => (found.status(), follower::named(&found.channel).await),
            Err(missing) => (missing.status(), None),
        }
    }))
}
