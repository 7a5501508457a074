//! The answering side: connections, each given to a [`Handler`].
//!
//! Invariant: a client keeps nobody out: when every place is taken, the connection that has kept the
//! server waiting longest ends, and never one that it works for. A connection takes the memory of the
//! requests that it has open, [`MAX_STREAMS`] at most.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

use super::authority::AnyAuthority;
use super::{CLOSE_GRACE, CONNECTION_WINDOW, MAX_HEADER_BYTES, STREAM_WINDOW};
use crate::listener::Listener;
use crate::places::{ClientPlace, ClientPlaces};

/// Calls open at a time on one connection; a client waits with more.
pub const MAX_STREAMS: u32 = 16;

/// Pause after a failed accept, which happens when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection has to end whose place another one takes: to write what is ready.
const ROOM_GRACE: Duration = Duration::from_millis(100);

pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers a request by its path, as [`unary`] and [`unknown_method`] do.
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

/// What a server gives to its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Served at a time; one more takes the place of the one that waited longest.
    pub max_connections: usize,
    /// A connection without a call for this long is closed. Clients connect again when they have
    /// something to ask. A call counts from when its message is there to when its answer is.
    pub idle: Duration,
}

/// Where connections come from.
pub trait Accept: Send {
    /// The next one.
    fn accept(&mut self) -> impl Future<Output = io::Result<UnixStream>> + Send;
}

impl Accept for UnixListener {
    async fn accept(&mut self) -> io::Result<UnixStream> {
        let (stream, _) = UnixListener::accept(self).await?;
        Ok(stream)
    }
}

impl Accept for Listener {
    async fn accept(&mut self) -> io::Result<UnixStream> {
        Self::accept(self).await
    }
}

/// Serves until the future is dropped, which ends every connection.
pub async fn serve(mut listener: impl Accept, limits: Limits, handler: Handler) {
    let places = ClientPlaces::new(limits.max_connections);
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept of a gRPC connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let place = places.take().await;
        let handler = Arc::clone(&handler);
        connections.spawn(serve_connection(stream, place, limits.idle, handler));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(
    stream: UnixStream,
    place: ClientPlace,
    idle: Duration,
    handler: Handler,
) {
    let calls = Arc::new(Calls {
        place,
        n_open: Mutex::default(),
    });
    let of_requests = Arc::clone(&calls);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&of_requests));
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(AnyAuthority::new(stream)), service);
    let mut connection = pin!(connection);
    let grace = tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a gRPC connection ended early");
            }
            return;
        }
        () = calls.place.taken_back() => {
            tracing::debug!("a waiting gRPC connection is closed");
            ROOM_GRACE
        }
        () = calls.place.kept_waiting(idle) => CLOSE_GRACE,
    };
    connection.as_mut().graceful_shutdown();
    // What has not ended by then is closed.
    let _ = tokio::time::timeout(grace, connection).await;
}

/// The calls of one connection that the server works on.
struct Calls {
    place: ClientPlace,
    n_open: Mutex<usize>,
}

impl Calls {
    /// Works on a call until what this gives is dropped.
    fn work(self: &Arc<Self>) -> Work {
        self.change(|n_open| {
            self.place.agents_turn();
            n_open + 1
        });
        Work(Arc::clone(self))
    }

    /// With the lock held, so that the turn is always that of the number.
    fn change(&self, to: impl FnOnce(usize) -> usize) {
        let mut n_open = self.n_open.lock().unwrap_or_else(PoisonError::into_inner);
        *n_open = to(*n_open);
    }
}

struct Work(Arc<Calls>);

impl Drop for Work {
    fn drop(&mut self) {
        let calls = &self.0;
        calls.change(|n_open| {
            if n_open == 1 {
                calls.place.clients_turn();
            }
            n_open - 1
        });
    }
}

/// Reads a request of at most `max_bytes`, and answers it as `handler` says.
pub async fn unary<Q, A, F>(
    request: Request<Incoming>,
    max_bytes: usize,
    handler: impl Fn(Q) -> F,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Status>>,
{
    let calls = request.extensions().get::<Arc<Calls>>().cloned();
    let handler = move |question| {
        let work = calls.as_ref().map(Calls::work);
        let answer = handler(question);
        async move {
            let _work = work;
            answer.await
        }
    };
    Grpc::new(ProstCodec::<A, Q>::default())
        .max_decoding_message_size(max_bytes)
        .unary(Unary(handler), request)
        .await
}

/// The answer to a method that the server does not have.
pub fn unknown_method() -> Response<Body> {
    Status::unimplemented("unknown service or method").into_http()
}

/// A function in the form that tonic calls.
struct Unary<F>(F);

impl<Q, A, F, Fut> UnaryService<Q> for Unary<F>
where
    F: Fn(Q) -> Fut,
    Fut: Future<Output = Result<A, Status>>,
{
    type Response = A;
    type Future = Answering<Fut>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        Answering(Box::pin(self.0(request.into_inner())))
    }
}

/// The answer of a [`Unary`], wrapped when it is there.
struct Answering<Fut>(Pin<Box<Fut>>);

impl<A, Fut: Future<Output = Result<A, Status>>> Future for Answering<Fut> {
    type Output = Result<tonic::Response<A>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map_ok(tonic::Response::new)
    }
}
