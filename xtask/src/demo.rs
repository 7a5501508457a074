//! `cargo xtask demo`: the agent on real cgroups, with real events.

use anyhow::{Result, bail};

use crate::build::{self, Agent};
use crate::setup;

/// Build the agent and show what it does with the example pods, in about a minute
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave the agent and its pods running
    #[arg(long)]
    keep: bool,
}

pub(crate) fn verb(arguments: &Arguments) -> Result<()> {
    setup::toolchain()?;
    run(&build::release()?, arguments.keep)
}

/// Tells the story with `agent`; fails when anything it promised did not happen.
fn run(agent: &Agent, keep: bool) -> Result<()> {
    let _ = keep;
    bail!(
        "the demo is not wired yet: {} is built, run it by hand",
        agent.path.display()
    )
}
