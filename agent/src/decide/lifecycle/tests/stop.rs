use super::RestartPolicy::{Always, Never, OnFailure};
use super::*;

#[test]
fn deletion_stops_main_containers_at_once_and_sidecars_after_them_in_reverse() {
    for (case, pod, expected) in [
        ("nothing began", "init:a=new main:m=new", ""),
        (
            "mains together",
            "main:m=run main:n=run",
            "term m 30s, term n 30s",
        ),
        ("sidecar waits", "sidecar:s=run main:m=run", "term m 30s"),
        ("sidecar's turn", "sidecar:s=run main:m=ok", "term s 30s"),
        (
            "the last sidecar first",
            "sidecar:s=run sidecar:t=run main:m=err",
            "term t 30s",
        ),
        (
            "then the one before",
            "sidecar:s=run sidecar:t=ok main:m=err",
            "term s 30s",
        ),
        (
            "an init container, and the sidecar beside it",
            "sidecar:s=run init:a=run main:m=new",
            "term a 30s, term s 30s",
        ),
        (
            "a start under way holds sidecars back",
            "sidecar:s=run main:m=starting",
            "",
        ),
    ] {
        check(case, &story(Always, pod).deleted(30), expected);
    }
}

#[test]
fn sidecars_share_what_is_left_of_the_grace() {
    let pod = "sidecar:s=run sidecar:t=run main:m=ok";
    for (after, expected) in [
        (0, "term t 30s"),
        (10, "term t 20s"),
        (29, "term t 2s"),
        // Time is up: whoever is left is stopped together, with the minimum.
        (30, "term t 2s, term s 2s"),
        (500, "term t 2s, term s 2s"),
    ] {
        check(
            &format!("{after} s in"),
            &story(Always, pod).deleted(30).later(after),
            expected,
        );
    }
}

#[test]
fn sidecars_are_stopped_when_time_is_up_though_main_containers_are_left() {
    let story = story(Always, "sidecar:s=run main:m=run")
        .stopped("m", 0, 30, StopReason::PodTerminating)
        .deleted(30);
    check("before", &story.clone().later(29), "");
    assert_eq!(
        story.clone().later(29).decide().next_wake,
        Some(NOW + secs(30))
    );
    check("at the deadline", &story.later(30), "kill m, term s 2s");
}

#[test]
fn a_grace_of_zero_kills_at_once_and_a_short_one_is_raised() {
    let pod = "sidecar:s=run init:a=run main:m=starting main:n=run";
    for (grace, compat, expected) in [
        (0, Compat::Ballast, "kill a, kill m, kill n, kill s"),
        (1, Compat::Ballast, "term a 2s, term n 2s"),
        (0, Compat::Kubelet, "term a 2s, term n 2s"),
        (1, Compat::Kubelet, "term a 2s, term n 2s"),
    ] {
        let mut story = story(Always, pod).deleted(grace);
        story.settings.compat = compat;
        check(&format!("{grace} s, {compat:?}"), &story, expected);
    }
}

#[test]
fn a_stop_escalates_when_its_grace_has_passed() {
    let story = story(Always, "main:m=run")
        .stopped("m", 0, 30, StopReason::PodTerminating)
        .deleted(30);
    check("in time", &story.clone().later(29), "");
    check("time is up", &story.clone().later(30), "kill m");
    let killed = story.with("m", |it| {
        it.stop.as_mut().expect("stopped").killed_at = Some(NOW + secs(30));
    });
    check("just killed", &killed.clone().later(30), "");
    assert_eq!(
        killed.clone().later(30).decide().next_wake,
        Some(NOW + secs(30) + KILL_RETRY)
    );
    check("still there", &killed.later(31), "kill m");
}

#[test]
fn grace_only_shrinks() {
    // Stopped 10 s before the pod is deleted, for its definition, with 30 s.
    let stopped = story(Always, "main:m=run").stopped("m", 10, 30, StopReason::SpecChanged);
    for (case, grace, wake) in [
        ("longer: its own stays", 60, Some(20)),
        ("shorter", 5, Some(5)),
        ("less than the minimum since the stop", 1, Some(1)),
        ("none", 0, None),
    ] {
        let story = stopped.clone().deleted(grace);
        match wake {
            Some(wake) => {
                check(case, &story, "");
                assert_eq!(story.decide().next_wake, Some(NOW + secs(wake)), "{case}");
                check(case, &story.later(wake), "kill m");
            }
            None => check(case, &story, "kill m"),
        }
    }
    let fresh = story(Always, "main:m=run")
        .stopped("m", 0, 30, StopReason::SpecChanged)
        .deleted(1);
    assert_eq!(fresh.decide().next_wake, Some(NOW + MINIMUM_GRACE));
}

#[test]
fn a_sidecar_that_is_stopping_already_does_not_wait_for_its_turn_to_be_killed() {
    let story = story(Always, "sidecar:s=run main:m=run")
        .stopped("s", 25, 30, StopReason::SpecChanged)
        .stopped("m", 0, 30, StopReason::PodTerminating)
        .deleted(30);
    assert_eq!(story.decide().next_wake, Some(NOW + secs(5)));
    check("its own grace has passed", &story.later(5), "kill s");
}

#[test]
fn of_two_deletions_the_earlier_end_counts_and_the_first_reason() {
    let deletion = |at: u64, grace: u64, reason| Deletion {
        requested_at: secs(at),
        grace: secs(grace),
        reason,
    };
    let first = deletion(100, 30, DeletionReason::Removed);
    for (second, expected) in [
        (deletion(110, 30, DeletionReason::Evicted), first),
        (
            deletion(110, 5, DeletionReason::Evicted),
            deletion(110, 5, DeletionReason::Removed),
        ),
        (
            deletion(110, 0, DeletionReason::Evicted),
            deletion(110, 0, DeletionReason::Removed),
        ),
        // Past the first end: still no reason to wait.
        (
            deletion(140, 0, DeletionReason::Evicted),
            deletion(140, 0, DeletionReason::Removed),
        ),
    ] {
        assert_eq!(first.merge(second), expected, "{second:?}");
    }
}

#[test]
fn a_start_under_way_is_stopped_when_it_shows_or_cut_off_at_the_end() {
    let starting = story(Always, "main:m=starting").deleted(5);
    check("wait for it", &starting, "");
    assert_eq!(starting.decide().next_wake, Some(NOW + secs(5)));
    assert!(!starting.decide().is_finished);
    check("stuck", &starting.later(5), "kill m");
    let running = story(Always, "main:m=run").deleted(5).later(3);
    check("it showed", &running, "term m 2s");
}

#[test]
fn nothing_starts_while_a_pod_is_to_go() {
    for pod in [
        "init:a=ok init:b=new main:m=new",
        "init:a=err main:m=new",
        "sidecar:s=err main:m=run",
        "main:m=err main:n=ok",
    ] {
        let story = story(Always, pod).deleted(30);
        let starts = story
            .decide()
            .actions
            .iter()
            .filter(|it| matches!(it, ContainerAction::Start { .. }))
            .count();
        assert_eq!(starts, 0, "{pod}");
    }
}

#[test]
fn sidecars_go_when_the_main_containers_have_finished() {
    for (case, policy, pod, expected) in [
        (
            "Never",
            Never,
            "sidecar:s=run sidecar:t=run main:m=err",
            "term t 30s",
        ),
        (
            "OnFailure",
            OnFailure,
            "sidecar:s=run main:m=ok",
            "term s 30s",
        ),
        (
            "one is left",
            Never,
            "sidecar:s=run main:m=ok main:n=run",
            "",
        ),
        (
            "one comes again",
            OnFailure,
            "sidecar:s=run main:m=ok main:n=err",
            "start n#1",
        ),
        (
            "init failed for good",
            Never,
            "sidecar:s=run init:a=err main:m=new",
            "term s 30s",
        ),
    ] {
        check(case, &story(policy, pod), expected);
    }
}

#[test]
fn sidecars_of_a_finished_pod_share_one_grace_from_the_first_stop() {
    let pod = "sidecar:s=run sidecar:t=ok main:m=ok";
    let story = story(Never, pod).stopped("t", 12, 30, StopReason::PodFinished);
    check("t took 12 s", &story, "term s 18s");
    // Of several stops the first counts.
    let pod = "sidecar:s=run sidecar:t=ok sidecar:u=ok main:m=ok";
    let story = super::story(Never, pod)
        .stopped("t", 5, 30, StopReason::PodFinished)
        .stopped("u", 12, 30, StopReason::PodFinished);
    check("u and t took 12 s", &story, "term s 18s");
    // A restart for a new definition long ago does not count.
    let story = super::story(Never, pod).stopped("t", 500, 30, StopReason::SpecChanged);
    check("other stop", &story, "term s 30s");
}

#[test]
fn a_pod_grace_of_zero_still_gives_sidecars_of_a_finished_pod_the_minimum() {
    let mut story = story(Never, "sidecar:s=run sidecar:t=run main:m=ok");
    story.pod.termination_grace = Duration::ZERO;
    check("one after the other", &story, "term t 2s");
}

#[test]
fn a_container_that_the_pod_no_longer_has_is_stopped() {
    let mut story = story(Always, "main:m=run main:n=run");
    story.pod.containers.pop();
    check("removed", &story, "term n 30s");
    assert_eq!(
        reasons(&story.decide().actions),
        [StopReason::ContainerRemoved]
    );
    story.step();
    check("time is up", &story.clone().later(30), "kill n");
    check(
        "deleted meanwhile",
        &story.clone().deleted(0),
        "kill m, kill n",
    );
    let mut gone = story.clone();
    gone.status("m").state = ended(ContainerExit::Code(0));
    let gone = gone.deleted(30);
    assert!(
        !gone.decide().is_finished,
        "its processes are in the pod's cgroup"
    );
}

#[test]
fn leftovers_are_killed_out_of_turn_and_again() {
    let waiting = story(Always, "sidecar:s=ending main:m=run").deleted(30);
    check("not its turn", &waiting, "kill s, term m 30s");
    let stopped = story(Always, "main:m=ending").stopped("m", 0, 30, StopReason::SpecChanged);
    check("before its grace has passed", &stopped, "kill m");
    let mut story = stopped;
    story.step();
    assert_eq!(story.decide().next_wake, Some(NOW + KILL_RETRY));
    check("still there", &story.clone().later(1), "kill m");
    // Why it was stopped decides whether it comes back.
    let stop = story.status("m").stop.expect("stopped");
    assert_eq!(stop.reason, StopReason::SpecChanged);
}

#[test]
fn reasons_follow_the_cause() {
    for (story, reason) in [
        (
            story(Always, "main:m=run").deleted(30),
            StopReason::PodTerminating,
        ),
        (
            story(Always, "main:m=run").deleted(0),
            StopReason::PodTerminating,
        ),
        (
            story(Never, "sidecar:s=run main:m=ok"),
            StopReason::PodFinished,
        ),
        (story(Always, "main:m=ending"), StopReason::MainProcessEnded),
        (
            story(Always, "main:m=run").changed("m"),
            StopReason::SpecChanged,
        ),
    ] {
        assert_eq!(reasons(&story.decide().actions), [reason]);
    }
}
