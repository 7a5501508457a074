//! What a pod as a whole requests and is limited to: regular containers, init containers and
//! sidecars, pod-level values and overhead (component-helpers, resource/helpers.go, v1.36:
//! `PodRequests`, `PodLimits`). One running sum serves requests and limits.

use super::{Container, Pod, ResourceList, Resources};
use crate::model::quantity::Quantity;

/// Whether pod-level values (`spec.resources`, KEP-2837) go before the containers' sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLevel {
    Honoured,
    Ignored,
}

/// Whether `spec.overhead` is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    Added,
    Left,
}

/// What a pod with resources of its own requests of those that they do not name, to eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unnamed {
    /// What its containers do.
    OfContainers,
    /// Nothing, local storage included, which they cannot name: kubelet's rule.
    Nothing,
}

/// Requests or limits of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    pub amounts: ResourceList,
    /// Every container, at its turn, has a value for `cpu`: only then is the sum a bound for the
    /// pod. A pod-level value is one as well.
    pub is_cpu_declared: bool,
    /// The same for `memory`.
    pub is_memory_declared: bool,
}

/// The resources that `spec.resources` may carry.
pub(super) fn is_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn add(total: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        match total.get_mut(name) {
            Some(sum) => *sum = sum.plus(amount),
            None => {
                total.insert(name.clone(), amount.clone());
            }
        }
    }
}

pub(super) fn raise(total: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        match total.get_mut(name) {
            Some(peak) if *peak >= *amount => {}
            _ => {
                total.insert(name.clone(), amount.clone());
            }
        }
    }
}

fn is_positive(list: &ResourceList, name: &str) -> bool {
    list.get(name).is_some_and(|it| !it.is_zero())
}

impl Pod {
    /// What the pod requests.
    pub fn requests(&self, pod_level: PodLevel, overhead: Overhead) -> ResourceList {
        let mut total = self.container_requests();
        // Unlike limits, requests are replaced only where pod-level requests are given.
        if pod_level == PodLevel::Honoured
            && let Some(own) = &self.resources
            && !own.requests.is_empty()
        {
            replace(&mut total, &own.requests);
        }
        if overhead == Overhead::Added {
            add(&mut total, &self.overhead);
        }
        total
    }

    /// What its use of a resource is compared with when somebody has to go; overhead comes on top only of something
    /// (Kubernetes 1.36, pkg/api/v1/resource/helpers.go, `GetResourceRequestQuantity`).
    pub fn request_to_rank(&self, resource: &str, unnamed: Unnamed) -> Quantity {
        let own = match unnamed {
            Unnamed::Nothing => self.pod_level_requests(),
            Unnamed::OfContainers => None,
        };
        let of_all = || self.requests(PodLevel::Honoured, Overhead::Left);
        let requests = own.unwrap_or_else(of_all);
        let request = requests.get(resource).filter(|it| !it.is_zero());
        match (request, self.overhead.get(resource)) {
            (Some(request), Some(overhead)) => request.plus(overhead),
            (Some(request), None) => request.clone(),
            (None, _) => Quantity::ZERO,
        }
    }

    /// What the pod takes of its node: its requests with overhead, and while a resize is under way what
    /// the containers still hold or may get.
    pub fn counted_requests(&self) -> ResourceList {
        let mut total = self
            .sum(|it| counted(&it.counted_requests, &it.resources))
            .amounts;
        if let Some(own) = &self.resources {
            replace(&mut total, counted(&self.counted_requests, own));
        }
        add(&mut total, &self.overhead);
        total
    }

    /// What the pod is limited to, as far as it is.
    pub fn limits(&self, pod_level: PodLevel, overhead: Overhead) -> Totals {
        let mut total = self.sum(|it| &it.resources.limits);
        if pod_level == PodLevel::Honoured
            && let Some(own) = &self.resources
        {
            replace(&mut total.amounts, &own.limits);
            total.is_cpu_declared |= is_positive(&own.limits, "cpu");
            total.is_memory_declared |= is_positive(&own.limits, "memory");
        }
        if overhead == Overhead::Added {
            // Overhead alone does not make an unlimited pod limited.
            for (name, amount) in &self.overhead {
                if let Some(limit) = total.amounts.get_mut(name)
                    && !limit.is_zero()
                {
                    *limit = limit.plus(amount);
                }
            }
        }
        total
    }

    /// What the containers request together, without pod-level values and overhead.
    pub fn container_requests(&self) -> ResourceList {
        self.sum(|it| &it.resources.requests).amounts
    }

    /// Whether `spec.resources` names anything that a pod can have as a whole.
    pub fn has_pod_level_resources(&self) -> bool {
        let own = self.resources.iter();
        own.flat_map(|it| it.requests.keys().chain(it.limits.keys()))
            .any(|name| is_pod_level_resource(name))
    }

    /// What the pod requests as a whole. `None`: it has no resources as a whole, not even limits.
    pub fn pod_level_requests(&self) -> Option<ResourceList> {
        let own = self.resources.as_ref()?;
        let mut requests = ResourceList::new();
        replace(&mut requests, &own.requests);
        self.has_pod_level_resources().then_some(requests)
    }

    /// The pod-level request, where it counts at all.
    pub fn pod_level_request(&self, name: &str) -> Option<&Quantity> {
        self.resources.as_ref()?.requests.get(name)
    }

    fn sum<'a>(&'a self, of: impl Fn(&'a Container) -> &'a ResourceList) -> Totals {
        let mut total = ResourceList::new();
        let mut sidecars = ResourceList::new();
        let mut peak = ResourceList::new();
        let mut is_declared = [true; 2];
        let mut note = |list: &ResourceList| {
            for (is_declared, name) in is_declared.iter_mut().zip(["cpu", "memory"]) {
                *is_declared &= is_positive(list, name);
            }
        };
        for container in &self.containers {
            add(&mut total, of(container));
            note(of(container));
        }
        for container in &self.init_containers {
            // An init container runs beside the sidecars that were started before it.
            let mut need = of(container).clone();
            add(&mut need, &sidecars);
            if container.is_sidecar {
                add(&mut total, of(container));
                add(&mut sidecars, of(container));
            }
            note(&need);
            raise(&mut peak, &need);
        }
        raise(&mut total, &peak);
        let [is_cpu_declared, is_memory_declared] = is_declared;
        Totals {
            amounts: total,
            is_cpu_declared,
            is_memory_declared,
        }
    }
}

fn counted<'a>(counted: &'a Option<ResourceList>, own: &'a Resources) -> &'a ResourceList {
    counted.as_ref().unwrap_or(&own.requests)
}

fn replace(total: &mut ResourceList, pod_level: &ResourceList) {
    for (name, amount) in pod_level {
        if is_pod_level_resource(name) {
            total.insert(name.clone(), amount.clone());
        }
    }
}
