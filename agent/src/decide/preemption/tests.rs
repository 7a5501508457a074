use super::*;
use crate::decide::predicates::Shortage;
use crate::decide::testing;
use crate::model::pod::PodOrigin;
use crate::model::random::Random;

/// See [`testing::pod`].
fn pod(name: &str, spec: &str) -> Pod {
    Pod {
        name: name.to_owned(),
        ..testing::pod(spec)
    }
}

fn critical() -> Pod {
    Pod {
        origin: PodOrigin::Manifest,
        ..pod("critical", "app {}")
    }
}

fn short(amounts: &[(&str, i64)]) -> Vec<Failure> {
    let shortage = |(resource, missing): &(&str, i64)| {
        Failure::InsufficientResource(Shortage {
            resource: (*resource).to_owned(),
            requested: *missing,
            used: 0,
            capacity: 0,
        })
    };
    amounts.iter().map(shortage).collect()
}

/// Names of the victims, or the message.
fn outcome(preemptor: &Pod, failures: &[Failure], active: &[Pod]) -> Result<Vec<String>, String> {
    match resolve(preemptor, failures, active, Compat::Kubelet) {
        Ok(victims) => Ok(victims.iter().map(|it| it.name.clone()).collect()),
        Err(rejection) => Err(rejection.to_string()),
    }
}

#[track_caller]
fn check(missing: &[(&str, i64)], active: &[Pod], expected: &[&str]) {
    let victims = outcome(&critical(), &short(missing), active);
    let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
    assert_eq!(victims, Ok(expected));
}

const MIB: i64 = 1 << 20;

#[test]
fn the_pod_that_is_nearest_goes_and_of_two_that_suffice_the_smaller() {
    let of = |name: &str, cpu: &str, memory: &str| {
        pod(name, &format!("app {{req cpu={cpu} memory={memory}}}"))
    };
    let [b1, b2, b3] = [
        of("b1", "0", "100Mi"),
        of("b2", "0", "250Mi"),
        of("b3", "0", "200Mi"),
    ];
    check(&[("memory", 200 * MIB)], &[b1, b2, b3], &["b3"]);
    let [b1, b2, b3] = [
        of("b1", "0", "200Mi"),
        of("b2", "500m", "100Mi"),
        of("b3", "250m", "150Mi"),
    ];
    check(
        &[("memory", 200 * MIB), ("cpu", 500)],
        &[b1, b2, b3],
        &["b2", "b3"],
    );
}

#[test]
fn a_class_goes_only_for_what_the_lower_ones_do_not_free() {
    let best_effort = pod("best-effort", "app {}");
    let burstable = pod("burstable", "app {req memory=100Mi}");
    let guaranteed = pod(
        "guaranteed",
        "app {req cpu=1 memory=100Mi lim cpu=1 memory=100Mi}",
    );
    let all = [guaranteed, burstable, best_effort];
    check(&[("memory", 100 * MIB)], &all, &["burstable"]);
    check(&[("memory", 101 * MIB)], &all, &["burstable", "guaranteed"]);
    check(&[("pods", 1)], &all, &["best-effort"]);
    check(
        &[("pods", 3)],
        &all,
        &["best-effort", "burstable", "guaranteed"],
    );
}

#[test]
fn of_equals_the_later_one_goes() {
    let twins = ["a", "b", "c"].map(|it| pod(it, "app {req memory=100Mi}"));
    check(&[("memory", 50 * MIB)], &twins, &["c"]);
    check(&[("memory", 150 * MIB)], &twins, &["c", "b"]);
}

#[test]
fn a_critical_pod_goes_for_none_but_a_critical_pod_of_higher_priority() {
    let with = |name: &str, priority| Pod {
        priority,
        ..pod(name, "app {req memory=100Mi}")
    };
    let of_manifest = |it: Pod| Pod {
        origin: PodOrigin::Manifest,
        ..it
    };
    let failures = short(&[("memory", MIB)]);
    let goes = |preemptor: &Pod, victim: Pod| outcome(preemptor, &failures, &[victim]).is_ok();
    assert!(goes(&critical(), with("high", Some(1_999_999_999))));
    assert!(!goes(&critical(), with("system", Some(2_000_000_000))));
    assert!(!goes(&critical(), of_manifest(with("static", None))));
    let of_priority = Pod {
        priority: Some(10),
        ..critical()
    };
    assert!(goes(&of_priority, of_manifest(with("static", Some(9)))));
    assert!(!goes(&of_priority, of_manifest(with("static", Some(10)))));
}

/// As eviction counts them; kubelet knows no number of a class that no API server has put there.
#[test]
fn classes_that_every_cluster_has_count_by_their_numbers() {
    let of_class = |name: &str, class: &str| Pod {
        priority_class_name: Some(class.to_owned()),
        ..pod(name, "app {req memory=100Mi}")
    };
    let of_node = of_class("node", "system-node-critical");
    let of_cluster = of_class("cluster", "system-cluster-critical");
    let failures = short(&[("memory", MIB)]);
    for (compat, preemptor, victim, goes) in [
        (Compat::Ballast, &of_node, &of_cluster, true),
        (Compat::Ballast, &of_cluster, &of_node, false),
        (Compat::Ballast, &of_node, &of_node, false),
        (Compat::Kubelet, &of_node, &of_cluster, false),
    ] {
        let victims = resolve(preemptor, &failures, [victim], compat);
        assert_eq!(
            victims.is_ok(),
            goes,
            "{} for {}",
            victim.name,
            preemptor.name
        );
    }
}

#[test]
fn overhead_counts_beside_a_request_and_pod_level_requests_in_place_of_the_containers() {
    let over = pod(
        "over",
        "app {req memory=60Mi} overhead {req memory=40Mi cpu=1}",
    );
    check(
        &[("memory", 100 * MIB)],
        std::slice::from_ref(&over),
        &["over"],
    );
    let failures = short(&[("cpu", 1)]);
    assert!(outcome(&critical(), &failures, &[over]).is_err());

    let own = pod("own", "pod {req memory=50Mi} app {req memory=40Mi cpu=1}");
    check(
        &[("memory", 50 * MIB)],
        std::slice::from_ref(&own),
        &["own"],
    );
    assert!(outcome(&critical(), &failures, &[own]).is_err());
}

#[test]
fn what_cannot_be_freed_is_told_in_kubelets_words() {
    let small = [pod("small", "app {req memory=60Mi cpu=1}")];
    let failures = short(&[("cpu", 500), ("memory", 100 * MIB)]);
    let message = "Unexpected error while attempting to recover from admission failure: preemption: \
                   error finding a set of pods to preempt: no set of running pods found to reclaim \
                   resources: [(res: memory, q: 41943040), ]";
    assert_eq!(
        outcome(&critical(), &failures, &small),
        Err(message.to_owned())
    );
    let rejection =
        resolve(&critical(), &failures, &small, Compat::Kubelet).expect_err("too small");
    assert_eq!(rejection.reason(), "UnexpectedAdmissionError");
}

#[test]
fn nobody_goes_where_something_else_speaks_against_the_pod() {
    let victim = [pod("victim", "app {req cpu=1}")];
    let mut failures = short(&[("cpu", 1)]);
    failures.push(Failure::NodePorts);
    let decisive = |preemptor: &Pod, failures: &[Failure]| {
        let rejection =
            resolve(preemptor, failures, &victim, Compat::Kubelet).expect_err("refused");
        rejection.reason().into_owned()
    };
    assert_eq!(decisive(&critical(), &failures), "NodePorts");
    let other = pod("other", "app {}");
    assert_eq!(decisive(&other, &failures), "OutOfcpu", "the first one");
    assert_eq!(outcome(&critical(), &[], &victim), Ok(Vec::new()));
}

/// On random pods: the victims free enough, unless all that may go do not, and a pod that frees nothing
/// stays.
#[test]
fn victims_free_what_is_missing_and_nobody_goes_for_nothing() {
    let mut random = Random(0x5eed);
    let mut n_victims = 0;
    for _ in 0..2000 {
        let mut active = Vec::new();
        for i in 0..1 + random.below(8) {
            let amounts = format!(
                "cpu={}m memory={}Mi",
                random.below(4) * 100,
                random.below(4) * 50
            );
            let spec = match random.below(3) {
                0 => "app {}".to_owned(),
                1 => format!("app {{req {amounts}}}"),
                _ => format!("app {{req {amounts} lim {amounts}}}"),
            };
            let mut it = pod(&format!("p{i}"), &spec);
            if random.below(4) == 0 {
                it.priority = Some(2_000_000_000);
            }
            active.push(it);
        }
        let wanted = |n: u64| i64::try_from(n).expect("small");
        let missing = [
            ("cpu", wanted(1 + random.below(800))),
            ("memory", wanted(1 + random.below(400)) * MIB),
        ];
        let freed = |pods: &[&Pod], resource: &str| -> i64 {
            pods.iter()
                .map(|it| Candidate::new(it).request(resource))
                .sum()
        };
        let is_enough = |pods: &[&Pod]| {
            missing
                .iter()
                .all(|(resource, amount)| freed(pods, resource) >= *amount)
        };
        let preemptable: Vec<&Pod> = active.iter().filter(|it| !it.is_critical()).collect();
        match resolve(&critical(), &short(&missing), &active, Compat::Kubelet) {
            Err(_) => assert!(!is_enough(&preemptable)),
            Ok(victims) => {
                assert!(victims.iter().all(|it| !it.is_critical()));
                assert!(is_enough(&victims));
                assert!(
                    victims
                        .iter()
                        .all(|it| qos_class(it) != QosClass::BestEffort)
                );
                n_victims += victims.len();
            }
        }
    }
    assert!(n_victims > 1000, "{n_victims}");
}
