//! `oom_score_adj` of a container's processes (spec cgroups-qos 7).

use crate::model::pod::{Container, Pod, QosClass};
use crate::units::Bytes;

/// Guaranteed and node-critical pods.
const GUARANTEED: i16 = -997;
const BEST_EFFORT: i16 = 1000;
/// Above any Guaranteed pod that uses all memory there is.
const BURSTABLE_MIN: i128 = 3;
const BURSTABLE_MAX: i128 = 999;
const NODE_CRITICAL_CLASS: &str = "system-node-critical";

/// -1000..=1000, higher is killed first. A Burstable container goes the later the more of the
/// node's memory it requests; a sidecar never before the regular containers that it serves.
///
/// `memory` is `MemTotal`; with 0, which no node has, a Burstable container is taken to request
/// nothing.
pub fn oom_score_adj(pod: &Pod, class: QosClass, container: &Container, memory: Bytes) -> i16 {
    let is_node_critical =
        pod.is_critical() && pod.priority_class_name.as_deref() == Some(NODE_CRITICAL_CLASS);
    if is_node_critical {
        return GUARANTEED;
    }
    match class {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => {
            let by_request = score(request(container) + surplus(pod), memory);
            let by_regulars = pod
                .containers
                .iter()
                .map(request)
                .min()
                .filter(|_| container.is_sidecar)
                .map(|it| score(it + surplus(pod), memory));
            let score = by_regulars.map_or(by_request, |it| it.min(by_request));
            i16::try_from(score.clamp(BURSTABLE_MIN, BURSTABLE_MAX)).unwrap_or(BEST_EFFORT - 1)
        }
    }
}

fn score(request: i128, memory: Bytes) -> i128 {
    1000 - (1000 * request)
        .checked_div(i128::from(memory.0))
        .unwrap_or(0)
}

fn request(container: &Container) -> i128 {
    container
        .resources
        .requests
        .get("memory")
        .map_or(0, |it| i128::from(it.value()))
}

/// Each container's part of what the pod requests beyond its containers. Negative if the containers
/// request more, which the API server does not let pass.
fn surplus(pod: &Pod) -> i128 {
    let Some(pods) = pod.pod_level_request("memory").filter(|it| !it.is_zero()) else {
        return 0;
    };
    let containers = pod
        .container_requests()
        .get("memory")
        .map_or(0, |it| i128::from(it.value()));
    let n_containers = pod.containers.len() + pod.init_containers.len();
    let n_containers = i128::try_from(n_containers).unwrap_or(i128::MAX);
    (i128::from(pods.value()) - containers)
        .checked_div(n_containers)
        .unwrap_or(0)
}
