//! `featureGates` of Kubernetes 1.36, those that decisions here depend on.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fault::{Faults, FieldPath};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    CpuManagerPolicyAlphaOptions,
    CpuManagerPolicyBetaOptions,
    DisableCpuQuotaWithExclusiveCpus,
    PodLevelResourceManagers,
    CustomCpuCfsQuotaPeriod,
    CrashLoopBackOffMax,
    MemoryQos,
    PodLevelResources,
    QosReserved,
}

/// Maturity, which gives the default: alpha is off, the others are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Stable,
    /// On for good; upstream refuses to turn it off.
    Locked,
}

/// Name, stage, and what here depends on it; a locked gate needs no dependant.
const GATES: &[(&str, Stage, Option<Gate>)] = &[
    (
        "CPUManagerPolicyAlphaOptions",
        Stage::Alpha,
        Some(Gate::CpuManagerPolicyAlphaOptions),
    ),
    (
        "CPUManagerPolicyBetaOptions",
        Stage::Beta,
        Some(Gate::CpuManagerPolicyBetaOptions),
    ),
    (
        "CustomCPUCFSQuotaPeriod",
        Stage::Stable,
        Some(Gate::CustomCpuCfsQuotaPeriod),
    ),
    (
        "DisableCPUQuotaWithExclusiveCPUs",
        Stage::Beta,
        Some(Gate::DisableCpuQuotaWithExclusiveCpus),
    ),
    ("InPlacePodVerticalScaling", Stage::Locked, None),
    ("KubeletCgroupDriverFromCRI", Stage::Locked, None),
    (
        "KubeletCrashLoopBackOffMax",
        Stage::Beta,
        Some(Gate::CrashLoopBackOffMax),
    ),
    ("MemoryQoS", Stage::Alpha, Some(Gate::MemoryQos)),
    ("NodeSwap", Stage::Locked, None),
    (
        "PodLevelResourceManagers",
        Stage::Alpha,
        Some(Gate::PodLevelResourceManagers),
    ),
    (
        "PodLevelResources",
        Stage::Beta,
        Some(Gate::PodLevelResources),
    ),
    ("QOSReserved", Stage::Alpha, Some(Gate::QosReserved)),
];

/// The gates that something depends on.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let dependants = GATES.iter().filter(|(.., gate)| gate.is_some());
    dependants.map(|(name, ..)| *name)
}

/// Leaves those of another kubelet that something here depends on: what it takes for a gate is its own matter.
pub(super) fn retain_known(gates: &mut Map<String, Value>) {
    gates.retain(|name, _| is_of_stage(name) || names().any(|it| it == name));
}

/// Whether it sets all gates of a stage.
fn is_of_stage(name: &str) -> bool {
    name == "AllAlpha" || name == "AllBeta"
}

/// The gates as configured.
pub(super) struct FeatureGates<'a>(&'a BTreeMap<String, bool>);

impl<'a> FeatureGates<'a> {
    pub(super) fn new(
        configured: &'a BTreeMap<String, bool>,
        warnings: &mut Vec<String>,
        faults: &mut Faults,
    ) -> Self {
        let mut unknown = Vec::new();
        for (name, is_on) in configured {
            match GATES.iter().find(|(known, ..)| known == name) {
                Some((_, Stage::Locked, _)) if !is_on => faults.add(
                    &FieldPath::root().field("featureGates").field(name),
                    "the feature is always on in Kubernetes 1.36; right would be true",
                ),
                Some(_) => {}
                None if is_of_stage(name) => {}
                None => unknown.push(name.as_str()),
            }
        }
        if !unknown.is_empty() {
            warnings.push(format!(
                "feature gates without effect, nothing in this build depends on them: {}",
                unknown.join(", ")
            ));
        }
        Self(configured)
    }

    /// The gate's own setting, else that of its stage, else the default.
    pub(super) fn is_on(&self, gate: Gate) -> bool {
        let entry = GATES.iter().find(|(.., it)| *it == Some(gate));
        let (name, stage, _) = entry.expect("the table has a row for each gate");
        let of_stage = match stage {
            Stage::Alpha => self.0.get("AllAlpha").copied(),
            Stage::Beta => self.0.get("AllBeta").copied(),
            Stage::Stable | Stage::Locked => None,
        };
        self.0
            .get(*name)
            .copied()
            .or(of_stage)
            .unwrap_or(*stage != Stage::Alpha)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_follows_itself_then_its_stage_then_the_default() {
        for (configured, gate, right) in [
            (&[][..], Gate::MemoryQos, false),
            (&[], Gate::PodLevelResources, true),
            (&[], Gate::CustomCpuCfsQuotaPeriod, true),
            (&[], Gate::CrashLoopBackOffMax, true),
            (&[("AllAlpha", true)], Gate::MemoryQos, true),
            (&[("AllAlpha", true)], Gate::QosReserved, true),
            (
                &[("AllAlpha", true), ("MemoryQoS", false)],
                Gate::MemoryQos,
                false,
            ),
            (&[("AllBeta", false)], Gate::PodLevelResources, false),
            (&[("AllBeta", false)], Gate::CustomCpuCfsQuotaPeriod, true),
        ] {
            let map = configured
                .iter()
                .map(|(name, on)| ((*name).to_owned(), *on))
                .collect();
            let gates = FeatureGates::new(&map, &mut Vec::new(), &mut Faults::default());
            assert_eq!(gates.is_on(gate), right, "{configured:?} {gate:?}");
        }
    }
}
