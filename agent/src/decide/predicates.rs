//! Whether the node takes a pod: kubelet's predicates at admission (kubelet 1.36,
//! pkg/kubelet/lifecycle/predicate.go, and the filters of the scheduler that it runs). In: the node,
//! the pods that are in, the pod that wants to be. Out: everything that speaks against it, in kubelet's
//! order and words. Pinned by suite `admission`.
//!
//! [`preemption`](super::preemption) chooses who makes room for a critical pod. Devices count as far as
//! the node lists them. Resources that DRA gives are not known here.

mod node_affinity;
mod resources;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::resources::{EPHEMERAL_STORAGE, Figures, figures};
use super::node_allocatable::{NodeAllocatable, n_pods};
use super::pod_resources::HUGEPAGES_PREFIX;
use crate::config::KubeletConfig;
use crate::model::admission::{Refusal, RefusalReason};
use crate::model::pod::node_requirements::{HostPort, Taint, TaintEffect};
use crate::model::pod::{Pod, ResourceList};

pub use self::resources::Shortage;
pub(super) use self::resources::{CPU, MEMORY, PODS, figure};

const OS: &str = "linux";
const OS_LABEL: &str = "kubernetes.io/os";

/// The node as the API has it, as far as predicates look at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `status.allocatable`: what pods may request together. What it does not list is 0.
    pub allocatable: ResourceList,
    /// Resources whose amount could not be read: they refuse nobody.
    pub unknown: BTreeSet<String>,
    /// `status.features.supplementalGroupsPolicy`: the runtime gives a container no groups but those
    /// that its pod names, where it is told to.
    pub has_groups_policy: bool,
}

impl Node {
    /// The node of an agent without an API server, on a machine of so many CPUs. It has the labels that
    /// kubelet gives a node then. Containers get no groups but those that their pod names, where it says so.
    pub fn standalone(
        name: &str,
        allocatable: &NodeAllocatable,
        kubelet: &KubeletConfig,
        n_cpus: u32,
    ) -> Self {
        let n_pods = n_pods(n_cpus, kubelet.max_pods, kubelet.pods_per_core);
        let mut allocatable = allocatable.node_allocatable(n_pods);
        if !kubelet.local_storage_capacity_isolation {
            allocatable.remove(EPHEMERAL_STORAGE);
        }
        let storage = Some(EPHEMERAL_STORAGE.to_owned());
        let unknown = storage.filter(|it| !allocatable.contains_key(it));
        let labels = [
            ("kubernetes.io/hostname", name),
            (OS_LABEL, OS),
            ("kubernetes.io/arch", go_arch()),
            ("beta.kubernetes.io/os", OS),
            ("beta.kubernetes.io/arch", go_arch()),
        ];
        Self {
            name: name.to_owned(),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            taints: Vec::new(),
            allocatable,
            unknown: unknown.into_iter().collect(),
            has_groups_policy: true,
        }
    }
}

/// This machine's architecture, as Go and with it Kubernetes calls it.
const fn go_arch() -> &'static str {
    match std::env::consts::ARCH.as_bytes() {
        b"x86_64" => "amd64",
        b"aarch64" => "arm64",
        _ => std::env::consts::ARCH,
    }
}

/// Something that speaks against a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The label `kubernetes.io/os` of the pod is not that of the node.
    OsLabel,
    /// `spec.os.name`.
    Os,
    SupplementalGroupsPolicy,
    InsufficientResource(Shortage),
    NodeAffinity,
    NodeName,
    NodePorts,
    TaintToleration,
}

impl Failure {
    /// `status.reason` of the pod.
    pub fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::InsufficientResource(it) => Cow::Owned(format!("OutOf{}", it.resource)),
            other => Cow::Borrowed(other.class().as_str()),
        }
    }

    /// The reason out of a fixed list, which leaves out what size of page or which device is short.
    pub fn class(&self) -> RefusalReason {
        match self {
            Self::OsLabel => RefusalReason::PodOsSelectorNodeLabelDoesNotMatch,
            Self::Os => RefusalReason::PodOsNotSupported,
            Self::SupplementalGroupsPolicy => RefusalReason::SupplementalGroupsPolicyNotSupported,
            Self::InsufficientResource(it) => match it.resource.as_str() {
                PODS => RefusalReason::OutOfPods,
                CPU => RefusalReason::OutOfCpu,
                MEMORY => RefusalReason::OutOfMemory,
                EPHEMERAL_STORAGE => RefusalReason::OutOfEphemeralStorage,
                name if name.starts_with(HUGEPAGES_PREFIX) => RefusalReason::OutOfHugepages,
                _ => RefusalReason::OutOfExtendedResources,
            },
            Self::NodeAffinity => RefusalReason::NodeAffinity,
            Self::NodeName => RefusalReason::NodeName,
            Self::NodePorts => RefusalReason::NodePorts,
            Self::TaintToleration => RefusalReason::TaintToleration,
        }
    }

    pub fn refusal(&self) -> Refusal {
        Refusal {
            reason: self.class(),
            message: self.to_string(),
            container: None,
        }
    }
}

/// Kubelet's message.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Self::OsLabel => {
                return f.write_str(
                    "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
                );
            }
            Self::Os => {
                return f.write_str("Failed to admit pod as the OS field doesn't match node OS");
            }
            Self::SupplementalGroupsPolicy => {
                return f
                    .write_str("SupplementalGroupsPolicy=Strict is not supported in this node");
            }
            Self::InsufficientResource(it) => return it.fmt(f),
            Self::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Self::NodeName => "node(s) didn't match the requested node name",
            Self::NodePorts => "node(s) didn't have free ports for the requested pod ports",
            Self::TaintToleration => "node(s) had taints that the pod didn't tolerate",
        };
        write!(f, "Predicate {} failed: {why}", self.reason())
    }
}

/// The node with what the pods that are in take of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    node: Node,
    allocatable: Figures,
    n_pods: i64,
    requested: Figures,
    host_ports: Vec<HostPort>,
}

impl NodeInfo {
    /// `admitted` are the pods that run or will run.
    pub fn new<'a>(mut node: Node, admitted: impl IntoIterator<Item = &'a Pod>) -> Self {
        // Kubelet does so only where there are labels at all.
        if let Some(os) = node.labels.get_mut(OS_LABEL) {
            OS.clone_into(os);
        } else if !node.labels.is_empty() {
            node.labels.insert(OS_LABEL.to_owned(), OS.to_owned());
        }
        let mut info = Self {
            allocatable: figures(&node.allocatable),
            node,
            n_pods: 0,
            requested: Figures::new(),
            host_ports: Vec::new(),
        };
        for pod in admitted {
            info.take(pod);
        }
        info
    }

    /// The pod is in from now on.
    pub fn take(&mut self, pod: &Pod) {
        self.n_pods += 1;
        self.add(pod, &Figures::new());
    }

    /// A pod is in of which no more is known than what it requests.
    pub fn take_requests(&mut self, requests: &ResourceList) {
        self.n_pods += 1;
        self.add_requests(requests, &Figures::new());
    }

    /// The pod comes in the place of one that is in, once that has ended: it counts as far as it asks for more.
    pub fn take_after(&mut self, pod: &Pod, before: &Pod) {
        self.add(pod, &figures(&before.counted_requests()));
    }

    /// `had`: what of its requests is counted already.
    fn add(&mut self, pod: &Pod, had: &Figures) {
        self.add_requests(&pod.counted_requests(), had);
        let host_ports = &pod.node_requirements.host_ports;
        self.host_ports.extend(host_ports.iter().cloned());
    }

    fn add_requests(&mut self, requests: &ResourceList, had: &Figures) {
        for (name, figure) in figures(requests) {
            let had = had.get(&name).copied().unwrap_or_default();
            let sum = self.requested.entry(name).or_default();
            *sum = sum.saturating_add(figure.saturating_sub(had).max(0));
        }
    }

    /// What speaks against the pod; nothing: it fits. `fresh`: the node as it is by now, which is looked
    /// at where nothing but labels speak against the pod. `None`: there is none newer.
    pub fn failures(&self, pod: &Pod, fresh: Option<&Node>) -> Vec<Failure> {
        if let Some(failure) = self.misfit(pod) {
            return vec![failure];
        }
        let listed = &self.allocatable;
        let failures = self.general_failures(pod, listed);
        match fresh {
            Some(fresh) if failures == [Failure::NodeAffinity] => {
                let again = Self {
                    allocatable: figures(&fresh.allocatable),
                    node: fresh.clone(),
                    ..self.clone()
                };
                again.general_failures(pod, listed)
            }
            Some(_) | None => failures,
        }
    }

    /// The first thing that speaks against the pod, if anything does.
    pub fn refusal(&self, pod: &Pod) -> Option<Refusal> {
        let failures = self.failures(pod, None);
        failures.first().map(Failure::refusal)
    }

    /// What nobody's going could mend. It stands alone.
    fn misfit(&self, pod: &Pod) -> Option<Failure> {
        let requirements = &pod.node_requirements;
        if pod.labels.get(OS_LABEL).is_some_and(|it| it != OS) {
            return Some(Failure::OsLabel);
        }
        if requirements.os.as_ref().is_some_and(|it| it != OS) {
            return Some(Failure::Os);
        }
        let lacks_policy = requirements.has_strict_groups && !self.node.has_groups_policy;
        lacks_policy.then_some(Failure::SupplementalGroupsPolicy)
    }

    /// `listed`: the resources that the node listed when it was first looked at.
    fn general_failures(&self, pod: &Pod, listed: &Figures) -> Vec<Failure> {
        let shortages = self.shortages(pod, listed);
        let shortages = shortages.into_iter().map(Failure::InsufficientResource);
        let rules = [
            (
                Failure::NodeAffinity,
                node_affinity::matches(pod, &self.node),
            ),
            (Failure::NodeName, self.is_named(pod)),
            (Failure::NodePorts, self.has_ports(pod)),
            (Failure::TaintToleration, self.is_tolerated(pod)),
        ];
        let broken = rules.into_iter().filter(|(_, holds)| !holds);
        shortages
            .chain(broken.map(|(failure, _)| failure))
            .collect()
    }

    fn is_named(&self, pod: &Pod) -> bool {
        pod.node_name
            .as_ref()
            .is_none_or(|it| *it == self.node.name)
    }

    fn has_ports(&self, pod: &Pod) -> bool {
        let mut wanted = pod.node_requirements.host_ports.iter();
        wanted.all(|port| !self.host_ports.iter().any(|it| it.conflicts_with(port)))
    }

    /// Kubelet asks about one effect, and not for static pods.
    fn is_tolerated(&self, pod: &Pod) -> bool {
        let mut taints = self.node.taints.iter();
        pod.is_static() || taints.all(|it| it.effect != TaintEffect::NoExecute || pod.tolerates(it))
    }
}

#[cfg(test)]
mod tests;
