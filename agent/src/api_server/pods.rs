//! The watch of the pods of one node: begun, resumed, and begun anew where it cannot be.
//!
//! It begins with a streamed list (KEP-3157), or with a list that the API server answers from its cache where it
//! streams none, and is resumed from the last version that it told.
//!
//! Invariants: no pod of another node is told, whatever becomes of the field selector on the way; of more than
//! [`MOST_PODS`] none is.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, ResourceAttributes, SelfSubjectAccessReview,
    SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldSelectorRequirement;
use kube_core::params::{ListParams, PostParams, VersionMatch, WatchParams};
use kube_core::{Request, WatchEvent, request};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::ask::{self, ApiError, Events, asked};
use super::back_off::BackOff;
use super::connect::{Connection, Connector, Transport};
use super::standing::{Failure, Standing};
use super::{ANSWER, Patience, Settings, Sink, Told, code, meaning};
use crate::model::api_pod::ApiPod;
use crate::model::api_pod::object::PodObject;
use crate::model::api_server::{ApiResource, ApiVerb, PodsFrom};
use crate::model::check::ApiServerFacts;
use crate::model::record::PodRef;
use crate::sys::{chain, clock};

/// To connect, and to answer with all pods of the node.
const LIST: Duration = Duration::from_secs(60);

/// Shortest and longest watch, in seconds; the API server ends it. Those of a cluster do not end together.
const SHORTEST_WATCH: u32 = 192;
const LONGEST_WATCH: u32 = 288;

/// Time for a whole streamed list. An API server that ignores `sendInitialEvents` (1.26 and older) never tells the end
/// of one, even if it tells of changes all the time.
const STREAMED: Duration = Duration::from_secs(15);

/// How long a watch may be silent. Bookmarks come every minute.
const SILENCE: Duration = Duration::from_secs(150);

/// An end so long before its time is none that the watch was asked for: the API server goes away.
const EARLY: Duration = Duration::from_secs(2);

/// How late the end of a watch may come. The API server ends it after the time that was asked for; if the end does not
/// come, the connection is dead.
const OVERDUE: Duration = Duration::from_secs(30);

/// Before all pods are asked for anew, at most: an API server that has been restarted knows no version of before, which
/// all agents find out at one moment. Nobody waits for it at a start: pods of a DaemonSet do not start at one moment.
const RELIST: Duration = Duration::from_secs(10);

/// A watch that lasted so long was good, and the pauses begin anew.
const LASTED: Duration = Duration::from_secs(10);

/// So many watches in a row that did not last are no accident: somebody on the way lets no stream through.
const CUTS: u32 = 3;

const LIST_PODS: (ApiVerb, ApiResource) = (ApiVerb::List, ApiResource::Pods);
const WATCH: (ApiVerb, ApiResource) = (ApiVerb::Watch, ApiResource::Pods);

/// All pods of the cluster; a selector says which.
const PODS: &str = "/api/v1/pods";

/// The largest list, bytes. A node has some hundred pods of some ten kilobytes each.
pub(super) const LARGEST_LIST: usize = 64 << 20;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The largest SelfSubjectAccessReview in an answer, bytes.
const LARGEST_REVIEW: usize = 1 << 20;

/// Pods of one node, with those that are over: of a whole cluster 12 500 of these stay by default
/// (`--terminated-pod-gc-threshold` of kube-controller-manager).
const MOST_PODS: usize = 16_384;

/// How often it goes on from a version, and hears nothing good after it, before it begins anew.
const RESUMES: u32 = 2;

/// Where the end of a streamed list is told (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

type PodEvent = WatchEvent<PodObject>;

/// Anybody may make an object that says it is the mirror of another pod: a UID alone is of two then.
type Pods = BTreeMap<Arc<PodRef>, Arc<ApiPod>>;

/// A list of pods, as far as it is read.
#[derive(Deserialize)]
pub(super) struct PodList {
    #[serde(default)]
    metadata: ListMetadata,
    pub(super) items: Option<Vec<PodObject>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
}

/// Watches until it is dropped.
pub(super) struct Follower {
    node: String,
    connector: Arc<Connector>,
    sink: Sink,
    standing: Standing,
    /// Those that the API server has, as far as it was heard.
    pods: BTreeSet<Arc<PodRef>>,
    /// From where to go on. `None`: from the beginning.
    version: Option<String>,
    /// Since something was heard that is newer than the version.
    n_resumes: u32,
    /// The API server streams lists, as far as is known.
    streams_lists: bool,
    /// A watch was silent, and no bookmark has come since: this API server may send none, and then silence means
    /// nothing. So a watch stays until its time is over, and [`RESUMES`] resumed ones pass before the next list. A list
    /// after each silence would be work for nothing.
    is_quiet: bool,
    /// The API server answered 410 to a version that it had told, and no event has come since.
    is_expired: bool,
    /// For the begin of a watch.
    patience: Duration,
    back_off: BackOff,
    /// When the watch began; `None`: it has not.
    began: Option<Duration>,
    /// Watches that ended without a failure and had not lasted, since the last one that did.
    n_cuts: u32,
}

/// A watch that has begun.
struct Watch {
    events: Events,
    /// When it must have ended.
    end: Instant,
}

/// Why a watch is not gone on with.
#[derive(Debug)]
enum Left {
    /// Its time was over.
    Ended,
    /// It ended before its time.
    Cut,
    /// It may be silent for good: only a list can tell.
    Silent,
    /// It does not know of streamed lists.
    NotStreamed,
    Failed(Failure),
}

impl Follower {
    pub(super) fn new(
        node: String,
        connector: Arc<Connector>,
        sink: Sink,
        patience: Patience,
    ) -> Self {
        Self {
            standing: Standing::new(PodsFrom::ApiServer, &node, Arc::clone(&sink)),
            node,
            connector,
            sink,
            pods: BTreeSet::new(),
            version: None,
            n_resumes: 0,
            streams_lists: true,
            is_quiet: false,
            is_expired: false,
            patience: patience.answer,
            back_off: BackOff::new(patience),
            began: None,
            n_cuts: 0,
        }
    }

    pub(super) async fn run(mut self) -> Infallible {
        loop {
            self.streams_lists = true;
            let failure = match self.connector.connect().await {
                Ok(connection) => self.follow(connection).await,
                Err(error) => Failure::new(chain(&error)),
            };
            self.standing.set_fault(failure.why);
            self.pause(failure.after).await;
        }
    }

    /// Versions of one API server mean nothing to another, nor does what it can.
    fn set_server(&mut self, server: &str) {
        if self.standing.set_server(server) {
            self.version = None;
            self.streams_lists = true;
            self.n_cuts = 0;
        }
    }

    /// `least`: what was asked for.
    async fn pause(&mut self, least: Duration) {
        if self.has_lasted() {
            self.back_off.reset();
        }
        self.began = None;
        self.back_off.wait(least).await;
    }

    /// Until it fails. Another connection is made then: the files that say how may have changed.
    async fn follow(&mut self, mut connection: Connection) -> Failure {
        loop {
            connection = match self.connector.renewed(connection).await {
                Ok(connection) => connection,
                Err(error) => return Failure::new(chain(&error)),
            };
            self.set_server(&connection.server);
            match self.watch(&connection.transport).await {
                left @ (Left::Ended | Left::Cut) => {
                    let has_lasted = self.has_lasted();
                    self.is_expired &= !has_lasted;
                    match has_lasted {
                        true => self.n_cuts = 0,
                        false => self.count_cut(),
                    }
                    // What cuts one watch cuts those of all nodes.
                    if !has_lasted || matches!(left, Left::Cut) {
                        self.pause(Duration::ZERO).await;
                    }
                }
                Left::Silent => {
                    self.version = None;
                    self.is_quiet = true;
                }
                Left::NotStreamed => self.streams_lists = false,
                Left::Failed(failure) => match failure.code {
                    Some(code::GONE) if self.leave_version() => {
                        tokio::time::sleep(clock::random_part(RELIST)).await;
                    }
                    Some(code::UNAUTHORIZED) => {
                        self.connector.refused(&connection).await;
                        return failure;
                    }
                    _ => return failure,
                },
            }
        }
    }

    /// Forgets the version after a 410, and says whether it is of use to begin anew at once. It is not if there was no
    /// version, or if the same happened before and no event has come since.
    fn leave_version(&mut self) -> bool {
        let had_version = self.version.take().is_some();
        let is_again = std::mem::replace(&mut self.is_expired, true);
        had_version && !is_again
    }

    fn has_lasted(&self) -> bool {
        let now = clock::boottime();
        let began = self.began;
        began.is_some_and(|it| now.saturating_sub(it) >= LASTED)
    }

    fn count_cut(&mut self) {
        self.n_cuts += 1;
        if self.is_cut_each_time() {
            let why = "it ends at once each time, as behind a proxy that lets no stream through";
            self.standing.set_fault(failure(WATCH, why).why);
        }
    }

    /// Then what happens is heard of late, and a watch that has begun says nothing yet.
    fn is_cut_each_time(&self) -> bool {
        self.n_cuts >= CUTS
    }

    async fn watch(&mut self, transport: &Transport) -> Left {
        let Watch { mut events, end } = match self.begin(transport).await {
            Ok(watch) => watch,
            Err(left) => return left,
        };
        self.began = Some(clock::boottime());
        if !self.is_cut_each_time() {
            self.standing.set_followed();
        }
        loop {
            if self.n_cuts > 0 && self.has_lasted() {
                self.n_cuts = 0;
                self.standing.set_followed();
            }
            let silent = match self.is_quiet {
                true => end,
                false => end.min(Instant::now() + SILENCE),
            };
            let until = match self.n_cuts {
                0 => silent,
                _ => silent.min(Instant::now() + LASTED),
            };
            let event = match timeout_at(until, events.next::<PodEvent>()).await {
                Err(_) if until < silent => continue,
                Err(_) if silent < end => return Left::Silent,
                Ok(Ok(None)) if Instant::now() + OVERDUE + EARLY < end => return Left::Cut,
                // Without an end the connection is dead. The next watch has another.
                Err(_) | Ok(Ok(None)) => return Left::Ended,
                Ok(Err(error)) => return Failure::of(WATCH, &error).into(),
                Ok(Ok(Some(event))) => event,
            };
            match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    self.set_version(&pod);
                    if let Some(pod) = of_pod(&pod, &self.node) {
                        self.pods.insert(Arc::clone(&pod.pod));
                        if self.pods.len() > MOST_PODS {
                            // They are asked for anew, and are as many then or fewer.
                            self.version = None;
                            return too_many(WATCH).into();
                        }
                        (self.sink)(Told::Changed(Arc::new(pod)));
                    }
                }
                WatchEvent::Deleted(pod) => {
                    self.set_version(&pod);
                    let names = meaning::names(&pod).filter(|_| is_of(&pod, &self.node));
                    if let Some(names) = names {
                        self.pods.remove(&names);
                        (self.sink)(Told::Deleted(Arc::new(names)));
                    }
                }
                WatchEvent::Bookmark(bookmark) => {
                    self.heard_of(bookmark.metadata.resource_version);
                    self.is_quiet = false;
                    (self.sink)(Told::UpToDate);
                }
                WatchEvent::Error(status) => {
                    return Failure::of(WATCH, &ApiError::of_status(*status)).into();
                }
            }
        }
    }

    fn set_version(&mut self, of: &PodObject) {
        if let Some(version) = &of.metadata.resource_version {
            self.heard_of(version.clone());
        }
    }

    /// An event is newer than all before it.
    fn heard_of(&mut self, version: String) {
        self.version = Some(version);
        self.n_resumes = 0;
        self.is_expired = false;
    }

    /// All pods have been told, now or before.
    async fn begin(&mut self, transport: &Transport) -> Result<Watch, Left> {
        if self.n_resumes >= RESUMES {
            self.version = None;
        }
        if self.version.is_none() && self.streams_lists {
            return self.stream(transport).await;
        }
        let version = match self.version.clone() {
            Some(version) => version,
            None => self.list(transport).await?,
        };
        let started = self.start(transport, false, &version).await;
        if started.as_ref().err().is_none_or(is_of_version) {
            self.n_resumes += 1;
        }
        Ok(started?)
    }

    /// The pods that there are come as events, and those that follow after them.
    async fn stream(&mut self, transport: &Transport) -> Result<Watch, Left> {
        let started = self.start(transport, true, "0").await;
        let mut watch = started.map_err(not_streamed)?;
        let end = Instant::now() + STREAMED;
        let mut all = Pods::new();
        loop {
            let event = match timeout_at(end, watch.events.next::<PodEvent>()).await {
                Err(_) | Ok(Ok(None)) => return Err(Left::NotStreamed),
                Ok(Err(error)) => return Err(Failure::of(WATCH, &error).into()),
                Ok(Ok(Some(event))) => event,
            };
            match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    all.extend(of_pod(&pod, &self.node).map(by_name));
                    if all.len() > MOST_PODS {
                        return Err(too_many(WATCH).into());
                    }
                }
                WatchEvent::Deleted(pod) => {
                    meaning::names(&pod).and_then(|it| all.remove(&it));
                }
                WatchEvent::Bookmark(bookmark) => {
                    if bookmark.metadata.annotations.contains_key(INITIAL_END) {
                        self.begin_at(bookmark.metadata.resource_version, all);
                        return Ok(watch);
                    }
                }
                WatchEvent::Error(status) => {
                    let error = ApiError::of_status(*status);
                    return Err(not_streamed(Failure::of(WATCH, &error)));
                }
            }
        }
    }

    /// Gives the version from which to watch.
    async fn list(&mut self, transport: &Transport) -> Result<String, Left> {
        let listed = listed(transport, &self.node, &self.sink).await?;
        let Some(version) = listed.metadata.resource_version else {
            return Err(Failure::new("list pods: the list has no resourceVersion").into());
        };
        let all = listed.items.iter().flatten();
        let all = all.filter_map(|it| of_pod(it, &self.node));
        let all: Pods = all.map(by_name).collect();
        if all.len() > MOST_PODS {
            return Err(too_many(LIST_PODS).into());
        }
        self.begin_at(version.clone(), all);
        Ok(version)
    }

    async fn start(
        &self,
        transport: &Transport,
        streams_list: bool,
        version: &str,
    ) -> Result<Watch, Failure> {
        let seconds = lasting();
        let parameters = WatchParams {
            field_selector: Some(of_node(&self.node)),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: streams_list,
            ..WatchParams::default()
        };
        let question = Request::new(PODS).watch(&parameters, version);
        let watching = ask::events(transport, question);
        let started = asked(&self.sink, WATCH, self.patience, watching).await;
        let lasts = Duration::from_secs(u64::from(seconds));
        Ok(Watch {
            events: started.map_err(|it| Failure::of(WATCH, &it))?,
            end: Instant::now() + lasts + OVERDUE,
        })
    }

    fn begin_at(&mut self, version: String, all: Pods) {
        self.pods = all.keys().cloned().collect();
        (self.sink)(Told::All(all.into_values().collect()));
        self.version = Some(version);
        self.n_resumes = 0;
        self.standing.all_are_told();
    }
}

impl From<Failure> for Left {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Whether the refusal of a watch may be for the version from which it was to go on. Who is not reached, has too much to
/// do or does not know the agent has said nothing of it.
fn is_of_version(failure: &Failure) -> bool {
    const SAY_NOTHING: [u16; 5] = [
        code::UNAUTHORIZED,
        code::FORBIDDEN,
        code::TOO_MANY,
        code::BAD_GATEWAY,
        code::UNAVAILABLE,
    ];
    failure.code.is_some_and(|it| !SAY_NOTHING.contains(&it))
}

/// The error of a streamed list.
fn not_streamed(failure: Failure) -> Left {
    match failure.code {
        Some(code::BAD_REQUEST | code::UNPROCESSABLE) => Left::NotStreamed,
        _ => failure.into(),
    }
}

/// How long a watch is asked to last, seconds.
fn lasting() -> u32 {
    let spread = Duration::from_secs(u64::from(LONGEST_WATCH - SHORTEST_WATCH));
    let more = clock::random_part(spread).as_secs();
    SHORTEST_WATCH + u32::try_from(more).unwrap_or(0)
}

/// A list that costs the API server's storage nothing. Without a limit: with one, and without another version than
/// 0, the storage would be asked.
async fn listed(transport: &Transport, node: &str, sink: &Sink) -> Result<PodList, Failure> {
    let parameters = ListParams {
        field_selector: Some(of_node(node)),
        resource_version: Some("0".to_owned()),
        version_match: Some(VersionMatch::NotOlderThan),
        ..ListParams::default()
    };
    let listing = ask::object(
        transport,
        Request::new(PODS).list(&parameters),
        LARGEST_LIST,
    );
    let listed = asked(sink, LIST_PODS, LIST, listing).await;
    listed.map_err(|it| Failure::of(LIST_PODS, &it))
}

/// `None`: it is of another node, or of no API server.
fn of_pod(pod: &PodObject, node: &str) -> Option<ApiPod> {
    meaning::of_pod(pod, PodsFrom::ApiServer).filter(|_| is_of(pod, node))
}

fn is_of(pod: &PodObject, node: &str) -> bool {
    let of = pod.spec.as_ref().and_then(|it| it.node_name.as_deref());
    of == Some(node)
}

fn by_name(pod: ApiPod) -> (Arc<PodRef>, Arc<ApiPod>) {
    (Arc::clone(&pod.pod), Arc::new(pod))
}

fn too_many(of: (ApiVerb, ApiResource)) -> Failure {
    failure(of, &format!("the node has more than {MOST_PODS} pods"))
}

fn failure((verb, resource): (ApiVerb, ApiResource), why: &str) -> Failure {
    Failure::new(format!("{} {}: {why}", verb.as_str(), resource.as_str()))
}

fn of_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

/// See [`super::probe`].
pub(super) async fn probe(settings: &Settings, connector: &Connector) -> ApiServerFacts {
    let mut facts = ApiServerFacts {
        node: settings.node.clone(),
        ..ApiServerFacts::default()
    };
    match connector.connect().await {
        Ok(Connection {
            transport, server, ..
        }) => {
            facts.server = Some(server);
            facts.fault = ask_all(&transport, settings, &mut facts).await.err();
        }
        Err(error) => facts.fault = Some(chain(&error)),
    }
    facts
}

/// `Err`: what keeps pods from being watched.
async fn ask_all(
    transport: &Transport,
    settings: &Settings,
    facts: &mut ApiServerFacts,
) -> Result<(), String> {
    let unheard: Sink = Arc::new(|_| {});
    let listed = listed(transport, &settings.node, &unheard).await;
    let items = listed.map_err(|it| it.why)?.items;
    let of_node = items.iter().flatten();
    facts.n_pods = of_node.filter(|it| is_of(it, &settings.node)).count();
    let may_watch = may(transport, "watch", "pods", Some(&settings.node)).await;
    // Who may not ask has to try.
    if may_watch.is_ok_and(|(may, _)| !may) {
        return Err("watch pods: the agent may list them and not watch them".to_owned());
    }
    // It has answered a question already.
    ask_for_events(transport, settings, facts).await.ok();
    Ok(())
}

/// Of the API server, where pods are asked of a kubelet.
pub(super) async fn probe_events(
    settings: &Settings,
    connector: &Connector,
    facts: &mut ApiServerFacts,
) {
    if !settings.events {
        return;
    }
    let asked = match connector.connect().await {
        Ok(Connection {
            transport, server, ..
        }) => {
            let asked = ask_for_events(&transport, settings, facts).await;
            asked.map_err(|it| format!("{server}: {it}"))
        }
        Err(error) => Err(chain(&error)),
    };
    facts.events_fault = asked.err();
}

/// `Err`: nobody has answered.
async fn ask_for_events(
    transport: &Transport,
    settings: &Settings,
    facts: &mut ApiServerFacts,
) -> Result<(), ApiError> {
    let verbs: &[&str] = if settings.events {
        &["create", "patch"]
    } else {
        &[]
    };
    for verb in verbs {
        match may(transport, verb, "events", None).await {
            Ok((may, seconds_ahead)) => {
                facts.seconds_ahead = seconds_ahead;
                if !may {
                    facts.lacks.push(format!("{verb} events"));
                }
            }
            // Who may not ask has to try.
            Err(ApiError::Refused { code, .. }) if code != code::UNAUTHORIZED => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether it may, and [`ApiServerFacts::seconds_ahead`]. `node`: of its pods alone, since a node itself may watch no
/// others.
async fn may(
    transport: &Transport,
    verb: &str,
    resource: &str,
    node: Option<&str>,
) -> Result<(bool, Option<i64>), ApiError> {
    let of_node = node.map(|it| FieldSelectorAttributes {
        requirements: Some(vec![FieldSelectorRequirement {
            key: "spec.nodeName".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![it.to_owned()]),
        }]),
        ..FieldSelectorAttributes::default()
    });
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                resource: Some(resource.to_owned()),
                version: Some("v1".to_owned()),
                field_selector: of_node,
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let body = serde_json::to_vec(&review).map_err(request::Error::SerializeBody);
    let question = body.and_then(|it| Request::new(REVIEWS).create(&PostParams::default(), it));
    let reviewing = ask::dated::<SelfSubjectAccessReview>(transport, question, LARGEST_REVIEW);
    let reviewed = tokio::time::timeout(ANSWER, reviewing).await;
    let (reviewed, ahead) = reviewed.unwrap_or(Err(ApiError::Late(ANSWER)))?;
    Ok((reviewed.status.is_none_or(|it| it.allowed), ahead))
}

#[cfg(test)]
mod tests;
