//! What the records of an earlier boot still mean.

use std::time::Duration;

use crate::model::container::{
    ContainerExit, ContainerState, ContainerStatus, StopReason, Termination,
};
use crate::model::pod::{Pod, RestartPolicy};

/// Brings records of an earlier boot into this one, where nothing of them is alive and their times
/// mean nothing. The back-off state starts empty.
///
/// Kubelet's rules for a lost sandbox: a pod that may restart begins again with its first init
/// container, except for main containers that have succeeded under `OnFailure`; a pod that may not
/// restart keeps its records, and what ran is of unknown end.
pub fn after_reboot(pod: &Pod, containers: &[ContainerStatus]) -> Vec<ContainerStatus> {
    let has_succeeded = |status: &&ContainerStatus| {
        status
            .state
            .termination()
            .is_some_and(|it| it.exit.is_success())
    };
    let find = |name: &str| containers.iter().find(|it| it.name == name);
    let may_restart = match pod.restart_policy {
        RestartPolicy::Always => true,
        RestartPolicy::Never => false,
        RestartPolicy::OnFailure => !pod
            .containers
            .iter()
            .all(|it| find(&it.name).filter(has_succeeded).is_some()),
    };
    let is_kept = |status: &ContainerStatus| {
        !may_restart
            || (pod.restart_policy == RestartPolicy::OnFailure
                && has_succeeded(&status)
                && pod.containers.iter().any(|it| it.name == status.name))
    };
    containers
        .iter()
        .map(|status| {
            let mut status = status.clone();
            status.last_termination = status.last_termination.map(timeless);
            status.state = match status.state {
                ContainerState::NotStarted => ContainerState::NotStarted,
                ContainerState::Exited(termination) => {
                    ContainerState::Exited(timeless(termination))
                }
                ContainerState::Starting | ContainerState::Running { .. } => {
                    ContainerState::Exited(timeless(Termination {
                        started_at: None,
                        finished_at: Duration::ZERO,
                        exit: ContainerExit::Unknown,
                        oom_killed: false,
                        message: None,
                    }))
                }
            };
            if is_kept(&status) {
                // Being replaced is the one reason that outlives the instance.
                status.stop = status
                    .stop
                    .filter(|it| it.reason == StopReason::SpecChanged);
                return status;
            }
            status.stop = None;
            status.spec_hash = None;
            if let ContainerState::Exited(termination) = status.state {
                status.state = ContainerState::NotStarted;
                status.attempt = status.attempt.saturating_add(1);
                status.last_termination = Some(termination);
            }
            status
        })
        .collect()
}

/// The boot is the latest time at which it can have ended, on this boot's clock.
fn timeless(termination: Termination) -> Termination {
    Termination {
        started_at: None,
        finished_at: Duration::ZERO,
        ..termination
    }
}
