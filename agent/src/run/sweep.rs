//! The sweep: what every cgroup uses, read in slices and shown. In: which pods there are, and what the last
//! reading of an ended container was. Out: a [`StatsSnapshot`], from which every page that shows usage is
//! made.
//!
//! [`Readings`] is what whoever sweeps shares with whoever shows; a [`Sweeper`] belongs to one thread, which
//! may have other things to do between two slices.
//!
//! Where the kernel has no PSI, the time in reclaim that the eBPF programs count stands in for it.
//!
//! Invariant: nothing is decided by a sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

use super::forensics::Background;
use super::kernel;
use super::node::Node;
use crate::decide::eviction::reclaimable::{self, ContainerLook, ContainerOutlook};
use crate::decide::reclaim_stalls::ReclaimStalls;
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{PodFigures, StallTotals};
use crate::model::history::PodSample;
use crate::model::pod::{PodUid, QosClass};
use crate::model::stats::{ContainerStats, EndedContainer, KnownPod, PodStats, StatsSnapshot};
use crate::model::status::PodStalls;
use crate::observe::metrics::labels::{EndedKind, Source, SourceFault};
use crate::observe::metrics::{ContainerLabels, ContainerMemory, LimitHits, Metrics};
use crate::sources::stats::{self, Progress, StatsReader, Wanted};
use crate::sources::wakers::Bell;
use crate::sys::filesystem::FilesystemProbe;
use crate::sys::{Root, clock};
use crate::units::Bytes;

/// A rate over a shorter time says little, and sweeps for a shorter time cost too much.
const MIN_SPAN: Duration = Duration::from_secs(1);

/// However many cgroups there are, and files that cannot be held for want of descriptors: sweeps take one part in
/// this many of one CPU's time.
const SWEEP_SHARE: u32 = 5;

/// What whoever sweeps shares with everybody else.
#[derive(Debug, Default)]
pub(super) struct Readings {
    pods: Mutex<Arc<Vec<Arc<KnownPod>>>>,
    /// Instances that ended since the last look.
    ended: Mutex<Vec<EndedContainer>>,
    /// The last sweep, for whoever shows it.
    stats: watch::Sender<Option<Arc<StatsSnapshot>>>,
    /// The last sweep at least [`MIN_SPAN`] before that one: a rate needs two.
    stats_before: Mutex<Option<Arc<StatsSnapshot>>>,
    /// Memory stalls of pods, as of the last sweep.
    stalls: RwLock<BTreeMap<PodUid, PodStalls>>,
    /// A sweep is to come before its time.
    is_wanted: AtomicBool,
    /// Wakes whoever sweeps, once there is somebody.
    bell: OnceLock<Bell>,
}

impl Readings {
    /// The pods that there are. True: they are others than before, or run other containers.
    pub(super) fn set_pods(&self, pods: Vec<Arc<KnownPod>>) -> bool {
        let mut known = lock(&self.pods);
        let is_other = **known != pods;
        if is_other {
            *known = Arc::new(pods);
        }
        is_other
    }

    pub(super) fn pods(&self) -> Arc<Vec<Arc<KnownPod>>> {
        Arc::clone(&lock(&self.pods))
    }

    /// `None`: it is not known.
    pub(super) fn pod(&self, uid: &PodUid) -> Option<Arc<KnownPod>> {
        let pods = self.pods();
        pods.iter().find(|it| it.pod.uid == *uid).cloned()
    }

    /// An instance has ended; the sweep goes on showing it for a while.
    pub(super) fn add_ended(&self, ended: EndedContainer) {
        lock(&self.ended).push(ended);
    }

    /// `None`: there was no sweep yet.
    pub(super) fn stats(&self) -> Option<Arc<StatsSnapshot>> {
        self.stats.borrow().clone()
    }

    /// For rates: a sweep at least a second before the last one.
    pub(super) fn stats_before(&self) -> Option<Arc<StatsSnapshot>> {
        lock(&self.stats_before).clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<StatsSnapshot>>> {
        self.stats.subscribe()
    }

    fn set_stats(&self, stats: Arc<StatsSnapshot>) {
        let last = self.stats.send_replace(Some(Arc::clone(&stats)));
        if let Some(last) = last
            && stats.ended.saturating_sub(last.ended) >= MIN_SPAN
        {
            *lock(&self.stats_before) = Some(last);
        }
    }

    /// Empty where nothing is known of the pod.
    pub(super) fn stalls_of(&self, uid: &PodUid) -> PodStalls {
        let stalls = self.stalls.read().unwrap_or_else(PoisonError::into_inner);
        stalls.get(uid).cloned().unwrap_or_default()
    }

    fn set_stalls(&self, stalls: BTreeMap<PodUid, PodStalls>) {
        *self.stalls.write().unwrap_or_else(PoisonError::into_inner) = stalls;
    }

    /// Asks for a sweep before the next is due: at once, or a second after the last one.
    pub(super) fn ask(&self) {
        if !self.is_wanted.swap(true, Ordering::Relaxed)
            && let Some(bell) = self.bell.get()
        {
            bell.ring();
        }
    }

    /// A sweep that somebody has asked for has yet to begin.
    pub(super) fn is_asked(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }
}

/// What a [`Sweeper`] is made of.
pub(super) struct Parts {
    pub readings: Arc<Readings>,
    /// Of the listener.
    pub kernel: Arc<kernel::Shared>,
    pub background: Arc<Background>,
    pub metrics: Metrics,
    /// Between the beginnings of two sweeps.
    pub interval: Duration,
}

/// See the module.
pub(super) struct Sweeper {
    parts: Parts,
    reader: StatsReader,
    /// Bytes.
    page_size: u64,
    /// The pods that the reader holds files of.
    pods: Arc<Vec<Arc<KnownPod>>>,
    /// The last sweep, and memory stalls of the pods in it.
    last: Option<Arc<StatsSnapshot>>,
    stalls: BTreeMap<PodUid, PodStalls>,
    due: Duration,
}

impl Sweeper {
    /// The first sweep is due at once. `qos_cgroups`: as [`StatsReader::new`] takes them; `nodefs`: the file
    /// system that is shown.
    pub(super) fn new(
        node: &Node,
        qos_cgroups: Option<[CgroupPath; 3]>,
        nodefs: FilesystemProbe,
        parts: Parts,
    ) -> Self {
        let root = Root::host();
        let trees = node.reader.trees();
        let page_size = node.identity.page_size.0;
        let machine = stats::machine(&root, &node.name, &node.topology, trees.unified);
        Self {
            parts,
            reader: StatsReader::new(
                &root,
                Arc::clone(trees),
                qos_cgroups,
                nodefs,
                Arc::new(machine),
                page_size,
            ),
            page_size,
            pods: Arc::default(),
            last: None,
            stalls: BTreeMap::new(),
            due: clock::boottime(),
        }
    }

    /// How whoever asks for a sweep wakes this thread.
    pub(super) fn set_bell(&self, bell: Bell) {
        // One thread sweeps.
        self.parts.readings.bell.set(bell).ok();
    }

    /// When the next slice is due.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// The next slice goes on with a sweep.
    pub(super) fn is_under_way(&self) -> bool {
        self.reader.is_under_way()
    }

    /// Brings the next sweep forward if somebody has asked for one. True: somebody has.
    pub(super) fn hurry(&mut self) -> bool {
        let is_wanted = self.parts.readings.is_asked();
        if is_wanted {
            let last = self.last.as_ref();
            let soonest = last.map_or(Duration::ZERO, |it| after(it, it.ended + MIN_SPAN));
            self.due = self.due.min(soonest);
        }
        is_wanted
    }

    /// Has the reader hold the files of the pods that there are.
    pub(super) fn keep(&mut self) {
        let pods = self.parts.readings.pods();
        if Arc::ptr_eq(&pods, &self.pods) {
            return;
        }
        self.reader.keep(pods.iter().cloned());
        let uids: BTreeSet<&PodUid> = pods.iter().map(|it| &it.pod.uid).collect();
        let history = &self.parts.background.history;
        let mut history = history.write().unwrap_or_else(PoisonError::into_inner);
        history.keep(|it| uids.contains(it));
        drop(history);
        self.pods = pods;
    }

    fn take_ended(&mut self) {
        for ended in std::mem::take(&mut *lock(&self.parts.readings.ended)) {
            self.reader.show_ended(ended);
        }
    }

    /// As [`StatsReader::amend_ended`], of all that have ended by now.
    pub(super) fn amend_ended(&mut self, amend: impl FnMut(&mut EndedContainer) -> bool) {
        self.take_ended();
        self.reader.amend_ended(amend);
    }

    /// Goes on with the sweep, or begins one, for a slice of at most `budget`. It is due until it is whole;
    /// then it is to be shown.
    pub(super) fn slice(&mut self, budget: Duration) -> Option<StatsSnapshot> {
        if !self.reader.is_under_way() {
            // Who asks from now on wants another.
            self.parts
                .readings
                .is_wanted
                .store(false, Ordering::Relaxed);
        }
        self.keep();
        self.take_ended();
        let sweep = match self.reader.step(budget, self.last.as_deref()) {
            Progress::More => return None,
            Progress::Whole(sweep) => *sweep,
        };
        let metrics = &self.parts.metrics;
        metrics.source_regressed(Source::Cgroup, sweep.n_regressions);
        metrics.ended_left_out(EndedKind::Container, sweep.n_left_out);
        metrics.source_errors(Source::Cgroup, SourceFault::Io, sweep.faults.io);
        metrics.source_errors(Source::Cgroup, SourceFault::Parse, sweep.faults.parse);
        self.parts.kernel.kill_counts.count_all(&sweep.snapshot);
        let due = sweep.snapshot.begun + self.parts.interval;
        self.due = after(&sweep.snapshot, due);
        Some(sweep.snapshot)
    }

    /// Reads every pod for a decision, before the next sweep.
    pub(super) fn figures(
        &mut self,
        now: Duration,
        wanted: Wanted,
    ) -> BTreeMap<PodUid, PodFigures> {
        self.reader.all_figures(now, wanted)
    }

    /// What is known of the pods now, for the record of an OOM kill: the minute before it. Fills in the
    /// stalls that the kernel does not tell.
    pub(super) fn remember(&self, figures: &mut BTreeMap<PodUid, PodFigures>) {
        let reclaim = self.parts.kernel.reclaim_stalls();
        for (uid, figures) in &mut *figures {
            figures.stall = figures.stall.or_else(|| Some(reclaim.as_ref()?.pod(uid)));
        }
        let history = &self.parts.background.history;
        let mut history = history.write().unwrap_or_else(PoisonError::into_inner);
        for (uid, figures) in figures {
            if let Some(sample) = PodSample::of(figures) {
                history.push_pod(uid, sample);
            }
        }
    }

    /// Shows a whole sweep. `figures`: of the pods in it, as [`Sweeper::remember`] left them. `is_relaxed`:
    /// whether `memory.high` of a container, given by its name or id, is lifted for now; `None`: nobody
    /// would lift it.
    pub(super) fn show(
        &mut self,
        snapshot: StatsSnapshot,
        figures: &BTreeMap<PodUid, PodFigures>,
        is_relaxed: &dyn Fn(&PodUid, &str) -> Option<bool>,
    ) {
        let booted_at = |it: &StatsSnapshot| it.machine.booted_at;
        let before = self.last.as_deref().and_then(booted_at);
        if let Some((from, to)) = before.zip(booted_at(&snapshot)).filter(|(a, b)| a != b) {
            let uptime = clock::boottime();
            self.parts.metrics.clock_was_set(from, to, uptime);
        }
        let stalls = self.stalls_of(&snapshot, figures);
        self.show_memory(&snapshot, &stalls, is_relaxed);
        self.parts
            .metrics
            .set_stats(&snapshot, self.last.as_deref());
        self.parts.readings.set_stalls(stalls.clone());
        let snapshot = Arc::new(snapshot);
        self.parts.readings.set_stats(Arc::clone(&snapshot));
        self.stalls = stalls;
        self.last = Some(snapshot);
    }

    /// Memory stalls of the pods in a sweep.
    fn stalls_of(
        &self,
        snapshot: &StatsSnapshot,
        figures: &BTreeMap<PodUid, PodFigures>,
    ) -> BTreeMap<PodUid, PodStalls> {
        let reclaim = self.parts.kernel.reclaim_stalls();
        let stalls = snapshot.pods.iter().map(|pod| {
            let uid = &pod.pod.uid;
            let stalls = PodStalls {
                pod: figures.get(uid).and_then(|it| it.stall),
                containers: container_stalls(pod, reclaim.as_deref()),
            };
            (uid.clone(), stalls)
        });
        stalls.collect()
    }

    fn show_memory(
        &self,
        snapshot: &StatsSnapshot,
        stalls: &BTreeMap<PodUid, PodStalls>,
        is_relaxed: &dyn Fn(&PodUid, &str) -> Option<bool>,
    ) {
        let before = self.last.as_deref();
        let shown = snapshot.by_start().into_iter().flat_map(|now| {
            let pod = &now.pod;
            let find = |it: &StatsSnapshot| it.pods.binary_search_by(|it| it.pod.cmp(pod)).ok();
            let before = before.and_then(|it| Some(&it.pods[find(it)?]));
            running(now).map(move |container| {
                let name = container.known_as();
                let stall = |of: &BTreeMap<PodUid, PodStalls>| {
                    of.get(&pod.uid)?.containers.get(name).copied()
                };
                let mut known = before.into_iter().flat_map(|it| &it.containers);
                let before = known.find(|it| it.runtime_id == container.runtime_id);
                let before = before.map(|it| ContainerLook {
                    stats: &it.stats,
                    stall: stall(&self.stalls),
                });
                let now = ContainerLook {
                    stats: &container.stats,
                    stall: stall(stalls),
                };
                let outlook = reclaimable::outlook(before, now, self.page_size);
                let memory = shown_memory(container, outlook, is_relaxed(&pod.uid, name));
                let id = &container.runtime_id;
                (ContainerLabels::new(pod, &container.name, id), memory)
            })
        });
        self.parts
            .metrics
            .set_container_memory(shown, clock::boottime());
    }

    /// By class; Guaranteed pods have no cgroup together, and so no PSI.
    pub(super) fn class_stalls(&mut self) -> BTreeMap<QosClass, StallTotals> {
        match self.parts.kernel.reclaim_stalls() {
            Some(reclaim) => QosClass::ALL
                .into_iter()
                .map(|class| (class, reclaim.class(class)))
                .collect(),
            None => self.reader.qos_stalls(),
        }
    }
}

/// Of the containers that run, each by its name or id.
fn container_stalls(
    pod: &PodStats,
    reclaim: Option<&ReclaimStalls>,
) -> BTreeMap<String, StallTotals> {
    let stalls = running(pod).filter_map(|it| {
        let name = it.known_as();
        let counted = || Some(reclaim?.container(&pod.pod.uid, name));
        let psi = it.stats.stalls.memory.map(|it| it.totals());
        Some((name.to_owned(), psi.or_else(counted)?))
    });
    stalls.collect()
}

fn running(pod: &PodStats) -> impl Iterator<Item = &ContainerStats> {
    pod.containers.iter().filter(|it| it.ended_at.is_none())
}

fn shown_memory(
    container: &ContainerStats,
    outlook: ContainerOutlook,
    is_relaxed: Option<bool>,
) -> ContainerMemory {
    let stats = &container.stats;
    let events = &stats.memory.events;
    ContainerMemory {
        cgroup_id: stats.cgroup_id.map_or(0, |it| it.0),
        hits: LimitHits {
            low: events.low,
            high: events.high,
            max: events.max,
        },
        peak: stats.memory.peak.map(Bytes),
        reclaimable: outlook.reclaimable.map(Bytes),
        time_to_limit: outlook.time_to_limit,
        memory_min: stats.spec.memory_min.map(Bytes),
        memory_low: stats.spec.memory_low.map(Bytes),
        memory_high: stats.spec.memory_high.map(Bytes),
        is_relaxed,
    }
}

/// When a sweep may begin after the `last` one: at `due`, or when that one's share of the time since it began is
/// down to [`SWEEP_SHARE`].
fn after(last: &StatsSnapshot, due: Duration) -> Duration {
    let cost = Duration::from_micros(last.cost_us.unwrap_or(0));
    due.max(last.begun + cost * SWEEP_SHARE)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::stats::tests::example_stats;

    #[test]
    fn sweeps_that_cost_much_come_less_often() {
        let ms = Duration::from_millis;
        for (cost_us, due) in [
            (None, 5_000),
            (Some(20_000), 5_000),
            (Some(1_000_000), 5_000),
            (Some(3_750_000), 18_750),
        ] {
            let last = StatsSnapshot {
                begun: ms(60_000),
                cost_us,
                ..example_stats(60)
            };
            let due = ms(60_000 + due);
            assert_eq!(after(&last, ms(65_000)), due, "{cost_us:?}");
        }
    }

    #[test]
    fn containers_without_a_name_have_stalls_of_their_own() {
        let mut pod = example_stats(60).pods.remove(0);
        let mut other = pod.containers[0].clone();
        other.runtime_id = "main-1".into();
        pod.containers.push(other);
        for container in &mut pod.containers {
            container.name.clear();
        }
        let stalls = container_stalls(&pod, None);
        assert_eq!(stalls.into_keys().collect::<Vec<_>>(), ["main-0", "main-1"]);
    }
}
