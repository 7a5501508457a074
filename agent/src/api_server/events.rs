//! Events on the API server: written one at a time, as core/v1 objects that have the fields of both APIs, so that
//! every kubectl sorts them by when they happened last.
//!
//! Nothing is read: who may create and patch Events need not be allowed to get them. What an object of an earlier
//! agent counts is told by a patch that changes nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube_core::params::{Patch, PatchParams, PostParams};
use kube_core::response::reason;
use kube_core::{Request, request};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::ask::{self, ApiError, Question, asked};
use super::back_off::BackOff;
use super::connect::{Connection, Connector, Transport};
use super::{Patience, Sink, Told, code};
use crate::model::api_pod::ContainerRole;
use crate::model::api_server::{ApiResource, ApiVerb};
use crate::model::kube_event::{DETAILS, MAX_MESSAGE, Outcome, Regarding, Write, WriteKind};
use crate::model::time::WallTime;
use crate::sys::{chain, clock};

/// Who tells: shown by kubectl as where an Event is from, and what marks an object as ours.
const CONTROLLER: &str = "ballast.dev/agent";
const COMPONENT: &str = "ballast";

/// Longest name of who reports (pkg/apis/core/validation/events.go, `ReportingInstanceLengthLimit`).
const LONGEST_INSTANCE: usize = 128;

/// Annotation that tells the objects of a name apart that agents have made one after the other.
const INSTANCE: &str = "ballast.dev/instance";

/// Annotation with the moment up to which the object tells all: the boot of the node, and nanoseconds since then.
const LAST: &str = "ballast.dev/last";

/// kubelet and all others tell of nodes there.
const NAMESPACE_OF_NODES: &str = "default";

/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// Cause of a refusal in a namespace that is on its way out
/// (staging/src/k8s.io/api/core/v1/types.go, `NamespaceTerminatingCause`).
const TERMINATING: &str = "NamespaceTerminating";

/// Who is told to wait with an Event waits up to so much longer. All agents of a cluster may be told so at one moment,
/// and to wait for as long.
const SPREAD: Duration = Duration::from_secs(10);

/// The largest Event in an answer, bytes. The API server takes none whose message has more than a kilobyte.
const LARGEST_EVENT: usize = 1 << 20;

/// It may be tried again.
enum Unwritten {
    /// The API server refused this Event, and may take others.
    Refused(String),
    /// There is no answer now: it is not reached, has too much to do, or does not know the agent.
    Unanswered {
        why: String,
        /// HTTP status, if there was one.
        code: Option<u16>,
        /// Not to be tried again before.
        after: Duration,
        /// Others may be taken: a namespace has a limit of its own, or a webhook that is slow.
        may_be_of_one: bool,
    },
}

/// Annotations by name.
type Marks = [(&'static str, String); 2];

/// Writes until it is dropped.
pub(super) struct Writer {
    node: String,
    connector: Arc<Connector>,
    sink: Sink,
    writes: mpsc::Receiver<Write>,
    connection: Option<Connection>,
    /// For an answer.
    patience: Duration,
    back_off: BackOff,
    /// An Event was taken since there was no answer to one.
    has_written: bool,
    fault: Option<String>,
    /// Of this agent, among those that run one after the other.
    instance: String,
    boot_id: String,
}

impl Writer {
    pub(super) fn new(
        node: String,
        connector: Arc<Connector>,
        sink: Sink,
        writes: mpsc::Receiver<Write>,
        patience: Patience,
    ) -> Self {
        Self {
            node,
            connector,
            sink,
            writes,
            connection: None,
            patience: patience.answer,
            back_off: BackOff::new(patience),
            has_written: false,
            fault: None,
            instance: clock::boottime().as_nanos().to_string(),
            boot_id: clock::boot_id().unwrap_or_default(),
        }
    }

    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let Some(write) = self.writes.recv().await else {
                return std::future::pending().await;
            };
            let outcome = match self.write(&write).await {
                Ok(outcome) => {
                    self.has_written = true;
                    self.back_off.reset();
                    self.set_fault(None);
                    outcome
                }
                // Others may be taken.
                Err(Unwritten::Refused(why)) => {
                    self.back_off.reset();
                    self.set_fault(None);
                    Outcome::Failed {
                        why,
                        after: Duration::ZERO,
                    }
                }
                Err(Unwritten::Unanswered {
                    why,
                    code,
                    after,
                    may_be_of_one,
                }) => {
                    self.leave_connection(code).await;
                    let had_written = std::mem::take(&mut self.has_written);
                    if may_be_of_one && had_written {
                        let after = spread(after);
                        Outcome::Failed { why, after }
                    } else {
                        self.set_fault(Some(why.clone()));
                        self.back_off.wait(after).await;
                        Outcome::Failed {
                            why,
                            after: Duration::ZERO,
                        }
                    }
                }
            };
            (self.sink)(Told::Written(outcome));
        }
    }

    /// A 429 is no fault of the connection. After anything else another is made, since the files that say how may have
    /// changed, and after a 401 with other credentials.
    async fn leave_connection(&mut self, code: Option<u16>) {
        if code == Some(code::TOO_MANY) {
            return;
        }
        let left = self.connection.take();
        if let Some(left) = left.filter(|_| code == Some(code::UNAUTHORIZED)) {
            self.connector.refused(&left).await;
        }
    }

    fn set_fault(&mut self, fault: Option<String>) {
        if fault != self.fault {
            self.fault.clone_from(&fault);
            (self.sink)(Told::EventsFault(fault));
        }
    }

    async fn write(&mut self, write: &Write) -> Result<Outcome, Unwritten> {
        let to = self.transport().await?;
        let path = format!("/api/v1/namespaces/{}/events", namespace(write));
        let events = Request::new(path);
        let name = self.name(write);
        match write.kind {
            WriteKind::Create => {
                let object = object(write, &name, &self.node, self.marks(write));
                match self.create(&to, &events, &object).await {
                    Ok(_) => Ok(Outcome::Written),
                    Err(error) if is(&error, code::CONFLICT, reason::ALREADY_EXISTS) => {
                        self.found(&to, &events, &name, write).await
                    }
                    Err(error) => refused(ApiVerb::Create, &error),
                }
            }
            WriteKind::Patch => {
                let changes = changes(write, self.marks(write));
                match self.patch(&to, &events, &name, &changes).await {
                    Ok(_) => Ok(Outcome::Written),
                    Err(error) if is(&error, code::NOT_FOUND, reason::NOT_FOUND) => {
                        Ok(Outcome::Gone)
                    }
                    Err(error) => refused(ApiVerb::Patch, &error),
                }
            }
        }
    }

    async fn transport(&mut self) -> Result<Transport, Unwritten> {
        let connected = match self.connection.take() {
            Some(kept) => self.connector.renewed(kept).await,
            None => self.connector.connect().await,
        };
        let connection = connected.map_err(|it| Unwritten::Unanswered {
            why: chain(&it),
            code: None,
            after: Duration::ZERO,
            may_be_of_one: false,
        })?;
        Ok(self.connection.insert(connection).transport.clone())
    }

    /// The same for whoever tells the same of the same, so that the next agent goes on with the object; one that nobody
    /// else has where that is taken.
    fn name(&self, write: &Write) -> String {
        let of_its_own = write.is_name_taken.then_some(&*self.instance);
        name(write, &self.node, of_its_own)
    }

    /// Of the object, among all of all agents.
    fn id(&self, write: &Write) -> String {
        format!("{}-{}", self.instance, write.id)
    }

    /// Annotations for the agents after this one.
    fn marks(&self, write: &Write) -> Marks {
        let nanoseconds = write.told_until.as_nanos();
        [
            (INSTANCE, self.id(write)),
            (LAST, format!("{}/{nanoseconds}", self.boot_id)),
        ]
    }

    /// See [`Outcome::Exists`].
    fn told_until(&self, last: &str) -> Option<Duration> {
        let (boot_id, nanoseconds) = last.split_once('/')?;
        let since_boot = Duration::from_nanos(nanoseconds.parse().ok()?);
        Some(match boot_id == self.boot_id {
            true => since_boot,
            false => Duration::ZERO,
        })
    }

    /// What there is under the name.
    async fn found(
        &self,
        to: &Transport,
        events: &Request,
        name: &str,
        write: &Write,
    ) -> Result<Outcome, Unwritten> {
        match self.patch(to, events, name, &json!({})).await {
            Ok(event) if event.reporting_component.as_deref() == Some(CONTROLLER) => {
                let count = event.count.and_then(|it| u64::try_from(it).ok());
                let annotations = event.metadata.annotations.unwrap_or_default();
                let told_until = annotations.get(LAST).and_then(|it| self.told_until(it));
                Ok(Outcome::Exists {
                    count: count.unwrap_or(0),
                    is_own: annotations.get(INSTANCE) == Some(&self.id(write)),
                    told_until,
                })
            }
            Ok(_) => {
                tracing::warn!(
                    name,
                    "an Event of somebody else has the name of one of ours"
                );
                Ok(match write.is_name_taken {
                    true => Outcome::Never,
                    false => Outcome::Taken,
                })
            }
            // It exists: whatever this is, it is not lost.
            Err(error) => Err(unwritten(ApiVerb::Patch, &error)),
        }
    }

    async fn create(
        &self,
        to: &Transport,
        events: &Request,
        object: &Event,
    ) -> Result<Event, ApiError> {
        let body = serde_json::to_vec(object).map_err(request::Error::SerializeBody);
        let question = body.and_then(|it| events.create(&PostParams::default(), it));
        self.ask(to, ApiVerb::Create, question).await
    }

    async fn patch(
        &self,
        to: &Transport,
        events: &Request,
        name: &str,
        changes: &Value,
    ) -> Result<Event, ApiError> {
        let question = events.patch(name, &PatchParams::default(), &Patch::Merge(changes));
        self.ask(to, ApiVerb::Patch, question).await
    }

    async fn ask(
        &self,
        to: &Transport,
        verb: ApiVerb,
        question: Question,
    ) -> Result<Event, ApiError> {
        let what = (verb, ApiResource::Events);
        let asking = ask::object(to, question, LARGEST_EVENT);
        asked(&self.sink, what, self.patience, asking).await
    }
}

/// Zero: nobody has asked for it, as where an answer is late, and all have times of their own.
fn spread(after: Duration) -> Duration {
    match after.is_zero() {
        true => after,
        false => after + clock::random_part(SPREAD),
    }
}

/// Whether it is of use to try again.
fn refused(verb: ApiVerb, error: &ApiError) -> Result<Outcome, Unwritten> {
    let is_faulty = is(error, code::BAD_REQUEST, reason::BAD_REQUEST)
        || is(error, code::UNPROCESSABLE, reason::INVALID);
    if is_faulty {
        let error = why(verb, error);
        tracing::warn!(error, "the API server does not take an Event");
    }
    let is_nowhere = is(error, code::NOT_FOUND, reason::NOT_FOUND) || is_terminating(error);
    match is_faulty || is_nowhere {
        true => Ok(Outcome::Never),
        false => Err(unwritten(verb, error)),
    }
}

fn unwritten(verb: ApiVerb, error: &ApiError) -> Unwritten {
    let why = why(verb, error);
    match error.code() {
        // Of this one: a webhook or a quota is asked for each.
        Some(code::INTERNAL) if is(error, code::INTERNAL, reason::INTERNAL_ERROR) => {
            Unwritten::Refused(why)
        }
        None | Some(code::UNAUTHORIZED | code::TOO_MANY | code::INTERNAL..) => {
            Unwritten::Unanswered {
                why,
                code: error.code(),
                after: error.pause(),
                may_be_of_one: may_be_of_one(error),
            }
        }
        Some(_) => Unwritten::Refused(why),
    }
}

/// The limits of the admission plugin EventRateLimit are of a namespace or of an object. A webhook can take as long as
/// the API server waits for it.
fn may_be_of_one(error: &ApiError) -> bool {
    matches!(error, ApiError::Late(_))
        || error.code() == Some(code::TOO_MANY)
        || is(error, code::GATEWAY_TIMEOUT, reason::TIMEOUT)
}

fn why(verb: ApiVerb, error: &ApiError) -> String {
    format!("{} Events: {error}", verb.as_str())
}

/// Said by the API server itself: a proxy on the way has the same codes.
fn is(error: &ApiError, is_code: u16, is_reason: &str) -> bool {
    let ApiError::Refused { code, reason, .. } = error else {
        return false;
    };
    *code == is_code && reason == is_reason
}

/// What is said in a namespace that is on its way out.
fn is_terminating(error: &ApiError) -> bool {
    let ApiError::Refused { code, causes, .. } = error else {
        return false;
    };
    *code == code::FORBIDDEN && causes.iter().any(|it| it == TERMINATING)
}

fn namespace(of: &Write) -> &str {
    match &of.regarding {
        Regarding::Pod { pod, .. } => &pod.namespace,
        Regarding::Node => NAMESPACE_OF_NODES,
    }
}

/// `of_its_own`: what else it is made of.
fn name(of: &Write, node: &str, of_its_own: Option<&str>) -> String {
    let (subject, uid, container) = match &of.regarding {
        Regarding::Pod { pod, container } => {
            (pod.name.as_str(), pod.uid.0.as_str(), container.as_deref())
        }
        Regarding::Node => (node, node, None),
    };
    let mut hash = Sha256::new();
    let parts = [uid, container.unwrap_or_default(), of.reason.as_str(), node];
    for part in parts.into_iter().chain(of_its_own) {
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

fn object(of: &Write, name: &str, node: &str, marks: Marks) -> Event {
    let text = |it: &str| Some(it.to_owned());
    Event {
        metadata: ObjectMeta {
            name: text(name),
            namespace: text(namespace(of)),
            annotations: Some(annotations(of, marks).collect()),
            ..ObjectMeta::default()
        },
        involved_object: involved(of, node),
        reason: text(of.reason.as_str()),
        message: Some(message(of)),
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

fn changes(of: &Write, marks: Marks) -> Value {
    // What the kill before had and this one has not goes.
    let none = DETAILS.map(|it| (format!("ballast.dev/{it}"), Value::Null));
    let mut all: serde_json::Map<_, _> = none.into_iter().collect();
    all.extend(annotations(of, marks).map(|(name, text)| (name, text.into())));
    let mut changes = json!({
        "metadata": {"annotations": all},
        "message": message(of),
        "count": count(of),
        "lastTimestamp": Time(timestamp(of.last)),
    });
    // It may have been made before that was known.
    if let Some(path) = field_path(of) {
        changes["involvedObject"] = json!({"fieldPath": path});
    }
    changes
}

fn involved(of: &Write, node: &str) -> ObjectReference {
    let text = |it: &str| Some(it.to_owned());
    match &of.regarding {
        Regarding::Pod { pod, .. } => ObjectReference {
            api_version: text("v1"),
            kind: text("Pod"),
            namespace: text(&pod.namespace),
            name: text(&pod.name),
            // Of a static pod that of its mirror's annotation, by which kubectl looks for its Events.
            uid: text(&pod.uid.0),
            field_path: field_path(of),
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

/// `None`: it is not of a container, or nobody has told in which list of its pod that is.
fn field_path(of: &Write) -> Option<String> {
    let list = match of.role? {
        ContainerRole::Init | ContainerRole::Sidecar => "initContainers",
        ContainerRole::Ephemeral => "ephemeralContainers",
        ContainerRole::Main => "containers",
    };
    Some(format!("spec.{list}{{{}}}", container(of)?))
}

fn container(of: &Write) -> Option<&str> {
    match &of.regarding {
        Regarding::Pod { container, .. } => container.as_deref(),
        Regarding::Node => None,
    }
}

/// It names the container where no field path does.
fn message(of: &Write) -> String {
    let Some(container) = container(of).filter(|_| of.role.is_none()) else {
        return of.message.clone();
    };
    let mut message = format!("in container {container}: {}", of.message);
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    message
}

fn annotations(of: &Write, marks: Marks) -> impl Iterator<Item = (String, String)> {
    let details = of.details.iter();
    let details = details.map(|(name, text)| (format!("ballast.dev/{name}"), text.clone()));
    details.chain(marks.map(|(name, text)| (name.to_owned(), text)))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, reason: &str, cause: Option<&str>) -> ApiError {
        ApiError::Refused {
            code,
            reason: reason.to_owned(),
            causes: cause.map(str::to_owned).into_iter().collect(),
            message: "no".to_owned(),
            retry_after: None,
        }
    }

    /// `never`, `refused`: others may be taken; `unanswered`: nothing is written for a while; `busy`: the same, unless
    /// another was taken just before.
    fn became(error: &ApiError) -> &'static str {
        match refused(ApiVerb::Create, error) {
            Ok(Outcome::Never) => "never",
            Ok(_) => "told",
            Err(Unwritten::Refused(_)) => "refused",
            Err(Unwritten::Unanswered { may_be_of_one, .. }) => match may_be_of_one {
                true => "busy",
                false => "unanswered",
            },
        }
    }

    /// One API server says the same to all agents.
    #[test]
    fn no_event_waits_for_less_than_was_asked_for_nor_do_all_for_as_long() {
        let asked = Duration::from_secs(60);
        let waits: Vec<_> = (0..1000).map(|_| spread(asked)).collect();
        let (shortest, longest) = (waits.iter().min(), waits.iter().max());
        assert!(shortest >= Some(&asked), "{shortest:?}");
        assert!(shortest < Some(&(asked + SPREAD / 4)), "{shortest:?}");
        assert!(longest > Some(&(asked + SPREAD / 4 * 3)), "{longest:?}");
        assert!(longest <= Some(&(asked + SPREAD)), "{longest:?}");
        let unasked: Vec<_> = (0..1000).map(|_| spread(Duration::ZERO)).collect();
        assert!(unasked.iter().all(Duration::is_zero), "{unasked:?}");
    }

    #[test]
    fn what_one_event_is_refused_for_holds_up_no_other() {
        for (code, reason, cause, right) in [
            (400, reason::BAD_REQUEST, None, "never"),
            (422, reason::INVALID, None, "never"),
            (404, reason::NOT_FOUND, None, "never"),
            (403, reason::FORBIDDEN, Some(TERMINATING), "never"),
            // A right, a quota or a policy, which somebody may mend.
            (403, reason::FORBIDDEN, None, "refused"),
            // A webhook that is away is asked for each namespace that it is meant for.
            (500, reason::INTERNAL_ERROR, None, "refused"),
            // A proxy on the way says nothing of the Event.
            (400, "", None, "refused"),
            (404, "", None, "refused"),
            (500, "", None, "unanswered"),
            (503, "ServiceUnavailable", None, "unanswered"),
            (504, "", None, "unanswered"),
            (504, "Timeout", None, "busy"),
            (429, "TooManyRequests", None, "busy"),
            (401, "Unauthorized", None, "unanswered"),
        ] {
            let became = became(&error(code, reason, cause));
            assert_eq!(became, right, "{code} {reason:?} {cause:?}");
        }
        assert_eq!(became(&ApiError::Late(Patience::default().answer)), "busy");
        for lost in [
            ApiError::Unreached(String::new()),
            ApiError::Unreadable(String::new()),
            ApiError::TooLarge(1),
        ] {
            assert_eq!(became(&lost), "unanswered", "{lost:?}");
        }
    }
}
