//! What is tried before a pod is evicted for memory, mildest first, and how it is undone: relax
//! `memory.high` of those who stall below their request, slow down the first candidate, have cache
//! dropped, freeze BestEffort pods.
//!
//! A stage is for pressure that builds up slowly. Where memory runs out within seconds it is passed
//! over, and so it is for a hard threshold at an unknown pace: the eviction must not wait for it.
//!
//! Invariant: what is changed is in the [`ReliefState`] before it is done, and stays there until it
//! is undone. A pod is frozen once per time of pressure, and never for longer than [`MAX_FREEZE`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::amount_of;
use super::reclaimable::{CacheEvidence, reclaimable};
use super::trend::{Point, gain_within, time_to_fall};
use crate::config::StagesConfig;
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{
    MemoryMethod, MemoryUse, PodFigures, PodReading, Signal, Snapshot, Threshold,
};
use crate::model::pod::{PodUid, QosClass};
use crate::model::relief::{
    ChangedMemoryHigh, FrozenPod, ReliefAction, ReliefState, ReliefStep, Stage, Tried,
};
use crate::units::Limit;

/// How far growth is looked ahead: kubelet's own time between two looks.
const HORIZON: Duration = Duration::from_secs(10);
/// A stage shows its effect within this time; the eviction may wait for it.
const SETTLE: Duration = Duration::from_secs(1);
/// Dropping cache takes its time: a slow disk writes and reads at a hundred megabytes per second.
const RECLAIM_TIME: Duration = Duration::from_secs(5);
/// Below this there is more work than gain.
const LEAST_RECLAIM: u64 = 16 << 20;
/// Of one pod in one step.
const MOST_RECLAIM: u64 = 1 << 30;
/// Growth that is worth a freeze, bytes within [`HORIZON`].
const LEAST_GROWTH: i64 = 16 << 20;
/// A frozen pod fails its probes and the time limits of its clients soon after.
const MAX_FREEZE: Duration = Duration::from_secs(30);
/// How long it has to be calm before what was done is undone.
const CALM: Duration = Duration::from_secs(10);

/// What this kernel can do to a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReliefAbilities {
    /// v2.
    pub memory_high: bool,
    /// v2, Linux 5.19.
    pub memory_reclaim: bool,
    pub freeze: bool,
}

/// The cgroups of a pod as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCgroups {
    pub pod: CgroupPath,
    /// Of the pod and of its containers, as read from the kernel; empty on v1.
    pub memory_high: BTreeMap<CgroupPath, Limit>,
    /// Frozen by anybody.
    pub is_frozen: bool,
}

/// All that one plan needs.
#[derive(Clone, Copy, Debug)]
pub struct StagesInput<'a> {
    pub config: &'a StagesConfig,
    pub method: MemoryMethod,
    pub abilities: ReliefAbilities,
    /// Met, or near.
    pub threshold: &'a Threshold,
    pub snapshot: &'a Snapshot,
    /// The one before; without it no pace is known.
    pub before: Option<&'a Snapshot>,
    /// By the ranking for memory, first to go first.
    pub ranked: &'a [&'a PodReading],
    pub cgroups: &'a BTreeMap<PodUid, PodCgroups>,
    pub page_size: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagePlan {
    /// To be taken in this order; those of one stage, and of [`Stage::Relax`].
    pub steps: Vec<ReliefStep>,
    /// Why a stage has no step.
    pub skipped: BTreeMap<Stage, StageSkip>,
    /// The eviction may be held back until then, to see what the stage gives.
    pub holds_until: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageSkip {
    /// Not in the configuration.
    Off,
    /// The kernel has no means for it.
    Unable,
    /// Memory is used up in this time, before the stage could show an effect.
    LittleTime { left: Duration },
    /// A hard threshold, and no telling how soon memory is used up.
    UnknownPace,
    /// Tried since the pressure began, and gave too little or may not be tried again.
    Exhausted,
    /// An earlier stage has steps, or has yet to show its effect.
    Later,
    /// No pod to do it to.
    NoTarget,
}

/// What to try before an eviction for this threshold. Nothing for other resources than memory, and
/// nothing on a reading that is missing.
pub fn plan(input: StagesInput<'_>, state: &ReliefState) -> StagePlan {
    let mut plan = StagePlan::default();
    let Some(need) = Need::new(input) else {
        return plan;
    };
    let now = input.snapshot.at;
    let settles = state
        .tried
        .iter()
        .filter(|(stage, _)| **stage != Stage::Relax)
        .map(|(_, it)| it.at.saturating_add(SETTLE))
        .max()
        .filter(|until| *until > now);
    let mut is_taken = settles.is_some();
    for stage in Stage::ALL {
        if let Some(reason) = need.skips(input, state, stage) {
            plan.skipped.insert(stage, reason);
            continue;
        }
        if is_taken && stage != Stage::Relax {
            plan.skipped.insert(stage, StageSkip::Later);
            continue;
        }
        let steps = steps_of(input, state, stage, need.wanted);
        if steps.is_empty() {
            plan.skipped.insert(stage, StageSkip::NoTarget);
        } else if stage != Stage::Relax {
            is_taken = true;
            plan.holds_until = Some(now.saturating_add(SETTLE));
        }
        plan.steps.extend(steps);
    }
    if plan.holds_until.is_none() && need.has_time(SETTLE) {
        plan.holds_until = settles;
    }
    plan
}

fn available(snapshot: &Snapshot, signal: Signal) -> Option<Point> {
    let observation = snapshot.observations.get(&signal)?;
    Some(Point {
        at: observation.at.unwrap_or(snapshot.at),
        value: observation.available,
    })
}

/// How much is missing, and how soon it is too late.
struct Need {
    /// Bytes that keep the signal above the threshold and its minimum reclaim for [`HORIZON`].
    wanted: u64,
    is_hard: bool,
    pace: Option<Pace>,
}

struct Pace {
    /// `None`: it does not fall.
    time_to_zero: Option<Duration>,
}

impl Need {
    /// `None`: not about memory, not known, or nothing is missing.
    fn new(input: StagesInput<'_>) -> Option<Self> {
        let threshold = input.threshold;
        if !matches!(
            threshold.signal,
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable
        ) {
            return None;
        }
        let capacity = input.snapshot.observations.get(&threshold.signal)?.capacity;
        let now = available(input.snapshot, threshold.signal)?;
        let before = input.before.and_then(|it| available(it, threshold.signal));
        let pace = before.and_then(|before| {
            let gain = gain_within(before, now, HORIZON)?;
            Some((gain, time_to_fall(before, now, now.value)))
        });
        let lost = pace.map_or(0, |(gain, _)| gain.min(0));
        let reclaim = threshold
            .min_reclaim
            .as_ref()
            .map_or(0, |it| amount_of(it, capacity));
        let wanted = amount_of(&threshold.amount, capacity)
            .saturating_add(reclaim)
            .saturating_sub(now.value.saturating_add(lost));
        Some(Self {
            wanted: u64::try_from(wanted).ok().filter(|it| *it > 0)?,
            is_hard: threshold.is_hard(),
            pace: pace.map(|(_, time_to_zero)| Pace { time_to_zero }),
        })
    }

    /// Memory lasts for longer than this; what is not known lasts where the threshold is soft.
    fn has_time(&self, span: Duration) -> bool {
        match &self.pace {
            Some(pace) => pace.time_to_zero.is_none_or(|it| it > span),
            None => !self.is_hard,
        }
    }

    fn skips(
        &self,
        input: StagesInput<'_>,
        state: &ReliefState,
        stage: Stage,
    ) -> Option<StageSkip> {
        let StagesInput {
            config, abilities, ..
        } = input;
        let (is_on, is_able, time) = match stage {
            Stage::Relax => (config.relax_memory_high, abilities.memory_high, SETTLE),
            Stage::Throttle => (config.set_memory_high, abilities.memory_high, SETTLE),
            Stage::Reclaim => (config.reclaim, abilities.memory_reclaim, RECLAIM_TIME),
            Stage::Freeze => (config.freeze_best_effort, abilities.freeze, SETTLE),
        };
        if !is_on {
            return Some(StageSkip::Off);
        }
        if !is_able {
            return Some(StageSkip::Unable);
        }
        // By the estimate, cache that can go is available already.
        if stage == Stage::Reclaim && input.method == MemoryMethod::Estimate {
            return Some(StageSkip::NoTarget);
        }
        if !self.has_time(time) {
            let left = self.pace.as_ref().and_then(|it| it.time_to_zero);
            return Some(
                left.map_or(StageSkip::UnknownPace, |left| StageSkip::LittleTime {
                    left,
                }),
            );
        }
        let tried = state.tried.get(&stage)?;
        let is_exhausted = match stage {
            Stage::Relax | Stage::Throttle => false,
            // A quarter of what was promised is worth another attempt.
            Stage::Reclaim => tried.freed.is_none_or(|it| it < tried.expected / 4),
            Stage::Freeze => true,
        };
        is_exhausted.then_some(StageSkip::Exhausted)
    }
}

fn steps_of(
    input: StagesInput<'_>,
    state: &ReliefState,
    stage: Stage,
    wanted: u64,
) -> Vec<ReliefStep> {
    // To be spared is for all; what takes something is for those who may be evicted.
    let candidates = || {
        let ranked = input.ranked.iter().copied();
        ranked
            .filter(|it| !it.facts.is_critical)
            .filter_map(|it| Target::new(input, it))
    };
    match stage {
        Stage::Relax => {
            let pods = input.snapshot.pods.iter();
            let targets = pods.filter_map(|it| Target::new(input, it));
            targets.flat_map(|it| it.relax(state)).collect()
        }
        Stage::Throttle => {
            let first = candidates().next();
            first
                .and_then(|it| it.throttle(state))
                .into_iter()
                .collect()
        }
        Stage::Reclaim => {
            let mut missing = wanted;
            let mut steps = Vec::new();
            for target in candidates() {
                let step = target.reclaim(missing);
                missing -= step.as_ref().map_or(0, |it| it.expected.min(missing));
                steps.extend(step);
                if missing == 0 {
                    break;
                }
            }
            steps
        }
        Stage::Freeze => candidates().filter_map(|it| it.freeze()).collect(),
    }
}

/// A pod that stays, with what is known of it.
struct Target<'a> {
    reading: &'a PodReading,
    cgroups: &'a PodCgroups,
    memory: MemoryUse,
    evidence: Option<CacheEvidence>,
    /// Of the working set within [`HORIZON`], bytes; `None`: not known.
    growth: Option<i64>,
}

impl<'a> Target<'a> {
    /// `None` where its memory or its cgroup is not known, and for a pod that is ending.
    fn new(input: StagesInput<'a>, reading: &'a PodReading) -> Option<Self> {
        let uid = &reading.facts.pod.uid;
        let figures = reading.figures.as_ref()?;
        let cgroups = input.cgroups.get(uid)?;
        if reading.ends_within.is_some() {
            return None;
        }
        let pods = input.before.map_or(&[][..], |it| &it.pods);
        let before = pods
            .iter()
            .find(|it| it.facts.pod.uid == *uid)
            .and_then(|it| it.figures.as_ref());
        Some(Self {
            reading,
            cgroups,
            memory: figures.memory?,
            evidence: before.and_then(|it| CacheEvidence::between(it, figures, input.page_size)),
            growth: before
                .and_then(|it| gain_within(working_set(it)?, working_set(figures)?, HORIZON)),
        })
    }

    fn step(&self, stage: Stage, cgroup: &CgroupPath, action: ReliefAction) -> ReliefStep {
        ReliefStep {
            stage,
            pod: self.reading.facts.pod.clone(),
            cgroup: cgroup.clone(),
            action,
            expected: 0,
        }
    }

    fn request(&self) -> u64 {
        self.reading.facts.memory_request.units()
    }

    fn relax(&self, state: &ReliefState) -> Vec<ReliefStep> {
        let is_stalled = self.evidence.and_then(|it| it.is_stalled) == Some(true);
        if !is_stalled || self.memory.working_set() >= self.request() {
            return Vec::new();
        }
        let limited = self.cgroups.memory_high.iter();
        limited
            .filter(|(cgroup, high)| **high != Limit::Max && state.memory_high_of(cgroup).is_none())
            .map(|(cgroup, &before)| {
                let to = Limit::Max;
                self.step(
                    Stage::Relax,
                    cgroup,
                    ReliefAction::SetMemoryHigh { before, to },
                )
            })
            .collect()
    }

    /// Over its request, growing, and not held by `memory.high` yet.
    fn throttle(&self, state: &ReliefState) -> Option<ReliefStep> {
        let usage = self.memory.usage;
        let growth = self.growth.and_then(|it| u64::try_from(it).ok())?;
        let cgroup = &self.cgroups.pod;
        let before = *self.cgroups.memory_high.get(cgroup)?;
        let to = Limit::At(usage);
        let can_be = growth > 0
            && self.memory.working_set() > self.request()
            && to < before
            && state.memory_high_of(cgroup).is_none();
        can_be.then(|| ReliefStep {
            expected: growth,
            ..self.step(
                Stage::Throttle,
                cgroup,
                ReliefAction::SetMemoryHigh { before, to },
            )
        })
    }

    /// The kernel takes inactive file pages first. Those count as available already, so what is
    /// gained is what lies behind them.
    fn reclaim(&self, missing: u64) -> Option<ReliefStep> {
        let inactive = self.memory.inactive_file;
        let spare = reclaimable(&self.memory, self.evidence.as_ref());
        let bytes = spare
            .min(inactive.saturating_add(missing))
            .min(MOST_RECLAIM);
        let expected = bytes.saturating_sub(inactive);
        (expected >= LEAST_RECLAIM.min(missing)).then(|| ReliefStep {
            expected,
            ..self.step(
                Stage::Reclaim,
                &self.cgroups.pod,
                ReliefAction::Reclaim { bytes },
            )
        })
    }

    fn freeze(&self) -> Option<ReliefStep> {
        let growth = self.growth.filter(|it| *it >= LEAST_GROWTH)?;
        let can_be = self.reading.facts.qos == QosClass::BestEffort && !self.cgroups.is_frozen;
        can_be.then(|| ReliefStep {
            expected: growth.unsigned_abs(),
            ..self.step(Stage::Freeze, &self.cgroups.pod, ReliefAction::Freeze)
        })
    }
}

fn working_set(figures: &PodFigures) -> Option<Point> {
    Some(Point {
        at: figures.at?,
        value: i64::try_from(figures.memory_working_set?).ok()?,
    })
}

/// The state to be stored before `steps` are taken.
pub fn intended(state: &ReliefState, steps: &[ReliefStep], now: Duration) -> ReliefState {
    let mut state = state.clone();
    let mut expected: BTreeMap<Stage, u64> = BTreeMap::new();
    for step in steps {
        let sum = expected.entry(step.stage).or_default();
        *sum = sum.saturating_add(step.expected);
        match step.action {
            ReliefAction::SetMemoryHigh { before, to } => {
                state.memory_high.push(ChangedMemoryHigh {
                    stage: step.stage,
                    pod: step.pod.clone(),
                    cgroup: step.cgroup.clone(),
                    before,
                    to,
                });
            }
            ReliefAction::Freeze => state.frozen.push(FrozenPod {
                pod: step.pod.clone(),
                cgroup: step.cgroup.clone(),
                since: now,
            }),
            ReliefAction::Reclaim { .. } | ReliefAction::Thaw => {}
        }
    }
    for (stage, expected) in expected {
        let freed = None;
        state.tried.insert(
            stage,
            Tried {
                at: now,
                expected,
                freed,
            },
        );
    }
    state
}

/// The state when the steps of a stage were measured: `freed` bytes, all together.
pub fn measured(state: &ReliefState, stage: Stage, freed: u64) -> ReliefState {
    let mut state = state.clone();
    if let Some(tried) = state.tried.get_mut(&stage) {
        tried.freed = Some(freed);
    }
    state
}

/// What is to be undone by now, and the state without pods that are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Review {
    /// Steps that are still in it are for [`undone`] when they were taken.
    pub state: ReliefState,
    pub steps: Vec<ReliefStep>,
}

/// Looks at what was changed, in every pass and first of all after a start. All is undone when
/// there was no pressure for [`CALM`]; before that, a pod is thawed that is ending or was frozen for
/// [`MAX_FREEZE`].
///
/// `is_pressed`: a threshold is met or near. `present` are the pods that have a cgroup.
pub fn review(
    state: &ReliefState,
    now: Duration,
    is_pressed: bool,
    present: &BTreeSet<PodUid>,
    ending: &BTreeSet<PodUid>,
) -> Review {
    let mut state = state.clone();
    state.memory_high.retain(|it| present.contains(&it.pod.uid));
    state.frozen.retain(|it| present.contains(&it.pod.uid));
    let since = *state.calm_since.get_or_insert(now);
    let is_over = !is_pressed && now.saturating_sub(since) >= CALM;
    if is_pressed {
        state.calm_since = None;
    }
    if is_over {
        state.tried.clear();
    }
    let thaws = state.frozen.iter().filter(|it| {
        // After a restart of the node the clock begins anew; nothing is frozen then.
        let is_old = now.checked_sub(it.since).is_none_or(|it| it >= MAX_FREEZE);
        is_over || is_old || ending.contains(&it.pod.uid)
    });
    let mut steps: Vec<ReliefStep> = thaws
        .map(|it| ReliefStep {
            stage: Stage::Freeze,
            pod: it.pod.clone(),
            cgroup: it.cgroup.clone(),
            action: ReliefAction::Thaw,
            expected: 0,
        })
        .collect();
    let restores = state.memory_high.iter().filter(|_| is_over);
    steps.extend(restores.map(|it| ReliefStep {
        stage: it.stage,
        pod: it.pod.clone(),
        cgroup: it.cgroup.clone(),
        action: ReliefAction::SetMemoryHigh {
            before: it.to,
            to: it.before,
        },
        expected: 0,
    }));
    if state.is_clear() && state.tried.is_empty() {
        state.calm_since = None;
    }
    Review { state, steps }
}

/// The state after a step of a [`Review`] was taken, or its cgroup was found gone.
pub fn undone(state: &ReliefState, step: &ReliefStep) -> ReliefState {
    let mut state = state.clone();
    match step.action {
        ReliefAction::Thaw => state.frozen.retain(|it| it.cgroup != step.cgroup),
        ReliefAction::SetMemoryHigh { .. } => {
            state.memory_high.retain(|it| it.cgroup != step.cgroup);
        }
        ReliefAction::Freeze | ReliefAction::Reclaim { .. } => {}
    }
    state
}

#[cfg(test)]
mod tests;
