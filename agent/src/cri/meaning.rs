//! What answers and events of a runtime mean: pure functions from messages to names, those of images too.
//!
//! kubelet gives every sandbox and every container labels with the names of its pod. Whoever lacks them was made by
//! somebody else, and is nobody here.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::grpc::messages::cri::{
    Container, ContainerEventResponse, ContainerMetadata, ImageSpec, PodSandbox, label,
};
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::runtime_names::{Identified, Role};

type Labels = BTreeMap<String, String>;

/// Whom lists name. A container is of the pod of its sandbox; one whose sandbox is in no list goes by its own
/// labels. Sandboxes come first.
pub(super) fn of_lists(sandboxes: &[PodSandbox], containers: &[Container]) -> Vec<Identified> {
    let pods: BTreeMap<&str, Arc<PodRef>> = sandboxes
        .iter()
        .filter_map(|it| Some((it.id.as_str(), pod(&it.labels)?)))
        .collect();
    let of_sandboxes = sandboxes.iter().filter_map(|it| {
        let pod = Arc::clone(pods.get(it.id.as_str())?);
        Some(sandbox(&it.id, pod))
    });
    let of_containers = containers.iter().filter_map(|it| {
        let joined = pods.get(it.pod_sandbox_id.as_str()).cloned();
        let pod = joined.or_else(|| pod(&it.labels))?;
        let (metadata, image) = (it.metadata.as_ref(), it.image.as_ref());
        container(&it.id, pod, metadata, image, &it.labels)
    });
    of_sandboxes.chain(of_containers).collect()
}

/// Whom an event names: the sandbox, and all containers of it.
pub(super) fn of_event(event: &ContainerEventResponse) -> Vec<Identified> {
    let of_sandbox = event.pod_sandbox_status.as_ref();
    let of_sandbox = of_sandbox.and_then(|it| Some((it, pod(&it.labels)?)));
    let of_containers = event.containers_statuses.iter().filter_map(|it| {
        let joined = of_sandbox.as_ref().map(|(_, pod)| Arc::clone(pod));
        let pod = joined.or_else(|| pod(&it.labels))?;
        let (metadata, image) = (it.metadata.as_ref(), it.image.as_ref());
        container(&it.id, pod, metadata, image, &it.labels)
    });
    let sandbox = of_sandbox
        .iter()
        .map(|(it, pod)| sandbox(&it.id, Arc::clone(pod)));
    sandbox.chain(of_containers).collect()
}

fn sandbox(id: &str, pod: Arc<PodRef>) -> Identified {
    Identified {
        id: id.to_owned(),
        pod,
        role: Role::Sandbox,
    }
}

/// `None`: it has no name.
fn container(
    id: &str,
    pod: Arc<PodRef>,
    metadata: Option<&ContainerMetadata>,
    image: Option<&ImageSpec>,
    labels: &Labels,
) -> Option<Identified> {
    let named = metadata.map(|it| it.name.as_str());
    let name = named.filter(|it| !it.is_empty());
    let name = name.or_else(|| text(labels, label::CONTAINER_NAME))?;
    Some(Identified {
        id: id.to_owned(),
        pod,
        role: Role::Container {
            name: name.into(),
            attempt: metadata.map_or(0, |it| it.attempt),
            image: image.and_then(image_name),
        },
    })
}

/// As cAdvisor shows it. `None`: the image has no name.
fn image_name(image: &ImageSpec) -> Option<Arc<str>> {
    let names = [&image.image, &image.user_specified_image];
    let name = names
        .into_iter()
        .find(|it| !it.is_empty() && !is_image_id(it))?;
    Some(whole_image_name(name).into())
}

fn is_image_id(name: &str) -> bool {
    let digits = name.strip_prefix("sha256:").unwrap_or(name);
    digits.len() == 64 && digits.bytes().all(|it| it.is_ascii_hexdigit())
}

/// With its registry and with either a tag or a digest, as runtimes keep it (github.com/distribution/reference v0.6.0:
/// `ParseDockerRef`).
fn whole_image_name(name: &str) -> String {
    let (tagged, digest) = match name.split_once('@') {
        Some((tagged, digest)) => (tagged, Some(digest)),
        None => (name, None),
    };
    let (path, tag) = match tagged.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        // If there is a colon, it is that of a port.
        _ => (tagged, "latest"),
    };
    let is_registry = |it: &str| it.contains(['.', ':']) || it == "localhost";
    let (registry, path) = match path.split_once('/') {
        Some((first, path)) if is_registry(first) => (first, path),
        _ => ("docker.io", path),
    };
    let library = match registry == "docker.io" && !path.contains('/') {
        true => "library/",
        false => "",
    };
    match digest {
        Some(digest) => format!("{registry}/{library}{path}@{digest}"),
        None => format!("{registry}/{library}{path}:{tag}"),
    }
}

/// `None`: kubelet has not made it.
fn pod(labels: &Labels) -> Option<Arc<PodRef>> {
    Some(Arc::new(PodRef {
        namespace: text(labels, label::POD_NAMESPACE)?.to_owned(),
        name: text(labels, label::POD_NAME)?.to_owned(),
        uid: PodUid(text(labels, label::POD_UID)?.to_owned()),
    }))
}

fn text<'a>(labels: &'a Labels, name: &str) -> Option<&'a str> {
    let text = labels.get(name)?;
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests;
