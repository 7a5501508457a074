//! The thread that keeps a forensic record of every OOM kill. In: kills as the listener attributed
//! them. Out: files of the ring, and the counts of kills for the next agent.
//!
//! Invariant: nobody waits for this thread. A kill that finds the queue full has no record and is
//! counted as dropped; kept, coalesced and dropped together are the kills.
//!
//! What a record knows without reading a file is written first, for every kill that waits. The scene,
//! which takes longest on a node that is short of memory, is read when no kill waits, within a bound,
//! and the record is written again. A record is on disk before anything of it is synced, which takes
//! longer than a record has time and is left to a second thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Loop;
use super::kernel::Shared;
use crate::apply::checkpoint;
use crate::apply::oom_ring::{self, OomRing};
use crate::decide::attribution::CgroupIndex;
use crate::decide::oom_bursts::{OomBursts, WINDOW};
use crate::model::event::OomKill;
use crate::model::forensics::{
    AgentState, CgroupUse, LaterVictim, OomRecord, Part, RecordId, Scene, Trend,
};
use crate::model::history::History;
use crate::model::record::{Event, EventDetail};
use crate::model::saved_counts::{KIND, SavedCounts, VERSION};
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::RecordResult;
use crate::observe::{chain, oom_records};
use crate::sources::checkpoint as stored;
use crate::sources::oom_scene::{Place, SceneReader, Usage};
use crate::sys::{FsError, Root, clock, durable};

/// The directory of the ring, and the file of the counts, in the state directory.
pub(super) const RECORDS: &str = "oom";
const COUNTS: &str = "oom-counts.json";

/// Kills that wait for the thread: twice what a second brings in a storm.
const QUEUE: usize = 2048;

/// Between two writes of one record, and of the counts: in a storm that is how much an agent that
/// dies takes along. A record has 100 ms.
const FLUSH: Duration = Duration::from_millis(20);

/// How long a record stays in memory: the time in which kills join it, and that in which they wait.
const OPEN: Duration = WINDOW.saturating_add(Duration::from_millis(500));

/// The parts of a record that are read from files.
const SCENE: [Part; 5] = [
    Part::Siblings,
    Part::Children,
    Part::Pods,
    Part::Processes,
    Part::Stat,
];

/// No part of a scene is begun this long after the first one: a node that is short of memory can take
/// a second for what takes a millisecond otherwise, and the next kill waits meanwhile.
const SCENE_TIME: Duration = Duration::from_millis(50);

/// What the files say this long after a kill is no longer about it: it happened while no agent ran.
const STALE: Duration = Duration::from_secs(2);

/// Files that wait to be synced.
const TO_SYNC: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum ForensicsError {
    #[error("open the ring of OOM records")]
    Ring(#[source] FsError),
    #[error("start a thread")]
    Thread(#[source] io::Error),
}

/// What the watcher and the loop know, for whoever asks what led up to a kill.
#[derive(Debug, Default)]
pub(super) struct Background {
    pub(super) history: RwLock<History>,
    pub(super) agent: RwLock<AgentState>,
}

impl Background {
    fn trend(&self, event: &Event) -> Trend {
        let history = self.history.read().unwrap_or_else(PoisonError::into_inner);
        let pod = event.pod.as_ref();
        Trend {
            node: history.node(event.boottime_ns),
            pod: pod.map_or_else(Vec::new, |it| history.pod(&it.uid, event.boottime_ns)),
        }
    }

    fn agent(&self) -> AgentState {
        let agent = self.agent.read().unwrap_or_else(PoisonError::into_inner);
        agent.clone()
    }
}

/// A kill on its way to the thread.
#[derive(Clone, Debug)]
struct Kill {
    id: RecordId,
    event: Event,
    /// Paths from the cgroup mount.
    victim_path: Option<String>,
    pod_path: Option<String>,
}

/// The listener's end.
pub(super) struct Recorder {
    bursts: OomBursts,
    queue: SyncSender<Kill>,
    metrics: Metrics,
}

impl Recorder {
    /// Notes in the event which record the kill comes to. A victim that was exiting anyway is no
    /// kill.
    pub(super) fn number(&mut self, kill: &OomKill, event: &mut Event) {
        if !kill.was_exiting {
            set_record(event, Some(self.bursts.record_of(kill)));
        }
    }

    /// Hands a numbered kill over. Never waits: one for which there is no room has no record.
    pub(super) fn take(&self, kill: &OomKill, event: &mut Event, index: &CgroupIndex) {
        let Some(id) = record_of(event) else {
            return;
        };
        let victim = index.attribute(&kill.victim_cgroup);
        let handed = Kill {
            id,
            event: event.clone(),
            victim_path: victim.owner().map(|it| it.path.clone()),
            pod_path: index.pod_of(&kill.victim_cgroup).map(|it| it.path.clone()),
        };
        if self.queue.try_send(handed).is_err() {
            self.metrics.oom_records(RecordResult::Dropped, 1);
            set_record(event, None);
        }
    }
}

fn record_of(event: &Event) -> Option<RecordId> {
    match &event.detail {
        Some(EventDetail::Oom(detail)) => detail.record_id,
        _ => None,
    }
}

fn set_record(event: &mut Event, id: Option<RecordId>) {
    if let Some(EventDetail::Oom(detail)) = &mut event.detail {
        detail.record_id = id;
    }
}

/// Waits, when dropped, until everything that was handed over is on disk. To be dropped after the
/// [`Recorder`].
pub(super) struct KeeperHandle(Option<JoinHandle<()>>);

impl Drop for KeeperHandle {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic there has been reported by then.
            thread.join().ok();
        }
    }
}

impl Loop {
    /// See [`start`]; tells what was wrong.
    pub(super) fn keep_oom_records(&self) -> Result<Started, ForensicsError> {
        let trees = Arc::clone(self.node.reader.trees());
        let started = start(
            &self.config.state_directory,
            SceneReader::new(trees, Root::host()),
            Arc::clone(&self.shared),
            Arc::clone(&self.background),
            self.metrics.clone(),
        )?;
        for fault in &started.faults {
            self.told.node("OomRecordsDamaged", fault.clone());
        }
        Ok(started)
    }
}

/// The two ends, and what to tell of what was found.
pub(super) struct Started {
    pub(super) recorder: Recorder,
    pub(super) handle: KeeperHandle,
    pub(super) faults: Vec<String>,
}

/// Opens the ring below the state directory, puts the counts of the last agent into the metrics, and
/// starts the thread.
pub(super) fn start(
    state: &Path,
    reader: SceneReader,
    shared: Arc<Shared>,
    background: Arc<Background>,
    metrics: Metrics,
) -> Result<Started, ForensicsError> {
    let directory = state.join(RECORDS);
    let opened = OomRing::open(&directory, oom_ring::DEFAULT_BYTES);
    let (ring, found) = opened.map_err(ForensicsError::Ring)?;
    let mut faults = Vec::new();
    if found.n_damaged > 0 {
        let n = found.n_damaged;
        faults.push(format!("{n} OOM records are damaged and set aside"));
    }
    let counts = state.join(COUNTS);
    faults.extend(restore_counts(&counts, &metrics));
    let (queue, kills) = mpsc::sync_channel(QUEUE);
    let recorder = Recorder {
        bursts: OomBursts::new(ring.next_id()),
        queue,
        metrics: metrics.clone(),
    };
    let (to_sync, files) = mpsc::sync_channel(TO_SYNC);
    let syncer = spawn("oom-sync", move || sync_all(&files))?;
    let keeper = Keeper {
        ring,
        directory,
        counts,
        reader,
        shared,
        background,
        metrics,
        open: BTreeMap::new(),
        counts_due: None,
        counts_saved: Duration::ZERO,
        to_sync,
    };
    let thread = spawn("oom-records", move || {
        keeper.work(&kills);
        syncer.join().ok();
    })?;
    Ok(Started {
        recorder,
        handle: KeeperHandle(Some(thread)),
        faults,
    })
}

fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ForensicsError> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map_err(ForensicsError::Thread)
}

/// Returns what was wrong with them.
fn restore_counts(path: &Path, metrics: &Metrics) -> Option<String> {
    match stored::read::<SavedCounts>(path, KIND, VERSION) {
        Ok(saved) => {
            metrics.restore_oom_counts(&saved, clock::boottime());
            None
        }
        Err(stored::CheckpointError::File(error)) if error.is_gone() => None,
        Err(error) => {
            let aside = checkpoint::set_aside(path).map_err(|error| chain(&error));
            let what = match aside {
                Ok(()) => "it is set aside".to_owned(),
                Err(why) => why,
            };
            Some(format!("{}; {what}; OOM kills count from 0", chain(&error)))
        }
    }
}

fn sync_all(files: &Receiver<PathBuf>) {
    for path in files {
        match durable::sync(&path) {
            Ok(()) => {}
            // Removed since, to make room.
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::warn!(error = chain(&error), "sync an OOM record"),
        }
    }
}

/// A record that kills may still join.
struct Open {
    record: OomRecord,
    /// The kill whose scene is still to be read.
    scene_of: Option<Kill>,
    until: Duration,
    is_on_disk: bool,
    /// The record is not what is on disk, be it without a further kill.
    is_changed: bool,
    /// Kills in it that are not on disk yet.
    unwritten: u64,
    /// When it may be written again.
    write_at: Duration,
}

struct Keeper {
    ring: OomRing,
    directory: PathBuf,
    counts: PathBuf,
    reader: SceneReader,
    shared: Arc<Shared>,
    background: Arc<Background>,
    metrics: Metrics,
    open: BTreeMap<RecordId, Open>,
    /// When the counts are to be saved, and when they last were.
    counts_due: Option<Duration>,
    counts_saved: Duration,
    to_sync: SyncSender<PathBuf>,
}

impl Keeper {
    /// Until the listener is gone.
    fn work(mut self, kills: &Receiver<Kill>) {
        while self.step(kills) {}
        while self.read_scene() {}
        self.write_due(Duration::MAX);
    }

    /// Takes one kill, or reads one scene where none waits, and writes what is due. False: nobody
    /// hands kills over any more.
    fn step(&mut self, kills: &Receiver<Kill>) -> bool {
        let has_scenes = self.open.values().any(|it| it.scene_of.is_some());
        let due = if has_scenes {
            Some(Duration::ZERO)
        } else {
            self.next_due()
        };
        let received = match due {
            Some(due) => kills.recv_timeout(due.saturating_sub(clock::boottime())),
            None => kills.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(kill) => self.take(kill),
            Err(RecvTimeoutError::Timeout) => {
                self.read_scene();
            }
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        self.write_due(clock::boottime());
        true
    }

    fn next_due(&self) -> Option<Duration> {
        let due = |it: &Open| match it.is_changed {
            false => it.until,
            true => it.write_at,
        };
        self.open.values().map(due).chain(self.counts_due).min()
    }

    fn take(&mut self, kill: Kill) {
        let now = clock::boottime();
        let until = now + OPEN;
        if let Some(open) = self.open.get_mut(&kill.id) {
            join(open, &kill.event);
            return;
        }
        // A kill that waited so long that its record is closed.
        let closed = self
            .ring
            .has(kill.id)
            .then(|| oom_records::read(&self.directory, kill.id));
        let open = match closed.flatten() {
            Some(record) => {
                let mut open = Open {
                    record,
                    scene_of: None,
                    until,
                    is_on_disk: true,
                    is_changed: false,
                    unwritten: 0,
                    write_at: now,
                };
                join(&mut open, &kill.event);
                open
            }
            None => Open {
                record: self.record(&kill, now),
                until,
                is_on_disk: false,
                is_changed: true,
                unwritten: 1,
                write_at: now,
                scene_of: (!is_stale(&kill, now)).then_some(kill.clone()),
            },
        };
        self.open.insert(kill.id, open);
    }

    /// The record of a kill without its scene.
    fn record(&self, kill: &Kill, now: Duration) -> OomRecord {
        let at = Duration::from_nanos(kill.event.boottime_ns);
        let (agent, cut) = match is_stale(kill, now) {
            true => (AgentState::default(), BTreeSet::from(Part::ALL)),
            false => (self.background.agent(), BTreeSet::from(SCENE)),
        };
        let took = clock::boottime().saturating_sub(at);
        OomRecord {
            id: kill.id,
            event: kill.event.clone(),
            n_kills: 1,
            more_victims: Vec::new(),
            recorded_after_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            scene: Scene::default(),
            trend: self.background.trend(&kill.event),
            agent,
            cut,
        }
    }

    /// Reads the scene of the first record that waits for it. False: none does.
    fn read_scene(&mut self) -> bool {
        let mut open = self.open.values_mut();
        let found = open.find_map(|it| Some((it.record.id, it.scene_of.take()?)));
        let Some((id, kill)) = found else {
            return false;
        };
        if is_stale(&kill, clock::boottime()) {
            return true;
        }
        let (scene, cut) = self.scene(&kill);
        if let Some(open) = self.open.get_mut(&id) {
            open.record.scene = scene;
            open.record.cut = cut;
            open.is_changed = true;
            open.write_at = clock::boottime();
        }
        true
    }

    /// The scene of a kill, and the parts that there was no time for.
    fn scene(&self, kill: &Kill) -> (Scene, BTreeSet<Part>) {
        let until = clock::boottime() + SCENE_TIME;
        let limit = match &kill.event.detail {
            Some(EventDetail::Oom(detail)) => detail.limit.as_ref(),
            _ => None,
        };
        let place = Place {
            limit: limit.and_then(|it| it.cgroup_path.as_deref()),
            victim: kill.victim_path.as_deref(),
            pod: kill.pod_path.as_deref(),
        };
        let mut cut = BTreeSet::from(SCENE);
        let mut has_time = |part| {
            let has_time = clock::boottime() < until;
            if has_time {
                cut.remove(&part);
            }
            has_time
        };
        // Processes come first, since they are about to be gone.
        let processes = has_time(Part::Processes).then(|| self.reader.processes(place));
        let mut scene = match has_time(Part::Stat) {
            true => self.reader.scene(place),
            false => Scene::default(),
        };
        (scene.processes, scene.n_processes) = processes.unwrap_or_default();
        if has_time(Part::Siblings)
            && has_time(Part::Children)
            && let Some(limit) = place.limit
        {
            let around = self.reader.around(limit);
            scene.siblings = self.named(around.siblings);
            scene.children = self.named(around.children);
        }
        if has_time(Part::Pods) {
            let pods = self.shared.index().pods();
            let pods = self.reader.usages(pods.iter().map(|it| it.path.as_str()));
            scene.pods = self.named(pods);
        }
        (scene, cut)
    }

    /// Says whose they are.
    fn named(&self, usages: Vec<Usage>) -> Vec<CgroupUse> {
        let index = self.shared.index();
        let named = usages.into_iter().map(|it| {
            let owner = index.get(it.id);
            CgroupUse {
                cgroup_path: it.cgroup_path,
                usage_bytes: it.bytes,
                pod: owner.and_then(|it| it.pod()).map(|it| (**it).clone()),
                container: owner.and_then(|it| it.container()).map(str::to_owned),
            }
        });
        named.collect()
    }

    /// Writes what is due at `now`, and closes what no kill can join any more.
    fn write_due(&mut self, now: Duration) {
        let mut open = std::mem::take(&mut self.open);
        open.retain(|id, it| {
            let is_over = it.until <= now;
            if it.is_changed && (is_over || it.write_at <= now) {
                self.write(*id, it);
            }
            if is_over {
                self.sync_later(self.ring.path(*id));
            }
            !is_over
        });
        self.open = open;
        if self.counts_due.is_some_and(|due| due <= now) {
            self.save_counts();
        }
    }

    fn write(&mut self, id: RecordId, open: &mut Open) {
        let unwritten = std::mem::take(&mut open.unwritten);
        open.is_changed = false;
        open.write_at = clock::boottime() + FLUSH;
        // At once if they are older than a storm would have them saved.
        self.counts_due.get_or_insert(self.counts_saved + FLUSH);
        match self.ring.write(id, &open.record.seal()) {
            Ok(()) => {
                let n_kept = u64::from(!open.is_on_disk);
                open.is_on_disk = true;
                self.metrics.oom_records(RecordResult::Kept, n_kept);
                let joined = unwritten.saturating_sub(n_kept);
                self.metrics.oom_records(RecordResult::Coalesced, joined);
            }
            Err(error) => {
                tracing::error!(%id, error = chain(&error), "write an OOM record");
                self.metrics.oom_records(RecordResult::Dropped, unwritten);
            }
        }
    }

    fn save_counts(&mut self) {
        self.counts_due = None;
        self.counts_saved = clock::boottime();
        let counts = self.metrics.oom_counts();
        match checkpoint::replace(&self.counts, KIND, VERSION, &counts) {
            Ok(()) => self.sync_later(self.counts.clone()),
            Err(error) => tracing::error!(error = chain(&error), "save the counts of OOM kills"),
        }
    }

    /// Where the disk is so slow that the queue is full, the kernel syncs it within half a minute.
    fn sync_later(&self, path: PathBuf) {
        self.to_sync.try_send(path).ok();
    }
}

/// Whether what the files say now is of another time.
fn is_stale(kill: &Kill, now: Duration) -> bool {
    now.saturating_sub(Duration::from_nanos(kill.event.boottime_ns)) > STALE
}

fn join(open: &mut Open, event: &Event) {
    open.unwritten += 1;
    open.is_changed = true;
    let Some(EventDetail::Oom(detail)) = &event.detail else {
        return;
    };
    open.record.add_victim(LaterVictim {
        boottime_ns: event.boottime_ns,
        pod: event.pod.clone(),
        container: event.container.clone(),
        pid: detail.victim.pid,
        comm: detail.victim.comm.clone(),
        anon_bytes: detail.victim.memory.anon_bytes,
    });
}

#[cfg(test)]
mod tests;
