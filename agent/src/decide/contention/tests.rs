#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;
use crate::model::cgroup::{Controller, FileKind, InterfaceFile};

const PASS: u64 = 10;

fn path(name: &str) -> CgroupPath {
    CgroupPath::root().join(name).unwrap()
}

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

fn write(cgroup: &str, found: Option<u64>, wanted: u64) -> CgroupStep {
    CgroupStep::Write {
        path: path(cgroup),
        file: InterfaceFile {
            controller: Controller::Cpu,
            name: "cpu.weight".to_owned(),
            kind: FileKind::Number,
        },
        from: found.map(FileValue::Number),
        to: FileValue::Number(wanted),
    }
}

fn contention() -> Contention {
    Contention::new(at(PASS))
}

/// One pass that finds `found` where `wanted` should be; whether it writes, or how it holds back.
fn pass(state: &mut Contention, second: u64, found: u64, wanted: u64) -> Option<Hold> {
    let mut steps = vec![write("a", Some(found), wanted)];
    let held = state.hold_back(&mut steps, at(second));
    for step in &steps {
        state.wrote(step, at(second));
    }
    assert_eq!(steps.len() + held.len(), 1);
    held.first().map(|it| it.hold)
}

#[test]
fn a_few_changes_are_put_right_at_once() {
    let mut state = contention();
    for second in [0, 10, 20] {
        assert_eq!(pass(&mut state, second, 777, 10), None, "{second} s");
    }
    assert_eq!(pass(&mut state, 30, 777, 10), Some(Hold::Begun));
}

#[test]
fn a_persistent_writer_is_given_way_ever_longer() {
    let mut state = contention();
    let mut writes = Vec::new();
    let mut begun = 0;
    for second in (0..7200).step_by(10) {
        match pass(&mut state, second, 777, 10) {
            None => writes.push(second),
            Some(Hold::Begun) => begun += 1,
            Some(Hold::Renewed | Hold::Going) => {}
        }
    }
    let gaps: Vec<u64> = writes.windows(2).map(|it| it[1] - it[0]).collect();
    // Overwritten at the next pass, and then the wait: 10, 20, ... up to 300 s.
    assert_eq!(gaps[..9], [10, 10, 20, 30, 50, 90, 170, 310, 310]);
    assert!(writes.len() < 32, "{} writes in two hours", writes.len());
    assert_eq!(begun, 1);
}

#[test]
fn changes_far_apart_are_no_dispute() {
    let mut state = contention();
    for second in (0..10_000).step_by(70) {
        assert_eq!(pass(&mut state, second, 777, 10), None, "{second} s");
    }
}

#[test]
fn another_decision_is_written_at_once() {
    let mut state = contention();
    for second in [0, 10, 20, 30] {
        pass(&mut state, second, 777, 10);
    }
    assert_eq!(pass(&mut state, 31, 777, 10), Some(Hold::Going));
    assert_eq!(pass(&mut state, 32, 777, 20), None);
    // And has a clean record.
    assert_eq!(pass(&mut state, 40, 777, 20), None);
}

#[test]
fn a_write_that_stays_ends_the_dispute() {
    let known = path("a");
    let known = BTreeSet::from([&known]);
    let mut state = contention();
    for second in [0, 10, 20, 30] {
        pass(&mut state, second, 777, 10);
    }
    assert_eq!(pass(&mut state, 40, 777, 10), None, "the wait is over");
    state.settle(&known, at(100));
    assert_eq!(state.disputes.len(), 1, "not yet proven");
    // Overwritten within the minute: it goes on where it was.
    assert_eq!(pass(&mut state, 100, 777, 10), Some(Hold::Renewed));
    assert_eq!(pass(&mut state, 120, 777, 10), None);
    state.settle(&known, at(181));
    assert_eq!(state.disputes.len(), 0);
    assert_eq!(pass(&mut state, 190, 777, 10), None);
}

#[test]
fn a_write_that_fails_is_no_dispute() {
    let mut state = contention();
    for second in (0..100).step_by(10) {
        let mut steps = vec![write("a", Some(777), 10)];
        assert_eq!(state.hold_back(&mut steps, at(second)), []);
        assert_eq!(steps.len(), 1);
    }
}

#[test]
fn files_of_new_and_removed_cgroups_are_not_remembered() {
    let mut state = contention();
    state.wrote(&write("a", None, 10), at(0));
    assert_eq!(state.disputes.len(), 0);
    state.wrote(&write("a", Some(777), 10), at(0));
    state.settle(&BTreeSet::new(), at(1));
    assert_eq!(state.disputes.len(), 0);
}

#[test]
fn what_is_held_says_what_stands_against_what() {
    let mut state = contention();
    for second in [0, 10, 20] {
        pass(&mut state, second, 777, 10);
    }
    let mut steps = vec![
        write("a", Some(778), 10),
        write("b", Some(778), 10),
        CgroupStep::Create { path: path("a") },
    ];
    let held = state.hold_back(&mut steps, at(30));
    assert_eq!(
        held,
        [Held {
            path: path("a"),
            file: "cpu.weight".to_owned(),
            wanted: FileValue::Number(10),
            found: FileValue::Number(778),
            until: at(40),
            hold: Hold::Begun,
        }]
    );
    assert_eq!(steps.len(), 2);
}
