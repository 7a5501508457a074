//! Where the cgroup hierarchies are: from the mount table to one [`CgroupLayout`].
//!
//! In: the mounts, and which controllers there are. Out: for every controller one mount point.
//! Invariant: the same table gives the same layout.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where a node's hierarchies are expected: systemd and every container runtime put them there.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// What kubelet demands of a v1 node, else it does not start (validateSystemRequirements).
pub const REQUIRED_V1: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];
/// What limits and placement of pods need on v2 (kubelet's validated set without `hugetlb`, which
/// a node without huge pages can do without).
pub const REQUIRED_V2: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// A cgroup controller as the kernel names it (`memory`), or the name of a v1 hierarchy without
/// controllers (`systemd` for `name=systemd`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ControllerName(pub String);

impl Borrow<str> for ControllerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ControllerName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One line of mountinfo (proc_pid_mountinfo(5)), reduced to what finding cgroups needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory of the filesystem that is visible at the mount point; `/` unless it is a bind
    /// mount or lies in another cgroup namespace.
    pub root: String,
    pub mount_point: PathBuf,
    pub fs_type: String,
    /// Names of the superblock's options; for cgroup v1 its controllers are among them.
    pub super_options: BTreeSet<String>,
}

/// One line of `/proc/self/cgroup`: this process in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// 0 for cgroup v2.
    pub hierarchy_id: u32,
    /// Empty for cgroup v2.
    pub controllers: Vec<ControllerName>,
    /// Below the root of the hierarchy, as seen from the reader's cgroup namespace.
    pub path: String,
}

/// `cgroup.controllers` or `cgroup.subtree_control`: names between blanks.
pub fn parse_controllers(text: &str) -> BTreeSet<ControllerName> {
    text.split_whitespace().map(ControllerName::from).collect()
}

/// How the hierarchies are laid out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version", rename_all = "camelCase")]
pub enum CgroupLayout {
    /// cgroup v2: one hierarchy for every controller.
    Unified { mount: PathBuf },
    /// cgroup v1: a mount point per controller; controllers of one hierarchy share theirs.
    Legacy {
        controllers: BTreeMap<ControllerName, PathBuf>,
        /// A cgroup v2 mount beside it, mostly without controllers.
        hybrid: Option<PathBuf>,
    },
}

/// The mount table has no cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no cgroup hierarchy is mounted: expected one at {CGROUP_ROOT}")]
pub struct NoHierarchy;

impl CgroupLayout {
    /// Chooses among the mounts. `known` are the controllers of this kernel and the names of the
    /// hierarchies without controllers; other options of a v1 mount (`rw`, `xattr`) are not taken
    /// for controllers.
    ///
    /// v2 if a cgroup2 filesystem is what one sees at `/sys/fs/cgroup`, which is kubelet's test, or
    /// if there is no v1 controller at all. For v1, each controller takes the mount that shows the
    /// whole hierarchy (root `/`) rather than a part, below `/sys/fs/cgroup` rather than elsewhere,
    /// then the shortest path, then the first. Kubelet looks at the length alone, and a bind mount
    /// of some container can then win and later vanish (kubernetes/kubernetes 125943).
    pub fn choose(mounts: &[Mount], known: &BTreeSet<ControllerName>) -> Result<Self, NoHierarchy> {
        // A later mount covers an earlier one at the same place.
        let seen_at_root = mounts
            .iter()
            .rev()
            .find(|it| it.mount_point == Path::new(CGROUP_ROOT));
        if seen_at_root.is_some_and(|it| it.fs_type == "cgroup2") {
            return Ok(Self::Unified {
                mount: CGROUP_ROOT.into(),
            });
        }
        let unified = best(mounts.iter().filter(|it| it.fs_type == "cgroup2"));
        let controllers: BTreeMap<_, _> = known
            .iter()
            .filter_map(|controller| {
                let carries = |it: &&Mount| {
                    it.fs_type == "cgroup" && it.super_options.contains(&controller.0)
                };
                let mount = best(mounts.iter().filter(carries))?;
                Some((controller.clone(), mount.mount_point.clone()))
            })
            .collect();
        match unified {
            None if controllers.is_empty() => Err(NoHierarchy),
            Some(unified) if controllers.is_empty() => Ok(Self::Unified {
                mount: unified.mount_point.clone(),
            }),
            _ => Ok(Self::Legacy {
                controllers,
                hybrid: unified.map(|it| it.mount_point.clone()),
            }),
        }
    }

    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified { .. })
    }

    /// The mount point of a controller; on v2 the one mount, whether or not the controller is
    /// there.
    pub fn mount_of(&self, controller: &str) -> Option<&Path> {
        match self {
            Self::Unified { mount } => Some(mount),
            Self::Legacy { controllers, .. } => controllers.get(controller).map(PathBuf::as_path),
        }
    }

    /// Every mount point once, with its controllers (none listed for v2). The v2 mount of a hybrid
    /// node is not among them: its controllers are elsewhere.
    pub fn mount_points(&self) -> BTreeMap<&Path, BTreeSet<&ControllerName>> {
        match self {
            Self::Unified { mount } => BTreeMap::from([(mount.as_path(), BTreeSet::new())]),
            Self::Legacy { controllers, .. } => {
                let mut mount_points: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
                for (controller, mount) in controllers {
                    mount_points
                        .entry(mount.as_path())
                        .or_default()
                        .insert(controller);
                }
                mount_points
            }
        }
    }

    /// The cgroup v2 mount, with or without controllers, where eBPF programs can be attached.
    pub fn cgroup2_mount(&self) -> Option<&Path> {
        match self {
            Self::Unified { mount } => Some(mount),
            Self::Legacy { hybrid, .. } => hybrid.as_deref(),
        }
    }
}

fn best<'a>(mounts: impl Iterator<Item = &'a Mount>) -> Option<&'a Mount> {
    // `min_by_key` takes the first of equals.
    mounts.min_by_key(|it| {
        (
            it.root != "/",
            !it.mount_point.starts_with(CGROUP_ROOT),
            it.mount_point.as_os_str().len(),
        )
    })
}

/// The hierarchies with what is in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupFacts {
    pub layout: CgroupLayout,
    /// What can be used: on v2 `cgroup.controllers` of the root, on v1 what is mounted.
    pub controllers: BTreeSet<ControllerName>,
    /// Controllers on the v2 mount of a hybrid node; mostly none.
    pub hybrid_controllers: BTreeSet<ControllerName>,
    /// v1: controller to the first column of `/proc/self/cgroup`. Empty on v2, where it is 0.
    pub hierarchy_ids: BTreeMap<ControllerName, u32>,
    /// This process: controller to its path in that hierarchy; on v2 and for the v2 half of a
    /// hybrid node under the empty name.
    pub own_paths: BTreeMap<ControllerName, String>,
}

impl CgroupFacts {
    /// Of the controllers `wanted` those that can be used.
    pub fn present(&self, wanted: &[&str]) -> BTreeSet<String> {
        let present = wanted.iter().filter(|it| self.controllers.contains(**it));
        present.map(|it| (*it).to_owned()).collect()
    }

    pub fn new(
        layout: CgroupLayout,
        controllers_of_cgroup2: BTreeSet<ControllerName>,
        membership: &[Membership],
    ) -> Self {
        let mut hierarchy_ids = BTreeMap::new();
        let mut own_paths = BTreeMap::new();
        for line in membership {
            if line.hierarchy_id == 0 {
                own_paths.insert(ControllerName::from(""), line.path.clone());
            }
            for controller in &line.controllers {
                hierarchy_ids.insert(controller.clone(), line.hierarchy_id);
                own_paths.insert(controller.clone(), line.path.clone());
            }
        }
        let (controllers, hybrid_controllers) = match &layout {
            CgroupLayout::Unified { .. } => {
                hierarchy_ids.clear();
                (controllers_of_cgroup2, BTreeSet::new())
            }
            CgroupLayout::Legacy { controllers, .. } => (
                controllers.keys().cloned().collect(),
                controllers_of_cgroup2,
            ),
        };
        Self {
            layout,
            controllers,
            hybrid_controllers,
            hierarchy_ids,
            own_paths,
        }
    }

    /// Required controllers that this node does not have, sorted.
    pub fn missing_controllers(&self) -> Vec<ControllerName> {
        let required = if self.layout.is_unified() {
            REQUIRED_V2
        } else {
            REQUIRED_V1
        };
        required
            .into_iter()
            .filter(|it| !self.controllers.contains(*it))
            .map(ControllerName::from)
            .collect()
    }
}

#[cfg(test)]
mod tests;
