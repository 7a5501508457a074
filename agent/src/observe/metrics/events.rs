//! What the kernel's events say: OOM kills, and processes that begin and end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::exemplars::Exemplar;
use super::identity::{ContainerLabels, Identity};
use super::labels::{self, ExitHow, HostSlice, MissedCause, RecordResult};
use super::lifetime::{MAX_WORKLOADS, WORKLOAD_AWAITED, other_workloads};
use super::{Awaited, Metrics, lock, observe, set_time};
use crate::model::attribution::Owner;
use crate::model::event::{AttributionMethod, ExitStatus, ProcessChange};
use crate::model::pod::PodUid;
use crate::model::record::{Event, EventDetail, OomDetail, OomScope};
use crate::model::workload::Workload;

/// Of a DNS label, which the name of a container is (staging/src/k8s.io/apimachinery/pkg/util/validation, v1.36:
/// `DNS1123LabelMaxLength`); ids of runtimes have 64.
const LONGEST_CONTAINER_NAME: usize = 63;

/// Ids of containers of a pod that are gone, which are told apart; and what stands for them beyond, which no name is.
const MOST_GONE: usize = 16;
const GONE: &str = "-";

impl Metrics {
    /// Counts one kill. `workload`: that of the pod; `None`: it is not known yet, and
    /// [`Metrics::count_workloads`] counts the kill when it is.
    ///
    /// A victim that was exiting already counts for attribution and latency only, as in the
    /// kernel's own counters.
    pub fn oom_kill(&self, event: &Event, detail: &OomDetail, workload: Option<&Workload>) {
        let _counting = self.counting();
        let oom = &self.shared.oom;
        let method = event.method.unwrap_or(AttributionMethod::None);
        oom.attribution
            .with_label_values(&[labels::method(method)])
            .inc();
        if method == AttributionMethod::None {
            set_time(&oom.last_unattributed, &[], event.time);
        }
        observe(
            &oom.detection,
            &[],
            Duration::from_micros(detail.handling_latency_us),
        );
        if detail.was_exiting {
            return;
        }
        let qos = labels::qos(detail.qos);
        let scope = detail.scope.as_str();
        let record = oom_record(event, detail);
        self.count(&oom.scope_kills, &[scope, qos], record.as_ref());
        self.killed_by(detail.scope, event);
        oom.victim_bytes
            .with_label_values(&[qos])
            .observe(detail.victim.memory.anon_bytes as f64);
        let labels = ContainerLabels::of_event(event);
        match (labels, detail.victim.unknown_cgroup_id) {
            (Some(labels), _) => self.oom_kill_in_pod(event, detail, labels, workload),
            // Of a pod, though nobody knows of which.
            (None, Some(_)) => {
                let unknown = self.values(ContainerLabels::UNKNOWN);
                self.count(&oom.kills, &unknown, record.as_ref());
                set_time(&oom.last_unattributed, &[], event.time);
            }
            (None, None) => {
                let slice = HostSlice::of_path(detail.victim.cgroup_path.as_deref());
                self.count(&oom.host_kills, &[slice.as_str()], record.as_ref());
            }
        }
    }

    /// When a limit above the pods killed is what its alert is made of.
    fn killed_by(&self, scope: OomScope, event: &Event) {
        if !matches!(scope, OomScope::Container | OomScope::Pod) {
            let last = &self.shared.oom.last_node_kill;
            set_time(last, &[scope.as_str()], event.time);
        }
    }

    fn oom_kill_in_pod(
        &self,
        event: &Event,
        detail: &OomDetail,
        labels: ContainerLabels<'_>,
        workload: Option<&Workload>,
    ) {
        let oom = &self.shared.oom;
        let now = Duration::from_nanos(event.boottime_ns);
        self.touch(labels, now);
        let labels = self.values(labels);
        let record = oom_record(event, detail);
        self.count(&oom.kills, &labels, record.as_ref());
        set_time(&oom.last_kill, &labels, event.time);
        if detail.victim.ends_container() == Some(false) {
            self.count(&oom.child_kills, &labels, record.as_ref());
            set_time(&oom.last_child_kill, &labels, event.time);
        }
        self.count_by_workload(event, workload, 1, record.as_ref());
    }

    /// Counts `n` kills of which no more is known than where they were, and by whose limit at most. They have no forensic
    /// record.
    /// `workload` as in [`Metrics::oom_kill`].
    pub fn oom_kills_missed(
        &self,
        event: &Event,
        n: u64,
        cause: MissedCause,
        workload: Option<&Workload>,
    ) {
        let _counting = self.counting();
        let oom = &self.shared.oom;
        oom.missed.with_label_values(&[cause.as_str()]).inc_by(n);
        self.oom_records(RecordResult::Dropped, n);
        if let Some(EventDetail::Missed {
            scope: Some(scope), ..
        }) = event.detail
        {
            self.killed_by(scope, event);
        }
        let Some(labels) = ContainerLabels::of_event(event) else {
            return;
        };
        let now = Duration::from_nanos(event.boottime_ns);
        self.touch(labels, now);
        let labels = self.values(labels);
        oom.kills.with_label_values(&labels).inc_by(n);
        set_time(&oom.last_kill, &labels, event.time);
        self.count_by_workload(event, workload, n, None);
    }

    /// Now, or when its workload is known.
    fn count_by_workload(
        &self,
        event: &Event,
        workload: Option<&Workload>,
        n: u64,
        record: Option<&Exemplar>,
    ) {
        let now = Duration::from_nanos(event.boottime_ns);
        match (workload, &event.pod, event.uid()) {
            (Some(workload), ..) => self.count_workload(workload, n, now, record),
            // Where there are names alone nobody else tells of workloads.
            (None, Some(pod), _) if self.shared.identity == Identity::Names => {
                self.count_workload(&Workload::of_pod(pod), n, now, record);
            }
            (None, _, Some(uid)) => self.await_workload(uid, n, now),
            (None, _, None) => {}
        }
    }

    /// `record`: of the kill, where there is one at hand.
    fn count_workload(
        &self,
        workload: &Workload,
        n: u64,
        now: Duration,
        record: Option<&Exemplar>,
    ) {
        let counted = lock(&self.shared.workloads).touch(workload, now);
        let labels = [&*counted.namespace, &counted.kind, &counted.name];
        let kills = &self.shared.oom.workload_kills;
        kills.with_label_values(&labels).inc_by(n);
        if let Some(record) = record {
            self.shared.exemplars.keep(kills, &labels, record);
        }
    }

    /// Beyond [`MAX_WORKLOADS`] pods nobody waits any longer.
    fn await_workload(&self, uid: &PodUid, n: u64, now: Duration) {
        let mut awaited = lock(&self.shared.awaited_workloads);
        if let Some(of_pod) = awaited.get_mut(&*uid.0) {
            of_pod.n += n;
        } else if awaited.len() < MAX_WORKLOADS {
            awaited.insert(uid.0.as_str().into(), Awaited { n, since: now });
        } else {
            drop(awaited);
            self.count_workload(&other_workloads(), n, now, None);
        }
    }

    /// Counts the kills of pods whose workload is known by now. Where nobody has told it for [`WORKLOAD_AWAITED`],
    /// a pod that is `named` is its own, and any other is one of the others. `now` is boottime.
    pub fn count_workloads(
        &self,
        known: impl Fn(&str) -> Option<Arc<Workload>>,
        named: impl Fn(&str) -> Option<Workload>,
        now: Duration,
    ) {
        let naming = self.shared.naming.write();
        let _naming = naming.unwrap_or_else(PoisonError::into_inner);
        let mut counted: Vec<(Arc<Workload>, u64)> = Vec::new();
        lock(&self.shared.awaited_workloads).retain(|uid, it| {
            let is_over = now.saturating_sub(it.since) >= WORKLOAD_AWAITED;
            let instead = || is_over.then(|| named(uid).unwrap_or_else(other_workloads).into());
            let workload = known(uid).or_else(instead);
            let is_awaited = workload.is_none();
            counted.extend(workload.map(|workload| (workload, it.n)));
            is_awaited
        });
        for (workload, n) in counted {
            self.count_workload(&workload, n, now, None);
        }
    }

    /// Whether a container, or a pod as a whole, has series.
    pub fn knows(&self, labels: ContainerLabels<'_>) -> bool {
        lock(&self.shared.pods).knows(labels)
    }

    /// Kills that were counted in a pod, by the name of the container or, without one, its id; empty: in none.
    pub fn oom_kills_by_container(&self, uid: &PodUid) -> BTreeMap<Box<str>, u64> {
        let kills = lock(&self.shared.kills_by_container);
        kills.get(&*uid.0).cloned().unwrap_or_default()
    }

    /// Kills that were counted in a pod and all that was and is in it, as long as [`Metrics::keep_pods`] names it.
    pub fn oom_kills_in(&self, uid: &PodUid) -> u64 {
        let kills = lock(&self.shared.kills_by_container);
        kills.get(&*uid.0).map_or(0, |it| it.values().sum())
    }

    /// Remembers of these pods alone how many kills there were. `pods`: the ids of the containers that are there, by the
    /// UID. Of those that are gone and have no name the first few are told apart, since a name may still come: a
    /// container that is started again and again has another id each time.
    pub fn keep_pods(&self, pods: &BTreeMap<&str, BTreeSet<&str>>) {
        let mut kills = lock(&self.shared.kills_by_container);
        kills.retain(|uid, _| pods.contains_key(&**uid));
        for (uid, of_pod) in kills.iter_mut() {
            let there = pods.get(&**uid);
            let is_id = |it: &str| it.len() > LONGEST_CONTAINER_NAME;
            let is_gone = |it: &str| is_id(it) && !there.is_some_and(|there| there.contains(it));
            if of_pod.keys().filter(|it| is_gone(it)).count() <= MOST_GONE {
                continue;
            }
            let mut n_gone = 0;
            of_pod.retain(|id, n| {
                let is_kept = !is_gone(id);
                n_gone += if is_kept { 0 } else { *n };
                is_kept
            });
            *of_pod.entry(GONE.into()).or_default() += n_gone;
        }
    }

    /// Counts kills by ids besides, for [`Metrics::name_kills`]. `owner`: of the cgroup of the victims.
    pub fn oom_kills_by(&self, owner: &Owner, n: u64) {
        if let Some(uid) = owner.uid() {
            self.oom_kills_by_id(uid, owner.container().map(|it| it.id.as_str()), n);
        }
    }

    /// The same by the UID of the pod and the id of the container, or its name; `None`: in none of its containers.
    pub fn oom_kills_by_id(&self, uid: &PodUid, container: Option<&str>, n: u64) {
        if self.shared.identity == Identity::NamesOrIds {
            let mut kills = lock(&self.shared.kills_by_container);
            let of_pod = kills.entry(uid.0.as_str().into()).or_default();
            *of_pod
                .entry(container.unwrap_or_default().into())
                .or_default() += n;
        }
    }

    /// Counts kills by the name of the container from now on, where `name_of` a pod's UID and an id has one: nobody
    /// remembers the ids of containers that are gone, and one that is started again and again has many.
    pub fn name_kills(&self, name_of: impl Fn(&str, &str) -> Option<String>) {
        let mut kills = lock(&self.shared.kills_by_container);
        for (uid, of_pod) in kills.iter_mut() {
            let names = of_pod.keys();
            let names = names.filter_map(|id| Some((id.clone(), name_of(uid, id)?)));
            let names: Vec<(Box<str>, String)> = names.collect();
            for (id, name) in names {
                if let Some(n) = of_pod.remove(&id) {
                    *of_pod.entry(name.into()).or_default() += n;
                }
            }
        }
    }

    /// Counts kills by what became of their forensic record.
    pub fn oom_records(&self, result: RecordResult, n: u64) {
        let family = &self.shared.oom.records;
        family.with_label_values(&[result.as_str()]).inc_by(n);
    }

    /// Counts a fork, exec or exit in a container. `now` is boottime.
    pub fn process_change(
        &self,
        labels: ContainerLabels<'_>,
        change: &ProcessChange,
        now: Duration,
    ) {
        let _counting = self.counting();
        self.touch(labels, now);
        let process = &self.shared.process;
        let family = match change {
            ProcessChange::Fork { .. } => &process.forks,
            ProcessChange::Exec => &process.execs,
            ProcessChange::Exit { status, .. } => return self.process_exit(labels, *status),
        };
        family.with_label_values(&self.values(labels)).inc();
    }

    fn process_exit(&self, labels: ContainerLabels<'_>, status: ExitStatus) {
        let labels = self.values_with(labels, ExitHow::of(status).as_str());
        self.shared.process.exits.with_label_values(&labels).inc();
    }
}

/// The record of a kill; `None`: none was made.
fn oom_record(event: &Event, detail: &OomDetail) -> Option<Exemplar> {
    detail.record_id.map(|id| Exemplar::new(id, event.time))
}
