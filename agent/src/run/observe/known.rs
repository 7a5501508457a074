//! Which pods and containers there are, as the index of cgroups has them: without names, which nobody has told.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::KubeTree;
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup::Controller;
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::CgroupId;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::stats::{KnownContainer, KnownPod};
use crate::model::time::WallTime;
use crate::observe::metrics::{ContainerLabels, Metrics};
use crate::runtime::HostProcess;
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

/// The pods that there are, by UID. `before`: those of the last time, whose processes stand unless the container
/// has lost its last one since, or all are to be looked up `anew`.
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
                started_at: known.map_or_else(|| made_at(tree, &owner.path), |it| it.started_at),
                containers: Vec::new(),
            };
            pods.insert(uid.clone(), pod);
        }
    }
    for (id, owner) in &index {
        if let Level::Container { uid, key, .. } = &owner.level
            && let Some(pod) = pods.get_mut(uid)
        {
            let before = before.get(uid).into_iter().flat_map(|it| &it.containers);
            let before = before.clone().find(|it| it.cgroup == owner.path);
            let anew = anew || tree.is_idle(*id);
            let (started_at, pid) = match before.filter(|it| !anew && it.pid.is_some()) {
                Some(before) => (before.started_at, before.pid),
                None => look(tree, *id, owner, before),
            };
            pod.containers.push(KnownContainer {
                name: String::new(),
                cgroup: owner.path.clone(),
                runtime_id: key.id.clone(),
                image: String::new(),
                started_at,
                restarts: 0,
                oom_events: oom_events(metrics, &pod.pod, key),
                pid,
            });
        }
    }
    let as_before = |pod: KnownPod| match before.get(&pod.pod.uid) {
        Some(known) if ***known == pod => Arc::clone(known),
        _ => Arc::new(pod),
    };
    pods.into_values()
        .map(|mut pod| {
            let started = pod.containers.iter().filter_map(|it| it.started_at);
            pod.started_at = started.fold(pod.started_at, WallTime::min);
            pod.containers
                .sort_by(|a, b| a.runtime_id.cmp(&b.runtime_id));
            as_before(pod)
        })
        .collect()
}

/// When a container was started, and one of its processes. The first stands, however often it is looked at.
fn look(
    tree: &KubeTree,
    id: CgroupId,
    owner: &Owner,
    before: Option<&KnownContainer>,
) -> (Option<WallTime>, Option<u32>) {
    let process = tree.look(id, || one_process(&dir(tree, &owner.path)?));
    let known = before.and_then(|it| it.started_at);
    (known.or_else(|| started_at(process?)), process)
}

/// When a process was started; `None`: it is gone.
fn started_at(pid: u32) -> Option<WallTime> {
    let since_boot = HostProcess::find(pid).ok()?.started_at();
    let ago = clock::boottime().saturating_sub(since_boot);
    Some(WallTime::from_epoch(clock::wall().saturating_sub(ago)))
}

/// The directory of a cgroup; `None`: it is gone.
fn dir(tree: &KubeTree, path: &CgroupPath) -> Option<Dir> {
    tree.reader.dir(path, Controller::Memory.name()).ok()
}

/// When a cgroup was made, as its directory has it: at the latest when the last was made in it.
fn made_at(tree: &KubeTree, path: &CgroupPath) -> WallTime {
    let changed = dir(tree, path).and_then(|it| it.changed_at().ok());
    WallTime::from_epoch(changed.unwrap_or_else(clock::wall))
}

/// One of the processes, of a cgroup that nobody has put one into later the first; crun has them one level
/// further down.
fn one_process(dir: &Dir) -> Option<u32> {
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
