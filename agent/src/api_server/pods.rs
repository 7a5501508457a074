//! The watch of the pods of one node: begun, resumed, and begun anew where it cannot be.
//!
//! It begins with a streamed list (KEP-3157), or with a list that the API server answers from its cache where it
//! streams none, and is resumed from the last version that it told.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, ResourceAttributes, SelfSubjectAccessReview,
    SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldSelectorRequirement;
use kube::Client;
use kube::api::{Api, ListParams, PostParams, VersionMatch, WatchEvent, WatchParams};
use kube::core::Status;
use kube::core::request::Request;
use kube::error::Error as KubeError;
use serde::Deserialize;
use tokio_stream::{Stream, StreamExt};

use super::asked::{Late, asked};
use super::back_off::BackOff;
use super::connect::{Connection, said, said_by_server};
use super::{ANSWER, Settings, Sink, Told, code, connect, meaning};
use crate::model::api_pod::ApiPod;
use crate::model::api_pod::object::PodObject;
use crate::model::api_server::{ApiResource, ApiServerStatus, ApiVerb};
use crate::model::check::ApiServerFacts;
use crate::model::pod::PodUid;
use crate::model::time::WallTime;
use crate::sys::{chain, clock};

/// To answer with all pods of the node.
const LIST: Duration = Duration::from_secs(30);

/// Shortest and longest watch, in seconds; the API server ends it. Those of a cluster do not end together.
const SHORTEST_WATCH: u32 = 192;
const LONGEST_WATCH: u32 = 288;

/// Between two pods of a streamed list, and before its end is told. An API server that does not know of streamed
/// lists never tells it.
const STREAMED: Duration = Duration::from_secs(15);

/// A watch without a word, where bookmarks come every minute: at first, and after one new list after the other has
/// changed nothing.
const FIRST_SILENCE: Duration = Duration::from_secs(150);
const LAST_SILENCE: Duration = Duration::from_secs(1200);

/// Before all pods are asked for anew, at most: an API server that has been restarted knows no version of before, which
/// all agents find out at one moment. Nobody waits for it at a start: pods of a DaemonSet do not start at one moment.
const RELIST: Duration = Duration::from_secs(10);

/// The longest wait that an API server can ask for, and the shortest where it has too much to do and does not say.
const LONGEST_ASKED: Duration = Duration::from_secs(60);
const BUSY: Duration = Duration::from_secs(1);

/// A watch that lasted so long was good, and the pauses begin anew.
const LASTED: Duration = Duration::from_secs(10);

/// All pods of the cluster; a selector says which.
const PODS: &str = "/api/v1/pods";

/// How often it goes on from a version, and hears nothing good after it, before it begins anew.
const RESUMES: u32 = 2;

/// Where the end of a streamed list is told (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<PodObject>>> + Send>>;

/// A list of pods, as far as it is read.
#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    metadata: ListMetadata,
    items: Option<Vec<PodObject>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
}

/// Watches until it is dropped.
pub(super) struct Follower {
    settings: Settings,
    sink: Sink,
    status: ApiServerStatus,
    is_told: bool,
    /// All pods were told once.
    has_told: bool,
    /// From where to go on. `None`: from the beginning.
    version: Option<String>,
    /// Since something was heard that is newer than the version.
    n_resumes: u32,
    /// The API server streams lists, as far as is known.
    streams_lists: bool,
    silence: Duration,
    back_off: BackOff,
    /// When the watch began; `None`: it has not.
    began: Option<Duration>,
}

/// Why a watch is not gone on with.
#[derive(Debug)]
enum Left {
    /// Its time was over.
    Ended,
    /// It may be silent for good: only a list can tell.
    Silent,
    /// The API server has forgotten what came after the version.
    Expired,
    /// It does not know of streamed lists.
    NotStreamed,
    Failed(Failure),
}

#[derive(Debug)]
struct Failure {
    why: String,
    /// HTTP status; 0: there was none.
    code: u16,
    /// Not to be tried again before, if the API server says so.
    after: Duration,
}

impl Follower {
    pub(super) fn new(settings: Settings, sink: Sink) -> Self {
        Self {
            status: not_asked(&settings),
            settings,
            sink,
            is_told: false,
            has_told: false,
            version: None,
            n_resumes: 0,
            streams_lists: true,
            silence: FIRST_SILENCE,
            back_off: BackOff::new(),
            began: None,
        }
    }

    pub(super) async fn run(mut self) -> Infallible {
        loop {
            self.streams_lists = true;
            let failure = match self.connect().await {
                Ok(connection) => self.follow(connection).await,
                Err(failure) => failure,
            };
            self.set_fault(failure.why);
            self.pause(failure.after).await;
        }
    }

    async fn connect(&mut self) -> Result<Connection, Failure> {
        let connected = connect::connect(&self.settings).await;
        let connection = connected.map_err(|it| Failure::new(chain(&it)))?;
        // Versions of one API server mean nothing to another, nor does what it can.
        if self.status.server.as_ref() != Some(&connection.server) {
            self.version = None;
            self.streams_lists = true;
            self.is_told = false;
            self.status.server = Some(connection.server.clone());
        }
        Ok(connection)
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
            if connection.is_over() {
                connection = match self.connect().await {
                    Ok(connection) => connection,
                    Err(failure) => return failure,
                };
            }
            match self.watch(&connection.client).await {
                // It has lasted as long as it was to.
                Left::Ended if self.has_lasted() => {}
                Left::Ended => self.pause(Duration::ZERO).await,
                Left::Silent => {
                    self.version = None;
                    self.silence = (self.silence * 2).min(LAST_SILENCE);
                }
                Left::Expired => {
                    self.version = None;
                    tokio::time::sleep(clock::random_part(RELIST)).await;
                }
                Left::NotStreamed => self.streams_lists = false,
                Left::Failed(failure) => return failure,
            }
        }
    }

    fn has_lasted(&self) -> bool {
        let now = clock::boottime();
        let began = self.began;
        began.is_some_and(|it| now.saturating_sub(it) >= LASTED)
    }

    async fn watch(&mut self, client: &Client) -> Left {
        let mut events = match self.begin(client).await {
            Ok(events) => events,
            Err(left) => return left,
        };
        self.began = Some(clock::boottime());
        self.set_followed();
        loop {
            let event = match tokio::time::timeout(self.silence, events.next()).await {
                Err(_) => return Left::Silent,
                Ok(None) => return Left::Ended,
                Ok(Some(Err(error))) => return Failure::of(ApiVerb::Watch, &error).into(),
                Ok(Some(Ok(event))) => event,
            };
            match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    self.set_version(&pod);
                    if let Some(pod) = meaning::of_pod(&pod) {
                        (self.sink)(Told::Changed(Arc::new(pod)));
                    }
                }
                WatchEvent::Deleted(pod) => {
                    self.set_version(&pod);
                    if let Some(names) = meaning::names(&pod) {
                        (self.sink)(Told::Deleted(Arc::new(names)));
                    }
                }
                WatchEvent::Bookmark(bookmark) => {
                    self.version = Some(bookmark.metadata.resource_version);
                    self.n_resumes = 0;
                    self.silence = FIRST_SILENCE;
                    (self.sink)(Told::UpToDate);
                }
                WatchEvent::Error(status) => {
                    return Failure::of_status(ApiVerb::Watch, &status).into();
                }
            }
        }
    }

    fn set_version(&mut self, of: &PodObject) {
        if let Some(version) = &of.metadata.resource_version {
            self.version = Some(version.clone());
            self.n_resumes = 0;
        }
    }

    /// All pods have been told, now or before.
    async fn begin(&mut self, client: &Client) -> Result<Events, Left> {
        if self.n_resumes >= RESUMES {
            self.version = None;
        }
        self.n_resumes += 1;
        if self.version.is_none() && self.streams_lists {
            return self.stream(client).await;
        }
        let version = match self.version.clone() {
            Some(version) => version,
            None => self.list(client).await?,
        };
        self.start(client, &self.parameters(false), &version).await
    }

    /// The pods that there are come as events, and those that follow after them.
    async fn stream(&mut self, client: &Client) -> Result<Events, Left> {
        let started = self.start(client, &self.parameters(true), "0").await;
        let mut events = started.map_err(not_streamed)?;
        let mut all: BTreeMap<PodUid, Arc<ApiPod>> = BTreeMap::new();
        loop {
            let next = tokio::time::timeout(STREAMED, events.next()).await;
            let event = match next.map_err(|_late| Left::NotStreamed)? {
                None => return Err(Failure::new("watch pods: it ended too early").into()),
                Some(Err(error)) => return Err(Failure::of(ApiVerb::Watch, &error).into()),
                Some(Ok(event)) => event,
            };
            match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    all.extend(meaning::of_pod(&pod).map(|it| (it.pod.uid.clone(), Arc::new(it))));
                }
                WatchEvent::Deleted(pod) => {
                    meaning::names(&pod).and_then(|it| all.remove(&it.uid));
                }
                WatchEvent::Bookmark(bookmark) => {
                    if bookmark.metadata.annotations.contains_key(INITIAL_END) {
                        self.begin_at(bookmark.metadata.resource_version);
                        (self.sink)(Told::All(all.into_values().collect()));
                        return Ok(events);
                    }
                }
                WatchEvent::Error(status) => {
                    return Err(not_streamed(
                        Failure::of_status(ApiVerb::Watch, &status).into(),
                    ));
                }
            }
        }
    }

    /// Gives the version from which to watch.
    async fn list(&mut self, client: &Client) -> Result<String, Left> {
        let listed = listed(client, &self.settings.node, &self.sink).await?;
        let Some(version) = listed.metadata.resource_version else {
            return Err(Failure::new("list pods: the list has no resourceVersion").into());
        };
        let all = listed.items.iter().flatten().filter_map(meaning::of_pod);
        (self.sink)(Told::All(all.map(Arc::new).collect()));
        self.begin_at(version.clone());
        Ok(version)
    }

    async fn start(
        &self,
        client: &Client,
        parameters: &WatchParams,
        version: &str,
    ) -> Result<Events, Left> {
        let watching = async {
            let request = Request::new(PODS).watch(parameters, version);
            client
                .request_events(request.map_err(KubeError::BuildRequest)?)
                .await
        };
        let what = (ApiVerb::Watch, ApiResource::Pods);
        match asked(&self.sink, what, ANSWER, watching).await {
            Ok(Ok(events)) => Ok(Box::pin(events)),
            Ok(Err(error)) => Err(Failure::of(ApiVerb::Watch, &error).into()),
            Err(Late) => Err(Failure::late(ApiVerb::Watch, ANSWER).into()),
        }
    }

    fn begin_at(&mut self, version: String) {
        self.version = Some(version);
        self.n_resumes = 0;
        self.has_told = true;
    }

    fn parameters(&self, streams_list: bool) -> WatchParams {
        let spread = u64::from(LONGEST_WATCH - SHORTEST_WATCH);
        let more = clock::random_part(Duration::from_secs(spread)).as_secs();
        WatchParams {
            field_selector: Some(of_node(&self.settings.node)),
            timeout: Some(SHORTEST_WATCH + u32::try_from(more).unwrap_or(0)),
            bookmarks: true,
            send_initial_events: streams_list,
            ..WatchParams::default()
        }
    }

    fn set_followed(&mut self) {
        self.set_status(ApiServerStatus {
            stale_since: None,
            fault: None,
            ..self.status.clone()
        });
    }

    fn set_fault(&mut self, why: String) {
        let now = || WallTime::from_epoch(clock::wall());
        self.set_status(ApiServerStatus {
            stale_since: self.status.stale_since.or_else(|| self.has_told.then(now)),
            fault: Some(why),
            ..self.status.clone()
        });
    }

    fn set_status(&mut self, status: ApiServerStatus) {
        if !self.is_told || status != self.status {
            (self.is_told, self.status) = (true, status);
            (self.sink)(Told::State(self.status.clone()));
        }
    }
}

impl Failure {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            code: 0,
            after: Duration::ZERO,
        }
    }

    fn of(verb: ApiVerb, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(verb, status),
            _ => Self::new(format!("{} pods: {}", verb.as_str(), said(error))),
        }
    }

    fn of_status(verb: ApiVerb, status: &Status) -> Self {
        let details = status.details.as_ref();
        let asked = details.map_or(0, |it| u64::from(it.retry_after_seconds));
        let asked = Duration::from_secs(asked).min(LONGEST_ASKED);
        Self {
            why: format!("{} pods: {}", verb.as_str(), said_by_server(status)),
            code: status.code,
            after: match status.code {
                code::TOO_MANY => asked.max(BUSY),
                _ => asked,
            },
        }
    }

    fn late(verb: ApiVerb, after: Duration) -> Self {
        Self::new(format!(
            "{} pods: no answer within {} s",
            verb.as_str(),
            after.as_secs()
        ))
    }
}

impl From<Failure> for Left {
    fn from(failure: Failure) -> Self {
        match failure.code {
            code::GONE => Self::Expired,
            _ => Self::Failed(failure),
        }
    }
}

/// A streamed list that was refused.
fn not_streamed(left: Left) -> Left {
    match left {
        Left::Failed(Failure {
            code: code::BAD_REQUEST | code::UNPROCESSABLE,
            ..
        }) => Left::NotStreamed,
        left => left,
    }
}

/// A list that costs the API server's storage nothing. Without a limit: with one, and without another version than
/// 0, the storage would be asked.
async fn listed(client: &Client, node: &str, sink: &Sink) -> Result<PodList, Failure> {
    let parameters = ListParams {
        field_selector: Some(of_node(node)),
        resource_version: Some("0".to_owned()),
        version_match: Some(VersionMatch::NotOlderThan),
        ..ListParams::default()
    };
    let listing = async {
        let request = Request::new(PODS).list(&parameters);
        client
            .request(request.map_err(KubeError::BuildRequest)?)
            .await
    };
    match asked(sink, (ApiVerb::List, ApiResource::Pods), LIST, listing).await {
        Ok(listed) => listed.map_err(|it| Failure::of(ApiVerb::List, &it)),
        Err(Late) => Err(Failure::late(ApiVerb::List, LIST)),
    }
}

fn of_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

fn not_asked(settings: &Settings) -> ApiServerStatus {
    ApiServerStatus {
        server: None,
        node: settings.node.clone(),
        stale_since: None,
        fault: None,
        events: None,
    }
}

/// See [`super::probe`].
pub(super) async fn probe(settings: &Settings) -> ApiServerFacts {
    let mut facts = ApiServerFacts {
        node: settings.node.clone(),
        ..ApiServerFacts::default()
    };
    match connect::connect(settings).await {
        Ok(Connection { client, server, .. }) => {
            facts.server = Some(server);
            facts.fault = ask(client, settings, &mut facts).await.err();
        }
        Err(error) => facts.fault = Some(chain(&error)),
    }
    facts
}

/// `Err`: what keeps pods from being watched.
async fn ask(
    client: Client,
    settings: &Settings,
    facts: &mut ApiServerFacts,
) -> Result<(), String> {
    let unheard: Sink = Arc::new(|_| {});
    let listed = listed(&client, &settings.node, &unheard).await;
    facts.n_pods = listed.map_err(|it| it.why)?.items.map_or(0, |it| it.len());
    let reviews = Api::<SelfSubjectAccessReview>::all(client);
    if !may(&reviews, "watch", "pods", Some(&settings.node)).await {
        return Err("watch pods: the agent may list them and not watch them".to_owned());
    }
    let of_events: &[&str] = if settings.events {
        &["create", "patch"]
    } else {
        &[]
    };
    for verb in of_events {
        if !may(&reviews, verb, "events", None).await {
            facts.lacks.push(format!("{verb} events"));
        }
    }
    Ok(())
}

/// `node`: of its pods alone, since a node itself may watch no others. Who may not ask has to try.
async fn may(
    reviews: &Api<SelfSubjectAccessReview>,
    verb: &str,
    resource: &str,
    node: Option<&str>,
) -> bool {
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
    let parameters = PostParams::default();
    match tokio::time::timeout(ANSWER, reviews.create(&parameters, &review)).await {
        Ok(Ok(reviewed)) => reviewed.status.is_none_or(|it| it.allowed),
        Ok(Err(_)) | Err(_) => true,
    }
}
