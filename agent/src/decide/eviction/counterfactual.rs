//! What another policy would have done in a story, and how good that would have been.
//!
//! A story knows what happened, not what would have. The rules by which it is told otherwise:
//!
//! - A pod that the policy ends is gone when its grace is over, a killed one with the next look.
//!   From then on what the recording says it uses is available instead.
//! - A pod that the recording ended and the policy did not goes on from its last figures, growing
//!   as it did over the [10 s](TREND) before, never shrinking; what it uses is not available.
//! - Whatever else happened happens again, stalls included. Node-level reclaim gives nothing back, nor
//!   do the stages before a kill.
//! - Another memory method is taken where the recording has the figures that it is made of.
//! - The policy looks when the recording did. With kubelet's rules it looks every 10 s, and after
//!   an eviction not before the pod is gone.
//!
//! Invariant: with the recorded policy and without anything to do, nothing is changed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::brake::Brakes;
use super::rank::rank;
use super::stall::{self, StallInput, StallState, StallVerdict};
use super::story::{Deed, Step};
use super::{Action, Policy, State, signals, synchronize, threshold_quantity};
use crate::config::{Compat, StallConfig};
use crate::model::eviction::{
    DiskUse, EvictionCause, MemoryMethod, Observation, PodFigures, PodReading, Signal, Snapshot,
    Threshold, Victim,
};
use crate::model::pod::PodUid;
use crate::model::quantity::{Format, Quantity};
use crate::model::record::PodRef;

/// What a pod's growth is taken from.
const TREND: Duration = Duration::from_secs(10);

/// How far hindsight sees: what a pod uses later than that is no matter of this pressure. Arbitrary.
const HINDSIGHT: Duration = Duration::from_secs(10);

/// A pressure that is over within this time by itself needed no victim. Arbitrary, kubelet's time for
/// a pod to go.
const PASSES_SOON: Duration = Duration::from_secs(30);

/// Kubelet's loop (pkg/kubelet/kubelet.go, v1.36: `evictionMonitoringPeriod`).
const KUBELET_PASS: Duration = Duration::from_secs(10);

/// A reading so much earlier tells an estimate of available memory what is in use of the page cache, as
/// for the agent at work.
const EVIDENCE: Duration = Duration::from_secs(1);

/// What a story is played by.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub policy: &'a Policy,
    /// `None`: the recorded one.
    pub memory_method: Option<MemoryMethod>,
    /// `None`: stalls evict nobody.
    pub stall: Option<&'a StallConfig>,
}

impl<'a> From<&'a Policy> for Rules<'a> {
    fn from(policy: &'a Policy) -> Self {
        Self {
            policy,
            memory_method: None,
            stall: None,
        }
    }
}

/// What became of a story under a policy. Amounts are in the unit of the signal, times since the
/// first step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub kills: Vec<Kill>,
    /// Of the signals that the recorded policy has hard thresholds for.
    pub shortages: BTreeMap<Signal, Shortage>,
}

/// A pod that had to go.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kill {
    pub pod: PodRef,
    pub at_ms: u64,
    /// `None`: it was not seen going.
    pub gone_after_ms: Option<u64>,
    /// As [`EvictionCause::label`]; `None`: what decided it is not recorded.
    pub cause: Option<&'static str>,
    /// What it used when that was decided. `None`: not known.
    pub freed: Option<u64>,
    /// A pod of no higher priority that would have freed more, in hindsight.
    pub regret: Option<Regret>,
    /// The pressure passed by itself in the recording.
    pub is_needless: bool,
}

/// The better choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Regret {
    pub pod: PodRef,
    /// How much more it would have freed, by the most it uses within [`HINDSIGHT`].
    pub more: u64,
}

/// How short a signal became.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// Below the threshold, in all.
    pub short_ms: u64,
    pub lowest: i64,
}

/// What happened in the recording, judged by the same measure.
pub fn recorded(policy: &Policy, steps: &[Step]) -> Outcome {
    let story = Story::new(policy, steps);
    let mut outcome = Outcome::default();
    for (i, step) in steps.iter().enumerate() {
        story.note_shortage(&mut outcome, i, &step.snapshot.observations);
    }
    for deed in story.deeds.values() {
        outcome.kills.push(story.judge_deed(deed));
    }
    outcome.kills.sort_by_key(|it| it.at_ms);
    outcome
}

/// What `rules` would have made of the same story, which was recorded with `yardstick`.
pub fn play<'a>(rules: impl Into<Rules<'a>>, yardstick: &Policy, steps: &[Step]) -> Outcome {
    let rules = rules.into();
    let policy = rules.policy;
    let story = Story::new(yardstick, steps);
    let mut outcome = Outcome::default();
    let mut state = State {
        brakes: steps
            .first()
            .map_or_else(Brakes::default, |it| it.state.brakes.clone()),
        ..State::default()
    };
    let mut stall = StallState::default();
    // When the pods are gone that the policy ended.
    let mut gone_at: BTreeMap<PodUid, Duration> = BTreeMap::new();
    let mut next_look = Duration::ZERO;
    for (i, step) in steps.iter().enumerate() {
        let snapshot = story.retold(story.measured(step, &rules), &gone_at);
        story.note_shortage(&mut outcome, i, &snapshot.observations);
        if snapshot.at < next_look {
            continue;
        }
        let decision = synchronize(policy, &state, &snapshot);
        state = decision.state;
        let victims = match decision.action {
            Some(Action::EvictAll { victims }) => victims,
            Some(Action::Relieve(relief)) => relief.candidates.into_iter().take(1).collect(),
            None => rules.stalled(&mut stall, &snapshot).into_iter().collect(),
        };
        if policy.compat == Compat::Kubelet {
            next_look = snapshot.at.saturating_add(KUBELET_PASS);
        }
        for victim in victims {
            let gone = snapshot.at.saturating_add(victim.grace);
            if policy.compat == Compat::Kubelet {
                next_look = gone;
            }
            let before = gone_at.insert(victim.pod.uid.clone(), gone);
            let kill = story.judge(i, &snapshot.pods, &victim, Some(victim.grace));
            match before {
                None => outcome.kills.push(kill),
                Some(before) => {
                    // It was on its way out and is now told to hurry.
                    gone_at.insert(victim.pod.uid, gone.min(before));
                }
            }
        }
    }
    outcome
}

impl Rules<'_> {
    /// Who has to go because the node stands still.
    fn stalled(&self, state: &mut StallState, snapshot: &Snapshot) -> Option<Victim> {
        let config = self.stall?;
        let signal = Signal::AllocatableMemoryAvailable;
        let Policy { layout, compat, .. } = *self.policy;
        let ranked = rank(signal, layout, compat, &snapshot.pods);
        let ranked: Vec<_> = ranked.iter().map(|it| it.reading).collect();
        let input = StallInput {
            config,
            snapshot,
            ranked: &ranked,
        };
        let decided = stall::decide(input, state);
        *state = decided.state;
        match decided.verdict {
            StallVerdict::Evict {
                victim,
                is_dry_run: false,
            } => Some(*victim),
            StallVerdict::Evict { .. } | StallVerdict::Calm | StallVerdict::Hold(_) => None,
        }
    }
}

/// A recording, prepared for being told otherwise.
struct Story<'a> {
    policy: &'a Policy,
    steps: &'a [Step],
    /// What was ended in the recording.
    deeds: BTreeMap<PodUid, &'a Deed>,
    /// Of those the last figures and the ones [`TREND`] before.
    ended: BTreeMap<PodUid, Trend<'a>>,
}

struct Trend<'a> {
    last_at: Duration,
    last: &'a PodReading,
    before_at: Duration,
    before: &'a PodReading,
}

impl<'a> Story<'a> {
    fn new(policy: &'a Policy, steps: &'a [Step]) -> Self {
        let mut deeds: BTreeMap<PodUid, &Deed> = BTreeMap::new();
        for deed in steps.iter().flat_map(|it| &it.done) {
            deeds.entry(deed.pod.uid.clone()).or_insert(deed);
        }
        let trend = |deed: &Deed| {
            let mut seen = steps
                .iter()
                .filter(|it| it.snapshot.at <= deed.at)
                .filter_map(|it| Some((it.snapshot.at, reading(&it.snapshot, &deed.pod.uid)?)))
                .filter(|(_, it)| it.figures.is_some());
            let (last_at, last) = seen.clone().next_back()?;
            let (before_at, before) = seen.find(|(at, _)| at.saturating_add(TREND) >= last_at)?;
            Some(Trend {
                last_at,
                last,
                before_at,
                before,
            })
        };
        let ended = deeds
            .iter()
            .filter_map(|(uid, deed)| Some((uid.clone(), trend(deed)?)))
            .collect();
        Self {
            policy,
            steps,
            deeds,
            ended,
        }
    }

    fn since_start(&self, at: Duration) -> u64 {
        let start = self.steps.first().map_or(at, |it| it.snapshot.at);
        millis(at.saturating_sub(start))
    }

    /// A snapshot with its memory measured as `rules` say.
    fn measured(&self, step: &Step, rules: &Rules<'_>) -> Snapshot {
        let mut snapshot = step.snapshot.clone();
        let Some(method) = rules.memory_method else {
            return snapshot;
        };
        let node = &snapshot.node;
        let readings = self.steps.iter().map(|it| &it.snapshot.node);
        let before = readings
            .take_while(|it| it.at.saturating_add(EVIDENCE) <= node.at)
            .last();
        let measured = signals::observations(node, before, method, rules.policy.compat);
        for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
            if let Some(observation) = measured.get(&signal) {
                snapshot.observations.insert(signal, *observation);
            }
        }
        snapshot
    }

    /// A snapshot as it would be if the pods in `gone_at` had been ended, and no other.
    fn retold(&self, mut snapshot: Snapshot, gone_at: &BTreeMap<PodUid, Duration>) -> Snapshot {
        let pods = self.pods(&snapshot, gone_at);
        let recorded = std::mem::replace(&mut snapshot.pods, pods);
        if snapshot.pods == recorded {
            return snapshot;
        }
        for (signal, observation) in &mut snapshot.observations {
            let less = self.used(*signal, &recorded) - self.used(*signal, &snapshot.pods);
            let available = i128::from(observation.available) + less;
            let available = available.min(i128::from(observation.capacity)).max(0);
            observation.available = i64::try_from(available).unwrap_or(i64::MAX);
        }
        snapshot
    }

    fn pods(&self, recorded: &Snapshot, gone_at: &BTreeMap<PodUid, Duration>) -> Vec<PodReading> {
        let now = recorded.at;
        let was_ended = |uid: &PodUid| self.deeds.get(uid).is_some_and(|it| it.at < now);
        let undisturbed = recorded
            .pods
            .iter()
            .filter(|it| !was_ended(&it.facts.pod.uid))
            .cloned();
        let revived = self
            .ended
            .iter()
            .filter(|(uid, _)| was_ended(uid))
            .map(|(_, trend)| trend.at(now));
        undisturbed
            .chain(revived)
            .filter_map(|mut pod| {
                if let Some(gone_at) = gone_at.get(&pod.facts.pod.uid) {
                    let left = gone_at.checked_sub(now).filter(|it| !it.is_zero())?;
                    pod.ends_within = Some(pod.ends_within.map_or(left, |it| it.min(left)));
                }
                Some(pod)
            })
            .collect()
    }

    /// What pods use of a signal's resource together.
    fn used(&self, signal: Signal, pods: &[PodReading]) -> i128 {
        rank(signal, self.policy.layout, Compat::Ballast, pods)
            .iter()
            .map(|it| i128::from(it.usage.unwrap_or(0)))
            .sum()
    }

    /// Takes what is seen at a step to last until the next.
    fn note_shortage(
        &self,
        outcome: &mut Outcome,
        i: usize,
        observations: &BTreeMap<Signal, Observation>,
    ) {
        let at = |i: usize| self.steps.get(i).map(|it| it.snapshot.at);
        let lasts = at(i + 1)
            .zip(at(i))
            .map_or(Duration::ZERO, |(next, at)| next.saturating_sub(at));
        let hard = self.policy.thresholds.iter().filter(|it| it.is_hard());
        for threshold in hard {
            let Some(observation) = observations.get(&threshold.signal) else {
                continue;
            };
            let shortage = outcome
                .shortages
                .entry(threshold.signal)
                .or_insert(Shortage {
                    short_ms: 0,
                    lowest: i64::MAX,
                });
            shortage.lowest = shortage.lowest.min(observation.available);
            if is_short(threshold, observation) {
                shortage.short_ms = shortage.short_ms.saturating_add(millis(lasts));
            }
        }
    }

    fn judge_deed(&self, deed: &Deed) -> Kill {
        let i = self
            .steps
            .iter()
            .rposition(|it| it.snapshot.at <= deed.at)
            .unwrap_or(0);
        let step = self.steps.get(i);
        let victim = step.and_then(|it| match &it.decision.action {
            Some(Action::EvictAll { victims }) => victims.iter().find(|it| it.pod == deed.pod),
            Some(Action::Relieve(relief)) => relief.candidates.iter().find(|it| it.pod == deed.pod),
            None => None,
        });
        let gone_after = deed.gone_at.map(|it| it.saturating_sub(deed.at));
        match (step, victim) {
            (Some(step), Some(victim)) => {
                let kill = self.judge(i, &step.snapshot.pods, victim, gone_after);
                Kill {
                    freed: deed.freed.or(kill.freed),
                    ..kill
                }
            }
            _ => Kill {
                pod: deed.pod.clone(),
                at_ms: self.since_start(deed.at),
                gone_after_ms: gone_after.map(millis),
                cause: None,
                freed: deed.freed,
                regret: None,
                is_needless: false,
            },
        }
    }

    fn judge(
        &self,
        i: usize,
        pods: &[PodReading],
        victim: &Victim,
        gone_after: Option<Duration>,
    ) -> Kill {
        let at = self
            .steps
            .get(i)
            .map_or(Duration::ZERO, |it| it.snapshot.at);
        let (regret, is_needless) = match &victim.cause {
            EvictionCause::Threshold { threshold, .. } => (
                self.regret(at, threshold.signal, pods, victim),
                self.passes_by_itself(at, threshold),
            ),
            EvictionCause::LocalStorage { .. }
            | EvictionCause::Stall
            | EvictionCause::Preemption { .. } => (None, false),
        };
        Kill {
            pod: victim.pod.clone(),
            at_ms: self.since_start(at),
            gone_after_ms: gone_after.map(millis),
            cause: Some(victim.cause.label()),
            freed: victim.expected,
            regret,
            is_needless,
        }
    }

    fn regret(
        &self,
        at: Duration,
        signal: Signal,
        pods: &[PodReading],
        victim: &Victim,
    ) -> Option<Regret> {
        let chosen = pods.iter().find(|it| it.facts.pod == victim.pod)?;
        let mut most: BTreeMap<PodRef, u64> = BTreeMap::new();
        let seen = self
            .steps
            .iter()
            .map(|it| &it.snapshot)
            .skip_while(|it| it.at < at)
            .take_while(|it| it.at <= at.saturating_add(HINDSIGHT));
        for snapshot in seen {
            let unhindered = self.pods(snapshot, &BTreeMap::new());
            for ranked in rank(signal, self.policy.layout, Compat::Ballast, &unhindered) {
                let most = most.entry(ranked.reading.facts.pod.clone()).or_default();
                *most = ranked.usage.unwrap_or(0).max(*most);
            }
        }
        let of_chosen = most.get(&victim.pod).copied().unwrap_or(0);
        let could_go =
            |it: &&PodReading| !it.facts.is_critical && it.facts.priority <= chosen.facts.priority;
        let (more, pod) = pods
            .iter()
            .filter(could_go)
            .filter_map(|it| {
                let used = most.get(&it.facts.pod)?;
                Some((used.checked_sub(of_chosen)?, &it.facts.pod))
            })
            .max_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(a.1)))
            .filter(|(more, _)| *more > 0)?;
        Some(Regret {
            pod: pod.clone(),
            more,
        })
    }

    /// Whether the recording has the pressure end soon, without anybody having been ended till then.
    fn passes_by_itself(&self, at: Duration, threshold: &Threshold) -> bool {
        let over = self
            .steps
            .iter()
            .map(|it| &it.snapshot)
            .filter(|it| it.at > at && it.at <= at.saturating_add(PASSES_SOON))
            .find(|it| {
                let observation = it.observations.get(&threshold.signal);
                observation.is_some_and(|it| !is_short(threshold, it))
            });
        let Some(over) = over else {
            return false;
        };
        !self.deeds.values().any(|it| it.at <= over.at)
    }
}

impl Trend<'_> {
    /// The pod at a later time, had it gone on.
    fn at(&self, now: Duration) -> PodReading {
        let (Some(before), Some(last)) = (&self.before.figures, &self.last.figures) else {
            return self.last.clone();
        };
        let span = self.last_at.saturating_sub(self.before_at).as_nanos();
        let ahead = now.saturating_sub(self.last_at).as_nanos();
        let grown = |before: Option<u64>, last: Option<u64>| {
            let last = last?;
            let growth = u128::from(last.saturating_sub(before.unwrap_or(last)));
            let more = growth.saturating_mul(ahead).checked_div(span).unwrap_or(0);
            Some(last.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)))
        };
        let disk = |before: DiskUse, last: DiskUse| DiskUse {
            bytes: grown(before.bytes, last.bytes),
            inodes: grown(before.inodes, last.inodes),
        };
        let mut figures = PodFigures {
            at: Some(now),
            memory_working_set: grown(before.memory_working_set, last.memory_working_set),
            processes: grown(before.processes, last.processes),
            tasks: grown(before.tasks, last.tasks),
            storage: grown(before.storage, last.storage),
            shared: disk(before.shared, last.shared),
            ..last.clone()
        };
        for (name, it) in &mut figures.containers {
            let before = before.containers.get(name).copied().unwrap_or(*it);
            it.memory_working_set = grown(before.memory_working_set, it.memory_working_set);
            it.root_fs = disk(before.root_fs, it.root_fs);
            it.logs = disk(before.logs, it.logs);
        }
        for (name, it) in &mut figures.volumes {
            *it = disk(before.volumes.get(name).copied().unwrap_or(*it), *it);
        }
        PodReading {
            facts: self.last.facts.clone(),
            figures: Some(figures),
            ends_within: None,
        }
    }
}

fn reading<'a>(snapshot: &'a Snapshot, uid: &PodUid) -> Option<&'a PodReading> {
    snapshot.pods.iter().find(|it| it.facts.pod.uid == *uid)
}

fn is_short(threshold: &Threshold, observation: &Observation) -> bool {
    let available = Quantity::from_units(observation.available, Format::BinarySi);
    threshold_quantity(threshold, observation) > available
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
