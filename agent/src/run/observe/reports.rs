//! Events of Kubernetes: what of the agent's records the API server is told.
//!
//! An agent that ends tells the rest. One that is killed has left a note until when all was told: the next one tells
//! what is on record after it, by the names that the note has where the record has none, so that the object is the
//! same that tells of it already.
//!
//! Invariant: a kill is on record and counted before it is told here, and its count is saved where it can be, so that the
//! next agent does not take it for missed. Nothing waits for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Loop;
use crate::api_server::ApiServer;
use crate::apply::checkpoint;
use crate::decide::kube_events::{Kill, OLD, Outbox, Unnamed, notices, told_until};
use crate::decide::naming::Names;
use crate::model::api_pod::ContainerRole;
use crate::model::api_server::EventsStatus;
use crate::model::kube_event::{Reason, Regarding};
use crate::model::record::{Event, EventKind, PodRef};
use crate::observe::chain;
use crate::observe::event_log::{EventFilter, EventLog};
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::EventResult;
use crate::observe::oom_records::{self, RecordedKills};
use crate::run::forensics::RECORDS;
use crate::run::missed::KillCounts;
use crate::sources::checkpoint as stored;
use crate::sources::wakers::Bell;
use crate::sys::clock;
use crate::sys::patience::Patience;

/// For the last of them, when the agent ends; and between two looks at how it goes.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LAST_LOOK: Duration = Duration::from_millis(50);

/// Counts that are not saved by then are not waited for: a disk hangs.
const LONGEST_SAVE: Duration = Duration::from_secs(1);

/// In the state directory: until when kills were told. Written so often at most.
const NOTE: &str = "told-kills.json";
const KIND: &str = "ToldKills";
const VERSION: u32 = 1;
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Names in the note, at most.
const MOST_NAMED: usize = 1_000;

/// What is told, and to whom. Times are boottime.
pub(super) struct Reports {
    api_server: ApiServer,
    log: EventLog,
    outbox: Outbox,
    /// Records up to this one were looked at.
    read: u64,
    /// Kills whose counts are not saved yet, each with the number that has to be: the next agent would tell them as
    /// missed.
    unsaved: Vec<(u64, Kill)>,
    unnamed: Unnamed,
    note: PathBuf,
    noted: ToldKills,
    /// Names that came after their kills were on record.
    named_late: Vec<NamedLate>,
    /// When the note may be written again.
    note_due: Duration,
    /// For the disk that the note is on.
    patience: Patience,
}

/// Until when all kills were told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldKills {
    boot_id: String,
    boottime_ns: u64,
    /// Of kills after that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    named_late: Vec<NamedLate>,
}

/// The container of a kill that nobody could name when it was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedLate {
    /// Of the kill.
    boottime_ns: u64,
    container_id: String,
    pod: PodRef,
    container: String,
}

impl NamedLate {
    /// `None`: it has no names by now.
    fn of(event: &Event, container_id: &str) -> Option<Self> {
        Some(Self {
            boottime_ns: event.boottime_ns,
            container_id: container_id.to_owned(),
            pod: event.pod.clone()?,
            container: event.container.clone()?,
        })
    }

    fn name(&self, event: &mut Event) {
        if event.container_id.as_ref() == Some(&self.container_id) {
            (event.pod, event.pod_uid) = (Some(self.pod.clone()), None);
            (event.container, event.container_id) = (Some(self.container.clone()), None);
        }
    }
}

impl Reports {
    /// Tells what is in the log after the event `read`, and of `earlier` kills what no agent has told. `patience`:
    /// nobody else's.
    pub(super) fn new(
        api_server: ApiServer,
        log: EventLog,
        read: u64,
        earlier: Earlier,
        patience: Patience,
    ) -> Self {
        let since = clock::boottime();
        let mut unnamed = Unnamed::default();
        unnamed.extend(earlier.kills.named.into_iter().map(|event| Kill {
            event,
            since,
            is_earlier: true,
        }));
        let mut outbox = Outbox::new(since);
        outbox.give_up_unnamed(earlier.kills.n_unnamed);
        Self {
            api_server,
            read,
            log,
            unsaved: Vec::new(),
            outbox,
            unnamed,
            note: earlier.note,
            named_late: earlier.noted.named_late.clone(),
            noted: earlier.noted,
            note_due: since,
            patience,
        }
    }

    /// When it is to be looked at again.
    pub(super) fn wake(&self) -> Option<Duration> {
        let note = self.new_note().map(|_| self.note_due);
        let unsaved = self.unsaved.first();
        let unsaved = unsaved.map(|(_, it)| it.since + LONGEST_SAVE);
        let all = [self.outbox.wake(), self.unnamed.wake(), note, unsaved];
        all.into_iter().flatten().min()
    }

    /// What is to be noted and is not. `None`: nothing is new.
    fn new_note(&self) -> Option<ToldKills> {
        let told = self.outbox.told_until();
        // What waits may be older than what was told.
        let told = told.filter(|_| self.unnamed.is_empty() && self.unsaved.is_empty());
        let until = told.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        let until = until.max(self.noted.boottime_ns);
        let later = self.named_late.iter().filter(|it| it.boottime_ns > until);
        let note = ToldKills {
            boot_id: self.noted.boot_id.clone(),
            boottime_ns: until,
            named_late: later.cloned().collect(),
        };
        (note != self.noted).then_some(note)
    }

    fn write_note(&mut self, now: Duration) {
        let Some(note) = self.new_note().filter(|_| now >= self.note_due) else {
            return;
        };
        self.note_due = now + NOTE_EVERY;
        let (path, noted) = (self.note.clone(), note.clone());
        let patience = &self.patience;
        let written = patience.ask(move |_| checkpoint::replace(&path, KIND, VERSION, &noted));
        // `None`: the disk does not answer in time, and is asked again.
        let Some(written) = written else { return };
        self.named_late.clone_from(&note.named_late);
        self.noted = note;
        if let Err(error) = written {
            tracing::warn!(error = chain(&error), "note until when OOM kills were told");
        }
    }

    /// What is new in the log. `is_last`: the agent ends.
    fn read(&mut self, counts: &KillCounts, now: Duration, is_last: bool) {
        let newest = self.log.last_sequence();
        if newest != self.read {
            let new = self.log.snapshot(&EventFilter {
                kinds: BTreeSet::from([EventKind::Oom]),
                after: Some(self.read),
                ..EventFilter::default()
            });
            self.read = new.last().map_or(newest, |it| it.sequence.max(newest));
            // What is on record was counted before.
            let last = *counts.telling();
            self.unsaved.extend(new.iter().map(|it| {
                let kill = Kill {
                    event: it.event.clone(),
                    since: now,
                    is_earlier: false,
                };
                (last, kill)
            }));
        }
        let saved = counts.last_saved();
        let ready = self.unsaved.extract_if(.., |(number, it)| {
            is_last || *number <= saved || now.saturating_sub(it.since) >= LONGEST_SAVE
        });
        self.unnamed.extend(ready.map(|(_, it)| it));
    }

    /// What is in the log has its names by now. Of a kill that was not read until then nothing else says that its record
    /// has none.
    pub(super) fn name(&mut self, unnamed: &Event, named: &Event) {
        if named.kind == EventKind::Oom
            && let Some(id) = &unnamed.container_id
        {
            note_name(&mut self.named_late, NamedLate::of(named, id));
        }
    }

    fn take(&mut self, names: &Names, now: Duration, is_last: bool) {
        // A name takes the place of the id.
        let unnamed = self.unnamed.waiting().map(|it| &it.event);
        let unnamed = unnamed.filter_map(|it| Some((it.boottime_ns, it.container_id.clone()?)));
        let unnamed: BTreeMap<u64, String> = unnamed.collect();
        for kill in self.unnamed.take_known(names, now, is_last) {
            let id = unnamed.get(&kill.event.boottime_ns);
            let named = id.and_then(|it| NamedLate::of(&kill.event, it));
            note_name(&mut self.named_late, named);
            for notice in notices(&kill.event) {
                match kill.is_earlier {
                    true => self.outbox.take_earlier(notice, now),
                    false => self.outbox.take(notice, now),
                }
            }
        }
        let too_many = self.named_late.len().saturating_sub(MOST_NAMED);
        self.named_late.drain(..too_many);
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

    /// `fault`: why none can be written.
    pub(super) fn status(&self, fault: Option<String>) -> EventsStatus {
        let unwritten = self.unnamed.len() + self.unsaved.len();
        let waiting = self.outbox.n_waiting() + unwritten as u64;
        let fault = fault.filter(|_| waiting > 0);
        let of_one = || self.outbox.fault().map(str::to_owned);
        let mut status = EventsStatus {
            waiting,
            fault: fault.or_else(of_one),
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

/// Once, whoever finds it first.
fn note_name(named_late: &mut Vec<NamedLate>, named: Option<NamedLate>) {
    let new = named.filter(|it| !named_late.contains(it));
    named_late.extend(new);
}

/// What agents before this one have left.
#[derive(Default)]
pub(super) struct Earlier {
    kills: RecordedKills,
    note: PathBuf,
    noted: ToldKills,
}

impl Earlier {
    /// Kills of this boot that are on record, still news, and not told as far as is noted.
    pub(super) fn find(state_directory: &Path, boot_id: &str) -> Self {
        let note = state_directory.join(NOTE);
        let read = stored::read::<ToldKills>(&note, KIND, VERSION);
        let noted = read.ok().filter(|it| it.boot_id == boot_id);
        let noted = noted.unwrap_or_else(|| ToldKills {
            boot_id: boot_id.to_owned(),
            ..ToldKills::default()
        });
        let is_news = clock::boottime().saturating_sub(OLD);
        let since = is_news.max(Duration::from_nanos(noted.boottime_ns));
        let records = state_directory.join(RECORDS);
        let kills = oom_records::kills_since(&records, boot_id, since);
        let mut kills = kills.unwrap_or_else(|error| {
            tracing::warn!(
                error = chain(&error),
                "look for OOM kills that nobody has told"
            );
            RecordedKills::default()
        });
        for event in &mut kills.named {
            noted.named_late.iter().for_each(|it| it.name(event));
        }
        Self { kills, note, noted }
    }
}

impl Loop {
    /// Tells the API server what is new.
    pub(super) fn report(&mut self, is_last: bool) {
        let Some(reports) = &mut self.reports else {
            return;
        };
        let now = clock::boottime();
        if let Some(outcome) = self.tree.take_outcome() {
            reports.outbox.done(outcome, now);
        }
        let kernel = &self.tree.kernel;
        // Who counts kills holds those counts and asks the index: never the other way round.
        reports.read(&kernel.kill_counts, now, is_last);
        reports.take(&kernel.index().names, now, is_last);
        if let Some(mut write) = reports.outbox.next(now) {
            write.role = role(&write.regarding, &self.tree.kernel.index().names);
            let unsaved = reports.unsaved.iter().map(|(_, it)| it);
            let waiting = unsaved.chain(reports.unnamed.waiting());
            write.told_until = told_until(&write, waiting);
            reports.api_server.write(write);
        }
        reports.write_note(now);
    }

    /// Tells what waits for its time, before the agent ends.
    pub(super) fn tell_the_rest(&mut self, bell: &Bell) {
        let began = clock::boottime();
        while let Some(reports) = &mut self.reports {
            reports.outbox.hurry(clock::boottime());
            self.report(true);
            let outbox = self.reports.as_ref().map(|it| &it.outbox);
            let n = outbox.map_or(0, Outbox::n_waiting);
            // Of what is refused each is tried once more.
            let is_over = clock::boottime() >= began + LAST_WORDS
                || self.tree.events_fault().is_some()
                || outbox.is_none_or(|it| !it.has_untried(began));
            if n == 0 || is_over {
                if n > 0 {
                    let text = format!("{n} OOM kills are no Events of their pods yet");
                    self.told.agent("EventsUnwritten", text);
                }
                return;
            }
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
