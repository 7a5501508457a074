//! What the monitoring lane runs: Prometheus and Alertmanager from Debian's packages, unpacked into
//! the cache. Nothing is installed, so no service starts and none is left.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::debian::{self, fill};
use crate::progress::headline;
use crate::workspace;

/// The release with Prometheus 2.42, which knows native histograms and is old enough to be a test
/// of the text format, and Alertmanager 0.25.
const SUITE: &str = "bookworm";

const PACKAGES: [&str; 2] = ["prometheus", "prometheus-alertmanager"];

/// Programs of the packages that run from wherever they are.
const PROGRAMS: [&str; 3] = ["prometheus", "promtool", "amtool"];

/// Debian's Alertmanager looks for its templates at their place in the system, and does not start
/// without them. It sees them there, and nobody else does.
const ALERTMANAGER: &str = r#"#!/bin/sh
exec unshare --mount --map-root-user sh -euc '
    root=$1; shift
    mount -t overlay none -o "lowerdir=$root/usr/share:/usr/share" /usr/share
    exec "$root/usr/bin/prometheus-alertmanager" "$@"
' sh "$(dirname "$(dirname "$(readlink -f "$0")")")" "$@"
"#;

/// The directory of the programs in the cache; they are fetched first if they are not there.
pub(crate) fn programs() -> Result<PathBuf> {
    let root = workspace::cache()?.join(directory(&recipe()));
    if !root.exists() {
        headline(format_args!("fetch {} from Debian", PACKAGES.join(", ")));
        fill(&root, fetch).context("fetch Prometheus and Alertmanager")?;
    }
    Ok(root.join("bin"))
}

/// The name of the directory: checkouts that want another content each have their own.
fn directory(recipe: &str) -> String {
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    format!("monitoring-{SUITE}-{:016x}", hasher.finish())
}

/// All that decides what the directory holds.
fn recipe() -> String {
    let (packages, programs) = (PACKAGES.join(" "), PROGRAMS.join(" "));
    format!("{SUITE}: {packages}: {programs}\n{ALERTMANAGER}")
}

fn fetch(directory: &Path) -> Result<()> {
    // Not what they depend on: that is the C library, and parts of their web pages.
    debian::fetch(SUITE, &PACKAGES, directory)?;
    let bin = directory.join("bin");
    fs::create_dir(&bin).with_context(|| format!("create {}", bin.display()))?;
    for program in PROGRAMS {
        symlink(Path::new("../usr/bin").join(program), bin.join(program))
            .with_context(|| format!("link {program}"))?;
    }
    let script = bin.join("prometheus-alertmanager");
    fs::write(&script, ALERTMANAGER)
        .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("write {}", script.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_recipe_is_another_directory() {
        assert_eq!(directory("a"), directory("a"));
        assert_ne!(directory("a"), directory("b"));
    }
}
