//! What a pod leaves on the disk, and what must outlive it: others' files that are mounted into its
//! volumes. `mount` and `chattr` of the machine make the scenes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::model::status::PodEntry;
use ballast_tests::agent::{Agent, hog};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scratch::{Scratch, own_name};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::look::{is_running, pid_of, pod_dir, pod_path};
use super::{leave_out, say, scaled};

fn program(name: &str, args: &[&Path]) -> Result<()> {
    let mut command = Command::new(name);
    command.args(args);
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}

/// Nobody in particular.
fn unprivileged() -> serde_json::Value {
    serde_json::json!({"runAsUser": 12345})
}

fn volume(agent: &Agent, pod: &PodEntry) -> PathBuf {
    pod_dir(&agent.state(), pod).join("volumes/shared")
}

/// Everything below the directories of pods and logs but the records.
fn leftovers(agent: &Agent) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for directory in ["pods", "logs"] {
        let directory = agent.state().join(directory);
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries {
            found.push(entry?.path().display().to_string());
        }
    }
    Ok(found)
}

fn wait_removed(agent: &Agent) -> Result<()> {
    agent.wait("no pod is left", |it| it.pods.is_empty())?;
    agent.wait_for("nothing of it is left", || Ok(leftovers(agent)?.is_empty()))
}

/// A mount that the test takes back whatever happens.
pub(super) struct Mounted(pub(super) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Gone already, unless the agent failed.
        nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH).ok();
    }
}

fn bind(what: &Path, at: &Path) -> Result<Mounted> {
    program("mount", &[Path::new("--bind"), what, at])?;
    Ok(Mounted(at.to_owned()))
}

/// A directory, a directory on another file system and a file, bound into a volume: all three keep
/// what is in them, and are mounted there no more.
#[cfg_attr(feature = "privileged", test)]
fn what_is_mounted_in_a_volume_outlives_its_pod() -> Result<()> {
    let mut agent = Agent::new("bind")?;
    agent.start()?;
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let data = agent.dir.join("data");
    fs::create_dir_all(data.join("deep/er"))?;
    fs::write(data.join("deep/er/kept"), "kept")?;
    let volume = volume(&agent, &pod);
    fs::create_dir_all(volume.join("below/data"))?;
    fs::create_dir_all(volume.join("below/run"))?;
    fs::write(volume.join("file"), "")?;
    let _mounts = [
        bind(&data, &volume.join("below/data"))?,
        // Twice at one place: the lower one has to go as well.
        bind(&data, &volume.join("below/data"))?,
        bind(Path::new("/run"), &volume.join("below/run"))?,
        bind(&data.join("deep/er/kept"), &volume.join("file"))?,
    ];
    let marker = Path::new("/run").join(own_name("files"));
    fs::write(&marker, "kept")?;
    agent.remove_pod("pod")?;
    let removed = wait_removed(&agent);
    let is_kept = |path: &Path| fs::read_to_string(path).is_ok_and(|it| it == "kept");
    let (in_data, in_run) = (is_kept(&data.join("deep/er/kept")), is_kept(&marker));
    fs::remove_file(&marker).ok();
    assert!(in_data, "files of the bound directory are gone");
    assert!(in_run, "files of the other file system are gone");
    removed?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let state = agent.state().display().to_string();
    let left: Vec<&str> = mounts.lines().filter(|it| it.contains(&state)).collect();
    assert!(left.is_empty(), "{left:#?}");
    Ok(())
}

/// Sizes of the file systems that are mounted in a pod's volumes, by volume.
fn mounted_in(agent: &Agent, pod: &PodEntry) -> Result<Vec<(String, u64)>> {
    let volumes = pod_dir(&agent.state(), pod).join("volumes");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|it| it.split(' ').nth(4));
    let names = points.filter_map(|it| Path::new(it).strip_prefix(&volumes).ok());
    let size = |name: &Path| {
        let stat = nix::sys::statvfs::statvfs(&volumes.join(name))?;
        Ok((
            name.display().to_string(),
            stat.blocks() * stat.fragment_size(),
        ))
    };
    let mut sizes = names.map(size).collect::<Result<Vec<_>>>()?;
    sizes.sort();
    Ok(sizes)
}

/// A volume in memory takes what its limit says and no more, counts as memory of the pod that writes
/// it and not as its disk, is the same one after a container and the agent were started again, and
/// goes with its pod.
#[cfg_attr(feature = "privileged", test)]
fn a_volume_in_memory_is_bounded_and_counted_as_memory() -> Result<()> {
    const MIB: u64 = 1 << 20;
    let mut agent = Agent::new("tmpfs")?;
    agent.start()?;
    let volumes = serde_json::json!([
        {"name": "bounded", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "free", "emptyDir": {"medium": "Memory"}},
        {"name": "disk", "emptyDir": {}},
    ]);
    let script = "[ -e volumes/free/kept ] && echo again && exec sleep 3600
        dd if=/dev/zero of=volumes/bounded/full bs=1M count=16; echo $? >volumes/disk/result
        dd if=/dev/zero of=volumes/free/kept bs=1M count=16 && exit 1";
    let container = Container::sh("app", script)
        .with("securityContext", unprivileged())
        .limited_to(64);
    let manifest = Manifest::new("pod").with("volumes", volumes);
    let manifest = manifest.with("restartPolicy", "Always".into());
    agent.put(&manifest.container(container))?;
    // Its second start, after it has filled both.
    let pod = agent.wait_pod("pod", "runs again", |it| {
        is_running(it) && it.containers.iter().all(|it| it.restarts == 1)
    })?;
    let sizes = mounted_in(&agent, &pod)?;
    let expected = [
        ("bounded".to_owned(), 8 * MIB),
        ("free".to_owned(), 64 * MIB),
    ];
    assert_eq!(sizes, expected);
    let directory = pod_dir(&agent.state(), &pod).join("volumes");
    assert_eq!(fs::metadata(directory.join("bounded/full"))?.len(), 8 * MIB);
    assert_eq!(fs::metadata(directory.join("free/kept"))?.len(), 16 * MIB);
    assert_eq!(fs::read_to_string(directory.join("disk/result"))?, "1\n");

    let usage = ballast_tests::cgroup::memory_usage(pod_path(&pod)?)?;
    assert!(usage >= 24 * MIB, "{usage} bytes for 24 MiB of files");

    agent.kill()?;
    agent.start()?;
    let pod = agent.wait_pod("pod", "still runs", is_running)?;
    agent.wait_for("they are shown as file systems of their own", || {
        let stats = agent.stats()?;
        let shown = stats.pods.iter().flat_map(|it| &it.volume_file_systems);
        let shown: Vec<_> = shown
            .map(|(name, it)| (name.clone(), it.capacity))
            .collect();
        Ok(shown == expected)
    })?;
    let pid = pid_of(&pod, "app").context("it runs")?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(pid)?),
        nix::sys::signal::Signal::SIGKILL,
    )?;
    agent.wait_pod("pod", "runs a third time", |it| {
        is_running(it) && pid_of(it, "app") != Some(pid)
    })?;
    assert_eq!(mounted_in(&agent, &pod)?, expected);
    assert_eq!(fs::metadata(directory.join("free/kept"))?.len(), 16 * MIB);

    agent.remove_pod("pod")?;
    wait_removed(&agent)?;
    assert!(mounted_in(&agent, &pod)?.is_empty());
    Ok(())
}

/// By the default route; empty where there is none.
fn address_by_iproute() -> Result<String> {
    for away in ["192.0.2.1", "2001:db8::1"] {
        let mut command = Command::new("ip");
        let output = command.args(["-o", "route", "get", away]).output();
        let route = String::from_utf8(output.context("run ip")?.stdout)?;
        let mut words = route.split_whitespace();
        if words.any(|it| it == "src") {
            return Ok(words.next().context("an address")?.to_owned());
        }
    }
    Ok(String::new())
}

/// A program that only a group may read starts, and a volume of the host is made, or waited for, as its type says;
/// whatever umask the agent is started with.
#[cfg_attr(feature = "privileged", test)]
fn groups_and_volumes_of_the_host_are_those_of_the_pod() -> Result<()> {
    let mut agent = Agent::new("host-path")?;
    agent.start_by(&[], "umask 077; exec \"$@\"");
    agent.start()?;
    let host = Scratch::new("host-path")?;
    let path = |name: &str| host.path(name).display().to_string();
    let volumes = serde_json::json!([
        {"name": "shared", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "untold", "hostPath": {"path": path("untold/deep")}},
        {"name": "made", "hostPath": {"path": path("made"), "type": "DirectoryOrCreate"}},
        {"name": "file", "hostPath": {"path": path("file"), "type": "FileOrCreate"}},
        {"name": "there", "hostPath": {"path": path("there"), "type": "Directory"}},
        {"name": "unused", "hostPath": {"path": path("unused"), "type": "Directory"}},
    ]);
    let groups = serde_json::json!({
        "runAsUser": 12345, "runAsGroup": 2345, "supplementalGroups": [77], "fsGroup": 88,
    });
    let script = "id -G >volumes/shared/groups; echo $NODE >volumes/shared/address
        echo it >volumes/memory/it; exec sleep 3600";
    let of_node = serde_json::json!([
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]);
    let mount = |(name, at)| serde_json::json!({"name": name, "mountPath": path(at)});
    let mounted = [
        ("untold", "untold/deep"),
        ("made", "made"),
        ("file", "file"),
        ("there", "there"),
    ];
    let part = |name: &str| {
        let at = format!("/part/of/{name}");
        serde_json::json!({"name": name, "mountPath": at, "subPath": "part/of"})
    };
    let mut mounts = mounted.map(mount).to_vec();
    mounts.extend(["shared", "memory"].map(part));
    let container = Container::sh("app", script)
        .with("volumeMounts", mounts.into())
        .with("env", of_node);
    let manifest = Manifest::new("pod")
        .with("restartPolicy", "Always".into())
        .with("volumes", volumes)
        .with("securityContext", groups);
    agent.put(&manifest.container(container))?;
    let missing = format!(
        "hostPath type check failed: {} is not a directory",
        path("there")
    );
    let told = agent.wait_events("the start is held", "container", |it| {
        it.iter().any(|it| it.event.message.contains(&missing))
    })?;
    assert!(
        told.iter().all(|it| it.event.reason != "Failed"),
        "{told:#?}"
    );
    fs::create_dir(host.path("there"))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let volumes = pod_dir(&agent.state(), &pod).join("volumes");
    let written =
        || Ok(fs::read_to_string(volumes.join("memory/it")).is_ok_and(|it| !it.is_empty()));
    agent.wait_for("it has written", written)?;
    assert_eq!(
        fs::read_to_string(volumes.join("shared/groups"))?,
        "2345 77 88\n"
    );
    let address = fs::read_to_string(volumes.join("shared/address"))?;
    assert_eq!(address.trim(), address_by_iproute()?);
    let parts = ["shared/part/of", "memory/part/of"];
    let files = ["shared", "shared/groups", "memory", "memory/it"];
    for file in files.iter().chain(&parts) {
        assert_eq!(fs::metadata(volumes.join(file))?.gid(), 88, "{file}");
    }
    for part in parts {
        let mode = fs::metadata(volumes.join(part))?.mode();
        assert_eq!(mode & 0o7777, 0o2777, "{part}");
    }
    for directory in ["untold/deep", "made"] {
        assert!(host.path(directory).is_dir(), "{directory}");
    }
    assert!(host.path("file").is_file());
    assert!(!host.path("unused").exists());
    // Once it has started it is not looked at again.
    fs::remove_dir(host.path("there"))?;
    let first = pid_of(&pod, "app").context("it runs")?;
    kill(Pid::from_raw(i32::try_from(first)?), Signal::SIGKILL)?;
    agent.wait_pod("pod", "runs again", |it| {
        pid_of(it, "app").is_some_and(|it| it != first)
    })?;
    // The volume in memory would stay mounted.
    agent.remove_pod("pod")?;
    wait_removed(&agent)
}

/// Bytes on the disk below the logs, and the longest file there.
fn logs(agent: &Agent) -> Result<(u64, u64)> {
    let (mut allocated, mut longest) = (0, 0);
    let mut directories = vec![agent.state().join("logs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // Rotated and removed in between.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                directories.push(entry.path());
            } else {
                allocated += metadata.blocks() * 512;
                longest = longest.max(metadata.len());
            }
        }
    }
    Ok((allocated, longest))
}

/// By a container without privileges: a hole of 4 GiB, and output as fast as it goes. What is kept is
/// within the bound a moment later, and the pod's own output is there.
#[cfg_attr(feature = "privileged", test)]
fn output_of_any_length_is_kept_within_its_bound() -> Result<()> {
    let mut agent = Agent::new("output")?
        .with_kubelet("containerLogMaxSize: 1Mi")
        .with_kubelet("containerLogMaxFiles: 3");
    agent.start()?;
    let flood = scaled(800, 100)?;
    let script = format!(
        "{} hole {} && echo behind && while [ ! -e volumes/shared/go ]; do sleep 0.1; done && \
         head -c {} /dev/zero && echo last >&2 && : >volumes/shared/done && exec sleep 3600",
        hog()?,
        4u64 << 30,
        u64::from(flood) << 20
    );
    let container = Container::sh("app", &script).with("securityContext", unprivileged());
    agent.put(&Manifest::new("pod").container(container))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    agent.wait_for("the hole is cut", || {
        let (allocated, longest) = logs(&agent)?;
        ensure!(allocated < 64 << 20, "{allocated} bytes for a hole");
        Ok(longest > 0 && longest < 4 << 20)
    })?;
    fs::write(volume(&agent, &pod).join("go"), "")?;
    // It has ended before anybody looked.
    let brief = Container::sh("app", "head -c 60000000 /dev/zero");
    let brief = Manifest::new("brief").container(brief);
    agent.put(&brief.with("restartPolicy", serde_json::json!("Never")))?;
    let done = volume(&agent, &pod).join("done");
    let mut most = 0;
    agent.wait_for("the output is written", || {
        most = most.max(logs(&agent)?.0);
        Ok(done.exists())
    })?;
    agent.wait_pod("brief", "ends", |it| it.phase.to_string() == "Succeeded")?;
    let is_bounded = || Ok(logs(&agent)?.0 <= 8 << 20);
    agent.wait_for("it is within its bound", is_bounded)?;
    thread::sleep(Duration::from_secs(3));
    assert!(is_bounded()?);
    say(format!(
        "{} MiB at most on the disk, of {flood}",
        most >> 20
    ));
    Ok(())
}

/// Made by a container without privileges; it ended the agent, and the one after it.
#[cfg_attr(feature = "privileged", test)]
fn thirty_thousand_nested_directories_go_like_any_others() -> Result<()> {
    let mut agent = Agent::new("nested")?;
    agent.start()?;
    let script = format!(
        "cd volumes/shared && {} nest {} && : >done && exec sleep 3600",
        hog()?,
        scaled(30_000, 10_000)?
    );
    let container = Container::sh("app", &script).with("securityContext", unprivileged());
    agent.put(&Manifest::new("pod").container(container))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let done = volume(&agent, &pod).join("done");
    agent.wait_for("the directories are made", || Ok(done.exists()))?;
    let pid = agent.pid();
    agent.remove_pod("pod")?;
    wait_removed(&agent)?;
    agent.status()?;
    assert_eq!(agent.pid(), pid);
    Ok(())
}

/// The rest goes, it is told once, the name is free at once, and what can be removed later is.
#[cfg_attr(feature = "privileged", test)]
fn a_file_that_cannot_be_removed_holds_nobody_up() -> Result<()> {
    let mut agent = Agent::new("immutable")?;
    agent.start()?;
    let manifest = Manifest::new("pod").container(Container::idle("app"));
    agent.put(&manifest)?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let volume = volume(&agent, &pod);
    for name in ["kept", "other"] {
        fs::write(volume.join(name), "")?;
    }
    if let Err(error) = program("chattr", &[Path::new("+i"), &volume.join("kept")]) {
        leave_out(format_args!("a file that cannot be removed: {error:#}"));
        return Ok(());
    }
    let shown = || -> Result<()> {
        agent.remove_pod("pod")?;
        agent.wait("no pod is left", |it| it.pods.is_empty())?;
        agent.put(&manifest)?;
        let again = agent.wait_pod("pod", "runs again", is_running)?;
        ensure!(pid_of(&again, "app") != pid_of(&pod, "app"));
        ensure!(
            fs::read_dir(&volume)?.next().is_none(),
            "the volume is an old one"
        );
        // Tried some more times by then.
        thread::sleep(Duration::from_secs(4));
        let told = agent.events("node")?;
        let told = told.iter().filter(|it| it.event.reason == "PodFilesRemain");
        let told: Vec<&str> = told.map(|it| it.event.message.as_str()).collect();
        ensure!(
            matches!(told[..], [it] if it.contains("shared/kept")),
            "once: {told:#?}"
        );
        agent.remove_pod("pod")?;
        agent.wait("no pod is left", |it| it.pods.is_empty())?;
        Ok(())
    }();
    // Whatever came of it: nobody could remove the directory of this test.
    let mut n_kept = 0;
    for directory in fs::read_dir(agent.state().join("pods"))? {
        let kept = directory?.path().join("volumes/shared/kept");
        if kept.exists() {
            n_kept += 1;
            program("chattr", &[Path::new("-i"), &kept])?;
        }
    }
    shown?;
    assert_eq!(n_kept, 1);
    wait_removed(&agent)
}

/// A state directory without room keeps neither the agent from starting nor a pod from running on. What
/// is new waits until there is room; both are told once, not in a hundred lines.
#[cfg_attr(feature = "privileged", test)]
fn a_full_state_directory_keeps_no_agent_from_starting() -> Result<()> {
    let mut agent = Agent::new("full-state")?;
    fs::create_dir_all(agent.state())?;
    let options = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"];
    let mounted = Command::new("mount")
        .args(options)
        .arg(agent.state())
        .status()?;
    ensure!(mounted.success(), "mount: {mounted}");
    let _mounted = Mounted(agent.state());
    agent.start()?;
    agent.put(&Manifest::new("old").container(Container::idle("app")))?;
    let old = agent.wait_pod("old", "runs", is_running)?;
    agent.kill()?;
    let filler = agent.state().join("filler");
    let mut file = fs::File::create(&filler)?;
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    let began = Instant::now();
    agent.start()?;
    let again = agent.wait_pod("old", "runs on", is_running)?;
    assert_eq!(pid_of(&again, "app"), pid_of(&old, "app"));
    agent.put(&Manifest::new("new").container(Container::idle("app")))?;
    agent.wait_events("it is told", "node", |it| {
        it.iter().any(|it| it.event.reason == "StateNotStored")
    })?;
    thread::sleep(Duration::from_secs(5));
    // Kills of the rest of the node, which have records too, are not this test's.
    let log = agent.log_tail();
    let errors = log.lines().filter(|it| it.contains("ERROR"));
    let n_lines = errors.filter(|it| !it.contains("OOM")).count();
    // A line that repeats itself is written once a minute.
    let most = 5 * (1 + began.elapsed().as_secs() / 60);
    assert!(n_lines as u64 <= most, "{n_lines} lines:\n{log}");
    let pods = agent.status()?.pods;
    let new = pods.iter().find(|it| it.name == "new");
    assert!(
        new.is_none_or(|it| !is_running(it)),
        "it would be forgotten"
    );
    let told = agent.events("node")?;
    let told = told.iter().filter(|it| it.event.reason == "StateNotStored");
    assert_eq!(told.count(), 1);
    fs::remove_file(&filler)?;
    agent.wait_pod("new", "runs", is_running)?;
    agent.kill()?;
    agent.start()?;
    for name in ["old", "new"] {
        agent.wait_pod(name, "is adopted", is_running)?;
    }
    Ok(())
}
