//! OOM kills that no program reports, known from what the kernel counts: at once where the kernel takes
//! no programs, and right in every counter.

use std::thread;

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::record::EventRecord;
use ballast::model::status::{ProgramState, Status};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape;
use ballast_tests::wait::{self, wait_for};
use serde_json::json;

use super::look::{container_path, has_ended, pid_of, whose};
use super::scaled;

/// Bytes: more than a container of these tests may use.
const TOO_MUCH: &str = "100663296";
const LIMIT: u64 = 24;

/// An agent whose programs the kernel refuses. Its full passes are an hour apart: what it tells sooner it
/// tells by itself.
fn agent(test: &str) -> Result<Agent> {
    let mut agent = Agent::new(test)?
        .with_kubelet("singleProcessOOMKill: true")
        .with_kubelet("syncFrequency: 1h");
    agent.is_without_programs = true;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    Ok(agent)
}

/// The kernel takes no rules for devices from such an agent either.
fn limited(container: Container) -> Container {
    let container = container.limited_to(LIMIT);
    container.with("securityContext", json!({"privileged": true}))
}

fn pod(name: &str, how: &str) -> Result<Manifest> {
    let container = limited(Container::new("greedy", &[&hog()?, how, TOO_MUCH]));
    Ok(Manifest::new(name).with_overhead(16).container(container))
}

/// A child is killed for each line that is written to the pipe `more` in the volume.
fn pod_of_many() -> Result<Manifest> {
    let script = format!(
        "cd volumes/shared && mkfifo more && while true; do read line <more && {} alloc {TOO_MUCH}; \
         done",
        hog()?
    );
    let container = limited(Container::sh("greedy", &script));
    Ok(Manifest::new("many").with_overhead(16).container(container))
}

fn missed(agent: &Agent) -> Result<Vec<EventRecord>> {
    let mut records = agent.events("oom")?;
    records.retain(|it| it.event.reason == "OomKillMissed");
    Ok(records)
}

/// The three counters of kills in a container, and that of missed ones.
#[track_caller]
fn check_counters(agent: &Agent, pod: &str, n: f64) -> Result<()> {
    let of = [("pod", pod), ("container", "greedy")];
    let page = scrape::page(&agent.metrics, "/metrics")?;
    ensure!(
        page.value("ballast_oom_kills_total", &of) == Some(n),
        "{:?}",
        page.value("ballast_oom_kills_total", &of)
    );
    let cause = [("cause", "no_programs")];
    let missed = page.value("ballast_oom_missed_kills_total", &cause);
    ensure!(missed == Some(n), "{missed:?} missed");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn without_programs_a_kill_is_told_at_once_and_counted() -> Result<()> {
    let agent = agent("missed-child")?;
    let is_known = |it: &Status| !it.node.ebpf.programs.is_empty();
    let ebpf = agent.wait("says which programs run", is_known)?.node.ebpf;
    let mut programs = ebpf.programs.iter();
    ensure!(
        programs.all(|it| it.state != ProgramState::Attached),
        "{ebpf:?}"
    );
    let mut reasons = ebpf.programs.iter().filter_map(|it| it.reason.as_deref());
    let is_said = |it: &str| it.contains("kills in containers are known from the kernel's counts");
    ensure!(reasons.any(is_said), "{ebpf:?}");

    agent.put(&pod("parent", "child")?)?;
    let pod = agent.wait_pod("parent", "runs", |it| pid_of(it, "greedy").is_some())?;
    let path = container_path(&pod, "greedy")?;
    agent.wait_for("the kernel counts a kill", || {
        Ok(cgroup::oom_kills(&path)? == 1)
    })?;
    agent.wait_for("the kill is told", || Ok(!missed(&agent)?.is_empty()))?;
    let records = missed(&agent)?;
    assert_eq!(records.len(), 1, "{records:#?}");
    assert_eq!(whose(&records[0]), ("parent", "greedy"));
    let pod = agent.wait_pod("parent", "counts the kill", |it| it.oom_kills == 1)?;
    assert!(pid_of(&pod, "greedy").is_some(), "the parent goes on");
    check_counters(&agent, "parent", 1.0)?;
    let of = [("pod", "parent"), ("container", "greedy")];
    agent.wait_for("cAdvisor's counter has it", || {
        let page = scrape::page(&agent.metrics, "/metrics/cadvisor")?;
        Ok(page.value("container_oom_events_total", &of) == Some(1.0))
    })
}

/// The kernel counts its only process twice, and before Linux 5.17 does not say that it did.
#[cfg_attr(feature = "privileged", test)]
fn without_programs_a_container_that_goes_as_a_whole_counts_its_process_once() -> Result<()> {
    let mut agent = Agent::new("missed-group")?;
    agent.is_without_programs = true;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    agent.put(&pod("whole", "alloc")?)?;
    agent.wait_pod("whole", "ends", |it| has_ended(it, "greedy"))?;
    agent.wait_pod("whole", "counts the kill", |it| it.oom_kills > 0)?;
    thread::sleep(2 * GRACE);
    check_counters(&agent, "whole", 1.0)
}

/// The cgroup is removed right after the kill.
#[cfg_attr(feature = "privileged", test)]
fn without_programs_the_kill_that_ends_a_container_is_counted() -> Result<()> {
    let agent = agent("missed-main")?;
    let n = 5;
    for i in 0..n {
        let name = format!("one-{i}");
        let pod = pod(&name, "alloc")?.with("restartPolicy", json!("Never"));
        agent.put(&pod)?;
    }
    for i in 0..n {
        let name = format!("one-{i}");
        agent.wait_pod(&name, "ends", |it| has_ended(it, "greedy"))?;
        agent.wait_pod(&name, "counts the kill", |it| it.oom_kills == 1)?;
    }
    assert_eq!(missed(&agent)?.len(), n);
    Ok(())
}

/// Killed without a word amid kills, and started again.
#[cfg_attr(feature = "privileged", test)]
fn without_programs_an_agent_that_dies_amid_kills_counts_each_once() -> Result<()> {
    let mut agent = agent("missed-burst")?;
    let n = scaled(200, 30)?;
    let script = format!("{} burst {n} {TOO_MUCH}; exec sleep 3600", hog()?);
    let container = limited(Container::sh("greedy", &script));
    agent.put(
        &Manifest::new("burst")
            .with_overhead(16)
            .container(container),
    )?;
    let pod = agent.wait_pod("burst", "runs", |it| pid_of(it, "greedy").is_some())?;
    let path = container_path(&pod, "greedy")?;
    let by_kernel = || cgroup::oom_kills(&path);
    for part in 1..=3 {
        agent.wait_for("some more kills", || {
            Ok(by_kernel()? >= u64::from(n * part / 4))
        })?;
        agent.kill()?;
        agent.start()?;
    }
    agent.wait_for("the end of the kills", || Ok(by_kernel()? == u64::from(n)))?;
    check_all_are_counted(&agent, "burst", n)?;
    // Later than whatever is still compared.
    thread::sleep(2 * GRACE);
    check_all_are_counted(&agent, "burst", n)
}

/// In the counters of both pages and in the status.
pub(super) fn check_all_are_counted(agent: &Agent, pod: &str, n: u32) -> Result<()> {
    let of = [("pod", pod), ("container", "greedy")];
    let all = Some(f64::from(n));
    wait::until("all kills are counted", || {
        let (own, cadvisor) = scrape::oom_kills(&agent.metrics, &of, &of)?;
        let status = agent.status()?;
        let shown = status.pods.iter().find(|it| it.name == pod);
        let shown = shown.map(|it| it.oom_kills);
        ensure!(
            (own, cadvisor, shown) == (all, all, Some(n.into())),
            "of {n}: {own:?}, {cadvisor:?}, {shown:?}"
        );
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn without_programs_a_kill_while_no_agent_runs_is_counted_once() -> Result<()> {
    let mut agent = agent("missed-restart")?;
    agent.put(&pod_of_many()?)?;
    let pod = agent.wait_pod("many", "runs", |it| pid_of(it, "greedy").is_some())?;
    let path = container_path(&pod, "greedy")?;
    let more = super::look::pod_dir(&agent.state(), &pod).join("volumes/shared/more");
    let kill_one = |n: u64| -> Result<()> {
        wait_for("a pipe", || Ok(more.exists()))?;
        std::fs::write(&more, "\n").context("ask for a kill")?;
        wait_for("the kernel counts a kill", || {
            Ok(cgroup::oom_kills(&path)? == n)
        })
    };
    kill_one(1)?;
    agent.wait_pod("many", "counts one kill", |it| it.oom_kills == 1)?;
    agent.stop()?;
    kill_one(2)?;
    for _ in 0..2 {
        agent.start()?;
        agent.wait_pod("many", "counts both kills", |it| it.oom_kills == 2)?;
        check_counters(&agent, "many", 2.0)?;
        agent.stop()?;
    }
    Ok(())
}
