//! What the programs of the cluster make outside of its own directory, whatever they are told: kubelet, the API server
//! and containerd.
//!
//! Invariant: what was there before `up` stays.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::processes::POLL;
use crate::debian::remove;
use crate::progress;

/// Directories that are removed with all that is in them.
const DIRECTORIES: [&str; 5] = [
    "/run/containerd",
    "/var/lib/kubelet",
    LINKS,
    "/var/log/pods",
    "/var/run/kubernetes",
];

/// kubelet has a link here for each container.
const LINKS: &str = "/var/log/containers";

/// A mount whose last user has just ended is busy for a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which of these `up` finds missing, one a line.
pub(super) fn missing() -> String {
    let missing: Vec<_> = DIRECTORIES
        .into_iter()
        .filter(|it| !Path::new(it).exists())
        .collect();
    missing.join("\n")
}

/// Removes what was `missing`, and from the directories that were there what is of the cluster in `directory`.
pub(super) fn remove_made(missing: &str, directory: &Path) -> Result<()> {
    remove_links(Path::new(LINKS), directory)?;
    missing.lines().try_for_each(|it| remove(Path::new(it)))
}

/// Unmounts what lies below `directory`, the last mounted first.
pub(super) fn unmount(directory: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mounts")?;
        let mut points = mounts.lines().filter_map(|it| it.split(' ').nth(4));
        let Some(last) = points.rfind(|it| Path::new(it).starts_with(directory)) else {
            return Ok(());
        };
        if let Err(error) = progress::quiet(Command::new("umount").arg(last)) {
            if Instant::now() >= deadline {
                return Err(error);
            }
            thread::sleep(POLL);
        }
    }
}

/// Removes the links of `from` that lead into `directory`.
fn remove_links(from: &Path, directory: &Path) -> Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("read {}", from.display()))?,
    };
    for entry in entries.flatten() {
        let leads_here = fs::read_link(entry.path()).is_ok_and(|it| it.starts_with(directory));
        if leads_here {
            fs::remove_file(entry.path())
                .with_context(|| format!("remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}
