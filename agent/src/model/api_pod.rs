//! A pod as the API server has it, as far as it is shown: what its cgroups do not tell.

pub mod object;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::PodRef;
use super::workload::Workload;

/// A pod that was bound to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiPod {
    /// With the UID of its cgroup: that of a static pod is not the one of its mirror on the API server.
    pub pod: Arc<PodRef>,
    /// Of a static pod.
    pub is_mirror: bool,
    pub workload: Arc<Workload>,
    /// In the order of the specification, init containers first, ephemeral ones last.
    pub containers: Vec<ApiContainer>,
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
