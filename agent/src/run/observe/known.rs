//! Which pods and containers there are, as the index of cgroups has them, under the names that somebody has told.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::tree::KubeTree;
use crate::decide::naming::Known;
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup::Controller;
use crate::model::cgroup_files::parse_pids;
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::CgroupId;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::stats::{KnownContainer, KnownPod, KnownSandbox};
use crate::model::time::WallTime;
use crate::runtime::HostProcess;
use crate::sources::kube_tree::PROCESSES_BELOW;
use crate::sys::{Dir, Root, clock};

/// Processes of a container whose starts are compared, at most: arbitrary, a read of some 10 us each. v2 lists them as
/// they came, as a rule, and v1 by their ids.
const MOST_COMPARED: usize = 100;

/// A pod of which nobody has told the name.
pub(super) fn unnamed(uid: &PodUid) -> Arc<PodRef> {
    Arc::new(PodRef {
        namespace: String::new(),
        name: String::new(),
        uid: uid.clone(),
    })
}

/// OOM kills that were counted in a container, and in those of its name that were there before it.
pub(super) fn oom_events(tree: &KubeTree, uid: &PodUid, id: &str) -> u64 {
    let kills = tree.metrics.oom_kills_by_container(uid);
    let index = tree.kernel.index();
    let name = index.names.container(uid, id).map(|it| &**it);
    let of_it = [Some(id), name].into_iter().flatten();
    of_it.filter_map(|it| kills.get(it)).sum()
}

/// Kills go on under the names of their containers.
pub(super) fn name_kills(tree: &KubeTree) {
    let index = tree.kernel.index();
    tree.metrics.name_kills(|uid, id| {
        let name = index.names.container(&PodUid(uid.to_owned()), id);
        name.map(ToString::to_string)
    });
}

/// The same pods by a clock that was set: the boot was at `from` and is at `to`.
pub(super) fn shifted(pods: &[Arc<KnownPod>], from: Duration, to: Duration) -> Vec<Arc<KnownPod>> {
    let shift = |at: WallTime| WallTime::from_epoch((at.since_epoch() + to).saturating_sub(from));
    let all = pods.iter().map(|pod| {
        let mut pod = KnownPod::clone(pod);
        pod.started_at = shift(pod.started_at);
        if let Some(sandbox) = &mut pod.sandbox {
            sandbox.started_at = sandbox.started_at.map(shift);
        }
        for container in &mut pod.containers {
            container.started_at = container.started_at.map(shift);
        }
        Arc::new(pod)
    });
    all.collect()
}

/// The pods that there are, in the order of their names. `before`: those of the last time, whose processes stand
/// unless they have ended, the container has lost its last one since, or all are to be looked up `anew`.
pub(super) fn pods(tree: &KubeTree, before: &[Arc<KnownPod>], anew: bool) -> Vec<Arc<KnownPod>> {
    let before: BTreeMap<&PodUid, &Arc<KnownPod>> =
        before.iter().map(|it| (&it.pod.uid, it)).collect();
    let mut pods: BTreeMap<PodUid, KnownPod> = BTreeMap::new();
    let Named { index, names } = named(tree);
    let containers = index.iter().filter(|(_, it)| it.container().is_some());
    let with_containers: BTreeSet<CgroupPath> =
        containers.filter_map(|(_, it)| it.path.parent()).collect();
    for (_, owner) in &index {
        if let Level::Pod { uid, qos } = &owner.level {
            // A kubelet that is told another driver makes those of all pods again, and their containers stay.
            if pods.contains_key(uid) && !with_containers.contains(&owner.path) {
                continue;
            }
            let last = before.get(uid);
            let known = last.filter(|it| it.cgroup == owner.path);
            let name = names.get(uid).and_then(|it| it.pod.clone());
            let unnamed = || match last.filter(|it| !it.pod.has_name()) {
                Some(last) => Arc::clone(&last.pod),
                None => unnamed(uid),
            };
            let pod = KnownPod {
                pod: name.unwrap_or_else(unnamed),
                qos: *qos,
                cgroup: owner.path.clone(),
                started_at: known.map_or_else(|| made_at(tree, &owner.path), |it| it.started_at),
                sandbox: None,
                containers: Vec::new(),
            };
            pods.insert(uid.clone(), pod);
        }
    }
    for (id, owner) in &index {
        let Level::Container { uid, key, .. } = &owner.level else {
            continue;
        };
        let Some(pod) = pods.get_mut(uid) else {
            continue;
        };
        let before = before.get(uid).and_then(|it| Process::of(it, &owner.path));
        let anew = anew || tree.is_idle(*id);
        let Process { started_at, pid } = match before.filter(|it| !anew && it.is_there()) {
            Some(before) => before,
            None => look(tree, *id, owner, before),
        };
        let known = names.get(uid).and_then(|it| it.containers.get(key));
        let (name, restarts, image) = match known {
            // What holds the namespaces of a pod is none of its containers.
            Some(Known::Sandbox) => {
                let sandbox = KnownSandbox {
                    cgroup: owner.path.clone(),
                    started_at,
                    pid,
                };
                pod.sandbox = the_one_that_runs(pod.sandbox.take(), sandbox);
                continue;
            }
            Some(Known::Container {
                name,
                attempt,
                image,
            }) => (name.to_string(), *attempt, image.as_deref()),
            None => (String::new(), 0, None),
        };
        pod.containers.push(KnownContainer {
            name,
            cgroup: owner.path.clone(),
            runtime_id: key.id.clone(),
            image: image.unwrap_or_default().to_owned(),
            started_at,
            restarts,
            oom_events: oom_events(tree, uid, &key.id),
            pid,
        });
    }
    let as_before = |pod: KnownPod| match before.get(&pod.pod.uid) {
        Some(known) if ***known == pod => Arc::clone(known),
        _ => Arc::new(pod),
    };
    let mut pods: Vec<Arc<KnownPod>> = pods
        .into_values()
        .map(|mut pod| {
            let started = pod.containers.iter().map(|it| it.started_at);
            let began = pod.sandbox.as_ref().map(|it| it.started_at);
            let started = started.chain(began).flatten();
            pod.started_at = started.fold(pod.started_at, WallTime::min);
            leave_out_left_behind(&mut pod.containers);
            pod.containers
                .sort_by(|a, b| a.runtime_id.cmp(&b.runtime_id));
            as_before(pod)
        })
        .collect();
    // Sweeps look them up by their names.
    pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    pods
}

/// A container's cgroup may stay when its successor of the same name is there: runtimes fail to remove one with
/// processes in it. The successor is that of the latest attempt, or else the one with a process.
fn leave_out_left_behind(containers: &mut Vec<KnownContainer>) {
    containers.sort_by_key(|it| Reverse((it.restarts, it.pid.is_some(), it.started_at)));
    let mut names = BTreeSet::new();
    containers.retain(|it| it.name.is_empty() || names.insert(it.name.clone()));
}

/// A pod whose sandbox ended gets another, and the cgroup of the first may stay: that of the last one with a process.
fn the_one_that_runs(before: Option<KnownSandbox>, found: KnownSandbox) -> Option<KnownSandbox> {
    let both = before.into_iter().chain([found]);
    both.max_by_key(|it| (it.pid.is_some(), it.started_at))
}

/// What is known of one pod.
#[derive(Default)]
struct PodNames {
    pod: Option<Arc<PodRef>>,
    containers: BTreeMap<ContainerKey, Known>,
}

/// The cgroups that there are, and their names.
struct Named {
    index: Vec<(CgroupId, Arc<Owner>)>,
    names: BTreeMap<PodUid, PodNames>,
}

/// As of one moment.
fn named(tree: &KubeTree) -> Named {
    let index = tree.kernel.index();
    let live = index.live();
    let mut names: BTreeMap<PodUid, PodNames> = BTreeMap::new();
    for (_, owner) in &live {
        let Some(uid) = owner.uid() else { continue };
        let of_pod = names.entry(uid.clone()).or_default();
        match owner.container() {
            None => of_pod.pod = index.names.pod(uid).cloned(),
            Some(key) => {
                let known = index.names.known(uid, &key.id).cloned();
                of_pod.containers.extend(known.map(|it| (key.clone(), it)));
            }
        }
    }
    Named { index: live, names }
}

/// When a container or a sandbox was started, and one of its processes.
#[derive(Clone, Copy)]
struct Process {
    started_at: Option<WallTime>,
    pid: Option<u32>,
}

impl Process {
    /// `None`: the pod had nothing at this path, or nobody had told whether it is a sandbox.
    fn of(pod: &KnownPod, path: &CgroupPath) -> Option<Self> {
        let containers = pod.containers.iter();
        let containers = containers.map(|it| (&it.cgroup, it.started_at, it.pid));
        let sandbox = pod.sandbox.iter();
        let sandbox = sandbox.map(|it| (&it.cgroup, it.started_at, it.pid));
        let mut all = containers.chain(sandbox);
        let (_, started_at, pid) = all.find(|(cgroup, ..)| *cgroup == path)?;
        Some(Self { started_at, pid })
    }

    /// It has one, and that has not ended, as those do by which runc comes to the program of a container.
    fn is_there(&self) -> bool {
        let host = Root::host();
        self.pid
            .is_some_and(|it| host.exists(format!("/proc/{it}")))
    }
}

/// When it was started stands, however often it is looked at.
fn look(tree: &KubeTree, id: CgroupId, owner: &Owner, before: Option<Process>) -> Process {
    let processes = || first_started(&dir(tree, &owner.path)?, since_boot);
    let pid = tree.look(id, &owner.path, processes);
    let known = before.and_then(|it| it.started_at);
    Process {
        started_at: known.or_else(|| started_at(pid?)),
        pid,
    }
}

/// When a process was started; `None`: it is gone.
fn started_at(pid: u32) -> Option<WallTime> {
    let ago = clock::boottime().saturating_sub(since_boot(pid)?);
    Some(WallTime::from_epoch(clock::wall().saturating_sub(ago)))
}

/// The same, boottime.
fn since_boot(pid: u32) -> Option<Duration> {
    HostProcess::find(pid).ok().map(HostProcess::started_at)
}

/// The directory of a cgroup; `None`: it is gone.
fn dir(tree: &KubeTree, path: &CgroupPath) -> Option<Dir> {
    tree.reader.dir(path, Controller::Memory.name()).ok()
}

/// When a cgroup was made, at the latest: see [`Dir::changed_at`].
fn made_at(tree: &KubeTree, path: &CgroupPath) -> WallTime {
    let changed = dir(tree, path).and_then(|it| it.changed_at().ok());
    WallTime::from_epoch(changed.unwrap_or_else(clock::wall))
}

/// The process of a cgroup that was started first: those of probes and of `kubectl exec` come later. They may all be
/// further down, see [`PROCESSES_BELOW`]; with crun the latter have a cgroup of their own there. `started_at` says when
/// a process was started; `None`: it is gone.
fn first_started(dir: &Dir, started_at: impl Fn(u32) -> Option<Duration>) -> Option<u32> {
    let mut pids = listed(dir);
    let mut level = Vec::new();
    for depth in 0..PROCESSES_BELOW {
        if !pids.is_empty() {
            break;
        }
        level = match depth {
            0 => below(dir),
            _ => level.iter().flat_map(below).collect(),
        };
        pids = level.iter().flat_map(listed).collect();
    }
    if let [pid] = pids[..] {
        return Some(pid);
    }
    let pids = pids.into_iter().take(MOST_COMPARED);
    let started = pids.filter_map(|pid| Some((started_at(pid)?, pid)));
    started.min().map(|(_, pid)| pid)
}

/// The processes of a cgroup itself.
fn listed(dir: &Dir) -> Vec<u32> {
    let text = dir.read_text("cgroup.procs").unwrap_or_default();
    parse_pids(&text).unwrap_or_default()
}

/// The cgroups right below one.
fn below(dir: &Dir) -> Vec<Dir> {
    let names = match dir.n_dirs() {
        Ok(Some(0)) => Vec::new(),
        _ => dir.list_dirs().unwrap_or_default(),
    };
    let below = names.iter().filter_map(|it| dir.open_dir(it).ok());
    below.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::QosClass;
    use crate::model::runtime_names::{Identified, Role};
    use crate::observe::event_log::EventLog;
    use crate::observe::metrics::Metrics;
    use crate::sources::cgroupfs::CgroupReader;
    use crate::sources::wakers::Bell;
    use crate::sys::scratch::Scratch;
    use crate::sys::{Tree, Trees};

    fn container(name: &str, id: &str, pid: Option<u32>, restarts: u32) -> KnownContainer {
        KnownContainer {
            name: name.to_owned(),
            cgroup: CgroupPath::root(),
            runtime_id: id.to_owned(),
            image: String::new(),
            started_at: None,
            restarts,
            oom_events: 0,
            pid,
        }
    }

    fn sandbox(name: &str, pid: Option<u32>, started_at: Option<WallTime>) -> KnownSandbox {
        KnownSandbox {
            cgroup: CgroupPath::root().join(name).expect("a name"),
            started_at,
            pid,
        }
    }

    /// As CRI-O and crun have it: a probe that runs when the container is looked at comes first in the list.
    #[test]
    fn the_process_of_a_container_is_the_one_that_was_started_first() {
        let scratch = Scratch::new("first-started");
        let dir = Dir::open(scratch.directory()).expect("it is there");
        let found = || {
            let started_at = |pid: u32| match pid {
                70 => None,
                pid => Some(Duration::from_secs(1_000 - u64::from(pid))),
            };
            first_started(&dir, started_at)
        };
        assert_eq!(found(), None);
        scratch.write("cgroup.procs", "");
        for below in ["a-probe", "container"] {
            dir.make_dir(below).expect("it is new");
        }
        assert_eq!(found(), None);
        // systemd is in a cgroup of its own by then.
        let container = dir.open_dir("container").expect("it is there");
        container.make_dir("init.scope").expect("it is new");
        for (cgroup, pids, first) in [
            ("container/init.scope/", "50\n", Some(50)),
            ("a-probe/", "30\n", Some(30)),
            ("container/", "40\n45\n", Some(45)),
            // It has ended meanwhile.
            ("container/", "40\n70\n", Some(40)),
            // v1 lists a probe first whose id is lower.
            ("", "20\n25\n", Some(25)),
            ("", "20\n", Some(20)),
            ("", "70\n71\n", Some(71)),
        ] {
            scratch.write(format!("{cgroup}cgroup.procs"), pids);
            assert_eq!(found(), first, "{cgroup} {pids}");
        }
    }

    /// With a pod and a container in it.
    fn tree(scratch: &Scratch) -> KubeTree {
        let root = Root::at(scratch.directory());
        root.create_dir_all("pod/app").expect("a directory");
        let trees = Trees {
            unified: true,
            trees: vec![Tree::open(BTreeSet::new(), scratch.directory()).expect("a directory")],
        };
        let tree = KubeTree::new(
            CgroupReader::new(Arc::new(trees), BTreeSet::new(), 4096),
            Arc::default(),
            Arc::default(),
            Metrics::default(),
            4096,
            Bell::new().expect("a descriptor"),
            EventLog::begin(Duration::ZERO),
        );
        let (uid, qos) = (PodUid("uid".to_owned()), QosClass::Burstable);
        let key = ContainerKey {
            id: "app".to_owned(),
            runtime: None,
        };
        let of_pod = Level::Pod {
            uid: uid.clone(),
            qos,
        };
        let of_container = Level::Container { uid, qos, key };
        for (id, path, level) in [(1, "/pod", of_pod), (2, "/pod/app", of_container)] {
            let path = CgroupPath::new(path).expect("a path");
            let mut index = tree.kernel.index_mut();
            index.insert(CgroupId(id), Owner { level, path });
        }
        tree
    }

    #[test]
    fn a_container_has_the_image_that_its_runtime_tells() {
        let scratch = Scratch::new("known-image");
        let tree = tree(&scratch);
        let image = || pods(&tree, &[], false)[0].containers[0].image.clone();
        assert_eq!(image(), "");
        let app = Identified {
            id: "app".to_owned(),
            pod: unnamed(&PodUid("uid".to_owned())),
            role: Role::Container {
                name: "app".into(),
                attempt: 0,
                image: Some("docker.io/library/app:1".into()),
            },
        };
        tree.kernel.index_mut().names.learn(&app);
        assert_eq!(image(), "docker.io/library/app:1");
    }

    #[test]
    fn a_process_that_has_ended_is_looked_up_again() {
        let scratch = Scratch::new("known-pods");
        let tree = tree(&scratch);
        let list = |pid: u32| drop(scratch.write("pod/app/cgroup.procs", format!("{pid}\n")));
        let found = |before: &[Arc<KnownPod>]| pods(&tree, before, false).remove(0);

        let own = std::process::id();
        list(own);
        let first = found(&[]);
        assert_eq!(first.containers[0].pid, Some(own));
        list(1);
        let next = found(std::slice::from_ref(&first));
        assert_eq!(next.containers[0].pid, Some(own), "it is still there");
        let mut ended = KnownPod::clone(&first);
        // Beyond the largest that the kernel gives.
        ended.containers[0].pid = Some(u32::MAX);
        assert_eq!(found(&[Arc::new(ended)]).containers[0].pid, Some(1));
    }

    #[test]
    fn of_two_sandboxes_of_a_pod_the_one_that_runs_has_its_network() {
        let at = |seconds| Some(WallTime::from_epoch(Duration::from_secs(seconds)));
        let (ended, old) = (sandbox("a", None, at(9)), sandbox("b", Some(6), at(1)));
        let new = sandbox("c", Some(7), at(2));
        for all in [
            [&ended, &old, &new],
            [&new, &old, &ended],
            [&old, &new, &ended],
        ] {
            let all = all.into_iter().cloned();
            let found = all.fold(None, the_one_that_runs);
            assert_eq!(found.as_ref(), Some(&new));
        }
        let alone = the_one_that_runs(None, ended.clone());
        assert_eq!(alone, Some(ended));
    }

    #[test]
    fn starts_move_with_a_clock_that_is_set() {
        let at = |seconds| WallTime::from_epoch(Duration::from_secs(seconds));
        let mut app = container("app", "a", Some(7), 0);
        app.started_at = Some(at(1_020));
        let pod = Arc::new(KnownPod {
            pod: unnamed(&PodUid("uid".to_owned())),
            qos: QosClass::Burstable,
            cgroup: CgroupPath::root(),
            started_at: at(1_010),
            sandbox: Some(sandbox("s", Some(6), Some(at(1_000)))),
            containers: vec![app, container("late", "b", None, 0)],
        });
        for (from, to, sandbox_at, pod_at, container_at) in [
            (1_000, 90_000, 90_000, 90_010, 90_020),
            (1_000, 500, 500, 510, 520),
        ] {
            let [from, to] = [from, to].map(Duration::from_secs);
            let moved = shifted(std::slice::from_ref(&pod), from, to);
            assert_eq!(moved[0].started_at, at(pod_at));
            let began = moved[0].sandbox.as_ref().and_then(|it| it.started_at);
            assert_eq!(began, Some(at(sandbox_at)));
            let starts: Vec<_> = moved[0].containers.iter().map(|it| it.started_at).collect();
            assert_eq!(starts, [Some(at(container_at)), None]);
        }
    }

    #[test]
    fn of_two_cgroups_of_a_name_that_of_the_container_is_shown() {
        let shown = |containers: &[KnownContainer]| {
            let mut containers = containers.to_vec();
            leave_out_left_behind(&mut containers);
            let mut ids: Vec<_> = containers.into_iter().map(|it| it.runtime_id).collect();
            ids.sort();
            ids.concat()
        };
        let (old, new) = (
            container("app", "a", None, 0),
            container("app", "b", Some(7), 1),
        );
        assert_eq!(shown(&[old.clone(), new.clone()]), "b");
        assert_eq!(shown(&[new.clone(), old]), "b");
        // Somebody's process is left in the old one.
        let occupied = container("app", "a", Some(6), 0);
        assert_eq!(shown(&[occupied.clone(), new.clone()]), "b");
        let begins = container("app", "b", None, 1);
        assert_eq!(shown(&[occupied, begins]), "b");
        // Nobody tells of attempts.
        let (old, new) = (
            container("app", "a", None, 0),
            container("app", "b", Some(7), 0),
        );
        assert_eq!(shown(&[old, new.clone()]), "b");
        let unnamed = ["c", "d"].map(|id| container("", id, None, 0));
        let other = container("other", "e", None, 0);
        assert_eq!(
            shown(&[new, unnamed[0].clone(), unnamed[1].clone(), other]),
            "bcde"
        );
    }
}
