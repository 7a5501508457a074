//! The API server as a source of pods.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::time::WallTime;

/// How it is, for the status document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerStatus {
    /// Who is asked for pods.
    #[serde(default, skip_serializing_if = "PodsFrom::is_api_server")]
    pub from: PodsFrom,
    /// Its URL; `None`: the file that names it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Whose pods are asked for.
    pub node: String,
    /// Since when pods are shown as it had them then. `None`: they are shown as it has them, or it has never told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_since: Option<WallTime>,
    /// Why it tells nothing now; what it told stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// `None`: none are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsStatus>,
}

/// Who tells of the pods of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodsFrom {
    #[default]
    ApiServer,
    Kubelet,
}

impl PodsFrom {
    pub fn is_api_server(&self) -> bool {
        *self == Self::ApiServer
    }

    /// As it is called where its URL is not known.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ApiServer => "the API server",
            Self::Kubelet => "kubelet",
        }
    }
}

/// Of the OOM kills since the agent started, how many it was told by Events. One that is the matter of a pod and of the
/// node counts for both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsStatus {
    pub sent: u64,
    /// Told by an Event of the node, as some of many.
    pub folded: u64,
    /// Not told: they waited too long, were too many, or the API server did not take them.
    pub dropped: u64,
    /// Not told yet.
    pub waiting: u64,
    /// Why none can be written now, or why one waits or was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// What a kubelet is run by, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldSettings {
    /// Where it said so, an URL.
    pub url: String,
    /// Of KubeletConfiguration, with its command line and its defaults in them.
    pub fields: Map<String, Value>,
}

/// One question that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub verb: ApiVerb,
    pub resource: ApiResource,
    pub answer: ApiAnswer,
    /// To the end of the answer; of a watch, to its beginning.
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVerb {
    Get,
    List,
    Watch,
    Create,
    Patch,
}

impl ApiVerb {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Patch => "patch",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiResource {
    Pods,
    Events,
    /// Those of a node, of its kubelet.
    NodesPods,
    /// The settings of its kubelet.
    NodesConfigz,
}

impl ApiResource {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Events => "events",
            Self::NodesPods => "nodes/pods",
            Self::NodesConfigz => "nodes/configz",
        }
    }
}

/// How a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiAnswer {
    /// With what was asked for.
    Good,
    /// Refused, with this HTTP status.
    Refused(u16),
    /// Not at all, or not in time, or by what nobody understands.
    None,
}

impl ApiServerStatus {
    pub fn is_followed(&self) -> bool {
        self.fault.is_none()
    }

    /// All pods were told, now or before.
    pub fn has_told(&self) -> bool {
        self.is_followed() || self.stale_since.is_some()
    }
}
