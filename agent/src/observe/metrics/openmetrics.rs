//! The text of OpenMetrics 1.0.0. Next to the older text format it has exemplars, an end that tells
//! a whole answer from a cut one, and another name for a counter's family.

use std::io::{self, Write};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::exemplars::{Exemplar, RECORD_ID, Snapshot};

/// What the sample of a counter is called after its family.
const TOTAL: &str = "_total";

/// Appends all of them and the end.
pub(super) fn encode(
    families: &[MetricFamily],
    exemplars: &Snapshot,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    for family in families {
        let (name, kind) = declared(family);
        writeln!(out, "# HELP {name} {}", escape(family.help()))?;
        writeln!(out, "# TYPE {name} {kind}")?;
        for metric in family.get_metric() {
            encode_metric(family, metric, exemplars, out)?;
        }
    }
    out.write_all(b"# EOF\n")
}

/// The name of the family and its type. A counter's family is named without `_total`. One that
/// kubelet named otherwise is of unknown type, since its sample would else have to be renamed.
fn declared(family: &MetricFamily) -> (&str, &'static str) {
    let name = family.name();
    match family.get_field_type() {
        MetricType::COUNTER => match name.strip_suffix(TOTAL) {
            Some(short) => (short, "counter"),
            None => (name, "unknown"),
        },
        MetricType::GAUGE => (name, "gauge"),
        MetricType::HISTOGRAM => (name, "histogram"),
        MetricType::SUMMARY => (name, "summary"),
        MetricType::UNTYPED => (name, "unknown"),
    }
}

fn encode_metric(
    family: &MetricFamily,
    metric: &Metric,
    exemplars: &Snapshot,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let name = family.name();
    let labels = metric.get_label();
    match family.get_field_type() {
        MetricType::COUNTER => {
            sample(out, name, "", labels, None)?;
            write!(out, " {}", metric.get_counter().get_value())?;
            let exemplar = exemplars.of(name, labels);
            if let Some(exemplar) = exemplar.filter(|_| name.ends_with(TOTAL)) {
                write_exemplar(exemplar, out)?;
            }
            writeln!(out)
        }
        MetricType::GAUGE => {
            sample(out, name, "", labels, None)?;
            writeln!(out, " {}", metric.get_gauge().get_value())
        }
        MetricType::HISTOGRAM => {
            let histogram = metric.get_histogram();
            for bucket in histogram.get_bucket() {
                let bound = canonical(bucket.upper_bound());
                sample(out, name, "_bucket", labels, Some(&bound))?;
                writeln!(out, " {}", bucket.cumulative_count())?;
            }
            sample(out, name, "_bucket", labels, Some("+Inf"))?;
            writeln!(out, " {}", histogram.get_sample_count())?;
            sample(out, name, "_sum", labels, None)?;
            writeln!(out, " {}", histogram.get_sample_sum())?;
            sample(out, name, "_count", labels, None)?;
            writeln!(out, " {}", histogram.get_sample_count())
        }
        // The table has none.
        MetricType::SUMMARY | MetricType::UNTYPED => Ok(()),
    }
}

/// A sample up to its value; `le`: upper bound of a bucket.
fn sample(
    out: &mut Vec<u8>,
    name: &str,
    suffix: &str,
    labels: &[LabelPair],
    le: Option<&str>,
) -> io::Result<()> {
    write!(out, "{name}{suffix}")?;
    let pairs = labels.iter().map(|it| (it.name(), it.value()));
    let mut separator = '{';
    for (name, value) in pairs.chain(le.map(|le| ("le", le))) {
        write!(out, "{separator}{name}=\"{}\"", escape(value))?;
        separator = ',';
    }
    if separator == ',' {
        out.write_all(b"}")?;
    }
    Ok(())
}

fn write_exemplar(exemplar: &Exemplar, out: &mut Vec<u8>) -> io::Result<()> {
    let Exemplar { record_id, at } = exemplar;
    let at = at.since_epoch();
    let (seconds, millis) = (at.as_secs(), at.subsec_millis());
    let record_id = escape(record_id);
    write!(
        out,
        " # {{{RECORD_ID}=\"{record_id}\"}} 1 {seconds}.{millis:03}"
    )
}

/// A help text or the value of a label.
fn escape(text: &str) -> String {
    let text = text.replace('\\', r"\\").replace('\n', r"\n");
    text.replace('"', "\\\"")
}

/// A bound as every exposer writes it, since it is the value of a label: as C's `%g` does, with all
/// digits, and `.0` for a whole number.
fn canonical(bound: f64) -> String {
    let scientific = format!("{bound:e}");
    match scientific.split_once('e') {
        Some((digits, exponent)) if bound >= 1e6 => format!("{digits}e+{exponent:0>2}"),
        Some((digits, exponent)) if bound < 1e-4 && bound > 0.0 => {
            format!("{digits}e-{:0>2}", exponent.trim_start_matches('-'))
        }
        _ => format!("{bound:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_written_as_other_exposers_write_it() {
        for (bound, text) in [
            (0.0001, "0.0001"),
            (0.00025, "0.00025"),
            (0.000_05, "5e-05"),
            (1.0, "1.0"),
            (2.5, "2.5"),
            (10.0, "10.0"),
            (100_000.0, "100000.0"),
            (1_048_576.0, "1.048576e+06"),
            (68_719_476_736.0, "6.8719476736e+10"),
            (0.0, "0.0"),
        ] {
            assert_eq!(canonical(bound), text);
        }
    }

    #[test]
    fn what_would_end_a_text_is_escaped() {
        assert_eq!(escape("a\\b\n\"c\""), r#"a\\b\n\"c\""#);
    }
}
