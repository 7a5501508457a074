//! How many series there are, and how long the page takes.

use super::*;
use crate::sys::clock;

const BUDGET_PER_CONTAINER: usize = 95;

/// Families that every disk, interface or NUMA node adds to are not in that budget.
fn is_per_device(labels: &BTreeMap<String, String>) -> bool {
    ["device", "interface", "node"]
        .iter()
        .any(|it| labels.contains_key(*it))
}

#[test]
fn the_series_of_containers_pods_and_the_node_are_within_the_budget() {
    let count = |n_pods, n_containers| cadvisor_page(&node(n_pods, n_containers)).samples.len();
    let empty = count(0, 0);
    let per_pod = count(1, 0) - empty;
    let per_container = count(1, 1) - empty - per_pod;
    let page = cadvisor_page(&node(1, 1));
    let of_container = page
        .samples
        .iter()
        .filter(|it| it.label("container") == "app-0");
    let without_devices = of_container.filter(|it| !is_per_device(&it.labels)).count();
    println!(
        "{empty} for the node, {per_pod} a pod, {per_container} a container, of which {without_devices} without devices"
    );
    assert!(per_container <= BUDGET_PER_CONTAINER, "{per_container}");
    assert!(per_pod <= BUDGET_PER_CONTAINER, "{per_pod}");
    for (n_pods, n_containers) in [(110, 1), (250, 4), (110, 2)] {
        let expected = empty + n_pods * (per_pod + n_containers * per_container);
        let mut text = String::new();
        let n_samples = cadvisor(&node(n_pods, n_containers), Options::default(), &mut text);
        println!(
            "{n_pods} pods of {n_containers}: {n_samples} series, {} bytes",
            text.len()
        );
        assert_eq!(n_samples, expected, "{n_pods} pods of {n_containers}");
    }
}

/// Prints what it takes; a bound for all machines would be no bound.
#[test]
fn encoding_into_one_buffer_allocates_it_once() {
    let snapshot = node(250, 2);
    let mut text = String::new();
    cadvisor(&snapshot, Options::default(), &mut text);
    let capacity = text.capacity();
    let mut took = Vec::new();
    for _ in 0..20 {
        text.clear();
        let begun = clock::boottime();
        cadvisor(&snapshot, Options::default(), &mut text);
        took.push(clock::boottime() - begun);
    }
    took.sort_unstable();
    println!(
        "500 containers: {} bytes, median {:?}, most {:?}",
        text.len(),
        took[10],
        took[19]
    );
    assert_eq!(text.capacity(), capacity);
}
