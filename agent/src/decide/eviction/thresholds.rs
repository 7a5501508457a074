//! Thresholds from the texts of KubeletConfiguration, in kubelet's order of checks, and those that
//! follow from others (spec eviction 1.2 to 1.5). Pinned by suite `eviction_thresholds`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::layout::FsLayout;
use crate::config::{Enforcement, KubeletConfig};
use crate::model::eviction::{Amount, AmountError, Signal, Threshold, UnknownSignal};

/// The fields of KubeletConfiguration that thresholds are made from.
#[derive(Clone, Copy, Debug)]
pub struct ThresholdTexts<'a> {
    pub hard: &'a BTreeMap<String, String>,
    pub soft: &'a BTreeMap<String, String>,
    pub soft_grace: &'a BTreeMap<String, Duration>,
    pub min_reclaim: &'a BTreeMap<String, String>,
    /// `enforceNodeAllocatable` has `pods`: kubepods is limited, and can run short by itself.
    pub enforces_pods: bool,
}

/// Why thresholds cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    #[error("{field}")]
    Signal {
        field: &'static str,
        source: UnknownSignal,
    },
    #[error("{signal}")]
    Amount { signal: Signal, source: AmountError },
    #[error("evictionSoft: {signal} has no entry in evictionSoftGracePeriod")]
    NoGrace { signal: Signal },
}

/// What [`derive_containerfs`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Derived {
    /// So many thresholds at the front were there before; the others were added.
    pub n_before: usize,
    /// Signals of the containers' file system that the configuration should leave alone: what it
    /// says of them was replaced, or stands in kubelet's way.
    pub conflicts: BTreeSet<Signal>,
}

impl<'a> From<&'a KubeletConfig> for ThresholdTexts<'a> {
    fn from(config: &'a KubeletConfig) -> Self {
        Self {
            hard: &config.eviction_hard,
            soft: &config.eviction_soft,
            soft_grace: &config.eviction_soft_grace_period,
            min_reclaim: &config.eviction_minimum_reclaim,
            enforces_pods: config.enforce_node_allocatable.contains(&Enforcement::Pods),
        }
    }
}

/// The thresholds of a configuration, hard ones first, then soft ones, then those of kubepods.
pub fn thresholds(texts: &ThresholdTexts<'_>) -> Result<Vec<Threshold>, ThresholdError> {
    let hard = amounts(texts.hard, "evictionHard")?;
    let soft = amounts(texts.soft, "evictionSoft")?;
    let graces = by_signal(texts.soft_grace, "evictionSoftGracePeriod")?;
    let mut reclaim = BTreeMap::new();
    for (signal, text) in by_signal(texts.min_reclaim, "evictionMinimumReclaim")? {
        let amount = Amount::parse_reclaim(text);
        let amount = amount.map_err(|source| ThresholdError::Amount { signal, source })?;
        reclaim.insert(signal, amount);
    }
    let threshold = |(signal, amount), grace| Threshold {
        signal,
        amount,
        grace,
        min_reclaim: reclaim.get(&signal).cloned(),
    };
    let mut all: Vec<Threshold> = hard
        .into_iter()
        .map(|it| threshold(it, Duration::ZERO))
        .collect();
    for (signal, amount) in soft {
        let grace = graces.get(&signal);
        let grace = **grace.ok_or(ThresholdError::NoGrace { signal })?;
        all.push(threshold((signal, amount), grace));
    }
    if texts.enforces_pods {
        let is_copied = |it: &&Threshold| it.signal == Signal::MemoryAvailable && it.is_hard();
        let copies: Vec<Threshold> = all
            .iter()
            .filter(is_copied)
            .map(|it| Threshold {
                signal: Signal::AllocatableMemoryAvailable,
                ..it.clone()
            })
            .collect();
        all.extend(copies);
    }
    Ok(all)
}

/// The amount of one threshold; `None` where the text switches it off.
pub fn threshold_amount(signal: Signal, text: &str) -> Result<Option<Amount>, ThresholdError> {
    Amount::parse_threshold(text).map_err(|source| ThresholdError::Amount { signal, source })
}

/// Replaces the thresholds of the containers' file system by those of the file system it is on.
pub fn derive_containerfs(thresholds: &mut Vec<Threshold>, layout: FsLayout) -> Derived {
    let mut derived = Derived::default();
    let mut added = Vec::new();
    let [bytes, inodes] = match layout {
        FsLayout::One | FsLayout::Split => [Signal::NodeFsAvailable, Signal::NodeFsInodesFree],
        FsLayout::ImageFs => [Signal::ImageFsAvailable, Signal::ImageFsInodesFree],
        FsLayout::ContainerFs => {
            derived.n_before = thresholds.len();
            let of_containers = [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree];
            let signals = thresholds.iter().map(|it| it.signal);
            derived.conflicts = signals.filter(|it| of_containers.contains(it)).collect();
            return derived;
        }
    };
    for (target, source) in [
        (Signal::ContainerFsAvailable, bytes),
        (Signal::ContainerFsInodesFree, inodes),
    ] {
        for is_hard in [true, false] {
            let last = |signal| {
                thresholds
                    .iter()
                    .rposition(|it| it.signal == signal && it.is_hard() == is_hard)
            };
            let copy = last(source).map(|at| Threshold {
                signal: target,
                ..thresholds[at].clone()
            });
            match (last(target), copy) {
                (Some(at), Some(copy)) => {
                    thresholds[at] = copy;
                    derived.conflicts.insert(target);
                }
                (Some(at), None) => {
                    thresholds.remove(at);
                    derived.conflicts.insert(target);
                }
                (None, copy) => added.extend(copy),
            }
        }
    }
    derived.n_before = thresholds.len();
    thresholds.extend(added);
    derived
}

fn amounts(
    texts: &BTreeMap<String, String>,
    field: &'static str,
) -> Result<Vec<(Signal, Amount)>, ThresholdError> {
    let mut amounts = Vec::new();
    for (signal, text) in by_signal(texts, field)? {
        amounts.extend(threshold_amount(signal, text)?.map(|it| (signal, it)));
    }
    Ok(amounts)
}

fn by_signal<'a, T>(
    texts: &'a BTreeMap<String, T>,
    field: &'static str,
) -> Result<BTreeMap<Signal, &'a T>, ThresholdError> {
    texts
        .iter()
        .map(|(name, it)| match name.parse() {
            Ok(signal) => Ok((signal, it)),
            Err(source) => Err(ThresholdError::Signal { field, source }),
        })
        .collect()
}
