use super::*;
use crate::decide::testing::oom_kill;
use crate::model::saved_counts::CountedUntil;

const CONTAINER: CgroupId = CgroupId(7);
const POD: CgroupId = CgroupId(6);
/// One whose kills are in no count but its own.
const ALONE: CountOf = CountOf::Cgroup { pod: None };
const IN_POD: CountOf = CountOf::Cgroup { pod: Some(POD) };

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn counted(kills: u64) -> OomCount {
    OomCount {
        kills,
        group_kills: Some(0),
    }
}

/// A kill in a cgroup of a pod, or in one that a container made below itself.
fn kill(ms: u64, cgroup: CgroupId) -> OomKill {
    let mut kill = oom_kill(ms, cgroup);
    kill.victim_cgroup.below_root = [Some(CgroupId(5)), Some(POD), Some(CONTAINER)];
    kill
}

/// On v1, with an account of a new container.
fn accounts() -> KillAccounts {
    let mut accounts = KillAccounts::new(false);
    accounts.begin(CONTAINER, ALONE);
    accounts
}

/// As the listener does.
fn report(accounts: &mut KillAccounts, kill: &OomKill) {
    if let Some(cgroups) = accounts.counted_in(kill) {
        accounts.report(&cgroups, Duration::from_nanos(kill.at_ns));
    }
}

/// How many are missed, when all until `ms` was heard.
fn settle(accounts: &mut KillAccounts, ms: u64) -> Vec<(CgroupId, u64)> {
    let due = accounts.due(at(ms));
    let missed = accounts.settle(at(ms), &due).into_iter();
    missed.map(|it| (it.cgroup, it.n)).collect()
}

#[test]
fn what_is_counted_and_never_reported_is_missed_once_after_the_grace() {
    let mut accounts = accounts();
    assert!(accounts.count(CONTAINER, counted(3), at(100)));
    assert!(!accounts.count(CONTAINER, counted(3), at(150)));
    assert_eq!(settle(&mut accounts, 2099), []);
    assert!(accounts.is_open());
    let missed = accounts.settle(at(2100), &Due::default());
    let expected = Missed {
        cgroup: CONTAINER,
        n: 3,
        cause: Cause::Lost,
        at: at(100),
    };
    assert_eq!(missed, [expected]);
    accounts.count(CONTAINER, counted(3), at(3000));
    assert_eq!(settle(&mut accounts, 9000), []);
    accounts.count(CONTAINER, counted(4), at(9000));
    assert_eq!(settle(&mut accounts, 11_000), [(CONTAINER, 1)]);
}

#[test]
fn a_report_may_come_before_the_count_or_after_it() {
    let mut accounts = accounts();
    report(&mut accounts, &kill(50, CONTAINER));
    accounts.count(CONTAINER, counted(1), at(100));
    assert!(!accounts.is_open());
    accounts.count(CONTAINER, counted(2), at(200));
    report(&mut accounts, &kill(190, CONTAINER));
    assert_eq!(settle(&mut accounts, 5000), []);
    assert!(!accounts.is_open());
}

#[test]
fn nothing_is_missed_while_nobody_listens() {
    let mut accounts = accounts();
    accounts.count(CONTAINER, counted(1), at(100));
    // Whatever the time is: the reports of the last two seconds wait in the ring.
    assert_eq!(settle(&mut accounts, 90), []);
    report(&mut accounts, &kill(99, CONTAINER));
    assert_eq!(settle(&mut accounts, 60_000), []);
}

#[test]
fn what_was_reported_of_more_is_not_missed() {
    let mut accounts = accounts();
    accounts.count(CONTAINER, counted(5), at(100));
    for _ in 0..3 {
        report(&mut accounts, &kill(99, CONTAINER));
    }
    accounts.count(CONTAINER, counted(9), at(2000));
    // The later ones have a grace of their own.
    assert_eq!(settle(&mut accounts, 2100), [(CONTAINER, 2)]);
    assert_eq!(settle(&mut accounts, 4000), []);
    assert_eq!(settle(&mut accounts, 4100), [(CONTAINER, 4)]);
}

#[test]
fn a_cgroup_that_is_made_again_begins_anew() {
    let mut accounts = accounts();
    accounts.count(CONTAINER, counted(2), at(100));
    accounts.end(CONTAINER);
    let next = CgroupId(8);
    accounts.begin(next, ALONE);
    accounts.count(next, counted(1), at(200));
    assert_eq!(
        settle(&mut accounts, 2150),
        [(CONTAINER, 2)],
        "it is removed"
    );
    assert_eq!(settle(&mut accounts, 2200), [(next, 1)]);
    accounts.end(next);
    assert!(accounts.is_empty());
}

#[test]
fn a_victim_that_was_exiting_is_neither_counted_nor_reported() {
    let mut accounts = accounts();
    let exiting = OomKill {
        was_exiting: true,
        ..kill(50, CONTAINER)
    };
    report(&mut accounts, &exiting);
    accounts.count(CONTAINER, counted(1), at(100));
    assert_eq!(settle(&mut accounts, 2100), [(CONTAINER, 1)]);
}

fn below(root: &str) -> Vec<CgroupPath> {
    vec![root.parse().expect("a path")]
}

/// Those of the next agent, which finds what one before it knew.
fn resumed(is_unified: bool, known: u64) -> KillAccounts {
    let mut accounts = KillAccounts::new(is_unified);
    let earlier = Earlier {
        known: [(CONTAINER, known)].into(),
        roots: below("/a"),
        has_pods: is_unified,
        ..Earlier::default()
    };
    accounts.resume(earlier, at(500));
    accounts
}

/// Four kills are counted, of which three are known.
fn with_one_open() -> KillAccounts {
    let mut accounts = resumed(false, 3);
    accounts.adopt(CONTAINER, ALONE, counted(4), at(1000));
    accounts.all_are_found();
    accounts
}

/// The agent after one that ends at `ms`.
fn next_of(accounts: &KillAccounts, ms: u64) -> KillAccounts {
    let earlier = Earlier {
        known: accounts.known().expect("all are found"),
        open: accounts.open(),
        roots: accounts.roots().to_vec(),
        has_pods: accounts.has_pods(),
    };
    let mut next = KillAccounts::new(accounts.is_unified());
    next.resume(earlier, at(ms));
    next
}

#[test]
fn what_was_counted_before_any_agent_is_known() {
    let mut accounts = KillAccounts::new(false);
    assert_eq!(accounts.known(), None);
    accounts.adopt(CONTAINER, ALONE, counted(5), at(1000));
    // Counted already when the cgroup was looked at.
    report(&mut accounts, &kill(900, CONTAINER));
    accounts.count(CONTAINER, counted(5), at(2000));
    assert_eq!(settle(&mut accounts, 9000), []);
    accounts.count(CONTAINER, counted(6), at(9000));
    assert_eq!(settle(&mut accounts, 11_000), [(CONTAINER, 1)]);
    accounts.all_are_found();
    assert_eq!(
        accounts.known(),
        Some(KillsByCgroup::from([(CONTAINER, 6)]))
    );
}

#[test]
fn a_cgroup_that_is_found_later_was_made_since() {
    let mut accounts = KillAccounts::new(false);
    accounts.all_are_found();
    // Reported before it was found.
    report(&mut accounts, &kill(900, CONTAINER));
    accounts.adopt(CONTAINER, ALONE, counted(3), at(1000));
    assert_eq!(settle(&mut accounts, 3000), [(CONTAINER, 2)]);
}

#[test]
fn what_is_known_goes_on_with_the_next_agent() {
    let mut first = KillAccounts::new(false);
    first.all_are_found();
    first.begin(CONTAINER, ALONE);
    report(&mut first, &kill(100, CONTAINER));
    report(&mut first, &kill(110, CONTAINER));
    first.count(CONTAINER, counted(3), at(200));
    assert_eq!(settle(&mut first, 3000), [(CONTAINER, 1)]);
    let known = first.known().expect("all are found");
    assert_eq!(known, KillsByCgroup::from([(CONTAINER, 3)]));
    let mut next = next_of(&first, 3500);
    assert_eq!(next.known(), Some(known), "before any cgroup is found");
    next.adopt(CONTAINER, ALONE, counted(3), at(4000));
    next.all_are_found();
    assert_eq!(settle(&mut next, 9000), []);
    next.end(CONTAINER);
    assert_eq!(next.known(), Some(KillsByCgroup::new()));
}

#[test]
fn of_a_tree_that_nobody_has_looked_at_only_what_comes_is_missed() {
    const OTHER: CgroupId = CgroupId(70);
    let mut accounts = resumed(false, 3);
    accounts.look_below(&below("/b"));
    accounts.adopt(OTHER, ALONE, counted(20), at(1000));
    accounts.all_are_found();
    assert_eq!(settle(&mut accounts, 9000), []);
    accounts.count(OTHER, counted(21), at(9000));
    assert_eq!(settle(&mut accounts, 20_000), [(OTHER, 1)]);
    // That of before is looked at again, by this agent or by the next.
    let next = next_of(&accounts, 20_000);
    for mut accounts in [accounts, next] {
        accounts.look_below(&below("/a"));
        accounts.adopt(CONTAINER, ALONE, counted(4), at(20_000));
        accounts.all_are_found();
        assert_eq!(settle(&mut accounts, 30_000), [(CONTAINER, 1)]);
    }
}

#[test]
fn what_lies_where_it_was_looked_at_before_was_made_since() {
    const OTHER: CgroupId = CgroupId(70);
    let of_both = [below("/b"), below("/a")].concat();
    for (before, now) in [
        (below("/a"), below("/a")),
        (below("/a"), of_both),
        // What the agent of before did not say.
        (Vec::new(), below("/a")),
    ] {
        let mut accounts = KillAccounts::new(false);
        let earlier = Earlier {
            known: [(CONTAINER, 3)].into(),
            roots: before.clone(),
            ..Earlier::default()
        };
        accounts.resume(earlier, at(500));
        accounts.look_below(&now);
        accounts.adopt(OTHER, ALONE, counted(2), at(1000));
        accounts.all_are_found();
        let missed = settle(&mut accounts, 9000);
        assert_eq!(missed, [(OTHER, 2)], "{before:?}, {now:?}");
    }
}

#[test]
fn a_cgroup_that_was_lost_and_is_found_is_known() {
    let mut accounts = resumed(false, 3);
    accounts.adopt(CONTAINER, ALONE, counted(3), at(1000));
    accounts.all_are_found();
    accounts.count(CONTAINER, counted(5), at(2000));
    accounts.lose(CONTAINER);
    assert_eq!(settle(&mut accounts, 9000), [(CONTAINER, 2)]);
    accounts.adopt(CONTAINER, ALONE, counted(6), at(10_000));
    assert_eq!(settle(&mut accounts, 20_000), [(CONTAINER, 1)]);
    // The same before what was counted is settled.
    accounts.count(CONTAINER, counted(7), at(20_000));
    accounts.lose(CONTAINER);
    accounts.adopt(CONTAINER, ALONE, counted(7), at(20_001));
    assert_eq!(settle(&mut accounts, 30_000), [(CONTAINER, 1)]);
    accounts.count(CONTAINER, counted(8), at(30_000));
    assert_eq!(settle(&mut accounts, 40_000), [(CONTAINER, 1)]);
    // One whose end was told is over.
    accounts.lose(CONTAINER);
    accounts.end(CONTAINER);
    assert_eq!(accounts.known(), Some(KillsByCgroup::new()));
}

#[test]
fn a_count_from_before_is_the_same_at_each_reading() {
    // Before Linux 5.17 nobody knows how many cgroups went as a whole: one of three processes did.
    let counted = OomCount {
        kills: 4,
        group_kills: None,
    };
    for known in 2..=4 {
        let mut accounts = resumed(true, known);
        accounts.adopt(CONTAINER, ALONE, counted, at(1000));
        accounts.count(CONTAINER, counted, at(2000));
        assert_eq!(settle(&mut accounts, 9000), [], "{known}");
    }
}

#[test]
fn what_nobody_told_before_is_missed() {
    for (is_silent, cause) in [(false, Cause::Lost), (true, Cause::NoPrograms)] {
        let mut accounts = resumed(false, 3);
        accounts.adopt(CONTAINER, ALONE, counted(5), at(1000));
        // Its end is seen before it is known whether there are programs.
        accounts.end(CONTAINER);
        if is_silent {
            accounts.without_programs();
        }
        let missed = accounts.settle(at(3000), &Due::default());
        assert_eq!(missed.len(), 1);
        assert_eq!((missed[0].n, missed[0].cause), (2, cause));
        assert_eq!(settle(&mut accounts, 9000), []);
        assert!(accounts.is_empty());
    }
}

/// Before Linux 5.17, of a container that went as a whole while no agent ran, or with an agent before, and is gone by now.
#[test]
fn what_was_read_before_it_was_known_that_nobody_reports_counts_nobody_twice() {
    let counted = |group_kills| OomCount {
        kills: 2,
        group_kills,
    };
    let mut first = resumed(true, 0);
    first.adopt(CONTAINER, ALONE, counted(None), at(1000));
    first.all_are_found();
    let gone = next_of(&first, 1050);
    let mut removed = next_of(&first, 1050);
    removed.end(CONTAINER);
    for mut accounts in [first, gone, removed] {
        accounts.without_programs();
        assert_eq!(settle(&mut accounts, 1100), [(CONTAINER, 1)]);
        accounts.count(CONTAINER, counted(Some(1)), at(2000));
        assert_eq!(settle(&mut accounts, 9000), []);
    }
}

/// Before Linux 5.17. A count is read, by this agent or by the one before, while its report still waits in the ring.
#[test]
fn a_report_tells_that_a_process_was_counted_twice_before_it_came() {
    let counted = OomCount {
        kills: 2,
        group_kills: None,
    };
    let mut first = resumed(true, 0);
    assert!(first.adopt(CONTAINER, ALONE, counted, at(1000)));
    first.all_are_found();
    let gone = next_of(&first, 1100);
    let mut found = next_of(&first, 1100);
    assert!(found.adopt(CONTAINER, ALONE, counted, at(1200)));
    for mut accounts in [first, gone, found] {
        report(&mut accounts, &kill(950, CONTAINER));
        assert!(!accounts.is_open());
        assert_eq!(settle(&mut accounts, 9000), []);
    }
    let mut lost = resumed(true, 0);
    lost.adopt(CONTAINER, ALONE, counted, at(1000));
    assert_eq!(settle(&mut lost, 9000), [(CONTAINER, 2)]);
}

#[test]
fn a_cgroup_that_is_lost_before_its_report_comes_is_known_by_it() {
    let counted = OomCount {
        kills: 2,
        group_kills: None,
    };
    let mut first = resumed(true, 0);
    first.adopt(CONTAINER, ALONE, counted, at(1000));
    first.all_are_found();
    let mut next = next_of(&first, 1100);
    next.all_are_found();
    first.lose(CONTAINER);
    for mut accounts in [first, next] {
        report(&mut accounts, &kill(950, CONTAINER));
        assert_eq!(settle(&mut accounts, 9000), []);
        let known = accounts.known().expect("all are found");
        assert_eq!(known.get(&CONTAINER), Some(&1));
    }
}

#[test]
fn what_an_agent_took_along_when_it_died_is_missed() {
    let mut accounts = resumed(false, 3);
    // Three were told, one waits in the ring, and one was taken out of it by who died before it was told.
    accounts.adopt(CONTAINER, ALONE, counted(5), at(1000));
    report(&mut accounts, &kill(950, CONTAINER));
    assert_eq!(settle(&mut accounts, 2900), []);
    assert_eq!(settle(&mut accounts, 3000), [(CONTAINER, 1)]);
    accounts.count(CONTAINER, counted(5), at(4000));
    assert_eq!(settle(&mut accounts, 9000), []);
}

#[test]
fn what_no_agent_lives_long_enough_to_compare_is_missed_once() {
    for is_gone in [false, true] {
        let mut first = resumed(false, 3);
        first.adopt(CONTAINER, ALONE, counted(5), at(1000));
        first.all_are_found();
        if is_gone {
            first.end(CONTAINER);
        }
        assert_eq!(settle(&mut first, 2900), []);
        // Nor does the second find the cgroup.
        let mut second = next_of(&first, 3000);
        second.all_are_found();
        assert_eq!(settle(&mut second, 4900), []);
        let mut third = next_of(&second, 5000);
        third.all_are_found();
        // One waited in the ring.
        report(&mut third, &kill(950, CONTAINER));
        assert_eq!(settle(&mut third, 6999), []);
        assert_eq!(settle(&mut third, 7000), [(CONTAINER, 1)], "{is_gone}");
        assert!(third.is_empty());
        let mut last = next_of(&third, 8000);
        assert_eq!(last.open(), OpenByCgroup::new());
        assert_eq!(settle(&mut last, 20_000), []);
    }
}

#[test]
fn a_cgroup_with_open_kills_that_is_found_again_goes_on() {
    let first = with_one_open();
    let mut next = next_of(&first, 2000);
    // Killed while no agent ran.
    assert!(next.adopt(CONTAINER, ALONE, counted(6), at(2100)));
    next.all_are_found();
    // The first that was compared is that of before.
    assert_eq!(settle(&mut next, 4000), [(CONTAINER, 1)]);
    assert_eq!(settle(&mut next, 6000), [(CONTAINER, 2)]);
    assert_eq!(next.len(), 1, "it is there");
    assert_eq!(next.known(), Some(KillsByCgroup::from([(CONTAINER, 6)])));
}

#[test]
fn a_cgroup_with_open_kills_that_is_found_late_is_known() {
    let first = with_one_open();
    let mut next = next_of(&first, 2000);
    assert_eq!(settle(&mut next, 4000), [(CONTAINER, 1)]);
    next.adopt(CONTAINER, ALONE, counted(5), at(5000));
    next.all_are_found();
    assert_eq!(settle(&mut next, 9000), [(CONTAINER, 1)]);
    assert_eq!(next.known(), Some(KillsByCgroup::from([(CONTAINER, 5)])));
}

#[test]
fn what_is_known_by_the_end_is_not_open_with_the_next() {
    let mut first = with_one_open();
    report(&mut first, &kill(950, CONTAINER));
    assert!(!first.is_open());
    let mut next = next_of(&first, 2000);
    next.adopt(CONTAINER, ALONE, counted(4), at(2100));
    assert_eq!(settle(&mut next, 9000), []);
}

#[test]
fn reports_of_cgroups_that_nobody_registers_are_forgotten_the_oldest_first() {
    let mut accounts = KillAccounts::new(false);
    accounts.all_are_found();
    let n = u64::try_from(MAX_EARLY).expect("a small number");
    for id in 0..=n {
        report(&mut accounts, &oom_kill(100, CgroupId(1000 + id)));
    }
    let known = accounts.known().expect("all are found");
    assert_eq!(known.len(), MAX_EARLY);
    assert!(!known.contains_key(&CgroupId(1000)));
}

#[test]
fn a_kill_is_in_the_account_of_its_victim_alone() {
    // v1: the pod's limit killed in the container, and a process in the pod's own cgroup.
    let mut accounts = accounts();
    accounts.begin(POD, ALONE);
    report(&mut accounts, &kill(50, CONTAINER));
    accounts.count(CONTAINER, counted(1), at(100));
    accounts.count(POD, counted(1), at(100));
    assert_eq!(settle(&mut accounts, 2100), [(POD, 1)]);
}

#[test]
fn on_v2_a_container_counts_what_it_has_below_itself() {
    for (is_unified, expected) in [(true, vec![]), (false, vec![(CONTAINER, 1)])] {
        let mut accounts = KillAccounts::new(is_unified);
        accounts.begin(CONTAINER, ALONE);
        report(&mut accounts, &kill(50, CgroupId(99)));
        accounts.count(CONTAINER, counted(1), at(100));
        assert_eq!(
            settle(&mut accounts, 2100),
            expected,
            "unified: {is_unified}"
        );
    }
}

#[test]
fn the_first_victim_of_a_whole_cgroup_is_counted_twice_by_the_kernel() {
    for (kills, group_kills, n_reported, expected) in [
        (4, Some(1), 3, 0),
        (4, Some(1), 2, 1),
        (4, Some(1), 0, 3),
        // Not told: twice as much as is reported is no sign of a loss.
        (4, None, 3, 0),
        (2, None, 1, 0),
        (5, None, 1, 3),
        (4, Some(0), 2, 2),
        // It had exited before it was counted again.
        (1, Some(1), 0, 1),
        (2, Some(2), 0, 2),
        (3, Some(2), 0, 2),
        (4, None, 0, 4),
    ] {
        let counted = OomCount { kills, group_kills };
        for is_counted_first in [false, true] {
            let mut accounts = accounts();
            if is_counted_first {
                accounts.count(CONTAINER, counted, at(50));
            }
            for _ in 0..n_reported {
                report(&mut accounts, &kill(50, CONTAINER));
            }
            accounts.count(CONTAINER, counted, at(100));
            let n: u64 = settle(&mut accounts, 2100).iter().map(|(_, n)| n).sum();
            let context = format!("{counted:?}, {n_reported} reported, {is_counted_first}");
            assert_eq!(n, expected, "{context}");
            assert_eq!(settle(&mut accounts, 9000), [], "{context}");
        }
    }
}

#[test]
fn what_could_not_be_read_when_it_was_found_begins_with_what_is_counted() {
    let mut accounts = KillAccounts::new(false);
    let earlier = Earlier {
        known: [(POD, 1)].into(),
        ..Earlier::default()
    };
    accounts.resume(earlier, at(0));
    accounts.all_are_found();
    assert!(!accounts.adopt_late(CONTAINER, ALONE, counted(3), at(100)));
    assert_eq!(settle(&mut accounts, 9000), []);
    assert!(accounts.count(CONTAINER, counted(4), at(9100)));
    assert_eq!(settle(&mut accounts, 20_000), [(CONTAINER, 1)]);
    // Of this one it is known how much was.
    assert!(accounts.adopt_late(POD, ALONE, counted(3), at(20_100)));
    assert_eq!(settle(&mut accounts, 30_000), [(POD, 2)]);
}

#[test]
fn a_kill_before_anybody_watched_was_not_lost() {
    let cause = |watched: bool| {
        let mut accounts = KillAccounts::new(false);
        accounts.resume(Earlier::default(), at(0));
        if !watched {
            accounts.nobody_watched();
        }
        accounts.adopt(CONTAINER, ALONE, counted(1), at(100));
        accounts.all_are_found();
        let causes = |missed: Vec<Missed>| missed.into_iter().map(|it| it.cause).collect();
        let first: Vec<Cause> = causes(accounts.settle(at(9000), &Due::default()));
        accounts.count(CONTAINER, counted(2), at(9100));
        let later: Vec<Cause> = causes(accounts.settle(at(20_000), &Due::default()));
        [first, later].concat()
    };
    assert_eq!(cause(false), [Cause::Unwatched, Cause::Lost]);
    assert_eq!(cause(true), [Cause::Lost; 2]);
}

#[test]
fn a_kill_before_anybody_watched_is_one_with_the_next_agent_too() {
    let mut first = KillAccounts::new(false);
    first.resume(Earlier::default(), at(0));
    first.nobody_watched();
    first.adopt(CONTAINER, ALONE, counted(1), at(100));
    first.all_are_found();
    let mut next = next_of(&first, 500);
    next.all_are_found();
    let missed = next.settle(at(9000), &Due::default());
    let causes: Vec<Cause> = missed.iter().map(|it| it.cause).collect();
    assert_eq!(causes, [Cause::Unwatched]);
}

/// On v2, with accounts of a new pod and a new container in it.
fn with_pod() -> KillAccounts {
    let mut accounts = KillAccounts::new(true);
    accounts.all_are_found();
    accounts.begin(POD, CountOf::Pod);
    accounts.begin(CONTAINER, IN_POD);
    accounts
}

#[test]
fn what_is_reported_or_missed_in_a_container_is_not_missed_in_its_pod() {
    let mut accounts = with_pod();
    report(&mut accounts, &kill(50, CONTAINER));
    accounts.count(POD, counted(2), at(100));
    // The pod's count was read first.
    accounts.count(CONTAINER, counted(2), at(200));
    assert_eq!(settle(&mut accounts, 2100), []);
    assert_eq!(settle(&mut accounts, 2200), [(CONTAINER, 1)]);
    assert_eq!(settle(&mut accounts, 9000), []);
    assert!(!accounts.is_open());
    // Its end changes nothing of the pod's.
    accounts.end(CONTAINER);
    accounts.count(POD, counted(2), at(9000));
    assert!(!accounts.is_open());
}

#[test]
fn a_kill_in_a_container_that_nobody_has_looked_at_is_missed_in_its_pod() {
    for is_silent in [false, true] {
        let mut accounts = with_pod();
        if is_silent {
            accounts.without_programs();
        }
        accounts.count(CONTAINER, counted(1), at(100));
        accounts.count(POD, counted(3), at(100));
        let early = settle(&mut accounts, 2099);
        let own = vec![(CONTAINER, 1)];
        assert_eq!(early, if is_silent { own } else { vec![] });
        assert_eq!(settle(&mut accounts, 2100).len(), 2 - early.len());
        assert_eq!(settle(&mut accounts, 9000), []);
        let known = accounts.known().expect("all are found");
        assert_eq!(known, [(POD, 3), (CONTAINER, 1)].into());
    }
}

#[test]
fn a_pod_waits_for_what_was_not_read_of_its_containers() {
    let mut accounts = with_pod();
    accounts.count(POD, counted(1), at(100));
    let due = accounts.due(at(2100));
    assert_eq!(due.containers, [CONTAINER].into());
    // Nobody has read what is due.
    assert_eq!(accounts.settle(at(2100), &Due::default()), []);
    accounts.count(CONTAINER, counted(1), at(2100));
    assert_eq!(accounts.settle(at(2100), &due), []);
    assert_eq!(settle(&mut accounts, 4100), [(CONTAINER, 1)]);
    assert_eq!(settle(&mut accounts, 9000), []);
}

#[test]
fn what_was_told_of_a_pod_is_not_told_of_a_container_that_is_found_later() {
    const LATE: CgroupId = CgroupId(8);
    let mut accounts = with_pod();
    accounts.count(POD, counted(2), at(100));
    assert_eq!(settle(&mut accounts, 2100), [(POD, 2)]);
    // Two of these were told of the pod.
    accounts.adopt(LATE, IN_POD, counted(3), at(2200));
    accounts.count(POD, counted(3), at(2200));
    assert_eq!(settle(&mut accounts, 9000), [(LATE, 1)]);
    accounts.count(POD, counted(4), at(9000));
    accounts.count(LATE, counted(4), at(9000));
    assert_eq!(settle(&mut accounts, 20_000), [(LATE, 1)]);
    // What its pod had counted nobody could read.
    accounts.count(LATE, counted(5), at(20_000));
    let mut due = accounts.due(at(30_000));
    assert_eq!(due.pods, [POD].into());
    due.pods.clear();
    let missed = accounts.settle(at(30_000), &due);
    assert_eq!(missed.len(), 1, "{missed:?}");
}

/// A container is killed again and again, and each time one dies that is gone before anybody has found it.
#[test]
fn a_kill_in_a_container_that_is_found_is_its_own() {
    let mut accounts = with_pod();
    accounts.without_programs();
    for round in 1..=3 {
        let ms = round * 10_000;
        accounts.count(POD, counted(2 * round - 1), at(ms));
        assert_eq!(settle(&mut accounts, ms + 2000), [(POD, 1)]);
        let found = CgroupId(10 + round);
        accounts.adopt(found, IN_POD, counted(1), at(ms + 3000));
        accounts.count(POD, counted(2 * round), at(ms + 3000));
        assert_eq!(settle(&mut accounts, ms + 3000), [(found, 1)]);
        accounts.end(found);
    }
}

#[test]
fn reports_that_do_not_name_the_pod_are_of_a_container_in_it() {
    let mut accounts = with_pod();
    const LATE: CgroupId = CgroupId(8);
    report(&mut accounts, &kill(20, CgroupId(60)));
    accounts.count(POD, counted(1), at(30));
    // Before it was known where the pods lie; of one that has an account, and of one that has none yet.
    report(&mut accounts, &oom_kill(50, CONTAINER));
    report(&mut accounts, &oom_kill(60, LATE));
    accounts.begin(LATE, IN_POD);
    accounts.count(POD, counted(3), at(100));
    assert!(!accounts.is_open());
    assert_eq!(settle(&mut accounts, 9000), []);
    accounts.count(POD, counted(4), at(9000));
    assert_eq!(settle(&mut accounts, 20_000), [(POD, 1)]);
}

#[test]
fn a_victim_that_is_counted_once_less_than_it_is_known_hides_no_other() {
    let mut accounts = with_pod();
    let counted = |kills, groups| OomCount {
        kills,
        group_kills: Some(groups),
    };
    // Two processes died, and the first was gone before it was counted again.
    report(&mut accounts, &kill(50, CONTAINER));
    report(&mut accounts, &kill(51, CONTAINER));
    // Read before the last of them.
    accounts.count(POD, counted(1, 0), at(50));
    accounts.count(POD, counted(2, 1), at(60));
    accounts.end(CONTAINER);
    accounts.count(POD, counted(2, 1), at(5000));
    accounts.count(POD, counted(3, 1), at(9000));
    assert_eq!(settle(&mut accounts, 20_000), [(POD, 1)]);
}

/// Another process of the pod was killed before, for itself.
#[test]
fn a_victim_that_is_yet_to_be_counted_again_is_not_missed() {
    let mut accounts = with_pod();
    let counted = |kills, groups| OomCount {
        kills,
        group_kills: Some(groups),
    };
    report(&mut accounts, &kill(10, CONTAINER));
    report(&mut accounts, &kill(50, CONTAINER));
    accounts.count(POD, counted(2, 1), at(60));
    accounts.count(POD, counted(3, 1), at(5000));
    assert!(!accounts.is_open());
    assert_eq!(settle(&mut accounts, 20_000), []);
}

#[test]
fn a_pods_count_can_have_one_less_than_its_containers_counts() {
    const LATE: CgroupId = CgroupId(8);
    let counted = |kills, groups| OomCount {
        kills,
        group_kills: Some(groups),
    };
    let mut accounts = with_pod();
    accounts.without_programs();
    // The only victim was gone before it was counted again.
    accounts.count(CONTAINER, counted(1, 1), at(100));
    accounts.count(POD, counted(1, 1), at(100));
    assert_eq!(settle(&mut accounts, 100), [(CONTAINER, 1)]);
    accounts.begin(LATE, IN_POD);
    accounts.count(LATE, counted(1, 0), at(200));
    accounts.count(POD, counted(2, 1), at(200));
    assert_eq!(settle(&mut accounts, 200), [(LATE, 1)]);
    assert_eq!(settle(&mut accounts, 9000), []);
}

#[test]
fn a_report_before_a_container_could_be_read_is_known_in_its_pod() {
    let mut accounts = with_pod();
    const LATE: CgroupId = CgroupId(8);
    report(&mut accounts, &oom_kill(50, LATE));
    accounts.adopt_late(LATE, IN_POD, counted(1), at(100));
    accounts.count(POD, counted(1), at(200));
    assert_eq!(settle(&mut accounts, 9000), []);
}

#[test]
fn a_pod_that_is_made_while_others_are_looked_for_has_what_was_reported() {
    let mut accounts = KillAccounts::new(true);
    report(&mut accounts, &kill(50, CONTAINER));
    accounts.begin(POD, CountOf::Pod);
    accounts.count(POD, counted(1), at(100));
    assert_eq!(settle(&mut accounts, 9000), []);
}

#[test]
fn what_an_agent_tells_of_a_container_before_it_has_found_the_pod_is_known_there() {
    let mut first = with_pod();
    first.count(CONTAINER, counted(1), at(100));
    let mut next = next_of(&first, 1000);
    next.without_programs();
    assert_eq!(settle(&mut next, 1000), [(CONTAINER, 1)]);
    next.adopt(POD, CountOf::Pod, counted(1), at(1100));
    next.all_are_found();
    assert_eq!(settle(&mut next, 9000), []);
}

#[test]
fn a_container_that_was_found_before_its_pod_is_in_it_later() {
    let mut accounts = KillAccounts::new(true);
    accounts.all_are_found();
    accounts.adopt(CONTAINER, ALONE, counted(0), at(100));
    accounts.begin(POD, CountOf::Pod);
    accounts.begin(CONTAINER, IN_POD);
    accounts.count(CONTAINER, counted(1), at(200));
    accounts.count(POD, counted(1), at(200));
    assert_eq!(settle(&mut accounts, 2200), [(CONTAINER, 1)]);
    assert_eq!(settle(&mut accounts, 9000), []);
}

#[test]
fn what_was_reported_after_all_was_watched() {
    let mut accounts = KillAccounts::new(false);
    accounts.resume(Earlier::default(), at(0));
    accounts.nobody_watched();
    accounts.adopt(CONTAINER, ALONE, counted(1), at(100));
    accounts.all_are_found();
    report(&mut accounts, &kill(90, CONTAINER));
    accounts.count(CONTAINER, counted(1), at(200));
    accounts.count(CONTAINER, counted(2), at(300));
    let missed = accounts.settle(at(9000), &Due::default());
    let causes: Vec<Cause> = missed.iter().map(|it| it.cause).collect();
    assert_eq!(causes, [Cause::Lost]);
}

#[test]
fn a_pod_is_known_to_the_next_agent_open_or_not() {
    let mut first = with_pod();
    first.count(POD, counted(1), at(100));
    assert_eq!(settle(&mut first, 2100), [(POD, 1)]);
    first.count(POD, counted(2), at(2200));
    first.end(CONTAINER);
    let mut next = next_of(&first, 3000);
    // It was removed meanwhile; else it is found again.
    assert_eq!(settle(&mut next, 5000), [(POD, 1)]);
    assert!(next.is_empty());
    let mut next = next_of(&first, 3000);
    next.adopt(POD, CountOf::Pod, counted(3), at(3100));
    next.all_are_found();
    assert_eq!(settle(&mut next, 5000), [(POD, 1)]);
    assert_eq!(settle(&mut next, 9000), [(POD, 1)]);
}

#[test]
fn pods_of_which_no_agent_kept_accounts_begin_with_what_is_counted() {
    let mut accounts = KillAccounts::new(true);
    let earlier = Earlier {
        known: [(POD, 1), (CONTAINER, 1)].into(),
        ..Earlier::default()
    };
    accounts.resume(earlier, at(0));
    accounts.adopt(POD, CountOf::Pod, counted(4), at(100));
    accounts.adopt(CONTAINER, IN_POD, counted(2), at(100));
    assert!(!accounts.has_pods());
    accounts.all_are_found();
    assert!(accounts.has_pods());
    assert_eq!(settle(&mut accounts, 9000), [(CONTAINER, 1)]);
    accounts.count(POD, counted(4), at(9000));
    accounts.count(POD, counted(5), at(9100));
    assert_eq!(settle(&mut accounts, 20_000), [(POD, 1)]);
}

#[test]
fn a_pods_count_that_may_be_twice_as_much_is_none() {
    let mut accounts = with_pod();
    let counted = OomCount {
        kills: 2,
        group_kills: None,
    };
    accounts.count(POD, counted, at(100));
    accounts.adopt(CgroupId(60), CountOf::Pod, counted, at(100));
    assert!(!accounts.is_open());
}

/// Processes of a container are killed: what the kernel has counted by when, and when programs report a victim.
struct Kills {
    is_unified: bool,
    counts: &'static [(u64, OomCount)],
    reports: &'static [u64],
}

const fn of_groups(kills: u64, group_kills: Option<u64>) -> OomCount {
    OomCount { kills, group_kills }
}

/// On v1.
const EACH_FOR_ITSELF: Kills = Kills {
    is_unified: false,
    counts: &[
        (10, of_groups(1, Some(0))),
        (20, of_groups(2, Some(0))),
        (30, of_groups(3, Some(0))),
    ],
    reports: &[11, 21, 31],
};
const AS_A_WHOLE: Kills = Kills {
    is_unified: true,
    counts: &[
        (10, of_groups(1, Some(0))),
        (12, of_groups(1, Some(1))),
        (13, of_groups(2, Some(1))),
        (20, of_groups(3, Some(1))),
        (30, of_groups(4, Some(1))),
    ],
    reports: &[11, 21, 31],
};
/// Another process was killed before, for itself. Nobody reads between the first victim and that the others follow.
const AS_A_WHOLE_LATER: Kills = Kills {
    is_unified: true,
    counts: &[
        (1, of_groups(1, Some(0))),
        (12, of_groups(2, Some(1))),
        (13, of_groups(3, Some(1))),
        (20, of_groups(4, Some(1))),
    ],
    reports: &[2, 11, 21],
};
/// Before it was counted again.
const ALONE_AND_GONE: Kills = Kills {
    is_unified: true,
    counts: &[(10, of_groups(1, Some(0))), (12, of_groups(1, Some(1)))],
    reports: &[11],
};
/// Before Linux 5.17.
const AS_A_WHOLE_UNSAID: Kills = Kills {
    is_unified: true,
    counts: &[
        (10, of_groups(1, None)),
        (13, of_groups(2, None)),
        (20, of_groups(3, None)),
        (30, of_groups(4, None)),
    ],
    reports: &[11, 21, 31],
};
const ALONE_UNSAID: Kills = Kills {
    is_unified: true,
    counts: &[(10, of_groups(1, None)), (13, of_groups(2, None))],
    reports: &[11],
};

const ALL_KILLS: [Kills; 6] = [
    EACH_FOR_ITSELF,
    AS_A_WHOLE,
    AS_A_WHOLE_LATER,
    ALONE_AND_GONE,
    AS_A_WHOLE_UNSAID,
    ALONE_UNSAID,
];

/// What becomes of the cgroup and of the agent amid the kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amid {
    Nothing,
    Removal,
    Loss,
    Restart,
    RestartAndRemoval,
}

const AMID: [Amid; 5] = [
    Amid::Nothing,
    Amid::Removal,
    Amid::Loss,
    Amid::Restart,
    Amid::RestartAndRemoval,
];

impl Kills {
    fn cgroups(&self) -> &'static [(CgroupId, CountOf)] {
        match self.is_unified {
            true => &[(POD, CountOf::Pod), (CONTAINER, IN_POD)],
            false => &[(CONTAINER, ALONE)],
        }
    }

    fn n_steps(&self) -> usize {
        self.counts.len() + self.reports.len()
    }

    /// Orders in which counts and reports may come: a bit for each step, set where it is a report.
    fn orders(&self) -> Vec<u32> {
        let all = 0..1_u32 << self.n_steps();
        let n_reports = u32::try_from(self.reports.len()).expect("a small number");
        all.filter(|it| it.count_ones() == n_reports).collect()
    }

    fn begin(&self) -> KillAccounts {
        let mut accounts = KillAccounts::new(self.is_unified);
        accounts.all_are_found();
        for (cgroup, of) in self.cgroups() {
            accounts.begin(*cgroup, *of);
        }
        accounts
    }

    fn count(&self, accounts: &mut KillAccounts, counted: OomCount, ms: u64) {
        for (cgroup, _) in self.cgroups() {
            accounts.count(*cgroup, counted, at(ms));
        }
    }

    /// What all of them are counted as.
    fn all(&self) -> OomCount {
        self.counts.last().expect("it is counted").1
    }

    /// What is left of the cgroups is found when all are killed.
    fn meet(&self, mut accounts: KillAccounts, amid: Amid) -> KillAccounts {
        let left: &[(CgroupId, CountOf)] = match amid {
            Amid::Nothing | Amid::Removal => &[],
            Amid::RestartAndRemoval => {
                let all = self.cgroups();
                &all[..all.len() - 1]
            }
            Amid::Loss | Amid::Restart => self.cgroups(),
        };
        match amid {
            Amid::Nothing => {}
            Amid::Removal => accounts.end(CONTAINER),
            Amid::Loss => accounts.lose(CONTAINER),
            Amid::Restart | Amid::RestartAndRemoval => accounts = next_of(&accounts, 400),
        }
        for (cgroup, of) in left {
            accounts.adopt(*cgroup, *of, self.all(), at(500));
        }
        accounts.all_are_found();
        accounts
    }

    /// How many are missed, where something happens before `step`, and the last `n_lost` reports never come.
    fn play(&self, order: u32, amid: Amid, step: usize, n_lost: usize) -> u64 {
        let mut accounts = self.begin();
        let mut counts = self.counts.iter();
        let mut reports = self.reports.iter().take(self.reports.len() - n_lost);
        for now in 0..self.n_steps() {
            if now == step {
                accounts = self.meet(accounts, amid);
            }
            let is_report = (order >> now) & 1 == 1;
            if is_report && let Some(ms) = reports.next() {
                report(&mut accounts, &kill(*ms, CONTAINER));
            }
            if !is_report && let Some((ms, counted)) = counts.next() {
                self.count(&mut accounts, *counted, *ms);
            }
        }
        let n = settle_all(&mut accounts, [9000, 20_000, 40_000]);
        assert!(!accounts.is_open(), "{order:b}, {amid:?} at {step}");
        n
    }
}

fn settle_all<const N: usize>(accounts: &mut KillAccounts, times: [u64; N]) -> u64 {
    let missed = times.into_iter().flat_map(|ms| settle(accounts, ms));
    missed.map(|(_, n)| n).sum()
}

#[test]
fn kills_are_known_in_any_order_of_counts_and_reports() {
    for kills in ALL_KILLS {
        for order in kills.orders() {
            for amid in AMID {
                for step in 0..kills.n_steps() {
                    let n = kills.play(order, amid, step, 0);
                    let all = kills.all();
                    assert_eq!(n, 0, "{all:?}: {order:b}, {amid:?} at {step}");
                }
            }
        }
    }
}

#[test]
fn a_report_that_never_comes_is_missed_once_in_any_order() {
    for kills in [
        EACH_FOR_ITSELF,
        AS_A_WHOLE,
        AS_A_WHOLE_LATER,
        ALONE_AND_GONE,
    ] {
        // Of v1 nothing else has the count of a cgroup that is removed.
        let is_told =
            |it: &Amid| kills.is_unified || !matches!(it, Amid::Removal | Amid::RestartAndRemoval);
        for order in kills.orders() {
            for amid in AMID.into_iter().filter(is_told) {
                for step in 0..kills.n_steps() {
                    let n = kills.play(order, amid, step, 1);
                    let all = kills.all();
                    assert_eq!(n, 1, "{all:?}: {order:b}, {amid:?} at {step}");
                }
            }
        }
    }
}

/// The second was noted right after a reading that has the first alone.
const RIGHT_AFTER: Kills = Kills {
    is_unified: false,
    counts: &[(10, of_groups(1, Some(0))), (12, of_groups(2, Some(0)))],
    reports: &[11, 13],
};

/// By an agent whose programs the kernel does not take, which ends amid the kills, and by the next, which finds in the
/// ring what programs of an earlier one have noted.
#[test]
fn what_was_compared_is_not_counted_again_from_the_ring() {
    for kills in ALL_KILLS.into_iter().chain([RIGHT_AFTER]) {
        for n_read in 0..=kills.counts.len() {
            let mut first = kills.begin();
            first.without_programs();
            let mut until = CountedUntil::default();
            let mut n = 0;
            for (ms, counted) in &kills.counts[..n_read] {
                kills.count(&mut first, once(*counted), *ms);
                let due = first.due(at(*ms));
                for missed in first.settle(at(*ms), &due) {
                    until.compare(missed.at);
                    n += missed.n;
                }
            }
            let mut next = kills.meet(first, Amid::Restart);
            for ms in kills.reports {
                if !until.has(at(*ms), true) {
                    report(&mut next, &kill(*ms, CONTAINER));
                    n += 1;
                }
            }
            n += settle_all(&mut next, [9000, 20_000, 40_000]);
            let n_victims = u64::try_from(kills.reports.len());
            assert_eq!(Ok(n), n_victims, "{:?}, {n_read} read", kills.all());
        }
    }
}

/// A count as it is told where nobody reports.
fn once(counted: OomCount) -> OomCount {
    of_groups(counted.kills, counted.group_kills.or(Some(1)))
}

/// By an agent whose programs the kernel does not take, which ends amid the kills, and by the next.
#[test]
fn where_nobody_reports_each_victim_is_missed_once() {
    for kills in ALL_KILLS {
        for n_read in 0..=kills.counts.len() {
            let mut first = kills.begin();
            first.without_programs();
            let mut n = 0;
            for (ms, counted) in &kills.counts[..n_read] {
                kills.count(&mut first, once(*counted), *ms);
                n += settle_all(&mut first, [*ms]);
            }
            // What it finds is read before it knows that nobody reports, and again then.
            let mut next = kills.meet(first, Amid::Restart);
            next.without_programs();
            n += settle_all(&mut next, [500]);
            kills.count(&mut next, once(kills.all()), 600);
            n += settle_all(&mut next, [600, 9000, 20_000]);
            let n_victims = u64::try_from(kills.reports.len());
            assert_eq!(Ok(n), n_victims, "{:?}, {n_read} read", kills.all());
        }
    }
}
