//! Environment variables of containers: `value`, `fieldRef` and `resourceFieldRef` become text;
//! `$(NAME)` and the address of the node are left to whoever starts the container.
//!
//! There is no API server to ask for config maps and secrets. A manifest that needs one is at
//! fault, unless the reference is optional; of an API server's pod the variable is left out with a
//! warning, since such a pod is only looked at.

use k8s_openapi::api::core::v1;

use super::check::is_qualified_name;
use super::convert::{ContainerKind, is_huge_pages, quantity};
use super::findings::{Findings, NEGATIVE};
use super::node_requirements::KEY_RULE;
use super::{CONFIG_SOURCE_ANNOTATION, Container, EnvVar, Pod, PodOrigin, ResourceList};
use crate::model::quantity::Quantity;

/// Fields with addresses of a pod and its node.
const ADDRESSES: [&str; 4] = [
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// What a variable can have of its pod, beside labels and annotations (`validEnvDownwardAPIFieldPathExpressions`).
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// The same of its resources, beside huge pages.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Annotations that kubelet gives a static pod (pkg/kubelet/config, v1.36).
const ANNOTATIONS_OF_KUBELET: [&str; 3] = [
    "kubernetes.io/config.hash",
    "kubernetes.io/config.seen",
    CONFIG_SOURCE_ANNOTATION,
];

/// Fills `env` of every container of `pod`, which is otherwise complete. `allocatable`: as of [`Pod::from_manifest`].
pub(super) fn resolve(
    source: &v1::Pod,
    pod: &mut Pod,
    allocatable: Option<&ResourceList>,
    found: &mut Findings,
) {
    let env = |kind: ContainerKind, found: &mut Findings| -> Vec<Vec<EnvVar>> {
        let resolver = Resolver {
            source,
            pod,
            allocatable,
            own: kind,
        };
        let spec = source.spec.iter();
        spec.flat_map(|it| kind.of(it))
            .map(|(path, it)| resolver.container(it, &path, found))
            .collect()
    };
    let init = env(ContainerKind::Init, found);
    let regular = env(ContainerKind::Regular, found);
    let containers = pod.init_containers.iter_mut().chain(&mut pod.containers);
    for (container, env) in containers.zip(init.into_iter().chain(regular)) {
        container.env = env;
    }
}

struct Resolver<'a> {
    source: &'a v1::Pod,
    pod: &'a Pod,
    allocatable: Option<&'a ResourceList>,
    own: ContainerKind,
}

impl Resolver<'_> {
    fn container(
        &self,
        container: &v1::Container,
        path: &str,
        found: &mut Findings,
    ) -> Vec<EnvVar> {
        for (i, it) in container.env_from.iter().flatten().enumerate() {
            let why = match (&it.config_map_ref, &it.secret_ref) {
                (None, None) => Some("must specify one of: `configMapRef` or `secretRef`"),
                (Some(_), Some(_)) => Some("may not have more than one field specified at a time"),
                _ => None,
            };
            if let Some(why) = why {
                found.invalid(format!("{path}.envFrom"), "", why);
            }
            let path = format!("{path}.envFrom[{i}]");
            if let Some(it) = &it.config_map_ref {
                self.external(&path, "configMapRef", it.optional, found);
            }
            if let Some(it) = &it.secret_ref {
                self.external(&path, "secretRef", it.optional, found);
            }
        }
        container
            .env
            .iter()
            .flatten()
            .enumerate()
            .filter_map(|(i, it)| self.variable(container, it, &format!("{path}.env[{i}]"), found))
            .collect()
    }

    fn variable(
        &self,
        container: &v1::Container,
        variable: &v1::EnvVar,
        path: &str,
        found: &mut Findings,
    ) -> Option<EnvVar> {
        let name = variable.name.clone();
        if name.is_empty() {
            found.required(format!("{path}.name"), "");
        } else if !name
            .bytes()
            .all(|it| matches!(it, b' '..=b'~') && it != b'=')
        {
            found.invalid(
                format!("{path}.name"),
                name.as_str(),
                "must consist only of printable ASCII characters other than '='",
            );
        }
        let value = match &variable.value_from {
            None => variable.value.clone().unwrap_or_default(),
            Some(from) => {
                let path = format!("{path}.valueFrom");
                let has_value = variable.value.as_ref().is_some_and(|it| !it.is_empty());
                let why_not = why_not_one(from, has_value);
                if let Some(why) = why_not {
                    found.invalid(path.as_str(), "", why);
                } else if self.is_node_address(from) {
                    return Some(EnvVar {
                        is_node_address: true,
                        ..EnvVar::new(name, "")
                    });
                }
                // Kubelet expands `$(NAME)` in `value` alone: what a field holds is taken as it is.
                let value = self.value_from(container, from, &path, found);
                let value = value.filter(|_| why_not.is_none())?;
                value.replace('$', "$$")
            }
        };
        if value.contains('\0') {
            found.invalid(
                format!("{path}.value"),
                value.as_str(),
                "must not hold a NUL byte",
            );
        }
        let from = variable.value_from.as_ref();
        let is_of_resources =
            from.is_some_and(|it| it.field_ref.is_none() && it.resource_field_ref.is_some());
        Some(EnvVar {
            is_of_resources,
            ..EnvVar::new(name, value)
        })
    }

    /// Of a pod that runs here, unless its status says otherwise.
    fn is_node_address(&self, from: &v1::EnvVarSource) -> bool {
        let status = self.source.status.as_ref();
        let is_known = |field: &str| {
            let of = |it: &v1::PodStatus| match field {
                "status.hostIP" => it.host_ip.is_some(),
                "status.podIP" => it.pod_ip.is_some(),
                "status.hostIPs" => it.host_ips.is_some(),
                _ => it.pod_ips.is_some(),
            };
            status.is_some_and(of)
        };
        let field = from.field_ref.as_ref().filter(|it| is_of_v1(it));
        let field = field.map(|it| it.field_path.as_str());
        let field = field.filter(|it| ADDRESSES.contains(it));
        self.pod.origin == PodOrigin::Manifest && field.is_some_and(|it| !is_known(it))
    }

    /// Each reference is judged, where there are several of which none counts.
    fn value_from(
        &self,
        container: &v1::Container,
        from: &v1::EnvVarSource,
        path: &str,
        found: &mut Findings,
    ) -> Option<String> {
        let field = from.field_ref.as_ref();
        let field = field.and_then(|it| self.field_ref(it, &format!("{path}.fieldRef"), found));
        let resource = from.resource_field_ref.as_ref();
        let resource = resource.and_then(|it| {
            self.resource(container, it, &format!("{path}.resourceFieldRef"), found)
        });
        if let Some(it) = &from.config_map_key_ref {
            self.external(path, "configMapKeyRef", it.optional, found);
        }
        if let Some(it) = &from.secret_key_ref {
            self.external(path, "secretKeyRef", it.optional, found);
        }
        if let Some(it) = &from.file_key_ref {
            self.external(path, "fileKeyRef", it.optional, found);
        }
        field.or(resource)
    }

    /// `path`: of the reference.
    fn field_ref(
        &self,
        field: &v1::ObjectFieldSelector,
        path: &str,
        found: &mut Findings,
    ) -> Option<String> {
        if is_of_v1(field) {
            return self.field(&field.field_path, path, found);
        }
        let version = field.api_version.as_deref().unwrap_or_default();
        let why = format!("unsupported pod version: {version}");
        found.invalid(format!("{path}.fieldPath"), field.field_path.as_str(), &why);
        None
    }

    /// A value that only the API server or a volume could give.
    fn external(&self, path: &str, field: &str, optional: Option<bool>, found: &mut Findings) {
        let path = format!("{path}.{field}");
        if optional == Some(true) || self.pod.origin == PodOrigin::Api {
            found.warn(path, "is not resolved; its variables are left out");
        } else {
            let why = match field {
                "fileKeyRef" => "its file may be written after the pod is let in",
                "configMapRef" | "configMapKeyRef" => "static pods may not reference configmaps",
                _ => "static pods may not reference secrets",
            };
            found.forbidden(path, &format!("{why}; give a value, or mark it optional"));
        }
    }

    /// `path`: of the reference.
    fn field(&self, field: &str, path: &str, found: &mut Findings) -> Option<String> {
        let pod = self.pod;
        let status = self.source.status.as_ref();
        let of_field = format!("{path}.fieldPath");
        let mut or_empty = |value: Option<String>| {
            if value.is_none() {
                let message = format!("{field} is not known; the variable is empty");
                found.warn(&of_field, message);
            }
            Some(value.unwrap_or_default())
        };
        match field {
            "metadata.name" => Some(pod.name.clone()),
            "metadata.namespace" => Some(pod.namespace.clone()),
            "metadata.uid" => Some(pod.uid.0.clone()),
            // The first is its name of old (pkg/apis/core/pods/helpers.go, v1.36: `ConvertDownwardAPIFieldLabel`).
            "spec.host" | "spec.nodeName" => or_empty(pod.node_name.clone()),
            "" => {
                found.required(of_field, "");
                None
            }
            "spec.serviceAccountName" => Some(
                self.source
                    .spec
                    .as_ref()
                    .and_then(|it| it.service_account_name.clone())
                    .unwrap_or_default(),
            ),
            "status.hostIP" => or_empty(status.and_then(|it| it.host_ip.clone())),
            "status.podIP" => or_empty(status.and_then(|it| it.pod_ip.clone())),
            "status.hostIPs" => or_empty(status.and_then(|it| {
                Some(joined(
                    it.host_ips.as_ref()?.iter().map(|it| it.ip.as_str()),
                ))
            })),
            "status.podIPs" => {
                or_empty(status.and_then(|it| {
                    Some(joined(it.pod_ips.as_ref()?.iter().map(|it| it.ip.as_str())))
                }))
            }
            "metadata.annotations"
            | "metadata.labels"
            | "spec.restartPolicy"
            | "spec.schedulerName"
            | "status.phase" => {
                found.unsupported(of_field, field, &FIELDS);
                None
            }
            _ => match subscript(field) {
                Some(("metadata.labels", key)) if !is_qualified_name(key) => {
                    found.invalid(path, key, KEY_RULE);
                    None
                }
                Some(("metadata.annotations", key)) if !is_qualified_name(&key.to_lowercase()) => {
                    found.invalid(path, key, KEY_RULE);
                    None
                }
                // A key that is missing gives an empty variable, as with kubelet.
                Some(("metadata.labels", key)) => {
                    Some(pod.labels.get(key).cloned().unwrap_or_default())
                }
                Some(("metadata.annotations", key)) => {
                    let value = pod.annotations.get(key).cloned();
                    match ANNOTATIONS_OF_KUBELET.contains(&key) {
                        true => or_empty(value),
                        false => Some(value.unwrap_or_default()),
                    }
                }
                _ => {
                    found.invalid(of_field, field, "is not a field for variables");
                    None
                }
            },
        }
    }

    fn resource(
        &self,
        container: &v1::Container,
        from: &v1::ResourceFieldSelector,
        path: &str,
        found: &mut Findings,
    ) -> Option<String> {
        let container = self.container_named(from.container_name.as_deref(), container);
        if container.is_none() {
            let name = from.container_name.as_deref().unwrap_or_default();
            found.not_found(format!("{path}.containerName"), name);
        }
        let divisor = match &from.divisor {
            Some(it) if !it.0.is_empty() => quantity(it, &format!("{path}.divisor"), found),
            _ => Some(Quantity::ZERO),
        };
        let (is_limit, name) = match from.resource.split_once('.') {
            Some(("limits", name)) if is_exposed(name) => (true, name),
            Some(("requests", name)) if is_exposed(name) => (false, name),
            _ => {
                let path = format!("{path}.resource");
                match from.resource.as_str() {
                    "" => found.required(path, ""),
                    other => found.unsupported(path, other, &RESOURCES),
                }
                return None;
            }
        };
        let divisor = divisor?;
        if divisor.is_negative() {
            found.invalid(format!("{path}.divisor"), divisor.to_string(), NEGATIVE);
            return None;
        }
        let container = container?;
        let list = match is_limit {
            true => &container.resources.limits,
            false => &container.resources.requests,
        };
        // Nobody has more huge pages than its limit.
        let has_default = is_limit && !is_huge_pages(name);
        let own = list.get(name);
        let amount = match has_default {
            // 0 is none.
            true => own
                .filter(|it| !it.is_zero())
                .or_else(|| self.default_limit(name))
                .or(own),
            false => own,
        };
        let is_of_node = has_default && self.pod.origin == PodOrigin::Manifest;
        match amount {
            Some(amount) => Some(divided(amount, &divisor, name)),
            None if is_of_node && self.allocatable.is_none() => {
                let why = format!("container {} has no such limit", container.name);
                found.invalid(format!("{path}.resource"), from.resource.as_str(), &why);
                None
            }
            None => Some("0".to_owned()),
        }
    }

    /// That of a container without one of its own: its pod's, where 0 is none, or what the node has for pods
    /// (pkg/kubelet/kubelet_resources.go, v1.36: `defaultPodLimitsForDownwardAPI`).
    fn default_limit(&self, name: &str) -> Option<&Quantity> {
        let of_pod = self.pod.resources.as_ref();
        let of_pod = of_pod.and_then(|it| it.limits.get(name));
        let of_pod = of_pod.filter(|it| !it.is_zero() && matches!(name, "cpu" | "memory"));
        of_pod.or_else(|| self.allocatable?.get(name))
    }

    /// A container of the pod: the one named, else the one that holds the variable.
    fn container_named(&self, name: Option<&str>, own: &v1::Container) -> Option<&Container> {
        match name.filter(|it| !it.is_empty()) {
            Some(name) => self.pod.all_containers().find(|it| it.name == name),
            None => {
                let list = match self.own {
                    ContainerKind::Init => &self.pod.init_containers,
                    ContainerKind::Regular => &self.pod.containers,
                };
                list.iter().find(|it| it.name == own.name)
            }
        }
    }
}

/// Why it is not clear where a value is from (`validateEnvVarValueFrom`).
fn why_not_one(from: &v1::EnvVarSource, has_value: bool) -> Option<&'static str> {
    let sources = [
        from.field_ref.is_some(),
        from.resource_field_ref.is_some(),
        from.config_map_key_ref.is_some(),
        from.secret_key_ref.is_some(),
        from.file_key_ref.is_some(),
    ];
    match sources.iter().filter(|is_given| **is_given).count() {
        0 => Some(
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        _ if has_value => Some("may not be specified when `value` is not empty"),
        1 => None,
        _ => Some("may not have more than one field specified at a time"),
    }
}

fn is_of_v1(field: &v1::ObjectFieldSelector) -> bool {
    matches!(field.api_version.as_deref(), None | Some("" | "v1"))
}

fn joined<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

/// `metadata.labels['app']` to `("metadata.labels", "app")`.
fn subscript(field: &str) -> Option<(&str, &str)> {
    let (name, rest) = field.split_once("['")?;
    Some((name, rest.strip_suffix("']")?))
}

fn is_exposed(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// In units of the divisor, rounded up; 0 divides by 1. CPU is counted in thousandths first.
fn divided(amount: &Quantity, divisor: &Quantity, resource: &str) -> String {
    let (amount, divisor) = if resource == "cpu" {
        (
            amount.millis(),
            if divisor.is_zero() {
                1000
            } else {
                divisor.millis()
            },
        )
    } else {
        (
            amount.units(),
            if divisor.is_zero() {
                1
            } else {
                divisor.units()
            },
        )
    };
    amount.div_ceil(divisor).to_string()
}
