//! What kubepods and the QoS cgroups are to hold, anew with every change of the active pods
//! (pkg/kubelet/cm/qos_container_manager_linux.go, v1.36: `UpdateCgroups`). Pinned by suite
//! `node_allocatable`, kind `qos_tiers`.

use std::collections::{BTreeMap, BTreeSet};

use super::pod_resources::{memory, milli_cpu};
use super::qos::qos_class;
use super::resource_settings::ResourceSettings;
use crate::config::{Compat, MemoryReservationPolicy};
use crate::model::pod::{Overhead, Pod, PodLevel, QosClass};
use crate::model::resources::CgroupResources;
use crate::units::{Bytes, Limit, MIN_SHARES, MilliCpu, cpu_shares};

/// Hugepages of the QoS cgroups are bounded at pods and containers only. This is kubelet's value,
/// which is above any machine and below the kernel's overflow in pages.
pub const UNBOUNDED_HUGEPAGES: u64 = 1 << 62;

/// Resources for the three levels above the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosCgroups {
    /// The cgroup of all pods and, directly below it, of Guaranteed ones. What the node's own
    /// limits say about it is not repeated here.
    pub kubepods: CgroupResources,
    pub burstable: CgroupResources,
    pub besteffort: CgroupResources,
}

impl QosCgroups {
    /// The resources of the cgroup that pods of a class lie in.
    pub fn of(&self, class: QosClass) -> &CgroupResources {
        match class {
            QosClass::Guaranteed => &self.kubepods,
            QosClass::Burstable => &self.burstable,
            QosClass::BestEffort => &self.besteffort,
        }
    }
}

/// `qosReserved.memory`, and what it is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosReserved {
    /// 0..=100.
    pub percent: u8,
    /// Absolute allocatable memory; with 0 nothing is limited.
    pub allocatable: Bytes,
}

/// `hugepage_sizes` are the page sizes of the kernel, in bytes.
pub fn qos_cgroups<'a>(
    active: impl IntoIterator<Item = &'a Pod>,
    settings: &ResourceSettings,
    reserved: Option<QosReserved>,
    hugepage_sizes: &BTreeSet<u64>,
) -> QosCgroups {
    let sums = Sums::of(active);
    let unbounded: BTreeMap<u64, Limit> = hugepage_sizes
        .iter()
        .map(|it| (*it, Limit::At(UNBOUNDED_HUGEPAGES)))
        .collect();
    let mut cgroups = QosCgroups {
        kubepods: CgroupResources {
            // Kubelet lifts the node's own hugepage limits here, a minute after it wrote them.
            hugetlb: (settings.compat == Compat::Kubelet).then(|| unbounded.clone()),
            ..CgroupResources::default()
        },
        burstable: CgroupResources {
            cpu_shares: Some(cpu_shares(sums.burstable_cpu)),
            hugetlb: Some(unbounded.clone()),
            ..CgroupResources::default()
        },
        besteffort: CgroupResources {
            cpu_shares: Some(MIN_SHARES),
            hugetlb: Some(unbounded),
            ..CgroupResources::default()
        },
    };
    protect(&mut cgroups, &sums, settings);
    match reserved.and_then(|it| it.limits(&sums)) {
        Some(limits) => {
            // A limit of 0 would be none: a class for which nothing is left has a page.
            let at = |bytes: i128| Some(Limit::At(u64::try_from(bytes.max(1)).unwrap_or(u64::MAX)));
            cgroups.burstable.memory_max = at(limits.burstable);
            cgroups.besteffort.memory_max = at(limits.besteffort);
        }
        None if settings.takes_back() => {
            cgroups.burstable.memory_max = Some(Limit::Max);
            cgroups.besteffort.memory_max = Some(Limit::Max);
        }
        None => {}
    }
    cgroups
}

/// What the active pods are promised together where their memory is protected in tiers:
/// `memory.min` of Guaranteed and `memory.low` of Burstable ones.
pub fn tiers<'a>(
    active: impl IntoIterator<Item = &'a Pod>,
    settings: &ResourceSettings,
) -> Option<(Bytes, Bytes)> {
    is_tiered(settings).then(|| {
        let sums = Sums::of(active);
        (sums.guaranteed_memory, sums.burstable_memory)
    })
}

fn is_tiered(settings: &ResourceSettings) -> bool {
    settings
        .memory_qos
        .is_some_and(|it| it.policy == MemoryReservationPolicy::TieredReservation)
}

/// Requests of the active pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    burstable_cpu: MilliCpu,
    burstable_memory: Bytes,
    guaranteed_memory: Bytes,
}

impl Sums {
    fn of<'a>(active: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut sums = Self::default();
        for pod in active {
            let requests = pod.requests(PodLevel::Honoured, Overhead::Added);
            let (cpu, memory) = (milli_cpu(&requests).0, memory(&requests).0);
            let add = |sum: &mut u64, amount: u64| *sum = sum.saturating_add(amount);
            match qos_class(pod) {
                QosClass::Guaranteed => add(&mut sums.guaranteed_memory.0, memory),
                QosClass::Burstable => {
                    add(&mut sums.burstable_cpu.0, cpu);
                    add(&mut sums.burstable_memory.0, memory);
                }
                QosClass::BestEffort => {}
            }
        }
        sums
    }
}

/// Memory protection of the tiers.
///
/// A cgroup's protection is worth what its parent's is worth, so kubepods needs `memory.low` for
/// Burstable pods to have any; kubelet 1.36 gives it none, and in its stead protects Burstable
/// requests hard, for every pod to share.
fn protect(cgroups: &mut QosCgroups, sums: &Sums, settings: &ResourceSettings) {
    let mut set = |class: QosClass, file: &str, bytes: u64| {
        let resources = match class {
            QosClass::Guaranteed => &mut cgroups.kubepods,
            QosClass::Burstable => &mut cgroups.burstable,
            QosClass::BestEffort => &mut cgroups.besteffort,
        };
        resources.unified.insert(file.to_owned(), bytes.to_string());
    };
    let is_tiered = is_tiered(settings);
    let tier = |bytes: Bytes| if is_tiered { bytes.0 } else { 0 };
    let (guaranteed, burstable) = (tier(sums.guaranteed_memory), tier(sums.burstable_memory));
    if settings.resets_memory_protection() {
        set(QosClass::Guaranteed, "memory.min", guaranteed);
        set(QosClass::Guaranteed, "memory.low", burstable);
        set(QosClass::Burstable, "memory.min", 0);
        set(QosClass::Burstable, "memory.low", burstable);
        set(QosClass::BestEffort, "memory.min", 0);
        set(QosClass::BestEffort, "memory.low", 0);
    } else if settings.memory_qos.is_some() {
        set(
            QosClass::Guaranteed,
            "memory.min",
            guaranteed.saturating_add(burstable),
        );
        set(QosClass::Burstable, "memory.low", burstable);
    }
}

/// Memory limits of the QoS cgroups in bytes; negative where more is reserved than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedLimits {
    pub burstable: i128,
    pub besteffort: i128,
}

impl QosReserved {
    /// What `qosReserved` leaves to the classes below, by what the pods request. Kubelet writes a
    /// negative one as it is, which the kernel refuses.
    pub fn limits_for<'a>(
        self,
        active: impl IntoIterator<Item = &'a Pod>,
    ) -> Option<ReservedLimits> {
        self.limits(&Sums::of(active))
    }

    fn limits(self, sums: &Sums) -> Option<ReservedLimits> {
        if self.allocatable.0 == 0 {
            return None;
        }
        let part = |bytes: Bytes| i128::from(bytes.0) * i128::from(self.percent) / 100;
        let burstable = i128::from(self.allocatable.0) - part(sums.guaranteed_memory);
        let besteffort = burstable - part(sums.burstable_memory);
        Some(ReservedLimits {
            burstable,
            besteffort,
        })
    }
}

#[cfg(test)]
mod tests;
