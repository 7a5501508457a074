//! What the programs of the cluster make outside of its own directory, whatever they are told: kubelet, the API server,
//! containerd with its CNI library, and `ip`.
//!
//! Invariant: what was there before `up` stays.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::processes::POLL;
use crate::debian::remove;
use crate::progress::{self, note};

/// Directories that are removed with all that is in them.
const DIRECTORIES: [&str; 5] = [
    "/run/containerd",
    "/var/lib/kubelet",
    LINKS,
    "/var/log/pods",
    "/var/run/kubernetes",
];

/// The CNI library has a file here for each network of a sandbox, until it takes the sandbox off the network; other
/// runtimes of the machine have theirs.
const RESULTS: &str = "/var/lib/cni/results";

/// Directories that are removed once nothing is in them, the inner one first.
const SHARED: [&str; 2] = [RESULTS, "/var/lib/cni"];

/// kubelet has a link here for each container.
const LINKS: &str = "/var/log/containers";

/// `ip` makes this directory for the first network namespace that has a name, and mounts it on itself.
const NAMESPACES: &str = "/run/netns";

/// The line of [`missing`] where that is not mounted.
const NAMESPACES_MOUNT: &str = "mount /run/netns";

/// A mount whose last user has just ended is busy for a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is missing of these before `up` starts anything, one a line.
pub(super) fn missing() -> Result<String> {
    let directories = DIRECTORIES.into_iter().chain(SHARED).chain([NAMESPACES]);
    let mut missing: Vec<_> = directories.filter(|it| !Path::new(it).exists()).collect();
    if !is_mounted(NAMESPACES)? {
        missing.push(NAMESPACES_MOUNT);
    }
    Ok(missing.join("\n"))
}

/// Removes what was `missing`, and the entries of the cluster in `directory` from what was there. Fails where some of it
/// is left.
pub(super) fn remove_made(missing: &str, directory: &Path) -> Result<()> {
    let was_missing = |what: &str| missing.lines().any(|it| it == what);
    for link in entries(LINKS)? {
        if fs::read_link(&link).is_ok_and(|it| it.starts_with(directory)) {
            remove_file(&link)?;
        }
    }
    for file in entries(RESULTS)? {
        let result = fs::read_to_string(&file).unwrap_or_default();
        if sandbox(&result).is_some_and(|it| it.starts_with(directory)) {
            remove_file(&file)?;
        }
    }
    for path in DIRECTORIES {
        if was_missing(path) {
            remove(Path::new(path))?;
        }
    }
    for path in SHARED {
        if was_missing(path) {
            remove_empty(path)?;
        }
    }
    if was_missing(NAMESPACES_MOUNT) {
        remove_namespaces(was_missing(NAMESPACES))?;
    }
    // A program that lives on would make them again.
    let mut made = DIRECTORIES.into_iter().filter(|it| was_missing(it));
    let left = made.find(|it| Path::new(it).exists());
    ensure!(left.is_none(), "left behind: {}", left.unwrap_or_default());
    Ok(())
}

/// Removes the mount, and the directory if that `was_missing` too. Others may have given names to network namespaces
/// since; both stay then.
fn remove_namespaces(was_missing: bool) -> Result<()> {
    if let [first, ..] = entries(NAMESPACES)?.as_slice() {
        note(format_args!(
            "{NAMESPACES} stays: others have network namespaces there, as {}",
            first.display()
        ));
        return Ok(());
    }
    unmount(|it| it == Path::new(NAMESPACES))?;
    if !was_missing {
        return Ok(());
    }
    match fs::remove_dir(NAMESPACES) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {NAMESPACES}"))
        }
        _ => Ok(()),
    }
}

/// What others have put there since stays.
fn remove_empty(directory: &str) -> Result<()> {
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            note(format_args!("{directory} stays: it has files of others"));
            Ok(())
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {directory}"))
        }
        _ => Ok(()),
    }
}

/// Unmounts what is mounted where `is_ours` says so, the last mounted first.
pub(super) fn unmount(is_ours: impl Fn(&Path) -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mounts = mounts()?;
        let Some(last) = mount_points(&mounts).rfind(|it| is_ours(Path::new(it))) else {
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

/// Where something is mounted in the directory, or on it.
pub(super) fn mounted_in(directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(points_in(&mounts()?, directory))
}

fn points_in(mounts: &str, directory: &Path) -> Vec<PathBuf> {
    let points = mount_points(mounts).map(PathBuf::from);
    points.filter(|it| it.starts_with(directory)).collect()
}

fn is_mounted(path: &str) -> Result<bool> {
    let mounts = mounts()?;
    let is_it = mount_points(&mounts).any(|it| it == path);
    Ok(is_it)
}

fn mounts() -> Result<String> {
    fs::read_to_string("/proc/self/mountinfo").context("read mounts")
}

/// Of the text of `/proc/self/mountinfo`.
fn mount_points(mounts: &str) -> impl DoubleEndedIterator<Item = &str> {
    mounts.lines().filter_map(|it| it.split(' ').nth(4))
}

/// The file of the network namespace of a sandbox, as a file of the CNI library names it.
fn sandbox(result: &str) -> Option<PathBuf> {
    let result: Value = serde_json::from_str(result).ok()?;
    result.get("netns")?.as_str().map(PathBuf::from)
}

/// Paths in a directory, which may not be there.
fn entries(directory: &str) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("read {directory}"))?,
    };
    Ok(entries.flatten().map(|it| it.path()).collect())
}

fn remove_file(path: &Path) -> Result<()> {
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_comes_last() {
        let mounts = "22 27 254:0 /run/netns /run/netns rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      23 22 0:4 net:[4026532] /run/netns/a rw shared:2 - nsfs nsfs rw\n";
        let points: Vec<_> = mount_points(mounts).collect();
        assert_eq!(points, ["/run/netns", "/run/netns/a"]);
    }

    #[test]
    fn a_mount_of_another_directory_is_none_of_the_cluster() {
        let mounts = "22 27 254:0 / /var/lib/a rw shared:1 - tmpfs none rw\n\
                      23 22 0:4 / /var/lib/a/state/b rw shared:2 - tmpfs none rw\n\
                      24 27 0:5 / /var/lib/ab rw shared:3 - tmpfs none rw\n";
        let points = points_in(mounts, Path::new("/var/lib/a"));
        let right = ["/var/lib/a", "/var/lib/a/state/b"].map(PathBuf::from);
        assert_eq!(points, right);
        assert!(points_in(mounts, Path::new("/var/lib/b")).is_empty());
    }

    #[test]
    fn a_file_of_the_cni_library_names_its_sandbox() {
        let result = r#"{"kind":"cniCacheV1","containerId":"83a6","ifName":"eth0","networkName":"pods",
            "netns":"/var/lib/a/state/netns/cni-1","cniArgs":[["K8S_POD_NAME","b"]],"result":{"ips":[]}}"#;
        let of = Some(PathBuf::from("/var/lib/a/state/netns/cni-1"));
        assert_eq!(sandbox(result), of);
        for other in ["", "{}", r#"{"netns":1}"#, "no JSON"] {
            assert_eq!(sandbox(other), None, "{other}");
        }
    }
}
