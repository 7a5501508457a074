//! Where the pods of the node lie.

use crate::decide::kube_root::{Ambiguous, Evidence, choose};
use crate::model::cgroup::Controller;
use crate::model::cgroup_name::CgroupName;
use crate::model::cgroup_path::CgroupPath;
use crate::model::pod::QosClass;
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::kube_tree::{Kubepods, find_roots, kubepods};
use crate::sources::mounts;
use crate::sys::{FsError, Root};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `cgroupRoot` of kubelet on disk.
    pub root: CgroupPath,
    pub kubepods: Kubepods,
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
    /// Looks for it. `configured`: `kubelet.cgroupRoot` by either driver. `Ok(None)`: there is none yet.
    pub(super) fn find(
        root: &Root,
        reader: &CgroupReader,
        configured: &[CgroupPath],
    ) -> Result<Option<Self>, PlaceError> {
        let evidence = Evidence {
            own: mounts::own_cgroup(root, Controller::Memory.name()),
            configured: configured.to_vec(),
            found: find_roots(reader.trees(), configured)?,
        };
        let found = kubepods(reader.trees(), &choose(&evidence)?)?;
        Ok(found.map(|(root, kubepods)| Self { root, kubepods }))
    }

    /// Whether it is still the cgroup that was found.
    pub(super) fn is_there(&self, reader: &CgroupReader) -> bool {
        let dir = reader.dir(&self.kubepods.path, Controller::Memory.name());
        dir.is_ok_and(|it| it.inode() == self.kubepods.id.0)
    }

    /// The cgroups of [`Place::qos_cgroups`] where there are none: nothing is read of them.
    pub(super) fn nowhere() -> [CgroupPath; 3] {
        let [kubepods, burstable, best_effort] =
            ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"];
        [kubepods, burstable, best_effort].map(|it| it.parse().expect("a path without a fault"))
    }

    /// Kubepods and the two QoS classes that have a cgroup of their own in it, Burstable first.
    pub(super) fn qos_cgroups(&self) -> [CgroupPath; 3] {
        let Kubepods { path, driver, .. } = &self.kubepods;
        let classes = [
            QosClass::Guaranteed,
            QosClass::Burstable,
            QosClass::BestEffort,
        ];
        match CgroupName::parse(path.as_str(), *driver) {
            Ok(name) => classes.map(|class| name.qos(class).at(*driver)),
            // A root of a name that kubelet could not have made.
            Err(_) => classes.map(|_| path.clone()),
        }
    }
}
