//! The pods of the node as the API server has them: whom to ask, and how that goes.
//!
//! Invariant: what it tells is an addition, as a name is. Nothing waits for it.

use std::env;
use std::sync::Arc;

use super::tree::KubeTree;
use super::{Fault, Loop, names};
use crate::api_server::{self, ApiServer, Settings};
use crate::config::{ObserveConfig, ObservedPods};
use crate::model::api_server::ApiServerStatus;
use crate::model::pod::is_dns_subdomain;
use crate::observe::event_log::EventLog;
use crate::run::RunError;

/// kubelet sets it in each container (pkg/kubelet/kubelet_pods.go).
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";

/// What the DaemonSet has from the downward API, by custom: `spec.nodeName`.
const NODE_NAME: &str = "NODE_NAME";

/// Who is asked for the pods of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) enum PodSource {
    ApiServer(Settings),
    /// Why.
    Nobody(String),
}

#[derive(Debug, thiserror::Error)]
pub enum PodSourceError {
    #[error(
        "kubernetes.nodeName: is missing, and the environment has no {NODE_NAME} that is the name of a node; right \
         would be the metadata.name of this one, or pods.source none"
    )]
    NoNode,
    #[error(
        "kubernetes.kubeconfigFile: is missing, and the agent runs in no pod; right would be a kubeconfig file, or \
         pods.source none"
    )]
    NoServer,
    #[error("kubernetes.kubeconfigFile: {0}")]
    Kubeconfig(String),
    #[error("pods.source: {0}")]
    ServiceAccount(String),
    #[error("ask the API server")]
    Io(#[from] std::io::Error),
}

/// Asks nobody.
pub(super) fn source(observe: &ObserveConfig) -> Result<PodSource, PodSourceError> {
    let kubernetes = &observe.kubernetes;
    let is_wanted = match observe.pods {
        ObservedPods::None => return Ok(PodSource::Nobody("pods.source is none".to_owned())),
        ObservedPods::ApiServer => true,
        // A file that is named is to be used.
        ObservedPods::Any => kubernetes.kubeconfig_file.is_some(),
    };
    let is_in_pod = of_pod(SERVICE_HOST).is_some();
    if kubernetes.kubeconfig_file.is_none() && !is_in_pod {
        return match is_wanted {
            true => Err(PodSourceError::NoServer),
            false => Ok(PodSource::Nobody(
                "no kubernetes.kubeconfigFile, and the agent runs in no pod".to_owned(),
            )),
        };
    }
    let Some(node) = node_name(observe) else {
        return match is_wanted {
            true => Err(PodSourceError::NoNode),
            false => Ok(PodSource::Nobody(format!(
                "no kubernetes.nodeName, and the environment has no {NODE_NAME} that is the name of a node"
            ))),
        };
    };
    let settings = Settings {
        node,
        kubeconfig_file: kubernetes.kubeconfig_file.clone(),
        events: kubernetes.events,
    };
    match (api_server::fault(&settings)?, &settings.kubeconfig_file) {
        (None, _) => Ok(PodSource::ApiServer(settings)),
        (Some(why), Some(_)) => Err(PodSourceError::Kubeconfig(why)),
        (Some(why), None) if is_wanted => Err(PodSourceError::ServiceAccount(why)),
        (Some(why), None) => Ok(PodSource::Nobody(why)),
    }
}

/// What the node is called in its cluster; `None`: nobody says.
pub(super) fn node_name(observe: &ObserveConfig) -> Option<String> {
    let configured = observe.kubernetes.node_name.clone();
    configured.or_else(|| of_pod(NODE_NAME).filter(|it| is_dns_subdomain(it)))
}

/// A variable of the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "what Kubernetes tells a pod of itself, which no file of the agent has"
)]
fn of_pod(name: &str) -> Option<String> {
    env::var(name).ok().filter(|it| !it.is_empty())
}

/// `None`: nobody is to be asked.
pub(super) fn watch(
    source: &PodSource,
    tree: &Arc<KubeTree>,
    log: &EventLog,
) -> Result<Option<ApiServer>, RunError> {
    let PodSource::ApiServer(settings) = source else {
        return Ok(None);
    };
    tree.metrics.begin_api(settings.events);
    tree.kernel.index_mut().names.ask_for_workloads();
    let (of_sink, log) = (Arc::clone(tree), log.clone());
    let sink = move |told| {
        if of_sink.hear_api_server(told) {
            names::amend(&log, &of_sink);
        }
    };
    let watching = ApiServer::start(settings.clone(), sink).map_err(RunError::Thread)?;
    Ok(Some(watching))
}

impl Loop {
    /// Says who is asked.
    pub(super) fn begin_pods(&self) {
        if let PodSource::Nobody(why) = &self.pod_source {
            self.told.agent("PodsWithoutWorkloads", without(why));
        }
    }

    /// Tells how the API server is, where that has changed.
    pub(super) fn take_api_server(&mut self) {
        let status = self.tree.api_server();
        if status == self.api_server {
            return;
        }
        let Some(status) = status else { return };
        let was_followed = self
            .api_server
            .as_ref()
            .is_some_and(ApiServerStatus::is_followed);
        let server = status.server.as_deref().unwrap_or("the API server");
        let node = &status.node;
        if status.is_followed() && !was_followed {
            let text = format!("the pods of node {node} are watched on {server}");
            self.told.agent("ApiServerConnected", text);
        }
        let fault = status.fault.as_ref();
        let fault = fault.map(|why| format!("{server} tells nothing of the pods of {node}: {why}"));
        self.set_fault(Fault::WithoutApiServer, fault);
        self.api_server = Some(status);
    }

    /// What the status document says of a list that may be that of another node.
    pub(super) fn strange_list(&self, n_pods: usize) -> Option<String> {
        let status = self.api_server.as_ref()?;
        let is_empty = status.is_followed() && self.tree.kernel.index().names.n_listed() == 0;
        (is_empty && n_pods > 0).then(|| {
            let node = &status.node;
            format!(
                "pods run here, and the API server has none of node {node}: kubernetes.nodeName may be that of another"
            )
        })
    }
}

/// What follows from it, for the event and for `ballast check`.
pub(super) fn without(why: &str) -> String {
    format!("pods are shown without their workloads: {why}")
}
