//! What a pod of the API means: pure functions from objects to what is shown of them.

mod definition;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::api_pod::object::{ContainerStatus, PodObject, Spec, Status};
use crate::model::api_pod::{ApiContainer, ApiInstance, ApiPod, ContainerRole};
use crate::model::api_server::PodsFrom;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::workload::Workload;

/// `None`: it has no name or no UID, so it is of no API server. `from`: who tells of it.
pub(super) fn of_pod(pod: &PodObject, from: PodsFrom) -> Option<ApiPod> {
    let names = Arc::new(names(pod)?);
    Some(ApiPod {
        is_mirror: mirrored(pod).is_some(),
        workload: Arc::new(Workload::of_api(&pod.metadata, &names)),
        is_over: is_over(pod),
        definition: definition::of_pod(pod, &names, from),
        containers: containers(pod),
        pod: names,
    })
}

/// With the UID of its cgroup.
pub(super) fn names(pod: &PodObject) -> Option<PodRef> {
    Some(PodRef {
        namespace: pod.metadata.namespace.clone()?,
        name: pod.metadata.name.clone()?,
        uid: uid(pod)?,
    })
}

/// The UID of its cgroup.
fn uid(pod: &PodObject) -> Option<PodUid> {
    let uid = mirrored(pod).or(pod.metadata.uid.as_deref())?;
    (!uid.is_empty()).then(|| PodUid(uid.to_owned()))
}

/// The static pod that it shows; `None`: it is itself. Anybody can write the annotation, kubelet makes its node the
/// owner besides.
fn mirrored(pod: &PodObject) -> Option<&str> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let is_of_node = owners.any(|it| it.kind == "Node" && it.controller == Some(true));
    let annotated = pod.metadata.annotations.as_ref()?.mirror.as_deref();
    annotated.filter(|_| is_of_node)
}

fn is_over(pod: &PodObject) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn containers(pod: &PodObject) -> Vec<ApiContainer> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let instances = pod.status.as_ref().map(instances).unwrap_or_default();
    declared(spec)
        .map(|(name, role)| ApiContainer {
            name: name.into(),
            role,
            instances: instances.get(name).cloned().unwrap_or_default(),
        })
        .collect()
}

fn declared(spec: &Spec) -> impl Iterator<Item = (&str, ContainerRole)> {
    let init = spec.init_containers.iter().flatten().map(|it| {
        let role = match it.restart_policy.as_deref() {
            Some("Always") => ContainerRole::Sidecar,
            _ => ContainerRole::Init,
        };
        (it.name.as_str(), role)
    });
    let main = spec.containers.iter().flatten();
    let main = main.map(|it| (it.name.as_str(), ContainerRole::Main));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|it| (it.name.as_str(), ContainerRole::Ephemeral));
    init.chain(main).chain(ephemeral)
}

/// By the name of the container. Names differ within a pod, whatever list they are in.
fn instances(status: &Status) -> BTreeMap<&str, Vec<ApiInstance>> {
    let init = status.init_container_statuses.iter().flatten();
    let main = status.container_statuses.iter().flatten();
    let ephemeral = status.ephemeral_container_statuses.iter().flatten();
    let all = init.chain(main).chain(ephemeral);
    all.map(|it| (it.name.as_str(), of_status(it))).collect()
}

/// The one that kubelet sees, and the one before it.
fn of_status(status: &ContainerStatus) -> Vec<ApiInstance> {
    let attempt = u32::try_from(status.restart_count).unwrap_or(0);
    let last = status.last_state.as_ref();
    let last = last.and_then(|it| it.terminated.as_ref()?.container_id.as_deref());
    let both = [
        (status.container_id.as_deref(), attempt),
        (last, attempt.saturating_sub(1)),
    ];
    let told = both.into_iter().filter_map(|(id, attempt)| {
        Some(ApiInstance {
            id: id_of(id?)?.to_owned(),
            attempt,
        })
    });
    let mut instances: Vec<ApiInstance> = told.collect();
    // Of one that waits to be started again both are the same.
    instances.dedup_by(|b, a| a.id == b.id);
    instances
}

/// `containerd://ID`.
fn id_of(text: &str) -> Option<&str> {
    let (_, id) = text.split_once("://")?;
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests;
