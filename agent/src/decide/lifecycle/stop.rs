//! Which containers are told to stop now, and which are killed: main and ordinary init containers
//! at once, sidecars after the main containers and in reverse order of their start, all within one
//! grace period (KEP-753).

use std::time::Duration;

use super::{Draft, PodView, Slot};
use crate::config::Compat;
use crate::model::container::{
    ContainerAction, ContainerKind, ContainerState, ContainerStatus, Deletion, StopReason,
};

/// What a container gets from SIGTERM to SIGKILL at least, however little of the grace period is
/// left (kubelet's `minimumGracePeriodInSeconds`).
pub const MINIMUM_GRACE: Duration = Duration::from_secs(2);

/// SIGKILL is sent again after this while something is still alive: without `cgroup.kill` a fork
/// can escape one round. Arbitrary; a process in uninterruptible sleep makes it a poll.
pub const KILL_RETRY: Duration = Duration::from_secs(1);

/// The pod's part of a stop.
#[derive(Clone, Copy)]
struct PodStop {
    /// When the grace period of the whole pod began.
    since: Duration,
    /// Zero: kill at once.
    grace: Duration,
    reason: StopReason,
}

impl PodStop {
    fn of(view: &PodView, deletion: Deletion) -> Self {
        let grace = match view.settings.compat {
            Compat::Kubelet => deletion.grace.max(MINIMUM_GRACE),
            Compat::Ballast => deletion.grace,
        };
        Self {
            since: deletion.requested_at,
            grace,
            reason: StopReason::PodTerminating,
        }
    }

    fn deadline(self) -> Duration {
        self.since.saturating_add(self.grace)
    }
}

/// Ends the pod as `deletion` asks.
pub(super) fn stop_pod(view: &PodView, slots: &[Slot], deletion: Deletion, out: &mut Draft) {
    stop_in_order(view, slots, PodStop::of(view, deletion), out);
}

/// Ends what still runs in a pod that has finished by itself. The grace period, the pod's own,
/// begins with the first stop and not with the end of the main containers: after an absence of the
/// agent the sidecars still get all of it, and their order.
pub(super) fn finish_pod(view: &PodView, slots: &[Slot], out: &mut Draft) {
    let reason = StopReason::PodFinished;
    let since = slots
        .iter()
        .filter_map(|it| it.status?.stop)
        .filter(|it| it.reason == reason)
        .map(|it| it.requested_at)
        .min()
        .unwrap_or(view.now);
    let stop = PodStop {
        since,
        grace: view.pod.termination_grace.max(MINIMUM_GRACE),
        reason,
    };
    stop_in_order(view, slots, stop, out);
}

/// Kills what is left of containers whose main process has ended, whatever else goes on, as the
/// end of a PID namespace would.
pub(super) fn kill_leftovers(view: &PodView, out: &mut Draft) {
    for status in view.containers {
        let ContainerState::Ending(_) = status.state else {
            continue;
        };
        let reason = StopReason::MainProcessEnded;
        let killed_at = status.stop.and_then(|it| it.killed_at);
        kill_again(status, killed_at, reason, out);
    }
}

/// Stops running containers whose definition has changed. Ordinary init containers are left to
/// finish, as kubelet does.
pub(super) fn replace_changed(view: &PodView, slots: &[Slot], out: &mut Draft) {
    let grace = view.pod.termination_grace.max(MINIMUM_GRACE);
    for slot in slots {
        let Some(status) = slot.status else { continue };
        if status.stop.is_some() {
            escalate(view, status, None, out);
        } else if slot.kind != ContainerKind::Init && slot.is_changed() {
            terminate(status, grace, StopReason::SpecChanged, out);
        }
    }
}

/// Stops containers that the pod no longer has.
pub(super) fn stop_removed(view: &PodView, slots: &[Slot], out: &mut Draft) {
    let removed = view
        .containers
        .iter()
        .filter(|it| slots.iter().all(|slot| slot.name != it.name));
    for status in removed {
        let stop = match view.deletion {
            Some(deletion) => PodStop::of(view, deletion),
            None => PodStop {
                since: status.stop.map_or(view.now, |it| it.requested_at),
                grace: view.pod.termination_grace.max(MINIMUM_GRACE),
                reason: StopReason::ContainerRemoved,
            },
        };
        stop_container(view, status, stop, out);
    }
}

fn stop_in_order(view: &PodView, slots: &[Slot], stop: PodStop, out: &mut Draft) {
    let (sidecars, others): (Vec<_>, Vec<_>) = slots
        .iter()
        .filter(|it| it.is_alive())
        .partition(|it| it.kind == ContainerKind::Sidecar);
    for status in others.iter().filter_map(|it| it.status) {
        stop_container(view, status, stop, out);
    }
    let is_time_up = view.now >= stop.deadline();
    let mut is_turn = others.iter().all(|it| it.kind != ContainerKind::Main);
    for status in sidecars.iter().rev().filter_map(|it| it.status) {
        if is_turn || is_time_up || status.stop.is_some() {
            stop_container(view, status, stop, out);
        } else {
            out.wake(stop.deadline());
        }
        is_turn = false;
    }
}

/// Takes a container one step further on its way out.
fn stop_container(view: &PodView, status: &ContainerStatus, stop: PodStop, out: &mut Draft) {
    match (&status.state, status.stop) {
        (ContainerState::NotStarted | ContainerState::Ending(_) | ContainerState::Exited(_), _) => {
        }
        (_, Some(_)) => escalate(view, status, Some(stop), out),
        (_, None) if stop.grace.is_zero() => kill(status, stop.reason, out),
        (ContainerState::Running { .. }, None) => {
            let left = stop.deadline().saturating_sub(view.now);
            terminate(status, left.max(MINIMUM_GRACE), stop.reason, out);
        }
        // A start under way cannot be told to stop. It either shows up as running and is
        // terminated then, or is cut off when the pod's time is up.
        (ContainerState::Starting, None) => {
            let due = stop.since.saturating_add(stop.grace.max(MINIMUM_GRACE));
            if view.now >= due {
                kill(status, stop.reason, out);
            } else {
                out.wake(due);
            }
        }
    }
}

/// Kills a container that has used up its grace, and again until it is gone. The pod's own deadline
/// can only bring that forward.
fn escalate(view: &PodView, status: &ContainerStatus, pod: Option<PodStop>, out: &mut Draft) {
    let (ContainerState::Starting | ContainerState::Running { .. }, Some(request)) =
        (&status.state, status.stop)
    else {
        return;
    };
    let own = request.requested_at.saturating_add(request.grace);
    let due = match pod {
        None => own,
        Some(pod) if pod.grace.is_zero() => own.min(pod.since),
        Some(pod) => {
            let at_least = request.requested_at.saturating_add(MINIMUM_GRACE);
            own.min(pod.deadline().max(at_least))
        }
    };
    if view.now >= due {
        kill_again(status, request.killed_at, request.reason, out);
    } else {
        out.wake(due);
    }
}

/// Kills now, or when the last attempt is long enough ago.
fn kill_again(
    status: &ContainerStatus,
    killed_at: Option<Duration>,
    reason: StopReason,
    out: &mut Draft,
) {
    let due = killed_at.map_or(out.now, |it| it.saturating_add(KILL_RETRY));
    if out.now >= due {
        kill(status, reason, out);
    } else {
        out.wake(due);
    }
}

fn terminate(status: &ContainerStatus, grace: Duration, reason: StopReason, out: &mut Draft) {
    // A start under way is looked at again when the runtime has answered.
    if status.state.is_running() {
        out.actions.push(ContainerAction::Terminate {
            container: status.name.clone(),
            grace,
            reason,
        });
        out.wake(out.now.saturating_add(grace));
    }
}

fn kill(status: &ContainerStatus, reason: StopReason, out: &mut Draft) {
    out.actions.push(ContainerAction::Kill {
        container: status.name.clone(),
        reason,
    });
    out.wake(out.now.saturating_add(KILL_RETRY));
}
