//! What a cgroup is on a Kubernetes node, by its path alone: kubepods, a QoS class, a pod, a container,
//! in the names of either cgroup driver and of every runtime.
//!
//! kubelet makes the levels down to the pod (`pkg/kubelet/cm/cgroup_manager_linux.go`, v1.36), the
//! runtime what is below. A sandbox has a name of the same form as a container: a path does not tell
//! them apart.
//!
//! Invariant: the first id below a pod names the container. A container may make any cgroups below its
//! own, a whole `kubepods` too, and so never passes for another pod.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::cgroup_name::algebra::SLICE;
use super::cgroup_name::{CgroupDriver, KUBEPODS, POD_PREFIX, qos_component};
use super::cgroup_path::CgroupPath;
use super::pod::{PodUid, QosClass};

/// What the kernel puts behind the path of a removed cgroup in `/proc/PID/cgroup` of cgroup v2
/// (`kernel/cgroup/cgroup.c`, Linux 4.4).
const DELETED: &str = " (deleted)";
const SCOPE: &str = ".scope";
/// Digits of a container's id, in containerd, CRI-O and Docker.
const ID_DIGITS: usize = 64;
/// Most bytes of a pod's UID.
const MAX_UID: usize = 128;

/// Which runtime a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CgroupRuntime {
    #[serde(rename = "containerd")]
    Containerd,
    #[serde(rename = "cri-o")]
    CriO,
    #[serde(rename = "docker")]
    Docker,
}

/// A container, as its cgroup names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerKey {
    /// 64 hexadecimal digits.
    pub id: String,
    /// `None`: a bare id, which containerd and Docker write alike.
    pub runtime: Option<CgroupRuntime>,
}

impl fmt::Display for ContainerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.id)
    }
}

/// How far down a cgroup lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeLevel {
    /// The cgroup of all pods.
    Kubepods,
    /// Never Guaranteed, which has no cgroup of its own.
    Qos(QosClass),
    /// The cgroup of a pod, or one in it that is no known runtime's: the pod is certain, the container
    /// is not.
    Pod { uid: PodUid, qos: QosClass },
    /// The cgroup of a container or of a sandbox.
    Container {
        uid: PodUid,
        qos: QosClass,
        key: ContainerKey,
    },
    /// Of the program that watches a container, and no part of it: CRI-O's conmon.
    Monitor {
        uid: PodUid,
        qos: QosClass,
        key: ContainerKey,
    },
}

/// What a path says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeCgroup<'a> {
    pub driver: CgroupDriver,
    pub level: KubeLevel,
    /// The rest of the path below that level: of cgroups that a container made for itself, or of an
    /// unknown child of a pod. Empty: the cgroup is that level itself.
    pub inner: &'a str,
    /// The container lies outside the cgroup of its pod, whose limits do not hold for it: the runtime
    /// uses cgroupfs while kubelet uses systemd.
    pub is_misplaced: bool,
}

/// What the cgroup `path` is on a node whose pods lie below `root` (kubelet's `cgroupRoot` as on disk).
/// `None`: none of its pods' cgroups.
pub fn parse<'a>(path: &'a CgroupPath, root: &CgroupPath) -> Option<KubeCgroup<'a>> {
    if path.components().take(3).any(|it| it.contains(':')) {
        return misplaced(Rest::below(path, &CgroupPath::root())?, &stem_of(root));
    }
    let (names, rest) = in_kubepods(path, root)?;
    let (level, inner) = names.below_kubepods(rest)?;
    Some(KubeCgroup {
        driver: names.driver(),
        level,
        inner: inner.0,
        is_misplaced: false,
    })
}

/// Whether a cgroup lies where those of pods do and has the name of one, with what is no UID in it.
pub fn lacks_uid(path: &CgroupPath, root: &CgroupPath) -> bool {
    in_kubepods(path, root).is_some_and(|(names, rest)| names.lacks_uid(rest))
}

/// What every unit of a pod begins with.
fn stem_of(root: &CgroupPath) -> String {
    match root.last().and_then(|it| it.strip_suffix(SLICE)) {
        Some(slice) => format!("{slice}-"),
        None => String::new(),
    }
}

/// How the cgroups in that of all pods are named, and what of `path` is below that.
fn in_kubepods<'a>(path: &'a CgroupPath, root: &CgroupPath) -> Option<(Names, Rest<'a>)> {
    let stem = stem_of(root);
    let (first, rest) = Rest::below(path, root)?.next()?;
    let in_systemd = format!("{stem}{KUBEPODS}");
    let is_cgroupfs = stem.is_empty() && first == KUBEPODS;
    let is_systemd = (root.is_root() || !stem.is_empty())
        && first.strip_suffix(SLICE) == Some(in_systemd.as_str());
    let names = match (is_cgroupfs, is_systemd) {
        (true, _) => Names::Cgroupfs,
        (_, true) => Names::Systemd { parent: in_systemd },
        _ => return None,
    };
    Some((names, rest))
}

/// The cgroup of a QoS class that has one of its own, in `kubepods` as `driver` has it. `None`: it is longer than a path
/// may be, or `kubepods` is no slice while the driver is systemd.
pub fn class_in(
    kubepods: &CgroupPath,
    driver: CgroupDriver,
    class: QosClass,
) -> Option<CgroupPath> {
    let names = match driver {
        CgroupDriver::Cgroupfs => Names::Cgroupfs,
        CgroupDriver::Systemd => Names::Systemd {
            parent: kubepods.last()?.strip_suffix(SLICE)?.to_owned(),
        },
    };
    kubepods.join(&names.class(class)).ok()
}

/// Whether a runtime's service may lie in this slice, by its name at the root. A user makes what he likes in his own.
pub fn is_slice_of_services(name: &str) -> bool {
    name.ends_with(SLICE) && name != "user.slice"
}

/// `SLICE:PREFIX:ID` as one directory: what an OCI runtime makes of systemd's form when it is told to use cgroupfs. It
/// lies where the runtime is: at the root, in the slice of its service (runc on cgroup v2, which goes one up from its
/// own cgroup: opencontainers/cgroups v0.0.6, fs2/defaultpath.go) or in its service (cgroup v1).
fn misplaced<'a>(components: Rest<'a>, stem: &str) -> Option<KubeCgroup<'a>> {
    let (first, rest) = components.next()?;
    let (triple, inner) = match first.contains(':') {
        true => (first, rest),
        false if is_slice_of_services(first) => {
            let (second, below) = rest.next()?;
            match second.contains(':') {
                true => (second, below),
                false => {
                    let name = second.strip_suffix(".service")?;
                    (!name.is_empty()).then_some(())?;
                    below.next()?
                }
            }
        }
        false => return None,
    };
    let mut parts = triple.split(':');
    let (slice, prefix, id) = (parts.next()?, parts.next()?, parts.next()?);
    let runtime = match (prefix, parts.next()) {
        ("cri-containerd", None) => CgroupRuntime::Containerd,
        ("crio", None) => CgroupRuntime::CriO,
        _ => return None,
    };
    let kubepods = Names::Systemd {
        parent: format!("{stem}{KUBEPODS}"),
    };
    let qos = [QosClass::Burstable, QosClass::BestEffort].into_iter();
    let classes = qos.map(|class| (class, kubepods.in_class(class)));
    let mut classes = classes.chain([(QosClass::Guaranteed, kubepods.clone())]);
    let (qos, uid) = classes.find_map(|(class, names)| Some((class, names.uid(slice)?)))?;
    Some(KubeCgroup {
        driver: CgroupDriver::Systemd,
        level: KubeLevel::Container {
            uid,
            qos,
            key: container_key(id, Some(runtime))?,
        },
        inner: inner.0,
        is_misplaced: true,
    })
}

/// The names of a driver's cgroups below one.
#[derive(Clone)]
enum Names {
    Cgroupfs,
    /// `parent` is the parent's unit without `.slice`, which every child's begins with.
    Systemd {
        parent: String,
    },
}

impl Names {
    fn driver(&self) -> CgroupDriver {
        match self {
            Self::Cgroupfs => CgroupDriver::Cgroupfs,
            Self::Systemd { .. } => CgroupDriver::Systemd,
        }
    }

    fn below_kubepods<'a>(&self, rest: Rest<'a>) -> Option<(KubeLevel, Rest<'a>)> {
        let Some((first, below)) = rest.next() else {
            return Some((KubeLevel::Kubepods, rest));
        };
        let Some(qos) = self.class_of(first) else {
            return self.pod(QosClass::Guaranteed, first, below);
        };
        match below.next() {
            None => Some((KubeLevel::Qos(qos), below)),
            Some((pod, below)) => self.in_class(qos).pod(qos, pod, below),
        }
    }

    /// See [`lacks_uid`].
    fn lacks_uid(&self, rest: Rest<'_>) -> bool {
        let mut components = rest.0.split('/');
        let (Some(first), second, None) = (components.next(), components.next(), components.next())
        else {
            return false;
        };
        let text = match second {
            None => self.uid_text(first),
            Some(pod) => self
                .class_of(first)
                .and_then(|it| self.in_class(it).uid_text(pod)),
        };
        text.is_some_and(|it| !is_uid(&it))
    }

    /// The QoS class whose cgroup has this name.
    fn class_of(&self, name: &str) -> Option<QosClass> {
        let mut classes = [QosClass::Burstable, QosClass::BestEffort].into_iter();
        classes.find(|it| self.class(*it) == name)
    }

    /// Of the cgroup of a QoS class.
    fn class(&self, class: QosClass) -> String {
        match self.in_class(class) {
            Self::Cgroupfs => qos_component(class).to_owned(),
            Self::Systemd { parent } => format!("{parent}{SLICE}"),
        }
    }

    /// Of the cgroups in a QoS class.
    fn in_class(&self, class: QosClass) -> Self {
        match self {
            Self::Cgroupfs => Self::Cgroupfs,
            Self::Systemd { parent } => Self::Systemd {
                parent: format!("{parent}-{}", qos_component(class)),
            },
        }
    }

    fn pod<'a>(
        &self,
        qos: QosClass,
        component: &str,
        below: Rest<'a>,
    ) -> Option<(KubeLevel, Rest<'a>)> {
        let uid = self.uid(component)?;
        let child = below.next();
        if let Some((child, inner)) = child
            && let Some((key, is_monitor)) = self.container(child)
        {
            let level = match is_monitor {
                true => KubeLevel::Monitor { uid, qos, key },
                false => KubeLevel::Container { uid, qos, key },
            };
            return Some((level, inner));
        }
        Some((KubeLevel::Pod { uid, qos }, below))
    }

    /// The UID in the name of a pod's cgroup.
    fn uid(&self, component: &str) -> Option<PodUid> {
        self.uid_text(component).filter(|it| is_uid(it)).map(PodUid)
    }

    /// What is in its place, whatever it is.
    fn uid_text(&self, component: &str) -> Option<String> {
        match self {
            Self::Cgroupfs => component.strip_prefix(POD_PREFIX).map(str::to_owned),
            Self::Systemd { parent } => {
                let escaped = component.strip_prefix(parent.as_str())?.strip_prefix('-')?;
                let escaped = escaped.strip_prefix(POD_PREFIX)?.strip_suffix(SLICE)?;
                (!escaped.contains('-')).then(|| escaped.replace('_', "-"))
            }
        }
    }

    /// The container that a child of a pod's cgroup is named after, and whether the child is its
    /// monitor's.
    fn container(&self, child: &str) -> Option<(ContainerKey, bool)> {
        let is_systemd = matches!(self, Self::Systemd { .. });
        let scope = child.strip_suffix(SCOPE).filter(|_| is_systemd);
        let in_scope = |prefix: &str| scope?.strip_prefix(prefix);
        if let Some(id) = in_scope("cri-containerd-") {
            return Some((container_key(id, Some(CgroupRuntime::Containerd))?, false));
        }
        if let Some(id) = in_scope("docker-") {
            return Some((container_key(id, Some(CgroupRuntime::Docker))?, false));
        }
        if let Some(key) = monitored(child) {
            return Some((key, true));
        }
        // CRI-O makes the cgroup of a sandbox without a process by itself, and then without a suffix.
        if let Some(id) = scope.unwrap_or(child).strip_prefix("crio-") {
            return Some((container_key(id, Some(CgroupRuntime::CriO))?, false));
        }
        Some((container_key(child, None)?, false))
    }
}

/// The container that a program watches whose cgroup in a pod has this name.
pub fn monitored(child: &str) -> Option<ContainerKey> {
    let name = child.strip_suffix(SCOPE).unwrap_or(child);
    container_key(
        name.strip_prefix("crio-conmon-")?,
        Some(CgroupRuntime::CriO),
    )
}

fn container_key(id: &str, runtime: Option<CgroupRuntime>) -> Option<ContainerKey> {
    let is_id =
        id.len() == ID_DIGITS && id.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then(|| ContainerKey {
        id: id.to_owned(),
        runtime,
    })
}

/// A UID of the API server, the hash that kubelet gives a static pod, or the `metadata.uid` of a
/// manifest, which may be any text.
fn is_uid(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() <= MAX_UID
        && bytes.next().is_some_and(|it| it.is_ascii_alphanumeric())
        && bytes.all(|it| it.is_ascii_alphanumeric() || matches!(it, b'.' | b'-'))
}

/// What is left of a path, without a slash in front.
#[derive(Clone, Copy)]
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// What of a path is below `root`.
    fn below(path: &'a CgroupPath, root: &CgroupPath) -> Option<Self> {
        let rest = path.below(root)?;
        Some(Self(rest.strip_suffix(DELETED).unwrap_or(rest)))
    }

    /// The first component, and what is left then.
    fn next(self) -> Option<(&'a str, Self)> {
        let (first, rest) = self.0.split_once('/').unwrap_or((self.0, ""));
        (!first.is_empty()).then_some((first, Self(rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cgroup_name::CgroupName;

    const ID: &str = "3f1c9a4e7b2d58606172839405a6b7c8d9e0f1a2b3c4d5e6f708192a3b4c5d6e";
    const UID: &str = "7141ef4c-36c0-4d9f-984e-333f4f41a68f";

    /// Level, UID, container and inner path, as one text.
    fn shown(path: &str, root: &str) -> Option<String> {
        let path = CgroupPath::new(path).expect("a path");
        let it = parse(&path, &CgroupPath::new(root).expect("a path"))?;
        let level = match &it.level {
            KubeLevel::Kubepods => "kubepods".to_owned(),
            KubeLevel::Qos(qos) => format!("{qos:?}"),
            KubeLevel::Pod { uid, qos } => format!("{qos:?} {uid}"),
            KubeLevel::Container { uid, qos, key } => format!("{qos:?} {uid} {key}"),
            KubeLevel::Monitor { uid, qos, key } => format!("{qos:?} {uid} monitor {key}"),
        };
        Some(format!("{level} {:?}", it.inner))
    }

    #[track_caller]
    fn check(path: &str, root: &str, expected: Option<&str>) {
        assert_eq!(
            shown(path, root).as_deref(),
            expected,
            "{path} below {root}"
        );
    }

    /// The recorded paths are a suite of their own; these are what they do not have.
    #[test]
    fn a_container_cannot_pass_for_another_pod() {
        let pod = format!("/kubepods/pod{UID}");
        let own = format!("Guaranteed {UID} {ID}");
        for inner in [
            format!("kubepods/pod{UID}/{}", "0".repeat(64)),
            "0".repeat(64),
            format!("crio-conmon-{ID}"),
            "a (deleted) b".to_owned(),
        ] {
            check(
                &format!("{pod}/{ID}/{inner}"),
                "/",
                Some(&format!("{own} {inner:?}")),
            );
        }
        // An unknown runtime's child is the pod's, whatever is below it.
        check(
            &format!("{pod}/x/{ID}"),
            "/",
            Some(&format!("Guaranteed {UID} \"x/{ID}\"")),
        );
    }

    #[test]
    fn a_root_is_matched_by_whole_components_and_by_its_stem() {
        check("/a/kubepods", "/a", Some("kubepods \"\""));
        check("/ab/kubepods", "/a", None);
        check("/a", "/a", None);
        check("/a/kubepods.slice", "/a", None);
        check("/a.slice/kubepods", "/a.slice", None);
        check("/a.slice/kubepods.slice", "/a.slice", None);
        check(
            "/a.slice/a-kubepods.slice",
            "/a.slice",
            Some("kubepods \"\""),
        );
        check(
            "/a.slice/a-kubepods.slice/a-kubepods-guaranteed.slice",
            "/a.slice",
            None,
        );
    }

    #[test]
    fn classes_are_found_where_an_agent_that_makes_them_puts_them() {
        let own = CgroupName::new(["my-root", "kubepods"]).expect("a name");
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            for class in [QosClass::Burstable, QosClass::BestEffort] {
                let found = class_in(&own.at(driver), driver, class);
                assert_eq!(found, Some(own.qos(class).at(driver)));
            }
        }
        let no_slice = own.at(CgroupDriver::Cgroupfs);
        let found = class_in(&no_slice, CgroupDriver::Systemd, QosClass::Burstable);
        assert_eq!(found, None);
    }

    #[test]
    fn a_uid_is_what_a_manifest_may_give() {
        let long = "u".repeat(MAX_UID);
        for (uid, is_one) in [
            ("a", true),
            ("my.uid-1", true),
            (long.as_str(), true),
            (&format!("{long}u"), false),
            ("-a", false),
            (".a", false),
            ("a_b", false),
            ("ä", false),
        ] {
            let got = shown(&format!("/kubepods/pod{uid}"), "/");
            let expected = is_one.then(|| format!("Guaranteed {uid} \"\""));
            assert_eq!(got, expected, "{uid}");
        }
    }

    #[test]
    fn a_pod_without_a_uid_is_known_by_where_it_lies_and_by_the_rest_of_its_name() {
        let slice = "/a.slice/a-kubepods.slice";
        for (path, root, is_one) in [
            ("/kubepods/poda_b", "/", true),
            ("/kubepods/pod", "/", true),
            ("/kubepods/burstable/poda_b", "/", true),
            ("/a/kubepods/poda_b", "/a", true),
            (&format!("{slice}/a-kubepods-podä.slice"), "/a.slice", true),
            ("/kubepods/poda", "/", false),
            ("/kubepods", "/", false),
            ("/kubepods/burstable", "/", false),
            ("/kubepods/strange", "/", false),
            ("/kubepods/strange/poda_b", "/", false),
            ("/kubepods/poda/podb_c", "/", false),
            ("/poda_b", "/", false),
            (&format!("{slice}/poda_b"), "/a.slice", false),
            // That of a slice which systemd has made above another.
            (
                &format!("{slice}/a-kubepods-pod-a.slice"),
                "/a.slice",
                false,
            ),
        ] {
            let [path, root] = [path, root].map(|it| CgroupPath::new(it).expect("a path"));
            assert_eq!(lacks_uid(&path, &root), is_one, "{path} below {root}");
        }
    }
}
