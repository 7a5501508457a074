//! Relief under memory pressure short of an eviction: what is done to which cgroup, what it is
//! expected to give, and what has to be undone afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cgroup_path::CgroupPath;
use super::record::PodRef;
use crate::units::Limit;

/// What may be tried before a pod is evicted, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// `memory.high` is lifted from pods that stall below their request.
    Relax,
    /// `memory.high` slows down the first candidate.
    Throttle,
    /// Cache is dropped by `memory.reclaim`.
    Reclaim,
    /// BestEffort pods that grow are stopped.
    Freeze,
}

impl Stage {
    pub const ALL: [Self; 4] = [Self::Relax, Self::Throttle, Self::Reclaim, Self::Freeze];

    /// Label `stage` of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Relax => "relax",
            Self::Throttle => "throttle",
            Self::Reclaim => "reclaim",
            Self::Freeze => "freeze",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing to do to one cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReliefStep {
    pub stage: Stage,
    pub pod: PodRef,
    /// Of the pod, or of one of its containers.
    pub cgroup: CgroupPath,
    pub action: ReliefAction,
    /// What it is expected to add to the signal, or to keep from being taken within ten seconds,
    /// bytes. 0 where it only undoes or spares.
    pub expected: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReliefAction {
    /// Write `memory.high`, bytes; `before` is what is there now.
    SetMemoryHigh {
        before: Limit,
        to: Limit,
    },
    /// Ask the kernel for so many bytes.
    Reclaim {
        bytes: u64,
    },
    Freeze,
    Thaw,
}

impl fmt::Display for ReliefAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetMemoryHigh { before, to } => write!(f, "memory.high from {before} to {to}"),
            Self::Reclaim { bytes } => write!(f, "reclaim of {bytes} bytes"),
            Self::Freeze => f.write_str("freeze"),
            Self::Thaw => f.write_str("thaw"),
        }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReliefEffect {
    /// By how much the usage of the cgroup fell while the step was taken, bytes; `None`: it could
    /// not be read.
    pub freed: Option<u64>,
    /// How long it took.
    pub took: Duration,
    /// All that was asked for: less was reclaimed where the kernel found no more, a cgroup may not
    /// be frozen yet.
    pub is_complete: bool,
}

/// How the kill of a pod went; times count from its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KillOutcome {
    /// The first round of SIGKILL was sent.
    pub signalled_after: Duration,
    /// The memory of large processes was freed by `process_mrelease`, as far as they had not begun
    /// to free it themselves. `None`: there was nothing to do.
    pub released_after: Option<Duration>,
    /// No process was left. `None`: some were when the time was up.
    pub empty_after: Option<Duration>,
    /// Processes that were seen.
    pub n_processes: usize,
    /// Of those, how many had their memory freed by `process_mrelease`.
    pub n_released: usize,
    /// By how much the usage of the pod fell, bytes; `None`: it could not be read.
    pub freed: Option<u64>,
}

/// What relief has changed and not yet undone, kept on disk before the change is made, so that an
/// agent that starts again undoes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReliefState {
    pub memory_high: Vec<ChangedMemoryHigh>,
    pub frozen: Vec<FrozenPod>,
    /// What was tried since the pressure began, and what it gave.
    #[serde(default)]
    pub tried: BTreeMap<Stage, Tried>,
    /// Since when there is no pressure, while something waits to be undone.
    #[serde(default)]
    pub calm_since: Option<Duration>,
}

/// A `memory.high` that is not what it would be without pressure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangedMemoryHigh {
    pub stage: Stage,
    pub pod: PodRef,
    pub cgroup: CgroupPath,
    /// What to go back to.
    pub before: Limit,
    pub to: Limit,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrozenPod {
    pub pod: PodRef,
    pub cgroup: CgroupPath,
    pub since: Duration,
}

/// The last attempt of a stage, all its steps together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    pub at: Duration,
    pub expected: u64,
    /// As measured; `None` where it could not be.
    pub freed: Option<u64>,
}

impl ReliefState {
    /// Nothing is left to undo.
    pub fn is_clear(&self) -> bool {
        self.memory_high.is_empty() && self.frozen.is_empty()
    }

    /// Those that have something left to undo.
    pub fn stages(&self) -> BTreeSet<Stage> {
        let changed = self.memory_high.iter().map(|it| it.stage);
        let frozen = self.frozen.iter().map(|_| Stage::Freeze);
        changed.chain(frozen).collect()
    }

    /// `memory.high` of the cgroup is lifted.
    pub fn is_relaxed(&self, cgroup: &CgroupPath) -> bool {
        let mut changed = self.memory_high.iter();
        changed.any(|it| it.stage == Stage::Relax && it.cgroup == *cgroup)
    }

    /// What `memory.high` of a cgroup is to be for now, whatever its pod asks for.
    pub fn memory_high_of(&self, cgroup: &CgroupPath) -> Option<Limit> {
        self.memory_high
            .iter()
            .find(|it| it.cgroup == *cgroup)
            .map(|it| it.to)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::model::pod::PodUid;

    #[test]
    fn memory_high_is_lifted_by_its_own_stage_alone() {
        let path = |name: &str| CgroupPath::root().join(name).unwrap();
        let changed = |stage, cgroup| ChangedMemoryHigh {
            stage,
            pod: PodRef {
                namespace: "default".into(),
                name: "a".into(),
                uid: PodUid("a".into()),
            },
            cgroup: path(cgroup),
            before: Limit::At(1 << 20),
            to: Limit::Max,
        };
        let state = ReliefState {
            memory_high: vec![
                changed(Stage::Relax, "lifted"),
                changed(Stage::Throttle, "slowed"),
            ],
            ..ReliefState::default()
        };
        assert!(state.is_relaxed(&path("lifted")));
        assert!(!state.is_relaxed(&path("slowed")));
        assert!(!state.is_relaxed(&path("other")));
        let stages = BTreeSet::from([Stage::Relax, Stage::Throttle]);
        assert_eq!(state.stages(), stages);
    }
}
