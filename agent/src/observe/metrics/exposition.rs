//! All families in one of the formats that Prometheus reads.

use std::io;
use std::time::Duration;

use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

use super::identity::{self, Identity};
use super::labels::Endpoint;
use super::{Metrics, observe, openmetrics, protobuf, set_count};

/// A way to write metrics down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text 0.0.4, which every server reads.
    Text,
    /// OpenMetrics 1.0.0: has exemplars.
    OpenMetrics,
    /// `io.prometheus.client.MetricFamily`, delimited: has exemplars and native histograms.
    Protobuf,
}

impl Format {
    /// Value of the header `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }
}

/// The metrics could not be written down.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("encode metrics as text")]
    Text(#[source] prometheus::Error),
    #[error("encode metrics as OpenMetrics")]
    OpenMetrics(#[source] io::Error),
    #[error("encode metrics as protobuf")]
    Protobuf(#[source] prost::EncodeError),
}

impl Metrics {
    /// Appends everything; gives the number of samples.
    pub fn encode(&self, format: Format, out: &mut Vec<u8>) -> Result<u64, EncodeError> {
        self.show_rings();
        let shared = &*self.shared;
        let counting = self.counting();
        let mut families = shared.registry.gather();
        drop(counting);
        if shared.identity == Identity::NamesOrIds {
            identity::leave_out_empty_ids(&mut families);
        }
        match format {
            Format::Text => TextEncoder::new()
                .encode(&families, out)
                .map_err(EncodeError::Text)?,
            Format::OpenMetrics => {
                openmetrics::encode(&families, &shared.exemplars.snapshot(), out)
                    .map_err(EncodeError::OpenMetrics)?;
            }
            Format::Protobuf => {
                let exemplars = shared.exemplars.snapshot();
                protobuf::encode(&families, &shared.histograms, &exemplars, out)
                    .map_err(EncodeError::Protobuf)?;
            }
        }
        Ok(families.iter().map(|it| n_samples(it, format)).sum())
    }

    /// An endpoint was answered with so many samples, where it has any, and so many bytes before
    /// compression, which took so long to encode.
    pub fn scraped(
        &self,
        endpoint: Endpoint,
        n_samples: Option<u64>,
        n_bytes: usize,
        took: Duration,
    ) {
        let agent = &self.shared.agent;
        let labels = [endpoint.as_str()];
        if let Some(n) = n_samples {
            set_count(&agent.scrape_series, &labels, n);
        }
        set_count(&agent.scrape_bytes, &labels, n_bytes as u64);
        observe(&agent.scrape_duration, &labels, took);
    }
}

/// A histogram is one sample for each bound, infinity included, its sum and its count; in protobuf
/// it is one.
fn n_samples(family: &MetricFamily, format: Format) -> u64 {
    let metrics = family.get_metric();
    match (family.get_field_type(), format) {
        (MetricType::HISTOGRAM, Format::Text | Format::OpenMetrics) => metrics
            .iter()
            .map(|it| it.get_histogram().get_bucket().len() as u64 + 3)
            .sum(),
        _ => metrics.len() as u64,
    }
}
