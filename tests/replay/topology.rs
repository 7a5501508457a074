//! The recorded topologies of `tests/data/vectors`, as sysfs would tell them, put together again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result, ensure};
use ballast::model::capacity::HugePages;
use ballast::model::topology::{
    CacheFacts, CoreId, CpuFacts, CpuId, CpuSet, NumaNodeFacts, NumaNodeId, PackageId, Topology,
    TopologyFacts,
};
use ballast::sources::sysfs;
use ballast::units::Bytes;
use ballast_tests::fake_node::{CpuPlace, FakeNode};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;

use super::data;

/// `[cpu, numa node, socket, core, uncore cache]`; a core is called by its least CPU.
#[derive(Deserialize)]
struct Recorded {
    name: String,
    cpus: Vec<[u32; 5]>,
}

#[test]
fn recorded_topologies_are_put_together_again() -> Result<()> {
    let file = std::fs::File::open(data("vectors/topologies.jsonl.gz"))?;
    let mut n_compared = 0;
    for line in BufReader::new(MultiGzDecoder::new(file)).lines() {
        let recorded: Recorded = serde_json::from_str(&line?)?;
        // Crossings no hardware has: a core over two nodes or packages cannot be written as sysfs.
        if recorded.name.starts_with("odd-") {
            continue;
        }
        compare(&recorded).with_context(|| recorded.name.clone())?;
        n_compared += 1;
    }
    ensure!(
        n_compared > 50,
        "only {n_compared} topologies were compared"
    );
    Ok(())
}

fn compare(recorded: &Recorded) -> Result<()> {
    let places: Vec<_> = recorded
        .cpus
        .iter()
        .map(|&[cpu, numa_node, package, core, llc]| CpuPlace {
            cpu,
            numa_node,
            package,
            core,
            llc,
        })
        .collect();
    let from_facts = Topology::from_facts(&facts(&places))?;
    // Writing some files a CPU takes its time; the small ones have every shape of the large ones.
    if places.len() <= 16 {
        let node = FakeNode::new()?;
        node.cpus(&places)?;
        ensure!(sysfs::topology(&node.root())? == from_facts, "from sysfs");
    }
    check(&places, &from_facts)
}

/// What sysfs would say.
fn facts(places: &[CpuPlace]) -> TopologyFacts {
    let set = |key: &dyn Fn(&CpuPlace) -> bool| {
        let chosen = places.iter().filter(|it| key(it));
        chosen.map(|it| CpuId(it.cpu)).collect::<CpuSet>()
    };
    let cpu = |place: &CpuPlace| CpuFacts {
        core_id: Some(place.core),
        package_id: Some(place.package),
        thread_siblings: Some(set(&|it| {
            (it.package, it.core) == (place.package, place.core)
        })),
        caches: vec![CacheFacts {
            level: 3,
            id: Some(place.llc),
            shared_cpus: set(&|it| it.llc == place.llc),
        }],
    };
    let ids: BTreeSet<_> = places.iter().map(|it| it.numa_node).collect();
    let distance = |from: &u32, to: &u32| if from == to { 10 } else { 20 };
    let numa_node = |id: &u32| NumaNodeFacts {
        cpus: set(&|it| it.numa_node == *id),
        memory: Some(Bytes(1 << 30)),
        distances: ids.iter().map(|to| distance(id, to)).collect(),
        hugepages: HugePages::new(),
    };
    TopologyFacts {
        online: Some(set(&|_| true)),
        cpus: places.iter().map(|it| (CpuId(it.cpu), cpu(it))).collect(),
        numa_nodes: ids
            .iter()
            .map(|id| (NumaNodeId(*id), numa_node(id)))
            .collect(),
        ..TopologyFacts::default()
    }
}

fn check(places: &[CpuPlace], topology: &Topology) -> Result<()> {
    ensure!(topology.cpus.len() == places.len(), "number of CPUs");
    let mut least_of_core = BTreeMap::new();
    for place in places {
        let least = least_of_core.entry(place.core).or_insert(place.cpu);
        *least = place.cpu.min(*least);
    }
    for place in places {
        let found = topology.cpus[&CpuId(place.cpu)];
        ensure!(found.numa_node == NumaNodeId(place.numa_node));
        ensure!(found.package == PackageId(place.package));
        ensure!(found.core == CoreId(least_of_core[&place.core]));
        let cache = &topology.llcs[&found.llc];
        ensure!(cache.cache_id == Some(place.llc));
        let sharing = places.iter().filter(|it| it.llc == place.llc);
        ensure!(cache.cpus == sharing.map(|it| CpuId(it.cpu)).collect());
    }
    Ok(())
}
