//! The cgroups that shall be: the node's, and those of a pod, with the files that carry their
//! limits. In: what the node is, the configuration, the pods. Out: desired cgroups, parents first.

use std::collections::BTreeSet;

use super::cgroup_files::{FileRules, WeightMap, files_for};
use super::container_resources::container_resources;
use super::cpusets::ContainerPlacement;
use super::device_access::device_access;
use super::node_allocatable::NodeAllocatable;
use super::pod_resources::pod_resources;
use super::qos_cgroups::{QosReserved, qos_cgroups};
use super::resource_settings::{CpuLimits, CpuPinning, ResourceSettings};
use crate::config::KubeletConfig;
use crate::model::cgroup::{DesiredCgroup, FileValue, InterfaceFile};
use crate::model::cgroup_name::CgroupName;
use crate::model::cpuset::CpuSet;
use crate::model::device_access::{AllocatedDevice, DeviceAccess};
use crate::model::numa::NumaMask;
use crate::model::pod::{Container, Pod, QosClass};
use crate::model::resources::CgroupResources;

/// What desired cgroups depend on beside pods. Changes only with the machine or the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePlan {
    /// The cgroup of all pods.
    pub kubepods: CgroupName,
    pub rules: FileRules,
    pub settings: ResourceSettings,
    pub allocatable: NodeAllocatable,
    pub qos_reserved: Option<QosReserved>,
    /// The cpuset of kubepods, the QoS cgroups and the pods. `None`: left alone.
    pub ancestors: Option<AncestorCpuset>,
    /// Whether CPU limits become a quota where CPUs are exclusive: `Ignored`, unless the gate
    /// `DisableCPUQuotaWithExclusiveCPUs` is off.
    pub exclusive_cpu_limits: CpuLimits,
}

/// What the ancestors of container cgroups hold on v1, where no cgroup may use more than its parent
/// and CPUs that go offline are lost to every cpuset but the root's: all that the parent of kubepods
/// has. On v2 an ancestor without a mask of its own follows its parent by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AncestorCpuset {
    pub cpus: CpuSet,
    pub mems: NumaMask,
}

impl NodePlan {
    /// The parents of pod cgroups: kubepods itself and the two QoS cgroups.
    pub fn qos_cgroups(&self) -> [CgroupName; 3] {
        [
            QosClass::Guaranteed,
            QosClass::Burstable,
            QosClass::BestEffort,
        ]
        .map(|class| self.kubepods.qos(class))
    }

    /// kubepods and the QoS cgroups. `active` are the pods that count for the budgets.
    pub fn node_cgroups<'a>(
        &self,
        kubelet: &KubeletConfig,
        active: impl IntoIterator<Item = &'a Pod>,
    ) -> Vec<DesiredCgroup> {
        let sizes: BTreeSet<u64> = self.rules.hugepage_sizes.iter().copied().collect();
        let qos = qos_cgroups(active, &self.settings, self.qos_reserved, &sizes);
        let limits = self.allocatable.kubepods(kubelet, None);
        [
            (
                self.kubepods.clone(),
                with_node_limits(limits, &qos.kubepods),
            ),
            (self.kubepods.qos(QosClass::Burstable), qos.burstable),
            (self.kubepods.qos(QosClass::BestEffort), qos.besteffort),
        ]
        .into_iter()
        .map(|(name, resources)| self.ancestor(name, resources))
        .collect()
    }

    /// `pinning` is `Exclusive` if any container of the pod has CPUs of its own.
    pub fn pod_cgroup(
        &self,
        pod: &Pod,
        class: QosClass,
        pinning: CpuPinning,
        name: CgroupName,
    ) -> DesiredCgroup {
        let pinning = self.pinning_for_quota(pinning);
        let resources = pod_resources(pod, class, &self.settings, pinning);
        self.ancestor(name, resources)
    }

    pub fn container_cgroup(
        &self,
        pod: &Pod,
        class: QosClass,
        container: &Container,
        placement: &ContainerPlacement,
        name: CgroupName,
    ) -> DesiredCgroup {
        let pinning = self.pinning_for_quota(placement.pinning);
        let resources = CgroupResources {
            cpuset_cpus: placement.cpus.clone(),
            cpuset_mems: placement.mems,
            ..container_resources(pod, class, container, &self.settings, pinning)
        };
        self.cgroup(name, &resources, WeightMap::Quadratic)
    }

    /// The device rules of a container's cgroup, to be among its files; `None` where the node cannot
    /// restrict devices. `allocated`: what device plugins gave it.
    pub fn devices(
        &self,
        container: &Container,
        allocated: &[AllocatedDevice],
    ) -> Option<(InterfaceFile, FileValue)> {
        self.rules.devices.then(|| {
            let access = match container.is_privileged {
                true => DeviceAccess::Everything,
                false => device_access(allocated),
            };
            (InterfaceFile::devices(), FileValue::Devices(access))
        })
    }

    /// The cpuset files of a container's cgroup alone, to move it without a look at the rest of it.
    pub fn container_cpuset(
        &self,
        placement: &ContainerPlacement,
        name: CgroupName,
    ) -> DesiredCgroup {
        self.cgroup(name, &placement.resources(), WeightMap::Quadratic)
    }

    fn pinning_for_quota(&self, pinning: CpuPinning) -> CpuPinning {
        match self.exclusive_cpu_limits {
            CpuLimits::Ignored => pinning,
            CpuLimits::Enforced => CpuPinning::Shared,
        }
    }

    fn ancestor(&self, name: CgroupName, mut resources: CgroupResources) -> DesiredCgroup {
        if let Some(AncestorCpuset { cpus, mems }) = &self.ancestors {
            resources.cpuset_cpus = Some(cpus.clone());
            resources.cpuset_mems = Some(*mems);
        }
        self.cgroup(name, &resources, WeightMap::Linear)
    }

    fn cgroup(
        &self,
        name: CgroupName,
        resources: &CgroupResources,
        weights: WeightMap,
    ) -> DesiredCgroup {
        DesiredCgroup {
            name,
            files: files_for(resources, weights, &self.rules),
        }
    }
}

/// kubepods carries both the node's limits and what the QoS update says of it; where both have an
/// opinion the update, which kubelet writes later, wins.
fn with_node_limits(limits: CgroupResources, qos: &CgroupResources) -> CgroupResources {
    let mut unified = limits.unified;
    unified.extend(qos.unified.clone());
    CgroupResources {
        cpu_shares: qos.cpu_shares.or(limits.cpu_shares),
        cpu_bandwidth: qos.cpu_bandwidth.or(limits.cpu_bandwidth),
        cpuset_cpus: qos.cpuset_cpus.clone().or(limits.cpuset_cpus),
        cpuset_mems: qos.cpuset_mems.or(limits.cpuset_mems),
        memory_max: qos.memory_max.or(limits.memory_max),
        memory_and_swap_max: qos.memory_and_swap_max.or(limits.memory_and_swap_max),
        pids_max: qos.pids_max.or(limits.pids_max),
        hugetlb: qos.hugetlb.clone().or(limits.hugetlb),
        unified,
    }
}

#[cfg(test)]
mod tests;
