//! Suites `eviction_thresholds`, `eviction_rank` and `eviction_sync`: thresholds from texts, the
//! order of pods, and the control loop over time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use ballast::config::Compat;
use ballast::config::duration::{self, SignedDuration};
use ballast::decide::eviction::admission::{Applicant, is_admitted};
use ballast::decide::eviction::facts::pod_facts;
use ballast::decide::eviction::rank::rank;
use ballast::decide::eviction::thresholds::{
    ThresholdError, ThresholdTexts, derive_containerfs, thresholds,
};
use ballast::decide::eviction::{
    Action, FsLayout, NodeReclaim, Policy, State, is_still_short, synchronize,
};
use ballast::decide::qos::qos_class;
use ballast::model::eviction::{
    Amount, AmountError, ContainerFigures, DiskUse, Observation, PodFigures, PodReading, Signal,
    Snapshot, Threshold, Victim,
};
use ballast::model::pod::QosClass;
use ballast_tests::timing;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::resources::pod;

#[derive(Deserialize)]
struct Texts {
    eviction_hard: BTreeMap<String, String>,
    eviction_soft: BTreeMap<String, String>,
    eviction_soft_grace_period: BTreeMap<String, String>,
    eviction_minimum_reclaim: BTreeMap<String, String>,
    enforce_node_allocatable: Vec<String>,
    #[serde(flatten)]
    layout: Layout,
}

#[derive(Clone, Copy, Deserialize)]
struct Layout {
    #[serde(default)]
    dedicated_image_fs: bool,
    #[serde(default)]
    split_container_fs: bool,
}

impl From<Layout> for FsLayout {
    fn from(it: Layout) -> Self {
        match (it.dedicated_image_fs, it.split_container_fs) {
            (false, false) => Self::One,
            (true, false) => Self::ImageFs,
            (true, true) => Self::Split,
            (false, true) => Self::ContainerFs,
        }
    }
}

pub(crate) fn run_thresholds(input: &Value) -> anyhow::Result<Value> {
    let texts = Texts::deserialize(input)?;
    let mut all = match parse(&texts) {
        Ok(all) => all,
        Err(kind) => return Ok(json!({"error": kind})),
    };
    let before = sorted(&all);
    let derived = derive_containerfs(&mut all, texts.layout.into());
    Ok(json!({
        "thresholds": before,
        "with_containerfs": sorted(&all),
        "containerfs_ignored": !derived.conflicts.is_empty(),
    }))
}

/// The thresholds, or the kind of the first error. Durations are the business of the configuration;
/// kubelet reads them after the thresholds and before the amounts to reclaim.
fn parse(texts: &Texts) -> Result<Vec<Threshold>, &'static str> {
    let mut graces = BTreeMap::new();
    let mut fault = None;
    for (signal, text) in &texts.eviction_soft_grace_period {
        let grace = match duration::parse(text) {
            Ok(SignedDuration::Positive(grace)) => grace,
            Ok(SignedDuration::Negative(_)) => {
                fault = Some("negative-grace-period");
                Duration::ZERO
            }
            Err(_) => {
                fault = Some("bad-duration");
                Duration::ZERO
            }
        };
        graces.insert(signal.clone(), grace);
    }
    let no_reclaim = BTreeMap::new();
    let mut fields = ThresholdTexts {
        hard: &texts.eviction_hard,
        soft: &texts.eviction_soft,
        soft_grace: &graces,
        min_reclaim: &texts.eviction_minimum_reclaim,
        enforces_pods: texts.enforce_node_allocatable.iter().any(|it| it == "pods"),
    };
    if let Some(fault) = fault {
        fields.min_reclaim = &no_reclaim;
        return match thresholds(&fields) {
            Ok(_) | Err(ThresholdError::NoGrace { .. }) => Err(fault),
            Err(error) => Err(kind(&error)),
        };
    }
    thresholds(&fields).map_err(|error| kind(&error))
}

fn kind(error: &ThresholdError) -> &'static str {
    match error {
        ThresholdError::Signal { .. } => "unsupported-signal",
        ThresholdError::NoGrace { .. } => "no-grace-period",
        ThresholdError::Amount { source, .. } => match source {
            AmountError::Percentage(_) => "bad-percentage",
            AmountError::BelowZero(_) => "percentage-negative",
            AmountError::AboveHundred(_) => "percentage-above-100",
            AmountError::NotPositive(_) => "not-positive",
            AmountError::Reclaim(_) => "bad-min-reclaim",
            AmountError::Quantity(_) => "bad-quantity",
        },
    }
}

/// In the order of the vectors: by grace, then by text.
fn sorted(thresholds: &[Threshold]) -> Vec<Value> {
    let shown = thresholds.iter().map(|it| (it, None)).collect();
    sorted_with(shown)
}

fn sorted_with(thresholds: Vec<(&Threshold, Option<Duration>)>) -> Vec<Value> {
    let mut shown: Vec<Value> = thresholds
        .into_iter()
        .map(|(it, since)| threshold(it, since))
        .collect();
    shown.sort_by_key(ToString::to_string);
    shown
}

fn threshold(it: &Threshold, since: Option<Duration>) -> Value {
    let mut shown = json!({
        "signal": it.signal,
        "operator": "LessThan",
        "value": amount(&it.amount),
        "grace_period_seconds": seconds(it.grace),
    });
    if let Some(reclaim) = &it.min_reclaim {
        shown["min_reclaim"] = amount(reclaim);
    }
    if let Some(since) = since {
        shown["first_observed_at"] = seconds(since);
    }
    shown
}

/// Whole seconds are written without a point.
fn seconds(it: Duration) -> Value {
    if it.subsec_nanos() == 0 {
        json!(it.as_secs())
    } else {
        json!(it.as_secs_f64())
    }
}

fn amount(it: &Amount) -> Value {
    match it {
        Amount::Quantity(quantity) => json!({"quantity": quantity}),
        Amount::Fraction(fraction) if fraction.is_nan() => json!({"percentage": "NaN"}),
        Amount::Fraction(fraction) if fraction.is_infinite() => json!({"percentage": "+Inf"}),
        Amount::Fraction(fraction) if fraction.fract() == 0.0 => {
            let text = fraction.to_string();
            json!({"percentage": text.parse::<i64>().unwrap_or_default()})
        }
        // The shortest text that reads back as the same 32-bit float.
        Amount::Fraction(fraction) => {
            json!({"percentage": fraction.to_string().parse::<f64>().unwrap_or_default()})
        }
    }
}

#[derive(Deserialize)]
struct Stats {
    uid: String,
    memory_working_set: Option<u64>,
    processes: Option<u64>,
    ephemeral_storage_used: Option<u64>,
    #[serde(default)]
    containers: Vec<ContainerStats>,
    #[serde(default)]
    volumes: Vec<VolumeStats>,
}

#[derive(Deserialize)]
struct ContainerStats {
    name: String,
    memory_working_set: Option<u64>,
    rootfs_used: Option<u64>,
    rootfs_inodes_used: Option<u64>,
    logs_used: Option<u64>,
    logs_inodes_used: Option<u64>,
}

#[derive(Deserialize)]
struct VolumeStats {
    name: String,
    used: Option<u64>,
    inodes_used: Option<u64>,
}

impl From<Stats> for PodFigures {
    fn from(it: Stats) -> Self {
        let container = |it: ContainerStats| {
            let figures = ContainerFigures {
                memory_working_set: it.memory_working_set,
                root_fs: DiskUse {
                    bytes: it.rootfs_used,
                    inodes: it.rootfs_inodes_used,
                },
                logs: DiskUse {
                    bytes: it.logs_used,
                    inodes: it.logs_inodes_used,
                },
            };
            (it.name, figures)
        };
        let volume = |it: VolumeStats| {
            let figures = DiskUse {
                bytes: it.used,
                inodes: it.inodes_used,
            };
            (it.name, figures)
        };
        Self {
            memory_working_set: it.memory_working_set,
            processes: it.processes,
            storage: it.ephemeral_storage_used,
            containers: it.containers.into_iter().map(container).collect(),
            volumes: it.volumes.into_iter().map(volume).collect(),
            ..Self::default()
        }
    }
}

/// Pods by name, without figures.
fn readings(manifests: &[Value]) -> anyhow::Result<BTreeMap<String, PodReading>> {
    manifests
        .iter()
        .map(|manifest| {
            let pod = pod(manifest)?;
            let mut facts = pod_facts(&pod, qos_class(&pod), Compat::Kubelet);
            // The API server would have set it; without it kubelet has no bound of the pod's own.
            if manifest["spec"]["terminationGracePeriodSeconds"].is_null() {
                facts.termination_grace = Duration::MAX;
            }
            let reading = PodReading {
                facts: facts.into(),
                figures: None,
                ends_within: None,
            };
            Ok((pod.name, reading))
        })
        .collect()
}

fn with_figures(pods: Vec<PodReading>, stats: Option<Vec<Stats>>) -> Vec<PodReading> {
    let mut figures: BTreeMap<String, PodFigures> = stats
        .into_iter()
        .flatten()
        .map(|it| (it.uid.clone(), it.into()))
        .collect();
    pods.into_iter()
        .map(|it| PodReading {
            figures: figures.remove(&it.facts.pod.uid.0),
            ..it
        })
        .collect()
}

pub(crate) fn run_rank(input: &Value) -> anyhow::Result<Value> {
    #[derive(Deserialize)]
    struct Input {
        signal: Signal,
        pods: Vec<Value>,
        stats: Option<Vec<Stats>>,
        #[serde(flatten)]
        layout: Layout,
    }
    let input = Input::deserialize(input)?;
    let pods = readings(&input.pods)?.into_values().collect();
    let pods = with_figures(pods, input.stats);
    let layout = input.layout.into();
    let ranked = timing::decision(|| rank(input.signal, layout, Compat::Kubelet, &pods));
    let groups: Vec<Vec<&str>> = ranked
        .chunk_by(|a, b| a.key == b.key)
        .map(|group| {
            let names = group.iter().map(|it| it.reading.facts.pod.name.as_str());
            names.collect()
        })
        .collect();
    Ok(json!({"order": groups}))
}

#[derive(Deserialize)]
struct Story {
    #[serde(flatten)]
    texts: Texts,
    pressure_transition_period_seconds: u64,
    max_pod_grace_period_seconds: u64,
    local_storage_capacity_isolation: bool,
    pods: Vec<Value>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    advance_seconds: u64,
    node: Node,
    node_after_gc: Option<Node>,
    pod_stats: Option<Vec<Stats>>,
    active_pods: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Node {
    memory: Option<Memory>,
    pods_memory: Option<Memory>,
    nodefs: Option<Fs>,
    imagefs: Option<Fs>,
    containerfs: Option<Fs>,
    pid: Option<Pids>,
    stats_time: Option<u64>,
}

#[derive(Deserialize)]
struct Memory {
    available: i64,
    working_set: i64,
}

#[derive(Deserialize)]
struct Fs {
    available: Option<i64>,
    capacity: Option<i64>,
    inodes_free: Option<i64>,
    inodes: Option<i64>,
}

#[derive(Deserialize)]
struct Pids {
    max_pid: i64,
    running: i64,
}

impl Node {
    fn observations(&self) -> BTreeMap<Signal, Observation> {
        let at = self.stats_time.map(Duration::from_secs);
        let mut all = BTreeMap::new();
        let mut add = |signal, available: Option<i64>, capacity: Option<i64>| {
            if let (Some(available), Some(capacity)) = (available, capacity) {
                let observation = Observation {
                    available,
                    capacity,
                    at,
                };
                all.insert(signal, observation);
            }
        };
        for (signal, memory) in [
            (Signal::MemoryAvailable, &self.memory),
            (Signal::AllocatableMemoryAvailable, &self.pods_memory),
        ] {
            if let Some(it) = memory {
                let capacity = it.available + it.working_set;
                add(signal, Some(it.available), Some(capacity));
            }
        }
        for (bytes, inodes, fs) in [
            (
                Signal::NodeFsAvailable,
                Signal::NodeFsInodesFree,
                &self.nodefs,
            ),
            (
                Signal::ImageFsAvailable,
                Signal::ImageFsInodesFree,
                &self.imagefs,
            ),
            (
                Signal::ContainerFsAvailable,
                Signal::ContainerFsInodesFree,
                &self.containerfs,
            ),
        ] {
            if let Some(it) = fs {
                add(bytes, it.available, it.capacity);
                add(inodes, it.inodes_free, it.inodes);
            }
        }
        if let Some(it) = &self.pid {
            let available = it.max_pid - it.running;
            add(Signal::PidAvailable, Some(available), Some(it.max_pid));
        }
        all
    }
}

/// Where the reference takes one of several thresholds at random, ours has to be one of its outcomes.
pub(crate) fn run_sync(input: &Value, expect: &Value) -> anyhow::Result<Value> {
    let story = Story::deserialize(input)?;
    let mut thresholds = parse(&story.texts).map_err(anyhow::Error::msg)?;
    let layout = story.texts.layout.into();
    let derived = derive_containerfs(&mut thresholds, layout);
    let policy = Policy {
        thresholds,
        n_known_at_first: derived.n_before,
        transition_period: Duration::from_secs(story.pressure_transition_period_seconds),
        max_pod_grace: Duration::from_secs(story.max_pod_grace_period_seconds),
        limits_local_storage: story.local_storage_capacity_isolation,
        layout,
        compat: Compat::Kubelet,
    };
    let pods = readings(&story.pods)?;
    let mut state = State::default();
    let mut now = Duration::ZERO;
    let mut shown = Vec::new();
    for (i, step) in story.steps.into_iter().enumerate() {
        now += Duration::from_secs(step.advance_seconds);
        let active = step.active_pods.unwrap_or_default();
        let active = active
            .iter()
            .map(|name| pods.get(name).cloned().context("an active pod"));
        let snapshot = Snapshot {
            at: now,
            observations: step.node.observations(),
            pods: with_figures(active.collect::<Result<_, _>>()?, step.pod_stats),
            ..Snapshot::default()
        };
        let decision = timing::decision(|| synchronize(&policy, &state, &snapshot));
        let mut reclaimed: BTreeSet<NodeReclaim> = BTreeSet::new();
        let victims: Vec<Victim> = match decision.action {
            None => Vec::new(),
            Some(Action::EvictAll { victims }) => victims,
            Some(Action::Relieve(relief)) => {
                reclaimed.extend(&relief.reclaim);
                let after = step.node_after_gc.as_ref().unwrap_or(&step.node);
                let is_needed = reclaimed.is_empty()
                    || is_still_short(&policy, &relief.threshold, &after.observations());
                let first = relief.candidates.into_iter().take(1);
                first.filter(|_| is_needed).collect()
            }
        };
        let admits = |qos, is_critical, tolerates_memory_pressure| {
            let applicant = Applicant {
                qos,
                is_critical,
                tolerates_memory_pressure,
            };
            is_admitted(&decision.conditions, applicant)
        };
        let met = decision.state.met.iter();
        let mut conditions: Vec<&str> = decision.conditions.iter().map(|it| it.as_str()).collect();
        conditions.sort_unstable();
        let mut got = json!({
            "node_conditions": conditions,
            "thresholds_observed":
                sorted_with(met.map(|it| (&it.threshold, Some(it.since))).collect()),
            "thresholds_met": sorted(&decision.state.unresolved),
            "evicted": victims.iter().map(|it| it.pod.name.as_str()).collect::<Vec<_>>(),
            "image_gc": reclaimed.contains(&NodeReclaim::UnusedImages),
            "container_gc": reclaimed.contains(&NodeReclaim::DeadContainers),
            "admit": {
                "be": admits(QosClass::BestEffort, false, false),
                "bu": admits(QosClass::Burstable, false, false),
                "cr": admits(QosClass::BestEffort, true, false),
                "to": admits(QosClass::BestEffort, false, true),
            },
        });
        if !victims.is_empty() {
            got["grace_period_override"] = victims.iter().map(|it| seconds(it.grace)).collect();
            got["messages"] = victims.iter().map(|it| json!(it.message)).collect();
        }
        let expect = &expect["steps"][i];
        let is_one_of = |outcomes: &Vec<Value>| outcomes.contains(&got);
        shown.push(match expect["any_of"].as_array().is_some_and(is_one_of) {
            true => expect.clone(),
            false => got,
        });
        state = decision.state;
    }
    Ok(json!({"steps": shown}))
}
