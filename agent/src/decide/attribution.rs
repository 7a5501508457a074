//! Whose cgroup is it? Cgroup ids of the watched hierarchy to pods and containers.
//!
//! In: what the reconcile loop registered before the first process of a cgroup could run, and the
//! lineage that the kernel recorded with the event. Out: the owner. Nothing is looked up when an
//! event is handled, so a nested cgroup, or one that is removed by then, is attributed all the
//! same: its recorded ancestors name the container.
//!
//! Invariant: an id is registered before a process can be in it, and forgotten only after
//! [`KEPT_AFTER_REMOVAL`] others have been removed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::model::event::{CgroupId, CgroupLineage};
use crate::model::pod::QosClass;
use crate::model::record::PodRef;

/// How many removed cgroups stay known: a thousand pods of one container. The loop removes a few hundred
/// cgroups a second at most and an event waits a second at most, so this many removals cannot pass while
/// one waits.
pub const KEPT_AFTER_REMOVAL: usize = 2_048;
/// Path, pod and container of each take some half a KiB: together no more than a MiB.
const _: () = assert!(KEPT_AFTER_REMOVAL * 512 <= 1 << 20);

/// What a registered cgroup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// The node-allocatable cgroup.
    Kubepods,
    Qos,
    Pod {
        pod: Arc<PodRef>,
        qos: QosClass,
    },
    Container {
        pod: Arc<PodRef>,
        qos: QosClass,
        container: String,
    },
}

/// A registered cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub level: Level,
    /// From the cgroup mount.
    pub path: String,
}

impl Owner {
    pub fn pod(&self) -> Option<&Arc<PodRef>> {
        match &self.level {
            Level::Pod { pod, .. } | Level::Container { pod, .. } => Some(pod),
            Level::Kubepods | Level::Qos => None,
        }
    }

    pub fn qos(&self) -> Option<QosClass> {
        match self.level {
            Level::Pod { qos, .. } | Level::Container { qos, .. } => Some(qos),
            Level::Kubepods | Level::Qos => None,
        }
    }

    pub fn container(&self) -> Option<&str> {
        match &self.level {
            Level::Container { container, .. } => Some(container),
            _ => None,
        }
    }
}

/// How far below the watched root an event's cgroup is owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// By a registered cgroup: the event's own, or the nearest recorded ancestor.
    Owned(Arc<Owner>),
    /// Below the watched root, but nothing of its lineage is registered.
    Unknown,
    /// Outside the watched root: the node itself, or a service beside the pods.
    Outside,
}

impl Attribution {
    pub fn owner(&self) -> Option<&Arc<Owner>> {
        match self {
            Self::Owned(owner) => Some(owner),
            Self::Unknown | Self::Outside => None,
        }
    }
}

/// How many cgroups there are of each level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCounts {
    pub kubepods: usize,
    pub qos: usize,
    pub pods: usize,
    pub containers: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct CgroupIndex {
    owners: BTreeMap<CgroupId, Arc<Owner>>,
    removed: VecDeque<CgroupId>,
}

impl CgroupIndex {
    /// Registers a cgroup, or replaces what was known of it.
    pub fn insert(&mut self, id: CgroupId, owner: Owner) {
        self.owners.insert(id, Arc::new(owner));
    }

    /// The cgroup is removed from the node; its id stays known for events on their way.
    pub fn retire(&mut self, id: CgroupId) {
        if !self.owners.contains_key(&id) || self.removed.contains(&id) {
            return;
        }
        self.removed.push_back(id);
        if self.removed.len() > KEPT_AFTER_REMOVAL
            && let Some(oldest) = self.removed.pop_front()
        {
            self.owners.remove(&oldest);
        }
    }

    pub fn get(&self, id: CgroupId) -> Option<&Arc<Owner>> {
        self.owners.get(&id)
    }

    /// The owner of the cgroup of an event: the deepest registered cgroup of its lineage.
    pub fn attribute(&self, lineage: &CgroupLineage) -> Attribution {
        let ids = std::iter::once(Some(lineage.cgroup_id))
            .chain(lineage.below_root.iter().rev().copied());
        for id in ids.flatten() {
            if let Some(owner) = self.owners.get(&id) {
                return Attribution::Owned(Arc::clone(owner));
            }
        }
        match lineage.in_root {
            true => Attribution::Unknown,
            false => Attribution::Outside,
        }
    }

    /// The cgroup of the pod that an event's cgroup belongs to.
    pub fn pod_of(&self, lineage: &CgroupLineage) -> Option<&Arc<Owner>> {
        let ids = lineage.below_root.into_iter().flatten();
        ids.chain([lineage.cgroup_id])
            .filter_map(|id| self.owners.get(&id))
            .find(|it| matches!(it.level, Level::Pod { .. }))
    }

    /// The cgroups of the pods that are there.
    pub fn pods(&self) -> Vec<Arc<Owner>> {
        let removed: BTreeSet<CgroupId> = self.removed.iter().copied().collect();
        let live = self.owners.iter().filter(|(id, _)| !removed.contains(id));
        live.filter(|(_, it)| matches!(it.level, Level::Pod { .. }))
            .map(|(_, it)| Arc::clone(it))
            .collect()
    }

    /// How many of the cgroups `ids` are of each level.
    pub fn count(&self, ids: impl IntoIterator<Item = CgroupId>) -> LevelCounts {
        let mut counts = LevelCounts::default();
        for owner in ids.into_iter().filter_map(|id| self.owners.get(&id)) {
            let count = match owner.level {
                Level::Kubepods => &mut counts.kubepods,
                Level::Qos => &mut counts.qos,
                Level::Pod { .. } => &mut counts.pods,
                Level::Container { .. } => &mut counts.containers,
            };
            *count += 1;
        }
        counts
    }

    pub fn len(&self) -> usize {
        self.owners.len()
    }

    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::PodUid;

    fn pod(name: &str) -> Arc<PodRef> {
        Arc::new(PodRef {
            namespace: "default".into(),
            name: name.into(),
            uid: PodUid(format!("uid-{name}")),
        })
    }

    fn owner(level: Level) -> Owner {
        Owner {
            level,
            path: String::new(),
        }
    }

    /// kubepods (1) / burstable (2) / pod a (3) / container c (4); kubepods / guaranteed pod g (5)
    /// / container m (6).
    fn index() -> CgroupIndex {
        let mut index = CgroupIndex::default();
        let qos = QosClass::Burstable;
        let container = |pod: &Arc<PodRef>, container: &str| Level::Container {
            pod: Arc::clone(pod),
            qos,
            container: container.into(),
        };
        let (a, g) = (pod("a"), pod("g"));
        for (id, level) in [
            (1, Level::Kubepods),
            (2, Level::Qos),
            (
                3,
                Level::Pod {
                    pod: a.clone(),
                    qos,
                },
            ),
            (4, container(&a, "c")),
            (
                5,
                Level::Pod {
                    pod: g.clone(),
                    qos,
                },
            ),
            (6, container(&g, "m")),
        ] {
            index.insert(CgroupId(id), owner(level));
        }
        index
    }

    fn lineage(cgroup: u64, below: [u64; 3], in_root: bool) -> CgroupLineage {
        CgroupLineage {
            cgroup_id: CgroupId(cgroup),
            below_root: below.map(|id| (id != 0).then_some(CgroupId(id))),
            in_root,
        }
    }

    #[track_caller]
    fn check(lineage: CgroupLineage, pod: Option<&str>, container: Option<&str>) {
        let attribution = index().attribute(&lineage);
        let owner = attribution.owner();
        let got_pod = owner.and_then(|it| it.pod()).map(|it| it.name.as_str());
        assert_eq!(got_pod, pod, "{lineage:?}");
        assert_eq!(
            owner.and_then(|it| it.container()),
            container,
            "{lineage:?}"
        );
    }

    #[test]
    fn the_deepest_registered_cgroup_owns_the_event() {
        check(lineage(4, [2, 3, 4], true), Some("a"), Some("c"));
        check(lineage(3, [2, 3, 0], true), Some("a"), None);
        check(lineage(6, [5, 6, 0], true), Some("g"), Some("m"));
        check(lineage(2, [2, 0, 0], true), None, None);
    }

    #[test]
    fn cgroups_are_counted_by_their_level() {
        let counts = index().count([1, 2, 3, 5, 6, 99].map(CgroupId));
        let expected = LevelCounts {
            kubepods: 1,
            qos: 1,
            pods: 2,
            containers: 1,
        };
        assert_eq!(
            counts, expected,
            "one has no container yet, one is not ours"
        );
    }

    #[test]
    fn a_nested_cgroup_belongs_to_its_container() {
        // Guaranteed: nested one level below the container; the kernel recorded its id too.
        check(lineage(99, [5, 6, 99], true), Some("g"), Some("m"));
        // Burstable: nested deeper than what is recorded.
        check(lineage(99, [2, 3, 4], true), Some("a"), Some("c"));
    }

    #[test]
    fn a_removed_cgroup_is_still_known() {
        let mut index = index();
        index.retire(CgroupId(4));
        index.retire(CgroupId(4));
        let attribution = index.attribute(&lineage(4, [2, 3, 4], true));
        assert_eq!(attribution.owner().and_then(|it| it.container()), Some("c"));
        for id in 1_000..1_000 + KEPT_AFTER_REMOVAL as u64 {
            index.insert(CgroupId(id), owner(Level::Kubepods));
            index.retire(CgroupId(id));
        }
        assert_eq!(index.get(CgroupId(4)), None, "the oldest is forgotten");
    }

    #[test]
    fn outside_and_unknown_are_told_apart() {
        let index = index();
        let at = |cgroup, in_root| index.attribute(&lineage(cgroup, [0; 3], in_root));
        assert_eq!(at(77, false), Attribution::Outside);
        assert_eq!(at(77, true), Attribution::Unknown);
    }
}
