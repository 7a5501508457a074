//! The recorded topologies of `tests/data/vectors`, written out as sysfs and read back.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result, ensure};
use ballast::model::topology::{CoreId, CpuId, NumaNodeId, PackageId};
use ballast::sources::sysfs;
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
fn recorded_topologies_are_read_back_from_sysfs() -> Result<()> {
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
    let node = FakeNode::new()?;
    node.cpus(&places)?;
    let topology = sysfs::topology(&node.root())?;
    ensure!(topology.cpus.len() == recorded.cpus.len());

    let mut least_of_core = BTreeMap::new();
    for place in &places {
        let least = least_of_core.entry(place.core).or_insert(place.cpu);
        *least = place.cpu.min(*least);
    }
    for place in &places {
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
