//! The pods that the loop knows, with what is stored of them and what is only held.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::escapes::Escape;
use super::plugins::PreStart;
use crate::apply::cgroupfs::ApplyError;
use crate::apply::checkpoint;
use crate::apply::host_path::HostPathError;
use crate::config::Compat;
use crate::decide::definition::{asks_for_the_same, is_restarted, is_same_program};
use crate::decide::eviction::facts::priority;
use crate::decide::lifecycle::{PodDecision, after_reboot, spec_hash};
use crate::decide::pod_state::PodState;
use crate::model::admission::Admission;
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::{
    ContainerAction, ContainerExit, ContainerState, ContainerStatus, SpecHash, Termination,
};
use crate::model::device_access::AllocatedDevice;
use crate::model::event::{CgroupId, ProcessKey};
use crate::model::eviction::PodFacts;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::{Pod, PodUid, QosClass, Redefinition};
use crate::model::record::PodRef;
use crate::model::stats::KnownPod;
use crate::model::time::WallTime;
use crate::runtime::{ContainerId, ContainerOwner, HostProcess, Signal, logs};
use crate::sys::patience::Errand;
use crate::sys::{FsError, steady};

/// Records and directories of pods, below the state directory.
pub(super) const PODS: &str = "pods";

/// Volumes of a pod, below its directory.
pub(super) const VOLUMES: &str = "volumes";

/// One start of a container, from the decision to start it until its cgroup is gone.
#[derive(Debug)]
pub(super) struct Instance {
    pub id: ContainerId,
    pub cgroup: CgroupPath,
    /// When its start was decided, boottime, until its cgroup is first right. `None` also for an
    /// adopted one.
    pub decided_at: Option<Duration>,
    /// Why its start, decided and asked for, is put off from pass to pass.
    pub held: Option<String>,
    /// What the agent lacked for its start when it tried last.
    pub lack: Option<Lack>,
    /// Its volumes on the host are looked at, or made; `None`: they were, or are yet to be.
    pub host_paths: Option<Errand<Result<(), HostPathError>>>,
    /// `None` until it runs.
    pub process: Option<HostProcess>,
    /// The OOM killer killed its first process.
    pub oom_killed: bool,
    /// Victims told before it is known which process is the first: the kernel's word of a kill may
    /// come before the runtime's of the start.
    pub early_victims: BTreeSet<HostProcess>,
    /// What device plugins have to prepare before its start.
    pub pre_start: PreStart,
    /// What it was given and may open, as it was last looked up.
    pub devices: Vec<AllocatedDevice>,
    /// Why it may not open the rest of what it was given.
    pub missing_devices: Option<String>,
    /// Those of its processes that the last look found outside the cgroup.
    pub escape: Option<Escape>,
    /// See [`ObservedCgroup::has_lost_processes`](crate::model::cgroup::ObservedCgroup); of that look too.
    pub has_lost_processes: bool,
    /// Its first process ended; the cgroup is being emptied and removed.
    pub ended: Option<Termination>,
}

impl Instance {
    /// An instance whose start is to be asked for.
    pub(super) fn new(id: ContainerId, cgroup: CgroupPath) -> Self {
        Self {
            id,
            cgroup,
            decided_at: None,
            held: None,
            lack: None,
            host_paths: None,
            process: None,
            oom_killed: false,
            early_victims: BTreeSet::new(),
            pre_start: PreStart::default(),
            devices: Vec::new(),
            missing_devices: None,
            escape: None,
            has_lost_processes: false,
            ended: None,
        }
    }

    /// Its start was decided, and waits for something before the runtime is asked.
    fn is_yet_to_be_started(&self) -> bool {
        self.held.is_some() || !self.pre_start.waiting.is_empty()
    }

    /// Its first process is known now.
    pub(super) fn set_process(&mut self, process: HostProcess) {
        self.process = Some(process);
        self.oom_killed |= std::mem::take(&mut self.early_victims).contains(&process);
    }

    fn note_oom_kill(&mut self, victim: HostProcess) {
        match self.process {
            None => {
                self.early_victims.insert(victim);
            }
            Some(process) if process == victim => {
                self.oom_killed = true;
                if let Some(ended) = &mut self.ended {
                    ended.oom_killed = true;
                }
            }
            Some(_) => {}
        }
    }
}

/// Something that the agent lacks for a start.
#[derive(Clone, Debug)]
pub(super) struct Lack {
    pub why: String,
    /// From the last try to the next.
    pub pause: Duration,
    /// When it is tried again, boottime; `None`: it is being tried.
    pub until: Option<Duration>,
}

/// Why a cgroup is not as it should be.
#[derive(Clone, Debug)]
pub(super) struct CgroupFault {
    pub text: String,
    /// The agent or the kernel lacked something for it that may be there later.
    pub is_lack: bool,
    /// It is there, and holds another value than it should.
    pub is_there: bool,
}

impl CgroupFault {
    pub(super) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self {
            text: crate::observe::chain(error),
            is_lack: steady::is_lack(error) || steady::is_short(error),
            is_there: false,
        }
    }

    pub(super) fn of_write(error: &ApplyError) -> Self {
        let is_there = matches!(error, ApplyError::Write { .. } | ApplyError::NotKept { .. });
        Self {
            is_there,
            ..Self::of(error)
        }
    }
}

/// A pod in the loop.
#[derive(Debug)]
pub(super) struct PodEntry {
    pub state: PodState,
    pub pod_ref: Arc<PodRef>,
    pub qos: QosClass,
    /// What eviction needs to know of it.
    pub facts: Arc<PodFacts>,
    pub cgroup: CgroupPath,
    /// Id of the pod's cgroup in the hierarchy that accounts memory, once it exists.
    pub cgroup_id: Option<CgroupId>,
    /// When a manifest first had it, boottime, until its cgroup is first right. `None` also for an
    /// adopted one.
    pub seen_at: Option<Duration>,
    /// By container name.
    pub instances: BTreeMap<String, Instance>,
    /// First processes of the instances that ended last: the word of an OOM kill may come later
    /// than that of the exit.
    ended: BTreeMap<String, HostProcess>,
    /// Instances that are over, until the stored state says so: till then the runtime has a record of each.
    pub unforgotten: Vec<ContainerId>,
    pub decision: Option<PodDecision>,
    /// What the sweep knows of it; stale: something of that changed since.
    pub known: Option<Arc<KnownPod>>,
    pub is_known_stale: bool,
    /// Something happened since the last decision.
    pub is_dirty: bool,
    /// The stored state is behind.
    pub is_unsaved: bool,
    /// A reading of the manifests in this life of the agent had it.
    pub is_confirmed: bool,
    /// Why it is not acted upon yet.
    pub blocked: Option<String>,
    /// Others run in its cgroup, and no agent of this state directory has made it: it is left alone,
    /// with what is in it.
    pub occupied: Option<String>,
    /// Agents died of it: it is not handled, and what of it runs goes on and counts.
    pub aside: Option<String>,
    /// Why its admission is not decided yet.
    pub waits: Option<String>,
    /// Pods end to make room for it.
    pub waits_for_room: bool,
    /// It comes in the place of a pod that was edited, which is kept for it until its admission is decided.
    pub keeps_place: bool,
    /// Why it has not taken the definition that its manifest has now.
    pub held_back: Option<String>,
    /// Containers whose cgroup could not be made as it should be, with the error.
    pub cgroup_faults: BTreeMap<CgroupPath, CgroupFault>,
    /// It was evicted, and its files are gone or on their way out.
    pub gave_up_files: bool,
    /// Its volumes on the host are of the kinds that it asks for, as they were before its first container started.
    pub are_host_paths_checked: bool,
}

impl PodEntry {
    /// The name of the container that has this cgroup.
    pub(super) fn container_of(&self, key: &ContainerKey) -> Option<&str> {
        let mut instances = self.instances.iter();
        let (name, _) = instances.find(|(_, it)| it.id.as_str() == key.id)?;
        Some(name)
    }

    pub(super) fn new(
        state: PodState,
        qos: QosClass,
        cgroup: CgroupPath,
        facts: Arc<PodFacts>,
    ) -> Self {
        let pod_ref = Arc::new(PodRef {
            namespace: state.pod.namespace.clone(),
            name: state.pod.name.clone(),
            uid: state.pod.uid.clone(),
        });
        Self {
            state,
            pod_ref,
            qos,
            facts,
            cgroup,
            cgroup_id: None,
            seen_at: None,
            instances: BTreeMap::new(),
            ended: BTreeMap::new(),
            unforgotten: Vec::new(),
            decision: None,
            known: None,
            is_known_stale: false,
            is_dirty: true,
            is_unsaved: true,
            is_confirmed: false,
            blocked: None,
            occupied: None,
            aside: None,
            waits: None,
            waits_for_room: false,
            keeps_place: false,
            held_back: None,
            cgroup_faults: BTreeMap::new(),
            gave_up_files: false,
            are_host_paths_checked: false,
        }
    }

    pub(super) fn uid(&self) -> &PodUid {
        &self.state.pod.uid
    }

    /// What keeps a container from its cgroup: a fault there, none of its neighbours', or of the pod's. What the kernel
    /// refuses of a pod that runs, as a limit below what it uses, is no looser with one container more.
    pub(super) fn cgroup_fault_of(&self, container: &str) -> Option<&CgroupFault> {
        let own = self.instances.get(container).map(|it| &it.cgroup);
        let own = own.and_then(|it| self.cgroup_faults.get(it));
        let runs = self.instances.values().any(|it| it.process.is_some());
        let of_pod = self.cgroup_faults.get(&self.cgroup);
        own.or_else(|| of_pod.filter(|it| !(it.is_there && runs)))
    }

    /// The start of a container that was decided.
    pub(super) fn start_action(&self, container: &str) -> Option<ContainerAction> {
        let mut statuses = self.state.containers.iter();
        let status = statuses.find(|it| it.name == container)?;
        Some(ContainerAction::Start {
            container: container.to_owned(),
            attempt: status.attempt,
            spec_hash: status.spec_hash.clone()?,
        })
    }

    /// Another definition, in place.
    pub(super) fn take(&mut self, new: Pod, digest: String, redefinition: Redefinition) {
        for status in &mut self.state.containers {
            let instance = self.instances.get(&status.name);
            let container = new.all_containers().find(|it| it.name == status.name);
            let mut before = self.state.pod.all_containers();
            let before = before.find(|it| it.name == status.name);
            // It will be of this definition. One that the runtime has is of the earlier, and is restarted once it is known.
            if status.state == ContainerState::Starting
                && instance.is_some_and(Instance::is_yet_to_be_started)
                && let Some(container) = container
            {
                status.spec_hash = Some(spec_hash(container));
            } else if status.state.is_alive() && is_restarted(&self.state.pod, &new, &status.name) {
                status.spec_hash = Some(SpecHash::outdated());
            } else if let Some((before, container)) = before.zip(container)
                && status.spec_hash == Some(spec_hash(before))
                && is_same_program(before, container)
            {
                status.spec_hash = Some(spec_hash(container));
            }
        }
        self.state.pod = new;
        self.state.digest = Some(digest);
        self.state.redefined = Some(redefinition);
        self.held_back = None;
        self.are_host_paths_checked = false;
        for instance in self.instances.values_mut() {
            instance.host_paths = None;
        }
        self.is_dirty = true;
        self.is_unsaved = true;
        self.is_known_stale = true;
    }

    /// Another reading of what its manifest had all the time, as by another version of the agent, or of a node that has
    /// another name by now. What has begun of a pod goes on by the reading that it began by. True: the pod has it now.
    pub(super) fn read_anew(&mut self, new: &Pod) -> bool {
        let old = &self.state.pod;
        let has_begun = self.has_begun() || !self.instances.is_empty();
        if has_begun || old == new || !asks_for_the_same(old, new) {
            return false;
        }
        self.state.pod = new.clone();
        self.is_dirty = true;
        self.is_unsaved = true;
        self.is_known_stale = true;
        true
    }

    /// What a container is told to end by.
    pub(super) fn stop_signal(&self, container: &str) -> Signal {
        let mut containers = self.state.pod.all_containers();
        let own = containers.find(|it| it.name == container);
        let own = own.and_then(|it| Signal::new(it.stop_signal?));
        own.unwrap_or(Signal::TERM)
    }

    /// Nothing of it runs and nothing will.
    pub(super) fn is_finished(&self) -> bool {
        self.decision.as_ref().is_some_and(|it| it.is_finished)
    }

    /// When it is decided upon again without an event.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        let decision = self.decision.as_ref().and_then(|it| it.next_wake);
        let lacks = self.instances.values().filter_map(|it| it.lack.as_ref());
        lacks.filter_map(|it| it.until).chain(decision).min()
    }

    /// Some container of it was started, whatever became of it.
    pub(super) fn has_begun(&self) -> bool {
        let mut containers = self.state.containers.iter();
        containers.any(|it| it.state != ContainerState::NotStarted)
    }

    /// The node has taken it, whatever there is by now.
    pub(super) fn is_in_already(&self) -> bool {
        self.state.was_in_before_boot || self.has_begun()
    }

    /// Counts for the budgets: it runs or will run. What the node has taken counts while its place is decided again.
    pub(super) fn is_active(&self) -> bool {
        let is_in = match self.state.admission {
            Admission::Admitted => true,
            Admission::Open => self.is_in_already(),
            Admission::Refused(_) => false,
        };
        is_in
            && self.blocked.is_none()
            && self.occupied.is_none()
            && !self.is_finished()
            && !self.state.phase.is_terminal()
    }

    /// It has a place on the node, or one is kept for it: who comes in its place has that.
    pub(super) fn has_place(&self) -> bool {
        self.keeps_place || self.is_active() && self.state.eviction.is_none()
    }

    /// A container that runs may open what it could until the place of its pod is decided: what it was given may be on
    /// no record.
    pub(super) fn keeps_devices(&self, instance: &Instance) -> bool {
        self.state.admission == Admission::Open && instance.process.is_some()
    }

    /// The kernel killed `n` processes of `container`.
    pub(super) fn note_oom_kills(&mut self, container: &str, n: u64) {
        let kills = self.state.oom_kills.entry(container.to_owned());
        *kills.or_default() += n;
        self.is_unsaved = true;
        self.is_known_stale = true;
    }

    /// The kernel killed a process of `container`, its first one or another.
    pub(super) fn note_oom_kill(&mut self, container: &str, victim: ProcessKey) {
        self.note_oom_kills(container, 1);
        let victim = HostProcess::of(victim);
        if self.ended.get(container) == Some(&victim) {
            if let Some(status) = self.state.container_mut(container) {
                let termination = match &mut status.state {
                    ContainerState::Exited(termination) => Some(termination),
                    // The next instance has been asked for since.
                    _ => status.last_termination.as_mut(),
                };
                if let Some(termination) = termination {
                    termination.oom_killed = true;
                }
            }
        } else if let Some(instance) = self.instances.get_mut(container) {
            instance.note_oom_kill(victim);
        }
    }

    /// The instance is over and nothing of it is left.
    pub(super) fn finish_instance(&mut self, container: &str) -> Option<(Instance, Termination)> {
        let instance = self.instances.remove(container)?;
        let termination = instance.ended.clone()?;
        if let Some(process) = instance.process {
            self.ended.insert(container.to_owned(), process);
        }
        if let Some(status) = self.state.container_mut(container) {
            status.state = ContainerState::Exited(termination.clone());
        }
        self.is_dirty = true;
        self.is_unsaved = true;
        self.unforgotten.push(instance.id.clone());
        Some((instance, termination))
    }
}

/// The pod and the container that an instance is of. `None`: it is over, or its pod is not known.
pub(super) fn owner_of(
    pods: &BTreeMap<PodUid, PodEntry>,
    id: &ContainerId,
) -> Option<(PodUid, String)> {
    pods.iter().find_map(|(uid, entry)| {
        let mut instances = entry.instances.iter();
        let (container, _) = instances.find(|(_, it)| it.id == *id)?;
        Some((uid.clone(), container.clone()))
    })
}

/// Where things are below the state directory.
#[derive(Clone, Debug)]
pub(super) struct StatePaths(pub PathBuf);

impl StatePaths {
    pub(super) fn pods(&self) -> PathBuf {
        self.0.join(PODS)
    }

    pub(super) fn pod_record(&self, uid: &PodUid) -> PathBuf {
        self.pods().join(format!("{uid}.json"))
    }

    /// The directory of a pod: its containers' default working directory, with its volumes.
    pub(super) fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods().join(&uid.0)
    }

    pub(super) fn volume(&self, uid: &PodUid, name: &str) -> PathBuf {
        self.pod_dir(uid).join(VOLUMES).join(name)
    }

    pub(super) fn logs(&self) -> PathBuf {
        logs::directory(&self.0)
    }

    pub(super) fn pod_logs(&self, pod: &PodRef) -> PathBuf {
        logs::pod_dir(&self.0, &pod.namespace, &pod.name, &pod.uid)
    }

    pub(super) fn log(&self, owner: &ContainerOwner) -> PathBuf {
        logs::log_path(&self.0, owner)
    }
}

/// Whose claim on the node comes first: the higher rank, then who keeps the place of another, then the older pod.
pub(super) fn claim(entry: &PodEntry, compat: Compat) -> (Reverse<(i32, bool)>, WallTime, &PodUid) {
    let rank = rank(&entry.state.pod, compat);
    let keeps_place = entry.keeps_place && compat == Compat::Ballast;
    let first = Reverse((rank, keeps_place));
    (first, entry.state.accepted_at, entry.uid())
}

/// The priority, of which kubelet's claims know nothing.
pub(super) fn rank(pod: &Pod, compat: Compat) -> i32 {
    match compat {
        Compat::Ballast => priority(pod, compat).unwrap_or(0),
        Compat::Kubelet => 0,
    }
}

/// Stores the state of a pod.
pub(super) fn save(paths: &StatePaths, state: &PodState) -> Result<(), FsError> {
    let path = paths.pod_record(&state.pod.uid);
    checkpoint::write(&path, PodState::KIND, PodState::VERSION, state)
}

/// Brings a stored state into this boot.
pub(super) fn revive(
    mut state: PodState,
    boot_id: &str,
    compat: Compat,
    may_have_run: impl Fn(&ContainerStatus) -> bool,
) -> PodState {
    if state.boot_id != boot_id {
        state.containers = after_reboot(&state.pod, &state.containers, may_have_run);
        state.backoff = crate::decide::lifecycle::BackoffState::default();
        state.boot_id = boot_id.to_owned();
        // What was left of its grace counted on the clock of the earlier boot; nothing runs now.
        if let Some(deletion) = &mut state.deletion {
            deletion.requested_at = Duration::ZERO;
        }
        if let Some(eviction) = &mut state.eviction {
            eviction.at = Duration::ZERO;
        }
        // Stored with it: the agent may be started again before its place is decided.
        state.was_in_before_boot |= state.admission == Admission::Admitted;
    }
    state.was_in_before_boot &= compat == Compat::Ballast;
    state
}

/// A termination of an instance of which no one knows more.
pub(super) fn unknown_end(now: Duration) -> Termination {
    Termination {
        started_at: None,
        finished_at: now,
        exit: ContainerExit::Unknown,
        oom_killed: false,
        message: Some("it ended while the agent was not there to see how".to_owned()),
    }
}

/// Pods by `namespace/name`; more than one while a replaced pod is on its way out.
pub(super) fn by_name(pods: &BTreeMap<PodUid, PodEntry>) -> BTreeMap<String, BTreeSet<PodUid>> {
    let mut names: BTreeMap<String, BTreeSet<PodUid>> = BTreeMap::new();
    for (uid, entry) in pods {
        names
            .entry(entry.state.pod.full_name())
            .or_default()
            .insert(uid.clone());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Compat;
    use crate::decide::eviction::facts::pod_facts;
    use crate::decide::testing;
    use crate::model::pod::EnvVar;
    use crate::model::time::WallTime;

    /// A container `app0` in its `attempt`th instance.
    fn entry(attempt: u32) -> PodEntry {
        let pod = testing::pod("app {}");
        let facts = pod_facts(&pod, QosClass::BestEffort, Compat::Ballast);
        let state = PodState::new(pod, "boot".to_owned(), WallTime::default());
        let cgroup = CgroupPath::root();
        let mut entry = PodEntry::new(state, QosClass::BestEffort, cgroup, Arc::new(facts));
        let instance = Instance::new(id(attempt), CgroupPath::root());
        entry.instances.insert("app0".to_owned(), instance);
        entry
    }

    fn id(attempt: u32) -> ContainerId {
        ContainerId::new(format!("app0-{attempt}")).expect("a valid id")
    }

    #[test]
    fn priority_is_before_the_place_of_another_and_that_before_age() {
        let with = |priority, keeps_place, ms| {
            let mut entry = entry(0);
            entry.state.pod.priority = priority;
            entry.keeps_place = keeps_place;
            entry.state.accepted_at = WallTime::from_epoch(Duration::from_millis(ms));
            entry
        };
        let high = with(Some(1), false, 3);
        let edited = with(None, true, 2);
        let (old, young) = (with(None, false, 0), with(None, false, 1));
        let first = |one, other, compat| claim(one, compat) < claim(other, compat);
        for (one, other) in [(&high, &edited), (&edited, &old), (&old, &young)] {
            assert!(first(one, other, Compat::Ballast));
        }
        assert!(first(&old, &high, Compat::Kubelet));
        assert!(first(&old, &edited, Compat::Kubelet));
    }

    #[test]
    fn what_the_node_has_taken_counts_while_its_place_is_decided_again() {
        let new = ContainerState::NotStarted;
        let running = ContainerState::Running {
            started_at: Duration::ZERO,
        };
        for (admission, state, was_in_before_boot, counts) in [
            (Admission::Open, new.clone(), false, false),
            (Admission::Open, new.clone(), true, true),
            (Admission::Open, running, false, true),
            (Admission::Admitted, new, false, true),
        ] {
            let mut entry = entry(0);
            entry.state.admission = admission;
            entry.state.containers[0].state = state;
            entry.state.was_in_before_boot = was_in_before_boot;
            assert_eq!(entry.is_active(), counts, "{:?}", entry.state);
        }
    }

    #[test]
    fn an_instance_that_is_over_is_nobody() {
        let mut entry = entry(3);
        let uid = entry.uid().clone();
        entry.instances.get_mut("app0").expect("it is there").ended =
            Some(unknown_end(Duration::ZERO));
        let mut pods = BTreeMap::from([(uid.clone(), entry)]);
        let owner = Some((uid.clone(), "app0".to_owned()));
        assert_eq!(owner_of(&pods, &id(3)), owner, "its cgroup is still there");
        assert_eq!(owner_of(&pods, &id(2)), None, "another one is there since");
        let entry = pods.get_mut(&uid).expect("it is there");
        entry.finish_instance("app0").expect("it has ended");
        assert_eq!(owner_of(&pods, &id(3)), None);
    }

    #[test]
    fn who_runs_may_open_what_it_could_until_its_place_is_decided() {
        for (admission, pid, keeps) in [
            (Admission::Open, Some(7), true),
            // Nothing starts without rules.
            (Admission::Open, None, false),
            (Admission::Admitted, Some(7), false),
        ] {
            let mut entry = entry(0);
            entry.state.admission = admission;
            let instance = entry.instances.get_mut("app0").expect("it is there");
            instance.process = pid.map(|pid| HostProcess {
                pid,
                start_ticks: 1,
            });
            let found = entry.keeps_devices(&entry.instances["app0"]);
            assert_eq!(found, keeps, "{:?}", entry.state.admission);
        }
    }

    /// A pod that was refused on a node of another name would else be refused for good.
    #[test]
    fn a_pod_of_which_nothing_has_begun_is_as_its_manifest_is_read_now() {
        type Edit = fn(&mut Pod);
        let renamed: Edit = |it| it.node_name = Some("other".to_owned());
        let resized: Edit = |it| {
            let requests = &mut it.containers[0].resources.requests;
            requests.insert("cpu".to_owned(), "1".parse().expect("a quantity"));
        };
        let same: Edit = |_| {};
        let new = ContainerState::NotStarted;
        let ended = ContainerState::Exited(unknown_end(Duration::ZERO));
        for (row, state, edit, is_taken) in [
            ("new", new.clone(), renamed, true),
            ("has ended", ended, renamed, false),
            ("asks for more", new.clone(), resized, false),
            ("as it was", new, same, false),
        ] {
            let mut entry = entry(0);
            entry.instances.clear();
            entry.state.containers[0].state = state;
            entry.is_unsaved = false;
            let mut reading = entry.state.pod.clone();
            edit(&mut reading);
            assert_eq!(entry.read_anew(&reading), is_taken, "{row}");
            assert_eq!(entry.is_unsaved, is_taken, "{row}");
            let name = entry.state.pod.node_name.as_deref();
            assert_eq!(name, is_taken.then_some("other"), "{row}");
        }
    }

    #[test]
    fn a_container_is_told_to_end_by_its_own_signal_or_sigterm() {
        let mut entry = entry(0);
        assert_eq!(entry.stop_signal("app0"), Signal::TERM);
        entry.state.pod.containers[0].stop_signal = Some(10);
        assert_eq!(Some(entry.stop_signal("app0")), Signal::new(10));
        // It is not in the definition any more.
        assert_eq!(entry.stop_signal("other"), Signal::TERM);
    }

    #[test]
    fn a_start_that_the_runtime_has_is_of_the_definition_before() {
        type Wait = fn(&mut Instance);
        let waits: [(&str, Wait, bool); 3] = [
            ("held", |it| it.held = Some("CPUs".to_owned()), true),
            (
                "devices are prepared",
                |it| it.pre_start.waiting.extend(["a/b".to_owned()]),
                true,
            ),
            ("handed over", |_| {}, false),
        ];
        for (row, wait, is_of_new) in waits {
            let mut entry = entry(0);
            let hash_of = |pod: &Pod| spec_hash(&pod.containers[0]);
            let before = hash_of(&entry.state.pod);
            let status = &mut entry.state.containers[0];
            status.state = ContainerState::Starting;
            status.spec_hash = Some(before.clone());
            wait(entry.instances.get_mut("app0").expect("it is there"));
            let mut new = entry.state.pod.clone();
            new.containers[0].command = vec!["other".to_owned()];
            let wanted = if is_of_new { hash_of(&new) } else { before };
            let redefinition = Redefinition {
                at: WallTime::default(),
                fields: Vec::new(),
            };
            entry.take(new, "digest".to_owned(), redefinition);
            assert_eq!(entry.state.containers[0].spec_hash, Some(wanted), "{row}");
        }
    }

    #[test]
    fn a_container_goes_on_where_its_variables_tell_another_amount() {
        let variable = |name: &str, value: &str, is_of_resources| EnvVar {
            is_of_resources,
            ..EnvVar::new(name, value)
        };
        for (row, new, goes_on) in [
            ("of its limit", variable("LIMIT", "64", true), true),
            ("of its own", variable("LIMIT", "64", false), false),
            ("another one", variable("OTHER", "64", true), false),
        ] {
            let mut entry = entry(0);
            let container = &mut entry.state.pod.containers[0];
            container.env = vec![variable("LIMIT", "32", true)];
            let before = spec_hash(container);
            let status = &mut entry.state.containers[0];
            status.state = ContainerState::Running {
                started_at: Duration::ZERO,
            };
            status.spec_hash = Some(before.clone());
            let mut pod = entry.state.pod.clone();
            pod.containers[0].env = vec![new];
            let after = spec_hash(&pod.containers[0]);
            let redefinition = Redefinition {
                at: WallTime::default(),
                fields: Vec::new(),
            };
            entry.take(pod, "digest".to_owned(), redefinition);
            let wanted = if goes_on { after } else { before };
            assert_eq!(entry.state.containers[0].spec_hash, Some(wanted), "{row}");
        }
    }

    #[test]
    fn a_container_is_replaced_for_another_amount_where_its_policy_says_so() {
        let running = ContainerState::Running {
            started_at: Duration::ZERO,
        };
        let ended = ContainerState::Exited(unknown_end(Duration::ZERO));
        for (row, state, resource, is_outdated) in [
            ("it runs", running.clone(), "memory", true),
            ("it starts", ContainerState::Starting, "memory", true),
            ("it has ended", ended, "memory", false),
            ("of another resource", running, "cpu", false),
        ] {
            let mut entry = entry(0);
            let container = &mut entry.state.pod.containers[0];
            container.resize_restarts = [resource.to_owned()].into();
            let before = spec_hash(container);
            let status = &mut entry.state.containers[0];
            status.state = state;
            status.spec_hash = Some(before.clone());
            let mut new = entry.state.pod.clone();
            let limits = &mut new.containers[0].resources.limits;
            limits.insert("memory".to_owned(), "64Mi".parse().expect("a quantity"));
            let redefinition = Redefinition {
                at: WallTime::default(),
                fields: Vec::new(),
            };
            entry.take(new, "digest".to_owned(), redefinition);
            let wanted = match is_outdated {
                true => SpecHash::outdated(),
                false => before,
            };
            assert_eq!(entry.state.containers[0].spec_hash, Some(wanted), "{row}");
        }
    }
}
