//! `cargo xtask bench`: measures the agent beside its budgets.

use anyhow::{Result, ensure};

use crate::progress::{self, headline};
use crate::{build, setup, workspace};

/// Measure the agent and print the figures beside their budgets
///
/// As root, in about five minutes. Without a name everything is measured.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// oom, ebpf, process, start, reconcile, idle
    names: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(workspace::is_root(), "run as root: it makes cgroups");
    setup::toolchain()?;
    let agent = build::release()?;
    headline("measure");
    let mut cargo = workspace::cargo();
    cargo
        .args(["run", "--quiet", "--locked", "--package", "ballast-tests"])
        .args(["--bin", "bench", "--"])
        .args(&arguments.names)
        .env("BALLAST_BIN", &agent.path);
    print!("{}", progress::capture("bench", &mut cargo)?);
    Ok(())
}
