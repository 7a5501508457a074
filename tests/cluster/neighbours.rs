//! Neighbours that are restarted, an agent that is killed, and many pods: no kill is lost or counted twice.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup::{self, kernel_kills};
use ballast_tests::cgroup_writes::Watch;
use ballast_tests::cluster::{Namespace, asking, pod_spec, restart, text};
use ballast_tests::scrape;
use ballast_tests::wait::{patience, until, until_within};
use serde_json::{Value, json};

use super::kills::{is_running, stays};
use super::workloads::{kills_of, pods_of};

/// So many kills of a namespace are counted, by containers and by workloads.
fn check_counted(agent: &Agent, namespace: &str, n: u32) -> Result<()> {
    stays("all kills are counted", || {
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let families = [
            "ballast_oom_kills_total",
            "ballast_oom_workload_kills_total",
        ];
        let found = families.map(|it| page.sum(it, &[("namespace", namespace)]));
        ensure!(found == [f64::from(n); 2], "{found:?} of {n}");
        Ok(())
    })
}

/// How many kills the Events of each pod tell of.
pub(super) fn told(namespace: &Namespace) -> Result<BTreeMap<String, u64>> {
    let mut told = BTreeMap::new();
    for event in namespace.list("events")? {
        if !text(&event, "/reason")?.starts_with("Oom") {
            continue;
        }
        let pod = text(&event, "/involvedObject/name")?;
        let n = event["count"].as_u64().context("a count")?;
        *told.entry(pod.to_owned()).or_default() += n;
    }
    Ok(told)
}

/// The pod stays the same one throughout.
#[cfg_attr(feature = "privileged", test)]
fn kills_while_the_neighbours_are_restarted_are_counted_and_told_once() -> Result<()> {
    const N: u32 = 60;
    let (agent, _way) = asking("cluster-restarts")?;
    let namespace = Namespace::new("restarts")?;
    let script = format!(
        "i=0; while [ $i -lt {N} ]; do tail /dev/zero; sleep 0.2; i=$((i+1)); done; exec sleep 3600"
    );
    namespace.run("storm", &script, "16Mi")?;
    namespace.wait("storm", "runs", is_running)?;
    let before = until("it is shown", || {
        let pods = pods_of(&agent, "restarts")?;
        ensure!(pods.len() == 1, "{pods:#?}");
        Ok(pods)
    })?;
    for (part, program) in [(1, "kubelet"), (2, "containerd"), (3, "kube-apiserver")] {
        let enough = u64::from(N * part / 4);
        agent.wait("some more kills", |status| {
            let mut pods = status.pods.iter();
            pods.any(|it| it.uid == before[0].uid && it.oom_kills >= enough)
        })?;
        restart(program)?;
    }
    check_counted(&agent, "restarts", N)?;
    // The last of them wait until it is time for the next write.
    until_within(5 * patience(), "all are told", || {
        let told = told(&namespace)?;
        ensure!(told.get("storm") == Some(&u64::from(N)), "{told:?}");
        Ok(())
    })?;
    let after = pods_of(&agent, "restarts")?;
    ensure!(
        after.len() == 1 && after[0].uid == before[0].uid,
        "{after:#?}"
    );
    ensure!(after[0].containers[0].name == "main", "{after:#?}");
    // Who comes afterwards has a name and a kill of its own.
    agent.wait("the runtime is followed again", |status| {
        let runtime = status.node.runtime.as_ref();
        runtime.is_some_and(|it| it.is_connected() && it.fault.is_none())
    })?;
    namespace.run("late", "tail /dev/zero; exec sleep 3600", "16Mi")?;
    check_counted(&agent, "restarts", N + 1)?;
    let pods = pods_of(&agent, "restarts")?;
    let late = pods.iter().find(|it| it.name == "late");
    let late = late.context("it is not shown")?;
    ensure!(
        late.containers.len() == 1 && late.containers[0].name == "main",
        "{late:#?}"
    );
    Ok(())
}

/// Pods come, are killed in, and go meanwhile.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_is_killed_twenty_times_loses_no_kill() -> Result<()> {
    const N: u32 = 20;
    let (mut agent, _way) = asking("cluster-churn")?;
    let namespace = Namespace::new("churn")?;
    let script = "tail /dev/zero; sleep 1; tail /dev/zero; sleep 1";
    for n in 0..N {
        namespace.run(&format!("churn-{n}"), script, "16Mi")?;
        agent.kill()?;
        agent.start()?;
    }
    check_counted(&agent, "churn", 2 * N)?;
    let page = scrape::page(&agent.metrics, "/metrics")?;
    for n in 0..N {
        let name = format!("churn-{n}");
        let pod = [("namespace", "churn"), ("pod", &*name)];
        let kills: Vec<_> = page.of("ballast_oom_kills_total", &pod).collect();
        let labels = [pod[0], pod[1], ("container", "main")];
        let found = page.value("ballast_oom_kills_total", &labels);
        ensure!(found == Some(2.0), "{name}: {found:?} of {kills:#?}");
    }
    // What an agent that is killed had not told the next one tells.
    stays("each kill is told once", || {
        let told = told(&namespace)?;
        let all = told.len() == N as usize && told.values().all(|it| *it == 2);
        ensure!(all, "{told:?}");
        Ok(())
    })
}

/// It lives and is killed while no agent runs: the kernel alone has seen its cgroups.
#[cfg_attr(feature = "privileged", test)]
fn a_container_that_is_gone_when_the_agent_is_back_has_its_kill_under_its_name() -> Result<()> {
    let (mut agent, _way) = asking("cluster-away")?;
    let namespace = Namespace::new("away")?;
    agent.kill()?;
    namespace.run("away", "exec tail /dev/zero", "16Mi")?;
    let is_over = |pod: &Value| pod.pointer("/status/phase") == Some(&json!("Failed"));
    let pod = namespace.wait("away", "is over", is_over)?;
    let uid = text(&pod, "/metadata/uid")?;
    let path = format!("{}/burstable/pod{uid}", agent.kubepods());
    until("kubelet has removed its cgroup", || {
        let id = cgroup::id("memory", path.trim_start_matches('/'));
        ensure!(id.is_err(), "it is there");
        Ok(())
    })?;
    agent.start()?;
    check_counted(&agent, "away", 1)?;
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let labels = [("namespace", "away"), ("pod", "away")];
    let kills: Vec<_> = page.of("ballast_oom_kills_total", &labels).collect();
    let labels = [labels[0], labels[1], ("container", "main")];
    let found = page.value("ballast_oom_kills_total", &labels);
    ensure!(kills.len() == 1 && found == Some(1.0), "{kills:#?}");
    stays("it is told", || {
        let told = told(&namespace)?;
        ensure!(told.get("away") == Some(&1), "{told:?}");
        Ok(())
    })?;
    ensure!(pods_of(&agent, "away")?.is_empty(), "it is shown");
    Ok(())
}

/// Each has a kill, and the agent writes nothing below the mounts of the cgroups while they come and go, nor for ten
/// minutes in all.
#[cfg_attr(feature = "privileged", test)]
fn five_hundred_pods_in_turn_are_counted_and_nothing_is_written() -> Result<()> {
    const N: u32 = 500;
    const WATCHED: Duration = Duration::from_mins(10);
    let watch = Watch::new()?;
    let (agent, _way) = asking("cluster-turn")?;
    let pid = agent.pid().context("it runs")?;
    let namespace = Namespace::new("turn")?;
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "turn"},
        "spec": {
            "completions": N,
            "parallelism": 6,
            "template": {"spec": pod_spec("tail /dev/zero; exit 0", "16Mi", "Never")},
        },
    });
    // A shell whose child is killed may be killed as well, and then the Job makes another pod.
    let before = kernel_kills()?;
    namespace.create(&job)?;
    let mut n_writes = 0;
    let mut done = 0;
    let began = Instant::now();
    let mut since = began;
    while done < N || began.elapsed() < WATCHED {
        thread::sleep(Duration::from_secs(1));
        let writers = watch.writers()?;
        ensure!(!writers.contains(&pid), "the agent has written");
        n_writes += writers.len();
        let path = "jsonpath={.status.succeeded}";
        let text = namespace.kubectl(&["get", "job", "turn", "--output", path], None)?;
        let now: u32 = text.parse().unwrap_or(0);
        if now > done {
            (done, since) = (now, Instant::now());
        }
        ensure!(
            done == N || since.elapsed() < patience(),
            "no pod ends any more, after {done}"
        );
    }
    ensure!(n_writes > 0, "nothing is watched");
    // The series of a pod end some time after it.
    stays("all kills are counted", || {
        let found = kills_of(&agent, "turn", "Job", "turn")?;
        let n = kernel_kills()? - before;
        ensure!(n >= u64::from(N), "{n} kills by the kernel");
        ensure!(found == Some(n as f64), "{found:?} of {n}");
        Ok(())
    })?;
    ensure!(!watch.writers()?.contains(&pid), "the agent has written");
    Ok(())
}
