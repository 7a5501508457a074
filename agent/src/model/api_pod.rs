//! A pod as the API server has it, as far as it is shown: what its cgroups do not tell.

pub mod object;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::pod::{Overhead, Pod, PodLevel, ResourceList, Unnamed};
use super::quantity::Quantity;
use super::record::PodRef;
use super::status::ResourceBounds;
use super::workload::Workload;

/// A pod that was bound to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiPod {
    /// With the UID of its cgroup: that of a static pod is not the one of its mirror on the API server.
    pub pod: Arc<PodRef>,
    /// Of a static pod.
    pub is_mirror: bool,
    pub workload: Arc<Workload>,
    /// Nothing of it runs and nothing will: its phase is `Succeeded` or `Failed`.
    pub is_over: bool,
    /// `Err`: why it cannot be known what it asks for.
    pub definition: Result<Definition, String>,
    /// In the order of the specification, init containers first, ephemeral ones last.
    pub containers: Vec<ApiContainer>,
}

/// What a pod asks for and what kubelet ranks it by: sums, made when the API server tells of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    /// Of the pod as a whole, with its overhead.
    pub requests: ResourceList,
    /// What kubelet compares its use of memory with, when it has to choose who goes.
    pub memory_request: Quantity,
    /// 0 where none is given.
    pub priority: i32,
    /// kubelet never evicts it.
    pub is_critical: bool,
    /// Requests of each container, by its name; limits are not in them.
    pub containers: Vec<(Arc<str>, ResourceBounds)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiContainer {
    pub name: Arc<str>,
    pub role: ContainerRole,
    /// As kubelet has told of it; the newest first.
    pub instances: Vec<ApiInstance>,
}

/// A container of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiInstance {
    /// Whole, as its cgroup has it.
    pub id: String,
    /// How often the pod has started a container of this name before.
    pub attempt: u32,
}

/// What a container is to its pod, by the list of the specification that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerRole {
    Init,
    /// An init container with `restartPolicy: Always` (KEP-753).
    Sidecar,
    Main,
    /// Added to a running pod, for a look at it (KEP-277).
    Ephemeral,
}

impl ContainerRole {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Sidecar => "sidecar",
            Self::Main => "main",
            Self::Ephemeral => "ephemeral",
        }
    }
}

impl fmt::Display for ContainerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Definition {
    /// By kubelet's rules.
    pub fn of(pod: &Pod) -> Self {
        let containers = pod.all_containers().map(|it| {
            let requests = ResourceBounds::of_requests(&it.resources.requests);
            (it.name.as_str().into(), requests)
        });
        Self {
            requests: pod.requests(PodLevel::Honoured, Overhead::Added),
            memory_request: pod.request_to_rank("memory", Unnamed::Nothing),
            priority: pod.priority.unwrap_or(0),
            is_critical: pod.is_critical(),
            containers: containers.collect(),
        }
    }

    /// What the container of this name requests; `None`: it can request nothing, as an ephemeral one.
    pub fn requests_of(&self, container: &str) -> Option<ResourceBounds> {
        let mut containers = self.containers.iter();
        let (_, requests) = containers.find(|(name, _)| **name == *container)?;
        Some(*requests)
    }
}

impl ApiPod {
    pub fn container(&self, name: &str) -> Option<&ApiContainer> {
        self.containers.iter().find(|it| &*it.name == name)
    }

    /// Whether kubelet has told of a container of the runtime.
    pub fn has_instance(&self, id: &str) -> bool {
        let mut instances = self.containers.iter().flat_map(|it| &it.instances);
        instances.any(|it| it.id == id)
    }
}
