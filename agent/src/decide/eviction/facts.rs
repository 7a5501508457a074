//! What of a pod's definition eviction is decided by (pkg/kubelet/eviction/helpers.go and eviction_manager.go, v1.36).

use crate::config::Compat;
use crate::model::eviction::{ContainerFacts, PodFacts, VolumeFacts};
use crate::model::pod::{
    CONFIG_SOURCE_ANNOTATION, Container, Overhead, Pod, PodLevel, QosClass,
    SYSTEM_CRITICAL_PRIORITY, Unnamed, Volume, VolumeSource, built_in_priority,
};
use crate::model::record::PodRef;

const MEMORY: &str = "memory";
const STORAGE: &str = "ephemeral-storage";

pub fn pod_facts(pod: &Pod, qos: QosClass, compat: Compat) -> PodFacts {
    let limits = pod.limits(PodLevel::Honoured, Overhead::Added).amounts;
    // Kubelet holds init containers to no limit of their own. Sidecars run as long as the others.
    let is_held = |it: &Container| it.is_sidecar && compat == Compat::Ballast;
    let init_containers = pod.init_containers.iter();
    let init_containers = init_containers.map(|it| container(it, is_held(it)));
    let containers = pod.containers.iter().map(|it| container(it, true));
    let containers = containers.chain(init_containers);
    let unnamed = match compat {
        Compat::Kubelet => Unnamed::Nothing,
        Compat::Ballast => Unnamed::OfContainers,
    };
    PodFacts {
        pod: PodRef {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        qos,
        priority: priority(pod, compat).unwrap_or(0),
        is_critical: is_critical(pod, compat),
        termination_grace: pod.termination_grace,
        memory_request: pod.request_to_rank(MEMORY, unnamed),
        storage_request: pod.request_to_rank(STORAGE, unnamed),
        pod_level_memory_request: pod.pod_level_request(MEMORY).cloned(),
        storage_limit: limits.get(STORAGE).cloned(),
        containers: containers.collect(),
        volumes: pod.volumes.iter().map(|it| volume(it, compat)).collect(),
    }
}

/// An API server puts the number of a class into each pod; nobody does into a manifest, and kubelet knows none. The
/// classes that every cluster has mean the same here. `None`: it counts as 0 where pods are ranked.
pub fn priority(pod: &Pod, compat: Compat) -> Option<i32> {
    let of_class = || match compat {
        Compat::Kubelet => None,
        Compat::Ballast => built_in_priority(pod.priority_class_name.as_deref()?),
    };
    pod.priority.or_else(of_class)
}

/// Whether the pod is never evicted, and others make room for it.
///
/// Kubelet spares every pod of a manifest. Without a kubelet all pods are from manifests, and a node
/// could give nothing back: here the manifest has to say so.
pub fn is_critical(pod: &Pod, compat: Compat) -> bool {
    let is_static = || {
        let source = pod.annotations.get(CONFIG_SOURCE_ANNOTATION);
        source.is_some_and(|it| it != "api")
    };
    match compat {
        Compat::Kubelet => pod.is_critical(),
        Compat::Ballast => {
            is_static()
                || pod.is_mirror()
                || priority(pod, compat).is_some_and(|it| it >= SYSTEM_CRITICAL_PRIORITY)
        }
    }
}

fn container(it: &Container, is_held_to_limit: bool) -> ContainerFacts {
    let request = |name| it.resources.requests.get(name).cloned().unwrap_or_default();
    let limit = it.resources.limits.get(STORAGE);
    ContainerFacts {
        name: it.name.clone(),
        memory_request: request(MEMORY),
        storage_request: request(STORAGE),
        storage_limit: limit.filter(|_| is_held_to_limit).cloned(),
    }
}

fn volume(it: &Volume, compat: Compat) -> VolumeFacts {
    // One in memory is as large as its limit, in whole pages.
    let is_held = |memory: bool| !memory || compat == Compat::Kubelet;
    let (is_local, size_limit) = match &it.source {
        VolumeSource::EmptyDir { memory, size_limit } => {
            let size_limit = size_limit.as_ref().filter(|_| is_held(*memory));
            (!memory, size_limit)
        }
        VolumeSource::HostPath { .. } => (true, None),
        VolumeSource::Other { kind } => (matches!(kind.as_str(), "configMap" | "gitRepo"), None),
    };
    VolumeFacts {
        name: it.name.clone(),
        is_local,
        size_limit: size_limit.filter(|it| it.is_positive()).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::pod;
    use crate::model::quantity::Quantity;

    #[test]
    fn a_sidecar_is_held_to_a_limit_of_its_own() {
        let limited = |kind| format!("{kind} {{lim ephemeral-storage=1Gi}} ");
        let pod = pod(["init", "sidecar", "app"].map(limited).concat().trim_end());
        for (compat, held) in [
            (Compat::Kubelet, &["app2"][..]),
            (Compat::Ballast, &["app2", "sidecar1"]),
        ] {
            let facts = pod_facts(&pod, QosClass::Burstable, compat);
            let containers = facts.containers.iter();
            let of = containers.filter(|it| it.storage_limit.is_some());
            let names: Vec<&str> = of.map(|it| it.name.as_str()).collect();
            assert_eq!(names, held, "{compat:?}");
        }
    }

    #[test]
    fn nobody_goes_for_a_volume_in_memory_that_is_full() {
        let volume = |memory| {
            let limit = Quantity::from_bytes(10_000_000);
            let source = VolumeSource::EmptyDir {
                memory,
                size_limit: Some(limit.clone()),
            };
            let name = "cache".to_owned();
            let held = |compat| {
                let (name, source) = (name.clone(), source.clone());
                let facts = super::volume(&Volume { name, source }, compat);
                facts.size_limit == Some(limit.clone())
            };
            [held(Compat::Ballast), held(Compat::Kubelet)]
        };
        assert_eq!(volume(true), [false, true]);
        assert_eq!(volume(false), [true, true]);
    }

    #[test]
    fn the_classes_that_every_cluster_has_mean_their_numbers() {
        for (class, given, expected) in [
            ("system-node-critical", None, 2_000_001_000),
            ("system-cluster-critical", None, 2_000_000_000),
            ("system-node-critical", Some(7), 7),
            ("batch", None, 0),
        ] {
            let pod = Pod {
                priority_class_name: Some(class.to_owned()),
                priority: given,
                ..pod("")
            };
            let facts = |compat| pod_facts(&pod, QosClass::BestEffort, compat);
            assert_eq!(facts(Compat::Ballast).priority, expected, "{class}");
            let is_critical = expected >= SYSTEM_CRITICAL_PRIORITY;
            assert_eq!(facts(Compat::Ballast).is_critical, is_critical, "{class}");
            assert_eq!(facts(Compat::Kubelet).priority, given.unwrap_or(0));
        }
    }
}
