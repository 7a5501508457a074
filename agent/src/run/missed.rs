//! OOM kills that no program reported, by what the kernel counts: the thread that compares, and what
//! it shares with those who know something of it.
//!
//! The listener says what was reported, the sweep what is counted, the loop which cgroups there are and
//! what was counted of one at its end. Where no program reports kills, the thread has the cgroups signal
//! and reads them itself. It alone tells what was missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::RunError;
use super::forensics::CountSaver;
use super::kernel::{News, Shared, Tell};
use super::worker::{Stop, Worker};
use crate::decide::kernel_records::{Handled, missed_record};
use crate::decide::missed_kills::{Cause, KillAccounts, KillsByCgroup, Missed};
use crate::model::attribution::{Attributed, Level};
use crate::model::cgroup_files::OomCount;
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{CgroupId, OomKill};
use crate::model::forensics::Counted;
use crate::model::record::Event;
use crate::model::stats::{CgroupStats, StatsSnapshot};
use crate::model::workload::Workload;
use crate::observe::event_log::EventLog;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::MissedCause;
use crate::sources::oom_counters::{self, OomCounters, Signals};
use crate::sources::wakers::Bell;
use crate::sys::{Root, Trees, clock};

/// While something is to be compared, and for kills that signal nothing.
const TICK: Duration = Duration::from_secs(1);
/// Else the thread is woken.
const IDLE: Duration = Duration::from_secs(600);

/// A cgroup that goes so soon after a kill in it went with it.
const AT_ONCE: Duration = Duration::from_secs(2);

/// v1 signals before it kills: after a signal a count is read at once, and again after twice as long
/// each time, from the first gap to the last.
const FIRST_GAP: Duration = Duration::from_millis(1);
const LAST_GAP: Duration = Duration::from_millis(512);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KillCounts {
    /// Held while a kill becomes known and is counted in the metrics: both are saved as one. The number of the last.
    telling: Mutex<u64>,
    /// Up to this number they are saved.
    saved: AtomicU64,
    /// Rung then.
    saved_bell: OnceLock<Bell>,
    accounts: Mutex<KillAccounts>,
    trees: OnceLock<Arc<Trees>>,
    /// Those with an account that are there.
    cgroups: Mutex<BTreeMap<CgroupId, CgroupPath>>,
    /// All kills before were reported, boottime in nanoseconds.
    heard_ns: AtomicU64,
    /// There once the thread is.
    bell: OnceLock<Bell>,
}

impl KillCounts {
    /// Before anything else.
    pub(super) fn set_trees(&self, trees: &Arc<Trees>) {
        *self.accounts() = KillAccounts::new(trees.unified);
        self.trees.set(Arc::clone(trees)).ok();
    }

    /// See [`KillAccounts::resume`]. Before any cgroup is found.
    pub(super) fn resume(
        &self,
        known: KillsByCgroup,
        counted: &KillsByCgroup,
        roots: Vec<CgroupPath>,
    ) {
        let now = clock::boottime();
        self.accounts().resume(known, counted, roots, now);
    }

    /// See [`KillAccounts::look_below`].
    pub(super) fn look_below(&self, roots: &[CgroupPath]) {
        self.accounts().look_below(roots);
    }

    pub(super) fn roots(&self) -> Vec<CgroupPath> {
        self.accounts().roots().to_vec()
    }

    /// What is found from now on was made since the agent runs.
    pub(super) fn all_are_found(&self) {
        self.accounts().all_are_found();
    }

    /// See [`KillAccounts::known`].
    pub(super) fn known(&self) -> Option<KillsByCgroup> {
        self.accounts().known()
    }

    /// See [`KillAccounts::open`].
    pub(super) fn open(&self) -> KillsByCgroup {
        self.accounts().open()
    }

    /// See [`KillAccounts::known_in`].
    pub(super) fn known_in(&self, cgroup: CgroupId) -> Option<u64> {
        self.accounts().known_in(cgroup)
    }

    /// Until it is dropped no kill becomes known without being counted in the metrics, nor the reverse. The number of
    /// the last kill that was reported or missed.
    pub(super) fn telling(&self) -> MutexGuard<'_, u64> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No program reports kills.
    pub(super) fn without_programs(&self) {
        self.accounts().without_programs();
        self.ring();
    }

    /// See [`KillAccounts::nobody_watched`].
    pub(super) fn nobody_watched(&self) {
        self.accounts().nobody_watched();
    }

    /// To be counted in the metrics by who holds [`KillCounts::telling`], the number of the last. How it was counted;
    /// `None`: it is no kill.
    pub(super) fn report(
        &self,
        kill: &OomKill,
        workload: Option<&Workload>,
        last: &mut u64,
    ) -> Option<Counted> {
        let mut accounts = self.accounts();
        let cgroups = accounts.counted_in(kill)?;
        accounts.report(&cgroups, Duration::from_nanos(kill.at_ns));
        *last += 1;
        Some(Counted {
            number: *last,
            cgroups,
            workload: workload.cloned(),
        })
    }

    /// One that an agent before has reported and not saved.
    pub(super) fn report_again(&self, counted: &Counted, at: Duration) {
        self.accounts().report(&counted.cgroups, at);
    }

    /// The counts are saved, the last of which has this number.
    pub(super) fn saved(&self, number: u64) {
        self.saved.store(number, Ordering::Release);
        if let Some(bell) = self.saved_bell.get() {
            bell.ring();
        }
    }

    /// The number of the last that is saved.
    pub(super) fn last_saved(&self) -> u64 {
        self.saved.load(Ordering::Acquire)
    }

    /// Rings when counts are saved. There is one such bell.
    pub(super) fn ring_when_saved(&self, bell: Bell) {
        self.saved_bell.set(bell).ok();
    }

    /// All kills before `until` were reported.
    pub(super) fn heard(&self, until: Duration) {
        let ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.heard_ns.store(ns, Ordering::Release);
    }

    pub(super) fn count(&self, cgroup: CgroupId, count: OomCount, now: Duration) {
        let count = self.unambiguous(count, || self.cgroups().get(&cgroup).cloned());
        let is_open = {
            let cgroups = self.cgroups();
            let mut accounts = self.accounts();
            // It was found, and could not be read.
            match !accounts.has(cgroup) && cgroups.contains_key(&cgroup) {
                true => accounts.adopt_late(cgroup, count, now),
                false => accounts.count(cgroup, count, now),
            }
        };
        if is_open {
            self.ring();
        }
    }

    /// Before Linux 5.17 a count alone does not tell whether whole cgroups went; a file at `path` does.
    fn unambiguous(&self, count: OomCount, path: impl FnOnce() -> Option<CgroupPath>) -> OomCount {
        if !count.is_ambiguous() {
            return count;
        }
        let is_whole = || oom_counters::goes_as_a_whole(self.trees.get()?, &path()?);
        match is_whole() {
            Some(false) => OomCount {
                group_kills: Some(0),
                ..count
            },
            Some(true) | None => count,
        }
    }

    /// The path of a cgroup from the mount. `None`: it is gone, or this process may not look for it, which takes
    /// `CAP_DAC_READ_SEARCH`.
    pub(super) fn path_of(&self, cgroup: CgroupId) -> Option<Arc<str>> {
        let memory = self.trees.get()?.of("memory")?;
        let path = memory.dir.find(cgroup.0).ok()??;
        Some(format!("/{}", path.display()).into())
    }

    /// Whether a container ended with a process of it that was killed `age` ago. v1 kills one alone. `None`: nobody
    /// can tell.
    pub(super) fn takes(&self, container: &CgroupPath, age: Duration) -> Option<bool> {
        let trees = self.trees.get()?;
        if !trees.unified {
            return Some(false);
        }
        let is_gone = || age < AT_ONCE && oom_counters::is_gone(trees, container);
        oom_counters::goes_as_a_whole(trees, container).or_else(|| is_gone().then_some(true))
    }

    fn is_unified(&self) -> bool {
        self.trees.get().is_some_and(|it| it.unified)
    }

    /// Of v2 a pod's own count has its containers' in it.
    pub(super) fn count_all(&self, sweep: &StatsSnapshot) {
        let is_unified = self.is_unified();
        for pod in &sweep.pods {
            let running = pod.containers.iter().filter(|it| it.ended_at.is_none());
            running.for_each(|it| self.count_in(&it.stats));
            if !is_unified {
                pod.stats.iter().for_each(|it| self.count_in(it));
            }
        }
    }

    /// A reading of a cgroup.
    pub(super) fn count_in(&self, stats: &CgroupStats) {
        let count = OomCount::of(&stats.memory.events, self.is_unified());
        if let Some((cgroup, count)) = stats.cgroup_id.zip(count) {
            self.count(cgroup, count, stats.at);
        }
    }

    /// From now on kills in a cgroup are compared with what is reported.
    pub(super) fn count_kills_of(
        &self,
        cgroup: CgroupId,
        path: &CgroupPath,
        level: &Level,
        origin: Origin,
    ) {
        let is_counted = match level {
            Level::Container { .. } => true,
            Level::Pod { .. } => !self.is_unified(),
            Level::Qos(_) | Level::Kubepods => false,
        };
        let Some(trees) = self.trees.get().filter(|_| is_counted) else {
            return;
        };
        match origin {
            Origin::Made => self.begin(cgroup, path),
            Origin::Found => {
                // What is killed from now on may be counted already, and is reported later.
                let now = clock::boottime();
                match oom_counters::read_once(trees, path) {
                    Some(count) => {
                        let count = self.unambiguous(count, || Some(path.clone()));
                        self.adopt(cgroup, path, count, now);
                    }
                    None => self.watch(cgroup, path),
                }
            }
        }
    }

    fn begin(&self, cgroup: CgroupId, path: &CgroupPath) {
        self.accounts().begin(cgroup);
        self.watch(cgroup, path);
    }

    fn adopt(&self, cgroup: CgroupId, path: &CgroupPath, count: OomCount, now: Duration) {
        let is_open = self.accounts().adopt(cgroup, count, now);
        self.watch(cgroup, path);
        if is_open {
            self.ring();
        }
    }

    pub(super) fn end(&self, cgroup: CgroupId) {
        // First, so that no reading makes an account of it again.
        self.unwatch(cgroup);
        self.accounts().end(cgroup);
    }

    /// A look at the tree has not found it.
    pub(super) fn lose(&self, cgroup: CgroupId) {
        self.unwatch(cgroup);
        self.accounts().lose(cgroup);
    }

    /// Those whose kills are compared.
    pub(super) fn compared(&self) -> BTreeSet<CgroupId> {
        self.cgroups().keys().copied().collect()
    }

    fn unwatch(&self, cgroup: CgroupId) {
        if self.cgroups().remove(&cgroup).is_some() {
            self.ring_if_watched();
        }
    }

    fn watch(&self, cgroup: CgroupId, path: &CgroupPath) {
        self.cgroups().insert(cgroup, path.clone());
        self.ring_if_watched();
    }

    fn ring_if_watched(&self) {
        if !self.accounts().has_programs() {
            self.ring();
        }
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    fn settle(&self) -> Vec<Missed> {
        let heard = Duration::from_nanos(self.heard_ns.load(Ordering::Acquire));
        self.accounts().settle(heard)
    }

    fn accounts(&self) -> MutexGuard<'_, KillAccounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cgroups(&self) -> MutexGuard<'_, BTreeMap<CgroupId, CgroupPath>> {
        self.cgroups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a cgroup was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Made,
    Found,
}

/// Missed kills that are counted.
struct ToTell {
    missed: Missed,
    cgroup: Attributed,
    event: Event,
}

struct Accountant {
    shared: Arc<Shared>,
    counters: OomCounters,
    /// Counts that are about to change: when each is read again, and the gap after that.
    looks: BTreeMap<CgroupId, (Duration, Duration)>,
    /// What was counted and not known when the counts were last saved.
    saved: KillsByCgroup,
    log: EventLog,
    metrics: Metrics,
    saver: CountSaver,
    tell: Tell,
}

/// Starts to compare. To be dropped before what keeps the records, which saves the counts.
pub(super) fn compare_kills(
    trees: Arc<Trees>,
    signals: Signals,
    shared: &Arc<Shared>,
    log: EventLog,
    metrics: Metrics,
    saver: CountSaver,
    tell: Tell,
) -> Result<Worker, RunError> {
    let counters = OomCounters::open(&Root::host(), trees, signals)?;
    let bell = counters.bell();
    // There is one.
    shared.kill_counts.bell.set(bell.clone()).ok();
    let mut accountant = Accountant {
        shared: Arc::clone(shared),
        counters,
        looks: BTreeMap::new(),
        saved: KillsByCgroup::new(),
        log,
        metrics,
        saver,
        tell,
    };
    let compare = move |stop: &Stop| {
        while !stop.is_asked() {
            accountant.step();
        }
    };
    Worker::spawn("oom-counts", move || bell.ring(), compare).map_err(RunError::Thread)
}

impl Accountant {
    fn step(&mut self) {
        let counts = &self.shared.kill_counts;
        let (is_open, is_alone) = {
            let accounts = counts.accounts();
            (accounts.is_open(), !accounts.has_programs())
        };
        let tick = if is_open || is_alone { TICK } else { IDLE };
        let now = clock::boottime();
        let next = self.looks.values().map(|(at, _)| *at).min();
        let timeout = next.map_or(tick, |at| at.saturating_sub(now).min(tick));
        let mut to_read = self.counters.wait(timeout);
        if is_alone {
            let cgroups = counts.cgroups().clone();
            to_read.extend(self.counters.watch(&cgroups));
            to_read.extend(self.counters.all_if_killed());
        }
        self.look(to_read);
        let told = {
            let counts = &self.shared.kill_counts;
            let mut last = counts.telling();
            let missed = counts.settle();
            *last += missed.len() as u64;
            let told = missed.into_iter().map(|it| self.count(it));
            told.collect::<Vec<_>>()
        };
        for told in told {
            self.tell(told);
        }
        let open = self.shared.kill_counts.open();
        if open != self.saved {
            self.saved = open;
            self.saver.save();
        }
    }

    /// Reads the counts of `signalled`, and of those that signalled before and are due.
    fn look(&mut self, signalled: BTreeSet<CgroupId>) {
        let now = clock::boottime();
        for cgroup in signalled {
            self.looks.insert(cgroup, (now, FIRST_GAP));
        }
        let due = self.looks.extract_if(.., |_, (at, _)| *at <= now);
        let due: Vec<_> = due.collect();
        for (cgroup, (_, gap)) in due {
            let Some(count) = self.counters.read(cgroup) else {
                continue;
            };
            self.shared.kill_counts.count(cgroup, count, now);
            if gap <= LAST_GAP {
                self.looks.insert(cgroup, (now + gap, gap * 2));
            }
        }
    }

    /// In the metrics, while nothing is saved.
    fn count(&self, missed: Missed) -> ToTell {
        let handled = Handled {
            boottime: clock::boottime(),
            wall: clock::wall(),
        };
        let (cgroup, workload) = {
            let index = self.shared.index();
            let cgroup = index.get(missed.cgroup).unwrap_or_default();
            let workload = index.workload_of(&cgroup);
            (cgroup, workload)
        };
        let event = missed_record(&missed, &cgroup, handled);
        let cause = match missed.cause {
            Cause::NoPrograms => MissedCause::NoPrograms,
            Cause::Unwatched => MissedCause::Unwatched,
            Cause::Lost => MissedCause::Lost,
        };
        self.metrics
            .oom_kills_missed(&event, missed.n, cause, workload.as_deref());
        if let Some(owner) = &cgroup.owner {
            self.metrics.oom_kills_by(owner, missed.n);
        }
        ToTell {
            missed,
            cgroup,
            event,
        }
    }

    fn tell(&self, told: ToTell) {
        let ToTell {
            missed,
            cgroup,
            event,
        } = told;
        self.saver.save();
        tracing::warn!(
            pod = event.pod.as_ref().map(tracing::field::display),
            container = event.container,
            pod_uid = event.pod_uid.as_ref().map(tracing::field::display),
            container_id = event.container_id,
            reason = &*event.reason,
            "{}",
            event.message
        );
        // On record before anybody hears of it.
        self.log.append(event);
        (self.tell)(News::Missed {
            n: missed.n,
            cgroup: &cgroup,
        });
    }
}
