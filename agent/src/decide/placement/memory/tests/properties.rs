//! What holds after any sequence of operations, from a seeded generator.

use super::*;
use crate::model::pod::Resources;
use crate::model::random::Random;

impl Random {
    fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let i = self.below(items.len() as u64);
        &items[usize::try_from(i).expect("an index")]
    }

    fn machine(&mut self) -> Vec<(u64, u64)> {
        let n = 1 + self.below(5);
        (0..n).map(|_| (self.below(12), self.below(4))).collect()
    }

    fn pod(&mut self, uid: usize) -> Pod {
        let mut containers = Vec::new();
        for kind in ["init", "sidecar", "app"] {
            let n = self.below(3).max(u64::from(kind == "app"));
            for _ in 0..n {
                let pages = match self.below(3) {
                    0 => format!(" {}", self.below(3)),
                    _ => String::new(),
                };
                containers.push(format!("{kind} {}{pages}", 1 + self.below(8)));
            }
        }
        let mut pod = pod(&format!("p{uid}"), &containers.join(", "));
        if self.below(4) == 0 {
            // A budget that half of the containers share.
            let budget = format!("cpu=9 memory={}Gi", 1 + self.below(16));
            let with = testing::pod(&format!("app {{}} pod {{req {budget} lim {budget}}}"));
            pod.resources = with.resources;
            let all = pod.init_containers.iter_mut().chain(&mut pod.containers);
            for container in all {
                if self.below(2) == 0 {
                    container.resources = Resources::default();
                }
            }
        }
        pod
    }

    fn hint(&mut self, n_nodes: usize) -> Hint {
        let bits = self.below(1 << n_nodes);
        Hint {
            numa: Some(NumaMask::from_bits(bits)).filter(|it| !it.is_empty()),
            preferred: self.below(2) == 0,
        }
    }
}

/// The invariants of the books.
#[track_caller]
fn check(manager: &MemoryManager, nodes: &[(u64, u64)]) {
    let state = manager.state();
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for block in books::held(state).flat_map(|it| it.blocks) {
        *held.entry(&block.resource).or_default() += block.size;
        for id in block.numa.iter() {
            let group: Vec<NumaNodeId> = block.numa.iter().collect();
            assert_eq!(state.nodes[&id].group, group, "one group holds a node");
        }
    }
    let mut reserved: BTreeMap<&str, u64> = BTreeMap::new();
    for node in state.nodes.values() {
        for (resource, table) in &node.tables {
            assert_eq!(table.reserved + table.free, table.allocatable);
            *reserved.entry(resource).or_default() += table.reserved;
        }
    }
    reserved.retain(|_, it| *it > 0);
    held.retain(|_, it| *it > 0);
    assert_eq!(
        reserved, held,
        "all that is held is charged, and nothing else"
    );

    for compat in [Compat::Ballast, Compat::Kubelet] {
        let mut next = super::manager(compat, nodes);
        assert_eq!(
            next.start(state.clone()),
            Ok(()),
            "{compat:?} starts with it"
        );
        assert_eq!(next.state(), state);
    }
}

/// A machine, its pods, and the steps of a run on it.
fn run(seed: u64, mut each: impl FnMut(&mut Random, &mut MemoryManager, &[(u64, u64)])) {
    let mut random = Random(seed);
    let nodes = random.machine();
    let pods: Vec<Pod> = (0..6).map(|it| random.pod(it)).collect();
    let mut manager = manager(Compat::Ballast, &nodes);
    for _ in 0..30 {
        let pod = random.one_of(&pods).clone();
        let all: Vec<&Container> = pod.all_containers().collect();
        match random.below(8) {
            0 => manager.container_starts(&pod, &random.one_of(&all).name),
            1 | 2 => manager.release(&pod.uid, &random.one_of(&all).name),
            _ => {
                let hint = random.hint(nodes.len());
                // A refusal changes nothing, which the checks show.
                let _is_admitted = match pod.resources {
                    Some(_) => manager.allocate_pod(&pod, hint).is_ok(),
                    None => all
                        .iter()
                        .all(|it| manager.allocate(&pod, it, hint).is_ok()),
                };
            }
        }
        each(&mut random, &mut manager, &nodes);
    }
}

#[test]
fn the_books_balance_after_every_step() {
    let mut n_held = 0;
    for seed in 0..200 {
        run(seed, |_, manager, nodes| {
            check(manager, nodes);
            n_held += manager.state().containers.len();
        });
    }
    assert!(n_held > 1000, "the runs hold something: {n_held}");
}

#[test]
fn a_release_restores_what_was_before() {
    let mut n_taken = 0;
    for seed in 0..100 {
        run(seed, |random, manager, nodes| {
            let pod = pod("new", &format!("app {}", 1 + random.below(9)));
            let before = manager.state().clone();
            let hint = random.hint(nodes.len());
            if manager.allocate(&pod, &pod.containers[0], hint).is_ok() {
                n_taken += 1;
                let after = manager.state().clone();
                assert_eq!(manager.allocate(&pod, &pod.containers[0], hint), Ok(()));
                assert_eq!(
                    *manager.state(),
                    after,
                    "taken once, however often it is asked for"
                );
                manager.release(&pod.uid, "app0");
            }
            assert_eq!(*manager.state(), before);
        });
    }
    assert!(n_taken > 300, "something was taken: {n_taken}");
}

#[test]
fn the_order_of_releases_does_not_matter() {
    for seed in 0..100 {
        run(seed, |_, manager, _| {
            let mut forward = manager.clone();
            let mut backward = manager.clone();
            let gone = |it: &PodUid| matches!(it.0.as_str(), "p0" | "p2" | "p4");
            let held = manager.state().containers.iter();
            let all: Vec<(&PodUid, &String)> = held
                .flat_map(|(pod, it)| it.keys().map(move |it| (pod, it)))
                .filter(|(pod, _)| gone(pod))
                .collect();
            for (pod, container) in &all {
                forward.release(pod, container);
            }
            for (pod, container) in all.iter().rev() {
                backward.release(pod, container);
            }
            let mut at_once = manager.clone();
            at_once.retain(|pod, _| !gone(pod));
            assert_eq!(forward.state(), backward.state());
            assert_eq!(forward.state(), at_once.state());
        });
    }
}

#[test]
fn every_hint_can_be_followed_and_every_other_mask_cannot() {
    let mut n_followed = 0;
    for seed in 0..60 {
        run(seed, |random, manager, nodes| {
            let pod = pod(
                "new",
                &format!("app {} {}", 1 + random.below(12), random.below(3)),
            );
            let container = &pod.containers[0];
            let hints = manager.hints(&pod, container).expect("an opinion");
            let listed = hints["memory"].list().expect("a list");
            for bits in 1..1 << nodes.len() {
                let mask = NumaMask::from_bits(bits);
                let hint = listed.iter().find(|it| it.numa == Some(mask));
                let mut copy = manager.clone();
                let result = copy.allocate(
                    &pod,
                    container,
                    hint.copied().unwrap_or(Hint {
                        numa: Some(mask),
                        preferred: false,
                    }),
                );
                let taken = copy.numa_nodes_of(&pod.uid, "app0");
                match hint {
                    Some(_) => {
                        n_followed += 1;
                        assert_eq!((result, taken), (Ok(()), Some(mask)));
                    }
                    None => assert_ne!(taken, Some(mask)),
                }
            }
        });
    }
    assert!(n_followed > 500, "there were hints: {n_followed}");
}

/// A state as nobody would write it: nodes of no machine, groups that overlap.
fn nonsense(random: &mut Random) -> MemoryState {
    let mut state = MemoryState::default();
    for i in 0..random.below(12) {
        let pod = PodUid(format!("n{}", random.below(6)));
        let block = MemoryBlock {
            numa: NumaMask::from_bits(random.below(1 << 5)),
            resource: random.one_of(&["memory", "hugepages-1Gi", ""]).to_string(),
            size: match random.below(8) {
                0 => u64::MAX - random.below(2),
                n => n * GI / 2,
            },
        };
        if random.below(4) == 0 {
            state.pods.entry(pod).or_default().push(block);
        } else {
            let containers = state.containers.entry(pod).or_default();
            let of_container = containers.entry(format!("c{}", i % 3)).or_default();
            of_container.push(block);
        }
    }
    state
}

#[test]
fn whatever_was_restored_no_node_gives_more_than_it_has() {
    let mut n_kept = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let nodes = [(4, 2), (3, 0), (9, 1), (6, 0)];
        let mut manager = manager(Compat::Ballast, &nodes);
        let restored = nonsense(&mut random);
        let n_held = books::held(&restored).count();
        let n_faults = manager.adopt(restored).len();
        assert_eq!(books::held(manager.state()).count(), n_held - n_faults);
        n_kept += n_held - n_faults;
        for i in 0..20 {
            let pod = random.pod(i);
            let hint = random.hint(nodes.len());
            for container in pod.all_containers() {
                let _is_admitted = manager.allocate(&pod, container, hint).is_ok();
            }
            let dropped = format!("n{}", random.below(6));
            let stays = random.below(2) == 0;
            manager.retain(|pod, _| stays || pod.0 != dropped);
            let rebuilt = books::rebuild(&manager.fresh, books::held(manager.state()));
            assert_eq!(rebuilt.as_ref(), Ok(&manager.state().nodes));
        }
    }
    assert!(n_kept > 100, "something was kept: {n_kept}");
}
