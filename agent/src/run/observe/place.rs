//! Where the pods of the node lie.

use crate::check::{KILLS_ALONE, divided};
use crate::decide::kube_root::{Ambiguous, Evidence, Tree, choose, followed};
use crate::model::cgroup::Controller;
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::CgroupId;
use crate::model::kube_cgroup::class_in;
use crate::model::pod::QosClass;
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::kube_tree::{Kubepods, find_roots, pod_trees};
use crate::sources::mounts;
use crate::sys::{FsError, Root};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `cgroupRoot` of kubelet on disk.
    pub root: CgroupPath,
    /// The same by either driver, as far as there are pods below it: those of the other may still run.
    pub roots: Vec<CgroupPath>,
    pub kubepods: Kubepods,
    /// Of the other driver, if pods run in it too. The kernel's filters leave it out.
    pub other: Option<CgroupPath>,
}

/// Why nobody knows where they lie.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(transparent)]
    Ambiguous(#[from] Ambiguous),
    #[error("look for the cgroup of all pods")]
    Fs(#[from] FsError),
}

impl Place {
    /// Looks for it. `configured`: `kubelet.cgroupRoot` by either driver. `before`: the cgroup of all pods that is
    /// followed until now. `Ok(None)`: there is none yet.
    pub(super) fn find(
        root: &Root,
        reader: &CgroupReader,
        configured: &[CgroupPath],
        before: Option<CgroupId>,
    ) -> Result<Option<Self>, PlaceError> {
        let evidence = Evidence {
            own: mounts::own_cgroup(root, Controller::Memory.name()),
            configured: configured.to_vec(),
            found: find_roots(reader.trees(), configured)?,
        };
        let roots = choose(&evidence)?;
        let mut found = pod_trees(reader.trees(), &roots)?;
        let trees = found.iter().map(|it| Tree {
            id: it.kubepods.id,
            n_live: it.pods.n_live,
            youngest_pod: it.pods.youngest,
        });
        let trees: Vec<Tree> = trees.collect();
        let Some(chosen) = followed(&trees, before) else {
            return Ok(None);
        };
        let chosen = found.swap_remove(chosen);
        let other = found.into_iter().find(|it| it.pods.n_live > 0);
        Ok(Some(Self {
            root: chosen.root,
            roots,
            kubepods: chosen.kubepods,
            other: other.map(|it| it.kubepods.path),
        }))
    }

    /// That pods run in two trees, if they do, and what that means.
    pub(super) fn divided(&self) -> Option<String> {
        let other = self.other.as_ref()?;
        let divided = divided(self.kubepods.path.as_str(), other.as_str());
        Some(format!(
            "{divided}; of what happens in the second {KILLS_ALONE}"
        ))
    }

    /// Whether it is still the cgroup that was found.
    pub(super) fn is_there(&self, reader: &CgroupReader) -> bool {
        let dir = reader.dir(&self.kubepods.path, Controller::Memory.name());
        dir.is_ok_and(|it| it.inode() == self.kubepods.id.0)
    }

    /// Kubepods and the two QoS classes that have a cgroup of their own in it, Burstable first.
    pub(super) fn qos_cgroups(&self) -> Option<[CgroupPath; 3]> {
        let Kubepods { path, driver, .. } = &self.kubepods;
        let class = |class| class_in(path, *driver, class);
        Some([
            path.clone(),
            class(QosClass::Burstable)?,
            class(QosClass::BestEffort)?,
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cgroup_name::CgroupDriver;

    #[test]
    fn classes_lie_in_kubepods_as_the_driver_has_them() {
        let classes = |path: &str, driver| {
            let path: CgroupPath = path.parse().expect("a path");
            let place = Place {
                root: CgroupPath::root(),
                roots: Vec::new(),
                kubepods: Kubepods {
                    path,
                    id: CgroupId(7),
                    driver,
                },
                other: None,
            };
            let classes = place.qos_cgroups().expect("there are some");
            classes.map(|it| it.to_string())
        };
        assert_eq!(
            classes("/my_root/kubepods", CgroupDriver::Cgroupfs),
            [
                "/my_root/kubepods",
                "/my_root/kubepods/burstable",
                "/my_root/kubepods/besteffort"
            ]
        );
        let slice = "/a.slice/a-kubepods.slice";
        assert_eq!(
            classes(slice, CgroupDriver::Systemd),
            [
                slice.to_owned(),
                format!("{slice}/a-kubepods-burstable.slice"),
                format!("{slice}/a-kubepods-besteffort.slice")
            ]
        );
    }
}
