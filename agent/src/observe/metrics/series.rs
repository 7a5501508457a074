//! Families of series by the values of their labels, as the `prometheus` crate has them; its own keep the
//! name, the help and the names of the labels once more with each series, which is most of what a node with
//! many pods would spend on metrics.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus::core::{Atomic, AtomicF64, AtomicI64, AtomicU64, Collector, Desc, Number};
use prometheus::proto;

use super::table::Family;

pub(super) type IntCounterVec = SeriesVec<Scalar<AtomicU64, Counter>>;
pub(super) type CounterVec = SeriesVec<Scalar<AtomicF64, Counter>>;
pub(super) type IntGaugeVec = SeriesVec<Scalar<AtomicI64, Gauge>>;
pub(super) type GaugeVec = SeriesVec<Scalar<AtomicF64, Gauge>>;

/// Ends each value in the key of a series. One that a value has is replaced there.
const END: char = '\0';

/// A family; clones share it.
pub(super) struct SeriesVec<S> {
    shared: Arc<Shared<S>>,
}

impl<S> Clone for SeriesVec<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

struct Shared<S> {
    desc: Desc,
    new: Box<dyn Fn() -> S + Send + Sync>,
    /// By the values of the labels, in the order of the family.
    series: RwLock<BTreeMap<Box<str>, S>>,
}

/// One series; clones share it.
pub(super) trait Series: Clone + Send + Sync {
    const TYPE: proto::MetricType;

    /// As it is now.
    fn write(&self, to: &mut proto::Metric);
}

impl<S: Series> SeriesVec<S> {
    /// Of a family with these labels. `new`: a series at its beginning.
    pub(super) fn new(
        family: &Family,
        labels: &[&str],
        new: impl Fn() -> S + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        let desc = Desc::new(
            family.name.to_owned(),
            family.help.to_owned(),
            labels.iter().map(|it| (*it).to_owned()).collect(),
            HashMap::new(),
        )?;
        Ok(Self {
            shared: Arc::new(Shared {
                desc,
                new: Box::new(new),
                series: RwLock::default(),
            }),
        })
    }

    /// Name, help and labels.
    pub(super) fn desc(&self) -> &Desc {
        &self.shared.desc
    }

    /// The series with these labels, in the order of the family; begins it if there is none.
    ///
    /// # Panics
    ///
    /// With more or fewer values than the family has labels, which is a mistake in this program.
    pub(super) fn with_label_values<V: AsRef<str>>(&self, values: &[V]) -> S {
        let Shared { desc, new, series } = &*self.shared;
        assert_eq!(
            values.len(),
            desc.variable_labels.len(),
            "labels of {}",
            desc.fq_name
        );
        let key = key(values);
        let read = series.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = read.get(&*key) {
            return found.clone();
        }
        drop(read);
        let mut series = series.write().unwrap_or_else(PoisonError::into_inner);
        let series = series.entry(key.into_boxed_str()).or_insert_with(new);
        series.clone()
    }

    /// Ends a series; that it was not there is fine.
    pub(super) fn remove(&self, values: &[&str]) {
        let series = self.shared.series.write();
        let mut series = series.unwrap_or_else(PoisonError::into_inner);
        series.remove(&*key(values));
    }

    /// Ends all series.
    pub(super) fn reset(&self) {
        let series = self.shared.series.write();
        let mut series = series.unwrap_or_else(PoisonError::into_inner);
        series.clear();
    }

    /// Each series with its labels by name.
    pub(super) fn snapshot(&self) -> Vec<(Vec<(&str, String)>, S)> {
        let Shared { desc, series, .. } = &*self.shared;
        let series = series.read().unwrap_or_else(PoisonError::into_inner);
        let labelled = |key: &str, it: &S| {
            let names = desc.variable_labels.iter().map(String::as_str);
            let values = key.split_terminator(END).map(str::to_owned);
            let mut labels: Vec<_> = names.zip(values).collect();
            labels.sort_unstable();
            (labels, it.clone())
        };
        series.iter().map(|(key, it)| labelled(key, it)).collect()
    }
}

fn key<V: AsRef<str>>(values: &[V]) -> String {
    let mut key = String::with_capacity(values.iter().map(|it| it.as_ref().len() + 1).sum());
    for value in values {
        for (n, part) in value.as_ref().split(END).enumerate() {
            if n > 0 {
                key.push(char::REPLACEMENT_CHARACTER);
            }
            key.push_str(part);
        }
        key.push(END);
    }
    key
}

impl<S: Series> Collector for SeriesVec<S> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.shared.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let metrics = self.snapshot().into_iter().map(|(labels, series)| {
            let pairs = labels.into_iter().map(|(name, value)| {
                let mut pair = proto::LabelPair::default();
                pair.set_name(name.to_owned());
                pair.set_value(value);
                pair
            });
            let mut metric = proto::Metric::from_label(pairs.collect());
            series.write(&mut metric);
            metric
        });
        let mut family = proto::MetricFamily::default();
        family.set_name(self.shared.desc.fq_name.clone());
        family.set_help(self.shared.desc.help.clone());
        family.set_field_type(S::TYPE);
        family.set_metric(metrics.collect());
        vec![family]
    }
}

/// A number, of the kind [`Counter`] or [`Gauge`].
pub(super) struct Scalar<P, K> {
    value: Arc<P>,
    kind: PhantomData<K>,
}

/// It only rises.
pub(super) enum Counter {}

/// It is what it is now.
pub(super) enum Gauge {}

impl<P: Atomic, K> Scalar<P, K> {
    /// 0.
    pub(super) fn new() -> Self {
        Self {
            value: Arc::new(P::new(P::T::from_i64(0))),
            kind: PhantomData,
        }
    }

    pub(super) fn get(&self) -> P::T {
        self.value.get()
    }
}

impl<P, K> Clone for Scalar<P, K> {
    fn clone(&self) -> Self {
        Self {
            value: Arc::clone(&self.value),
            kind: PhantomData,
        }
    }
}

impl<P: Atomic> Scalar<P, Counter> {
    pub(super) fn inc(&self) {
        self.inc_by(P::T::from_i64(1));
    }

    pub(super) fn inc_by(&self, n: P::T) {
        self.value.inc_by(n);
    }
}

impl<P: Atomic> Scalar<P, Gauge> {
    pub(super) fn set(&self, value: P::T) {
        self.value.set(value);
    }
}

impl<P: Atomic> Series for Scalar<P, Counter> {
    const TYPE: proto::MetricType = proto::MetricType::COUNTER;

    fn write(&self, to: &mut proto::Metric) {
        let mut counter = proto::Counter::default();
        counter.set_value(self.get().into_f64());
        to.set_counter(counter);
    }
}

impl<P: Atomic> Series for Scalar<P, Gauge> {
    const TYPE: proto::MetricType = proto::MetricType::GAUGE;

    fn write(&self, to: &mut proto::Metric) {
        let mut gauge = proto::Gauge::default();
        gauge.set_value(self.get().into_f64());
        to.set_gauge(gauge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::table;

    fn kills() -> IntCounterVec {
        let family = table()
            .iter()
            .find(|it| it.name == "ballast_oom_kills_total");
        let family = family.expect("in the table");
        SeriesVec::new(family, family.labels, Scalar::new).expect("a valid family")
    }

    #[test]
    fn the_same_labels_are_the_same_series_until_it_is_removed() {
        let family = kills();
        for pod in ["b", "a", "b"] {
            family.with_label_values(&["", pod, "app"]).inc();
        }
        let counts = |family: &IntCounterVec| -> Vec<(String, u64)> {
            let series = family.snapshot().into_iter();
            series
                .map(|(labels, it)| (labels[2].1.clone(), it.get()))
                .collect()
        };
        assert_eq!(counts(&family), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        family.remove(&["", "b", "app"]);
        family.remove(&["", "c", "app"]);
        assert_eq!(counts(&family), [("a".to_owned(), 1)]);
        family.with_label_values(&["", "b", "app"]).inc_by(5);
        assert_eq!(counts(&family)[1].1, 5, "it begins anew");
    }

    #[test]
    fn a_value_can_be_any_text_and_is_no_other_label_s() {
        let family = kills();
        for (namespace, pod) in [("a\0b", "c"), ("a", "b\0c"), ("", "")] {
            family.with_label_values(&[namespace, pod, "ü"]).inc();
        }
        let all = family.snapshot();
        assert_eq!(all.len(), 3);
        for (labels, series) in all {
            assert_eq!((labels.len(), series.get()), (3, 1), "{labels:?}");
            assert_eq!(labels[0], ("container", "ü".to_owned()));
        }
    }

    #[test]
    fn a_family_shows_its_type_help_and_labels_by_name() {
        let family = kills();
        family.with_label_values(&["default", "web", "app"]).inc();
        let collected = family.collect().remove(0);
        assert_eq!(collected.get_field_type(), proto::MetricType::COUNTER);
        assert_eq!(collected.help(), family.desc().help);
        let metric = &collected.get_metric()[0];
        let labels = metric.get_label().iter().map(|it| it.name());
        let labels: Vec<_> = labels.collect();
        assert_eq!(labels, ["container", "namespace", "pod"]);
        assert_eq!(metric.get_counter().get_value(), 1.0);
    }
}
