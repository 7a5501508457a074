//! A pod as the agent decides about it: a v1.Pod whose quantities, names and durations have been
//! checked. Made by [`Pod::from_v1`], which reports every fault with its field path.
//!
//! Invariant: a pod made from a manifest has passed the checks that the API server makes of the
//! fields used here, and carries its defaults. A pod from the API server is taken as it comes;
//! only what could not be represented is a fault there.

mod api_value;
mod check;
mod convert;
mod env;
pub mod fields;
mod findings;
pub mod node_requirements;
mod resize;
mod rules;
mod signals;
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use serde::{Deserialize, Serialize};

pub use self::api_value::ApiValue;
pub use self::check::{is_dns_subdomain, is_qualified_name};
use self::node_requirements::NodeRequirements;
pub use self::totals::{Overhead, PodLevel, Totals, Unnamed};
use super::quantity::Quantity;
use super::time::WallTime;
use crate::units::{Bytes, MilliCpu};

/// Annotation naming the source of a static pod (`file`, `http`); `api` for all others.
pub const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Annotation of the API server's copy of a static pod.
pub const CONFIG_MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// `spec.terminationGracePeriodSeconds` when it is not given (Kubernetes API).
pub const DEFAULT_TERMINATION_GRACE: Duration = Duration::from_secs(30);
/// Priority from which a pod is critical to the system (Kubernetes API).
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// What `resizePolicy` has for a resource of which another amount restarts its container.
const RESTART_CONTAINER: &str = "RestartContainer";

/// The two classes that every cluster has (Kubernetes, pkg/apis/scheduling/types.go).
pub const CLUSTER_CRITICAL_CLASS: &str = "system-cluster-critical";
pub const NODE_CRITICAL_CLASS: &str = "system-node-critical";

/// The number of a priority class that every cluster has; `None`: it is another.
pub fn built_in_priority(class: &str) -> Option<i32> {
    match class {
        CLUSTER_CRITICAL_CLASS => Some(SYSTEM_CRITICAL_PRIORITY),
        NODE_CRITICAL_CLASS => Some(SYSTEM_CRITICAL_PRIORITY + 1000),
        _ => None,
    }
}

/// `metadata.uid`: unique over time, unlike the name. Free of `/` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub String);

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One thing wrong with a field, or not honoured in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FieldFault {
    /// As `spec.containers[1].resources.limits.cpu`.
    pub path: String,
    pub message: String,
    /// Of a warning.
    #[serde(default, skip_serializing_if = "Weight::is_usual")]
    pub weight: Weight,
}

/// What a warning makes of what runs; the heaviest come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Weight {
    /// A container does not start.
    Stops,
    #[default]
    Differs,
    /// No difference.
    Minor,
}

impl Weight {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl FieldFault {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
            weight: Weight::default(),
        }
    }
}

/// Resource name (`cpu`, `memory`, `hugepages-2Mi`, ...) to amount.
pub type ResourceList = BTreeMap<String, Quantity>;

/// `None`: the list does not name it.
pub fn cpu_in(list: &ResourceList) -> Option<MilliCpu> {
    list.get("cpu").map(|it| MilliCpu(it.millis()))
}

/// As [`cpu_in`].
pub fn memory_in(list: &ResourceList) -> Option<Bytes> {
    list.get("memory").map(|it| Bytes(it.units()))
}

/// A pod's manifest had another definition under its UID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Redefinition {
    /// When the pod took it.
    pub at: WallTime,
    /// What differs from the definition before, by its paths in the manifest.
    pub fields: Vec<String>,
}

/// `resources` of a container or of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    pub requests: ResourceList,
    pub limits: ResourceList,
}

/// `status.qosClass` (Kubernetes API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub const ALL: [Self; 3] = [Self::Guaranteed, Self::Burstable, Self::BestEffort];
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// `spec.restartPolicy` of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// Where the pod definition comes from; a static pod counts as critical for some rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodOrigin {
    /// A manifest on this node.
    Manifest,
    /// The API server.
    Api,
}

/// One environment variable before `$(VAR)` is expanded; what came from `valueFrom` is escaped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    pub value: String,
    /// It has the address of the node instead, as it is when the container starts: where processes have the network of
    /// the host, that of the pod is the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_node_address: bool,
    /// An amount of resources, by a `resourceFieldRef`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_resources: bool,
}

impl EnvVar {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            is_node_address: false,
            is_of_resources: false,
        }
    }
}

/// A volume that the agent can provide without a mount namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    pub name: String,
    pub source: VolumeSource,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeSource {
    EmptyDir {
        /// On a tmpfs, not on the node's default medium.
        memory: bool,
        /// Bytes.
        size_limit: Option<Quantity>,
    },
    HostPath {
        path: String,
        #[serde(default, skip_serializing_if = "HostPathKind::is_any")]
        kind: HostPathKind,
    },
    /// Any other kind, by its field name in `spec.volumes[]`.
    Other { kind: String },
}

/// What has to be at the path of the host: `hostPath.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostPathKind {
    /// Nobody says.
    #[default]
    Any,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

impl HostPathKind {
    const ALL: [(&'static str, Self); 8] = [
        ("", Self::Any),
        ("DirectoryOrCreate", Self::DirectoryOrCreate),
        ("Directory", Self::Directory),
        ("FileOrCreate", Self::FileOrCreate),
        ("File", Self::File),
        ("Socket", Self::Socket),
        ("CharDevice", Self::CharDevice),
        ("BlockDevice", Self::BlockDevice),
    ];

    /// As the API has it. `None`: there is no such type.
    fn of(text: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, kind)| *kind)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_any(&self) -> bool {
        *self == Self::Any
    }

    /// As kubelet calls it, with its article.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Any => "anything",
            Self::Directory | Self::DirectoryOrCreate => "a directory",
            Self::File | Self::FileOrCreate => "a file",
            Self::Socket => "a socket file",
            Self::CharDevice => "a character device",
            Self::BlockDevice => "a block device",
        }
    }
}

/// A container of the pod, init containers and sidecars included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<EnvVar>,
    pub working_dir: Option<String>,
    pub resources: Resources,
    /// Names of volumes the container mounts, with the path it asks for.
    pub volume_mounts: Vec<(String, String)>,
    /// Parts of volumes that it mounts (`subPath`): the name of the volume, and the path in it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sub_paths: BTreeSet<(String, String)>,
    /// Only for init containers: `restartPolicy: Always`, which makes it a sidecar.
    pub is_sidecar: bool,
    /// `restartPolicy` of the container itself, where it has one that is not that of a sidecar: it
    /// goes before the pod's.
    pub restart_policy: Option<RestartPolicy>,
    /// `securityContext.runAsUser` of the container or else of the pod.
    pub run_as_user: Option<u32>,
    /// `securityContext.runAsGroup` of the container or else of the pod.
    pub run_as_group: Option<u32>,
    /// The container must not start as user 0.
    pub run_as_non_root: bool,
    /// `securityContext.privileged`: every device of the host may be used.
    #[serde(default)]
    pub is_privileged: bool,
    /// Of `cpu` and `memory` those of which another amount restarts the container: they have `RestartContainer` in its
    /// `resizePolicy`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub resize_restarts: BTreeSet<String>,
    /// The number of `lifecycle.stopSignal`, by which it is told to end. `None`: SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<u8>,
    /// What its requests count for while it is being resized in place. `None`: they count as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_requests: Option<ResourceList>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub origin: PodOrigin,
    /// `status.qosClass` as stored at creation; `None` until someone has computed it.
    pub recorded_qos: Option<QosClass>,
    pub priority: Option<i32>,
    pub priority_class_name: Option<String>,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    pub restart_policy: RestartPolicy,
    pub termination_grace: Duration,
    /// In declaration order, sidecars among them.
    pub init_containers: Vec<Container>,
    pub containers: Vec<Container>,
    pub overhead: ResourceList,
    /// Pod-level resources (KEP-2837); `None` when `spec.resources` is absent, which is not the
    /// same as present and empty.
    pub resources: Option<Resources>,
    /// What the pod-level requests count for while the pod is being resized in place. `None`: they count
    /// as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_requests: Option<ResourceList>,
    pub volumes: Vec<Volume>,
    #[serde(default, skip_serializing_if = "NodeRequirements::is_empty")]
    pub node_requirements: NodeRequirements,
    /// Names in `spec.securityContext.sysctls`, as they are written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sysctls: Vec<String>,
    /// `spec.securityContext.supplementalGroups`: of all its processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supplemental_groups: Vec<u32>,
    /// `spec.securityContext.fsGroup`: of all its processes too, and of the volumes that are made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<u32>,
    /// `spec.hostNetwork`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_on_host_network: bool,
    /// `spec.hostPID`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_on_host_pid: bool,
    /// `spec.hostIPC`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_on_host_ipc: bool,
    /// Fields that are set and that the agent does not act on.
    pub warnings: Vec<FieldFault>,
}

impl Pod {
    /// Converts and, for a manifest, defaults and checks. On failure every fault is listed.
    ///
    /// `metadata.uid` must be set: whoever read a manifest without one derives it first. So must
    /// `spec.nodeName` be, if a variable refers to it.
    pub fn from_v1(pod: &v1::Pod, origin: PodOrigin) -> Result<Self, Vec<FieldFault>> {
        convert::pod(pod, origin, None)
    }

    /// The same of a manifest on a node. `allocatable`: what pods may have of it, which variables tell where a container has
    /// no limit; `None`: not known.
    pub fn from_manifest(
        pod: &v1::Pod,
        allocatable: Option<&ResourceList>,
    ) -> Result<Self, Vec<FieldFault>> {
        convert::pod(pod, PodOrigin::Manifest, allocatable)
    }

    /// Init containers in order, then the regular ones.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// From a source on the node and not from the API server.
    pub fn is_static(&self) -> bool {
        match self.annotations.get(CONFIG_SOURCE_ANNOTATION) {
            Some(source) => source != "api",
            None => self.origin == PodOrigin::Manifest,
        }
    }

    /// The API server's copy of a static pod.
    pub fn is_mirror(&self) -> bool {
        self.annotations.contains_key(CONFIG_MIRROR_ANNOTATION)
    }

    /// Static, a mirror, or of system-critical priority: spared by eviction and by swap.
    pub fn is_critical(&self) -> bool {
        self.is_static()
            || self.is_mirror()
            || self
                .priority
                .is_some_and(|it| it >= SYSTEM_CRITICAL_PRIORITY)
    }

    /// `namespace/name`, as Kubernetes prints it.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests;
