//! How many exclusive CPUs a container or a pod asks for
//! (pkg/kubelet/cm/cpumanager/policy_static.go, v1.36: `guaranteedCPUs`, `podGuaranteedCPUs`).

use crate::decide::qos::qos_class;
use crate::model::pod::{Container, Pod, QosClass, ResourceList};

/// Whole CPUs of a request; 0 for a fraction, for none, and for what no machine has.
fn whole_cpus(requests: &ResourceList) -> usize {
    let Some(cpu) = requests.get("cpu") else {
        return 0;
    };
    // Both are rounded up, so that 500u is one CPU in neither.
    let (units, millis) = (cpu.units(), cpu.millis());
    if units.checked_mul(1000) == Some(millis) {
        usize::try_from(units).unwrap_or(0)
    } else {
        0
    }
}

/// Exclusive CPUs for a container; 0: it runs in the shared pool. `pod_level`: the feature gates
/// `PodLevelResources` and `PodLevelResourceManagers` are both on.
pub fn exclusive_cpus(pod: &Pod, container: &Container, pod_level: bool) -> usize {
    let own = &container.resources;
    let is_guaranteed = |name| {
        let request = own.requests.get(name);
        request.is_some() && request == own.limits.get(name)
    };
    let is_eligible = !pod.has_pod_level_resources()
        || pod_level && is_guaranteed("cpu") && is_guaranteed("memory");
    if is_eligible && qos_class(pod) == QosClass::Guaranteed {
        whole_cpus(&own.requests)
    } else {
        0
    }
}

/// The most exclusive CPUs that the containers of a pod hold at one time. With pod-level resources:
/// the CPUs of the pod as a whole.
pub fn exclusive_cpus_of_pod(pod: &Pod, pod_level: bool) -> usize {
    if pod.has_pod_level_resources() {
        let is_guaranteed = qos_class(pod) == QosClass::Guaranteed;
        return match &pod.resources {
            Some(own) if pod_level && is_guaranteed => whole_cpus(&own.requests),
            _ => 0,
        };
    }
    let (mut most_at_init, mut sidecars) = (0_usize, 0_usize);
    for container in &pod.init_containers {
        let n = exclusive_cpus(pod, container, pod_level);
        if container.is_sidecar {
            sidecars = sidecars.saturating_add(n);
        } else {
            most_at_init = most_at_init.max(sidecars.saturating_add(n));
        }
    }
    let apps = pod
        .containers
        .iter()
        .map(|it| exclusive_cpus(pod, it, pod_level));
    apps.fold(sidecars, usize::saturating_add).max(most_at_init)
}
