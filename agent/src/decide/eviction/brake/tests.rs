#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

mod disk;
mod pids;

use super::super::{Action, BlockedReason, Decision, FsLayout, Policy, State, synchronize};
use super::*;
use crate::config::Compat;
use crate::model::eviction::{
    Amount, MemoryUse, NodeReading, Observation, PodFacts, PodFigures, PodReading, Signal,
    Threshold,
};
use crate::model::quantity::Quantity;
use crate::model::record::PodRef;
use std::collections::BTreeMap;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 16 << 30;
const THRESHOLD: u64 = 100 * MIB;

/// A node whose pods and rest use what they are told to; what a pod uses is free when it is gone.
struct Scene {
    policy: Policy,
    state: State,
    at: Duration,
    outside: u64,
    /// Of that, what kubelet's formula does not see.
    unseen: u64,
    pods: BTreeMap<String, (u64, i32)>,
    gone: Vec<String>,
}

impl Scene {
    fn new(compat: Compat, n_pods: u32, mib: u64) -> Self {
        let pods = (0..n_pods).map(|i| (format!("pod-{i:02}"), (mib * MIB, 0)));
        let mut scene = Self {
            policy: Policy {
                thresholds: vec![Threshold {
                    signal: Signal::MemoryAvailable,
                    amount: Amount::Quantity(Quantity::from_bytes(THRESHOLD)),
                    grace: Duration::ZERO,
                    min_reclaim: None,
                }],
                n_known_at_first: 1,
                transition_period: Duration::from_secs(300),
                max_pod_grace: Duration::ZERO,
                limits_local_storage: false,
                layout: FsLayout::One,
                compat,
            },
            state: State::new(),
            at: Duration::from_secs(1000),
            outside: 0,
            unseen: 0,
            pods: pods.collect(),
            gone: Vec::new(),
        };
        scene.outside = TOTAL - THRESHOLD - scene.of_pods() - 10 * MIB;
        scene
    }

    fn brake(&self) -> &Brake {
        let layout = self.policy.layout;
        self.state
            .brakes
            .get(layout, Signal::MemoryAvailable)
            .unwrap()
    }

    fn of_pods(&self) -> u64 {
        self.pods.values().map(|(bytes, _)| bytes).sum()
    }

    /// A pass; whoever is chosen is gone by the next one.
    fn pass(&mut self) -> Decision {
        self.at += Duration::from_millis(20);
        let used = |bytes| MemoryUse {
            usage: bytes,
            ..MemoryUse::default()
        };
        let (pods, all) = (self.of_pods(), self.of_pods() + self.outside);
        let observation = Observation {
            available: i64::try_from(TOTAL.saturating_sub(all)).unwrap(),
            capacity: i64::try_from(TOTAL).unwrap(),
            at: Some(self.at),
        };
        let reading = |(name, (bytes, priority)): (&String, &(u64, i32))| PodReading {
            facts: Arc::new(PodFacts {
                priority: *priority,
                ..PodFacts::bare(PodRef {
                    namespace: "default".to_owned(),
                    name: name.clone(),
                    uid: PodUid(name.clone()),
                })
            }),
            figures: Some(PodFigures {
                memory_working_set: Some(*bytes),
                ..PodFigures::default()
            }),
            ends_within: None,
        };
        let snapshot = Snapshot {
            at: self.at,
            observations: BTreeMap::from([(Signal::MemoryAvailable, observation)]),
            node: NodeReading {
                at: self.at,
                root: Some(used(all - self.unseen)),
                kubepods: Some(used(pods)),
                ..NodeReading::default()
            },
            pods: self.pods.iter().map(reading).collect(),
            is_leaving: false,
        };
        let decision = synchronize(&self.policy, &self.state, &snapshot);
        self.state = decision.state.clone();
        if let Some(Action::Relieve(relief)) = &decision.action
            && let Some(victim) = relief.candidates.first()
        {
            self.pods.remove(&victim.pod.name);
            self.gone.push(victim.pod.name.clone());
        }
        decision
    }

    /// The rest of the node takes so many MiB before each of so many passes.
    fn leak(&mut self, n_passes: u32, mib: u64) -> Vec<BlockedReason> {
        (0..n_passes)
            .flat_map(|_| {
                self.outside += mib * MIB;
                self.pass().blocked
            })
            .map(|it| it.reason)
            .collect()
    }
}

#[test]
fn a_leak_outside_the_pods_takes_a_few_of_them_and_no_more() {
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pass();
    let reasons = scene.leak(300, 2);
    assert_eq!(scene.gone.len(), 4, "{:?}", scene.gone);
    assert!(reasons.len() > 200 && reasons.iter().all(|it| *it == BlockedReason::Ineffective));
    // It stays so, also when time passes while memory is short.
    scene.at += WINDOW * 3;
    scene.leak(10, 2);
    assert_eq!(scene.gone.len(), 4);
    let now = Split {
        pods: scene.of_pods(),
        outside: scene.outside,
    };
    let in_vain = scene.brake().in_vain(StarvedResource::Memory, now);
    assert_eq!((in_vain.n_kills, in_vain.given), (4, 80 * MIB));
    assert!(in_vain.taken > 500 * MIB, "{in_vain:?}");

    let mut kubelet = Scene::new(Compat::Kubelet, 20, 20);
    kubelet.pass();
    kubelet.leak(300, 2);
    assert_eq!(
        kubelet.gone.len(),
        20,
        "kubelet goes on until nobody is left"
    );
}

/// Each wave is over before the next one begins.
#[test]
fn waves_outside_the_pods_take_no_more_of_them_than_a_leak_does() {
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pass();
    let calm = scene.outside;
    let mut reasons = Vec::new();
    for _ in 0..10 {
        reasons = scene.leak(50, 2);
        scene.outside = calm;
        scene.pass();
    }
    assert_eq!(scene.gone.len(), 4, "{:?}", scene.gone);
    assert!(reasons.contains(&BlockedReason::Ineffective));
    // Long after, they are another matter.
    scene.at += WINDOW * 2;
    scene.pass();
    scene.leak(50, 5);
    assert!(scene.gone.len() > 4, "{:?}", scene.gone);
}

#[test]
fn growth_that_kubelets_formula_does_not_see_counts_too() {
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pass();
    for _ in 0..300 {
        scene.unseen += 2 * MIB;
        scene.leak(1, 2);
    }
    assert_eq!(scene.gone.len(), 4, "{:?}", scene.gone);
}

#[test]
fn nobody_goes_where_all_that_may_go_are_too_small() {
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pass();
    let reasons = scene.leak(50, 300);
    assert!(scene.gone.is_empty(), "{:?}", scene.gone);
    assert_eq!(reasons.len(), 50);
    // One that is large enough for its part goes, whoever is first in the order.
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pods.insert("large".to_owned(), (90 * MIB, 1000));
    scene.outside -= 90 * MIB;
    scene.pass();
    scene.leak(1, 300);
    assert_eq!(scene.gone, ["large"]);
}

#[test]
fn pods_that_grow_themselves_go_as_ever() {
    // All at once: none of them could give what is short.
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pass();
    for (bytes, _) in scene.pods.values_mut() {
        *bytes += 30 * MIB;
    }
    for _ in 0..30 {
        scene.pass();
    }
    assert_eq!(
        scene.gone.len(),
        12,
        "600 MiB, of which 10 were left, by 50 each"
    );
    // One after the other, with some growth elsewhere that is less than theirs.
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pass();
    for i in 10..20 {
        let grows = format!("pod-{i}");
        while let Some((bytes, _)) = scene.pods.get_mut(&grows) {
            *bytes += 10 * MIB;
            scene.outside += MIB;
            scene.pass();
            assert!(scene.at < Duration::from_secs(1100), "{:?}", scene.gone);
        }
    }
    assert_eq!(scene.gone.len(), 10, "{:?}", scene.gone);
}

#[test]
fn it_is_released_when_memory_was_there_for_the_window() {
    let mut scene = Scene::new(Compat::Ballast, 20, 20);
    scene.pass();
    scene.leak(100, 2);
    assert_eq!(scene.gone.len(), 4);
    scene.outside -= 300 * MIB;
    scene.pass();
    scene.at += WINDOW + Duration::from_secs(1);
    scene.pass();
    assert_eq!(scene.brake().kills, []);
    scene.leak(200, 2);
    assert_eq!(scene.gone.len(), 8);
}

#[test]
fn a_shortage_that_comes_back_within_the_window_is_no_other_matter() {
    let told = Duration::from_secs(7);
    let second = Duration::from_secs(1);
    for (resource, window) in [
        (StarvedResource::Memory, WINDOW),
        (StarvedResource::Inodes, DISK_WINDOW),
    ] {
        let is_other = |now| is_another_matter(resource, told, now);
        assert!(!is_other(told + second));
        assert!(!is_other(told + window));
        assert!(is_other(told + window + second));
    }
}

/// Versions before had a brake for memory alone, or none.
#[test]
fn what_was_recorded_before_has_the_brakes_it_had() {
    let read = |text: &str| serde_json::from_str::<State>(text).unwrap().brakes;
    assert_eq!(read("{}"), Brakes::default());
    assert_eq!(read(r#"{"brake": null}"#), Brakes::default());
    let brakes =
        read(r#"{"brake": {"calm": {"pods": 1, "outside": 2}, "asked": null, "kills": []}}"#);
    let calm = |signal| brakes.get(FsLayout::One, signal).map(|it| it.calm);
    let split = Split {
        pods: 1,
        outside: 2,
    };
    assert_eq!(calm(Signal::MemoryAvailable), Some(Some(split)));
    assert_eq!(calm(Signal::NodeFsAvailable), None);
    let text = serde_json::to_string(&State::new()).unwrap();
    assert_eq!(read(&text), Brakes::new());
}
