//! What the queries of the dashboards name exists.

use std::collections::{BTreeMap, BTreeSet};

use ballast::observe::metrics::{self, Type};
use ballast::observe::stats::table::{cadvisor, resource};

use super::*;

/// Added by the scrape, and by Prometheus to a histogram.
const FOREIGN_LABELS: [&str; 5] = ["cluster", "node", "job", "instance", "le"];

/// Series that Prometheus makes itself, with the labels that are of interest.
const OF_PROMETHEUS: [(&str, &[&str]); 2] = [
    ("up", &[]),
    ("ALERTS", &["alertname", "alertstate", "severity"]),
];

/// Words of PromQL that are no names of series.
const WORDS: [&str; 10] = [
    "by",
    "and",
    "or",
    "on",
    "unless",
    "without",
    "group_left",
    "group_right",
    "end",
    "offset",
];

/// The labels of each series that an agent can show.
fn series() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut series = BTreeMap::new();
    let of_cgroups = cadvisor().chain(resource()).map(|it| &it.family);
    for family in metrics::table().iter().chain(of_cgroups) {
        let labels: BTreeSet<_> = family.labels.iter().copied().collect();
        if let Type::Histogram(_) = family.kind {
            for part in ["_bucket", "_count", "_sum"] {
                series.insert(format!("{}{part}", family.name), labels.clone());
            }
        } else {
            // The same name may have other labels on another page.
            let all: &mut BTreeSet<_> = series.entry(family.name.to_owned()).or_default();
            all.extend(labels);
        }
    }
    for (name, labels) in OF_PROMETHEUS {
        series.insert(name.to_owned(), labels.iter().copied().collect());
    }
    series
}

/// Names of series in an expression, and labels: those of matchers, and those in lists after `by`,
/// `on` and the like.
fn names(expr: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let (mut series, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let (mut in_braces, mut in_list, mut list_follows) = (false, false, false);
    let mut rest = expr;
    while let Some(first) = rest.chars().next() {
        let is_word = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | ':' | '$');
        let length = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |it| it + 2),
            // A duration.
            '[' => rest.find(']').map_or(rest.len(), |it| it + 1),
            it if is_word(it) => rest.find(|it| !is_word(it)).unwrap_or(rest.len()),
            it => it.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        match token {
            "{" => in_braces = true,
            "}" => in_braces = false,
            "(" if list_follows => in_list = true,
            ")" => in_list = false,
            "by" | "on" | "without" | "group_left" | "group_right" => {}
            _ if !token.starts_with(|it: char| it.is_ascii_alphabetic()) => {}
            _ if in_braces || in_list => {
                labels.insert(token);
            }
            _ if WORDS.contains(&token) => {}
            // A function.
            _ if ["(", "by (", "without ("]
                .iter()
                .any(|it| after.trim_start().starts_with(it)) => {}
            _ => {
                series.insert(token);
            }
        }
        if !token.trim().is_empty() {
            list_follows = matches!(
                token,
                "by" | "on" | "without" | "group_left" | "group_right"
            );
        }
        rest = after;
    }
    (series, labels)
}

#[test]
fn names_of_series_and_labels_are_told_apart() {
    let expr = r#"sum by (a, le) (rate(x_total{b=~"c{d}",e!="f"}[$__rate_interval])) / on (g) group_left (h) y > 0.1 and topk(5, max_over_time((z)[$__range:5s] @ end()))"#;
    let (series, labels) = names(expr);
    assert_eq!(
        series.into_iter().collect::<Vec<_>>(),
        ["x_total", "y", "z"]
    );
    assert_eq!(
        labels.into_iter().collect::<Vec<_>>(),
        ["a", "b", "e", "g", "h", "le"]
    );
}

#[test]
fn dashboards_ask_for_what_the_agent_shows() -> Result<()> {
    let known = series();
    let mut wrong = BTreeSet::new();
    for dashboard in read_all()? {
        for panel in &dashboard.panels {
            for target in &panel.targets {
                let (series, labels) = names(&target.expr);
                let at = format!("{}: {}", dashboard.name, panel.title);
                let mut allowed: BTreeSet<_> = FOREIGN_LABELS.into();
                for name in series {
                    match known.get(name) {
                        Some(labels) => allowed.extend(labels),
                        None => drop(wrong.insert(format!("{at}: no series {name}"))),
                    }
                }
                for label in labels.difference(&allowed) {
                    wrong.insert(format!("{at}: no label {label}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
