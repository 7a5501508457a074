//! What the records of an earlier boot still mean.

use std::time::Duration;

use super::restart_policy;
use crate::model::container::{ContainerExit, ContainerState, ContainerStatus, Termination};
use crate::model::pod::{Pod, RestartPolicy};

/// Brings records of an earlier boot into this one, where nothing of them is alive and their times
/// mean nothing. The back-off state starts empty.
///
/// Kubelet's rules for a lost sandbox: a pod that may restart begins again with its first init
/// container, except for main containers that are done by their policy; a pod that may not restart
/// keeps its records, and what ran is of unknown end, unless nothing of it has begun. `may_have_run` says of a start
/// that was asked for whether the runtime had it: one that was held has not begun.
pub fn after_reboot(
    pod: &Pod,
    containers: &[ContainerStatus],
    may_have_run: impl Fn(&ContainerStatus) -> bool,
) -> Vec<ContainerStatus> {
    let is_held = |it: &ContainerStatus| it.state == ContainerState::Starting && !may_have_run(it);
    let has_begun = containers.iter().any(|it| {
        let is_new = it.state == ContainerState::NotStarted || is_held(it);
        !is_new || it.last_termination.is_some()
    });
    let mut without_held = containers.to_vec();
    for status in without_held.iter_mut().filter(|it| is_held(it)) {
        status.state = ContainerState::NotStarted;
    }
    // By policy, of main containers.
    let is_done = |status: Option<&ContainerStatus>, policy| match policy {
        RestartPolicy::Always => false,
        RestartPolicy::OnFailure => status.is_some_and(has_succeeded),
        RestartPolicy::Never => status.is_some_and(|it| it.state != ContainerState::NotStarted),
    };
    let may_restart = pod.containers.iter().any(|it| {
        let policy = restart_policy(pod, it);
        let status = without_held.iter().find(|status| status.name == it.name);
        policy != RestartPolicy::Never && !is_done(status, policy)
    });
    // What an ended init container has made may be gone with the boot.
    let containers = match has_begun && !may_restart {
        true => containers,
        false => &without_held,
    };
    let is_kept = |status: &ContainerStatus| {
        let main = pod.containers.iter().find(|it| it.name == status.name);
        !may_restart || main.is_some_and(|it| is_done(Some(status), restart_policy(pod, it)))
    };
    containers
        .iter()
        .map(|status| {
            let ended = ended_with_the_boot(status);
            if is_kept(status) {
                ended
            } else {
                to_be_started_again(ended)
            }
        })
        .collect()
}

fn has_succeeded(status: &ContainerStatus) -> bool {
    status
        .state
        .termination()
        .is_some_and(|it| it.exit.is_success())
}

fn ended_with_the_boot(status: &ContainerStatus) -> ContainerStatus {
    let state = match status.state.clone() {
        ContainerState::NotStarted => ContainerState::NotStarted,
        ContainerState::Ending(termination) | ContainerState::Exited(termination) => {
            ContainerState::Exited(without_times(termination))
        }
        ContainerState::Starting | ContainerState::Running { .. } => {
            ContainerState::Exited(without_times(Termination {
                started_at: None,
                finished_at: Duration::ZERO,
                exit: ContainerExit::Unknown,
                oom_killed: false,
                message: None,
            }))
        }
    };
    ContainerStatus {
        state,
        last_termination: status.last_termination.clone().map(without_times),
        stop: None,
        ..status.clone()
    }
}

fn to_be_started_again(status: ContainerStatus) -> ContainerStatus {
    let (state, attempt, last_termination) = match status.state {
        ContainerState::Exited(termination) => (
            ContainerState::NotStarted,
            status.attempt.saturating_add(1),
            Some(termination),
        ),
        state => (state, status.attempt, status.last_termination),
    };
    ContainerStatus {
        name: status.name,
        attempt,
        state,
        last_termination,
        spec_hash: None,
        stop: None,
    }
}

/// The boot is the latest time at which it can have ended, on this boot's clock.
fn without_times(termination: Termination) -> Termination {
    Termination {
        started_at: None,
        finished_at: Duration::ZERO,
        ..termination
    }
}
