//! What the watcher shows of a pass: conditions, signals, the eviction order, and the same to the
//! metrics and to the records of OOM kills. Nothing depends on it.

use std::sync::PoisonError;
use std::time::Duration;

use super::watcher::{ToldIneffective, Watcher};
use crate::decide::eviction::brake::Split;
use crate::decide::eviction::writer::{HostPath, Writer};
use crate::decide::eviction::{Decision, Relief, signals};
use crate::model::eviction::{MemoryMethod, NodeCondition, Signal, Snapshot, StarvedResource};
use crate::model::forensics::{AgentState, Headroom};
use crate::model::status::{PressureStatus, WakerStatus};
use crate::run::own::event::Event;
use crate::run::own::told;
use crate::run::{self, standings};
use crate::sources::largest::largest_outside;
use crate::sources::wakers::WakerState;
use crate::sys::{Root, clock};

/// A walk over directories of the host is waited for this long before people are told without it.
const HOST_PATH_TIME: Duration = Duration::from_secs(15);

impl Watcher {
    /// Tells people when the node becomes short of something, and when it is over.
    pub(super) fn tell_changes(&mut self, decision: &Decision) {
        if decision.conditions == self.conditions {
            return;
        }
        for condition in NodeCondition::ALL {
            let (is, was) = (
                decision.conditions.contains(&condition),
                self.conditions.contains(&condition),
            );
            if is != was {
                self.parts.told.node_condition(condition, is);
            }
        }
        self.conditions = decision.conditions.clone();
        // A full channel: the loop looks at the status in its next pass anyway.
        self.parts.to_loop.try_send(Event::Pressure).ok();
    }

    /// Once for each time that a threshold begins to be acted upon.
    pub(super) fn tell_threshold(&mut self, relief: &Relief) {
        if self.told_threshold.as_ref() != Some(&relief.threshold) {
            self.parts
                .told
                .threshold_met(&relief.threshold, &relief.observation);
            self.told_threshold = Some(relief.threshold.clone());
        }
    }

    /// Evictions have ended, and who seems to be the reason. Once, although what is given back and taken
    /// again crosses the threshold every few seconds.
    pub(super) fn tell_ineffective(&mut self, signal: Signal, snapshot: &Snapshot) {
        self.held.insert(signal);
        let layout = self.parts.policy.layout;
        let resource = layout.stands_for(signal);
        if self.told_ineffective.contains_key(&resource) {
            return;
        }
        let brake = self.state.brakes.get(layout, signal);
        let now = Split::of(signal, layout, snapshot);
        let Some((brake, now)) = brake.zip(now) else {
            return;
        };
        let in_vain = brake.in_vain(signal.resource(), now);
        let who = match signal.resource() {
            StarvedResource::Memory => {
                let largest = largest_outside(&Root::host(), self.parts.kubepods.as_str());
                Some(told::largest(largest.as_ref()))
            }
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                let Some(host_paths) = self.host_paths(snapshot.at) else {
                    return;
                };
                let before = self.before_short.as_ref();
                let writer =
                    Writer::of((resource, layout), &in_vain, &host_paths, before, snapshot);
                Some(writer.to_string())
            }
            StarvedResource::Pids => None,
        };
        let message = self.parts.told.ineffective(resource, &in_vain, who);
        let at = snapshot.at;
        self.told_ineffective
            .insert(resource, ToldIneffective { at, message });
    }

    /// Volumes that are directories of the host, as far as they are measured by then. `None`: it is worth waiting for.
    fn host_paths(&self, now: Duration) -> Option<Vec<HostPath>> {
        let since = self.disk_since.unwrap_or(now);
        let found = self.disk.host_paths.found_since(since);
        if found.is_none() && now < since + HOST_PATH_TIME {
            self.disk.host_paths.order(&self.candidates, since);
            return None;
        }
        Some(found.unwrap_or_default())
    }

    pub(super) fn show(&mut self, snapshot: &Snapshot, decision: &Decision) {
        let now = clock::boottime();
        let status = self.status(snapshot, decision, now);
        self.parts.metrics.set_pressure(&status, now);
        if let Some(recorder) = &self.parts.recorder {
            let counts = recorder.counts();
            let n_left_out = counts.n_dropped + counts.n_failed;
            let metrics = &self.parts.metrics;
            metrics.set_recording(counts.n_bytes, n_left_out, counts.oldest);
        }
        let agent = self.agent_state(&status);
        let background = &self.parts.background.agent;
        *background.write().unwrap_or_else(PoisonError::into_inner) = agent;
        let ineffective = status.ineffective.clone();
        self.parts.pressure.set_status(status);
        if ineffective != self.shown_ineffective {
            self.shown_ineffective = ineffective;
            // A full channel: the loop shows it with its next pass.
            self.parts.to_loop.try_send(Event::Pressure).ok();
        }
    }

    /// For the record of an OOM kill: what the agent knew then.
    fn agent_state(&self, status: &PressureStatus) -> AgentState {
        let thresholds = status.signals.iter().flat_map(|signal| {
            signal.thresholds.iter().map(|it| Headroom {
                signal: signal.signal,
                headroom: signal
                    .available
                    .zip(it.amount)
                    .map(|(available, amount)| available.saturating_sub(amount)),
                is_hard: it.is_hard,
            })
        });
        AgentState {
            conditions: status.conditions.clone(),
            thresholds: thresholds.collect(),
            last_eviction: self.last_victim.clone(),
        }
    }

    fn status(
        &mut self,
        snapshot: &Snapshot,
        decision: &Decision,
        now: Duration,
    ) -> PressureStatus {
        let node = &snapshot.node;
        PressureStatus {
            conditions: decision.conditions.clone(),
            stages: self.parts.stages.in_force(),
            signals: run::signals::signals(
                &self.parts.policy.thresholds,
                &snapshot.observations,
                now,
                &|it| self.state.met.iter().any(|met| met.threshold == *it),
            ),
            memory_method: self.parts.method,
            memory_available: MemoryMethod::MEASURED
                .into_iter()
                .filter_map(|method| {
                    let before = Some(&self.before);
                    Some((method, signals::available_memory(node, before, method)?))
                })
                .collect(),
            stalls: run::signals::stalls(node, self.parts.sweeper.class_stalls()),
            wakers: self.wakers(),
            order: standings::order(
                self.parts.policy.layout,
                self.parts.policy.compat,
                &snapshot.pods,
            ),
            critical: standings::critical(&snapshot.pods),
            last_eviction: self.last_eviction.clone(),
            ineffective: self
                .held
                .iter()
                .filter_map(|signal| {
                    let resource = self.parts.policy.layout.stands_for(*signal);
                    let told = self.told_ineffective.get(&resource)?;
                    Some((*signal, told.message.clone()))
                })
                .collect(),
        }
    }

    fn wakers(&self) -> Vec<WakerStatus> {
        let states = self.parts.wakers.states().iter();
        states
            .filter_map(|(waker, state)| {
                let (is_armed, reason) = match state {
                    WakerState::Armed => (true, None),
                    WakerState::Slow { reason } => (true, Some(reason.clone())),
                    WakerState::Failed { reason } => (false, Some(reason.clone())),
                    WakerState::Absent => return None,
                };
                Some(WakerStatus {
                    name: waker.to_string(),
                    is_armed,
                    reason,
                })
            })
            .collect()
    }
}
