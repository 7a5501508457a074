//! Pods and containers of which only the ids are known.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::container_stats::{instance, snapshot, stats};
use super::formats::{encoded, families, samples_of};
use super::*;
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup_path::CgroupPath;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::QosClass;
use crate::model::record::PodRef;
use crate::model::saved_counts::SavedCounts;

const FORMATS: [Format; 3] = [Format::Text, Format::OpenMetrics, Format::Protobuf];

fn unnamed() -> Metrics {
    Metrics::new(&[], KubeletNames::Both, Identity::NamesOrIds)
}

/// A kill in a container without a name of a pod without a name.
fn kill_in(uid: &str, id: &str) -> EventRecord {
    let mut record = oom_record(1);
    let event = &mut record.event;
    (event.pod, event.pod_uid) = (None, Some(PodUid(uid.to_owned())));
    (event.container, event.container_id) = (None, Some(id.to_owned()));
    record
}

/// The cgroup of a container, or of a pod where the id is empty.
fn owner(uid: &str, id: &str) -> Owner {
    let (uid, qos) = (PodUid(uid.to_owned()), QosClass::Burstable);
    let key = ContainerKey {
        id: id.to_owned(),
        runtime: None,
    };
    let level = match id {
        "" => Level::Pod { uid, qos },
        _ => Level::Container { uid, qos, key },
    };
    let path = CgroupPath::root();
    Owner { level, path }
}

/// One kill in each of two pods.
fn kill_in_two_pods(metrics: &Metrics) {
    for (uid, id) in [("uid-a", "0a"), ("uid-b", "0b")] {
        let record = kill_in(uid, id);
        let (event, detail) = oom_parts(&record);
        metrics.oom_kill(event, detail, None);
        metrics.oom_kills_by(&owner(uid, id), 1);
    }
}

/// A series of the container `id` in the pod `uid`, neither of which has a name.
fn series(name: &str, uid: &str, id: &str) -> String {
    format!(
        "{name}{{container=\"\",container_id=\"{id}\",namespace=\"\",pod=\"\",pod_uid=\"{uid}\"}}"
    )
}

/// Of two pods, by the container's id.
fn of_both(name: &str) -> [String; 2] {
    [series(name, "uid-a", "0a"), series(name, "uid-b", "0b")]
}

#[test]
fn a_series_with_a_name_is_the_same_whether_ids_are_labels_or_not() {
    for format in FORMATS {
        let with_ids = encoded(&everything_of(Identity::NamesOrIds), format);
        assert!(with_ids == encoded(&everything(), format), "{format:?}");
    }
}

#[test]
fn kills_in_pods_without_a_name_are_told_apart_in_every_format() {
    let metrics = unnamed();
    kill_in_two_pods(&metrics);
    let kills = of_both("ballast_oom_kills_total");
    for format in [Format::Text, Format::OpenMetrics] {
        let (bytes, _) = encoded(&metrics, format);
        let text = String::from_utf8(bytes).expect("UTF-8");
        let lines = text.lines();
        let lines: Vec<&str> = lines
            .filter(|it| it.starts_with("ballast_oom_kills_total{"))
            .collect();
        let exemplar = match format {
            Format::OpenMetrics => " # {record_id=\"3\"} 1 1763710000.123",
            _ => "",
        };
        assert_eq!(
            lines,
            kills.each_ref().map(|it| format!("{it} 1{exemplar}"))
        );
    }
    let (bytes, _) = encoded(&metrics, Format::Protobuf);
    let families = families(&bytes);
    let family = families
        .iter()
        .find(|it| it.name == "ballast_oom_kills_total")
        .expect("two kills");
    let samples = family.metric.iter();
    let samples: Vec<_> = samples
        .flat_map(|it| samples_of(&family.name, it))
        .collect();
    assert_eq!(samples, kills.map(|it| (it, 1.0)));
    for metric in &family.metric {
        let counter = metric.counter.as_ref();
        assert!(counter.is_some_and(|it| it.exemplar.is_some()));
    }
}

/// The alert goes by it. Its count is that of missed kills, which sums add to those by scope.
#[test]
fn a_missed_kill_by_the_node_is_the_last_one_of_the_node() {
    let last = r#"ballast_oom_last_node_kill_timestamp_seconds{scope="node"}"#;
    for (scope, at) in [
        (None, None),
        (Some(OomScope::Node), Some(1_763_710_000.123_456)),
    ] {
        let metrics = unnamed();
        let mut record = kill_in("uid-a", "0a");
        record.event.detail = Some(EventDetail::Missed { count: 1, scope });
        metrics.oom_kills_missed(&record.event, 1, MissedCause::NoPrograms, None);
        let text = text(&metrics);
        assert_eq!(value(&text, last), at, "{scope:?}");
        let mut by_scope = text
            .lines()
            .filter(|it| it.starts_with("ballast_oom_scope_kills_total{"));
        assert!(by_scope.all(|it| it.ends_with(" 0")), "{text}");
    }
}

#[test]
fn a_kill_in_a_pod_without_a_name_is_none_of_the_hosts_and_of_no_workload() {
    let metrics = unnamed();
    kill_in_two_pods(&metrics);
    let record = kill_in("uid-a", "0a");
    metrics.oom_kills_missed(&record.event, 2, MissedCause::Lost, None);
    let text = text(&metrics);
    let seconds = Some(1_763_710_000.123_456);
    for (name, expected) in [
        ("ballast_oom_kills_total", [Some(3.0), Some(1.0)]),
        ("ballast_oom_child_kills_total", [Some(1.0); 2]),
        ("ballast_oom_last_kill_timestamp_seconds", [seconds; 2]),
        (
            "ballast_oom_last_child_kill_timestamp_seconds",
            [seconds; 2],
        ),
    ] {
        let found = of_both(name).map(|it| value(&text, &it));
        assert_eq!(found, expected, "{name} in\n{text}");
    }
    assert!(
        !text.contains("ballast_oom_workload_kills_total{"),
        "{text}"
    );
    for it in HostSlice::ALL {
        let slice = format!("ballast_oom_host_kills_total{{slice=\"{}\"}}", it.as_str());
        assert_eq!(value(&text, &slice), Some(0.0));
    }
}

#[test]
fn kills_of_a_container_are_counted_by_its_name_once_it_is_known() {
    let metrics = unnamed();
    let uid = PodUid("uid-a".into());
    for (id, n) in [("0a", 1), ("0b", 2), ("0c", 4), ("", 8)] {
        metrics.oom_kills_by(&owner("uid-a", id), n);
    }
    metrics.oom_kills_by(&owner("uid-b", "0a"), 16);
    let name_of = |uid: &str, id: &str| match (uid, id) {
        ("uid-a", "0a" | "0b") => Some("app".to_owned()),
        _ => None,
    };
    for _ in 0..2 {
        metrics.name_kills(name_of);
        let kills = metrics.oom_kills_by_container(&uid);
        let kills: Vec<(&str, u64)> = kills.iter().map(|(it, n)| (&**it, *n)).collect();
        assert_eq!(kills, [("", 8), ("0c", 4), ("app", 3)]);
    }
    // The next agent knows no name of those that are gone.
    let next = unnamed();
    next.restore_oom_counts(&metrics.oom_counts(), Duration::ZERO);
    next.oom_kills_by(&owner("uid-a", "0d"), 1);
    next.name_kills(|_, id| (id == "0d").then(|| "app".to_owned()));
    let kills = next.oom_kills_by_container(&uid);
    assert_eq!(kills.get("app"), Some(&4), "{kills:?}");
}

#[test]
fn kills_in_a_pod_stay_its_own_when_its_containers_are_gone() {
    let metrics = unnamed();
    let at = Duration::from_secs;
    let (uid, other) = (PodUid("uid-a".into()), PodUid("uid-b".into()));
    kill_in_two_pods(&metrics);
    let missed = kill_in("uid-a", "0b");
    metrics.oom_kills_missed(&missed.event, 2, MissedCause::Lost, None);
    metrics.oom_kills_by(&owner("uid-a", "0b"), 2);
    let mut in_pod = kill_in("uid-a", "");
    in_pod.event.container_id = None;
    let (event, detail) = oom_parts(&in_pod);
    metrics.oom_kill(event, detail, None);
    metrics.oom_kills_by(&owner("uid-a", ""), 1);
    let both = || [&uid, &other].map(|it| metrics.oom_kills_in(it));
    assert_eq!(both(), [4, 1]);
    let of_pod = ContainerLabels::of_event(&in_pod.event).expect("a pod");
    assert!(metrics.knows(of_pod));
    // Its containers are gone for long, and the other pod altogether.
    for seconds in [100, 10_000] {
        metrics.sync_pods([of_pod], at(seconds));
        metrics.keep_pods(&[(uid.0.as_str(), BTreeSet::new())].into());
    }
    assert_eq!(both(), [4, 0]);
    let text = text(&metrics);
    assert!(!text.contains("uid-b") && !text.contains("0b"), "{text}");
    metrics.sync_pods([], at(10_001));
    metrics.keep_pods(&BTreeMap::new());
    assert_eq!(both(), [0, 0], "the pod is gone");
}

#[test]
fn of_a_container_that_is_started_again_and_again_the_kills_are_remembered_and_not_each_id() {
    let metrics = unnamed();
    let uid = PodUid("uid-a".into());
    let id = |n: usize| format!("{n:064x}");
    let count = |from: usize, to: usize| {
        for n in from..to {
            metrics.oom_kills_by(&owner("uid-a", &id(n)), 1);
            let last = id(n);
            metrics.keep_pods(&[(uid.0.as_str(), [last.as_str()].into())].into());
        }
        metrics.oom_kills_by_container(&uid)
    };
    let few = count(0, 10);
    assert_eq!(few.len(), 10, "their names may come");
    let many = count(10, 1_000);
    assert!(many.len() < 30, "{many:?}");
    assert_eq!(many.get(id(999).as_str()), Some(&1));
    assert_eq!(metrics.oom_kills_in(&uid), 1_000);
}

#[test]
fn what_is_known_of_nobody_has_no_id() {
    let metrics = unnamed();
    let mut record = oom_record(1);
    (record.event.pod, record.event.container) = (None, None);
    if let Some(EventDetail::Oom(detail)) = &mut record.event.detail {
        detail.victim.unknown_cgroup_id = Some(7);
    }
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, None);
    let unknown = r#"ballast_oom_kills_total{container="",namespace="",pod=""}"#;
    check(&metrics, &[(unknown, Some(1.0))]);
}

#[test]
fn an_id_stands_in_for_the_name_that_is_missing() {
    let pod = |name: &str| PodRef {
        namespace: if name.is_empty() { "" } else { "default" }.into(),
        name: name.into(),
        uid: PodUid("uid".into()),
    };
    let (named, unnamed) = (pod("web"), pod(""));
    for (pod, name, expected) in [
        (&named, "main", ["default", "web", "main", "", ""]),
        (&named, "", ["default", "web", "", "", "0a"]),
        (&unnamed, "main", ["", "", "main", "uid", ""]),
        (&unnamed, "", ["", "", "", "uid", "0a"]),
    ] {
        let labels = ContainerLabels::new(pod, name, "0a");
        assert_eq!(*Identity::NamesOrIds.values(labels), expected);
        assert_eq!(*Identity::Names.values(labels), expected[..3]);
        let [namespace, pod, container, uid, id] = expected;
        let with_more = [namespace, pod, container, "how", uid, id];
        assert_eq!(*Identity::NamesOrIds.values_with(labels, "how"), with_more);
        assert!(labels.has_container());
        assert_eq!(labels.to_key().labels(), labels);
    }
    assert!(!ContainerLabels::new(&unnamed, "", "").has_container());
}

#[test]
fn an_event_names_its_container_or_has_its_id() {
    let mut event = kill_in("uid-a", "0a").event;
    let labels = |event: &Event| {
        let labels = ContainerLabels::of_event(event)?;
        Some((labels.to_key(), labels.has_container()))
    };
    let pod = PodRef {
        namespace: String::new(),
        name: String::new(),
        uid: PodUid("uid-a".into()),
    };
    let of_pod = |id| ContainerLabels::new(&pod, "", id).to_key();
    assert_eq!(labels(&event), Some((of_pod("0a"), true)));
    event.container_id = None;
    assert_eq!(labels(&event), Some((of_pod(""), false)));
    event.pod_uid = None;
    assert_eq!(labels(&event), None);
    let named = oom_record(1).event;
    let expected = ContainerLabels::named("default", "hungry", "main");
    assert_eq!(labels(&named), Some((expected.to_key(), true)));
}

#[test]
fn containers_without_a_name_have_figures_of_their_own_until_they_are_gone() {
    let metrics = unnamed();
    let at = Duration::from_secs;
    let pod = PodRef {
        namespace: String::new(),
        name: String::new(),
        uid: PodUid("uid-a".into()),
    };
    let ids = ["0a", "0b"];
    let containers = ids.map(|id| ContainerLabels::new(&pod, "", id));
    metrics.sync_pods(containers, at(0));
    metrics.process_change(containers[0], &ProcessChange::Exec, at(1));
    let memory = containers.into_iter().zip([3, 4]);
    let memory = memory.map(|(labels, n_hits)| {
        let memory = ContainerMemory {
            cgroup_id: n_hits,
            ..pressure::memory(n_hits)
        };
        (labels, memory)
    });
    metrics.set_container_memory(memory, at(1));
    let instances = ids.map(|id| {
        let mut instance = instance(id, stats(2_000_000, 500_000));
        instance.name.clear();
        instance
    });
    let mut sweep = snapshot(1, None, instances.to_vec());
    sweep.pods[0].pod = Arc::new(pod.clone());
    metrics.set_stats(&sweep, None);

    let text = text(&metrics);
    for (id, n_execs, n_hits) in [("0a", 1.0, 3.0), ("0b", 0.0, 4.0)] {
        let of = |name, more: &str| {
            let ids = format!("container=\"\",container_id=\"{id}\",{more}");
            format!("{name}{{{ids}namespace=\"\",pod=\"\",pod_uid=\"uid-a\"}}")
        };
        for (sample, expected) in [
            (of("ballast_process_execs_total", ""), n_execs),
            (
                of("ballast_memory_limit_hits_total", "limit=\"max\","),
                n_hits,
            ),
            (of("ballast_memory_peak_bytes", ""), 1_048_576.0),
            (of("ballast_oom_group_kills_total", ""), 1.0),
            (of("ballast_cpu_burst_limit_seconds", ""), 0.05),
        ] {
            assert_eq!(value(&text, &sample), Some(expected), "{sample} in\n{text}");
        }
        let ids = format!("container_id=\"{id}\",namespace=\"\",pod=\"\",pod_uid=\"uid-a\"");
        let stall = "ballast_cpu_stall_seconds_total{cause=\"own_limit\",container=\"\"";
        assert_eq!(value(&text, &format!("{stall},{ids}}}")), Some(0.5));
    }
    // The second one goes before its pod does.
    metrics.sync_pods([containers[0]], at(2));
    metrics.sync_pods([containers[0]], at(2) + POD_RETENTION);
    let text = super::text(&metrics);
    assert!(text.contains("container_id=\"0a\""));
    assert!(!text.contains("container_id=\"0b\""), "{text}");
    metrics.sync_pods([], at(3) + POD_RETENTION);
    metrics.sync_pods([], at(3) + POD_RETENTION * 2);
    assert!(!super::text(&metrics).contains("container_id="));
}

fn saved_of(metrics: &Metrics) -> SavedCounts {
    let json = serde_json::to_string(&metrics.oom_counts()).expect("plain data");
    serde_json::from_str(&json).expect("just written")
}

#[test]
fn saved_counts_go_on_under_their_ids() {
    let before = unnamed();
    kill_in_two_pods(&before);
    let after = unnamed();
    after.restore_oom_counts(&saved_of(&before), Duration::ZERO);
    kill_in_two_pods(&after);
    let [a, b] = of_both("ballast_oom_kills_total");
    check(&after, &[(&a, Some(2.0)), (&b, Some(2.0))]);
}

#[test]
fn saved_counts_with_ids_are_added_up_where_ids_are_no_labels() {
    let before = unnamed();
    kill_in_two_pods(&before);
    let after = Metrics::default();
    after.restore_oom_counts(&saved_of(&before), Duration::ZERO);
    let labels = r#"{container="",namespace="",pod=""}"#;
    let last = format!("ballast_oom_last_kill_timestamp_seconds{labels}");
    check(
        &after,
        &[
            (&format!("ballast_oom_kills_total{labels}"), Some(2.0)),
            (&last, Some(1_763_710_000.123_456)),
        ],
    );
}

#[test]
fn saved_counts_without_ids_are_of_named_containers() {
    let before = Metrics::default();
    let record = oom_record(1);
    let (event, detail) = oom_parts(&record);
    before.oom_kill(event, detail, None);
    let after = unnamed();
    after.restore_oom_counts(&saved_of(&before), Duration::ZERO);
    after.oom_kill(event, detail, None);
    let kills = r#"ballast_oom_kills_total{container="main",namespace="default",pod="hungry"}"#;
    check(&after, &[(kills, Some(2.0))]);
}

fn pod_ref(name: &str, uid: &str) -> PodRef {
    PodRef {
        namespace: "default".into(),
        name: name.into(),
        uid: PodUid(uid.into()),
    }
}

/// Gives all that is unnamed the name `app` in the pod `shop`.
fn name_all(metrics: &Metrics) {
    for of in metrics.unnamed() {
        let pod = pod_ref("shop", "uid-a");
        metrics.name(&of, &pod, ["app", ""], Duration::from_secs(1));
    }
    let workload = |_: &str| Some(Arc::new(Workload::of_pod(&pod_ref("shop", "uid-a"))));
    metrics.count_workloads(workload, |_| None, Duration::from_secs(1));
}

/// Neither twice nor never, and not forgotten by the next agent.
#[test]
fn kills_are_counted_by_workload_when_that_is_known() {
    let before = unnamed();
    kill_in_two_pods(&before);
    let missed = kill_in("uid-b", "0a");
    before.oom_kills_missed(&missed.event, 3, MissedCause::Lost, None);
    let shop = Arc::new(Workload {
        namespace: "default".to_owned(),
        kind: "Deployment".to_owned(),
        name: "shop".to_owned(),
    });
    let metrics = unnamed();
    metrics.restore_oom_counts(&before.oom_counts(), Duration::from_secs(1));
    let family = "ballast_oom_workload_kills_total";
    assert!(!text(&metrics).contains(&format!("{family}{{")));
    let only_b = |uid: &str| (uid == "uid-b").then(|| Arc::clone(&shop));
    let all = |_: &str| Some(Arc::clone(&shop));
    let series =
        format!("{family}{{namespace=\"default\",workload=\"shop\",workload_kind=\"Deployment\"}}");
    for _ in 0..2 {
        metrics.count_workloads(only_b, |_| None, Duration::from_secs(2));
        check(&metrics, &[(&series, Some(4.0))]);
    }
    let record = kill_in("uid-b", "0a");
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, Some(&shop));
    for _ in 0..2 {
        metrics.count_workloads(all, |_| None, Duration::from_secs(3));
        check(&metrics, &[(&series, Some(6.0))]);
    }
}

#[test]
fn kills_whose_workload_nobody_tells_are_counted_in_the_end() {
    let metrics = unnamed();
    kill_in_two_pods(&metrics);
    let family = "ballast_oom_workload_kills_total";
    let named = |uid: &str| {
        let pod = pod_ref("shop", uid);
        (uid == "uid-a").then(|| Workload::of_pod(&pod))
    };
    let nobody = |_: &str| None;
    let over = Duration::from_secs(1) + WORKLOAD_AWAITED;
    metrics.count_workloads(nobody, named, Duration::from_secs(900));
    assert!(!text(&metrics).contains(&format!("{family}{{")));
    for _ in 0..2 {
        metrics.count_workloads(nobody, named, over * 2);
        let own =
            format!("{family}{{namespace=\"default\",workload=\"shop\",workload_kind=\"Pod\"}}");
        let other = format!("{family}{{namespace=\"\",workload=\"other\",workload_kind=\"\"}}");
        check(&metrics, &[(&own, Some(1.0)), (&other, Some(1.0))]);
    }
}

/// The sum over the series of a family.
fn sum(metrics: &Metrics, family: &str) -> f64 {
    let text = text(metrics);
    let lines = text.lines();
    let of_family = lines.filter(|it| it.starts_with(&format!("{family}{{")));
    let values = of_family.filter_map(|it| it.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

#[test]
fn what_was_counted_under_an_id_goes_on_under_the_name() {
    let metrics = unnamed();
    let record = kill_in("uid-a", "0a");
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, None);
    let labels = ContainerLabels::of_event(event).expect("a pod");
    let exit = ProcessChange::Exec;
    metrics.process_change(labels, &exit, Duration::from_secs(1));
    name_all(&metrics);
    let named =
        |family: &str| format!("{family}{{container=\"app\",namespace=\"default\",pod=\"shop\"}}");
    let seconds = Some(1_763_710_000.123_456);
    let workload = r#"ballast_oom_workload_kills_total{namespace="default",workload="shop",workload_kind="Pod"}"#;
    check(
        &metrics,
        &[
            (&named("ballast_oom_kills_total"), Some(1.0)),
            (&named("ballast_oom_child_kills_total"), Some(1.0)),
            (&named("ballast_oom_last_kill_timestamp_seconds"), seconds),
            (&named("ballast_process_execs_total"), Some(1.0)),
            (workload, Some(1.0)),
        ],
    );
    assert!(!text(&metrics).contains("0a"), "no series has the id");
    // One that was attributed before the name came, and is counted after it.
    metrics.oom_kill(event, detail, None);
    assert_eq!(sum(&metrics, "ballast_oom_kills_total"), 2.0);
    name_all(&metrics);
    assert_eq!(metrics.unnamed(), []);
    check(
        &metrics,
        &[
            (&named("ballast_oom_kills_total"), Some(2.0)),
            (workload, Some(2.0)),
        ],
    );
    let (bytes, _) = encoded(&metrics, Format::OpenMetrics);
    let page = String::from_utf8(bytes).expect("UTF-8");
    let line = page
        .lines()
        .find(|it| it.starts_with(&named("ballast_oom_kills_total")));
    assert!(
        line.is_some_and(|it| it.contains("record_id=\"3\"")),
        "{line:?}"
    );
}

#[test]
fn a_sum_over_all_series_never_falls_while_names_come() {
    let metrics = unnamed();
    let n = 200;
    std::thread::scope(|scope| {
        let metrics = &metrics;
        let counting = scope.spawn(move || {
            for i in 0..n {
                let record = kill_in("uid-a", &format!("{:02}", i % 7));
                let (event, detail) = oom_parts(&record);
                metrics.oom_kill(event, detail, None);
            }
        });
        let naming = scope.spawn(move || {
            while !counting.is_finished() {
                name_all(metrics);
            }
        });
        let mut before = 0.0;
        while !naming.is_finished() {
            let now = sum(metrics, "ballast_oom_kills_total");
            assert!(now >= before && now <= f64::from(n), "{before} {now}");
            before = now;
        }
    });
    name_all(&metrics);
    assert_eq!(sum(&metrics, "ballast_oom_kills_total"), f64::from(n));
}

#[test]
fn what_sweeps_count_goes_on_under_the_name() {
    let metrics = unnamed();
    let sweep = |pod: &PodRef, name: &str, n: u64| {
        let mut container = instance("0a", stats(0, 0));
        name.clone_into(&mut container.name);
        container.stats.n_fork_refusals = Some(n);
        let mut snapshot = snapshot(1, None, vec![container]);
        snapshot.pods[0].pod = Arc::new(pod.clone());
        snapshot
    };
    let (before, after) = (
        PodRef {
            namespace: String::new(),
            name: String::new(),
            uid: PodUid("uid-a".into()),
        },
        pod_ref("shop", "uid-a"),
    );
    metrics.set_stats(&sweep(&before, "", 5), None);
    let family = "ballast_pids_limit_hits_total";
    let first = sum(&metrics, family);
    assert!(first > 0.0);
    name_all(&metrics);
    assert_eq!(sum(&metrics, family), first);
    metrics.set_stats(&sweep(&after, "app", 5), None);
    assert_eq!(
        sum(&metrics, family),
        first,
        "the same reading is nothing new"
    );
    metrics.set_stats(&sweep(&after, "app", 7), None);
    assert!(sum(&metrics, family) > first);
}
