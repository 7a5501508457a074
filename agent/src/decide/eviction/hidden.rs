//! Soft thresholds that have no effect, since a hard one of the same signal is met no later.

use std::collections::BTreeMap;

use crate::config::KubeletConfig;
use crate::model::capacity::NodeCapacity;
use crate::model::eviction::{Amount, Signal};
use crate::model::quantity::{Format, Quantity};

/// Both as they are configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    pub signal: Signal,
    pub soft: String,
    pub hard: String,
}

/// A percentage and an amount are compared where the capacity is known; `None`: of nothing.
pub fn hidden_thresholds(kubelet: &KubeletConfig, node: Option<&NodeCapacity>) -> Vec<Hidden> {
    let hidden = |signal: Signal| {
        let text = |all: &BTreeMap<String, String>| all.get(signal.as_str()).cloned();
        let soft = text(&kubelet.eviction_soft)?;
        let hard = text(&kubelet.eviction_hard)?;
        // What cannot be read is a fault of the configuration.
        let amount = |it: &str| Amount::parse_threshold(it).ok().flatten();
        let capacity = node.and_then(|it| capacity_of(signal, it));
        is_hidden(&amount(&soft)?, &amount(&hard)?, capacity).then_some(Hidden {
            signal,
            soft,
            hard,
        })
    };
    Signal::ALL.into_iter().filter_map(hidden).collect()
}

/// Whether no less has to be missing for the soft one than for the hard one.
fn is_hidden(soft: &Amount, hard: &Amount, capacity: Option<Quantity>) -> bool {
    match (soft, hard) {
        (Amount::Fraction(soft), Amount::Fraction(hard)) => soft <= hard,
        (Amount::Quantity(soft), Amount::Quantity(hard)) => soft <= hard,
        (soft, hard) => capacity.is_some_and(|it| soft.of(&it) <= hard.of(&it)),
    }
}

/// Those of other filesystems are not known before they are found.
fn capacity_of(signal: Signal, node: &NodeCapacity) -> Option<Quantity> {
    match signal {
        Signal::MemoryAvailable => Some(Quantity::from_bytes(node.memory.0)),
        Signal::NodeFsAvailable => node.ephemeral_storage.map(|it| Quantity::from_bytes(it.0)),
        Signal::PidAvailable => {
            let pids = i64::try_from(node.pids?).ok()?;
            Some(Quantity::from_units(pids, Format::DecimalSi))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::units::Bytes;

    /// A node of 10 GiB; names of what is hidden.
    fn hidden(hard: &str, soft: &str, knows_node: bool) -> Vec<&'static str> {
        let signals = soft.split(", ").filter_map(|it| it.split_once(':'));
        let graces: Vec<String> = signals.map(|(name, _)| format!("{name}: 1m")).collect();
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             kubelet: {{evictionHard: {{{hard}}}, evictionSoft: {{{soft}}}, \
             evictionSoftGracePeriod: {{{}}}}}\n",
            graces.join(", ")
        );
        let config = Config::from_yaml(&text, None, &[])
            .expect("no faults")
            .config;
        let node = NodeCapacity {
            n_cpus: 1,
            memory: Bytes(10 << 30),
            swap: None,
            hugepages: Default::default(),
            held_hugepages: Bytes(0),
            pids: Some(1000),
            ephemeral_storage: None,
        };
        let found = hidden_thresholds(&config.kubelet, knows_node.then_some(&node));
        found.iter().map(|it| it.signal.as_str()).collect()
    }

    #[test]
    fn a_soft_threshold_is_hidden_by_a_hard_one_that_is_met_no_later() {
        let memory = ["memory.available"];
        for (hard, soft, right) in [
            (
                "memory.available: 100Mi",
                "memory.available: 200Mi",
                &[][..],
            ),
            (
                "memory.available: 100Mi",
                "memory.available: 100Mi",
                &memory,
            ),
            (
                "memory.available: 100Mi",
                "memory.available: 104857600",
                &memory,
            ),
            ("memory.available: 100Mi", "memory.available: 50Mi", &memory),
            ("memory.available: 5%", "memory.available: 4%", &memory),
            ("memory.available: 5%", "memory.available: 6%", &[]),
            ("memory.available: 0%", "memory.available: 1Mi", &[]),
            ("nodefs.available: 5%", "memory.available: 1Mi", &[]),
            // Of no known capacity.
            ("nodefs.available: 5%", "nodefs.available: 1Mi", &[]),
            (
                "memory.available: 1Gi, pid.available: 20%",
                "memory.available: 512Mi, pid.available: 10%",
                &["memory.available", "pid.available"],
            ),
        ] {
            assert_eq!(hidden(hard, soft, true), right, "{hard}, {soft}");
            assert_eq!(hidden(hard, soft, false), right, "{hard}, {soft}");
        }
    }

    #[test]
    fn a_percentage_is_compared_by_the_capacity() {
        for (hard, soft, right) in [
            (
                "memory.available: 10%",
                "memory.available: 1Gi",
                &["memory.available"][..],
            ),
            ("memory.available: 10%", "memory.available: 1025Mi", &[]),
            (
                "pid.available: 100",
                "pid.available: 10%",
                &["pid.available"],
            ),
            ("pid.available: 99", "pid.available: 10%", &[]),
        ] {
            assert_eq!(hidden(hard, soft, true), right, "{hard}, {soft}");
            assert_eq!(hidden(hard, soft, false), [""; 0], "{hard}, {soft}");
        }
    }
}
