//! The buckets of a native histogram of Prometheus: each is a fixed factor wider than the one below
//! it, and only those that hold something are kept.

use std::collections::BTreeMap;

/// Buckets for each doubling of the value, as a power of two: 8, so that a quantile is off by at
/// most 4.5 %.
const SCHEMA: i32 = 3;

/// With more than this, neighbours are merged: a series costs the server by its buckets.
pub(super) const MAX_BUCKETS: usize = 100;

/// Values up to 2^-20 are counted as 0: a microsecond less than which nothing here is measured, and
/// no size in bytes.
pub(super) const ZERO_THRESHOLD: f64 = 1.0 / 1_048_576.0;

/// Upper bounds of the buckets between 0.5 and 1, that one left out: 2^(-1 + i/8).
const BOUNDS: [f64; 8] = [
    0.5,
    0.545_253_866_332_628_8,
    0.594_603_557_501_360_5,
    0.648_419_777_325_504_8,
    0.707_106_781_186_547_5,
    0.771_105_412_703_970_4,
    0.840_896_415_253_714_5,
    0.917_004_043_204_671_2,
];

/// Counts by bucket. The bucket with index `i` holds what is above `2^((i - 1) / 2^schema)` and at
/// most `2^(i / 2^schema)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NativeBuckets {
    schema: i32,
    zero: u64,
    /// By index; no more than [`MAX_BUCKETS`].
    counts: BTreeMap<i32, u64>,
}

/// Adjacent buckets, in the form of the exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Index of the first bucket, from the one after the span before; from 0 in the first span.
    pub(super) offset: i32,
    pub(super) length: u32,
}

impl Default for NativeBuckets {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            zero: 0,
            counts: BTreeMap::new(),
        }
    }
}

impl NativeBuckets {
    pub(super) fn schema(&self) -> i32 {
        self.schema
    }

    /// How many values were at most [`ZERO_THRESHOLD`].
    pub(super) fn zero(&self) -> u64 {
        self.zero
    }

    /// Counts a value, which is finite and not negative.
    pub(super) fn count(&mut self, value: f64) {
        if value <= ZERO_THRESHOLD {
            self.zero += 1;
            return;
        }
        let index = (self.schema..SCHEMA).fold(index(value), |index, _| coarser(index));
        *self.counts.entry(index).or_default() += 1;
        // Ends: a value of f64 has an exponent of 11 bits, so schema -4 has 66 buckets at most.
        while self.counts.len() > MAX_BUCKETS {
            self.schema -= 1;
            for (index, n) in std::mem::take(&mut self.counts) {
                *self.counts.entry(coarser(index)).or_default() += n;
            }
        }
    }

    /// Spans of buckets without a gap between them, and for each bucket of all of them how much
    /// more it holds than the one before.
    pub(super) fn spans(&self) -> (Vec<Span>, Vec<i64>) {
        let mut spans: Vec<Span> = Vec::new();
        let mut deltas = Vec::with_capacity(self.counts.len());
        let (mut next, mut before) = (0, 0);
        for (&index, &n) in &self.counts {
            match spans.last_mut().filter(|_| index == next) {
                Some(span) => span.length += 1,
                None => spans.push(Span {
                    offset: index - next,
                    length: 1,
                }),
            }
            next = index + 1;
            let n = i64::try_from(n).unwrap_or(i64::MAX);
            deltas.push(n - before);
            before = n;
        }
        (spans, deltas)
    }
}

/// Index of the bucket of a positive, finite, normal value in [`SCHEMA`].
fn index(value: f64) -> i32 {
    let [high, low, rest @ ..] = value.to_be_bytes();
    // Sign (0), 11 bits of exponent, 52 bits of fraction: value = fraction * 2^exponent with the
    // fraction in 0.5..1, which has the exponent field 1022.
    let exponent = i32::from(u16::from_be_bytes([high, low]) >> 4) - 1022;
    let mut fraction = [0x3f, 0xe0 | (low & 0x0f), 0, 0, 0, 0, 0, 0];
    fraction[2..].copy_from_slice(&rest);
    let fraction = f64::from_be_bytes(fraction);
    let within = (0..).zip(BOUNDS).find(|(_, bound)| fraction <= *bound);
    (exponent - 1) * (1 << SCHEMA) + within.map_or(1 << SCHEMA, |(position, _)| position)
}

/// Index in the next coarser schema, whose buckets are two of this one.
const fn coarser(index: i32) -> i32 {
    // An arithmetic shift rounds down, below 0 as well.
    (index + 1) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lower bound, not in the bucket, and upper bound, in it.
    fn bounds(schema: i32, index: i32) -> (f64, f64) {
        let width = 2_f64.powi(-schema);
        let bound = |index: i32| (f64::from(index) * width).exp2();
        (bound(index - 1), bound(index))
    }

    #[test]
    fn a_value_lies_in_its_bucket_and_a_bound_in_the_lower_one() {
        for (value, expected) in [
            (1.0, 0),
            (2.0, 8),
            (0.5, -8),
            (1.05, 1),
            (1.1, 2),
            (1024.0, 80),
        ] {
            assert_eq!(index(value), expected, "{value}");
        }
        let mut value = 1.1e-6;
        while value < 1e13 {
            let (lower, upper) = bounds(SCHEMA, index(value));
            assert!(lower < value && value <= upper, "{lower} {value} {upper}");
            value *= 1.037;
        }
        assert_eq!(index(f64::MAX), 8192);
    }

    #[test]
    fn what_is_next_to_nothing_is_counted_apart() {
        let mut buckets = NativeBuckets::default();
        for value in [0.0, f64::MIN_POSITIVE, ZERO_THRESHOLD, 2.0 * ZERO_THRESHOLD] {
            buckets.count(value);
        }
        assert_eq!(buckets.zero(), 3);
        assert_eq!(buckets.counts, BTreeMap::from([(-152, 1)]));
    }

    #[test]
    fn spans_give_every_bucket_back() {
        let mut buckets = NativeBuckets::default();
        for (value, n) in [(0.5, 3), (0.52, 1), (1.0, 2), (1.05, 7), (1e9, 1)] {
            for _ in 0..n {
                buckets.count(value);
            }
        }
        let (spans, deltas) = buckets.spans();
        assert_eq!(deltas, [3, -2, 1, 5, -6]);
        let mut read = BTreeMap::new();
        let (mut index, mut n, mut deltas) = (0, 0, deltas.into_iter());
        for span in spans {
            index += span.offset;
            for delta in deltas.by_ref().take(span.length as usize) {
                n += delta;
                read.insert(index, u64::try_from(n).expect("a count"));
                index += 1;
            }
        }
        assert_eq!(read, buckets.counts);
    }

    #[test]
    fn many_buckets_become_half_as_many_and_lose_no_count() {
        let mut buckets = NativeBuckets::default();
        let values: Vec<f64> = (0..200).map(|i| 1e-5 * 1.1_f64.powi(i)).collect();
        for value in &values {
            buckets.count(*value);
            assert!(buckets.counts.len() <= MAX_BUCKETS);
        }
        assert_eq!(buckets.schema(), 1);
        let mut expected = BTreeMap::new();
        for value in &values {
            let found = (-100..100)
                .find(|index| {
                    let (lower, upper) = bounds(1, *index);
                    lower < *value && *value <= upper
                })
                .expect("a bucket");
            *expected.entry(found).or_insert(0) += 1;
        }
        assert_eq!(buckets.counts, expected);
    }

    #[test]
    fn the_widest_range_there_is_still_fits() {
        let mut buckets = NativeBuckets::default();
        for exponent in -20..1024 {
            buckets.count(1.5 * 2_f64.powi(exponent).min(f64::MAX / 2.0));
        }
        assert!(buckets.counts.len() <= MAX_BUCKETS);
        assert!(buckets.schema() >= -4);
        assert_eq!(buckets.counts.values().sum::<u64>(), 1044);
    }
}
