//! The Unix socket behind `ballast status`, `ballast events`, `ballast explain` and `ballast top`; see
//! [`super::protocol`] for what goes over it.
//!
//! Invariant: a client takes a place and the memory of one batch, never the time of the agent. It
//! may be root or the agent's own user, nobody else. A reader that stops reading holds its own
//! connection only, and gives it up when somebody else needs a place; so does who waits for a disk.
//! Only followers keep theirs, and they have half of the places at most, so that paused ones cannot
//! keep `ballast status` out.

mod disk;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use self::disk::Disk;
use super::event_log::EventLog;
use super::explain;
use super::oom_records;
use super::protocol::{
    AnswerRef, EventsRequest, ExplainRequest, MAX_REQUEST_BYTES, RecordsRequest, Request,
};
use super::shutdown::Shutdown;
use crate::listener::{BindError, Listener};
use crate::model::record::EventRecord;
use crate::model::stats::StatsSnapshot;
use crate::model::status::Status;
use crate::places::{ClientPlace, ClientPlaces};
use crate::sys::clock;

/// Connections at a time; for one more, the one that has kept the agent waiting longest is closed.
pub const MAX_CONNECTIONS: usize = 32;

/// Of them, those that follow events; more are refused.
pub const MAX_FOLLOWERS: usize = 16;

/// How long a client may take to send its request. Clients connect when they have one.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client may take to read an answer that is not followed, and waits for one.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Records written at a time.
const BATCH: usize = 64;

/// Pause after a failed accept, which happens when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Everybody may look for the socket, which is root's.
const DIRECTORY_MODE: u32 = 0o755;

/// Statistics older than this are made anew for who asks: two clients that ask every second share
/// their sweeps.
const OLD_STATS: Duration = Duration::from_secs(1);

/// How long an answer waits for a fresh sweep, which takes milliseconds; then the last one is sent.
const SWEEP_PATIENCE: Duration = Duration::from_millis(500);

/// How long an answer waits for the kernel's events to be in the log. That takes milliseconds, on a busy
/// machine more.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(3);

const STARTING: &str = "the agent is starting: its first pass is not complete";
const NO_STATS: &str = "the agent has no statistics: its first sweep is not complete";
const NO_PLACE: &str = "the agent has too many clients, and this one waited longest: ask again";
const NO_DISK: &str = "the disk of the agent's state directory does not answer";

/// What the answers are made from.
#[derive(Clone)]
pub struct Sources {
    /// The document of the last pass; `None` until the first is complete.
    pub status: watch::Receiver<Option<Arc<Status>>>,
    /// The last sweep; `None` until the first is complete.
    pub stats: watch::Receiver<Option<Arc<StatsSnapshot>>>,
    /// Asks for a sweep before the next is due; never blocks. `None`: there is nobody to ask.
    pub stats_bell: Option<Arc<dyn Fn() + Send + Sync>>,
    pub events: EventLog,
    /// `None`: there is nobody to ask.
    pub catch_up: Option<CatchUp>,
    /// The directory of the admission records.
    pub admissions: PathBuf,
    /// That of the records of OOM kills.
    pub oom_records: PathBuf,
}

/// Has the log filled with what has happened in the kernel by now: frequent events are read once a second
/// where nobody asks for them.
#[derive(Clone)]
pub struct CatchUp {
    /// Asks for it; never blocks.
    pub ask: Arc<dyn Fn() + Send + Sync>,
    /// What was in the rings at this time, boottime, is in the log. `None`: nobody listens to the kernel.
    pub heard: watch::Receiver<Option<Duration>>,
}

impl CatchUp {
    /// Waits until it is, for a while.
    async fn until_now(&self) {
        let now = clock::boottime();
        (self.ask)();
        let mut heard = self.heard.clone();
        let is_heard = |it: &Option<Duration>| it.is_none_or(|it| it >= now);
        let waited = tokio::time::timeout(CATCH_UP_PATIENCE, heard.wait_for(is_heard));
        // Too late or never: then the log has what it has.
        drop(waited.await);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("listen for ballast status, ballast events, ballast explain and ballast top")]
    Listen(#[from] BindError),
}

/// A running server.
#[derive(Debug)]
pub struct SocketServer {
    /// Ends after the shutdown was requested; the socket file is removed then.
    pub task: JoinHandle<()>,
}

/// Binds `path` and serves on the current runtime until `shutdown`.
pub fn serve(
    path: &Path,
    sources: Sources,
    shutdown: Shutdown,
) -> Result<SocketServer, ServeError> {
    serve_from(path, sources, Disk::default(), shutdown)
}

fn serve_from(
    path: &Path,
    sources: Sources,
    disk: Disk,
    shutdown: Shutdown,
) -> Result<SocketServer, ServeError> {
    let listener = Listener::bind(path, DIRECTORY_MODE)?;
    let server = Server {
        sources,
        disk,
        follower_places: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
        own_uid: nix::unistd::geteuid().as_raw(),
    };
    let task = tokio::spawn(accept_loop(listener, Arc::new(server), shutdown));
    Ok(SocketServer { task })
}

async fn accept_loop(mut listener: Listener, server: Arc<Server>, mut shutdown: Shutdown) {
    let places = ClientPlaces::new(MAX_CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        let mut stream = tokio::select! {
            () = shutdown.requested() => break,
            accepted = listener.accept() => match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept on the agent's socket failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        // Another connection may have to give it up first.
        let place = tokio::select! {
            () = shutdown.requested() => break,
            place = places.take() => place,
        };
        let server = Arc::clone(&server);
        connections.spawn(async move {
            let is_midway = AtomicBool::new(false);
            let ended = tokio::select! {
                ended = server.serve_connection(&mut stream, &place, &is_midway) => ended,
                // In the midst of an answer it would be a part of that.
                () = place.taken_back() => match is_midway.load(Ordering::Relaxed) {
                    true => Ok(()),
                    false => {
                        let told = AnswerRef::Error(NO_PLACE).to_line();
                        stream.try_write(&told).map(drop)
                    }
                },
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to the agent's socket ended early");
            }
        });
        while connections.try_join_next().is_some() {}
    }
    // Clients are told nothing they could not ask again: the tasks end with the set.
    connections.shutdown().await;
}

struct Server {
    sources: Sources,
    disk: Disk,
    follower_places: Arc<Semaphore>,
    own_uid: u32,
}

/// Where the answers to one request go.
struct Reply<'a> {
    writer: WriteHalf<'a>,
    place: &'a ClientPlace,
    /// The client may have a part of an answer.
    is_midway: &'a AtomicBool,
}

impl Reply<'_> {
    async fn send(&mut self, answer: AnswerRef<'_>) -> io::Result<()> {
        self.write(&answer.to_line()).await
    }

    /// While the client reads, the connection waits for it.
    async fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.place.clients_turn();
        self.is_midway.store(true, Ordering::Relaxed);
        tokio::time::timeout(CLIENT_TIMEOUT, self.writer.write_all(lines)).await??;
        self.is_midway.store(false, Ordering::Relaxed);
        self.place.agents_turn();
        Ok(())
    }
}

impl Server {
    async fn serve_connection(
        &self,
        stream: &mut UnixStream,
        place: &ClientPlace,
        is_midway: &AtomicBool,
    ) -> io::Result<()> {
        let uid = stream.peer_cred()?.uid();
        let (reader, writer) = stream.split();
        let mut reply = Reply {
            writer,
            place,
            is_midway,
        };
        if !is_allowed(uid, self.own_uid) {
            let message = format!("user {uid} may not talk to the agent: only root may");
            return reply.send(AnswerRef::Error(&message)).await;
        }
        let mut reader = BufReader::new(reader);
        let line = tokio::time::timeout(REQUEST_TIMEOUT, read_request_line(&mut reader)).await??;
        place.agents_turn();
        match parse(&line) {
            Err(message) => reply.send(AnswerRef::Error(&message)).await,
            Ok(Request::Status(_)) => self.send_status(&mut reply).await,
            Ok(Request::Stats(_)) => self.send_stats(&mut reply).await,
            Ok(Request::Events(request)) if request.follow => {
                self.follow(&request, reader, reply).await
            }
            Ok(Request::Events(request)) => self.send_events(&request, &mut reply).await,
            Ok(Request::Records(request)) => self.send_records(&request, &mut reply).await,
            Ok(Request::Explain(request)) => self.send_explanation(request, &mut reply).await,
        }
    }

    async fn send_status(&self, reply: &mut Reply<'_>) -> io::Result<()> {
        let status = self.sources.status.borrow().clone();
        let answer = match &status {
            Some(status) => AnswerRef::Status(status),
            None => AnswerRef::Error(STARTING),
        };
        reply.send(answer).await
    }

    async fn send_stats(&self, reply: &mut Reply<'_>) -> io::Result<()> {
        let Some(stats) = self.fresh_stats().await else {
            return reply.send(AnswerRef::Error(NO_STATS)).await;
        };
        // A node full of pods makes megabytes: other connections do not wait for that.
        let line = tokio::task::spawn_blocking(move || AnswerRef::Stats(&stats).to_line());
        let line = line.await.map_err(io::Error::other)?;
        reply.write(&line).await
    }

    /// The last sweep, and a new one where that is old and comes in time.
    async fn fresh_stats(&self) -> Option<Arc<StatsSnapshot>> {
        let mut stats = self.sources.stats.clone();
        let last = stats.borrow_and_update().clone();
        let age = last
            .as_ref()
            .map(|it| clock::boottime().saturating_sub(it.ended));
        if age.is_some_and(|it| it < OLD_STATS) {
            return last;
        }
        let Some(ring) = &self.sources.stats_bell else {
            return last;
        };
        ring();
        match tokio::time::timeout(SWEEP_PATIENCE, stats.changed()).await {
            Ok(Ok(())) => stats.borrow().clone(),
            Ok(Err(_)) | Err(_) => last,
        }
    }

    async fn send_explanation(
        &self,
        request: ExplainRequest,
        reply: &mut Reply<'_>,
    ) -> io::Result<()> {
        let Some(status) = self.sources.status.borrow().clone() else {
            return reply.send(AnswerRef::Error(STARTING)).await;
        };
        let Sources {
            admissions,
            oom_records,
            ..
        } = self.sources.clone();
        let read = move || explain::pod(&status, &admissions, &oom_records, &request);
        let Some(explained) = self.read_disk(reply.place, read).await? else {
            return reply.send(AnswerRef::Error(NO_DISK)).await;
        };
        match explained {
            Ok(explanation) => reply.send(AnswerRef::Explanation(&explanation)).await,
            Err(error) => reply.send(AnswerRef::Error(&error.to_string())).await,
        }
    }

    async fn send_events(&self, request: &EventsRequest, reply: &mut Reply<'_>) -> io::Result<()> {
        if let Some(catch_up) = &self.sources.catch_up {
            catch_up.until_now().await;
        }
        let events = &self.sources.events;
        let records = events.snapshot(&request.filter(events.last_sequence()));
        for batch in records.chunks(BATCH) {
            reply.write(&lines(batch)).await?;
        }
        Ok(())
    }

    /// One record in memory at a time, whatever the client's pace.
    async fn send_records(
        &self,
        request: &RecordsRequest,
        reply: &mut Reply<'_>,
    ) -> io::Result<()> {
        let directory = self.sources.oom_records.clone();
        let list = move || oom_records::ids(&directory);
        let ids = match self.read_disk(reply.place, list).await? {
            Some(Ok(ids)) => ids,
            Some(Err(error)) => {
                return reply
                    .send(AnswerRef::Error(&crate::sys::chain(&error)))
                    .await;
            }
            None => return reply.send(AnswerRef::Error(NO_DISK)).await,
        };
        for id in ids {
            let directory = self.sources.oom_records.clone();
            let read = move || oom_records::read(&directory, id);
            let record = match self.read_disk(reply.place, read).await? {
                Some(Some(record)) => record,
                Some(None) => continue,
                None => return reply.send(AnswerRef::Error(NO_DISK)).await,
            };
            if request.since.is_none_or(|since| record.event.time >= since) {
                reply.send(AnswerRef::Record(&record)).await?;
            }
        }
        Ok(())
    }

    /// What `read` finds in the state directory. `None`: its disk does not answer. Somebody else may have the place of
    /// the client meanwhile.
    async fn read_disk<T: Send + 'static>(
        &self,
        place: &ClientPlace,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        place.clients_turn();
        let found = self.disk.read(read).await;
        place.agents_turn();
        found
    }

    async fn follow(
        &self,
        request: &EventsRequest,
        mut reader: BufReader<ReadHalf<'_>>,
        mut reply: Reply<'_>,
    ) -> io::Result<()> {
        let Ok(_place) = self.follower_places.try_acquire() else {
            let message = format!("{MAX_FOLLOWERS} clients follow events already");
            return reply.send(AnswerRef::Error(&message)).await;
        };
        let events = &self.sources.events;
        let mut follower = events.subscribe(request.filter(events.last_sequence()));
        if let Some(catch_up) = &self.sources.catch_up {
            // From here on the log is known to be followed.
            (catch_up.ask)();
        }
        let mut from_client = [0; 1];
        loop {
            let batch = tokio::select! {
                batch = follower.next_batch(BATCH) => batch,
                // A client has nothing more to say: this is its end.
                _ = reader.read(&mut from_client) => return Ok(()),
            };
            // Without a timeout, and with the place kept: a pager that waits for its user is a good
            // reader.
            reply.writer.write_all(&lines(&batch)).await?;
        }
    }
}

fn is_allowed(uid: u32, own_uid: u32) -> bool {
    uid == 0 || uid == own_uid
}

/// The first line, without its newline; at most one byte more than a request may have.
async fn read_request_line(reader: &mut BufReader<ReadHalf<'_>>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let limit = u64::try_from(MAX_REQUEST_BYTES).map_err(io::Error::other)? + 1;
    reader.take(limit).read_until(b'\n', &mut line).await?;
    Ok(line)
}

fn parse(line: &[u8]) -> Result<Request, String> {
    if line.len() > MAX_REQUEST_BYTES {
        return Err(format!("a request has at most {MAX_REQUEST_BYTES} bytes"));
    }
    serde_json::from_slice(line).map_err(|error| {
        format!("not a request of version ballast.dev/v1alpha1 as one line of JSON: {error}")
    })
}

fn lines(records: &[Arc<EventRecord>]) -> Vec<u8> {
    let to_line = |it: &Arc<EventRecord>| AnswerRef::Event(it).to_line();
    records.iter().flat_map(to_line).collect()
}

#[cfg(test)]
mod tests;
