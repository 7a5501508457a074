//! What the configuration and the machine make of the tables.

use super::*;
use crate::config::NumaReservation;
use crate::model::pod::ResourceList;

#[test]
fn more_cannot_be_reserved_than_there_is() {
    let reserved = |compat, resource: &str, gib| {
        let mut settings = settings(compat, &[(9, 2), (9, 0)]);
        let of_node = settings.reserved.entry(NumaNodeId(0)).or_default();
        of_node.insert(resource.to_owned(), gib * GI);
        MemoryManager::new(settings).map(|it| it.fresh[&NumaNodeId(0)].tables[resource].allocatable)
    };
    assert_eq!(reserved(Compat::Ballast, "memory", 10), Ok(0));
    let error = reserved(Compat::Ballast, "memory", 11).expect_err("too much");
    assert_eq!(
        error.to_string(),
        format!(
            "NUMA node 0 has {} bytes of memory that can be reserved, and reservedMemory takes {}; \
             right would be at most what it has",
            10 * GI,
            11 * GI
        )
    );
    assert!(reserved(Compat::Ballast, "hugepages-1Gi", 3).is_err());
    assert_eq!(
        reserved(Compat::Kubelet, "memory", 11),
        Ok(GI.wrapping_neg())
    );
    let mut nothing = settings(Compat::Ballast, &[(9, 0)]);
    nothing.reserved.clear();
    assert_eq!(
        MemoryManager::new(nothing).err(),
        Some(MemoryConfigError::NothingReserved)
    );
}

/// Memory of a node that has 1 GiB less than is reserved on it, as kubelet sees it: nearly 16 EiB on
/// its own, and 8 GiB with a node that has 9.
#[test]
fn wrapped_tables_are_told_as_kubelet_tells_them() {
    let mut settings = settings(Compat::Kubelet, &[(9, 0), (9, 0)]);
    let of_node = settings.reserved.entry(NumaNodeId(0)).or_default();
    of_node.insert("memory".to_owned(), 11 * GI);
    let manager = MemoryManager::new(settings).expect("kubelet does not mind");
    for (request, expected) in [
        ("app 4", "0+ 1+ 0-1-"),
        ("app 9", "0+ 1+"),
        ("app 20", "0+"),
    ] {
        assert_eq!(hints(&manager, &pod("p", request)), expected);
    }
}

#[test]
fn reserved_memory_adds_up_to_the_reservation() {
    let list = |text: &str| -> ResourceList {
        let amounts = text.split(' ').filter_map(|it| it.split_once('='));
        amounts
            .map(|(name, it)| (name.to_owned(), it.parse().expect("a quantity")))
            .collect()
    };
    let check = |compat, entries: &[(u32, &str)]| {
        let entries: Vec<NumaReservation> = entries
            .iter()
            .map(|(id, limits)| NumaReservation {
                numa_node: NumaNodeId(*id),
                limits: list(limits),
            })
            .collect();
        let nodes = [NumaNodeId(0), NumaNodeId(2)];
        check_reserved_memory(compat, nodes, &list("cpu=1 memory=2148Mi"), &entries)
    };
    let reserved = |entries: &[(u32, &str)]| {
        let reserved = check(Compat::Ballast, entries)?;
        Ok::<_, ReservedMemoryError>(
            reserved.values().flat_map(|it| it.values()).sum::<u64>() >> 20,
        )
    };
    assert_eq!(
        reserved(&[(0, "memory=2Gi"), (2, "memory=100Mi")]),
        Ok(2148)
    );
    // Kubelet takes the last entry of a node, and refuses what it does not hold as a whole number.
    let twice: &[(u32, &str)] = &[(0, "memory=2Gi"), (0, "memory=100Mi")];
    assert_eq!(reserved(twice), Ok(2148));
    let kubelet = check(Compat::Kubelet, twice).expect("the sum is right");
    assert_eq!(kubelet[&NumaNodeId(0)]["memory"], 100 << 20);
    let half: &[(u32, &str)] = &[(0, "memory=0.5Gi"), (0, "memory=1636Mi")];
    assert_eq!(reserved(half), Ok(2148));
    assert!(check(Compat::Kubelet, half).is_err());
    for (entries, message) in [
        (
            &[(1, "memory=2148Mi")][..],
            "the reserved memory configuration references a NUMA node 1 that does not exist on this machine",
        ),
        (
            &[(0, "memory=2Gi")][..],
            "the total amount \"2Gi\" of type \"memory\" is not equal to the value \"2148Mi\" determined by Node Allocatable feature",
        ),
    ] {
        let error = reserved(entries).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn pools_of_huge_pages_are_no_memory() {
    let manager = manager(Compat::Ballast, &[(7, 2), (9, 0)]);
    let blocks = manager.allocatable();
    let shown = blocks
        .iter()
        .map(|it| (it.numa.to_string(), it.resource.as_str(), it.size / GI));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            ("0".to_owned(), "hugepages-1Gi", 2),
            ("0".to_owned(), "memory", 7),
            ("1".to_owned(), "memory", 9),
        ]
    );
    assert_eq!(
        manager.fresh[&NumaNodeId(0)].tables["memory"].total,
        10 * GI
    );
}
