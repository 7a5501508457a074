//! Finds the cgroup trees that kubelets have made, and what is in one.
//!
//! Goes by names alone (`model::kube_cgroup`), in the hierarchy that memory is accounted in, and never
//! deeper than containers: what those make below their own is theirs.

use std::collections::{BTreeMap, BTreeSet};

use nix::libc::EACCES;

use crate::model::attribution::{Level, Owner};
use crate::model::cgroup_name::{CgroupDriver, CgroupName};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{CgroupId, CgroupLineage};
use crate::model::kube_cgroup::{KubeLevel, is_slice_of_services, lacks_uid, parse};
use crate::model::pod::PodUid;
use crate::sources::cgroupfs::CgroupReader;
use crate::sys::{Dir, FsError, Tree, Trees};

/// How far below a container its processes are looked for: crun has them one level further down, and systemd, as the
/// first process of a container, one more.
pub const PROCESSES_BELOW: usize = 2;

/// Every cgroup below which a kubelet has its `kubepods`, whatever the driver: of those that are at most one
/// level below the mount, and of those that somebody has named. More than one: of a test, of a second
/// kubelet, of an agent that makes cgroups itself.
pub fn find_roots(trees: &Trees, named: &[CgroupPath]) -> Result<BTreeSet<CgroupPath>, FsError> {
    let mut roots = BTreeSet::new();
    let Some(memory) = memory(trees) else {
        return Ok(roots);
    };
    let mount = CgroupPath::root();
    for (child, path) in children(&memory.dir, &mount)? {
        if is_kubepods(&path, &mount) {
            roots.insert(mount.clone());
            continue;
        }
        let Some(dir) = open(&memory.dir, &child)? else {
            continue;
        };
        let below = children(&dir, &path)?;
        if below.iter().any(|(_, below)| is_kubepods(below, &path)) {
            roots.insert(path);
        }
    }
    for root in named {
        let Some(dir) = descend(memory, root)? else {
            continue;
        };
        let below = children(&dir, root)?;
        if below.iter().any(|(_, below)| is_kubepods(below, root)) {
            roots.insert(root.clone());
        }
    }
    Ok(roots)
}

/// The cgroup of all pods of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubepods {
    pub path: CgroupPath,
    pub id: CgroupId,
    pub driver: CgroupDriver,
}

/// The cgroup of all pods that one driver names, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTree {
    /// What it lies right below.
    pub root: CgroupPath,
    pub kubepods: Kubepods,
    pub pods: PodsOfTree,
}

/// Pods of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodsOfTree {
    /// In which somebody runs.
    pub n_live: usize,
    /// The one that was made last, as ids grow (fs/kernfs/dir.c, Linux 6.12: `__kernfs_new_node`).
    pub youngest: Option<CgroupId>,
}

/// Those right below `roots`. More than one where kubelet was told another driver in between: only there it is looked
/// at what is in them, which is to walk them.
pub fn pod_trees(trees: &Trees, roots: &[CgroupPath]) -> Result<Vec<PodTree>, FsError> {
    let Some(memory) = memory(trees) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for root in roots {
        let below = kubepods_below(memory, root)?.into_iter();
        found.extend(below.map(|(dir, kubepods)| (dir, root, kubepods)));
    }
    let are_several = found.len() > 1;
    let all = found.into_iter().map(|(dir, root, kubepods)| {
        let pods = match are_several {
            true => pods_of_tree(&dir, &kubepods.path, root)?,
            false => PodsOfTree::default(),
        };
        Ok(PodTree {
            root: root.clone(),
            kubepods,
            pods,
        })
    });
    all.collect()
}

/// Those of every driver right below `root`.
fn kubepods_below(memory: &Tree, root: &CgroupPath) -> Result<Vec<(Dir, Kubepods)>, FsError> {
    let Some(dir) = descend(memory, root)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for (name, path) in children(&dir, root)? {
        let Some(driver) = driver_of(&path, root) else {
            continue;
        };
        if let Some(child) = open(&dir, &name)? {
            let id = CgroupId(child.inode());
            found.push((child, Kubepods { path, id, driver }));
        }
    }
    Ok(found)
}

/// `dir` is that of a cgroup of all pods.
fn pods_of_tree(
    dir: &Dir,
    kubepods: &CgroupPath,
    root: &CgroupPath,
) -> Result<PodsOfTree, FsError> {
    let mut youngest = None;
    let mut live = BTreeSet::new();
    walk_below(dir, kubepods, root, &mut |id, owner| match owner.level {
        Level::Pod { .. } => youngest = youngest.max(Some(id)),
        Level::Container { uid, .. } if !live.contains(&uid) => {
            let below = owner.path.below(kubepods).unwrap_or_default();
            if dir
                .descend(below.split('/'))
                .is_ok_and(|it| has_process(&it, PROCESSES_BELOW))
            {
                live.insert(uid);
            }
        }
        _ => {}
    })?;
    Ok(PodsOfTree {
        n_live: live.len(),
        youngest,
    })
}

/// In a container, or at most so many levels further down, see [`PROCESSES_BELOW`].
fn has_process(dir: &Dir, depth: usize) -> bool {
    let text = dir.read_text("cgroup.procs");
    if text.is_ok_and(|it| !it.trim().is_empty()) {
        return true;
    }
    let below = match depth {
        0 => Vec::new(),
        _ => dir.list_dirs().unwrap_or_default(),
    };
    below.iter().any(|it| {
        let child = dir.open_dir(it);
        child.is_ok_and(|it| has_process(&it, depth - 1))
    })
}

/// Hands on what is at `root`: kubepods, QoS classes, pods and containers, parents first, and containers
/// that their runtime has put elsewhere. What is removed meanwhile is left out. Gives the cgroups of pods that are left out
/// too, since there is no UID in their names.
pub fn walk(
    trees: &Trees,
    root: &CgroupPath,
    found: &mut dyn FnMut(CgroupId, Owner),
) -> Result<Vec<CgroupPath>, FsError> {
    let mut without_uid = Vec::new();
    let Some(memory) = memory(trees) else {
        return Ok(without_uid);
    };
    if let Some(dir) = descend(memory, root)? {
        without_uid = walk_below(&dir, root, root, found)?;
    }
    walk_misplaced(&memory.dir, root, found)?;
    Ok(without_uid)
}

/// The pods that a kubelet with this driver has started below `root`, its `cgroupRoot`, and in which somebody runs, also
/// while it is down; with the cgroups that they run in. With the names of cgroupfs a container of a runtime tells them
/// from those of an agent.
pub fn pods_of_kubelet(
    reader: &CgroupReader,
    root: &CgroupName,
    driver: CgroupDriver,
) -> Result<BTreeMap<PodUid, BTreeSet<CgroupPath>>, FsError> {
    let mut pods = BTreeMap::<_, BTreeSet<_>>::new();
    let Some(memory) = memory(reader.trees()) else {
        return Ok(pods);
    };
    let (kubepods, root) = (CgroupName::kubepods(root).at(driver), root.at(driver));
    let mut found = |_, Owner { level, path }: Owner| {
        let (uid, path) = match (level, driver) {
            (Level::Pod { uid, .. }, CgroupDriver::Systemd) => (uid, Some(path)),
            (Level::Container { uid, .. }, CgroupDriver::Cgroupfs) => (uid, path.parent()),
            (Level::Container { uid, .. }, CgroupDriver::Systemd) => (uid, Some(path)),
            _ => return,
        };
        pods.entry(uid).or_default().extend(path);
    };
    if let Some(dir) = descend(memory, &kubepods)? {
        walk_below(&dir, &kubepods, &root, &mut found)?;
    }
    if driver == CgroupDriver::Systemd {
        walk_misplaced(&memory.dir, &root, &mut found)?;
    }
    for cgroups in pods.values_mut() {
        // Who cannot be looked at may run.
        cgroups.retain(|it| reader.pids(it).map_or(true, |it| !it.is_empty()));
    }
    pods.retain(|_, cgroups| !cgroups.is_empty());
    Ok(pods)
}

/// Where a cgroup lies among those of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub lineage: CgroupLineage,
    /// Of the cgroups of a pod's that it is or lies in.
    pub owners: Vec<(CgroupId, Owner)>,
}

/// Finds a cgroup by its id below the cgroup of all pods of any driver at one of `roots`, or in a container that its
/// runtime has put elsewhere. `None`: it is none of a pod's, or gone.
pub fn locate(
    trees: &Trees,
    roots: &[CgroupPath],
    id: CgroupId,
) -> Result<Option<Located>, FsError> {
    let Some(memory) = memory(trees) else {
        return Ok(None);
    };
    let Some(path) = memory.dir.find(id.0)? else {
        return Ok(None);
    };
    // What a container makes may have a name that is no text.
    let Ok(path) = CgroupPath::root().join(&path.to_string_lossy()) else {
        return Ok(None);
    };
    let mut below = roots.iter().map(|it| (it, steps(&path, it)));
    let Some((root, steps)) = below.find_map(|(root, it)| Some((root, it?))) else {
        return Ok(None);
    };
    let mut lineage = CgroupLineage {
        cgroup_id: id,
        below_root: [None; 3],
        in_root: true,
    };
    let mut owners = Vec::new();
    for (step, path) in lineage.below_root.iter_mut().zip(steps) {
        let Some(dir) = descend(memory, &path)? else {
            break;
        };
        let id = CgroupId(dir.inode());
        *step = Some(id);
        owners.extend(level_of(&path, root).map(|level| (id, Owner { level, path })));
    }
    Ok(Some(Located { lineage, owners }))
}

/// The cgroups on the way from that of all pods at `root` down to `path`; of a container that lies elsewhere, and what
/// is in it, that alone. `None`: it is none of a pod's.
fn steps(path: &CgroupPath, root: &CgroupPath) -> Option<Vec<CgroupPath>> {
    let mut above: Vec<CgroupPath> = path.ancestors().collect();
    above.reverse();
    if let Some(kubepods) = above.iter().position(|it| is_kubepods(it, root)) {
        return Some(above.split_off(kubepods + 1));
    }
    let found = parse(path, root).filter(|it| it.is_misplaced)?;
    let container = above
        .into_iter()
        .find(|it| path.below(it) == Some(found.inner))?;
    Some(vec![container])
}

/// Gives what [`walk`] does.
fn walk_below(
    dir: &Dir,
    path: &CgroupPath,
    root: &CgroupPath,
    found: &mut dyn FnMut(CgroupId, Owner),
) -> Result<Vec<CgroupPath>, FsError> {
    let mut without_uid = Vec::new();
    for (name, path) in children(dir, path)? {
        let Some(level) = level_of(&path, root).filter(|_| !name.contains(':')) else {
            without_uid.extend(lacks_uid(&path, root).then_some(path));
            continue;
        };
        let is_container = matches!(level, Level::Container { .. });
        let Some(id) = id_of(dir, &name)? else {
            continue;
        };
        let owner = Owner {
            level,
            path: path.clone(),
        };
        found(id, owner);
        if !is_container && let Some(child) = open(dir, &name)? {
            without_uid.extend(walk_below(&child, &path, root, found)?);
        }
    }
    Ok(without_uid)
}

/// `SLICE:PREFIX:ID` at the mount, in a slice there, or in a service in one: where a runtime is.
fn walk_misplaced(
    mount: &Dir,
    root: &CgroupPath,
    found: &mut dyn FnMut(CgroupId, Owner),
) -> Result<(), FsError> {
    let mut places = vec![(mount.try_clone()?, CgroupPath::root())];
    while let Some((dir, path)) = places.pop() {
        let depth = path.components().count();
        for (name, path) in children(&dir, &path)? {
            let may_hold_some = match depth {
                0 => is_slice_of_services(&name),
                1 => name.ends_with(".service"),
                _ => false,
            };
            let is_one = name.contains(':');
            if !is_one && !may_hold_some {
                continue;
            }
            match level_of(&path, root).filter(|_| is_one) {
                Some(level) => {
                    if let Some(id) = id_of(&dir, &name)? {
                        found(id, Owner { level, path });
                    }
                }
                None if may_hold_some => {
                    let child = open(&dir, &name)?;
                    places.extend(child.map(|it| (it, path)));
                }
                None => {}
            }
        }
    }
    Ok(())
}

/// What exactly this cgroup is; `None`: none of a pod's, or made by a container for itself.
fn level_of(path: &CgroupPath, root: &CgroupPath) -> Option<Level> {
    let found = parse(path, root).filter(|it| it.inner.is_empty())?;
    Level::of(found.level)
}

fn is_kubepods(path: &CgroupPath, root: &CgroupPath) -> bool {
    driver_of(path, root).is_some()
}

/// Of a cgroup of all pods; `None`: it is none.
fn driver_of(path: &CgroupPath, root: &CgroupPath) -> Option<CgroupDriver> {
    let found = parse(path, root)?;
    (found.level == KubeLevel::Kubepods && found.inner.is_empty()).then_some(found.driver)
}

fn memory(trees: &Trees) -> Option<&Tree> {
    trees.of("memory")
}

/// `None`: it is not there.
fn descend(memory: &Tree, path: &CgroupPath) -> Result<Option<Dir>, FsError> {
    match memory.dir.descend(path.components()) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Empty for one that is gone.
fn children(dir: &Dir, path: &CgroupPath) -> Result<Vec<(String, CgroupPath)>, FsError> {
    let names = match dir.list_dirs() {
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        names => names?,
    };
    let child = |name: String| {
        let path = path.join(&name).ok()?;
        Some((name, path))
    };
    Ok(names.into_iter().filter_map(child).collect())
}

/// `None`: it is gone, or somebody to whom it was given keeps it to himself.
fn open(dir: &Dir, name: &str) -> Result<Option<Dir>, FsError> {
    match dir.open_dir(name) {
        Ok(child) => Ok(Some(child)),
        Err(error) if error.is_gone() || error.errno() == Some(EACCES) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `None`: it is gone.
fn id_of(dir: &Dir, name: &str) -> Result<Option<CgroupId>, FsError> {
    match dir.inode_of(name) {
        Ok(inode) => Ok(Some(CgroupId(inode))),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "a tree of the test's own, which is only shaped like a hierarchy"
)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::sys::scratch::Scratch;

    const ID: &str = "3f1c9a4e7b2d58606172839405a6b7c8d9e0f1a2b3c4d5e6f708192a3b4c5d6e";

    struct Node(Scratch);

    impl Node {
        fn new(name: &str, directories: &[String]) -> Self {
            let node = Self(Scratch::new(name));
            for it in directories {
                fs::create_dir_all(node.0.path(it)).unwrap();
            }
            node
        }

        fn trees(&self) -> Trees {
            let tree = Tree::open(BTreeSet::new(), self.0.directory()).unwrap();
            Trees {
                unified: true,
                trees: vec![tree],
            }
        }

        fn roots(&self) -> Vec<String> {
            let named = ["/a.slice/a-b.slice", "/absent"].map(|it| it.parse().unwrap());
            let roots = find_roots(&self.trees(), &named).unwrap();
            roots.iter().map(ToString::to_string).collect()
        }

        fn walked(&self, root: &str) -> Vec<String> {
            let mut found = Vec::new();
            walk(&self.trees(), &root.parse().unwrap(), &mut |_, it| {
                found.push(it.path.to_string());
            })
            .unwrap();
            found
        }
    }

    #[test]
    fn roots_of_either_driver_are_found_and_no_cluster_in_a_container() {
        let node = Node::new(
            "roots",
            &[
                "kubepods/burstable".into(),
                "kubepods.slice".into(),
                "kind/kubepods".into(),
                "kubelet.slice/kubelet-kubepods.slice".into(),
                "other.slice/kubepods.slice".into(),
                "a.slice/a-b.slice/a-b-kubepods.slice".into(),
                format!("docker/{ID}/kubepods"),
                format!("kubepods/podx/{ID}/kubepods"),
                "system.slice/kubelet.service".into(),
            ],
        );
        let expected = ["/", "/a.slice/a-b.slice", "/kind", "/kubelet.slice"];
        assert_eq!(node.roots(), expected);
        assert_eq!(Node::new("none", &[]).roots(), [""; 0]);
    }

    #[test]
    fn pods_of_a_kubelet_are_those_that_run_as_its_runtime_has_them() {
        let class = "a.slice/a-kubepods.slice/a-kubepods-besteffort.slice";
        let slice = |uid: &str| format!("{class}/a-kubepods-besteffort-pod{uid}.slice");
        let misplaced =
            format!("system.slice/a-kubepods-besteffort-podm.slice:cri-containerd:{ID}");
        let runs = [
            format!("a/kubepods/podruns/{ID}"),
            // Of an agent of this project.
            "a/kubepods/burstable/podown/app-0-5f1c9a4e7b2d".into(),
            format!("{}/cri-containerd-{ID}.scope", slice("1_2")),
            // Of a runtime with ids of its own.
            format!("{}/kata_1.scope", slice("kata")),
            misplaced.clone(),
            format!("kubepods/podother/{ID}"),
        ];
        let ended = ["a/kubepods/burstable/podover".into(), slice("over")];
        let node = Node::new("left", &[&runs[..], &ended].concat());
        for it in runs {
            let procs = Path::new(&it).join("cgroup.procs");
            fs::write(node.0.path(procs), "7\n").unwrap();
        }
        let reader = CgroupReader::new(Arc::new(node.trees()), BTreeSet::new(), 4096);
        let root = CgroupName::new(["a"]).unwrap();
        let found = |driver| {
            let found = pods_of_kubelet(&reader, &root, driver).unwrap();
            let found = found.into_iter().flat_map(|(uid, cgroups)| {
                let cgroups = cgroups.into_iter();
                cgroups.map(move |it| format!("{uid} {it}"))
            });
            found.collect::<Vec<_>>()
        };
        assert_eq!(found(CgroupDriver::Cgroupfs), ["runs /a/kubepods/podruns"]);
        let expected = [
            format!("1-2 /{}", slice("1_2")),
            format!("1-2 /{}/cri-containerd-{ID}.scope", slice("1_2")),
            format!("kata /{}", slice("kata")),
            format!("m /{misplaced}"),
        ];
        assert_eq!(found(CgroupDriver::Systemd), expected);
    }

    #[test]
    fn trees_of_two_drivers_are_told_apart_by_what_lives_in_them() {
        let shown = |name: &str, directories: &[String], live: &[&str]| {
            let node = Node::new(name, directories);
            for it in live {
                fs::write(node.0.path(Path::new(it).join("cgroup.procs")), "7\n").unwrap();
            }
            let roots = ["/", "/a", "/a.slice"].map(|it| it.parse().unwrap());
            let found = pod_trees(&node.trees(), &roots).unwrap().into_iter();
            let found = found.map(|it| {
                let PodsOfTree { n_live, youngest } = it.pods;
                let path = it.kubepods.path;
                format!("{} {path} {n_live} {}", it.root, youngest.is_some())
            });
            let mut found: Vec<_> = found.collect();
            found.sort();
            found
        };
        // What a kubelet leaves that was told another driver: its classes, and pods that go on.
        let class = "kubepods.slice/kubepods-burstable.slice";
        let pod = format!("{class}/kubepods-burstable-poda.slice");
        let scope = format!("{pod}/cri-containerd-{ID}.scope/container");
        let nested = format!("{scope}/init.scope");
        let [one, two] = ["b", "c"].map(|it| format!("kubepods/burstable/pod{it}/{ID}"));
        let all = [one.clone(), two.clone(), nested.clone()];
        assert_eq!(
            shown("both", &all, &[&one, &two, &scope]),
            ["/ /kubepods 2 true", "/ /kubepods.slice 1 true"]
        );
        assert_eq!(
            shown("one", &all, &[&scope]),
            ["/ /kubepods 0 true", "/ /kubepods.slice 1 true"]
        );
        assert_eq!(
            shown("nested", &all, &[&nested]),
            ["/ /kubepods 0 true", "/ /kubepods.slice 1 true"]
        );
        // The same where each driver has a root of its own.
        let of_slice = "a.slice/a-kubepods.slice/a-kubepods-poda.slice";
        let of_root = "a/kubepods/burstable".to_owned();
        assert_eq!(
            shown("roots", &[of_root, of_slice.to_owned()], &[]),
            [
                "/a /a/kubepods 0 false",
                "/a.slice /a.slice/a-kubepods.slice 0 true"
            ]
        );
        // It is not looked at what is in one alone.
        assert_eq!(
            shown("alone", std::slice::from_ref(&one), &[&one]),
            ["/ /kubepods 0 false"]
        );
        assert_eq!(
            shown("nowhere", &["b/kubepods/poda".to_owned()], &[]),
            [""; 0]
        );
    }

    #[test]
    fn a_walk_gives_what_a_kubelet_and_its_runtime_made() {
        let slice = "kubepods.slice/kubepods-burstable.slice";
        let pod = format!("{slice}/kubepods-burstable-poda_b.slice");
        let scope = format!("{pod}/cri-containerd-{ID}.scope");
        let triple = format!("kubepods-burstable-podc.slice:cri-containerd:{ID}");
        let node = Node::new(
            "walk",
            &[
                format!("{scope}/init.scope"),
                format!("{pod}/crio-conmon-{ID}.scope"),
                format!("{pod}/strange"),
                "kubepods.slice/strange".into(),
                format!("system.slice/containerd.service/{triple}"),
                triple.clone(),
                format!("system.slice/{triple}"),
                format!("runtime.slice/k3s.service/{triple}"),
                format!("system.slice/a.mount/{triple}"),
                format!("system.slice/a.service/b.service/{triple}"),
                format!("user.slice/{triple}"),
            ],
        );
        let expected = [
            "/kubepods.slice".to_owned(),
            format!("/{slice}"),
            format!("/{pod}"),
            format!("/{scope}"),
        ];
        let mut walked = node.walked("/");
        let mut misplaced = walked.split_off(expected.len());
        assert_eq!(walked, expected);
        misplaced.sort_unstable();
        let above = [
            "",
            "/runtime.slice/k3s.service",
            "/system.slice/containerd.service",
            "/system.slice",
        ];
        assert_eq!(misplaced, above.map(|it| format!("{it}/{triple}")));
        assert_eq!(node.walked("/absent.slice"), [""; 0]);
    }

    #[test]
    fn a_walk_tells_of_pods_whose_cgroups_have_no_uid_in_their_names() {
        let node = Node::new(
            "without-uid",
            &[
                format!("kubepods/burstable/poda_b/{ID}"),
                "kubepods/pod_c/podd_e".into(),
                "kubepods/podf/podg_h".into(),
            ],
        );
        let mut found = Vec::new();
        let without_uid = walk(&node.trees(), &CgroupPath::root(), &mut |_, it| {
            found.push(it.path.to_string());
        });
        let without_uid: Vec<_> = without_uid
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            without_uid,
            ["/kubepods/burstable/poda_b", "/kubepods/pod_c"]
        );
        assert_eq!(
            found,
            ["/kubepods", "/kubepods/burstable", "/kubepods/podf"]
        );
    }

    #[test]
    fn whatever_lies_in_a_pod_is_on_the_way_down_from_that_of_all_pods() {
        let way = |path: &str, root: &str| {
            let steps = steps(&path.parse().unwrap(), &root.parse().unwrap())?;
            let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
            Some(steps.join(" "))
        };
        let of = |steps: &[&str]| Some(steps.join(" "));
        let class = "/kubepods/burstable";
        let pod = &format!("{class}/poda");
        let container = &format!("{pod}/{ID}");
        let nested = &format!("{container}/kubepods");
        assert_eq!(way(nested, "/"), of(&[class, pod, container, nested]));
        assert_eq!(way("/kubepods", "/"), of(&[]));
        assert_eq!(way("/kubepods/strange", "/"), of(&["/kubepods/strange"]));
        assert_eq!(way("/a/kubepods/poda", "/a"), of(&["/a/kubepods/poda"]));
        for (path, root) in [("/a/kubepods/poda", "/"), ("/kubepods", "/a"), ("/", "/")] {
            assert_eq!(way(path, root), None, "{path} below {root}");
        }
        let triple = format!("kubepods-burstable-podc.slice:cri-containerd:{ID}");
        for above in ["", "/system.slice", "/system.slice/containerd.service"] {
            let container = &format!("{above}/{triple}");
            for inner in ["", "/a", "/a/b"] {
                let path = format!("{container}{inner}");
                assert_eq!(way(&path, "/"), of(&[container]), "{path}");
            }
        }
        for above in ["/user.slice", "/a", "/system.slice/a.slice"] {
            assert_eq!(way(&format!("{above}/{triple}"), "/"), None, "{above}");
        }
    }
}
