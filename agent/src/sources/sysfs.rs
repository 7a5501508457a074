//! Reader of the node's shape.

use std::collections::BTreeMap;

use crate::model::capacity::HugePages;
use crate::model::text::{meminfo_bytes, number};
use crate::model::topology::{
    CacheFacts, CpuFacts, CpuId, CpuSet, NoCpus, NumaNodeFacts, NumaNodeId, Topology,
    TopologyFacts, directory_id, parse_distances,
};
use crate::sources::procfs::{HUGEPAGES, hugepages};
use crate::sys::{FsError, Root};
use crate::units::Bytes;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// Why the shape is not known.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error(transparent)]
    NoCpus(#[from] NoCpus),
}

/// Reads the shape of the node: about eight files a CPU, so it is done at start and after a CPU
/// went online or offline.
pub fn topology(root: &Root) -> Result<Topology, TopologyError> {
    Ok(Topology::from_facts(&topology_facts(root)?)?)
}

/// The same of a part of the node: CPUs that are not among `cpus` count as offline.
pub fn topology_within(root: &Root, cpus: &CpuSet) -> Result<Topology, TopologyError> {
    let mut facts = topology_facts(root)?;
    facts.online = Some(match &facts.online {
        Some(online) => online.intersection(cpus),
        None => cpus.clone(),
    });
    Ok(Topology::from_facts(&facts)?)
}

/// What sysfs says, file by file. A file that is missing or does not parse is left out; only a
/// directory that cannot be listed is an error.
pub fn topology_facts(root: &Root) -> Result<TopologyFacts, FsError> {
    let cpus = ids(root, CPUS, "cpu")?
        .into_iter()
        .map(|id| (CpuId(id), cpu(root, &format!("{CPUS}/cpu{id}"))))
        .collect();
    let mut numa_nodes = BTreeMap::new();
    for id in ids(root, NODES, "node")? {
        numa_nodes.insert(NumaNodeId(id), numa_node(root, id)?);
    }
    let meminfo = root.read_text("/proc/meminfo").unwrap_or_default();
    let (memory, pools) = if numa_nodes.is_empty() {
        (
            meminfo_bytes(&meminfo, "MemTotal").map(Bytes),
            hugepages(root, HUGEPAGES)?,
        )
    } else {
        (None, HugePages::new())
    };
    Ok(TopologyFacts {
        online: online(root),
        isolated: cpu_list(root, &format!("{CPUS}/isolated")).unwrap_or_default(),
        cpus,
        numa_nodes,
        memory,
        hugepages: pools,
    })
}

/// The CPUs that are online: one file. `None`: the kernel does not say.
pub fn online(root: &Root) -> Option<CpuSet> {
    // Whoever reads this runs on a CPU: an empty list is no answer.
    cpu_list(root, &format!("{CPUS}/online")).filter(|it| !it.is_empty())
}

/// The CPUs that the machine has, online or not: one file. `None`: the kernel does not say.
pub fn present(root: &Root) -> Option<CpuSet> {
    cpu_list(root, &format!("{CPUS}/present"))
}

/// Whether the NUMA nodes of `topology` have other pools of huge pages by now.
pub fn have_hugepages_moved(root: &Root, topology: &Topology) -> Result<bool, TopologyError> {
    // Without nodes and with one the pools of the machine say it all.
    if topology.numa_nodes.len() < 2 {
        return Ok(false);
    }
    for (NumaNodeId(id), node) in &topology.numa_nodes {
        let directory = format!("{NODES}/node{id}/hugepages");
        if hugepages(root, &directory)? != node.hugepages {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ids(root: &Root, directory: &str, prefix: &str) -> Result<Vec<u32>, FsError> {
    match root.list(directory) {
        Ok(names) => Ok(names
            .iter()
            .filter_map(|it| directory_id(it, prefix))
            .collect()),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn cpu(root: &Root, directory: &str) -> CpuFacts {
    let caches = root
        .list(format!("{directory}/cache"))
        .unwrap_or_default()
        .iter()
        .filter(|it| directory_id(it, "index").is_some())
        .filter_map(|it| cache(root, &format!("{directory}/cache/{it}")))
        .collect();
    // `thread_siblings_list` is the older name of the same list (Linux 5.3).
    let topology = format!("{directory}/topology");
    let siblings = cpu_list(root, &format!("{topology}/core_cpus_list"))
        .or_else(|| cpu_list(root, &format!("{topology}/thread_siblings_list")));
    CpuFacts {
        core_id: id(root, &format!("{topology}/core_id")),
        package_id: id(root, &format!("{topology}/physical_package_id")),
        thread_siblings: siblings,
        caches,
    }
}

/// `None` for caches below level 3, which are never shared beyond a core or a few.
fn cache(root: &Root, directory: &str) -> Option<CacheFacts> {
    let level = id(root, &format!("{directory}/level"))?;
    if level < 3 {
        return None;
    }
    Some(CacheFacts {
        level,
        id: id(root, &format!("{directory}/id")),
        shared_cpus: cpu_list(root, &format!("{directory}/shared_cpu_list"))?,
    })
}

fn numa_node(root: &Root, id: u32) -> Result<NumaNodeFacts, FsError> {
    let directory = format!("{NODES}/node{id}");
    let meminfo = root
        .read_text(format!("{directory}/meminfo"))
        .unwrap_or_default();
    let distances = root
        .read_text(format!("{directory}/distance"))
        .ok()
        .and_then(|it| parse_distances(&it).ok());
    Ok(NumaNodeFacts {
        cpus: cpu_list(root, &format!("{directory}/cpulist")).unwrap_or_default(),
        memory: meminfo_bytes(&meminfo, "MemTotal").map(Bytes),
        distances: distances.unwrap_or_default(),
        hugepages: hugepages(root, &format!("{directory}/hugepages"))?,
    })
}

fn cpu_list(root: &Root, path: &str) -> Option<CpuSet> {
    root.read_text(path).ok()?.trim().parse().ok()
}

/// A number that is 0 or more; -1 stands for "not known" in these files.
fn id(root: &Root, path: &str) -> Option<u32> {
    number(&root.read_text(path).ok()?, "an id").ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn pages_that_one_numa_node_has_in_place_of_another_have_moved() {
        let machine = Scratch::new("numa-hugepages");
        let root = Root::at(machine.directory());
        let pool = |node: u32| format!("{NODES}/node{node}/hugepages/hugepages-2048kB");
        let set = |node: u32, pages: &str| {
            let file = format!("{}/nr_hugepages", pool(node));
            machine.write(file.trim_start_matches('/'), pages);
        };
        root.create_dir_all(format!("{CPUS}/cpu0")).expect("made");
        for (node, pages) in [(0, "4\n"), (1, "0\n")] {
            root.create_dir_all(pool(node)).expect("made");
            set(node, pages);
        }
        machine.write("sys/devices/system/node/node0/cpulist", "0\n");
        let before = topology(&root).expect("a CPU");
        let have_moved = || have_hugepages_moved(&root, &before).expect("read");
        assert!(!have_moved());
        set(0, "1\n");
        set(1, "3\n");
        assert!(have_moved());
        let after = topology(&root).expect("a CPU");
        assert!(!have_hugepages_moved(&root, &after).expect("read"));
    }
}
