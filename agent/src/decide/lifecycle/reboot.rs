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
/// keeps its records, and what ran is of unknown end.
pub fn after_reboot(pod: &Pod, containers: &[ContainerStatus]) -> Vec<ContainerStatus> {
    let find = |name: &str| containers.iter().find(|it| it.name == name);
    // By policy, of main containers.
    let is_done = |status: Option<&ContainerStatus>, policy| match policy {
        RestartPolicy::Always => false,
        RestartPolicy::OnFailure => status.is_some_and(has_succeeded),
        RestartPolicy::Never => status.is_some_and(|it| it.state != ContainerState::NotStarted),
    };
    let may_restart = pod.containers.iter().any(|it| {
        let policy = restart_policy(pod, it);
        policy != RestartPolicy::Never && !is_done(find(&it.name), policy)
    });
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
