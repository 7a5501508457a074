//! CPUs that go offline and come back, in a virtual machine: elsewhere they are not the tests'.

use std::fs;

use anyhow::{Context, Result};
use ballast::model::cpuset::CpuSet;
use ballast::model::status::Status;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::kube::{Driver, KubeTree};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape::{free_address, page};

use super::look::{is_running, pid_of};
use super::only_in_a_vm;

const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";

fn online() -> Result<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus: CpuSet = text.trim().parse()?;
    Ok(cpus.len())
}

fn has_cpus(status: &Status, n: usize) -> bool {
    let cpu = status.node.resources.get("cpu");
    cpu.is_some_and(|it| it.capacity == n as u64 * 1000)
}

/// Brings the CPU back, whatever happens.
struct Offline;

impl Offline {
    fn switch(value: &str) -> Result<()> {
        fs::write(SWITCH, value).with_context(|| format!("write {value} to {SWITCH}"))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        if let Err(error) = Self::switch("1") {
            eprintln!("{error:#}");
        }
    }
}

#[cfg_attr(feature = "privileged", test)]
fn the_capacity_is_that_of_the_cpus_that_are_online() -> Result<()> {
    only_in_a_vm()?;
    // What it tells between two passes it has by the kernel's word.
    let mut agent = Agent::new("cpus-online")?.with_kubelet("syncFrequency: 1h");
    agent.metrics = free_address()?;
    agent.start()?;
    let n = online()?;
    agent.wait("the capacity", |status| has_cpus(status, n))?;
    let kubepods = format!("/{}/kubepods", agent.cgroup_root);
    let weight = || cgroup::read("cpu", &kubepods, "cpu.weight");
    let before = weight()?;
    let offline = Offline;
    Offline::switch("0")?;
    agent.wait("one CPU less", |status| has_cpus(status, n - 1))?;
    agent.wait_for("kubepods has less", || Ok(weight()? != before))?;
    let shows_less = || {
        let page = page(&agent.metrics, "/metrics/cadvisor")?;
        Ok(page.value("machine_cpu_cores", &[]) == Some((n - 1) as f64))
    };
    agent.wait_for("the machine is shown with less", shows_less)?;
    drop(offline);
    agent.wait("the CPU is back", |status| has_cpus(status, n))?;
    agent.wait_for("kubepods has all", || Ok(weight()? == before))?;
    let told = agent.wait_events("both are told", "node", |events| {
        let told = events.iter().filter(|it| it.event.reason == "CpusChanged");
        told.count() == 2
    })?;
    let messages: Vec<_> = told.iter().map(|it| it.event.message.as_str()).collect();
    assert!(
        messages.iter().any(|it| it.contains("CPUs 1 went offline"))
            && messages.iter().any(|it| it.contains("CPUs 1 went online")),
        "{messages:?}"
    );
    Ok(())
}

/// What runs has its manager all the same, and the CPU is kept for the system again when it comes back.
#[cfg_attr(feature = "privileged", test)]
fn a_reserved_cpu_that_is_offline_keeps_no_agent_from_starting() -> Result<()> {
    only_in_a_vm()?;
    let mut agent = Agent::new("reserved-offline")?
        .with_kubelet("cpuManagerPolicy: static")
        .with_kubelet("reservedSystemCPUs: \"1\"")
        .with_quick_passes();
    agent.start()?;
    let is_told = |status: &Status| {
        let mut warnings = status.warnings.iter();
        warnings.any(|it| it.starts_with("kubelet.reservedSystemCPUs: 1 of 1 is offline"))
    };
    agent.wait("nothing is told", |it| !is_told(it))?;
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    agent.stop()?;
    let offline = Offline;
    Offline::switch("0")?;
    agent.start()?;
    agent.wait("it is told", is_told)?;
    let after = agent.wait_pod("pod", "runs on", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&before, "app"));
    let checked = agent.check_command()?.output()?;
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(said.contains("1 of 1 is offline"), "{said}");
    drop(offline);
    agent.wait("it is kept again", |it| !is_told(it))?;
    Ok(())
}

/// Nobody has to start it again.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_observes_follows_the_cpus_that_are_online() -> Result<()> {
    only_in_a_vm()?;
    let tree = KubeTree::new("cpus", Driver::Cgroupfs)?;
    let mut agent = Agent::observing("cpus-observed", &tree)?;
    agent.start()?;
    let n = online()?;
    agent.wait("the capacity", |status| has_cpus(status, n))?;
    let offline = Offline;
    Offline::switch("0")?;
    agent.wait("one CPU less", |status| has_cpus(status, n - 1))?;
    drop(offline);
    agent.wait("all of them again", |status| has_cpus(status, n))?;
    Ok(())
}
