//! Histograms that count in two ways at once: in the classic buckets of the table, which every
//! format has, and in native buckets, which servers take from protobuf.

use std::sync::{Arc, Mutex};

use prometheus::proto;

use super::native::NativeBuckets;
use super::series::{Series, SeriesVec};
use super::{MutexGuard, lock};

/// A family of histograms; clones share it.
pub(super) type HistogramVec = SeriesVec<Histogram>;

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

impl Histogram {
    /// With these classic buckets.
    pub(super) fn new(bounds: &'static [f64]) -> Self {
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

    /// Upper bounds of the classic buckets, ascending; the one to infinity is left out.
    pub(super) fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }
}

/// For the formats without native buckets.
impl Series for Histogram {
    const TYPE: proto::MetricType = proto::MetricType::HISTOGRAM;

    fn write(&self, to: &mut proto::Metric) {
        to.set_histogram(classic(self.bounds, &self.counts()));
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
        let family = family.expect("in the table");
        let new = || Histogram::new(&[0.1, 1.0]);
        HistogramVec::new(family, family.labels, new).expect("a valid family")
    }

    #[test]
    fn each_value_is_in_one_classic_bucket_and_a_bound_in_the_lower_one() {
        let family = durations();
        let histogram = family.with_label_values(&["apply"]);
        let values = [0.05, 0.1, 0.5, 2.0, -1.0, f64::NAN, f64::INFINITY];
        for value in values {
            histogram.observe(value);
        }
        let (labels, histogram) = family.snapshot().remove(0);
        let counts = histogram.counts();
        assert_eq!(labels, [("phase", "apply".to_owned())]);
        assert_eq!(counts.classic, [4, 1, 2]);
        assert_eq!(counts.n, 7);
        assert_eq!(counts.native.zero(), 2);
        assert_eq!(
            cumulative(&[0.1, 1.0], &counts).collect::<Vec<_>>(),
            [(0.1, 4), (1.0, 5)]
        );
    }
}
