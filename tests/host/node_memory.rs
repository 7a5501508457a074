//! The memory of the whole node runs out in ways that kubelet's formula does not see: the pod that
//! took it goes, before the kernel has to act.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::model::eviction::MemoryMethod;
use ballast::model::status::Status;
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup::{self, kernel_kills};
use ballast_tests::manifest::{Container, Manifest};

use super::crash::after;
use super::eviction::{evicted, holds, is_evicted, limit_hits, wait_usage};
use super::look::{is_running, of_pods};
use super::{leave_out, only_in_a_vm, say, scaled};

const MIB: u64 = 1 << 20;

/// What the innocent pods of a scene hold, MiB each.
pub(super) const STEADY: u64 = 16;

/// Three pods that hold what they have, and one without a limit that does as it likes once `gate`
/// is there.
pub(super) fn put_pods(agent: &Agent, gate: &Path, leak: &str) -> Result<()> {
    for i in 0..3 {
        agent.put(&holds(&format!("steady-{i}"), STEADY)?)?;
    }
    let script = after(gate, &format!("exec {} {leak}", hog()?));
    agent.put(&Manifest::new("leak").container(Container::sh("app", &script)))?;
    let status = agent.wait("all pods run", |it| {
        it.pods.len() == 4 && it.pods.iter().all(is_running)
    })?;
    for pod in status.pods.iter().filter(|it| it.name != "leak") {
        wait_usage(agent, pod, STEADY * MIB)?;
    }
    Ok(())
}

/// Bytes of the node's memory that are available by a method.
fn available(status: &Status, method: MemoryMethod) -> Option<u64> {
    let pressure = status.node.pressure.as_ref()?;
    pressure.memory_available.get(&method).copied()
}

fn least_available(status: &Status) -> Option<u64> {
    let all = MemoryMethod::MEASURED.into_iter();
    all.filter_map(|it| available(status, it)).min()
}

/// The pod is evicted, and a while later nobody else is.
fn expect_leak_alone(agent: &Agent) -> Result<()> {
    thread::sleep(Duration::from_secs(3));
    assert_eq!(evicted(agent)?, ["leak"]);
    let status = agent.status()?;
    let running = status.pods.iter().filter(|it| is_running(it));
    ensure!(running.count() == 3, "log:\n{}", agent.log_tail());
    assert_eq!(of_pods(agent.events("oom")?), []);
    Ok(())
}

/// Whether all programs together change the node's memory by less than so many bytes for a while.
fn is_quiet(most: u64) -> Result<bool> {
    for _ in 0..6 {
        let mut seen = Vec::new();
        for _ in 0..20 {
            seen.push(memory_available()?);
            thread::sleep(Duration::from_millis(200));
        }
        let (least, greatest) = (seen.iter().min(), seen.iter().max());
        if least.zip(greatest).is_some_and(|(a, b)| b - a < most) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Data in pipes is neither memory of processes nor page cache. A cgroup with a limit stands for the
/// node: by kubelet's formula its memory would run out far above the threshold.
#[cfg_attr(feature = "privileged", test)]
fn what_the_kernel_keeps_for_a_pod_is_not_available() -> Result<()> {
    let margin: u64 = scaled(1000, 100)?.into();
    // So much and so fast that what others take or give back meanwhile is little beside it.
    let rate = u64::from(scaled(500, 10)?) * 1_000_000;
    if !is_quiet(margin * MIB / 10)? {
        leave_out("memory of pipes: other programs take and give back too much of this machine's");
        return Ok(());
    }
    let mut agent = Agent::new("unseen")?;
    let gate = agent.dir.join("gate");
    agent.start()?;
    put_pods(&agent, &gate, &format!("pipes {rate}"))?;
    let status = agent.wait("memory is measured", |it| least_available(it).is_some())?;
    let of = |method| available(&status, method).context("just seen");
    let before = of(MemoryMethod::Meminfo)?.min(of(MemoryMethod::Estimate)?);
    // Page cache that was in use counts as used by kubelet's formula, and would be the first to fall short.
    let threshold = of(MemoryMethod::WorkingSet)?.min(before) / MIB - margin;
    let to_take = before / MIB - threshold;
    agent.stop()?;
    agent.eviction_hard = format!("{{memory.available: {threshold}Mi}}");
    agent.start()?;
    let status = agent.wait("the pods are adopted", |it| {
        it.pods.iter().all(is_running) && least_available(it).is_some()
    })?;
    let unseen_before = available(&status, MemoryMethod::WorkingSet).context("measured")?;
    let node = format!("/{}", agent.cgroup_root);
    let limit = cgroup::memory_limit_file();
    let bound = cgroup::memory_usage(&node)? + (to_take + 2 * margin) * MIB;
    cgroup::write("memory", &node, limit, &bound.to_string())?;
    thread::sleep(Duration::from_secs(2));
    assert_eq!(evicted(&agent)?, [""; 0], "the machine is busy otherwise");

    fs::write(&gate, "")?;
    let seen = Cell::new(unseen_before);
    agent.wait("the leak is evicted", |it| {
        let now = available(it, MemoryMethod::WorkingSet).unwrap_or(u64::MAX);
        seen.set(seen.get().min(now));
        it.pods.iter().any(|it| it.name == "leak" && is_evicted(it))
    })?;
    let fell = unseen_before.saturating_sub(seen.get()) / MIB;
    say(format!(
        "{to_take} MiB of the kernel's memory taken; by kubelet's formula {fell} MiB less available"
    ));
    assert!(fell < margin / 2, "kubelet's formula saw it: {fell} MiB");
    expect_leak_alone(&agent)?;
    assert_eq!(limit_hits(&node)?, 0, "the kernel had to act");
    Ok(())
}

/// The memory of a machine but for some of it, as huge pages that nobody uses.
pub(super) struct HugePages;

impl HugePages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    pub(super) fn leave(mib: u64) -> Result<Self> {
        Self::take(Self::FILE, mib, memory_available)
    }

    /// Of the memory of the first NUMA node.
    pub(super) fn leave_on_the_first_node(mib: u64) -> Result<Self> {
        const DIR: &str = "/sys/devices/system/node/node0";
        let free = || kib(&format!("{DIR}/meminfo"), "Node 0 MemFree:");
        let file = format!("{DIR}/hugepages/hugepages-2048kB/nr_hugepages");
        Self::take(&file, mib, free)
    }

    fn take(file: &str, mib: u64, left: impl Fn() -> Result<u64>) -> Result<Self> {
        let too_much = (left()? / MIB).checked_sub(mib);
        let pages = too_much.with_context(|| format!("there are no {mib} MiB"))? / 2;
        let taken = Self;
        fs::write(file, pages.to_string())?;
        let left = left()? / MIB;
        ensure!(
            (mib / 2..mib * 3 / 2).contains(&left),
            "{left} MiB are left, not {mib}"
        );
        Ok(taken)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // What is left is told by the next test that wants memory.
        fs::write(Self::FILE, "0").ok();
    }
}

/// `MemAvailable`, bytes.
fn memory_available() -> Result<u64> {
    kib("/proc/meminfo", "MemAvailable:")
}

/// Bytes of a line in kB.
fn kib(file: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find_map(|it| it.strip_prefix(name));
    let kib: u64 = line
        .and_then(|it| it.trim().strip_suffix(" kB"))
        .with_context(|| format!("no {name} in {file}"))?
        .parse()?;
    Ok(kib << 10)
}

/// A node of little memory with kubelet's own threshold. By kubelet's formula most of the machine
/// is available until the end, since huge pages are not in the working set of the root.
#[cfg_attr(feature = "privileged", test)]
fn a_node_that_runs_out_of_memory_loses_the_pod_that_took_it() -> Result<()> {
    only_in_a_vm()?;
    let huge = HugePages::leave(500)?;
    let mut agent = Agent::new("small-node")?;
    let gate = agent.dir.join("gate");
    agent.start()?;
    let rate = u64::from(scaled(400, 20)?) * 1_000_000;
    put_pods(&agent, &gate, &format!("leak {rate}"))?;
    let status = agent.wait("memory is measured", |it| least_available(it).is_some())?;
    let by_kubelet = available(&status, MemoryMethod::WorkingSet).context("measured")?;
    assert!(
        by_kubelet > least_available(&status).context("measured")? + 1024 * MIB,
        "huge pages are seen"
    );
    let kills = kernel_kills()?;
    fs::write(&gate, "")?;
    agent.wait_pod("leak", "is evicted", is_evicted)?;
    expect_leak_alone(&agent)?;
    assert_eq!(kernel_kills()?, kills, "the kernel had to act");
    drop(huge);
    Ok(())
}
