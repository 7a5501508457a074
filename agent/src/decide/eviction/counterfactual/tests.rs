use std::borrow::Cow;
use std::sync::Arc;

use super::super::FsLayout;
use super::*;
use crate::model::eviction::{Amount, MemoryUse, NodeReading, PodFacts, StallSource, StallTotals};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 1000 * MIB;

fn policy(mib: i64) -> Policy {
    Policy {
        thresholds: vec![Threshold {
            signal: Signal::MemoryAvailable,
            amount: Amount::Quantity(Quantity::from_units(mib << 20, Format::BinarySi)),
            grace: Duration::ZERO,
            min_reclaim: None,
        }],
        n_known_at_first: 1,
        transition_period: Duration::from_secs(5),
        max_pod_grace: Duration::ZERO,
        limits_local_storage: false,
        layout: FsLayout::One,
        compat: Compat::Ballast,
    }
}

fn pod(name: &str, priority: i32) -> PodRef {
    PodRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: PodUid(format!("{name}-{priority}")),
    }
}

fn reading_of(name: &str, priority: i32, mib: u64) -> PodReading {
    PodReading {
        facts: Arc::new(PodFacts {
            priority,
            termination_grace: Duration::ZERO,
            ..PodFacts::bare(pod(name, priority))
        }),
        figures: Some(PodFigures {
            memory_working_set: Some(mib * MIB),
            ..PodFigures::default()
        }),
        ends_within: None,
    }
}

/// Pods with what they use, MiB, and who had gone because of the second before.
type Second<'a> = (&'a [(&'a str, u64)], Option<&'a str>);

/// One step a second. The recorded policy wants 100 MiB.
fn story(seconds: &[Second<'_>]) -> Vec<Step> {
    let mut state = State::default();
    let mut steps = Vec::new();
    for (n, (pods, gone)) in (0..).zip(seconds) {
        let at = Duration::from_secs(n);
        let used: u64 = pods.iter().map(|(_, mib)| mib * MIB).sum();
        let available = i64::try_from(LIMIT - used).expect("within the limit");
        let snapshot = Snapshot {
            at,
            observations: BTreeMap::from([(
                Signal::MemoryAvailable,
                Observation {
                    available,
                    capacity: 1000 << 20,
                    at: Some(at),
                },
            )]),
            pods: pods
                .iter()
                .map(|(name, mib)| reading_of(name, 0, *mib))
                .collect(),
            ..Snapshot::default()
        };
        let decision = synchronize(&policy(100), &state, &snapshot);
        let done = gone.iter().map(|name| Deed {
            pod: pod(name, 0),
            at: at - Duration::from_secs(1),
            grace: Duration::ZERO,
            gone_at: Some(at),
            freed: None,
        });
        let step = Step {
            woken_by: Cow::Borrowed("timer"),
            state,
            snapshot,
            done: done.collect(),
            decision,
        };
        state = step.decision.state.clone();
        steps.push(step);
    }
    steps
}

fn names(outcome: &Outcome) -> Vec<(&str, u64)> {
    let kills = outcome.kills.iter();
    kills
        .map(|it| (it.pod.name.as_str(), it.at_ms / 1000))
        .collect()
}

fn leak() -> Vec<Step> {
    story(&[
        (&[("web", 300), ("leak", 400)], None),
        (&[("web", 300), ("leak", 500)], None),
        (&[("web", 300), ("leak", 620)], None),
        (&[("web", 300)], Some("leak")),
        (&[("web", 300)], None),
    ])
}

#[test]
fn the_recorded_policy_does_what_was_done() {
    let steps = leak();
    let policy = policy(100);
    let (recorded, played) = (recorded(&policy, &steps), play(&policy, &policy, &steps));
    assert_eq!(names(&recorded), [("leak", 2)]);
    assert_eq!(names(&played), names(&recorded));
    assert_eq!(played.shortages, recorded.shortages);
    let shortage = recorded.shortages.get(&Signal::MemoryAvailable);
    assert_eq!(
        shortage.map(|it| (it.short_ms, it.lowest)),
        Some((1000, 80 << 20))
    );
}

#[test]
fn an_earlier_victim_is_missing_from_what_follows() {
    let played = play(&policy(250), &policy(100), &leak());
    assert_eq!(names(&played), [("leak", 1)]);
    let shortage = played.shortages.get(&Signal::MemoryAvailable);
    assert_eq!(
        shortage.map(|it| (it.short_ms, it.lowest)),
        Some((0, 200 << 20))
    );
}

#[test]
fn a_pod_that_is_spared_goes_on_growing() {
    let played = play(&policy(10), &policy(100), &leak());
    // 110 MiB a second: what was 80 MiB is nothing a second later.
    assert_eq!(names(&played), [("leak", 3)]);
    let shortage = played.shortages.get(&Signal::MemoryAvailable);
    assert_eq!(shortage.map(|it| (it.short_ms, it.lowest)), Some((2000, 0)));
}

#[test]
fn hindsight_knows_the_better_choice_and_the_needless_one() {
    let steps = story(&[
        (&[("big", 500), ("leak", 300)], None),
        (&[("big", 500), ("leak", 350)], None),
        (&[("big", 500), ("leak", 380)], None),
        (&[("big", 200), ("leak", 600)], None),
    ]);
    let played = play(&policy(180), &policy(100), &steps);
    let [kill] = played.kills.as_slice() else {
        panic!("{played:?}");
    };
    assert_eq!((kill.pod.name.as_str(), kill.at_ms), ("big", 1000));
    let regret = kill
        .regret
        .as_ref()
        .map(|it| (it.pod.name.as_str(), it.more));
    assert_eq!(regret, Some(("leak", 100 * MIB)));
    assert!(kill.is_needless, "300 MiB more were free two seconds later");
}

#[test]
fn kubelets_rules_look_every_ten_seconds() {
    let kubelets = Policy {
        compat: Compat::Kubelet,
        ..policy(100)
    };
    let rising: Vec<[(&str, u64); 1]> = (0..15).map(|n| [("leak", 500 + 50 * n)]).collect();
    let steps: Vec<Second<'_>> = rising
        .iter()
        .take(10)
        .map(|it| (it.as_slice(), None))
        .collect();
    let mut seconds = steps;
    let last: &[(&str, u64)] = &[("leak", 960)];
    seconds.extend([(last, None), (last, None)]);
    let steps = story(&seconds);
    assert_eq!(
        names(&play(&kubelets, &policy(100), &steps)),
        [("leak", 10)]
    );
}

/// A leak of 100 MiB a second in a node of 1000 MiB, of which 200 MiB are the kernel's own; the pods
/// wait for memory from the second second on.
fn stalling_leak() -> Vec<Step> {
    let seconds: Vec<Vec<(&str, u64)>> = (0..5)
        .map(|n| vec![("web", 100), ("leak", 200 + 100 * n)])
        .collect();
    let seconds: Vec<Second<'_>> = seconds.iter().map(|it| (it.as_slice(), None)).collect();
    let mut steps = story(&seconds);
    for (step, n) in steps.iter_mut().zip(0..) {
        let used = (300 + 100 * n) * MIB;
        step.snapshot.node = NodeReading {
            at: step.snapshot.at,
            memory_total: LIMIT,
            memory_available: Some(LIMIT - used - 200 * MIB),
            root: Some(MemoryUse {
                usage: used,
                anon: used,
                ..MemoryUse::default()
            }),
            stall: Some(StallTotals {
                source: StallSource::Psi,
                some_us: n * 900_000,
                full_us: Some(n.saturating_sub(1) * 900_000),
            }),
            ..NodeReading::default()
        };
        for pod in &mut step.snapshot.pods {
            let figures = pod.figures.as_mut().expect("figures of every pod");
            figures.memory = Some(MemoryUse {
                usage: figures.memory_working_set.expect("a working set"),
                ..MemoryUse::default()
            });
        }
    }
    steps
}

#[test]
fn memory_is_measured_by_the_method_of_the_rules() {
    let policy = policy(310);
    for (method, expected) in [
        (None, 4),
        (Some(MemoryMethod::WorkingSet), 4),
        (Some(MemoryMethod::Meminfo), 2),
        (Some(MemoryMethod::Least), 2),
    ] {
        let rules = Rules {
            memory_method: method,
            ..Rules::from(&policy)
        };
        let played = play(rules, &policy, &stalling_leak());
        assert_eq!(names(&played), [("leak", expected)], "{method:?}");
    }
}

#[test]
fn a_stall_evicts_where_the_rules_say_so() {
    let policy = policy(10);
    let steps = stalling_leak();
    assert!(play(&policy, &policy, &steps).kills.is_empty());
    let mut stall = StallConfig {
        memory_full_ratio: 0.8,
        duration: Duration::from_secs(2),
        headroom: Amount::Fraction(0.5),
        ..StallConfig::default()
    };
    let played = play(with_stall(&policy, &stall), &policy, &steps);
    assert_eq!(names(&played), [("leak", 3)]);
    assert_eq!(played.kills[0].cause, Some(EvictionCause::Stall.label()));
    stall.dry_run = true;
    let played = play(with_stall(&policy, &stall), &policy, &steps);
    assert!(played.kills.is_empty());
}

fn with_stall<'a>(policy: &'a Policy, stall: &'a StallConfig) -> Rules<'a> {
    Rules {
        stall: Some(stall),
        ..Rules::from(policy)
    }
}
