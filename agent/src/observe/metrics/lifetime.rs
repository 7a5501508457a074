//! Which series of pods and workloads exist, and until when. Times are boottime.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::identity::{ContainerKey, ContainerLabels};
use crate::model::workload::Workload;

/// How long the series of a pod outlive it: the last counts are scraped several times at the usual
/// interval of 30 s or 1 min, and 5 min is also how far back Prometheus looks for a sample.
pub const POD_RETENTION: Duration = Duration::from_secs(5 * 60);

/// Pods, and containers without a name, that are gone and keep their series, at most; of more the first
/// that went lose theirs. As many as kubelet runs at a time (`maxPods`): pods that come and go quickly cost no more than those that stay.
pub(super) const MAX_GONE_PODS: usize = 110;

/// How long the series of a workload stay after their last use.
pub const WORKLOAD_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// How long kills of a pod wait for its workload. An API server that is away for longer tells of no new pods either.
pub const WORKLOAD_AWAITED: Duration = Duration::from_secs(15 * 60);

/// Workloads with series of their own; more are counted together as `other`.
pub const MAX_WORKLOADS: usize = 2000;

/// Who has series that end together: a pod, or a container without a name, which has its own since it
/// may be gone long before its pod is.
#[derive(Debug)]
struct Holder {
    /// As [`ContainerLabels::holder`] gives it.
    labels: [Box<str>; 3],
    /// By name.
    containers: BTreeSet<String>,
    state: HolderState,
}

impl Holder {
    fn labels(&self) -> [&str; 3] {
        self.labels.each_ref().map(|it| &**it)
    }

    fn members<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = ContainerLabels<'a>> {
        let containers = self.containers.iter();
        containers.map(move |it| ContainerLabels::of_holder(namespace, self.labels(), it))
    }

    fn keys<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = ContainerKey> {
        self.members(namespace).map(ContainerLabels::to_key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderState {
    /// Seen in the sync of this number.
    Present { sync: u64 },
    /// First missed at this time.
    Gone { at: Duration },
}

/// Pods that have series, by their labels. So not by uid, unless that is all that is known: a pod made
/// again under its name continues its series. Looking up what is known allocates nothing.
#[derive(Debug, Default)]
pub(super) struct PodLifetimes {
    /// By namespace, sorted by their labels.
    namespaces: BTreeMap<String, Vec<Holder>>,
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
        containers: impl IntoIterator<Item = ContainerLabels<'a>>,
        now: Duration,
    ) -> Changes {
        let mut changes = Changes::default();
        self.n_syncs += 1;
        let present = HolderState::Present { sync: self.n_syncs };
        for container in containers {
            let holder = self.holder(container, present);
            holder.state = present;
            if insert(&mut holder.containers, container.container()) {
                changes.begun.push(container.to_key());
            }
        }
        for (namespace, holders) in &mut self.namespaces {
            holders.retain_mut(|holder| {
                let gone_at = match holder.state {
                    state if state == present => return true,
                    HolderState::Present { .. } => now,
                    HolderState::Gone { at } => at,
                };
                holder.state = HolderState::Gone { at: gone_at };
                let keep = now.saturating_sub(gone_at) < POD_RETENTION;
                if !keep {
                    changes.ended.extend(holder.keys(namespace));
                }
                keep
            });
        }
        self.end_oldest(&mut changes);
        self.namespaces.retain(|_, holders| !holders.is_empty());
        changes
    }

    /// Ends the series of those that went first, as far as more are gone than are kept.
    fn end_oldest(&mut self, changes: &mut Changes) {
        let mut gone: Vec<(Duration, String, [Box<str>; 3])> = Vec::new();
        for (namespace, holders) in &self.namespaces {
            gone.extend(holders.iter().filter_map(|it| match it.state {
                HolderState::Gone { at } => Some((at, namespace.clone(), it.labels.clone())),
                HolderState::Present { .. } => None,
            }));
        }
        let n_too_many = gone.len().saturating_sub(MAX_GONE_PODS);
        gone.sort();
        for (_, namespace, labels) in gone.into_iter().take(n_too_many) {
            let Some(holders) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            if let Ok(at) = holders.binary_search_by(|it| it.labels.cmp(&labels)) {
                let ended = holders.remove(at);
                changes.ended.extend(ended.keys(&namespace));
                changes.n_cut_short += 1;
            }
        }
    }

    /// Whether a container has series.
    pub(super) fn knows(&self, container: ContainerLabels<'_>) -> bool {
        let Some(holders) = self.namespaces.get(container.namespace()) else {
            return false;
        };
        let labels = container.holder();
        let found = holders.binary_search_by(|it| it.labels().cmp(&labels));
        found.is_ok_and(|at| {
            holders[at]
                .containers
                .iter()
                .any(|it| **it == *container.container())
        })
    }

    /// Who has series under an id, where a name would be.
    pub(super) fn unnamed(&self) -> Vec<ContainerKey> {
        let of_namespace = |(namespace, holders): (&String, &Vec<Holder>)| {
            let unnamed = holders.iter().filter(|it| {
                let [_, uid, id] = it.labels();
                !uid.is_empty() || !id.is_empty()
            });
            unnamed
                .flat_map(|it| it.keys(namespace))
                .collect::<Vec<_>>()
        };
        self.namespaces.iter().flat_map(of_namespace).collect()
    }

    /// A container has series under another name from now on.
    pub(super) fn end(&mut self, container: ContainerLabels<'_>) {
        let Some(holders) = self.namespaces.get_mut(container.namespace()) else {
            return;
        };
        let labels = container.holder();
        if let Ok(at) = holders.binary_search_by(|it| it.labels().cmp(&labels)) {
            holders[at].containers.remove(container.container());
            if holders[at].containers.is_empty() {
                holders.remove(at);
            }
        }
    }

    /// Takes note of a container that an event names, such as one that has just gone. True: it had
    /// no series yet.
    pub(super) fn touch(&mut self, container: ContainerLabels<'_>, now: Duration) -> bool {
        // Gone until the next sync says that it is there.
        let holder = self.holder(container, HolderState::Gone { at: now });
        insert(&mut holder.containers, container.container())
    }

    /// The holder of a container's series; `state` is that of a new one.
    fn holder(&mut self, container: ContainerLabels<'_>, state: HolderState) -> &mut Holder {
        let namespace = container.namespace();
        // Two lookups instead of an entry, which wants an owned key.
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.to_owned(), Vec::new());
        }
        let holders = self.namespaces.get_mut(namespace);
        let holders = holders.expect("inserted above when it was missing");
        let labels = container.holder();
        let found = holders.binary_search_by(|it| it.labels().cmp(&labels));
        let at = found.unwrap_or_else(|at| {
            let holder = Holder {
                labels: labels.map(Box::from),
                containers: BTreeSet::new(),
                state,
            };
            holders.insert(at, holder);
            at
        });
        &mut holders[at]
    }
}

/// True: it was not there.
fn insert(names: &mut BTreeSet<String>, name: &str) -> bool {
    !names.contains(name) && names.insert(name.to_owned())
}

/// Stands for all workloads past [`MAX_WORKLOADS`].
pub(super) fn other_workloads() -> Workload {
    Workload {
        namespace: String::new(),
        kind: String::new(),
        name: "other".to_owned(),
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
            return other_workloads();
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
    use crate::model::pod::PodUid;
    use crate::model::record::PodRef;

    const LIVE: [ContainerLabels<'_>; 2] = [
        ContainerLabels::named("default", "a", "main"),
        ContainerLabels::named("default", "a", "side"),
    ];

    fn live_keys() -> [ContainerKey; 2] {
        LIVE.map(ContainerLabels::to_key)
    }

    fn pod(name: &str, uid: &str) -> PodRef {
        PodRef {
            namespace: String::new(),
            name: name.to_owned(),
            uid: PodUid(uid.to_owned()),
        }
    }

    /// The only container of a pod.
    fn main_of(pod: &str) -> ContainerLabels<'_> {
        ContainerLabels::named("default", pod, "main")
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
        assert!(pods.touch(main_of("short"), at(1)));
        assert!(!pods.touch(main_of("short"), at(2)));
        assert_eq!(pods.sync([], at(3)), Changes::default());
        let ended = pods.sync([], at(1) + POD_RETENTION).ended;
        assert_eq!(ended, [main_of("short").to_key()]);
    }

    #[test]
    fn of_many_pods_that_are_gone_the_last_keep_their_series() {
        let mut pods = PodLifetimes::default();
        let at = Duration::from_secs;
        let names: Vec<String> = (0..MAX_GONE_PODS + 3).map(|n| format!("p{n:04}")).collect();
        for (name, second) in names.iter().zip(0..) {
            pods.touch(main_of(name), at(second));
        }
        let changes = pods.sync(LIVE, at(200));
        let first = names[..3].iter().map(|it| main_of(it).to_key());
        assert_eq!(changes.ended, first.collect::<Vec<_>>());
        assert_eq!(changes.n_cut_short, 3);
        assert_eq!(pods.sync(LIVE, at(201)), Changes::default());
    }

    #[test]
    fn what_has_no_name_is_told_apart_by_its_id() {
        let mut pods = PodLifetimes::default();
        let at = Duration::from_secs;
        let (a, b) = (pod("", "uid-a"), pod("", "uid-b"));
        let both = [&a, &b].map(|it| ContainerLabels::new(it, "main", "0123"));
        let begun = pods.sync(both, at(0)).begun;
        assert_eq!(begun, both.map(ContainerLabels::to_key));
        assert!(!pods.touch(both[0], at(1)));
        pods.sync([both[0]], at(10));
        let ended = pods.sync([both[0]], at(10) + POD_RETENTION).ended;
        assert_eq!(ended, [both[1].to_key()]);
    }

    #[test]
    fn a_container_without_a_name_does_not_keep_its_series_as_long_as_its_pod() {
        let mut pods = PodLifetimes::default();
        let at = Duration::from_secs;
        let web = pod("web", "uid");
        let instance = |id| ContainerLabels::new(&web, "", id);
        let named = ContainerLabels::new(&web, "side", "id");
        pods.sync([named, instance("first")], at(0));
        let begun = pods.sync([named, instance("second")], at(10)).begun;
        assert_eq!(begun, [instance("second").to_key()]);
        let now = [instance("second")];
        let ended = pods.sync(now, at(10) + POD_RETENTION).ended;
        assert_eq!(ended, [instance("first").to_key()]);
        let ended = pods.sync(now, at(10) + POD_RETENTION * 2).ended;
        assert_eq!(ended, [named.to_key()]);
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
        assert_eq!(workloads.touch(&more, at(1)), other_workloads());
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
