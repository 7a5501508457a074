//! The last events, in memory. Any thread appends; readers of the socket follow at their own pace.
//!
//! Records are numbered as they become known: what processes and cgroups did may be known up to a second
//! after a kill or the end of a container that came later.
//!
//! Two rings share one numbering: frequent kinds (process, cgroup, stall) and rare ones. So a fork
//! storm pushes out old forks, never the OOM kill that somebody wants to read.
//!
//! Invariant: appending takes a short lock and never waits for a reader. A reader that falls
//! behind is told how many records it missed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::model::record::{Event, EventDetail, EventKind, EventRecord};
use crate::model::time::WallTime;

/// Records that each ring of an agent keeps. An OOM record takes about 1 KiB, others half of that: both
/// rings full are about 4 MiB.
const CAPACITY: usize = 4096;

/// Which records a reader wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Empty: every kind.
    pub kinds: BTreeSet<EventKind>,
    /// Only what happened at this time or later.
    pub since: Option<WallTime>,
    /// Only records with a higher sequence number, to resume after a lost connection.
    pub after: Option<u64>,
}

impl EventFilter {
    fn wants(&self, record: &EventRecord) -> bool {
        self.wants_kind(record.event.kind)
            && self.since.is_none_or(|since| record.event.time >= since)
    }

    fn wants_kind(&self, kind: EventKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    fn wants_any(&self, frequent: bool) -> bool {
        EventKind::ALL
            .into_iter()
            .any(|kind| kind.is_frequent() == frequent && self.wants_kind(kind))
    }
}

/// The log; clones share it.
#[derive(Clone, Debug)]
pub struct EventLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Before the first record.
    first: u64,
    rings: Mutex<Rings>,
    /// The newest sequence number of each ring, to wake its followers: who waits for an OOM kill
    /// sleeps through a fork storm.
    newest_rare: watch::Sender<u64>,
    newest_frequent: watch::Sender<u64>,
}

#[derive(Debug)]
struct Rings {
    rare: Ring,
    frequent: Ring,
    last_sequence: u64,
}

#[derive(Debug)]
struct Ring {
    records: VecDeque<Arc<EventRecord>>,
    capacity: usize,
    /// Records that this ring has dropped since it was made: the position of its oldest record.
    n_dropped: u64,
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Self {
            records: VecDeque::new(),
            capacity: capacity.max(1),
            n_dropped: 0,
        }
    }

    fn push(&mut self, record: Arc<EventRecord>) {
        if self.records.len() == self.capacity {
            self.records.pop_front();
            self.n_dropped += 1;
        }
        self.records.push_back(record);
    }

    /// The record at `position`, counted from the first that the ring ever held.
    fn at(&self, position: u64) -> Option<&Arc<EventRecord>> {
        let index = usize::try_from(position.checked_sub(self.n_dropped)?).ok()?;
        self.records.get(index)
    }

    /// The index of the first record with a higher number.
    fn first_after(&self, number: Option<u64>) -> usize {
        let is_before = |it: &Arc<EventRecord>| number.is_some_and(|number| it.sequence <= number);
        self.records.partition_point(is_before)
    }

    /// Moves a position that the ring has left behind to its oldest record; returns how far.
    fn catch_up(&self, position: &mut u64) -> u64 {
        let missed = self.n_dropped.saturating_sub(*position);
        *position += missed;
        missed
    }
}

impl EventLog {
    /// The log of an agent that starts `now`, since the epoch. It counts from the clock's microseconds:
    /// so no number of an earlier agent comes back, and a reader that resumes after one misses nothing.
    pub fn begin(now: Duration) -> Self {
        Self::new(CAPACITY, u64::try_from(now.as_micros()).unwrap_or_default())
    }

    /// A log whose first record gets number `last_sequence + 1`.
    pub fn new(capacity: usize, last_sequence: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                rings: Mutex::new(Rings {
                    rare: Ring::new(capacity),
                    frequent: Ring::new(capacity),
                    last_sequence,
                }),
                first: last_sequence,
                newest_rare: watch::channel(last_sequence).0,
                newest_frequent: watch::channel(last_sequence).0,
            }),
        }
    }

    /// Numbers and keeps an event; returns its sequence number.
    pub fn append(&self, event: Event) -> u64 {
        let is_frequent = event.kind.is_frequent();
        let sequence = {
            let mut rings = self.lock();
            rings.last_sequence += 1;
            let sequence = rings.last_sequence;
            let record = Arc::new(EventRecord { sequence, event });
            if is_frequent {
                rings.frequent.push(record);
            } else {
                rings.rare.push(record);
            }
            sequence
        };
        let newest = if is_frequent {
            &self.shared.newest_frequent
        } else {
            &self.shared.newest_rare
        };
        newest.send_modify(|it| *it = sequence.max(*it));
        sequence
    }

    /// Replaces what `amend` gives another text for, of the rare kinds and with a higher number than `after`. Who has
    /// read it does not read it again.
    pub fn amend(&self, after: Option<u64>, mut amend: impl FnMut(&Event) -> Option<Event>) {
        let rare = &mut self.lock().rare;
        let first = rare.first_after(after);
        for record in rare.records.range_mut(first..) {
            if let Some(event) = amend(&record.event) {
                *record = Arc::new(EventRecord {
                    sequence: record.sequence,
                    event,
                });
            }
        }
    }

    /// Whether somebody waits for records of a frequent kind.
    pub fn is_followed(&self) -> bool {
        self.shared.newest_frequent.receiver_count() > 0
    }

    /// Number of the newest record; the starting number before the first.
    pub fn last_sequence(&self) -> u64 {
        self.lock().last_sequence
    }

    /// How many records have been appended, dropped ones too.
    pub fn n_appended(&self) -> u64 {
        self.last_sequence() - self.shared.first
    }

    /// The kept records that the filter wants, oldest first.
    pub fn snapshot(&self, filter: &EventFilter) -> Vec<Arc<EventRecord>> {
        let mut follower = self.subscribe(filter.clone());
        let mut records = Vec::new();
        while follower.read_into(&mut records, usize::MAX) > 0 {}
        records
    }

    /// A reader that begins with the oldest kept record that the filter may want.
    pub fn subscribe(&self, filter: EventFilter) -> Follower {
        let rings = self.lock();
        let cursor = |is_frequent, ring: &Ring, newest: &watch::Sender<u64>| {
            filter.wants_any(is_frequent).then(|| Cursor {
                position: ring.n_dropped + ring.first_after(filter.after) as u64,
                newest: newest.subscribe(),
            })
        };
        let rare = cursor(false, &rings.rare, &self.shared.newest_rare);
        let frequent = cursor(true, &rings.frequent, &self.shared.newest_frequent);
        drop(rings);
        Follower {
            log: self.clone(),
            filter,
            rare,
            frequent,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        // The rings are consistent after every statement, so a panic elsewhere spoils nothing.
        self.shared
            .rings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// One reader's place in the log. It holds positions, not records: a follower that nobody reads
/// costs nothing.
#[derive(Debug)]
pub struct Follower {
    log: EventLog,
    filter: EventFilter,
    /// `None`: the filter wants no kind of this ring.
    rare: Option<Cursor>,
    frequent: Option<Cursor>,
}

#[derive(Debug)]
struct Cursor {
    /// Of the next record to read, counted from the first that the ring ever held.
    position: u64,
    newest: watch::Receiver<u64>,
}

impl Cursor {
    /// Waits for a record after the last that was marked as seen; for ever without a cursor.
    async fn changed(cursor: Option<&mut Self>) {
        match cursor {
            // The sender lives in the log that the follower holds, so this does not fail.
            Some(cursor) => drop(cursor.newest.changed().await),
            None => std::future::pending().await,
        }
    }
}

impl Follower {
    /// Waits until something is there to read, then returns at most `limit` records, oldest first.
    /// May be empty when the filter wants none of them.
    pub async fn next_batch(&mut self, limit: usize) -> Vec<Arc<EventRecord>> {
        let mut batch = Vec::new();
        // Marked before the rings are read, so what comes in between wakes.
        for cursor in [&mut self.rare, &mut self.frequent].into_iter().flatten() {
            cursor.newest.mark_unchanged();
        }
        if self.read_into(&mut batch, limit) == 0 {
            tokio::select! {
                () = Cursor::changed(self.rare.as_mut()) => {}
                () = Cursor::changed(self.frequent.as_mut()) => {}
            }
            self.read_into(&mut batch, limit);
        }
        batch
    }

    /// Looks at up to `limit` records and appends those that the filter wants; returns how many it
    /// looked at. Records that the rings have already dropped become one record that counts them.
    fn read_into(&mut self, batch: &mut Vec<Arc<EventRecord>>, limit: usize) -> usize {
        let rings = self.log.lock();
        let mut missed = 0;
        for (cursor, ring) in [
            (&mut self.rare, &rings.rare),
            (&mut self.frequent, &rings.frequent),
        ] {
            missed += cursor
                .as_mut()
                .map_or(0, |it| ring.catch_up(&mut it.position));
        }
        let mut n_read = 0;
        while n_read < limit {
            let rare = self.rare.as_ref();
            let rare = rare.and_then(|it| rings.rare.at(it.position));
            let frequent = self.frequent.as_ref();
            let frequent = frequent.and_then(|it| rings.frequent.at(it.position));
            let (record, cursor) = match (rare, frequent) {
                (Some(a), Some(b)) if a.sequence < b.sequence => (a, &mut self.rare),
                (Some(a), None) => (a, &mut self.rare),
                (_, Some(b)) => (b, &mut self.frequent),
                (None, None) => break,
            };
            if let Some(cursor) = cursor {
                cursor.position += 1;
            }
            n_read += 1;
            if missed > 0 {
                batch.push(Arc::new(dropped(missed, record)));
                missed = 0;
            }
            if self.filter.wants(record) {
                batch.push(Arc::clone(record));
            }
        }
        n_read
    }
}

/// Stands for `count` records before `next`, of any kind.
fn dropped(count: u64, next: &EventRecord) -> EventRecord {
    let message = format!("{count} records were dropped because this reader was too slow");
    let (time, boottime_ns) = (next.event.time, next.event.boottime_ns);
    let (kind, reason) = (EventKind::Agent, "EventsDropped");
    EventRecord {
        sequence: next.sequence.saturating_sub(1),
        event: Event {
            detail: Some(EventDetail::Dropped { count }),
            ..Event::new(time, boottime_ns, kind, reason, message)
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    fn event(kind: EventKind, second: u64) -> Event {
        let time = WallTime::from_epoch(Duration::from_secs(second));
        Event::new(time, second * 1_000_000_000, kind, "Test", String::new())
    }

    fn sequences(records: &[Arc<EventRecord>]) -> Vec<u64> {
        records.iter().map(|it| it.sequence).collect()
    }

    fn filter(kinds: &[EventKind]) -> EventFilter {
        EventFilter {
            kinds: kinds.iter().copied().collect(),
            ..EventFilter::default()
        }
    }

    #[test]
    fn a_storm_of_processes_leaves_the_oom_kill_in_the_log() {
        let log = EventLog::new(4, 0);
        log.append(event(EventKind::Oom, 1));
        for second in 2..100 {
            log.append(event(EventKind::Process, second));
        }
        assert_eq!(
            sequences(&log.snapshot(&EventFilter::default())),
            [1, 96, 97, 98, 99]
        );
    }

    #[test]
    fn filters_select_by_kind_time_and_sequence() {
        let log = EventLog::new(8, 10);
        for (second, kind) in [EventKind::Oom, EventKind::Process, EventKind::Pod]
            .into_iter()
            .cycle()
            .take(6)
            .enumerate()
        {
            log.append(event(kind, second as u64));
        }
        let since = WallTime::from_epoch(Duration::from_secs(3));
        for (name, filter, expected) in [
            ("all", EventFilter::default(), vec![11, 12, 13, 14, 15, 16]),
            ("one kind", filter(&[EventKind::Oom]), vec![11, 14]),
            (
                "one kind of each ring",
                filter(&[EventKind::Process, EventKind::Pod]),
                vec![12, 13, 15, 16],
            ),
            (
                "since",
                EventFilter {
                    since: Some(since),
                    ..EventFilter::default()
                },
                vec![14, 15, 16],
            ),
            (
                "after",
                EventFilter {
                    after: Some(15),
                    ..EventFilter::default()
                },
                vec![16],
            ),
        ] {
            assert_eq!(sequences(&log.snapshot(&filter)), expected, "{name}");
        }
        assert_eq!((log.last_sequence(), log.n_appended()), (16, 6));
    }

    #[test]
    fn what_is_amended_is_what_was_asked_for() {
        let log = EventLog::new(8, 10);
        for second in 0..3 {
            log.append(event(EventKind::Oom, second));
        }
        let amended = || {
            let all = log.snapshot(&EventFilter::default());
            let all = all.iter().filter(|it| it.event.message == "amended");
            all.map(|it| it.sequence).collect::<Vec<_>>()
        };
        let amend = |event: &Event| {
            Some(Event {
                message: "amended".to_owned(),
                ..event.clone()
            })
        };
        for (after, right) in [
            (Some(13), &[][..]),
            (Some(12), &[13]),
            (None, &[11, 12, 13]),
        ] {
            log.amend(after, amend);
            assert_eq!(amended(), right);
        }
    }

    #[test]
    fn a_reader_that_resumes_misses_nothing_of_the_next_agent() {
        let start = Duration::from_secs(1_700_000_000);
        let earlier = EventLog::begin(start);
        for second in 0..8 {
            earlier.append(event(EventKind::Pod, second));
        }
        let next = EventLog::begin(start + Duration::from_millis(1));
        next.append(event(EventKind::Pod, 8));
        let resume = EventFilter {
            after: Some(earlier.last_sequence()),
            ..EventFilter::default()
        };
        assert_eq!(next.snapshot(&resume).len(), 1);
    }

    #[tokio::test]
    async fn a_slow_follower_is_told_how_many_records_it_missed() {
        let log = EventLog::new(4, 0);
        let mut follower = log.subscribe(filter(&[EventKind::Process]));
        log.append(event(EventKind::Process, 1));
        assert_eq!(sequences(&follower.next_batch(16).await), [1]);
        for second in 2..12 {
            log.append(event(EventKind::Process, second));
        }
        let batch = follower.next_batch(16).await;
        assert_eq!(sequences(&batch), [7, 8, 9, 10, 11]);
        assert_eq!(
            batch[0].event.detail,
            Some(EventDetail::Dropped { count: 6 })
        );
    }

    #[tokio::test]
    async fn a_follower_of_rare_kinds_sleeps_through_a_storm() {
        let log = EventLog::new(4, 0);
        let mut follower = log.subscribe(filter(&[EventKind::Oom]));
        {
            let mut next = std::pin::pin!(follower.next_batch(16));
            for second in 0..10 {
                log.append(event(EventKind::Process, second));
                let polled = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
                assert!(polled.is_pending(), "woken by a process");
            }
        }
        log.append(event(EventKind::Oom, 10));
        assert_eq!(sequences(&follower.next_batch(16).await), [11]);
    }

    #[test]
    fn followers_of_frequent_kinds_are_known_while_they_are_there() {
        let log = EventLog::new(4, 0);
        let rare = log.subscribe(filter(&[EventKind::Oom]));
        assert!(!log.is_followed());
        let frequent = log.subscribe(filter(&[EventKind::Process]));
        let all = log.subscribe(EventFilter::default());
        drop(frequent);
        assert!(log.is_followed());
        drop((all, rare));
        assert!(!log.is_followed());
    }

    #[tokio::test]
    async fn a_follower_wakes_for_an_event_of_another_thread() {
        let log = EventLog::new(4, 0);
        let mut follower = log.subscribe(EventFilter::default());
        let appender = log.clone();
        let thread = std::thread::spawn(move || appender.append(event(EventKind::Oom, 1)));
        let batch = tokio::time::timeout(Duration::from_secs(60), follower.next_batch(16)).await;
        assert_eq!(batch.map(|it| sequences(&it)), Ok(vec![1]));
        assert_eq!(thread.join().ok(), Some(1));
    }
}
