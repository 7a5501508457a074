//! Signals from readings (spec eviction 1.1): what is available of each, out of how much.
//!
//! On `None`: a signal whose readings are missing is left out. It is unknown then, neither met nor
//! healthy; the others are not touched by it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::Compat;
use crate::model::eviction::{
    FsUse, MemoryMethod, MemoryUse, NodeReading, Observation, Signal, StallTotals,
};

/// How long a page that came back is taken to be in use. Arbitrary: kubelet's period, in which it
/// would not have looked again either.
const IN_USE: Duration = Duration::from_secs(10);

/// With this share of time stalled, 1 in so many, all active file pages count as in use: the kernel
/// does not get at memory without making somebody wait. Arbitrary; a node with memory to spare
/// stalls for less than a thousandth.
const STALLED_ONE_IN: u64 = 10;

/// The signals that `now` tells. `before` is a whole reading of some seconds earlier, for what
/// happened since; only [`MemoryMethod::Estimate`] looks at it.
pub fn observations(
    now: &NodeReading,
    before: Option<&NodeReading>,
    method: MemoryMethod,
    compat: Compat,
) -> BTreeMap<Signal, Observation> {
    let observation = |available: u64, capacity: u64| Observation {
        available: signed(available),
        capacity: signed(capacity),
        at: Some(now.at),
    };
    let memory = |used: u64, capacity: u64| Observation {
        available: match compat {
            Compat::Ballast => signed(capacity.saturating_sub(used)),
            Compat::Kubelet => signed(capacity).saturating_sub(signed(used)),
        },
        ..observation(0, capacity)
    };
    let mut found = BTreeMap::new();
    if let Some(used) = node_used(now, before, method) {
        found.insert(Signal::MemoryAvailable, memory(used, now.memory_total));
    }
    if let (Some(used), Some(limit)) = (pods_used(now, before, method), now.kubepods_limit) {
        found.insert(Signal::AllocatableMemoryAvailable, memory(used, limit));
    }
    // Images and writable layers are on the file system of the state directory with the process
    // runtime.
    for (bytes, inodes) in [
        (Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
        (Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree),
    ] {
        let Some(fs) = now.nodefs else { continue };
        found.insert(bytes, observation(fs.available, fs.capacity));
        if let FsUse {
            inodes_free: Some(free),
            inodes: Some(all),
            ..
        } = fs
        {
            found.insert(inodes, observation(free, all));
        }
    }
    if let (Some(max), Some(pids)) = (now.pids_max, now.pids) {
        found.insert(
            Signal::PidAvailable,
            observation(max.saturating_sub(pids), max),
        );
    }
    found
}

/// Bytes of the node's memory that are available by a method; 0 at least. `None`: not known.
pub fn available_memory(
    now: &NodeReading,
    before: Option<&NodeReading>,
    method: MemoryMethod,
) -> Option<u64> {
    Some(
        now.memory_total
            .saturating_sub(node_used(now, before, method)?),
    )
}

/// The usage of a cgroup, bytes, at which no more than `amount` is available if all that it grows by
/// stays. `None`: it is there already. What kubelet registers on v1 (spec eviction 1.11).
pub fn usage_at(observation: &Observation, usage: u64, amount: u64) -> Option<u64> {
    let headroom = u64::try_from(observation.available)
        .ok()?
        .checked_sub(amount)?;
    Some(usage.saturating_add(headroom))
}

fn node_used(now: &NodeReading, before: Option<&NodeReading>, method: MemoryMethod) -> Option<u64> {
    let total = now.memory_total;
    if total == 0 {
        return None;
    }
    match method {
        MemoryMethod::WorkingSet => Some(now.root?.working_set()),
        MemoryMethod::Meminfo => Some(total.saturating_sub(now.memory_available?)),
        // What is neither free nor on a list of files is not to be had: anonymous memory, slabs,
        // stacks, page tables, sockets, and the huge page pools. So none of them is asked for.
        MemoryMethod::Estimate => {
            let files = droppable(
                &now.root?,
                before.and_then(|it| Since::of(it, now, |it| (it.root, it.stall))),
            );
            let available = now
                .memory_free?
                .saturating_add(files)
                .saturating_add(now.slab_reclaimable.unwrap_or(0))
                .saturating_sub(now.low_watermark.unwrap_or(0));
            Some(total.saturating_sub(available))
        }
    }
}

fn pods_used(now: &NodeReading, before: Option<&NodeReading>, method: MemoryMethod) -> Option<u64> {
    let pods = now.kubepods?;
    match method {
        // `MemAvailable` knows no cgroups.
        MemoryMethod::WorkingSet | MemoryMethod::Meminfo => Some(pods.working_set()),
        MemoryMethod::Estimate => {
            let since =
                before.and_then(|it| Since::of(it, now, |it| (it.kubepods, it.kubepods_stall)));
            Some(
                pods.usage
                    .saturating_sub(droppable(&pods, since))
                    .saturating_sub(pods.slab_reclaimable.unwrap_or(0)),
            )
        }
    }
}

/// What happened in a cgroup between two readings.
struct Since {
    time: Duration,
    /// Bytes of files that came back after they were dropped.
    came_back: u64,
    /// Time that somebody waited for memory; 0 where it is not accounted.
    stalled: Duration,
}

impl Since {
    /// `None`: no time has passed, or the kernel does not count what comes back.
    fn of(
        before: &NodeReading,
        now: &NodeReading,
        scope: impl Fn(&NodeReading) -> (Option<MemoryUse>, Option<StallTotals>),
    ) -> Option<Self> {
        let time = now.at.checked_sub(before.at).filter(|it| !it.is_zero())?;
        let ((was, was_stalled), (is, is_stalled)) = (scope(before), scope(now));
        // A counter that went back is of another cgroup.
        let pages = is?.refaults_file?.checked_sub(was?.refaults_file?)?;
        let stalled_us = match (was_stalled, is_stalled) {
            (Some(was), Some(is)) if was.source == is.source => {
                is.some_us.checked_sub(was.some_us)?
            }
            _ => 0,
        };
        Some(Self {
            time,
            came_back: pages.saturating_mul(now.page_size.unwrap_or(4096)),
            stalled: Duration::from_micros(stalled_us),
        })
    }
}

/// Bytes of file pages that the kernel can drop without harm: the inactive ones, and of the active
/// ones those that nobody is seen to need. All active ones are needed where nothing is known.
///
/// Active pages are a working set as far as pages come back soon after they were dropped, and as far
/// as tasks wait for memory: the kernel counts a read of a page that was active when it was dropped
/// as a stall (mm/workingset.c, Linux 6.18).
fn droppable(usage: &MemoryUse, since: Option<Since>) -> u64 {
    let active = usage.active_file;
    let in_use = since.map_or(active, |since| {
        let coming_back = scale(since.came_back, IN_USE, since.time);
        let stalling = scale(
            active.saturating_mul(STALLED_ONE_IN),
            since.stalled,
            since.time,
        );
        coming_back.max(stalling).min(active)
    });
    usage
        .inactive_file
        .saturating_add(active - in_use)
        .saturating_sub(usage.dirty)
}

/// `amount * part / whole`, rounded down; `whole` is not zero.
fn scale(amount: u64, part: Duration, whole: Duration) -> u64 {
    let scaled = u128::from(amount).saturating_mul(part.as_nanos()) / whole.as_nanos();
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
