//! The newest record behind a series of a counter: what leads from a rising count to `ballast
//! explain` and to the record of an OOM kill.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Mutex;

use prometheus::core::Desc;
use prometheus::proto::LabelPair;

use super::series::IntCounterVec;
use super::{identity, lock};
use crate::model::time::WallTime;

/// The label that names the record.
pub(super) const RECORD_ID: &str = "record_id";

/// Characters that the labels of an exemplar may have, name and value together (OpenMetrics 1.0).
const MAX_CHARACTERS: usize = 128;

/// One record that a counter has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exemplar {
    /// Number of an OOM record, or the uid of the pod that was evicted or refused.
    pub(super) record_id: String,
    /// When it was counted.
    pub(super) at: WallTime,
}

impl Exemplar {
    pub(super) fn new(record_id: impl Display, at: WallTime) -> Self {
        Self {
            record_id: record_id.to_string(),
            at,
        }
    }
}

/// The labels of a series, by name.
type Labels = BTreeMap<String, String>;

/// By family and series. A series that ends takes its exemplar along.
#[derive(Default)]
pub(super) struct Exemplars(Mutex<BTreeMap<String, BTreeMap<Labels, Exemplar>>>);

/// Exemplars as they were at one moment.
pub(super) struct Snapshot(BTreeMap<String, BTreeMap<Labels, Exemplar>>);

impl Exemplars {
    /// Takes the place of what the series had. `values`: of the labels, in the order of the table.
    /// Does nothing with one that is longer than formats allow: a pod may have any uid.
    pub(super) fn keep(&self, family: &IntCounterVec, values: &[&str], exemplar: &Exemplar) {
        if RECORD_ID.len() + exemplar.record_id.chars().count() > MAX_CHARACTERS {
            return;
        }
        let desc = family.desc();
        let mut kept = lock(&self.0);
        let series = kept.entry(desc.fq_name.clone()).or_default();
        series.insert(labels(desc, values), exemplar.clone());
    }

    /// The series has ended.
    pub(super) fn forget(&self, family: &IntCounterVec, values: &[&str]) {
        let desc = family.desc();
        if let Some(series) = lock(&self.0).get_mut(&desc.fq_name) {
            series.remove(&labels(desc, values));
        }
    }

    /// The series goes on under other labels. Of two the newer one stays.
    pub(super) fn rename(&self, family: &IntCounterVec, old: &[&str], new: &[&str]) {
        let desc = family.desc();
        let mut kept = lock(&self.0);
        let Some(series) = kept.get_mut(&desc.fq_name) else {
            return;
        };
        let Some(exemplar) = series.remove(&labels(desc, old)) else {
            return;
        };
        let of_new = series.entry(labels(desc, new));
        let kept = of_new.or_insert_with(|| exemplar.clone());
        if kept.at < exemplar.at {
            *kept = exemplar;
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot(lock(&self.0).clone())
    }
}

impl Snapshot {
    /// Of a series of the family.
    pub(super) fn of(&self, family: &str, series: &[LabelPair]) -> Option<&Exemplar> {
        let of_family = self.0.get(family).filter(|it| !it.is_empty())?;
        let pairs = series.iter();
        let labels = pairs.map(|it| (it.name().to_owned(), it.value().to_owned()));
        of_family.get(&labels.collect::<Labels>())
    }
}

/// As pages show them.
fn labels(desc: &Desc, values: &[&str]) -> Labels {
    let labels = desc.variable_labels.iter().zip(values);
    let shown = labels.filter(|(label, value)| !identity::is_left_out(label, value));
    shown
        .map(|(label, value)| (label.clone(), (*value).to_owned()))
        .collect()
}
