//! How long a container that keeps ending waits for its next start: 10 s, doubled with each start
//! up to the maximum, forgotten when an instance lasts long enough.
//!
//! Kubelet's `flowcontrol.Backoff` as its runtime manager uses it: the wait counts from the end of
//! the last instance, the first restart does not wait, success and failure count alike. Kubelet
//! keeps this in memory and forgets it on its restart; here it is a value that can be stored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Slot;
use crate::model::container::SpecHash;
use crate::model::pod::Resources;

/// Kubelet's `initialBackOff`; not configurable.
const INITIAL: Duration = Duration::from_secs(10);

/// Kubelet's `MaxContainerBackOff`: the default and the largest permitted
/// `crashLoopBackOff.maxContainerRestartPeriod`.
const MAX: Duration = Duration::from_secs(300);

/// An instance that ends later than this after its start starts the count anew. Fixed at twice the
/// default maximum, whatever the maximum is set to (kubelet 1.32 and newer).
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// The longest wait of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackoffPolicy {
    max: Duration,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self { max: MAX }
    }
}

impl BackoffPolicy {
    /// `crashLoopBackOff.maxContainerRestartPeriod`, brought into kubelet's range of 1 s to 300 s.
    pub fn with_max(max: Duration) -> Self {
        Self {
            max: max.clamp(Duration::from_secs(1), MAX),
        }
    }

    fn first(self) -> Duration {
        INITIAL.min(self.max)
    }

    fn after(self, delay: Duration) -> Duration {
        delay.saturating_mul(2).min(self.max)
    }
}

/// What is remembered of one container's starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackoffEntry {
    /// The definition this counts for; another one has a clean record.
    pub spec_hash: SpecHash,
    /// The resources this counts for: they may be why it kept ending. `None`: any, by a record of an earlier agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The wait after the instance that started last.
    pub delay: Duration,
    /// `CLOCK_BOOTTIME`.
    pub last_start: Duration,
}

/// The back-off of one pod's containers, by name. Belongs to one boot: times of another mean
/// nothing, so it starts empty after a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackoffState {
    entries: BTreeMap<String, BackoffEntry>,
}

impl BackoffState {
    pub fn entry(&self, container: &str) -> Option<&BackoffEntry> {
        self.entries.get(container)
    }

    /// The wait that holds a container back, whose last instance ended at `finished_at`. `None`: it
    /// may start.
    pub(super) fn wait(&self, slot: &Slot, finished_at: Duration, now: Duration) -> Option<Wait> {
        let entry = self.current(slot, finished_at)?;
        let until = finished_at.saturating_add(entry.delay);
        (now < until).then_some(Wait {
            delay: entry.delay,
            until,
        })
    }

    /// Counts a restart at `now`, after an instance that ended at `finished_at`.
    pub(super) fn count_restart(
        &mut self,
        policy: BackoffPolicy,
        slot: &Slot,
        finished_at: Duration,
        now: Duration,
    ) {
        let delay = self
            .current(slot, finished_at)
            .map_or(policy.first(), |it| policy.after(it.delay));
        self.entries.insert(
            slot.name.to_owned(),
            BackoffEntry {
                spec_hash: slot.spec_hash.clone(),
                resources: Some(slot.resources.clone()),
                delay,
                last_start: now,
            },
        );
    }

    /// The entry that still counts.
    fn current(&self, slot: &Slot, finished_at: Duration) -> Option<&BackoffEntry> {
        let of_resources = |it: &BackoffEntry| {
            let resources = it.resources.as_ref();
            resources.is_none_or(|it| it == slot.resources)
        };
        self.entries.get(slot.name).filter(|it| {
            it.spec_hash == slot.spec_hash
                && of_resources(it)
                && finished_at.saturating_sub(it.last_start) <= FORGET_AFTER
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) delay: Duration,
    pub(super) until: Duration,
}
