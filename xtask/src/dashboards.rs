//! `cargo xtask dashboards`: Grafana dashboards from sources that people can edit.
//!
//! `dashboards/source/NAME.yaml` becomes `dashboards/NAME.json`, and with the results that were
//! recorded for it in `dashboards/previews/data/NAME.json` a still picture of it,
//! `dashboards/previews/NAME.svg`. Both are functions of these files alone, so `cargo xtask tidy`
//! can tell when they are stale. It also tells when the metrics are others than those that were
//! recorded. The rules become a manifest for the operator the same way.

mod grafana;
mod layout;
mod operator;
mod preview;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::preview::Recording;
use self::source::Dashboard;
use crate::{progress, workspace};

/// Relative to the root of the checkout.
const DIRECTORY: &str = "dashboards";

/// The table of the metrics, and that of the agent that the previews were recorded of.
const TABLE: &str = "dashboards/METRICS.md";
pub(crate) const RECORDED_TABLE: &str = "dashboards/previews/data/METRICS.md";

/// Write the Grafana dashboards and their previews from dashboards/source
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<()> {
    let root = workspace::root();
    let mut files = generated(&root)?;
    for path in stale(&root, &files) {
        let text = files.remove(&path).unwrap_or_default();
        fs::write(root.join(&path), text).with_context(|| path.display().to_string())?;
        progress::note(format_args!("wrote {}", path.display()));
    }
    Ok(())
}

/// Generated files that are not what their sources give, relative to `root`.
pub(crate) fn all_stale(root: &Path) -> Result<Vec<PathBuf>> {
    Ok(stale(root, &generated(root)?))
}

fn stale(root: &Path, files: &BTreeMap<PathBuf, String>) -> Vec<PathBuf> {
    let is_stale = |(path, text): &(&PathBuf, &String)| {
        fs::read_to_string(root.join(path)).ok().as_ref() != Some(*text)
    };
    let stale = files.iter().filter(is_stale);
    stale.map(|(path, _)| path.clone()).collect()
}

/// Families of metrics that are other ones than when the previews were recorded, or were not there, or
/// are gone.
pub(crate) fn not_as_recorded(root: &Path) -> Result<Vec<String>> {
    let read = |path: &str| {
        let path = root.join(path);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let (now, then) = (read(TABLE)?, read(RECORDED_TABLE)?);
    let (now, then) = (families(&now), families(&then));
    let differ = now.symmetric_difference(&then);
    let names: BTreeSet<String> = differ.map(|it| it[0].to_owned()).collect();
    Ok(names.into_iter().collect())
}

/// Name, type, unit and labels of each family: what a panel can ask for.
fn families(table: &str) -> BTreeSet<[&str; 4]> {
    let rows = table.lines().filter_map(|it| it.strip_prefix("| `"));
    rows.filter_map(|row| {
        let mut cells = row.split(" | ").map(|it| it.trim_matches(['`', ' ', '|']));
        Some([cells.next()?, cells.next()?, cells.next()?, cells.next()?])
    })
    .collect()
}

/// What is made of the sources below `root`, by path relative to it.
fn generated(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let dashboards = read(&root.join(DIRECTORY).join("source"))?;
    let mut files = BTreeMap::new();
    for (name, dashboard) in &dashboards {
        let path = Path::new(DIRECTORY).join(format!("{name}.json"));
        let mut text = serde_json::to_string_pretty(&grafana::dashboard(name, dashboard))?;
        text.push('\n');
        files.insert(path, text);
        let previews = Path::new(DIRECTORY).join("previews");
        let recorded = root.join(&previews).join(format!("data/{name}.json"));
        if recorded.exists() {
            let picture = fs::read_to_string(&recorded)
                .map_err(anyhow::Error::from)
                .and_then(|it| preview::draw(dashboard, &Recording::parse(&it)?));
            let picture = picture.with_context(|| recorded.display().to_string())?;
            files.insert(previews.join(format!("{name}.svg")), picture);
        }
    }
    files.insert(operator::MANIFEST.into(), operator::manifest(root)?);
    Ok(files)
}

/// The checked sources in `directory` by name.
fn read(directory: &Path) -> Result<BTreeMap<String, Dashboard>> {
    let mut dashboards = BTreeMap::new();
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|it| it != "yaml") {
            continue;
        }
        let parsed = fs::read_to_string(&path)
            .map_err(anyhow::Error::from)
            .and_then(|text| Dashboard::parse(&text));
        let dashboard = parsed.with_context(|| path.display().to_string())?;
        let name = path.file_stem().and_then(|it| it.to_str());
        dashboards.insert(name.context("no UTF-8")?.to_owned(), dashboard);
    }
    for (name, dashboard) in &dashboards {
        for link in dashboard.links() {
            let known = dashboards.contains_key(link);
            ensure!(
                known,
                "{name}: a link to {link}, and there is no {link}.yaml"
            );
        }
    }
    Ok(dashboards)
}

#[cfg(test)]
mod tests;
