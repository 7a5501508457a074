//! Container Runtime Interface v1: of the service `runtime.v1.RuntimeService` what tells whose a container is, and of
//! which image.
//!
//! Messages and fields have the names of the published proto; `cargo xtask cri` compares the numbers and the
//! types.

use std::collections::BTreeMap;

use prost::Message;

/// The version of the API that these messages are of.
pub const API_VERSION: &str = "v1";

/// Paths of the methods.
pub mod path {
    pub const VERSION: &str = "/runtime.v1.RuntimeService/Version";
    pub const LIST_POD_SANDBOX: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
    pub const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
    pub const GET_CONTAINER_EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
}

/// Labels that kubelet gives to every container and every sandbox (`pkg/kubelet/types/labels.go`, v1.36).
pub mod label {
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

#[derive(Clone, PartialEq, Message)]
pub struct VersionRequest {
    #[prost(string, tag = "1")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct VersionResponse {
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// Not looked at: cri-dockerd has named that of Docker's own API there. Kubelet does not look at it either.
    #[prost(string, tag = "4")]
    pub runtime_api_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxFilter {
    /// Also the beginning of an id, if it is of one alone.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub state: Option<PodSandboxStateValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStateValue {
    #[prost(enumeration = "PodSandboxState", tag = "1")]
    pub state: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum PodSandboxState {
    SandboxReady = 0,
    SandboxNotready = 1,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<PodSandboxFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerFilter {
    /// Also the beginning of an id, if it is of one alone.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub state: Option<ContainerStateValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStateValue {
    #[prost(enumeration = "ContainerState", tag = "1")]
    pub state: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    ContainerCreated = 0,
    ContainerRunning = 1,
    ContainerExited = 2,
    ContainerUnknown = 3,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    /// How often the pod has started a container of this name before, as far as the runtime knows.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageSpec {
    /// In lists of containerd an id, in its events a name.
    #[prost(string, tag = "1")]
    pub image: String,
    /// As the pod has it. Empty: kubelet has not told the runtime, or the runtime does not tell it.
    #[prost(string, tag = "18")]
    pub user_specified_image: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    pub image: Option<ImageSpec>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetEventsRequest {}

/// What happened does not matter here: each event tells who there is.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerEventResponse {
    /// Of a container, or of a sandbox.
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(message, optional, tag = "4")]
    pub pod_sandbox_status: Option<PodSandboxStatus>,
    /// Of all containers of the sandbox.
    #[prost(message, repeated, tag = "5")]
    pub containers_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatus {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "8")]
    pub image: Option<ImageSpec>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub labels: BTreeMap<String, String>,
}
