//! A container runtime that speaks CRI v1 and runs nothing: it knows the sandboxes and containers that a test tells
//! it of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::grpc::messages::cri::{
    Container, ContainerEventResponse, ContainerFilter, ContainerMetadata, ContainerState,
    ContainerStatus, GetEventsRequest, ImageSpec, ListContainersRequest, ListContainersResponse,
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxState, PodSandboxStatus,
    VersionRequest, VersionResponse, label, path,
};
use ballast::grpc::server::{self, Handler, Limits, unary, unknown_method};
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService};
use tonic_prost::ProstCodec;

/// As many as containerd keeps for a subscriber that does not read; then it waits.
const KEPT: usize = 100;

const MAX_REQUEST_BYTES: usize = 1 << 20;

/// A pod as a runtime knows it.
#[derive(Clone, Debug)]
pub struct RuntimePod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Id of its sandbox.
    pub sandbox: String,
}

/// How the runtime behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As containerd.
    Events,
    /// As CRI-O by default: the stream of events ends well and at once.
    NoEvents,
    /// As a proxy that lets lists through, and no stream of events.
    RefusesEvents,
    /// It takes calls and answers none.
    Silent,
    /// It tells events, and answers no question whom it knows.
    OnlyEvents,
    /// It takes most of a second to find one id.
    FindsSlowly,
    /// It takes some seconds for a list.
    ListsSlowly,
    /// It takes the call for its events, and says nothing to it.
    EventsHang,
    /// As cri-dockerd once: where the version of CRI would be it names that of Docker's own API.
    NamesItsOwnApi,
}

/// See [`Manner::FindsSlowly`] and [`Manner::ListsSlowly`].
const FINDING: Duration = Duration::from_millis(900);
const LISTING: Duration = Duration::from_secs(3);

/// See the module. It ends when it is dropped.
pub struct FakeRuntime {
    pub socket: PathBuf,
    state: Arc<State>,
    tokio: Option<Runtime>,
}

#[derive(Default)]
struct State {
    manner: Mutex<Option<Manner>>,
    sandboxes: Mutex<BTreeMap<String, PodSandbox>>,
    containers: Mutex<BTreeMap<String, Container>>,
    /// Of both.
    ended: Mutex<BTreeSet<String>>,
    subscribers: Mutex<Vec<mpsc::Sender<Result<ContainerEventResponse, Status>>>>,
    n_begun: AtomicUsize,
    n_lists: AtomicUsize,
    n_full_lists: AtomicUsize,
    n_hanging: AtomicUsize,
    n_asked: AtomicUsize,
    n_open: AtomicUsize,
    most_open: AtomicUsize,
}

impl FakeRuntime {
    pub fn start(socket: PathBuf, manner: Manner) -> Result<Self> {
        let mut runtime = Self {
            socket,
            state: Arc::default(),
            tokio: None,
        };
        runtime.begin(manner)?;
        Ok(runtime)
    }

    /// It ends, with all connections. What it knows stays.
    pub fn stop(&mut self) {
        if let Some(tokio) = self.tokio.take() {
            tokio.shutdown_timeout(Duration::from_secs(1));
        }
        lock(&self.state.subscribers).clear();
        // One that was never made is gone too.
        fs::remove_file(&self.socket).ok();
    }

    /// It comes again.
    pub fn begin(&mut self, manner: Manner) -> Result<()> {
        self.stop();
        self.behave(manner);
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = {
            let _entered = tokio.enter();
            UnixListener::bind(&self.socket)
                .with_context(|| format!("bind {}", self.socket.display()))?
        };
        let limits = Limits {
            max_connections: 8,
            idle: Duration::from_secs(3600),
        };
        tokio.spawn(server::serve(listener, limits, handler(&self.state)));
        self.tokio = Some(tokio);
        Ok(())
    }

    /// It goes on in another manner.
    pub fn behave(&self, manner: Manner) {
        *lock(&self.state.manner) = Some(manner);
    }

    /// A sandbox is there; nobody is told.
    pub fn add_sandbox(&self, pod: &RuntimePod) {
        self.put_sandbox(PodSandbox {
            id: pod.sandbox.clone(),
            labels: pod.labels(None),
        });
    }

    /// A sandbox is there; nobody is told.
    pub fn put_sandbox(&self, sandbox: PodSandbox) {
        lock(&self.state.sandboxes).insert(sandbox.id.clone(), sandbox);
    }

    /// A container of a pod is there; nobody is told.
    pub fn add_container(&self, pod: &RuntimePod, name: &str, attempt: u32, id: &str) {
        self.put_container(Container {
            id: id.to_owned(),
            pod_sandbox_id: pod.sandbox.clone(),
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt,
            }),
            image: Some(ImageSpec {
                image: format!("sha256:{:064x}", 7),
                user_specified_image: format!("{name}:1"),
            }),
            labels: pod.labels(Some(name)),
        });
    }

    /// A container is there; nobody is told.
    pub fn put_container(&self, container: Container) {
        lock(&self.state.containers).insert(container.id.clone(), container);
    }

    /// It is over, and the runtime still knows it.
    pub fn end(&self, id: &str) {
        lock(&self.state.ended).insert(id.to_owned());
    }

    /// The runtime has removed it.
    pub fn forget(&self, id: &str) {
        lock(&self.state.sandboxes).remove(id);
        lock(&self.state.containers).remove(id);
    }

    /// Something has happened to the id, which is of `pod`. False: as of [`send`](Self::send).
    pub fn tell(&self, pod: &RuntimePod, id: &str, patience: Duration) -> bool {
        let of_pod = |it: &&Container| it.pod_sandbox_id == pod.sandbox;
        let statuses = lock(&self.state.containers)
            .values()
            .filter(of_pod)
            .map(|it| ContainerStatus {
                id: it.id.clone(),
                metadata: it.metadata.clone(),
                image: it.image.clone(),
                labels: it.labels.clone(),
            })
            .collect();
        self.send(
            &ContainerEventResponse {
                container_id: id.to_owned(),
                pod_sandbox_status: Some(PodSandboxStatus {
                    id: pod.sandbox.clone(),
                    labels: pod.labels(None),
                }),
                containers_statuses: statuses,
            },
            patience,
        )
    }

    /// Sends an event to all subscribers. False: one of them did not read within `patience`, and a runtime would have
    /// made no container meanwhile.
    pub fn send(&self, event: &ContainerEventResponse, patience: Duration) -> bool {
        let Some(tokio) = &self.tokio else {
            return true;
        };
        let mut subscribers = lock(&self.state.subscribers);
        subscribers.retain(|it| !it.is_closed());
        subscribers.iter().all(|it| {
            let sent = it.send(Ok(event.clone()));
            tokio
                .block_on(async { tokio::time::timeout(patience, sent).await })
                .is_ok()
        })
    }

    /// Who follows its events.
    pub fn n_subscribers(&self) -> usize {
        let mut subscribers = lock(&self.state.subscribers);
        subscribers.retain(|it| !it.is_closed());
        subscribers.len()
    }

    /// How often everybody was asked for.
    pub fn n_lists(&self) -> usize {
        self.state.n_lists.load(Ordering::Relaxed)
    }

    /// How often of them, with those that have ended.
    pub fn n_full_lists(&self) -> usize {
        self.state.n_full_lists.load(Ordering::Relaxed)
    }

    /// Who waits for the first word of the stream of events.
    pub fn n_hanging(&self) -> usize {
        self.state.n_hanging.load(Ordering::Relaxed)
    }

    /// As [`n_lists`](Self::n_lists), whether it came to the containers, which are the second half, or not.
    pub fn n_lists_begun(&self) -> usize {
        self.state.n_begun.load(Ordering::Relaxed)
    }

    /// How often one id was asked for.
    pub fn n_asked(&self) -> usize {
        self.state.n_asked.load(Ordering::Relaxed)
    }

    /// Calls at one time, at most, but for the stream.
    pub fn most_open(&self) -> usize {
        self.state.most_open.load(Ordering::Relaxed)
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        self.stop();
    }
}

impl RuntimePod {
    pub fn new(namespace: &str, name: &str, uid: &str, sandbox: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            sandbox: sandbox.to_owned(),
        }
    }

    fn labels(&self, container: Option<&str>) -> BTreeMap<String, String> {
        let labels = [
            (label::POD_NAMESPACE, Some(self.namespace.as_str())),
            (label::POD_NAME, Some(self.name.as_str())),
            (label::POD_UID, Some(self.uid.as_str())),
            (label::CONTAINER_NAME, container),
        ];
        let set = labels.into_iter();
        set.filter_map(|(label, text)| Some((label.to_owned(), text?.to_owned())))
            .collect()
    }
}

/// Where a runtime of a test has its socket.
pub fn socket_in(directory: &Path) -> PathBuf {
    directory.join("runtime.sock")
}

fn handler(state: &Arc<State>) -> Handler {
    let state = Arc::clone(state);
    Arc::new(move |request| {
        let state = Arc::clone(&state);
        Box::pin(async move { state.answer(request).await })
    })
}

/// `id`: empty for a list.
async fn take_time(manner: Option<Manner>, id: &str) {
    match manner {
        Some(Manner::FindsSlowly) if !id.is_empty() => tokio::time::sleep(FINDING).await,
        Some(Manner::ListsSlowly) if id.is_empty() => tokio::time::sleep(LISTING).await,
        _ => {}
    }
}

impl State {
    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        if request.uri().path() == path::GET_CONTAINER_EVENTS {
            if *lock(&self.manner) == Some(Manner::EventsHang) {
                self.n_hanging.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            return Grpc::new(ProstCodec::<ContainerEventResponse, GetEventsRequest>::default())
                .server_streaming(Subscriptions(Arc::clone(self)), request)
                .await;
        }
        let n_open = self.n_open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_open.fetch_max(n_open, Ordering::Relaxed);
        let _open = Open(self);
        let is_version = request.uri().path() == path::VERSION;
        // Read before anything is waited for: the lock is held no longer.
        let manner = *lock(&self.manner);
        match manner {
            Some(Manner::Silent) => std::future::pending().await,
            Some(Manner::OnlyEvents) if !is_version => std::future::pending().await,
            _ => {}
        }
        let max = MAX_REQUEST_BYTES;
        match request.uri().path() {
            path::VERSION => {
                unary(request, max, async |_: VersionRequest| Ok(version(manner))).await
            }
            path::LIST_POD_SANDBOX => {
                unary(request, max, async |it: ListPodSandboxRequest| {
                    let id = it.filter.as_ref().map_or("", |it| it.id.as_str());
                    take_time(manner, id).await;
                    Ok(self.list_sandboxes(it))
                })
                .await
            }
            path::LIST_CONTAINERS => {
                unary(request, max, async |it: ListContainersRequest| {
                    let id = it.filter.as_ref().map_or("", |it| it.id.as_str());
                    take_time(manner, id).await;
                    Ok(self.list_containers(it))
                })
                .await
            }
            _ => unknown_method(),
        }
    }

    fn list_sandboxes(&self, request: ListPodSandboxRequest) -> ListPodSandboxResponse {
        let filter = request.filter.unwrap_or_default();
        if filter.id.is_empty() {
            self.n_begun.fetch_add(1, Ordering::Relaxed);
        }
        let (sandboxes, ended) = (lock(&self.sandboxes), lock(&self.ended));
        let state = |id: &str| match ended.contains(id) {
            true => PodSandboxState::SandboxNotready,
            false => PodSandboxState::SandboxReady,
        };
        let is_it = |it: &&PodSandbox| {
            let wanted = filter.state.as_ref().map(|it| it.state());
            // The beginning of an id is enough.
            it.id.starts_with(&filter.id) && wanted.is_none_or(|wanted| wanted == state(&it.id))
        };
        ListPodSandboxResponse {
            items: sandboxes.values().filter(is_it).cloned().collect(),
        }
    }

    fn list_containers(&self, request: ListContainersRequest) -> ListContainersResponse {
        let filter = request.filter.unwrap_or_default();
        let n = match filter.id.is_empty() {
            true => &self.n_lists,
            false => &self.n_asked,
        };
        n.fetch_add(1, Ordering::Relaxed);
        if filter == ContainerFilter::default() {
            self.n_full_lists.fetch_add(1, Ordering::Relaxed);
        }
        let (containers, ended) = (lock(&self.containers), lock(&self.ended));
        let state = |id: &str| match ended.contains(id) {
            true => ContainerState::ContainerExited,
            false => ContainerState::ContainerRunning,
        };
        let is_it = |it: &&Container| {
            let wanted = filter.state.as_ref().map(|it| it.state());
            it.id.starts_with(&filter.id) && wanted.is_none_or(|wanted| wanted == state(&it.id))
        };
        ListContainersResponse {
            containers: containers.values().filter(is_it).cloned().collect(),
        }
    }
}

/// A call is open until this is dropped.
struct Open<'a>(&'a State);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.n_open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn version(manner: Option<Manner>) -> VersionResponse {
    let api_version = match manner {
        Some(Manner::NamesItsOwnApi) => "1.41.0",
        _ => "v1",
    };
    VersionResponse {
        runtime_name: "fake".to_owned(),
        runtime_version: "1.2.3".to_owned(),
        runtime_api_version: api_version.to_owned(),
    }
}

struct Subscriptions(Arc<State>);

impl ServerStreamingService<GetEventsRequest> for Subscriptions {
    type Response = ContainerEventResponse;
    type ResponseStream = ReceiverStream<Result<ContainerEventResponse, Status>>;
    type Future = std::future::Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: tonic::Request<GetEventsRequest>) -> Self::Future {
        let (sender, events) = mpsc::channel(KEPT);
        match *lock(&self.0.manner) {
            Some(Manner::NoEvents) => {}
            Some(Manner::RefusesEvents) => {
                return std::future::ready(Err(Status::unknown("no stream is let through")));
            }
            _ => lock(&self.0.subscribers).push(sender),
        }
        std::future::ready(Ok(tonic::Response::new(ReceiverStream::new(events))))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
