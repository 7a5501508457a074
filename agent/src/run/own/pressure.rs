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
mod kept;
mod show;
mod stages;
mod watcher;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

pub(super) use self::kept::KeptState;
pub(super) use self::stages::Stages;
pub(super) use self::watcher::{Parts, spawn};
use super::evictions::Candidate;
use crate::apply::checkpoint;
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{Eviction, NodeCondition, Signal};
use crate::model::pod::PodUid;
use crate::model::relief::ReliefState;
use crate::model::status::PressureStatus;
use crate::sources::checkpoint as stored;
use crate::sources::checkpoint::CheckpointError;
use crate::sources::wakers::Bell;
use crate::sys::{FsError, Root};
use crate::units::{Bytes, Limit};

/// Directory of notes of evictions below the state directory, `<uid>.json` each.
const NOTES: &str = "evictions";
const NOTE_KIND: &str = "eviction";
const NOTE_VERSION: u32 = 1;

/// What the watcher and the loop both know.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// The pods to choose from, as of the last pass of the loop.
    candidates: Mutex<Arc<Vec<Candidate>>>,
    status: RwLock<Option<PressureStatus>>,
    /// What the node was short of when an earlier agent looked last.
    earlier: OnceLock<BTreeSet<NodeCondition>>,
    /// What the watcher changed, for the loop not to take it for a foreign hand.
    relief: RwLock<ReliefState>,
    /// The next look is to be a pass.
    is_pass_wanted: AtomicBool,
    /// Set once there is a watcher.
    bell: OnceLock<Bell>,
}

impl Pressure {
    /// `candidates`: in the order of their UIDs.
    pub(super) fn set_candidates(&self, candidates: Vec<Candidate>) {
        let mut known = lock(&self.candidates);
        if **known != candidates {
            *known = Arc::new(candidates);
        }
    }

    fn candidates(&self) -> Arc<Vec<Candidate>> {
        Arc::clone(&lock(&self.candidates))
    }

    /// `None`: the watcher has not looked yet, or there is none.
    pub(super) fn status(&self) -> Option<PressureStatus> {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    /// Of the file system of the state directory. `None`: not known now.
    pub(super) fn disk_size(&self) -> Option<Bytes> {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        let mut signals = status.as_ref()?.signals.iter();
        let disk = signals.find(|it| it.signal == Signal::NodeFsAvailable)?;
        u64::try_from(disk.capacity?).ok().map(Bytes)
    }

    fn set_status(&self, status: PressureStatus) {
        *self.status.write().unwrap_or_else(PoisonError::into_inner) = Some(status);
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

    /// What the node is known to be short of; before the watcher has looked, what it was short of before.
    pub(super) fn conditions(&self) -> BTreeSet<NodeCondition> {
        let earlier = || self.earlier.get().cloned().unwrap_or_default();
        self.known_conditions().unwrap_or_else(earlier)
    }

    /// Once, before there is a watcher.
    pub(super) fn set_earlier(&self, conditions: BTreeSet<NodeCondition>) {
        self.earlier.set(conditions).ok();
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
        Root::host().create_dir_all(&self.0)?;
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
