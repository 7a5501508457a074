//! The loop's side of the sweep: which pods and containers there are to read, and what those had
//! used that are gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use super::pods::{Instance, PodEntry};
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::ContainerState;
use crate::model::eviction::DiskUse;
use crate::model::pod::PodUid;
use crate::model::stats::{
    CgroupStats, ContainerStats, EndedContainer, KnownContainer, KnownPod, ProcessLimits,
};
use crate::model::time::WallTime;
use crate::sys::clock;

/// Wall time of a moment of boottime.
struct Wall {
    now: Duration,
    wall: Duration,
}

impl Wall {
    fn now() -> Self {
        Self {
            now: clock::boottime(),
            wall: clock::wall(),
        }
    }

    fn at(&self, boottime: Duration) -> WallTime {
        WallTime::from_epoch(self.wall.saturating_sub(self.now.saturating_sub(boottime)))
    }
}

impl PodEntry {
    /// Takes what the sweep is to know from the state of the pod.
    fn renew_known(&mut self, wall: &Wall) {
        self.is_known_stale = false;
        let before = self.known.as_ref();
        let running = self.instances.iter().filter(|(_, it)| it.ended.is_none());
        let containers = running.map(|(name, it)| {
            // The clocks drift apart: a moment has the wall time that it first had.
            let mut before = before.iter().flat_map(|it| &it.containers);
            let before = before.find(|old| old.runtime_id == it.id.as_str());
            let started_at = before.and_then(|it| it.started_at);
            let started_at = started_at.or_else(|| self.started_at(name).map(|it| wall.at(it)));
            self.known_container(name, it, started_at)
        });
        let known = KnownPod {
            pod: Arc::clone(&self.pod_ref),
            qos: self.qos,
            cgroup: self.cgroup.clone(),
            started_at: self.state.accepted_at,
            sandbox: None,
            containers: containers.collect(),
        };
        if self.known.as_deref() != Some(&known) {
            self.known = Some(Arc::new(known));
        }
    }

    fn known_container(
        &self,
        name: &str,
        instance: &Instance,
        started_at: Option<WallTime>,
    ) -> KnownContainer {
        let pod = &self.state.pod;
        let mut spec = pod.all_containers();
        let mut status = self.state.containers.iter();
        KnownContainer {
            name: name.to_owned(),
            cgroup: instance.cgroup.clone(),
            runtime_id: instance.id.as_str().to_owned(),
            image: spec
                .find(|it| it.name == name)
                .map_or_else(String::new, |it| it.image.clone()),
            started_at,
            restarts: status.find(|it| it.name == name).map_or(0, |it| it.attempt),
            oom_events: self.state.oom_kills.get(name).copied().unwrap_or(0),
            pid: instance.process.map(|it| it.pid),
        }
    }

    /// Boottime; `None`: it does not run.
    fn started_at(&self, container: &str) -> Option<Duration> {
        let mut status = self.state.containers.iter();
        match status.find(|it| it.name == container)?.state {
            ContainerState::Running { started_at } => Some(started_at),
            _ => None,
        }
    }
}

impl Loop {
    /// What the sweep is to read; `uids` were decided upon in this pass.
    pub(super) fn known_pods(&mut self, uids: &[PodUid]) -> Vec<Arc<KnownPod>> {
        let wall = Wall::now();
        for uid in uids {
            if let Some(entry) = self.pods.get_mut(uid) {
                entry.is_known_stale = true;
            }
        }
        let mut known = Vec::with_capacity(self.pods.len());
        for entry in self.pods.values_mut() {
            if entry.is_known_stale || entry.known.is_none() {
                entry.renew_known(&wall);
            }
            known.extend(entry.known.clone());
        }
        known
    }
}

/// What an instance had used, if `cgroup` is that of one that ended. `read` reads it.
pub(super) fn ended_container(
    pods: &BTreeMap<PodUid, PodEntry>,
    cgroup: &CgroupPath,
    read: impl Fn() -> Option<CgroupStats>,
) -> Option<EndedContainer> {
    let (entry, name, instance, termination) = pods.values().find_map(|entry| {
        let mut instances = entry.instances.iter();
        let (name, instance) = instances.find(|(_, it)| it.cgroup == *cgroup)?;
        Some((entry, name, instance, instance.ended.as_ref()?))
    })?;
    let stats = read()?;
    let wall = Wall::now();
    let started_at = termination.started_at.map(|it| wall.at(it));
    let known = entry.known_container(name, instance, started_at);
    Some(EndedContainer {
        pod: Arc::clone(&entry.pod_ref),
        qos: entry.qos,
        pod_cgroup: entry.cgroup.clone(),
        pod_started_at: entry.state.accepted_at,
        at: termination.finished_at,
        container: ContainerStats {
            name: known.name,
            id: cgroup.to_string(),
            runtime_id: known.runtime_id,
            image: known.image,
            started_at,
            ended_at: Some(wall.at(termination.finished_at)),
            restarts: known.restarts,
            oom_events: known.oom_events,
            stats,
            root_fs: DiskUse::default(),
            logs: DiskUse::default(),
            descriptors: None,
            limits: ProcessLimits::default(),
        },
    })
}
