//! `cargo xtask bench`: measures the agent beside its budgets.

use anyhow::Result;

use crate::progress::{self, headline};
use crate::{build, setup, workspace};

/// Measure the agent and print the figures beside their budgets
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which measurements; all of them without a name
    names: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::toolchain()?;
    let agent = build::release()?;
    headline("build and run the measurements");
    let mut cargo = workspace::cargo();
    cargo
        .args([
            "bench",
            "--package",
            "ballast-tests",
            "--features",
            "privileged",
        ])
        .args(["--bench", "bench", "--"])
        .args(&arguments.names)
        .env("BALLAST_BIN", &agent.path);
    progress::run("bench", &mut cargo)?;
    Ok(())
}
