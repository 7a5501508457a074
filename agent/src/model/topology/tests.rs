#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// CPUs of one package and node, two threads a core numbered `(k, k + n)`, a cache for every four
/// cores.
fn thread_major(n_cores: u32) -> TopologyFacts {
    let cpus = (0..2 * n_cores)
        .map(|cpu| {
            let core = cpu % n_cores;
            let first = core / 4 * 4;
            let last = (first + 3).min(n_cores - 1);
            let shared = format!("{first}-{last},{}-{}", first + n_cores, last + n_cores);
            let facts = CpuFacts {
                core_id: Some(core),
                package_id: Some(0),
                thread_siblings: Some(set(&format!("{core},{}", core + n_cores))),
                caches: vec![CacheFacts {
                    level: 3,
                    id: Some(first / 4),
                    shared_cpus: set(&shared),
                }],
            };
            (CpuId(cpu), facts)
        })
        .collect();
    let node = NumaNodeFacts {
        cpus: CpuSet::first(2 * n_cores),
        memory: Some(Bytes(1 << 30)),
        distances: vec![10],
        hugepages: HugePages::new(),
    };
    TopologyFacts {
        online: Some(CpuSet::first(2 * n_cores)),
        cpus,
        numa_nodes: BTreeMap::from([(NumaNodeId(0), node)]),
        ..TopologyFacts::default()
    }
}

#[test]
fn threads_and_caches_are_named_by_their_least_cpu() {
    let topology = Topology::from_facts(&thread_major(8)).unwrap();
    assert_eq!(topology.shape(), "1s-1n-8c-16t");
    assert_eq!(topology.siblings(CpuId(13)), set("5,13"));
    assert_eq!(topology.cpus[&CpuId(13)].core, CoreId(5));
    assert_eq!(topology.cpus[&CpuId(13)].llc, LlcId(4));
    assert_eq!(topology.llcs[&LlcId(4)].cpus, set("4-7,12-15"));
    assert_eq!(topology.llcs[&LlcId(4)].cache_id, Some(1));
    assert!(topology.has_smt());
}

#[test]
fn offline_cpus_have_no_place_and_name_nothing() {
    let mut facts = thread_major(4);
    facts.online = Some(set("1-4,6-7"));
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.offline, set("0,5"));
    assert_eq!(topology.online(), set("1-4,6-7"));
    // The sibling of CPU 0 is alone now, and the cache lost its first CPU.
    assert_eq!(topology.cores()[&CoreId(4)], set("4"));
    assert_eq!(topology.llcs[&LlcId(1)].cpus, set("1-4,6-7"));
    assert_eq!(topology.siblings(CpuId(0)), CpuSet::new());
}

#[test]
fn core_ids_repeat_from_package_to_package() {
    let mut facts = thread_major(4);
    for (cpu, it) in &mut facts.cpus {
        it.package_id = Some(cpu.0 % 4 / 2);
        it.core_id = Some(cpu.0 % 2);
    }
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.cores().len(), 4);
    assert_eq!(topology.packages()[&PackageId(1)], set("2-3,6-7"));
}

/// RK3588: four small and twice two big cores, numbered in each cluster anew.
#[test]
fn core_ids_repeat_from_cluster_to_cluster() {
    let mut facts = thread_major(4);
    for (cpu, it) in &mut facts.cpus {
        it.core_id = Some(cpu.0 % 4 % if cpu.0 < 4 { 4 } else { 2 });
        it.thread_siblings = Some(CpuSet::from_iter([*cpu]));
    }
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.cores().len(), 8);
    assert!(!topology.has_smt());
    // Who says nothing of siblings.
    for it in facts.cpus.values_mut() {
        it.thread_siblings = None;
    }
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.cores().len(), 4);
}

#[test]
fn sparse_numa_nodes_keep_their_ids_and_distances() {
    let node = |cpus: &str, distances: &[u32]| NumaNodeFacts {
        cpus: set(cpus),
        memory: Some(Bytes(1 << 30)),
        distances: distances.to_vec(),
        hugepages: HugePages::new(),
    };
    let mut facts = thread_major(4);
    facts.numa_nodes = BTreeMap::from([
        (NumaNodeId(0), node("0-1,4-5", &[10, 21, 17])),
        (NumaNodeId(8), node("2-3,6-7", &[21, 10, 28])),
        // Memory only, as HBM or CXL.
        (NumaNodeId(16), node("", &[17, 28, 10])),
    ]);
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.cpus[&CpuId(6)].numa_node, NumaNodeId(8));
    assert_eq!(
        topology.numa_nodes[&NumaNodeId(8)].distances[&NumaNodeId(16)],
        28
    );
    assert!(topology.numa_nodes[&NumaNodeId(16)].cpus.is_empty());
}

#[test]
fn distances_of_another_length_are_unknown() {
    let mut facts = thread_major(4);
    facts
        .numa_nodes
        .entry(NumaNodeId(0))
        .and_modify(|it| it.distances = vec![10, 20]);
    let topology = Topology::from_facts(&facts).unwrap();
    assert!(topology.numa_nodes[&NumaNodeId(0)].distances.is_empty());
}

#[test]
fn a_cpu_that_no_node_lists_goes_to_the_least_node() {
    let mut facts = thread_major(2);
    facts.numa_nodes = [3, 5]
        .map(|id| {
            let cpus = if id == 5 { set("0") } else { CpuSet::new() };
            let node = NumaNodeFacts {
                cpus,
                ..NumaNodeFacts::default()
            };
            (NumaNodeId(id), node)
        })
        .into();
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.cpus[&CpuId(0)].numa_node, NumaNodeId(5));
    assert_eq!(topology.cpus[&CpuId(3)].numa_node, NumaNodeId(3));
    assert_eq!(topology.numa_nodes[&NumaNodeId(3)].cpus, set("1-3"));
}

#[test]
fn a_cpu_of_two_nodes_belongs_to_the_first() {
    let mut facts = thread_major(2);
    facts.numa_nodes = ["0-2", "2-3"]
        .into_iter()
        .zip(0..)
        .map(|(cpus, id)| {
            let node = NumaNodeFacts {
                cpus: set(cpus),
                ..NumaNodeFacts::default()
            };
            (NumaNodeId(id), node)
        })
        .collect();
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.numa_nodes[&NumaNodeId(1)].cpus, set("3"));
}

#[test]
fn without_files_every_cpu_is_a_core_of_package_0_and_node_0() {
    let facts = TopologyFacts {
        online: None,
        cpus: [0, 1, 5].map(|it| (CpuId(it), CpuFacts::default())).into(),
        memory: Some(Bytes(7)),
        ..TopologyFacts::default()
    };
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.shape(), "1s-1n-3c-3t");
    assert_eq!(topology.llcs.len(), 1);
    assert_eq!(topology.llcs[&LlcId(0)].cpus, set("0-1,5"));
    assert_eq!(topology.numa_nodes[&NumaNodeId(0)].memory, Some(Bytes(7)));
}

#[test]
fn siblings_stand_in_for_a_missing_core_id() {
    let mut facts = thread_major(2);
    for it in facts.cpus.values_mut() {
        it.core_id = None;
    }
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.cores()[&CoreId(1)], set("1,3"));
}

#[test]
fn caches_below_level_3_or_of_other_cpus_are_not_last_level() {
    let mut facts = thread_major(4);
    for it in facts.cpus.values_mut() {
        it.caches = vec![
            CacheFacts {
                level: 2,
                id: Some(9),
                shared_cpus: set("1-3"),
            },
            CacheFacts {
                level: 3,
                id: Some(9),
                shared_cpus: set("100"),
            },
        ];
    }
    let topology = Topology::from_facts(&facts).unwrap();
    assert_eq!(topology.llcs.len(), 1);
    assert_eq!(topology.llcs[&LlcId(0)].cache_id, None);
}

#[test]
fn a_node_without_online_cpus_is_refused() {
    assert_eq!(Topology::from_facts(&TopologyFacts::default()), Err(NoCpus));
    let facts = TopologyFacts {
        online: Some(CpuSet::new()),
        ..thread_major(2)
    };
    assert_eq!(Topology::from_facts(&facts), Err(NoCpus));
}

#[test]
fn directory_names_carry_ids() {
    for (name, expected) in [
        ("cpu0", Some(0)),
        ("cpu128", Some(128)),
        ("cpufreq", None),
        ("cpu", None),
        ("cpu-1", None),
        ("cpu+1", None),
        ("cpu99999999999", None),
        ("node1", None),
    ] {
        assert_eq!(directory_id(name, "cpu"), expected, "{name}");
    }
    assert_eq!(parse_distances("10 21\n").unwrap(), [10, 21]);
    assert!(parse_distances("10 -1").is_err());
}
