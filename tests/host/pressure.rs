//! What a node may run short of besides memory, whom it lets in meanwhile, and what is tried before
//! somebody has to go.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::model::eviction::{NodeCondition, Signal};
use ballast::model::status::{PodEntry, Status};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape;
use ballast_tests::wait::{on_this_machine, until};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{self as process, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::crash::after;
use super::eviction::{agent, evicted, holds, is_evicted, limit_hits, n_starts, told, wait_usage};
use super::look::{end_of, is_running, pid_of, pod_dir, pod_path};
use super::{leave_out, say, scaled};

const MIB: u64 = 1 << 20;

/// A file system in memory at the state directory of an agent that has not started; gone when it is
/// dropped, before the agent is.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(agent: &Agent, mib: u64) -> Result<Self> {
        let at = agent.state();
        fs::create_dir_all(&at)?;
        let options = format!("size={mib}m");
        let kind = Some("tmpfs");
        mount(kind, &at, kind, MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("mount tmpfs at {}", at.display()))?;
        Ok(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("unmount {}: {error}", self.0.display());
        }
    }
}

/// A file system over a directory whose server never answers, as a network disk that is gone; whoever
/// asks it anything hangs until this is dropped.
struct HungDisk {
    at: PathBuf,
    server: Option<File>,
}

impl HungDisk {
    /// `None`: the kernel has no FUSE.
    fn mount(at: PathBuf) -> Result<Option<Self>> {
        let server = match File::options().read(true).write(true).open("/dev/fuse") {
            Ok(server) => server,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("open /dev/fuse"),
        };
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            server.as_raw_fd()
        );
        let kind = Some("fuse");
        mount(kind, &at, kind, MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("mount FUSE at {}", at.display()))?;
        Ok(Some(Self {
            at,
            server: Some(server),
        }))
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        // Without its server everybody who hangs is told so.
        self.server = None;
        if let Err(error) = umount2(&self.at, MntFlags::MNT_DETACH) {
            eprintln!("unmount {}: {error}", self.at.display());
        }
    }
}

/// The disk of the state directory answers nobody: the pod that leaks goes before the kernel has to
/// act all the same, nobody else does, and the agent knows of it when the disk is back.
#[cfg_attr(feature = "privileged", test)]
fn memory_is_decided_on_while_the_disk_hangs() -> Result<()> {
    let mut agent = agent("hung")?;
    agent.start()?;
    let gate = agent.dir.join("gate");
    let leak = after(&gate, &format!("exec {} leak 400000000", hog()?));
    agent.put(&holds("innocent", 8)?)?;
    agent.put(&Manifest::new("leak").container(Container::sh("app", &leak)))?;
    agent.wait_pod("innocent", "runs", is_running)?;
    let pod = agent.wait_pod("leak", "runs", is_running)?;
    let pid = pid_of(&pod, "app").context("it runs")?;
    let Some(disk) = HungDisk::mount(agent.state())? else {
        leave_out("a disk that hangs: this kernel has no FUSE");
        return Ok(());
    };
    // Longer than from one pass to the next, so that the agent has asked it.
    thread::sleep(Duration::from_secs(3));
    fs::write(&gate, "")?;
    // What is left of it until the agent's loop, which waits for the disk, has taken its end.
    let has_memory = || {
        let pages = fs::read_to_string(format!("/proc/{pid}/statm"));
        pages.is_ok_and(|it| !it.starts_with("0 "))
    };
    let gone = agent.wait_for("the leak is gone", || Ok(!has_memory()));
    let hits = limit_hits(&agent.kubepods())?;
    drop(disk);
    gone?;
    assert_eq!(hits, 0, "the kernel had to act");
    agent.wait_pod("leak", "is evicted", is_evicted)?;
    agent.wait_events("the silence and its end", "node", |it| {
        let told = |reason: &str| it.iter().any(|it| it.event.reason == reason);
        told("DiskSilent") && told("DiskAnswers")
    })?;
    thread::sleep(Duration::from_secs(2));
    assert_eq!(evicted(&agent)?, ["leak"]);
    agent.wait_pod("innocent", "runs", is_running)?;
    Ok(())
}

/// Tasks of the machine and how many there may be.
fn tasks() -> Result<(u64, u64)> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let n = load
        .split(' ')
        .nth(3)
        .and_then(|it| it.split_once('/'))
        .context("no tasks in /proc/loadavg")?;
    let limit = |name: &str| -> Result<u64> {
        let text = fs::read_to_string(Path::new("/proc/sys/kernel").join(name))?;
        Ok(text.trim().parse()?)
    };
    Ok((n.1.parse()?, limit("pid_max")?.min(limit("threads-max")?)))
}

/// Its own limit is far off: what stops it is the threshold of the node.
#[cfg_attr(feature = "privileged", test)]
fn a_fork_bomb_ends_at_the_threshold_of_process_ids() -> Result<()> {
    let room = u64::from(scaled(1500, 300)?);
    let (before, max) = tasks()?;
    let mut agent = Agent::new("bomb")?.with_kubelet(&format!("podPidsLimit: {}", room * 3));
    agent.eviction_hard = format!("{{pid.available: \"{}\"}}", max - before - room);
    agent.start()?;
    let gate = agent.dir.join("gate");
    let bomb = after(&gate, &format!("exec {} bomb", hog()?));
    agent.put(&Manifest::new("steady").container(Container::idle("app")))?;
    agent.put(&Manifest::new("bomb").container(Container::sh("app", &bomb)))?;
    let steady = agent.wait_pod("steady", "runs", is_running)?;
    agent.wait_pod("bomb", "runs", is_running)?;
    fs::write(&gate, "")?;
    let bomb = agent.wait_pod("bomb", "is evicted", is_evicted)?;
    agent.wait_for("the machine has its process ids again", || {
        Ok(tasks()?.0 < before + room / 2)
    })?;
    assert_eq!(evicted(&agent)?, ["bomb"]);
    let message = bomb.message.unwrap_or_default();
    assert!(message.contains("low on resource: pids"), "{message}");
    let after = agent.wait_pod("steady", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&steady, "app"));
    Ok(())
}

/// What is not stored cannot be known as ours by the next agent, so nothing is made of it; one line says
/// so, and it goes on by itself.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_cannot_be_stored_waits_for_room() -> Result<()> {
    let mut agent = Agent::new("full")?.with_quick_passes();
    let disk = SmallDisk::mount(&agent, 4)?;
    agent.start()?;
    agent.put(&Manifest::new("before").container(Container::idle("app")))?;
    agent.wait_pod("before", "runs", is_running)?;
    let filler = disk.0.join("filler");
    let full = fs::write(&filler, vec![0; 8 << 20]);
    ensure!(full.is_err(), "a disk of 4 MiB holds 8");
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    let waits = agent.wait_pod("pod", "says what it waits for", |it| {
        it.message
            .as_deref()
            .is_some_and(|it| it.contains("can be stored"))
    })?;
    agent.wait_full_passes(3)?;
    assert!(
        cgroup::dirs_in_all(&format!("{}/besteffort/pod{}", agent.kubepods(), waits.uid))
            .is_empty()
    );
    let told = agent.events("node")?;
    let count = |reason: &str| told.iter().filter(|it| it.event.reason == reason).count();
    assert_eq!(count("StateNotStored"), 1, "{told:#?}");
    fs::remove_file(&filler)?;
    agent.wait_pod("pod", "runs", is_running)?;
    agent.wait_events("all is stored", "node", |it| {
        it.iter().any(|it| it.event.reason == "StateStored")
    })?;
    agent.kill()?;
    agent.start()?;
    agent.wait_pod("pod", "runs", is_running)?;
    Ok(())
}

/// A full disk keeps no agent from starting: what ran goes on, and what ended meanwhile is known, though neither can
/// be stored.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_starts_on_a_full_disk() -> Result<()> {
    let mut agent = Agent::new("start-full")?.with_quick_passes();
    let disk = SmallDisk::mount(&agent, 4)?;
    agent.start()?;
    agent.put(&Manifest::new("steady").container(Container::idle("app")))?;
    let gate = agent.dir.join("gate");
    let job = Container::sh("app", &after(&gate, "exit 7"));
    let job = Manifest::new("job")
        .with("restartPolicy", "Never".into())
        .container(job);
    agent.put(&job)?;
    let steady = agent.wait_pod("steady", "runs", is_running)?;
    let job = agent.wait_pod("job", "runs", is_running)?;
    let pid = pid_of(&job, "app").context("it runs")?;
    agent.kill()?;
    fs::write(&gate, "")?;
    agent.wait_for("the job has ended", || {
        Ok(!Path::new(&format!("/proc/{pid}")).exists())
    })?;
    let filler = disk.0.join("filler");
    let full = fs::write(&filler, vec![0; 8 << 20]);
    ensure!(full.is_err(), "a disk of 4 MiB holds 8");

    agent.start()?;
    let after = agent.wait_pod("steady", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&steady, "app"));
    let ended = |it: &PodEntry| end_of(it, "app").is_some();
    let job = agent.wait_pod("job", "is known to have ended", ended)?;
    assert_eq!(job.containers[0].restarts, 0);
    agent.wait_full_passes(2)?;
    fs::remove_file(&filler)?;
    agent.wait_full_passes(2)?;
    agent.kill()?;
    agent.start()?;
    let job = agent.wait_pod("job", "is known to have ended", ended)?;
    assert_eq!(job.containers[0].restarts, 0);
    let after = agent.wait_pod("steady", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&steady, "app"));
    Ok(())
}

/// The pod that fills the disk goes, with what it has written; the others keep theirs.
#[cfg_attr(feature = "privileged", test)]
fn a_full_disk_takes_the_pod_that_filled_it() -> Result<()> {
    let mut agent = Agent::new("disk")?.with_kubelet("evictionPressureTransitionPeriod: 1s");
    agent.eviction_hard = "{nodefs.available: 50%}".to_owned();
    let _disk = SmallDisk::mount(&agent, 64)?;
    agent.start()?;
    let write = |pod: &str, mib: u64| {
        let script = format!(
            "head -c {} /dev/zero >volumes/shared/file && echo >volumes/shared/done; \
             exec sleep 3600",
            mib * MIB
        );
        Manifest::new(pod).container(Container::sh("app", &script))
    };
    agent.put(&write("small", 2))?;
    agent.wait_pod("small", "runs", is_running)?;
    agent.put(&write("large", 40))?;
    let large = agent.wait_pod("large", "is evicted", is_evicted)?;
    assert_eq!(evicted(&agent)?, ["large"]);
    let node = agent.events("node")?;
    let reasons: Vec<&str> = node.iter().map(|it| it.event.reason.as_ref()).collect();
    assert!(reasons.contains(&"NodeHasDiskPressure"), "{reasons:?}");
    agent.wait_pod("small", "runs", is_running)?;
    // What it wrote goes with it, while its definition is still there, and nobody else has to go.
    agent.wait_events("the end of the pressure", "node", |it| {
        it.iter()
            .any(|it| it.event.reason == "NodeHasNoDiskPressure")
    })?;
    thread::sleep(Duration::from_secs(3));
    assert_eq!(evicted(&agent)?, ["large"]);
    let small = agent.wait_pod("small", "runs", is_running)?;
    let has_logs = |pod: &PodEntry| {
        let name = format!("{}_{}_{}", pod.namespace, pod.name, pod.uid);
        agent.state().join("logs").join(name).exists()
    };
    assert_eq!([&small, &large].map(has_logs), [true, false]);
    Ok(())
}

/// Who looks on while a pod fills the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// An agent that does not get to look before it is full.
    Late,
    /// Nobody: the next agent starts on the full disk.
    None,
}

/// Nothing can be noted before the files of the pod are gone. It goes alone, whoever comes before it in the order of
/// eviction, and never runs again.
fn check_without_room(test: &str, watch: Watch) -> Result<()> {
    let mut agent = Agent::new(test)?
        .with_quick_passes()
        .with_kubelet("evictionPressureTransitionPeriod: 1s");
    agent.eviction_hard = "{nodefs.available: 50%}".to_owned();
    let _disk = SmallDisk::mount(&agent, 64)?;
    agent.start()?;
    let small = "head -c 8192 /dev/zero >volumes/shared/file; exec sleep 3600";
    for i in 0..4 {
        let pod = Manifest::new(&format!("small-{i}"));
        agent.put(&pod.container(Container::sh("app", small)))?;
    }
    let [gate, full, journal] = ["gate", "full", "journal"].map(|it| agent.dir.join(it));
    let fill = format!(
        "cat /dev/zero >volumes/shared/file; echo >{}; exec sleep 3600",
        full.display()
    );
    let script = format!(
        "echo started >>{}; {}",
        journal.display(),
        after(&gate, &fill)
    );
    let filler = Manifest::new("filler")
        .with("restartPolicy", "OnFailure".into())
        .with("priority", json!(1000));
    agent.put(&filler.container(Container::sh("app", &script)))?;
    let before = agent.wait("all pods run", |it| {
        it.pods.len() == 5 && it.pods.iter().all(is_running)
    })?;

    let is_full = || Ok(full.exists());
    match watch {
        Watch::Late => {
            let pid = Pid::from_raw(agent.pid().context("an agent")?.try_into()?);
            kill(pid, process::Signal::SIGSTOP)?;
            fs::write(&gate, "")?;
            agent.wait_for("the disk is full", is_full)?;
            kill(pid, process::Signal::SIGCONT)?;
        }
        Watch::None => {
            agent.kill()?;
            fs::write(&gate, "")?;
            agent.wait_for("the disk is full", is_full)?;
            agent.start()?;
        }
    }
    agent.wait_pod("filler", "is evicted", is_evicted)?;
    let node = agent.wait_events("the end of the pressure", "node", |it| {
        it.iter()
            .any(|it| it.event.reason == "NodeHasNoDiskPressure")
    })?;
    let reasons: Vec<&str> = node.iter().map(|it| it.event.reason.as_ref()).collect();
    assert!(reasons.contains(&"StateNotStored"), "{reasons:?}");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(evicted(&agent)?, ["filler"]);

    agent.wait_full_passes(2)?;
    agent.kill()?;
    agent.start()?;
    agent.wait_pod("filler", "is still evicted", is_evicted)?;
    let after = agent.wait_full_passes(2)?;
    let pids = |status: &Status| -> Vec<Option<u32>> {
        let others = status.pods.iter().filter(|it| it.name != "filler");
        others.map(|it| pid_of(it, "app")).collect()
    };
    assert_eq!(pids(&after), pids(&before));
    let filler = after.pods.iter().find(|it| it.name == "filler");
    assert!(filler.is_some_and(is_evicted), "{filler:#?}");
    assert_eq!(n_starts(&journal), 1);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_disk_without_any_room_takes_the_pod_that_filled_it_alone() -> Result<()> {
    check_without_room("no-room", Watch::Late)
}

#[cfg_attr(feature = "privileged", test)]
fn a_disk_that_is_full_when_the_agent_starts_takes_the_pod_that_filled_it_alone() -> Result<()> {
    check_without_room("no-room-start", Watch::None)
}

/// Somebody who is no pod fills the disk, in a directory of the host: nobody goes for it, then or later, and people
/// are told who has it, once. A pod that writes meanwhile goes as ever.
#[cfg_attr(feature = "privileged", test)]
fn a_disk_that_no_pod_has_filled_takes_no_pod() -> Result<()> {
    let mut agent = Agent::new("nobody")?.with_kubelet("evictionPressureTransitionPeriod: 1s");
    agent.eviction_hard = "{nodefs.available: 50%}".to_owned();
    agent.metrics = scrape::free_address()?;
    let disk = SmallDisk::mount(&agent, 64)?;
    let of_host = disk.0.join("of-the-host");
    fs::create_dir(&of_host)?;
    agent.start()?;
    let small = "head -c 8192 /dev/zero >volumes/shared/file; exec sleep 3600";
    for i in 0..8 {
        let pod = Manifest::new(&format!("small-{i}"));
        agent.put(&pod.container(Container::sh("app", small)))?;
    }
    let volumes = json!([{"name": "data", "hostPath": {"path": of_host}}]);
    let exporter = Manifest::new("exporter").with("volumes", volumes);
    agent.put(&exporter.container(Container::idle("app")))?;
    let gate = agent.dir.join("gate");
    let write = format!(
        "head -c {} /dev/zero >volumes/shared/file; exec sleep 3600",
        10 * MIB
    );
    let write = Container::sh("app", &after(&gate, &write));
    agent.put(&Manifest::new("writer").container(write))?;
    agent.wait("all pods run", |it| {
        it.pods.len() == 10 && it.pods.iter().all(is_running)
    })?;

    fs::write(of_host.join("full"), vec![1; 45 << 20])?;
    let messages = |agent: &Agent| -> Result<Vec<String>> {
        let mut told = agent.events("node")?;
        told.retain(|it| it.event.reason == "EvictionIneffective");
        Ok(told.into_iter().map(|it| it.event.message).collect())
    };
    agent.wait_for("it is told", || Ok(!messages(&agent)?.is_empty()))?;
    let message = messages(&agent)?;
    say(&message[0]);
    for wanted in [
        "nodefs.available: no pod is evicted",
        "default/exporter",
        &of_host.display().to_string(),
    ] {
        assert!(message[0].contains(wanted), "{message:?}");
    }
    // Others are derived from the threshold, about the same file system.
    let shows = |it: &Status| {
        let pressure = it.node.pressure.as_ref();
        let held = pressure.map(|it| &it.ineffective);
        held.is_some_and(|held| {
            held.contains_key(&Signal::NodeFsAvailable) && held.values().all(|it| *it == message[0])
        })
    };
    agent.wait("status shows it", shows)?;
    for wait in [0, 15] {
        thread::sleep(Duration::from_secs(wait));
        assert_eq!(evicted(&agent)?, [""; 0]);
        let status = agent.status()?;
        assert!(status.pods.iter().all(is_running), "{:#?}", status.pods);
        assert!(shows(&status));
        assert_eq!(messages(&agent)?, message);
    }
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let labels = [("reason", "ineffective"), ("signal", "nodefs.available")];
    assert!(page.sum("ballast_eviction_blocked_total", &labels) > 0.0);

    fs::write(&gate, "")?;
    agent.wait_pod("writer", "is evicted", is_evicted)?;
    thread::sleep(Duration::from_secs(3));
    assert_eq!(evicted(&agent)?, ["writer"]);
    Ok(())
}

/// There is no controller that would make another pod of a manifest: one that is to run always
/// begins anew when the disk has had room for a while, whoever was evicted by which agent; one that
/// is to run once does not. One that is refused meanwhile, whatever it requests, is let in then.
#[cfg_attr(feature = "privileged", test)]
fn an_evicted_pod_that_is_to_run_always_returns_when_the_pressure_is_over() -> Result<()> {
    // Pods are refused in it.
    let period = on_this_machine(Duration::from_secs(5)).as_secs();
    let period = format!("evictionPressureTransitionPeriod: {period}s");
    let mut agent = Agent::new("return")?.with_kubelet(&period);
    agent.eviction_hard = "{nodefs.available: 50%}".to_owned();
    let _disk = SmallDisk::mount(&agent, 64)?;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    let mark = |pod: &str| agent.dir.join(pod);
    let fills_once = |pod: &str, policy: &str| {
        let mark = mark(pod).display().to_string();
        let script = format!(
            "[ -e {mark} ] || {{ echo >{mark}; head -c {} /dev/zero >volumes/shared/file; }}; \
             exec sleep 3600",
            40 * MIB
        );
        let pod = Manifest::new(pod).with("restartPolicy", policy.into());
        pod.container(Container::sh("app", &script))
    };
    agent.put(&fills_once("once", "Never"))?;
    agent.wait_pod("once", "is evicted", is_evicted)?;
    let amounts = json!({"cpu": "10m", "memory": "8Mi"});
    let guaranteed = Container::idle("app").resources(amounts.clone(), amounts);
    agent.put(&Manifest::new("guaranteed").container(guaranteed))?;
    let refused = agent.wait_pod("guaranteed", "is refused", is_evicted)?;
    let message = refused.message.unwrap_or_default();
    assert!(message.contains("DiskPressure"), "{message}");
    agent.wait_events("the end of the pressure", "node", |it| {
        it.iter()
            .any(|it| it.event.reason == "NodeHasNoDiskPressure")
    })?;
    agent.wait_pod("guaranteed", "runs", is_running)?;
    agent.put(&fills_once("always", "Always"))?;
    let first = agent.wait_pod("always", "is evicted", is_evicted)?;
    agent.kill()?;
    agent.start()?;
    let pod = agent.wait_pod("always", "runs again", is_running)?;
    assert_eq!(pod.uid, first.uid);
    assert!(
        !pod_dir(&agent.state(), &pod)
            .join("volumes/shared/file")
            .exists()
    );
    let told = agent.wait_events("its return", "pod", |it| {
        it.iter().any(|it| it.event.reason == "EvictedPodReturns")
    })?;
    let n_told = told
        .iter()
        .filter(|it| it.event.reason == "EvictedPodReturns");
    assert_eq!(n_told.count(), 1);
    let page = scrape::page(&agent.metrics, "/metrics")?;
    assert_eq!(page.sum("ballast_eviction_returned_pods_total", &[]), 1.0);
    thread::sleep(Duration::from_secs(12));
    agent.wait_pod("always", "still runs", is_running)?;
    agent.wait_pod("once", "is still evicted", is_evicted)?;
    Ok(())
}

/// Limits of a pod's own, on a disk with room enough.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_beyond_its_limit_of_local_storage_is_evicted() -> Result<()> {
    let mut agent = Agent::new("storage")?;
    agent.start()?;
    let write = |file: &str| {
        let script = format!("head -c {} /dev/zero >{file}; exec sleep 3600", 4 * MIB);
        Container::sh("app", &script)
    };
    let volume = |limit: &str| json!([{"name": "shared", "emptyDir": {"sizeLimit": limit}}]);
    let of_volume = write("volumes/shared/file");
    agent.put(
        &Manifest::new("volume")
            .with("volumes", volume("1Mi"))
            .container(of_volume.clone()),
    )?;
    agent.put(
        &Manifest::new("within")
            .with("volumes", volume("8Mi"))
            .container(of_volume),
    )?;
    // No walk finds it: it has no name any more.
    let deleted = format!(
        "exec 3>volumes/shared/file; rm volumes/shared/file; head -c {} /dev/zero >&3; \
         exec sleep 3600",
        4 * MIB
    );
    for (name, limit) in [("deleted", "1Mi"), ("deleted-within", "8Mi")] {
        let pod = Manifest::new(name).with("volumes", volume(limit));
        agent.put(&pod.container(Container::sh("app", &deleted)))?;
    }
    let limits = json!({"ephemeral-storage": "1Mi"});
    // The files of one container are not held against the limit of another.
    let limited = |container: Container, limit: &str| {
        container.resources(json!({}), json!({"ephemeral-storage": limit}))
    };
    let shared = Manifest::new("shared")
        .container(limited(Container::idle("a-logger"), "1Mi"))
        .container(limited(write("file"), "64Mi"));
    agent.put(&shared)?;
    agent.put(&Manifest::new("logs").container(write("&1").resources(json!({}), limits)))?;
    // Walked again after a minute where a walk came before all was written, which may be longer than
    // patience lasts.
    let evicted = |name: &str| {
        let wait = || agent.wait_pod(name, "is evicted", is_evicted);
        wait().or_else(|_| wait())
    };
    let of_volume = "EmptyDir volume \"shared\"";
    for (name, wanted) in [
        ("volume", of_volume),
        ("deleted", of_volume),
        ("logs", "ephemeral"),
    ] {
        let pod = evicted(name)?;
        let message = pod.message.unwrap_or_default();
        assert!(message.contains(wanted), "{}: {message}", pod.name);
    }
    for name in ["within", "deleted-within"] {
        agent.wait_pod(name, "runs", is_running)?;
    }
    let is_measured = || {
        until("the files are seen", || {
            let stats = agent.stats()?;
            let pod = stats.pods.iter().find(|it| it.pod.name == "shared");
            let seen = pod.and_then(|it| it.ephemeral_storage);
            ensure!(seen >= Some(4 * MIB), "{seen:?}");
            Ok(())
        })
    };
    is_measured().or_else(|_| is_measured())?;
    agent.wait_pod("shared", "runs", is_running)?;
    Ok(())
}

/// An agent with a threshold far from acting, which shows pressure at once, and a pod that crosses it.
/// `transition`: how long the pressure is shown after it is over.
fn agent_with_soft_line(test: &str, transition: &str) -> Result<(Agent, Manifest)> {
    let signal = "allocatableMemory.available";
    let line = u64::from(scaled(300, 64)?);
    let room = u64::from(scaled(1024, 192)?);
    let agent = Agent::new(test)?
        .with_memory(room, 1)?
        .with_quick_passes()
        .with_kubelet(&format!("evictionPressureTransitionPeriod: {transition}"))
        .with_kubelet(&format!("evictionSoft: {{{signal}: {}Mi}}", room - line))
        .with_kubelet(&format!("evictionSoftGracePeriod: {{{signal}: 1h}}"));
    Ok((agent, holds("holds", line + 16)?))
}

fn is_short_of_memory(status: &Status) -> bool {
    let pressure = status.node.pressure.as_ref();
    pressure.is_some_and(|it| it.conditions.contains(&NodeCondition::MemoryPressure))
}

/// Who has requested what it needs is let in.
#[cfg_attr(feature = "privileged", test)]
fn a_node_under_memory_pressure_lets_in_who_has_requests() -> Result<()> {
    let (mut agent, holds) = agent_with_soft_line("admit-short", "1s")?;
    agent.start()?;
    agent.put(&holds)?;
    agent.wait("memory pressure", is_short_of_memory)?;
    let idle = |name: &str| Manifest::new(name).container(Container::idle("app"));
    let amounts = json!({"cpu": "10m", "memory": "8Mi"});
    let guaranteed = Container::idle("app").resources(amounts.clone(), amounts);
    agent.put(&idle("besteffort"))?;
    agent.put(&Manifest::new("guaranteed").container(guaranteed))?;
    agent.put(&idle("critical").with("priority", json!(2_000_000_000)))?;
    let refused = agent.wait_pod("besteffort", "is refused", is_evicted)?;
    let message = refused.message.unwrap_or_default();
    assert!(message.contains("MemoryPressure"), "{message}");
    for admitted in ["guaranteed", "critical"] {
        agent.wait_pod(admitted, "runs", is_running)?;
    }
    agent.remove_pod("holds")?;
    agent.wait("no memory pressure", |it| !is_short_of_memory(it))?;
    agent.put(&idle("late"))?;
    // It never ran, so it is to run once as much as before.
    for admitted in ["late", "besteffort"] {
        agent.wait_pod(admitted, "runs", is_running)?;
    }
    Ok(())
}

/// The pressure is over, but not for long enough: the next agent has not forgotten it.
#[cfg_attr(feature = "privileged", test)]
fn a_condition_outlives_the_agent() -> Result<()> {
    let (mut agent, holds) = agent_with_soft_line("condition", "1h")?;
    agent.start()?;
    agent.put(&holds)?;
    agent.wait("memory pressure", is_short_of_memory)?;
    agent.remove_pod("holds")?;
    agent.wait("no pod", |it| it.pods.is_empty())?;
    agent.stop()?;
    agent.start()?;
    agent.put(&Manifest::new("besteffort").container(Container::idle("app")))?;
    agent.wait_pod("besteffort", "is refused", is_evicted)?;
    // And once it has looked for itself.
    thread::sleep(Duration::from_secs(2));
    let status = agent.status()?;
    assert!(is_short_of_memory(&status));
    assert!(status.pods.iter().all(is_evicted));
    Ok(())
}

/// A pod that is there is judged by what it would be.
#[cfg_attr(feature = "privileged", test)]
fn a_new_definition_is_let_in_under_pressure_if_it_has_requests() -> Result<()> {
    let (mut agent, holds) = agent_with_soft_line("redefined-short", "1s")?;
    agent.start()?;
    let bare = |name: &str| Manifest::new(name).with_uid(name);
    let requests = Container::idle("app").resources(json!({"memory": "8Mi"}), json!({}));
    agent.put(&bare("loses").container(requests.clone()))?;
    agent.put(&bare("gains").container(Container::idle("app")))?;
    let [loses, gains] = ["loses", "gains"].map(|name| agent.wait_pod(name, "runs", is_running));
    let [loses, gains] = [pid_of(&loses?, "app"), pid_of(&gains?, "app")];
    agent.put(&holds)?;
    agent.wait("memory pressure", is_short_of_memory)?;
    agent.put(&bare("loses").container(Container::idle("app")))?;
    agent.put(&bare("gains").container(requests))?;
    agent.wait_pod("loses", "goes on and says why", |it| {
        let why = it.message.as_deref().unwrap_or_default();
        pid_of(it, "app") == loses && why.contains("MemoryPressure")
    })?;
    agent.wait_pod("gains", "begins anew", |it| {
        is_running(it) && pid_of(it, "app") != gains
    })?;
    Ok(())
}

/// A pod that stands still most of the time: it waits for memory that its cgroup does not give it.
fn stalls(agent: &Agent) -> Result<()> {
    let limit = 32 * MIB;
    let script = match cgroup::is_unified() {
        // Over `memory.high` the kernel lets it wait ever longer.
        true => format!("exec {} leak 400000000", hog()?),
        // Its files do not fit: what it reads next has to be made room for.
        false => format!(
            "cd volumes/shared; head -c {} /dev/zero >file; \
             while :; do cat file file file file >/dev/null; done",
            limit * 2
        ),
    };
    let gate = agent.dir.join("gate");
    let container = Container::sh("app", &after(&gate, &script));
    let container = match cgroup::is_unified() {
        true => container,
        false => container.limited_to(limit / MIB),
    };
    agent.put(&Manifest::new("stalls").container(container))?;
    let pod = agent.wait_pod("stalls", "runs", is_running)?;
    if cgroup::is_unified() {
        cgroup::write("memory", pod_path(&pod)?, "memory.high", &limit.to_string())?;
    }
    fs::write(&gate, "")?;
    Ok(())
}

fn agent_for_stalls(test: &str, is_dry_run: bool) -> Result<Agent> {
    let mut agent = agent(test)?;
    // Every share of a second counts, and there is never enough: the stall alone decides.
    agent.sections = format!(
        "eviction: {{stall: {{memoryFullRatio: 0.001, duration: 1s, headroom: 100%, \
         coolDown: 1s, dryRun: {is_dry_run}}}}}\n"
    );
    agent.start()?;
    Ok(agent)
}

#[cfg_attr(feature = "privileged", test)]
fn a_stall_evicts_where_that_is_configured() -> Result<()> {
    let agent = agent_for_stalls("stall", false)?;
    stalls(&agent)?;
    let pod = agent.wait_pod("stalls", "is evicted", is_evicted)?;
    say(pod.message.unwrap_or_default());
    assert_eq!(evicted(&agent)?, ["stalls"]);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_dry_run_tells_of_a_stall_and_evicts_nobody() -> Result<()> {
    let agent = agent_for_stalls("stall-dry", true)?;
    stalls(&agent)?;
    agent.wait_for("it is told", || {
        Ok(!told(&agent, "EvictionDryRun")?.is_empty())
    })?;
    agent.wait_pod("stalls", "runs", is_running)?;
    assert_eq!(evicted(&agent)?, [""; 0]);
    Ok(())
}

/// Growth is stopped first; where that is not enough the pod goes, frozen as it is.
#[cfg_attr(feature = "privileged", test)]
fn a_growing_pod_is_frozen_before_it_goes() -> Result<()> {
    let signal = "allocatableMemory.available";
    let room = u64::from(scaled(1024, 192)?);
    let mut agent = Agent::new("freeze")?
        .with_memory(room, 1)?
        .with_kubelet(&format!("evictionSoft: {{{signal}: {}Mi}}", room / 2))
        // Due a second after it is met, so growth has been seen twice.
        .with_kubelet(&format!("evictionSoftGracePeriod: {{{signal}: 1s}}"));
    agent.sections = "eviction: {stages: {freezeBestEffort: true}}\n".to_owned();
    agent.start()?;
    let hold = room / 2 - 8;
    let held = Container::new("app", &[&hog()?, "hold", &(hold * MIB).to_string()])
        .resources(json!({"memory": format!("{}Mi", room / 2)}), json!({}));
    agent.put(&Manifest::new("holds").container(held))?;
    let gate = agent.dir.join("gate");
    let script = after(&gate, &format!("exec {} leak 8000000", hog()?));
    agent.put(&Manifest::new("grows").container(Container::sh("app", &script)))?;
    let holds = agent.wait_pod("holds", "runs", is_running)?;
    wait_usage(&agent, &holds, hold * MIB)?;
    agent.wait_pod("grows", "runs", is_running)?;
    fs::write(&gate, "")?;
    agent.wait_pod("grows", "is evicted", is_evicted)?;
    let relief = told(&agent, "PressureRelief")?;
    // What is changed is on the disk before; an eviction does not wait for it.
    if relief.is_empty() && agent.log_tail().contains("the disk does not answer") {
        leave_out("a frozen pod: the disk did not answer in time");
        return Ok(());
    }
    let pods = relief.iter().filter_map(|it| it.event.pod.as_ref());
    let pods: Vec<&str> = pods.map(|it| it.name.as_str()).collect();
    assert_eq!(pods, ["grows"]);
    assert_eq!(evicted(&agent)?, ["grows"]);
    agent.wait_pod("holds", "runs", is_running)?;
    Ok(())
}
