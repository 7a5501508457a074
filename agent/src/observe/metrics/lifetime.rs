//! Which series of pods and workloads exist, and until when. Times are boottime.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::record::PodRef;

/// How long the series of a pod outlive it: the last counts are scraped several times at the usual
/// interval of 30 s or 1 min, and 5 min is also how far back Prometheus looks for a sample.
pub const POD_RETENTION: Duration = Duration::from_secs(5 * 60);

/// Pods that are gone and keep their series, at most; of more the first that went lose theirs. As many
/// as kubelet runs at a time (`maxPods`): pods that come and go quickly cost no more than those that stay.
pub(super) const MAX_GONE_PODS: usize = 110;

/// How long the series of a workload stay after their last use.
pub const WORKLOAD_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Workloads with series of their own; more are counted together as `other`.
pub const MAX_WORKLOADS: usize = 2000;

/// A container of a pod whose series begin or end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContainerKey {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

impl ContainerKey {
    /// Values of the labels that name a container.
    pub(super) fn labels(&self) -> [&str; 3] {
        [&self.namespace, &self.pod, &self.container]
    }
}

#[derive(Debug)]
struct PodSeries {
    containers: BTreeSet<String>,
    state: PodState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodState {
    /// Seen in the sync of this number.
    Present { sync: u64 },
    /// First missed at this time.
    Gone { at: Duration },
}

/// Pods that have series, by namespace and name. Not by uid: a pod made again under its name
/// continues its series. Looking up what is known allocates nothing.
#[derive(Debug, Default)]
pub(super) struct PodLifetimes {
    namespaces: BTreeMap<String, BTreeMap<String, PodSeries>>,
    n_syncs: u64,
}

/// What changed: series to make at zero, and series to remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) begun: Vec<ContainerKey>,
    pub(super) ended: Vec<ContainerKey>,
    /// Pods whose series end before their time, see [`MAX_GONE_PODS`].
    pub(super) n_cut_short: u64,
}

impl PodLifetimes {
    /// Takes the containers that exist now.
    pub(super) fn sync<'a>(
        &mut self,
        containers: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
        now: Duration,
    ) -> Changes {
        let mut changes = Changes::default();
        self.n_syncs += 1;
        let present = PodState::Present { sync: self.n_syncs };
        for (namespace, pod, container) in containers {
            let series = self.series(namespace, pod, present);
            series.state = present;
            if insert(&mut series.containers, container) {
                changes.begun.push(key(namespace, pod, container));
            }
        }
        for (namespace, pods) in &mut self.namespaces {
            pods.retain(|pod, series| {
                let gone_at = match series.state {
                    state if state == present => return true,
                    PodState::Present { .. } => now,
                    PodState::Gone { at } => at,
                };
                series.state = PodState::Gone { at: gone_at };
                let keep = now.saturating_sub(gone_at) < POD_RETENTION;
                if !keep {
                    let ended = series.containers.iter().map(|it| key(namespace, pod, it));
                    changes.ended.extend(ended);
                }
                keep
            });
        }
        self.end_oldest(&mut changes);
        self.namespaces.retain(|_, pods| !pods.is_empty());
        changes
    }

    /// Ends the series of the pods that went first, as far as more are gone than are kept.
    fn end_oldest(&mut self, changes: &mut Changes) {
        let mut gone: Vec<(Duration, String, String)> = Vec::new();
        for (namespace, pods) in &self.namespaces {
            gone.extend(pods.iter().filter_map(|(pod, series)| match series.state {
                PodState::Gone { at } => Some((at, namespace.clone(), pod.clone())),
                PodState::Present { .. } => None,
            }));
        }
        let n_too_many = gone.len().saturating_sub(MAX_GONE_PODS);
        gone.sort();
        for (_, namespace, pod) in gone.into_iter().take(n_too_many) {
            let pods = self.namespaces.get_mut(&namespace);
            let Some(series) = pods.and_then(|pods| pods.remove(&pod)) else {
                continue;
            };
            let ended = series.containers.iter();
            changes
                .ended
                .extend(ended.map(|it| key(&namespace, &pod, it)));
            changes.n_cut_short += 1;
        }
    }

    /// Takes note of a container that an event names, such as one that has just gone. True: it had
    /// no series yet.
    pub(super) fn touch(
        &mut self,
        namespace: &str,
        pod: &str,
        container: &str,
        now: Duration,
    ) -> bool {
        // Gone until the next sync says that the pod is there.
        let series = self.series(namespace, pod, PodState::Gone { at: now });
        insert(&mut series.containers, container)
    }

    fn series(&mut self, namespace: &str, pod: &str, state: PodState) -> &mut PodSeries {
        // Two lookups instead of an entry, which wants an owned key.
        if !self.namespaces.contains_key(namespace) {
            self.namespaces
                .insert(namespace.to_owned(), BTreeMap::new());
        }
        let pods = self.namespaces.get_mut(namespace);
        let pods = pods.expect("inserted above when it was missing");
        if !pods.contains_key(pod) {
            let series = PodSeries {
                containers: BTreeSet::new(),
                state,
            };
            pods.insert(pod.to_owned(), series);
        }
        pods.get_mut(pod)
            .expect("inserted above when it was missing")
    }
}

/// True: it was not there.
fn insert(names: &mut BTreeSet<String>, name: &str) -> bool {
    !names.contains(name) && names.insert(name.to_owned())
}

fn key(namespace: &str, pod: &str, container: &str) -> ContainerKey {
    ContainerKey {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: container.to_owned(),
    }
}

/// A controller of pods, or a pod without one, over the pods it makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    pub namespace: String,
    /// `Deployment`, `StatefulSet`, ...; `Pod` for a pod without a controller.
    pub kind: String,
    pub name: String,
}

impl Workload {
    /// A pod without a controller.
    pub fn of_pod(pod: &PodRef) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            kind: "Pod".to_owned(),
            name: pod.name.clone(),
        }
    }

    /// Stands for all workloads past [`MAX_WORKLOADS`].
    fn other() -> Self {
        Self {
            namespace: String::new(),
            kind: String::new(),
            name: "other".to_owned(),
        }
    }
}

/// Workloads that have series, with their last use.
#[derive(Debug, Default)]
pub(super) struct WorkloadLifetimes {
    last_used: BTreeMap<Workload, Duration>,
}

impl WorkloadLifetimes {
    /// The workload whose series counts for `workload`.
    pub(super) fn touch(&mut self, workload: &Workload, now: Duration) -> Workload {
        let is_known = self.last_used.contains_key(workload);
        if !is_known && self.last_used.len() >= MAX_WORKLOADS {
            return Workload::other();
        }
        self.last_used.insert(workload.clone(), now);
        workload.clone()
    }

    /// Forgets and returns what was not used for [`WORKLOAD_RETENTION`].
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Workload> {
        self.last_used
            .extract_if(.., |_, used| {
                now.saturating_sub(*used) >= WORKLOAD_RETENTION
            })
            .map(|(workload, _)| workload)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: [(&str, &str, &str); 2] = [("default", "a", "main"), ("default", "a", "side")];

    fn live_keys() -> [ContainerKey; 2] {
        LIVE.map(|(namespace, pod, container)| key(namespace, pod, container))
    }

    #[test]
    fn series_begin_once_and_end_after_the_retention() {
        let mut pods = PodLifetimes::default();
        let at = Duration::from_secs;
        assert_eq!(pods.sync(LIVE, at(0)).begun, live_keys());
        assert_eq!(pods.sync(LIVE, at(10)), Changes::default());
        assert_eq!(pods.sync([], at(20)), Changes::default());
        assert_eq!(
            pods.sync([], at(19) + POD_RETENTION),
            Changes::default(),
            "one second early"
        );
        assert_eq!(pods.sync([], at(20) + POD_RETENTION).ended, live_keys());
        assert_eq!(pods.sync([], at(30) + POD_RETENTION), Changes::default());
    }

    #[test]
    fn a_pod_that_comes_back_keeps_its_series() {
        let mut pods = PodLifetimes::default();
        let at = Duration::from_secs;
        pods.sync(LIVE, at(0));
        pods.sync([], at(10));
        assert_eq!(pods.sync(LIVE, at(20)), Changes::default());
        assert_eq!(pods.sync(LIVE, at(20) + POD_RETENTION), Changes::default());
    }

    #[test]
    fn an_event_of_a_pod_that_is_gone_makes_series_that_end() {
        let mut pods = PodLifetimes::default();
        let at = Duration::from_secs;
        assert!(pods.touch("default", "short", "main", at(1)));
        assert!(!pods.touch("default", "short", "main", at(2)));
        assert_eq!(pods.sync([], at(3)), Changes::default());
        let ended = pods.sync([], at(1) + POD_RETENTION).ended;
        assert_eq!(ended, [key("default", "short", "main")]);
    }

    #[test]
    fn of_many_pods_that_are_gone_the_last_keep_their_series() {
        let mut pods = PodLifetimes::default();
        let at = Duration::from_secs;
        let names: Vec<String> = (0..MAX_GONE_PODS + 3).map(|n| format!("p{n:04}")).collect();
        for (name, second) in names.iter().zip(0..) {
            pods.touch("default", name, "main", at(second));
        }
        let changes = pods.sync(LIVE, at(200));
        let first = names[..3].iter().map(|it| key("default", it, "main"));
        assert_eq!(changes.ended, first.collect::<Vec<_>>());
        assert_eq!(changes.n_cut_short, 3);
        assert_eq!(pods.sync(LIVE, at(201)), Changes::default());
    }

    #[test]
    fn workloads_are_capped_and_forgotten() {
        let mut workloads = WorkloadLifetimes::default();
        let workload = |n: usize| Workload {
            namespace: "default".into(),
            kind: "Deployment".into(),
            name: n.to_string(),
        };
        let at = Duration::from_secs;
        for n in 0..MAX_WORKLOADS {
            assert_eq!(workloads.touch(&workload(n), at(0)), workload(n));
        }
        let more = workload(MAX_WORKLOADS);
        assert_eq!(workloads.touch(&more, at(1)), Workload::other());
        assert_eq!(workloads.touch(&workload(0), at(5)), workload(0));
        let expired = workloads.expire(WORKLOAD_RETENTION);
        assert_eq!(
            expired.len(),
            MAX_WORKLOADS - 1,
            "all but the one used later"
        );
        assert_eq!(workloads.touch(&more, at(9)), more);
    }
}
