//! What the watcher does about a decision: gives back what the node holds for nothing, evicts, and
//! measures what came of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use super::watcher::{Acted, Watcher};
use crate::config::Compat;
use crate::decide::eviction::BlockedReason as WhyNot;
use crate::decide::eviction::rank::rank;
use crate::decide::eviction::stall::{self, StallHold, StallInput, StallVerdict};
use crate::decide::eviction::story::Deed;
use crate::decide::eviction::{
    Action, Decision, NodeReclaim, Policy, Reaping, Relief, is_still_short,
};
use crate::model::eviction::{
    Eviction, EvictionCause, NodeCondition, NodeReading, Signal, Snapshot, StarvedResource, Victim,
};
use crate::model::forensics::LastEviction;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::relief::KillOutcome;
use crate::model::status::EvictionStatus;
use crate::model::time::WallTime;
use crate::observe::metrics::EvictionEffect;
use crate::observe::metrics::labels::{
    BlockedReason, EvictionResult, EvictionSignal, EvictionStage,
};
use crate::run::own::event::Event;
use crate::run::own::evictions::Candidate;
use crate::run::own::files::is_left;
use crate::sys::clock;
use crate::units::Bytes;

/// A pod that ends with a grace is waited for this long beyond it, half as long as the grace and at
/// least ten seconds, as kubelet waits (pkg/kubelet/pod_workers.go, v1.36: `killPodNow`).
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// A pod that is killed is waited for this long: what is left then is stuck in the kernel, and
/// memory does not wait.
const KILL_TIME: Duration = Duration::from_secs(2);

/// Files of a pod that was evicted for a disk are waited for this long after its end, as kubelet
/// waits (`podCleanupTimeout`, pkg/kubelet/eviction/eviction_manager.go).
const LEAVE_TIME: Duration = Duration::from_secs(30);

/// A disk that is short fills on: who has how much of it is found out within this time, or decided
/// by what is known.
const MEASURE_TIME: Duration = Duration::from_secs(5);

/// Files in memory of a pod that was killed for it are waited for this long. Nothing else of it takes longer to go, and
/// the others go on using memory.
const LEAVE_TIME_IN_MEMORY: Duration = Duration::from_secs(1);

/// Files of a pod that was evicted for what they take, on their way out.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    /// What the node was short of.
    condition: NodeCondition,
    pod: PodRef,
    directory: PathBuf,
    /// What of it gives back what is short.
    parts: Vec<PathBuf>,
    until: Duration,
    /// Bytes of memory that go with them at most; 0 where that is not known.
    shmem: u64,
}

impl Leaving {
    /// Those in memory go only once their pod is dead, which may take longer than they are waited for.
    fn begins(&mut self, now: Duration) {
        if self.condition == NodeCondition::MemoryPressure {
            self.until = now.saturating_add(LEAVE_TIME_IN_MEMORY);
        }
    }
}

/// Memory is no longer short once those are gone that go for it.
fn are_enough(leaving: &[Leaving], policy: &Policy, relief: &Relief) -> bool {
    let of_memory = leaving
        .iter()
        .filter(|it| it.condition == NodeCondition::MemoryPressure);
    let shmem = of_memory.fold(0, |sum: u64, it| sum.saturating_add(it.shmem));
    let shmem = i64::try_from(shmem).unwrap_or(i64::MAX);
    let mut after = relief.observation;
    after.available = after.available.saturating_add(shmem);
    let after = BTreeMap::from([(relief.threshold.signal, after)]);
    !is_still_short(policy, &relief.threshold, &after)
}

/// An eviction with a grace that is under way.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pod: PodUid,
    /// Whether it is over or not, the next one may go.
    until: Duration,
}

impl Watcher {
    pub(super) fn act(&mut self, decision: &Decision, snapshot: &Snapshot) -> Acted {
        self.held.clear();
        let mut held = Acted::Nothing;
        for it in &decision.blocked {
            let signal = EvictionSignal::from(it.threshold.signal);
            let reason = match it.reason {
                WhyNot::Stale => BlockedReason::Stale,
                WhyNot::Ending => BlockedReason::Rate,
                WhyNot::NoPods | WhyNot::Unknown => BlockedReason::NoCandidate,
                WhyNot::NoCandidate => BlockedReason::Critical,
                WhyNot::Ineffective => {
                    if self.hold(it.threshold.signal, snapshot) == Acted::Waits {
                        held = Acted::Waits;
                    }
                    continue;
                }
            };
            self.parts.metrics.eviction_blocked(signal, reason, wall());
        }
        let acted = match &decision.action {
            None => Acted::Nothing,
            Some(Action::EvictAll { victims }) => {
                for victim in victims {
                    self.evict(victim, snapshot);
                }
                match self.parts.policy.compat {
                    Compat::Ballast => Acted::OwnLimits,
                    // The same ones are chosen until they are gone.
                    Compat::Kubelet => Acted::Asked,
                }
            }
            Some(Action::Relieve(relief)) => self.relieve(relief, snapshot),
        };
        match acted {
            Acted::Nothing => held,
            acted => acted,
        }
    }

    /// Nobody goes since it would be in vain, which is told. By what pods had on a disk long ago it is not decided.
    fn hold(&mut self, signal: Signal, snapshot: &Snapshot) -> Acted {
        let is_of_disk = signal.condition() == NodeCondition::DiskPressure;
        if is_of_disk && !self.is_disk_known(snapshot.at) {
            return Acted::Waits;
        }
        let label = EvictionSignal::from(signal);
        let metrics = &self.parts.metrics;
        metrics.eviction_blocked(label, BlockedReason::Ineffective, wall());
        self.tell_ineffective(signal, snapshot);
        Acted::Nothing
    }

    fn relieve(&mut self, relief: &Relief, snapshot: &Snapshot) -> Acted {
        self.tell_threshold(relief);
        if self.try_stages(relief, snapshot).is_some() {
            return Acted::Asked;
        }
        if self.reclaim(&relief.reclaim) {
            let now = clock::boottime();
            let node = self.parts.reader.read(now);
            if !is_still_short(&self.parts.policy, &relief.threshold, &self.observe(&node)) {
                return Acted::Asked;
            }
        }
        if let Some(pending) = &self.pending
            && !relief.threshold.is_hard()
            && snapshot.at < pending.until
            && snapshot
                .pods
                .iter()
                .any(|it| it.facts.pod.uid == pending.pod)
        {
            return Acted::Nothing;
        }
        self.pending = None;
        let observation = relief.observation;
        if relief.threshold.signal == Signal::PidAvailable
            && let Some(reaping) = &mut self.reaping
            && reaping.is_awaited(&observation)
        {
            return Acted::Waits;
        }
        let Some(victim) = relief.candidates.first() else {
            return match relief.is_ineffective {
                true => self.hold(relief.threshold.signal, snapshot),
                false => Acted::Nothing,
            };
        };
        if relief.threshold.signal.condition() == NodeCondition::DiskPressure
            && self.parts.policy.compat == Compat::Ballast
            && !self.is_disk_known(snapshot.at)
        {
            return Acted::Waits;
        }
        let is_of_memory = relief.threshold.signal.resource() == StarvedResource::Memory;
        if is_of_memory && are_enough(&self.leaving, &self.parts.policy, relief) {
            return Acted::Waits;
        }
        if is_of_memory && self.has_evicted_for_memory && !self.is_short_but_for_lists(relief) {
            return Acted::Waits;
        }
        let acted = self.evict(victim, snapshot);
        self.has_evicted_for_memory |= is_of_memory;
        if acted == Acted::Killed && relief.threshold.signal == Signal::PidAvailable {
            self.reaping = Some(Reaping::default());
        }
        acted
    }

    /// Whether memory is short when what the last pod gave back counts that CPUs keep in their lists.
    fn is_short_but_for_lists(&self, relief: &Relief) -> bool {
        let node = NodeReading {
            free_of_cpus: self.parts.reader.free_of_cpus(),
            ..self.node
        };
        is_still_short(&self.parts.policy, &relief.threshold, &self.observe(&node))
    }

    /// Whether it is known whose files fill the disk now: those of the last victim are gone, and all
    /// others were measured since.
    fn is_disk_known(&self, now: Duration) -> bool {
        if self.is_disk_left() {
            return false;
        }
        let is_late = |since| now >= since + MEASURE_TIME;
        let is_known = self.is_disk_fresh || self.disk_since.is_none_or(is_late);
        if !is_known {
            self.order_disk();
        }
        is_known
    }

    /// Somebody has left a disk that is short, and has not given back all.
    pub(super) fn is_disk_left(&self) -> bool {
        let mut leaving = self.leaving.iter();
        leaving.any(|it| it.condition == NodeCondition::DiskPressure)
    }

    /// Looks whether the files of the last victims are gone. Of a disk the others are measured anew from then on.
    pub(super) fn see_leaving(&mut self, now: Duration) {
        for leaving in std::mem::take(&mut self.leaving) {
            let (directory, parts) = (leaving.directory.clone(), leaving.parts.clone());
            let uid = leaving.pod.uid.clone();
            let is_there = self
                .parts
                .patience
                .ask(move |_asker| is_left(&directory, &uid, &parts));
            let is_there = is_there.unwrap_or(true);
            if is_there && now < leaving.until {
                self.leaving.push(leaving);
                continue;
            }
            if leaving.condition != NodeCondition::DiskPressure {
                continue;
            }
            if is_there {
                let directory = leaving.directory.display();
                let message = format!("{} was evicted and still has {directory}", leaving.pod);
                self.parts.told.node("EvictedFilesRemain", message);
            }
            self.disk_since = Some(now);
        }
    }

    /// Gives back what nobody uses. True: there was some.
    fn reclaim(&self, what: &[NodeReclaim]) -> bool {
        let (candidates, patience) = (&self.candidates, &self.parts.patience);
        // The process runtime has no images.
        what.contains(&NodeReclaim::DeadContainers) && self.old_logs.remove(candidates, patience)
    }

    /// Evicts for stall, if that is configured and both its keys are there.
    pub(super) fn act_on_stall(&mut self, snapshot: &Snapshot) -> Acted {
        let Some(config) = &self.parts.stall else {
            return Acted::Nothing;
        };
        let policy = &self.parts.policy;
        let (signal, layout) = (Signal::AllocatableMemoryAvailable, policy.layout);
        let ranked = rank(signal, layout, policy.compat, &snapshot.pods);
        let ranked: Vec<_> = ranked.iter().map(|it| it.reading).collect();
        let input = StallInput {
            config,
            snapshot,
            ranked: &ranked,
        };
        let decided = stall::decide(input, &self.stall);
        self.stall = decided.state;
        match decided.verdict {
            StallVerdict::Calm => Acted::Nothing,
            StallVerdict::Hold(why) => {
                if let Some(reason) = stall_block(why) {
                    let signal = EvictionSignal::STALL;
                    self.parts.metrics.eviction_blocked(signal, reason, wall());
                }
                Acted::Nothing
            }
            StallVerdict::Evict {
                victim,
                is_dry_run: true,
            } => {
                let signal = EvictionSignal::STALL;
                let (stage, result) = (EvictionStage::Evict, EvictionResult::Done);
                let metrics = &self.parts.metrics;
                metrics.eviction_action(signal, stage, result, true, wall());
                self.parts.told.would_evict(&victim);
                Acted::Nothing
            }
            StallVerdict::Evict { victim, .. } => self.evict(&victim, snapshot),
        }
    }

    /// Notes it, tells the loop, and under a hard threshold kills at once.
    fn evict(&mut self, victim: &Victim, snapshot: &Snapshot) -> Acted {
        let uid = &victim.pod.uid;
        let Some(candidate) = self.candidates.iter().find(|it| it.facts.pod.uid == *uid) else {
            return Acted::Nothing;
        };
        let (cgroup, qos) = (candidate.cgroup.clone(), candidate.facts.qos);
        let eviction = Eviction {
            victim: victim.clone(),
            at: snapshot.at,
            conditions: self.conditions.clone(),
        };
        let ends_at = snapshot.at.saturating_add(victim.grace);
        if let EvictionCause::Threshold { threshold, .. } = &victim.cause
            && self.parts.policy.compat == Compat::Ballast
        {
            let condition = threshold.signal.condition();
            let memory = self.figures.get(uid).and_then(|it| it.memory);
            if let Some(time) = leave_time(condition, victim.grace, candidate) {
                let parts = parts_to_go(condition, candidate).into_iter();
                self.leaving.extend(parts.map(|(directory, parts)| Leaving {
                    condition,
                    pod: victim.pod.clone(),
                    directory,
                    parts,
                    until: ends_at.saturating_add(time),
                    shmem: memory.map_or(0, |it| it.shmem),
                }));
            }
        }
        self.evicted.insert(uid.clone(), ends_at);
        // Without the note a crash right now would start the pod again: no reason not to evict it.
        self.note_eviction(&eviction);
        // The loop hears of it before it hears of the first container that ends.
        self.unsent.push_back(Event::Evict(Box::new(eviction)));
        self.send_unsent();
        let outcome = victim
            .grace
            .is_zero()
            .then(|| self.parts.writer.kill_pod(&cgroup, KILL_TIME));
        let leaving = self.leaving.iter_mut();
        for leaving in leaving.filter(|it| it.pod == victim.pod) {
            leaving.begins(clock::boottime());
        }
        let signal = EvictionSignal::from(&victim.cause);
        let age = self.figures.get(uid).and_then(|it| it.at);
        let age = age.map(|it| snapshot.at.saturating_sub(it));
        let metrics = &self.parts.metrics;
        metrics.pod_evicted(uid, signal, qos, age, wall());
        let stage = match outcome {
            Some(_) => EvictionStage::Kill,
            None => EvictionStage::Evict,
        };
        let result = match &outcome {
            Some(Err(_)) => EvictionResult::Failed,
            Some(Ok(KillOutcome {
                empty_after: None, ..
            })) => EvictionResult::Partial,
            _ => EvictionResult::Done,
        };
        self.parts
            .metrics
            .eviction_action(signal, stage, result, false, wall());
        self.done.push(Deed {
            pod: victim.pod.clone(),
            at: snapshot.at,
            grace: victim.grace,
            gone_at: None,
            freed: None,
        });
        self.last_victim = Some(LastEviction {
            pod: victim.pod.clone(),
            signal: victim.cause.label().to_owned(),
            at: wall(),
        });
        self.last_eviction = Some(EvictionStatus {
            at: wall(),
            uid: uid.clone(),
            pod: victim.pod.to_string(),
            signal: victim.cause.label().to_owned(),
            message: victim.message.trim_end().to_owned(),
            reaction_us: None,
            expected_bytes: victim.expected,
            freed_bytes: None,
        });
        match outcome {
            None => {
                self.pending = Some(Pending {
                    pod: uid.clone(),
                    until: waits_until(snapshot.at, victim.grace),
                });
                Acted::Asked
            }
            Some(Err(error)) => {
                tracing::error!(error = crate::observe::chain(&error), "kill an evicted pod");
                Acted::Asked
            }
            Some(Ok(outcome)) => {
                self.measure(victim, &outcome, stage, snapshot);
                Acted::Killed
            }
        }
    }

    /// On a disk that does not answer in time nothing is noted, and what would be noted too late is
    /// taken back: the loop may have stored the eviction and forgotten it since.
    fn note_eviction(&self, eviction: &Eviction) {
        let (notes, eviction) = (self.parts.notes.clone(), eviction.clone());
        let noted = self.parts.patience.ask(move |asker| {
            let written = notes.write(&eviction);
            match asker.is_waiting() {
                true => written,
                false => notes.remove(&eviction.victim.pod.uid),
            }
        });
        match noted {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(error = crate::observe::chain(&error), "note an eviction");
            }
            None => tracing::error!("note an eviction: the disk does not answer"),
        }
    }

    /// The loop may be waiting for a disk: this thread does not wait for the loop.
    pub(super) fn send_unsent(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            if let Err(TrySendError::Full(event)) = self.parts.to_loop.try_send(event) {
                self.unsent.push_front(event);
                return;
            }
        }
    }

    /// What a kill brought: the time since a hard threshold was crossed, for the first that goes for it,
    /// else since the reading that asked for it; and the memory.
    fn measure(
        &mut self,
        victim: &Victim,
        outcome: &KillOutcome,
        stage: EvictionStage,
        snapshot: &Snapshot,
    ) {
        let now = clock::boottime();
        let crossed = match &victim.cause {
            EvictionCause::Threshold { threshold, .. } if threshold.is_hard() => {
                self.take_crossing(threshold)
            }
            _ => None,
        };
        let began = crossed.unwrap_or(snapshot.at).min(snapshot.at);
        let reaction = outcome.empty_after.map(|_| now.saturating_sub(began));
        tracing::info!(
            pod = %victim.pod,
            n_processes = outcome.n_processes,
            n_released = outcome.n_released,
            signalled_us = outcome.signalled_after.as_micros(),
            empty_us = outcome.empty_after.map(|it| it.as_micros()),
            "killed"
        );
        let is_memory = matches!(
            &victim.cause,
            EvictionCause::Threshold { threshold, .. }
                if matches!(threshold.signal, Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable)
        );
        let freed = outcome.freed.filter(|_| is_memory);
        let signal = EvictionSignal::from(&victim.cause);
        let effect = EvictionEffect {
            expected: victim.expected.filter(|_| is_memory).map(Bytes),
            freed: freed.map(Bytes),
            reaction,
        };
        self.parts.metrics.eviction_effect(signal, stage, &effect);
        if let Some(deed) = self.done.last_mut() {
            deed.gone_at = reaction.map(|_| now);
            deed.freed = freed;
        }
        if let Some(last) = &mut self.last_eviction {
            last.freed_bytes = freed;
            last.reaction_us = reaction.and_then(|it| u64::try_from(it.as_micros()).ok());
        }
    }
}

pub(super) fn wall() -> WallTime {
    WallTime::from_epoch(clock::wall())
}

/// `None`: nobody would go yet.
fn stall_block(why: StallHold) -> Option<BlockedReason> {
    match why {
        StallHold::Measuring | StallHold::Building { .. } | StallHold::Headroom => None,
        StallHold::NoReading => Some(BlockedReason::Stale),
        StallHold::CoolDown { .. } => Some(BlockedReason::Cooldown),
        StallHold::AwaitsRelief => Some(BlockedReason::Rate),
        StallHold::NoCandidate => Some(BlockedReason::NoCandidate),
        StallHold::OnlyCritical => Some(BlockedReason::Critical),
    }
}

/// How long after its end the files of a victim are waited for. `None`: they take nothing of what is short, or it ends so
/// late that others may have to go before.
fn leave_time(condition: NodeCondition, grace: Duration, pod: &Candidate) -> Option<Duration> {
    match condition {
        NodeCondition::DiskPressure => Some(LEAVE_TIME),
        NodeCondition::MemoryPressure if grace.is_zero() => {
            pod.has_volumes_in_memory().then_some(LEAVE_TIME_IN_MEMORY)
        }
        NodeCondition::MemoryPressure | NodeCondition::PIDPressure => None,
    }
}

/// Of which directories: with volumes in memory memory comes back, however long the rest takes.
fn parts_to_go(condition: NodeCondition, pod: &Candidate) -> Vec<(PathBuf, Vec<PathBuf>)> {
    if condition != NodeCondition::MemoryPressure {
        let whole = [&pod.directory, &pod.logs].into_iter();
        return whole
            .map(|it| (it.clone(), vec![PathBuf::from(".")]))
            .collect();
    }
    let volumes = pod.volumes.iter();
    let in_memory = volumes.filter(|(name, _)| pod.is_volume_in_memory(name));
    let parts = in_memory.filter_map(|(_, path)| path.strip_prefix(&pod.directory).ok());
    let parts = parts.map(Path::to_owned).collect();
    vec![(pod.directory.clone(), parts)]
}

/// How long nobody else goes for what a victim is to give back.
fn waits_until(asked_at: Duration, grace: Duration) -> Duration {
    let wait = (grace.saturating_mul(3) / 2).max(LEAST_WAIT);
    asked_at.saturating_add(wait)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decide::eviction::FsLayout;
    use crate::model::cgroup_path::CgroupPath;
    use crate::model::eviction::{Amount, Observation, PodFacts, Threshold, VolumeFacts};
    use crate::model::quantity::Quantity;

    /// `terminationGracePeriodSeconds` may be any number of 63 bits.
    #[test]
    fn a_victim_has_half_its_grace_more_however_long_that_is() {
        let seconds = Duration::from_secs;
        for (grace, until) in [(0, 110), (20, 130), (i64::MAX.unsigned_abs(), u64::MAX / 2)] {
            assert!(
                waits_until(seconds(100), seconds(grace)) >= seconds(until),
                "{grace}"
            );
        }
        assert_eq!(waits_until(seconds(100), seconds(20)), seconds(130));
    }

    fn pod_ref() -> PodRef {
        PodRef {
            namespace: "ns".to_owned(),
            name: "pod".to_owned(),
            uid: PodUid("uid".to_owned()),
        }
    }

    /// They hold memory until they are unmounted, when the pod has long been without a process.
    #[test]
    fn files_in_memory_of_a_pod_that_was_killed_for_memory_are_waited_for() {
        let pod_with_volume = |is_local| {
            let mut facts = PodFacts::bare(pod_ref());
            facts.volumes = vec![VolumeFacts {
                name: "cache".to_owned(),
                is_local,
                size_limit: None,
            }];
            Candidate {
                facts: Arc::new(facts),
                cgroup: CgroupPath::root(),
                containers: Vec::new(),
                logs: PathBuf::from("/logs"),
                directory: PathBuf::from("/pod"),
                volumes: vec![("cache".to_owned(), PathBuf::from("/pod/volumes/cache"))],
                host_paths: Vec::new(),
                ends_at: None,
            }
        };
        let (on_disk, in_memory) = (pod_with_volume(true), pod_with_volume(false));
        let (memory, disk) = (NodeCondition::MemoryPressure, NodeCondition::DiskPressure);
        let (killed, with_grace) = (Duration::ZERO, Duration::from_secs(30));
        for (condition, grace, pod, expected) in [
            (memory, killed, &in_memory, Some(LEAVE_TIME_IN_MEMORY)),
            (memory, killed, &on_disk, None),
            (memory, with_grace, &in_memory, None),
            (disk, killed, &in_memory, Some(LEAVE_TIME)),
            (disk, with_grace, &on_disk, Some(LEAVE_TIME)),
            (NodeCondition::PIDPressure, killed, &in_memory, None),
        ] {
            let time = leave_time(condition, grace, pod);
            assert_eq!(time, expected, "{condition:?} {grace:?}");
        }
        let (pod, logs) = (PathBuf::from("/pod"), PathBuf::from("/logs"));
        let [cache, all] = ["volumes/cache", "."].map(|it| vec![PathBuf::from(it)]);
        assert_eq!(parts_to_go(memory, &in_memory), [(pod.clone(), cache)]);
        assert_eq!(
            parts_to_go(disk, &in_memory),
            [(pod, all.clone()), (logs, all)]
        );
    }

    /// A kill may take twice as long.
    #[test]
    fn files_in_memory_are_waited_for_from_the_end_of_the_kill() {
        let seconds = Duration::from_secs;
        let until = |condition| {
            let mut leaving = Leaving {
                condition,
                pod: pod_ref(),
                directory: PathBuf::from("/pod"),
                parts: Vec::new(),
                until: seconds(130),
                shmem: 0,
            };
            leaving.begins(seconds(102));
            leaving.until
        };
        assert_eq!(until(NodeCondition::MemoryPressure), seconds(103));
        assert_eq!(until(NodeCondition::DiskPressure), seconds(130));
    }

    /// Others who take more of it meanwhile are not waited with.
    #[test]
    fn files_in_memory_are_waited_for_while_they_are_enough() {
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            amount: Amount::Quantity(Quantity::from_bytes(100)),
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        let policy = Policy {
            thresholds: vec![threshold.clone()],
            n_known_at_first: 1,
            transition_period: Duration::ZERO,
            max_pod_grace: Duration::ZERO,
            limits_local_storage: false,
            layout: FsLayout::One,
            compat: Compat::Ballast,
        };
        let (memory, disk) = (NodeCondition::MemoryPressure, NodeCondition::DiskPressure);
        for (available, all, expected) in [
            (60, &[(memory, 40)][..], true),
            (59, &[(memory, 40)], false),
            (99, &[(memory, 0)], false),
            (0, &[(memory, u64::MAX)], true),
            (99, &[], false),
            // Those of the first victim are there still when the second goes.
            (60, &[(memory, 30), (memory, 10)], true),
            (0, &[(memory, u64::MAX), (memory, 1)], true),
            (60, &[(memory, 30), (disk, 10)], false),
        ] {
            let leaving = all.iter().map(|(condition, shmem)| Leaving {
                condition: *condition,
                pod: pod_ref(),
                directory: PathBuf::from("/pod"),
                parts: Vec::new(),
                until: Duration::ZERO,
                shmem: *shmem,
            });
            let leaving: Vec<Leaving> = leaving.collect();
            let relief = Relief {
                threshold: threshold.clone(),
                observation: Observation {
                    available,
                    capacity: 1000,
                    at: None,
                },
                reclaim: Vec::new(),
                candidates: Vec::new(),
                is_ineffective: false,
            };
            let found = are_enough(&leaving, &policy, &relief);
            assert_eq!(found, expected, "{available} and {all:?}");
        }
    }
}
