//! OOM kills that no program reported, by what the kernel counts: the thread that compares, and what
//! it shares with those who know something of it.
//!
//! The listener says what was reported, the sweep what is counted, the loop which cgroups there are and
//! what was counted of one at its end. Where no program reports kills, the thread has the cgroups signal
//! and reads them itself; and of a pod, before it tells what is missed, its containers and then the pod. It alone
//! tells what was missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::RunError;
use super::forensics::CountSaver;
use super::kernel::{News, Shared, Tell};
use super::worker::{Stop, Worker};
use crate::decide::kernel_records::{Handled, missed_record};
use crate::decide::missed_kills::{
    Cause, Due, Earlier, KillAccounts, KillsByCgroup, Missed, OpenByCgroup,
};
use crate::decide::node_oom::{LimitHits, NodeStalls};
use crate::model::attribution::{Attributed, Level, OomGroup};
use crate::model::cgroup_files::{CountOf, OomCount};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{CgroupId, OomKill, ProcessKey};
use crate::model::forensics::Counted;
use crate::model::record::{Event, OomScope};
use crate::model::saved_counts::CountedUntil;
use crate::model::stats::{CgroupStats, StatsSnapshot};
use crate::model::workload::Workload;
use crate::observe::event_log::EventLog;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::MissedCause;
use crate::sources::oom_counters::{self, OomCounters, Signals};
use crate::sources::procfs;
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
    /// Up to this number they are saved, or cannot be.
    saved: AtomicU64,
    /// Rung then.
    saved_bell: OnceLock<Bell>,
    accounts: Mutex<KillAccounts>,
    trees: OnceLock<Arc<Trees>>,
    watched: Mutex<Watched>,
    /// All kills before were reported, boottime in nanoseconds.
    heard_ns: AtomicU64,
    /// See [`CountedUntil`]: by this agent and those before, and by those alone.
    until: Mutex<CountedUntil>,
    earlier_until: OnceLock<CountedUntil>,
    /// There once the thread is.
    bell: OnceLock<Bell>,
}

/// The cgroups with an account that are there.
#[derive(Debug, Default)]
struct Watched {
    cgroups: BTreeMap<CgroupId, CgroupPath>,
    /// Of them those whose count has those of others in it.
    pods: BTreeMap<CgroupPath, CgroupId>,
}

impl Watched {
    fn of(&self, cgroup: CgroupId, path: &CgroupPath) -> CountOf {
        match self.pods.get(path) == Some(&cgroup) {
            true => CountOf::Pod,
            false => CountOf::Cgroup {
                pod: path.parent().and_then(|it| self.pods.get(&it).copied()),
            },
        }
    }

    /// One that has gone may be heard of after its successor at its path: the newer has the larger id.
    fn add_pod(&mut self, cgroup: CgroupId, path: &CgroupPath) {
        let newest = self.pods.entry(path.clone()).or_insert(cgroup);
        *newest = (*newest).max(cgroup);
    }

    fn remove(&mut self, cgroup: CgroupId) -> bool {
        let Some(path) = self.cgroups.remove(&cgroup) else {
            return false;
        };
        // It may be made again before its end is seen.
        if self.pods.get(&path) == Some(&cgroup) {
            self.pods.remove(&path);
        }
        true
    }
}

impl KillCounts {
    /// Before anything else.
    pub(super) fn set_trees(&self, trees: &Arc<Trees>) {
        *self.accounts() = KillAccounts::new(trees.unified);
        self.trees.set(Arc::clone(trees)).ok();
    }

    /// See [`KillAccounts::resume`]. Before any cgroup is found.
    pub(super) fn resume(&self, earlier: Earlier) {
        self.accounts().resume(earlier, clock::boottime());
    }

    /// What agents before this one have counted.
    pub(super) fn resume_from(&self, until: CountedUntil) {
        self.earlier_until.set(until).ok();
        *self.until() = until;
    }

    /// For the next agent.
    pub(super) fn counted_until(&self) -> CountedUntil {
        *self.until()
    }

    /// Whether an agent before has counted a kill that waited in a ring.
    pub(super) fn was_counted(&self, kill: &OomKill, is_in_pod: bool) -> bool {
        let at = Duration::from_nanos(kill.at_ns);
        let until = self.earlier_until.get();
        until.is_some_and(|it| it.has(at, is_in_pod))
    }

    fn until(&self) -> MutexGuard<'_, CountedUntil> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) fn open(&self) -> OpenByCgroup {
        self.accounts().open()
    }

    /// See [`KillAccounts::has_pods`].
    pub(super) fn has_pods(&self) -> bool {
        self.accounts().has_pods()
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

    /// See [`KillAccounts::without_programs`].
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
        let at = Duration::from_nanos(kill.at_ns);
        accounts.report(&cgroups, at);
        let mut until = self.until();
        until.reported = until.reported.max(at);
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

    /// The counts are saved, the last of which has this number; or they cannot be, and nobody is to wait for it.
    pub(super) fn saved(&self, number: u64) {
        self.saved.store(number, Ordering::Release);
        if let Some(bell) = self.saved_bell.get() {
            bell.ring();
        }
    }

    /// The number of the last that is saved, or cannot be.
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
        let has_programs = self.accounts().has_programs();
        let count = self.unambiguous(count, has_programs, || {
            let watched = self.watched();
            let path = watched.cgroups.get(&cgroup)?;
            (watched.of(cgroup, path) != CountOf::Pod).then(|| path.clone())
        });
        let is_open = {
            let watched = self.watched();
            let mut accounts = self.accounts();
            // It was found, and could not be read.
            let late = match accounts.has(cgroup) {
                true => None,
                false => watched.cgroups.get(&cgroup),
            };
            match late {
                Some(path) => accounts.adopt_late(cgroup, watched.of(cgroup, path), count, now),
                None => accounts.count(cgroup, count, now),
            }
        };
        if is_open {
            self.ring();
        }
    }

    /// Before Linux 5.17 a count alone does not tell whether whole cgroups went; a file at `path` does. Where all of a
    /// cgroup above went, the kernel counts that up there alone, and the first victim twice all the same.
    fn unambiguous(
        &self,
        count: OomCount,
        has_programs: bool,
        path: impl FnOnce() -> Option<CgroupPath>,
    ) -> OomCount {
        let trees = self.trees.get().filter(|it| it.unified && count.kills > 0);
        let Some((trees, path)) = trees.and_then(|it| Some((it, path()?))) else {
            return count;
        };
        let goes = |path: &CgroupPath| oom_counters::goes_as_a_whole(trees, path);
        let has_gone = |path: &CgroupPath| match oom_counters::own_group_kills(trees, path) {
            Some(n) => n > 0,
            None => goes(path) == Some(true),
        };
        let mut above = path.ancestors().skip(1);
        let group_kills = match count.group_kills {
            Some(0) | None if above.any(|it| has_gone(&it)) => {
                times_it_went(Some(true), has_programs)
            }
            None => times_it_went(goes(&path), has_programs),
            known => known,
        };
        OomCount {
            group_kills,
            ..count
        }
    }

    /// The path of a cgroup from the mount. `None`: it is gone, or this process may not look for it, which takes
    /// `CAP_DAC_READ_SEARCH`.
    pub(super) fn path_of(&self, cgroup: CgroupId) -> Option<Arc<str>> {
        let memory = self.trees.get()?.of("memory")?;
        let path = memory.dir.find(cgroup.0).ok()??;
        Some(format!("/{}", path.display()).into())
    }

    /// See [`oom_counters::has_older`].
    pub(super) fn has_older(&self, container: &CgroupPath, than: ProcessKey) -> bool {
        let trees = self.trees.get();
        trees.is_some_and(|it| oom_counters::has_older(&Root::host(), it, container, than))
    }

    /// Whether a container ended with a process of it that was killed `age` ago. v1 kills one alone. `None`: nobody
    /// can tell.
    pub(super) fn takes(&self, group: &OomGroup<'_>, age: Duration) -> Option<bool> {
        let trees = self.trees.get()?;
        if !trees.unified {
            return Some(false);
        }
        let container = group.container;
        let goes = |path: &CgroupPath| oom_counters::goes_as_a_whole(trees, path);
        let above = container.ancestors().skip(1);
        let is_in_limit =
            |it: &CgroupPath| group.limit.is_none_or(|limit| it.below(limit).is_some());
        let mut above = above.take_while(is_in_limit);
        let nested = |it| oom_counters::nested_goes_as_a_whole(trees, container, it);
        let whole = group.is_whole.then(|| goes(container));
        let nested = group.nested.as_ref().map(nested);
        let answers = || whole.into_iter().chain(nested);
        if answers().any(|it| it == Some(true))
            || group.is_whole && above.any(|it| goes(&it) == Some(true))
        {
            // Its first process may be the one that is spared.
            let is_spared = oom_counters::spares_one(&Root::host(), trees, container);
            (!is_spared).then_some(true)
        } else if answers().all(|it| it == Some(false)) {
            Some(false)
        } else {
            let is_gone = age < AT_ONCE && oom_counters::is_gone(trees, container);
            is_gone.then_some(true)
        }
    }

    fn is_unified(&self) -> bool {
        self.trees.get().is_some_and(|it| it.unified)
    }

    pub(super) fn count_all(&self, sweep: &StatsSnapshot) {
        for pod in &sweep.pods {
            let running = pod.containers.iter().filter(|it| it.ended_at.is_none());
            running.for_each(|it| self.count_in(&it.stats));
            pod.stats.iter().for_each(|it| self.count_in(it));
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
        let is_pod = match level {
            Level::Container { .. } => false,
            Level::Pod { .. } => true,
            Level::Qos(_) | Level::Kubepods => return,
        };
        let Some(trees) = self.trees.get() else {
            return;
        };
        let of = {
            let mut watched = self.watched();
            if is_pod && trees.unified {
                watched.add_pod(cgroup, path);
            }
            watched.of(cgroup, path)
        };
        match origin {
            Origin::Made => self.accounts().begin(cgroup, of),
            Origin::Found => {
                // What is killed from now on may be counted already, and is reported later.
                let now = clock::boottime();
                if let Some(count) = oom_counters::read_once(trees, cgroup, path) {
                    let path = || (of != CountOf::Pod).then(|| path.clone());
                    let has_programs = self.accounts().has_programs();
                    let count = self.unambiguous(count, has_programs, path);
                    if self.accounts().adopt(cgroup, of, count, now) {
                        self.ring();
                    }
                }
            }
        }
        self.watched().cgroups.insert(cgroup, path.clone());
        self.ring_if_watched();
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
        self.watched().cgroups.keys().copied().collect()
    }

    fn unwatch(&self, cgroup: CgroupId) {
        if self.watched().remove(cgroup) {
            self.ring_if_watched();
        }
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

    /// Reads what has to be before it is told what is missed, and until when all reports were heard.
    fn read_due(&self) -> (Duration, Due) {
        let heard = Duration::from_nanos(self.heard_ns.load(Ordering::Acquire));
        let (heard, mut due) = {
            let accounts = self.accounts();
            let heard = match accounts.has_programs() {
                true => heard,
                false => clock::boottime(),
            };
            (heard, accounts.due(heard))
        };
        for container in &due.containers {
            self.read(*container);
        }
        // What is counted in a container is in the count of its pod by then.
        due.pods.retain(|it| self.read(*it));
        (heard, due)
    }

    /// False: it is gone, or cannot be read.
    fn read(&self, cgroup: CgroupId) -> bool {
        let now = clock::boottime();
        let path = self.watched().cgroups.get(&cgroup).cloned();
        let trees = self.trees.get().zip(path);
        let count = trees.and_then(|(trees, path)| oom_counters::read_once(trees, cgroup, &path));
        if let Some(count) = count {
            self.count(cgroup, count, now);
        }
        count.is_some()
    }

    /// Leaves out those that say nothing.
    fn look_at_limits(&self, of: &mut BTreeMap<CgroupPath, LimitHits>) {
        let now = clock::boottime();
        of.retain(|topmost, hits| {
            let trees = self.trees.get();
            let counted = trees.and_then(|it| oom_counters::of_topmost(it, topmost));
            hits.look(counted, now);
            hits.is_known()
        });
    }

    fn accounts(&self) -> MutexGuard<'_, KillAccounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often all of a cgroup went, where the kernel does not count that: `goes` says whether it does; `None`: it is gone
/// by now.
fn times_it_went(goes: Option<bool>, has_programs: bool) -> Option<u64> {
    match (goes, has_programs) {
        (Some(false), _) => Some(0),
        // What is reported tells.
        (_, true) => None,
        // Nobody is left in it then, but for who may never be killed.
        (_, false) => Some(1),
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
    /// Below the cgroups right below the root, while no program reports kills.
    limit_hits: BTreeMap<CgroupPath, LimitHits>,
    /// While there are any of these.
    node_stalls: NodeStalls,
    /// What was counted and not known when the counts were last saved.
    saved: OpenByCgroup,
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
        limit_hits: BTreeMap::new(),
        node_stalls: NodeStalls::default(),
        saved: OpenByCgroup::new(),
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
            let cgroups = counts.watched().cgroups.clone();
            to_read.extend(self.counters.watch(&cgroups));
            for topmost in cgroups.values().filter_map(topmost) {
                self.limit_hits.entry(topmost).or_default();
            }
            to_read.extend(self.counters.all_if_killed());
        }
        self.look(to_read);
        let counts = &self.shared.kill_counts;
        let (heard, due) = counts.read_due();
        let told = {
            let mut last = counts.telling();
            let missed = counts.accounts().settle(heard, &due);
            // Of all that is missed, limits that were reached are counted by now.
            counts.look_at_limits(&mut self.limit_hits);
            if !self.limit_hits.is_empty() {
                let counted = procfs::allocation_stalls(&Root::host());
                self.node_stalls.look(counted, clock::boottime());
            }
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
            let now = clock::boottime();
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
        if missed.cause == Cause::NoPrograms {
            self.shared.kill_counts.until().compare(missed.at);
        }
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
        let owner = cgroup.owner.as_ref();
        let topmost = owner.and_then(|it| topmost(&it.path));
        let hits = topmost.and_then(|it| self.limit_hits.get(&it));
        let is_by_node = hits.is_some_and(|it| it.were_none_before(missed.at))
            && self.node_stalls.were_before(missed.at);
        let scope = is_by_node.then_some(OomScope::Node);
        let event = missed_record(&missed, &cgroup, scope, handled);
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

/// The cgroup right below the root that a cgroup is or lies in.
fn topmost(path: &CgroupPath) -> Option<CgroupPath> {
    CgroupPath::root().join(path.components().next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Tree;
    use crate::sys::scratch::Scratch;

    /// Before Linux 5.17.
    #[test]
    fn where_nobody_reports_a_cgroup_that_goes_as_a_whole_went_once() {
        for (goes, has_programs, expected) in [
            (Some(false), true, Some(0)),
            (Some(false), false, Some(0)),
            (Some(true), true, None),
            (Some(true), false, Some(1)),
            (None, true, None),
            (None, false, Some(1)),
        ] {
            assert_eq!(times_it_went(goes, has_programs), expected, "{goes:?}");
        }
    }

    #[test]
    fn a_victim_is_counted_twice_where_a_cgroup_above_goes_as_a_whole() {
        let node = Scratch::new("missed-above");
        Root::host()
            .create_dir_all(node.path("pod/c"))
            .expect("a directory of the test");
        let counts = KillCounts::default();
        counts.set_trees(&Arc::new(Trees {
            unified: true,
            trees: vec![Tree::open(BTreeSet::new(), node.directory()).expect("it is there")],
        }));
        let (never, once) = ("oom_group_kill 0\n", "oom_group_kill 1\n");
        // The file of the pod, that of the container, how often the pod went, what the kernel counts, and what that means
        // where programs report kills and where none does.
        for (pod, container, local, counted, with_programs, without) in [
            ("0\n", "0\n", "", None, Some(0), Some(0)),
            ("0\n", "0\n", never, Some(0), Some(0), Some(0)),
            ("0\n", "1\n", "", None, None, Some(1)),
            ("0\n", "1\n", never, Some(2), Some(2), Some(2)),
            ("1\n", "0\n", "", None, None, Some(1)),
            // By the limit of the container.
            ("1\n", "0\n", never, Some(0), Some(0), Some(0)),
            ("1\n", "0\n", once, Some(0), None, Some(1)),
            ("1\n", "1\n", once, Some(2), Some(2), Some(2)),
        ] {
            node.write("pod/memory.oom.group", pod);
            node.write("pod/memory.events.local", local);
            node.write("pod/c/memory.oom.group", container);
            let count = OomCount {
                kills: 3,
                group_kills: counted,
            };
            for (has_programs, expected) in [(true, with_programs), (false, without)] {
                let path = || CgroupPath::new("/pod/c").ok();
                let found = counts.unambiguous(count, has_programs, path);
                let context = format!("{pod:?} {container:?} {local:?} {counted:?} {has_programs}");
                assert_eq!(found.group_kills, expected, "{context}");
            }
        }
    }

    #[test]
    fn a_pod_that_is_gone_does_not_stand_for_its_successor() {
        let path = CgroupPath::new("/kubepods/podu").expect("a path");
        let container = path.join("c").expect("a path");
        let (old, new) = (CgroupId(7), CgroupId(9));
        let mut watched = Watched::default();
        for id in [new, old] {
            watched.add_pod(id, &path);
            watched.cgroups.insert(id, path.clone());
        }
        assert_eq!(watched.of(new, &path), CountOf::Pod);
        assert_ne!(watched.of(old, &path), CountOf::Pod);
        assert!(watched.remove(old));
        let of_container = CountOf::Cgroup { pod: Some(new) };
        assert_eq!(watched.of(CgroupId(10), &container), of_container);
    }
}
