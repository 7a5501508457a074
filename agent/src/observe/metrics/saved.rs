//! What is counted of OOM kills outlives the agent: taken out of the families to be saved, and put
//! back before the first event. Histograms begin anew.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::proto::Metric;

use super::families::OomFamilies;
use super::identity::{self, ContainerLabels, Identity};
use super::series::{GaugeVec, IntCounterVec, Series, SeriesVec};
use super::{Awaited, Metrics, lock, table};
use crate::model::saved_counts::{SavedCounts, SavedSeries, as_count};
use crate::model::time::WallTime;
use crate::model::workload::Workload;

fn counters(oom: &OomFamilies) -> [&IntCounterVec; 8] {
    [
        &oom.kills,
        &oom.child_kills,
        &oom.workload_kills,
        &oom.scope_kills,
        &oom.host_kills,
        &oom.attribution,
        &oom.missed,
        &oom.records,
    ]
}

fn times(oom: &OomFamilies) -> [&GaugeVec; 4] {
    [
        &oom.last_kill,
        &oom.last_child_kill,
        &oom.last_node_kill,
        &oom.last_unattributed,
    ]
}

impl Metrics {
    /// The counts of OOM kills and the times of the last of them; series at 0 are left out.
    pub fn oom_counts(&self) -> SavedCounts {
        let _counting = self.counting();
        let oom = &self.shared.oom;
        let mut saved = SavedCounts::default();
        saved.set_kills_by_container(&lock(&self.shared.kills_by_container));
        let awaited = lock(&self.shared.awaited_workloads).clone().into_iter();
        let awaited = awaited.map(|(uid, it)| (uid, it.n)).collect();
        saved.set_kills_without_workload(&awaited);
        for family in counters(oom) {
            save(family, |it| it.get_counter().get_value(), &mut saved);
        }
        for family in times(oom) {
            save(family, |it| it.get_gauge().get_value(), &mut saved);
        }
        saved
    }

    /// Puts back what [`Metrics::oom_counts`] gave, once and before anything is counted. The series
    /// of a pod that is no more end as those of one that has just gone; `now` is boottime. Series that
    /// only an id tells apart become one where ids are no labels.
    pub fn restore_oom_counts(&self, saved: &SavedCounts, now: Duration) {
        let oom = &self.shared.oom;
        let identity = self.shared.identity;
        if identity == Identity::NamesOrIds {
            *lock(&self.shared.kills_by_container) = saved.kills_by_container();
            let awaited = saved.kills_without_workload().into_iter();
            let awaited = awaited.map(|(uid, n)| (uid, Awaited { n, since: now }));
            *lock(&self.shared.awaited_workloads) = awaited.collect();
        }
        for (labels, _) in series(&oom.kills, saved, identity) {
            if let Some(labels) = ContainerLabels::of_values(&labels) {
                self.touch(labels, now);
            }
        }
        for (labels, _) in series(&oom.workload_kills, saved, identity) {
            if let [namespace, kind, name] = labels.as_slice() {
                let workload = Workload {
                    namespace: (*namespace).to_owned(),
                    kind: (*kind).to_owned(),
                    name: (*name).to_owned(),
                };
                lock(&self.shared.workloads).touch(&workload, now);
            }
        }
        for family in counters(oom) {
            for (labels, value) in series(family, saved, identity) {
                family.with_label_values(&labels).inc_by(as_count(value));
            }
        }
        for family in times(oom) {
            for (labels, value) in series(family, saved, identity) {
                let time = family.with_label_values(&labels);
                time.set(time.get().max(value));
            }
        }
    }

    /// The clock was set: by it the boot, `uptime` ago, was at `from`, and is at `to`. Times of kills since the boot are
    /// those of the clock as it goes now.
    pub fn clock_was_set(&self, from: WallTime, to: WallTime, uptime: Duration) {
        let _counting = self.counting();
        let seconds = |at: WallTime| at.since_epoch().as_secs_f64();
        let (from, to) = (seconds(from), seconds(to));
        let since_boot = from..=from + uptime.as_secs_f64();
        for family in times(&self.shared.oom) {
            let mut now = SavedCounts::default();
            save(family, |it| it.get_gauge().get_value(), &mut now);
            for (labels, at) in series(family, &now, self.shared.identity) {
                if since_boot.contains(&at) {
                    family.with_label_values(&labels).set(at - from + to);
                }
            }
        }
    }
}

/// Adds the series of a family that are not 0.
fn save(family: &impl Collector, value: impl Fn(&Metric) -> f64, saved: &mut SavedCounts) {
    for collected in family.collect() {
        let kept = collected.get_metric().iter().filter_map(|metric| {
            let value = value(metric);
            let labels = metric.get_label().iter();
            let labels = labels.filter(|it| !identity::is_left_out(it.name(), it.value()));
            let labels = labels.map(|it| (it.name().to_owned(), it.value().to_owned()));
            (value > 0.0).then(|| SavedSeries {
                labels: labels.collect(),
                value,
            })
        });
        saved.0.insert(collected.name().to_owned(), kept.collect());
    }
}

/// The saved series of a family that have its labels, in the order of [`Identity::labels`]. An id that
/// was not saved is empty.
fn series<'a, S: Series>(
    family: &SeriesVec<S>,
    saved: &'a SavedCounts,
    identity: Identity,
) -> Vec<(Vec<&'a str>, f64)> {
    let name = family.desc().fq_name.as_str();
    let defined = table().iter().find(|it| it.name == name);
    let (Some(defined), Some(series)) = (defined, saved.0.get(name)) else {
        return Vec::new();
    };
    let names = identity.labels(defined);
    let values_of = |labels: &'a BTreeMap<String, String>| -> Option<Vec<&'a str>> {
        let value_of = |name: &str| match labels.get(name) {
            Some(value) => Some(value.as_str()),
            None => identity::is_id(name).then_some(""),
        };
        names.iter().map(|it| value_of(it)).collect()
    };
    let series = series.iter();
    series
        .filter_map(|it| Some((values_of(&it.labels)?, it.value)))
        .collect()
}
