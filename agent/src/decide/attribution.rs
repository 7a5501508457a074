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
use crate::model::api_pod::ApiPod;
use crate::model::attribution::{Attributed, Level, OomAttribution, Owner};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{
    AttributionMethod, CgroupId, CgroupLineage, NamespaceRole, OomConstraint, OomKill,
};
use crate::model::kube_cgroup::{self, ContainerKey};
use crate::model::pod::{PodUid, QosClass};
use crate::model::record::{OomScope, PodRef};
use crate::model::runtime_names::Identified;
use crate::model::workload::Workload;

/// How many cgroups there are of each level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCounts {
    pub kubepods: usize,
    pub qos: usize,
    pub pods: usize,
    pub containers: usize,
}

impl LevelCounts {
    pub fn all(self) -> usize {
        self.kubepods + self.qos + self.pods + self.containers
    }
}

/// What became of a cgroup that was made by somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    Registered,
    /// It is none of kubelet's or its runtime's, and what it belongs to is known: nothing to register.
    Inner,
    /// The one above it is not registered, or its name may be cut: only a walk of the tree can tell.
    Unknown,
}

/// The cgroups that are known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub live: BTreeSet<CgroupId>,
    /// Some of those that are removed.
    removed: BTreeSet<CgroupId>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct CgroupIndex {
    owners: BTreeMap<CgroupId, Arc<Owner>>,
    removed: Ended<CgroupId>,
    pub names: Names,
}

impl CgroupIndex {
    /// Registers a cgroup that is there, or replaces what was known of it.
    pub fn insert(&mut self, id: CgroupId, owner: Owner) {
        self.bring_back(id, &owner);
        self.owners.insert(id, Arc::new(owner));
    }

    /// It is not removed after all.
    fn bring_back(&mut self, id: CgroupId, owner: &Owner) {
        if self.removed.remove(&id) {
            self.names.begin(owner);
        }
    }

    /// A cgroup was made below kubepods, which has the id `kubepods`; `root` is what the pods of the node lie
    /// below. `name` is that of its directory, as a record of `longest` bytes has it.
    pub fn made(
        &mut self,
        made: &CgroupLineage,
        name: &str,
        kubepods: CgroupId,
        root: &CgroupPath,
        longest: usize,
    ) -> Made {
        let above: Vec<CgroupId> = made.below_root.into_iter().flatten().collect();
        let parent = match above.as_slice() {
            [it] if *it == made.cgroup_id => kubepods,
            [.., parent, it] if *it == made.cgroup_id => *parent,
            // Deeper than a container can lie.
            _ => return Made::Inner,
        };
        let Some(parent) = self.owners.get(&parent) else {
            // Containers lie right below their pods.
            let is_in_pod = above.iter().any(|it| {
                let owner = self.owners.get(it);
                owner.is_some_and(|it| it.uid().is_some())
            });
            return if is_in_pod {
                Made::Inner
            } else {
                Made::Unknown
            };
        };
        if parent.container().is_some() {
            return Made::Inner;
        }
        if name.len() >= longest {
            return Made::Unknown;
        }
        let Ok(path) = parent.path.join(name) else {
            return Made::Unknown;
        };
        match Owner::at(&path, root) {
            Some(owner) => {
                self.insert(made.cgroup_id, owner);
                Made::Registered
            }
            None => Made::Inner,
        }
    }

    /// The cgroup is removed from the node; its id and its name stay known for events on their way. Gives what it was;
    /// `None`: it was not registered, or is removed already.
    pub fn retire(&mut self, id: CgroupId) -> Option<Arc<Owner>> {
        let owner = self.owners.get(&id).filter(|_| !self.removed.contains(&id));
        let owner = Arc::clone(owner?);
        self.names.end(&owner);
        if let Some(oldest) = self.removed.push(id) {
            self.owners.remove(&oldest);
        }
        Some(owner)
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
            outside: None,
        }
    }

    /// Whose a kill is.
    pub fn attribute_kill(&self, kill: &OomKill) -> OomAttribution {
        let limit = kill.limit_cgroup.map(|it| self.attribute(&it));
        let victim = self.attribute(&kill.victim_cgroup);
        OomAttribution {
            is_main: self.is_main(kill, &victim),
            took_container: None,
            workload: self.workload_of(&victim),
            watched: watched(kill, &victim),
            victim,
            trigger: self.attribute(&kill.trigger_cgroup),
            pod: self.pod_of(&kill.victim_cgroup).cloned(),
            scope: oom_scope(kill, limit.as_ref()),
            limit,
        }
    }

    /// See [`Names::workload`].
    pub fn workload_of(&self, attributed: &Attributed) -> Option<Arc<Workload>> {
        let uid = attributed.owner.as_ref()?.uid()?;
        self.names.workload(uid)
    }

    /// Whether the victim was the first process of its container: a runtime starts that from outside the
    /// container, as the first of a PID namespace. A parent outside proves nothing by itself: commands that are
    /// run in a container, and orphans, have one too. So `None` for these where containers share a namespace, or
    /// are in that of the host: who else is in the container may tell.
    fn is_main(&self, kill: &OomKill, victim: &Attributed) -> Option<bool> {
        let container = victim
            .owner
            .as_ref()
            .filter(|it| it.container().is_some())?;
        let is_inside = |kin| self.attribute(kin).owner.as_ref() == Some(container);
        if is_inside(&kill.victim_parent_cgroup) {
            return Some(false);
        }
        match &kill.victim_role.as_ref()? {
            NamespaceRole::Init => Some(true),
            NamespaceRole::Member { init } => is_inside(init).then_some(false),
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
        let live = self.live().into_iter().map(|(_, it)| it);
        live.filter(|it| matches!(it.level, Level::Pod { .. }))
            .collect()
    }

    /// What is registered and not removed.
    pub fn live(&self) -> Vec<(CgroupId, Arc<Owner>)> {
        let removed: BTreeSet<CgroupId> = self.removed.iter().copied().collect();
        let live = self.owners.iter().filter(|(id, _)| !removed.contains(id));
        live.map(|(id, it)| (*id, Arc::clone(it))).collect()
    }

    /// What is known when a walk begins, for [`CgroupIndex::walked`].
    pub fn known(&self) -> Known {
        Known {
            live: self.live().into_iter().map(|(id, _)| id).collect(),
            removed: self.removed.iter().copied().collect(),
        }
    }

    /// Takes what a walk has found. What was live before and is not in it is gone, and given back; what was taken to be
    /// removed before and is in it is there. What the kernel told meanwhile stands.
    pub fn walked(
        &mut self,
        before: &Known,
        found: Vec<(CgroupId, Owner)>,
    ) -> Vec<(CgroupId, Arc<Owner>)> {
        let there: BTreeSet<CgroupId> = found.iter().map(|(id, _)| *id).collect();
        for (id, owner) in found {
            if before.removed.contains(&id) {
                self.bring_back(id, &owner);
            }
            let known = self.owners.get(&id);
            if known.is_none_or(|it| **it != owner) && !self.removed.contains(&id) {
                self.insert(id, owner);
            }
        }
        let gone = before.live.difference(&there);
        gone.filter_map(|id| Some((*id, self.retire(*id)?)))
            .collect()
    }

    /// Takes everybody whom a runtime knows, and forgets of others the names of who has no cgroup that is registered.
    /// True: somebody was not known.
    pub fn learn_all(&mut self, all: &[Identified]) -> bool {
        let is_new = self.names.learn_each(all);
        let told = all.iter();
        let told = told.flat_map(|it| [(&it.pod.uid, None), (&it.pod.uid, Some(it.id.as_str()))]);
        let kept: BTreeSet<_> = subjects(&self.owners).chain(told).collect();
        self.names.retain(|uid, id| kept.contains(&(uid, id)));
        is_new
    }

    /// Takes all pods that the API server has of this node. True: something was not known.
    pub fn learn_pods(&mut self, all: &[Arc<ApiPod>]) -> bool {
        self.learn_listed(all, |_| false)
    }

    /// Takes the pods that kubelet knows now. It forgets those that run when it is restarted, until the API server has
    /// told it of them again: who has a cgroup is taken to be listed still. True: something was not known.
    pub fn learn_seen(&mut self, seen: &[Arc<ApiPod>]) -> bool {
        let live = self.live();
        let there: BTreeSet<&PodUid> = live.iter().filter_map(|(_, it)| it.uid()).collect();
        self.learn_listed(seen, |uid| there.contains(uid))
    }

    /// `is_kept`: a pod that is not among these counts as one of them.
    fn learn_listed(&mut self, all: &[Arc<ApiPod>], is_kept: impl Fn(&PodUid) -> bool) -> bool {
        let new = all.iter().filter(|it| self.names.learn_pod(it));
        let is_new = new.count() > 0;
        let listed: BTreeSet<&PodUid> = all.iter().map(|it| &it.pod.uid).collect();
        let there: BTreeSet<_> = subjects(&self.owners).collect();
        self.names.unlist(
            |uid| listed.contains(uid) || is_kept(uid),
            |uid, id| there.contains(&(uid, id)),
        );
        is_new
    }

    /// The API server has a pod no more, which may still run.
    pub fn pod_deleted(&mut self, deleted: &PodRef) {
        if !self.names.lists(deleted) {
            return;
        }
        let there: BTreeSet<_> = subjects(&self.owners).collect();
        self.names.unlist(
            |uid| *uid != deleted.uid,
            |uid, id| there.contains(&(uid, id)),
        );
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

/// Pods, and their containers by id, with a registered cgroup.
fn subjects(
    owners: &BTreeMap<CgroupId, Arc<Owner>>,
) -> impl Iterator<Item = (&PodUid, Option<&str>)> {
    owners.values().filter_map(|it| {
        let id = it.container().map(|it| it.id.as_str());
        Some((it.uid()?, id))
    })
}

/// The container whose monitor was killed: that has a cgroup of its own beside it, which nobody registers.
fn watched(kill: &OomKill, victim: &Attributed) -> Option<ContainerKey> {
    let owner = victim.owner.as_ref().filter(|_| !victim.is_exact)?;
    let Level::Pod { qos, .. } = owner.level else {
        return None;
    };
    // Guaranteed pods have no class above them.
    let below_pod = match qos {
        QosClass::Guaranteed => 1,
        QosClass::Burstable | QosClass::BestEffort => 2,
    };
    kube_cgroup::monitored(&kill.victim_names[below_pod])
}

/// Whose limit made the kernel kill. A limit below a container, set by the workload itself, is the
/// container's.
fn oom_scope(kill: &OomKill, limit: Option<&Attributed>) -> OomScope {
    if let Some(limit) = limit {
        return match limit.owner.as_ref().map(|it| &it.level) {
            Some(Level::Container { .. }) => OomScope::Container,
            // The limit of one below it would be told as the one of it.
            _ if !limit.is_exact => OomScope::Other,
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
    use crate::decide::testing::{api_pod, key, oom_kill, register, registered};

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
    fn a_kubelet_that_knows_no_pod_yet_takes_none_away_that_runs() {
        let mut index = index();
        let pods = ["uid-a", "uid-g", "over"].map(|it| Arc::new(api_pod(it)));
        let listed = |index: &CgroupIndex| {
            let listed = index.names.listed().map(|it| it.pod.name.clone());
            listed.collect::<Vec<_>>()
        };
        assert!(index.learn_seen(&pods));
        assert_eq!(listed(&index), ["over", "uid-a", "uid-g"]);
        assert!(!index.learn_seen(&[]));
        assert_eq!(listed(&index), ["uid-a", "uid-g"], "they have cgroups");
        for id in [5, 6] {
            index.retire(CgroupId(id));
        }
        index.learn_seen(&pods[..1]);
        assert_eq!(listed(&index), ["uid-a"]);
        index.learn_pods(&[]);
        assert_eq!(
            listed(&index),
            [""; 0],
            "the API server knows what there is"
        );
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
        assert!(!at(77, false).is_of_no_pod());
        assert!(at(77, true).is_of_no_pod());
        assert!(!at(4, true).is_of_no_pod());
        assert!(at(2, true).is_of_no_pod(), "of a QoS class alone");
        for (below, of_no_pod, unregistered) in [
            ([0; 3], true, true),
            ([2, 99, 0], true, true),
            ([2, 3, 99], false, true),
            ([2, 3, 4], false, false),
        ] {
            let it = index.attribute(&lineage(99, below, true));
            assert_eq!(it.is_of_no_pod(), of_no_pod, "{below:?}");
            assert_eq!(it.is_unregistered(), unregistered, "{below:?}");
        }
    }

    #[test]
    fn a_group_is_asked_for_unless_what_was_full_lies_within_the_container() {
        let container = lineage(4, [2, 3, 4], true);
        let nested = lineage(99, [2, 3, 4], true);
        let pod = lineage(3, [2, 3, 0], true);
        let init = |init| Some(NamespaceRole::Member { init });
        let deeper = lineage(98, [2, 3, 4], true);
        let other = lineage(6, [5, 6, 0], true);
        let [alone, beside] = [97, 96].map(|it| lineage(it, [5, 6, it], true));
        let [misplaced, host] = [4, 77].map(|it| lineage(it, [0; 3], false));
        // Whether the container's own file is asked, and whether those below it are.
        for (victim, limit, role, is_asked) in [
            (container, None, None, Some((true, false))),
            (container, Some(pod), init(container), Some((true, false))),
            (nested, Some(nested), init(container), None),
            (
                nested,
                Some(container),
                init(container),
                Some((true, false)),
            ),
            (pod, Some(pod), None, None),
            // Nobody knows where the first process is: it may be there.
            (nested, Some(container), None, Some((true, true))),
            (nested, Some(nested), None, Some((false, true))),
            (
                nested,
                Some(nested),
                Some(NamespaceRole::Init),
                Some((false, true)),
            ),
            // All of it is one level below, as crun has it.
            (nested, Some(nested), init(nested), Some((false, true))),
            (nested, Some(container), init(nested), Some((true, true))),
            (nested, None, init(nested), Some((true, true))),
            (nested, Some(deeper), init(nested), Some((false, true))),
            // systemd has made them both there.
            (nested, Some(nested), init(deeper), Some((false, true))),
            (nested, Some(container), init(deeper), Some((true, true))),
            (alone, None, init(beside), Some((true, true))),
            (alone, Some(alone), init(other), None),
            // The containers of the pod share a namespace.
            (nested, Some(container), init(other), Some((true, true))),
            (nested, Some(nested), init(other), Some((false, true))),
            // Nobody can tell where they lie.
            (misplaced, None, init(misplaced), Some((true, false))),
            (misplaced, None, init(host), Some((true, false))),
        ] {
            let kill = OomKill {
                victim_cgroup: victim,
                limit_cgroup: limit,
                victim_role: role,
                ..oom_kill(1, victim.cgroup_id)
            };
            let attribution = index().attribute_kill(&kill);
            let asked = |is_own| {
                let group = attribution.group(&kill, is_own)?;
                Some((group.is_whole, group.nested.is_some()))
            };
            assert_eq!(asked(false), is_asked, "{limit:?} {role:?}");
            // The first process is in the container's own cgroup.
            let own = is_asked.filter(|it| it.0).map(|_| (true, false));
            assert_eq!(asked(true), own, "{limit:?} {role:?}");
        }
    }

    #[test]
    fn the_first_process_of_a_container_is_known_by_its_namespace() {
        let init = Some(NamespaceRole::Init);
        let member = |init| Some(NamespaceRole::Member { init });
        let container = lineage(4, [2, 3, 4], true);
        let nested = lineage(99, [2, 3, 4], true);
        let (other, host) = (lineage(6, [5, 6, 0], true), lineage(77, [0; 3], false));
        let pod = lineage(3, [2, 3, 0], true);
        for (victim, parent, role, expected) in [
            (container, host, init, Some(true)),
            (nested, host, init, Some(true)),
            // The parent is the runtime's, in the cgroup of the pod.
            (container, pod, init, Some(true)),
            // A namespace that the container made.
            (container, container, init, Some(false)),
            (nested, container, init, Some(false)),
            (container, host, member(container), Some(false)),
            (nested, host, member(container), Some(false)),
            (container, host, member(nested), Some(false)),
            // In the namespace that the containers of a pod share, or that of the host.
            (container, host, member(other), None),
            (container, other, member(other), None),
            (container, container, member(other), Some(false)),
            (container, host, None, None),
            (container, container, None, Some(false)),
            (nested, container, None, Some(false)),
            // In no container.
            (pod, host, init, None),
            (host, host, init, None),
            (host, host, None, None),
        ] {
            let kill = OomKill {
                victim_cgroup: victim,
                victim_parent_cgroup: parent,
                victim_role: role,
                ..oom_kill(1, victim.cgroup_id)
            };
            let is_main = index().attribute_kill(&kill).is_main;
            assert_eq!(is_main, expected, "{victim:?} {parent:?} {role:?}");
        }
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

    /// kubepods (1) of the systemd driver, as a walk has found it.
    fn walked() -> CgroupIndex {
        let mut index = CgroupIndex::default();
        let path = "/kubepods.slice".parse().expect("a path");
        let level = Level::Kubepods;
        index.insert(CgroupId(1), Owner { level, path });
        index
    }

    #[track_caller]
    fn check_made(index: &mut CgroupIndex, id: u64, below: [u64; 3], name: &str, expected: Made) {
        let made = lineage(id, below, true);
        let root = CgroupPath::root();
        let found = index.made(&made, name, CgroupId(1), &root, 128);
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn what_a_kubelet_makes_is_known_at_once() {
        let mut index = walked();
        let id = "0".repeat(64);
        let scope = format!("cri-containerd-{id}.scope");
        for (cgroup, below, name) in [
            (2, [2, 0, 0], "kubepods-burstable.slice"),
            (3, [2, 3, 0], "kubepods-burstable-poda_b.slice"),
            (4, [2, 3, 4], &scope),
        ] {
            check_made(&mut index, cgroup, below, name, Made::Registered);
        }
        let owner = index.attribute(&lineage(9, [2, 3, 4], true)).owner;
        let owner = owner.expect("below the container");
        assert_eq!(owner.uid(), Some(&PodUid("a-b".into())));
        assert_eq!(owner.container().map(|it| it.id.as_str()), Some(&*id));
    }

    #[test]
    fn who_is_met_at_a_kill_is_known_by_the_way_there() {
        let mut index = walked();
        let id = "0".repeat(64);
        let names = [
            "kubepods-besteffort.slice",
            "kubepods-besteffort-poda.slice",
        ];
        let victim = lineage(99, [2, 3, 4], true);
        let scope = format!("crio-{id}.scope");
        let root = CgroupPath::root();
        for (cgroup, name) in victim.steps().zip([names[0], names[1], &scope]) {
            let made = index.made(&cgroup, name, CgroupId(1), &root, 128);
            assert_eq!(made, Made::Registered, "{name}");
        }
        let owner = index.attribute(&victim).owner.expect("below the container");
        assert_eq!(owner.uid(), Some(&PodUid("a".into())));
        assert_eq!(owner.container().map(|it| it.id.as_str()), Some(&*id));
        let outside = lineage(99, [0; 3], false);
        assert_eq!(outside.steps().count(), 0);
    }

    #[test]
    fn what_a_container_makes_is_its_own() {
        let mut index = walked();
        let id = "0".repeat(64);
        let pod = "kubepods-poda.slice";
        check_made(&mut index, 5, [5, 0, 0], pod, Made::Registered);
        check_made(&mut index, 6, [5, 6, 0], &id, Made::Registered);
        check_made(&mut index, 7, [5, 6, 7], pod, Made::Inner);
        check_made(&mut index, 8, [5, 6, 7], &id, Made::Inner);
        check_made(&mut index, 10, [5, 10, 0], "strange", Made::Inner);
        let monitor = format!("crio-conmon-{id}.scope");
        check_made(&mut index, 11, [5, 11, 0], &monitor, Made::Inner);
        // Below what nobody has registered.
        check_made(&mut index, 12, [5, 10, 12], &id, Made::Inner);
        assert_eq!(index.len(), 3);
    }

    #[test]
    fn a_walk_ends_what_it_misses_once_and_what_it_finds_again_is_there() {
        let mut index = index();
        let before = index.known();
        let mut found: Vec<_> = index
            .live()
            .into_iter()
            .map(|(id, it)| (id, (*it).clone()))
            .collect();
        let container = found.iter().position(|it| it.0 == CgroupId(4));
        let container = found.remove(container.expect("it is registered"));
        // The kernel tells of the end of another one while the walk is under way.
        assert!(index.retire(CgroupId(6)).is_some());
        found.retain(|it| it.0 != CgroupId(6));
        let gone = index.walked(&before, found.clone());
        let gone: Vec<_> = gone.into_iter().map(|it| it.0).collect();
        assert_eq!(gone, [CgroupId(4)], "the other one was told already");
        assert!(index.retire(CgroupId(4)).is_none());
        assert!(!index.known().live.contains(&CgroupId(4)));
        // Its tree is looked at again.
        found.push(container);
        let before = index.known();
        // What is told of while the walk is under way has ended.
        assert!(index.retire(CgroupId(5)).is_some());
        index.walked(&before, found);
        let live = index.known().live;
        assert!(live.contains(&CgroupId(4)) && !live.contains(&CgroupId(5)));
    }

    /// As one that the agent before has told of.
    #[test]
    fn a_cgroup_that_is_there_after_all_keeps_its_name() {
        let mut index = CgroupIndex::default();
        let level = |n: u64| Level::Container {
            uid: PodUid(format!("uid-{n}")),
            qos: QosClass::Burstable,
            key: key(&n.to_string()),
        };
        registered(&mut index, 1, level(1));
        assert!(index.retire(CgroupId(1)).is_some());
        registered(&mut index, 1, level(1));
        index
            .names
            .name_container(&PodUid("uid-1".into()), &key("1"), "app");
        for id in 2..=u64::try_from(KEPT + 2).expect("a small number") {
            registered(&mut index, id, level(id));
            index.retire(CgroupId(id));
        }
        assert!(index.known().live.contains(&CgroupId(1)));
        let it = index.get(CgroupId(1)).expect("it is registered");
        assert_eq!(it.container.as_deref(), Some("app"));
    }

    #[test]
    fn a_cgroup_below_one_that_is_not_known_is_for_a_walk() {
        let mut index = walked();
        check_made(
            &mut index,
            3,
            [2, 3, 0],
            "kubepods-burstable-poda.slice",
            Made::Unknown,
        );
        let cut = "x".repeat(128);
        check_made(&mut index, 4, [4, 0, 0], &cut, Made::Unknown);
        assert_eq!(index.len(), 1);
    }
}
