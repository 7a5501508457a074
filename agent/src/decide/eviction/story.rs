//! A story: what eviction saw on a node, step by step, what it decided and what was done. It can be
//! decided again, anywhere, and has to come out the same.
//!
//! Invariant: a step holds all that its decision depends on, but for the policy, which is in the
//! header. So a gap in a recording spoils no step.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Decision, Policy, State, synchronize};
use crate::model::eviction::Snapshot;
use crate::model::record::PodRef;
use crate::model::time::WallTime;

/// What a recording holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoryKind {
    #[default]
    EvictionStory,
}

/// What the steps of a story have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoryHeader {
    pub kind: StoryKind,
    /// Version of the program that recorded it.
    pub ballast: String,
    /// When the recording began, by both clocks; steps have boottime.
    pub began: WallTime,
    pub began_boottime: Duration,
    pub policy: Policy,
    /// What the story is about, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// One look at the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What woke the watcher, for people.
    pub woken_by: Cow<'static, str>,
    /// What was known from the step before.
    pub state: State,
    pub snapshot: Snapshot,
    pub decision: Decision,
    /// What was found done since the step before.
    #[serde(default)]
    pub done: Vec<Deed>,
}

/// A pod that was ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deed {
    pub pod: PodRef,
    /// When it was decided, boottime.
    pub at: Duration,
    /// From SIGTERM to SIGKILL; zero: no SIGTERM.
    pub grace: Duration,
    /// When its last process was gone; `None`: it was not waited for, or in vain.
    pub gone_at: Option<Duration>,
    /// What the signal had more afterwards, in its unit; `None`: not measured.
    pub freed: Option<u64>,
}

impl Step {
    /// What is decided now from what was seen then.
    pub fn decide_again(&self, policy: &Policy) -> Decision {
        synchronize(policy, &self.state, &self.snapshot)
    }
}

#[cfg(test)]
mod tests;
