//! What a container runtime tells of the cgroups that it makes: whose they are. And how the runtime itself is.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::PodRef;

/// A container or a sandbox, with its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// Whole, as its cgroup has it.
    pub id: String,
    pub pod: Arc<PodRef>,
    pub role: Role,
}

/// What an id is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// What holds the namespaces of a pod: no container of its specification.
    Sandbox,
    Container {
        name: Arc<str>,
        /// How often the pod has started a container of this name before, as far as the runtime knows.
        attempt: u32,
        /// With its registry; `None`: the runtime does not name it.
        image: Option<Arc<str>>,
    },
}

/// The container runtime as a source of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStatus {
    /// The socket that answers, or the one that does not. `None`: none was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// As the runtime calls itself. `None`, as in the next: it has never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub follows: Follows,
    /// Why it gives no names now; those that it gave stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Why it told no events when it was asked for them last: the code and the text of its refusal. `None`: it tells
    /// them, it has none, or they are not wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_refused: Option<String>,
    /// Events that came faster than they were looked at, since the start. Each loss is answered by a list.
    #[serde(default)]
    pub dropped_events: u64,
}

/// How what is new becomes known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Follows {
    /// Not at all: the runtime does not answer.
    #[default]
    Nothing,
    Events,
    /// The runtime tells no events, refuses them, or they are not wanted: it is asked for each new id, and for lists.
    Lists,
}

impl RuntimeStatus {
    /// The names that pods have been given are of it, and no fault keeps it from giving more.
    pub fn is_connected(&self) -> bool {
        self.name.is_some() && self.fault.is_none()
    }

    /// `containerd 2.1.9`; `None`: it has never answered.
    pub fn runtime(&self) -> Option<String> {
        let name = self.name.as_deref()?;
        let version = self.version.as_deref().unwrap_or_default();
        Some(format!("{name} {version}").trim_end().to_owned())
    }
}
