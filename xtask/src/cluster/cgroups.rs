//! The node's cgroup root: the same directory in each hierarchy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::processes::Process;
use super::settings::NAME;

/// A removed cgroup whose processes have just ended is busy for a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// The node's root in each hierarchy that is mounted below `/sys/fs/cgroup`.
pub(super) fn roots() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    let mut points: Vec<_> = mount_points(&mounts)
        .map(|it| Path::new(it).join(NAME))
        .collect();
    points.dedup();
    Ok(points)
}

/// Where cgroup file systems are mounted as a whole.
fn mount_points(mounts: &str) -> impl Iterator<Item = &str> {
    mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let is_cgroup = kind.starts_with("cgroup ") || kind.starts_with("cgroup2 ");
        (is_cgroup && root == "/" && point.starts_with("/sys/fs/cgroup")).then_some(point)
    })
}

/// Makes the root; a cpuset of v1 has no CPUs until it is told which.
pub(super) fn make() -> Result<()> {
    for root in roots()? {
        fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (root.with_file_name(file), root.join(file));
            // A hierarchy without this controller has no such file, and v2's root none.
            if let (Ok(value), true) = (fs::read_to_string(&from), to.exists()) {
                fs::write(&to, value).with_context(|| format!("write {}", to.display()))?;
            }
        }
        let enable = root.with_file_name("cgroup.subtree_control");
        if enable.exists() {
            let controllers = fs::read_to_string(root.with_file_name("cgroup.controllers"));
            let controllers =
                controllers.with_context(|| format!("read beside {}", root.display()))?;
            for controller in controllers.split_whitespace() {
                fs::write(&enable, format!("+{controller}"))
                    .with_context(|| format!("enable {controller} in {}", enable.display()))?;
            }
        }
    }
    Ok(())
}

/// The processes in the root and below.
pub(super) fn processes() -> Result<Vec<Process>> {
    let mut processes: Vec<Process> = Vec::new();
    for root in roots()? {
        for directory in tree(&root)? {
            let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            let found = pids.lines().filter_map(|it| Process::of(it.parse().ok()?));
            for process in found {
                if !processes.contains(&process) {
                    processes.push(process);
                }
            }
        }
    }
    Ok(processes)
}

/// Removes the root and all below, in each hierarchy.
pub(super) fn remove() -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for root in roots()? {
        for directory in tree(&root)?.iter().rev() {
            loop {
                match fs::remove_dir(directory) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
                    Err(error) => bail!("remove {}: {error}", directory.display()),
                }
            }
        }
    }
    Ok(())
}

/// A directory and all below, each before what is in it.
fn tree(root: &Path) -> Result<Vec<PathBuf>> {
    if !root.exists() {
        return Ok(Vec::new());
    }
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        next += 1;
        // A cgroup may go while one looks.
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        found.extend(
            entries
                .filter(|it| it.file_type().is_ok_and(|it| it.is_dir()))
                .map(|it| it.path()),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_hierarchies_have_the_root() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 23 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 none rw\n\
                      32 23 0:27 /a /mnt rw - cgroup2 none rw\n\
                      33 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n";
        let points: Vec<_> = mount_points(mounts).collect();
        assert_eq!(points, ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"]);
    }
}
