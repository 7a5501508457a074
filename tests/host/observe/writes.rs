//! Nothing below the mounts of the cgroups is changed by the agent, of other files its own alone, and nothing is mounted
//! but a bpffs where there is none: the kernel tells who opens a file for writing, and who makes or removes a directory
//! of cgroups.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ballast::model::check::BPFFS;
use ballast::sys::syscall;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::cgroup_writes::{FileWatch, Watch};
use ballast_tests::kube::{Driver, KubeContainer, KubePod, KubeTree, Naming};
use ballast_tests::scratch::own_name;

use super::{UID, eat, limited, pod_of, wait_kills};

/// Pods that come and go together.
const N_PODS: u64 = 4;

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

#[cfg_attr(feature = "privileged", test)]
fn nothing_is_written_below_the_cgroup_mounts() -> Result<()> {
    writes_its_own_alone(Driver::Cgroupfs)
}

#[cfg_attr(feature = "privileged", test)]
fn nothing_is_written_below_the_cgroup_mounts_where_systemd_names_them() -> Result<()> {
    writes_its_own_alone(Driver::Systemd)
}

/// Through a start, pods that come and go, kills, a loss of the agent and its stop, with programs and without.
fn writes_its_own_alone(driver: Driver) -> Result<()> {
    let tree = KubeTree::new("writes", driver)?;
    let mut agent = Agent::observing("observe-writes", &tree)?;
    let mounts_before = mounts()?;
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
        let pods = (0..N_PODS).map(|n| tree.pod(&format!("{n:08x}-0000-4000-8000-000000000000")));
        let pods: Vec<KubePod> = pods.collect::<Result<_>>()?;
        for (pod, n) in pods.iter().zip(70 + N_PODS * round..) {
            let brief = pod.container(Naming::Containerd, n)?;
            brief.run("exit 0")?.wait()?;
        }
        agent.wait("pods come", |status| {
            pods.iter().all(|it| pod_of(status, &it.uid).is_some())
        })?;
        pods.iter().for_each(KubePod::remove);
        agent.wait("they go", |status| {
            pods.iter().all(|it| pod_of(status, &it.uid).is_none())
        })?;
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
    let mounts = mounts()?;
    let gone: Vec<_> = mounts_before.difference(&mounts).collect();
    let made: Vec<_> = mounts.difference(&mounts_before).collect();
    let is_allowed = match made[..] {
        [] => true,
        [one] => is_bpffs(one) && !mounts_before.iter().any(|it| is_bpffs(it)),
        _ => false,
    };
    assert!(
        gone.is_empty() && is_allowed,
        "{gone:?} gone, {made:?} made"
    );
    Ok(())
}

/// Lines of `/proc/self/mountinfo`: the agent has the mount namespace of the test.
fn mounts() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Where programs are pinned.
fn is_bpffs(mount: &str) -> bool {
    mount.split(' ').nth(4) == Some(BPFFS) && mount.contains(" - bpf ")
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
