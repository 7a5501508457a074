//! What to do with the containers of one pod now. In: the pod, what is known of its containers, a
//! wish to end it, the back-off state and the time. Out: starts and stops, the phase and
//! conditions, and when to look again.
//!
//! The rules are kubelet's (1.36: `computePodActions`, `computeInitContainerActions`, the
//! termination ordering of KEP-753, `getPhase`, `flowcontrol.Backoff`), for containers that are
//! host processes: nothing blocks, so a stop is a record with a deadline instead of a call.
//!
//! Invariants:
//! - Level-triggered: the same view gives the same decision, and once its actions are recorded
//!   (`ContainerStatus::record`) the next decision at that time asks for nothing.
//! - A container is started only when no instance of it is alive.
//! - Nothing starts in a pod that is to end or has ended.
//! - Times only come in; the order of the records does not matter, that of the spec does.

mod backoff;
mod phase;
mod reboot;
mod spec_hash;
mod start;
mod stop;

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use backoff::{BackoffEntry, BackoffPolicy, BackoffState};
pub use reboot::after_reboot;
pub use spec_hash::spec_hash;
pub use stop::{KILL_RETRY, MINIMUM_GRACE};

use crate::config::Compat;
use crate::model::admission::Admission;
use crate::model::container::{
    ContainerAction, ContainerKind, ContainerState, ContainerStatus, Deletion, PodPhase, SpecHash,
    StopReason,
};
use crate::model::pod::{Container, Pod, Resources, RestartPolicy};

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct PodView<'a> {
    pub pod: &'a Pod,
    pub admission: &'a Admission,
    /// At most one record a name. A container without a record has not been started; a record
    /// whose name the pod does not have is of a container that was removed from it.
    pub containers: &'a [ContainerStatus],
    /// `None`: the pod is to run.
    pub deletion: Option<Deletion>,
    pub backoff: &'a BackoffState,
    pub settings: &'a Settings,
    /// `CLOCK_BOOTTIME`.
    pub now: Duration,
}

/// What the node's configuration says about restarts and stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub backoff: BackoffPolicy,
    /// `Kubelet`: a grace of zero is raised to `MINIMUM_GRACE`, SIGTERM first.
    pub compat: Compat,
}

/// What to do and what to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDecision {
    /// In the order they are to be asked of the runtime.
    pub actions: Vec<ContainerAction>,
    pub phase: PodPhase,
    pub conditions: PodConditions,
    /// One per container of the pod, init containers first, in the order of the spec.
    pub containers: Vec<ContainerReport>,
    /// The pod is over and no container is alive: its cgroup can go. A pod that is over by itself
    /// stays known with its phase; a deleted one can be forgotten.
    pub is_finished: bool,
    /// When time alone changes the decision, its own actions taken; always later than now. `None`:
    /// only events do.
    pub next_wake: Option<Duration>,
    /// Takes effect when the actions are taken; to be stored with their records.
    pub backoff: BackoffState,
}

/// `status.conditions` of a pod without probes and readiness gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodConditions {
    pub initialized: bool,
    pub ready: bool,
    pub containers_ready: bool,
}

/// What to show of a container beside its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    pub name: String,
    pub kind: ContainerKind,
    /// Running, or for an init container: done. There are no probes here.
    pub is_ready: bool,
    /// `None`: it runs, or it has ended and stays so.
    pub waiting: Option<Waiting>,
}

/// `state.waiting.reason` (Kubernetes API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason")]
pub enum Waiting {
    /// The init containers before it are not done.
    PodInitializing,
    /// Its start is under way or comes next.
    ContainerCreating,
    /// It ended too often: it is started again at `until`, `delay` after its end.
    CrashLoopBackOff { delay: Duration, until: Duration },
}

/// Decides about one pod. See the module.
pub fn decide_pod(view: &PodView) -> PodDecision {
    let slots = Slot::of_pod(view);
    let course = course(view, &slots);
    let mut out = Draft::new(view);

    stop::kill_leftovers(view, &mut out);
    match course {
        Course::Delete(deletion) => stop::stop_pod(view, &slots, deletion, &mut out),
        Course::Finish => stop::finish_pod(view, &slots, &mut out),
        Course::Hold => {}
        Course::Run(progress) => {
            start::start_containers(view, &slots, progress, &mut out);
            stop::replace_changed(view, &slots, &mut out);
        }
    }
    stop::stop_removed(view, &slots, &mut out);

    let is_anything_alive = view.containers.iter().any(|it| it.state.is_alive());
    let is_over = course.is_over();
    let phase = phase::phase(view, &slots, course);
    PodDecision {
        conditions: phase::conditions(&slots, course, phase),
        containers: phase::reports(view, &slots, course),
        phase,
        is_finished: is_over && !is_anything_alive,
        next_wake: out.next_wake,
        actions: out.actions,
        backoff: out.backoff,
    }
}

/// One container of the pod with its record.
struct Slot<'a> {
    kind: ContainerKind,
    name: &'a str,
    status: Option<&'a ContainerStatus>,
    /// The container's own, or else the pod's; a sidecar's is always `Always`.
    policy: RestartPolicy,
    /// Of the definition as it is now.
    spec_hash: SpecHash,
    resources: &'a Resources,
}

impl<'a> Slot<'a> {
    fn of_pod(view: &PodView<'a>) -> Vec<Self> {
        let init = view.pod.init_containers.iter().map(|it| {
            let kind = if it.is_sidecar {
                ContainerKind::Sidecar
            } else {
                ContainerKind::Init
            };
            (kind, it)
        });
        let mains = view
            .pod
            .containers
            .iter()
            .map(|it| (ContainerKind::Main, it));
        init.chain(mains)
            .map(|(kind, container): (_, &'a Container)| Self {
                kind,
                name: &container.name,
                status: view.containers.iter().find(|it| it.name == container.name),
                policy: restart_policy(view.pod, container),
                spec_hash: spec_hash(container),
                resources: &container.resources,
            })
            .collect()
    }

    fn state(&self) -> &'a ContainerState {
        self.status
            .map_or(&ContainerState::NotStarted, |it| &it.state)
    }

    fn is_alive(&self) -> bool {
        self.state().is_alive()
    }

    /// Asked for at least once in this life of the pod.
    fn has_begun(&self) -> bool {
        *self.state() != ContainerState::NotStarted
    }

    fn has_succeeded(&self) -> bool {
        self.state()
            .termination()
            .is_some_and(|it| it.exit.is_success())
    }

    /// The running instance has another definition than the pod now. An instance of unknown
    /// definition counts as current: nothing is stopped on a reading we do not have.
    fn is_changed(&self) -> bool {
        self.status
            .and_then(|it| it.spec_hash.as_ref())
            .is_some_and(|it| *it != self.spec_hash)
    }

    /// An instance that has ended is to be followed by another.
    fn wants_restart(&self) -> bool {
        let Some(status) = self.status else {
            return false;
        };
        let Some(termination) = status.state.termination() else {
            return false;
        };
        let was_replaced = status
            .stop
            .is_some_and(|it| it.reason == StopReason::SpecChanged);
        let failed = !termination.exit.is_success();
        match (self.kind, self.policy) {
            (ContainerKind::Init, policy) => failed && policy != RestartPolicy::Never,
            (_, RestartPolicy::Always) => true,
            (_, RestartPolicy::OnFailure) => failed || was_replaced,
            (_, RestartPolicy::Never) => was_replaced,
        }
    }
}

fn restart_policy(pod: &Pod, container: &Container) -> RestartPolicy {
    if container.is_sidecar {
        RestartPolicy::Always
    } else {
        container.restart_policy.unwrap_or(pod.restart_policy)
    }
}

/// What the pod is up to. Each course rests on facts that do not change back.
#[derive(Clone, Copy)]
enum Course {
    /// It is to go.
    Delete(Deletion),
    /// Its main containers have ended for good, or an init container has failed for good; or it was
    /// refused.
    Finish,
    /// It is not admitted yet: nothing starts, and what runs goes on.
    Hold,
    Run(start::Progress),
}

impl Course {
    /// It ends, or has ended.
    fn is_over(self) -> bool {
        matches!(self, Self::Delete(_) | Self::Finish)
    }
}

fn course(view: &PodView, slots: &[Slot]) -> Course {
    if let Some(deletion) = view.deletion {
        return Course::Delete(deletion);
    }
    match view.admission {
        Admission::Admitted => {}
        Admission::Open => return Course::Hold,
        Admission::Refused(_) => return Course::Finish,
    }
    let mut mains = slots
        .iter()
        .filter(|it| it.kind == ContainerKind::Main)
        .peekable();
    // Before the init containers are asked: a sidecar that has exited too would look like
    // initialization that is not done.
    if mains.peek().is_some()
        && mains.all(|it| it.state().termination().is_some() && !it.wants_restart())
    {
        return Course::Finish;
    }
    match start::progress(slots) {
        start::Progress::Failed => Course::Finish,
        progress => Course::Run(progress),
    }
}

/// The parts of a decision that grow while it is made.
struct Draft {
    now: Duration,
    actions: Vec<ContainerAction>,
    next_wake: Option<Duration>,
    backoff: BackoffState,
}

impl Draft {
    fn new(view: &PodView) -> Self {
        Self {
            now: view.now,
            actions: Vec::new(),
            next_wake: None,
            backoff: view.backoff.clone(),
        }
    }

    /// Look again at `at`, which lies ahead.
    fn wake(&mut self, at: Duration) {
        debug_assert!(at > self.now, "a wake in the past is a busy loop");
        self.next_wake = Some(self.next_wake.map_or(at, |it| it.min(at)));
    }
}
