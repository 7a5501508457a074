//! What to say of a pod: its phase, conditions, and why a container waits. Kubelet's `getPhase` and
//! `Generate*Condition` without probes, readiness gates and restart rules.

use super::start::Progress;
use super::{ContainerReport, Course, PodConditions, PodView, Slot, Waiting};
use crate::model::container::{ContainerKind, ContainerState, PodPhase};

/// Terminal only when no container is alive, however sure the end is: kubelet's status manager
/// holds it back in the same way.
pub(super) fn phase(view: &PodView, slots: &[Slot], course: Course) -> PodPhase {
    if course.is_over() && !view.containers.iter().any(|it| it.state.is_alive()) {
        return terminal_phase(slots, course);
    }

    let (init, mains): (Vec<_>, Vec<_>) = slots.iter().partition(|it| is_init(it));
    let is_initializing = init.iter().any(|it| is_initializing(it));
    let have_mains_begun = mains.iter().any(|it| it.has_begun());
    let is_waiting = init
        .iter()
        .filter(|it| it.kind == ContainerKind::Sidecar)
        .chain(&mains)
        .any(|it| is_waiting_for_first_run(it));
    // What is left runs, or has run and comes again.
    if (is_initializing && !have_mains_begun) || is_waiting || mains.is_empty() {
        PodPhase::Pending
    } else {
        PodPhase::Running
    }
}

fn terminal_phase(slots: &[Slot], course: Course) -> PodPhase {
    let is_failure = match course {
        Course::Delete(deletion) => deletion.reason.is_failure(),
        _ => false,
    };
    let mut mains = slots.iter().filter(|it| it.kind == ContainerKind::Main);
    if !is_failure && mains.all(|it| it.has_succeeded()) {
        PodPhase::Succeeded
    } else {
        PodPhase::Failed
    }
}

pub(super) fn conditions(slots: &[Slot], course: Course, phase: PodPhase) -> PodConditions {
    let have_mains_begun = slots
        .iter()
        .any(|it| it.kind == ContainerKind::Main && it.has_begun());
    let initialized = phase == PodPhase::Succeeded
        || matches!(course, Course::Run(Progress::Done))
        || slots.iter().filter(|it| is_init(it)).all(|it| {
            // Once the main containers have begun, a sidecar that is down is a restart.
            is_ready(it) || (it.kind == ContainerKind::Sidecar && have_mains_begun)
        });
    let containers_ready = !phase.is_terminal()
        && slots
            .iter()
            .filter(|it| it.kind != ContainerKind::Init)
            .all(is_ready);
    PodConditions {
        initialized,
        ready: containers_ready,
        containers_ready,
    }
}

pub(super) fn reports(view: &PodView, slots: &[Slot], course: Course) -> Vec<ContainerReport> {
    slots
        .iter()
        .enumerate()
        .map(|(index, slot)| ContainerReport {
            name: slot.name.to_owned(),
            kind: slot.kind,
            is_ready: is_ready(slot),
            waiting: waiting(view, index, slot, course),
        })
        .collect()
}

fn waiting(view: &PodView, index: usize, slot: &Slot, course: Course) -> Option<Waiting> {
    let is_blocked = match course {
        Course::Run(Progress::Next(at) | Progress::Waiting(at)) => index > at,
        _ => false,
    };
    match slot.state() {
        ContainerState::Running { .. } | ContainerState::Ending(_) => None,
        ContainerState::NotStarted | ContainerState::Starting if is_blocked => {
            Some(Waiting::PodInitializing)
        }
        ContainerState::NotStarted | ContainerState::Starting => Some(Waiting::ContainerCreating),
        ContainerState::Exited(termination) => {
            if !matches!(course, Course::Run(_)) || !slot.wants_restart() {
                return None;
            }
            let finished_at = termination.finished_at;
            let wait = view.backoff.wait(slot, finished_at, view.now);
            Some(match wait {
                Some(wait) => Waiting::CrashLoopBackOff {
                    delay: wait.delay,
                    until: wait.until,
                },
                None if is_blocked => Waiting::PodInitializing,
                None => Waiting::ContainerCreating,
            })
        }
    }
}

fn is_init(slot: &Slot) -> bool {
    slot.kind != ContainerKind::Main
}

fn is_ready(slot: &Slot) -> bool {
    match slot.kind {
        ContainerKind::Init => slot.has_succeeded(),
        ContainerKind::Sidecar | ContainerKind::Main => slot.state().is_running(),
    }
}

/// Counts as initialization that is not done. One that has failed is not among them: it shows
/// through the main containers that wait.
fn is_initializing(slot: &Slot) -> bool {
    match (slot.kind, slot.state()) {
        (ContainerKind::Init, ContainerState::Ending(_) | ContainerState::Exited(_)) => false,
        (ContainerKind::Init, _) => true,
        _ => is_waiting_for_first_run(slot),
    }
}

/// Waits, and has never run: a container that waits to run again counts as stopped.
fn is_waiting_for_first_run(slot: &Slot) -> bool {
    let has_run_before = slot.status.is_some_and(|it| it.last_termination.is_some());
    match slot.state() {
        ContainerState::NotStarted | ContainerState::Starting => !has_run_before,
        ContainerState::Running { .. } | ContainerState::Ending(_) | ContainerState::Exited(_) => {
            false
        }
    }
}
