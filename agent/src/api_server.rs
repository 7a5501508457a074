//! The API server of the cluster, asked for the pods of this node. In: a watch. Out: whose a pod is, what its
//! containers are, and how the API server is ([`Told`]).
//!
//! One thread, with one watch. A pod is there half a second before its first process, so nobody waits for it; while
//! the API server is away, what it told stands.
//!
//! Invariants:
//! - Nothing of the cluster is changed.
//! - The set of pods is swapped when all are there, never while they come.
//! - That it tells nothing says nothing of a pod.
//!
//! The watch is that of `kube`'s client, and the state around it our own: its runtime does not show bookmarks, so it
//! never notices a watch that stays silent for good after etcd was restored from a backup.

mod connect;
mod meaning;
mod pods;

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::Notify;

use self::pods::Follower;
use crate::model::api_pod::ApiPod;
use crate::model::api_server::ApiServerStatus;
use crate::model::record::PodRef;

/// Whose pods are asked for, and of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `metadata.name` of the node.
    pub node: String,
    /// `None`: the service account of the agent's own pod.
    pub kubeconfig_file: Option<PathBuf>,
}

/// What is told, to one closure, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// All pods of the node.
    All(Vec<Arc<ApiPod>>),
    /// One is new, or another than before.
    Changed(Arc<ApiPod>),
    /// The API server has it no more; its processes may still run.
    Deleted(Arc<PodRef>),
    /// With each change, and before the first pods.
    State(ApiServerStatus),
}

/// Watches until it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// `sink` is called on a thread where it may block; while it does, nothing is read.
    pub fn start(settings: Settings, sink: impl Fn(Told) + Send + 'static) -> io::Result<Self> {
        let runtime = runtime()?;
        let stop = Arc::<Notify>::default();
        let stopped = Arc::clone(&stop);
        let follower = Follower::new(settings, Box::new(sink));
        let thread = thread::Builder::new()
            .name("api-server".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = stopped.notified() => {}
                        never = follower.run() => {
                            let _: Infallible = never;
                        }
                    }
                });
                // Nobody waits for a file system or a program that hangs.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by then.
            thread.join().ok();
        }
    }
}

/// Who answers, with the number of pods of the node, or what the agent may not ask for, for `ballast check`.
pub fn probe(settings: &Settings) -> io::Result<(ApiServerStatus, usize)> {
    asked(pods::probe(settings))
}

/// Why these settings lead nowhere, whether the API server answers or not, as far as their files tell.
pub fn fault(settings: &Settings) -> io::Result<Option<String>> {
    let checked = asked(connect::check(settings))?;
    Ok(checked.err().map(|it| crate::sys::chain(&it)))
}

fn asked<T>(asking: impl Future<Output = T>) -> io::Result<T> {
    let runtime = runtime()?;
    let answer = runtime.block_on(asking);
    runtime.shutdown_background();
    Ok(answer)
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
