//! What pods and their containers use: for the decision, and what the sweep shows of them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::watcher::Watcher;
use crate::config::Compat;
use crate::model::eviction::{NodeReading, PodFigures};
use crate::model::pod::PodUid;
use crate::model::stats::StatsSnapshot;
use crate::run::own::event::Event;
use crate::sources::stats::Wanted;

/// A slice of the sweep: the watcher is not away from its glances for longer.
const SLICE: Duration = Duration::from_millis(2);

impl Watcher {
    /// Reads every pod for a decision. What is on disk was measured by then or is not known.
    pub(super) fn read_pods(&mut self, now: Duration) {
        let wanted = Wanted {
            processes: self.parts.policy.compat == Compat::Kubelet,
            containers: true,
        };
        let mut figures = self.parts.sweeper.figures(now, wanted);
        let is_measured = |since| self.disk.is_measured_since(since, &self.candidates);
        self.is_disk_fresh = self.disk_since.is_some_and(is_measured);
        for (uid, figures) in &mut figures {
            let Some(disk) = self.disk.of(uid) else {
                continue;
            };
            figures.disk_at = disk.since;
            figures.storage = disk.storage;
            figures.volumes = disk.volumes;
            figures.shared = disk.shared;
            for (name, on_disk) in disk.containers {
                let container = figures.containers.entry(name).or_default();
                container.root_fs = on_disk.root_fs;
                container.logs = on_disk.logs;
            }
        }
        self.take_figures(figures);
    }

    fn take_figures(&mut self, mut figures: BTreeMap<PodUid, PodFigures>) {
        self.parts.sweeper.remember(&mut figures);
        self.figures = figures;
    }

    /// Goes on with the sweep, or begins one, for one slice.
    pub(super) fn sweep_on(&mut self) {
        self.take_candidates();
        if let Some(snapshot) = self.parts.sweeper.slice(SLICE) {
            self.take_sweep(snapshot);
        }
    }

    /// Shows a sweep, with what is on disk.
    fn take_sweep(&mut self, mut snapshot: StatsSnapshot) {
        let mut shared = BTreeMap::new();
        for pod in &mut snapshot.pods {
            let Some(disk) = self.disk.of(&pod.pod.uid) else {
                continue;
            };
            shared.insert(pod.pod.uid.clone(), disk.shared);
            pod.ephemeral_storage = disk.storage;
            pod.volumes = disk.volumes;
            pod.volume_file_systems = disk.file_systems;
            for container in pod.containers.iter_mut().filter(|it| it.ended_at.is_none()) {
                if let Some(on_disk) = disk.containers.get(&container.name) {
                    container.root_fs = on_disk.root_fs;
                    container.logs = on_disk.logs;
                }
            }
        }
        let figures = snapshot.pods.iter().filter_map(|it| {
            let uid = it.pod.uid.clone();
            let shared = shared.get(&uid).copied().unwrap_or_default();
            let figures = it.figures()?;
            Some((uid, PodFigures { shared, ..figures }))
        });
        self.take_figures(figures.collect());
        let is_relaxed = |uid: &PodUid, name: &str| {
            // In the order of their UIDs, as the loop keeps its pods.
            let found = self
                .candidates
                .binary_search_by(|it| it.facts.pod.uid.cmp(uid));
            let pod = self.candidates.get(found.ok()?)?;
            let mut containers = pod.containers.iter();
            let (_, cgroup) = containers.find(|(it, _)| it == name)?;
            self.parts.stages.is_relaxed(&pod.cgroup, cgroup)
        };
        let sweeper = &mut self.parts.sweeper;
        sweeper.show(snapshot, &self.figures, &is_relaxed);
        // A full channel: the loop shows it with its next pass.
        self.parts.to_loop.try_send(Event::Swept).ok();
    }

    /// The whole node; what waits outside of kubepods is known from PSI alone.
    pub(super) fn read_whole(&mut self, now: Duration) -> NodeReading {
        let mut node = self.parts.reader.read(now);
        if node.kubepods_stall.is_none() {
            let reclaim = self.parts.kernel.reclaim_stalls();
            node.kubepods_stall = reclaim.map(|it| it.kubepods());
        }
        node
    }
}
