use super::super::labels::{KubeletCgroupOp, KubeletContainerState, KubeletContainerType};
use super::*;
use crate::model::admission::{AlignmentBoundary, AlignmentScope, RefusalReason};
use crate::units::Bytes;

/// Sets every family of these once.
pub(super) fn set_all(metrics: &Metrics) {
    metrics.set_kubelet_node("node-1", 2);
    metrics.set_running(1, |_| 1);
    metrics.pod_started();
    metrics.container_started(KubeletContainerType::Container);
    metrics.container_start_failed(KubeletContainerType::Init);
    metrics.kubelet_cgroup_op(KubeletCgroupOp::Create, Duration::from_millis(1));
    metrics.set_memory_qos(Some((Bytes(1), Bytes(2))));
}

#[test]
fn what_may_happen_begins_at_zero() {
    let metrics = Metrics::default();
    let zeros = [
        "kubelet_cpu_manager_pinning_requests_total",
        "kubelet_memory_manager_pinning_errors_total",
        "kubelet_topology_manager_admission_requests_total",
        "kubelet_topology_manager_admission_duration_ms_count",
        r#"kubelet_cgroup_manager_duration_seconds_count{operation_type="destroy"}"#,
        r#"kubelet_container_aligned_compute_resources_failure_count{boundary="physical_cpu",scope="container"}"#,
        r#"kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="pod"}"#,
        r#"kubelet_admission_rejections_total{reason="TopologyAffinityError"}"#,
        "kubelet_started_pods_total",
    ];
    check(&metrics, &zeros.map(|it| (it, Some(0.0))));
    // No core of a pod as a whole is held against anything.
    let never =
        r#"kubelet_container_aligned_compute_resources_count{boundary="physical_cpu",scope="pod"}"#;
    check(&metrics, &[(never, None)]);
}

#[test]
fn an_admission_counts_as_kubelet_counts_it() {
    let metrics = Metrics::default();
    let mut tally = AdmissionTally {
        n_steps: 20,
        ..AdmissionTally::default()
    };
    tally.cpu.add(true);
    tally.cpu.add(false);
    tally.memory.add(true);
    let (numa, container) = (AlignmentBoundary::NumaNode, AlignmentScope::Container);
    tally.align(numa, container, true);
    tally.align(numa, container, false);
    let refused = Some(RefusalReason::TopologyAffinityError);
    let at = WallTime::default();
    let asked = Some((&tally, Duration::from_micros(300)));
    metrics.admission(&pod_uid(), "single-numa-node", refused, asked, at);
    // Under pressure nobody asks the managers.
    let evicted = Some(RefusalReason::Evicted);
    metrics.admission(&pod_uid(), "single-numa-node", evicted, None, at);
    check(
        &metrics,
        &[
            (
                "kubelet_topology_manager_admission_requests_total",
                Some(1.0),
            ),
            ("kubelet_topology_manager_admission_errors_total", Some(1.0)),
            (
                r#"kubelet_topology_manager_admission_duration_ms_bucket{le="0.2"}"#,
                Some(0.0),
            ),
            (
                r#"kubelet_topology_manager_admission_duration_ms_bucket{le="0.4"}"#,
                Some(1.0),
            ),
            ("kubelet_cpu_manager_pinning_requests_total", Some(2.0)),
            ("kubelet_cpu_manager_pinning_errors_total", Some(1.0)),
            ("kubelet_memory_manager_pinning_requests_total", Some(1.0)),
            ("kubelet_memory_manager_pinning_errors_total", Some(0.0)),
            (
                r#"kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="container"}"#,
                Some(1.0),
            ),
            (
                r#"kubelet_container_aligned_compute_resources_failure_total{boundary="numa_node",scope="container"}"#,
                Some(1.0),
            ),
            (
                r#"kubelet_admission_rejections_total{reason="Evicted"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_placement_candidates_bucket{policy="single-numa-node",le="10"}"#,
                Some(0.0),
            ),
            (
                r#"ballast_placement_candidates_bucket{policy="single-numa-node",le="100"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_placement_duration_seconds_count{policy="single-numa-node"}"#,
                Some(1.0),
            ),
        ],
    );
}

#[test]
fn what_is_given_out_shows_under_both_names_and_a_node_without_any_at_zero() {
    let metrics = Metrics::default();
    let gauges = |exclusive: usize, by_node: [u64; 2]| PlacementGauges {
        pools: Some(PoolCpus {
            exclusive,
            free: Some(6),
            ..PoolCpus::default()
        }),
        exclusive_by_node: [NumaNodeId(0), NumaNodeId(1)]
            .into_iter()
            .zip(by_node)
            .collect(),
        misaligned: BTreeMap::from([(Boundary::Numa, 1)]),
        ..PlacementGauges::default()
    };
    metrics.set_placement(&gauges(4, [0, 4]));
    metrics.set_placement(&gauges(2, [2, 0]));
    check(
        &metrics,
        &[
            (
                "kubelet_cpu_manager_exclusive_cpu_allocation_count",
                Some(2.0),
            ),
            ("kubelet_cpu_manager_exclusive_cpu_allocated", Some(2.0)),
            (
                "kubelet_cpu_manager_shared_pool_size_millicores",
                Some(6000.0),
            ),
            (
                r#"kubelet_cpu_manager_allocation_per_numa{numa_node="0"}"#,
                Some(2.0),
            ),
            (
                r#"kubelet_cpu_manager_allocation_per_numa{numa_node="1"}"#,
                Some(0.0),
            ),
            (
                r#"ballast_placement_misaligned_containers{boundary="numa"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_placement_misaligned_containers{boundary="core"}"#,
                None,
            ),
        ],
    );
    // Of the kubelet that is asked now nobody knows it.
    metrics.set_placement(&PlacementGauges::default());
    check(
        &metrics,
        &[
            ("kubelet_cpu_manager_exclusive_cpu_allocated", None),
            ("kubelet_cpu_manager_shared_pool_size_millicores", None),
            (
                r#"kubelet_cpu_manager_allocation_per_numa{numa_node="0"}"#,
                None,
            ),
            (r#"ballast_placement_pool_cpus{pool="exclusive"}"#, None),
        ],
    );
}

#[test]
fn memory_that_nobody_is_promised_is_absent() {
    let metrics = Metrics::default();
    let min = "kubelet_memory_qos_node_memory_min_bytes";
    let low = "kubelet_memory_qos_node_memory_low_bytes";
    metrics.set_memory_qos(Some((Bytes(5), Bytes(0))));
    check(&metrics, &[(min, Some(5.0)), (low, Some(0.0))]);
    metrics.set_memory_qos(None);
    check(&metrics, &[(min, None), (low, None)]);
}

#[test]
fn containers_are_counted_in_kubelets_states() {
    let metrics = Metrics::default();
    metrics.set_running(2, |state| match state {
        KubeletContainerState::Running => 3,
        KubeletContainerState::Exited => 1,
        KubeletContainerState::Created | KubeletContainerState::Unknown => 0,
    });
    check(
        &metrics,
        &[
            ("kubelet_running_pods", Some(2.0)),
            (
                r#"kubelet_running_containers{container_state="running"}"#,
                Some(3.0),
            ),
            (
                r#"kubelet_running_containers{container_state="created"}"#,
                Some(0.0),
            ),
        ],
    );
}
