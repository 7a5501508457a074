//! Devices that plugins offer (device plugin API v1beta1), and what a container gets with them.
//!
//! What several resources give one container is put together first one wins, in the order of
//! resource names (kubelet's order is random: pkg/kubelet/cm/devicemanager/pod_devices.go, v1.36,
//! `deviceRunContainerOptions`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::numa::NumaMask;

/// A device as its plugin offers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Unique within its resource, never empty.
    pub id: String,
    pub is_healthy: bool,
    /// `None`: the plugin says nothing of the place. Empty: it does, and names no NUMA node from 0
    /// to 63; some plugins send -1 for "unknown".
    pub numa: Option<NumaMask>,
}

/// What a plugin wants to be asked (v1beta1.DevicePluginOptions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginOptions {
    /// PreStartContainer before each start of a container with its devices.
    pub pre_start_required: bool,
    pub has_preferred_allocation: bool,
}

/// What a plugin was refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// Of the API.
    Version,
    ResourceName,
    /// Not the name of a socket where sockets of plugins are.
    Endpoint,
    /// It cannot be reached, or does not answer.
    Unreachable,
    /// Its list of devices is not one that a plugin may send.
    Devices,
    /// As many resources have a plugin as may have one.
    TooMany,
}

impl RefusalReason {
    pub const ALL: &[Self] = &[
        Self::Version,
        Self::ResourceName,
        Self::Endpoint,
        Self::Unreachable,
        Self::Devices,
        Self::TooMany,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::ResourceName => "resource_name",
            Self::Endpoint => "endpoint",
            Self::Unreachable => "unreachable",
            Self::Devices => "devices",
            Self::TooMany => "too_many",
        }
    }
}

/// What a container gets with its devices (v1beta1.ContainerAllocateResponse), in the plugin's
/// order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerResponse {
    pub envs: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<DeviceNode>,
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified CDI names, as `vendor.example/gpu=0`.
    pub cdi_devices: Vec<String>,
}

/// A host path that shall be seen in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub container_path: String,
    pub host_path: String,
    pub is_read_only: bool,
}

/// A device node that the container may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    pub container_path: String,
    pub host_path: String,
    /// Of `r`, `w` and `m` (make the node); empty gives no access.
    pub permissions: String,
}

/// The responses of several resources as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDevices {
    pub envs: BTreeMap<String, String>,
    /// By path in the container.
    pub mounts: BTreeMap<String, Mount>,
    /// By path in the container.
    pub devices: BTreeMap<String, DeviceNode>,
    pub annotations: BTreeMap<String, String>,
    /// Each once, in the order of the resources.
    pub cdi_devices: Vec<String>,
    /// What was left out because another value was there first.
    pub conflicts: Vec<Conflict>,
}

/// A value that lost against an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Whose value was left out.
    pub resource: String,
    pub what: GivenKind,
    /// Name of the variable or annotation, path in the container.
    pub key: String,
}

/// Kinds of things that a container gets with devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenKind {
    Env,
    Mount,
    Device,
    Annotation,
}

impl fmt::Display for GivenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Env => "environment variable",
            Self::Mount => "mount at",
            Self::Device => "device at",
            Self::Annotation => "annotation",
        })
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            what,
            key,
        } = self;
        write!(f, "{what} {key} of {resource} differs from an earlier one")
    }
}

impl ContainerDevices {
    /// Puts responses together by resource name. Equal values are no conflict.
    pub fn merge<'a>(
        responses: impl IntoIterator<Item = (&'a str, &'a ContainerResponse)>,
    ) -> Self {
        let ordered: BTreeMap<_, _> = responses.into_iter().collect();
        let mut merged = Self::default();
        for (resource, response) in ordered {
            merged.add(resource, response);
        }
        merged
    }

    fn add(&mut self, resource: &str, response: &ContainerResponse) {
        let mut refused = Vec::new();
        for (name, value) in &response.envs {
            if !put(&mut self.envs, name, value) {
                refused.push((GivenKind::Env, name));
            }
        }
        for mount in &response.mounts {
            if !put(&mut self.mounts, &mount.container_path, mount) {
                refused.push((GivenKind::Mount, &mount.container_path));
            }
        }
        for device in &response.devices {
            if !put(&mut self.devices, &device.container_path, device) {
                refused.push((GivenKind::Device, &device.container_path));
            }
        }
        for (name, value) in &response.annotations {
            if !put(&mut self.annotations, name, value) {
                refused.push((GivenKind::Annotation, name));
            }
        }
        for name in &response.cdi_devices {
            if !self.cdi_devices.contains(name) {
                self.cdi_devices.push(name.clone());
            }
        }
        let conflict = |(what, key): (GivenKind, &String)| Conflict {
            resource: resource.to_owned(),
            what,
            key: key.clone(),
        };
        self.conflicts.extend(refused.into_iter().map(conflict));
    }
}

/// False: another value is there.
fn put<T: Clone + PartialEq>(map: &mut BTreeMap<String, T>, key: &str, value: &T) -> bool {
    match map.entry(key.to_owned()) {
        Entry::Occupied(there) => there.get() == value,
        Entry::Vacant(place) => {
            place.insert(value.clone());
            true
        }
    }
}

/// Whether a plugin may offer a resource of this name: `domain/name` outside Kubernetes' own
/// domains, and a qualified name with `requests.` in front, as quotas spell it (IsExtendedResourceName
/// of Kubernetes).
pub fn is_extended_resource_name(name: &str) -> bool {
    /// DNS subdomain of at most 253 bytes, less those of `requests.`.
    const MAX_DOMAIN: usize = 253 - "requests.".len();
    const MAX_NAME: usize = 63;
    let Some((domain, rest)) = name.split_once('/') else {
        return false;
    };
    let is_lower = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
    let is_subdomain = domain.split('.').all(|it| is_framed(it, is_lower, b"-"));
    !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && domain.len() <= MAX_DOMAIN
        && is_subdomain
        && rest.len() <= MAX_NAME
        && is_framed(rest, |it| it.is_ascii_alphanumeric(), b"-_.")
}

/// Not empty, of bytes that are plain at both ends, and plain or of `inner` between.
fn is_framed(text: &str, is_plain: impl Fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let are_ends_plain = bytes.first().is_some_and(|it| is_plain(*it))
        && bytes.last().is_some_and(|it| is_plain(*it));
    are_ends_plain && bytes.iter().all(|it| is_plain(*it) || inner.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_of_a_plugin_has_a_domain_of_its_own() {
        let long = format!("example.com/{}", "a".repeat(63));
        let too_long = format!("example.com/{}", "a".repeat(64));
        let domain = format!("{}/a", vec!["a"; 122].join("."));
        let long_domain = format!("{}/a", vec!["a"; 123].join("."));
        for (name, expected) in [
            ("example.com/gpu", true),
            ("example.com/Gpu_1.5-x", true),
            ("e/g", true),
            (long.as_str(), true),
            (domain.as_str(), true),
            (too_long.as_str(), false),
            (long_domain.as_str(), false),
            ("", false),
            ("cpu", false),
            ("/gpu", false),
            ("example.com/", false),
            ("example.com/a/b", false),
            ("example.com/-a", false),
            ("Example.com/gpu", false),
            ("exa_mple.com/gpu", false),
            ("example..com/gpu", false),
            ("kubernetes.io/gpu", false),
            ("sub.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/g\u{fc}", false),
        ] {
            assert_eq!(is_extended_resource_name(name), expected, "{name}");
        }
    }

    fn mount(container_path: &str, host_path: &str) -> Mount {
        Mount {
            container_path: container_path.to_owned(),
            host_path: host_path.to_owned(),
            is_read_only: false,
        }
    }

    #[test]
    fn the_first_resource_by_name_wins_and_the_other_is_told() {
        let env = |value: &str| BTreeMap::from([("V".to_owned(), value.to_owned())]);
        let a = ContainerResponse {
            envs: env("a"),
            mounts: vec![mount("/m", "/host/a"), mount("/m", "/host/twice")],
            cdi_devices: vec!["v/c=1".to_owned()],
            ..ContainerResponse::default()
        };
        let b = ContainerResponse {
            envs: env("b"),
            mounts: vec![mount("/m", "/host/a"), mount("/n", "/host/b")],
            cdi_devices: vec!["v/c=1".to_owned(), "v/c=2".to_owned()],
            ..ContainerResponse::default()
        };
        let merged = ContainerDevices::merge([("x/b", &b), ("x/a", &a)]);
        assert_eq!(merged.envs, env("a"));
        assert_eq!(merged.mounts["/m"].host_path, "/host/a");
        assert_eq!(merged.mounts["/n"].host_path, "/host/b");
        assert_eq!(merged.cdi_devices, ["v/c=1", "v/c=2"]);
        let conflicts: Vec<_> = merged.conflicts.iter().map(ToString::to_string).collect();
        assert_eq!(
            conflicts,
            [
                "mount at /m of x/a differs from an earlier one",
                "environment variable V of x/b differs from an earlier one",
            ]
        );
    }
}
