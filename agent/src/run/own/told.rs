//! What mode own has to say of manifests, pods, containers and cgroups.

use std::path::PathBuf;
use std::time::Duration;

use super::escapes::Escape;
use crate::apply::cgroupfs::Killed;
use crate::decide::eviction::brake::InVain;
use crate::decide::eviction::writer::Amount;
use crate::decide::lifecycle::{PodDecision, Waiting};
use crate::decide::strangers::Kept;
use crate::model::admission::{ContainerHoldings, Refusal};
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::{ContainerExit, PodPhase, Termination};
use crate::model::event::ExitStatus;
use crate::model::eviction::{
    NodeCondition, Observation, Signal, StarvedResource, Threshold, Victim,
};
use crate::model::pod::PodUid;
use crate::model::record::{ContainerDetail, EventDetail, EventKind, PodRef};
use crate::model::relief::{ReliefEffect, ReliefStep};
use crate::run::told::Told;
use crate::runtime::HostProcess;
use crate::sources::largest::Largest;
use crate::sys::clock;

/// Files of pods that are not measured.
pub(super) struct Unmeasured {
    pub lasted: Duration,
    /// What cannot be looked at, and why. `None`: the disk does not answer.
    pub fault: Option<(String, String)>,
}

impl Told {
    fn pod(&self, reason: &'static str, pod: &PodRef, message: String) {
        tracing::info!(%pod, reason, "{message}");
        self.tell(EventKind::Pod, reason, Some(pod), None, message, None);
    }

    pub(super) fn manifest_fault(&self, message: String) {
        tracing::warn!(reason = "ManifestFault", "{message}");
        self.tell(EventKind::Agent, "ManifestFault", None, None, message, None);
    }

    pub(super) fn manifest_warning(&self, message: String) {
        // No event: those of a node full of pods would take the place of all others.
        tracing::warn!(reason = "ManifestWarning", "{message}");
    }

    pub(super) fn pod_added(&self, pod: &PodRef, message: String) {
        self.pod("PodAdded", pod, message);
    }

    pub(super) fn redefined(&self, pod: &PodRef, message: String) {
        self.pod("PodRedefined", pod, message);
    }

    pub(super) fn held_back(&self, pod: &PodRef, before: &mut Option<String>, why: String) {
        self.why("PodDefinitionWaits", pod, before, why);
    }

    /// Told once, until it is another reason.
    fn why(&self, reason: &'static str, pod: &PodRef, before: &mut Option<String>, why: String) {
        if before.as_ref() != Some(&why) {
            self.pod(reason, pod, why.clone());
            *before = Some(why);
        }
    }

    pub(super) fn pod_adopted(&self, pod: &PodRef, n_running: usize) {
        let message = format!("adopted with {n_running} running containers");
        self.pod("PodAdopted", pod, message);
    }

    pub(super) fn pod_rebuilt(&self, pod: &PodRef, n_containers: usize) {
        let message = format!(
            "its record is missing or cannot be used; rebuilt from its manifest and the records of \
             {n_containers} containers"
        );
        self.pod("PodRebuilt", pod, message);
    }

    pub(super) fn pod_thawed(&self, pod: &PodRef) {
        let message = "it was frozen, as an agent leaves it that dies while it kills; it is thawed";
        self.pod("PodThawed", pod, message.to_owned());
    }

    pub(super) fn container_found(&self, pod: &PodRef, container: &str, process: HostProcess) {
        let message = format!(
            "container {container}: its record is missing or cannot be used; process {} of its cgroup is its first \
             and goes on",
            process.pid
        );
        self.pod("ContainerFound", pod, message);
    }

    pub(super) fn container_not_found(&self, pod: &PodRef, container: &str, why: &str) {
        let message = format!(
            "container {container}: it counts as ended, since whether it runs cannot be found out: {why}"
        );
        self.pod("ContainerUnknown", pod, message);
    }

    pub(super) fn pod_undecided(&self, uid: &PodUid, n_containers: usize) {
        let message = format!(
            "pod {uid}: its record is missing or cannot be used, and so is a manifest that may be its own; \
             {n_containers} containers are left as they are until the manifests can be read"
        );
        self.node("PodUndecided", message);
    }

    pub(super) fn pod_unclaimed(&self, uid: &PodUid) {
        let message = format!("pod {uid}: no manifest is its own; what is left of it goes");
        self.node("PodUnclaimed", message);
    }

    pub(super) fn pod_deletion(&self, pod: &PodRef, grace: Duration) {
        let message = format!("to be removed within {} s", grace.as_secs());
        self.pod("Killing", pod, message);
    }

    pub(super) fn evicted(&self, pod: &PodRef, victim: &Victim) {
        let message = victim.message.trim_end().to_owned();
        let reason = victim.cause.reason();
        tracing::warn!(%pod, reason, signal = victim.cause.label(), "{message}");
        self.tell(EventKind::Pod, reason, Some(pod), None, message, None);
    }

    pub(super) fn disk_answers(&self, is_answering: bool) {
        let (reason, message) = match is_answering {
            false => (
                "DiskSilent",
                "the file system of the state directory does not answer: nothing is decided about \
                 disks, and evictions are not noted before they are done",
            ),
            true => (
                "DiskAnswers",
                "the file system of the state directory answers",
            ),
        };
        self.node(reason, message.to_owned());
    }

    /// `unmeasured`: `None`: not any more.
    pub(super) fn pod_files_answer(&self, unmeasured: Option<Unmeasured>) {
        let (reason, message) = match unmeasured {
            Some(Unmeasured { lasted, fault }) => {
                let lasted = lasted.as_secs();
                let what = match fault {
                    None => format!("files of pods have not answered for {lasted} s"),
                    Some((what, why)) => {
                        format!("{what} could not be looked at for {lasted} s ({why})")
                    }
                };
                let message = format!(
                    "{what}: what pods have on the disk is what was measured before that, limits of local storage are \
                     held against it, and of a new pod nothing is known"
                );
                ("PodFilesSilent", message)
            }
            None => ("PodFilesAnswer", "files of pods answer".to_owned()),
        };
        self.node(reason, message);
    }

    /// `hung`: a volume that is a directory of the host, and for how long. `None`: not any more.
    pub(super) fn host_paths_answer(&self, hung: Option<(PathBuf, Duration)>) {
        let (reason, message) = match hung {
            Some((path, hung_for)) => (
                "HostPathSilent",
                format!(
                    "{} has not answered for {} s: who seems to fill a disk is told without the volumes that are \
                     directories of the host",
                    path.display(),
                    hung_for.as_secs()
                ),
            ),
            None => (
                "HostPathsAnswer",
                "volumes that are directories of the host answer".to_owned(),
            ),
        };
        self.node(reason, message);
    }

    pub(super) fn evicted_returns(&self, pod: &PodRef) {
        let message = "what it was evicted for is over: a new instance begins, since nobody else \
                       would make one";
        self.pod("EvictedPodReturns", pod, message.to_owned());
    }

    pub(super) fn refused_returns(&self, pod: &PodRef) {
        let message = "it would be let in now: it is tried again, since nobody else would";
        self.pod("RefusedPodReturns", pod, message.to_owned());
    }

    /// Reasons as in kubelet (pkg/kubelet/nodestatus/setters.go, v1.36).
    pub(super) fn node_condition(&self, condition: NodeCondition, is_short: bool) {
        let (reason, message) = match (condition, is_short) {
            (NodeCondition::MemoryPressure, true) => {
                ("NodeHasInsufficientMemory", "the node is short of memory")
            }
            (NodeCondition::MemoryPressure, false) => {
                ("NodeHasSufficientMemory", "the node has memory again")
            }
            (NodeCondition::DiskPressure, true) => {
                ("NodeHasDiskPressure", "the node is short of disk space")
            }
            (NodeCondition::DiskPressure, false) => {
                ("NodeHasNoDiskPressure", "the node has disk space again")
            }
            (NodeCondition::PIDPressure, true) => {
                ("NodeHasInsufficientPID", "the node is short of process ids")
            }
            (NodeCondition::PIDPressure, false) => {
                ("NodeHasSufficientPID", "the node has process ids again")
            }
        };
        self.node(reason, message.to_owned());
    }

    pub(super) fn threshold_met(&self, threshold: &Threshold, observation: &Observation) {
        let Threshold { signal, .. } = threshold;
        let resource = signal.resource();
        let message = format!(
            "{signal} is {}, below its threshold: {resource} is to be reclaimed",
            observation.available
        );
        self.node("EvictionThresholdMet", message);
    }

    /// `signal`: of all about the resource the one that stands for them. `who`: the likely reason, where somebody was
    /// looked for. What was told.
    pub(super) fn ineffective(
        &self,
        signal: Signal,
        in_vain: &InVain,
        who: Option<String>,
    ) -> String {
        let amount = |n| Amount(in_vain.resource, n);
        let evicted = match in_vain.n_kills {
            0 => "no pod is evicted: none could give enough".to_owned(),
            n => format!(
                "no further pod is evicted: {n} gave {}",
                amount(in_vain.given)
            ),
        };
        let taken = amount(in_vain.taken);
        let mut message =
            format!("{signal}: {evicted}, and what is outside the pods took {taken} meanwhile");
        if let Some(who) = who {
            message += &format!("; {who}");
        }
        self.node("EvictionIneffective", message.clone());
        message
    }

    /// A dry run.
    pub(super) fn would_evict(&self, victim: &Victim) {
        let message = format!("would be evicted: {}", victim.message.trim_end());
        self.pod("EvictionDryRun", &victim.pod, message);
    }

    pub(super) fn relief(&self, step: &ReliefStep, effect: &ReliefEffect) {
        let freed = effect
            .freed
            .map_or_else(|| "not known".to_owned(), |it| format!("{it} bytes"));
        let message = format!(
            "{}: expected {} bytes, freed {freed} in {} ms",
            step.action,
            step.expected,
            effect.took.as_millis()
        );
        self.pod("PressureRelief", &step.pod, message);
    }

    pub(super) fn relief_undone(&self, step: &ReliefStep) {
        let message = format!("{}: the pressure is over", step.action);
        self.pod("PressureReliefUndone", &step.pod, message);
    }

    pub(super) fn pod_removed(&self, pod: &PodRef) {
        self.pod("PodRemoved", pod, "nothing is left of it".to_owned());
    }

    /// A pod that is not admitted yet; told when the reason is another than before.
    pub(super) fn waits(&self, pod: &PodRef, before: &mut Option<String>, why: String) {
        self.why("AdmissionWaiting", pod, before, why);
    }

    /// Told only of a pod that holds something of its own.
    pub(super) fn admitted(&self, pod: &PodRef, holdings: &[ContainerHoldings]) {
        if !holdings.is_empty() {
            let each: Vec<String> = holdings.iter().map(ToString::to_string).collect();
            self.pod("Placed", pod, each.join("; "));
        }
    }

    pub(super) fn refused(&self, pod: &PodRef, refusal: &Refusal) {
        let Refusal {
            reason,
            message,
            container,
        } = refusal;
        tracing::warn!(%pod, container, reason = reason.as_str(), "{message}");
        let message = message.clone();
        let container = container.as_deref();
        self.tell(
            EventKind::Pod,
            reason.as_str(),
            Some(pod),
            container,
            message,
            None,
        );
    }

    pub(super) fn plugin(&self, reason: &'static str, message: String) {
        tracing::info!(reason, "{message}");
        self.tell(EventKind::Node, reason, None, None, message, None);
    }

    pub(super) fn devices_changed(&self, pod: &PodRef, message: String) {
        self.pod("DeviceHealthChanged", pod, message);
    }

    /// The search for NUMA nodes was ended at its budget.
    pub(super) fn search_cut(&self, pod: &PodRef) {
        let message = "its NUMA nodes are good ones, and better ones may have been left unseen";
        self.pod("PlacementSearchCut", pod, message.to_owned());
    }

    /// A pod that runs lost what it held, and there is nothing to take its place.
    pub(super) fn placement_lost(&self, pod: &PodRef, refusal: &Refusal) {
        let message = format!("it goes on without CPUs and memory of its own: {refusal}");
        self.pod("PlacementLost", pod, message);
    }

    pub(super) fn phase_changed(&self, pod: &PodRef, from: PodPhase, to: PodPhase) {
        let reason = match to {
            PodPhase::Pending => "PodPending",
            PodPhase::Running => "PodRunning",
            PodPhase::Succeeded => "PodSucceeded",
            PodPhase::Failed => "PodFailed",
            // Of pods that others run.
            PodPhase::Unknown => return,
        };
        self.pod(reason, pod, format!("phase {from} to {to}"));
    }

    /// Back-off is told once when it begins.
    pub(super) fn waiting_changed(
        &self,
        pod: &PodRef,
        before: Option<&PodDecision>,
        now: &PodDecision,
    ) {
        for report in &now.containers {
            let Some(Waiting::CrashLoopBackOff { delay, until }) = report.waiting else {
                continue;
            };
            let was_told = before
                .into_iter()
                .flat_map(|it| &it.containers)
                .any(|it| it.name == report.name && it.waiting == report.waiting);
            if was_told {
                continue;
            }
            let message = format!("restarts {} s after its end", delay.as_secs());
            tracing::info!(%pod, container = report.name, reason = "BackOff", "{message}");
            let detail = ContainerDetail {
                back_off_ms: u64::try_from(until.saturating_sub(clock::boottime()).as_millis())
                    .ok(),
                ..ContainerDetail::default()
            };
            self.tell(
                EventKind::Container,
                "BackOff",
                Some(pod),
                Some(&report.name),
                message,
                Some(EventDetail::Container(detail)),
            );
        }
    }

    pub(super) fn container_started(
        &self,
        pod: &PodRef,
        container: &str,
        attempt: u32,
        process: HostProcess,
    ) {
        let message = format!("started, pid {}", process.pid);
        tracing::info!(%pod, container, reason = "Started", "{message}");
        let detail = ContainerDetail {
            attempt: attempt.saturating_add(1),
            pid: Some(process.pid),
            ..ContainerDetail::default()
        };
        self.tell(
            EventKind::Container,
            "Started",
            Some(pod),
            Some(container),
            message,
            Some(EventDetail::Container(detail)),
        );
    }

    pub(super) fn start_failed(&self, pod: &PodRef, container: &str, message: &str) {
        tracing::warn!(%pod, container, reason = "Failed", "{message}");
        self.tell(
            EventKind::Container,
            "Failed",
            Some(pod),
            Some(container),
            format!("did not start: {message}"),
            None,
        );
    }

    /// Told once, when it begins to wait.
    pub(super) fn start_held(&self, pod: &PodRef, container: &str, why: &str) {
        tracing::warn!(%pod, container, reason = "StartHeld", "{why}");
        self.tell(
            EventKind::Container,
            "StartHeld",
            Some(pod),
            Some(container),
            why.to_owned(),
            None,
        );
    }

    pub(super) fn start_warning(&self, pod: &PodRef, container: &str, message: String) {
        tracing::warn!(%pod, container, reason = "StartedWithWarning", "{message}");
        self.tell(
            EventKind::Container,
            "StartedWithWarning",
            Some(pod),
            Some(container),
            message,
            None,
        );
    }

    pub(super) fn container_ended(
        &self,
        pod: &PodRef,
        container: &str,
        attempt: u32,
        process: Option<HostProcess>,
        termination: &Termination,
        oom_kills: u64,
    ) {
        let how = match (termination.exit, &termination.message) {
            (ContainerExit::Code(code), _) => format!("exit code {code}"),
            (ContainerExit::Signal(signal), None) => format!("signal {signal}"),
            (ContainerExit::Signal(signal), Some(who)) => format!("signal {signal}, {who}"),
            (ContainerExit::StartFailed, _) => "never ran".to_owned(),
            (ContainerExit::Unknown, _) => "exit not known".to_owned(),
        };
        let reason = termination.reason();
        let message = format!("ended: {reason}, {how}");
        tracing::info!(%pod, container, %reason, "{message}");
        let exit = match termination.exit {
            ContainerExit::Code(code) => Some(ExitStatus::Code(code)),
            ContainerExit::Signal(signal) => Some(ExitStatus::Signal {
                signal,
                core_dumped: false,
            }),
            ContainerExit::StartFailed | ContainerExit::Unknown => None,
        };
        let detail = ContainerDetail {
            attempt: attempt.saturating_add(1),
            pid: process.map(|it| it.pid),
            exit,
            oom_kills,
            back_off_ms: None,
        };
        self.tell(
            EventKind::Container,
            "ContainerDied",
            Some(pod),
            Some(container),
            message,
            Some(EventDetail::Container(detail)),
        );
    }

    /// `owner`: the pod, and the container, whose cgroup it is about; `None`: the node.
    pub(super) fn foreign_writer(&self, owner: Option<(&PodRef, Option<&str>)>, message: String) {
        const REASON: &str = "ForeignCgroupWrite";
        tracing::warn!(reason = REASON, "{message}");
        let (kind, pod, container) = match owner {
            None => (EventKind::Node, None, None),
            Some((pod, None)) => (EventKind::Pod, Some(pod), None),
            Some((pod, container)) => (EventKind::Container, Some(pod), container),
        };
        self.tell(kind, REASON, pod, container, message, None);
    }

    pub(super) fn removal_slow(&self, path: &CgroupPath, why: &str) {
        self.node(
            "CgroupRemovalSlow",
            format!("cgroup {path} cannot be removed: {why}"),
        );
    }

    /// What a round of SIGKILL came upon; most come upon nothing.
    pub(super) fn killed(&self, path: &CgroupPath, killed: &Killed) {
        if killed.was_frozen {
            self.node(
                "CgroupThawed",
                format!(
                    "cgroup {path} or one around it was frozen, in which nothing ends; it is thawed"
                ),
            );
        }
        if killed.agent_left {
            self.agent_left(path);
        }
    }

    /// Somebody has put the agent into a pod.
    pub(super) fn agent_left(&self, path: &CgroupPath) {
        self.node(
            "AgentLeftCgroup",
            format!("the agent was in cgroup {path}, whose limits and end are not its own; it has moved to the root"),
        );
    }

    pub(super) fn container_left(&self, pod: &PodRef, container: &str, escape: &Escape) {
        const REASON: &str = "ContainerLeftCgroup";
        let message = escape.to_string();
        tracing::warn!(%pod, container, reason = REASON, "{message}");
        self.tell(
            EventKind::Container,
            REASON,
            Some(pod),
            Some(container),
            message,
            None,
        );
    }

    pub(super) fn unknown_cgroup(&self, path: &CgroupPath) {
        self.node(
            "UnknownPodCgroup",
            format!(
                "cgroup {path} is of no pod that this agent has made; it is left as it is, unless \
                 pods.removeUnknownCgroups is set"
            ),
        );
    }

    pub(super) fn pod_of_kubelet(&self, path: &CgroupPath) {
        self.node(
            "UnknownPodCgroup",
            format!(
                "cgroup {path} is of a pod that a kubelet with the systemd driver has started; it is left as it is, \
                 and ends by its runtime"
            ),
        );
    }

    pub(super) fn spared(&self, path: &CgroupPath, kept: &Kept) {
        self.node(
            "LimitKept",
            format!(
                "cgroup {path} holds pods that this agent does not know: its {} stays at {}, where those that it knows \
                 need {}",
                kept.file.name, kept.found, kept.wanted
            ),
        );
    }

    pub(super) fn orphan(&self, path: &CgroupPath) {
        self.node(
            "OrphanCgroup",
            format!("cgroup {path} belongs to no pod of this node; it is killed and removed"),
        );
    }
}

/// Who has most of the memory that no pod has.
pub(super) fn largest(largest: Option<&Largest>) -> String {
    let Some(it) = largest else {
        return "no process there is seen".to_owned();
    };
    format!(
        "the largest there is process {} ({}) with {}, in cgroup {}",
        it.pid,
        it.name,
        Amount(StarvedResource::Memory, it.bytes),
        it.cgroup
    )
}
