//! Whether a pod fits into what the node has left for pods: kubelet's check at admission
//! (kubelet 1.36, pkg/kubelet/lifecycle/predicate.go, and the scheduler's NodeResourcesFit that it
//! runs). In: what pods may use together and the pods that are in. Out: a refusal in kubelet's words.
//!
//! Devices of plug-ins are not looked at: the device manager, which is asked before, has given them or
//! has refused the pod, and nobody else offers an extended resource to a node without an API server.
//!
//! Invariant: a resource whose amount is not known refuses nobody.

use std::collections::BTreeMap;

use super::node_allocatable::{NodeAllocatable, n_pods};
use super::pod_resources::HUGEPAGES_PREFIX;
use crate::config::KubeletConfig;
use crate::model::admission::{Refusal, RefusalReason};
use crate::model::pod::{Overhead, Pod, PodLevel, ResourceList};
use crate::model::quantity::Quantity;

const CPU: &str = "cpu";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// A pod is one of these; it is not in the lists of requests.
const PODS: &str = "pods";

/// In the order in which they are looked at: the first that is short gives the reason. Huge pages
/// follow.
const RESOURCES: [(&str, RefusalReason); 4] = [
    (PODS, RefusalReason::OutOfPods),
    (CPU, RefusalReason::OutOfCpu),
    ("memory", RefusalReason::OutOfMemory),
    (EPHEMERAL_STORAGE, RefusalReason::OutOfEphemeralStorage),
];

/// Resource name to figure: thousandths of CPU, bytes, or a count.
type Figures = BTreeMap<String, i64>;

/// What pods may request together on a node of so many CPUs. Without `localStorageCapacityIsolation`
/// storage is no resource of the node.
pub fn allocatable(node: &NodeAllocatable, kubelet: &KubeletConfig, n_cpus: u32) -> ResourceList {
    let n_pods = n_pods(n_cpus, kubelet.max_pods, kubelet.pods_per_core);
    let mut list = node.node_allocatable(n_pods);
    if !kubelet.local_storage_capacity_isolation {
        list.remove(EPHEMERAL_STORAGE);
    }
    list
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    allocatable: Figures,
    requested: Figures,
}

impl Room {
    /// `allocatable` is what [`allocatable`] says; `admitted` are the pods that run or
    /// will run.
    pub fn new<'a>(
        allocatable: &ResourceList,
        admitted: impl IntoIterator<Item = &'a Pod>,
    ) -> Self {
        let mut room = Self {
            allocatable: figures(allocatable),
            requested: Figures::new(),
        };
        for pod in admitted {
            room.take(pod);
        }
        room
    }

    /// The pod is in from now on.
    pub fn take(&mut self, pod: &Pod) {
        for (name, figure) in requests(pod) {
            let sum = self.requested.entry(name).or_default();
            *sum = sum.saturating_add(figure);
        }
    }

    /// Why the pod does not fit; `None`: it does.
    pub fn refusal(&self, pod: &Pod) -> Option<Refusal> {
        let requests = requests(pod);
        let hugepages = requests
            .keys()
            .filter(|name| name.starts_with(HUGEPAGES_PREFIX))
            .map(|name| (name.as_str(), RefusalReason::OutOfHugepages));
        let mut resources = RESOURCES.into_iter().chain(hugepages);
        resources.find_map(|(name, reason)| {
            let requested = *requests.get(name).filter(|it| **it > 0)?;
            let used = self.requested.get(name).copied().unwrap_or_default();
            let capacity = match self.allocatable.get(name) {
                Some(capacity) => *capacity,
                // The size of the disk could not be read.
                None if name == EPHEMERAL_STORAGE => return None,
                None => 0,
            };
            (requested > capacity.saturating_sub(used)).then(|| Refusal {
                reason,
                message: format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, \
                     used: {used}, capacity: {capacity}"
                ),
                container: None,
            })
        })
    }
}

fn requests(pod: &Pod) -> Figures {
    let mut requests = figures(&pod.requests(PodLevel::Honoured, Overhead::Added));
    requests.insert(PODS.to_owned(), 1);
    requests
}

fn figures(list: &ResourceList) -> Figures {
    let figure = |(name, amount): (&String, &Quantity)| {
        let figure = match name.as_str() {
            CPU => amount.milli_value(),
            _ => amount.value(),
        };
        (name.clone(), figure)
    };
    list.iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::pod::PodOrigin;

    fn pod(requests: Value) -> Pod {
        let source = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "app", "resources": {"requests": requests}}]},
        });
        let source = serde_json::from_value(source).expect("a v1.Pod");
        Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod")
    }

    fn list(amounts: &[(&str, &str)]) -> ResourceList {
        let amount = |(name, text): &(&str, &str)| {
            let amount = text.parse().expect("a quantity");
            ((*name).to_owned(), amount)
        };
        amounts.iter().map(amount).collect()
    }

    fn allocatable() -> ResourceList {
        list(&[
            ("pods", "3"),
            ("cpu", "1900m"),
            ("memory", "1Gi"),
            ("ephemeral-storage", "10Gi"),
            ("hugepages-2Mi", "4Mi"),
        ])
    }

    #[test]
    fn the_first_resource_that_is_short_is_the_reason_in_kubelets_words() {
        let short = |what: &str, requested: u64, used: u64, capacity: u64| {
            format!(
                "Node didn't have enough resource: {what}, requested: {requested}, used: {used}, \
                 capacity: {capacity}"
            )
        };
        let one = pod(json!({"cpu": "900m", "memory": "512Mi", "hugepages-2Mi": "2Mi"}));
        let room = Room::new(&allocatable(), [&one]);
        for (requests, expected) in [
            (json!({}), None),
            (json!({"cpu": "1", "memory": "512Mi"}), None),
            (json!({"vendor.example/dev": "9"}), None),
            (
                json!({"cpu": "1001m", "memory": "2Gi"}),
                Some(("OutOfcpu", short("cpu", 1001, 900, 1900))),
            ),
            (
                // Rounded up to thousandths, as kubelet counts.
                json!({"cpu": "1000.1m"}),
                Some(("OutOfcpu", short("cpu", 1001, 900, 1900))),
            ),
            (
                json!({"cpu": "1", "memory": "536870913"}),
                Some((
                    "OutOfmemory",
                    short("memory", 536_870_913, 1 << 29, 1 << 30),
                )),
            ),
            (
                json!({"ephemeral-storage": "11Gi"}),
                Some((
                    "OutOfephemeral-storage",
                    short("ephemeral-storage", 11 << 30, 0, 10 << 30),
                )),
            ),
            (
                json!({"hugepages-1Gi": "1Gi", "memory": "1"}),
                Some(("OutOfhugepages", short("hugepages-1Gi", 1 << 30, 0, 0))),
            ),
            (
                json!({"hugepages-2Mi": "4Mi", "memory": "1"}),
                Some((
                    "OutOfhugepages",
                    short("hugepages-2Mi", 4 << 20, 2 << 20, 4 << 20),
                )),
            ),
        ] {
            let refusal = room.refusal(&pod(requests.clone()));
            let got = refusal.map(|it| (it.reason.as_str(), it.message));
            assert_eq!(got, expected, "{requests}");
        }
    }

    #[test]
    fn pods_are_counted_before_anything_else() {
        let empty = pod(json!({}));
        let mut room = Room::new(&allocatable(), [&empty, &empty]);
        assert_eq!(room.refusal(&empty), None);
        room.take(&empty);
        let refusal = room.refusal(&pod(json!({"cpu": "1000"}))).expect("no room");
        assert_eq!(refusal.reason, RefusalReason::OutOfPods);
        assert_eq!(
            refusal.message,
            "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
        );
    }

    #[test]
    fn a_disk_of_unknown_size_and_amounts_beyond_64_bits_are_no_surprise() {
        let room = Room::new(&list(&[("pods", "9"), ("cpu", "2")]), []);
        assert_eq!(
            room.refusal(&pod(json!({"ephemeral-storage": "1Ei"}))),
            None
        );
        let reason = |requests| room.refusal(&pod(requests)).map(|it| it.reason);
        let out_of_cpu = Some(RefusalReason::OutOfCpu);
        assert_eq!(reason(json!({"cpu": "12E"})), out_of_cpu);
        let mut full = room.clone();
        full.take(&pod(json!({"cpu": "12E"})));
        full.take(&pod(json!({"cpu": "12E"})));
        assert_eq!(full.refusal(&pod(json!({}))), None);
    }
}
