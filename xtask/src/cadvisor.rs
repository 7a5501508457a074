//! cAdvisor, which the lane `storm` and the benchmark hold the agent against.
//!
//! The last that Debian packages is that of Debian 11, 0.38. It reads the raw cgroups of v1, where
//! the figures of later ones come from the same files.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::debian::{self, fill};
use crate::progress::headline;
use crate::workspace;

/// The variable that tells a test where it is.
pub(crate) const PROGRAM: &str = "BALLAST_CADVISOR";

/// The one that tells why it is missing, which is then no fault of the test's.
pub(crate) const WITHOUT: &str = "BALLAST_WITHOUT_CADVISOR";

/// The module of the tests that need it.
pub(crate) const TESTS: &str = "cadvisor::";

const SUITE: &str = "bullseye";

/// With its version, for which the list of deviations is made.
const PACKAGE: &str = "cadvisor=0.38.7+ds1-2+b7";

/// The program in the cache, fetched first if it is not there. The error says why it cannot be had
/// here.
pub(crate) fn program() -> Result<PathBuf> {
    ensure!(
        env::consts::ARCH == "x86_64",
        "the package of cAdvisor is for x86_64, this is {}",
        env::consts::ARCH
    );
    ensure!(
        !Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        "cAdvisor 0.38 reads no raw cgroups of v2"
    );
    let directory = workspace::cache()?.join("programs").join(PACKAGE);
    if !directory.exists() {
        headline(format_args!("fetch {PACKAGE} from Debian {SUITE}"));
        fill(&directory, fetch).context("fetch cAdvisor")?;
    }
    Ok(directory.join("cadvisor"))
}

/// What it needs besides, the C library and libzstd, every Debian and Ubuntu has.
fn fetch(directory: &Path) -> Result<()> {
    let unpacked = directory.join("unpacked");
    debian::fetch(SUITE, &[PACKAGE], &unpacked)?;
    fs::rename(
        unpacked.join("usr/bin/cadvisor"),
        directory.join("cadvisor"),
    )
    .context("keep the program")?;
    fs::remove_dir_all(&unpacked).context("remove the rest of the package")
}
