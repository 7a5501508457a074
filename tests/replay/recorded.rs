//! What the container runtime, the API server and the kubelet of a real node have said, as messages.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result};
use ballast::grpc::messages::cri::{
    Container, ContainerEventResponse, ContainerMetadata, ContainerStatus, ImageSpec, PodSandbox,
    PodSandboxStatus,
};
use flate2::read::GzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::data;

/// CRI messages under the names of the published proto; what is left out is zero.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Sandbox {
    id: String,
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OfContainer {
    id: String,
    pod_sandbox_id: String,
    metadata: Option<Metadata>,
    image: Option<Image>,
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    attempt: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Image {
    image: String,
    user_specified_image: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event {
    container_id: String,
    container_event_type: Option<String>,
    pod_sandbox_status: Option<Sandbox>,
    containers_statuses: Vec<OfContainer>,
}

impl From<Metadata> for ContainerMetadata {
    fn from(Metadata { name, attempt }: Metadata) -> Self {
        Self { name, attempt }
    }
}

impl From<Image> for ImageSpec {
    fn from(it: Image) -> Self {
        Self {
            image: it.image,
            user_specified_image: it.user_specified_image,
        }
    }
}

pub(crate) fn sandboxes() -> Result<Vec<PodSandbox>> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Sandbox>,
    }
    let list: List = document("cri/list_pod_sandbox.json")?;
    let sandbox = |Sandbox { id, labels }| PodSandbox { id, labels };
    Ok(list.items.into_iter().map(sandbox).collect())
}

pub(crate) fn containers() -> Result<Vec<Container>> {
    #[derive(Deserialize)]
    struct List {
        containers: Vec<OfContainer>,
    }
    let list: List = document("cri/list_containers.json")?;
    let container = |it: OfContainer| Container {
        id: it.id,
        pod_sandbox_id: it.pod_sandbox_id,
        metadata: it.metadata.map(Into::into),
        image: it.image.map(Into::into),
        labels: it.labels,
    };
    Ok(list.containers.into_iter().map(container).collect())
}

/// Each with what has happened: `CREATED`, `STARTED`, `STOPPED` or `DELETED`.
pub(crate) fn container_events() -> Result<Vec<(String, ContainerEventResponse)>> {
    let event = |it: Event| {
        let kind = it.container_event_type;
        // The zero of proto3.
        let kind = kind.unwrap_or_else(|| "CONTAINER_CREATED_EVENT".to_owned());
        let kind = kind.replace("CONTAINER_", "").replace("_EVENT", "");
        let sandbox = it.pod_sandbox_status;
        let statuses = it.containers_statuses.into_iter();
        let event = ContainerEventResponse {
            container_id: it.container_id,
            pod_sandbox_status: sandbox
                .map(|Sandbox { id, labels }| PodSandboxStatus { id, labels }),
            containers_statuses: statuses
                .map(|it| ContainerStatus {
                    id: it.id,
                    metadata: it.metadata.map(Into::into),
                    image: it.image.map(Into::into),
                    labels: it.labels,
                })
                .collect(),
        };
        (kind, event)
    };
    Ok(lines("cri/events.jsonl.gz")?
        .into_iter()
        .map(event)
        .collect())
}

/// What a watch of pods has said, an event each.
pub(crate) fn pod_events() -> Result<Vec<Value>> {
    lines("kube/api_watch.jsonl.gz")
}

/// The pods of a list.
pub(crate) fn pods(path: &str) -> Result<Vec<Value>> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Value>,
    }
    Ok(document::<List>(path)?.items)
}

fn document<T: DeserializeOwned>(path: &str) -> Result<T> {
    let path = data(path);
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    serde_json::from_reader(BufReader::new(file)).with_context(|| path.display().to_string())
}

fn lines<T: DeserializeOwned>(path: &str) -> Result<Vec<T>> {
    let path = data(path);
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    let read = |line: std::io::Result<String>| Ok(serde_json::from_str(&line?)?);
    let all: Result<_> = lines.map(read).collect();
    all.with_context(|| path.display().to_string())
}
