//! What a pod of the API asks for: from what is read of its specification to sums.
//!
//! The rules are those of [`model::pod`](crate::model::pod), for which the pod becomes a `v1.Pod` again, without the
//! rest of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::model::api_pod::Definition;
use crate::model::api_pod::object::{Amounts, Container, PodObject, Resources, Spec};
use crate::model::api_server::PodsFrom;
use crate::model::pod::{
    CONFIG_MIRROR_ANNOTATION, CONFIG_SOURCE_ANNOTATION, FieldFault, Pod, PodOrigin,
};
use crate::model::record::PodRef;

/// `Err`: why it is not understood.
pub(super) fn of_pod(
    pod: &PodObject,
    names: &PodRef,
    from: PodsFrom,
) -> Result<Definition, String> {
    let checked = Pod::from_v1(&v1_pod(pod, names, from), PodOrigin::Api);
    checked.map(|it| Definition::of(&it)).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(FieldFault::to_string).collect();
        faults.join("; ")
    })
}

fn v1_pod(pod: &PodObject, names: &PodRef, from: PodsFrom) -> v1::Pod {
    // To kubelet the annotation alone makes a mirror, and what it runs is the static pod. On the API server anybody can
    // say that a pod is a static one.
    let annotations = pod.metadata.annotations.as_ref();
    let mirror = annotations.and_then(|it| it.mirror.clone());
    let source = annotations.filter(|_| from == PodsFrom::Kubelet);
    let source = source.and_then(|it| it.source.clone());
    let annotations = [
        (CONFIG_MIRROR_ANNOTATION, mirror),
        (CONFIG_SOURCE_ANNOTATION, source),
    ];
    let annotations = annotations
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    v1::Pod {
        metadata: ObjectMeta {
            namespace: Some(names.namespace.clone()),
            name: Some(names.name.clone()),
            uid: Some(names.uid.0.clone()),
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        },
        spec: pod.spec.as_ref().map(v1_spec),
        status: None,
    }
}

fn v1_spec(spec: &Spec) -> v1::PodSpec {
    v1::PodSpec {
        init_containers: spec.init_containers.as_deref().map(v1_containers),
        containers: spec
            .containers
            .as_deref()
            .map(v1_containers)
            .unwrap_or_default(),
        overhead: spec.overhead.as_ref().map(quantities),
        resources: spec.resources.as_ref().map(requirements),
        priority: spec.priority,
        ..v1::PodSpec::default()
    }
}

fn v1_containers(containers: &[Container]) -> Vec<v1::Container> {
    let each = containers.iter().map(|it| v1::Container {
        name: it.name.clone(),
        restart_policy: it.restart_policy.clone(),
        resources: it.resources.as_ref().map(requirements),
        ..v1::Container::default()
    });
    each.collect()
}

fn requirements(resources: &Resources) -> v1::ResourceRequirements {
    v1::ResourceRequirements {
        requests: resources.requests.as_ref().map(quantities),
        limits: resources.limits.as_ref().map(quantities),
        ..v1::ResourceRequirements::default()
    }
}

fn quantities(amounts: &Amounts) -> BTreeMap<String, Quantity> {
    let each = amounts.iter().map(|(name, amount)| {
        let text = match amount {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (name.clone(), Quantity(text))
    });
    each.collect()
}
