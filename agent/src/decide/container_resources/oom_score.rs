//! `oom_score_adj` of a container's processes (pkg/kubelet/qos/policy.go, v1.36: `GetContainerOOMScoreAdjust`).

use crate::config::Compat;
use crate::model::pod::{
    Container, NODE_CRITICAL_CLASS, Overhead, Pod, PodLevel, QosClass, ResourceList,
};
use crate::model::quantity::Quantity;
use crate::units::Bytes;

/// Guaranteed and node-critical pods.
const GUARANTEED: i16 = -997;
const BEST_EFFORT: i16 = 1000;
/// Above any Guaranteed pod that uses all memory there is.
const BURSTABLE_MIN: i128 = 3;
const BURSTABLE_MAX: i128 = 999;

/// -1000..=1000, higher is killed first. A Burstable container goes the later the more of the
/// node's memory it requests; a sidecar never before the regular containers that it serves.
///
/// `memory` is `MemTotal`; with 0, which no node has, a Burstable container is taken to request
/// nothing. Containers that request more than their pod, which the API server does not let pass,
/// give kubelet a figure above 1000, which the kernel refuses; ours stays at 999.
pub fn oom_score_adj(
    pod: &Pod,
    class: QosClass,
    container: &Container,
    memory: Bytes,
    compat: Compat,
) -> i16 {
    let is_node_critical =
        pod.is_critical() && pod.priority_class_name.as_deref() == Some(NODE_CRITICAL_CLASS);
    if is_node_critical {
        return GUARANTEED;
    }
    match class {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => burstable(pod, container, memory, compat),
    }
}

fn burstable(pod: &Pod, container: &Container, memory: Bytes, compat: Compat) -> i16 {
    let surplus = surplus(pod);
    let by_request = score(request(container) + surplus, memory);
    let by_regulars = pod
        .containers
        .iter()
        .map(request)
        .min()
        .filter(|_| container.is_sidecar)
        .map(|it| score(it + surplus, memory));
    let score = by_regulars
        .map_or(by_request, |it| it.min(by_request))
        .max(BURSTABLE_MIN);
    let score = match compat {
        Compat::Kubelet if score > i128::from(BEST_EFFORT) => score,
        Compat::Kubelet | Compat::Ballast => score.min(BURSTABLE_MAX),
    };
    i16::try_from(score).unwrap_or(i16::MAX)
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

/// Each container's part of what the pod requests beyond its containers: only where the pod has a
/// memory request of its own. Negative if the containers request more.
fn surplus(pod: &Pod) -> i128 {
    if pod
        .pod_level_request("memory")
        .is_none_or(Quantity::is_zero)
    {
        return 0;
    }
    let bytes = |list: &ResourceList| list.get("memory").map_or(0, |it| i128::from(it.value()));
    let pods = bytes(&pod.requests(PodLevel::Honoured, Overhead::Left));
    let n_containers = pod.containers.len() + pod.init_containers.len();
    let n_containers = i128::try_from(n_containers).unwrap_or(i128::MAX);
    (pods - bytes(&pod.container_requests()))
        .checked_div(n_containers)
        .unwrap_or(0)
}
