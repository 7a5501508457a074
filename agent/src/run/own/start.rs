//! From a container of a pod to all that its start needs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::libc::{ENOTDIR, EXDEV};
use sha2::{Digest, Sha256};

use super::pods::{PodEntry, StatePaths, VOLUMES};
use crate::apply::host_path::HostVolume;
use crate::decide::container_resources::oom_score_adj;
use crate::decide::desired::NodePlan;
use crate::decide::env::{self, BaseEnv, DEFAULT_PATH};
use crate::decide::pod_resources::{memory, memory_volumes};
use crate::model::container::{ContainerStatus, SpecHash};
use crate::model::device::ContainerDevices;
use crate::model::pod::{Container, HostPathKind, Pod, PodUid, QosClass, Volume, VolumeSource};
use crate::model::quantity::Quantity;
use crate::run::node::Node;
use crate::runtime::{ContainerCgroup, ContainerId, ContainerOwner, ContainerSpec, RunAs};
use crate::sources::disk_use::Tree;
use crate::sources::node_address;
use crate::sources::users::{self, User};
use crate::sys::below::{Mounts, create_dirs};
use crate::sys::tmpfs::{mount_tmpfs, resize_tmpfs};
use crate::sys::{Dir, FsError, Operation, Root};
use crate::units::Bytes;

/// The id of one attempt: readable, unique on the node, and valid as the name of a cgroup. The pod
/// goes in as a hash, since a UID may be long and of any case.
pub(super) fn container_id(uid: &PodUid, container: &str, attempt: u32) -> ContainerId {
    let hash = short_hash(uid.0.as_bytes());
    ContainerId::new(format!("{container}-{attempt}-{hash}"))
        .expect("a container name is a DNS label, and the rest is digits and hex")
}

/// Six bytes of a digest, in hexadecimal: enough to tell apart what is on one node.
pub(super) fn short_hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest
        .iter()
        .take(6)
        .map(|it| format!("{it:02x}"))
        .collect()
}

/// What came with the devices of a container and means nothing for a process of the host, a sentence
/// each.
pub(super) fn not_applicable(devices: &ContainerDevices) -> Vec<String> {
    let mut told: Vec<String> = devices.conflicts.iter().map(ToString::to_string).collect();
    told.extend(devices.mounts.values().map(|it| {
        let (from, to) = (&it.host_path, &it.container_path);
        format!("mount of {from} at {to} is not applicable: the container sees the host's files")
    }));
    let moved = devices.devices.values();
    told.extend(
        moved
            .filter(|it| it.host_path != it.container_path)
            .map(|it| {
                let (from, to) = (&it.host_path, &it.container_path);
                format!("device {from} is not at {to}: the container sees the host's devices")
            }),
    );
    let annotations = devices.annotations.keys();
    told.extend(annotations.map(|it| {
        format!("annotation {it} of its devices is not applicable: no runtime acts on it")
    }));
    // As those of a plugin that leaves the rest to a hook of the runtime (`NVIDIA_VISIBLE_DEVICES`).
    if devices.devices.is_empty()
        && let Some(name) = devices.envs.keys().next()
    {
        told.push(format!(
            "{name} came without a device node, so the container can open no device: no runtime acts on such a \
             variable. A plugin that can give device nodes has to be told to (NVIDIA's: PASS_DEVICE_SPECS=true)"
        ));
    }
    let cdi = devices.cdi_devices.iter();
    told.extend(cdi.map(|it| format!("CDI device {it} is not applicable: no runtime injects it")));
    told
}

/// The address of the node for a container with a variable that has it, or what is to be told if there is none.
/// `None`: it has no such variable.
pub(super) fn address(pod: &Pod, container: &str) -> Option<Result<IpAddr, String>> {
    let container = pod.all_containers().find(|it| it.name == container)?;
    let variable = container.env.iter().find(|it| it.is_node_address)?;
    Some(node_address::node_address().ok_or_else(|| {
        format!(
            "{} is empty: the node has no default route, and so no address that others know",
            variable.name
        )
    }))
}

/// What the files of the node say of the user of a container. `None`: nothing.
pub(super) fn user(pod: &Pod, container: &str) -> Result<Option<User>, FsError> {
    let container = pod.all_containers().find(|it| it.name == container);
    users::user(container.and_then(|it| it.run_as_user).unwrap_or(0))
}

/// What a start looks up of the node.
pub(super) struct OfNode {
    /// See [`user`].
    pub user: Option<User>,
    /// See [`address`].
    pub address: Option<IpAddr>,
}

/// All that one start needs.
pub(super) fn container_spec(
    node: &Node,
    plan: &NodePlan,
    paths: &StatePaths,
    entry: &PodEntry,
    name: &str,
    devices: &ContainerDevices,
    of_node: &OfNode,
) -> Result<ContainerSpec, String> {
    let pod = &entry.state.pod;
    let container = pod
        .all_containers()
        .find(|it| it.name == name)
        .ok_or_else(|| format!("the pod has no container {name}"))?;
    let instance = entry
        .instances
        .get(name)
        .ok_or_else(|| format!("container {name} is not to be started"))?;
    let status = entry
        .state
        .containers
        .iter()
        .find(|it| it.name == name)
        .ok_or_else(|| format!("nothing is known of container {name}"))?;

    let pod_dir = paths.pod_dir(&pod.uid);
    let user = of_node.user.as_ref();
    let address = of_node.address.map(|it| it.to_string());
    let base = BaseEnv {
        path: DEFAULT_PATH,
        hostname: &node.hostname,
        home: user.and_then(|it| it.home.as_deref()).unwrap_or("/"),
        address: address.as_deref(),
    };
    let mut process = env::process_args(container, &base).map_err(|error| error.to_string())?;
    // What the container itself sets goes before what comes with its devices, as in kubelet.
    for (name, value) in &devices.envs {
        if process.env.iter().all(|(known, _)| known != name) {
            process.env.push((name.clone(), value.clone()));
        }
    }
    // Paths of volumes are not those that the pod asks for: there is no mount namespace.
    let own_dir = ("BALLAST_POD_DIR".to_owned(), pod_dir.display().to_string());
    process.env.push(own_dir);
    if container.run_as_non_root && container.run_as_user.unwrap_or(0) == 0 {
        return Err("runAsNonRoot is set and runAsUser is 0 or not set".to_owned());
    }
    let dirs = node.dirs_of(&instance.cgroup);
    let owner = ContainerOwner::new(&entry.pod_ref, name, status.attempt);
    Ok(ContainerSpec {
        id: instance.id.clone(),
        log_path: paths.log(&owner),
        owner,
        argv: process.argv,
        env: process.env,
        working_dir: container
            .working_dir
            .as_ref()
            .map_or(pod_dir, PathBuf::from),
        cgroup: match (node.is_unified(), dirs.as_slice()) {
            (true, [dir]) => ContainerCgroup::Unified(dir.clone()),
            _ => ContainerCgroup::Split(dirs),
        },
        run_as: run_as(pod, container, user),
        oom_score_adj: oom_score_adj(
            pod,
            entry.qos,
            container,
            node.capacity.memory,
            plan.settings.compat,
        ),
        spec_hash: spec_hash(status),
        pod_requests: pod.counted_requests(),
    })
}

/// As container runtimes have it (containerd, pkg/oci/spec_opts.go: `WithUserID`, `WithAdditionalGIDs`): the groups of
/// the user are those of its files, unless the pod names them. `user`: what the files say, if it is listed there.
/// `None`: whom the agent runs as.
fn run_as(pod: &Pod, container: &Container, user: Option<&User>) -> Option<RunAs> {
    let named = || pod.supplemental_groups.iter().copied().chain(pod.fs_group);
    if container.run_as_user.is_none()
        && container.run_as_group.is_none()
        && named().next().is_none()
    {
        return None;
    }
    let has_strict_groups = pod.node_requirements.has_strict_groups;
    let listed = user.filter(|_| !has_strict_groups);
    let groups: BTreeSet<u32> = named()
        .chain(listed.into_iter().flat_map(|it| it.groups.iter().copied()))
        .collect();
    Some(RunAs {
        uid: container.run_as_user.unwrap_or(0),
        gid: container
            .run_as_group
            .or(user.map(|it| it.gid))
            .unwrap_or(0),
        groups: groups.into_iter().collect(),
    })
}

/// Empty: not known.
fn spec_hash(status: &ContainerStatus) -> String {
    let hash = status.spec_hash.clone();
    hash.map(|SpecHash(hash)| hash).unwrap_or_default()
}

/// Makes the pod's directory and its volumes, and what a container mounts of them (`subPath`), with the permissions that
/// kubelet gives them. What was made by an earlier start stays as it is, and what its containers have mounted there since.
pub(super) fn make_volumes(
    plan: &NodePlan,
    paths: &StatePaths,
    entry: &PodEntry,
    container: &str,
) -> Result<(), FsError> {
    let pod = &entry.state.pod;
    let (root, directory) = (Root::host(), paths.pod_dir(&pod.uid));
    if !root.has_name(&directory)? {
        root.create_dir_all(&directory)?;
    }
    let is_made = |it: &&Volume| matches!(it.source, VolumeSource::EmptyDir { .. });
    let mut volumes = pod.volumes.iter().filter(is_made).peekable();
    if volumes.peek().is_none() || !provide_place_of_volumes(paths, &pod.uid)? {
        return Ok(());
    }
    let sizes = memory_volume_sizes(plan, pod, entry.qos);
    for volume in volumes {
        let path = paths.volume(&pod.uid, &volume.name);
        // Mode 0777, as kubelet makes an emptyDir: containers of any user share it.
        root.provide_shared_dir(&path, pod.fs_group)?;
        let size = sizes.get(&volume.name);
        if let Some(size) = size {
            mount_tmpfs(&path, *size, pod.fs_group)?;
        }
        let mut sub_paths = sub_paths(pod, container, &volume.name).peekable();
        if sub_paths.peek().is_none() {
            continue;
        }
        let tree = Tree {
            path,
            above: paths.pods(),
            is_in_memory: size.is_some(),
        };
        let place = tree.place(&root);
        let place = place.map_err(|it| FsError::new(Operation::Open, &tree.path, it.into()))?;
        // In what somebody has mounted over a volume nothing is made.
        if let Some(place) = place {
            for sub_path in sub_paths {
                match create_dirs(&place, &tree.path, Path::new(sub_path), Mounts::Refuse) {
                    // What containers have put there stays.
                    Err(error) if matches!(error.errno(), Some(ENOTDIR | EXDEV)) => {}
                    made => made?,
                }
            }
        }
    }
    Ok(())
}

/// See [`memory_volumes`].
fn memory_volume_sizes(plan: &NodePlan, pod: &Pod, class: QosClass) -> BTreeMap<String, Bytes> {
    let allocatable = memory(&plan.allocatable.node_allocatable(0));
    memory_volumes(pod, class, &plan.settings, allocatable)
}

/// The volumes in memory that have another size by the new definition of their pod, with that.
pub(super) fn resized_volumes(
    plan: &NodePlan,
    (old, new): (&Pod, &Pod),
    class: QosClass,
) -> BTreeMap<String, Bytes> {
    let before = memory_volume_sizes(plan, old, class);
    let mut sizes = memory_volume_sizes(plan, new, class);
    sizes.retain(|name, size| before.get(name) != Some(&*size));
    sizes
}

/// Gives a volume in memory another size. False: it is not there, and is made with its size. The error is a sentence: it
/// keeps its own, as one that holds more, or one that cannot be looked at.
pub(super) fn resize_volume(
    paths: &StatePaths,
    uid: &PodUid,
    name: &str,
    size: Bytes,
) -> Result<bool, String> {
    let tree = Tree {
        path: paths.volume(uid, name),
        above: paths.pods(),
        is_in_memory: true,
    };
    let resized = match tree.place(&Root::host()) {
        Ok(Some(place)) if place.is_memory() => resize_tmpfs(&place, size).map(|()| true),
        Ok(_) => Ok(false),
        Err(error) => Err(error.into()),
    };
    resized.map_err(|error| {
        let size = Quantity::from_bytes(size.0);
        format!(
            "volume {name} keeps its size: it cannot have {size}, as where it holds more ({error})"
        )
    })
}

/// Makes the directory that the volumes of a pod are in. False: something is mounted over it, or over the directory of
/// the pod, and whoever serves that may be away: it is asked nothing.
fn provide_place_of_volumes(paths: &StatePaths, uid: &PodUid) -> Result<bool, FsError> {
    let (pods, below) = (paths.pods(), Path::new(&uid.0).join(VOLUMES));
    match create_dirs(Dir::open(&pods)?, &pods, &below, Mounts::Refuse) {
        Err(error) if error.errno() == Some(EXDEV) => Ok(false),
        made => made.map(|()| true),
    }
}

/// The parts of a volume that a container mounts.
fn sub_paths<'a>(pod: &'a Pod, container: &str, volume: &str) -> impl Iterator<Item = &'a String> {
    let container = pod.all_containers().find(|it| it.name == container);
    let of_container = container.into_iter().flat_map(|it| &it.sub_paths);
    of_container.filter_map(move |(name, path)| (name == volume).then_some(path))
}

/// The volumes of the host that have to be there before a container starts: those that it mounts and nobody says the
/// kind of, which its runtime makes, and unless they `are_checked`, the others of its pod, at which kubelet looks once.
/// What no container mounts is left alone. Parts (`subPath`) are made of those that are there.
pub(super) fn host_paths(pod: &Pod, container: &str, are_checked: bool) -> Vec<HostVolume> {
    let wanted = |volume: &Volume| {
        let VolumeSource::HostPath { path, kind } = &volume.source else {
            return None;
        };
        let mounting = |it: &&Container| it.volume_mounts.iter().any(|it| it.0 == volume.name);
        let mut mounting = pod.all_containers().filter(mounting);
        let sub_paths: Vec<String> = sub_paths(pod, container, &volume.name).cloned().collect();
        let is_wanted = match kind {
            HostPathKind::Any => sub_paths.is_empty() && mounting.any(|it| it.name == container),
            _ => !are_checked && mounting.next().is_some(),
        };
        (is_wanted || !sub_paths.is_empty()).then(|| HostVolume {
            path: PathBuf::from(path),
            kind: is_wanted.then_some(*kind),
            sub_paths,
        })
    };
    pod.volumes.iter().filter_map(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing;
    use crate::run::own::pods::PODS;
    use crate::sys::scratch::Scratch;

    #[test]
    fn volumes_are_made_in_a_directory_of_the_pod_alone() {
        let (dir, root) = (Scratch::new("place-of-volumes"), Root::host());
        let paths = StatePaths(dir.directory().to_owned());
        let provide = |uid: &str| provide_place_of_volumes(&paths, &PodUid(uid.to_owned()));
        assert!(provide("new").is_err(), "there are no pods");
        for uid in ["begun", "file", "half"] {
            root.create_dir_all(paths.pods().join(uid))
                .expect("a directory");
        }
        dir.write("pods/file/volumes", "");
        dir.link("pods/half/volumes", "../begun");
        dir.link("pods/link", "begun");
        for uid in ["new", "begun", "begun"] {
            assert!(provide(uid).expect("no fault"), "{uid}");
            assert!(root.is_dir(paths.pods().join(uid).join(VOLUMES)), "{uid}");
        }
        for uid in ["file", "half", "link"] {
            let error = provide(uid).expect_err("something is in the way");
            assert_eq!(error.errno(), Some(ENOTDIR), "{uid}");
        }
        let names = root.list(paths.pods().join("begun")).expect("a directory");
        assert_eq!(names, [VOLUMES]);
    }

    /// As procfs is wherever there is one.
    #[test]
    fn what_is_mounted_over_the_directory_of_a_pod_is_asked_for_no_volumes() {
        let dir = Scratch::new("covered-pod");
        let paths = StatePaths(dir.directory().to_owned());
        dir.link(PODS, "/");
        let provided = provide_place_of_volumes(&paths, &PodUid("proc".to_owned()));
        assert!(!provided.expect("no fault"));
    }

    /// No file system has a name that is so long: it cannot be looked for.
    #[test]
    fn a_volume_that_cannot_be_looked_at_is_not_gone() {
        let dir = Scratch::new("late-volume");
        let paths = StatePaths(dir.directory().to_owned());
        let uid = PodUid("uid".to_owned());
        let resize = || resize_volume(&paths, &uid, "shared", Bytes(1 << 20));
        assert_eq!(resize(), Ok(false), "there is no pod");
        dir.link(PODS, "a".repeat(300));
        let why = resize().expect_err("nobody can say");
        assert!(why.starts_with("volume shared keeps its size"), "{why}");
    }

    #[test]
    fn parts_of_a_volume_are_those_that_the_container_mounts() {
        let mut pod = testing::pod("app {} app {}");
        let of = |volume: &str, path: &str| (volume.to_owned(), path.to_owned());
        pod.containers[0].sub_paths = [of("a", "x"), of("a", "y/z"), of("b", "w")].into();
        let name = pod.containers[0].name.clone();
        let parts = |container: &str, volume: &str| -> Vec<String> {
            sub_paths(&pod, container, volume).cloned().collect()
        };
        assert_eq!(parts(&name, "a"), ["x", "y/z"]);
        assert_eq!(parts(&name, "c"), [""; 0]);
        assert_eq!(parts(&pod.containers[1].name, "a"), [""; 0]);
    }

    #[test]
    fn a_user_has_its_groups_of_the_node_unless_the_pod_names_them() {
        let listed = User {
            home: None,
            gid: 1001,
            groups: BTreeSet::from([44, 105]),
        };
        type Edit = fn(&mut Pod);
        type Groups<'a> = (u32, u32, &'a [u32]);
        let cases: [(Edit, Option<&User>, Option<Groups>); 8] = [
            (|_| {}, Some(&listed), None),
            (
                |it| it.containers[0].run_as_user = Some(1000),
                Some(&listed),
                Some((1000, 1001, &[44, 105])),
            ),
            (
                |it| it.containers[0].run_as_user = Some(1000),
                None,
                Some((1000, 0, &[])),
            ),
            (
                |it| {
                    it.containers[0].run_as_user = Some(1000);
                    it.containers[0].run_as_group = Some(7);
                    it.supplemental_groups = vec![99, 44];
                    it.fs_group = Some(8);
                },
                Some(&listed),
                Some((1000, 7, &[8, 44, 99, 105])),
            ),
            (
                |it| {
                    it.containers[0].run_as_user = Some(1000);
                    it.supplemental_groups = vec![99];
                    it.node_requirements.has_strict_groups = true;
                },
                Some(&listed),
                Some((1000, 1001, &[99])),
            ),
            (|it| it.fs_group = Some(8), None, Some((0, 0, &[8]))),
            (
                |it| it.containers[0].run_as_group = Some(7),
                None,
                Some((0, 7, &[])),
            ),
            (
                |it| it.node_requirements.has_strict_groups = true,
                Some(&listed),
                None,
            ),
        ];
        for (i, (edit, user, expected)) in cases.into_iter().enumerate() {
            let mut pod = testing::pod("app {}");
            edit(&mut pod);
            let expected = expected.map(|(uid, gid, groups)| RunAs {
                uid,
                gid,
                groups: groups.to_vec(),
            });
            assert_eq!(run_as(&pod, &pod.containers[0], user), expected, "case {i}");
        }
    }
}
