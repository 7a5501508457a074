use std::sync::Arc;

use super::*;
use crate::model::cgroup_files::{CpuStat, MemoryEvents};
use crate::model::eviction::DiskUse;
use crate::model::pod::{PodUid, QosClass};
use crate::model::psi::{Psi, PsiLine, Stalls};
use crate::model::record::PodRef;
use crate::model::stats::{
    CgroupSpec, CgroupStats, ContainerStats, Machine, MemoryFigures, NodeStats, NumaPages,
    PodStats, ProcessLimits, StatsSnapshot,
};
use crate::observe::metrics::lifetime::MAX_GONE_PODS;
use crate::units::Micros;

const LABELS: &str = r#"container="main",namespace="default",pod="web""#;

pub(super) fn stats(some_us: u64, throttled_us: u64) -> CgroupStats {
    let some = PsiLine {
        total: Micros(some_us),
        ..PsiLine::default()
    };
    CgroupStats {
        cpu: CpuStat {
            throttled_ns: Some(throttled_us * 1000),
            ..CpuStat::default()
        },
        memory: MemoryFigures {
            events: MemoryEvents {
                oom_group_kill: Some(1),
                ..MemoryEvents::default()
            },
            ..MemoryFigures::default()
        },
        stalls: Stalls {
            cpu: Some(Psi { some, full: None }),
            ..Stalls::default()
        },
        numa: [(0, 30), (1, 10)]
            .map(|(node, anon)| NumaPages {
                node,
                anon,
                ..NumaPages::default()
            })
            .to_vec(),
        n_fork_refusals: Some(2),
        spec: CgroupSpec {
            cpu_burst_us: Some(50_000),
            ..CgroupSpec::default()
        },
        ..CgroupStats::default()
    }
}

pub(super) fn instance(runtime_id: &str, stats: CgroupStats) -> ContainerStats {
    ContainerStats {
        name: "main".into(),
        id: format!("/kubepods/{runtime_id}"),
        runtime_id: runtime_id.into(),
        image: String::new(),
        started_at: None,
        ended_at: None,
        restarts: 0,
        oom_events: 0,
        stats,
        root_fs: DiskUse::default(),
        logs: DiskUse::default(),
        descriptors: None,
        limits: ProcessLimits::default(),
    }
}

fn ended(container: ContainerStats) -> ContainerStats {
    ContainerStats {
        ended_at: Some(WallTime::default()),
        ..container
    }
}

/// Second `at`, in which the node's CPUs have worked for `cpu_ms`.
pub(super) fn snapshot(
    at: u64,
    cpu_ms: Option<u64>,
    containers: Vec<ContainerStats>,
) -> StatsSnapshot {
    let at = Duration::from_secs(at);
    StatsSnapshot {
        sweep: 1,
        begun: at,
        ended: at,
        at: WallTime::default(),
        cost_us: None,
        machine: Arc::new(Machine {
            n_cpus: 2,
            ..Machine::default()
        }),
        node: NodeStats {
            cgroup: CgroupStats {
                at,
                cpu: CpuStat {
                    usage_ns: cpu_ms.map(|it| it * 1_000_000),
                    ..CpuStat::default()
                },
                ..CgroupStats::default()
            },
            ..NodeStats::default()
        },
        groups: Vec::new(),
        pods: vec![PodStats {
            pod: Arc::new(PodRef {
                namespace: "default".into(),
                name: "web".into(),
                uid: PodUid("u".into()),
            }),
            qos: QosClass::Burstable,
            id: String::new(),
            started_at: WallTime::default(),
            stats: None,
            network: Vec::new(),
            ephemeral_storage: None,
            volumes: BTreeMap::new(),
            volume_file_systems: BTreeMap::new(),
            containers,
        }],
    }
}

/// On the second NUMA node, where a quarter of its memory is.
pub(super) fn numa_nodes() -> BTreeMap<ContainerKey, NumaMask> {
    let key = ContainerLabels::named("default", "web", "main").to_key();
    BTreeMap::from([(key, NumaMask::from_bits(0b10))])
}

/// Sets every family that comes from sweeps once.
pub(super) fn set_all(metrics: &Metrics) {
    let before = snapshot(1, Some(0), Vec::new());
    let now = snapshot(2, Some(0), vec![instance("a", stats(1, 1))]);
    metrics.set_stats(&now, Some(&before));
}

/// A sweep over pods whose containers have every figure.
pub(super) fn full(pods: &[String], names: &[&str]) -> StatsSnapshot {
    let mut full = snapshot(1, None, Vec::new());
    let template = full.pods.remove(0);
    full.pods = pods
        .iter()
        .map(|name| PodStats {
            pod: Arc::new(PodRef {
                name: name.clone(),
                ..(*template.pod).clone()
            }),
            containers: names
                .iter()
                .map(|name| ContainerStats {
                    name: (*name).to_owned(),
                    ..instance(name, stats(1, 1))
                })
                .collect(),
            ..template.clone()
        })
        .collect();
    full
}

fn of(name: &str) -> String {
    format!("{name}{{{LABELS}}}")
}

fn stall(cause: &str) -> String {
    format!("ballast_cpu_stall_seconds_total{{cause=\"{cause}\",{LABELS}}}")
}

#[test]
fn waiting_for_a_cpu_is_blamed_on_the_own_limit_as_far_as_it_throttled() {
    let metrics = Metrics::default();
    for (at, some_us, throttled_us, own_limit, contention) in [
        (1, 1_000_000, 0, 0.0, 1.0),
        // Throttled on four CPUs at once: no more than what was waited.
        (2, 2_000_000, 4_000_000, 1.0, 1.0),
        (3, 2_500_000, 4_250_000, 1.25, 1.25),
    ] {
        let container = instance("a", stats(some_us, throttled_us));
        metrics.set_stats(&snapshot(at, None, vec![container]), None);
        check(
            &metrics,
            &[
                (&stall("own_limit"), Some(own_limit)),
                (&stall("contention"), Some(contention)),
            ],
        );
    }
}

/// Its containers have none of their own, or one that they do not reach.
#[test]
fn waiting_at_the_limit_of_the_pod_is_no_contention() {
    let metrics = Metrics::default();
    for (at, some_us, pod_us, own_limit, contention) in [
        (1, 1_000_000, 500_000, 0.5, 0.5),
        (2, 2_000_000, 2_500_000, 1.5, 0.5),
    ] {
        let mut now = snapshot(at, None, vec![instance("a", stats(some_us, 0))]);
        now.pods[0].stats = Some(stats(some_us, pod_us));
        metrics.set_stats(&now, None);
        check(
            &metrics,
            &[
                (&stall("own_limit"), Some(own_limit)),
                (&stall("contention"), Some(contention)),
            ],
        );
    }
}

/// As cgroup v2 counts since Linux 6.11.
#[test]
fn forks_that_the_limit_of_the_pod_refuses_count_for_its_only_container() {
    let metrics = Metrics::default();
    let refused = |n| CgroupStats {
        n_fork_refusals: Some(n),
        ..stats(0, 0)
    };
    let hits = of("ballast_pids_limit_hits_total");
    for (at, runtime_id, of_container, of_pod, n) in [
        (1, "a", 0, 7, 0.0),
        (2, "a", 0, 9, 2.0),
        // By its own limit.
        (3, "a", 3, 12, 5.0),
        // An instance begins where the pod is.
        (4, "b", 0, 12, 5.0),
        (5, "b", 0, 13, 6.0),
        // Its own are read before those of the pod, in which they are too.
        (6, "b", 0, 16, 9.0),
        (7, "b", 3, 16, 9.0),
        (8, "b", 4, 17, 10.0),
    ] {
        let mut now = snapshot(at, None, vec![instance(runtime_id, refused(of_container))]);
        now.pods[0].stats = Some(refused(of_pod));
        metrics.set_stats(&now, None);
        check(&metrics, &[(&hits, Some(n))]);
    }
}

#[test]
fn forks_that_are_refused_beside_another_container_are_nobodys() {
    let metrics = Metrics::default();
    let refused = |n| CgroupStats {
        n_fork_refusals: Some(n),
        ..stats(0, 0)
    };
    let hits = of("ballast_pids_limit_hits_total");
    for (at, is_alone, of_pod, n) in [
        (1, true, 5, 0.0),
        (2, false, 50, 0.0),
        (3, false, 99, 0.0),
        (4, true, 100, 0.0),
        (5, true, 101, 1.0),
    ] {
        let mut containers = vec![instance("a", refused(0))];
        if !is_alone {
            let mut other = instance("b", refused(0));
            other.name = "other".to_owned();
            containers.push(other);
        }
        let mut now = snapshot(at, None, containers);
        now.pods[0].stats = Some(refused(of_pod));
        metrics.set_stats(&now, None);
        check(&metrics, &[(&hits, Some(n))]);
    }
}

#[test]
fn without_psi_or_without_bandwidth_nothing_is_said_of_waiting() {
    let metrics = Metrics::default();
    let no_psi = CgroupStats {
        stalls: Stalls::default(),
        ..stats(0, 1)
    };
    let no_bandwidth = CgroupStats {
        cpu: CpuStat::default(),
        ..stats(1, 0)
    };
    for stats in [no_psi, no_bandwidth] {
        metrics.set_stats(&snapshot(1, None, vec![instance("a", stats)]), None);
        check(
            &metrics,
            &[(&stall("own_limit"), None), (&stall("contention"), None)],
        );
    }
}

#[test]
fn counts_add_up_over_instances_and_one_that_ended_counts_once() {
    let metrics = Metrics::default();
    let refusals = of("ballast_pids_limit_hits_total");
    let kills = of("ballast_oom_group_kills_total");
    let with = |runtime_id: &str, n| {
        let stats = CgroupStats {
            n_fork_refusals: Some(n),
            ..stats(0, 0)
        };
        instance(runtime_id, stats)
    };
    for (at, containers, n) in [
        (1, vec![with("a", 2)], 2.0),
        // What it did between the last reading and its end counts too.
        (2, vec![with("b", 1), ended(with("a", 3))], 4.0),
        (3, vec![with("b", 1), ended(with("a", 3))], 4.0),
        (4, vec![ended(with("b", 5)), ended(with("a", 3))], 8.0),
        (5, Vec::new(), 8.0),
    ] {
        metrics.set_stats(&snapshot(at, None, containers), None);
        check(&metrics, &[(&refusals, Some(n))]);
    }
    check(&metrics, &[(&kills, Some(2.0))]);
    // The pod is gone for long enough.
    metrics.sync_pods([], Duration::from_secs(6));
    metrics.sync_pods([], Duration::from_secs(6) + POD_RETENTION);
    check(&metrics, &[(&refusals, None), (&kills, None)]);
}

#[test]
fn a_counter_that_falls_is_told_and_counts_from_its_highest() {
    let metrics = Metrics::default();
    let fallen = r#"ballast_source_regressions_total{source="cgroup"}"#;
    let refusals = of("ballast_pids_limit_hits_total");
    check(&metrics, &[(fallen, Some(0.0))]);
    for (n, counted, regressions) in [(5, 5.0, 0.0), (3, 5.0, 1.0), (6, 6.0, 1.0)] {
        let stats = CgroupStats {
            n_fork_refusals: Some(n),
            ..stats(0, 0)
        };
        let now = snapshot(1, None, vec![instance("a", stats)]);
        metrics.set_stats(&now, None);
        check(
            &metrics,
            &[(&refusals, Some(counted)), (fallen, Some(regressions))],
        );
    }
}

/// More pods end in a moment than keep their series: the first that went have none for good.
#[test]
fn series_that_were_cut_short_stay_away() {
    let metrics = Metrics::default();
    let pods: Vec<String> = (0..MAX_GONE_PODS + 20)
        .map(|it| format!("p{it:03}"))
        .collect();
    let mut sweep = full(&pods, &["app"]);
    for pod in &mut sweep.pods {
        pod.containers[0].runtime_id.clone_from(&pod.pod.name);
    }
    metrics.set_stats(&sweep, None);
    for pod in &mut sweep.pods {
        pod.containers[0] = ended(pod.containers[0].clone());
    }
    let at = Duration::from_secs;
    let mut before = None;
    for second in [2, 7, 12] {
        metrics.set_stats(&sweep, before.as_ref());
        metrics.sync_pods([], at(second));
        check(
            &metrics,
            &[(r#"ballast_ended_left_out_total{kind="pod"}"#, Some(20.0))],
        );
        before = Some(sweep.clone());
    }
}

#[test]
fn gauges_go_with_the_instance() {
    let metrics = Metrics::default();
    metrics.set_placement(&PlacementGauges {
        numa_nodes: numa_nodes(),
        ..PlacementGauges::default()
    });
    let burst = of("ballast_cpu_burst_limit_seconds");
    let remote = of("ballast_placement_remote_memory_ratio");
    let live = instance("a", stats(0, 0));
    metrics.set_stats(&snapshot(1, None, vec![live.clone()]), None);
    check(&metrics, &[(&burst, Some(0.05)), (&remote, Some(0.75))]);
    metrics.set_stats(&snapshot(2, None, vec![ended(live.clone())]), None);
    check(&metrics, &[(&burst, None), (&remote, None)]);
    // Nothing was given to it any more.
    metrics.set_placement(&PlacementGauges::default());
    metrics.set_stats(&snapshot(3, None, vec![live]), None);
    check(&metrics, &[(&burst, Some(0.05)), (&remote, None)]);
}

/// The one that was started first has the larger UID.
#[test]
fn of_two_pods_of_one_name_the_later_is_shown_and_both_are_counted() {
    let metrics = Metrics::default();
    let with_burst = |us| CgroupStats {
        spec: CgroupSpec {
            cpu_burst_us: Some(us),
            ..CgroupSpec::default()
        },
        ..stats(0, 0)
    };
    let mut sweep = snapshot(1, None, vec![instance("next", with_burst(20_000))]);
    let mut ending = sweep.pods[0].clone();
    ending.pod = Arc::new(PodRef {
        uid: PodUid("v".into()),
        ..PodRef::clone(&ending.pod)
    });
    ending.containers = vec![instance("ending", with_burst(50_000))];
    sweep.pods[0].started_at = WallTime::from_epoch(Duration::from_secs(9));
    sweep.pods.push(ending);
    metrics.set_stats(&sweep, None);
    let burst = of("ballast_cpu_burst_limit_seconds");
    let kills = of("ballast_oom_group_kills_total");
    check(&metrics, &[(&burst, Some(0.02)), (&kills, Some(2.0))]);
    sweep.pods.remove(0);
    metrics.set_stats(&sweep, None);
    check(&metrics, &[(&burst, Some(0.05)), (&kills, Some(2.0))]);
}

#[test]
fn idle_is_what_is_left_of_all_cpus_between_two_sweeps() {
    let metrics = Metrics::default();
    let idle = "ballast_node_cpu_idle_ratio";
    let sweep = |at, cpu_ms| snapshot(at, cpu_ms, Vec::new());
    for (before, now, expected) in [
        (None, sweep(10, Some(0)), None),
        (
            Some(sweep(0, Some(1000))),
            sweep(10, Some(6000)),
            Some(0.75),
        ),
        // The clocks differ a little.
        (Some(sweep(0, Some(0))), sweep(1, Some(2001)), Some(0.0)),
        (Some(sweep(0, Some(5))), sweep(1, Some(4)), None),
        (Some(sweep(1, Some(0))), sweep(1, Some(0)), None),
        (Some(sweep(0, None)), sweep(1, Some(1)), None),
    ] {
        metrics.set_stats(&now, before.as_ref());
        check(&metrics, &[(idle, expected)]);
    }
}
