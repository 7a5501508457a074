//! Histograms that count in two ways at once: in the classic buckets of the table, which every
//! format has, and in native buckets, which servers take from protobuf.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use super::native::NativeBuckets;
use super::table::Family;
use super::{MutexGuard, lock};

/// A family of histograms; clones share it.
#[derive(Clone)]
pub(super) struct HistogramVec {
    shared: Arc<Shared>,
}

struct Shared {
    desc: Desc,
    /// Upper bounds of the classic buckets, ascending; the one to infinity is left out.
    bounds: &'static [f64],
    /// By the values of the labels.
    series: RwLock<Vec<Series>>,
}

struct Series {
    labels: Vec<String>,
    histogram: Histogram,
}

/// One series; clones share it.
#[derive(Clone)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Arc<Mutex<Counts>>,
}

/// What a histogram holds.
#[derive(Clone)]
pub(super) struct Counts {
    /// Values in each classic bucket and in none below it; the last is the one to infinity.
    pub(super) classic: Vec<u64>,
    pub(super) native: NativeBuckets,
    /// How many values, and their sum.
    pub(super) n: u64,
    pub(super) sum: f64,
}

impl HistogramVec {
    /// Of a family with these classic buckets.
    pub(super) fn new(family: &Family, bounds: &'static [f64]) -> prometheus::Result<Self> {
        let labels = family.labels.iter().map(|it| (*it).to_owned()).collect();
        let desc = Desc::new(
            family.name.to_owned(),
            family.help.to_owned(),
            labels,
            HashMap::new(),
        )?;
        Ok(Self {
            shared: Arc::new(Shared {
                desc,
                bounds,
                series: RwLock::default(),
            }),
        })
    }

    /// The series with these labels, in the order of the table; begins it if there is none.
    ///
    /// # Panics
    ///
    /// With more or fewer values than the family has labels, which is a mistake in this program.
    pub(super) fn with_label_values<V: AsRef<str>>(&self, values: &[V]) -> Histogram {
        let Shared {
            desc,
            bounds,
            series,
        } = &*self.shared;
        assert_eq!(
            values.len(),
            desc.variable_labels.len(),
            "labels of {}",
            desc.fq_name
        );
        let read = series.read().unwrap_or_else(PoisonError::into_inner);
        if let Ok(at) = find(&read, values) {
            return read[at].histogram.clone();
        }
        drop(read);
        let mut series = series.write().unwrap_or_else(PoisonError::into_inner);
        match find(&series, values) {
            Ok(at) => series[at].histogram.clone(),
            Err(at) => {
                let histogram = Histogram::new(bounds);
                let new = Series {
                    labels: values.iter().map(|it| it.as_ref().to_owned()).collect(),
                    histogram: histogram.clone(),
                };
                series.insert(at, new);
                histogram
            }
        }
    }

    /// Upper bounds of the classic buckets, the one to infinity left out.
    pub(super) fn bounds(&self) -> &'static [f64] {
        self.shared.bounds
    }

    /// Each series with its labels by name.
    pub(super) fn snapshot(&self) -> Vec<(Vec<(&str, String)>, Counts)> {
        let Shared { desc, series, .. } = &*self.shared;
        let series = series.read().unwrap_or_else(PoisonError::into_inner);
        let labelled = |it: &Series| {
            let names = desc.variable_labels.iter().map(String::as_str);
            let mut labels: Vec<_> = names.zip(it.labels.iter().cloned()).collect();
            labels.sort_unstable();
            (labels, it.histogram.counts().clone())
        };
        series.iter().map(labelled).collect()
    }
}

/// Where the series is, or where it would be.
fn find<V: AsRef<str>>(series: &[Series], values: &[V]) -> Result<usize, usize> {
    series.binary_search_by(|it| {
        let labels = it.labels.iter().map(String::as_str);
        labels.cmp(values.iter().map(AsRef::as_ref))
    })
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = Counts {
            classic: vec![0; bounds.len() + 1],
            native: NativeBuckets::default(),
            n: 0,
            sum: 0.0,
        };
        Self {
            bounds,
            counts: Arc::new(Mutex::new(counts)),
        }
    }

    /// Counts a duration or a size. What is negative or no number counts as 0, what is infinite as
    /// the largest number.
    pub(super) fn observe(&self, value: f64) {
        let value = value.clamp(0.0, f64::MAX);
        let value = if value.is_nan() { 0.0 } else { value };
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        let mut counts = self.counts();
        counts.classic[bucket] += 1;
        counts.native.count(value);
        counts.n += 1;
        counts.sum += value;
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }
}

/// For the formats without native buckets.
impl Collector for HistogramVec {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.shared.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let metrics = self.snapshot().into_iter().map(|(labels, counts)| {
            let pairs = labels.into_iter().map(|(name, value)| {
                let mut pair = proto::LabelPair::default();
                pair.set_name(name.to_owned());
                pair.set_value(value);
                pair
            });
            let mut metric = proto::Metric::from_label(pairs.collect());
            metric.set_histogram(classic(self.bounds(), &counts));
            metric
        });
        let mut family = proto::MetricFamily::default();
        family.set_name(self.shared.desc.fq_name.clone());
        family.set_help(self.shared.desc.help.clone());
        family.set_field_type(proto::MetricType::HISTOGRAM);
        family.set_metric(metrics.collect());
        vec![family]
    }
}

/// Each classic bucket but the one to infinity with its upper bound and with what it and those
/// below it hold.
pub(super) fn cumulative(
    bounds: &'static [f64],
    counts: &Counts,
) -> impl Iterator<Item = (f64, u64)> {
    let held = counts.classic.iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    });
    bounds.iter().copied().zip(held)
}

fn classic(bounds: &'static [f64], counts: &Counts) -> proto::Histogram {
    let buckets = cumulative(bounds, counts).map(|(bound, n)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(n);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(counts.n);
    histogram.set_sample_sum(counts.sum);
    histogram
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::table;

    fn durations() -> HistogramVec {
        let family = table()
            .iter()
            .find(|it| it.name == "ballast_loop_duration_seconds");
        HistogramVec::new(family.expect("in the table"), &[0.1, 1.0]).expect("a valid family")
    }

    #[test]
    fn each_value_is_in_one_classic_bucket_and_a_bound_in_the_lower_one() {
        let family = durations();
        let histogram = family.with_label_values(&["apply"]);
        let values = [0.05, 0.1, 0.5, 2.0, -1.0, f64::NAN, f64::INFINITY];
        for value in values {
            histogram.observe(value);
        }
        let (labels, counts) = family.snapshot().remove(0);
        assert_eq!(labels, [("phase", "apply".to_owned())]);
        assert_eq!(counts.classic, [4, 1, 2]);
        assert_eq!(counts.n, 7);
        assert_eq!(counts.native.zero(), 2);
        assert_eq!(
            cumulative(&[0.1, 1.0], &counts).collect::<Vec<_>>(),
            [(0.1, 4), (1.0, 5)]
        );
    }

    #[test]
    fn the_same_labels_are_the_same_series() {
        let family = durations();
        for phase in ["observe", "apply", "gather", "apply"] {
            family.with_label_values(&[phase]).observe(1.0);
        }
        let counts = family.snapshot().into_iter();
        let counts: Vec<_> = counts
            .map(|(labels, it)| (labels[0].1.clone(), it.n))
            .collect();
        let expected = [("apply", 2), ("gather", 1), ("observe", 1)];
        assert_eq!(counts, expected.map(|(phase, n)| (phase.to_owned(), n)));
    }
}
