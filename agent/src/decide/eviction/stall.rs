//! Eviction for a node that stands still before a threshold is met (not in kubelet). Two keys have
//! to be turned at once: work has waited for memory most of the time, for long enough; and there is
//! little left.
//!
//! The first key alone is a pod that fights its own limit, or a slow disk; the second alone is a node
//! that is well used. What is left counts all file pages, whatever the method: a node whose memory is
//! taken by page cache reads too much, and ending a pod is no remedy for that.
//!
//! Invariant: page cache alone never evicts. One victim per measured relief: the next one follows
//! when both keys are turned by readings from after the end of the last.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::amount_of;
use crate::config::StallConfig;
use crate::model::eviction::{
    EvictionCause, MemoryUse, Observation, PodReading, Signal, Snapshot, StallSource, Victim,
};
use crate::model::quantity::Quantity;
use crate::model::record::PodRef;

/// Shorter ones say more of the moment than of the node.
const LEAST_WINDOW: Duration = Duration::from_secs(1);
/// As for a hard threshold of kubelet (pkg/kubelet/eviction/eviction_manager.go, v1.36:
/// `immediateEvictionGracePeriodSeconds`): time to tell, none to finish.
const GRACE: Duration = Duration::from_secs(1);

/// What is known between two decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StallState {
    /// The reading that the present window began with.
    pub begin: Option<StallPoint>,
    /// Since when every window was above the ratio.
    pub high_since: Option<Duration>,
    pub last: Option<LastVictim>,
}

/// Stalled time at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StallPoint {
    pub at: Duration,
    pub scope: StallScope,
    pub source: StallSource,
    pub stalled_us: u64,
}

/// Whose stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StallScope {
    Kubepods,
    /// Where those of kubepods are not known.
    Node,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastVictim {
    pub pod: PodRef,
    pub at: Duration,
    /// Seen gone. True from the start for a dry run.
    pub has_ended: bool,
}

/// All that one decision needs.
#[derive(Clone, Copy, Debug)]
pub struct StallInput<'a> {
    pub config: &'a StallConfig,
    /// Its `memory.available` is by the configured method.
    pub snapshot: &'a Snapshot,
    /// By the ranking for memory, first to go first.
    pub ranked: &'a [&'a PodReading],
}

/// See [`decide`].
#[derive(Clone, Debug, PartialEq)]
pub struct StallDecision {
    pub state: StallState,
    /// The window that ended with this reading, if one did.
    pub window: Option<StallWindow>,
    pub verdict: StallVerdict,
}

/// The share of time that was stalled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StallWindow {
    pub scope: StallScope,
    /// With `Reclaim` an upper bound of the share: the sum over tasks that reclaim.
    pub source: StallSource,
    /// 0 to 1.
    pub ratio: f64,
    /// 1 s or more.
    pub length: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum StallVerdict {
    /// Not above the ratio.
    Calm,
    Hold(StallHold),
    /// With `is_dry_run` it is only told.
    Evict {
        victim: Box<Victim>,
        is_dry_run: bool,
    },
}

/// Why nobody is evicted although there may be reason to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallHold {
    /// The stall or the available memory is not known.
    NoReading,
    /// The window is not full yet.
    Measuring,
    /// Above the ratio, not for long enough.
    Building {
        since: Duration,
    },
    /// There is memory left, or file pages that could go.
    Headroom,
    CoolDown {
        until: Duration,
    },
    /// A pod is on its way out; what its end gives is to be seen first.
    AwaitsRelief,
    /// Nobody is left, or nobody whose memory is known.
    NoCandidate,
    /// All who are left are critical.
    OnlyCritical,
}

/// Decides by one more snapshot. A reading that is missing holds everything and starts the
/// measurement anew.
pub fn decide(input: StallInput<'_>, state: &StallState) -> StallDecision {
    let now = input.snapshot.at;
    let mut state = state.clone();
    if let Some(last) = state.last.as_mut().filter(|it| !it.has_ended) {
        let is_there = |it: &PodReading| it.facts.pod.uid == last.pod.uid;
        last.has_ended = !input.snapshot.pods.iter().any(is_there);
        // What was measured before its end says nothing of the relief.
        state.begin = point(input.snapshot);
        state.high_since = None;
        return hold(state, None, StallHold::AwaitsRelief);
    }
    let Some(point) = point(input.snapshot) else {
        state.begin = None;
        state.high_since = None;
        return hold(state, None, StallHold::NoReading);
    };
    let begin = *state.begin.get_or_insert(point);
    let Some(stalled) = stalled_between(begin, point) else {
        state.begin = Some(point);
        state.high_since = None;
        return hold(state, None, StallHold::Measuring);
    };
    let length = point.at.saturating_sub(begin.at);
    if length < LEAST_WINDOW {
        return hold(state, None, StallHold::Measuring);
    }
    let window = StallWindow {
        scope: point.scope,
        source: point.source,
        ratio: (stalled.as_secs_f64() / length.as_secs_f64()).min(1.0),
        length,
    };
    state.begin = Some(point);
    if window.ratio <= input.config.memory_full_ratio {
        state.high_since = None;
        return StallDecision {
            state,
            window: Some(window),
            verdict: StallVerdict::Calm,
        };
    }
    let since = *state.high_since.get_or_insert(begin.at);
    match judge(input, &state, since) {
        Err(reason) => hold(state, Some(window), reason),
        Ok(candidate) => {
            let is_dry_run = input.config.dry_run;
            state.high_since = None;
            state.last = Some(LastVictim {
                pod: candidate.facts.pod.clone(),
                at: now,
                has_ended: is_dry_run,
            });
            let victim = Box::new(victim(candidate, &window, now.saturating_sub(since)));
            StallDecision {
                state,
                window: Some(window),
                verdict: StallVerdict::Evict { victim, is_dry_run },
            }
        }
    }
}

/// Everything but the first key.
fn judge<'a>(
    input: StallInput<'a>,
    state: &StallState,
    since: Duration,
) -> Result<&'a PodReading, StallHold> {
    let StallInput {
        config,
        snapshot,
        ranked,
    } = input;
    let now = snapshot.at;
    if now.saturating_sub(since) < config.duration {
        return Err(StallHold::Building { since });
    }
    match is_short(snapshot, config) {
        None => return Err(StallHold::NoReading),
        Some(false) => return Err(StallHold::Headroom),
        Some(true) => {}
    }
    if let Some(until) = state
        .last
        .as_ref()
        .map(|it| it.at.saturating_add(config.cool_down))
        && now < until
    {
        return Err(StallHold::CoolDown { until });
    }
    // A pod with hours to go is no relief to wait for.
    let ends_soon = |it: &PodReading| it.ends_within.is_some_and(|it| it <= config.cool_down);
    if snapshot.pods.iter().any(ends_soon) {
        return Err(StallHold::AwaitsRelief);
    }
    let has_memory = |it: &&&PodReading| it.figures.as_ref().is_some_and(|it| it.memory.is_some());
    let mut known = ranked.iter().filter(has_memory).peekable();
    if known.peek().is_none() {
        return Err(StallHold::NoCandidate);
    }
    known
        .find(|it| !it.facts.is_critical)
        .copied()
        .ok_or(StallHold::OnlyCritical)
}

fn hold(state: StallState, window: Option<StallWindow>, reason: StallHold) -> StallDecision {
    StallDecision {
        state,
        window,
        verdict: StallVerdict::Hold(reason),
    }
}

/// Of kubepods, else of the node. Reclaim has no `full`: what tasks spend in it, summed up, is the
/// nearest that there is, and more.
fn point(snapshot: &Snapshot) -> Option<StallPoint> {
    let node = &snapshot.node;
    let (scope, totals) = match (node.kubepods_stall, node.stall) {
        (Some(totals), _) => (StallScope::Kubepods, totals),
        (None, Some(totals)) => (StallScope::Node, totals),
        (None, None) => return None,
    };
    let stalled_us = match totals.source {
        StallSource::Psi => totals.full_us?,
        StallSource::Reclaim => totals.full_us.unwrap_or(totals.some_us),
    };
    Some(StallPoint {
        at: snapshot.at,
        scope,
        source: totals.source,
        stalled_us,
    })
}

/// `None`: the two are not of one counter, or not in order.
fn stalled_between(begin: StallPoint, end: StallPoint) -> Option<Duration> {
    let is_same = begin.scope == end.scope && begin.source == end.source && begin.at <= end.at;
    let stalled = end.stalled_us.checked_sub(begin.stalled_us)?;
    is_same.then(|| Duration::from_micros(stalled))
}

/// Whether the node, or kubepods within its limit, has less left than the headroom. `None`: what the
/// node has left is not known.
fn is_short(snapshot: &Snapshot, config: &StallConfig) -> Option<bool> {
    let is_short = |signal, used: Option<MemoryUse>| -> Option<bool> {
        let observation = snapshot.observations.get(&signal)?;
        Some(at_best(observation, used?) < amount_of(&config.headroom, observation.capacity))
    };
    let node = is_short(Signal::MemoryAvailable, snapshot.node.root)?;
    let kubepods = is_short(Signal::AllocatableMemoryAvailable, snapshot.node.kubepods);
    Some(node || kubepods.unwrap_or(false))
}

/// What would be available if all file pages went, dirty ones included. By either method inactive
/// pages count already; where active ones do too, there is enough without counting them twice.
fn at_best(observation: &Observation, used: MemoryUse) -> i64 {
    observation
        .available
        .saturating_add_unsigned(used.active_file)
}

fn victim(candidate: &PodReading, window: &StallWindow, lasted: Duration) -> Victim {
    let memory = candidate.figures.as_ref().and_then(|it| it.memory);
    let used = memory.map(|it| it.working_set());
    let scope = match window.scope {
        StallScope::Kubepods => "the pods of the node",
        StallScope::Node => "the node",
    };
    let uses = used.map_or_else(String::new, |it| {
        format!("; the pod uses {}", Quantity::from_bytes(it))
    });
    Victim {
        pod: candidate.facts.pod.clone(),
        cause: EvictionCause::Stall,
        grace: GRACE,
        message: format!(
            "The node was low on resource: memory. For {} s {scope} waited for memory most of the \
             time, {:.0} % of it at last{uses}.",
            lasted.as_secs(),
            window.ratio * 100.0
        ),
        expected: used,
    }
}

#[cfg(test)]
mod tests;
