//! Every limit that is written, read back from the kernel: node, QoS class, pod, container.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ballast::model::record::EventRecord;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use nix::mount::{MsFlags, mount, umount};
use serde_json::json;

use super::look::{container_path, is_running, pid_of, pod_path};

const MIB: u64 = 1 << 20;
const PIDS_LIMIT: u64 = 64;

/// What the files of one cgroup shall hold. `None`: without a limit.
#[derive(Clone, Copy)]
struct Limits {
    shares: u64,
    /// The weight that the shares become on v2.
    weight: u64,
    /// Of 100 ms, in microseconds.
    quota: Option<u64>,
    memory: Option<u64>,
    pids: Option<u64>,
}

#[track_caller]
fn check(cgroup_path: &str, wanted: Limits) -> Result<()> {
    let number = |it: Option<u64>, none: &str| it.map_or(none.to_owned(), |it| it.to_string());
    let mut files = Vec::new();
    if cgroup::is_unified() {
        files.push(("cpu", "cpu.weight", wanted.weight.to_string()));
        let max = format!("{} 100000", number(wanted.quota, "max"));
        files.push(("cpu", "cpu.max", max));
        files.push(("memory", "memory.max", number(wanted.memory, "max")));
    } else {
        files.push(("cpu", "cpu.shares", wanted.shares.to_string()));
        files.push(("cpu", "cpu.cfs_period_us", "100000".to_owned()));
        files.push(("cpu", "cpu.cfs_quota_us", number(wanted.quota, "-1")));
        // Without a limit the kernel shows all pages that a counter can count.
        let unlimited = "9223372036854771712";
        let memory = number(wanted.memory, unlimited);
        files.push(("memory", "memory.limit_in_bytes", memory));
    }
    files.push(("pids", "pids.max", number(wanted.pids, "max")));
    for (controller, file, value) in files {
        let kept = cgroup::read(controller, cgroup_path, file)?;
        assert_eq!(kept, value, "{file} of {cgroup_path}");
    }
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn every_limit_of_a_pod_is_kept_by_the_kernel() -> Result<()> {
    let mut agent = Agent::new("limits")?.with_kubelet(&format!("podPidsLimit: {PIDS_LIMIT}"));
    agent.start()?;
    let same = json!({"cpu": "250m", "memory": "64Mi"});
    let pods = [
        Manifest::new("guaranteed").container(Container::idle("app").resources(same.clone(), same)),
        Manifest::new("burstable").container(Container::idle("app").resources(
            json!({"cpu": "100m", "memory": "32Mi"}),
            json!({"cpu": "500m", "memory": "96Mi"}),
        )),
        // One container without limits leaves the pod without.
        Manifest::new("half-open")
            .container(Container::idle("app").resources(json!({"cpu": "50m"}), json!({})))
            .container(
                Container::idle("bounded")
                    .resources(json!({}), json!({"cpu": "200m", "memory": "48Mi"})),
            ),
        Manifest::new("besteffort").container(Container::idle("app")),
    ];
    for pod in &pods {
        agent.put(pod)?;
    }
    let status = agent.wait("four running pods", |status| {
        status.pods.len() == pods.len() && status.pods.iter().all(is_running)
    })?;
    let find = |name: &str| status.pods.iter().find(|it| it.name == name);
    let pod = |name: &str| find(name).context("a pod that runs");
    let pids = Some(PIDS_LIMIT);

    let guaranteed = Limits {
        shares: 256,
        weight: 10,
        quota: Some(25_000),
        memory: Some(64 * MIB),
        pids,
    };
    check(pod_path(pod("guaranteed")?)?, guaranteed)?;
    let of_container = Limits {
        weight: 35,
        pids: None,
        ..guaranteed
    };
    check(&container_path(pod("guaranteed")?, "app")?, of_container)?;

    let burstable = Limits {
        shares: 102,
        weight: 4,
        quota: Some(50_000),
        memory: Some(96 * MIB),
        pids,
    };
    check(pod_path(pod("burstable")?)?, burstable)?;
    let of_container = Limits {
        weight: 17,
        pids: None,
        ..burstable
    };
    check(&container_path(pod("burstable")?, "app")?, of_container)?;

    let open = Limits {
        shares: 256,
        weight: 10,
        quota: None,
        memory: None,
        pids,
    };
    check(pod_path(pod("half-open")?)?, open)?;
    let app = Limits {
        shares: 51,
        weight: 11,
        pids: None,
        ..open
    };
    check(&container_path(pod("half-open")?, "app")?, app)?;
    let bounded = Limits {
        shares: 204,
        weight: 29,
        quota: Some(20_000),
        memory: Some(48 * MIB),
        pids: None,
    };
    check(&container_path(pod("half-open")?, "bounded")?, bounded)?;

    let besteffort = Limits {
        shares: 2,
        weight: 1,
        quota: None,
        memory: None,
        pids,
    };
    check(pod_path(pod("besteffort")?)?, besteffort)?;
    let of_container = Limits {
        pids: None,
        ..besteffort
    };
    check(&container_path(pod("besteffort")?, "app")?, of_container)?;

    // The classes: Burstable has the sum of its pods' requests, BestEffort the least there is.
    let kubepods = format!("/{}/kubepods", agent.cgroup_root);
    let class = |shares, weight| Limits {
        shares,
        weight,
        quota: None,
        memory: None,
        pids: None,
    };
    check(&format!("{kubepods}/burstable"), class(358, 14))?;
    check(&format!("{kubepods}/besteffort"), class(2, 1))?;
    let amount = |name: &str| {
        let resource = status.node.resources.get(name);
        resource.map(|it| it.capacity).context("a resource")
    };
    let shares = amount("cpu")? * 1024 / 1000;
    let memory = amount("memory")?;
    let files = match cgroup::is_unified() {
        true => [
            ("cpu", "cpu.weight", 1 + (shares - 2) * 9_999 / 262_142),
            ("memory", "memory.max", memory),
        ],
        false => [
            ("cpu", "cpu.shares", shares),
            ("memory", "memory.limit_in_bytes", memory),
        ],
    };
    for (controller, file, value) in files {
        let kept = cgroup::read(controller, &kubepods, file)?;
        assert_eq!(kept, value.to_string(), "{file} of kubepods");
    }
    assert_eq!(status.agent.failed_writes, 0);
    assert_eq!(status.warnings, [""; 0]);
    Ok(())
}

/// On v2 a kill takes the whole container, as kubelet has it, unless it is told otherwise.
#[cfg_attr(feature = "privileged", test)]
fn containers_are_killed_as_one_on_v2_unless_told_otherwise() -> Result<()> {
    for (field, group) in [("maxPods: 110", "1"), ("singleProcessOOMKill: true", "0")] {
        let mut agent = Agent::new("oom-group-file")?.with_kubelet(field);
        agent.start()?;
        agent.put(&Manifest::new("pod").container(Container::idle("app").limited_to(16)))?;
        let pod = agent.wait_pod("pod", "runs", is_running)?;
        let path = container_path(&pod, "app")?;
        if cgroup::is_unified() {
            let kept = cgroup::read("memory", &path, "memory.oom.group")?;
            assert_eq!(kept, group, "{field}");
        } else {
            let control = cgroup::read("memory", &path, "memory.oom_control")?;
            assert!(control.contains("oom_kill_disable 0"), "{control}");
        }
    }
    Ok(())
}

/// A process is in its cgroup in every hierarchy, and so is what it starts.
#[cfg_attr(feature = "privileged", test)]
fn processes_are_in_their_cgroup_in_every_hierarchy() -> Result<()> {
    let mut agent = Agent::new("membership")?;
    agent.start()?;
    let script = "sleep 3600 & wait";
    agent.put(&Manifest::new("pod").container(Container::sh("app", script)))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let path = container_path(&pod, "app")?;
    let main = pid_of(&pod, "app").context("it runs")?;
    agent.wait_for("the child of the container", || {
        Ok(cgroup::procs(&cgroup::dir_of("memory", &path)).len() == 2)
    })?;
    let own = cgroup::procs(&cgroup::dir_of("memory", &path));
    assert!(own.contains(&main));
    let dirs = cgroup::dirs_in_all(&path);
    assert!(!dirs.is_empty());
    for dir in &dirs {
        assert_eq!(cgroup::procs(dir), own, "{}", dir.display());
    }
    // Where it is not made it is not joined: only hierarchies without controllers may lack it.
    let n_with_controllers = match cgroup::is_unified() {
        true => 1,
        false => fs::read_to_string(format!("/proc/{main}/cgroup"))?
            .lines()
            .filter(|line| {
                let controllers = line.split(':').nth(1).unwrap_or_default();
                !controllers.is_empty() && !controllers.starts_with("name=")
            })
            .filter(|line| line.ends_with(&path))
            .count(),
    };
    ensure!(
        dirs.len() >= n_with_controllers && n_with_controllers > 0,
        "{dirs:?}"
    );
    Ok(())
}

/// Score adjustments by class; what the kernel refuses without CAP_SYS_RESOURCE is told.
#[cfg_attr(feature = "privileged", test)]
fn oom_score_adj_follows_the_class_or_its_refusal_is_told() -> Result<()> {
    let mut agent = Agent::new("oom-score")?;
    agent.start()?;
    let same = json!({"cpu": "100m", "memory": "64Mi"});
    let pods = [
        Manifest::new("guaranteed").container(Container::idle("app").resources(same.clone(), same)),
        Manifest::new("burstable")
            .container(Container::idle("app").resources(json!({"memory": "64Mi"}), json!({}))),
        Manifest::new("besteffort").container(Container::idle("app")),
    ];
    for pod in &pods {
        agent.put(pod)?;
    }
    let status = agent.wait("three running pods", |status| {
        status.pods.len() == pods.len() && status.pods.iter().all(is_running)
    })?;
    let memory = status
        .node
        .resources
        .get("memory")
        .context("memory")?
        .capacity;
    let share = i64::try_from(1000 * 64 * MIB / memory)?;
    let own = score_of(agent.pid().context("it runs")?)?;
    let warnings = agent.events("container")?;
    for (name, wanted) in [
        ("guaranteed", -997),
        ("burstable", (1000 - share).clamp(3, 999)),
        ("besteffort", 1000),
    ] {
        let pod = status.pods.iter().find(|it| it.name == name);
        let pod = pod.context("a pod")?;
        let actual = score_of(pid_of(pod, "app").context("it runs")?)?;
        let is_warned = warnings.iter().any(|it| is_warning(it, pod));
        if actual != wanted {
            assert!(wanted < own, "{name}: {actual}, wanted {wanted}");
            assert_eq!(actual, own, "{name}");
        }
        assert_eq!(is_warned, actual != wanted, "{name}: {warnings:#?}");
    }
    Ok(())
}

fn score_of(pid: u32) -> Result<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    Ok(text.trim().parse()?)
}

fn is_warning(record: &EventRecord, pod: &PodEntry) -> bool {
    record.event.reason == "StartedWithWarning"
        && record.event.pod.as_ref().map(|it| &it.uid) == Some(&pod.uid)
        && record.event.message.contains("oom_score_adj")
}

/// `oomScoreAdj` is about the agent itself; where the kernel does not let it go below what it was
/// started with, it says so and works on.
#[cfg_attr(feature = "privileged", test)]
fn the_agent_has_the_oom_score_that_it_is_to_have() -> Result<()> {
    let mut agent = Agent::new("score")?.with_kubelet("oomScoreAdj: 500");
    let score = |agent: &Agent| -> Result<String> {
        let pid = agent.pid().context("it runs")?;
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
        Ok(text.trim().to_owned())
    };
    agent.start()?;
    assert_eq!(score(&agent)?, "500");
    agent.stop()?;
    agent.kubelet = agent
        .kubelet
        .replace("oomScoreAdj: 500", "oomScoreAdj: -999");
    agent.start()?;
    let events = agent.events("node")?;
    let is_told = events
        .iter()
        .any(|it| it.event.reason == "OomScoreAdjRefused");
    let actual = score(&agent)?;
    assert_ne!(is_told, actual == "-999", "{actual}");
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    agent.wait_pod("pod", "runs", is_running)?;
    Ok(())
}

/// Takes a mount away when it is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        umount(&self.0).ok();
    }
}

/// Something is mounted in the cgroup of a pod that is over: the kernel removes neither, and what is
/// left has the least share of CPU until it can be.
#[cfg_attr(feature = "privileged", test)]
fn a_cgroup_that_cannot_be_removed_has_the_least_cpu() -> Result<()> {
    let mut agent = Agent::new("stubborn")?.with_quick_passes();
    agent.start()?;
    let amounts = json!({"cpu": "500m", "memory": "16Mi"});
    let container = Container::idle("app").resources(amounts.clone(), amounts);
    agent.put(&Manifest::new("pod").container(container))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let path = pod_path(&pod)?;
    let (file, before, least) = match cgroup::is_unified() {
        true => ("cpu.weight", "20", "1"),
        false => ("cpu.shares", "512", "2"),
    };
    assert_eq!(cgroup::read("cpu", path, file)?, before);
    let inner = cgroup::dir_of("cpu", path).join("stubborn");
    fs::create_dir(&inner)?;
    let none = None::<&str>;
    mount(Some(&agent.dir), &inner, none, MsFlags::MS_BIND, none)?;
    let mounted = Mounted(inner);
    agent.remove_pod("pod")?;
    agent.wait_for("it has the least CPU", || {
        Ok(cgroup::read("cpu", path, file)? == least)
    })?;
    drop(mounted);
    agent.wait("it is gone", |it| it.pods.is_empty())?;
    assert_eq!(cgroup::dirs_in_all(path), Vec::<PathBuf>::new());
    Ok(())
}
