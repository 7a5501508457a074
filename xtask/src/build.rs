//! `cargo xtask build`: the agent for the lanes, with what tests it there, or the one that is shipped, with its size.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::progress::{self, headline};
use crate::test::programs::{self, HostPrograms, Wanted};
use crate::workspace;

/// Megabytes of 10^6 bytes, the agent's budget in the design.
const BUDGET_BYTES: u64 = 15_000_000;

/// Build the agent, linked statically
///
/// As the test lanes run it, quick to build and large, together with the host tests and their helper programs. With
/// --release the agent alone, as it is shipped.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Optimized for size: what is shipped, in some minutes; prints its size
    #[arg(long)]
    release: bool,
}

/// A built agent.
pub(crate) struct Agent {
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.release {
        let agent = release()?;
        println!("{}", agent.path.display());
        println!("{}", describe_size(agent.size_bytes));
    } else {
        headline("build the agent, the host tests and their helper programs");
        let programs = programs::build(&HostPrograms::wanted())?.host()?;
        for path in [
            programs.agent,
            programs.tests,
            programs.hog,
            programs.plugin,
        ] {
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// The agent as the test lanes run it, alone.
pub(crate) fn quick() -> Result<PathBuf> {
    headline("build the agent");
    bin(programs::AGENT)
}

/// The program that misbehaves on demand.
pub(crate) fn hog() -> Result<PathBuf> {
    headline("build the load generator");
    bin(programs::HOG)
}

fn bin(name: &'static str) -> Result<PathBuf> {
    programs::build(&Wanted::bin(name))?.bin(name)
}

/// The agent as it is shipped.
pub(crate) fn release() -> Result<Agent> {
    headline("build the release agent");
    let mut cargo = workspace::cargo();
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "ballast",
        "--bin",
        "ballast",
    ]);
    progress::run(
        "build the release agent",
        workspace::link_statically(&mut cargo),
    )?;
    agent(
        workspace::target()
            .join(workspace::static_target())
            .join("release/ballast"),
    )
}

fn agent(path: PathBuf) -> Result<Agent> {
    let size_bytes = fs::metadata(&path)
        .with_context(|| format!("look at {}", path.display()))?
        .len();
    Ok(Agent { path, size_bytes })
}

fn describe_size(bytes: u64) -> String {
    let percent = bytes * 100 / BUDGET_BYTES;
    let tenths = |bytes: u64| format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10);
    let verdict = if bytes > BUDGET_BYTES {
        ", over budget"
    } else {
        ""
    };
    format!(
        "{} MB, {percent} % of the {} MB budget{verdict}",
        tenths(bytes),
        tenths(BUDGET_BYTES)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_told_beside_the_budget() {
        for (bytes, text) in [
            (4_150_000, "4.1 MB, 27 % of the 15.0 MB budget"),
            (
                16_800_000,
                "16.8 MB, 112 % of the 15.0 MB budget, over budget",
            ),
        ] {
            assert_eq!(describe_size(bytes), text);
        }
    }
}
