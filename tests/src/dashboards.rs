//! The dashboards of this project as a Grafana has them: their panels, and what these ask a
//! Prometheus.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::prometheus::{Prometheus, Series};

/// Below it are the dashboards, and what is made of them.
pub fn directory() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).join("dashboards")
}

pub struct Dashboard {
    /// Of its file, without the extension.
    pub name: String,
    pub panels: Vec<Panel>,
}

pub struct Panel {
    /// Unique in its dashboard.
    pub title: String,
    pub targets: Vec<Target>,
}

/// One query of a panel.
pub struct Target {
    pub ref_id: String,
    /// With Grafana's variables.
    pub expr: String,
    /// At one time and not over the time shown.
    pub is_instant: bool,
}

/// What Grafana puts in the place of its own variables.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Seconds since the epoch.
    pub start: f64,
    pub end: f64,
    /// Between two points.
    pub step: Duration,
    /// Of a rate.
    pub rate_interval: Duration,
}

/// Every dashboard, by name.
pub fn read_all() -> Result<Vec<Dashboard>> {
    let directory = directory();
    let mut dashboards = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "json") {
            dashboards.push(read(&path).with_context(|| path.display().to_string())?);
        }
    }
    ensure!(!dashboards.is_empty(), "none in {}", directory.display());
    dashboards.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(dashboards)
}

fn read(path: &Path) -> Result<Dashboard> {
    let file: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let panels = file["panels"].as_array().context("no panels")?;
    let name = path.file_stem().and_then(|it| it.to_str());
    Ok(Dashboard {
        name: name.context("no name")?.to_owned(),
        panels: panels
            .iter()
            .filter(|it| it["type"] != "row")
            .map(panel)
            .collect::<Result<_>>()?,
    })
}

fn panel(panel: &Value) -> Result<Panel> {
    let title = panel["title"].as_str().context("no title")?;
    let target = |it: &Value| {
        Some(Target {
            ref_id: it["refId"].as_str()?.to_owned(),
            expr: it["expr"].as_str()?.to_owned(),
            is_instant: it["instant"].as_bool()?,
        })
    };
    let targets: Option<Vec<_>> = panel["targets"]
        .as_array()
        .and_then(|it| it.iter().map(target).collect());
    Ok(Panel {
        title: title.to_owned(),
        targets: targets.with_context(|| format!("targets of `{title}`"))?,
    })
}

impl Target {
    /// What Grafana would ask with everything chosen.
    pub fn ask(&self, prometheus: &Prometheus, window: Window) -> Result<Vec<Series>> {
        let expr = window.fill_in(&self.expr);
        if self.is_instant {
            return prometheus.query(&expr, Some(window.end));
        }
        let step = window.step.as_secs_f64();
        prometheus.query_range(&expr, [window.start, window.end], step)
    }
}

impl Window {
    /// `expr` with all variables replaced; those of labels by what `All` stands for.
    pub fn fill_in(self, expr: &str) -> String {
        let seconds = |it: f64| format!("{}s", it.ceil());
        expr.replace(
            "$__rate_interval",
            &seconds(self.rate_interval.as_secs_f64()),
        )
        .replace("$__range", &seconds(self.end - self.start))
        .replace("$cluster", ".*")
        .replace("$node", ".*")
        .replace("$namespace", ".*")
        .replace("$pod", ".*")
    }
}

#[cfg(test)]
mod tests;
