//! How many series an agent makes on a large machine on which everything has happened that can.

use super::super::labels::{
    BlockedReason, CgroupLevel, CgroupOp, DriftCause, EvictionResult, EvictionSignal,
    FieldHandling, Hook, LagKind, PressureResource, PressureScope, WriteResult,
};
use super::*;
use crate::model::eviction::{StallSource, StallTotals};
use crate::model::pod::QosClass;

const N_NUMA_NODES: u32 = 8;
const N_RESOURCES: usize = 8;
/// One for each duty of the streams, with some to spare.
const N_PROGRAMS: usize = 24;

/// Cgroup files that are written on one version with every controller.
const FILES: [&str; 18] = [
    "cgroup.freeze",
    "cgroup.kill",
    "cgroup.procs",
    "cgroup.subtree_control",
    "cpu.max",
    "cpu.max.burst",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.mems",
    "devices",
    "hugetlb.2MB.max",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.oom.group",
    "memory.swap.max",
    "pids.max",
];

fn fill_agent(metrics: &Metrics) {
    let at = WallTime::from_epoch(Duration::from_secs(1));
    let second = Duration::from_secs(1);
    for phase in Phase::ALL {
        metrics.loop_phase(*phase, second);
    }
    for source in Source::ALL {
        metrics.source_read(*source, second);
    }
    metrics.set_source_ages(second);
    for file in FILES {
        for result in WriteResult::ALL {
            metrics.cgroup_writes(file, *result, 1);
        }
        for cause in DriftCause::ALL {
            metrics.drift(file, *cause);
        }
        metrics.yielded(file, at);
    }
    metrics.set_drift_unresolved(FILES.map(|it| (it, 1)));
    for op in CgroupOp::ALL {
        metrics.cgroup_op(*op, second);
    }
    for kind in LagKind::ALL {
        metrics.reconcile_lag(*kind, second);
    }
    for level in CgroupLevel::ALL {
        metrics.set_cgroups(*level, 1);
    }
    for kind in ObjectKind::ALL {
        metrics.set_objects(*kind, 1);
    }
    for handling in FieldHandling::ALL {
        metrics.set_kubelet_config_fields(*handling, 1);
    }
    for i in 0..N_PROGRAMS {
        metrics.set_program(&format!("program_{i}"), Hook::TpBtf);
        metrics.set_program_statistics(&format!("program_{i}"), 1, second);
    }
    for stream in Stream::ALL {
        metrics.ring_found(*stream, 0.1);
        for reason in LossReason::ALL {
            metrics.set_bpf_lost(*stream, *reason, 0, at);
            metrics.set_bpf_lost(*stream, *reason, 1, at);
        }
    }
    fill_pressure(metrics, at);
    fill_devices(metrics);
}

fn fill_pressure(metrics: &Metrics, at: WallTime) {
    for resource in PressureResource::ALL {
        for scope in PressureScope::ALL {
            for second in [1_u64, 2] {
                let totals = StallTotals {
                    source: StallSource::Psi,
                    some_us: second * 1_000_000,
                    full_us: Some(second),
                };
                let now = Duration::from_secs(second);
                metrics.set_stall(*resource, *scope, &totals, now);
            }
        }
    }
    for signal in EvictionSignal::all() {
        for stage in signal.stages() {
            let done = EvictionResult::Done;
            metrics.eviction_action(signal, *stage, done, false, at);
        }
        let age = Some(Duration::from_secs(1));
        metrics.pod_evicted(&pod_uid(), signal, QosClass::Burstable, age, at);
        if !signal.is_limit() {
            for reason in BlockedReason::ALL {
                metrics.eviction_blocked(signal, *reason, at);
            }
        }
    }
}

fn fill_devices(metrics: &Metrics) {
    let names: Vec<String> = (0..N_RESOURCES).map(|i| format!("a.b/{i}")).collect();
    let devices = names.iter().flat_map(|name| {
        let nodes = (0..N_NUMA_NODES).map(|node| Some(NumaNodeId(node)));
        let counts = DeviceCounts {
            n_unhealthy: Some(0),
            ..DeviceCounts::default()
        };
        nodes.map(move |node| (name.as_str(), node, counts))
    });
    metrics.set_devices(devices);
    for name in &names {
        metrics.device_plugin_registered(name);
        metrics.device_allocated(name, Duration::from_secs(1));
    }
}

/// What a machine with pods, each with two containers of its own CPUs, has given out.
fn gauges(containers: &[(&str, &str, &str)]) -> PlacementGauges {
    let keys = || {
        let labels = containers.iter();
        labels.map(|(namespace, pod, name)| ContainerLabels::named(namespace, pod, name).to_key())
    };
    let nodes = || (0..N_NUMA_NODES).map(NumaNodeId);
    let kinds = ["memory", "hugepages-2Mi", "hugepages-1Gi"];
    PlacementGauges {
        pools: Some(PoolCpus::default()),
        free_cpus: nodes().map(|it| (it, 1)).collect(),
        free_bytes: nodes()
            .flat_map(|node| kinds.map(|kind| ((node, kind.to_owned()), 1)))
            .collect(),
        exclusive_by_node: nodes().map(|it| (it, 1)).collect(),
        exclusive: keys().map(|it| (it, 1)).collect(),
        numa_nodes: keys().map(|it| (it, NumaMask::from_bits(1))).collect(),
        misaligned: Boundary::ALL.iter().map(|it| (*it, 1)).collect(),
    }
}

/// Everything that can happen to a container.
fn fill_container(metrics: &Metrics, pod: &str, container: &str) {
    let mut record = oom_record(1);
    if let Some(of) = &mut record.event.pod {
        of.namespace = "default".into();
        of.name = pod.into();
    }
    record.event.container = Some(container.into());
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, None);
}

#[test]
fn series_stay_within_budget() {
    for (n_pods, n_containers) in [(0, 0), (110, 2), (250, 2)] {
        let metrics = everything();
        fill_agent(&metrics);
        let pods: Vec<String> = (0..n_pods).map(|n| format!("pod-{n}")).collect();
        let names = ["main", "side"];
        let containers: Vec<(&str, &str, &str)> = pods
            .iter()
            .flat_map(|pod| names.map(|name| ("default", pod.as_str(), name)))
            .collect();
        let labels = containers.iter();
        let labels =
            labels.map(|(namespace, pod, name)| ContainerLabels::named(namespace, pod, name));
        metrics.sync_pods(labels.clone(), Duration::ZERO);
        metrics.set_placement(&gauges(&containers));
        let memory = labels.map(|it| (it, pressure::memory(1)));
        metrics.set_container_memory(memory, Duration::ZERO);
        metrics.set_stats(&container_stats::full(&pods, &names), None);
        for (_, pod, container) in &containers {
            fill_container(&metrics, pod, container);
        }
        let text = text(&metrics);
        let samples = || text.lines().filter(|line| !line.starts_with('#'));
        let of_pods = samples().filter(|it| it.contains("pod=\"pod-")).count();
        let of_workloads = samples()
            .filter(|it| it.contains("workload=\"pod-"))
            .count();
        let own = samples().count() - of_pods - of_workloads;
        assert!(own <= 2500, "{n_pods} pods: {own} own series");
        // A pod that was killed from is a workload of its own: the pod's share.
        assert!(of_workloads <= 6 * n_pods, "{n_pods} pods: {of_workloads}");
        let budget = 30 * n_pods * n_containers;
        assert!(of_pods <= budget, "{n_pods} pods: {of_pods} > {budget}");
        // Nothing was left out that a container can have.
        let per_container = table()
            .iter()
            .filter(|it| it.cardinality == Cardinality::Container);
        for family in per_container {
            let has = |pod: &String| {
                let pod = format!("pod=\"{pod}\"");
                let mut samples = samples();
                samples.any(|it| it.starts_with(family.name) && it.contains(&pod))
            };
            assert!(pods.first().is_none_or(has), "{}", family.name);
        }
    }
}
