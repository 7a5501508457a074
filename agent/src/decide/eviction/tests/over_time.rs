//! What happens from pass to pass.

use super::*;

#[test]
fn t1_less_than_the_threshold_is_met_and_equal_is_not() {
    for compat in COMPATS {
        let mut story = story(compat, &[memory(100 * MI, 0)]);
        assert_eq!(story.memory(0, 104_857_600), None);
        assert_eq!(story.memory(10, 104_857_599).as_deref(), Some("a"));
    }
}

#[test]
fn t2_t3_a_soft_threshold_waits_for_its_grace_without_a_break() {
    for compat in COMPATS {
        for break_at in [None, Some(50)] {
            let mut story = story(compat, &[memory(GI, 90)]);
            let mut evicted = None;
            for at in (0..=150).step_by(10) {
                let is_break = break_at == Some(at);
                let available = if is_break { 1100 } else { 900 } * MI;
                let decision = story.pass(at, &[(Signal::MemoryAvailable, available)]);
                let is_reported = decision.conditions.contains(&NodeCondition::MemoryPressure);
                assert!(is_reported, "{at} s");
                if decision.action.is_some() {
                    evicted.get_or_insert(at);
                }
            }
            let wanted = if break_at.is_some() { 150 } else { 90 };
            assert_eq!(evicted, Some(wanted), "{compat:?}, break at {break_at:?}");
        }
    }
}

#[test]
fn t4_t5_an_eviction_is_over_when_min_reclaim_is_there_as_well() {
    for compat in COMPATS {
        for last in [1639 * MI, 1_598_029_824] {
            let mut story = story(compat, &[reclaiming(memory(GI, 0), 500 * MI)]);
            assert!(story.memory(0, 900 * MI).is_some());
            assert!(story.memory(10, 1200 * MI).is_some());
            assert_eq!(story.memory(20, last), None, "{last}");
        }
    }
}

#[test]
fn t6_min_reclaim_counts_only_after_the_grace() {
    let mut story = story(Compat::Ballast, &[reclaiming(memory(GI, 60), 500 * MI)]);
    story.memory(0, 900 * MI);
    story.memory(10, 1200 * MI);
    assert_eq!(story.state.met, []);
}

#[test]
fn t7_t20_a_condition_is_reported_for_the_transition_period() {
    let disk = threshold(Signal::NodeFsAvailable, 10 * GI, 0);
    let mut story = story(Compat::Ballast, &[memory(GI, 0), disk]);
    let all_good = [
        (Signal::MemoryAvailable, 2 * GI),
        (Signal::NodeFsAvailable, 20 * GI),
    ];
    story.memory(0, 900 * MI);
    story.pass(200, &[(Signal::NodeFsAvailable, GI)]);
    let mut reported = |at| {
        let conditions = story.pass(at, &all_good).conditions;
        conditions.into_iter().collect::<Vec<_>>()
    };
    let [memory, disk] = [NodeCondition::MemoryPressure, NodeCondition::DiskPressure];
    assert_eq!(reported(250), [memory, disk]);
    assert_eq!(reported(299), [memory, disk]);
    assert_eq!(reported(300), [disk]);
    assert_eq!(reported(500), []);
}

#[test]
fn t8_t9_an_observation_is_acted_upon_once() {
    for compat in COMPATS {
        let mut story = story(compat, &[memory(GI, 0)]);
        let old = observed(0, &[(Signal::MemoryAvailable, 900 * MI)]);
        assert!(
            first(&story.pass_with(0, old.clone())).is_some(),
            "the first pass acts"
        );
        let again = story.pass_with(10, old);
        assert_eq!(again.action, None);
        assert_eq!(reasons(&again), [BlockedReason::Stale]);
        assert_eq!(again.conditions.len(), 1, "still reported");
    }
}

#[test]
fn t10_t11_what_is_most_urgent_goes_first() {
    let soft_disk = threshold(Signal::NodeFsAvailable, 10 * GI, 1);
    let hard_disk = threshold(Signal::NodeFsAvailable, 5 * GI, 0);
    let low = [
        (Signal::MemoryAvailable, 100 * MI),
        (Signal::AllocatableMemoryAvailable, 50 * MI),
        (Signal::NodeFsAvailable, GI),
    ];
    let kubepods = threshold(Signal::AllocatableMemoryAvailable, GI, 0);
    for (compat, thresholds, wanted) in [
        // T10.
        (
            Compat::Ballast,
            [memory(GI, 1), memory(500 * MI, 0)],
            Signal::MemoryAvailable,
        ),
        // T11.
        (
            Compat::Ballast,
            [hard_disk.clone(), memory(GI, 0)],
            Signal::MemoryAvailable,
        ),
        (
            Compat::Kubelet,
            [hard_disk.clone(), memory(GI, 1)],
            Signal::MemoryAvailable,
        ),
        (
            Compat::Ballast,
            [memory(GI, 1), hard_disk],
            Signal::NodeFsAvailable,
        ),
        (
            Compat::Ballast,
            [soft_disk, memory(GI, 1)],
            Signal::MemoryAvailable,
        ),
        // The one with less left.
        (
            Compat::Ballast,
            [memory(GI, 0), kubepods],
            Signal::AllocatableMemoryAvailable,
        ),
    ] {
        let mut story = story(compat, &thresholds);
        story.pass(0, &low);
        let decision = story.pass(10, &low);
        let relief = relief(&decision).expect("something is due");
        let hardness = thresholds.iter().any(Threshold::is_hard);
        assert_eq!(relief.threshold.signal, wanted, "{compat:?} {thresholds:?}");
        if compat == Compat::Ballast {
            assert_eq!(relief.threshold.is_hard(), hardness, "hard before soft");
        }
    }
}

#[test]
fn t12_a_restart_begins_the_grace_again() {
    let mut story = story(Compat::Ballast, &[memory(GI, 90)]);
    story.memory(0, 900 * MI);
    story.state = State::default();
    let decision = story.pass(31, &[(Signal::MemoryAvailable, 900 * MI)]);
    assert_eq!(decision.conditions.len(), 1);
    assert_eq!(story.memory(120, 900 * MI), None);
    assert!(story.memory(121, 900 * MI).is_some());
}

#[test]
fn t13_a_pass_without_the_signal_begins_the_grace_again_for_kubelet_alone() {
    for (compat, first) in [(Compat::Kubelet, 120), (Compat::Ballast, 60)] {
        let mut story = story(compat, &[memory(GI, 60)]);
        story.memory(0, 900 * MI);
        let blind = story.pass(30, &[]);
        assert_eq!((blind.action, blind.conditions.len()), (None, 1));
        for at in [60, 120] {
            let is_evicted = story.memory(at, 900 * MI).is_some();
            assert_eq!(is_evicted, at >= first, "{compat:?}, {at} s");
        }
    }
}

#[test]
fn what_is_not_known_stays_met_for_as_long_as_its_condition_is_reported() {
    for (blind_at, is_met) in [(299, true), (300, false)] {
        let mut story = story(Compat::Ballast, &[reclaiming(memory(GI, 0), 500 * MI)]);
        assert!(story.memory(0, 900 * MI).is_some());
        let blind = story.pass(blind_at, &[]);
        assert_eq!(
            (blind.action, blind.conditions.len()),
            (None, usize::from(is_met))
        );
        // Not all that is to be reclaimed is there.
        let is_evicted = story.memory(310, 1200 * MI).is_some();
        assert_eq!(is_evicted, is_met, "{blind_at} s");
    }
}

/// A glance that finds it met is news then.
#[test]
fn what_stays_met_without_a_reading_was_not_seen() {
    let soft = memory(GI, 60);
    let mut story = story(Compat::Ballast, &[memory(GI, 60)]);
    story.memory(0, 900 * MI);
    assert!(story.state.has_seen(&soft));
    story.pass(30, &[]);
    assert_eq!(story.state.met.len(), 1);
    assert!(!story.state.has_seen(&soft));
}

#[test]
fn a_grace_that_passes_unseen_has_nothing_reclaimed() {
    let mut story = story(Compat::Ballast, &[reclaiming(memory(GI, 60), 500 * MI)]);
    story.memory(0, 900 * MI);
    story.pass(70, &[]);
    assert_eq!(story.memory(80, 1200 * MI), None);
}

#[test]
fn t14_t15_a_pod_goes_for_what_the_node_could_not_give_back() {
    let disk = reclaiming(threshold(Signal::NodeFsAvailable, 10 * GI, 0), GI);
    let low_memory = (Signal::MemoryAvailable, 900 * MI);
    let after = |disk, memory| observed(1, &[(Signal::NodeFsAvailable, disk), memory]);
    for compat in COMPATS {
        let mut story = story(compat, &[disk.clone(), memory(GI, 60)]);
        let decision = story.pass(0, &[(Signal::NodeFsAvailable, 9 * GI), low_memory]);
        let relief = relief(&decision).expect("disk is due");
        let both = [NodeReclaim::DeadContainers, NodeReclaim::UnusedImages];
        assert_eq!(relief.reclaim, both);
        let is_short = |disk, memory| {
            let after = after(disk, memory);
            is_still_short(&story.policy, &relief.threshold, &after)
        };
        let good_memory = (Signal::MemoryAvailable, 2 * GI);
        assert!(!is_short(12 * GI, good_memory), "T14");
        assert!(
            is_short(10 * GI + 1, good_memory),
            "min reclaim is not there"
        );
        assert_eq!(
            is_short(12 * GI, low_memory),
            compat == Compat::Kubelet,
            "T15"
        );
    }
}

#[test]
fn t16_critical_pods_stay() {
    for compat in COMPATS {
        let mut story = story(compat, &[memory(GI, 0)]);
        story.pods = vec![pod("k").memory(5 * GI, 0).critical()];
        let decision = story.pass(0, &[(Signal::MemoryAvailable, 0)]);
        assert_eq!(decision.action, None);
        assert_eq!(reasons(&decision), [BlockedReason::NoCandidate]);
    }
}

#[test]
fn t17_a_pod_that_ends_is_not_evicted_again() {
    let low = [(Signal::MemoryAvailable, 900 * MI)];
    let ending = || {
        vec![
            pod("a").memory(2 * GI, 0).ending(Duration::ZERO),
            pod("b").memory(GI, 0),
        ]
    };
    for (compat, wanted) in [(Compat::Kubelet, Some("a")), (Compat::Ballast, None)] {
        let mut story = story(compat, &[memory(GI, 0)]);
        story.pods = ending();
        let decision = story.pass(0, &low);
        assert_eq!(first(&decision).as_deref(), wanted);
        if compat == Compat::Ballast {
            assert_eq!(
                reasons(&decision),
                [BlockedReason::Ending],
                "2 GiB are enough"
            );
        }
    }
    let mut story = story(Compat::Ballast, &[reclaiming(memory(GI, 0), 3 * GI)]);
    story.pods = ending();
    assert_eq!(
        first(&story.pass(0, &low)).as_deref(),
        Some("b"),
        "2 GiB are not enough"
    );
}

#[test]
fn a_pod_that_does_not_end_in_time_is_not_waited_for() {
    let mut story = story(Compat::Ballast, &[memory(GI, 0)]);
    story.pods[0].ends_within = Some(Duration::ZERO);
    assert_eq!(story.memory(0, 900 * MI), None);
    assert_eq!(story.memory(5, 900 * MI), None);
    assert_eq!(story.memory(6, 900 * MI).as_deref(), Some("b"));
}

#[test]
fn a_pod_in_soft_termination_is_killed_at_a_hard_threshold() {
    let mut story = story(Compat::Ballast, &[memory(GI, 0)]);
    story.pods[0].ends_within = Some(secs(25));
    let decision = story.pass(0, &[(Signal::MemoryAvailable, 900 * MI)]);
    let victim = &relief(&decision).expect("due").candidates[0];
    assert_eq!(
        (victim.pod.name.as_str(), victim.grace),
        ("a", Duration::ZERO)
    );
}

#[test]
fn s9_a_signal_that_is_not_there_does_not_stop_the_others() {
    let images = threshold(Signal::ImageFsAvailable, GI, 0);
    let mut story = story(Compat::Ballast, &[images, memory(GI, 0)]);
    assert_eq!(story.memory(0, 900 * MI).as_deref(), Some("a"));
}

#[test]
fn where_nothing_can_be_done_for_one_threshold_the_next_is_looked_at() {
    let pids = threshold(Signal::PidAvailable, 1000, 0);
    let mut story = story(Compat::Ballast, &[memory(GI, 0), pids]);
    story.pods = vec![pod("q").figures(|it| it.tasks = Some(9))];
    let decision = story.pass(
        0,
        &[(Signal::MemoryAvailable, 0), (Signal::PidAvailable, 10)],
    );
    assert_eq!(first(&decision).as_deref(), Some("q"));
    let [blocked] = &decision.blocked[..] else {
        panic!("{:?}", decision.blocked);
    };
    assert_eq!(blocked.threshold.signal, Signal::MemoryAvailable);
    assert_eq!(blocked.reason, BlockedReason::Unknown);
}
