//! Processes where they should not be, and cgroups that somebody has frozen: nothing of it keeps a
//! pod from ending, and the agent ends with none.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, iter, thread};

use anyhow::{Context, Result, ensure};
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape::{free_address, text};
use ballast_tests::wait::until;

use super::look::{is_running, pid_of, pod_path};

/// A shell line for each hierarchy: puts `pid` into the cgroup at `path`, a path from the mount.
fn join(pid: &str, path: &str) -> String {
    let join = |mount: PathBuf| {
        let procs = mount
            .join(path.trim_start_matches('/'))
            .join("cgroup.procs");
        format!("echo {pid} >{}; ", procs.display())
    };
    cgroup::mounts().into_iter().map(join).collect()
}

/// The cgroup2 line, or that of memory: `/proc/PID/cgroup`.
fn cgroup_of(pid: u32) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let wanted = match cgroup::is_unified() {
        true => "0::",
        false => ":memory:",
    };
    let line = text.lines().find(|it| it.contains(wanted));
    let (_, path) = line
        .and_then(|it| it.split_once(wanted))
        .context(text.clone())?;
    Ok(path.to_owned())
}

/// One that ended and waits for whoever collects it, as the init of this machine, is gone.
fn is_there(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, it)| !it.starts_with(['Z', 'X']))
}

#[cfg_attr(feature = "privileged", test)]
fn a_container_that_left_its_cgroup_is_told_and_ends_with_its_pod() -> Result<()> {
    let mut agent = Agent::new("escape")?.with_quick_passes();
    agent.metrics = free_address()?;
    agent.start()?;
    // As a command of a container writes `$$`.
    let moves = join("$$$$", "/");
    let script = format!("trap '' TERM; {moves}while :; do sleep 1; done");
    let pod = Manifest::new("escape")
        .with("terminationGracePeriodSeconds", serde_json::json!(1))
        .container(Container::sh("app", &script));
    agent.put(&pod)?;
    let pod = agent.wait_pod("escape", "runs", is_running)?;
    let pid = pid_of(&pod, "app").context("it runs")?;
    agent.wait_for("it has moved", || Ok(cgroup_of(pid)? == "/"))?;
    let told = |agent: &Agent| -> Result<Vec<String>> {
        let mut events = agent.events("container")?;
        events.retain(|it| it.event.reason == "ContainerLeftCgroup");
        Ok(events.into_iter().map(|it| it.event.message).collect())
    };
    agent.wait_for("it is told", || Ok(!told(&agent)?.is_empty()))?;
    let shows_it = |pod: &PodEntry| {
        pod.message
            .as_ref()
            .is_some_and(|it| it.contains("app: its first process"))
    };
    agent.wait_pod("escape", "is shown", shows_it)?;
    until("it is counted", || {
        let page = text(&agent.metrics, "/metrics")?;
        ensure!(
            page.lines().any(|it| it == "ballast_escaped_containers 1"),
            "{page}"
        );
        Ok(())
    })?;
    // Another agent finds it again, and tells it again.
    agent.kill()?;
    agent.start()?;
    let pod = agent.wait_pod("escape", "runs", is_running)?;
    assert_eq!(pid_of(&pod, "app"), Some(pid));
    agent.wait_for("it is told", || Ok(!told(&agent)?.is_empty()))?;
    let messages = told(&agent)?;
    assert!(messages[0].contains(&format!("pid {pid}")), "{messages:?}");
    agent.remove_pod("escape")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    assert!(!is_there(pid), "the process runs on");
    assert_eq!(told(&agent)?, messages, "it is told once");
    Ok(())
}

/// Its record is lost as well: it is found by that of its pod, and no second copy starts beside it.
#[cfg_attr(feature = "privileged", test)]
fn a_container_that_left_its_cgroup_is_found_without_its_record() -> Result<()> {
    let mut agent = Agent::new("escape-lost")?.with_quick_passes();
    agent.start()?;
    let journal = agent.dir.join("journal");
    let script = format!(
        "echo started >>{}; {}while :; do sleep 1; done",
        journal.display(),
        join("$$$$", "/")
    );
    let pod = Manifest::new("escape").with("restartPolicy", "Always".into());
    agent.put(&pod.container(Container::sh("app", &script)))?;
    let pod = agent.wait_pod("escape", "runs", is_running)?;
    let pid = pid_of(&pod, "app").context("it runs")?;
    agent.wait_for("it has moved", || Ok(cgroup_of(pid)? == "/"))?;
    // Its start is stored by then.
    agent.wait_full_passes(1)?;
    agent.kill()?;
    fs::remove_dir_all(agent.state().join("containers"))?;
    agent.start()?;
    agent.wait_full_passes(2)?;
    let pod = agent.wait_pod("escape", "runs", is_running)?;
    assert_eq!(pid_of(&pod, "app"), Some(pid));
    assert_eq!(fs::read_to_string(&journal)?.lines().count(), 1);
    agent.remove_pod("escape")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    assert!(!is_there(pid), "the process runs on");
    Ok(())
}

/// A pod whose first process stays, and the pid of a daemon that it has started and that has left.
fn with_daemon_outside(agent: &Agent, manifest: Manifest) -> Result<(PodEntry, u32, Vec<String>)> {
    let name = manifest.name().to_owned();
    let note = agent.dir.join("daemon");
    let moves = join("$$$$", "/");
    let daemon = format!(
        "echo $$$$ >{}; {moves}while :; do sleep 1; done",
        note.display()
    );
    // Nobody waits for the shell between: whose the daemon is is not to be seen from its parent alone.
    let script = format!("(sh -c '{daemon}' &); while :; do sleep 1; done");
    agent.put(&manifest.container(Container::sh("app", &script)))?;
    agent.wait_pod(&name, "runs", is_running)?;
    let pid = || -> Result<u32> { Ok(fs::read_to_string(&note)?.trim().parse()?) };
    agent.wait_for("its daemon has moved", || {
        Ok(pid().is_ok_and(|it| cgroup_of(it).is_ok_and(|it| it == "/")))
    })?;
    let pid = pid()?;
    let pod = agent.wait_pod(&name, "shows it", |pod| {
        let message = pod.message.as_ref();
        message.is_some_and(|it| it.contains(&format!("app: its process, pid {pid}, ")))
    })?;
    let mut events = agent.events("container")?;
    events.retain(|it| it.event.reason == "ContainerLeftCgroup");
    let told = events.into_iter().map(|it| it.event.message).collect();
    Ok((pod, pid, told))
}

#[cfg_attr(feature = "privileged", test)]
fn a_daemon_that_left_the_cgroup_ends_with_its_container() -> Result<()> {
    let mut agent = Agent::new("stray")?.with_quick_passes();
    agent.metrics = free_address()?;
    agent.start()?;
    let (pod, daemon, told) = with_daemon_outside(&agent, Manifest::new("stray"))?;
    assert_eq!(told.len(), 1, "{told:?}");
    let page = text(&agent.metrics, "/metrics")?;
    ensure!(
        page.lines().any(|it| it == "ballast_escaped_containers 1"),
        "{page}"
    );
    // Another agent finds it again.
    agent.kill()?;
    agent.start()?;
    agent.wait_pod("stray", "shows it", |it| it.message.is_some())?;
    // Its container ends by itself, and neither the pod nor anybody else is asked to.
    let first = pid_of(&pod, "app").context("it runs")?;
    ensure!(is_there(daemon), "it ended before its container");
    Command::new("kill")
        .args(["-9", &first.to_string()])
        .status()?;
    until("the daemon ends with it", || {
        ensure!(!is_there(daemon), "the process runs on");
        Ok(())
    })?;
    agent.remove_pod("stray")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_daemon_of_the_hosts_pid_namespace_outlives_its_container() -> Result<()> {
    let mut agent = Agent::new("stray-host")?.with_quick_passes();
    agent.start()?;
    let manifest = Manifest::new("stray-host").with("hostPID", serde_json::json!(true));
    let (_, daemon, told) = with_daemon_outside(&agent, manifest)?;
    ensure!(told.iter().all(|it| it.contains("outlives")), "{told:?}");
    agent.remove_pod("stray-host")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    thread::sleep(Duration::from_secs(1));
    ensure!(is_there(daemon), "it was ended");
    Command::new("kill")
        .args(["-9", &daemon.to_string()])
        .status()?;
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_was_put_into_a_pod_does_not_end_with_it() -> Result<()> {
    let mut agent = Agent::new("captive")?.with_quick_passes();
    agent.start()?;
    let agent_pid = agent.pid().context("it runs")?;
    agent.put(&Manifest::new("captor").container(Container::idle("app")))?;
    let pod = agent.wait_pod("captor", "runs", is_running)?;
    let path = cgroup_of(pid_of(&pod, "app").context("it runs")?)?;
    let take = |path: &str| -> Result<()> {
        let script = join(&agent_pid.to_string(), path);
        Command::new("sh").args(["-c", &script]).status()?;
        Ok(())
    };
    take(&path)?;
    agent.wait_for("it has left", || {
        Ok(!cgroup_of(agent_pid)?.contains("kubepods"))
    })?;
    agent.wait_events("it is told", "node", |it| {
        it.iter().any(|it| it.event.reason == "AgentLeftCgroup")
    })?;
    // And right before the pod ends, when nobody has looked yet.
    take(&path)?;
    agent.remove_pod("captor")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    thread::sleep(Duration::from_secs(1));
    assert_eq!(agent.status()?.agent.pid, agent_pid, "the agent was killed");
    Ok(())
}

/// The freezer of this machine: its file, and what it is written.
fn freezer() -> (&'static str, &'static str) {
    match cgroup::is_unified() {
        true => ("cgroup.freeze", "1"),
        false => ("freezer.state", "FROZEN"),
    }
}

/// A pod that an agent which died has left frozen. Between that and the next start, and once that has been made,
/// something else happens.
fn check_thawed(
    test: &str,
    before_start: impl Fn(&Agent, &PodEntry) -> Result<()>,
    after_start: impl Fn(&Agent, &Manifest) -> Result<()>,
) -> Result<()> {
    let mut agent = Agent::new(test)?.with_quick_passes();
    agent.start()?;
    let ticks = agent.dir.join("ticks");
    let script = format!(
        "while :; do echo tick >>{}; sleep 0.1; done",
        ticks.display()
    );
    let manifest = Manifest::new("pod").container(Container::sh("app", &script));
    agent.put(&manifest)?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    agent.kill()?;
    let (file, frozen) = freezer();
    cgroup::write("freezer", pod_path(&pod)?, file, frozen)?;
    before_start(&agent, &pod)?;
    agent.start()?;
    after_start(&agent, &manifest)?;
    agent.wait_events("it is told", "pod", |it| {
        it.iter().any(|it| it.event.reason == "PodThawed")
    })?;
    let n_ticks = || Ok::<_, std::io::Error>(fs::read(&ticks)?.len());
    let before = n_ticks()?;
    agent.wait_for("it goes on", || Ok(n_ticks()? > before))?;
    let after = agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&pod, "app"));
    Ok(())
}

/// Nobody else would ever thaw it.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_a_dead_agent_left_frozen_goes_on() -> Result<()> {
    check_thawed("thawed", |_, _| Ok(()), |_, _| Ok(()))
}

/// One of which nobody can say at the start what it is, too.
#[cfg_attr(feature = "privileged", test)]
fn a_frozen_pod_that_nobody_can_name_goes_on_once_it_is_known() -> Result<()> {
    let lose = |agent: &Agent, pod: &PodEntry| {
        let record = agent.state().join(format!("pods/{}.json", pod.uid));
        fs::write(record, "spoilt")?;
        agent.put_file("pod.yaml", "kind: Pod\nmetadata: {name: pod\n")
    };
    check_thawed("thawed-late", lose, |agent, manifest| {
        agent.wait_events("that nobody knows the pod", "node", |it| {
            it.iter().any(|it| it.event.reason == "PodUndecided")
        })?;
        agent.put(manifest)
    })
}

/// As a container can do it to itself below, and anybody to the pod.
#[cfg_attr(feature = "privileged", test)]
fn a_frozen_pod_ends_all_the_same() -> Result<()> {
    let mut agent = Agent::new("frozen")?;
    agent.start()?;
    let pod = Manifest::new("frozen")
        .with("terminationGracePeriodSeconds", serde_json::json!(1))
        .container(Container::sh("app", "sleep 3600 & sleep 3600 & wait"));
    agent.put(&pod)?;
    let pod = agent.wait_pod("frozen", "runs", is_running)?;
    let pid = pid_of(&pod, "app").context("it runs")?;
    let container = cgroup_of(pid)?;
    let (file, frozen) = freezer();
    let own = Path::new(&container);
    let pod_path = own
        .parent()
        .context("a pod above it")?
        .display()
        .to_string();
    let nested = format!("{container}/nested");
    fs::create_dir(cgroup::dir_of("freezer", &nested))?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next().context("a child")?;
    cgroup::write("freezer", &nested, "cgroup.procs", child)?;
    for path in [&nested, &pod_path] {
        cgroup::write("freezer", path, file, frozen)?;
    }
    agent.remove_pod("frozen")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    assert!(!is_there(pid), "the process is still there");
    if !cgroup::is_unified() {
        agent.wait_events("it is told", "node", |it| {
            it.iter().any(|it| it.event.reason == "CgroupThawed")
        })?;
    }
    Ok(())
}

/// As a container can make them that mounts the hierarchy, or has a cgroup namespace of its own.
#[cfg_attr(feature = "privileged", test)]
fn cgroups_however_deep_and_whatever_their_names_end_with_their_pod() -> Result<()> {
    const DEPTH: usize = 200;
    let mut agent = Agent::new("deep")?;
    agent.start()?;
    let pod = Manifest::new("deep")
        .with("terminationGracePeriodSeconds", serde_json::json!(1))
        .container(Container::sh("app", "sleep 3600 & wait"));
    agent.put(&pod)?;
    let pod = agent.wait_pod("deep", "runs", is_running)?;
    let pid = pid_of(&pod, "app").context("it runs")?;
    let container = cgroup_of(pid)?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next().context("a child")?;
    // cpuset and devices of cgroup v1 want more than a directory.
    for controller in ["freezer", "memory"] {
        let mut deepest = cgroup::dir_of(controller, &container);
        deepest.extend(iter::repeat_n("d", DEPTH));
        deepest.push(OsStr::from_bytes(b"caf\xe9"));
        fs::create_dir_all(&deepest)?;
        fs::write(deepest.join("cgroup.procs"), child)?;
    }
    let child = child.parse()?;
    assert!(is_there(child));
    agent.remove_pod("deep")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    assert!(!is_there(child), "the process is still there");
    for controller in ["freezer", "memory"] {
        let container = cgroup::dir_of(controller, &container);
        assert!(
            !container.exists(),
            "{} is still there",
            container.display()
        );
    }
    Ok(())
}
