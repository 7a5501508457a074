//! Thresholds from the texts of KubeletConfiguration, in kubelet's order of checks, and those that
//! follow from others (pkg/kubelet/eviction/helpers.go, v1.36: `ParseThresholdConfig`,
//! `UpdateContainerFsThresholds`). Pinned by suite `eviction_thresholds`.

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts as `signal=value`, grace after a colon; `allocatable` stands for `[pods]`.
    #[derive(Default)]
    struct Texts {
        hard: BTreeMap<String, String>,
        soft: BTreeMap<String, String>,
        soft_grace: BTreeMap<String, Duration>,
        min_reclaim: BTreeMap<String, String>,
        enforces_pods: bool,
    }

    fn texts(hard: &str, soft: &str) -> Texts {
        let pairs = |list: &str| -> Vec<(String, String)> {
            let pair = |it: &str| {
                it.split_once('=')
                    .map(|(a, b)| (a.to_owned(), b.to_owned()))
            };
            list.split_whitespace().filter_map(pair).collect()
        };
        let mut texts = Texts {
            hard: pairs(hard).into_iter().collect(),
            ..Texts::default()
        };
        for (signal, value) in pairs(soft) {
            let (value, grace) = match value.split_once(':') {
                Some((value, grace)) => (value.to_owned(), grace.parse().ok()),
                None => (value, None),
            };
            if let Some(grace) = grace {
                let grace = Duration::from_secs(grace);
                texts.soft_grace.insert(signal.clone(), grace);
            }
            texts.soft.insert(signal, value);
        }
        texts
    }

    fn made(texts: &Texts) -> Result<Vec<Threshold>, ThresholdError> {
        thresholds(&ThresholdTexts {
            hard: &texts.hard,
            soft: &texts.soft,
            soft_grace: &texts.soft_grace,
            min_reclaim: &texts.min_reclaim,
            enforces_pods: texts.enforces_pods,
        })
    }

    fn shown(thresholds: &[Threshold]) -> Vec<String> {
        let one = |it: &Threshold| {
            let amount = match &it.amount {
                Amount::Quantity(amount) => amount.to_string(),
                Amount::Fraction(fraction) => format!("{fraction}"),
            };
            format!("{} {amount} {}s", it.signal, it.grace.as_secs())
        };
        thresholds.iter().map(one).collect()
    }

    #[test]
    fn hard_memory_thresholds_hold_for_kubepods_too() {
        let mut hard = texts("memory.available=100Mi", "");
        assert_eq!(
            shown(&made(&hard).expect("good")),
            ["memory.available 100Mi 0s"]
        );
        hard.enforces_pods = true;
        let both = [
            "memory.available 100Mi 0s",
            "allocatableMemory.available 100Mi 0s",
        ];
        assert_eq!(shown(&made(&hard).expect("good")), both);
        let soft = texts("", "memory.available=100Mi:0");
        let soft = Texts {
            enforces_pods: true,
            ..soft
        };
        assert_eq!(shown(&made(&soft).expect("good")), both, "no grace is hard");
    }

    #[test]
    fn what_is_switched_off_is_left_out_and_what_is_wrong_is_named() {
        assert_eq!(
            made(&texts("nodefs.available=0% pid.available=100%", "")),
            Ok(vec![])
        );
        for (hard, soft, message) in [
            ("swap.available=1Gi", "", "evictionHard"),
            ("foo=1Gi", "", "evictionHard"),
            ("pid.available=-5%", "", "pid.available"),
            (
                "",
                "memory.available=1Gi",
                "evictionSoft: memory.available has no entry in evictionSoftGracePeriod",
            ),
        ] {
            let error = made(&texts(hard, soft)).expect_err(message);
            assert_eq!(error.to_string(), message, "{hard} {soft}");
        }
    }

    #[test]
    fn containers_are_evicted_by_the_thresholds_of_their_file_system() {
        let texts_one = texts("containerfs.available=1Gi nodefs.available=10%", "");
        let mut one = made(&texts_one).expect("good");
        let derived = derive_containerfs(&mut one, FsLayout::One);
        assert_eq!(
            shown(&one),
            ["nodefs.available 0.1 0s", "containerfs.available 0.1 0s"]
        );
        assert_eq!(derived.n_before, 2, "replaced, not added");
        assert_eq!(
            derived.conflicts,
            BTreeSet::from([Signal::ContainerFsAvailable])
        );

        let mut apart = made(&texts("", "imagefs.available=20%:60")).expect("good");
        let derived = derive_containerfs(&mut apart, FsLayout::ImageFs);
        let both = ["imagefs.available 0.2 60s", "containerfs.available 0.2 60s"];
        assert_eq!(shown(&apart), both);
        assert_eq!((derived.n_before, derived.conflicts.len()), (1, 0));
    }
}
