//! Each alert against readings on which it must fire and readings on which it must not, by
//! `promtool test rules`; and the cases themselves against alerts with another threshold.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use ballast_tests::prometheus::{program, run};
use ballast_tests::scratch::Scratch;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::rules::{self, Group, Rule, Rules};

/// The table of cases.
const CASES: &str = "tests/data/monitoring/cases.yaml";

/// Alerts of which the expression holds because data is missing.
const ON_ABSENCE: [&str; 1] = ["BallastAbsent"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    /// Of the alert when it fires, severity left out.
    labels: BTreeMap<String, String>,
    /// Metrics without which it fires too.
    #[serde(default)]
    needless: BTreeSet<String>,
    fires: Vec<Case>,
    quiet: Vec<Case>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// As Prometheus writes durations.
    at: String,
    /// Where they differ from those of the alert.
    labels: Option<BTreeMap<String, String>>,
    /// Values in promtool's notation.
    series: BTreeMap<String, String>,
}

impl Case {
    fn metrics(&self) -> BTreeSet<&str> {
        self.series.keys().map(|it| metric(it)).collect()
    }

    fn without(&self, missing: &str) -> Self {
        let mut case = self.clone();
        case.series.retain(|it, _| metric(it) != missing);
        case
    }
}

/// The name of the metric of a series.
fn metric(series: &str) -> &str {
    series.split_once('{').map_or(series, |(name, _)| name)
}

fn cases() -> Result<BTreeMap<String, Cases>> {
    serde_yaml_ng::from_str(&rules::read(CASES)?).with_context(|| format!("parse {CASES}"))
}

/// The tests of one alert in the form of promtool.
fn tests(alert: &Rule, cases: &Cases) -> Vec<Value> {
    let test = |case: &Case, fires: bool| {
        let series: Vec<_> = case
            .series
            .iter()
            .map(|(series, values)| json!({"series": series, "values": values}))
            .collect();
        let firing = format!(
            r#"ALERTS{{alertname="{}",alertstate="firing"}}"#,
            alert.name()
        );
        let labels = case.labels.as_ref().unwrap_or(&cases.labels);
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| format!(r#"{name}="{value}""#))
            .collect();
        let sample = format!(
            r#"ALERTS{{alertname="{}",alertstate="firing",severity="{}",{}}}"#,
            alert.name(),
            alert.severity(),
            labels.join(",")
        );
        let expected = if fires {
            json!([{"labels": sample, "value": 1}])
        } else {
            json!([])
        };
        json!({
            "interval": "1m",
            "name": format!("{} at {}", alert.name(), case.at),
            "input_series": series,
            "promql_expr_test": [
                {"expr": firing, "eval_time": case.at, "exp_samples": expected},
            ],
        })
    };
    let missing = cases.fires.iter().flat_map(|case| {
        let metrics = case.metrics().into_iter();
        let needed = metrics.filter(|it| !cases.needless.contains(*it));
        needed.map(|it| test(&case.without(it), false))
    });
    let fires = cases.fires.iter().map(|it| test(it, true));
    let quiet = cases.quiet.iter().map(|it| test(it, false));
    fires.chain(quiet).chain(missing).collect()
}

/// The recorded rules that the alert names: others would be evaluated in vain at each step of each test.
fn recorded_for(alert: &Rule, mut recorded: Rules) -> Rules {
    let is_named = |it: &Rule| it.record.as_ref().is_some_and(|it| alert.expr.contains(it));
    for group in &mut recorded.groups {
        group.rules.retain(is_named);
    }
    recorded.groups.retain(|it| !it.rules.is_empty());
    recorded
}

/// What fails of the tests with this alert beside the recorded rules; nothing: `None`.
fn failure(
    scratch: &Scratch,
    recorded: &Rules,
    alert: &Rule,
    tests: &[Value],
) -> Result<Option<String>> {
    let name = "alone".to_owned();
    let rules = vec![alert.clone()];
    let groups = vec![Group { name, rules }];
    let text = serde_json::to_string(&Rules { groups })?;
    let alerts = scratch.write("alert.yaml", text)?;
    let text = serde_json::to_string(&recorded_for(alert, recorded.clone()))?;
    let recorded = scratch.write("recorded.yaml", text)?;
    let file = json!({
        "rule_files": [recorded, alerts],
        "evaluation_interval": "30s",
        "tests": tests,
    });
    let file = scratch.write("cases.test.yaml", file.to_string())?;
    let output = program("promtool")
        .args(["test", "rules"])
        .arg(file)
        .output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() {
        return Ok(None);
    }
    // Whatever else goes wrong says so in other words.
    ensure!(text.contains("FAILED:"), "promtool: {text}");
    Ok(Some(text))
}

#[cfg_attr(feature = "monitoring", test)]
fn prometheus_takes_the_rules() -> Result<()> {
    let mut promtool = program("promtool");
    promtool
        .args(["check", "rules"])
        .arg(rules::path(rules::RECORDED))
        .arg(rules::path(rules::ALERTS));
    let answer = run(&mut promtool)?;
    let n_alerts = rules::alerts()?.len();
    ensure!(
        answer.contains(&format!("SUCCESS: {n_alerts} rules found")),
        "{answer}"
    );
    Ok(())
}

#[cfg_attr(feature = "monitoring", test)]
fn every_alert_fires_stays_quiet_and_needs_its_data() -> Result<()> {
    let cases = cases()?;
    let recorded = rules::rules(rules::RECORDED)?;
    let scratch = Scratch::new("cases")?;
    let mut names = BTreeSet::new();
    let mut failures = Vec::new();
    for alert in rules::alerts()? {
        let name = alert.name();
        let cases = cases
            .get(name)
            .with_context(|| format!("{name} has no cases in {CASES}"))?;
        ensure!(!cases.fires.is_empty(), "{name} never fires");
        ensure!(!cases.quiet.is_empty(), "{name} is never quiet");
        let needs_data = cases.fires.iter().all(|it| !it.series.is_empty());
        ensure!(
            needs_data != ON_ABSENCE.contains(&name),
            "{name}: a case without data"
        );
        failures.extend(failure(&scratch, &recorded, &alert, &tests(&alert, cases))?);
        names.insert(name.to_owned());
    }
    let unknown: Vec<_> = cases.keys().filter(|it| !names.contains(*it)).collect();
    ensure!(unknown.is_empty(), "no alerts: {unknown:?}");
    ensure!(failures.is_empty(), "{}", failures.concat());
    Ok(())
}

/// A label that the alert does not have would be an empty place in its text.
#[cfg_attr(feature = "monitoring", test)]
fn texts_name_only_labels_that_the_alert_has() -> Result<()> {
    let cases = cases()?;
    let mut n_named = 0;
    for alert in rules::alerts()? {
        let labels = cases.get(alert.name()).map(|it| &it.labels);
        let labels = labels.with_context(|| format!("{} has no cases", alert.name()))?;
        for text in alert.annotations.values() {
            for (_, rest) in text
                .match_indices("$labels.")
                .map(|(at, _)| text.split_at(at))
            {
                let name = rest.trim_start_matches("$labels.");
                let name = name.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
                let name = name.take(1).collect::<String>();
                ensure!(
                    labels.contains_key(&name),
                    "{} has no label {name}: {text}",
                    alert.name()
                );
                n_named += 1;
            }
        }
    }
    ensure!(n_named > 0, "no text names a label");
    Ok(())
}

/// Alerts that differ from this one in one threshold, or in how long it holds, each with what was
/// changed.
fn mutants(alert: &Rule) -> Vec<(String, Rule)> {
    let mut mutants = Vec::new();
    for (start, end) in thresholds(&alert.expr) {
        let text = &alert.expr[start..end];
        let value: f64 = text.parse().expect("a threshold is a number");
        let others = match value {
            0.0 => vec![-1.0],
            _ => vec![value / 2.0, value * 2.0],
        };
        for other in others {
            let (before, after) = (&alert.expr[..start], &alert.expr[end..]);
            let expr = format!("{before}{other}{after}");
            let what = format!("{}: {text} -> {other}", alert.name());
            mutants.push((
                what,
                Rule {
                    expr,
                    ..alert.clone()
                },
            ));
        }
    }
    if let Some(hold) = &alert.hold {
        let seconds = rules::seconds(hold);
        for other in [seconds / 2, seconds * 2] {
            let hold = Some(format!("{other}s"));
            let what = format!("{}: for {seconds}s -> {other}s", alert.name());
            mutants.push((
                what,
                Rule {
                    hold,
                    ..alert.clone()
                },
            ));
        }
    }
    mutants
}

/// Where the numbers are that follow a comparison.
fn thresholds(expr: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut quoted = false;
    for (at, sign) in expr.char_indices() {
        if sign == '"' {
            quoted = !quoted;
        }
        let after = &expr[at + sign.len_utf8()..];
        // The second sign of `>=` and of `==`, but not of `!=`, `=~` and the `=` of a label.
        let ends_comparison = match sign {
            '<' | '>' => !after.starts_with('='),
            '=' => expr[..at].ends_with(['<', '>', '=']),
            _ => false,
        };
        if quoted || !ends_comparison {
            continue;
        }
        let number = after.trim_start();
        let start = expr.len() - number.len();
        let is_part = |it: char| it.is_ascii_digit() || it == '.';
        let length = number.find(|it| !is_part(it)).unwrap_or(number.len());
        if length > 0 {
            found.push((start, start + length));
        }
    }
    found
}

#[cfg_attr(feature = "monitoring", test)]
fn another_threshold_breaks_a_case() -> Result<()> {
    let cases = cases()?;
    let recorded = rules::rules(rules::RECORDED)?;
    let scratch = Scratch::new("mutants")?;
    let mut survivors = Vec::new();
    let mut n_mutants = 0;
    for alert in rules::alerts()? {
        let cases = cases.get(alert.name()).context("an alert without cases")?;
        let tests = tests(&alert, cases);
        for (what, mutant) in mutants(&alert) {
            if failure(&scratch, &recorded, &mutant, &tests)?.is_none() {
                survivors.push(what);
            }
            n_mutants += 1;
        }
    }
    ensure!(n_mutants >= 100, "only {n_mutants} mutants");
    ensure!(survivors.is_empty(), "no case breaks: {survivors:#?}");
    Ok(())
}

#[cfg_attr(feature = "monitoring", test)]
fn thresholds_are_found_where_a_comparison_ends() {
    let expr = "a{b=\"> 3\",c!=\"1\"} >= 3 and d < 0.5 * e == 1 or x > y";
    let found: Vec<_> = thresholds(expr)
        .iter()
        .map(|(start, end)| &expr[*start..*end])
        .collect();
    assert_eq!(found, ["3", "0.5", "1"]);
}
