//! What would let a refused pod in: the admission is tried again with one thing changed at a time.
//!
//! Every remedy that is named was tried and admits the pod. That none is named does not mean that
//! there is none.

use super::admission::{Outcome, admit};
use super::devices::PluginAnswers;
use super::managers::Managers;
use crate::config::TopologyManagerPolicy;
use crate::model::admission::{Refusal, RefusalReason, Remedy};
use crate::model::pod::{Container, Pod};
use crate::model::quantity::{Format, Quantity};

/// Other pods that are taken away for a try, at most. Arbitrary; a try is a whole admission.
const MAX_PODS: usize = 64;

/// Pods named as remedies, at most.
const N_PODS: usize = 3;

/// Memory is given out in steps of this for a try.
const MEMORY_STEP: u64 = 1 << 20;

/// The smallest changes first.
pub fn remedies(
    managers: &Managers,
    pod: &Pod,
    answers: &PluginAnswers,
    refusal: &Refusal,
) -> Vec<Remedy> {
    let is_admitted = |managers: &Managers, pod: &Pod| match admit(managers, pod, answers) {
        Outcome::Decided(decided) => decided.report.refusal.is_none(),
        // What a plugin would say is not known.
        Outcome::Ask(_) => false,
    };
    let mut remedies = Vec::new();
    let asks = |it: &&Container| {
        refusal
            .container
            .as_ref()
            .is_none_or(|name| *name == it.name)
    };
    for container in pod.all_containers().filter(asks) {
        let name = &container.name;
        if let Some(n) = amount(container, "cpu") {
            let most = most_below(n, |n| {
                is_admitted(managers, &with_amount(pod, name, "cpu", n))
            });
            remedies.extend(most.map(|cpus| Remedy::FewerCpus {
                container: name.clone(),
                cpus,
            }));
        }
        if let Some(bytes) = amount(container, "memory") {
            let most = most_below(bytes.div_ceil(MEMORY_STEP), |n| {
                let bytes = n.saturating_mul(MEMORY_STEP);
                is_admitted(managers, &with_amount(pod, name, "memory", bytes))
            });
            remedies.extend(most.map(|n| Remedy::LessMemory {
                container: name.clone(),
                bytes: n.saturating_mul(MEMORY_STEP),
            }));
        }
    }
    let mut others = managers.holders();
    others.remove(&pod.uid);
    let without = others.into_iter().take(MAX_PODS).filter(|other| {
        let mut managers = managers.clone();
        managers.retain(|uid, _| uid != *other);
        is_admitted(&managers, pod)
    });
    remedies.extend(
        without
            .take(N_PODS)
            .map(|uid| Remedy::WithoutPod { uid: uid.clone() }),
    );
    if refusal.reason == RefusalReason::TopologyAffinityError {
        let mut managers = managers.clone();
        managers.topology = managers
            .topology
            .with_policy(TopologyManagerPolicy::BestEffort);
        if is_admitted(&managers, pod) {
            remedies.push(Remedy::BestEffort);
        }
    }
    remedies
}

/// What a container asks for of a resource that has to be placed, in whole CPUs or in bytes.
fn amount(container: &Container, resource: &str) -> Option<u64> {
    let amount = container.resources.requests.get(resource)?;
    (amount.is_positive() && amount.as_i64().is_some()).then(|| amount.units())
}

/// The pod with another request and limit in one container.
fn with_amount(pod: &Pod, container: &str, resource: &str, amount: u64) -> Pod {
    let mut pod = pod.clone();
    // The class would be computed anew: it is that of the pod as it is.
    pod.recorded_qos = Some(crate::decide::qos::qos_class(&pod));
    let quantity = match resource {
        "cpu" => Quantity::from_units(i64::try_from(amount).unwrap_or(i64::MAX), Format::DecimalSi),
        _ => Quantity::from_bytes(amount),
    };
    let containers = pod.init_containers.iter_mut().chain(&mut pod.containers);
    for it in containers.filter(|it| it.name == container) {
        for list in [&mut it.resources.requests, &mut it.resources.limits] {
            if let Some(value) = list.get_mut(resource) {
                value.clone_from(&quantity);
            }
        }
    }
    pod
}

/// The largest number in `1..n` that is good, by bisection: what is good need not be all that is
/// below it, so it may be less than the largest, but it is good.
fn most_below(n: u64, is_good: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (0, n);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match is_good(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    (low > 0).then_some(low)
}
