//! What the node is short of, and who would have to go: a part of the status document.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::eviction::{MemoryMethod, NodeCondition, Signal, StallTotals};
use crate::model::pod::PodUid;
use crate::model::time::WallTime;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureStatus {
    pub conditions: BTreeSet<NodeCondition>,
    /// Those that a threshold is about, and those that could be read.
    pub signals: Vec<SignalStatus>,
    /// Which of the views of memory thresholds are compared with.
    pub memory_method: MemoryMethod,
    /// Available memory of the node in each view, bytes.
    pub memory_available: BTreeMap<MemoryMethod, u64>,
    /// Memory stalls by scope: `node`, `kubepods`, `burstable`, `besteffort`.
    pub stalls: BTreeMap<String, StallTotals>,
    /// What wakes the watcher, and what the kernel refused.
    pub wakers: Vec<WakerStatus>,
    /// Who would be evicted for memory, first to go first; critical pods are not in it.
    pub order: Vec<Standing>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_eviction: Option<EvictionStatus>,
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionStatus {
    pub at: WallTime,
    pub uid: PodUid,
    pub pod: String,
    /// Label of the cause, as `memory.available`.
    pub signal: String,
    pub message: String,
    /// From the reading that crossed the threshold to the last process gone, microseconds; `None`:
    /// not over yet, or with a grace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaction_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_bytes: Option<u64>,
    /// How much more was available after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed_bytes: Option<u64>,
}
