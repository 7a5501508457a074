//! What the agent tells as root with a few capabilities.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use ballast::model::record::OomScope;
use ballast::model::status::{ProgramState, Status};
use ballast_tests::agent::Agent;
use ballast_tests::kube::{Driver, KubeTree, Naming};
use ballast_tests::scrape::{free_address, text};

use super::{EATER, LIMIT, UID, check_kill, pod_of, wait_kills};

/// Loads programs, and reads open files and the network namespace of other users' processes.
const COMPLETE: &str = "BPF,PERFMON,SYS_PTRACE,DAC_READ_SEARCH";

/// Linux 5.10 counts maps against a limit of the process, which has to be raised.
fn on_this_kernel(names: &'static str) -> &'static str {
    let is_old = std::env::var("BALLAST_VM").is_ok_and(|it| it == "5.10");
    match (is_old, names) {
        (true, COMPLETE) => "BPF,PERFMON,SYS_PTRACE,DAC_READ_SEARCH,SYS_RESOURCE",
        (true, _) => "BPF,PERFMON,SYS_RESOURCE",
        (false, names) => names,
    }
}

/// What the kernel takes from an agent.
fn attached(status: &Status) -> BTreeSet<String> {
    let programs = status.node.ebpf.programs.iter();
    programs
        .filter(|it| it.state == ProgramState::Attached)
        .map(|it| it.name.clone())
        .collect()
}

fn check(test: &str, names: &'static str) -> Result<()> {
    let names = on_this_kernel(names);
    let tree = KubeTree::new(test, Driver::Systemd)?;
    let pod = tree.pod(UID)?;
    let idle = pod.container(Naming::Containerd, 500)?;
    let _idle = idle.run("exec sleep 3600")?;
    let with_all = {
        let mut agent = Agent::observing(&format!("observe-{test}-all"), &tree)?;
        agent.start()?;
        let status = agent.wait("programs are loaded", |it| !attached(it).is_empty())?;
        agent.stop()?;
        attached(&status)
    };
    let mut agent = Agent::observing(&format!("observe-{test}"), &tree)?;
    agent.capabilities = Some(names);
    agent.metrics = free_address()?;
    agent.start()?;
    let pid = agent.pid().context("it runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut lines = status.lines();
    let held = lines.find_map(|it| it.strip_prefix("CapEff:"));
    let held = u64::from_str_radix(held.context("no capabilities")?.trim(), 16)?;
    assert_eq!(held.count_ones() as usize, names.split(',').count());

    let container = pod.container(Naming::Containerd, 501)?;
    container.limit(LIMIT)?;
    container.run(&format!("exec {EATER}"))?.wait()?;
    let kills = wait_kills(&agent, 1)?;
    let detail = check_kill(&kills[0], &pod, &container, OomScope::Container)?;
    assert_eq!(detail.victim.is_main_process, Some(true));
    agent.wait("what the other one uses is read", |status| {
        let pod = pod_of(status, UID);
        let mut containers = pod.iter().flat_map(|it| &it.containers);
        containers.any(|it| it.usage.memory_bytes.is_some_and(|it| it.0 > 0))
    })?;
    let status = agent.wait("programs are loaded", |it| !attached(it).is_empty())?;
    assert_eq!(attached(&status), with_all, "{names}");
    let page = text(&agent.metrics, "/metrics/cadvisor")?;
    let id = format!("id=\"{}\"", idle.path);
    for family in [
        "container_memory_working_set_bytes{",
        "container_file_descriptors{",
    ] {
        let mut lines = page.lines();
        let found = lines.find(|it| it.starts_with(family) && it.contains(&id));
        found.with_context(|| format!("{names}: no {family} of {id} in {page}"))?;
    }
    agent.stop()
}

#[cfg_attr(feature = "privileged", test)]
fn with_the_capabilities_for_all_of_it_everything_is_told() -> Result<()> {
    check("complete", COMPLETE)
}

#[cfg_attr(feature = "privileged", test)]
fn with_the_capabilities_for_programs_alone_kills_are_told() -> Result<()> {
    check("least", "BPF,PERFMON")
}
