use super::*;
use crate::decide::testing::pod;
use crate::model::pod::{EnvVar, HostPathKind, RestartPolicy, Volume, VolumeSource};

const RUNS: Standing = Standing {
    is_over: false,
    has_holdings: false,
};

/// Burstable, with a container that has ended, a sidecar and two that run.
fn shop() -> Pod {
    pod(
        "init {} sidecar {lim memory=16Mi} app {req cpu=1 lim memory=32Mi} app {req cpu=1 lim memory=32Mi}",
    )
}

#[track_caller]
fn changed(edit: impl Fn(&mut Pod), standing: Standing) -> Change {
    let old = shop();
    let mut new = shop();
    edit(&mut new);
    assert_eq!(change(&new, &new, standing), Change::None);
    change(&old, &new, standing)
}

fn in_place(fields: &[&str]) -> Change {
    Change::InPlace(fields.iter().map(ToString::to_string).collect())
}

fn anew(fields: &[&str]) -> Change {
    Change::Anew(fields.iter().map(ToString::to_string).collect())
}

fn amount(text: &str) -> crate::model::quantity::Quantity {
    text.parse().expect("a quantity")
}

#[test]
fn limits_programs_and_labels_change_in_place() {
    let limit = |pod: &mut Pod| {
        let limits = &mut pod.containers[1].resources.limits;
        limits.insert("memory".to_owned(), amount("64Mi"));
    };
    assert_eq!(
        changed(limit, RUNS),
        in_place(&["spec.containers[1].resources"])
    );
    let program = |pod: &mut Pod| {
        pod.containers[0].args = vec!["3602".to_owned()];
        pod.init_containers[1].command = vec!["proxy".to_owned()];
        pod.containers[0].stop_signal = Some(10);
        pod.labels.insert("a".to_owned(), "b".to_owned());
        pod.restart_policy = RestartPolicy::OnFailure;
    };
    assert_eq!(
        changed(program, RUNS),
        in_place(&[
            "metadata.labels",
            "spec.restartPolicy",
            "spec.initContainers[1].command",
            "spec.containers[0].args",
            "spec.containers[0].lifecycle",
        ])
    );
}

#[test]
fn a_container_is_started_anew_for_another_amount_where_its_policy_says_so() {
    const APP: &str = "app {req cpu=1 memory=16Mi lim memory=32Mi}";
    type Restarts = &'static [&'static str];
    let with = |text: &str, restarts: Restarts| {
        let mut pod = pod(text);
        let app = &mut pod.containers[0];
        app.resize_restarts = restarts.iter().map(ToString::to_string).collect();
        pod
    };
    let memory: Restarts = &["memory"];
    for (policy, new, wanted) in [
        (memory, APP, false),
        (memory, "app {req cpu=1 memory=16Mi lim memory=64Mi}", true),
        (memory, "app {req cpu=1 memory=20Mi lim memory=32Mi}", true),
        (memory, "app {req cpu=2 memory=16Mi lim memory=32Mi}", false),
        // Another spelling.
        (
            memory,
            "app {req cpu=1000m memory=16384Ki lim memory=32Mi}",
            false,
        ),
        (&[], "app {req cpu=1 memory=16Mi lim memory=64Mi}", false),
        (
            &["cpu"],
            "app {req cpu=2 memory=16Mi lim memory=32Mi}",
            true,
        ),
        (
            &["cpu"],
            "app {req cpu=1 memory=16Mi lim memory=64Mi}",
            false,
        ),
    ] {
        for before in [policy, &[]] {
            let (old, new) = (with(APP, before), with(new, policy));
            assert_eq!(
                is_restarted(&old, &new, "app0"),
                wanted,
                "{policy:?} {new:?}"
            );
        }
    }
    // Without a limit of its own it has that of its pod.
    let of_pod = |mib: u32| with(&format!("app {{}} pod {{lim memory={mib}Mi}}"), memory);
    assert!(is_restarted(&of_pod(32), &of_pod(64), "app0"));
    assert!(!is_restarted(&of_pod(32), &of_pod(32), "app0"));
    assert!(!is_restarted(&of_pod(32), &of_pod(64), "another"));
}

#[test]
fn an_init_container_that_was_told_another_amount_has_done_its_work() {
    let with = |value: &str| {
        let mut pod = shop();
        pod.init_containers[0].env = vec![EnvVar {
            is_of_resources: true,
            ..EnvVar::new("LIMIT", value)
        }];
        pod
    };
    assert_eq!(
        change(&with("1"), &with("2"), RUNS),
        in_place(&["spec.initContainers[0].env"])
    );
}

#[test]
fn a_policy_changes_in_place() {
    let policy = |pod: &mut Pod| {
        pod.containers[0].resize_restarts = ["memory".to_owned()].into();
    };
    let field = "spec.containers[0].resizePolicy";
    assert_eq!(changed(policy, RUNS), in_place(&[field]));
}

#[test]
fn what_cannot_change_while_the_pod_is_there_begins_anew() {
    type Edit = fn(&mut Pod);
    let cases: [(Edit, &str); 11] = [
        (|it| it.name = "other".to_owned(), "metadata.name"),
        (
            |it| {
                it.volumes.push(Volume {
                    name: "v".to_owned(),
                    source: VolumeSource::HostPath {
                        path: "/v".to_owned(),
                        kind: HostPathKind::Any,
                    },
                });
            },
            "spec.volumes",
        ),
        (|it| drop(it.containers.pop()), "spec.containers"),
        (
            |it| it.containers[0].name = "b".to_owned(),
            "spec.containers[0].name",
        ),
        (
            |it| it.containers[0].run_as_user = Some(1),
            "spec.containers[0].securityContext",
        ),
        (
            |it| it.node_requirements.has_strict_groups = true,
            "what spec requires of its node",
        ),
        (
            |it| it.init_containers[0].args = vec!["1".to_owned()],
            "spec.initContainers[0].args",
        ),
        (
            |it| it.init_containers[1].is_sidecar = false,
            "spec.initContainers[1].restartPolicy",
        ),
        // The limit would stay.
        (
            |it| drop(it.containers[0].resources.limits.remove("memory")),
            "spec.containers[0].resources",
        ),
        (
            |it| it.resources = Some(Resources::default()),
            "spec.resources",
        ),
        (
            |it| {
                let limits = &mut it.containers[0].resources.limits;
                drop(limits.insert("memory".to_owned(), amount("0")));
            },
            "spec.containers[0].resources",
        ),
    ];
    for (edit, field) in cases {
        assert_eq!(changed(edit, RUNS), anew(&[field]));
    }
}

#[test]
fn another_class_begins_anew() {
    let (old, new) = (pod("app {req cpu=1}"), pod("app {}"));
    let field = "spec.containers[0].resources";
    assert_eq!(change(&old, &new, RUNS), anew(&[field]));
}

/// What it has was found for what it requested.
#[test]
fn what_holds_cpus_keeps_its_resources_or_begins_anew() {
    let holds = Standing {
        has_holdings: true,
        ..RUNS
    };
    let request = |pod: &mut Pod| {
        let requests = &mut pod.containers[0].resources.requests;
        requests.insert("cpu".to_owned(), amount("2"));
    };
    assert_eq!(
        changed(request, holds),
        anew(&["spec.containers[0].resources"])
    );
    let program = |pod: &mut Pod| pod.containers[0].args = vec!["1".to_owned()];
    assert_eq!(
        changed(program, holds),
        in_place(&["spec.containers[0].args"])
    );
}

#[test]
fn what_is_over_begins_anew_for_another_program_and_not_for_a_label() {
    let over = Standing {
        is_over: true,
        ..RUNS
    };
    let program = |pod: &mut Pod| pod.containers[0].args = vec!["1".to_owned()];
    assert_eq!(changed(program, over), anew(&["spec.containers[0].args"]));
    let label = |pod: &mut Pod| drop(pod.labels.insert("a".to_owned(), "b".to_owned()));
    assert_eq!(changed(label, over), in_place(&["metadata.labels"]));
}

#[test]
fn a_text_asks_for_the_same_whoever_reads_it() {
    let asks = |edit: fn(&mut Pod)| {
        let mut new = shop();
        edit(&mut new);
        asks_for_the_same(&shop(), &new)
    };
    assert!(asks(|it| {
        it.node_name = Some("other".to_owned());
        it.is_on_host_pid = true;
        it.containers[0].env.push(EnvVar::new("NODE", "other"));
    }));
    assert!(!asks(|it| {
        let limits = &mut it.containers[1].resources.limits;
        limits.insert("memory".to_owned(), amount("64Mi"));
    }));
    assert!(!asks(|it| it.containers[0].name = "other".to_owned()));
    assert!(!asks(|it| {
        let init = it.init_containers.remove(0);
        it.containers.insert(0, init);
    }));
}
