//! Pods that begin anew when what ended them is over: those that were evicted, and those that were
//! refused. They come from manifests, so no controller makes another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use super::pods::{self, PodEntry};
use super::successors::Successor;
use crate::config::Compat;
use crate::decide::eviction::returns::is_to_return;
use crate::decide::placement::admission::{Outcome, admit};
use crate::decide::placement::devices::PluginAnswers;
use crate::decide::placement::managers::Managers;
use crate::decide::predicates::NodeInfo;
use crate::model::admission::Admission;
use crate::model::eviction::EvictionCause;
use crate::model::pod::{Pod, PodUid, RestartPolicy};
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

/// What the node has left, of which those that wait take one after the other.
struct Left<'a> {
    node_info: NodeInfo,
    managers: Managers,
    /// Whose places are kept for them. The lowest rank first.
    successors: Vec<Successor<'a>>,
    /// Others end for one of them.
    makes_room: bool,
}

impl Left<'_> {
    /// Leaves their places to those of this rank and above.
    fn keep_places(&mut self, rank: i32) {
        while let Some(it) = self.successors.pop_if(|it| it.rank >= rank) {
            it.take(&mut self.node_info);
            // What the one before it has of its own is not given out yet.
            if it.before.is_none()
                && let Outcome::Decided(decided) =
                    admit(&self.managers, it.pod, &PluginAnswers::default())
            {
                self.managers = decided.managers;
            }
        }
    }

    /// True: the pod would be let in with what is left, which is less by it now. `can_make_room`: others would end for it.
    fn is_taken_by(&mut self, pod: &Pod, can_make_room: impl FnOnce() -> bool) -> bool {
        if self.managers.devices.awaited(pod).is_some() {
            return false;
        }
        let lacks_room = self.node_info.refusal(pod).is_some();
        // For one at a time: the next one's victims are seen when those of this one end.
        if lacks_room && (self.makes_room || !can_make_room()) {
            return false;
        }
        match admit(&self.managers, pod, &PluginAnswers::default()) {
            Outcome::Decided(decided) if decided.report.refusal.is_some() => return false,
            Outcome::Decided(decided) => self.managers = decided.managers,
            // There are devices for it; what the plugin says will be seen.
            Outcome::Ask(_) => {}
        }
        self.node_info.take(pod);
        self.makes_room |= lacks_room;
        true
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
        let mut left = Left {
            node_info,
            managers: self.placement.managers.clone(),
            successors: self.successors(),
            makes_room: false,
        };
        let begins = |entry: &&PodEntry| {
            let pod = &entry.state.pod;
            left.keep_places(pods::rank(pod, self.own.compat));
            let can_make_room = || entry.facts.is_critical && self.victims_for(entry).is_ok();
            let is_calm = is_pressure_known && self.first_refusal(pod).is_none();
            is_calm && left.is_taken_by(pod, can_make_room)
        };
        let due = waiting.into_iter().filter(begins);
        due.map(|it| it.uid().clone()).collect()
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
    use crate::config::{CpuManagerPolicy, PlacementConfig};
    use crate::decide::placement::managers::PlacementSettings;
    use crate::decide::placement::tests::topology;
    use crate::decide::predicates::Node;
    use crate::decide::testing;
    use crate::model::pod::ResourceList;

    /// Eight CPUs, one of which is kept from containers with CPUs of their own; pods may request so many.
    fn left<'a>(cpus: &str) -> Left<'a> {
        let list = |amounts: &[(&str, &str)]| -> ResourceList {
            let amount = |(name, text): &(&str, &str)| {
                let amount = text.parse().expect("a quantity");
                ((*name).to_owned(), amount)
            };
            amounts.iter().map(amount).collect()
        };
        let settings = PlacementSettings {
            compat: Compat::Ballast,
            config: PlacementConfig {
                cpu_manager_policy: CpuManagerPolicy::Static,
                ..PlacementConfig::default()
            },
            reserved_system_cpus: None,
            reservation: list(&[("cpu", "1")]),
            topology: topology(),
        };
        let node = Node {
            allocatable: list(&[("pods", "10"), ("cpu", cpus), ("memory", "8Gi")]),
            ..Node::default()
        };
        Left {
            node_info: NodeInfo::new(node, []),
            managers: Managers::new(&settings).expect("the settings fit the machine"),
            successors: Vec::new(),
            makes_room: false,
        }
    }

    /// Shares its CPUs.
    fn sharing(cpus: u32) -> Pod {
        testing::pod(&format!("app {{req cpu={cpus}}}"))
    }

    /// Has them alone.
    fn exclusive(cpus: u32) -> Pod {
        let list = format!("cpu={cpus} memory=1Gi");
        let mut pod = testing::pod(&format!("app {{req {list} lim {list}}}"));
        pod.uid = PodUid(list);
        pod
    }

    #[test]
    fn room_is_made_for_the_first_one_that_is_let_in_alone() {
        let mut left = left("1");
        assert!(!left.is_taken_by(&sharing(2), || false), "nobody ends");
        assert!(!left.is_taken_by(&exclusive(8), || true), "of 7 CPUs");
        assert!(left.is_taken_by(&sharing(2), || true));
        assert!(!left.is_taken_by(&sharing(2), || true), "the next one");
    }

    #[test]
    fn the_place_of_a_pod_that_was_edited_is_nobodys_of_its_rank_or_below() {
        let edited = sharing(2);
        for (rank, is_taken) in [(1, true), (0, false), (-1, false)] {
            let mut left = left("3");
            left.successors.push(Successor {
                pod: &edited,
                rank: 0,
                before: None,
            });
            left.keep_places(rank);
            let found = left.is_taken_by(&sharing(2), || false);
            assert_eq!(found, is_taken, "{rank}");
        }
    }

    #[test]
    fn cpus_of_its_own_are_kept_for_a_pod_that_was_edited() {
        for (rank, is_taken) in [(1, true), (0, false)] {
            let mut edited = exclusive(4);
            edited.uid = PodUid("edited".to_owned());
            let mut left = left("8");
            left.successors.push(Successor {
                pod: &edited,
                rank: 0,
                before: None,
            });
            left.keep_places(rank);
            let found = left.is_taken_by(&exclusive(4), || false);
            assert_eq!(found, is_taken, "{rank}, of 7 CPUs");
        }
    }

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
