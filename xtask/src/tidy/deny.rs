//! `.deny.toml`: licenses, sources and bans of the dependencies, and advisories about them, by
//! cargo-deny; of the workspace and of the eBPF programs, which have a lock file of their own.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::test::report::Outcome;
use crate::{progress, setup, workspace};

/// What cargo-deny says when the network, not a dependency, is at fault.
const NO_DATABASE: &str = "failed to fetch advisory database";

const MANIFESTS: [&str; 2] = ["Cargo.toml", "ebpf/Cargo.toml"];

/// What the same commit passes each time.
pub(super) fn check() -> Result<()> {
    let cargo_deny = setup::cargo_deny()?;
    for manifest in MANIFESTS {
        let mut deny = command(&cargo_deny, manifest, &["bans", "licenses", "sources"]);
        progress::run("cargo deny", &mut deny)?;
    }
    Ok(())
}

/// What is known of the dependencies today. A commit that nobody changed may fail tomorrow, so this is
/// no part of the gate.
pub(crate) fn advisories() -> Result<Outcome> {
    let cargo_deny = setup::cargo_deny()?;
    for manifest in MANIFESTS {
        let mut deny = command(&cargo_deny, manifest, &["advisories"]);
        match progress::during("fetch advisories", || progress::quiet(&mut deny)) {
            Ok(_) => {}
            Err(error) if error.to_string().contains(NO_DATABASE) => {
                let why = "the database of advisories cannot be reached";
                return Ok(Outcome::LeftOut(why.to_owned()));
            }
            Err(error) => return Ok(Outcome::Failed(format!("{manifest}: {error:#}"))),
        }
    }
    Ok(Outcome::passed(MANIFESTS.join(", ")))
}

fn command(cargo_deny: &Path, manifest: &str, checks: &[&str]) -> Command {
    let mut command = Command::new(cargo_deny);
    command
        .current_dir(workspace::root())
        .args(["--locked", "--manifest-path", manifest, "--config"])
        .arg(workspace::root().join(".deny.toml"))
        .arg("check")
        .args(checks);
    command
}
