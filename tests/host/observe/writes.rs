//! Nothing below the mounts of the cgroups is changed by the agent, and of other files its own alone: the kernel tells
//! who opens a file for writing, and who makes or removes a directory of cgroups.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ballast::sys::syscall;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::cgroup_writes::{FileWatch, Watch};
use ballast_tests::kube::{Driver, KubeContainer, KubeTree};
use ballast_tests::scratch::own_name;

use super::{STATIC_UID, UID, eat, limited, pod_of, wait_kills};

/// Files below the cgroup mounts that a process holds open for writing.
fn held_for_writing(pid: u32) -> Result<Vec<PathBuf>> {
    let mut held = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        // It may be closed by now.
        let Ok(target) = std::fs::read_link(&path) else {
            continue;
        };
        let name = path.file_name().context("a number")?;
        let info = PathBuf::from(format!("/proc/{pid}/fdinfo")).join(name);
        let Ok(info) = std::fs::read_to_string(info) else {
            continue;
        };
        let flags = info.lines().find_map(|it| it.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.context("flags")?.trim(), 8)?;
        if target.starts_with("/sys/fs/cgroup") && flags & 0o3 != 0 {
            held.push(target);
        }
    }
    Ok(held)
}

/// Through a start, pods that come and go, kills, a loss of the agent and its stop, with programs and without.
#[cfg_attr(feature = "privileged", test)]
fn nothing_is_written_below_the_cgroup_mounts() -> Result<()> {
    let tree = KubeTree::new("writes", Driver::Cgroupfs)?;
    let mut agent = Agent::observing("observe-writes", &tree)?;
    let (watch, files) = (Watch::new()?, FileWatch::new()?);
    // The watch works: this process has made what is seen.
    let first = tree.pod(UID)?;
    ensure!(
        watch.writers()?.contains(&std::process::id()),
        "nothing is watched"
    );
    let own = std::env::temp_dir().join(own_name("seen"));
    fs::write(&own, "")?;
    let seen = files.files_of(&BTreeSet::from([std::process::id()]))?;
    fs::remove_file(&own)?;
    ensure!(seen.contains(&own), "{seen:?}");
    let mut agents = BTreeSet::new();
    // Nobody removes it.
    let stays = limited(&first, 60)?;
    let attached = device_programs(&stays)?;
    for round in 0..3 {
        agent.is_without_programs = round == 2;
        agent.start()?;
        let pid = agent.pid().context("it runs")?;
        agents.insert(pid);
        let container = limited(&first, 61 + round)?;
        eat(&container)?;
        wait_kills(&agent, 1)?;
        container.remove();
        let other = tree.pod(STATIC_UID)?;
        agent.wait("a pod comes", |it| pod_of(it, STATIC_UID).is_some())?;
        other.remove();
        agent.wait("it goes", |it| pod_of(it, STATIC_UID).is_none())?;
        assert_eq!(held_for_writing(pid)?, Vec::<PathBuf>::new());
        assert_eq!(device_programs(&stays)?, attached, "programs on cgroups");
        match round {
            0 => agent.kill()?,
            _ => agent.stop()?,
        }
    }
    let writers: BTreeSet<u32> = watch.writers()?.into_iter().collect();
    let own: Vec<_> = writers.intersection(&agents).collect();
    assert_eq!(own, Vec::<&u32>::new(), "the agent has written");
    let written = files.files_of(&agents)?;
    // Its configuration is somebody else's.
    let files = [agent.socket(), agent.dir.join("agent.log")];
    let directories = [agent.state(), agent.pin_directory.clone()];
    let is_own =
        |it: &&PathBuf| files.contains(it) || directories.iter().any(|own| it.starts_with(own));
    let (own, others): (Vec<_>, Vec<_>) = written.iter().partition(is_own);
    assert!(!own.is_empty() && others.is_empty(), "{others:?}");
    Ok(())
}

/// Ids of the device programs that hang on the cgroup of a container and on all above it: of all programs that an agent
/// loads, those of devices alone can be attached to a cgroup.
fn device_programs(container: &KubeContainer) -> Result<Vec<(PathBuf, Vec<u32>)>> {
    let path = container.path.trim_start_matches('/');
    let mut found = Vec::new();
    let mount = cgroup::unified_mount().context("no cgroup2 hierarchy, which can have programs")?;
    for dir in mount.join(path).ancestors() {
        if !dir.starts_with(&mount) {
            break;
        }
        let ids = syscall::device_programs(File::open(dir)?.as_fd());
        found.push((dir.to_owned(), ids.context("device programs")?));
    }
    Ok(found)
}
