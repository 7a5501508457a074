//! Pods that come in the place of one that ends, since its manifest was edited: under another UID beside it, or under its
//! own once it is gone. As long as their admission is open their place is kept for them, from pods that were refused before
//! and from those that come; who has a higher priority is before them. With `compat: kubelet` no place is kept.

use std::collections::{BTreeMap, BTreeSet};

use super::Loop;
use super::pods::{self, PodEntry};
use crate::config::Compat;
use crate::decide::predicates::NodeInfo;
use crate::model::admission::Admission;
use crate::model::pod::{Pod, PodUid};

/// See the module.
pub(super) struct Successor<'a> {
    pub pod: &'a Pod,
    /// As of [`pods::rank`].
    pub rank: i32,
    /// The pod that has the place until then, while it still counts itself.
    pub before: Option<&'a Pod>,
}

impl Successor<'_> {
    /// The place is taken from now on.
    pub(super) fn take(&self, node_info: &mut NodeInfo) {
        match self.before {
            Some(before) => node_info.take_after(self.pod, before),
            None => node_info.take(self.pod),
        }
    }
}

impl Loop {
    /// The lowest rank first.
    pub(super) fn successors(&self) -> Vec<Successor<'_>> {
        let anew = self.manifest_state.keeping_their_place();
        successors(&self.pods, anew, self.own.compat)
    }

    /// Leaves their places to those that are before the pod.
    pub(super) fn keep_places(&self, entry: &PodEntry, left: &mut NodeInfo) {
        for it in self.successors_before(entry) {
            it.take(left);
        }
    }

    /// Those whose places the pod may not take.
    pub(super) fn successors_before(&self, entry: &PodEntry) -> Vec<Successor<'_>> {
        let rank = pods::rank(&entry.state.pod, self.own.compat);
        let mut before = self.successors();
        before.retain(|it| it.rank >= rank && it.pod.uid != *entry.uid());
        before
    }
}

/// `anew`: pods as they begin anew under their UID.
fn successors<'a>(
    pods: &'a BTreeMap<PodUid, PodEntry>,
    anew: impl Iterator<Item = &'a Pod>,
    compat: Compat,
) -> Vec<Successor<'a>> {
    if compat == Compat::Kubelet {
        return Vec::new();
    }
    let of_other_uid = pods.values().filter(|it| keeps_place(it)).map(|it| {
        let is_before = |other: &&PodEntry| other.is_active() && is_of_one_name(other, it);
        (&it.state.pod, pods.values().find(is_before))
    });
    let of_same_uid = anew.map(|it| (it, pods.get(&it.uid).filter(|it| it.is_active())));
    let successor = |(pod, before): (&'a Pod, Option<&'a PodEntry>)| Successor {
        pod,
        rank: pods::rank(pod, compat),
        before: before.map(|it| &it.state.pod),
    };
    let mut all: Vec<_> = of_other_uid.chain(of_same_uid).map(successor).collect();
    all.sort_by_key(|it| it.rank);
    all
}

/// Room that is made for it is kept by itself.
fn keeps_place(entry: &PodEntry) -> bool {
    entry.keeps_place && !entry.waits_for_room && entry.state.ending().is_none()
}

fn is_of_one_name(one: &PodEntry, other: &PodEntry) -> bool {
    let (one, other) = (&one.pod_ref, &other.pod_ref);
    (&one.namespace, &one.name) == (&other.namespace, &other.name)
}

/// A pod whose name is still taken by another one waits, until all that are to go are gone.
pub(super) fn unblock(pods: &mut BTreeMap<PodUid, PodEntry>) {
    for (name, uids) in pods::by_name(pods) {
        let is_going = |it: &PodEntry| it.state.deletion.is_some();
        let going: BTreeSet<&PodUid> = uids
            .iter()
            .filter(|it| pods.get(it).is_some_and(is_going))
            .collect();
        let leaves_place = going
            .iter()
            .any(|it| pods.get(it).is_some_and(PodEntry::has_place));
        for uid in &uids {
            let Some(entry) = pods.get_mut(uid) else {
                continue;
            };
            // One that is to go itself waits for nobody: it may have been replaced meanwhile.
            let is_blocked = !going.is_empty() && !going.contains(uid);
            entry.is_dirty |= entry.blocked.is_some() && !is_blocked;
            entry.blocked =
                is_blocked.then(|| format!("waits until the earlier pod {name} is gone"));
            let is_open = entry.state.admission == Admission::Open;
            entry.keeps_place |= is_blocked && is_open && leaves_place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::decide::eviction::facts::pod_facts;
    use crate::decide::pod_state::PodState;
    use crate::decide::testing;
    use crate::model::admission::{Refusal, RefusalReason};
    use crate::model::cgroup_path::CgroupPath;
    use crate::model::container::{Deletion, DeletionReason, PodPhase};
    use crate::model::pod::QosClass;
    use crate::model::time::WallTime;

    type Pods = BTreeMap<PodUid, PodEntry>;

    fn uid(uid: &str) -> PodUid {
        PodUid(uid.to_owned())
    }

    /// Of one name all of them.
    fn add(pods: &mut Pods, name: &str, admission: Admission) {
        let mut pod = testing::pod("app {}");
        pod.uid = uid(name);
        let facts = pod_facts(&pod, QosClass::BestEffort, Compat::Ballast);
        let mut state = PodState::new(pod, "boot".to_owned(), WallTime::default());
        state.admission = admission;
        let cgroup = CgroupPath::root();
        let entry = PodEntry::new(state, QosClass::BestEffort, cgroup, Arc::new(facts));
        pods.insert(uid(name), entry);
    }

    fn entry<'a>(pods: &'a mut Pods, name: &str) -> &'a mut PodEntry {
        pods.get_mut(&uid(name)).expect("it is there")
    }

    fn delete(pods: &mut Pods, name: &str) {
        entry(pods, name).state.deletion = Some(Deletion {
            requested_at: Duration::ZERO,
            grace: Duration::ZERO,
            reason: DeletionReason::Removed,
        });
    }

    /// Successors, each with the one before it.
    fn found<'a>(pods: &'a Pods, anew: &'a [Pod]) -> Vec<(&'a str, Option<&'a str>)> {
        let found = successors(pods, anew.iter(), Compat::Ballast);
        let name = |it: &'a Pod| it.uid.0.as_str();
        let names = found.iter().map(|it| (name(it.pod), it.before.map(name)));
        names.collect()
    }

    #[test]
    fn the_place_of_a_pod_that_was_edited_is_kept_until_the_admission_of_the_next_one() {
        let mut pods = Pods::new();
        add(&mut pods, "first", Admission::Admitted);
        add(&mut pods, "second", Admission::Open);
        unblock(&mut pods);
        assert!(found(&pods, &[]).is_empty());
        delete(&mut pods, "first");
        unblock(&mut pods);
        assert!(entry(&mut pods, "second").blocked.is_some());
        assert_eq!(found(&pods, &[]), [("second", Some("first"))]);
        assert!(successors(&pods, [].iter(), Compat::Kubelet).is_empty());
        entry(&mut pods, "first").state.phase = PodPhase::Failed;
        assert_eq!(found(&pods, &[]), [("second", None)]);
        // Edited again: the one between was never in.
        add(&mut pods, "third", Admission::Open);
        delete(&mut pods, "second");
        unblock(&mut pods);
        assert_eq!(found(&pods, &[]), [("third", None)]);
        pods.retain(|it, _| *it == uid("third"));
        unblock(&mut pods);
        assert!(entry(&mut pods, "third").blocked.is_none());
        assert_eq!(found(&pods, &[]), [("third", None)]);
        // That room is counted apart.
        entry(&mut pods, "third").waits_for_room = true;
        assert!(found(&pods, &[]).is_empty());
    }

    #[test]
    fn who_has_no_place_leaves_none() {
        let refused = Admission::Refused(Refusal {
            reason: RefusalReason::OutOfCpu,
            message: String::new(),
            container: None,
        });
        for (admission, phase) in [
            (refused, PodPhase::Failed),
            (Admission::Admitted, PodPhase::Succeeded),
            (Admission::Open, PodPhase::Pending),
        ] {
            let mut pods = Pods::new();
            add(&mut pods, "first", admission);
            entry(&mut pods, "first").state.phase = phase;
            add(&mut pods, "second", Admission::Open);
            delete(&mut pods, "first");
            unblock(&mut pods);
            assert!(found(&pods, &[]).is_empty(), "{phase:?}");
        }
    }

    #[test]
    fn a_pod_that_begins_anew_under_its_uid_has_its_place_again() {
        let mut pods = Pods::new();
        add(&mut pods, "own", Admission::Admitted);
        let anew = [entry(&mut pods, "own").state.pod.clone()];
        assert_eq!(found(&pods, &anew), [("own", Some("own"))]);
        entry(&mut pods, "own").state.phase = PodPhase::Succeeded;
        assert_eq!(found(&pods, &anew), [("own", None)]);
        pods.clear();
        assert_eq!(found(&pods, &anew), [("own", None)]);
    }
}
