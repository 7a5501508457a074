//! What a loop itself has to say to people: event records, and the same as log lines. Reasons are those of
//! Kubernetes where it has one.

use crate::model::record::{Event, EventDetail, EventKind, PodRef};
use crate::model::time::WallTime;
use crate::observe::event_log::EventLog;
use crate::sys::clock;

/// Writer of a loop's own records.
#[derive(Clone)]
pub(super) struct Told {
    log: EventLog,
}

impl Told {
    pub(super) fn new(log: EventLog) -> Self {
        Self { log }
    }

    /// Sequence number of the newest record of anyone.
    pub(super) fn last_event(&self) -> u64 {
        self.log.last_sequence()
    }

    /// How many records there have been, of anyone.
    pub(super) fn n_events(&self) -> u64 {
        self.log.n_appended()
    }

    /// As [`EventLog::amend`].
    pub(super) fn amend(&self, after: Option<u64>, amend: impl FnMut(&Event) -> Option<Event>) {
        self.log.amend(after, amend);
    }

    pub(super) fn tell(
        &self,
        kind: EventKind,
        reason: &'static str,
        pod: Option<&PodRef>,
        container: Option<&str>,
        message: String,
        detail: Option<EventDetail>,
    ) {
        let now = clock::boottime();
        let time = WallTime::from_epoch(clock::wall());
        let boottime_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.log.append(Event {
            pod: pod.cloned(),
            container: container.map(str::to_owned),
            detail,
            ..Event::new(time, boottime_ns, kind, reason, message)
        });
    }

    pub(super) fn agent(&self, reason: &'static str, message: String) {
        tracing::info!(reason, "{message}");
        self.tell(EventKind::Agent, reason, None, None, message, None);
    }

    pub(super) fn node(&self, reason: &'static str, message: String) {
        tracing::warn!(reason, "{message}");
        self.tell(EventKind::Node, reason, None, None, message, None);
    }
}
