//! The pod resources API, for monitoring and topology exporters: who holds which devices, CPUs and
//! memory, and what could be held (pkg/kubelet/apis/podresources, v1.36). In: the snapshot that the
//! loop publishes. Out: services `v1.PodResourcesLister` and the old `v1alpha1.PodResourcesLister`
//! on one socket.
//!
//! Whoever can open the socket may ask; its directory is for root and its group. A removed socket comes back, where
//! kubelet's stays away.

mod answer;
mod rate;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;

use self::rate::TokenBucket;
use super::metrics::labels::PodResourcesVersion;
use super::metrics::{Metrics, PodResourcesCall};
use super::shutdown::Shutdown;
use crate::grpc::messages::pod_resources::{Empty, GetRequest, path};
use crate::grpc::server::{self, Handler, Limits};
use crate::listener::{BindError, Listener};
use crate::model::pod_resources::NodeResources;
use crate::sys::clock;

/// Requests a second over time, and at once, of all clients together. As kubelet.
pub const REQUESTS_PER_SECOND: u32 = 100;
pub const BURST: u32 = 10;

/// For root and its group alone.
const DIRECTORY_MODE: u32 = 0o750;

/// Largest request: a name and a namespace.
const MAX_REQUEST_BYTES: usize = 4 << 10;

const LIMITS: Limits = Limits {
    max_connections: 32,
    // Exporters ask every 10 to 60 s.
    idle: Duration::from_secs(5 * 60),
};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("listen for the pod resources API")]
    Listen(#[from] BindError),
}

/// A snapshot and what is told of the requests for it.
struct Service {
    /// `None` until the first pass is complete.
    resources: watch::Receiver<Option<Arc<NodeResources>>>,
    metrics: Metrics,
    bucket: Mutex<TokenBucket>,
}

/// Binds `path` (kubelet's is `/var/lib/kubelet/pod-resources/kubelet.sock`) and serves on the
/// current runtime until `shutdown`. The socket file is removed before the task ends.
pub fn serve(
    path: &Path,
    resources: watch::Receiver<Option<Arc<NodeResources>>>,
    metrics: Metrics,
    mut shutdown: Shutdown,
) -> Result<JoinHandle<()>, ServeError> {
    let listener = Listener::bind(path, DIRECTORY_MODE)?;
    metrics.begin_pod_resources();
    let service = Arc::new(Service {
        resources,
        metrics,
        bucket: Mutex::new(TokenBucket::new(
            REQUESTS_PER_SECOND,
            BURST,
            clock::boottime(),
        )),
    });
    let handler: Handler = Arc::new(move |request| {
        let service = Arc::clone(&service);
        Box::pin(async move { service.answer(request).await })
    });
    Ok(tokio::spawn(async move {
        tokio::select! {
            () = server::serve(listener, LIMITS, handler) => {}
            () = shutdown.requested() => {}
        }
    }))
}

impl Service {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        use PodResourcesCall::{Get, GetAllocatable, List};
        use PodResourcesVersion::{V1, V1alpha1};

        let is_method = [
            path::LIST,
            path::GET,
            path::GET_ALLOCATABLE,
            path::LIST_V1ALPHA1,
        ]
        .contains(&request.uri().path());
        if !is_method {
            return server::unknown_method();
        }
        if !self.takes_another() {
            return Status::resource_exhausted("rejected by rate limit").into_http();
        }
        let max = MAX_REQUEST_BYTES;
        match request.uri().path() {
            path::GET => {
                let get = async |request: GetRequest| {
                    self.counted(V1, Get, |node| answer::get(node, &request))
                };
                server::unary(request, max, get).await
            }
            path::GET_ALLOCATABLE => {
                let get = async |_: Empty| {
                    self.counted(V1, GetAllocatable, |node| Ok(answer::allocatable(node)))
                };
                server::unary(request, max, get).await
            }
            path::LIST_V1ALPHA1 => {
                let list = async |_: Empty| {
                    self.counted(V1alpha1, List, |node| Ok(answer::list_v1alpha1(node)))
                };
                server::unary(request, max, list).await
            }
            _ => {
                let list = async |_: Empty| self.counted(V1, List, |node| Ok(answer::list(node)));
                server::unary(request, max, list).await
            }
        }
    }

    fn takes_another(&self) -> bool {
        // A bucket is whole between any two of its steps.
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(clock::boottime())
    }

    fn counted<A>(
        &self,
        version: PodResourcesVersion,
        call: PodResourcesCall,
        answer: impl FnOnce(&NodeResources) -> Result<A, Status>,
    ) -> Result<A, Status> {
        self.metrics.pod_resources_request(version, call);
        let node = self.resources.borrow().clone();
        let answer = match node {
            Some(node) => answer(&node),
            None => Err(Status::unavailable(
                "the agent is starting: its first pass is not complete",
            )),
        };
        if answer.is_err() {
            self.metrics.pod_resources_error(version, call);
        }
        answer
    }
}

#[cfg(test)]
mod tests;
