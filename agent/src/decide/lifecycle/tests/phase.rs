use super::RestartPolicy::{Always, Never, OnFailure};
use super::*;
use crate::model::container::TerminationReason;

#[test]
fn phase_of_a_pod_that_is_to_run() {
    use PodPhase::{Failed, Pending, Running, Succeeded};
    for (policy, pod, expected) in [
        (Always, "main:m=new", Pending),
        (Always, "main:m=starting", Pending),
        (Always, "main:m=run", Running),
        (Always, "main:m=run main:n=new", Pending),
        (Always, "main:m=run main:n=starting", Pending),
        (Always, "main:m=err", Running),
        (Always, "main:m=ok", Running),
        (OnFailure, "main:m=ok", Succeeded),
        (OnFailure, "main:m=err", Running),
        (OnFailure, "main:m=ok main:n=err", Running),
        (OnFailure, "main:m=ok main:n=run", Running),
        (Never, "main:m=ok", Succeeded),
        (Never, "main:m=err", Failed),
        (Never, "main:m=unknown", Failed),
        (Never, "main:m=ok main:n=startfail", Failed),
        (Never, "main:m=err main:n=run", Running),
        (Always, "init:a=new main:m=new", Pending),
        (Always, "init:a=run main:m=new", Pending),
        (Always, "init:a=err main:m=new", Pending),
        (Always, "init:a=ok main:m=new", Pending),
        (Always, "init:a=ok main:m=run", Running),
        (Always, "init:a=new main:m=run", Running),
        (Never, "init:a=err main:m=new", Failed),
        (Never, "sidecar:s=run init:a=err main:m=new", Pending),
        (Always, "sidecar:s=run main:m=new", Pending),
        (Always, "sidecar:s=run main:m=run", Running),
        (Always, "sidecar:s=err main:m=run", Running),
        (Always, "sidecar:s=starting main:m=run", Pending),
        (Always, "main:m=ending", Running),
        (Never, "main:m=ending", Running),
        (Never, "init:a=ending main:m=new", Pending),
        (Never, "main:m=ok sidecar:s=ending", Running),
        (Always, "main/Never:m=err main/OnFailure:n=ok", Failed),
        (Always, "main/Never:m=ok main/OnFailure:n=ok", Succeeded),
        (Never, "main:m=err main/OnFailure:n=err", Running),
        (Always, "init/Never:a=err main:m=new", Failed),
        (Never, "init/OnFailure:a=err main:m=new", Pending),
        (Never, "sidecar:s=run main:m=ok", Running),
        (Never, "sidecar:s=err main:m=ok", Succeeded),
        (Never, "sidecar:s=ok main:m=err", Failed),
    ] {
        let decision = story(policy, pod).decide();
        assert_eq!(decision.phase, expected, "{policy:?} {pod}");
        assert_eq!(
            decision.is_finished,
            expected.is_terminal(),
            "{policy:?} {pod}"
        );
    }
}

#[test]
fn a_restart_does_not_send_a_pod_back_to_pending() {
    let previous = termination(ContainerExit::Code(1));
    for pod in [
        "main:m=starting main:n=run",
        "sidecar:s=run main:m=starting",
        "init:a=ok main:m=starting",
    ] {
        let story = story(Always, pod).with("m", |it| it.last_termination = Some(previous.clone()));
        assert_eq!(story.decide().phase, PodPhase::Running, "{pod}");
    }
}

#[test]
fn phase_of_a_pod_that_is_to_go() {
    use DeletionReason::{Evicted, NodeShutdown, Preempted, Removed};
    use PodPhase::{Failed, Pending, Running, Succeeded};
    for (reason, pod, expected) in [
        (Removed, "main:m=run", Running),
        (Removed, "main:m=ok", Succeeded),
        (Removed, "main:m=err", Failed),
        (Removed, "main:m=new", Failed),
        (Removed, "main:m=ok main:n=run", Running),
        (Removed, "sidecar:s=run main:m=ok", Running),
        (Removed, "init:a=run main:m=new", Pending),
        (Evicted, "main:m=run", Running),
        (Evicted, "main:m=ok", Failed),
        (Preempted, "main:m=ok", Failed),
        (NodeShutdown, "main:m=ok", Failed),
    ] {
        let decision = story(Always, pod).deleted_for(30, reason).decide();
        assert_eq!(decision.phase, expected, "{reason:?} {pod}");
        assert_eq!(decision.is_finished, expected.is_terminal(), "{pod}");
    }
}

#[test]
fn conditions_follow_init_containers_and_readiness() {
    // initialized, ready
    for (policy, pod, initialized, ready) in [
        (Always, "main:m=new", true, false),
        (Always, "main:m=run", true, true),
        (Always, "main:m=run main:n=err", true, false),
        (Always, "init:a=run main:m=new", false, false),
        (Always, "init:a=err main:m=new", false, false),
        (Always, "init:a=ok main:m=new", true, false),
        (Always, "init:a=new main:m=run", true, true),
        (Always, "sidecar:s=starting main:m=new", false, false),
        (Always, "sidecar:s=run main:m=new", true, false),
        (Always, "sidecar:s=run main:m=run", true, true),
        (Always, "sidecar:s=err main:m=run", true, false),
        (Never, "main:m=ok", true, false),
        (Never, "sidecar:s=ok main:m=ok", true, false),
        (Never, "init:a=err main:m=new", false, false),
    ] {
        let conditions = story(policy, pod).decide().conditions;
        assert_eq!(conditions.initialized, initialized, "{pod}: initialized");
        assert_eq!(conditions.ready, ready, "{pod}: ready");
        assert_eq!(
            conditions.containers_ready, ready,
            "{pod}: containers ready"
        );
    }
}

#[test]
fn a_pod_that_is_to_go_stays_initialized() {
    for (pod, initialized) in [
        ("init:a=ok sidecar:s=ok main:m=run", true),
        ("init:a=ok sidecar:s=ok main:m=ok", true),
        ("init:a=run main:m=new", false),
        ("sidecar:s=ok main:m=new", false),
    ] {
        let conditions = story(Always, pod)
            .deleted_for(30, DeletionReason::Evicted)
            .decide()
            .conditions;
        assert_eq!(conditions.initialized, initialized, "{pod}");
    }
}

#[test]
fn a_pod_without_main_containers_is_never_over_by_itself() {
    for (pod, expected) in [("init:a=new", "start a#0"), ("init:a=ok", ""), ("", "")] {
        let story = story(Never, pod);
        check(pod, &story, expected);
        assert_eq!(story.decide().phase, PodPhase::Pending, "{pod}");
        assert!(story.deleted(30).decide().is_finished, "{pod}");
    }
}

#[test]
fn a_waiting_container_says_what_it_waits_for() {
    let crash_loop = Waiting::CrashLoopBackOff {
        delay: secs(20),
        until: FINISHED + secs(20),
    };
    let (initializing, creating) = (Waiting::PodInitializing, Waiting::ContainerCreating);
    for (policy, pod, name, expected) in [
        (Always, "main:m=new", "m", Some(creating)),
        (Always, "main:m=starting", "m", Some(creating)),
        (Always, "main:m=run", "m", None),
        (Always, "main:m=err", "m", Some(crash_loop)),
        (Always, "main:m=ok", "m", Some(crash_loop)),
        (OnFailure, "main:m=ok main:n=run", "m", None),
        (Never, "main:m=err main:n=run", "m", None),
        (Always, "init:a=run main:m=new", "m", Some(initializing)),
        (Always, "init:a=new main:m=new", "a", Some(creating)),
        (
            Always,
            "init:a=run init:b=new main:m=new",
            "b",
            Some(initializing),
        ),
        (Always, "init:a=err main:m=new", "a", Some(crash_loop)),
        (Always, "init:a=ok main:m=run", "a", None),
        (Always, "sidecar:s=err main:m=run", "s", Some(crash_loop)),
        (Never, "sidecar:s=ok main:m=run", "s", Some(crash_loop)),
    ] {
        let mut story = story(policy, pod);
        // One restart at STARTED, with 20 s to wait after it: some are held back, some not.
        let entry = |it: &Container| {
            let key = it.name.clone();
            let value = BackoffEntry {
                spec_hash: spec_hash(it),
                resources: Some(it.resources.clone()),
                delay: secs(20),
                last_start: STARTED,
            };
            (key, serde_json::to_value(value).expect("plain data"))
        };
        let all = story
            .pod
            .init_containers
            .iter()
            .chain(&story.pod.containers);
        let json = serde_json::Value::Object(all.map(entry).collect());
        story.backoff = serde_json::from_value(json).expect("back-off state");
        let reports = story.decide().containers;
        let report = reports.iter().find(|it| it.name == name).expect("reported");
        assert_eq!(report.waiting, expected, "{pod}: {name}");
    }
}

#[test]
fn a_termination_has_the_code_and_reason_of_the_api() {
    use ContainerExit::{Code, Signal, StartFailed, Unknown};
    for (exit, oom_killed, code, reason) in [
        (Code(0), false, 0, TerminationReason::Completed),
        (Code(3), false, 3, TerminationReason::Error),
        (Code(255), false, 255, TerminationReason::Error),
        (Signal(15), false, 143, TerminationReason::Error),
        (Signal(9), false, 137, TerminationReason::Error),
        (Signal(9), true, 137, TerminationReason::OOMKilled),
        (
            Unknown,
            false,
            137,
            TerminationReason::ContainerStatusUnknown,
        ),
        (Unknown, true, 137, TerminationReason::OOMKilled),
        (StartFailed, false, 128, TerminationReason::StartError),
    ] {
        let termination = Termination {
            oom_killed,
            ..termination(exit)
        };
        assert_eq!(exit.exit_code(), code, "{exit:?}");
        assert_eq!(termination.reason(), reason, "{exit:?} {oom_killed}");
    }
    assert_eq!(TerminationReason::OOMKilled.to_string(), "OOMKilled");
}

#[test]
fn records_and_decisions_survive_json() {
    let mut story = story(Always, "init:a=ok sidecar:s=starting main:m=err main:n=run").stopped(
        "n",
        1,
        30,
        StopReason::SpecChanged,
    );
    story.step();
    let json = serde_json::to_string(&story.containers).expect("plain data");
    let back: Vec<ContainerStatus> = serde_json::from_str(&json).expect("the same data");
    assert_eq!(back, story.containers);
    let json = serde_json::to_string(&story.backoff).expect("plain data");
    let back: BackoffState = serde_json::from_str(&json).expect("the same data");
    assert_eq!(back, story.backoff);
    let decision = serde_json::to_value(story.later(30).decide()).expect("plain data");
    assert_eq!(decision["phase"], "Pending");
}
