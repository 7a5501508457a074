//! A pod as the agent decides about it: a v1.Pod whose quantities, names and durations have been
//! checked. Made by `Pod::try_from(&v1::Pod)`, which reports every fault with its field path.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::quantity::Quantity;

/// `metadata.uid`: unique over time, unlike the name. Free of `/` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub String);

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Resource name (`cpu`, `memory`, `hugepages-2Mi`, ...) to amount.
pub type ResourceList = BTreeMap<String, Quantity>;

/// `resources` of a container or of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// One environment variable, after `valueFrom.fieldRef` has been resolved, before `$(VAR)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    pub value: String,
}

/// A volume that the agent can provide without a mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub source: VolumeSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// `None` is the node's default medium; `size_limit` in bytes.
    EmptyDir {
        memory: bool,
        size_limit: Option<u64>,
    },
    HostPath {
        path: String,
    },
    /// Any other kind, by its field name in `spec.volumes[]`.
    Other {
        kind: String,
    },
}

/// A container of the pod, init containers and sidecars included.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Only for init containers: `restartPolicy: Always`, which makes it a sidecar.
    pub is_sidecar: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub restart_policy: RestartPolicy,
    pub termination_grace: Duration,
    /// In declaration order, sidecars among them.
    pub init_containers: Vec<Container>,
    pub containers: Vec<Container>,
    pub overhead: ResourceList,
    /// Pod-level resources (KEP-2837); `None` when `spec.resources` is absent, which is not the
    /// same as present and empty.
    pub resources: Option<Resources>,
    pub volumes: Vec<Volume>,
}

impl Pod {
    /// `namespace/name`, as Kubernetes prints it.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
