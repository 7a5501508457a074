//! What the agent remembers of a pod across its own restart: the accepted definition, what became
//! of its containers, and the wish to end it.
//!
//! A manifest says what should be; this says what was begun. Without it a pod that has succeeded
//! would run again, and one whose manifest went away while the agent was down would be killed
//! without its grace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lifecycle::BackoffState;
use crate::model::admission::Admission;
use crate::model::container::{ContainerStatus, Deletion, DeletionReason, PodPhase};
use crate::model::eviction::Eviction;
use crate::model::pod::Pod;
use crate::model::time::WallTime;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    /// Times in here belong to this boot.
    pub boot_id: String,
    pub pod: Pod,
    /// When the agent accepted the pod, `status.startTime` of Kubernetes.
    pub accepted_at: WallTime,
    pub containers: Vec<ContainerStatus>,
    pub deletion: Option<Deletion>,
    /// It ends as failed, and stays known until its definition goes. The first one stays.
    #[serde(default)]
    pub eviction: Option<Eviction>,
    #[serde(default)]
    pub admission: Admission,
    pub backoff: BackoffState,
    pub phase: PodPhase,
    /// OOM kills among all processes of a container, over its restarts; by container name.
    pub oom_kills: BTreeMap<String, u64>,
}

impl PodState {
    /// The kind and format version of the file that holds it.
    pub const KIND: &'static str = "pod";
    pub const VERSION: u32 = 1;

    pub fn new(pod: Pod, boot_id: String, accepted_at: WallTime) -> Self {
        let containers = pod
            .init_containers
            .iter()
            .chain(&pod.containers)
            .map(|it| ContainerStatus::not_started(&it.name))
            .collect();
        Self {
            boot_id,
            pod,
            accepted_at,
            containers,
            deletion: None,
            eviction: None,
            admission: Admission::Open,
            backoff: BackoffState::default(),
            phase: PodPhase::Pending,
            oom_kills: BTreeMap::new(),
        }
    }

    /// When the pod has to end, and why: it was evicted, its definition is gone, or both.
    pub fn ending(&self) -> Option<Deletion> {
        let evicted = self.eviction.as_ref().map(|it| Deletion {
            requested_at: it.at,
            grace: it.victim.grace,
            reason: DeletionReason::Evicted,
        });
        match (evicted, self.deletion) {
            (Some(evicted), Some(removed)) => Some(evicted.merge(removed)),
            (evicted, removed) => evicted.or(removed),
        }
    }

    pub fn container_mut(&mut self, name: &str) -> Option<&mut ContainerStatus> {
        self.containers.iter_mut().find(|it| it.name == name)
    }
}
