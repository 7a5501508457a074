//! Who goes so that a critical pod can come (kubelet 1.36, pkg/kubelet/preemption/preemption.go). In:
//! what speaks against the pod, and the pods that are in. Out: the pods to kill, in that order, or a
//! refusal in kubelet's words. Pinned by suite `admission`.
//!
//! Guaranteed pods go only for what all others together cannot free, and Burstable ones only for what
//! BestEffort ones cannot. Of equals, the later one in the list goes.
//!
//! The caller kills them one after the other and lets the pod in even where that fails.

use std::borrow::Cow;
use std::fmt;

use super::eviction::facts::{is_critical, priority};
use super::predicates::{CPU, Failure, MEMORY, PODS, figure};
use super::qos::qos_class;
use crate::config::Compat;
use crate::model::admission::{Refusal, RefusalReason};
use crate::model::pod::{Pod, QosClass, ResourceList};

/// Why a pod does not come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// This is the first thing that speaks against it.
    Failed(Failure),
    /// It is critical, and all whom it may preempt together do not free this much.
    NoVictims(Vec<Requirement>),
}

impl Rejection {
    /// `status.reason` of the pod.
    pub fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::Failed(failure) => failure.reason(),
            Self::NoVictims(_) => Cow::Borrowed(RefusalReason::UnexpectedAdmissionError.as_str()),
        }
    }
}

impl Rejection {
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Failed(failure) => failure.refusal(),
            Self::NoVictims(_) => Refusal {
                reason: RefusalReason::UnexpectedAdmissionError,
                message: self.to_string(),
                container: None,
            },
        }
    }
}

/// Kubelet's message.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = match self {
            Self::Failed(failure) => return failure.fmt(f),
            Self::NoVictims(missing) => missing,
        };
        f.write_str(
            "Unexpected error while attempting to recover from admission failure: preemption: error \
             finding a set of pods to preempt: no set of running pods found to reclaim resources: [",
        )?;
        for Requirement { resource, amount } in missing {
            write!(f, "(res: {resource}, q: {amount}), ")?;
        }
        f.write_str("]")
    }
}

/// What has to become free: thousandths of CPU, bytes, or a count; above 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub resource: String,
    pub amount: i64,
}

/// Whom to kill so that the pod can come; nobody where nothing speaks against it. `active`: the pods
/// that are in.
pub fn resolve<'a>(
    pod: &Pod,
    failures: &[Failure],
    active: impl IntoIterator<Item = &'a Pod>,
    compat: Compat,
) -> Result<Vec<&'a Pod>, Rejection> {
    let is_about_resources = |it: &Failure| matches!(it, Failure::InsufficientResource(_));
    let decisive = match is_critical(pod, compat) {
        // Whatever is short can be freed, if there is nothing else.
        true => failures.iter().find(|it| !is_about_resources(it)),
        false => failures.first(),
    };
    if let Some(failure) = decisive {
        return Err(Rejection::Failed(failure.clone()));
    }
    let shortages = failures.iter().filter_map(|it| match it {
        Failure::InsufficientResource(shortage) => Some(shortage),
        _ => None,
    });
    let requirements = shortages.map(|it| Requirement {
        resource: it.resource.clone(),
        amount: it.missing(),
    });
    victims(pod, requirements.collect(), active, compat)
}

fn victims<'a>(
    preemptor: &Pod,
    requirements: Vec<Requirement>,
    active: impl IntoIterator<Item = &'a Pod>,
    compat: Compat,
) -> Result<Vec<&'a Pod>, Rejection> {
    let mut best_effort = Vec::new();
    let mut burstable = Vec::new();
    let mut guaranteed = Vec::new();
    for pod in active {
        if is_preemptable(preemptor, pod, compat) {
            let candidates = match qos_class(pod) {
                QosClass::BestEffort => &mut best_effort,
                QosClass::Burstable => &mut burstable,
                QosClass::Guaranteed => &mut guaranteed,
            };
            candidates.push(Candidate::new(pod));
        }
    }
    let all = best_effort.iter().chain(&burstable).chain(&guaranteed);
    let unmet = left_after(&requirements, all);
    if !unmet.is_empty() {
        return Err(Rejection::NoVictims(unmet));
    }
    let others = best_effort.iter().chain(&burstable);
    let guaranteed = nearest(guaranteed, left_after(&requirements, others))?;
    let others = best_effort.iter().chain(&guaranteed);
    let burstable = nearest(burstable, left_after(&requirements, others))?;
    let others = burstable.iter().chain(&guaranteed);
    let best_effort = nearest(best_effort, left_after(&requirements, others))?;
    let victims = best_effort.into_iter().chain(burstable).chain(guaranteed);
    Ok(victims.map(|it| it.pod).collect())
}

fn is_preemptable(preemptor: &Pod, pod: &Pod, compat: Compat) -> bool {
    let is_below = matches!(
        (priority(preemptor, compat), priority(pod, compat)),
        (Some(preemptors), Some(own)) if preemptors > own
    );
    is_below || (is_critical(preemptor, compat) && !is_critical(pod, compat))
}

/// A pod that may go.
struct Candidate<'a> {
    pod: &'a Pod,
    /// Of the pod as a whole where that has resources of its own, or else of its containers.
    requests: ResourceList,
}

impl<'a> Candidate<'a> {
    fn new(pod: &'a Pod) -> Self {
        let pod_level = pod.pod_level_requests();
        let requests = pod_level.unwrap_or_else(|| pod.container_requests());
        Self { pod, requests }
    }

    /// What its end frees. Overhead counts beside a request, not alone.
    fn request(&self, resource: &str) -> i64 {
        if resource == PODS {
            return 1;
        }
        let Some(amount) = self.requests.get(resource) else {
            return 0;
        };
        match self.pod.overhead.get(resource) {
            Some(overhead) if !amount.is_zero() => figure(resource, &amount.plus(overhead)),
            Some(_) | None => figure(resource, amount),
        }
    }

    /// How far it is from what is required: the share of each requirement that it leaves, squared, and
    /// all of them summed up. The same arithmetic as kubelet's, so that equals are equal in both.
    fn distance(&self, requirements: &[Requirement]) -> f64 {
        let left = |it: &Requirement| {
            let left = it.amount.saturating_sub(self.request(&it.resource)).max(0);
            let share = left as f64 / it.amount as f64;
            share * share
        };
        requirements.iter().map(left).sum()
    }

    /// The one with the smaller requests goes first.
    fn size(&self) -> [i64; 2] {
        [MEMORY, CPU].map(|it| self.request(it))
    }
}

/// What is still required when these pods are gone.
fn left_after<'a>(
    requirements: &[Requirement],
    gone: impl Iterator<Item = &'a Candidate<'a>> + Clone,
) -> Vec<Requirement> {
    let left = |it: &Requirement| {
        let freed = gone.clone().map(|pod| pod.request(&it.resource));
        let freed = freed.fold(0, i64::saturating_add);
        let amount = it.amount.saturating_sub(freed);
        (amount > 0).then(|| Requirement {
            resource: it.resource.clone(),
            amount,
        })
    };
    requirements.iter().filter_map(left).collect()
}

/// One after the other, the pod that is nearest to what is still required.
fn nearest<'a>(
    mut candidates: Vec<Candidate<'a>>,
    mut requirements: Vec<Requirement>,
) -> Result<Vec<Candidate<'a>>, Rejection> {
    let mut chosen = Vec::new();
    while !requirements.is_empty() {
        let key = |it: &Candidate<'_>| (it.distance(&requirements), it.size());
        let mut best: Option<(usize, (f64, [i64; 2]))> = None;
        for (i, candidate) in candidates.iter().enumerate() {
            let key = key(candidate);
            if best.is_none_or(|(_, best)| key <= best) {
                best = Some((i, key));
            }
        }
        let Some((best, _)) = best else {
            return Err(Rejection::NoVictims(requirements));
        };
        // The last one takes its place, which settles who is the later one of equals next.
        let candidate = candidates.swap_remove(best);
        requirements = left_after(&requirements, std::iter::once(&candidate));
        chosen.push(candidate);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests;
