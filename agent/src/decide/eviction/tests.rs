//! Worked examples: of thresholds over time (T), the ranking (R), the grace (K), admission (A) and local storage (L).

mod over_time;
mod properties;
mod ranking;

use super::admission::{Applicant, is_admitted};
use super::facts::pod_facts;
use super::*;
use crate::decide::testing;
use crate::model::eviction::{
    Amount, ContainerFigures, DiskUse, EvictionCause, PodFacts, PodFigures, Snapshot, StorageLimit,
    VolumeFacts,
};
use crate::model::pod::{Pod, PodOrigin, QosClass};
use crate::model::record::PodRef;

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
const COMPATS: [Compat; 2] = [Compat::Kubelet, Compat::Ballast];

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn bytes(n: u64) -> i64 {
    i64::try_from(n).expect("less than 8 EiB")
}

/// A pod with a termination grace of 30 s that requests nothing and of which nothing is known.
fn pod(name: &str) -> PodReading {
    let facts = PodFacts::bare(PodRef {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        uid: PodUid(name.to_owned()),
    });
    PodReading {
        facts: facts.into(),
        figures: None,
        ends_within: None,
    }
}

impl PodReading {
    fn facts(mut self, change: impl FnOnce(&mut PodFacts)) -> Self {
        let mut facts = PodFacts::clone(&self.facts);
        change(&mut facts);
        self.facts = facts.into();
        self
    }

    fn figures(mut self, change: impl FnOnce(&mut PodFigures)) -> Self {
        change(self.figures.get_or_insert_default());
        self
    }

    fn memory(self, used: u64, request: u64) -> Self {
        self.facts(|it| it.memory_request = Quantity::from_bytes(request))
            .figures(|it| it.memory_working_set = Some(used))
    }

    fn priority(self, priority: i32) -> Self {
        self.facts(|it| it.priority = priority)
    }

    fn critical(self) -> Self {
        self.facts(|it| it.is_critical = true)
    }

    fn ending(mut self, within: Duration) -> Self {
        self.ends_within = Some(within);
        self
    }
}

fn threshold(signal: Signal, amount: u64, grace: u64) -> Threshold {
    Threshold {
        signal,
        amount: Amount::Quantity(Quantity::from_bytes(amount)),
        grace: secs(grace),
        min_reclaim: None,
    }
}

fn memory(amount: u64, grace: u64) -> Threshold {
    threshold(Signal::MemoryAvailable, amount, grace)
}

fn reclaiming(mut threshold: Threshold, amount: u64) -> Threshold {
    threshold.min_reclaim = Some(Amount::Quantity(Quantity::from_bytes(amount)));
    threshold
}

/// Passes over one node of 16 GiB, 100 GiB of disk and 32768 tasks.
struct Story {
    policy: Policy,
    state: State,
    pods: Vec<PodReading>,
}

fn story(compat: Compat, thresholds: &[Threshold]) -> Story {
    Story {
        policy: Policy {
            thresholds: thresholds.to_vec(),
            n_known_at_first: thresholds.len(),
            transition_period: secs(300),
            max_pod_grace: Duration::ZERO,
            limits_local_storage: true,
            layout: FsLayout::One,
            compat,
        },
        state: State::default(),
        pods: vec![pod("a").memory(2 * GI, 0), pod("b").memory(GI, 0)],
    }
}

fn observed(at: u64, available: &[(Signal, u64)]) -> BTreeMap<Signal, Observation> {
    let capacity = |signal: Signal| match signal.resource() {
        StarvedResource::Memory => 16 * GI,
        StarvedResource::EphemeralStorage => 100 * GI,
        StarvedResource::Inodes => 6_553_600,
        StarvedResource::Pids => 32_768,
    };
    let one = |(signal, available): &(Signal, u64)| {
        let observation = Observation {
            available: bytes(*available),
            capacity: bytes(capacity(*signal)),
            at: Some(secs(at)),
        };
        (*signal, observation)
    };
    available.iter().map(one).collect()
}

impl Story {
    /// One pass `at` seconds, with observations of that moment.
    fn pass(&mut self, at: u64, available: &[(Signal, u64)]) -> Decision {
        self.pass_with(at, observed(at, available))
    }

    fn pass_with(&mut self, at: u64, observations: BTreeMap<Signal, Observation>) -> Decision {
        let snapshot = Snapshot {
            at: secs(at),
            observations,
            pods: self.pods.clone(),
            ..Snapshot::default()
        };
        let decision = synchronize(&self.policy, &self.state, &snapshot);
        self.state = decision.state.clone();
        decision
    }

    /// Who goes if the memory available is this.
    fn memory(&mut self, at: u64, available: u64) -> Option<String> {
        first(&self.pass(at, &[(Signal::MemoryAvailable, available)]))
    }
}

fn relief(decision: &Decision) -> Option<&Relief> {
    match &decision.action {
        Some(Action::Relieve(relief)) => Some(relief),
        _ => None,
    }
}

/// The first candidate.
fn first(decision: &Decision) -> Option<String> {
    let victim = relief(decision)?.candidates.first()?;
    Some(victim.pod.name.clone())
}

fn reasons(decision: &Decision) -> Vec<BlockedReason> {
    decision.blocked.iter().map(|it| it.reason).collect()
}

/// The grace that kubelet raises to a second is raised where it is carried out.
#[test]
fn k_the_grace_is_the_shortest_of_those_that_apply() {
    let hard = memory(GI, 0);
    let soft = memory(GI, 1);
    let disk = threshold(Signal::NodeFsAvailable, GI, 0);
    let k = Compat::Kubelet;
    for (compat, threshold, max, own, left, wanted) in [
        (k, &hard, 0, 30, None, 1),
        (Compat::Ballast, &hard, 0, 30, None, 0),
        (Compat::Ballast, &disk, 0, 30, None, 1),
        (k, &soft, 0, 30, None, 0),
        (k, &soft, 60, 30, None, 30),
        (k, &soft, 60, 120, None, 60),
        (k, &soft, 60, u64::MAX, None, 60),
        (k, &hard, 0, 30, Some(30), 1),
        (k, &soft, 60, 120, Some(10), 10),
        (Compat::Ballast, &soft, 60, 120, Some(10), 10),
    ] {
        let mut story = story(compat, &[]);
        story.policy.max_pod_grace = secs(max);
        let mut reading = pod("a").facts(|it| it.termination_grace = secs(own));
        reading.ends_within = left.map(secs);
        let got = grace(&story.policy, threshold, &reading);
        assert_eq!(
            got,
            secs(wanted),
            "{compat:?} {threshold:?} {max} {own} {left:?}"
        );
    }
}

#[test]
fn a_who_is_admitted_under_pressure() {
    let memory = NodeCondition::MemoryPressure;
    let disk = NodeCondition::DiskPressure;
    let pids = NodeCondition::PIDPressure;
    let [best_effort, burstable, guaranteed] = [
        QosClass::BestEffort,
        QosClass::Burstable,
        QosClass::Guaranteed,
    ];
    for (row, conditions, qos, is_critical, tolerates, wanted) in [
        ("A1", &[][..], best_effort, false, false, true),
        ("A2", &[memory], burstable, false, false, true),
        ("A3", &[memory], best_effort, false, false, false),
        ("A4", &[memory], best_effort, false, true, true),
        ("A6", &[memory, disk], guaranteed, false, false, false),
        ("A7", &[disk], best_effort, true, false, true),
        ("A8", &[pids], burstable, false, false, false),
        ("A9", &[memory, pids], best_effort, true, false, true),
    ] {
        let conditions = conditions.iter().copied().collect();
        let pod = Applicant {
            qos,
            is_critical,
            tolerates_memory_pressure: tolerates,
        };
        assert_eq!(is_admitted(&conditions, pod), wanted, "{row}");
    }
    let both = BTreeSet::from([disk, memory]);
    let text = "The node had condition: [MemoryPressure DiskPressure]. ";
    assert_eq!(message::admission_message(&both), text);
}

#[test]
fn a_definition_says_who_applies() {
    let memory = BTreeSet::from([NodeCondition::MemoryPressure]);
    let critical = || Pod {
        priority: Some(2_000_000_000),
        ..testing::pod("app {}")
    };
    for (row, pod, wanted) in [
        ("requests nothing", testing::pod("app {}"), false),
        ("requests", testing::pod("app {req memory=1Mi}"), true),
        ("critical", critical(), true),
    ] {
        for compat in COMPATS {
            let applicant = Applicant::of(&pod, compat);
            assert_eq!(is_admitted(&memory, applicant), wanted, "{row}");
        }
    }
}

/// Bytes in one emptyDir `v`, which may hold `limit`.
fn volume(used: u64, limit: u64) -> PodReading {
    let usage = DiskUse {
        bytes: Some(used),
        inodes: None,
    };
    pod("z")
        .facts(|it| {
            it.volumes.push(VolumeFacts {
                name: "v".to_owned(),
                is_local: true,
                size_limit: Some(Quantity::from_bytes(limit)),
            });
        })
        .figures(|it| it.volumes = BTreeMap::from([("v".to_owned(), usage)]))
}

/// Containers `c0`, `c1` with their limit of local storage, bytes in the root file system and in logs.
fn containers(parts: &[(Option<u64>, u64, u64)]) -> PodReading {
    let mut spec = String::new();
    for (limit, ..) in parts {
        let limit = limit.map_or(String::new(), |it| format!("lim ephemeral-storage={it}"));
        spec += &format!("app {{{limit}}} ");
    }
    let facts = pod_facts(
        &testing::pod(spec.trim_end()),
        QosClass::Burstable,
        Compat::Ballast,
    );
    let bytes = |n| DiskUse {
        bytes: Some(n),
        inodes: None,
    };
    let figures = facts
        .containers
        .iter()
        .zip(parts)
        .map(|(it, (_, root_fs, logs))| {
            let figures = ContainerFigures {
                memory_working_set: None,
                root_fs: bytes(*root_fs),
                logs: bytes(*logs),
            };
            (it.name.clone(), figures)
        });
    let figures = PodFigures {
        containers: figures.collect(),
        storage: Some(parts.iter().map(|(_, root_fs, logs)| root_fs + logs).sum()),
        ..PodFigures::default()
    };
    PodReading {
        facts: facts.into(),
        figures: Some(figures),
        ends_within: None,
    }
}

#[test]
fn l_a_pod_over_a_limit_of_its_own_goes() {
    let two = [(Some(GI), 1536 * MI, 0), (Some(2 * GI), 0, 0)];
    let logs = [(Some(GI), 1536 * MI, 10 * MI), (Some(2 * GI), 0, 0)];
    let three = [(Some(GI), 0, 100 * MI), (None, 950 * MI, 0)];
    for (row, layout, reading, label) in [
        ("L1", FsLayout::One, volume(GI, GI), None),
        (
            "L1",
            FsLayout::One,
            volume(GI + 1, GI),
            Some("emptydirfs.limit"),
        ),
        ("L2", FsLayout::One, volume(GI, 0), None),
        (
            "L3",
            FsLayout::One,
            containers(&three),
            Some("ephemeralpodfs.limit"),
        ),
        (
            "L4",
            FsLayout::One,
            containers(&two),
            Some("ephemeralcontainerfs.limit"),
        ),
        ("L5", FsLayout::ImageFs, containers(&logs), None),
        ("L7", FsLayout::One, volume(GI + 1, GI).critical(), None),
        (
            "ends",
            FsLayout::One,
            volume(GI + 1, GI).ending(secs(1)),
            None,
        ),
    ] {
        let mut story = story(Compat::Ballast, &[]);
        story.policy.layout = layout;
        story.pods = vec![reading];
        let victims = match story.pass(0, &[]).action {
            Some(Action::EvictAll { victims }) => victims,
            _ => Vec::new(),
        };
        let labels: Vec<&str> = victims.iter().map(|it| it.cause.label()).collect();
        assert_eq!(labels, label.into_iter().collect::<Vec<_>>(), "{row}");
        assert!(victims.iter().all(|it| it.grace == secs(1)), "{row}");
    }
}

#[test]
fn l6_all_pods_over_their_limits_go_before_any_pressure_is_looked_at() {
    let mut story = story(Compat::Ballast, &[memory(GI, 0)]);
    let named = |name: &str| volume(2 * GI, GI).facts(|it| it.pod.name = name.to_owned());
    story.pods.extend([named("y"), named("z")]);
    let decision = story.pass(0, &[(Signal::MemoryAvailable, 0)]);
    let Some(Action::EvictAll { victims }) = decision.action else {
        panic!("{:?}", decision.action);
    };
    let names: Vec<&str> = victims.iter().map(|it| it.pod.name.as_str()).collect();
    assert_eq!(names, ["y", "z"]);
    let volume = "v".to_owned();
    let limit = StorageLimit::EmptyDir { volume };
    assert_eq!(victims[0].cause, EvictionCause::LocalStorage { limit });
    assert_eq!(
        victims[0].message,
        "Usage of EmptyDir volume \"v\" exceeds the limit \"1Gi\". "
    );
}

#[test]
fn the_state_of_a_story_can_be_written_and_read_back() {
    let mut story = story(
        Compat::Ballast,
        &[reclaiming(memory(GI, 0), MI), memory(2 * GI, 60)],
    );
    story.pods[0].ends_within = Some(secs(3));
    let decision = story.pass(7, &[(Signal::MemoryAvailable, 900 * MI)]);
    let text = serde_json::to_string(&decision).expect("plain data");
    let read: Decision = serde_json::from_str(&text).expect("the same");
    assert_eq!(read, decision);
}

/// Without a kubelet every pod is from a manifest, and only what says so is critical.
#[test]
fn a_pod_of_a_manifest_can_be_evicted() {
    let mut plain = testing::pod("app {}");
    plain.origin = PodOrigin::Manifest;
    let mut says_so = plain.clone();
    let source = crate::model::pod::CONFIG_SOURCE_ANNOTATION.to_owned();
    says_so.annotations.insert(source, "file".to_owned());
    let mut priority = plain.clone();
    priority.priority = Some(2_000_000_000);
    for (pod, kubelets, ours) in [
        (&plain, true, false),
        (&says_so, true, true),
        (&priority, true, true),
    ] {
        let is_critical = |compat| pod_facts(pod, QosClass::BestEffort, compat).is_critical;
        let got = (is_critical(Compat::Kubelet), is_critical(Compat::Ballast));
        assert_eq!(got, (kubelets, ours), "{:?}", pod.annotations);
    }
}

#[test]
fn ids_of_killed_processes_are_awaited_unless_somebody_else_takes_more() {
    let seen = |available: i64, millis: u64| Observation {
        available,
        capacity: 32_768,
        at: Some(Duration::from_millis(millis)),
    };
    let first = seen(1000, 0);
    for (now, wanted, why) in [
        (seen(1000, 2), true, "not noticed yet"),
        (seen(900, 2), true, "a little of others"),
        (seen(500, 2), false, "somebody else forks"),
        (seen(1000, 5000), false, "they do not come"),
        (Observation { at: None, ..first }, false, "no telling when"),
    ] {
        let mut reaping = Reaping::default();
        assert!(reaping.is_awaited(&first), "just killed");
        assert_eq!(reaping.is_awaited(&now), wanted, "{why}");
    }
}
