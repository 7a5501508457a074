//! What the node is short of: the thread that watches and relieves, and what it shares with the
//! loop.
//!
//! The watcher is apart from the loop because a pass of the loop over a full node takes longer than
//! a fast leak takes to fill the node. It owns the state of eviction, chooses, and under a hard
//! threshold kills by itself; before that it leaves a note on disk and tells the loop, so that no
//! crash and no race makes an evicted pod come back.
//!
//! Invariants: one thread decides, so no two victims are chosen from one reading. A reading that
//! could not be had leads to nothing being done. The loop never waits for the watcher.

mod act;
mod disk;
mod figures;
mod show;
mod stages;
mod watcher;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

pub(super) use self::stages::Stages;
pub(super) use self::watcher::{Parts, spawn};
use super::evictions::Candidate;
use crate::apply::checkpoint;
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{Eviction, NodeCondition};
use crate::model::pod::PodUid;
use crate::model::relief::ReliefState;
use crate::model::stats::{EndedContainer, KnownPod, StatsSnapshot};
use crate::model::status::{PodStalls, PressureStatus};
use crate::sources::checkpoint as stored;
use crate::sources::checkpoint::CheckpointError;
use crate::sources::wakers::Bell;
use crate::sys::FsError;
use crate::units::Limit;

/// Directory of notes of evictions below the state directory, `<uid>.json` each.
const NOTES: &str = "evictions";
const NOTE_KIND: &str = "eviction";
const NOTE_VERSION: u32 = 1;

/// A rate over a shorter time says little, and sweeps for a shorter time cost too much.
const MIN_SPAN: Duration = Duration::from_secs(1);

/// What the watcher and the loop both know.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    known: Mutex<Known>,
    /// Instances that ended since the last look.
    ended: Mutex<Vec<EndedContainer>>,
    /// The last sweep, for whoever shows it.
    stats: watch::Sender<Option<Arc<StatsSnapshot>>>,
    /// The last sweep at least [`MIN_SPAN`] before that one: a rate needs two.
    stats_before: Mutex<Option<Arc<StatsSnapshot>>>,
    status: RwLock<Option<PressureStatus>>,
    /// Memory stalls of pods, as of the last reading of all containers.
    stalls: RwLock<BTreeMap<PodUid, PodStalls>>,
    /// What the watcher changed, for the loop not to take it for a foreign hand.
    relief: RwLock<ReliefState>,
    /// The next look is to be a pass.
    is_pass_wanted: AtomicBool,
    /// A sweep is to come before its time.
    is_sweep_wanted: AtomicBool,
    /// Set once there is a watcher.
    bell: OnceLock<Bell>,
}

/// The pods of the node, as of the last pass of the loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Those to choose from.
    pub candidates: Arc<Vec<Candidate>>,
    /// All, for the sweep.
    pub pods: Arc<Vec<Arc<KnownPod>>>,
}

impl Pressure {
    /// True: the pods are others, or run other containers.
    pub(super) fn set_pods(&self, candidates: Vec<Candidate>, pods: Vec<Arc<KnownPod>>) -> bool {
        let mut known = lock(&self.known);
        if *known.candidates != candidates {
            known.candidates = Arc::new(candidates);
        }
        let is_other = *known.pods != pods;
        if is_other {
            known.pods = Arc::new(pods);
        }
        is_other
    }

    fn known(&self) -> Known {
        lock(&self.known).clone()
    }

    /// An instance has ended; the sweep goes on showing it for a while.
    pub(super) fn add_ended(&self, ended: EndedContainer) {
        lock(&self.ended).push(ended);
    }

    fn take_ended(&self) -> Vec<EndedContainer> {
        std::mem::take(&mut *lock(&self.ended))
    }

    /// `None`: there was no sweep yet.
    pub(super) fn stats(&self) -> Option<Arc<StatsSnapshot>> {
        self.stats.borrow().clone()
    }

    /// For rates: a sweep at least a second before the last one.
    pub(super) fn stats_before(&self) -> Option<Arc<StatsSnapshot>> {
        lock(&self.stats_before).clone()
    }

    pub(super) fn subscribe_stats(&self) -> watch::Receiver<Option<Arc<StatsSnapshot>>> {
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

    /// Asks for a sweep before the next is due: at once, or a second after the last one.
    pub(super) fn ask_stats(&self) {
        if !self.is_sweep_wanted.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wants_sweep(&self) -> bool {
        self.is_sweep_wanted.load(Ordering::Relaxed)
    }

    /// It begins; who asks from now on wants another.
    fn begins_sweep(&self) {
        self.is_sweep_wanted.store(false, Ordering::Relaxed);
    }

    /// `None`: the watcher has not looked yet, or there is none.
    pub(super) fn status(&self) -> Option<PressureStatus> {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    fn set_status(&self, status: PressureStatus) {
        *self.status.write().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// Empty where nothing is known of the pod.
    pub(super) fn stalls_of(&self, uid: &PodUid) -> PodStalls {
        let stalls = self.stalls.read().unwrap_or_else(PoisonError::into_inner);
        stalls.get(uid).cloned().unwrap_or_default()
    }

    fn set_stalls(&self, stalls: BTreeMap<PodUid, PodStalls>) {
        *self.stalls.write().unwrap_or_else(PoisonError::into_inner) = stalls;
    }

    fn set_relief(&self, state: &ReliefState) {
        let mut relief = self.relief.write().unwrap_or_else(PoisonError::into_inner);
        relief.clone_from(state);
    }

    /// What `memory.high` of a cgroup is to be for now, whatever its pod asks for.
    pub(super) fn memory_high_of(&self, cgroup: &CgroupPath) -> Option<Limit> {
        let relief = self.relief.read().unwrap_or_else(PoisonError::into_inner);
        relief.memory_high_of(cgroup)
    }

    /// What the node is known to be short of.
    pub(super) fn conditions(&self) -> BTreeSet<NodeCondition> {
        self.known_conditions().unwrap_or_default()
    }

    /// `None`: nobody has looked yet.
    pub(super) fn known_conditions(&self) -> Option<BTreeSet<NodeCondition>> {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        status.as_ref().map(|it| it.conditions.clone())
    }

    /// Makes the watcher read the whole node now: a limit that it compares with was written.
    pub(super) fn wake_for_pass(&self) {
        self.is_pass_wanted.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn takes_pass(&self) -> bool {
        self.is_pass_wanted.swap(false, Ordering::Relaxed)
    }

    /// Makes the watcher look now.
    pub(super) fn wake(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }
}

/// Notes of evictions that the loop has not stored with their pods yet. They outlive the agent, not
/// the node: there is no sync in them, since memory may be too short to wait for a disk.
#[derive(Clone, Debug)]
pub(super) struct Notes(PathBuf);

impl Notes {
    pub(super) fn below(state_directory: &Path) -> Self {
        Self(state_directory.join(NOTES))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    fn path(&self, uid: &PodUid) -> PathBuf {
        self.0.join(format!("{uid}.json"))
    }

    fn write(&self, eviction: &Eviction) -> Result<(), FsError> {
        let path = self.path(&eviction.victim.pod.uid);
        checkpoint::replace(&path, NOTE_KIND, NOTE_VERSION, eviction)
    }

    #[expect(clippy::type_complexity, reason = "one result per note, with its path")]
    pub(super) fn read(
        &self,
    ) -> Result<Vec<(PathBuf, Result<Eviction, CheckpointError>)>, FsError> {
        stored::read_all(&self.0, ".json", NOTE_KIND, NOTE_VERSION)
    }

    /// Stored with the pod now.
    pub(super) fn remove(&self, uid: &PodUid) -> Result<(), FsError> {
        checkpoint::remove(&self.path(uid))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
