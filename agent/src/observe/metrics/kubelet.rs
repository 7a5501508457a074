//! Families with kubelet's names that say what no family of ours says in the same way. They are
//! shown while this agent does the duty in kubelet's place, and mean what they mean there.

use std::time::Duration;

use super::labels::{KubeletCgroupOp, KubeletContainerState, KubeletContainerType};
use super::{Metrics, observe, set_count};
use crate::model::admission::{
    AdmissionTally, AlignmentBoundary, AlignmentScope, Attempts, RefusalReason,
};
use crate::units::Bytes;

/// Of a container that could not be started: the runtime says no more than that.
const START_ERROR: &str = "StartError";

impl Metrics {
    pub(super) fn begin_kubelet(&self) {
        let kubelet = &self.shared.kubelet;
        for counter in [
            &kubelet.started_pods,
            &kubelet.cpu_requests,
            &kubelet.cpu_errors,
            &kubelet.memory_requests,
            &kubelet.memory_errors,
            &kubelet.admissions,
            &kubelet.admission_errors,
        ] {
            counter.with_label_values::<&str>(&[]);
        }
        for it in KubeletContainerType::ALL {
            let kind = it.as_str();
            kubelet.started_containers.with_label_values(&[kind]);
            kubelet.start_errors.with_label_values(&[kind, START_ERROR]);
        }
        for it in RefusalReason::ALL {
            kubelet.rejections.with_label_values(&[rejection(*it)]);
        }
        for it in KubeletCgroupOp::ALL {
            kubelet.cgroup_duration.with_label_values(&[it.as_str()]);
        }
        kubelet.admission_ms.with_label_values::<&str>(&[]);
        kubelet.admission_seconds.with_label_values::<&str>(&[]);
        for scope in AlignmentScope::ALL {
            for boundary in scope.boundaries() {
                let labels = [boundary.as_str(), scope.as_str()];
                for family in kubelet.aligned.iter().chain(&kubelet.not_aligned) {
                    family.with_label_values(&labels);
                }
            }
        }
    }

    /// Once at start. `cgroup_version`: 1 or 2.
    pub fn set_kubelet_node(&self, name: &str, cgroup_version: u64) {
        let kubelet = &self.shared.kubelet;
        set_count(&kubelet.node_name, &[name], 1);
        set_count(&kubelet.cgroup_version, &[], cgroup_version);
    }

    /// Replaces the counts of what runs.
    pub fn set_running(
        &self,
        n_pods: usize,
        n_containers: impl Fn(KubeletContainerState) -> usize,
    ) {
        let kubelet = &self.shared.kubelet;
        set_count(&kubelet.running_pods, &[], n_pods as u64);
        for state in KubeletContainerState::ALL {
            let n = n_containers(*state) as u64;
            set_count(&kubelet.running_containers, &[state.as_str()], n);
        }
    }

    /// The cgroup of a pod was made.
    pub fn pod_started(&self) {
        let family = &self.shared.kubelet.started_pods;
        family.with_label_values::<&str>(&[]).inc();
    }

    /// A container is to be started.
    pub fn container_started(&self, kind: KubeletContainerType) {
        let family = &self.shared.kubelet.started_containers;
        family.with_label_values(&[kind.as_str()]).inc();
    }

    pub fn container_start_failed(&self, kind: KubeletContainerType) {
        let family = &self.shared.kubelet.start_errors;
        family
            .with_label_values(&[kind.as_str(), START_ERROR])
            .inc();
    }

    pub fn kubelet_cgroup_op(&self, op: KubeletCgroupOp, duration: Duration) {
        let family = &self.shared.kubelet.cgroup_duration;
        observe(family, &[op.as_str()], duration);
    }

    /// What all pods together are promised: `memory.min` of Guaranteed and `memory.low` of
    /// Burstable ones. `None`: nothing is promised.
    pub fn set_memory_qos(&self, amounts: Option<(Bytes, Bytes)>) {
        let kubelet = &self.shared.kubelet;
        for (family, bytes) in [
            (&kubelet.memory_min, amounts.map(|it| it.0)),
            (&kubelet.memory_low, amounts.map(|it| it.1)),
        ] {
            match bytes {
                Some(bytes) => set_count(family, &[], bytes.0),
                None => family.remove(&[]),
            }
        }
    }

    pub(super) fn kubelet_rejection(&self, reason: RefusalReason) {
        let family = &self.shared.kubelet.rejections;
        family.with_label_values(&[rejection(reason)]).inc();
    }

    /// The managers were asked.
    pub(super) fn kubelet_admission(
        &self,
        tally: &AdmissionTally,
        is_refused: bool,
        took: Duration,
    ) {
        let kubelet = &self.shared.kubelet;
        let none: [&str; 0] = [];
        kubelet.admissions.with_label_values(&none).inc();
        if is_refused {
            kubelet.admission_errors.with_label_values(&none).inc();
        }
        let milliseconds = took.as_secs_f64() * 1000.0;
        let histogram = kubelet.admission_ms.with_label_values(&none);
        histogram.observe(milliseconds);
        observe(&kubelet.admission_seconds, &[], took);
        for (requests, errors, attempts) in [
            (&kubelet.cpu_requests, &kubelet.cpu_errors, tally.cpu),
            (
                &kubelet.memory_requests,
                &kubelet.memory_errors,
                tally.memory,
            ),
        ] {
            requests.with_label_values(&none).inc_by(attempts.n);
            errors.with_label_values(&none).inc_by(attempts.n_failed);
        }
        for ((boundary, scope), attempts) in &tally.alignments {
            self.kubelet_alignment(*boundary, *scope, *attempts);
        }
    }

    fn kubelet_alignment(
        &self,
        boundary: AlignmentBoundary,
        scope: AlignmentScope,
        attempts: Attempts,
    ) {
        let kubelet = &self.shared.kubelet;
        let labels = [boundary.as_str(), scope.as_str()];
        let n_aligned = attempts.n.saturating_sub(attempts.n_failed);
        for family in &kubelet.aligned {
            family.with_label_values(&labels).inc_by(n_aligned);
        }
        for family in &kubelet.not_aligned {
            family.with_label_values(&labels).inc_by(attempts.n_failed);
        }
    }
}

/// Kubelet's label (`recordAdmissionRejection`, pkg/kubelet/kubelet.go, v1.36): names of resources that a
/// cluster can add to would make a series each, and some reasons are not on its list.
const fn rejection(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::OutOfHugepages => RefusalReason::OutOfExtendedResources.as_str(),
        RefusalReason::NodeAffinity
        | RefusalReason::NodeName
        | RefusalReason::NodePorts
        | RefusalReason::TaintToleration
        | RefusalReason::SmtAlignmentError
        | RefusalReason::EmptyPodSharedPoolError => "Other",
        other => other.as_str(),
    }
}
