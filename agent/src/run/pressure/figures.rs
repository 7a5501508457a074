//! What pods and their containers use: for the decision, and in full for metrics and the status.
//!
//! Where the kernel has no PSI, the time in reclaim that the eBPF programs count stands in for it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::watcher::Watcher;
use crate::config::Compat;
use crate::decide::eviction::reclaimable::{self, ContainerLook, ContainerOutlook};
use crate::model::eviction::{NodeReading, PodFigures, StallTotals};
use crate::model::history::PodSample;
use crate::model::pod::{PodUid, QosClass};
use crate::model::stats::{ContainerStats, StatsSnapshot};
use crate::model::status::PodStalls;
use crate::observe::metrics::labels::{EndedKind, Source, SourceFault};
use crate::observe::metrics::{ContainerMemory, LimitHits};
use crate::run::event::Event;
use crate::run::evictions::Candidate;
use crate::sources::stats::{Progress, Sweep, Wanted};
use crate::sys::clock;
use crate::units::Bytes;

/// A slice of the sweep: the watcher is not away from its glances for longer.
const SLICE: Duration = Duration::from_millis(2);

impl Watcher {
    /// Reads every pod for a decision. What is on disk was measured by then or is not known.
    pub(super) fn read_pods(&mut self, now: Duration) {
        let wanted = Wanted {
            processes: self.parts.policy.compat == Compat::Kubelet,
            containers: true,
        };
        let mut figures = self.parts.stats.all_figures(now, wanted);
        let is_measured = |since| self.disk.is_measured_since(since, &self.candidates);
        self.is_disk_fresh = self.disk_since.is_some_and(is_measured);
        for (uid, figures) in &mut figures {
            let Some(disk) = self.disk.of(uid) else {
                continue;
            };
            figures.storage = disk.storage;
            figures.volumes = disk.volumes;
            for (name, on_disk) in disk.containers {
                let container = figures.containers.entry(name).or_default();
                container.root_fs = on_disk.root_fs;
                container.logs = on_disk.logs;
            }
        }
        self.take_figures(figures);
    }

    fn take_figures(&mut self, mut figures: BTreeMap<PodUid, PodFigures>) {
        let reclaim = self.parts.kernel.reclaim_stalls();
        for (uid, figures) in &mut figures {
            figures.stall = figures.stall.or_else(|| Some(reclaim.as_ref()?.pod(uid)));
        }
        let history = &self.parts.background.history;
        let mut history = history.write().unwrap_or_else(PoisonError::into_inner);
        for (uid, figures) in &figures {
            if let Some(sample) = PodSample::of(figures) {
                history.push_pod(uid, sample);
            }
        }
        drop(history);
        self.figures = figures;
    }

    /// Goes on with the sweep, or begins one, for one slice. It is due until it is whole.
    pub(super) fn sweep_on(&mut self) {
        if !self.parts.stats.is_under_way() {
            self.parts.pressure.begins_sweep();
        }
        self.take_candidates();
        for ended in self.parts.pressure.take_ended() {
            self.parts.stats.show_ended(ended);
        }
        match self.parts.stats.step(SLICE, self.swept.as_deref()) {
            Progress::More => {}
            Progress::Whole(sweep) => self.take_sweep(*sweep),
        }
    }

    /// Shows a sweep. Nothing is decided by it.
    fn take_sweep(&mut self, sweep: Sweep) {
        let metrics = &self.parts.metrics;
        metrics.source_regressed(Source::Cgroup, sweep.n_regressions);
        metrics.ended_left_out(EndedKind::Container, sweep.n_left_out);
        metrics.source_errors(Source::Cgroup, SourceFault::Io, sweep.faults.io);
        metrics.source_errors(Source::Cgroup, SourceFault::Parse, sweep.faults.parse);
        let mut snapshot = sweep.snapshot;
        self.parts.kernel.kill_counts.count_all(&snapshot);
        self.sweep_due = snapshot.begun + self.parts.stats_interval;
        for pod in &mut snapshot.pods {
            let Some(disk) = self.disk.of(&pod.pod.uid) else {
                continue;
            };
            pod.ephemeral_storage = disk.storage;
            pod.volumes = disk.volumes;
            for container in pod.containers.iter_mut().filter(|it| it.ended_at.is_none()) {
                if let Some(on_disk) = disk.containers.get(&container.name) {
                    container.root_fs = on_disk.root_fs;
                    container.logs = on_disk.logs;
                }
            }
        }
        let figures = snapshot.pods.iter();
        let figures = figures.filter_map(|it| Some((it.pod.uid.clone(), it.figures()?)));
        self.take_figures(figures.collect());
        let snapshot = Arc::new(snapshot);
        let stalls = self.stalls_of(&snapshot);
        self.show_memory(&snapshot, &stalls);
        let before = self.swept.as_deref();
        self.parts.metrics.set_stats(&snapshot, before);
        self.parts.pressure.set_stalls(stalls.clone());
        self.parts.pressure.set_stats(Arc::clone(&snapshot));
        self.stalls = stalls;
        self.swept = Some(snapshot);
        // A full channel: the loop shows it with its next pass.
        self.parts.to_loop.try_send(Event::Swept).ok();
    }

    /// Memory stalls of the pods in a sweep.
    fn stalls_of(&self, snapshot: &StatsSnapshot) -> BTreeMap<PodUid, PodStalls> {
        let reclaim = self.parts.kernel.reclaim_stalls();
        let stalls = snapshot.pods.iter().map(|pod| {
            let uid = &pod.pod.uid;
            let running = pod.containers.iter().filter(|it| it.ended_at.is_none());
            let containers = running.filter_map(|it| {
                let counted = || Some(reclaim.as_ref()?.container(uid, &it.name));
                let psi = it.stats.stalls.memory.map(|it| it.totals());
                Some((it.name.clone(), psi.or_else(counted)?))
            });
            let stalls = PodStalls {
                pod: self.figures.get(uid).and_then(|it| it.stall),
                containers: containers.collect(),
            };
            (uid.clone(), stalls)
        });
        stalls.collect()
    }

    fn show_memory(&self, snapshot: &StatsSnapshot, stalls: &BTreeMap<PodUid, PodStalls>) {
        let page_size = self.parts.reader.page_size();
        let before = self.swept.as_deref();
        let shown = self.candidates.iter().flat_map(|candidate| {
            let pod = &candidate.facts.pod;
            let find = |it: &StatsSnapshot| it.pods.binary_search_by(|it| (*it.pod).cmp(pod)).ok();
            let now = find(snapshot).map(|it| &snapshot.pods[it]);
            let before = before.and_then(|it| Some(&it.pods[find(it)?]));
            let containers = now.into_iter().flat_map(|it| &it.containers);
            let running = containers.filter(|it| it.ended_at.is_none());
            running.map(move |container| {
                let name = container.name.as_str();
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
                let outlook = reclaimable::outlook(before, now, page_size);
                let memory = self.shown_memory(candidate, container, outlook);
                ((pod.namespace.as_str(), pod.name.as_str(), name), memory)
            })
        });
        let now = clock::boottime();
        self.parts.metrics.set_container_memory(shown, now);
    }

    fn shown_memory(
        &self,
        pod: &Candidate,
        container: &ContainerStats,
        outlook: ContainerOutlook,
    ) -> ContainerMemory {
        let mut containers = pod.containers.iter();
        let cgroup = containers.find(|(it, _)| *it == container.name);
        let stages = &self.parts.stages;
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
            is_relaxed: cgroup.and_then(|(_, it)| stages.is_relaxed(&pod.cgroup, it)),
        }
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

    /// By class; Guaranteed pods have no cgroup together, and so no PSI.
    pub(super) fn class_stalls(&mut self) -> BTreeMap<QosClass, StallTotals> {
        match self.parts.kernel.reclaim_stalls() {
            Some(reclaim) => QosClass::ALL
                .into_iter()
                .map(|class| (class, reclaim.class(class)))
                .collect(),
            None => self.parts.stats.qos_stalls(),
        }
    }
}
