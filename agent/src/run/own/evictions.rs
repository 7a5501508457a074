//! The loop's side of eviction: which pods there are to choose from, and what becomes of one that
//! was chosen. Choosing and killing are the watcher's (`pressure`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use super::adopt::pod_of_file;
use super::event::Sender;
use super::pods::{PodEntry, StatePaths};
use super::pressure::{self, KeptState, Parts, Stages};
use crate::apply::checkpoint;
use crate::apply::recording::{Recorder, RecordingLimits};
use crate::apply::relief::ReliefWriter;
use crate::config::Compat;
use crate::decide::eviction::story::{Step, StoryHeader, StoryKind};
use crate::decide::eviction::thresholds::ThresholdError;
use crate::decide::eviction::{FsLayout, Policy};
use crate::model::cgroup::{DesiredCgroup, FileValue};
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{Eviction, PodFacts};
use crate::model::pod::{PodUid, VolumeSource};
use crate::model::time::WallTime;
use crate::run::sweep::{self, Sweeper};
use crate::run::worker::Worker;
use crate::sources::ReadError;
use crate::sources::checkpoint::CheckpointError;
use crate::sources::node_reading::NodeReader;
use crate::sources::psi;
use crate::sources::wakers::{Wakers, WakersError};
use crate::sys::filesystem::FilesystemProbe;
use crate::sys::patience::Patience;
use crate::sys::{FsError, Root, clock};

/// The thread that decides waits this long for a disk in each pass: a leak of 2 GB/s gets 40 MB.
pub(super) const DISK_TIME: Duration = Duration::from_millis(20);

/// Why there is no watcher.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("eviction thresholds")]
    Thresholds(#[from] ThresholdError),
    #[error("the directory of eviction notes")]
    Notes(#[from] FsError),
    #[error("read the node")]
    Node(#[from] ReadError),
    #[error("start the thread that asks disks")]
    Patience(#[from] std::io::Error),
    #[error(transparent)]
    Wakers(#[from] WakersError),
    #[error(transparent)]
    Run(#[from] crate::run::RunError),
}

/// A pod that can be evicted, with where its use can be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate {
    pub facts: Arc<PodFacts>,
    pub cgroup: CgroupPath,
    /// Containers with a cgroup, by name.
    pub containers: Vec<(String, CgroupPath)>,
    /// The directory with the logs of its containers, one directory each.
    pub logs: PathBuf,
    /// Its own directory, volumes and all.
    pub directory: PathBuf,
    pub volumes: Vec<(String, PathBuf)>,
    /// Directories of the host among its volumes, whose files are not its own.
    pub host_paths: Vec<PathBuf>,
    /// It is on its way out, and is killed at this time (boottime).
    pub ends_at: Option<Duration>,
}

impl Candidate {
    /// Whose the files in the pod's directory are: containers share it. `None`: nobody can tell, or who can has ended.
    pub(super) fn only_container(&self) -> Option<&str> {
        match (&*self.facts.containers, &*self.containers) {
            ([_] | [], [(name, _)]) => Some(name),
            _ => None,
        }
    }

    /// Files in some of its volumes hold memory of the node, whether it has processes or not.
    pub(super) fn has_volumes_in_memory(&self) -> bool {
        let mut volumes = self.volumes.iter();
        volumes.any(|(name, _)| self.is_volume_in_memory(name))
    }

    /// Of `volumes`.
    pub(super) fn is_volume_in_memory(&self, name: &str) -> bool {
        let mut facts = self.facts.volumes.iter();
        facts.any(|it| it.name == name && !it.is_local)
    }

    fn of(entry: &PodEntry, facts: &Arc<PodFacts>, paths: &StatePaths) -> Self {
        let pod = &entry.state.pod;
        let volumes = pod.volumes.iter().filter_map(|it| match it.source {
            VolumeSource::EmptyDir { .. } => {
                Some((it.name.clone(), paths.volume(&pod.uid, &it.name)))
            }
            VolumeSource::HostPath { .. } | VolumeSource::Other { .. } => None,
        });
        let host_paths = pod.volumes.iter().filter_map(|it| match &it.source {
            VolumeSource::HostPath { path, .. } => Some(PathBuf::from(path)),
            VolumeSource::EmptyDir { .. } | VolumeSource::Other { .. } => None,
        });
        Self {
            facts: Arc::clone(facts),
            cgroup: entry.cgroup.clone(),
            containers: entry
                .instances
                .iter()
                .filter(|(_, it)| it.ended.is_none())
                .map(|(name, it)| (name.clone(), it.cgroup.clone()))
                .collect(),
            logs: paths.pod_logs(&entry.pod_ref),
            directory: paths.pod_dir(&pod.uid),
            volumes: volumes.collect(),
            host_paths: host_paths.collect(),
            ends_at: entry
                .state
                .ending()
                .map(|it| it.requested_at.saturating_add(it.grace)),
        }
    }
}

impl Loop {
    /// Takes over an eviction. A pod that is gone, over or evicted already is left as it is.
    pub(super) fn evict(&mut self, eviction: Eviction) {
        let uid = &eviction.victim.pod.uid;
        self.noted.insert(uid.clone());
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        if entry.is_finished() || entry.state.phase.is_terminal() {
            return;
        }
        entry.is_dirty = true;
        entry.is_unsaved = true;
        match &mut entry.state.eviction {
            None => {
                self.told.evicted(&entry.pod_ref, &eviction.victim);
                entry.state.eviction = Some(eviction);
            }
            // Asked again: only an earlier end counts, and the first reason stays.
            Some(first) => {
                let end = first.at.saturating_add(first.victim.grace);
                if eviction.at.saturating_add(eviction.victim.grace) < end {
                    first.at = eviction.at;
                    first.victim.grace = eviction.victim.grace;
                }
            }
        }
    }

    /// Starts the watcher. Without it the node is run without eviction, and says so.
    pub(super) fn watch_pressure(&mut self, to_loop: Sender) -> Option<Worker> {
        match self.try_watch_pressure(to_loop) {
            Ok(handle) => Some(handle),
            Err(error) => {
                let why = crate::observe::chain(&error);
                self.told
                    .node("EvictionOff", format!("nothing is evicted: {why}"));
                None
            }
        }
    }

    fn try_watch_pressure(&self, to_loop: Sender) -> Result<Worker, WatchError> {
        let (config, own, node) = (&self.config, &self.own, &self.node);
        let root = Root::host();
        let trees = node.reader.trees();
        let kubepods = &self.hands.plan.kubepods_path();
        let page_size = node.identity.page_size.0;
        // With the process runtime images and writable layers are not apart from the state
        // directory.
        let policy = Policy::new(&config.kubelet, FsLayout::One, own.compat)?;
        // A full disk shall not keep anybody from acting on it: a note makes the directory where it is missing.
        if let Err(error) = root.create_dir_all(self.eviction_notes.directory()) {
            tracing::warn!(
                error = crate::observe::chain(&error),
                "the directory of eviction notes"
            );
        }
        let state_directory = &config.state_directory;
        let patience = Patience::start(DISK_TIME)?;
        let nodefs = FilesystemProbe::new(&root, state_directory, &patience);
        // Kubelet begins anew.
        let kept = (own.compat == Compat::Ballast)
            .then(|| KeptState::open(state_directory, self.boot_id(), patience.clone()));
        if let Some(kept) = &kept {
            self.pressure.set_earlier(kept.conditions());
        }
        let wakers = Wakers::open(&root, Arc::clone(trees), kubepods)?;
        self.shared.set_reclaim_bell(wakers.tracepoint_bell());
        if !psi::is_kept(&root) {
            self.shared.count_reclaim();
        }
        Ok(pressure::spawn(Parts {
            pressure: Arc::clone(&self.pressure),
            kubepods: kubepods.clone(),
            background: Arc::clone(&self.background),
            method: own.eviction.memory_method,
            stall: own.eviction.stall.clone(),
            stages: Stages::new(
                own.eviction.stages,
                node.reader.clone(),
                kubepods,
                page_size,
                state_directory,
                patience.clone(),
            ),
            kept,
            cgroups: node.reader.clone(),
            reader: NodeReader::open(
                &root,
                Arc::clone(trees),
                Some(kubepods),
                nodefs.clone(),
                page_size,
            )?,
            patience,
            kernel: Arc::clone(&self.shared),
            sweeper: self.sweeper(nodefs),
            wakers,
            writer: ReliefWriter::new(self.hands.writer.clone(), root, page_size),
            notes: self.eviction_notes.clone(),
            recorder: self.recorder(&policy),
            policy,
            told: self.told.clone(),
            metrics: self.metrics.clone(),
            to_loop,
        })?)
    }

    fn sweeper(&self, nodefs: FilesystemProbe) -> Sweeper {
        let parts = sweep::Parts {
            readings: Arc::clone(&self.readings),
            kernel: Arc::clone(&self.shared),
            background: Arc::clone(&self.background),
            metrics: self.metrics.clone(),
            interval: self.config.stats_interval,
        };
        Sweeper::new(
            &self.node,
            Some(self.hands.plan.qos_cgroups()),
            nodefs,
            parts,
        )
    }

    /// `None`: nothing is to be recorded, or it cannot be, which is told.
    fn recorder(&self, policy: &Policy) -> Option<Recorder<Step>> {
        let record = self.own.eviction.record.as_ref()?;
        let header = StoryHeader {
            kind: StoryKind::EvictionStory,
            ballast: env!("CARGO_PKG_VERSION").to_owned(),
            began: WallTime::from_epoch(clock::wall()),
            began_boottime: clock::boottime(),
            policy: policy.clone(),
            title: None,
        };
        let limits = RecordingLimits {
            max_bytes: record.max_bytes,
            max_file_bytes: record.max_bytes_per_hour,
        };
        match Recorder::open(&record.directory, limits, &header) {
            Ok(recorder) => Some(recorder),
            Err(error) => {
                let why = crate::observe::chain(&error);
                self.told.node("RecordingOff", why);
                None
            }
        }
    }

    /// Pods that may have been evicted: there is a note that cannot be read, by the kernel or this version of the agent.
    pub(super) fn unread_notes(&self) -> Result<BTreeSet<PodUid>, FsError> {
        let notes = self.eviction_notes.read()?;
        let is_unread = |note: &Result<_, CheckpointError>| {
            note.as_ref().is_err_and(|error| !error.is_damage())
        };
        let unread = notes.iter().filter(|(_, note)| is_unread(note));
        Ok(unread.filter_map(|(path, _)| pod_of_file(path)).collect())
    }

    /// Takes over what the watcher of an earlier agent decided last. A note that is damaged is set aside: its pod is then
    /// one whose containers were killed. For one that cannot be read yet, the pod waits.
    pub(super) fn recover_evictions(&mut self, now: Duration) {
        let notes = match self.eviction_notes.read() {
            Ok(notes) => notes,
            Err(error) => {
                self.told
                    .node("StateUnreadable", crate::observe::chain(&error));
                return;
            }
        };
        for (path, note) in notes {
            match note {
                Ok(mut eviction) => {
                    // The clock of an earlier boot may be ahead of this one.
                    eviction.at = eviction.at.min(now);
                    self.evict(eviction);
                }
                Err(error) if !error.is_damage() => {
                    let why = crate::observe::chain(&error);
                    let message = format!(
                        "{why}; its pod is left as it is until it can be read, or is removed"
                    );
                    self.told.node("EvictionNoteUnread", message);
                }
                Err(error) => {
                    let why = crate::observe::chain(&error);
                    self.told
                        .node("EvictionNoteUnusable", format!("{why}; it is set aside"));
                    if let Err(error) = checkpoint::set_aside(&path) {
                        tracing::warn!(error = crate::observe::chain(&error), "set aside");
                    }
                }
            }
        }
    }

    /// Removes the notes of evictions that are stored with their pods, or whose pods are not there any more.
    pub(super) fn drop_eviction_notes(&mut self) {
        let (pods, notes) = (&self.pods, &self.eviction_notes);
        let undecided = &self.undecided;
        self.noted.retain(|uid| {
            if undecided.has(uid) || pods.get(uid).is_some_and(|it| it.is_unsaved) {
                return true;
            }
            let removed = notes.remove(uid);
            if let Err(error) = &removed {
                tracing::warn!(error = crate::observe::chain(error), "remove a note");
            }
            removed.is_err()
        });
    }

    /// `memory.high` is what the watcher made it for as long as there is pressure.
    pub(super) fn keep_relief(&self, cgroup: &mut DesiredCgroup) {
        let Some(limit) = self.pressure.memory_high_of(&cgroup.path) else {
            return;
        };
        for (file, value) in &mut cgroup.files {
            if file.name == "memory.high" {
                *value = FileValue::Limit(limit);
            }
        }
    }

    /// Tells the watcher which pods there are, and asks for a sweep if they are others than before.
    /// `uids` were decided upon in this pass.
    pub(super) fn publish_pods(&mut self, uids: &[PodUid]) {
        let known = self.known_pods(uids);
        let candidates: Vec<Candidate> = self
            .pods
            .values()
            .filter(|it| it.is_active() && it.cgroup_id.is_some())
            .map(|it| Candidate::of(it, &it.facts, &self.paths))
            .collect();
        self.pressure.set_candidates(candidates);
        if self.readings.set_pods(known) {
            self.readings.ask();
        }
    }
}
