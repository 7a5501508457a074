//! What an earlier agent left: stored pods, running containers, events that waited in the pinned
//! rings. Also the words of the runtime about containers, which are the same after a restart.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::event::Sender;
use super::hands::DeviceControl;
use super::pods::{self, Instance, PodEntry};
use super::start::container_id;
use super::undecided::LeftContainer;
use super::{KERNEL_EVENTS, Loop};
use crate::apply::checkpoint;
use crate::apply::devices::DEVICE_PROGRAM;
use crate::config::Compat;
use crate::decide::eviction::facts::pod_facts;
use crate::decide::pod_state::{Begun, PodState};
use crate::decide::qos::qos_class;
use crate::model::container::{self, ContainerState, SpecHash, Termination};
use crate::model::event::{ExitStatus, KernelEvent, ProcessChange};
use crate::model::pod::{Pod, PodUid};
use crate::model::time::WallTime;
use crate::observe::event_log::EventLog;
use crate::observe::metrics::labels::RestoreResult;
use crate::run::RunError;
use crate::run::forensics::Recorder;
use crate::run::kernel::{self, Listener, Locate, Outputs, Prepared, Programs};
use crate::runtime::logs;
use crate::runtime::{
    ContainerExit, ContainerId, ContainerRecord, HostProcess, ReportedExit, Signal, StartWarning,
    UnknownExit,
};
use crate::sources::bpf::DEVICE_COUNTER;
use crate::sources::checkpoint::{self as stored, CheckpointError};
use crate::sources::kube_tree;
use crate::sources::manifests::Running;
use crate::sources::oomd;
use crate::sys::{Dir, clock};

impl Loop {
    /// Adopts the programs of an earlier agent, looks at what waits in their rings, and starts the
    /// listener, which loads the other programs beside all that follows. `None`, with the reason
    /// told, where there is nothing to listen to: the loop then lives by its timers.
    pub(super) fn start_listening(
        &mut self,
        log: &EventLog,
        recorder: Recorder,
        to_loop: Sender,
    ) -> Result<Option<Prepared>, RunError> {
        let watched = match self.node.watched_root(&self.hands.plan.kubepods_path()) {
            Ok(watched) => watched,
            Err(error) => {
                tracing::warn!(error = crate::observe::chain(&error), "watched root");
                None
            }
        };
        let streams = match kernel::adopt(&self.config.bpf, watched) {
            Ok(streams) => streams,
            Err(error) => {
                self.programs_loaded(Programs::none(&error));
                return Ok(None);
            }
        };
        let first = Arc::clone(&self.first_processes);
        let listener = Listener::new(
            streams,
            self.device_directory(),
            self.shared.clone(),
            Outputs {
                log: log.clone(),
                recorder,
                metrics: self.metrics.clone(),
                is_first: Some(Box::new(move |kill| first.is_first(kill))),
                tell: self.tell_loop(to_loop),
                locate: self.locate(),
                cgroups_first: false,
            },
        );
        listener.prepare().map(Some).map_err(RunError::Thread)
    }

    /// What lies far below the cgroup of all pods, in the cgroups of this agent. Those of a kubelet beside them are none.
    fn locate(&self) -> Locate {
        let kubepods = self.hands.plan.kubepods_path();
        let roots = [kubepods.parent().unwrap_or(kubepods)];
        let trees = Arc::clone(self.node.reader.trees());
        let shared = Arc::clone(&self.shared);
        Box::new(move |id| {
            let located = match kube_tree::locate(&trees, &roots, id) {
                Ok(located) => located?,
                Err(error) => {
                    // `check` says what is not known without the capability.
                    let error = crate::observe::chain(&error);
                    tracing::debug!(error, "look for a cgroup that a kill speaks of");
                    return None;
                }
            };
            let topmost = located.lineage.below_root[0]?;
            let is_own = shared.index().get(topmost).is_some();
            is_own.then_some(located.lineage)
        })
    }

    /// Where the one program belongs that hangs on a cgroup: it counts device accesses below
    /// kubepods, where a cgroup2 hierarchy has it.
    pub(super) fn device_directory(&self) -> Option<Dir> {
        match self
            .node
            .reader
            .unified_dir(&self.hands.plan.kubepods_path())
        {
            Ok(directory) => directory,
            Err(error) => {
                tracing::warn!(error = crate::observe::chain(&error), "device counter");
                None
            }
        }
    }

    /// Says what is known of the eBPF programs from now on. A node without them is ready too.
    pub(super) fn programs_loaded(&mut self, programs: Programs) {
        let counts = &self.shared.kill_counts;
        self.publisher
            .programs_loaded(&programs, counts, &self.metrics, &self.told);
        let devices = match &self.hands.device_control {
            Some(DeviceControl::Program) => Some(Ok(())),
            Some(DeviceControl::Off(why)) => Some(Err(why.clone())),
            Some(DeviceControl::Controller) | None => None,
        };
        for (name, attached) in [(DEVICE_COUNTER, programs.device), (DEVICE_PROGRAM, devices)] {
            if let Some(attached) = attached {
                self.publisher.cgroup_program(name, attached, &self.metrics);
            }
        }
        self.health.unblock(KERNEL_EVENTS);
    }

    /// Reads the stored pods, adopts what runs, and settles what ended meanwhile. `waiting`: the
    /// kernel's events since the last agent.
    pub(super) fn recover(&mut self, waiting: Option<&[KernelEvent]>) -> Result<(), RunError> {
        let now = clock::boottime();
        self.load_ownership().map_err(RunError::State)?;
        self.load_pods()?;
        // Exits first: the runtime wants to know how containers ended before it is asked.
        for event in waiting.into_iter().flatten() {
            if let KernelEvent::Process(process) = event
                && let ProcessChange::Exit { status, .. } = process.change
            {
                let at = Duration::from_nanos(process.at_ns);
                let exit = ReportedExit { status, at };
                self.runtime.report_exit(process.process, exit);
            }
        }
        let victims: BTreeSet<HostProcess> = waiting
            .into_iter()
            .flatten()
            .filter_map(|event| match event {
                // One that was exiting has ended by itself.
                KernelEvent::Oom(kill) if !kill.was_exiting => Some(HostProcess::of(kill.victim)),
                _ => None,
            })
            .collect();
        let recovered = self.runtime.recover()?;
        for fault in &recovered.faults {
            self.told
                .node("ContainerRecordUnusable", crate::observe::chain(fault));
        }
        let mut ended = recovered.ended;
        // Of several of a container, whose ends no pod's record could say, the last counts.
        ended.sort_by_key(|it| Reverse(it.owner.attempt));
        let left = recovered.running.into_iter().chain(ended);
        let left = left.map(|record| LeftContainer {
            was_oom_killed: victims.contains(&record.process),
            record,
        });
        let left = self.rebuild_lost(left.collect(), now);
        for record in &recovered.never_started {
            self.reset_start(record);
        }
        for it in left {
            self.take_up(it, now);
        }
        let uids: Vec<PodUid> = self.pods.keys().cloned().collect();
        self.settle_all(&uids, now);
        self.restore_placement();
        for cgroup in self.hands.plan.qos_cgroups() {
            self.register(&cgroup, false);
        }
        for uid in &uids {
            self.register_pod(uid);
        }
        self.health.unblock("recovery");
        Ok(())
    }

    /// Without the list of records every pod would begin anew: that ends the agent.
    fn load_pods(&mut self) -> Result<(), RunError> {
        let (kind, version) = (PodState::KIND, PodState::VERSION);
        let stored = stored::read_all::<PodState>(&self.paths.pods(), ".json", kind, version);
        let stored = stored.map_err(RunError::State)?;
        let mut result = match stored.is_empty() {
            true => RestoreResult::Empty,
            false => RestoreResult::Loaded,
        };
        for uid in self.unread_notes().map_err(RunError::State)? {
            self.undecided.add_unread(uid);
        }
        self.undecided.read_later(clock::boottime());
        for (path, read) in stored {
            let Some(uid) = pod_of_file(&path) else {
                continue;
            };
            if read.as_ref().is_err_and(CheckpointError::is_damage) {
                result = RestoreResult::Rebuilt;
            }
            if !self.undecided.is_unread(&uid) {
                self.load_pod(uid, read);
            }
        }
        self.metrics.state_restored(result);
        Ok(())
    }

    /// Takes a pod by its record. One that is damaged is set aside; for one that the kernel fails to read, or that is of
    /// another version of the agent, the pod waits.
    pub(super) fn load_pod(&mut self, uid: PodUid, read: Result<PodState, CheckpointError>) {
        match read {
            Ok(state) => {
                let boot_id = self.boot_id();
                let is_of_this_boot = state.boot_id == boot_id;
                let mut containers = state.containers.iter();
                let was_starting = containers.any(|it| it.state == ContainerState::Starting);
                let state = pods::revive(state, &boot_id, self.own.compat, |it| {
                    let id = container_id(&uid, &it.name, it.attempt);
                    self.runtime.has_record(&id)
                });
                if let Some(mut entry) = self.entry_of(state) {
                    // Two syncs for each pod would be most of a start. A start that was made shows by a record that
                    // the runtime is about to forget.
                    let is_stored = is_of_this_boot
                        || was_starting && pods::save(&self.paths, &entry.state).is_ok();
                    entry.is_unsaved = !is_stored;
                    self.pods.insert(entry.uid().clone(), entry);
                }
            }
            Err(error) if error.is_damage() => {
                let why = crate::observe::chain(&error);
                self.told
                    .node("PodRecordUnusable", format!("{why}; it is set aside"));
                match checkpoint::set_aside(&self.paths.pod_record(&uid)) {
                    Ok(()) => self.ownership.set_aside(uid),
                    Err(error) => {
                        tracing::warn!(error = crate::observe::chain(&error), "set aside");
                    }
                }
            }
            Err(error) => {
                let why = crate::observe::chain(&error);
                let message =
                    format!("{why}; its pod is left as it is until it can be read, or is removed");
                self.told.node("PodRecordUnread", message);
                self.undecided.add_unread(uid);
            }
        }
    }

    /// The definitions by which pods run. Of two of one name the later one waits for the end of the other; one that
    /// is to end counts where no other is, for the file that it is from.
    fn running_definitions(
        &self,
        lost: &BTreeMap<PodUid, Vec<LeftContainer>>,
    ) -> BTreeMap<String, Running> {
        let of_lost = lost.iter().filter_map(|(uid, of_pod)| {
            let owner = &of_pod.first()?.record.owner;
            let name = format!("{}/{}", owner.pod_namespace, owner.pod_name);
            let running = Running {
                uid: uid.clone(),
                file: None,
                digest: None,
            };
            Some((name, running))
        });
        let states = self.pods.values().map(|it| &it.state);
        let mut there: Vec<_> = states
            .filter(|it| it.deletion.is_none() || it.manifest.is_some())
            .collect();
        there.sort_by_key(|it| (it.deletion.is_none(), Reverse(it.accepted_at)));
        let there = there.into_iter().map(|it| {
            let running = Running {
                uid: it.pod.uid.clone(),
                file: it.manifest.clone(),
                digest: it.digest.clone(),
            };
            (it.pod.full_name(), running)
        });
        of_lost.chain(there).collect()
    }

    /// Pods without a usable record of which containers are there by their own: what runs goes on. Returns the
    /// containers of pods that there are.
    fn rebuild_lost(&mut self, left: Vec<LeftContainer>, now: Duration) -> Vec<LeftContainer> {
        let is_known = |it: &LeftContainer| self.pods.contains_key(&it.record.owner.pod_uid);
        let (mut left, lost): (Vec<_>, Vec<_>) = left.into_iter().partition(is_known);
        let mut by_pod: BTreeMap<PodUid, Vec<LeftContainer>> = BTreeMap::new();
        for it in lost {
            let uid = it.record.owner.pod_uid.clone();
            by_pod.entry(uid).or_default().push(it);
        }
        self.manifests.prefer(self.running_definitions(&by_pod));
        if by_pod.is_empty() {
            return left;
        }
        let scan = self.manifests.scan();
        for (uid, of_pod) in by_pod {
            match scan.pods.get(&uid) {
                _ if self.undecided.is_unread(&uid) => {
                    self.undecided.add(uid, of_pod);
                    continue;
                }
                Some(pod) => self.rebuild(pod, &of_pod, now),
                // Any of the manifests that cannot be read may be its own.
                None if !scan.is_complete => {
                    self.told.pod_undecided(&uid, of_pod.len());
                    self.undecided.add(uid, of_pod);
                    continue;
                }
                // Of no manifest: what is left of it goes as an orphan.
                None => {}
            }
            left.extend(of_pod);
        }
        left
    }

    /// A pod of a manifest whose record is not usable, by what has begun of it.
    pub(super) fn rebuild(&mut self, pod: &Pod, left: &[LeftContainer], now: Duration) {
        let state = rebuilt(pod, left, &self.boot_id(), self.own.compat, now);
        if let Some(mut entry) = self.entry_of(state) {
            self.go_on_after_logs(&mut entry);
            self.told.pod_rebuilt(&entry.pod_ref, left.len());
            let uid = entry.uid().clone();
            self.ownership.add(uid.clone());
            self.pods.insert(uid, entry);
        }
    }

    /// Ties a container that an earlier agent started to its pod, and tells how it ended if it has.
    pub(super) fn take_up(&mut self, left: LeftContainer, now: Duration) {
        let owner = self.adopt(&left.record, left.was_oom_killed);
        let Some(end) = left.record.end else {
            return;
        };
        match owner {
            Some((uid, container)) => {
                let finished_at = end.finished_at.unwrap_or(now);
                self.exited(&uid, &container, end.exit, finished_at);
            }
            None => self.forget_container(&left.record.id),
        }
    }

    pub(super) fn forget_container(&mut self, id: &ContainerId) {
        if let Err(error) = self.runtime.forget(id) {
            tracing::warn!(%id, error = crate::observe::chain(&error), "forget");
        }
    }

    /// Logs of a pod whose record was lost are of earlier attempts, as kubelet has it
    /// (pkg/kubelet/kuberuntime/kuberuntime_container.go, 1.36: `calcRestartCountByLogDir`): an attempt of a lower
    /// number would count as older than they, and its log would be removed while it is written.
    pub(super) fn go_on_after_logs(&self, entry: &mut PodEntry) {
        let directory = self.paths.pod_logs(&entry.pod_ref);
        for status in &mut entry.state.containers {
            let is_new = status.state == ContainerState::NotStarted;
            let last = || logs::last_attempt(&directory.join(&status.name));
            if let Some(last) = is_new.then(last).flatten() {
                status.attempt = status.attempt.max(last.saturating_add(1));
            }
        }
    }

    /// A pod in the loop's form; `None`, told, for one whose UID makes no cgroup name.
    pub(super) fn entry_of(&self, state: PodState) -> Option<PodEntry> {
        let qos = qos_class(&state.pod);
        match self.hands.plan.pod_path(qos, &state.pod.uid) {
            Ok(cgroup) => {
                let facts = pod_facts(&state.pod, qos, self.own.compat);
                Some(PodEntry::new(state, qos, cgroup, Arc::new(facts)))
            }
            Err(error) => {
                self.told.manifest_fault(format!(
                    "pod {}: metadata.uid: {error}",
                    state.pod.full_name()
                ));
                None
            }
        }
    }

    pub(super) fn boot_id(&self) -> String {
        self.node.identity.boot_id.clone().unwrap_or_default()
    }

    /// Ties a record of the runtime to the pod that it belongs to. `None`: it is not of the container's last attempt.
    fn adopt(
        &mut self,
        record: &ContainerRecord,
        was_oom_killed: bool,
    ) -> Option<(PodUid, String)> {
        let owner = &record.owner;
        let entry = self.pods.get_mut(&owner.pod_uid)?;
        let cgroup = entry.cgroup.join(record.id.as_str()).ok()?;
        if entry.instances.contains_key(&owner.container) {
            return None;
        }
        entry.is_unsaved |= entry.state.catch_up(&begun(record));
        let status = entry.state.container_mut(&owner.container)?;
        if status.attempt != owner.attempt || status.state.termination().is_some() {
            return None;
        }
        let running = ContainerState::Running {
            started_at: record.started_at,
        };
        if status.state != running {
            status.state = running;
            entry.is_unsaved = true;
        }
        // Stored with the pod when that is stored next.
        let first_processes = &mut entry.state.first_processes;
        first_processes.insert(owner.container.clone(), record.process.into());
        entry.is_dirty = true;
        let mut instance = Instance::new(record.id.clone(), cgroup);
        instance.set_process(record.process);
        instance.oom_killed = was_oom_killed;
        entry.instances.insert(owner.container.clone(), instance);
        entry.state.was_in_before_boot = false;
        self.first_processes.add(record.process);
        Some((owner.pod_uid.clone(), owner.container.clone()))
    }

    /// The start was decided and stored, and the program never ran: as if it had not been decided.
    fn reset_start(&mut self, record: &ContainerRecord) {
        let owner = &record.owner;
        if let Some(entry) = self.pods.get_mut(&owner.pod_uid)
            && let Some(status) = entry.state.container_mut(&owner.container)
            && status.attempt == owner.attempt
            && status.state == ContainerState::Starting
        {
            status.state = ContainerState::NotStarted;
            entry.is_unsaved = true;
        }
    }

    /// Brings pods whose records were read, and whose containers are taken up, to what is there of them.
    pub(super) fn settle_all(&mut self, uids: &[PodUid], now: Duration) {
        self.find_lost(now);
        self.recover_evictions(now);
        for uid in uids {
            self.settle(uid, now);
            self.thaw_adopted(uid);
            self.ask_again_to_end(uid);
        }
    }

    /// Containers of a pod that should be alive and that the runtime does not know: a start that was decided
    /// and not begun is taken back; one that ran is over, and nobody can say how. What is left in its cgroup ends
    /// before it begins again.
    fn settle(&mut self, uid: &PodUid, now: Duration) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let mut n_running = 0;
        for status in &mut entry.state.containers {
            if entry.instances.contains_key(&status.name) {
                n_running += 1;
                continue;
            }
            let termination = match &status.state {
                ContainerState::Starting => {
                    status.state = ContainerState::NotStarted;
                    entry.is_unsaved = true;
                    continue;
                }
                ContainerState::Running { .. } => pods::unknown_end(now),
                ContainerState::Ending(termination) => termination.clone(),
                ContainerState::NotStarted | ContainerState::Exited(_) => continue,
            };
            entry.is_unsaved = true;
            let id = container_id(uid, &status.name, status.attempt);
            let cgroup = entry
                .cgroup
                .join(id.as_str())
                .expect("a container id is a valid component, for which every root leaves room");
            status.state = ContainerState::Ending(termination.clone());
            self.removals.insert(cgroup.clone(), now);
            let mut instance = Instance::new(id, cgroup);
            instance.ended = Some(termination);
            entry.instances.insert(status.name.clone(), instance);
        }
        self.told.pod_adopted(&entry.pod_ref, n_running);
    }

    /// An agent that died in its own freeze has left a pod so. What a stage of relief froze is thawed with it.
    fn thaw_adopted(&self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid).filter(|it| !it.instances.is_empty()) else {
            return;
        };
        match self.hands.writer.thaw(&entry.cgroup) {
            Ok(true) => self.told.pod_thawed(&entry.pod_ref),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(pod = %entry.pod_ref, error = crate::observe::chain(&error), "thaw");
            }
        }
    }

    /// That a container is asked to end is stored first: an agent that died in between has not asked.
    fn ask_again_to_end(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let asked = entry.state.containers.iter().filter(|it| {
            matches!(it.state, ContainerState::Running { .. })
                && it.stop.is_some_and(|it| it.killed_at.is_none())
        });
        let asked: Vec<String> = asked.map(|it| it.name.clone()).collect();
        for container in asked {
            self.ask_to_end(uid, &container);
        }
    }

    /// The cgroups of an adopted pod that exist, before an event in them is attributed.
    pub(super) fn register_pod(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let containers = entry.instances.values().map(|it| it.cgroup.clone());
        let cgroups: Vec<_> = [entry.cgroup.clone()]
            .into_iter()
            .chain(containers)
            .collect();
        for cgroup in cgroups {
            self.register(&cgroup, false);
        }
    }

    /// The runtime says that a program runs.
    pub(super) fn started(
        &mut self,
        uid: &PodUid,
        container: &str,
        process: HostProcess,
        started_at: Duration,
        warnings: &[StartWarning],
    ) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let Some(instance) = entry.instances.get_mut(container) else {
            return;
        };
        instance.set_process(process);
        self.first_processes.add(process);
        let mut attempt = 0;
        if let Some(status) = entry.state.container_mut(container) {
            status.state = ContainerState::Running { started_at };
            attempt = status.attempt;
        }
        let first_processes = &mut entry.state.first_processes;
        first_processes.insert(container.to_owned(), process.into());
        entry.is_dirty = true;
        entry.is_unsaved = true;
        self.told
            .container_started(&entry.pod_ref, container, attempt, process);
        for warning in warnings {
            self.told
                .start_warning(&entry.pod_ref, container, warning.to_string());
        }
    }

    /// The runtime says that the first process ended: what is left of the container is killed, and
    /// it counts as ended when its cgroup is gone.
    pub(super) fn exited(
        &mut self,
        uid: &PodUid,
        container: &str,
        exit: ContainerExit,
        finished_at: Duration,
    ) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let started_at = entry
            .state
            .containers
            .iter()
            .find(|it| it.name == container)
            .and_then(|it| match it.state {
                ContainerState::Running { started_at } => Some(started_at),
                _ => None,
            });
        let Some(instance) = entry.instances.get_mut(container) else {
            return;
        };
        let (exit, message) = match exit {
            ContainerExit::Known(ExitStatus::Code(code)) => {
                (container::ContainerExit::Code(code), None)
            }
            ContainerExit::Known(ExitStatus::Signal { signal, .. }) => {
                let is_by_oomd = signal == Signal::KILL.number()
                    && !instance.oom_killed
                    && oomd::has_killed(self.node.reader.trees(), &instance.cgroup);
                let message = is_by_oomd.then(|| oomd::KILLED.to_owned());
                (container::ContainerExit::Signal(signal), message)
            }
            ContainerExit::Unknown(UnknownExit::NodeRestarted) => (
                container::ContainerExit::Unknown,
                Some("the node was restarted while it ran".to_owned()),
            ),
            ContainerExit::Unknown(UnknownExit::Unobserved) => (
                container::ContainerExit::Unknown,
                Some("it ended while no agent was there to see how".to_owned()),
            ),
        };
        let termination = Termination {
            started_at,
            finished_at,
            exit,
            oom_killed: instance.oom_killed,
            message,
        };
        if let Some(escape) = instance.escape.take() {
            escape.end();
        }
        instance.ended = Some(termination.clone());
        if let Some(status) = entry.state.container_mut(container) {
            status.state = ContainerState::Ending(termination);
        }
        entry.is_dirty = true;
        self.removals
            .insert(instance.cgroup.clone(), clock::boottime());
    }
}

/// Of which pod a file named after one is.
pub(super) fn pod_of_file(path: &Path) -> Option<PodUid> {
    let stem = path.file_stem()?.to_str()?;
    Some(PodUid(stem.to_owned()))
}

/// The state of a pod whose record is not usable, by what is left of it. Where nothing of it has begun in this boot
/// nothing is alive.
fn rebuilt(
    pod: &Pod,
    left: &[LeftContainer],
    boot_id: &str,
    compat: Compat,
    now: Duration,
) -> PodState {
    let begun: Vec<Begun> = left.iter().map(|it| begun(&it.record)).collect();
    let mut boots = left.iter().map(|it| it.record.boot_id.as_str());
    let of_last = boots.clone().find(|it| *it == boot_id);
    let last_boot = of_last.or_else(|| boots.next()).unwrap_or(boot_id);
    let accepted_at = WallTime::from_epoch(clock::wall());
    let state = PodState::rebuilt(pod.clone(), last_boot.to_owned(), accepted_at, &begun, now);
    pods::revive(state, boot_id, compat, |_| true)
}

fn begun(record: &ContainerRecord) -> Begun {
    Begun {
        name: record.owner.container.clone(),
        attempt: record.owner.attempt,
        spec_hash: SpecHash(record.spec_hash.clone()),
        started_at: record.started_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing;
    use crate::model::admission::Admission;
    use crate::model::pod::ResourceList;
    use crate::runtime::{ContainerEnd, ContainerOwner};

    fn ended(pod: &Pod, container: &str, boot_id: &str) -> LeftContainer {
        let attempt = 3;
        let owner = ContainerOwner {
            pod_uid: pod.uid.clone(),
            pod_namespace: pod.namespace.clone(),
            pod_name: pod.name.clone(),
            container: container.to_owned(),
            attempt,
        };
        let end = ContainerEnd {
            exit: ContainerExit::Unknown(UnknownExit::NodeRestarted),
            finished_at: None,
        };
        let record = ContainerRecord {
            id: container_id(&pod.uid, container, attempt),
            owner,
            spec_hash: "hash".to_owned(),
            pod_requests: ResourceList::new(),
            log_path: "/log".into(),
            oom_score_adj: 0,
            cgroups: Vec::new(),
            boot_id: boot_id.to_owned(),
            process: HostProcess {
                pid: 7,
                start_ticks: 1,
            },
            started_at: Duration::from_secs(7),
            end: Some(end),
        };
        LeftContainer {
            record,
            was_oom_killed: false,
        }
    }

    /// Its devices may be others, and what its init containers made in memory is gone.
    #[test]
    fn a_pod_whose_record_was_lost_with_the_boot_begins_anew() {
        let pod = testing::pod("init {} app {} app {}");
        for (boots, compat, was_in_before_boot, begins) in [
            (["old", "old"], Compat::Ballast, true, true),
            (["old", "old"], Compat::Kubelet, false, true),
            // An agent has brought it into this boot.
            (["old", "new"], Compat::Ballast, false, false),
            (["new", "new"], Compat::Ballast, false, false),
        ] {
            let of = |(name, boot): (&str, &str)| ended(&pod, name, boot);
            let left: Vec<_> = ["app1", "app2"].into_iter().zip(boots).map(of).collect();
            let state = rebuilt(&pod, &left, "new", compat, Duration::from_secs(60));
            assert_eq!(state.boot_id, "new");
            assert_eq!(state.admission, Admission::Admitted);
            assert_eq!(state.was_in_before_boot, was_in_before_boot, "{boots:?}");
            let mut all = state.containers.iter();
            let are_new = all.all(|it| it.state == ContainerState::NotStarted);
            assert_eq!(are_new, begins, "{boots:?}");
            let attempts: Vec<u32> = state.containers.iter().map(|it| it.attempt).collect();
            let expected = if begins { [1, 4, 4] } else { [0, 3, 3] };
            assert_eq!(attempts, expected, "{boots:?}");
        }
    }
}
