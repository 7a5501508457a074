//! The answering side: connections of one listener, each given to a [`Handler`].
//!
//! Invariant: a client can take one of [`Limits::max_connections`] places for as long as it asks,
//! and the memory of the requests that it has open, [`MAX_STREAMS`] on a connection.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

use super::authority::AnyAuthority;
use super::{CLOSE_GRACE, CONNECTION_WINDOW, MAX_HEADER_BYTES, STREAM_WINDOW};

/// Calls open at a time on one connection; a client waits with more.
pub const MAX_STREAMS: u32 = 16;

/// Pause after a failed accept, which happens when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers a request by its path, as [`unary`] and [`unknown_method`] do.
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

/// What a server gives to its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Served at a time; more wait in the backlog.
    pub max_connections: usize,
    /// A connection without a call for this long is closed, up to twice as late. Clients connect
    /// again when they have something to ask. A stream of answers counts as a call that is over.
    pub idle: Duration,
}

/// Serves until the future is dropped, which ends every connection.
pub async fn serve(listener: UnixListener, limits: Limits, handler: Handler) {
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let mut connections = JoinSet::new();
    loop {
        let (stream, place) = match accept(&listener, &places).await {
            Ok(it) => it,
            Err(error) => {
                tracing::warn!(%error, "accept of a gRPC connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let handler = Arc::clone(&handler);
        connections.spawn(async move {
            serve_connection(stream, limits.idle, handler).await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Takes a place first, so that what cannot be served yet stays in the kernel's backlog.
async fn accept(
    listener: &UnixListener,
    places: &Arc<Semaphore>,
) -> io::Result<(UnixStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn serve_connection(stream: UnixStream, idle: Duration, handler: Handler) {
    let n_begun = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&n_begun);
    let service = service_fn(move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
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
    let mut n_seen = 0;
    loop {
        match tokio::time::timeout(idle, connection.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a gRPC connection ended early");
                return;
            }
            Err(_elapsed) => {
                let n_begun = n_begun.load(Ordering::Relaxed);
                if n_begun == n_seen {
                    break;
                }
                n_seen = n_begun;
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    // What has not ended by then is closed.
    let _ = tokio::time::timeout(CLOSE_GRACE, connection).await;
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
