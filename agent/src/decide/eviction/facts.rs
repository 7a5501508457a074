//! What of a pod's definition eviction is decided by (pkg/kubelet/eviction/helpers.go and eviction_manager.go, v1.36).

use crate::config::Compat;
use crate::model::eviction::{ContainerFacts, PodFacts, VolumeFacts};
use crate::model::pod::{
    CONFIG_SOURCE_ANNOTATION, Container, Overhead, Pod, PodLevel, QosClass,
    SYSTEM_CRITICAL_PRIORITY, Unnamed, Volume, VolumeSource, built_in_priority,
};
use crate::model::quantity::Quantity;
use crate::model::record::PodRef;

const MEMORY: &str = "memory";
const STORAGE: &str = "ephemeral-storage";

pub fn pod_facts(pod: &Pod, qos: QosClass, compat: Compat) -> PodFacts {
    let limits = pod.limits(PodLevel::Honoured, Overhead::Added).amounts;
    let containers = pod
        .containers
        .iter()
        // Kubelet holds init containers to no limit of their own.
        .map(|it| container(it, it.resources.limits.get(STORAGE)))
        .chain(pod.init_containers.iter().map(|it| container(it, None)));
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
        volumes: pod.volumes.iter().map(volume).collect(),
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

fn container(it: &Container, storage_limit: Option<&Quantity>) -> ContainerFacts {
    let request = |name| it.resources.requests.get(name).cloned().unwrap_or_default();
    ContainerFacts {
        name: it.name.clone(),
        memory_request: request(MEMORY),
        storage_request: request(STORAGE),
        storage_limit: storage_limit.cloned(),
    }
}

fn volume(it: &Volume) -> VolumeFacts {
    let (is_local, size_limit) = match &it.source {
        VolumeSource::EmptyDir { memory, size_limit } => (!memory, size_limit.as_ref()),
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
