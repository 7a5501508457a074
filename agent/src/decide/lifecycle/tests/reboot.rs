use super::RestartPolicy::{Always, Never, OnFailure};
use super::*;

fn rebooted(story: Story) -> Story {
    rebooted_with(story, true)
}

/// `may_have_run`: what was starting.
fn rebooted_with(mut story: Story, may_have_run: bool) -> Story {
    story.containers = after_reboot(&story.pod, &story.containers, |it| {
        assert_eq!(it.state, ContainerState::Starting);
        may_have_run
    });
    story.backoff = BackoffState::default();
    story.now = secs(20);
    story
}

#[test]
fn a_pod_that_may_restart_begins_with_its_init_containers() {
    for policy in [Always, OnFailure] {
        let mut story = rebooted(
            story(policy, "init:a=ok sidecar:s=run main:m=run main:n=err")
                .with("m", |it| it.attempt = 3),
        );
        check(&format!("{policy:?}"), &story, "start a#1");
        assert_eq!(story.decide().phase, PodPhase::Pending);
        story.step();
        story.status("a").state = ended(ContainerExit::Code(0));
        check("then the sidecar", &story, "start s#1");
        story.step();
        story.status("s").state = ContainerState::Running {
            started_at: story.now,
        };
        check("then the main containers", &story, "start m#4, start n#1");
        let lost = story.status("m").last_termination.clone();
        assert_eq!(lost.map(|it| it.exit), Some(ContainerExit::Unknown));
    }
}

#[test]
fn what_succeeded_under_on_failure_stays_done() {
    let story = rebooted(story(OnFailure, "main:m=ok main:n=run"));
    check("n ran", &story, "start n#1");
    let story = rebooted(super::story(OnFailure, "init:a=ok sidecar:s=run main:m=ok"));
    check("all done", &story, "");
    assert_eq!(story.decide().phase, PodPhase::Succeeded);
}

#[test]
fn a_pod_that_may_not_restart_ends() {
    for (pod, phase) in [
        ("init:a=ok main:m=run", PodPhase::Failed),
        ("main:m=ok main:n=run", PodPhase::Failed),
        ("main:m=ok sidecar:s=run", PodPhase::Succeeded),
        ("init:a=run main:m=new", PodPhase::Failed),
        ("main:m=ending", PodPhase::Succeeded),
    ] {
        let story = rebooted(story(Never, pod));
        check(pod, &story, "");
        let decision = story.decide();
        assert_eq!(decision.phase, phase, "{pod}");
        assert!(decision.is_finished, "{pod}");
    }
}

#[test]
fn a_start_that_was_held_is_made_after_all() {
    let starting = |policy| {
        story(policy, "init:a=ok main:m=starting").with("m", |it| {
            it.attempt = 2;
            it.last_termination = Some(termination(ContainerExit::Code(1)));
        })
    };
    let never = |pod, may_have_run| rebooted_with(story(Never, pod), may_have_run);
    check("held", &never("main:m=starting", false), "start m#0");
    check(
        "nothing ran",
        &never("init:a=starting main:m=new", false),
        "start a#0",
    );
    for (pod, may_have_run) in [
        ("main:m=starting", true),
        // What it made may be gone.
        ("init:a=ok main:m=starting", false),
        ("main:m=ok main:n=starting", false),
    ] {
        let story = never(pod, may_have_run);
        check(pod, &story, "");
        assert_eq!(story.decide().phase, PodPhase::Failed, "{pod}");
    }

    let mut held = rebooted_with(starting(Always), false);
    check("it may restart", &held, "start a#1");
    let attempts = |story: &Story| story.containers.iter().map(|it| it.attempt).collect();
    let of_held: Vec<u32> = attempts(&held);
    assert_eq!(of_held, [1, 2], "no end of it is counted");
    let last = held.status("m").last_termination.clone();
    assert_eq!(last.map(|it| it.exit), Some(ContainerExit::Code(1)));
    let of_made: Vec<u32> = attempts(&rebooted_with(starting(Always), true));
    assert_eq!(of_made, [1, 3]);
}

#[test]
fn a_containers_own_policy_decides_whether_it_comes_back() {
    let story = rebooted(super::story(
        Never,
        "init:a=ok main:m=run main/OnFailure:n=run main/OnFailure:o=ok",
    ));
    check("n may", &story, "start a#1");
    let attempts: Vec<u32> = story.containers.iter().map(|it| it.attempt).collect();
    assert_eq!(attempts, [1, 0, 1, 0]);
}

#[test]
fn no_time_of_the_earlier_boot_is_left() {
    for policy in [Always, OnFailure, Never] {
        let story = rebooted(
            story(policy, "init:a=ok sidecar:s=err main:m=err main:n=run").stopped(
                "n",
                5,
                30,
                StopReason::PodTerminating,
            ),
        );
        for status in &story.containers {
            let terminations = [status.state.termination(), status.last_termination.as_ref()];
            for termination in terminations.into_iter().flatten() {
                assert_eq!(termination.finished_at, Duration::ZERO, "{}", status.name);
                assert_eq!(termination.started_at, None, "{}", status.name);
            }
            assert_eq!(status.stop, None, "{}", status.name);
            assert!(!status.state.is_alive(), "{}", status.name);
        }
    }
}
