//! Pods of which nobody can say yet what became of them. Their containers go on as they are, with the pod's cgroup and
//! what it holds of the node.
//!
//! Either the pod's record is damaged, and a manifest that may be its own cannot be read: until a reading of the
//! manifests has the pod, or one without any fault lacks it. Or the kernel fails to read what is stored of the pod, or
//! another version of the agent has stored it in a form of its own: until it can be read, or is removed. Nothing of the
//! pod begins meanwhile.
//!
//! Of the cgroups of the node nothing is lowered while such a pod has a cgroup in them. What it requests counts for
//! admission: by its manifest where that can be read, else as the records of its containers have it from their starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use crate::decide::pod_state::PodState;
use crate::model::pod::{Pod, PodUid, ResourceList};
use crate::runtime::{ContainerEnd, ContainerExit, ContainerId, ContainerRecord};
use crate::sources::checkpoint::{self as stored, CheckpointError};
use crate::sys::clock;

/// How often it is tried to read what could not be read: a disk may take long to fail.
const READ_AGAIN: Duration = Duration::from_secs(10);

/// No further one is read in one go after this.
const LONGEST: Duration = Duration::from_millis(100);

/// A container that an earlier agent left, running or ended.
#[derive(Debug)]
pub(super) struct LeftContainer {
    pub(super) record: ContainerRecord,
    /// As far as was known at the start.
    pub(super) was_oom_killed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    /// What runs or has ended of them.
    left: BTreeMap<PodUid, Vec<LeftContainer>>,
    /// Those of which something stored was not read; of some nothing is left.
    unread: BTreeSet<PodUid>,
    /// The same, as far as the last reading of the manifests has them.
    defined: BTreeMap<PodUid, Arc<Pod>>,
    /// When that is tried again, boottime.
    read_at: Duration,
    /// The last one that was tried.
    tried: Option<PodUid>,
}

impl Undecided {
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.left.contains_key(uid) || self.is_unread(uid)
    }

    pub(super) fn add(&mut self, uid: PodUid, left: Vec<LeftContainer>) {
        self.left.insert(uid, left);
    }

    pub(super) fn is_unread(&self, uid: &PodUid) -> bool {
        self.unread.contains(uid)
    }

    /// Notes what a reading of the manifests says of those that are unread.
    pub(super) fn define(&mut self, pods: &BTreeMap<PodUid, Arc<Pod>>) {
        let unread = self.unread.iter();
        let defined = unread.filter_map(|uid| Some((uid.clone(), Arc::clone(pods.get(uid)?))));
        self.defined = defined.collect();
    }

    /// Those whose definition is known.
    pub(super) fn defined(&self) -> impl Iterator<Item = &Pod> {
        self.defined.values().map(Arc::as_ref)
    }

    /// What each of the others requests, as far as records of its containers say: the most of each resource, since limits
    /// may have changed between their starts.
    pub(super) fn requests(&self) -> impl Iterator<Item = (&PodUid, ResourceList)> {
        let left = self.left.iter();
        let others = left.filter(move |(uid, _)| !self.defined.contains_key(*uid));
        others.map(|(uid, left)| {
            let mut requests = ResourceList::new();
            for (name, amount) in left.iter().flat_map(|it| &it.record.pod_requests) {
                let most = requests.entry(name.clone()).or_default();
                if *most < *amount {
                    most.clone_from(amount);
                }
            }
            (uid, requests)
        })
    }

    /// Containers of a pod `namespace/name` are left.
    pub(super) fn runs(&self, name: &str) -> bool {
        let mut owners = self.left.values().flatten().map(|it| &it.record.owner);
        owners.any(|it| {
            let rest = name.strip_prefix(it.pod_namespace.as_str());
            rest.and_then(|it| it.strip_prefix('/')) == Some(&it.pod_name)
        })
    }

    pub(super) fn read_later(&mut self, now: Duration) {
        self.read_at = now + READ_AGAIN;
    }

    /// Those that are unread, those first that were not tried last.
    fn in_turn(&self) -> Vec<PodUid> {
        let is_after = |it: &&PodUid| self.tried.as_ref().is_none_or(|tried| *it > tried);
        let (mut next, first): (Vec<&PodUid>, Vec<&PodUid>) =
            self.unread.iter().partition(is_after);
        next.extend(first);
        next.into_iter().cloned().collect()
    }

    pub(super) fn add_unread(&mut self, uid: PodUid) {
        self.unread.insert(uid);
    }

    /// Notes how a container ended. False: it is of no such pod.
    pub(super) fn ended(
        &mut self,
        id: &ContainerId,
        exit: ContainerExit,
        finished_at: Duration,
    ) -> bool {
        let mut all = self.left.values_mut().flatten();
        let Some(left) = all.find(|it| it.record.id == *id) else {
            return false;
        };
        left.record.end = Some(ContainerEnd {
            exit,
            finished_at: Some(finished_at),
        });
        true
    }
}

impl Loop {
    /// Takes up the pods that a reading has. Those that a complete one lacks are orphans from then on.
    pub(super) fn decide_undecided(
        &mut self,
        pods: &BTreeMap<PodUid, Arc<Pod>>,
        is_complete: bool,
        now: Duration,
    ) {
        self.read_unread(now);
        for (uid, left) in std::mem::take(&mut self.undecided.left) {
            match pods.get(&uid) {
                _ if self.undecided.is_unread(&uid) => self.undecided.add(uid, left),
                Some(pod) => {
                    self.rebuild(pod, &left, now);
                    self.undecided.add(uid.clone(), left);
                    self.go_on(&[uid], now);
                }
                None if is_complete => {
                    self.told.pod_unclaimed(&uid);
                    for it in left.into_iter().filter(|it| it.record.end.is_some()) {
                        self.forget_container(&it.record.id);
                    }
                }
                None => self.undecided.add(uid, left),
            }
        }
    }

    /// Takes up the pods of which all that is stored can be read by now.
    fn read_unread(&mut self, now: Duration) {
        if self.undecided.unread.is_empty() || now < self.undecided.read_at {
            return;
        }
        self.undecided.read_later(now);
        // Where these cannot be listed nothing can be said of any pod.
        let Ok(without_notes) = self.unread_notes() else {
            return;
        };
        let mut loaded = Vec::new();
        for uid in self.undecided.in_turn() {
            if clock::boottime().saturating_sub(now) > LONGEST {
                break;
            }
            if without_notes.contains(&uid) {
                continue;
            }
            self.undecided.tried = Some(uid.clone());
            let record = self.paths.pod_record(&uid);
            let read = stored::read_once(&record, PodState::KIND, PodState::VERSION);
            if read.as_ref().is_err_and(|it| !it.is_damage()) {
                continue;
            }
            self.undecided.unread.remove(&uid);
            match read {
                // Somebody has removed it.
                Err(CheckpointError::File(error)) if error.is_gone() => {}
                read => {
                    self.load_pod(uid.clone(), read);
                    loaded.push(uid);
                }
            }
        }
        // One whose record is damaged is decided by its manifest.
        loaded.retain(|uid| self.pods.contains_key(uid));
        self.go_on(&loaded, now);
    }

    /// Pods that are known late, as at a start.
    fn go_on(&mut self, uids: &[PodUid], now: Duration) {
        if uids.is_empty() {
            return;
        }
        for uid in uids {
            for it in self.undecided.left.remove(uid).into_iter().flatten() {
                self.take_up(it, now);
            }
        }
        self.settle_all(uids, now);
        self.release_after_boot();
        self.reopen_unsettled();
        for uid in uids {
            self.register_pod(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing;
    use crate::runtime::{ContainerOwner, HostProcess};

    /// A container that was started while its pod requested so much.
    fn left(pod: &str, container: &str, requests: &[(&str, &str)]) -> LeftContainer {
        let amount =
            |(name, text): &(&str, &str)| ((*name).to_owned(), text.parse().expect("a quantity"));
        let owner = ContainerOwner {
            pod_uid: PodUid(pod.to_owned()),
            pod_namespace: "default".to_owned(),
            pod_name: pod.to_owned(),
            container: container.to_owned(),
            attempt: 0,
        };
        let record = ContainerRecord {
            id: ContainerId::new(container).expect("valid"),
            owner,
            spec_hash: String::new(),
            pod_requests: requests.iter().map(amount).collect(),
            log_path: "/log".into(),
            oom_score_adj: 0,
            cgroups: Vec::new(),
            boot_id: String::new(),
            process: HostProcess {
                pid: 7,
                start_ticks: 1,
            },
            started_at: Duration::ZERO,
            end: None,
        };
        LeftContainer {
            record,
            was_oom_killed: false,
        }
    }

    #[test]
    fn an_unknown_pod_requests_the_most_that_its_containers_were_started_with() {
        let mut undecided = Undecided::default();
        let of_pod = vec![
            left("a", "first", &[("cpu", "1500m"), ("memory", "1Gi")]),
            left("a", "resized", &[("cpu", "2"), ("memory", "512Mi")]),
            left("a", "old-record", &[]),
        ];
        undecided.add(PodUid("a".to_owned()), of_pod);
        undecided.add(
            PodUid("b".to_owned()),
            vec![left("b", "app", &[("cpu", "1")])],
        );
        // By its manifest.
        undecided.add_unread(PodUid("b".to_owned()));
        let defined = Arc::new(testing::pod("app {}"));
        undecided.define(&BTreeMap::from([(PodUid("b".to_owned()), defined)]));
        let found: Vec<_> = undecided.requests().collect();
        let [(uid, requests)] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(uid.0, "a");
        let amounts = ["cpu", "memory"].map(|it| requests[it].to_string());
        assert_eq!(amounts, ["2", "1Gi"]);
    }

    #[test]
    fn a_pod_whose_record_is_unread_is_known_by_its_manifest() {
        let uid = |it: &str| PodUid(it.to_owned());
        let pods = ["a", "b", "c"].map(|it| {
            let mut pod = testing::pod("app {}");
            pod.uid = uid(it);
            (uid(it), Arc::new(pod))
        });
        let pods = BTreeMap::from(pods);
        let mut undecided = Undecided::default();
        // Its record is damaged: with a manifest it is decided.
        undecided.add(uid("a"), Vec::new());
        undecided.add_unread(uid("b"));
        undecided.add_unread(uid("d"));
        undecided.define(&pods);
        let defined: Vec<&str> = undecided.defined().map(|it| it.uid.0.as_str()).collect();
        assert_eq!(defined, ["b"]);
        undecided.define(&BTreeMap::new());
        assert_eq!(undecided.defined().count(), 0);
    }
}
