//! What a reading of the node says of thresholds and stalls, for the status document.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::decide::eviction::threshold_quantity;
use crate::model::eviction::{NodeReading, Observation, Signal, StallTotals, Threshold};
use crate::model::pod::QosClass;
use crate::model::status::{SignalStatus, ThresholdStatus};

/// Every signal that a threshold is about or that could be read.
pub(super) fn signals(
    thresholds: &[Threshold],
    observations: &BTreeMap<Signal, Observation>,
    now: Duration,
    is_met: &dyn Fn(&Threshold) -> bool,
) -> Vec<SignalStatus> {
    let named: BTreeSet<Signal> = thresholds.iter().map(|it| it.signal).collect();
    let known = named.into_iter().chain(observations.keys().copied());
    let known: BTreeSet<Signal> = known.collect();
    known
        .into_iter()
        .map(|signal| {
            let observation = observations.get(&signal);
            let age = observation.and_then(|it| it.at);
            let age = age.map(|at| now.saturating_sub(at).as_millis());
            let of_signal = thresholds.iter().filter(|it| it.signal == signal);
            SignalStatus {
                signal,
                available: observation.map(|it| it.available),
                capacity: observation.map(|it| it.capacity),
                age_ms: age.and_then(|it| u64::try_from(it).ok()),
                thresholds: of_signal
                    .map(|it| ThresholdStatus {
                        is_hard: it.is_hard(),
                        amount: observation.map(|now| threshold_quantity(it, now).value()),
                        grace_seconds: it.grace.as_secs(),
                        is_met: is_met(it),
                    })
                    .collect(),
            }
        })
        .collect()
}

/// Less than the threshold is available. A signal that could not be read meets none.
pub(super) fn is_met(threshold: &Threshold, observations: &BTreeMap<Signal, Observation>) -> bool {
    observations.get(&threshold.signal).is_some_and(|it| {
        let wanted = threshold_quantity(threshold, it).value();
        wanted > it.available
    })
}

/// Memory stalls by scope.
pub(super) fn stalls(
    node: &NodeReading,
    classes: BTreeMap<QosClass, StallTotals>,
) -> BTreeMap<String, StallTotals> {
    let mut stalls = BTreeMap::new();
    stalls.extend(node.stall.map(|it| ("node".to_owned(), it)));
    stalls.extend(node.kubepods_stall.map(|it| ("kubepods".to_owned(), it)));
    for (class, totals) in classes {
        let scope = match class {
            QosClass::Guaranteed => "guaranteed",
            QosClass::Burstable => "burstable",
            QosClass::BestEffort => "besteffort",
        };
        stalls.insert(scope.to_owned(), totals);
    }
    stalls
}
