//! The thread that keeps a forensic record of every OOM kill. In: kills as the listener attributed
//! them. Out: files of the ring, and the counts of kills for the next agent.
//!
//! Invariant: nobody waits for this thread. A kill that finds the queue full has no record and is
//! counted as dropped; kept, coalesced and dropped together are the kills.
//!
//! What a record knows without reading a file is written at once. The scene, which takes longest on a
//! node that is short of memory, is read by a second thread, and the record is written again: no kill
//! waits for the scene of another. A record is on disk before anything of it is synced, which takes
//! longer than a record has time and is left to a third thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::kernel::Shared;
use super::node::Node;
use super::told::Told;
use crate::apply::checkpoint;
use crate::apply::oom_ring::OomRing;
use crate::config::Config;
use crate::decide::missed_kills::Earlier;
use crate::decide::oom_bursts::{OomBursts, WINDOW};
use crate::model::attribution::{OomAttribution, Owner};
use crate::model::event::OomKill;
use crate::model::forensics::{
    AgentState, Counted, LaterVictim, OomRecord, Part, RecordId, Scene, Trend,
};
use crate::model::history::{History, NodeSample};
use crate::model::record::{Event, EventDetail};
use crate::model::saved_counts::{KIND, OpenKills, SavedCounts, VERSION};
use crate::observe::chain;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::RecordResult;
use crate::observe::oom_records::{self, NumberedKill};
use crate::sources::checkpoint as stored;
use crate::sources::oom_scene::SceneReader;
use crate::sys::{FsError, Root, clock, durable};

mod scenes;

use scenes::{SceneOf, Scenes};

/// The directory of the ring, and the file of the counts, in the state directory.
pub(super) const RECORDS: &str = "oom";
const COUNTS: &str = "oom-counts.json";

/// Kills that wait for the thread: twice what a second brings in a storm. They are boxed, since a bounded
/// channel has all its places from the start.
const QUEUE: usize = 2048;

/// Between two writes of one record, and of the counts: in a storm that is how much an agent that
/// dies takes along. A record has 100 ms.
const FLUSH: Duration = Duration::from_millis(20);

/// Counts that could not be saved are tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a record stays in memory: the time in which kills join it, and that in which they wait.
const OPEN: Duration = WINDOW.saturating_add(Duration::from_millis(500));

/// What the files say this long after a kill is no longer about it: it happened while no agent ran.
const STALE: Duration = Duration::from_secs(2);

/// Files that wait to be synced.
const TO_SYNC: usize = 256;

/// Between two rounds of syncs: each has the disk write the journal that everybody's files share.
const SYNC_EVERY: Duration = Duration::from_secs(1);

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
    pub(super) fn push_node(&self, sample: NodeSample) {
        let mut history = self.history.write().unwrap_or_else(PoisonError::into_inner);
        history.push_node(sample);
    }

    fn trend(&self, event: &Event) -> Trend {
        let history = self.history.read().unwrap_or_else(PoisonError::into_inner);
        let uid = event.uid();
        Trend {
            node: history.node(event.boottime_ns),
            pod: uid.map_or_else(Vec::new, |it| history.pod(it, event.boottime_ns)),
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
    counted: Option<Counted>,
    /// Paths from the cgroup mount.
    victim_path: Option<String>,
    pod_path: Option<String>,
}

/// What the thread is to do.
#[derive(Debug)]
enum Job {
    Record(Box<Kill>),
    /// Counts changed without a record.
    SaveCounts,
}

/// Has the counts of kills saved that have no record.
pub(super) struct CountSaver(SyncSender<Job>);

impl CountSaver {
    /// Never waits: a full queue has them saved as well.
    pub(super) fn save(&self) {
        self.0.try_send(Job::SaveCounts).ok();
    }
}

/// The listener's end.
pub(super) struct Recorder {
    bursts: OomBursts,
    queue: SyncSender<Job>,
    metrics: Metrics,
}

impl Recorder {
    pub(super) fn saver(&self) -> CountSaver {
        CountSaver(self.queue.clone())
    }

    /// Notes in the event which record the kill comes to. A victim that was exiting anyway is no
    /// kill.
    pub(super) fn number(&mut self, kill: &OomKill, event: &mut Event) {
        if !kill.was_exiting {
            set_record(event, Some(self.bursts.record_of(kill)));
        }
    }

    /// Hands a numbered kill over. Never waits: one for which there is no room has no record.
    pub(super) fn take(
        &self,
        event: &mut Event,
        attribution: &OomAttribution,
        counted: Option<Counted>,
    ) {
        let Some(id) = record_of(event) else {
            return;
        };
        let path = |it: &Arc<Owner>| it.path.to_string();
        let handed = Kill {
            id,
            event: event.clone(),
            counted,
            victim_path: attribution.victim.owner.as_ref().map(path),
            pod_path: attribution.pod.as_ref().map(path),
        };
        let job = Job::Record(Box::new(handed));
        if self.queue.try_send(job).is_err() {
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

/// The two ends, and what to tell of what was found.
pub(super) struct Started {
    pub(super) recorder: Recorder,
    pub(super) handle: KeeperHandle,
    faults: Vec<String>,
}

/// Keeps the records of a node's OOM kills, and tells what was wrong with those that are there.
pub(super) fn keep(
    config: &Config,
    node: &Node,
    shared: &Arc<Shared>,
    background: &Arc<Background>,
    metrics: &Metrics,
    told: &Told,
) -> Result<Started, ForensicsError> {
    let trees = Arc::clone(node.reader.trees());
    let started = start(
        &config.state_directory,
        config.oom_records.max_bytes,
        SceneReader::new(trees, Root::host()),
        node.identity.boot_id.clone(),
        Arc::clone(shared),
        Arc::clone(background),
        metrics.clone(),
    )?;
    for fault in &started.faults {
        told.node("OomRecordsDamaged", fault.clone());
    }
    Ok(started)
}

/// Opens the ring of at most `max_bytes` below the state directory, puts the counts of the last agent
/// into the metrics, and starts the thread.
fn start(
    state: &Path,
    max_bytes: u64,
    reader: SceneReader,
    boot_id: Option<String>,
    shared: Arc<Shared>,
    background: Arc<Background>,
    metrics: Metrics,
) -> Result<Started, ForensicsError> {
    let directory = state.join(RECORDS);
    let opened = OomRing::open(&directory, max_bytes);
    let (ring, found) = opened.map_err(ForensicsError::Ring)?;
    let mut faults = Vec::new();
    if found.n_damaged > 0 {
        let n = found.n_damaged;
        faults.push(format!("{n} OOM records are damaged and set aside"));
    }
    if let Some(why) = found.fault {
        faults.push(format!("OOM records are left as they are: {why}"));
    }
    let counts = state.join(COUNTS);
    let (saved, is_kept, fault) = match restore_counts(&counts, &metrics) {
        Ok(saved) => (saved, false, None),
        Err(unread) => (
            SavedCounts::default(),
            unread.is_kept,
            Some(unread.to_string()),
        ),
    };
    faults.extend(fault);
    *shared.kill_counts.telling() = saved.last_number().unwrap_or_default();
    if let Some(boot_id) = &boot_id {
        resume_counts(&saved, boot_id, &shared);
        let is_known = saved.last_number().is_some();
        count_unsaved(&directory, boot_id, is_known, &shared, &metrics);
    }
    let (queue, jobs) = mpsc::sync_channel(QUEUE);
    let recorder = Recorder {
        bursts: OomBursts::new(ring.next_id()),
        queue,
        metrics: metrics.clone(),
    };
    let (to_sync, files) = mpsc::sync_channel(TO_SYNC);
    let syncer = spawn("oom-sync", move || sync_all(&files, sync))?;
    let (to_read, asked) = mpsc::sync_channel(QUEUE);
    let (read, scenes) = mpsc::channel();
    let reader = Scenes::new(reader, Arc::clone(&shared));
    // Ends when the keeper has.
    spawn("oom-scenes", move || reader.work(&asked, &read))?;
    let keeper = Keeper {
        ring,
        directory,
        counts: (!is_kept).then_some(counts),
        background,
        shared,
        boot_id,
        metrics,
        open: BTreeMap::new(),
        to_read,
        scenes,
        counts_due: None,
        counts_saved: Duration::ZERO,
        to_sync,
    };
    let thread = spawn("oom-records", move || {
        keeper.work(&jobs);
        syncer.join().ok();
    })?;
    Ok(Started {
        recorder,
        handle: KeeperHandle(Some(thread)),
        faults,
    })
}

/// Whose kills are known goes on, and whose are not known yet.
fn resume_counts(saved: &SavedCounts, boot_id: &str, shared: &Shared) {
    let Some(known) = saved.known_kills(boot_id) else {
        return;
    };
    shared.kill_counts.resume_from(saved.counted_until(boot_id));
    let roots = saved.roots();
    let open = saved.open_kills(boot_id);
    let mut index = shared.index_mut();
    for (id, open) in &open {
        let path = open.path.as_ref();
        let owner = path.and_then(|it| roots.iter().find_map(|root| Owner::at(it, root)));
        if let Some(owner) = owner {
            index.insert(*id, owner);
            index.retire(*id);
        }
    }
    drop(index);
    shared.kill_counts.resume(Earlier {
        known,
        open,
        roots,
        has_pods: saved.has_pods(),
    });
}

/// Kills that an agent has on record and had not counted when it last saved its counts. `is_known`: the last number that
/// it had; else nobody knows what was counted.
fn count_unsaved(
    directory: &Path,
    boot_id: &str,
    is_known: bool,
    shared: &Shared,
    metrics: &Metrics,
) {
    let kills = &shared.kill_counts;
    let mut last = kills.telling();
    let later = oom_records::numbered_after(directory, boot_id, *last);
    let later = later.unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "look for kills that are not counted");
        Vec::new()
    });
    for NumberedKill {
        event,
        counted,
        is_first,
    } in later
    {
        *last = counted.number.max(*last);
        let Some(EventDetail::Oom(detail)) = event.detail.as_ref().filter(|_| is_known) else {
            continue;
        };
        kills.report_again(&counted, Duration::from_nanos(event.boottime_ns));
        metrics.oom_kill(&event, detail, counted.workload.as_ref());
        if let Some(uid) = event.uid() {
            let container = event.container_id.as_deref().or(event.container.as_deref());
            metrics.oom_kills_by_id(uid, container, 1);
        }
        let result = match is_first {
            true => RecordResult::Kept,
            false => RecordResult::Coalesced,
        };
        metrics.oom_records(result, 1);
    }
}

fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ForensicsError> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map_err(ForensicsError::Thread)
}

/// Counts that were saved and are not known.
struct Unread {
    why: String,
    /// The kernel failed to read them: the next start may succeed.
    is_kept: bool,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = &self.why;
        match self.is_kept {
            true => write!(
                f,
                "{why}; it stays as it is; OOM kills count from 0 and are not saved until the agent is started again \
                 and can read it"
            ),
            false => write!(f, "{why}; OOM kills count from 0"),
        }
    }
}

/// Gives what was saved, or what was wrong with it.
fn restore_counts(path: &Path, metrics: &Metrics) -> Result<SavedCounts, Unread> {
    match stored::read::<SavedCounts>(path, KIND, VERSION) {
        Ok(saved) => {
            metrics.restore_oom_counts(&saved, clock::boottime());
            Ok(saved)
        }
        Err(stored::CheckpointError::File(error)) if error.is_gone() => Ok(SavedCounts::default()),
        Err(error) if !error.is_damage() => Err(Unread {
            why: chain(&error),
            is_kept: true,
        }),
        Err(error) => {
            let aside = checkpoint::set_aside(path).map_err(|error| chain(&error));
            let what = match aside {
                Ok(()) => "it is set aside".to_owned(),
                Err(why) => why,
            };
            Err(Unread {
                why: format!("{}; {what}", chain(&error)),
                is_kept: false,
            })
        }
    }
}

/// The first at once, and what comes soon after it together, each file once.
fn sync_all(files: &Receiver<PathBuf>, mut sync: impl FnMut(&Path)) {
    let mut waiting = BTreeSet::new();
    loop {
        if waiting.is_empty() {
            let Ok(path) = files.recv() else { return };
            waiting.insert(path);
        }
        for path in std::mem::take(&mut waiting) {
            sync(&path);
        }
        let until = clock::boottime() + SYNC_EVERY;
        while let Ok(path) = files.recv_timeout(until.saturating_sub(clock::boottime())) {
            waiting.insert(path);
        }
    }
}

fn sync(path: &Path) {
    match durable::sync(path) {
        Ok(()) => {}
        // Removed since, to make room.
        Err(error) if error.is_gone() => {}
        Err(error) => tracing::warn!(error = chain(&error), "sync an OOM record"),
    }
}

/// A record that kills may still join.
struct Open {
    record: OomRecord,
    awaits_scene: bool,
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
    /// `None`: what is there could not be read, and is not written over.
    counts: Option<PathBuf>,
    background: Arc<Background>,
    shared: Arc<Shared>,
    /// `None`: nobody knows, and no cgroup id means anything to the next agent.
    boot_id: Option<String>,
    metrics: Metrics,
    open: BTreeMap<RecordId, Open>,
    /// Kills whose scene is to be read, and the scenes that were.
    to_read: SyncSender<Box<Kill>>,
    scenes: Receiver<SceneOf>,
    /// When the counts are to be saved, and when they last were.
    counts_due: Option<Duration>,
    counts_saved: Duration,
    to_sync: SyncSender<PathBuf>,
}

impl Keeper {
    /// Until the listener is gone.
    fn work(mut self, jobs: &Receiver<Job>) {
        while self.step(jobs) {}
        // Before anything is waited for: a scene may take long on a node that is short of everything.
        self.write_due(clock::boottime() + FLUSH);
        self.save_counts_if_due(clock::boottime() + FLUSH, jobs);
        while self.awaits_scene()
            && let Ok(scene) = self.scenes.recv_timeout(STALE)
        {
            self.add(scene);
        }
        self.write_due(Duration::MAX);
        self.save_counts_if_due(Duration::MAX, jobs);
    }

    /// Takes one job and the scenes that were read, and writes what is due. False: nobody hands kills
    /// over any more.
    fn step(&mut self, jobs: &Receiver<Job>) -> bool {
        let received = match self.next_due() {
            Some(due) => jobs.recv_timeout(due.saturating_sub(clock::boottime())),
            None => jobs.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(Job::Record(kill)) => self.take(*kill),
            Ok(Job::SaveCounts) => self.save_soon(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        while let Ok(scene) = self.scenes.try_recv() {
            self.add(scene);
        }
        let now = clock::boottime();
        self.write_due(now);
        self.save_counts_if_due(now, jobs);
        true
    }

    fn awaits_scene(&self) -> bool {
        self.open.values().any(|it| it.awaits_scene)
    }

    fn next_due(&self) -> Option<Duration> {
        let due = |it: &Open| match it.is_changed {
            false => it.until,
            true => it.write_at,
        };
        let look = self.awaits_scene().then(|| clock::boottime() + FLUSH);
        let open = self.open.values().map(due);
        open.chain(self.counts_due).chain(look).min()
    }

    fn take(&mut self, kill: Kill) {
        let now = clock::boottime();
        let until = now + OPEN;
        if let Some(open) = self.open.get_mut(&kill.id) {
            join(open, &kill);
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
                    awaits_scene: false,
                    until,
                    is_on_disk: true,
                    is_changed: false,
                    unwritten: 0,
                    write_at: now,
                };
                join(&mut open, &kill);
                open
            }
            None => Open {
                record: self.record(&kill, now),
                awaits_scene: !is_stale(&kill, now)
                    && self.to_read.try_send(Box::new(kill.clone())).is_ok(),
                until,
                is_on_disk: false,
                is_changed: true,
                unwritten: 1,
                write_at: now,
            },
        };
        self.open.insert(kill.id, open);
    }

    /// The record of a kill without its scene.
    fn record(&self, kill: &Kill, now: Duration) -> OomRecord {
        let at = Duration::from_nanos(kill.event.boottime_ns);
        let (agent, cut) = match is_stale(kill, now) {
            true => (AgentState::default(), BTreeSet::from(Part::ALL)),
            false => (self.background.agent(), BTreeSet::from(scenes::PARTS)),
        };
        let took = clock::boottime().saturating_sub(at);
        OomRecord {
            id: kill.id,
            boot_id: self.boot_id.clone(),
            event: kill.event.clone(),
            n_kills: 1,
            counted: kill.counted.clone(),
            more_victims: Vec::new(),
            recorded_after_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            scene: Scene::default(),
            trend: self.background.trend(&kill.event),
            agent,
            cut,
        }
    }

    /// Adds a scene to its record, unless it was too late for it.
    fn add(&mut self, scene: SceneOf) {
        let Some(open) = self.open.get_mut(&scene.id) else {
            return;
        };
        open.awaits_scene = false;
        if let Some((scene, cut)) = scene.scene {
            open.record.scene = scene;
            open.record.cut = cut;
            open.is_changed = true;
            open.write_at = clock::boottime();
        }
    }

    /// Writes what is due at `now`, and closes what no kill can join any more.
    fn write_due(&mut self, now: Duration) {
        let mut open = std::mem::take(&mut self.open);
        open.retain(|id, it| {
            let is_over = match it.awaits_scene {
                true => it.until + STALE <= now,
                false => it.until <= now,
            };
            let is_due = it.is_changed && it.write_at <= now;
            if is_due || is_over && (it.is_changed || it.unwritten > 0) {
                self.write(*id, it);
            }
            if is_over {
                self.metrics
                    .oom_records(RecordResult::Dropped, it.unwritten);
                self.sync_later(self.ring.path(*id));
            }
            !is_over
        });
        self.open = open;
    }

    /// What is counted is on record before its count is saved: the next agent tells what it finds there.
    fn write_all(&mut self, jobs: &Receiver<Job>) {
        for job in jobs.try_iter() {
            match job {
                Job::Record(kill) => self.take(*kill),
                Job::SaveCounts => self.save_soon(),
            }
        }
        let mut open = std::mem::take(&mut self.open);
        for (id, it) in &mut open {
            if it.is_changed {
                self.write(*id, it);
            }
        }
        self.open = open;
    }

    fn write(&mut self, id: RecordId, open: &mut Open) {
        open.is_changed = false;
        open.write_at = clock::boottime() + FLUSH;
        self.save_soon();
        match self.ring.write(id, &open.record.seal()) {
            Ok(()) => {
                let n_kept = u64::from(!open.is_on_disk);
                open.is_on_disk = true;
                self.metrics.oom_records(RecordResult::Kept, n_kept);
                let unwritten = std::mem::take(&mut open.unwritten);
                let joined = unwritten.saturating_sub(n_kept);
                self.metrics.oom_records(RecordResult::Coalesced, joined);
            }
            Err(error) => {
                tracing::error!(%id, error = chain(&error), "write an OOM record");
            }
        }
    }

    /// At once if they are older than a storm would have them saved.
    fn save_soon(&mut self) {
        self.counts_due.get_or_insert(self.counts_saved + FLUSH);
    }

    fn save_counts_if_due(&mut self, now: Duration, jobs: &Receiver<Job>) {
        if self.counts_due.is_none_or(|due| due > now) {
            return;
        }
        self.counts_due = None;
        let Some(path) = self.counts.clone() else {
            self.write_all(jobs);
            let kills = &self.shared.kill_counts;
            let last = *kills.telling();
            kills.saved(last);
            return;
        };
        self.counts_saved = clock::boottime();
        // So that their results are among the counts; those that come meanwhile are few.
        self.write_all(jobs);
        let (counts, last) = self.counts_now();
        self.write_all(jobs);
        match checkpoint::replace(&path, KIND, VERSION, &counts) {
            Ok(()) => self.sync_later(path),
            Err(error) => {
                tracing::error!(error = chain(&error), "save the counts of OOM kills");
                self.counts_due = Some(self.counts_saved + AGAIN);
            }
        }
        self.shared.kill_counts.saved(last);
    }

    /// What is counted, and the number of the last kill in it.
    fn counts_now(&self) -> (SavedCounts, u64) {
        let kills = &self.shared.kill_counts;
        let last = kills.telling();
        let mut counts = self.metrics.oom_counts();
        counts.set_last_number(*last);
        if let (Some(known), Some(boot_id)) = (kills.known(), &self.boot_id) {
            let path = |id| Some(self.shared.index().get(id)?.owner?.path.clone());
            let open = kills.open().into_iter();
            let open = open.map(|(id, it)| {
                (
                    id,
                    OpenKills {
                        path: path(id),
                        ..it
                    },
                )
            });
            counts.set_known_kills(&known, boot_id);
            counts.set_open_kills(&open.collect(), boot_id);
            if kills.has_pods() {
                counts.set_of_pods();
            }
            counts.set_roots(&kills.roots());
            counts.set_counted_until(kills.counted_until(), boot_id);
        }
        (counts, *last)
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

fn join(open: &mut Open, kill: &Kill) {
    let event = &kill.event;
    open.unwritten += 1;
    open.is_changed = true;
    let Some(EventDetail::Oom(detail)) = &event.detail else {
        return;
    };
    open.record.add_victim(LaterVictim {
        boottime_ns: event.boottime_ns,
        pod: event.pod.clone(),
        container: event.container.clone(),
        pod_uid: event.pod_uid.clone(),
        container_id: event.container_id.clone(),
        pid: detail.victim.pid,
        comm: detail.victim.comm.clone(),
        anon_bytes: detail.victim.memory.anon_bytes,
        file_bytes: detail.victim.memory.file_bytes,
        shmem_bytes: detail.victim.memory.shmem_bytes,
        oom_score_adj: detail.victim.oom_score_adj,
        is_main_process: detail.victim.is_main_process,
        took_container: detail.victim.took_container,
        unknown_cgroup_id: detail.victim.unknown_cgroup_id,
        counted: kill.counted.clone(),
    });
}

#[cfg(test)]
mod tests;
