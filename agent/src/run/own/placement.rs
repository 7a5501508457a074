//! Who gets which CPUs, memory and devices: the loop's hold on the placement managers, and their
//! books on disk.
//!
//! The books are stored before a pod that was admitted is, so a pod that is known to be in has what
//! it was given. What a crash leaves of a pod that is not known to be in goes with the next sweep.
//!
//! Invariant: no lost or spoilt book stops the agent or what runs. What cannot be read is made anew
//! from the cgroups of the containers, and what cannot be known is placed again.

mod resources;
mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::Loop;
use super::event::PluginAnswered;
use super::plugins::ANSWER_LOST;
use super::pods::PodEntry;
use super::pressure::Pressure;
use crate::apply::{checkpoint, kubelet_state};
use crate::config::{Compat, Config, OwnConfig};
use crate::decide::eviction::admission::{Applicant, is_admitted};
use crate::decide::eviction::facts::is_critical;
use crate::decide::eviction::message::admission_message;
use crate::decide::placement::admission::{Decided, Outcome};
use crate::decide::placement::devices::{PluginAnswers, PluginQuestion, requests};
use crate::decide::placement::managers::{Managers, PlacementError, PlacementSettings};
use crate::decide::placement::record::{AdmissionInput, AdmissionRecord, decide};
use crate::decide::pod_state::PodState;
use crate::decide::predicates::{self, Failure, NodeInfo};
use crate::decide::preemption::resolve;
use crate::model::admission::{
    Admission, AdmissionReport, ContainerHoldings, MAX_RECORD_BYTES, Refusal, RefusalReason,
};
use crate::model::container::ContainerState;
use crate::model::eviction::{Eviction, EvictionCause, Victim};
use crate::model::kubelet_state::PodEntries;
use crate::model::numa::NumaMask;
use crate::model::placement::{CpuState, DeviceState, MemoryState};
use crate::model::pod::{Pod, PodUid};
use crate::model::record::PodRef;
use crate::model::time::WallTime;
use crate::observe::chain;
use crate::observe::metrics::labels::MoveReason;
use crate::run::serve::ADMISSIONS;
use crate::sources::checkpoint::{self as stored, CheckpointError};
use crate::sys::{FsError, Root, clock, durable};

/// So often plugins are asked in one admission beyond what its devices take; one that wants to be asked again and
/// again is not asked any more.
const MAX_QUESTIONS: usize = 32;

/// The kind and format version of the file of the resources whose plugin prepares devices.
const PREPARED: &str = "prepared-devices";
const PREPARED_VERSION: u32 = 1;

/// See the module.
pub(super) struct Placement {
    pub managers: Managers,
    pub settings: PlacementSettings,
    /// Who has which CPUs and memory; empty without the policy `static`.
    pub cpus: CpuState,
    pub memory: MemoryState,
    /// The shared pool is another one than when the cpusets of all containers were last looked at.
    pub is_pool_moved: bool,
    /// The node with what pods take of it, once it was counted in this pass.
    pub node_info: Option<NodeInfo>,
    /// Kubelet's directory.
    directory: PathBuf,
    /// Of admission records.
    records: PathBuf,
    /// Of the resources whose plugin prepares devices before a start, for which kubelet's file has no place.
    prepared: PathBuf,
    /// The books on disk are behind.
    is_unsaved: bool,
    /// The books that others are shown are behind.
    is_unpublished: bool,
    /// An earlier policy has pinned containers, and this one gives out nothing: they get the whole
    /// machine back.
    gives_back: bool,
    /// The same of memory: the NUMA nodes that they get back.
    pub gives_memory_back: Option<NumaMask>,
    /// It has not been written to their cgroups yet. The file of a policy that is off waits for that, since a later
    /// agent would give nothing back by it.
    is_giving_back: bool,
    /// Why admissions were opened again that had been decided.
    reopened_by: MoveReason,
    /// What the files have, as far as this agent wrote them.
    stored: Stored,
    /// Admissions that wait for a plugin, with what plugins have said so far.
    open: BTreeMap<PodUid, OpenAdmission>,
}

#[derive(Debug, Default)]
struct Stored {
    cpus: Option<CpuState>,
    memory: Option<MemoryState>,
    devices: Option<DeviceState>,
    prepared: BTreeSet<String>,
}

/// While it is open no other pod asks for one of its resources: two would be given the same devices by their plugin,
/// which may reset or bind a device when it gives it, below whoever has it by then.
#[derive(Debug, Default)]
struct OpenAdmission {
    resources: BTreeSet<String>,
    answers: PluginAnswers,
    /// The question that waits for its answer, and since when.
    asked: Option<(PluginQuestion, Duration)>,
    /// The pod has gone, or is another one, while its plugin was asked.
    is_over: bool,
    /// All has been answered, and there is no room for the pod yet.
    waits_for_room: bool,
}

impl OpenAdmission {
    /// A plugin works for it. One that does not answer may have lost the question.
    fn is_asked(&self, now: Duration) -> bool {
        let asked = self.asked.as_ref();
        asked.is_some_and(|(_, at)| now.saturating_sub(*at) < ANSWER_LOST)
    }

    /// Others have to wait for it.
    fn has_claim(&self, now: Duration) -> bool {
        match self.is_over || self.waits_for_room {
            true => self.is_asked(now),
            false => true,
        }
    }
}

impl Placement {
    pub(super) fn new(
        config: &Config,
        own: &OwnConfig,
        settings: PlacementSettings,
    ) -> Result<Self, PlacementError> {
        Ok(Self {
            managers: Managers::new(&settings)?,
            settings,
            cpus: CpuState::default(),
            memory: MemoryState::default(),
            is_pool_moved: false,
            node_info: None,
            directory: own.kubelet_directory.clone(),
            records: config.state_directory.join(ADMISSIONS),
            prepared: config.state_directory.join("prepared-devices.json"),
            is_unsaved: true,
            is_unpublished: true,
            gives_back: false,
            gives_memory_back: None,
            is_giving_back: false,
            reopened_by: MoveReason::Restart,
            stored: Stored::default(),
            open: BTreeMap::new(),
        })
    }

    fn pod_entries(&self) -> PodEntries {
        match self.settings.config.pod_level_resource_managers {
            true => PodEntries::Yes,
            false => PodEntries::No,
        }
    }

    /// The topology policy, as the label of metrics.
    pub(super) fn topology_policy(&self) -> &'static str {
        self.settings.config.topology_manager_policy.as_str()
    }

    /// Writes what differs from the files.
    fn save(
        &mut self,
        cpus: &CpuState,
        devices: &DeviceState,
        prepared: &BTreeSet<String>,
    ) -> Result<(), FsError> {
        let (directory, entries) = (self.directory.clone(), self.pod_entries());
        let cpus_wait = self.is_giving_back && self.gives_back;
        let memory_waits = self.is_giving_back && self.gives_memory_back.is_some();
        let (memory, stored) = (&self.memory, &mut self.stored);
        Root::host().create_dir_all(&directory)?;
        if !cpus_wait && stored.cpus.as_ref() != Some(cpus) {
            let policy = self.settings.config.cpu_manager_policy.as_str();
            kubelet_state::write_cpus(&directory, policy, entries, cpus)?;
            stored.cpus = Some(cpus.clone());
        }
        if !memory_waits && stored.memory.as_ref() != Some(memory) {
            let policy = self.settings.config.memory_manager_policy.as_str();
            kubelet_state::write_memory(&directory, policy, entries, memory)?;
            stored.memory = Some(memory.clone());
        }
        if stored.devices.as_ref() != Some(devices) {
            kubelet_state::write_devices(&directory, devices)?;
            stored.devices = Some(devices.clone());
        }
        if stored.prepared != *prepared {
            checkpoint::write(&self.prepared, PREPARED, PREPARED_VERSION, prepared)?;
            stored.prepared.clone_from(prepared);
        }
        Ok(())
    }

    /// Resources whose plugin prepares devices, as an earlier agent knew them. A file that cannot be used is as none:
    /// plugins tell it again when they register.
    fn load_prepared(&mut self) -> BTreeSet<String> {
        match stored::read(&self.prepared, PREPARED, PREPARED_VERSION) {
            Ok(prepared) => self.stored.prepared = prepared,
            Err(CheckpointError::File(error)) if error.is_gone() => {}
            Err(error) => tracing::warn!(error = chain(&error), "which devices are prepared"),
        }
        self.stored.prepared.clone()
    }

    fn record_path(&self, pod: &PodUid) -> PathBuf {
        self.records.join(format!("{pod}.json"))
    }
}

/// Whether there is room for a pod.
enum Room {
    Is,
    /// Others end for it. Why it waits, for people.
    Comes(String),
    IsNot(Refusal),
}

/// A resource of the pod for which another admission is open, or an earlier one of its own.
fn asks_before(open: &BTreeMap<PodUid, OpenAdmission>, pod: &Pod, now: Duration) -> Option<String> {
    let others = open
        .iter()
        .filter(|(uid, it)| (it.is_over || **uid != pod.uid) && it.has_claim(now));
    let taken: BTreeSet<&str> = others
        .flat_map(|(_, it)| it.resources.iter().map(String::as_str))
        .collect();
    let mut names = requests(pod).map(|(_, name)| name);
    names.find(|it| taken.contains(it)).map(str::to_owned)
}

/// Why the pod is not let in while the node is short of something.
fn pressure_refusal(pod: &Pod, compat: Compat, pressure: &Pressure) -> Option<Refusal> {
    let conditions = pressure.conditions();
    (!is_admitted(&conditions, Applicant::of(pod, compat))).then(|| Refusal {
        reason: RefusalReason::Evicted,
        message: admission_message(&conditions),
        container: None,
    })
}

impl Loop {
    /// Why a pod with this definition is not let in, whatever the managers say and whatever room there is.
    pub(super) fn first_refusal(&self, pod: &Pod) -> Option<Refusal> {
        pressure_refusal(pod, self.own.compat, &self.pressure)
            .or_else(|| self.forbidden_sysctl(pod))
    }

    /// What it may not ask for, however much room there is.
    pub(super) fn forbidden_sysctl(&self, pod: &Pod) -> Option<Refusal> {
        let forbidden = self.config.kubelet.allowed_sysctls.check(pod).err()?;
        Some(Refusal {
            reason: RefusalReason::SysctlForbidden,
            message: forbidden.to_string(),
            container: None,
        })
    }

    /// Decides whether an open pod may run. It stays open while a plugin has to be asked, or has not
    /// come yet.
    pub(super) fn admit(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        if entry.state.admission != Admission::Open || entry.state.ending().is_some() {
            return;
        }
        // What has begun goes on, and so does what was in before a boot.
        if !entry.is_in_already()
            && let Some(refusal) = self.first_refusal(&entry.state.pod)
        {
            self.bar(uid, refusal);
            return;
        }
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let pod = &entry.state.pod;
        let managers = &self.placement.managers;
        if let Some(resource) = managers.devices.awaited(pod) {
            let why = format!("waits for a device plugin that offers {resource}");
            self.told.waits(&entry.pod_ref, &mut entry.waits, why);
            // Nobody knows when it comes.
            entry.keeps_place = false;
            self.close(uid);
            return;
        }
        let started = clock::boottime();
        if let Some(resource) = asks_before(&self.placement.open, pod, started)
            && !managers.devices.holds_all(pod)
        {
            let why = format!(
                "waits until the device plugin of {resource} is done with an earlier question"
            );
            self.told.waits(&entry.pod_ref, &mut entry.waits, why);
            return;
        }
        let none = PluginAnswers::default();
        let answers = self.placement.open.get(uid).map_or(&none, |it| &it.answers);
        let n_most = MAX_QUESTIONS + 2 * requests(pod).count();
        let decided = match decide(managers, pod, answers) {
            Outcome::Decided(decided) => decided,
            Outcome::Ask(question) if answers.len() < n_most => {
                let why = format!("waits for the device plugin of {}", question.resource());
                self.told.waits(&entry.pod_ref, &mut entry.waits, why);
                let open = self.placement.open.entry(uid.clone()).or_default();
                open.resources = requests(pod).map(|(_, name)| name.to_owned()).collect();
                open.waits_for_room = false;
                open.is_over = false;
                if !open.is_asked(started) {
                    open.asked = Some((question.clone(), started));
                    self.ask_plugin(uid.clone(), question);
                }
                return;
            }
            Outcome::Ask(question) => {
                let refusal = Refusal {
                    reason: RefusalReason::UnexpectedAdmissionError,
                    message: format!(
                        "the device plugin of {} was asked {n_most} times",
                        question.resource()
                    ),
                    container: None,
                };
                Box::new(Decided::refused(managers.clone(), refusal))
            }
        };
        if decided.report.refusal.is_none() {
            match self.room_for(uid) {
                Room::Is => {}
                Room::Comes(why) => {
                    if let Some(open) = self.placement.open.get_mut(uid)
                        && !open.waits_for_room
                    {
                        open.waits_for_room = true;
                        self.let_others_ask(uid);
                    }
                    if let Some(entry) = self.pods.get_mut(uid) {
                        entry.waits_for_room = true;
                        // Nobody else takes it in this pass.
                        if let Some(node_info) = &mut self.placement.node_info {
                            node_info.take(&entry.state.pod);
                        }
                        self.told.waits(&entry.pod_ref, &mut entry.waits, why);
                    }
                    return;
                }
                Room::IsNot(refusal) => return self.bar(uid, refusal),
            }
        }
        let took = clock::boottime().saturating_sub(started);
        let answers = self.close(uid);
        self.conclude(uid, *decided, answers, Some(took));
    }

    /// What plugins have said of a pod whose definition is another one now.
    pub(super) fn ask_again(&mut self, uid: &PodUid) {
        self.close(uid);
    }

    /// Ends the questions in the admission of a pod, and lets others ask, once its plugin has done what it was asked.
    /// Gives what plugins have said.
    fn close(&mut self, uid: &PodUid) -> PluginAnswers {
        let Some(open) = self.placement.open.get_mut(uid) else {
            return PluginAnswers::default();
        };
        let answers = std::mem::take(&mut open.answers);
        if open.is_asked(clock::boottime()) {
            open.is_over = true;
        } else if let Some(closed) = self.placement.open.remove(uid) {
            // What it was given may be what they were told of.
            let others = self.placement.open.values_mut();
            for other in others.filter(|it| it.waits_for_room) {
                other.answers.forget(&closed.resources);
            }
            self.let_others_ask(uid);
        }
        answers
    }

    fn let_others_ask(&mut self, uid: &PodUid) {
        for entry in self.pods.values_mut().filter(|it| it.waits.is_some()) {
            entry.is_dirty |= entry.uid() != uid;
        }
    }

    /// The node does not let the pod in, whatever the managers say.
    fn bar(&mut self, uid: &PodUid, refusal: Refusal) {
        self.close(uid);
        let decided = Decided::refused(self.placement.managers.clone(), refusal);
        self.conclude(uid, decided, PluginAnswers::default(), None);
    }

    /// Whether the node takes the pod. What it has taken has its place, whatever there is by now.
    fn room_for(&mut self, uid: &PodUid) -> Room {
        let Some(entry) = self.pods.get(uid).filter(|it| !it.is_in_already()) else {
            return Room::Is;
        };
        let counted = self.placement.node_info.take();
        let node_info = counted.unwrap_or_else(|| self.count_pods());
        let mut left = node_info.clone();
        self.keep_places(entry, &mut left);
        let failures = left.failures(&entry.state.pod, None);
        self.placement.node_info = Some(node_info);
        match failures.first() {
            None => Room::Is,
            Some(_) if is_critical(&entry.state.pod, self.own.compat) => self.make_room(uid),
            Some(failure) => Room::IsNot(failure.refusal()),
        }
    }

    /// Room that is being made is theirs for whom it is made.
    pub(super) fn take_for_waiting(&self, node_info: &mut NodeInfo, but: Option<&PodUid>) {
        let is_another = |it: &&PodEntry| it.waits_for_room && Some(it.uid()) != but;
        for entry in self.pods.values().filter(is_another) {
            node_info.take(&entry.state.pod);
        }
    }

    /// Why the managers would not let a pod in that is in, were it to begin anew with this definition.
    pub(super) fn managers_refusal(&self, new: &Pod) -> Option<Refusal> {
        let mut managers = self.placement.managers.clone();
        managers.retain(|uid, _| *uid != new.uid);
        if let Some(resource) = managers.devices.awaited(new) {
            return Some(Refusal {
                reason: RefusalReason::UnexpectedAdmissionError,
                message: format!("no device plugin offers {resource}"),
                container: None,
            });
        }
        match decide(&managers, new, &PluginAnswers::default()) {
            Outcome::Decided(decided) => decided.report.refusal,
            // There are devices for it; what the plugin says will be seen.
            Outcome::Ask(_) => None,
        }
    }

    /// For a critical pod others end, in their grace, as many as it takes.
    fn make_room(&mut self, uid: &PodUid) -> Room {
        let Some(entry) = self.pods.get(uid) else {
            return Room::Is;
        };
        let (resource, victims) = match self.victims_for(entry) {
            Ok(Some(found)) => found,
            Ok(None) => {
                return Room::Comes("waits until pods that end have made room".to_owned());
            }
            Err(refusal) => return Room::IsNot(refusal),
        };
        let by = &entry.pod_ref;
        let names: Vec<String> = victims.iter().map(|it| it.full_name()).collect();
        let at = clock::boottime();
        let eviction = |victim: &Pod| Eviction {
            victim: Victim {
                pod: PodRef {
                    namespace: victim.namespace.clone(),
                    name: victim.name.clone(),
                    uid: victim.uid.clone(),
                },
                cause: EvictionCause::Preemption {
                    by: PodRef::clone(by),
                },
                grace: victim.termination_grace,
                message: format!("Preempted in order to admit critical pod {by}"),
                expected: None,
            },
            at,
            conditions: BTreeSet::new(),
        };
        let evictions: Vec<Eviction> = victims.into_iter().map(eviction).collect();
        for eviction in evictions {
            self.evict(eviction);
            self.metrics.pod_preempted(&resource);
        }
        Room::Comes(format!("waits until room is made by {}", names.join(", ")))
    }

    /// What a critical pod lacks, and who would end for it. `None`: those that end already make enough room.
    pub(super) fn victims_for(
        &self,
        entry: &PodEntry,
    ) -> Result<Option<(String, Vec<&Pod>)>, Refusal> {
        let (pod, compat) = (&entry.state.pod, self.own.compat);
        let stays =
            |it: &&PodEntry| it.is_active() && it.aside.is_none() && it.state.ending().is_none();
        let mut staying: Vec<&PodEntry> = self.pods.values().filter(stays).collect();
        staying.sort_by_key(|it| it.state.accepted_at);
        let staying: Vec<&Pod> = staying.iter().map(|it| &it.state.pod).collect();
        let mut node_info = self.node_with(staying.iter().copied());
        self.take_for_waiting(&mut node_info, Some(entry.uid()));
        // Whoever has the place until then is among those that end.
        for it in self.successors_before(entry) {
            node_info.take(it.pod);
        }
        let failures = node_info.failures(pod, None);
        let Some(first) = failures.first() else {
            return Ok(None);
        };
        let victims = resolve(pod, &failures, staying, compat).map_err(|it| match compat {
            Compat::Kubelet => it.refusal(),
            // What it lacks says more.
            Compat::Ballast => first.refusal(),
        })?;
        match first {
            Failure::InsufficientResource(short) => Ok(Some((short.resource.clone(), victims))),
            _ => Err(first.refusal()),
        }
    }

    /// The node with what those pods take of it that are in. Linear in their number.
    pub(super) fn count_pods(&self) -> NodeInfo {
        self.count_pods_but(None)
    }

    pub(super) fn count_pods_but(&self, but: Option<&PodUid>) -> NodeInfo {
        let is_counted = |it: &&PodEntry| it.is_active() && Some(it.uid()) != but;
        let active = self.pods.values().filter(is_counted);
        self.node_with(active.map(|it| &it.state.pod))
    }

    /// The node with what these pods take of it, and those of which nobody can say yet what became of them.
    fn node_with<'a>(&'a self, pods: impl Iterator<Item = &'a Pod>) -> NodeInfo {
        let admitted = pods.chain(self.undecided_holders());
        let mut node_info = NodeInfo::new(self.node_without_pods(), admitted);
        for requests in self.undecided_requests() {
            node_info.take_requests(&requests);
        }
        node_info
    }

    fn node_without_pods(&self) -> predicates::Node {
        let kubelet = &self.config.kubelet;
        self.hands.node_without_pods(&self.node, kubelet)
    }

    /// A plugin has said something in the admission of a pod.
    pub(super) fn plugin_answered(&mut self, answered: PluginAnswered) {
        let PluginAnswered {
            pod: uid,
            question,
            answer,
        } = answered;
        if let Some(open) = self.placement.open.get_mut(&uid) {
            let is_awaited = open
                .asked
                .take_if(|(asked, _)| *asked == question)
                .is_some();
            if open.is_over && is_awaited {
                self.close(&uid);
            } else if !open.is_over {
                open.answers.insert(question, answer);
            }
        }
        if let Some(entry) = self.pods.get_mut(&uid) {
            entry.is_dirty = true;
        }
    }

    /// `took`: `None` if the managers were not asked.
    fn conclude(
        &mut self,
        uid: &PodUid,
        decided: Decided,
        answers: PluginAnswers,
        took: Option<Duration>,
    ) {
        let Decided {
            managers,
            report,
            tally,
        } = decided;
        let policy = self.placement.topology_policy();
        let is_told = !report.alignments.is_empty()
            || !report.holdings.is_empty()
            || report.refusal.is_some();
        if is_told {
            let barred = report.refusal.clone().filter(|_| took.is_none());
            self.record_admission(uid, &report, answers, barred);
        }
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        entry.waits = None;
        entry.waits_for_room = false;
        entry.keeps_place = false;
        entry.is_unsaved = true;
        if report.alignments.iter().any(|it| it.is_cut) {
            self.told.search_cut(&entry.pod_ref);
        }
        let reason = report.refusal.as_ref().map(|it| it.reason);
        let at = WallTime::from_epoch(clock::wall());
        let asked = took.map(|took| (&tally, took));
        self.metrics.admission(uid, policy, reason, asked, at);
        // What the node has taken before is among those that were counted.
        let was_counted = entry.is_in_already();
        let was_in_before_boot = std::mem::take(&mut entry.state.was_in_before_boot);
        match report.refusal {
            None => {
                entry.state.admission = Admission::Admitted;
                if !was_counted && let Some(node_info) = &mut self.placement.node_info {
                    node_info.take(&entry.state.pod);
                }
                self.told.admitted(&entry.pod_ref, &report.holdings);
                let before = self.placement.managers.holdings(&entry.state.pod);
                for _ in moved(&entry.state, &before, &report.holdings) {
                    self.metrics.container_moved(self.placement.reopened_by);
                }
                self.placement.managers = managers;
                self.books_changed();
            }
            // What runs is not ended because it could not be placed again. After a boot nothing runs.
            Some(refusal)
                if entry.has_begun()
                    && !was_in_before_boot
                    && self.own.compat == Compat::Ballast =>
            {
                entry.state.admission = Admission::Admitted;
                self.told.placement_lost(&entry.pod_ref, &refusal);
            }
            Some(refusal) => {
                self.told.refused(&entry.pod_ref, &refusal);
                entry.state.admission = Admission::Refused(refusal);
                entry.seen_at = None;
                if was_counted {
                    self.placement.node_info = None;
                }
            }
        }
    }

    /// Notes that the books are others than those on disk and in the cgroups.
    pub(super) fn books_changed(&mut self) {
        self.placement.is_unsaved = true;
        self.placement.is_unpublished = true;
        let mut cpus = self.placement.managers.cpu_state();
        if let Some(manager) = &self.placement.managers.cpu {
            cpus.shared_pool.clone_from(manager.common());
        }
        if self.placement.gives_back {
            cpus.shared_pool = self.node.topology.online();
        }
        if cpus.shared_pool != self.placement.cpus.shared_pool {
            self.placement.is_pool_moved = true;
        }
        self.placement.cpus = cpus;
        self.placement.memory = self.placement.managers.memory_state();
    }

    /// Takes back what pods held that are over or gone.
    pub(super) fn sweep_placement(&mut self) {
        let is_over = |uid: &PodUid| {
            let entry = self.pods.get(uid);
            entry.is_none_or(|it| it.state.ending().is_some())
        };
        let open = self.placement.open.keys();
        let over: Vec<PodUid> = open.filter(|it| is_over(it)).cloned().collect();
        // Of one that is over already this looks whether its answer was lost.
        for uid in over {
            self.close(&uid);
        }
        let others = self.other_holders();
        if !self.has_stale_holders(&others) {
            return;
        }
        let pods = &self.pods;
        self.placement.managers.retain(|uid, container| {
            if others.contains(uid) {
                return true;
            }
            pods.get(uid).is_some_and(|entry| {
                holds(entry)
                    && entry
                        .state
                        .pod
                        .all_containers()
                        .any(|it| it.name == container)
            })
        });
        self.books_changed();
    }

    /// Stores the books that changed. A failure is told and tried again with the next pass.
    pub(super) fn save_placement(&mut self) {
        if !self.placement.is_unsaved {
            return;
        }
        // Not `Placement::cpus`, which gives pods of an earlier policy the machine back, and others a pool where there
        // is none.
        let cpus = self.placement.managers.cpu_state();
        let devices = self.placement.managers.devices.state();
        let prepared = self.placement.managers.devices.prepared().clone();
        let saved = self.placement.save(&cpus, &devices, &prepared);
        match saved {
            Ok(()) => self.placement.is_unsaved = false,
            Err(error) => tracing::error!(error = chain(&error), "store the books of placement"),
        }
    }

    /// The cgroups of all containers were written.
    pub(super) fn gave_back(&mut self) {
        if std::mem::take(&mut self.placement.is_giving_back) {
            self.placement.is_unsaved = true;
            self.save_placement();
        }
    }

    /// Keeps an admission with what it was decided from, for `ballast explain` and `ballast replay`.
    fn record_admission(
        &self,
        uid: &PodUid,
        report: &AdmissionReport,
        answers: PluginAnswers,
        barred: Option<Refusal>,
    ) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let input = AdmissionInput {
            settings: self.placement.settings.clone(),
            books: self.placement.managers.books(),
            pod: entry.state.pod.clone(),
            answers,
            barred,
        };
        let record = AdmissionRecord::new(input, report.clone());
        let written = match serde_json::to_vec(&record) {
            Ok(bytes) if bytes.len() as u64 <= MAX_RECORD_BYTES => Root::host()
                .create_dir_all(&self.placement.records)
                .and_then(|()| durable::replace(&self.placement.record_path(uid), &bytes))
                .map_err(|error| chain(&error)),
            Ok(bytes) => Err(format!("it has {} bytes", bytes.len())),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = written {
            tracing::warn!(pod = %entry.pod_ref, error, "keep the record of an admission");
        }
    }

    /// Forgets the record of a pod that is gone.
    pub(super) fn forget_admission(&self, uid: &PodUid) {
        if let Err(error) = durable::remove(&self.placement.record_path(uid)) {
            tracing::warn!(%uid, error = chain(&error), "remove the record of an admission");
        }
    }
}

/// The containers that have begun and hold other CPUs or memory now.
fn moved<'a>(
    state: &PodState,
    before: &[ContainerHoldings],
    now: &'a [ContainerHoldings],
) -> impl Iterator<Item = &'a ContainerHoldings> {
    now.iter().filter(move |now| {
        let status = state.containers.iter().find(|it| it.name == now.container);
        let has_begun = status.is_some_and(|it| it.state != ContainerState::NotStarted);
        let before = before.iter().find(|it| it.container == now.container);
        let stays = before.is_some_and(|it| it.cpus == now.cpus && it.memory == now.memory);
        let is_placed = now.cpus.is_some() || !now.memory.is_empty();
        has_begun && is_placed && !stays
    })
}

/// What was given to the pod is still its own.
fn holds(entry: &PodEntry) -> bool {
    !matches!(entry.state.admission, Admission::Refused(_))
        && !entry.is_finished()
        && !entry.state.phase.is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PlacementConfig;
    use crate::decide::placement::tests::topology;
    use crate::model::kubelet_state::{CPU_FILE, MEMORY_FILE};
    use crate::sys::scratch::Scratch;

    #[test]
    fn no_file_says_that_nobody_is_given_anything_back_before_it_is_done() {
        for (gives_back, gives_memory_back) in [
            (false, None),
            (true, None),
            (false, Some(NumaMask::from_bits(0b11))),
            (true, Some(NumaMask::from_bits(0b11))),
        ] {
            let scratch = Scratch::new("placement");
            let text = format!(
                "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
                 kubeletDirectory: {}\n",
                scratch.directory().display(),
            );
            let config = Config::from_yaml(&text, None, &[]).expect("valid").config;
            let own = config.mode.own().expect("mode own");
            let settings = PlacementSettings {
                compat: Compat::Ballast,
                config: PlacementConfig::default(),
                reserved_system_cpus: None,
                reservation: BTreeMap::new(),
                topology: topology(),
            };
            let mut placement = Placement::new(&config, own, settings).expect("it fits");
            placement.gives_back = gives_back;
            placement.gives_memory_back = gives_memory_back;
            placement.is_giving_back = true;
            let saved = |placement: &mut Placement| {
                let (cpus, devices) = (CpuState::default(), DeviceState::default());
                placement
                    .save(&cpus, &devices, &BTreeSet::new())
                    .expect("the directory is there");
                [CPU_FILE, MEMORY_FILE].map(|it| Root::host().exists(scratch.path(it)))
            };
            let expected = [!gives_back, gives_memory_back.is_none()];
            assert_eq!(saved(&mut placement), expected, "before");
            placement.is_giving_back = false;
            assert_eq!(saved(&mut placement), [true, true], "after");
        }
    }
}
