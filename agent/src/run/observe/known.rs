//! Which pods and containers there are, as the index of cgroups has them: without names, which nobody has told.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::KubeTree;
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup::Controller;
use crate::model::cgroup_path::CgroupPath;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::stats::{KnownContainer, KnownPod};
use crate::model::time::WallTime;
use crate::observe::metrics::{ContainerLabels, Metrics};
use crate::sys::{Dir, clock};

/// A pod of which nobody has told the name.
pub(super) fn unnamed(uid: &PodUid) -> Arc<PodRef> {
    Arc::new(PodRef {
        namespace: String::new(),
        name: String::new(),
        uid: uid.clone(),
    })
}

/// OOM kills that were counted in a container.
pub(super) fn oom_events(metrics: &Metrics, pod: &PodRef, key: &ContainerKey) -> u64 {
    metrics.oom_kills_of(ContainerLabels::new(pod, "", &key.id))
}

/// The pods that there are, by UID. `before`: those of the last time, whose processes stand unless they are
/// to be looked up `anew`.
pub(super) fn pods(tree: &KubeTree, before: &[Arc<KnownPod>], anew: bool) -> Vec<Arc<KnownPod>> {
    let (index, metrics) = (tree.kernel.index().live(), &tree.metrics);
    let before: BTreeMap<&PodUid, &Arc<KnownPod>> =
        before.iter().map(|it| (&it.pod.uid, it)).collect();
    let mut pods: BTreeMap<PodUid, KnownPod> = BTreeMap::new();
    for (_, owner) in &index {
        if let Level::Pod { uid, qos } = &owner.level {
            let known = before.get(uid).filter(|it| it.cgroup == owner.path);
            let pod = KnownPod {
                pod: known.map_or_else(|| unnamed(uid), |it| Arc::clone(&it.pod)),
                qos: *qos,
                cgroup: owner.path.clone(),
                started_at: known
                    .map_or_else(|| Look::at(tree, &owner.path).made_at, |it| it.started_at),
                containers: Vec::new(),
            };
            pods.insert(uid.clone(), pod);
        }
    }
    for (_, owner) in &index {
        if let Level::Container { uid, key, .. } = &owner.level
            && let Some(pod) = pods.get_mut(uid)
        {
            let before = before.get(uid).into_iter().flat_map(|it| &it.containers);
            let before = before.clone().find(|it| it.cgroup == owner.path);
            let container = container(tree, owner, key, before, anew);
            let oom_events = oom_events(metrics, &pod.pod, key);
            pod.containers.push(KnownContainer {
                oom_events,
                ..container
            });
        }
    }
    let as_before = |pod: KnownPod| match before.get(&pod.pod.uid) {
        Some(known) if ***known == pod => Arc::clone(known),
        _ => Arc::new(pod),
    };
    pods.into_values()
        .map(|mut pod| {
            pod.containers
                .sort_by(|a, b| a.runtime_id.cmp(&b.runtime_id));
            as_before(pod)
        })
        .collect()
}

fn container(
    tree: &KubeTree,
    owner: &Owner,
    key: &ContainerKey,
    before: Option<&KnownContainer>,
    anew: bool,
) -> KnownContainer {
    let (started_at, pid) = match before.filter(|it| !anew && it.pid.is_some()) {
        Some(before) => (before.started_at, before.pid),
        None => {
            let found = Look::at(tree, &owner.path);
            let started_at = before.and_then(|it| it.started_at);
            (started_at.or(Some(found.made_at)), found.process())
        }
    };
    KnownContainer {
        name: String::new(),
        cgroup: owner.path.clone(),
        runtime_id: key.id.clone(),
        image: String::new(),
        started_at,
        restarts: 0,
        oom_events: 0,
        // Any of its processes shows the interfaces of the pod.
        pid,
    }
}

/// A look at the directory of a cgroup.
struct Look {
    dir: Option<Dir>,
    /// When the cgroup was made, as its directory has it.
    made_at: WallTime,
}

impl Look {
    fn at(tree: &KubeTree, path: &CgroupPath) -> Self {
        let dir = tree.reader.dir(path, Controller::Memory.name()).ok();
        let changed = dir.as_ref().and_then(|it| it.changed_at().ok());
        Self {
            made_at: WallTime::from_epoch(changed.unwrap_or_else(clock::wall)),
            dir,
        }
    }

    /// One of the processes; crun has them one level further down.
    fn process(&self) -> Option<u32> {
        let dir = self.dir.as_ref()?;
        let first = |dir: &Dir| -> Option<u32> {
            let text = dir.read_text("cgroup.procs").ok()?;
            text.lines().next()?.parse().ok()
        };
        first(dir).or_else(|| {
            if matches!(dir.n_dirs(), Ok(Some(0))) {
                return None;
            }
            let below = dir.list_dirs().ok()?;
            below.iter().find_map(|it| first(&dir.open_dir(it).ok()?))
        })
    }
}
