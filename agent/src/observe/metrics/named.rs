//! Series of pods and containers whose names came late: what was counted under an id goes on under the name.
//!
//! Invariant: what was counted is under one of both at any time, so a sum over all series neither falls nor counts
//! anything twice.

use std::sync::PoisonError;
use std::time::Duration;

use prometheus::core::{Atomic, Number};

use super::identity::{ContainerKey, ContainerLabels};
use super::labels::{CpuStallCause, ExitHow};
use super::series::{Counter, GaugeVec, Scalar, SeriesVec};
use super::{LimitHits, Metrics, lock};
use crate::model::record::PodRef;

/// Who has series under an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed(ContainerKey);

impl Unnamed {
    /// `None`: the pod has a name, which [`Unnamed::pod`] gives.
    pub fn pod_uid(&self) -> Option<&str> {
        let uid = self.0.labels().pod_uid();
        (!uid.is_empty()).then_some(uid)
    }

    /// Namespace and name; empty where only the UID is known.
    pub fn pod(&self) -> [&str; 2] {
        let labels = self.0.labels();
        [labels.namespace(), labels.pod()]
    }

    /// `None`: it is of the pod as a whole.
    pub fn container_id(&self) -> Option<&str> {
        let id = self.0.labels().container_id();
        (!id.is_empty()).then_some(id)
    }
}

impl Metrics {
    /// Who has series under an id now.
    pub fn unnamed(&self) -> Vec<Unnamed> {
        let unnamed = lock(&self.shared.pods).unnamed();
        unnamed.into_iter().map(Unnamed).collect()
    }

    /// Gives the series of `of` to the container `name` of `pod`, or to the pod as a whole where that is empty.
    /// `id`: of a container whose name is not known. `now` is boottime.
    pub fn name(&self, of: &Unnamed, pod: &PodRef, [name, id]: [&str; 2], now: Duration) {
        let naming = self.shared.naming.write();
        let _naming = naming.unwrap_or_else(PoisonError::into_inner);
        let (from, to) = (of.0.labels(), ContainerLabels::new(pod, name, id));
        if from == to {
            return;
        }
        self.touch(to, now);
        self.move_events(from, to);
        self.move_readings(&of.0, &to.to_key());
        self.end_container(&of.0);
        lock(&self.shared.pods).end(from);
    }

    /// What the kernel told.
    fn move_events(&self, from: ContainerLabels<'_>, to: ContainerLabels<'_>) {
        let (old, new) = (self.values(from), self.values(to));
        let (oom, process) = (&self.shared.oom, &self.shared.process);
        for family in [&oom.kills, &oom.child_kills, &process.forks, &process.execs] {
            move_count(family, &old, &new);
            self.shared.exemplars.rename(family, &old, &new);
        }
        for how in ExitHow::ALL {
            let old = self.values_with(from, how.as_str());
            let new = self.values_with(to, how.as_str());
            move_count(&process.exits, &old, &new);
        }
        move_time(&oom.last_kill, &old, &new);
        move_time(&oom.last_child_kill, &old, &new);
    }

    /// What sweeps read of counters that the kernel keeps.
    fn move_readings(&self, from: &ContainerKey, to: &ContainerKey) {
        let (of, whose) = (from.labels(), to.labels());
        let (old, new) = (self.values(of), self.values(whose));
        let (oom, process) = (&self.shared.oom, &self.shared.process);
        move_count(&oom.group_kills, &old, &new);
        move_count(&process.limit_hits, &old, &new);
        for cause in CpuStallCause::ALL {
            let old = self.values_with(of, cause.as_str());
            let new = self.values_with(whose, cause.as_str());
            move_count(&self.shared.cpu.stall, &old, &new);
        }
        for limit in LimitHits::NAMES {
            let (old, new) = (self.values_with(of, limit), self.values_with(whose, limit));
            move_count(&self.shared.memory.limit_hits, &old, &new);
        }
        if whose.has_container() {
            lock(&self.shared.stats).rename(from, to);
            lock(&self.shared.memory_hits).rename(from, to);
        }
    }
}

/// A series that is not there stays so.
fn move_count<P: Atomic>(family: &SeriesVec<Scalar<P, Counter>>, old: &[&str], new: &[&str]) {
    let counter = family.with_label_values(old);
    let n = counter.get();
    family.remove(old);
    if n.into_f64() > 0.0 {
        family.with_label_values(new).inc_by(n);
    }
}

fn move_time(family: &GaugeVec, old: &[&str], new: &[&str]) {
    let time = family.with_label_values(old).get();
    family.remove(old);
    if time > 0.0 {
        let newest = family.with_label_values(new);
        newest.set(newest.get().max(time));
    }
}
