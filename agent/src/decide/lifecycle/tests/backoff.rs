use super::RestartPolicy::Always;
use super::*;

/// Crashes `m` right after each start and returns, per restart, how long it waited.
fn waits(story: &mut Story, n: usize, lasts: Duration) -> Vec<u64> {
    let mut waits = Vec::new();
    for _ in 0..n {
        let finished_at = story.now + lasts;
        story.now = finished_at;
        story.status("m").state = ContainerState::Exited(Termination {
            started_at: Some(finished_at - lasts),
            finished_at,
            exit: ContainerExit::Code(1),
            oom_killed: false,
            message: None,
        });
        while text(&story.step().actions).is_empty() {
            story.now = story.decide().next_wake.expect("a start lies ahead");
        }
        waits.push((story.now - finished_at).as_secs());
    }
    waits
}

#[test]
fn waits_double_from_ten_seconds_to_five_minutes() {
    let mut story = story(Always, "main:m=run");
    assert_eq!(
        waits(&mut story, 9, secs(1)),
        [0, 10, 20, 40, 80, 160, 300, 300, 300]
    );
    assert_eq!(story.status("m").attempt, 9);
}

#[test]
fn waits_start_anew_after_an_instance_of_more_than_ten_minutes() {
    let mut story = story(Always, "main:m=run");
    waits(&mut story, 4, secs(1));
    assert_eq!(
        waits(&mut story, 1, secs(600)),
        [80],
        "ten minutes are not more"
    );
    assert_eq!(waits(&mut story, 1, secs(601)), [0]);
    assert_eq!(waits(&mut story, 2, secs(1)), [10, 20]);
}

#[test]
fn a_configured_maximum_caps_the_first_wait_too() {
    for (max, expected) in [
        (secs(30), [0, 10, 20, 30, 30]),
        (secs(4), [0, 4, 4, 4, 4]),
        (Duration::ZERO, [0, 1, 1, 1, 1]),
        (secs(3_600), [0, 10, 20, 40, 80]),
    ] {
        let mut story = story(Always, "main:m=run");
        story.settings.backoff = BackoffPolicy::with_max(max);
        assert_eq!(waits(&mut story, 5, secs(1)), expected, "max {max:?}");
    }
}

#[test]
fn the_wait_counts_from_the_end_and_names_the_time_to_look_again() {
    let mut story = story(Always, "main:m=run");
    waits(&mut story, 2, secs(1));
    story.now += secs(5);
    story.status("m").state = ContainerState::Exited(Termination {
        started_at: None,
        finished_at: story.now - secs(3),
        exit: ContainerExit::StartFailed,
        oom_killed: false,
        message: Some("no such file".to_owned()),
    });
    check("17 s to go", &story, "");
    assert_eq!(story.decide().next_wake, Some(story.now + secs(17)));
    story.now += secs(17);
    check("over", &story, "start m#3");
}

#[test]
fn a_new_definition_has_a_clean_record() {
    let mut story = story(Always, "main:m=run");
    waits(&mut story, 5, secs(1));
    story.pod.containers[0].args.push("fixed".to_owned());
    assert_eq!(waits(&mut story, 3, secs(1)), [0, 10, 20]);
}

/// They may be why it kept ending.
#[test]
fn other_resources_have_a_clean_record_and_end_nothing() {
    let mut story = story(Always, "main:m=run");
    waits(&mut story, 5, secs(1));
    let limits = |story: &mut Story, memory: &str| {
        let limit = memory.parse().expect("a quantity");
        let limits = &mut story.pod.containers[0].resources.limits;
        limits.insert("memory".to_owned(), limit);
    };
    story.status("m").state = ContainerState::Exited(Termination {
        finished_at: story.now,
        ..termination(ContainerExit::Code(1))
    });
    check("it waits", &story, "");
    limits(&mut story, "64Mi");
    check("no longer", &story, "start m#6");
    assert_eq!(waits(&mut story, 3, secs(1)), [0, 10, 20]);
    story.status("m").state = ContainerState::Running {
        started_at: story.now,
    };
    limits(&mut story, "128Mi");
    check("it runs on", &story, "");
}

#[test]
fn a_record_without_resources_counts_for_all() {
    let mut story = story(Always, "main:m=run");
    waits(&mut story, 3, secs(1));
    let mut json = serde_json::to_value(&story.backoff).expect("plain data");
    let entry = json["m"].as_object_mut().expect("an entry");
    assert!(entry.remove("resources").is_some());
    story.backoff = serde_json::from_value(json).expect("an earlier record");
    assert_eq!(waits(&mut story, 1, secs(1)), [40]);
}

#[test]
fn containers_wait_apart() {
    let mut story = story(Always, "main:m=run main:n=run");
    waits(&mut story, 4, secs(1));
    let now = story.now;
    story.status("n").state = ContainerState::Exited(Termination {
        started_at: Some(now),
        finished_at: now,
        exit: ContainerExit::Code(0),
        oom_killed: false,
        message: None,
    });
    assert_eq!(text(&story.step().actions), "start n#1");
    assert_eq!(story.backoff.entry("n").map(|it| it.delay), Some(secs(10)));
    assert_eq!(story.backoff.entry("m").map(|it| it.delay), Some(secs(80)));
    assert_eq!(story.backoff.entry("o"), None);
}
