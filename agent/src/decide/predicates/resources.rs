//! Whether there is enough left of each resource (NodeResourcesFit,
//! pkg/scheduler/framework/plugins/noderesources/fit.go, Kubernetes 1.36).

use std::collections::BTreeMap;
use std::fmt;

use super::NodeInfo;
use crate::decide::pod_resources::HUGEPAGES_PREFIX;
use crate::model::pod::{Overhead, Pod, PodLevel, ResourceList, is_qualified_name};
use crate::model::quantity::Quantity;

pub(in crate::decide) const CPU: &str = "cpu";
pub(super) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub(in crate::decide) const MEMORY: &str = "memory";
/// A pod is one of these; it is not in the lists of requests.
pub(in crate::decide) const PODS: &str = "pods";

/// Those with a place of their own, in the order in which they are looked at.
const NATIVE: [&str; 3] = [CPU, MEMORY, EPHEMERAL_STORAGE];

/// Resource name to [`figure`].
pub(super) type Figures = BTreeMap<String, i64>;

pub(super) fn figures(list: &ResourceList) -> Figures {
    let entry = |(name, amount): (&String, &Quantity)| (name.clone(), figure(name, amount));
    list.iter().map(entry).collect()
}

/// Thousandths of CPU, bytes, or a count; rounded up.
pub(in crate::decide) fn figure(name: &str, amount: &Quantity) -> i64 {
    match name {
        CPU => amount.milli_value(),
        _ => amount.value(),
    }
}

/// More of a resource is requested than is left of it. Figures are thousandths of CPU, bytes, or counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: i64,
    /// By the pods that are in.
    pub used: i64,
    /// What the node has for pods, all together.
    pub capacity: i64,
}

impl Shortage {
    /// What has to become free for the pod, above 0.
    pub fn missing(&self) -> i64 {
        let left = self.capacity.saturating_sub(self.used);
        self.requested.saturating_sub(left)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            requested,
            used,
            capacity,
        } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        )
    }
}

impl NodeInfo {
    /// Pods first, then CPU, memory and storage, then the others by name; kubelet has no order there.
    pub(super) fn shortages(&self, pod: &Pod, listed: &Figures) -> Vec<Shortage> {
        let mut requests = requests(pod, listed);
        let native =
            NATIVE.map(|name| (name.to_owned(), requests.remove(name).unwrap_or_default()));
        let pods = (PODS.to_owned(), 1);
        let others = requests.into_iter().filter(|(name, _)| is_scalar(name));
        let wanted = std::iter::once(pods).chain(native).chain(others);
        let shortage = |(resource, requested): (String, i64)| {
            let used = match resource.as_str() {
                PODS => self.n_pods,
                name => self.requested.get(name).copied().unwrap_or_default(),
            };
            let capacity = self.allocatable.get(&resource).copied().unwrap_or_default();
            let is_short = requested > 0
                && requested > capacity.saturating_sub(used)
                && !self.node.unknown.contains(&resource);
            is_short.then_some(Shortage {
                resource,
                requested,
                used,
                capacity,
            })
        };
        wanted.filter_map(shortage).collect()
    }
}

/// What the pod asks of this node. An extended resource that the node does not list is given by the
/// cluster, or by nobody: what containers request of it does not count.
fn requests(pod: &Pod, listed: &Figures) -> Figures {
    let mut requests = pod.requests(PodLevel::Honoured, Overhead::Added);
    requests.retain(|name, amount| {
        if is_extended(name) && !listed.contains_key(name) {
            match pod.overhead.get(name) {
                Some(overhead) => *amount = overhead.clone(),
                None => return false,
            }
        }
        true
    });
    figures(&requests)
}

/// A resource that somebody has added to Kubernetes' own (`IsExtendedResourceName`,
/// pkg/apis/core/v1/helper/helpers.go). Its quota must have a name as well.
fn is_extended(name: &str) -> bool {
    const QUOTA_PREFIX: &str = "requests.";
    name.contains('/')
        && !is_in_kubernetes_domain(name)
        && !name.starts_with(QUOTA_PREFIX)
        && is_qualified_name(&format!("{QUOTA_PREFIX}{name}"))
}

fn is_in_kubernetes_domain(name: &str) -> bool {
    name.contains("kubernetes.io/")
}

/// Beside [`NATIVE`], the resources that are counted at all (`IsScalarResourceName`,
/// pkg/scheduler/util/utils.go).
fn is_scalar(name: &str) -> bool {
    is_extended(name)
        || is_in_kubernetes_domain(name)
        || name.starts_with(HUGEPAGES_PREFIX)
        || name.starts_with("attachable-volumes-")
}
