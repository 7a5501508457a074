//! The last minute of usage and stalls, of the node and of each pod. Filled by whoever watches,
//! read when something happened and one asks what led up to it.
//!
//! Invariant: one bucket a second and [`BUCKETS`] of them, so 250 pods take less than 1 MiB.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::eviction::{NodeReading, PodFigures, StallTotals};
use super::pod::PodUid;

/// Seconds that are kept.
pub const BUCKETS: usize = 60;

const BUCKET: Duration = Duration::from_secs(1);

/// The node within one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSample {
    /// Of the newest reading in it, `CLOCK_BOOTTIME`.
    pub at_ns: u64,
    /// `MemAvailable`, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// The least of it that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_min: Option<u64>,
    /// Memory charged to kubepods, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubepods_usage: Option<u64>,
    /// Memory stalls of the node and of kubepods, totals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<StallTotals>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubepods_stall: Option<StallTotals>,
}

impl NodeSample {
    pub fn of(reading: &NodeReading) -> Self {
        Self {
            at_ns: nanos(reading.at),
            available: reading.memory_available,
            available_min: reading.memory_available,
            kubepods_usage: reading.kubepods.map(|it| it.usage),
            stall: reading.stall,
            kubepods_stall: reading.kubepods_stall,
        }
    }
}

/// A pod within one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSample {
    /// Of the newest reading in it, `CLOCK_BOOTTIME`.
    pub at_ns: u64,
    /// Bytes.
    pub usage: u64,
    /// The most of it that was seen.
    pub usage_max: u64,
    /// Memory stalls, totals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<StallTotals>,
}

impl PodSample {
    /// `None`: usage or its time was not read.
    pub fn of(figures: &PodFigures) -> Option<Self> {
        let usage = figures.memory?.usage;
        Some(Self {
            at_ns: nanos(figures.at?),
            usage,
            usage_max: usage,
            stall: figures.stall,
        })
    }
}

fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

trait Sample: Copy {
    fn at_ns(&self) -> u64;

    /// Takes in what came before it in the same second.
    fn merge(self, earlier: Self) -> Self;
}

impl Sample for NodeSample {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }

    fn merge(self, earlier: Self) -> Self {
        let least = [self.available_min, earlier.available_min];
        Self {
            available_min: least.into_iter().flatten().min(),
            ..self
        }
    }
}

impl Sample for PodSample {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }

    fn merge(self, earlier: Self) -> Self {
        Self {
            usage_max: self.usage_max.max(earlier.usage_max),
            ..self
        }
    }
}

/// The last [`BUCKETS`] seconds of one thing that samples tell of.
#[derive(Debug)]
struct Ring<S>(VecDeque<S>);

impl<S> Default for Ring<S> {
    fn default() -> Self {
        Self(VecDeque::with_capacity(BUCKETS))
    }
}

impl<S: Sample> Ring<S> {
    /// A sample older than the newest is left out.
    fn push(&mut self, sample: S) {
        let bucket = |it: &S| u128::from(it.at_ns()) / BUCKET.as_nanos();
        if let Some(newest) = self.0.back_mut() {
            if sample.at_ns() < newest.at_ns() {
                return;
            }
            if bucket(newest) == bucket(&sample) {
                *newest = sample.merge(*newest);
                return;
            }
        }
        if self.0.len() == BUCKETS {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// What is not newer than `now_ns` and not more than a minute older, oldest first.
    fn until(&self, now_ns: u64) -> Vec<S> {
        let span = u64::try_from(BUCKETS).unwrap_or(u64::MAX) * 1_000_000_000;
        let oldest = now_ns.saturating_sub(span);
        let samples = self.0.iter().copied();
        samples
            .filter(|it| (oldest..=now_ns).contains(&it.at_ns()))
            .collect()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct History {
    node: Ring<NodeSample>,
    pods: BTreeMap<PodUid, Ring<PodSample>>,
}

impl History {
    pub fn push_node(&mut self, sample: NodeSample) {
        self.node.push(sample);
    }

    pub fn push_pod(&mut self, pod: &PodUid, sample: PodSample) {
        match self.pods.get_mut(pod) {
            Some(ring) => ring.push(sample),
            None => self.pods.entry(pod.clone()).or_default().push(sample),
        }
    }

    /// The others are gone.
    pub fn keep(&mut self, is_there: impl Fn(&PodUid) -> bool) {
        self.pods.retain(|it, _| is_there(it));
    }

    /// The minute before `now_ns`, boottime, oldest first.
    pub fn node(&self, now_ns: u64) -> Vec<NodeSample> {
        self.node.until(now_ns)
    }

    /// The same of a pod; empty for one that was never sampled.
    pub fn pod(&self, pod: &PodUid, now_ns: u64) -> Vec<PodSample> {
        let ring = self.pods.get(pod);
        ring.map_or_else(Vec::new, |it| it.until(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn pod_sample(at_ns: u64, usage: u64) -> PodSample {
        PodSample {
            at_ns,
            usage,
            usage_max: usage,
            stall: None,
        }
    }

    #[test]
    fn a_second_keeps_its_last_reading_and_its_peak() {
        let mut history = History::default();
        let uid = PodUid("a".into());
        for (at, usage) in [(0, 5), (1, 9), (2, 7)] {
            history.push_pod(&uid, pod_sample(at, usage));
        }
        history.push_pod(&uid, pod_sample(SECOND, 3));
        history.push_pod(&uid, pod_sample(SECOND - 1, 99));
        let expected = [
            PodSample {
                usage_max: 9,
                ..pod_sample(2, 7)
            },
            pod_sample(SECOND, 3),
        ];
        assert_eq!(history.pod(&uid, SECOND), expected);
        history.keep(|it| *it != uid);
        assert_eq!(history.pod(&uid, SECOND), []);
    }

    #[test]
    fn the_least_that_was_available_is_kept() {
        let mut history = History::default();
        for (at_ns, available) in [(0, Some(50)), (1, Some(20)), (2, None), (3, Some(40))] {
            history.push_node(NodeSample {
                at_ns,
                available,
                available_min: available,
                ..NodeSample::default()
            });
        }
        let samples = history.node(3);
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0].available, Some(40));
        assert_eq!(samples[0].available_min, Some(20));
    }

    #[test]
    fn a_minute_is_kept_and_no_more() {
        let mut history = History::default();
        for second in 0..200 {
            for part in 0..10 {
                history.push_node(NodeSample {
                    at_ns: second * SECOND + part * SECOND / 10,
                    ..NodeSample::default()
                });
            }
        }
        assert_eq!(history.node(200 * SECOND).len(), BUCKETS);
        assert_eq!(history.node(139 * SECOND), [], "what came after");
        assert_eq!(
            history.node(230 * SECOND).len(),
            30,
            "old ones are left out"
        );
        assert_eq!(history.node(300 * SECOND), []);
    }

    #[test]
    fn the_pods_of_a_full_node_take_less_than_a_mebibyte() {
        let mut history = History::default();
        for pod in 0..250 {
            let uid = PodUid(format!("0c4e0000-0000-0000-0000-{pod:012}"));
            for second in 0..300 {
                history.push_pod(&uid, pod_sample(second * SECOND, second));
            }
        }
        let samples: usize = history.pods.values().map(|it| it.0.capacity()).sum();
        assert!(samples * size_of::<PodSample>() < 1 << 20, "{samples}");
    }
}
