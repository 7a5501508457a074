use std::collections::BTreeMap;

use prost::Message;

use super::super::protobuf::messages;
use super::*;

pub(super) fn encoded(metrics: &Metrics, format: Format) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    let n_samples = metrics.encode(format, &mut bytes);
    (bytes, n_samples.expect("the families are whole"))
}

/// Samples with their labels, by how the older text format writes them; metadata and exemplars are
/// left out.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|it| !it.starts_with('#'));
    let sample = |line: &str| {
        let line = line.split(" # ").next().expect("one part");
        let (series, value) = line.rsplit_once(' ').expect("a value");
        (plain_bound(series), value.parse().expect("a number"))
    };
    lines.map(sample).collect()
}

/// With the bound of a bucket as a number and not as it is written.
fn plain_bound(series: &str) -> String {
    // The bound is the last label.
    let parts = series.rsplit_once("le=\"").and_then(|(before, after)| {
        let bound = after.strip_suffix("\"}")?;
        before.ends_with(['{', ',']).then_some((before, bound))
    });
    let Some((before, bound)) = parts else {
        return series.to_owned();
    };
    let bound: f64 = bound.parse().expect("a bound");
    format!("{before}le=\"{bound}\"}}")
}

pub(super) fn families(mut bytes: &[u8]) -> Vec<messages::MetricFamily> {
    let mut families = Vec::new();
    while !bytes.is_empty() {
        let family = messages::MetricFamily::decode_length_delimited(&mut bytes);
        families.push(family.expect("a whole message"));
    }
    families
}

#[test]
fn each_format_has_the_same_samples() {
    let metrics = everything();
    // What is shown since the last scrape begins anew.
    encoded(&metrics, Format::Text);
    let (text, n_samples) = encoded(&metrics, Format::Text);
    let text = samples(std::str::from_utf8(&text).expect("UTF-8"));
    assert_eq!(text.len() as u64, n_samples);

    let (open, n_samples) = encoded(&metrics, Format::OpenMetrics);
    let open = samples(std::str::from_utf8(&open).expect("UTF-8"));
    assert_eq!(open.len() as u64, n_samples);
    assert_eq!(open, text);

    let (bytes, n_samples) = encoded(&metrics, Format::Protobuf);
    let families = families(&bytes);
    let metrics = families.iter().flat_map(|it| &it.metric);
    assert_eq!(metrics.count() as u64, n_samples);
    let mut decoded = BTreeMap::new();
    for family in &families {
        for metric in &family.metric {
            decoded.extend(samples_of(&family.name, metric));
        }
    }
    assert_eq!(decoded, text);
}

/// What the text format has of it.
pub(super) fn samples_of(name: &str, metric: &messages::Metric) -> Vec<(String, f64)> {
    let labels = |le: Option<f64>| {
        let pairs = metric.label.iter();
        let mut pairs: Vec<String> = pairs
            .map(|it| format!("{}=\"{}\"", it.name, it.value))
            .collect();
        pairs.extend(le.map(|le| format!("le=\"{le}\"")));
        match pairs.as_slice() {
            [] => String::new(),
            pairs => format!("{{{}}}", pairs.join(",")),
        }
    };
    let number = metric.counter.as_ref().and_then(|it| it.value);
    let number = number.or_else(|| metric.gauge.as_ref()?.value);
    if let Some(value) = number {
        return vec![(format!("{name}{}", labels(None)), value)];
    }
    let histogram = metric.histogram.as_ref().expect("a histogram");
    let n = histogram.sample_count.expect("a count") as f64;
    let buckets = histogram.bucket.iter().map(|it| {
        let bound = it.upper_bound.expect("a bound");
        (bound, it.cumulative_count.expect("a count") as f64)
    });
    let mut samples: Vec<_> = buckets
        .chain([(f64::INFINITY, n)])
        .map(|(bound, n)| (format!("{name}_bucket{}", labels(Some(bound))), n))
        .collect();
    let sum = histogram.sample_sum.expect("a sum");
    samples.push((format!("{name}_sum{}", labels(None)), sum));
    samples.push((format!("{name}_count{}", labels(None)), n));
    samples
}

#[test]
fn open_metrics_is_made_of_whole_families_and_ends() {
    let (bytes, _) = encoded(&everything(), Format::OpenMetrics);
    let text = String::from_utf8(bytes).expect("UTF-8");
    assert!(text.ends_with("\n# EOF\n"));
    let mut seen = BTreeSet::new();
    let mut family = ("", "");
    for line in text.lines().take_while(|it| *it != "# EOF") {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            family = declared.split_once(' ').expect("a type");
            // Kubelet has a counter under two names, one of them with `_total`.
            assert!(
                seen.insert(family.0) || family.0 == "kubelet_evictions",
                "{} twice",
                family.0
            );
        } else if !line.starts_with('#') {
            let end = line.find(['{', ' ']).expect("a sample");
            let suffix = line[..end].strip_prefix(family.0);
            let right: &[&str] = match family.1 {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            let is_right = suffix.is_some_and(|it| right.contains(&it));
            assert!(is_right, "{line} in family {family:?}");
        }
    }
    assert!(seen.len() > 50, "{}", seen.len());
}

/// One kill in a container of a pod of a Deployment.
fn killed(metrics: &Metrics) {
    let record = oom_record(1);
    let (event, detail) = oom_parts(&record);
    metrics.oom_kill(event, detail, None);
}

#[test]
fn a_count_names_the_newest_record_behind_it() {
    let metrics = Metrics::default();
    killed(&metrics);
    let at = WallTime::from_epoch(Duration::from_millis(1_763_710_000_250));
    let refused = Some(admission::RefusalReason::TopologyAffinityError);
    let tally = AdmissionTally::default();
    let took = Duration::from_millis(1);
    metrics.admission(&pod_uid(), "restricted", None, Some((&tally, took)), at);
    metrics.admission(&pod_uid(), "restricted", refused, Some((&tally, took)), at);
    let (bytes, _) = encoded(&metrics, Format::OpenMetrics);
    let text = String::from_utf8(bytes).expect("UTF-8");
    let line = |start: &str| {
        let mut lines = text.lines();
        let line = lines.find(|it| it.starts_with(start));
        line.unwrap_or_else(|| panic!("no {start} in\n{text}"))
    };
    let kill = line("ballast_oom_kills_total{");
    assert!(kill.contains(" 1 # {record_id=\"3\"} 1 "), "{kill}");
    assert_eq!(
        line("ballast_placement_admissions_total{policy=\"restricted\",reason=\"Topology"),
        "ballast_placement_admissions_total{policy=\"restricted\",\
         reason=\"TopologyAffinityError\",result=\"refused\"} 1 \
         # {record_id=\"0a1b2c3d-0000-4000-8000-000000000001\"} 1 1763710000.250"
    );
    let admitted = line("ballast_placement_admissions_total{policy=\"restricted\",reason=\"none");
    assert!(!admitted.contains('#'), "{admitted}");

    let (bytes, _) = encoded(&metrics, Format::Protobuf);
    let families = families(&bytes);
    let kills = families
        .iter()
        .find(|it| it.name == "ballast_oom_kills_total");
    let counter = kills.and_then(|it| it.metric[0].counter.clone());
    let exemplar = counter.and_then(|it| it.exemplar).expect("an exemplar");
    assert_eq!(exemplar.label[0].value, "3");

    let (bytes, _) = encoded(&metrics, Format::Text);
    let text = String::from_utf8(bytes).expect("UTF-8");
    assert!(!text.contains("record_id"), "the older format has none");
}

#[test]
fn the_record_of_a_series_goes_with_it() {
    let metrics = Metrics::default();
    killed(&metrics);
    let name = |metrics: &Metrics| {
        let snapshot = metrics.shared.exemplars.snapshot();
        let families = metrics.shared.registry.gather();
        let kills = families
            .into_iter()
            .find(|it| it.name() == "ballast_oom_kills_total");
        let labels = kills.map(|it| it.get_metric()[0].get_label().to_vec());
        (labels, snapshot)
    };
    let (labels, before) = name(&metrics);
    let labels = labels.expect("a series");
    assert!(before.of("ballast_oom_kills_total", &labels).is_some());
    metrics.sync_pods([], Duration::from_secs(1));
    metrics.sync_pods([], Duration::from_secs(1_000_000));
    let (gone, after) = name(&metrics);
    assert!(gone.is_none(), "the series is still there");
    assert!(after.of("ballast_oom_kills_total", &labels).is_none());
}

#[test]
fn a_record_with_a_name_too_long_for_an_exemplar_is_not_named() {
    let metrics = Metrics::default();
    let at = WallTime::from_epoch(Duration::from_secs(1));
    let refused = Some(admission::RefusalReason::TopologyAffinityError);
    let long = PodUid("u".repeat(120));
    metrics.admission(&long, "restricted", refused, None, at);
    let (bytes, _) = encoded(&metrics, Format::OpenMetrics);
    let text = String::from_utf8(bytes).expect("UTF-8");
    assert!(text.contains("result=\"refused\"} 1\n"), "{text}");
}

#[test]
fn a_native_histogram_is_one_before_its_first_value() {
    let (bytes, _) = encoded(&Metrics::default(), Format::Protobuf);
    let families = families(&bytes);
    let detection = families
        .iter()
        .find(|it| it.name == "ballast_oom_detection_seconds");
    let histogram = detection.and_then(|it| it.metric[0].histogram.clone());
    let histogram = histogram.expect("a histogram");
    assert_eq!(histogram.schema, Some(3));
    assert!(histogram.zero_threshold > Some(0.0));
    assert_eq!(histogram.sample_count, Some(0));
    assert!(histogram.positive_span.is_empty());
}
