//! Cgroups as anybody sees them: mounts, directories, files, processes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::comes_true;

/// Mount points of the cgroup hierarchies, v1 and v2.
pub fn mounts() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let path = fields.next()?;
            let kind = fields.next()?;
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(path))
        })
        .collect()
}

/// True on a node whose controllers are on cgroup v2.
pub fn is_unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The mount of the cgroup2 hierarchy, with controllers or without; `None`: there is none.
pub fn unified_mount() -> Option<PathBuf> {
    let mut mounts = mounts().into_iter();
    // The file that this hierarchy has, and no other.
    mounts.find(|it| it.join("cgroup.controllers").exists())
}

/// The mount of the hierarchy with a controller.
pub fn mount_of(controller: &str) -> PathBuf {
    match is_unified() {
        true => PathBuf::from("/sys/fs/cgroup"),
        false => Path::new("/sys/fs/cgroup").join(controller),
    }
}

/// A file of a cgroup, whose path counts from the mount, without its line end.
pub fn read(controller: &str, cgroup_path: &str, file: &str) -> Result<String> {
    let path = dir_of(controller, cgroup_path).join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}

pub fn write(controller: &str, cgroup_path: &str, file: &str, value: &str) -> Result<()> {
    let path = dir_of(controller, cgroup_path).join(file);
    fs::write(&path, value).with_context(|| format!("write {value:?} to {}", path.display()))
}

/// The file of a cgroup's limit of memory, bytes.
pub fn memory_limit_file() -> &'static str {
    match is_unified() {
        true => "memory.max",
        false => "memory.limit_in_bytes",
    }
}

/// The id by which the kernel tells of a cgroup.
pub fn id(controller: &str, cgroup_path: &str) -> Result<u64> {
    let dir = dir_of(controller, cgroup_path);
    let metadata = fs::metadata(&dir).with_context(|| format!("look at {}", dir.display()))?;
    Ok(metadata.ino())
}

pub fn dir_of(controller: &str, cgroup_path: &str) -> PathBuf {
    mount_of(controller).join(cgroup_path.trim_start_matches('/'))
}

/// OOM kills in a cgroup and, on v2, below it, as the kernel counts them. v1 counts a kill at the
/// victim's own cgroup.
pub fn oom_kills(cgroup_path: &str) -> Result<u64> {
    let file = match is_unified() {
        true => "memory.events",
        false => "memory.oom_control",
    };
    let text = read("memory", cgroup_path, file)?;
    let count = text.lines().find_map(|it| it.strip_prefix("oom_kill "));
    Ok(count.context("no oom_kill in it")?.parse()?)
}

/// What is charged to a cgroup and those below it, bytes.
pub fn memory_usage(cgroup_path: &str) -> Result<u64> {
    let file = match is_unified() {
        true => "memory.current",
        false => "memory.usage_in_bytes",
    };
    Ok(read("memory", cgroup_path, file)?.parse()?)
}

/// CPU time that a cgroup and those below it have used.
pub fn cpu_usage(cgroup_path: &str) -> Result<Duration> {
    if !is_unified() {
        let ns = read("cpuacct", cgroup_path, "cpuacct.usage")?;
        return Ok(Duration::from_nanos(ns.parse()?));
    }
    let text = read("cpu", cgroup_path, "cpu.stat")?;
    let us = text.lines().find_map(|it| it.strip_prefix("usage_usec "));
    let us = us.context("no usage_usec in it")?;
    Ok(Duration::from_micros(us.parse()?))
}

/// OOM kills of the whole machine since boot.
pub fn kernel_kills() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let count = text.lines().find_map(|it| it.strip_prefix("oom_kill "));
    Ok(count.context("no oom_kill in /proc/vmstat")?.parse()?)
}

/// Processes of one directory, without those of its children and of other pid namespaces, which
/// read as 0.
pub fn procs(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter(|pid| *pid > 0)
        .collect()
}

/// The directories of a cgroup, one per hierarchy that has it.
pub fn dirs_in_all(cgroup_path: &str) -> Vec<PathBuf> {
    mounts()
        .into_iter()
        .map(|mount| mount.join(cgroup_path.trim_start_matches('/')))
        .filter(|dir| dir.is_dir())
        .collect()
}

/// Kills everything in a cgroup and below it and removes the directories that are empty by now.
/// Best effort: the caller comes back until nothing is left.
pub fn clear(dir: &Path) {
    // Where a killed agent left it frozen, v1 lets nothing die.
    if dir.join("freezer.state").exists() {
        fs::write(dir.join("freezer.state"), "THAWED").ok();
    }
    for child in sub_dirs(dir) {
        clear(&child);
    }
    kill_all(dir);
    fs::remove_dir(dir).ok();
}

/// Kills the processes right in a cgroup.
pub fn kill_all(dir: &Path) {
    let pids = procs(dir).into_iter();
    for pid in pids.filter_map(|it| i32::try_from(it).ok()) {
        // It may have ended since.
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    }
}

/// Kills everything in a cgroup and below it and removes it, in all hierarchies; says what it could not
/// remove. For tidying up.
pub fn remove_in_all(cgroup_path: &str) {
    let is_gone = comes_true(|| {
        let dirs = dirs_in_all(cgroup_path);
        dirs.iter().for_each(|it| clear(it));
        dirs.is_empty()
    });
    if !is_gone {
        eprintln!("left over: {:?}", dirs_in_all(cgroup_path));
    }
}

/// Sub-directories, sorted; none for a directory that is gone.
pub fn sub_dirs(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir() && !path.is_symlink())
        .collect();
    dirs.sort();
    dirs
}
