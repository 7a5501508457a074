//! CPUs that go and come under pods that have them alone. Switched only in a virtual machine:
//! elsewhere it is not the test's.

use std::fs;

use anyhow::{Context, Result, ensure};
use ballast::model::cpuset::{CpuId, CpuSet};
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::manifest::{Container, Manifest};

use super::super::look::{is_running, pid_of};
use super::super::{only_in_a_vm, say};
use super::{
    agent, burstable, check_books, cpu_books, guaranteed, held, kernel_cpus, machine, wait_all_free,
};

/// A CPU that is switched off until this goes.
struct Offline(CpuId);

impl Offline {
    fn new(cpu: CpuId) -> Result<Self> {
        let offline = Self(cpu);
        offline.switch("0")?;
        Ok(offline)
    }

    fn switch(&self, value: &str) -> Result<()> {
        let path = format!("/sys/devices/system/cpu/cpu{}/online", self.0);
        fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        if let Err(error) = self.switch("1") {
            eprintln!("{error:#}");
        }
    }
}

fn put_pinned(agent: &Agent, name: &str) -> Result<PodEntry> {
    let container = guaranteed(Container::idle("app"), 1);
    agent.put(&Manifest::new(name).container(container))?;
    agent.wait_pod(name, "runs", is_running)
}

/// Waits until books and kernel agree for machine, pods and shared container.
fn wait_settled(agent: &Agent, pods: &[PodEntry], shared: &PodEntry) -> Result<()> {
    agent.wait_for("books and cpusets are those of the machine", || {
        let books = cpu_books(agent)?;
        let is_right = check_books(&books, &machine()?.online()).is_ok()
            && kernel_cpus(shared, "app")? == books.shared_pool;
        Ok(is_right
            && pods.iter().all(|pod| {
                let own = held(&books, pod, "app").unwrap_or_else(|| books.shared_pool.clone());
                kernel_cpus(pod, "app").is_ok_and(|it| it == own)
            }))
    })
}

fn owned(agent: &Agent, pod: &PodEntry) -> Result<Option<CpuId>> {
    let held = held(&cpu_books(agent)?, pod, "app");
    Ok(held.and_then(|it| it.iter().next()))
}

#[cfg_attr(feature = "privileged", test)]
fn pods_follow_the_cpus_that_go_and_come() -> Result<()> {
    only_in_a_vm()?;
    let mut agent = agent("hotplug")?;
    agent.start()?;
    wait_all_free(&agent)?;
    let all = machine()?.online();
    let container = burstable(Container::idle("app"));
    agent.put(&Manifest::new("shared").container(container))?;
    let shared = agent.wait_pod("shared", "runs", is_running)?;
    let mut pods = vec![put_pinned(&agent, "pod-1")?];
    let went = owned(&agent, &pods[0])?.context("it has a CPU")?;

    // There is another one for it.
    let offline = Offline::new(went)?;
    agent.wait_for("it has another CPU", || {
        Ok(owned(&agent, &pods[0])?.is_some_and(|it| it != went))
    })?;
    wait_settled(&agent, &pods, &shared)?;
    wait_told(&agent, "node", "PlacementStateFault", "are not online")?;
    wait_told(&agent, "pod", "Placed", "app")?;
    drop(offline);
    agent.wait_for("the pool has grown", || {
        Ok(cpu_books(&agent)?.shared_pool.contains(went))
    })?;
    wait_settled(&agent, &pods, &shared)?;

    // There is none: every CPU but the reserved one is somebody's own.
    for i in 2..all.len() {
        pods.push(put_pinned(&agent, &format!("pod-{i}"))?);
    }
    let owners = owners(&agent, &pods)?;
    ensure!(owners.len() == all.len() - 1, "{owners:?}");
    let last = owned(&agent, pods.last().context("pods")?)?.context("it has a CPU")?;
    let offline = Offline::new(last)?;
    wait_told(&agent, "pod", "PlacementLost", "goes on without")?;
    wait_settled(&agent, &pods, &shared)?;
    drop(offline);
    agent.wait_for("everybody has a CPU again", || {
        Ok(self::owners(&agent, &pods)?.len() == pods.len())
    })?;
    wait_settled(&agent, &pods, &shared)?;

    let status = agent.status()?;
    for before in pods.iter().chain([&shared]) {
        let now = status.pods.iter().find(|it| it.name == before.name);
        let now = now.context("it is still there")?;
        assert_eq!(pid_of(now, "app"), pid_of(before, "app"), "{}", now.name);
    }
    for pod in &pods {
        agent.remove_pod(&pod.name)?;
    }
    wait_all_free(&agent)?;
    say(format_args!(
        "CPUs {went} and {last} went and came under {} pods",
        pods.len()
    ));
    Ok(())
}

/// The CPUs that are somebody's own.
fn owners(agent: &Agent, pods: &[PodEntry]) -> Result<CpuSet> {
    let cpus: Vec<_> = pods
        .iter()
        .map(|it| owned(agent, it))
        .collect::<Result<_>>()?;
    Ok(cpus.into_iter().flatten().collect())
}

fn wait_told(agent: &Agent, kind: &str, reason: &str, about: &str) -> Result<()> {
    agent.wait_events(reason, kind, |events| {
        let mut events = events.iter().map(|it| &it.event);
        events.any(|it| it.reason == reason && it.message.contains(about))
    })?;
    Ok(())
}
