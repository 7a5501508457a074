//! Containers of pods that nobody can name yet: the pod's record is damaged, and a manifest that may be its own
//! cannot be read. They go on as they are, with the pod's cgroup and what it holds of the node, until a reading of
//! the manifests has the pod, or one without any fault lacks it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use crate::model::pod::{Pod, PodUid};
use crate::runtime::{ContainerEnd, ContainerExit, ContainerId, ContainerRecord};

/// A container that an earlier agent left, running or ended.
#[derive(Debug)]
pub(super) struct LeftContainer {
    pub(super) record: ContainerRecord,
    /// As far as was known at the start.
    pub(super) was_oom_killed: bool,
}

/// Pods without a definition, with what runs or has ended of them.
#[derive(Debug, Default)]
pub(super) struct Undecided(BTreeMap<PodUid, Vec<LeftContainer>>);

impl Undecided {
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.0.contains_key(uid)
    }

    pub(super) fn add(&mut self, uid: PodUid, left: Vec<LeftContainer>) {
        self.0.insert(uid, left);
    }

    /// Notes how a container ended. False: it is of no such pod.
    pub(super) fn ended(
        &mut self,
        id: &ContainerId,
        exit: ContainerExit,
        finished_at: Duration,
    ) -> bool {
        let mut all = self.0.values_mut().flatten();
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
        for (uid, left) in std::mem::take(&mut self.undecided.0) {
            match pods.get(&uid) {
                Some(pod) => {
                    self.rebuild(pod, &left, now);
                    for it in left {
                        self.take_up(it, now);
                    }
                    self.reopen_unsettled();
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
}
