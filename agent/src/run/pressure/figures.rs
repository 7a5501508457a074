//! What pods and their containers use: for the decision, and in full for metrics and the status.
//!
//! Where the kernel has no PSI, the time in reclaim that the eBPF programs count stands in for it.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use super::watcher::Watcher;
use crate::config::Compat;
use crate::decide::eviction::reclaimable;
use crate::model::container_memory::ContainerReading;
use crate::model::eviction::{NodeReading, StallTotals};
use crate::model::history::PodSample;
use crate::model::pod::QosClass;
use crate::model::status::PodStalls;
use crate::observe::metrics::{ContainerMemory, LimitHits};
use crate::run::evictions::Candidate;
use crate::sources::pod_reading::Wanted;
use crate::units::Bytes;

/// Between two readings of all pods on a quiet node: what the record of an OOM kill shows of the
/// time before it. Between two full readings of containers at least.
const SWEEP: Duration = Duration::from_secs(5);

impl Watcher {
    /// Reads every pod. What is on disk was measured by then or is not known.
    pub(super) fn sweep(&mut self, now: Duration) {
        let wanted = Wanted {
            processes: self.parts.policy.compat == Compat::Kubelet,
            containers: true,
        };
        self.figures = self.parts.pods.sweep(now, wanted);
        let reclaim = self.parts.kernel.reclaim_stalls();
        for (uid, figures) in &mut self.figures {
            figures.stall = figures.stall.or_else(|| Some(reclaim.as_ref()?.pod(uid)));
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
        let history = &self.parts.background.history;
        let mut history = history.write().unwrap_or_else(PoisonError::into_inner);
        for (uid, figures) in &self.figures {
            if let Some(sample) = PodSample::of(figures) {
                history.push_pod(uid, sample);
            }
        }
    }

    /// Reads every container in full, and shows it. Nothing is decided by it, so it comes after
    /// what was decided.
    pub(super) fn sweep_containers(&mut self, now: Duration) {
        self.sweep_due = now + SWEEP;
        let mut containers = self.parts.pods.sweep_containers(now);
        if let Some(reclaim) = self.parts.kernel.reclaim_stalls() {
            for (uid, of_pod) in &mut containers {
                for (name, it) in of_pod {
                    let stall = it.stall.unwrap_or_else(|| reclaim.container(uid, name));
                    it.stall = Some(stall);
                }
            }
        }
        let before = std::mem::replace(&mut self.containers, containers);
        let page_size = self.parts.reader.page_size();
        let watcher = &*self;
        let shown = watcher.candidates.iter().flat_map(|candidate| {
            let pod = &candidate.facts.pod;
            let before = before.get(&pod.uid);
            let containers = watcher.containers.get(&pod.uid).into_iter().flatten();
            containers.map(move |(name, reading)| {
                let before = before.and_then(|it| it.get(name));
                let memory = watcher.shown_memory(candidate, name, before, reading, page_size);
                let key = (pod.namespace.as_str(), pod.name.as_str(), name.as_str());
                (key, memory)
            })
        });
        self.parts.metrics.set_container_memory(shown, now);
        self.publish_stalls();
    }

    fn shown_memory(
        &self,
        pod: &Candidate,
        name: &str,
        before: Option<&ContainerReading>,
        now: &ContainerReading,
        page_size: u64,
    ) -> ContainerMemory {
        let outlook = reclaimable::outlook(before, now, page_size);
        let mut containers = pod.containers.iter();
        let cgroup = containers.find(|(it, _)| it == name).map(|(_, it)| it);
        let stages = &self.parts.stages;
        ContainerMemory {
            cgroup_id: now.cgroup_id.0,
            hits: LimitHits {
                low: now.events.low,
                high: now.events.high,
                max: now.events.max,
            },
            peak: now.peak.map(Bytes),
            reclaimable: outlook.reclaimable.map(Bytes),
            time_to_limit: outlook.time_to_limit,
            memory_min: now.settings.min.map(Bytes),
            memory_low: now.settings.low.map(Bytes),
            memory_high: now.settings.high.map(Bytes),
            is_relaxed: cgroup.and_then(|it| stages.is_relaxed(&pod.cgroup, it)),
        }
    }

    fn publish_stalls(&self) {
        let stalls = self.figures.iter().map(|(uid, figures)| {
            let containers = self.containers.get(uid).into_iter().flatten();
            let containers = containers.filter_map(|(name, it)| Some((name.clone(), it.stall?)));
            let stalls = PodStalls {
                pod: figures.stall,
                containers: containers.collect(),
            };
            (uid.clone(), stalls)
        });
        self.parts.pressure.set_stalls(stalls.collect());
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
            None => self.parts.pods.qos_stalls(),
        }
    }
}
