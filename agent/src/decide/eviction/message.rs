//! The texts that an eviction is told with (pkg/kubelet/eviction/helpers.go, v1.36: `evictionMessage`). They are
//! kubelet's, since others read them; suite `eviction_sync` pins them.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::threshold_quantity;
use crate::model::eviction::{
    ContainerFacts, NodeCondition, Observation, PodReading, Signal, StarvedResource, StorageLimit,
    Threshold,
};
use crate::model::quantity::{Format, Quantity};

/// Why the pod is evicted for a threshold, with the containers that use more than they request.
pub fn threshold_message(
    threshold: &Threshold,
    observation: &Observation,
    reading: &PodReading,
) -> String {
    let resource = threshold.signal.resource();
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        threshold_quantity(threshold, observation),
        available(threshold.signal, observation),
    );
    let Some(figures) = &reading.figures else {
        return message;
    };
    let mut blame = |what: &str, name: &str, used: &Quantity, request: &Quantity| {
        let _infallible = write!(
            message,
            "{what} {name} was using {used}, request is {request}, has larger consumption of {resource}. "
        );
    };
    let facts = &reading.facts;
    // The pod is named however much it uses.
    if resource == StarvedResource::Memory
        && let Some(request) = &facts.pod_level_memory_request
        && let Some(used) = figures.memory_working_set
    {
        let used = Quantity::from_bytes(used);
        blame("Pod", &facts.pod.name, &used, request);
    }
    for it in &facts.containers {
        let figures = figures.containers.get(&it.name);
        let used = figures.and_then(|figures| match resource {
            StarvedResource::Memory => figures.memory_working_set,
            StarvedResource::EphemeralStorage => {
                let root_fs = figures.root_fs.bytes?;
                Some(root_fs.saturating_add(figures.logs.bytes?))
            }
            StarvedResource::Inodes | StarvedResource::Pids => None,
        });
        let request = request(it, resource);
        if let Some(used) = used.map(Quantity::from_bytes).filter(|it| it > request) {
            blame("Container", &it.name, &used, request);
        }
    }
    message
}

/// Why the pod is evicted for a limit of its own, which is `limit`.
pub fn storage_message(which: &StorageLimit, limit: &Quantity) -> String {
    match which {
        StorageLimit::EmptyDir { volume } => {
            format!("Usage of EmptyDir volume \"{volume}\" exceeds the limit \"{limit}\". ")
        }
        StorageLimit::Pod => format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        ),
        StorageLimit::Container { container } => {
            format!(
                "Container {container} exceeded its local ephemeral storage limit \"{limit}\". "
            )
        }
    }
}

/// Why a pod is not admitted.
pub fn admission_message(conditions: &BTreeSet<NodeCondition>) -> String {
    let names: Vec<&str> = conditions.iter().map(|it| it.as_str()).collect();
    format!("The node had condition: [{}]. ", names.join(" "))
}

fn available(signal: Signal, observation: &Observation) -> Quantity {
    let format = match signal.resource() {
        StarvedResource::Memory | StarvedResource::EphemeralStorage => Format::BinarySi,
        StarvedResource::Inodes | StarvedResource::Pids => Format::DecimalSi,
    };
    Quantity::from_units(observation.available, format)
}

fn request(container: &ContainerFacts, resource: StarvedResource) -> &Quantity {
    match resource {
        StarvedResource::EphemeralStorage => &container.storage_request,
        _ => &container.memory_request,
    }
}
