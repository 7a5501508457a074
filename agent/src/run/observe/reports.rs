//! Events of Kubernetes: what of the agent's records the API server is told.
//!
//! Invariant: a kill is on record and counted before it is told here, and nothing waits for the API server.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Loop;
use super::names::name_event;
use crate::api_server::ApiServer;
use crate::decide::kube_events::{Outbox, notices};
use crate::decide::naming::Names;
use crate::model::api_pod::ContainerRole;
use crate::model::api_server::EventsStatus;
use crate::model::kube_event::{Reason, Regarding};
use crate::model::record::{Event, EventKind};
use crate::observe::event_log::{EventFilter, EventLog};
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::EventResult;
use crate::sources::wakers::Bell;
use crate::sys::clock;

/// Who has the name of a pod by now and not that of its container is told of without it.
const NAMED_BY: Duration = Duration::from_secs(2);

/// Who has no name by now is not told of: nobody could find it.
const GIVEN_UP: Duration = Duration::from_secs(15 * 60);

/// For the last of them, when the agent ends; and between two looks at how it goes.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LAST_LOOK: Duration = Duration::from_millis(50);

/// Kills that wait for names, at most.
const MAX_UNNAMED: usize = 1_000;

/// What is told, and to whom. Times are boottime.
pub(super) struct Reports {
    api_server: ApiServer,
    log: EventLog,
    outbox: Outbox,
    /// Records up to this one were looked at.
    read: u64,
    /// With the time since when each waits for a name.
    unnamed: Vec<(Event, Duration)>,
}

impl Reports {
    /// Tells what is on record after the record `read`.
    pub(super) fn new(api_server: ApiServer, log: EventLog, read: u64) -> Self {
        Self {
            api_server,
            read,
            log,
            outbox: Outbox::new(clock::boottime()),
            unnamed: Vec::new(),
        }
    }

    /// When it is to be looked at again.
    pub(super) fn wake(&self) -> Option<Duration> {
        let waiting = self.unnamed.iter().filter(|(it, _)| it.pod.is_some());
        let named = waiting.map(|(_, since)| *since + NAMED_BY).min();
        [self.outbox.wake(), named].into_iter().flatten().min()
    }

    fn take(&mut self, names: &Names, now: Duration) {
        let newest = self.log.last_sequence();
        if newest != self.read {
            let new = self.log.snapshot(&EventFilter {
                kinds: BTreeSet::from([EventKind::Oom]),
                after: Some(self.read),
                ..EventFilter::default()
            });
            self.read = new.last().map_or(newest, |it| it.sequence.max(newest));
            let new = new.iter().map(|it| (it.event.clone(), now));
            self.unnamed.extend(new);
        }
        for (event, since) in std::mem::take(&mut self.unnamed) {
            let event = name_event(&event, names).unwrap_or(event);
            let waited = now.saturating_sub(since);
            let is_known = match (&event.pod, event.uid()) {
                // Of no pod, or of nobody knows which.
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(_), Some(_)) => event.container_id.is_none() || waited >= NAMED_BY,
            };
            if is_known {
                for notice in notices(&event) {
                    self.outbox.take(notice, now);
                }
            } else if waited < GIVEN_UP {
                self.unnamed.push((event, since));
            } else {
                self.outbox.give_up(&event);
            }
        }
        // Of too many the oldest go.
        let too_many = self.unnamed.len().saturating_sub(MAX_UNNAMED);
        for (event, _) in self.unnamed.drain(..too_many) {
            self.outbox.give_up(&event);
        }
    }

    pub(super) fn count(&self, metrics: &Metrics) {
        for (reason, counts) in self.outbox.counts() {
            let by_result = [
                (EventResult::Sent, counts.sent),
                (EventResult::Folded, counts.folded),
                (EventResult::Dropped, counts.dropped),
            ];
            metrics.set_api_events(*reason, by_result);
        }
    }

    pub(super) fn status(&self, fault: Option<String>) -> EventsStatus {
        let waiting = self.outbox.n_waiting() + self.unnamed.len() as u64;
        let mut status = EventsStatus {
            waiting,
            // Of one that is given up nothing is to be mended.
            fault: fault.filter(|_| waiting > 0),
            ..EventsStatus::default()
        };
        for (reason, counts) in self.outbox.counts() {
            status.dropped += counts.dropped;
            // It tells of those that are folded.
            if *reason != Reason::OomRepeated {
                status.sent += counts.sent;
                status.folded += counts.folded;
            }
        }
        status
    }
}

impl Loop {
    /// Tells the API server what is new.
    pub(super) fn report(&mut self) {
        let Some(reports) = &mut self.reports else {
            return;
        };
        let now = clock::boottime();
        if let Some(outcome) = self.tree.take_outcome() {
            reports.outbox.done(outcome, now);
        }
        reports.take(&self.tree.kernel.index().names, now);
        if let Some(mut write) = reports.outbox.next(now) {
            write.role = role(&write.regarding, &self.tree.kernel.index().names);
            reports.api_server.write(write);
        }
    }

    /// Tells what waits for its time, before the agent ends.
    pub(super) fn tell_the_rest(&mut self, bell: &Bell) {
        let until = clock::boottime() + LAST_WORDS;
        while let Some(reports) = &mut self.reports {
            let now = clock::boottime();
            reports.outbox.hurry(now);
            let n = reports.outbox.n_waiting();
            let is_over = now >= until || self.tree.events_fault().is_some();
            if n == 0 || is_over {
                if n > 0 {
                    let text = format!("{n} OOM kills are no Events of their pods yet");
                    self.told.agent("EventsUnwritten", text);
                }
                return;
            }
            self.report();
            bell.wait(LAST_LOOK);
        }
    }
}

/// Of the container, by now: the API server may have told it after the kill.
fn role(regarding: &Regarding, names: &Names) -> Option<ContainerRole> {
    let Regarding::Pod { pod, container } = regarding else {
        return None;
    };
    let declared = names.declared(&pod.uid)?;
    Some(declared.container(container.as_deref()?)?.role)
}
