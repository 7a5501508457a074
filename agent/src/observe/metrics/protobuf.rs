//! The delimited protobuf format of Prometheus (`io.prometheus.client`): the only one that carries
//! native histograms.

use std::collections::BTreeMap;

use prometheus::proto::{LabelPair as Label, MetricFamily as Gathered, MetricType};
use prost::Message;

use super::exemplars::{self, RECORD_ID, Snapshot};
use super::histogram::{Counts, HistogramVec, cumulative};
use super::native::ZERO_THRESHOLD;

/// The messages of metrics.proto (github.com/prometheus/client_model), with the fields that are
/// sent.
pub(super) mod messages {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct MetricFamily {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "2")]
        pub help: String,
        #[prost(enumeration = "MetricType", optional, tag = "3")]
        pub kind: Option<i32>,
        #[prost(message, repeated, tag = "4")]
        pub metric: Vec<Metric>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
    #[repr(i32)]
    pub(in super::super) enum MetricType {
        Counter = 0,
        Gauge = 1,
        Histogram = 4,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Metric {
        #[prost(message, repeated, tag = "1")]
        pub label: Vec<LabelPair>,
        #[prost(message, optional, tag = "2")]
        pub gauge: Option<Gauge>,
        #[prost(message, optional, tag = "3")]
        pub counter: Option<Counter>,
        #[prost(message, optional, tag = "7")]
        pub histogram: Option<Histogram>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct LabelPair {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "2")]
        pub value: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Gauge {
        #[prost(double, optional, tag = "1")]
        pub value: Option<f64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Counter {
        #[prost(double, optional, tag = "1")]
        pub value: Option<f64>,
        #[prost(message, optional, tag = "2")]
        pub exemplar: Option<Exemplar>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Exemplar {
        #[prost(message, repeated, tag = "1")]
        pub label: Vec<LabelPair>,
        #[prost(double, optional, tag = "2")]
        pub value: Option<f64>,
        #[prost(message, optional, tag = "3")]
        pub timestamp: Option<Timestamp>,
    }

    /// `google.protobuf.Timestamp`.
    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Timestamp {
        #[prost(int64, tag = "1")]
        pub seconds: i64,
        #[prost(int32, tag = "2")]
        pub nanos: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Histogram {
        #[prost(uint64, optional, tag = "1")]
        pub sample_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub sample_sum: Option<f64>,
        #[prost(message, repeated, tag = "3")]
        pub bucket: Vec<Bucket>,
        #[prost(sint32, optional, tag = "5")]
        pub schema: Option<i32>,
        #[prost(double, optional, tag = "6")]
        pub zero_threshold: Option<f64>,
        #[prost(uint64, optional, tag = "7")]
        pub zero_count: Option<u64>,
        #[prost(message, repeated, tag = "12")]
        pub positive_span: Vec<BucketSpan>,
        #[prost(sint64, repeated, tag = "13")]
        pub positive_delta: Vec<i64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Bucket {
        #[prost(uint64, optional, tag = "1")]
        pub cumulative_count: Option<u64>,
        #[prost(double, optional, tag = "2")]
        pub upper_bound: Option<f64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct BucketSpan {
        #[prost(sint32, optional, tag = "1")]
        pub offset: Option<i32>,
        #[prost(uint32, optional, tag = "2")]
        pub length: Option<u32>,
    }
}

/// Appends each family, preceded by its length. Those of `histograms` are taken from there, with
/// both kinds of buckets.
pub(super) fn encode(
    families: &[Gathered],
    histograms: &BTreeMap<&'static str, HistogramVec>,
    exemplars: &Snapshot,
    out: &mut Vec<u8>,
) -> Result<(), prost::EncodeError> {
    for family in families {
        let message = match histograms.get(family.name()) {
            Some(histograms) => histogram_family(family, histograms),
            None => family_of_numbers(family, exemplars),
        };
        message.encode_length_delimited(out)?;
    }
    Ok(())
}

fn family_of_numbers(family: &Gathered, exemplars: &Snapshot) -> messages::MetricFamily {
    let is_counter = family.get_field_type() == MetricType::COUNTER;
    let metrics = family.get_metric().iter().map(|metric| {
        let labels = metric.get_label();
        let counter = || messages::Counter {
            value: Some(metric.get_counter().get_value()),
            exemplar: exemplars.of(family.name(), labels).map(exemplar),
        };
        let gauge = || messages::Gauge {
            value: Some(metric.get_gauge().get_value()),
        };
        messages::Metric {
            label: labels.iter().map(label).collect(),
            gauge: (!is_counter).then(gauge),
            counter: is_counter.then(counter),
            histogram: None,
        }
    });
    let kind = if is_counter {
        messages::MetricType::Counter
    } else {
        messages::MetricType::Gauge
    };
    message(family, kind, metrics.collect())
}

fn histogram_family(family: &Gathered, histograms: &HistogramVec) -> messages::MetricFamily {
    let series = histograms.snapshot().into_iter();
    let metrics = series.map(|(labels, it)| messages::Metric {
        label: labels
            .into_iter()
            .map(|(name, value)| pair(name, value))
            .collect(),
        histogram: Some(histogram(it.bounds(), &it.counts())),
        ..Default::default()
    });
    message(family, messages::MetricType::Histogram, metrics.collect())
}

fn message(
    family: &Gathered,
    kind: messages::MetricType,
    metric: Vec<messages::Metric>,
) -> messages::MetricFamily {
    messages::MetricFamily {
        name: family.name().to_owned(),
        help: family.help().to_owned(),
        kind: Some(kind.into()),
        metric,
    }
}

fn histogram(bounds: &'static [f64], counts: &Counts) -> messages::Histogram {
    let buckets = cumulative(bounds, counts).map(|(bound, n)| messages::Bucket {
        cumulative_count: Some(n),
        upper_bound: Some(bound),
    });
    let (spans, deltas) = counts.native.spans();
    let spans = spans.into_iter().map(|it| messages::BucketSpan {
        offset: Some(it.offset),
        length: Some(it.length),
    });
    messages::Histogram {
        sample_count: Some(counts.n),
        sample_sum: Some(counts.sum),
        bucket: buckets.collect(),
        schema: Some(counts.native.schema()),
        // That there is one is what tells a native histogram without values from a classic one.
        zero_threshold: Some(ZERO_THRESHOLD),
        zero_count: Some(counts.native.zero()),
        positive_span: spans.collect(),
        positive_delta: deltas,
    }
}

fn label(it: &Label) -> messages::LabelPair {
    pair(it.name(), it.value().to_owned())
}

fn pair(name: &str, value: String) -> messages::LabelPair {
    messages::LabelPair {
        name: name.to_owned(),
        value,
    }
}

fn exemplar(it: &exemplars::Exemplar) -> messages::Exemplar {
    let at = it.at.since_epoch();
    messages::Exemplar {
        label: vec![pair(RECORD_ID, it.record_id.clone())],
        value: Some(1.0),
        timestamp: Some(messages::Timestamp {
            seconds: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(at.subsec_nanos()).unwrap_or(0),
        }),
    }
}
