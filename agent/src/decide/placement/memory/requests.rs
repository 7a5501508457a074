//! What containers and pods request of memory and huge pages
//! (pkg/kubelet/cm/memorymanager/policy_static.go, v1.36: `getContainerRequestedResources`,
//! `getPodRequestedResources`).

use std::collections::BTreeMap;

use super::errors::MemoryError;
use crate::config::Compat;
use crate::decide::qos::qos_class;
use crate::model::pod::{Container, Pod, QosClass, ResourceList};

/// Bytes by type: `memory`, `hugepages-2Mi`, ...
pub(super) type Amounts = BTreeMap<String, u64>;

/// Whether the memory manager gives out the resource.
pub(super) fn is_memory(resource: &str) -> bool {
    resource == "memory" || resource.starts_with("hugepages-")
}

/// How requests are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    pub(super) compat: Compat,
    pub(super) manages_pod_level: bool,
}

impl Requests {
    /// Whether the pod gets memory of its own at all.
    pub(super) fn is_managed(self, pod: &Pod) -> bool {
        qos_class(pod) == QosClass::Guaranteed
            && (self.manages_pod_level || !pod.has_pod_level_resources())
    }

    /// Whether the pod as a whole has a budget that its containers share.
    pub(super) fn is_pod_level(self, pod: &Pod) -> bool {
        self.manages_pod_level && pod.has_pod_level_resources()
    }

    /// What the container requests for itself alone; nothing if it shares the pod's budget.
    pub(super) fn of_container(
        self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Amounts, MemoryError> {
        if self.is_pod_level(pod) && !is_guaranteed(container) {
            return Ok(Amounts::new());
        }
        self.read(&container.resources.requests)
    }

    /// What the pod needs at any one time: its budget, or else what its containers add up to.
    pub(super) fn of_pod(self, pod: &Pod) -> Result<Amounts, MemoryError> {
        match &pod.resources {
            Some(own) if self.is_pod_level(pod) => {
                let mut amounts = self.read(&own.requests)?;
                if self.compat == Compat::Ballast {
                    // Huge pages that only containers name are part of the budget too.
                    for (resource, amount) in self.of_containers(pod)? {
                        amounts.entry(resource).or_insert(amount);
                    }
                }
                amounts.retain(|_, it| *it > 0);
                Ok(amounts)
            }
            _ => self.of_containers(pod),
        }
    }

    fn of_containers(self, pod: &Pod) -> Result<Amounts, MemoryError> {
        let mut sidecars = Amounts::new();
        let mut peak = Amounts::new();
        for container in &pod.init_containers {
            for (resource, amount) in self.of_container(pod, container)? {
                let before = sidecars.entry(resource.clone()).or_default();
                if container.is_sidecar {
                    *before = before.saturating_add(amount);
                } else {
                    let need = before.saturating_add(amount);
                    let peak = peak.entry(resource).or_default();
                    *peak = need.max(*peak);
                }
            }
        }
        let mut total = Amounts::new();
        for container in &pod.containers {
            for (resource, amount) in self.of_container(pod, container)? {
                let sum = total.entry(resource).or_default();
                *sum = sum.saturating_add(amount);
            }
        }
        if self.compat == Compat::Ballast {
            // Kubelet forgets the types that only init containers request.
            for resource in sidecars.keys() {
                total.entry(resource.clone()).or_default();
            }
        }
        for (resource, sum) in &mut total {
            let of = |amounts: &Amounts| amounts.get(resource).copied().unwrap_or(0);
            *sum = sum.saturating_add(of(&sidecars)).max(of(&peak));
        }
        Ok(total)
    }

    /// Refuses a budget that leaves nothing to containers that live on the rest of it.
    pub(super) fn check_pod_level(self, pod: &Pod, budget: &Amounts) -> Result<(), MemoryError> {
        let mut taken = Amounts::new();
        let mut is_shared = false;
        let exhausted = |taken: &Amounts| {
            // Kubelet asks for a rest of every type, but containers run without huge pages.
            let counts = |it: &str| self.compat == Compat::Kubelet || it == "memory";
            let is_taken = |(resource, total): &(&String, &u64)| {
                counts(resource) && taken.get(*resource).copied().unwrap_or(0) >= **total
            };
            budget.iter().find(is_taken).map(|(it, _)| it.clone())
        };
        for container in &pod.init_containers {
            let amounts = self.of_container(pod, container)?;
            if container.is_sidecar {
                is_shared |= amounts.is_empty();
                add(&mut taken, &amounts);
            } else if amounts.is_empty()
                && let Some(resource) = exhausted(&taken)
            {
                return Err(MemoryError::NothingForInitContainers { resource });
            }
        }
        for container in &pod.containers {
            let amounts = self.of_container(pod, container)?;
            is_shared |= amounts.is_empty();
            add(&mut taken, &amounts);
        }
        match exhausted(&taken) {
            Some(resource) if is_shared => Err(MemoryError::NothingLeftToShare { resource }),
            _ => Ok(()),
        }
    }

    /// Kubelet refuses amounts that its quantities do not hold as whole numbers, `1.5Gi` among them;
    /// otherwise they are rounded up to whole bytes.
    fn read(self, list: &ResourceList) -> Result<Amounts, MemoryError> {
        list.iter()
            .filter(|(resource, _)| is_memory(resource))
            .map(|(resource, amount)| {
                let bytes = match self.compat {
                    Compat::Ballast => Some(amount.units()),
                    Compat::Kubelet => amount.as_i64().and_then(|it| u64::try_from(it).ok()),
                };
                Ok((resource.clone(), bytes.ok_or(MemoryError::NotInt64)?))
            })
            .collect()
    }
}

fn add(sums: &mut Amounts, amounts: &Amounts) {
    for (resource, amount) in amounts {
        let sum = sums.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

/// Whether the container by itself would be Guaranteed.
fn is_guaranteed(container: &Container) -> bool {
    let own = &container.resources;
    ["cpu", "memory"].into_iter().all(|resource| {
        let request = own.requests.get(resource);
        request.is_some_and(|it| !it.is_zero()) && request == own.limits.get(resource)
    })
}
