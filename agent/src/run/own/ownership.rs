//! Which pod cgroups are ours: those of pods that this state directory has a record of, readable or
//! not. A record is stored before the cgroup is made, and one that was set aside goes when the pod is
//! stored anew or nothing is left of it.
//!
//! Invariant: no process in any other cgroup is killed, and none other is removed, unless
//! `pods.removeUnknownCgroups` says so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Loop;
use super::pods::PodEntry;
use crate::apply::checkpoint;
use crate::decide::strangers::never_lower;
use crate::model::cgroup::{DesiredCgroup, ObservedCgroup};
use crate::model::cgroup_name::{CgroupDriver, CgroupName, POD_PREFIX};
use crate::model::cgroup_path::CgroupPath;
use crate::model::pod::{Pod, PodUid, ResourceList};
use crate::sources::cgroupfs::{CgroupReader, ReadError};
use crate::sources::kube_tree::pods_of_kubelet;
use crate::sys::{FsError, Root};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    pods: BTreeSet<PodUid>,
    /// Those whose record was set aside.
    aside: BTreeSet<PodUid>,
    /// Pod cgroups of others, as they were found last.
    unknown: BTreeSet<CgroupPath>,
    /// The same, as the last full pass has found them. `None`: none could look yet.
    strangers: Option<BTreeMap<CgroupPath, PodUid>>,
    /// Cgroups of pods of our own that are left as they are, since nobody can say yet what became of the pods: as the
    /// last full pass that could look has found them.
    undecided: BTreeMap<CgroupPath, PodUid>,
    /// Where pods run that a kubelet with the systemd driver has started, as the last full pass has found them. This
    /// agent makes nothing there.
    of_kubelet: BTreeMap<PodUid, BTreeSet<CgroupPath>>,
    /// What stays above what is wanted because of them, once told.
    spared: BTreeSet<(CgroupPath, String)>,
}

impl Ownership {
    /// Takes the pods of all records, and of those that were set aside.
    pub(super) fn load(&mut self, names: &[String]) {
        for name in names {
            let record = name.strip_suffix(checkpoint::ASIDE);
            let Some(uid) = record.unwrap_or(name).strip_suffix(".json") else {
                continue;
            };
            let uid = PodUid(uid.to_owned());
            if record.is_some() {
                self.aside.insert(uid.clone());
            }
            self.pods.insert(uid);
        }
    }

    /// The record of a pod is not usable and was set aside.
    pub(super) fn set_aside(&mut self, uid: PodUid) {
        self.aside.insert(uid);
    }

    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains(uid)
    }

    pub(super) fn add(&mut self, uid: PodUid) {
        self.pods.insert(uid);
    }

    pub(super) fn remove(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }
}

impl Loop {
    /// A record that was set aside is of no use any more: the pod is stored anew, or over.
    pub(super) fn remove_aside(&mut self, uid: &PodUid) {
        if !self.ownership.aside.remove(uid) {
            return;
        }
        if let Err(error) = checkpoint::remove_aside(&self.paths.pod_record(uid)) {
            tracing::warn!(pod = %uid, error = crate::observe::chain(&error), "remove a record set aside");
            self.ownership.aside.insert(uid.clone());
        }
    }

    /// Without the list of records every pod would be somebody else's.
    pub(super) fn load_ownership(&mut self) -> Result<(), FsError> {
        let names = Root::host().list(self.paths.pods())?;
        self.ownership.load(&names);
        Ok(())
    }

    /// Whether a pod that is new to this state directory is left alone because somebody runs in its
    /// cgroup: an agent of another state directory, or of this one before it was lost.
    pub(super) fn is_occupied(&mut self, uid: &PodUid) -> bool {
        let Some(entry) = self.pods.get_mut(uid) else {
            return false;
        };
        // Of a record that was set aside, with none of its containers left, nothing is known.
        let is_known = !self.ownership.aside.contains(uid) || !entry.instances.is_empty();
        if self.ownership.has(uid) && is_known || entry.state.deletion.is_some() {
            return false;
        }
        let strangers = self.ownership.strangers.iter().flatten();
        let by_another_class = strangers.filter(|(_, it)| *it == uid).map(|(it, _)| it);
        let below = std::iter::once(&entry.cgroup).chain(by_another_class);
        let below = below.map(|it| (it, "end them, or set pods.removeUnknownCgroups"));
        let of_kubelet = self.ownership.of_kubelet.get(uid).into_iter().flatten();
        let of_kubelet =
            of_kubelet.map(|it| (it, "they are of a kubelet; end the pod by its runtime"));
        let reader = &self.node.reader;
        let mut places = below.chain(of_kubelet);
        let why = places.find_map(|(cgroup, remedy)| why_occupied(reader, cgroup, remedy));
        let Some(why) = why else {
            entry.occupied = None;
            return false;
        };
        self.told.waits(&entry.pod_ref, &mut entry.occupied, why);
        true
    }

    /// Pods whose first record could not be stored go on once it is.
    pub(super) fn record_late(&mut self) {
        let ownership = &self.ownership;
        let late: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(uid, entry)| !ownership.has(uid) && !entry.instances.is_empty())
            .map(|(uid, _)| uid.clone())
            .collect();
        if late.is_empty() {
            return;
        }
        self.save_pods();
        for uid in late {
            if self.ownership.has(&uid)
                && let Some(entry) = self.pods.get_mut(&uid)
            {
                entry.is_dirty = true;
            }
        }
    }

    /// Finds the pod cgroups of others, those of pods that are undecided, and those of a kubelet that lie elsewhere.
    pub(super) fn look_for_strangers(&mut self) {
        match self.pod_cgroups_there() {
            Ok(there) => {
                let is_ours = |(_, uid): &(CgroupPath, PodUid)| self.ownership.has(uid);
                let (ours, strangers): (BTreeMap<CgroupPath, PodUid>, BTreeMap<_, _>) =
                    there.into_iter().partition(is_ours);
                let undecided = ours.into_iter().filter(|(_, uid)| self.is_left(uid));
                self.ownership.undecided = undecided.collect();
                self.ownership.strangers = Some(strangers);
            }
            // Those that were there may be there still.
            Err(error) => warn_unlisted(&error),
        }
        let root = &self.config.kubelet.cgroup_root;
        match pods_of_kubelet(&self.node.reader, root, CgroupDriver::Systemd) {
            Ok(pods) => self.ownership.of_kubelet = pods,
            Err(error) => {
                tracing::warn!(
                    error = crate::observe::chain(&error),
                    "list pods of a kubelet"
                );
            }
        }
    }

    /// Whether a pod that is none of this agent runs: what it was given is its own until then.
    pub(super) fn runs_for_others(&self, uid: &PodUid) -> bool {
        let strangers = self.ownership.strangers.iter().flatten();
        let strangers = strangers.filter(|(_, it)| *it == uid).map(|(it, _)| it);
        let of_kubelet = self.ownership.of_kubelet.get(uid).into_iter().flatten();
        let mut places = strangers.chain(of_kubelet);
        places.any(|it| {
            let pids = self.node.reader.pids(it);
            pids.map_or(true, |it| !it.is_empty())
        })
    }

    /// Whether what is there of a pod of our own goes on as it is, since nobody can say yet what became of the pod.
    fn is_left(&self, uid: &PodUid) -> bool {
        // A manifest that cannot be read may be that of a pod whose record cannot be read either.
        let may_be_of_a_manifest = !self.manifest_state.is_complete && !self.pods.contains_key(uid);
        self.undecided.has(uid) || may_be_of_a_manifest
    }

    /// Pods that are undecided and that have a cgroup, as far as their definitions are known: they hold what they request.
    pub(super) fn undecided_holders(&self) -> impl Iterator<Item = &Pod> {
        let defined = self.undecided.defined();
        defined.filter(move |it| self.has_undecided_cgroup(&it.uid))
    }

    /// What the others of them request.
    pub(super) fn undecided_requests(&self) -> impl Iterator<Item = ResourceList> {
        let requests = self.undecided.requests();
        requests
            .filter(move |(uid, _)| self.has_undecided_cgroup(uid))
            .map(|(_, requests)| requests)
    }

    /// Before the first look any pod may have one.
    fn has_undecided_cgroup(&self, uid: &PodUid) -> bool {
        let Ownership {
            strangers,
            undecided,
            ..
        } = &self.ownership;
        strangers.is_none() || undecided.values().any(|it| it == uid)
    }

    /// Nothing of a cgroup of the node is lowered while it holds pods of others, whose manager may be away for a
    /// while, or pods that are undecided: what they request is in none of its sums.
    pub(super) fn spare_strangers(
        &mut self,
        wanted: &mut [DesiredCgroup],
        observed: &BTreeMap<CgroupPath, ObservedCgroup>,
    ) {
        let mut spared = BTreeSet::new();
        for cgroup in wanted {
            let path = cgroup.path.clone();
            let strangers = self.ownership.strangers.as_ref();
            let holds_some = strangers.is_none_or(|them| {
                let mut spared = them.keys().chain(self.ownership.undecided.keys());
                spared.any(|it| it.below(&path).is_some())
            });
            if !holds_some || !self.hands.is_node_level(&path) {
                continue;
            }
            let Some(seen) = observed.get(&path) else {
                continue;
            };
            for kept in never_lower(cgroup, seen) {
                let key = (path.clone(), kept.file.name.clone());
                if !self.ownership.spared.contains(&key) {
                    self.told.spared(&path, &kept);
                }
                spared.insert(key);
            }
        }
        self.ownership.spared = spared;
    }

    /// Looks for cgroups below kubepods that belong to no pod: what an agent of this state directory
    /// has left is killed and removed, others are told once, counted and left.
    pub(super) fn look_for_unknown(&mut self, now: Duration) {
        let there = match self.pod_cgroups_there() {
            Ok(there) => there,
            Err(error) => {
                warn_unlisted(&error);
                return;
            }
        };
        let known: BTreeSet<CgroupPath> = self
            .pods
            .values()
            .flat_map(|entry| {
                let instances = entry.instances.values().map(|it| it.cgroup.clone());
                instances.chain([entry.cgroup.clone()])
            })
            .collect();
        let mut unknown = BTreeSet::new();
        let mut present = BTreeSet::new();
        for (pod, uid) in there {
            let is_occupied = |it: &PodEntry| it.occupied.is_some();
            let is_occupied = self.pods.get(&uid).is_some_and(is_occupied);
            let is_ours = self.ownership.has(&uid) && !is_occupied;
            if !is_ours && !self.own.remove_unknown_cgroups {
                unknown.insert(pod);
            } else if is_ours && self.is_left(&uid) {
                unknown.extend((!self.undecided.has(&uid)).then_some(pod));
            } else if !known.contains(&pod) || !is_ours {
                self.told.orphan(&pod);
                self.removals.insert(pod, now);
            } else {
                self.remove_unknown_containers(&pod, &known, now);
            }
            present.insert(uid);
        }
        if self.manifest_state.is_complete {
            let is_over = |it: &&PodUid| !present.contains(it) && !self.pods.contains_key(it);
            let over: Vec<PodUid> = self
                .ownership
                .aside
                .iter()
                .filter(is_over)
                .cloned()
                .collect();
            for uid in over {
                self.remove_aside(&uid);
                self.ownership.remove(&uid);
            }
        }
        for pod in unknown.difference(&self.ownership.unknown) {
            self.told.unknown_cgroup(pod);
        }
        let of_kubelet = self.ownership.of_kubelet.values();
        for cgroup in of_kubelet.filter_map(BTreeSet::first) {
            if !self.ownership.unknown.contains(cgroup) {
                self.told.pod_of_kubelet(cgroup);
            }
            unknown.insert(cgroup.clone());
        }
        self.metrics.set_unknown_cgroups(unknown.len());
        self.ownership.unknown = unknown;
    }

    fn remove_unknown_containers(
        &mut self,
        pod: &CgroupPath,
        known: &BTreeSet<CgroupPath>,
        now: Duration,
    ) {
        let containers = self.children(pod).unwrap_or_else(|error| {
            warn_unlisted(&error);
            Vec::new()
        });
        for container in containers {
            if !known.contains(&container) {
                self.told.orphan(&container);
                self.removals.insert(container, now);
            }
        }
    }

    /// The cgroups of pods that there are, whoever made them.
    fn pod_cgroups_there(&self) -> Result<Vec<(CgroupPath, PodUid)>, ReadError> {
        let mut there = Vec::new();
        for class in self.hands.plan.qos_cgroups() {
            let children = self.children(&class)?.into_iter();
            there.extend(children.filter_map(|pod| {
                let uid = uid_of(pod.last()?)?;
                Some((pod, uid))
            }));
        }
        Ok(there)
    }

    fn children(&self, parent: &CgroupPath) -> Result<Vec<CgroupPath>, ReadError> {
        let children = self.node.reader.children(parent)?;
        // A name that is none of ours cannot be of ours.
        let children = children
            .iter()
            .filter(|child| CgroupName::new([child.as_str()]).is_ok());
        Ok(children
            .filter_map(|child| parent.join(child).ok())
            .collect())
    }
}

fn warn_unlisted(error: &ReadError) {
    tracing::warn!(error = crate::observe::chain(error), "list cgroups");
}

/// Why nothing is started for a pod that has this cgroup. `None`: nobody runs in it.
fn why_occupied(reader: &CgroupReader, cgroup: &CgroupPath, remedy: &str) -> Option<String> {
    match reader.pids(cgroup) {
        Ok(pids) if pids.is_empty() => None,
        Ok(pids) => {
            let pids: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
            let pids = pids.join(", ");
            Some(format!(
                "waits: cgroup {cgroup} is there already, and processes that this agent has not \
                 started run in it ({pids}); {remedy}"
            ))
        }
        Err(error) => Some(format!(
            "waits: cgroup {cgroup}: {}",
            crate::observe::chain(&error)
        )),
    }
}

/// The pod whose cgroup has this name, right below one of a QoS class. `None`: no pod's.
fn uid_of(name: &str) -> Option<PodUid> {
    let uid = name.strip_prefix(POD_PREFIX)?;
    (!uid.is_empty()).then(|| PodUid(uid.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_what_is_left_of_them_say_whose_a_pod_is() {
        let mut ownership = Ownership::default();
        let names = [
            "a.json",
            "b.json.corrupt",
            "c.json.tmp",
            "d",
            ".removing-e-1",
        ];
        ownership.load(&names.map(str::to_owned));
        let ours: Vec<&str> = ownership.pods.iter().map(|it| it.0.as_str()).collect();
        // What was never whole was never followed by a cgroup.
        assert_eq!(ours, ["a", "b"]);
        assert_eq!(ownership.aside.len(), 1);
    }

    #[test]
    fn a_cgroup_of_a_pod_is_named_by_its_uid() {
        for (name, uid) in [
            ("pod7e5f-1", Some("7e5f-1")),
            // Kubelet gives up on this UID.
            ("podthis-uid-contains-pod", Some("this-uid-contains-pod")),
            ("pod", None),
            ("burstable", None),
            ("system", None),
        ] {
            assert_eq!(uid_of(name).as_ref().map(|it| &*it.0), uid, "{name}");
        }
    }
}
