//! Process ids.

use super::*;

const MAX: u64 = 32_768;
const FREE: u64 = 1000;

/// A pass over pods with so many tasks each, while others have `outside`: who may go.
fn pass(state: &mut State, at: u64, outside: u64, pods: &[(&str, u64)]) -> Vec<String> {
    let at = Duration::from_millis(at);
    let of_pods = pods.iter().map(|(_, tasks)| tasks);
    let used = outside + of_pods.sum::<u64>();
    let observation = Observation {
        available: i64::try_from(MAX.saturating_sub(used)).unwrap(),
        capacity: i64::try_from(MAX).unwrap(),
        at: Some(at),
    };
    let reading = |(name, tasks): &(&str, u64)| PodReading {
        facts: Arc::new(PodFacts::bare(PodRef {
            namespace: "default".to_owned(),
            name: (*name).to_owned(),
            uid: PodUid((*name).to_owned()),
        })),
        figures: Some(PodFigures {
            tasks: Some(*tasks),
            ..PodFigures::default()
        }),
        ends_within: None,
    };
    let snapshot = Snapshot {
        at,
        observations: BTreeMap::from([(Signal::PidAvailable, observation)]),
        pods: pods.iter().map(reading).collect(),
        ..Snapshot::default()
    };
    let mut policy = Scene::new(Compat::Ballast, 0, 0).policy;
    policy.thresholds[0].signal = Signal::PidAvailable;
    policy.thresholds[0].amount = Amount::Quantity(Quantity::from_bytes(FREE));
    let decision = synchronize(&policy, state, &snapshot);
    *state = decision.state;
    match decision.action {
        Some(Action::Relieve(relief)) => {
            let candidates = relief.candidates.into_iter();
            candidates.map(|it| it.pod.name).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn pods_with_a_process_each_do_not_go_because_the_host_forks() {
    let mut state = State::new();
    let pods = [("a", 1), ("b", 2), ("c", 30)];
    assert_eq!(pass(&mut state, 0, 20_000, &pods), [""; 0]);
    assert_eq!(pass(&mut state, 10, 32_000, &pods), [""; 0]);
    // One that has its part of what is short may.
    let pods = [("a", 1), ("b", 2), ("c", 300)];
    assert_eq!(pass(&mut state, 20, 32_000, &pods), ["c"]);
}

#[test]
fn a_pod_that_forks_goes_as_ever_and_its_ids_are_nobodys_growth() {
    let mut state = State::new();
    let calm = [("a", 1), ("bomb", 5), ("c", 1)];
    assert_eq!(pass(&mut state, 0, 20_000, &calm), [""; 0]);
    let bomb = [("a", 1), ("bomb", 12_000), ("c", 1)];
    assert_eq!(pass(&mut state, 10, 20_000, &bomb)[0], "bomb");
    // It is gone, and its ids are still taken, which its init has yet to notice.
    for at in [20, 1000, 4000] {
        pass(&mut state, at, 32_000, &[("a", 1), ("c", 1)]);
    }
    let brake = state.brakes.get(FsLayout::One, Signal::PidAvailable);
    let kills = &brake.unwrap().kills;
    assert_eq!(kills.len(), 1);
    assert!(!kills[0].is_in_vain);
}
