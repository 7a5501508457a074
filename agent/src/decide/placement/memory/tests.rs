//! Worked examples, and one test for each way in which we differ from kubelet. What is the same is pinned by suite
//! `memory_static_policy`.

mod properties;
mod restore;
mod settings;

use super::*;
use crate::decide::placement::hints::{Hints, ProviderHints};
use crate::decide::testing;

const GI: u64 = 1 << 30;

/// Nodes from 0 on with so many GiB of memory besides the 1 GiB reserved, and huge pages of 1 GiB.
fn manager(compat: Compat, nodes: &[(u64, u64)]) -> MemoryManager {
    MemoryManager::new(settings(compat, nodes)).expect("settings that fit")
}

fn settings(compat: Compat, nodes: &[(u64, u64)]) -> MemorySettings {
    let numbered = || (0..).map(NumaNodeId).zip(nodes);
    let capacity = |(memory, pages): &(u64, u64)| NumaCapacity {
        memory: Bytes((memory + pages + 1) * GI),
        hugepages: HugePages::from([(Bytes(GI), *pages)]),
    };
    let reserved = BTreeMap::from([("memory".to_owned(), GI)]);
    MemorySettings {
        compat,
        manages_pod_level: true,
        machine: numbered().map(|(id, it)| (id, capacity(it))).collect(),
        reserved: numbered().map(|(id, _)| (id, reserved.clone())).collect(),
    }
}

/// A Guaranteed pod; containers are `kind memory [huge pages]` in GiB, as `init 6, app 4 1`.
fn pod(uid: &str, containers: &str) -> Pod {
    let blocks = containers.split(", ").map(|it| {
        let mut words = it.split(' ');
        let kind = words.next().expect("a kind");
        let mut list = format!("cpu=1 memory={}Gi", words.next().expect("memory"));
        if let Some(pages) = words.next() {
            list += &format!(" hugepages-1Gi={pages}Gi");
        }
        format!("{kind} {{req {list} lim {list}}}")
    });
    let mut pod = testing::pod(&blocks.collect::<Vec<_>>().join(" "));
    pod.uid = PodUid(uid.to_owned());
    pod
}

fn mask(ids: &[u32]) -> NumaMask {
    NumaMask::new(ids.iter().copied().map(NumaNodeId)).expect("small ids")
}

fn at(ids: &[u32]) -> Hint {
    Hint {
        numa: Some(mask(ids)),
        preferred: true,
    }
}

fn anywhere(preferred: bool) -> Hint {
    Hint {
        numa: None,
        preferred,
    }
}

/// `0+ 0-1-`: the list for `memory`; every type must have the same.
fn shown(hints: Option<ProviderHints>) -> String {
    let Some(hints) = hints else {
        return "any".to_owned();
    };
    let Some(memory) = hints.get("memory") else {
        assert!(hints.is_empty(), "memory is always requested");
        return "no types".to_owned();
    };
    assert!(hints.values().all(|it| it == memory));
    let list = memory.list().expect("a list");
    let one = |it: &Hint| {
        let sign = if it.preferred { '+' } else { '-' };
        format!("{}{sign}", it.numa.expect("a mask"))
    };
    list.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Reserved and free memory of a node in GiB, its assignments and its group.
fn table(manager: &MemoryManager, id: u32) -> (u64, u64, u32, Vec<u32>) {
    let node = &manager.state().nodes[&NumaNodeId(id)];
    let memory = node.tables["memory"];
    (
        memory.reserved / GI,
        memory.free / GI,
        node.n_assignments,
        node.group.iter().map(|it| it.0).collect(),
    )
}

#[track_caller]
fn take(manager: &mut MemoryManager, pod: &Pod, hint: Hint) {
    for container in pod.all_containers() {
        let result = manager.allocate(pod, container, hint);
        assert_eq!(result, Ok(()), "{} {}", pod.uid, container.name);
    }
}

#[track_caller]
fn refused(manager: &mut MemoryManager, pod: &Pod, hint: Hint) -> MemoryError {
    let before = manager.state().clone();
    let result = manager.allocate(pod, &pod.containers[0], hint);
    assert_eq!(*manager.state(), before, "an error changes nothing");
    result.expect_err("no room")
}

fn hints(manager: &MemoryManager, pod: &Pod) -> String {
    shown(manager.hints(pod, &pod.containers[0]))
}

/// Where nothing fits, `no types` is kubelet's answer and an empty list ours.
#[test]
fn hints_follow_from_what_is_free_and_from_the_groups() {
    let two = || manager(Compat::Ballast, &[(9, 0), (9, 0)]);
    let four = || manager(Compat::Ballast, &[(9, 0); 4]);
    let with = |mut manager: MemoryManager, held: &[(&str, &[u32])]| {
        for (i, (containers, nodes)) in held.iter().enumerate() {
            take(
                &mut manager,
                &pod(&format!("held{i}"), containers),
                at(nodes),
            );
        }
        manager
    };
    let single: &[(&str, &[u32])] = &[("app 6", &[0])];
    let group: &[(&str, &[u32])] = &[("app 12", &[0, 1])];
    let both: &[(&str, &[u32])] = &[("app 4", &[0]), ("app 12", &[2, 3])];
    let pages = || manager(Compat::Ballast, &[(9, 2), (9, 0)]);
    for (name, manager, request, expected) in [
        ("Y-1", two(), "app 4", "0+ 1+ 0-1-"),
        ("Y-2", two(), "app 12", "0-1+"),
        ("Y-3", two(), "app 20", ""),
        ("Y-4", with(two(), single), "app 4", "1+"),
        ("Y-5", with(two(), single), "app 12", ""),
        ("Y-6", with(two(), group), "app 4", "0-1-"),
        ("Y-7", with(two(), group), "app 8", ""),
        ("Y-8", pages(), "app 4 1", "0+ 0-1-"),
        ("Y-9", pages(), "app 12 2", "0-1+"),
        (
            "Y-10",
            four(),
            "app 12",
            "0-1+ 0,2+ 0,3+ 1-2+ 1,3+ 2-3+ 0-2- 0-1,3- 0,2-3- 1-3- 0-3-",
        ),
        (
            "Y-11",
            with(four(), single),
            "app 12",
            "1-2+ 1,3+ 2-3+ 1-3-",
        ),
        ("Y-12", with(four(), both), "app 5", "0+ 1+ 2-3-"),
        ("Y-13", with(four(), both), "app 12", ""),
    ] {
        assert_eq!(hints(&manager, &pod("p", request)), expected, "{name}");
    }
}

#[test]
fn a_request_that_fits_nowhere_is_impossible_and_not_without_preference() {
    let too_much = pod("p", "app 20");
    let ours = manager(Compat::Ballast, &[(9, 0)]);
    assert_eq!(
        ours.hints(&too_much, &too_much.containers[0])
            .expect("a type")["memory"],
        Hints::none()
    );
    assert_eq!(shown(ours.pod_hints(&too_much)), "");
    let kubelet = manager(Compat::Kubelet, &[(9, 0)]);
    assert_eq!(hints(&kubelet, &too_much), "no types");
}

/// The release as it should be: the rest lies as if it had been alone.
#[test]
fn what_a_group_holds_does_not_depend_on_who_was_there_before() {
    for (compat, after) in [
        (Compat::Ballast, [(4, 5), (0, 9)]),
        (Compat::Kubelet, [(0, 9), (4, 5)]),
    ] {
        let mut manager = manager(compat, &[(9, 0), (9, 0)]);
        let (large, small) = (pod("p1", "app 12"), pod("p2", "app 4"));
        take(&mut manager, &large, at(&[0, 1]));
        assert_eq!(table(&manager, 0), (9, 0, 1, vec![0, 1]));
        assert_eq!(table(&manager, 1), (3, 6, 1, vec![0, 1]));
        let hint = Hint {
            preferred: false,
            ..at(&[0, 1])
        };
        take(&mut manager, &small, hint);
        assert_eq!(table(&manager, 1), (7, 2, 2, vec![0, 1]));
        manager.release(&large.uid, "app0");
        for (id, (reserved, free)) in (0..).zip(after) {
            assert_eq!(table(&manager, id), (reserved, free, 1, vec![0, 1]));
        }
        manager.release(&small.uid, "app0");
        assert_eq!(table(&manager, 0), (0, 9, 0, vec![0]));
        assert_eq!(table(&manager, 1), (0, 9, 0, vec![1]));
    }
}

#[test]
fn a_group_is_not_made_of_nodes_in_use() {
    let mut manager = manager(Compat::Ballast, &[(9, 0), (9, 0)]);
    take(&mut manager, &pod("p1", "app 6"), at(&[0]));
    let p2 = pod("p2", "app 12");
    assert_eq!(
        refused(&mut manager, &p2, Hint::UNKNOWN),
        MemoryError::NoDefaultAffinity
    );
    assert_eq!(
        refused(&mut manager, &p2, at(&[0, 1])),
        MemoryError::ViolatesGroups
    );
    assert_eq!(
        MemoryError::ViolatesGroups.reason().as_str(),
        "UnexpectedAdmissionError"
    );
}

#[test]
fn memory_of_an_init_container_is_used_again() {
    let mut manager = manager(Compat::Ballast, &[(9, 1)]);
    let pod = pod("p", "init 6, app 4 1");
    take(&mut manager, &pod, at(&[0]));
    assert_eq!(table(&manager, 0), (6, 3, 3, vec![0]));
    let init = manager.blocks_of(&pod.uid, "init0").expect("blocks");
    assert_eq!(init[0].size, 2 * GI);
    assert_eq!(manager.numa_nodes_of(&pod.uid, "app1"), Some(mask(&[0])));
    manager.container_starts(&pod, "app1");
    assert_eq!(table(&manager, 0), (4, 5, 2, vec![0]));
}

/// As when the agent starts again, or CPUs come.
#[test]
fn an_init_container_that_is_over_is_given_nothing_again() {
    let pod = pod("p", "init 6, app 4, app 1");
    let mut manager = manager(Compat::Ballast, &[(9, 0)]);
    let is_settled = |it: &MemoryManager| pod.all_containers().all(|of| it.is_settled(&pod, of));
    assert!(!is_settled(&manager));
    take(&mut manager, &pod, at(&[0]));
    assert!(is_settled(&manager));
    manager.container_starts(&pod, "app1");
    assert!(is_settled(&manager));
    let held = table(&manager, 0);
    assert_eq!(shown(manager.hints(&pod, &pod.init_containers[0])), "any");
    take(&mut manager, &pod, anywhere(true));
    assert_eq!(table(&manager, 0), held);
    // The node has started again, and the pod begins with it.
    let mut rebooted = manager.clone();
    rebooted.begin_anew(&pod);
    assert!(!is_settled(&rebooted));
    assert_eq!(table(&rebooted, 0), (0, 9, 0, vec![0]));
    take(&mut rebooted, &pod, at(&[0]));
    assert!(rebooted.blocks_of(&pod.uid, "init0").is_some());
    // What nothing was given back of stays.
    let held = table(&rebooted, 0);
    rebooted.begin_anew(&pod);
    assert_eq!(table(&rebooted, 0), held);
    // One of the others has lost its own.
    manager.release(&pod.uid, "app2");
    assert!(!is_settled(&manager));
}

#[test]
fn a_hint_within_a_group_is_widened_to_it() {
    let within = Hint {
        preferred: false,
        ..at(&[1])
    };
    let small = pod("p2", "app 4");
    let mut ours = manager(Compat::Ballast, &[(9, 0), (9, 0)]);
    take(&mut ours, &pod("p1", "app 12"), at(&[0, 1]));
    take(&mut ours, &small, within);
    assert_eq!(ours.numa_nodes_of(&small.uid, "app0"), Some(mask(&[0, 1])));
    assert_eq!(
        refused(&mut ours, &pod("p3", "app 1"), at(&[1])),
        MemoryError::NoExtendedPreferredHint
    );
    let mut kubelet = manager(Compat::Kubelet, &[(9, 0), (9, 0)]);
    take(&mut kubelet, &pod("p1", "app 12"), at(&[0, 1]));
    take(&mut kubelet, &small, within);
    assert_eq!(table(&kubelet, 0).3, [0, 1]);
    assert_eq!(table(&kubelet, 1).3, [1]);
}

#[test]
fn a_container_stays_where_it_is_whatever_its_blocks_shrank_to() {
    let pod = pod("p", "init 6, app 4");
    for (compat, of_init, of_pod) in [
        (Compat::Ballast, "0+", "0+"),
        (Compat::Kubelet, "any", "any"),
    ] {
        let mut manager = manager(compat, &[(9, 0), (9, 0)]);
        take(&mut manager, &pod, at(&[0]));
        let init = &pod.init_containers[0];
        assert_eq!(shown(manager.hints(&pod, init)), of_init);
        assert_eq!(shown(manager.pod_hints(&pod)), of_pod);
        assert_eq!(hints(&manager, &pod), "0+");
    }
}

#[test]
fn huge_pages_that_only_an_init_container_requests_count_for_the_pod() {
    let pod = pod("p", "init 1 1, app 1");
    let nodes = [(9, 0), (9, 1)];
    assert_eq!(
        shown(manager(Compat::Ballast, &nodes).pod_hints(&pod)),
        "1+ 0-1-"
    );
    assert_eq!(
        shown(manager(Compat::Kubelet, &nodes).pod_hints(&pod)),
        "0+ 1+ 0-1-"
    );
}

#[test]
fn amounts_are_rounded_up_to_bytes() {
    let spec = "app {req cpu=1 memory=1.5Gi lim cpu=1 memory=1.5Gi}";
    let pod = testing::pod(spec);
    let mut ours = manager(Compat::Ballast, &[(9, 0)]);
    take(&mut ours, &pod, Hint::UNKNOWN);
    assert_eq!(
        ours.blocks_of(&pod.uid, "app0").expect("blocks")[0].size,
        3 * GI / 2
    );
    let mut kubelet = manager(Compat::Kubelet, &[(9, 0)]);
    assert_eq!(
        refused(&mut kubelet, &pod, Hint::UNKNOWN),
        MemoryError::NotInt64
    );
}

#[test]
fn a_page_size_that_the_node_does_not_have_fits_nowhere() {
    let list = "cpu=1 memory=1Gi hugepages-2Mi=2Mi";
    let pod = testing::pod(&format!("app {{req {list} lim {list}}}"));
    let mut manager = manager(Compat::Ballast, &[(9, 0)]);
    assert_eq!(
        refused(&mut manager, &pod, at(&[0])),
        MemoryError::CannotExtendHint
    );
}

#[test]
fn other_pods_and_unknown_nodes_are_left_alone() {
    let mut manager = manager(Compat::Ballast, &[(9, 0)]);
    let burstable = testing::pod("app {req memory=1Gi}");
    take(&mut manager, &burstable, anywhere(true));
    assert_eq!(hints(&manager, &burstable), "any");
    assert!(manager.state().containers.is_empty());
    let pod = pod("p", "app 1");
    take(&mut manager, &pod, at(&[5, 63]));
    assert_eq!(manager.numa_nodes_of(&pod.uid, "app0"), Some(mask(&[0])));
}

#[test]
fn a_pod_with_a_budget_takes_it_once_and_shares_it() {
    let list = "cpu=1 memory=2Gi hugepages-1Gi=1Gi";
    let spec = format!(
        "app {{req {list} lim {list}}} app {{}} pod {{req cpu=4 memory=6Gi lim cpu=4 memory=6Gi}}"
    );
    let pod = testing::pod(&spec);
    let sizes = |manager: &MemoryManager, name| {
        let blocks = manager.blocks_of(&pod.uid, name).unwrap_or_default();
        blocks
            .iter()
            .map(|it| (it.resource.clone(), it.size))
            .collect::<Vec<_>>()
    };
    let memory = |n: u64| ("memory".to_owned(), n * GI);
    let pages = |n: u64| ("hugepages-1Gi".to_owned(), n);

    let mut ours = manager(Compat::Ballast, &[(9, 2)]);
    for _ in 0..2 {
        assert_eq!(ours.allocate_pod(&pod, anywhere(true)), Ok(()));
        assert_eq!(table(&ours, 0), (6, 3, 2, vec![0]));
        assert_eq!(sizes(&ours, "app0"), [pages(GI), memory(2)]);
        assert_eq!(sizes(&ours, "app1"), [memory(4)]);
    }
    ours.release(&pod.uid, "app0");
    assert_eq!(table(&ours, 0).0, 6, "the pod holds it");
    ours.release(&pod.uid, "app1");
    assert_eq!(ours.state(), manager(Compat::Ballast, &[(9, 2)]).state());

    // Kubelet charges again what it has, and the share in pages that are not in the budget wraps.
    let mut kubelet = manager(Compat::Kubelet, &[(18, 2)]);
    for reserved in [6, 12] {
        assert_eq!(kubelet.allocate_pod(&pod, anywhere(true)), Ok(()));
        assert_eq!(table(&kubelet, 0).0, reserved);
    }
    assert_eq!(
        sizes(&kubelet, "app1"),
        [pages(GI.wrapping_neg()), memory(4)]
    );
}

#[test]
fn what_requests_nothing_is_given_nothing() {
    let spec = "app {} pod {req cpu=4 memory=6Gi lim cpu=4 memory=6Gi}";
    let pod = testing::pod(spec);
    let mut ours = manager(Compat::Ballast, &[(9, 0)]);
    take(&mut ours, &pod, Hint::UNKNOWN);
    assert!(ours.state().containers.is_empty());
    assert_eq!(hints(&ours, &pod), "any");
    let mut kubelet = manager(Compat::Kubelet, &[(9, 0)]);
    assert_eq!(
        refused(&mut kubelet, &pod, Hint::UNKNOWN),
        MemoryError::NoDefaultAffinity
    );
}

#[test]
fn a_pod_gives_back_as_a_whole_what_its_containers_give_back_one_by_one() {
    let pod_level = testing::pod(
        "app {req cpu=1 memory=2Gi lim cpu=1 memory=2Gi} app {} pod {req cpu=4 memory=6Gi lim cpu=4 memory=6Gi}",
    );
    for (pod, is_whole) in [
        (pod("p", "app 4"), false),
        (pod("p", "init 6, app 4"), false),
        // More than one node has.
        (pod("p", "app 12, app 3 1"), false),
        (pod_level, true),
    ] {
        let mut kubelet = manager(Compat::Kubelet, &[(9, 1), (9, 1)]);
        take(&mut kubelet, &self::pod("other", "app 1"), at(&[0, 1]));
        match is_whole {
            true => assert_eq!(kubelet.allocate_pod(&pod, at(&[0, 1])), Ok(())),
            false => take(&mut kubelet, &pod, at(&[0, 1])),
        }
        let mut state = kubelet.state().clone();
        assert_eq!(state.pods.contains_key(&pod.uid), is_whole);
        release_pod(&mut state, &pod.uid);
        kubelet.retain(|of, _| *of != pod.uid);
        assert_eq!(state, *kubelet.state(), "{}", pod.uid);
    }
}
