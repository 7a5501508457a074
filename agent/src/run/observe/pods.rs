//! The pods of the node as the API server or kubelet has them: whom to ask, and how that goes.
//!
//! Invariant: what it tells is an addition, as a name is. Nothing waits for it.

use std::env;
use std::sync::Arc;

use super::tree::KubeTree;
use super::{Fault, Loop, kubelet};
use crate::api_server::{self, ApiServer, Settings};
use crate::check::without_workloads;
use crate::config::{ObserveConfig, ObservedPods};
use crate::decide::naming::Names;
use crate::model::api_pod::{ApiPod, Definition};
use crate::model::api_server::{ApiServerStatus, PodsFrom};
use crate::model::pod::is_dns_subdomain;
use crate::model::stats::KnownPod;
use crate::run::RunError;
use crate::sys::Root;

/// kubelet sets it in each container (pkg/kubelet/kubelet_pods.go).
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";

/// What the DaemonSet has from the downward API, by custom: `spec.nodeName`.
const NODE_NAME: &str = "NODE_NAME";

/// Who is asked for the pods of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) enum PodSource {
    Asked(Settings),
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
    /// kubelet had not heard of the service when it made the container (kubernetes/kubernetes 40973). The next has it.
    #[error(
        "{SERVICE_HOST}: is missing in the environment of a pod that has a service account and {NODE_NAME}; right would \
         be another container of the pod, which kubelet gives it, or pods.source none"
    )]
    NoService,
    #[error("kubernetes.kubeconfigFile: {0}")]
    Kubeconfig(String),
    #[error("pods.source: {0}")]
    ServiceAccount(String),
    #[error("ask the API server")]
    Io(#[from] std::io::Error),
}

impl PodSourceError {
    /// The fields of the configuration that it is concluded from.
    pub(in crate::run) const fn fields(&self) -> &'static [&'static str] {
        match self {
            Self::NoNode => &["kubernetes.nodeName", "pods.source"],
            Self::NoServer | Self::Kubeconfig(_) => &["kubernetes.kubeconfigFile", "pods.source"],
            Self::ServiceAccount(_) => &["pods.source"],
            Self::NoService | Self::Io(_) => &[],
        }
    }
}

/// Asks nobody.
pub(super) fn source(observe: &ObserveConfig) -> Result<PodSource, PodSourceError> {
    let kubernetes = &observe.kubernetes;
    let is_wanted = match observe.pods {
        ObservedPods::None => return Ok(PodSource::Nobody("pods.source is none".to_owned())),
        ObservedPods::ApiServer | ObservedPods::Kubelet => true,
        // A file that is named is to be used.
        ObservedPods::Any => kubernetes.kubeconfig_file.is_some(),
    };
    let is_in_pod = of_pod(SERVICE_HOST).is_some();
    if kubernetes.kubeconfig_file.is_none() && !is_in_pod {
        let has_account =
            Root::host().exists(api_server::SERVICE_ACCOUNT_TOKEN) && of_pod(NODE_NAME).is_some();
        return match is_wanted {
            _ if has_account => Err(PodSourceError::NoService),
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
        pods_from: match observe.pods {
            ObservedPods::Kubelet => PodsFrom::Kubelet,
            ObservedPods::Any | ObservedPods::None | ObservedPods::ApiServer => PodsFrom::ApiServer,
        },
    };
    match (api_server::fault(&settings)?, &settings.kubeconfig_file) {
        (None, _) => Ok(PodSource::Asked(settings)),
        // Told while it lasts, as of an agent that runs.
        (Some(fault), Some(_)) if fault.may_pass => Ok(PodSource::Asked(settings)),
        (Some(fault), Some(_)) => Err(PodSourceError::Kubeconfig(fault.why)),
        (Some(fault), None) if is_wanted => Err(PodSourceError::ServiceAccount(fault.why)),
        (Some(fault), None) => Ok(PodSource::Nobody(fault.why)),
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
pub(super) fn of_pod(name: &str) -> Option<String> {
    env::var(name).ok().filter(|it| !it.is_empty())
}

/// `None`: nobody is to be asked.
pub(super) fn watch(
    source: &PodSource,
    observe: &ObserveConfig,
    tree: &Arc<KubeTree>,
) -> Result<Option<ApiServer>, RunError> {
    let PodSource::Asked(settings) = source else {
        return Ok(None);
    };
    let of_finder = Arc::clone(tree);
    let kubelet = kubelet::finder(observe.clone(), move || {
        Some(of_finder.place()?.root.clone())
    });
    tree.metrics.begin_api(settings.pods_from, settings.events);
    tree.kernel.index_mut().names.ask_for_workloads();
    let of_sink = Arc::clone(tree);
    let sink = move |told| of_sink.hear_api_server(told);
    let watching = ApiServer::start(settings.clone(), kubelet, sink).map_err(RunError::Thread)?;
    if settings.pods_from == PodsFrom::Kubelet {
        tree.set_pod_asker(watching.pod_asker());
    }
    Ok(Some(watching))
}

impl Loop {
    /// Says who is asked.
    pub(super) fn begin_pods(&self) {
        if let PodSource::Nobody(why) = &self.pod_source {
            self.told
                .agent("PodsWithoutWorkloads", without_workloads(why));
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
        let server = status.server.as_deref().unwrap_or(status.from.as_str());
        let node = &status.node;
        if status.is_followed() && !was_followed {
            let (reason, text) = match status.from {
                PodsFrom::ApiServer => (
                    "ApiServerConnected",
                    format!("the pods of node {node} are watched on {server}"),
                ),
                PodsFrom::Kubelet => (
                    "KubeletConnected",
                    format!("the pods of node {node} are asked of its kubelet at {server}"),
                ),
            };
            self.told.agent(reason, text);
        }
        let fault = status.fault.as_ref();
        let fault = fault.map(|why| format!("{server} tells nothing of the pods of {node}: {why}"));
        self.set_fault(Fault::WithoutPods(status.from), fault);
        self.api_server = Some(status);
    }

    /// Tells of pods of which it cannot be known what they ask for.
    pub(super) fn take_definitions(&mut self) {
        let why = not_understood(self.tree.kernel.index().names.listed());
        self.set_fault(Fault::Undefined, why);
    }

    /// What the status document says of a list that may be that of another node. `pods`: those that run here.
    pub(super) fn strange_list(&self, pods: &[Arc<KnownPod>]) -> Option<String> {
        let status = self.api_server.as_ref()?;
        let is_strange = status.is_followed() && has_none(&self.tree.kernel.index().names, pods);
        is_strange.then(|| {
            let node = &status.node;
            match status.from {
                PodsFrom::ApiServer => format!(
                    "pods run here, and the API server has none of them on node {node}: kubernetes.nodeName may be \
                     that of another"
                ),
                PodsFrom::Kubelet => "pods run here, and kubelet tells of none of them: it may have been started while \
                                      the API server is away"
                    .to_owned(),
            }
        })
    }
}

/// Pods run, and none of them is listed.
fn has_none(names: &Names, pods: &[Arc<KnownPod>]) -> bool {
    !pods.is_empty() && !pods.iter().any(|it| names.is_listed(&it.pod.uid))
}

/// The pods that the API server has and that are not over, with what they ask for, as far as that is understood.
pub(super) fn defined(names: &Names) -> impl Iterator<Item = (&ApiPod, &Definition)> {
    let going = names.listed().filter(|it| !it.is_over);
    going.filter_map(|it| Some((&**it, it.definition.as_ref().ok()?)))
}

/// `None`: all are understood, or over.
fn not_understood<'a>(listed: impl Iterator<Item = &'a Arc<ApiPod>>) -> Option<String> {
    let going = listed.filter(|it| !it.is_over);
    let mut faults = going.filter_map(|it| Some((&it.pod, it.definition.as_ref().err()?)));
    let (pod, why) = faults.next()?;
    let (whose, they_are) = match faults.count() {
        0 => (format!("{pod} requests"), "it is"),
        1 => (format!("{pod} and 1 other pod request"), "they are"),
        n => (format!("{pod} and {n} other pods request"), "they are"),
    };
    Some(format!(
        "what {whose} is not understood, so {they_are} in no sum and in no eviction order: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decide::testing::api_pod;
    use crate::model::cgroup_path::CgroupPath;
    use crate::model::pod::QosClass;
    use crate::model::time::WallTime;

    fn pod(name: &str, is_over: bool, definition: Result<Definition, String>) -> Arc<ApiPod> {
        Arc::new(ApiPod {
            is_over,
            definition,
            ..api_pod(name)
        })
    }

    #[test]
    fn pods_that_are_over_or_not_understood_are_in_no_sum_and_only_the_latter_are_told() {
        let fault = || Err("spec.overhead[cpu]: `x` is no quantity".to_owned());
        let good = Definition::default;
        let mut names = Names::default();
        let mut learn = |pod| names.learn_pod(&pod);
        learn(pod("a", false, Ok(good())));
        learn(pod("b", true, Ok(good())));
        learn(pod("c", true, fault()));
        assert_eq!(not_understood(names.listed()), None);
        names.learn_pod(&pod("d", false, fault()));
        let why = not_understood(names.listed()).expect("one is not understood");
        let right = "what default/d requests is not understood, so it is in no sum and in no eviction order: \
                     spec.overhead[cpu]: `x` is no quantity";
        assert_eq!(why, right);
        names.learn_pod(&pod("e", false, fault()));
        let why = not_understood(names.listed()).expect("two are not");
        let right = "what default/d and 1 other pod request is not understood, so they are in no sum and in no \
                     eviction order: spec.overhead[cpu]: `x` is no quantity";
        assert_eq!(why, right);
        let summed: Vec<&str> = defined(&names)
            .map(|(it, _)| it.pod.name.as_str())
            .collect();
        assert_eq!(summed, ["a"]);
        names.unlist(|_| false, |_, _| true);
        assert_eq!(
            defined(&names).count(),
            0,
            "the API server has them no more"
        );
    }

    /// A copied configuration may name another node.
    #[test]
    fn a_list_with_none_of_the_pods_that_run_is_strange() {
        let run = |name: &str| {
            Arc::new(KnownPod {
                pod: api_pod(name).pod,
                qos: QosClass::Burstable,
                cgroup: CgroupPath::root(),
                started_at: WallTime::from_epoch(Duration::ZERO),
                sandbox: None,
                containers: Vec::new(),
            })
        };
        let mut names = Names::default();
        assert!(!has_none(&names, &[]));
        assert!(has_none(&names, &[run("a")]));
        names.learn_pod(&pod("b", false, Ok(Definition::default())));
        assert!(!has_none(&names, &[]));
        assert!(has_none(&names, &[run("a")]), "those of another node");
        assert!(!has_none(&names, &[run("a"), run("b")]));
    }
}
