//! What the panels of the dashboards ask, a live agent answers, and what others ask of kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast_tests::cgroup;
use ballast_tests::dashboards::{self, Dashboard, Window};
use ballast_tests::prometheus::{Prometheus, Series};
use serde::{Deserialize, Serialize};

use super::drop_in;
use super::scene::Scene;

/// How long the scene is.
const LENGTH: Duration = Duration::from_secs(75);

/// Set to record what the previews are drawn from; the scene is longer then.
const RECORD: &str = "BALLAST_RECORD_DASHBOARDS";
const RECORDED_LENGTH: Duration = Duration::from_secs(300);

/// Queries that need not be answered, below the directory of the tests.
const EMPTY: &str = "data/monitoring/empty_panels.yaml";

/// A query without an answer in the scene, which has to have a reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Empty {
    dashboard: String,
    panel: String,
    /// Which of its queries; left out: all.
    query: Option<String>,
    /// With it there is an answer; left out: there is none on any machine.
    needs: Option<Need>,
    reason: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Need {
    CgroupV2,
    /// The kernel's statistics of eBPF programs (`kernel.bpf_stats_enabled`).
    BpfStatistics,
}

impl Need {
    fn is_met(self) -> bool {
        match self {
            Self::CgroupV2 => cgroup::is_unified(),
            Self::BpfStatistics => fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled")
                .is_ok_and(|it| it.trim() == "1"),
        }
    }
}

#[cfg_attr(feature = "monitoring", test)]
fn what_dashboards_ask_a_live_agent_answers() -> Result<()> {
    let is_recording = std::env::var_os(RECORD).is_some();
    let others = drop_in::sets()?;
    let scene = Scene::start(&drop_in::rules(&others))?;
    scene.play(if is_recording {
        RECORDED_LENGTH
    } else {
        LENGTH
    })?;
    let window = scene.window(Duration::from_secs(if is_recording { 4 } else { 1 }))?;
    let dashboards = dashboards::read_all()?;
    let mut answers = BTreeMap::new();
    for dashboard in &dashboards {
        let it = ask(dashboard, &scene.prometheus, window);
        answers.insert(&dashboard.name, it.with_context(|| dashboard.name.clone())?);
    }
    let of_others = drop_in::check(&others, &scene.prometheus, window)?;
    scene.end()?;
    if is_recording {
        for (name, answers) in &answers {
            record(name, answers, window)?;
        }
        let metrics = dashboards::directory().join("METRICS.md");
        let beside = dashboards::directory().join("previews/data/METRICS.md");
        fs::copy(metrics, beside).context("keep the table of the metrics")?;
    }
    let mut wrong = check(&answers)?;
    wrong.extend(of_others);
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// The answers to the queries of a dashboard, by panel and query.
type Answers = BTreeMap<String, BTreeMap<String, Vec<Series>>>;

fn ask(dashboard: &Dashboard, prometheus: &Prometheus, window: Window) -> Result<Answers> {
    let mut answers = Answers::new();
    for panel in &dashboard.panels {
        let of_panel = answers.entry(panel.title.clone()).or_default();
        for target in &panel.targets {
            let series = target.ask(prometheus, window)?;
            of_panel.insert(target.ref_id.clone(), series);
        }
    }
    Ok(answers)
}

/// What is wrong with the answers to the panels.
fn check(answers: &BTreeMap<&String, Answers>) -> Result<BTreeSet<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(EMPTY);
    let listed: Vec<Empty> = serde_yaml_ng::from_str(&fs::read_to_string(path)?)?;
    let mut wrong = BTreeSet::new();
    for it in &listed {
        let of_panel = answers.get(&it.dashboard).and_then(|of| of.get(&it.panel));
        let is_there =
            of_panel.is_some_and(|of| it.query.as_ref().is_none_or(|q| of.contains_key(q)));
        if !is_there || it.reason.is_empty() {
            wrong.insert(format!(
                "{EMPTY}: no such query: {}: {}",
                it.dashboard, it.panel
            ));
        }
    }
    let mut n_answered = 0;
    for (dashboard, answers) in answers {
        for (panel, answers) in answers {
            for (query, series) in answers {
                let reason = listed.iter().find(|it| {
                    it.dashboard == **dashboard
                        && it.panel == *panel
                        && it.query.as_ref().is_none_or(|it| it == query)
                        && !it.needs.is_some_and(Need::is_met)
                });
                let at = format!("{dashboard}: {panel}: {query}");
                match (has_data(series), reason) {
                    (true, None) => n_answered += 1,
                    (true, Some(_)) => drop(wrong.insert(format!("{at} has data, and is listed"))),
                    (false, None) => drop(wrong.insert(format!("{at} has no data"))),
                    (false, Some(_)) => {}
                }
                if series.len() > 12 && !is_table(answers) {
                    wrong.insert(format!("{at} has {} lines", series.len()));
                }
            }
        }
    }
    ensure!(n_answered > 100, "only {n_answered} queries were answered");
    println!("dashboards: {n_answered} queries answered");
    Ok(wrong)
}

/// A table is asked at one time and may have any number of rows.
fn is_table(answers: &BTreeMap<String, Vec<Series>>) -> bool {
    let mut series = answers.values().flatten();
    series.all(|it| it.points.len() == 1)
}

pub(super) fn has_data(series: &[Series]) -> bool {
    let mut points = series.iter().flat_map(|it| &it.points);
    points.any(|(_, value)| value.is_finite())
}

/// What a preview is drawn from, `dashboards/previews/data/NAME.json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Recording<'a> {
    /// Seconds since the epoch.
    start: f64,
    /// Seconds between two values.
    step: f64,
    /// By panel and query.
    panels: BTreeMap<&'a String, BTreeMap<&'a String, Vec<Recorded<'a>>>>,
}

#[derive(Serialize)]
struct Recorded<'a> {
    labels: &'a BTreeMap<String, String>,
    /// One for each step, or a single one.
    values: Vec<Option<f64>>,
}

fn record(name: &str, answers: &Answers, window: Window) -> Result<()> {
    let step = window.step.as_secs_f64();
    let n_steps = ((window.end - window.start) / step).floor();
    let values = |series: &Series| match series.points.as_slice() {
        [(at, value)] if *at == window.end => vec![rounded(*value)],
        points => {
            let mut at = window.start;
            let mut values = Vec::new();
            while at <= window.start + n_steps * step {
                let point = points.iter().find(|it| (it.0 - at).abs() < step / 2.0);
                values.push(point.and_then(|it| rounded(it.1)));
                at += step;
            }
            values
        }
    };
    let panels = answers.iter().map(|(panel, answers)| {
        let queries = answers.iter().map(|(query, series)| {
            let recorded = series.iter().map(|it| Recorded {
                labels: &it.labels,
                values: values(it),
            });
            (query, recorded.collect())
        });
        (panel, queries.collect())
    });
    let recording = Recording {
        start: window.start,
        step,
        panels: panels.collect(),
    };
    let path = dashboards::directory().join("previews/data");
    fs::create_dir_all(&path)?;
    let path = path.join(format!("{name}.json"));
    fs::write(&path, serde_json::to_string(&recording)? + "\n")
        .with_context(|| path.display().to_string())
}

/// To four digits, which no picture shows more of; `None`: no number.
fn rounded(value: f64) -> Option<f64> {
    let is_number = value.is_finite();
    is_number
        .then(|| format!("{value:.3e}").parse().ok())
        .flatten()
}
