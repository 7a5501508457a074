//! A `v1.Pod` as the API server sends it, as far as it is read. The rest of it, by far the greater part, is passed
//! over and takes no memory. A server written in Go sends null for what is empty.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::Value;

/// Resource name to quantity, as it is written: text, or a number, which Kubernetes takes too. One that is neither must
/// not keep the other pods of its list from being read.
pub type Amounts = BTreeMap<String, Value>;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodObject {
    #[serde(default)]
    pub metadata: Metadata,
    pub spec: Option<Spec>,
    pub status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub creation_timestamp: Option<Time>,
    pub annotations: Option<Annotations>,
    pub labels: Option<Labels>,
    pub owner_references: Option<Vec<Owner>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Annotations {
    /// On the mirror of a static pod: the UID of that pod, which is that of its cgroup
    /// (pkg/kubelet/types/pod_update.go, `ConfigMirrorAnnotationKey`).
    #[serde(rename = "kubernetes.io/config.mirror")]
    pub mirror: Option<String>,
    /// From where kubelet has the pod: `api`, or a source of static pods. Only kubelet can be believed
    /// (pkg/kubelet/types/pod_update.go, `ConfigSourceAnnotationKey`).
    #[serde(rename = "kubernetes.io/config.source")]
    pub source: Option<String>,
    /// What OpenShift puts on the pods of a DeploymentConfig, whose ReplicationControllers are named by it and a number
    /// (openshift/api, apps/v1/consts.go, `DeploymentConfigAnnotation`).
    #[serde(rename = "openshift.io/deployment-config.name")]
    pub deployment_config: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Labels {
    /// What the Deployment controller puts on the pods of a ReplicaSet, and at the end of its name
    /// (pkg/controller/deployment/sync.go).
    #[serde(rename = "pod-template-hash")]
    pub deployment_hash: Option<String>,
    /// The same of Argo Rollouts.
    #[serde(rename = "rollouts-pod-template-hash")]
    pub rollout_hash: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Owner {
    pub kind: String,
    pub name: String,
    pub controller: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub node_name: Option<String>,
    pub init_containers: Option<Vec<Container>>,
    pub containers: Option<Vec<Container>>,
    pub ephemeral_containers: Option<Vec<Container>>,
    pub overhead: Option<Amounts>,
    /// Of the pod as a whole (KEP-2837).
    pub resources: Option<Resources>,
    /// The number of its class, which the API server puts in.
    pub priority: Option<i32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub restart_policy: Option<String>,
    pub resources: Option<Resources>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Resources {
    pub requests: Option<Amounts>,
    pub limits: Option<Amounts>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub phase: Option<String>,
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
    pub container_statuses: Option<Vec<ContainerStatus>>,
    pub ephemeral_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    #[serde(default)]
    pub restart_count: i32,
    pub last_state: Option<ContainerState>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ContainerState {
    pub terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Terminated {
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
}
