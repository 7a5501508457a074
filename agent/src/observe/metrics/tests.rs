mod budget;
mod container_stats;
mod formats;
mod identity;
mod kubelet;
mod pressure;

use std::collections::BTreeSet;

use super::labels::{
    Boundary, CgroupLevel, CgroupOp, DriftCause, EventResult, FieldHandling, Hook, LagKind,
    LossReason, MoveReason, ObjectKind, Phase, WriteResult,
};
use super::*;
use crate::model::admission::{self, AdmissionTally};
use crate::model::agent_process::ProcessUsage;
use crate::model::api_server::{ApiAnswer, ApiResource, ApiVerb, Asked, PodsFrom};
use crate::model::event::{AttributionMethod, ExitStatus, ProcessChange};
use crate::model::kube_event::Reason;
use crate::model::pod::PodUid;
use crate::model::record::tests::oom_record;
use crate::model::record::{Event, EventDetail, EventRecord, OomDetail};
use crate::model::topology::NumaNodeId;

fn text(metrics: &Metrics) -> String {
    let mut bytes = Vec::new();
    let encoded = metrics.encode(Format::Text, &mut bytes);
    encoded.expect("the families are whole");
    String::from_utf8(bytes).expect("the text format is UTF-8")
}

/// Value of the sample written exactly so; `None` when there is no such line.
fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[track_caller]
fn check(metrics: &Metrics, samples: &[(&str, Option<f64>)]) {
    let text = text(metrics);
    for (sample, expected) in samples {
        assert_eq!(value(&text, sample), *expected, "{sample} in\n{text}");
    }
}

fn oom_parts(record: &EventRecord) -> (&Event, &OomDetail) {
    match &record.event.detail {
        Some(EventDetail::Oom(detail)) => (&record.event, detail),
        other => panic!("the fixture has {other:?}"),
    }
}

/// Of a pod that has a name, and is its own workload.
fn workload_of(event: &Event) -> Option<Workload> {
    let named = event.pod.as_ref().filter(|it| it.has_name());
    named.map(Workload::of_pod)
}

fn pod_uid() -> PodUid {
    PodUid("0a1b2c3d-0000-4000-8000-000000000001".to_owned())
}

/// Sets every family once.
fn everything() -> Metrics {
    everything_of(Identity::Names)
}

fn everything_of(identity: Identity) -> Metrics {
    let metrics = Metrics::new(KubeletDuty::ALL, KubeletNames::Both, identity);
    let at = WallTime::from_epoch(Duration::from_secs(1_763_710_000));
    let second = Duration::from_secs(1);
    metrics.set_build("0.1.0", "abc", "x86_64-unknown-linux-musl");
    metrics.set_mode("own", "v2", "cgroupfs", false);
    metrics.set_feature("memory_qos", true);
    metrics.set_kernel_feature("tp_btf", true);
    metrics.set_objects(ObjectKind::Pod, 1);
    metrics.loop_phase(Phase::Gather, second);
    metrics.loop_succeeded(at);
    metrics.source_read(Source::Manifests, second);
    metrics.set_source_ages(second);
    metrics.source_error(Source::Manifests, SourceFault::Parse);
    let usage = ProcessUsage {
        cpu: Some(second),
        open_fds: Some(20),
        max_fds: Some(1024),
        virtual_bytes: Some(1 << 30),
        resident_bytes: Some(1 << 24),
        threads: Some(3),
        n_capabilities: Some(0),
    };
    metrics.set_process_usage(&usage, at);
    let mut record = oom_record(1);
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, workload_of(event).as_ref());
    record.event.pod = None;
    record.event.method = Some(AttributionMethod::None);
    if let Some(EventDetail::Oom(detail)) = &mut record.event.detail {
        detail.scope = OomScope::Node;
    }
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, workload_of(event).as_ref());
    metrics.oom_records(RecordResult::Kept, 1);
    metrics.cgroup_writes("memory.max", WriteResult::Changed, 1);
    metrics.cgroup_op(CgroupOp::Mkdir, second);
    metrics.drift("memory.max", DriftCause::Foreign);
    metrics.set_drift_unresolved([("memory.max", 1)]);
    metrics.yielded("memory.max", at);
    metrics.reconcile_lag(LagKind::Pod, second);
    metrics.set_cgroups(CgroupLevel::Pod, 1);
    metrics.set_cgroups_dying(Some(0));
    metrics.set_unknown_cgroups(0);
    metrics.set_escaped_containers(0);
    metrics.set_program("oom_mark_victim", Hook::TpBtf);
    metrics.set_program_statistics("oom_mark_victim", 1, second);
    metrics.bpf_event(Stream::Oom, second);
    metrics.set_bpf_lost(Stream::Oom, LossReason::RingFull, 0, at);
    metrics.set_bpf_lost(Stream::Oom, LossReason::RingFull, 1, at);
    metrics.set_map("oom_slots", 1, 64);
    metrics.state_saved(SaveResult::Ok, second);
    metrics.state_restored(RestoreResult::Empty);
    metrics.set_kubelet_config_fields(FieldHandling::Honoured, 3);
    let counts = DeviceCounts {
        n_unhealthy: Some(0),
        ..DeviceCounts::default()
    };
    metrics.set_devices([("example.com/gpu", None, counts)]);
    let now = WallTime::from_epoch(Duration::from_secs(1));
    let refused = Some(admission::RefusalReason::TopologyAffinityError);
    metrics.begin_placement("restricted");
    let tally = AdmissionTally::default();
    metrics.admission(
        &pod_uid(),
        "restricted",
        refused,
        Some((&tally, second)),
        now,
    );
    metrics.container_moved(MoveReason::Hardware);
    metrics.set_placement(&PlacementGauges {
        pools: Some(PoolCpus {
            reserved: Some(0),
            free: Some(0),
            ..PoolCpus::default()
        }),
        free_cpus: BTreeMap::from([(NumaNodeId(0), 3)]),
        free_bytes: BTreeMap::from([((NumaNodeId(0), "memory".to_owned()), 1)]),
        exclusive: BTreeMap::from([(ContainerLabels::named("ns", "pod", "app").to_key(), 2)]),
        exclusive_by_node: BTreeMap::from([(NumaNodeId(0), 2)]),
        numa_nodes: container_stats::numa_nodes(),
        misaligned: BTreeMap::from([(Boundary::Numa, 0)]),
    });
    metrics.device_plugin_refused(RefusalReason::Version);
    metrics.device_plugin_registered("example.com/gpu");
    metrics.device_allocated("example.com/gpu", second);
    metrics.begin_pod_resources();
    pressure::set_all(&metrics, at);
    container_stats::set_all(&metrics);
    kubelet::set_all(&metrics);
    metrics.begin_api(PodsFrom::ApiServer, true);
    metrics.api_told(ApiResource::Pods, at);
    metrics.ring_found(Stream::Oom, 0.5);
    metrics.set_recording(1, 0, Some(at));
    metrics.scraped(labels::Endpoint::Metrics, Some(1), 1, second);
    metrics
}

#[test]
fn a_scrape_holds_the_families_of_the_table_and_no_other() {
    let metrics = everything();
    text(&metrics); // The sizes of an answer show in the next one.
    let text = text(&metrics);
    let scraped: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let listed: BTreeSet<&str> = table().iter().map(|it| it.name).collect();
    assert_eq!(scraped, listed);
    for family in table() {
        let word = match family.kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram(_) => "histogram",
        };
        let header = format!("# TYPE {} {word}\n", family.name);
        assert!(text.contains(&header), "{header}");
        let help = format!("# HELP {} {}\n", family.name, family.help);
        assert!(text.contains(&help), "{help}");
    }
}

#[test]
fn questions_to_the_api_server_are_counted_by_their_answers() {
    let metrics = Metrics::default();
    metrics.begin_api(PodsFrom::ApiServer, false);
    let at = WallTime::from_epoch(Duration::from_secs(7));
    let asked = |verb, answer| Asked {
        verb,
        resource: ApiResource::Pods,
        answer,
        took: Duration::from_millis(1),
    };
    let requests = |verb: &str, code: &str| {
        format!(r#"ballast_api_requests_total{{code="{code}",resource="pods",verb="{verb}"}}"#)
    };
    let heard = r#"ballast_api_last_success_timestamp_seconds{resource="pods"}"#;
    check(
        &metrics,
        &[
            (&requests("watch", "2xx"), Some(0.0)),
            (&requests("list", "none"), Some(0.0)),
            (heard, None),
        ],
    );
    assert!(!text(&metrics).contains("ballast_api_events_total{"));
    for (answer, code) in [
        (ApiAnswer::None, "none"),
        (ApiAnswer::Refused(403), "403"),
        (ApiAnswer::Refused(503), "5xx"),
        (ApiAnswer::Refused(418), "other"),
    ] {
        metrics.api_asked(&asked(ApiVerb::Watch, answer), at);
        check(
            &metrics,
            &[(&requests("watch", code), Some(1.0)), (heard, None)],
        );
    }
    metrics.api_asked(&asked(ApiVerb::List, ApiAnswer::Good), at);
    check(
        &metrics,
        &[(&requests("list", "2xx"), Some(1.0)), (heard, Some(7.0))],
    );
    let count = r#"ballast_api_request_duration_seconds_count{resource="pods",verb="watch"}"#;
    check(&metrics, &[(count, Some(4.0))]);
}

#[test]
fn events_are_counted_by_what_became_of_them() {
    let metrics = Metrics::default();
    metrics.begin_api(PodsFrom::ApiServer, true);
    let events = |result: &str| {
        format!(r#"ballast_api_events_total{{reason="OomKilledChild",result="{result}"}}"#)
    };
    check(&metrics, &[(&events("sent"), Some(0.0))]);
    for n in [2, 5] {
        metrics.set_api_events(
            Reason::OomKilledChild,
            [
                (EventResult::Sent, n),
                (EventResult::Folded, 1),
                (EventResult::Dropped, 0),
            ],
        );
    }
    check(
        &metrics,
        &[
            (&events("sent"), Some(5.0)),
            (&events("folded"), Some(1.0)),
            (&events("dropped"), Some(0.0)),
        ],
    );
}

#[test]
fn a_kill_is_counted_for_container_workload_and_scope() {
    let metrics = Metrics::default();
    let record = oom_record(1);
    let (event, detail) = oom_parts(&record);
    let workload = Workload {
        namespace: "default".into(),
        kind: "Deployment".into(),
        name: "hungry".into(),
    };
    metrics.oom_kill(event, detail, Some(&workload));
    let container = r#"{container="main",namespace="default",pod="hungry"}"#;
    check(
        &metrics,
        &[
            (&format!("ballast_oom_kills_total{container}"), Some(1.0)),
            (
                &format!("ballast_oom_child_kills_total{container}"),
                Some(1.0),
            ),
            (
                &format!("ballast_oom_last_kill_timestamp_seconds{container}"),
                Some(1_763_710_000.123_456),
            ),
            (
                r#"ballast_oom_workload_kills_total{namespace="default",workload="hungry",workload_kind="Deployment"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_oom_scope_kills_total{qos="besteffort",scope="container"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_oom_attribution_total{method="exact"}"#,
                Some(1.0),
            ),
            (r#"ballast_oom_attribution_total{method="none"}"#, Some(0.0)),
            ("ballast_oom_last_unattributed_timestamp_seconds", None),
            (r#"ballast_oom_host_kills_total{slice="system"}"#, Some(0.0)),
            (
                r#"ballast_oom_victim_bytes_bucket{qos="besteffort",le="67108864"}"#,
                Some(1.0),
            ),
            (
                r#"ballast_oom_detection_seconds_bucket{le="0.0001"}"#,
                Some(1.0),
            ),
        ],
    );
}

#[test]
fn a_kill_by_a_limit_that_nobody_can_name_is_unattributed() {
    let metrics = Metrics::default();
    let mut record = oom_record(1);
    record.event.method = Some(AttributionMethod::None);
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, workload_of(event).as_ref());
    let text = text(&metrics);
    for (sample, is_positive) in [
        (r#"ballast_oom_attribution_total{method="none"}"#, true),
        (r#"ballast_oom_attribution_total{method="exact"}"#, false),
        ("ballast_oom_last_unattributed_timestamp_seconds", true),
    ] {
        let value = value(&text, sample).unwrap_or_default();
        assert_eq!(value > 0.0, is_positive, "{sample} in\n{text}");
    }
}

#[test]
fn a_victim_that_was_exiting_is_no_kill() {
    let metrics = Metrics::default();
    let mut record = oom_record(1);
    if let Some(EventDetail::Oom(detail)) = &mut record.event.detail {
        detail.was_exiting = true;
    }
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, workload_of(event).as_ref());
    let text = text(&metrics);
    assert!(!text.contains("ballast_oom_kills_total{"), "{text}");
    let attributed = r#"ballast_oom_attribution_total{method="exact"}"#;
    assert_eq!(value(&text, attributed), Some(1.0));
}

#[test]
fn a_kill_in_a_pod_that_nobody_knows_is_none_of_the_hosts() {
    let metrics = Metrics::default();
    let mut record = oom_record(1);
    (record.event.pod, record.event.container) = (None, None);
    if let Some(EventDetail::Oom(detail)) = &mut record.event.detail {
        detail.victim.unknown_cgroup_id = Some(7);
    }
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, workload_of(event).as_ref());
    let text = text(&metrics);
    let unnamed = r#"ballast_oom_kills_total{container="",namespace="",pod=""}"#;
    assert_eq!(value(&text, unnamed), Some(1.0), "{text}");
    let of_host = r#"ballast_oom_host_kills_total{slice="other"}"#;
    assert_eq!(value(&text, of_host), Some(0.0));
}

#[test]
fn counts_of_a_container_begin_at_zero_and_end_after_the_pod() {
    let metrics = Metrics::default();
    let at = Duration::from_secs;
    let main = ContainerLabels::named("default", "web", "main");
    let kills = r#"ballast_oom_kills_total{container="main",namespace="default",pod="web"}"#;
    let exits = r#"ballast_process_exits_total{container="main",how="signal",namespace="default",pod="web"}"#;
    metrics.sync_pods([main], at(0));
    check(&metrics, &[(kills, Some(0.0)), (exits, Some(0.0))]);
    let change = ProcessChange::Exit {
        status: ExitStatus::Signal {
            signal: 9,
            core_dumped: false,
        },
        by_oom: false,
    };
    metrics.process_change(main, &change, at(1));
    metrics.sync_pods([], at(10));
    check(&metrics, &[(kills, Some(0.0)), (exits, Some(1.0))]);
    metrics.sync_pods([], at(10) + POD_RETENTION);
    check(&metrics, &[(kills, None), (exits, None)]);
}

#[test]
fn counts_of_a_cgroup_file_begin_at_zero_with_its_first_write() {
    let metrics = Metrics::default();
    metrics.cgroup_writes("memory.max", WriteResult::Same, 1);
    let [writes, drift, yields] = [
        r#"ballast_cgroup_writes_total{file="memory.max",result="refused"}"#,
        r#"ballast_reconcile_drift_total{cause="foreign",file="memory.max"}"#,
        r#"ballast_reconcile_yields_total{file="memory.max"}"#,
    ];
    let zero = Some(0.0);
    check(&metrics, &[(writes, zero), (drift, zero), (yields, zero)]);
    let of_another = r#"ballast_reconcile_yields_total{file="memory.min"}"#;
    check(&metrics, &[(of_another, None)]);
}

#[test]
fn totals_outlive_the_pod() {
    let metrics = Metrics::default();
    let record = oom_record(1);
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, workload_of(event).as_ref());
    let now = Duration::from_nanos(event.boottime_ns);
    let pod = r#"ballast_oom_kills_total{container="main",namespace="default",pod="hungry"}"#;
    let last = r#"ballast_oom_last_kill_timestamp_seconds{container="main",namespace="default",pod="hungry"}"#;
    let workload = r#"ballast_oom_workload_kills_total{namespace="default",workload="hungry",workload_kind="Pod"}"#;
    metrics.sync_pods([], now + POD_RETENTION);
    check(
        &metrics,
        &[(pod, None), (last, None), (workload, Some(1.0))],
    );
    metrics.sync_pods([], now + WORKLOAD_RETENTION);
    check(&metrics, &[(workload, None)]);
}

#[test]
fn counters_of_the_kernel_are_repeated_and_a_new_start_adds_up() {
    let metrics = Metrics::default();
    let at = WallTime::from_epoch(Duration::from_secs(100));
    for (n_lost, new) in [(5, 0), (5, 0), (8, 3), (2, 2)] {
        let lost = metrics.set_bpf_lost(Stream::Process, LossReason::RingFull, n_lost, at);
        assert_eq!(lost, new, "after {n_lost}");
    }
    check(
        &metrics,
        &[(
            r#"ballast_bpf_events_lost_total{reason="ring_full",stream="process"}"#,
            Some(10.0),
        )],
    );
}

#[test]
fn a_reading_ages_until_the_next_and_a_source_never_read_has_no_age() {
    let metrics = Metrics::default();
    let at = Duration::from_secs;
    let psi = r#"ballast_source_age_seconds{source="psi"}"#;
    metrics.source_read(Source::Psi, at(100));
    metrics.set_source_ages(at(103));
    let bpf = r#"ballast_source_age_seconds{source="bpf"}"#;
    check(&metrics, &[(psi, Some(3.0)), (bpf, None)]);
    metrics.source_read(Source::Psi, at(110));
    metrics.set_source_ages(at(110));
    check(&metrics, &[(psi, Some(0.0))]);
}

#[test]
fn what_is_not_known_is_absent() {
    let metrics = Metrics::default();
    metrics.set_cgroups_dying(Some(3));
    check(&metrics, &[("ballast_cgroups_dying", Some(3.0))]);
    metrics.set_cgroups_dying(None);
    metrics.set_process_usage(&ProcessUsage::default(), WallTime::default());
    check(
        &metrics,
        &[
            ("ballast_cgroups_dying", None),
            ("process_resident_memory_bytes", None),
            ("process_cpu_seconds_total", None),
        ],
    );
}

#[test]
fn a_program_that_is_detached_has_one_series() {
    let metrics = Metrics::default();
    metrics.set_program("exec", Hook::TpBtf);
    metrics.set_program("exec", Hook::None);
    check(
        &metrics,
        &[
            (
                r#"ballast_bpf_program_attached{hook="tp_btf",program="exec"}"#,
                None,
            ),
            (
                r#"ballast_bpf_program_attached{hook="none",program="exec"}"#,
                Some(0.0),
            ),
        ],
    );
}

#[test]
fn an_agent_beside_kubelet_shows_none_of_its_families() {
    let metrics = Metrics::new(&[], KubeletNames::Both, Identity::Names);
    kubelet::set_all(&metrics);
    metrics.begin_eviction();
    metrics.begin_pod_resources();
    assert!(!text(&metrics).contains("kubelet_"));
}

/// Not even as 0, where a graph would show that nothing was evicted.
#[test]
fn an_agent_that_looks_on_shows_nothing_of_what_it_never_does() {
    let manages = text(&Metrics::default());
    let looks_on = text(&Metrics::new(&[], KubeletNames::Both, Identity::NamesOrIds));
    for family in [
        "ballast_device_plugin_refusals_total",
        "ballast_eviction_actions_total",
        "ballast_eviction_pods_total",
        "ballast_eviction_returned_pods_total",
        "ballast_memory_reclaimed_bytes_total",
        "ballast_pressure_wakeups_total",
        "ballast_state_restores_total",
        "ballast_state_saves_total",
    ] {
        let has = |text: &str| text.lines().any(|it| it.starts_with(family));
        assert!(has(&manages) && !has(&looks_on), "{family} in\n{looks_on}");
    }
}

#[test]
fn resources_beyond_the_limit_share_one_series() {
    let metrics = Metrics::default();
    for i in 0..MAX_RESOURCES + 2 {
        metrics.device_plugin_registered(&format!("example.com/{i}"));
    }
    metrics.device_plugin_registered("example.com/0");
    check(
        &metrics,
        &[
            (
                "kubelet_device_plugin_registration_total{resource_name=\"example.com/0\"}",
                Some(2.0),
            ),
            (
                "kubelet_device_plugin_registration_total{resource_name=\"other\"}",
                Some(2.0),
            ),
        ],
    );
}

#[test]
fn devices_are_counted_by_numa_node_and_old_counts_go() {
    let metrics = Metrics::default();
    let counts = |n_allocated, n_unhealthy| DeviceCounts {
        n_allocated,
        n_unhealthy: Some(n_unhealthy),
    };
    let node = Some(NumaNodeId(1));
    metrics.set_devices([("a.b/c", None, counts(1, 0)), ("a.b/c", node, counts(2, 3))]);
    let of = |name: &str, node: &str| {
        format!("ballast_device_{name}{{numa_node=\"{node}\",resource=\"a.b/c\"}}")
    };
    check(
        &metrics,
        &[
            (&of("allocated", "none"), Some(1.0)),
            (&of("allocated", "1"), Some(2.0)),
            (&of("unhealthy", "1"), Some(3.0)),
        ],
    );
    // How they are nobody tells.
    let held = DeviceCounts {
        n_allocated: 1,
        n_unhealthy: None,
    };
    metrics.set_devices([("a.b/c", node, held)]);
    check(
        &metrics,
        &[
            (&of("allocated", "1"), Some(1.0)),
            (&of("unhealthy", "1"), None),
            (&of("allocated", "none"), None),
        ],
    );
    metrics.set_devices([]);
    check(&metrics, &[(&of("allocated", "1"), None)]);
    // More resources than have series of their own.
    let names: Vec<String> = (0..MAX_RESOURCES + 2).map(|n| format!("d{n}")).collect();
    metrics.set_devices(names.iter().map(|it| (it.as_str(), None, counts(1, 2))));
    let other =
        |name: &str| format!("ballast_device_{name}{{numa_node=\"none\",resource=\"other\"}}");
    // Among the first is one that has series from before.
    check(
        &metrics,
        &[
            (&other("allocated"), Some(3.0)),
            (&other("unhealthy"), Some(6.0)),
        ],
    );
}

#[test]
fn counts_of_oom_kills_go_on_in_the_next_agent() {
    let before = Metrics::default();
    let record = oom_record(1);
    let (event, detail) = oom_parts(&record);
    for _ in 0..3 {
        before.oom_kill(event, detail, workload_of(event).as_ref());
    }
    before.oom_records(RecordResult::Coalesced, 3);
    let json = serde_json::to_string(&before.oom_counts()).expect("plain data");
    let saved = serde_json::from_str(&json).expect("just written");
    let after = Metrics::default();
    let now = Duration::from_secs(100);
    after.restore_oom_counts(&saved, now);
    after.oom_kill(event, detail, workload_of(event).as_ref());
    let container = r#"{container="main",namespace="default",pod="hungry"}"#;
    let seconds = event.time.since_epoch().as_secs_f64();
    check(
        &after,
        &[
            (&format!("ballast_oom_kills_total{container}"), Some(4.0)),
            (
                &format!("ballast_oom_child_kills_total{container}"),
                Some(4.0),
            ),
            (
                &format!("ballast_oom_last_kill_timestamp_seconds{container}"),
                Some(seconds),
            ),
            (
                r#"ballast_oom_workload_kills_total{namespace="default",workload="hungry",workload_kind="Pod"}"#,
                Some(4.0),
            ),
            (
                r#"ballast_oom_scope_kills_total{qos="besteffort",scope="container"}"#,
                Some(4.0),
            ),
            (
                r#"ballast_oom_records_total{result="coalesced"}"#,
                Some(3.0),
            ),
            (r#"ballast_oom_records_total{result="dropped"}"#, Some(0.0)),
        ],
    );
    // The pod did not come back.
    after.sync_pods([], now + POD_RETENTION);
    after.sync_pods([], now + POD_RETENTION * 2);
    check(
        &after,
        &[(&format!("ballast_oom_kills_total{container}"), None)],
    );
}

/// An alert compares it with the time of Prometheus.
#[test]
fn the_time_of_the_last_kill_follows_a_clock_that_is_set() {
    let metrics = Metrics::default();
    let record = oom_record(1);
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, workload_of(event).as_ref());
    let kill = event.time.since_epoch();
    let container = r#"{container="main",namespace="default",pod="hungry"}"#;
    let last = format!("ballast_oom_last_kill_timestamp_seconds{container}");
    let shows = |at: Duration| check(&metrics, &[(&last, Some(at.as_secs_f64()))]);
    let minute = Duration::from_secs(60);
    let set = |from: Duration, to: Duration, uptime| {
        let at = WallTime::from_epoch;
        metrics.clock_was_set(at(from), at(to), uptime);
    };
    // Of a boot before, and by a clock that was set already.
    set(kill + minute, kill + 9 * minute, 5 * minute);
    set(kill - 9 * minute, kill, 5 * minute);
    shows(kill);
    // NTP finds the clock a year late, and later an hour early.
    let year = Duration::from_secs(365 * 24 * 3600);
    set(kill - minute, kill - minute + year, 2 * minute);
    shows(kill + year);
    set(kill + year - minute, kill + year - 61 * minute, 2 * minute);
    shows(kill + year - 60 * minute);
}

#[test]
fn counts_that_another_agent_saved_make_no_new_series() {
    let saved = r#"{"ballast_oom_kills_total": [{"labels": {"pod": "x"}, "value": 1}],
        "future_total": [{"labels": {}, "value": 1}],
        "ballast_oom_records_total": [{"labels": {"result": "kept"}, "value": -1}]}"#;
    let metrics = Metrics::default();
    let saved = serde_json::from_str(saved).expect("saved counts");
    metrics.restore_oom_counts(&saved, Duration::ZERO);
    assert!(!text(&metrics).contains("ballast_oom_kills_total{"));
    check(
        &metrics,
        &[(r#"ballast_oom_records_total{result="kept"}"#, Some(0.0))],
    );
}
