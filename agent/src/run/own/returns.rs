//! Pods that begin anew when what ended them is over: those that were evicted, and those that were
//! refused. They come from manifests, so no controller makes another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use super::pods::{self, PodEntry};
use crate::config::Compat;
use crate::decide::eviction::returns::is_to_return;
use crate::decide::placement::admission::{Outcome, admit};
use crate::decide::placement::devices::PluginAnswers;
use crate::model::admission::Admission;
use crate::model::eviction::EvictionCause;
use crate::model::pod::{PodUid, RestartPolicy};
use crate::model::record::PodRef;

/// Waits between the tries of a pod that is refused again and again, as by a device plugin, whose answer
/// nobody knows before it is asked: those of a container that keeps failing.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const MAX_WAIT: Duration = Duration::from_secs(300);

/// The refused pods that were tried again, and until when they are not again.
#[derive(Debug, Default)]
pub(super) struct Tries(BTreeMap<PodUid, Try>);

#[derive(Clone, Copy, Debug)]
struct Try {
    next: Duration,
    wait: Duration,
}

impl Tries {
    fn is_due(&self, uid: &PodUid, now: Duration) -> bool {
        self.0.get(uid).is_none_or(|it| it.next <= now)
    }

    fn tried(&mut self, uid: &PodUid, now: Duration) {
        let wait = self
            .0
            .get(uid)
            .map_or(FIRST_WAIT, |it| (it.wait * 2).min(MAX_WAIT));
        let next = now + wait;
        self.0.insert(uid.clone(), Try { next, wait });
    }
}

impl Loop {
    /// Forgets the pods that begin anew, so that the next reading of the manifests adds them. Of each
    /// nothing is there any more but its record and its logs, which go too.
    pub(super) fn return_pods(&mut self, now: Duration) {
        for uid in self.evicted_to_return(now) {
            if let Some(pod_ref) = self.begin_anew(&uid, now) {
                self.told.evicted_returns(&pod_ref);
                self.metrics.pod_returned();
            }
        }
        self.return_refused(now);
    }

    /// The same for refused pods alone. True: some begin anew.
    pub(super) fn return_refused(&mut self, now: Duration) -> bool {
        let pods = &self.pods;
        self.tries.0.retain(|uid, _| {
            let entry = pods.get(uid);
            // One that has made room was in before.
            entry.is_some_and(|it| {
                it.state.admission != Admission::Admitted || it.state.eviction.is_some()
            })
        });
        let mut begin = false;
        for uid in self.refused_to_return(now) {
            if let Some(pod_ref) = self.begin_anew(&uid, now) {
                self.told.refused_returns(&pod_ref);
                self.tries.tried(&uid, now);
                begin = true;
            }
        }
        begin
    }

    fn evicted_to_return(&self, now: Duration) -> Vec<PodUid> {
        let Some(conditions) = self.pressure.known_conditions() else {
            return Vec::new();
        };
        let period = self.config.kubelet.eviction_pressure_transition_period;
        let compat = self.own.compat;
        let is_due = |it: &&PodEntry| {
            let policy = it.state.pod.restart_policy;
            let eviction = it.state.eviction.as_ref();
            is_over(it)
                && it.gave_up_files
                && !self.noted.contains(it.uid())
                && eviction
                    .is_some_and(|it| is_to_return(policy, it, &conditions, period, compat, now))
        };
        let due = self.pods.values().filter(is_due);
        due.map(|it| it.uid().clone()).collect()
    }

    /// Those that would be let in now, one after the other, or for which room would be made.
    fn refused_to_return(&self, now: Duration) -> Vec<PodUid> {
        let is_due = |it: &&PodEntry| {
            is_to_be_tried(it) && !self.noted.contains(it.uid()) && self.tries.is_due(it.uid(), now)
        };
        let mut waiting: Vec<&PodEntry> = self.pods.values().filter(is_due).collect();
        if waiting.is_empty() || self.own.compat == Compat::Kubelet {
            return Vec::new();
        }
        waiting.sort_by_key(|it| pods::claim(it, self.own.compat));
        let is_pressure_known = self.pressure.known_conditions().is_some();
        let mut node_info = self.count_pods();
        self.take_for_waiting(&mut node_info, None);
        let mut managers = self.placement.managers.clone();
        let mut due = Vec::new();
        let mut takes_room = false;
        for entry in waiting {
            let pod = &entry.state.pod;
            let is_calm = is_pressure_known && self.first_refusal(pod).is_none();
            let is_awaiting = managers.devices.awaited(pod).is_some();
            if !is_calm || is_awaiting {
                continue;
            }
            if node_info.refusal(pod).is_some() {
                // For one at a time: the next one's victims are seen when those of this one end.
                if takes_room || !entry.facts.is_critical || self.victims_for(entry).is_err() {
                    continue;
                }
                takes_room = true;
            }
            match admit(&managers, pod, &PluginAnswers::default()) {
                Outcome::Decided(decided) if decided.report.refusal.is_some() => continue,
                Outcome::Decided(decided) => managers = decided.managers,
                // There are devices for it; what the plugin says will be seen.
                Outcome::Ask(_) => {}
            }
            node_info.take(pod);
            due.push(pod.uid.clone());
        }
        due
    }

    /// `None`: something of it remains, which is told; the next pass tries again.
    fn begin_anew(&mut self, uid: &PodUid, now: Duration) -> Option<Arc<PodRef>> {
        let pod_ref = self.pods.get(uid).map(|it| Arc::clone(&it.pod_ref));
        self.forget(uid, now);
        pod_ref.filter(|_| !self.pods.contains_key(uid))
    }
}

/// Nothing of it runs, and its manifest is there.
fn is_over(entry: &PodEntry) -> bool {
    entry.is_finished() && entry.instances.is_empty() && entry.state.deletion.is_none()
}

/// It was refused, so that it never began; or it has made room for another, and is to run always.
fn is_to_be_tried(entry: &PodEntry) -> bool {
    let cause = entry.state.eviction.as_ref().map(|it| &it.victim.cause);
    let is_wanted = match cause {
        None => matches!(entry.state.admission, Admission::Refused(_)),
        Some(EvictionCause::Preemption { .. }) => {
            entry.gave_up_files && entry.state.pod.restart_policy == RestartPolicy::Always
        }
        Some(_) => false,
    };
    is_wanted && is_over(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_refused_again_is_tried_after_ever_longer_times() {
        let uid = PodUid("uid".to_owned());
        let mut tries = Tries::default();
        let mut now = Duration::from_secs(1000);
        assert!(tries.is_due(&uid, now));
        for wait in [10, 20, 40, 80, 160, 300, 300].map(Duration::from_secs) {
            tries.tried(&uid, now);
            assert!(!tries.is_due(&uid, now + wait - Duration::from_millis(1)));
            now += wait;
            assert!(tries.is_due(&uid, now));
        }
    }
}
