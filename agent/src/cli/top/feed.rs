//! What comes from the agent: a sample each interval, and events as they happen, each from a thread
//! of its own. An agent that goes away is asked again until it is back.

use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use super::app::Message;
use super::rows::Sample;
use crate::cli::client::{Client, ClientError};
use crate::model::record::{EventKind, EventRecord};
use crate::model::status::ApiVersion;
use crate::model::time::WallTime;
use crate::observe::protocol::{Answer, EventsRequest, Request};
use crate::sys::{chain, clock};

/// Between two tries to follow events.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn now() -> WallTime {
    WallTime::from_epoch(clock::wall())
}

/// Asks for status and statistics. Those may be missing, as on an agent that has just started: then
/// the sample says why.
pub(super) fn sample(path: &Path) -> Result<Sample, ClientError> {
    let at = now();
    let status = match ask(path, &Request::status())? {
        Answer::Status(status) => *status,
        _ => return Err(ClientError::NoAnswer),
    };
    let stats = match ask(path, &Request::stats()) {
        Ok(Answer::Stats(stats)) => Ok(*stats),
        Ok(_) => return Err(ClientError::NoAnswer),
        // An older agent refuses the request as such, a new one before its first sweep.
        Err(ClientError::Refused { message }) => Err(message),
        Err(error) => return Err(error),
    };
    Ok(Sample { at, status, stats })
}

fn ask(path: &Path, request: &Request) -> Result<Answer, ClientError> {
    let mut client = Client::ask(path, request, false)?;
    client.next_answer()?.ok_or(ClientError::NoAnswer)
}

/// The events that [`follow_events`] would begin with.
pub(super) fn events(path: &Path) -> Result<Vec<EventRecord>, ClientError> {
    let mut client = Client::ask(path, &rare_events(false, None), false)?;
    let mut records = Vec::new();
    while let Some(answer) = client.next_answer()? {
        let Answer::Event(record) = answer else {
            return Err(ClientError::NoAnswer);
        };
        records.push(*record);
    }
    Ok(records)
}

/// Those that are not of processes, cgroups and single stalls: of those a busy node has thousands a
/// second.
fn rare_events(follow: bool, after: Option<u64>) -> Request {
    let rare = EventKind::ALL.into_iter().filter(|it| !it.is_frequent());
    Request::Events(EventsRequest {
        api_version: ApiVersion::V1Alpha1,
        follow,
        kind: rare.collect(),
        since: None,
        after,
    })
}

/// Samples every `interval` until the receiver of messages is gone.
pub(super) fn follow_samples(path: PathBuf, interval: Duration, messages: SyncSender<Message>) {
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            let message = match sample(&path) {
                Ok(sample) => Message::Sample(Box::new(sample)),
                Err(error) => Message::Away {
                    at: now(),
                    why: chain(&error),
                },
            };
            if messages.send(message).is_err() {
                return;
            }
        }
    });
}

/// Events as they happen, after those that the agent still has.
pub(super) fn follow_events(path: PathBuf, messages: SyncSender<Message>) {
    thread::spawn(move || {
        let mut after = None;
        while follow_once(&path, &mut after, &messages) {
            thread::sleep(RETRY);
        }
    });
}

/// `after`: sequence number of the last event. `false`: nobody listens any more.
fn follow_once(path: &Path, after: &mut Option<u64>, messages: &SyncSender<Message>) -> bool {
    // That the agent is away is told by the samples.
    let Ok(mut client) = Client::ask(path, &rare_events(true, *after), true) else {
        return true;
    };
    while let Ok(Some(answer)) = client.next_answer() {
        let Answer::Event(record) = answer else {
            continue;
        };
        *after = Some(record.sequence);
        if messages.send(Message::Event(record)).is_err() {
            return false;
        }
    }
    true
}
