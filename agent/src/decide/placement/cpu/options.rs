//! `cpuManagerPolicyOptions` of the static policy (pkg/kubelet/cm/cpumanager/policy_options.go, v1.36).

use std::collections::BTreeMap;
use std::fmt;

use super::take::CpuOrder;
use crate::config::go_bool;

/// Feature gates of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuGates {
    /// `CPUManagerPolicyAlphaOptions`, off by default.
    pub alpha_options: bool,
    /// `CPUManagerPolicyBetaOptions`, on by default.
    pub beta_options: bool,
}

impl Default for CpuGates {
    fn default() -> Self {
        Self {
            alpha_options: false,
            beta_options: true,
        }
    }
}

/// The options that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    pub full_pcpus_only: bool,
    pub distribute_cpus_across_numa: bool,
    pub align_by_socket: bool,
    pub distribute_cpus_across_cores: bool,
    pub strict_cpu_reservation: bool,
    pub prefer_align_cpus_by_uncorecache: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maturity {
    Alpha,
    Beta,
    Stable,
}

impl fmt::Display for Maturity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why options are refused, in kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuOptionError {
    #[error("unknown CPU Manager Policy option: {name:?}")]
    Unknown { name: String },
    #[error(
        "CPU Manager Policy {maturity}-level Options not enabled, but option {name:?} provided"
    )]
    GateOff {
        name: &'static str,
        maturity: Maturity,
    },
    #[error("bad value for option {name:?}: {value:?} is no boolean, as true or false")]
    BadValue { name: &'static str, value: String },
    #[error("static policy options {a} and {b} can not be used at the same time")]
    Incompatible { a: &'static str, b: &'static str },
}

type Field = fn(&mut CpuOptions) -> &mut bool;

const FULL_PCPUS: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const UNCORE: &str = "prefer-align-cpus-by-uncorecache";

const OPTIONS: &[(&str, Maturity, Field)] = &[
    (FULL_PCPUS, Maturity::Stable, |it| &mut it.full_pcpus_only),
    (ACROSS_NUMA, Maturity::Beta, |it| {
        &mut it.distribute_cpus_across_numa
    }),
    ("align-by-socket", Maturity::Alpha, |it| {
        &mut it.align_by_socket
    }),
    (ACROSS_CORES, Maturity::Alpha, |it| {
        &mut it.distribute_cpus_across_cores
    }),
    ("strict-cpu-reservation", Maturity::Stable, |it| {
        &mut it.strict_cpu_reservation
    }),
    (UNCORE, Maturity::Stable, |it| {
        &mut it.prefer_align_cpus_by_uncorecache
    }),
];

impl CpuOptions {
    /// Every fault at once.
    pub fn parse(
        options: &BTreeMap<String, String>,
        gates: CpuGates,
    ) -> Result<Self, Vec<CpuOptionError>> {
        let mut parsed = Self::default();
        let mut faults = Vec::new();
        for (name, value) in options {
            let Some((name, maturity, field)) = OPTIONS.iter().find(|it| it.0 == name).copied()
            else {
                faults.push(CpuOptionError::Unknown { name: name.clone() });
                continue;
            };
            let is_available = match maturity {
                Maturity::Alpha => gates.alpha_options,
                Maturity::Beta => gates.beta_options,
                Maturity::Stable => true,
            };
            if !is_available {
                faults.push(CpuOptionError::GateOff { name, maturity });
            } else if let Some(value) = go_bool(value) {
                *field(&mut parsed) = value;
            } else {
                let value = value.clone();
                faults.push(CpuOptionError::BadValue { name, value });
            }
        }
        let Self {
            full_pcpus_only: full_pcpus,
            distribute_cpus_across_numa: across_numa,
            distribute_cpus_across_cores: across_cores,
            prefer_align_cpus_by_uncorecache: uncore,
            ..
        } = parsed;
        for (are_both, a, b) in [
            (full_pcpus && across_cores, FULL_PCPUS, ACROSS_CORES),
            (across_numa && across_cores, ACROSS_NUMA, ACROSS_CORES),
            (uncore && across_cores, UNCORE, ACROSS_CORES),
            (uncore && across_numa, UNCORE, ACROSS_NUMA),
        ] {
            if are_both {
                faults.push(CpuOptionError::Incompatible { a, b });
            }
        }
        if faults.is_empty() {
            Ok(parsed)
        } else {
            Err(faults)
        }
    }

    pub(super) fn order(self) -> CpuOrder {
        if self.distribute_cpus_across_cores {
            CpuOrder::Spread
        } else {
            CpuOrder::Packed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CpuGates = CpuGates {
        alpha_options: true,
        beta_options: true,
    };

    fn parse(text: &str, gates: CpuGates) -> Result<CpuOptions, Vec<String>> {
        let options = text
            .split_whitespace()
            .map(|it| it.split_once('=').expect("name=value"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        CpuOptions::parse(&options, gates)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn booleans_are_spelled_as_go_does() {
        for (value, right) in [("1", true), ("T", true), ("True", true), ("f", false)] {
            let options = parse(&format!("full-pcpus-only={value}"), ALL);
            assert_eq!(options.map(|it| it.full_pcpus_only), Ok(right), "{value}");
        }
        for value in ["yes", "tRUE", "", "on"] {
            assert!(
                parse(&format!("full-pcpus-only={value}"), ALL).is_err(),
                "{value}"
            );
        }
    }

    #[test]
    fn every_fault_is_told() {
        let faults = parse(
            "align-by-socket=true fast=1 full-pcpus-only=maybe",
            CpuGates::default(),
        );
        let right = [
            "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
            "unknown CPU Manager Policy option: \"fast\"",
            "bad value for option \"full-pcpus-only\": \"maybe\" is no boolean, as true or false",
        ];
        assert_eq!(faults, Err(right.map(str::to_owned).to_vec()));
    }

    #[test]
    fn four_pairs_exclude_each_other() {
        let mut n_refused = 0;
        for (i, (a, ..)) in OPTIONS.iter().enumerate() {
            for (b, ..) in &OPTIONS[i + 1..] {
                n_refused += usize::from(parse(&format!("{a}=true {b}=true"), ALL).is_err());
            }
        }
        assert_eq!(n_refused, 4);
    }
}
