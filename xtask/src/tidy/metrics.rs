//! Metric names: the agent's table against the code, dashboards, alerts and texts that name them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Finding;
use super::source::{self, SourceFile, line_of};

/// The table, where a family is defined.
const TABLE: &str = "agent/src/observe/metrics/table.rs";

/// Code that makes families from the table, one mention each.
const CODE: &str = "agent/src/observe/metrics";

/// Names of this project. Those of other programs in a dashboard are not checked.
const PREFIX: &str = "ballast_";

/// What Prometheus adds to the name of a histogram's family.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_count", "_sum"];

/// Where series get names of their own.
const RECORDED: &str = "dashboards/rules.yaml";

/// Where texts that name metrics are, and their extensions.
const TEXTS: [(&str, &str); 5] = [
    ("dashboards", "json"),
    ("dashboards", "yaml"),
    ("dashboards/runbooks", "md"),
    ("deploy", "yaml"),
    ("agent", "md"),
];

pub(super) fn check(root: &Path, files: &[SourceFile]) -> Result<Vec<Finding>> {
    let table = files.iter().find(|it| it.path == Path::new(TABLE));
    let table = table.with_context(|| format!("no {TABLE}"))?;
    let families = literals(&table.text);
    ensure!(!families.is_empty(), "no metric in {TABLE}");
    let code = files
        .iter()
        .filter(|it| it.path.starts_with(CODE) && it.path != table.path);
    let mut findings = check_code(&families, code);
    let rules = root.join(RECORDED);
    let rules = fs::read_to_string(&rules).with_context(|| format!("read {}", rules.display()))?;
    let recorded = recorded(&rules);
    for (directory, extension) in TEXTS {
        let directory = root.join(directory);
        let mut paths = Vec::new();
        if directory.exists() {
            source::collect(&directory, extension, &mut paths)?;
        }
        for path in paths {
            let text =
                fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let path = path.strip_prefix(root).unwrap_or(&path);
            findings.extend(check_text(&families, &recorded, path, &text));
        }
    }
    Ok(findings)
}

/// Each family of the table is made by the code, and the code makes no other.
fn check_code<'a>(
    families: &BTreeMap<&str, usize>,
    code: impl Iterator<Item = &'a SourceFile>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut made = BTreeMap::new();
    for file in code {
        for (name, offset) in literals(&file.text) {
            made.insert(name, ());
            if !families.contains_key(base(families, name)) {
                let line = line_of(&file.text, offset);
                let what = format!("{name} is not in {TABLE}");
                findings.push(Finding {
                    path: file.path.clone(),
                    line,
                    what,
                });
            }
        }
    }
    for name in families.keys().filter(|it| !made.contains_key(**it)) {
        let what = format!("{name} is in the table, and no code makes it");
        findings.push(Finding {
            path: PathBuf::from(TABLE),
            line: 1,
            what,
        });
    }
    findings
}

fn check_text(
    families: &BTreeMap<&str, usize>,
    recorded: &BTreeSet<&str>,
    path: &Path,
    text: &str,
) -> Vec<Finding> {
    let finding = |offset, what| Finding {
        path: path.to_owned(),
        line: line_of(text, offset),
        what,
    };
    let mut findings = Vec::new();
    for (offset, name) in names(text) {
        match recorded_name(text, offset) {
            Some(name) if !recorded.contains(name) => {
                findings.push(finding(offset, format!("{name} is not in {RECORDED}")));
            }
            None if !families.contains_key(base(families, name)) => {
                findings.push(finding(offset, format!("{name} is not in {TABLE}")));
            }
            _ => {}
        }
    }
    findings
}

/// The names that rules give to what they record.
fn recorded(rules: &str) -> BTreeSet<&str> {
    let lines = rules.lines().map(str::trim);
    lines
        .filter_map(|it| it.strip_prefix("- record: "))
        .collect()
}

/// The whole of `LEVEL:METRIC:OPERATION`, if the metric name at `offset` is in the middle of such a
/// one.
fn recorded_name(text: &str, offset: usize) -> Option<&str> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == ':';
    let before = text[..offset].trim_end_matches(is_part).len();
    let rest = &text[before..];
    let name = &rest[..rest.find(|it| !is_part(it)).unwrap_or(rest.len())];
    (before < offset && name.contains(':')).then_some(name)
}

/// `name` without the suffix of a histogram's series, unless there is a family of that very name.
fn base<'a>(families: &BTreeMap<&str, usize>, name: &'a str) -> &'a str {
    if families.contains_key(name) {
        return name;
    }
    HISTOGRAM_SUFFIXES
        .iter()
        .find_map(|it| name.strip_suffix(it))
        .unwrap_or(name)
}

/// String literals that are a metric name as a whole, each with one offset.
fn literals(text: &str) -> BTreeMap<&str, usize> {
    names(text)
        .filter(|(at, name)| text[..*at].ends_with('"') && text[at + name.len()..].starts_with('"'))
        .map(|(at, name)| (name, at))
        // The prefix alone is no name.
        .filter(|(name, _)| name.len() > PREFIX.len())
        .collect()
}

/// Words that begin with the prefix.
fn names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_';
    text.match_indices(PREFIX).filter_map(move |(at, _)| {
        if text[..at].ends_with(is_part) {
            return None;
        }
        let rest = &text[at..];
        let length = rest.find(|it| !is_part(it)).unwrap_or(rest.len());
        Some((at, &rest[..length]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> BTreeMap<&'static str, usize> {
        literals(r#"("ballast_ready", "ballast_lag_seconds") "ballast_""#)
    }

    #[test]
    fn the_table_and_the_code_name_the_same_families() {
        assert_eq!(
            families().into_keys().collect::<Vec<_>>(),
            ["ballast_lag_seconds", "ballast_ready"]
        );
        let code = SourceFile::new(
            "agent/src/observe/metrics/families.rs".into(),
            "x(\"ballast_ready\");\nx(\"ballast_gone\");".to_owned(),
        );
        let found: Vec<_> = check_code(&families(), [&code].into_iter())
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            found,
            [
                format!("agent/src/observe/metrics/families.rs:2: ballast_gone is not in {TABLE}"),
                format!("{TABLE}:1: ballast_lag_seconds is in the table, and no code makes it"),
            ]
        );
    }

    #[test]
    fn a_text_may_name_the_series_of_a_histogram() {
        let text = "rate(ballast_lag_seconds_bucket[5m])\nballast_redy == 0 or my_ballast_x";
        let found = check_text(
            &families(),
            &BTreeSet::new(),
            Path::new("dashboards/a.json"),
            text,
        );
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [format!(
                "dashboards/a.json:2: ballast_redy is not in {TABLE}"
            )]
        );
    }

    #[test]
    fn a_text_may_name_what_is_recorded() {
        let rules = "rules:\n- record: node:ballast_lag:p99_5m\n  expr: ballast_lag_seconds\n";
        let recorded = recorded(rules);
        assert_eq!(
            recorded.iter().copied().collect::<Vec<_>>(),
            ["node:ballast_lag:p99_5m"]
        );
        let text = "expr: node:ballast_lag:p99_5m > 1\nnode:ballast_leg:p99_5m == 0\n";
        let found = check_text(&families(), &recorded, Path::new("dashboards/a.yaml"), text);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [format!(
                "dashboards/a.yaml:2: node:ballast_leg:p99_5m is not in {RECORDED}"
            )]
        );
    }
}
