//! The order in which pods are evicted (pkg/kubelet/eviction/helpers.go, v1.36:
//! `rankMemoryPressure`, `rankPIDPressure`, `rankDiskPressureFunc`). Pinned by suite
//! `eviction_rank`.
//!
//! Kubelet puts pods without figures first. Here they come last and are never chosen: nobody acts
//! on a reading that is not there.

use std::cmp::Reverse;

use super::layout::{FsLayout, Measured};
use crate::config::Compat;
use crate::model::eviction::{DiskUse, PodFacts, PodFigures, PodReading, Signal, StarvedResource};
use crate::model::quantity::{Format, Quantity};

/// A pod with its place in the order.
#[derive(Clone, Debug)]
pub struct Ranked<'a> {
    pub reading: &'a PodReading,
    pub key: RankKey,
    /// What it uses of the signal's resource: bytes, inodes, processes or tasks. `None`: not known.
    pub usage: Option<u64>,
}

/// Smaller goes first. Pods with equal keys are equal to kubelet; ours go by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankKey {
    certainty: Certainty,
    is_within_request: bool,
    priority: i32,
    /// Of pods of one priority kubelet puts those first whose processes it does not know.
    is_counted: bool,
    excess: Reverse<Quantity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Certainty {
    /// Kubelet's place for pods without figures.
    UnknownFirst,
    Known,
    UnknownLast,
}

/// All pods, first to be evicted first.
pub fn rank<'a>(
    signal: Signal,
    layout: FsLayout,
    compat: Compat,
    pods: &'a [PodReading],
) -> Vec<Ranked<'a>> {
    let measured = layout.measured(signal);
    let mut ranked: Vec<Ranked<'a>> = pods
        .iter()
        .map(|reading| {
            let usage = usage(signal, measured, compat, reading);
            Ranked {
                reading,
                key: key(signal, compat, &reading.facts, usage),
                usage,
            }
        })
        .collect();
    ranked.sort_by(|a, b| {
        let by_name = || a.reading.facts.pod.cmp(&b.reading.facts.pod);
        a.key.cmp(&b.key).then_with(by_name)
    });
    ranked
}

fn key(signal: Signal, compat: Compat, facts: &PodFacts, usage: Option<u64>) -> RankKey {
    let is_of_pids = signal.resource() == StarvedResource::Pids;
    let certainty = match (usage, compat) {
        (Some(_), _) => Certainty::Known,
        (None, Compat::Kubelet) if is_of_pids => Certainty::Known,
        (None, Compat::Kubelet) => Certainty::UnknownFirst,
        (None, Compat::Ballast) => Certainty::UnknownLast,
    };
    // Pods of which nothing is known have nothing to compare.
    let used = usage.map_or(Quantity::ZERO, |it| {
        Quantity::from_units(i64::try_from(it).unwrap_or(i64::MAX), Format::BinarySi)
    });
    let request = match (signal.resource(), compat) {
        _ if usage.is_none() => &Quantity::ZERO,
        (StarvedResource::Memory, _) => &facts.memory_request,
        (StarvedResource::EphemeralStorage, _) => &facts.storage_request,
        // Kubelet takes bytes off a count.
        (StarvedResource::Inodes, Compat::Kubelet) => &facts.storage_request,
        (StarvedResource::Inodes | StarvedResource::Pids, _) => &Quantity::ZERO,
    };
    let is_within_request = match signal.resource() {
        StarvedResource::Memory | StarvedResource::EphemeralStorage => used <= *request,
        StarvedResource::Inodes => used.is_zero(),
        StarvedResource::Pids => false,
    };
    RankKey {
        certainty,
        is_within_request,
        priority: facts.priority,
        is_counted: usage.is_some() || !is_of_pids,
        excess: Reverse(used.minus(request)),
    }
}

/// What a pod uses of the signal's resource, as far as it is known.
pub fn known_usage(signal: Signal, layout: FsLayout, reading: &PodReading) -> Option<u64> {
    usage(signal, layout.measured(signal), Compat::Ballast, reading)
}

/// `None`: not known. With kubelet's rules a figure that is missing among others is 0.
fn usage(signal: Signal, measured: Measured, compat: Compat, reading: &PodReading) -> Option<u64> {
    let figures = reading.figures.as_ref()?;
    let known = match signal.resource() {
        StarvedResource::Memory => figures.memory_working_set,
        StarvedResource::EphemeralStorage => disk(&reading.facts, figures, measured, |it| it.bytes),
        StarvedResource::Inodes => disk(&reading.facts, figures, measured, |it| it.inodes),
        StarvedResource::Pids => match compat {
            Compat::Kubelet => figures.processes,
            Compat::Ballast => figures.tasks,
        },
    };
    match compat {
        Compat::Kubelet => Some(known.unwrap_or(0)),
        Compat::Ballast => known,
    }
}

/// The sum of what is known; `None` if something is to be measured and nothing is known.
fn disk(
    facts: &PodFacts,
    figures: &PodFigures,
    measured: Measured,
    of: impl Fn(&DiskUse) -> Option<u64>,
) -> Option<u64> {
    let containers = figures.containers.values();
    let root_fs = containers
        .clone()
        .filter(|_| measured.root_fs)
        .map(|it| of(&it.root_fs));
    let logs = containers.filter(|_| measured.logs).map(|it| of(&it.logs));
    let volumes = facts
        .volumes
        .iter()
        .filter(|it| measured.local_volumes && it.is_local)
        .map(|it| figures.volumes.get(&it.name).and_then(&of));
    let shared = of(&figures.shared).filter(|_| measured.logs);
    let parts = root_fs.chain(logs).chain(volumes);
    let mut parts = parts.chain(shared.map(Some)).peekable();
    if parts.peek().is_none() {
        return Some(0);
    }
    parts.flatten().fold(None, |sum: Option<u64>, it| {
        Some(sum.unwrap_or(0).saturating_add(it))
    })
}
