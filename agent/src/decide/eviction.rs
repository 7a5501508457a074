//! Eviction: who has to go when the node runs short (pkg/kubelet/eviction/eviction_manager.go,
//! v1.36). In: a [`Policy`], the [`State`] of the last pass and a [`Snapshot`]. Out: a [`Decision`]
//! with the next state.
//!
//! With `compat: kubelet` decisions are kubelet's, pinned by suites `eviction_thresholds`,
//! `eviction_rank` and `eviction_sync`; the differences without it are in DIVERGENCES.md.
//!
//! Invariant: a critical pod is never chosen, a signal without an observation never leads to
//! anything, and a pass evicts at most one pod for pressure.

pub mod admission;
pub mod brake;
pub mod counterfactual;
pub mod facts;
pub mod hidden;
pub mod layout;
mod local_storage;
pub mod message;
pub mod met;
pub mod pace;
pub mod rank;
pub mod reclaimable;
pub mod returns;
pub mod signals;
pub mod stages;
pub mod stall;
pub mod story;
mod synchronize;
pub mod thresholds;
pub mod trend;
pub mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::brake::Brakes;
pub use self::layout::{FsLayout, NodeReclaim};
pub use self::synchronize::{is_still_short, synchronize};
use self::thresholds::{ThresholdError, ThresholdTexts, derive_containerfs};
use crate::config::{Compat, KubeletConfig};
use crate::model::eviction::{
    Amount, NodeCondition, Observation, PodReading, Signal, StarvedResource, Threshold, Victim,
};
use crate::model::pod::PodUid;
use crate::model::quantity::{Format, Quantity};

/// What decisions are made by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    pub thresholds: Vec<Threshold>,
    /// So many of them, from the front, are those that kubelet's first pass knows: it derives the
    /// others in that pass.
    pub n_known_at_first: usize,
    /// A condition is reported so long after it was last seen.
    pub transition_period: Duration,
    /// The most grace that a soft threshold gives.
    pub max_pod_grace: Duration,
    pub limits_local_storage: bool,
    pub layout: FsLayout,
    pub compat: Compat,
}

/// What stays from one pass to the next. All of it may be lost, as in kubelet at a restart:
/// conditions clear, graces begin again, and evictions in vain are not remembered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// At least one pass was made.
    pub has_passed: bool,
    /// Thresholds that are met, without a break. That a signal could not be read is none.
    pub met: Vec<Met>,
    /// Those past their grace: they are met until their `min_reclaim` is there as well.
    pub unresolved: Vec<Threshold>,
    /// Boottime of the last pass in which a threshold of the condition was met.
    pub condition_seen: BTreeMap<NodeCondition, Duration>,
    /// Age of what the last pass saw; `None`: not known.
    pub observed_at: BTreeMap<Signal, Option<Duration>>,
    /// Pods on their way out, and when they should be gone.
    pub ending: BTreeMap<PodUid, Duration>,
    /// Of evictions for what the node gives to pods and to others.
    #[serde(alias = "brake")]
    pub brakes: Brakes,
}

impl State {
    /// Before the first pass.
    pub fn new() -> Self {
        Self {
            brakes: Brakes::new(),
            ..Self::default()
        }
    }

    /// The last pass has read that the threshold is met; that it was met before is not enough.
    pub fn has_seen(&self, threshold: &Threshold) -> bool {
        self.observed_at.contains_key(&threshold.signal)
            && self.met.iter().any(|it| it.threshold == *threshold)
    }
}

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Met {
    pub threshold: Threshold,
    /// Boottime of the first pass that saw it.
    pub since: Duration,
}

/// The outcome of one pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub state: State,
    /// To be reported.
    pub conditions: BTreeSet<NodeCondition>,
    pub action: Option<Action>,
    /// Thresholds past their grace for which nothing is done, most urgent first.
    pub blocked: Vec<Blocked>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Action {
    /// Each of them is over a limit of its own.
    EvictAll {
        victims: Vec<Victim>,
    },
    Relieve(Relief),
}

/// A threshold that something has to be done about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Relief {
    pub threshold: Threshold,
    pub observation: Observation,
    /// To be tried first. Where there is any, a pod goes only if the threshold
    /// [is still short](is_still_short) afterwards.
    pub reclaim: Vec<NodeReclaim>,
    /// In the order to try; one of them goes.
    pub candidates: Vec<Victim>,
    /// Nobody is a candidate because it would be in vain ([`BlockedReason::Ineffective`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ineffective: bool,
}

/// A threshold for which nothing is done, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    pub threshold: Threshold,
    pub reason: BlockedReason,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockedReason {
    /// The observation is the one that was acted upon before.
    Stale,
    /// Pods that end already will free enough.
    Ending,
    NoPods,
    /// Of no pod that could go is known what it uses.
    Unknown,
    /// All pods are critical, or end as soon as they can.
    NoCandidate,
    /// What evictions give back is taken by somebody who is no pod, or they could not give enough.
    Ineffective,
}

impl BlockedReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Ending => "ending",
            Self::NoPods => "no_pods",
            Self::Unknown => "unknown",
            Self::NoCandidate => "no_candidate",
            Self::Ineffective => "ineffective",
        }
    }
}

impl Policy {
    /// From the configuration, which was checked: an error is a fault of the check.
    pub fn new(
        config: &KubeletConfig,
        layout: FsLayout,
        compat: Compat,
    ) -> Result<Self, ThresholdError> {
        let mut thresholds = thresholds::thresholds(&ThresholdTexts::from(config))?;
        let derived = derive_containerfs(&mut thresholds, layout);
        Ok(Self {
            thresholds,
            n_known_at_first: derived.n_before,
            transition_period: config.eviction_pressure_transition_period,
            max_pod_grace: config
                .eviction_max_pod_grace_period
                .unwrap_or(Duration::MAX),
            limits_local_storage: config.local_storage_capacity_isolation,
            layout,
            compat,
        })
    }
}

/// What has to be available: the threshold's amount of the capacity that was observed.
pub fn threshold_quantity(threshold: &Threshold, observation: &Observation) -> Quantity {
    threshold.amount.of(&capacity(observation))
}

/// What an amount comes to of a capacity, in its unit.
fn amount_of(amount: &Amount, capacity: i64) -> i64 {
    let capacity = Quantity::from_units(capacity, Format::BinarySi);
    amount.of(&capacity).value()
}

fn capacity(observation: &Observation) -> Quantity {
    Quantity::from_units(observation.capacity, Format::BinarySi)
}

/// From SIGTERM to SIGKILL for a pod evicted for a threshold.
///
/// Kubelet gives a second at a hard threshold. Memory and processes that run out leave no such time;
/// a disk fills more slowly.
fn grace(policy: &Policy, threshold: &Threshold, reading: &PodReading) -> Duration {
    let grace = if !threshold.is_hard() {
        policy.max_pod_grace.min(reading.facts.termination_grace)
    } else {
        match (policy.compat, threshold.signal.resource()) {
            (Compat::Ballast, StarvedResource::Memory | StarvedResource::Pids) => Duration::ZERO,
            _ => Duration::from_secs(1),
        }
    };
    reading.ends_within.map_or(grace, |left| left.min(grace))
}

/// Whether the pod is gone by itself before `grace` would be over.
fn ends_sooner(policy: &Policy, reading: &PodReading, grace: Duration) -> bool {
    policy.compat == Compat::Ballast && reading.ends_within.is_some_and(|left| left <= grace)
}

/// How long killed processes may keep their ids before another pod has to go for it. An init that
/// looks for them every two seconds has been seen.
const REAP_TIME: Duration = Duration::from_secs(5);

/// The ids of processes that were killed: a process that has ended keeps its id until its parent, often
/// init, has noticed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reaping {
    /// The first reading after the kill. Not the one that the kill was decided by: what was forked
    /// between the two is among the killed.
    first: Option<Observation>,
}

impl Reaping {
    /// Whether the ids are still to come, by a reading after the kill. Where ids go on becoming fewer,
    /// somebody else takes them too. Nothing is awaited on an unknown time.
    pub fn is_awaited(&mut self, now: &Observation) -> bool {
        let first = self.first.get_or_insert(*now);
        let (Some(then), Some(at)) = (first.at, now.at) else {
            return false;
        };
        let fewer = first.available.saturating_sub(now.available);
        at.saturating_sub(then) < REAP_TIME && fewer <= first.capacity / 100
    }
}

#[cfg(test)]
mod tests;
