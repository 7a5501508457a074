//! The QoS class of a pod (pkg/apis/core/v1/helper/qos/qos.go, v1.36: `GetPodQOS`). Pinned by
//! suites `pod_resources` and `node_allocatable`.

use crate::model::pod::{Pod, QosClass, ResourceList};
use crate::model::quantity::Quantity;

/// The class recorded at creation, or else the one that the resources give.
pub fn qos_class(pod: &Pod) -> QosClass {
    pod.recorded_qos.unwrap_or_else(|| compute_qos_class(pod))
}

/// What gives the pod its class, as a clause for people.
pub fn qos_reason(pod: &Pod) -> String {
    if pod.recorded_qos.is_some() {
        return "the class was recorded when the pod was made".to_owned();
    }
    let (lists, whose): (Vec<_>, _) = match &pod.resources {
        Some(own) => (vec![("the pod", own)], "the pod-level"),
        None => {
            let containers = pod.all_containers();
            let named = containers.map(|it| (it.name.as_str(), &it.resources));
            (named.collect(), "the containers'")
        }
    };
    match compute_qos_class(pod) {
        QosClass::BestEffort => format!("{whose} resources have neither cpu nor memory"),
        QosClass::Guaranteed => {
            format!("{whose} requests of cpu and memory equal the limits, and none is missing")
        }
        QosClass::Burstable => {
            let missing = lists.iter().find_map(|(name, it)| {
                let limits = Compute::of(&it.limits);
                let resource = match (limits.cpu, limits.memory) {
                    (None, _) => "cpu",
                    (_, None) => "memory",
                    _ => return None,
                };
                Some(format!("{name} has no limit of {resource}"))
            });
            missing.unwrap_or_else(|| format!("{whose} requests differ from the limits"))
        }
    }
}

/// CPU and memory of a list, as far as they are above 0: nothing else counts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Compute {
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
}

impl Compute {
    fn of(list: &ResourceList) -> Self {
        let positive = |name| list.get(name).filter(|it| it.is_positive()).cloned();
        Self {
            cpu: positive("cpu"),
            memory: positive("memory"),
        }
    }

    fn add(&mut self, other: Self) {
        for (sum, amount) in [(&mut self.cpu, other.cpu), (&mut self.memory, other.memory)] {
            *sum = match (sum.take(), amount) {
                (Some(a), Some(b)) => Some(a.plus(&b)),
                (a, b) => a.or(b),
            };
        }
    }

    fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none()
    }

    fn is_complete(&self) -> bool {
        self.cpu.is_some() && self.memory.is_some()
    }
}

/// The class by the resources alone. Sums are compared, not containers one by one; pod-level
/// resources, where present, stand for the containers', even when they are empty.
pub fn compute_qos_class(pod: &Pod) -> QosClass {
    let mut requests = Compute::default();
    let mut limits = Compute::default();
    let mut is_limited = true;
    if let Some(own) = &pod.resources {
        requests = Compute::of(&own.requests);
        limits = Compute::of(&own.limits);
        is_limited = own.limits.is_empty() || limits.is_complete();
    } else {
        for container in pod.all_containers() {
            let own = Compute::of(&container.resources.limits);
            is_limited &= own.is_complete();
            requests.add(Compute::of(&container.resources.requests));
            limits.add(own);
        }
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if is_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::pod;

    #[track_caller]
    fn check(spec: &str, class: QosClass) {
        assert_eq!(qos_class(&pod(spec)), class, "{spec}");
    }

    #[test]
    fn the_class_follows_from_the_sums() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        check("app {}", BestEffort);
        check("app {req cpu=0 memory=0}", BestEffort);
        check("app {lim cpu=1 memory=1Gi}", Burstable);
        check(
            "app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi}",
            Guaranteed,
        );
        check(
            "app {req cpu=1000m memory=1024Mi lim cpu=1 memory=1Gi}",
            Guaranteed,
        );
        check(
            "app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi} init {}",
            Burstable,
        );
        check(
            "app {req cpu=1 memory=1Gi lim cpu=1 memory=2Gi} app {req cpu=1 memory=2Gi lim cpu=1 memory=1Gi}",
            Guaranteed,
        );
        check("app {req cpu=1 memory=1Gi} pod {}", BestEffort);
        check("app {} pod {req cpu=1}", Burstable);
        check("app {} pod {lim cpu=1}", Burstable);
        check(
            "app {} pod {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi}",
            Guaranteed,
        );
        check(
            "app {req memory=1Gi hugepages-2Mi=2Mi lim memory=1Gi hugepages-2Mi=2Mi}",
            Burstable,
        );
    }

    #[test]
    fn the_reason_names_what_keeps_a_pod_from_the_class_above() {
        for (spec, reason) in [
            (
                "app {}",
                "the containers' resources have neither cpu nor memory",
            ),
            (
                "app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi}",
                "the containers' requests of cpu and memory equal the limits, and none is missing",
            ),
            ("app {req cpu=1 lim memory=1Gi}", " has no limit of cpu"),
            ("app {req cpu=1 lim cpu=1}", " has no limit of memory"),
            (
                "app {req cpu=1 memory=1Gi lim cpu=2 memory=1Gi}",
                "the containers' requests differ from the limits",
            ),
            (
                "app {req cpu=1} pod {}",
                "the pod-level resources have neither cpu nor memory",
            ),
            ("app {} pod {req cpu=1}", "the pod has no limit of cpu"),
        ] {
            let text = qos_reason(&pod(spec));
            assert!(text.ends_with(reason), "{spec}: {text}");
        }
    }

    #[test]
    fn a_recorded_class_wins() {
        let mut pod = pod("app {}");
        pod.recorded_qos = Some(QosClass::Guaranteed);
        assert_eq!(qos_class(&pod), QosClass::Guaranteed);
    }
}
