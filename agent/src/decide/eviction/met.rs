//! Thresholds that a node meets as it is, by a slip often: they ask for what it has not, and pods are evicted by them
//! from the start.

use std::collections::BTreeMap;

use super::capacity;
use crate::config::KubeletConfig;
use crate::model::eviction::{Amount, Observation, Signal};
use crate::model::quantity::{Format, Quantity};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    pub signal: Signal,
    /// Of KubeletConfiguration.
    pub field: &'static str,
    /// As it is configured.
    pub text: String,
    /// It asks for all that there is, or more.
    pub is_always: bool,
    pub observation: Observation,
}

/// `now`: of the node as it is. What is not known is not met.
pub fn met_thresholds(kubelet: &KubeletConfig, now: &BTreeMap<Signal, Observation>) -> Vec<Met> {
    let mut met = Vec::new();
    for (field, texts) in [
        ("evictionHard", &kubelet.eviction_hard),
        ("evictionSoft", &kubelet.eviction_soft),
    ] {
        for (signal, observation) in now {
            let Some(text) = texts.get(signal.as_str()) else {
                continue;
            };
            // What cannot be read is a fault of the configuration.
            let Ok(Some(amount)) = Amount::parse_threshold(text) else {
                continue;
            };
            let capacity = capacity(observation);
            let wanted = amount.of(&capacity);
            if wanted > Quantity::from_units(observation.available, Format::BinarySi) {
                met.push(Met {
                    signal: *signal,
                    field,
                    text: text.clone(),
                    is_always: wanted >= capacity,
                    observation: *observation,
                });
            }
        }
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_threshold_is_met_at_once_where_it_asks_for_more_than_is_available() {
        let seen = |available, capacity| Observation {
            available,
            capacity,
            at: None,
        };
        let now = BTreeMap::from([
            (Signal::MemoryAvailable, seen(9 << 30, 10 << 30)),
            (Signal::PidAvailable, seen(30_000, 32_768)),
        ]);
        let (hard, soft) = ("evictionHard", "evictionSoft");
        for (fields, right) in [
            ("evictionHard: {pid.available: 40000}", &[(hard, true)][..]),
            ("evictionHard: {pid.available: 32768}", &[(hard, true)]),
            ("evictionHard: {pid.available: 30001}", &[(hard, false)]),
            ("evictionHard: {pid.available: 30000}", &[]),
            ("evictionHard: {memory.available: 97%}", &[(hard, false)]),
            ("evictionHard: {memory.available: 90%}", &[]),
            ("evictionHard: {memory.available: 0%}", &[]),
            // Of what cannot be read.
            ("evictionHard: {nodefs.available: 99%}", &[]),
            (
                "evictionSoft: {memory.available: 11Gi}, evictionSoftGracePeriod: {memory.available: 1m}",
                &[(soft, true)],
            ),
        ] {
            let text = format!(
                "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\nkubelet: {{{fields}}}\n"
            );
            let loaded = Config::from_yaml(&text, None, &[]).expect("no faults");
            let met = met_thresholds(&loaded.config.kubelet, &now);
            let met: Vec<_> = met.iter().map(|it| (it.field, it.is_always)).collect();
            assert_eq!(met, right, "{fields}");
        }
    }
}
