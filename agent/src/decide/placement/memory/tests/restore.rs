//! What outlives the agent.

use super::*;

#[test]
fn memory_is_used_again_after_a_restart_and_beside_other_pods() {
    let nodes = [(9, 0), (9, 0)];
    let two = pod("two", "init 6, app 2");
    for (compat, reserved) in [(Compat::Ballast, 7), (Compat::Kubelet, 9)] {
        let mut before = manager(compat, &nodes);
        let init = &two.init_containers[0];
        assert_eq!(before.allocate(&two, init, at(&[0])), Ok(()));
        take(&mut before, &pod("other", "app 1"), at(&[0]));
        let mut after = manager(compat, &nodes);
        assert_eq!(after.start(before.state().clone()), Ok(()));
        for mut manager in [before, after] {
            let app = &two.containers[0];
            assert_eq!(manager.allocate(&two, app, at(&[0])), Ok(()));
            assert_eq!(table(&manager, 0).0, reserved, "{compat:?}");
        }
    }
}

#[test]
fn memory_to_be_used_again_counts_as_enough() {
    // The node is full but for what the init container leaves.
    let nodes = [(9, 0), (9, 0)];
    let pod = pod("p", "init 9, app 9");
    for (compat, result) in [
        (Compat::Ballast, Ok(())),
        (Compat::Kubelet, Err(MemoryError::CannotExtendHint)),
    ] {
        let mut manager = manager(compat, &nodes);
        let init = &pod.init_containers[0];
        assert_eq!(manager.allocate(&pod, init, at(&[0])), Ok(()));
        if compat == Compat::Kubelet {
            // Its account is lost.
            let state = manager.state().clone();
            assert_eq!(manager.start(state), Ok(()));
        }
        assert_eq!(manager.allocate(&pod, &pod.containers[0], at(&[0])), result);
    }
}

#[test]
fn what_cgroups_say_is_what_was_given_and_pods_without_memory_of_their_own_have_none() {
    for (manages_pod_level, spec, expected) in [
        (
            true,
            "app {req cpu=1 memory=2Gi lim cpu=1 memory=2Gi}",
            true,
        ),
        (
            true,
            "app {req cpu=1 memory=1Gi lim cpu=1 memory=2Gi}",
            false,
        ),
        (
            true,
            "pod {req cpu=2 memory=4Gi lim cpu=2 memory=4Gi} app {req cpu=1 memory=2Gi lim cpu=1 memory=2Gi}",
            false,
        ),
        (
            false,
            "pod {req cpu=2 memory=4Gi lim cpu=2 memory=4Gi} app {req cpu=1 memory=2Gi lim cpu=1 memory=2Gi}",
            false,
        ),
    ] {
        let pod = testing::pod(spec);
        let app = &pod.containers[0];
        let mut settings = settings(Compat::Ballast, &[(9, 0), (9, 0)]);
        settings.manages_pod_level = manages_pod_level;
        let mut manager = MemoryManager::new(settings).expect("settings that fit");
        let found = manager.blocks_on(&pod, app, mask(&[1]));
        assert_eq!(found.is_some(), expected, "{spec}");
        if found.is_some() {
            assert_eq!(manager.allocate(&pod, app, at(&[1])), Ok(()));
            let given = manager.blocks_of(&pod.uid, &app.name);
            assert_eq!(found.as_deref(), given, "{spec}");
        }
    }
}

#[test]
fn a_machine_that_changed_takes_over_what_fits() {
    let mut before = manager(Compat::Ballast, &[(9, 0), (9, 0), (9, 0)]);
    take(&mut before, &pod("a", "app 6"), at(&[2]));
    take(&mut before, &pod("b", "app 12"), at(&[0, 1]));
    let state = before.state().clone();

    // Some MiB less, as between boots.
    let shrunk = || {
        let mut settings = settings(Compat::Ballast, &[(9, 0), (9, 0), (9, 0)]);
        for node in settings.machine.values_mut() {
            node.memory.0 -= 7 << 20;
        }
        settings
    };
    let mut after = MemoryManager::new(shrunk()).expect("settings that fit");
    assert_eq!(after.start(state.clone()), Ok(()));
    assert_eq!(after.state().containers, state.containers);
    let mut kubelet = MemoryManager::new(MemorySettings {
        compat: Compat::Kubelet,
        ..shrunk()
    })
    .expect("settings that fit");
    assert_eq!(kubelet.start(state.clone()), Err(MemoryStateError::Differs));

    // A node and memory gone.
    let mut after = manager(Compat::Ballast, &[(9, 0), (2, 0)]);
    let error = after.start(state.clone()).expect_err("a node is gone");
    assert_eq!(
        error.to_string(),
        "[memorymanager] (pod: a, container: app0) the memory assignment uses the NUMA that does not exist"
    );
    assert!(
        after.state().containers.is_empty(),
        "an error changes nothing"
    );
    let faults = after.adopt(state);
    assert_eq!(
        faults
            .iter()
            .map(|it| (it.pod.0.as_str(), it.misfit.clone()))
            .collect::<Vec<_>>(),
        [
            ("a", Misfit::UnknownNumaNode),
            (
                "b",
                Misfit::TooMuch {
                    resource: "memory".to_owned(),
                    missing: GI
                }
            )
        ]
    );
    assert_eq!(
        after.state(),
        manager(Compat::Ballast, &[(9, 0), (2, 0)]).state()
    );
}

#[test]
fn a_state_that_makes_no_sense_is_taken_over_without_its_nonsense() {
    let block = |ids: &[u32], resource: &str, size| MemoryBlock {
        numa: mask(ids),
        resource: resource.to_owned(),
        size,
    };
    let mut state = MemoryState::default();
    let mut hold = |pod: &str, blocks: Vec<MemoryBlock>| {
        let containers = BTreeMap::from([("c".to_owned(), blocks)]);
        state.containers.insert(PodUid(pod.to_owned()), containers);
    };
    hold("a", vec![block(&[0], "memory", u64::MAX)]);
    hold("b", vec![block(&[], "memory", GI)]);
    hold("c", vec![block(&[0], "gold", GI)]);
    hold("d", vec![block(&[0], "memory", GI)]);
    hold("e", vec![block(&[0, 1], "memory", 10 * GI)]);
    state
        .pods
        .insert(PodUid("gone".to_owned()), vec![block(&[0], "memory", GI)]);
    let mut manager = manager(Compat::Ballast, &[(9, 0), (9, 0)]);
    let faults = manager.adopt(state);
    let dropped: Vec<&str> = faults.iter().map(|it| it.pod.0.as_str()).collect();
    assert_eq!(dropped, ["a", "b", "c"]);
    // Kubelet lets a single node be cut out of a group; the memory is there, and is kept.
    assert_eq!(table(&manager, 0), (9, 0, 2, vec![0, 1]));
    assert_eq!(table(&manager, 1), (2, 7, 1, vec![0, 1]));
    assert!(manager.state().pods.is_empty());
    manager.retain(|_, _| false);
    assert_eq!(table(&manager, 0), (0, 9, 0, vec![0]));
}
