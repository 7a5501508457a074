//! What a client takes, from its headers (RFC 9110, 12.4 and 12.5).

use hyper::HeaderMap;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, AsHeaderName};

use crate::observe::metrics::Format;

/// One entry of such a header: `text/plain;version=0.0.4;q=0.5`.
struct Choice<'a> {
    value: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    /// 0, not wanted at all, to 1.
    weight: f64,
}

/// The format that the client likes best; of those it likes equally, the first it names. Text,
/// which every client reads, where it names none that there is.
pub(super) fn format(headers: &HeaderMap) -> Format {
    let mut best = (0.0, Format::Text);
    for choice in choices(&joined(headers, ACCEPT)) {
        if let Some(format) = choice.format().filter(|_| choice.weight > best.0) {
            best = (choice.weight, format);
        }
    }
    best.1
}

/// Whether the answer is to be compressed.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let header = joined(headers, ACCEPT_ENCODING);
    let weight = |names: &[&str]| {
        let is_meant =
            |it: &Choice<'_>| names.iter().any(|name| it.value.eq_ignore_ascii_case(name));
        choices(&header).find(is_meant).map(|it| it.weight)
    };
    let gzip = weight(&["gzip", "x-gzip"]).or_else(|| weight(&["*"]));
    let identity = weight(&["identity"]).unwrap_or(0.0);
    gzip.is_some_and(|gzip| gzip > 0.0 && gzip >= identity)
}

/// A header that came several times is one list.
fn joined(headers: &HeaderMap, name: impl AsHeaderName) -> String {
    let values = headers.get_all(name).into_iter();
    let values: Vec<&str> = values.filter_map(|it| it.to_str().ok()).collect();
    values.join(",")
}

/// What cannot be read is left out. No value of these headers has a comma or a semicolon in quotes.
fn choices(header: &str) -> impl Iterator<Item = Choice<'_>> {
    header.split(',').filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let value = parts.next().filter(|it| !it.is_empty())?;
        let pairs = parts.filter_map(|part| part.split_once('='));
        let parameters: Vec<_> = pairs
            .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
            .collect();
        let weight = parameter(&parameters, "q").map_or(Ok(1.0), str::parse);
        Some(Choice {
            value,
            weight: weight.ok().filter(|it| (0.0..=1.0).contains(it))?,
            parameters,
        })
    })
}

fn parameter<'a>(parameters: &[(&'a str, &'a str)], name: &str) -> Option<&'a str> {
    let mut named = parameters.iter();
    named
        .find(|(it, _)| it.eq_ignore_ascii_case(name))
        .map(|(_, value)| *value)
}

impl Choice<'_> {
    /// The format that it asks for; `None`: there is none such.
    fn format(&self) -> Option<Format> {
        let is_version = |right| self.parameter("version").is_none_or(|it| it == right);
        match self.value.to_ascii_lowercase().as_str() {
            "*/*" | "text/*" => Some(Format::Text),
            "text/plain" => is_version("0.0.4").then_some(Format::Text),
            "application/openmetrics-text" => is_version("1.0.0").then_some(Format::OpenMetrics),
            "application/vnd.google.protobuf" => {
                let is_family =
                    self.parameter("proto") == Some("io.prometheus.client.MetricFamily");
                let is_delimited = self.parameter("encoding") == Some("delimited");
                (is_family && is_delimited).then_some(Format::Protobuf)
            }
            _ => None,
        }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        parameter(&self.parameters, name)
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(name: HeaderName, values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_format_is_the_one_that_the_client_likes_best() {
        use Format::{OpenMetrics, Protobuf, Text};
        // What Prometheus sends: 2.42, the same with native histograms, 2.4, and 3.4.
        let v2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                  version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let v2_native = "application/vnd.google.protobuf;\
                         proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                         application/openmetrics-text;version=1.0.0;q=0.8,\
                         application/openmetrics-text;version=0.0.1;q=0.75,\
                         text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let old = "text/plain;version=0.0.4;q=1,*/*;q=0.1";
        let v3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                  application/openmetrics-text;version=0.0.1;q=0.5,\
                  text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                  text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, expected) in [
            (vec![v2], OpenMetrics),
            (vec![v2_native], Protobuf),
            (vec![old], Text),
            (vec![v3], OpenMetrics),
            (vec![browser], Text),
            (vec!["*/*"], Text),
            (vec![], Text),
            (vec![""], Text),
            (vec!["application/json"], Text),
            (vec!["text/plain", "application/openmetrics-text"], Text),
            (
                vec!["text/plain;q=0.2", "application/openmetrics-text;q=0.3"],
                OpenMetrics,
            ),
            (
                vec!["Application/OpenMetrics-Text ; Version=\"1.0.0\" ; Q=1.0"],
                OpenMetrics,
            ),
            (vec!["application/openmetrics-text;version=0.0.1"], Text),
            (vec!["application/openmetrics-text;q=0"], Text),
            (vec!["application/openmetrics-text;q=2"], Text),
            (vec!["application/openmetrics-text;q=nan"], Text),
            (vec!["application/openmetrics-text;q="], Text),
            (vec!["application/vnd.google.protobuf"], Text),
            (
                vec![
                    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                      encoding=text",
                ],
                Text,
            ),
            (vec![";;q=1,,="], Text),
        ] {
            assert_eq!(format(&headers(ACCEPT, &accept)), expected, "{accept:?}");
        }
    }

    #[test]
    fn compression_is_for_those_who_ask() {
        for (accept, expected) in [
            (vec!["gzip"], true),
            (vec!["gzip, deflate, br"], true),
            (vec!["deflate", "x-gzip"], true),
            (vec!["GZIP;q=0.1"], true),
            (vec!["*"], true),
            (vec!["identity, gzip;q=1.0"], true),
            (vec!["identity;q=0.5, gzip;q=0.4"], false),
            (vec!["gzip;q=0"], false),
            (vec!["gzip;q=0, *"], false),
            (vec!["*;q=0"], false),
            (vec!["deflate"], false),
            (vec!["identity"], false),
            (vec![""], false),
            (vec![], false),
        ] {
            let headers = headers(ACCEPT_ENCODING, &accept);
            assert_eq!(takes_gzip(&headers), expected, "{accept:?}");
        }
    }
}
