//! What must hold of a pod's names and between its fields. Source of the rules: the API server's
//! validation (Kubernetes 1.36, core/validation), as far as it concerns fields used here.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1;

use super::convert::{ContainerKind, is_huge_pages, key_path};
use super::findings::{Findings, NEGATIVE};
use super::totals::is_pod_level_resource;
use super::{
    Container, Overhead, Pod, PodLevel, PodOrigin, ResourceList, Resources, VolumeSource, Weight,
};
use crate::model::device::is_extended_resource_name;
use crate::model::quantity::Quantity;

/// Longest DNS label (RFC 1123).
const MAX_LABEL: usize = 63;
/// Longest DNS subdomain that Kubernetes takes.
const MAX_SUBDOMAIN: usize = 253;
/// The cgroup directory is `pod<uid>`, below 255 bytes even with the prefixes of a slice name.
const MAX_UID: usize = 128;

/// Lower-case letters, digits and inner dashes, 1..=63 of them.
fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL
        && !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text
            .bytes()
            .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-')
}

/// Names of most objects, nodes among them.
pub fn is_dns_subdomain(text: &str) -> bool {
    // A part of a subdomain may be longer than a label; only the whole is bounded.
    text.len() <= MAX_SUBDOMAIN
        && text.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part
                    .bytes()
                    .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-')
        })
}

/// A name of up to 63 characters, with a DNS subdomain and `/` before it or not: the key of a label, or
/// a resource.
pub fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// The value of a label: letters, digits and inner dashes, dots and underscores, at most 63 of them.
pub(super) fn is_label_value(text: &str) -> bool {
    let is_outer = |it: u8| it.is_ascii_alphanumeric();
    text.len() <= MAX_LABEL
        && text.bytes().next().is_none_or(is_outer)
        && text.bytes().next_back().is_none_or(is_outer)
        && text
            .bytes()
            .all(|it| is_outer(it) || matches!(it, b'-' | b'.' | b'_'))
}

/// Of a manifest, init containers among them. Arbitrary, far above what pods have: each end of a container is a
/// decision about its whole pod, so three thousand in one held up the node for a minute.
pub(super) const MAX_CONTAINERS: usize = 200;

/// Of a limit, bytes: what a shell or a `sleep` takes with the kernel's part of it.
const LEAST_MEMORY: i64 = 256 << 10;

const LABEL_RULE: &str = "must be a lowercase RFC 1123 label: at most 63 of a-z, 0-9 and inner -";
pub(super) const SUBDOMAIN_RULE: &str =
    "must be a lowercase RFC 1123 subdomain: labels joined by dots";

/// Names that become paths and keys, whatever the origin.
pub(super) fn identity(pod: &Pod, found: &mut Findings) {
    let uid = &pod.uid.0;
    if uid.is_empty() {
        found.required("metadata.uid", "");
    } else if uid.len() > MAX_UID
        || !uid
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-')
        || uid.starts_with('-')
        || uid.ends_with('-')
    {
        let rule = format!("must be at most {MAX_UID} letters, digits and inner dashes");
        found.invalid("metadata.uid", uid.as_str(), &rule);
    }
    if pod.name.is_empty() {
        found.required("metadata.name", "");
    } else if !is_dns_subdomain(&pod.name) {
        found.invalid("metadata.name", pod.name.as_str(), SUBDOMAIN_RULE);
    }
    if !is_dns_label(&pod.namespace) {
        found.invalid("metadata.namespace", pod.namespace.as_str(), LABEL_RULE);
    }
    if pod.containers.is_empty() {
        found.required("spec.containers", "");
    }
    let n_containers = pod.all_containers().count();
    if n_containers > MAX_CONTAINERS && pod.origin == PodOrigin::Manifest {
        found.fault(
            "spec.containers",
            format!(
                "Too many: {n_containers}: must have at most {MAX_CONTAINERS} items, with \
                 spec.initContainers"
            ),
        );
    }
    // Of two of one name the init container is at fault.
    let mut containers: Vec<_> = containers(pod).collect();
    containers.rotate_left(pod.init_containers.len());
    let mut seen = BTreeSet::new();
    for (i, (path, container)) in containers.into_iter().enumerate() {
        let (name, path) = (container.name.as_str(), format!("{path}.name"));
        if seen.contains(name) {
            found.duplicate(path.clone(), name);
        }
        // Init containers without a name are no duplicates of each other.
        if !name.is_empty() || i < pod.containers.len() {
            seen.insert(name);
        }
        if name.is_empty() {
            found.required(path, "");
        } else if !is_dns_label(name) {
            found.invalid(path, name, LABEL_RULE);
        }
    }
}

/// Every container with its field path.
fn containers(pod: &Pod) -> impl Iterator<Item = (String, &Container)> {
    [
        ("initContainers", &pod.init_containers),
        ("containers", &pod.containers),
    ]
    .into_iter()
    .flat_map(|(field, list)| {
        list.iter()
            .enumerate()
            .map(move |(i, it)| (format!("spec.{field}[{i}]"), it))
    })
}

/// Amounts below zero, by which sums would be too small, in what somebody else has checked.
pub(super) fn negative_amounts(pod: &Pod, found: &mut Findings) {
    let of_containers = containers(pod).flat_map(|(path, it)| {
        let Resources { requests, limits } = &it.resources;
        [("requests", requests), ("limits", limits)]
            .map(|(field, list)| (format!("{path}.resources.{field}"), list))
    });
    let lists = of_containers.chain([("spec.overhead".to_owned(), &pod.overhead)]);
    for (path, list) in lists {
        for (name, amount) in list.iter().filter(|(_, it)| it.is_negative()) {
            found.invalid(key_path(&path, name), amount.to_string(), NEGATIVE);
        }
    }
}

/// Relations between fields, which the API server has checked for its own pods.
pub(super) fn relations(pod: &Pod, spec: &v1::PodSpec, found: &mut Findings) {
    debug_assert_eq!(pod.origin, PodOrigin::Manifest);
    let mut volume_names = BTreeSet::new();
    for (i, volume) in pod.volumes.iter().enumerate() {
        let (name, path) = (volume.name.as_str(), format!("spec.volumes[{i}].name"));
        if name.is_empty() {
            found.required(path, "");
        } else if !is_dns_label(name) {
            found.invalid(path, name, LABEL_RULE);
        } else if !volume_names.insert(name) {
            found.duplicate(path, name);
        }
    }
    let kinds = [ContainerKind::Init, ContainerKind::Regular];
    let sources = kinds.into_iter().flat_map(|it| it.of(spec));
    for ((path, container), (_, source)) in containers(pod).zip(sources) {
        let at = format!("{path}.resources");
        resources(&container.resources, &at, container_resource, found);
        let mut mount_paths = BTreeSet::new();
        for (i, mount) in source.volume_mounts.iter().flatten().enumerate() {
            let (volume, mount_path) = (mount.name.as_str(), mount.mount_path.as_str());
            let path = format!("{path}.volumeMounts[{i}]");
            if volume.is_empty() {
                found.required(format!("{path}.name"), "");
            }
            if !volume_names.contains(volume) {
                found.not_found(format!("{path}.name"), volume);
            }
            elsewhere(pod, mount, &path, found);
            if mount_path.is_empty() {
                found.required(format!("{path}.mountPath"), "");
            }
            if !mount_paths.insert(mount_path) {
                found.invalid(format!("{path}.mountPath"), mount_path, "must be unique");
            }
            let mut devices = source.volume_devices.iter().flatten();
            if devices.clone().any(|it| it.name == volume) {
                let rule = "must not already exist in volumeDevices";
                found.invalid(format!("{path}.name"), volume, rule);
            }
            if devices.any(|it| it.device_path == mount_path) {
                let rule = "must not already exist as a path in volumeDevices";
                found.invalid(format!("{path}.mountPath"), mount_path, rule);
            }
            let sub_path = mount.sub_path.as_deref().unwrap_or_default();
            if sub_path.starts_with('/') {
                found.invalid(
                    format!("{path}.subPath"),
                    sub_path,
                    "must be a relative path",
                );
            }
            if has_backsteps(sub_path) {
                found.invalid(format!("{path}.subPath"), sub_path, BACKSTEPS);
            }
        }
        let user = format!("{path}.securityContext.runAsUser");
        match container.run_as_user {
            Some(0) if container.run_as_non_root => {
                found.invalid(user, 0, "is root, which runAsNonRoot forbids");
            }
            None if container.run_as_non_root => found.weigh(
                Weight::Stops,
                user,
                "is missing, so nothing can be started: runAsNonRoot forbids root, and the process runtime uses no \
                 images",
            ),
            _ => {}
        }
    }
    huge_pages_alone(&[&pod.overhead], "spec.overhead", found);
    amounts(&pod.overhead, "spec.overhead", container_resource, found);
    let is_of_windows = spec.os.as_ref().is_some_and(|it| it.name == "windows");
    if let Some(own) = pod.resources.as_ref().filter(|_| !is_of_windows) {
        resources(own, "spec.resources", pod_resource, found);
        let mut limited = pod.limits(PodLevel::Ignored, Overhead::Left).amounts;
        limited.retain(|name, _| is_huge_pages(name));
        for (field, sums, own) in [
            ("requests", pod.container_requests(), &own.requests),
            ("limits", limited, &own.limits),
        ] {
            for (name, sum) in &sums {
                if let Some(amount) = own.get(name)
                    && sum > amount
                {
                    let path = key_path(&format!("spec.resources.{field}"), name);
                    let rule = format!(
                        "must be greater than or equal to aggregate container {field} of {sum}"
                    );
                    found.invalid(path, amount.to_string(), &rule);
                }
            }
        }
        // An init container may have more than its pod.
        for (path, container) in containers(pod).skip(pod.init_containers.len()) {
            for (name, limit) in &container.resources.limits {
                if let Some(pods) = own.limits.get(name)
                    && limit > pods
                {
                    found.invalid(
                        key_path(&format!("{path}.resources.limits"), name),
                        limit.to_string(),
                        &format!("must be less than or equal to pod limits of {pods}"),
                    );
                }
            }
        }
    }
}

/// Nothing is mounted, so a volume is where a container asks for it by chance alone.
fn elsewhere(pod: &Pod, mount: &v1::VolumeMount, path: &str, found: &mut Findings) {
    let asked_for = |volume: &str| match mount.sub_path.as_deref().unwrap_or_default() {
        "" => volume.to_owned(),
        sub_path => format!("{}/{sub_path}", volume.trim_end_matches('/')),
    };
    let volume = pod.volumes.iter().find(|it| it.name == mount.name);
    let place = match volume.map(|it| &it.source) {
        Some(VolumeSource::HostPath { path, .. }) => {
            let place = asked_for(path);
            if Path::new(&place) == Path::new(&mount.mount_path) {
                return;
            }
            format!("at `{place}`")
        }
        Some(VolumeSource::EmptyDir { .. }) => {
            asked_for(&format!("$BALLAST_POD_DIR/volumes/{}", mount.name))
        }
        // Told of the volume.
        Some(VolumeSource::Other { .. }) | None => return,
    };
    found.warn(
        format!("{path}.mountPath"),
        format!("is ignored: the process runtime mounts nothing, so the volume is {place}"),
    );
}

/// Judges the name of a resource, which is at this path.
type NameRule = fn(&str, &str, &mut Findings);

fn resources(own: &Resources, path: &str, judge_name: NameRule, found: &mut Findings) {
    huge_pages_alone(&[&own.requests, &own.limits], path, found);
    if let Some(limit) = own.limits.get("memory")
        && (1..LEAST_MEMORY).contains(&limit.value())
    {
        found.weigh(
            Weight::Stops,
            key_path(&format!("{path}.limits"), "memory"),
            format!("`{limit}` bytes are less than any program needs, so nothing will start"),
        );
    }
    for (field, list) in [("requests", &own.requests), ("limits", &own.limits)] {
        amounts(list, &format!("{path}.{field}"), judge_name, found);
    }
    for (name, request) in &own.requests {
        let (of_requests, of_limits) = (format!("{path}.requests"), format!("{path}.limits"));
        match own.limits.get(name) {
            Some(limit) if request != limit && !can_be_overcommitted(name) => {
                let rule = format!("must be equal to {name} limit of {limit}");
                found.invalid(of_requests, request.to_string(), &rule);
            }
            Some(limit) if request > limit => {
                let rule = format!("must be less than or equal to {name} limit of {limit}");
                found.invalid(of_requests, request.to_string(), &rule);
            }
            None if !can_be_overcommitted(name) => {
                let rule = format!("{name} needs a limit of {request} as well");
                found.required(of_limits, &rule);
            }
            Some(_) | None => {}
        }
    }
}

/// Huge pages are charged beside the memory of a cgroup, never instead of it.
fn huge_pages_alone(lists: &[&ResourceList], path: &str, found: &mut Findings) {
    let mut names = lists.iter().flat_map(|it| it.keys());
    if names.clone().any(|it| is_huge_pages(it)) && !names.any(|it| it == "cpu" || it == "memory") {
        found.forbidden(path, "HugePages require cpu or memory");
    }
}

fn amounts(list: &ResourceList, path: &str, judge_name: NameRule, found: &mut Findings) {
    for (name, amount) in list {
        let (path, text) = (key_path(path, name), amount.to_string());
        let whole = Quantity::from_units(amount.value(), amount.format());
        let is_whole = *amount == whole || amount.value() == i64::MAX;
        if amount.is_negative() {
            found.invalid(path.clone(), text.clone(), NEGATIVE);
        }
        if matches!(name.as_str(), "memory" | "ephemeral-storage") && !is_whole {
            let message = format!(
                "fractional byte value {text:?} counts as {}",
                amount.value()
            );
            found.note(path.clone(), message);
        }
        judge_name(name, &path, found);
        let is_counted = is_extended_resource_name(name) || COUNTED.contains(&name.as_str());
        if is_counted && !is_whole {
            found.invalid(path, text, "must be an integer");
        } else if let Some(size) = name.strip_prefix("hugepages-")
            && !are_whole_pages(amount, size)
        {
            let rule = format!("{text} is not positive integer multiple of {name}");
            found.invalid(path, text, &rule);
        }
    }
}

/// `IsHugePageResourceValueDivisible` (pkg/apis/core/helper/helpers.go, v1.36)
fn are_whole_pages(amount: &Quantity, size: &str) -> bool {
    size.parse::<Quantity>().is_ok_and(|it| {
        it.is_positive()
            && it.milli_value() % 1000 == 0
            && amount.units().is_multiple_of(it.units())
    })
}

/// `validateContainerResourceName`
fn container_resource(name: &str, path: &str, found: &mut Findings) {
    let is_known = match name.contains('/') {
        true if is_native(name) => is_qualified_name(name),
        true => is_extended_resource_name(name),
        false => {
            matches!(name, "cpu" | "memory" | "ephemeral-storage")
                || is_huge_pages(name) && is_qualified_name(name)
        }
    };
    if !is_known {
        let rule =
            "must be a standard resource for containers, or one with a domain, as gpu.example/a";
        found.invalid(path, name, rule);
    }
}

/// What a quota may bound by number.
const COUNTED: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// `validatePodResourceName`: a name that only quotas have is one too.
fn pod_resource(name: &str, path: &str, found: &mut Findings) {
    let in_quota = name.strip_prefix("requests.").unwrap_or(name);
    let is_known = name.contains('/')
        || COUNTED.contains(&name)
        || matches!(in_quota, "cpu" | "memory" | "ephemeral-storage" | "storage")
        || matches!(
            name,
            "limits.cpu" | "limits.memory" | "limits.ephemeral-storage"
        )
        || is_huge_pages(in_quota);
    if !is_known || !is_qualified_name(name) {
        let rule = "must be a standard resource type or fully qualified";
        found.invalid(path, name, rule);
    } else if !is_pod_level_resource(name) {
        found.unsupported(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Only these may have a limit above the request.
fn can_be_overcommitted(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

pub(super) const BACKSTEPS: &str = "must not contain '..'";

/// It leads to somewhere else than it seems to.
pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|it| it == "..")
}
