//! Which containers start now: init containers one after the other, sidecars among them, then the
//! main containers, each held back by its back-off.

use super::{Draft, PodView, Slot};
use crate::model::container::{ContainerAction, ContainerKind, ContainerState};

/// How far initialization is. Indices are into the slots of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// This init container is next, or again.
    Next(usize),
    /// This init container is under way.
    Waiting(usize),
    /// The main containers' turn has come.
    Done,
    /// An init container failed and is not tried again.
    Failed,
}

impl Progress {
    /// Init containers before this one have had their turn.
    fn reached(self, n_init: usize) -> usize {
        match self {
            Self::Next(index) | Self::Waiting(index) => index,
            Self::Done => n_init,
            Self::Failed => 0,
        }
    }
}

/// Reads progress from the last init container that has begun, as kubelet does: records of earlier
/// ones may be gone, and a main container that is alive proves that all were done, which is what
/// keeps a restarted agent from running them again.
pub(super) fn progress(slots: &[Slot]) -> Progress {
    let n_init = n_init(slots);
    let (init, mains) = slots.split_at(n_init);
    if mains.iter().any(Slot::is_alive) {
        return Progress::Done;
    }
    let Some(last) = init.iter().rposition(Slot::has_begun) else {
        return step(0, n_init);
    };
    let slot = &init[last];
    match (slot.kind, slot.state()) {
        (ContainerKind::Sidecar, ContainerState::Running { .. }) => step(last + 1, n_init),
        (_, state) if state.is_alive() => Progress::Waiting(last),
        (ContainerKind::Sidecar, _) => Progress::Next(last),
        _ if slot.has_succeeded() => step(last + 1, n_init),
        _ if slot.wants_restart() => Progress::Next(last),
        _ => Progress::Failed,
    }
}

fn step(index: usize, n_init: usize) -> Progress {
    if index < n_init {
        Progress::Next(index)
    } else {
        Progress::Done
    }
}

fn n_init(slots: &[Slot]) -> usize {
    slots
        .iter()
        .filter(|it| it.kind != ContainerKind::Main)
        .count()
}

/// Asks for every start that is due and notes when the others are.
pub(super) fn start_containers(
    view: &PodView,
    slots: &[Slot],
    progress: Progress,
    out: &mut Draft,
) {
    let (init, mains) = slots.split_at(n_init(slots));
    let (passed, rest) = init.split_at(progress.reached(init.len()));
    // A sidecar whose turn is past is kept running, also while later init containers run.
    for slot in passed {
        if slot.kind == ContainerKind::Sidecar {
            start(view, slot, out);
        }
    }
    match progress {
        Progress::Next(_) => {
            if let Some(slot) = rest.first() {
                start(view, slot, out);
            }
        }
        Progress::Done => {
            for slot in mains {
                if !slot.has_begun() || slot.wants_restart() {
                    start(view, slot, out);
                }
            }
        }
        Progress::Waiting(_) | Progress::Failed => {}
    }
}

/// Starts a container unless it is alive or has to wait.
fn start(view: &PodView, slot: &Slot, out: &mut Draft) {
    let attempt = slot.status.map_or(0, |it| it.attempt);
    let attempt = match slot.state() {
        ContainerState::Starting | ContainerState::Running { .. } | ContainerState::Ending(_) => {
            return;
        }
        ContainerState::NotStarted => attempt,
        ContainerState::Exited(termination) => {
            let finished_at = termination.finished_at;
            if let Some(wait) = view.backoff.wait(slot, finished_at, view.now) {
                out.wake(wait.until);
                return;
            }
            let policy = view.settings.backoff;
            out.backoff
                .count_restart(policy, slot, finished_at, view.now);
            attempt.saturating_add(1)
        }
    };
    out.actions.push(ContainerAction::Start {
        container: slot.name.to_owned(),
        attempt,
        spec_hash: slot.spec_hash.clone(),
    });
}
