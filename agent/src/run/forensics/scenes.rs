//! Reads what stood around an OOM kill, on a thread of its own. In: kills. Out: their scenes, one for
//! each, in order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use super::{Kill, Shared, is_stale};
use crate::model::forensics::{CgroupUse, Part, RecordId, Scene};
use crate::model::record::EventDetail;
use crate::sources::oom_scene::{Place, SceneReader, Usage};
use crate::sys::clock;

/// The parts of a record that are read from files.
pub(super) const PARTS: [Part; 5] = [
    Part::Siblings,
    Part::Children,
    Part::Pods,
    Part::Processes,
    Part::Stat,
];

/// No part of a scene is begun this long after the first one: a node that is short of memory can take
/// a second for what takes a millisecond otherwise, and the scene of the next kill waits meanwhile,
/// which says nothing about it any more after [`STALE`](super::STALE).
const TIME: Duration = Duration::from_millis(500);

/// The scene of a record and the parts that there was no time for; without, it came too late.
#[derive(Debug)]
pub(super) struct SceneOf {
    pub(super) id: RecordId,
    pub(super) scene: Option<(Scene, BTreeSet<Part>)>,
}

pub(super) struct Scenes {
    reader: SceneReader,
    shared: Arc<Shared>,
}

impl Scenes {
    pub(super) fn new(reader: SceneReader, shared: Arc<Shared>) -> Self {
        Self { reader, shared }
    }

    /// Until nobody asks any more, or nobody wants to know.
    pub(super) fn work(&self, asked: &Receiver<Box<Kill>>, read: &Sender<SceneOf>) {
        for kill in asked {
            let is_late = is_stale(&kill, clock::boottime());
            let scene = SceneOf {
                id: kill.id,
                scene: (!is_late).then(|| self.scene(&kill)),
            };
            if read.send(scene).is_err() {
                return;
            }
        }
    }

    /// The scene of a kill, and the parts that there was no time for.
    fn scene(&self, kill: &Kill) -> (Scene, BTreeSet<Part>) {
        let until = clock::boottime() + TIME;
        let limit = match &kill.event.detail {
            Some(EventDetail::Oom(detail)) => detail.limit.as_ref(),
            _ => None,
        };
        let place = Place {
            limit: limit.and_then(|it| it.cgroup_path.as_deref()),
            victim: kill.victim_path.as_deref(),
            pod: kill.pod_path.as_deref(),
        };
        let mut cut = BTreeSet::from(PARTS);
        let mut has_time = |part| {
            let has_time = clock::boottime() < until;
            if has_time {
                cut.remove(&part);
            }
            has_time
        };
        // Processes come first, since they are about to be gone.
        let processes = has_time(Part::Processes).then(|| {
            let is_dying = |pid| self.shared.victims.has(pid, clock::boottime());
            self.reader.processes(place, is_dying)
        });
        let mut scene = match has_time(Part::Stat) {
            true => self.reader.scene(place),
            false => Scene::default(),
        };
        (scene.processes, scene.n_processes) = processes.unwrap_or_default();
        if has_time(Part::Siblings)
            && has_time(Part::Children)
            && let Some(limit) = place.limit
        {
            let around = self.reader.around(limit);
            scene.siblings = self.named(around.siblings);
            scene.children = self.named(around.children);
        }
        if has_time(Part::Pods) {
            let pods = self.shared.index().pods();
            let pods = self.reader.usages(pods.iter().map(|it| it.path.as_str()));
            scene.pods = self.named(pods);
        }
        (scene, cut)
    }

    /// Says whose they are.
    fn named(&self, usages: Vec<Usage>) -> Vec<CgroupUse> {
        let index = self.shared.index();
        let named = usages.into_iter().map(|it| {
            let whose = index.get(it.id).unwrap_or_default();
            CgroupUse {
                cgroup_path: it.cgroup_path,
                usage_bytes: it.bytes,
                pod: whose.pod.as_deref().cloned(),
                container: whose.container.as_deref().map(str::to_owned),
            }
        });
        named.collect()
    }
}
