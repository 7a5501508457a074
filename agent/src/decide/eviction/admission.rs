//! Which pods are let in while the node is under pressure (pkg/kubelet/eviction/eviction_manager.go, v1.36: `Admit`).

use std::collections::BTreeSet;

use super::facts::is_critical;
use crate::config::Compat;
use crate::decide::qos::qos_class;
use crate::model::eviction::NodeCondition;
use crate::model::pod::node_requirements::Taint;
use crate::model::pod::{Pod, QosClass};

/// What of a pod decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applicant {
    pub qos: QosClass,
    pub is_critical: bool,
    pub tolerates_memory_pressure: bool,
}

impl Applicant {
    /// A pod by this definition, whatever it runs by now.
    pub fn of(pod: &Pod, compat: Compat) -> Self {
        Self {
            qos: qos_class(pod),
            is_critical: is_critical(pod, compat),
            tolerates_memory_pressure: pod.tolerates(&Taint::memory_pressure()),
        }
    }
}

/// Whether the pod may run on a node with these conditions. The words for a refusal:
/// [`admission_message`](super::message::admission_message).
pub fn is_admitted(conditions: &BTreeSet<NodeCondition>, pod: Applicant) -> bool {
    if conditions.is_empty() || pod.is_critical {
        return true;
    }
    let only_memory = conditions
        .iter()
        .all(|it| *it == NodeCondition::MemoryPressure);
    only_memory && (pod.qos != QosClass::BestEffort || pod.tolerates_memory_pressure)
}
