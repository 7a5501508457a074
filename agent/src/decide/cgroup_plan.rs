//! Desired against observed cgroups: the steps that make the difference, and no others.
//!
//! In: desired cgroups, parents before children, and what was read of each. Out: steps in an
//! order that the kernel accepts. A second call on what the steps have made yields none.
//!
//! Order: cgroups are created, repaired and loosened from the root down, and tightened from the
//! leaves up, because v1 refuses a child that may use more CPU, or other CPUs, than its parent. A
//! cpuset that is to move is first widened by what it gets where cgroups lie below it. Last of all, a
//! cpuset that was emptied gets its processes back, those that have stayed away before too.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::cgroup::{
    CgroupStep, Controller, DesiredCgroup, Existence, FileValue, InterfaceFile, ObservedCgroup,
};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::units::Limit;

/// The kernel drops no more cache for one write of a limit, which takes some tenths of a second of the pass.
const MOST_DROPPED: u64 = 512 << 20;

/// By less than this a limit does not go below the usage, unless it is there then: what is known of the cache lags behind
/// by up to 64 pages for each CPU (`memcg_vmstats_needs_flush`, mm/memcontrol.c, Linux 6.12), 16 MiB with 64 CPUs.
const LEAST_DROPPED: u64 = 16 << 20;

/// A change that is wanted but not taken at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferred {
    pub path: CgroupPath,
    pub file: InterfaceFile,
    /// What is wanted in the end.
    pub to: FileValue,
    /// What is set instead until usage has come down, if anything.
    pub meanwhile: Option<FileValue>,
}

/// A list that is set as wanted and of which the cgroup has not everything: an ancestor has a mask,
/// or a CPU is offline. Writing it again would change nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ineffective {
    pub path: CgroupPath,
    pub file: InterfaceFile,
    pub wanted: CpuSet,
    pub effective: CpuSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPlan {
    pub steps: Vec<CgroupStep>,
    pub deferred: Vec<Deferred>,
    pub ineffective: Vec<Ineffective>,
}

/// Plans the difference. A cgroup without an observation counts as absent; a file that could not
/// be read in a cgroup that exists is written.
///
/// A memory limit below the present usage makes the kernel of v2 kill inside the cgroup at once
/// (issue 141609 of Kubernetes); that of v1 drops all cache, and swaps out what it can, before it refuses.
/// It follows what is in use and cannot be dropped down instead, one pass at a time, and shows in `deferred`
/// until it is there. An unknown usage defers the whole change. So much as a limit stays above what is wanted,
/// so much does that of the cgroup right above it: who keeps to its own limit has room beside one that does
/// not yet. One that is the sum of those below rises as much for it.
pub fn plan_cgroups(
    desired: &[DesiredCgroup],
    observed: &BTreeMap<CgroupPath, ObservedCgroup>,
) -> CgroupPlan {
    let mut plan = CgroupPlan::default();
    let mut tighten = Vec::new();
    let mut refill = Vec::new();
    let absent = ObservedCgroup::absent();
    let held = held_below(desired, observed);
    for cgroup in desired {
        let seen = observed.get(&cgroup.path).unwrap_or(&absent);
        let path = &cgroup.path;
        match &seen.existence {
            Existence::Absent => plan.steps.push(CgroupStep::Create { path: path.clone() }),
            Existence::Degraded { missing } => plan.steps.push(CgroupStep::Repair {
                path: path.clone(),
                missing: missing.clone(),
            }),
            Existence::Healthy if seen.has_lost_processes || is_emptied(cgroup, seen) => {
                refill.push(CgroupStep::Repair {
                    path: path.clone(),
                    missing: BTreeSet::from([Controller::Cpuset.name().to_owned()]),
                });
            }
            Existence::Healthy => {}
        }
        let mut down = Vec::new();
        let mut is_memory_deferred = false;
        for (file, to) in &cgroup.files {
            let from = seen.values.get(file);
            let mut to = to.clone();
            if is_memory_deferred && waits_for_limit(file) && is_tighter(from, &to) {
                continue;
            }
            if file.is_memory_limit() && seen.existence != Existence::Absent {
                let held = held.get(path).copied().unwrap_or(0);
                let now = soften(cgroup, file, &to, seen, held);
                if now.as_ref() != Some(&to) {
                    is_memory_deferred = true;
                    plan.deferred.push(Deferred {
                        path: path.clone(),
                        file: file.clone(),
                        to: to.clone(),
                        meanwhile: now.clone().filter(|it| from != Some(it)),
                    });
                }
                match now {
                    Some(value) => to = value,
                    None => continue,
                }
            }
            if from == Some(&to) {
                if let (FileValue::List(wanted), Some(effective)) = (&to, seen.effective.get(file))
                    && effective != wanted
                {
                    plan.ineffective.push(Ineffective {
                        path: path.clone(),
                        file: file.clone(),
                        wanted: wanted.clone(),
                        effective: effective.clone(),
                    });
                }
                continue;
            }
            let is_tighter = is_tighter(from, &to);
            if let (Some(FileValue::List(from)), FileValue::List(wanted)) = (from, &to)
                && is_tighter
                && !wanted.is_subset(from)
                && has_cgroup_below(desired, path)
            {
                plan.steps.push(CgroupStep::Write {
                    path: path.clone(),
                    file: file.clone(),
                    from: Some(FileValue::List(from.clone())),
                    to: FileValue::List(from.union(wanted)),
                });
            }
            let step = CgroupStep::Write {
                path: path.clone(),
                file: file.clone(),
                from: from.cloned(),
                to,
            };
            if is_tighter {
                down.push(step);
            } else {
                plan.steps.push(step);
            }
        }
        tighten.push(down);
    }
    plan.steps.extend(tighten.into_iter().rev().flatten());
    // The kernel takes no process into a cpuset without CPUs.
    plan.steps.extend(refill);
    plan
}

/// v1: the kernel moves the processes of a cpuset that loses its last CPU to the cgroup above it, where they stay when
/// there are others for it (kernel/cgroup/cpuset-v1.c, Linux 6.18: `cpuset1_hotplug_update_tasks`). On v2, which says
/// what a cgroup has in effect, an empty list is that of the cgroup above.
fn is_emptied(wanted: &DesiredCgroup, seen: &ObservedCgroup) -> bool {
    wanted.files.iter().any(|(file, _)| {
        let value = seen.values.get(file);
        matches!(value, Some(FileValue::List(ids)) if ids.is_empty())
            && !seen.effective.contains_key(file)
    })
}

/// Bytes by which the memory limits of the cgroups right below one stay above what they are to be.
fn held_below(
    desired: &[DesiredCgroup],
    observed: &BTreeMap<CgroupPath, ObservedCgroup>,
) -> BTreeMap<CgroupPath, u64> {
    let mut held: BTreeMap<CgroupPath, u64> = BTreeMap::new();
    for cgroup in desired.iter().rev() {
        let limit = cgroup.files.iter().find(|(it, _)| it.is_memory_limit());
        let seen = observed.get(&cgroup.path);
        let seen = seen.filter(|it| it.existence != Existence::Absent);
        if let (Some((file, to)), Some(seen), Some(above)) = (limit, seen, cgroup.path.parent())
            && let FileValue::Limit(Limit::At(wanted)) = to
        {
            let below = held.get(&cgroup.path).copied().unwrap_or(0);
            let now = soften(cgroup, file, to, seen, below);
            let more = match now.as_ref().or(seen.values.get(file)) {
                Some(FileValue::Limit(Limit::At(bytes))) => bytes.saturating_sub(*wanted),
                _ => u64::MAX,
            };
            let sum = held.entry(above).or_default();
            *sum = sum.saturating_add(more);
        }
    }
    held
}

/// What a memory limit is to be now; `None`: it stays. `held`: see [`held_below`].
fn soften(
    cgroup: &DesiredCgroup,
    file: &InterfaceFile,
    to: &FileValue,
    seen: &ObservedCgroup,
    held: u64,
) -> Option<FileValue> {
    let FileValue::Limit(Limit::At(wanted)) = to else {
        return Some(to.clone());
    };
    let current = match seen.values.get(file) {
        Some(FileValue::Limit(limit)) => *limit,
        _ => Limit::Max,
    };
    let is_lowered = current > Limit::At(*wanted);
    let in_use = match seen.memory_usage {
        _ if !is_lowered => *wanted,
        usage => lowest(usage?, seen.memory_clean, *wanted),
    };
    let Some(room) = wanted.checked_add(held) else {
        return (!is_lowered).then(|| to.clone());
    };
    let most = current.max(Limit::At(*wanted));
    let room = match cgroup.is_sum {
        // One of those below may have got more while another one has not given up its own yet.
        true => Limit::At(room),
        false => Limit::At(room).min(most),
    };
    // Usage above the current limit is a reading in the past.
    Some(FileValue::Limit(Limit::At(in_use).min(most).max(room)))
}

/// How far down a limit may go at once: `wanted` at least.
fn lowest(usage: u64, clean: u64, wanted: u64) -> u64 {
    let dropped = clean.min(MOST_DROPPED);
    match usage.saturating_sub(dropped) {
        rest if rest <= wanted => wanted,
        // Whole pages still.
        _ => usage.saturating_sub(dropped / LEAST_DROPPED * LEAST_DROPPED),
    }
}

/// It goes no lower before the limit of memory is there: below what is in use all would be throttled until then, and v1
/// has the limit of memory and swap together at that of memory at least.
fn waits_for_limit(file: &InterfaceFile) -> bool {
    matches!(&*file.name, "memory.high" | "memory.memsw.limit_in_bytes")
}

fn has_cgroup_below(desired: &[DesiredCgroup], path: &CgroupPath) -> bool {
    desired
        .iter()
        .any(|it| it.path.below(path).is_some_and(|below| !below.is_empty()))
}

/// Whether a write takes away from what the cgroup may use. Where no old value is known it does not: a new cgroup has its
/// values before there is one below it.
pub(super) fn is_tighter(from: Option<&FileValue>, to: &FileValue) -> bool {
    let ordering = match (from, to) {
        (Some(FileValue::Number(from)), FileValue::Number(to)) => to.cmp(from),
        (Some(FileValue::Limit(from)), FileValue::Limit(to)) => to.cmp(from),
        (Some(FileValue::CpuMax(from)), FileValue::CpuMax(to)) => match (from.quota, to.quota) {
            (Limit::At(q0), Limit::At(q1)) => (u128::from(q1) * u128::from(from.period.0))
                .cmp(&(u128::from(q0) * u128::from(to.period.0))),
            (from, to) => to.cmp(&from),
        },
        (Some(FileValue::List(from)), FileValue::List(to)) if !from.is_subset(to) => Ordering::Less,
        _ => Ordering::Greater,
    };
    ordering == Ordering::Less
}

#[cfg(test)]
mod tests;
