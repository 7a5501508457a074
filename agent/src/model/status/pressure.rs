//! What the node is short of, and who would have to go: a part of the status document.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::eviction::{MemoryMethod, NodeCondition, Signal, StallTotals};
use crate::model::pod::PodUid;
use crate::model::relief::Stage;
use crate::model::time::WallTime;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureStatus {
    pub conditions: BTreeSet<NodeCondition>,
    /// Stages of relief of which something is not yet undone.
    #[serde(default)]
    pub stages: BTreeSet<Stage>,
    /// Those that a threshold is about, and those that could be read.
    pub signals: Vec<SignalStatus>,
    /// Which of the views of memory thresholds are compared with.
    pub memory_method: MemoryMethod,
    /// Available memory of the node in each view, bytes.
    pub memory_available: BTreeMap<MemoryMethod, u64>,
    /// Memory stalls by scope: `node`, `kubepods`, `burstable`, `besteffort`. Without PSI
    /// `guaranteed` too, and not `node`.
    pub stalls: BTreeMap<String, StallTotals>,
    /// What wakes the watcher, and what the kernel refused.
    pub wakers: Vec<WakerStatus>,
    /// Who would be evicted for memory, first to go first; critical pods are not in it.
    pub order: Vec<Standing>,
    /// Critical pods: never evicted.
    #[serde(default)]
    pub critical: BTreeSet<PodUid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_eviction: Option<EvictionStatus>,
    /// Signals that are short and for which nobody is evicted, since it would be in vain; and what was told of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ineffective: BTreeMap<Signal, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalStatus {
    pub signal: Signal,
    /// Bytes, inodes or tasks; `None`: it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    /// Of the reading, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    pub thresholds: Vec<ThresholdStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThresholdStatus {
    pub is_hard: bool,
    /// In the unit of the signal; `None`: a share of a capacity that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<i64>,
    /// Seconds that it has to be met before anything is done.
    pub grace_seconds: u64,
    pub is_met: bool,
}

/// Something that wakes the watcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WakerStatus {
    pub name: String,
    pub is_armed: bool,
    /// Why it is not, or in which lesser form it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where a pod stands in the eviction order for memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    pub uid: PodUid,
    /// `namespace/name`.
    pub pod: String,
    pub priority: i32,
    pub request_bytes: u64,
    /// `None`: not known, so it is not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    /// Page cache and the like that could go without harm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimable_bytes: Option<u64>,
}

/// Memory stalls of a pod; `None`: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodStalls {
    pub pod: Option<StallTotals>,
    pub containers: BTreeMap<String, StallTotals>,
}

/// Where eviction stands with one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum EvictionStanding {
    /// `place` is 1 for the first to go, `of` how many there are.
    #[serde(rename_all = "camelCase")]
    InOrder {
        place: usize,
        of: usize,
        standing: Standing,
    },
    Critical,
    #[serde(rename_all = "camelCase")]
    Evicted {
        eviction: EvictionStatus,
    },
}

impl PressureStatus {
    /// `None`: it is not known, or the pod has ended otherwise.
    pub fn standing_of(&self, uid: &PodUid) -> Option<EvictionStanding> {
        if let Some(eviction) = self.last_eviction.iter().find(|it| it.uid == *uid) {
            let eviction = eviction.clone();
            return Some(EvictionStanding::Evicted { eviction });
        }
        if self.critical.contains(uid) {
            return Some(EvictionStanding::Critical);
        }
        let index = self.order.iter().position(|it| it.uid == *uid)?;
        Some(EvictionStanding::InOrder {
            place: index + 1,
            of: self.order.len(),
            standing: self.order.get(index)?.clone(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionStatus {
    pub at: WallTime,
    pub uid: PodUid,
    pub pod: String,
    /// Label of the cause, as `memory.available`.
    pub signal: String,
    pub message: String,
    /// From the crossing of a hard threshold, as far as readings tell, to the last process gone,
    /// microseconds; for those that go after the first, and for other causes, from the reading that
    /// asked for it. `None`: not over yet, or with a grace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaction_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_bytes: Option<u64>,
    /// How much more was available after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed_bytes: Option<u64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::eviction::StallSource;

    /// Memory is short, though its hard threshold is not met; the state of files is not known.
    pub(crate) fn example_pressure() -> PressureStatus {
        let mib = |n: i64| n << 20;
        let threshold = |is_hard: bool, amount: i64, is_met: bool| ThresholdStatus {
            is_hard,
            amount: Some(amount),
            grace_seconds: if is_hard { 0 } else { 90 },
            is_met,
        };
        let standing =
            |uid: &str, pod: &str, request_mib: u64, working_set_mib: Option<u64>| Standing {
                uid: PodUid(uid.into()),
                pod: pod.into(),
                priority: 0,
                request_bytes: request_mib << 20,
                working_set_bytes: working_set_mib.map(|it| it << 20),
                reclaimable_bytes: working_set_mib.map(|_| 20 << 20),
            };
        PressureStatus {
            conditions: BTreeSet::from([NodeCondition::MemoryPressure]),
            stages: BTreeSet::from([Stage::Throttle]),
            signals: vec![
                SignalStatus {
                    signal: Signal::MemoryAvailable,
                    available: Some(mib(480)),
                    capacity: Some(mib(8192)),
                    age_ms: Some(12),
                    thresholds: vec![
                        threshold(true, mib(100), false),
                        threshold(false, mib(500), true),
                    ],
                },
                SignalStatus {
                    signal: Signal::NodeFsInodesFree,
                    available: None,
                    capacity: None,
                    age_ms: None,
                    thresholds: vec![ThresholdStatus {
                        amount: None,
                        ..threshold(true, 0, false)
                    }],
                },
                SignalStatus {
                    signal: Signal::PidAvailable,
                    available: Some(32_000),
                    capacity: Some(32_768),
                    age_ms: Some(12),
                    thresholds: Vec::new(),
                },
            ],
            memory_method: MemoryMethod::WorkingSet,
            memory_available: BTreeMap::from([
                (MemoryMethod::WorkingSet, 480 << 20),
                (MemoryMethod::Estimate, 1536 << 20),
                (MemoryMethod::Meminfo, 1792 << 20),
            ]),
            stalls: BTreeMap::from([(
                "node".into(),
                StallTotals {
                    source: StallSource::Psi,
                    some_us: 2_500_000,
                    full_us: Some(1_000_000),
                },
            )]),
            wakers: vec![
                WakerStatus {
                    name: "reclaim tracepoints".into(),
                    is_armed: true,
                    reason: None,
                },
                WakerStatus {
                    name: "PSI trigger of the node".into(),
                    is_armed: false,
                    reason: Some("a window of 1 s needs CAP_SYS_RESOURCE".into()),
                },
            ],
            order: vec![
                standing(
                    "0c4e",
                    "a-namespace-with-a-long-name/hungry-7d9c6b5f4-x2x9z",
                    64,
                    Some(1200),
                ),
                standing("6a1f", "default/database", 256, Some(192)),
                standing("b0b0", "default/unread", 0, None),
            ],
            critical: BTreeSet::from([PodUid("c0de".into())]),
            last_eviction: Some(EvictionStatus {
                at: WallTime::from_epoch(std::time::Duration::from_secs(1_763_710_000)),
                uid: PodUid("dead".into()),
                pod: "default/greedy".into(),
                signal: "memory.available".into(),
                message: "The node was low on resource: memory. ".into(),
                reaction_us: Some(23_100),
                expected_bytes: Some(900 << 20),
                freed_bytes: Some(870 << 20),
            }),
            ineffective: BTreeMap::new(),
        }
    }
}
