//! What is decided and done against pressure. Families with kubelet's names have no series before
//! this agent does that duty.

use std::time::Duration;

use super::exemplars::Exemplar;
use super::labels::{self, BlockedReason, EvictionResult, EvictionSignal, EvictionStage};
use super::{Metrics, observe, set_flag, set_time};
use crate::model::eviction::Signal;
use crate::model::pod::{PodUid, QosClass};
use crate::model::status::SignalStatus;
use crate::model::time::WallTime;
use crate::units::Bytes;

/// What an eviction brought. `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionEffect {
    /// Left out for what is not counted in bytes.
    pub expected: Option<Bytes>,
    pub freed: Option<Bytes>,
    /// From the reading that crossed the threshold to the last process gone.
    pub reaction: Option<Duration>,
}

impl Metrics {
    /// What may come up is there at 0.
    pub(super) fn begin_actions(&self) {
        let families = &self.shared.eviction;
        families.returned.with_label_values::<&str>(&[]);
        for signal in EvictionSignal::all() {
            let name = signal.as_str();
            for stage in signal.stages() {
                for result in EvictionResult::ALL {
                    let labels = [name, stage.as_str(), result.as_str(), "false"];
                    families.actions.with_label_values(&labels);
                }
                if signal == EvictionSignal::STALL {
                    let done = EvictionResult::Done.as_str();
                    let labels = [name, stage.as_str(), done, "true"];
                    families.actions.with_label_values(&labels);
                }
                if matches!(stage, EvictionStage::Evict | EvictionStage::Kill) {
                    let labels = [name, stage.as_str()];
                    families.reaction.with_label_values(&labels);
                }
            }
            for class in labels::QOS_CLASSES {
                families.pods.with_label_values(&[name, class]);
            }
            if signal.is_in_bytes() {
                families.expected.with_label_values(&[name]);
                families.freed.with_label_values(&[name]);
            }
            if !signal.is_limit() {
                for reason in BlockedReason::ALL {
                    let labels = [name, reason.as_str()];
                    families.blocked.with_label_values(&labels);
                }
            }
        }
    }

    /// The agent evicts pods from now on.
    pub fn begin_eviction(&self) {
        for signal in EvictionSignal::all() {
            for family in &self.shared.eviction.kubelet_evictions {
                family.with_label_values(&[signal.as_str()]);
            }
        }
        // Others, as devices, come with the first of them.
        for resource in ["cpu", "ephemeral-storage", "memory", "pods"] {
            let family = &self.shared.eviction.kubelet_preemptions;
            family.with_label_values(&[resource]);
        }
    }

    /// Replaces what is shown of the signals.
    pub(super) fn set_signals(&self, signals: &[SignalStatus]) {
        let families = &self.shared.eviction;
        for signal in Signal::ALL {
            let status = signals.iter().find(|it| it.signal == signal);
            let name = signal.as_str();
            for (kind, is_hard) in [("hard", true), ("soft", false)] {
                let labels = [name, kind];
                match status.and_then(|it| headroom(it, is_hard)) {
                    Some(ratio) => families.headroom.with_label_values(&labels).set(ratio),
                    None => families.headroom.remove(&labels),
                }
            }
            match status.filter(|it| !it.thresholds.is_empty()) {
                Some(status) => {
                    let is_met = status.thresholds.iter().any(|it| it.is_met);
                    set_flag(&families.active, &[name], is_met);
                }
                None => families.active.remove(&[name]),
            }
            match status.and_then(|it| it.age_ms) {
                Some(age_ms) => {
                    let age = Duration::from_millis(age_ms).as_secs_f64();
                    families.signal_age.with_label_values(&[name]).set(age);
                }
                None => families.signal_age.remove(&[name]),
            }
        }
    }

    /// A step was taken, or in a dry run only decided.
    pub fn eviction_action(
        &self,
        signal: EvictionSignal,
        stage: EvictionStage,
        result: EvictionResult,
        is_dry_run: bool,
        at: WallTime,
    ) {
        let families = &self.shared.eviction;
        let [signal, stage] = [signal.as_str(), stage.as_str()];
        let dry_run = if is_dry_run { "true" } else { "false" };
        families
            .actions
            .with_label_values(&[signal, stage, result.as_str(), dry_run])
            .inc();
        if !is_dry_run && result != EvictionResult::Failed {
            set_time(&families.last, &[signal, stage], at);
        }
    }

    /// A pod is evicted. `reading_age`: of the figures that it was chosen by.
    pub fn pod_evicted(
        &self,
        pod: &PodUid,
        signal: EvictionSignal,
        qos: QosClass,
        reading_age: Option<Duration>,
        at: WallTime,
    ) {
        let families = &self.shared.eviction;
        let signal = signal.as_str();
        let record = Some(Exemplar::new(pod, at));
        let labels = [signal, labels::qos(Some(qos))];
        self.count(&families.pods, &labels, record.as_ref());
        for family in &families.kubelet_evictions {
            self.count(family, &[signal], record.as_ref());
        }
        if let Some(age) = reading_age {
            observe(&families.kubelet_stats_age, &[signal], age);
        }
    }

    /// A pod makes room for a critical one. `resource`: the first that was short.
    pub fn pod_preempted(&self, resource: &str) {
        let family = &self.shared.eviction.kubelet_preemptions;
        self.count(family, &[resource], None);
    }

    /// An evicted pod begins anew.
    pub fn pod_returned(&self) {
        self.shared
            .eviction
            .returned
            .with_label_values::<&str>(&[])
            .inc();
    }

    /// What it brought, once that is known. Promise and effect count only together, so that one can
    /// be held against the other.
    pub fn eviction_effect(
        &self,
        signal: EvictionSignal,
        stage: EvictionStage,
        effect: &EvictionEffect,
    ) {
        let families = &self.shared.eviction;
        let [signal, stage] = [signal.as_str(), stage.as_str()];
        if let Some((expected, freed)) = effect.expected.zip(effect.freed) {
            families
                .expected
                .with_label_values(&[signal])
                .inc_by(expected.0);
            families.freed.with_label_values(&[signal]).inc_by(freed.0);
        }
        if let Some(reaction) = effect.reaction {
            observe(&families.reaction, &[signal, stage], reaction);
        }
    }

    /// A threshold is met, and nobody goes.
    pub fn eviction_blocked(&self, signal: EvictionSignal, reason: BlockedReason, at: WallTime) {
        let families = &self.shared.eviction;
        let labels = [signal.as_str(), reason.as_str()];
        families.blocked.with_label_values(&labels).inc();
        set_time(&families.last_blocked, &labels, at);
    }
}

/// What is left above the nearest threshold of the kind, as a share of the capacity; `None`: there
/// is no such threshold, or something of it is not known.
fn headroom(status: &SignalStatus, is_hard: bool) -> Option<f64> {
    let of_kind = status.thresholds.iter().filter(|it| it.is_hard == is_hard);
    let nearest = of_kind.filter_map(|it| it.amount).max()?;
    let capacity = status.capacity.filter(|it| *it > 0)?;
    let left = status.available?.saturating_sub(nearest);
    Some(left as f64 / capacity as f64)
}
