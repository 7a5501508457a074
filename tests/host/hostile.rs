//! Manifests that are small and ask for much: each costs its own pod, with a word that names it, and
//! never the agent. And files that are something else than a file, or on a disk that does not answer.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::model::record::EventRecord;
use ballast::model::status::PodEntry;
use ballast::sys::unix_socket;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::{patience, until};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};

use super::leave_out;
use super::look::{end_of, is_running, pid_of, pod_dir};

/// `VmHWM`: the most that a process ever had in memory, MiB.
fn peak_mib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    let kib = line.context("VmHWM")?.trim().trim_end_matches(" kB");
    Ok(kib.parse::<u64>()? >> 10)
}

/// Eight variables, each ten times the one before, in 1.7 kB: 100 GB. In the environment, and in the
/// arguments of another pod. An agent that starts with both there comes up as well.
#[cfg_attr(feature = "privileged", test)]
fn an_environment_that_grows_without_end_costs_its_own_pod() -> Result<()> {
    let mut agent = Agent::new("bomb")?;
    let variables = |n: usize| -> Value {
        let value = |i: usize| match i {
            0 => "x".repeat(1000),
            _ => format!("$(A{})", i - 1).repeat(10),
        };
        (0..n)
            .map(|i| json!({"name": format!("A{i}"), "value": value(i)}))
            .collect()
    };
    let by_env = Container::idle("app").with("env", variables(9));
    let by_args = Container::new("app", &["echo", &"$(A3)".repeat(10)]);
    let pods = [
        ("env", by_env, "env[4].value"),
        ("args", by_args.with("env", variables(4)), "command[1]"),
    ];
    for (name, container, _) in &pods {
        agent.put(&Manifest::new(name).container(container.clone()))?;
    }
    agent.put(&Manifest::new("other").container(Container::idle("app")))?;
    agent.start()?;
    let as_they_should = |agent: &Agent| -> Result<()> {
        agent.wait_pod("other", "runs", is_running)?;
        for (name, _, _) in &pods {
            let pod = agent.wait_pod(name, "fails", |it| it.phase.to_string() == "Failed")?;
            let end = end_of(&pod, "app").context("it ended")?;
            assert_eq!(end, ("StartError".to_owned(), Some(128)));
        }
        let pid = agent.pid().context("the agent runs")?;
        let peak = peak_mib(pid)?;
        assert!(peak < 200, "{peak} MiB");
        Ok(())
    };
    as_they_should(&agent)?;
    for (name, _, field) in &pods {
        let fault = format!("with {field} expanded, arguments and environment are longer");
        agent.wait_events(&format!("the fault of {name}"), "container", |it| {
            it.iter().any(|it| it.event.message.contains(&fault))
        })?;
    }
    agent.kill()?;
    agent.start()?;
    as_they_should(&agent)
}

/// It is killed twice while it parses the one manifest: the third start does without that, has the
/// others, and reads it when it is another.
#[cfg_attr(feature = "privileged", test)]
fn what_ends_the_agent_twice_in_its_start_is_left_aside() -> Result<()> {
    let mut agent = Agent::new("aside")?;
    agent.put(&Manifest::new("other").container(Container::idle("app")))?;
    let slow = format!("a: [{}]\n", "x, ".repeat(300_000));
    agent.put_file("slow.yaml", &slow)?;
    let note = agent.state().join("start");
    for n_deaths in 0..2 {
        agent.spawn()?;
        agent.wait_for("it parses", || {
            // What the agent before died of is named as well.
            let handled = fs::read_to_string(&note).unwrap_or_default();
            Ok(handled.matches("slow.yaml").count() == n_deaths + 1)
        })?;
        agent.kill()?;
    }
    agent.start()?;
    agent.wait_pod("other", "runs", is_running)?;
    agent.wait_events("it is told", "node", |it| {
        it.iter().any(|it| it.event.reason == "SetAside")
    })?;
    let faults = agent.status()?.manifest_faults;
    let why = "ended the agent at two starts in a row";
    let mut told = faults.iter().filter(|it| it.message.starts_with(why));
    ensure!(told.any(|it| it.file.ends_with("slow.yaml")), "{faults:?}");
    let pod = Manifest::new("slow").container(Container::idle("app"));
    agent.put(&pod)?;
    agent.wait_pod("slow", "runs", is_running)?;
    Ok(())
}

/// One byte: not even its cgroup fits. The manifest is warned of, and the end says why.
#[cfg_attr(feature = "privileged", test)]
fn a_memory_limit_that_holds_nothing_is_named() -> Result<()> {
    let mut agent = Agent::new("byte")?;
    agent.start()?;
    let limits = json!({"memory": "1"});
    let container = Container::idle("app").resources(json!({}), limits);
    agent.put(&Manifest::new("pod").container(container))?;
    let pod = agent.wait_pod("pod", "fails", |it| it.phase.to_string() == "Failed")?;
    let end = end_of(&pod, "app").context("it ended")?;
    assert_eq!(end.0, "StartError");
    if !cgroup::is_unified() {
        let why = "the memory limit of its pod leaves no room for it";
        agent.wait_events("why", "container", |it| {
            it.iter().any(|it| it.event.message.contains(why))
        })?;
    }
    Ok(())
}

/// 253 bytes: with namespace and UID more than a directory's name may have.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_of_the_longest_name_runs_and_goes() -> Result<()> {
    let mut agent = Agent::new("name")?;
    agent.start()?;
    let label = "a".repeat(62);
    let name = [&*label; 4].join(".") + ".a";
    assert_eq!(name.len(), 253);
    let pod = Manifest::new(&name).container(Container::sh("app", "echo here; exec sleep 3600"));
    agent.put_file("long.yaml", &pod.to_string())?;
    agent.wait_pod(&name, "runs", is_running)?;
    agent.wait_for("its output", || has_log(&agent))?;
    agent.remove_pod("long")?;
    agent.wait("it is gone", |it| it.pods.is_empty())?;
    agent.wait_for("nothing of it is left", || {
        let left = fs::read_dir(agent.state().join("logs"))?.count()
            + fs::read_dir(agent.state().join("pods"))?.count();
        Ok(left == 0)
    })
}

/// It is stopped, and so many wait for it that the kernel lets nobody wait any more.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_takes_no_clients_is_said_to_be_busy() -> Result<()> {
    let mut agent = Agent::new("busy")?;
    let script = "echo 8 > /proc/sys/net/core/somaxconn; exec \"$@\"";
    agent.start_by(&["unshare", "-n"], script);
    agent.start()?;
    let pid = Pid::from_raw(i32::try_from(agent.pid().context("it runs")?)?);
    kill(pid, Signal::SIGSTOP)?;
    agent.wait_for("all its threads have stopped", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
        let states = tasks.map(|it| Ok(fs::read_to_string(it?.path().join("status"))?));
        let states: Vec<String> = states.collect::<Result<_>>()?;
        Ok(states.iter().all(|it| it.contains("\nState:\tT")))
    })?;
    let mut waiting = Vec::new();
    while let Ok(client) = unix_socket::connect(&agent.socket(), Duration::from_millis(100)) {
        waiting.push(client);
    }
    let output = agent.client(&["status"]).output()?;
    kill(pid, Signal::SIGCONT)?;
    let said = String::from_utf8(output.stderr)?;
    assert!(said.contains(" is busy: no answer within "), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert!(waiting.len() < 20, "{}", waiting.len());
    drop(waiting);
    agent.wait_for("it answers again", || Ok(agent.status().is_ok()))
}

fn has_log(agent: &Agent) -> Result<bool> {
    let directory = fs::read_dir(agent.state().join("logs"))?.next();
    let directory = directory.context("logs of the pod")??.path();
    let text = fs::read_to_string(directory.join("app/0.log")).unwrap_or_default();
    Ok(text.contains("here"))
}

/// A configuration, its parts and a record to replay: a FIFO, a device without end, a directory and a
/// file of 100 MiB are named at once, and are the user's fault.
#[cfg_attr(feature = "privileged", test)]
fn a_file_that_is_none_is_named_at_once() -> Result<()> {
    let agent = Agent::new("files")?;
    let at = |name: &str| agent.dir.join(name);
    mkfifo(&at("fifo"), Mode::S_IRWXU)?;
    fs::create_dir(at("directory"))?;
    fs::File::create(at("sparse"))?.set_len(100 << 20)?;
    let run = agent.run_command()?;
    let said = |args: &[&str], file: &Path| -> Result<String> {
        let mut timeout = Command::new("timeout");
        let output = timeout
            .arg(patience().as_secs().to_string())
            .arg(run.get_program())
            .args(args)
            .arg(file)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?} {file:?}: {said}");
        Ok(said)
    };
    let files = [
        (at("fifo"), "it is no regular file"),
        ("/dev/zero".into(), "it is no regular file"),
        (at("directory"), "it is no regular file"),
        (at("sparse"), "it is larger than"),
    ];
    for (file, why) in &files {
        let shown = file.display().to_string();
        for args in [
            &["check", "--config"][..],
            &["run", "--config"],
            &["replay"],
            &["replay", "-", "--policy"],
        ] {
            let said = said(args, file)?;
            assert!(said.contains(why) && said.contains(&shown), "{said}");
        }
        let config = at("names.yaml");
        let text = fs::read_to_string(at("config.yaml"))?;
        fs::write(&config, format!("kubeletConfigFile: {shown}\n{text}"))?;
        let said = said(&["check", "--config"], &config)?;
        for it in ["kubeletConfigFile", &shown, why] {
            assert!(said.contains(it), "{said}");
        }
    }
    Ok(())
}

/// What is no file in the state directory is as good as a damaged one: set aside, and rebuilt.
#[cfg_attr(feature = "privileged", test)]
fn a_record_that_is_a_fifo_holds_no_start_up() -> Result<()> {
    let mut agent = Agent::new("fifo")?;
    agent.start()?;
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    agent.kill()?;
    let mut n_replaced = 0;
    for directory in ["pods", "oom"] {
        let directory = agent.state().join(directory);
        fs::create_dir_all(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_file() {
                fs::remove_file(&path)?;
                mkfifo(&path, Mode::S_IRWXU)?;
                n_replaced += 1;
            }
        }
    }
    ensure!(n_replaced > 0, "no record of the pod");
    agent.start()?;
    let again = agent.wait_pod("pod", "runs on", is_running)?;
    assert_eq!(pid_of(&again, "app"), pid_of(&pod, "app"));
    Ok(())
}

/// What the kernel asks the program of a FUSE file system by.
const FUSE: &str = "/dev/fuse";

/// A file system that answers nobody, as NFS whose server is away: no program is behind it.
struct HungDisk {
    path: PathBuf,
    device: Option<fs::File>,
}

impl HungDisk {
    fn mount(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path)?;
        let device = fs::File::options().read(true).write(true).open(FUSE)?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let options = Some(options.as_str());
        mount(Some("hung"), &path, Some("fuse"), MsFlags::empty(), options)?;
        Ok(Self {
            path,
            device: Some(device),
        })
    }

    /// Whoever asks is told that nobody is there.
    fn end(&mut self) {
        self.device = None;
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        self.end();
        umount2(&self.path, MntFlags::MNT_DETACH).ok();
    }
}

/// Threads of a process by this name.
fn n_threads(pid: u32, name: &str) -> Result<usize> {
    let mut n = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // It may have ended meanwhile.
        let comm = fs::read_to_string(task?.path().join("comm"));
        n += usize::from(comm.is_ok_and(|it| it.trim() == name));
    }
    Ok(n)
}

/// More containers than are started at a time look for their programs there: each says so and waits, others start, and
/// so does an agent that comes after.
#[cfg_attr(feature = "privileged", test)]
fn a_disk_in_path_that_hangs_holds_up_no_other_start() -> Result<()> {
    const N: usize = 6;
    let mut agent = Agent::new("hung")?.with_quick_passes();
    if !Path::new(FUSE).exists() {
        leave_out("a disk that hangs: no FUSE");
        return Ok(());
    }
    let mut disk = HungDisk::mount(agent.dir.join("hung"))?;
    let path = format!("{}:/usr/bin:/bin", disk.path.display());
    let waiting = |i: usize| format!("waits-{i}");
    for i in 0..N {
        let app = Container::idle("app").with("env", json!([{"name": "PATH", "value": path}]));
        agent.put(&Manifest::new(&waiting(i)).container(app))?;
    }
    agent.start()?;
    let wanted = disk.path.join("sleep").display().to_string();
    let is_held =
        |it: &&EventRecord| it.event.reason == "StartHeld" && it.event.message.contains(&wanted);
    let all_are_held = |it: &[EventRecord]| it.iter().filter(is_held).count() == N;
    agent.wait_events("all are held", "container", all_are_held)?;
    agent.wait_pod(&waiting(0), "says why", |it| {
        it.message.as_ref().is_some_and(|it| it.contains(&wanted))
    })?;
    agent.put(&Manifest::new("other").container(Container::idle("app")))?;
    agent.wait_pod("other", "runs", is_running)?;
    let pid = agent.pid().context("it runs")?;
    let before = n_threads(pid, "disk-calls")?;
    agent.wait_full_passes(3)?;
    assert_eq!(n_threads(pid, "disk-calls")?, before);
    ensure!(all_are_held(&agent.events("container")?), "told again");
    agent.stop()?;
    agent.start()?;
    agent.wait_events("all are held again", "container", all_are_held)?;
    disk.end();
    for i in 0..N {
        let pod = agent.wait_pod(&waiting(i), "runs", is_running)?;
        assert_eq!(pod.containers[0].restarts, 0);
    }
    Ok(())
}

/// In a volume of a pod, over another one, and then over all of them: what all pods have on the disk is measured, and its
/// container is started again.
#[cfg_attr(feature = "privileged", test)]
fn a_mount_in_a_pod_that_hangs_holds_up_nothing() -> Result<()> {
    let mut agent = Agent::new("hung-volume")?;
    if !Path::new(FUSE).exists() {
        leave_out("a mount that hangs: no FUSE");
        return Ok(());
    }
    agent.start()?;
    let volumes = json!([
        {"name": "covered", "emptyDir": {}},
        {"name": "in-memory", "emptyDir": {"medium": "Memory"}},
        {"name": "shared", "emptyDir": {}},
    ]);
    let app = || Container::idle("app");
    agent.put(
        &Manifest::new("hung")
            .with("volumes", volumes)
            .with("restartPolicy", "Always".into())
            .container(app()),
    )?;
    agent.put(&Manifest::new("other").container(app()))?;
    agent.wait_pod("other", "runs", is_running)?;
    let pod = agent.wait_pod("hung", "runs", is_running)?;
    agent.stop()?;
    let volumes = pod_dir(&agent.state(), &pod).join("volumes");
    let _disks = ["covered", "in-memory", "shared/below"]
        .map(|it| HungDisk::mount(volumes.join(it)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    agent.start()?;
    for name in ["hung", "other"] {
        until("it is measured", || {
            let stats = agent.stats()?;
            let pod = stats.pods.iter().find(|it| it.pod.name == name);
            let volume = pod.and_then(|it| it.volumes.get("shared"));
            ensure!(volume.is_some_and(|it| it.bytes.is_some()), "{name}");
            Ok(())
        })?;
    }
    let runs_again = |pod: &PodEntry| {
        let last = pid_of(pod, "app").context("it runs")?;
        kill(Pid::from_raw(i32::try_from(last)?), Signal::SIGKILL)?;
        agent.wait_pod("hung", "runs again", |it| {
            is_running(it) && pid_of(it, "app") != Some(last)
        })
    };
    let again = runs_again(&pod)?;
    let _over_all = HungDisk::mount(volumes)?;
    runs_again(&again)?;
    agent.remove_pod("hung")?;
    agent.wait_for("nothing of it is left", || {
        let mut left = fs::read_dir(agent.state().join("pods"))?;
        let is_of_it = |name: &str| name.contains(&pod.uid.0);
        Ok(!left.any(|it| it.is_ok_and(|it| it.file_name().to_str().is_some_and(is_of_it))))
    })
}
