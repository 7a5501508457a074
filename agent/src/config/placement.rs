//! The fields that place pods on CPUs, NUMA nodes and devices: ranges, and relations between them, as
//! kubelet 1.36 checks them (pkg/kubelet/apis/config/validation). What depends on the machine is checked when the
//! managers are made.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::choose;
use super::checked::{as_text, from_text};
use super::fault::{Faults, FieldPath};
use super::feature_gates::{FeatureGates, Gate};
use super::raw::{RawKubelet, RawNumaReservation};
use crate::model::pod::ResourceList;
use crate::model::quantity::Quantity;
use crate::model::topology::NumaNodeId;

/// Kubelet's default; a change made by others is found by the full pass in any case.
const DEFAULT_RECONCILE_PERIOD: Duration = Duration::from_secs(10);

/// `cpuManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuManagerPolicy {
    #[default]
    None,
    Static,
}

impl CpuManagerPolicy {
    /// As kubelet's configuration and files have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Static => "static",
        }
    }
}

/// `memoryManagerPolicy`; upstream writes it with a capital.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryManagerPolicy {
    #[default]
    None,
    Static,
}

impl MemoryManagerPolicy {
    /// As kubelet's configuration and files have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Static => "Static",
        }
    }
}

/// `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyManagerPolicy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl TopologyManagerPolicy {
    /// As kubelet's configuration and files have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleNumaNode => "single-numa-node",
        }
    }
}

/// `topologyManagerScope`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyManagerScope {
    #[default]
    Container,
    Pod,
}

impl TopologyManagerScope {
    /// As kubelet's configuration and files have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }
}

/// One entry of `reservedMemory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaReservation {
    pub numa_node: NumaNodeId,
    /// `memory` and `hugepages-*`, above 0.
    pub limits: ResourceList,
}

/// See the module. The options of the policies are kept as written: which go together depends on the
/// machine and on each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementConfig {
    pub cpu_manager_policy: CpuManagerPolicy,
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    /// Between two looks at every container's CPUs, at most.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub cpu_manager_reconcile_period: Duration,
    pub memory_manager_policy: MemoryManagerPolicy,
    /// No NUMA node has two entries for one resource.
    pub reserved_memory: Vec<NumaReservation>,
    pub topology_manager_policy: TopologyManagerPolicy,
    pub topology_manager_scope: TopologyManagerScope,
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// Feature gate `CPUManagerPolicyAlphaOptions`.
    pub cpu_manager_alpha_options: bool,
    /// Feature gate `CPUManagerPolicyBetaOptions`.
    pub cpu_manager_beta_options: bool,
    /// Feature gates `PodLevelResourceManagers` and `PodLevelResources`, both.
    pub pod_level_resource_managers: bool,
    /// Feature gate `DisableCPUQuotaWithExclusiveCPUs`.
    pub lifts_quota_of_exclusive_cpus: bool,
}

pub(super) fn check(
    raw: &RawKubelet,
    gates: &FeatureGates<'_>,
    reconcile_period: impl FnOnce(&str, Option<&str>, Duration, &mut Faults) -> Duration,
    faults: &mut Faults,
) -> PlacementConfig {
    let field = |name: &str| FieldPath::root().field(name);
    let cpu_manager_policy = choose(
        raw.cpu_manager_policy.as_deref(),
        &[
            ("none", CpuManagerPolicy::None),
            ("static", CpuManagerPolicy::Static),
        ],
        &field("cpuManagerPolicy"),
        faults,
    );
    let cpu_manager_policy_options = raw.cpu_manager_policy_options.clone().unwrap_or_default();
    if cpu_manager_policy == CpuManagerPolicy::None && !cpu_manager_policy_options.is_empty() {
        faults.add(
            &field("cpuManagerPolicyOptions"),
            "are options of the policy static; right would be cpuManagerPolicy: static, or none of them",
        );
    }
    let memory_manager_policy = choose(
        raw.memory_manager_policy.as_deref(),
        &[
            ("None", MemoryManagerPolicy::None),
            ("Static", MemoryManagerPolicy::Static),
        ],
        &field("memoryManagerPolicy"),
        faults,
    );
    let topology_manager_policy = choose(
        raw.topology_manager_policy.as_deref(),
        &[
            ("none", TopologyManagerPolicy::None),
            ("best-effort", TopologyManagerPolicy::BestEffort),
            ("restricted", TopologyManagerPolicy::Restricted),
            ("single-numa-node", TopologyManagerPolicy::SingleNumaNode),
        ],
        &field("topologyManagerPolicy"),
        faults,
    );
    let topology_manager_scope = choose(
        raw.topology_manager_scope.as_deref(),
        &[
            ("container", TopologyManagerScope::Container),
            ("pod", TopologyManagerScope::Pod),
        ],
        &field("topologyManagerScope"),
        faults,
    );
    PlacementConfig {
        cpu_manager_policy,
        cpu_manager_policy_options,
        cpu_manager_reconcile_period: reconcile_period(
            "cpuManagerReconcilePeriod",
            raw.cpu_manager_reconcile_period.as_deref(),
            DEFAULT_RECONCILE_PERIOD,
            faults,
        ),
        memory_manager_policy,
        reserved_memory: reserved_memory(
            raw.reserved_memory.as_deref().unwrap_or_default(),
            &field("reservedMemory"),
            faults,
        ),
        topology_manager_policy,
        topology_manager_scope,
        topology_manager_policy_options: raw
            .topology_manager_policy_options
            .clone()
            .unwrap_or_default(),
        cpu_manager_alpha_options: gates.is_on(Gate::CpuManagerPolicyAlphaOptions),
        cpu_manager_beta_options: gates.is_on(Gate::CpuManagerPolicyBetaOptions),
        pod_level_resource_managers: gates.is_on(Gate::PodLevelResourceManagers)
            && gates.is_on(Gate::PodLevelResources),
        lifts_quota_of_exclusive_cpus: gates.is_on(Gate::DisableCpuQuotaWithExclusiveCpus),
    }
}

fn reserved_memory(
    entries: &[RawNumaReservation],
    at: &FieldPath,
    faults: &mut Faults,
) -> Vec<NumaReservation> {
    let mut seen = BTreeSet::new();
    let mut reservations = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = at.index(index);
        let Some(id) = entry.numa_node.and_then(|it| u32::try_from(it).ok()) else {
            faults.add(
                &at.field("numaNode"),
                "is not the number of a NUMA node; right would be as 0",
            );
            continue;
        };
        let mut limits = ResourceList::new();
        for (name, text) in entry.limits.iter().flatten() {
            let at = at.field("limits").field(name);
            if name != "memory" && !name.starts_with("hugepages-") {
                faults.add(
                    &at,
                    "cannot be reserved on a NUMA node; right would be memory or hugepages-SIZE",
                );
                continue;
            }
            if !seen.insert((id, name.clone())) {
                faults.add(&at, format!("is given twice for NUMA node {id}"));
            }
            let Some(amount) = faults.keep(&at, text.parse::<Quantity>()) else {
                continue;
            };
            if !amount.is_positive() {
                faults.add(&at, format!("`{text}` is not above 0"));
            }
            limits.insert(name.clone(), amount);
        }
        reservations.push(NumaReservation {
            numa_node: NumaNodeId(id),
            limits,
        });
    }
    reservations
}

/// The spellings of Go's strconv.ParseBool, in which the options of the policies are written.
pub fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
