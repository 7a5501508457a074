//! `cargo xtask reference`: the page that lists every metric, from the agent's tables.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::progress;
use crate::test::programs::{self, Wanted};
use crate::workspace;

/// The program that makes it.
pub(crate) const PROGRAM: &str = "metrics_reference";

/// Relative to the root of the checkout.
pub(crate) const PAGE: &str = "dashboards/METRICS.md";

/// Write dashboards/METRICS.md, the list of all metrics, from the agent's tables
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<()> {
    let path = workspace::root().join(PAGE);
    fs::write(&path, page()?).with_context(|| format!("write {}", path.display()))
}

/// That the page in the checkout is what the tables and dashboards make of it.
pub(crate) fn check() -> Result<()> {
    let path = workspace::root().join(PAGE);
    let found = fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        found == page()?,
        "{PAGE} is not what the tables of metrics make of it: cargo xtask reference"
    );
    Ok(())
}

fn page() -> Result<String> {
    let program = programs::build(&Wanted::bin(PROGRAM))?.bin(PROGRAM)?;
    progress::capture("the page of metrics", &mut Command::new(program))
}
