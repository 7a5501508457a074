//! The thread that watches: looks, decides when something is short, and acts.
//!
//! Two kinds of looks. A *glance* reads what changes within milliseconds, at a gap that shrinks with
//! the time to the nearest threshold (`decide::eviction::pace`). A *pass* reads the whole node and,
//! where something is short, every pod, and decides. A glance that finds a threshold newly met
//! becomes a pass at once.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::act::{Leaving, Pending};
use super::disk::{DiskKeeper, Freshness, OldLogs};
use super::stages::Stages;
use super::{KeptState, Notes, Pressure};
use crate::apply::recording::Recorder;
use crate::apply::relief::ReliefWriter;
use crate::config::{Compat, StallConfig};
use crate::decide::eviction::stall::StallState;
use crate::decide::eviction::story::{Deed, Step};
use crate::decide::eviction::{
    BlockedReason, Decision, Policy, Reaping, State, brake, pace, signals, synchronize,
    threshold_quantity,
};
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{
    MemoryMethod, NodeCondition, NodeReading, Observation, PodFigures, PodReading, Signal,
    Snapshot, StarvedResource, Threshold, WakeSource,
};
use crate::model::forensics::LastEviction;
use crate::model::history::NodeSample;
use crate::model::pod::PodUid;
use crate::model::status::EvictionStatus;
use crate::observe::metrics::Metrics;
use crate::run::RunError;
use crate::run::forensics::Background;
use crate::run::kernel;
use crate::run::own::event::{Event, Sender};
use crate::run::own::evictions::Candidate;
use crate::run::signals::is_met;
use crate::run::sweep::Sweeper;
use crate::run::told::Told;
use crate::run::worker::{Stop, Worker};
use crate::sources::bpf::STALLS_WAKE_EVERY;
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::node_reading::NodeReader;
use crate::sources::wakers::Wakers;
use crate::sys::patience::Patience;
use crate::sys::{clock, steady};

/// Between two passes of a node that is short of nothing, at most: kubelet's period.
const IDLE_PASS: Duration = Duration::from_secs(10);
/// The same where stalls are watched for: their share is taken over a second at least.
const STALL_PASS: Duration = Duration::from_secs(1);
/// Between two passes while something is short and nothing was done about it just now.
const SHORT_PASS: Duration = Duration::from_secs(1);
/// After a kill: was it enough?
const RELIEF_PASS: Duration = Duration::from_millis(2);
/// A glance may take fresh page cache for memory in use, which a pass knows better (see
/// `MemoryUse::with_files_of`): so long after a pass that found nothing short, no glance makes
/// another. What a leak takes meanwhile is 10 MB at 2 GB/s.
const DOUBT: Duration = Duration::from_millis(5);
/// While pods that end will free enough.
const ENDING_PASS: Duration = Duration::from_millis(50);
/// How far apart two readings are that reclaimable page cache is told by.
const BEFORE: Duration = Duration::from_secs(1);
/// A wake this soon after a look would show the same.
const WAKE_GAP: Duration = STALLS_WAKE_EVERY;
/// Something was seen within this time: look more closely.
const WARM: Duration = Duration::from_secs(2);
/// Memory that fills at this rate, bytes per second, is worth that: a threshold of 100 MiB above
/// nothing lasts ten seconds.
const WARM_RATE: u64 = 10 << 20;

/// What the watcher is made of.
pub(in crate::run) struct Parts {
    pub pressure: Arc<Pressure>,
    /// The cgroup of all pods.
    pub kubepods: CgroupPath,
    pub background: Arc<Background>,
    pub policy: Policy,
    pub method: MemoryMethod,
    /// `None`: stalls evict nobody.
    pub stall: Option<StallConfig>,
    pub stages: Stages,
    /// `None`: each agent begins anew.
    pub kept: Option<KeptState>,
    pub reader: NodeReader,
    /// For the processes of pods.
    pub cgroups: CgroupReader,
    /// Of the reader and the notes.
    pub patience: Patience,
    /// Of the listener: time in reclaim where there is no PSI.
    pub kernel: Arc<kernel::Shared>,
    /// What pods use, for the decision too.
    pub sweeper: Sweeper,
    pub wakers: Wakers,
    pub writer: ReliefWriter,
    pub notes: Notes,
    /// `None`: nothing is recorded.
    pub recorder: Option<Recorder<Step>>,
    pub told: Told,
    pub metrics: Metrics,
    pub to_loop: Sender,
}

/// See the module.
pub(super) struct Watcher {
    pub(super) parts: Parts,
    pub(super) disk: DiskKeeper,
    pub(super) state: State,
    pub(super) stall: StallState,
    pub(super) candidates: Arc<Vec<Candidate>>,
    /// The last whole reading, and the one some seconds before it.
    pub(super) node: NodeReading,
    pub(super) before: NodeReading,
    /// What the last pass but one saw.
    pub(super) last: Option<Snapshot>,
    pub(super) figures: BTreeMap<PodUid, PodFigures>,
    /// Since memory is short a pod was evicted for it.
    pub(super) has_evicted_for_memory: bool,
    pass_due: Duration,
    warm_until: Duration,
    /// Glances are not believed until then: a pass has just found nothing short.
    doubted_until: Duration,
    /// At the last look, and how fast it became less, per second.
    seen: BTreeMap<Signal, (Observation, u64)>,
    /// Thresholds that were crossed, and when; until somebody went for it, or it was over.
    crossed: Vec<(Threshold, Duration)>,
    pub(super) pending: Option<Pending>,
    /// Pods that were evicted and when their grace is over: the loop says so only with its next
    /// pass, and until then they are no candidates either.
    pub(super) evicted: BTreeMap<PodUid, Duration>,
    /// The ids of the last pod that was killed for them.
    pub(super) reaping: Option<Reaping>,
    /// Since when a disk is short, or since what the last victim left is gone: nobody is chosen by
    /// what pods had before.
    pub(super) disk_since: Option<Duration>,
    /// The figures of the pods are newer than that.
    pub(super) is_disk_fresh: bool,
    pub(super) old_logs: OldLogs,
    pub(super) leaving: Vec<Leaving>,
    pub(super) conditions: BTreeSet<NodeCondition>,
    pub(super) told_threshold: Option<Threshold>,
    /// By the signal that stands for the resource: that evictions have ended because they are in vain. What is not
    /// in it is another matter.
    pub(super) told_ineffective: BTreeMap<Signal, ToldIneffective>,
    /// Signals for which nobody went in the last pass because of it.
    pub(super) held: BTreeSet<Signal>,
    /// What of it is in the status.
    pub(super) shown_ineffective: BTreeMap<Signal, String>,
    /// The last pass before a disk became short.
    pub(super) before_short: Option<Snapshot>,
    pub(super) last_eviction: Option<EvictionStatus>,
    pub(super) last_victim: Option<LastEviction>,
    /// For the recording: what was done since its last step.
    pub(super) done: Vec<Deed>,
    /// For the loop, whose queue was full.
    pub(super) unsent: VecDeque<Event>,
    /// The last reading had no figures of the state directory's file system.
    is_disk_silent: bool,
    /// The files of pods hold up the thread that measures them, or cannot be looked at.
    are_files_unmeasured: bool,
    /// The volume on the host that holds up the thread that measures those.
    hung_host_path: Option<PathBuf>,
}

/// What was told.
#[derive(Clone, Debug)]
pub(super) struct ToldIneffective {
    /// Boottime.
    pub at: Duration,
    pub message: String,
}

/// What a pass has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acted {
    Nothing,
    /// Something was done whose effect shows later.
    Asked,
    /// Pods went for limits of their own; what the node is short of waits for the next pass.
    OwnLimits,
    /// The effect of the last kill is still to be seen.
    Waits,
    /// A pod was killed, and is gone.
    Killed,
}

impl Acted {
    /// How soon the next pass has to come; `None`: by what the node is short of.
    fn next_pass(self) -> Option<Duration> {
        match self {
            Self::Killed | Self::OwnLimits => Some(RELIEF_PASS),
            Self::Asked => Some(SHORT_PASS),
            Self::Waits => Some(pace::PAST),
            Self::Nothing => None,
        }
    }
}

/// Starts the thread.
pub(in crate::run) fn spawn(parts: Parts) -> Result<Worker, RunError> {
    let pressure = Arc::clone(&parts.pressure);
    // There is one watcher.
    pressure.bell.set(parts.wakers.bell()).ok();
    parts.sweeper.set_bell(parts.wakers.bell());
    // Kubelet does not see files that are deleted and still open.
    let sees_deleted = parts.policy.compat == Compat::Ballast;
    let disk = DiskKeeper::start(sees_deleted.then(|| parts.cgroups.clone()))?;
    parts.stages.publish(&pressure);
    let watch = move |stop: &Stop| {
        if let Err(error) = steady::lock_memory() {
            tracing::info!(%error, "the agent's memory cannot be locked");
        }
        if let Err(error) = steady::raise_priority() {
            tracing::info!(%error, "the watcher of pressure runs at the common priority");
        }
        let mut watcher = Watcher::new(parts, disk);
        watcher.pass(WakeSource::Other);
        while !stop.is_asked() {
            let woken_by = watcher.wait();
            watcher.look(woken_by);
        }
    };
    Worker::spawn("pressure", move || pressure.wake(), watch).map_err(RunError::Thread)
}

impl Watcher {
    fn new(mut parts: Parts, disk: DiskKeeper) -> Self {
        let now = clock::boottime();
        let node = parts.reader.read(now);
        parts.metrics.begin_eviction();
        let kept = parts.kept.as_ref();
        let state = kept.map_or_else(State::new, |it| it.state(now));
        Self {
            parts,
            disk,
            state,
            stall: StallState::default(),
            candidates: Arc::default(),
            before: node.clone(),
            node,
            last: None,
            figures: BTreeMap::new(),
            pass_due: now,
            warm_until: Duration::ZERO,
            has_evicted_for_memory: false,
            doubted_until: Duration::ZERO,
            seen: BTreeMap::new(),
            crossed: Vec::new(),
            pending: None,
            evicted: BTreeMap::new(),
            reaping: None,
            disk_since: None,
            is_disk_fresh: false,
            old_logs: OldLogs::default(),
            leaving: Vec::new(),
            conditions: BTreeSet::new(),
            told_threshold: None,
            told_ineffective: BTreeMap::new(),
            held: BTreeSet::new(),
            shown_ineffective: BTreeMap::new(),
            before_short: None,
            last_eviction: None,
            last_victim: None,
            done: Vec::new(),
            unsent: VecDeque::new(),
            is_disk_silent: false,
            are_files_unmeasured: false,
            hung_host_path: None,
        }
    }

    /// Until the next look is due or something wakes the thread; the most telling of what did.
    fn wait(&mut self) -> WakeSource {
        let now = clock::boottime();
        let due = self.pass_due.min(self.parts.sweeper.due());
        let gap = self.gap(now).min(due.saturating_sub(now));
        let sources = self.parts.wakers.wait(gap);
        for source in &sources {
            self.parts.metrics.pressure_wakeup(*source);
        }
        // The first in the order of its declaration; the set is never empty.
        let source = sources.into_iter().next().unwrap_or(WakeSource::Timer);
        if self.parts.sweeper.hurry() {
            // Whoever wants to see figures says nothing about memory.
            return source;
        }
        if source != WakeSource::Timer {
            let woken = clock::boottime();
            self.warm_until = woken + WARM;
            thread::sleep(WAKE_GAP.min(gap).saturating_sub(woken.saturating_sub(now)));
        }
        source
    }

    /// How long nothing can get past a threshold unseen. Disks are left to the passes.
    fn gap(&self, now: Duration) -> Duration {
        let is_warm = now < self.warm_until;
        let gap = self.shortest_gap(|resource, headroom, observation, rate| match resource {
            StarvedResource::Memory => {
                let capacity = u64::try_from(observation.capacity).unwrap_or(0);
                Some(pace::next_gap(headroom, capacity, rate, is_warm))
            }
            StarvedResource::Pids => Some(pace::next_gap_of_pids(headroom)),
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => None,
        });
        match self.doubted_until.checked_sub(now) {
            Some(doubted) if !doubted.is_zero() => gap.min(doubted),
            _ => gap,
        }
    }

    /// How long a disk that fills as it did of late has more than its thresholds want.
    fn gap_of_disks(&self) -> Duration {
        self.shortest_gap(|resource, headroom, _, rate| match resource {
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                Some(pace::next_gap_of_disk(headroom, rate))
            }
            StarvedResource::Memory | StarvedResource::Pids => None,
        })
    }

    /// Of those that `gap` gives for the signals with a threshold, by their headroom and the rate at which it shrinks.
    fn shortest_gap(
        &self,
        gap: impl Fn(StarvedResource, u64, &Observation, u64) -> Option<Duration>,
    ) -> Duration {
        let gaps = self.seen.iter();
        let gaps = gaps.filter_map(|(signal, (observation, rate))| {
            let headroom = self.headroom(*signal, observation)?;
            gap(signal.resource(), headroom, observation, *rate)
        });
        gaps.min().unwrap_or(IDLE_PASS)
    }

    /// What is left above the nearest threshold; `None` without one.
    fn headroom(&self, signal: Signal, observation: &Observation) -> Option<u64> {
        let thresholds = self.parts.policy.thresholds.iter();
        let wanted = thresholds
            .filter(|it| it.signal == signal)
            .map(|it| threshold_quantity(it, observation).value())
            .max()?;
        let left = observation.available.saturating_sub(wanted);
        Some(u64::try_from(left).unwrap_or(0))
    }

    fn look(&mut self, woken_by: WakeSource) {
        self.send_unsent();
        let now = clock::boottime();
        if self.parts.pressure.takes_pass() || now >= self.pass_due {
            self.pass(woken_by);
            return;
        }
        let fast = self.parts.reader.read_fast(now);
        let node = self.node.refreshed(&fast);
        self.remember(&node);
        let observations = self.observe(&node);
        let is_new = self.parts.policy.thresholds.iter().any(|it| {
            let is_known = self.state.has_seen(it);
            !is_known && is_met(it, &observations) && now >= self.doubted_until
        });
        self.note(&observations);
        if is_new {
            self.pass(woken_by);
            return;
        }
        if now >= self.parts.sweeper.due() {
            self.sweep_on();
        }
    }

    pub(super) fn observe(&self, node: &NodeReading) -> BTreeMap<Signal, Observation> {
        let (method, compat) = (self.parts.method, self.parts.policy.compat);
        signals::observations(node, Some(&self.before), method, compat)
    }

    /// Remembers what was seen; memory that fills keeps the watcher warm.
    fn note(&mut self, observations: &BTreeMap<Signal, Observation>) {
        self.note_crossings(observations);
        for (signal, now) in observations {
            let before = self.seen.get(signal);
            let rate = before.map_or(0, |(before, _)| pace::fill_rate(before, now));
            if signal.resource() == StarvedResource::Memory
                && rate > WARM_RATE
                && let Some(at) = now.at
            {
                self.warm_until = at + WARM;
            }
            self.seen.insert(*signal, (*now, rate));
        }
    }

    fn note_crossings(&mut self, observations: &BTreeMap<Signal, Observation>) {
        for threshold in &self.parts.policy.thresholds {
            let Some(now) = observations.get(&threshold.signal) else {
                continue;
            };
            let wanted = threshold_quantity(threshold, now).value();
            if now.available >= wanted {
                self.crossed.retain(|(it, _)| it != threshold);
            } else if let Some((before, _)) = self.seen.get(&threshold.signal)
                && let Some(at) = pace::crossing(before, now, wanted)
            {
                self.crossed.push((threshold.clone(), at));
            }
        }
    }

    /// When the threshold was crossed, for the first that goes for it.
    pub(super) fn take_crossing(&mut self, threshold: &Threshold) -> Option<Duration> {
        let i = self.crossed.iter().position(|(it, _)| it == threshold)?;
        Some(self.crossed.swap_remove(i).1)
    }

    /// Reads, decides, acts, and shows.
    fn pass(&mut self, woken_by: WakeSource) {
        let started = clock::boottime();
        self.take_candidates();
        self.see_leaving(started);
        self.read_node(started);
        let mut observations = self.observe(&self.node);
        let thresholds = &self.parts.policy.thresholds;
        let is_short = !self.state.met.is_empty()
            || self.stall.high_since.is_some()
            || thresholds.iter().any(|it| is_met(it, &observations));
        if is_short {
            self.read_pods(started);
            let pods = self.figures.values().filter_map(|it| it.memory);
            let kubepods = self.node.kubepods.map(|it| it.with_files_of(pods));
            self.node.kubepods = kubepods;
            observations = self.observe(&self.node);
        }
        self.note(&observations);
        let snapshot = self.snapshot(started, observations);
        let decision = synchronize(&self.parts.policy, &self.state, &snapshot);
        let state = std::mem::replace(&mut self.state, decision.state.clone());
        if let Some(kept) = &mut self.parts.kept {
            kept.keep(&self.state, started);
        }
        self.tell_changes(&decision);
        let mut met = self.state.met.iter().map(|it| it.threshold.signal);
        self.has_evicted_for_memory &= met.any(|it| it.resource() == StarvedResource::Memory);
        if self.state.met.is_empty() {
            self.told_threshold = None;
            self.doubted_until = clock::boottime() + DOUBT;
        }
        let (layout, met) = (self.parts.policy.layout, &self.state.met);
        self.told_ineffective.retain(|signal, told| {
            let mut met = met.iter().map(|it| layout.stands_for(it.threshold.signal));
            let is_over = brake::is_another_matter(signal.resource(), told.at, started);
            met.any(|it| it == *signal) || !is_over
        });
        let is_disk_short = self.is_disk_short();
        if is_disk_short && self.disk_since.is_none() {
            self.before_short.clone_from(&self.last);
        }
        self.disk_since = is_disk_short.then(|| self.disk_since.unwrap_or(started));
        self.review_stages(&snapshot);
        let acted = match self.act(&decision, &snapshot) {
            Acted::Nothing => self.act_on_stall(&snapshot),
            acted => acted,
        };
        self.record(woken_by, state, &snapshot, &decision);
        self.show(&snapshot, &decision);
        self.last = Some(snapshot);
        self.pass_due = clock::boottime() + self.until_next_pass(acted, &decision);
        self.parts.wakers.rearm();
        self.set_usage_thresholds();
    }

    fn until_next_pass(&self, acted: Acted, decision: &Decision) -> Duration {
        if let Some(next_pass) = acted.next_pass() {
            return next_pass;
        }
        let mut blocked = decision.blocked.iter();
        let is_calm = self.state.met.is_empty() && self.parts.stages.is_clear();
        if blocked.any(|it| it.reason == BlockedReason::Ending) {
            ENDING_PASS
        } else if !is_calm || self.is_blind() {
            SHORT_PASS
        } else if self.parts.stall.is_some() {
            STALL_PASS
        } else {
            self.gap_of_disks()
        }
    }

    /// A threshold is about something that could not be read, such as a limit of all pods that the
    /// loop has yet to write: glances would not see it either.
    fn is_blind(&self) -> bool {
        let mut thresholds = self.parts.policy.thresholds.iter();
        thresholds.any(|it| !self.seen.contains_key(&it.signal))
    }

    fn read_node(&mut self, now: Duration) {
        let node = self.read_whole(now);
        let last = std::mem::replace(&mut self.node, node);
        if last.at.saturating_sub(self.before.at) >= BEFORE {
            self.before = last;
        }
        self.remember(&self.node);
        let is_silent = self.node.nodefs.is_none();
        if std::mem::replace(&mut self.is_disk_silent, is_silent) != is_silent {
            self.parts.told.disk_answers(!is_silent);
        }
        let unmeasured = self.disk.unmeasured();
        let is_any = unmeasured.is_some();
        if std::mem::replace(&mut self.are_files_unmeasured, is_any) != is_any {
            self.parts.told.pod_files_answer(unmeasured);
        }
        let hung = self.disk.host_paths.hung(clock::monotonic());
        let path = hung.as_ref().map(|(path, _)| path.clone());
        if path != self.hung_host_path {
            self.hung_host_path = path;
            self.parts.told.host_paths_answer(hung);
        }
    }

    /// For the record of an OOM kill: the minute before it.
    fn remember(&self, node: &NodeReading) {
        self.parts.background.push_node(NodeSample::of(node));
    }

    /// Where v1 can tell when usage crosses a threshold, it is told where that is now.
    fn set_usage_thresholds(&mut self) {
        let at = |signal, usage: Option<u64>| {
            let (observation, _) = self.seen.get(&signal)?;
            let headroom = self.headroom(signal, observation)?;
            let wanted = u64::try_from(observation.available).ok()?;
            signals::usage_at(observation, usage?, wanted.saturating_sub(headroom))
        };
        let node = at(
            Signal::MemoryAvailable,
            self.node.root.as_ref().map(|it| it.usage),
        );
        let kubepods = at(
            Signal::AllocatableMemoryAvailable,
            self.node.kubepods.as_ref().map(|it| it.usage),
        );
        self.parts.wakers.set_thresholds(node, kubepods);
    }

    pub(super) fn take_candidates(&mut self) {
        self.parts.sweeper.keep();
        let candidates = self.parts.pressure.candidates();
        let is_disk_short = self.is_disk_short();
        if !Arc::ptr_eq(&candidates, &self.candidates) {
            let known = candidates.iter();
            let uids: BTreeSet<&PodUid> = known.map(|it| &it.facts.pod.uid).collect();
            self.evicted.retain(|uid, _| uids.contains(uid));
            self.candidates = candidates;
        } else if !is_disk_short {
            return;
        }
        self.order_disk();
    }

    pub(super) fn order_disk(&self) {
        let freshness = match self.disk_since {
            Some(since) => Freshness::ShortSince(since),
            None => Freshness::Calm,
        };
        self.disk.order(Arc::clone(&self.candidates), freshness);
    }

    fn snapshot(&self, now: Duration, observations: BTreeMap<Signal, Observation>) -> Snapshot {
        let pods = self.candidates.iter().map(|it| PodReading {
            facts: Arc::clone(&it.facts),
            figures: self.figures.get(&it.facts.pod.uid).cloned(),
            ends_within: self.ends_at(it).map(|end| end.saturating_sub(now)),
        });
        Snapshot {
            at: now,
            observations,
            node: self.node.clone(),
            pods: pods.collect(),
            is_leaving: self.is_disk_left(),
        }
    }

    fn ends_at(&self, pod: &Candidate) -> Option<Duration> {
        let evicted = self.evicted.get(&pod.facts.pod.uid).copied();
        pod.ends_at.into_iter().chain(evicted).min()
    }

    fn record(
        &mut self,
        woken_by: WakeSource,
        state: State,
        snapshot: &Snapshot,
        decision: &Decision,
    ) {
        let done = std::mem::take(&mut self.done);
        if let Some(recorder) = &self.parts.recorder {
            recorder.push(Step {
                woken_by: Cow::Borrowed(woken_by.as_str()),
                state,
                snapshot: snapshot.clone(),
                decision: decision.clone(),
                done,
            });
        }
    }

    fn is_disk_short(&self) -> bool {
        let mut met = self.state.met.iter();
        met.any(|it| it.threshold.signal.condition() == NodeCondition::DiskPressure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leak takes gigabytes in the second that a disk may wait.
    #[test]
    fn memory_does_not_wait_for_pods_that_go_for_limits_of_their_own() {
        let next_pass = Acted::OwnLimits.next_pass();
        assert!(next_pass.is_some_and(|it| it <= RELIEF_PASS));
        assert!(next_pass < Acted::Asked.next_pass());
        assert_eq!(Acted::Nothing.next_pass(), None);
    }
}
