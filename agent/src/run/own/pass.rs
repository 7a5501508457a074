//! One pass of the reconcile loop: what is wanted against what is there, and the difference done.
//!
//! Order, and why: decisions first; then they are stored, so that a start which is lost in a crash
//! is known to have been meant, after what was given to pods; then cgroups, so that a process never runs outside its limits;
//! then starts and stops. A start on CPUs that others have not left yet is held for a later pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::known::ended_container;
use super::phases::Phases;
use super::plugins::allocated_devices;
use super::pods::{self, CgroupFault, Instance, Lack, PodEntry};
use super::reserved::{leave_out_absent, only_write};
use super::successors::unblock;
use super::{Loop, start};
use crate::apply::cgroupfs::ApplyError;
use crate::apply::checkpoint;
use crate::decide::cgroup_files::{WeightMap, files_for};
use crate::decide::cgroup_plan::{Deferred, plan_cgroups};
use crate::decide::cpusets::pod_pinning;
use crate::decide::lifecycle::{PodView, decide_pod, spec_hash};
use crate::decide::pod_resources::reduced_cpu;
use crate::decide::qos_cgroups::tiers;
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup::{CgroupStep, DesiredCgroup, Existence, FileValue, ObservedCgroup};
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::{ContainerAction, ContainerExit, Termination};
use crate::model::pod::{Pod, PodUid, QosClass};
use crate::observe::metrics::labels::{
    CgroupOp, KubeletCgroupOp, KubeletContainerType, Phase, SaveResult, Source, SourceFault,
};
use crate::run::kernel::Remade;
use crate::run::missed::Origin;
use crate::runtime::{RuntimeError, Signal};
use crate::sources::cgroupfs::ReadError;
use crate::sources::manifests::Witness;
use crate::sources::{oom_counters, stats};
use crate::sys::patience::Errand;
use crate::sys::{Root, clock};
use crate::units::Limit;

/// How long a start waits before it is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    first: Duration,
    /// Each is twice the one before until then.
    last: Duration,
}

impl Pauses {
    /// For what the agent lacks. Arbitrary: a hundred that wait cost a few milliseconds.
    pub(super) const LACK: Self = Self {
        first: Duration::from_secs(1),
        last: Duration::from_secs(1),
    };

    /// For a start that hung, and held up others for ten seconds. As long as kubelet's back-off.
    pub(super) const STUCK: Self = Self {
        first: Duration::from_secs(10),
        last: Duration::from_secs(300),
    };

    fn after(self, before: Option<Duration>) -> Duration {
        let twice = before.map_or(self.first, |it| it * 2);
        twice.clamp(self.first, self.last)
    }
}

/// How long a pass waits for volumes of the host, all in all: a local disk that is in order takes less than a millisecond
/// for each. What takes longer is asked after when the start is tried again.
const HOST_PATH_TIME: Duration = Duration::from_millis(50);

/// Why a start waits for them.
const HOST_PATH_LATE: &str = "the file system of a hostPath volume has not answered yet";

/// Whether a cgroup is to have a limit of memory below what it uses.
fn is_below_usage(wanted: &DesiredCgroup, seen: &ObservedCgroup) -> bool {
    let limit = wanted.files.iter().find(|(file, _)| file.is_memory_limit());
    match (limit, seen.memory_usage) {
        (Some((_, FileValue::Limit(Limit::At(limit)))), Some(usage)) => *limit < usage,
        _ => false,
    }
}

/// Whether it only came too late for what is in use: the limit is shown as waiting anyway.
fn only_waits(error: &ApplyError, deferred: &[Deferred]) -> bool {
    error.is_below_use() && deferred.iter().any(|it| it.path == *error.cgroup())
}

/// Why a start waits for what the agent lacks.
pub(super) fn lacking(what: &str) -> String {
    format!("the agent lacks something for its start: {what}")
}

/// What a pass looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// Pods that something happened to.
    Dirty,
    /// The whole node, every file read back.
    All,
}

impl Loop {
    /// One pass. Never fails as a whole: what could not be done is counted, told and tried again
    /// with the next one.
    pub(super) fn pass(&mut self, scope: Scope) {
        let started = clock::boottime();
        self.placement.node_info = None;
        self.host_path_patience = HOST_PATH_TIME;
        let mut phases = Phases::begin();
        self.work_removals(started);
        self.record_late();
        phases.end(Phase::Apply);
        for entry in self.pods.values_mut() {
            entry.is_dirty |= entry.waits_for_room;
        }
        unblock(&mut self.pods);
        let is_looked_at = |it: &&PodEntry| scope == Scope::All || it.is_dirty;
        let mut entries: Vec<&PodEntry> = self.pods.values().filter(is_looked_at).collect();
        // Who decides first takes what there is.
        entries.sort_by_key(|it| pods::claim(it, self.own.compat));
        let uids: Vec<PodUid> = entries.iter().map(|it| it.uid().clone()).collect();
        if scope == Scope::All {
            self.look_for_strangers();
            self.give_up_pre_starts(started);
            self.expire_devices(started);
            self.look_for_escapes();
            self.resize_late_volumes();
        }
        self.sweep_placement();
        let mut starts = Vec::new();
        for uid in &uids {
            if self.begins(uid) {
                self.decide(uid, started, &mut starts);
                self.beginning.ends();
            }
        }
        // Of pods that are over by these decisions, some of which are forgotten in this pass.
        self.sweep_placement();
        phases.end(Phase::Decide);
        self.save_placement();
        self.save_pods();
        phases.end(Phase::Apply);
        self.reconcile_cgroups(&uids, scope, &mut phases);
        self.gave_back();
        for (uid, action) in self.without_held(starts, started) {
            if self.begins(&uid) {
                self.act(&uid, &action, started);
                self.beginning.ends();
            }
        }
        self.save_pods();
        self.drop_eviction_notes();
        self.retire_pods(started);
        self.publish_resources();
        if !uids.is_empty() || self.pods.values().any(|it| it.is_known_stale) {
            self.publish_pods(&uids);
        }
        self.work_removals(clock::boottime());
        phases.end(Phase::Apply);
        self.count_pass(scope, started, phases);
    }

    fn decide(
        &mut self,
        uid: &PodUid,
        now: Duration,
        actions: &mut Vec<(PodUid, ContainerAction)>,
    ) {
        match self.pods.get_mut(uid) {
            None => return,
            Some(entry) => {
                entry.is_dirty = false;
                if entry.blocked.is_some() {
                    return;
                }
            }
        }
        if self.is_occupied(uid) {
            return;
        }
        self.admit(uid);
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let decision = decide_pod(&PodView {
            pod: &entry.state.pod,
            admission: &entry.state.admission,
            containers: &entry.state.containers,
            deletion: entry.state.ending(),
            backoff: &entry.state.backoff,
            settings: &self.settings,
            now,
        });
        for action in &decision.actions {
            if let ContainerAction::Start {
                container, attempt, ..
            } = action
            {
                let id = start::container_id(uid, container, *attempt);
                let cgroup = entry.cgroup.join(id.as_str()).expect(
                    "a container id is a valid component, for which every root leaves room",
                );
                self.log_keeper.is_behind = true;
                let mut instance = Instance::new(id, cgroup);
                instance.decided_at = Some(now);
                entry.instances.insert(container.clone(), instance);
                entry.state.begin_instance(container);
                entry.state.was_in_before_boot = false;
            }
            if let Some(status) = entry.state.container_mut(action.container()) {
                status.record(action, now);
            }
            actions.push((uid.clone(), action.clone()));
        }
        if !decision.actions.is_empty() || entry.state.phase != decision.phase {
            entry.is_unsaved = true;
        }
        if entry.state.phase != decision.phase {
            self.has_room |= decision.phase.is_terminal();
            self.told
                .phase_changed(&entry.pod_ref, entry.state.phase, decision.phase);
        }
        self.told
            .waiting_changed(&entry.pod_ref, entry.decision.as_ref(), &decision);
        entry.state.phase = decision.phase;
        entry.state.backoff = decision.backoff.clone();
        entry.decision = Some(decision);
    }

    /// Creates, repairs and corrects cgroups: the node's, and those of the pods in `uids`.
    fn reconcile_cgroups(&mut self, uids: &[PodUid], scope: Scope, phases: &mut Phases) {
        let uids: BTreeSet<&PodUid> = uids.iter().collect();
        self.look_up_devices(&uids);
        let mut wanted = self.node_cgroups();
        let of_daemons = self.reserved_cgroups();
        let reserved: BTreeSet<CgroupPath> = of_daemons.iter().map(|it| it.path.clone()).collect();
        wanted.extend(of_daemons);
        let is_pool_moved = std::mem::take(&mut self.placement.is_pool_moved);
        for (uid, entry) in &self.pods {
            let is_ours = self.ownership.has(uid);
            if !is_ours || !entry.is_active() || self.removals.contains(&entry.cgroup) {
                continue;
            }
            if uids.contains(uid) {
                wanted.extend(self.pod_cgroups(entry));
            } else if is_pool_moved {
                wanted.extend(self.container_cpusets(entry));
            }
        }
        for cgroup in &mut wanted {
            self.keep_relief(cgroup);
        }
        phases.end(Phase::Decide);
        let lost_processes = self.cgroups_that_lost_processes();
        let mut observed = BTreeMap::new();
        let mut faults: BTreeMap<CgroupPath, CgroupFault> = BTreeMap::new();
        wanted.retain(
            |cgroup| match self.node.reader.observe(&cgroup.path, &cgroup.files) {
                Ok(mut seen) => {
                    if is_below_usage(cgroup, &seen) {
                        seen.memory_clean = self.node.reader.clean_memory(&cgroup.path);
                    }
                    seen.has_lost_processes = lost_processes.contains(&cgroup.path);
                    observed.insert(cgroup.path.clone(), seen);
                    true
                }
                // Not known is not absent: leave it alone until it can be read.
                Err(error) => {
                    self.metrics
                        .source_error(Source::Cgroup, reading_fault(&error));
                    faults.insert(cgroup.path.clone(), CgroupFault::of(&error));
                    false
                }
            },
        );
        self.spare_strangers(&mut wanted, &observed);
        leave_out_absent(&reserved, &mut wanted, &observed, &mut faults);
        if !observed.is_empty() {
            self.metrics.source_read(Source::Cgroup, clock::boottime());
        }
        phases.end(Phase::Gather);
        let mut plan = plan_cgroups(&wanted, &observed);
        only_write(&reserved, &mut plan.steps);
        self.count_plan(&plan, &wanted, &observed);
        self.give_way(&mut plan.steps, &wanted, scope);
        phases.end(Phase::Decide);
        let (n_done, mut errors) = self.apply_counted(&plan.steps);
        errors.retain(|it| !only_waits(it, &plan.deferred));
        self.counters.writes += n_done as u64;
        self.counters.failed_writes += errors.len() as u64;
        if scope == Scope::All {
            self.count_unresolved(&plan, &wanted, &errors);
        }
        for error in errors {
            let fault = CgroupFault::of_write(&error);
            tracing::warn!(error = fault.text, "cgroup");
            faults.insert(error.cgroup().clone(), fault);
        }
        for it in plan.ineffective {
            let error = ApplyError::NotEffective {
                path: it.path.clone(),
                file: it.file.name,
                wanted: it.wanted.to_string(),
                effective: it.effective.to_string(),
            };
            faults.insert(it.path, CgroupFault::of(&error));
        }
        self.register_created(&plan.steps);
        // What this pass did not look at is as it was; a full one leaves out only what is gone.
        self.unsettled
            .deferred
            .retain(|it| scope != Scope::All && wanted.iter().all(|seen| seen.path != it.path));
        self.unsettled.deferred.extend(plan.deferred);
        self.unsettled.node_faults = faults
            .iter()
            .filter(|(path, _)| self.hands.is_node_level(path) || reserved.contains(*path))
            .map(|(path, fault)| (path.clone(), fault.text.clone()))
            .collect();
        for (uid, entry) in &mut self.pods {
            // A pod of which only the cpusets were looked at keeps what else is wrong with it.
            if uids.contains(uid) {
                entry.cgroup_faults.clear();
            }
            let own = faults
                .iter()
                .filter(|(path, _)| path.below(&entry.cgroup).is_some());
            entry
                .cgroup_faults
                .extend(own.map(|(path, fault)| (path.clone(), fault.clone())));
        }
        self.count_lags(&uids);
    }

    fn node_cgroups(&self) -> Vec<DesiredCgroup> {
        let active: Vec<_> = self
            .pods
            .values()
            .filter(|entry| entry.is_active())
            .map(|entry| &entry.state.pod)
            .chain(self.undecided_holders())
            .collect();
        let tiers = tiers(active.iter().copied(), &self.hands.plan.settings);
        self.metrics.set_memory_qos(tiers);
        self.hands.plan.node_cgroups(&self.config.kubelet, active)
    }

    fn pod_cgroups(&self, entry: &PodEntry) -> Vec<DesiredCgroup> {
        let plan = &self.hands.plan;
        let pod = &entry.state.pod;
        let pinning = pod_pinning(&self.placement.cpus, &pod.uid);
        let mut cgroups = vec![plan.pod_cgroup(pod, entry.qos, pinning, entry.cgroup.clone())];
        for container in pod.all_containers() {
            if let Some(instance) = entry.instances.get(&container.name)
                && instance.ended.is_none()
            {
                let path = instance.cgroup.clone();
                let placement = self.placement_of(&pod.uid, &container.name);
                let mut cgroup = plan.container_cgroup(pod, entry.qos, container, &placement, path);
                if !entry.keeps_devices(instance) {
                    cgroup
                        .files
                        .extend(plan.devices(container, &instance.devices));
                }
                cgroups.push(cgroup);
            }
        }
        cgroups
    }

    /// New cgroups are in the index before a process can be in them.
    fn register_created(&mut self, steps: &[CgroupStep]) {
        for step in steps {
            let (CgroupStep::Create { path } | CgroupStep::Repair { path, .. }) = step else {
                continue;
            };
            let is_made = matches!(step, CgroupStep::Create { .. });
            self.register(path, is_made);
            if is_made && self.pods.values().any(|it| it.cgroup == *path) {
                self.metrics.pod_started();
            }
        }
    }

    /// Puts a cgroup of the loop's own into the index that events are attributed by. `is_made`: just now; else it
    /// was there before.
    pub(super) fn register(&mut self, cgroup: &CgroupPath, is_made: bool) {
        let Ok(Some(id)) = self.node.reader.memory_id(cgroup) else {
            return;
        };
        let Some(level) = self.level_of(cgroup) else {
            return;
        };
        let origin = match is_made {
            true => Origin::Made,
            false => Origin::Found,
        };
        let counts = &self.shared.kill_counts;
        counts.count_kills_of(id, cgroup, &level, origin);
        let path = cgroup.clone();
        let owner = Owner { level, path };
        {
            let mut index = self.shared.index_mut();
            if let Some(entry) = owner.uid().and_then(|uid| self.pods.get_mut(uid)) {
                match owner.container() {
                    None => {
                        entry.cgroup_id = Some(id);
                        index.names.name_pod(&entry.pod_ref);
                    }
                    Some(key) => {
                        let name = entry.container_of(key).unwrap_or_default().to_owned();
                        index.names.name_container(&entry.pod_ref.uid, key, &name);
                        if !is_made && let Some(kills) = counts.known_in(id) {
                            entry.state.set_kills_of_instance(&name, kills);
                        }
                    }
                }
            }
            index.insert(id, owner);
        }
        let before = self.ids.insert(cgroup.clone(), id);
        if *cgroup == self.hands.plan.kubepods_path() && before != Some(id) {
            self.follow_kubepods();
        }
    }

    /// The cgroup is gone.
    fn unregister(&mut self, path: &CgroupPath) {
        if let Some(id) = self.ids.remove(path) {
            self.shared.index_mut().retire(id);
            self.shared.kill_counts.end(id);
        }
    }

    /// What the kernel is told to watch is the cgroup of all pods by its id.
    fn follow_kubepods(&mut self) {
        match self.node.watched_root(&self.hands.plan.kubepods_path()) {
            Ok(Some(root)) => self.shared.follow(Remade {
                root,
                device_directory: self.device_directory(),
            }),
            // Removed again; the pass that makes it comes here.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error = crate::observe::chain(&error), "watched root");
            }
        }
    }

    fn level_of(&self, path: &CgroupPath) -> Option<Level> {
        if *path == self.hands.plan.kubepods_path() {
            return Some(Level::Kubepods);
        }
        let mut classes = [QosClass::Burstable, QosClass::BestEffort].into_iter();
        if let Some(class) = classes.find(|it| *path == self.hands.plan.qos_path(*it)) {
            return Some(Level::Qos(class));
        }
        let entry = self
            .pods
            .values()
            .find(|entry| path.below(&entry.cgroup).is_some())?;
        let (uid, qos) = (entry.pod_ref.uid.clone(), entry.qos);
        if *path == entry.cgroup {
            return Some(Level::Pod { uid, qos });
        }
        let mut instances = entry.instances.values();
        let instance = instances.find(|it| it.cgroup == *path)?;
        let key = instance.id.key();
        Some(Level::Container { uid, qos, key })
    }

    fn act(&mut self, uid: &PodUid, action: &ContainerAction, now: Duration) {
        match action {
            ContainerAction::Start { container, .. } => {
                if let Some(entry) = self.pods.get(uid)
                    && entry
                        .instances
                        .get(container)
                        .is_none_or(|it| it.lack.is_none() && !it.pre_start.is_done)
                {
                    let kind = container_type(&entry.state.pod, container);
                    self.metrics.container_started(kind);
                }
                let entry = self.pods.get(uid);
                let fault = entry.and_then(|it| it.cgroup_fault_of(container)).cloned();
                if let Some(fault) = fault {
                    match fault.is_lack {
                        true => {
                            let why = lacking(&fault.text);
                            self.hold_start(uid, container, why, Pauses::LACK, now);
                        }
                        false => self.start_failed(uid, container, fault.text, now),
                    }
                } else if self.is_begun(uid, container, now) {
                    // It goes on, or waits.
                } else if let Err(why) = self.provide_volumes(uid, container) {
                    self.hold_start(uid, container, why, Pauses::LACK, now);
                } else if self.ask_before_start(uid, container) {
                    // Started once they have answered.
                } else if let Err(message) = self.start(uid, container) {
                    self.start_failed(uid, container, message, now);
                }
            }
            ContainerAction::Terminate { container, .. } => {
                // Whose its processes are is not to be told once it has ended.
                self.look_for_escapes();
                self.ask_to_end(uid, container);
            }
            ContainerAction::Kill { container, .. } => self.kill(uid, container),
        }
    }

    pub(super) fn start(&mut self, uid: &PodUid, container: &str) -> Result<(), String> {
        let devices = self.devices_of(uid, container)?;
        if let Some(why) = allocated_devices(&devices).missing {
            return Err(why);
        }
        let entry = self
            .pods
            .get(uid)
            .ok_or_else(|| "the pod is gone".to_owned())?;
        let user = match start::user(&entry.state.pod, container) {
            Ok(user) => user,
            Err(error) => {
                let why = crate::observe::chain(&error);
                self.hold_start(uid, container, why, Pauses::LACK, clock::boottime());
                return Ok(());
            }
        };
        let (address, unknown) = match start::address(&entry.state.pod, container) {
            Some(Ok(address)) => (Some(address), None),
            Some(Err(why)) => (None, Some(why)),
            None => (None, None),
        };
        let spec = start::container_spec(
            &self.node,
            &self.hands.plan,
            &self.paths,
            entry,
            container,
            &devices,
            &start::OfNode { user, address },
        )?;
        for warning in start::not_applicable(&devices).into_iter().chain(unknown) {
            self.told.start_warning(&entry.pod_ref, container, warning);
        }
        if let Err(error) = self.runtime.start(spec) {
            let message = crate::observe::chain(&error);
            // It runs: its cgroup stays, and the runtime tells of its end.
            if let RuntimeError::Duplicate { .. } = error {
                let now = clock::boottime();
                self.hold_start(uid, container, message, Pauses::LACK, now);
                return Ok(());
            }
            return Err(message);
        }
        if let Some(memory) = &mut self.placement.managers.memory {
            // The init containers before it are done with theirs.
            memory.container_starts(&entry.state.pod, container);
            self.books_changed();
        }
        Ok(())
    }

    /// Kubelet holds a pod until its volumes are there. `Err`: why they are not.
    fn provide_volumes(&mut self, uid: &PodUid, container: &str) -> Result<(), String> {
        let Some(entry) = self.pods.get_mut(uid) else {
            return Ok(());
        };
        start::make_volumes(&self.hands.plan, &self.paths, entry, container)
            .map_err(|it| crate::observe::chain(&it))?;
        let Some(instance) = entry.instances.get_mut(container) else {
            return Ok(());
        };
        let (errand, longest) = match instance.host_paths.take() {
            Some(errand) => (errand, Duration::ZERO),
            None => {
                let (pod, are_checked) = (&entry.state.pod, entry.are_host_paths_checked);
                let wanted = start::host_paths(pod, container, are_checked);
                if wanted.is_empty() {
                    return Ok(());
                }
                let errand = Errand::start(move |asker| {
                    // Nothing is made for who waits no longer.
                    let mut wanted = wanted.iter().take_while(|_| asker.is_waiting());
                    wanted.try_for_each(|it| it.provide(&Root::host()))
                });
                let errand = errand.map_err(|it| crate::observe::chain(&it))?;
                (errand, self.host_path_patience)
            }
        };
        let began = clock::boottime();
        let provided = errand.wait(longest);
        let waited = clock::boottime().saturating_sub(began);
        self.host_path_patience = self.host_path_patience.saturating_sub(waited);
        match provided {
            Some(provided) => {
                provided.map_err(|it| crate::observe::chain(&it))?;
                entry.are_host_paths_checked = true;
                Ok(())
            }
            None => {
                instance.host_paths = Some(errand);
                Err(HOST_PATH_LATE.to_owned())
            }
        }
    }

    /// The start waits for something, which is told once, and is tried again.
    pub(super) fn hold_start(
        &mut self,
        uid: &PodUid,
        container: &str,
        mut why: String,
        pauses: Pauses,
        now: Duration,
    ) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        // The next try is of the definition that there is by then.
        let mut all = entry.state.pod.all_containers();
        let hash = all.find(|it| it.name == container).map(spec_hash);
        drop(all);
        if let Some((status, hash)) = entry.state.container_mut(container).zip(hash) {
            status.spec_hash = Some(hash);
        }
        let action = entry.start_action(container);
        let instance = entry.instances.get_mut(container);
        let (Some(action), Some(instance)) = (action, instance) else {
            return;
        };
        match &instance.lack {
            // That it takes long again is no news.
            Some(before) if why == HOST_PATH_LATE => why.clone_from(&before.why),
            Some(before) if before.why != HOST_PATH_LATE => {}
            _ => self.told.start_held(&entry.pod_ref, container, &why),
        }
        instance.held = Some(why.clone());
        let pause = pauses.after(instance.lack.as_ref().map(|it| it.pause));
        instance.lack = Some(Lack {
            why,
            pause,
            until: Some(now + pause),
        });
        self.held_starts.push((uid.clone(), action));
    }

    /// The program never ran: the instance is over, and its cgroup goes.
    pub(super) fn start_failed(
        &mut self,
        uid: &PodUid,
        container: &str,
        message: String,
        now: Duration,
    ) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let Some(instance) = entry.instances.get_mut(container) else {
            return;
        };
        let kind = container_type(&entry.state.pod, container);
        self.metrics.container_start_failed(kind);
        self.told.start_failed(&entry.pod_ref, container, &message);
        instance.lack = None;
        instance.host_paths = None;
        instance.ended = Some(Termination {
            started_at: None,
            finished_at: now,
            exit: ContainerExit::StartFailed,
            oom_killed: instance.oom_killed,
            message: Some(message),
        });
        self.removals.insert(instance.cgroup.clone(), now);
    }

    pub(super) fn ask_to_end(&mut self, uid: &PodUid, container: &str) {
        if let Some(signal) = self.pods.get(uid).map(|it| it.stop_signal(container)) {
            self.signal(uid, container, signal);
        }
    }

    fn signal(&mut self, uid: &PodUid, container: &str, signal: Signal) {
        let Some(instance) = self
            .pods
            .get(uid)
            .and_then(|it| it.instances.get(container))
        else {
            return;
        };
        if let Err(error) = self.runtime.signal(&instance.id, signal) {
            // Starting or ended: the next decision sees which, and asks again or has no need to.
            tracing::debug!(%uid, container, error = crate::observe::chain(&error), "signal");
        }
    }

    /// SIGKILL to everything in the container's cgroup, which reaches a process that is only just
    /// starting too.
    pub(super) fn kill(&mut self, uid: &PodUid, container: &str) {
        let Some(instance) = self
            .pods
            .get(uid)
            .and_then(|it| it.instances.get(container))
        else {
            return;
        };
        let started = clock::boottime();
        let killed = self.hands.writer.kill(&instance.cgroup);
        let took = clock::boottime().saturating_sub(started);
        self.metrics.cgroup_op(CgroupOp::Kill, took);
        match killed {
            Ok(killed) => self.told.killed(&instance.cgroup, &killed),
            Err(error) => {
                tracing::warn!(%uid, container, error = crate::observe::chain(&error), "kill");
            }
        }
        // The first process may have left the cgroup.
        self.signal(uid, container, Signal::KILL);
    }

    /// Cgroups on their way out; instances and pods whose cgroup is gone are over.
    fn work_removals(&mut self, now: Duration) {
        let metrics = &self.metrics;
        let mut took = |op, duration| {
            metrics.cgroup_op(op, duration);
            if op == CgroupOp::Rmdir {
                metrics.kubelet_cgroup_op(KubeletCgroupOp::Destroy, duration);
            }
        };
        let (pods, readings) = (&self.pods, &self.readings);
        let trees = self.node.reader.trees();
        let page_size = self.node.identity.page_size.0;
        let (ids, kill_counts) = (&self.ids, &self.shared.kill_counts);
        let mut look = |path: &CgroupPath| {
            if let Some(id) = ids.get(path)
                && let Some(count) = oom_counters::read_once(trees, *id, path)
            {
                kill_counts.count(*id, count, clock::boottime());
            }
            let read = || stats::read_once(trees, path, clock::boottime(), page_size);
            if let Some(ended) = ended_container(pods, path, read) {
                readings.add_ended(ended);
            }
        };
        let writer = &self.hands.writer;
        let round = self.removals.round(writer, now, &mut took, &mut look);
        for (path, killed) in &round.killed {
            self.told.killed(path, killed);
        }
        for (path, why) in round.slow {
            tracing::warn!(cgroup = path.as_str(), why, "cgroup cannot be removed");
            self.told.removal_slow(&path, &why);
            self.reduce_cpu(&path);
        }
        for path in round.done {
            self.unregister(&path);
            let found = self.pods.iter().find_map(|(uid, entry)| {
                let (container, _) = entry
                    .instances
                    .iter()
                    .find(|(_, it)| it.cgroup == path && it.ended.is_some())?;
                Some((uid.clone(), container.clone()))
            });
            if let Some((uid, container)) = found {
                self.finish_instance(&uid, &container);
            } else if let Some(entry) = self.pods.values_mut().find(|it| it.cgroup == path) {
                entry.cgroup_id = None;
                entry.is_dirty = true;
            }
        }
    }

    /// What cannot be ended gets the least CPU that there is.
    fn reduce_cpu(&mut self, path: &CgroupPath) {
        let resources = reduced_cpu(self.own.compat);
        let files = files_for(&resources, WeightMap::Linear, &self.hands.plan.rules);
        let write = |(file, to)| CgroupStep::Write {
            path: path.clone(),
            file,
            from: None,
            to,
        };
        let steps: Vec<CgroupStep> = files.into_iter().map(write).collect();
        let (_, errors) = self.apply_counted(&steps);
        for error in errors {
            tracing::warn!(error = crate::observe::chain(&error), "reduce CPU");
        }
    }

    fn finish_instance(&mut self, uid: &PodUid, container: &str) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let Some((instance, termination)) = entry.finish_instance(container) else {
            return;
        };
        let attempt = entry
            .state
            .containers
            .iter()
            .find(|it| it.name == container)
            .map_or(0, |it| it.attempt);
        let kills = entry.state.oom_kills.get(container).copied().unwrap_or(0);
        self.told.container_ended(
            &entry.pod_ref,
            container,
            attempt,
            instance.process,
            &termination,
            kills,
        );
        if let Some(process) = instance.process {
            self.first_processes.retire(process);
        }
        self.save_pods();
    }

    /// Stores what changed. A failure is told once, counted, and tried again with the next pass. How a container ended
    /// is stored before the runtime forgets it, so that a crash between the two tells it twice rather than never.
    pub(super) fn save_pods(&mut self) {
        let mut fault = None;
        let is_behind = |it: &&mut PodEntry| it.is_unsaved && it.occupied.is_none();
        let mut saved_pods = Vec::new();
        let mut over = Vec::new();
        for entry in self.pods.values_mut().filter(is_behind) {
            let started = clock::boottime();
            let saved = pods::save(&self.paths, &entry.state);
            let result = match saved {
                Ok(()) => SaveResult::Ok,
                Err(_) => SaveResult::Error,
            };
            let took = clock::boottime().saturating_sub(started);
            self.metrics.state_saved(result, took);
            match saved {
                Ok(()) => {
                    entry.is_unsaved = false;
                    over.append(&mut entry.unforgotten);
                    self.ownership.add(entry.uid().clone());
                    saved_pods.push(entry.uid().clone());
                }
                Err(error) => {
                    let why = crate::observe::chain(&error);
                    tracing::debug!(pod = %entry.pod_ref, error = why, "store the state of a pod");
                    fault = Some(format!("of {}: {why}", entry.pod_ref));
                }
            }
        }
        match (fault, self.is_storing) {
            (Some(fault), true) => {
                self.told.node("StateNotStored", fault);
                self.is_storing = false;
            }
            (None, false) if !saved_pods.is_empty() => {
                self.told
                    .node("StateStored", "all that was to be stored is".to_owned());
                self.is_storing = true;
            }
            _ => {}
        }
        for uid in saved_pods {
            self.remove_aside(&uid);
        }
        for id in over {
            self.forget_container(&id);
        }
    }

    /// Pods that are over: their cgroup goes, and a deleted one is forgotten when it is gone. The files
    /// of an evicted one go at once, as kubelet's do; its record stays, and so do its logs, unless it
    /// went for a disk.
    fn retire_pods(&mut self, now: Duration) {
        let mut gone = Vec::new();
        for (uid, entry) in &mut self.pods {
            if !entry.is_finished() || !entry.instances.is_empty() {
                continue;
            }
            if !self.ownership.has(uid) {
                // Nothing was made of it.
                if entry.state.deletion.is_some() {
                    gone.push(uid.clone());
                }
                continue;
            }
            match self.node.reader.existence(&entry.cgroup) {
                Ok(Existence::Absent) if entry.state.deletion.is_some() => gone.push(uid.clone()),
                Ok(Existence::Absent) if entry.state.eviction.is_some() && !entry.gave_up_files => {
                    let directory = self.paths.pod_dir(uid);
                    let logs = self.paths.pod_logs(&entry.pod_ref);
                    let eviction = entry.state.eviction.as_ref();
                    let is_of_disk = eviction.is_some_and(|it| it.victim.cause.is_of_disk());
                    entry.gave_up_files = self.files.discard(&directory, uid, now)
                        && (!is_of_disk || self.files.discard(&logs, uid, now));
                }
                Ok(Existence::Absent) | Err(_) => {}
                Ok(_) => self.removals.insert(entry.cgroup.clone(), now),
            }
        }
        for uid in gone {
            self.forget(&uid, now);
        }
    }

    /// What is stored of a pod goes: its record last, so that an agent that ends halfway goes on here.
    pub(super) fn forget(&mut self, uid: &PodUid, now: Duration) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let directories = [self.paths.pod_dir(uid), self.paths.pod_logs(&entry.pod_ref)];
        for directory in directories {
            if !self.files.discard(&directory, uid, now) {
                return;
            }
        }
        if let Err(error) = checkpoint::remove(&self.paths.pod_record(uid)) {
            tracing::error!(
                pod = %entry.pod_ref,
                error = crate::observe::chain(&error),
                "remove the record of a pod"
            );
            return;
        }
        self.told.pod_removed(&entry.pod_ref);
        self.reads_again = true;
        let cgroup = entry.cgroup.clone();
        self.remove_aside(uid);
        // Where somebody else removed it.
        self.unregister(&cgroup);
        let entry = self.pods.remove(uid);
        for id in entry.into_iter().flat_map(|it| it.unforgotten) {
            self.forget_container(&id);
        }
        self.ownership.remove(uid);
        self.forget_admission(uid);
    }
}

fn container_type(pod: &Pod, container: &str) -> KubeletContainerType {
    match pod.init_containers.iter().any(|it| it.name == container) {
        true => KubeletContainerType::Init,
        false => KubeletContainerType::Container,
    }
}

fn reading_fault(error: &ReadError) -> SourceFault {
    match error {
        ReadError::Fs { .. }
        | ReadError::DevicePrograms { .. }
        | ReadError::NoController { .. } => SourceFault::Io,
        ReadError::Parse { .. } => SourceFault::Parse,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;
    use crate::model::cgroup::{Controller, FileKind, InterfaceFile};
    use crate::sys::{FsError, Operation};

    #[test]
    fn a_limit_that_came_too_late_for_what_is_in_use_only_waits() {
        const BUSY: i32 = 16;
        const INVALID: i32 = 22;
        let path = |name| CgroupPath::root().join(name).expect("a name");
        let deferred = [Deferred {
            path: path("waits"),
            file: InterfaceFile {
                controller: Controller::Memory,
                name: "memory.limit_in_bytes".to_owned(),
                kind: FileKind::PageLimitV1,
            },
            to: FileValue::Limit(Limit::At(4096)),
            meanwhile: None,
        }];
        for (name, file, errno, expected) in [
            ("waits", "memory.limit_in_bytes", BUSY, true),
            ("waits", "memory.limit_in_bytes", INVALID, false),
            ("waits", "cpuset.cpus", BUSY, false),
            ("other", "memory.limit_in_bytes", BUSY, false),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let error = ApplyError::Write {
                path: path(name),
                file: file.to_owned(),
                value: String::new(),
                source: FsError::new(Operation::Write, Path::new("/"), source),
            };
            assert_eq!(only_waits(&error, &deferred), expected, "{error}");
        }
    }

    #[test]
    fn what_hangs_is_tried_ever_more_seldom() {
        let mut before = None;
        let pauses = [10, 20, 40, 80, 160, 300, 300].map(|seconds| {
            before = Some(Pauses::STUCK.after(before));
            (before, seconds)
        });
        for (pause, seconds) in pauses {
            assert_eq!(pause, Some(Duration::from_secs(seconds)));
        }
        let lack = Pauses::LACK.after(Some(Duration::from_secs(300)));
        assert_eq!(lack, Duration::from_secs(1));
    }
}
