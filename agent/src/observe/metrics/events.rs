//! What the kernel's events say: OOM kills, and processes that begin and end.

use std::time::Duration;

use super::exemplars::Exemplar;
use super::labels::{self, ExitHow, HostSlice, MissedCause, RecordResult};
use super::lifetime::Workload;
use super::{Metrics, lock, observe, set_time};
use crate::model::event::{AttributionMethod, ExitStatus, ProcessChange};
use crate::model::record::{Event, OomDetail, OomScope};

impl Metrics {
    /// Counts one kill. `workload`: the controller of the pod; `None` counts the pod itself.
    ///
    /// A victim that was exiting already counts for attribution and latency only, as in the
    /// kernel's own counters.
    pub fn oom_kill(&self, event: &Event, detail: &OomDetail, workload: Option<&Workload>) {
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
        if !matches!(detail.scope, OomScope::Container | OomScope::Pod) {
            set_time(&oom.last_node_kill, &[scope], event.time);
        }
        oom.victim_bytes
            .with_label_values(&[qos])
            .observe(detail.victim.memory.anon_bytes as f64);
        match (&event.pod, detail.victim.unknown_cgroup_id) {
            (Some(_), _) => self.oom_kill_in_pod(event, detail, workload),
            // Of a pod, though nobody knows of which.
            (None, Some(_)) => {
                self.count(&oom.kills, &["", "", ""], record.as_ref());
                set_time(&oom.last_unattributed, &[], event.time);
            }
            (None, None) => {
                let slice = HostSlice::of_path(detail.victim.cgroup_path.as_deref());
                self.count(&oom.host_kills, &[slice.as_str()], record.as_ref());
            }
        }
    }

    fn oom_kill_in_pod(&self, event: &Event, detail: &OomDetail, workload: Option<&Workload>) {
        let Some(pod) = &event.pod else { return };
        let oom = &self.shared.oom;
        let now = Duration::from_nanos(event.boottime_ns);
        let container = event.container.as_deref().unwrap_or_default();
        let labels = [pod.namespace.as_str(), &pod.name, container];
        self.touch(&pod.namespace, &pod.name, container, now);
        let record = oom_record(event, detail);
        self.count(&oom.kills, &labels, record.as_ref());
        set_time(&oom.last_kill, &labels, event.time);
        if detail.victim.is_main_process == Some(false) {
            self.count(&oom.child_kills, &labels, record.as_ref());
            set_time(&oom.last_child_kill, &labels, event.time);
        }
        let workload = workload.cloned();
        let workload = workload.unwrap_or_else(|| Workload::of_pod(pod));
        let counted = lock(&self.shared.workloads).touch(&workload, now);
        let labels = [&*counted.namespace, &counted.kind, &counted.name];
        self.count(&oom.workload_kills, &labels, record.as_ref());
    }

    /// Counts `n` kills of which no more is known than where they were. They have no forensic record.
    pub fn oom_kills_missed(&self, event: &Event, n: u64, cause: MissedCause) {
        let oom = &self.shared.oom;
        oom.missed.with_label_values(&[cause.as_str()]).inc_by(n);
        self.oom_records(RecordResult::Dropped, n);
        let Some(pod) = &event.pod else { return };
        let now = Duration::from_nanos(event.boottime_ns);
        let container = event.container.as_deref().unwrap_or_default();
        let labels = [pod.namespace.as_str(), &pod.name, container];
        self.touch(&pod.namespace, &pod.name, container, now);
        oom.kills.with_label_values(&labels).inc_by(n);
        set_time(&oom.last_kill, &labels, event.time);
        let workload = Workload::of_pod(pod);
        let counted = lock(&self.shared.workloads).touch(&workload, now);
        let labels = [&*counted.namespace, &counted.kind, &counted.name];
        oom.workload_kills.with_label_values(&labels).inc_by(n);
    }

    /// Counts kills by what became of their forensic record.
    pub fn oom_records(&self, result: RecordResult, n: u64) {
        let family = &self.shared.oom.records;
        family.with_label_values(&[result.as_str()]).inc_by(n);
    }

    /// Counts a fork, exec or exit in a container. `now` is boottime.
    pub fn process_change(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        change: &ProcessChange,
        now: Duration,
    ) {
        self.touch(namespace, pod, container, now);
        let labels = [namespace, pod, container];
        let process = &self.shared.process;
        match change {
            ProcessChange::Fork { .. } => process.forks.with_label_values(&labels).inc(),
            ProcessChange::Exec => process.execs.with_label_values(&labels).inc(),
            ProcessChange::Exit { status, .. } => {
                self.process_exit(labels, *status);
            }
        }
    }

    fn process_exit(&self, [namespace, pod, container]: [&str; 3], status: ExitStatus) {
        let how = ExitHow::of(status).as_str();
        let labels = [namespace, pod, container, how];
        self.shared.process.exits.with_label_values(&labels).inc();
    }
}

/// The record of a kill; `None`: none was made.
fn oom_record(event: &Event, detail: &OomDetail) -> Option<Exemplar> {
    detail.record_id.map(|id| Exemplar::new(id, event.time))
}
