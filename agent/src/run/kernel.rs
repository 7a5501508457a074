//! The thread that listens to the kernel: drains the rings, attributes, records, counts, and tells what
//! there is to look at.
//!
//! It shares only the cgroup index with who decides: an OOM kill is attributed once, and on record before
//! anybody hears of it.

mod losses;
mod victims;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc,
};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

use self::losses::Losses;
use self::victims::Victims;
use super::forensics::Recorder;
use super::missed::KillCounts;
use super::worker::{Stop, Worker};
use crate::config::BpfConfig;
use crate::decide::attribution::CgroupIndex;
use crate::decide::kernel_records::{
    Handled, cgroup_record, oom_record, process_record, stall_record,
};
use crate::decide::node_oom::{self, Evidence};
use crate::decide::reclaim_stalls::ReclaimStalls;
use crate::model::attribution::{Attributed, OomAttribution};
use crate::model::event::{
    CgroupChange, CgroupEvent, CgroupId, CgroupLineage, ExitStatus, KernelEvent, OomKill,
    ProcessChange, ProcessEvent, ProcessKey, StallEvent,
};
use crate::model::record::{Event, EventDetail, EventKind};
use crate::model::time::WallTime;
use crate::observe::event_log::EventLog;
use crate::observe::metrics::labels::{self, LossReason, Source, SourceFault};
use crate::observe::metrics::{ContainerLabels, Metrics};
use crate::sources::bpf::{
    Drained, LoadError, LoadOptions, Pinning, ProgramReport, Stream, Streams, WatchedRoot,
};
use crate::sources::procfs;
use crate::sources::wakers::Bell;
use crate::sys::{Dir, Root, clock, syscall};

/// Events taken from one ring before the OOM ring is looked at again.
const BATCH: usize = 512;
/// Batches of each ring that are taken before anything else is done: more than any ring holds.
const MAX_BATCHES: u32 = 128;
/// Kills taken in one go: an agent that dies takes along those that it has not handed on.
const KILLS: usize = 16;

/// How long the end of a container waits for the kills before it; one takes less than a millisecond to be told.
const KILLS_PATIENCE: Duration = Duration::from_millis(500);

/// How often losses are read, and time in reclaim where it stands in for PSI.
const LOSSES_EVERY: Duration = Duration::from_secs(1);

/// Between two looks at the rings that nobody waits for: of processes, of cgroups. Their programs wake the
/// listener when a quarter of a ring waits.
const IDLE_MS: u16 = 1_000;
/// The same while somebody waits for what is in them.
const AWAITED_MS: u16 = 50;

/// How often the statistics of programs and maps are read; as often as the loop's full pass.
const STATISTICS_EVERY: Duration = Duration::from_secs(10);

/// 1: the kernel measures eBPF programs (Documentation/admin-guide/sysctl/kernel.rst).
const BPF_STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Bytes of the name of a cgroup in a record: one that long may be cut.
pub(super) const LONGEST_NAME: usize = ebpf_abi::CGROUP_NAME_LEN;

/// What the kernel told, for whoever decides. It says where to look.
pub(super) enum News<'a> {
    /// Recorded and counted already.
    Kill {
        kill: &'a OomKill,
        attribution: &'a OomAttribution,
    },
    /// Kills that the kernel counted and nobody reported. Recorded and counted already.
    Missed {
        n: u64,
        cgroup: &'a Attributed,
    },
    /// A process below the cgroup of all pods ended.
    Ended {
        process: ProcessKey,
        status: ExitStatus,
    },
    /// A cgroup below that of all pods was made. `name`: of its directory, cut where it is as long as
    /// [`LONGEST_NAME`].
    Made {
        cgroup: &'a CgroupLineage,
        name: &'a str,
    },
    /// The same of one of which nobody has told, as a kill in it tells: it may be gone by now.
    Met {
        cgroup: &'a CgroupLineage,
        name: &'a str,
    },
    /// A cgroup below that of all pods is gone.
    Gone(CgroupId),
    /// A process was put into a cgroup below that of all pods.
    Entered(CgroupId),
    /// A cgroup below that of all pods became empty.
    Emptied(CgroupId),
    /// Events of a stream were lost: look at what they may have told.
    Lost(Stream),
    Programs(Programs),
}

/// Says where to look. May wait, since the rings hold what comes meanwhile, but for `Entered`, `Emptied` and `Lost`:
/// false of `Lost` means that it is to be told again. Is not called with the index locked.
pub(super) type Tell = Box<dyn Fn(News<'_>) -> bool + Send>;

/// Where a cgroup lies that the kernel's filters take for one that is not below that of all pods, as far as it is that of
/// a pod all the same. Registers what it lies in. Is not called with the index locked.
pub(super) type Locate = Box<dyn Fn(CgroupId) -> Option<CgroupLineage> + Send>;

/// The eBPF programs are loaded, as far as this kernel takes them.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) reports: Vec<ProgramReport>,
    /// Of the program on the kubepods cgroup: `Err` says why it is not there. `None`: no cgroup2 hierarchy
    /// has kubepods.
    pub(super) device: Option<Result<(), String>>,
    /// One of these reports kills, or one of an earlier agent.
    pub(super) reports_kills: bool,
    /// Why some were not even tried.
    pub(super) fault: Option<String>,
    /// Whether they outlive the agent.
    pub(super) pinning: Pinning,
}

impl Programs {
    /// There is nothing to listen to.
    pub(super) fn none(why: &LoadError) -> Self {
        Self {
            reports: Vec::new(),
            device: None,
            reports_kills: false,
            fault: Some(crate::observe::chain(why)),
            pinning: Pinning::Off,
        }
    }
}

/// Whether the victim of a kill was the first process of its container. Whoever starts containers knows.
pub(super) type IsFirst = Box<dyn Fn(&OomKill) -> bool + Send>;

/// What the listener and the loop both know.
#[derive(Debug, Default)]
pub(super) struct Shared {
    index: RwLock<CgroupIndex>,
    /// Events lost so far, by the name of their stream.
    lost: Mutex<BTreeMap<String, u64>>,
    /// Rung for every event of reclaim, once somebody waits for it.
    reclaim_bell: OnceLock<Bell>,
    /// The kernel has no PSI: somebody asks for the time in reclaim.
    is_reclaim_counted: AtomicBool,
    reclaim_stalls: Mutex<Option<Arc<ReclaimStalls>>>,
    /// The cgroup of all pods was made again, and the listener has yet to follow.
    remade: Mutex<Option<Remade>>,
    /// Has the listener look at once; there once it waits.
    bell: OnceLock<Bell>,
    /// The loop waits for cgroups to become empty.
    is_emptying: AtomicBool,
    /// What was in the rings at this time, boottime, has been taken out. `None`: nobody listens.
    heard: watch::Sender<Option<Duration>>,
    kills_told: Mutex<KillsTold>,
    /// That it has changed.
    told_kills: Condvar,
    pub(super) victims: Victims,
    pub(super) kill_counts: KillCounts,
}

/// How far the listener is with kills.
#[derive(Clone, Copy, Debug, Default)]
struct KillsTold {
    /// Those of before this time, boottime, have been told. `None`: nobody listens.
    until: Option<Duration>,
    /// Somebody has waited in vain since then.
    is_hung: bool,
}

impl KillsTold {
    /// Whether it is worth to wait for those of before a time.
    fn is_late(self, until: Duration) -> bool {
        !self.is_hung && self.until.is_some_and(|it| it < until)
    }
}

/// The cgroup of all pods, with another id than before.
#[derive(Debug)]
pub(super) struct Remade {
    pub root: WatchedRoot,
    /// For the device access counter.
    pub device_directory: Option<Dir>,
}

impl Shared {
    pub(super) fn index(&self) -> RwLockReadGuard<'_, CgroupIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn index_mut(&self) -> RwLockWriteGuard<'_, CgroupIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events lost by stream, in the kernel since its maps were made, or not understood; empty before the first
    /// reading, and where there is nothing to listen to.
    pub(super) fn lost(&self) -> BTreeMap<String, u64> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone()
    }

    /// There is one watcher of pressure.
    pub(super) fn set_reclaim_bell(&self, bell: Bell) {
        self.reclaim_bell.set(bell).ok();
    }

    /// From now on the time in reclaim is counted, once a second.
    pub(super) fn count_reclaim(&self) {
        self.is_reclaim_counted.store(true, Ordering::Relaxed);
    }

    /// `None`: it is not asked for, not counted yet, or no program counts it here.
    pub(super) fn reclaim_stalls(&self) -> Option<Arc<ReclaimStalls>> {
        let stalls = self.reclaim_stalls.lock();
        stalls.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the listener watch another cgroup, at once.
    pub(super) fn follow(&self, remade: Remade) {
        *self.remade.lock().unwrap_or_else(PoisonError::into_inner) = Some(remade);
        self.listen_now();
    }

    /// It could not be followed, and is tried again, unless there is another by now.
    fn follow_later(&self, remade: Remade) {
        let mut newest = self.remade.lock().unwrap_or_else(PoisonError::into_inner);
        newest.get_or_insert(remade);
    }

    fn take_remade(&self) -> Option<Remade> {
        let mut remade = self.remade.lock().unwrap_or_else(PoisonError::into_inner);
        remade.take()
    }

    /// Has the listener look at its rings at once. Never blocks.
    pub(super) fn listen_now(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    /// Up to when the rings have been read, as the listener tells it.
    pub(super) fn heard(&self) -> watch::Receiver<Option<Duration>> {
        self.heard.subscribe()
    }

    /// Waits until the kills of before a time are told, where somebody listens, and not for ever: once for all that end
    /// while the listener hangs. Not to be called by who is told.
    pub(super) fn wait_for_kills(&self, until: Duration) {
        let told = self.kills_told.lock();
        let told = told.unwrap_or_else(PoisonError::into_inner);
        if !told.is_late(until) {
            return;
        }
        self.listen_now();
        let waited = self
            .told_kills
            .wait_timeout_while(told, KILLS_PATIENCE, |it| it.is_late(until));
        let (mut told, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        told.is_hung |= waited.timed_out();
    }

    fn set_kills_told(&self, until: Option<Duration>) {
        let told = self.kills_told.lock();
        *told.unwrap_or_else(PoisonError::into_inner) = KillsTold {
            until,
            is_hung: false,
        };
        self.told_kills.notify_all();
    }

    /// Whether the loop waits for cgroups to become empty.
    pub(super) fn set_emptying(&self, is_emptying: bool) {
        if self.is_emptying.swap(is_emptying, Ordering::Relaxed) != is_emptying && is_emptying {
            self.listen_now();
        }
    }

    fn set_reclaim_stalls(&self, stalls: ReclaimStalls) {
        let known = self.reclaim_stalls.lock();
        *known.unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(stalls));
    }

    fn set_lost(&self, lost: BTreeMap<String, u64>) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = lost;
    }
}

/// See the module.
pub(super) struct Listener {
    streams: Streams,
    /// For the device access counter.
    device_directory: Option<Dir>,
    shared: Arc<Shared>,
    log: EventLog,
    recorder: Recorder,
    metrics: Metrics,
    is_first: Option<IsFirst>,
    tell: Tell,
    locate: Locate,
    cgroups_first: bool,
    /// What of each ring was taken in one go so far, 0 to 1.
    filled: BTreeMap<Stream, f64>,
    /// Records of a stream that no program writes, since the agent started.
    malformed: BTreeMap<Stream, u64>,
    /// When losses and statistics are due, boottime.
    losses_due: Duration,
    statistics_due: Duration,
    losses: Losses,
    /// Streams of which something was lost, and that is still to be told.
    owes_lost: BTreeSet<Stream>,
    /// The kernel's filters could not be set at the last try.
    fails_to_follow: bool,
    /// Time in reclaim, where it is counted.
    stalls: ReclaimStalls,
    /// As of the last second.
    allocation_stalls: Option<u64>,
}

/// Whom the listener tells.
pub(super) struct Outputs {
    pub(super) log: EventLog,
    pub(super) recorder: Recorder,
    pub(super) metrics: Metrics,
    /// `None`: others start the containers, and the kernel's word is taken.
    pub(super) is_first: Option<IsFirst>,
    pub(super) tell: Tell,
    pub(super) locate: Locate,
    /// Whoever is told registers cgroups as they are made, so every event waits for those of cgroups before
    /// it. False: they were registered before they had a process.
    pub(super) cgroups_first: bool,
}

/// A listener that loads programs, and has yet to listen.
pub(super) struct Prepared {
    /// What came while no agent ran. It waits in the rings still, so an agent that dies before it
    /// listens has lost nothing.
    pub(super) waiting: Vec<KernelEvent>,
    /// Ends when the streams that must not miss anything run, as far as they can here.
    until_watched: mpsc::Receiver<Infallible>,
    go: mpsc::Sender<()>,
    worker: Worker,
}

impl Prepared {
    /// Waits until kills and processes are watched, and cgroups where they come first: up to 100 ms where
    /// nothing was adopted. The rings hold what comes from now on.
    pub(super) fn wait_watched(&self) {
        self.until_watched.recv().ok();
    }

    /// Listens from now on. To be called when the cgroups that exist are registered, since events
    /// are attributed by them, and before any container is started: what comes is watched. Pinned
    /// streams go on in the kernel when the worker is dropped.
    pub(super) fn listen(self) -> Worker {
        self.wait_watched();
        // The thread waits for this; it is only gone after a panic.
        self.go.send(()).ok();
        self.worker
    }
}

/// Adopts what an earlier agent has left running in the kernel.
pub(super) fn adopt(bpf: &BpfConfig, watched: Option<WatchedRoot>) -> Result<Streams, LoadError> {
    Streams::adopt(&LoadOptions {
        pin_directory: Some(bpf.pin_directory.clone()),
        watched,
        diagnostics: bpf.diagnostics,
    })
}

/// Says that nobody listens any more, however the thread ends.
struct EndOfHearing(Arc<Shared>);

impl Drop for EndOfHearing {
    fn drop(&mut self) {
        self.0.heard.send_replace(None);
        self.0.set_kills_told(None);
    }
}

/// Drains batches until `drain` says that there are no more, at most [`MAX_BATCHES`]. False: there may be more.
fn drain_batches(mut drain: impl FnMut() -> bool) -> bool {
    (0..MAX_BATCHES).any(|_| !drain())
}

impl Listener {
    pub(super) fn new(
        streams: Streams,
        device_directory: Option<Dir>,
        shared: Arc<Shared>,
        outputs: Outputs,
    ) -> Self {
        let Outputs {
            log,
            recorder,
            metrics,
            is_first,
            tell,
            locate,
            cgroups_first,
        } = outputs;
        if !streams.watched_kills() {
            shared.kill_counts.nobody_watched();
        }
        Self {
            streams,
            device_directory,
            shared,
            log,
            recorder,
            metrics,
            is_first,
            tell,
            locate,
            cgroups_first,
            filled: BTreeMap::new(),
            malformed: BTreeMap::new(),
            losses_due: Duration::ZERO,
            statistics_due: Duration::ZERO,
            losses: Losses::default(),
            owes_lost: BTreeSet::new(),
            fails_to_follow: false,
            stalls: ReclaimStalls::default(),
            allocation_stalls: None,
        }
    }

    /// Looks at what waits in the rings of adopted streams, then loads the others on the listener's
    /// thread. That thread listens when [`Prepared::listen`] says so.
    pub(super) fn prepare(mut self) -> std::io::Result<Prepared> {
        let mut waiting = Vec::new();
        for stream in Stream::ALL {
            match self.streams.waiting(stream) {
                Ok(events) => waiting.extend(events),
                Err(error) => {
                    // How containers ended meanwhile is not known then.
                    self.metrics.source_error(Source::Bpf, SourceFault::Io);
                    tracing::warn!(error = crate::observe::chain(&error), "kernel events");
                }
            }
        }
        self.shared.bell.set(Bell::new()?).ok();
        let shared = Arc::clone(&self.shared);
        let (go, told) = mpsc::channel();
        let (watched, until_watched) = mpsc::channel();
        let listen = move |stop: &Stop| {
            self.load_missing(watched);
            if told.recv().is_ok() {
                self.listen(stop);
            }
        };
        let worker = Worker::spawn("kernel", move || shared.listen_now(), listen)?;
        Ok(Prepared {
            waiting,
            until_watched,
            go,
            worker,
        })
    }

    /// Until it is asked to stop, or there is nothing to listen to.
    fn listen(&mut self, stop: &Stop) {
        let _end = EndOfHearing(Arc::clone(&self.shared));
        while self.streams.rings().next().is_some() {
            self.follow();
            let begun = clock::boottime();
            // Who is written to as fast as it reads does the rest all the same.
            let is_drained = drain_batches(|| self.drain_all());
            // Kills come before each batch.
            self.shared.kill_counts.heard(begun);
            if is_drained {
                self.shared.heard.send_replace(Some(begun));
            }
            self.count_kernel();
            if stop.is_asked() {
                return;
            }
            if is_drained {
                self.wait();
            }
        }
    }

    /// Drops `watched` as soon as kills and processes are seen. Adopted rings hold what comes
    /// meanwhile.
    fn load_missing(&mut self, watched: mpsc::Sender<Infallible>) {
        let is_seen = |wanted| self.streams.rings().any(|(stream, _)| stream == wanted);
        // The streams are tried in this order.
        let last = match self.cgroups_first {
            true => Stream::Cgroup,
            false => Stream::Process,
        };
        let is_watched = is_seen(Stream::Oom) && is_seen(Stream::Process) && is_seen(last);
        let mut watched = Some(watched).filter(|_| !is_watched);
        let loaded = self.streams.load_missing(&mut |tried| {
            if tried == last {
                watched = None;
            }
        });
        drop(watched);
        let fault = match loaded {
            Ok(()) => None,
            Err(error) => Some(crate::observe::chain(&error)),
        };
        let device = self
            .device_directory
            .take()
            .filter(|_| fault.is_none())
            .map(|directory| {
                let attached = self.streams.attach_device_counter(directory.as_fd());
                attached.map_err(|error| crate::observe::chain(&error))
            });
        syscall::release_free_memory();
        (self.tell)(News::Programs(Programs {
            reports: self.streams.reports().to_vec(),
            device,
            reports_kills: self.streams.reports_kills(),
            fault,
            pinning: self.streams.pinning().clone(),
        }));
    }

    /// The filters in the kernel follow the cgroup of all pods.
    fn follow(&mut self) {
        let Some(remade) = self.shared.take_remade() else {
            return;
        };
        let watched = self.streams.watch(remade.root);
        let is_watched = watched.is_ok();
        let followed = watched.and_then(|()| match &remade.device_directory {
            Some(directory) => self.streams.attach_device_counter(directory.as_fd()),
            None => Ok(()),
        });
        if let Err(error) = followed {
            if is_watched || !self.fails_to_follow {
                let error = crate::observe::chain(&error);
                tracing::warn!(error, "follow the cgroup of all pods");
            }
            self.metrics.source_error(Source::Bpf, SourceFault::Io);
        }
        self.fails_to_follow = !is_watched;
        if !is_watched {
            self.shared.follow_later(remade);
        }
    }

    /// Until a ring wakes, the bell does, or it is time to look.
    fn wait(&self) {
        let rings = self.streams.rings().map(|(_, fd)| fd);
        let bell = self.shared.bell.get();
        let mut fds: Vec<PollFd> = rings
            .chain(bell.map(Bell::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let is_awaited = self.log.is_followed() || self.shared.is_emptying.load(Ordering::Relaxed);
        let timeout = match is_awaited {
            true => AWAITED_MS,
            false => IDLE_MS,
        };
        // An interrupted wait is a short one.
        poll(&mut fds, PollTimeout::from(timeout)).ok();
        // Before the rings are looked at: it is rung for what is there by then.
        bell.map(Bell::was_rung);
    }

    /// One batch of every ring, OOM kills before each of them. True: there may be more.
    fn drain_all(&mut self) -> bool {
        let mut is_more = false;
        for stream in [Stream::Process, Stream::Cgroup, Stream::Stall] {
            let begun = clock::boottime();
            if drain_batches(|| self.drain(Stream::Oom, KILLS)) {
                self.shared.set_kills_told(Some(begun));
            }
            is_more |= self.drain(stream, BATCH);
        }
        is_more
    }

    /// Handles at most `max` events of a stream. True: there may be more.
    fn drain(&mut self, stream: Stream, max: usize) -> bool {
        let (events, is_more) = self.take(stream, max);
        // A cgroup is made before anything happens in it, and ends after that.
        let mut ends = Vec::new();
        if stream != Stream::Cgroup && self.cgroups_first && !events.is_empty() {
            drain_batches(|| self.drain_made(&mut ends));
        }
        for event in events.into_iter().chain(ends) {
            self.handle(&event);
        }
        is_more
    }

    /// Handles a batch of cgroups that were made; what else became of cgroups is put into `ends`. True: there may be more.
    fn drain_made(&mut self, ends: &mut Vec<KernelEvent>) -> bool {
        let (events, is_more) = self.take(Stream::Cgroup, BATCH);
        for event in events {
            match &event {
                KernelEvent::Cgroup(CgroupEvent {
                    change: CgroupChange::Created { .. },
                    ..
                }) => self.handle(&event),
                _ => ends.push(event),
            }
        }
        is_more
    }

    /// Takes at most `max` events of a stream from its ring. True: there may be more.
    fn take(&mut self, stream: Stream, max: usize) -> (Vec<KernelEvent>, bool) {
        let mut events = Vec::new();
        let drained = self
            .streams
            .drain(stream, max, &mut |event| events.push(event));
        let is_more = drained.n_taken() == max;
        if stream == Stream::Oom {
            let victims = events.iter().filter_map(|it| match it {
                KernelEvent::Oom(kill) => Some(kill.victim.pid),
                _ => None,
            });
            self.shared.victims.add(victims, clock::boottime());
        }
        if drained.malformed > 0 {
            tracing::error!(
                stream = stream.name(),
                n = drained.malformed,
                "malformed records"
            );
            *self.malformed.entry(stream).or_default() += drained.malformed as u64;
        }
        self.note_filled(stream, &drained, is_more);
        (events, is_more)
    }

    /// What is taken in full batches, one after the other, was in the ring together.
    fn note_filled(&mut self, stream: Stream, drained: &Drained, is_more: bool) {
        let filled = self.filled.entry(stream).or_default();
        *filled += drained.filled;
        let ratio = filled.min(1.0);
        if !is_more {
            *filled = 0.0;
        }
        self.metrics.ring_found(metric_stream(stream), ratio);
    }

    /// Attributes and records one event.
    fn handle(&mut self, event: &KernelEvent) {
        let handled = Handled {
            boottime: clock::boottime(),
            wall: clock::wall(),
        };
        let at_ns = match event {
            KernelEvent::Oom(kill) => {
                self.handle_oom(kill, handled);
                kill.at_ns
            }
            KernelEvent::Process(process) => {
                self.handle_process(process, handled);
                process.at_ns
            }
            KernelEvent::Cgroup(cgroup) => {
                self.handle_cgroup(cgroup, handled);
                cgroup.at_ns
            }
            KernelEvent::Stall(stall) => {
                self.handle_stall(stall, handled);
                stall.at_ns
            }
        };
        self.count(event, at_ns, handled);
    }

    fn handle_process(&mut self, process: &ProcessEvent, handled: Handled) {
        let cgroup = self.shared.index().attribute(&process.cgroup);
        if let ProcessChange::Exit { status, .. } = process.change {
            (self.tell)(News::Ended {
                process: process.process,
                status,
            });
        }
        let Some(record) = process_record(process, &cgroup, handled) else {
            return;
        };
        let labels = ContainerLabels::of_event(&record);
        if let Some(labels) = labels.filter(ContainerLabels::has_container) {
            let (change, now) = (&process.change, handled.boottime);
            self.metrics.process_change(labels, change, now);
        }
        self.log.append(record);
    }

    fn handle_cgroup(&mut self, changed: &CgroupEvent, handled: Handled) {
        let id = changed.cgroup.cgroup_id;
        match &changed.change {
            // Told first: whoever knows what it is says so, and the record has it.
            CgroupChange::Created { name } => {
                let cgroup = &changed.cgroup;
                (self.tell)(News::Made { cgroup, name });
            }
            CgroupChange::Populated { populated: true } | CgroupChange::Attached { .. } => {
                (self.tell)(News::Entered(id));
            }
            CgroupChange::Populated { populated: false } => {
                (self.tell)(News::Emptied(id));
            }
            CgroupChange::Removed => {}
        }
        let cgroup = self.shared.index().attribute(&changed.cgroup);
        if changed.change == CgroupChange::Removed {
            (self.tell)(News::Gone(id));
        }
        self.log.append(cgroup_record(changed, &cgroup, handled));
    }

    fn handle_stall(&mut self, stall: &StallEvent, handled: Handled) {
        if let Some(bell) = self.shared.reclaim_bell.get() {
            bell.ring();
        }
        let cgroup = self.shared.index().attribute(&stall.cgroup);
        if let Some(record) = stall_record(stall, &cgroup, handled) {
            self.log.append(record);
        }
    }

    fn handle_oom(&mut self, kill: &OomKill, handled: Handled) {
        let kill = &self.located(kill);
        self.meet(kill);
        let counts = &self.shared.kill_counts;
        let kill = &*self.with_reason(kill);
        let mut attribution = self.shared.index().attribute_kill(kill);
        attribution.name_outside(kill, |it| counts.path_of(it));
        let owner = attribution.victim.owner.as_ref();
        if let Some(container) = owner.filter(|it| it.container().is_some()) {
            let was_later = || {
                counts
                    .has_older(&container.path, kill.victim)
                    .then_some(false)
            };
            attribution.is_main = match &self.is_first {
                Some(is_first) => Some(is_first(kill)),
                None => attribution.is_main.or_else(was_later),
            };
        }
        if counts.was_counted(kill, attribution.victim.owner.is_some()) {
            tracing::debug!(
                pid = kill.victim.pid,
                "an agent before has counted this kill"
            );
            return;
        }
        let age = handled
            .boottime
            .saturating_sub(Duration::from_nanos(kill.at_ns));
        // Who starts containers puts their first processes into their cgroups.
        let is_own = self.is_first.is_some();
        attribution.took_container = match attribution.group(kill, is_own) {
            Some(group) => counts.takes(&group, age),
            None => Some(false),
        };
        let mut record = oom_record(kill, &attribution, handled);
        // The counter names the record, and who finds the record finds it counted. A victim that was
        // exiting anyway is no kill for the kernel's own counters either.
        self.recorder.number(kill, &mut record);
        if let Some(EventDetail::Oom(detail)) = &record.detail {
            // Whoever saves the counts finds in the queue what is counted.
            let mut last = counts.telling();
            let workload = attribution.workload.as_deref();
            let counted = counts.report(kill, workload, &mut last);
            self.metrics.oom_kill(&record, detail, workload);
            let owner = attribution.victim.owner.as_ref();
            if let Some(owner) = owner.filter(|_| !detail.was_exiting) {
                self.metrics.oom_kills_by(owner, 1);
            }
            self.recorder.take(&mut record, &attribution, counted);
        }
        tracing::warn!(
            pod = record.pod.as_ref().map(tracing::field::display),
            container = record.container,
            pod_uid = record.pod_uid.as_ref().map(tracing::field::display),
            container_id = record.container_id,
            pid = kill.victim.pid,
            comm = kill.victim_comm,
            "{}",
            record.message
        );
        self.log.append(record);
        let attribution = &attribution;
        (self.tell)(News::Kill { kill, attribution });
    }

    /// A kill whose cgroups that the kernel's filter leaves out have their lineage too.
    fn located(&self, kill: &OomKill) -> OomKill {
        let mut kill = kill.clone();
        let mut known = BTreeMap::new();
        for it in kill.cgroups_mut().filter(|it| !it.in_root) {
            let found = known.entry(it.cgroup_id);
            let found = found.or_insert_with(|| (self.locate)(it.cgroup_id));
            *it = found.unwrap_or(*it);
        }
        kill
    }

    /// Tells of the cgroups of a victim that nobody knows: they were made while nobody listened.
    fn meet(&self, kill: &OomKill) {
        for (cgroup, name) in kill.victim_cgroup.steps().zip(&kill.victim_names) {
            let is_known = self.shared.index().get(cgroup.cgroup_id).is_some();
            if !is_known && !name.is_empty() {
                let cgroup = &cgroup;
                (self.tell)(News::Met { cgroup, name });
            }
        }
    }

    /// A kill with its reason, where no program could read it and there is enough to derive it from.
    fn with_reason<'a>(&self, kill: &'a OomKill) -> Cow<'a, OomKill> {
        let reports = self.streams.reports();
        let tells_reclaim = reports.iter().any(ProgramReport::tells_reclaim_at_limits);
        if !node_oom::is_open(kill, tells_reclaim) {
            return Cow::Borrowed(kill);
        }
        let root = Root::host();
        let before = self.allocation_stalls;
        let evidence = Evidence {
            tells_reclaim,
            looks_for_limits: reports.iter().any(ProgramReport::looks_for_limits),
            has_stalled: before.and_then(|it| Some(procfs::allocation_stalls(&root)? > it)),
            is_confined: procfs::is_confined(&root, kill.trigger_pid),
        };
        match node_oom::derive(kill, evidence) {
            Some(derived) => Cow::Owned(derived),
            None => Cow::Borrowed(kill),
        }
    }

    fn count(&self, event: &KernelEvent, at_ns: u64, handled: Handled) {
        let age = handled.boottime.saturating_sub(Duration::from_nanos(at_ns));
        self.metrics.bpf_event(labels::Stream::of(event), age);
    }

    /// What the kernel counts, when it is due.
    fn count_kernel(&mut self) {
        let now = clock::boottime();
        if now >= self.losses_due {
            self.losses_due = now + LOSSES_EVERY;
            self.allocation_stalls = procfs::allocation_stalls(&Root::host());
            let counted = self.count_losses(now);
            self.note_reading(counted, now);
            if self.shared.is_reclaim_counted.load(Ordering::Relaxed) {
                let counted = self.count_reclaim();
                self.note_reading(counted, now);
            }
        }
        if now >= self.statistics_due {
            self.statistics_due = now + STATISTICS_EVERY;
            let counted = self.count_statistics();
            self.note_reading(counted, now);
        }
        // Where there is no room for it: again with the next event or second.
        let tell = &self.tell;
        self.owes_lost.retain(|it| !tell(News::Lost(*it)));
    }

    fn note_reading(&self, reading: Result<(), LoadError>, now: Duration) {
        match reading {
            Ok(()) => self.metrics.source_read(Source::Bpf, now),
            Err(error) => {
                self.metrics.source_error(Source::Bpf, SourceFault::Io);
                tracing::warn!(error = crate::observe::chain(&error), "read eBPF counters");
            }
        }
    }

    fn count_losses(&mut self, now: Duration) -> Result<(), LoadError> {
        let wall = WallTime::from_epoch(clock::wall());
        let losses = self.streams.losses()?;
        let mut shown = BTreeMap::new();
        for (&stream, &n) in &losses {
            let label = metric_stream(stream);
            // What was lost before the first reading belongs to an earlier agent; the start looks
            // at everything anyway.
            let full = LossReason::RingFull;
            let new = self.metrics.set_bpf_lost(label, full, n, wall);
            self.lose(stream, new);
            let malformed = self.malformed.get(&stream).copied().unwrap_or(0);
            let unreadable = self.streams.unreadable().get(&stream).copied();
            let unreadable = unreadable.unwrap_or(0);
            shown.insert(stream.name().to_owned(), n + malformed + unreadable);
            for (why, n) in [
                (LossReason::Malformed, malformed),
                (LossReason::UnknownFormat, unreadable),
            ] {
                let new = self.metrics.set_bpf_lost(label, why, n, wall);
                self.lose(stream, new);
            }
        }
        for (stream, n) in self.losses.take_due(now) {
            self.record_lost(stream, n, now, wall);
        }
        self.shared.set_lost(shown);
        Ok(())
    }

    fn count_reclaim(&mut self) -> Result<(), LoadError> {
        let is_counted = self.streams.rings().any(|(it, _)| it == Stream::Stall);
        if !is_counted {
            return Ok(());
        }
        let totals = self.streams.stall_totals()?;
        let counts = totals.into_values().map(|it| {
            let ns = it.memcg_reclaim_ns.saturating_add(it.direct_reclaim_ns);
            (it.cgroup, Duration::from_nanos(ns))
        });
        self.stalls.update(counts, &self.shared.index());
        self.shared.set_reclaim_stalls(self.stalls.clone());
        Ok(())
    }

    /// The loop is to look at everything, and the gap is to be told.
    fn lose(&mut self, stream: Stream, n: u64) {
        if n > 0 {
            self.owes_lost.insert(stream);
            self.losses.add(stream, n);
        }
    }

    /// A gap in the records, said among them.
    fn record_lost(&self, stream: Stream, n: u64, now: Duration, wall: WallTime) {
        let message = format!(
            "{n} events of stream {} were lost, looking at what they may have told",
            stream.name()
        );
        tracing::warn!(reason = "KernelEventsLost", "{message}");
        let boottime_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let (kind, reason) = (EventKind::Agent, "KernelEventsLost");
        self.log
            .append(Event::new(wall, boottime_ns, kind, reason, message));
    }

    fn count_statistics(&self) -> Result<(), LoadError> {
        let is_measured = Root::host()
            .read_text(BPF_STATS)
            .is_ok_and(|text| text.trim() == "1");
        if is_measured {
            for it in self.streams.program_stats() {
                let run_time = Duration::from_nanos(it.run_time_ns);
                self.metrics
                    .set_program_statistics(it.program, it.run_count, run_time);
            }
        }
        for it in self.streams.map_use()? {
            self.metrics.set_map(it.map, it.n_entries, it.capacity);
        }
        Ok(())
    }
}

fn metric_stream(stream: Stream) -> labels::Stream {
    match stream {
        Stream::Oom => labels::Stream::Oom,
        Stream::Process => labels::Stream::Process,
        Stream::Cgroup => labels::Stream::Cgroup,
        Stream::Stall => labels::Stream::Pressure,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Else the ends of victims are told before the last of them.
    #[test]
    fn all_kills_that_a_ring_holds_are_taken_in_one_go() {
        const HEADER: usize = 8;
        let ring = 1 << 20;
        let n_kills = ring / (size_of::<ebpf_abi::OomRecord>() + HEADER);
        let mut left = n_kills;
        let is_all = drain_batches(|| {
            let is_more = left >= KILLS;
            left = left.saturating_sub(KILLS);
            is_more
        });
        assert!(is_all, "{left} of {n_kills} left");
    }

    #[test]
    fn kills_are_waited_for_where_somebody_listens() {
        let shared = Shared::default();
        let ended = Duration::from_secs(5);
        // Whether it is waited for at all.
        let waits = || {
            let asked = clock::boottime();
            shared.wait_for_kills(ended);
            clock::boottime() >= asked + KILLS_PATIENCE
        };
        assert!(!waits(), "nobody listens");
        // What was told before is of no use.
        shared.set_kills_told(Some(Duration::ZERO));
        assert!(waits());
        assert!(!waits(), "the listener hangs");
        shared.set_kills_told(Some(Duration::ZERO));
        assert!(waits(), "it has gone on");
        shared.set_kills_told(Some(Duration::ZERO));
        thread::scope(|scope| {
            let waits = scope.spawn(|| shared.wait_for_kills(ended));
            while !waits.is_finished() {
                shared.set_kills_told(Some(ended));
            }
        });
        assert!(!waits(), "another one that ended by then");
    }
}
