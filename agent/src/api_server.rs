//! The API server of the cluster, asked for the pods of this node and told what happened to them. In: a watch, and
//! Events to write. Out: whose a pod is, what its containers are, what became of each Event, and how the API server
//! is ([`Told`]). The kubelet of the node can be asked for the pods in its place (`kubelet`).
//!
//! One thread, with one watch and one write at a time, and three beside it for calls that can hang (`connect::worker`).
//! A pod is there half a second before its first process, so nobody waits for it; while the API server is away, what it
//! told stands.
//!
//! Invariants:
//! - Nothing of the cluster is changed but Events that the agent has made.
//! - The set of pods is swapped when all are there, never while they come.
//! - That it tells nothing says nothing of a pod.
//!
//! The questions and their types are those of `kube` (`kube_core`); the client is ours (`ask`, and `connect` below it).
//! That of `kube` reads answers of any size, logs bodies that it does not understand, and believes the HTTP status in a
//! body before that of the answer. The state around the watch is ours too: `kube`'s runtime does not show bookmarks, so
//! it never notices a watch that stays silent for good after etcd was restored from a backup.

mod ask;
mod back_off;
mod connect;
mod events;
mod kubelet;
mod meaning;
mod pods;
mod standing;

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use self::connect::Connector;
pub use self::connect::{FindKubelet, KubeletServer, SERVICE_ACCOUNT_TOKEN};
use self::events::Writer;
use self::kubelet::{Poller, SettingsReader};
use self::pods::Follower;
use crate::model::api_pod::ApiPod;
use crate::model::api_server::{ApiServerStatus, Asked, PodsFrom, ToldSettings};
use crate::model::check::ApiServerFacts;
use crate::model::kube_event::{Outcome, Write};
use crate::model::record::PodRef;

/// To connect, which may take 20 s (`connect::transport`), and to answer a question, take an Event or begin a watch.
const ANSWER: Duration = Duration::from_secs(30);

/// How long the API server, or the kubelet in its place, is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// To connect and to answer; a list of all pods has longer.
    pub answer: Duration,
    /// The longest pause after the first failure, and after many in a row.
    pub first_pause: Duration,
    pub last_pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            answer: ANSWER,
            first_pause: back_off::FIRST,
            last_pause: back_off::LAST,
        }
    }
}

/// HTTP status codes of what an API server refuses.
mod code {
    pub(super) const BAD_REQUEST: u16 = 400;
    pub(super) const UNAUTHORIZED: u16 = 401;
    pub(super) const FORBIDDEN: u16 = 403;
    pub(super) const NOT_FOUND: u16 = 404;
    pub(super) const CONFLICT: u16 = 409;
    pub(super) const GONE: u16 = 410;
    pub(super) const UNPROCESSABLE: u16 = 422;
    pub(super) const TOO_MANY: u16 = 429;
    pub(super) const INTERNAL: u16 = 500;
    pub(super) const BAD_GATEWAY: u16 = 502;
    pub(super) const UNAVAILABLE: u16 = 503;
    pub(super) const GATEWAY_TIMEOUT: u16 = 504;
}

/// Whose pods are asked for, and of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `metadata.name` of the node.
    pub node: String,
    /// `None`: the service account of the agent's own pod.
    pub kubeconfig_file: Option<PathBuf>,
    /// Events are written.
    pub events: bool,
    /// Who is asked for the pods. With the kubelet of the node as with the API server, by the same credentials.
    pub pods_from: PodsFrom,
}

/// What is told, to one closure, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// All pods of the node.
    All(Vec<Arc<ApiPod>>),
    /// The pods that its kubelet knows now. That one is not among them says nothing.
    Seen(Vec<Arc<ApiPod>>),
    /// One is new, or another than before.
    Changed(Arc<ApiPod>),
    /// The API server has it no more; its processes may still run.
    Deleted(Arc<PodRef>),
    /// With each change, and before the first pods.
    State(ApiServerStatus),
    /// There is nothing newer of the pods than what was told.
    UpToDate,
    /// What kubelet is run by; `Err`: why it does not say so.
    Settings(Result<ToldSettings, String>),
    /// What was asked for, and how that went.
    Asked(Asked),
    /// What became of an Event.
    Written(Outcome),
    /// Why no Event of whatever namespace can be written now; `None`: the API server answers, or nothing was written.
    EventsFault(Option<String>),
}

impl Told {
    /// It was heard of pods.
    pub fn is_of_pods(&self) -> bool {
        match self {
            Self::All(_) | Self::Changed(_) | Self::Deleted(_) | Self::UpToDate => true,
            // It counts as an answer.
            Self::Seen(_) => false,
            Self::State(_)
            | Self::Settings(_)
            | Self::Asked(_)
            | Self::Written(_)
            | Self::EventsFault(_) => false,
        }
    }
}

type Sink = Arc<dyn Fn(Told) + Send + Sync>;

/// Watches until it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
    writes: mpsc::Sender<Write>,
    pod_asker: KubeletAsker,
    settings_asker: KubeletAsker,
}

/// Has the kubelet of the node asked.
#[derive(Clone, Debug, Default)]
pub struct KubeletAsker(Arc<Notify>);

impl KubeletAsker {
    /// Never waits. Wishes that come close after each other are one.
    pub fn ask(&self) {
        self.0.notify_one();
    }
}

/// Who tells of the pods.
enum Source {
    ApiServer(Follower),
    Kubelet(Poller),
}

impl Source {
    async fn run(self) -> Infallible {
        match self {
            Self::ApiServer(follower) => follower.run().await,
            Self::Kubelet(poller) => poller.run().await,
        }
    }
}

impl ApiServer {
    /// `sink` is called on a thread where it may block; while it does, nothing is read. `kubelet`: that of the node.
    pub fn start(
        settings: Settings,
        kubelet: FindKubelet,
        sink: impl Fn(Told) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::start_with(settings, Patience::default(), kubelet, sink)
    }

    /// As [`start`](Self::start), for who waits less.
    pub fn start_with(
        settings: Settings,
        patience: Patience,
        kubelet: FindKubelet,
        sink: impl Fn(Told) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let runtime = runtime()?;
        let connector = Arc::new(Connector::new(&settings)?);
        let stop = Arc::<Notify>::default();
        let stopped = Arc::clone(&stop);
        let sink: Sink = Arc::new(sink);
        let (writes, to_write) = mpsc::channel(1);
        let writer = Writer::new(
            settings.node.clone(),
            Arc::clone(&connector),
            Arc::clone(&sink),
            to_write,
            patience,
        );
        let (pod_asker, settings_asker) = (KubeletAsker::default(), KubeletAsker::default());
        let settings_reader = SettingsReader {
            connector: connector.to_kubelet(&settings.node, Arc::clone(&kubelet)),
            sink: Arc::clone(&sink),
            wanted: Arc::clone(&settings_asker.0),
        };
        let source = match settings.pods_from {
            PodsFrom::ApiServer => {
                Source::ApiServer(Follower::new(settings.node, connector, sink, patience))
            }
            PodsFrom::Kubelet => {
                let connector = connector.to_kubelet(&settings.node, kubelet);
                let wanted = Arc::clone(&pod_asker.0);
                let node = &settings.node;
                Source::Kubelet(Poller::new(node, connector, sink, wanted, patience))
            }
        };
        let thread = thread::Builder::new()
            .name("api-server".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = stopped.notified() => {}
                        never = source.run() => {
                            let _: Infallible = never;
                        }
                        never = writer.run() => {
                            let _: Infallible = never;
                        }
                        never = settings_reader.run() => {
                            let _: Infallible = never;
                        }
                    }
                });
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
            writes,
            pod_asker,
            settings_asker,
        })
    }

    /// Kubelet is asked for its pods before it is time for it, if it is asked for them at all.
    pub fn pod_asker(&self) -> KubeletAsker {
        self.pod_asker.clone()
    }

    /// Kubelet is asked for its settings ([`Told::Settings`]).
    pub fn settings_asker(&self) -> KubeletAsker {
        self.settings_asker.clone()
    }

    /// What becomes of it is told ([`Told::Written`]), before which nothing else is to be written.
    pub fn write(&self, write: Write) {
        if let Err(error) = self.writes.try_send(write) {
            tracing::error!(%error, "an Event is written before the one before it is");
        }
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

/// Who answers, and what the agent may not do there, for `ballast check`.
pub fn probe(settings: &Settings, kubelet: FindKubelet) -> io::Result<ApiServerFacts> {
    let connector = Connector::new(settings)?;
    asked(async {
        match settings.pods_from {
            PodsFrom::ApiServer => pods::probe(settings, &connector).await,
            PodsFrom::Kubelet => {
                let to_kubelet = connector.to_kubelet(&settings.node, kubelet);
                let mut facts = kubelet::probe(settings, &to_kubelet).await;
                pods::probe_events(settings, &connector, &mut facts).await;
                facts
            }
        }
    })
}

/// What the kubelet of the node is run by, as it says itself; `Err`: why it does not say so.
pub fn kubelet_settings(
    settings: &Settings,
    kubelet: FindKubelet,
) -> io::Result<Result<ToldSettings, String>> {
    let connector = Connector::new(settings)?;
    let to_kubelet = connector.to_kubelet(&settings.node, kubelet);
    let unheard: Sink = Arc::new(|_| {});
    asked(kubelet::settings(&to_kubelet, &unheard))
}

/// Why settings lead nowhere, whether the API server answers or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub why: String,
    /// A file is not there, as on a node that is about to join its cluster, or was not read in time.
    pub may_pass: bool,
}

/// As far as their files tell.
pub fn fault(settings: &Settings) -> io::Result<Option<Fault>> {
    let connector = Connector::new(settings)?;
    asked(async {
        connector.check().await.err()?;
        let may_pass = connector.lacks_a_file().await;
        // One that was not there before the look may be there now.
        let error = connector.check().await.err()?;
        Some(Fault {
            why: crate::sys::chain(&error),
            may_pass,
        })
    })
}

fn asked<T>(asking: impl Future<Output = T>) -> io::Result<T> {
    Ok(runtime()?.block_on(asking))
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
