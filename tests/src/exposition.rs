//! A page of metrics in the text format 0.0.4 of Prometheus, read without the code that wrote it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

/// Name and labels of a time series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub value: f64,
    /// Milliseconds since 1970; `None`: the time of the scrape.
    pub at_ms: Option<i64>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    pub samples: BTreeMap<Series, Sample>,
}

impl Exposition {
    /// An error also for what a server would take without a word: a series that comes twice.
    pub fn parse(text: &str) -> Result<Self> {
        let mut samples = BTreeMap::new();
        for (n, line) in (1..).zip(text.lines()) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (series, sample) =
                parse_sample(line).with_context(|| format!("line {n}: `{line}`"))?;
            let before = samples.insert(series, sample);
            ensure!(before.is_none(), "line {n}: `{line}` is there twice");
        }
        Ok(Self { samples })
    }

    /// Names of series.
    pub fn names(&self) -> BTreeSet<&str> {
        self.samples.keys().map(|it| it.name.as_str()).collect()
    }

    /// Series of this name whose labels contain all of `labels`, with their values.
    pub fn of<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a Series, f64)> {
        let is_wanted = move |series: &Series| {
            let has = |(key, value): &(&str, &str)| {
                let found = series.labels.get(*key);
                found.is_some_and(|it| it == value)
            };
            series.name == name && labels.iter().all(has)
        };
        self.samples
            .iter()
            .filter(move |(series, _)| is_wanted(series))
            .map(|(series, sample)| (series, sample.value))
    }

    /// The value of the only one of them.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.of(name, labels);
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    }

    /// The values of all of them; 0: there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.of(name, labels).map(|(_, value)| value).sum()
    }
}

fn parse_sample(line: &str) -> Result<(Series, Sample)> {
    let end = line.find(['{', ' ']).context("no value")?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, after) = rest.split_once("=\"").context("a label without a value")?;
            let (value, after) = quoted(after).context("a label value without an end")?;
            let before = labels.insert(key.to_owned(), value);
            ensure!(before.is_none(), "label {key} is there twice");
            rest = after;
        }
    }
    let mut words = rest.split_ascii_whitespace();
    let value = words.next().context("no value")?;
    let sample = Sample {
        value: value.parse().with_context(|| format!("value {value}"))?,
        at_ms: words.next().map(str::parse).transpose().context("time")?,
    };
    ensure!(words.next().is_none(), "something after the time");
    let name = name.to_owned();
    Ok((Series { name, labels }, sample))
}

/// What is before the closing quote, with its escapes resolved, and what is behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, it)) = chars.next() {
        match it {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(match chars.next()? {
                (_, 'n') => '\n',
                (_, other) => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_name_labels_value_and_time() {
        let text = "# HELP a_total Help.\n# TYPE a_total counter\n\
                    a_total{x=\"1\",y=\"} , \\\" \\\\ \\n\",} 3.5e+00 1700000000123\n\
                    b 1\nc{} NaN\nd{z=\"\"} +Inf\n";
        let page = Exposition::parse(text).expect("good text");
        assert_eq!(
            page.names().into_iter().collect::<Vec<_>>(),
            ["a_total", "b", "c", "d"]
        );
        let (series, sample) = page.samples.first_key_value().expect("not empty");
        assert_eq!(series.labels["y"], "} , \" \\ \n");
        assert_eq!(sample.value, 3.5);
        assert_eq!(sample.at_ms, Some(1_700_000_000_123));
        assert_eq!(page.value("b", &[]), Some(1.0));
        assert!(page.value("c", &[]).is_some_and(f64::is_nan));
        assert_eq!(page.value("d", &[("z", "")]), Some(f64::INFINITY));
        assert_eq!(page.value("d", &[("z", "1")]), None);
    }

    #[test]
    fn series_are_found_by_name_and_labels() {
        let text = "a_total{x=\"1\",y=\"2\"} 3\na_total{x=\"2\",y=\"2\"} 4\na_total_more 9\n";
        let page = Exposition::parse(text).expect("good text");
        assert_eq!(page.sum("a_total", &[("y", "2")]), 7.0);
        assert_eq!(page.sum("a_total", &[("x", "1")]), 3.0);
        assert_eq!(page.sum("a", &[]), 0.0);
        assert_eq!(page.value("a_total", &[]), None);
    }

    #[test]
    fn text_that_is_none_is_refused() {
        for text in [
            "a",
            "a{x} 1",
            "a{x=\"1} 1",
            "a one",
            "a 1 2 3",
            "a 1\na 2",
            "a{x=\"1\",x=\"1\"} 1",
        ] {
            assert!(Exposition::parse(text).is_err(), "{text:?}");
        }
    }
}
