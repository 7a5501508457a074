use std::sync::Arc;

use super::*;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;

fn seconds(it: u64) -> Duration {
    Duration::from_secs(it)
}

fn regarding(pod: &str, container: &str) -> Regarding {
    Regarding::Pod {
        pod: Arc::new(PodRef {
            namespace: "default".to_owned(),
            name: pod.to_owned(),
            uid: PodUid(format!("uid-{pod}")),
        }),
        container: Some(container.into()),
    }
}

/// A kill of `command` in the container `app` of a pod, `at` seconds.
fn kill(pod: &str, command: &str, at: u64) -> Notice {
    Notice {
        regarding: regarding(pod, "app"),
        reason: Reason::OomKilledChild,
        n: 1,
        at: WallTime::from_epoch(seconds(1_000_000 + at)),
        since_boot: seconds(at),
        command: Some(command.to_owned()),
        message: format!("{command} was killed"),
        details: BTreeMap::from([("comm", command.to_owned())]),
    }
}

/// A namespace refuses it.
fn failed() -> Outcome {
    Outcome::Failed {
        why: "create Events: no".to_owned(),
        after: Duration::ZERO,
    }
}

fn written(outbox: &mut Outbox, now: Duration) -> Write {
    let write = outbox.next(now).expect("something is due");
    assert_eq!(outbox.next(now), None, "one at a time");
    outbox.done(Outcome::Written, now);
    write
}

fn counts(outbox: &Outbox, reason: Reason) -> [u64; 3] {
    let Counts {
        sent,
        folded,
        dropped,
    } = outbox.counts()[&reason];
    [sent, folded, dropped]
}

#[test]
fn forty_kills_of_a_container_are_one_object_that_is_written_seldom() {
    let mut outbox = Outbox::new(seconds(0));
    let mut writes = Vec::new();
    for n in 0..40 {
        let now = Duration::from_millis(250 * n);
        outbox.take(kill("shop", &format!("worker{}", n % 7), n), now);
        if let Some(write) = outbox.next(now) {
            outbox.done(Outcome::Written, now);
            writes.push(write);
        }
    }
    let gap = FIRST_GAP;
    assert_eq!(outbox.wake(), Some(gap), "the rest comes with the next one");
    assert_eq!(outbox.next(gap - Duration::from_millis(1)), None);
    writes.push(written(&mut outbox, gap));
    let shown: Vec<_> = writes.iter().map(|it| (it.kind, it.count)).collect();
    assert_eq!(shown, [(WriteKind::Create, 1), (WriteKind::Patch, 40)]);
    assert_eq!(writes[0].message, "worker0 was killed");
    assert_eq!(
        writes[1].message,
        "worker4 was killed; the newest of 40 of 7 commands"
    );
    assert_eq!(writes[0].first, writes[1].first);
    assert_eq!(writes[1].details["comm"], "worker4");
    assert_eq!(outbox.wake(), None);
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [40, 0, 0]);
}

/// A container is killed every second, `n` times, and each kill is told after `late` seconds. Gives when its object is
/// written, in seconds, and the counts.
fn series(outbox: &mut Outbox, n: u64, late: u64) -> Vec<(u64, u64)> {
    let mut writes = Vec::new();
    for second in 0..n {
        let now = seconds(second + late);
        outbox.take(kill("shop", "worker", second), now);
        if outbox.wake() <= Some(now) {
            writes.push((now.as_secs(), written(outbox, now).count));
        }
    }
    writes
}

#[test]
fn a_series_that_goes_on_is_written_ever_more_seldom() {
    const DAY: u64 = 86_400;
    let mut outbox = Outbox::new(seconds(0));
    let writes = series(&mut outbox, DAY, 0);
    let is_whole = |(at, count): &(u64, u64)| *count == at + 1;
    assert!(writes.iter().all(is_whole), "{writes:?}");
    let gaps: Vec<u64> = writes.windows(2).map(|it| it[1].0 - it[0].0).collect();
    assert_eq!(gaps[..6], [10, 20, 40, 80, 160, 300]);
    assert!(gaps[6..].iter().all(|it| *it == 300), "{gaps:?}");
    assert!(writes.len() < 300, "{} writes", writes.len());
    // The rest comes by itself.
    let end = outbox.wake().expect("some wait");
    assert!(end < seconds(DAY + 300), "{end:?}");
    assert_eq!(written(&mut outbox, end).count, DAY);
    assert_eq!(outbox.wake(), None);
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [DAY, 0, 0]);
}

/// `quiet`: seconds without a kill in a series that is written seldom. Two kills come then: the first is written at once,
/// and the second waits so long.
#[track_caller]
fn check_quiet(quiet: u64, wait: Duration) {
    const N: u64 = 1_000;
    let mut outbox = Outbox::new(seconds(0));
    series(&mut outbox, N, 0);
    let end = outbox.wake().expect("some wait");
    written(&mut outbox, end);
    let again = N - 1 + quiet;
    outbox.take(kill("shop", "worker", again), seconds(again));
    written(&mut outbox, seconds(again));
    outbox.take(kill("shop", "worker", again), seconds(again));
    assert_eq!(outbox.wake(), Some(seconds(again) + wait), "{quiet}");
}

#[test]
fn a_series_that_was_quiet_begins_anew() {
    check_quiet(OLD.as_secs(), LAST_GAP);
    check_quiet(OLD.as_secs() + 1, FIRST_GAP);
}

/// Kills in pods that nobody could name for long are told when they are almost old.
#[test]
fn what_waits_for_a_gap_is_not_given_up() {
    let mut outbox = Outbox::new(seconds(0));
    series(&mut outbox, 400, OLD.as_secs() - LATE.as_secs());
    let end = outbox.wake().expect("some wait");
    assert!(end > seconds(400) + OLD, "they get old meanwhile: {end:?}");
    assert_eq!(written(&mut outbox, end).count, 400);
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [400, 0, 0]);
    // One that is refused then is.
    outbox.take(kill("shop", "worker", 401), end);
    let due = outbox.wake().expect("it waits");
    fails(&mut outbox, "no right", due);
    assert_eq!(outbox.next(due + FIRST_PAUSE), None);
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [400, 0, 1]);
}

#[test]
fn what_is_different_is_told_apart() {
    let mut outbox = Outbox::new(seconds(0));
    let one = kill("shop", "a", 1);
    let main = Notice {
        reason: Reason::OomKilled,
        ..one.clone()
    };
    let other = Notice {
        regarding: regarding("shop", "log"),
        ..one.clone()
    };
    for it in [one, main, other, kill("late", "a", 2)] {
        outbox.take(it, seconds(1));
    }
    for _ in 0..4 {
        let write = written(&mut outbox, seconds(1));
        assert_eq!((write.kind, write.count), (WriteKind::Create, 1));
    }
    assert_eq!(outbox.next(seconds(1)), None);
}

#[test]
fn more_pods_than_a_node_may_tell_of_at_once_are_one_event_of_the_node() {
    let mut outbox = Outbox::new(seconds(0));
    for n in 0..200 {
        outbox.take(kill(&format!("pod{n}"), "worker", n), seconds(5));
    }
    let mut of_pods = 0;
    let mut of_node = Vec::new();
    let mut now = seconds(5);
    while let Some(due) = outbox.wake().filter(|it| *it < seconds(9)) {
        now = now.max(due);
        let write = outbox.next(now).expect("it is due");
        outbox.done(Outcome::Written, now);
        match write.regarding {
            Regarding::Node => of_node.push(write),
            Regarding::Pod { .. } => of_pods += write.count,
        }
    }
    assert_eq!((of_pods, of_node.len()), (25, 1));
    assert_eq!(of_node[0].count, 175);
    assert!(of_node[0].message.contains("default/pod199"), "{of_node:?}");
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [25, 175, 0]);
    assert_eq!(counts(&outbox, Reason::OomRepeated), [175, 0, 0]);
    // A pod that has one goes on, and a second later five more may begin.
    outbox.take(kill("pod0", "worker", 201), seconds(5));
    for n in 300..310 {
        outbox.take(kill(&format!("pod{n}"), "worker", n), seconds(6));
    }
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [25, 180, 0]);
}

#[test]
fn an_object_of_the_agent_before_is_gone_on_with() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("shop", "a", 1), seconds(1));
    outbox.next(seconds(1)).expect("it is due");
    outbox.done(
        Outcome::Exists {
            count: 7,
            is_own: false,
            told_until: Some(seconds(0)),
        },
        seconds(1),
    );
    let write = written(&mut outbox, seconds(1));
    assert_eq!((write.kind, write.count), (WriteKind::Patch, 8));
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [1, 0, 0]);
}

/// An agent was killed before it had told all. `until`: it had told what happened until then; `None`: it does not say.
#[track_caller]
fn check_earlier(until: Option<u64>, told: &[(WriteKind, u64)]) {
    let mut outbox = Outbox::new(seconds(100));
    for at in [10, 20, 30] {
        outbox.take_earlier(kill("shop", "a", at), seconds(100));
    }
    outbox.next(seconds(100)).expect("it is due");
    let exists = Outcome::Exists {
        count: 5,
        is_own: false,
        told_until: until.map(seconds),
    };
    outbox.done(exists, seconds(100));
    let mut found = Vec::new();
    while let Some(write) = outbox.next(seconds(100)) {
        outbox.done(Outcome::Written, seconds(100));
        found.push((write.kind, write.count));
    }
    assert_eq!(found, told, "{until:?}");
    assert_eq!(outbox.told_until(), Some(seconds(30)));
    // One more that comes late, and one that happens now.
    outbox.take_earlier(kill("shop", "a", 15), seconds(101));
    outbox.take(kill("shop", "a", 102), seconds(102));
    let known = 5 + told.iter().map(|(_, count)| count - 5).sum::<u64>();
    let late = u64::from(until.is_some_and(|it| it < 15));
    let write = written(&mut outbox, seconds(120));
    assert_eq!(
        (write.kind, write.count),
        (WriteKind::Patch, known + late + 1)
    );
    assert_eq!(outbox.wake(), None);
    let [sent, ..] = counts(&outbox, Reason::OomKilledChild);
    assert_eq!(sent, known + late + 1 - 5, "those of this agent");
}

#[test]
fn of_what_is_on_record_is_told_what_the_agent_before_had_not_told() {
    check_earlier(Some(30), &[]);
    check_earlier(Some(20), &[(WriteKind::Patch, 6)]);
    check_earlier(Some(10), &[(WriteKind::Patch, 7)]);
    // Of another boot.
    check_earlier(Some(0), &[(WriteKind::Patch, 8)]);
    check_earlier(None, &[]);
}

fn n_of(regarding: &Regarding) -> u64 {
    let Regarding::Pod { pod, .. } = regarding else {
        panic!("of the node");
    };
    let n = pod.name.trim_start_matches("pod");
    n.parse().expect("its number")
}

#[test]
fn what_nobody_has_told_of_what_is_on_record_is_told_if_it_is_news() {
    let mut outbox = Outbox::new(seconds(1_000));
    for n in 0..30 {
        outbox.take_earlier(kill(&format!("pod{n}"), "a", 950 + n), seconds(1_000));
    }
    outbox.take_earlier(kill("pod0", "b", 990), seconds(1_000));
    outbox.take_earlier(kill("pod0", "old", 50), seconds(1_000));
    assert_eq!(outbox.told_until(), None);
    let mut now = seconds(1_000);
    let mut found = Vec::new();
    while let Some(due) = outbox.wake() {
        now = now.max(due);
        let Some(write) = outbox.next(now) else { break };
        // Of each third one the agent before has told.
        let is_told = n_of(&write.regarding) % 3 == 1;
        let outcome = match is_told && write.kind == WriteKind::Create {
            true => Outcome::Exists {
                count: 1,
                is_own: false,
                told_until: Some(seconds(990)),
            },
            false => Outcome::Written,
        };
        if matches!(outcome, Outcome::Written) {
            found.push((n_of(&write.regarding), write.count));
        }
        outbox.done(outcome, now);
    }
    // More than a node may tell of at once, each by its own, and none twice.
    let untold = (0..30).filter(|n| n % 3 != 1);
    let untold = untold.map(|n| (n, if n == 0 { 3 } else { 1 }));
    found.sort_unstable();
    assert_eq!(found, untold.collect::<Vec<_>>());
    assert_eq!(outbox.told_until(), Some(seconds(990)));
}

#[test]
fn earlier_kills_let_live_ones_go_first() {
    let mut outbox = Outbox::new(seconds(1_000));
    for n in 0..60 {
        outbox.take_earlier(kill(&format!("pod{n}"), "a", 900 + n), seconds(1_000));
    }
    outbox.take(kill("pod100", "a", 1_000), seconds(1_000));
    let first = written(&mut outbox, seconds(1_000));
    assert_eq!(n_of(&first.regarding), 100);
    let then = written(&mut outbox, seconds(1_000));
    assert_eq!(n_of(&then.regarding), 0, "the oldest");
}

/// The answer to a write was lost: what it wrote is not counted again.
#[test]
fn an_object_of_this_agent_that_it_did_not_hear_of_is_gone_on_with() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("shop", "a", 1), seconds(1));
    outbox.next(seconds(1)).expect("it is due");
    outbox.take(kill("shop", "a", 2), seconds(2));
    outbox.done(failed(), seconds(8));
    let write = outbox.next(seconds(9)).expect("it is due");
    assert_eq!((write.kind, write.count), (WriteKind::Create, 2));
    outbox.done(
        Outcome::Exists {
            count: 1,
            is_own: true,
            told_until: None,
        },
        seconds(9),
    );
    let write = written(&mut outbox, seconds(9));
    assert_eq!((write.kind, write.count), (WriteKind::Patch, 2));
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [2, 0, 0]);
    assert_eq!(outbox.wake(), None);
}

#[test]
fn an_object_that_has_expired_is_made_anew_with_its_count() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("shop", "a", 1), seconds(1));
    written(&mut outbox, seconds(1));
    outbox.take(kill("shop", "b", 4_000), seconds(4_000));
    let write = outbox.next(seconds(4_000)).expect("it is due");
    assert_eq!((write.kind, write.count), (WriteKind::Patch, 2));
    outbox.done(Outcome::Gone, seconds(4_000));
    let write = written(&mut outbox, seconds(4_000));
    assert_eq!((write.kind, write.count), (WriteKind::Create, 2));
}

#[test]
fn while_nobody_takes_them_the_newest_are_kept() {
    let mut outbox = Outbox::new(seconds(0));
    for n in 0..30 {
        outbox.take(kill(&format!("pod{n}"), "a", n * 40), seconds(n * 40));
        if let Some(_write) = outbox.next(seconds(n * 40)) {
            outbox.done(failed(), seconds(n * 40));
        }
    }
    let mut now = seconds(1_200);
    let mut told = Vec::new();
    while let Some(due) = outbox.wake() {
        now = now.max(due);
        let Some(write) = outbox.next(now) else { break };
        outbox.done(Outcome::Written, now);
        told.push(write);
    }
    let n = told.len() as u64;
    assert!((20..=22).contains(&n), "of the last 15 minutes: {n}");
    assert!(told.is_sorted_by_key(|it| it.first), "the oldest first");
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [n, 0, 30 - n]);
    assert_eq!(outbox.n_waiting(), 0);
}

#[test]
fn nothing_grows_without_bound_and_everything_is_counted() {
    let mut outbox = Outbox::new(seconds(0));
    let n = 6_000;
    for i in 0..n {
        // As fast as new ones may come.
        let now = EVERY * u32::try_from(i).expect("small");
        outbox.take(kill(&format!("pod{i}"), "a", i), now);
    }
    assert_eq!(outbox.objects.len(), MAX_WAITING);
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [0, 0, n - 1_000]);
    let mut outbox = Outbox::new(seconds(0));
    for i in 0..n {
        let now = EVERY * u32::try_from(i).expect("small");
        outbox.take(kill(&format!("pod{i}"), "a", i), now);
        written(&mut outbox, now);
    }
    assert_eq!(outbox.objects.len(), MAX_OBJECTS);
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [n, 0, 0]);
}

/// Of a namespace where the agent may not, or whose API server has a fault with one object.
#[test]
fn one_that_fails_holds_up_no_other_and_is_given_up_in_the_end() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("bad", "a", 1), seconds(1));
    written(&mut outbox, seconds(1));
    outbox.take(kill("bad", "a", 2), seconds(20));
    outbox.take(kill("good", "a", 3), seconds(21));
    let mut n_failed = 0;
    let mut n_good = 0;
    let mut now = seconds(21);
    while let Some(due) = outbox.wake() {
        now = now.max(due);
        let Some(write) = outbox.next(now) else { break };
        let is_good = write.regarding == regarding("good", "app");
        let outcome = if is_good { Outcome::Written } else { failed() };
        if is_good {
            assert!(now < seconds(23), "{now:?}");
            n_good += 1;
        } else {
            n_failed += 1;
        }
        outbox.done(outcome, now);
    }
    assert_eq!(n_good, 1);
    assert!(
        (10..40).contains(&n_failed),
        "{n_failed} tries in a quarter of an hour"
    );
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [2, 0, 1]);
    assert_eq!((outbox.n_waiting(), outbox.wake()), (0, None));
}

/// Each try takes ten seconds, as with a webhook that is away: eight objects are tried all the time.
#[test]
fn a_namespace_that_refuses_slowly_delays_no_other() {
    let mut outbox = Outbox::new(seconds(0));
    for n in 0..8 {
        let mut stuck = kill(&format!("stuck{n}"), "a", n);
        let Regarding::Pod { pod, .. } = &mut stuck.regarding else {
            panic!("of a pod");
        };
        Arc::make_mut(pod).namespace = "slow".to_owned();
        outbox.take(stuck, seconds(10));
    }
    let mut now = seconds(10);
    let mut told = Vec::new();
    let mut tries = BTreeMap::<Regarding, u64>::new();
    for _ in 0..80 {
        let happened = seconds(15 + 20 * told.len() as u64);
        if happened <= now {
            let at = happened.as_secs();
            outbox.take(kill(&format!("pod{at}"), "a", at), now);
        }
        now = now.max(outbox.wake().expect("something waits"));
        let write = outbox.next(now).expect("it is due");
        if namespace(&(write.regarding.clone(), write.reason)) == Some("slow") {
            now += seconds(10);
            *tries.entry(write.regarding).or_default() += 1;
            outbox.done(failed(), now);
        } else {
            told.push((write.told_until, now));
            outbox.done(Outcome::Written, now);
        }
    }
    assert!(told.len() > 20, "{told:?}");
    for (at, written) in told {
        let late = written.saturating_sub(at);
        assert!(late <= seconds(20), "{at:?} after {late:?}");
    }
    let fewest = tries.values().min().copied();
    assert_eq!(tries.len(), 8, "{tries:?}");
    assert!(fewest >= Some(4), "each has its turn: {tries:?}");
}

fn fails(outbox: &mut Outbox, why: &str, now: Duration) {
    outbox.next(now).expect("something is due");
    let outcome = Outcome::Failed {
        why: why.to_owned(),
        after: Duration::ZERO,
    };
    outbox.done(outcome, now);
}

#[test]
fn a_fault_is_told_until_its_event_is_written() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("bad", "a", 1), seconds(1));
    fails(&mut outbox, "no right", seconds(1));
    outbox.take(kill("good", "a", 2), seconds(2));
    assert!(outbox.has_untried(seconds(2)));
    written(&mut outbox, seconds(2));
    assert_eq!(outbox.fault(), Some("no right"), "another was written");
    assert!(outbox.has_untried(seconds(2)), "it may be taken by now");
    assert!(!outbox.has_untried(seconds(1)));
    written(&mut outbox, seconds(3));
    assert_eq!(outbox.fault(), None);
    assert!(!outbox.has_untried(seconds(9)), "nothing waits");
}

#[test]
fn a_fault_is_told_after_its_event_was_given_up() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("bad", "a", 1), seconds(1));
    fails(&mut outbox, "no right", seconds(1));
    assert_eq!(outbox.next(OLD + seconds(2)), None);
    assert_eq!(outbox.n_waiting(), 0);
    assert_eq!(outbox.fault(), Some("no right"));
    // In the same namespace.
    outbox.take(kill("good", "a", 2_000), seconds(2_000));
    written(&mut outbox, seconds(2_000));
    assert_eq!(outbox.fault(), None);
    outbox.take(kill("bad", "a", 2_001), seconds(2_001));
    fails(&mut outbox, "not now", seconds(2_001));
    outbox.next(seconds(2_010)).expect("it is due");
    outbox.done(Outcome::Never, seconds(2_010));
    assert_eq!(outbox.fault(), None, "there is nothing to be mended");
    outbox.take(kill("bad", "a", 3_000), seconds(3_000));
    fails(&mut outbox, "no right", seconds(3_000));
    let given_up = OLD + seconds(3_001);
    assert_eq!(outbox.next(given_up), None);
    assert_eq!(outbox.fault(), Some("no right"));
    assert_eq!(outbox.next(given_up + OLD), None);
    assert_eq!(outbox.fault(), None, "it is long ago");
}

#[test]
fn an_api_server_says_when_it_is_to_be_tried_again() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("shop", "a", 1), seconds(1));
    outbox.next(seconds(1)).expect("it is due");
    let outcome = Outcome::Failed {
        why: "busy".to_owned(),
        after: seconds(30),
    };
    outbox.done(outcome, seconds(1));
    assert_eq!(outbox.wake(), Some(seconds(31)));
}

#[test]
fn what_waits_for_its_time_is_written_when_the_agent_ends() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("shop", "a", 1), seconds(1));
    written(&mut outbox, seconds(1));
    outbox.take(kill("shop", "b", 2), seconds(2));
    assert_eq!(outbox.next(seconds(2)), None);
    outbox.hurry(seconds(2));
    assert_eq!(written(&mut outbox, seconds(2)).count, 2);
}

/// The clock is set back between two kills.
#[test]
fn the_newest_is_by_the_clock_that_never_steps() {
    let mut outbox = Outbox::new(seconds(0));
    let early = Notice {
        at: WallTime::from_epoch(seconds(9_000_000)),
        ..kill("shop", "a", 1)
    };
    outbox.take(early, seconds(1));
    outbox.take(kill("shop", "b", 2), seconds(2));
    let write = written(&mut outbox, seconds(2));
    assert!(write.message.starts_with("b was killed"), "{write:?}");
    assert_eq!(write.last, kill("shop", "b", 2).at);
}

#[test]
fn what_is_never_taken_is_given_up() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("shop", "a", 1), seconds(1));
    outbox.next(seconds(1)).expect("it is due");
    outbox.take(kill("shop", "b", 2), seconds(1));
    outbox.done(Outcome::Never, seconds(1));
    assert_eq!(outbox.next(seconds(100)), None);
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [0, 0, 2]);
}

#[test]
fn where_the_name_is_somebody_elses_another_is_made_and_gone_on_with() {
    let mut outbox = Outbox::new(seconds(0));
    outbox.take(kill("shop", "a", 1), seconds(1));
    outbox.next(seconds(1)).expect("it is due");
    outbox.done(Outcome::Taken, seconds(1));
    let made = written(&mut outbox, seconds(1));
    assert_eq!((made.kind, made.is_name_taken), (WriteKind::Create, true));
    outbox.take(kill("shop", "b", 2), seconds(2));
    let more = written(&mut outbox, seconds(20));
    assert_eq!((more.kind, more.is_name_taken), (WriteKind::Patch, true));
    assert_eq!(counts(&outbox, Reason::OomKilledChild), [2, 0, 0]);
}

#[test]
fn a_message_is_cut_at_a_character() {
    let long = format!("{}é{}", "x".repeat(1_020), "y".repeat(480));
    let short = cut(&long, "");
    assert_eq!(short.len(), 1_023, "1021 is in the middle of a character");
    assert!(short.ends_with("x..."), "{short}");
    assert_eq!(cut(&"z".repeat(MAX_MESSAGE), "").len(), MAX_MESSAGE);
    let whole_end = cut(&long, "; the newest of 2");
    assert!(whole_end.len() <= MAX_MESSAGE && whole_end.ends_with("x...; the newest of 2"));
    let mut outbox = Outbox::new(seconds(0));
    for n in 0..2 {
        let notice = Notice {
            message: "é".repeat(600),
            ..kill("shop", "a", n)
        };
        outbox.take(notice, seconds(n));
    }
    assert!(written(&mut outbox, seconds(9)).message.len() <= MAX_MESSAGE);
}
