use super::super::labels::{
    BlockedReason, EvictionResult, EvictionSignal, EvictionStage, PressureResource, PressureScope,
    ReclaimCause,
};
use super::*;
use crate::model::eviction::{MemoryMethod, Signal, StallSource, StallTotals, WakeSource};
use crate::model::pod::QosClass;
use crate::model::status::{PressureStatus, ResourceStatus, SignalStatus, ThresholdStatus};
use crate::units::Bytes;

const MAIN: ContainerLabels<'_> = ContainerLabels::named("default", "web", "main");

/// Of a container, with every figure.
pub(super) fn memory(n_hits: u64) -> ContainerMemory {
    let some = Some(Bytes(1 << 20));
    ContainerMemory {
        cgroup_id: 7,
        hits: LimitHits {
            low: Some(0),
            high: Some(1),
            max: Some(n_hits),
        },
        peak: some,
        reclaimable: some,
        time_to_limit: Some(Duration::from_secs(60)),
        memory_min: some,
        memory_low: some,
        memory_high: some,
        is_relaxed: Some(false),
    }
}

fn psi(some_us: u64, full_us: u64) -> StallTotals {
    StallTotals {
        source: StallSource::Psi,
        some_us,
        full_us: Some(full_us),
    }
}

fn signal(signal: Signal, available: Option<i64>, thresholds: &[(bool, i64)]) -> SignalStatus {
    let thresholds = thresholds.iter().map(|(is_hard, amount)| ThresholdStatus {
        is_hard: *is_hard,
        amount: Some(*amount),
        grace_seconds: if *is_hard { 0 } else { 90 },
        is_met: available.is_some_and(|it| it < *amount),
    });
    SignalStatus {
        signal,
        available,
        capacity: Some(1000),
        age_ms: available.map(|_| 12),
        thresholds: thresholds.collect(),
    }
}

/// Sets every family of memory, pressure and eviction once.
pub(super) fn set_all(metrics: &Metrics, at: WallTime) {
    let second = Duration::from_secs(1);
    metrics.set_container_memory([(MAIN, memory(1))], second);
    metrics.memory_reclaimed(ReclaimCause::PreEviction, Bytes(1));
    metrics.set_node_allocatable(&BTreeMap::from([(
        "cpu".to_owned(),
        ResourceStatus {
            allocatable: Some(0),
            ..ResourceStatus::default()
        },
    )]));
    let status = PressureStatus {
        signals: vec![signal(Signal::MemoryAvailable, Some(300), &[(true, 100)])],
        memory_available: BTreeMap::from([(MemoryMethod::WorkingSet, 300)]),
        stalls: BTreeMap::from([("node".to_owned(), psi(1, 1))]),
        ..PressureStatus::default()
    };
    metrics.set_pressure(&status, second);
    metrics.set_pressure(&status, second * 2);
    metrics.pressure_wakeup(WakeSource::Timer);
    metrics.begin_eviction();
    let memory = EvictionSignal::from(Signal::MemoryAvailable);
    let (kill, done) = (EvictionStage::Kill, EvictionResult::Done);
    metrics.eviction_action(memory, kill, done, false, at);
    metrics.pod_evicted(&pod_uid(), memory, QosClass::Burstable, Some(second), at);
    metrics.eviction_effect(memory, kill, &EvictionEffect::default());
    metrics.eviction_blocked(memory, BlockedReason::Critical, at);
}

#[test]
fn stalled_time_is_repeated_and_its_share_is_of_a_second() {
    let metrics = Metrics::default();
    let at = Duration::from_millis;
    let total =
        r#"ballast_pressure_stall_seconds_total{kind="some",resource="memory",scope="node"}"#;
    let some = r#"ballast_pressure_stall_ratio{kind="some",resource="memory",scope="node"}"#;
    let full = r#"ballast_pressure_stall_ratio{kind="full",resource="memory",scope="node"}"#;
    let set = |ms, totals| {
        let (memory, node) = (PressureResource::Memory, PressureScope::Node);
        metrics.set_stall(memory, node, &totals, at(ms));
    };
    set(10_000, psi(5_000_000, 0));
    check(&metrics, &[(total, Some(5.0)), (some, None)]);
    set(10_500, psi(5_250_000, 0));
    check(&metrics, &[(total, Some(5.25)), (some, None)]);
    set(12_000, psi(6_000_000, 200_000));
    check(
        &metrics,
        &[(total, Some(6.0)), (some, Some(0.5)), (full, Some(0.1))],
    );
    // The cgroup was made again.
    set(13_000, psi(500_000, 0));
    check(&metrics, &[(total, Some(6.5))]);
}

#[test]
fn an_episode_is_counted_when_it_begins_and_measured_when_it_ends() {
    let metrics = Metrics::default();
    let n = r#"ballast_pressure_episodes_total{resource="memory",scope="kubepods"}"#;
    let sum = r#"ballast_pressure_episode_seconds_sum{resource="memory"}"#;
    let kubepods = |totals: Option<u64>| PressureStatus {
        stalls: totals
            .map(|us| ("kubepods".to_owned(), psi(us, 0)))
            .into_iter()
            .collect(),
        ..PressureStatus::default()
    };
    for (second, stalled_us, n_episodes, length) in [
        (1, Some(0), 0.0, 0.0),
        (2, Some(99_000), 0.0, 0.0),
        (3, Some(199_000), 1.0, 0.0),
        (4, Some(999_000), 1.0, 0.0),
        (5, Some(1_000_000), 1.0, 2.0),
        (6, Some(1_500_000), 2.0, 2.0),
        (9, None, 2.0, 5.0),
    ] {
        metrics.set_pressure(&kubepods(stalled_us), Duration::from_secs(second));
        check(&metrics, &[(n, Some(n_episodes)), (sum, Some(length))]);
    }
    let share = r#"ballast_pressure_stall_ratio{kind="some",resource="memory",scope="kubepods"}"#;
    check(&metrics, &[(share, None)]);
}

#[test]
fn task_time_in_reclaim_is_not_taken_for_psi() {
    let metrics = Metrics::default();
    let totals = |some_us| StallTotals {
        source: StallSource::Reclaim,
        some_us,
        full_us: None,
    };
    for second in 1..4 {
        metrics.set_stall(
            PressureResource::Memory,
            PressureScope::Node,
            &totals(second * 4_000_000),
            Duration::from_secs(second),
        );
    }
    let of = |name: &str, kind: &str| {
        format!("ballast_pressure_{name}{{kind=\"{kind}\",resource=\"memory\",scope=\"node\"}}")
    };
    check(
        &metrics,
        &[
            (&of("stall_seconds_total", "reclaim"), Some(12.0)),
            (&of("stall_seconds_total", "some"), None),
            (&of("stall_ratio", "some"), None),
        ],
    );
}

#[test]
fn hits_add_up_over_the_cgroups_of_a_container_and_gauges_go_with_it() {
    let metrics = Metrics::default();
    let at = Duration::from_secs;
    let labels = r#"container="main",limit="max",namespace="default",pod="web""#;
    let hits = format!("ballast_memory_limit_hits_total{{{labels}}}");
    let peak =
        r#"ballast_memory_peak_bytes{container="main",namespace="default",pod="web"}"#.to_owned();
    metrics.sync_pods([MAIN], at(0));
    metrics.set_container_memory([(MAIN, memory(3))], at(1));
    let unread = ContainerMemory {
        cgroup_id: 7,
        ..ContainerMemory::default()
    };
    metrics.set_container_memory([(MAIN, unread)], at(2));
    check(&metrics, &[(&hits, Some(3.0)), (&peak, None)]);
    metrics.set_container_memory([(MAIN, memory(4))], at(3));
    check(&metrics, &[(&hits, Some(4.0)), (&peak, Some(1_048_576.0))]);
    metrics.set_container_memory([], at(4));
    check(&metrics, &[(&hits, Some(4.0)), (&peak, None)]);
    // The next instance was held back more often than the one before.
    let next = ContainerMemory {
        cgroup_id: 8,
        ..memory(6)
    };
    metrics.set_container_memory([(MAIN, next)], at(5));
    check(&metrics, &[(&hits, Some(10.0))]);
    metrics.sync_pods([], at(6));
    metrics.sync_pods([], at(6) + POD_RETENTION);
    check(&metrics, &[(&hits, None), (&peak, None)]);
    // A pod of that name begins anew.
    metrics.set_container_memory([(MAIN, next)], at(7) + POD_RETENTION);
    check(&metrics, &[(&hits, Some(6.0))]);
}

/// A pod of that name ends still while the next one runs.
#[test]
fn of_containers_of_one_name_the_last_is_shown_and_the_hits_of_all_are_counted() {
    let metrics = Metrics::default();
    let container = r#"container="main","#;
    let pod = r#"namespace="default",pod="web""#;
    let hits = format!("ballast_memory_limit_hits_total{{{container}limit=\"max\",{pod}}}");
    let peak = format!("ballast_memory_peak_bytes{{{container}{pod}}}");
    let high = format!("ballast_memory_protection_bytes{{{container}kind=\"high\",{pod}}}");
    let ending = ContainerMemory {
        peak: Some(Bytes(9)),
        ..memory(3)
    };
    let next = ContainerMemory {
        cgroup_id: 8,
        memory_high: None,
        ..memory(4)
    };
    for (second, containers, expected) in [
        (1, vec![ending], (3.0, Some(9.0), Some(1_048_576.0))),
        (2, vec![ending, next], (7.0, Some(1_048_576.0), None)),
        (3, vec![next], (7.0, Some(1_048_576.0), None)),
    ] {
        let containers = containers.into_iter().map(|it| (MAIN, it));
        metrics.set_container_memory(containers, Duration::from_secs(second));
        let (n_hits, peak_bytes, high_bytes) = expected;
        check(
            &metrics,
            &[
                (&hits, Some(n_hits)),
                (&peak, peak_bytes),
                (&high, high_bytes),
            ],
        );
    }
}

#[test]
fn a_limit_that_is_far_away_is_not_shown() {
    let metrics = Metrics::default();
    let time =
        r#"ballast_memory_time_to_limit_seconds{container="main",namespace="default",pod="web"}"#;
    for (seconds, expected) in [(3600, Some(3600.0)), (3601, None)] {
        let memory = ContainerMemory {
            time_to_limit: Some(Duration::from_secs(seconds)),
            ..memory(0)
        };
        metrics.set_container_memory([(MAIN, memory)], Duration::ZERO);
        check(&metrics, &[(time, expected)]);
    }
}

#[test]
fn headroom_is_above_the_nearest_threshold_of_its_kind() {
    let metrics = Metrics::default();
    let memory = Signal::MemoryAvailable;
    let thresholds = [(true, 100), (false, 400), (false, 500)];
    let headroom =
        |kind| format!("ballast_eviction_headroom_ratio{{kind=\"{kind}\",signal=\"{memory}\"}}");
    let active = format!("ballast_eviction_active{{signal=\"{memory}\"}}");
    let age = format!("ballast_eviction_signal_age_seconds{{signal=\"{memory}\"}}");
    for (signals, hard, soft, is_active, seconds) in [
        (
            vec![signal(memory, Some(450), &thresholds)],
            Some(0.35),
            Some(-0.05),
            Some(1.0),
            Some(0.012),
        ),
        (
            vec![signal(memory, Some(600), &thresholds[..1])],
            Some(0.5),
            None,
            Some(0.0),
            Some(0.012),
        ),
        (
            vec![signal(memory, None, &thresholds)],
            None,
            None,
            Some(0.0),
            None,
        ),
        (
            vec![signal(memory, Some(600), &[])],
            None,
            None,
            None,
            Some(0.012),
        ),
        (Vec::new(), None, None, None, None),
    ] {
        let status = PressureStatus {
            signals,
            ..PressureStatus::default()
        };
        metrics.set_pressure(&status, Duration::ZERO);
        check(
            &metrics,
            &[
                (&headroom("hard"), hard),
                (&headroom("soft"), soft),
                (&active, is_active),
                (&age, seconds),
            ],
        );
    }
}

#[test]
fn an_eviction_counts_under_our_names_and_kubelets() {
    let metrics = Metrics::default();
    let at = WallTime::from_epoch(Duration::from_secs(1000));
    let signal = EvictionSignal::from(Signal::MemoryAvailable);
    let kill = EvictionStage::Kill;
    let kubelet = [
        r#"kubelet_evictions{eviction_signal="memory.available"}"#,
        r#"kubelet_evictions_total{eviction_signal="memory.available"}"#,
    ];
    check(&metrics, &kubelet.map(|it| (it, None)));
    metrics.begin_eviction();
    check(&metrics, &kubelet.map(|it| (it, Some(0.0))));

    metrics.pod_evicted(&pod_uid(), signal, QosClass::BestEffort, None, at);
    metrics.eviction_action(signal, kill, EvictionResult::Done, false, at);
    let effect = EvictionEffect {
        expected: Some(Bytes(100)),
        freed: Some(Bytes(90)),
        reaction: Some(Duration::from_millis(20)),
    };
    metrics.eviction_effect(signal, kill, &effect);
    let not_measured = EvictionEffect {
        freed: None,
        ..effect
    };
    metrics.eviction_effect(signal, kill, &not_measured);
    check(&metrics, &kubelet.map(|it| (it, Some(1.0))));
    check(
        &metrics,
        &[
            (
                r#"ballast_eviction_pods_total{qos="besteffort",signal="memory.available"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_eviction_actions_total{dry_run="false",result="done",signal="memory.available",stage="kill"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_eviction_last_timestamp_seconds{signal="memory.available",stage="kill"}"#,
                Some(1000.0),
            ),
            (
                r#"ballast_eviction_expected_bytes_total{signal="memory.available"}"#,
                Some(100.0),
            ),
            (
                r#"ballast_eviction_freed_bytes_total{signal="memory.available"}"#,
                Some(90.0),
            ),
            (
                r#"ballast_eviction_reaction_seconds_count{signal="memory.available",stage="kill"}"#,
                Some(2.0),
            ),
        ],
    );
}

#[test]
fn what_was_not_done_has_no_time() {
    let metrics = Metrics::default();
    let at = WallTime::from_epoch(Duration::from_secs(1000));
    let last = r#"ballast_eviction_last_timestamp_seconds{signal="memory.stall",stage="kill"}"#;
    let act = |result, is_dry_run| {
        let (stall, kill) = (EvictionSignal::STALL, EvictionStage::Kill);
        metrics.eviction_action(stall, kill, result, is_dry_run, at);
        value(&text(&metrics), last)
    };
    assert_eq!(act(EvictionResult::Done, true), None);
    assert_eq!(act(EvictionResult::Failed, false), None);
    assert_eq!(act(EvictionResult::Partial, false), Some(1000.0));
}

#[test]
fn what_may_happen_begins_at_zero_and_what_cannot_is_absent() {
    let metrics = Metrics::default();
    check(
        &metrics,
        &[
            (
                r#"ballast_eviction_actions_total{dry_run="true",result="done",signal="memory.stall",stage="evict"}"#,
                Some(0.0),
            ),
            (
                r#"ballast_eviction_actions_total{dry_run="false",result="done",signal="nodefs.inodesFree",stage="evict"}"#,
                Some(0.0),
            ),
            (
                r#"ballast_eviction_actions_total{dry_run="false",result="done",signal="nodefs.inodesFree",stage="freeze"}"#,
                None,
            ),
            (
                r#"ballast_eviction_expected_bytes_total{signal="emptydirfs.limit"}"#,
                Some(0.0),
            ),
            (
                r#"ballast_eviction_expected_bytes_total{signal="pid.available"}"#,
                None,
            ),
            (
                r#"ballast_eviction_blocked_total{reason="stale",signal="pid.available"}"#,
                Some(0.0),
            ),
            (
                r#"ballast_pressure_wakeups_total{source="psi_trigger"}"#,
                Some(0.0),
            ),
        ],
    );
}

#[test]
fn allocatable_is_spelled_as_kube_state_metrics_has_it() {
    let metrics = Metrics::default();
    let amount = |allocatable| ResourceStatus {
        allocatable: Some(allocatable),
        ..ResourceStatus::default()
    };
    metrics.set_node_allocatable(&BTreeMap::from([
        ("cpu".into(), amount(3800)),
        ("hugepages-2Mi".into(), amount(4 << 20)),
        ("pods".into(), amount(110)),
    ]));
    check(
        &metrics,
        &[
            (
                r#"ballast_node_allocatable{resource="cpu",unit="core"}"#,
                Some(3.8),
            ),
            (
                r#"ballast_node_allocatable{resource="hugepages_2Mi",unit="byte"}"#,
                Some(4_194_304.0),
            ),
            (
                r#"ballast_node_allocatable{resource="pods",unit="integer"}"#,
                Some(110.0),
            ),
        ],
    );
}
