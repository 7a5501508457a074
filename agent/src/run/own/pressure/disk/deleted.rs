//! What pods have in files that are deleted and still open: part of what they have on disk, and found by no walk.
//!
//! Invariant: no file counts twice. A file can lose its name and, but for one that never had any, gets none again; so
//! what was found counts beside walks that began later, and until they are done what was found before does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::{PodDisk, STEP, tree};
use crate::model::eviction::DiskUse;
use crate::model::pod::PodUid;
use crate::run::own::evictions::Candidate;
use crate::sources::deleted_files::{DeletedFile, DeletedFiles};
use crate::sources::disk_use::Failing;
use crate::sys::Root;

/// The processes of a pod, or why nobody can say.
pub(super) type Processes = Box<dyn Fn(&Candidate) -> Result<BTreeSet<u32>, String> + Send>;

/// One look at a pod's open files.
#[derive(Debug)]
struct Look {
    /// Boottime.
    at: Duration,
    /// The pod's own.
    files: Vec<DeletedFile>,
}

/// Of one pod.
#[derive(Debug, Default)]
struct Looks {
    /// Older than every walk.
    counts: Option<Look>,
    /// There are walks yet to come.
    newest: Option<Look>,
    /// Looks after these.
    failing: Option<Failing>,
}

/// Of all pods that are measured.
pub(super) struct Deleted {
    root: Root,
    processes: Processes,
    pods: BTreeMap<PodUid, Looks>,
}

impl Deleted {
    pub(super) fn new(root: &Root, processes: Processes) -> Self {
        Self {
            root: root.clone(),
            processes,
            pods: BTreeMap::new(),
        }
    }

    /// Looks at exactly these pods from now on.
    pub(super) fn keep(&mut self, candidates: &[Candidate]) {
        let mut before = std::mem::take(&mut self.pods);
        let uids = candidates.iter().map(|it| it.facts.pod.uid.clone());
        let kept = uids.map(|uid| {
            let looks = before.remove(&uid).unwrap_or_default();
            (uid, looks)
        });
        self.pods = kept.collect();
    }

    /// Looks at some of the pods whose last look is older than `measured_before`. One that still waits for walks stands,
    /// unless it is older than `since`. One that failed is tried again. True: there are more of them.
    pub(super) fn look(
        &mut self,
        candidates: &[Candidate],
        now: Duration,
        measured_before: Duration,
        since: Duration,
    ) -> bool {
        let mut n_looked = 0;
        for pod in candidates {
            let looks = self.pods.entry(pod.facts.pod.uid.clone()).or_default();
            let is_due = match (&looks.failing, &looks.newest, &looks.counts) {
                (Some(failing), ..) => failing.is_due(now),
                (None, Some(newest), _) => newest.at < since,
                (None, None, Some(counts)) => counts.at < measured_before,
                (None, None, None) => true,
            };
            if !is_due {
                continue;
            }
            if n_looked >= STEP {
                return true;
            }
            match find(&self.root, &self.processes, pod) {
                Ok(found) => {
                    n_looked += found.n_looked.max(1);
                    looks.failing = None;
                    looks.newest = Some(Look {
                        at: now,
                        files: own(&self.root, pod, found.files),
                    });
                }
                Err(why) => {
                    n_looked += 1;
                    Failing::note(&mut looks.failing, why, now);
                }
            }
        }
        false
    }

    /// The pod whose looks have failed for the longest.
    pub(super) fn failing(&self) -> Option<(&PodUid, &Failing)> {
        let pods = self.pods.iter();
        let failing = pods.filter_map(|(uid, it)| Some((uid, it.failing.as_ref()?)));
        failing.min_by_key(|(_, it)| it.since)
    }

    /// The looks count whose walks are done. Whether there are any.
    pub(super) fn settle(
        &mut self,
        candidates: &[Candidate],
        walked_since: impl Fn(&Candidate) -> Option<Duration>,
    ) -> bool {
        let mut is_any = false;
        for pod in candidates {
            let Some(looks) = self.pods.get_mut(&pod.facts.pod.uid) else {
                continue;
            };
            let is_older = |it: &mut Look| walked_since(pod).is_some_and(|walked| it.at <= walked);
            if let Some(newest) = looks.newest.take_if(is_older) {
                looks.counts = Some(newest);
                is_any = true;
            }
        }
        is_any
    }

    /// What a pod has with that.
    pub(super) fn added(&self, pod: &Candidate, mut disk: PodDisk) -> PodDisk {
        let looks = self.pods.get(&pod.facts.pod.uid);
        let Some(look) = looks.and_then(|it| it.counts.as_ref()) else {
            disk.since = None;
            return disk;
        };
        disk.since = disk.since.map(|it| it.min(look.at));
        for file in &look.files {
            if let Some(storage) = &mut disk.storage {
                *storage = storage.saturating_add(file.bytes);
            }
            let mut volumes = pod.volumes.iter();
            let volume = volumes.find(|(_, path)| file.path.starts_with(path));
            let of_volume = volume.and_then(|(name, _)| disk.volumes.get_mut(name));
            let only = pod.only_container();
            let of_container = only.and_then(|it| disk.containers.get_mut(it));
            let beside = of_container.map_or(&mut disk.shared, |it| &mut it.root_fs);
            add(of_volume.unwrap_or(beside), file.bytes);
        }
        disk
    }
}

/// Files that the processes of a pod have open. Without its directory it is new, and nothing of it is there.
fn find(root: &Root, processes: &Processes, pod: &Candidate) -> Result<DeletedFiles, String> {
    let place = tree(&pod.directory, &pod.directory, false).place(root);
    let place = place.map_err(|it| it.to_string())?;
    let Some(device) = place.map(|it| it.device()) else {
        return Ok(DeletedFiles::default());
    };
    let pids = processes(pod)?;
    DeletedFiles::of(root, &pids, device).map_err(|it| it.to_string())
}

/// The files below the pod's own directories, by the paths that these have in the configuration: the kernel tells paths
/// without links. What a pod has open of the host, as logs of others, is not its own.
fn own(root: &Root, pod: &Candidate, files: Vec<DeletedFile>) -> Vec<DeletedFile> {
    if files.is_empty() {
        return files;
    }
    // Of the directories above them: what is mounted over one of these is asked nothing.
    let without_links = |it: &PathBuf| match (it.parent(), it.file_name()) {
        (Some(above), Some(name)) => root.without_links(above).join(name),
        _ => it.clone(),
    };
    let directories = [&pod.directory, &pod.logs].map(|it| (it, without_links(it)));
    let named = |file: DeletedFile| {
        let path = directories.iter().find_map(|(directory, without_links)| {
            let below = file.path.strip_prefix(without_links).ok()?;
            Some(directory.join(below))
        })?;
        Some(DeletedFile { path, ..file })
    };
    files.into_iter().filter_map(named).collect()
}

fn add(disk_use: &mut DiskUse, bytes: u64) {
    let more = |n: &mut Option<u64>, more: u64| {
        if let Some(n) = n {
            *n = n.saturating_add(more);
        }
    };
    more(&mut disk_use.bytes, bytes);
    more(&mut disk_use.inodes, 1);
}

#[cfg(test)]
mod tests;
