use super::RestartPolicy::{Always, Never, OnFailure};
use super::*;
use crate::model::admission::{Refusal, RefusalReason};

#[test]
fn init_containers_run_one_after_the_other_and_main_containers_after_them() {
    for (case, policy, pod, expected) in [
        (
            "no init container",
            Always,
            "main:m=new main:n=new",
            "start m#0, start n#0",
        ),
        (
            "first",
            Always,
            "init:a=new init:b=new main:m=new",
            "start a#0",
        ),
        ("starting", Always, "init:a=starting main:m=new", ""),
        ("running", Always, "init:a=run init:b=new main:m=new", ""),
        (
            "next",
            Always,
            "init:a=ok init:b=new main:m=new",
            "start b#0",
        ),
        (
            "last done",
            Always,
            "init:a=ok init:b=ok main:m=new",
            "start m#0",
        ),
        (
            "failed, Always",
            Always,
            "init:a=ok init:b=err main:m=new",
            "start b#1",
        ),
        (
            "failed, OnFailure",
            OnFailure,
            "init:a=err main:m=new",
            "start a#1",
        ),
        ("failed, Never", Never, "init:a=err main:m=new", ""),
        (
            "end unknown, Always",
            Always,
            "init:a=unknown main:m=new",
            "start a#1",
        ),
        ("end unknown, Never", Never, "init:a=unknown main:m=new", ""),
        (
            "no start, Always",
            Always,
            "init:a=startfail main:m=new",
            "start a#1",
        ),
    ] {
        check(case, &story(policy, pod), expected);
    }
}

#[test]
fn init_containers_do_not_run_again_when_their_records_are_lost() {
    for (case, pod, expected) in [
        ("a main container runs", "init:a=new main:m=run", ""),
        (
            "a main container starts",
            "init:a=new init:b=new main:m=starting main:n=new",
            "start n#0",
        ),
        (
            "a later one has begun",
            "init:a=new init:b=ok main:m=new",
            "start m#0",
        ),
        ("a later one runs", "init:a=new init:b=run main:m=new", ""),
        (
            "a main container failed, init done",
            "init:a=new init:b=ok main:m=err",
            "start m#1",
        ),
        (
            "a failed init record under a running main container",
            "init:a=err main:m=run",
            "",
        ),
    ] {
        check(case, &story(Always, pod), expected);
    }
}

#[test]
fn a_pod_with_lost_init_records_and_no_main_container_alive_begins_again() {
    check(
        "as after a lost sandbox",
        &story(Always, "init:a=new main:m=err"),
        "start a#0",
    );
}

#[test]
fn sidecars_start_in_order_among_init_containers() {
    for (case, pod, expected) in [
        ("first", "sidecar:s=new main:m=new", "start s#0"),
        (
            "starting is not started",
            "sidecar:s=starting main:m=new",
            "",
        ),
        ("running is enough", "sidecar:s=run main:m=new", "start m#0"),
        (
            "before an init container",
            "sidecar:s=run init:a=new main:m=new",
            "start a#0",
        ),
        (
            "after an init container",
            "init:a=ok sidecar:s=new main:m=new",
            "start s#0",
        ),
        ("two", "sidecar:s=run sidecar:t=new main:m=new", "start t#0"),
        (
            "down before the main containers begin",
            "sidecar:s=ok main:m=new",
            "start s#1",
        ),
    ] {
        check(case, &story(Always, pod), expected);
    }
}

#[test]
fn sidecars_are_kept_running_under_every_policy() {
    for policy in [Always, OnFailure, Never] {
        for (case, pod, expected) in [
            ("exit 0", "sidecar:s=ok main:m=run", "start s#1"),
            ("exit 1", "sidecar:s=err main:m=run", "start s#1"),
            ("record lost", "sidecar:s=new main:m=run", "start s#0"),
            (
                "while an init container runs",
                "sidecar:s=err init:a=run main:m=new",
                "start s#1",
            ),
            (
                "beside the next init container",
                "sidecar:s=err init:a=ok init:b=new main:m=new",
                "start s#1, start b#0",
            ),
            ("while starting", "sidecar:s=starting main:m=run", ""),
        ] {
            check(
                &format!("{policy:?}: {case}"),
                &story(policy, pod),
                expected,
            );
        }
    }
}

#[test]
fn main_containers_restart_by_policy() {
    for (exit, always, on_failure, never) in [
        ("ok", "start m#1", "", ""),
        ("err", "start m#1", "start m#1", ""),
        ("unknown", "start m#1", "start m#1", ""),
        ("startfail", "start m#1", "start m#1", ""),
    ] {
        let pod = format!("main:m={exit} main:n=run");
        check(exit, &story(Always, &pod), always);
        check(exit, &story(OnFailure, &pod), on_failure);
        check(exit, &story(Never, &pod), never);
    }
}

#[test]
fn a_containers_own_policy_goes_before_the_pods() {
    for (case, policy, pod, expected) in [
        ("main, Always", Never, "main/Always:m=ok", "start m#1"),
        (
            "main, OnFailure",
            Never,
            "main/OnFailure:m=err main/OnFailure:n=ok",
            "start m#1",
        ),
        ("main, Never", Always, "main/Never:m=err main:n=run", ""),
        (
            "init, OnFailure",
            Never,
            "init/OnFailure:a=err main:m=new",
            "start a#1",
        ),
        ("init, Never", Always, "init/Never:a=err main:m=new", ""),
        (
            "one main container keeps the pod",
            Never,
            "sidecar:s=run main:m=err main/OnFailure:n=err",
            "start n#1",
        ),
    ] {
        check(case, &story(policy, pod), expected);
    }
}

#[test]
fn nothing_follows_a_container_whose_processes_are_not_all_gone() {
    for (case, pod, expected) in [
        ("restart", "main:m=ending", "kill m"),
        ("init order", "init:a=ending main:m=new", "kill a"),
        ("sidecar", "sidecar:s=ending main:m=run", "kill s"),
        (
            "sidecar before the next",
            "sidecar:s=ending init:a=new main:m=new",
            "kill s",
        ),
    ] {
        check(case, &story(Always, pod), expected);
    }
}

#[test]
fn a_main_container_that_never_ran_starts_under_every_policy() {
    for policy in [Always, OnFailure, Never] {
        check(
            "m has ended, n was not reached",
            &story(policy, "main:m=ok main:n=new").with("m", |it| it.attempt = 4),
            if policy == Always {
                "start m#5, start n#0"
            } else {
                "start n#0"
            },
        );
    }
}

#[test]
fn nothing_starts_in_a_pod_that_has_finished() {
    for (case, policy, pod) in [
        ("OnFailure, all succeeded", OnFailure, "main:m=ok main:n=ok"),
        ("Never, one failed", Never, "main:m=ok main:n=err"),
        ("sidecar went first", Never, "sidecar:s=err main:m=ok"),
        (
            "init container failed for good",
            Never,
            "sidecar:s=err init:a=err main:m=new",
        ),
    ] {
        let story = story(policy, pod);
        check(case, &story, "");
        assert!(story.decide().is_finished, "{case}");
        assert_eq!(story.decide().next_wake, None, "{case}");
    }
}

#[test]
fn records_are_found_by_name_in_any_order() {
    let mut mixed = story(Always, "init:a=ok sidecar:s=run main:m=new");
    let expected = mixed.decide();
    mixed.containers.reverse();
    assert_eq!(mixed.decide(), expected);
    mixed.containers.clear();
    check(
        "no records at all",
        &story(Always, "init:a=new main:m=new"),
        "start a#0",
    );
    assert_eq!(text(&mixed.decide().actions), "start a#0");
}

#[test]
fn a_start_carries_the_hash_of_the_definition_as_it_is_now() {
    let story = story(Always, "main:m=err").changed("m");
    let [
        ContainerAction::Start {
            spec_hash: hash, ..
        },
    ] = &story.decide().actions[..]
    else {
        panic!("one start is expected");
    };
    assert_eq!(*hash, spec_hash(&story.pod.containers[0]));
}

#[test]
fn a_changed_definition_replaces_the_running_container() {
    for (case, pod, name, expected) in [
        ("main", "main:m=run main:n=run", "m", "term m 30s"),
        ("sidecar", "sidecar:s=run main:m=run", "s", "term s 30s"),
        (
            "sidecar while the next one is due",
            "sidecar:s=run main:m=new",
            "s",
            "start m#0, term s 30s",
        ),
        ("init finishes first", "init:a=run main:m=new", "a", ""),
        ("a start under way", "main:m=starting", "m", ""),
        ("ended before", "main:m=ok main:n=run", "m", ""),
    ] {
        check(case, &story(OnFailure, pod).changed(name), expected);
    }
}

#[test]
fn a_replaced_container_comes_back_whatever_the_policy() {
    for policy in [Always, OnFailure, Never] {
        let story =
            story(policy, "main:m=ok")
                .changed("m")
                .stopped("m", 10, 30, StopReason::SpecChanged);
        check(&format!("{policy:?}"), &story, "start m#1");
    }
}

#[test]
fn an_instance_of_unknown_definition_is_left_alone() {
    let story = story(Always, "main:m=run").with("m", |it| it.spec_hash = None);
    check("adopted without its hash", &story, "");
}

type Change = fn(&mut Container);

#[test]
fn spec_hash_changes_with_what_a_process_gets_at_its_start() {
    let base = container("m", false);
    let hash = spec_hash(&base);
    // Pinned: another value restarts every container on the next upgrade.
    assert_eq!(hash.to_string(), "2b9f94fb22b61b2f");
    let changes: [(&str, Change); 8] = [
        ("name", |it| it.name = "n".to_owned()),
        ("image", |it| it.image = "other".to_owned()),
        ("command", |it| {
            it.command = vec!["ru".to_owned(), "n".to_owned()]
        }),
        ("moved to args", |it| {
            it.args = std::mem::take(&mut it.command);
        }),
        ("env", |it| {
            it.env.push(crate::model::pod::EnvVar::new("A", ""));
        }),
        ("working directory", |it| {
            it.working_dir = Some("/".to_owned())
        }),
        ("empty working directory", |it| {
            it.working_dir = Some(String::new())
        }),
        ("mount", |it| {
            it.volume_mounts.push(("v".to_owned(), "/v".to_owned()));
        }),
    ];
    let mut seen = vec![hash.clone()];
    for (case, change) in changes {
        let mut changed = base.clone();
        change(&mut changed);
        let hash = spec_hash(&changed);
        assert!(!seen.contains(&hash), "{case}");
        seen.push(hash);
    }
    let mut resized = base.clone();
    let cpu = crate::model::quantity::Quantity::from_milli(500);
    resized.resources.limits.insert("cpu".to_owned(), cpu);
    assert_eq!(spec_hash(&resized), hash, "resources change in place");
}

#[test]
fn nothing_starts_before_admission() {
    let story = story(Always, "init:a=new main:m=new").admission(Admission::Open);
    check("open", &story, "");
    let decision = story.decide();
    assert_eq!(decision.phase, PodPhase::Pending);
    assert!(!decision.is_finished);
    assert_eq!(decision.next_wake, None);
}

#[test]
fn a_pod_that_is_held_keeps_what_runs() {
    let story = story(Always, "main:m=run main:n=err").admission(Admission::Open);
    check("held", &story, "");
    assert_eq!(story.decide().phase, PodPhase::Running);
}

#[test]
fn a_refused_pod_has_failed_and_starts_nothing() {
    let refused = Admission::Refused(Refusal {
        reason: RefusalReason::TopologyAffinityError,
        message: "no".to_owned(),
        container: None,
    });
    for always in [Always, Never] {
        let story = story(always, "init:a=new sidecar:s=new main:m=new").admission(refused.clone());
        check("refused", &story, "");
        let decision = story.decide();
        assert_eq!(decision.phase, PodPhase::Failed);
        assert!(decision.is_finished);
    }
    let story = story(Always, "main:m=run").admission(refused);
    check("refused while it runs", &story, "term m 30s");
}
