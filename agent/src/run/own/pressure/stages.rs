//! What the watcher tries before it evicts for memory, as configured: the steps of
//! `decide::eviction::stages`, taken, measured, and undone when the pressure is over.
//!
//! Invariant: what is to be undone is on disk before it is done, so that the next agent undoes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Pressure;
use super::act::wall;
use super::watcher::Watcher;
use crate::apply::cgroupfs::ApplyError;
use crate::apply::checkpoint;
use crate::config::StagesConfig;
use crate::decide::eviction::Relief;
use crate::decide::eviction::rank::rank;
use crate::decide::eviction::stages::{
    PodCgroups, ReliefAbilities, StagesInput, intended, measured, plan, review, undone,
};
use crate::model::cgroup::{Controller, FileKind, FileValue, InterfaceFile};
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{Snapshot, StarvedResource};
use crate::model::pod::PodUid;
use crate::model::relief::{ReliefState, ReliefStep, Stage};
use crate::observe::metrics::labels::{
    EvictionResult, EvictionSignal, EvictionStage, ReclaimCause,
};
use crate::run::own::evictions::Candidate;
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::checkpoint::{self as stored, CheckpointError};
use crate::sys::patience::Patience;
use crate::units::{Bytes, Limit};

const KIND: &str = "relief";
const VERSION: u32 = 1;
/// In the state directory.
const FILE: &str = "relief.json";

/// One step takes no longer: the next look must not wait for it.
const STEP_TIME: Duration = Duration::from_millis(200);

/// The stages with what they have changed.
pub(in crate::run) struct Stages {
    config: StagesConfig,
    abilities: ReliefAbilities,
    reader: CgroupReader,
    page_size: u64,
    patience: Patience,
    path: PathBuf,
    state: ReliefState,
}

impl Stages {
    /// Takes over what an earlier agent left to be undone.
    pub(in crate::run) fn new(
        config: StagesConfig,
        reader: CgroupReader,
        kubepods: &CgroupPath,
        page_size: u64,
        state_directory: &Path,
        patience: Patience,
    ) -> Self {
        let has = |controller: &str, file: &str| {
            let dir = reader.dir(kubepods, controller);
            dir.is_ok_and(|it| it.has(file))
        };
        let is_unified = reader.trees().unified;
        let abilities = ReliefAbilities {
            memory_high: has("memory", "memory.high"),
            memory_reclaim: has("memory", "memory.reclaim"),
            freeze: match is_unified {
                true => has("", "cgroup.freeze"),
                false => has("freezer", "freezer.state"),
            },
        };
        let path = state_directory.join(FILE);
        let state = match stored::read(&path, KIND, VERSION) {
            Ok(state) => state,
            Err(CheckpointError::File(error)) if error.is_gone() => ReliefState::default(),
            Err(error) => {
                tracing::error!(
                    error = crate::observe::chain(&error),
                    "what was changed under pressure is not known and stays"
                );
                ReliefState::default()
            }
        };
        Self {
            config,
            abilities,
            reader,
            page_size,
            patience,
            path,
            state,
        }
    }

    /// Tells the loop what is changed for now.
    pub(super) fn publish(&self, pressure: &Pressure) {
        pressure.set_relief(&self.state);
    }

    /// Those of which something waits to be undone.
    pub(super) fn in_force(&self) -> BTreeSet<Stage> {
        self.state.stages()
    }

    /// Nothing waits to be undone.
    pub(super) fn is_clear(&self) -> bool {
        self.state.is_clear()
    }

    /// Whether `memory.high` is lifted from the container or from all of its pod; `None`: there is
    /// no such file.
    pub(super) fn is_relaxed(&self, pod: &CgroupPath, container: &CgroupPath) -> Option<bool> {
        let is_lifted = self.state.is_relaxed(pod) || self.state.is_relaxed(container);
        self.abilities.memory_high.then_some(is_lifted)
    }

    fn is_off(&self) -> bool {
        self.config == StagesConfig::default()
    }

    fn set(&mut self, state: ReliefState) -> bool {
        if state == self.state {
            return true;
        }
        self.state = state;
        let (path, state) = (self.path.clone(), self.state.clone());
        let saved = self
            .patience
            .ask(move |_asker| checkpoint::replace(&path, KIND, VERSION, &state));
        match saved {
            Some(Ok(())) => return true,
            Some(Err(error)) => tracing::error!(
                error = crate::observe::chain(&error),
                "store what is changed"
            ),
            None => tracing::error!("store what is changed: the disk does not answer"),
        }
        false
    }

    /// What `memory.high` and the freezer are now.
    fn cgroups(&self, pod: &Candidate) -> PodCgroups {
        let high = InterfaceFile {
            controller: Controller::Memory,
            name: "memory.high".to_owned(),
            kind: FileKind::PageLimit,
        };
        let mut memory_high = BTreeMap::new();
        if self.abilities.memory_high {
            let containers = pod.containers.iter().map(|(_, it)| it);
            for path in std::iter::once(&pod.cgroup).chain(containers) {
                let wanted = [(high.clone(), FileValue::Limit(Limit::Max))];
                if let Ok(seen) = self.reader.observe(path, &wanted)
                    && let Some(FileValue::Limit(limit)) = seen.values.get(&high)
                {
                    memory_high.insert(path.clone(), *limit);
                }
            }
        }
        let (controller, file, frozen) = match self.reader.trees().unified {
            true => ("", "cgroup.freeze", "1"),
            false => ("freezer", "freezer.state", "FROZEN"),
        };
        let text = self.reader.dir(&pod.cgroup, controller).ok();
        let text = text.and_then(|dir| dir.read_text(file).ok());
        PodCgroups {
            pod: pod.cgroup.clone(),
            memory_high,
            is_frozen: text.is_some_and(|it| it.trim() == frozen),
        }
    }
}

impl Watcher {
    /// Takes the stages that come before an eviction. `Some`: the eviction may wait until then.
    pub(super) fn try_stages(&mut self, relief: &Relief, snapshot: &Snapshot) -> Option<Duration> {
        let is_memory = relief.threshold.signal.resource() == StarvedResource::Memory;
        if self.parts.stages.is_off() || !is_memory {
            return None;
        }
        let policy = &self.parts.policy;
        let (layout, compat) = (policy.layout, policy.compat);
        let ranked = rank(relief.threshold.signal, layout, compat, &snapshot.pods);
        let ranked: Vec<_> = ranked.iter().map(|it| it.reading).collect();
        let stages = &self.parts.stages;
        let cgroups: BTreeMap<PodUid, PodCgroups> = self
            .candidates
            .iter()
            .map(|it| (it.facts.pod.uid.clone(), stages.cgroups(it)))
            .collect();
        let input = StagesInput {
            config: &stages.config,
            method: self.parts.method,
            abilities: stages.abilities,
            threshold: &relief.threshold,
            snapshot,
            before: self.last.as_ref(),
            ranked: &ranked,
            cgroups: &cgroups,
            page_size: stages.page_size,
        };
        let plan = plan(input, &stages.state);
        let state = intended(&stages.state, &plan.steps, snapshot.at);
        if !self.parts.stages.set(state) {
            return None;
        }
        self.parts.stages.publish(&self.parts.pressure);
        let signal = EvictionSignal::from(relief.threshold.signal);
        let mut freed: BTreeMap<Stage, u64> = BTreeMap::new();
        for step in &plan.steps {
            if let Some(bytes) = self.take_step(step, signal) {
                *freed.entry(step.stage).or_default() += bytes;
            }
        }
        for (stage, bytes) in freed {
            let state = measured(&self.parts.stages.state, stage, bytes);
            self.parts.stages.set(state);
        }
        plan.holds_until
    }

    /// Undoes what is not needed any longer.
    pub(super) fn review_stages(&mut self, snapshot: &Snapshot) {
        if self.parts.stages.is_clear() && self.parts.stages.state.tried.is_empty() {
            return;
        }
        let present: BTreeSet<PodUid> = snapshot
            .pods
            .iter()
            .map(|it| it.facts.pod.uid.clone())
            .collect();
        let ending = snapshot.pods.iter().filter(|it| it.ends_within.is_some());
        let ending = ending.map(|it| it.facts.pod.uid.clone()).collect();
        let is_pressed = !self.state.met.is_empty();
        let state = &self.parts.stages.state;
        let review = review(state, snapshot.at, is_pressed, &present, &ending);
        let mut state = review.state;
        for step in &review.steps {
            match self.parts.writer.carry_out(step, STEP_TIME) {
                Ok(_) | Err(ApplyError::Gone { .. }) => {
                    self.parts.told.relief_undone(step);
                    state = undone(&state, step);
                }
                Err(error) => {
                    tracing::warn!(error = crate::observe::chain(&error), "undo a relief");
                }
            }
        }
        self.parts.stages.set(state);
        self.parts.stages.publish(&self.parts.pressure);
    }

    /// Bytes that it freed, where that could be measured.
    fn take_step(&mut self, step: &ReliefStep, signal: EvictionSignal) -> Option<u64> {
        let stage = match step.stage {
            Stage::Relax => EvictionStage::Relax,
            Stage::Throttle => EvictionStage::Throttle,
            Stage::Reclaim => EvictionStage::Reclaim,
            Stage::Freeze => EvictionStage::Freeze,
        };
        let taken = self.parts.writer.carry_out(step, STEP_TIME);
        let result = match &taken {
            Ok(effect) if effect.is_complete => EvictionResult::Done,
            Ok(_) => EvictionResult::Partial,
            Err(_) => EvictionResult::Failed,
        };
        let metrics = &self.parts.metrics;
        metrics.eviction_action(signal, stage, result, false, wall());
        match taken {
            Ok(effect) => {
                self.parts.told.relief(step, &effect);
                if step.stage == Stage::Reclaim
                    && let Some(bytes) = effect.freed
                {
                    metrics.memory_reclaimed(ReclaimCause::PreEviction, Bytes(bytes));
                }
                effect.freed
            }
            Err(error) => {
                tracing::warn!(
                    pod = %step.pod,
                    stage = step.stage.as_str(),
                    error = crate::observe::chain(&error),
                    "relief"
                );
                None
            }
        }
    }
}
