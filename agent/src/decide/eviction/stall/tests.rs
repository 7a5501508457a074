use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::model::eviction::{Amount, NodeReading, PodFacts, PodFigures, StallTotals};
use crate::model::pod::{PodUid, QosClass};

const GIB: u64 = 1 << 30;
const TOTAL: u64 = 16 * GIB;

fn config() -> StallConfig {
    StallConfig {
        memory_full_ratio: 0.5,
        duration: Duration::from_secs(10),
        headroom: Amount::Fraction(0.1),
        cool_down: Duration::from_secs(15),
        dry_run: false,
    }
}

fn pod(name: &str, anon: u64) -> PodReading {
    PodReading {
        facts: Arc::new(PodFacts {
            qos: QosClass::Burstable,
            ..PodFacts::bare(PodRef {
                namespace: "default".to_owned(),
                name: name.to_owned(),
                uid: PodUid(name.to_owned()),
            })
        }),
        figures: Some(PodFigures {
            memory: Some(MemoryUse {
                usage: anon,
                anon,
                ..MemoryUse::default()
            }),
            ..PodFigures::default()
        }),
        ends_within: None,
    }
}

/// A story: pods, memory and stalls that go on from reading to reading.
struct Story {
    config: StallConfig,
    state: StallState,
    now: Duration,
    stalled_us: u64,
    source: StallSource,
    pods: Vec<PodReading>,
    anon: u64,
    inactive: u64,
    active: u64,
}

impl Story {
    /// A node with almost all of its memory in use by processes.
    fn full() -> Self {
        Self {
            config: config(),
            state: StallState::default(),
            now: Duration::from_secs(100),
            stalled_us: 5_000_000,
            source: StallSource::Psi,
            pods: vec![pod("first", 8 * GIB), pod("second", 7 * GIB)],
            anon: 15 * GIB,
            inactive: GIB / 4,
            active: GIB / 4,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let used = MemoryUse {
            usage: self.anon + self.inactive + self.active,
            anon: self.anon,
            file: self.inactive + self.active,
            inactive_file: self.inactive,
            active_file: self.active,
            ..MemoryUse::default()
        };
        let available = TOTAL.saturating_sub(used.working_set());
        let observation = Observation {
            available: i64::try_from(available).unwrap_or(i64::MAX),
            capacity: i64::try_from(TOTAL).unwrap_or(i64::MAX),
            at: Some(self.now),
        };
        Snapshot {
            at: self.now,
            observations: BTreeMap::from([(Signal::MemoryAvailable, observation)]),
            node: NodeReading {
                at: self.now,
                memory_total: TOTAL,
                root: Some(used),
                kubepods_stall: Some(StallTotals {
                    source: self.source,
                    some_us: self.stalled_us,
                    full_us: (self.source == StallSource::Psi).then_some(self.stalled_us),
                }),
                ..NodeReading::default()
            },
            pods: self.pods.clone(),
            is_leaving: false,
        }
    }

    fn decide(&mut self, snapshot: &Snapshot) -> StallVerdict {
        let ranked: Vec<&PodReading> = snapshot.pods.iter().collect();
        let input = StallInput {
            config: &self.config,
            snapshot,
            ranked: &ranked,
        };
        let decision = decide(input, &self.state);
        self.state = decision.state;
        decision.verdict
    }

    /// Some seconds later, of each of which this share was stalled.
    fn after(&mut self, seconds: u64, percent: u64) -> StallVerdict {
        let mut verdict = StallVerdict::Calm;
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.stalled_us += percent * 10_000;
            let snapshot = self.snapshot();
            verdict = self.decide(&snapshot);
            if matches!(verdict, StallVerdict::Evict { .. }) {
                return verdict;
            }
        }
        verdict
    }
}

#[track_caller]
fn victim_of(verdict: StallVerdict) -> Victim {
    match verdict {
        StallVerdict::Evict { victim, .. } => *victim,
        other => panic!("nobody is evicted: {other:?}"),
    }
}

#[test]
fn both_keys_for_the_whole_duration_evict_the_first_of_the_ranking() {
    let mut story = Story::full();
    let since = story.now + Duration::from_secs(1);
    // The first reading begins the window.
    let verdict = story.after(10, 80);
    assert_eq!(verdict, StallVerdict::Hold(StallHold::Building { since }));
    let victim = victim_of(story.after(1, 80));
    assert_eq!(victim.pod.name, "first");
    assert_eq!(victim.cause, EvictionCause::Stall);
    assert_eq!(victim.grace, Duration::from_secs(1));
    assert_eq!(victim.expected, Some(8 * GIB));
    let message = "The node was low on resource: memory. For 10 s the pods of the node waited for \
                   memory most of the time, 80 % of it at last; the pod uses 8Gi.";
    assert_eq!(victim.message, message);
}

#[test]
fn one_key_alone_evicts_nobody() {
    // Calm, whatever is left.
    let mut story = Story::full();
    assert_eq!(story.after(60, 50), StallVerdict::Calm);
    // Stalled, with memory left.
    let mut story = Story::full();
    story.anon = 8 * GIB;
    assert_eq!(
        story.after(60, 100),
        StallVerdict::Hold(StallHold::Headroom)
    );
    // As soon as it is gone, the stall has lasted long enough.
    story.anon = 15 * GIB;
    victim_of(story.after(1, 100));
}

#[test]
fn a_pause_in_the_stall_starts_the_measurement_anew() {
    let mut story = Story::full();
    story.after(10, 80);
    assert_eq!(story.after(1, 20), StallVerdict::Calm);
    let verdict = story.after(9, 80);
    assert!(matches!(
        verdict,
        StallVerdict::Hold(StallHold::Building { .. })
    ));
    victim_of(story.after(1, 80));
}

#[test]
fn readings_closer_than_a_second_are_one_window() {
    let mut story = Story::full();
    let mut evicted_at = None;
    let begin = story.now;
    // Every 50 ms, stalled in every other of them: 50 % of a second is not above the ratio, though
    // half of the readings would be.
    for i in 0..600_u64 {
        story.now += Duration::from_millis(50);
        story.stalled_us += (i % 2) * 50_000;
        let snapshot = story.snapshot();
        if matches!(story.decide(&snapshot), StallVerdict::Evict { .. }) {
            evicted_at.get_or_insert(story.now - begin);
        }
    }
    assert_eq!(evicted_at, None);
}

#[test]
fn a_victim_is_followed_only_when_its_end_has_given_nothing() {
    let mut story = Story::full();
    victim_of(story.after(11, 90));
    // It takes its time to end; however long the node stalls, it is waited for.
    let waits = StallVerdict::Hold(StallHold::AwaitsRelief);
    assert_eq!(story.after(120, 100), waits);
    story.pods.remove(0);
    // Measured from here on.
    assert_eq!(story.after(1, 100), waits);
    let verdict = story.after(9, 100);
    assert!(matches!(
        verdict,
        StallVerdict::Hold(StallHold::Building { .. })
    ));
    assert_eq!(victim_of(story.after(1, 100)).pod.name, "second");

    // The same, but the end of the first one gave enough.
    let mut story = Story::full();
    victim_of(story.after(11, 90));
    story.pods.remove(0);
    story.anon = 7 * GIB;
    assert_eq!(
        story.after(60, 100),
        StallVerdict::Hold(StallHold::Headroom)
    );
}

#[test]
fn after_an_eviction_there_is_a_pause() {
    let mut story = Story::full();
    story.config.cool_down = Duration::from_secs(30);
    victim_of(story.after(11, 90));
    let until = story.now + Duration::from_secs(30);
    story.pods.remove(0);
    let verdict = story.after(25, 90);
    assert_eq!(verdict, StallVerdict::Hold(StallHold::CoolDown { until }));
    victim_of(story.after(5, 90));
    assert_eq!(story.now, until);
}

#[test]
fn a_pod_that_is_about_to_end_is_waited_for() {
    let mut story = Story::full();
    story.pods[1].ends_within = Some(Duration::from_secs(2));
    let waits = StallVerdict::Hold(StallHold::AwaitsRelief);
    assert_eq!(story.after(30, 90), waits);
    // One with an hour to go is not.
    story.pods[1].ends_within = Some(Duration::from_secs(3600));
    victim_of(story.after(1, 90));
}

#[test]
fn a_dry_run_decides_the_same_and_waits_for_nobody() {
    let mut real = Story::full();
    let mut dry = Story::full();
    dry.config.dry_run = true;
    let (real, told) = (real.after(60, 90), dry.after(60, 90));
    let StallVerdict::Evict { victim, is_dry_run } = told else {
        panic!("nothing is told: {told:?}");
    };
    assert!(is_dry_run);
    assert_eq!(*victim, victim_of(real));
    // The pod goes on, and is told again after the pause and not before.
    let told_at = dry.now;
    victim_of(dry.after(60, 90));
    assert_eq!(dry.now - told_at, Duration::from_secs(15));
}

#[test]
fn what_cannot_be_read_evicts_nobody() {
    let no_reading = StallVerdict::Hold(StallHold::NoReading);
    let mut story = Story::full();
    story.after(10, 90);
    story.now += Duration::from_secs(1);
    let mut snapshot = story.snapshot();
    snapshot.node.kubepods_stall = None;
    assert_eq!(story.decide(&snapshot), no_reading);
    // The measurement begins anew.
    let verdict = story.after(10, 90);
    assert!(matches!(
        verdict,
        StallVerdict::Hold(StallHold::Building { .. })
    ));

    story.now += Duration::from_secs(1);
    story.stalled_us += 900_000;
    let mut snapshot = story.snapshot();
    snapshot.observations.clear();
    assert_eq!(story.decide(&snapshot), no_reading);
    let mut snapshot = story.snapshot();
    snapshot.at += Duration::from_secs(1);
    snapshot.node.kubepods_stall = story.snapshot().node.kubepods_stall.map(|it| StallTotals {
        full_us: it.full_us.map(|it| it + 900_000),
        ..it
    });
    snapshot.node.root = None;
    assert_eq!(story.decide(&snapshot), no_reading);
}

#[test]
fn a_counter_that_began_anew_is_no_stall() {
    let mut story = Story::full();
    story.after(10, 90);
    // kubepods was made again.
    story.stalled_us = 0;
    let verdict = story.after(1, 90);
    assert_eq!(verdict, StallVerdict::Hold(StallHold::Measuring));
    let verdict = story.after(10, 90);
    assert!(matches!(
        verdict,
        StallVerdict::Hold(StallHold::Building { .. }) | StallVerdict::Evict { .. }
    ));
}

#[test]
fn nobody_without_a_reading_and_nobody_critical_is_chosen() {
    let with = |change: &dyn Fn(&mut PodReading)| {
        let mut story = Story::full();
        story.pods.iter_mut().for_each(change);
        story.after(30, 90)
    };
    let unknown = with(&|it| it.figures = None);
    assert_eq!(unknown, StallVerdict::Hold(StallHold::NoCandidate));
    let critical = with(&|it| Arc::make_mut(&mut it.facts).is_critical = true);
    assert_eq!(critical, StallVerdict::Hold(StallHold::OnlyCritical));
    let mut story = Story::full();
    Arc::make_mut(&mut story.pods[0].facts).is_critical = true;
    assert_eq!(victim_of(story.after(30, 90)).pod.name, "second");
}

#[test]
fn without_psi_the_time_in_reclaim_is_taken_and_named() {
    let mut story = Story::full();
    story.source = StallSource::Reclaim;
    // Several tasks at once: more than all of the time.
    story.after(10, 400);
    story.now += Duration::from_secs(1);
    story.stalled_us += 4_000_000;
    let snapshot = story.snapshot();
    let ranked: Vec<&PodReading> = snapshot.pods.iter().collect();
    let input = StallInput {
        config: &story.config,
        snapshot: &snapshot,
        ranked: &ranked,
    };
    let decision = decide(input, &story.state);
    let window = decision.window.expect("a second has passed");
    assert_eq!((window.source, window.ratio), (StallSource::Reclaim, 1.0));
    victim_of(decision.verdict);
}

#[test]
fn kubepods_at_its_own_limit_is_short_too() {
    let short = |kubepods: MemoryUse| {
        let mut story = Story::full();
        story.anon = 4 * GIB;
        let mut snapshot = story.snapshot();
        snapshot.node.kubepods = Some(kubepods);
        let available = 8 * GIB - kubepods.working_set();
        snapshot.observations.insert(
            Signal::AllocatableMemoryAvailable,
            Observation {
                available: i64::try_from(available).unwrap_or(i64::MAX),
                capacity: i64::try_from(8 * GIB).unwrap_or(i64::MAX),
                at: None,
            },
        );
        is_short(&snapshot, &story.config)
    };
    let anon = MemoryUse {
        usage: 79 * GIB / 10,
        anon: 79 * GIB / 10,
        ..MemoryUse::default()
    };
    assert_eq!(short(anon), Some(true));
    let cache = MemoryUse {
        anon: GIB,
        active_file: anon.usage - GIB,
        ..anon
    };
    assert_eq!(short(cache), Some(false));
}

/// Cache of any size and kind, with any stall, on a node whose processes leave more than the
/// headroom: nobody is evicted. With processes that do not, somebody is.
#[test]
fn page_cache_alone_never_evicts() {
    let mut random = 0x5eed_u64;
    let mut next = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u64::try_from((u128::from(random) * u128::from(bound)) >> 64).expect("below bound")
    };
    let headroom = TOTAL / 10 + 1;
    let (mut n_short, mut n_evicted) = (0, 0);
    for _ in 0..400 {
        let is_by_cache = next(2) == 0;
        let mut story = Story::full();
        story.config.duration = Duration::from_secs(1 + next(10));
        for _ in 0..60 {
            let most = TOTAL - headroom;
            story.anon = match is_by_cache {
                true => next(most + 1),
                false => most + 1 + next(headroom),
            };
            let cache = TOTAL.saturating_sub(story.anon);
            story.active = match is_by_cache {
                true => next(cache + 1),
                false => 0,
            };
            story.inactive = next(cache - story.active + 1);
            let available = TOTAL - (story.anon + story.active);
            n_short += u32::from(is_by_cache && available < headroom);
            let stalled = 60 + next(41);
            if let StallVerdict::Evict { .. } = story.after(1 + next(3), stalled) {
                assert!(!is_by_cache, "{} of cache", story.active + story.inactive);
                n_evicted += 1;
                break;
            }
        }
    }
    // The property was put to the test: kubelet's figure was below the headroom, and those whose
    // processes took the memory did lose a pod.
    assert!(
        n_short > 500,
        "{n_short} readings were short by kubelet's measure"
    );
    assert!(n_evicted > 150, "{n_evicted} evictions for processes");
}
