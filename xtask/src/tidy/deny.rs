//! `.deny.toml`: licenses, sources and bans of the dependencies, and advisories about them, by
//! cargo-deny.

use std::process::Command;

use anyhow::{Result, bail};

use super::Verdict;
use crate::{progress, setup, workspace};

/// What cargo-deny says when the network, not a dependency, is at fault.
const NO_DATABASE: &str = "failed to fetch advisory database";

pub(super) fn check() -> Result<Verdict> {
    let cargo_deny = setup::cargo_deny()?;
    let deny = |checks: &[&str]| {
        let mut command = Command::new(&cargo_deny);
        command
            .current_dir(workspace::root())
            .args(["--locked", "--config", ".deny.toml", "check"])
            .args(checks);
        command
    };
    progress::run("cargo deny", &mut deny(&["bans", "licenses", "sources"]))?;
    let mut advisories = deny(&["advisories"]);
    match progress::during("fetch advisories", || progress::quiet(&mut advisories)) {
        Ok(_) => Ok(Verdict::Good),
        Err(error) if error.to_string().contains(NO_DATABASE) => Ok(Verdict::LeftOut(
            "advisories, whose database cannot be reached".to_owned(),
        )),
        Err(error) => bail!(error),
    }
}
