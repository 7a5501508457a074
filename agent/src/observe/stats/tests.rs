#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

pub(in crate::observe) mod fixture;
mod golden;
mod series;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::fixture::{MIB, Parsed, at, container, full_cgroup, node, parse};
use super::*;
use crate::model::eviction::DiskUse;
use crate::model::pod::PodUid;
use crate::model::random::Random;
use crate::model::record::PodRef;
use crate::model::stats::{CgroupSpec, FileSystemStats};
use crate::observe::metrics::{Family, Type};

fn cadvisor_text(snapshot: &StatsSnapshot) -> String {
    let mut text = String::new();
    let n_samples = cadvisor(snapshot, Options::default(), &mut text);
    let n_lines = text.lines().filter(|it| !it.starts_with('#')).count();
    assert_eq!(n_samples, n_lines);
    text
}

fn cadvisor_page(snapshot: &StatsSnapshot) -> Parsed {
    parse(&cadvisor_text(snapshot))
}

fn resource_page(snapshot: &StatsSnapshot) -> Parsed {
    let mut text = String::new();
    resource(snapshot, Options::default(), &mut text);
    parse(&text)
}

/// A full node with one pod of one container, changed by `change`.
fn with_container(change: impl FnOnce(&mut crate::model::stats::ContainerStats)) -> StatsSnapshot {
    let mut snapshot = node(1, 1);
    change(&mut snapshot.pods[0].containers[0]);
    snapshot
}

/// Values of the only container, by family.
#[track_caller]
fn check_container(snapshot: &StatsSnapshot, expected: &[(&str, Option<f64>)]) {
    let page = cadvisor_page(snapshot);
    for (name, value) in expected {
        assert_eq!(
            page.value(name, &[("container", "app-0")]),
            *value,
            "{name}"
        );
    }
}

#[test]
fn a_full_node_shows_the_families_of_the_table_and_no_other() {
    let full = node(1, 1);
    for (page, table) in [
        (cadvisor_page(&full), table::cadvisor().collect::<Vec<_>>()),
        (resource_page(&full), table::resource().collect()),
    ] {
        let expected: Vec<_> = table
            .iter()
            .map(|Entry { family, .. }| {
                let kind = match family.kind {
                    Type::Counter => "counter",
                    Type::Gauge => "gauge",
                    Type::Histogram(_) => "histogram",
                };
                (
                    family.name.to_owned(),
                    kind.to_owned(),
                    family.help.to_owned(),
                )
            })
            .collect();
        assert_eq!(page.families, expected);
        for sample in &page.samples {
            let family = table
                .iter()
                .find(|it| it.family.name == sample.name)
                .unwrap()
                .family;
            for label in sample.labels.keys() {
                assert!(family.labels.contains(&label.as_str()), "{sample:?}");
            }
        }
        // A label of the table that no sample has would be a promise.
        for Entry { family, .. } in table {
            for label in family.labels {
                let is_used = page
                    .named(family.name)
                    .any(|it| it.labels.contains_key(*label));
                assert!(is_used, "{}{{{label}}}", family.name);
            }
        }
    }
}

/// Nobody has told the names of pods and containers.
fn without_names(mut snapshot: StatsSnapshot) -> StatsSnapshot {
    for pod in &mut snapshot.pods {
        pod.pod = Arc::new(PodRef {
            namespace: String::new(),
            name: String::new(),
            uid: pod.pod.uid.clone(),
        });
        for container in &mut pod.containers {
            container.name.clear();
        }
    }
    snapshot
}

#[test]
fn what_has_no_name_is_told_apart_by_its_cgroup() {
    let named = node(2, 2);
    let unnamed = without_names(named.clone());
    for page in [cadvisor_page, resource_page] {
        // What reads a page fails where two samples have the same labels.
        let (with_names, page) = (page(&named), page(&unnamed));
        assert_eq!(page.samples.len(), with_names.samples.len());
        let names = ["container", "namespace", "pod"];
        for sample in &page.samples {
            assert!(
                names.iter().all(|it| !sample.labels.contains_key(*it)),
                "{sample:?}"
            );
        }
    }
    let page = resource_page(&unnamed);
    let pod = &unnamed.pods[1];
    for id in [&pod.id, &pod.containers[1].id] {
        let mut samples = page.samples.iter();
        assert!(samples.any(|it| it.label("id") == id), "{id}");
    }
}

#[test]
fn a_container_with_a_name_in_a_pod_without_one_keeps_its_name() {
    let mut snapshot = without_names(node(2, 1));
    for pod in &mut snapshot.pods {
        pod.containers[0].name = "app-0".into();
    }
    let page = resource_page(&snapshot);
    let mut series = page.named("container_cpu_usage_seconds_total");
    let found = [series.next(), series.next()].map(|it| {
        let labels = &it.unwrap().labels;
        (labels["container"].as_str(), labels["id"].as_str())
    });
    let expected = [0, 1].map(|n| {
        let id = &snapshot.pods[n].containers[0].id;
        ("app-0", id.as_str())
    });
    assert_eq!(found, expected);
}

#[test]
fn families_are_there_once_and_documented() {
    for table in [
        table::cadvisor().collect::<Vec<_>>(),
        table::resource().collect(),
    ] {
        let mut names = BTreeSet::new();
        for Entry { family, .. } in table {
            let Family { name, help, .. } = family;
            assert!(names.insert(*name), "{name} is there twice");
            // Neither needs to be escaped.
            assert!(!help.contains(['\\', '\n']), "{name}");
            assert!(help.ends_with('.') && help.len() > 5, "{name}");
        }
    }
}

#[test]
fn a_node_of_which_nothing_was_read_has_facts_alone() {
    let mut nothing = node(1, 1);
    nothing.node = Default::default();
    nothing.groups.clear();
    nothing.pods.clear();
    let page = cadvisor_page(&nothing);
    for sample in &page.samples {
        let is_fact = [
            "machine_",
            "cadvisor_version_info",
            "container_scrape_error",
        ]
        .iter()
        .any(|it| sample.name.starts_with(it));
        let is_root = sample.labels == BTreeMap::from([("id".to_owned(), "/".to_owned())]);
        let of_root = [
            "container_last_seen",
            "container_start_time_seconds",
            "container_threads_max",
        ];
        assert!(
            is_fact || is_root && of_root.contains(&&*sample.name),
            "{sample:?}"
        );
    }
    assert_eq!(page.value("container_scrape_error", &[]), Some(1.0));
    let page = resource_page(&nothing);
    assert_eq!(page.samples.len(), 1, "{:?}", page.samples);
    assert_eq!(page.value("resource_scrape_error", &[]), Some(1.0));
    assert_eq!(
        resource_page(&node(0, 0)).value("resource_scrape_error", &[]),
        Some(0.0)
    );
}

#[test]
fn m1_and_m2_stalls_are_seconds_on_the_page_and_microseconds_in_the_summary() {
    let full = node(1, 1);
    check_container(
        &full,
        &[
            ("container_pressure_memory_waiting_seconds_total", Some(1.5)),
            ("container_pressure_cpu_stalled_seconds_total", Some(2.0)),
        ],
    );
    let summary = serde_json::to_value(summary(None, &full, false)).unwrap();
    let psi = &summary["pods"][0]["containers"][0]["memory"]["psi"];
    assert_eq!(psi["some"]["total"], 1_500_000);
    assert_eq!(psi["some"]["avg10"], 46.27);
}

#[test]
fn m3_memory_of_a_container_is_told_apart() {
    let mib = |n: u32| Some(f64::from(n) * 1_048_576.0);
    check_container(
        &node(1, 1),
        &[
            ("container_memory_usage_bytes", mib(500)),
            ("container_memory_rss", mib(200)),
            ("container_memory_cache", mib(280)),
            ("container_memory_working_set_bytes", mib(350)),
        ],
    );
}

#[test]
fn m4_no_limit_is_0_on_the_page_and_nothing_in_the_summary() {
    let unlimited = with_container(|it| it.stats.spec.memory_limit = None);
    check_container(
        &unlimited,
        &[("container_spec_memory_limit_bytes", Some(0.0))],
    );
    let document = serde_json::to_value(summary(None, &unlimited, false)).unwrap();
    let memory = &document["pods"][0]["containers"][0]["memory"];
    assert!(
        memory["usageBytes"].is_u64() && memory.get("availableBytes").is_none(),
        "{memory}"
    );
    let limited = serde_json::to_value(summary(None, &node(1, 1), false)).unwrap();
    let memory = &limited["pods"][0]["containers"][0]["memory"];
    assert_eq!(memory["availableBytes"], 674 * MIB);
}

#[test]
fn a_limit_that_could_not_be_read_is_not_shown_as_none() {
    let families = [
        "container_spec_memory_limit_bytes",
        "container_spec_memory_swap_limit_bytes",
        "container_spec_memory_reservation_limit_bytes",
    ];
    let none = CgroupSpec {
        is_known: true,
        ..CgroupSpec::default()
    };
    for (spec, shown) in [(none, Some(0.0)), (CgroupSpec::default(), None)] {
        let snapshot = with_container(|it| it.stats.spec = spec);
        check_container(&snapshot, &families.map(|it| (it, shown)));
    }
}

#[test]
fn a_limit_of_memory_and_swap_together_is_none_of_swap() {
    let mut snapshot = node(1, 1);
    let limit =
        |snapshot: &StatsSnapshot| resource_page(snapshot).value("container_swap_limit_bytes", &[]);
    assert_eq!(limit(&snapshot), Some(134_217_728.0));
    Arc::make_mut(&mut snapshot.machine).is_unified = false;
    assert_eq!(limit(&snapshot), None);
}

#[test]
fn a_volume_in_memory_is_a_file_system_of_its_own() {
    let mut snapshot = node(1, 1);
    let pod = &mut snapshot.pods[0];
    let used = DiskUse {
        bytes: Some(3 * MIB),
        inodes: Some(2),
    };
    let memory = FileSystemStats {
        device: "tmpfs".to_owned(),
        capacity: 8 * MIB,
        available: 5 * MIB,
        used: 3 * MIB,
        inodes: Some(1000),
        inodes_free: Some(998),
    };
    pod.volumes.insert("memory".to_owned(), used);
    pod.volume_file_systems.insert("memory".to_owned(), memory);
    let document = serde_json::to_value(summary(None, &snapshot, false)).unwrap();
    let volumes = document["pods"][0]["volume"].as_array().unwrap();
    let found = |name: &str| {
        let volume = volumes.iter().find(|it| it["name"] == name).unwrap();
        let fields = [
            "capacityBytes",
            "availableBytes",
            "usedBytes",
            "inodes",
            "inodesFree",
            "inodesUsed",
        ];
        fields.map(|it| volume[it].as_u64().unwrap())
    };
    assert_eq!(found("memory"), [8 * MIB, 5 * MIB, 3 * MIB, 1000, 998, 2]);
    assert_eq!(
        found("cache")[..2],
        [50_u64 << 30, 20 << 30],
        "of the node's disk"
    );
}

#[test]
fn m5_a_peak_that_the_kernel_does_not_keep_has_no_sample() {
    let old = with_container(|it| it.stats.memory.peak = None);
    check_container(&old, &[("container_memory_max_usage_bytes", None)]);
}

#[test]
fn m6_hits_of_the_limit_are_counted_on_v2_too() {
    check_container(&node(1, 1), &[("container_memory_failcnt", Some(17.0))]);
}

#[test]
fn bandwidth_is_shown_where_there_is_a_quota() {
    let families = [
        "container_cpu_cfs_periods_total",
        "container_cpu_cfs_throttled_periods_total",
        "container_cpu_cfs_throttled_seconds_total",
        "container_cpu_cfs_burst_periods_total",
        "container_cpu_cfs_burst_seconds_total",
        "container_spec_cpu_quota",
    ];
    let values = [1000.0, 10.0, 0.05, 3.0, 0.000_001, 50_000.0];
    let pairs: Vec<_> = families.into_iter().zip(values.map(Some)).collect();
    check_container(&node(1, 1), &pairs);
    let free = with_container(|it| it.stats.spec.cpu_quota_us = None);
    check_container(&free, &families.map(|it| (it, None)));
    check_container(&free, &[("container_spec_cpu_period", Some(100_000.0))]);
}

#[test]
fn a_container_whose_files_nobody_measures_has_no_file_system() {
    let mib = |n: u32| Some(f64::from(n) * 1_048_576.0);
    let families = ["container_fs_usage_bytes", "container_fs_limit_bytes"];
    let values = [mib(4), mib(50 * 1024)];
    let pairs: Vec<_> = families.into_iter().zip(values).collect();
    check_container(&node(1, 1), &pairs);
    let beside_kubelet = with_container(|it| it.root_fs.bytes = None);
    check_container(&beside_kubelet, &families.map(|it| (it, None)));
    let page = cadvisor_page(&beside_kubelet);
    assert_eq!(page.named("container_fs_limit_bytes").count(), 1);
}

#[test]
fn label_shapes_tell_root_pods_and_containers_apart() {
    let page = cadvisor_page(&node(1, 1));
    let shapes: Vec<Vec<&str>> = page
        .named("container_memory_working_set_bytes")
        .map(|it| it.labels.keys().map(String::as_str).collect())
        .collect();
    let container = vec!["container", "id", "image", "name", "namespace", "pod"];
    let pod = vec!["id", "namespace", "pod"];
    let id = vec!["id"];
    assert_eq!(
        shapes,
        [&id, &id, &id, &id, &pod, &container].map(Clone::clone)
    );
    let of_network: BTreeSet<_> = page
        .named("container_network_receive_bytes_total")
        .map(|it| it.labels.keys().map(String::as_str).collect::<Vec<_>>())
        .collect();
    let expected = [
        vec!["id", "interface"],
        vec!["id", "interface", "namespace", "pod"],
    ];
    assert_eq!(of_network, BTreeSet::from(expected));
}

#[test]
fn a_container_without_an_image_stays_in_sums_over_images() {
    let page = cadvisor_page(&with_container(|it| it.image.clear()));
    let value = page.value(
        "container_memory_rss",
        &[("container", "app-0"), ("image", "none")],
    );
    assert!(value.is_some());
}

#[test]
fn a_container_that_has_ended_keeps_its_counters_beside_the_next_instance() {
    let mut snapshot = node(1, 1);
    let mut ended = container(0, 0);
    ended.runtime_id = "app-0-before".into();
    ended.id = "/kubepods/burstable/pod/app-0-before".into();
    ended.ended_at = Some(at(60));
    ended.stats.cpu.usage_ns = Some(7_000_000_000);
    snapshot.pods[0].containers.push(ended);
    let page = cadvisor_page(&snapshot);
    let ended = [("name", "app-0-before")];
    assert_eq!(
        page.value("container_cpu_usage_seconds_total", &ended),
        Some(7.0)
    );
    // One value of each that can go up and down, and it is that of the one that runs.
    for gauge in [
        "container_spec_memory_limit_bytes",
        "container_memory_usage_bytes",
        "container_last_seen",
    ] {
        assert_eq!(page.value(gauge, &ended), None, "{gauge}");
        let of_name = page
            .named(gauge)
            .filter(|it| it.label("container") == "app-0");
        assert_eq!(of_name.count(), 1, "{gauge}");
    }
    let page = resource_page(&snapshot);
    let values: Vec<_> = page.named("container_cpu_usage_seconds_total").collect();
    assert_eq!(values.len(), 1, "{values:?}");
    assert_eq!(values[0].value, 12.345_678_901);
    let document = summary(None, &snapshot, false);
    assert_eq!(document.pods[0].containers.len(), 1);
}

/// A kill that ends an instance, which the next one begins with: the last scrape before it has 1, the first after it 2
/// twice, and what rose is 1. Series of the same labels would be none for a server.
#[test]
fn a_kill_raises_one_series_of_its_container_and_no_two_have_the_same_labels() {
    let count = |snapshot: &StatsSnapshot| {
        let page = cadvisor_page(snapshot);
        let all = page.samples.iter().map(|it| (&it.name, &it.labels));
        let different: BTreeSet<_> = all.clone().collect();
        assert_eq!(different.len(), all.count());
        let kills = page.named("container_oom_events_total");
        let kills = kills.map(|it| (it.label("name").to_owned(), it.value));
        kills.collect::<BTreeMap<_, _>>()
    };
    let mut snapshot = node(1, 1);
    let before = count(&snapshot);
    let containers = &mut snapshot.pods[0].containers;
    containers[0].oom_events += 1;
    let mut next = containers[0].clone();
    containers[0].ended_at = Some(at(60));
    next.runtime_id = "app-0-next".into();
    next.id = "/kubepods/burstable/pod/app-0-next".into();
    containers.insert(0, next);
    let after = count(&snapshot);
    assert_eq!((before.len(), after.len()), (1, 2));
    let rise = |(name, value): (&String, &f64)| Some(value - before.get(name)?);
    assert_eq!(after.iter().filter_map(rise).sum::<f64>(), 1.0);
}

#[test]
fn of_two_pods_of_one_name_the_page_without_ids_shows_the_later() {
    let mut snapshot = node(2, 1);
    let first = PodRef::clone(&snapshot.pods[0].pod);
    let uid = PodUid("later".into());
    snapshot.pods[1].pod = Arc::new(PodRef { uid, ..first });
    snapshot.pods[1].started_at = at(6);
    let usage = &mut snapshot.pods[1].stats.as_mut().unwrap().cpu.usage_ns;
    *usage = Some(5_000_000_000);
    let page = resource_page(&snapshot);
    assert_eq!(page.value("pod_cpu_usage_seconds_total", &[]), Some(5.0));
    assert_eq!(page.named("container_start_time_seconds").count(), 1);
}

#[test]
fn a_pod_without_a_cgroup_has_no_figures_and_hides_no_pod_of_its_name() {
    let mut snapshot = node(2, 1);
    let first = PodRef::clone(&snapshot.pods[0].pod);
    let uid = PodUid("refused".into());
    let refused = &mut snapshot.pods[1];
    refused.pod = Arc::new(PodRef { uid, ..first });
    refused.started_at = at(6);
    refused.stats = None;
    refused.network.clear();
    refused.containers.clear();
    let id = refused.id.clone();
    let page = resource_page(&snapshot);
    assert_eq!(page.named("pod_cpu_usage_seconds_total").count(), 1);
    assert_eq!(page.named("container_start_time_seconds").count(), 1);
    let page = cadvisor_page(&snapshot);
    assert!(page.samples.iter().all(|it| it.label("id") != id));
    let pods = summary(None, &snapshot, false).pods;
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].pod_ref.uid, snapshot.pods[0].pod.uid.0);
}

#[test]
fn loopback_and_links_to_pods_are_not_on_the_pages() {
    let mut snapshot = node(1, 0);
    let mut link = snapshot.node.network[0].clone();
    link.name = "veth0123".into();
    snapshot.node.network.push(link);
    snapshot.pods[0].network.clear();
    let page = cadvisor_page(&snapshot);
    let interfaces: Vec<_> = page
        .named("container_network_transmit_bytes_total")
        .collect();
    assert_eq!(interfaces.len(), 1);
    assert_eq!(interfaces[0].label("interface"), "eth0");
    let document = summary(None, &snapshot, false);
    assert_eq!(document.node.network.unwrap().interfaces.len(), 1);
    assert_eq!(document.pods[0].network, None);
}

#[test]
fn families_one_by_one_are_the_page() {
    let snapshot = Arc::new(node(20, 5));
    let whole = cadvisor_text(&snapshot);
    let mut encoder = Encoder::cadvisor(Arc::clone(&snapshot), Options::default());
    let (mut pieces, mut piece, mut longest) = (String::new(), String::new(), 0);
    while encoder.next_family(&mut piece) {
        longest = longest.max(piece.len());
        pieces.push_str(&piece);
        piece.clear();
    }
    assert_eq!(pieces, whole);
    assert!(longest * 8 < whole.len(), "{longest} of {}", whole.len());
    let n_samples = whole.lines().filter(|it| !it.starts_with('#')).count();
    assert_eq!(encoder.n_samples(), n_samples);
}

#[test]
fn timestamps_are_sent_only_when_asked_for() {
    let snapshot = node(1, 1);
    assert!(
        cadvisor_page(&snapshot)
            .samples
            .iter()
            .all(|it| it.stamp.is_none())
    );
    let mut text = String::new();
    cadvisor(&snapshot, Options { timestamps: true }, &mut text);
    let page = parse(&text);
    let stamp = page.named("container_memory_rss").last().unwrap().stamp;
    // Read half a second before the sweep was over.
    assert_eq!(stamp, Some(1_763_710_099_500));
}

#[test]
fn the_time_of_a_counter_rises_beyond_the_end_of_its_container() {
    let stamp = |snapshot: &StatsSnapshot| {
        let mut text = String::new();
        cadvisor(snapshot, Options { timestamps: true }, &mut text);
        let page = parse(&text);
        let mut counters = page.named("container_cpu_usage_seconds_total");
        counters
            .find(|it| it.label("container") == "app-0")
            .unwrap()
            .stamp
            .unwrap()
    };
    let mut snapshot = node(1, 1);
    let mut stamps = vec![stamp(&snapshot)];
    // The last sweep has read it after its process had ended.
    snapshot.pods[0].containers[0].ended_at = Some(at(99));
    for second in [105, 110] {
        snapshot.at = at(second);
        snapshot.ended = std::time::Duration::from_secs(second);
        stamps.push(stamp(&snapshot));
    }
    assert_eq!(
        stamps,
        [1_763_710_099_500, 1_763_710_105_000, 1_763_710_110_000]
    );
}

#[test]
fn any_label_value_comes_back_as_it_was() {
    let alphabet = [
        '"',
        '\\',
        '\n',
        'n',
        '{',
        '}',
        ',',
        '=',
        ' ',
        'é',
        '日',
        '\u{1f600}',
        '\r',
        '\t',
    ];
    let mut random = Random(7);
    for _ in 0..300 {
        let mut word = || -> String {
            let n = 1 + random.below(8);
            let mut letter =
                || alphabet[usize::try_from(random.below(alphabet.len() as u64)).unwrap()];
            (0..n).map(|_| letter()).collect()
        };
        let (name, image, id, device) = (word(), word(), word(), word());
        let mut snapshot = with_container(|it| {
            it.name.clone_from(&name);
            it.image.clone_from(&image);
            it.runtime_id.clone_from(&id);
        });
        snapshot
            .node
            .file_system
            .as_mut()
            .unwrap()
            .device
            .clone_from(&device);
        let page = cadvisor_page(&snapshot);
        let rss = page.named("container_memory_rss").last().unwrap();
        assert_eq!(
            [
                rss.label("container"),
                rss.label("image"),
                rss.label("name")
            ],
            [&name, &image, &id]
        );
        let fs = page.named("container_fs_usage_bytes").last().unwrap();
        assert_eq!(fs.label("device"), device);
    }
}

#[test]
fn any_number_is_read_as_the_nearest_float() {
    let mut random = Random(3);
    let edges = [
        0,
        1,
        9,
        10,
        999_999_999,
        1_000_000_000,
        1_000_000_001,
        u64::MAX,
    ];
    let any = (0..300).map(|_| {
        let shift = random.below(64);
        random.next() >> shift
    });
    for n in edges.into_iter().chain(any.collect::<Vec<_>>()) {
        let snapshot = with_container(|it| {
            it.stats.cpu.usage_ns = Some(n);
            it.stats.memory.swap = Some(n);
            it.stats.stalls.io.as_mut().unwrap().some.total.0 = n;
        });
        let text = cadvisor_text(&snapshot);
        let page = parse(&text);
        let value = |name| page.value(name, &[("container", "app-0")]).unwrap();
        let decimal = |digits: usize| -> f64 {
            let text = format!("{n:0>width$}", width = digits + 1);
            let (whole, rest) = text.split_at(text.len() - digits);
            format!("{whole}.{rest}").parse().unwrap()
        };
        assert_eq!(
            value("container_cpu_usage_seconds_total"),
            decimal(9),
            "{n}"
        );
        assert_eq!(
            value("container_pressure_io_waiting_seconds_total"),
            decimal(6),
            "{n}"
        );
        assert_eq!(
            value("container_memory_swap"),
            format!("{n}").parse::<f64>().unwrap(),
            "{n}"
        );
    }
}

#[test]
fn the_rate_of_cpu_use_follows_from_two_sweeps() {
    let mut before = node(1, 1);
    let now = node(1, 1);
    let rate = |before: &StatsSnapshot| {
        let document = summary(Some(before), &now, true);
        document.pods[0].containers[0]
            .cpu
            .as_ref()
            .unwrap()
            .usage_nano_cores
    };
    let earlier = &mut before.pods[0].containers[0].stats;
    earlier.at -= std::time::Duration::from_secs(10);
    earlier.cpu.usage_ns = Some(12_345_678_901 - 5_000_000_000);
    assert_eq!(rate(&before), Some(500_000_000));
    // No rate over no time, from a higher count, from another cgroup of that path.
    let stats = full_cgroup(before.pods[0].containers[0].stats.cgroup_id.unwrap().0);
    before.pods[0].containers[0].stats = stats;
    assert_eq!(rate(&before), None);
    let earlier = &mut before.pods[0].containers[0].stats;
    earlier.at -= std::time::Duration::from_secs(10);
    earlier.cpu.usage_ns = Some(u64::MAX);
    assert_eq!(rate(&before), None);
    before.pods[0].containers[0].stats.cpu.usage_ns = Some(0);
    assert_eq!(rate(&before), Some(1_234_567_890));
    before.pods[0].containers[0].stats.cgroup_id = None;
    assert_eq!(rate(&before), None);
    assert_eq!(
        summary(None, &now, true).node.cpu.unwrap().usage_nano_cores,
        None
    );
}

#[test]
fn cpu_and_memory_alone_is_what_the_short_summary_has() {
    let document = serde_json::to_value(summary(None, &node(1, 1), true)).unwrap();
    let keys = |it: &serde_json::Value| -> Vec<String> {
        it.as_object().unwrap().keys().cloned().collect()
    };
    let node = [
        "cpu",
        "memory",
        "nodeName",
        "startTime",
        "swap",
        "systemContainers",
    ];
    assert_eq!(keys(&document["node"]), node);
    let pod = &document["pods"][0];
    assert_eq!(
        keys(pod),
        ["containers", "cpu", "memory", "podRef", "startTime", "swap"]
    );
    let container = &pod["containers"][0];
    assert_eq!(
        keys(container),
        ["cpu", "memory", "name", "startTime", "swap"]
    );
    assert!(container["cpu"].get("psi").is_none());
}

#[test]
fn the_summary_shows_what_has_no_name_by_its_ids() {
    let mut unnamed = without_names(node(2, 2));
    unnamed.pods[0].containers[1].name = "side".into();
    let document = serde_json::to_value(summary(None, &unnamed, true)).unwrap();
    let [pod, other] = [0, 1].map(|n| &document["pods"][n]);
    let uid = &unnamed.pods[0].pod.uid.0;
    let reference = serde_json::json!({"name": "", "namespace": "", "uid": uid});
    assert_eq!(pod["podRef"], reference);
    assert_ne!(other["podRef"], reference);
    let names = [0, 1].map(|n| &pod["containers"][n]["name"]);
    let id = &unnamed.pods[0].containers[0].runtime_id;
    assert_eq!(names, [id.as_str(), "side"]);
}

#[test]
fn containers_never_use_more_than_their_pod() {
    let page = cadvisor_page(&node(3, 4));
    for name in [
        "container_cpu_usage_seconds_total",
        "container_memory_usage_bytes",
    ] {
        for pod in ["web-0000", "web-0001", "web-0002"] {
            let of_pod = page.named(name).filter(|it| it.label("pod") == pod);
            let (containers, pod): (Vec<_>, Vec<_>) =
                of_pod.partition(|it| !it.label("container").is_empty());
            assert_eq!((containers.len(), pod.len()), (4, 1));
            let sum: f64 = containers.iter().map(|it| it.value).sum();
            assert!(sum > 0.0 && sum <= pod[0].value, "{name}: {sum} of {pod:?}");
        }
    }
}
