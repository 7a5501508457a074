//! What the placement of pods has to show.

use std::collections::BTreeMap;
use std::time::Duration;

use super::exemplars::Exemplar;
use super::identity::ContainerKey;
use super::labels::{Boundary, MoveReason};
use super::{Metrics, lock, observe, set_count, set_or_leave_out, set_time};
use crate::model::admission::{AdmissionTally, RefusalReason};
use crate::model::numa::NumaMask;
use crate::model::pod::PodUid;
use crate::model::time::WallTime;
use crate::model::topology::NumaNodeId;

impl Metrics {
    /// The topology policy is known.
    pub fn begin_placement(&self, policy: &'static str) {
        let placement = &self.shared.placement;
        let labels = [policy, "admitted", "none"];
        placement.admissions.with_label_values(&labels);
        for reason in RefusalReason::ALL {
            let labels = [policy, "refused", reason.as_str()];
            placement.admissions.with_label_values(&labels);
        }
        placement.duration.with_label_values(&[policy]);
        placement.candidates.with_label_values(&[policy]);
        for it in MoveReason::ALL {
            placement.moves.with_label_values(&[it.as_str()]);
        }
    }

    /// One admission, decided by the topology policy. `refusal`: `None` if the pod is in. `asked`:
    /// what the managers were asked and how long it took; `None` if they were not.
    pub fn admission(
        &self,
        pod: &PodUid,
        policy: &'static str,
        refusal: Option<RefusalReason>,
        asked: Option<(&AdmissionTally, Duration)>,
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
        if let Some(refusal) = refusal {
            set_time(&placement.last_refusal, &[reason], at);
            self.kubelet_rejection(refusal);
        }
        if let Some((tally, took)) = asked {
            observe(&placement.duration, &[policy], took);
            let candidates = placement.candidates.with_label_values(&[policy]);
            candidates.observe(tally.n_steps as f64);
            self.kubelet_admission(tally, refusal.is_some(), took);
        }
    }

    /// A container that runs was given other CPUs or memory.
    pub fn container_moved(&self, reason: MoveReason) {
        let family = &self.shared.placement.moves;
        family.with_label_values(&[reason.as_str()]).inc();
    }
}

/// CPUs by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCpus {
    pub shared: usize,
    /// `None`: another program has chosen them, and which cannot be told from what it was told.
    pub reserved: Option<usize>,
    /// Of containers, and of pods as a whole.
    pub exclusive: usize,
    /// Shared and not reserved: what can still be given out. `None`: as above.
    pub free: Option<usize>,
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
    /// CPUs that containers have alone, by NUMA node.
    pub exclusive_by_node: BTreeMap<NumaNodeId, u64>,
    pub exclusive: BTreeMap<ContainerKey, u64>,
    /// Where the memory of a container is to be: as the memory manager gave it, else where its CPUs
    /// are.
    pub numa_nodes: BTreeMap<ContainerKey, NumaMask>,
    /// Containers that span more of a boundary than they need; the boundaries that the policies do
    /// not ask for are left out.
    pub misaligned: BTreeMap<Boundary, u64>,
}

impl Metrics {
    /// Replaces the gauges.
    pub fn set_placement(&self, gauges: &PlacementGauges) {
        let placement = &self.shared.placement;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let kubelet = &self.shared.kubelet;
        let pools = gauges.pools.as_ref();
        let exclusive = pools.map(|it| it.exclusive as u64);
        for family in &kubelet.exclusive_cpus {
            set_or_leave_out(family, &[], exclusive);
        }
        let free = pools.and_then(|it| it.free);
        set_or_leave_out(&kubelet.shared_pool, &[], free.map(|it| it as u64 * 1000));
        for (pool, n) in [
            ("shared", pools.map(|it| it.shared as u64)),
            (
                "reserved",
                pools.and_then(|it| it.reserved.map(|it| it as u64)),
            ),
            ("exclusive", exclusive),
        ] {
            set_or_leave_out(&placement.pool_cpus, &[pool], n);
        }
        placement.free_cpus.reset();
        for (node, n) in &gauges.free_cpus {
            let gauge = placement.free_cpus.with_label_values(&[node.to_string()]);
            gauge.set(number(*n));
        }
        kubelet.cpus_per_numa.reset();
        for (node, n) in &gauges.exclusive_by_node {
            set_count(&kubelet.cpus_per_numa, &[&node.to_string()], *n);
        }
        for boundary in Boundary::ALL {
            match gauges.misaligned.get(boundary) {
                Some(n) => set_count(&placement.misaligned, &[boundary.as_str()], *n),
                None => placement.misaligned.remove(&[boundary.as_str()]),
            }
        }
        lock(&self.shared.numa_nodes).clone_from(&gauges.numa_nodes);
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
        for (container, n) in &gauges.exclusive {
            let labels = self.values(container.labels());
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
