//! OOM kills in every shape, each told with who died, by whose limit, and who wanted the memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::record::{EventRecord, OomScope};
use ballast::model::status::{PodEntry, Status};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::kube::KubeContainer;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape::{self, free_address};
use ballast_tests::wait::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::look::{
    container_path, end_of, has_ended, is_running, of_pods, oom_detail, pid_of, pod_path,
    wait_kills, whose,
};
use super::scaled;

const MIB: u64 = 1 << 20;
/// What a container of these tests may use, in MiB.
const LIMIT: u64 = 24;
/// Bytes: more than that.
const TOO_MUCH: &str = "100663296";

/// An agent under which a kill takes one process, on v2 too.
fn agent(test: &str) -> Result<Agent> {
    let mut agent = Agent::new(test)?.with_kubelet("singleProcessOOMKill: true");
    agent.start()?;
    Ok(agent)
}

fn greedy(args: &[&str]) -> Result<Container> {
    let hog = hog()?;
    let command: Vec<&str> = std::iter::once(hog.as_str())
        .chain(args.iter().copied())
        .collect();
    Ok(Container::new("greedy", &command).limited_to(LIMIT))
}

/// What every kill by a container's own limit has in common.
#[track_caller]
fn check_kill(record: &EventRecord, pod: &PodEntry, limit_path: &str) -> Result<()> {
    let detail = oom_detail(record)?;
    let reason = match detail.victim.is_main_process {
        Some(true) => "OomKilled",
        _ => "OomKilledChild",
    };
    assert_eq!(record.event.reason, reason);
    assert_eq!(whose(record), (pod.name.as_str(), "greedy"));
    let uid = record.event.pod.as_ref().map(|it| &it.uid);
    assert_eq!(uid, Some(&pod.uid));
    assert_eq!(detail.scope, OomScope::Container);
    assert_eq!(detail.qos, Some(pod.qos));
    assert_eq!(detail.victim.comm, "hog");
    assert!(!detail.was_exiting);
    let limit = detail.limit.as_ref().context("no limit is named")?;
    assert_eq!(limit.cgroup_path.as_deref(), Some(limit_path));
    assert_eq!(limit.max_bytes, Some(LIMIT * MIB));
    // The victim has asked for more than half of it, and the kernel shows what it had.
    assert!(detail.victim.memory.anon_bytes > LIMIT * MIB / 2);
    assert_eq!(detail.trigger.comm, "hog");
    let trigger = detail.trigger.pod.as_ref().map(|it| it.name.as_str());
    assert_eq!(trigger, Some(pod.name.as_str()));
    assert_eq!(detail.trigger.container.as_deref(), Some("greedy"));
    Ok(())
}

/// Path of the cgroup of attempt 0 of `greedy`, also after its end.
fn path_at_first(record: &EventRecord) -> Result<String> {
    let path = oom_detail(record)?.victim.cgroup_path.clone();
    path.context("the victim's cgroup is not named")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_containers_limit_ends_the_container() -> Result<()> {
    let agent = agent("oom-container")?;
    agent.put(
        &Manifest::new("one")
            .with_overhead(16)
            .container(greedy(&["alloc", TOO_MUCH])?),
    )?;
    let kills = wait_kills(&agent, 1)?;
    let pod = agent.wait_pod("one", "ends", |it| has_ended(it, "greedy"))?;
    let path = path_at_first(&kills[0])?;
    assert!(path.starts_with(pod_path(&pod).unwrap_or(&path)), "{path}");
    check_kill(&kills[0], &pod, &path)?;
    assert_eq!(oom_detail(&kills[0])?.victim.is_main_process, Some(true));
    let pod = agent.wait_pod("one", "ended by OOM", |it| {
        end_of(it, "greedy") == Some(("OOMKilled".to_owned(), Some(137)))
    })?;
    assert_eq!(pod.oom_kills, 1);
    assert_eq!(pod.phase.to_string(), "Failed");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_pods_limit_names_the_pod() -> Result<()> {
    let agent = agent("oom-pod")?;
    // Each fits into its own limit; both together do not fit into the pod's.
    let hog = hog()?;
    let bytes = (30 * MIB).to_string();
    let fits = |name| {
        Container::new(name, &[&hog, "alloc", &bytes])
            .resources(json!({"memory": "4Mi"}), json!({"memory": "40Mi"}))
    };
    let pod = Manifest::new("both")
        .container(fits("first"))
        .container(fits("second"))
        .with("resources", json!({"limits": {"memory": "48Mi"}}));
    agent.put(&pod)?;
    // Now and then the kernel kills the other one too, before the memory of the first is given back.
    let of_both = |it: &[EventRecord]| of_pods(it.to_vec()).len();
    let kills = agent.wait_events("a kill", "oom", |it| of_both(it) > 0)?;
    let kills = of_pods(kills);
    let pod = agent.wait_pod("both", "has lost one container", |it| {
        has_ended(it, "first") || has_ended(it, "second")
    })?;
    let pod_cgroup = format!("{}/burstable/pod{}", agent.kubepods(), pod.uid);
    let detail = oom_detail(&kills[0])?;
    let (name, victim) = whose(&kills[0]);
    assert_eq!(name, "both");
    assert_eq!(detail.scope, OomScope::Pod);
    let limit = detail.limit.as_ref().context("no limit is named")?;
    assert_eq!(limit.cgroup_path.as_deref(), Some(&*pod_cgroup));
    assert_eq!(limit.max_bytes, Some(48 * MIB));
    assert_eq!(detail.victim.is_main_process, Some(true));
    let trigger = detail.trigger.container.as_deref();
    assert!(matches!(trigger, Some("first" | "second")), "{trigger:?}");
    let end = Some(("OOMKilled".to_owned(), Some(137)));
    // The end is told by the process, and its reason by the kernel.
    agent.wait_pod("both", "ended by OOM", |it| end_of(it, victim) == end)?;
    let other = ["first", "second"].into_iter().find(|it| *it != victim);
    let other = other.context("two containers")?;
    let pod = agent.wait_pod("both", "keeps the other one", |it| {
        pid_of(it, other).is_some() || end_of(it, other) == end
    })?;
    let n_kills = match pid_of(&pod, other) {
        Some(_) => 1,
        None => 2,
    };
    wait_kills(&agent, n_kills)?;
    agent.wait_pod("both", "counts them", |it| it.oom_kills == n_kills as u64)?;
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_child_leaves_the_container_running() -> Result<()> {
    let agent = agent("oom-child")?;
    agent.put(
        &Manifest::new("parent")
            .with_overhead(16)
            .container(greedy(&["child", TOO_MUCH])?),
    )?;
    let kills = wait_kills(&agent, 1)?;
    let pod = agent.wait_pod("parent", "counts the kill", |it| it.oom_kills == 1)?;
    let main = pid_of(&pod, "greedy").context("the container ended")?;
    let path = container_path(&pod, "greedy")?;
    check_kill(&kills[0], &pod, &path)?;
    let victim = &oom_detail(&kills[0])?.victim;
    assert_eq!(victim.is_main_process, Some(false));
    assert_eq!(victim.parent_pid, main);
    assert_eq!(victim.cgroup_path.as_deref(), Some(path.as_str()));
    assert_eq!(oom_detail(&kills[0])?.trigger.pid, victim.pid);
    assert_eq!(cgroup::oom_kills(&path)?, 1);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_for_a_threads_allocation_names_the_process() -> Result<()> {
    let agent = agent("oom-thread")?;
    agent.put(
        &Manifest::new("threads")
            .with_overhead(16)
            .container(greedy(&["thread", TOO_MUCH])?),
    )?;
    let kills = wait_kills(&agent, 1)?;
    let pod = agent.wait_pod("threads", "ends", |it| has_ended(it, "greedy"))?;
    check_kill(&kills[0], &pod, &path_at_first(&kills[0])?)?;
    let detail = oom_detail(&kills[0])?;
    assert_eq!(detail.victim.is_main_process, Some(true));
    assert_eq!(detail.trigger.pid, detail.victim.pid);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_in_a_nested_cgroup_belongs_to_the_container() -> Result<()> {
    let agent = agent("oom-nested")?;
    let mount = cgroup::mount_of("memory");
    let mount = mount.to_str().context("a mount point is text")?;
    agent.put(
        &Manifest::new("nest")
            .with_overhead(16)
            .container(greedy(&["nested", mount, TOO_MUCH])?),
    )?;
    let kills = wait_kills(&agent, 1)?;
    let pod = agent.wait_pod("nest", "counts the kill", |it| it.oom_kills == 1)?;
    let path = container_path(&pod, "greedy")?;
    check_kill(&kills[0], &pod, &path)?;
    let victim = &oom_detail(&kills[0])?.victim;
    assert_eq!(victim.is_main_process, Some(false));
    if let Some(nested) = &victim.cgroup_path {
        assert_eq!(*nested, format!("{path}/nested"));
    }
    Ok(())
}

/// The kernel's programs look for the cgroup of all pods so far up and no further.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_far_below_a_container_belongs_to_it_and_is_told_once() -> Result<()> {
    let agent = agent("oom-deep")?;
    let mount = cgroup::mount_of("memory");
    let mount = mount.to_str().context("a mount point is text")?;
    agent.put(
        &Manifest::new("deep")
            .with_overhead(16)
            .container(greedy(&["deep", mount, TOO_MUCH])?),
    )?;
    let kills = wait_kills(&agent, 1)?;
    agent.wait_pod("deep", "counts the kill", |it| it.oom_kills == 1)?;
    // Where the kernel does not name the limit, it is not looked for so far up.
    assert_eq!(whose(&kills[0]), ("deep", "greedy"));
    assert_eq!(kills[0].event.reason, "OomKilledChild");
    thread::sleep(2 * GRACE);
    wait_kills(&agent, 1)?;
    let pod = agent.wait_pod("deep", "runs", is_running)?;
    assert_eq!(pod.oom_kills, 1);
    Ok(())
}

/// A process of the host's, by a limit of its own: the record names its cgroup, by which it is counted.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_outside_of_the_pods_names_its_cgroup() -> Result<()> {
    let agent = agent("oom-host")?;
    let path = format!("/{}/host", agent.cgroup_root);
    let service = KubeContainer::at(&path)?;
    service.limit(LIMIT)?;
    let _program = service.run_on_host(&format!("exec {} alloc {TOO_MUCH}", hog()?))?;
    agent.wait_for("the kill and its cgroup", || {
        let events = agent.events("oom")?;
        let mut details = events.iter().filter_map(|it| oom_detail(it).ok());
        Ok(details.any(|it| {
            let limit = it.limit.as_ref().and_then(|it| it.cgroup_path.as_deref());
            it.victim.cgroup_path.as_deref() == Some(&*path) && limit == Some(&*path)
        }))
    })
}

/// v2 kills the whole container as kubelet sets it up there, and each victim is told. v1 has no
/// such thing: one process dies.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_group_names_each_of_its_processes() -> Result<()> {
    let mut agent = Agent::new("oom-group")?;
    agent.start()?;
    agent.put(
        &Manifest::new("group")
            .with_overhead(16)
            .container(greedy(&["group", "3", TOO_MUCH])?),
    )?;
    let n = if cgroup::is_unified() { 4 } else { 1 };
    let kills = wait_kills(&agent, n)?;
    let pod = agent.wait_pod("group", "ends", |it| has_ended(it, "greedy"))?;
    let path = path_at_first(&kills[0])?;
    let pids: BTreeSet<u32> = kills
        .iter()
        .map(|it| Ok(oom_detail(it)?.victim.pid))
        .collect::<Result<_>>()?;
    assert_eq!(pids.len(), n);
    let mains = kills
        .iter()
        .filter(|it| oom_detail(it).is_ok_and(|it| it.victim.is_main_process == Some(true)));
    assert_eq!(mains.count(), 1);
    for kill in &kills {
        let detail = oom_detail(kill)?;
        assert_eq!(whose(kill), ("group", "greedy"));
        assert_eq!(kill.event.reason, "OomKilled");
        assert_eq!(detail.victim.ends_container(), Some(true));
        assert_eq!(detail.scope, OomScope::Container);
        let limit = detail.limit.as_ref().context("no limit is named")?;
        assert_eq!(limit.cgroup_path.as_deref(), Some(path.as_str()));
    }
    assert_eq!(
        end_of(&pod, "greedy"),
        Some(("OOMKilled".to_owned(), Some(137)))
    );
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn kills_at_the_same_time_are_told_apart() -> Result<()> {
    let agent = agent("oom-two")?;
    let pods = ["left", "right"];
    for name in pods {
        agent.put(
            &Manifest::new(name)
                .with_overhead(16)
                .container(greedy(&["two", TOO_MUCH])?),
        )?;
    }
    let kills = wait_kills(&agent, 4)?;
    for name in pods {
        let pod = agent.wait_pod(name, "counts two kills", |it| it.oom_kills == 2)?;
        let path = container_path(&pod, "greedy")?;
        let own: Vec<_> = kills.iter().filter(|it| whose(it).0 == name).collect();
        assert_eq!(own.len(), 2, "{kills:#?}");
        for kill in own {
            // One of the two may die before it has half of the limit.
            let detail = oom_detail(kill)?;
            assert_eq!(detail.victim.is_main_process, Some(false));
            assert_eq!(Some(detail.victim.parent_pid), pid_of(&pod, "greedy"));
            let limit = detail.limit.as_ref().context("no limit is named")?;
            assert_eq!(limit.cgroup_path.as_deref(), Some(path.as_str()));
            assert_eq!(detail.scope, OomScope::Container);
        }
        assert_eq!(cgroup::oom_kills(&path)?, 2);
    }
    Ok(())
}

/// Killed so soon that container and cgroup are gone before anyone can look.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_short_lived_container_is_attributed() -> Result<()> {
    let agent = agent("oom-short")?;
    let n = scaled(20, 5)?;
    let hog = hog()?;
    for i in 0..n {
        let container = Container::new("greedy", &[&hog, "alloc", TOO_MUCH]).limited_to(4);
        agent.put(
            &Manifest::new(&format!("short-{i}"))
                .with_overhead(16)
                .container(container),
        )?;
    }
    let kills = wait_kills(&agent, n as usize)?;
    let names: BTreeSet<&str> = kills.iter().map(|it| whose(it).0).collect();
    assert_eq!(names.len(), n as usize, "{names:?}");
    for kill in &kills {
        let detail = oom_detail(kill)?;
        assert_eq!(whose(kill).1, "greedy");
        assert_eq!(detail.scope, OomScope::Container);
        assert_eq!(detail.victim.is_main_process, Some(true), "{kill:#?}");
    }
    let all_told = |status: &Status| {
        let end = Some(("OOMKilled".to_owned(), Some(137)));
        status.pods.len() == n as usize && status.pods.iter().all(|it| end_of(it, "greedy") == end)
    };
    agent.wait("every pod ends by OOM", all_told)?;
    Ok(())
}

/// Nothing lost, nothing attributed to another: the agent's count is the kernel's, pod by pod.
#[cfg_attr(feature = "privileged", test)]
fn a_burst_of_a_thousand_kills_is_counted_exactly() -> Result<()> {
    let agent = agent("oom-burst")?;
    let names = ["burst-a", "burst-b", "burst-c", "burst-d"];
    let each = scaled(250, 10)?;
    let script = format!("{} burst {each} {}; exec sleep 3600", hog()?, 16 * MIB);
    for name in names {
        let container = Container::sh("greedy", &script).limited_to(8);
        agent.put(&Manifest::new(name).with_overhead(16).container(container))?;
    }
    let all = u64::from(each) * names.len() as u64;
    let n_kills = |status: &Status| status.pods.iter().map(|it| it.oom_kills).sum::<u64>();
    // Each hundred has its own time: an emulated machine kills ten in a second.
    for n in (100..all).step_by(100) {
        agent.wait(&format!("{n} OOM kills"), |it| n_kills(it) >= n)?;
    }
    let status = agent.wait(&format!("{all} OOM kills"), |it| {
        n_kills(it) >= all && it.pods.iter().all(is_running)
    })?;
    let kills = of_pods(agent.events("oom")?);
    assert_eq!(kills.len() as u64, all);
    let mut by_pod: BTreeMap<&str, u64> = BTreeMap::new();
    let mut pids = BTreeSet::new();
    for kill in &kills {
        let detail = oom_detail(kill)?;
        let (pod, container) = whose(kill);
        *by_pod.entry(pod).or_default() += 1;
        assert_eq!(container, "greedy");
        assert_eq!(detail.scope, OomScope::Container);
        assert_eq!(detail.victim.is_main_process, Some(false));
        pids.insert((detail.victim.pid, detail.victim.start_boottime_ns));
    }
    assert_eq!(pids.len(), kills.len(), "a kill is told twice");
    for pod in &status.pods {
        let path = container_path(pod, "greedy")?;
        let kernel = cgroup::oom_kills(&path)?;
        assert_eq!(kernel, u64::from(each), "{}", pod.name);
        assert_eq!(pod.oom_kills, kernel, "{}", pod.name);
        assert_eq!(by_pod.get(pod.name.as_str()), Some(&kernel));
    }
    assert_eq!(status.node.ebpf.lost.get("oom").copied().unwrap_or(0), 0);
    Ok(())
}

/// While the agent is stopped the programs find their ring full. What they could not report the kernel has counted.
#[cfg_attr(feature = "privileged", test)]
fn kills_for_which_the_ring_had_no_room_are_counted_all_the_same() -> Result<()> {
    // More than the ring of kills holds.
    const N: u64 = 1500;
    let mut agent = Agent::new("oom-full")?.with_kubelet("singleProcessOOMKill: true");
    agent.metrics = free_address()?;
    agent.start()?;
    let gate = agent.dir.join("gate");
    // Nobody reads the output meanwhile.
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.1; done; {} burst {N} {} >/dev/null 2>&1; exec sleep 3600",
        gate.display(),
        hog()?,
        16 * MIB
    );
    let container = Container::sh("greedy", &script).limited_to(8);
    agent.put(&Manifest::new("full").with_overhead(16).container(container))?;
    let pod = agent.wait_pod("full", "runs", |it| pid_of(it, "greedy").is_some())?;
    let path = container_path(&pod, "greedy")?;
    let pid = Pid::from_raw(agent.pid().context("an agent")?.try_into()?);
    kill(pid, Signal::SIGSTOP)?;
    fs::write(&gate, "")?;
    // Each hundred has its own time: an emulated machine kills ten in a second.
    for n in (100..=N).step_by(100) {
        wait_for(&format!("the kernel counts {n} kills"), || {
            Ok(cgroup::oom_kills(&path)? >= n)
        })?;
    }
    kill(pid, Signal::SIGCONT)?;
    agent.wait_pod("full", "counts them all", |it| it.oom_kills >= N)?;
    for wait in [Duration::ZERO, 2 * GRACE] {
        thread::sleep(wait);
        assert_eq!(cgroup::oom_kills(&path)?, N);
        let pod = agent.wait_pod("full", "runs", |it| pid_of(it, "greedy").is_some())?;
        assert_eq!(pod.oom_kills, N);
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let of = [("pod", "full"), ("container", "greedy")];
        let kills = page.value("ballast_oom_kills_total", &of);
        assert_eq!(kills, Some(N as f64));
        let missed = page.sum("ballast_oom_missed_kills_total", &[("cause", "lost")]);
        let lost = page.sum("ballast_bpf_events_lost_total", &[("stream", "oom")]);
        ensure!(missed > 0.0, "the ring was never full");
        assert_eq!(missed, lost);
    }
    Ok(())
}
