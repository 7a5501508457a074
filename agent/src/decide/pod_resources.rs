//! The resources of a pod's cgroup (pkg/kubelet/cm/helpers_linux.go, v1.36:
//! `ResourceConfigForPod`). Pinned by suite `pod_resources`.
//!
//! Hugepages are always given for a pod: sizes it does not request are 0.

use std::collections::BTreeMap;

use super::resource_settings::{CpuLimits, CpuPinning, ResourceSettings};
use crate::config::{Compat, MemoryReservationPolicy};
use crate::model::pod::{
    Overhead, Pod, PodLevel, QosClass, ResourceList, Volume, VolumeSource, cpu_in, memory_in,
};
use crate::model::quantity::Quantity;
use crate::model::resources::{CgroupResources, CpuBandwidth};
use crate::units::{Bytes, Limit, MIN_SHARES, MilliCpu, cpu_quota, cpu_shares};

/// Prefix of the resources that are counted in pages of one size.
pub(super) const HUGEPAGES_PREFIX: &str = "hugepages-";

/// What the pod's cgroup is to hold. `pinning` is `Exclusive` if any container has CPUs of its own.
pub fn pod_resources(
    pod: &Pod,
    class: QosClass,
    settings: &ResourceSettings,
    pinning: CpuPinning,
) -> CgroupResources {
    let requests = pod.requests(PodLevel::Honoured, Overhead::Added);
    let limits = pod.limits(PodLevel::Honoured, Overhead::Added);
    let bandwidth = || {
        let is_enforced =
            settings.cpu_limits == CpuLimits::Enforced && pinning == CpuPinning::Shared;
        let quota = cpu_quota(milli_cpu(&limits.amounts), settings.cpu_period);
        let quota = quota
            .filter(|_| is_enforced)
            .map_or(Limit::Max, |it| Limit::At(it.0));
        CpuBandwidth {
            quota,
            period: settings.cpu_period,
        }
    };
    let memory_max = || Limit::At(memory(&limits.amounts).0);
    let (is_cpu_limited, is_memory_limited) = match class {
        QosClass::Guaranteed => (true, true),
        QosClass::Burstable => (limits.is_cpu_declared, limits.is_memory_declared),
        QosClass::BestEffort => (false, false),
    };
    CgroupResources {
        cpu_shares: Some(match class {
            QosClass::BestEffort => MIN_SHARES,
            QosClass::Guaranteed | QosClass::Burstable => cpu_shares(milli_cpu(&requests)),
        }),
        cpu_bandwidth: is_cpu_limited.then(bandwidth),
        memory_max: is_memory_limited.then(memory_max),
        pids_max: match settings.pod_pids_limit.filter(|it| *it > 0) {
            Some(limit) => Some(Limit::At(limit)),
            None => settings.takes_back().then_some(Limit::Max),
        },
        hugetlb: Some(hugepages(&requests)),
        unified: protection(class, memory(&requests), settings),
        ..CgroupResources::default()
    }
}

/// The size of a volume in memory: the smallest of its own limit, what the pod's cgroup may hold and
/// what the node has for pods; limits of 0 are none (kubelet 1.36,
/// pkg/volume/emptydir/empty_dir.go, calculateEmptyDirMemorySize).
fn memory_volume_size(
    size_limit: Option<&Quantity>,
    pod: &CgroupResources,
    allocatable: Bytes,
) -> Bytes {
    let pod = match pod.memory_max {
        Some(Limit::At(n)) => Some(n),
        Some(Limit::Max) | None => None,
    };
    let own = size_limit.map(Quantity::units);
    let limits = [pod, own].into_iter().flatten().filter(|n| *n > 0);
    Bytes(limits.fold(allocatable.0, u64::min))
}

/// The sizes of the volumes in memory of a pod, by their names.
pub fn memory_volumes(
    pod: &Pod,
    class: QosClass,
    settings: &ResourceSettings,
    allocatable: Bytes,
) -> BTreeMap<String, Bytes> {
    let resources = pod_resources(pod, class, settings, CpuPinning::Shared);
    let size = |volume: &Volume| match &volume.source {
        VolumeSource::EmptyDir {
            memory: true,
            size_limit,
        } => {
            let size = memory_volume_size(size_limit.as_ref(), &resources, allocatable);
            Some((volume.name.clone(), size))
        }
        _ => None,
    };
    pod.volumes.iter().filter_map(size).collect()
}

/// `memory.min` or `memory.low` of the pod: its request, under TieredReservation.
fn protection(
    class: QosClass,
    request: Bytes,
    settings: &ResourceSettings,
) -> BTreeMap<String, String> {
    let is_tiered = settings
        .memory_qos
        .is_some_and(|it| it.policy == MemoryReservationPolicy::TieredReservation);
    let mut files = BTreeMap::new();
    if settings.resets_memory_protection() {
        files.insert("memory.min".to_owned(), "0".to_owned());
        files.insert("memory.low".to_owned(), "0".to_owned());
    }
    if is_tiered && request.0 > 0 {
        let file = if class == QosClass::Guaranteed {
            "memory.min"
        } else {
            "memory.low"
        };
        files.insert(file.to_owned(), request.0.to_string());
    }
    files
}

/// What is left of a pod whose end waits for something, such as a volume: the least CPU.
///
/// Hugepages are left alone. Kubelet sets them to 0 with this, as with every update that does not
/// mention them (kubernetes PR 141991).
pub fn reduced_cpu(compat: Compat) -> CgroupResources {
    CgroupResources {
        cpu_shares: Some(MIN_SHARES),
        hugetlb: unmentioned_hugepages(compat),
        ..CgroupResources::default()
    }
}

/// Hugepage limits of an update that is not about them.
pub(super) fn unmentioned_hugepages(compat: Compat) -> Option<BTreeMap<u64, Limit>> {
    match compat {
        Compat::Ballast => None,
        Compat::Kubelet => Some(BTreeMap::new()),
    }
}

/// CPU of a list; 0 when absent.
pub fn milli_cpu(list: &ResourceList) -> MilliCpu {
    cpu_in(list).unwrap_or_default()
}

/// Memory of a list; 0 when absent.
pub fn memory(list: &ResourceList) -> Bytes {
    memory_in(list).unwrap_or_default()
}

/// Page size in bytes to amount in bytes. Several names of one size add up; a size that is no
/// quantity above 0 is left out.
pub(super) fn hugepages(list: &ResourceList) -> BTreeMap<u64, Limit> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for (name, amount) in list {
        if let Some(size) = hugepage_size(name) {
            let sum = sums.entry(size).or_default();
            *sum = sum.saturating_add(amount.units());
        }
    }
    sums.into_iter()
        .map(|(size, sum)| (size, Limit::At(sum)))
        .collect()
}

/// The page size in bytes of a resource such as `hugepages-2Mi`.
pub(super) fn hugepage_size(name: &str) -> Option<u64> {
    let size: Quantity = name.strip_prefix(HUGEPAGES_PREFIX)?.parse().ok()?;
    Some(size.units()).filter(|it| *it > 0)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
