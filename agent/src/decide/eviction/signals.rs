//! Signals from readings (pkg/kubelet/eviction/helpers.go, v1.36: `makeSignalObservations`): what
//! is available of each, out of how much.
//!
//! On `None`: a signal whose readings are missing is left out. It is unknown then, neither met nor
//! healthy; the others are not touched by it.

use std::collections::BTreeMap;

use super::reclaimable::{CacheEvidence, Look, reclaimable};
use crate::config::Compat;
use crate::model::eviction::{FsUse, MemoryMethod, MemoryUse, NodeReading, Observation, Signal};

/// The signals that `now` tells. `before` is a whole reading of some ten seconds earlier, for what
/// happened to page cache since; only the estimate looks at it, and takes all active file pages for
/// used without it.
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
/// stays. `None`: it is there already. What kubelet registers on v1
/// (pkg/kubelet/eviction/memory_threshold_notifier_others.go, v1.36: `UpdateThreshold`).
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
    let used = |method| node_used(now, before, method);
    let free_of_cpus = now.free_of_cpus.unwrap_or(0);
    match method {
        // By those that are known.
        MemoryMethod::Least => MemoryMethod::MEASURED.into_iter().filter_map(used).max(),
        MemoryMethod::WorkingSet => Some(now.root?.working_set()),
        MemoryMethod::Meminfo => {
            let available = now.memory_available?.saturating_add(free_of_cpus);
            Some(total.saturating_sub(available))
        }
        // What is neither free nor on a list of files is not to be had: anonymous memory, slabs,
        // stacks, page tables, sockets, and the huge page pools. So none of them is asked for.
        MemoryMethod::Estimate => {
            let root = MemoryUse {
                slab_reclaimable: now.slab_reclaimable,
                ..written(now.root?)
            };
            let evidence = evidence(before, now, |it| (it.root, it.stall));
            let available = now
                .memory_free?
                .saturating_add(free_of_cpus)
                .saturating_add(reclaimable(&root, evidence.as_ref()))
                .saturating_sub(now.low_watermark.unwrap_or(0));
            Some(total.saturating_sub(available))
        }
    }
}

fn pods_used(now: &NodeReading, before: Option<&NodeReading>, method: MemoryMethod) -> Option<u64> {
    let pods = now.kubepods?;
    match method {
        // `MemAvailable` knows no cgroups, and the estimate of a cgroup is never above its working
        // set: the kernel's own memory is outside.
        MemoryMethod::Least | MemoryMethod::WorkingSet | MemoryMethod::Meminfo => {
            Some(pods.working_set())
        }
        MemoryMethod::Estimate => {
            let evidence = evidence(before, now, |it| (it.kubepods, it.kubepods_stall));
            Some(
                pods.usage
                    .saturating_sub(reclaimable(&written(pods), evidence.as_ref())),
            )
        }
    }
}

/// Dirty pages count as available, as in kubelet's working set and in `MemAvailable`: whoever writes
/// them, or wants the memory, waits for the disk, and nobody is killed for it. A fast writer would
/// have to go for them within milliseconds.
fn written(memory: MemoryUse) -> MemoryUse {
    MemoryUse { dirty: 0, ..memory }
}

/// What two readings say of the cache of a part of the node.
fn evidence(
    before: Option<&NodeReading>,
    now: &NodeReading,
    part: impl Fn(&NodeReading) -> Look,
) -> Option<CacheEvidence> {
    let before = before?;
    let elapsed = now.at.checked_sub(before.at)?;
    let page_size = now.page_size.unwrap_or(4096);
    CacheEvidence::of_looks(part(before), part(now), elapsed, page_size)
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
