//! What the placement of pods has to show.

use std::collections::BTreeMap;
use std::time::Duration;

use super::exemplars::Exemplar;
use super::{Metrics, set_time};
use crate::model::admission::RefusalReason;
use crate::model::pod::PodUid;
use crate::model::time::WallTime;
use crate::model::topology::NumaNodeId;

impl Metrics {
    /// One admission, decided by the topology policy. `refusal`: `None` if the pod is in.
    pub fn admission(
        &self,
        pod: &PodUid,
        policy: &'static str,
        refusal: Option<RefusalReason>,
        took: Duration,
        at: WallTime,
    ) {
        let placement = &self.shared.placement;
        let (result, reason) = match refusal {
            None => ("admitted", "none"),
            Some(reason) => ("refused", reason.as_str()),
        };
        let labels = [policy, result, reason];
        let record = refusal.map(|_| Exemplar::new(pod, at));
        self.count(&placement.admissions, &labels, record.as_ref());
        let duration = placement.duration.with_label_values(&[policy]);
        duration.observe(took.as_secs_f64());
        if refusal.is_some() {
            set_time(&placement.last_refusal, &[reason], at);
        }
    }
}

/// CPUs by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCpus {
    pub shared: usize,
    pub reserved: usize,
    pub exclusive: usize,
}

/// What placement has given out and what is left, as gauges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementGauges {
    /// `None`: CPUs are not given out (policy `none`).
    pub pools: Option<PoolCpus>,
    /// By NUMA node.
    pub free_cpus: BTreeMap<NumaNodeId, u64>,
    /// By NUMA node and kind (`memory`, `hugepages-2Mi`, ...), bytes.
    pub free_bytes: BTreeMap<(NumaNodeId, String), u64>,
    /// By namespace, pod and container.
    pub exclusive: BTreeMap<(String, String, String), u64>,
}

impl Metrics {
    /// Replaces the gauges.
    pub fn set_placement(&self, gauges: &PlacementGauges) {
        let placement = &self.shared.placement;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        if let Some(pools) = &gauges.pools {
            for (pool, n) in [
                ("shared", pools.shared),
                ("reserved", pools.reserved),
                ("exclusive", pools.exclusive),
            ] {
                let gauge = placement.pool_cpus.with_label_values(&[pool]);
                gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
            }
        }
        placement.free_cpus.reset();
        for (node, n) in &gauges.free_cpus {
            let gauge = placement.free_cpus.with_label_values(&[node.to_string()]);
            gauge.set(number(*n));
        }
        placement.free_bytes.reset();
        let mut by_kind: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for ((node, kind), n) in &gauges.free_bytes {
            let labels = [node.to_string(), kind.clone()];
            placement
                .free_bytes
                .with_label_values(&labels)
                .set(number(*n));
            by_kind.entry(kind).or_default().push(*n);
        }
        placement.exclusive_cpus.reset();
        for ((namespace, pod, container), n) in &gauges.exclusive {
            let labels = [namespace, pod, container];
            placement
                .exclusive_cpus
                .with_label_values(&labels)
                .set(number(*n));
        }
        placement.fragmentation.reset();
        by_kind.insert("cpu", gauges.free_cpus.values().copied().collect());
        for (resource, free) in by_kind {
            if let Some(ratio) = fragmentation(&free) {
                placement
                    .fragmentation
                    .with_label_values(&[resource])
                    .set(ratio);
            }
        }
    }
}

/// One less the largest share; `None` with nothing free.
#[expect(
    clippy::cast_precision_loss,
    reason = "a ratio for people: amounts above 2^53 lose their last bytes"
)]
fn fragmentation(free: &[u64]) -> Option<f64> {
    let all = free.iter().fold(0_u64, |sum, it| sum.saturating_add(*it));
    let largest = free.iter().max().copied().unwrap_or(0);
    (all > 0).then(|| 1.0 - largest as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_one_node_is_not_scattered() {
        assert_eq!(fragmentation(&[]), None);
        assert_eq!(fragmentation(&[0, 0]), None);
        assert_eq!(fragmentation(&[8, 0]), Some(0.0));
        assert_eq!(fragmentation(&[4, 4]), Some(0.5));
    }
}
