//! Whose is it? Cgroup ids of the watched hierarchy to what they are and to the names of pods and
//! containers.
//!
//! In: what was registered before the first process of a cgroup could run, and the lineage that the
//! kernel recorded with the event. Out: the owner. Nothing is looked up when an event is handled, so a
//! nested cgroup, or one that is removed by then, is attributed all the same: its recorded ancestors
//! name the container.
//!
//! Invariant: an id is registered before a process can be in it, and forgotten only after
//! [`KEPT`](super::ended::KEPT) others have been removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ended::Ended;
use super::naming::Names;
use crate::model::attribution::{Attributed, Level, OomAttribution, Owner};
use crate::model::event::{AttributionMethod, CgroupId, CgroupLineage, OomConstraint, OomKill};
use crate::model::record::OomScope;

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
    removed: Ended<CgroupId>,
    pub names: Names,
}

impl CgroupIndex {
    /// Registers a cgroup, or replaces what was known of it.
    pub fn insert(&mut self, id: CgroupId, owner: Owner) {
        self.owners.insert(id, Arc::new(owner));
    }

    /// The cgroup is removed from the node; its id and its name stay known for events on their way.
    pub fn retire(&mut self, id: CgroupId) {
        let Some(owner) = self.owners.get(&id) else {
            return;
        };
        if self.removed.contains(&id) {
            return;
        }
        self.names.end(owner);
        if let Some(oldest) = self.removed.push(id) {
            self.owners.remove(&oldest);
        }
    }

    /// Whose a cgroup is that is registered itself; `None`: it is not.
    pub fn get(&self, id: CgroupId) -> Option<Attributed> {
        Some(self.named(self.owners.get(&id)?, true))
    }

    /// Whose the cgroup of an event is: the deepest registered cgroup of its lineage owns it.
    pub fn attribute(&self, lineage: &CgroupLineage) -> Attributed {
        let ids = std::iter::once(Some(lineage.cgroup_id))
            .chain(lineage.below_root.iter().rev().copied());
        let mut registered = ids
            .flatten()
            .filter_map(|id| Some((id, self.owners.get(&id)?)));
        match registered.next() {
            Some((id, owner)) => Attributed {
                in_root: lineage.in_root,
                ..self.named(owner, id == lineage.cgroup_id)
            },
            None => Attributed {
                in_root: lineage.in_root,
                ..Attributed::default()
            },
        }
    }

    fn named(&self, owner: &Arc<Owner>, is_exact: bool) -> Attributed {
        Attributed {
            owner: Some(Arc::clone(owner)),
            is_exact,
            in_root: true,
            pod: self.names.pod_of(owner).cloned(),
            container: self.names.container_of(owner).cloned(),
        }
    }

    /// Whose a kill is. Who the first process of the container is, the index does not know.
    pub fn attribute_kill(&self, kill: &OomKill) -> OomAttribution {
        let limit = kill.limit_cgroup.map(|it| self.attribute(&it));
        OomAttribution {
            victim: self.attribute(&kill.victim_cgroup),
            trigger: self.attribute(&kill.trigger_cgroup),
            pod: self.pod_of(&kill.victim_cgroup).cloned(),
            scope: oom_scope(kill, limit.as_ref()),
            limit,
            is_main: None,
        }
    }

    /// The cgroup of the pod that an event's cgroup belongs to.
    fn pod_of(&self, lineage: &CgroupLineage) -> Option<&Arc<Owner>> {
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
                Level::Qos(_) => &mut counts.qos,
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

/// Whose limit made the kernel kill. A limit below a container, set by the workload itself, is the
/// container's.
fn oom_scope(kill: &OomKill, limit: Option<&Attributed>) -> OomScope {
    if let Some(limit) = limit {
        return match limit.owner.as_ref().map(|it| &it.level) {
            Some(Level::Container { .. }) => OomScope::Container,
            Some(Level::Pod { .. }) => OomScope::Pod,
            Some(Level::Qos(_)) => OomScope::Qos,
            Some(Level::Kubepods) => OomScope::Kubepods,
            None => OomScope::Other,
        };
    }
    match (kill.constraint, kill.method) {
        (Some(OomConstraint::Global), _) => OomScope::Node,
        (Some(OomConstraint::Cpuset | OomConstraint::MemoryPolicy), _) => OomScope::Cpuset,
        // No limit on the way up was reached, so no memory cgroup was the reason.
        (None, AttributionMethod::Derived) => OomScope::Node,
        (Some(OomConstraint::Memcg), _) | (None, _) => OomScope::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::ended::KEPT;
    use crate::decide::testing::{key, register, registered};
    use crate::model::cgroup_path::CgroupPath;
    use crate::model::pod::{PodUid, QosClass};

    fn owner(level: Level) -> Owner {
        Owner {
            level,
            path: CgroupPath::root(),
        }
    }

    /// kubepods (1) / burstable (2) / pod a (3) / container c (4); kubepods / guaranteed pod g (5)
    /// / container m (6).
    fn index() -> CgroupIndex {
        let mut index = CgroupIndex::default();
        let qos = QosClass::Burstable;
        registered(&mut index, 1, Level::Kubepods);
        registered(&mut index, 2, Level::Qos(qos));
        register(&mut index, [3, 4], qos, "a", "c");
        register(&mut index, [5, 6], QosClass::Guaranteed, "g", "m");
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
        let it = index().attribute(&lineage);
        assert_eq!(it.pod.as_ref().map(|it| &*it.name), pod, "{lineage:?}");
        assert_eq!(it.container.as_deref(), container, "{lineage:?}");
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
        let attributed = index.attribute(&lineage(4, [2, 3, 4], true));
        assert_eq!(attributed.container.as_deref(), Some("c"));
        for id in 1_000..1_000 + KEPT as u64 {
            index.insert(CgroupId(id), owner(Level::Kubepods));
            index.retire(CgroupId(id));
        }
        assert_eq!(index.get(CgroupId(4)), None, "the oldest is forgotten");
    }

    #[test]
    fn outside_and_unknown_are_told_apart() {
        let index = index();
        let at = |cgroup, in_root| index.attribute(&lineage(cgroup, [0; 3], in_root));
        assert!(!at(77, false).is_unknown());
        assert!(at(77, true).is_unknown());
        assert!(!at(4, true).is_unknown());
    }

    #[test]
    fn a_cgroup_without_a_name_is_known_by_what_it_is() {
        let mut index = index();
        let (uid, qos) = (PodUid("n".into()), QosClass::Burstable);
        let key = key("0123");
        let level = Level::Container {
            uid: uid.clone(),
            qos,
            key: key.clone(),
        };
        index.insert(CgroupId(8), owner(level));
        let before = index.attribute(&lineage(99, [2, 7, 8], true));
        assert_eq!((before.pod.clone(), before.container.clone()), (None, None));
        let owner = before.owner.expect("it is registered");
        assert_eq!((owner.uid(), owner.container()), (Some(&uid), Some(&key)));
        // Somebody tells its name later.
        index.names.name_container(&uid, &key, "late");
        let after = index.attribute(&lineage(99, [2, 7, 8], true));
        assert_eq!(after.container.as_deref(), Some("late"));
    }
}
