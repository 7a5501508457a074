use super::*;
use std::collections::BTreeSet;

/// Labels that are unbounded or belong to records (pid, path, error text) or to the scrape.
const FORBIDDEN_LABELS: &[&str] = &[
    "pid",
    "comm",
    "container_id",
    "id",
    "uid",
    "pod_uid",
    "path",
    "cgroup_path",
    "image",
    "address",
    "error",
    "node",
    "cluster",
    "job",
    "instance",
    "le",
];

fn is_snake_case(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('_')
        && !word.ends_with('_')
        && !word.contains("__")
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[test]
fn names_follow_the_rules() {
    let mut names = BTreeSet::new();
    for family in table() {
        let Family {
            name, kind, unit, ..
        } = family;
        assert!(names.insert(*name), "{name} is there twice");
        assert!(is_snake_case(name), "{name}");
        let prefix = match family.area {
            Area::Process => "process_",
            Area::Kubelet => "kubelet_",
            _ => PREFIX,
        };
        assert!(name.starts_with(prefix), "{name} lacks {prefix}");
        if family.area == Area::Kubelet {
            continue;
        }
        assert_eq!(
            name.ends_with("_total"),
            *kind == Type::Counter,
            "{name}: counters and only they end in _total"
        );
        let stem = name.strip_suffix("_total").unwrap_or(name);
        let suffix = match unit {
            Unit::Count | Unit::Flag | Unit::Labelled => "",
            Unit::Info => "_info",
            Unit::Seconds => "_seconds",
            Unit::Milliseconds => "_ms",
            Unit::Timestamp if family.area == Area::Process => "_time_seconds",
            Unit::Timestamp => "_timestamp_seconds",
            Unit::Bytes => "_bytes",
            Unit::Ratio => "_ratio",
        };
        assert!(stem.ends_with(suffix), "{name} lacks {suffix}");
        for taken in ["_count", "_sum", "_bucket"] {
            assert!(!name.ends_with(taken), "{name} ends in {taken}");
        }
    }
}

#[test]
fn labels_are_bounded_and_allowed() {
    for Family {
        name,
        labels,
        cardinality,
        ..
    } in table()
    {
        let distinct: BTreeSet<_> = labels.iter().collect();
        assert_eq!(distinct.len(), labels.len(), "{name} repeats a label");
        for label in *labels {
            assert!(is_snake_case(label), "{name}{{{label}}}");
            let is_allowed = !FORBIDDEN_LABELS.contains(label) || *name == "kubelet_node_name";
            assert!(is_allowed, "{name}{{{label}}}");
        }
        let names_pods = ["namespace", "pod", "container", "workload"]
            .iter()
            .any(|label| labels.contains(label));
        assert_eq!(
            names_pods,
            matches!(cardinality, Cardinality::Container | Cardinality::Workload),
            "{name}: labels that name pods need a lifetime"
        );
    }
}

#[test]
fn every_family_is_documented_by_one_sentence() {
    for Family { name, help, .. } in table() {
        assert!(help.ends_with('.') && help.len() > 10, "{name}: {help:?}");
        assert!(!help.contains('\n'), "{name}");
        assert!(help.starts_with(|c: char| c.is_uppercase()), "{name}");
    }
}

#[test]
fn bucket_bounds_rise() {
    for buckets in [
        Buckets::Latency,
        Buckets::Size,
        Buckets::Count,
        Buckets::Kubelet,
        Buckets::KubeletMillis,
    ] {
        assert!(buckets.bounds().is_sorted_by(|a, b| a < b), "{buckets:?}");
    }
}

#[test]
fn what_is_kubelets_is_there_for_its_duties_only() {
    let shown = |duties: &[KubeletDuty], names| -> Vec<&str> {
        let shown = table().iter().filter(|it| it.is_shown(duties, names));
        shown.map(|it| it.name).collect()
    };
    let none = shown(&[], KubeletNames::Both);
    assert!(none.iter().all(|it| !it.starts_with("kubelet_")));
    let eviction = shown(&[KubeletDuty::Eviction], KubeletNames::Both);
    let added: Vec<_> = eviction.iter().filter(|it| !none.contains(it)).collect();
    let expected = [
        &"kubelet_evictions",
        &"kubelet_evictions_total",
        &"kubelet_preemptions",
        &"kubelet_eviction_stats_age_seconds",
    ];
    assert_eq!(added, expected);
    for (names, old, new) in [
        (KubeletNames::Both, true, true),
        (KubeletNames::Old, true, false),
        (KubeletNames::New, false, true),
    ] {
        let all = shown(KubeletDuty::ALL, names);
        assert_eq!(all.contains(&"kubelet_evictions"), old, "{names:?}");
        assert_eq!(all.contains(&"kubelet_evictions_total"), new, "{names:?}");
        assert!(all.contains(&"kubelet_cgroup_version"), "{names:?}");
    }
    for Family {
        name, area, duty, ..
    } in table()
    {
        assert_eq!(*area == Area::Kubelet, duty.is_some(), "{name}");
    }
}

/// Names are an interface. Whoever reads them has to be given a release in which the old name and the
/// new one are both there.
#[test]
fn a_released_family_stays_as_it_was() {
    let released = include_str!("../../../../../dashboards/metrics-0.1.txt");
    let now: BTreeSet<String> = table().iter().map(signature).collect();
    let gone: Vec<&str> = released
        .lines()
        .filter(|line| !line.starts_with('#') && !now.contains(*line))
        .collect();
    assert!(
        gone.is_empty(),
        "released families that are gone or have another type or labels; give the change a name of \
         its own, keep the old one for a release and say so in the change log: {gone:#?}"
    );
}

/// As in the list of a release.
fn signature(family: &Family) -> String {
    let kind = match family.kind {
        Type::Counter => "counter",
        Type::Gauge => "gauge",
        Type::Histogram(_) => "histogram",
    };
    let mut labels = family.labels.to_vec();
    labels.sort_unstable();
    format!("{} {kind} {{{}}}", family.name, labels.join(","))
}
