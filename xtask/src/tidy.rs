//! `cargo xtask tidy`: what can be checked without running anything.

use std::process::ExitCode;

use anyhow::Result;

use crate::progress::{self, headline};
use crate::test::report::Outcome;
use crate::workspace;

/// Check formatting and lints
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<ExitCode> {
    lane().map(|_| ExitCode::SUCCESS)
}

pub(crate) fn lane() -> Result<Outcome> {
    headline("formatting");
    progress::run(
        "cargo fmt",
        workspace::cargo().args(["fmt", "--all", "--check"]),
    )?;
    headline("lints");
    let mut clippy = workspace::cargo();
    clippy.args([
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]);
    progress::run("cargo clippy", &mut clippy)?;
    Ok(Outcome::Passed(String::new()))
}
