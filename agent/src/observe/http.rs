//! The HTTP endpoint: metrics, statistics and health. HTTP/1.1, GET and HEAD. It binds where the
//! configuration says, by default the loopback address; TLS and a bearer token are for other ones.
//!
//! Invariant: a client can take one of [`MAX_CONNECTIONS`] places and the time of one encoding,
//! nothing more. A handshake must end within [`HANDSHAKE_TIMEOUT`], headers must arrive within
//! [`HEADER_TIMEOUT`], requests have no body, and who is answered takes a part of the answer, asks again or goes
//! within [`ANSWER_TIMEOUT`]. A probe finds a place whatever others do: pages that are being made hold at
//! most half of the places, and a client that holds another one gives it up to who comes.

mod access;
mod buffer;
mod negotiate;
mod pages;
mod progress;
mod sink;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use self::access::Access;
pub use self::access::{AccessError, AccessFiles, TlsFiles};
use self::pages::Answers;
use self::progress::Progress;
use super::health::Health;
use super::metrics::Metrics;
use super::shutdown::Shutdown;
use super::stats::Options;
use crate::model::stats::StatsSnapshot;
use crate::places::{ClientPlace, ClientPlaces};

/// Connections at a time; for one more, the one that has been idle longest is closed. A node has a
/// handful of scrapers.
pub const MAX_CONNECTIONS: usize = 32;

/// From the connection to the end of its TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// From the connection, or from the last answer on it, to the end of the next request's headers.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// From the connection, or from the last answer on it, to the next request. A client that does not
/// read its answer sends none that could be seen. Longer than scrapers wait for a page, which is
/// 10 s by default, and than [`HEADER_TIMEOUT`], which ends what is merely idle.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long requests in progress may take to end at shutdown.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Pause after a failed accept, which happens when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "metrics.address: listen on {address}: is another agent running, or is it no address of this node?"
    )]
    Bind {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Where it listens, and for whom.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Port 0: a free one.
    pub address: SocketAddr,
    pub access: AccessFiles,
}

/// What the pages are made from.
#[derive(Clone)]
pub struct Pages {
    pub metrics: Metrics,
    pub health: Health,
    /// The newest sweep; `None` before the first.
    pub stats: watch::Receiver<Option<Arc<StatsSnapshot>>>,
    /// How the pages about cgroups are written.
    pub options: Options,
}

/// A running endpoint.
#[derive(Debug)]
pub struct HttpServer {
    /// Where it listens: the port is the real one when port 0 was asked for.
    pub address: SocketAddr,
    /// Ends after the shutdown was requested and every connection is closed.
    pub task: JoinHandle<()>,
}

/// Whether [`serve`] could begin; that somebody listens there already is no fault.
pub fn faults(listen: &Listen) -> Vec<ServeError> {
    let of_access = access::faults(&listen.access).into_iter();
    let mut faults: Vec<ServeError> = of_access.map(ServeError::Access).collect();
    let address = listen.address;
    if let Err(source) = try_bind(address)
        && source.kind() != io::ErrorKind::AddrInUse
    {
        faults.push(ServeError::Bind { address, source });
    }
    faults
}

/// Whether somebody listens at an address of this node.
pub fn is_in_use(address: SocketAddr) -> bool {
    try_bind(address).is_err_and(|it| it.kind() == io::ErrorKind::AddrInUse)
}

/// Without listening: an agent that begins to in this moment can.
fn try_bind(address: SocketAddr) -> io::Result<()> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

/// Binds and serves on the current runtime until `shutdown`.
pub async fn serve(
    listen: Listen,
    pages: Pages,
    shutdown: Shutdown,
) -> Result<HttpServer, ServeError> {
    let Listen { address, access } = listen;
    let access = Arc::new(Access::new(access)?);
    let failed = |source| ServeError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tokio::spawn(access::keep_current(Arc::clone(&access), shutdown.clone()));
    let answers = Arc::new(Answers::new(pages, access));
    tokio::spawn(follow_sweeps(Arc::clone(&answers), shutdown.clone()));
    let task = tokio::spawn(accept_loop(listener, answers, shutdown));
    Ok(HttpServer { address, task })
}

async fn follow_sweeps(answers: Arc<Answers>, mut shutdown: Shutdown) {
    let mut stats = answers.pages().stats.clone();
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            changed = stats.changed() => match changed {
                Ok(()) => answers.swept(),
                Err(_) => return,
            },
        }
    }
}

async fn accept_loop(listener: TcpListener, answers: Arc<Answers>, mut shutdown: Shutdown) {
    let places = ClientPlaces::new(MAX_CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        let (stream, place) = tokio::select! {
            () = shutdown.requested() => break,
            accepted = accept(&listener, &places) => match accepted {
                Ok(it) => it,
                Err(error) => {
                    tracing::warn!(%error, "accept of an HTTP connection failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let (answers, shutdown) = (Arc::clone(&answers), shutdown.clone());
        connections.spawn(async move {
            let place = Arc::new(place);
            tokio::select! {
                () = serve_connection(stream, &place, answers, shutdown) => {}
                () = place.taken_back() => tracing::debug!("a waiting HTTP connection is closed"),
                () = place.kept_waiting(ANSWER_TIMEOUT) => {
                    tracing::debug!("a client did not read its answer");
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let all_done = async { while connections.join_next().await.is_some() {} };
    // Whatever has not ended by then is aborted when the set is dropped.
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, all_done).await;
}

/// The next connection, and a place that another one may have to give up for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<ClientPlaces>,
) -> io::Result<(TcpStream, ClientPlace)> {
    let (stream, _) = listener.accept().await?;
    Ok((stream, places.take().await))
}

async fn serve_connection(
    stream: TcpStream,
    place: &Arc<ClientPlace>,
    answers: Arc<Answers>,
    mut shutdown: Shutdown,
) {
    let Some(tls) = answers.access().tls() else {
        return serve_stream(stream, place, answers, shutdown).await;
    };
    let handshake = TlsAcceptor::from(tls).accept(stream);
    let ended = tokio::select! {
        ended = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => ended,
        () = shutdown.requested() => return,
    };
    match ended.map_err(io::Error::from).flatten() {
        Ok(stream) => serve_stream(stream, place, answers, shutdown).await,
        Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
    }
}

async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    place: &Arc<ClientPlace>,
    answers: Arc<Answers>,
    mut shutdown: Shutdown,
) {
    let stream = Progress::new(stream, Arc::clone(place));
    let service = service_fn(move |request: Request<Incoming>| {
        let place = Arc::clone(place);
        let response = Arc::clone(&answers).answer(request);
        async move {
            place.agents_turn();
            let response = response.await;
            place.clients_turn();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        // A client that has ended its side still listens, as `nc -N` does.
        .half_close(true)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.requested() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection ended early");
    }
}

#[cfg(test)]
mod tests;
