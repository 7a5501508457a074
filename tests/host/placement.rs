//! Pods on CPUs, NUMA nodes and devices: the real agent, and what the kernel and the processes say.
//!
//! Each test asks the machine for its shape and checks what that shape can show; what it cannot is
//! said. In the VM lane there are two NUMA nodes of one core with two threads each.

mod books;
mod devices;
mod hotplug;
mod numa;
mod pinning;
mod refusals;
mod storm;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ballast::model::cpuset::{CpuId, CpuSet};
use ballast::model::kubelet_state::cpu::CpuFile;
use ballast::model::kubelet_state::{CPU_FILE, PodEntries};
use ballast::model::placement::CpuState;
use ballast::model::status::PodEntry;
use ballast::model::topology::Topology;
use ballast::sources::sysfs;
use ballast::sys::Root;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::Container;
use serde_json::json;

use super::look::{container_path, pod_dir};

/// Memory of each placed container, MiB.
const MIB: u64 = 48;

/// The machine as it is now.
fn machine() -> Result<Topology> {
    let topology = sysfs::topology(&Root::host())?;
    ensure!(topology.cpus.len() > 1, "placement needs two CPUs");
    Ok(topology)
}

/// The CPU that these tests reserve for the system.
fn reserved(machine: &Topology) -> Result<CpuId> {
    let first = machine.cpus.keys().next();
    first.copied().context("a machine has a CPU")
}

/// An agent that gives CPUs out, all but the first.
fn agent(test: &str) -> Result<Agent> {
    let reserved = reserved(&machine()?)?;
    Ok(Agent::new(test)?
        .with_kubelet("cpuManagerPolicy: static")
        .with_kubelet(&format!("reservedSystemCPUs: \"{reserved}\"")))
}

fn set(cpus: impl IntoIterator<Item = CpuId>) -> CpuSet {
    cpus.into_iter().collect()
}

/// Requests that are limits too, and a whole number of CPUs: a container that has them alone.
fn guaranteed(container: Container, cpus: usize) -> Container {
    let amounts = json!({"cpu": cpus.to_string(), "memory": format!("{MIB}Mi")});
    container.resources(amounts.clone(), amounts)
}

/// Has no CPUs of its own.
fn burstable(container: Container) -> Container {
    // No CPU either: a pod with CPUs of its own may have all that pods can request.
    container.resources(json!({"memory": "4Mi"}), json!({}))
}

/// A shell's word for the CPUs that it may run on, into a file of the pod's directory. Nothing but
/// the shell runs for it.
fn notes_its_cpus(file: &str) -> String {
    notes_cpus_of("self", file)
}

fn notes_cpus_of(pid: &str, file: &str) -> String {
    format!(
        "while read -r key value; do
            if [ \"$key\" = Cpus_allowed_list: ]; then
                echo \"$value\" > \"$BALLAST_POD_DIR/{file}\"
            fi
        done < /proc/{pid}/status\n"
    )
}

/// What a container has noted.
fn noted(agent: &Agent, pod: &PodEntry, file: &str) -> Result<CpuSet> {
    let path = pod_dir(&agent.state(), pod).join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.trim().parse()?)
}

/// The CPUs of a running container, as the kernel has them.
fn kernel_cpus(pod: &PodEntry, container: &str) -> Result<CpuSet> {
    cpus_of_dir(&cgroup::dir_of("cpuset", &container_path(pod, container)?))
}

fn cpus_of_dir(dir: &Path) -> Result<CpuSet> {
    let file = match cgroup::is_unified() {
        true => "cpuset.cpus.effective",
        false => "cpuset.cpus",
    };
    let path = dir.join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.trim().parse()?)
}

/// The CPUs that status shows for a container.
fn told_cpus(pod: &PodEntry, container: &str) -> Result<CpuSet> {
    let found = super::look::container(pod, container).context("the container")?;
    Ok(found.cpuset.as_deref().context("its CPUs")?.parse()?)
}

fn state_file(agent: &Agent, name: &str) -> PathBuf {
    agent.dir.join("kubelet").join(name)
}

/// `cpu_manager_state`, with its checksum checked.
fn cpu_books(agent: &Agent) -> Result<CpuState> {
    cpu_books_with(agent, PodEntries::No)
}

/// With that of pods as a whole.
fn cpu_books_with(agent: &Agent, pods: PodEntries) -> Result<CpuState> {
    let path = state_file(agent, CPU_FILE);
    let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let file = CpuFile::read(&bytes, "static", pods, &BTreeMap::new());
    let file = file.with_context(|| {
        format!(
            "read {}: {}",
            path.display(),
            String::from_utf8_lossy(&bytes)
        )
    })?;
    Ok(CpuState::try_from(&file)?)
}

fn held(books: &CpuState, pod: &PodEntry, container: &str) -> Option<CpuSet> {
    books.containers.get(&pod.uid)?.get(container).cloned()
}

/// Every CPU is in the shared pool or has one owner.
fn check_books(books: &CpuState, online: &CpuSet) -> Result<()> {
    let mut all = books.shared_pool.clone();
    for (pod, containers) in &books.containers {
        for (container, cpus) in containers {
            let twice = all.intersection(cpus);
            ensure!(
                !cpus.is_empty() && twice.is_empty(),
                "CPUs {twice} of {pod}/{container} are somebody else's: {books:?}"
            );
            all = all.union(cpus);
        }
    }
    ensure!(all == *online, "{online} are online, not {all}: {books:?}");
    Ok(())
}

/// Whether a cgroup, of a pod or of a container, has a limit of CPU time.
fn has_quota(cgroup_path: &str) -> Result<bool> {
    let (file, none) = match cgroup::is_unified() {
        true => ("cpu.max", "max"),
        false => ("cpu.cfs_quota_us", "-1"),
    };
    let text = cgroup::read("cpu", cgroup_path, file)?;
    Ok(text.split(' ').next() != Some(none))
}

/// Waits until nobody holds CPUs.
fn wait_all_free(agent: &Agent) -> Result<()> {
    let online = machine()?.online();
    agent.wait_for("all CPUs are free", || {
        let books = cpu_books(agent)?;
        Ok(books.containers.is_empty() && books.shared_pool == online)
    })
}

/// The text of a file, once it is as it should be.
fn wait_file(agent: &Agent, path: &Path, is_it: impl Fn(&str) -> bool) -> Result<String> {
    let mut text = String::new();
    agent.wait_for(&format!("{} is written", path.display()), || {
        text = fs::read_to_string(path).unwrap_or_default();
        Ok(is_it(&text))
    })?;
    Ok(text)
}
