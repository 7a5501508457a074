//! Memory and CPUs on NUMA nodes, verified by where the pages are.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use ballast::model::cpuset::CpuSet;
use ballast::model::kubelet_state::memory::MemoryFile;
use ballast::model::kubelet_state::{MEMORY_FILE, PodEntries};
use ballast::model::placement::MemoryState;
use ballast::model::status::PodEntry;
use ballast::model::topology::{NumaNodeId, Topology};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::{cgroup, numa};

use super::super::look::{container_path, is_running, pid_of};
use super::super::say;
use super::{agent, cpu_books, guaranteed, held, kernel_cpus, machine, state_file};

/// Half of what a container may have.
const TOUCHED: u64 = 24 << 20;

/// An agent that gives out CPUs and memory, by a topology policy.
pub(super) fn aligned(test: &str, policy: &str) -> Result<Agent> {
    let machine = machine()?;
    let node = machine.numa_nodes.keys().next().context("a NUMA node")?;
    // The threshold of hard eviction, which is all that is kept from pods here.
    let reserved = format!("reservedMemory: [{{numaNode: {node}, limits: {{memory: 100Mi}}}}]");
    Ok(agent(test)?
        .with_kubelet("memoryManagerPolicy: Static")
        .with_kubelet(&reserved)
        .with_kubelet(&format!("topologyManagerPolicy: {policy}")))
}

pub(super) fn memory_books(agent: &Agent) -> Result<MemoryState> {
    let bytes = std::fs::read(state_file(agent, MEMORY_FILE))?;
    let file = MemoryFile::read(&bytes, "Static", PodEntries::No)?;
    Ok(MemoryState::try_from(&file)?)
}

/// The NUMA nodes of CPUs.
fn nodes_of(machine: &Topology, cpus: &CpuSet) -> BTreeSet<NumaNodeId> {
    let nodes = cpus.iter().filter_map(|it| machine.cpus.get(&it));
    nodes.map(|it| it.numa_node).collect()
}

/// One pod for each CPU that can be given out, which touches memory.
#[cfg_attr(feature = "privileged", test)]
fn memory_and_cpus_of_a_container_are_on_one_numa_node() -> Result<()> {
    let machine = machine()?;
    let mut agent = aligned("numa", "single-numa-node")?;
    agent.start()?;
    let hog = hog()?;
    let mut used = BTreeSet::new();
    for i in 1..machine.cpus.len() {
        let name = format!("pod-{i}");
        let container = Container::new("app", &[&hog, "hold", &TOUCHED.to_string()]);
        agent.put(&Manifest::new(&name).container(guaranteed(container, 1)))?;
        let pod = agent.wait_pod(&name, "runs", is_running)?;
        used.extend(check_aligned(&agent, &machine, &pod)?);
    }
    assert!(used.iter().all(|it| machine.numa_nodes.contains_key(it)));
    match machine.numa_nodes.len() {
        1 => say("one NUMA node here: that memory stays off another one is for the VM lane"),
        n => {
            assert_eq!(used.len(), n, "a pod on each of the NUMA nodes");
            say(format_args!(
                "pages of {} pods were on {n} NUMA nodes",
                machine.cpus.len() - 1
            ));
        }
    }
    Ok(())
}

/// The NUMA node that all of a container is on.
fn check_aligned(agent: &Agent, machine: &Topology, pod: &PodEntry) -> Result<Option<NumaNodeId>> {
    let cpus = held(&cpu_books(agent)?, pod, "app").context("it holds CPUs")?;
    assert_eq!(kernel_cpus(pod, "app")?, cpus);
    let nodes = nodes_of(machine, &cpus);
    assert_eq!(nodes.len(), 1, "{cpus}");
    let mems = cgroup::read("cpuset", &container_path(pod, "app")?, "cpuset.mems")?;
    let mems: CpuSet = mems.parse()?;
    let mems: BTreeSet<_> = mems.iter().map(|it| NumaNodeId(it.0)).collect();
    assert_eq!(mems, nodes);
    let books = memory_books(agent)?;
    let blocks = books.containers.get(&pod.uid).and_then(|it| it.get("app"));
    let blocks = blocks.context("it holds memory")?;
    for block in blocks {
        let of_block: BTreeSet<_> = block.numa.iter().collect();
        assert_eq!(of_block, nodes, "{block:?}");
    }

    let pid = pid_of(pod, "app").context("it runs")?;
    agent.wait_for("all is touched", || {
        Ok(numa::anonymous_memory(pid)?.values().sum::<u64>() >= TOUCHED)
    })?;
    let memory = numa::anonymous_memory(pid)?;
    let of_pages: BTreeSet<_> = memory.keys().map(|it| NumaNodeId(*it)).collect();
    assert_eq!(of_pages, nodes, "{memory:?}");
    Ok(nodes.first().copied())
}

/// A pod as a whole on one node, where each container by itself may be on another.
#[cfg_attr(feature = "privileged", test)]
fn scope_pod_keeps_the_containers_of_a_pod_together() -> Result<()> {
    let machine = machine()?;
    let mut agent =
        aligned("numa-scope", "single-numa-node")?.with_kubelet("topologyManagerScope: pod");
    agent.start()?;
    // The last node is the one without the reserved CPU, if there is more than one.
    let (_, last) = machine.numa_nodes.last_key_value().context("a NUMA node")?;
    let n = match machine.numa_nodes.len() {
        1 => {
            say("one NUMA node here: that containers do not part is for the VM lane");
            1
        }
        _ => last.cpus.len(),
    };
    let pod = (0..n).fold(Manifest::new("pod"), |pod, i| {
        pod.container(guaranteed(Container::idle(&format!("app-{i}")), 1))
    });
    agent.put(&pod)?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let mut all = CpuSet::new();
    for i in 0..n {
        let cpus = kernel_cpus(&pod, &format!("app-{i}"))?;
        assert_eq!(cpus.len(), 1);
        all = all.union(&cpus);
    }
    assert_eq!(all.len(), n);
    assert_eq!(nodes_of(&machine, &all).len(), 1, "{all}");
    Ok(())
}
