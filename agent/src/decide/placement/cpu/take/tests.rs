use super::super::testing::{Random, machine, regular, set};
use super::super::topology::{CpuRow, CpuTopology};
use super::*;

const BOTH: [Compat; 2] = [Compat::Ballast, Compat::Kubelet];
const PACKED: Spreading = Spreading::Packed {
    align_by_llc: false,
};
const BY_LLC: Spreading = Spreading::Packed { align_by_llc: true };

const fn across(group_size: usize) -> Spreading {
    Spreading::AcrossNumaNodes { group_size }
}

const fn rule(spreading: Spreading, compat: Compat) -> TakeRule {
    TakeRule {
        spreading,
        order: CpuOrder::Packed,
        compat,
    }
}

#[track_caller]
fn check(name: &str, pool: &str, n: usize, rule: TakeRule, right: &str) {
    let taken = match take(&machine(name), &set(pool), n, rule) {
        Ok(taken) => taken.to_string(),
        Err(error) => error.to_string(),
    };
    assert_eq!(taken, right, "{n} of {pool} on {name}, {rule:?}");
}

#[test]
fn packed_takes_the_largest_whole_elements_first() {
    for compat in BOTH {
        let check = |name, pool, n, right| check(name, pool, n, rule(PACKED, compat), right);
        check("T1", "0-7", 0, "");
        check("T1", "0-7", 1, "0");
        check("T1", "0-7", 2, "0,4");
        check("T1", "0-7", 3, "0-1,4");
        check("T1", "0-7", 5, "0-2,4-5");
        check("T1", "0-3,6", 2, "2,6");
        check("T1", "4-7", 2, "4-5");
        check("T2", "0-11", 6, "0,2,4,6,8,10");
        check("T2", "0-11", 7, "0-2,4,6,8,10");
        check("T2", "0-11", 8, "0-2,4,6-8,10");
        check("T2", "1-11", 2, "2,8");
        check("T2", "1-11", 5, "2,4,6,8,10");
        check("T2", "1-11", 6, "1,3,5,7,9,11");
        check("T2", "1-5,7-11", 1, "2");
        check("T2", "0-5,7", 3, "1,3,7");
        check("T3", "0-79", 20, "0-9,40-49");
        check("T3", "0-79", 40, "0-19,40-59");
        check("T3", "0-79", 60, "0-29,40-69");
        check("T3", "10-39,50-79", 20, "10-19,50-59");
        check("T3", "1-39,41-79", 60, "10-39,50-79");
        check("T3", "0-79", 64, "0-31,40-71");
        check("T3", "5-79", 6, "5-7,45-47");
        check("T9", "0-15", 6, "0-2,8-10");
        check("T9", "1-7,9-15", 4, "2-3,10-11");
        check("T9", "1-7,9-15", 10, "1,4-7,9,12-15");
        check("T9", "0,8,4-7,12-15", 3, "0,4,8");
        let too_few = "not enough cpus available to satisfy request: requested=3, available=2";
        check("T1", "0,5", 3, too_few);
    }
}

#[test]
fn spread_takes_cores_by_their_first_threads() {
    for compat in BOTH {
        let rule = TakeRule {
            order: CpuOrder::Spread,
            ..rule(PACKED, compat)
        };
        check("T2", "0-11", 2, rule, "0,2");
        check("T2", "0-11", 3, rule, "0,2,4");
        check("T2", "0-11", 8, rule, "0-4,6,8,10");
        check("T2", "1-11", 4, rule, "2,4,6,8");
    }
}

#[test]
fn a_cache_that_can_give_all_is_taken_before_cores() {
    for compat in BOTH {
        let check = |name, pool, n, right| check(name, pool, n, rule(BY_LLC, compat), right);
        check("T6", "0-15", 8, "0-3,8-11");
        check("T6", "1-15", 4, "4-5,12-13");
        check("T6", "2-15", 6, "4-6,12-14");
        check("T6", "1-15", 8, "4-7,12-15");
        check("T6", "3-15", 5, "4-6,12-13");
        check("T6", "0-2,4-15", 5, "0-2,8-9");
        check("T7", "1-15", 3, "1-3");
        check("T7", "1-15", 4, "4-7");
        check("T7", "1-15", 5, "1,4-7");
        check("T7", "1-3,5-7,9-11,13-15", 4, "1-3,5");
        check("T7", "1-3,5-15", 7, "1-3,8-11");
    }
}

#[test]
fn distributed_gives_even_parts_of_the_fewest_nodes() {
    let holes = "0-8,10-18,20-39,40-48,50-58,60-79";
    for compat in BOTH {
        let check = |name, pool, n, g, right| check(name, pool, n, rule(across(g), compat), right);
        check("T3", "0-79", 16, 1, "0-7,40-47");
        check("T3", "0-79", 26, 1, "0-6,10-16,40-45,50-55");
        check("T3", "0-79", 26, 2, "0-6,10-15,40-46,50-55");
        check("T3", "0-79", 22, 2, "0-5,10-14,40-45,50-54");
        check(
            "T3",
            "0-79",
            62,
            1,
            "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76",
        );
        check(
            "T3",
            "0-79",
            62,
            2,
            "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76",
        );
        check(
            "T3",
            holes,
            62,
            1,
            "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77",
        );
        check(
            "T3",
            holes,
            62,
            2,
            "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77",
        );
        check(
            "T3",
            "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
            34,
            1,
            "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74",
        );
        check("T3", "0-79", 5, 2, "0-2,40-41");
        check("T9", "0-15", 6, 1, "0-3,8,10");
        check("T9", "0-15", 6, 2, "0-2,8-10");
        check("T2", "1-5,7-11", 1, 1, "1");
        check("T2", "1-5,7-11", 1, 2, "2");
        check("T5", "0-127", 80, 1, "0-39,64-103");
    }
}

/// Kubelet's best combination is overwritten while it goes on looking.
#[test]
fn the_best_combination_is_the_one_that_is_used() {
    let ours = rule(across(1), Compat::Ballast);
    let kubelets = rule(across(1), Compat::Kubelet);
    check("T5", "0-127", 64, ours, "0-31,64-95");
    check("T5", "0-127", 64, kubelets, "0-23,56-87,120-127");
    check("T5", "0-127", 96, ours, "0-47,64-111");
    check("T5", "0-127", 96, kubelets, "0-39,56-103,120-127");
}

/// Kubelet counts CPUs where whole groups are to be given, and never ends.
#[test]
fn odd_leftovers_do_not_stop_the_search() {
    let pool = set("0-1,8-11,16-19,24-27,32-33,40-42,48-50,56-58");
    for compat in BOTH {
        let taken = take(&machine("T4"), &pool, 22, rule(across(2), compat)).expect("25 CPUs");
        assert_eq!(taken.len(), 22, "{compat:?}");
        assert!(taken.is_subset(&pool), "{compat:?}");
        assert_eq!(machine("T4").full_cores(&taken), taken, "{compat:?}");
    }
}

/// By averages a core with one free thread of two is whole.
#[test]
fn cores_of_different_sizes_give_nothing_outside_the_pool() {
    check("hybrid", "1-5", 2, rule(PACKED, Compat::Ballast), "2-3");
    check("hybrid", "1-5", 2, rule(PACKED, Compat::Kubelet), "0-1");
    check("hybrid", "1-5", 3, rule(PACKED, Compat::Ballast), "2-4");
    check("hybrid", "1-5", 1, rule(PACKED, Compat::Ballast), "4");
}

/// Where packages cross NUMA nodes, what lies in two of them comes twice; kubelet counts it twice.
#[test]
fn crossing_levels_give_as_many_as_asked_for() {
    let odd = odd_sockets();
    let pool = set("0-4,6-10,12,14-15");
    let of = |compat| take(&odd, &pool, 13, rule(BY_LLC, compat)).map(|it| it.to_string());
    assert_eq!(of(Compat::Kubelet), Ok("0-3,6-10,14-15".to_owned()));
    assert_eq!(of(Compat::Ballast), Ok("0-4,6-10,12,14-15".to_owned()));
}

/// Two packages of four cores, each core of a package in the other NUMA node than the one before.
fn odd_sockets() -> CpuTopology {
    let rows = (0..16).map(|cpu| {
        let core = cpu / 2 * 2;
        super::super::testing::row(cpu, core, (cpu / 8, cpu / 2 % 2, cpu / 8))
    });
    CpuTopology::new(rows).expect("a machine")
}

#[test]
fn cpus_that_the_machine_has_not_are_not_given() {
    for compat in BOTH {
        let too_few = "not enough cpus available to satisfy request: requested=3, available=2";
        check("T1", "0-1,1000", 3, rule(PACKED, compat), too_few);
    }
}

fn random_rule(random: &mut Random, topology: &CpuTopology, compat: Compat) -> TakeRule {
    let spreading = match random.below(4) {
        0 => PACKED,
        1 => BY_LLC,
        2 => across(1),
        _ => across(topology.most_cpus_per_core()),
    };
    let order = if spreading == PACKED && random.is(3) {
        CpuOrder::Spread
    } else {
        CpuOrder::Packed
    };
    TakeRule {
        spreading,
        order,
        compat,
    }
}

#[test]
fn any_machine_gives_what_was_asked_for_out_of_the_pool() {
    let mut random = Random::new(1);
    let mut n_cases = 0;
    for _ in 0..250 {
        let topology = random.odd_machine();
        let pool = random.subset(topology.all());
        let rule = random_rule(&mut random, &topology, Compat::Ballast);
        for n in 0..=pool.len() {
            let taken = take(&topology, &pool, n, rule).expect("as many are there");
            assert_eq!(taken.len(), n, "{n} of {pool}, {rule:?}, {topology:?}");
            assert!(
                taken.is_subset(&pool),
                "{n} of {pool}, {rule:?}, {topology:?}"
            );
            n_cases += 1;
        }
        let more = take(&topology, &pool, pool.len() + 1, rule);
        assert!(matches!(more, Err(TakeError::NotEnough { .. })));
        // Kubelet's way ends too, whatever it gives.
        let rule = TakeRule {
            compat: Compat::Kubelet,
            ..rule
        };
        for n in 1..=pool.len() {
            let _ = take(&topology, &pool, n, rule);
        }
    }
    assert!(n_cases > 3_000, "{n_cases}");
}

#[test]
fn where_all_elements_are_alike_kubelet_packs_the_same() {
    let mut random = Random::new(2);
    for _ in 0..400 {
        let topology = random.regular_machine();
        let pool = random.subset(topology.all());
        let n = usize::try_from(random.below(200)).expect("fits") % (pool.len() + 1);
        for spreading in [PACKED, BY_LLC] {
            let of = |compat| take(&topology, &pool, n, rule(spreading, compat));
            let (ours, kubelets) = (of(Compat::Ballast), of(Compat::Kubelet));
            assert_eq!(ours, kubelets, "{n} of {pool}, {spreading:?}, {topology:?}");
        }
    }
}

#[test]
fn the_order_of_rows_does_not_matter() {
    let rows: Vec<CpuRow> = (0..16)
        .map(|cpu| super::super::testing::row(cpu, cpu % 8, (cpu % 8 / 4, cpu % 8 / 2, 0)))
        .collect();
    let forwards = CpuTopology::new(rows.iter().copied());
    let backwards = CpuTopology::new(rows.into_iter().rev());
    assert_eq!(forwards, backwards);
}

/// Beyond the nodes that are searched the balance is the best there is, and all is even.
#[test]
fn sixty_four_nodes_are_no_more_work_than_eight() {
    let topology = regular(256, 2, |k| (k / 32, k / 4, k / 4));
    for n in [1, 64, 100, 300, 511] {
        let rule = rule(across(1), Compat::Ballast);
        let taken = take(&topology, topology.all(), n, rule).expect("512 CPUs");
        assert_eq!(taken.len(), n);
        let by_node = topology.count_by_node(&taken);
        let fewest = n.div_ceil(8);
        assert_eq!(by_node.len(), fewest, "{n}");
        let (least, most) = (by_node.values().min(), by_node.values().max());
        let (least, most) = (least.expect("a node"), most.expect("a node"));
        assert!(most - least <= 1, "{n}: {by_node:?}");
    }
}
