//! What is written to cgroups, and what differed there.

use std::collections::BTreeMap;
use std::time::Duration;

use super::labels::{self, CgroupLevel, CgroupOp, DriftCause, LagKind, WriteResult};
use super::{Metrics, observe, set_count, set_or_leave_out, set_time};
use crate::model::time::WallTime;

impl Metrics {
    /// Counts `n` values of the interface file `file`; names that are not on the closed list count
    /// as `other`. What else may come up of a file is there at 0 from then on.
    pub fn cgroup_writes(&self, file: &str, result: WriteResult, n: u64) {
        let file = labels::file(file);
        let reconcile = &self.shared.reconcile;
        for it in WriteResult::ALL {
            let labels = [file, it.as_str()];
            reconcile.cgroup_writes.with_label_values(&labels);
        }
        for cause in DriftCause::ALL {
            let labels = [file, cause.as_str()];
            reconcile.drift.with_label_values(&labels);
        }
        reconcile.yields.with_label_values(&[file]);
        let labels = [file, result.as_str()];
        reconcile.cgroup_writes.with_label_values(&labels).inc_by(n);
    }

    pub fn cgroup_op(&self, op: CgroupOp, duration: Duration) {
        let family = &self.shared.reconcile.cgroup_op_duration;
        observe(family, &[op.as_str()], duration);
    }

    pub fn drift(&self, file: &str, cause: DriftCause) {
        let labels = [labels::file(file), cause.as_str()];
        self.shared.reconcile.drift.with_label_values(&labels).inc();
    }

    /// Replaces all counts by those of the last pass: file name to values that still differ.
    pub fn set_drift_unresolved<'a>(&self, files: impl IntoIterator<Item = (&'a str, u64)>) {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (file, n) in files {
            *counts.entry(labels::file(file)).or_default() += n;
        }
        let family = &self.shared.reconcile.drift_unresolved;
        family.reset();
        for (file, n) in counts {
            set_count(family, &[file], n);
        }
    }

    /// A file is left to another program that keeps writing it.
    pub fn yielded(&self, file: &str, at: WallTime) {
        let labels = [labels::file(file)];
        let reconcile = &self.shared.reconcile;
        reconcile.yields.with_label_values(&labels).inc();
        set_time(&reconcile.last_yield, &labels, at);
    }

    pub fn reconcile_lag(&self, kind: LagKind, lag: Duration) {
        observe(&self.shared.reconcile.lag, &[kind.as_str()], lag);
    }

    pub fn set_cgroups(&self, level: CgroupLevel, n: usize) {
        set_count(&self.shared.reconcile.cgroups, &[level.as_str()], n as u64);
    }

    /// `None`: the kernel does not tell (cgroup v1).
    pub fn set_cgroups_dying(&self, n: Option<u64>) {
        set_or_leave_out(&self.shared.reconcile.cgroups_dying, &[], n);
    }

    /// Pod cgroups of others.
    pub fn set_unknown_cgroups(&self, n: usize) {
        let family = &self.shared.reconcile.unknown_cgroups;
        set_or_leave_out(family, &[], Some(n as u64));
    }

    /// First processes that have left the cgroups of their containers.
    pub fn set_escaped_containers(&self, n: usize) {
        let family = &self.shared.reconcile.escaped_containers;
        set_or_leave_out(family, &[], Some(n as u64));
    }
}
