use std::time::Duration;

use super::*;
use crate::cli::top::fixture::{crowd, sample, stats_of};
use crate::model::event::CgroupId;
use crate::model::eviction::Signal;
use crate::model::psi::StallShare;
use crate::model::stats::CgroupStats;
use crate::model::stats::tests::cgroup;
use crate::model::status::ThresholdStatus;
use crate::model::status::tests::example_status;

fn board(before: &Sample, now: &Sample) -> Board {
    Board::new(now, Some(stats_of(before)))
}

fn pod<'a>(board: &'a Board, name: &str) -> &'a PodRow {
    let found = board.pods.iter().find(|it| it.entry.name == name);
    found.expect("the fixture has it")
}

#[test]
fn rates_are_of_the_time_between_two_readings() {
    let board = board(&sample(60), &sample(62));
    let hungry = pod(&board, "hungry-7d9c6b5f4-x2x9z");
    // 1200 ms of CPU and 120 ms of stall a second, one of ten periods throttled.
    assert_eq!(hungry.activity.cpu, Some(1200));
    let stall = hungry.activity.stalls.memory;
    assert_eq!(stall.map(|it| it.some), Some(StallShare(1200)));
    assert_eq!(stall.and_then(|it| it.full), Some(StallShare(240)));
    assert_eq!(hungry.activity.throttled, Some(StallShare(1000)));
    assert_eq!(hungry.activity.stalls.io, None, "not kept there");
}

#[test]
fn there_is_no_rate_of_two_cgroups_and_none_of_a_counter_that_went_back() {
    let earlier = cgroup(Duration::from_secs(60), 5000, 10, None);
    let later = cgroup(Duration::from_secs(62), 7000, 10, None);
    let cpu = |now: &CgroupStats, before: &CgroupStats| Activity::between(now, Some(before)).cpu;
    assert_eq!(cpu(&later, &earlier), Some(1000));
    assert_eq!(cpu(&earlier, &earlier), None, "no time between them");
    assert_eq!(cpu(&earlier, &later), None, "time went back");
    let fewer = cgroup(Duration::from_secs(62), 4000, 10, None);
    assert_eq!(cpu(&fewer, &earlier), None);
    let another = CgroupStats {
        cgroup_id: Some(CgroupId(7)),
        ..later
    };
    assert_eq!(cpu(&another, &earlier), None);
    let alone = Activity::between(&another, None);
    assert_eq!((alone.cpu, alone.memory), (None, Some(9 << 20)));
}

#[test]
fn the_nearest_limit_counts_whoever_has_it() {
    let before = sample(60);
    let mut now = sample(62);
    let stats = now.stats.as_mut().expect("the fixture has statistics");
    let hungry = &mut stats.pods[0];
    hungry.containers[0].stats.spec.memory_limit = Some(1400 << 20);
    let Some(own) = &mut hungry.stats else {
        panic!("the fixture has a cgroup");
    };
    own.spec.memory_limit = Some(4 << 30);
    // A container that waits to be started has no room to speak of.
    let board_of = |now: &Sample| board(&before, now);
    let room = pod(&board_of(&now), "hungry-7d9c6b5f4-x2x9z").room.clone();
    assert_eq!(room.and_then(|it| it.container), None);
    let running = example_status().pods[0].containers[1].state.clone();
    now.status.pods[1].containers[0].state = running;
    let room = pod(&board_of(&now), "hungry-7d9c6b5f4-x2x9z").room.clone();
    let room = room.expect("both have a limit");
    assert_eq!(room.container.as_deref(), Some("main"));
    assert_eq!((room.percent(), room.left()), (96, (1400 - 1350) << 20));
}

#[test]
fn what_has_no_name_is_found_by_its_ids() {
    let mut now = sample(62);
    let running = example_status().pods[0].containers[1].state.clone();
    let hungry = &mut now.status.pods[1];
    (hungry.namespace, hungry.name) = (String::new(), String::new());
    hungry.containers[0].name = "0123456789abcdef".into();
    hungry.containers[0].state = running;
    let stats = now.stats.as_mut().expect("the fixture has statistics");
    let container = &mut stats.pods[0].containers[0];
    (container.name, container.runtime_id) = (String::new(), "0123456789abcdef".into());
    let board = board(&sample(60), &now);
    let hungry = pod(&board, "");
    assert_eq!(hungry.full_name(), "0c4e");
    assert!(hungry.containers[0].instance.is_some());
    let room = hungry.containers[0].room.as_ref();
    let of = room.and_then(|it| it.container.as_deref());
    assert_eq!(of, Some("0123456789ab"));
}

#[test]
fn a_class_without_a_cgroup_is_the_sum_of_its_pods() {
    let board = board(&crowd(9, 60), &crowd(9, 62));
    let of_pods = |class: QosClass| -> Option<u64> {
        let pods = board.pods.iter().filter(|it| it.entry.qos == class);
        pods.filter_map(|it| it.activity.cpu).reduce(|a, b| a + b)
    };
    let [guaranteed, burstable, _] = &board.classes;
    assert!(guaranteed.is_sum && !burstable.is_sum);
    assert_eq!(guaranteed.activity.cpu, of_pods(QosClass::Guaranteed));
    assert_eq!(burstable.activity.cpu, Some(1210), "of its own cgroup");
    assert_eq!(guaranteed.n_pods, 3);
}

#[test]
fn every_order_has_the_most_interesting_first_and_the_unknown_last() {
    let mut now = crowd(20, 62);
    let stats = now.stats.as_mut().expect("the fixture has statistics");
    stats.pods.retain(|it| it.pod.uid.0 != "uid-0");
    let board = board(&crowd(20, 60), &now);
    for key in SortKey::ALL {
        let mut pods: Vec<&PodRow> = board.pods.iter().collect();
        pods.sort_by(|a, b| key.compare(a, b));
        let known: Vec<Option<u64>> = pods
            .iter()
            .map(|it| match key {
                SortKey::Cpu => it.activity.cpu,
                SortKey::Memory => it.activity.memory,
                SortKey::Stall => it.activity.stalls.memory.map(|it| it.some.0.into()),
                SortKey::Throttling => it.activity.throttled.map(|it| it.0.into()),
                SortKey::Limit => it.room.as_ref().map(Room::percent),
                SortKey::Eviction => match &it.eviction {
                    Some(EvictionStanding::InOrder { place, of, .. }) => {
                        u64::try_from(of - place).ok()
                    }
                    _ => None,
                },
                SortKey::Name => None,
            })
            .collect();
        assert!(known.is_sorted_by(|a, b| a >= b), "{key:?}: {known:?}");
        if key == SortKey::Name {
            assert!(pods.is_sorted_by_key(|it| it.full_name()));
        }
    }
}

#[test]
fn headroom_is_the_way_to_the_threshold_that_is_met_first() {
    let threshold = |is_hard, amount, is_met| ThresholdStatus {
        is_hard,
        amount,
        grace_seconds: 0,
        is_met,
    };
    let signal = |available, thresholds| SignalStatus {
        signal: Signal::MemoryAvailable,
        available,
        capacity: Some(1100),
        age_ms: None,
        thresholds,
    };
    let of = |it: &SignalStatus| {
        Headroom::of(it).map(|it| (it.permille, it.threshold, it.is_hard, it.is_met))
    };
    let hard = || threshold(true, Some(100), false);
    assert_eq!(
        of(&signal(Some(600), vec![hard()])),
        Some((500, 100, true, false))
    );
    assert_eq!(
        of(&signal(Some(i64::MAX), vec![hard()])).map(|it| it.0),
        Some(1000)
    );
    assert_eq!(of(&signal(Some(50), vec![hard()])).map(|it| it.0), Some(0));
    assert_eq!(of(&signal(None, vec![hard()])), None);
    assert_eq!(
        of(&signal(Some(600), vec![threshold(true, None, false)])),
        None
    );
    let soft = threshold(false, Some(300), true);
    let both = signal(Some(200), vec![hard(), soft]);
    assert_eq!(of(&both), Some((0, 300, false, true)));
}
