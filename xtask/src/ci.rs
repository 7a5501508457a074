//! `cargo xtask ci`: what CI runs.

use std::process::ExitCode;

use anyhow::Result;

use crate::test;

/// Run what CI runs: the lanes of the gate
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<ExitCode> {
    test::gate()
}
