use std::sync::Arc;

use super::*;
use crate::model::eviction::{Amount, Observation, PodFacts, StallSource, StallTotals};
use crate::model::quantity::Quantity;
use crate::model::record::PodRef;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const ALL: StagesConfig = StagesConfig {
    relax_memory_high: true,
    set_memory_high: true,
    reclaim: true,
    freeze_best_effort: true,
};
const ABLE: ReliefAbilities = ReliefAbilities {
    memory_high: true,
    memory_reclaim: true,
    freeze: true,
};

fn path(of: &str) -> CgroupPath {
    CgroupPath::new(format!("/kubepods/{of}")).expect("a plain path")
}

/// A pod that uses so much of its request, with cache that nobody misses.
#[derive(Clone)]
struct Pod {
    name: &'static str,
    qos: QosClass,
    is_critical: bool,
    request: u64,
    anon: u64,
    inactive: u64,
    active: u64,
    stalled_us: u64,
    high: Limit,
    is_frozen: bool,
    ends_within: Option<Duration>,
}

impl Pod {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            qos: QosClass::Burstable,
            is_critical: false,
            request: 0,
            anon: GIB,
            inactive: 0,
            active: 0,
            stalled_us: 0,
            high: Limit::Max,
            is_frozen: false,
            ends_within: None,
        }
    }

    fn reading(&self, at: Duration) -> PodReading {
        let memory = MemoryUse {
            usage: self.anon + self.inactive + self.active,
            anon: self.anon,
            file: self.inactive + self.active,
            inactive_file: self.inactive,
            active_file: self.active,
            refaults_file: Some(0),
            ..MemoryUse::default()
        };
        PodReading {
            facts: Arc::new(PodFacts {
                qos: self.qos,
                is_critical: self.is_critical,
                memory_request: Quantity::from_bytes(self.request),
                ..PodFacts::bare(PodRef {
                    namespace: "default".to_owned(),
                    name: self.name.to_owned(),
                    uid: PodUid(self.name.to_owned()),
                })
            }),
            figures: Some(PodFigures {
                at: Some(at),
                memory: Some(memory),
                memory_working_set: Some(memory.working_set()),
                stall: Some(StallTotals {
                    source: StallSource::Psi,
                    some_us: self.stalled_us,
                    full_us: None,
                }),
                ..PodFigures::default()
            }),
            ends_within: self.ends_within,
        }
    }
}

/// Two looks at a node, ten seconds apart, and a threshold of 1 GiB.
struct Scene {
    config: StagesConfig,
    abilities: ReliefAbilities,
    method: MemoryMethod,
    grace: Duration,
    available: [u64; 2],
    before: Vec<Pod>,
    pods: Vec<Pod>,
    state: ReliefState,
}

const NOW: Duration = Duration::from_secs(110);

impl Scene {
    /// 900 MiB left, 10 MiB a second going: 90 s to go.
    fn new(pods: &[Pod]) -> Self {
        Self {
            config: ALL,
            abilities: ABLE,
            method: MemoryMethod::WorkingSet,
            grace: Duration::from_secs(60),
            available: [1000 * MIB, 900 * MIB],
            before: pods.to_vec(),
            pods: pods.to_vec(),
            state: ReliefState::default(),
        }
    }

    fn only(mut self, config: StagesConfig) -> Self {
        self.config = config;
        self
    }

    /// The pod of this place used so much less at the look before.
    fn grown(mut self, place: usize, by: u64) -> Self {
        self.before[place].anon -= by;
        self
    }

    fn snapshot(pods: &[Pod], at: Duration, available: u64) -> Snapshot {
        let observation = Observation {
            available: i64::try_from(available).expect("a plain figure"),
            capacity: 16 << 30,
            at: Some(at),
        };
        Snapshot {
            at,
            observations: BTreeMap::from([(Signal::MemoryAvailable, observation)]),
            pods: pods.iter().map(|it| it.reading(at)).collect(),
            ..Snapshot::default()
        }
    }

    fn threshold(&self) -> Threshold {
        Threshold {
            signal: Signal::MemoryAvailable,
            amount: Amount::Quantity(Quantity::from_bytes(GIB)),
            grace: self.grace,
            min_reclaim: None,
        }
    }

    fn plan_with(&self, threshold: &Threshold, is_first_look: bool) -> StagePlan {
        let before = NOW - Duration::from_secs(10);
        let before = Self::snapshot(&self.before, before, self.available[0]);
        let snapshot = Self::snapshot(&self.pods, NOW, self.available[1]);
        let ranked: Vec<&PodReading> = snapshot.pods.iter().collect();
        let cgroups = self.pods.iter().map(|it| {
            let cgroups = PodCgroups {
                pod: path(it.name),
                memory_high: BTreeMap::from([(path(it.name), it.high)]),
                is_frozen: it.is_frozen,
            };
            (PodUid(it.name.to_owned()), cgroups)
        });
        let input = StagesInput {
            config: &self.config,
            method: self.method,
            abilities: self.abilities,
            threshold,
            snapshot: &snapshot,
            before: (!is_first_look).then_some(&before),
            ranked: &ranked,
            cgroups: &cgroups.collect(),
            page_size: 4096,
        };
        plan(input, &self.state)
    }

    fn plan(&self) -> StagePlan {
        self.plan_with(&self.threshold(), false)
    }
}

fn actions(plan: &StagePlan) -> Vec<(Stage, &str, ReliefAction, u64)> {
    let steps = plan.steps.iter();
    steps
        .map(|it| (it.stage, it.pod.name.as_str(), it.action, it.expected))
        .collect()
}

fn stage_alone(stage: Stage) -> StagesConfig {
    StagesConfig {
        relax_memory_high: stage == Stage::Relax,
        set_memory_high: stage == Stage::Throttle,
        reclaim: stage == Stage::Reclaim,
        freeze_best_effort: stage == Stage::Freeze,
    }
}

#[test]
fn a_pod_that_stalls_below_its_request_is_relieved_of_memory_high() {
    let needy = Pod {
        request: 2 * GIB,
        high: Limit::At(GIB),
        ..Pod::new("needy")
    };
    let stalled = |pod: Pod| {
        let mut scene = Scene::new(&[pod]).only(stage_alone(Stage::Relax));
        scene.pods[0].stalled_us = 2_000_000;
        scene
    };
    let (before, to) = (Limit::At(GIB), Limit::Max);
    let relaxed = [(
        Stage::Relax,
        "needy",
        ReliefAction::SetMemoryHigh { before, to },
        0,
    )];
    let plan = stalled(needy.clone()).plan();
    assert_eq!(actions(&plan), relaxed);
    // It frees nothing, so no eviction waits for it.
    assert_eq!(plan.holds_until, None);
    let critical = Pod {
        is_critical: true,
        ..needy.clone()
    };
    assert_eq!(actions(&stalled(critical).plan()), relaxed);
    for left_alone in [
        Pod {
            request: GIB / 2,
            ..needy.clone()
        },
        Pod {
            high: Limit::Max,
            ..needy.clone()
        },
        Pod {
            ends_within: Some(Duration::ZERO),
            ..needy.clone()
        },
    ] {
        assert_eq!(stalled(left_alone).plan().steps, []);
    }
    let calm = Scene::new(&[needy]).only(stage_alone(Stage::Relax));
    assert_eq!(calm.plan().steps, []);
}

#[test]
fn the_first_candidate_is_held_at_what_it_uses() {
    let scene = |pod: Pod| {
        Scene::new(&[pod, Pod::new("second")])
            .only(stage_alone(Stage::Throttle))
            .grown(0, 100 * MIB)
            .grown(1, 100 * MIB)
    };
    let greedy = Pod {
        request: GIB / 2,
        inactive: 10 * MIB,
        ..Pod::new("greedy")
    };
    let plan = scene(greedy.clone()).plan();
    let action = ReliefAction::SetMemoryHigh {
        before: Limit::Max,
        to: Limit::At(GIB + 10 * MIB),
    };
    assert_eq!(
        actions(&plan),
        [(Stage::Throttle, "greedy", action, 100 * MIB)]
    );
    assert_eq!(plan.holds_until, Some(NOW + Duration::from_secs(1)));
    // Within its request, it gets what it asked for; with a lower limit there is nothing to do.
    for left_alone in [
        Pod {
            request: GIB,
            ..greedy.clone()
        },
        Pod {
            high: Limit::At(GIB),
            ..greedy.clone()
        },
    ] {
        let plan = scene(left_alone).plan();
        assert_eq!(plan.steps, []);
        assert_eq!(plan.skipped[&Stage::Throttle], StageSkip::NoTarget);
    }
    // One that does not grow needs no brake.
    let still = Scene::new(&[greedy]).only(stage_alone(Stage::Throttle));
    assert_eq!(still.plan().steps, []);
}

#[test]
fn cache_is_asked_for_in_the_order_of_the_ranking_until_it_is_enough() {
    let cached = |name, inactive: u64, active: u64| Pod {
        inactive: inactive * MIB,
        active: active * MIB,
        ..Pod::new(name)
    };
    let scene = Scene::new(&[
        cached("first", 50, 100),
        cached("none", 500, 0),
        cached("second", 0, 1000),
        cached("third", 0, 1000),
    ])
    .only(stage_alone(Stage::Reclaim));
    // Missing: 124 MiB, and 100 MiB more go within ten seconds. Inactive pages count as available
    // already, but the kernel takes them first.
    let reclaim = |mebibytes: u64| ReliefAction::Reclaim {
        bytes: mebibytes * MIB,
    };
    assert_eq!(
        actions(&scene.plan()),
        [
            (Stage::Reclaim, "first", reclaim(150), 100 * MIB),
            (Stage::Reclaim, "second", reclaim(124), 124 * MIB),
        ]
    );
    let mut estimate = scene;
    estimate.method = MemoryMethod::Estimate;
    let plan = estimate.plan();
    assert_eq!(plan.steps, [], "by the estimate it is available already");
}

#[test]
fn best_effort_pods_that_grow_are_frozen() {
    let best_effort = |name| Pod {
        qos: QosClass::BestEffort,
        ..Pod::new(name)
    };
    let critical = Pod {
        is_critical: true,
        ..best_effort("critical")
    };
    let frozen = Pod {
        is_frozen: true,
        ..best_effort("frozen")
    };
    let still = best_effort("still");
    let mut scene = Scene::new(&[
        best_effort("grows"),
        critical,
        frozen,
        Pod::new("other"),
        still,
    ])
    .only(stage_alone(Stage::Freeze));
    for place in 0..4 {
        scene = scene.grown(place, 200 * MIB);
    }
    let plan = scene.plan();
    assert_eq!(
        actions(&plan),
        [(Stage::Freeze, "grows", ReliefAction::Freeze, 200 * MIB)]
    );
    // Once per time of pressure.
    scene.state = intended(&scene.state, &plan.steps, NOW - Duration::from_secs(5));
    let plan = scene.plan();
    assert_eq!(plan.skipped[&Stage::Freeze], StageSkip::Exhausted);
}

#[test]
fn stages_follow_each_other_and_give_the_one_before_time() {
    let pod = Pod {
        qos: QosClass::BestEffort,
        active: 300 * MIB,
        ..Pod::new("greedy")
    };
    let mut scene = Scene::new(&[pod]).grown(0, 200 * MIB);
    let first = scene.plan();
    assert_eq!(first.steps[0].stage, Stage::Throttle);
    assert_eq!(first.skipped[&Stage::Reclaim], StageSkip::Later);
    // Half a second ago: what it gives is to be seen, and the eviction waits.
    let ago = NOW - Duration::from_millis(500);
    scene.state = intended(&scene.state, &first.steps, ago);
    let settling = scene.plan();
    assert_eq!(settling.steps, []);
    assert_eq!(settling.holds_until, Some(ago + Duration::from_secs(1)));
    let ago = NOW - Duration::from_secs(2);
    scene.state = intended(&ReliefState::default(), &first.steps, ago);
    let second = scene.plan();
    assert_eq!(second.steps[0].stage, Stage::Reclaim);
    scene.state = intended(&scene.state, &second.steps, ago);
    // It gave what it promised and is asked again; it did not, and pods are frozen.
    let good = measured(&scene.state, Stage::Reclaim, 300 * MIB);
    let bad = measured(&scene.state, Stage::Reclaim, MIB);
    scene.state = good;
    assert_eq!(scene.plan().steps[0].stage, Stage::Reclaim);
    scene.state = bad;
    assert_eq!(scene.plan().steps[0].stage, Stage::Freeze);
    let steps = scene.plan().steps;
    scene.state = intended(&scene.state, &steps, ago);
    // Nothing is left to try: evict at once.
    let last = scene.plan();
    assert_eq!((last.steps, last.holds_until), (Vec::new(), None));
}

#[test]
fn there_is_no_stage_where_memory_runs_out_first() {
    let pod = Pod {
        active: 300 * MIB,
        ..Pod::new("greedy")
    };
    let mut scene = Scene::new(&[pod]).grown(0, 200 * MIB);
    scene.grace = Duration::ZERO;
    // 3 s to go: enough for the brake, too little for the disk.
    scene.available = [390 * MIB, 90 * MIB];
    let plan = scene.plan();
    assert_eq!(plan.steps[0].stage, Stage::Throttle);
    let left = Duration::from_secs(3);
    assert_eq!(
        plan.skipped[&Stage::Reclaim],
        StageSkip::LittleTime { left }
    );
    scene.available = [10_000 * MIB, 90 * MIB];
    let plan = scene.plan();
    assert_eq!((plan.steps, plan.holds_until), (Vec::new(), None));
    // A hard threshold at an unknown pace does not wait; a soft one has its grace.
    let blind = scene.plan_with(&scene.threshold(), true);
    assert_eq!(blind.skipped[&Stage::Reclaim], StageSkip::UnknownPace);
    scene.grace = Duration::from_secs(60);
    let soft = scene.plan_with(&scene.threshold(), true);
    assert_eq!(soft.skipped[&Stage::Throttle], StageSkip::NoTarget);
}

#[test]
fn what_is_off_or_not_there_is_said() {
    let mut scene = Scene::new(&[Pod::new("any")]).only(StagesConfig::default());
    let all = |plan: StagePlan, reason| {
        assert_eq!(plan.steps, []);
        assert_eq!(
            plan.skipped,
            BTreeMap::from(Stage::ALL.map(|it| (it, reason)))
        );
    };
    all(scene.plan(), StageSkip::Off);
    scene.config = ALL;
    scene.abilities = ReliefAbilities::default();
    all(scene.plan(), StageSkip::Unable);
    // Not about memory, not short of it, not known.
    for change in [
        |it: &mut Threshold| it.signal = Signal::PidAvailable,
        |it: &mut Threshold| it.signal = Signal::AllocatableMemoryAvailable,
        |it: &mut Threshold| it.amount = Amount::Quantity(Quantity::from_bytes(100 * MIB)),
    ] {
        let mut threshold = scene.threshold();
        change(&mut threshold);
        assert_eq!(scene.plan_with(&threshold, false), StagePlan::default());
    }
}

/// What a step changed is in the state, is undone when it was calm for long enough, and not before.
#[test]
fn what_was_changed_is_undone_when_the_pressure_is_over() {
    let pod = Pod {
        qos: QosClass::BestEffort,
        active: 300 * MIB,
        ..Pod::new("greedy")
    };
    let scene = Scene::new(&[pod]).grown(0, 200 * MIB);
    let throttle = scene.plan().steps;
    let freeze = Scene::new(&scene.pods)
        .only(stage_alone(Stage::Freeze))
        .grown(0, 200 * MIB)
        .plan()
        .steps;
    let steps = [throttle, freeze].concat();
    assert_eq!(steps.len(), 2);
    let state = intended(&ReliefState::default(), &steps, NOW);
    let usage = Limit::At(GIB + 300 * MIB);
    assert_eq!(state.memory_high_of(&path("greedy")), Some(usage));
    // An agent that starts again knows it.
    let text = serde_json::to_string(&state).expect("plain data");
    let state: ReliefState = serde_json::from_str(&text).expect("it was written so");

    let here = BTreeSet::from([PodUid("greedy".to_owned())]);
    let nobody = BTreeSet::new();
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let calm = review(&state, at(1), false, &here, &nobody);
    assert_eq!(calm.steps, []);
    let pressed = review(&calm.state, at(5), true, &here, &nobody);
    let calm = review(&pressed.state, at(6), false, &here, &nobody);
    assert_eq!(review(&calm.state, at(15), false, &here, &nobody).steps, []);
    let over = review(&calm.state, at(16), false, &here, &nobody);
    let undo: Vec<ReliefAction> = over.steps.iter().map(|it| it.action).collect();
    let restore = ReliefAction::SetMemoryHigh {
        before: usage,
        to: Limit::Max,
    };
    assert_eq!(undo, [ReliefAction::Thaw, restore]);
    let mut state = over.state;
    for step in &over.steps {
        state = undone(&state, step);
    }
    assert!(state.is_clear());
    let rest = review(&state, at(17), false, &here, &nobody);
    assert_eq!(rest.state, ReliefState::default(), "all may be tried again");
}

#[test]
fn nobody_is_frozen_for_long_nor_while_ending() {
    let frozen = FrozenPod {
        pod: Pod::new("cold").reading(NOW).facts.pod.clone(),
        cgroup: path("cold"),
        since: NOW,
    };
    let state = ReliefState {
        frozen: vec![frozen],
        ..ReliefState::default()
    };
    let cold = BTreeSet::from([PodUid("cold".to_owned())]);
    let nobody = BTreeSet::new();
    let thaws = |at, ending| review(&state, at, true, &cold, ending).steps.len();
    assert_eq!(thaws(NOW + Duration::from_secs(29), &nobody), 0);
    assert_eq!(thaws(NOW + Duration::from_secs(30), &nobody), 1);
    assert_eq!(thaws(NOW, &cold), 1);
    // The node was started again.
    assert_eq!(thaws(Duration::from_secs(1), &nobody), 1);
    let gone = review(&state, NOW, true, &nobody, &nobody);
    assert!(gone.state.is_clear() && gone.steps.is_empty());
}
