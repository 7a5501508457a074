//! Events on the API server: written one at a time, as core/v1 objects that have the fields of both APIs, so that
//! every kubectl sorts them by when they happened last.
//!
//! Nothing is read: who may create and patch Events need not be allowed to get them. What an object of an earlier
//! agent counts is told by a patch that changes nothing.

use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::core::response::reason;
use kube::{Client, Error};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::asked::{Late, asked};
use super::back_off::BackOff;
use super::connect::{self, Connection, said};
use super::{ANSWER, Settings, Sink, Told, code};
use crate::model::api_pod::ContainerRole;
use crate::model::api_server::{ApiResource, ApiVerb};
use crate::model::kube_event::{DETAILS, Outcome, Regarding, Write, WriteKind};
use crate::model::time::WallTime;
use crate::sys::{chain, clock};

/// Who tells: shown by kubectl as where an Event is from, and what marks an object as ours.
const CONTROLLER: &str = "ballast.dev/agent";
const COMPONENT: &str = "ballast";

/// Longest name of who reports (pkg/apis/core/validation/events.go, `ReportingInstanceLengthLimit`).
const LONGEST_INSTANCE: usize = 128;

/// Annotation that tells the objects of a name apart that agents have made one after the other.
const INSTANCE: &str = "ballast.dev/instance";

/// kubelet and all others tell of nodes there.
const NAMESPACE_OF_NODES: &str = "default";

/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// Cause of a refusal in a namespace that is on its way out
/// (staging/src/k8s.io/api/core/v1/types.go, `NamespaceTerminatingCause`).
const TERMINATING: &str = "NamespaceTerminating";

/// It may be tried again.
enum Unwritten {
    /// The API server has answered.
    Refused(String),
    /// It has not, or has too much to do.
    Unreached(String),
}

/// Writes until it is dropped.
pub(super) struct Writer {
    settings: Settings,
    sink: Sink,
    writes: mpsc::Receiver<Write>,
    connection: Option<Connection>,
    back_off: BackOff,
    fault: Option<String>,
    /// Of this agent, among those that run one after the other.
    instance: String,
}

impl Writer {
    pub(super) fn new(settings: Settings, sink: Sink, writes: mpsc::Receiver<Write>) -> Self {
        Self {
            settings,
            sink,
            writes,
            connection: None,
            back_off: BackOff::new(),
            fault: None,
            instance: clock::boottime().as_nanos().to_string(),
        }
    }

    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let Some(write) = self.writes.recv().await else {
                return std::future::pending().await;
            };
            let outcome = match self.write(&write).await {
                Ok(outcome) => {
                    self.back_off.reset();
                    self.set_fault(None);
                    outcome
                }
                // Others may be taken.
                Err(Unwritten::Refused(why)) => {
                    self.back_off.reset();
                    self.set_fault(Some(why));
                    Outcome::Failed
                }
                Err(Unwritten::Unreached(why)) => {
                    // The files that say how it is reached may have changed.
                    self.connection = None;
                    self.set_fault(Some(why));
                    self.back_off.wait(Duration::ZERO).await;
                    Outcome::Failed
                }
            };
            (self.sink)(Told::Written(outcome));
        }
    }

    fn set_fault(&mut self, fault: Option<String>) {
        if fault != self.fault {
            self.fault.clone_from(&fault);
            (self.sink)(Told::EventsFault(fault));
        }
    }

    async fn write(&mut self, write: &Write) -> Result<Outcome, Unwritten> {
        let client = self.client().await?;
        let events = Api::<Event>::namespaced(client, namespace(write));
        let name = name(write, &self.settings.node);
        match write.kind {
            WriteKind::Create => {
                let object = object(write, &name, &self.settings.node, &self.id(write));
                let parameters = PostParams::default();
                match self
                    .ask(ApiVerb::Create, events.create(&parameters, &object))
                    .await?
                {
                    Ok(_) => Ok(Outcome::Written),
                    Err(Error::Api(status))
                        if is(&status, code::CONFLICT, reason::ALREADY_EXISTS) =>
                    {
                        self.found(&events, &name, write).await
                    }
                    Err(error) => refused(ApiVerb::Create, &error),
                }
            }
            WriteKind::Patch => {
                match self
                    .patch(&events, &name, &changes(write, &self.id(write)))
                    .await?
                {
                    Ok(_) => Ok(Outcome::Written),
                    Err(Error::Api(status)) if is(&status, code::NOT_FOUND, reason::NOT_FOUND) => {
                        Ok(Outcome::Gone)
                    }
                    Err(error) => refused(ApiVerb::Patch, &error),
                }
            }
        }
    }

    async fn client(&mut self) -> Result<Client, Unwritten> {
        let kept = self.connection.take().filter(|it| !it.is_over());
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let connected = connect::connect(&self.settings).await;
                connected.map_err(|it| Unwritten::Unreached(chain(&it)))?
            }
        };
        Ok(self.connection.insert(connection).client.clone())
    }

    /// Of the object, among all of all agents.
    fn id(&self, write: &Write) -> String {
        format!("{}-{}", self.instance, write.id)
    }

    /// What there is under the name.
    async fn found(
        &self,
        events: &Api<Event>,
        name: &str,
        write: &Write,
    ) -> Result<Outcome, Unwritten> {
        match self.patch(events, name, &json!({})).await? {
            Ok(event) if event.reporting_component.as_deref() == Some(CONTROLLER) => {
                let count = event.count.and_then(|it| u64::try_from(it).ok());
                let annotations = event.metadata.annotations.unwrap_or_default();
                Ok(Outcome::Exists {
                    count: count.unwrap_or(0),
                    is_own: annotations.get(INSTANCE) == Some(&self.id(write)),
                })
            }
            Ok(_) => {
                tracing::warn!(
                    name,
                    "an Event of somebody else has the name of one of ours"
                );
                Ok(Outcome::Never)
            }
            Err(error @ Error::Api(_)) => Err(Unwritten::Refused(why(ApiVerb::Patch, &error))),
            Err(error) => refused(ApiVerb::Patch, &error),
        }
    }

    async fn patch(
        &self,
        events: &Api<Event>,
        name: &str,
        changes: &Value,
    ) -> Result<Result<Event, Error>, Unwritten> {
        let parameters = PatchParams::default();
        let patch = Patch::Merge(changes);
        self.ask(ApiVerb::Patch, events.patch(name, &parameters, &patch))
            .await
    }

    async fn ask<T>(
        &self,
        verb: ApiVerb,
        asking: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Error>, Unwritten> {
        let what = (verb, ApiResource::Events);
        asked(&self.sink, what, ANSWER, asking)
            .await
            .map_err(|Late| {
                let why = format!("write Events: no answer within {} s", ANSWER.as_secs());
                Unwritten::Unreached(why)
            })
    }
}

fn why(verb: ApiVerb, error: &Error) -> String {
    format!("{} Events: {}", verb.as_str(), said(error))
}

/// Whether it is of use to try again.
fn refused(verb: ApiVerb, error: &Error) -> Result<Outcome, Unwritten> {
    let why = why(verb, error);
    let Error::Api(status) = error else {
        return Err(Unwritten::Unreached(why));
    };
    let is_faulty = is(status, code::BAD_REQUEST, reason::BAD_REQUEST)
        || is(status, code::UNPROCESSABLE, reason::INVALID);
    if is_faulty {
        tracing::warn!(error = why, "the API server does not take an Event");
    }
    let is_nowhere = is(status, code::NOT_FOUND, reason::NOT_FOUND)
        || status.code == code::FORBIDDEN && is_terminating(status);
    match status.code {
        _ if is_faulty || is_nowhere => Ok(Outcome::Never),
        code::UNAUTHORIZED | code::TOO_MANY | code::INTERNAL.. => Err(Unwritten::Unreached(why)),
        _ => Err(Unwritten::Refused(why)),
    }
}

/// Said by the API server itself: a proxy on the way has the same codes.
fn is(status: &Status, code: u16, reason: &str) -> bool {
    status.code == code && status.reason == reason
}

fn is_terminating(status: &Status) -> bool {
    let details = status.details.iter();
    let mut causes = details.flat_map(|it| &it.causes);
    causes.any(|it| it.reason == TERMINATING)
}

fn namespace(of: &Write) -> &str {
    match &of.regarding {
        Regarding::Pod { pod, .. } => &pod.namespace,
        Regarding::Node => NAMESPACE_OF_NODES,
    }
}

/// The same for whoever tells the same of the same, so that the next agent goes on with the object.
fn name(of: &Write, node: &str) -> String {
    let (subject, uid, container) = match &of.regarding {
        Regarding::Pod { pod, container } => {
            (pod.name.as_str(), pod.uid.0.as_str(), container.as_deref())
        }
        Regarding::Node => (node, node, None),
    };
    let mut hash = Sha256::new();
    for part in [uid, container.unwrap_or_default(), of.reason.as_str(), node] {
        hash.update(part);
        hash.update([0]);
    }
    let hash: String = hash.finalize()[..8]
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();
    let longest = subject.floor_char_boundary(LONGEST_NAME - hash.len() - 1);
    let subject = subject[..longest].trim_end_matches(['.', '-']);
    format!("{subject}.{hash}")
}

fn object(of: &Write, name: &str, node: &str, instance: &str) -> Event {
    let text = |it: &str| Some(it.to_owned());
    Event {
        metadata: ObjectMeta {
            name: text(name),
            namespace: text(namespace(of)),
            annotations: Some(annotations(of, instance).collect()),
            ..ObjectMeta::default()
        },
        involved_object: involved(of, node),
        reason: text(of.reason.as_str()),
        message: Some(of.message.clone()),
        type_: text("Warning"),
        action: text("Observed"),
        source: Some(EventSource {
            component: text(COMPONENT),
            host: text(node),
        }),
        reporting_component: text(CONTROLLER),
        reporting_instance: text(&node[..node.floor_char_boundary(LONGEST_INSTANCE)]),
        count: Some(count(of)),
        event_time: Some(MicroTime(timestamp(of.first))),
        first_timestamp: Some(Time(timestamp(of.first))),
        last_timestamp: Some(Time(timestamp(of.last))),
        ..Event::default()
    }
}

fn changes(of: &Write, instance: &str) -> Value {
    // What the kill before had and this one has not goes.
    let none = DETAILS.map(|it| (format!("ballast.dev/{it}"), Value::Null));
    let mut all: serde_json::Map<_, _> = none.into_iter().collect();
    all.extend(annotations(of, instance).map(|(name, text)| (name, text.into())));
    json!({
        "metadata": {"annotations": all},
        "message": of.message,
        "count": count(of),
        "lastTimestamp": Time(timestamp(of.last)),
    })
}

fn involved(of: &Write, node: &str) -> ObjectReference {
    let text = |it: &str| Some(it.to_owned());
    match &of.regarding {
        Regarding::Pod { pod, container } => ObjectReference {
            api_version: text("v1"),
            kind: text("Pod"),
            namespace: text(&pod.namespace),
            name: text(&pod.name),
            // Of a static pod that of its mirror's annotation, by which kubectl looks for its Events.
            uid: text(&pod.uid.0),
            field_path: container.as_deref().map(|it| field_path(it, of.role)),
            ..ObjectReference::default()
        },
        // As kubelet: by its name, where a UID would be.
        Regarding::Node => ObjectReference {
            kind: text("Node"),
            name: text(node),
            uid: text(node),
            ..ObjectReference::default()
        },
    }
}

fn field_path(container: &str, role: Option<ContainerRole>) -> String {
    let list = match role {
        Some(ContainerRole::Init | ContainerRole::Sidecar) => "initContainers",
        Some(ContainerRole::Ephemeral) => "ephemeralContainers",
        Some(ContainerRole::Main) | None => "containers",
    };
    format!("spec.{list}{{{container}}}")
}

fn annotations(of: &Write, instance: &str) -> impl Iterator<Item = (String, String)> {
    let details = of.details.iter();
    let details = details.map(|(name, text)| (format!("ballast.dev/{name}"), text.clone()));
    details.chain([(INSTANCE.to_owned(), instance.to_owned())])
}

fn count(of: &Write) -> i32 {
    i32::try_from(of.count).unwrap_or(i32::MAX)
}

fn timestamp(at: WallTime) -> Timestamp {
    let micros = i64::try_from(at.since_epoch().as_micros()).ok();
    // Every wall time is within the years of a timestamp.
    let timestamp = micros.and_then(|it| Timestamp::from_microsecond(it).ok());
    timestamp.unwrap_or_default()
}
