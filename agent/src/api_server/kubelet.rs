//! The kubelet of the node, asked for its pods over and over, since it tells of no change by itself, and soon after a
//! pod has come; and for its settings when somebody wants them.
//!
//! What it leaves out may run nevertheless (kubelet 1.36, pkg/kubelet/config): right after its start it knows no pod,
//! and no pod of the API server's while that is away.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube_core::request;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::ask::{self, ApiError, Question, asked};
use super::back_off::BackOff;
use super::connect::{Connection, Connector, Transport};
use super::pods::{LARGEST_LIST, PodList};
use super::standing::{Failure, Standing};
use super::{ANSWER, Patience, Settings, Sink, Told, code, meaning};
use crate::model::api_pod::ApiPod;
use crate::model::api_server::{ApiResource, ApiVerb, PodsFrom, ToldSettings};
use crate::model::check::ApiServerFacts;
use crate::sys::chain;

/// Between two questions of which nobody asked for the second, and between any two.
const EVERY: Duration = Duration::from_secs(10);
const GAP: Duration = Duration::from_secs(1);

/// What is asked, and the right that it needs (pkg/kubelet/server/auth.go).
const PODS: &str = "/pods";
const GET_PODS: (ApiVerb, ApiResource) = (ApiVerb::Get, ApiResource::NodesPods);
const SETTINGS: &str = "/configz";
const GET_SETTINGS: (ApiVerb, ApiResource) = (ApiVerb::Get, ApiResource::NodesConfigz);

/// The largest settings, bytes.
const LARGEST_SETTINGS: usize = 1 << 20;

/// Before it is asked for its settings again that it did not tell.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Asks until it is dropped.
pub(super) struct Poller {
    connector: Connector,
    sink: Sink,
    standing: Standing,
    /// For an answer.
    patience: Duration,
    back_off: BackOff,
    /// Somebody waits for pods that are new.
    wanted: Arc<Notify>,
}

impl Poller {
    pub(super) fn new(
        node: &str,
        connector: Connector,
        sink: Sink,
        wanted: Arc<Notify>,
        patience: Patience,
    ) -> Self {
        Self {
            connector,
            standing: Standing::new(PodsFrom::Kubelet, node, Arc::clone(&sink)),
            sink,
            patience: patience.answer,
            back_off: BackOff::new(patience),
            wanted,
        }
    }

    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let failure = match self.connector.connect().await {
                Ok(connection) => self.ask_on(connection).await,
                Err(error) => Failure::new(chain(&error)),
            };
            self.standing.set_fault(failure.why);
            self.back_off.wait(failure.after).await;
        }
    }

    /// Until it fails. Another connection is made then: it may be another kubelet, with another certificate.
    async fn ask_on(&mut self, mut connection: Connection) -> Failure {
        loop {
            connection = match self.connector.renewed(connection).await {
                Ok(connection) => connection,
                Err(error) => return Failure::new(chain(&error)),
            };
            self.standing.set_server(&connection.server);
            match seen(&connection.transport, &self.sink, self.patience).await {
                Ok(all) => (self.sink)(Told::Seen(all)),
                // What the program of `exec` gave is kept, whatever it is: see `failure`.
                Err(failure) => return failure,
            }
            self.standing.all_are_told();
            self.standing.set_followed();
            self.back_off.reset();
            tokio::time::sleep(GAP).await;
            let waiting = tokio::time::timeout(EVERY - GAP, self.wanted.notified());
            // Nobody waits.
            waiting.await.ok();
        }
    }
}

/// Asks for settings until it is dropped.
pub(super) struct SettingsReader {
    pub(super) connector: Connector,
    pub(super) sink: Sink,
    /// Somebody wants them.
    pub(super) wanted: Arc<Notify>,
}

impl SettingsReader {
    pub(super) async fn run(self) -> Infallible {
        loop {
            self.wanted.notified().await;
            let told = settings(&self.connector, &self.sink).await;
            let is_told = told.is_ok();
            (self.sink)(Told::Settings(told));
            if !is_told {
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// `Err`: why it does not tell them.
pub(super) async fn settings(connector: &Connector, sink: &Sink) -> Result<ToldSettings, String> {
    /// As `configz` of component-base has it.
    #[derive(Deserialize)]
    struct Configz {
        kubeletconfig: Map<String, Value>,
    }
    let connection = connector.connect().await.map_err(|it| chain(&it))?;
    let asking = ask::object::<Configz>(&connection.transport, get(SETTINGS), LARGEST_SETTINGS);
    match asked(sink, GET_SETTINGS, ANSWER, asking).await {
        Ok(told) => Ok(ToldSettings {
            url: format!("{}{SETTINGS}", connection.server),
            fields: told.kubeletconfig,
        }),
        Err(error) => Err(failure(GET_SETTINGS, &error).why),
    }
}

/// With what an answer of kubelet's may mean.
fn failure(what: (ApiVerb, ApiResource), error: &ApiError) -> Failure {
    let failure = Failure::of(what, error);
    let meaning = match failure.code {
        // It asks the API server who that is (pkg/kubelet/server/server.go, `InstallAuthFilter`).
        Some(code::UNAUTHORIZED) => {
            "; kubelet answers so to who is not known, and while it does not reach the API server"
        }
        Some(code::NOT_FOUND) => "; kubelet answers so with enableDebuggingHandlers false",
        _ => "",
    };
    Failure {
        why: format!("{}{meaning}", failure.why),
        ..failure
    }
}

async fn seen(
    transport: &Transport,
    sink: &Sink,
    patience: Duration,
) -> Result<Vec<Arc<ApiPod>>, Failure> {
    let asking = ask::object::<PodList>(transport, get(PODS), LARGEST_LIST);
    let answer = asked(sink, GET_PODS, patience, asking).await;
    let list = answer.map_err(|it| failure(GET_PODS, &it))?;
    let all = list.items.iter().flatten();
    let all = all.filter_map(|it| meaning::of_pod(it, PodsFrom::Kubelet));
    Ok(all.map(Arc::new).collect())
}

fn get(path: &str) -> Question {
    let question = Request::get(path).body(Vec::new());
    question.map_err(request::Error::BuildRequest)
}

/// See [`super::probe`].
pub(super) async fn probe(settings: &Settings, connector: &Connector) -> ApiServerFacts {
    let mut facts = ApiServerFacts {
        from: PodsFrom::Kubelet,
        node: settings.node.clone(),
        ..ApiServerFacts::default()
    };
    let unheard: Sink = Arc::new(|_| {});
    match connector.connect().await {
        Ok(connection) => {
            match seen(&connection.transport, &unheard, ANSWER).await {
                Ok(all) => facts.n_pods = all.len(),
                Err(failure) => facts.fault = Some(failure.why),
            }
            facts.voucher = connection.voucher();
            facts.server = Some(connection.server);
        }
        Err(error) => facts.fault = Some(chain(&error)),
    }
    facts
}
