//! The stream of events of one connection, read by a thread that does nothing else.
//!
//! Invariant: of an event no more is kept than whom it names; its labels and annotations may be of any size.

use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use tokio::sync::Notify;
use tonic::{Code, Status};

use super::endpoint::connect;
use super::{DEADLINE, MAX_ANSWER, Shared, meaning};
use crate::grpc::client::{Method, said};
use crate::grpc::messages::cri::{ContainerEventResponse, GetEventsRequest, path};
use crate::model::runtime_names::Identified;
use crate::sys::{chain, clock};

/// Events that wait to be looked at; of more the oldest are dropped. A start of a pod with two containers makes six.
const MAX_WAITING: usize = 256;

/// How often the reader shows that it is there.
const TICK: Duration = Duration::from_millis(200);

/// A reader that has not shown itself for so long may hold up the runtime: what it has not read fills the socket,
/// and then the runtime waits.
const LATE: Duration = Duration::from_secs(1);

/// A stream that ends well and so early, without an event, is that of a runtime that tells none (CRI-O, unless
/// `enable_pod_events` is set). One that is refused so early is refused by whoever answers.
const TELLS_NONE: Duration = Duration::from_secs(1);

/// Why there will be no more events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The runtime tells none.
    Unsupported,
    /// The runtime, or who stands before it, refuses them: the code and the text of its answer. It may tell them later.
    Refused(String),
    Failed(String),
}

/// What was read since the last look.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Whom each event names.
    pub(super) events: Vec<Vec<Identified>>,
    pub(super) n_dropped: u64,
    pub(super) end: Option<End>,
}

/// Reads until it is dropped.
pub(super) struct Events {
    queue: Arc<Queue>,
    /// Boottime.
    began: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// When the reader was there, by [`clock::monotonic`] in milliseconds.
    seen_ms: AtomicU64,
    is_stopped: AtomicBool,
    stop: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Vec<Identified>>,
    n_dropped: u64,
    end: Option<End>,
    /// To end the connection from another thread.
    socket: Option<UnixStream>,
}

impl Events {
    /// `shared` is woken by what is read.
    pub(super) fn start(endpoint: PathBuf, shared: Arc<Shared>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let queue = Arc::<Queue>::default();
        queue.show();
        let of_reader = Arc::clone(&queue);
        // Ends by itself: whoever waited for a reader that hangs would hang too.
        thread::Builder::new()
            .name("cri-events".to_owned())
            .spawn(move || {
                let end = runtime.block_on(read(&endpoint, &of_reader, &shared));
                let mut waiting = of_reader.waiting();
                waiting.end = Some(end);
                waiting.socket = None;
                drop(waiting);
                shared.wake.notify_one();
            })?;
        Ok(Self {
            queue,
            began: clock::boottime(),
        })
    }

    pub(super) fn take(&self) -> Taken {
        let mut waiting = self.queue.waiting();
        Taken {
            events: waiting.events.drain(..).collect(),
            n_dropped: std::mem::take(&mut waiting.n_dropped),
            end: waiting.end.clone(),
        }
    }

    /// The reader has not been there for too long, by [`clock::monotonic`]: while the node is suspended nobody waits for
    /// it.
    pub(super) fn is_late(&self, now: Duration) -> bool {
        let seen = Duration::from_millis(self.queue.seen_ms.load(Ordering::Relaxed));
        now.saturating_sub(seen) > LATE
    }

    /// A runtime that refuses its events has refused them by then.
    pub(super) fn has_lasted(&self, now: Duration) -> bool {
        now.saturating_sub(self.began) > DEADLINE + TELLS_NONE
    }
}

#[cfg(test)]
impl Events {
    /// Of a reader that hangs since the boot, over this connection.
    pub(super) fn hanging(socket: UnixStream) -> Self {
        let queue = Arc::new(Queue::default());
        queue.waiting().socket = Some(socket);
        Self {
            queue,
            began: Duration::ZERO,
        }
    }
}

impl Drop for Events {
    /// Ends the connection, whatever its reader does.
    fn drop(&mut self) {
        self.queue.is_stopped.store(true, Ordering::Relaxed);
        self.queue.stop.notify_one();
        if let Some(socket) = self.queue.waiting().socket.take() {
            // One that the runtime has closed cannot be shut down, and need not.
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: &ContainerEventResponse) {
        let named = meaning::of_event(event);
        let mut waiting = self.waiting();
        if waiting.events.len() >= MAX_WAITING {
            waiting.events.pop_front();
            waiting.n_dropped += 1;
        }
        waiting.events.push_back(named);
    }

    fn show(&self) {
        let now = milliseconds(clock::monotonic());
        self.seen_ms.store(now, Ordering::Relaxed);
    }
}

/// Until the stream ends, or nobody wants it.
async fn read(endpoint: &Path, queue: &Queue, shared: &Shared) -> End {
    const EVENTS: Method = Method {
        path: path::GET_CONTAINER_EVENTS,
        max_answer: MAX_ANSWER,
    };
    let (channel, socket) = match connect(endpoint).await {
        Ok(connected) => connected,
        Err(error) => return End::Failed(chain(&error)),
    };
    queue.waiting().socket = Some(socket);
    if queue.is_stopped.load(Ordering::Relaxed) {
        return End::Failed(NOT_WANTED.to_owned());
    }
    let began = clock::boottime();
    let n_read = Cell::new(0_u64);
    let reading = async {
        let mut stream = channel
            .server_streaming::<_, ContainerEventResponse>(EVENTS, GetEventsRequest {})
            .await?;
        while let Some(event) = stream.message().await? {
            n_read.set(n_read.get() + 1);
            queue.show();
            queue.push(&event);
            shared.wake.notify_one();
        }
        Ok::<(), Status>(())
    };
    let mut reading = std::pin::pin!(reading);
    let ended = loop {
        tokio::select! {
            ended = reading.as_mut() => break ended,
            () = tokio::time::sleep(TICK) => queue.show(),
            () = queue.stop.notified() => return End::Failed(NOT_WANTED.to_owned()),
        }
    };
    let lasted = clock::boottime().saturating_sub(began);
    meaning_of(ended, n_read.get(), lasted)
}

const NOT_WANTED: &str = "nobody follows its events";

fn meaning_of(ended: Result<(), Status>, n_read: u64, lasted: Duration) -> End {
    let has_told_none = n_read == 0 && lasted < TELLS_NONE;
    match ended {
        Ok(()) if has_told_none => End::Unsupported,
        Ok(()) => End::Failed("its stream of events ended".to_owned()),
        Err(status) if status.code() == Code::Unimplemented => End::Unsupported,
        Err(status) if has_told_none && is_answer(&status) => {
            End::Refused(format!("{:?}: {}", status.code(), said(&status)))
        }
        Err(status) => End::Failed(format!("its stream of events ended: {}", said(&status))),
    }
}

/// Somebody has answered. Who is not there now has not, and an error of the connection has a source.
fn is_answer(status: &Status) -> bool {
    let is_away = matches!(
        status.code(),
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded
    );
    !is_away && status.source().is_none()
}

fn milliseconds(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::messages::cri::{PodSandboxStatus, label};

    #[test]
    fn a_stream_that_ends_well_at_once_is_of_a_runtime_without_events() {
        let short = Duration::from_millis(3);
        assert_eq!(meaning_of(Ok(()), 0, short), End::Unsupported);
        for (n_read, lasted) in [(1, short), (0, TELLS_NONE)] {
            let end = meaning_of(Ok(()), n_read, lasted);
            assert!(matches!(end, End::Failed(_)), "{n_read} {lasted:?}");
        }
        let refused = Err(Status::unimplemented("unknown method"));
        assert_eq!(meaning_of(refused, 0, short), End::Unsupported);
        let gone = Err(Status::unavailable("the connection is closed"));
        let text = "its stream of events ended: the connection is closed";
        assert_eq!(meaning_of(gone, 0, short), End::Failed(text.to_owned()));
    }

    /// Lists and single questions may be answered still.
    #[test]
    fn an_error_at_once_is_a_refusal_if_somebody_has_answered() {
        let short = Duration::from_millis(3);
        for (code, said) in [
            (Code::Unknown, "Unknown: no events here"),
            (Code::PermissionDenied, "PermissionDenied: no events here"),
            (Code::Internal, "Internal: no events here"),
        ] {
            let refused = || Err(Status::new(code, "no events here"));
            let end = meaning_of(refused(), 0, short);
            assert_eq!(end, End::Refused(said.to_owned()));
            for (n_read, lasted) in [(1, short), (0, TELLS_NONE)] {
                let end = meaning_of(refused(), n_read, lasted);
                assert!(matches!(end, End::Failed(_)), "{n_read} {lasted:?}");
            }
        }
        let away = [Code::Unavailable, Code::Cancelled, Code::DeadlineExceeded];
        let away = away.map(|code| Status::new(code, "not now"));
        let cut = Status::from_error(Box::new(io::Error::from(io::ErrorKind::BrokenPipe)));
        for status in away.into_iter().chain([cut]) {
            let text = status.to_string();
            let end = meaning_of(Err(status), 0, short);
            assert!(matches!(end, End::Failed(_)), "{text}");
        }
    }

    /// Of the sandbox `id`.
    fn event(id: &str) -> ContainerEventResponse {
        let labels = [
            (label::POD_NAMESPACE, "default"),
            (label::POD_NAME, "shop"),
            (label::POD_UID, "uid-shop"),
        ];
        let labels = labels.map(|(name, text)| (name.to_owned(), text.to_owned()));
        ContainerEventResponse {
            pod_sandbox_status: Some(PodSandboxStatus {
                id: id.to_owned(),
                labels: labels.into(),
            }),
            ..ContainerEventResponse::default()
        }
    }

    #[test]
    fn a_queue_that_nobody_empties_drops_the_oldest_and_counts() {
        let queue = Queue::default();
        for n in 0..MAX_WAITING + 3 {
            queue.push(&event(&n.to_string()));
        }
        let events = Events {
            queue: Arc::new(queue),
            began: Duration::ZERO,
        };
        let taken = events.take();
        assert_eq!((taken.events.len(), taken.n_dropped), (MAX_WAITING, 3));
        assert_eq!(taken.events[0][0].id, "3");
        let taken = events.take();
        assert_eq!((taken.events.len(), taken.n_dropped), (0, 0));
        assert!(!events.is_late(LATE));
        assert!(events.is_late(LATE + TICK));
    }
}
